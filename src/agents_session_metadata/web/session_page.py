"""The page of a session: its history as turns, its phases, and the changes that it offers.

With `allow_write`, each change is one form; two of them ask first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from starlette.responses import Response

from agents_session_metadata import keys
from agents_session_metadata.core.rows import id_problem
from agents_session_metadata.errors import CorruptMetadataError
from agents_session_metadata.history.cursors import encode_item_cursor
from agents_session_metadata.types import ItemInfo, ItemPage, Metadata, SessionInfo

from .call import Call, Refused
from .formats import as_json, cut, lines, parse_time, seconds, shown

_CALLS: Final = ("_call", "mcp_approval_request")
_MOST_PHASES: Final = 30
_ITEMS: Final = 100
_ITEMS_BEFORE: Final = 20
"""The number of items before the item in the URL."""


def no_session() -> Refused:
    """Returns the same error for a missing session as for one outside the scope."""
    return Refused(404, "The session does not exist.")


async def load_session(call: Call) -> tuple[SessionInfo, list[str]]:
    """Returns the session in the URL, and the keys whose values are not valid JSON."""
    corrupt: list[CorruptMetadataError] = []
    info = await call.catalog.get_session(
        call.session_id(), count_items=True, preview=True, on_corrupt=corrupt.append
    )
    if info is None:
        raise no_session()
    return info, [each.key for each in corrupt]


async def session(call: Call) -> Response:
    info, corrupt = await load_session(call)
    item = call.item_id("item", required=False)
    newest = item is None and call.query.get("from") == "end"
    cursor = None if item is not None else call.query.get("cursor") or None
    if item is not None:
        items, older, later = await _around(call, info.session_id, item)
    else:
        page = await _page(call, info.session_id)
        items = page.items[::-1] if newest else page.items
        older, later = (page.next_cursor, None) if newest else (None, page.next_cursor)
    return call.render(
        "session.html",
        info=info,
        corrupt=corrupt,
        turns=turns(items),
        item=item,
        item_is_gone=item is not None and all(each.item_id != item for each in items),
        newest=newest,
        cursor=cursor,
        older=older,
        later=later,
        phases=phases(info),
        has_form=call.allow_write,
    )


async def _page(call: Call, session_id: str) -> ItemPage:
    return await call.catalog.list_items(
        session_id,
        order_by="-item_id" if call.query.get("from") == "end" else "item_id",
        limit=_ITEMS,
        cursor=call.query.get("cursor") or None,
    )


async def _around(
    call: Call, session_id: str, item: int
) -> tuple[list[ItemInfo], str | None, str | None]:
    """Returns the items around one, and the cursors for older and later items."""
    scope = call.catalog._store.scope.condition
    before = await call.catalog.list_items(
        session_id,
        order_by="-item_id",
        limit=_ITEMS_BEFORE,
        cursor=encode_item_cursor(item, session_id, "-item_id", scope),
    )
    after = await call.catalog.list_items(
        session_id,
        limit=_ITEMS - _ITEMS_BEFORE,
        cursor=encode_item_cursor(item - 1, session_id, "item_id", scope),
    )
    return before.items[::-1] + after.items, before.next_cursor, after.next_cursor


async def raw(call: Call) -> Response:
    info, _ = await load_session(call)
    page = await _page(call, info.session_id)
    document = {
        "session_id": info.session_id,
        "created_at": info.created_at.isoformat(),
        "updated_at": info.updated_at.isoformat(),
        "metadata": info.metadata,
        "item_count": info.item_count,
        "items": [
            {
                "item_id": each.item_id,
                "created_at": each.created_at.isoformat(),
                "item": each.item,
            }
            for each in page.items
        ],
        "next_cursor": page.next_cursor,
    }
    # Escaped: a lone surrogate is JSON, but not UTF-8.
    return Response(json.dumps(document, indent=2), media_type="application/json")


@dataclass
class Step:
    """One item, or a tool call with its output.

    `kind` is `user`, `assistant`, `system`, `tool`, `reasoning`, `encrypted` or `other`. `name` is
    the role or the tool, `text` the message or the arguments.
    """

    item_id: int
    at: datetime
    kind: str
    name: str
    text: str
    output: str | None = None


@dataclass
class Turn:
    """A user message and the steps after it. The first turn may have no user message."""

    steps: list[Step] = field(default_factory=list)


def turns(items: Sequence[ItemInfo]) -> list[Turn]:
    """Group items, oldest first, into turns. Outputs of tools join their calls."""
    found: list[Turn] = []
    calls: dict[str, Step] = {}
    for info in items:
        item: Any = info.item
        call_id = item.get("call_id") if isinstance(item, dict) else None
        is_output = isinstance(item, dict) and str(item.get("type", "")).endswith("_output")
        if is_output and isinstance(call_id, str) and call_id in calls:
            calls[call_id].output = cut(_text(item.get("output")))
            continue
        step = _step(info)
        if isinstance(call_id, str) and step.kind == "tool" and not is_output:
            calls[call_id] = step
        if step.kind == "user" or not found:
            found.append(Turn())
        found[-1].steps.append(step)
    return found


def _step(info: ItemInfo) -> Step:
    item: Any = info.item

    def step(kind: str, name: str, text: str, output: str | None = None) -> Step:
        return Step(info.item_id, info.created_at, kind, name, cut(text), output)

    if not isinstance(item, dict):
        return step("other", "item", as_json(item))
    if item.get("__enc__") == 1:
        return step("encrypted", "encrypted item", "")
    kind = shown(item.get("type", ""), 60)
    if "role" in item:
        role = shown(item["role"], 60)
        known = role if role in {"user", "assistant"} else "system"
        return step(known, role, _text(item.get("content")))
    if kind == "reasoning":
        return step("reasoning", "Reasoning", _text(item.get("summary")))
    if kind.endswith("_output"):
        return step("tool", kind, "", cut(_text(item.get("output"))))
    if kind.endswith(_CALLS):
        name = item.get("name") or kind.removesuffix("_call").replace("_", " ")
        known_keys = {"type", "id", "call_id", "status", "name"}
        rest = {key: value for key, value in item.items() if key not in known_keys}
        arguments = rest.get("arguments", rest or "")
        return step("tool", shown(name, 100), _text(arguments))
    return step("other", kind or "item", as_json(item, indent=2))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        return as_json(content, indent=2)
    texts = []
    for part in content:
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else part
        kind = part.get("type") if isinstance(part, dict) else None
        texts.append(text if isinstance(text, str) else f"[{shown(kind or part, 60)}]")
    return "\n".join(texts)


async def edit(call: Call) -> Response:
    """Change title, tags, pinned and archived; an empty field removes its key.

    A field that has not been edited changes nothing: a form cannot show every value, and another
    writer may have changed it since. Of the tags, only those that were added or removed change.
    """
    session_id = call.session_id()
    given, known = (lines(call.form.get(name, "")) for name in ("tags", "shown_tags"))
    wanted: dict[str, Any] = {
        keys.TITLE: call.form.get("title", "").strip() or None,
        keys.PINNED: call.form.get("pinned") == "yes" or None,
        keys.ARCHIVED: call.form.get("archived") == "yes" or None,
    }

    edited = [key for key in wanted if _line(call, key) != _line(call, f"shown_{key}")]

    def change(metadata: Metadata) -> None:
        for key in edited:
            if wanted[key] is None:
                metadata.pop(key, None)
            else:
                metadata[key] = wanted[key]
        if set(given) != set(known):
            _change_tags(metadata, known, given)

    if id_problem(session_id) is not None:
        await load_session(call)
        raise Refused(409, "A session with this id cannot have metadata.")
    await call.catalog.edit_metadata(session_id, change, must_exist=True)
    return call.redirect("/session", id=session_id)


def _change_tags(metadata: Metadata, known: list[str], given: list[str]) -> None:
    """Remove known tags that are not given, and add given tags that were not known."""
    stored: Any = metadata.pop(keys.TAGS, [])
    if not isinstance(stored, list):
        raise Refused(409, "The value of tags is not a list. Reload the session.")
    tags = [each for each in stored if each not in known or each in given]
    tags += [each for each in given if each not in known and each not in tags]
    if tags:
        metadata[keys.TAGS] = tags


def _line(call: Call, name: str) -> str:
    """Returns a field without line breaks, which browsers remove from one-line fields."""
    return call.form.get(name, "").replace("\r", "").replace("\n", "")


async def fork(call: Call) -> Response:
    before = call.item_id("before", required=False)
    try:
        copy = await call.catalog.fork_session(call.session_id(), before=before)
    except ValueError as error:
        raise _cannot(error) from error
    return call.redirect("/session", id=copy.session_id)


async def ask_delete(call: Call) -> Response:
    info, _ = await load_session(call)
    return call.render("ask.html", info=info, action="/delete", before=None, has_form=True)


async def delete(call: Call) -> Response:
    if not await call.catalog.delete_session(call.session_id()):
        raise no_session()
    return call.redirect("/")


async def ask_rewind(call: Call) -> Response:
    info, _ = await load_session(call)
    before = call.item_id("before")
    last = await call.catalog.list_items(info.session_id, order_by="-item_id", limit=1)
    return call.render(
        "ask.html",
        info=info,
        action="/rewind",
        before=before,
        last=last.items[0].item_id if last.items else 0,
        has_form=True,
    )


async def rewind(call: Call) -> Response:
    session_id, before = call.session_id(), call.item_id("before")
    last = call.item_id("last")
    try:
        await call.catalog.rewind_session(session_id, before=before, expect_last=last)
    except ValueError as error:
        raise _cannot(error) from error
    return call.redirect("/session", id=session_id, **{"from": "end"})


def _cannot(error: ValueError) -> Refused:
    sentence = str(error)
    return Refused(409, f"{sentence[:1].upper()}{sentence[1:]}.")


@dataclass(frozen=True)
class Phase:
    """A phase on the time line. `x` and `width` are in percent."""

    name: str
    at: datetime
    x: float
    width: float
    duration: str
    final: bool


def phases(info: SessionInfo) -> list[Phase]:
    """Returns the recorded phases; none if the stored value has another form."""
    stored: Any = info.metadata.get(keys.PHASE_HISTORY)
    moves = []
    for each in stored[-_MOST_PHASES:] if isinstance(stored, list) else ():
        at = parse_time(each.get("at")) if isinstance(each, dict) else None
        if at is not None:
            moves.append((shown(each.get("phase"), 40), at))
    if not moves:
        return []
    finished = parse_time(info.metadata.get(keys.FINISHED_AT))
    start, end = moves[0][1], finished or datetime.now(timezone.utc)
    end = max(end, moves[-1][1])
    whole = (end - start).total_seconds() or 1
    found = []
    for place, (name, at) in enumerate(moves):
        following = moves[place + 1][1] if place + 1 < len(moves) else end
        length = max((following - at).total_seconds(), 0)
        is_last = place + 1 == len(moves)
        found.append(
            Phase(
                name,
                at,
                round(max((at - start).total_seconds(), 0) / whole * 100, 2),
                max(round(length / whole * 100, 2), 0.6),
                "" if is_last and finished else seconds(length * 1000),
                is_last and finished is not None,
            )
        )
    return found

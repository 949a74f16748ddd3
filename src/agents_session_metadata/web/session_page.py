"""The page of a session: its history as turns, its phases, and the changes that it offers.

With `allow_write`, each change is one form; two of them ask first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from agents_session_metadata import SessionRuns, keys
from agents_session_metadata.errors import (
    CorruptMetadataError,
    ItemNotFoundError,
    SessionNotFoundError,
    TablesMissingError,
)
from agents_session_metadata.text import ascii_json, is_encrypted, parse_time
from agents_session_metadata.types import (
    ItemInfo,
    ItemPage,
    Metadata,
    SearchHit,
    SessionInfo,
    UsageRow,
)
from agents_session_metadata.values import id_problem

from .call import PageCall
from .formats import as_json, content_of, lines, number, seconds, shown
from .list_page import ignore, read_infos, search_problem, sentence
from .markdown import find_image

_CALLS = ("_call", "mcp_approval_request")
_MOST_PHASES = 30
_MOST_FORKS = 5
_MOST_HITS = 20
_ITEMS = 100
_BYTES = 8 << 20
"""Of the stored items that a page reads."""
_LONGEST_INDENTED = 200_000
_MOST_COUNTED = 1_000
_ITEMS_BEFORE = 20
"""The number of items before the item in the URL."""
_ERROR = "An error occurred while running the tool"
"""The beginning of what the SDK sends to the model if a tool fails."""


async def load_session(call: PageCall) -> tuple[SessionInfo, list[str]]:
    """Returns the session in the URL, and the keys whose values are not valid JSON."""
    corrupt: list[CorruptMetadataError] = []
    session_id = call.session_id()
    info = await call.catalog.get_session(
        session_id, count_items=True, preview=True, on_corrupt=corrupt.append
    )
    if info is None:
        raise SessionNotFoundError(session_id)
    return info, [each.key for each in corrupt]


async def session(call: PageCall) -> Response:
    info, corrupt = await load_session(call)
    item_id = call.item_id("item")
    newest = item_id is None and _is_from_end(call)
    cursor = None if item_id is not None else call.query.get("cursor") or None
    try:
        if item_id is None:
            page = await _items(call, info.session_id, cursor=cursor, newest_first=newest)
        else:
            page = await _around(call, info.session_id, item_id)
    except ItemNotFoundError:
        newest = True
        page = await _items(call, info.session_id, newest_first=True)
    items, older, later = page.items, page.previous_cursor, page.next_cursor
    if newest:
        items, older, later = items[::-1], later, older
    q = call.query.get("q", "").strip()
    hits, problem = await _search(call, info.session_id, q) if q else ([], "")
    runs = SessionRuns(call.catalog)
    usage = await call.catalog.usage(session_id=info.session_id, by=("item_id", "model"))
    original = info.metadata.get(keys.FORKED_FROM)
    ids = [original] if isinstance(original, str) else []
    forks = await call.catalog.list_sessions(
        {keys.FORKED_FROM: info.session_id},
        limit=_MOST_FORKS,
        keys=[keys.TITLE],
        preview=True,
        on_corrupt=ignore,
    )
    return call.render(
        "session.html",
        info=info,
        q=q,
        hits=hits,
        problem=problem,
        corrupt=corrupt,
        turns=turns(items, info.metadata, usage),
        run=await runs.get(info.session_id),
        decisions={each.call_id: each for each in await runs.decisions(info.session_id)},
        feedback=Counter(each.kind for each in await call.catalog.feedback(info.session_id)),
        state=(await call.catalog.statuses([info])).get(info.session_id),
        originals=list((await read_infos(call.catalog, ids)).values()),
        forks=forks.sessions,
        more_forks=forks.next_cursor is not None,
        run_keys=keys.RUN_KEYS,
        events=call.url("/events", id=info.session_id),
        item=item_id,
        item_is_gone=item_id is not None and newest,
        newest=newest,
        cursor=cursor,
        older=older,
        later=later,
        phases=phases(info),
        has_form=call.allow_write,
    )


async def _search(call: PageCall, session_id: str, q: str) -> tuple[list[SearchHit], str]:
    """Returns the newest messages of a session that a search finds, or why it finds nothing."""
    try:
        found = await call.catalog.search(q, {"$session_id": session_id}, limit=_MOST_HITS)
    except (TablesMissingError, ValueError) as error:
        return [], search_problem(error)
    return [hit for hit in found.hits if hit.item_id is not None], ""


def _is_from_end(call: PageCall) -> bool:
    return call.query.get("from") == "end"


async def _items(call: PageCall, session_id: str, **place: Any) -> ItemPage:
    return await call.catalog.list_items(session_id, limit=_ITEMS, max_bytes=_BYTES, **place)


async def _around(call: PageCall, session_id: str, item_id: int) -> ItemPage:
    """Returns the page of an item, most of which comes after it."""
    list_items = call.catalog.list_items
    page = await list_items(
        session_id, around=item_id, limit=2 * _ITEMS_BEFORE, max_bytes=_BYTES // 2
    )
    if page.next_cursor is None:
        return page
    rest = await list_items(
        session_id,
        cursor=page.next_cursor,
        limit=_ITEMS - 2 * _ITEMS_BEFORE,
        max_bytes=_BYTES // 2,
    )
    return ItemPage(page.items + rest.items, rest.next_cursor, page.previous_cursor)


async def raw(call: PageCall) -> Response:
    info, _ = await load_session(call)
    cursor = call.query.get("cursor") or None
    page = await _items(call, info.session_id, cursor=cursor, newest_first=_is_from_end(call))
    run = await SessionRuns(call.catalog).get(info.session_id)
    return _json({**vars(info), "run": run, **vars(page)})


def _json(document: Any) -> Response:
    # A lone surrogate is JSON, but not UTF-8.
    text = ascii_json(document)
    if len(text) <= _LONGEST_INDENTED:
        text = ascii_json(document, indent=2)
    return Response(text, media_type="application/json")


async def item(call: PageCall) -> Response:
    """Return a whole item as JSON, or one of its images."""
    info = await call.catalog.get_item(call.session_id(), call.needed_item_id("item"))
    image = call.query.get("image")
    if image is None:
        return _json(info)
    found = find_image(info.item, image)
    if found is None:
        raise HTTPException(404, "The item does not have this image.")
    return Response(found[0], media_type=found[1])


@dataclass
class Step:
    """One item, or a tool call with its output.

    `kind` is `user`, `assistant`, `system`, `tool`, `reasoning`, `encrypted` or `other`. `name` is
    the role or the tool, `text` the message or the arguments, `images` their items and URLs. `ok`
    is None if it is not known whether a call succeeded.
    """

    item_id: int
    at: datetime
    kind: str
    name: str
    text: str
    images: list[tuple[int, str]] = field(default_factory=list)
    call_id: str | None = None
    output: str | None = None
    output_id: int | None = None
    ok: bool | None = None
    ms: float | None = None
    end: datetime | None = None


@dataclass(frozen=True)
class Span:
    """A part of a turn's timeline, in percent of it: a tool, or the time between tools."""

    tool: str
    start: float
    width: float
    ms: float


@dataclass
class Turn:
    """A user message and the steps after it. The first turn may have no user message."""

    steps: list[Step] = field(default_factory=list)
    end: datetime | None = None
    usage: list[UsageRow] = field(default_factory=list)

    @property
    def ms(self) -> float:
        """The time from the first item to the last one."""
        end = self.end or self.steps[-1].at
        return max((end - self.steps[0].at).total_seconds() * 1000, 0)

    @property
    def timeline(self) -> list[Span]:
        """Returns the tool calls and what is left for the model, oldest first."""
        begin, whole = self.steps[0].at, self.ms
        calls = [(each, each.end) for each in self.steps if each.kind == "tool" and each.end]
        if not calls or not whole:
            return []
        found, free = list[Span](), 0.0
        for call, end in sorted(calls, key=lambda each: (each[1], each[0].item_id)):
            until = min(max((end - begin).total_seconds() * 1000, 0), whole)
            since = max(until - (call.ms or 0), 0)
            if since > free:
                found.append(
                    Span("", free / whole * 100, (since - free) / whole * 100, since - free)
                )
            width = (until - since) / whole * 100
            found.append(Span(call.name, since / whole * 100, width, until - since))
            free = max(free, until)
        if whole > free:
            found.append(Span("", free / whole * 100, 100 - free / whole * 100, whole - free))
        return found

    @property
    def models(self) -> list[str]:
        return sorted({row.model for row in self.usage if row.model})

    @property
    def tools(self) -> int:
        return sum(step.kind == "tool" for step in self.steps)

    @property
    def tokens(self) -> int:
        return sum(row.total_tokens for row in self.usage)

    @property
    def cost(self) -> float | None:
        costs = [row.cost for row in self.usage if row.cost is not None]
        return sum(map(float, costs)) if costs else None


def turns(
    items: Sequence[ItemInfo], metadata: Mapping[str, Any], usage: Sequence[UsageRow]
) -> list[Turn]:
    """Group items, oldest first, into turns. Outputs of tools join their calls."""
    found: list[Turn] = []
    calls: dict[str, Step] = {}
    recorded: Any = metadata.get(keys.INVOCATION_DETAILS)
    recorded = recorded if isinstance(recorded, list) else []
    known = {str(each.get("id")): each for each in recorded if isinstance(each, dict)}
    used: dict[int | None, list[UsageRow]] = {}
    for row in usage:
        used.setdefault(row.item_id, []).append(row)
    for info in items:
        item: Any = info.item
        call_id = item.get("call_id") if isinstance(item, dict) else None
        is_output = isinstance(item, dict) and str(item.get("type", "")).endswith("_output")
        if is_output and isinstance(call_id, str) and call_id in calls:
            _complete(calls[call_id], info, known.get(call_id, {}))
        else:
            step = _step(info)
            if isinstance(call_id, str) and step.kind == "tool" and not is_output:
                calls[call_id], step.call_id = step, call_id
            if step.kind == "user" or not found:
                found.append(Turn())
            found[-1].steps.append(step)
        found[-1].end = info.created_at
        found[-1].usage += used.get(info.item_id, ())
    return found


def _complete(step: Step, info: ItemInfo, recorded: Mapping[str, Any]) -> None:
    """Adds the output of a call, its outcome and its duration, if the tracker recorded them."""
    item: Any = info.item
    step.output, images = content_of(item.get("output"))
    step.images += [(info.item_id, each) for each in images]
    step.output_id, step.end = info.item_id, info.created_at
    step.ok = recorded.get("ok") is not False and not step.output.startswith(_ERROR)
    between = (info.created_at - step.at).total_seconds() * 1000
    step.ms = number(recorded.get("ms", between if between > 0 else None))


def _step(info: ItemInfo) -> Step:
    item: Any = info.item

    def step(kind: str, name: str, content: Any) -> Step:
        text, images = content_of(content)
        owned = [(info.item_id, each) for each in images]
        return Step(info.item_id, info.created_at, kind, name, text, owned)

    if not isinstance(item, dict):
        return step("other", "item", as_json(item))
    if is_encrypted(item):
        return step("encrypted", "encrypted item", "")
    kind = shown(item.get("type", ""), 60)
    if "role" in item:
        role = shown(item["role"], 60)
        known = role if role in {"user", "assistant"} else "system"
        return step(known, role, item.get("content"))
    if kind == "reasoning":
        return step("reasoning", "Reasoning", item.get("summary"))
    if kind.endswith("_output"):
        found = step("tool", kind, item.get("output"))
        found.text, found.output = "", found.text
        return found
    if kind.endswith(_CALLS):
        name = item.get("name") or kind.removesuffix("_call").replace("_", " ")
        known_keys = {"type", "id", "call_id", "status", "name"}
        rest = {key: value for key, value in item.items() if key not in known_keys}
        return step("tool", shown(name, 100), rest.get("arguments", rest or ""))
    return step("other", kind or "item", as_json(item, indent=2))


async def edit(call: PageCall) -> Response:
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
        raise HTTPException(409, "A session with this id cannot have metadata.")
    await call.catalog.edit_metadata(session_id, change, must_exist=True)
    return call.redirect("/session", id=session_id)


def _change_tags(metadata: Metadata, known: list[str], given: list[str]) -> None:
    """Remove known tags that are not given, and add given tags that were not known."""
    stored: Any = metadata.pop(keys.TAGS, [])
    if not isinstance(stored, list):
        raise HTTPException(409, "The value of tags is not a list. Reload the session.")
    tags = [each for each in stored if each not in known or each in given]
    tags += [each for each in given if each not in known and each not in tags]
    if tags:
        metadata[keys.TAGS] = tags


def _line(call: PageCall, name: str) -> str:
    """Returns a field without line breaks, which browsers remove from one-line fields."""
    return call.form.get(name, "").replace("\r", "").replace("\n", "")


async def fork(call: PageCall) -> Response:
    before = call.item_id("before")
    try:
        copy = await call.catalog.fork_session(call.session_id(), before=before)
    except ValueError as error:
        raise _cannot(error) from error
    return call.redirect("/session", id=copy.session_id)


async def ask_delete(call: PageCall) -> Response:
    info, _ = await load_session(call)
    return call.render("ask.html", info=info, action="/delete", before=None, has_form=True)


async def delete(call: PageCall) -> Response:
    session_id = call.session_id()
    if not await call.catalog.delete_session(session_id):
        raise SessionNotFoundError(session_id)
    return call.redirect("/")


async def ask_rewind(call: PageCall) -> Response:
    info, _ = await load_session(call)
    session_id, before = info.session_id, call.needed_item_id("before")
    first = await call.catalog.get_item(session_id, before)
    rest = await call.catalog.list_items(
        session_id, limit=_MOST_COUNTED - 1, after=before, max_bytes=_BYTES
    )
    last = await call.catalog.list_items(session_id, limit=1, newest_first=True)
    return call.render(
        "ask.html",
        info=info,
        action="/rewind",
        before=before,
        last=last.items[0].item_id if last.items else 0,
        first=_step(first),
        number=f"{len(rest) + 1:,}",
        more=rest.next_cursor is not None,
        has_form=True,
    )


async def rewind(call: PageCall) -> Response:
    session_id, before = call.session_id(), call.needed_item_id("before")
    last = call.needed_item_id("last")
    try:
        await call.catalog.rewind_session(session_id, before=before, expect_last=last)
    except ValueError as error:
        raise _cannot(error) from error
    return call.redirect("/session", id=session_id, **{"from": "end"})


def _cannot(error: ValueError) -> HTTPException:
    return HTTPException(409, sentence(str(error)))


@dataclass(frozen=True)
class Phase:
    """A phase of the work. `duration` is empty for the last one of finished work."""

    name: str
    at: datetime
    duration: str


def phases(info: SessionInfo) -> list[Phase]:
    """Returns the recorded phases; none if the stored value has another form."""
    history = info.metadata.get(keys.PHASE_HISTORY)
    moves = list[tuple[str, datetime]]()
    for entry in history[-_MOST_PHASES:] if isinstance(history, list) else []:
        at = parse_time(entry.get("at")) if isinstance(entry, dict) else None
        if at is not None and isinstance(entry.get("phase"), str):
            moves.append((entry["phase"], at))
    is_finished = parse_time(info.metadata.get(keys.FINISHED_AT)) is not None
    ends = [at for _, at in moves[1:]] + [None if is_finished else datetime.now(timezone.utc)]
    return [
        Phase(name, at, seconds(max((end - at).total_seconds(), 0) * 1000) if end else "")
        for (name, at), end in zip(moves, ends, strict=False)
    ]

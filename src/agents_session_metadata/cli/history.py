"""The commands that read, search, cut and copy histories."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from agents_session_metadata.text import escaped

from . import command as registry
from .options import (
    CURSOR,
    EVERY_PAGE,
    FILTERS,
    JSON_LINES,
    META,
    SESSION,
    YES,
    Whole,
    argument,
    checked,
    confirm,
    flag,
    option,
    parse_pairs,
    takes,
    usage,
)
from .output import counted, no_session, nothing, say, shown, write, write_json

if TYPE_CHECKING:
    from agents_session_metadata.types import ItemInfo

    from .connection import Place

_command = partial(registry.command, panel="History")

_PAGE, _LONG_PAGE = 50, 1000


@_command("history", "history chat-1 --limit 20 --newest-first", shared=registry.ONE)
@takes(
    SESSION,
    option("--limit", type=Whole(1, _LONG_PAGE), help=f"Items per page.  [default: {_PAGE}]"),
    CURSOR,
    EVERY_PAGE,
    flag("--newest-first", help="Print the newest items first."),
    JSON_LINES,
)
async def history(
    place: Place,
    *,
    session: str,
    limit: int | None,
    cursor: str | None,
    every: bool,
    newest_first: bool,
    as_lines: bool,
) -> int:
    """Print the history of a session, oldest items first.

    The number before each item is its id. Pass it to rewind or fork.
    """
    records = place.records(sys.stdout, '{"items": [', as_lines=as_lines)
    found = 0
    async with place.open() as (catalog, wait):
        while True:
            page = await wait(
                catalog.list_items(
                    session,
                    order_by="-item_id" if newest_first else "item_id",
                    limit=limit or (_LONG_PAGE if every else _PAGE),
                    cursor=cursor,
                )
            )
            found += len(page.items)
            for each in page.items:
                if place.as_json or as_lines:
                    records.add(_record(each))
                else:
                    _write_item(each)
            cursor = page.next_cursor
            if not every or cursor is None:
                break
        exists = found or await wait(catalog.get_session(session, keys=[])) is not None
    records.close(f'], "next_cursor": {json.dumps(cursor)}}}')
    if cursor is not None and not place.as_json:
        say(f"there are more items; continue with --cursor {cursor}")
    if found:
        return 0
    return nothing(f"session {shown(session)} has no items" if exists else no_session(session))


@_command("rewind", "rewind chat-1 --turns 1 --yes", shared=registry.ONE)
@takes(
    SESSION,
    option("--turns", type=Whole(1), help="Remove this many turns from the end."),
    option("--before", type=int, metavar="ITEM", help="Remove this item and everything after it."),
    option("--expect-last", type=int, metavar="ITEM", help="Fail if this is not the newest item."),
    YES,
)
async def rewind(
    place: Place,
    *,
    session: str,
    turns: int | None,
    before: int | None,
    expect_last: int | None,
    yes: bool,
) -> int:
    """Remove the last items of a session's history. Metadata is kept.

    Requires --turns or --before. A turn begins with a user message. Item ids are those that history
    prints. A call is never separated from its output.
    """
    if (turns is None) == (before is None):
        usage("pass either --turns or --before")
    what = f"everything from item {before} on" if turns is None else counted(turns, "turn")
    confirm(f"Remove {what} of session {shown(session)}?", yes=yes)
    async with place.open() as (catalog, wait):
        removed = await wait(
            catalog.rewind_session(session, turns=turns, before=before, expect_last=expect_last)
        )
    if place.as_json:
        write_json({"session_id": session, "removed": [_record(each) for each in removed]})
    if not removed:
        return nothing(f"session {shown(session)} has no turns")
    if not place.as_json:
        say(f"removed {counted(len(removed), 'item')}")
    return 0


@_command("fork", "fork chat-1 chat-2 --before 17", shared=registry.WRITES_ONE)
@takes(
    SESSION,
    argument("new_session", "[NEW]", "The id of the copy. Default: a random id.", required=False),
    option("--before", type=int, metavar="ITEM", help="Copy only the items before this one."),
    META,
)
async def fork(
    place: Place,
    *,
    session: str,
    new_session: str | None,
    before: int | None,
    meta: tuple[str, ...],
) -> None:
    """Copy a session with history and metadata, and print the id of the copy.

    The id of the original is stored under forked_from, the item of --before under forked_before.
    """
    values = parse_pairs(meta, "--meta")
    async with place.open() as (catalog, wait):
        from agents_session_metadata.core.rows import check_id

        if new_session is not None:
            checked(check_id, new_session)
        copy = await wait(
            catalog.fork_session(session, new_session, metadata=values, before=before)
        )
        if place.as_json:
            metadata = await wait(copy.get_metadata())
            write_json({"session_id": copy.session_id, "metadata": metadata})
    if not place.as_json:
        write(escaped(copy.session_id))


@_command("search", "search 'lisbon \"tram 28\" alf*' --meta owner_id=u1", shared=registry.SERVER)
@takes(argument("query", "QUERY", 'Words, "a phrase", a prefix* or -excluded words.'), *FILTERS)
async def search(place: Place, *, query: str, condition: dict[str, Any] | None) -> None:
    """Find messages and titles that contain all words. Not available in this version."""
    async with place.open() as (catalog, wait):
        await wait(catalog.search(query, condition))


def _record(info: ItemInfo) -> dict[str, Any]:
    return {
        "item_id": info.item_id,
        "created_at": info.created_at.isoformat(),
        "item": info.item,
    }


def _write_item(info: ItemInfo) -> None:
    item: Any = info.item
    kind, lines = "item", [shown(item)]
    if isinstance(item, dict):
        kind = str(item.get("role") or item.get("type") or "item")
        if item.get("__enc__") == 1:
            kind, lines = "encrypted", []
        elif "role" in item:
            lines = [line for text in _texts(item.get("content")) for line in text.split("\n")]
        else:
            rest = {name: each for name, each in item.items() if name != "type"}
            lines = [shown(f"{name}: {shown(each)}") for name, each in rest.items()]
    write(f"{info.item_id}  {info.created_at:%Y-%m-%d %H:%M:%S}  {escaped(kind)}")
    for line in lines:
        write(f"    {escaped(line, chr(9))}".rstrip())


def _texts(content: Any) -> Iterator[str]:
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text
        else:
            kind = part.get("type") if isinstance(part, dict) else None
            yield f"({kind or shown(part)})"

"""The commands that read and change sessions: their metadata and histories."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from agents_session_metadata.text import content_texts, escaped

from . import command as registry
from .options import (
    ACTIVE,
    CURSOR,
    EVERY_PAGE,
    FILTERS,
    JSON_LINES,
    META,
    SESSION,
    YES,
    Failure,
    Whole,
    argument,
    both,
    checked,
    confirm,
    flag,
    option,
    parse_pairs,
    takes,
    usage,
)
from .output import (
    Corrupt,
    counted,
    no_match,
    no_session,
    nothing,
    record_of,
    say,
    shown,
    write,
    write_json,
    write_metadata,
    write_session,
    write_sessions,
    write_table,
)

if TYPE_CHECKING:
    from agents_session_metadata.types import ItemInfo, SessionInfo

    from .connection import Place

_command = partial(registry.command, panel="Sessions")
_history_command = partial(registry.command, panel="History")

_PAGE, _ITEMS, _LONG_PAGE = 20, 50, 1000


@_command("list", "list --meta owner_id=u1 --active --limit 5")
@takes(
    *FILTERS,
    ACTIVE,
    option(
        "--order-by",
        default="-updated_at",
        help="A metadata key, updated_at, created_at or session_id; - for descending.",
    ),
    option("--limit", type=Whole(1, _LONG_PAGE), help=f"Sessions per page.  [default: {_PAGE}]"),
    CURSOR,
    EVERY_PAGE,
    option(
        "--key",
        "keys",
        metavar="KEY",
        multiple=True,
        help="Print only this metadata key, as a column; repeatable.",
    ),
    flag("--count-items", help="Count items."),
    JSON_LINES,
)
async def list_(
    place: Place,
    *,
    condition: dict[str, Any] | None,
    order_by: str,
    limit: int | None,
    cursor: str | None,
    every: bool,
    keys: tuple[str, ...],
    count_items: bool,
    as_lines: bool,
) -> int:
    """List sessions, most recently active first.

    With --all, the sessions are printed as one table per page.
    """
    corrupt = Corrupt()
    records = place.records(sys.stdout, '{"sessions": [', as_lines=as_lines)
    found = 0
    async with place.open() as (catalog, wait):
        from agents_session_metadata.query.ordering import Ordering

        checked(Ordering.parse, order_by)
        while True:
            page = await wait(
                catalog.list_sessions(
                    condition,
                    order_by=order_by,
                    limit=limit or (_LONG_PAGE if every else _PAGE),
                    cursor=cursor,
                    keys=keys or None,
                    count_items=count_items,
                    on_corrupt=corrupt,
                )
            )
            found += len(page.sessions)
            if place.as_json or as_lines:
                for info in page.sessions:
                    records.add(record_of(info))
            elif page.sessions:
                write_sessions(page.sessions, keys or None)
            cursor = page.next_cursor
            if not every or cursor is None:
                break
    records.close(f'], "next_cursor": {json.dumps(cursor)}}}')
    if not found:
        return corrupt.exit_code or nothing(no_match(condition))
    if cursor is not None and not place.as_json:
        say(f"there are more sessions; continue with --cursor {cursor}")
    return corrupt.exit_code


@_command("show", "show chat-1", shared=registry.ONE)
@takes(SESSION)
async def show(place: Place, *, session: str) -> int:
    """Show one session: times, number of items, metadata."""
    corrupt = Corrupt()
    async with place.open() as (catalog, wait):
        info = await wait(catalog.get_session(session, count_items=True, on_corrupt=corrupt))
    _write_found(place, info)
    return corrupt.exit_code if info is not None else nothing(no_session(session))


@_command("get", "get chat-1 title", shared=registry.ONE)
@takes(SESSION, argument("keys", "[KEY]...", "The keys. Default: all.", nargs=-1))
async def get(place: Place, *, session: str, keys: tuple[str, ...]) -> int:
    """Print the metadata of a session: one value, some keys, or all keys.

    For one key, only the value is printed. With --json, missing keys are null.
    """
    corrupt = Corrupt()
    async with place.open() as (catalog, wait):
        info = await wait(catalog.get_session(session, keys=keys or None, on_corrupt=corrupt))
    stored = info.metadata if info is not None else {}
    if place.as_json:
        write_json({key: stored.get(key) for key in keys} if keys else stored)
    elif keys and len(keys) == 1 and stored:
        value = stored[keys[0]]
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        write(escaped(text, "\n\t"))
    elif stored:
        write_metadata(stored)
    if info is None:
        return nothing(no_session(session))
    if not stored and not corrupt.exit_code:
        what = f"value for {named}" if (named := ", ".join(keys)) else "metadata"
        return nothing(f"session {shown(session)} has no {what}")
    return corrupt.exit_code


@_command("set", "set chat-1 title='My chat' tags='[\"work\"]'", shared=registry.WRITES_ONE)
@takes(
    SESSION,
    argument("pairs", "KEY=VALUE...", "Metadata to store.", nargs=-1),
    META,
    flag("--create", help="Create the session if it does not exist."),
)
async def set_(
    place: Place, *, session: str, pairs: tuple[str, ...], meta: tuple[str, ...], create: bool
) -> int:
    """Store metadata keys. Other keys do not change.

    A value is parsed as JSON (7, true, null). If it is not valid JSON, it is stored as a string.
    For the string 7, write '"7"'. If the session does not exist, pass --create.
    """
    values = parse_pairs([*pairs, *meta], "set")
    if not values:
        usage("nothing to set; pass KEY=VALUE")
    async with place.open() as (catalog, wait):
        from agents_session_metadata.core.rows import check_id

        checked(check_id, session)
        try:
            await wait(catalog.set_metadata(session, values, must_exist=not create))
        except Failure as failure:
            if _is_missing(failure):
                return nothing(
                    no_session(session) + ("" if create else "; pass --create to create it")
                )
            raise
        if place.as_json:
            metadata = await wait(catalog.get_metadata(session))
            write_json({"session_id": session, "metadata": metadata})
    return 0


@_command("unset", "unset chat-1 tags", shared=registry.ONE)
@takes(
    SESSION,
    argument("keys", "[KEY]...", "The keys to remove.", nargs=-1),
    flag("--all", "every", help="Remove every key."),
)
async def unset(place: Place, *, session: str, keys: tuple[str, ...], every: bool) -> int:
    """Remove metadata keys. The history does not change."""
    if bool(keys) == every:
        usage("pass either the keys to remove or --all")
    async with place.open() as (catalog, wait):
        try:
            removed = await wait(catalog.delete_metadata(session, None if every else keys))
        except Failure as failure:
            if not _is_missing(failure):
                raise
            return nothing(no_session(session))
        # Whether the session is absent or outside the scope, the answer is the same.
        if not removed and await wait(catalog.get_session(session, keys=[])) is None:
            return nothing(no_session(session))
    if place.as_json:
        write_json({"session_id": session, "removed": removed})
    if not removed:
        return nothing(f"session {shown(session)} has none of these keys")
    if not place.as_json:
        say(f"removed {counted(removed, 'key')}")
    return 0


@_command("count", 'count --where \'{"tags": {"$contains": "work"}}\'')
@takes(*FILTERS, ACTIVE)
async def count(place: Place, *, condition: dict[str, Any] | None) -> None:
    """Print the number of matching sessions."""
    async with place.open() as (catalog, wait):
        number = await wait(catalog.count_sessions(condition))
    if place.as_json:
        write_json({"count": number})
    else:
        write(str(number))


@_command("values", "values tags --limit 10")
@takes(
    argument("key", "KEY", "A metadata key."),
    *FILTERS,
    option("--limit", type=Whole(1, _LONG_PAGE), default=_PAGE, help="Maximum number of values."),
)
async def values(place: Place, *, key: str, condition: dict[str, Any] | None, limit: int) -> int:
    """Print the values of a key, with the number of sessions per value or list element."""
    async with place.open() as (catalog, wait):
        counts = await wait(catalog.count_values(key, condition, limit=limit))
    if place.as_json:
        write_json([{"value": each.value, "count": each.count} for each in counts])
    elif counts:
        write_table((key, "sessions"), [(shown(each.value), f"{each.count:,}") for each in counts])
    return 0 if counts else nothing(f"no session has a value for {shown(key)}")


@_command("last", "last --agent @ai-engineer")
@takes(option("--agent", help="The agent's name, with or without a leading @."), *FILTERS)
async def last(place: Place, *, agent: str | None, condition: dict[str, Any] | None) -> int:
    """Show the most recently active session that matches, for example of an agent."""
    from agents_session_metadata.keys import AGENT, normalize_agent

    of_agent = None if agent is None else {AGENT: normalize_agent(agent)}
    condition = both(of_agent, condition)
    async with place.open() as (catalog, wait):
        info = await wait(catalog.last_session(condition, count_items=True))
    _write_found(place, info)
    if info is not None:
        return 0
    return nothing(no_match(condition) if agent is None else f"agent {shown(agent)} has no session")


@_history_command("history", "history chat-1 --limit 20 --newest-first", shared=registry.ONE)
@takes(
    SESSION,
    option("--limit", type=Whole(1, _LONG_PAGE), help=f"Items per page.  [default: {_ITEMS}]"),
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
                    limit=limit or (_LONG_PAGE if every else _ITEMS),
                    cursor=cursor,
                    newest_first=newest_first,
                )
            )
            found += len(page.items)
            for each in page.items:
                if place.as_json or as_lines:
                    records.add(_item_record(each))
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


@_history_command("rewind", "rewind chat-1 --turns 1 --yes", shared=registry.ONE)
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
        write_json({"session_id": session, "removed": [_item_record(each) for each in removed]})
    if not removed:
        return nothing(f"session {shown(session)} has no turns")
    if not place.as_json:
        say(f"removed {counted(len(removed), 'item')}")
    return 0


@_history_command("fork", "fork chat-1 chat-2 --before 17", shared=registry.WRITES_ONE)
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


@_history_command(
    "search", "search 'lisbon \"tram 28\" alf*' --meta owner_id=u1", shared=registry.SERVER
)
@takes(argument("query", "QUERY", 'Words, "a phrase", a prefix* or -excluded words.'), *FILTERS)
async def search(place: Place, *, query: str, condition: dict[str, Any] | None) -> None:
    """Find messages and titles that contain all words. Not available in this version."""
    async with place.open() as (catalog, wait):
        await wait(catalog.search(query, condition))


def _write_found(place: Place, info: SessionInfo | None) -> None:
    if place.as_json:
        write_json(info and record_of(info))
    elif info is not None:
        write_session(info)


def _is_missing(failure: Failure) -> bool:
    from agents_session_metadata.errors import SessionNotFoundError

    return isinstance(failure.__cause__, SessionNotFoundError)


def _item_record(info: ItemInfo) -> dict[str, Any]:
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
            texts = content_texts(item.get("content"))
            lines = [line for text in texts for line in text.split("\n")]
        else:
            rest = {name: each for name, each in item.items() if name != "type"}
            lines = [shown(f"{name}: {shown(each)}") for name, each in rest.items()]
    write(f"{info.item_id}  {info.created_at:%Y-%m-%d %H:%M:%S}  {escaped(kind)}")
    for line in lines:
        write(f"    {escaped(line, chr(9))}".rstrip())

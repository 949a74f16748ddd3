"""The commands that read and change the metadata of sessions."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from agents_session_metadata.text import escaped

from . import command as registry
from .options import (
    ACTIVE,
    CURSOR,
    EVERY_PAGE,
    FILTERS,
    JSON_LINES,
    META,
    SESSION,
    Failure,
    Whole,
    argument,
    both,
    checked,
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
    from agents_session_metadata.types import SessionInfo

    from .connection import Place

_command = partial(registry.command, panel="Sessions")

_PAGE, _LONG_PAGE = 20, 1000


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


def _write_found(place: Place, info: SessionInfo | None) -> None:
    if place.as_json:
        write_json(info and record_of(info))
    elif info is not None:
        write_session(info)


def _is_missing(failure: Failure) -> bool:
    from agents_session_metadata.errors import SessionNotFoundError

    return isinstance(failure.__cause__, SessionNotFoundError)

"""The commands about single sessions and about lists of them."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from agents_session_metadata.keys import AGENT, STATUS, normalize_agent
from agents_session_metadata.query.filters import Where
from agents_session_metadata.types import SessionInfo

from .command import command
from .options import (
    Failure,
    FilterMetaOption,
    JsonLinesOption,
    JsonOption,
    MetaOption,
    Place,
    SessionArgument,
    WhereOption,
    YesOption,
    confirm,
    parse_pairs,
    parse_where,
    refuse_both,
    usage,
)
from .output import (
    printable,
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

KeysOption = Annotated[
    list[str] | None,
    typer.Option("--key", help="Bring only this metadata key, as a column; repeatable."),
]
CountItemsOption = Annotated[bool, typer.Option("--count-items", help="Count history items.")]


@command("list", "list --meta owner_id=u1 --active --limit 5")
async def list_(
    place: Place,
    *,
    where: WhereOption = None,
    meta: FilterMetaOption = None,
    active: Annotated[bool, typer.Option("--active", help="Only those of status active.")] = False,
    order_by: Annotated[
        str, typer.Option(help="updated_at, created_at or session_id; with - for descending.")
    ] = "-updated_at",
    limit: Annotated[int, typer.Option(help="Sessions a page, 1 to 1,000.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Where the page before ended.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every page; with --jsonl, in constant memory.")
    ] = False,
    keys: KeysOption = None,
    count_items: CountItemsOption = False,
    as_json: JsonOption = False,
    as_lines: JsonLinesOption = False,
) -> int:
    """List sessions, most recently active first."""
    refuse_both(as_json=as_json, as_lines=as_lines)
    condition = _with_status(parse_where(where, meta), active=active)
    async with place.catalog() as catalog:
        sessions: list[SessionInfo] = []
        next_cursor = cursor
        while True:
            page = await catalog.list_sessions(
                condition,
                order_by=order_by,
                limit=limit,
                cursor=next_cursor,
                keys=keys,
                count_items=count_items,
            )
            next_cursor = page.next_cursor
            if as_lines:
                for info in page.sessions:
                    write_json(record_of(info), indent=None)
            found = bool(sessions or page.sessions)
            sessions = page.sessions if as_lines else [*sessions, *page.sessions]
            if not every or next_cursor is None:
                break
    if as_json:
        records = [record_of(info) for info in sessions]
        write_json({"sessions": records, "next_cursor": next_cursor})
    elif sessions and not as_lines:
        write_sessions(sessions, keys)
    if not found:
        raise Failure("no session matches")
    if next_cursor is not None and not as_json:
        say(f"there are more; go on with --cursor {next_cursor}")
    return 0


@command("show", "show chat-1")
async def show(place: Place, *, session: SessionArgument, as_json: JsonOption = False) -> int:
    """Show one session: times, number of items, metadata."""
    async with place.catalog() as catalog:
        info = await catalog.get_session(session, count_items=True)
    _write_found(info, as_json=as_json)
    if info is None:
        raise _not_found(session)
    return 0


@command("get", "get chat-1 title")
async def get(
    place: Place,
    *,
    session: SessionArgument,
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY")] = None,
    as_json: JsonOption = False,
) -> int:
    """Print metadata: the value of one key, or some keys, or all of them.

    One key prints its bare value. With --json, missing keys are null.
    """
    async with place.catalog() as catalog:
        info = await catalog.get_session(session, keys=keys or None)
    stored = info.metadata if info is not None else {}
    if as_json:
        write_json({key: stored.get(key) for key in keys} if keys else stored)
    elif keys and len(keys) == 1 and stored:
        value = stored[keys[0]]
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        write(printable(text, "\n\t"))
    elif stored:
        write_metadata(stored)
    if info is None:
        raise _not_found(session)
    if not stored:
        raise Failure(f"session {shown(session)} has no {', '.join(keys) if keys else 'metadata'}")
    return 0


@command("set", "set chat-1 title='My chat' tags='[\"work\"]'")
async def set_(
    place: Place,
    *,
    session: SessionArgument,
    pairs: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE")] = None,
    meta: MetaOption = None,
) -> int:
    """Store metadata, and leave other keys alone.

    A value that is valid JSON is stored as JSON (7, true, null, ["a"]), any other as a string. For
    the string 7 write '"7"'. A session that does not exist yet is made.
    """
    values = parse_pairs([*(pairs or ()), *(meta or ())], "set")
    if not values:
        usage("nothing to set; pass key=value")
    async with place.catalog() as catalog:
        await catalog.set_metadata(session, values)
    return 0


@command("unset", "unset chat-1 tags")
async def unset(
    place: Place,
    *,
    session: SessionArgument,
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY")] = None,
    every: Annotated[bool, typer.Option("--all", help="Remove every key.")] = False,
) -> int:
    """Remove metadata keys; the history stays."""
    if bool(keys) == every:
        usage("pass either the keys to remove or --all")
    async with place.catalog() as catalog:
        removed = await catalog.delete_metadata(session, None if every else keys)
    if not removed:
        raise Failure(f"session {shown(session)} has nothing to remove")
    say(f"removed {removed}")
    return 0


@command("count", 'count --where \'{"tags": {"$contains": "work"}}\'')
async def count(
    place: Place,
    *,
    where: WhereOption = None,
    meta: FilterMetaOption = None,
    active: Annotated[bool, typer.Option("--active", help="Only those of status active.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Print how many sessions match. None is an answer, not a failure."""
    condition = _with_status(parse_where(where, meta), active=active)
    async with place.catalog() as catalog:
        number = await catalog.count_sessions(condition)
    if as_json:
        write_json({"count": number})
    else:
        write(str(number))
    return 0


@command("values", "values tags --limit 10")
async def values(
    place: Place,
    *,
    key: Annotated[str, typer.Argument(help="A metadata key.")],
    where: WhereOption = None,
    meta: FilterMetaOption = None,
    limit: Annotated[int, typer.Option(help="How many values at most.")] = 20,
    as_json: JsonOption = False,
) -> int:
    """Count the sessions that carry each value of a key; elements of lists count one by one."""
    async with place.catalog() as catalog:
        counts = await catalog.count_values(key, parse_where(where, meta), limit=limit)
    if as_json:
        write_json([{"value": each.value, "count": each.count} for each in counts])
    elif counts:
        rows = [(shown(each.value), f"{each.count:,}") for each in counts]
        write_table((key, "sessions"), rows)
    if not counts:
        raise Failure(f"no session has a value under {shown(key)}")
    return 0


@command("last", "last --agent @ai-engineer")
async def last(
    place: Place,
    *,
    agent: Annotated[str | None, typer.Option(help="The agent's name; @ may be there.")] = None,
    where: WhereOption = None,
    meta: FilterMetaOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show the session that was active last, of an agent or of all that match."""
    condition: Where | None = parse_where(where, meta)
    if agent is not None:
        of_agent = {AGENT: normalize_agent(agent)}
        condition = {"$and": [of_agent, condition]} if condition is not None else of_agent
    async with place.catalog() as catalog:
        info = await catalog.last_session(condition, count_items=True)
    _write_found(info, as_json=as_json)
    if info is None:
        raise Failure(
            "no session matches" if agent is None else f"agent {shown(agent)} has no session"
        )
    return 0


@command("delete", "delete chat-1 --yes")
async def delete(
    place: Place,
    *,
    sessions: Annotated[list[str], typer.Argument(metavar="SESSION")],
    yes: YesOption = False,
) -> int:
    """Delete sessions: history, metadata and all."""
    what = shown(sessions[0]) if len(sessions) == 1 else f"{len(sessions)} sessions"
    confirm(f"Delete {what}, history and all?", yes=yes)
    async with place.catalog() as catalog:
        deleted = [session for session in sessions if await catalog.delete_session(session)]
    for session in sessions:
        if session not in deleted:
            say(f"there is no session {shown(session)}")
    if not deleted:
        return 1
    say(f"deleted {len(deleted)}")
    return 0


def _with_status(where: dict[str, Any] | None, *, active: bool) -> dict[str, Any] | None:
    if not active:
        return where
    status = {STATUS: "active"}
    return status if where is None else {"$and": [status, where]}


def _write_found(info: SessionInfo | None, *, as_json: bool) -> None:
    if as_json:
        write_json(info and record_of(info))
    elif info is not None:
        write_session(info)


def _not_found(session: str) -> Failure:
    return Failure(f"there is no session {shown(session)}")

"""The commands that read and change the metadata of sessions."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from agents_session_metadata import keys as known
from agents_session_metadata.errors import SessionNotFoundError
from agents_session_metadata.text import ago, ascii_json

from . import options, output
from .app import cli
from .connection import ChosenDatabase, database_options
from .options import Whole, flag, usage
from .output import NoSessionError, NothingFoundError, Pages, Table, counted, show, shown

if TYPE_CHECKING:
    from agents_session_metadata.catalog import SessionCatalog
    from agents_session_metadata.types import Metadata, SessionInfo, SessionPage

_FIRST = (known.OWNER_ID, known.TITLE, known.TAGS, known.AGENT, known.STATUS)
# The list leaves out what is recorded for programs.
_SHOWN = {known.RUN, known.PHASE, known.READY, known.OUTCOME, known.SUMMARY, known.LAST_ERROR}
_RECORDED = (known.RUN_KEYS - _SHOWN) | {known.TITLE_AUTO, known.CHATKIT}


@cli.command("list", epilog="Example: agent-sessions list --meta owner_id=u1 --active --limit 5")
@options.filters
@options.active
@click.option("--status", help="Only sessions with this status, as the list shows it.")
@click.option(
    "--order-by",
    metavar="KEY",
    default="-updated_at",
    help="A metadata key, updated_at, created_at or session_id; - for descending.",
)
@options.pages("sessions", 20)
@click.option(
    "--key", "keys", metavar="KEY", multiple=True, help="Print only this key; repeatable."
)
@flag("--count-items", help="Print the number of items, too.")
@database_options()
async def list_sessions(
    database: ChosenDatabase,
    where: Any,
    status: str | None,
    order_by: str,
    pages: Pages,
    keys: Sequence[str],
    count_items: bool,
) -> None:
    """List sessions, most recently active first.

    The status is that of the run, else that of the lifecycle. With --all, the sessions are printed
    as one table per page.
    """
    corrupt: list[Exception] = []
    statuses: dict[str, str] = {}
    catalog = database.catalog
    if status is not None:
        where = {"$and": [where or {}, await catalog.status_filter(status)]}

    async def read(**page: Any) -> SessionPage:
        found = await catalog.list_sessions(
            where,
            order_by=order_by,
            keys=keys or None,
            count_items=count_items,
            on_corrupt=corrupt.append,
            **page,
        )
        statuses.update({} if keys else await catalog.statuses(found))
        return found

    found = await pages.write(
        read, lambda sessions: _table(sessions, keys, statuses).write(), _record
    )
    if not found:
        raise NothingFoundError(output.no_match(where))
    output.report(corrupt)


@cli.command("show", epilog="Example: agent-sessions show chat-1")
@options.session
@database_options(by=True)
async def show_session(database: ChosenDatabase, session: str) -> None:
    """Show one session: times, number of items, metadata."""
    corrupt: list[Exception] = []
    read = database.catalog.get_session
    info = await read(session, count_items=True, on_corrupt=corrupt.append)
    if info is None:
        raise NoSessionError(session, None)
    await _show_details(info)
    output.report(corrupt)


@cli.command(epilog="Example: agent-sessions get chat-1 title")
@options.session
@click.argument("keys", metavar="[KEY]...", nargs=-1, help="The keys. Default: all.")
@database_options(by=True)
async def get(database: ChosenDatabase, session: str, keys: Sequence[str]) -> None:
    """Print the metadata of a session: one value, some keys, or all keys.

    For one key, only the value is printed. With --json, missing keys are null.
    """
    corrupt: list[Exception] = []
    read = database.catalog.get_session
    info = await read(session, keys=keys or None, on_corrupt=corrupt.append)
    stored = {} if info is None else info.metadata
    document = {key: stored.get(key) for key in keys} if keys else stored
    if info is None:
        raise NoSessionError(session, document)
    if not stored and not corrupt:
        what = f"value for {', '.join(keys)}" if keys else "metadata"
        raise NothingFoundError(f"session {shown(session)} has no {what}", document)
    if len(keys) == 1 and stored:
        value = stored[keys[0]]
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        await show(document, text)
    else:
        await show(document, table=_metadata_table(stored) if stored else None)
    output.report(corrupt)


_matching = click.option(
    "--where", metavar="JSON", help="Change every session that matches, instead of SESSION."
)
_dry_run = flag("--dry-run", help="With --where: print the number of sessions, and change nothing.")


@cli.command("set", epilog="Example: agent-sessions set chat-1 title='My chat' tags='[\"work\"]'")
@options.optional_session
@click.argument("pairs", metavar=f"[{options.PAIRS}]...", nargs=-1, help="Metadata to store.")
@options.meta
@flag("--create", help="Create the session if it does not exist.")
@_matching
@_dry_run
@database_options(by=True, limits=True)
async def set_metadata(
    database: ChosenDatabase,
    session: str | None,
    pairs: Sequence[str],
    meta: Sequence[str],
    create: bool,
    where: str | None,
    dry_run: bool,
) -> None:
    """Store metadata keys of a session, or with --where of every session that matches.

    A value is parsed as JSON (7, true, null). If it is not valid JSON, it is stored as a string.
    For the string 7, write '"7"'. If the session does not exist, pass --create.
    """
    first = [] if where is None or session is None else [session]
    values = options.parse_pairs([*first, *pairs, *meta], "set")
    if not values:
        usage("nothing to set; pass KEY=VALUE")
    if where is not None or session is None or dry_run:
        if create:
            usage("--create requires SESSION")
        change = partial(database.catalog.set_metadata, values=values, must_exist=True)
        await _change_each(database.catalog, where, dry_run, change)
        return
    catalog = database.catalog
    try:
        await catalog.set_metadata(session, values, must_exist=not create)
    except SessionNotFoundError:
        advice = "" if create else "; pass --create to create it"
        raise NoSessionError(session, advice=advice) from None
    stored = await catalog.get_metadata(session) if output.wants_json() else None
    await show({"session_id": session, "metadata": stored})


@cli.command(epilog="Example: agent-sessions unset chat-1 tags")
@options.optional_session
@click.argument("keys", metavar="[KEY]...", nargs=-1, help="The keys to remove.")
@flag("--all", "every", help="Remove every key.")
@_matching
@_dry_run
@database_options(by=True)
async def unset(
    database: ChosenDatabase,
    session: str | None,
    keys: Sequence[str],
    every: bool,
    where: str | None,
    dry_run: bool,
) -> None:
    """Remove metadata keys of a session, or with --where of every session that matches.

    The history does not change.
    """
    if where is not None and session is not None:
        keys = (session, *keys)
    if bool(keys) == every:
        usage("pass either the keys to remove or --all")
    wanted = None if every else keys
    if where is not None or session is None or dry_run:
        change = partial(database.catalog.delete_metadata, keys=wanted)
        await _change_each(database.catalog, where, dry_run, change)
        return
    catalog = database.catalog
    removed = await catalog.delete_metadata(session, wanted)
    if not removed:
        raise await output.nothing_in(catalog, session, "has none of these keys")
    await show(
        {"session_id": session, "removed": removed}, message=f"removed {counted(removed, 'key')}"
    )


async def _change_each(
    catalog: SessionCatalog,
    where: str | None,
    dry_run: bool,
    change: Callable[[str], Awaitable[int | None]],
) -> None:
    """Changes every session that matches; `change` returns 0 if there was nothing to change."""
    if where is None:
        usage("--dry-run requires --where" if dry_run else "pass SESSION, or --where")
    condition, changed = options.parse_where(where), 0
    found = [info.session_id async for info in catalog.iter_sessions(condition, keys=[])]
    with output.progress("Changing", len(found)) as reach:
        for number, each in enumerate([] if dry_run else found, 1):
            with suppress(SessionNotFoundError):  # deleted in the meantime
                changed += await change(each) != 0
            reach(number)
    document = {"matched": len(found), "changed": changed, "dry_run": dry_run}
    verb, number = ("would change", len(found)) if dry_run else ("changed", changed)
    message = f"{verb} {counted(number, 'session')}" if found else output.no_match(condition)
    await show(document, message=message)


@cli.command(epilog='Example: agent-sessions count --where \'{"tags": {"$contains": "work"}}\'')
@options.filters
@options.active
@database_options()
async def count(database: ChosenDatabase, where: Any) -> None:
    """Print the number of matching sessions."""
    found = await database.catalog.count_sessions(where)
    message = output.no_match(where) if where and not found else None
    await show({"count": found}, str(found), message=message)


@cli.command(epilog="Example: agent-sessions values tags --limit 10")
@click.argument("key", help="A metadata key.")
@options.filters
@click.option(
    "--limit", type=Whole(1, output.LONGEST_PAGE), default=20, help="Maximum number of values."
)
@database_options()
async def values(database: ChosenDatabase, key: str, where: Any, limit: int) -> None:
    """Print the values of a key, with the number of sessions per value or list element."""
    counts = await database.catalog.count_values(key, where, limit=limit)
    if not counts:
        raise NothingFoundError(f"no session has a value for {shown(key)}{output.hint(where)}", [])
    rows = [(shown(each.value), output.number(each.count)) for each in counts]
    await show(counts, table=Table((key, "sessions"), rows))


@cli.command(epilog="Example: agent-sessions last --agent @ai-engineer")
@click.option("--agent", help="The agent's name, with or without a leading @.")
@options.filters
@options.jsonl
@database_options()
async def last(database: ChosenDatabase, agent: str | None, where: Any, as_lines: bool) -> None:
    """Show the most recently active session of each agent, or one that matches.

    With --agent or a filter, the command shows one session. Without them, it lists the last session
    of each agent.
    """
    catalog, each_agent = database.catalog, agent is None and where is None
    if each_agent:
        found = await catalog.last_sessions(known.AGENT, limit=1000, count_items=True)
        problem = "no session has an agent"
    else:
        problem = output.no_match(where)
        if agent is not None:
            where = {"$and": [{known.AGENT: options.agent_name(agent, "--agent")}, where or {}]}
            problem = f"agent {shown(agent)} has no session"
        last = await catalog.last_session(where, count_items=True)
        found = [] if last is None else [last]
    if not found:
        raise NothingFoundError(problem, [] if each_agent else None)
    records = [_record(info) for info in found]
    if as_lines:
        await show(text="\n".join(map(ascii_json, records)))
    elif each_agent:
        rows = []
        for info in found:
            agent, items = shown(info.metadata[known.AGENT]), output.number(info.item_count)
            rows.append((agent, info.session_id, ago(info.updated_at), items))
        await show(records, table=Table(("agent", "session", "active", "items"), rows))
    else:
        await _show_details(found[0])


@cli.command(epilog="Example: agent-sessions watch --owner u1 --jsonl")
@options.filters
@click.option("--interval", type=float, default=2.0, help="Seconds between two polls.")
@flag("--initial", help="Print the sessions that exist, too.")
@options.jsonl
@database_options(serves=True)
async def watch(
    database: ChosenDatabase, where: Any, interval: float, initial: bool, as_lines: bool
) -> None:
    """Print a line for each session that is added, changed or removed, until Ctrl-C.

    Follows the 1,000 newest sessions that match. Changes between two polls are one line.
    """
    changes = database.catalog.watch(
        where, limit=1000, interval=interval, initial=initial, on_corrupt=lambda _: None
    )
    async with aclosing(changes):
        async for change in changes:
            info = change.session
            title = shown(info.metadata.get(known.TITLE, ""))
            words = (f"{change.kind:7}", shown(info.session_id), title)
            line = f"{info.updated_at:%Y-%m-%d %H:%M:%S}  {'  '.join(words)}".rstrip()
            if as_lines:
                line = ascii_json({"kind": change.kind, **_record(info)})
            await output.blocking(click.echo, line, name=output.STDOUT)


def _record(info: SessionInfo) -> dict[str, Any]:
    return {name: each for name, each in vars(info).items() if each is not None}


async def _show_details(info: SessionInfo) -> None:
    lines = [f"session  {shown(info.session_id)}"]
    for name, time in (("created", info.created_at), ("active ", info.updated_at)):
        lines.append(f"{name}  {time:%Y-%m-%d %H:%M:%S} UTC ({ago(time)})")
    lines.append(f"items    {info.item_count:,}")
    table = _metadata_table(info.metadata) if info.metadata else None
    await show(_record(info), "\n".join([*lines, ""] if table else lines), table)


def _metadata_table(metadata: Metadata) -> Table:
    rows = [(key, shown(value)) for key, value in metadata.items()]
    return Table(("key", "value"), rows, folded=True)


def _table(
    sessions: Sequence[SessionInfo], chosen: Sequence[str], statuses: Mapping[str, str]
) -> Table:
    """Without chosen keys, well-known ones come first, and the other keys in one column."""
    metadata = {info.session_id: dict(info.metadata) for info in sessions}
    for session_id, stored in metadata.items():
        if session_id in statuses:
            stored[known.STATUS] = statuses[session_id]
            stored.pop(known.RUN, None)
    used = {key for stored in metadata.values() for key in stored}
    columns = chosen or [key for key in _FIRST if key in used]
    rest = [] if chosen else sorted(used - {*columns} - _RECORDED)
    rows = []
    for info in sessions:
        stored = {key: shown(value) for key, value in metadata[info.session_id].items()}
        row = [info.session_id, *(stored.get(key, "") for key in columns)]
        row += [] if info.item_count is None else [output.number(info.item_count)]
        others = " ".join(f"{shown(key)}={stored[key]}" for key in rest if key in stored)
        rows.append([*row, ago(info.updated_at), *([others] if rest else [])])
    counts = [] if sessions[0].item_count is None else ["items"]
    return Table(["session", *columns, *counts, "active", *(["metadata"] if rest else [])], rows)

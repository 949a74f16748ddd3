"""The commands that read and change the metadata of sessions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from agents_session_metadata import keys as known
from agents_session_metadata.errors import SessionNotFoundError
from agents_session_metadata.text import ago
from agents_session_metadata.types import Metadata, SessionInfo

from . import options, output
from .app import WRITES, Target, command
from .options import SESSION, Whole, argument, flag, option, parse_pairs, repeatable, usage
from .output import (
    Answer,
    Pages,
    Table,
    counted,
    hint,
    no_match,
    no_session,
    nothing,
    number,
    shown,
)

_FIRST = (known.OWNER_ID, known.TITLE, known.TAGS, known.AGENT, known.STATUS)
# The list leaves out what is recorded for programs.
_SHOWN = {known.RUN, known.PHASE, known.READY, known.OUTCOME, known.SUMMARY, known.LAST_ERROR}
_RECORDED = (known.RUN_KEYS - _SHOWN) | {known.TITLE_AUTO, known.CHATKIT}


@command("list --meta owner_id=u1 --active --limit 5")
async def list_(
    target: Target,
    condition: Any = options.filters(active=True),
    order_by: str = option(
        "A metadata key, updated_at, created_at or session_id; - for descending.",
        default="-updated_at",
        metavar="KEY",
    ),
    pages: Pages = options.paging("sessions", 20),
    keys: Sequence[str] = repeatable("Print only this key; repeatable.", "--key", metavar="KEY"),
    count_items: bool = flag("Count items."),
) -> Answer:
    """List sessions, most recently active first.

    With --all, the sessions are printed as one table per page.
    """
    corrupt: list[Exception] = []
    read = partial(
        target.catalog.list_sessions,
        condition,
        order_by=order_by,
        keys=keys or None,
        count_items=count_items,
        on_corrupt=corrupt.append,
    )
    found = await pages.write(
        read, lambda sessions: _table(sessions, keys).write(), _record, as_json=target.as_json
    )
    return Answer(corrupt=corrupt) if found else nothing(no_match(condition))


@command("show chat-1")
async def show(target: Target, session: str = SESSION) -> Answer:
    """Show one session: times, number of items, metadata."""
    corrupt: list[Exception] = []
    info = await target.catalog.get_session(session, count_items=True, on_corrupt=corrupt.append)
    return nothing(no_session(session), None) if info is None else _details(info, corrupt)


@command("get chat-1 title")
async def get(
    target: Target,
    session: str = SESSION,
    keys: Sequence[str] = argument("The keys. Default: all.", "[KEY]...", nargs=-1),
) -> Answer:
    """Print the metadata of a session: one value, some keys, or all keys.

    For one key, only the value is printed. With --json, missing keys are null.
    """
    corrupt: list[Exception] = []
    info = await target.catalog.get_session(session, keys=keys or None, on_corrupt=corrupt.append)
    stored = {} if info is None else info.metadata
    document = {key: stored.get(key) for key in keys} if keys else stored
    if info is None:
        return nothing(no_session(session), document)
    if not stored:
        what = f"value for {', '.join(keys)}" if keys else "metadata"
        message = f"session {shown(session)} has no {what}"
        return Answer(document=document, message=message, code=1, corrupt=corrupt)
    if len(keys) != 1:
        return Answer(document=document, table=_metadata_table(stored), corrupt=corrupt)
    value = stored[keys[0]]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return Answer(document=document, text=text)


@command("set chat-1 title='My chat' tags='[\"work\"]'", WRITES)
async def set_(
    target: Target,
    session: str = SESSION,
    pairs: Sequence[str] = argument("Metadata to store.", f"{options.PAIRS}...", nargs=-1),
    meta: Sequence[str] = options.META,
    create: bool = flag("Create the session if it does not exist."),
) -> Answer:
    """Store metadata keys. Other keys do not change.

    A value is parsed as JSON (7, true, null). If it is not valid JSON, it is stored as a string.
    For the string 7, write '"7"'. If the session does not exist, pass --create.
    """
    values = parse_pairs([*pairs, *meta], "set")
    if not values:
        usage("nothing to set; pass KEY=VALUE")
    try:
        await target.catalog.set_metadata(session, values, must_exist=not create)
    except SessionNotFoundError:
        advice = "" if create else "; pass --create to create it"
        return nothing(no_session(session) + advice)
    stored = await target.catalog.get_metadata(session) if target.as_json else None
    return Answer(document={"session_id": session, "metadata": stored})


@command("unset chat-1 tags")
async def unset(
    target: Target,
    session: str = SESSION,
    keys: Sequence[str] = argument("The keys to remove.", "[KEY]...", nargs=-1),
    every: bool = flag("Remove every key.", "--all"),
) -> Answer:
    """Remove metadata keys. The history does not change."""
    if bool(keys) == every:
        usage("pass either the keys to remove or --all")
    removed = await target.catalog.delete_metadata(session, None if every else keys)
    if not removed:
        return await target.nothing(session, "has none of these keys")
    document = {"session_id": session, "removed": removed}
    return Answer(document=document, message=f"removed {counted(removed, 'key')}")


@command('count --where \'{"tags": {"$contains": "work"}}\'')
async def count(target: Target, condition: Any = options.filters(active=True)) -> Answer:
    """Print the number of matching sessions."""
    found = await target.catalog.count_sessions(condition)
    message = no_match(condition) if condition and not found else None
    return Answer(document={"count": found}, text=str(found), message=message)


@command("values tags --limit 10")
async def values(
    target: Target,
    key: str = argument("A metadata key."),
    condition: Any = options.filters(),
    limit: int = option(
        "Maximum number of values.", type=Whole(1, output.LONGEST_PAGE), default=20
    ),
) -> Answer:
    """Print the values of a key, with the number of sessions per value or list element."""
    counts = await target.catalog.count_values(key, condition, limit=limit)
    if not counts:
        return nothing(f"no session has a value for {shown(key)}{hint(condition)}", [])
    rows = [(shown(each.value), number(each.count)) for each in counts]
    return Answer(document=counts, table=Table((key, "sessions"), rows))


@command("last --agent @ai-engineer")
async def last(
    target: Target,
    agent: str | None = option("The agent's name, with or without a leading @."),
    condition: Any = options.filters(),
) -> Answer:
    """Show the most recently active session of each agent, or one that matches.

    With --agent or a filter, the command shows one session. Without them, it lists the last session
    of each agent.
    """
    if agent is None and condition is None:
        return await _last_of_each(target)
    if agent is not None:
        of_agent = {known.AGENT: known.normalize_agent(agent)}
        condition = {"$and": [of_agent, condition or {}]}
    info = await target.catalog.last_session(condition, count_items=True)
    if info is not None:
        return _details(info)
    message = no_match(condition) if agent is None else f"agent {shown(agent)} has no session"
    return nothing(message, None)


async def _last_of_each(target: Target) -> Answer:
    found = await target.catalog.last_sessions(known.AGENT, limit=1000, count_items=True)
    if not found:
        return nothing("no session has an agent", [])
    rows = []
    for info in found:
        agent, items = shown(info.metadata[known.AGENT]), number(info.item_count)
        rows.append((agent, info.session_id, ago(info.updated_at), items))
    table = Table(("agent", "session", "active", "items"), rows)
    return Answer(document=[_record(info) for info in found], table=table)


def _record(info: SessionInfo) -> dict[str, Any]:
    return {name: each for name, each in vars(info).items() if each is not None}


def _details(info: SessionInfo, corrupt: Sequence[Exception] = ()) -> Answer:
    lines = [f"session  {shown(info.session_id)}"]
    for name, time in (("created", info.created_at), ("active ", info.updated_at)):
        lines.append(f"{name}  {time:%Y-%m-%d %H:%M:%S} UTC ({ago(time)})")
    lines.append(f"items    {info.item_count:,}")
    table = _metadata_table(info.metadata) if info.metadata else None
    text = "\n".join([*lines, ""] if table else lines)
    return Answer(document=_record(info), text=text, table=table, corrupt=corrupt)


def _metadata_table(metadata: Metadata) -> Table:
    rows = [(key, shown(value)) for key, value in metadata.items()]
    return Table(("key", "value"), rows, folded=True)


def _table(sessions: Sequence[SessionInfo], chosen: Sequence[str]) -> Table:
    """Without chosen keys, well-known ones come first, and the other keys in one column."""
    used = {key for info in sessions for key in info.metadata}
    columns = chosen or [key for key in _FIRST if key in used]
    rest = [] if chosen else sorted(used - {*columns} - _RECORDED)
    rows = []
    for info in sessions:
        stored = {key: shown(value) for key, value in info.metadata.items()}
        row = [info.session_id, *(stored.get(key, "") for key in columns)]
        row += [] if info.item_count is None else [number(info.item_count)]
        others = " ".join(f"{shown(key)}={stored[key]}" for key in rest if key in stored)
        rows.append([*row, ago(info.updated_at), *([others] if rest else [])])
    counts = [] if sessions[0].item_count is None else ["items"]
    return Table(["session", *columns, *counts, "active", *(["metadata"] if rest else [])], rows)

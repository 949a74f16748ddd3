"""Calls that wait for approvals, decisions about them, and lists of runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, TypeAlias, get_args

from agents.exceptions import UserError
from sqlalchemy import ColumnElement, Connection, Table, and_, delete, insert, or_, select

from agents_session_metadata.core.database import Database
from agents_session_metadata.keys import OWNER_ID
from agents_session_metadata.query.logic import Condition
from agents_session_metadata.query.ordering import seal, unseal
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.values import canonical_text

from .feature import FAILED, INTERRUPTED, RUNS, WAITING, runs_table, status_of
from .record import OF_BACKGROUND, SEALED, Encryption

RunStatus: TypeAlias = Literal["running", "waiting", "interrupted", "failed"]
"""The status of a run, of `RunInfo` and for `SessionRuns.list`."""

RunFilter: TypeAlias = Literal["running", "waiting", "ready", "interrupted", "failed"]
"""A status for `SessionRuns.list`. A run is ready if it waits and all of its calls are decided."""

STATUSES: tuple[RunFilter, ...] = get_args(RunFilter)
READY = "ready"

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Decision:
    """A decision about a call.

    Attributes:
        session_id: The id of the session; None if it was deleted.
        call_id: The id of the call.
        tool: The name of the tool.
        agent: The name of the agent that made the call.
        approve: Whether the call was approved.
        message: The text that the model receives for a rejected call.
        by: The person who decided.
        at: The time of the decision, by the database's clock; aware, UTC.
        always: Whether it also holds for further calls of this tool by this agent in this run.
    """

    session_id: str | None
    call_id: str
    tool: str | None
    agent: str | None
    approve: bool
    message: str | None
    by: str | None
    at: datetime
    always: bool = False


@dataclass(frozen=True)
class PendingCall:
    """A call that waits for an approval.

    Attributes:
        call_id: The id of the call, for `decide`.
        tool: The name of the tool.
        arguments: The arguments of the call as text, usually JSON. None if there are none, or if
            they cannot be decrypted.
        agent: The name of the agent that made the call.
        decision: The newest decision, or None.
    """

    call_id: str
    tool: str | None
    arguments: str | None
    agent: str | None
    decision: Decision | None = None


@dataclass(frozen=True)
class RunInfo:
    """A run that works, waits, was interrupted or has failed.

    Attributes:
        session_id: The id of its session.
        status: What it does now.
        agent: The name of the agent that it began with or, if it waits, of the agent that waits.
        pending: The calls that wait for an approval, including those with a decision.
        started_at: When it began, by the database's clock; aware, UTC.
        alive_at: When it last renewed its lease or recorded something, by the same clock, to a
            tenth of a second.
        attempts: How many processes have died since a step was recorded; 0 for a healthy run.
        error: The type and the text of the error of a failed run, or None.
    """

    session_id: str
    status: RunStatus
    agent: str
    pending: tuple[PendingCall, ...]
    started_at: datetime
    alive_at: datetime
    attempts: int
    error: str | None

    @property
    def undecided(self) -> tuple[PendingCall, ...]:
        """The calls without a decision."""
        return tuple(call for call in self.pending if call.decision is None)


@dataclass(frozen=True)
class RunPage:
    """A page of runs.

    Attributes:
        runs: The runs, newest first.
        next_cursor: The `cursor` of the next page, or None on the last page.
    """

    runs: list[RunInfo]
    next_cursor: str | None

    def __iter__(self) -> Iterator[RunInfo]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)


def _microseconds(moment: datetime, name: str) -> int:
    if not isinstance(moment, datetime):
        raise TypeError(f"{name} must be a datetime, got {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise ValueError(f"{name} must have a time zone, got {moment.isoformat()}")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


# ---- calls that wait ----

_STORED = "call_id", "tool", "arguments", "agent"
"""The attributes of a `PendingCall` that are stored with its run."""


def pending_calls(items: Iterable[Any]) -> tuple[PendingCall, ...]:
    """Returns the calls of the SDK's approval items."""
    return tuple(
        PendingCall(each.call_id or "", each.name, each.arguments, each.agent and each.agent.name)
        for each in items
    )


def dump_pending(calls: Iterable[PendingCall], encryption: Encryption) -> str:
    """Only the arguments are encrypted. Whether they are is stored beside them."""
    is_sealed = encryption.encrypt is not None

    def dumped(call: PendingCall) -> dict[str, Any]:
        found = {name: getattr(call, name) for name in _STORED}
        if is_sealed and call.arguments is not None:
            found |= {"arguments": encryption.seal(call.arguments), "sealed": True}
        return found

    return json.dumps([dumped(call) for call in calls])


def load_pending(text: str | None, encryption: Encryption) -> list[PendingCall]:
    return [_loaded_call(stored, encryption) for stored in json.loads(text or "[]")]


def _loaded_call(stored: Any, encryption: Encryption) -> PendingCall:
    if isinstance(stored, list):  # Of 0.2.0, which marked sealed arguments in their text.
        call = PendingCall(*stored)
        is_sealed = call.arguments is not None and call.arguments.startswith(SEALED)
    else:
        call = PendingCall(*(stored[name] for name in _STORED))
        is_sealed = stored.get("sealed", False)
    return replace(call, arguments=encryption.shown(call.arguments)) if is_sealed else call


def dump_state(result: Any, *, strict: bool) -> dict[str, Any]:
    """Raises `UserError` in strict mode if the SDK would drop or convert the context."""
    context = result.context_wrapper.context
    written = result.to_state().to_json(strict_context=False)
    kept = written["context"]["context"] if context is not None else None
    if strict and context is not None and (type(context) is not dict or kept != context):
        raise UserError(
            f"the context of the run, of type {type(context).__name__}, would not be stored with "
            "the waiting run; use a plain dict of JSON values as context, or pass "
            "strict_context=False and pass the context to resume again"
        )
    return json.loads(json.dumps(written))  # type: ignore[no-any-return]


# ---- pages ----


async def read_page(
    store: ScopedStore,
    encryption: Encryption,
    condition: Condition,
    status: RunFilter | None,
    limit: int,
    cursor: str | None,
    *,
    of_background: bool = False,
) -> RunPage:
    """Reads runs of one status; if `of_background`, only those that `start` has begun."""
    database = store.database
    question = ["runs", status, condition.encoded()]
    runs = runs_table(database.tables)
    started, session_id = runs.c.started_at, runs.c.session_id
    shown = status_of(runs, database.dialect)
    # The columns that `infos_of` reads; one run is read with all columns.
    names = ("session_id", "agent", "pending", "started_at", "alive_at", "error")
    numbers = runs.c.attempts, runs.c.expires
    page: Any = select(*(runs.c[name] for name in names), *numbers, shown.label("status"))
    if status == READY:
        table = _decisions(database)
        page = page.where(shown == WAITING, select(table.c.id).where(*_since(table, runs)).exists())
    elif status is not None:
        page = page.where(shown == status)
    if of_background:
        page = page.where(runs.c.progress.contains(OF_BACKGROUND))
    if cursor is not None:
        time, last = unseal(cursor, question, int, str)
        page = page.where(started <= time, or_(started < time, session_id < last))
    page = page.order_by(started.desc(), session_id.desc()).limit(limit + 1)

    def read(connection: Connection) -> RunPage:
        rows: Any = connection.execute(*store.queries.where(page, condition, session_id)).all()
        infos = infos_of(connection, database, rows[:limit], encryption)
        if status == READY:
            infos = [info for info in infos if not info.undecided]
        if len(rows) <= limit:
            return RunPage(infos, None)
        position = rows[limit - 1].started_at, rows[limit - 1].session_id
        return RunPage(infos, seal(position, question))

    return await database.read_used(RUNS, read, RunPage([], None))


def infos_of(
    connection: Connection, database: Database, rows: Sequence[Any], encryption: Encryption
) -> list[RunInfo]:
    waiting = [row.session_id for row in rows if row.status == WAITING]
    decisions = decisions_of(connection, database, waiting) if waiting else {}

    def info(row: Any) -> RunInfo:
        calls = load_pending(row.pending, encryption) if row.status == WAITING else []
        decided = decided_calls(calls, decisions.get(row.session_id, ()))
        pending = (replace(call, decision=decided.get(call.call_id)) for call in calls)
        error = load_error(row.error, encryption) if row.status == FAILED else None
        # A process that has ended its lease by itself did not die.
        died = row.status == INTERRUPTED and row.expires > 0
        return RunInfo(
            row.session_id,
            row.status,
            row.agent,
            tuple(pending),
            _moment(row.started_at),
            _moment(row.alive_at or row.started_at),
            (row.attempts or 0) + died,
            error,
        )

    return [info(row) for row in rows]


def load_error(stored: str | None, encryption: Encryption) -> str | None:
    text = encryption.shown(stored)
    # Errors of 0.2.0 are not JSON. They begin with the name of a type.
    is_json = text is not None and text.startswith('"')
    return json.loads(text) if text is not None and is_json else text


# ---- decisions ----


def decided_calls(
    calls: Iterable[PendingCall], decisions: Iterable[Decision]
) -> dict[str, Decision]:
    """Returns the newest decision about each call, given all since the pause, oldest first."""
    decided: dict[str, Decision] = {}
    by_tool: dict[tuple[str | None, str | None], list[str]] = {}
    for call in calls:
        by_tool.setdefault((call.tool, call.agent), []).append(call.call_id)
    newest: dict[str, Decision] = {}
    for decision in decisions:
        newest.pop(decision.call_id, None)  # One that was replaced does not hold for other calls.
        newest[decision.call_id] = decision
    for decision in newest.values():
        same = by_tool.get((decision.tool, decision.agent), ()) if decision.always else ()
        decided |= dict.fromkeys([*same, decision.call_id], decision)
    return decided


def decisions_of(
    connection: Connection, database: Database, session_ids: Sequence[str]
) -> dict[str, list[Decision]]:
    """Returns the decisions since the pauses of runs, oldest first, by session.

    A decision belongs to the pause whose number it has, whatever the clocks say.
    """
    table, runs = _decisions(database), runs_table(database.tables)
    chosen = table.c.session_id.in_(session_ids)
    statement = _selected(table).join(runs, and_(*_since(table, runs))).where(chosen)
    found: dict[str, list[Decision]] = {}
    for decision in _loaded(connection.execute(statement)):
        found.setdefault(decision.session_id or "", []).append(decision)
    return found


def _since(table: Table, runs: Table) -> tuple[Any, Any, Any]:
    same = runs.c.session_id == table.c.session_id, runs.c.run_id == table.c.run_id
    # A pause of 0.2.0 has no number.
    unnumbered = and_(runs.c.pause.is_(None), table.c.decided_at >= runs.c.paused_at)
    return *same, or_(table.c.pause == runs.c.pause, unnumbered)


def _decisions(database: Database) -> Table:
    return database.tables.group(RUNS)["_run_decisions"]


def _selected(table: Table) -> Any:
    names = ("session_id", "call_id", "tool", "agent", "approve", "message", "always")
    by, at = table.c.decided_by.label("by"), table.c.decided_at.label("at")
    columns = (table.c[name] for name in names)
    return select(*columns, by, at).order_by(table.c.id)


def _loaded(rows: Any) -> list[Decision]:
    return [
        Decision(**{**row._mapping, "at": _moment(row.at), "always": bool(row.always)})
        for row in rows
    ]


def add_decision(
    connection: Connection, database: Database, row: Any, call: PendingCall, **values: Any
) -> None:
    """`values` has `approve`, `message`, `always` and `decided_by`."""
    values |= {"session_id": row.session_id, "run_id": row.run_id, "pause": row.pause}
    values |= {"call_id": call.call_id, "tool": call.tool, "agent": call.agent}
    rows = database.tables.metadata
    own = rows.c.session_id == row.session_id, rows.c.key == OWNER_ID
    owner = connection.scalar(select(rows.c.value).where(*own))
    values["owner_id"] = None if owner is None else canonical_text(owner)
    added = insert(_decisions(database)).inline()
    connection.execute(added.values(decided_at=database.dialect.now()), values)


async def read_decisions(
    store: ScopedStore, session_id: str | None, since: datetime | None
) -> list[Decision]:
    table = _decisions(store.database)
    statement = _selected(table)
    if session_id is not None:
        statement = statement.where(table.c.session_id == session_id)
    if since is not None:
        statement = statement.where(table.c.decided_at >= _microseconds(since, "since"))

    def read(connection: Connection) -> list[Decision]:
        inside, parameters = store.question(select(table.c.id), table.c.session_id)
        gone = _of_gone(store, table)
        if gone is None:
            return _loaded(connection.execute(*store.question(statement, table.c.session_id)))
        either = or_(table.c.id.in_(inside.correlate(None)), gone)
        return _loaded(connection.execute(statement.where(either), parameters))

    return await store.database.read_used(RUNS, read, [])


def _of_gone(store: ScopedStore, table: Table) -> ColumnElement[bool] | None:
    """Returns the condition on decisions of an owner whose session was deleted, or None."""
    owner = store.owner
    if owner is None:
        return None
    is_own = store.database.dialect.is_exactly(table.c.owner_id, owner)
    return and_(table.c.session_id.is_(None), is_own)


async def delete_decisions(store: ScopedStore, before: datetime) -> int:
    table = _decisions(store.database)
    old = delete(table).where(table.c.decided_at < _microseconds(before, "before"))

    def write(connection: Connection) -> int:
        if not store.database.has_tables(connection, RUNS):
            return 0
        deleted = connection.execute(*store.question(old, table.c.session_id)).rowcount
        gone = _of_gone(store, table)
        return deleted if gone is None else deleted + connection.execute(old.where(gone)).rowcount

    return await store.database.write(write, prepare=store.is_restricted)

"""What is known of runs: pages of them, the calls that they wait for, and decisions."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import Connection, Table, and_, delete, insert, or_, select

from agents_session_metadata.dialects._dialect import Dialect, Statement
from agents_session_metadata.errors import InvalidCursorError
from agents_session_metadata.query.logic import Condition
from agents_session_metadata.query.ordering import seal, unseal
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.text import quoted

from .feature import FAILED, RUNNING, RUNS, WAITING, runs_table
from .lease import RunRow, reading
from .values import Encryption

logger: logging.Logger = logging.getLogger(__name__)

INTERRUPTED = "interrupted"
STATUSES = (RUNNING, WAITING, INTERRUPTED, FAILED)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_AT_ONCE = 500


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
    """

    session_id: str | None
    call_id: str
    tool: str | None
    agent: str | None
    approve: bool
    message: str | None
    by: str | None
    at: datetime


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
        status: `"running"`, `"waiting"`, `"interrupted"` or `"failed"`.
        agent: The name of the agent that it began with or, if it waits, of the agent that waits.
        pending: The calls that wait for an approval, including those with a decision.
        started_at: When it began, by the database's clock; aware, UTC.
        error: The type and the text of the error of a failed run, or None.
    """

    session_id: str
    status: str
    agent: str
    pending: tuple[PendingCall, ...]
    started_at: datetime
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


def moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def microseconds(moment: datetime, name: str) -> int:
    if not isinstance(moment, datetime):
        raise TypeError(f"{name} must be a datetime, got {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise ValueError(f"{name} must have a time zone, got {moment.isoformat()}")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def pending_calls(items: Sequence[Any]) -> list[PendingCall]:
    """Returns the calls of the SDK's approval items."""
    return [
        PendingCall(
            item.call_id or "", item.name, item.arguments, item.agent.name if item.agent else None
        )
        for item in items
    ]


def dump_pending(calls: Sequence[PendingCall], encryption: Encryption) -> str:
    """Only the arguments are encrypted."""
    return json.dumps(
        [
            {
                "call_id": call.call_id,
                "tool": call.tool,
                "arguments": None if call.arguments is None else encryption.seal(call.arguments),
                "agent": call.agent,
            }
            for call in calls
        ]
    )


def load_pending(text: str | None, session_id: str, encryption: Encryption) -> list[PendingCall]:
    calls = [PendingCall(**each) for each in json.loads(text or "[]")]
    return [
        replace(call, arguments=_opened(call.arguments, session_id, encryption)) for call in calls
    ]


def _opened(text: str | None, session_id: str, encryption: Encryption) -> str | None:
    """Returns None for a text that cannot be decrypted, so that a list shows the other runs."""
    if text is None or (encryption.encrypt is not None and encryption.decrypt is None):
        return None
    try:
        return encryption.open(text)
    except Exception:
        logger.warning(
            "a text of the run of session %s was not decrypted", quoted(session_id), exc_info=True
        )
        return None


def status_of(row: RunRow) -> str:
    return INTERRUPTED if row.is_interrupted else row.status


def info(row: RunRow, decisions: Mapping[str, Decision], encryption: Encryption) -> RunInfo:
    pending = load_pending(row.pending, row.session_id, encryption) if row.is_waiting else []
    return RunInfo(
        row.session_id,
        status_of(row),
        row.agent,
        tuple(replace(call, decision=decisions.get(call.call_id)) for call in pending),
        moment(row.started_at),
        _opened(row.error, row.session_id, encryption) if row.is_failed else None,
    )


# ---- pages ----


def read_page(
    store: ScopedStore,
    connection: Connection,
    queries: Queries,
    condition: Condition,
    status: str | None,
    limit: int,
    cursor: str | None,
    encryption: Encryption,
) -> RunPage:
    database = store.database
    question = ["runs", status, condition.encoded()]
    after = None if cursor is None else _position(unseal(cursor, question))
    if not database.has_tables(connection, RUNS):
        return RunPage([], None)
    runs = runs_table(database.tables)
    inner = runs.alias("inner_runs")
    started, session_id = inner.c.started_at, inner.c.session_id
    page: Any = select(session_id).order_by(started.desc(), session_id.desc()).limit(limit + 1)
    if status is not None:
        page = page.where(_has_status(inner, status, database.dialect))
    if after is not None:
        time, last = after
        page = page.where(started <= time, or_(started < time, session_id < last))
    page, parameters = queries.where(page, condition, session_id)
    # The long columns are read for the rows of the page only.
    ids = page.subquery("page")
    statement = reading(runs, database.dialect).join(ids, ids.c.session_id == runs.c.session_id)
    statement = statement.order_by(runs.c.started_at.desc(), runs.c.session_id.desc())
    rows = [RunRow(*row) for row in connection.execute(statement, parameters)]
    waiting = [row for row in rows[:limit] if row.is_waiting]
    decisions = read_decisions_of(
        connection, database.tables.group(RUNS)["_run_decisions"], waiting
    )
    infos = [info(row, decisions.get(row.session_id, {}), encryption) for row in rows[:limit]]
    if len(rows) <= limit:
        return RunPage(infos, None)
    position = json.dumps([rows[limit - 1].started_at, rows[limit - 1].session_id])
    return RunPage(infos, seal(position.encode(), question))


def _has_status(runs: Any, status: str, dialect: Dialect) -> Any:
    if status == RUNNING:
        return and_(runs.c.status == RUNNING, runs.c.expires > dialect.now())
    if status == INTERRUPTED:
        return and_(runs.c.status == RUNNING, runs.c.expires <= dialect.now())
    return runs.c.status == status


def _position(body: bytes) -> tuple[int, str]:
    try:
        time, session_id = json.loads(body)
    except (ValueError, TypeError):
        raise InvalidCursorError from None
    if type(time) is not int or not isinstance(session_id, str):
        raise InvalidCursorError
    return time, session_id


# ---- decisions ----


def add_decision(
    connection: Connection, table: Table, row: RunRow, call: PendingCall, values: dict[str, Any]
) -> None:
    """`values` has `approve`, `message` and `decided_by`."""
    connection.execute(
        insert(table).inline(),
        {
            "session_id": row.session_id,
            "run_id": row.run_id,
            "call_id": call.call_id,
            "tool": call.tool,
            "agent": call.agent,
            "decided_at": row.now,
            **values,
        },
    )


def read_decisions_of(
    connection: Connection, table: Table, rows: Sequence[RunRow]
) -> dict[str, dict[str, Decision]]:
    """Returns the newest decisions since the pauses of waiting or resumed runs, by call id."""
    found: dict[str, dict[str, Decision]] = {}
    for start in range(0, len(rows), _AT_ONCE):
        some = {row.session_id: row for row in rows[start : start + _AT_ONCE]}
        statement = _selected(table).where(table.c.session_id.in_(list(some)))
        for run_id, at, decision in _decisions(connection.execute(statement)):
            row = some.get(decision.session_id or "")
            if row is not None and run_id == row.run_id and at >= (row.paused_at or 0):
                found.setdefault(row.session_id, {})[decision.call_id] = decision
    return found


def _selected(table: Table) -> Statement:
    names = (
        *("run_id", "decided_at", "session_id", "call_id", "tool", "agent", "approve"),
        *("message", "decided_by"),
    )
    return select(*(table.c[name] for name in names)).order_by(table.c.decided_at, table.c.id)


def _decisions(rows: Any) -> list[tuple[str, int, Decision]]:
    return [
        (run_id, at, Decision(session, call, tool, agent, bool(approve), message, by, moment(at)))
        for run_id, at, session, call, tool, agent, approve, message, by in rows
    ]


def read_decisions(
    store: ScopedStore,
    connection: Connection,
    queries: Queries,
    session_id: str | None,
    since: int | None,
) -> list[Decision]:
    if not store.database.has_tables(connection, RUNS):
        return []
    table = store.database.tables.group(RUNS)["_run_decisions"]
    statement = _selected(table)
    if session_id is not None:
        statement = statement.where(table.c.session_id == session_id)
    if since is not None:
        statement = statement.where(table.c.decided_at >= since)
    statement, parameters = store.question(queries, statement, table.c.session_id)
    return [each for _, _, each in _decisions(connection.execute(statement, parameters))]


def delete_decisions(
    store: ScopedStore, connection: Connection, queries: Queries, before: int
) -> int:
    """Returns how many were deleted."""
    if not store.database.has_tables(connection, RUNS):
        return 0
    table = store.database.tables.group(RUNS)["_run_decisions"]
    statement: Any = select(table.c.id).where(table.c.decided_at < before)
    statement, parameters = store.question(queries, statement, table.c.session_id)
    ids = list(connection.scalars(statement, parameters))
    for start in range(0, len(ids), _AT_ONCE):
        some = ids[start : start + _AT_ONCE]
        connection.execute(delete(table).where(table.c.id.in_(some)))
    return len(ids)

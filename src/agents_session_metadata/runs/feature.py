"""The part of runs in the core: four tables, and what a run means for the history of its session.

| table | one row |
|---|---|
| `…_runs` | the run of a session: its lease, its input, its state at a pause |
| `…_run_steps` | an answer of the model or an output of a tool, until the run pauses or ends |
| `…_run_keys` | the outcome of a run, by the hash of its key; `""` for the last run without one |
| `…_run_decisions` | a decision about a call; the session's id is NULL after it was deleted |

Steps with numbers below 0 are events of an answer in progress, which the answer replaces. All times
are microseconds since 1970 by the database's clock. The session is locked before the row of its run
is written, except to renew the lease and to add steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    ForeignKeyConstraint,
    FromClause,
    Index,
    Integer,
    String,
    Table,
    and_,
    bindparam,
    case,
    delete,
    exists,
    literal,
    not_,
    or_,
    select,
    update,
)

from agents_session_metadata.core.change_log import note
from agents_session_metadata.core.database import Database
from agents_session_metadata.core.definitions import (
    CreateTrigger,
    TableMaker,
    derived_name,
)
from agents_session_metadata.core.features import Erased, Feature
from agents_session_metadata.core.messages import delete_messages, read_history
from agents_session_metadata.core.rows import sweep_keys
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import SessionBusyError, SessionPausedError
from agents_session_metadata.history.pairs import unanswered
from agents_session_metadata.keys import RUN
from agents_session_metadata.query.logic import Condition, Context

RUNS = "runs"
RUNNING, WAITING, FAILED = "running", "waiting", "failed"
INTERRUPTED = "interrupted"
"""The status of a run that is stored as `running` and whose lease has ended."""
COMPLETED = "completed"
"""The status of the last run of a session, in its metadata, after the run has finished."""
CANCELLED = "cancelled"
"""The status of the outcome of a run that was given up."""
STOPPED = '{"stopped": true}'
"""The outcome of a run that was cancelled. Others that were given up have `{}`."""


def runs_table(tables: SessionTables) -> Table:
    return tables.group(RUNS).tables[0]


def keys_table(tables: SessionTables) -> Table:
    return tables.group(RUNS)["_run_keys"]


def status_of(runs: FromClause, dialect: Dialect) -> ColumnElement[str]:
    """Tells interrupted runs from those that work."""
    is_over = and_(runs.c.status == RUNNING, runs.c.expires <= dialect.now())
    return case((is_over, literal(INTERRUPTED)), else_=runs.c.status)


@dataclass(frozen=True)
class NotAtWork(Condition):
    """The session has no run that works, is interrupted, or has been waiting less than `age`."""

    age: timedelta

    def parameters(self, name: str, dialect: Dialect) -> dict[str, Any]:
        # No clock is so old.
        return {name: min(self.age // timedelta(microseconds=1), 2**62)}

    def truth(
        self, name: str, context: Context, session_id: ColumnElement[str]
    ) -> ColumnElement[bool]:
        runs = runs_table(context.tables).alias()
        limit = context.dialect.now() - bindparam(name, type_=BigInteger)
        waits = and_(runs.c.status == WAITING, runs.c.paused_at > limit)
        held = exists().where(runs.c.session_id == session_id, or_(runs.c.status == RUNNING, waits))
        return not_(held.correlate(getattr(session_id, "table", None)))


# ---- outcomes of runs that have ended ----

_SWEPT = 20
"""The most outcomes that one write of the table deletes."""


def keep_outcome(
    database: Database,
    connection: Connection,
    session_id: str,
    row: Any,
    outcome: str,
    status: str | None = None,
) -> None:
    """Stores the outcome of the run in `row`, which ends now."""
    keys, dialect = keys_table(database.tables), database.dialect
    values = {"session_id": session_id, "run_key": row.run_key or "", "run_id": row.run_id}
    columns = "run_id", "ended_at", "outcome", "status"
    upsert = dialect.upsert(keys, columns).values(ended_at=dialect.now())
    connection.execute(upsert, {**values, "outcome": outcome, "status": status})


def sweep_outcomes(database: Database, connection: Connection, keep: int) -> None:
    """Deletes some outcomes that are older than `keep` microseconds, of any session."""
    keys = keys_table(database.tables)
    sweep_keys(connection, keys.c.run_key, keys.c.ended_at <= database.dialect.now() - keep, _SWEPT)


class RunsFeature(Feature):
    name = RUNS
    suffixes: ClassVar[tuple[str, ...]] = ("_runs", "_run_steps", "_run_keys", "_run_decisions")

    def define(self, make: TableMaker) -> None:
        runs_name, steps_name, keys_name, decisions_name = make.names
        types = make.types
        runs = make.owned(
            runs_name,
            Column("run_id", String(32), nullable=False),
            Column("status", String(16), nullable=False),
            Column("token", String(32), nullable=False),
            Column("expires", BigInteger, nullable=False),
            Column("run_key", String(64)),
            Column("started_at", BigInteger, nullable=False),
            Column("paused_at", BigInteger),
            Column("agent", types.text, nullable=False),
            Column("input", types.text, nullable=False),
            Column("state", types.text),
            Column("pending", types.text),
            Column("error", types.text),
            Column("progress", types.text, nullable=False),
            # The newest item of the session at the last claim or write of the run: it can be older
            # than the run. By it, a claim sees what others have written since.
            Column("last_item", BigInteger, nullable=False),
            # NULL in rows of version 0.2, as all columns that are added to these tables.
            Column("alive_at", BigInteger),
            Column("attempts", Integer),
            # The number of the pause at which the run waits.
            Column("pause", Integer),
            Index(derived_name(runs_name, "_order_idx"), "started_at", "session_id"),
        )
        # To the run, not to the session: adding a step need not lock the session.
        link = ForeignKeyConstraint(
            ["session_id"],
            [runs.c.session_id],
            name=derived_name(steps_name, "_run_fk"),
            ondelete="CASCADE",
        )
        steps = make.table(
            steps_name,
            Column("session_id", types.own_id, primary_key=True),
            Column("number", Integer, primary_key=True, autoincrement=False),
            Column("value", types.text, nullable=False),
            link,
        )
        make.triggers.append(CreateTrigger(runs, steps, ("session_id",)))
        make.owned(
            keys_name,
            Column("run_key", String(64), primary_key=True),
            Column("run_id", String(32), nullable=False),
            Column("ended_at", BigInteger, nullable=False),
            Column("outcome", types.text, nullable=False),
            Column("status", String(16)),
            Index(derived_name(keys_name, "_time_idx"), "ended_at"),
        )
        make.kept(
            decisions_name,
            Column("run_id", String(32), nullable=False),
            Column("call_id", types.text, nullable=False),
            Column("tool", types.text),
            Column("agent", types.text),
            Column("approve", Boolean, nullable=False),
            Column("message", types.text),
            Column("decided_by", types.text),
            Column("decided_at", BigInteger, nullable=False),
            Column("owner_id", types.text),
            Column("pause", Integer),
            Column("always", Boolean),
            Index(derived_name(decisions_name, "_time_idx"), "decided_at"),
        )

    def hold(self, database: Database, connection: Connection, session_id: str) -> Exception | None:
        runs = runs_table(database.tables)
        status = connection.scalar(select(runs.c.status).where(runs.c.session_id == session_id))
        if status == WAITING:
            return SessionPausedError(session_id)
        return SessionBusyError(session_id) if status == RUNNING else None

    def end(self, database: Database, connection: Connection, session_id: str) -> None:
        runs, rows = runs_table(database.tables), database.tables.metadata
        connection.execute(delete(runs).where(runs.c.session_id == session_id))
        own = rows.c.session_id == session_id, rows.c.key == RUN
        if connection.execute(delete(rows).where(*own)).rowcount:
            note(connection, "removed", session_id, [RUN])

    def give_up(
        self, database: Database, connection: Connection, session_id: str, outcome: str = "{}"
    ) -> None:
        """Ends the run of a locked session. Its items stay, except calls without an output."""
        runs = runs_table(database.tables)
        columns = runs.c.progress, runs.c.run_key, runs.c.run_id, runs.c.status
        found: Any = select(*columns).where(runs.c.session_id == session_id)
        row: Any = connection.execute(found).first()
        if row is None:
            return
        first = json.loads(row.progress)["first"]
        items = read_history(database, connection, session_id, after=first)
        ids = [items[position].item_id for position in unanswered([each.item for each in items])]
        delete_messages(database, connection, session_id, ids)
        self.end(database, connection, session_id)
        # History can change without the columns that are added to the tables of version 0.2.0.
        is_needed = row.status != FAILED or row.run_key is None
        if is_needed and database.has_columns(connection, RUNS):
            keep_outcome(database, connection, session_id, row, outcome, CANCELLED)

    def erase_rest(
        self, database: Database, connection: Connection, erased: Erased
    ) -> Mapping[str, int]:
        """Rows of an owner about a session that has another one now only lose the owner."""
        table, count = database.tables.group(RUNS)["_run_decisions"], 0
        is_exactly = database.dialect.is_exactly
        if erased.owner is not None:
            own = is_exactly(table.c.owner_id, erased.owner)
            is_gone = table.c.session_id.is_(None)
            count += connection.execute(delete(table).where(own, is_gone)).rowcount
            count += connection.execute(update(table).where(own).values(owner_id=None)).rowcount
        if erased.by is not None:
            named = update(table).where(is_exactly(table.c.decided_by, erased.by))
            count += connection.execute(named.values(decided_by=None)).rowcount
        return {table.name: count}

    def statuses(
        self, database: Database, connection: Connection, ids: Sequence[str]
    ) -> Mapping[str, str]:
        runs = runs_table(database.tables)
        status = status_of(runs, database.dialect)
        found: Any = select(runs.c.session_id, status).where(runs.c.session_id.in_(ids))
        rows: Any = connection.execute(found).all()
        return dict(rows)

    def spared(self, age: timedelta) -> Condition:
        return NotAtWork(age)


FEATURE = RunsFeature()

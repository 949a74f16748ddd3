"""The lease of a run: how a process takes a run, keeps it and lets it go.

A run holds its session by a token and a time, both in its row. Each write of the run checks them in
a statement of its transaction, so whoever has lost the lease cannot write.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Delete,
    Insert,
    Integer,
    Select,
    Update,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from agents_session_metadata.core.database import settle
from agents_session_metadata.core.messages import delete_messages
from agents_session_metadata.core.rows import id_problem
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import SessionBusyError, SessionChangedError
from agents_session_metadata.keys import RUN
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.text import quoted
from agents_session_metadata.values import encode_metadata

from .feature import INTERRUPTED, RUNNING, RUNS, WAITING, status_of
from .records import Decision, Encryption, decisions_of

logger: logging.Logger = logging.getLogger(__name__)

_RENEWALS = 3
"""A lease is renewed this many times before it would end."""


class Statements:
    """Built once per set of tables and database. `held` ones find the run of one lease only."""

    def __init__(self, tables: SessionTables, dialect: Dialect) -> None:
        runs, steps, _, _ = tables.group(RUNS).tables
        sessions, messages, now = tables.sessions, tables.messages, dialect.now()
        session: Any = bindparam("of_session")
        until: Any = now + bindparam("lease", type_=BigInteger)
        own = runs.c.session_id == session
        held = and_(own, runs.c.token == bindparam("of_token"), runs.c.expires > now)
        # By an expression, so that no database walks through the ids of all sessions.
        newest = func.coalesce(func.max(messages.c.id + 0), 0).label("newest")
        in_history = messages.c.session_id == session
        end = select(func.count().label("items"), newest).where(in_history).subquery("history")
        written = {
            "expires": until,
            "progress": bindparam("new_progress"),
            "last_item": select(newest).where(in_history).scalar_subquery(),
        }
        columns = [column for column in runs.c if column is not runs.c.status]
        status = status_of(runs, dialect).label("status")
        read = select(*columns, status, end.c["items"], end.c.newest)
        self.read: Select[Any] = dialect.locking(read.select_from(end.outerjoin(runs, own)))
        self.works: Select[Any] = select(literal(1)).where(
            own, runs.c.status == RUNNING, runs.c.expires > now
        )
        self.start: Insert = insert(runs).values(status=RUNNING, started_at=now, expires=until)
        token: Any = bindparam("of_token")
        self.take: Update = update(runs).where(own).values(status=RUNNING, token=token, **written)
        steps_of_session = select(steps.c.number, steps.c.value).where(
            steps.c.session_id == session
        )
        self.read_steps: Select[Any] = dialect.locking(steps_of_session.order_by(steps.c.number))
        items = select(messages.c.id).where(in_history, messages.c.id > bindparam("base"))
        self.items_since: Select[Any] = items.order_by(messages.c.id)
        touched = update(sessions).where(sessions.c.session_id == session)
        self.touch: Update = touched.values(updated_at=func.current_timestamp())
        self.renew: Update = update(runs).where(held).values(expires=until)
        self.write: Update = update(runs).where(held).values(**written)
        self.stop: Update = update(runs).where(held).values(expires=0)
        self.finish: Delete = delete(runs).where(held)
        self.delete_steps: Delete = delete(steps).where(steps.c.session_id == session)
        number, value = (
            bindparam("number", type_=Integer),
            bindparam("value", type_=steps.c.value.type),
        )
        # Locked: who takes the run over reads its steps when this transaction has ended.
        holder = select(runs.c.session_id, number, value).where(held).with_for_update()
        self.add_step: Insert = insert(steps).from_select(["session_id", "number", "value"], holder)


@lru_cache(maxsize=256)
def statements(tables: SessionTables, dialect: Dialect) -> Statements:
    return Statements(tables, dialect)


def read_run(store: ScopedStore, connection: Connection, session_id: str) -> Any:
    """Returns the run of a locked session, with the number of items and the newest one.

    Without a run, its columns are NULL.
    """
    read = statements(store.database.tables, store.database.dialect).read
    return connection.execute(read, {"of_session": session_id}).one()


def lock_run(store: ScopedStore, connection: Connection, session_id: str) -> Any:
    """Locks a session. Returns its run, or None without one."""
    if id_problem(session_id) is not None or not store.lock(connection, session_id):
        return None
    if not store.database.has_tables(connection, RUNS):
        return None
    row = read_run(store, connection, session_id)
    return None if row.run_id is None else row


@dataclass(frozen=True)
class Progress:
    """The position of a run, from which it can go on; JSON in its row.

    Attributes:
        durable: Whether answers and outputs are recorded.
        options: Arguments of `Runner.run` from the beginning.
        first: The newest item before the run.
        base: The newest item before this part: before the run, or before its last pause.
        items: The number of items after the last write.
        writes: The numbers of items that the writes of this part have added.
        inside: Calls that wait at the pause inside agents that are used as tools.
    """

    durable: bool
    options: dict[str, Any]
    first: int
    base: int
    items: int
    writes: list[int] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)

    def dump(self) -> str:
        return json.dumps(vars(self))


class Lease:
    """The hold of this process on the run of a session. `duration` is in microseconds.

    `start` or `go_on` takes the run. Then `row` has its columns, `steps` what is recorded since it
    began or paused, and `decisions` those since the pause, by call.
    """

    row: Any
    progress: Progress
    steps: dict[int, Any]
    decisions: dict[str, Decision]

    def __init__(
        self, store: ScopedStore, session_id: str, duration: int, encryption: Encryption
    ) -> None:
        self.store = store
        self.session_id = session_id
        self.encryption = encryption
        self.is_lost: bool = False
        self.sql: Statements = statements(store.database.tables, store.database.dialect)
        self._duration = duration
        self._token = secrets.token_hex(16)
        self._own = {"of_session": session_id, "of_token": self._token, "lease": duration}
        self._ended = asyncio.Event()
        self._renewal: asyncio.Task[None] | None = None

    # ---- taking a run of a locked session ----

    def start(self, connection: Connection, end: Any, progress: Progress, **values: Any) -> None:
        """`end` is the row that `read_run` returned."""
        values |= {
            "session_id": self.session_id,
            "run_id": secrets.token_hex(16),
            "token": self._token,
            "progress": progress.dump(),
            "last_item": end.newest,
        }
        connection.execute(self.sql.start, {**values, "lease": self._duration})
        self.show(connection, RUNNING)
        self.row, self.progress = SimpleNamespace(**values, state=None), progress
        self.steps, self.decisions = {}, {}

    def go_on(self, connection: Connection, row: Any, *, force: bool) -> None:
        progress, database = Progress(**json.loads(row.progress)), self.store.database
        if (row.items, row.newest) != (progress.items, row.last_item) and not force:
            raise SessionChangedError(
                self.session_id, "its history has changed since the run stopped"
            )
        if row.status == WAITING:
            progress = replace(progress, base=row.last_item, writes=[])
        taken_back: list[int] = []
        if not progress.durable and progress.writes:
            base = {"of_session": self.session_id, "base": progress.base}
            items = connection.scalars(self.sql.items_since, base).all()
            taken_back = list(items[: sum(progress.writes)])
            delete_messages(database, connection, self.session_id, taken_back)
            progress = replace(progress, writes=[])
        self.progress = replace(progress, items=row.items - len(taken_back))
        connection.execute(self.sql.take, {**self._own, "new_progress": self.progress.dump()})
        if row.status != INTERRUPTED:
            self.show(connection, RUNNING)
        steps: Any = connection.execute(self.sql.read_steps, {"of_session": self.session_id})
        self.row, self.steps = row, {number: self.encryption.load(text) for number, text in steps}
        found = decisions_of(connection, database, [self.session_id]) if row.state else {}
        self.decisions = found.get(self.session_id, {})

    # ---- keeping it ----

    def holds(self, connection: Connection, statement: Any, **values: Any) -> bool:
        """Executes a statement, and returns whether it has found its row."""
        return bool(connection.execute(statement, {**self._own, **values}).rowcount)

    def fence(self, connection: Connection, statement: Any, **values: Any) -> None:
        """Executes a statement that must find the run, or raises that the lease is lost."""
        if not self.holds(connection, statement, **values):
            raise self.lost()

    def lost(self) -> SessionBusyError:
        self.is_lost = True
        return SessionBusyError(self.session_id, lost=True)

    def start_renewing(self, on_loss: Callable[[], object]) -> None:
        self._renewal = asyncio.ensure_future(self._renew(on_loss))

    async def stop_renewing(self) -> None:
        """Ends the renewal by an event: cancelling could break a statement off."""
        self._ended.set()
        if self._renewal is not None:
            await settle(asyncio.wait({self._renewal}))

    async def _renew(self, on_loss: Callable[[], object]) -> None:
        database, pause = self.store.database, self._duration / 1_000_000 / _RENEWALS
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), pause)
                return
            try:
                await database.write(lambda connection: self.fence(connection, self.sql.renew))
            except SessionBusyError:
                on_loss()
                return
            except (SQLAlchemyError, OSError):
                shown = quoted(self.session_id)
                logger.warning("the lease of session %s was not renewed", shown, exc_info=True)

    # ---- letting it go ----

    async def release(self) -> None:
        """Ends the lease early: the run is interrupted from now on."""
        try:
            await self.store.database.write(
                lambda connection: self.holds(connection, self.sql.stop)
            )
        except (SQLAlchemyError, OSError):
            shown = quoted(self.session_id)
            logger.warning("the lease of session %s was not ended", shown, exc_info=True)

    def show(self, connection: Connection, status: str | None) -> None:
        """Writes the metadata key of the run, or deletes it."""
        if status is None:
            self.store.rows.delete_keys(connection, self.session_id, [RUN])
        else:
            encoded = encode_metadata({RUN: status}, self.store.limits)
            self.store.rows.write(connection, self.session_id, encoded, ())

"""The lease of a run, and what the row of a run contains.

A run holds its session by a token and a time, both in its row. Every write of the run checks them
in its own transaction, so whoever has lost the lease cannot write.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, Table, bindparam, func, select, update
from sqlalchemy.exc import SQLAlchemyError

from agents_session_metadata.core.database import settle
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect, Statement
from agents_session_metadata.errors import SessionBusyError
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.text import quoted

from .feature import FAILED, RUNNING, WAITING, runs_table

logger: logging.Logger = logging.getLogger(__name__)

_RENEWALS = 3
"""A lease is renewed this many times before it would end."""


class RunRow(NamedTuple):
    """A row of the table of runs. `now` is the time at which it was read."""

    session_id: str
    run_id: str
    status: str
    token: str
    expires: int
    run_key: str | None
    started_at: int
    paused_at: int | None
    agent: str
    options: str
    input: str
    state: str | None
    pending: str | None
    error: str | None
    first_item: int
    base_item: int
    writes: str
    item_count: int
    last_item: int
    now: int

    @property
    def is_working(self) -> bool:
        return self.status == RUNNING and self.expires > self.now

    @property
    def is_interrupted(self) -> bool:
        return self.status == RUNNING and self.expires <= self.now

    @property
    def is_waiting(self) -> bool:
        return self.status == WAITING

    @property
    def is_failed(self) -> bool:
        return self.status == FAILED


def reading(runs: Table, dialect: Dialect) -> Statement:
    columns = [runs.c[name] for name in RunRow._fields if name != "now"]
    return select(*columns, dialect.now().label("now"))


def read_locked(
    connection: Connection, tables: SessionTables, dialect: Dialect, session_id: str
) -> RunRow | None:
    """The session must be locked."""
    runs = runs_table(tables)
    statement = reading(runs, dialect).where(runs.c.session_id == session_id)
    row = connection.execute(dialect.locking(statement)).first()
    return None if row is None else RunRow(*row)


class HistoryEnd(NamedTuple):
    """Differs as soon as the history changes."""

    item_count: int
    last_item: int


def history_end(connection: Connection, tables: SessionTables, session_id: str) -> HistoryEnd:
    messages = tables.messages
    found: Any = connection.execute(
        select(func.count(), func.max(messages.c.id)).where(messages.c.session_id == session_id)
    ).one()
    return HistoryEnd(int(found[0]), found[1] or 0)


def newest_item(tables: SessionTables) -> Any:
    """Returns an expression for the newest item of the session that `of_session` binds."""
    messages = tables.messages
    # By an expression, so that no database walks through the ids of all sessions.
    newest = select(func.coalesce(func.max(messages.c.id + 0), 0))
    return newest.where(messages.c.session_id == bindparam("of_session")).scalar_subquery()


@lru_cache(maxsize=256)
def _fence(tables: SessionTables, dialect: Dialect, names: tuple[str, ...], added: bool) -> Any:
    """`added` counts the items that the transaction has added, or removed if it is negative."""
    runs = runs_table(tables)
    lease: Any = bindparam("lease", type_=BigInteger)
    changed: dict[str, Any] = {"expires": dialect.now() + lease}
    changed |= {name: bindparam(f"new_{name}", type_=runs.c[name].type) for name in names}
    if added:
        changed["item_count"] = runs.c.item_count + bindparam("added")
        changed["last_item"] = newest_item(tables)
    own = runs.c.session_id == bindparam("of_session"), runs.c.token == bindparam("of_token")
    return update(runs).where(*own, runs.c.expires > dialect.now()).values(changed)


class Lease:
    """The lease of one run in this process. `duration` is in microseconds."""

    def __init__(self, store: ScopedStore, session_id: str, duration: int) -> None:
        self.store = store
        self.session_id = session_id
        self.token: str = secrets.token_hex(16)
        self.duration = duration
        self.is_lost: bool = False
        self._ended = asyncio.Event()
        self._renewal: asyncio.Task[None] | None = None

    def fence(self, connection: Connection, *, added: int | None = None, **values: Any) -> None:
        """Renews the lease and changes the row of the run, or raises if the lease is lost.

        Pass `added` after the items of the session have changed.
        """
        database = self.store.database
        names = tuple(values)
        statement = _fence(database.tables, database.dialect, names, added is not None)
        parameters = {f"new_{name}": value for name, value in values.items()}
        parameters |= {
            "of_session": self.session_id,
            "of_token": self.token,
            "lease": self.duration,
        }
        if added is not None:
            parameters["added"] = added
        if not connection.execute(statement, parameters).rowcount:
            self.is_lost = True
            raise self.lost()

    def lost(self) -> SessionBusyError:
        return SessionBusyError(self.session_id, lost=True)

    def start_renewing(self, on_loss: Callable[[], object]) -> None:
        self._renewal = asyncio.ensure_future(self._renew(on_loss))

    async def stop_renewing(self) -> None:
        """Ends the renewal by an event: cancelling could break a statement off."""
        self._ended.set()
        if self._renewal is not None:
            await settle(asyncio.wait({self._renewal}))

    async def _renew(self, on_loss: Callable[[], object]) -> None:
        while True:
            try:
                await asyncio.wait_for(self._ended.wait(), self.duration / 1_000_000 / _RENEWALS)
            except (asyncio.TimeoutError, TimeoutError):
                pass
            else:
                return
            try:
                await self.store.database.write(lambda connection, _: self.fence(connection))
            except SessionBusyError:
                on_loss()
                return
            except (SQLAlchemyError, OSError):
                shown = quoted(self.session_id)
                logger.warning("the lease of session %s was not renewed", shown, exc_info=True)

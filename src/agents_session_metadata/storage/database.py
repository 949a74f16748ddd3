"""One engine and one set of tables: connections, transactions, retries, and whether tables exist.

Work is a plain function of a `Connection`; it runs inside SQLAlchemy's greenlet, one hop for all of
its statements. Every write is one transaction that is run again after a conflict and that settles
before a cancelled caller is told.
"""

from __future__ import annotations

import asyncio
import random
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import Pool
from sqlalchemy.util import greenlet_spawn

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import TablesMissingError
from agents_session_metadata.query.queries import Queries

from .creation import create_missing, find_missing
from .tables import CORE, SessionTables, TableNames, query_tables

T = TypeVar("T")

RETRY_DELAYS = tuple(0.01 * 2**attempt for attempt in range(9))
"""Seconds between attempts, before jitter: ten attempts within some five seconds."""


async def settle(awaitable: Awaitable[T]) -> T:
    """Wait for an outcome even when the caller is cancelled, then let the cancellation go on."""
    task = asyncio.ensure_future(awaitable)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:  # noqa: PERF203  # cancelled once, as a rule
            cancelled = cancelled or error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # Retrieved: the caller hears of the cancellation instead.
        raise cancelled
    return task.result()


async def retry(
    operation: Callable[[], Awaitable[T]], is_transient: Callable[[DBAPIError], bool]
) -> T:
    """Run an operation again after errors that may pass, a bounded number of times."""
    for delay in RETRY_DELAYS:
        try:
            return await operation()
        except DBAPIError as error:  # a handful of turns
            if not is_transient(error):
                raise
        # Jitter keeps those who met from meeting again.
        await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311  # no secret
    return await operation()


@dataclass
class _TablesState:
    """What is known of one set of tables in one engine's database; shared by all its sessions.

    Attributes:
        checked: By group, the engine's pool when the tables were seen. Disposing an engine gives it
            another, and ends an in-memory database; a listener for it would slow down every
            statement. Weak, because a pool holds its engine, and the engine is to go when nobody
            uses it.
        native_ids: Whether ids compare by code point in the sessions table as it is.
        pooled: Whether a pooler, such as PgBouncer, has been seen to give single statements to
            different connections; only within a transaction does it keep to one.
        queries: The statements, by `native_ids`.
    """

    checked: dict[str, weakref.ref[Pool]] = field(default_factory=dict)
    native_ids: bool = True
    pooled: bool = False
    queries: dict[bool, Queries] = field(default_factory=dict)


_states: weakref.WeakKeyDictionary[Engine, dict[TableNames, _TablesState]] = (
    weakref.WeakKeyDictionary()
)
_states_lock = threading.Lock()


def _state_of(engine: Engine, names: TableNames) -> _TablesState:
    of_engine = _states.get(engine)
    if of_engine is None:
        with _states_lock:
            of_engine = _states.get(engine)
            if of_engine is None:
                of_engine = _states[engine] = {}
    return of_engine.setdefault(names, _TablesState())


class Database:
    """The tables of one name in one engine's database.

    Args:
        engine: The async engine.
        names: The names of the tables.
        create_tables: Whether to create what is missing on first use.
        guard: Gives the turn to use the one connection, where all share it.
        init_lock: Gives the lock that those who create tables in this process take.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        names: TableNames,
        *,
        create_tables: bool,
        guard: Callable[[], AbstractAsyncContextManager[Any]] | None,
        init_lock: Callable[[], threading.Lock],
    ) -> None:
        self.engine = engine
        self.names = names
        self.create_tables = create_tables
        self.dialect: Dialect = dialect_of(engine.dialect)
        self.tables: SessionTables = query_tables(names)
        self._guard = guard
        self._init_lock = init_lock
        self._state = _state_of(engine.sync_engine, names)

    @property
    def queries(self) -> Queries:
        """The statements for the tables as they are; to be asked for within `read` or `write`."""
        native = self._state.native_ids
        queries = self._state.queries.get(native)
        if queries is None:
            queries = Queries(self.dialect, self.tables, native_ids=native)
            self._state.queries[native] = queries
        return queries

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run work that only reads."""
        return await self._with_tables(lambda: self._connected(work, commit=False))

    async def read_snapshot(self, work: Callable[[Connection], T]) -> T:
        """Run work that only reads, all of it the same state of the database."""

        def unit(connection: Connection) -> T:
            self.dialect.begin_snapshot(connection)
            return work(connection)

        return await self._with_tables(lambda: self.run(lambda: self._on_connection(unit)))

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run work as one transaction, again after a conflict, and settle it.

        Work that calls `connection.rollback()` last has written nothing.
        """
        return await self._with_tables(lambda: settle(self._connected(work, commit=True)))

    async def run(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Run an operation that opens its own connection, again after errors that may pass."""
        return await retry(operation, self.dialect.is_transient)

    async def ensure_tables(self) -> None:
        """Make sure, once per engine, that the tables are there.

        Raises:
            TablesMissingError: If some are not, and they are not to be created.
        """
        await self.ensure(CORE)

    async def ensure(self, group: str) -> None:
        """Make sure, once per engine, that the tables of a group are there, and the core tables.

        Features with tables of their own call this before `read` or `write`.

        Raises:
            TablesMissingError: If some are not, and they are not to be created.
        """
        if self._is_ready(group):
            return
        if group != CORE:
            await self.ensure(CORE)
        lock = self._init_lock()
        while not lock.acquire(blocking=False):  # noqa: ASYNC110  # shared by several event loops
            await asyncio.sleep(0.005)
        try:
            if not self._is_ready(group):
                await settle(self._prepare(group))
        finally:
            lock.release()

    async def find_missing(self) -> list[str]:
        """The names of all tables and triggers that the database lacks, of the groups in use."""
        groups = tuple({CORE: None, **self._state.checked})
        return await self.run(
            lambda: self._on_connection(
                lambda connection: find_missing(connection, self.names, groups)
            )
        )

    async def recover(self, error: DBAPIError) -> bool:
        """After an error, look whether tables have gone; create them, if that was asked for.

        Returns:
            Whether they were gone and are there again.

        Raises:
            TablesMissingError: If they are gone and are not to be created.
        """
        if not self._is_ready(CORE) or not isinstance(error, (ProgrammingError, OperationalError)):
            return False
        if error.connection_invalidated:
            # Not for want of tables. Looking would put a refused connection in the error's place,
            # as if nothing had been written, when a commit may have been.
            return False
        if self.dialect.is_transient(error) or not await self.find_missing():
            return False
        groups = tuple(self._state.checked)
        self._state.checked.clear()
        for group in groups:
            await self.ensure(group)
        return True

    def _is_ready(self, group: str) -> bool:
        checked = self._state.checked.get(group)
        return checked is not None and checked() is self.engine.sync_engine.pool

    async def _with_tables(self, operation: Callable[[], Awaitable[T]]) -> T:
        await self.ensure_tables()
        try:
            return await operation()
        except DBAPIError as error:
            if not await self.recover(error):
                raise
        return await operation()

    async def _prepare(self, group: str) -> None:
        def prepare(connection: Connection) -> None:
            missing = find_missing(connection, self.names, (group,))
            if missing and not self.create_tables:
                raise TablesMissingError(missing)
            if missing:
                create_missing(connection, self.names, group)
            self._state.native_ids = self.dialect.parent_id(connection, self.tables.sessions)[1]
            connection.commit()

        def may_pass(error: DBAPIError) -> bool:
            return self.dialect.is_transient(error) or self.dialect.is_creation_race(error)

        pool = self.engine.sync_engine.pool
        await retry(lambda: self._on_connection(prepare), may_pass)
        self._state.checked[group] = weakref.ref(pool)

    async def _connected(self, work: Callable[[Connection], T], *, commit: bool) -> T:
        autocommit = not commit and self.dialect.autocommit_reads and not self._state.pooled

        def unit(connection: Connection) -> T:
            if autocommit:
                connection.execution_options(isolation_level="AUTOCOMMIT")
            elif commit and self.dialect.commits_each(connection):
                level = connection.default_isolation_level
                connection.execution_options(isolation_level=level)
            result = work(connection)
            if commit:
                connection.commit()
            return result

        try:
            return await self.run(lambda: self._on_connection(unit))
        except DBAPIError as error:
            if not autocommit or not self.dialect.lost_its_statement(error):
                raise
        self._state.pooled = True
        return await self._connected(work, commit=commit)

    async def _on_connection(self, work: Callable[[Connection], T]) -> T:
        engine = self.engine.sync_engine

        def unit() -> T:
            with engine.connect() as connection:
                return work(connection)

        # One hop into SQLAlchemy's greenlet for connecting, working and closing.
        if self._guard is None:
            return await greenlet_spawn(unit)
        async with self._guard():
            # A cancelled caller's rollback must not run on when the next one has the connection.
            return await settle(greenlet_spawn(unit))

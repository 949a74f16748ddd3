"""Runs work on one engine and one set of tables, in transactions that are retried.

Work is a plain function of a `Connection`. It runs in SQLAlchemy's greenlet, with one switch for
all of its statements. Every write is one transaction. It is retried after a conflict, and it ends
before the cancellation of its caller continues.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import random
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import Pool
from sqlalchemy.util import greenlet_spawn

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects._dialect import Dialect, Existing
from agents_session_metadata.dialects.codes import (
    CREATION_RACE,
    DENIED,
    HELD,
    LOST_STATEMENT,
    TRANSIENT,
    database_cause,
    error_code,
)
from agents_session_metadata.dialects.urls import check_loop
from agents_session_metadata.errors import TablesMissingError

from .change_log import log_committed
from .definitions import CORE, TableNames
from .schema import (
    create_missing,
    existing_names,
    missing_columns,
    missing_elements,
    missing_name,
    require_own_tables,
)
from .tables import SessionTables, query_tables

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")
Work: TypeAlias = Callable[[Connection], T]

RETRY_DELAYS = tuple(0.01 * 2**attempt for attempt in range(9))
"""Seconds between attempts, before jitter: ten attempts within about five seconds."""
RECONNECT_DELAYS = (0.1, 0.5, 2.0)
"""Seconds between attempts of a write that `insist` repeats."""
FAILURES = (SQLAlchemyError, OSError, asyncio.TimeoutError)
"""The errors of a database that cannot be reached, or fails, by SQLAlchemy or by the driver.

Before Python 3.11, `asyncio.TimeoutError` is not an `OSError`.
"""


_abandoned: weakref.WeakSet[asyncio.Future[Any]] = weakref.WeakSet()
"""Tasks that `settle` waits for although their caller was cancelled: they are not retried."""


async def settle(awaitable: Awaitable[T]) -> T:
    """Waits for the outcome even if the caller is cancelled, and then raises the cancellation."""
    task = asyncio.ensure_future(awaitable)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:  # noqa: PERF203  # cancelled once, as a rule
            cancelled = cancelled or error
            _abandoned.add(task)
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # Retrieved: the caller hears of the cancellation instead.
        raise cancelled
    return task.result()


async def insist(write: Callable[[], Awaitable[T]]) -> T:
    """Runs a write again if the database fails, such as when a connection is lost.

    `write` must find out by itself whether an earlier attempt was committed.
    """
    for delay in RECONNECT_DELAYS:
        try:
            return await write()
        except FAILURES:
            logger.warning("a write failed, and is tried again in %s s", delay, exc_info=True)
        await asyncio.sleep(delay)
    return await write()


class _ColumnsMissingError(Exception):
    """Work found the tables of a group without columns that a later version has added."""

    def __init__(self, group: str) -> None:
        self.group = group


@dataclass
class _TablesState:
    """The state of one set of tables in one engine's database, shared by all its sessions.

    Disposing an engine gives it a new pool, and ends an in-memory database: the state ends with the
    pool. A listener for that would slow down every statement.

    Attributes:
        pool: The pool of the engine. A pool holds its engine, which must be freed when it is not
            used.
        ready: The groups that were found complete.
        existing: The tables that were seen.
        native_ids: Whether ids in the sessions table sort by code point.
        pooled: Whether a pooler, such as PgBouncer, has run single statements on different
            connections. Within a transaction, it keeps to one.
        notes: What other modules remember of the database.
    """

    pool: weakref.ref[Pool]
    ready: set[str] = field(default_factory=set)
    existing: Existing = field(default_factory=dict)
    native_ids: bool = True
    pooled: bool = False
    notes: dict[str, Any] = field(default_factory=dict)


_states: weakref.WeakKeyDictionary[Engine, dict[TableNames, _TablesState]] = (
    weakref.WeakKeyDictionary()
)


class Database:
    """`guard` serializes callers that share one connection, and `init_lock` creators of tables."""

    refusal: Callable[[], Exception] | None = None
    """Returns the error of every write; None if writing is allowed."""

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
        self._known: _TablesState | None = None

    def refusing(self, refusal: Callable[[], Exception] | None) -> Database:
        """Returns the same database, where every write raises an error, or none does."""
        database = copy.copy(self)
        database.refusal = refusal
        return database

    def check_writable(self) -> None:
        """Every write comes through here."""
        if self.refusal is not None:
            raise self.refusal()

    # Plain functions that return coroutines: one frame less between a call and its statement.

    def read(self, work: Work[T], *, prepare: bool = True) -> Awaitable[T]:
        return self.retry(partial(self._spawn, work, self._begin_read), prepare=prepare)

    async def read_used(self, group: str, work: Work[T], unused: T) -> T:
        """Reads what a feature has stored. Returns `unused` if its tables were never created."""

        def read(connection: Connection) -> T:
            return work(connection) if self.has_tables(connection, group) else unused

        try:
            return await self.read(read)
        except TablesMissingError as error:
            if self.names.metadata not in error.tables:
                raise
            return unused  # Nothing of this package was ever used.

    def read_snapshot(self, work: Work[T]) -> Awaitable[T]:
        return self.retry(partial(self._spawn, work, self.dialect.begin_snapshot))

    def write(self, work: Work[T], *, prepare: bool = True, group: str = CORE) -> Awaitable[T]:
        """Runs work as one transaction, which finishes even if the caller is cancelled.

        Work that calls `connection.rollback()` last has written nothing.
        """
        self.check_writable()
        operation = partial(self._spawn, work, self._begin_write, commits=True)
        return settle(self.retry(operation, prepare=prepare, group=group))

    def write_one(self, statement: Work[T]) -> Awaitable[T]:
        """Runs one statement, where that is faster without a transaction around it."""
        self.check_writable()
        begin = self._begin_read if self.dialect.autocommit_reads else self._begin_write
        return settle(self.retry(partial(self._spawn, statement, begin, commits=True)))

    @property
    def _state(self) -> _TablesState:
        engine, state = self.engine.sync_engine, self._known
        if state is None or state.pool() is not engine.pool:
            states = _states.setdefault(engine, {})
            state = states.get(self.names)
            if state is None or state.pool() is not engine.pool:
                state = states[self.names] = _TablesState(weakref.ref(engine.pool))
            self._known = state
        return state

    @property
    def native_ids(self) -> bool:
        return self._state.native_ids

    @property
    def notes(self) -> dict[str, Any]:
        return self._state.notes

    async def retry(
        self,
        operation: Callable[[], Awaitable[T]],
        *,
        prepare: bool = True,
        group: str = CORE,
    ) -> T:
        """Runs an operation, which opens its own connection, and retries transient errors.

        Nothing else retries. After ten attempts within about five seconds, the last error is raised
        unchanged. With `prepare=False`, the operation needs at most the SDK's tables.
        """
        check_loop(self.engine)
        groups = [CORE, group] if prepare or self.create_tables else []
        for delay in (*RETRY_DELAYS, None):
            preparing, pooled = False, self._state.pooled
            try:
                for each in groups:
                    if each not in self._state.ready:
                        preparing = True
                        await self._prepare(each)
                preparing = False
                return await operation()
            except _ColumnsMissingError as error:
                if delay is None:
                    raise
                groups = [CORE, error.group]
                continue
            except DBAPIError as error:
                race = preparing and error_code(error) in CREATION_RACE | HELD
                if delay is None or not (race or self._is_worth_retrying(error, pooled=pooled)):
                    if not (prepare or preparing):
                        await self._explain(error)
                    raise
                # Jitter keeps those who met from meeting again.
                await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311  # no secret
                if asyncio.current_task() in _abandoned:
                    raise
            except Exception as error:
                if isinstance(error, FAILURES) or database_cause(error) is None:
                    raise
                # SQLAlchemy 2.0 passes on asyncpg's own errors while it connects.
                raise OperationalError(None, None, error) from error
        raise AssertionError("the last attempt returns or raises")

    async def ensure(self, group: str = CORE) -> None:
        """Checks, once per engine, that the core tables and those of a group exist.

        Features with tables of their own call this before `read` or `write`.
        """
        await self.retry(_nothing, group=group)

    def has_tables(self, connection: Connection, group: str) -> bool:
        """Returns whether all tables of a group exist; those seen once are not looked for again.

        If they lack columns, the work stops. It is run again after the columns have been added, or
        `TablesMissingError` is raised.
        """
        if not self.having_tables(connection, [group]):
            return False
        if self._lacks_columns(group):
            self._state.existing = existing_names(connection, self.tables, parts=True)
            if self._lacks_columns(group):
                raise _ColumnsMissingError(group)
        return True

    def has_columns(self, connection: Connection, group: str) -> bool:
        """Like `has_tables`. Returns False if there are columns that must not be added."""
        try:
            return self.has_tables(connection, group)
        except _ColumnsMissingError:
            if self.create_tables:
                raise
            return False

    def having_tables(self, connection: Connection, groups: Iterable[str]) -> set[str]:
        """Returns the groups of which all tables exist, possibly without columns added later."""
        names = {
            group: {table.name for table in self.tables.group(group).tables} for group in groups
        }
        known = self._state.existing
        if not set().union(*names.values()) <= known.keys():
            # Columns and indexes that were seen once are not looked for again.
            found = existing_names(connection, self.tables)
            known = {name: known.get(name, parts) for name, parts in found.items()}
            self._state.existing = known
        return {group for group in names if names[group] <= known.keys()}

    def _lacks_columns(self, group: str) -> bool:
        tables = self.tables.group(group).tables
        return any(missing_columns(table, self._state.existing) for table in tables)

    def look(self, work: Work[T]) -> Awaitable[T]:
        return self.retry(partial(self._spawn, work, _begin_nothing), prepare=False)

    async def _explain(self, error: DBAPIError) -> None:
        """Raises `TablesMissingError` if the SDK's tables are missing, which explains an error."""
        is_explained = isinstance(error, (OperationalError, ProgrammingError))
        if not is_explained or error.connection_invalidated or error_code(error) in TRANSIENT:
            return

        def find(connection: Connection) -> list[str]:
            existing = existing_names(connection, self.tables)
            return [name for name in self.names[:2] if name not in existing]

        missing = await self._spawn(find, _begin_nothing)
        if missing:
            raise TablesMissingError(missing) from error

    def _is_worth_retrying(self, error: DBAPIError, *, pooled: bool) -> bool:
        """`pooled` is the state when it began: several operations can meet a new pooler at once."""
        if error_code(error) in LOST_STATEMENT and not pooled:
            self._state.pooled = True
            return True
        return error_code(error) in TRANSIENT

    async def _prepare(self, group: str) -> None:
        state = self._state

        def prepare(connection: Connection) -> None:
            existing = existing_names(connection, self.tables, parts=True)
            require_own_tables(connection, self.tables, existing)
            if self._create(connection, group, existing):
                connection.commit()
                existing = existing_names(connection, self.tables, parts=True)
            state.existing = existing
            if group == CORE:
                sessions = self.tables.sessions
                state.native_ids = self.dialect.sorts_by_code_point(connection, sessions)
            connection.commit()

        lock = self._init_lock()
        while not lock.acquire(blocking=False):  # noqa: ASYNC110  # shared by several event loops
            await asyncio.sleep(0.005)
        try:
            if group not in state.ready:
                known = state.existing
                if group == CORE or missing_elements(self.dialect, self.tables, group, known):
                    await settle(self._spawn(prepare, self._begin_write))
                state.ready.add(group)
        finally:
            lock.release()

    def _create(self, connection: Connection, group: str, existing: Existing) -> bool:
        """Creates what a group lacks. Returns whether anything was missing.

        Raises `TablesMissingError` for what it may not create, but for indexes, which are only
        faster.
        """
        elements = missing_elements(self.dialect, self.tables, group, existing)
        missing = [name for each in elements if (name := missing_name(each)) is not None]
        if missing and not self.create_tables:
            raise TablesMissingError(missing)
        if not elements or not self.create_tables:
            return False
        try:
            create_missing(connection, self.names, group)
        except DBAPIError as error:
            if error_code(error) not in DENIED:
                raise
            if missing:
                problem = (
                    f"missing from the database: {', '.join(missing)}; this user may not create "
                    "them; as a user who may, run the SQL of `agent-sessions ddl --upgrade`"
                )
                raise TablesMissingError(missing, problem) from error
            connection.rollback()
            logger.warning("indexes are missing, and may not be created: %s", error.orig)
        return True

    def _begin_read(self, connection: Connection) -> None:
        if self.dialect.autocommit_reads and not self._state.pooled:
            connection.execution_options(isolation_level="AUTOCOMMIT")

    def _begin_write(self, connection: Connection) -> None:
        if self.dialect.write_isolation is not None:
            connection.execution_options(isolation_level=self.dialect.write_isolation)
        elif self.dialect.commits_each(connection):
            level = connection.default_isolation_level
            connection.execution_options(isolation_level=level)

    def _spawn(
        self, work: Work[T], begin: Callable[[Connection], None], *, commits: bool = False
    ) -> Awaitable[T]:
        # One hop into SQLAlchemy's greenlet for connecting, working and closing.
        spawn = partial(greenlet_spawn, self._transact, work, begin, commits)
        return spawn() if self._guard is None else self._guarded(spawn, self._guard)

    async def _guarded(
        self,
        spawn: Callable[[], Awaitable[T]],
        guard: Callable[[], AbstractAsyncContextManager[Any]],
    ) -> T:
        async with guard():
            # A cancelled caller's rollback must not run on when the next one has the connection.
            return await settle(spawn())

    def _transact(self, work: Work[T], begin: Callable[[Connection], None], commits: bool) -> T:
        with self.dialect.connect(self.engine.sync_engine) as connection:
            # Between two transactions, a pooler can change the server connection.
            if self._state.pooled and self.dialect.commits_each(connection):
                connection.execution_options(isolation_level=self.dialect.write_isolation)
            self.dialect.check_connection(connection)
            begin(connection)
            result = work(connection)
            if commits:
                is_written = connection.in_transaction()
                connection.commit()
                if is_written:
                    log_committed(connection)
            return result


def _begin_nothing(connection: Connection) -> None:
    pass


async def _nothing() -> None:
    """An operation that needs the tables and nothing else."""

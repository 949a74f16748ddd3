"""One engine and one set of tables: connections, transactions, retries, and whether tables exist.

Work is a plain function of a `Connection`; it runs inside SQLAlchemy's greenlet, one hop for all of
its statements. Every write is one transaction that is run again after a conflict and that settles
before a cancelled caller is told.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import Pool
from sqlalchemy.util import greenlet_spawn

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import TablesMissingError

from .belonging import check_beside, check_copies, check_links, check_not_renamed
from .creation import (
    create_missing,
    find_missing,
    find_wanted,
    groups_in_use,
)
from .known import Known, TextIndex, read_indexes, read_text_index
from .renames import check_names
from .shapes import check_columns, check_ids
from .tables import CORE, SessionTables, TableNames, query_tables
from .word_index import WordIndex

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")
Q = TypeVar("Q")
Q_co = TypeVar("Q_co", covariant=True)


class QueriesFactory(Protocol[Q_co]):
    """Makes the statements for one set of tables."""

    def __call__(self, dialect: Dialect, tables: SessionTables, *, native_ids: bool) -> Q_co:
        """Make the statements; `native_ids` says whether ids sort by code point as they are."""
        ...


RETRY_DELAYS = tuple(0.01 * 2**attempt for attempt in range(9))
"""Seconds between attempts, before jitter: ten attempts within some five seconds."""
RECONNECT_DELAYS = (0.1, 0.5, 2.0)
"""Seconds between attempts of a write that `insist` repeats."""


_abandoned: weakref.WeakSet[asyncio.Future[Any]] = weakref.WeakSet()
"""Work that `settle` waits for although its caller was cancelled."""


async def settle(awaitable: Awaitable[T]) -> T:
    """Wait for an outcome even when the caller is cancelled, then let the cancellation go on.

    `Database.retry` makes no further attempt then, if it is what is waited for.
    """
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
    """Run a write, again if the database fails, as when a connection is lost.

    Args:
        write: What to run. It finds out by itself whether it was committed before an error.
    """
    for delay in RECONNECT_DELAYS:
        try:
            return await write()
        except (SQLAlchemyError, OSError, asyncio.TimeoutError):
            logger.warning("a write failed, and is tried again in %s s", delay, exc_info=True)
        await asyncio.sleep(delay)
    return await write()


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
        queries: The statements, by what makes them and `native_ids`.
        indexes: The indexes that are believed to exist.
        text: What is believed of the text index.
        queue_waits: Whether items of other sessions have been seen in the queue of that index.
    """

    checked: dict[str, weakref.ref[Pool]] = field(default_factory=dict)
    native_ids: bool = True
    pooled: bool = False
    queries: dict[tuple[Any, bool], Any] = field(default_factory=dict)
    indexes: Known[frozenset[str] | None] = field(
        default_factory=lambda: Known(read_indexes, None, seconds=30)
    )
    text: Known[TextIndex] = field(
        default_factory=lambda: Known(read_text_index, TextIndex.NONE, seconds=2)
    )
    queue_waits: bool = False


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


def forget_text_index() -> None:
    """Let every engine of the process ask its database whether there is a text index."""
    with _states_lock:
        states = [state for of_engine in _states.values() for state in of_engine.values()]
    for state in states:
        state.text.forget()


class Database(Generic[Q]):
    """The tables of one name in one engine's database.

    Args:
        engine: The async engine.
        names: The names of the tables.
        create_tables: Whether to create missing tables on first use.
        queries: Makes the statements that work is handed, for the tables as they are.
        guard: Gives the turn to use the one connection, where all share it.
        init_lock: Gives the lock that those who create tables in this process take.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        names: TableNames,
        *,
        create_tables: bool,
        queries: QueriesFactory[Q],
        guard: Callable[[], AbstractAsyncContextManager[Any]] | None,
        init_lock: Callable[[], threading.Lock],
    ) -> None:
        self.engine = engine
        self.names = names
        self.create_tables = create_tables
        self.dialect: Dialect = dialect_of(engine.dialect)
        self.tables: SessionTables = query_tables(names)
        self._make_queries = queries
        self._guard = guard
        self._init_lock = init_lock
        self.word_index: WordIndex = WordIndex(self.tables, self.dialect)
        self._state = _state_of(engine.sync_engine, names)

    async def read(self, work: Callable[[Connection, Q], T]) -> T:
        """Run work that only reads, and is handed a connection and the statements."""
        return await self.retry(lambda: self._run(work, self._begin_read))

    @property
    def known_indexes(self) -> Known[frozenset[str] | None]:
        """The indexes that pages may use, as far as this process knows; None without tables."""
        return self._state.indexes

    @property
    def known_text(self) -> Known[TextIndex]:
        """Whether there is a text index, as far as this process knows."""
        return self._state.text

    @property
    def queue_waits(self) -> bool:
        """Whether this process has seen items of other sessions in the queue of the text index."""
        return self._state.queue_waits

    async def read_snapshot(self, work: Callable[[Connection, Q], T]) -> T:
        """Run work that only reads, all of it the same state of the database."""
        return await self.retry(lambda: self._run(work, self.dialect.begin_snapshot))

    async def write(self, work: Callable[[Connection, Q], T], *, catch_up: bool = True) -> T:
        """Run work as one transaction, again after a transient error, and settle it.

        Work that calls `connection.rollback()` last has written nothing.

        Args:
            work: The work.
            catch_up: Whether to index some of what waits in the queue of the text index, if there
                is one.
        """

        def committed(connection: Connection, queries: Q) -> T:
            result = work(connection, queries)
            connection.commit()
            return result

        result = await settle(self.retry(lambda: self._run(committed, self._begin_write)))
        if catch_up and self.known_text.believed is TextIndex.WRITE:
            await self.catch_up()
        return result

    async def catch_up(self, *, known: bool = False) -> None:
        """Index some of what other writers have put into the queue of the text index.

        It follows a write that is committed, so it raises no error: whoever got one would write
        again. What it leaves waits in the queue.

        Args:
            known: Whether it is known that something is in the queue.
        """

        def step(connection: Connection, _: Q) -> None:
            self.word_index.index_step(connection)
            connection.commit()

        self._state.queue_waits = False
        try:
            if known or await self.read(
                lambda connection, _: self.word_index.has_waiting(connection)
            ):
                await settle(self.retry(lambda: self._run(step, self._begin_write)))
        except Exception:  # a busy pool, a refused connection, a lost table
            logger.debug("the queue of the text index was not read", exc_info=True)

    def index_words(
        self, connection: Connection, ids: Sequence[str], most: int | None = None
    ) -> None:
        """Index what sessions that are locked have in the queue, if there is a text index."""
        if not ids or self.known_text.get(connection, self.tables) is not TextIndex.WRITE:
            return
        if self.word_index.index_own(connection, ids, most):
            self._state.queue_waits = True

    async def retry(
        self,
        operation: Callable[[], Awaitable[T]],
        *,
        prepare: bool = True,
        group: str = CORE,
    ) -> T:
        """Run an operation, again after transient errors: the only place that retries.

        There are ten attempts within some five seconds, then the last error is raised as it is. An
        operation that failed because tables have gone is run again when they have been created.

        Args:
            operation: What to run; it opens its own connection.
            prepare: Whether it needs the tables. If not, what it lacks is its own affair.
            group: The group of tables that it needs besides the core tables.

        Raises:
            TablesMissingError: If tables are missing and are not to be created.
        """
        groups = [CORE, group] if prepare or self.create_tables else []
        for delay in (*RETRY_DELAYS, None):
            preparing, pooled = False, self._state.pooled
            try:
                for each in groups:
                    if not self._is_ready(each):
                        preparing = True
                        await self._prepare(each)
                preparing = False
                return await operation()
            except DBAPIError as error:
                race = preparing and self.dialect.is_creation_race(error)
                if delay is None or not (
                    race or await self._is_worth_retrying(error, groups, pooled=pooled)
                ):
                    raise
                # Jitter keeps those who met from meeting again.
                await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311  # no secret
                if asyncio.current_task() in _abandoned:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def ensure(self, group: str = CORE) -> None:
        """Make sure, once per engine, that the core tables and those of a group are there.

        Features with tables of their own call this before `read` or `write`.

        Raises:
            TablesMissingError: If some are not, and they are not to be created.
        """
        await self.retry(_nothing, group=group)

    async def has_group(self, group: str) -> bool:
        """Whether all tables of a group exist.

        Raises:
            TablesMismatchError: If one was renamed.
        """

        def look(connection: Connection) -> bool:
            missing = find_missing(connection, self.names, (group,))
            if missing:
                check_not_renamed(connection, self.tables, missing)
            return not any(table.name in missing for table in self.tables.group(group).tables)

        return await self.look(look)

    async def look(self, work: Callable[[Connection], T]) -> T:
        """Run work that only reads, and that can do without the tables."""
        return await self.retry(lambda: self._connect(work), prepare=False)

    @property
    def is_prepared(self) -> bool:
        """Whether all core tables have been seen."""
        return self._is_ready(CORE)

    def _is_ready(self, group: str) -> bool:
        checked = self._state.checked.get(group)
        return checked is not None and checked() is self.engine.sync_engine.pool

    async def _is_worth_retrying(
        self, error: DBAPIError, groups: list[str], *, pooled: bool
    ) -> bool:
        """Whether an operation that failed may succeed when it is run again.

        If tables have gone, the groups in use are added to those that the operation needs.

        Args:
            error: Its error.
            groups: The groups of tables that it needs.
            pooled: Whether a pooler had already been seen when it began. Operations that began
                together can all meet it.
        """
        dialect, state = self.dialect, self._state
        if dialect.is_transient(error):
            return True
        if dialect.lost_its_statement(error) and not pooled:
            state.pooled = True
            return True
        missing = (
            (ProgrammingError, OperationalError) if dialect.single_writer else ProgrammingError
        )
        if isinstance(error, missing) and state.text.forget():
            return True  # The tables of the text index may have been dropped.
        if (
            not self.is_prepared
            or error.connection_invalidated
            or not isinstance(error, (ProgrammingError, OperationalError))
        ):
            # Not for want of tables. Looking would put a refused connection in the error's place,
            # as if nothing had been written, when a commit may have been.
            return False
        in_use = {CORE: None, **state.checked}
        if groups:
            found = await self._connect(lambda connection: groups_in_use(connection, self.names))
            in_use |= dict.fromkeys(found)
        if not await self._connect(lambda connection: find_missing(connection, self.names, in_use)):
            return False
        if groups:
            groups.extend(in_use)
        state.checked.clear()
        return True

    async def _prepare(self, group: str) -> None:
        """Check the tables of a group, and create what is missing if that was asked for."""

        def prepare(connection: Connection) -> None:
            if group == CORE:
                self.dialect.check_settings(connection)
            check_columns(connection, *self.tables.group(group).tables)
            missing = find_wanted(connection, self.names, group, creates=self.create_tables)
            if group == CORE:
                check_links(connection, self.tables)
                check_beside(connection, self.tables, missing)
            if missing:
                check_not_renamed(connection, self.tables, missing)
                check_copies(connection, self.tables)
                check_names(connection, self.tables, group, missing)
            check_ids(connection, self.tables, group, missing)
            if missing and not self.create_tables:
                tables = {table.name for table in self.tables.group(group).tables}
                raise TablesMissingError(missing, only_triggers=tables.isdisjoint(missing))
            if missing:
                create_missing(connection, self.names, group)
            self._state.indexes.look(connection, self.tables)
            self._state.native_ids = self.dialect.parent_id(connection, self.tables.sessions)[1]
            connection.commit()

        lock = self._init_lock()
        while not lock.acquire(blocking=False):  # noqa: ASYNC110  # shared by several event loops
            await asyncio.sleep(0.005)
        try:
            if not self._is_ready(group):
                pool = self.engine.sync_engine.pool
                await settle(self._connect(prepare))
                if group != CORE:
                    forget_text_index()
                self._state.checked[group] = weakref.ref(pool)
        finally:
            lock.release()

    def _begin_read(self, connection: Connection) -> None:
        if self.dialect.autocommit_reads and not self._state.pooled:
            connection.execution_options(isolation_level="AUTOCOMMIT")

    def _begin_write(self, connection: Connection) -> None:
        if self.dialect.write_isolation is not None:
            connection.execution_options(isolation_level=self.dialect.write_isolation)
        elif self.dialect.commits_each(connection):
            level = connection.default_isolation_level
            connection.execution_options(isolation_level=level)

    async def _run(
        self, work: Callable[[Connection, Q], T], begin: Callable[[Connection], None]
    ) -> T:
        queries = self._queries()

        def run(connection: Connection) -> T:
            begin(connection)
            return work(connection, queries)

        return await self._connect(run)

    def _queries(self) -> Q:
        native, known = self._state.native_ids, self._state.queries
        queries: Q | None = known.get((self._make_queries, native))
        if queries is None:
            queries = self._make_queries(self.dialect, self.tables, native_ids=native)
            known[self._make_queries, native] = queries
        return queries

    async def _connect(self, work: Callable[[Connection], T]) -> T:
        engine = self.engine.sync_engine

        def unit() -> T:
            with self.dialect.connect(engine) as connection:
                # Between two transactions, a pooler can change the server connection.
                if self._state.pooled and self.dialect.commits_each(connection):
                    connection.execution_options(isolation_level=self.dialect.write_isolation)
                self.dialect.check_connection(connection)
                return work(connection)

        # One hop into SQLAlchemy's greenlet for connecting, working and closing.
        if self._guard is None:
            return await greenlet_spawn(unit)
        async with self._guard():
            # A cancelled caller's rollback must not run on when the next one has the connection.
            return await settle(greenlet_spawn(unit))


async def _nothing() -> None:
    """An operation that needs the tables and nothing else."""

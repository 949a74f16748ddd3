"""The only module that uses private members of the SDK. They are checked when it is imported.

`session` builds on `StoredSession`, which overrides these methods of `SQLAlchemySession`:

| member | because |
|---|---|
| `_ensure_tables` | our tables are created with the SDK's, once per engine, not per instance |
| `_lock_session` | every writer of the SDK passes here: isolation level, scope, `must_exist` |
| `_session` | every connection of the SDK passes here: its event loop; names of missing tables |
| `_run_sqlite_write_with_retry` | every mutation passes here: transient errors are retried |
| `_clear_session` | `on_clear="keep"`, and `must_exist` keeps the session |
| `_get_compaction_snapshot` | the SDK's answers only for the exact type `SQLAlchemySession` |

and adds `_atomic_replace_items`: without it, compaction would clear the session and its metadata.
`add_items` runs the SDK's statements on a connection: the SDK's ORM session, which gives each one a
greenlet of its own, takes longer than the statements.

A release of the SDK that lacks one of these members, or calls it no more, is refused on import, by
an error that names the member. Without the check, it would fail later, or lose metadata silently.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from types import CodeType
from typing import Any, TypeVar

import agents  # noqa: F401  # first and whole: its parts do not wait for another thread's import
from agents.extensions.memory.sqlalchemy_session import SQLAlchemySession
from agents.items import TResponseInputItem
from agents.memory import OpenAIResponsesCompactionSession, SessionSettings
from agents.memory.session_settings import resolve_session_limit
from agents.run_state import RunState
from agents.usage import Usage
from sqlalchemy import Connection, event, select
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from .core.database import settle
from .core.features import check_history_may_change, end_history, hold
from .core.messages import delete_messages
from .core.tables import TableNames
from .dialects import dialect_of
from .dialects.urls import check_engine, check_loop, owner_of, with_transactions
from .query.queries import Queries
from .scope import ScopedStore, open_store
from .types import MetadataLimits, OnClear

T = TypeVar("T")

MEMBERS = (
    "_clear_session",
    "_configure_sqlite_engine",
    "_deserialize_item",
    "_ensure_tables",
    "_get_compaction_snapshot",
    "_get_table_init_lock",
    "_lock_session",
    "_run_sqlite_write_with_retry",
    "_serialize_item",
    "_session",
    "_sqlite_connection_locks",
)
"""Members of `SQLAlchemySession` that are used here."""

HOOKS = (
    "_atomic_replace_items",
    "_clear_session",
    "_ensure_tables",
    "_get_compaction_snapshot",
    "_lock_session",
    "_run_sqlite_write_with_retry",
    "_session",
)
"""Members that `StoredSession` defines. If the SDK stopped calling them, nothing would fail."""

STATE = {
    "session_id",
    "session_settings",
    "_engine",
    "_ensure_ascii",
    "_connection_lock",
    "_init_lock",
    "_metadata",
    "_sessions",
    "_messages",
    "_session_factory",
    "_create_tables",
}
"""The attributes that the constructor of `SQLAlchemySession` sets."""


def sdk_store(
    engine: AsyncEngine,
    names: TableNames,
    *,
    create_tables: bool,
    limits: MetadataLimits | None = None,
) -> ScopedStore:
    """Configures and guards connections as the SDK does."""
    check_engine(engine)
    SQLAlchemySession._configure_sqlite_engine(owner_of(engine))
    lock = _turns_on(engine)
    return open_store(
        engine,
        names,
        create_tables=create_tables,
        limits=limits,
        guard=None if lock is None else partial(_holding, lock),
        init_lock=partial(
            SQLAlchemySession._get_table_init_lock, engine, names.sessions, names.messages
        ),
    )


def usage_of(state: RunState[Any, Any]) -> Usage | None:
    """Returns the usage of a run that is about to be resumed; the run adds to it.

    Returns None if a release of the SDK keeps it elsewhere.
    """
    return getattr(getattr(state, "_context", None), "usage", None)


@asynccontextmanager
async def _holding(lock: threading.Lock) -> AsyncIterator[None]:
    """Takes the SDK's turn on the only connection of an in-memory SQLite database."""
    while not lock.acquire(blocking=False):  # noqa: ASYNC110  # shared by several event loops
        await asyncio.sleep(0.001)
    try:
        yield
    finally:
        lock.release()


def _refuse(problems: Iterator[str]) -> None:
    told = "; ".join(problems)
    if told:
        raise ImportError(
            f"agents-session-metadata {version('agents-session-metadata')} does not know the "
            f"SQLAlchemySession of openai-agents {version('openai-agents')}: {told}"
        )


def _problems() -> Iterator[str]:
    yield from (f"it has no {name}" for name in MEMBERS if not hasattr(SQLAlchemySession, name))
    named = {
        name
        for kind in (SQLAlchemySession, OpenAIResponsesCompactionSession)
        for member in vars(kind).values()
        for name in _names(getattr(inspect.unwrap(member), "__code__", None))
    }
    # Without any, the SDK was compiled, and cannot be looked into.
    yield from (f"it does not call {name}" for name in HOOKS if named and name not in named)


def _names(code: object) -> Iterator[str]:
    if isinstance(code, CodeType):
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, str):
                yield constant
            else:
                yield from _names(constant)


_refuse(_problems())


@dataclass(frozen=True)
class NothingToCompact:
    """The answer of `_get_compaction_snapshot` if the history must not change.

    Automatic compaction finds nothing in it that the model has seen, and is skipped.
    """

    items: tuple[Any, ...] = ()
    complete: bool = True

    async def replace_suffix(self, start: int, output: list[Any]) -> bool:  # noqa: ARG002  # all
        return False


class _CheckedSession(Session):
    """An ORM session of the SDK that checks and begins its connection as `Database` does."""


@event.listens_for(_CheckedSession, "after_begin")
def _begin(session: Session, transaction: object, connection: Connection) -> None:  # noqa: ARG001  # all
    dialect = dialect_of(connection.dialect)
    dialect.check_connection(connection)
    dialect.begin(connection)


def _turns_on(engine: AsyncEngine) -> threading.Lock | None:
    """Returns the SDK's lock for the connection of an engine, if it has only one."""
    return SQLAlchemySession._sqlite_connection_locks.get(id(owner_of(engine).sync_engine))


def _writing(engine: AsyncEngine) -> dict[str, Any]:
    """Returns execution options with the isolation level of the dialect for writing.

    The level of the engine does not count: a snapshot from before the lock would show a former
    owner of the session.
    """
    level = dialect_of(engine.dialect).write_isolation
    return {} if level is None else {"isolation_level": level}


class StoredSession(SQLAlchemySession):
    """The SDK's session on a store: shared tables, retries, scope, atomic replacement of items."""

    def __init__(
        self,
        session_id: str,
        store: ScopedStore,
        *,
        session_settings: SessionSettings | dict[str, Any] | None,
        ensure_ascii: bool,
        on_clear: OnClear,
        **kwargs: Any,
    ) -> None:
        database, names = store.database, store.database.names
        engine = database.engine
        typed = session_settings is None or isinstance(session_settings, SessionSettings)
        if _constructor_is_known(engine) and (typed and not kwargs):
            # What the SDK's constructor does, less the table objects that it makes each time.
            self.session_id = session_id
            settings: Any = session_settings or SessionSettings()
            self.session_settings: SessionSettings | None = settings
            self._engine = engine
            self._ensure_ascii = ensure_ascii
            self._init_lock = (
                self._get_table_init_lock(engine, names.sessions, names.messages)
                if database.create_tables
                else None
            )
            self._create_tables = database.create_tables
        else:
            super().__init__(
                session_id,
                engine=engine,
                create_tables=database.create_tables,
                sessions_table=names.sessions,
                messages_table=names.messages,
                session_settings=session_settings,
                ensure_ascii=ensure_ascii,
                **kwargs,
            )
        self._connection_lock = _turns_on(engine)
        self._session_factory = async_sessionmaker(
            with_transactions(engine), expire_on_commit=False, sync_session_class=_CheckedSession
        )
        # Shared table objects: with its own, each instance would miss SQLAlchemy's statement cache.
        tables = database.tables
        self._metadata = tables.sessions.metadata
        self._sessions = tables.sessions
        self._messages = tables.messages
        self._store = store
        self._on_clear: OnClear = on_clear
        self._must_exist = False

    @property
    def _settings(self) -> dict[str, Any]:
        return {
            "on_clear": self._on_clear,
            "session_settings": self.session_settings,
            "ensure_ascii": self._ensure_ascii,
        }

    async def _ensure_tables(self) -> None:
        # A scope needs metadata.
        if self._create_tables or self._store.is_restricted:
            await self._store.database.ensure()
            self._create_tables = False

    async def _run_sqlite_write_with_retry(self, operation: Callable[[], Awaitable[T]]) -> T:
        return await self._store.database.retry(operation, prepare=False)

    async def _lock_session(self, sess: AsyncSession, *, create: bool = False) -> bool:
        if create or self._store.is_restricted:
            lock = self._enter if create else partial(self._store.lock, session_id=self.session_id)
            return await self._locked(sess, lock)
        if options := _writing(self._engine):
            await sess.connection(execution_options=options)
        if await super()._lock_session(sess):
            return True
        replaced = partial(self._store.rows.lock_replaced, session_id=self.session_id)
        return await (await sess.connection()).run_sync(replaced)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[AsyncSession]:
        check_loop(self._engine)
        try:
            async with super()._session() as session:
                yield session
        except (OperationalError, ProgrammingError) as error:
            await self._store.database.check_history(error)
            raise

    async def _whole(self, read: Callable[[], Awaitable[T]]) -> T:
        """Finishes a read: a cancelled one would close the connection of a database in memory."""
        return await (read() if self._connection_lock is None else settle(read()))

    async def _locked(self, sess: AsyncSession, work: Callable[[Connection], T]) -> T:
        """Must begin a transaction, and `work` must begin with a lock."""
        connection = await sess.connection(execution_options=_writing(self._engine))
        return await connection.run_sync(work)

    def _enter(self, connection: Connection) -> bool:
        """Locks the session, and creates it unless it must exist. Always returns True."""
        self._store.enter_history(connection, self.session_id, must_exist=self._must_exist)
        return True

    async def _items_in_scope(self, limit: int | None) -> list[TResponseInputItem]:
        most = resolve_session_limit(limit, self.session_settings)
        messages, window = self._messages, most

        def read(connection: Connection, queries: Queries) -> list[str]:
            newest: Any = (
                select(messages.c.message_data)
                .where(messages.c.session_id == self.session_id)
                .order_by(messages.c.created_at.desc(), messages.c.id.desc())
                .limit(window)
            )
            statement, parameters = self._store.question(queries, newest, messages.c.session_id)
            return list(connection.scalars(statement, parameters))

        while True:
            texts, items = await self._store.database.read(read), list[TResponseInputItem]()
            for text in reversed(texts):
                with suppress(json.JSONDecodeError):  # As in the SDK.
                    items.append(await self._deserialize_item(text))
            if most is None or window is None or most <= 0:
                return items
            if len(items) >= most or len(texts) < window:
                return items[-most:]
            window *= 2  # Rows that are not JSON do not count.

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        if items:
            await self._write_items(items, self._enter)

    async def _write_items(
        self, items: list[TResponseInputItem], begin: Callable[[Connection], bool]
    ) -> None:
        """Writes nothing if `begin`, which must lock the session, returns False."""
        await self._ensure_tables()
        texts = [await self._serialize_item(item) for item in items]

        def write(connection: Connection) -> None:
            if begin(connection):
                self._store.insert_items(connection, self.session_id, texts)
                self._store.rows.touch(connection, self.session_id)

        async def in_transaction() -> None:
            async with self._session() as sess, sess.begin():
                await self._locked(sess, write)

        await settle(self._run_sqlite_write_with_retry(in_transaction))

    async def _clear_session(self) -> None:
        async with self._session() as sess, sess.begin():
            if await self._lock_session(sess):
                await (await sess.connection()).run_sync(self._clear)

    def _clear(self, connection: Connection) -> None:
        if self._on_clear == "delete" and not self._must_exist:
            self._store.rows.delete_session(connection, self.session_id)
        else:
            self._delete_history(connection, end_history)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Never returns False: compaction would then clear the session and add the items again."""

        def begin(connection: Connection) -> bool:
            if items:
                self._enter(connection)
            elif not self._store.lock(connection, self.session_id):
                return False
            self._delete_history(connection, check_history_may_change)
            return True

        await self._write_items(items, begin)
        return True

    def _delete_history(
        self, connection: Connection, before: Callable[[Any, Connection, str], None]
    ) -> None:
        before(self._store.database, connection, self.session_id)
        delete_messages(connection, self._store.database.tables, self.session_id)

    def _is_paused(self, connection: Connection) -> bool:
        return hold(self._store.database, connection, self.session_id) is not None

    async def _get_compaction_snapshot(self, limit: int, **kwargs: Any) -> Any:
        if await self._store.database.look(self._is_paused):
            return NothingToCompact()
        kind = type(self)
        for name in ("_serialize_item", "_deserialize_item"):
            # A subclass that transforms items may keep more than the SDK would replace.
            if getattr(kind, name) is not getattr(SQLAlchemySession, name):
                return None
        await self._ensure_tables()
        # The SDK answers for its own exact type only; this is such a view of the same state.
        view = SQLAlchemySession.__new__(SQLAlchemySession)
        vars(view).update(vars(self))
        view._lock_session = self._lock_to_compact  # type: ignore[method-assign]
        view._run_sqlite_write_with_retry = self._run_sqlite_write_with_retry  # type: ignore[method-assign]
        read = partial(SQLAlchemySession._get_compaction_snapshot, view, limit, **kwargs)
        snapshot = await self._whole(read)
        if self._store.scope and not await self._store.exists(self.session_id):
            return None
        return snapshot

    async def _lock_to_compact(self, sess: AsyncSession, *, create: bool = False) -> bool:
        if not await self._lock_session(sess, create=create):
            return False
        return not await (await sess.connection()).run_sync(self._is_paused)


_known_constructors: dict[type, bool] = {}


def _constructor_is_known(engine: AsyncEngine) -> bool:
    """True if the SDK's constructor sets exactly `STATE`, so that it need not be called."""
    kind = SQLAlchemySession
    if kind not in _known_constructors:
        found = set(vars(kind("", engine=engine)))
        _refuse(f"its constructor does not set {name}" for name in sorted(STATE - found))
        _known_constructors[kind] = found == STATE
    return _known_constructors[kind]

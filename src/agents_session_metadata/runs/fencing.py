"""Sessions of claimed runs, which write only while the lease is held."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

from agents import SQLiteSession
from agents.extensions.memory import SQLAlchemySession
from agents.items import TResponseInputItem
from sqlalchemy import Connection, Table
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata.core.database import insist, settle
from agents_session_metadata.core.messages import newest_id, read_history
from agents_session_metadata.dialects.urls import is_file_of, may_be_same
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.session import SQLAlchemyMetadataSession
from agents_session_metadata.text import quoted

from .states import Progress

_STORED = (SQLAlchemySession, SQLiteSession)
"""Sessions that show where they are stored, including those of this package."""


def underlying(session: Any) -> Iterator[Any]:
    """Yields a session and every session inside it, whatever attribute holds it."""
    seen: dict[int, Any] = {}
    waiting = [session]
    while waiting:
        each = waiting.pop(0)
        if id(each) not in seen and callable(getattr(each, "add_items", None)):
            seen[id(each)] = each
            yield each
            waiting += _attributes(each)


def _attributes(wrapper: Any) -> Iterator[Any]:
    # Not `getattr`: a wrapper may forward it to the session inside.
    yield from getattr(wrapper, "__dict__", {}).values()
    for kind in type(wrapper).__mro__:
        names = vars(kind).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            with suppress(AttributeError):
                yield object.__getattribute__(wrapper, name)


def is_encrypted(session: Any) -> bool:
    # Importing it would need the library that it encrypts with.
    module = sys.modules.get("agents.extensions.memory.encrypt_session")
    kind = getattr(module, "EncryptedSession", None)
    return kind is not None and any(isinstance(each, kind) for each in underlying(session))


def sessions_inside(session: Any, store: ScopedStore) -> list[SQLAlchemyMetadataSession]:
    """Returns the sessions of this package in the store's tables that are inside a session.

    Raises `ValueError` if all sessions found inside have another id or are in other tables.
    """
    stored = [each for each in underlying(session) if isinstance(each, _STORED)]
    found = [
        each for each in stored if each.session_id == session.session_id and _may_be_in(each, store)
    ]
    if stored and not found:
        raise _elsewhere(session)
    return [each for each in found if isinstance(each, SQLAlchemyMetadataSession)]


async def check_schema(session: Any, store: ScopedStore) -> None:
    """Raises `ValueError` if the session's engine finds the tables in another schema."""
    own, table = store.database.engine, store.database.tables.sessions
    engines = [each.engine for each in underlying(session) if isinstance(each, SQLAlchemySession)]

    def find(connection: Connection) -> str:
        default = connection.dialect.default_schema_name or ""
        quoted_default = f"{connection.dialect.identifier_preparer.quote(default)}."
        return store.database.dialect.schema_of(connection, table) or quoted_default

    async def found_by(engine: AsyncEngine) -> str:
        async with engine.connect() as connection:
            return await connection.run_sync(find)

    for engine in engines:
        if engine.pool is own.pool:
            # SQLite in memory has one connection, which may be in use.
            is_same = _translated(engine, table) == _translated(own, table)
        else:
            is_same = await found_by(engine) == await found_by(own)
        if not is_same:
            raise _elsewhere(session)


def _translated(engine: AsyncEngine, table: Table) -> str | None:
    schemas = engine.get_execution_options().get("schema_translate_map") or {}
    return schemas.get(table.schema, table.schema)


def _elsewhere(session: Any) -> ValueError:
    return ValueError(
        f"session {quoted(session.session_id)} is in another database, schema or tables than the "
        "catalog of the paused runs, or is wrapped around a session with another id"
    )


def _may_be_in(session: SQLAlchemySession | SQLiteSession, store: ScopedStore) -> bool:
    """Returns True if in doubt, because one server can have several addresses."""
    names, engine = store.database.names, store.database.engine
    if isinstance(session, SQLAlchemyMetadataSession) and session._store.database.names != names:
        return False
    if isinstance(session, SQLiteSession):
        tables = {session.sessions_table, session.messages_table}
        same_database = is_file_of(engine.url, str(session.db_path))
    else:
        tables = {each.name for each in vars(session).values() if isinstance(each, Table)}
        same_database = session.engine.sync_engine is engine.sync_engine or may_be_same(
            session.engine.url, engine.url
        )
    return same_database and {names.sessions, names.messages} <= tables


class _FencedStore(ScopedStore):
    """A store that refuses to write to the claimed session once the lease is lost."""

    def __init__(
        self, store: ScopedStore, session_id: str, check: Callable[[Connection], None]
    ) -> None:
        super().__init__(store.database, store.limits, store.scope)
        self._session_id = session_id
        self._check = check

    @property
    def is_restricted(self) -> bool:
        return True

    def admits(self, connection: Connection, session_id: str) -> bool:
        return self._is_held(connection, session_id) and super().admits(connection, session_id)

    def admits_new(self, connection: Connection, session_id: str) -> bool:
        return self._is_held(connection, session_id) and super().admits_new(connection, session_id)

    def _is_held(self, connection: Connection, session_id: str) -> bool:
        """Raises if not. A claimed session that is new was deleted in the meantime."""
        if session_id == self._session_id:
            self._check(connection)
        return True


@dataclass
class Adding:
    """Items that are being added to the history.

    `after` is its newest item before the first attempt, once that is known.
    """

    items: list[TResponseInputItem]
    after: int | None = None


class ClaimedSession(SQLAlchemyMetadataSession):
    """The session of a claimed run. `adding` are items that are being added, or failed to be."""

    progress: Progress
    adding: Adding | None

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Delays a cancellation of the caller to its next wait after the items are added.

        A turn that pauses the run then still pauses it.
        """
        if items:
            await self._add(Adding(items))

    async def add_failed(self) -> None:
        if self.adding is not None:
            await self._add(self.adding)

    async def _add(self, adding: Adding) -> None:
        add_once = partial(super().add_items, adding.items)
        self.progress.begin_to_add()

        async def add() -> None:
            self.adding = adding
            await insist(add_once)
            self.adding = None
            self.progress.add(adding.items)

        try:
            await settle(add())
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None:
                raise
            if sys.version_info >= (3, 11):
                task.uncancel()
            asyncio.get_running_loop().call_soon(task.cancel)

    def _enter(self, connection: Connection) -> bool:
        """Locks the session and returns True if the items are still to be added.

        A commit can succeed although an error was raised, and even after that. The history that is
        found under the lock is final.
        """
        entered, adding = super()._enter(connection), self.adding
        if adding is None:
            return entered
        database = self._store.database
        if adding.after is None:
            adding.after = newest_id(connection, database.tables, self.session_id)
            return entered
        first = json.loads(json.dumps(adding.items[0]))
        where = connection, database.tables, database.dialect, self.session_id, adding.after
        return all(each.item != first for each in read_history(*where))


@dataclass(frozen=True)
class RunSession:
    """The session of a resumed run, as the SDK gets it.

    `own` is None if the caller passed a wrapper or a session of another kind. The run must stay in
    the scopes of `stores`, besides that of the catalog. `end` restores the session that the caller
    passed.
    """

    session: Any = None
    own: ClaimedSession | None = None
    stores: Sequence[ScopedStore] = ()
    end: Callable[[], None] = lambda: None


def claimed_session(
    store: ScopedStore,
    session_id: str,
    check: Callable[[Connection], None],
    progress: Progress,
    *,
    must_exist: bool = True,
    **arguments: Any,
) -> RunSession:
    """With `must_exist`, a deleted session raises `SessionNotFoundError`, not `RunClaimedError`."""
    fenced = _FencedStore(store, session_id, check)
    session = ClaimedSession._in_store(session_id, fenced, must_exist=must_exist, **arguments)
    session.progress, session.adding = progress, None
    return RunSession(session, own=session)


def fence(
    session: Any,
    session_id: str,
    store: ScopedStore,
    check: Callable[[Connection], None],
    check_now: Callable[[], Awaitable[None]],
    progress: Progress,
) -> RunSession:
    """Restricts a session that the caller passed to writing while the lease is held.

    A session of this package calls `check` in the transaction in which it writes. For any other
    session, `check_now` runs in a transaction of its own before each write.
    """
    is_session = isinstance(getattr(session, "session_id", None), str)
    if not is_session or not callable(getattr(session, "add_items", None)):
        raise TypeError(f"session must be a session, got {type(session).__name__}")
    if session.session_id != session_id:
        raise ValueError(
            f"the paused run belongs to session {quoted(session_id)}, got a session with the id "
            f"{quoted(session.session_id)}"
        )
    stores = [(each, each._store) for each in sessions_inside(session, store)]
    if any(isinstance(own, _FencedStore) for _, own in stores):
        raise ValueError(
            f"another claim of this process uses the same object of session {quoted(session_id)}; "
            "pass another one, such as a new one of the catalog"
        )
    if type(session) is SQLAlchemyMetadataSession:
        # Without a wrapper around it, one that sees the items can take its place.
        own_store, settings = session._store, session._settings
        must_exist = session._must_exist
        made = claimed_session(
            own_store, session_id, check, progress, must_exist=must_exist, **settings
        )
        return replace(made, stores=[own_store])

    def check_wrapped(connection: Connection) -> None:
        check(connection)
        progress.use_wrapped()

    async def check_wrapped_now() -> None:
        progress.use_wrapped()
        await check_now()

    for each, own in stores:
        each._store = _FencedStore(own, session_id, check_wrapped)

    def end() -> None:
        for each, own in stores:
            each._store = own

    given = session if stores else _CheckedSession(session, check_wrapped_now)
    return RunSession(given, stores=[own for _, own in stores], end=end)


class _CheckedSession:
    """A session of another kind, with a check before each write."""

    def __init__(self, session: Any, check: Callable[[], Awaitable[None]]) -> None:
        self._given = session
        self.session_id: str = session.session_id
        self.session_settings: Any = getattr(session, "session_settings", None)
        self.get_items: Any = session.get_items
        self.add_items: Any = _checked(session.add_items, check)
        self.pop_item: Any = _checked(session.pop_item, check)
        self.clear_session: Any = _checked(session.clear_session, check)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._given, name)


def _checked(method: Any, check: Callable[[], Awaitable[None]]) -> Any:
    # The SDK looks at the signatures of the methods.
    @wraps(method)
    async def checked(*args: Any, **kwargs: Any) -> Any:
        await check()
        return await method(*args, **kwargs)

    return checked

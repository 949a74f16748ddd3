"""The session of a claimed run: it writes only while the lease is held."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

from agents.items import TResponseInputItem
from sqlalchemy import Connection

from agents_session_metadata.quoting import quoted
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.session import SQLAlchemyMetadataSession
from agents_session_metadata.storage.database import insist, settle
from agents_session_metadata.storage.messages import newest_id, read_history

from .given_sessions import sessions_inside
from .progress import Progress


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
        """It is."""
        return True

    def admits(self, connection: Connection, session_id: str) -> bool:
        """As in the plain store, if the lease is still held."""
        if session_id == self._session_id:
            self._check(connection)
        return super().admits(connection, session_id)

    def admits_new(self, connection: Connection, session_id: str) -> bool:
        """As in the plain store, if the session is not the claimed one, which was deleted then."""
        if session_id == self._session_id:
            self._check(connection)
        return super().admits_new(connection, session_id)


@dataclass
class Adding:
    """Items that are being added.

    Attributes:
        items: The items.
        after: The newest item of the history before the first attempt, once that is known.
    """

    items: list[TResponseInputItem]
    after: int | None = None


class ClaimedSession(SQLAlchemyMetadataSession):
    """The session of a claimed run.

    Attributes:
        progress: What is told of the items that the run adds.
        adding: What is being added, or could not be added.
    """

    progress: Progress
    adding: Adding | None

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """As in the session; what was added is remembered.

        If the caller is cancelled, it first goes on as far as it can without waiting, so that a
        turn that pauses the run does.
        """
        if items:
            await self._add(Adding(items))

    async def add_failed(self) -> None:
        """Add what could not be added."""
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
        """Lock the session; give whether the items are to be added.

        A commit can succeed although an error was raised, also after that. What is found under the
        lock is final.
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
    """The session of a run that is resumed.

    Attributes:
        session: What the SDK gets.
        own: The same, unless the caller passed a wrapper or a session of another kind.
        stores: Stores in whose scopes the run has to stay, beside that of the catalog.
        end: Ends what was done to a session that the caller passed.
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
    """The session of a claimed run.

    Args:
        store: The store of the catalog or of the session that the caller passed.
        session_id: Its id.
        check: Raises if the lease is lost.
        progress: What is told of the items that the run adds.
        must_exist: Whether it says that the session was deleted, instead of that the claim is lost.
        **arguments: The settings of the session.
    """
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
    """Let a session of the caller's own write only while the lease is held.

    A session of this package checks that in the transaction in which it writes. Before any other
    session writes, it is checked in a transaction of its own.

    Args:
        session: The session, or a wrapper around it.
        session_id: The id that it has to have.
        store: The store of the catalog.
        check: Raises if the lease is lost.
        check_now: The same in a transaction of its own.
        progress: What is told that a wrapped session was used.

    Raises:
        TypeError: If it is not a session.
        ValueError: If the session has another id, is in other tables, or is used by another claim.
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
    """A session that is not known to be one of this package, with a check before each write."""

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

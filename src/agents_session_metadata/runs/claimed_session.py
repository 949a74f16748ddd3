"""The session of a claimed run: it writes only while the lease is held."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from agents.items import TResponseInputItem
from sqlalchemy import Connection

from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.session import SQLAlchemyMetadataSession
from agents_session_metadata.storage.database import insist, settle
from agents_session_metadata.storage.messages import newest_id, read_history

from .progress import Progress
from .states import underlying


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


def claimed_session(
    store: ScopedStore,
    session_id: str,
    check: Callable[[Connection], None],
    progress: Progress,
    **arguments: Any,
) -> ClaimedSession:
    """The session of a claimed run, which must exist.

    Args:
        store: The store of the catalog.
        session_id: Its id.
        check: Raises if the lease is lost.
        progress: What is told of the items that the run adds.
        **arguments: The settings of the catalog's sessions.
    """
    fenced = _FencedStore(store, session_id, check)
    session = ClaimedSession._in_store(session_id, fenced, must_exist=True, **arguments)
    session.progress, session.adding = progress, None
    return session


def fence(session: Any, session_id: str, check: Callable[[Connection], None]) -> Callable[[], None]:
    """Let a session of the caller's own write only while the lease is held.

    Args:
        session: The session, or a wrapper around it. One of another package is not changed.
        session_id: Its id.
        check: Raises if the lease is lost.

    Returns:
        A function that ends this.
    """
    inside = [each for each in underlying(session) if isinstance(each, SQLAlchemyMetadataSession)]
    stores = [(each, each._store) for each in inside]
    for each, store in stores:
        each._store = _FencedStore(store, session_id, check)

    def end() -> None:
        for each, store in stores:
            each._store = store

    return end

"""`SQLAlchemyMetadataSession`: the SDK's session, with metadata.

Its base class in `_sdk` overrides the private methods of the SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import agents  # noqa: F401  # first and whole: its parts do not wait for another thread's import
from agents.items import TResponseInputItem
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from ._sdk import StoredSession, open_store
from .catalog import SessionCatalog
from .dialects.urls import create_engine, shown_url
from .history.rewind import Cut, rewind
from .query.filters import Where
from .scope import MISSING, ScopedStore
from .text import quoted
from .types import ItemInfo, JSONValue, Metadata, SessionOptions
from .values import check_id, id_problem

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class SQLAlchemyMetadataSession(StoredSession):
    """The SDK's `SQLAlchemySession` with metadata.

    ```python
    session = SQLAlchemyMetadataSession.from_url(
        "chat-1", url="sqlite+aiosqlite:///chat.db", create_tables=True
    )
    await session.set_metadata({"title": "Lisbon"})
    await Runner.run(agent, "Hello", session=session)
    ```

    It is a drop-in replacement: it takes the same arguments and stores messages in the same tables.
    Metadata is stored in separate tables and is deleted with the session.

    Metadata methods raise `TablesMissingError` if tables are missing and `create_tables` is off,
    and `ValueError`, before anything is written, if the session id is not valid for metadata.

    Args:
        session_id: The id of the session: 1 to 255 characters, valid UTF-8 without NUL. On SQLite
            and PostgreSQL, a session without metadata can have any id that the SDK allows.
        engine: An async engine for SQLite, PostgreSQL, MariaDB or MySQL.
        **options: As in `SessionOptions`. Others are passed to `SQLAlchemySession`.

    Raises:
        TypeError: If the id is not a string, `engine` is not an async engine, or `metadata_limits`
            is not `MetadataLimits`.
        UnsupportedDialectError: If the engine is for another database.
        ValueError: If `on_clear` is neither `"delete"` nor `"keep"`, or two tables have the same
            name.
    """

    def __init__(
        self,
        session_id: str,
        *,
        engine: AsyncEngine,
        **options: Unpack[SessionOptions],
    ) -> None:
        store, settings = open_store(engine, **options)
        super().__init__(session_id, store, **settings)

    @classmethod
    def _in_store(
        cls, session_id: str, store: ScopedStore, *, must_exist: bool, **settings: Any
    ) -> Self:
        session = cls.__new__(cls)
        StoredSession.__init__(session, session_id, store, must_exist=must_exist, **settings)
        return session

    @classmethod
    def from_url(  # type: ignore[override]  # the SDK's takes `**kwargs: Any`
        cls,
        session_id: str,
        *,
        url: str | URL,
        engine_kwargs: dict[str, Any] | None = None,
        **options: Unpack[SessionOptions],
    ) -> Self:
        """Create a session object with its own engine.

        Dispose the engine with `await session.engine.dispose()`. To share an engine between
        sessions, use `SessionCatalog`.

        Args:
            session_id: The id of the session.
            url: A database URL, such as `sqlite+aiosqlite:///chat.db`. A URL that names no driver,
                such as `sqlite:///chat.db`, `postgres://…` or `mysql://…`, gets the default driver.
            engine_kwargs: Arguments for `create_async_engine`.
            **options: As in the constructor.

        Returns:
            The session.

        Raises:
            ModuleNotFoundError: If the driver is not installed. The error names the extra.
            UnsupportedDialectError: If the URL is for another database.
            ValueError: If the URL is not valid.
        """
        return cls(session_id, engine=create_engine(url, engine_kwargs), **options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {quoted(self.session_id)} {shown_url(self.engine.url)}>"

    # ---- metadata ----

    async def set_metadata(
        self, values: Mapping[str, Any], *, remove: Iterable[str] = (), must_exist: bool = False
    ) -> None:
        """Store the given keys and remove others, in one transaction. Other keys do not change.

        ```python
        await session.set_metadata({"title": "Lisbon", "tags": ["travel"]}, remove=["draft"])
        ```

        Creates the session if it does not exist. An empty mapping writes nothing. Writing metadata
        does not change `updated_at`.

        Args:
            values: JSON values by key. `None` is a value; to remove a key, use `remove`.
            remove: Keys to delete. Keys that are not stored are ignored. Alone, without `values`,
                they do not create a session.
            must_exist: Whether to raise `SessionNotFoundError` instead of creating the session,
                also if `values` is empty.

        Raises:
            InvalidMetadataError: If a key or value cannot be stored.
            MetadataLimitError: If a limit is exceeded.
            ScopeError: If the call would change or delete a key of the scope.
            SessionNotFoundError: If the session must exist and does not, or is outside the scope.
            TypeError: If `remove` is a bare string.
            ValueError: If a key is both in `values` and in `remove`.
        """
        must_exist = must_exist or self._must_exist
        await self._store.set_metadata(
            self.session_id, values, must_exist=must_exist, remove=remove
        )

    async def get_metadata(self, keys: Iterable[str] | None = None) -> Metadata:
        """Read metadata. Values are equal to those stored, with the same types.

        Args:
            keys: The keys to read; all stored keys by default. `[]` means none.

        Returns:
            Without `keys`, all stored keys; empty if the session does not exist. With `keys`, every
            requested key, with `None` for missing keys.

        Raises:
            TypeError: If `keys` is a bare string.
        """
        return await self._store.get_metadata(self.session_id, keys)

    async def delete_metadata(self, keys: Iterable[str] | None = None) -> int:
        """Delete metadata. Messages do not change.

        Args:
            keys: The keys to delete; by default all keys except those of the scope. `[]` means
                none.

        Returns:
            The number of deleted keys.

        Raises:
            ScopeError: If a key of the scope is among `keys`.
            SessionNotFoundError: If the session is outside the scope.
            TypeError: If `keys` is a bare string.
        """
        return await self._store.delete_metadata(self.session_id, keys)

    async def edit_metadata(
        self, change: Callable[[Metadata], object], *, must_exist: bool = False
    ) -> Metadata:
        """Read, change and write metadata in one transaction.

        ```python
        def count(metadata):
            metadata["turns"] = metadata.get("turns", 0) + 1

        await session.edit_metadata(count)
        ```

        Concurrent edits of a session are serialized, across tasks, processes and machines. On
        different nodes of a Galera cluster, only edits that change the same key are serialized.
        Only changed keys are written. If nothing changed, nothing is written and no session is
        created. If the connection breaks during the commit, its outcome is unknown: read before you
        call this again.

        Args:
            change: A function, not a coroutine function, that changes the given dict in place. Its
                result is ignored. If it raises, nothing is written and the exception is raised. It
                can be called again after a conflict, so it should have no other effects.
            must_exist: Whether to raise `SessionNotFoundError` if the session does not exist. In
                that case, `change` is not called.

        Returns:
            The metadata afterwards.

        Raises:
            InvalidMetadataError: If a changed key or value cannot be stored.
            MetadataLimitError: If a limit is exceeded.
            ScopeError: If a key of the scope was changed.
            SessionNotFoundError: If the session must exist and does not, or is outside the scope.
            TypeError: If `change` returns an awaitable, or changes nothing and returns a new
                mapping instead of changing the given dict.
        """
        return await self._store.edit_metadata(
            self.session_id, change, must_exist=must_exist or self._must_exist
        )

    @overload
    async def find_sessions_by_metadata(
        self, key: str, value: JSONValue, *, limit: int | None = None
    ) -> list[str]: ...

    @overload
    async def find_sessions_by_metadata(
        self, key: Where, *, limit: int | None = None
    ) -> list[str]: ...

    async def find_sessions_by_metadata(
        self, key: str | Where, value: JSONValue = MISSING, *, limit: int | None = None
    ) -> list[str]:
        """Find the ids of sessions, this one and others, by a key and value or by a filter.

        ```python
        await session.find_sessions_by_metadata("owner_id", "u1")
        await session.find_sessions_by_metadata({"tags": {"$contains": "travel"}}, limit=10)
        ```

        Args:
            key: A metadata key, or a filter.
            value: The value of the key. `(key, value)` is the filter `{key: {"$eq": value}}`.
            limit: The maximum number of ids; no limit by default.

        Returns:
            Session ids, most recently active first; of sessions with the same `updated_at`, the
            greatest id first.

        Raises:
            InvalidFilterError: If the filter is invalid.
            TypeError: If there is a key without a value, or a filter with a value.
            ValueError: If `limit` is not a positive integer.
        """
        return await self._store.find_sessions(key, value, limit)

    @property
    def catalog(self) -> SessionCatalog:
        """A catalog with the engine, the tables and the scope of this session."""
        return SessionCatalog._sharing(self._store, **self._settings)

    # ---- history ----

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Read the messages and other items, as in the SDK. Outside the scope, there are none.

        Args:
            limit: The maximum number of newest items; by default the limit of `session_settings`,
                or no limit.

        Returns:
            The items, oldest first.
        """
        if not self._has_valid_id():
            return []
        if self._store.scope:
            return await self._items_in_scope(limit)
        return await self._read_history(partial(super().get_items, limit))

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items, as in the SDK. The session becomes the most recently active one.

        Args:
            items: The items, oldest first. An empty list does nothing.

        Raises:
            SessionNotFoundError: If the session exists outside the scope, or must exist and does
                not.
            ValueError: In a scope, and on MySQL and MariaDB, if the id cannot have metadata.
        """
        if items:
            if self._checks_id:
                check_id(self.session_id)
            await self._write_items(items, self._enter)

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the newest item, as in the SDK. Outside the scope, return None."""
        return await super().pop_item() if self._has_valid_id() else None

    async def clear_session(self) -> None:
        """Delete the session with its metadata; with `on_clear="keep"`, delete only the messages.

        On a session from `catalog.session(id, must_exist=True)`, it deletes only the messages.
        """
        if self._has_valid_id():
            await self._transact(self._clear)

    async def rewind(
        self,
        *,
        turns: int | None = None,
        before: int | None = None,
        expect_last: int | None = None,
    ) -> list[ItemInfo]:
        """Remove the last turns or items of the history in one transaction. Metadata is kept.

        A turn begins with a user message and ends before the next one. Items are in the order of
        `get_items`. An `OpenAIResponsesCompactionSession` around this session keeps the removed
        items in memory: create a new one afterwards. `updated_at` changes if an item is removed.

        Args:
            turns: The number of turns to remove; all turns if there are fewer. Items before the
                first user message are kept.
            before: The `item_id` of the first item to remove. Pass either this or `turns`.
            expect_last: The `item_id` that the newest item must have.

        Returns:
            The removed items, oldest first.

        Raises:
            SessionBusyError: If a run of the session works or is interrupted.
            SessionChangedError: If the newest item is not `expect_last`.
            SessionNotFoundError: If the session does not exist.
            SessionPausedError: If a run of the session waits.
            TypeError: If an argument is not an integer.
            ValueError: If the history does not have the item, if a call would be separated from its
                output, an approval from its request or reasoning from the item after it, or if the
                history is encrypted. Nothing is removed.
        """
        return await rewind(self._store, self.session_id, Cut(turns, before, expect_last))

    def _has_valid_id(self) -> bool:
        return not self._checks_id or id_problem(self.session_id) is None

    @property
    def _checks_id(self) -> bool:
        """If true, the id must be one that can have metadata."""
        return self._store.database.dialect.bounded_ids or bool(self._store.scope)

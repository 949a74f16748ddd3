"""The class `SessionCatalog`."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata.dialects.urls import create_engine, shown_url
from agents_session_metadata.scope import Scope, ScopedStore
from agents_session_metadata.storage.tables import table_names
from agents_session_metadata.types import (
    JSONValue,
    MetadataLimits,
    OnClear,
)

from .histories import Histories
from .indexes import Indexes
from .moving import Moving
from .questions import Questions
from .search import Searching
from .sessions import SingleSessions
from .usage import UsageLedger

if TYPE_CHECKING:
    from agents.memory import SessionSettings
    from typing_extensions import Self


class SessionCatalog(SingleSessions, Questions, Histories, Moving, Indexes, Searching, UsageLedger):
    """Every session in one database: create, list, filter, page, count, delete, scope.

    It also sees sessions that the plain SDK wrote; their metadata is empty. As an async context
    manager it disposes, at the end, the engine that `from_url` made, and does nothing else.

    Args:
        engine: An async engine for SQLite, PostgreSQL, MariaDB or MySQL.
        create_tables: Whether to create missing tables on first use.
        sessions_table: Name of the SDK's sessions table.
        messages_table: Name of the SDK's messages table.
        metadata_table: Name of the metadata table; by default the sessions table's and `_metadata`.
        metadata_limits: How much metadata a session may carry.
        on_clear: What `clear_session()` of the sessions it hands out does.
        session_settings: The SDK's settings for the sessions it hands out.
        ensure_ascii: As in the SDK, for the sessions it hands out.

    Raises:
        TypeError: If `engine` is not an async engine, or `metadata_limits` not `MetadataLimits`.
        UnsupportedDialectError: If the engine is for another database.
        ValueError: If `on_clear` is neither `"delete"` nor `"keep"`, or two tables have one name.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        create_tables: bool = False,
        sessions_table: str = "agent_sessions",
        messages_table: str = "agent_messages",
        metadata_table: str | None = None,
        metadata_limits: MetadataLimits | None = None,
        on_clear: OnClear = "delete",
        session_settings: SessionSettings | dict[str, Any] | None = None,
        ensure_ascii: bool = True,
    ) -> None:
        # The SDK may share the engine. It is imported late: that takes longer than most commands.
        from agents_session_metadata._sdk import check_on_clear, sdk_store

        check_on_clear(on_clear)
        names = table_names(sessions_table, messages_table, metadata_table)
        self._store = sdk_store(engine, names, create_tables=create_tables, limits=metadata_limits)
        self._session_arguments: dict[str, Any] = {
            "on_clear": on_clear,
            "session_settings": session_settings,
            "ensure_ascii": ensure_ascii,
        }
        self._owns_engine = False

    @classmethod
    def from_url(
        cls,
        url: str | URL,
        *,
        engine_kwargs: dict[str, Any] | None = None,
        create_tables: bool = False,
        sessions_table: str = "agent_sessions",
        messages_table: str = "agent_messages",
        metadata_table: str | None = None,
        metadata_limits: MetadataLimits | None = None,
        on_clear: OnClear = "delete",
        session_settings: SessionSettings | dict[str, Any] | None = None,
        ensure_ascii: bool = True,
        **kwargs: Any,
    ) -> Self:
        """Make a catalog with an engine of its own, which `async with` disposes.

        Args:
            url: A database URL, such as `postgresql+asyncpg://…`. A URL that names no driver, such
                as `sqlite:///chat.db`, `postgres://…` or `mysql://…`, gets an async one.
            engine_kwargs: Arguments for `create_async_engine`.
            create_tables: As in the constructor, as are all others.
            sessions_table: Name of the SDK's sessions table.
            messages_table: Name of the SDK's messages table.
            metadata_table: Name of the metadata table.
            metadata_limits: How much metadata a session may carry.
            on_clear: What `clear_session()` of the sessions it hands out does.
            session_settings: The SDK's settings for the sessions it hands out.
            ensure_ascii: As in the SDK, for the sessions it hands out.
            **kwargs: Further arguments for the constructor of a subclass.

        Returns:
            The catalog.

        Raises:
            ModuleNotFoundError: If the driver is not installed. The error names the extra.
            ValueError: If the URL is not valid.
        """
        catalog = cls(
            create_engine(url, engine_kwargs),
            create_tables=create_tables,
            sessions_table=sessions_table,
            messages_table=messages_table,
            metadata_table=metadata_table,
            metadata_limits=metadata_limits,
            on_clear=on_clear,
            session_settings=session_settings,
            ensure_ascii=ensure_ascii,
            **kwargs,
        )
        catalog._owns_engine = True
        return catalog

    @classmethod
    def _sharing(cls, store: ScopedStore, **session_arguments: Any) -> Self:
        catalog = cls.__new__(cls)
        catalog._store = store
        catalog._session_arguments = session_arguments
        catalog._owns_engine = False
        return catalog

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._owns_engine:
            await self.engine.dispose()

    def __repr__(self) -> str:
        scope = f" scoped by {', '.join(self._store.scope.values)}" if self._store.scope else ""
        return f"<{type(self).__name__} {shown_url(self.engine.url)}{scope}>"

    @property
    def engine(self) -> AsyncEngine:
        """The engine."""
        return self._store.database.engine

    def scoped(self, values: Mapping[str, JSONValue]) -> Self:
        """A catalog that sees only the sessions with these values.

        Every read, write, count and delete carries the scope, and so does every session object that
        it hands out. What it creates gets the values. A session outside does not exist: reading it
        gives `None`, `{}` or nothing, deleting it does nothing, other writing raises
        `SessionNotFoundError`. Scoping a scoped catalog narrows it.

        Args:
            values: Plain values by key; compared as `$eq` does.

        Returns:
            The scoped catalog, on the same engine.

        Raises:
            InvalidFilterError: If a key cannot exist or a value is not plain JSON.
            ScopeError: If this catalog's own scope fixes a key to another value.
            TypeError: If `values` is not a mapping.
            ValueError: If there is no value, or one is `None`.
        """
        scope = self._store.scope.narrowed(Scope.of(values))
        return self._sharing(self._store.within(scope), **self._session_arguments)

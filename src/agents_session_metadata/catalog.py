"""The class `SessionCatalog`."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata.core.store import check_on_clear
from agents_session_metadata.core.tables import table_names
from agents_session_metadata.dialects.urls import create_engine, shown_url
from agents_session_metadata.scope import Scope, ScopedStore
from agents_session_metadata.types import JSONValue, MetadataLimits, OnClear

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
    """All sessions in a database: create, list, filter, count, copy and delete them.

    Sessions of the plain SDK are included; their metadata is empty. As an async context manager,
    the catalog disposes the engine that `from_url` created.

    ```python
    async with SessionCatalog.from_url("sqlite:///chat.db", create_tables=True) as catalog:
        mine = catalog.scoped({"owner_id": "u1"})
        page = await mine.list_sessions({"tags": {"$contains": "travel"}}, limit=20)
    ```

    Args:
        engine: An async engine for SQLite, PostgreSQL, MariaDB or MySQL.
        create_tables: Whether to create missing tables on first use.
        sessions_table: Name of the SDK's sessions table.
        messages_table: Name of the SDK's messages table.
        metadata_table: Name of the metadata table; by default the name of the sessions table with
            `_metadata`.
        metadata_limits: Limits for the metadata of a session.
        on_clear: What `clear_session()` of returned sessions does.
        session_settings: The SDK's settings for returned sessions.
        ensure_ascii: As in the SDK, for returned sessions.

    Raises:
        TypeError: If `engine` is not an async engine, or `metadata_limits` not `MetadataLimits`.
        UnsupportedDialectError: If the engine is for another database.
        ValueError: If `on_clear` is neither `"delete"` nor `"keep"`, or two tables have the same
            name.
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
        from agents_session_metadata._sdk import sdk_store

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
        """Create a catalog with its own engine, which `async with` disposes.

        Args:
            url: A database URL, such as `postgresql+asyncpg://…`. A URL that names no driver, such
                as `sqlite:///chat.db`, `postgres://…` or `mysql://…`, gets the default driver.
            engine_kwargs: Arguments for `create_async_engine`.
            create_tables: As in the constructor, like all other arguments.
            sessions_table: Name of the SDK's sessions table.
            messages_table: Name of the SDK's messages table.
            metadata_table: Name of the metadata table.
            metadata_limits: Limits for the metadata of a session.
            on_clear: What `clear_session()` of returned sessions does.
            session_settings: The SDK's settings for returned sessions.
            ensure_ascii: As in the SDK, for returned sessions.
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
        """A catalog that is restricted to the sessions with these values.

        Every session object and cursor that the scoped catalog returns is restricted to the scope.
        New sessions get the values. A session outside the scope behaves as if it did not exist:
        reads return `None`, `{}` or nothing, deletes do nothing, and other writes raise
        `SessionNotFoundError`. The scope of a scoped catalog can only be narrowed.

        ```python
        mine = catalog.scoped({"owner_id": "u1"})
        ```

        Args:
            values: Values by key, compared as by `$eq`.

        Returns:
            The scoped catalog, on the same engine.

        Raises:
            InvalidFilterError: If a key cannot be stored or a value is not JSON.
            ScopeError: If the scope of this catalog has another value for a key.
            TypeError: If `values` is not a mapping.
            ValueError: If `values` is empty, or a value is `None`.
        """
        scope = self._store.scope.narrowed(Scope.of(values))
        return self._sharing(self._store.within(scope), **self._session_arguments)

"""`SessionCatalog`: every session in one database."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_args

from sqlalchemy import URL, Connection
from sqlalchemy.ext.asyncio import AsyncEngine

from .dialects.urls import create_engine, shown_url
from .errors import (
    InvalidFilterError,
    SessionExistsError,
    SessionNotFoundError,
)
from .keys import AGENT, normalize_agent
from .maintenance.retention import delete_matching, expired
from .maintenance.transfer import BATCH, Import, OnConflict, fork, read_records
from .query.conditions import IdIn, equality
from .query.cursors import decode_cursor, encode_cursor
from .query.derived_ids import derived_id
from .query.filters import Where, parse_values
from .query.logic import Condition
from .query.ordering import WALK, OrderBy, Ordering, Position
from .query.paging import Found, OnCorrupt, read_last, read_page
from .query.queries import Queries, Query
from .quoting import quoted
from .reports.statistics import read_statistics
from .scope import Scope, ScopedStore
from .storage.rows import check_id_type, storable_keys
from .storage.store import check_limit
from .storage.tables import table_names
from .types import (
    JSONValue,
    Metadata,
    MetadataLimits,
    OnClear,
    SessionInfo,
    SessionPage,
    Statistics,
    ValueCount,
)
from .values import SearchKey, decode_scalar, encode_metadata, is_text, key_problem

if TYPE_CHECKING:
    from agents.memory import SessionSettings
    from typing_extensions import Self

    from .session import SQLAlchemyMetadataSession

LONGEST_PAGE = 1000
_WALK_PAGE = 500
_DERIVED_IDS = 1000


class SessionCatalog:
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
        from ._sdk import sdk_store
        from .session import check_on_clear

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

    # ---- single sessions ----

    def session(self, session_id: str, *, must_exist: bool = False) -> SQLAlchemyMetadataSession:
        """A session object, to run agents with. No I/O; the session need not exist yet.

        Args:
            session_id: Its id.
            must_exist: Whether the object never creates the session. Writing metadata or history
                then raises `SessionNotFoundError` if the session does not exist, also when it was
                deleted in the meantime, and `clear_session()` empties the history but keeps the
                session and its metadata, whatever `on_clear` says. To end the session, use
                `delete_session`.

        Returns:
            The session, with this catalog's engine, tables, settings and scope.

        Raises:
            TypeError: If the id is not a string.
        """
        from .session import SQLAlchemyMetadataSession

        return SQLAlchemyMetadataSession._in_store(
            session_id, self._store, must_exist=must_exist, **self._session_arguments
        )

    async def create_session(
        self, session_id: str | None = None, *, metadata: Mapping[str, JSONValue] | None = None
    ) -> SQLAlchemyMetadataSession:
        """Create a session, its row and metadata in one transaction.

        Args:
            session_id: Its id; a random one by default.
            metadata: Its metadata; the scope's values are added.

        Returns:
            The session.

        Raises:
            InvalidMetadataError: If a key or value cannot be stored.
            MetadataLimitError: If a limit is exceeded.
            ScopeError: If the metadata contradicts the scope.
            SessionExistsError: If the id is taken, within the scope or outside.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If the id is not a string.
            ValueError: If the id cannot carry metadata.
        """
        name = str(uuid.uuid4()) if session_id is None else session_id
        if not await self._create(name, metadata or {}):
            raise SessionExistsError(name)
        return self.session(name)

    async def get_or_create_session(
        self, values: Mapping[str, JSONValue], *, metadata: Mapping[str, JSONValue] | None = None
    ) -> tuple[SQLAlchemyMetadataSession, bool]:
        """The most recently active session with these values, or a new one with them.

        Its id is derived from the values, and the primary key decides between concurrent callers:
        however many ask at once, in however many processes, one session is created.

        Args:
            values: Plain values by key, a business key such as `{"repo": "o/r", "pr": 42}`.
            metadata: More metadata for a new session; a found one stays as it is.

        Returns:
            The session, and whether it was created.

        Raises:
            InvalidFilterError: If a key cannot exist or a value is not plain JSON.
            InvalidMetadataError: If a key or value cannot be stored.
            MetadataLimitError: If a limit is exceeded.
            ScopeError: If the values contradict the scope.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `values` is not a mapping.
            ValueError: If there is no value, or `metadata` contradicts `values`.
        """
        wanted = parse_values(values, "values")
        scope, limits = self._store.scope, self._store.limits
        scope.check(wanted)
        more = encode_metadata(metadata or {}, limits)
        for key, encoded in encode_metadata(wanted, limits).items():
            if key in more and more[key].search != encoded.search:
                raise ValueError(f"metadata and values have different values for {quoted(key)}")
        together = {**(metadata or {}), **wanted}
        encode_metadata({**together, **scope.values}, limits)
        condition = scope.restrict(equality(wanted))
        search = encode_metadata({**wanted, **scope.values}, limits)
        name = ""
        for attempt in range(_DERIVED_IDS):
            last = await self._last(condition, keys=[])
            if last is not None:
                return self.session(last.info.session_id), False
            # If the id is taken and the session does not match, it had the values once: every
            # caller goes on to the next id.
            name = derived_id(search, attempt)
            if await self._create(name, together):
                return self.session(name), True
        raise SessionExistsError(name)

    async def get_session(
        self,
        session_id: str,
        *,
        keys: Iterable[str] | None = None,
        count_items: bool = False,
        on_corrupt: OnCorrupt | None = None,
    ) -> SessionInfo | None:
        """One session with its metadata.

        Args:
            session_id: Its id.
            keys: The metadata keys to return; every stored one by default.
            count_items: Whether to count the items of its history.
            on_corrupt: Called with a `CorruptMetadataError` for each stored value that is not
                valid JSON, instead of raising it; the session is returned without these keys.

        Returns:
            The session, or None if there is none.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON, without `on_corrupt`.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `keys` is a bare string.
        """
        wanted = storable_keys(keys)
        check_id_type(session_id)
        if not is_text(session_id):
            return None
        condition = self._store.scope.restrict(IdIn((session_id,)))
        found = await self._page(condition, WALK, limit=1, keys=wanted, count_items=count_items)
        return found[0].checked(on_corrupt) if found else None

    async def last_session(
        self, where: Where | None = None, *, count_items: bool = False
    ) -> SessionInfo | None:
        """The session that was active last.

        The SDK's clock ticks in whole seconds on SQLite, MariaDB and MySQL. Among sessions of the
        same tick it is the one with the newest message.

        Args:
            where: A filter. A plain string under `agent` is normalised: `@ai-engineer` finds
                `ai-engineer`.
            count_items: Whether to count the items of its history.

        Returns:
            The session, or None if none matches.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        if isinstance(where, Mapping) and isinstance(where.get(AGENT), str):
            where = {**where, AGENT: normalize_agent(where[AGENT])}
        condition = self._condition(where)
        found = await self._last(condition, count_items=count_items)
        return None if found is None else found.checked()

    async def delete_session(self, session_id: str) -> bool:
        """Delete a session: history, row and metadata.

        Args:
            session_id: Its id.

        Returns:
            Whether there was one.

        Raises:
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        check_id_type(session_id)
        return is_text(session_id) and await self._store.delete(session_id)

    async def get_metadata(self, session_id: str, keys: Iterable[str] | None = None) -> Metadata:
        """As `SQLAlchemyMetadataSession.get_metadata`, by id: for sessions behind a wrapper."""
        return await self._store.get_metadata(session_id, keys)

    async def set_metadata(
        self, session_id: str, values: Mapping[str, Any], *, must_exist: bool = False
    ) -> None:
        """As `SQLAlchemyMetadataSession.set_metadata`, by id."""
        await self._store.set_metadata(session_id, values, must_exist=must_exist)

    async def edit_metadata(
        self,
        session_id: str,
        change: Callable[[Metadata], object],
        *,
        must_exist: bool = False,
    ) -> Metadata:
        """As `SQLAlchemyMetadataSession.edit_metadata`, by id."""
        return await self._store.edit_metadata(session_id, change, must_exist=must_exist)

    async def delete_metadata(self, session_id: str, keys: Iterable[str] | None = None) -> int:
        """As `SQLAlchemyMetadataSession.delete_metadata`, by id."""
        return await self._store.delete_metadata(session_id, keys)

    # ---- many sessions ----

    async def list_sessions(
        self,
        where: Where | None = None,
        *,
        order_by: OrderBy = "-updated_at",
        limit: int = 100,
        cursor: str | None = None,
        keys: Iterable[str] | None = None,
        count_items: bool = False,
        on_corrupt: OnCorrupt | None = None,
    ) -> SessionPage:
        """A page of sessions with their metadata.

        Walking through pages by `created_at` or `session_id` returns every session that exists
        throughout the walk exactly once, whatever is inserted and deleted meanwhile. By
        `updated_at` or a metadata key it is best effort: a session whose position changes during
        the walk may be missed or returned twice.

        Args:
            where: A filter; every session by default.
            order_by: `updated_at`, `created_at`, `session_id` or a metadata key, with `-` for
                descending. By a column, ties are broken by id, in the same direction. By a
                metadata key the order is `None`, `False`, `True`, numbers, strings (by code
                point), then lists and objects (in no particular order among themselves); sessions
                without the key come last in both directions, and ties are broken by most recent
                activity, then by id ascending. The names of columns always mean the columns, and a
                key that begins with `-` cannot be ordered by. The cursor of such a page contains
                the last session's value of the key, in an encoded but readable form.
            limit: Sessions per page, 1 to 1,000.
            cursor: The `next_cursor` of the previous page, for the same filter, order and scope.
            keys: The metadata keys to return; every stored one by default. `[]` means none.
            count_items: Whether to count the items of each history.
            on_corrupt: Called with a `CorruptMetadataError` for each stored value that is not
                valid JSON, instead of raising it; the session is returned without these keys.

        Returns:
            The page.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON, without `on_corrupt`.
            InvalidCursorError: If the cursor is damaged or belongs to another question.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `keys` is a bare string, or `order_by` is not a string.
            ValueError: If `limit` is out of range, or `order_by` is neither a column nor a key
                that can be stored.
        """
        check_limit(limit, LONGEST_PAGE)
        ordering = Ordering.parse(order_by)
        wanted = storable_keys(keys)
        condition = self._condition(where)
        after = None
        if cursor is not None:
            after = decode_cursor(cursor, condition, ordering, self._store.database.dialect)
        # One more than requested tells whether there is a next page.
        found = await self._page(
            condition, ordering, limit=limit + 1, after=after, keys=wanted, count_items=count_items
        )
        next_cursor = None
        if len(found) > limit:
            next_cursor = encode_cursor(found[limit - 1].position, condition, ordering)
        return SessionPage([each.checked(on_corrupt) for each in found[:limit]], next_cursor)

    async def iter_sessions(
        self,
        where: Where | None = None,
        *,
        keys: Iterable[str] | None = None,
        count_items: bool = False,
        on_corrupt: OnCorrupt | None = None,
    ) -> AsyncIterator[SessionInfo]:
        """Walk through all matching sessions, in constant memory.

        The walk goes by the primary key and holds no connection between items. It yields every
        session that exists and matches throughout exactly once.

        Args:
            where: A filter; every session by default.
            keys: The metadata keys to return; every stored one by default.
            count_items: Whether to count the items of each history.
            on_corrupt: Called with a `CorruptMetadataError` for each stored value that is not
                valid JSON, instead of raising it; the session is yielded without these keys.

        Yields:
            The sessions.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON, without `on_corrupt`.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `keys` is a bare string.
        """
        wanted = storable_keys(keys)
        condition = self._condition(where)
        after: Position | None = None
        while True:
            found = await self._page(
                condition,
                WALK,
                limit=_WALK_PAGE,
                after=after,
                keys=wanted,
                count_items=count_items,
            )
            for each in found:
                yield each.checked(on_corrupt)
            if len(found) < _WALK_PAGE:
                return
            after = found[-1].position

    async def count_sessions(self, where: Where | None = None) -> int:
        """The number of matching sessions.

        Args:
            where: A filter; every session by default.

        Returns:
            How many there are.

        Raises:
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        condition = self._condition(where)
        counts = await self._scalars(lambda queries: queries.count(condition))
        return int(counts[0])

    async def count_values(
        self, key: str, where: Where | None = None, *, limit: int = 100
    ) -> list[ValueCount]:
        """How many sessions carry each scalar under a key; the elements of lists count one by one.

        Args:
            key: A metadata key.
            where: A filter; every session by default.
            limit: How many values at most.

        Returns:
            The values, those of most sessions first, then by value. 1 and 1.0 are one value.

        Raises:
            InvalidFilterError: If the key cannot exist, or the filter is not understood.
            TablesMissingError: If tables are missing and `create_tables` is off.
            ValueError: If `limit` is not a positive integer.
        """
        problem = key_problem(key)
        if problem is not None:
            raise InvalidFilterError(problem, path="key")
        check_limit(limit)
        condition = self._condition(where)
        database = self._store.database

        def read(connection: Connection, queries: Queries) -> list[ValueCount]:
            query = queries.count_values(key, condition, limit)
            found: Iterable[Any] = connection.execute(*query)
            return [
                ValueCount(decode_scalar(SearchKey(bytes(indexed), bytes(rest))), int(count))
                for indexed, rest, count in found
            ]

        return await database.read(read)

    async def statistics(self, where: Where | None = None) -> Statistics:
        """Totals of what lifecycle and tracking recorded, added up exactly in the database.

        Args:
            where: A filter; every session by default.

        Returns:
            The totals.

        Raises:
            CorruptMetadataError: If the status of a session is not valid JSON.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        condition = self._condition(where)
        database = self._store.database
        return await database.read(
            lambda connection, queries: read_statistics(connection, queries, condition)
        )

    # ---- ageing and moving ----

    async def delete_sessions(
        self,
        where: Where | None = None,
        *,
        inactive_for: timedelta | None = None,
        dry_run: bool = False,
        batch_size: int = 500,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Delete matching sessions, in short transactions.

        Filter and activity are checked again under the lock of each batch, so a session that wakes
        up is spared. After a crash, run it again. Metadata is no activity, and reading is none.

        Args:
            where: A filter; may be left out only if `inactive_for` is given or the catalog is
                scoped.
            inactive_for: Delete only what has been inactive for at least so long. With
                `timedelta(0)` age does not matter, and a session whose time lies in the future is
                deleted too.
            dry_run: Count, delete nothing.
            batch_size: Sessions a transaction, 1 to 1,000.
            progress: Called after each batch with the number deleted so far.

        Returns:
            The number of sessions deleted, or that would be.

        Raises:
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `inactive_for` is no timedelta.
            ValueError: If there is neither a filter nor an age, the age is negative, or
                `batch_size` is out of bounds.
        """
        condition = self._store.condition(where)
        if not where and inactive_for is None and not self._store.scope:
            raise ValueError(
                "delete_sessions needs a filter or inactive_for; it does not delete everything"
            )
        if type(batch_size) is not int or not 1 <= batch_size <= LONGEST_PAGE:
            raise ValueError(f"batch_size must be 1 to {LONGEST_PAGE:,}, not {batch_size!r}")
        condition = expired(condition, inactive_for)
        if dry_run:
            counts = await self._scalars(lambda queries: queries.count(condition))
            return int(counts[0])
        return await delete_matching(
            self._store, condition, batch_size=batch_size, progress=progress
        )

    async def fork_session(
        self,
        session_id: str,
        new_id: str | None = None,
        *,
        metadata: Mapping[str, JSONValue] | None = None,
    ) -> SQLAlchemyMetadataSession:
        """Copy a session's history and metadata, in one transaction.

        A history written through `EncryptedSession` cannot be read under another id: its key is
        derived from the id.

        Args:
            session_id: The session to copy.
            new_id: The copy's id; a random one by default.
            metadata: Keys to set in the copy.

        Returns:
            The copy.

        Raises:
            InvalidMetadataError: If a key or value cannot be stored.
            MetadataLimitError: If a limit is exceeded.
            ScopeError: If the metadata contradicts the scope.
            SessionExistsError: If the new id is taken.
            SessionNotFoundError: If there is no such session.
            TablesMissingError: If tables are missing and `create_tables` is off.
            ValueError: If the new id cannot carry metadata.
        """
        name = str(uuid.uuid4()) if new_id is None else new_id
        check_id_type(session_id)
        work = fork(self._store, session_id, name, metadata or {})
        if not is_text(session_id):
            raise SessionNotFoundError(session_id)
        await self._store.database.write(work)
        return self.session(name)

    async def export_sessions(
        self, where: Where | None = None, *, on_corrupt: OnCorrupt | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Give matching sessions as JSON-ready records, one at a time.

        A record has the session's id, times, metadata and items, all as of one moment, and the
        version of its format. An encrypted history stays encrypted.

        Args:
            where: A filter; every session by default.
            on_corrupt: Called with a `CorruptMetadataError` for each stored value that is not
                valid JSON, instead of raising it; the session is left out.

        Yields:
            The records, for `import_sessions`.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON, without `on_corrupt`.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        condition = self._condition(where)
        after: Position | None = None
        size = 1
        while True:
            read = partial(read_records, self._store, condition, after, size)
            found, records = await self._store.database.read_snapshot(read)
            if records is None:
                size = len(found) // 2
                continue
            for each, record in zip(found, records, strict=True):
                each.checked(on_corrupt)
                if not each.errors:
                    yield record
            if len(found) < size:
                return
            after, size = found[-1].position, min(2 * size, BATCH)

    async def import_sessions(
        self,
        records: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
        on_conflict: OnConflict = "error",
        *,
        on_invalid: Callable[[Exception], object] | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Write records that `export_sessions` gave, here or on any other database.

        Each record is one transaction. A broken record, or a conflict, stops the import; its error
        names the record's position, and those before it are in.

        Args:
            records: The records.
            on_conflict: What to do about a session that exists: stop with an error, skip the
                record, or replace the session.
            on_invalid: Called with the error of each record that cannot be written; the record is
                skipped and the import goes on. Without it, the error is raised.
            progress: Called after each transaction with the number of records done so far.

        Returns:
            The number of sessions written.

        Raises:
            InvalidMetadataError: If a record, or metadata in it, is not understood.
            MetadataLimitError: If metadata exceeds a limit.
            ScopeError: If metadata contradicts the scope.
            SessionExistsError: If a session exists and `on_conflict` is `"error"`.
            SessionNotFoundError: If a session to be replaced exists outside the scope.
            TablesMissingError: If tables are missing and `create_tables` is off.
            ValueError: If an id cannot carry metadata, or `on_conflict` is none of the three.
        """
        if on_conflict not in get_args(OnConflict):
            raise ValueError(
                f"on_conflict must be 'error', 'skip' or 'replace', not {on_conflict!r}"
            )
        importing = Import(
            self._store,
            on_conflict,
            ensure_ascii=self._session_arguments["ensure_ascii"],
            on_invalid=on_invalid,
            progress=progress,
        )
        return await importing.run(records)

    # ---- inside ----

    def _condition(self, where: Where | None) -> Condition:
        return self._store.condition(where)

    async def _create(self, session_id: str, metadata: Mapping[str, JSONValue]) -> bool:
        check_id_type(session_id)
        return await self._store.create(session_id, self._store.encode_new(metadata))

    async def _scalars(self, query: Callable[[Queries], Query]) -> Sequence[Any]:
        return await self._store.database.read(
            lambda connection, queries: connection.scalars(*query(queries)).all()
        )

    async def _page(self, condition: Condition, ordering: Ordering, **options: Any) -> list[Found]:
        database = self._store.database
        return await database.read(
            lambda connection, queries: read_page(
                connection, queries, condition, ordering, **options
            )
        )

    async def _last(self, condition: Condition, **options: Any) -> Found | None:
        database = self._store.database
        return await database.read(
            lambda connection, queries: read_last(connection, queries, condition, **options)
        )

"""`SessionCatalog`: every session in one database."""

from __future__ import annotations

import copy
import hashlib
import json
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from datetime import date, timedelta
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from .core.features import Erased
from .core.rows import storable_keys
from .core.schema import table_sizes
from .core.store import check_options
from .dialects.urls import create_engine, shown_url
from .errors import (
    ScopeError,
    SessionExistsError,
)
from .history.items import (
    appending,
    check_item_id,
    create,
    delete_item,
    get_item,
    item_texts,
    list_items,
)
from .history.rewind import Cut, rewind
from .keys import AGENT, normalize_agent
from .query.conditions import IdIn, equality
from .query.details import NO_METADATA, Details
from .query.filters import Where, check_filter_key, parse_values
from .query.ordering import WALK, OrderBy, Ordering, SessionPosition, decode_cursor, encode_cursor
from .query.pages import LONGEST_PAGE, OnCorrupt, Reader, check_limit, read_sessions
from .scope import ScopedStore
from .text import quoted
from .transfer.exports import EXPORTED, Import, OnConflict, read_records
from .transfer.fork import fork
from .transfer.retention import deletable, delete_matching
from .types import (
    DailyStatistics,
    Erasure,
    Feedback,
    IndexInfo,
    ItemInfo,
    ItemPage,
    JSONObject,
    JSONValue,
    Metadata,
    SearchPage,
    SessionChange,
    SessionInfo,
    SessionOptions,
    SessionPage,
    Statistics,
    TableSize,
    UsageRow,
    ValueCount,
)
from .values import EncodedValue, check_id, check_id_type, encode_metadata, is_text, search_key

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .session import SQLAlchemyMetadataSession

T = TypeVar("T")

_DERIVED_IDS = 1000
_DERIVED_VERSION = 1
"""Must be raised with every change of an id that is derived from metadata."""
_WALK_PAGE = 500


class SessionCatalog:
    """All sessions in a database: create, list, filter, count, copy and delete them.

    ```python
    async with SessionCatalog.from_url("sqlite:///chat.db", create_tables=True) as catalog:
        mine = catalog.scoped({"owner_id": "u1"})
        page = await mine.list_sessions({"tags": {"$contains": "travel"}}, limit=20)
    ```

    Sessions of the plain SDK are included; their metadata is empty. As an async context manager,
    the catalog disposes the engine that `from_url` created.

    Args:
        engine: An async engine for SQLite, PostgreSQL, MariaDB or MySQL.
        **options: As in `SessionOptions`.

    Raises:
        TypeError: If `engine` is not an async engine, `metadata_limits` not `MetadataLimits`, or an
            argument is unknown.
        UnsupportedDialectError: If the engine is for another database.
        ValueError: If `on_clear` is neither `"delete"` nor `"keep"`, or two tables have the same
            name.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        **options: Unpack[SessionOptions],
    ) -> None:
        # The SDK may share the engine. It is imported late: that takes longer than most commands.
        from ._sdk import open_store

        check_options(options, SessionOptions.__annotations__)
        self._store, self._session_arguments = open_store(engine, **options)
        self._owns_engine = False

    @classmethod
    def from_url(
        cls,
        url: str | URL,
        *,
        engine_kwargs: dict[str, Any] | None = None,
        **options: Unpack[SessionOptions],
    ) -> Self:
        """Create a catalog with its own engine, which `async with` disposes.

        Args:
            url: A database URL, such as `postgresql+asyncpg://…`. A URL that names no driver, such
                as `sqlite:///chat.db`, `postgres://…` or `mysql://…`, gets the default driver.
            engine_kwargs: Arguments for `create_async_engine`.
            **options: As in the constructor.

        Returns:
            The catalog.

        Raises:
            ModuleNotFoundError: If the driver is not installed. The error names the extra.
            UnsupportedDialectError: If the URL is for another database.
            ValueError: If the URL is not valid.
        """
        catalog = cls(create_engine(url, engine_kwargs), **options)
        catalog._owns_engine = True
        return catalog

    @staticmethod
    def _sharing(store: ScopedStore, **session_arguments: Any) -> SessionCatalog:
        catalog = SessionCatalog.__new__(SessionCatalog)
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
        scope = self._store.scope
        shown = f" scoped by {', '.join(scope.values)}" if scope.values else ""
        shown += " read-only" if self.read_only else ""
        return f"<{type(self).__name__} {shown_url(self.engine.url)}{shown}>"

    @property
    def engine(self) -> AsyncEngine:
        """The engine."""
        return self._store.database.engine

    @property
    def scope(self) -> dict[str, Any]:
        """The filter that restricts this catalog, as plain JSON; empty without a scope.

        Sessions, pages and changes that you cache or share between callers must be kept apart by
        it. `json.dumps(catalog.scope, sort_keys=True)` is a key.
        """
        return copy.deepcopy(self._store.scope.where)

    @property
    def read_only(self) -> bool:
        """Whether every write raises `ScopeError`, as with a catalog of `readable`."""
        return self._store.database.refusal is not None

    def scoped(self, values: Mapping[str, JSONValue]) -> Self:
        """A catalog that is restricted to the sessions with these values.

        ```python
        mine = catalog.scoped({"owner_id": "u1"})
        ```

        Every session object and cursor that the scoped catalog returns is restricted to the scope.
        New sessions get the values. A session outside the scope behaves as if it did not exist:
        reads return `None`, `{}` or nothing, deletes do nothing, and other writes raise
        `SessionNotFoundError`. The scope of a scoped catalog can only be narrowed. It is a shallow
        copy of this one, so that a subclass keeps its attributes.

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
        return self._restricted(self._store.within(values))

    def readable(self, where: Where) -> Self:
        """A read-only catalog that is restricted to the sessions for which a filter holds.

        ```python
        user = "u2"
        visible = catalog.readable(
            {"$or": [{"owner_id": user}, {"members": {"$contains": user}}]}
        )
        page = await visible.list_sessions(limit=20)
        ```

        Use it for sessions that are shared. As with `scoped`, a session outside it behaves as if it
        did not exist, in every method and for every session object, also by id. The filter is
        evaluated in each statement: who is removed from `members` sees the session no more. Every
        write raises `ScopeError`, whose `key` is None, whether the session exists or not. Missing
        tables are created as usual, and `search` may add to the text index. The result can be
        restricted further, by `scoped` and by `readable`.

        Args:
            where: A filter. In a scope, it can be empty.

        Returns:
            The read-only catalog, on the same engine.

        Raises:
            InvalidFilterError: If the filter is invalid.
            ValueError: If every session would be readable, because the filter has no condition.
        """
        return self._restricted(self._store.readable(where))

    def _restricted(self, store: ScopedStore) -> Self:
        catalog = copy.copy(self)
        catalog._store, catalog._owns_engine = store, False
        for name in list(vars(catalog)):
            # It may depend on the scope.
            if isinstance(getattr(type(self), name, None), cached_property):
                del vars(catalog)[name]
        return catalog

    # ---- one session ----

    def session(self, session_id: str, *, must_exist: bool = False) -> SQLAlchemyMetadataSession:
        """A session object, to run agents with. No I/O; the session need not exist yet.

        Args:
            session_id: Its id.
            must_exist: Whether the object never creates the session. Writing metadata or history
                then raises `SessionNotFoundError` if the session does not exist, also when it was
                deleted in the meantime; `delete_metadata` returns 0. `clear_session()` empties the
                history but keeps the session and its metadata, whatever `on_clear` says. To end the
                session, use `delete_session`.

        Returns:
            The session, with this catalog's engine, tables, settings and scope.

        Raises:
            TypeError: If the id is not a string.
        """
        # A session has a catalog, too; and what needs no session need not wait for the SDK.
        from .session import SQLAlchemyMetadataSession

        return SQLAlchemyMetadataSession._in_store(
            session_id, self._store, must_exist=must_exist, **self._session_arguments
        )

    async def create_session(
        self,
        session_id: str | None = None,
        *,
        metadata: Mapping[str, JSONValue] | None = None,
        items: Iterable[Mapping[str, Any]] = (),
    ) -> SQLAlchemyMetadataSession:
        """Create a session in one transaction: `create_session("chat-1", metadata={"a": 1})`.

        Args:
            session_id: The id of the session; random by default.
            metadata: The metadata of the session. The values of the scope are added.
            items: The items of its history, oldest first.

        Returns:
            The session.

        Raises:
            InvalidMetadataError: If a key or value cannot be stored.
            MetadataLimitError: If a limit is exceeded.
            ScopeError: If the metadata contradicts the scope.
            SessionExistsError: If the id is in use, inside or outside the scope.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If the id is not a string, or an item not a mapping or not JSON.
            ValueError: If the id is not valid for metadata.
        """
        name = str(uuid.uuid4()) if session_id is None else session_id
        check_id(name)
        encoded, texts = self._store.encode_new(metadata or {}), self._texts(items)
        work = partial(create, self._store, name, encoded, texts)
        if not await self._store.database.write(work):
            raise SessionExistsError(name)
        return self.session(name)

    async def get_or_create_session(
        self, values: Mapping[str, JSONValue], *, metadata: Mapping[str, JSONValue] | None = None
    ) -> tuple[SQLAlchemyMetadataSession, bool]:
        """Return the most recently active session with these values, or create one.

        ```python
        session, created = await catalog.get_or_create_session({"repo": "o/r", "pr": 42})
        ```

        If several processes call this at the same time with the same values, one session is
        created. The id of a new session is derived from the values.

        Args:
            values: The values by key that identify the session.
            metadata: More metadata for a new session. An existing session does not change.

        Returns:
            The session, and whether it was created.

        Raises:
            InvalidFilterError: If a key cannot be stored or a value is not JSON.
            InvalidMetadataError: If a key or value cannot be stored.
            MetadataLimitError: If a limit is exceeded.
            ScopeError: If the values contradict the scope.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `values` is not a mapping.
            ValueError: If `values` is empty, or `metadata` contradicts `values`.
        """
        wanted = parse_values(values, "values")
        store, more = self._store, encode_metadata(metadata or {}, self._store.limits)
        for key in more.keys() & wanted.keys():
            if more[key].search != search_key(wanted[key]):
                raise ValueError(f"metadata and values have different values for {quoted(key)}")
        encoded = store.encode_new({**(metadata or {}), **wanted})
        condition = store.scope.restrict(equality(wanted))
        identity = {key: encoded[key] for key in {**wanted, **store.scope.values}}
        name = ""
        for attempt in range(_DERIVED_IDS):
            last = await self._read(lambda reader: reader.last(condition, NO_METADATA))
            if last is not None:
                return self.session(last.info.session_id), False
            # If the id is taken and the session does not match, it had the values once: every
            # caller goes on to the next id.
            name = _derived_id(identity, attempt)
            if await store.database.write(partial(create, store, name, encoded, ())):
                return self.session(name), True
        raise SessionExistsError(name)

    async def get_session(
        self,
        session_id: str,
        *,
        keys: Iterable[str] | None = None,
        count_items: bool = False,
        preview: bool = False,
        on_corrupt: OnCorrupt | None = None,
    ) -> SessionInfo | None:
        """Return a session with metadata: `await catalog.get_session("chat-1", keys=["title"])`.

        Args:
            session_id: The id of the session.
            keys: The metadata keys to return; all stored keys by default.
            count_items: Whether to count the items of the history.
            preview: Whether to read the beginning of the first user message: at most 200
                characters with whitespace collapsed. It is looked for among the first 10 items, in
                the first 4,000 characters of the stored text.
            on_corrupt: Called with a `CorruptMetadataError` for each stored value that is
                not valid JSON, instead of raising it; the session is returned without these keys.

        Returns:
            The session, or None if it does not exist.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON, without `on_corrupt`.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `keys` is a bare string.
        """
        details = Details(storable_keys(keys), count_items, preview)
        check_id_type(session_id)
        if not is_text(session_id):
            return None
        condition = self._store.scope.restrict(IdIn((session_id,)))
        found = await self._read(
            lambda reader: reader.page(condition, WALK, limit=1, details=details)
        )
        return found[0].checked(on_corrupt) if found else None

    async def last_session(
        self, where: Where | None = None, *, count_items: bool = False
    ) -> SessionInfo | None:
        """Return the most recently active session: `await catalog.last_session({"agent": "x"})`.

        Among sessions that were active within the same second, which is the resolution of the SDK's
        times on SQLite, MariaDB and MySQL, the session with the newest message is returned.

        Args:
            where: A filter. A string under `agent` is normalized: `@ai-engineer` finds
                `ai-engineer`.
            count_items: Whether to count the items of the history.

        Returns:
            The session, or None if no session matches.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        if isinstance(where, Mapping) and isinstance(where.get(AGENT), str):
            where = {**where, AGENT: normalize_agent(where[AGENT])}
        condition = self._store.condition(where)
        details = Details(count_items=count_items)
        found = await self._read(lambda reader: reader.last(condition, details))
        return None if found is None else found.checked()

    async def last_sessions(
        self,
        key: str,
        where: Where | None = None,
        *,
        limit: int = 100,
        count_items: bool = False,
    ) -> list[SessionInfo]:
        """Return the most recently active session of each value of a key, such as each agent.

        ```python
        last = {info.metadata["agent"]: info for info in await catalog.last_sessions("agent")}
        ```

        Args:
            key: A metadata key. Strings, numbers, booleans and None count as values; lists and
                objects do not. 1 and 1.0 are the same value.
            where: A filter; all sessions by default.
            limit: The maximum number of sessions, 1 to 1,000.
            count_items: Whether to count the items of each history.

        Returns:
            The sessions, most recently active first. Each is the one that `last_session` returns
            for its value.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON.
            InvalidFilterError: If the key cannot be stored, or the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
            ValueError: If `limit` is out of range.
        """
        check_limit(limit, LONGEST_PAGE)
        condition, name = self._store.condition(where), check_filter_key(key)
        details = Details(count_items=count_items)
        found = await self._read(
            lambda reader: reader.last_of_each(name, condition, limit, details)
        )
        return [each.checked() for each in found]

    async def delete_session(self, session_id: str) -> bool:
        """Delete a session with messages and metadata: `await catalog.delete_session("chat-1")`.

        Args:
            session_id: The id of the session.

        Returns:
            Whether the session existed.

        Raises:
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        check_id_type(session_id)
        return is_text(session_id) and await self._store.delete(session_id)

    async def get_metadata(self, session_id: str, keys: Iterable[str] | None = None) -> Metadata:
        """As `SQLAlchemyMetadataSession.get_metadata`, by id. Use it if the session is wrapped."""
        return await self._store.get_metadata(session_id, keys)

    async def set_metadata(
        self,
        session_id: str,
        values: Mapping[str, Any],
        *,
        remove: Iterable[str] = (),
        must_exist: bool = False,
    ) -> None:
        """As `SQLAlchemyMetadataSession.set_metadata`, by id."""
        await self._store.set_metadata(session_id, values, must_exist=must_exist, remove=remove)

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

    # ---- sessions by filter ----

    async def list_sessions(
        self,
        where: Where | None = None,
        *,
        order_by: OrderBy = "-updated_at",
        limit: int = 100,
        cursor: str | None = None,
        keys: Iterable[str] | None = None,
        count_items: bool = False,
        preview: bool = False,
        on_corrupt: OnCorrupt | None = None,
    ) -> SessionPage:
        """Return a page of sessions with their metadata.

        ```python
        page = await catalog.list_sessions({"owner_id": "u1"}, limit=20, keys=["title"])
        page = await catalog.list_sessions(
            {"owner_id": "u1"}, limit=20, keys=["title"], cursor=page.next_cursor
        )
        ```

        Pages by `created_at` or `session_id` return every session that exists the whole time
        exactly once, even if other sessions are created and deleted. Pages by `updated_at` or a
        metadata key can miss or repeat a session whose position changes in the meantime.

        Args:
            where: A filter; all sessions by default.
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
            keys: The metadata keys to return; all stored keys by default. `[]` means none.
            count_items: Whether to count the items of each history.
            preview: As in `get_session`.
            on_corrupt: Called with a `CorruptMetadataError` for each stored value that is
                not valid JSON, instead of raising it; the session is returned without these keys.

        Returns:
            The page.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON, without `on_corrupt`.
            InvalidCursorError: If the cursor is damaged or belongs to another query.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `keys` is a bare string, or `order_by` is not a string.
            ValueError: If `limit` is out of range, or `order_by` is neither a column nor a key
                that can be stored.
        """
        check_limit(limit, LONGEST_PAGE)
        ordering = Ordering.parse(order_by)
        details = Details(storable_keys(keys), count_items, preview)
        condition = self._store.condition(where)
        time = self._store.database.dialect.stored_time
        after = None if cursor is None else decode_cursor(cursor, condition, ordering, time)
        # One more than requested tells whether there is a next page.
        found = await self._read(
            lambda reader: reader.page(
                condition, ordering, limit=limit + 1, after=after, details=details
            )
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
        preview: bool = False,
        on_corrupt: OnCorrupt | None = None,
    ) -> AsyncIterator[SessionInfo]:
        """Iterate over all that match: `async for info in catalog.iter_sessions({"pinned": True})`.

        Sessions are ordered by id. No connection is held between items. Every session that exists
        and matches the whole time is returned exactly once.

        Args:
            where: A filter; all sessions by default.
            keys: The metadata keys to return; all stored keys by default.
            count_items: Whether to count the items of each history.
            preview: Whether to read the beginning of the first user message, as in `list_sessions`.
            on_corrupt: Called with a `CorruptMetadataError` for each stored value that is
                not valid JSON, instead of raising it; the session is yielded without these keys.

        Yields:
            The sessions.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON, without `on_corrupt`.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `keys` is a bare string.
        """
        details = Details(storable_keys(keys), count_items, preview)
        condition = self._store.condition(where)
        after: SessionPosition | None = None
        while True:
            ask = partial(
                Reader.page,
                condition=condition,
                ordering=WALK,
                limit=_WALK_PAGE,
                after=after,
                details=details,
            )
            found = await self._read(ask)
            for each in found:
                yield each.checked(on_corrupt)
            if len(found) < _WALK_PAGE:
                return
            after = found[-1].position

    def watch(
        self,
        where: Where | None = None,
        *,
        limit: int = 100,
        interval: float = 2.0,
        initial: bool = False,
        keys: Iterable[str] | None = None,
        on_corrupt: OnCorrupt | None = None,
        on_poll: Callable[[], object] | None = None,
    ) -> AsyncGenerator[SessionChange, None]:
        """Iterate over changes to the most recently active matching sessions, by any writer.

        ```python
        async for change in catalog.watch({"owner_id": "u1"}):
            print(change.kind, change.session.session_id)
        ```

        It polls with one statement per interval and holds no connection between polls. A session
        has changed if its `updated_at`, its newest item or the value of a key is different. It is
        removed if it was deleted, no longer matches, or is no longer among the newest `limit`. The
        changes of one poll are ordered by activity, removed sessions first and the newest session
        last. Several changes between two polls are reported as one.

        Args:
            where: A filter; all sessions by default.
            limit: The number of sessions to watch, 1 to 1,000.
            interval: Seconds between polls.
            initial: Whether to yield the existing sessions as added. By default, the first poll
                only remembers them.
            keys: The metadata keys to read and compare; all stored keys by default.
            on_corrupt: Called in each poll with a `CorruptMetadataError` for each stored value that
                is not valid JSON, instead of raising it.
            on_poll: Called after each poll and its changes. Once it was called, no later change is
                missed: a stream of events can tell its client that it follows.

        Returns:
            An iterator without an end. Call `aclose()`, or cancel the task, to end it.

        Raises:
            CorruptMetadataError: While iterating, without `on_corrupt`.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: While iterating, if tables are missing and `create_tables` is off.
            TypeError: If `keys` is a bare string.
            ValueError: If `limit` is out of range, or `interval` is not positive.
        """
        from .watch import watch_sessions

        check_limit(limit, LONGEST_PAGE)
        if not interval > 0:
            raise ValueError(f"interval must be positive, got {interval}")
        return watch_sessions(
            self._store,
            self._store.condition(where),
            limit=limit,
            interval=interval,
            initial=initial,
            keys=storable_keys(keys),
            on_corrupt=on_corrupt,
            on_poll=on_poll,
        )

    async def count_sessions(self, where: Where | None = None) -> int:
        """Count matching sessions: `await catalog.count_sessions({"owner_id": "u1"})`.

        Args:
            where: A filter; all sessions by default.

        Returns:
            The number of sessions.

        Raises:
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        condition = self._store.condition(where)
        return await self._read(lambda reader: reader.count(condition))

    async def count_values(
        self, key: str, where: Where | None = None, *, limit: int = 100
    ) -> list[ValueCount]:
        """Count the sessions for each value, or element of a list: `catalog.count_values("tags")`.

        Args:
            key: A metadata key.
            where: A filter; all sessions by default.
            limit: The maximum number of values.

        Returns:
            The values with the most sessions first, then by value. 1 and 1.0 are the same value.
            Objects, and lists as a whole, are not counted.

        Raises:
            InvalidFilterError: If the key cannot be stored, or the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
            ValueError: If `limit` is not a positive integer.
        """
        check_filter_key(key)
        check_limit(limit)
        condition = self._store.condition(where)
        return await self._read(lambda reader: reader.count_values(key, condition, limit))

    async def delete_sessions(
        self,
        where: Where | None = None,
        *,
        inactive_for: timedelta | None = None,
        paused_for: timedelta = timedelta(days=90),
        dry_run: bool = False,
        batch_size: int = 500,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Delete matching sessions with their messages and metadata, in short transactions.

        ```python
        where = {"pinned": {"$ne": True}}
        await catalog.delete_sessions(where, inactive_for=timedelta(days=30))
        ```

        Each transaction checks filter and activity again under its locks, and skips sessions that
        become active in the meantime. After a crash, run it again. Reading a session and writing
        its metadata are not activity.

        Args:
            where: A filter. It is optional if `inactive_for` is given or the catalog is scoped.
                A filter that holds for every session, such as `{"$and": [{}]}`, counts as none.
            inactive_for: Delete only sessions that have been inactive for at least this time. With
                `timedelta(0)`, age does not matter, and sessions whose time lies in the future are
                deleted too.
            paused_for: Skip sessions whose run was paused within this time or is claimed, even if
                they match. With `timedelta(0)`, they are deleted like all others.
            dry_run: Count the sessions and delete nothing.
            batch_size: The number of sessions per transaction, 1 to 1,000.
            progress: Called after each transaction with the number of deleted sessions so far.

        Returns:
            The number of deleted sessions, or of sessions that would be deleted.

        Raises:
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `inactive_for` or `paused_for` is not a timedelta.
            ValueError: If there is neither a filter nor an age, an age is negative, or
                `batch_size` is out of range.
        """
        condition = self._store.condition(where)
        if inactive_for is None and condition.constant:
            raise ValueError(
                "delete_sessions needs a filter with a condition, or inactive_for; "
                "it does not delete everything"
            )
        check_limit(batch_size, LONGEST_PAGE, "batch_size")
        condition = await deletable(self._store, condition, inactive_for, paused_for)
        if dry_run:
            return await self._read(lambda reader: reader.count(condition))
        return await delete_matching(
            self._store, condition, batch_size=batch_size, progress=progress
        )

    async def erase(
        self,
        where: Where | None = None,
        *,
        usage: Literal["delete", "anonymize"] = "delete",
        by: str | None = None,
        batch_size: int = 500,
        progress: Callable[[int], object] | None = None,
    ) -> Erasure:
        """Erase a person: sessions, and all rows about them in every table.

        ```python
        receipt = await catalog.scoped({"owner_id": "u1"}).erase(by="ana@example.com")
        receipt.complete, receipt.to_dict()
        ```

        This deletes histories, metadata, search rows, runs with their results, answers to keys,
        ChatKit's items, attachments and votes, decisions about calls, and rows of the usage ledger.
        Runs that work lose their lease: they cannot write any more. In a scope and without `where`,
        it also deletes attachments that were not sent. In a scope on `owner_id` alone, it also
        deletes the owner's decisions and usage whose session is gone.

        Each transaction erases some sessions completely. If it stops, call it again. At the end, it
        looks for rows once more.

        Args:
            where: A filter. It is optional in a scope.
            usage: `"anonymize"` keeps the numbers in the usage ledger, with agent and model, and
                clears owner, session and item.
            by: The name of the person as in `SessionRuns.decide`, which is cleared in decisions
                about sessions of others.
            batch_size: The number of sessions per transaction, 1 to 1,000.
            progress: Called after each transaction with the number of erased sessions so far.

        Returns:
            The receipt. If it is not `complete`, others have written in the meantime: end their
            requests and call this again.

        Raises:
            InvalidFilterError: If the filter is invalid.
            ScopeError: If the catalog is read-only.
            TablesMissingError: If tables are missing and `create_tables` is off.
            ValueError: If there is neither a scope nor a filter with a condition, or another
                argument is invalid.
        """
        from .rights import erase

        condition, store = self._store.condition(where), self._store
        if condition.constant:
            raise ValueError("erase needs a scope, or a filter with a condition")
        if usage not in ("delete", "anonymize"):
            raise ValueError(f"usage must be 'delete' or 'anonymize', got {quoted(usage)}")
        check_limit(batch_size, LONGEST_PAGE, "batch_size")
        values, owner = ({}, None) if where is not None else (store.scope.values, store.owner)
        erased = Erased(values, owner, by, keeps_usage=usage == "anonymize")
        return await erase(store, condition, erased, batch_size=batch_size, progress=progress)

    # ---- histories ----

    async def list_items(
        self,
        session_id: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
        after: int | str | None = None,
        around: int | str | None = None,
        max_bytes: int | None = None,
    ) -> ItemPage:
        """Return a page of the items of a session's history, in the order of `get_items`.

        ```python
        page = await catalog.list_items("chat-1", around=hit.item_id, limit=20)
        earlier = await catalog.list_items("chat-1", cursor=page.previous_cursor, limit=20)
        ```

        Rows that are not valid JSON are skipped, as in the SDK. Items that were written through
        `EncryptedSession` are returned encrypted. Iterating over all pages returns every item that
        exists during the whole iteration exactly once.

        Args:
            session_id: The session's id.
            limit: The maximum number of items per page, 1 to 1,000.
            cursor: The `next_cursor` or `previous_cursor` of another page, for the same session,
                order and scope. Pass at most one of `cursor`, `after` and `around`.
            newest_first: Return the newest items first instead of the oldest.
            after: The item before the first item of the page, as in `get_item`; with
                `newest_first`, the page has older items.
            around: The item in the middle of the page, as in `get_item`: half of the page comes
                before it. The oldest item is first.
            max_bytes: The maximum size of the stored JSON of all items on the page. The page ends
                before the item that would exceed it, and has a `next_cursor`. The first item is
                always returned. Items that are not on the page are not read into memory. With
                `around`, each half can have half of the bytes.

        Returns:
            The page. It is empty if the session does not exist.

        Raises:
            InvalidCursorError: If the cursor is damaged or belongs to another query.
            ItemNotFoundError: If the item in `after` or `around` does not exist.
            SessionNotFoundError: If the session does not exist, with `after` or `around`.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If an id has the wrong type.
            ValueError: If `limit` or `max_bytes` is out of range, if more than one of `cursor`,
                `after` and `around` is given, or `around` with `newest_first`.
        """
        check_limit(limit, LONGEST_PAGE)
        places = {"cursor": cursor, "after": after, "around": around}
        given = [name for name, place in places.items() if place is not None]
        if len(given) > 1:
            raise ValueError(f"pass only one of {' and '.join(given)}")
        if around is not None and newest_first:
            raise ValueError("a page around an item is oldest first; leave newest_first out")
        for item_id in (after, around):
            if item_id is not None:
                check_item_id(item_id)
        if max_bytes is not None:
            check_limit(max_bytes, 2**63 - 1, "max_bytes")
        return await list_items(
            self._store,
            session_id,
            limit=limit,
            cursor=cursor,
            newest_first=newest_first,
            after=after,
            around=around,
            max_bytes=max_bytes,
        )

    async def get_item(self, session_id: str, item_id: int | str) -> ItemInfo:
        """Return one item of a history: `await catalog.get_item("chat-1", "msg_1")`.

        Args:
            session_id: The session's id.
            item_id: The `item_id` of an `ItemInfo`, which is the number of its row, or the `id`
                that the item itself has, a string. The newest item with that `id` is returned.

        Returns:
            The item.

        Raises:
            ItemNotFoundError: If the history does not have the item.
            SessionNotFoundError: If the session does not exist.
            TypeError: If an id has the wrong type.
        """
        return await get_item(self._store, session_id, item_id)

    async def add_items(
        self,
        session_id: str,
        items: Iterable[Mapping[str, Any]],
        *,
        key: str | None = None,
        unique_ids: bool = False,
    ) -> list[ItemInfo]:
        """Append items to a session that exists and has no run, in one transaction.

        ```python
        message = {"role": "user", "content": "Which tram goes to the castle?"}
        [info] = await catalog.add_items("chat-1", [message], key=request_id)
        ```

        The session becomes the most recently active one. Without `key`, no table of this package is
        needed.

        Args:
            session_id: The session's id.
            items: The items, oldest first.
            key: A key of this request, 1 to 255 characters. For 24 hours, another call with the
                same key and items appends nothing and returns the same. If two calls come at the
                same time, one of them appends.
            unique_ids: Whether to refuse an item whose own `id` the history has already, or another
                item of `items`.

        Returns:
            The new items.

        Raises:
            ItemExistsError: If `unique_ids` is set, and an `id` is there already.
            KeyReusedError: If the key was used with other items in this session.
            SessionBusyError: If a run of the session works or is interrupted.
            SessionNotFoundError: If the session does not exist.
            SessionPausedError: If a run of the session waits.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If the id is not a string, or an item not a mapping or not JSON.
            ValueError: If the key is not valid.
        """
        check_id_type(session_id)
        texts = self._texts(items)
        work = appending(self._store, session_id, texts, unique_ids=unique_ids)
        if key is None:
            return await self._store.database.write(work, prepare=self._store.is_restricted)
        from .idempotency.feature import append_once

        return await append_once(self._store, session_id, key, texts, work)

    async def delete_item(self, session_id: str, item_id: int | str) -> None:
        """Delete one item of a history. This does not change `updated_at`, like `pop_item`.

        An item that belongs to another one, such as the output of a call, is deleted alone. To
        remove the end of a history, use `rewind_session`.

        Args:
            session_id: The session's id.
            item_id: The item, as in `get_item`.

        Raises:
            ItemNotFoundError: If the history does not have the item.
            SessionBusyError: If a run of the session works or is interrupted.
            SessionNotFoundError: If the session does not exist.
            SessionPausedError: If a run of the session waits.
            TypeError: If an id has the wrong type.
        """
        await delete_item(self._store, session_id, item_id)

    async def rewind_session(
        self,
        session_id: str,
        *,
        turns: int | None = None,
        before: int | None = None,
        expect_last: int | None = None,
    ) -> list[ItemInfo]:
        """As `SQLAlchemyMetadataSession.rewind`, by id: for sessions behind a wrapper."""
        return await rewind(self._store, session_id, Cut(turns, before, expect_last))

    async def fork_session(
        self,
        session_id: str,
        new_id: str | None = None,
        *,
        metadata: Mapping[str, JSONValue] | None = None,
        before: int | None = None,
    ) -> SQLAlchemyMetadataSession:
        """Copy a session in one transaction: `catalog.fork_session("chat-1", before=item_id)`.

        The metadata of the copy contains the id of this session under `forked_from`, and `before`,
        if it is given, under `forked_before`. A copy of a copy contains only its direct original.
        `pinned`, `archived` and the keys in `keys.RUN_KEYS`, which describe the runs of the
        original, are not copied, so that statistics count each run once.

        A history written through `EncryptedSession` cannot be read under another id: its key is
        derived from the id.

        Args:
            session_id: The session to copy.
            new_id: The id of the copy; random by default.
            metadata: Metadata to set in the copy.
            before: The `item_id` of the first item that is not copied; by default all items are
                copied.

        Returns:
            The copy.

        Raises:
            InvalidMetadataError: If a key or value cannot be stored.
            MetadataLimitError: If a limit is exceeded.
            ScopeError: If the metadata contradicts the scope.
            SessionExistsError: If the new id is in use.
            SessionNotFoundError: If the session does not exist.
            SessionBusyError: If a run of the session works or is interrupted.
            SessionPausedError: If a run of the session waits.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If an id is not a string, or `before` not an integer.
            ValueError: If the new id is not valid for metadata, if `metadata` contradicts
                `forked_from` or `forked_before`, or if the copy cannot end before that item, as in
                `SQLAlchemyMetadataSession.rewind`.
        """
        name = str(uuid.uuid4()) if new_id is None else new_id
        check_id_type(session_id)
        cut = None if before is None else Cut(before=before)
        work = fork(self._store, session_id, name, metadata or {}, cut)
        await self._store.database.write(work)
        return self.session(name)

    # ---- export and import ----

    async def export_sessions(
        self, where: Where | None = None, *, on_corrupt: OnCorrupt | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Iterate over JSON records: `async for record in catalog.export_sessions({"agent": "x"})`.

        A record contains the id, times, metadata and items of a session at one moment, and the
        version of the format. An encrypted history stays encrypted.

        Args:
            where: A filter; all sessions by default.
            on_corrupt: Called with a `CorruptMetadataError` for each stored value that is
                not valid JSON, instead of raising it; the session is left out.

        Yields:
            The records, for `import_sessions`.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON, without `on_corrupt`.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        condition = self._store.condition(where)
        after: SessionPosition | None = None
        while True:
            read = partial(read_records, self._store, condition, after)
            found, records = await self._store.database.read_snapshot(read)
            for each, record in zip(found, records, strict=True):
                each.checked(on_corrupt)
                if not each.errors:
                    yield record
            if len(found) < EXPORTED:
                return
            after = found[-1].position

    async def import_sessions(
        self,
        records: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
        on_conflict: OnConflict = "error",
        *,
        on_invalid: Callable[[Exception], object] | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Write records of `export_sessions`: `catalog.import_sessions(other.export_sessions())`.

        Records are written in batches. An invalid record, a conflict or a database error stops the
        import: the error contains the position of the record, and the records before it are
        written. A database error, such as for a record that is too large for the server, is raised
        as SQLAlchemy raises it, with the position in `detail`.

        Args:
            records: The records.
            on_conflict: What to do if a session exists: stop with an error, skip the record, or
                replace the session.
            on_invalid: Called with the error of each record that cannot be written. The record is
                skipped and the import continues. Without it, the error is raised.
            progress: Called after each transaction with the number of processed records so far.

        Returns:
            The number of sessions written.

        Raises:
            InvalidMetadataError: If a record, or metadata in it, is invalid.
            MetadataLimitError: If metadata exceeds a limit.
            ScopeError: If metadata contradicts the scope.
            SessionExistsError: If a session exists and `on_conflict` is `"error"`.
            SessionNotFoundError: If a session to replace exists outside the scope.
            TablesMissingError: If tables are missing and `create_tables` is off.
            ValueError: If an id is not valid for metadata, or `on_conflict` is not one of the three
                values.
        """
        if on_conflict not in get_args(OnConflict):
            raise ValueError(
                f"on_conflict must be 'error', 'skip' or 'replace', got {quoted(on_conflict)}"
            )
        ensure_ascii = self._session_arguments["ensure_ascii"]
        importing = Import(self._store, on_conflict, ensure_ascii, on_invalid, progress)
        return await importing.run(records)

    # ---- indexes and search ----

    async def create_index(
        self,
        key: str,
        *,
        native: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> bool:
        """Create an index: `await catalog.create_index("$text")`. Metadata keys need none.

        `"$updated_at"` is an SQL index on the SDK's sessions table. It makes pages by `updated_at`,
        `last_session`, `find_sessions_by_metadata(limit=…)` and retention fast, whatever the
        filter, and never changes a result. This package creates it with the sessions table. If the
        table was created by something else, call this once. A process that is running uses the
        index within a minute. On MariaDB and MySQL, creating it can block other writers for up to
        five seconds per attempt. A transaction of another writer can also end with a deadlock then,
        which this package retries and the plain SDK raises.

        `"$text"` is the index for `search`: a row with the words of each message. It is filled in
        steps. If that was interrupted, call this again to continue. Processes that are running add
        the messages that they write from their next search on; until then, these are added like
        those of other writers. Creating its SQL index of all messages can block other writers like
        `"$updated_at"`.

        Args:
            key: `"$updated_at"` or `"$text"`.
            native: For `"$text"`, whether to also create the database's own full-text index, FTS5
                on SQLite or GIN on PostgreSQL. Rare words are then found fast among all sessions.
            progress: Called with the number of indexed sessions so far, or of messages.

        Returns:
            Whether an index was created. False if it exists already.

        Raises:
            ScopeError: If the catalog has a scope.
            TablesMissingError: If tables are missing and `create_tables` is off.
            UnsupportedDialectError: If the database has no such full-text index.
            ValueError: If the key is another one, or `native` is set for `"$updated_at"`.
        """
        from .indexes import create_index

        self._check_unscoped("create_index")
        if not native:
            return await create_index(self._store.database, key, progress)
        from .search.feature import add_native, check_native

        check_native(self._store.database, key)
        created = await create_index(self._store.database, key, progress)
        return await add_native(self._store.database) or created

    async def drop_index(self, key: str) -> bool:
        """Drop an index: `await catalog.drop_index("$text")`. `search` then raises an error.

        If version 0.2.0 created an index on a metadata key, this removes it, and with the last one
        all of their triggers and tables. Do that when no process of that version is running.

        Args:
            key: `"$updated_at"`, `"$text"`, or the key of an index of version 0.2.0.

        Returns:
            Whether the index existed.

        Raises:
            ScopeError: If the catalog has a scope.
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        from .indexes import drop_index

        self._check_unscoped("drop_index")
        return await drop_index(self._store.database, key)

    async def list_indexes(self, *, count: bool = False) -> list[IndexInfo]:
        """List the indexes, ordered by key.

        Args:
            count: Whether to count their entries.

        Returns:
            The indexes; an empty list if there are none, also if tables are missing. Those that
            version 0.2.0 created on metadata keys are `obsolete`.

        Raises:
            ScopeError: If the catalog has a scope.
        """
        from .indexes import list_indexes

        self._check_unscoped("list_indexes")
        return await list_indexes(self._store.database, count=count)

    async def refresh_index(
        self, key: str, *, progress: Callable[[int], object] | None = None
    ) -> int:
        """Add the messages of other writers to the text index, in short transactions.

        Only the text index needs this, and only after many messages of writers that do not use this
        package: each search adds those that it meets, up to 1,000.

        Args:
            key: `"$text"`.
            progress: Called with the number of messages added so far.

        Returns:
            The number of messages added.

        Raises:
            ScopeError: If the catalog has a scope.
            TablesMissingError: If there is no text index.
            ValueError: If the key is not `"$text"`.
        """
        from .search.feature import KEY, refresh

        self._check_unscoped("refresh_index")
        if key != KEY:
            raise ValueError(f"only the index {KEY!r} can be refreshed, got {key!r}")
        await self._store.database.ensure()
        return await refresh(self._store.database, progress)

    async def search(
        self,
        query: str,
        where: Where | None = None,
        *,
        limit: int = 20,
        cursor: str | None = None,
        by_session: bool = False,
    ) -> SearchPage:
        """Find the messages and titles that contain all words of a query, newest first.

        ```python
        await catalog.create_index("$text")  # once per database
        page = await catalog.search('lisbon "tram 28" alf* -bus', {"owner_id": "u1"})
        ```

        The search covers the text of user and assistant messages and the `title` of each session.
        It does not cover system messages, tool calls, tool output or reasoning. Case, and accents
        on Latin, Greek and Cyrillic letters, are ignored. `"…"` is a phrase, a trailing `*` a
        prefix, and a leading `-` excludes. A term of several words, such as `e-mail`, is a phrase.
        In Chinese, Japanese and Korean text, a term is also found inside longer text. Encrypted
        histories cannot be searched.

        Hits are ordered by time, then item id, both descending. A title is at the position of the
        newest message of its session.

        Messages of writers that do not use this package are read and compared if they are met, and
        up to 1,000 of them are added to the index. If the database user may only read, nothing is
        added, and the result is the same.

        Args:
            query: One to 32 terms, at least one of them not excluded.
            where: A filter for the sessions to search; all sessions by default.
            limit: The maximum number of hits per page, 1 to 100.
            cursor: The `next_cursor` of the previous page, for the same query, filter and scope.
            by_session: Whether to return only the newest hit of each session.

        Returns:
            A page of hits.

        Raises:
            InvalidCursorError: If the cursor is damaged or belongs to another question.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If there is no text index. The error says how to create it.
            TypeError: If the query is not a string.
            ValueError: If all terms of the query are excluded, if there are none or more than 32,
                or if `limit` is out of range.
        """
        from .search.pages import search
        from .search.query import parse_query

        parsed = parse_query(query)
        check_limit(limit, 100)
        condition = self._store.condition(where)
        return await search(
            self._store, parsed, condition, limit=limit, cursor=cursor, by_session=by_session
        )

    async def storage(self) -> list[TableSize]:
        """Count the rows and bytes of the tables of the SDK and this package.

        All rows are counted, which takes time on large tables.

        Returns:
            The sizes of the tables that exist; an empty list if there are none.

        Raises:
            ScopeError: If the catalog has a scope.
        """
        self._check_unscoped("storage")
        tables = self._store.database.tables
        return await self._store.database.look(lambda connection: table_sizes(connection, tables))

    # ---- usage of tracked runs ----

    async def usage(
        self,
        *,
        owner_id: JSONValue = None,
        session_id: str | None = None,
        by: Sequence[str] = ("day", "model"),
        since: date | None = None,
        until: date | None = None,
        limit: int | None = None,
    ) -> list[UsageRow]:
        """Return the usage of tracked runs: `await catalog.usage(by=("day", "model"))`.

        Rows are kept when their session is deleted. In a scope on `owner_id`, the rows of that
        owner are counted. In any other scope, the rows of the sessions that exist in the scope are
        counted. In a scope on `owner_id` and other keys, both conditions apply.

        Args:
            owner_id: Count only usage of sessions while they had this `owner_id`.
            session_id: Count only usage of this session.
            by: The fields to group by: any of `day`, `agent`, `model`, `owner_id`, `session_id`,
                `item_id`. An empty tuple returns one row, or none if there is no usage.
            since: The first day, in UTC: a date, or an aware datetime on that day.
            until: The last day, in the same form.
            limit: Return only the groups with the highest cost, at most this number of them, from 1
                to 100. None returns all groups.

        Returns:
            One row per group, ordered by the fields of `by`; an empty list if nothing was recorded,
            also if the ledger's table is missing.

        Raises:
            InvalidMetadataError: If `owner_id` is not JSON.
            TypeError: If an argument has the wrong type.
            ValueError: If `by` names an unknown field, `limit` is out of range, or a datetime has
                no time zone.
        """
        from .usage.feature import read_usage

        return await read_usage(
            self._store,
            owner_id=owner_id,
            session_id=session_id,
            by=by,
            since=since,
            until=until,
            limit=limit,
        )

    async def delete_usage(self, *, before: date) -> int:
        """Delete rows of the usage ledger from before a day, in short transactions.

        In a scope, only the rows that `usage` counts there are deleted.

        Args:
            before: The first day to keep, in UTC: a date, or an aware datetime on that day.

        Returns:
            The number of deleted rows.

        Raises:
            TablesMissingError: If the ledger's table is missing and `create_tables` is off.
            TypeError: If `before` is neither a date nor a datetime.
            ValueError: If it is a datetime without a time zone.
        """
        from .usage.feature import delete_usage

        return await delete_usage(self._store, before=before)

    async def statuses(self, sessions: Iterable[SessionInfo]) -> dict[str, str]:
        """Return what sessions of a list do now, whichever parts of the package they use.

        ```python
        page = await catalog.list_sessions({"owner_id": "u1"})
        statuses = await catalog.statuses(page)  # {"chat-1": "waiting", "chat-2": "completed"}
        ```

        Args:
            sessions: Sessions that were read with the keys `run`, `status` and `runs`.

        Returns:
            The status by session id: that of the run (`running`, `waiting`, `interrupted`,
            `failed`), else that of the lifecycle, else `completed` if a tracked run has ended.
            Sessions without any of them are left out.
        """
        from .usage.statistics import read_statuses

        return await read_statuses(self._store, sessions)

    async def status_filter(self, status: str) -> JSONObject:
        """Return a filter for the sessions that have this status in `statuses`.

        ```python
        failed = await catalog.list_sessions(await catalog.status_filter("failed"))
        ```

        Of the runs that are stored as working, up to 1,000 are looked at.

        Args:
            status: The status.

        Returns:
            The filter. That for `running` and `interrupted` holds at this moment.
        """
        from .usage.statistics import status_filter

        return await status_filter(self._store, status)

    async def statistics(self, where: Where | None = None) -> Statistics:
        """Add up what lifecycle and tracker recorded: `catalog.statistics({"owner_id": "u1"})`.

        Args:
            where: A filter; all sessions by default.

        Returns:
            The totals.

        Raises:
            CorruptMetadataError: If a value that is counted or added is not valid JSON.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        from .usage.statistics import read_statistics

        return await read_statistics(self._store, self._store.condition(where))

    async def daily_statistics(
        self,
        where: Where | None = None,
        *,
        since: date,
        until: date | None = None,
        limit: int = 10_000,
        on_corrupt: OnCorrupt | None = None,
    ) -> DailyStatistics:
        """Add up sessions by the day on which they were created, for charts.

        ```python
        month = await catalog.daily_statistics(since=date(2026, 3, 1), until=date(2026, 3, 31))
        failed = {each.day: each.by_status.get("failed", 0) for each in month.days}
        ```

        Only the newest `limit` sessions are read, so the cost is bounded. For tokens and cost by
        day, use `usage(by=("day",))`.

        Args:
            where: A filter; all sessions by default.
            since: The first day, in UTC: a date, or an aware datetime on that day.
            until: The last day, in the same form; no limit by default.
            limit: The maximum number of sessions to count.
            on_corrupt: As in `list_sessions`, for the values that are counted.

        Returns:
            The totals of each day and of all days.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON, without `on_corrupt`.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `since` or `until` is neither a date nor a datetime.
            ValueError: If `limit` is not a positive integer, or a datetime has no time zone.
        """
        from .usage.statistics import read_daily

        check_limit(limit)
        return await read_daily(
            self._store, where, since=since, until=until, limit=limit, on_corrupt=on_corrupt
        )

    async def feedback(self, session_id: str) -> list[Feedback]:
        """Return the votes of users on items, which `CatalogStore.add_feedback` stores.

        Args:
            session_id: The id of the session.

        Returns:
            The newest vote on each item, oldest first. It is empty if the session does not exist,
            or if there are no votes.

        Raises:
            TypeError: If the id is not a string.
        """
        from .threads.feature import read_feedback

        return await read_feedback(self._store, session_id)

    # ---- helpers ----

    def _texts(self, items: Iterable[Mapping[str, Any]]) -> list[str]:
        return item_texts(items, ensure_ascii=self._session_arguments["ensure_ascii"])

    async def _read(self, work: Callable[[Reader], T]) -> T:
        return await read_sessions(self._store.database, work)

    def _check_unscoped(self, method: str) -> None:
        if self._store.scope:
            raise ScopeError(
                None if self.read_only else next(iter(self._store.scope.values), None),
                f"{method} needs a catalog without a scope: it concerns all sessions",
            )


def _derived_id(values: Mapping[str, EncodedValue], attempt: int) -> str:
    """Returns the first half of the SHA-256, in hexadecimal, of a JSON text.

    The text is `[version, attempt, [[key, search key in hexadecimal], …]]`, ASCII, without spaces,
    in the order of the keys' code points. `attempt` is the number of earlier ids that are taken.
    """
    keys = [
        [key, (value.search.indexed + value.search.rest).hex()]
        for key, value in sorted(values.items())
    ]
    text = json.dumps([_DERIVED_VERSION, attempt, keys], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]

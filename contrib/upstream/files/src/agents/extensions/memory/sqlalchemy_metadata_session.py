"""SQLAlchemy-powered Session backend that also stores metadata for each session.

Usage::

    from agents.extensions.memory import SQLAlchemyMetadataSession

    session = SQLAlchemyMetadataSession.from_url(
        "chat-1", url="sqlite+aiosqlite:///chat.db", create_tables=True
    )
    await session.set_metadata({"owner_id": "user_123", "title": "My chat"})
    await session.find_sessions_by_metadata("owner_id", "user_123")  # ["chat-1"]
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, cast

from sqlalchemy import (
    ColumnElement,
    CursorResult,
    Select,
    and_,
    delete,
    insert,
    select,
    text as sql_text,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from ...items import TResponseInputItem
from ...memory.session import _CompactionSnapshot
from ...memory.sqlite_session import _await_mutation
from . import _sqlalchemy_metadata_tables as db
from ._session_metadata_values import (
    LIST,
    EncodedValue,
    JSONValue,
    MetadataLimits,
    SearchKey,
    check_key,
    decode_value,
    encode_metadata,
    encode_text,
    encode_value,
    is_text,
    json_text,
    key_problem,
)
from .sqlalchemy_session import SQLAlchemySession

_T = TypeVar("_T")

_NOT_GIVEN: Final[Any] = object()
_RETRY_DELAYS = tuple(0.01 * 2**attempt for attempt in range(9))


class SQLAlchemyMetadataSession(SQLAlchemySession):
    """A `SQLAlchemySession` that also stores metadata for each session.

    Metadata is a set of JSON values by key, stored in two tables next to those of
    `SQLAlchemySession`. It is deleted together with the session's row, by `clear_session()` or by
    any other writer, and survives compaction. Writing it does not change `updated_at`.

    Every method that writes metadata raises a `ValueError` before it writes anything if a key or
    value cannot be stored, if a limit is exceeded, or if the session's id has more than 255
    characters.
    """

    def __init__(
        self,
        session_id: str,
        *,
        engine: AsyncEngine,
        sessions_table: str = "agent_sessions",
        metadata_table: str | None = None,
        metadata_limits: MetadataLimits | None = None,
        **kwargs: Any,
    ):
        """Initializes a new SQLAlchemyMetadataSession.

        Args:
            session_id (str): Unique identifier for the conversation.
            engine (AsyncEngine): An async engine for SQLite, PostgreSQL, MySQL or MariaDB.
            sessions_table (str, optional): Override the default table name for sessions.
            metadata_table (str, optional): Override the table name for metadata. Defaults to the
                name of the sessions table with the suffix `_metadata`.
            metadata_limits (MetadataLimits, optional): How much metadata a session may have.
            **kwargs: The other arguments of `SQLAlchemySession`. `create_tables=True` also creates
                the metadata tables and, on SQLite, triggers.

        Raises:
            ValueError: If the engine is for another database.
        """
        if engine.dialect.name not in db.SUPPORTED_DIALECTS:
            supported = ", ".join(db.SUPPORTED_DIALECTS)
            raise ValueError(f"the database must be one of {supported}, got {engine.dialect.name}")
        super().__init__(session_id, engine=engine, sessions_table=sessions_table, **kwargs)
        self._rows, self._elements = db.define_metadata_tables(
            self._sessions, metadata_table or db.derived_name(sessions_table, "_metadata")
        )
        self._metadata_limits = metadata_limits or MetadataLimits()

    async def set_metadata(self, values: Mapping[str, JSONValue]) -> None:
        """Store metadata in one transaction. Other keys stay as they are.

        Creates the session's row if it does not exist yet. An empty mapping does nothing.

        Args:
            values: JSON values by key. `None` is a value; use `delete_metadata` to remove a key.
        """
        encoded = encode_metadata(values, self._metadata_limits)
        if not encoded:
            return
        stored = select(self._rows.c.key, self._rows.c.search_key).where(self._own_rows())

        async def work(sess: AsyncSession) -> None:
            await self._lock_session(sess, create=True)
            result = await sess.execute(stored.with_for_update())
            await self._write_rows(sess, {row.key: row.search_key for row in result}, encoded)

        await self._write(work)

    async def get_metadata(self, keys: Iterable[str] | None = None) -> dict[str, JSONValue]:
        """Read metadata.

        Args:
            keys: The keys to read. If None, reads every stored key.

        Returns:
            The values by key. With `keys`, keys that are not stored have the value `None`.
        """
        wanted = _listed(keys)
        stored = await self._read(self._texts(wanted))
        found = {key: decode_value(text) for key, text, _ in stored}
        return found if wanted is None else {key: found.get(key) for key in wanted}

    async def delete_metadata(self, keys: Iterable[str] | None = None) -> int:
        """Delete metadata. Messages stay.

        Args:
            keys: The keys to delete. If None, deletes every stored key.

        Returns:
            The number of deleted keys.
        """
        own = self._own_rows(_listed(keys))

        async def work(sess: AsyncSession) -> int:
            if not await self._lock_session(sess):
                return 0
            result = await sess.execute(delete(self._rows).where(own))
            return cast("CursorResult[Any]", result).rowcount

        return await self._write(work)

    async def edit_metadata(
        self, change: Callable[[dict[str, JSONValue]], object]
    ) -> dict[str, JSONValue]:
        """Read, change and write metadata while no other caller can write it.

        Writes only the keys that changed. If nothing changed, writes nothing.

        Args:
            change: A plain function that changes the given dict in place. It runs again after a
                conflict with another writer, so it must have no other side effects. If it raises,
                nothing is written.

        Returns:
            The metadata after the change.

        Raises:
            TypeError: If `change` is a coroutine function.
        """
        if inspect.iscoroutinefunction(change):
            raise TypeError("edit_metadata() requires a plain function, got a coroutine function")
        statement, limits = self._texts().with_for_update(), self._metadata_limits

        async def work(sess: AsyncSession) -> dict[str, JSONValue]:
            await self._lock_session(sess, create=True)
            result = await sess.execute(statement)
            stored = {key: (text, search_key) for key, text, search_key in result}
            metadata = {key: decode_value(text) for key, (text, _) in stored.items()}
            change(metadata)
            texts: dict[str, str] = {}
            changed: dict[str, EncodedValue] = {}
            for key, value in sorted(metadata.items(), key=lambda item: str(item[0])):
                name = key if key in stored else check_key(key, limits)
                texts[name] = json_text(name, value, limits)
                if name not in stored or stored[name][0] != texts[name]:
                    changed[name] = encode_text(name, value, texts[name], limits)
            removed = stored.keys() - texts.keys()
            if not changed and not removed:
                await sess.rollback()
            else:
                if removed:
                    await sess.execute(delete(self._rows).where(self._own_rows(removed)))
                kept = {key: stored[key][1] for key in stored.keys() - removed}
                await self._write_rows(sess, kept, changed)
            return {key: decode_value(text) for key, text in texts.items()}

        return await self._write(work)

    async def find_sessions_by_metadata(
        self,
        key: str | Mapping[str, JSONValue],
        value: JSONValue = _NOT_GIVEN,
        *,
        limit: int | None = None,
    ) -> list[str]:
        """Find sessions, this one or others, whose metadata has the given values.

        Values are compared exactly: text is case-sensitive, `1` equals `1.0`, and `True` and `"1"`
        do not equal `1`. Lists and objects are compared as a whole.

        Args:
            key: A metadata key, or a mapping of keys to values that must all match.
            value: The value to find. Required with a single key.
            limit: Maximum number of session ids. If None, returns all.

        Returns:
            Session ids, most recently active first.

        Raises:
            TypeError: If a key is given without a value, or a mapping with one.
        """
        if isinstance(key, str) == (value is _NOT_GIVEN):
            raise TypeError("find_sessions_by_metadata() requires a key and a value, or a mapping")
        sessions, rows = self._sessions, self._rows
        statement = select(sessions.c.session_id).order_by(
            sessions.c.updated_at.desc(), sessions.c.session_id.desc()
        )
        limits = self._metadata_limits
        for name, wanted in ({key: value} if isinstance(key, str) else key).items():
            search = encode_value(check_key(name, limits), wanted, limits).search
            same = and_(rows.c.search_key == search.indexed, rows.c.search_rest == search.rest)
            having = select(rows.c.session_id).where(rows.c.key == name, same)
            statement = statement.where(sessions.c.session_id.in_(having))
        return [row.session_id for row in await self._read(statement.limit(limit))]

    def _own_rows(self, keys: Iterable[str] | None = None) -> ColumnElement[bool]:
        if not 1 <= len(self.session_id) <= db.MAX_ID_LENGTH or not is_text(self.session_id):
            raise ValueError(
                f"to have metadata, session_id must have 1 to {db.MAX_ID_LENGTH} characters and no "
                f"NUL or lone surrogates, got {ascii(self.session_id)[:80]}"
            )
        own = self._rows.c.session_id == self.session_id
        if keys is None:
            return own
        # A key that cannot be stored is not found. Drivers refuse some of them as a parameter.
        return and_(own, self._rows.c.key.in_([key for key in keys if key_problem(key) is None]))

    def _texts(self, keys: Iterable[str] | None = None) -> Select[Any]:
        columns = self._rows.c
        own = self._own_rows(keys)
        texts = select(columns.key, columns.value, columns.search_key).where(own)
        return texts.order_by(columns.key)

    async def _write_rows(
        self, sess: AsyncSession, stored: Mapping[str, bytes], encoded: Mapping[str, EncodedValue]
    ) -> None:
        """Upsert values of a locked session; `stored` has the search keys of its present values."""
        new = [key for key in encoded if key not in stored]
        allowed, size = self._metadata_limits.max_keys, len(stored) + len(new)
        if new and size > allowed:
            error = self._metadata_limits.size_error
            raise error("max_keys", key=new[-1], size=size, allowed=allowed)
        rows = [self._row(key, value.search, value=value.text) for key, value in encoded.items()]
        if rows:
            await sess.execute(db.upsert_rows(self._engine.dialect, self._rows), rows)
        # Deleting rows that do not exist would lock gaps on MySQL, and writers would deadlock.
        lists = [key for key in encoded if bytes(stored.get(key, b""))[:1] == LIST]
        if lists:
            elements = self._elements.c
            stale = elements.session_id == self.session_id, elements.key.in_(lists)
            await sess.execute(delete(self._elements).where(*stale))
        parts = [
            self._row(key, element, position=position)
            for key, value in encoded.items()
            for position, element in enumerate(value.elements)
        ]
        if parts:
            await sess.execute(insert(self._elements), parts)

    def _row(self, key: str, search: SearchKey, **columns: Any) -> dict[str, Any]:
        columns |= {"search_key": search.indexed, "search_rest": search.rest}
        return {"session_id": self.session_id, "key": key, **columns}

    async def _read(self, statement: Select[Any]) -> list[Any]:
        await self._ensure_tables()

        async def read() -> list[Any]:
            async with self._session() as sess:
                await db.check_settings(sess)
                return list((await sess.execute(statement)).all())

        return await self._run_sqlite_write_with_retry(read)

    async def _write(self, work: Callable[[AsyncSession], Awaitable[_T]]) -> _T:
        """Run work in one transaction. It must lock the session before it reads."""
        await self._ensure_tables()

        async def write() -> _T:
            async with self._session() as sess, sess.begin():
                await db.check_settings(sess)
                return await work(sess)

        return await _await_mutation(self._run_sqlite_write_with_retry(write))

    # ------------------------------------------------------------------
    # Hooks of SQLAlchemySession and of compaction
    # ------------------------------------------------------------------
    async def _run_sqlite_write_with_retry(self, operation: Callable[[], Awaitable[_T]]) -> _T:
        """Retry transient errors of every database: lock timeouts, deadlocks, serialization."""
        return await _retry(operation, db.is_transient)

    async def _lock_session(self, sess: AsyncSession, *, create: bool = False) -> bool:
        if not create:
            return await super()._lock_session(sess)
        await sess.execute(
            db.lock_or_create_session(self._engine.dialect, self._sessions, self.session_id)
        )
        return True

    async def _ensure_tables(self) -> None:
        if not self._create_tables:
            return

        assert self._init_lock is not None
        while not self._init_lock.acquire(blocking=False):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        try:
            if self._create_tables:
                await _await_mutation(_retry(self._create_missing_tables, db.is_transient_creation))
        finally:
            self._init_lock.release()

    async def _create_missing_tables(self) -> None:
        tables = (self._sessions, self._messages, self._rows, self._elements)
        async with self._connection_guard(), self._engine.begin() as conn:
            await conn.run_sync(db.create_missing_tables, tables)
        self._create_tables = False

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace the history in one transaction and keep the session's row and metadata.

        Compaction would otherwise call `clear_session()`, which deletes the metadata.
        """
        payload = [
            {"session_id": self.session_id, "message_data": await self._serialize_item(item)}
            for item in items
        ]

        async def work(sess: AsyncSession) -> None:
            if not await self._lock_session(sess, create=bool(payload)):
                return
            own = self._messages.c.session_id == self.session_id
            await sess.execute(delete(self._messages).where(own))
            if payload:
                await sess.execute(insert(self._messages), payload)
            await sess.execute(
                update(self._sessions)
                .where(self._sessions.c.session_id == self.session_id)
                .values(updated_at=sql_text("CURRENT_TIMESTAMP"))
            )

        await self._write(work)
        return True

    async def _get_compaction_snapshot(
        self,
        limit: int,
        *,
        prune_prefix: Callable[[TResponseInputItem], bool] | None = None,
    ) -> _CompactionSnapshot | None:
        if type(self) is not SQLAlchemyMetadataSession:
            return None
        return await self._read_compaction_snapshot(limit, prune_prefix=prune_prefix)


def _listed(keys: Iterable[str] | None) -> list[str] | None:
    if keys is None:
        return None
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys must be a list of keys, got the {type(keys).__name__} {keys!r}")
    return list(keys)


async def _retry(
    operation: Callable[[], Awaitable[_T]], may_pass: Callable[[DBAPIError], bool]
) -> _T:
    """Run an operation again after a transient error, up to ten times within about five seconds."""
    for delay in _RETRY_DELAYS:
        try:
            return await operation()
        except DBAPIError as error:
            if not may_pass(error):
                raise
        # Jitter keeps writers that collided from colliding again.
        await asyncio.sleep(delay * random.uniform(0.5, 1.5))
    return await operation()

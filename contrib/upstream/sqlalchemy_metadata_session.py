"""SQLAlchemy-powered Session backend that also stores metadata for each session.

Usage::

    from agents.extensions.memory import SQLAlchemyMetadataSession

    session = SQLAlchemyMetadataSession.from_url(
        "chat-1", url="sqlite+aiosqlite:///conversations.db", create_tables=True
    )

    await session.set_metadata({"owner_id": "user-123", "title": "Trip to Lisbon"})
    await session.get_metadata(["title"])  # {"title": "Trip to Lisbon"}
    await session.find_sessions_by_metadata("owner_id", "user-123")  # ["chat-1"]

    await Runner.run(agent, "Hello", session=session)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    ForeignKey,
    Index,
    String,
    Table,
    Text,
    delete,
    event,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from ...items import TResponseInputItem
from ...memory.session import _CompactionSnapshot
from ...memory.sqlite_session import _await_mutation
from .sqlalchemy_session import SQLAlchemySession

_T = TypeVar("_T")


class SQLAlchemyMetadataSession(SQLAlchemySession):
    """A `SQLAlchemySession` that also stores metadata for each session.

    Metadata is a set of JSON values by key, in one more table. It lives as long as the session:
    whatever deletes the row of the session, such as `clear_session()`, deletes its metadata.
    Compaction directly around this session keeps it. Writing metadata does not change
    `updated_at`, and `EncryptedSession` does not encrypt it.

    On MySQL and MariaDB, `create_tables=True` fails as for `SQLAlchemySession`, because the SDK's
    ids have no length there: create the tables first. `TEXT` holds 64 KiB per value there, and the
    default collations compare keys without regard to case.
    """

    def __init__(
        self,
        session_id: str,
        *,
        engine: AsyncEngine,
        sessions_table: str = "agent_sessions",
        metadata_table: str = "agent_metadata",
        **kwargs: Any,
    ):
        """Initializes a new SQLAlchemyMetadataSession.

        Args:
            session_id (str): Unique identifier for the conversation.
            engine (AsyncEngine): A pre-configured SQLAlchemy async engine.
            sessions_table (str, optional): Override the default table name for sessions if needed.
            metadata_table (str, optional): Override the default table name for metadata if needed.
                On SQLite, a trigger named after it deletes metadata together with its session:
                drop that trigger before you drop the table.
            **kwargs: The other arguments of `SQLAlchemySession`.
        """
        super().__init__(session_id, engine=engine, sessions_table=sessions_table, **kwargs)
        self._entries = Table(
            metadata_table,
            self._metadata,
            Column(
                "session_id",
                ForeignKey(self._sessions.c.session_id, ondelete="CASCADE"),
                primary_key=True,
            ),
            Column("key", String(255), primary_key=True),
            Column("value", Text, nullable=False),
            # Values are found by a digest, because an index limits the length of its entries.
            Column("digest", String(64), nullable=False),
            Index(f"idx_{metadata_table}_digest", "key", "digest"),
        )
        # The MetaData, unlike a Table, sends this event even when all tables exist already.
        event.listen(self._metadata, "after_create", self._create_trigger)

    def _create_trigger(self, target: object, connection: Connection, **kwargs: Any) -> None:
        # SQLite does not enforce foreign keys by default.
        if connection.dialect.name == "sqlite":
            quote = connection.dialect.identifier_preparer.quote_identifier
            entries, sessions = self._entries.name, self._sessions.name
            connection.exec_driver_sql(
                f"CREATE TRIGGER IF NOT EXISTS {quote(f'{entries}_delete')}"
                f" AFTER DELETE ON {quote(sessions)}"
                f" BEGIN DELETE FROM {quote(entries)} WHERE session_id = OLD.session_id; END"
            )

    async def set_metadata(self, values: Mapping[str, Any]) -> None:
        """Insert or replace the values of the given keys in one transaction.

        Creates the session if it does not exist yet. Other keys keep their values.

        Args:
            values: JSON values by key. A key has at most 255 characters.
        """
        if not values:
            return
        texts = {key: json.dumps(value, allow_nan=False) for key, value in values.items()}
        rows = [
            {"session_id": self.session_id, "key": key, "value": text, "digest": _digest(text)}
            for key, text in texts.items()
        ]

        async def _write_values(sess: AsyncSession) -> None:
            await self._lock_session(sess, create=True)
            await sess.execute(delete(self._entries).where(self._own_entries(list(texts))))
            await sess.execute(insert(self._entries), rows)

        await self._in_transaction(_write_values)

    async def get_metadata(self, keys: Iterable[str] | None = None) -> dict[str, Any]:
        """Retrieve the metadata of this session.

        Args:
            keys: The keys to return. If None, returns all keys that are stored.

        Returns:
            The values by key. The value of a requested key that is not stored is None.
        """
        requested = _listed(keys)
        columns = self._entries.c
        statement = select(columns.key, columns.value).where(self._own_entries(requested))
        await self._ensure_tables()
        async with self._session() as sess:
            stored = {row[0]: json.loads(row[1]) for row in await sess.execute(statement)}
        return stored if requested is None else {key: stored.get(key) for key in requested}

    async def delete_metadata(self, keys: Iterable[str] | None = None) -> int:
        """Delete metadata of this session. The session and its history are kept.

        Args:
            keys: The keys to delete. If None, deletes all keys.

        Returns:
            The number of keys that were deleted.
        """
        own_entries = self._own_entries(_listed(keys))

        async def _delete_values(sess: AsyncSession) -> int:
            if not await self._lock_session(sess):
                return 0
            result = await sess.execute(delete(self._entries).where(own_entries))
            return int(cast(Any, result).rowcount)

        return await self._in_transaction(_delete_values)

    async def find_sessions_by_metadata(
        self, key: str, value: Any, *, limit: int | None = None
    ) -> list[str]:
        """Find the sessions that have this value under this key.

        Values are equal if they have the same JSON type and are equal as a whole, so `1` equals
        `1.0`, but neither `"1"` nor `True`. Strings are compared case-sensitively.

        Args:
            key: The key of the metadata.
            value: The JSON value to look for.
            limit: Maximum number of sessions to return. If None, returns all.

        Returns:
            The ids of the sessions, the most recently active first.
        """
        sessions, messages, entries = self._sessions, self._messages, self._entries
        # Some databases store `updated_at` in whole seconds.
        newest_message = (
            select(func.coalesce(func.max(messages.c.id), 0))
            .where(messages.c.session_id == sessions.c.session_id)
            .scalar_subquery()
        )
        digest = _digest(json.dumps(value, allow_nan=False))
        statement = (
            select(sessions.c.session_id)
            .join(entries, entries.c.session_id == sessions.c.session_id)
            .where(entries.c.key == key, entries.c.digest == digest)
            .order_by(sessions.c.updated_at.desc(), newest_message.desc(), sessions.c.session_id)
            .limit(limit)
        )
        await self._ensure_tables()
        async with self._session() as sess:
            return list((await sess.execute(statement)).scalars())

    def _own_entries(self, keys: list[str] | None) -> ColumnElement[bool]:
        own = self._entries.c.session_id == self.session_id
        return own if keys is None else own & self._entries.c.key.in_(keys)

    async def _in_transaction(self, work: Callable[[AsyncSession], Awaitable[_T]]) -> _T:
        await self._ensure_tables()

        async def _run() -> _T:
            async with self._session() as sess:
                async with sess.begin():
                    return await work(sess)

        return await _await_mutation(self._run_sqlite_write_with_retry(_run))

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        # Clearing the session and adding the items again would delete its metadata.
        rows = [
            {"session_id": self.session_id, "message_data": await self._serialize_item(item)}
            for item in items
        ]

        async def _replace_items(sess: AsyncSession) -> bool:
            if await self._lock_session(sess, create=bool(rows)):
                await sess.execute(
                    delete(self._messages).where(self._messages.c.session_id == self.session_id)
                )
                if rows:
                    await sess.execute(insert(self._messages), rows)
                await sess.execute(
                    update(self._sessions)
                    .where(self._sessions.c.session_id == self.session_id)
                    .values(updated_at=func.current_timestamp())
                )
            return True

        return await self._in_transaction(_replace_items)

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Any = None
    ) -> _CompactionSnapshot | None:
        # A subclass may transform history.
        if type(self) is not SQLAlchemyMetadataSession:
            return None
        return await self._read_compaction_snapshot(limit, prune_prefix=prune_prefix)


def _listed(keys: Iterable[str] | None) -> list[str] | None:
    if isinstance(keys, str):
        raise TypeError(f"keys must be an iterable of keys, got the string {keys!r}")
    return None if keys is None else list(keys)


def _digest(text: str) -> str:
    """Return the same digest for all JSON texts of equal values."""

    def _number(digits: str) -> int | float:
        number = float(digits)
        return int(number) if number.is_integer() else number

    canonical = json.dumps(json.loads(text, parse_float=_number), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()

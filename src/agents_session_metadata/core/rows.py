"""SQL for the rows of one session, on a given connection.

Every write begins by locking the session's row, and reads only under the lock: a snapshot from
before would not show what another writer has just done. Lock order is sessions first, then
metadata, keys sorted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from agents_session_metadata.dialects._dialect import Dialect, Statement, lists_of
from agents_session_metadata.dialects._locks import Reader
from agents_session_metadata.errors import CorruptMetadataError
from agents_session_metadata.text import quoted
from agents_session_metadata.types import JSONValue, Metadata, MetadataLimits
from agents_session_metadata.values import (
    LIST,
    EncodedValue,
    SearchKey,
    check_count,
    decode_value,
    key_problem,
)

from .change_log import note
from .database import Database
from .tables import SessionTables

_REPLACED = ("value", "search_key", "search_rest")
_MANY_KEYS = 500
"""If more keys than this are requested, all keys are read and then filtered."""


class Claim(NamedTuple):
    """A session that is locked for writing. `stored` maps its keys to what the lock has read."""

    created: bool
    stored: dict[str, Any]


class Rows:
    """Statements that do not depend on the call are built once: use `session_rows`."""

    def __init__(self, tables: SessionTables, dialect: Dialect, limits: MetadataLimits) -> None:
        self._limits = limits
        self._tables = tables
        self._dialect = dialect
        sessions, rows = tables.sessions, tables.metadata
        session: BindParameter[str] = bindparam("session")
        own, own_session = (table.c.session_id == session for table in (rows, sessions))
        kind = func.substr(rows.c.search_key, 1, 1, type_=rows.c.search_key.type)
        self._locks = dialect.locks(sessions, rows)
        self._upsert = dialect.upsert(rows, _REPLACED)
        self._upsert_reading = dialect.upsert_reading(rows, _REPLACED, [rows.c.key, kind == LIST])
        self._insert_both = dialect.insert_both(rows, tables.elements)
        # What is read of a session that is locked: texts of all keys, whether each is a list, or
        # nothing if the database can read that in `upsert`.
        self.texts: Reader = self._locks.reader(rows.c.value)
        self.lists: Reader = self._locks.reader(kind == LIST)
        self.before_upsert: Reader = (
            self.lists if self._upsert_reading is None else self._locks.reading_nothing
        )
        texts: Statement = select(rows.c.key, rows.c.value).where(own)
        self._read = texts.order_by(rows.c.key)
        self.looking: Statement = select(sessions.c.session_id).where(own_session)
        self._deletions = [
            delete(table).where(table.c.session_id == session)
            for table in (tables.messages, sessions)
        ]
        self._insert_items = insert(tables.messages).inline()  # The ids of the rows are not read.
        self._touch = (
            update(sessions).where(own_session).values(updated_at=func.current_timestamp())
        )

    # ---- reading ----

    def reading(self, keys: Sequence[str] | None = None) -> Statement:
        statement = self._read
        if keys is not None and len(keys) <= _MANY_KEYS:
            statement = statement.where(self._tables.metadata.c.key.in_(keys))
        return statement

    def search_keys(
        self, connection: Connection, session_id: str, keys: Iterable[str]
    ) -> dict[str, SearchKey]:
        """The session must be locked."""
        rows = self._tables.metadata
        statement: Statement = select(rows.c.key, rows.c.search_key, rows.c.search_rest).where(
            rows.c.session_id == session_id, rows.c.key.in_(keys)
        )
        found: Iterable[Any] = connection.execute(self._dialect.locking(statement))
        return {key: SearchKey(bytes(indexed), bytes(rest)) for key, indexed, rest in found}

    # ---- locking ----

    def lock_session(self, connection: Connection, session_id: str) -> bool:
        """Locks a session at the beginning of a transaction and returns whether it exists."""
        locks = self._locks
        return locks.existing(connection, session_id) or locks.replaced(connection, session_id)

    def lock_or_create(self, connection: Connection, session_id: str) -> bool:
        """Locks a session in the caller's transaction and returns whether it was created.

        Works without our tables, and keeps rows of an earlier session in them.
        """
        locks = self._locks
        # Most sessions that are written to exist.
        is_new = not locks.existing(connection, session_id) and locks.insert(connection, session_id)
        if is_new:
            note(connection, "created", session_id)
        return is_new

    def claim(
        self, connection: Connection, session_id: str, read: Reader, *, create: bool
    ) -> Claim | None:
        """Locks a session by one of the readers above, and creates it if that is asked for."""
        found = read(connection, session_id)
        if found.stored is None and not create and self._locks.replaced(connection, session_id):
            found = read(connection, session_id)
        if found.stored is not None:
            return Claim(False, found.stored)
        if not create:
            return None
        if self.create(connection, session_id, found.has_leftovers):
            return Claim(True, {})
        # Another process has just created it.
        return Claim(False, read(connection, session_id).stored or {})

    # ---- writing to a session that is locked ----

    def create(
        self, connection: Connection, session_id: str, has_leftovers: bool | None = None
    ) -> bool:
        """Returns whether the id was free. If not, the session is locked."""
        leftovers = self._locks.create(connection, session_id, has_leftovers)
        if leftovers:
            self._delete_leftovers(connection, session_id)
        if leftovers is not None:
            note(connection, "created", session_id)
        return leftovers is not None

    def delete_leftovers(self, connection: Connection, session_id: str) -> None:
        read: Any = self._locks.read_leftovers
        if connection.scalar(read, {"session": session_id}):
            self._delete_leftovers(connection, session_id)

    def upsert(
        self,
        connection: Connection,
        session_id: str,
        encoded: Mapping[str, EncodedValue],
        claim: Claim,
    ) -> None:
        """Call `claim` with `before_upsert` first. If this fails, the caller must roll back."""
        stored = claim.stored
        rows = rows_of(session_id, encoded)
        if self._upsert_reading is not None:
            given = lists_of(self._tables.metadata, rows)
            found: Any = connection.execute(self._upsert_reading, {"session": session_id, **given})
            stored = dict(found.all())
        check_count(stored, encoded, self._limits)
        lists = [key for key in encoded if key in stored and (stored[key] or encoded[key].elements)]
        if self._upsert_reading is None:
            connection.execute(self._upsert, rows)
        self.write_elements(connection, session_id, encoded, lists)

    def overwrite(
        self, connection: Connection, session_id: str, encoded: Mapping[str, EncodedValue]
    ) -> None:
        claim = self.claim(connection, session_id, self.before_upsert, create=False)
        self.upsert(connection, session_id, encoded, claim or Claim(False, {}))

    def write_new(
        self, connection: Connection, session_id: str, encoded: Mapping[str, EncodedValue]
    ) -> None:
        """Writes the first values of a session."""
        if self._insert_both is None:
            self.write(connection, session_id, encoded, ())
        elif encoded:
            given = lists_of(self._tables.metadata, rows_of(session_id, encoded))
            given |= lists_of(self._tables.elements, elements_of(session_id, encoded))
            connection.execute(self._insert_both, given)
            note(connection, "set", session_id, encoded)

    def write(
        self,
        connection: Connection,
        session_id: str,
        encoded: Mapping[str, EncodedValue],
        lists: Collection[str],
    ) -> None:
        """Upserts values. `lists` contains those keys that may have rows of elements."""
        if not encoded:
            return
        connection.execute(self._upsert, rows_of(session_id, encoded))
        self.write_elements(connection, session_id, encoded, lists)

    def write_elements(
        self,
        connection: Connection,
        session_id: str,
        encoded: Mapping[str, EncodedValue],
        lists: Collection[str],
    ) -> None:
        """The values must be written first."""
        note(connection, "set", session_id, encoded)
        if lists:
            table = self._tables.elements
            stale = table.c.session_id == session_id, table.c.key.in_(sorted(lists))
            connection.execute(delete(table).where(*stale))
        parts = elements_of(session_id, encoded)
        if parts:
            connection.execute(insert(self._tables.elements), parts)

    def insert_items(self, connection: Connection, session_id: str, texts: Sequence[str]) -> None:
        rows = [{"session_id": session_id, "message_data": text} for text in texts]
        connection.execute(self._insert_items, rows)

    def touch(self, connection: Connection, session_id: str) -> None:
        connection.execute(self._touch, {"session": session_id})

    def delete_keys(self, connection: Connection, session_id: str, keys: Collection[str]) -> None:
        rows = self._tables.metadata
        own = rows.c.session_id == session_id, rows.c.key.in_(keys)
        connection.execute(delete(rows).where(*own))
        note(connection, "removed", session_id, keys)

    def delete_session(self, connection: Connection, session_id: str) -> None:
        """Works without our tables."""
        for deletion in self._deletions:
            connection.execute(deletion, {"session": session_id})
        note(connection, "deleted", session_id)

    def _delete_leftovers(self, connection: Connection, session_id: str) -> None:
        for table in (self._tables.elements, self._tables.metadata):
            connection.execute(delete(table).where(table.c.session_id == session_id))


@lru_cache(maxsize=256)
def session_rows(tables: SessionTables, dialect: Dialect, limits: MetadataLimits) -> Rows:
    return Rows(tables, dialect, limits)


def rows_of(session_id: str, encoded: Mapping[str, EncodedValue]) -> list[dict[str, Any]]:
    return [
        {
            "session_id": session_id,
            "key": key,
            "value": value.text,
            "search_key": value.search.indexed,
            "search_rest": value.search.rest,
        }
        for key, value in encoded.items()
    ]


def elements_of(session_id: str, encoded: Mapping[str, EncodedValue]) -> list[dict[str, Any]]:
    """The rows of the list elements that are scalars."""
    return [
        {
            "session_id": session_id,
            "key": key,
            "position": position,
            "search_key": element.indexed,
            "search_rest": element.rest,
        }
        for key, value in encoded.items()
        for position, element in enumerate(value.elements)
    ]


def lock_sessions(database: Database, connection: Connection, ids: Sequence[str]) -> set[str]:
    """Must begin the transaction. Returns the ids of the sessions that exist."""
    dialect, own_id = database.dialect, database.tables.sessions.c.session_id
    dialect.begin_writing(connection)
    those = select(own_id).where(dialect.one_of(own_id, "ids", len(ids)))
    locked = those.order_by(own_id).with_for_update()
    return set(connection.scalars(locked, dialect.list_parameters("ids", ids)))


def delete_sessions(database: Database, connection: Connection, ids: Sequence[str]) -> None:
    """The sessions must be locked. Works without our tables."""
    for table in (database.tables.messages, database.tables.sessions):
        delete_rows(database, connection, table.c.session_id, ids)
    for session_id in ids:
        note(connection, "deleted", session_id)


def delete_rows(
    database: Database, connection: Connection, column: Column[Any], values: Sequence[Any]
) -> int:
    """Deletes the rows of a table that have one of some values. Returns their number."""
    dialect = database.dialect
    those = delete(column.table).where(dialect.one_of(column, "values", len(values)))
    return connection.execute(those, dialect.list_parameters("values", values)).rowcount


def decode_stored(session_id: str, key: str, text: str) -> JSONValue:
    try:
        value: JSONValue = decode_value(text)
    except ValueError:
        raise CorruptMetadataError(session_id, key) from None
    return value


def decoded(session_id: str, rows: Iterable[Any], keys: Sequence[str] | None = None) -> Metadata:
    return {
        key: decode_stored(session_id, key, text)
        for key, text in rows
        if keys is None or key in keys
    }


def storable_keys(keys: Iterable[str] | None) -> tuple[str, ...] | None:
    """Drops duplicates and keys that cannot be stored."""
    if keys is None:
        return None
    if isinstance(keys, (str, bytes)):
        raise TypeError(
            f"keys must be a list of keys, got the {type(keys).__name__} {quoted(keys)}"
        )
    wanted = dict.fromkeys(keys)
    for key in wanted:
        if not isinstance(key, str):
            raise TypeError(f"a key must be a string, got {type(key).__name__}")
    return tuple(key for key in wanted if key_problem(key) is None)


def sweep_keys(
    connection: Connection, key: Column[Any], old: ColumnElement[bool], most: int
) -> None:
    """Deletes up to `most` old rows of a table whose rows belong to a session and have a key.

    Rows that another transaction has locked are left to it.
    """
    table = key.table
    some = select(table.c.session_id, key).where(old).limit(most)
    rows = connection.execute(some.with_for_update(skip_locked=True)).all()
    if rows:
        this = table.c.session_id == bindparam("session"), key == bindparam("found")
        keys = [{"session": session_id, "found": found} for session_id, found in rows]
        connection.execute(delete(table).where(*this), keys)

"""SQL for the rows of one session, on a connection that it is handed.

Every write begins by locking the session's row, and reads only under the lock: a snapshot from
before would not show what another writer has just done. Lock order is sessions first, then
metadata, keys sorted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, delete, func, insert, select

from agents_session_metadata.dialects._dialect import Dialect, Statement
from agents_session_metadata.dialects.sqltypes import ID_LENGTH
from agents_session_metadata.errors import MetadataLimitError, ScopeError, SessionNotFoundError
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.scope import Scope
from agents_session_metadata.types import JSONValue, Metadata, MetadataLimits
from agents_session_metadata.values import (
    LIST,
    EncodedValue,
    SearchKey,
    check_key,
    decode_elements,
    decode_value,
    encode_text,
    json_text,
    key_problem,
    search_key,
)

from .tables import SessionTables, element_rows

_REPLACED = ("value", "search_key", "search_rest")
_MANY_KEYS = 500
"""Beyond so many keys, all are read and the wanted ones picked."""


def check_id(session_id: str) -> None:
    """Refuse an id that cannot carry metadata.

    Raises:
        ValueError: If it is empty, too long, or not UTF-8 without NUL.
    """
    problem = id_problem(session_id)
    if problem is not None:
        raise ValueError(f"session id {ascii(session_id)[:80]} {problem}")


def id_problem(session_id: str) -> str | None:
    """Say why a session id cannot carry metadata; None when it can."""
    if not 1 <= len(session_id) <= ID_LENGTH:
        return f"has {len(session_id)} characters; 1 to {ID_LENGTH} are allowed"
    if "\x00" in session_id:
        return "contains NUL"
    try:
        session_id.encode()
    except UnicodeEncodeError:
        return "contains lone surrogates"
    return None


class _Statements:
    """What does not depend on the call, built once per set of tables and database."""

    def __init__(self, tables: SessionTables, dialect: Dialect) -> None:
        sessions, rows, elements = tables.sessions, tables.metadata, tables.elements
        of_session: BindParameter[str] = bindparam("of_session")
        own = rows.c.session_id == of_session
        self.lock_or_create = dialect.lock_or_create(sessions)
        self.lock_existing = dialect.lock_existing(sessions)
        kind = func.substr(rows.c.search_key, 1, 1, type_=rows.c.search_key.type)
        kinds: Statement = select(rows.c.key, kind).where(own)
        texts: Statement = select(rows.c.key, rows.c.value).where(own)
        self.read = texts.order_by(rows.c.key)
        self.kinds = dialect.locking(kinds)
        self.read_to_change = dialect.locking(texts)
        self.lock_and_read = dialect.lock_and_read(sessions, rows)
        self.upsert = dialect.upsert(rows, _REPLACED)
        self.insert_elements = insert(elements)
        self.delete_messages = delete(tables.messages).where(
            tables.messages.c.session_id == of_session
        )
        self.delete_session = delete(sessions).where(sessions.c.session_id == of_session)


@lru_cache(maxsize=256)
def _statements(tables: SessionTables, dialect: Dialect) -> _Statements:
    return _Statements(tables, dialect)


class Rows:
    """The rows of single sessions in one set of tables, within a scope."""

    def __init__(
        self,
        tables: SessionTables,
        dialect: Dialect,
        limits: MetadataLimits,
        scope: Scope,
    ) -> None:
        self.limits = limits
        self.scope = scope
        self._tables = tables
        self._dialect = dialect
        self._statements = _statements(tables, dialect)

    def get(
        self,
        connection: Connection,
        queries: Queries,
        session_id: str,
        keys: Sequence[str] | None = None,
    ) -> Metadata:
        """The stored keys of a session; of `keys`, those that are stored."""
        rows = self._tables.metadata
        statement: Statement = self._statements.read
        if keys is not None and len(keys) <= _MANY_KEYS:
            statement = statement.where(rows.c.key.in_(keys))
        parameters: dict[str, Any] = {}
        if self.scope:
            statement, parameters = queries.where(
                statement, self.scope.condition, rows.c.session_id
            )
        parameters["of_session"] = session_id
        found: Iterable[Any] = connection.execute(statement, parameters)
        return {key: decode_value(value) for key, value in found if keys is None or key in keys}

    def enter(self, connection: Connection, session_id: str) -> bool:
        """Lock a session for writing, as the first thing in a transaction; create it if need be.

        Returns:
            Whether it was created. Within a scope it then has the scope's values.

        Raises:
            SessionNotFoundError: If it exists outside the scope.
        """
        parameters = {"of_session": session_id}
        result = connection.execute(self._statements.lock_or_create, parameters)
        created = self._dialect.was_created(result)
        if self.scope:
            if created:
                self._write(connection, session_id, self.scope.encoded(self.limits), ())
            elif not self.is_inside(connection, session_id):
                raise SessionNotFoundError(session_id)
        return created

    def create(
        self, connection: Connection, session_id: str, encoded: Mapping[str, EncodedValue]
    ) -> bool:
        """Create a session with its metadata, unless the id is taken; say whether it was free."""
        result = connection.execute(self._statements.lock_or_create, {"of_session": session_id})
        created = self._dialect.was_created(result)
        if created:
            self._write(connection, session_id, encoded, ())
        return created

    def lock(self, connection: Connection, session_id: str) -> bool:
        """Lock a session that exists, as the first thing in a transaction.

        Returns:
            Whether it exists within the scope.
        """
        result = connection.execute(self._statements.lock_existing, {"of_session": session_id})
        if not self._dialect.was_locked(result):
            return False
        return not self.scope or self.is_inside(connection, session_id)

    def is_visible(self, connection: Connection, queries: Queries, session_id: str) -> bool:
        """Whether a session exists within the scope, without locking it."""
        sessions = self._tables.sessions
        statement = select(sessions.c.session_id).where(sessions.c.session_id == session_id)
        query = queries.where(statement, self.scope.condition, sessions.c.session_id)
        return connection.execute(*query).first() is not None

    def set(
        self,
        connection: Connection,
        session_id: str,
        encoded: Mapping[str, EncodedValue],
    ) -> None:
        """Upsert keys of a session, creating the session if need be.

        Raises:
            MetadataLimitError: If it would have too many keys.
            SessionNotFoundError: If it exists outside the scope.
        """
        created = self.enter(connection, session_id)
        if created and not self.scope:
            self._write(connection, session_id, encoded, ())
        else:
            self.overwrite(connection, session_id, encoded)

    def overwrite(
        self, connection: Connection, session_id: str, encoded: Mapping[str, EncodedValue]
    ) -> None:
        """Upsert keys of a session that is locked already.

        Raises:
            MetadataLimitError: If it would have too many keys.
        """
        found: Iterable[Any] = connection.execute(
            self._statements.kinds, {"of_session": session_id}
        )
        kinds = {key: bytes(kind) for key, kind in found}
        self._check_count(kinds, encoded)
        lists = [
            key
            for key, kind in kinds.items()
            if key in encoded and (kind == LIST or encoded[key].elements)
        ]
        self._write(connection, session_id, encoded, lists)

    def edit(
        self,
        connection: Connection,
        session_id: str,
        change: Callable[[Metadata], object],
    ) -> Metadata:
        """Let a function change a session's metadata; write what it changed, or roll back.

        Raises:
            TypeError: If the function returns an awaitable.
            InvalidMetadataError: If a changed key or value cannot be stored.
            MetadataLimitError: If a limit is exceeded.
            ScopeError: If a scope key was changed.
            SessionNotFoundError: If the session exists outside the scope.
        """
        texts = self._lock_and_read(connection, session_id)
        metadata = {key: decode_value(texts[key]) for key in sorted(texts)}
        result = change(metadata)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(
                "edit_metadata takes a plain function: "
                "nothing is awaited while the session is locked"
            )
        changed = self._changed(metadata, texts)
        removed = sorted(texts.keys() - metadata.keys())
        for key in removed:
            if key in self.scope.values:
                raise ScopeError(key)
        self.scope.check_encoded(changed)
        if not changed and not removed:
            connection.rollback()
        else:
            self._check_count(texts.keys() - set(removed), changed)
            if removed:
                self._delete_keys(connection, session_id, removed)
            lists = [
                key
                for key in changed
                if key in texts and (changed[key].elements or decode_elements(texts[key]))
            ]
            self._write(connection, session_id, changed, lists)
        texts.update((key, value.text) for key, value in changed.items())
        return {key: decode_value(texts[key]) for key in metadata}

    def delete_keys(
        self,
        connection: Connection,
        session_id: str,
        keys: Collection[str] | None,
    ) -> int:
        """Delete keys of a session, all but the scope's when `keys` is None; give their number.

        Raises:
            SessionNotFoundError: If the session exists outside the scope.
        """
        result = connection.execute(self._statements.lock_existing, {"of_session": session_id})
        if not self._dialect.was_locked(result):
            return 0
        if self.scope and not self.is_inside(connection, session_id):
            raise SessionNotFoundError(session_id)
        if keys is not None and len(keys) <= _MANY_KEYS:
            return self._delete_keys(connection, session_id, keys)
        stored = set(connection.scalars(self._statements.kinds, {"of_session": session_id}))
        wanted = stored - self.scope.values.keys() if keys is None else stored & set(keys)
        return self._delete_keys(connection, session_id, sorted(wanted)) if wanted else 0

    def delete(self, connection: Connection, session_id: str) -> bool:
        """Delete a session with its history and metadata.

        Returns:
            Whether it existed within the scope.
        """
        if not self.lock(connection, session_id):
            return False
        connection.execute(self._statements.delete_messages, {"of_session": session_id})
        connection.execute(self._statements.delete_session, {"of_session": session_id})
        return True

    def is_inside(self, connection: Connection, session_id: str) -> bool:
        """Whether a session that is locked already is within the scope."""
        rows = self._tables.metadata
        statement: Statement = select(rows.c.key, rows.c.search_key, rows.c.search_rest).where(
            rows.c.session_id == session_id, rows.c.key.in_(self.scope.values)
        )
        found: Iterable[Any] = connection.execute(self._dialect.locking(statement))
        stored = {key: SearchKey(bytes(indexed), bytes(rest)) for key, indexed, rest in found}
        return stored == {key: search_key(value) for key, value in self.scope.values.items()}

    def _lock_and_read(self, connection: Connection, session_id: str) -> dict[str, str]:
        """Lock a session for writing, as `enter` does; give the JSON texts that it has by key."""
        parameters = {"of_session": session_id}
        if self._statements.lock_and_read is not None and not self.scope:
            result = connection.execute(self._statements.lock_and_read, parameters)
            texts = self._dialect.texts_read(result)
            if texts is not None:
                return texts
            # Where there is no row, two may both have locked the gap, and neither could insert.
            connection.rollback()
        if self.enter(connection, session_id) and not self.scope:
            return {}
        found = connection.execute(self._statements.read_to_change, parameters)
        return {row.key: row.value for row in found}

    def _changed(
        self, metadata: Mapping[str, JSONValue], texts: Mapping[str, str]
    ) -> dict[str, EncodedValue]:
        """The values that are not stored as they are now; only these are held to the limits."""
        changed = {}
        for key, value in metadata.items():
            name = key if key in texts else check_key(key, self.limits)
            text = json_text(name, value)
            if text != texts.get(name):
                changed[name] = encode_text(name, value, text, self.limits)
        return dict(sorted(changed.items()))

    def _check_count(self, stored: Iterable[str], written: Mapping[str, EncodedValue]) -> None:
        before = set(stored)
        new = [key for key in written if key not in before]
        size, allowed = len(before) + len(new), self.limits.max_keys
        if new and size > allowed:
            first_over = new[max(0, allowed - len(before))]
            raise MetadataLimitError("max_keys", key=first_over, size=size, allowed=allowed)

    def _write(
        self,
        connection: Connection,
        session_id: str,
        encoded: Mapping[str, EncodedValue],
        lists: Collection[str],
    ) -> None:
        """Upsert values; `lists` are those of their keys that may have rows of elements."""
        if not encoded:
            return
        rows = [
            {
                "session_id": session_id,
                "key": key,
                "value": value.text,
                "search_key": value.search.indexed,
                "search_rest": value.search.rest,
            }
            for key, value in encoded.items()
        ]
        connection.execute(self._statements.upsert, rows)
        if lists:
            table = self._tables.elements
            stale = table.c.session_id == session_id, table.c.key.in_(sorted(lists))
            connection.execute(delete(table).where(*stale))
        parts = [
            row
            for key, value in encoded.items()
            for row in element_rows(session_id, key, value.elements)
        ]
        if parts:
            connection.execute(self._statements.insert_elements, parts)

    def _delete_keys(self, connection: Connection, session_id: str, keys: Collection[str]) -> int:
        rows = self._tables.metadata
        own = rows.c.session_id == session_id
        return connection.execute(delete(rows).where(own, rows.c.key.in_(keys))).rowcount


def storable_keys(keys: Iterable[str] | None) -> list[str] | None:
    """The keys of a request under which something could be stored.

    Raises:
        TypeError: If `keys` is a bare string, or one of them is no string.
    """
    if keys is None:
        return None
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys must be a list of keys, not the bare {type(keys).__name__} {keys!r}")
    wanted = list(dict.fromkeys(keys))
    for key in wanted:
        if not isinstance(key, str):
            raise TypeError(f"a key must be a string, not {type(key).__name__}")
    return [key for key in wanted if key_problem(key) is None]

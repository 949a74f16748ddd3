"""Sessions as JSON records, out of one database and into another, and copies within one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection, bindparam, insert, literal, select, update

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import (
    InvalidMetadataError,
    SessionExistsError,
    SessionNotFoundError,
)
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.storage.rows import check_id
from agents_session_metadata.types import JSONValue, SessionInfo
from agents_session_metadata.values import EncodedValue, encode_metadata, is_text

FORMAT = 1
"""The version of the records that this module writes, and the newest that it reads."""

OnConflict: TypeAlias = Literal["error", "skip", "replace"]
"""What an import does about a session that exists."""
Record: TypeAlias = "dict[str, Any]"
_RECORD = ("format", "session_id", "created_at", "updated_at", "metadata", "items")
_ITEM = ("created_at", "item", "text")


@dataclass(frozen=True)
class _Session:
    """A record that was understood, with times as the database stores them."""

    session_id: str
    created_at: Any
    updated_at: Any
    metadata: dict[str, EncodedValue]
    items: list[tuple[Any, str]]


def export_record(store: ScopedStore, info: SessionInfo, connection: Connection) -> Record:
    """A session as a record; its history is read."""
    messages, dialect = store.database.tables.messages, store.database.dialect
    found: Any = connection.execute(
        select(dialect.utc(messages.c.created_at), messages.c.message_data)
        .where(messages.c.session_id == info.session_id)
        .order_by(messages.c.created_at, messages.c.id)
    )
    return {
        "format": FORMAT,
        "session_id": info.session_id,
        "created_at": info.created_at.isoformat(),
        "updated_at": info.updated_at.isoformat(),
        "metadata": info.metadata,
        "items": [
            {"created_at": dialect.to_datetime(at).isoformat(), **_item_of(text)}
            for at, text in found
        ],
    }


def import_record(
    store: ScopedStore, record: object, on_conflict: OnConflict, *, ensure_ascii: bool
) -> Callable[[Connection, Queries], bool]:
    """Check a record, and give the work that writes it and says whether it did.

    Raises:
        InvalidMetadataError: If the record, or metadata in it, is not understood.
        MetadataLimitError: If its metadata exceeds a limit.
        ScopeError: If its metadata contradicts the scope.
        ValueError: If its id cannot carry metadata.
    """
    session = _parse(store, record, ensure_ascii=ensure_ascii)
    tables, dialect, rows = store.database.tables, store.database.dialect, store.rows

    def run(connection: Connection, _: Queries) -> bool:
        if not rows.create(connection, session.session_id, session.metadata):
            if on_conflict == "error":
                raise SessionExistsError(session.session_id)
            if on_conflict == "skip":
                connection.rollback()
                return False
            if not store.delete_locked(connection, session.session_id):
                raise SessionNotFoundError(session.session_id)
            rows.create(connection, session.session_id, session.metadata)
        times = update(tables.sessions).where(
            tables.sessions.c.session_id == bindparam("of_session")
        )
        connection.execute(
            times.values(
                created_at=dialect.stored_by("created"), updated_at=dialect.stored_by("updated")
            ),
            {
                "of_session": session.session_id,
                "created": session.created_at,
                "updated": session.updated_at,
            },
        )
        if session.items:
            message = insert(tables.messages).values(
                session_id=session.session_id,
                message_data=bindparam("text"),
                created_at=dialect.stored_by("at"),
            )
            connection.execute(message, [{"text": text, "at": at} for at, text in session.items])
        return True

    return run


def fork(
    store: ScopedStore, session_id: str, new_id: str, metadata: Mapping[str, JSONValue]
) -> Callable[[Connection, Queries], None]:
    """Work that copies a session's history and metadata, with some metadata changed.

    Raises:
        InvalidMetadataError: If a key or value cannot be stored.
        MetadataLimitError: If a limit is exceeded.
        ScopeError: If the metadata contradicts the scope.
        ValueError: If the new id cannot carry metadata.
    """
    check_id(new_id)
    encoded = encode_metadata(metadata, store.limits)
    store.scope.check(metadata)
    tables, rows = store.database.tables, store.rows

    def run(connection: Connection, _: Queries) -> None:
        def create() -> None:
            if not rows.create(connection, new_id, {}):
                raise SessionExistsError(new_id)

        def lock() -> None:
            if not store.lock(connection, session_id):
                raise SessionNotFoundError(session_id)

        # Rows are locked in the order of their ids, by everybody.
        for step in (lock, create) if session_id <= new_id else (create, lock):
            step()
        for table in (tables.messages, tables.metadata, tables.elements):
            copied = [column for column in table.c if column.name not in ("id", "session_id")]
            source = select(literal(new_id), *copied).where(table.c.session_id == session_id)
            if table is tables.messages:
                source = source.order_by(table.c.id)
            names = ["session_id", *(column.name for column in copied)]
            connection.execute(insert(table).from_select(names, source))
        rows.overwrite(connection, new_id, encoded)

    return run


def _parse(store: ScopedStore, record: object, *, ensure_ascii: bool) -> _Session:
    fields = _object(record, "$")
    version = fields.get("format")
    if type(version) is not int or version != FORMAT:
        raise _invalid("$.format", f"is {version!r}; this version reads format {FORMAT}")
    _only(fields, _RECORD, "$")
    session_id = fields.get("session_id")
    if not isinstance(session_id, str):
        raise _invalid("$.session_id", "must be a string")
    metadata = _object(fields.get("metadata"), "$.metadata")
    encoded = store.encode_new(metadata)
    check_id(session_id)
    items = fields.get("items")
    if not isinstance(items, list):
        raise _invalid("$.items", "must be a list")
    dialect = store.database.dialect
    return _Session(
        session_id,
        _time(fields.get("created_at"), "$.created_at", dialect),
        _time(fields.get("updated_at"), "$.updated_at", dialect),
        encoded,
        [
            _parse_item(item, f"$.items[{index}]", dialect, ensure_ascii=ensure_ascii)
            for index, item in enumerate(items)
        ],
    )


def _parse_item(
    item: object, path: str, dialect: Dialect, *, ensure_ascii: bool
) -> tuple[Any, str]:
    fields = _object(item, path)
    _only(fields, _ITEM, path)
    at = _time(fields.get("created_at"), f"{path}.created_at", dialect)
    if ("item" in fields) == ("text" in fields):
        raise _invalid(path, "must have either an item or a text")
    text = fields.get("text")
    if "item" in fields:
        try:
            text = json.dumps(
                fields["item"], ensure_ascii=ensure_ascii, separators=(",", ":"), allow_nan=False
            )
        except (TypeError, ValueError, RecursionError):
            raise _invalid(f"{path}.item", "must be JSON") from None
    if not isinstance(text, str) or not is_text(text):
        raise _invalid(path, "must be text that UTF-8 can encode, without NUL")
    return at, text


def _item_of(text: str) -> dict[str, Any]:
    # The SDK passes over rows that are not JSON; a copy of the database keeps them.
    try:
        return {"item": json.loads(text, parse_constant=_finite, parse_float=_finite)}
    except (ValueError, RecursionError):
        return {"text": text}


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _invalid(path, f"must be an object, not {type(value).__name__}")
    return dict(value)


def _only(fields: Mapping[str, Any], known: Collection[str], path: str) -> None:
    for name in fields:
        if name not in known:
            raise _invalid(path, f"has a field {name!r}, which no record has")


def _time(value: object, path: str, dialect: Dialect) -> Any:
    """A time as the database stores it."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() is None:
        raise _invalid(path, "must be a time in ISO 8601 with its offset from UTC")
    try:
        return dialect.time_to_store(moment.astimezone(timezone.utc))
    except OverflowError:
        raise _invalid(path, "is outside the range of times") from None
    except ValueError as error:
        raise _invalid(path, str(error)) from None


def _invalid(path: str, problem: str) -> InvalidMetadataError:
    return InvalidMetadataError(problem, key="record", path=path)

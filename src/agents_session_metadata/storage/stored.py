"""Reads stored values, including invalid ones that were written by hand."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Final

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import CorruptMetadataError
from agents_session_metadata.quoting import quoted
from agents_session_metadata.values import (
    SearchKey,
    decode_elements,
    decode_scalar,
    decode_value,
    search_key,
)

UNKNOWN_TIME: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
"""Replaces a time that cannot be read if the error is not raised."""

TIME_ERRORS: Final = (ValueError, TypeError, AttributeError, ArithmeticError)
"""What `Dialect.to_datetime` raises if it is given something that is not a time."""


def decode_stored(session_id: str, key: str, text: Any) -> Any:
    """The value of a stored JSON text, as `Dialect.json_text` reads it.

    Raises:
        CorruptMetadataError: If it is NULL or not valid JSON.
    """
    try:
        return decode_value(text)
    except ValueError:
        raise CorruptMetadataError(session_id, key) from None


def plain_text(text: Any) -> Any:
    """A stored JSON text as a string. None if it is not valid UTF-8."""
    try:
        return text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        return None


def decode_item(session_id: str, item_id: int, text: Any) -> str:
    """The stored text of an item, selected as `Dialect.item_text`.

    Raises:
        CorruptMetadataError: If it is NULL or not valid UTF-8.
    """
    found = plain_text(text)
    if isinstance(found, str):
        return found
    what = "NULL" if text is None else "not valid UTF-8"
    raise CorruptMetadataError(
        session_id,
        "$item",
        f"the stored text of item {item_id} of session {quoted(session_id)} is {what}; "
        "correct it by SQL, or delete the item",
    )


def decode_time(dialect: Dialect, session_id: str, column: str, value: Any) -> datetime:
    """A stored time of the SDK's tables, selected as `Dialect.utc`.

    Raises:
        CorruptMetadataError: If it is not a time.
    """
    try:
        return dialect.to_datetime(value)
    except TIME_ERRORS:
        what = {
            "created_at": "`created_at`",
            "updated_at": "`updated_at`",
            "item_created_at": "`created_at` of an item",
        }[column]
        raise CorruptMetadataError(
            session_id,
            f"${column}",
            f"the stored {what} of session {quoted(session_id)} is not a time: {quoted(value)}; "
            "correct it by SQL, or delete the session",
        ) from None


def corrupt_item_id(session_id: str) -> CorruptMetadataError:
    """The error that an item has no id, which only a table of another program allows."""
    problem = f"an item of session {quoted(session_id)} has no id; correct it by SQL"
    return CorruptMetadataError(session_id, "$item_id", problem)


def corrupt_thread(session_id: str) -> CorruptMetadataError:
    """Returns the error for the text of a thread item that is not a JSON object."""
    return CorruptMetadataError(
        session_id,
        "$thread_item",
        f"the stored text of a thread item of session {quoted(session_id)} is not a JSON object; "
        "correct it by SQL, or delete the item",
    )


def read_search_key(indexed: Any, rest: Any) -> SearchKey:
    """A stored search key. If it is not bytes, an empty one, which no value has."""
    try:
        return SearchKey(_bytes(indexed), _bytes(rest))
    except TypeError:
        return SearchKey(b"", b"")


def search_keys_of(text: Any) -> tuple[SearchKey, frozenset[SearchKey]] | None:
    """The search key of a stored JSON text, and those of its elements. None if it is invalid."""
    try:
        return search_key(decode_value(text)), frozenset(decode_elements(plain_text(text)))
    except (ValueError, RecursionError, OverflowError):
        return None


def decode_counted(indexed: Any, rest: Any) -> Any:
    """The scalar that a stored search key stands for.

    Raises:
        ValueError: If it stands for none.
    """
    try:
        return decode_scalar(read_search_key(indexed, rest))
    except (KeyError, OverflowError) as error:
        raise ValueError(str(error)) from None


def corrupt_search_key(session_id: str, key: str) -> CorruptMetadataError:
    """Returns the error for a search key that no value has."""
    return CorruptMetadataError(
        session_id,
        key,
        f"the stored search key of metadata key {quoted(key)} of session {quoted(session_id)} is "
        "damaged; set the key again, or run `agent-sessions doctor --rewrite-search-keys`",
    )


def _bytes(stored: Any) -> bytes:
    if not isinstance(stored, (bytes, bytearray, memoryview)):
        raise TypeError(type(stored).__name__)
    return bytes(stored)

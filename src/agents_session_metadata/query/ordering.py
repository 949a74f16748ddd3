"""Orders of sessions, positions in them, and page cursors.

A cursor is a position, and a digest of the question that it belongs to. It carries no filter and
no scope: these always come from the call. The digest covers both, the order and the position, so
that a cursor of another question, or a damaged one, is refused.

Version 1 is base64url, without padding, of these bytes:

| bytes | content |
|---|---|
| 1 | the version |
| 16 | the beginning of SHA-256 of the SHA-256 of the question and of the position |
| rest | the position: JSON, ASCII, without spaces |

The question is the JSON text of the condition as its `encoded()` returns it, and the order. The
position is `[session_id]`, `[session_id, time]` or, in orders by a metadata key,
`[session_id, time, value]`: the search key in base64, or null for a session without the key.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from agents_session_metadata.dialects.sqltypes import SDKTime
from agents_session_metadata.errors import InvalidCursorError
from agents_session_metadata.types import MAX_KEY_LENGTH
from agents_session_metadata.values import SearchKey, is_text, key_problem, split_search_key

from .logic import Condition

OrderBy: TypeAlias = str
"""An order of sessions: `updated_at`, `created_at`, `session_id` or a metadata key, with a leading
`-` for descending."""

COLUMNS = ("updated_at", "created_at", "session_id")

VERSION = b"\x01"
"""Must be raised with every change of a cursor, or of the data that its digest covers."""
_DIGEST_BYTES = 16


class SessionPosition(NamedTuple):
    """The last session of a page.

    `time` is in its stored form. `value` is None also if the session does not have the key.
    """

    session_id: str
    time: str | None = None
    value: SearchKey | None = None

    def parameters(self) -> dict[str, Any]:
        """The parameters of a position by time, by id or by both."""
        time = {} if self.time is None else {"after_time": self.time}
        return {"after_id": self.session_id, **time}


@dataclass(frozen=True)
class Ordering:
    """An order of sessions, by a column or by a metadata key.

    By a column: then by id, in the same direction. By a metadata key: sessions without it come last
    in both directions; then by most recent activity, then by id ascending. If `native`, ids can
    sort as in the primary key instead of by code point.
    """

    column: str | None
    descending: bool
    key: str | None = None
    native: bool = False

    @classmethod
    def parse(cls, order_by: str) -> Ordering:
        if not isinstance(order_by, str):
            raise TypeError(f"order_by must be a string, got {type(order_by).__name__}")
        descending, name = order_by.startswith("-"), order_by.removeprefix("-")
        if name in COLUMNS:
            return cls(name, descending)
        problem = key_problem(name)
        if name.startswith("-"):
            problem = "sessions cannot be ordered by a key that begins with -"
        elif len(name) > MAX_KEY_LENGTH:
            problem = f"a key can have at most {MAX_KEY_LENGTH} characters"
        if problem is not None:
            raise ValueError(
                f"order_by must be {', '.join(COLUMNS)} or a metadata key, with - for descending: "
                f"{problem}"
            )
        return cls(None, descending, str.__str__(name))

    @property
    def time(self) -> str | None:
        if self.key is not None:
            return "updated_at"
        return None if self.column == "session_id" else self.column

    @property
    def shape(self) -> Ordering:
        """Without the key, which is a parameter."""
        return self if self.key is None else replace(self, key="")


NEWEST_FIRST = Ordering("updated_at", descending=True)
OLDEST_FIRST = Ordering("updated_at", descending=False)
WALK = Ordering("session_id", descending=False, native=True)
"""By primary key: the order in which all sessions are walked."""


def encode_cursor(position: SessionPosition, condition: Condition, ordering: Ordering) -> str:
    body: list[Any] = [position.session_id]
    if ordering.time is not None:
        body.append(position.time)
    if ordering.key is not None:
        value = position.value
        body.append(value and base64.b64encode(value.indexed + value.rest).decode())
    return seal(body, _question(condition, ordering))


def decode_cursor(
    cursor: str, condition: Condition, ordering: Ordering, stored_time: SDKTime
) -> SessionPosition:
    """Raises `InvalidCursorError` if the cursor is damaged or belongs to another query.

    The digest contains no secret: anyone who knows the query can construct a cursor for it. Such a
    cursor only sets where to begin in the result of that query.
    """
    parts = 1 + (ordering.time is not None) + (ordering.key is not None)
    kinds = (str, stored_time, (str, type(None)))[:parts]
    session_id, *more = unseal(cursor, _question(condition, ordering), *kinds)
    time, value = (*more, None, None)[:2]
    try:
        key = None if value is None else split_search_key(base64.b64decode(value))
        return SessionPosition(session_id, time, key)
    except ValueError:
        raise InvalidCursorError from None


def _question(condition: Condition, ordering: Ordering) -> list[Any]:
    return [condition.encoded(), repr(ordering)]


def seal(position: Sequence[Any], question: Any) -> str:
    """Returns a cursor for a position and the question, JSON both, that it belongs to."""
    return _sealed(_json(position), question)


def _sealed(body: bytes, question: Any) -> str:
    asked = hashlib.sha256(_json(question)).digest()
    digest = hashlib.sha256(asked + body).digest()[:_DIGEST_BYTES]
    return base64.urlsafe_b64encode(VERSION + digest + body).decode().rstrip("=")


def unseal(cursor: object, question: Any, *kinds: Any) -> list[Any]:
    """Returns the position, whose parts have these types and can be stored.

    A part of the type `SDKTime` is a time in its stored form. Raises `InvalidCursorError` if the
    parts are others, or if the question is another one.
    """
    if not isinstance(cursor, str):
        raise InvalidCursorError
    try:
        token = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        body = token[len(VERSION) + _DIGEST_BYTES :]
        # Several texts decode to the same bytes; only one of them was given out.
        position: Any = json.loads(body) if cursor == _sealed(body, question) else None
    except (ValueError, RecursionError):
        raise InvalidCursorError from None
    parts: list[Any] = position if isinstance(position, list) else []
    if len(parts) != len(kinds) or not all(map(_is_exactly, parts, kinds)):
        raise InvalidCursorError
    return parts


def _is_exactly(part: Any, kind: Any) -> bool:
    if isinstance(kind, SDKTime):
        return isinstance(part, str) and kind.is_stored(part)
    # In Python, True is an integer. A parameter of a statement has 64 bits.
    is_kind = isinstance(part, kind) and (kind is bool or not isinstance(part, bool))
    return is_kind and (is_text(part) if isinstance(part, str) else abs(part or 0) < 2**62)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()

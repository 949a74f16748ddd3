"""Page cursors: a position, and a mark of the question that it belongs to.

A cursor carries no filter and no scope: these always come from the call. It does carry a digest of
both, of the order and of the position, so that one of another question, or one damaged in any byte,
is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import InvalidCursorError

from .filters import All, AnyOf, Condition, Not
from .ordering import Ordering, Position

_DIGEST_BYTES = 16


def encode_cursor(position: Position, condition: Condition, ordering: Ordering) -> str:
    """Make a cursor of a position in the answer to a question."""
    body = json.dumps(position, separators=(",", ":")).encode()
    token = _digest(body, condition, ordering) + body
    return base64.urlsafe_b64encode(token).decode().rstrip("=")


def decode_cursor(
    cursor: str, condition: Condition, ordering: Ordering, dialect: Dialect
) -> Position:
    """Read the position out of a cursor.

    The digest has no secret in it: whoever knows the question can make a cursor for it. All that
    this gives is a place to begin at, in the answer to that same question.

    Raises:
        InvalidCursorError: If the cursor is damaged or belongs to another question.
    """
    if not isinstance(cursor, str):
        raise InvalidCursorError
    try:
        token = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    except (ValueError, binascii.Error):
        raise InvalidCursorError from None
    digest, body = token[:_DIGEST_BYTES], token[_DIGEST_BYTES:]
    # Several texts decode to the same bytes; only one is what was given out.
    canonical = base64.urlsafe_b64encode(token).decode().rstrip("=")
    if canonical != cursor or digest != _digest(body, condition, ordering):
        raise InvalidCursorError
    try:
        position = Position(*json.loads(body))
        by_time = ordering.column != "session_id"
        if not isinstance(position.session_id, str):
            raise InvalidCursorError
        if not isinstance(position.sorted_by, str if by_time else type(None)):
            raise InvalidCursorError
        dialect.position_parameters(*position)
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        raise InvalidCursorError from None
    return position


def _digest(body: bytes, condition: Condition, ordering: Ordering) -> bytes:
    question = repr((_unordered(condition), ordering)).encode()
    return hashlib.sha256(hashlib.sha256(question).digest() + body).digest()[:_DIGEST_BYTES]


def _unordered(condition: Condition) -> object:
    """A condition by what it means: the keys of a JSON object have no order."""
    name = type(condition).__name__
    if isinstance(condition, Not):
        return name, _unordered(condition.part)
    if isinstance(condition, (All, AnyOf)):
        return name, sorted(map(_unordered, condition.parts), key=repr)
    return condition

"""Page cursors: a position, and a digest of the question that it belongs to.

A cursor carries no filter and no scope: these always come from the call. Its digest covers both,
the order and the position, so that a cursor of another question, or a damaged one, is refused.

Version 1 is base64url, without padding, of these bytes:

| bytes | content |
|---|---|
| 1 | the version |
| 16 | the beginning of SHA-256 of the SHA-256 of the question and of the position |
| rest | the position: JSON, ASCII, without spaces |

The question is the JSON text of `[condition, ordering]`, each as its `encoded()` returns it. The
position is `[session_id]`, `[session_id, time]` or, in orders by a metadata key,
`[session_id, time, value]`: the search key in base64, or null for a session without the key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Any

from agents_session_metadata.errors import InvalidCursorError
from agents_session_metadata.values import split_search_key

from .logic import Condition
from .ordering import Ordering, Position

VERSION = b"\x01"
"""Must be raised with every change of a cursor, or of the data that its digest covers."""
_DIGEST_BYTES = 16


def encode_cursor(position: Position, condition: Condition, ordering: Ordering) -> str:
    body: list[Any] = [position.session_id]
    if ordering.time is not None:
        body.append(position.time)
    if ordering.key is not None:
        value = position.value
        body.append(value and base64.b64encode(value.indexed + value.rest).decode())
    return seal(_json(body), _question(condition, ordering))


def decode_cursor(cursor: str, condition: Condition, ordering: Ordering) -> Position:
    """Raises `InvalidCursorError` if the cursor is damaged or belongs to another query.

    The digest contains no secret: anyone who knows the query can construct a cursor for it. Such a
    cursor only sets where to begin in the result of that query.
    """
    session_id, *more = json.loads(unseal(cursor, _question(condition, ordering)))
    time = None if ordering.time is None else more[0]
    value = None if ordering.key is None else more[1]
    return Position(session_id, time, value and split_search_key(base64.b64decode(value)))


def _question(condition: Condition, ordering: Ordering) -> list[Any]:
    return [condition.encoded(), ordering.encoded()]


def seal(body: bytes, question: Any) -> str:
    """Returns a cursor for a position and the question, a JSON value, that it belongs to."""
    asked = hashlib.sha256(_json(question)).digest()
    digest = hashlib.sha256(asked + body).digest()[:_DIGEST_BYTES]
    return base64.urlsafe_b64encode(VERSION + digest + body).decode().rstrip("=")


def unseal(cursor: object, question: Any) -> bytes:
    """Returns the position, or raises `InvalidCursorError` if the question is another one."""
    if not isinstance(cursor, str):
        raise InvalidCursorError
    try:
        token = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        body = token[len(VERSION) + _DIGEST_BYTES :]
        # Several texts decode to the same bytes; only one of them was given out.
        if cursor != seal(body, question):
            raise InvalidCursorError
    except (ValueError, binascii.Error):
        raise InvalidCursorError from None
    return body


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()

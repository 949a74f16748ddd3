"""Cursors of pages of hits: as those of sessions, but for one search.

Version 1 is base64url, without padding, of these bytes:

| bytes | content |
|---|---|
| 1 | the version |
| 16 | the beginning of SHA-256 of the SHA-256 of the question and of the position |
| rest | the position: JSON, ASCII, without spaces |

The question is the JSON text of `["search", query, condition]`, each as its `encoded()` gives it.
The position is `[time, session id, item id]`; for a place in a session that may be somebody else's,
`[time, null, item id, digest of the session id]`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Any

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import InvalidCursorError
from agents_session_metadata.words import WordQuery

from .logic import Condition
from .search import Place

VERSION = b"\x01"
"""To be raised with every change of a cursor, or of what its digest covers."""
_DIGEST_BYTES = 16
_GREATEST_ID = 2**63


def encode_search_cursor(place: Place, query: WordQuery, condition: Condition) -> str:
    """Make a cursor of a place in the answer to a search."""
    body: list[Any] = [str(place.time), place.session_id, place.item_id]
    if place.session_id is None:
        body.append(place.digest)
    return _token(_json(body), query, condition)


def decode_search_cursor(
    cursor: str, query: WordQuery, condition: Condition, dialect: Dialect
) -> Place:
    """Read the place out of a cursor.

    Raises:
        InvalidCursorError: If the cursor is damaged or belongs to another question.
    """
    if not isinstance(cursor, str):
        raise InvalidCursorError
    try:
        token = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        body = token[len(VERSION) + _DIGEST_BYTES :]
        # Several texts decode to the same bytes; only one of them was given out.
        if cursor != _token(body, query, condition):
            raise InvalidCursorError
        time, session_id, item_id, *digest = json.loads(body)
        stored = dialect.stored_time_value(time)
        dialect.position_parameters(time, session_id or "")
    except (ValueError, TypeError, ArithmeticError, RecursionError, binascii.Error):
        raise InvalidCursorError from None
    texts = [time, *digest] if session_id is None else [time, session_id]
    if type(item_id) is not int or not 0 <= item_id < _GREATEST_ID or len(texts) != 2:
        raise InvalidCursorError
    if (session_id is not None and digest) or not all(isinstance(each, str) for each in texts):
        raise InvalidCursorError
    return Place(stored, session_id, item_id, *digest)


def _token(body: bytes, query: WordQuery, condition: Condition) -> str:
    asked = _json(["search", query.encoded(), condition.encoded()])
    digest = hashlib.sha256(hashlib.sha256(asked).digest() + body).digest()[:_DIGEST_BYTES]
    return base64.urlsafe_b64encode(VERSION + digest + body).decode().rstrip("=")


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()

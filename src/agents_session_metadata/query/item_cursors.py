"""Cursors of pages of items: as those of sessions, but for one session's history.

Version 1 is base64url, without padding, of these bytes:

| bytes | content |
|---|---|
| 1 | the version |
| 16 | the beginning of SHA-256 of the SHA-256 of the question and of the position |
| rest | the position: the id of the last item, in decimal digits |

The question is the JSON text of `["items", session id, order, scope]`; a scope is the list of its
keys, in order, each with its search key in base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re

from agents_session_metadata.errors import InvalidCursorError
from agents_session_metadata.values import SearchKey

VERSION = b"\x01"
"""To be raised with every change of a cursor, or of what its digest covers."""
_DIGEST_BYTES = 16


def encode_item_cursor(
    item_id: int, session_id: str, order_by: str, scope: dict[str, SearchKey]
) -> str:
    """Make a cursor of the last item of a page."""
    return _token(str(item_id).encode(), session_id, order_by, scope)


def decode_item_cursor(
    cursor: str, session_id: str, order_by: str, scope: dict[str, SearchKey]
) -> int:
    """Read the id of the last item out of a cursor.

    Raises:
        InvalidCursorError: If the cursor is damaged or belongs to another question.
    """
    if not isinstance(cursor, str):
        raise InvalidCursorError
    try:
        token = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        body = token[len(VERSION) + _DIGEST_BYTES :]
        # Several texts decode to the same bytes; only one of them was given out.
        if cursor != _token(body, session_id, order_by, scope):
            raise InvalidCursorError
    except (ValueError, binascii.Error):
        raise InvalidCursorError from None
    # What fits into the column of any database.
    if not re.fullmatch(rb"-?[0-9]{1,18}", body):
        raise InvalidCursorError
    return int(body)


def _token(body: bytes, session_id: str, order_by: str, scope: dict[str, SearchKey]) -> str:
    within = [
        [key, base64.b64encode(search.indexed + search.rest).decode()]
        for key, search in sorted(scope.items())
    ]
    asked = json.dumps(["items", session_id, order_by, within], separators=(",", ":")).encode()
    digest = hashlib.sha256(hashlib.sha256(asked).digest() + body).digest()[:_DIGEST_BYTES]
    return base64.urlsafe_b64encode(VERSION + digest + body).decode().rstrip("=")

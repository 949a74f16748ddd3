"""Cursors of pages of items, in the format of `cursors`.

The position is the id of the last item, in decimal digits. The question is
`["items", session id, order, scope]`; the scope, as an encoded condition, comes last.
"""

from __future__ import annotations

import re

from agents_session_metadata.errors import InvalidCursorError
from agents_session_metadata.query.cursors import seal, unseal
from agents_session_metadata.query.logic import Condition


def encode_item_cursor(item_id: int, session_id: str, order_by: str, within: Condition) -> str:
    return seal(str(item_id).encode(), ["items", session_id, order_by, within.encoded()])


def decode_item_cursor(cursor: str, session_id: str, order_by: str, within: Condition) -> int:
    body = unseal(cursor, ["items", session_id, order_by, within.encoded()])
    # No id has more digits.
    if not re.fullmatch(rb"-?[0-9]{1,18}", body):
        raise InvalidCursorError
    return int(body)

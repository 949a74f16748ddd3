"""Cursors of pages of hits, in the format of `cursors`.

The position is `[time, session id, item id]` as JSON; for a place in a session that may be somebody
else's, `[time, null, item id, digest of the session id]`. The question is
`["search", query, condition]`, each as its `encoded()` gives it.
"""

from __future__ import annotations

import json
from typing import Any

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import InvalidCursorError
from agents_session_metadata.words import WordQuery

from .cursors import seal, unseal
from .logic import Condition
from .search import Place

_GREATEST_ID = 2**63


def encode_search_cursor(place: Place, query: WordQuery, condition: Condition) -> str:
    """Make a cursor of a place in the answer to a search."""
    body: list[Any] = [str(place.time), place.session_id, place.item_id]
    if place.session_id is None:
        body.append(place.digest)
    text = json.dumps(body, separators=(",", ":"))
    return seal(text.encode(), _question(query, condition))


def decode_search_cursor(
    cursor: str, query: WordQuery, condition: Condition, dialect: Dialect
) -> Place:
    """Read the place out of a cursor.

    Raises:
        InvalidCursorError: If the cursor is damaged or belongs to another query.
    """
    body = unseal(cursor, _question(query, condition))
    try:
        time, session_id, item_id, *digest = json.loads(body)
        stored = dialect.stored_time_value(time)
        dialect.position_parameters(time, session_id or "")
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        raise InvalidCursorError from None
    texts = [time, *digest] if session_id is None else [time, session_id]
    if type(item_id) is not int or not 0 <= item_id < _GREATEST_ID or len(texts) != 2:
        raise InvalidCursorError
    if (session_id is not None and digest) or not all(isinstance(each, str) for each in texts):
        raise InvalidCursorError
    return Place(stored, session_id, item_id, *digest)


def _question(query: WordQuery, condition: Condition) -> list[Any]:
    return ["search", query.encoded(), condition.encoded()]

"""Cursors of pages of hits, in the format of `cursors`.

The position is `[time, session id, item id]` as JSON, or `[text]` for a hidden place. The question
is `["search", query, condition]`, each as its `encoded()` gives it.
"""

from __future__ import annotations

import json
from typing import Any

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import InvalidCursorError
from agents_session_metadata.words import WordQuery

from .cursors import seal, unseal
from .logic import Condition
from .places import HiddenPlace, Place, place_of


def encode_search_cursor(place: Place | HiddenPlace, query: WordQuery, condition: Condition) -> str:
    """Make a cursor of a place in the answer to a search."""
    body = [place.text] if isinstance(place, HiddenPlace) else place.body()
    text = json.dumps(body, separators=(",", ":"))
    return seal(text.encode(), _question(query, condition))


def decode_search_cursor(
    cursor: str, query: WordQuery, condition: Condition, dialect: Dialect
) -> Place | HiddenPlace:
    """Read the place out of a cursor.

    Raises:
        InvalidCursorError: If the cursor is damaged or belongs to another query.
    """
    try:
        body = json.loads(unseal(cursor, _question(query, condition)))
    except (ValueError, RecursionError):
        raise InvalidCursorError from None
    match body:
        case [str(text)]:
            return HiddenPlace(text)
    return place_of(body, dialect)


def _question(query: WordQuery, condition: Condition) -> list[Any]:
    return ["search", query.encoded(), condition.encoded()]

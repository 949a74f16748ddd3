"""Session ids that are derived from metadata, so that all callers derive the same one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from agents_session_metadata.values import EncodedValue

_VERSION = 1
"""To be raised with every change: callers of two versions then create one session each."""


def derived_id(values: Mapping[str, EncodedValue], attempt: int) -> str:
    """The id of the session with these values.

    It is the first half of SHA-256, in hexadecimal, of the JSON text
    `[version, attempt, [[key, search key in hexadecimal], …]]`, ASCII, without spaces, in the order
    of the keys' code points.

    Args:
        values: The values, by key.
        attempt: The number of ids before it that are taken.
    """
    keys = [
        [key, (value.search.indexed + value.search.rest).hex()]
        for key, value in sorted(values.items())
    ]
    text = json.dumps([_VERSION, attempt, keys], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]

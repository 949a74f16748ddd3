"""Session ids that are derived from metadata, so that all callers derive the same one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from agents_session_metadata.values import EncodedValue

_VERSION = 1
"""Must be raised with every change. Callers of two versions then create one session each."""


def derived_id(values: Mapping[str, EncodedValue], attempt: int) -> str:
    """Returns the first half of the SHA-256, in hexadecimal, of a JSON text.

    The text is `[version, attempt, [[key, search key in hexadecimal], …]]`, ASCII, without spaces,
    in the order of the keys' code points. `attempt` is the number of earlier ids that are taken.
    """
    keys = [
        [key, (value.search.indexed + value.search.rest).hex()]
        for key, value in sorted(values.items())
    ]
    text = json.dumps([_VERSION, attempt, keys], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]

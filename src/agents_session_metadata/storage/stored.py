"""Values as they come out of the metadata table."""

from __future__ import annotations

from typing import Any

from agents_session_metadata.errors import CorruptMetadataError
from agents_session_metadata.values import decode_value


def decode_stored(session_id: str, key: str, text: Any) -> Any:
    """The value of a stored JSON text.

    Raises:
        CorruptMetadataError: If it is NULL or not valid JSON.
    """
    try:
        return decode_value(text)
    except ValueError:
        raise CorruptMetadataError(session_id, key) from None

"""Places in the order of hits, plain and hidden.

A page can end at a message that its reader must not know of. That place is encrypted with a key
that is stored in the database: all processes have it, and readers of pages do not. So only a place
that was given out can be given back, and nothing has to be looked up to go on from it.

The encryption is deterministic, as in RFC 5297: a keyed digest of the text authenticates it, and is
the nonce of the key stream.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any, NamedTuple

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import InvalidCursorError

_GREATEST_ID = 2**63
_NONCE_BYTES = 16
_PADDED_BYTES = 128
"""Texts are padded to a multiple of this, because their length tells that of the session id."""


class Place(NamedTuple):
    """A place in the order of hits.

    Attributes:
        time: The time as the database stores it.
        session_id: The session.
        item_id: The item, or `TITLE_ITEM`.
    """

    time: Any
    session_id: str
    item_id: int

    def body(self) -> list[Any]:
        """The place as JSON."""
        return [str(self.time), self.session_id, self.item_id]

    def hidden(self, key: str) -> HiddenPlace:
        """The place, for a reader to whom the session may not belong."""
        text = json.dumps(self.body()).encode()
        text += b" " * (-len(text) % _PADDED_BYTES)
        nonce = _nonce(text, key)
        return HiddenPlace(base64.b64encode(nonce + _mixed(text, nonce, key)).decode())


class HiddenPlace(NamedTuple):
    """An encrypted place.

    Attributes:
        text: The nonce and the encrypted JSON, in base64.
    """

    text: str

    def revealed(self, key: str, dialect: Dialect) -> Place:
        """The place.

        Raises:
            InvalidCursorError: If it was not encrypted with this key.
        """
        try:
            data = base64.b64decode(self.text, validate=True)
        except ValueError:
            raise InvalidCursorError from None
        nonce, mixed = data[:_NONCE_BYTES], data[_NONCE_BYTES:]
        text = _mixed(mixed, nonce, key)
        if not hmac.compare_digest(nonce, _nonce(text, key)):
            raise InvalidCursorError
        return place_of(json.loads(text), dialect)


def place_of(body: Any, dialect: Dialect) -> Place:
    """A place that was given as JSON.

    Raises:
        InvalidCursorError: If it is none.
    """
    match body:
        case [str(time), str(session_id), item_id] if type(item_id) is int:
            pass
        case _:
            raise InvalidCursorError
    if not 0 <= item_id < _GREATEST_ID:
        raise InvalidCursorError
    try:
        stored = dialect.stored_time_value(time)
        dialect.position_parameters(time, session_id)
    except (ValueError, TypeError, ArithmeticError):
        raise InvalidCursorError from None
    return Place(stored, session_id, item_id)


def _nonce(text: bytes, key: str) -> bytes:
    return hashlib.blake2b(text, key=key.encode(), digest_size=_NONCE_BYTES).digest()


def _mixed(text: bytes, nonce: bytes, key: str) -> bytes:
    """Encrypts a text, or decrypts it."""
    stream = hashlib.shake_256(key.encode() + nonce).digest(len(text))
    return bytes(one ^ other for one, other in zip(text, stream, strict=True))

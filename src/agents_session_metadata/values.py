"""JSON values: which are allowed, their text, and the search key that represents them in an index.

A search key is a byte string: a type tag, then an encoding whose byte order is the order of the
values. One indexed binary column serves equality, ranges, prefixes and counting on every database,
independent of collations. Numbers of any size compare as the decimals in their JSON text, strings
compare by code point. A tag can also occur in a value: that of strings is `@`. The first
`SEARCH_KEY_BYTES` bytes are indexed; a second column holds the rest, and equality and order use
both.

| value | encoding after the tag |
|---|---|
| None, False, True | nothing |
| number | sign, decimal exponent, digits in pairs; complemented if negative |
| string | UTF-8 |
| list, object | SHA-256 of a canonical form: only equality is asked of them |
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from .errors import InvalidMetadataError, MetadataLimitError
from .text import quoted, refuse_constant
from .types import MAX_ID_LENGTH, JSONValue, MetadataLimits

SEARCH_KEY_BYTES = 512
"""Indexed bytes of a search key: the most that fits every database's index beside an id and a
key."""

MAX_DEPTH = 100
MAX_INTEGER_DIGITS = 4300
_TOO_LARGE = 10**MAX_INTEGER_DIGITS

NULL = b"\x10"
FALSE = b"\x20"
TRUE = b"\x21"
NUMBER = b"\x30"
STRING = b"\x40"
LIST = b"\x50"
OBJECT = b"\x60"

_NEGATIVE, _ZERO, _POSITIVE = b"\x00", b"\x01", b"\x02"
_EXPONENT_BIAS = 0x8000
_HEX = bytes.fromhex("".join(f"{pair:02}" for pair in range(100)))
_PAIRS = bytes(range(1, 101))
_FROM_HEX = bytes.maketrans(_HEX, _PAIRS)
_TO_HEX = bytes.maketrans(_PAIRS, _HEX)
"""Two decimal digits are one byte, 1 to 100; read as hexadecimal, they are 0x00 to 0x99."""
_COMPLEMENT = bytes(255 - byte for byte in range(256))

_SURROGATE = re.compile("[\ud800-\udfff]")

_to_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def finite(text: str) -> float:
    """Raises `ValueError` for infinity and NaN. For the hooks of `json.loads`."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


_from_text = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite).raw_decode


class SearchKey(NamedTuple):
    """A search key as it is stored: the indexed beginning, and the rest."""

    indexed: bytes
    rest: bytes

    @property
    def is_whole(self) -> bool:
        """True if the indexed part alone distinguishes this value from every other."""
        return len(self.indexed) < SEARCH_KEY_BYTES


class EncodedValue(NamedTuple):
    text: str
    search: SearchKey
    elements: tuple[SearchKey, ...]


def encode_metadata(
    values: Mapping[str, JSONValue], limits: MetadataLimits
) -> dict[str, EncodedValue]:
    """Checks and encodes metadata, in the order of the keys."""
    if not isinstance(values, Mapping):
        raise TypeError(f"metadata must be a mapping, got {type(values).__name__}")
    encoded = {}
    for key, value in values.items():
        name = check_key(key, limits)
        encoded[name] = encode_text(name, value, json_text(name, value), limits)
    encoded = dict(sorted(encoded.items()))
    check_count((), encoded, limits)
    return encoded


def check_count(stored: Collection[str], written: Iterable[str], limits: MetadataLimits) -> None:
    """Raises `MetadataLimitError` if a session has too many keys after a write."""
    new = [key for key in written if key not in stored]
    size, allowed = len(stored) + len(new), limits.max_keys
    if new and size > allowed:
        first_over = new[max(0, allowed - len(stored))]
        raise MetadataLimitError("max_keys", key=first_over, size=size, allowed=allowed)


def check_key(key: object, limits: MetadataLimits) -> str:
    """Returns the key as a plain `str`, also if it is an instance of a subclass."""
    problem = key_problem(key)
    if problem is not None or not isinstance(key, str):
        raise InvalidMetadataError(problem or "", key=key)
    if len(key) > limits.max_key_length:
        raise MetadataLimitError(
            "max_key_length", key=key, size=len(key), allowed=limits.max_key_length
        )
    return str.__str__(key)


def key_problem(key: object) -> str | None:
    if not isinstance(key, str):
        return f"a key must be a string, got {type(key).__name__}"
    if not key:
        return "a key must not be empty"
    if key.startswith("$"):
        return "a key must not begin with $"
    if "\x00" in key:
        return "a key must not contain NUL"
    if not _is_utf8(key):
        return "a key must not contain lone surrogates"
    return None


def check_id(session_id: str) -> None:
    """Raises `ValueError` for an id that no session with metadata can have."""
    problem = id_problem(session_id)
    if problem is not None:
        raise ValueError(f"session id {quoted(session_id)} {problem}")


def check_id_type(session_id: object) -> None:
    if not isinstance(session_id, str):
        advice = "; pass metadata as metadata={…}" if isinstance(session_id, Mapping) else ""
        raise TypeError(f"session_id must be a string, got {type(session_id).__name__}{advice}")


def id_problem(session_id: str) -> str | None:
    check_id_type(session_id)
    if not 1 <= len(session_id) <= MAX_ID_LENGTH:
        return f"must have between 1 and {MAX_ID_LENGTH} characters, got {len(session_id)}"
    if "\x00" in session_id:
        return "contains NUL"
    return None if _is_utf8(session_id) else "contains lone surrogates"


def json_text(key: str, value: JSONValue) -> str:
    problem = value_problem(value)
    if problem is not None:
        raise InvalidMetadataError(problem[1], key=key, path=problem[0])
    return _to_text(value)


def encode_text(key: str, value: JSONValue, text: str, limits: MetadataLimits) -> EncodedValue:
    """The value must have been checked and have this text."""
    size = len(text.encode())
    if size > limits.max_value_bytes:
        raise MetadataLimitError(
            "max_value_bytes", key=key, size=size, allowed=limits.max_value_bytes
        )
    return EncodedValue(text, search_key(value), tuple(_elements(value)))


def decode_value(text: str) -> Any:
    """Raises `ValueError` if the text is not valid JSON."""
    text = text.strip(" \t\n\r")
    try:
        value, end = _from_text(text)
    except RecursionError:
        raise ValueError("a stored value is nested too deeply") from None
    if end < len(text):
        raise ValueError("a stored value must be a single JSON value")
    return value


def canonical_text(text: str) -> str:
    """Returns the text that equal values share. A corrupt text is returned unchanged."""
    try:
        return _to_text(_normalized(decode_value(text)))
    except (ValueError, RecursionError):
        return text


def decode_elements(text: str) -> tuple[SearchKey, ...]:
    """Returns nothing if the text is not a list or not valid JSON."""
    if not text.lstrip().startswith("["):
        return ()
    try:
        return tuple(_elements(decode_value(text)))
    except ValueError:
        return ()


def value_problem(value: object) -> tuple[str, str] | None:
    """Returns the path and the problem of the first part that is not JSON, or None."""
    found = _problem(value, 0)
    return None if found is None else ("$" + found[0], found[1])


def search_key(value: JSONValue) -> SearchKey:
    """The value must not have a `value_problem`."""
    return split_search_key(_search_bytes(value))


def prefix_key(text: str) -> SearchKey:
    """Returns the beginning that the search keys of all strings with this prefix share."""
    return split_search_key(STRING + text.encode())


def upper_bound(prefix: bytes) -> bytes:
    """Returns the smallest byte string above every one that begins with `prefix`."""
    # Neither a type tag nor a byte of UTF-8 is 0xFF, so the last byte can always be raised.
    return prefix[:-1] + bytes([prefix[-1] + 1])


def decode_scalar(search: SearchKey) -> str | int | float | bool | None:
    """Returns whole numbers as int, also if they were stored as float."""
    encoded = search.indexed + search.rest
    tag, body = encoded[:1], encoded[1:]
    if tag == STRING:
        return body.decode()
    if tag == NUMBER:
        return _decode_number(body)
    return {NULL: None, FALSE: False, TRUE: True}[tag]


def _problem(value: object, depth: int) -> tuple[str, str] | None:
    if isinstance(value, str):
        return None if _is_utf8(value) else ("", "a string must not contain lone surrogates")
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        if value.bit_length() > 14_000 and abs(value) >= _TOO_LARGE:
            return "", f"an integer can have at most {MAX_INTEGER_DIGITS} digits"
        return None
    if isinstance(value, float):
        if not math.isfinite(value):
            return "", f"{value!r} is not JSON; store None or a string"
        return None
    if not isinstance(value, (list, dict)):
        return "", f"{type(value).__name__} is not JSON; {_advice(value)}"
    if depth >= MAX_DEPTH:
        return "", f"a value can be nested at most {MAX_DEPTH} levels deep"
    if isinstance(value, list):
        for index, item in enumerate(value):
            found = _problem(item, depth + 1)
            if found is not None:
                return f"[{index}]{found[0]}", found[1]
        return None
    for name, item in value.items():
        if not isinstance(name, str):
            return "", f"an object's keys must be strings, got {type(name).__name__}"
        if not _is_utf8(name):
            return "", "an object's keys must not contain lone surrogates"
        found = _problem(item, depth + 1)
        if found is not None:
            return f".{name}{found[0]}", found[1]
    return None


def _advice(value: object) -> str:
    if hasattr(value, "isoformat"):  # dates and times
        return "store value.isoformat()"
    if hasattr(value, "model_dump"):  # pydantic's models
        return 'store value.model_dump(mode="json")'
    if isinstance(value, Enum):
        return "store value.value"
    if isinstance(value, (tuple, set, frozenset)):
        return "store list(value)"
    if isinstance(value, (Decimal, UUID)):
        return "store str(value)"
    return "store a string, number, list or dict"


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def split_search_key(encoded: bytes) -> SearchKey:
    return SearchKey(encoded[:SEARCH_KEY_BYTES], encoded[SEARCH_KEY_BYTES:])


def _search_bytes(value: JSONValue) -> bytes:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return TRUE if value else FALSE
    if isinstance(value, str):
        return STRING + value.encode()
    if isinstance(value, int):
        return NUMBER + _encode_number(int.__repr__(value))
    if isinstance(value, float):
        return NUMBER + _encode_number(float.__repr__(value))
    # A digest keeps the key short: a long list would only be stored twice.
    digest = hashlib.sha256(_canonical(value)).digest()
    return (LIST if isinstance(value, list) else OBJECT) + digest


def _canonical(value: JSONValue) -> bytes:
    """Two lists or objects have the same bytes exactly if they are equal."""
    if isinstance(value, list):
        return LIST + _framed([_canonical(item) for item in value])
    if isinstance(value, dict):
        pairs = sorted((name.encode(), item) for name, item in value.items())
        return OBJECT + _framed([part for name, item in pairs for part in (name, _canonical(item))])
    return _search_bytes(value)


def _normalized(value: JSONValue) -> JSONValue:
    if isinstance(value, list):
        return [_normalized(item) for item in value]
    if isinstance(value, dict):
        return {name: _normalized(value[name]) for name in sorted(value)}
    return decode_scalar(search_key(value))


def _framed(parts: Iterable[bytes]) -> bytes:
    """Joins byte strings so that no other strings join to the same."""
    return b"".join([len(part).to_bytes(8, "big") + part for part in parts])


def _elements(value: JSONValue) -> Iterator[SearchKey]:
    if isinstance(value, list):
        scalars = (item for item in value if not isinstance(item, (list, dict)))
        yield from map(split_search_key, dict.fromkeys(map(_search_bytes, scalars)))


def _encode_number(text: str) -> bytes:
    """Encodes a JSON number so that byte order is numeric order, exactly."""
    mantissa, _, power = text.lower().partition("e")
    negative = mantissa.startswith("-")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return _ZERO
    # The number is 0.DIGITS times ten to this power.
    exponent = len(digits) - len(fraction) + int(power or 0)
    digits = digits.rstrip("0")
    digits += "0" * (len(digits) % 2)
    pairs = bytes.fromhex(digits).translate(_FROM_HEX)
    body = (exponent + _EXPONENT_BIAS).to_bytes(2, "big") + pairs
    if negative:
        # The final 0xFF puts a shorter number above one that goes on, as -1 is above -1.5.
        return _NEGATIVE + body.translate(_COMPLEMENT) + b"\xff"
    return _POSITIVE + body


def _decode_number(encoded: bytes) -> int | float:
    sign, body = encoded[:1], encoded[1:]
    if sign == _ZERO:
        return 0
    if sign == _NEGATIVE:
        body = body[:-1].translate(_COMPLEMENT)
    exponent = int.from_bytes(body[:2], "big") - _EXPONENT_BIAS
    digits = body[2:].translate(_TO_HEX).hex().rstrip("0")
    minus = "-" if sign == _NEGATIVE else ""
    if len(digits) <= exponent:
        return int(minus + digits.ljust(exponent, "0"))
    return float(f"{minus}0.{digits}e{exponent}")


def is_text(text: str) -> bool:
    """True if every driver accepts the string as a parameter: UTF-8 without NUL."""
    return "\x00" not in text and _is_utf8(text)


def utf8_text(text: str) -> str:
    """Replaces lone surrogates, which have no UTF-8, with U+FFFD."""
    return text if _is_utf8(text) else _SURROGATE.sub("\ufffd", text)


def error_text(error: BaseException, most: int) -> str:
    """Returns the type and the text of an error, cut to `most` characters."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # of a class of the application's own
        text = ""
    return storable_text(f"{type(error).__name__}: {text}"[:most])


def storable_text(text: str) -> str:
    """Replaces characters that not every driver accepts with U+FFFD."""
    return utf8_text(text).replace("\x00", "\ufffd")


def plain(value: Any) -> Any:
    """Returns a deep copy in plain types, equal to the value read from the database."""
    return decode_value(_to_text(value))

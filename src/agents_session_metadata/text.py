"""Text: escaped for messages, terminals and logs; strict JSON; times and messages for people."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NoReturn

_LONGEST = 80
_UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f"  # control characters
    r"\u2028\u2029"  # line and paragraph separators
    r"\u202a-\u202e\u2066-\u2069"  # bidirectional controls
    r"\ud800-\udfff]"  # lone surrogates
)


def escaped(text: str, kept: str = "") -> str:
    """Escapes control characters except those in `kept`. Other non-ASCII characters stay."""

    def escape(found: re.Match[str]) -> str:
        unsafe = found[0]
        return unsafe if unsafe in kept else unsafe.encode("unicode_escape").decode()

    return _UNSAFE.sub(escape, text)


def quoted(value: object, longest: int = _LONGEST) -> str:
    """Quotes strings, escapes control characters and shortens long values, for messages."""
    if isinstance(value, str):
        text = escaped(value[: longest + 1])
        quote = '"' if "'" in text and '"' not in text else "'"
        text = f"{quote}{text}{quote}"
    else:
        try:
            text = escaped(repr(value))
        except ValueError:  # an integer with more digits than Python writes
            text = f"a long {type(value).__name__}"
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def strict_json(text: str, *, duplicates: bool = False, **hooks: Any) -> Any:
    """Raises `ValueError` for NaN, infinities, too long integers, deep nesting and duplicate keys.

    With `duplicates`, an object can repeat a key, and the last value is used. `hooks` are further
    arguments of `json.loads`.
    """
    if not duplicates:
        hooks["object_pairs_hook"] = _without_duplicates
    try:
        return json.loads(text, parse_constant=refuse_constant, **hooks)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        if "set_int_max_str_digits" not in str(error):
            raise
        most = sys.get_int_max_str_digits()
        raise ValueError(f"an integer can have at most {most} digits") from None


def refuse_constant(name: str) -> NoReturn:
    """Rejects NaN and infinities, as `parse_constant` of `json.loads`."""
    raise ValueError(f"{name} is not a JSON value")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {quoted(repeated)}")
    return found


def ascii_json(document: Any, indent: int | None = None) -> str:
    """Returns JSON that every encoding can express. Durations are in seconds."""
    return json.dumps(document, indent=indent, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return float(value) if isinstance(value, Decimal) else vars(value)


def ago(then: datetime, now: datetime | None = None) -> str:
    passed = (now or datetime.now(timezone.utc)) - then
    if passed < timedelta(minutes=1):
        return "just now"
    for unit, size, limit in (
        ("min", timedelta(minutes=1), timedelta(hours=1)),
        ("h", timedelta(hours=1), timedelta(days=1)),
        ("d", timedelta(days=1), timedelta(days=60)),
    ):
        if passed < limit:
            return f"{passed // size} {unit} ago"
    return f"{then:%Y-%m-%d}"


def parse_time(value: object) -> datetime | None:
    """Returns None if the value is not a time in ISO 8601. A time without an offset is UTC."""
    if not isinstance(value, str):
        return None
    try:
        # Python 3.10 does not read the Z that stands for UTC.
        found = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    return found.replace(tzinfo=timezone.utc) if found.tzinfo is None else found


def is_encrypted(item: object) -> bool:
    """Recognizes an item that was written through the SDK's `EncryptedSession`."""
    return isinstance(item, dict) and item.get("__enc__") == 1


def texts_of(content: object) -> Iterator[str]:
    """Yields the texts of a message's content, those of refusals among them."""
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text


def content_texts(content: Any) -> Iterator[str]:
    """Yields the texts of a message's content. A part without text is replaced by its type."""
    parts = content if isinstance(content, list) else [] if content is None else [content]
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        yield next(texts_of(part), f"({kind or quoted(part)})")

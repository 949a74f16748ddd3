"""Formats values, times and amounts for pages. Any stored value may have any type."""

from __future__ import annotations

import json
import re
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from agents_session_metadata import keys
from agents_session_metadata.text import content_texts, escaped, strict_json
from agents_session_metadata.types import SessionInfo

LONGEST_TEXT = 20_000
"""Characters of a text that a page shows."""
_LONGEST_LINKED = 500
_LONGEST_PARSED = 200_000
_MOST_PARTS = 1_000
_SAFE = re.compile(r"[^\n\t]+")


def clean(value: Any) -> Any:
    """Escape control characters and changes of direction in a text."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return _SAFE.sub(lambda found: escaped(found[0]), value.replace("\r\n", "\n"))
    return value


def encoded(value: str) -> str:
    """Encode a text for `PageCall.exact`, because browsers change the line breaks of a field."""
    return quote(value, safe="", errors="replace")


def shown(value: Any, longest: int = 200) -> str:
    text = value if isinstance(value, str) else as_json(value)
    return text if len(text) <= longest else f"{text[:longest]}…"


def lines(text: str) -> list[str]:
    """Returns the lines of a text, stripped, without empty and repeated ones."""
    return list(dict.fromkeys(filter(None, map(str.strip, text.splitlines()))))


def tags(value: Any) -> list[str] | None:
    """Returns the tags that a form can show one per line; None if the value is not a list.

    Omits numbers, and texts that a line would show differently.
    """
    if not isinstance(value, list):
        return None
    shown = (each for each in value if isinstance(each, str) and lines(clean(each)) == [each])
    return list(dict.fromkeys(shown))


def readable(text: str | None) -> Any:
    """Parses JSON, unless it is long or another text would be shown than the one that was sent."""
    if text is None or len(text) > _LONGEST_PARSED:
        return text
    try:
        return strict_json(text, parse_float=_exact)
    except ValueError:
        return text


def _exact(digits: str) -> float:
    found = float(digits)
    if repr(found) != digits:
        raise ValueError("a number would be written in another way")
    return found


def content_of(content: Any) -> tuple[str, list[str]]:
    """Returns the text of a message or an output, and the URLs of its images."""
    parts = content[:_MOST_PARTS] if isinstance(content, list) else [content]
    images, others = list[str](), list[Any]()
    for part in parts:
        url = part.get("image_url") if isinstance(part, dict) else None
        images.append(url) if isinstance(url, str) else others.append(_named(part))
    if isinstance(content, dict | int | float) and others:
        return as_json(content, indent=2), images
    if isinstance(content, list) and len(parts) < len(content):
        others.append(f"({len(content) - len(parts):,} more parts)")
    return "\n".join(content_texts(others if isinstance(content, list) else content)), images


def _named(part: Any) -> Any:
    """Returns a file as a text with its name, and other parts as they are."""
    if not isinstance(part, dict) or part.get("type") != "input_file":
        return part
    names = (part.get(key) for key in ("filename", "file_url", "file_id"))
    name = next((each for each in names if isinstance(each, str) and each), "without a name")
    return {"type": "input_text", "text": f"(file {shown(name)})"}


def is_short(value: Any) -> bool:
    """True if a link can contain the value."""
    return len(value if isinstance(value, str) else as_json(value)) <= _LONGEST_LINKED


def title(info: SessionInfo) -> str:
    stored = info.metadata.get(keys.TITLE)
    return shown(stored) if stored else info.preview or info.session_id


def as_json(value: Any, *, indent: int | None = None) -> str:
    """With `indent`, the result may end after `LONGEST_TEXT` characters."""
    try:
        if indent is None:
            return json.dumps(value, ensure_ascii=False)
        found, size = list[str](), 0
        for part in json.JSONEncoder(ensure_ascii=False, indent=indent).iterencode(value):
            found.append(part)
            size += len(part)
            if size > LONGEST_TEXT:
                break
        return "".join(found)
    except (ValueError, RecursionError):
        return "(a value that cannot be shown)"


def number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) < 1e15 else None


def short(value: Any) -> str:
    """Format a count in a few characters: 950, 12.4k, 3.1M."""
    found = number(value)
    if found is None:
        return ""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(found) >= size:
            return f"{found / size:.1f}".removesuffix(".0") + letter
    return f"{found:g}"


def money(value: Any, currency: str) -> str:
    found = number(value)
    if found is None:
        return ""
    unit = f"{currency}\u00a0" if currency[-1:].isalnum() else currency
    return f"<{unit}0.01" if 0 < found < 0.01 else f"{unit}{found:,.2f}"


def seconds(milliseconds: Any) -> str:
    found = number(milliseconds)
    if found is None:
        return ""
    if found < 1000:
        return f"{found:.0f} ms"
    if found < 60_000:
        return f"{found / 1000:.1f} s"
    whole = round(found / 1000)
    parts = (whole // 3600, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")
    wanted = parts[1:] if whole < 3600 else parts[:2]
    return " ".join(f"{count} {unit}" for count, unit in wanted if count)


def exact(then: datetime) -> str:
    return f"{then:%Y-%m-%d %H:%M:%S} UTC"

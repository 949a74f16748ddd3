"""Makes text from outside readable in messages, and harmless to terminals and logs."""

from __future__ import annotations

import re

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

"""Searching in plain Python: the answer that every database has to give.

It normalizes whole texts, where the package goes character by character, and compares lists.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

DROPPED = {0x34F, 0x200C, 0x200D, 0x2060, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10)}
DROPPED |= set(range(0xE0100, 0xE01F0))
SCRIPTS = ("LATIN", "GREEK", "CYRILLIC")
UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "HENTAIGANA", "HANGUL", "HANGZHOU")
MARKS = "ー々〆〇〱〲〳〴〵〻〼"
"""Of these scripts, by other names."""

Word = tuple[str, bool]
"""A word, or a character of Han, Kana or Hangul; and whether it follows another such character."""


def normalized(text: str) -> str:
    text = "".join(each for each in text if ord(each) not in DROPPED)
    for _ in range(3):
        text = unicodedata.normalize("NFKC", text).casefold()
    kept, base = [], ""
    for character in unicodedata.normalize("NFKD", text):
        if unicodedata.category(character) == "Mn":
            if unicodedata.name(base or " ", "").startswith(SCRIPTS):
                continue
        else:
            base = character
        kept.append(character)
    return unicodedata.normalize("NFKC", "".join(kept))


def kind(character: str) -> str:
    category = unicodedata.category(character)[0]
    if category == "M":
        return "mark"
    if category not in "LN":
        return "word" if character == "_" else ""
    name = unicodedata.name(character, "")
    is_mark = character in MARKS
    return "unspaced" if is_mark or name.startswith(UNSPACED) else "word"


def words(text: str) -> list[Word]:
    found: list[Word] = []
    before = ""
    for character in normalized(text):
        now = kind(character)
        if now == "mark" and before:
            found[-1] = found[-1][0] + character, found[-1][1]
            continue
        if now == "word" == before:
            found[-1] = found[-1][0] + character, False
        elif now:
            found.append((character, now == before == "unspaced"))
        before = "word" if now == "mark" else now
    return found


def terms(query: str) -> list[tuple[bool, list[Word], bool]]:
    """Excluded or not, the words, and whether the last is a prefix."""
    found = []
    for minus, quoted, star, plain in re.findall(r'(-?)(?:"([^"]*)"?(\*?)|([^\s"]+))', query):
        text = plain or quoted + star
        wanted = words(text)
        if wanted:
            last = kind(normalized(text[:-1])[-1:] or " ")
            prefix = text.endswith("*") and last in ("word", "mark")
            found.append((bool(minus), wanted, prefix))
    return found


def occurs(wanted: Sequence[Word], prefix: bool, text: Sequence[Word]) -> bool:
    for start in range(len(text) - len(wanted) + 1):
        part = text[start : start + len(wanted)]
        same = all(
            (there == word or (prefix and place == len(wanted) - 1 and there.startswith(word)))
            and (is_joined or not joined or place == 0)
            for place, ((word, joined), (there, is_joined)) in enumerate(
                zip(wanted, part, strict=True)
            )
        )
        if same:
            return True
    return False


def matches(query: str, text: str) -> bool:
    of_text = words(text)
    return all(occurs(wanted, prefix, of_text) != minus for minus, wanted, prefix in terms(query))


def text_of(item: Any) -> str | None:
    if item.get("role") not in ("user", "assistant"):
        return None
    content = item["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)

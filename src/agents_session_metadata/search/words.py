"""Splitting text into the words that full-text search compares.

Text is normalized: NFKC, case folding, and the accents of Latin, Greek and Cyrillic letters
removed; variation selectors and joiners are dropped. A word is a run of letters, marks, digits and
`_`. In a run of Han, Kana and Hangul, where words are not separated, each character is a token of
its own, and tokens are found next to each other.

No word continues after white space or punctuation of Chinese and Japanese. Text is split there
first, and the tokens of the pieces, of which most repeat, are cached.

Words are stored, so a change needs the index to be dropped and created again. ASCII text takes a
short cut here and in `WordQuery.match`, and FTS5 has a tokenizer of its own in `dialects/_text`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple, TypeVar

T = TypeVar("T")

LONGEST_WORD = 250
"""Characters of a word that are stored. Indexes of databases limit the size of a word."""
_LONGEST_PART = 64
"""Characters that are normalized together; further marks are ignored.

Putting marks in their canonical order takes a time that grows with the square of their number. Text
of any language has a few; the stream-safe format of UAX #15 allows 30.
"""
_LONGEST_CACHED = 16
"""Longer pieces of users' text are not kept, so that the caches take a few MiB at most."""

ASCII_WORD = re.compile(r"[0-9A-Za-z_]+")
# The others are compiled at first use, which takes longer than importing this module.
_DROPPED = "[\u034f\u180b-\u180f\u200c\u200d\u2060\ufe00-\ufe0f\U000e0100-\U000e01ef]"
"""Joiners and variation selectors."""
_PIECE = r"[^\s\u3001\u3002\u300c-\u300f\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f]+"
_PLAIN_UNSPACED = "[\u3041-\u3096\u30a1-\u30fa\u30fc\u4e00-\u9fff\uac00-\ud7a3]+"
"""Characters that are tokens as they are, unless a mark follows."""
_UNSPACED = (
    "[\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u302f\u3031-\u3035\u3038-\u30ff\u3130-\u318f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc"
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff]"
)
"""Han, Kana and Hangul."""
_ACCENTED_SCRIPTS = ("LATIN ", "GREEK ", "CYRILLIC ")


class Token(NamedTuple):
    """A word, or one character of a run of Han, Kana and Hangul (`unspaced`).

    `start` and `end` are places in the original text. A token is `joined` if it follows another
    character of the same run.
    """

    word: str
    start: int
    end: int
    unspaced: bool = False
    joined: bool = False


def tokenize(text: str) -> Iterator[Token]:
    if text.isascii():
        for found in ASCII_WORD.finditer(text):
            yield Token(found[0].lower(), *found.span())
        return
    for found in re.finditer(_PIECE, text):
        at = found.start()
        for word, start, end, unspaced, joined in _tokens(found[0]):
            yield Token(word, at + start, at + end, unspaced, joined)


def spelled(tokens: Iterable[Token], longest: int | None = None) -> str:
    """Returns words in a form in which substrings of them are found.

    A space is before and after each word. Two spaces are between separate runs of Han, Kana and
    Hangul, so that a phrase is not found across them. Without words, returns an empty string.
    """
    parts: list[str] = []
    was_unspaced = False
    for word, _, _, unspaced, joined in tokens:
        parts.append("  " if unspaced and was_unspaced and not joined else " ")
        parts.append(word[:longest])
        was_unspaced = unspaced
    return "".join([*parts, " "]) if parts else ""


def stored_words(text: str) -> str:
    """Returns the words of a text as they are stored; long ones are cut."""
    if text.isascii():
        words = " ".join([word[:LONGEST_WORD] for word in ASCII_WORD.findall(text.lower())])
        return f" {words} " if words else ""
    parts, was_unspaced = [" "], False
    for words, begins, ends in map(_words, re.findall(_PIECE, text)):
        if words:
            # As in `spelled`.
            parts.append(words if was_unspaced and begins else words[1:])
            was_unspaced = ends
    return "".join(parts) if len(parts) > 1 else ""


def normalize(text: str) -> str:
    text = re.sub(_DROPPED, "", text)
    # Folding may produce what normalizes further, and the other way round.
    for _ in range(2):
        text = unicodedata.normalize("NFKC", text).casefold()
    kept: list[str] = []
    is_accented = False
    for character in unicodedata.normalize("NFKD", text):
        if unicodedata.category(character) != "Mn":
            is_accented = unicodedata.name(character, "").startswith(_ACCENTED_SCRIPTS)
        elif is_accented:
            continue
        kept.append(character)
    return unicodedata.normalize("NFKC", "".join(kept))


@lru_cache(maxsize=4_096)
def extends(character: str) -> bool:
    """True if the character is normalized together with the one before it."""
    if re.match(_DROPPED, character):
        return True
    # Vowels and final consonants of Hangul compose with what is before them.
    if "\u1160" <= character <= "\u11ff" or "\ud7b0" <= character <= "\ud7ff":
        return True
    first = unicodedata.normalize("NFKC", character)[0]
    return unicodedata.category(first)[0] == "M" or "\u1160" <= first <= "\u11ff"


def _cached(most: int) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    def decorate(function: Callable[[str], T]) -> Callable[[str], T]:
        cached = lru_cache(maxsize=most)(function)
        return lambda piece: (cached if len(piece) <= _LONGEST_CACHED else function)(piece)

    return decorate


class _Character(NamedTuple):
    """A normalized character. `word` is true if it is part of a word."""

    text: str
    word: bool
    mark: bool
    unspaced: bool


@_cached(4_096)
def _characters(part: str) -> list[_Character]:
    found = []
    for character in normalize(part):
        category = unicodedata.category(character)[0]
        mark = category == "M"
        unspaced = not mark and bool(re.match(_UNSPACED, character))
        word = category in "LMN" or character == "_"
        found.append(_Character(character, word, mark, unspaced))
    return found


@_cached(16_384)
def _words(piece: str) -> tuple[str, bool, bool]:
    """Returns the stored words of a piece, and whether the first and the last are unspaced."""
    if re.fullmatch(_PLAIN_UNSPACED, piece):
        return f" {' '.join(piece)} ", True, True
    tokens = _tokens(piece)
    is_unspaced = [token.unspaced for token in tokens] or [False]
    return spelled(tokens, LONGEST_WORD), is_unspaced[0], is_unspaced[-1]


@_cached(4_096)
def _tokens(piece: str) -> list[Token]:
    found: list[Token] = []
    word, begin, finish = "", 0, 0
    # Whether the word is a character of an unspaced run, and whether it follows another one.
    unspaced = joined = False
    start = end = 0
    while end < len(piece):
        # A character and its marks are normalized by themselves.
        start, end = end, end + 1
        while end < len(piece) and piece[end] >= "\x80" and extends(piece[end]):
            end += 1
        part = piece[start : min(end, start + _LONGEST_PART)]
        for character, is_word, is_mark, is_unspaced in _characters(part):
            if word and is_word and (is_mark or not (unspaced or is_unspaced)):
                word, finish = word + character, end
                continue
            if word:
                found.append(Token(word, begin, finish, unspaced, joined))
            joined = bool(word) and unspaced and is_unspaced
            word = character if is_word else ""
            unspaced, begin, finish = is_unspaced, start, end
    if word:
        found.append(Token(word, begin, finish, unspaced, joined))
    return found

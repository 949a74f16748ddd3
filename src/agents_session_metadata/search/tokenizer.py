"""Splitting text into the words that full-text search compares.

Text is normalized: NFKC, case folding, and the accents of Latin, Greek and Cyrillic letters
removed; variation selectors and joiners are dropped. A word is a run of letters, marks, digits and
`_`. In a run of Han, Kana and Hangul, where words are not separated, each character is a token of
its own, and tokens are found next to each other.

No word continues after white space or punctuation of Chinese and Japanese. Text is split there
first, and the pieces, of which most repeat, are cached.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import NamedTuple

LONGEST_WORD = 250
"""Characters of a word that are stored. Indexes of databases limit the size of a word."""
_LONGEST_PART = 64
"""Characters that are normalized together; further marks are ignored.

Putting marks in their canonical order takes a time that grows with the square of their number. Text
of any language has a few; the stream-safe format of UAX #15 allows 30.
"""
_LONGEST_CACHED = 64

# Compiled at first use: compiling these takes longer than importing the rest of the module.
_DROPPED = "[\u034f\u180b-\u180f\u200c\u200d\u2060\ufe00-\ufe0f\U000e0100-\U000e01ef]"
"""Joiners and variation selectors."""
ASCII_WORD = re.compile(r"[0-9A-Za-z_]+")
_PIECE = r"[^\s\u3001\u3002\u300c-\u300f\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f]+"
_PLAIN_UNSPACED = "[\u3041-\u3096\u30a1-\u30fa\u30fc\u4e00-\u9fff\uac00-\ud7a3]+"
"""Characters that are tokens as they are, unless a mark follows."""
_PARTS = rf"({_PLAIN_UNSPACED})|([^{_PLAIN_UNSPACED[1:-2]}]+)"
_ACCENTED_SCRIPTS = ("LATIN ", "GREEK ", "CYRILLIC ")
_UNSPACED = (
    "[\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u302f\u3031-\u3035\u3038-\u30ff\u3130-\u318f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc"
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff]"
)
"""Han, Kana and Hangul."""


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


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


@lru_cache(maxsize=65_536)
def extends(character: str) -> bool:
    """True if the character is normalized together with the one before it."""
    if re.match(_DROPPED, character):
        return True
    # Vowels and final consonants of Hangul compose with what is before them.
    if "\u1160" <= character <= "\u11ff" or "\ud7b0" <= character <= "\ud7ff":
        return True
    first = unicodedata.normalize("NFKC", character)[0]
    return unicodedata.category(first)[0] == "M" or "\u1160" <= first <= "\u11ff"


@lru_cache(maxsize=65_536)
def _has_accents(character: str) -> bool:
    """True for a letter of a script whose accents are removed."""
    return unicodedata.name(character, "").startswith(_ACCENTED_SCRIPTS)


def normalize(text: str) -> str:
    if text.isascii():
        return text.lower()
    text = re.sub(_DROPPED, "", text)
    # Folding may produce what normalizes further, and the other way round.
    for _ in range(2):
        text = unicodedata.normalize("NFKC", text).casefold()
    kept: list[str] = []
    is_accented = False
    for character in unicodedata.normalize("NFKD", text):
        if unicodedata.category(character) != "Mn":
            is_accented = _has_accents(character)
        elif is_accented:
            continue
        kept.append(character)
    return unicodedata.normalize("NFKC", "".join(kept))


class _Character(NamedTuple):
    """A normalized character. `word` is true if it is part of a word."""

    text: str
    word: bool
    mark: bool
    unspaced: bool


def _classified(character: str) -> _Character:
    if character == "_":
        return _Character(character, True, False, False)
    category = unicodedata.category(character)[0]
    mark = category == "M"
    unspaced = not mark and bool(re.match(_UNSPACED, character))
    return _Character(character, category in "LMN", mark, unspaced)


@lru_cache(maxsize=65_536)
def _characters(part: str) -> tuple[_Character, ...]:
    return tuple(map(_classified, normalize(part)))


def _end_of_part(text: str, start: int) -> int:
    """Returns where a character and its marks end; they are normalized by themselves."""
    end, length = start + 1, len(text)
    while end < length and text[end] >= "\x80" and extends(text[end]):
        end += 1
    return end


def _tokens(text: str) -> Iterator[Token]:
    """Splits a piece of text."""
    word, begin, finish = "", 0, 0
    # Whether the word is a character of an unspaced run, and whether it follows another one.
    unspaced = joined = False
    start = end = 0
    while end < len(text):
        start, end = end, _end_of_part(text, end)
        part = text[start : min(end, start + _LONGEST_PART)]
        for character, is_word, is_mark, is_unspaced in _characters(part):
            if word and is_word and (is_mark or not (unspaced or is_unspaced)):
                word, finish = word + character, end
                continue
            if word:
                yield Token(word, begin, finish, unspaced, joined)
            joined = bool(word) and unspaced and is_unspaced
            word = character if is_word else ""
            unspaced, begin, finish = is_unspaced, start, end
    if word:
        yield Token(word, begin, finish, unspaced, joined)


@lru_cache(maxsize=65_536)
def _cached_tokens(text: str) -> tuple[Token, ...]:
    return tuple(_tokens(text))


def tokenize(text: str) -> Iterator[Token]:
    if text.isascii():
        for found in ASCII_WORD.finditer(text):
            yield Token(found[0].lower(), *found.span())
        return
    for found in _compiled(_PIECE).finditer(text):
        piece, at = found[0], found.start()
        tokens = _cached_tokens(piece) if len(piece) <= _LONGEST_CACHED else _tokens(piece)
        for word, start, end, unspaced, joined in tokens:
            yield Token(word, at + start, at + end, unspaced, joined)


def stored_words(text: str) -> str:
    """Returns the words in the form in which substrings of them are found.

    A space is before and after each word. Two spaces are between separate runs of Han, Kana and
    Hangul, so that a phrase is not found across them. Without words, returns an empty string.
    """
    if text.isascii():
        words = " ".join([word[:LONGEST_WORD] for word in ASCII_WORD.findall(text.lower())])
    elif _compiled(_UNSPACED).search(text):
        words = _joined(_compiled(_PIECE).findall(text))
    else:
        pieces = text.split()
        find = _cached_words if max(map(len, pieces), default=0) <= _LONGEST_CACHED else _words
        words = " ".join(filter(None, [found[0] for found in map(find, pieces)]))
    return f" {words} " if words else ""


def _joined(pieces: Iterable[str]) -> str:
    parts: list[str] = []
    was_unspaced = False
    for piece in pieces:
        find = _cached_words if len(piece) <= _LONGEST_CACHED else _words
        words, begins, ends = find(piece)
        if words:
            parts.append("  " if was_unspaced and begins else " ")
            parts.append(words)
            was_unspaced = ends
    return "".join(parts[1:])


def _words(piece: str) -> tuple[str, bool, bool]:
    """Returns the words of a piece, and whether the first and the last one are unspaced."""
    parts: list[str] = []
    begins = ends = False
    touches = False  # The last token ends where the next part begins.
    for part, is_plain in _divided(piece):
        if is_plain:
            found = [(" ".join(part), True, ends and touches)]
            touches = True
        else:
            tokens = list(_tokens(part))
            found = [(each.word[:LONGEST_WORD], each.unspaced, each.joined) for each in tokens]
            if tokens and tokens[0].unspaced and not part[0].isascii():
                found[0] = (*found[0][:2], ends and touches)
            touches = bool(tokens) and tokens[-1].end == len(part)
        for word, unspaced, joined in found:
            if parts:
                parts.append("  " if ends and unspaced and not joined else " ")
            else:
                begins = unspaced
            parts.append(word)
            ends = unspaced
    return "".join(parts), begins, ends


def _divided(piece: str) -> Iterator[tuple[str, bool]]:
    """Divides a piece into runs of plain characters, with True, and other parts."""
    plain = ""
    for run, other in _compiled(_PARTS).findall(piece):
        if other and not other[0].isascii() and plain:
            # A mark may follow the last one.
            plain, other = plain[:-1], plain[-1] + other  # noqa: PLW2901
        if plain:
            yield plain, True
        plain = run
        if other:
            yield other, False
    if plain:
        yield plain, True


@lru_cache(maxsize=65_536)
def _cached_words(piece: str) -> tuple[str, bool, bool]:
    return _words(piece)

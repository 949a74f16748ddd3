"""What full-text search takes for a word, and what matches a query.

The index of a database only proposes candidates; this module decides. So the answer depends on no
tokenizer, stop list or collation of a database. Version 1: a change of what a word is makes every
index that exists incomplete.

Text is normalized: NFKC, case folding, and the accents of Latin, Greek and Cyrillic letters
removed; variation selectors and joiners are dropped. A word is a run of letters, marks, digits and
`_`. In a run of Han, Kana and Hangul, where words are not separated, each character is a token of
its own, and tokens are found next to each other.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

MAX_TERMS = 32
"""The terms of one query."""
MAX_REQUIRED = 32
"""The words of a query that candidates are looked up by; the others are compared in the text."""
WORD_BYTES = 64
"""The bytes of a word that an index keeps. The rest of a longer word is compared in the text."""
SNIPPET = 160
"""The characters of a snippet."""
_LEAD = 40
"""Characters of a snippet before the first match."""
_LONGEST_PART = 64
"""Characters that are normalized together; marks that follow are ignored.

Putting marks in their canonical order takes a time that grows with the square of their number.
Text of any language has a few; the stream-safe format of UAX #15 allows 30.
"""

# Compiled at first use: compiling these takes longer than importing the rest of the module.
_DROPPED = "[\u034f\u180b-\u180f\u200c\u200d\u2060\ufe00-\ufe0f\U000e0100-\U000e01ef]"
"""Joiners and variation selectors."""
_ASCII_WORD = re.compile(r"[0-9A-Za-z_]+")
_NOT_ASCII = re.compile("[^\x00-\x7f]")
_ACCENTED_SCRIPTS = ("LATIN ", "GREEK ", "CYRILLIC ")
_UNSPACED = (
    "[\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u302f\u3031-\u3035\u3038-\u30ff\u3130-\u318f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc"
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff]"
)
"""Han, Kana and Hangul."""


class Token(NamedTuple):
    """A word, or a character of a run of Han, Kana and Hangul.

    Attributes:
        word: The normalized text.
        start: Where it begins in the original text.
        end: Where it ends there.
        unspaced: Whether it is a character of such a run.
        joined: Whether it follows another character in the same run.
    """

    word: str
    start: int
    end: int
    unspaced: bool = False
    joined: bool = False


@lru_cache(maxsize=65_536)
def _extends(character: str) -> bool:
    """Whether a character is normalized together with the one before it."""
    if re.match(_DROPPED, character):
        return True
    # Vowels and final consonants of Hangul compose with what is before them.
    if "\u1160" <= character <= "\u11ff" or "\ud7b0" <= character <= "\ud7ff":
        return True
    first = unicodedata.normalize("NFKC", character)[0]
    return unicodedata.category(first)[0] == "M" or "\u1160" <= first <= "\u11ff"


@lru_cache(maxsize=65_536)
def _has_accents(character: str) -> bool:
    """Whether a character is a letter of a script whose accents are removed."""
    return unicodedata.name(character, "").startswith(_ACCENTED_SCRIPTS)


def normalize(text: str) -> str:
    """Text in the form in which it is compared."""
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
    """A normalized character: whether it belongs to a word, is a mark, or is in an unspaced run."""

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
    """A character and its marks, normalized."""
    return tuple(map(_classified, normalize(part)))


def _end_of_part(text: str, start: int) -> int:
    """Where the part ends that is normalized by itself: a character and its marks."""
    end, length = start + 1, len(text)
    while end < length and text[end] >= "\x80" and _extends(text[end]):
        end += 1
    return end


def tokenize(text: str) -> Iterator[Token]:
    """The tokens of a text, in its order, with their places in the original."""
    if text.isascii():
        for found in _ASCII_WORD.finditer(text):
            yield Token(found[0].lower(), *found.span())
        return
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


def stored_word(word: str) -> bytes:
    """A word as an index keeps it."""
    return word.encode()[:WORD_BYTES]


def _entries(tokens: Sequence[Token]) -> Iterator[str]:
    """What tokens are indexed under: each, and overlapping pairs of those in unspaced runs."""
    before = ""
    for token in tokens:
        yield token.word
        if token.joined:
            yield before + token.word
        before = token.word


def indexed_words(text: str) -> set[bytes]:
    """The words under which an index keeps a text."""
    if text.isascii():
        words = set(_ASCII_WORD.findall(text.lower()))
    else:
        # No word goes on after a space, and most texts repeat words.
        words = {word for run in set(text.split()) for word in _entries(list(tokenize(run)))}
    return set(map(stored_word, words))


class _Words:
    """The words of a text, in its order.

    Most matches need few places, so long ASCII texts have no object for each word.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = None if text.isascii() else list(tokenize(text))
        self.words: list[str] = (
            _ASCII_WORD.findall(text.lower())
            if self._tokens is None
            else [token.word for token in self._tokens]
        )

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Where each word begins and ends."""
        if self._tokens is None:
            return [found.span() for found in _ASCII_WORD.finditer(self._text)]
        return [(token.start, token.end) for token in self._tokens]

    def is_joined(self, place: int) -> bool:
        """Whether a word follows another in the same unspaced run."""
        return self._tokens is not None and self._tokens[place].joined

    def places(self, words: Container[str]) -> dict[str, list[int]]:
        """Where some words occur."""
        found: dict[str, list[int]] = {}
        for place, word in enumerate(self.words):
            if word in words:
                found.setdefault(word, []).append(place)
        return found


@dataclass(frozen=True)
class Term:
    """A word, a phrase or a prefix of a query.

    Attributes:
        tokens: The words, which must follow each other.
        prefix: Whether words that begin with the last one match it.
        excluded: Whether no text with it is wanted.
    """

    tokens: tuple[Token, ...]
    prefix: bool
    excluded: bool

    def required(self) -> Iterator[str]:
        """Words without which no text matches, other than the prefix."""
        tokens = self.tokens[:-1] if self.prefix else self.tokens
        entries = set(_entries(tokens))
        for place, token in enumerate(tokens):
            # A pair says more than its characters.
            if token.joined or (place + 1 < len(tokens) and tokens[place + 1].joined):
                entries.discard(token.word)
        yield from sorted(entries)

    def find(self, text: _Words, places: dict[str, list[int]]) -> Iterator[tuple[int, int]]:
        """Where the term occurs, in order: the numbers of the first word and of the last."""
        first, last = self.tokens[0], len(self.tokens) - 1
        starts: Sequence[int] = places.get(first.word, ())
        if self.prefix and not last:
            starts = range(len(text.words))
        for start in starts:
            if start + last < len(text.words) and all(
                self._is_at(text, start, place) for place in range(last + 1)
            ):
                yield start, start + last

    def _is_at(self, text: _Words, start: int, place: int) -> bool:
        wanted, found = self.tokens[place], text.words[start + place]
        if wanted.joined and place and not text.is_joined(start + place):
            return False
        if self.prefix and place == len(self.tokens) - 1:
            return found.startswith(wanted.word)
        return found == wanted.word


@dataclass(frozen=True)
class Match:
    """A text that matches.

    Attributes:
        snippet: The part around the first match.
        highlights: Where the matches are in it, in order and apart from each other.
    """

    snippet: str
    highlights: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class WordQuery:
    """A query: terms of which all must occur, and terms that must not.

    Attributes:
        terms: The terms.
    """

    terms: tuple[Term, ...]

    @property
    def wanted(self) -> tuple[Term, ...]:
        """The terms that must occur."""
        return tuple(term for term in self.terms if not term.excluded)

    @property
    def words(self) -> list[bytes]:
        """Words as an index keeps them that every match has, the longest first."""
        words = {stored_word(word) for term in self.wanted for word in term.required()}
        return sorted(words, key=lambda word: (-len(word), word))[:MAX_REQUIRED]

    @property
    def prefixes(self) -> list[bytes]:
        """Beginnings of words that every match has; the longest first."""
        found = {stored_word(term.tokens[-1].word) for term in self.wanted if term.prefix}
        return sorted(found, key=lambda word: (-len(word), word))

    def encoded(self) -> Sequence[object]:
        """The query as JSON, for formats that outlive a process. Version 1."""
        return sorted(
            [[[token.word, token.joined] for token in term.tokens], term.prefix, term.excluded]
            for term in set(self.terms)
        )

    def match(self, text: str) -> Match | None:
        """Compare a text with the query."""
        words = _Words(text)
        places = words.places({term.tokens[0].word for term in self.terms})
        found: list[Iterator[tuple[int, int]]] = []
        firsts: list[tuple[int, int]] = []
        for term in self.terms:
            of_term = term.find(words, places)
            earliest = next(of_term, None)
            if (earliest is None) is not term.excluded:
                return None
            if earliest is not None:
                found.append(of_term)
                firsts.append(earliest)
        spans = words.spans
        shown = [(spans[first][0], spans[last][1]) for first, last in firsts]
        # A snippet ends before the others.
        end = min(shown)[0] + SNIPPET
        for each in found:
            for first, last in each:
                if spans[first][0] >= end:
                    break
                shown.append((spans[first][0], spans[last][1]))
        return _snippet(text, sorted(shown))


def _snippet(text: str, spans: list[tuple[int, int]]) -> Match:
    first = spans[0][0]
    start = max(0, min(first - _LEAD, len(text) - SNIPPET))
    if 0 < start < first:
        # Begin with a word, or at least not within a character.
        space = re.compile(r"\s").search(text, start - 1, first)
        start = space.end() if space else start
        while start < first and _extends(text[start]):
            start += 1
    end = min(len(text), start + SNIPPET)
    while end < len(text) and end > start + SNIPPET - _LEAD and _extends(text[end]):
        end -= 1
    highlights: list[tuple[int, int]] = []
    for begin, finish in spans:
        if begin >= end:
            break
        shown = begin - start, min(finish, end) - start
        if highlights and shown[0] < highlights[-1][1]:
            shown = highlights[-1][0], max(shown[1], highlights[-1][1])
            highlights.pop()
        highlights.append(shown)
    return Match(text[start:end], tuple(highlights))


_TERM = re.compile(r'(?P<minus>-?)(?:"(?P<phrase>[^"]*)"?(?P<star>\*?)|(?P<word>[^\s"]+))')


def parse_query(query: str) -> WordQuery:
    """Read a query.

    Raises:
        TypeError: If it is not a string.
        ValueError: If no term is wanted, or if there are too many.
    """
    if not isinstance(query, str):
        raise TypeError(f"a search query must be a string, got {type(query).__name__}")
    terms: dict[Term, None] = {}
    for found in _TERM.finditer(query):
        text = found["word"] if found["phrase"] is None else found["phrase"] + found["star"]
        prefix = text.endswith("*")
        text = text[:-1] if prefix else text
        tokens = tuple(tokenize(text))
        if not tokens:
            continue
        # A star after something else than a word, as in `a-*`, says nothing; and in an unspaced
        # run, every text is found within others anyway.
        prefix = prefix and tokens[-1].end == len(text) and not tokens[-1].unspaced
        plain = tuple(token._replace(start=0, end=0) for token in tokens)
        terms[Term(plain, prefix, bool(found["minus"]))] = None
    if len(terms) > MAX_TERMS:
        raise ValueError(f"a search query must have at most {MAX_TERMS} terms, got {len(terms)}")
    if all(term.excluded for term in terms):
        raise ValueError(
            "a search query must have at least one word that is not excluded, got "
            + (f"{len(terms)} excluded terms" if terms else "no words")
        )
    return WordQuery(tuple(terms))


def text_of_item(item: object) -> tuple[str, str] | None:
    """The role and text of a message of the user or the assistant; None for any other item."""
    if not isinstance(item, dict) or item.get("type", "message") != "message":
        return None
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant"):
        return None
    if isinstance(content, str):
        return role, content
    if not isinstance(content, list):
        return None
    parts = [part.get("text", part.get("refusal")) for part in content if isinstance(part, dict)]
    return role, "\n".join(part for part in parts if isinstance(part, str))

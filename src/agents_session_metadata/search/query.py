"""The terms of a query, the text of an item that is searched, and the test whether it matches.

The database only finds candidates: `WordQuery.match` decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

from agents_session_metadata.text import texts_of

from .words import ASCII_WORD, LONGEST_WORD, Token, extends, spelled, tokenize

MAX_TERMS = 32
SNIPPET = 160
"""The maximum number of characters of a snippet."""
_LEAD = 40
"""Characters of a snippet before the first match."""


class Match(NamedTuple):
    snippet: str
    highlights: list[tuple[int, int]]


@dataclass(frozen=True)
class SearchTerm:
    """A word or a phrase. If `prefix`, words that begin with its last word match."""

    tokens: tuple[Token, ...]
    prefix: bool
    excluded: bool

    @cached_property
    def _gaps(self) -> list[int]:
        """The places of tokens that stored words can have one space or two before."""
        return [
            place
            for place, (one, other) in enumerate(pairwise(self.tokens), 1)
            if one.unspaced and other.unspaced and not other.joined
        ]

    @property
    def is_exact(self) -> bool:
        """True if stored words contain the `patterns` only if the text matches."""
        return not self._gaps and all(len(token.word) < LONGEST_WORD for token in self.tokens)

    @property
    def patterns(self) -> list[str]:
        """Substrings of the stored words of each text that matches."""
        found = [""]
        for place, token in enumerate(self.tokens):
            if place in self._gaps:
                found[-1] += " "
                found.append("")
            found[-1] += f" {token.word[:LONGEST_WORD]}"
        found[-1] += "" if self.prefix else " "
        return found

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        words = "".join(
            (" {1,2}" if place in self._gaps else " ") + re.escape(token.word)
            for place, token in enumerate(self.tokens)
        )
        # Looks ahead, to find occurrences that overlap.
        return re.compile(f"(?={words}{'' if self.prefix else ' '})")

    def find(self, words: str, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yields start and end of each occurrence, given `spelled` words and their places."""
        for found in self._pattern.finditer(words):
            first = len(words[: found.start()].split())
            yield spans[first][0], spans[first + len(self.tokens) - 1][1]


@dataclass(frozen=True)
class WordQuery:
    """Terms that must all occur, and terms that must not."""

    terms: tuple[SearchTerm, ...]

    @property
    def is_exact(self) -> bool:
        return all(term.is_exact for term in self.terms)

    @property
    def patterns(self) -> list[tuple[bool, str]]:
        """Substrings of stored words that must occur, or must not where True.

        Every text that matches passes. If not `is_exact`, others can pass as well.
        """
        return [
            (term.excluded, pattern)
            for term in self.terms
            if term.is_exact or not term.excluded
            for pattern in term.patterns
        ]

    @property
    def words(self) -> list[tuple[str, bool]]:
        """The words that every match has; with True, the beginnings of such words."""
        return sorted(
            {
                (token.word[:LONGEST_WORD], term.prefix and token is term.tokens[-1])
                for term in self.terms
                if not term.excluded
                for token in term.tokens
            }
        )

    def encoded(self) -> list[Any]:
        """Returns the query as JSON, for cursors. Version 1."""
        return sorted(
            [[[token.word, token.joined] for token in term.tokens], term.prefix, term.excluded]
            for term in set(self.terms)
        )

    def match(self, text: str) -> Match | None:
        if text.isascii():
            spans = [found.span() for found in ASCII_WORD.finditer(text)]
            words = f" {' '.join(ASCII_WORD.findall(text.lower()))} "
        else:
            tokens = list(tokenize(text))
            spans = [(token.start, token.end) for token in tokens]
            words = spelled(tokens)
        found: list[Iterator[tuple[int, int]]] = []
        shown: list[tuple[int, int]] = []
        for term in self.terms:
            of_term = term.find(words, spans)
            first = next(of_term, None)
            if (first is None) is not term.excluded:
                return None
            if first is not None:
                found.append(of_term)
                shown.append(first)
        # A snippet ends before the others.
        end = min(shown)[0] + SNIPPET
        for each in found:
            shown += takewhile(lambda span: span[0] < end, each)
        return _snippet(text, sorted(shown))


def _snippet(text: str, spans: list[tuple[int, int]]) -> Match:
    first = spans[0][0]
    start = max(0, min(first - _LEAD, len(text) - SNIPPET))
    if 0 < start < first:
        # Begin with a word, or at least not within a character.
        space = re.compile(r"\s").search(text, start - 1, first)
        start = space.end() if space else start
        while start < first and extends(text[start]):
            start += 1
    end = min(len(text), start + SNIPPET)
    while end < len(text) and end > start + SNIPPET - _LEAD and extends(text[end]):
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
    return Match(text[start:end], highlights)


_TERM = re.compile(r'(?P<minus>-?)(?:"(?P<phrase>[^"]*)"?(?P<star>\*?)|(?P<word>[^\s"]+))')


def parse_query(query: str) -> WordQuery:
    """Raises ValueError if no term must occur, or if there are too many."""
    if not isinstance(query, str):
        raise TypeError(f"a search query must be a string, got {type(query).__name__}")
    terms: dict[SearchTerm, None] = {}
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
        terms[SearchTerm(plain, prefix, bool(found["minus"]))] = None
    if len(terms) > MAX_TERMS:
        raise ValueError(f"a search query must have at most {MAX_TERMS} terms, got {len(terms)}")
    if all(term.excluded for term in terms):
        raise ValueError(
            "a search query must have at least one word that is not excluded, got "
            + (f"{len(terms)} excluded terms" if terms else "no words")
        )
    return WordQuery(tuple(terms))


def text_of_item(item: object) -> tuple[str, str] | None:
    """Returns role and text of a message of the user or the assistant; None for other items."""
    if not isinstance(item, dict) or item.get("type", "message") != "message":
        return None
    if item.get("role") not in ("user", "assistant"):
        return None
    return item["role"], "\n".join(texts_of(item.get("content")))

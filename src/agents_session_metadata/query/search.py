"""Searching the text index: candidates by their words, each then compared with the stored text.

There are two plans. If filter and scope hold for few sessions, the words of those are read, so what
others have written costs nothing; of a word with few entries, all are read. Otherwise the entries
of one word are walked from the newest on, past a bounded number per page.

The statements that read texts carry the condition as well: whatever changed in between, no hit
comes from outside the scope.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from agents_session_metadata.errors import TextIndexMissingError
from agents_session_metadata.storage.index_states import COMPLETE, DROPPING
from agents_session_metadata.storage.long_texts import apply_to_text
from agents_session_metadata.storage.words import TITLE_ITEM
from agents_session_metadata.types import SearchHit
from agents_session_metadata.words import Match, WordQuery, text_of_item

from .logic import NO_DRIVER, Condition, best_of
from .places import HiddenPlace, Place
from .queries import Queries
from .search_statements import SearchBuilder, Shape, prefix_parameters

FEW = 1_000
"""Sessions whose words are read instead of walking all entries of a word."""
FEWER = 100
"""Sessions that are read before it is asked how rare a word is."""
RARE_WORD = 200
"""Entries of a word that are read rather than more sessions."""
RARE = 2_000
"""Entries that are sorted rather than walked."""
WALKS = (500, 2_500, 10_000)
"""Entries that a page walks past at most, in each of its attempts."""
CHECKED = 1_000
"""Texts that a page compares with the query at most."""
COMPARED = 2_000_000
"""Characters after which a page compares no further text with the query."""
_TEXTS_AT_ONCE = 50
_COUNTED = 500
"""As far as entries are counted to find the rarest word."""

_Texts = dict[tuple[str, int], Any]
"""Role, text and time of messages and titles, by session and item."""
_NO_TEXT = ("", "", None)
"""What is there for one that is gone, or that is not in a session to search in."""


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        hits: The hits.
        next: Where to go on, if there may be more.
        complete: Whether nothing waits to be indexed.
    """

    hits: list[SearchHit]
    next: Place | HiddenPlace | None
    complete: bool


class Search:
    """One search, on a connection.

    Args:
        connection: The connection.
        queries: The statements.
        condition: The sessions to search in.
        query: What to look for.
    """

    def __init__(
        self, connection: Connection, queries: Queries, condition: Condition, query: WordQuery
    ) -> None:
        self._connection = connection
        self._queries = queries
        self._dialect = queries.dialect
        self._condition = condition
        self._query = query

    def run(self, limit: int, after: Place | HiddenPlace | None) -> Found:
        """Read a page.

        Raises:
            InvalidCursorError: If the place is not one that a search in this index has hidden.
            TextIndexMissingError: If there is no index.
        """
        is_narrow = best_of(self._condition.conjunction("c"))[1].rank < NO_DRIVER
        ids = self._few_sessions(min(FEW, FEWER)) if is_narrow else None
        complete, entries, key = self._state(ids)
        if isinstance(after, HiddenPlace):
            after = after.revealed(key, self._dialect)
        is_rare = is_narrow and entries < RARE_WORD
        if ids is None and is_narrow and not is_rare:
            ids = self._few_sessions(FEW)
            # Of few sessions, it is known for certain.
            complete = complete or (ids is not None and self._state(ids)[0])
        if ids == []:
            return Found([], None, complete)
        found: list[tuple[Place, SearchHit]] = []
        checked, compared, last = 0, 0, after
        for places, texts, reached in self._candidates(ids, limit + 1, after, is_rare=is_rare):
            for place in places:
                role, text, at = texts.get((place.session_id, place.item_id), _NO_TEXT)
                match = apply_to_text(self._query.match, text)
                if match is not None:
                    found.append((place, self._hit(place, role, at, match)))
                if len(found) > limit:
                    hits = [hit for _, hit in found[:limit]]
                    return Found(hits, found[limit - 1][0], complete)
                checked, compared = checked + 1, compared + len(text)
                if checked >= CHECKED or compared >= COMPARED:
                    return Found([hit for _, hit in found], place.hidden(key), complete)
            last = reached
        return Found([hit for _, hit in found], last and last.hidden(key), complete)

    def _execute(
        self, kind: tuple[Any, ...], build: Callable[[SearchBuilder], Any], parameters: Any
    ) -> Any:
        query = self._queries.built(kind, self._condition, SearchBuilder, build, parameters)
        return self._connection.execute(*query)

    def _state(self, ids: list[str] | None) -> tuple[bool, int, str]:
        """Whether the index is complete and nothing waits; entries of the first word; and the key.

        Entries are counted up to a limit, and only if the sessions are not known.
        """
        count = self._some(ids)
        words = self._query.words
        counted = ids is None and bool(words)
        parameters: dict[str, Any] = {"word": words[0], "limit": RARE_WORD} if counted else {}
        if ids:
            parameters |= self._dialect.list_parameters("ids", ids)
        found = self._execute(
            ("search state", count, counted),
            lambda build: build.state(count, counted=counted),
            parameters,
        ).first()
        if found is None or found[0] == DROPPING:
            raise TextIndexMissingError
        complete = found[0] == COMPLETE and not found[1]
        return complete, found[3] if counted else RARE_WORD, found[2]

    def _some(self, values: Sequence[Any] | None) -> int | None:
        """The number of values, as far as it changes a statement."""
        return None if values is None else min(len(values), self._dialect.many + 1)

    # ---- candidates ----

    def _few_sessions(self, most: int) -> list[str] | None:
        """The sessions to search in, if they are few."""
        query = self._queries.ids(self._condition, after=None, limit=most + 1)
        ids = list(self._connection.scalars(*query))
        return ids if len(ids) <= most else None

    def _candidates(
        self, ids: list[str] | None, wanted: int, after: Place | None, *, is_rare: bool
    ) -> Iterator[tuple[list[Place], _Texts, Place | None]]:
        """Places in order with their texts, and the place that each step has reached.

        That is None at the end.
        """
        word, prefix = self._leader(counted=ids is None and not is_rare)
        count = min(max(wanted, 10), _TEXTS_AT_ONCE)
        if ids is not None or is_rare or (word is None and self._is_rare(prefix)):
            while True:
                found, texts = self._sorted(word, prefix, ids, count, after)
                after = found[-1] if len(found) == count else None
                yield found, texts, after
                if after is None:
                    return
                count = _TEXTS_AT_ONCE
        for size in WALKS:
            found, texts, after = self._walked(word or b"", size, count, after)
            while len(found) == count:
                yield found, texts, after
                count = _TEXTS_AT_ONCE
                found, texts, after = self._walked(word or b"", size, count, after)
            yield found, texts, after
            if after is None:
                return

    def _leader(self, *, counted: bool) -> tuple[bytes | None, bytes]:
        """The word whose entries are read; or else a prefix of one."""
        words = self._query.words
        if not words:
            return None, self._query.prefixes[0]
        if not counted or len(words) == 1:
            return words[0], b""
        parameters: dict[str, Any] = {f"word_{n}": word for n, word in enumerate(words)}
        counts = self._execute(
            ("search counts", len(words)),
            lambda build: build.counts(len(words)),
            {**parameters, "limit": _COUNTED},
        ).one()
        return min(zip(counts, words, strict=True), key=lambda each: each[0])[1], b""

    def _is_rare(self, prefix: bytes) -> bool:
        count = self._execute(
            ("search prefix",),
            lambda build: build.count_of_prefix(),
            {**prefix_parameters(prefix), "limit": RARE},
        ).scalar()
        return int(count or 0) < RARE

    def _question(
        self, word: bytes | None, prefix: bytes, after: Place | None
    ) -> tuple[Shape, dict[str, Any]]:
        """The shape of the statements that read entries, and their parameters."""
        words = [each for each in self._query.words if each != word]
        prefixes = [each for each in self._query.prefixes if each != prefix]
        parameters: dict[str, Any] = {f"word_{n}": each for n, each in enumerate(words)}
        for number, each in enumerate(prefixes):
            parameters |= prefix_parameters(each, f"_{number}")
        parameters |= prefix_parameters(prefix) if word is None else {"word": word}
        if after is not None:
            parameters |= {f"after_{name}": value for name, value in after._asdict().items()}
        return Shape(word is None, len(words), len(prefixes), after is not None), parameters

    def _sorted(
        self,
        word: bytes | None,
        prefix: bytes,
        ids: list[str] | None,
        count: int,
        after: Place | None,
    ) -> tuple[list[Place], _Texts]:
        """The first candidates after a place, of all entries of a word."""
        shape, parameters = self._question(word, prefix, after)
        sessions = self._some(ids)
        if ids is not None:
            parameters |= self._dialect.list_parameters("ids", ids)
        return self._read(
            self._execute(
                ("search sorted", shape, sessions),
                lambda build: build.sorted(shape, sessions),
                {**parameters, "limit": count},
            )
        )

    def _walked(
        self, word: bytes, size: int, count: int, after: Place | None
    ) -> tuple[list[Place], _Texts, Place | None]:
        """The candidates among the next entries of a word, and the last of these entries."""
        shape, parameters = self._question(word, b"", after)
        found, texts = self._read(
            self._execute(
                ("search walked", shape),
                lambda build: build.walked(shape),
                {**parameters, "limit": count, "size": size},
            )
        )
        if len(found) == count:
            return found, texts, found[-1]
        last = self._execute(
            ("search end", shape),
            lambda build: build.end_of_walk(shape),
            {**parameters, "offset": size - 1},
        ).first()
        return found, texts, None if last is None else _place(last)

    # ---- texts ----

    def _read(self, rows: Any) -> tuple[list[Place], _Texts]:
        """Places, and the texts that are stored there in sessions to search in."""
        places: list[Place] = []
        texts: _Texts = {}
        titled: list[str] = []
        for row in rows:
            place = _place(row)
            places.append(place)
            session_id, at, stored, holds = row[3:]
            if place.item_id == TITLE_ITEM:
                titled.append(row[0])
            elif holds and session_id == row[0]:
                text = text_of_item(_json(stored))
                if text is not None:
                    texts[session_id, place.item_id] = *text, at
        return places, {**texts, **self._titles(titled)}

    def _titles(self, ids: list[str]) -> _Texts:
        if not ids:
            return {}
        count = self._some(ids) or 0
        values = self._execute(
            ("search titles", count),
            lambda build: build.titles(count),
            self._dialect.list_parameters("titled", ids),
        )
        titles = ((session_id, at, _json(stored)) for session_id, at, stored in values)
        return {
            (session_id, TITLE_ITEM): ("title", title, at)
            for session_id, at, title in titles
            if isinstance(title, str)
        }

    def _hit(self, place: Place, role: str, at: Any, match: Match) -> SearchHit:
        item_id = None if place.item_id == TITLE_ITEM else place.item_id
        created_at = self._dialect.to_datetime(at)
        highlights = list(match.highlights)
        return SearchHit(place.session_id, item_id, created_at, role, match.snippet, highlights)


def _place(row: Any) -> Place:
    return Place(row[1], row[0], int(row[2]))


def _json(stored: Any) -> Any:
    try:
        return json.loads(stored)
    except ValueError:
        return None

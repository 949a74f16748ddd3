"""Searching the text index: candidates by their words, each then compared with the stored text.

There are two plans. If filter and scope hold for few sessions, the words of those are read, so what
others have written costs nothing. Otherwise the entries of one word are walked from the newest on,
past a bounded number per page.

The statements that read texts carry the condition as well: whatever changed in between, no hit
comes from outside the scope.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    LargeBinary,
    String,
    func,
    literal,
    literal_column,
    select,
    type_coerce,
)

from agents_session_metadata.errors import TextIndexMissingError
from agents_session_metadata.keys import TITLE
from agents_session_metadata.storage.stored import decode_time
from agents_session_metadata.storage.words import COMPLETE, DROPPING, TEXT, TITLE_ITEM, WORDS
from agents_session_metadata.types import SearchHit
from agents_session_metadata.words import WordQuery, text_of_item

from .logic import NO_DRIVER, Condition, best_of
from .queries import Queries

FEW = 1_000
"""Sessions whose words are read instead of walking all entries of a word."""
RARE = 2_000
"""Entries that are sorted rather than walked."""
WALKS = (500, 2_500, 10_000)
"""Entries that a page walks past at most, in each of its attempts."""
CHECKED = 1_000
"""Texts that a page compares with the query at most."""
_TEXTS_AT_ONCE = 50
_COUNTED = 500
"""As far as entries are counted to find the rarest word."""
_QUEUE_READ = 1_000


class Place(NamedTuple):
    """A place in the order of hits.

    Attributes:
        time: The time as the database stores it.
        session_id: The session. None if the caller must not know it, or it is not known.
        item_id: The item, or `TITLE_ITEM`.
        digest: Of the session's id, if that is None.
    """

    time: Any
    session_id: str | None
    item_id: int
    digest: str = ""

    def hidden(self) -> Place:
        """The place, for a caller to whom the session may not belong."""
        return Place(self.time, None, self.item_id, _digest(self.session_id or ""))


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        hits: The hits.
        next: Where to go on, if there may be more.
        complete: Whether nothing waits to be indexed.
    """

    hits: list[SearchHit]
    next: Place | None
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
        self._tables = queries.tables
        self._condition = condition
        self._query = query
        self._words, self._queue, self._state = queries.tables.group(WORDS).tables

    def run(self, limit: int, after: Place | None) -> Found:
        """Read a page.

        Raises:
            TextIndexMissingError: If there is no index.
        """
        state = self._connection.scalar(
            select(self._state.c.state).where(self._state.c.key == TEXT)
        )
        if state in (None, DROPPING):
            raise TextIndexMissingError
        ids = self._few_sessions()
        complete = state == COMPLETE and not self._is_waiting(ids)
        if ids == []:
            return Found([], None, complete)
        if after is not None and after.session_id is None:
            after = self._revealed(after)
        pages = self._candidates(ids, limit + 1, after)
        found: list[tuple[Place, SearchHit]] = []
        checked, last = 0, after
        for candidates, reached in pages:
            while candidates:
                size = min(_TEXTS_AT_ONCE, max(10, limit + 1 - len(found)))
                some, candidates = candidates[:size], candidates[size:]  # noqa: PLW2901
                found += self._check(some)
                checked += len(some)
                last = some[-1]
                if len(found) > limit:
                    hits = [hit for _, hit in found[:limit]]
                    return Found(hits, found[limit - 1][0], complete)
                if checked >= CHECKED:
                    return Found([hit for _, hit in found], last.hidden(), complete)
            last = reached
        return Found([hit for _, hit in found], last and last.hidden(), complete)

    # ---- candidates ----

    def _few_sessions(self) -> list[str] | None:
        """The sessions to search in, if they are few and an index can tell them."""
        best = best_of(self._condition.conjunction("c"))[1]
        if best.rank >= NO_DRIVER:
            return None
        query = self._queries.ids(self._condition, after=None, limit=FEW + 1)
        ids = list(self._connection.scalars(*query))
        return ids if len(ids) <= FEW else None

    def _candidates(
        self, ids: list[str] | None, count: int, after: Place | None
    ) -> Iterator[tuple[list[Place], Place | None]]:
        """Places in order, with the place that each step has reached; None at the end."""
        word, prefix = self._leader(counted=ids is None)
        count = max(count, _TEXTS_AT_ONCE)
        if ids is not None or (word is None and self._is_rare(prefix)):
            while True:
                found = self._sorted(word, prefix, ids, count, after)
                after = found[-1] if len(found) == count else None
                yield found, after
                if after is None:
                    return
        for size in WALKS:
            found, after = self._walked(word or b"", size, count, after)
            while len(found) == count:
                yield found, found[-1]
                found, after = self._walked(word or b"", size, count, found[-1])
            yield found, after
            if after is None:
                return

    def _leader(self, *, counted: bool) -> tuple[bytes | None, bytes]:
        """The word whose entries are read; or else a prefix of one."""
        words = self._query.words
        if not words:
            return None, self._query.prefixes[0]
        if not counted or len(words) == 1:
            return words[0], b""
        counts = self._connection.execute(
            select(*(self._count(self._words.c.word == word, _COUNTED) for word in words))
        ).one()
        return min(zip(counts, words, strict=True), key=lambda each: each[0])[1], b""

    def _is_rare(self, prefix: bytes) -> bool:
        count = self._count(_begins(self._words.c.word, prefix), RARE)
        return int(self._connection.scalar(select(count)) or 0) < RARE

    def _count(self, condition: ColumnElement[bool], most: int) -> Any:
        some = select(self._words.c.item_id).where(condition).limit(most).subquery()
        return select(func.count()).select_from(some).scalar_subquery()

    def _sorted(
        self,
        word: bytes | None,
        prefix: bytes,
        ids: list[str] | None,
        count: int,
        after: Place | None,
    ) -> list[Place]:
        """The first candidates after a place, of all entries of a word."""
        words = self._words.alias("entries")
        of_word = _begins(words.c.word, prefix) if word is None else words.c.word == word
        inner: Any = select(words.c.session_id, words.c.created_at, words.c.item_id).where(of_word)
        parameters: dict[str, Any] = {}
        if ids is not None:
            inner = inner.where(self._dialect.one_of(words.c.session_id, "ids", len(ids)))
            parameters = self._dialect.list_parameters("ids", ids)
        if word is None:
            inner = inner.distinct()
        # With a limit, no planner walks in the order of the page instead.
        rows = inner.limit(literal_column(str(2**31 - 1))).subquery("entries_of_word")
        statement = select(rows.c.session_id, self._time(rows), rows.c.item_id)
        statement = self._narrowed(statement, rows, word, prefix)
        if ids is None:
            truth, more = self._queries.where(statement, self._condition, rows.c.session_id)
            statement, parameters = truth, {**parameters, **more}
        return self._places(statement, rows, count, after, parameters)

    def _walked(
        self, word: bytes, size: int, count: int, after: Place | None
    ) -> tuple[list[Place], Place | None]:
        """The candidates among the next entries of a word, and the last of these entries."""
        words = self._words.alias("entries")
        columns = words.c.session_id, words.c.created_at, words.c.item_id
        entries = self._after(select(*columns).where(words.c.word == word), words, after)
        entries = entries.order_by(*self._order(words))
        rows = entries.limit(literal_column(str(size))).subquery("walked")
        statement = select(rows.c.session_id, self._time(rows), rows.c.item_id)
        statement = self._narrowed(statement, rows, word, b"")
        statement, parameters = self._queries.where(statement, self._condition, rows.c.session_id)
        found = self._places(statement, rows, count, None, parameters)
        if len(found) == count:
            return found, found[-1]
        last = entries.with_only_columns(words.c.session_id, self._time(words), words.c.item_id)
        row = self._connection.execute(last.offset(size - 1).limit(1)).first()
        return found, None if row is None else self._place(row)

    def _narrowed(
        self, statement: Any, rows: FromClause, leader: bytes | None, prefix: bytes
    ) -> Any:
        """Only texts that have the other words as well; looked up by primary key, one by one."""
        for number, word in enumerate(self._query.words):
            if word != leader:
                others = self._words.alias(f"word_{number}")
                found = (
                    select(literal_column("1"))
                    .where(
                        others.c.word == word,
                        others.c.session_id == rows.c.session_id,
                        others.c.item_id == rows.c.item_id,
                    )
                    .scalar_subquery()
                )
                statement = statement.where(found == literal_column("1"))
        for number, beginning in enumerate(self._query.prefixes):
            if beginning != prefix:
                others = self._words.alias(f"prefix_{number}")
                found = (
                    select(literal_column("1"))
                    .where(
                        others.c.session_id == rows.c.session_id,
                        others.c.item_id == rows.c.item_id,
                        _begins(others.c.word, beginning),
                    )
                    .limit(literal_column("1"))
                    .scalar_subquery()
                )
                statement = statement.where(found == literal_column("1"))
        return statement

    def _places(
        self,
        statement: Any,
        rows: FromClause,
        count: int,
        after: Place | None,
        parameters: dict[str, Any],
    ) -> list[Place]:
        statement = self._after(statement, rows, after).order_by(*self._order(rows))
        found = self._connection.execute(statement.limit(literal_column(str(count))), parameters)
        return [self._place(row) for row in found]

    # ---- the order ----

    def _time(self, rows: FromClause) -> Any:
        return type_coerce(rows.c.created_at, self._dialect.stored_time_type()).label("created_at")

    def _id(self, rows: FromClause) -> Any:
        return self._dialect.by_code_point(rows.c.session_id, native=False)

    def _order(self, rows: FromClause) -> list[Any]:
        return [rows.c.created_at.desc(), self._id(rows).desc(), rows.c.item_id.desc()]

    def _after(self, statement: Any, rows: FromClause, after: Place | None) -> Any:
        """What comes after a place: `a <= x AND (a < x OR …)`, which every index can follow."""
        if after is None:
            return statement
        time = literal(after.time, self._dialect.stored_time_type())
        if after.session_id is None:
            return statement.where(rows.c.created_at <= time)
        own_id, session_id = self._id(rows), literal(after.session_id, String)
        item = rows.c.item_id < literal(after.item_id, BigInteger)
        later = (own_id <= session_id) & ((own_id < session_id) | item)
        return statement.where(rows.c.created_at <= time, (rows.c.created_at < time) | later)

    def _place(self, row: Any) -> Place:
        return Place(row[1], row[0], int(row[2]))

    def _revealed(self, place: Place) -> Place:
        """A place with its session, if that still has something there."""
        words = self._words
        time = literal(place.time, self._dialect.stored_time_type())
        there = words.c.word == b"", words.c.created_at == time, words.c.item_id == place.item_id
        for session_id in self._connection.scalars(select(words.c.session_id).where(*there)):
            if _digest(session_id) == place.digest:
                return place._replace(session_id=session_id)
        return place

    # ---- texts ----

    def _check(self, places: Sequence[Place]) -> list[tuple[Place, SearchHit]]:
        """Compare texts with the query."""
        texts = {**self._items(places), **self._titles(places)}
        found = []
        for place in places:
            session_id = place.session_id or ""
            role, text, at = texts.get((session_id, place.item_id), ("", None, None))
            match = None if text is None else self._query.match(text)
            if match is not None:
                item_id = None if place.item_id == TITLE_ITEM else place.item_id
                column = "updated_at" if item_id is None else "item_created_at"
                created_at = decode_time(self._dialect, session_id, column, at)
                highlights = list(match.highlights)
                hit = SearchHit(session_id, item_id, created_at, role, match.snippet, highlights)
                found.append((place, hit))
        return found

    def _items(self, places: Sequence[Place]) -> dict[tuple[str, int], Any]:
        messages = self._tables.messages
        ids = [place.item_id for place in places if place.item_id != TITLE_ITEM]
        if not ids:
            return {}
        statement: Any = select(
            messages.c.session_id,
            messages.c.id,
            self._dialect.utc(messages.c.created_at),
            messages.c.message_data,
        ).where(messages.c.id.in_(ids))
        query = self._queries.where(statement, self._condition, messages.c.session_id)
        rows: Any = self._connection.execute(*query)
        found = {}
        for session_id, item_id, at, stored in rows:
            text = text_of_item(_json(stored))
            if text is not None:
                found[session_id, item_id] = *text, at
        return found

    def _titles(self, places: Sequence[Place]) -> dict[tuple[str, int], Any]:
        rows = self._tables.metadata
        ids = [place.session_id for place in places if place.item_id == TITLE_ITEM]
        if not ids:
            return {}
        written = self._dialect.utc(self._dialect.local_time(rows.c.updated_at))
        statement: Any = select(
            rows.c.session_id, written, self._dialect.json_text(rows.c.value)
        ).where(rows.c.key == TITLE, self._dialect.one_of(rows.c.session_id, "titled", len(ids)))
        statement, parameters = self._queries.where(statement, self._condition, rows.c.session_id)
        parameters = {**parameters, **self._dialect.list_parameters("titled", ids)}
        values: Any = self._connection.execute(statement, parameters)
        found = {}
        for session_id, at, stored in values:
            title = _json(stored)
            if isinstance(title, str):
                found[session_id, TITLE_ITEM] = "title", title, at
        return found

    # ---- the queue ----

    def _is_waiting(self, ids: list[str] | None) -> bool:
        """Whether something in the sessions waits to be indexed.

        With many sessions and a long queue, of which none is in the part that is read, the answer
        is yes.
        """
        queue = self._queue
        if ids == []:
            return False
        if ids is not None:
            statement: Any = select(queue.c.item_id).where(
                self._dialect.one_of(queue.c.session_id, "ids", len(ids))
            )
            parameters = self._dialect.list_parameters("ids", ids)
            return self._connection.execute(statement.limit(1), parameters).first() is not None
        some = select(queue.c.session_id).limit(_QUEUE_READ).subquery("waiting")
        statement = select(some.c.session_id)
        query = self._queries.where(statement, self._condition, some.c.session_id)
        if self._connection.execute(*query).first() is not None:
            return True
        count = select(func.count()).select_from(some)
        return int(self._connection.scalar(count) or 0) == _QUEUE_READ


def _begins(word: ColumnElement[bytes], prefix: bytes) -> ColumnElement[bool]:
    # No byte of UTF-8 is the greatest one.
    end = prefix[:-1] + bytes([prefix[-1] + 1])
    return (word >= literal(prefix, LargeBinary)) & (word < literal(end, LargeBinary))


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode()).hexdigest()[:32]


def _json(stored: Any) -> Any:
    try:
        return json.loads(stored)
    except (ValueError, TypeError, RecursionError):
        return None

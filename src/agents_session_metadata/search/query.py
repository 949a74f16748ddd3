"""Searching: candidates by their stored words, each then compared with the stored text.

If filter and scope hold for few items, all of them are tested. Otherwise the newest items are
tested, a bounded number; if the page is not full then, the database's own index is asked, or all
items are read. Titles are read as they are stored, and merged with the items.

Items without a row are read and compared like the others, up to a limit. Their rows are written
when the page is done, so that a search that may not write has the same result.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import Connection

from agents_session_metadata.core.database import Database
from agents_session_metadata.errors import TablesMissingError
from agents_session_metadata.query.logic import Condition
from agents_session_metadata.query.ordering import seal, unseal
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import SearchHit, SearchPage

from .statements import SearchBuilder, Shape, Way
from .table import is_indexed, learn
from .terms import WordQuery, text_of_item
from .tokenizer import stored_words
from .writing import MOST, NO_INDEX, fill_met

FEW = 5_000
"""Items of a scope that are all tested."""
FEW_SESSIONS, SMALL_SESSIONS = 1_000, 50
"""Sessions whose ids are read, and sessions that are known to be small from one statement."""
WINDOWS = (2_000, 20_000)
"""Newest items that are tested before others. The second window is used if all would be next."""
MOST_CANDIDATES = 20_000
"""Candidates of the database's own index that are read at most."""
_TAIL = 1_000
"""Items that are looked through for missing rows in each search by the database's own index."""
_NEXT = 100
"""Candidates that are read at once if those for a page were not enough."""


class Position(NamedTuple):
    """A place in the order of hits. `time` is in the form of `Dialect.stored_time`.

    A title is at the newest item of its session. Without items, it is at the session's own time.
    """

    time: Any
    item_id: int
    is_title: bool
    session_id: str


class Found(NamedTuple):
    """A hit, or None if the text of a candidate does not match."""

    position: Position
    hit: SearchHit | None
    has_row: bool = True


@dataclass
class Search:
    """One page, on one connection."""

    connection: Connection
    queries: Queries
    condition: Condition
    query: WordQuery
    by_session: bool
    limit: int
    to_write: list[tuple[int, str]] = field(default_factory=list)
    """Stored words of items that had no row."""
    advances: bool = False
    _unread: Position | None = None
    """Items without a row that come after this were not read."""
    _ids: list[str] | None = None
    _filled: int = 0
    _everything: bool = False

    def run(self, after: Position | None) -> tuple[list[Found], bool]:
        """Returns up to one hit more than the page has, and whether nothing is left out."""
        self._everything = self.condition.constant is True
        is_small, titled = self._choose_sessions()
        if self._ids == []:
            return [], True
        native = False
        if not is_small:
            native, is_small = self._read_state()
        titles = self._titles(after) if titled else iter(())
        ways = self._items(after, is_small=is_small, native=native)
        merged = heapq.merge(ways, titles, key=lambda found: found.position, reverse=True)
        page = list(islice(self._distinct(merged), self.limit + 1))
        is_full = len(page) > self.limit
        complete = self._unread is None or (is_full and page[-1].position >= self._unread)
        return page, complete

    def _choose_sessions(self) -> tuple[bool, bool]:
        """Returns whether all sessions are known to be small, and whether a title can match."""
        if self._everything:
            return False, True
        parameters = {"limit": FEW_SESSIONS + 1, "few": FEW // SMALL_SESSIONS}
        rows = self._execute(("search sessions",), lambda build: build.sessions(), parameters).all()
        self._ids = [row[0] for row in rows] if len(rows) <= FEW_SESSIONS else None
        if self._ids is None or len(rows) > SMALL_SESSIONS:
            return False, True
        titled = any(self._matches_title(title) for _, title, _ in rows if title is not None)
        return all(many is None for _, _, many in rows), titled

    def _read_state(self) -> tuple[bool, bool]:
        """Returns whether there is a native index, and whether all items are to be tested."""
        count = self._some(self._ids)
        parameters = {**self._of_ids(), "most": FEW + 1}
        state = self._execute(
            ("search state", count), lambda build: build.state(count), parameters
        ).first()
        if state is None:
            raise TablesMissingError((), problem=NO_INDEX)
        native, self._filled, newest, items = state
        self.advances = bool(native) and (newest or 0) - self._filled > _TAIL
        return bool(native), items is not None and items <= FEW

    # ---- items ----

    def _items(self, after: Position | None, *, is_small: bool, native: bool) -> Iterator[Found]:
        if is_small:
            yield from self._all_of(Way.SESSIONS, after)
            return
        for size in WINDOWS:
            if size != WINDOWS[0] and (
                self._ids is not None or (native and self._has_few_candidates(WINDOWS[0]))
            ):
                break
            while True:
                found, last = self._batch(Way.NEWEST, after, window=size)
                yield from found
                if last is None:
                    break
                after = last
            after = self._end(after, size)
            if after is None:
                return
        if native and self._has_few_candidates(MOST_CANDIDATES):
            yield from self._all_of(Way.NATIVE, after)
        elif self._ids is None:
            yield from self._all_of(Way.ALL, after)
        else:
            yield from self._all_of(Way.SESSIONS, after)

    def _all_of(self, way: Way, after: Position | None) -> Iterator[Found]:
        limit = self.limit + 1
        while True:
            found, after = self._batch(way, after, limit=limit)
            yield from found
            if after is None:
                return
            limit = _NEXT

    def _batch(
        self, way: Way, after: Position | None, *, limit: int | None = None, window: int = 0
    ) -> tuple[list[Found], Position | None]:
        """Returns hits in order, and the position of the last candidate if there can be more."""
        limit = limit or self.limit + 1
        given = {"limit": limit, "window": window}
        rows = self._read(way, after, given, strict=self._unread is not None)
        unread: list[Found] = []
        if not all(each.has_row for each in rows) or way is Way.NATIVE:
            unread = self._read_missing(way, after, window)
            if not all(each.has_row for each in rows):
                rows = self._read(way, after, given, strict=True)
        last = rows[-1].position if len(rows) == limit else None
        if last is not None:
            unread = [each for each in unread if each.position > last]
        found = sorted([*rows, *unread], key=lambda each: each.position, reverse=True)
        if self.by_session and (unread or not self.query.is_exact):
            found = [each for each in found if each.hit is None or self._is_newest(each)]
        return [each for each in found if each.hit is not None], last

    def _read(
        self,
        way: Way,
        after: Position | None,
        given: dict[str, Any],
        *,
        strict: bool,
        by_session: bool | None = None,
    ) -> list[Found]:
        distinct = self.by_session and self.query.is_exact if by_session is None else by_session
        shape = self._shape(way, after, by_session=distinct, strict=strict)
        parameters = {**self._parameters(shape, after), **given}
        rows = self._execute(("search hits", shape), lambda build: build.hits(shape), parameters)
        return [self._found(row)[0] for row in rows]

    def _read_missing(self, way: Way, after: Position | None, window: int) -> list[Found]:
        """Reads items without a row, and notes their words."""
        if self._unread is not None:
            return []
        shape = self._shape(way, after, by_session=self.by_session, strict=True)
        given = {"limit": MOST + 1, "window": window, "filled": self._filled}
        rows = self._execute(
            ("search missing", shape),
            lambda build: build.missing(shape),
            {**self._parameters(shape, after), **given},
        )
        found = [self._found(row) for row in rows]
        known = {item_id for item_id, _ in self.to_write}
        for each, text in found[:MOST]:
            if each.position.item_id not in known and len(self.to_write) < MOST:
                self.to_write.append((each.position.item_id, stored_words(text)))
        if len(found) > MOST:
            self._unread = found[MOST][0].position
        return [each for each, _ in found[:MOST]]

    def _is_newest(self, found: Found) -> bool:
        """Returns whether a session has no newer hit, if the database cannot tell."""
        ids, self._ids = self._ids, [found.position.session_id]
        try:
            after: Position | None = None
            while True:
                rows = self._read(
                    Way.SESSIONS, after, {"limit": _NEXT}, strict=False, by_session=False
                )
                newest = next((each for each in rows if each.hit is not None), None)
                if newest is not None:
                    return newest.position <= found.position
                if len(rows) < _NEXT:
                    return True
                after = rows[-1].position
        finally:
            self._ids = ids

    def _end(self, after: Position | None, size: int) -> Position | None:
        """Returns where a window of the newest items ends, or None if it has all others."""
        shape = after is not None
        parameters = {"offset": size - 1, **({} if after is None else _bound(after, of_items=True))}
        row = self._execute(
            ("search end", shape), lambda build: build.end(after=shape), parameters
        ).first()
        return None if row is None else Position(row[0], int(row[1]), False, "")

    def _has_few_candidates(self, most: int) -> bool:
        shape = self._shape(Way.NATIVE, None, by_session=False, strict=True)
        count = self._execute(
            ("search candidates", shape.patterns),
            lambda build: build.count_candidates(shape),
            {**self._parameters(shape, None), "candidates": most + 1},
        ).scalar()
        return int(count) <= most

    def _found(self, row: Any) -> tuple[Found, str]:
        time, item_id, session_id, created_at, data, has_row, holds, title = row
        position = Position(time, int(item_id), False, session_id)
        role, text = text_of_item(_json(data)) or ("", "")
        match = self.query.match(text) if holds and text else None
        if match is None or (title is not None and self._matches_title(title)):
            return Found(position, None, bool(has_row)), text
        hit = SearchHit(session_id, position.item_id, created_at, role, *match)
        return Found(position, hit, bool(has_row)), text

    # ---- titles ----

    def _titles(self, after: Position | None) -> Iterator[Found]:
        words = {word for word, _ in self.query.words}
        plain = sorted(word for word in words if word.isascii())
        only_ascii = len(plain) == len(words)
        given: dict[str, Any] = {f"title_{place}": word for place, word in enumerate(plain)}
        given = given if only_ascii else {}
        limit = self.limit + 1
        while True:
            shape = self._shape(Way.SESSIONS, after, by_session=False, strict=True)
            kind = "search titles", shape[2:5], len(given), only_ascii
            parameters = {**given, "limit": limit, **self._of_ids()}
            if after is not None:
                parameters |= _bound(after, of_items=False)
            rows = self._execute(
                kind,
                lambda build: build.titles(shape, len(given), only_ascii=only_ascii),  # noqa: B023
                parameters,
            ).all()
            for time, item_id, session_id, moment, value in rows:
                after = Position(time, int(item_id), True, session_id)
                hit = self._title_hit(session_id, moment, value)
                if hit is not None:
                    yield Found(after, hit)
            if len(rows) < limit:
                return
            limit = _NEXT

    def _title_hit(self, session_id: str, moment: datetime, value: str) -> SearchHit | None:
        title = _json(value)
        match = self.query.match(title) if isinstance(title, str) else None
        return match and SearchHit(session_id, None, moment, "title", *match)

    def _matches_title(self, value: str) -> bool:
        title = _json(value)
        return isinstance(title, str) and self.query.match(title) is not None

    # ---- statements ----

    def _distinct(self, merged: Iterator[Found]) -> Iterator[Found]:
        seen: set[str] = set()
        for found in merged:
            if self.by_session and found.position.session_id in seen:
                continue
            seen.add(found.position.session_id)
            yield found

    def _shape(self, way: Way, after: Any, *, by_session: bool, strict: bool) -> Shape:
        patterns = tuple((excluded, len(each)) for excluded, each in self.query.patterns)
        sessions = self._some(self._ids)
        is_after = after is not None
        everything, titles = self._everything, self.by_session
        return Shape(way, patterns, sessions, everything, is_after, by_session, strict, titles)

    def _parameters(self, shape: Shape, after: Position | None) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            f"pattern_{term}_{place}": pattern
            for term, (_, alternatives) in enumerate(self.query.patterns)
            for place, pattern in enumerate(alternatives)
        }
        if shape.way is Way.NATIVE:
            native = self.queries.dialect.text_search.native_query(self.query.words)
            parameters |= {"native": native, "candidates": MOST_CANDIDATES + 1}
        if after is not None:
            parameters |= _bound(after, of_items=True)
        return parameters | self._of_ids()

    def _of_ids(self) -> dict[str, Any]:
        return self.queries.dialect.list_parameters("ids", self._ids) if self._ids else {}

    def _some(self, ids: list[str] | None) -> int | None:
        """Returns the number of ids, as far as it changes a statement."""
        return None if ids is None else min(len(ids), self.queries.dialect.many + 1)

    def _execute(
        self, kind: tuple[Any, ...], build: Callable[[SearchBuilder], Any], parameters: Any
    ) -> Any:
        query = self.queries.built(kind, self.condition, SearchBuilder, build, parameters)
        return self.connection.execute(*query)


def _bound(after: Position, *, of_items: bool) -> dict[str, Any]:
    """At a title, the item at the same position comes next."""
    return {
        "after_time": str(after.time),
        "after_item": after.item_id + (of_items and after.is_title),
        "after_session": after.session_id if after.is_title else "",
    }


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


async def search(
    store: ScopedStore,
    query: WordQuery,
    condition: Condition,
    *,
    limit: int,
    cursor: str | None,
    by_session: bool,
) -> SearchPage:
    database: Database[Queries] = store.database
    question = ["search", query.encoded(), by_session, condition.encoded()]
    after = None if cursor is None else _decode(cursor, question, database)

    def read(connection: Connection, queries: Queries) -> tuple[Search, list[Found], bool]:
        if not (is_indexed(database, connection) or _look(database, connection)):
            raise TablesMissingError((), problem=NO_INDEX)
        searching = Search(connection, queries, condition, query, by_session, limit)
        return (searching, *searching.run(after))

    searching, found, complete = await database.read(read)
    if searching.to_write or searching.advances:
        await fill_met(database, searching.to_write, advances=searching.advances)
    hits = [each.hit for each in found[:limit] if each.hit is not None]
    more = len(found) > limit
    return SearchPage(
        hits, _encode(found[limit - 1].position, question) if more else None, complete
    )


def _encode(position: Position, question: Any) -> str:
    body = [str(position.time), *position[1:]]
    return seal(json.dumps(body, separators=(",", ":")).encode(), question)


def _decode(cursor: str, question: Any, database: Database[Queries]) -> Position:
    time, *place = json.loads(unseal(cursor, question))
    return Position(database.dialect.stored_time.to_database(time), *place)


def _look(database: Database[Queries], connection: Connection) -> bool:
    """Looks again: another process may have created the index."""
    from .table import TEXT

    return database.has_tables(connection, TEXT) and learn(database, connection)

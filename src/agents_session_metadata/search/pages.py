"""Searching: candidates by their stored words, each then compared with the stored text.

If filter and scope hold for few items, all of them are tested. Otherwise the newest items are
tested, a bounded number; if the page is not full then, the database's own index is asked, or all
items are read. Titles are read as they are stored, and merged with the items.

Items without a row are read and compared like the others, up to a limit. Their rows are written
when the page is done, so that a search that may not write has the same result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import Connection

from agents_session_metadata.core.database import Database
from agents_session_metadata.errors import TablesMissingError
from agents_session_metadata.query.logic import Condition
from agents_session_metadata.query.ordering import seal, unseal
from agents_session_metadata.query.pages import Queries
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import SearchHit, SearchPage

from .feature import MOST, NO_INDEX, TEXT, fill_met
from .query import WordQuery, text_of_item
from .statements import SearchBuilder, Shape, Way
from .words import stored_words


@dataclass(frozen=True)
class Sizes:
    """How much a search reads before it takes another way."""

    few: int = 5_000
    """Items of a scope that are all tested."""
    few_sessions: int = 1_000
    """Sessions of a scope whose ids are read."""
    windows: tuple[int, int] = (2_000, 20_000)
    """Newest items that are tested before others. The second is used if all would be next."""
    candidates: tuple[int, int] = (2_000, 20_000)
    """Candidates of the database's own index that are read at most; between them, the second window
    of newest items is tested before."""
    tail: int = 1_000
    """Items that are looked through for missing rows in each search by the database's own index."""
    next: int = 500
    """Candidates that are read at once if those for a page were not enough."""


class HitPosition(NamedTuple):
    """A place in the order of hits. `time` is in the form of `Dialect.stored_time`.

    A title is at the newest item of its session. Without items, it is at the session's own time.
    """

    time: Any
    item_id: int
    is_title: bool
    session_id: str


class Candidate(NamedTuple):
    """A candidate. There is no hit if its text does not match."""

    position: HitPosition
    hit: SearchHit | None


Stream = Generator[Candidate, None, "HitPosition | None"]
"""Yields hits in order. Returns the position of the last candidate."""


@dataclass
class HitReader:
    """One page, on one connection."""

    connection: Connection
    queries: Queries
    condition: Condition
    query: WordQuery
    by_session: bool
    limit: int
    sizes: Sizes
    to_write: dict[int, str] = field(default_factory=dict)
    """Stored words of items that had no row."""
    advances: bool = False
    _filled: int = 0
    _newest: int = 0
    _unread: HitPosition | None = None
    """Items without a row that are here or come later were not read."""

    def run(self, after: HitPosition | None) -> tuple[list[Candidate], bool] | None:
        """Returns up to one hit more than the page has, and whether nothing is left out.

        Returns None if there is no index.
        """
        rows = self._execute(SearchBuilder.scope, {"limit": self.sizes.few_sessions + 1})
        if not rows:
            return None
        native, self._filled = rows[0][:2]
        sessions = [row[2:] for row in rows if row[2] is not None]
        ids = titled = None
        if self.condition.constant is not True and len(sessions) <= self.sizes.few_sessions:
            ids = [session_id for session_id, _, _ in sessions]
            titled = [session_id for session_id, title, _ in sessions if self._is_titled(title)]
        is_small = ids is not None and sum(items for _, _, items in sessions) <= self.sizes.few
        hits = merge(
            self._items(after, ids, is_small=is_small, native=native > 0),
            self._read(Way.ALL, after, titled, titles=True),
            key=lambda found: found.position,
            reverse=True,
        )
        page = list(islice(self._distinct(hits, is_first=after is None), self.limit + 1))
        is_full = len(page) > self.limit
        complete = self._unread is None or (is_full and page[-1].position >= self._unread)
        return page, complete

    def _items(
        self, after: HitPosition | None, ids: list[str] | None, *, is_small: bool, native: bool
    ) -> Iterator[Candidate]:
        if not is_small:
            after = yield from self._read(Way.NEWEST, after, ids, self.sizes.windows[0])
            is_native = native and self._has_at_most(self.sizes.candidates[0])
            if not is_native and ids is None:
                after = yield from self._read(Way.NEWEST, after, ids, self.sizes.windows[1])
            if is_native or (native and self._has_at_most(self.sizes.candidates[1])):
                ways = (self._read(way, after, ids) for way in (Way.NATIVE, Way.MISSING))
                yield from merge(*ways, key=lambda found: found.position, reverse=True)
                return
        yield from self._read(Way.ALL, after, ids)

    def _has_at_most(self, most: int) -> bool:
        """Returns whether the database's own index has at most so many candidates."""
        count, newest = self._ask(
            SearchBuilder.count_candidates, Way.NATIVE, None, None, candidates=most + 1
        )[0]
        self._newest = newest or 0
        self.advances = self._newest - self._filled > self.sizes.tail
        return int(count) <= most

    def _read(
        self,
        way: Way,
        after: HitPosition | None,
        ids: list[str] | None,
        window: int = 0,
        *,
        titles: bool = False,
    ) -> Stream:
        build = SearchBuilder.titles if titles else SearchBuilder.hits
        candidate = self._title_candidate if titles else self._item_candidate
        limit = self.limit + 1
        more = ids != []
        while more:
            rows = self._ask(build, way, after, ids, limit=limit, window=window)
            found = [candidate(row) for row in rows]
            yield from (each for each in found if each.hit is not None)
            after = found[-1].position if found else after
            more, limit = len(found) == limit, self.sizes.next
        return after

    def _item_candidate(self, row: Any) -> Candidate:
        time, item_id, session_id, created_at, data, holds, has_row, title = row
        position = HitPosition(time, int(item_id), False, session_id)
        item = _json(data)
        role, text = text_of_item(item) or ("", "")
        if not has_row and position.item_id not in self.to_write:
            if len(self.to_write) == MOST:
                self._unread = max(self._unread or position, position)
                return Candidate(position, None)
            self.to_write[position.item_id] = stored_words(text)
        match = self.query.match(text) if holds and text else None
        if match is None or (self.by_session and self._is_titled(title)):
            return Candidate(position, None)
        hit = SearchHit(session_id, position.item_id, created_at, role, *match, item)
        return Candidate(position, hit)

    def _title_candidate(self, row: Any) -> Candidate:
        time, item_id, session_id, moment, value = row
        title = _json(value)
        match = self.query.match(title) if isinstance(title, str) else None
        position = HitPosition(time, int(item_id), True, session_id)
        return Candidate(position, match and SearchHit(session_id, None, moment, "title", *match))

    def _is_titled(self, value: str | None) -> bool:
        title = None if value is None else _json(value)
        return isinstance(title, str) and self.query.match(title) is not None

    def _distinct(self, hits: Iterator[Candidate], *, is_first: bool) -> Iterator[Candidate]:
        seen: set[str] = set()
        for found in hits:
            session_id = found.position.session_id
            if self.by_session:
                if session_id in seen or not (is_first or self._is_newest(found.position)):
                    continue
                seen.add(session_id)
            yield found

    def _is_newest(self, position: HitPosition) -> bool:
        """Returns whether a session has no newer hit, also if the database cannot tell."""
        if position.is_title or (self.query.is_exact and not self.to_write):
            return True
        newest = next(self._read(Way.ALL, None, [position.session_id]), None)
        return newest is None or newest.position <= position

    # ---- statements ----

    def _ask(
        self,
        build: Callable[..., Any],
        way: Way,
        after: HitPosition | None,
        ids: list[str] | None,
        **limits: int,
    ) -> list[Any]:
        query, dialect = self.query, self.queries.dialect
        shape = Shape(
            way,
            tuple(excluded for excluded, _ in query.patterns),
            None if ids is None else min(len(ids), dialect.many + 1),
            after is not None,
            by_session=self.by_session and query.is_exact,
            strict=self._unread is not None,
        )
        plain = [word for word, _ in query.words if word.isascii()]
        given: dict[str, Any] = {
            "candidates": self.sizes.candidates[1] + 1,
            **limits,
            "native": dialect.text_search.native_query(query.words),
            "filled": self._filled,
            "newest": self._newest,
            "title_word": max(plain, key=len, default=""),
            **(dialect.list_parameters("ids", ids) if ids else {}),
            **{f"pattern_{number}": each for number, (_, each) in enumerate(query.patterns)},
        }
        if after is not None:
            given["after_time"] = str(after.time)
            # At a title, the item at the same position comes next.
            given["after_item"] = after.item_id + after.is_title
            given["after_title"] = after.item_id
            given["after_session"] = after.session_id if after.is_title else ""
        return self._execute(build, given, shape=shape)

    def _execute(
        self, build: Callable[..., Any], parameters: dict[str, Any], **shape: Shape
    ) -> list[Any]:
        query = self.queries.query(build, self.condition, parameters, SearchBuilder, **shape)
        return list(self.connection.execute(*query))


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
    sizes: Sizes = Sizes(),
) -> SearchPage:
    database: Database = store.database
    question = ["search", query.encoded(), by_session, condition.encoded()]
    after = None if cursor is None else _decode(cursor, question, database)

    def read(connection: Connection) -> tuple[HitReader, list[Candidate], bool] | None:
        searching = HitReader(connection, store.queries, condition, query, by_session, limit, sizes)
        found = searching.run(after)
        return found and (searching, *found)

    result = await database.read_used(TEXT, read, None)
    # Another process may have created or dropped the index.
    database.notes[TEXT] = result is not None
    if result is None:
        raise TablesMissingError((), problem=NO_INDEX)
    searching, found, complete = result
    if searching.to_write or searching.advances:
        await fill_met(database, searching.to_write, advances=searching.advances)
    next_cursor = None
    if len(found) > limit:
        last = found[limit - 1].position
        next_cursor = seal([str(last.time), *last[1:]], question)
    hits = [each.hit for each in found[:limit] if each.hit is not None]
    return SearchPage(hits, next_cursor, complete)


def _decode(cursor: str, question: Any, database: Database) -> HitPosition:
    stored = database.dialect.stored_time
    time, *place = unseal(cursor, question, stored, int, bool, str)
    return HitPosition(stored.to_database(time), *place)

"""Builds the statements that read sessions once per shape, runs them, and converts their rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import BindParameter, ColumnElement, Connection, Result, Table

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect, Statement
from agents_session_metadata.errors import CorruptMetadataError
from agents_session_metadata.text import quoted
from agents_session_metadata.types import Metadata, SessionInfo, ValueCount
from agents_session_metadata.values import SearchKey, decode_scalar, decode_value

from .conditions import Exists, IdIn
from .details import METADATA, NO_METADATA, Details, preview_of
from .logic import All, Condition, Context, Parameters
from .ordering import NEWEST_FIRST, OLDEST_FIRST, WALK, Ordering, SessionPosition
from .statements import MISSING, Builder
from .walks import Bounds, Chooser, WalkBuilder

T = TypeVar("T")

_TIED = 10
"""Sessions that `last` finds by a walk; if that many were active in one tick, it sorts."""

LONGEST_PAGE = 1000
"""A door can have a lower limit of its own."""

OnCorrupt: TypeAlias = Callable[[CorruptMetadataError], object]
"""A function that is called with the error of each stored value that is not valid JSON."""


def check_limit(limit: int, most: int = 2**31 - 1, name: str = "limit") -> None:
    if type(limit) is not int or not 1 <= limit <= most:
        raise ValueError(f"{name} must be between 1 and {most}, got {quoted(limit)}")


class BoundStatement(NamedTuple):
    statement: Statement
    parameters: Parameters


class Queries:
    """Use `queries_of`, which makes one per set of tables, dialect and `native_ids`."""

    _CACHED = 1000

    def __init__(self, dialect: Dialect, tables: SessionTables, native_ids: bool) -> None:
        self.dialect = dialect
        self.tables = tables
        self._context = Context(dialect, tables, native_ids)
        self._statements: dict[Any, Statement] = {}
        self._lock = threading.Lock()

    def ids(self, condition: Condition, *, after: str | None, limit: int) -> BoundStatement:
        parameters = {"limit": limit, **({} if after is None else {"after_id": after})}
        return self.query(Builder.ids, condition, parameters, walk=after is not None)

    def where(
        self, statement: Statement, condition: Condition, session_id: ColumnElement[str]
    ) -> BoundStatement:
        """Restricts a statement to the session with this id, if the condition holds for it."""
        builder = Builder(self._context, condition)
        shape = ("where", session_id), condition.shape()
        truth = self._statements.get(shape)
        if truth is None:
            truth = builder.truth(session_id)
            # An alias is another one in each call.
            table = getattr(session_id, "table", None)
            if isinstance(table, Table) or isinstance(session_id, BindParameter):
                self._keep(shape, truth)
        return BoundStatement(statement.where(truth), builder.parameters())

    def query(
        self,
        build: Callable[..., Statement],
        condition: Condition,
        parameters: Parameters,
        make: type[Builder] = Builder,
        **shape: Hashable,
    ) -> BoundStatement:
        """Builds a statement by a method of a builder, or takes it from the cache.

        `shape` must contain everything besides the shape of the condition that changes its text.
        """
        kind = build, *shape.values(), condition.shape()
        builder = make(self._context, condition)
        statement = self._statements.get(kind)
        if statement is None:
            statement = build(builder, **shape)
            self._keep(kind, statement)
        return BoundStatement(statement, {**builder.parameters(), **parameters})

    def _keep(self, shape: Any, built: Any) -> None:
        with self._lock:
            if len(self._statements) >= self._CACHED:
                del self._statements[next(iter(self._statements))]
            self._statements[shape] = built


_cached = lru_cache(maxsize=256)(Queries)


def queries_of(database: Database) -> Queries:
    """Must be called after the tables were checked, as by all work of the database."""
    return _cached(database.dialect, database.tables, database.native_ids)


class FoundSession(NamedTuple):
    """A session without the keys whose values are corrupt, and an error for each of them."""

    info: SessionInfo
    position: SessionPosition
    errors: tuple[CorruptMetadataError, ...]
    newest_item: int | None = None

    def checked(self, on_corrupt: OnCorrupt | None = None) -> SessionInfo:
        """Raises the first error, or passes every error to `on_corrupt`."""
        for error in self.errors:
            if on_corrupt is None:
                raise error
            on_corrupt(error)
        return self.info


@dataclass(frozen=True)
class Reader:
    """Reads sessions. How it reads them in the order of their activity, `walks` chooses."""

    database: Database
    connection: Connection

    @property
    def queries(self) -> Queries:
        return queries_of(self.database)

    def page(
        self,
        condition: Condition,
        ordering: Ordering,
        *,
        limit: int,
        after: SessionPosition | None = None,
        details: Details = METADATA,
    ) -> list[FoundSession]:
        """Reads a page by one statement, with a row per session and key.

        By activity, a second or third one may be needed.
        """
        parameters: Parameters = {"limit": limit, **details.parameters(self.database.dialect)}
        if ordering.key is not None:
            parameters["order_key"] = ordering.key
        if after is not None:
            value = after.value or (MISSING[ordering.descending], b"")
            parameters |= {**after.parameters(), "after_key": value[0], "after_rest": value[1]}
        shape = _shape(ordering, after, details)
        ask = partial(self.queries.query, Builder.page, condition)

        def sort() -> list[FoundSession]:
            def read(pieces: int) -> list[FoundSession]:
                return collect(self.connection.execute(*ask(parameters, pieces=pieces, **shape)))

            return self._in_whole_order(read, lambda found: found.position.value)

        def sort_few(bounds: Bounds) -> list[FoundSession] | bool:
            query = ask({**parameters, **bounds.parameters}, pieces=1, few=True, **shape)
            return _if_few(self.connection.execute(*query))

        if ordering.column != "updated_at":
            return sort()
        walk = partial(self._walked, condition, parameters, shape)
        chooser = self._chooser(condition, (ordering.descending, after is None))
        return chooser.read(limit, sort, sort_few, walk)

    def _walked(
        self, condition: Condition, parameters: Parameters, shape: dict[str, Any], bounds: Bounds
    ) -> list[FoundSession] | None:
        """Returns None if the walk has ended at its bound."""
        bound = {**parameters, **bounds.parameters}
        query = self.queries.query(WalkBuilder.walk, condition, bound, WalkBuilder, **shape)
        result = self.connection.execute(*query)
        names, rows = list(result.keys()), result.all()
        place = names.index("beyond")
        return None if any(row[place] for row in rows) else _collected(names, rows)

    def _chooser(self, condition: Condition, begin: object = (True, True)) -> Chooser:
        return Chooser(self.database, self.connection, condition, begin)

    def last(self, condition: Condition, details: Details = METADATA) -> FoundSession | None:
        """Reads the most recently active session.

        Within one tick of the clock, it is the one with the newest message.
        """
        parameters = details.parameters(self.database.dialect)
        ask = partial(self.queries.query, Builder.last, details=details.shape)

        def sort(condition: Condition = condition) -> list[FoundSession]:
            return collect(self.connection.execute(*ask(condition, parameters)))

        def sort_few(bounds: Bounds) -> list[FoundSession] | bool:
            query = ask(condition, {**parameters, **bounds.parameters}, few=True)
            return _if_few(self.connection.execute(*query))

        def walk(bounds: Bounds) -> list[FoundSession] | None:
            shape = _shape(NEWEST_FIRST, None, NO_METADATA)
            found = self._walked(condition, {"limit": _TIED}, shape, bounds)
            if not found:
                return found
            newest = found[0].position.time
            tied = [each.info.session_id for each in found if each.position.time == newest]
            if len(tied) == _TIED:
                return None
            return sort(All((condition, IdIn(tuple(sorted(tied))))))

        found = self._chooser(condition).read(_TIED, sort, sort_few, walk)
        return found[0] if found else None

    def last_of_each(
        self, key: str, condition: Condition, limit: int, details: Details
    ) -> list[FoundSession]:
        """Reads the most recently active session of each scalar value, newest first."""
        having = All((condition, Exists(key)))
        parameters = {"each_key": key, "limit": limit}
        query = self.queries.query(Builder.last_of_each, having, parameters)
        ids = tuple(self.connection.scalars(*query))
        if not ids:
            return []
        found = self.page(IdIn(ids), WALK, limit=len(ids), details=details)
        return sorted(found, key=lambda each: ids.index(each.info.session_id))

    def oldest(
        self, condition: Condition, *, limit: int, after: SessionPosition | None = None
    ) -> list[SessionPosition] | None:
        """Returns the longest inactive sessions, or None if there is no index in this order."""
        if not self._chooser(condition).has_index:
            return None
        found = self.page(condition, OLDEST_FIRST, limit=limit, after=after, details=NO_METADATA)
        return [each.position for each in found]

    def ids(self, condition: Condition, limit: int | None) -> list[str]:
        """Reads ids, most recently active first."""
        if limit is None:
            return list(self.connection.scalars(*self.queries.query(Builder.find, condition, {})))
        found = self.page(condition, NEWEST_FIRST, limit=limit, details=NO_METADATA)
        return [each.info.session_id for each in found]

    def count(self, condition: Condition) -> int:
        return int(self.connection.scalars(*self.queries.query(Builder.count, condition, {})).one())

    def count_values(self, key: str, condition: Condition, limit: int) -> list[ValueCount]:
        """Counts the sessions of each value, and the elements of lists one by one."""
        # One more than the limit shows whether the last one is tied with what comes after it.
        parameters = {"counted_key": key, "limit": limit + 1}
        ask = partial(self.queries.query, Builder.count_values, condition, parameters)

        def read(pieces: int) -> list[tuple[SearchKey, int]]:
            rows: Any = self.connection.execute(*ask(pieces=pieces)).all()
            return [(SearchKey(bytes(key), bytes(rest)), int(count)) for key, rest, count in rows]

        found = self._in_whole_order(read, lambda each: each[0])
        return [ValueCount(decode_scalar(value), count) for value, count in found[:limit]]

    def _in_whole_order(
        self, read: Callable[[int], list[T]], value_of: Callable[[T], SearchKey | None]
    ) -> list[T]:
        """Reads rows, and if the database sorts by beginnings only, again by more of long values.

        `read` takes the number of parts by which long values are sorted.
        """
        pieces, length = 1, self.database.dialect.sorted_bytes
        while True:
            found = read(pieces)
            longest = _longest_tie(map(value_of, found), pieces * length)
            if not longest:
                return found
            pieces = longest // length + 1


def _shape(ordering: Ordering, after: SessionPosition | None, details: Details) -> dict[str, Any]:
    return {"ordering": ordering.shape, "beyond": after is not None, "details": details.shape}


async def read_sessions(database: Database, work: Callable[[Reader], T]) -> T:
    """Runs work that reads sessions."""
    return await database.read(lambda connection: work(Reader(database, connection)))


def collect(result: Result[Any]) -> list[FoundSession]:
    return _collected(list(result.keys()), result.all())


def _if_few(result: Result[Any]) -> list[FoundSession] | bool:
    """Returns whether they are all old if more than a few sessions match."""
    names, rows = list(result.keys()), result.all()
    more = rows[0][names.index("more")]
    if more is not None:
        return bool(more)
    return _collected(names, [row for row in rows if row[0] is not None])


def _collected(names: Sequence[str], every_row: Iterable[Any]) -> list[FoundSession]:
    """Combines the rows of each session, which has one row per key."""
    place = {name: index for index, name in enumerate(names)}
    has_metadata, count, message = "key" in place, place.get("item_count"), place.get("message")
    found = []
    for session_id, group in groupby(every_row, itemgetter(0)):
        rows = list(group)
        row = rows[0]
        metadata: Metadata = {}
        errors = []
        # Key and value come last; a session without metadata has neither.
        if has_metadata:
            stored = [each for each in rows if each[-2] is not None]
            # To sort them in the statement, a database would copy all values first.
            stored.sort(key=itemgetter(-2))
            for each in stored:
                try:
                    metadata[each[-2]] = decode_value(each[-1])
                except ValueError:  # noqa: PERF203  # one at a time
                    errors.append(CorruptMetadataError(session_id, each[-2]))
        info = SessionInfo(
            session_id,
            row[1],
            row[2],
            metadata,
            None if count is None else row[count],
            None if message is None else _preview(rows, message),
        )
        newest = row[place["newest_item"]] if "newest_item" in place else None
        found.append(FoundSession(info, _position(session_id, row, place), tuple(errors), newest))
    return found


def _preview(rows: list[Any], place: int) -> str | None:
    message = next((row[place] for row in rows if row[place] is not None), None)
    return None if message is None else preview_of(message)


def _position(session_id: str, row: Any, place: dict[str, int]) -> SessionPosition:
    if "position" not in place:
        return SessionPosition(session_id)
    time = str(row[place["position"]])
    if "position_key" not in place:
        return SessionPosition(session_id, time)
    indexed, rest = (bytes(row[place[name]]) for name in ("position_key", "position_rest"))
    value = None if indexed in MISSING.values() else SearchKey(indexed, rest)
    return SessionPosition(session_id, time, value)


def _longest_tie(values: Iterable[SearchKey | None], compared: int) -> int:
    """Returns the bytes needed to sort values whose compared beginnings are equal, or 0.

    `values` are in the order of the page; `compared` is the number of bytes of their rests that
    were compared. Equal values count too if they are as long, because others between them may not
    be in the page.
    """
    longest = 0
    for one, other in pairwise(values):
        if one is None or other is None or one.indexed != other.indexed:
            continue
        length = max(len(one.rest), len(other.rest))
        if length >= compared and one.rest[:compared] == other.rest[:compared]:
            longest = max(longest, length)
    return longest

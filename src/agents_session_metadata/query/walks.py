"""Chooses how sessions are read in the order of their activity: by sorting or by walking.

Sorting reads all sessions that match. Its time grows with their number. Walking reads the sessions
in the order of the SQL index on `updated_at`, and looks up for each whether it matches. Its time
grows with the number of sessions that have to be passed until the page is full, so it is fast where
many match. Both read the same page.

A statement that sorts reads nothing if more sessions match than `Bounds.few`; then one that walks
is run, unless the times of a sample show that the sessions are all old. It ends after
`Bounds.passed` sessions. If the page is not full by then, the sessions are sorted after all. Where
a walk is in vain, they are sorted at once for a minute.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from operator import gt, lt
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import (
    Connection,
    FromClause,
    String,
    and_,
    bindparam,
    case,
    func,
    select,
    true,
)

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.schema import time_index
from agents_session_metadata.dialects._dialect import Statement, literal_number, literal_parameter

from .conditions import IdIn
from .details import Details
from .logic import NO_DRIVER, Condition, Parameters, Truth, best_of
from .ordering import Ordering
from .statements import NAME, Builder, SortTerm, Source, after_position, directed

T = TypeVar("T")

MARGIN = 1.5
"""How far both bounds are from where sorting and walking are expected to take the same time.

A walk that is expected to fill a page of 20 has to pass a fifth more or less (its standard
deviation). With this margin, one walk in a hundred ends too early at the bound, and an owner at the
bound waits at most twice as long as with the other plan.
"""
LEAST_ROWS = 10_000
"""Sessions that are assumed at least: statistics can be a day old, or missing."""
KNOWN_FOR = 60.0
"""Seconds for which a process remembers the index, the number of sessions, and a walk in vain."""
REMEMBERED = 1_000
"""Conditions of which a process remembers that many sessions match: these are walked at once."""

_NOTE, _MANY, _VAIN = "time index", "many", "vain"


class Bounds(NamedTuple):
    """Up to `few` sessions that match are sorted; a walk ends after it has passed `passed`.

    If more match, spread evenly, then some of `sample` are among the first `reach` of all sessions,
    but for a chance of e⁻⁶.

    Sorting n sessions takes as long as walking `n / probe_cost` sessions. If n of all rows match,
    spread evenly, a page of `limit` is full after `limit * rows / n`. So both take the same time at
    n = √(probe_cost · limit · rows): about 1,000 sessions among 200,000 on SQLite and 1,800 on a
    server, for a page of 20.
    """

    few: int
    passed: int
    sample: int
    reach: int

    @property
    def parameters(self) -> Parameters:
        return {**self._asdict(), "most": self.few + 1}

    @classmethod
    def of(cls, limit: int, rows: int, probe_cost: float) -> Bounds:
        rows = max(rows, LEAST_ROWS)
        few = math.sqrt(MARGIN * probe_cost * limit * rows)
        passed, sample = MARGIN * limit * rows / few, few / 7
        # Rounded: a statement with other numbers is another one to the server.
        return cls(*map(_rounded, (few, passed, sample, max(passed, 6 * rows / sample))))


def _rounded(number: float) -> int:
    """Rounds to two digits."""
    return max(1, int(float(f"{number:.1e}")))


class Chooser:
    """Chooses the plan of one page of sessions by activity.

    Pages with the same `begin` are expected to pass equally many sessions that do not match.
    """

    def __init__(
        self, database: Database, connection: Connection, condition: Condition, begin: object
    ) -> None:
        self._database = database
        self._connection = connection
        self._condition = condition
        self._page = condition, begin
        _, self._best = best_of(condition.conjunction(NAME))
        # Without conditions, sorting reads along the index already.
        self._can_walk = (
            any(condition.conjunction(NAME))
            and condition.constant is None
            and not isinstance(self._best, IdIn)
        )

    @property
    def has_index(self) -> bool:
        return self._rows is not None

    def read(
        self,
        limit: int,
        sort: Callable[[], list[T]],
        sort_few: Callable[[Bounds], list[T] | bool],
        walk: Callable[[Bounds], list[T] | None],
    ) -> list[T]:
        """Returns what one of the plans reads.

        If more than a few sessions match, `sort_few` returns whether a walk is expected to be in
        vain. `walk` returns None if it has ended at its bound.
        """
        rows = self._rows if self._can_walk else None
        if rows is None:
            return sort()
        vain: dict[Any, float] = self._database.notes.setdefault(_VAIN, {})
        if time.monotonic() < vain.get(self._page, 0.0):
            return sort()
        bounds = Bounds.of(limit, rows, self._database.dialect.probe_cost)
        many: dict[Condition, None] = self._database.notes.setdefault(_MANY, {})
        in_vain = False
        if self._condition not in many and self._best.rank < NO_DRIVER:
            found = sort_few(bounds)
            if isinstance(found, list):
                return found
            in_vain = found
        walked = None if in_vain else walk(bounds)
        for known in (many, vain):
            if len(known) >= REMEMBERED:
                known.clear()
        if walked is None:
            many.pop(self._condition, None)
            vain[self._page] = time.monotonic() + KNOWN_FOR
            return sort()
        many[self._condition] = None
        return walked

    @property
    def _rows(self) -> int | None:
        """An estimate of all sessions; None without the index."""
        known: tuple[float, int | None] = self._database.notes.get(_NOTE, (0.0, None))
        expires, rows = known
        if time.monotonic() >= expires:
            sessions, dialect = self._database.tables.sessions, self._database.dialect
            name = time_index(sessions, dialect).name
            rows = dialect.time_index_rows(self._connection, sessions, name)
            self._database.notes[_NOTE] = time.monotonic() + KNOWN_FOR, rows
        return rows


def forget(database: Database) -> None:
    """Must be called after the index was created or dropped."""
    database.notes.pop(_NOTE, None)


class WalkBuilder(Builder):
    """Builds statements that walk."""

    def walk(self, *, ordering: Ordering, beyond: bool, details: Details) -> Statement:
        """Selects a page.

        Sessions after the bound are not looked up, but returned, with `beyond`, so that the
        statement ends there.
        """
        along = self._numbered if self._dialect.numbers_rows else self._limited
        walked = along(ordering, beyond).limit(literal_parameter("limit")).subquery("walked")
        session_id = walked.c.session_id
        rows = self._joined(walked, self._sessions, session_id, selective=True)
        source = Source(rows, session_id, (), selective=True, sessions=self._sessions)
        terms = list(self._by_columns(ordering, source))
        columns = self._info_columns(source, details)
        columns.extend(term.column.label(term.label) for term in terms[:-1])
        page = source.select(*columns, walked.c.beyond).order_by(*directed(terms))
        return self._with_metadata(page, terms, details, native=ordering.native)

    def _limited(self, ordering: Ordering, beyond: bool) -> Statement:
        """Walks to the time of the session at the bound, which is looked up first."""
        sessions, others = self._sessions, self._sessions.alias("others")
        last = self._along(others, [others.c.updated_at], ordering, beyond)
        last = last.order_by(*directed(self._terms(others, ordering)))
        last = last.limit(literal_number(1)).offset(literal_parameter("passed")).scalar_subquery()
        # As a table of one row, it is looked up once, although it is used twice.
        given = select(last.label("last")).subquery("given")
        passed: Truth = (lt if ordering.descending else gt)(sessions.c.updated_at, given.c.last)
        columns = [sessions.c.session_id, passed.label("beyond")]
        return (
            self._along(sessions, columns, ordering, beyond)
            .select_from(sessions.join(given, true()))
            .where(case((passed, true()), else_=self._holds()))
            .order_by(*directed(self._terms(sessions, ordering)))
        )

    def _numbered(self, ordering: Ordering, beyond: bool) -> Statement:
        """Walks to the last of the numbered rows.

        The index has no ids, and the bound can be within sessions of one time: such a page is not
        complete, so that the row at the bound comes first among them.
        """
        sessions = self._sessions
        time, _ = self._terms(sessions, ordering)
        place = func.row_number().over(order_by=directed([time])).label("place")
        holds = self._holds().label("holds")
        columns = [sessions.c.session_id, sessions.c.updated_at, place, holds]
        rows = self._along(sessions, columns, ordering, beyond).order_by(*directed([time]))
        numbered = rows.limit(literal_parameter("passed")).subquery("numbered")
        passed: Truth = numbered.c.place >= literal_parameter("passed")
        time, own_id = self._terms(numbered, ordering)
        return (
            select(numbered.c.session_id, passed.label("beyond"))
            .where(case((passed, true()), else_=numbered.c.holds))
            .order_by(*directed([time]), passed.desc(), *directed([own_id]))
        )

    def _along(
        self, rows: FromClause, columns: Sequence[Any], ordering: Ordering, beyond: bool
    ) -> Statement:
        """Selects sessions after a position, and within the times that the condition allows."""
        statement = select(*columns).where(*self._within(rows))
        if beyond:
            statement = statement.where(
                self._dialect.reaches(rows.c.updated_at, descending=ordering.descending),
                after_position(self._terms(rows, ordering)),
            )
        return statement

    def _terms(self, rows: FromClause, ordering: Ordering) -> tuple[SortTerm, SortTerm]:
        """Returns time and id, as in the index."""
        stored, descending = self._dialect.stored_time, ordering.descending
        time, own_id = rows.c.updated_at, self._context.sorted_id(rows.c.session_id)
        after_time = bindparam("after_time", type_=stored)
        after_id = bindparam("after_id", type_=String)
        by_time = SortTerm("position", stored.of(time), descending, after_time, [time])
        return by_time, SortTerm("id", own_id, descending, after_id, [own_id])

    def _holds(self) -> Truth:
        own_id = self._sessions.c.session_id
        # The most selective condition first: most sessions fail it.
        parts = sorted(self._condition.conjunction(NAME), key=lambda named: named[1].rank)
        return and_(*(part.truth(name, self._context, own_id) for name, part in parts))

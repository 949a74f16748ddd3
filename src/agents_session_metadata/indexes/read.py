"""Pages from the index of a key: entries in the order of the page, instead of all that match.

If a filter requires one value of an indexed key, a walk reads the entries of that value from where
the page begins: as many as the page has, and with further conditions a bounded number more. If the
page is not full by then, the question is answered as without an index.

Which indexes exist is known from earlier, and may have changed. So the statement that walks also
reads the state of its index: an answer counts only if the index was complete at that moment.
"""

from __future__ import annotations

import operator as op
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, TypeGuard, TypeVar

from sqlalchemy import ColumnElement, FromClause, Integer, String, bindparam, func, select

from agents_session_metadata.core.database import Database
from agents_session_metadata.dialects._dialect import Statement
from agents_session_metadata.dialects.sqltypes import PlainBytes
from agents_session_metadata.query.conditions import (
    Contains,
    Equals,
    IdHasPrefix,
    IdIn,
    TimeBound,
    constant,
)
from agents_session_metadata.query.details import METADATA, NO_METADATA, Details
from agents_session_metadata.query.logic import All, Condition
from agents_session_metadata.query.ordering import Ordering, Position
from agents_session_metadata.query.pages import Found, Reader, collected
from agents_session_metadata.query.statements import (
    NAME,
    Builder,
    Source,
    Term,
    after_position,
    directed,
    limit_of_call,
)

from .tables import ACTIVITY, COMPLETE, look

T = TypeVar("T")

FURTHER = 500
"""The number of entries that a walk reads in addition to the page, with further conditions."""
_TIED = 50
"""The number of sessions that were active last, in one tick of the clock, that a walk finds."""
_SLOW = 0.05
"""Seconds after which an answer is slow."""

_NEWEST_FIRST = Ordering("updated_at", descending=True)
_OLDEST_FIRST = Ordering("updated_at", descending=False)


class _WalkBuilder(Builder):
    """The condition contains the other conditions, without the one that an index serves."""

    def walk(self, *, ordering: Ordering, beyond: bool, details: Details) -> Statement:
        """Returns a page of sessions with their metadata, or one row without a session.

        Every row has the state of the index as `usable`, and the number of entries as `passed`.
        """
        group = self._tables.group(ACTIVITY)
        key: ColumnElement[str] = bindparam("walk_key", type_=String)
        entries = group["_activity"].alias("entries")
        by_position = self._in_order(entries, ordering)
        bound = bindparam("walk_bound", type_=Integer, literal_execute=True)
        of_value = select(entries.c.session_id).where(
            entries.c.key == key,
            entries.c.of_list == bindparam("walk_of_list", type_=Integer),
            entries.c.search_key == bindparam("walk_value", type_=PlainBytes),
            *self._within(entries),
        )
        if beyond:
            of_value = of_value.where(after_position(by_position))
        walked = of_value.order_by(*directed(by_position)).limit(bound).subquery("walked")
        session_id: ColumnElement[str] = walked.c.session_id
        own_id = self._sessions.c.session_id
        rows = walked.join(self._sessions, self._by_key(own_id, session_id, selective=True))
        truths = [
            part.truth(name, self._context, session_id)
            for name, part in self._condition.conjunction(NAME)
        ]
        source = Source(rows, session_id, tuple(truths), selective=True)
        terms = list(self._by_columns(ordering, session_id))
        columns = self._info_columns(session_id, details)
        columns.extend(term.column.label(term.label) for term in terms[:-1])
        page = source.select(*columns).order_by(*directed(terms)).limit(limit_of_call())
        passed = select(func.count()).select_from(of_value.limit(bound).subquery("passed"))
        states = group["_indexes"]
        usable = select(func.count()).where(
            states.c.key == key, states.c.state == constant(COMPLETE)
        )
        beside = select(
            usable.scalar_subquery().label("usable"), passed.scalar_subquery().label("passed")
        )
        return self._with_metadata(page, terms, details, beside=beside.subquery("state"))

    def _in_order(self, entries: FromClause, ordering: Ordering) -> list[Term]:
        # As in the index.
        own_id = self._dialect.by_code_point(entries.c.session_id, native=False)
        after_time = bindparam("after_time", type_=self._dialect.stored_time)
        after_id: Any = bindparam("after_id", type_=String)
        by_time = entries.c.updated_at
        return [
            Term("position", by_time, ordering.descending, after_time, [by_time]),
            Term("id", own_id, ordering.descending, after_id, [own_id]),
        ]

    def _within(self, entries: FromClause) -> Iterator[ColumnElement[bool]]:
        """Yields rough limits of the time. The exact conditions are checked again."""
        for name, part in self._condition.conjunction(NAME):
            if _is_of_activity(part):
                high = part.operator in ("$lt", "$lte")
                moment = bindparam(name, type_=self._dialect.moment)
                limit = self._dialect.outer_limit(moment, high=high)
                yield (op.le if high else op.ge)(entries.c.updated_at, limit)


def _is_of_activity(part: Condition) -> TypeGuard[TimeBound]:
    """True if the condition limits the time of activity, by which entries are sorted."""
    return isinstance(part, TimeBound) and part.column == "updated_at"


def _plan(
    condition: Condition, keys: Collection[str] | None
) -> tuple[Equals, tuple[Condition, ...]] | None:
    """Returns the condition that an index serves, and the others; None if there is no such.

    Without `keys`, any key can have an index.
    """
    parts = [part for _, part in condition.conjunction(NAME)]
    if any(isinstance(part, (IdIn, IdHasPrefix)) for part in parts):
        return None
    for part in parts:
        # It requires one value, which the index distinguishes from all others.
        if isinstance(part, Equals) and part.reads_one_key and (keys is None or part.key in keys):
            return part, tuple(other for other in parts if other is not part)
    return None


@dataclass(frozen=True)
class IndexReader(Reader):
    """Reads sessions from the indexes that this process knows.

    Another process may have created an index. So after a slow answer that an index could have
    given, the reader looks again.
    """

    database: Database

    def page(self, condition: Condition, ordering: Ordering, **wanted: Any) -> list[Found]:
        if ordering.time != "updated_at" or ordering.key is not None:
            return super().page(condition, ordering, **wanted)
        found = self._walk(condition, ordering, **wanted)
        if found is not None:
            return found
        return self._timed(partial(super().page, condition, ordering, **wanted), condition)

    def last(self, condition: Condition, details: Details = METADATA) -> Found | None:
        found = self._walk(condition, _NEWEST_FIRST, limit=_TIED + 1, details=NO_METADATA)
        if found == []:
            return None
        if found is not None:
            newest = found[0].position.time
            tied = list(takewhile(lambda each: each.position.time == newest, found))
            if len(tied) <= _TIED:
                ids = sorted(each.info.session_id for each in tied)
                condition = All((condition, IdIn(tuple(ids))))
        return self._timed(partial(super().last, condition, details), condition)

    def oldest(
        self, condition: Condition, *, limit: int, after: Position | None = None
    ) -> list[Position] | None:
        parts = [part for _, part in condition.conjunction(NAME) if not part.is_of_feature]
        plan = _plan(All(tuple(parts)), self._known)
        if plan is None or not all(map(_is_of_activity, plan[1])):
            return None
        walk = partial(self._walk, All(tuple(parts)), _OLDEST_FIRST, details=NO_METADATA)
        found = walk(limit=limit, after=after)
        return None if found is None else [each.position for each in found]

    def ids(self, condition: Condition, limit: int | None) -> list[str]:
        walk = partial(self._walk, condition, _NEWEST_FIRST, details=NO_METADATA)
        found = None if limit is None else walk(limit=limit)
        if found is not None:
            return [each.info.session_id for each in found]
        return self._timed(partial(super().ids, condition, limit), condition)

    @property
    def _known(self) -> Collection[str]:
        known: Collection[str] = self.database.notes.get(ACTIVITY, ())
        return known

    def _timed(self, read: Callable[[], T], condition: Condition) -> T:
        started = time.perf_counter()
        result = read()
        if time.perf_counter() - started > _SLOW and _plan(condition, None) is not None:
            look(self.database, self.connection)
        return result

    def _walk(
        self,
        condition: Condition,
        ordering: Ordering,
        *,
        limit: int,
        after: Position | None = None,
        details: Details = METADATA,
    ) -> list[Found] | None:
        """Reads a page from an index. Returns None if none can give it."""
        plan = _plan(condition, self._known)
        if plan is None:
            return None
        leader, others = plan
        bound = limit + (FURTHER if others else 0)
        parameters: dict[str, Any] = {
            "walk_key": leader.key,
            "walk_of_list": int(isinstance(leader, Contains)),
            "walk_value": leader.values[0].indexed,
            "walk_bound": bound,
            "limit": limit,
            **details.parameters(self.database.dialect),
            **({} if after is None else after.parameters()),
        }
        query = self.queries.query(
            _WalkBuilder.walk,
            All(others),
            parameters,
            _WalkBuilder,
            ordering=ordering,
            beyond=after is not None,
            details=details.shape,
        )
        result = self.connection.execute(*query)
        names, rows = list(result.keys()), result.all()
        usable, passed = (rows[0][names.index(name)] for name in ("usable", "passed"))
        if not usable:
            look(self.database, self.connection)
            return None
        found = collected(names, (row for row in rows if row[0] is not None))
        # There are no more entries than it has read, or the page is full.
        return found if passed < bound or len(found) == limit else None

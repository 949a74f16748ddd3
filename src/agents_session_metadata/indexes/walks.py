"""Pages from the activity index: entries in the order of the page, instead of all that match.

A walk reads the entries of one value of an indexed key from where the page begins. If that value
is the only condition, it reads as many as the page has. Otherwise it passes a bounded number; if
the page is not full by then, the question is answered as without an index.

Which indexes exist is known from earlier, and may have changed. So the statement that walks also
reads the state of its index: an answer counts only if the index was complete at that moment.
"""

from __future__ import annotations

import operator as op
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Integer,
    Result,
    String,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal,
    select,
    true,
)

from agents_session_metadata.core.database import Database
from agents_session_metadata.dialects._dialect import Statement
from agents_session_metadata.dialects.sqltypes import PlainBytes
from agents_session_metadata.query import pages as paging
from agents_session_metadata.query.conditions import Equals, MetadataCondition, TimeBound, constant
from agents_session_metadata.query.details import NOTHING_ELSE, Details
from agents_session_metadata.query.logic import All, Condition
from agents_session_metadata.query.ordering import Ordering, Position
from agents_session_metadata.query.pages import Found, Reader
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.query.statements import (
    NAME,
    Builder,
    Source,
    Term,
    after_position,
    directed,
    limit_of_call,
)

from .plans import LEADER, Plan, is_of_activity, is_single
from .tables import ACTIVITY, COMPLETE, look

T = TypeVar("T")

FEW = 500
"""A condition that holds for at most this many sessions leads, instead of the index."""
MOST_WALKED = 1_000
"""The maximum number of entries that a walk reads if there are further conditions."""
_SLOW = 0.05
"""Seconds after which an answer is slow."""
_FIRST_WALKED = 200
"""The minimum number of entries that the first attempt reads."""

NEWEST_FIRST = Ordering("updated_at", descending=True)
OLDEST_FIRST = Ordering("updated_at", descending=False)


class WalkBuilder(Builder):
    """Builds statements that read the entries of one value in the order of their times.

    The condition contains the other conditions, without the leader.
    """

    def walk(
        self,
        ordering: Ordering,
        *,
        leader: Equals,
        beyond: bool,
        bounded: bool,
        some_keys: int | None,
        details: Details,
    ) -> Statement:
        """Returns a page of sessions with their metadata, or one row without a session.

        Every row has the state of the index as `usable`, and the number of entries as `walked` if
        that is bounded. `holds` is 1 if the session matches its entry.
        """
        entries = self._entries()
        by_time, by_id = self._in_order(entries, ordering)
        conditions = [*self._of_value(entries), *self._within(entries)]
        if beyond:
            conditions.append(after_position([by_time, by_id]))
        bound = bindparam("walk_bound", type_=Integer, literal_execute=True)
        found = (
            select(entries.c.session_id, entries.c.updated_at)
            .where(*conditions)
            .order_by(*directed([by_time, by_id]))
            .limit(bound if bounded else limit_of_call())
        )
        walked_entries = found.subquery("walked")
        source = self._of_sessions(walked_entries)
        terms = list(self._by_columns(ordering, source.session_id))
        columns = self._info_columns(source.session_id, details)
        columns.extend(term.column.label(term.label) for term in terms[:-1])
        time = self._dialect.stored_time.of(self._sessions.c.updated_at)
        is_current = time == walked_entries.c.updated_at
        columns.append(self._holds(leader, source.session_id, is_current))
        inner = source.select(*columns).order_by(*directed(terms)).limit(limit_of_call())
        walked: Any = literal(0, Integer)
        if bounded:
            passed = select(entries.c.session_id).where(*conditions).limit(bound).subquery("passed")
            walked = select(func.count()).select_from(passed).scalar_subquery()
        return self._with_metadata(inner, terms, some_keys, details, beside=self._state(walked))

    def candidates(
        self, ordering: Ordering, *, leader: Equals, beyond: bool, existing: bool
    ) -> Statement:
        """Returns the ids and times of entries, or one row with only the state of the index.

        Checks only with `existing` that their sessions exist: their rows can be all over the table.
        """
        entries = self._entries()
        terms = self._in_order(entries, ordering)
        conditions = [*self._of_value(entries), *self._within(entries)]
        if beyond:
            conditions.append(after_position(terms))
        found = (
            select(entries.c.session_id, entries.c.updated_at)
            .where(*conditions)
            .order_by(*directed(terms))
            .limit(limit_of_call())
            .subquery("walked")
        )
        state = self._state(literal(0, Integer))
        own_id = self._sessions.c.session_id
        same = exists().where(own_id == found.c.session_id).correlate(found)
        holds = self._holds(leader, found.c.session_id, same if existing else true())
        rows = select(state.c.usable, found, holds).select_from(state.outerjoin(found, true()))
        return rows.order_by(*directed(self._in_order(found, ordering)))

    def last_walked(self, *, leader: Equals, some_keys: int | None, details: Details) -> Statement:
        """Returns the session that was active last, or one row without a session."""
        entries = self._entries()
        of_value = self._of_value(entries)
        newest = entries.alias("newest")
        time = (
            select(newest.c.updated_at)
            .where(*self._of_value(newest))
            .order_by(newest.c.updated_at.desc())
            .limit(constant(1))
            .scalar_subquery()
        )
        found = select(entries.c.session_id).where(*of_value, entries.c.updated_at == time)
        source = self._of_sessions(found.subquery("walked"))
        inner = self._newest_of(source, details)
        columns = inner.selected_columns
        holds = self._holds(leader, columns.session_id, columns.position == time)
        inner = inner.add_columns(holds)
        state = self._state(literal(0, Integer))
        return self._with_metadata(inner, (), some_keys, details, beside=state)

    def probe(self, parts: Sequence[tuple[str, MetadataCondition]]) -> Statement:
        """Counts the sessions of each condition, up to `FEW` + 1."""
        counts = []
        for name, part in parts:
            rows, conditions, _ = part.driver(name, self._context)
            some = select(rows.c.session_id).where(*conditions).limit(constant(FEW + 1))
            counts.append(select(func.count()).select_from(some.subquery()).scalar_subquery())
        return select(*counts)

    def _entries(self) -> FromClause:
        entries: FromClause = self._tables.group(ACTIVITY)["_activity"].alias("entries")
        return entries

    def _in_order(self, entries: FromClause, ordering: Ordering) -> list[Term]:
        # As in the index.
        own_id = self._dialect.by_code_point(entries.c.session_id, native=False)
        time = bindparam("after_time", type_=self._dialect.stored_time)
        by_time = entries.c.updated_at
        return [
            Term("position", by_time, ordering.descending, time, [by_time]),
            Term("id", own_id, ordering.descending, bindparam("after_id", type_=String), [own_id]),
        ]

    def _of_value(self, entries: FromClause) -> list[ColumnElement[bool]]:
        return [
            entries.c.key == bindparam("walk_key", type_=String),
            entries.c.of_list == bindparam("walk_of_list", type_=Integer),
            entries.c.search_key == bindparam("walk_value", type_=PlainBytes),
        ]

    def _within(self, entries: FromClause) -> Iterator[ColumnElement[bool]]:
        """Yields rough limits of the time. The exact conditions are checked again."""
        for name, part in self._condition.conjunction(NAME):
            if isinstance(part, TimeBound) and is_of_activity(part):
                high = part.operator in ("$lt", "$lte")
                moment = bindparam(name, type_=self._dialect.moment)
                limit = self._dialect.outer_limit(moment, high=high)
                yield (op.le if high else op.ge)(entries.c.updated_at, limit)

    def _of_sessions(self, walked: FromClause) -> Source:
        """Joins the sessions. An entry that a lost foreign key has left behind has none."""
        session_id: ColumnElement[str] = walked.c.session_id
        by_key = self._by_key(self._sessions.c.session_id, session_id, selective=True)
        rows = walked.outerjoin(self._sessions, by_key)
        truths = [
            part.truth(name, self._context, session_id)
            for name, part in self._condition.conjunction(NAME)
        ]
        return Source(rows, session_id, tuple(truths), selective=True)

    def _holds(
        self, leader: Equals, session_id: ColumnElement[str], is_current: ColumnElement[bool]
    ) -> Any:
        """Returns 1 if the session matches its entry.

        Otherwise, entries that a lost trigger or foreign key has left behind would reach out of a
        scope, end a page early, or repeat it forever. `is_current` is true if the session exists,
        with the time of the entry if that is known.
        """
        is_current = and_(is_current, leader.truth(LEADER, self._context, session_id))
        return case((is_current, constant(1)), else_=constant(0)).label("holds")

    def _state(self, walked: Any) -> FromClause:
        indexes = self._tables.group(ACTIVITY)["_indexes"]
        usable = select(func.count()).where(
            indexes.c.key == bindparam("walk_key", type_=String),
            indexes.c.state == constant(COMPLETE),
        )
        state = select(usable.scalar_subquery().label("usable"), walked.label("walked"))
        return state.subquery("state")


@dataclass(frozen=True)
class IndexReader(Reader):
    """Reads sessions from the indexes that this process knows.

    Another process may have created an index. So after a slow answer that an index could have
    given, the reader looks again.
    """

    database: Database[Queries]

    def page(
        self,
        condition: Condition,
        ordering: Ordering,
        *,
        limit: int,
        after: Position | None = None,
        keys: Sequence[str] | None = None,
        details: Details = NOTHING_ELSE,
    ) -> list[Found]:
        by_activity = ordering.time == "updated_at" and ordering.key is None
        plan = self._plan(condition) if by_activity else None
        if plan is not None:
            found = self._walk_or_lead(
                plan, ordering, limit=limit, after=after, keys=keys, details=details
            )
            if isinstance(found, list):
                return found
            condition = found or condition
        read = partial(super().page, condition, ordering)
        read = partial(read, limit=limit, after=after, keys=keys, details=details)
        return self._timed(read, condition) if by_activity else read()

    def last(
        self,
        condition: Condition,
        *,
        keys: Sequence[str] | None = None,
        details: Details = NOTHING_ELSE,
    ) -> Found | None:
        plan = self._plan(condition)
        if plan is not None and not plan.others:
            parameters = plan.parameters(self.queries.dialect)
            some_keys = self.queries.some_keys(keys, parameters)
            usable, _, found = self._read(
                ("last walk", some_keys, details),
                plan,
                lambda build: build.last_walked(
                    leader=plan.leader, some_keys=some_keys, details=details
                ),
                parameters,
            )
            if usable:
                return found[0] if found else None
        elif plan is not None:
            rival = self._few(plan)
            condition = condition if rival is None else plan.led_by(rival)
        return self._timed(partial(super().last, condition, keys=keys, details=details), condition)

    def oldest(
        self, condition: Condition, *, limit: int, after: Position | None = None
    ) -> list[Position] | None:
        parts = [part for _, part in condition.conjunction(NAME)]
        plan = self._plan(All(tuple(part for part in parts if not part.is_of_feature)))
        if plan is None or not all(map(is_of_activity, plan.others)):
            return None
        return self._entries(plan, OLDEST_FIRST, limit=limit, after=after)

    def ids(self, condition: Condition, limit: int | None, *, existing: bool = True) -> list[str]:
        if limit is None:
            return super().ids(condition, limit)
        plan = self._plan(condition)
        if plan is not None:
            if not plan.others:
                entries = self._entries(plan, NEWEST_FIRST, limit=limit, existing=existing)
                if entries is not None:
                    return [each.session_id for each in entries]
            found = self._walk_or_lead(plan, NEWEST_FIRST, limit=limit, keys=[])
            if isinstance(found, list):
                return [each.info.session_id for each in found]
            condition = found or condition
        return self._timed(partial(super().ids, condition, limit), condition)

    def _plan(self, condition: Condition) -> Plan | None:
        return Plan.of(condition, self.database.notes.get(ACTIVITY, ()))

    def _timed(self, read: Callable[[], T], condition: Condition) -> T:
        started = time.perf_counter()
        result = read()
        is_slow = time.perf_counter() - started > _SLOW
        if is_slow and Plan.of(condition, None) is not None:
            look(self.database, self.connection)
        return result

    def _entries(
        self,
        plan: Plan,
        ordering: Ordering,
        *,
        limit: int,
        after: Position | None = None,
        existing: bool = False,
    ) -> list[Position] | None:
        """Reads entries of the index alone; None if they cannot be used."""
        rows = self._execute(
            ("candidates", ordering.descending, after is None, existing),
            plan,
            lambda build: build.candidates(
                ordering, leader=plan.leader, beyond=after is not None, existing=existing
            ),
            self._parameters(plan, limit, after),
        ).all()
        found = [row for row in rows if row.session_id is not None]
        if not rows[0].usable or not all(row.holds for row in found):
            return None
        return [Position(row.session_id, str(row.updated_at)) for row in found]

    def _walk_or_lead(
        self,
        plan: Plan,
        ordering: Ordering,
        *,
        limit: int,
        after: Position | None = None,
        keys: Sequence[str] | None = None,
        details: Details = NOTHING_ELSE,
    ) -> list[Found] | Condition | None:
        """Reads a page from the index, or returns a condition that a rare part leads, or None."""
        bounds = [0]
        if plan.others:
            first = max(_FIRST_WALKED, 8 * limit)
            bounds = [first, MOST_WALKED] if first < MOST_WALKED else [MOST_WALKED]
        # One value is often rare. Anything else is counted when the first walk has found it rare.
        probed_at = bounds[0 if any(map(is_single, plan.rivals)) else -1]
        found: list[Found] = []
        for bound in bounds:
            if bound == probed_at:
                rival = self._few(plan)
                if rival is not None:
                    return plan.led_by(rival)
            if bound > bounds[0] and len(found) * MOST_WALKED < limit * bounds[0]:
                break  # So few matches would not fill the page later either.
            parameters = self._parameters(plan, limit, after)
            if plan.others:
                parameters["walk_bound"] = bound
            some_keys = self.queries.some_keys(keys, parameters)
            usable, walked, found = self._read(
                ("walk", ordering.descending, after is None, bound > 0, some_keys, details),
                plan,
                lambda build: build.walk(  # called within this turn of the loop
                    ordering,
                    leader=plan.leader,
                    beyond=after is not None,
                    bounded=bound > 0,  # noqa: B023
                    some_keys=some_keys,  # noqa: B023
                    details=details,
                ),
                parameters,
            )
            if not usable:
                break
            if len(found) == limit or walked < bound or not bound:
                return found
        return None

    def _parameters(self, plan: Plan, limit: int, after: Position | None) -> dict[str, Any]:
        parameters = {**plan.parameters(self.queries.dialect), "limit": limit}
        if after is not None:
            parameters.update(after.parameters())
        return parameters

    def _few(self, plan: Plan) -> MetadataCondition | None:
        """Returns the other condition with the fewest sessions, if they are few."""
        rivals = plan.rivals
        if not rivals:
            return None
        query = self.queries.built(
            ("probe",),
            All(tuple(rivals)),
            WalkBuilder,
            lambda build: build.probe([(f"{NAME}_{n}", part) for n, part in enumerate(rivals)]),
        )
        counts = self.connection.execute(*query).one()
        fewest, rival = min(zip(counts, rivals, strict=True), key=lambda pair: pair[0])
        return rival if fewest <= FEW else None

    def _read(
        self,
        kind: tuple[Any, ...],
        plan: Plan,
        build: Callable[[WalkBuilder], Statement],
        parameters: dict[str, Any],
    ) -> tuple[bool, int, list[Found]]:
        result = self._execute(kind, plan, build, parameters)
        names, rows = list(result.keys()), result.all()
        usable, walked, holds = map(names.index, ("usable", "walked", "holds"))
        if not rows[0][usable]:
            look(self.database, self.connection)
        found = [row for row in rows if row[0] is not None]
        is_right = bool(rows[0][usable]) and all(row[holds] for row in found)
        sessions = paging.collected(names, found) if is_right else []
        return is_right, int(rows[0][walked]), sessions

    def _execute(
        self,
        kind: tuple[Any, ...],
        plan: Plan,
        build: Callable[[WalkBuilder], Statement],
        parameters: dict[str, Any],
    ) -> Result[Any]:
        kind = (*kind, plan.shape)
        query = self.queries.built(kind, plan.condition, WalkBuilder, build, parameters)
        return self.connection.execute(*query)

"""Builds SQL statements for the shapes of conditions.

One condition drives: the most selective one by its kind, read through the covering index. The
others are looked up by primary key, one correlated subquery each, which no planner turns into a
join. So the plan is the same with and without statistics, and when PostgreSQL uses a generic plan.
"""

from __future__ import annotations

import operator as op
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    FromClause,
    LargeBinary,
    String,
    Table,
    and_,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
    true,
    union_all,
)

from agents_session_metadata.dialects._dialect import Statement, literal_number, literal_parameter
from agents_session_metadata.values import LIST, SEARCH_KEY_BYTES

from .conditions import UNLIMITED, TimeBound, bytes_parameter
from .details import Details, first_message
from .logic import (
    IN_ORDER,
    NO_DRIVER,
    SELECTIVE,
    Condition,
    Context,
    Id,
    Parameters,
    Truth,
    best_of,
)
from .ordering import Ordering

MISSING = {False: b"\xff", True: b""}
"""The search key of a session without the key, by `descending`. Both sort last."""
NAME = "c"
"""The root name of a condition. The names of its parts and parameters begin with it."""


@dataclass(frozen=True)
class Source:
    """The rows to read, one per session. If `selective`, few sessions are expected to match.

    `sessions` is what has the times of the sessions.
    """

    rows: FromClause
    session_id: Id
    conditions: tuple[Truth, ...]
    selective: bool
    sessions: FromClause

    def select(self, *columns: Any) -> Statement:
        return select(*columns).select_from(self.rows).where(*self.conditions)


@dataclass(frozen=True)
class SortTerm:
    """A sort criterion, selected as `label`.

    `after` is the parameter for the value at a position. Not every database can sort by a whole
    long value, so ORDER BY uses `sorted_by`.
    """

    label: str
    column: ColumnElement[Any]
    descending: bool
    after: BindParameter[Any]
    sorted_by: Sequence[ColumnElement[Any]]

    def compared(self, compare: Callable[[Any, Any], Any]) -> Truth:
        compared: Truth = compare(self.column, self.after)
        return compared


class Builder:
    """Builds statements for the shape of a condition. Keys and values stay parameters."""

    def __init__(self, context: Context, condition: Condition) -> None:
        self._context = context
        self._dialect = context.dialect
        self._tables = context.tables
        self._sessions = context.tables.sessions
        self._condition = condition

    def parameters(self) -> Parameters:
        return self._condition.parameters(NAME, self._dialect)

    def find(self) -> Statement:
        source = self._to_sort(self.source(sessions=True))
        own_id, (_, order) = self._context.sorted_id(source.session_id), self._time(source)
        return source.select(source.session_id).order_by(order.desc(), own_id.desc())

    def count(self) -> Statement:
        return self.source().select(func.count())

    def ids(self, *, walk: bool) -> Statement:
        source = self.source(walk=walk)
        statement = source.select(source.session_id).order_by(source.session_id)
        if walk:
            statement = statement.where(source.session_id > bindparam("after_id", type_=String))
        return statement.limit(literal_parameter("limit"))

    def page(
        self,
        ordering: Ordering,
        *,
        beyond: bool,
        pieces: int,
        details: Details,
        few: bool = False,
    ) -> Statement:
        source = self.source(sessions=True, walk=ordering.native and beyond, few=few)
        if ordering.time is not None:
            source = self._to_sort(source)
        columns = self._info_columns(source, details)
        terms = list(self._by_columns(ordering, source))
        if ordering.key is not None:
            source, by_key = self._ordered_by_key(source, pieces, descending=ordering.descending)
            terms = [*by_key, *terms]
        columns.extend(term.column.label(term.label) for term in terms[:-1])
        inner = source.select(*columns).order_by(*directed(terms)).limit(literal_parameter("limit"))
        if beyond:
            inner = inner.where(after_position(terms))
            if self._is_of_all and ordering.column in ("updated_at", "created_at"):
                column = self._sessions.c[ordering.column]
                inner = inner.where(self._dialect.reaches(column, descending=ordering.descending))
        old = self._is_old(descending=ordering.descending) if few and not beyond else None
        beside = self._counted(old) if few else None
        return self._with_metadata(inner, terms, details, native=ordering.native, beside=beside)

    def last(self, *, details: Details, few: bool = False) -> Statement:
        source = self.source(sessions=True, few=few)
        if self._is_of_all:
            times = self._sessions.alias("times").c.updated_at
            newest = self._sessions.c.updated_at >= select(func.max(times)).scalar_subquery()
            source = replace(source, conditions=(newest,))
        beside = self._counted(self._is_old(descending=True)) if few else None
        newest = self._newest_of(source, details)
        return self._with_metadata(newest, (), details, beside=beside)

    def _newest_of(self, source: Source, details: Details) -> Statement:
        columns = self._info_columns(source, details)
        updated, order = self._time(source)
        rank = func.rank().over(order_by=order.desc()).label("rank")
        ranked = source.select(*columns, updated.label("position"), rank).subquery("ranked")
        return (
            select(*(column for column in ranked.c if column.name != "rank"))
            .where(ranked.c.rank == 1)
            .order_by(
                self._newest_message(ranked).desc(),
                self._context.sorted_id(ranked.c.session_id).desc(),
            )
            .limit(literal_number(1))
        )

    def _newest_message(self, rows: FromClause) -> ColumnElement[int]:
        messages = self._tables.messages
        newest = select(func.max(messages.c.id)).where(messages.c.session_id == rows.c.session_id)
        return func.coalesce(newest.correlate(rows).scalar_subquery(), 0)

    def last_of_each(self) -> Statement:
        """Selects the ids of the last sessions of each scalar value, as `last` finds them."""
        source = self.source(sessions=True)
        values = self._tables.metadata.alias("of_each")
        whole_rest = self._dialect.whole(values.c.search_rest).label("search_rest")
        updated, order = self._time(source)
        ranked = (
            select(
                source.session_id.label("session_id"),
                values.c.search_key,
                whole_rest,
                updated.label("position"),
                func.rank()
                .over(partition_by=[values.c.search_key, whole_rest], order_by=order.desc())
                .label("rank"),
            )
            .select_from(self._joined(source.rows, values, source.session_id, selective=True))
            .where(
                *source.conditions,
                values.c.key == bindparam("each_key", type_=String),
                values.c.search_key < LIST,
            )
            .subquery("ranked")
        )
        newest = self._newest_message(ranked).label("newest")
        tied = select(*ranked.c, newest).where(ranked.c.rank == 1).subquery("tied")
        own_id = self._context.sorted_id(tied.c.session_id)
        number = func.row_number().over(
            partition_by=[tied.c.search_key, tied.c.search_rest],
            order_by=[tied.c.newest.desc(), own_id.desc()],
        )
        each = select(*tied.c, number.label("number")).subquery("each")
        return (
            select(each.c.session_id)
            .where(each.c.number == 1)
            .order_by(
                each.c.position.desc(),
                each.c.newest.desc(),
                self._context.sorted_id(each.c.session_id).desc(),
            )
            .limit(literal_parameter("limit"))
        )

    def count_values(self, pieces: int) -> Statement:
        counts = [
            counted
            for table in (self._tables.metadata, self._tables.elements)
            for counted in self._counts(table)
        ]
        each = union_all(*counts).subquery("each")
        number = func.sum(each.c.number)
        return (
            select(each.c.search_key, each.c.search_rest, number)
            .group_by(each.c.search_key, each.c.search_rest)
            .order_by(
                number.desc(), each.c.search_key, *self._sorted_by(each.c.search_rest, pieces)
            )
            .limit(literal_parameter("limit"))
        )

    def _counts(self, table: Table) -> Iterator[Statement]:
        values = table.alias("counted")
        source = self.source(default=values)
        wanted = [values.c.key == bindparam("counted_key", type_=String)]
        if table is self._tables.metadata:
            wanted.append(values.c.search_key < LIST)
        rows = source.rows
        if rows is not values:
            rows = self._joined(rows, values, source.session_id, selective=source.selective)
        # Only a search key that fills its column needs the rest, which no index has.
        length = func.length(values.c.search_key)
        whole = literal(b"", LargeBinary)
        for of_length, rest in (
            (length < SEARCH_KEY_BYTES, whole),
            (length == SEARCH_KEY_BYTES, values.c.search_rest),
        ):
            grouped = [values.c.search_key] if rest is whole else [values.c.search_key, rest]
            yield (
                select(values.c.search_key, rest.label("search_rest"), func.count().label("number"))
                .select_from(rows)
                .where(*source.conditions, *wanted, of_length)
                .group_by(*grouped)
            )

    def _info_columns(self, source: Source, details: Details) -> list[Any]:
        sessions, messages, moment = source.sessions, self._tables.messages, self._dialect.moment
        session_id: Any = source.session_id
        columns = [
            session_id.label("session_id"),
            moment.of(sessions.c.created_at).label("created_at"),
            moment.of(sessions.c.updated_at).label("updated_at"),
        ]
        if details.count_items:
            count = select(func.count()).where(messages.c.session_id == session_id)
            columns.append(count.correlate(session_id.table).scalar_subquery().label("item_count"))
        if details.newest_item:
            newest = select(messages.c.id).where(messages.c.session_id == session_id)
            newest = newest.order_by(messages.c.created_at.desc(), messages.c.id.desc())
            newest = newest.limit(literal_number(1)).correlate(session_id.table)
            columns.append(newest.scalar_subquery().label("newest_item"))
        return columns

    def _with_metadata(
        self,
        inner: Statement,
        terms: Sequence[SortTerm],
        details: Details,
        *,
        native: bool = False,
        beside: FromClause | None = None,
    ) -> Statement:
        """Adds the metadata of each session, read by primary key.

        With a preview, each session has a second row with the beginning of its first user message.
        The columns of `beside`, which has one row, are added to every row. Without a session, only
        that row is returned.
        """
        if details.keys == () and beside is None and not details.preview:
            return inner
        page = inner.subquery("page")
        if details.preview:
            page = _twice(page)
        columns: list[Any] = list(page.c)
        joined: FromClause = page
        if beside is not None:
            columns += beside.c
            joined = beside.outerjoin(page, true())
        if details.preview:
            message = first_message(self._tables, self._dialect, page)
            columns.append(case((page.c.again == literal_number(1), message)).label("message"))
        if details.keys != ():
            rows = self._tables.metadata
            same = rows.c.session_id == page.c.session_id
            if details.keys:
                same = and_(same, self._dialect.one_of(rows.c.key, "keys", len(details.keys)))
            if details.preview:
                same = and_(same, page.c.again == literal_number(0))
            columns += [rows.c.key, rows.c.value.label("value")]
            joined = joined.outerjoin(rows, same)
        statement = select(*columns).select_from(joined)
        if not terms:
            return statement
        ordered = [page.c[term.label] for term in terms[:-1]]
        ordered.append(self._context.sorted_id(page.c.session_id, native=native))
        moved = [
            replace(term, column=column, sorted_by=self._sorted_by(column, len(term.sorted_by)))
            for term, column in zip(terms, ordered, strict=True)
        ]
        return statement.order_by(*directed(moved))

    # ---- orders ----

    @property
    def _is_of_all(self) -> bool:
        return not any(self._condition.conjunction(NAME))

    def _time(
        self, source: Source, name: str = "updated_at"
    ) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        """Returns a time of the sessions, and the expression to sort by.

        An SQL index serves only pages of all sessions. To find the few that a condition matches, a
        planner could read all sessions in the order of the index.
        """
        column = source.sessions.c[name]
        if self._is_of_all:
            return self._dialect.stored_time.of(column), column
        time = self._dialect.stored_time.of(self._dialect.unindexed(column))
        return time, time

    def _by_columns(self, ordering: Ordering, source: Source) -> Iterator[SortTerm]:
        by_key = ordering.key is not None
        if ordering.time is not None:
            time, order = self._time(source, ordering.time)
            after = bindparam("after_time", type_=self._dialect.stored_time)
            yield SortTerm("position", time, by_key or ordering.descending, after, [order])
        own_id = self._context.sorted_id(source.session_id, native=ordering.native)
        after_id = bindparam("after_id", type_=String)
        yield SortTerm("id", own_id, ordering.descending and not by_key, after_id, [own_id])

    def _ordered_by_key(
        self, source: Source, pieces: int, *, descending: bool
    ) -> tuple[Source, list[SortTerm]]:
        rows = self._tables.metadata.alias("ordered")
        same = and_(
            self._by_key(rows.c.session_id, source.session_id, selective=source.selective),
            rows.c.key == bindparam("order_key", type_=String),
        )
        # A session without the key comes last: its marker is below or above every search key.
        marker = literal(MISSING[descending], LargeBinary)
        search = func.coalesce(rows.c.search_key, marker)
        rest = func.coalesce(rows.c.search_rest, literal(b"", LargeBinary))
        by_rest = self._sorted_by(rest, pieces)
        terms = [
            SortTerm("position_key", search, descending, bytes_parameter("after_key"), [search]),
            SortTerm("position_rest", rest, descending, bytes_parameter("after_rest"), by_rest),
        ]
        return replace(source, rows=source.rows.outerjoin(rows, same)), terms

    def _sorted_by(self, column: ColumnElement[Any], pieces: int) -> list[ColumnElement[Any]]:
        if pieces == 1:
            return [column]
        length = self._dialect.sorted_bytes
        return [
            func.substr(column, 1 + piece * length, length, type_=LargeBinary)
            for piece in range(pieces)
        ]

    def _within(self, rows: FromClause) -> Iterator[Truth]:
        """Yields rough limits of the time. The exact conditions are checked for each session."""
        for name, part in self._condition.conjunction(NAME):
            if isinstance(part, TimeBound) and part.column == "updated_at":
                high = part.operator in ("$lt", "$lte")
                moment = bindparam(name, type_=self._dialect.moment)
                limit = self._dialect.outer_limit(moment, high=high)
                yield (op.le if high else op.ge)(rows.c.updated_at, limit)

    # ---- where the ids come from ----

    def source(
        self,
        *,
        sessions: bool = False,
        walk: bool = False,
        default: FromClause | None = None,
        few: bool = False,
    ) -> Source:
        """Chooses the rows that drive, and turns every other condition into one on their ids.

        With `walk`, rows come in the order of their ids. `default` is read if no condition is worth
        driving. Without it, that is the sessions table. With `few`, nothing is read if there are
        more rows to drive than the parameter of that name.
        """
        parts = dict(self._condition.conjunction(NAME))
        sessions = sessions or any(part.uses_times for part in parts.values())
        best_name, best = best_of(parts.items())
        selective = best.rank <= SELECTIVE
        rows: FromClause = self._sessions if sessions or default is None else default
        truths: list[Truth] = []
        if best.rank < NO_DRIVER and not (walk and best.rank > IN_ORDER):
            rows, conditions, exact = best.driver(best_name, self._context)
            truths.extend(conditions)
            if exact:
                del parts[best_name]
        session_id: Id = rows.c.session_id
        driver = rows
        if few:
            # As a table of one row, which every planner reads first. MariaDB would check a
            # condition for each row.
            counted = self._counted()
            rows = rows.join(counted, counted.c.more.is_(None))
        if sessions and driver is not self._sessions:
            rows = self._joined(rows, self._sessions, session_id, selective=selective)
        truths.extend(part.truth(name, self._context, session_id) for name, part in parts.items())
        return Source(rows, session_id, tuple(truths), selective=selective, sessions=self._sessions)

    def _to_sort(self, source: Source) -> Source:
        """Returns the rows of a condition as they are to be sorted by a time of the sessions."""
        if source.session_id is self._sessions.c.session_id:
            return source
        times = (self._sessions.c.created_at, self._sessions.c.updated_at)
        found = self._dialect.found_first(source.select(source.session_id, *times))
        if found is None:
            return source
        return Source(found, found.c.session_id, (), selective=source.selective, sessions=found)

    def _counted(self, old: ColumnElement[int] | None = None) -> FromClause:
        """A row with `more`, which is NULL if there are at most `few` rows to drive, else `old`."""
        name, best = best_of(self._condition.conjunction(NAME))
        one = literal_number(1).label("one")
        found = [
            select(one).select_from(rows).where(*conditions)
            for rows, conditions, _ in best.drivers(name, self._context)
        ]
        if len(found) > 1:
            # Each of them is limited: a union can be read as a whole before its limit applies.
            most = literal_parameter("most")
            parts = (select(each.limit(most).subquery().c.one) for each in found)
            found = [select(union_all(*parts).subquery("parts").c.one)]
        over = found[0].limit(literal_number(1)).offset(literal_parameter("few")).subquery("over")
        more = select(literal_number(0) if old is None else old).select_from(over)
        return select(more.scalar_subquery().label("more")).subquery("few")

    def _is_old(self, *, descending: bool) -> ColumnElement[int] | None:
        """Returns 1 if all sessions of a sample are beyond the reach of a walk, else 0.

        The sample is of the last ids, which are the newest if ids have the order of their creation.
        """
        name, best = best_of(self._condition.conjunction(NAME))
        if best.rank > IN_ORDER:
            return None
        rows, conditions, _ = best.driver(name, self._context)
        times, others = self._sessions.alias("times"), self._sessions.alias("others")
        own_id, time = rows.c.session_id, others.c.updated_at
        ids = select(own_id).where(*conditions).limit(literal_parameter("sample"))
        sample = ids.order_by(own_id.desc() if descending else own_id).subquery("sample")
        first = (func.max if descending else func.min)(times.c.updated_at)
        nearest = select(first).select_from(
            self._joined(sample, times, sample.c.session_id, selective=True)
        )
        last = select(time).where(*self._within(others)).limit(literal_number(1))
        last = last.order_by(time.desc() if descending else time)
        ends = last.offset(literal_parameter("reach")).scalar_subquery()
        is_beyond = (op.lt if descending else op.gt)(nearest.scalar_subquery(), ends)
        return case((is_beyond, literal_number(1)), else_=literal_number(0))

    def truth(self, session_id: Id) -> Truth:
        """Returns a condition for statements that need not read the sessions table."""
        if not self._condition.uses_times:
            return self._condition.truth(NAME, self._context, session_id)
        own_id = self._sessions.c.session_id
        holds = self._condition.truth(NAME, self._context, own_id)
        session = (
            select(literal_number(1)).select_from(self._sessions).where(own_id == session_id, holds)
        )
        return session.correlate_except(self._sessions).exists()

    def _joined(
        self, rows: FromClause, table: FromClause, session_id: Any, *, selective: bool
    ) -> FromClause:
        return rows.join(table, self._by_key(table.c.session_id, session_id, selective=selective))

    def _by_key(self, key: Any, session_id: Any, *, selective: bool) -> Truth:
        by_key: Truth = self._dialect.looked_up(key, session_id) if selective else key == session_id
        return by_key


def _twice(page: FromClause) -> FromClause:
    """Returns each row twice: with 0 and with 1 as `again`."""
    both = union_all(select(literal_number(0).label("again")), select(literal_number(1))).subquery(
        "both"
    )
    rows = select(*page.c, both.c.again).select_from(page.join(both, true()))
    # Without a limit, MariaDB merges it into the statement, and sorts in a temporary table.
    return rows.limit(UNLIMITED).subquery("twice")


def directed(terms: Sequence[SortTerm]) -> list[Any]:
    return [
        column.desc() if term.descending else column.asc()
        for term in terms
        for column in term.sorted_by
    ]


def after_position(terms: Sequence[SortTerm]) -> Truth:
    """Returns `a >= x AND (a > x OR …)`, which every index can follow."""
    *before, last = terms
    beyond: Truth = last.compared(op.lt if last.descending else op.gt)
    for term in reversed(before):
        passed = term.compared(op.lt if term.descending else op.gt)
        reached = term.compared(op.le if term.descending else op.ge)
        beyond = and_(reached, or_(passed, beyond))
    return beyond

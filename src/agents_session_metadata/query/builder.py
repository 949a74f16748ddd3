"""From the shape of a condition to a statement.

One condition drives: the most selective one by its kind, read through the covering index. The
others are looked up by primary key, one correlated subquery each, which no planner turns into a
join; so the plan is the same with and without statistics, and when PostgreSQL settles on a generic
one.
"""

from __future__ import annotations

import operator as op
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    FromClause,
    Integer,
    LargeBinary,
    String,
    Table,
    and_,
    bindparam,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    true,
    union,
    union_all,
)

from agents_session_metadata.dialects._dialect import Dialect, Statement
from agents_session_metadata.storage.tables import SessionTables
from agents_session_metadata.values import LIST, SEARCH_KEY_BYTES, upper_bound

from . import filters as f
from .ordering import Ordering
from .shapes import (
    IN_ORDER,
    NO_DRIVER,
    SELECTIVE,
    conjunction,
    leaves,
    needs_sessions,
    rank_of,
    split_values,
    string_above,
)


@dataclass(frozen=True)
class Source:
    """Where the ids of matching sessions come from: one row a session, under conditions.

    Attributes:
        rows: The rows.
        session_id: The id in them.
        conditions: What must hold of them.
        selective: Whether they are taken to be few.
    """

    rows: FromClause
    session_id: ColumnElement[str]
    conditions: tuple[ColumnElement[bool], ...]
    selective: bool

    def select(self, *columns: Any) -> Statement:
        """A SELECT from these rows."""
        return select(*columns).select_from(self.rows).where(*self.conditions)


class Builder:
    """Builds one statement for the shape of a condition; its values are left as parameters."""

    def __init__(
        self,
        dialect: Dialect,
        tables: SessionTables,
        condition: f.Condition,
        *,
        native_ids: bool,
    ) -> None:
        self._dialect = dialect
        self._tables = tables
        self._sessions = tables.sessions
        self._native_ids = native_ids
        self._condition = condition
        found = list(leaves(condition))
        self._names = {id(leaf): f"c{number}" for number, leaf in enumerate(found)}
        if len(self._names) < len(found):
            raise ValueError("a part of a condition stands in two places of it")

    def find(self, limit: int | None) -> Statement:
        """Ids, most recently active first."""
        source = self.source(sessions=True)
        updated = self._dialect.stored_time(self._sessions.c.updated_at)
        order = updated.desc(), self._sorted_id(source.session_id).desc()
        return source.select(source.session_id).order_by(*order).limit(_constant(limit))

    def count(self) -> Statement:
        """The number."""
        return self.source().select(func.count())

    def ids(self, *, walk: bool, limit: int) -> Statement:
        """A page of ids."""
        source = self.source(walk=walk)
        statement = source.select(source.session_id).order_by(source.session_id)
        if walk:
            statement = statement.where(source.session_id > bindparam("after_id", type_=String))
        return statement.limit(_constant(limit))

    def page(
        self,
        ordering: Ordering,
        *,
        limit: int,
        beyond: bool,
        some_keys: int | None,
        count_items: bool,
    ) -> Statement:
        """A page of sessions with their metadata."""
        source = self.source(sessions=True, walk=ordering.native and beyond)
        columns = self._info_columns(source.session_id, count_items=count_items)
        by_time = ordering.column != "session_id"
        order: list[ColumnElement[Any]] = []
        if by_time:
            position = self._dialect.stored_time(self._sessions.c[ordering.column])
            columns.append(position.label("position"))
            order.append(position)
        order.append(self._sorted_id(source.session_id, native=ordering.native))
        inner = source.select(*columns).limit(_constant(limit))
        if beyond:
            inner = inner.where(self._beyond(order, descending=ordering.descending))
        inner = inner.order_by(*_directed(order, descending=ordering.descending))
        return self._with_metadata(inner, ordering, some_keys)

    def last(self, *, with_metadata: bool, count_items: bool) -> Statement:
        """The session that was active last."""
        source = self.source(sessions=True)
        columns = self._info_columns(source.session_id, count_items=count_items)
        updated = self._dialect.stored_time(self._sessions.c.updated_at)
        rank = func.rank().over(order_by=updated.desc()).label("rank")
        ranked = source.select(*columns, updated.label("position"), rank).subquery("ranked")
        messages = self._tables.messages
        newest = (
            select(func.max(messages.c.id))
            .where(messages.c.session_id == ranked.c.session_id)
            .correlate(ranked)
            .scalar_subquery()
        )
        inner = (
            select(*(column for column in ranked.c if column.name != "rank"))
            .where(ranked.c.rank == 1)
            .order_by(func.coalesce(newest, 0).desc(), self._sorted_id(ranked.c.session_id).desc())
            .limit(_constant(1))
        )
        newest_first = Ordering("updated_at", descending=True)
        return self._with_metadata(inner, newest_first, None if with_metadata else 0)

    def count_values(self, limit: int) -> Statement:
        """Sessions by scalar under a key."""
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
            .order_by(number.desc(), each.c.search_key, each.c.search_rest)
            .limit(_constant(limit))
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

    def _info_columns(self, session_id: Any, *, count_items: bool) -> list[Any]:
        sessions, messages, utc = self._sessions, self._tables.messages, self._dialect.utc
        columns = [
            session_id.label("session_id"),
            utc(sessions.c.created_at).label("created_at"),
            utc(sessions.c.updated_at).label("updated_at"),
        ]
        if count_items:
            count = select(func.count()).where(messages.c.session_id == session_id)
            columns.append(count.correlate(session_id.table).scalar_subquery().label("item_count"))
        return columns

    def _with_metadata(
        self, inner: Statement, ordering: Ordering, some_keys: int | None
    ) -> Statement:
        """Put the metadata of each session beside it, read by primary key."""
        if some_keys == 0:
            return inner
        page = inner.subquery("page")
        rows = self._tables.metadata
        same = rows.c.session_id == page.c.session_id
        if some_keys:
            same = and_(same, self._dialect.one_of(rows.c.key, "keys", some_keys))
        order: list[ColumnElement[Any]] = []
        if ordering.column != "session_id":
            order.append(page.c.position)
        order.append(self._sorted_id(page.c.session_id, native=ordering.native))
        return (
            select(page, rows.c.key, rows.c.value)
            .select_from(page.outerjoin(rows, same))
            .order_by(*_directed(order, descending=ordering.descending))
        )

    def _beyond(self, order: list[ColumnElement[Any]], *, descending: bool) -> ColumnElement[bool]:
        def passed(column: Any, value: Any) -> Any:
            return column < value if descending else column > value

        *by_time, by_id = order
        after_id = bindparam("after_id", type_=String)
        beyond: ColumnElement[bool] = passed(by_id, after_id)
        for position in by_time:
            after_time = bindparam("after_time", type_=self._dialect.stored_time_type())
            beyond = or_(passed(position, after_time), and_(position == after_time, beyond))
        return beyond

    def _sorted_id(
        self, session_id: ColumnElement[str], *, native: bool = False
    ) -> ColumnElement[str]:
        return self._dialect.by_code_point(session_id, native=native or self._native_ids)

    # ---- where the ids come from ----

    def source(
        self,
        *,
        sessions: bool = False,
        walk: bool = False,
        default: FromClause | None = None,
        condition: f.Condition | None = None,
    ) -> Source:
        """Choose what drives, and make of everything else a condition on its ids.

        Args:
            sessions: Whether columns of the sessions table are needed.
            walk: Whether only rows in the order of their ids will do.
            default: What to read when no condition is worth driving; the sessions by default.
            condition: A part of the condition, instead of all of it.
        """
        parts = list(conjunction(self._condition if condition is None else condition))
        sessions = sessions or any(map(needs_sessions, parts))
        driver = min(parts, key=rank_of, default=f.NOTHING)
        rank = rank_of(driver)
        rows: FromClause = self._sessions if sessions or default is None else default
        truths: list[ColumnElement[bool]] = []
        if isinstance(driver, (f.IdIn, f.IdHasPrefix)):
            rows = self._sessions
        elif rank < NO_DRIVER and not (walk and rank > IN_ORDER):
            if isinstance(driver, f.AnyOf):
                rows = self._any(driver)
            elif not isinstance(driver, (f.TimeBound, f.All, f.Not)):
                rows = self._table_of(driver).alias("driver")
                truths = [self._of_key(driver, rows), self._matches(driver, rows)]
                parts.remove(driver)
        session_id: ColumnElement[str] = rows.c.session_id
        if sessions and rows is not self._sessions:
            rows = self._joined(rows, self._sessions, session_id, selective=rank <= SELECTIVE)
        truths.extend(self.truth(part, session_id) for part in parts)
        return Source(rows, session_id, tuple(truths), selective=rank <= SELECTIVE)

    def _joined(
        self, rows: FromClause, table: FromClause, session_id: Any, *, selective: bool
    ) -> FromClause:
        key = table.c.session_id
        by_key = self._dialect.looked_up(key, session_id) if selective else key == session_id
        return rows.join(table, by_key)

    def _any(self, driver: f.AnyOf) -> FromClause:
        """The ids of sessions that the best condition of some part holds for."""
        branches = [
            self.source(condition=min(conjunction(part), key=rank_of)) for part in driver.parts
        ]
        ids = union(*(branch.select(branch.session_id) for branch in branches))
        return ids.subquery("candidates")

    def _table_of(self, condition: f.MetadataCondition) -> Table:
        of_list = isinstance(condition, f.Contains)
        return self._tables.elements if of_list else self._tables.metadata

    def _of_key(self, condition: f.MetadataCondition, rows: FromClause) -> ColumnElement[bool]:
        is_of_key: ColumnElement[bool] = rows.c.key == bindparam(
            f"{self._names[id(condition)]}_key", type_=String
        )
        return is_of_key

    # ---- whether a condition holds ----

    def truth(self, condition: f.Condition, session_id: ColumnElement[str]) -> ColumnElement[bool]:
        """A condition as SQL that is true or false, never unknown, for the session with this id."""
        if isinstance(condition, f.All):
            return and_(true(), *(self.truth(part, session_id) for part in condition.parts))
        if isinstance(condition, f.AnyOf):
            return or_(false(), *(self.truth(part, session_id) for part in condition.parts))
        if isinstance(condition, f.Not):
            return not_(self.truth(condition.part, session_id))
        if isinstance(condition, f.TimeBound):
            return self._time_bound(condition)
        if isinstance(condition, f.IdIn):
            name = self._names[id(condition)]
            return self._dialect.one_of(session_id, name, len(condition.ids))
        if isinstance(condition, f.IdHasPrefix):
            return self._id_has_prefix(condition, session_id)
        rows = self._table_of(condition).alias()
        of_key, matches = self._of_key(condition, rows), self._matches(condition, rows)
        by_range = self._dialect.probes_by_range and _is_of_one_short_value(condition)
        if by_range or isinstance(condition, f.Contains):
            own = rows.c.session_id == session_id
            if by_range:
                own = rows.c.session_id.between(session_id, session_id)
            # A subquery with a limit stays one; EXISTS would become a join.
            found = select(true()).where(own, of_key, matches).limit(_constant(1))
        else:
            found = select(matches).where(rows.c.session_id == session_id, of_key)
        looked_up = found.correlate(getattr(session_id, "table", None)).scalar_subquery()
        truth: ColumnElement[bool] = func.coalesce(looked_up, false())
        return truth

    def _matches(self, condition: f.MetadataCondition, rows: FromClause) -> ColumnElement[bool]:
        """A condition on the search key of a row that is known to be of the right key."""
        search, rest, name = rows.c.search_key, rows.c.search_rest, self._names[id(condition)]
        if isinstance(condition, f.Exists):
            return true()
        if isinstance(condition, (f.Equals, f.Contains)):
            whole, long = split_values(condition)
            options: list[ColumnElement[bool]] = [
                and_(search == _bytes(f"{name}_{index}"), rest == _bytes(f"{name}_{index}_rest"))
                for index in range(len(long))
            ]
            if len(whole) == 1:
                options.insert(0, search == _bytes(name))
            elif whole:
                options.insert(0, self._dialect.one_of(search, name, len(whole)))
            return or_(*options)
        if isinstance(condition, f.HasPrefix):
            begins, above = _bytes(name), _bytes(f"{name}_above")
            if condition.prefix.rest:
                return and_(search == begins, rest >= _bytes(f"{name}_rest"), rest < above)
            return and_(search >= begins, search < above)
        return and_(
            *_bounds(condition.low, name, condition.tag, search, rest, low=True),
            *_bounds(condition.high, name, upper_bound(condition.tag), search, rest, low=False),
        )

    def _id_has_prefix(
        self, condition: f.IdHasPrefix, session_id: ColumnElement[str]
    ) -> ColumnElement[bool]:
        name, by_code_point = self._names[id(condition)], self._sorted_id(session_id)
        bounds = [by_code_point >= bindparam(name, type_=String)]
        if string_above(condition.prefix) is not None:
            bounds.append(by_code_point < bindparam(f"{name}_above", type_=String))
        return and_(*bounds)

    def _time_bound(self, condition: f.TimeBound) -> ColumnElement[bool]:
        column = self._dialect.moment(self._sessions.c[condition.column])
        moment = bindparam(self._names[id(condition)], type_=self._dialect.moment_type())
        return {
            "$gt": column > moment,
            "$gte": column >= moment,
            "$lt": column < moment,
            "$lte": column <= moment,
        }[condition.operator]


def _is_of_one_short_value(condition: f.Condition) -> bool:
    """Whether a search key in the index is all that a condition has to look at."""
    if not isinstance(condition, (f.Equals, f.Contains)):
        return False
    whole, long = split_values(condition)
    return len(whole) == 1 and not long


def _bounds(
    end: f.Bound | None, name: str, limit: bytes, search: Any, rest: Any, *, low: bool
) -> list[ColumnElement[bool]]:
    """One end of a range of search keys; without one, the limit of their type."""

    def within(column: Any, value: Any, *, inclusive: bool) -> ColumnElement[bool]:
        operator = (op.ge if inclusive else op.gt) if low else (op.le if inclusive else op.lt)
        compared: ColumnElement[bool] = operator(column, value)
        return compared

    if end is None:
        return [within(search, literal(limit, LargeBinary), inclusive=low)]
    side = f"{name}_low" if low else f"{name}_high"
    indexed = _bytes(side)
    if end.value.is_whole:
        return [within(search, indexed, inclusive=end.inclusive)]
    further = within(rest, _bytes(f"{side}_rest"), inclusive=end.inclusive)
    return [
        within(search, indexed, inclusive=True),
        or_(within(search, indexed, inclusive=False), further),
    ]


def _bytes(name: str) -> BindParameter[bytes]:
    return bindparam(name, type_=LargeBinary)


def _directed(order: Sequence[ColumnElement[Any]], *, descending: bool) -> list[Any]:
    return [column.desc() if descending else column.asc() for column in order]


def _constant(number: int | None) -> ColumnElement[int] | None:
    """A number that is part of the statement's text: a planner should know a limit."""
    if number is None:
        return None
    return bindparam(None, number, Integer, literal_execute=True)

"""Totals of metadata over sessions, added up in the database; the ledger's are in `ledger`.

They are exact, and take constant memory.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Numeric,
    String,
    and_,
    case,
    cast,
    exists,
    func,
    literal,
    null,
    or_,
    select,
    true,
    type_coerce,
    union_all,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import NullType

from agents_session_metadata import keys
from agents_session_metadata.core.features import features
from agents_session_metadata.core.rows import decode_stored
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect, Statement
from agents_session_metadata.query.filters import Where
from agents_session_metadata.query.logic import Condition
from agents_session_metadata.query.ordering import Ordering
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.query.statements import Builder
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import Statistics, ToolStatistics
from agents_session_metadata.values import (
    LIST,
    NUMBER,
    STRING,
    decode_value,
    search_key,
    upper_bound,
)

_COUNTERS = (
    keys.RUNS,
    keys.REQUESTS,
    keys.INPUT_TOKENS,
    keys.OUTPUT_TOKENS,
    keys.TOTAL_TOKENS,
    keys.RUN_MS,
    keys.DURATION_MS,
    keys.ERROR_COUNT,
)
_PART = Decimal("1e-12")
_ZERO = search_key(0).indexed
MOST = 10**18
"""Counters from this number on, and negative ones, are left out."""
_DEAREST = 10**12
"""Costs from this number on, and negative ones, are left out."""
_MEDIAN, _P95 = 1, 2
_NEWEST = Ordering.parse("-created_at")
_LONGEST = timedelta.max // timedelta(milliseconds=1)


def statistics_statement(build: Builder, dialect: Dialect, tables: SessionTables) -> Statement:
    """Returns a statement whose rows have a kind, a name and two numbers.

    The kinds are `sessions`, `status` by name, `count` by key, `cost`, `tool` by name with calls
    and milliseconds, `resumed` with the number of completed ones, `with_errors`, and `duration`
    with bits that say which rank it has.
    """
    rows = tables.metadata.alias("counted")
    source = build.source(default=rows)

    def of_key(
        key: str | Sequence[str],
        tag: bytes,
        columns: Sequence[ColumnElement[Any]],
        joined: FromClause | None = None,
    ) -> Statement:
        base = source.rows
        if base is not rows:
            base = base.join(rows, rows.c.session_id == source.session_id)
        if joined is not None:
            base = base.join(joined, true())
        least, above = tag, upper_bound(tag)
        if tag == NUMBER:
            most = _DEAREST if key == keys.COST else MOST
            least, above = _ZERO, search_key(most).indexed
        of_type = rows.c.search_key >= least, rows.c.search_key < above
        under = rows.c.key == key if isinstance(key, str) else rows.c.key.in_(key)
        return select(*columns).select_from(base).where(*source.conditions, under, *of_type)

    by_status = _part("status", func.min(rows.c.value), func.count())
    cost = _part("cost", literal(keys.COST, String), *dialect.exact_sum(rows.c.value))
    calls = dialect.triples(rows.c.value)
    called = [calls.name.label("name"), calls.first.label("first"), calls.second.label("second")]
    text = dialect.by_code_point(rows.c.value, native=False)
    whole = ~text.contains(".") & ~text.contains("e")
    ranks = [
        rows.c.value.label("value"),
        func.row_number().over(order_by=rows.c.search_key).label("rank"),
        func.count().over().label("number"),
    ]
    # One SELECT for all: each one repeats the condition, which may have thousands of values.
    count = _part("count", rows.c.key, *dialect.whole_sum(rows.c.value))
    status = tables.metadata.alias("status")
    is_completed = exists().where(
        status.c.session_id == rows.c.session_id,
        status.c.key == keys.STATUS,
        status.c.search_key == search_key("completed").indexed,
    )
    completed = func.sum(case((is_completed.correlate(rows), 1), else_=0))
    resumed = _part("resumed", null(), func.count(), completed)
    with_errors = _part("with_errors", null(), func.count())
    at_least_one = rows.c.search_key >= search_key(1).indexed
    return union_all(
        build.source(sessions=True).select(*_part("sessions", null(), func.count())),
        of_key(keys.STATUS, STRING, by_status).group_by(rows.c.search_key, rows.c.search_rest),
        of_key(keys.COST, NUMBER, cost),
        _by_tool(
            of_key(keys.TOOL_CALLS, LIST, called, calls.rows).where(
                calls.first.between(0, _DEAREST), calls.second.between(0, _DEAREST)
            )
        ),
        of_key(keys.RESUMES, NUMBER, resumed).where(at_least_one),
        of_key(keys.ERROR_COUNT, NUMBER, with_errors).where(at_least_one),
        _ranked(of_key(keys.DURATION_MS, NUMBER, ranks).where(whole)),
        of_key(_COUNTERS, NUMBER, count).where(whole).group_by(rows.c.key),
    )


def _by_tool(calls: Statement) -> Statement:
    # MariaDB groups by a column only, if sql_mode has ONLY_FULL_GROUP_BY.
    called = calls.subquery("called").c
    tools = _part("tool", called.name, func.sum(called.first), func.sum(called.second))
    return select(*tools).group_by(called.name)


def nearest_rank(ordered: Sequence[int], percent: int) -> int | None:
    return ordered[max(-(-len(ordered) * percent // 100), 1) - 1] if ordered else None


def _ranked(values: Statement) -> Statement:
    """Selects the median and the 95th percentile of ranked values, as `nearest_rank` does."""
    ranked = values.subquery("ranked")
    rank, number = ranked.c.rank, ranked.c.number
    is_median, is_p95 = (
        and_(rank * 100 >= number * percent, (rank - 1) * 100 < number * percent)
        for percent in (50, 95)
    )
    which = case((is_median, _MEDIAN), else_=0) + case((is_p95, _P95), else_=0)
    return select(*_part("duration", null(), ranked.c.value, which)).where(or_(is_median, is_p95))


async def read_statistics(store: ScopedStore, condition: Condition) -> Statistics:
    """Raises `CorruptMetadataError` if a value that is counted or added is not valid JSON."""
    database = store.database

    def build(builder: Builder) -> Statement:
        return statistics_statement(builder, database.dialect, database.tables)

    def read(connection: Connection, queries: Queries) -> Statistics:
        try:
            query = queries.built(("statistics",), condition, Builder, build)
            found = _to_statistics(connection.execute(*query).all())
        except (DBAPIError, ValueError):
            connection.rollback()
            _check_values(connection, queries, condition)
            raise
        for feature in features():
            if feature.count is not None and database.has_tables(connection, feature.name):
                found.feedback.update(feature.count(database, connection, queries, condition))
        return found

    return await database.read(read)


def _check_values(connection: Connection, queries: Queries, condition: Condition) -> None:
    """Raises `CorruptMetadataError` if a counted or added value is not valid JSON."""
    values = queries.tables.metadata.c
    names = (*_COUNTERS, keys.COST, keys.TOOL_CALLS, keys.STATUS)
    added = select(values.session_id, values.key, values.value).where(values.key.in_(names))
    found: Any = connection.execute(*queries.where(added, condition, values.session_id))
    for session_id, key, text in found:
        decode_stored(session_id, key, text)


def _to_statistics(rows: Iterable[Any]) -> Statistics:
    totals: dict[str, int] = dict.fromkeys(_COUNTERS, 0)
    by_status: dict[str, int] = {}
    tools: dict[str, ToolStatistics] = {}
    found: dict[str, Any] = {"cost": Decimal(0), "duration_median": None, "duration_p95": None}
    for kind, stored_name, first, second in rows:
        name = stored_name.decode() if isinstance(stored_name, bytes) else stored_name
        number, more = Decimal(first or 0), Decimal(second or 0)
        if kind == "duration":
            for bit, rank in ((_MEDIAN, "duration_median"), (_P95, "duration_p95")):
                if int(more) & bit:
                    found[rank] = _duration(int(number))
        elif kind == "status":
            by_status[decode_value(name)] = int(number)
        elif kind == "count":
            totals[name] = int(number * 10**9 + more)
        elif kind == "cost":
            found["cost"] = (number + more * _PART).normalize() + 0
        elif kind == "tool":
            if name is not None:
                tools[name] = ToolStatistics(int(number), _duration(int(more)))
        else:
            found[kind] = int(number)
            if kind == "resumed":
                found["resumed_completed"] = int(more)
    found["run_duration"] = _duration(totals.pop(keys.RUN_MS))
    found["duration"] = _duration(totals.pop(keys.DURATION_MS))
    found["errors"] = totals.pop(keys.ERROR_COUNT)
    # The other counters are stored under the names of their fields.
    found.update(totals)
    return Statistics(by_status=by_status, tools=tools, **found)


def _duration(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=min(milliseconds, _LONGEST))


def _part(kind: str, name: Any, first: Any, second: Any = None) -> list[ColumnElement[Any]]:
    """Types the columns of one kind of row, so that all kinds fit together."""

    def number(value: Any) -> ColumnElement[Any]:
        # The driver's own number: a result type would make floats of large ones.
        return type_coerce(cast(value, Numeric(65, 12)), NullType())

    return [
        literal(kind, String).label("kind"),
        type_coerce(name, String).label("name"),
        number(first).label("first"),
        number(null() if second is None else second).label("second"),
    ]


@dataclass
class Day:
    """The sessions that were created on one day, in UTC.

    `durations` are those of finished sessions, in milliseconds, in ascending order.
    """

    sessions: int = 0
    failed: int = 0
    runs: int = 0
    durations: list[int] = field(default_factory=list)


class Daily(NamedTuple):
    """`days` contains no days without sessions.

    It is `complete` if all sessions were read, not only the newest ones.
    """

    days: Mapping[date, Day]
    complete: bool


async def read_daily(
    store: ScopedStore, where: Where | None, *, since: datetime, most: int
) -> Daily:
    """Adds up the newest `most` sessions that were created since a time, in one statement.

    Values of another type, or that are not valid JSON, are left out.
    """
    after = {"$created_at": {"$gte": since.isoformat()}}
    condition = store.condition({"$and": [where, after]} if where else after)

    def read(connection: Connection, queries: Queries) -> list[Any]:
        page, parameters = queries.page(condition, _NEWEST, limit=most + 1, keys=[])
        recent = page.subquery("recent")
        columns: list[Any] = [recent.c.created_at]
        joined: Any = recent
        for key in (keys.STATUS, keys.RUNS, keys.DURATION_MS):
            values = queries.tables.metadata.alias(f"of_{key}")
            same = and_(values.c.session_id == recent.c.session_id, values.c.key == key)
            joined = joined.outerjoin(values, same)
            columns.append(values.c.value)
        return list(connection.execute(select(*columns).select_from(joined), parameters))

    rows = await store.database.read(read)
    days: dict[date, Day] = {}
    for created, *values in rows[:most]:
        status, runs, duration = map(_decoded, values)
        day = days.setdefault(created.date(), Day())
        day.sessions += 1
        day.failed += status == "failed"
        day.runs += runs if _is_count(runs) else 0
        if _is_count(duration):
            insort(day.durations, duration)
    return Daily(days, len(rows) <= most)


def _decoded(text: str | None) -> Any:
    try:
        return None if text is None else decode_value(text)
    except ValueError:
        return None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


def read_values(
    store: ScopedStore,
    connection: Connection,
    queries: Queries,
    ids: Sequence[str],
    names: Sequence[str],
) -> Iterator[tuple[str, Any, int]]:
    """Yields keys, their values (None for invalid JSON) and the number of sessions with each."""
    if not ids:
        return
    rows, dialect = queries.tables.metadata, queries.dialect
    count = min(len(ids), dialect.many + 1)
    statement: Any = select(rows.c.key, rows.c.value).where(
        dialect.one_of(rows.c.session_id, "ids", count), rows.c.key.in_(names)
    )
    statement, parameters = store.question(queries, statement, rows.c.session_id)
    parameters = {**parameters, **dialect.list_parameters("ids", ids)}
    found = Counter(map(tuple, connection.execute(statement, parameters)))
    for (key, text), number in found.items():
        yield key, _decoded(text), number

"""Totals over sessions, added exactly; values of keys."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    String,
    and_,
    cast,
    func,
    literal,
    select,
    union_all,
)

from agents_session_metadata import keys
from agents_session_metadata.core.rows import decode_stored
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Statement
from agents_session_metadata.query.filters import Where
from agents_session_metadata.query.logic import Condition
from agents_session_metadata.query.ordering import Ordering
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.query.statements import Builder
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import Statistics, ToolStatistics
from agents_session_metadata.values import decode_value

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
_READ = (*_COUNTERS, keys.COST, keys.RESUMES, keys.STATUS, keys.TOOL_CALLS)
MOST = 10**18
"""Counters from this number on, and negative ones, are left out."""
_DEAREST = 10**12
"""Costs from this number on, and negative ones, are left out."""
_NEWEST = Ordering.parse("-created_at")
_LONGEST = timedelta.max // timedelta(milliseconds=1)


def statistics_statement(build: Builder, tables: SessionTables) -> Statement:
    """Returns a statement of keys, values and session ids, and of `sessions` with their number."""
    rows = tables.metadata.alias("counted")
    source = build.source(default=rows)
    base = source.rows
    if base is not rows:
        base = base.join(rows, rows.c.session_id == source.session_id)
    values = select(rows.c.key, rows.c.value, rows.c.session_id).select_from(base)
    count = literal("sessions", String), cast(func.count(), String(20)), literal("", String)
    return union_all(
        values.where(*source.conditions, rows.c.key.in_(_READ)),
        build.source(sessions=True).select(*count),
    )


def nearest_rank(ordered: Sequence[int], percent: int) -> int | None:
    return ordered[max(-(-len(ordered) * percent // 100), 1) - 1] if ordered else None


def read_statistics(connection: Connection, queries: Queries, condition: Condition) -> Statistics:
    """Raises `CorruptMetadataError` if a value is not valid JSON."""
    query = queries.statistics(condition, lambda build: statistics_statement(build, queries.tables))
    totals: Counter[str] = Counter()
    by_status: Counter[str] = Counter()
    cost = Decimal(0)
    durations: list[int] = []
    tools: dict[str, list[int]] = {}
    at_least_one: dict[str, set[str]] = {keys.RESUMES: set(), keys.ERROR_COUNT: set()}
    completed: set[str] = set()
    for key, text, session_id in connection.execute(*query):
        value: Any = decode_stored(session_id, key, text)
        if key == keys.TOOL_CALLS:
            _add_calls(tools, value)
        elif key == keys.STATUS and isinstance(value, str):
            by_status[value] += 1
            if value == "completed":
                completed.add(session_id)
        elif type(value) not in (int, float) or not 0 <= value < MOST:
            continue
        elif key == keys.COST:
            cost += Decimal(repr(value)) if value < _DEAREST else 0
        else:
            if value >= 1 and key in at_least_one:
                at_least_one[key].add(session_id)
            if type(value) is int:
                totals[key] += value
                durations += [value] if key == keys.DURATION_MS else []
    resumed = at_least_one[keys.RESUMES]
    durations.sort()
    median, p95 = (nearest_rank(durations, percent) for percent in (50, 95))
    return Statistics(
        sessions=totals["sessions"],
        by_status=dict(by_status),
        runs=totals[keys.RUNS],
        requests=totals[keys.REQUESTS],
        input_tokens=totals[keys.INPUT_TOKENS],
        output_tokens=totals[keys.OUTPUT_TOKENS],
        total_tokens=totals[keys.TOTAL_TOKENS],
        cost=cost.normalize() + 0,
        run_duration=_duration(totals[keys.RUN_MS]),
        duration=_duration(totals[keys.DURATION_MS]),
        errors=totals[keys.ERROR_COUNT],
        tools={tool: ToolStatistics(calls, _duration(ms)) for tool, (calls, ms) in tools.items()},
        resumed=len(resumed),
        resumed_completed=len(resumed & completed),
        with_errors=len(at_least_one[keys.ERROR_COUNT]),
        duration_median=None if median is None else _duration(median),
        duration_p95=None if p95 is None else _duration(p95),
    )


def _add_calls(tools: dict[str, list[int]], entries: Any) -> None:
    """Adds `[tool, calls, milliseconds]`. Entries of another form are left out."""
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str):
            total = tools.setdefault(entry[0], [0, 0])
            for place, added in enumerate(entry[1:]):
                total[place] += added if _is_count(added) else 0


def _duration(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=min(milliseconds, _LONGEST))


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

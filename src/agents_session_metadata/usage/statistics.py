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
    ColumnElement,
    Connection,
    Integer,
    LargeBinary,
    String,
    and_,
    exists,
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
from agents_session_metadata.values import (
    LIST,
    SearchKey,
    decode_scalar,
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
_COUNTED = (*_COUNTERS, keys.COST, keys.RESUMES, keys.STATUS)
MOST = 10**18
"""Counters from this number on, and negative ones, are left out."""
_DEAREST = 10**12
"""Costs from this number on, and negative ones, are left out."""
_NEWEST = Ordering.parse("-created_at")
_LONGEST = timedelta.max // timedelta(milliseconds=1)


def statistics_statement(build: Builder, tables: SessionTables) -> Statement:
    """Returns a statement whose rows have a key, a number of sessions and the value of the key.

    The value is a search key, or the id of a session and the JSON text of its tool calls. Rows
    without a value are `sessions` and `resumed_completed`.
    """
    rows = tables.metadata.alias("counted")
    source = build.source(default=rows)
    base = source.rows
    if base is not rows:
        base = base.join(rows, rows.c.session_id == source.session_id)
    key, search, rest = rows.c.key, rows.c.search_key, rows.c.search_rest
    no_text, no_bytes = literal("", String), literal(b"", LargeBinary)

    def of_key(columns: list[Any], *conditions: ColumnElement[bool]) -> Statement:
        return select(*columns).select_from(base).where(*source.conditions, *conditions)

    def number_of(name: str) -> list[Any]:
        return [literal(name, String), func.count(), no_bytes, no_bytes, no_text, no_text]

    status = tables.metadata.alias("status")
    is_completed = exists().where(
        status.c.session_id == rows.c.session_id,
        status.c.key == keys.STATUS,
        status.c.search_key == search_key("completed").indexed,
    )
    is_resumed = search.between(search_key(1).indexed, search_key(MOST - 1).indexed)
    counted = [key, func.count(), search, rest, no_text, no_text]
    calls = [key, literal(1, Integer), no_bytes, no_bytes, rows.c.value, rows.c.session_id]
    return union_all(
        of_key(counted, key.in_(_COUNTED), search < LIST).group_by(key, search, rest),
        of_key(calls, key == keys.TOOL_CALLS, search >= LIST, search < upper_bound(LIST)),
        of_key(
            number_of("resumed_completed"),
            key == keys.RESUMES,
            is_resumed,
            is_completed.correlate(rows),
        ),
        build.source(sessions=True).select(*number_of("sessions")),
    )


def nearest_rank(ordered: Sequence[int], percent: int) -> int | None:
    return ordered[max(-(-len(ordered) * percent // 100), 1) - 1] if ordered else None


def read_statistics(connection: Connection, queries: Queries, condition: Condition) -> Statistics:
    """Raises `CorruptMetadataError` if tool calls are not valid JSON."""
    query = queries.statistics(condition, lambda build: statistics_statement(build, queries.tables))
    totals: Counter[str] = Counter()
    cost = Decimal(0)
    by_status: dict[str, int] = {}
    durations: list[int] = []
    tools: dict[str, list[int]] = {}
    for key, number, search, rest, text, session_id in connection.execute(*query):
        if not search:
            if key == keys.TOOL_CALLS:
                _add_calls(tools, decode_stored(session_id, key, text))
            else:
                totals[key] = number
            continue
        value: Any = decode_scalar(SearchKey(bytes(search), bytes(rest)))
        if key == keys.STATUS:
            if isinstance(value, str):
                by_status[value] = number
        elif type(value) not in (int, float) or not 0 <= value < MOST:
            continue
        elif key == keys.COST:
            cost += Decimal(repr(value)) * number if value < _DEAREST else 0
        else:
            if value >= 1 and key in (keys.RESUMES, keys.ERROR_COUNT):
                totals[f"with {key}"] += number
            if type(value) is int:
                totals[key] += value * number
                durations += [value] * number if key == keys.DURATION_MS else []
    durations.sort()
    median, p95 = (nearest_rank(durations, percent) for percent in (50, 95))
    return Statistics(
        sessions=totals["sessions"],
        by_status=by_status,
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
        resumed=totals[f"with {keys.RESUMES}"],
        resumed_completed=totals["resumed_completed"],
        with_errors=totals[f"with {keys.ERROR_COUNT}"],
        duration_median=None if median is None else _duration(median),
        duration_p95=None if p95 is None else _duration(p95),
    )


def _add_calls(tools: dict[str, list[int]], entries: Any) -> None:
    """Adds `[tool, calls, milliseconds]`. Entries of another form are left out."""
    for entry in entries:
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

"""Totals of metadata over sessions, added up in short reads; the ledger's are in `ledger`."""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from agents_session_metadata import keys
from agents_session_metadata.core.features import in_use
from agents_session_metadata.core.rows import decode_stored
from agents_session_metadata.query.filters import Where
from agents_session_metadata.query.logic import Condition
from agents_session_metadata.query.ordering import Ordering
from agents_session_metadata.query.pages import read_sessions
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import Metadata, Statistics, ToolStatistics

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
_FIELDS = (*_COUNTERS[:5], "resumed", "resumed_completed", "with_errors")
"""Sums under the names of the fields of `Statistics`."""
_READ = (*_COUNTERS, keys.STATUS, keys.RESUMES, keys.COST, keys.TOOL_CALLS)
MOST = 10**18
"""Counters from this number on, and negative ones, are left out."""
_DEAREST = 10**12
"""Costs from this number on, and negative ones, are left out; so are entries of tool calls."""
_DECIMALS = 12
"""The decimals of a session's cost."""
_STEP = 1_000
"""Sessions per read."""
_NEWEST = Ordering.parse("-created_at")
_LONGEST = timedelta.max // timedelta(milliseconds=1)


class _Totals:
    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.by_status: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.milliseconds: Counter[str] = Counter()
        self.durations: list[int] = []

    def add(self, metadata: Metadata) -> None:
        """Adds one session. Values of another type are left out."""
        sums, status = self.sums, metadata.get(keys.STATUS)
        if isinstance(status, str):
            self.by_status[status] += 1
        if _is_number(metadata.get(keys.RESUMES), 1, MOST):
            sums["resumed"] += 1
            sums["resumed_completed"] += status == "completed"
        sums["with_errors"] += _is_number(metadata.get(keys.ERROR_COUNT), 1, MOST)
        for key in _COUNTERS:
            number: Any = metadata.get(key)
            if is_count(number):
                sums[key] += number
                if key == keys.DURATION_MS:
                    self.durations.append(number)
        cost = metadata.get(keys.COST)
        if _is_number(cost, 0, _DEAREST):
            sums[keys.COST] += round(Decimal(str(cost)).scaleb(_DECIMALS))
        called = metadata.get(keys.TOOL_CALLS)
        for entry in called if isinstance(called, list) else ():
            if isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str):
                name, calls, milliseconds = entry
                if is_count(calls, _DEAREST) and is_count(milliseconds, _DEAREST):
                    self.calls[name] += calls
                    self.milliseconds[name] += milliseconds

    def statistics(self, sessions: int, feedback: dict[str, int]) -> Statistics:
        sums, ordered = self.sums, sorted(self.durations)
        totals: dict[str, Any] = {name: sums[name] for name in _FIELDS}
        return Statistics(
            **totals,
            sessions=sessions,
            by_status=dict(self.by_status),
            cost=Decimal(sums[keys.COST]).scaleb(-_DECIMALS).normalize() + 0,
            run_duration=_duration(sums[keys.RUN_MS]),
            duration=_duration(sums[keys.DURATION_MS]),
            errors=sums[keys.ERROR_COUNT],
            tools={
                name: ToolStatistics(calls, _duration(self.milliseconds[name]))
                for name, calls in self.calls.items()
            },
            duration_median=_duration(nearest_rank(ordered, 50)),
            duration_p95=_duration(nearest_rank(ordered, 95)),
            feedback=feedback,
        )


async def read_statistics(store: ScopedStore, condition: Condition) -> Statistics:
    """Raises `CorruptMetadataError` if a value that is counted or added is not valid JSON."""
    database, totals, sessions = store.database, _Totals(), 0

    def step(
        connection: Connection, queries: Queries, after: str | None
    ) -> tuple[Sequence[str], Iterable[Metadata]]:
        ids = connection.scalars(*queries.ids(condition, after=after, limit=_STEP)).all()
        return ids, _read_values(store, connection, queries, ids) if ids else ()

    def votes(connection: Connection, queries: Queries) -> dict[str, int]:
        counted: Counter[str] = Counter()
        for feature in in_use(database, connection):
            if feature.count is not None:
                counted.update(feature.count(database, connection, queries, condition))
        return dict(counted)

    after = None
    while True:
        ids, found = await database.read(partial(step, after=after))
        sessions += len(ids)
        for metadata in found:
            totals.add(metadata)
        if len(ids) < _STEP:
            return totals.statistics(sessions, await database.read(votes))
        after = ids[-1]


def _read_values(
    store: ScopedStore, connection: Connection, queries: Queries, ids: Sequence[str]
) -> Iterable[Metadata]:
    rows, dialect = queries.tables.metadata, queries.dialect
    own = dialect.one_of(rows.c.session_id, "ids", min(len(ids), dialect.many + 1))
    stored: Any = select(rows.c.session_id, rows.c.key, rows.c.value)
    stored = stored.where(own, rows.c.key.in_(_READ))
    statement, parameters = store.question(queries, stored, rows.c.session_id)
    parameters = {**parameters, **dialect.list_parameters("ids", ids)}
    found: defaultdict[str, Metadata] = defaultdict(dict)
    for session_id, key, text in connection.execute(statement, parameters).all():
        found[session_id][key] = decode_stored(session_id, key, text)
    return found.values()


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
    sessions: Sequence[Metadata]


async def read_daily(
    store: ScopedStore, where: Where | None, *, since: datetime, most: int, names: Sequence[str]
) -> Daily:
    """Adds up the newest `most` sessions that were created since a time, in one statement.

    Values of another type, or that are not valid JSON, are left out. `names` are further keys of
    `sessions`.
    """
    after = {"$created_at": {"$gte": since.isoformat()}}
    condition = store.condition({"$and": [where, after]} if where else after)
    read = (*names, keys.STATUS, keys.RUNS, keys.DURATION_MS)
    found = await read_sessions(
        store.database,
        lambda reader: reader.page(condition, _NEWEST, limit=most + 1, keys=read),
    )
    days: dict[date, Day] = {}
    for each in found[:most]:
        metadata: Any = each.info.metadata
        day = days.setdefault(each.info.created_at.date(), Day())
        day.sessions += 1
        day.failed += metadata.get(keys.STATUS) == "failed"
        runs, duration = metadata.get(keys.RUNS), metadata.get(keys.DURATION_MS)
        day.runs += runs if is_count(runs) else 0
        if is_count(duration):
            insort(day.durations, duration)
    return Daily(days, len(found) <= most, [each.info.metadata for each in found[:most]])


def nearest_rank(ordered: Sequence[int], percent: int) -> int | None:
    return ordered[max(-(-len(ordered) * percent // 100), 1) - 1] if ordered else None


def is_count(value: object, most: int = MOST) -> bool:
    return type(value) is int and 0 <= value < most


def _is_number(value: Any, least: int, most: int) -> bool:
    return type(value) in (int, float) and least <= value < most


def _duration(milliseconds: int | None) -> Any:
    return None if milliseconds is None else timedelta(milliseconds=min(milliseconds, _LONGEST))

"""Totals of metadata over sessions, added up in short reads; the ledger's are in `feature`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any

from sqlalchemy import Connection, select

from agents_session_metadata import keys
from agents_session_metadata.core.features import in_use
from agents_session_metadata.core.rows import decode_stored
from agents_session_metadata.query.details import Details
from agents_session_metadata.query.filters import Where, parse_filter
from agents_session_metadata.query.logic import All, Condition
from agents_session_metadata.query.ordering import Ordering
from agents_session_metadata.query.pages import FoundSession, OnCorrupt, Reader, read_sessions
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import (
    DailyStatistics,
    DayStatistics,
    JSONObject,
    Metadata,
    SessionInfo,
    Statistics,
    ToolStatistics,
)

from .feature import day_of
from .prices import MONEY, decimal_of, plain_cost

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
_READ = (*_COUNTERS, keys.STATUS, keys.RUN, keys.RESUMES, keys.COST, keys.TOOL_CALLS)
_BY_DAY = Details(
    (
        *(keys.STATUS, keys.RUN, keys.AGENT, keys.RUNS, keys.TOOL_CALLS),
        *(keys.DURATION_MS, keys.RUN_MS),
    )
)
_MOST = 10**18
"""Counters from this number on, and negative ones, are left out."""
_DEAREST = 10**12
"""Costs from this number on, and negative ones, are left out; so are entries of tool calls."""
_DECIMALS = 12
"""The decimals of a session's cost."""
_STEP = 1_000
"""Sessions per read."""
_NEWEST = Ordering.parse("-created_at")
_LONGEST = timedelta.max // timedelta(milliseconds=1)


class Totals:
    """Sessions are counted by the caller: one without metadata is not added."""

    def __init__(self) -> None:
        self.sessions: int = 0
        self.sums: Counter[str] = Counter()
        self.by_status: Counter[str] = Counter()
        self.by_agent: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.milliseconds: Counter[str] = Counter()
        self.durations: list[int] = []

    def add(self, metadata: Metadata) -> None:
        """Adds one session. Values of another type are left out."""
        sums, status, agent = self.sums, keys.session_status(metadata), metadata.get(keys.AGENT)
        if status is not None:
            self.by_status[status] += 1
        if isinstance(agent, str):
            self.by_agent[agent] += 1
        if _is_number(metadata.get(keys.RESUMES), 1, _MOST):
            sums["resumed"] += 1
            sums["resumed_completed"] += metadata.get(keys.STATUS) == "completed"
        sums["with_errors"] += _is_number(metadata.get(keys.ERROR_COUNT), 1, _MOST)
        for key in _COUNTERS:
            number: Any = metadata.get(key)
            if _is_count(number):
                sums[key] += number
                if key == keys.DURATION_MS:
                    self.durations.append(number)
        cost: Any = metadata.get(keys.COST)
        if _is_number(cost, 0, _DEAREST):
            sums[keys.COST] += int(
                MONEY.to_integral_value(MONEY.scaleb(decimal_of(cost), _DECIMALS))
            )
        called = metadata.get(keys.TOOL_CALLS)
        for entry in called if isinstance(called, list) else ():
            if isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str):
                name, calls, milliseconds = entry
                if _is_count(calls, _DEAREST) and _is_count(milliseconds, _DEAREST):
                    self.calls[name] += calls
                    self.milliseconds[name] += milliseconds

    def merge(self, other: Totals) -> None:
        self.sessions += other.sessions
        self.sums.update(other.sums)
        self.by_status.update(other.by_status)
        self.by_agent.update(other.by_agent)
        self.calls.update(other.calls)
        self.milliseconds.update(other.milliseconds)
        self.durations += other.durations

    def duration(self, percent: int) -> timedelta | None:
        """Returns a percentile by nearest rank."""
        if not self.durations:
            return None
        self.durations.sort()
        rank = max(-(-len(self.durations) * percent // 100), 1)
        return _duration(self.durations[rank - 1])

    def tools(self) -> dict[str, ToolStatistics]:
        """Returns the totals per tool, the one with the most calls first."""
        return {
            name: ToolStatistics(calls, _duration(self.milliseconds[name]))
            for name, calls in self.calls.most_common()
        }

    def of_day(self, day: date | None) -> DayStatistics:
        return DayStatistics(
            day,
            self.sessions,
            dict(self.by_status.most_common()),
            dict(self.by_agent.most_common()),
            self.sums[keys.RUNS],
            self.tools(),
            self.duration(50),
            self.duration(95),
        )

    def statistics(self, feedback: dict[str, int]) -> Statistics:
        sums = self.sums
        totals: dict[str, Any] = {name: sums[name] for name in _FIELDS}
        return Statistics(
            **totals,
            sessions=self.sessions,
            by_status=dict(self.by_status),
            cost=plain_cost(MONEY.scaleb(Decimal(sums[keys.COST]), -_DECIMALS)),
            run_duration=_duration(sums[keys.RUN_MS]),
            duration=_duration(sums[keys.DURATION_MS]),
            errors=sums[keys.ERROR_COUNT],
            tools=self.tools(),
            duration_median=self.duration(50),
            duration_p95=self.duration(95),
            feedback=feedback,
        )


async def read_statistics(store: ScopedStore, condition: Condition) -> Statistics:
    """Raises `CorruptMetadataError` if a value that is counted or added is not valid JSON."""
    database, totals = store.database, Totals()

    def step(connection: Connection, after: str | None) -> tuple[Sequence[str], Iterable[Metadata]]:
        ids = connection.scalars(*store.queries.ids(condition, after=after, limit=_STEP)).all()
        if not ids:
            return ids, ()
        found = _read_values(store, connection, ids)
        _show_runs(store, connection, found)
        return ids, found.values()

    after = None
    while True:
        ids, found = await database.read(partial(step, after=after))
        totals.sessions += len(ids)
        for metadata in found:
            totals.add(metadata)
        if len(ids) < _STEP:
            return totals.statistics(await _votes(store, condition))
        after = ids[-1]


async def _votes(store: ScopedStore, condition: Condition) -> dict[str, int]:
    def read(connection: Connection) -> dict[str, int]:
        counted: Counter[str] = Counter()
        for feature in in_use(store.database, connection):
            counted.update(feature.count(store.database, connection, condition))
        return dict(counted)

    return await store.database.read(read)


async def read_statuses(store: ScopedStore, sessions: Iterable[SessionInfo]) -> dict[str, str]:
    """Reads only what is not known of the sessions: whether a run works or is interrupted."""
    found = {each.session_id: dict(each.metadata) for each in sessions}
    working = [each for each, metadata in found.items() if metadata.get(keys.RUN) == "running"]
    for start in range(0, len(working), _STEP):
        where = {"$session_id": {"$in": working[start : start + _STEP]}}
        interrupted = await _interrupted(store, store.condition(where))
        for session_id in interrupted:
            found[session_id][keys.RUN] = "interrupted"
    statuses = {each: keys.session_status(metadata) for each, metadata in found.items()}
    return {each: status for each, status in statuses.items() if status is not None}


async def status_filter(store: ScopedStore, status: str) -> JSONObject:
    if status in ("running", "interrupted"):
        interrupted = await _interrupted(store, store.condition({keys.RUN: "running"}))
        of_lease: JSONObject = {"$session_id": {"$in": interrupted}}
        works = of_lease if status == "interrupted" else {"$not": of_lease}
        found: list[JSONObject] = [{"$and": [{keys.RUN: "running"}, works]}]
    else:
        found = [{keys.RUN: status}] if status in keys.RUN_STATUSES else []
    no_run: JSONObject = {keys.RUN: {"$nin": list(keys.RUN_STATUSES)}}
    found.append({**no_run, keys.STATUS: status})
    if status == "completed":
        ended: JSONObject = {"$or": [{keys.RUN: status}, {keys.RUNS: {"$gte": 1}}]}
        found.append({**ended, **no_run, keys.STATUS: {"$exists": False}})
    return {"$or": found}


async def _interrupted(store: ScopedStore, condition: Condition) -> list[str]:
    def read(connection: Connection) -> list[str]:
        ids = connection.scalars(*store.queries.ids(condition, after=None, limit=_STEP)).all()
        found: dict[str, Metadata] = {each: {keys.RUN: "running"} for each in ids}
        _show_runs(store, connection, found)
        return [each for each in found if found[each][keys.RUN] == "interrupted"]

    return await store.database.read(read)


def _show_runs(store: ScopedStore, connection: Connection, found: Mapping[str, Metadata]) -> None:
    """Replaces the status of runs that are stored as working by what is known of them now."""
    ids = [each for each, metadata in found.items() if metadata.get(keys.RUN) == "running"]
    if ids:
        for feature in in_use(store.database, connection):
            for each, status in feature.statuses(store.database, connection, ids).items():
                found[each][keys.RUN] = status


def _read_values(
    store: ScopedStore, connection: Connection, ids: Sequence[str]
) -> Mapping[str, Metadata]:
    values = store.database.tables.metadata.c
    stored: Any = select(values.session_id, values.key, values.value)
    stored = stored.where(values.session_id.in_(ids), values.key.in_(_READ))
    found: defaultdict[str, Metadata] = defaultdict(dict)
    rows: Any = connection.execute(*store.question(stored, values.session_id)).all()
    for session_id, key, text in rows:
        found[session_id][key] = decode_stored(session_id, key, text)
    return found


async def read_daily(
    store: ScopedStore,
    where: Where | None,
    *,
    since: date,
    until: date | None,
    limit: int,
    on_corrupt: OnCorrupt | None,
) -> DailyStatistics:
    """Adds up the newest sessions. Costs and tokens are not read."""
    created = {"$gte": datetime.combine(day_of("since", since), time.min, timezone.utc)}
    if until is not None:
        created["$lte"] = datetime.combine(day_of("until", until), time.max, timezone.utc)
    condition = All((store.condition(where), parse_filter({"$created_at": created})))

    def read(reader: Reader) -> list[FoundSession]:
        found = reader.page(condition, _NEWEST, limit=limit + 1, details=_BY_DAY)
        metadata = {each.info.session_id: each.info.metadata for each in found[:limit]}
        _show_runs(store, reader.connection, metadata)
        return found

    found = await read_sessions(store.database, read)
    days: defaultdict[date, Totals] = defaultdict(Totals)
    for each in found[:limit]:
        info = each.checked(on_corrupt)
        of_day = days[info.created_at.date()]
        of_day.sessions += 1
        if keys.DURATION_MS not in info.metadata and keys.RUN_MS in info.metadata:
            info.metadata[keys.DURATION_MS] = info.metadata[keys.RUN_MS]
        of_day.add(info.metadata)
    whole = Totals()
    for of_day in days.values():
        whole.merge(of_day)
    rows = [days[day].of_day(day) for day in sorted(days)]
    complete = len(found) <= limit
    feedback = await _votes(store, condition) if complete else {}
    return DailyStatistics(rows, whole.of_day(None), complete=complete, feedback=feedback)


def _is_count(value: object, most: int = _MOST) -> bool:
    return type(value) is int and 0 <= value < most


def _is_number(value: Any, least: int, most: int) -> bool:
    return type(value) in (int, float) and least <= value < most


def _duration(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=min(milliseconds, _LONGEST))

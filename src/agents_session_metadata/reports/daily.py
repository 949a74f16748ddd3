"""What the sessions of the last days came to, by the day on which they were created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, select

from agents_session_metadata import keys
from agents_session_metadata.query.filters import Where
from agents_session_metadata.query.ordering import Ordering
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.values import decode_value

_KEYS = (keys.STATUS, keys.RUNS, keys.DURATION_MS)
_NEWEST = Ordering.parse("-created_at")
_MOST = 10**15
"""A number beyond, or a negative one, is left out."""


@dataclass
class Day:
    """The sessions that were created on one day, in UTC.

    Attributes:
        sessions: Their number.
        failed: How many of them have the status `failed`.
        runs: Their runs.
        durations: The durations of those that are finished, in milliseconds, in ascending order.
    """

    sessions: int = 0
    failed: int = 0
    runs: int = 0
    durations: list[int] = field(default_factory=list)


class Daily(NamedTuple):
    """The sessions of the last days.

    Attributes:
        days: By day; days without sessions are missing.
        complete: Whether all sessions since then were read, not only the newest ones.
    """

    days: Mapping[date, Day]
    complete: bool


async def read_daily(
    store: ScopedStore, where: Where | None, *, since: datetime, most: int
) -> Daily:
    """Add up the sessions that were created since a time, the newest `most` of them.

    It is one statement with a row per session. Values of another type are left out.

    Raises:
        InvalidFilterError: If the filter is invalid.
    """
    recent = {"$created_at": {"$gte": since.isoformat()}}
    condition = store.condition({"$and": [where, recent]} if where else recent)
    rows = await store.database.read(
        lambda connection, queries: _read(connection, queries, condition, most + 1)
    )
    return Daily(_by_day(rows[:most]), len(rows) <= most)


def rank(ordered: Sequence[int], percent: int) -> int | None:
    """A percentile by nearest rank; None if there is nothing."""
    return ordered[max(-(-len(ordered) * percent // 100), 1) - 1] if ordered else None


def _read(
    connection: Connection, queries: Queries, condition: Any, limit: int
) -> list[tuple[datetime, list[Any]]]:
    page, parameters = queries.page(condition, _NEWEST, limit=limit, keys=[])
    recent = page.subquery("recent")
    columns, joined = [recent.c.created_at], recent
    for key in _KEYS:
        values = queries.tables.metadata.alias(f"of_{key}")
        same = and_(values.c.session_id == recent.c.session_id, values.c.key == key)
        joined = joined.outerjoin(values, same)
        columns.append(values.c.value)
    found = connection.execute(select(*columns).select_from(joined), parameters)
    as_datetime = queries.dialect.to_datetime
    return [
        (as_datetime(created), [_decoded(each) for each in values]) for created, *values in found
    ]


def _decoded(text: str | None) -> Any:
    try:
        return None if text is None else decode_value(text)
    except ValueError:
        return None


def _by_day(rows: Sequence[tuple[datetime, list[Any]]]) -> dict[date, Day]:
    days: dict[date, Day] = {}
    for created, (status, runs, duration) in rows:
        day = days.setdefault(created.date(), Day())
        day.sessions += 1
        day.failed += status == "failed"
        day.runs += runs if _is_count(runs) else 0
        if _is_count(duration):
            day.durations.append(duration)
    for day in days.values():
        day.durations.sort()
    return days


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST

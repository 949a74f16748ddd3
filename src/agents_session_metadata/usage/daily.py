"""Totals of the sessions of the last days, by the day on which they were created."""

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

from .statistics import MOST

_KEYS = (keys.STATUS, keys.RUNS, keys.DURATION_MS)
_NEWEST = Ordering.parse("-created_at")


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
    recent = {"$created_at": {"$gte": since.isoformat()}}
    condition = store.condition({"$and": [where, recent]} if where else recent)
    rows = await store.database.read(
        lambda connection, queries: _read(connection, queries, condition, most + 1)
    )
    return Daily(_by_day(rows[:most]), len(rows) <= most)


def _read(
    connection: Connection, queries: Queries, condition: Any, limit: int
) -> list[tuple[datetime, list[Any]]]:
    page, parameters = queries.page(condition, _NEWEST, limit=limit, keys=[])
    recent = page.subquery("recent")
    columns: list[Any] = [recent.c.created_at]
    joined: Any = recent
    for key in _KEYS:
        values = queries.tables.metadata.alias(f"of_{key}")
        same = and_(values.c.session_id == recent.c.session_id, values.c.key == key)
        joined = joined.outerjoin(values, same)
        columns.append(values.c.value)
    found = connection.execute(select(*columns).select_from(joined), parameters)
    return [(created, list(map(_decoded, values))) for created, *values in found]


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
    return type(value) is int and 0 <= value < MOST

"""The page of statistics: charts of the newest sessions, and totals of all on demand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from starlette.responses import Response

from agents_session_metadata import keys
from agents_session_metadata.types import SessionInfo

from . import charts
from .call import Call
from .reading import SAMPLE, ignore
from .text import number
from .view import View

_DAYS: Final = 30
_ROWS: Final = 8
_TOTAL_SECONDS: Final = 20.0
_KEYS: Final = (
    keys.STATUS,
    keys.AGENT,
    keys.COST,
    keys.TOTAL_TOKENS,
    keys.RUNS,
    keys.ERROR_COUNT,
    keys.DURATION_MS,
    keys.TOOL_CALLS,
)


async def page(call: Call) -> Response:
    """Charts of the sessions that a filter matches."""
    view = View.of(call.query)
    where = view.where
    found = await call.catalog.list_sessions(
        where, order_by="-created_at", limit=SAMPLE, keys=_KEYS, on_corrupt=ignore
    )
    today = datetime.now(timezone.utc).date()
    days = [today - timedelta(days=each) for each in reversed(range(_DAYS))]
    recent = [each for each in found.sessions if each.created_at.date() >= days[0]]
    created = Counter(each.created_at.date() for each in recent)
    failed = Counter(each.created_at.date() for each in recent if _has_failed(each))
    totals, too_slow = None, False
    if view.counted:
        try:
            totals = await asyncio.wait_for(call.catalog.statistics(where), _TOTAL_SECONDS)
        except asyncio.TimeoutError:
            too_slow = True
    durations = sorted(_numbers(recent, keys.DURATION_MS))
    return call.render(
        "statistics.html",
        view=view,
        sample=SAMPLE,
        complete=found.next_cursor is None or len(recent) < len(found.sessions),
        recent=len(recent),
        failed=sum(failed.values()),
        cost=sum(_numbers(recent, keys.COST)),
        tokens=sum(_numbers(recent, keys.TOTAL_TOKENS)),
        runs=sum(_numbers(recent, keys.RUNS)),
        median=durations[(len(durations) - 1) // 2] if durations else None,
        created_chart=charts.columns({f"{day:%b %d}": created[day] for day in days}),
        failed_chart=charts.columns({f"{day:%b %d}": failed[day] for day in days}),
        by_status=charts.rows(_most(recent, keys.STATUS)),
        by_agent=charts.rows(_most(recent, keys.AGENT)),
        tools=charts.rows(_tools(recent)),
        totals=totals,
        too_slow=too_slow,
    )


def _has_failed(info: SessionInfo) -> bool:
    return info.metadata.get(keys.STATUS) == "failed"


def _numbers(infos: Iterable[SessionInfo], key: str) -> list[float]:
    found = (number(each.metadata.get(key)) for each in infos)
    return [each for each in found if each is not None and each >= 0]


def _most(infos: Iterable[SessionInfo], key: str) -> list[tuple[str, float]]:
    counts = Counter(
        value for each in infos if isinstance(value := each.metadata.get(key), str) and value
    )
    return [(value, float(count)) for value, count in counts.most_common(_ROWS)]


def _tools(infos: Iterable[SessionInfo]) -> list[tuple[str, float]]:
    counts: Counter[str] = Counter()
    for info in infos:
        stored: Any = info.metadata.get(keys.TOOL_CALLS)
        for each in stored if isinstance(stored, list) else ():
            if isinstance(each, list) and len(each) == 3 and isinstance(each[0], str):
                counts[each[0]] += int(number(each[1]) or 0)
    return [(name, float(count)) for name, count in counts.most_common(_ROWS)]

"""The page of statistics: the figures of a range of days, which the template draws as charts."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from heapq import nlargest
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from agents_session_metadata import keys
from agents_session_metadata.types import DayStatistics, UsageRow

from .call import PageCall
from .formats import shown
from .list_page import ListState, ignore

_DAYS = 30
_MOST_DAYS = 92
_NEWEST = 5_000
"""The number of sessions that the page counts."""
_ROWS = 8
_MOST_EXPENSIVE = 10
_TOTAL_SECONDS = 20.0


@dataclass(frozen=True)
class Figures:
    """The numbers of a day, or of the range that begins with it.

    `usage` is None if the ledger cannot be read.
    """

    day: date
    totals: DayStatistics
    usage: Sequence[UsageRow] | None

    @property
    def label(self) -> str:
        return f"{self.day:%b} {self.day.day}"

    @property
    def failed(self) -> int:
        return self.totals.by_status.get("failed", 0)

    @property
    def tokens(self) -> int | None:
        return None if self.usage is None else sum(row.total_tokens for row in self.usage)

    @property
    def cost(self) -> float | None:
        return None if self.usage is None else sum(float(row.cost or 0) for row in self.usage)

    @property
    def median(self) -> int | None:
        return _milliseconds(self.totals.duration_median)

    @property
    def p95(self) -> int | None:
        return _milliseconds(self.totals.duration_p95)


def _milliseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // timedelta(milliseconds=1)


def _range(call: PageCall) -> tuple[date, date]:
    """Returns the first and the last day; by default, the last 30 days."""
    today = datetime.now(timezone.utc).date()
    try:
        until = date.fromisoformat(call.query.get("until") or today.isoformat())
        until = min(until, today)
        start = call.query.get("since")
        since = date.fromisoformat(start) if start else until - timedelta(days=_DAYS - 1)
    except (ValueError, OverflowError):
        raise HTTPException(400, "Write a day as 2026-01-31.") from None
    if not 0 <= (until - since).days < _MOST_DAYS:
        raise HTTPException(400, f"The range must have between 1 and {_MOST_DAYS} days.")
    return since, until


async def page(call: PageCall) -> Response:
    view = await ListState.read(call)
    first, last = _range(call)
    sessions = view.first(since="", until="")
    known: dict[str, Any] = {"view": view, "first": first, "last": last}
    if view.problem:
        return call.render("statistics.html", 400, **known)
    daily = await call.catalog.daily_statistics(
        sessions.where, since=first, until=last, limit=_NEWEST, on_corrupt=ignore
    )
    usage, usage_problem, costs = await _usage(call, sessions, first, last)
    totals = {each.day: each for each in daily.days}
    figures = []
    for after in range((last - first).days + 1):
        day = first + timedelta(days=after)
        of_day = usage and [row for row in usage if row.day == day]
        figures.append(Figures(day, totals.get(day, DayStatistics(day)), of_day))
    return call.render(
        "statistics.html",
        **known,
        today=datetime.now(timezone.utc).date(),
        most=_NEWEST,
        complete=daily.complete,
        figures=figures,
        whole=Figures(first, daily.total, usage),
        round_up=_round_up,
        date_before=lambda day, days: day - timedelta(days=days - 1),
        usage_problem=usage_problem,
        unpriced=sorted({name or "(unknown)" for row in usage or () for name in row.unpriced}),
        by_status=_greatest(daily.total.by_status),
        by_agent=_greatest(daily.total.by_agent),
        tools=_greatest({name: each.calls for name, each in daily.total.tools.items()}),
        costs=costs,
        feedback=_greatest(daily.feedback),
    )


def _greatest(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return Counter(counts).most_common(_ROWS)


async def _usage(
    call: PageCall, view: ListState, since: date, until: date
) -> tuple[list[UsageRow] | None, str, dict[str, list[tuple[str, float]]]]:
    """Returns the usage by day and model, or None and the reason, and the greatest costs."""
    owner = None
    if conditions := view.conditions:
        of_owner = conditions[0].get(keys.OWNER_ID)
        owner = of_owner.get("$eq") if isinstance(of_owner, dict) else None
        if owner is None or len(conditions) > 1 or len(conditions[0]) > 1:
            reason = (
                "The usage ledger can only be filtered by owner. Remove the filter, or use "
                "owner_id=…, to see tokens and cost by day."
            )
            return None, reason, {}

    async def read() -> tuple[list[UsageRow], dict[str, list[tuple[str, float]]]]:
        rows, costs = list[UsageRow](), {}
        for heading, field in {"owner": keys.OWNER_ID, "agent": "agent", "model": "model"}.items():
            # By model, the rows of all days are read as well, which the charts show.
            by, most = (("day", field), None) if field == "model" else ((field,), _MOST_EXPENSIVE)
            rows = await call.catalog.usage(
                owner_id=owner, since=since, until=until, by=by, limit=most
            )
            costs[heading] = _greatest_costs(rows, field)
        return rows, costs

    try:
        rows, costs = await asyncio.wait_for(read(), _TOTAL_SECONDS)
    except asyncio.TimeoutError:
        return None, "Adding up the usage ledger took too long.", {}
    return rows, "", costs


def _greatest_costs(usage: Iterable[UsageRow], field: str) -> list[tuple[str, float]]:
    costs: defaultdict[str, float] = defaultdict(float)
    for each in usage:
        if each.cost:
            value = getattr(each, field)
            costs["(unknown)" if value is None else shown(value, 500)] += float(each.cost)
    return nlargest(_MOST_EXPENSIVE, costs.items(), key=lambda each: each[1])


def _round_up(value: float) -> float:
    """Returns the number at the top of a chart."""
    if value <= 0:
        return 1
    size = 10.0 ** math.floor(math.log10(value))
    return next(size * each for each in (1, 2, 3, 4, 5, 6, 8, 10) if size * each >= value)

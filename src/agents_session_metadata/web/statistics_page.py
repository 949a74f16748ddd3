"""The page of statistics: charts of the last 30 days.

Charts are plain data: positions and sizes that the templates draw as SVG. Labels can be stored
text, which the templates must escape.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from typing import Any, Final

from starlette.responses import Response

from agents_session_metadata import keys
from agents_session_metadata.types import SessionInfo, UsageRow
from agents_session_metadata.usage.statistics import Day, nearest_rank, read_daily

from .call import Call
from .formats import money, number, seconds, short
from .list_page import SAMPLE, View, ignore

_DAYS: Final = 30
_NEWEST: Final = 10_000
"""The number of sessions that the charts by day count."""
_ROWS: Final = 8
_TOTAL_SECONDS: Final = 20.0
_KEYS: Final = (keys.STATUS, keys.AGENT, keys.TOOL_CALLS)


@dataclass(frozen=True)
class Figures:
    """The numbers of a day. `tokens` and `cost` are None if the usage ledger cannot be read."""

    day: date
    sessions: Day
    tokens: int | None
    cost: float | None

    @property
    def label(self) -> str:
        return f"{self.day:%b %d}"

    @property
    def median(self) -> int | None:
        return nearest_rank(self.sessions.durations, 50)

    @property
    def p95(self) -> int | None:
        return nearest_rank(self.sessions.durations, 95)


async def page(call: Call) -> Response:
    view = View.of(call.query)
    where = view.where
    today = datetime.now(timezone.utc).date()
    first = today - timedelta(days=_DAYS - 1)
    since = datetime.combine(first, time(), timezone.utc)
    daily = await read_daily(call.catalog._store, where, since=since, most=_NEWEST)
    usage, usage_problem = await _usage(call, view, first)
    newest = await call.catalog.list_sessions(
        where, order_by="-created_at", limit=SAMPLE, keys=_KEYS, on_corrupt=ignore
    )
    recent = [each for each in newest.sessions if each.created_at >= since]
    days = [first + timedelta(days=each) for each in range(_DAYS)]
    figures = [_figures(day, daily.days.get(day, Day()), usage) for day in days]
    durations = sorted(each for day in daily.days.values() for each in day.durations)
    return call.render(
        "statistics.html",
        view=view,
        most=_NEWEST,
        sample=SAMPLE,
        complete=daily.complete,
        sample_complete=newest.next_cursor is None or len(recent) < len(newest.sessions),
        figures=figures,
        sessions=sum(each.sessions.sessions for each in figures),
        failed=sum(each.sessions.failed for each in figures),
        runs=sum(each.sessions.runs for each in figures),
        tokens=None if usage is None else sum(each.total_tokens for each in usage),
        cost=None if usage is None else float(sum(each.cost or 0 for each in usage)),
        median=nearest_rank(durations, 50),
        p95=nearest_rank(durations, 95),
        charts=_charts(figures, with_usage=usage is not None),
        usage_problem=usage_problem,
        unpriced=_unpriced(usage or ()),
        by_status=shares(_most(recent, keys.STATUS)),
        by_agent=shares(_most(recent, keys.AGENT)),
        tools=shares(_tools(recent)),
        models=shares(_models(usage or ())),
    )


async def _usage(call: Call, view: View, since: date) -> tuple[list[UsageRow] | None, str]:
    """Returns the usage by day and model, or None and the reason."""
    owner = None
    if conditions := view.conditions:
        of_owner = conditions[0].get(keys.OWNER_ID)
        owner = of_owner.get("$eq") if isinstance(of_owner, dict) else None
        if owner is None or len(conditions) > 1 or len(conditions[0]) > 1:
            return None, (
                "The usage ledger can only be filtered by owner. Remove the filter, or use "
                "owner_id=…, to see tokens and cost by day."
            )
    question = call.catalog.usage(owner_id=owner, since=since)
    try:
        return await asyncio.wait_for(question, _TOTAL_SECONDS), ""
    except asyncio.TimeoutError:
        return None, "Adding up the usage ledger took too long."


def _figures(day: date, sessions: Day, usage: Iterable[UsageRow] | None) -> Figures:
    if usage is None:
        return Figures(day, sessions, None, None)
    of_day = [each for each in usage if each.day == day]
    tokens = sum(each.total_tokens for each in of_day)
    return Figures(day, sessions, tokens, float(sum(each.cost or 0 for each in of_day)))


def _charts(figures: list[Figures], *, with_usage: bool) -> list[Chart]:
    def by_day(
        title: str, read: Callable[[Figures], float], write: Any = short, style: str = "accent"
    ) -> Chart:
        return _by_column(title, {day.label: read(day) for day in figures}, write, style)

    found = [
        by_day("Sessions", lambda day: day.sessions.sessions),
        by_day("Failed sessions", lambda day: day.sessions.failed, style="bad"),
        by_day("Runs", lambda day: day.sessions.runs),
    ]
    if with_usage:
        found += [
            by_day("Tokens", lambda day: day.tokens or 0),
            by_day("Cost", lambda day: day.cost or 0, money),
        ]
    medians = {each.label: float(each.median or 0) for each in figures}
    p95s = {each.label: float(each.p95 or 0) for each in figures}
    return [*found, _of_durations("Duration of sessions", medians, p95s)]


def _models(usage: Iterable[UsageRow]) -> list[tuple[str, float]]:
    tokens: Counter[str] = Counter()
    for each in usage:
        tokens[each.model or "(unknown)"] += each.total_tokens
    return [(name, float(count)) for name, count in tokens.most_common(_ROWS)]


def _unpriced(usage: Iterable[UsageRow]) -> list[str]:
    return sorted({name or "(unknown)" for each in usage for name in each.unpriced})


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


_WIDTH: Final = 328
_HEIGHT: Final = 90
_UNITS: Final = ((3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    x: float
    y: float
    width: float
    height: float
    text: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart with a column per label, in one series or in two that share their columns.

    `summary` is for people who do not see the chart, `top` is the value at its upper edge. The
    first series is drawn behind the second.
    """

    title: str
    summary: str
    top: str
    series: list[tuple[str, str, list[Bar]]]
    width: int = _WIDTH
    height: int = _HEIGHT


def _by_column(
    title: str, values: Mapping[str, float], write: Callable[[float], str], style: str = "accent"
) -> Chart:
    top = _round_up(max(values.values(), default=0))
    summary = f"{title}: {write(sum(values.values()))} in all, {_highest(values, write)}."
    return Chart(title, summary, short(top), [("", style, _bars(values, top, write))])


def _of_durations(title: str, medians: Mapping[str, float], p95s: Mapping[str, float]) -> Chart:
    """Draw medians in front of 95th percentiles. Both are in milliseconds."""
    most = max(p95s.values(), default=0)
    size, unit = next((each for each in _UNITS if most >= each[0]), _UNITS[-1])
    top = _round_up(most / size) * size
    summary = (
        f"{title}: the longest median is {_highest(medians, seconds)}, the longest 95th percentile "
        f"is {_highest(p95s, seconds)}."
    )
    series = [
        ("95th percentile", "pale", _bars(p95s, top, seconds)),
        ("median", "accent", _bars(medians, top, seconds)),
    ]
    return Chart(title, summary, f"{top / size:g} {unit}", series)


def _highest(values: Mapping[str, float], write: Callable[[float], str]) -> str:
    label = max(values, key=lambda each: values[each], default="")
    return f"{write(values[label])} on {label}" if label and values[label] else "nothing"


def _bars(values: Mapping[str, float], top: float, write: Callable[[float], str]) -> list[Bar]:
    step = _WIDTH / max(len(values), 1)
    bars = []
    for place, (label, value) in enumerate(values.items()):
        height = round(value / top * _HEIGHT, 1)
        x, y = round(place * step + 1.5, 1), round(_HEIGHT - height, 1)
        bars.append(Bar(label, value, x, y, round(step - 2.5, 1), height, write(value)))
    return bars


def _round_up(value: float) -> float:
    if value <= 0:
        return 1
    size = 10.0 ** math.floor(math.log10(value))
    return next(size * each for each in (1, 2, 3, 4, 5, 6, 8, 10) if size * each >= value)


def shares(values: Sequence[tuple[str, float]]) -> list[Bar]:
    """Returns horizontal bars. Their width is their share of the largest one, in percent."""
    top = max((value for _, value in values), default=0) or 1
    return [Bar(label, value, 0, 0, round(value / top * 100, 1), 0) for label, value in values]

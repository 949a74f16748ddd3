"""Charts as plain data: positions and sizes that the templates draw as SVG.

Labels can be stored text, which the templates must escape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from agents_session_metadata import keys
from agents_session_metadata.types import SessionInfo

from .text import parse_time, seconds, short, shown

_WIDTH: Final = 328
_HEIGHT: Final = 90
_UNITS: Final = ((3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
_MOST_PHASES: Final = 30


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


def columns(
    title: str, values: Mapping[str, float], write: Callable[[float], str], style: str = "accent"
) -> Chart:
    top = _round_up(max(values.values(), default=0))
    summary = f"{title}: {write(sum(values.values()))} in all, {_highest(values, write)}."
    return Chart(title, summary, short(top), [("", style, _bars(values, top, write))])


def durations(title: str, medians: Mapping[str, float], p95s: Mapping[str, float]) -> Chart:
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


def rows(values: Sequence[tuple[str, float]]) -> list[Bar]:
    """Returns horizontal bars. Their width is their share of the largest one, in percent."""
    top = max((value for _, value in values), default=0) or 1
    return [Bar(label, value, 0, 0, round(value / top * 100, 1), 0) for label, value in values]


@dataclass(frozen=True)
class Phase:
    """A phase on the time line. `x` and `width` are in percent."""

    name: str
    at: datetime
    x: float
    width: float
    duration: str
    final: bool


def phases(info: SessionInfo) -> list[Phase]:
    """Returns the recorded phases; none if the stored value has another form."""
    stored: Any = info.metadata.get(keys.PHASE_HISTORY)
    moves = []
    for each in stored[-_MOST_PHASES:] if isinstance(stored, list) else ():
        at = parse_time(each.get("at")) if isinstance(each, dict) else None
        if at is not None:
            moves.append((shown(each.get("phase"), 40), at))
    if not moves:
        return []
    finished = parse_time(info.metadata.get(keys.FINISHED_AT))
    start, end = moves[0][1], finished or datetime.now(timezone.utc)
    end = max(end, moves[-1][1])
    whole = (end - start).total_seconds() or 1
    found = []
    for place, (name, at) in enumerate(moves):
        following = moves[place + 1][1] if place + 1 < len(moves) else end
        length = max((following - at).total_seconds(), 0)
        is_last = place + 1 == len(moves)
        found.append(
            Phase(
                name,
                at,
                round(max((at - start).total_seconds(), 0) / whole * 100, 2),
                max(round(length / whole * 100, 2), 0.6),
                "" if is_last and finished else seconds(length * 1000),
                is_last and finished is not None,
            )
        )
    return found

"""Charts as plain data: positions and sizes that the templates draw as SVG.

Nothing here is text of a person or model; the templates escape what they write.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from agents_session_metadata import keys
from agents_session_metadata.types import SessionInfo

from .text import parse_time, seconds, shown

_WIDTH: Final = 528
_HEIGHT: Final = 110
_MOST_PHASES: Final = 30


@dataclass(frozen=True)
class Bar:
    """A bar of a chart: its label, its value, and where it is drawn."""

    label: str
    value: float
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Columns:
    """A chart with one column per label.

    Attributes:
        bars: The columns.
        top: The value at the upper edge.
        width: The width of the drawing.
        height: Its height.
    """

    bars: list[Bar]
    top: float
    width: int = _WIDTH
    height: int = _HEIGHT


def columns(values: Mapping[str, float]) -> Columns:
    """Draw a column for each label, in their order."""
    top = _round_up(max(values.values(), default=0))
    step = _WIDTH / max(len(values), 1)
    bars = []
    for place, (label, value) in enumerate(values.items()):
        height = round(value / top * _HEIGHT, 1)
        bars.append(
            Bar(
                label,
                value,
                round(place * step + 2, 1),
                _HEIGHT - height,
                round(step - 3, 1),
                height,
            )
        )
    return Columns(bars, top)


def _round_up(value: float) -> float:
    """A round number that is not below a value."""
    if value <= 0:
        return 1
    size = 10.0 ** math.floor(math.log10(value))
    return next(size * each for each in (1, 2, 3, 4, 5, 6, 8, 10) if size * each >= value)


def rows(values: Sequence[tuple[str, float]]) -> list[Bar]:
    """Horizontal bars, as wide as their share of the largest one, in percent."""
    top = max((value for _, value in values), default=0) or 1
    return [Bar(label, value, 0, 0, round(value / top * 100, 1), 0) for label, value in values]


@dataclass(frozen=True)
class Phase:
    """A phase on the time line: where it begins and how wide it is, in percent."""

    name: str
    at: datetime
    x: float
    width: float
    duration: str
    final: bool


def phases(info: SessionInfo) -> list[Phase]:
    """The phases that lifecycle recorded; nothing if the stored value is something else."""
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

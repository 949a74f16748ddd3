"""Timing: the parties of a comparison alternate, so that noise affects all of them alike.

Only ratios within one run can be compared. A ratio is computed per round; the median of all rounds
is reported.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any

Operation = Callable[[int], Awaitable[Any]]
"""Does one call. It gets the number of the call, to choose its values by."""

_SLOW, _VERY_SLOW = 0.25, 2.0
_SLOW_ROUNDS = 3
_LEAST_ROUNDS = 7
_WARM_UP = 44


@dataclass(frozen=True)
class Effort:
    """The greatest number of rounds and of seconds for one comparison."""

    rounds: int
    seconds: float


@dataclass(frozen=True)
class Timings:
    """Seconds per call in each round, by party."""

    seconds: dict[str, list[float]]

    def milliseconds(self, party: str) -> float:
        """The median of all rounds."""
        return median(self.seconds[party]) * 1000

    def ratio(self, party: str, other: str) -> float:
        """The time of a party divided by that of another one, in the median round."""
        mine, theirs = self.seconds[party], self.seconds[other]
        if len(mine) != len(theirs):
            return median(mine) / median(theirs)
        return median(one / another for one, another in zip(mine, theirs, strict=True))


async def contest(
    parties: Mapping[str, Operation], effort: Effort, *, calls: int = 4, warm_up: int = _WARM_UP
) -> Timings:
    """Let parties do the same in turn, each round in another order.

    A party that takes more than a quarter of a second per call has one call per turn and three
    turns. A party that takes more than two seconds has one turn.

    Args:
        parties: What each does in one call.
        effort: When to stop, but not before seven rounds.
        calls: Calls per turn.
        warm_up: Calls that are not counted: caches fill, and PostgreSQL settles on a plan.
    """
    turns: dict[str, int] = {}
    seconds: dict[str, list[float]] = {name: [] for name in parties}

    async def take_turn(name: str, first: int, count: int) -> None:
        began = time.perf_counter()
        for number in range(first, first + count):
            await parties[name](number)
        seconds[name].append((time.perf_counter() - began) / count)

    for name, operation in parties.items():
        for number in range(warm_up):
            began = time.perf_counter()
            await operation(number)
            took = time.perf_counter() - began
            # The first call may have to wait for the disk.
            if number and took > _SLOW:
                turns[name] = _SLOW_ROUNDS if took < _VERY_SLOW else 1
                break
    gc.collect()
    order, chance = list(parties), Random(0)
    began = time.perf_counter()
    for turn in range(effort.rounds):
        for name in order:
            if name not in turns:
                await take_turn(name, turn * calls, calls)
            elif turn < turns[name]:
                await take_turn(name, turn, 1)
        # At random, so that periodic work, such as garbage collection, affects all of them alike.
        chance.shuffle(order)
        if time.perf_counter() - began > effort.seconds and turn + 1 >= _LEAST_ROUNDS:
            break
    return Timings(seconds)

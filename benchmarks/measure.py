"""Timing: every party gets its turn in every round, so that noise hits all of them alike.

Only ratios within one interleaved run mean anything. A ratio is taken in each round; what is
reported is the median over the rounds.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Any

Operation = Callable[[int], Awaitable[Any]]
"""Does one call; it is given the number of the call, to choose its values by."""

_SLOW, _VERY_SLOW = 0.25, 2.0
_SLOW_ROUNDS = 3
_LEAST_ROUNDS = 7


@dataclass
class Timings:
    """Seconds a call, by party and round: of the wall's clock, and of this process's."""

    wall: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def milliseconds(self, party: str) -> float:
        """The median over the rounds."""
        return median(self.wall[party]) * 1000

    def ratio(self, party: str, other: str) -> float:
        """The median over the rounds of how much longer `party` took than `other`."""
        return _ratio(self.wall[party], self.wall[other])

    def cpu_ratio(self, party: str, other: str) -> float:
        """The same for the time that this process computed, which other processes disturb less."""
        return _ratio(self.cpu[party], self.cpu[other])


async def contest(
    parties: Mapping[str, Operation],
    *,
    calls: int = 4,
    rounds: int = 41,
    seconds: float = 8.0,
    warm_up: int = 44,
) -> Timings:
    """Let parties do the same, turn by turn, each round in another order.

    Who takes more than a quarter of a second a call has one call a turn, and three turns; who takes
    more than two seconds, one turn.

    Args:
        parties: What each does in one call.
        calls: Calls a party has in one turn.
        rounds: How many rounds at most.
        seconds: Stop after so long, though not before seven rounds.
        warm_up: Calls before it counts: caches fill, and PostgreSQL settles on a plan.

    Returns:
        What each took in each round, a call.
    """
    turns: dict[str, int] = {}
    timings = Timings({name: [] for name in parties}, {name: [] for name in parties})
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
    for turn in range(rounds):
        for name in order:
            if name not in turns:
                await _take_turn(timings, name, parties[name], turn * calls, calls)
            elif turn < turns[name]:
                await _take_turn(timings, name, parties[name], turn, 1)
        # By chance: what comes round by itself, as a collection of garbage, is to meet all alike.
        chance.shuffle(order)
        if time.perf_counter() - began > seconds and turn + 1 >= _LEAST_ROUNDS:
            break
    return timings


async def _take_turn(
    timings: Timings, name: str, operation: Operation, first: int, calls: int
) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(first, first + calls):
        await operation(number)
    timings.wall[name].append((time.perf_counter() - wall) / calls)
    timings.cpu[name].append((time.process_time() - cpu) / calls)


def _ratio(mine: list[float], theirs: list[float]) -> float:
    if len(mine) != len(theirs):
        return median(mine) / median(theirs)
    return median(one / other for one, other in zip(mine, theirs, strict=True))

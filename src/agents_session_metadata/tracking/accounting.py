"""Counts the usage of a tracker's runs by agent and model.

The SDK adds up the usage of a run, and of the agents that it uses as tools, in one object. Hooks
are called for each model call of the run itself, but not for those of agents inside tools. Their
usage is the rest of the object.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from agents.usage import Usage

from agents_session_metadata.types import JSONValue
from agents_session_metadata.usage.feature import UsageEntry
from agents_session_metadata.usage.prices import (
    MONEY,
    ModelPrice,
    Prices,
    Tokens,
    cost_of,
    decimal_of,
    model_name,
    price_of,
    total_cost,
)

_NOTHING = Tokens()
_COST_DECIMALS = Decimal("1e-12")
_TOO_MUCH = 10**12


@dataclass
class _Run:
    """A run, identified by its usage object.

    The object is kept so that no other object gets its `id()`. `started` is the usage when the run
    was first seen, `calling` the agent and model of a call in progress, and `caller` the agent that
    last used a tool. `is_heard` is true once a hook was called for the run; `first` and `last` are
    the times of its hooks. If `is_recorded`, each answer is counted where it is recorded, and hooks
    count only what is recorded nowhere.
    """

    usage: Usage
    started: Tokens
    counted: Tokens
    calling: tuple[str, str | None] | None = None
    caller: str | None = None
    is_heard: bool = False
    is_recorded: bool = False
    is_over: bool = False
    first: float = 0
    last: float = 0

    @property
    def used(self) -> Tokens:
        return Tokens.of(self.usage).minus(self.started)


class Accounts:
    """Usage of runs by agent and model. If `model` is given, all calls are counted under it."""

    def __init__(self, prices: Prices, model: str | None) -> None:
        self._prices = prices
        self._model = model
        self._runs: dict[int, _Run] = {}
        self._pending: dict[tuple[str | None, str | None], UsageEntry] = {}
        self.cost: Decimal = Decimal(0)
        self.unpriced: dict[str | None, None] = {}

    def __len__(self) -> int:
        # A resumed run may fail before it does anything.
        return sum(run.is_heard or run.used != _NOTHING for run in self._runs.values())

    def see(self, usage: Usage, now: float) -> bool:
        """Returns True for the first hook of a run."""
        run = self._remember(usage)
        is_first, run.is_heard = not run.is_heard, True
        run.first, run.last = now if is_first else run.first, now
        return is_first

    def ends(self, usage: Usage) -> None:
        self._remember(usage).is_over = True

    def break_off(self, now: float) -> None:
        """Must be called when an error has ended the runs that are not over."""
        for run in self._runs.values():
            if run.is_heard and not run.is_over:
                run.last = now

    def resumes(self, usage: Usage, name: str | None) -> None:
        """Must be called before a run is resumed.

        The SDK does not call a hook when a tool continues. If an agent was interrupted inside one,
        the first hook comes when the tool has ended, or never if it is interrupted again.
        """
        self._remember(usage).caller = name

    def records(self, usage: Usage) -> None:
        """Must be called before the answers of a run are counted by `replays` and `books`."""
        self._remember(usage).is_recorded = True

    def replays(self, usage: Usage, used: Tokens) -> None:
        """Leaves an answer out that was counted when it was recorded. The SDK counts it again."""
        run = self._remember(usage)
        run.started, run.counted = run.started.plus(used), run.counted.plus(used)

    def books(self, usage: Usage, entry: UsageEntry) -> None:
        """Counts an answer that is in the ledger already."""
        run = self._remember(usage)
        run.counted = run.counted.plus(entry.counts)
        self._spend(entry)

    def is_first_call(self, usage: Usage) -> bool:
        run = self._remember(usage)
        return run.counted == run.started

    def _remember(self, usage: Usage) -> _Run:
        now = Tokens.of(usage)
        return self._runs.setdefault(id(usage), _Run(usage, now, now))

    def model_of(self, agent: Any) -> str | None:
        return model_name(agent) if self._model is None else self._model

    def price_of(self, model: str | None) -> ModelPrice | None:
        return price_of(self._prices, model)

    def call_starts(self, usage: Usage, name: str, agent: Any) -> None:
        self._runs[id(usage)].calling = name, self.model_of(agent)

    def call_ends(self, usage: Usage, name: str, agent: Any, used: Usage) -> None:
        run = self._runs[id(usage)]
        run.calling = None
        if not run.is_recorded:
            self._count(run, name, self.model_of(agent), Tokens.of(used))

    def tool_starts(self, usage: Usage, name: str) -> None:
        self._runs[id(usage)].caller = name

    def tool_ends(self, usage: Usage, name: str) -> None:
        run = self._runs.get(id(usage))
        if run is not None:
            run.caller = name
            self._count_rest(run)

    def totals(self) -> tuple[Tokens, float]:
        """Returns what was used, and for how many seconds the runs took.

        Must be called after `take`, which counts what is not counted yet.
        """
        total, runs = _NOTHING, self._runs.values()
        for run in runs:
            total = total.plus(run.counted.minus(run.started))
        return total, sum(run.last - run.first for run in runs)

    def take(self) -> list[UsageEntry]:
        for run in self._runs.values():
            self._count_rest(run)
        taken, self._pending = self._pending, {}
        return [entry for entry in taken.values() if entry.counts != _NOTHING]

    def add(self, entry: UsageEntry) -> None:
        group = entry.agent, entry.model
        before = self._pending.get(group)
        if before is not None:
            counts = before.counts.plus(entry.counts)
            costs = [each for each in (before.cost, entry.cost) if each is not None]
            cost = total_cost(costs) if costs else None
            entry = UsageEntry(*group, counts, cost)
        self._pending[group] = entry

    def _count_rest(self, run: _Run) -> None:
        # A call has gone into the usage before its hook is called. If the call was counted here in
        # the meantime, its hook counts it again, and the rest is negative the next time.
        rest = Tokens.of(run.usage).minus(run.counted)
        if run.is_recorded and min(rest) < 0:
            return  # An answer was recorded, and the SDK has not counted it yet.
        if rest != _NOTHING:
            agent, model = run.calling or (run.caller, None)
            self._count(run, agent, model, rest)

    def _count(self, run: _Run, agent: str | None, model: str | None, used: Tokens) -> None:
        run.counted = run.counted.plus(used)
        entry = self.entry(agent, model, used)
        self._spend(entry)
        self.add(entry)

    def entry(self, agent: str | None, model: str | None, used: Tokens) -> UsageEntry:
        named = model if self._model is None else self._model
        price = self.price_of(named)
        return UsageEntry(agent, named, used, None if price is None else cost_of(used, price))

    def _spend(self, entry: UsageEntry) -> None:
        if entry.cost is None:
            self.unpriced[entry.model] = None
        else:
            self.cost = MONEY.add(self.cost, entry.cost)


def added_cost(stored: JSONValue, cost: Decimal) -> JSONValue:
    """Adds as decimals. What is no number counts as 0; one that is too large stays as it is."""
    before = stored if isinstance(stored, (int, float)) and not isinstance(stored, bool) else 0
    if abs(before) >= _TOO_MUCH:
        return stored
    total = MONEY.add(decimal_of(before), cost)
    rounded = MONEY.quantize(total, _COST_DECIMALS)
    return float(rounded if rounded.is_finite() else total)

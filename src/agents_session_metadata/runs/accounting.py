"""Whose model calls a tracker saw: the usage of its runs by agent and model.

The SDK adds up the usage of a run, and of the agents that it uses as tools, in one object. Hooks
hear of each model call that the run itself makes. What the object has more was used by agents
inside tools, whose calls hooks do not hear of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from agents.usage import Usage

from agents_session_metadata.storage.usage import UsageEntry
from agents_session_metadata.types import JSONValue

from .prices import ModelPrice, Prices, Tokens, cost_of, model_name, price_of

_NOTHING = Tokens()
_COST_DECIMALS = Decimal("1e-12")
_TOO_MUCH = Decimal(10**12)
"""Nobody spends so much: a stored cost beyond is not one."""


@dataclass
class _Run:
    """A run.

    Attributes:
        usage: Its usage, which goes on growing; it is kept, so that its identity stays its own.
        started: What it was when it was first seen.
        counted: What has been counted of it.
        calling: Agent and model of a call that has not ended.
        caller: The agent that last used a tool.
        is_heard: Whether a hook was called for it.
    """

    usage: Usage
    started: Tokens
    counted: Tokens
    calling: tuple[str, str | None] | None = None
    caller: str | None = None
    is_heard: bool = False

    @property
    def used(self) -> Tokens:
        """What it has used since it was first seen."""
        return Tokens.of(self.usage).minus(self.started)


class Accounts:
    """The usage of runs, by agent and model.

    Args:
        prices: The prices.
        model: The model of all calls, if the application says it.
    """

    def __init__(self, prices: Prices, model: str | None) -> None:
        self._prices = prices
        self._model = model
        self._runs: dict[int, _Run] = {}
        self._pending: dict[tuple[str | None, str | None], tuple[Tokens, Decimal | None]] = {}
        self.cost: Decimal = Decimal(0)
        """What the calls cost that were counted and have a price."""
        self.unpriced: dict[str | None, None] = {}
        """The models of calls that were counted and have no price."""

    def __len__(self) -> int:
        # A resumed run may fail before it does anything.
        return sum(run.is_heard or run.used != _NOTHING for run in self._runs.values())

    def see(self, usage: Usage) -> bool:
        """Remember a run; give whether this is its first hook."""
        run = self._remember(usage)
        is_first, run.is_heard = not run.is_heard, True
        return is_first

    def resumes(self, usage: Usage, name: str | None) -> None:
        """A run of an agent is about to go on.

        The SDK does not tell hooks that a tool goes on. If an agent was interrupted inside one, the
        first hook comes when the tool has ended, or none comes if it is interrupted again.
        """
        self._remember(usage).caller = name

    def _remember(self, usage: Usage) -> _Run:
        now = Tokens.of(usage)
        return self._runs.setdefault(id(usage), _Run(usage, now, now))

    def model_of(self, agent: Any) -> str | None:
        """The model that calls of an agent are counted under."""
        return model_name(agent) if self._model is None else self._model

    def price_of(self, model: str | None) -> ModelPrice | None:
        """The price of a model; None if it has none."""
        return price_of(self._prices, model)

    def call_starts(self, usage: Usage, name: str, agent: Any) -> None:
        """A model call of an agent begins."""
        self._runs[id(usage)].calling = name, self.model_of(agent)

    def call_ends(self, usage: Usage, name: str, agent: Any, used: Usage) -> None:
        """A model call of an agent has ended."""
        run = self._runs[id(usage)]
        run.calling = None
        self._count(run, name, self.model_of(agent), Tokens.of(used))

    def tool_starts(self, usage: Usage, name: str) -> None:
        """An agent uses a tool."""
        self._runs[id(usage)].caller = name

    def tool_ends(self, usage: Usage, name: str) -> None:
        """A tool has ended: what it used is counted."""
        run = self._runs.get(id(usage))
        if run is not None:
            run.caller = name
            self._count_rest(run)

    def totals(self) -> tuple[int, Tokens]:
        """The number of runs, and what they have used."""
        total = _NOTHING
        for run in self._runs.values():
            total = total.plus(run.used)
        return len(self), total

    def count_all(self) -> None:
        """Count what no hook has told of."""
        for run in self._runs.values():
            self._count_rest(run)

    def take(self) -> list[UsageEntry]:
        """What was counted since it was last taken."""
        self.count_all()
        taken, self._pending = self._pending, {}
        return [
            UsageEntry(agent, model, tokens, cost)
            for (agent, model), (tokens, cost) in taken.items()
            if tokens != _NOTHING
        ]

    def give_back(self, entries: Iterable[UsageEntry]) -> None:
        """Take back entries that could not be written."""
        for entry in entries:
            self._add((entry.agent, entry.model), Tokens(*entry.counts), entry.cost)

    def _count_rest(self, run: _Run) -> None:
        # A call has gone into the usage before its hook is called. If the call was counted here in
        # the meantime, its hook counts it again, and the rest is negative the next time.
        used = Tokens.of(run.usage)
        if used != run.counted:
            agent, model = run.calling or (run.caller, self._model)
            self._count(run, agent, model, used.minus(run.counted))

    def _count(self, run: _Run, agent: str | None, model: str | None, used: Tokens) -> None:
        run.counted = run.counted.plus(used)
        price = self.price_of(model)
        if price is None:
            self.unpriced[model] = None
            self._add((agent, model), used, None)
        else:
            cost = cost_of(used, price)
            self.cost += cost
            self._add((agent, model), used, cost)

    def _add(
        self, whose: tuple[str | None, str | None], used: Tokens, cost: Decimal | None
    ) -> None:
        before, cost_before = self._pending.get(whose, (_NOTHING, None))
        added = cost if cost_before is None else cost_before + (cost or 0)
        self._pending[whose] = before.plus(used), added


def added_cost(stored: JSONValue, cost: Decimal) -> JSONValue:
    """Add a cost to a stored one, as decimals; return the stored one unchanged if it is invalid."""
    before = stored if isinstance(stored, (int, float)) and not isinstance(stored, bool) else 0
    if not abs(before) < _TOO_MUCH:
        return stored
    return float((Decimal(str(before)) + cost).quantize(_COST_DECIMALS))


def added_calls(stored: list[Any], calls: list[tuple[str, str, int]]) -> list[list[Any]]:
    """Stored calls and milliseconds by tool, and others, added."""
    totals: dict[str, list[int]] = {}
    for entry in stored:
        if isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str):
            totals[entry[0]] = [number if type(number) is int else 0 for number in entry[1:]]
    for _, tool, milliseconds in calls:
        total = totals.setdefault(tool, [0, 0])
        total[0] += 1
        total[1] += milliseconds
    return [[tool, *total] for tool, total in totals.items()]

"""`SessionTracker`: what a run did, recorded in the session's metadata by the SDK's run hooks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from agents import RunHooks
from agents.models import get_default_model
from agents.usage import Usage

from agents_session_metadata import keys
from agents_session_metadata.errors import MetadataLimitError
from agents_session_metadata.quoting import quoted
from agents_session_metadata.types import JSONValue, Metadata

from .lifecycle import Forwarding, count_of, edit_keeping

if TYPE_CHECKING:
    from typing_extensions import Self

logger: logging.Logger = logging.getLogger(__name__)

_PER = 1_000_000
_COST_DECIMALS = Decimal("1e-12")
_TOO_MUCH = Decimal(10**12)


class _Session(Protocol):
    async def edit_metadata(self, change: Callable[[Metadata], object], /) -> Metadata: ...


@dataclass(frozen=True)
class ModelPrice:
    """What a million tokens cost, in whatever currency: one for all prices that are added up.

    Attributes:
        input: Input tokens, those that were not cached.
        output: Output tokens.
        cached_input: Cached input tokens; as `input` when None.

    Raises:
        ValueError: If a price is negative or no finite number.
    """

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None

    def __post_init__(self) -> None:
        for name, price in vars(self).items():
            finite = price is None or Decimal(price).is_finite()
            if not finite or not 0 <= (price or 0) < _TOO_MUCH:
                raise ValueError(f"{name} must be a price, not {quoted(price)}")

    def cost(self, usage: Usage) -> Decimal:
        """What this usage costs.

        Args:
            usage: Tokens, as the SDK counts them.

        Returns:
            The cost in the currency of the prices, exactly.
        """
        cached = usage.input_tokens_details.cached_tokens
        cached_price = self.input if self.cached_input is None else self.cached_input
        fresh = max(usage.input_tokens - cached, 0)
        total = fresh * Decimal(self.input) + cached * Decimal(cached_price)
        return (total + usage.output_tokens * Decimal(self.output)) / _PER


@dataclass
class _ToolCall:
    identity: str
    tool: str
    started: float
    milliseconds: int | None = None


class SessionTracker(RunHooks[Any]):
    """Run hooks that record what a run did, in one write of the session's metadata.

    ```python
    async with SessionTracker(session) as hooks:
        await Runner.run(agent, "Hello", session=session, hooks=hooks)
    ```

    It adds up, over runs: `runs`, `requests`, `input_tokens`, `output_tokens`, `total_tokens`,
    `run_ms`, `agents`, `tool_calls`, `invocations` and, when prices are given, `cost`. An exception
    that leaves the block adds to `error_count` and sets `last_error`; of a failure that is caught
    within it, hooks are not told. The totals are right when runs overlap, in one process or in
    several. All runs within one `async with` are written at its end; blocks of one tracker that
    overlap count as one, which ends with the last of them.

    A tracker that cannot write logs a warning. It never replaces a run's result or its error.

    Args:
        session: The session; an `EncryptedSession` around it will do.
        hooks: Run hooks of the application's own; they are called first.
        prices: A price for every model, or prices by model name. Requests to a model that has none
            cost nothing. The name is that of the agent's model, or of the SDK's default model: one
            that a `RunConfig` sets in their place, hooks are not told.
        clock: Gives seconds; for tests.

    Raises:
        TypeError: If a price is no `ModelPrice`.
    """

    def __init__(
        self,
        session: _Session | Forwarding,
        *,
        hooks: RunHooks[Any] | None = None,
        prices: ModelPrice | Mapping[str, ModelPrice] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        each = prices.values() if isinstance(prices, Mapping) else [prices] if prices else []
        for price in each:
            if not isinstance(price, ModelPrice):
                raise TypeError(f"a price must be a ModelPrice, not {type(price).__name__}")
        self.session = session
        self._hooks = hooks
        self._prices = prices
        self._clock = clock
        self._open_blocks = 0
        self._reset()

    def _reset(self) -> None:
        self._usages: dict[int, tuple[Usage, Usage]] = {}
        self._agents: dict[str, None] = {}
        self._calls: list[_ToolCall] = []
        self._open: dict[Any, _ToolCall] = {}
        self._cost = Decimal(0)
        self._failures: list[str] = []
        self._started = self._clock()

    async def __aenter__(self) -> Self:
        if not self._open_blocks:
            self._reset()
        self._open_blocks += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A cancellation or an interrupt is somebody's wish, not a failure.
        if isinstance(error, Exception):
            self._failures.append(_message_of(error))
        self._open_blocks -= 1
        if not self._open_blocks:
            await self._write()

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: Any, input_items: Any
    ) -> None:
        self._see(context)
        if self._hooks is not None:
            await self._hooks.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        self._see(context)
        if isinstance(self._prices, Mapping):
            price = self._prices.get(_model_name(agent))
            if price is not None:
                self._cost += price.cost(response.usage)
        if self._hooks is not None:
            await self._hooks.on_llm_end(context, agent, response)

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        self._see(context)
        self._agents[_storable(agent.name)] = None
        if self._hooks is not None:
            await self._hooks.on_agent_start(context, agent)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        if self._hooks is not None:
            await self._hooks.on_agent_end(context, agent, output)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        if self._hooks is not None:
            await self._hooks.on_handoff(context, from_agent, to_agent)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        self._see(context)
        # A provider may use the same id again in another turn or run.
        call = _ToolCall(_call_id(context, tool), _storable(tool.name), self._clock())
        self._calls.append(call)
        self._open[id(context.usage), call.identity] = call
        if self._hooks is not None:
            await self._hooks.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        call = self._open.pop((id(context.usage), _call_id(context, tool)), None)
        if call is not None:
            call.milliseconds = self._milliseconds_of(call)
        if self._hooks is not None:
            await self._hooks.on_tool_end(context, agent, tool, result)

    def _see(self, context: Any) -> None:
        """Remember a run by its usage, which goes on growing and which nested runs share."""
        usage = context.usage
        if id(usage) not in self._usages:
            self._usages[id(usage)] = (usage, _copied(usage))

    def _milliseconds_of(self, call: _ToolCall) -> int:
        """How long a call took; or has taken: the SDK does not tell when one fails."""
        if call.milliseconds is not None:
            return call.milliseconds
        return round((self._clock() - call.started) * 1000)

    async def _write(self) -> None:
        failures = self._failures
        if not self._usages and not failures:
            return
        added = _sum(self._usages.values())
        cost = self._cost
        if isinstance(self._prices, ModelPrice):
            price = self._prices
            spent = (price.cost(now) - price.cost(then) for now, then in self._usages.values())
            cost = sum(spent, Decimal(0))
        added[keys.RUN_MS] = round((self._clock() - self._started) * 1000)
        calls = [(call.identity, call.tool, self._milliseconds_of(call)) for call in self._calls]
        agents = list(self._agents)

        def change(stored: Metadata, kept: int, *, by_name: bool = True) -> None:
            for key, number in added.items():
                stored[key] = count_of(stored, key) + number
            if self._prices is not None:
                stored[keys.COST] = _added_cost(stored.get(keys.COST), cost)
            if by_name:
                known = _list_of(stored, keys.AGENTS)
                stored[keys.AGENTS] = [*known, *(each for each in agents if each not in known)]
            if calls and by_name:
                stored[keys.TOOL_CALLS] = _added_calls(_list_of(stored, keys.TOOL_CALLS), calls)
            if calls:
                newest = [*_list_of(stored, keys.INVOCATIONS), *map(list, calls)]
                stored[keys.INVOCATIONS] = newest[-kept:]
            if failures:
                stored[keys.ERROR_COUNT] = count_of(stored, keys.ERROR_COUNT) + len(failures)
                stored[keys.LAST_ERROR] = failures[-1]
                stored[keys.TOUCHED_AT] = datetime.now(timezone.utc).isoformat()

        self._reset()
        try:
            try:
                await edit_keeping(self.session, keys.INVOCATIONS, change)
            except MetadataLimitError as full:
                of_names = full.key in (keys.AGENTS, keys.TOOL_CALLS)
                if not of_names or full.limit != "max_value_bytes":
                    raise
                # The totals, and a failure, count all the same.
                logger.warning("%s: the names in it are not recorded", full)
                await edit_keeping(self.session, keys.INVOCATIONS, partial(change, by_name=False))
        except Exception:
            logger.warning("what a run did could not be recorded", exc_info=True)


def _message_of(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # of a class of the application's own
        text = ""
    return _storable(f"{type(error).__name__}: {text}"[:500])


def _model_name(agent: Any) -> str:
    model = getattr(agent, "model", None)
    if model is None:
        return get_default_model()
    return model if isinstance(model, str) else str(getattr(model, "model", ""))


def _call_id(context: Any, tool: Any) -> str:
    """What the start and the end of one tool call have in common."""
    return _storable(getattr(context, "tool_call_id", None) or f"{tool.name}-{id(context):x}")


def _storable(text: object) -> str:
    """A name or message, which may come from outside, without what a database cannot add up."""
    return str(text).encode(errors="replace").decode().replace("\x00", "\ufffd")


def _copied(usage: Usage) -> Usage:
    copy = Usage()
    copy.add(usage)
    return copy


def _sum(usages: Any) -> dict[str, int]:
    added: dict[str, int] = {}
    for key in (keys.RUNS, keys.REQUESTS, keys.INPUT_TOKENS, keys.OUTPUT_TOKENS, keys.TOTAL_TOKENS):
        added[key] = 0
    for now, then in usages:
        added[keys.RUNS] += 1
        added[keys.REQUESTS] += now.requests - then.requests
        added[keys.INPUT_TOKENS] += now.input_tokens - then.input_tokens
        added[keys.OUTPUT_TOKENS] += now.output_tokens - then.output_tokens
        added[keys.TOTAL_TOKENS] += now.total_tokens - then.total_tokens
    return added


def _list_of(stored: Mapping[str, Any], key: str) -> list[Any]:
    value = stored.get(key)
    return value if isinstance(value, list) else []


def _added_cost(stored: JSONValue, cost: Decimal) -> JSONValue:
    """A stored cost and another, added as decimals; one that is no cost stays as it is."""
    before = stored if isinstance(stored, (int, float)) and not isinstance(stored, bool) else 0
    if not abs(before) < _TOO_MUCH:
        return stored
    return float((Decimal(str(before)) + cost).quantize(_COST_DECIMALS))


def _added_calls(stored: list[Any], calls: list[tuple[str, str, int]]) -> list[list[Any]]:
    totals: dict[str, list[int]] = {}
    for entry in stored:
        if isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str):
            totals[entry[0]] = [number if type(number) is int else 0 for number in entry[1:]]
    for _, tool, milliseconds in calls:
        total = totals.setdefault(tool, [0, 0])
        total[0] += 1
        total[1] += milliseconds
    return [[tool, *total] for tool, total in totals.items()]

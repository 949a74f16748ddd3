"""Records what a run does, and gives back what was recorded when the run goes on.

The run works on copies of its agents, whose models and tools look in the record first. Outputs are
recorded by run hooks: the SDK calls none for an agent that is used as a tool and waits.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, partial
from typing import Any

from agents import Agent, AgentHooks, Handoff, ModelResponse, RunConfig, RunHooks
from agents.models.interface import ModelProvider
from agents.models.multi_provider import MultiProvider
from agents.tool import (
    CustomTool,
    FunctionTool,
    ValidToolOutputPydanticModels,
    ValidToolOutputPydanticModelsTypeAdapter,
)
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError
from sqlalchemy import Connection

from agents_session_metadata._sdk import (
    ModelAround,
    answering_first,
    completed,
    response_of,
    retarget,
    set_last_agent,
)

from .lease import Lease

_path: ContextVar[str] = ContextVar("path", default="")
"""The id of the call inside which a model is called; empty outside of tools."""


class Journal:
    """The steps of a run since it began or went on after a pause."""

    def __init__(self, lease: Lease) -> None:
        self.is_durable: bool = lease.progress.durable
        self._lease = lease
        self._answers: dict[str, list[Any]] = {}
        self._outputs: dict[str, Any] = {}
        self._asked: Counter[str] = Counter()
        # Steps of tools that ran in parallel may lack one that was not written.
        self._number = max(lease.steps, default=-1) + 1
        self._pending: list[dict[str, Any]] = []
        self._lock = asyncio.Lock()
        # Calls that waited at the pause inside an agent that is used as a tool. The SDK finishes
        # them from the state, so nothing is given back for them.
        self._inside = frozenset(lease.progress.inside)
        self.open_calls: set[str] = set(self._inside)
        """The calls that have begun and have not ended, so they wait inside if the run pauses."""
        self.base: list[str] | None = None
        """The items that the history had at the beginning, if the run has replaced them."""
        self.is_used: bool = False
        """Whether a model or a tool was called, or could have been without being recorded."""
        self.was_replayed: bool = False
        """Whether the last answer to the run itself was given back."""
        for step in lease.steps.values():
            if "answer" in step:
                self._answers.setdefault(step["path"], []).append(step["answer"])
            elif "output" in step:
                self._outputs[step["call"]] = step["output"]
            else:
                self.base = step["base"]

    @property
    def will_replay(self) -> bool:
        """Whether the next answer to the run itself is recorded."""
        return self._asked[""] < len(self._answers.get("", ()))

    # ---- answers and outputs ----

    def answer(self, path: str) -> ModelResponse | None:
        self.is_used = True
        recorded, number = self._answers.get(path, ()), self._asked[path]
        found = number < len(recorded)
        if not path:
            self.was_replayed = found
        if not found:
            return None
        self._asked[path] += 1
        return _responses().validate_python(recorded[number])

    async def add_answer(self, path: str, response: ModelResponse) -> None:
        self._asked[path] += 1
        # Without the fields that the model did not set: the history has none of them.
        dumped = _responses().dump_python(response, mode="json", exclude_unset=True)
        await self._add({"path": path, "answer": dumped})

    def call(self, call_id: str | None) -> str:
        # Some models use an id again in a later turn.
        return f"{self._asked['']} {call_id}"

    def output(self, call_id: str | None) -> Any:
        """Returns what is recorded, for `load_output`, or None."""
        self.is_used = True
        return self._outputs.get(self.call(call_id))

    async def add_output(self, call_id: str, output: Any, *, may_wait: bool) -> None:
        """With `may_wait`, the last output of a turn is written with the history of the turn.

        Pass it only if nothing of the application runs in between.
        """
        if call_id not in self._inside:
            step = {"call": self.call(call_id), "output": dump_output(output)}
            await self._add(step, now=not may_wait or bool(self.open_calls))

    # ---- writing ----

    async def _add(self, step: dict[str, Any], *, now: bool = True) -> None:
        self._pending.append(self._row(step))
        if now:
            await self.flush()

    def _row(self, step: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        return {"number": self._number - 1, "value": self._lease.encryption.dump(step)}

    async def flush(self) -> None:
        """Writes the steps that wait for a write of the history."""
        if self._pending:
            database = self._lease.store.database
            async with self.writing() as insert:
                write = database.write_one if len(self._pending) == 1 else database.write
                await write(insert)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Callable[[Connection], None]]:
        """Yields a function that inserts the steps that wait. The block must commit them."""
        async with self._lock:
            steps = list(self._pending)

            def insert(connection: Connection) -> None:
                for step in steps:
                    self._lease.fence(connection, self._lease.sql.add_step, **step)

            yield insert
            del self._pending[: len(steps)]

    def keep_base(self, connection: Connection, texts: list[str]) -> None:
        """Keeps the items that the run began with, before the run replaces them."""
        if self.is_durable:
            self._lease.fence(connection, self._lease.sql.add_step, **self._row({"base": texts}))


# ---- outputs as JSON ----


@cache
def _responses() -> TypeAdapter[ModelResponse]:
    return TypeAdapter(ModelResponse)


def dump_output(value: Any) -> Any:
    """Returns JSON for an output of a tool. Values that are not JSON become the model's text."""
    parts = value if isinstance(value, list) else [value]
    if parts and all(isinstance(part, ValidToolOutputPydanticModels) for part in parts):
        dumped = [part.model_dump(mode="json", exclude_none=True) for part in parts]
        return {"parts": dumped} if parts is value else {"part": dumped[0]}
    try:
        copied = json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        copied = None
    # By `repr`, which the model is sent: it tells 1 from True, and a tuple from a list.
    return {"json": value if repr(copied) == repr(value) else str(value)}


def load_output(value: Any) -> Any:
    if "json" in value:
        return value["json"]
    load = ValidToolOutputPydanticModelsTypeAdapter.validate_python
    return [load(part) for part in value["parts"]] if "parts" in value else load(value["part"])


# ---- final outputs ----


def _output_type(agent: Agent[Any]) -> Any:
    """Returns the type of an agent's final output, or None if it is text or not known."""
    kind = agent.output_type
    kind = getattr(kind, "output_type", kind) if not isinstance(kind, type) else kind
    return None if kind is str else kind


def dump_final(value: Any, agent: Agent[Any]) -> Any:
    kind = _output_type(agent)
    if kind is not None:
        try:
            return TypeAdapter(kind).dump_python(value, mode="json")
        except (PydanticSerializationError, ValueError, TypeError):
            pass  # The output of a tool at which the run stopped.
    if isinstance(value, ValidToolOutputPydanticModels):
        return str(value)
    return load_output(dump_output(value))


def load_final(value: Any, agent: Agent[Any] | None) -> Any:
    kind = None if agent is None else _output_type(agent)
    if kind is None:
        return value
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValueError:
        return value


# ---- models ----


class _RecordedModel(ModelAround):
    def __init__(self, model: Any, journal: Journal) -> None:
        super().__init__(model)
        self._journal = journal

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        path = _path_of(args, kwargs)
        response = self._journal.answer(path)
        if response is None:
            await self._journal.flush()
            response = await self.model.get_response(*args, **kwargs)
            await self._journal.add_answer(path, response)
        return response

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        path = _path_of(args, kwargs)
        recorded = self._journal.answer(path)
        if recorded is not None:
            yield completed(recorded)
            return
        await self._journal.flush()
        items: list[Any] = []
        async for event in self.model.stream_response(*args, **kwargs):
            response = response_of(event, items)
            if response is not None:
                await self._journal.add_answer(path, response)
            yield event


def _path_of(args: Any, kwargs: Any) -> str:
    """Tells apart the runs inside one tool, which can be parallel, by what they begin with."""
    path = _path.get()
    if not path:
        return path
    given = kwargs["input"] if "input" in kwargs else args[1]
    first = given if isinstance(given, str) else given[:1]
    digest = hashlib.sha256(json.dumps(first, sort_keys=True, default=str).encode())
    return f"{path} {digest.hexdigest()[:16]}"


class _RecordedProvider(ModelProvider):
    def __init__(self, provider: ModelProvider, journal: Journal) -> None:
        self._provider = provider
        self._journal = journal

    def get_model(self, model_name: str | None) -> Any:
        return _RecordedModel(self._provider.get_model(model_name), self._journal)

    async def aclose(self) -> None:
        await self._provider.aclose()


def recorded_config(config: Any, journal: Journal) -> tuple[Any, ModelProvider | None]:
    """Returns the run configuration, and a provider that the caller must close after the run."""
    given = vars(config) if isinstance(config, RunConfig) else config or {}
    own = None if "model_provider" in given else MultiProvider()
    changed = {
        "model": _recorded(given.get("model"), journal),
        "model_provider": _RecordedProvider(own or given["model_provider"], journal),
    }
    if isinstance(config, RunConfig):
        return replace(config, **changed), own
    return {**given, **changed}, own


def _recorded(model: Any, journal: Journal) -> Any:
    return model if model is None or isinstance(model, str) else _RecordedModel(model, journal)


# ---- agents and hooks ----


class Copies:
    """Copies of agents, which ask the journal first. A subclass can answer in another way."""

    def __init__(self, journal: Any) -> None:
        self.journal: Journal = journal
        self._copies: dict[int, Agent[Any]] = {}
        self._originals: dict[int, Any] = {}
        self._kept: list[Any] = []  # So that no other object gets the `id()` of a copy.

    def original(self, copied: Any) -> Any:
        return self._originals.get(id(copied), copied)

    def of(self, agent: Any) -> Any:
        if not isinstance(agent, Agent) or id(agent) in self._originals:
            return agent
        found = self._copies.get(id(agent))
        if found is not None:
            return found
        copied = copy.copy(agent)
        self._copies[id(agent)] = copied
        self._originals[id(copied)] = agent
        copied.tools = [self.tool(tool) for tool in agent.tools]
        copied.handoffs = [self._handoff(each) for each in agent.handoffs]
        if agent.mcp_servers:
            shadowed: Any = copied
            shadowed.get_mcp_tools = partial(self._mcp_tools, copied.get_mcp_tools)
        self.adapt(copied)
        return copied

    def adapt(self, copied: Agent[Any]) -> None:
        copied.model = _recorded(copied.model, self.journal)
        if copied.hooks is not None:
            copied.hooks = _AgentHooks(copied.hooks, self)

    @classmethod
    def named(cls, agent: Agent[Any], name: str) -> Any:
        """Returns the agent of this name that an agent can hand off to, or None."""
        copies = cls(None)
        copies.of(agent)
        agents = (copies.original(each) for each in copies._copies.values())
        return next((each for each in agents if each.name == name), None)

    async def _mcp_tools(self, get: Any, context: Any) -> list[Any]:
        return [self.tool(tool) for tool in await get(context)]

    def tool(self, tool: Any) -> Any:
        if not isinstance(tool, (FunctionTool, CustomTool)):
            return tool
        copied = copy.copy(tool)
        copied.on_invoke_tool = answering_first(copied.on_invoke_tool, self.answer)
        self._originals[id(copied)] = tool
        self._kept.append(copied)
        return copied

    async def answer(self, invoke: Any, context: Any, arguments: str) -> Any:
        found = self.journal.output(context.tool_call_id)
        if found is not None:
            return load_output(found)
        await self.journal.flush()
        token = _path.set(self.journal.call(context.tool_call_id))
        try:
            return await invoke(context, arguments)
        finally:
            _path.reset(token)

    def _handoff(self, handoff: Any) -> Any:
        if not isinstance(handoff, Handoff):
            return self.of(handoff)
        copied = copy.copy(handoff)
        invoke = handoff.on_invoke_handoff

        async def hand_off(context: Any, arguments: str) -> Any:
            return self.of(await invoke(context, arguments))

        copied.on_invoke_handoff = hand_off
        retarget(copied, self.of)
        return copied

    def restore(self, result: Any) -> None:
        """Puts the original agents into a result."""
        for item in (*result.new_items, *result.interruptions):
            self._restore_item(item)
        set_last_agent(result, self.original(result.last_agent))

    def restored(self, event: Any) -> Any:
        """Returns an event of a stream with the original agents."""
        if event.type == "agent_updated_stream_event":
            event = copy.copy(event)
            event.new_agent = self.original(event.new_agent)
        elif event.type == "run_item_stream_event":
            event = copy.copy(event)
            event.item = copy.copy(event.item)
            self._restore_item(event.item)
        return event

    def _restore_item(self, item: Any) -> None:
        for name in ("agent", "source_agent", "target_agent"):
            if getattr(item, name, None) is not None:
                setattr(item, name, self.original(getattr(item, name)))


class _Hooks:
    """Forwards to hooks what happens now, with the original agents and tools."""

    def __init__(self, hooks: Any, copies: Copies) -> None:
        self._copies, self._journal = copies, copies.journal
        for event in dir(hooks):
            if event.startswith("on_"):
                setattr(self, event, partial(self._forward, event, getattr(hooks, event)))

    async def _forward(self, event: str, call: Any, context: Any, *args: Any, **named: Any) -> None:
        if not self._is_replayed(event, context):
            given = {name: self._copies.original(value) for name, value in named.items()}
            await call(context, *map(self._copies.original, args), **given)

    def _is_replayed(self, event: str, context: Any) -> bool:
        if event in ("on_agent_end", "on_end"):
            return False
        if event in ("on_tool_start", "on_tool_end"):
            return self._journal.output(_call_id(context)) is not None
        return self._journal.was_replayed if event == "on_llm_end" else self._journal.will_replay


class _AgentHooks(_Hooks, AgentHooks[Any]):
    pass


class RecordedHooks(_Hooks, RunHooks[Any]):
    """Records the outputs of tools besides."""

    def __init__(self, hooks: RunHooks[Any] | None, copies: Copies) -> None:
        super().__init__(RunHooks() if hooks is None else hooks, copies)
        self._hears_nothing = hooks is None

    async def _forward(self, event: str, call: Any, context: Any, *args: Any, **named: Any) -> None:
        call_id = _call_id(context)
        if event == "on_tool_start" and call_id is not None:
            self._journal.open_calls.add(call_id)
        elif event == "on_tool_end" and call_id is not None:
            self._journal.open_calls.discard(call_id)
            if self._journal.output(call_id) is None:
                may_wait = self._hears_nothing and args[0].hooks is None
                await self._journal.add_output(call_id, args[-1], may_wait=may_wait)
        await super()._forward(event, call, context, *args, **named)


def _call_id(context: Any) -> str | None:
    found = getattr(context, "tool_call_id", None)
    return found if isinstance(found, str) else None

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
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

from agents import Agent, AgentHooks, Handoff, ModelResponse, RunConfig, RunHooks
from agents.models.interface import ModelProvider
from agents.models.multi_provider import MultiProvider
from agents.tool import CustomTool, FunctionTool
from sqlalchemy import Connection, Table, insert

from agents_session_metadata._sdk import (
    ModelAround,
    answering_first,
    completed,
    response_of,
    retarget,
    set_last_agent,
)

from .feature import RUNS
from .lease import Lease
from .values import Encryption, dump_output, dump_response, load_output, load_response

_path: ContextVar[str] = ContextVar("path", default="")
"""The id of the call inside which a model is called; empty outside of tools."""

_NOTHING: Any = object()


class Journal:
    """The steps of a run since it began or went on after a pause.

    `inside` has the ids of calls that waited at the pause in an agent that is used as a tool. The
    SDK finishes them from the state, so nothing is given back for them.
    """

    def __init__(
        self,
        lease: Lease,
        encryption: Encryption,
        steps: Mapping[int, Any],
        inside: Iterable[str],
        *,
        durable: bool,
    ) -> None:
        self.lease = lease
        self.is_durable = durable
        self._encryption = encryption
        self._answers: dict[str, list[Any]] = {}
        self._outputs: dict[str, Any] = {}
        self._asked: Counter[str] = Counter()
        # Steps of tools that ran in parallel may lack one that was not written.
        self._number = max(steps, default=-1) + 1
        self._pending: list[tuple[int, str]] = []
        self._lock = asyncio.Lock()
        self._inside = set(inside)
        self._open = set(inside)
        self.base: list[str] | None = None
        """The items that the history had at the beginning, if the run has replaced them."""
        self.was_replayed: bool = False
        """Whether the last answer to the run itself was given back."""
        for step in steps.values():
            if "answer" in step:
                self._answers.setdefault(step["path"], []).append(step["answer"])
            elif "output" in step:
                self._outputs[step["call"]] = step["output"]
            else:
                self.base = step["base"]

    @property
    def open_calls(self) -> list[str]:
        """The calls that have begun and have not ended, so they wait inside if the run pauses."""
        return sorted(self._open)

    @property
    def will_replay(self) -> bool:
        """Whether the next answer to the run itself is recorded."""
        return self._asked[""] < len(self._answers.get("", ()))

    # ---- answers ----

    def answer(self, path: str) -> ModelResponse | None:
        recorded, number = self._answers.get(path, ()), self._asked[path]
        found = number < len(recorded)
        if not path:
            self.was_replayed = found
        if not found:
            return None
        self._asked[path] += 1
        return load_response(recorded[number])

    async def add_answer(self, path: str, response: ModelResponse) -> None:
        self._asked[path] += 1
        await self._add({"path": path, "answer": dump_response(response)})

    # ---- outputs ----

    def _call(self, call_id: str) -> str:
        # Some models use an id again in a later turn.
        return f"{self._asked['']} {call_id}"

    def output(self, call_id: str) -> Any:
        found = self._outputs.get(self._call(call_id), _NOTHING)
        return _NOTHING if found is _NOTHING else load_output(found)

    def has_output(self, call_id: str | None) -> bool:
        return call_id is not None and self._call(call_id) in self._outputs

    def note_call(self, event: str, call_id: str | None) -> None:
        if event == "on_tool_start" and call_id is not None:
            self._open.add(call_id)
        elif event == "on_tool_end" and call_id is not None:
            self._open.discard(call_id)

    async def add_output(self, call_id: str | None, output: Any, *, may_wait: bool) -> None:
        """With `may_wait`, the last output of a turn is written with the history of the turn.

        Pass it only if nothing of the application runs in between.
        """
        if call_id is not None and call_id not in self._inside:
            step = {"call": self._call(call_id), "output": dump_output(output)}
            await self._add(step, now=not may_wait or bool(self._open))

    # ---- writing ----

    async def _add(self, step: dict[str, Any], *, now: bool = True) -> None:
        if self.is_durable:
            self._pending.append((self._number, self._encryption.dump(step)))
            self._number += 1
            if now:
                await self.flush()

    async def flush(self) -> None:
        """Writes the steps that wait for a write of the history."""
        if not self._pending:
            return
        async with self.writing() as steps:

            def write(connection: Connection, _: Any) -> None:
                self.lease.fence(connection)
                self.insert(connection, steps)

            if steps:
                await self.lease.store.database.write(write)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[list[tuple[int, str]]]:
        """Yields the steps that are not written yet. The block must insert and commit them."""
        async with self._lock:
            steps = list(self._pending)
            yield steps
            del self._pending[: len(steps)]

    def insert(self, connection: Connection, steps: list[tuple[int, str]]) -> None:
        if steps:
            database = self.lease.store.database
            table: Table = database.tables.group(RUNS)["_run_steps"]
            session_id = self.lease.session_id
            rows = [
                {"session_id": session_id, "number": number, "value": text}
                for number, text in steps
            ]
            connection.execute(insert(table).inline(), rows)

    def keep_base(self, connection: Connection, texts: list[str]) -> None:
        """Keeps the items that the run began with, before the run replaces them."""
        if self.is_durable and self.base is None:
            self.insert(connection, [(self._number, self._encryption.dump({"base": texts}))])
            self._number += 1
            self.base = texts


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
    if config is None:
        config = {}
    if isinstance(config, RunConfig):
        model, provider, own = config.model, config.model_provider, None
    else:
        own = None if "model_provider" in config else MultiProvider()
        model, provider = config.get("model"), own or config["model_provider"]
    changed: dict[str, Any] = {"model_provider": _RecordedProvider(provider, journal)}
    if model is not None and not isinstance(model, str):
        changed["model"] = _RecordedModel(model, journal)
    if isinstance(config, RunConfig):
        return replace(config, **changed), None
    return {**config, **changed}, own


class Copies:
    """Copies of agents, whose models and tools use the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
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
        copied.tools = [self._tool(tool) for tool in agent.tools]
        copied.handoffs = [self._handoff(each) for each in agent.handoffs]
        if agent.model is not None and not isinstance(agent.model, str):
            copied.model = _RecordedModel(agent.model, self._journal)
        if agent.hooks is not None:
            copied.hooks = _RecordedAgentHooks(agent.hooks, self)
        if agent.mcp_servers:
            shadowed: Any = copied
            shadowed.get_mcp_tools = partial(self._mcp_tools, copied.get_mcp_tools)
        return copied

    def named(self, name: str) -> Any:
        """Returns an original agent by its name, or None."""
        originals = (self._originals[id(each)] for each in self._copies.values())
        return next((each for each in originals if each.name == name), None)

    async def _mcp_tools(self, get: Any, context: Any) -> list[Any]:
        return [self._tool(tool) for tool in await get(context)]

    def _tool(self, tool: Any) -> Any:
        if not isinstance(tool, (FunctionTool, CustomTool)):
            return tool
        copied = copy.copy(tool)
        copied.on_invoke_tool = answering_first(copied.on_invoke_tool, self._recorded)
        self._originals[id(copied)] = tool
        self._kept.append(copied)
        return copied

    async def _recorded(self, invoke: Any, context: Any, arguments: str) -> Any:
        call_id = context.tool_call_id
        found = self._journal.output(call_id)
        if found is not _NOTHING:
            return found
        await self._journal.flush()
        token = _path.set(self._journal._call(call_id))
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
            self.restore_item(item)
        set_last_agent(result, self.original(result.last_agent))

    def restore_item(self, item: Any) -> None:
        for name in ("agent", "source_agent", "target_agent"):
            if getattr(item, name, None) is not None:
                setattr(item, name, self.original(getattr(item, name)))


_IS_REPLAYED: dict[str, Callable[[Journal, Any], bool]] = {
    **dict.fromkeys(
        ("on_agent_start", "on_start", "on_handoff", "on_llm_start"),
        lambda journal, _: journal.will_replay,
    ),
    "on_llm_end": lambda journal, _: journal.was_replayed,
    **dict.fromkeys(
        ("on_tool_start", "on_tool_end"),
        lambda journal, context: journal.has_output(_call_id(context)),
    ),
    **dict.fromkeys(("on_agent_end", "on_end"), lambda *_: False),
}
"""By hook, whether an event was replayed, so that nobody hears of it again."""


class _Forwarding:
    """Forwards to hooks what happens now, with the original agents and tools."""

    def __init__(self, hooks: Any, copies: Copies) -> None:
        self._journal = copies._journal
        self._original = copies.original
        for event in _IS_REPLAYED:
            if hooks is not None and hasattr(hooks, event):
                setattr(self, event, partial(self._forward, event, getattr(hooks, event)))

    async def _forward(self, event: str, call: Any, context: Any, *args: Any, **named: Any) -> None:
        if _IS_REPLAYED[event](self._journal, context):
            return
        if event == "on_tool_end":
            await self._record(context, args[0], args[-1])
        original = self._original
        given = {name: original(value) for name, value in named.items()}
        await call(context, *map(original, args), **given)

    async def _record(self, context: Any, agent: Any, output: Any) -> None:
        pass


class _RecordedAgentHooks(_Forwarding, AgentHooks[Any]):
    pass


class RecordedHooks(_Forwarding, RunHooks[Any]):
    """Records the outputs of tools besides."""

    def __init__(self, hooks: RunHooks[Any] | None, copies: Copies) -> None:
        super().__init__(RunHooks() if hooks is None else hooks, copies)
        self._hears_nothing = hooks is None

    async def _forward(self, event: str, call: Any, context: Any, *args: Any, **named: Any) -> None:
        self._journal.note_call(event, _call_id(context))
        await super()._forward(event, call, context, *args, **named)

    async def _record(self, context: Any, agent: Any, output: Any) -> None:
        may_wait = self._hears_nothing and agent.hooks is None
        await self._journal.add_output(_call_id(context), output, may_wait=may_wait)


def _call_id(context: Any) -> str | None:
    found = getattr(context, "tool_call_id", None)
    return found if isinstance(found, str) else None

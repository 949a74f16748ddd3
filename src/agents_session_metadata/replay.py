"""Runs an agent again with the recorded answers and outputs of a session, as a test."""

from __future__ import annotations

import copy
import json
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any, TypeAlias

from agents import (
    Agent,
    CustomTool,
    FunctionTool,
    Handoff,
    Model,
    ModelResponse,
    MultiProvider,
    RunConfig,
    Runner,
    SQLiteSession,
    Usage,
)
from openai.types.responses import ResponseOutputItem
from pydantic import TypeAdapter, ValidationError

from .catalog import SessionCatalog
from .errors import SessionNotFoundError
from .history.pairs import OUTPUT_OF
from .history.rewind import check_not_encrypted
from .text import quoted

Item: TypeAlias = "dict[str, Any]"

_OUTPUT_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
_OUTPUTS = frozenset(OUTPUT_OF.values())
_CALLED = {"function_call": "arguments", "custom_tool_call": "input"}
"""The types of calls that can be replayed, and where they keep their arguments."""


@dataclass(frozen=True)
class ReplayDifference:
    """A call or an output that is not as recorded, or an early end.

    Attributes:
        turn: The number of the turn after the newest compaction, from 1.
        problem: What is different.
        recorded: The recorded item, or None if there is none.
        replayed: The item of the replay, or None if there is none.
    """

    turn: int
    problem: str
    recorded: Item | None = None
    replayed: Item | None = None


@dataclass(frozen=True)
class ReplayResult:
    """The result of a replay.

    Attributes:
        differences: The differences in calls, arguments and results. They are empty if the agent
            did what was recorded. An early end is the last one.
        ended: Why the replay ended before the end of the history, or None.
        recorded: The recorded items of each turn.
        replayed: The items of each turn in the replay.
    """

    differences: list[ReplayDifference]
    ended: str | None
    recorded: list[list[Item]]
    replayed: list[list[Item]]


@dataclass
class _Step:
    answer: list[Item] = field(default_factory=list)
    outputs: list[Item] = field(default_factory=list)


@dataclass
class _Turn:
    inputs: list[Item] = field(default_factory=list)
    steps: list[_Step] = field(default_factory=list)

    @property
    def items(self) -> list[Item]:
        return [*self.inputs, *(each for step in self.steps for each in step.answer + step.outputs)]


class Replay:
    """A stored session, to run an agent again with its recorded answers and outputs.

    ```python
    replay = await Replay.of(catalog, "chat-1")
    result = await replay.run(agent)
    assert not result.differences
    ```

    The replay begins after the newest compaction. Runs inside agents that are used as tools are not
    in a history: their recorded output is used instead. Guardrails, hooks and approvals are left
    out. Instructions and callbacks of handoffs run, and MCP servers must be connected, because
    their tools are listed.

    Args:
        items: The items of a history, oldest first; `of` reads those of a session.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        compactions = [at for at, item in enumerate(items) if item.get("type") == "compaction"]
        begin = compactions[-1] + 1 if compactions else 0
        self._before: list[Any] = list(items[begin - 1 : begin]) if begin else []
        self._turns = list(_turns(items[begin:]))

    @classmethod
    async def of(cls, catalog: SessionCatalog, session_id: str) -> Replay:
        """Read the history of a session.

        Args:
            catalog: The catalog of the session; a scope applies.
            session_id: The id of the session.

        Returns:
            The replay.

        Raises:
            SessionNotFoundError: If the session does not exist.
            TablesMissingError: If tables are missing and `create_tables` is off.
            ValueError: If the history is encrypted.
        """
        if await catalog.get_session(session_id, keys=[]) is None:
            raise SessionNotFoundError(session_id)
        items, cursor = [], None
        while True:
            page = await catalog.list_items(session_id, limit=1000, cursor=cursor)
            items += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        check_not_encrypted(items)
        return cls([each.item for each in items])

    async def run(
        self, agent: Agent[Any], *, model: Model | str | None = None, context: Any = None
    ) -> ReplayResult:
        """Run the inputs of each turn again. No tool runs.

        The order of outputs within one answer of the model does not count. The replay ends at a
        call without a recorded output, a tool that does not exist, an answer that was not recorded
        because the run failed, or an error.

        Args:
            agent: The agent that each turn begins with.
            model: A model to ask instead of using the recorded answers. The recorded outputs are
                then found by tool and arguments, in order, and texts may differ.
            context: The context of the runs, for instructions and handoffs.

        Returns:
            The differences, and the items of both.
        """
        provider = MultiProvider()
        tape = _Tape(self._turns, provider.get_model(model) if isinstance(model, str) else model)
        copied, config = _Copies(tape).of(agent), RunConfig(model=tape, tracing_disabled=True)
        memory = SQLiteSession("replay")
        await memory.add_items(self._before)
        differences: list[ReplayDifference] = []
        replayed: list[list[Item]] = []
        try:
            for number, turn in enumerate(self._turns, 1):
                known: list[Any] = await memory.get_items()
                inputs: list[Any] = turn.inputs
                try:
                    tape.begin(turn)
                    await Runner.run(
                        copied,
                        inputs,
                        session=memory,
                        run_config=config,
                        context=context,
                        max_turns=10 + 2 * len(turn.steps),
                    )
                    tape.end()
                except _EndedError as error:
                    tape.ended = str(error)
                except Exception as error:  # noqa: BLE001  # of the application's agents
                    tape.ended = tape.ended or f"{type(error).__name__}: {error}"
                items: list[Any] = await memory.get_items()
                replayed.append(items[len(known) :])
                found = _differences(number, turn.items, replayed[-1])
                if tape.ended is not None:
                    differences += (each for each in found if each.replayed is not None)
                    differences.append(ReplayDifference(number, tape.ended))
                    break
                differences += found
        finally:
            memory.close()
            await provider.aclose()
        return ReplayResult(differences, tape.ended, [turn.items for turn in self._turns], replayed)


class _EndedError(Exception):
    """Ends a replay."""


class _Tape(Model):
    """Gives back the recorded answers of a turn, and before each call finds its output."""

    def __init__(self, turns: Iterable[_Turn], model: Model | None) -> None:
        self.ended: str | None = None
        self.outputs: dict[str, Any] = {}
        self._model = model
        self._steps: deque[_Step] = deque()
        self._by_call: dict[str, deque[Any]] = {}
        for step in (step for turn in turns for step in turn.steps):
            outputs = {each.get("call_id"): each.get("output") for each in step.outputs}
            for item in step.answer:
                if item.get("call_id") in outputs:
                    recorded = self._by_call.setdefault(_call_of(item), deque())
                    recorded.append(outputs[item["call_id"]])

    def begin(self, turn: _Turn) -> None:
        self._steps.extend(turn.steps)
        if not turn.steps:
            raise _EndedError("the recorded run ended without an answer")

    def end(self) -> None:
        if self._steps and self._model is None:
            raise _EndedError(f"the run ended before {len(self._steps)} more recorded answers")
        self._steps.clear()

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002  # the name of the SDK
        model_settings: Any,
        tools: list[Any],
        output_schema: Any,
        handoffs: list[Any],
        tracing: Any,
        **options: Any,
    ) -> ModelResponse:
        if self._model is not None:
            asked = system_instructions, input, model_settings, tools, output_schema, handoffs
            response = await self._model.get_response(*asked, tracing, **options)
        elif self._steps:
            response = ModelResponse(_typed(self._steps[0].answer), Usage(requests=1), None)
        else:
            raise self._ended("the recorded run ended without a further answer")
        self.outputs = {}
        for item in response.to_input_items():
            if item.get("type") in OUTPUT_OF:
                self._find_output(dict(item), tools, handoffs)
        if self._steps:
            self._steps.popleft()
        return response

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("a replay does not stream")

    def _find_output(self, item: Item, tools: Sequence[Any], handoffs: Sequence[Any]) -> None:
        kind, name = str(item["type"]), item.get("name")
        if kind not in _CALLED:
            raise self._ended(f"a call of type {quoted(kind)} cannot be replayed")
        if any(handoff.tool_name == name for handoff in handoffs):
            return
        if not any(tool.name == name for tool in tools):
            raise self._ended(f"the agent has no tool {quoted(name)}")
        recorded: Iterable[Any]
        if self._model is None:
            outputs = self._steps[0].outputs
            recorded = (each["output"] for each in outputs if each["call_id"] == item["call_id"])
        else:
            queue = self._by_call.get(_call_of(item), deque())
            recorded = [queue.popleft()] if queue else []
        for output in recorded:
            self.outputs[item["call_id"]] = output
            return
        arguments = quoted(item.get(_CALLED[kind]))
        raise self._ended(f"there is no recorded output of {quoted(name)} with {arguments}")

    def _ended(self, reason: str) -> _EndedError:
        self.ended = reason
        return _EndedError(reason)


class _Copies:
    """Copies of agents whose tools return recorded outputs."""

    def __init__(self, tape: _Tape) -> None:
        self._tape = tape
        self._copies: dict[int, Agent[Any]] = {}

    def of(self, agent: Any) -> Any:
        if not isinstance(agent, Agent) or any(agent is each for each in self._copies.values()):
            return agent
        if id(agent) in self._copies:
            return self._copies[id(agent)]
        copied = self._copies[id(agent)] = copy.copy(agent)
        copied.tools = [self._tool(tool) for tool in agent.tools]
        copied.handoffs = [self._handoff(each) for each in agent.handoffs]
        copied.input_guardrails, copied.output_guardrails, copied.hooks = [], [], None
        if agent.mcp_servers:
            shadowed: Any = copied
            shadowed.get_mcp_tools = partial(self._mcp_tools, copied.get_mcp_tools)
        return copied

    async def _mcp_tools(self, get: Any, context: Any) -> list[Any]:
        return [self._tool(tool) for tool in await get(context)]

    def _tool(self, tool: Any) -> Any:
        if not isinstance(tool, (FunctionTool, CustomTool)):
            return tool
        copied = copy.copy(tool)
        copied.on_invoke_tool, copied.needs_approval = self._answer, False
        if isinstance(copied, FunctionTool):
            copied.tool_input_guardrails = copied.tool_output_guardrails = None
        return copied

    async def _answer(self, context: Any, arguments: str) -> Any:  # noqa: ARG002  # not run
        output = self._tape.outputs[context.tool_call_id]
        if not isinstance(output, list):
            return output
        return [{**part, "type": part["type"].removeprefix("input_")} for part in output]

    def _handoff(self, handoff: Any) -> Any:
        if not isinstance(handoff, Handoff):
            return self.of(handoff)
        copied, invoke = copy.copy(handoff), handoff.on_invoke_handoff

        async def hand_off(context: Any, arguments: str) -> Any:
            return self.of(await invoke(context, arguments))

        copied.on_invoke_handoff = hand_off
        return copied


def _turns(items: Iterable[Item]) -> Iterable[_Turn]:
    """Cuts a history: inputs begin a turn, and outputs end an answer of the model."""
    turn = _Turn()
    for item in items:
        kind = str(item.get("type"))
        if kind in _OUTPUTS:
            if turn.steps:
                turn.steps[-1].outputs.append(item)
        elif item.get("role", "assistant") == "assistant":
            if not turn.steps or turn.steps[-1].outputs:
                turn.steps.append(_Step())
            turn.steps[-1].answer.append(item)
        else:
            if turn.steps:
                yield turn
                turn = _Turn()
            turn.inputs.append(item)
    if turn.inputs or turn.steps:
        yield turn


def _typed(answer: Iterable[Item]) -> list[Any]:
    """Returns items as a model returns them; an application may have written shorter ones."""
    typed = []
    for item in answer:
        whole = dict(item)
        if item.get("role") == "assistant":
            content = item.get("content")
            if isinstance(content, str):
                content = [{"type": "output_text", "text": content, "annotations": []}]
            written = {"id": "msg_replay", "type": "message", "status": "completed"}
            whole = {**written, **item, "content": content}
        try:
            typed.append(_OUTPUT_ITEM.validate_python(whole))
        except ValidationError:
            kind = quoted(item.get("type"))
            raise _EndedError(f"an item of type {kind} cannot be given back") from None
    return typed


def _parsed(arguments: object) -> object:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _call_of(item: Item) -> str:
    arguments = _parsed(item.get(_CALLED.get(str(item.get("type")), "")))
    return json.dumps([item.get("name"), arguments], sort_keys=True)


def _compared(items: Iterable[Item]) -> list[tuple[str, Item]]:
    """Returns calls and outputs with what counts of them. Outputs follow the order of calls."""
    names: dict[object, int] = {}
    found: list[tuple[str, Item]] = []
    outputs: list[tuple[int, str, Item]] = []
    for item in items:
        kind = str(item.get("type"))
        if kind in _OUTPUTS:
            text = json.dumps(["output", item.get("output")], sort_keys=True)
            outputs.append((names.get(item.get("call_id"), len(names)), text, item))
            continue
        found += [(text, each) for _, text, each in sorted(outputs, key=lambda each: each[:2])]
        outputs = []
        if kind in OUTPUT_OF:
            names[item.get("call_id")] = len(names)
            found.append((_call_of(item), item))
    return found + [(text, each) for _, text, each in sorted(outputs, key=lambda each: each[:2])]


def _differences(
    turn: int, recorded: Iterable[Item], replayed: Iterable[Item]
) -> Iterable[ReplayDifference]:
    for before, now in zip_longest(_compared(recorded), _compared(replayed)):
        if before is None:
            yield ReplayDifference(turn, "is not recorded", None, now[1])
        elif now is None:
            yield ReplayDifference(turn, "is missing", before[1], None)
        elif before[0] != now[0]:
            same = before[1].get("type") == now[1].get("type")
            is_output = str(now[1].get("type")) in _OUTPUTS
            problem = "has another result" if is_output else "has other arguments"
            if not same or before[1].get("name") != now[1].get("name"):
                problem = "is another call"
            yield ReplayDifference(turn, problem, before[1], now[1])

"""Runs an agent again with the recorded answers and outputs of sessions, as tests."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import groupby, zip_longest
from typing import Any, get_args

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
    Usage,
)
from agents.memory import SessionABC
from openai.types.responses import ResponseOutputItem
from pydantic import TypeAdapter, ValidationError

from .catalog import SessionCatalog
from .errors import SessionNotFoundError
from .history.pairs import OUTPUT_OF
from .history.rewind import check_not_encrypted
from .keys import RUN
from .query.filters import Where, check_filter
from .query.pages import check_limit
from .text import content_texts, escaped, quoted, texts_of
from .types import FeedbackKind, JSONObject, SessionInfo

_OUTPUT_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
_OUTPUTS = frozenset(OUTPUT_OF.values())
_CALLED = {"function_call": "arguments", "custom_tool_call": "input"}
"""The types of calls that can be replayed, and where they keep their arguments."""
_EARLY = "the run ended before"
_NO_ANSWER = "the recorded run ended without an answer"
_NO_MORE = "the recorded run ended without a further answer"
_NOT_RECORDED = (_NO_ANSWER, "the recording has no output", "a call of type", "an item of type")
"""How the reasons begin for which a replay without a model ends whatever the agent does."""


@dataclass(frozen=True)
class ReplayDifference:
    """A call or an output that is not as recorded, or an early end. `str` makes a line of it.

    Attributes:
        turn: The number of the turn after the newest compaction, from 1; 0 before the first turn.
        problem: What is different.
        recorded: The recorded item, or None if there is none. At an early end, the next one.
        replayed: The item of the replay, or None if there is none.
    """

    turn: int
    problem: str
    recorded: JSONObject | None = None
    replayed: JSONObject | None = None

    def __str__(self) -> str:
        place = f"turn {self.turn}: " if self.turn else ""
        sides = ("recorded", self.recorded), ("replayed", self.replayed)
        items = "".join(f"; {name}: {_shown(item)}" for name, item in sides if item)
        return f"{place}{self.problem}{items}"


@dataclass(frozen=True)
class ReplayResult:
    """The result of a replay.

    Attributes:
        differences: The differences in calls, arguments and results. They are empty if the agent
            did what was recorded. An early end is the last one.
        ended: Why the replay ended before the end of the history, or None.
        recorded: The recorded items of each turn.
        replayed: The items of each turn in the replay.
        session_id: Of `each`: the id of the session.
        skipped: Of `each`: why the session could not be replayed, or None.
    """

    differences: list[ReplayDifference]
    ended: str | None
    recorded: list[list[JSONObject]]
    replayed: list[list[JSONObject]]
    session_id: str | None = None
    skipped: str | None = None


@dataclass
class _RecordedStep:
    answer: list[JSONObject] = field(default_factory=list)
    outputs: list[JSONObject] = field(default_factory=list)


@dataclass
class _RecordedTurn:
    inputs: list[JSONObject] = field(default_factory=list)
    steps: list[_RecordedStep] = field(default_factory=list)

    @property
    def items(self) -> list[JSONObject]:
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

    def __init__(self, items: Sequence[JSONObject]) -> None:
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
        check_not_encrypted(each.item for each in items)
        return cls([each.item for each in items])

    @classmethod
    async def each(
        cls,
        catalog: SessionCatalog,
        where: Where | None,
        agent_of: Callable[[SessionInfo], Agent[Any] | Awaitable[Agent[Any] | None] | None],
        *,
        feedback: FeedbackKind | None = None,
        updated_since: datetime | None = None,
        concurrency: int = 4,
        **kwargs: Any,
    ) -> AsyncGenerator[ReplayResult, None]:
        """Replay every session that matches, in constant memory. Nothing is written.

        ```python
        async for result in Replay.each(catalog, {"run": "completed"}, lambda info: agent):
            print(result.session_id, result.skipped or result.differences)
        ```

        An error in one session, also one of `agent_of`, is a difference of that session. A session
        is skipped if it has no agent, if its history is empty or encrypted, or if nothing differs
        up to the place where the recording ends: a turn without an answer, a call that has no
        output or cannot be replayed, or the last turn of a run whose metadata key `run` is not
        `completed`. Closing the iterator cancels the replays in progress.

        Args:
            catalog: The catalog of the sessions; a scope applies.
            where: A filter, such as `{"run": "failed"}`; None for all sessions.
            agent_of: A function or coroutine function that returns the agent of a session, or None.
            feedback: Only sessions with an item whose newest vote is this one. The votes of each
                session that matches are read.
            updated_since: Only sessions that were active at or after this time; aware.
            concurrency: The maximum number of replays at the same time.
            **kwargs: Further arguments of `run`.

        Yields:
            The results, in the order in which the replays end.

        Raises:
            ValueError: If an argument is invalid; `InvalidFilterError` is one.
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        check_limit(concurrency, name="concurrency")
        selected = selected_sessions(catalog, where, feedback, updated_since)
        tasks: set[asyncio.Task[ReplayResult]] = set()
        try:
            while True:
                while len(tasks) < concurrency and (found := await anext(selected, None)):
                    one = cls._of_suite(catalog, *found, agent_of, kwargs)
                    tasks.add(asyncio.create_task(one))
                if not tasks:
                    break
                done, tasks = await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
                for task in done:
                    yield task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await selected.aclose()

    @classmethod
    async def _of_suite(
        cls,
        catalog: SessionCatalog,
        info: SessionInfo,
        problem: str | None,
        agent_of: Callable[[SessionInfo], Any],
        options: dict[str, Any],
    ) -> ReplayResult:
        """`problem` is why the session cannot be replayed."""
        result, replay = ReplayResult([], None, [], []), None
        try:
            agent: Any = agent_of(info)
            agent = await agent if inspect.isawaitable(agent) else agent
            problem = problem or (None if agent else "the function returned no agent")
            try:
                replay = None if problem else await cls.of(catalog, info.session_id)
            except (SessionNotFoundError, ValueError) as error:
                problem = str(error)
            if replay is not None and not replay._turns:
                problem = "the history is empty"
            elif replay is not None:
                result = await replay.run(agent, **options)
                over: tuple[str, ...] = _NOT_RECORDED if options.get("model") is None else ()
                over += (_NO_MORE,) if info.metadata.get(RUN, "completed") != "completed" else ()
                if len(result.differences) == 1 and str(result.ended).startswith(over):
                    problem = str(result.differences.pop())
        except Exception as error:  # noqa: BLE001  # of the application, or of this session
            ended = f"{type(error).__name__}: {error}"
            result = ReplayResult([ReplayDifference(0, ended)], ended, [], [])
        return replace(result, session_id=info.session_id, skipped=problem)

    async def run(
        self,
        agent: Agent[Any],
        *,
        model: Model | str | None = None,
        context: Any = None,
        texts: bool = False,
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
            texts: With `model`, whether another text of the assistant is a difference.

        Returns:
            The differences, and the items of both.
        """
        provider = MultiProvider()
        tape = _Tape(self._turns, provider.get_model(model) if isinstance(model, str) else model)
        copied, config = _Copies(tape).of(agent), RunConfig(model=tape, tracing_disabled=True)
        memory, differences = _Memory(self._before), tape.differences
        replayed: list[list[JSONObject]] = []
        ended: str | None = None
        try:
            for number, turn in enumerate(self._turns, 1):
                known, inputs = len(memory.items), list[Any](turn.inputs)
                try:
                    tape.begin(number, turn)
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
                    ended = str(error)
                except Exception as error:  # noqa: BLE001  # of the application's agents
                    ended = f"{type(error).__name__}: {error}"
                replayed.append(memory.items[known:])
                found = _differences(number, turn.items, replayed[-1], texts=texts)
                if ended is not None:
                    differences += (each for each in found if each.replayed is not None)
                    following = next(iter(turn.items[len(replayed[-1]) :]), None)
                    last = replayed[-1][-1] if ended.startswith(_EARLY) else None
                    differences.append(ReplayDifference(number, ended, following, last))
                    break
                differences += found
        finally:
            await provider.aclose()
        return ReplayResult(differences, ended, [turn.items for turn in self._turns], replayed)


class _EndedError(Exception):
    """Ends a replay."""


class _Memory(SessionABC):
    """The session of a replay."""

    session_id = "replay"

    def __init__(self, items: Iterable[Any]) -> None:
        self.items: list[Any] = list(items)

    async def get_items(self, limit: int | None = None) -> list[Any]:
        return [dict(item) for item in (self.items if limit is None else self.items[-limit:])]

    async def add_items(self, items: Iterable[Any]) -> None:
        self.items += map(dict, items)

    async def pop_item(self) -> Any:
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        self.items.clear()


class _Tape(Model):
    """Gives back the recorded answers of a turn, and before each call finds its output."""

    def __init__(self, turns: Iterable[_RecordedTurn], model: Model | None) -> None:
        self.differences: list[ReplayDifference] = []
        self.outputs: dict[str, Any] = {}
        self._number, self._model = 0, model
        self._steps: deque[_RecordedStep] = deque()
        self._by_call: dict[str, deque[Any]] = {}
        for step in (step for turn in turns for step in turn.steps):
            outputs = {each.get("call_id"): each.get("output") for each in step.outputs}
            for item in step.answer:
                if item.get("call_id") in outputs:
                    recorded = self._by_call.setdefault(_call_of(item), deque())
                    recorded.append(outputs[item["call_id"]])

    def begin(self, number: int, turn: _RecordedTurn) -> None:
        self._number = number
        self._steps.extend(turn.steps)
        if not turn.steps:
            raise _EndedError(_NO_ANSWER)

    def end(self) -> None:
        if self._steps and self._model is None:
            raise _EndedError(f"{_EARLY} {len(self._steps)} more recorded answers")
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
            raise _EndedError(_NO_MORE)
        self.outputs = {}
        for item in response.to_input_items():
            if item.get("type") in OUTPUT_OF:
                self._find_output(dict(item), tools, handoffs)
        if self._steps:
            self._steps.popleft()
        return response

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("a replay does not stream")

    def _find_output(self, item: JSONObject, tools: Sequence[Any], handoffs: Sequence[Any]) -> None:
        kind, name = str(item["type"]), item.get("name")
        if kind not in _CALLED:
            raise _EndedError(f"a call of type {quoted(kind)} cannot be replayed")
        if any(handoff.tool_name == name for handoff in handoffs):
            return
        tool = next((tool for tool in tools if tool.name == name), None)
        if tool is None:
            raise _EndedError(f"the agent has no tool {quoted(name)}")
        recorded: Iterable[Any]
        if self._model is None:
            self._check_parameters(item, getattr(tool, "params_json_schema", {}))
            outputs = self._steps[0].outputs
            recorded = (each["output"] for each in outputs if each["call_id"] == item["call_id"])
        else:
            queue = self._by_call.get(_call_of(item), deque())
            recorded = [queue.popleft()] if queue else []
        for output in recorded:
            self.outputs[item["call_id"]] = output
            return
        arguments = quoted(item.get(_CALLED[kind]))
        raise _EndedError(f"the recording has no output of {quoted(name)} with {arguments}")

    def _check_parameters(self, call: JSONObject, schema: dict[str, Any]) -> None:
        arguments = _parsed(call.get("arguments"))
        if isinstance(arguments, dict) and schema.get("additionalProperties") is False:
            gone = sorted(arguments.keys() - schema.get("properties", {}).keys())
            if gone:
                problem = f"the tool {quoted(call['name'])} has no parameter "
                problem += ", ".join(map(quoted, gone))
                self.differences.append(ReplayDifference(self._number, problem, call))


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


def _turns(items: Iterable[JSONObject]) -> Iterable[_RecordedTurn]:
    """Cuts a history: inputs begin a turn, and outputs end an answer of the model."""
    turn = _RecordedTurn()
    for item in items:
        kind = str(item.get("type"))
        if kind in _OUTPUTS:
            if turn.steps:
                turn.steps[-1].outputs.append(item)
        elif item.get("role", "assistant") == "assistant":
            if not turn.steps or turn.steps[-1].outputs:
                turn.steps.append(_RecordedStep())
            turn.steps[-1].answer.append(item)
        else:
            if turn.steps:
                yield turn
                turn = _RecordedTurn()
            turn.inputs.append(item)
    if turn.inputs or turn.steps:
        yield turn


def _typed(answer: Iterable[JSONObject]) -> list[Any]:
    """Returns items as a model returns them; an application may have written shorter ones."""
    typed = []
    for item in answer:
        whole = dict(item)
        try:
            if item.get("role") == "assistant":
                content: Any = item.get("content")
                if isinstance(content, str):
                    content = [{"type": "output_text", "text": content}]
                parts = [{"annotations": [], **part} for part in content]
                written = {"id": "msg_replay", "type": "message", "status": "completed"}
                whole = {**written, **item, "content": parts}
            typed.append(_OUTPUT_ITEM.validate_python(whole))
        except (TypeError, ValidationError):
            kind = quoted(item.get("type"))
            raise _EndedError(f"an item of type {kind} cannot be given back") from None
    return typed


def _parsed(arguments: object) -> object:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _call_of(item: JSONObject) -> str:
    arguments = _parsed(item.get(_CALLED.get(str(item.get("type")), "")))
    return json.dumps([item.get("name"), arguments], sort_keys=True)


def _compared(items: Iterable[JSONObject], *, texts: bool) -> list[tuple[str, JSONObject]]:
    """Returns calls and outputs with what counts of them. Outputs follow the order of calls.

    With `texts`, it returns messages of the assistant, too.
    """
    calls: dict[object, int] = {}
    found: list[tuple[str, JSONObject]] = []
    for are_outputs, group in groupby(items, lambda item: str(item.get("type")) in _OUTPUTS):
        if are_outputs:
            outputs = []
            for item in group:
                text = json.dumps(["output", item.get("output")], sort_keys=True)
                outputs.append((calls.get(item.get("call_id"), len(calls)), text, item))
            found += [(text, item) for _, text, item in sorted(outputs, key=lambda each: each[:2])]
            continue
        for item in group:
            if str(item.get("type")) in OUTPUT_OF:
                calls[item.get("call_id")] = len(calls)
                found.append((_call_of(item), item))
            elif texts and item.get("role") == "assistant":
                found.append((json.dumps(["text", *texts_of(item.get("content"))]), item))
    return found


def _differences(
    turn: int, recorded: Iterable[JSONObject], replayed: Iterable[JSONObject], *, texts: bool
) -> Iterable[ReplayDifference]:
    both = (_compared(items, texts=texts) for items in (recorded, replayed))
    for before, now in zip_longest(*both):
        if before is None:
            yield ReplayDifference(turn, "is not recorded", None, now[1])
        elif now is None:
            yield ReplayDifference(turn, "is missing", before[1], None)
        elif before[0] != now[0]:
            same = before[1].get("type") == now[1].get("type")
            is_output = str(now[1].get("type")) in _OUTPUTS
            problem = "has another result" if is_output else "has other arguments"
            if "role" in before[1] and "role" in now[1]:
                problem = "has another text"
            elif not same or before[1].get("name") != now[1].get("name"):
                problem = "is another call"
            yield ReplayDifference(turn, problem, before[1], now[1])


# ---- suites ----


async def selected_sessions(
    catalog: SessionCatalog,
    where: Where | None,
    feedback: FeedbackKind | None,
    updated_since: datetime | None,
) -> AsyncGenerator[tuple[SessionInfo, str | None], None]:
    """Yields sessions in the order of their ids, each with why it cannot be read, or None."""
    if feedback not in (None, *get_args(FeedbackKind)):
        raise ValueError(f"feedback must be 'positive' or 'negative', got {quoted(feedback)}")
    if updated_since is not None:
        if updated_since.tzinfo is None:
            raise ValueError(f"updated_since must be an aware datetime, got {updated_since}")
        check_filter(where)  # Errors name positions in `where`.
        since = {"$updated_at": {"$gte": updated_since}}
        where = since if where is None else {"$and": [where, since]}
    corrupt: list[Exception] = []
    async for info in catalog.iter_sessions(where, on_corrupt=corrupt.append):
        votes = await catalog.feedback(info.session_id) if feedback else []
        if feedback is None or any(vote.kind == feedback for vote in votes):
            yield info, str(corrupt[0]) if corrupt else None
        corrupt.clear()


def eval_lines(record: JSONObject) -> Iterable[JSONObject | None]:
    """Yields each turn of an export record in the form of OpenAI's evals.

    It yields None for a turn without a final text. The input begins after the newest compaction.
    Raises `ValueError` if the history is encrypted.
    """
    items = [each["item"] for each in record["items"] if isinstance(each.get("item"), dict)]
    check_not_encrypted(items)
    before: list[JSONObject] = []
    for number, turn in enumerate(Replay(items)._turns, 1):
        final = turn.steps[-1].answer if turn.steps and not turn.steps[-1].outputs else []
        texts = ["\n".join(texts_of(each["content"])) for each in final if "role" in each]
        given = _chat_messages([*before, *turn.items[: len(turn.items) - len(final)]])
        before += turn.items
        if not texts or not texts[-1] or any(each.get("type") in OUTPUT_OF for each in final):
            yield None
        else:
            own = {"session_id": record["session_id"], "turn": number}
            yield {"input": given, "ideal": texts[-1], **own}


def _chat_messages(items: Iterable[JSONObject]) -> list[JSONObject]:
    """Returns items as messages of Chat Completions; those that have no such form are left out."""
    messages: list[JSONObject] = []
    for item in items:
        kind = str(item.get("type"))
        if "role" in item or kind in _OUTPUTS:
            content = "\n".join(content_texts(item.get("content", item.get("output"))))
            answers = {} if "role" in item else {"tool_call_id": item.get("call_id")}
            messages.append({"role": item.get("role", "tool"), "content": content, **answers})
        elif kind in _CALLED:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            function = {"name": item.get("name"), "arguments": item.get(_CALLED[kind])}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
    return messages


def _shown(item: JSONObject) -> str:
    kind = str(item.get("type"))
    if kind in _CALLED:
        return escaped(f"{item.get('name')}({item.get(_CALLED[kind])})"[:300])
    return quoted("\n".join(content_texts(item.get("content", item.get("output")))), 300)

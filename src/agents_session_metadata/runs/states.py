"""Serializes, restores and repairs the state of a run, the SDK's `RunState`."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agents import Agent, RunHooks, RunState
from agents.exceptions import UserError
from agents.lifecycle import RunHooksBase
from agents.run_config import CallModelData, ModelInputData
from agents.run_state import SUPPORTED_SCHEMA_VERSIONS

from agents_session_metadata.core.database import settle
from agents_session_metadata.errors import StateVersionError
from agents_session_metadata.history.pairs import Call, calls_and_outputs

_TOLD = ("name", "namespace", "arguments", "input", "action", "operation")
"""Fields by which the SDK distinguishes two calls with the same id."""


@dataclass(frozen=True)
class ContextArguments:
    """The SDK's arguments for writing and reading the context of a run."""

    serializer: Callable[[Any], Mapping[str, Any]] | None = None
    override: Any = None
    deserializer: Callable[[Mapping[str, Any]], Any] | None = None
    strict: bool = True


def serialize(state: RunState[Any, Any], context: ContextArguments) -> dict[str, Any]:
    """Raises `UserError` if the state is not JSON.

    In strict mode and without a serializer, the context must be None or a mapping.
    """
    written = state.to_json(context_serializer=context.serializer, strict_context=context.strict)
    try:
        json.dumps(written, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"the state of the run is not JSON: {error}; pass context_serializer= to store a "
            "context that contains other values"
        ) from None
    return written


def restorable(written: dict[str, Any]) -> dict[str, Any]:
    """Returns a state that the SDK restores although a handoff has left out items.

    The SDK refuses a finished call whose output is not in the state, or whose id was used again.
    """
    items = _items(written)
    calls, outputs = calls_and_outputs(items)
    finished = (calls & outputs) - _used_again(items)
    return _with_finished(written, lambda call: call in finished)


def with_ids_used_again(written: dict[str, Any]) -> dict[str, Any]:
    """Returns a state that the SDK restores although a model has used a call id again.

    The SDK refuses a finished call if another one with its id has another tool or other arguments.
    """
    again = _used_again(_items(written))
    return _with_finished(written, lambda call: call not in again)


def _used_again(items: Iterable[Any]) -> set[Call]:
    seen: dict[Call, set[str]] = {}
    for item in items:
        for call in calls_and_outputs([item])[0]:
            told = [item.get(name) for name in _TOLD]
            seen.setdefault(call, set()).add(json.dumps(told, sort_keys=True))
    return {call for call, variants in seen.items() if len(variants) > 1}


def _with_finished(written: dict[str, Any], condition: Callable[[Call], bool]) -> dict[str, Any]:
    """Leaves only calls that meet the condition marked as completed."""
    return _with_invocations(
        written,
        lambda call, each: {**each, "completed": each["completed"] and condition(call)},
    )


def without_lost_calls(written: dict[str, Any]) -> dict[str, Any]:
    """Removes the records of calls that are not in the state, so their ids can be reused."""
    calls, _ = calls_and_outputs(_items(written))
    return _with_invocations(written, lambda call, each: each if call in calls else None)


def without_answered_questions(written: dict[str, Any]) -> dict[str, Any]:
    """Returns a state that does not wait for an agent that was used as a tool and has finished.

    The SDK would wait forever for calls of that agent. It finds the items of the last turn by the
    calls that waited, so those of the turn itself stay.
    """
    calls, asked = _calls_of_turn(written)
    _, outputs = calls_and_outputs(_items(written))
    if not calls or calls - outputs or asked <= calls:
        return written
    step = written["current_step"]
    return {**written, "current_step": {**step, "data": {**step["data"], "interruptions": []}}}


def waits_inside(written: dict[str, Any]) -> bool:
    """Returns True if the state waits for a call of an agent that is used as a tool."""
    calls, asked = _calls_of_turn(written)
    return not asked <= calls


def _calls_of_turn(written: dict[str, Any]) -> tuple[set[Call], set[Call]]:
    """Returns the calls of the interrupted turn, and the calls that wait."""
    step, processed = written["current_step"], written["last_processed_response"]
    if step is None or step["type"] != "next_step_interruption" or processed is None:
        return set(), set()
    calls, _ = calls_and_outputs([each["raw_item"] for each in processed["new_items"]])
    asked, _ = calls_and_outputs([each["raw_item"] for each in step["data"]["interruptions"]])
    return calls, asked


def _with_invocations(
    written: dict[str, Any],
    change: Callable[[Call, dict[str, Any]], dict[str, Any] | None],
) -> dict[str, Any]:
    """Changes the records of calls; removes a record if `change` returns None."""
    context = written["context"]
    changed = {
        call_id: change((each["type"], call_id), each)
        for call_id, each in context["tool_invocations"].items()
    }
    kept = {call_id: each for call_id, each in changed.items() if each is not None}
    return {**written, "context": {**context, "tool_invocations": kept}}


def _items(written: dict[str, Any]) -> list[Any]:
    items = list(written["original_input"]) if type(written["original_input"]) is list else []
    responses = [item for each in written["model_responses"] for item in each["output"]]
    kept = [
        each["raw_item"] for key in ("generated_items", "session_items") for each in written[key]
    ]
    return [*items, *responses, *kept]


def check_context(original: object, context: ContextArguments, written: Mapping[str, Any]) -> None:
    """Raises `UserError` in strict mode if the context would not be restored unchanged."""
    if original is None or not context.strict or context.serializer is not None:
        return
    stored = json.loads(json.dumps(written["context"]["context"]))
    if type(original) is not dict or stored != original:
        raise UserError(
            f"the context of the run, of type {type(original).__name__}, would not be stored as "
            "it is; use a plain dict of JSON values as context, pass context_serializer=, or pass "
            "strict_context=False to store what the SDK keeps of it"
        )


async def deserialize(
    session_id: str, agent: Agent[Any], text: str, context: ContextArguments
) -> RunState[Any, Agent[Any]]:
    stored = json.loads(text)
    version = stored.get("$schemaVersion")
    if version not in SUPPORTED_SCHEMA_VERSIONS:
        raise StateVersionError(session_id, version)
    restoring = asyncio.ensure_future(
        RunState.from_json(
            agent,
            stored,
            context_override=context.override,
            context_deserializer=context.deserializer,
            strict_context=context.strict,
        )
    )
    try:
        return await asyncio.shield(restoring)
    except asyncio.CancelledError:
        # The SDK raises another one, without the message by which anyio knows its own.
        restoring.cancel()
        await settle(asyncio.wait({restoring}))
        raise


def pending_calls(items: Iterable[Any]) -> list[dict[str, Any]]:
    return [
        {
            "call_id": item.call_id,
            "tool": item.name,
            "arguments": item.arguments,
            "agent": item.agent.name if item.agent is not None else None,
        }
        for item in items
    ]


def apply_decisions(state: RunState[Any, Any], decisions: Mapping[str, Any]) -> None:
    for item in state.get_interruptions():
        decision = decisions.get(item.call_id or "")
        if decision is None:
            continue
        if decision["approve"]:
            state.approve(item)
        else:
            state.reject(item, rejection_message=decision["message"])


def context_to_write(context: ContextArguments, text: str) -> ContextArguments:
    """Returns the arguments for when the run pauses again.

    Without a serializer, the context that a deserializer made, or an override that is not a dict,
    is written as it was stored before.
    """
    made = context.override is not None and type(context.override) is not dict
    if context.serializer is not None or not (made or context.deserializer is not None):
        return context
    stored = json.loads(text)["context"]["context"] or {}
    return replace(context, serializer=lambda _: stored)


class Progress(RunHooks[Any]):
    """Run hooks that remember the last input of the model, and call the hooks of the caller.

    `check` is called before the first tool or model call, until it has succeeded once.
    """

    def __init__(self, hooks: RunHooks[Any] | None) -> None:
        if hooks is not None and not isinstance(hooks, RunHooksBase):
            raise TypeError(f"hooks must be RunHooks, got {type(hooks).__name__}")
        self.is_answered: bool = False
        self.check: Callable[[], Awaitable[None]] | None = None
        self._refused: BaseException | None = None
        self._checks: set[asyncio.Future[None]] = set()
        self._model_calls = 0
        self._hooks: RunHooks[Any] = RunHooks() if hooks is None else hooks
        self._input: list[Any] = []
        self._unfiltered: list[Any] | None = None
        self._added: list[Any] = []
        self._handed_to: str | None = None
        self._is_saving = False
        self._is_ahead = False
        self._to_cancel: asyncio.Task[Any] | None = None
        for event in vars(RunHooksBase):
            if event.startswith("on_") and event not in vars(Progress):
                setattr(self, event, getattr(self._hooks, event))

    def observed(self, config: Any) -> Any:
        """Wraps the input filter of a run configuration to remember the unfiltered input.

        The SDK also accepts a dict, and rejects values of other types.
        """
        name = "call_model_input_filter"
        is_dict = isinstance(config, dict)
        call_filter: Any = config.get(name) if is_dict else getattr(config, name, None)
        if call_filter is None:
            return config

        async def remember(data: CallModelData[Any]) -> ModelInputData:
            unfiltered = list(data.model_data.input)
            result = call_filter(data)
            filtered: ModelInputData = await result if inspect.isawaitable(result) else result
            # Runs inside tools use the filter too, before the next model call of this run does.
            self._unfiltered = unfiltered
            return filtered

        return {**config, name: remember} if is_dict else replace(config, **{name: remember})

    def use_wrapped(self) -> None:
        """Must be called when a wrapped session, whose items are not seen, reads or writes."""
        self._is_ahead = True

    def begin_to_add(self) -> None:
        """Must be called before the items of a finished turn are added to the session."""
        self._is_saving = True

    def add(self, items: Sequence[Any]) -> None:
        self._added += items

    def cancel(self, run: asyncio.Task[Any]) -> None:
        """Cancels a run at a moment at which the content of the history is known.

        A run that has answered ends by itself. A run that is storing a turn is cancelled before the
        next model call, unless it ends or pauses first.
        """
        if self.is_answered:
            return
        if self._is_saving:
            self._to_cancel = run
        else:
            run.cancel()

    async def end_checks(self) -> None:
        """Waits for running checks: a run can end before the tools that it has cancelled."""
        if self._checks:
            await asyncio.wait(self._checks)

    @property
    def refused(self) -> BaseException | None:
        """Returns the error of `check` if nothing was run or added.

        The check may also have succeeded for another tool call of the same turn.
        """
        has_run = self.check is None or self._is_saving or self._is_ahead
        return None if has_run else self._refused

    @property
    def has_asked(self) -> bool:
        return self._model_calls > 0

    @property
    def is_history_ahead(self) -> bool:
        """Returns True if a wrapped session may have stored a turn that the state lacks."""
        return self._is_ahead and self.has_asked

    @property
    def is_stored(self) -> bool:
        return self.is_answered and bool(self._added)

    def continued(self, written: dict[str, Any], responses: int) -> dict[str, Any]:
        """Adds to the state of a run that raised the turns that it lacks.

        `responses` is the number of model responses in the state when the run was resumed. Raises
        `UserError` if the run was about to pause.
        """
        calls, outputs = calls_and_outputs(self._added)
        if calls - outputs:
            raise UserError("the last turn of the run has calls without outputs")
        turns = self._model_calls if self._added else self._model_calls - 1
        if len(written["model_responses"]) >= responses + turns:
            return with_ids_used_again(without_answered_questions(written))
        continued = {
            **written,
            "original_input": [*self._input, *self._added],
            "current_agent": (
                {"name": self._handed_to}
                if self._added and self._handed_to is not None
                else written["current_agent"]
            ),
            "generated_items": [],
            "session_items": [],
            "generated_session_item_indexes": [],
            "nested_history_owned_session_item_refs": [],
            "last_processed_response": None,
            "current_step": {"type": "next_step_run_again"},
            "current_turn": written["current_turn"] + turns,
            "current_turn_persisted_item_count": 0,
        }
        # The calls of a turn that did not end are lost.
        return restorable(without_lost_calls(continued))

    async def _check_once(self) -> None:
        if self.check is None:
            return
        ended = asyncio.get_running_loop().create_future()
        self._checks.add(ended)
        try:
            await self.check()
        except BaseException as error:
            self._refused = error
            raise
        else:
            self.check = None
        finally:
            ended.set_result(None)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        await self._check_once()
        await self._hooks.on_tool_start(context, agent, tool)

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: Any, input_items: Any
    ) -> None:
        await self._check_once()
        self._model_calls += 1
        self._added = []
        self._handed_to = None
        self._is_saving = False
        self._is_ahead = False
        self._input = list(input_items) if self._unfiltered is None else self._unfiltered
        if self._to_cancel is not None:
            self._to_cancel.cancel()
            await asyncio.sleep(0)
        await self._hooks.on_llm_start(context, agent, system_prompt, input_items)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        await self._hooks.on_handoff(context, from_agent, to_agent)
        self._handed_to = to_agent.name

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        self.is_answered = True
        await self._hooks.on_agent_end(context, agent, output)

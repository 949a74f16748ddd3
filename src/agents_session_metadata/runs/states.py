"""Serializes, restores and repairs the state of a run, the SDK's `RunState`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agents import Agent, RunState
from agents.exceptions import UserError
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
    calls, _ = _calls_and_outputs(written)
    return _with_invocations(written, lambda call, each: each if call in calls else None)


def without_answered_questions(written: dict[str, Any]) -> dict[str, Any]:
    """Returns a state that does not wait for an agent that was used as a tool and has finished.

    The SDK would wait forever for calls of that agent. It finds the items of the last turn by the
    calls that waited, so those of the turn itself stay.
    """
    calls, asked = _calls_of_turn(written)
    _, outputs = _calls_and_outputs(written)
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


def _calls_and_outputs(written: dict[str, Any]) -> tuple[set[Call], set[Call]]:
    return calls_and_outputs(_items(written))


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

"""The state of a run as text, and out of text: the SDK's `RunState`, JSON and encryption."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agents import Agent, RunState
from agents.exceptions import UserError
from agents.run_state import SUPPORTED_SCHEMA_VERSIONS

from agents_session_metadata.errors import StateVersionError


@dataclass(frozen=True)
class ContextArguments:
    """How the context of a run is written and read; the arguments are the SDK's."""

    serializer: Callable[[Any], Mapping[str, Any]] | None = None
    override: Any = None
    deserializer: Callable[[Mapping[str, Any]], Any] | None = None
    strict: bool = True


def serialize(state: RunState[Any, Any], context: ContextArguments) -> dict[str, Any]:
    """A state as JSON.

    Raises:
        UserError: If, in strict mode and without a serializer, the context is neither None nor a
            mapping; or if the state cannot be written as JSON.
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


def check_context(original: object, context: ContextArguments, written: Mapping[str, Any]) -> None:
    """Refuse, in strict mode, a context that would come back as something else.

    Raises:
        UserError: If it is a mapping other than a dict, or contains values that JSON changes.
    """
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
    """The state of a stored text.

    Raises:
        StateVersionError: If the SDK cannot read states of its version.
        UserError: If the SDK cannot restore it with this agent or context.
    """
    stored = json.loads(text)
    version = stored.get("$schemaVersion")
    if version not in SUPPORTED_SCHEMA_VERSIONS:
        raise StateVersionError(session_id, version)
    return await RunState.from_json(
        agent,
        stored,
        context_override=context.override,
        context_deserializer=context.deserializer,
        strict_context=context.strict,
    )


def underlying(session: Any) -> Iterator[Any]:
    """A session and those that it is wrapped around, from the outside."""
    seen: set[int] = set()
    while session is not None and id(session) not in seen:
        seen.add(id(session))
        yield session
        # Not `getattr`: a wrapper may forward it to the session inside.
        session = getattr(session, "__dict__", {}).get("underlying_session")


def is_encrypted(session: Any) -> bool:
    """Whether a session is wrapped in the SDK's `EncryptedSession`."""
    # Importing it would need the library that it encrypts with.
    module = sys.modules.get("agents.extensions.memory.encrypt_session")
    kind = getattr(module, "EncryptedSession", None)
    return kind is not None and any(isinstance(each, kind) for each in underlying(session))


def pending_calls(items: Iterable[Any]) -> list[dict[str, Any]]:
    """What a state waits for, as JSON: the call, its tool and arguments, and its agent."""
    return [
        {
            "call_id": item.call_id,
            "tool": item.name,
            "arguments": item.arguments,
            "agent": item.agent.name if item.agent is not None else None,
        }
        for item in items
    ]

"""Inputs, answers of models, outputs of tools and final outputs as text, encrypted or not."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from agents import Agent, ModelResponse, RunState
from agents.exceptions import UserError
from agents.run_state import SUPPORTED_SCHEMA_VERSIONS
from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from agents_session_metadata.errors import StateVersionError

Cipher: TypeAlias = Callable[[bytes], "bytes | str"]
"""A function that encrypts or decrypts, such as a method of `cryptography.fernet.Fernet`."""

_PARTS: dict[str, Any] = {
    "text": ToolOutputText,
    "image": ToolOutputImage,
    "file": ToolOutputFileContent,
}


@dataclass(frozen=True)
class Encryption:
    """Texts are not encrypted without the functions."""

    encrypt: Cipher | None = None
    decrypt: Cipher | None = None

    def seal(self, text: str) -> str:
        if self.encrypt is None:
            return text
        secret = self.encrypt(text.encode())
        return base64.b64encode(secret.encode() if isinstance(secret, str) else secret).decode()

    def open(self, text: str) -> str:
        if self.decrypt is None:
            if self.encrypt is not None:
                raise ValueError("runs are stored encrypted; pass decrypt= to SessionRuns")
            return text
        plain = self.decrypt(base64.b64decode(text))
        return plain if isinstance(plain, str) else plain.decode()

    def dump(self, value: Any) -> str:
        return self.seal(json.dumps(value))

    def load(self, text: str) -> Any:
        return json.loads(self.open(text))


@cache
def _responses() -> TypeAdapter[ModelResponse]:
    return TypeAdapter(ModelResponse)


def dump_response(response: ModelResponse) -> Any:
    # Without the fields that the model did not set: the history has none of them.
    return _responses().dump_python(response, mode="json", exclude_unset=True)


def load_response(value: Any) -> ModelResponse:
    return _responses().validate_python(value)


def dump_output(value: Any) -> Any:
    """Returns JSON for an output of a tool. Values that are not JSON become the model's text."""
    if _is_part(value):
        return {"part": value.model_dump(mode="json", exclude_unset=True)}
    if isinstance(value, list) and value and all(map(_is_part, value)):
        return {"parts": [each.model_dump(mode="json", exclude_unset=True) for each in value]}
    try:
        copy = json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        copy = None
    # By `repr`, which the model is sent: it tells 1 from True, and a tuple from a list.
    return {"json": value} if repr(copy) == repr(value) else {"json": str(value)}


def _is_part(value: object) -> bool:
    return isinstance(value, tuple(_PARTS.values()))


def load_output(value: Any) -> Any:
    if "part" in value:
        return _part(value["part"])
    if "parts" in value:
        return [_part(each) for each in value["parts"]]
    return value["json"]


def _part(fields: Any) -> Any:
    return _PARTS[fields["type"]].model_validate(fields)


def output_type(agent: Agent[Any]) -> Any:
    """Returns the type of an agent's final output, or None if it is text or not known."""
    kind = agent.output_type
    kind = getattr(kind, "output_type", kind) if not isinstance(kind, type) else kind
    return None if kind is str else kind


def dump_final(value: Any, agent: Agent[Any]) -> Any:
    kind = output_type(agent)
    if kind is not None:
        try:
            return TypeAdapter(kind).dump_python(value, mode="json")
        except (PydanticSerializationError, ValueError, TypeError):
            pass  # The output of a tool at which the run stopped.
    return load_output(dump_output(value)) if not _is_part(value) else str(value)


def load_final(value: Any, agent: Agent[Any] | None) -> Any:
    kind = None if agent is None else output_type(agent)
    if kind is None:
        return value
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValueError:
        return value


def dump_state(state: RunState[Any, Any], context: Any, *, strict: bool) -> dict[str, Any]:
    """Raises `UserError` in strict mode if the SDK would not store the context as it is."""
    written = state.to_json(strict_context=False)
    kept = written["context"]["context"] if context is not None else None
    if strict and context is not None and (type(context) is not dict or kept != context):
        raise UserError(
            f"the context of the run, of type {type(context).__name__}, would not be stored with "
            "the waiting run; use a plain dict of JSON values as context, or pass "
            "strict_context=False and pass the context to resume again"
        )
    return json.loads(json.dumps(written))  # type: ignore[no-any-return]


async def load_state(
    session_id: str, agent: Agent[Any], state: dict[str, Any], context: Any
) -> RunState[Any, Agent[Any]]:
    version = state.get("$schemaVersion")
    if version not in SUPPORTED_SCHEMA_VERSIONS:
        raise StateVersionError(session_id, version)
    return await RunState.from_json(agent, state, context_override=context)

"""A history as turns: a user message and everything up to the next user message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from agents_session_metadata.text import content_texts
from agents_session_metadata.types import ItemInfo

from .text import as_json, cut, shown

_CALLS: Final = ("_call", "mcp_approval_request")


@dataclass
class Step:
    """One item, or a tool call with its output.

    `kind` is `user`, `assistant`, `system`, `tool`, `reasoning`, `encrypted` or `other`. `name` is
    the role or the tool, `text` the message or the arguments.
    """

    item_id: int
    at: datetime
    kind: str
    name: str
    text: str
    output: str | None = None


@dataclass
class Turn:
    """A user message and the steps after it. The first turn may have no user message."""

    steps: list[Step] = field(default_factory=list)


def turns(items: Sequence[ItemInfo]) -> list[Turn]:
    """Group items, oldest first, into turns. Outputs of tools join their calls."""
    found: list[Turn] = []
    calls: dict[str, Step] = {}
    for info in items:
        item: Any = info.item
        call_id = item.get("call_id") if isinstance(item, dict) else None
        is_output = isinstance(item, dict) and str(item.get("type", "")).endswith("_output")
        if is_output and isinstance(call_id, str) and call_id in calls:
            calls[call_id].output = cut(_text(item.get("output")))
            continue
        step = _step(info)
        if isinstance(call_id, str) and step.kind == "tool" and not is_output:
            calls[call_id] = step
        if step.kind == "user" or not found:
            found.append(Turn())
        found[-1].steps.append(step)
    return found


def _step(info: ItemInfo) -> Step:
    item: Any = info.item

    def step(kind: str, name: str, text: str, output: str | None = None) -> Step:
        return Step(info.item_id, info.created_at, kind, name, cut(text), output)

    if not isinstance(item, dict):
        return step("other", "item", as_json(item))
    if item.get("__enc__") == 1:
        return step("encrypted", "encrypted item", "")
    kind = shown(item.get("type", ""), 60)
    if "role" in item:
        role = shown(item["role"], 60)
        known = role if role in {"user", "assistant"} else "system"
        return step(known, role, _text(item.get("content")))
    if kind == "reasoning":
        return step("reasoning", "Reasoning", _text(item.get("summary")))
    if kind.endswith("_output"):
        return step("tool", kind, "", cut(_text(item.get("output"))))
    if kind.endswith(_CALLS):
        name = item.get("name") or kind.removesuffix("_call").replace("_", " ")
        known_keys = {"type", "id", "call_id", "status", "name"}
        rest = {key: value for key, value in item.items() if key not in known_keys}
        arguments = rest.get("arguments", rest or "")
        return step("tool", shown(name, 100), _text(arguments))
    return step("other", kind or "item", as_json(item, indent=2))


def _text(content: Any) -> str:
    if isinstance(content, dict | int | float):
        return as_json(content, indent=2)
    return "\n".join(content_texts(content))

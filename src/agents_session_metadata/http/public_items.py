"""Items in the form of the Conversations API, with its ids and the fields that clients require.

Stored items are never rewritten: missing fields are added to the response.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from agents_session_metadata.types import ItemInfo

UNKNOWN = "unknown"
"""The type of an item that is stored without one, such as an encrypted item."""

_PREFIXES: Mapping[str, tuple[str, ...]] = {
    "message": ("msg_",),
    "reasoning": ("rs_",),
    "function_call": ("fc_",),
    "function_call_output": ("fc_", "fco_"),
    "custom_tool_call": ("ctc_",),
    "custom_tool_call_output": ("ctco_", "ctc_"),
    "file_search_call": ("fs_",),
    "web_search_call": ("ws_",),
    "image_generation_call": ("ig_",),
    "code_interpreter_call": ("ci_",),
    "computer_call": ("cu_",),
    "computer_call_output": ("cuo_", "cu_"),
    "local_shell_call": ("lsh_",),
    # Its id is that of the call.
    "local_shell_call_output": ("lsho_", "lsh_", "call_"),
    "shell_call": ("sh_",),
    "shell_call_output": ("sho_", "sh_"),
    "apply_patch_call": ("apc_",),
    "apply_patch_call_output": ("apco_", "apc_"),
    "mcp_list_tools": ("mcpl_",),
    "mcp_approval_request": ("mcpr_",),
    "mcp_approval_response": ("mcprr_", "mcpr_"),
    "mcp_call": ("mcp_",),
    "tool_search_call": ("tsc_",),
    "tool_search_output": ("tso_",),
    "compaction": ("cmp_",),
}
"""The prefixes of OpenAI's ids by type. New ids get the first one."""
_OTHER = ("item_",)

_HAVE_STATUS = frozenset(
    {
        "message",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "function_call",
        "function_call_output",
        "image_generation_call",
        "local_shell_call",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
"""Types whose items have a status in every response of the API."""

_FAKE = "__fake_id__"
"""The SDK gives it to the items of models that have no ids."""
_MADE = re.compile(r"[a-z]+_asm([0-9]{1,18})")
_KEPT = re.compile(r"[A-Za-z0-9_-]{1,255}")


def item_type(item: object) -> str:
    """Returns the type of a stored item. Messages can be stored without one."""
    if not isinstance(item, Mapping):
        return UNKNOWN
    kind = item.get("type")
    if isinstance(kind, str) and kind:
        return kind
    return "message" if isinstance(item.get("role"), str) else UNKNOWN


def refused_id(item: Mapping[str, Any]) -> str | None:
    """Returns the prefix that OpenAI expects, if it would refuse the id of a new item.

    Items need no id. Those of unknown types can have any.
    """
    given, known = item.get("id"), item_type(item) in _PREFIXES
    is_valid = _is_openai_id(given, item) if known else bool(given and isinstance(given, str))
    return None if given is None or is_valid else _prefixes(item)[0].removesuffix("_")


def public_id(item_id: int, item: object) -> str:
    """Returns the id of an item over HTTP.

    Ids get into the input of models, and OpenAI refuses an id without a prefix of its type. A
    stored id that looks like one of ours is not kept either: it would mean another row.
    """
    stored = item.get("id") if isinstance(item, Mapping) else None
    if _is_openai_id(stored, item) and not _MADE.fullmatch(stored):
        return stored
    return f"{_prefixes(item)[0]}asm{item_id}"


def _is_openai_id(found: object, item: object) -> TypeGuard[str]:
    return (
        isinstance(found, str)
        and found.startswith(_prefixes(item))
        and found != _FAKE
        and _KEPT.fullmatch(found) is not None
    )


def _prefixes(item: object) -> tuple[str, ...]:
    return _PREFIXES.get(item_type(item), _OTHER)


def catalog_id(item_id: str) -> int | str:
    """Returns the id in the catalog of an id over HTTP: the number of a row, or an item's own."""
    made = _MADE.fullmatch(item_id)
    return int(made[1]) if made else item_id


def shown_item(info: ItemInfo) -> dict[str, Any]:
    return shown(info.item, info.item_id)


def shown(item: object, item_id: int | None) -> dict[str, Any]:
    """Returns an item. It has no id while it is not in the history, without an `item_id`."""
    kind = item_type(item)
    stored = item if isinstance(item, Mapping) else {"value": item}
    shown = {name: stored[name] for name in stored if name != "id"}
    shown |= {"type": kind} if item_id is None else {"id": public_id(item_id, item), "type": kind}
    if kind in _HAVE_STATUS and not isinstance(shown.get("status"), str):
        shown["status"] = "completed"
    if kind == "message":
        shown["content"] = _content(shown.get("content"), shown.get("role"))
    return shown


def _content(content: object, role: object) -> list[Any]:
    parts = content if isinstance(content, list) else [] if content is None else [content]
    return [_part(part, role) for part in parts]


def _part(part: object, role: object) -> Any:
    if isinstance(part, str):
        part = {"type": "output_text" if role == "assistant" else "input_text", "text": part}
    if not isinstance(part, Mapping):
        return part
    kind = part.get("type")
    if kind == "output_text" and not isinstance(part.get("annotations"), list):
        return {**part, "annotations": []}
    if kind in ("input_image", "computer_screenshot") and not isinstance(part.get("detail"), str):
        return {**part, "detail": "auto"}
    return dict(part)

"""Pairs of items of a history that a cut must not separate, and cuts that keep the last turns.

| pair | by |
|---|---|
| a call and its output, of the types in `OUTPUT_OF` | `call_id` |
| an approval request of a hosted tool and the response | the request's `id` |
| reasoning and the item after it, if a model wrote that | position |
| a program without an output and the first item that it owns | `caller` |

Only pairs of which both parts are stored count. Calls of one turn that ran in parallel need no rule
of their own: each of them is in a pair with its output.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from agents_session_metadata.text import quoted

OUTPUT_OF = {
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "function_call": "function_call_output",
    "local_shell_call": "local_shell_call_output",
    "mcp_approval_request": "mcp_approval_response",
    "program": "program_output",
    "shell_call": "shell_call_output",
    "tool_search_call": "tool_search_output",
}
_CALL_OF = {output: call for call, output in OUTPUT_OF.items()}
_OUTPUTS = frozenset(_CALL_OF)

_HOSTED = frozenset(
    {
        "code_interpreter_call",
        "file_search_call",
        "hosted_tool_call",
        "image_generation_call",
        "mcp_approval_request",
        "mcp_call",
        "mcp_list_tools",
        "web_search_call",
    }
)
"""Types of items of hosted tools, which have no outputs of their own."""

Item: TypeAlias = "Mapping[str, Any]"
Call: TypeAlias = "tuple[str, str]"
"""The type of a call, and what it has in common with its output, as a rule its `call_id`."""
Pair: TypeAlias = "tuple[int, int]"
"""The positions of the two parts, the smaller one first."""


def separated_pair(items: Sequence[object], cut: int) -> Pair | None:
    """Returns a pair that would be separated if only the first `cut` items were kept, or None.

    `items` is the whole history, oldest first. An item that is not an object belongs to no pair.
    """
    return next((pair for pair in _pairs(items) if pair[0] < cut <= pair[1]), None)


def is_user_message(item: object) -> bool:
    return (
        isinstance(item, Mapping)
        and item.get("role") == "user"
        and item.get("type") in (None, "message")
    )


def unanswered(items: Sequence[object]) -> list[int]:
    """Returns the positions of calls without an output, and of the reasoning that led to them."""
    found = _found(items)
    calls, outputs = _positions(found)
    gone = {
        position
        for key, positions in calls.items()
        for position in positions
        if position > outputs.get(key, [-1])[-1]
    }
    kept: tuple[Item, str] | None = None
    for position, item, kind in reversed(found):
        is_followed = kept is not None and _is_from_model(*kept)
        if kind == "reasoning" and position + 1 in gone and not is_followed:
            gone.add(position)
        if position not in gone:
            kept = item, kind
    return sorted(gone)


def _pairs(items: Sequence[object]) -> Iterator[Pair]:
    found = _found(items)
    yield from _calls_with_outputs(found)
    yield from _anonymous_searches(found)
    yield from _reasoning(found)
    yield from _programs(found)


_Found: TypeAlias = "list[tuple[int, Item, str]]"


def _found(items: Sequence[object]) -> _Found:
    return [
        (position, item, str(item.get("type")))
        for position, item in enumerate(items)
        if isinstance(item, Mapping)
    ]


def _calls_with_outputs(found: _Found) -> Iterator[Pair]:
    """Each call with the next output of its id, and each output with the last call before it.

    Ids may be used again. Only if nothing is found in this direction, the other one counts.
    """
    calls, outputs = _positions(found)
    for key in calls.keys() & outputs.keys():
        own_calls, own_outputs = calls[key], outputs[key]
        for call in own_calls:
            after = bisect(own_outputs, call)
            if after < len(own_outputs):
                yield call, own_outputs[after]
        for output in own_outputs:
            before = bisect(own_calls, output)
            yield (own_calls[before - 1], output) if before else (output, own_calls[0])


def _positions(found: _Found) -> tuple[dict[Call, list[int]], dict[Call, list[int]]]:
    calls: dict[Call, list[int]] = {}
    outputs: dict[Call, list[int]] = {}
    for position, item, kind in found:
        identity = _identity(item, kind)
        if identity is None:
            continue
        if kind in OUTPUT_OF:
            calls.setdefault((kind, identity), []).append(position)
        elif kind in _OUTPUTS:
            outputs.setdefault((_CALL_OF[kind], identity), []).append(position)
    return calls, outputs


def _identity(item: Item, kind: str) -> str | None:
    name = {"mcp_approval_request": "id", "mcp_approval_response": "approval_request_id"}.get(
        kind, "call_id"
    )
    identity = item.get(name)
    if identity is None and kind == "local_shell_call_output":
        identity = item.get("id")
    return identity if isinstance(identity, str) else None


def _anonymous_searches(found: _Found) -> Iterator[Pair]:
    """Pairs tool searches without ids like brackets: the last one first."""
    waiting: list[int] = []
    for position, item, kind in reversed(found):
        if _identity(item, kind) is not None:
            continue
        if kind == "tool_search_output":
            waiting.append(position)
        elif kind == "tool_search_call" and waiting:
            yield position, waiting.pop()


def _reasoning(found: _Found) -> Iterator[Pair]:
    following: tuple[int, Item, str] | None = None
    for position, item, kind in reversed(found):
        if kind != "reasoning":
            following = position, item, kind
        elif following is not None and _is_from_model(*following[1:]):
            yield position, following[0]


def _is_from_model(item: Item, kind: str) -> bool:
    if "role" in item:
        return bool(item["role"] == "assistant")
    return kind not in _OUTPUTS


def _programs(found: _Found) -> Iterator[Pair]:
    """A program that has no output is complete as long as something that it called is."""
    finished = {item.get("call_id") for _, item, kind in found if kind == "program_output"}
    for position, item, kind in found:
        call_id = item.get("call_id")
        if kind != "program" or not isinstance(call_id, str) or call_id in finished:
            continue
        owned = [at for at, each, of in found if _caller(each) == call_id and _stays(each, of)]
        if owned and min(owned) > position:
            yield position, min(owned)


def _caller(item: Item) -> object:
    caller = item.get("caller")
    is_program = isinstance(caller, Mapping) and caller.get("type") == "program"
    return caller.get("caller_id") if is_program else None  # type: ignore[union-attr]  # a mapping


def _stays(item: Item, kind: str) -> bool:
    waits = kind == "shell_call" and item.get("status") in (None, "in_progress")
    return waits or kind in _HOSTED or kind in _OUTPUTS


def recent_turns(n: int) -> Callable[[list[Any], list[Any]], list[Any]]:
    """A `session_input_callback` with which the model sees the last turns and the new input.

    ```python
    config = RunConfig(session_input_callback=recent_turns(5))
    await Runner.run(agent, "And tomorrow?", session=session, run_config=config)
    ```

    A turn begins with a message of the user. A call without its output is left out, and so is an
    output without its call. The stored history does not change.

    Args:
        n: The number of turns, at least 1.

    Returns:
        The function, for `RunConfig`.

    Raises:
        ValueError: If `n` is not a positive integer.
    """
    if type(n) is not int or n < 1:
        raise ValueError(f"n must be a positive integer, got {quoted(n)}")

    def recent(history: list[Any], new: list[Any]) -> list[Any]:
        starts = [at for at, item in enumerate(history) if is_user_message(item)]
        begin = starts[-n] if len(starts) > n else 0
        items: list[Any] = list(history)
        while (pair := separated_pair(items, begin)) is not None:
            items[pair[1]] = None
        shown = items[begin:]
        for at in unanswered([*shown, *new]):
            if at < len(shown):
                shown[at] = None
        return [*(item for item in shown if item is not None), *new]

    return recent

"""A cut that is allowed leaves nothing that the SDK would drop, compared by its own rules."""

from __future__ import annotations

from typing import Any

from agents.run_internal import items as sdk
from hypothesis import given
from hypothesis import strategies as st
from scaling import examples

from agents_session_metadata.history.pairs import OUTPUT_OF, separated_pair

IDS = st.sampled_from(["a", "b", "c"])
CALLERS = st.sampled_from([None, None, "a", "b"])
HOSTED = ["web_search_call", "mcp_call", "code_interpreter_call", "mcp_list_tools"]


@st.composite
def tools(draw: st.DrawFn) -> dict[str, Any]:
    """A call or an output of any tool, some of them owned by a program."""
    call, output = draw(st.sampled_from(sorted(OUTPUT_OF.items())))
    item: dict[str, Any] = {"type": draw(st.sampled_from([call, output]))}
    identity = draw(IDS)
    if call == "mcp_approval_request":
        item["id" if item["type"] == call else "approval_request_id"] = identity
    elif call != "tool_search_call" or draw(st.booleans()):
        item["call_id"] = identity
    if item["type"] == "shell_call":
        item["status"] = draw(st.sampled_from(["completed", "in_progress"]))
    if caller := draw(CALLERS):
        item["caller"] = {"type": "program", "caller_id": caller}
    return item


HISTORIES = st.lists(
    st.one_of(
        tools(),
        tools(),
        st.builds(lambda kind: {"type": kind, "id": "h"}, st.sampled_from(HOSTED)),
        st.just({"type": "reasoning", "id": "rs", "summary": []}),
        st.builds(
            lambda role: {"role": role, "content": "x"}, st.sampled_from(["user", "assistant"])
        ),
        st.just({"type": "message", "role": "assistant", "content": []}),
        st.just("not an object"),
    ),
    max_size=14,
)


def kept_by_the_sdk(items: list[Any]) -> set[int]:
    """The positions of what the SDK leaves of a history, orphaned outputs dropped as well."""
    numbered = [
        {**item, "number": position} if isinstance(item, dict) else position
        for position, item in enumerate(items)
    ]
    left = sdk.drop_orphan_function_calls(
        numbered, output_pruning_indexes=set(range(len(numbered)))
    )
    return {item["number"] if isinstance(item, dict) else item for item in left}


@examples(200)
@given(HISTORIES)
def test_no_cut_orphans_anything(items):
    before = kept_by_the_sdk(items)
    for cut in range(len(items) + 1):
        pair = separated_pair(items, cut)
        if pair is None:
            assert kept_by_the_sdk(items[:cut]) >= {each for each in before if each < cut}
        else:
            assert pair[0] < cut <= pair[1]


def test_the_types_of_calls_are_those_of_the_sdk():
    approvals = {"mcp_approval_request": "mcp_approval_response"}
    assert {**sdk._TOOL_CALL_TO_OUTPUT_TYPE, **approvals} == OUTPUT_OF


def item(kind: str, identity: str = "a", **more: Any) -> dict[str, Any]:
    return {"type": kind, "call_id": identity, **more}


USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
REASONING = {"type": "reasoning", "id": "rs", "summary": []}


def allowed_cuts(*items: Any) -> list[int]:
    return [cut for cut in range(len(items) + 1) if separated_pair(items, cut) is None]


def test_cuts_by_example():
    for call, output in OUTPUT_OF.items():
        first, second = item(call, id="a"), item(output, approval_request_id="a")
        assert allowed_cuts(USER, first, second, ANSWER) == [0, 1, 3, 4]
        # A call that has no output is no pair, and neither is an output without a call.
        assert allowed_cuts(USER, first, USER, item(output, "b"), USER) == [0, 1, 2, 3, 4, 5]
    shell = {"type": "local_shell_call_output", "id": "a", "output": ""}
    assert allowed_cuts(item("local_shell_call"), shell) == [0, 2]
    # Parallel calls.
    calls = [item("function_call", each) for each in "ab"]
    outputs = [item("function_call_output", each) for each in "ab"]
    assert allowed_cuts(USER, REASONING, *calls, *outputs, ANSWER) == [0, 1, 6, 7]
    # An id that is used again in a later turn.
    turn = [USER, calls[0], outputs[0]]
    assert allowed_cuts(*turn, *turn) == [0, 1, 3, 4, 6]
    # Reasoning belongs to what the model wrote next, and to nothing else.
    assert allowed_cuts(USER, REASONING, REASONING, ANSWER) == [0, 1, 4]
    assert allowed_cuts(USER, REASONING, USER, ANSWER) == [0, 1, 2, 3, 4]
    assert allowed_cuts(REASONING, {"type": "web_search_call", "id": "w"}) == [0, 2]

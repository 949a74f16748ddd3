"""What the model sees of a history with `recent_turns`; the history stays whole."""

from __future__ import annotations

import pytest
from agents import Agent, RunConfig, Runner, SQLiteSession
from agents.testing import ScriptedModel, assistant_message

from agents_session_metadata import recent_turns

USER = {"role": "user", "content": "u"}
ANSWER = {"role": "assistant", "content": "a"}
REASONING = {"type": "reasoning", "id": "r", "summary": []}


def call(name: str) -> dict:
    return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}


def output(name: str) -> dict:
    return {"type": "function_call_output", "call_id": name, "output": "o"}


TURN = [USER, call("1"), output("1"), ANSWER]


@pytest.mark.parametrize(
    ("n", "history", "seen"),
    [
        (1, [], []),
        (1, [*TURN, USER, ANSWER], [USER, ANSWER]),
        (2, [ANSWER, *TURN, *TURN, USER], [*TURN, USER]),
        (9, [ANSWER, *TURN, USER], [ANSWER, *TURN, USER]),
        # A call whose output comes in a later turn, and one that has no output.
        (1, [USER, call("1"), USER, output("1"), ANSWER], [USER, ANSWER]),
        (2, [USER, REASONING, call("1"), USER, ANSWER], [USER, USER, ANSWER]),
        (2, [USER, call("1"), call("2"), output("2"), USER], [USER, call("2"), output("2"), USER]),
    ],
)
def test_turns(n, history, seen):
    new = [{"role": "user", "content": "new"}]
    before = list(history)
    assert recent_turns(n)(history, new) == [*seen, *new]
    assert history == before


def test_an_output_that_is_the_new_input():
    assert recent_turns(1)([USER, call("1")], [output("1")]) == [USER, call("1"), output("1")]


@pytest.mark.parametrize("n", [0, -1, True, 1.5, "1"])
def test_numbers_that_are_refused(n):
    with pytest.raises(ValueError, match="positive integer"):
        recent_turns(n)


async def test_a_run():
    session = SQLiteSession("chat")
    model = ScriptedModel([[assistant_message(str(number))] for number in range(4)])
    agent = Agent(name="a", model=model)
    config = RunConfig(session_input_callback=recent_turns(1))
    for number in range(4):
        await Runner.run(agent, f"q{number}", session=session, run_config=config)
    assert [len(seen.input) for seen in model.calls] == [1, 3, 3, 3]
    assert len(await session.get_items()) == 8
    session.close()

"""A stored session as a test: recorded answers and outputs, no model and no tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    Runner,
    ToolOutputImage,
    function_tool,
    handoff,
)
from agents.extensions.memory import EncryptedSession
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseReasoningItem

from agents_session_metadata import Replay, SessionNotFoundError
from conformance import raw

pytestmark = pytest.mark.logic

IMAGE = "data:image/png;base64,AAAA"


@dataclass
class Answer:
    text: str


class Tools:
    """Tools that count how often they run."""

    def __init__(self) -> None:
        self.runs: list[str] = []

        @function_tool
        def weather(city: str) -> dict[str, Any]:
            self.runs.append(city)
            return {"city": city, "degrees": len(city)}

        @function_tool(needs_approval=False)
        def picture() -> Any:
            self.runs.append("picture")
            return [ToolOutputImage(image_url=IMAGE)]

        self.weather, self.picture = weather, picture


@pytest.fixture
def tools():
    return Tools()


def calling(tool: str, call_id: str, **arguments: Any) -> Any:
    return function_call(tool, arguments, call_id=call_id)


def agents_of(its, *steps, second=(), **options):
    helper = Agent(name="helper", model=ScriptedModel(second), tools=[its.picture])
    options = {"tools": [its.weather], "handoffs": [handoff(helper)], **options}
    return Agent(name="assistant", model=ScriptedModel(steps), **options)


STEPS = [
    [
        ResponseReasoningItem(id="rs_1", type="reasoning", summary=[]),
        calling("weather", "c1", city="Oslo"),
        calling("weather", "c2", city="Lisbon"),
    ],
    [assistant_message("Cold and warm.")],
    [calling("transfer_to_helper", "c3")],
]
SECOND = [[calling("picture", "c4")], [assistant_message("A picture.")]]


@pytest.fixture
async def recorded(session, tools):
    agent = agents_of(tools, *STEPS, second=SECOND)
    await Runner.run(agent, "Oslo and Lisbon?", session=session)
    await Runner.run(agent, "Draw it.", session=session)
    assert sorted(tools.runs) == ["Lisbon", "Oslo", "picture"]
    tools.runs.clear()
    return session


async def test_the_same_agent_does_the_same(recorded, catalog, tools):
    items = await recorded.get_items()
    replay = await Replay.of(catalog, "chat")
    for _ in range(2):
        result = await replay.run(agents_of(tools))
        assert (result.differences, result.ended) == ([], None)
        assert [item for turn in result.recorded for item in turn] == items
        assert [len(turn) for turn in result.replayed] == [len(turn) for turn in result.recorded]
    assert tools.runs == []
    assert await recorded.get_items() == items


async def test_a_tool_that_is_gone(recorded, catalog, tools):
    replay = await Replay.of(catalog, "chat")
    result = await replay.run(agents_of(tools, tools=[]))
    assert result.ended == "the agent has no tool 'weather'"
    assert [each.problem for each in result.differences] == [result.ended]
    result = await replay.run(agents_of(tools, handoffs=[]))
    assert result.ended == "the agent has no tool 'transfer_to_helper'"
    assert [each.turn for each in result.differences] == [2]


async def test_an_agent_that_ends_early(recorded, catalog, tools):
    replay = await Replay.of(catalog, "chat")
    result = await replay.run(agents_of(tools, tool_use_behavior="stop_on_first_tool"))
    assert result.ended == "the run ended before 1 more recorded answers"
    result = await replay.run(agents_of(tools, output_type=Answer))
    assert result.ended is not None
    assert "ModelBehaviorError" in result.ended


async def test_what_is_not_recorded(session, catalog, tools):
    agent = agents_of(tools, [calling("weather", "c1", city="Oslo")], RuntimeError("overloaded"))
    with pytest.raises(RuntimeError):
        await Runner.run(agent, "Oslo?", session=session)
    result = await (await Replay.of(catalog, "chat")).run(agents_of(tools))
    assert result.ended == "the recorded run ended without a further answer"
    assert result.replayed == result.recorded

    waiting = await catalog.create_session("waiting")
    await waiting.add_items([raw.message("hi"), *(await session.get_items())[1:2]])
    result = await (await Replay.of(catalog, "waiting")).run(agents_of(tools))
    assert result.ended == """the recording has no output of 'weather' with '{"city":"Oslo"}'"""

    await waiting.clear_session()
    await waiting.add_items([raw.message("hi")])
    result = await (await Replay.of(catalog, "waiting")).run(agents_of(tools))
    assert result.ended == "the recorded run ended without an answer"
    shell = {"type": "shell_call", "call_id": "s", "id": "s", "status": "completed"}
    shell["action"] = {"commands": ["ls"], "timeout_ms": 1, "max_output_length": 1}
    await waiting.add_items([shell])
    result = await (await Replay.of(catalog, "waiting")).run(agents_of(tools))
    assert result.ended == "a call of type 'shell_call' cannot be replayed"


async def test_another_model(recorded, catalog, tools):
    replay = await Replay.of(catalog, "chat")
    first = [calling("weather", "x2", city="Oslo"), calling("weather", "x1", city="Lisbon")]
    same = ScriptedModel([first, [assistant_message("Other words.")], *STEPS[2:], *SECOND])
    result = await replay.run(agents_of(tools), model=same)
    assert (result.differences, result.ended) == ([], None)
    assert result.replayed[0][-1]["content"][0]["text"] == "Other words."

    first = [calling("weather", "x1", city="Lisbon")]
    fewer = ScriptedModel([first, [assistant_message("Warm.")], *STEPS[2:], *SECOND])
    result = await replay.run(agents_of(tools), model=fewer)
    assert result.ended is None
    assert {each.turn for each in result.differences} == {1}
    assert [each.problem for each in result.differences][-1] == "is missing"
    assert result.differences[0].recorded["arguments"] == '{"city":"Oslo"}'
    assert result.differences[0].replayed["arguments"] == '{"city":"Lisbon"}'

    result = await replay.run(
        agents_of(tools), model=ScriptedModel([[calling("weather", "x", city="Rome")]])
    )
    assert result.ended == """the recording has no output of 'weather' with '{"city":"Rome"}'"""
    assert tools.runs == []


async def test_approvals_guardrails_and_agents_as_tools(session, catalog, tools):
    inner = Agent(name="inner", model=ScriptedModel([[assistant_message("inner answer")]]))
    ask = inner.as_tool("ask_inner", "Asks.")
    steps = [
        [calling("ask_inner", "c1", input="?"), calling("delete", "c2", name="x")],
        [assistant_message("Done.")],
    ]

    async def allow(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        tools.runs.append("guardrail")
        return GuardrailFunctionOutput(None, tripwire_triggered=False)

    @function_tool(needs_approval=True)
    def delete(name: str) -> str:
        tools.runs.append(name)
        return "deleted"

    def agent(*answers: Any) -> Agent:
        options = {"tools": [ask, delete], "input_guardrails": [InputGuardrail(allow)]}
        return Agent(name="a", model=ScriptedModel(answers), **options)

    recording = agent(*steps)
    result = await Runner.run(recording, "go", session=session)
    state = result.to_state()
    for each in result.interruptions:
        state.approve(each)
    await Runner.run(recording, state, session=session)
    assert tools.runs == ["guardrail", "x"]
    result = await (await Replay.of(catalog, "chat")).run(agent())
    assert result.differences == []
    assert tools.runs == ["guardrail", "x"]


async def test_it_begins_after_the_newest_compaction(recorded, catalog, tools):
    items = await recorded.get_items()
    await recorded.clear_session()
    compaction = {"type": "compaction", "id": "cmp_1", "encrypted_content": "…"}
    turn = [raw.message("hi"), {"role": "assistant", "content": "short form"}]
    await recorded.add_items([*items, compaction, *turn])
    result = await (await Replay.of(catalog, "chat")).run(agents_of(tools))
    assert (result.differences, result.recorded) == ([], [turn])


async def test_an_answer_whose_parts_have_no_annotations_is_given_back(recorded, catalog, tools):
    part = {"type": "output_text", "text": "short"}
    turn = [raw.message("hi"), {"role": "assistant", "content": [part]}]
    await catalog.create_session("short", items=turn)
    result = await (await Replay.of(catalog, "short")).run(agents_of(tools))
    assert (result.differences, result.recorded) == ([], [turn])


async def test_sessions_that_cannot_be_replayed(recorded, catalog):
    for of in (catalog, catalog.scoped({"owner_id": "u1"})):
        with pytest.raises(SessionNotFoundError):
            await Replay.of(of, "nobody")
    with pytest.raises(SessionNotFoundError):
        await Replay.of(catalog.scoped({"owner_id": "u2"}), "chat")
    encrypted = EncryptedSession("secret", catalog.session("secret"), "key")
    await encrypted.add_items([raw.message("hi")])
    with pytest.raises(ValueError, match="encrypted"):
        await Replay.of(catalog, "secret")

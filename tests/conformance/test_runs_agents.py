"""`SessionRuns.run` is `Runner.run`: the caller's agents, their changes, the SDK's refusals."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
from typing import Any

import pytest
from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    RunContextWrapper,
    RunHooks,
    Runner,
    RunState,
    function_tool,
    handoff,
    input_guardrail,
)
from agents.models.multi_provider import MultiProvider
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext

from agents_session_metadata import RunOptions, SessionChangedError, SessionRuns
from conformance.failing import Till, Turns, ids_of_calls, once, status, until

pytestmark = pytest.mark.logic


@pytest.fixture
def till():
    return Till()


@pytest.fixture
def runs(catalog):
    return SessionRuns(catalog)


# ---- the caller's agents ----


async def test_everything_shows_the_agent_of_the_caller(runs) -> None:
    seen: dict[str, Any] = {}

    @function_tool
    async def look(context: ToolContext[Any]) -> str:
        seen["tool"] = context.agent
        return "saw"

    async def instructions(context: Any, agent: Any) -> str:
        seen["instructions"] = agent
        return "Be brief."

    async def enabled(context: Any, agent: Any) -> bool:
        seen["enabled"] = agent
        return True

    @input_guardrail
    async def guard(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        seen["guardrail"] = agent
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    class Hooks(RunHooks[Any]):
        async def on_llm_start(self, context: Any, agent: Any, *_: Any) -> None:
            seen["run hooks"] = agent

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            seen["tool of run hooks"] = tool

    class OfAgent(AgentHooks[Any]):
        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            seen["agent hooks"], seen["tool of agent hooks"] = agent, tool

    look.is_enabled = enabled
    agent = Agent(
        "a",
        instructions=instructions,
        tools=[look],
        model=Turns(["look"], "Done"),
        input_guardrails=[guard],
        hooks=OfAgent(),
    )
    run = await runs.run("chat", agent, "Hi", hooks=Hooks())
    for name, found in seen.items():
        assert found is (look if name.startswith("tool of") else agent), name
    assert len(seen) == 8
    assert all(item.agent is agent for item in run.result.new_items)
    assert run.result.last_agent is agent
    assert agent.tools == [look]


async def test_a_tool_that_is_added_during_a_run_can_be_called_in_the_next_turn(runs) -> None:
    @function_tool
    async def late() -> str:
        return "late"

    @function_tool
    async def add(context: ToolContext[Any]) -> str:
        agent.tools.append(late)
        return "added"

    agent = Agent("a", tools=[add], model=Turns(["add"], ["late"], "Done"))
    assert (await runs.run("chat", agent, "Hi")).final_output == "Done"
    assert len(await ids_of_calls(runs)) == 2


async def test_instructions_and_models_that_change_during_a_run_count(runs) -> None:
    later = Turns(["change"], "by another model")

    @function_tool
    async def change() -> str:
        agent.instructions = "Be kind."
        agent.model = later
        return "changed"

    agent = Agent("a", instructions="Be brief.", tools=[change], model=Turns(["change"], "Done"))
    seen: list[str | None] = []

    class Hooks(RunHooks[Any]):
        async def on_llm_start(self, context: Any, agent: Any, prompt: Any, items: Any) -> None:
            seen.append(prompt)

    run = await runs.run("chat", agent, "Hi", hooks=Hooks())
    assert seen == ["Be brief.", "Be kind."]
    assert run.final_output == "by another model"


async def test_a_context_wrapper_with_decisions_is_taken(runs) -> None:
    paid: list[str] = []

    @function_tool(needs_approval=True)
    async def pay() -> str:
        paid.append("pay")
        return "paid"

    calling = [function_call("pay", {}, call_id="c1")]
    model = ScriptedModel([calling, calling, [assistant_message("Done")]])
    agent = Agent("a", tools=[pay], model=model)
    paused = await Runner.run(agent, "Hi")
    wrapper = RunContextWrapper(context={"a": 1})
    wrapper.approve_tool(paused.interruptions[0], always_approve=True)
    run = await runs.run("chat", agent, "Hi", context=wrapper)
    assert (run.final_output, paid) == ("Done", ["pay"])


async def test_items_can_be_deeply_copied(runs) -> None:
    copied: list[Any] = []

    def copy_all(data: Any) -> Any:
        copied.extend(copy.deepcopy(data.new_items))
        return data.clone(new_items=tuple(copy.deepcopy(item) for item in data.new_items))

    second = Agent("second", model=ScriptedModel([[assistant_message("Done")]]))
    first = Agent(
        "first",
        model=ScriptedModel([[function_call("transfer_to_second", {}, call_id="h1")]]),
        handoffs=[handoff(second, input_filter=copy_all)],
    )
    run = await runs.run("chat", first, "Hi")
    assert (run.final_output, len(copied)) == ("Done", 2)
    copy.deepcopy(run.result.new_items)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_state_of_the_result_goes_on_under_runner_run(runs, streamed) -> None:
    paid: list[str] = []

    @function_tool(needs_approval=True)
    async def pay() -> str:
        paid.append("pay")
        return "paid"

    agent = Agent("a", tools=[pay], model=Turns(["pay"], "Done"))
    if streamed:
        async with runs.stream("chat", agent, "Hi") as run:
            async for _ in run.stream_events():
                pass
    else:
        run = await runs.run("chat", agent, "Hi")
    state = run.result.to_state()
    state.approve(run.result.interruptions[0])
    restored = await RunState.from_json(agent, json.loads(json.dumps(state.to_json())))
    result = await Runner.run(agent, restored)
    assert (result.final_output, paid) == ("Done", ["pay"])
    assert result.last_agent is agent


async def test_hooks_hear_of_the_tools_and_agents_of_a_handoff(runs) -> None:
    second = Agent("second", model=ScriptedModel([[assistant_message("Done")]]))
    first = Agent(
        "first",
        model=ScriptedModel([[function_call("transfer_to_second", {}, call_id="h1")]]),
        handoffs=[second],
    )
    seen: list[Any] = []

    class Hooks(RunHooks[Any]):
        async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
            seen.extend([from_agent, to_agent])

    async with runs.stream("chat", first, "Hi", hooks=Hooks()) as run:
        agents = [
            event.new_agent
            async for event in run.stream_events()
            if event.type == "agent_updated_stream_event"
        ]
    assert [id(each) for each in seen] == [id(first), id(second)]
    assert [id(each) for each in agents] == [id(first), id(second)]


# ---- the same agent ----


async def interrupt(runs: SessionRuns, till: Till, agent: Agent[Any], **options: Any) -> None:
    """Cancels a run in its tool `other`."""
    till.on_other = asyncio.Event().wait
    task = asyncio.create_task(runs.run("chat", agent, "Hi", **options))
    await until(lambda: till.others or task.done())
    task.cancel()
    await asyncio.wait({task})
    till.on_other = lambda: None
    assert await status(runs) == "interrupted"


@pytest.mark.parametrize("state", ["interrupted", "failed", "waiting"])
async def test_another_agent_does_not_finish_a_run(runs, till, state) -> None:
    @function_tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    steps = {"interrupted": ["other"], "failed": ["other"], "waiting": ["pay"]}
    agent = till.agent(["charge"], steps[state], "Done", name="clerk", tools=[pay])
    if state == "interrupted":
        await interrupt(runs, till, agent)
    elif state == "failed":
        till.on_other = once(RuntimeError("down"))
        with pytest.raises(Exception, match="down"):
            await runs.run("chat", agent, "Hi")
    else:
        run = await runs.run("chat", agent, "Hi")
        await runs.decide("chat", run.interruptions[0].call_id, approve=True)
    pirate = till.agent(["charge"], steps[state], "Arr", name="pirate", tools=[pay])
    with pytest.raises(SessionChangedError, match="clerk"):
        await runs.resume("chat", pirate)
    assert await status(runs) == state
    assert pirate.model.answers == 0
    assert (await runs.resume("chat", agent)).final_output == "Done"
    assert len(till.charged) == 1


async def test_force_lets_another_agent_finish_a_run(runs, till) -> None:
    await interrupt(runs, till, till.agent(["charge"], ["other"], name="clerk"))
    renamed = till.agent(["charge"], ["other"], "Done", name="clerk 2")
    assert (await runs.resume("chat", renamed, force=True)).final_output == "Done"
    assert len(till.charged) == 1


async def test_the_agent_that_a_run_was_handed_to_must_be_there(runs, till) -> None:
    def agents(name: str) -> Agent[Any]:
        second = Agent(name, model=Turns(["go"], ["other"], "Done"), tools=[till.other])
        calling = [function_call(f"transfer_to_{name}", {}, call_id="h-1")]
        return Agent("first", model=ScriptedModel([calling]), handoffs=[second])

    await interrupt(runs, till, agents("second"))
    with pytest.raises(SessionChangedError, match="second"):
        await runs.resume("chat", agents("third"))
    assert await status(runs) == "interrupted"
    assert (await runs.resume("chat", agents("second"))).final_output == "Done"


async def test_a_recorded_tool_must_be_there(runs, till) -> None:
    await interrupt(runs, till, till.agent(["charge"], ["other"], "Done"))
    renamed = till.agent(["charge"], ["other"], "Done")
    renamed.tools = [till.other]
    with pytest.raises(SessionChangedError, match="charge"):
        await runs.resume("chat", renamed)
    assert await status(runs) == "interrupted"
    agent = till.agent(["charge"], ["other"], "Done")
    assert (await runs.resume("chat", agent)).final_output == "Done"
    assert len(till.charged) == 1


async def test_a_deploy_may_change_instructions_models_and_add_tools(runs, till) -> None:
    await interrupt(runs, till, till.agent(["charge"], ["other"], "Done"))

    @function_tool
    async def further() -> str:
        return "further"

    agent = till.agent(["charge"], ["other"], ["further"], "Done 2", tools=[further])
    agent.instructions = "Be kind."
    assert (await runs.resume("chat", agent)).final_output == "Done 2"
    assert len(till.charged) == 1


# ---- arguments that the SDK refuses ----

REFUSED: list[dict[str, Any]] = [
    {"hook": None},
    {"max_turn": 3},
    {"hooks": AgentHooks()},
    {"conversation_id": "conv_1"},
    {"previous_response_id": "resp_1"},
    {"auto_previous_response_id": True},
    {"run_config": 7},
]


@pytest.mark.parametrize("options", REFUSED, ids=lambda options: next(iter(options)))
@pytest.mark.parametrize("streamed", [False, True])
async def test_arguments_that_are_refused_leave_nothing(runs, till, options, streamed) -> None:
    agent = till.agent("Done")
    with pytest.raises(Exception, match=r"\w") as caught:
        await call(runs, agent, options, streamed=streamed)
    assert isinstance(caught.value, TypeError) or "session" in str(caught.value).lower()
    assert agent.model.answers == 0
    assert await runs.catalog.get_session("chat") is None
    assert (await runs.list()).runs == []


async def call(runs: SessionRuns, agent: Any, options: Any, *, streamed: bool) -> None:
    if not streamed:
        await runs.run("chat", agent, "Hi", **options)
        return
    async with runs.stream("chat", agent, "Hi", **options) as run:
        async for _ in run.stream_events():
            pass


@pytest.mark.logic
def test_the_options_of_runs_are_those_of_the_sdks_runner_and_ours() -> None:
    of_runner = inspect.signature(Runner.run).parameters.keys() - {"starting_agent", "input"}
    assert RunOptions.__annotations__.keys() == of_runner | {"wait", "strict_context"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_arguments_that_are_refused_leave_a_failed_run_as_it_was(
    runs, till, streamed
) -> None:
    agent = till.agent(["charge"], RuntimeError("429"), "Done")
    with pytest.raises(RuntimeError, match="429"):
        await runs.run("chat", agent, "Hi")
    for options in REFUSED:
        with pytest.raises(Exception, match=r"\w"):
            await call(runs, agent, options, streamed=streamed)
    for misspelled in ({"hook": None}, {"forced": True}, {"key": "k"}):
        with pytest.raises(TypeError, match=f"unknown argument '{next(iter(misspelled))}'"):
            await runs.resume("chat", agent, **misspelled)
        with pytest.raises(TypeError, match=r"expected one of .*hooks"):
            runs.stream_resume("chat", agent, **misspelled)
    assert (await runs.get("chat")).error == "RuntimeError: 429"
    assert (await runs.resume("chat", agent)).final_output == "Done"
    assert len(till.charged) == 1


async def test_a_stream_that_cannot_begin_closes_its_model_provider(
    runs, till, monkeypatch
) -> None:
    is_open: list[int] = []
    begin, close = MultiProvider.__init__, MultiProvider.aclose

    def opened(self: Any, *args: Any, **options: Any) -> None:
        is_open.append(id(self))
        begin(self, *args, **options)

    async def closed(self: Any) -> None:
        is_open.remove(id(self))
        await close(self)

    monkeypatch.setattr(MultiProvider, "__init__", opened)
    monkeypatch.setattr(MultiProvider, "aclose", closed)
    await call(runs, till.agent("Done"), {}, streamed=True)
    left = list(is_open)  # The SDK makes one for its default settings, and leaves it.
    for options in REFUSED:
        with pytest.raises(Exception, match=r"\w"):
            await call(runs, till.agent("Done"), options, streamed=True)
    assert is_open == left

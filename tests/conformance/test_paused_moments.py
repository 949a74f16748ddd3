"""Resumed runs that are cancelled, or lose a write, at each moment: nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import itertools
from typing import NamedTuple

import pytest
from agents import Agent, RunConfig, RunHooks, Runner, function_tool, handoff
from agents.exceptions import ModelBehaviorError, UserError
from agents.extensions.handoff_filters import remove_all_tools
from agents.lifecycle import RunHooksBase
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.testing.model import ModelStep
from scaling import scale
from sqlalchemy import event

from conformance.approving import kinds, paused_runs

pytestmark = pytest.mark.logic

EVERY = scale(29, 1)
"""The distance between the moments that are tried."""


class Moments:
    """The moments of a run: statements, hooks, calls and events. One of them may be disturbed."""

    def __init__(self, engine):
        self.passed, self._at, self._disturb = [], None, None

        def execute(_connection, _cursor, statement, *_):
            self.reach(statement)

        event.listen(engine.sync_engine, "before_cursor_execute", execute)
        event.listen(engine.sync_engine, "after_cursor_execute", execute)

    def begin(self, at=None, disturb=None):
        self.passed, self._at, self._disturb = [], at, disturb

    def reach(self, name):
        self.passed.append(name)
        if len(self.passed) - 1 == self._at:
            self._disturb(name)

    def hooks(self):
        """Run hooks that are moments."""

        def hook(name):
            async def reach(*_):
                self.reach(name)
                await asyncio.sleep(0)

            return reach

        names = [name for name in vars(RunHooksBase) if name.startswith("on_")]
        hooks = RunHooks()
        for name in names:
            setattr(hooks, name, hook(name))
        return hooks


class Crew:
    """Agents whose models follow a plan: each answers with the first calls that have no outputs."""

    def __init__(self, moments):
        self.moments, self.ran, self._ids = moments, [], itertools.count()

        @function_tool(needs_approval=True)
        async def deploy(target: str) -> str:
            return await self._run("deploy", target)

        @function_tool
        async def look(target: str) -> str:
            return await self._run("look", target)

        self._tools = [deploy, look]

    async def _run(self, tool, target):
        self.moments.reach(f"{tool} {target}")
        self.ran.append(f"{tool} {target}")
        await asyncio.sleep(0)
        return f"{tool} {target} done"

    def agent(self, name, *plan, tools=(), **arguments):
        def answer(call):
            self.moments.reach("model")
            done = {
                item["call_id"].partition("-")[0]
                for item in call.input
                if item.get("type") == "function_call_output"
            }
            for turn in plan:
                if not {call_id for _, call_id, _ in turn} <= done:
                    return [
                        function_call(tool, given, call_id=f"{call_id}-{next(self._ids)}")
                        for tool, call_id, given in turn
                    ]
            return [assistant_message("Done")]

        steps = [ModelStep.respond(answer)] * 20
        return Agent(name, model=ScriptedModel(steps), tools=[*self._tools, *tools], **arguments)


def deploys(call_id):
    return "deploy", call_id, {"target": call_id}


def looks(call_id):
    return "look", call_id, {"target": call_id}


def pausing_again(crew):
    plan = [deploys("c1")], [looks("l1"), looks("l2")], [deploys("c2"), looks("l3")], [looks("l4")]
    return crew.agent("first", *plan)


def handing_off(crew, **arguments):
    last = crew.agent("last", [looks("l1")], [deploys("c2")])
    turns = [deploys("c1")], [looks("l0")], [("transfer_to_last", "h1", {})]
    return crew.agent("first", *turns, handoffs=[handoff(last, **arguments)])


def handing_off_without_tools(crew):
    return handing_off(crew, input_filter=remove_all_tools)


def using_an_agent(crew):
    inner = crew.agent("inner", [deploys("c7")], [looks("l7")])
    turns = [("ask", "b1", {"input": "go"})], [looks("l1")], [deploys("c2")]
    return crew.agent("first", *turns, tools=[inner.as_tool("ask", "Ask the other agent.")])


def using_an_agent_later(crew):
    inner = crew.agent("inner", [deploys("c7")], [looks("l7")])
    turns = [deploys("c1")], [looks("l0")], [("ask", "b1", {"input": "go"})], [looks("l1")]
    return crew.agent("first", *turns, tools=[inner.as_tool("ask", "Ask the other agent.")])


def using_two_agents(crew):
    inner = [crew.agent(f"inner{n}", [deploys(f"c{n}")], [looks(f"l{n}")]) for n in (7, 8)]
    tools = [each.as_tool(f"ask{n}", "Ask another agent.") for n, each in enumerate(inner)]
    asks = [(f"ask{n}", f"b{n}", {"input": "go"}) for n in (0, 1)]
    return crew.agent("first", asks, [looks("l1")], [deploys("c2")], tools=tools)


PLANS = {
    "pausing again": (pausing_again, RunConfig()),
    "handoff": (handing_off, RunConfig()),
    "handoff that nests": (handing_off, RunConfig(nest_handoff_history=True)),
    "handoff without tools": (handing_off_without_tools, RunConfig()),
    "agent as a tool": (using_an_agent, RunConfig()),
    "agent as a tool, later": (using_an_agent_later, RunConfig()),
}
if scale(False, True):
    PLANS["two agents as tools"] = (using_two_agents, RunConfig())


class Case:
    """Runs that are paused, disturbed while they are resumed, and then resumed until they end.

    Each run is paused twice; `disturbed` is the number of the pause after which it is disturbed.
    The run gets its session from the caller if one is `given`.
    """

    def __init__(self, engine, plan, *, disturbed, streamed, given=False):
        self.moments, self.paused = Moments(engine), paused_runs(engine)
        self._plan, self._config = PLANS[plan]
        self._streamed, self._disturbed, self._ids = streamed, disturbed, itertools.count()
        self._given = given

    async def undisturbed(self):
        await self.outcome()  # It creates the tables.
        return await self.outcome()

    async def outcome(self, disturb=None, *, at=None):
        """Disturb one moment of a run, and resume it until it ends."""
        session_id, crew = f"chat-{next(self._ids)}", Crew(self.moments)
        agent, session = self._plan(crew), self.paused.catalog.session(session_id)
        self.moments.begin()
        result = await Runner.run(agent, "Go", session=session, run_config=self._config)
        await self.paused.pause(session, result)
        for _ in range(1, self._disturbed):
            await self._resume(session_id, agent)
        task = asyncio.create_task(self._resume(session_id, agent))
        self.moments.begin(at, lambda name: disturb(task, name))
        await asyncio.wait({task})
        error = None if task.cancelled() else task.exception()
        passed = self.moments.passed
        self.moments.begin()
        is_refused = False
        try:
            while await self._resume(session_id, agent):
                pass
        except (ModelBehaviorError, UserError):
            is_refused = True  # A tool that was approved may have run.
        history = [kind.partition("-")[0] for kind in kinds(await session.get_items())]
        return Outcome(crew.ran, history, passed, error, is_refused)

    async def _resume(self, session_id, agent):
        """Resume a run once; give whether there was one."""
        found = await self.paused.get(session_id)
        if found is None:
            return False
        for call in found.undecided:
            await self.paused.decide(session_id, call.call_id, approve=True)
        arguments = {"hooks": self.moments.hooks(), "run_config": self._config}
        if self._given:
            arguments["session"] = self.paused.catalog.session(session_id)
        async with self.paused.claim(session_id, agent) as run:
            if not self._streamed:
                await run.resume(**arguments)
                return True
            async for each in run.resume_streamed(**arguments).stream_events():
                self.moments.reach(each.type)
        return True


class Outcome(NamedTuple):
    ran: list[str]
    history: list[str]
    passed: list[str]
    error: BaseException | None
    is_refused: bool


def was_within_tools(passed):
    running = 0
    for name in passed:
        # An agent that is used as a tool goes on without the hook at its start.
        running = max(0, running + (name == "on_tool_start") - (name == "on_tool_end"))
    return running > 0


@pytest.mark.not_on("sqlite-memory")  # A cancelled statement closes its only connection.
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("disturbed", "given"), [(1, True), (2, False)])
@pytest.mark.parametrize("plan", PLANS)
async def test_a_run_that_is_cancelled_goes_on(engine, plan, disturbed, given, streamed):
    case = Case(engine, plan, disturbed=disturbed, streamed=streamed, given=given)
    undisturbed = await case.undisturbed()
    for at in range(EVERY // 2, len(undisturbed.passed), EVERY):
        found = await case.outcome(lambda task, _: task.cancel(), at=at)
        before = found.passed[:at]
        if found.is_refused:
            assert (
                was_within_tools(found.passed[: at + 1])
                or " as a tool" in plan
                or " as tools" in plan
            )
            continue
        assert (found.history, {*found.ran}) == (undisturbed.history, {*undisturbed.ran})
        assert sorted(found.ran) == sorted(undisturbed.ran) or was_within_tools(before)


@pytest.mark.not_on("sqlite-memory")
@pytest.mark.parametrize("given", [False, True])
async def test_a_stream_that_is_left_during_its_first_check_goes_on(engine, given):
    case = Case(engine, "pausing again", disturbed=2, streamed=True, given=given)
    undisturbed = await case.undisturbed()
    begin, end = map(undisturbed.passed.index, ("agent_updated_stream_event", "on_tool_start"))
    for at in range(begin, end):
        found = await case.outcome(lambda task, _: task.cancel(), at=at)
        assert not found.is_refused
        assert (found.history, found.ran) == (undisturbed.history, undisturbed.ran)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.usefixtures("at_once")
async def test_a_write_that_fails_once_is_repeated(engine, plan, streamed):
    def fail(_task, name):
        if name.startswith(("DELETE", "INSERT", "SELECT", "UPDATE")):
            raise ConnectionError

    case = Case(engine, plan, disturbed=1, streamed=streamed)
    undisturbed = await case.undisturbed()
    for at in range(EVERY // 2, len(undisturbed.passed), EVERY):
        found = await case.outcome(fail, at=at)
        assert (sorted(found.ran), found.history) == (sorted(undisturbed.ran), undisturbed.history)
        is_write = found.passed[at].startswith(("DELETE", "INSERT"))
        assert not (is_write and found.error)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("plan", PLANS)
async def test_a_hook_that_raises_loses_nothing(engine, plan, streamed):
    def fail(_task, name):
        raise ConnectionError

    case = Case(engine, plan, disturbed=2, streamed=streamed)
    undisturbed = await case.undisturbed()
    hooks = [at for at, name in enumerate(undisturbed.passed) if name.startswith("on_")]
    for at in hooks[EVERY // 5 :: EVERY]:
        found = await case.outcome(fail, at=at)
        is_within_tools = was_within_tools(found.passed[: at + 1])
        if found.is_refused:
            assert is_within_tools or " as a tool" in plan or " as tools" in plan, at
            continue
        assert ({*found.history}, {*found.ran}) == ({*undisturbed.history}, {*undisturbed.ran}), at
        # A later turn is asked for again, and the SDK has stored those of its calls that ended.
        is_once = found.history == undisturbed.history and len(found.ran) == len(undisturbed.ran)
        assert is_once or is_within_tools, at

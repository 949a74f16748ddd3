"""What runs did is recorded in the session."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
from agents import Runner, function_tool
from agents.exceptions import UserError
from agents.extensions.memory import EncryptedSession
from processes import run_processes

from agents_session_metadata import (
    SessionCatalog,
    SessionLifecycle,
    SessionTracker,
    add_invocation,
    keys,
)
from conformance.running import (
    Recording,
    Seconds,
    agent,
    calls,
    count_writes,
    waiting_tool,
)

RUN_TEN_TIMES = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from sqlalchemy.ext.asyncio import create_async_engine
from agents import Runner
from agents_session_metadata import *
from conformance.running import Seconds, agent, calls, waiting_tool

async def main():
    engine = create_async_engine(sys.argv[2])
    session = SQLAlchemyMetadataSession("chat", engine=engine)
    try:
        for number in range(10):
            clock = Seconds()
            tools = [waiting_tool(clock, "look", 0.25)]
            one = agent(sys.argv[3], calls("look", first=number), "done", tools=tools)
            async with SessionTracker(session, clock=clock) as hooks:
                await Runner.run(one, "hello", hooks=hooks)
    finally:
        await engine.dispose()

start()
asyncio.run(main())
"""


def details(stored):
    """Id, tool, milliseconds and success of the newest calls, whose ids are elements."""
    found = stored[keys.INVOCATION_DETAILS]
    assert stored[keys.INVOCATIONS] == [call["id"] for call in found]
    return [(call["id"], call["tool"], call["ms"], call["ok"]) for call in found]


@pytest.fixture
def clock():
    return Seconds()


@pytest.fixture
def tools(clock):
    return [waiting_tool(clock, "look", 0.25), waiting_tool(clock, "write", 1.5)]


async def test_a_run(session, clock, tools, catalog):
    engineer = agent("engineer", calls("look"), calls("write", first=2), "done", tools=tools)
    async with SessionTracker(session, clock=clock) as hooks:
        result = await Runner.run(engineer, "hello", session=session, hooks=hooks)
    assert result.final_output == "done"
    stored = await session.get_metadata()
    assert stored == {
        "owner_id": "u1",
        keys.AGENT: "engineer",
        keys.RUNS: 1,
        keys.REQUESTS: 3,
        keys.INPUT_TOKENS: 300,
        keys.OUTPUT_TOKENS: 30,
        keys.TOTAL_TOKENS: 330,
        keys.RUN_MS: 1750,
        keys.AGENTS: ["engineer"],
        keys.TOOL_CALLS: [["look", 1, 250], ["write", 1, 1500]],
        keys.TOOLS_USED: ["look", "write"],
        keys.INVOCATIONS: ["call-1", "call-2"],
        keys.INVOCATION_DETAILS: stored[keys.INVOCATION_DETAILS],
    }
    assert details(stored) == [("call-1", "look", 250, True), ("call-2", "write", 1500, True)]
    moments = [datetime.fromisoformat(call["at"]) for call in stored[keys.INVOCATION_DETAILS]]
    assert moments[0].utcoffset() == timedelta(0)
    assert moments == sorted(moments)
    for where in ({"$contains": "call-2"}, {"$all": ["call-1", "call-2"]}):
        assert await catalog.count_sessions({"invocations": where}) == 1
    assert len(await session.get_items()) == 6
    assert await catalog.count_sessions({"agents": {"$contains": "engineer"}}) == 1


@pytest.mark.logic
async def test_a_run_without_tools(session):
    async with SessionTracker(session) as hooks:
        await Runner.run(agent("engineer", "done"), "hello", session=session, hooks=hooks)
    stored = await session.get_metadata()
    assert (stored[keys.RUNS], stored[keys.REQUESTS]) == (1, 1)
    assert stored.get(keys.TOOL_CALLS, []) == stored.get(keys.INVOCATIONS, []) == []
    assert stored.get(keys.ERROR_COUNT, 0) == 0
    assert keys.COST not in stored


@pytest.mark.logic
async def test_no_run(session):
    async with SessionTracker(session):
        pass
    assert await session.get_metadata() == {"owner_id": "u1"}


@pytest.mark.logic
async def test_a_streamed_run(session, clock, tools):
    engineer = agent("engineer", calls("look"), "done", tools=tools)
    async with SessionTracker(session, clock=clock) as hooks:
        result = Runner.run_streamed(engineer, "hello", session=session, hooks=hooks)
        events = [event async for event in result.stream_events()]
    assert (result.final_output, bool(events)) == ("done", True)
    stored = await session.get_metadata()
    assert (stored[keys.RUNS], stored[keys.REQUESTS], stored[keys.TOTAL_TOKENS]) == (1, 2, 220)
    assert details(stored) == [("call-1", "look", 250, True)]
    assert stored[keys.RUN_MS] == 250


@pytest.mark.logic
async def test_a_handoff(session, clock, tools):
    engineer = agent("engineer", calls("look", first=2), "done", tools=tools)
    triage = agent("triage", calls("transfer_to_engineer"), handoffs=[engineer])
    async with SessionTracker(session, clock=clock) as hooks:
        result = await Runner.run(triage, "hello", session=session, hooks=hooks)
    assert result.last_agent.name == "engineer"
    stored = await session.get_metadata()
    assert stored[keys.AGENTS] == ["triage", "engineer"]
    assert (stored[keys.RUNS], stored[keys.REQUESTS], stored[keys.INPUT_TOKENS]) == (1, 3, 300)
    assert stored[keys.TOOL_CALLS] == [["look", 1, 250]]


@pytest.mark.logic
async def test_parallel_tools(session):
    started = []
    all_started = asyncio.Event()

    @function_tool
    async def look() -> str:
        started.append(1)
        if len(started) == 3:
            all_started.set()
        await all_started.wait()  # only calls that overlap come further
        await asyncio.sleep(0.05)
        return "done"

    engineer = agent("engineer", calls("look", "look", "look"), "done", tools=[look])
    async with SessionTracker(session) as hooks:
        await Runner.run(engineer, "hello", session=session, hooks=hooks)
    stored = await session.get_metadata()
    ids, names, times, _ = zip(*details(stored), strict=True)
    assert sorted(ids) == ["call-1", "call-2", "call-3"]
    assert set(names) == {"look"}
    assert min(times) >= 50
    assert stored[keys.TOOL_CALLS] == [["look", 3, sum(times)]]


@pytest.mark.logic
@pytest.mark.parametrize("hooked", [False, True])
async def test_an_agent_as_a_tool(session, clock, tools, hooked):
    tracker = SessionTracker(session, clock=clock)
    inner = agent("inner", calls("look", first=2), "found", tools=tools)
    ask = inner.as_tool("ask", "Asks.", hooks=tracker if hooked else None)
    ask_inner = [*calls("ask")]
    ask_inner[0].arguments = '{"input": "what?"}'
    async with tracker as hooks:
        result = await Runner.run(
            agent("outer", ask_inner, "done", tools=[ask]), "hello", session=session, hooks=hooks
        )
    assert result.final_output == "done"
    stored = await session.get_metadata()
    # The SDK adds the tokens of nested runs to those of the outer one.
    assert (stored[keys.RUNS], stored[keys.REQUESTS], stored[keys.TOTAL_TOKENS]) == (1, 4, 440)
    assert stored[keys.AGENTS] == ["outer", *(["inner"] if hooked else [])]
    look = [["look", 1, 250]] if hooked else []
    assert sorted(stored[keys.TOOL_CALLS]) == [["ask", 1, 250], *look]


@pytest.mark.logic
async def test_a_failing_model(session, clock, tools):
    failure = RuntimeError("the model is out")
    engineer = agent("engineer", calls("look"), failure, tools=tools)
    with pytest.raises(RuntimeError) as caught:
        async with SessionTracker(session, clock=clock) as hooks:
            await Runner.run(engineer, "hello", session=session, hooks=hooks)
    assert caught.value is failure
    stored = await session.get_metadata()
    assert stored[keys.ERROR_COUNT] == 1
    assert "the model is out" in stored[keys.LAST_ERROR]
    assert (stored[keys.RUNS], stored[keys.TOTAL_TOKENS]) == (1, 110)
    assert stored[keys.TOOL_CALLS] == [["look", 1, 250]]


@pytest.mark.logic
async def test_failures_count_in_the_resume_decision(session):
    await SessionLifecycle(session).start("engineer")
    await SessionLifecycle(session).enter("planning")
    for number in range(1, 4):
        assert (await SessionLifecycle(session).resume_decision()).should_resume
        with pytest.raises(RuntimeError):
            async with SessionTracker(session) as hooks:
                await Runner.run(agent("engineer", RuntimeError("oh")), "hello", hooks=hooks)
        assert (await session.get_metadata())[keys.ERROR_COUNT] == number
    assert (await SessionLifecycle(session).resume_decision()).reason == "too_many_errors"


@pytest.mark.logic
async def test_a_failure_in_a_stream(session):
    async def work() -> None:
        async with SessionTracker(session) as hooks:
            result = Runner.run_streamed(agent("a", RuntimeError("oh")), "hello", hooks=hooks)
            async for _ in result.stream_events():
                pass

    with pytest.raises(RuntimeError, match="oh"):
        await work()
    stored = await session.get_metadata()
    assert (stored[keys.RUNS], stored[keys.ERROR_COUNT]) == (1, 1)


@pytest.mark.logic
async def test_a_tool_whose_failure_the_model_hears_of(session):
    @function_tool
    def look() -> str:
        raise ValueError("nothing to see")

    engineer = agent("engineer", calls("look"), "done", tools=[look])
    async with SessionTracker(session) as hooks:
        result = await Runner.run(engineer, "hello", session=session, hooks=hooks)
    assert result.final_output == "done"
    stored = await session.get_metadata()
    assert [call[:2] for call in details(stored)] == [("call-1", "look")]
    assert stored.get(keys.ERROR_COUNT, 0) == 0


@pytest.mark.logic
async def test_a_tool_whose_failure_ends_the_run(session, clock):
    look = waiting_tool(clock, "look", 0.25, ValueError("nothing to see"))
    engineer = agent("engineer", calls("look"), "done", tools=[look])
    with pytest.raises(UserError, match="nothing to see"):
        async with SessionTracker(session, clock=clock) as hooks:
            await Runner.run(engineer, "hello", session=session, hooks=hooks)
    stored = await session.get_metadata()
    assert (stored[keys.ERROR_COUNT], stored[keys.REQUESTS]) == (1, 1)
    assert "nothing to see" in stored[keys.LAST_ERROR]
    assert details(stored) == [("call-1", "look", 250, False)]
    assert stored[keys.TOOL_CALLS] == [["look", 1, 250]]


@pytest.mark.logic
async def test_a_cancelled_run(session):
    within = asyncio.Event()

    @function_tool
    async def wait() -> str:
        within.set()
        await asyncio.sleep(600)
        return "never"

    async def work() -> None:
        engineer = agent("engineer", calls("wait"), "done", tools=[wait])
        async with SessionTracker(session) as hooks:
            await Runner.run(engineer, "hello", session=session, hooks=hooks)

    task = asyncio.create_task(work())
    await within.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stored = await session.get_metadata()
    assert (stored[keys.RUNS], stored[keys.REQUESTS]) == (1, 1)
    assert [call[:2] for call in details(stored)] == [("call-1", "wait")]


@pytest.mark.logic
async def test_hooks_of_the_application(session, clock, tools):
    async def run(tracked: bool) -> list:
        own = Recording()
        steps = calls("look", first=2), calls("write", first=3), "done"
        engineer = agent("engineer", *steps, tools=tools)
        triage = agent(
            "triage", calls("transfer_to_engineer"), handoffs=[engineer], instructions="Be kind."
        )
        if tracked:
            async with SessionTracker(session, hooks=own) as hooks:
                await Runner.run(triage, "hello", hooks=hooks)
        else:
            await Runner.run(triage, "hello", hooks=own)
        return own.seen

    expected = await run(tracked=False)
    kinds = {seen[0] for seen in expected}
    assert len(kinds) == 7, "a hook that was not called shows nothing"
    assert await run(tracked=True) == expected
    assert (await session.get_metadata())[keys.REQUESTS] == 4


@pytest.mark.logic
async def test_a_hook_of_the_application_that_fails(session):
    class Refusing(Recording):
        async def on_llm_end(self, context, agent, response):
            raise PermissionError(agent.name)

    with pytest.raises(PermissionError, match="engineer"):
        await Runner.run(agent("engineer", "done"), "hello", hooks=Refusing())
    with pytest.raises(PermissionError, match="engineer"):
        async with SessionTracker(session, hooks=Refusing()) as hooks:
            await Runner.run(agent("engineer", "done"), "hello", hooks=hooks)
    assert (await session.get_metadata())[keys.ERROR_COUNT] == 1


async def test_one_write_a_run(session, engine, tools):
    transactions = count_writes(engine)
    for number in range(1, 4):
        engineer = agent("engineer", calls("look", "write", "look"), "done", tools=tools)
        async with SessionTracker(session) as hooks:
            await Runner.run(engineer, "hello", session=session, hooks=hooks)
            assert len(transactions) == number - 1
        assert len(transactions) == number
    assert (await session.get_metadata())[keys.RUNS] == 3
    await session.set_metadata({"owner_id": "u2"})
    assert len(transactions) == 4, "the count sees no writes"


@pytest.mark.logic
async def test_through_encryption(session, catalog):
    encrypted = EncryptedSession("chat", session, encryption_key="a key of the tests")
    async with SessionTracker(encrypted) as hooks:
        await Runner.run(agent("engineer", "done"), "hello", session=encrypted, hooks=hooks)
    assert (await catalog.get_metadata("chat"))[keys.RUNS] == 1


async def test_totals_add_up_over_runs(session, clock, tools):
    for number in range(5):
        steps = calls("look", first=number * 2), calls("look", first=number * 2 + 1), "done"
        engineer = agent(f"agent {number % 2}", *steps, tools=tools)
        async with SessionTracker(session, clock=clock) as hooks:
            await Runner.run(engineer, "hello", session=session, hooks=hooks)
    stored = await session.get_metadata()
    assert (stored[keys.RUNS], stored[keys.REQUESTS], stored[keys.TOTAL_TOKENS]) == (5, 15, 1650)
    assert stored[keys.AGENTS] == ["agent 0", "agent 1"]
    assert stored[keys.TOOL_CALLS] == [["look", 10, 2500]]
    assert details(stored) == [(f"call-{n}", "look", 250, True) for n in range(10)]
    assert stored[keys.RUN_MS] == 2500


async def test_runs_that_overlap(session):
    async def run(number: int) -> None:
        clock = Seconds()
        tools = [waiting_tool(clock, "look", 0.25)]
        engineer = agent("engineer", calls("look", first=number), "done", tools=tools)
        async with SessionTracker(session, clock=clock) as hooks:
            await Runner.run(engineer, "hello", session=session, hooks=hooks)

    await asyncio.gather(*[run(number) for number in range(20)])
    stored = await session.get_metadata()
    assert (stored[keys.RUNS], stored[keys.REQUESTS], stored[keys.TOTAL_TOKENS]) == (20, 40, 4400)
    assert stored[keys.TOOL_CALLS] == [["look", 20, 5000]]
    assert sorted(details(stored)) == sorted(
        (f"call-{number}", "look", 250, True) for number in range(20)
    )


@pytest.mark.logic
async def test_runs_that_overlap_within_one_tracker(session, engine, tools):
    # Some providers number the calls of each run from one.
    async def run(hooks: SessionTracker) -> None:
        steps = calls("look"), calls("look", first=2), "done"
        await Runner.run(agent("engineer", *steps, tools=tools), "hello", hooks=hooks)

    transactions = count_writes(engine)
    async with SessionTracker(session) as hooks:
        await asyncio.gather(*[run(hooks) for _ in range(5)])
    assert len(transactions) == 1
    stored = await session.get_metadata()
    assert (stored[keys.RUNS], stored[keys.REQUESTS], stored[keys.TOTAL_TOKENS]) == (5, 15, 1650)
    assert [call[:2] for call in stored[keys.TOOL_CALLS]] == [["look", 10]]


@pytest.mark.logic
async def test_blocks_of_one_tracker_that_overlap(session, engine, tools):
    tracker, begun = SessionTracker(session), asyncio.Event()

    async def run(*steps: object, after: asyncio.Event | None = None) -> None:
        if after is not None:
            await after.wait()
        async with tracker as hooks:
            begun.set()
            one = agent("engineer", *steps, tools=tools)
            await Runner.run(one, "hello", hooks=hooks)

    transactions = count_writes(engine)
    results = await asyncio.gather(
        run(calls("look"), calls("look", first=2), "done"),
        run(calls("look", first=3), "done", after=begun),
        run(RuntimeError("the model is out"), after=begun),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), type(None), RuntimeError]
    assert len(transactions) == 1
    stored = await session.get_metadata()
    assert (stored[keys.RUNS], stored[keys.REQUESTS], stored[keys.ERROR_COUNT]) == (3, 5, 1)
    assert [call[:2] for call in stored[keys.TOOL_CALLS]] == [["look", 3]]


@pytest.mark.logic
async def test_an_error_without_words(session):
    class WordlessError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    with pytest.raises(WordlessError):
        async with SessionTracker(session) as hooks:
            await Runner.run(agent("a", WordlessError()), "hello", hooks=hooks)
    assert (await session.get_metadata())[keys.LAST_ERROR] == "WordlessError: "


async def test_runs_of_two_processes(shared_database, request):
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    await catalog.create_session("chat")
    tests = str(request.config.rootpath / "tests")
    arguments = [[tests, shared_database.url, name] for name in ("one", "two")]
    await run_processes(RUN_TEN_TIMES, arguments, timeout=120)
    stored = await catalog.get_metadata("chat")
    assert (stored[keys.RUNS], stored[keys.REQUESTS], stored[keys.TOTAL_TOKENS]) == (20, 40, 4400)
    assert sorted(stored[keys.AGENTS]) == ["one", "two"]
    assert stored[keys.TOOL_CALLS] == [["look", 20, 5000]]
    assert len(stored[keys.INVOCATIONS]) == 20


@pytest.mark.logic
async def test_sessions_are_found_by_the_tools_that_they_used(catalog, session):
    await session.set_metadata({"tools_used": ["imported", 7]})
    for number in range(60):
        await add_invocation(session, f"inv_{number:03}", "git" if number else "compile")
    assert (await session.get_metadata())["tools_used"] == ["imported", "compile", "git"]
    for tool in ("compile", "git"):
        assert await catalog.count_sessions({"tools_used": {"$contains": tool}}) == 1
    found = await catalog.count_values("tools_used")
    assert {(each.value, each.count) for each in found} == {
        ("imported", 1),
        ("compile", 1),
        ("git", 1),
    }


async def test_invocations_that_are_recorded_by_hand(catalog, session):
    for number in range(51):
        await add_invocation(session, f"inv_{number:03}", "lint" if number else "compile")
    at = datetime(2026, 1, 2, 3, 4, tzinfo=timezone(timedelta(hours=1)))
    took = timedelta(seconds=1.5)
    more = {"duration": took, "ok": False, "at": at, "ref": "s3://runs/\0"}
    stored = await add_invocation(session, "inv_\0", "compile", **more)
    assert stored == await session.get_metadata()
    assert stored[keys.TOOL_CALLS] == [["compile", 2, 1500], ["lint", 50, 0]]
    assert len(stored[keys.INVOCATIONS]) == len(stored[keys.INVOCATION_DETAILS]) == 50
    assert stored[keys.INVOCATIONS][0] == "inv_002"
    newest = stored[keys.INVOCATION_DETAILS][-1]
    assert newest == {
        "id": stored[keys.INVOCATIONS][-1],
        "tool": "compile",
        "ms": 1500,
        "ok": False,
        "at": "2026-01-02T02:04:00+00:00",
        "ref": newest["ref"],
    }
    assert newest["ref"].startswith("s3://runs/")
    assert "ref" not in stored[keys.INVOCATION_DETAILS][0]
    assert await catalog.count_sessions({"invocations": {"$contains": "inv_050"}}) == 1
    assert await catalog.count_sessions({"invocations": {"$contains": "inv_000"}}) == 0
    before = await session.get_metadata()
    for wrong in (
        {"invocation_id": ""},
        {"tool": ""},
        {"duration": timedelta(-1)},
        {"at": datetime(2026, 1, 2)},  # noqa: DTZ001  # what is refused
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            await add_invocation(session, **{"invocation_id": "i", "tool": "t", **wrong})
    assert await session.get_metadata() == before

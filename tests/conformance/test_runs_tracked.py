"""Runs with a tracker: the ledger has each answer once, and refused calls are no errors."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, function_tool
from agents.exceptions import UserError
from agents.testing import ScriptedModel, assistant_message, function_call
from processes import Script
from pydantic import BaseModel
from sqlalchemy import event

from agents_session_metadata import (
    Budget,
    BudgetExceededError,
    ModelPrice,
    RunInterruptedError,
    SessionBusyError,
    SessionCatalog,
    SessionLifecycle,
    SessionPausedError,
    SessionRuns,
    SessionTracker,
    keys,
)
from conformance.failing import Named, Till, Turns, expire, ids_of_calls, once, status, until
from conformance.running import USAGE, Seconds


@pytest.fixture
def till():
    return Till()


@pytest.fixture
def runs(catalog):
    return SessionRuns(catalog)


class Nothing(BaseModel):
    """The arguments of an agent that is used as a tool."""


async def booked(catalog: SessionCatalog) -> dict[str | None, int]:
    """The requests in the ledger, by model. The tokens must be those of so many answers."""
    rows = await catalog.usage(by=["model"])
    for row in rows:
        assert row.input_tokens == USAGE.input_tokens * row.requests
        assert row.output_tokens == USAGE.output_tokens * row.requests
    return {row.model: row.requests for row in rows}


# ---- the ledger ----


@pytest.mark.dialect
@pytest.mark.parametrize("is_cut", [True, False])
async def test_an_agent_as_a_tool_is_booked_once_although_its_run_was_resumed(runs, is_cut) -> None:
    """The sibling of the agent raises: in the middle of the agent's run, or after it."""
    gate = asyncio.Event()
    fail = once(RuntimeError("down"))

    @function_tool
    async def look() -> str:
        await gate.wait()
        return "saw"

    @function_tool(failure_error_function=None)
    async def boom() -> str:
        await until(lambda: models.models["inner"].answers == (1 if is_cut else 2))
        await asyncio.sleep(0.3)
        fail()
        return "done"

    models = Named(outer=Turns(["ask", "boom"], "Done"), inner=Turns(["look"], "Found"))
    inner = Agent("inner", model="inner", tools=[look])
    asking = inner.as_tool("ask", "Asks.", parameters=Nothing)
    agent = Agent("outer", model="outer", tools=[asking, boom])
    options: dict[str, Any] = {"run_config": RunConfig(model_provider=models)}
    session = runs.catalog.session("chat")
    if not is_cut:
        gate.set()
    with pytest.raises(UserError, match="down"):
        async with SessionTracker(session) as hooks:
            await runs.run("chat", agent, "Hi", hooks=hooks, **options)
    gate.set()
    async with SessionTracker(session) as hooks:
        run = await runs.resume("chat", agent, hooks=hooks, **options)
    assert run.final_output == "Done"
    given = {name: model.answers for name, model in models.models.items()}
    assert given == {"outer": 2, "inner": 2}
    assert await booked(runs.catalog) == given


@pytest.mark.parametrize("answer", [1, 2, 3])
async def test_an_answer_is_booked_once_if_the_run_is_cancelled_while_it_is_recorded(
    runs, till, answer
) -> None:
    agent = till.agent(["charge"], ["charge"], "Done")
    model: Any = agent.model
    session = runs.catalog.session("chat")
    await runs.catalog.create_session("chat")
    task: asyncio.Task[Any]
    cancelled: list[str] = []

    @event.listens_for(runs.catalog.engine.sync_engine, "before_cursor_execute")
    def cancel(connection, cursor, statement, parameters, context, executemany):
        is_step = "INSERT INTO agent_sessions_metadata_run_steps" in statement
        if is_step and model.answers == answer and not cancelled:
            cancelled.append(statement)
            task.cancel()

    async def run() -> None:
        async with SessionTracker(session) as hooks:
            await runs.run("chat", agent, "Hi", hooks=hooks, key="k")

    task = asyncio.create_task(run())
    await asyncio.wait({task})
    assert task.cancelled()
    async with SessionTracker(session) as hooks:
        outcome = await runs.run("chat", agent, "Hi", hooks=hooks, key="k")
    assert outcome.final_output == "Done"
    assert await booked(runs.catalog) == {None: model.answers}
    assert len(await ids_of_calls(runs)) == 2


@pytest.mark.logic
@pytest.mark.parametrize("failure", ["model", "tool"])
async def test_each_answer_is_booked_once_however_often_a_run_fails(runs, till, failure) -> None:
    session = runs.catalog.session("chat")
    errors = [RuntimeError(f"try {n}") for n in range(3)]

    def fail_next() -> None:
        if errors:
            raise errors.pop()

    if failure == "model":
        agent = till.agent(["charge"], *errors, ["charge"], "Done")
    else:
        agent = till.agent(["charge", "other"], "Done")
        till.on_other = fail_next

    async def run() -> Any:
        async with SessionTracker(session) as hooks:
            return await runs.run("chat", agent, "Hi", hooks=hooks, key="k")

    for _ in range(3):
        with pytest.raises((RuntimeError, UserError), match="try"):
            await run()
    assert (await run()).final_output == "Done"
    assert await booked(runs.catalog) == {None: agent.model.answers}
    assert len(set(till.charged)) == len(till.charged)


KILLED = """
import asyncio, sys
from agents import RunConfig, set_tracing_disabled
from agents_session_metadata import *
from conformance.failing import Named, Till, Turns
set_tracing_disabled(True)

async def main():
    catalog = SessionCatalog.from_url(sys.argv[1], create_tables=True)
    await catalog.set_metadata("chat", {"owner_id": "u1"})
    session, till = catalog.session("chat"), Till()
    till.on_other = lambda: wait()
    async def wait():
        emit("in the tool")
        await asyncio.sleep(60)
    agent = till.agent(["charge"], ["other"], "Done")
    models = Named(big=agent.model)
    agent.model = "big"
    async with SessionTracker(session, prices=ModelPrice(1, 1)) as hooks:
        config = RunConfig(model_provider=models)
        await SessionRuns(catalog).run("chat", agent, "Hi", hooks=hooks, run_config=config, key="k")

asyncio.run(main())
"""


@pytest.mark.dialect
@pytest.mark.thorough
async def test_a_killed_process_has_paid_for_what_it_used(shared_database) -> None:
    child = await asyncio.to_thread(Script, KILLED, [shared_database.url])
    try:
        assert await asyncio.to_thread(child.receive) == "in the tool"
    finally:
        child.kill()
    catalog = SessionCatalog(shared_database.engine())
    runs, till, session = SessionRuns(catalog), Till(), catalog.session("chat")
    assert await booked(catalog) == {"big": 2}
    [row] = await catalog.usage(owner_id="u1", by=["model"])
    assert row.cost == Decimal(2 * USAGE.total_tokens) / 1_000_000
    spent = Budget(tokens=2 * USAGE.total_tokens)
    assert (await spent.remaining(session)).tokens == 0
    await expire(catalog.engine)
    agent = till.agent(["charge"], ["other"], "Done")
    models = Named(big=agent.model)
    agent.model = "big"
    config = RunConfig(model_provider=models)
    async with SessionTracker(session, prices=ModelPrice(1, 1), budget=spent) as hooks:
        with pytest.raises(BudgetExceededError):
            await runs.run("chat", agent, "Hi", hooks=hooks, run_config=config, key="k")
    async with SessionTracker(session, prices=ModelPrice(1, 1)) as hooks:
        run = await runs.run("chat", agent, "Hi", hooks=hooks, run_config=config, key="k")
    assert (run.final_output, till.charged) == ("Done", [])
    assert await booked(catalog) == {"big": 3}


@pytest.mark.logic
async def test_a_run_without_a_tracker_books_nothing(runs, till) -> None:
    await runs.run("chat", till.agent(["charge"], "Done"), "Hi")
    assert await runs.catalog.usage() == []


# ---- a run that did not begin ----


@pytest.mark.logic
@pytest.mark.parametrize("state", ["running", "waiting", "interrupted", "over budget"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refused_run_is_no_error_of_the_session(runs, till, state, streamed) -> None:
    @function_tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    catalog = runs.catalog
    session = await catalog.create_session("chat", metadata={"owner_id": "u1"})
    budget = Budget(tokens=1)
    expected: type[Exception] = BudgetExceededError
    task = None
    if state == "waiting":
        await runs.run("chat", till.agent(["pay"], tools=[pay]), "Hi")
        expected = SessionPausedError
    elif state == "over budget":
        async with SessionTracker(session, budget=budget) as hooks:
            await runs.run("chat", till.agent("Done"), "Hi", hooks=hooks)
    else:
        till.on_charge = asyncio.Event().wait
        task = asyncio.create_task(runs.run("chat", till.agent(["charge"]), "Hi"))
        await until(lambda: till.charged)
        expected = SessionBusyError
        if state == "interrupted":
            task.cancel()
            await asyncio.wait({task})
            expected = RunInterruptedError
    before = await catalog.get_metadata("chat")
    tracker = SessionTracker(session, budget=budget if state == "over budget" else None)
    for _ in range(3):
        with pytest.raises(expected):
            async with tracker as hooks:
                await begin(runs, till.agent("Done"), hooks, streamed=streamed)
    if task is not None:
        task.cancel()
        await asyncio.wait({task})
    after = await catalog.get_metadata("chat")
    assert after.get(keys.ERROR_COUNT) == before.get(keys.ERROR_COUNT) is None
    assert keys.LAST_ERROR not in after
    decision = await SessionLifecycle(session).resume_decision()
    assert decision.error_count == 0
    assert decision.reason != "too_many_errors"


async def begin(runs: SessionRuns, agent: Any, hooks: Any, *, streamed: bool) -> None:
    if not streamed:
        await runs.run("chat", agent, "Hi", hooks=hooks)
        return
    async with runs.stream("chat", agent, "Hi", hooks=hooks) as run:
        async for _ in run.stream_events():
            pass


@pytest.mark.logic
async def test_a_run_that_began_and_raised_is_an_error_of_the_session(runs, till) -> None:
    session = await runs.catalog.create_session("chat")
    with pytest.raises(RuntimeError, match="429"):
        async with SessionTracker(session) as hooks:
            await runs.run("chat", till.agent(RuntimeError("429")), "Hi", hooks=hooks)
    metadata = await session.get_metadata()
    assert metadata[keys.ERROR_COUNT] == 1
    assert metadata[keys.LAST_ERROR] == "RuntimeError: 429"


# ---- tools and times ----


@pytest.mark.logic
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_that_raised_is_not_ok_although_the_model_was_told(runs, streamed) -> None:
    @function_tool
    async def good() -> str:
        return "fine"

    @function_tool
    async def bad() -> str:
        raise ValueError("no such place")

    session = await runs.catalog.create_session("chat")
    agent = Agent("a", tools=[good, bad], model=Turns(["good", "bad"], "Done"))
    async with SessionTracker(session) as hooks:
        await begin(runs, agent, hooks, streamed=streamed)
    details = (await session.get_metadata())[keys.INVOCATION_DETAILS]
    assert {each["tool"]: each["ok"] for each in details} == {
        "good": True,
        "bad": False,
    }


@pytest.mark.logic
async def test_a_tool_that_raised_inside_an_agent_used_as_a_tool_is_not_ok(runs) -> None:
    @function_tool
    async def bad() -> str:
        raise ValueError("no such place")

    session = await runs.catalog.create_session("chat")
    async with SessionTracker(session) as hooks:
        inner = Agent("inner", tools=[bad], model=Turns(["bad"], "Done"))
        asking = inner.as_tool("ask", "Asks.", hooks=hooks)
        outer = ScriptedModel(
            [[function_call("ask", {"input": "x"}, call_id="a1")], [assistant_message("Done")]]
        )
        await runs.run("chat", Agent("outer", tools=[asking], model=outer), "Hi", hooks=hooks)
    details = (await session.get_metadata())[keys.INVOCATION_DETAILS]
    assert {each["tool"]: each["ok"] for each in details} == {"bad": False, "ask": True}


@pytest.mark.logic
@pytest.mark.parametrize("through", ["SessionRuns", "Runner"])
async def test_run_ms_is_the_time_of_the_runs_and_not_of_the_block(runs, till, through) -> None:
    clock = Seconds()
    session = await runs.catalog.create_session("chat")

    def work() -> None:
        clock.now += 2

    till.on_charge = work
    async with SessionTracker(session, clock=clock) as hooks:
        for _ in range(2):
            clock.now += 100
            agent = till.agent(["charge"], "Done")
            if through == "Runner":
                await Runner.run(agent, "Hi", hooks=hooks, session=session)
            else:
                await runs.run("chat", agent, "Hi", hooks=hooks)
        clock.now += 100
    assert (await session.get_metadata())[keys.RUN_MS] == 4_000


@pytest.mark.logic
async def test_run_ms_has_the_time_of_a_run_that_raised(runs, till) -> None:
    clock = Seconds()
    session = await runs.catalog.create_session("chat")

    def work() -> None:
        clock.now += 2

    till.on_charge = work
    agent = till.agent(["charge"], RuntimeError("429"))
    async with SessionTracker(session, clock=clock) as hooks:
        clock.now += 100
        with pytest.raises(RuntimeError, match="429"):
            await runs.run("chat", agent, "Hi", hooks=hooks)
        clock.now += 100
    assert await status(runs) == "failed"
    assert (await session.get_metadata())[keys.RUN_MS] == 2_000

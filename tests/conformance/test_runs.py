"""`SessionRuns`: turns, keys, crashes, approvals."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from agents import Agent, Runner, function_tool
from agents.exceptions import MaxTurnsExceeded, UserError
from agents.testing import ScriptedModel, assistant_message, function_call
from cryptography.fernet import Fernet
from pydantic import BaseModel

from agents_session_metadata import (
    InvalidCursorError,
    LeaseLostError,
    RunFailedError,
    RunInterruptedError,
    SessionBusyError,
    SessionCatalog,
    SessionChangedError,
    SessionNotFoundError,
    SessionPausedError,
    SessionRuns,
    StateVersionError,
    TablesMissingError,
)
from conformance import raw
from conformance.running import Recording

RUNS_TABLE = "agent_sessions_metadata_runs"


class Shop:
    """A tool `look`, a tool `pay` that needs an approval, and a tool `fetch` that can fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails = True
        self.gate: asyncio.Event | None = None

        @function_tool
        async def look(place: str) -> str:
            self.calls.append(f"look {place}")
            if self.gate is not None:
                await self.gate.wait()
            return f"saw {place}"

        @function_tool(needs_approval=True)
        async def pay(place: str) -> str:
            self.calls.append(f"pay {place}")
            return f"paid {place}"

        @function_tool(failure_error_function=None)
        async def fetch(place: str) -> str:
            self.calls.append(f"fetch {place}")
            if self.fails:
                raise RuntimeError("no connection")
            return f"fetched {place}"

        self.tools: list[Any] = [look, pay, fetch]

    def agent(self, *steps: Any, name: str = "shop", **arguments: Any) -> Agent[Any]:
        """An agent: text is an answer, a list of `tool id` are calls."""
        answers = [
            [assistant_message(step)] if isinstance(step, str) else [_call(each) for each in step]
            for step in steps
        ]
        tools = [*self.tools, *arguments.pop("tools", [])]
        return Agent(name=name, model=ScriptedModel(answers), tools=tools, **arguments)


def _call(text: str) -> Any:
    tool, call_id = text.split()
    return function_call(tool, {"place": call_id}, call_id=call_id)


def shape(items: list[Any]) -> list[str]:
    return [
        " ".join(filter(None, [item.get("type") or item.get("role"), item.get("call_id")]))
        for item in items
    ]


@pytest.fixture
def shop():
    return Shop()


@pytest.fixture
def runs(catalog):
    return SessionRuns(catalog)


async def history(runs: SessionRuns, session_id: str = "chat") -> list[str]:
    return shape(await runs.catalog.session(session_id).get_items())


async def expire(runs: SessionRuns) -> None:
    """Ends the leases, as if the processes had died."""
    await raw.execute(runs.catalog.engine, f"UPDATE {RUNS_TABLE} SET expires = 0")


async def statuses(runs: SessionRuns) -> list[str]:
    return [each.status for each in (await runs.list()).runs]


async def start(runs: SessionRuns, shop: Shop, agent: Agent[Any], **options: Any) -> Any:
    """Starts a run that stays in its tool."""
    shop.gate = asyncio.Event()
    task = asyncio.create_task(runs.run("chat", agent, "Hi", **options))
    while not shop.calls:
        await asyncio.sleep(0.01)
        if task.done():
            await task
    return task


# ---- turns ----


@pytest.mark.logic
async def test_a_run_is_runner_run(runs, shop) -> None:
    run = await runs.run("chat", shop.agent(["look c1"], "Done"), "Hi")
    assert (run.final_output, run.interruptions, run.repeated) == ("Done", (), False)
    assert run.result.last_agent.name == "shop"
    assert shape(run.result.to_input_list()) == await history(runs)
    assert await history(runs) == ["user", "function_call c1", "function_call_output c1", "message"]
    assert await runs.catalog.get_metadata("chat") == {"agent": "shop", "run": "completed"}
    assert (await runs.list()).runs == []


@pytest.mark.logic
async def test_the_result_has_the_agents_of_the_caller(runs, shop) -> None:
    second = shop.agent("Done", name="second")
    handing = [function_call("transfer_to_second", {}, call_id="h1")]
    first = Agent(name="first", model=ScriptedModel([handing]), handoffs=[second])
    hooks = Recording()
    run = await runs.run("chat", first, "Hi", hooks=hooks)
    assert run.result.last_agent is second
    assert {id(item.agent) for item in run.result.new_items} == {id(first), id(second)}
    assert ("handoff", "first", "second") in hooks.seen


async def test_another_run_waits_its_turn(runs, shop) -> None:
    agent = shop.agent(["look c1"], "One")
    first = await start(runs, shop, agent)
    assert await statuses(runs) == ["running"]
    assert await runs.catalog.get_metadata("chat") == {"agent": "shop", "run": "running"}
    with pytest.raises(SessionBusyError):
        await runs.run("chat", shop.agent("Two"), "Hello")
    second = asyncio.create_task(runs.run("chat", shop.agent("Two"), "Hello", wait=60))
    await asyncio.sleep(0.05)
    shop.gate.set()
    assert (await first).final_output == "One"
    assert (await second).final_output == "Two"
    expected = ["user", "function_call c1", "function_call_output c1", "message"]
    assert await history(runs) == [*expected, "user", "message"]


@pytest.mark.thorough
async def test_fifty_callers_with_five_keys(shared_database) -> None:
    catalogs = [SessionCatalog(shared_database.engine(), create_tables=True) for _ in range(3)]
    several = [SessionRuns(catalog) for catalog in catalogs]
    asked: list[str] = []

    class Counted(ScriptedModel):
        async def get_response(self, *args, **kwargs):
            asked.append(kwargs["input"][-1]["content"])
            await asyncio.sleep(0.02)
            return await super().get_response(*args, **kwargs)

    def agent(key: int) -> Agent[Any]:
        return Agent(name="a", model=Counted([[assistant_message(f"answer {key}")]]))

    await catalogs[0].create_session("chat")
    outcomes = await asyncio.gather(
        *(
            several[n % 3].run("chat", agent(n % 5), f"ask {n % 5}", key=f"k{n % 5}", wait=60)
            for n in range(50)
        )
    )
    assert [each.final_output for each in outcomes] == [f"answer {n % 5}" for n in range(50)]
    assert sorted(asked) == [f"ask {n}" for n in range(5)]
    assert sum(not each.repeated for each in outcomes) == 5
    items = await catalogs[0].session("chat").get_items()
    assert shape(items) == ["user", "message"] * 5
    for question, answer in zip(items[::2], items[1::2], strict=True):
        assert answer["content"][0]["text"] == question["content"].replace("ask", "answer")


async def test_who_has_lost_the_lease_writes_nothing(runs, shop) -> None:
    task = await start(runs, shop, shop.agent(["look c1"], "Lost"))
    before = await history(runs)
    await expire(runs)
    other = shop.agent("Won")
    assert (await runs.run("chat", other, "Hello", interrupted="discard")).final_output == "Won"
    after = await history(runs)
    shop.gate.set()
    with pytest.raises(LeaseLostError) as caught:
        await task
    assert caught.value.reason == "taken"
    assert await history(runs) == after
    assert after == [*before, "user", "message"]


async def test_a_lost_lease_cancels_the_run_at_its_next_renewal(catalog, shop) -> None:
    runs = SessionRuns(catalog, lease=timedelta(seconds=1))
    task = await start(runs, shop, shop.agent(["look c1"], "Lost"))
    await expire(runs)
    await runs.discard("chat")
    with pytest.raises(LeaseLostError) as caught:
        await task
    assert caught.value.reason == "stopped"


async def test_a_lease_is_renewed(catalog, shop) -> None:
    runs = SessionRuns(catalog, lease=timedelta(seconds=2))
    task = await start(runs, shop, shop.agent(["look c1"], "Done"))
    await asyncio.sleep(3)
    assert await statuses(runs) == ["running"]
    shop.gate.set()
    assert (await task).final_output == "Done"


async def test_a_deleted_session_ends_its_run(runs, shop) -> None:
    task = await start(runs, shop, shop.agent(["look c1"], "Lost"))
    assert await runs.catalog.delete_session("chat")
    shop.gate.set()
    with pytest.raises(LeaseLostError) as caught:
        await task
    assert caught.value.reason == "deleted"
    assert await runs.catalog.get_session("chat") is None
    assert await statuses(runs) == []


# ---- keys ----


class Answer(BaseModel):
    text: str
    number: int


async def test_a_key_repeats_the_final_output(runs, shop) -> None:
    output = Answer(text="x", number=7)
    agent = shop.agent(output.model_dump_json(), output_type=Answer)
    first = await runs.run("chat", agent, "Hi", key="k")
    assert await history(runs) == ["user", "message"]
    await runs.run("chat", shop.agent("Other"), "Hello", key="other")
    again = await runs.run("chat", agent, "Hi", key="k")
    assert first.final_output == again.final_output == output
    assert (first.repeated, again.repeated, again.result) == (False, True, None)


async def test_a_key_is_kept_for_a_time_and_with_its_session(catalog, shop) -> None:
    runs = SessionRuns(catalog, keep=timedelta(0))
    await runs.run("chat", shop.agent("One"), "Hi", key="k")
    assert (await runs.run("chat", shop.agent("Two"), "Hi", key="k")).final_output == "Two"
    runs = SessionRuns(catalog)
    await runs.run("chat", shop.agent("Three"), "Hi", key="k2")
    await catalog.delete_session("chat")
    assert (await runs.run("chat", shop.agent("Four"), "Hi", key="k2")).final_output == "Four"


@pytest.mark.logic
async def test_a_key_repeats_the_calls_of_a_pause(runs, shop) -> None:
    first = await runs.run("chat", shop.agent(["pay c1"]), "Hi", key="k")
    again = await runs.run("chat", shop.agent(), "Hi", key="k")
    assert again.repeated
    assert again.interruptions == first.interruptions
    await runs.decide("chat", "c1", approve=True)
    await runs.resume("chat", shop.agent("Done"))
    done = await runs.run("chat", shop.agent(), "Hi", key="k")
    assert (done.final_output, done.repeated) == ("Done", True)


@pytest.mark.logic
async def test_who_waited_for_a_key_hears_of_its_failure(runs, shop) -> None:
    agent = shop.agent(["look c1"], ["fetch c2"])
    first = await start(runs, shop, agent, key="k")
    second = asyncio.create_task(runs.run("chat", shop.agent("New"), "Hi", key="k", wait=60))
    await asyncio.sleep(0.2)
    shop.gate.set()
    with pytest.raises(UserError):
        await first
    with pytest.raises(RunFailedError, match="no connection"):
        await second
    shop.fails = False
    later = await runs.run("chat", shop.agent("New"), "Hi", key="k")
    assert later.final_output == "New"
    assert shop.calls == ["look c1", "fetch c2", "fetch c2"]


async def test_the_same_key_goes_on_after_a_crash(runs, shop) -> None:
    task = await start(runs, shop, shop.agent(["look c1"]), key="k")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await statuses(runs) == ["interrupted"]
    shop.gate = None
    run = await runs.run("chat", shop.agent("Done"), "Hi", key="k")
    assert run.final_output == "Done"
    assert shop.calls == ["look c1", "look c1"]
    assert await history(runs) == ["user", "function_call c1", "function_call_output c1", "message"]


# ---- crashes ----


async def interrupt(runs: SessionRuns, shop: Shop, agent: Agent[Any], **options: Any) -> None:
    task = await start(runs, shop, agent, **options)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    shop.gate = None


async def test_an_interrupted_run_refuses_another_one(runs, shop) -> None:
    await interrupt(runs, shop, shop.agent(["look c1"]))
    with pytest.raises(RunInterruptedError):
        await runs.run("chat", shop.agent("New"), "Hello")
    assert await runs.catalog.get_metadata("chat") == {"agent": "shop", "run": "running"}


@pytest.mark.logic
@pytest.mark.parametrize("durable", [True, False])
async def test_an_interrupted_run_that_raises_when_it_is_resumed_has_failed(
    runs, shop, durable
) -> None:
    await interrupt(runs, shop, shop.agent(["look c1"]), durable=durable)
    with pytest.raises(Exception, match="no scripted steps"):
        await runs.resume("chat", shop.agent())
    assert await statuses(runs) == ["failed"]


@pytest.mark.logic
async def test_another_run_finishes_an_interrupted_one_first(runs, shop) -> None:
    await interrupt(runs, shop, shop.agent(["look c1"]))
    agent = shop.agent("Old", "New")
    run = await runs.run("chat", agent, "Hello", interrupted="resume")
    assert run.final_output == "New"
    expected = ["user", "function_call c1", "function_call_output c1", "message"]
    assert await history(runs) == [*expected, "user", "message"]


@pytest.mark.logic
async def test_another_run_gives_an_interrupted_one_up(runs, shop) -> None:
    await interrupt(runs, shop, shop.agent(["look c0"], ["look c1"]))
    run = await runs.run("chat", shop.agent("New"), "Hello", interrupted="discard")
    assert run.final_output == "New"
    assert await history(runs) == ["user", "user", "message"]


@pytest.mark.logic
async def test_a_failed_run_goes_on_where_it_failed(runs, shop) -> None:
    agent = shop.agent(["look c1"], ["look c2", "fetch c3"])
    hooks = Recording()
    with pytest.raises(UserError, match="no connection"):
        await runs.run("chat", agent, "Hi", hooks=hooks)
    [info] = (await runs.list("failed")).runs
    assert (info.status, info.agent) == ("failed", "shop")
    assert "no connection" in info.error
    assert await runs.catalog.get_metadata("chat") == {"agent": "shop", "run": "failed"}
    shop.fails = False
    before = len(hooks.seen)
    run = await runs.resume("chat", shop.agent("Done"), hooks=hooks)
    assert run.final_output == "Done"
    assert shop.calls == ["look c1", "look c2", "fetch c3", "fetch c3"]
    assert await history(runs) == [
        *["user", "function_call c1", "function_call_output c1"],
        *["function_call c2", "function_call c3"],
        *["function_call_output c2", "function_call_output c3", "message"],
    ]
    # Hooks hear only of what happens now.
    assert [each[0] for each in hooks.seen[before:]] == [
        *["tool start", "tool end", "llm start", "llm end", "agent end"]
    ]


@pytest.mark.logic
async def test_a_failed_run_that_fails_again_can_go_on(runs, shop) -> None:
    with pytest.raises(UserError):
        await runs.run("chat", shop.agent(["look c1"], ["fetch c2"]), "Hi")
    for _ in range(2):
        with pytest.raises(UserError):
            await runs.resume("chat", shop.agent())
    shop.fails = False
    assert (await runs.resume("chat", shop.agent("Done"))).final_output == "Done"
    assert shop.calls == ["look c1", *["fetch c2"] * 4]


@pytest.mark.logic
async def test_max_turns_counts_over_all_parts(runs, shop) -> None:
    agent = shop.agent(["look c1"], ["look c2"], "Never")
    with pytest.raises(MaxTurnsExceeded):
        await runs.run("chat", agent, "Hi", max_turns=2)
    with pytest.raises(MaxTurnsExceeded):
        await runs.resume("chat", shop.agent("Done"))
    assert (await runs.resume("chat", shop.agent("Done"), max_turns=3)).final_output == "Done"
    assert shop.calls == ["look c1", "look c2"]


@pytest.mark.logic
async def test_another_run_replaces_a_failed_one(runs, shop) -> None:
    with pytest.raises(UserError):
        await runs.run("chat", shop.agent(["look c1", "fetch c2"]), "Hi")
    await runs.run("chat", shop.agent("New"), "Hello")
    assert "function_call c2" not in await history(runs)
    assert await statuses(runs) == []


@pytest.mark.logic
async def test_without_a_record_the_run_begins_again(runs, shop) -> None:
    await runs.run("chat", shop.agent("Before"), "First")
    task = await start(runs, shop, shop.agent(["look c1"], ["look c2"]), durable=False)
    shop.gate.set()
    with pytest.raises(Exception, match="step"):
        await task  # The model has no third answer.
    rows = await raw.execute(runs.catalog.engine, "SELECT * FROM agent_sessions_metadata_run_steps")
    assert list(rows) == []
    run = await runs.resume("chat", shop.agent(["look d1"], "Done"))
    assert run.final_output == "Done"
    assert await history(runs) == [
        *["user", "message", "user", "function_call d1", "function_call_output d1", "message"]
    ]


@pytest.mark.logic
async def test_resume_refuses_a_history_that_others_changed(runs, shop) -> None:
    await interrupt(runs, shop, shop.agent(["look c1"]))
    await runs.catalog.session("chat").add_items([raw.message("by others")])
    with pytest.raises(SessionChangedError):
        await runs.resume("chat", shop.agent("Done"))
    assert await statuses(runs) == ["interrupted"]
    run = await runs.resume("chat", shop.agent("Done"), force=True)
    assert run.final_output == "Done"
    assert len(await history(runs)) == 5


@pytest.mark.logic
async def test_resume_refuses_other_agents(runs, shop) -> None:
    with pytest.raises(UserError):
        await runs.run("chat", shop.agent(["look c1"], ["fetch c2"]), "Hi")
    bare = Agent(name="shop", model=ScriptedModel([]))
    with pytest.raises(Exception, match="look"):
        await runs.resume("chat", bare)
    assert await statuses(runs) == ["failed"]
    shop.fails = False
    assert (await runs.resume("chat", shop.agent("Done"))).final_output == "Done"


@pytest.mark.logic
async def test_ids_of_calls_that_are_used_again(runs, shop) -> None:
    """An output that is recorded is not given back to a later call with the same id."""
    agent = shop.agent(["look c1"], "One")
    await runs.run("chat", agent, "Hi")
    await runs.run("chat", shop.agent(["look c1"], "Two"), "Hi")
    assert shop.calls == ["look c1", "look c1"]


# ---- approvals ----


async def test_a_run_waits_for_an_approval_and_goes_on_elsewhere(shared_database, shop) -> None:
    runs = SessionRuns(SessionCatalog(shared_database.engine(), create_tables=True))
    run = await runs.run("chat", shop.agent(["look c1", "pay c2"]), "Hi")
    assert run.final_output is None
    [call] = run.interruptions
    assert (call.call_id, call.tool, call.agent) == ("c2", "pay", "shop")
    assert json.loads(call.arguments) == {"place": "c2"}
    [info] = (await runs.list("waiting")).runs
    assert info.pending == run.interruptions == info.undecided
    assert await runs.catalog.get_metadata("chat") == {"agent": "shop", "run": "waiting"}
    with pytest.raises(SessionPausedError):
        await runs.run("chat", shop.agent("New"), "Hello")
    elsewhere = SessionRuns(SessionCatalog(shared_database.engine()))
    decided = await elsewhere.decide("chat", "c2", approve=True, by="greta")
    assert (decided.undecided, decided.pending[0].decision.by) == ((), "greta")
    done = await elsewhere.resume("chat", shop.agent("Done"))
    assert done.final_output == "Done"
    assert shop.calls == ["look c1", "pay c2"]
    assert await history(runs) == [
        *["user", "function_call c1", "function_call c2"],
        *["function_call_output c1", "function_call_output c2", "message"],
    ]
    [decision] = await runs.decisions("chat")
    assert (decision.approve, decision.by, decision.tool) == (True, "greta", "pay")
    assert abs(decision.at - datetime.now(timezone.utc)) < timedelta(minutes=5)


@pytest.mark.logic
async def test_a_rejected_call_tells_the_model_why(runs, shop) -> None:
    await runs.run("chat", shop.agent(["pay c1"]), "Hi")
    await runs.decide("chat", "c1", approve=False, message="Not on Friday", by="greta")
    await runs.resume("chat", shop.agent("Done"))
    items = await runs.catalog.session("chat").get_items()
    assert items[2]["output"] == "Not on Friday"
    assert shop.calls == []


@pytest.mark.logic
async def test_undecided_calls_make_a_run_wait_again(runs, shop) -> None:
    await runs.run("chat", shop.agent(["pay c1", "pay c2"]), "Hi")
    await runs.decide("chat", "c1", approve=True)
    again = await runs.resume("chat", shop.agent())
    assert [call.call_id for call in again.interruptions] == ["c2"]
    await runs.decide("chat", "c2", approve=True)
    assert (await runs.resume("chat", shop.agent("Done"))).final_output == "Done"
    assert shop.calls == ["pay c1", "pay c2"]


@pytest.mark.logic
async def test_a_later_decision_replaces_and_both_are_kept(runs, shop) -> None:
    await runs.run("chat", shop.agent(["pay c1"]), "Hi")
    await runs.decide("chat", "c1", approve=True, by="ana")
    await runs.decide("chat", "c1", approve=False, by="ben")
    await runs.resume("chat", shop.agent("Done"))
    assert shop.calls == []
    assert [each.by for each in await runs.decisions()] == ["ana", "ben"]
    await runs.catalog.delete_session("chat")
    kept = await runs.decisions()
    assert [(each.session_id, each.by) for each in kept] == [(None, "ana"), (None, "ben")]
    assert await runs.decisions(since=kept[1].at + timedelta(seconds=1)) == []
    assert await runs.delete_decisions(before=datetime.now(timezone.utc) + timedelta(days=1)) == 2
    assert await runs.decisions() == []


@pytest.mark.logic
async def test_an_approved_run_that_fails_goes_on_from_its_pause(runs, shop) -> None:
    await runs.run("chat", shop.agent(["look c0"], ["pay c1"]), "Hi")
    await runs.decide("chat", "c1", approve=True)
    with pytest.raises(UserError):
        await runs.resume("chat", shop.agent(["look c2"], ["fetch c3"]))
    shop.fails = False
    assert (await runs.resume("chat", shop.agent("Done"))).final_output == "Done"
    assert shop.calls == ["look c0", "pay c1", "look c2", "fetch c3", "fetch c3"]
    ids = [each for each in await history(runs) if "output" in each]
    assert ids == [f"function_call_output c{number}" for number in range(4)]


@pytest.mark.logic
async def test_an_approval_inside_an_agent_that_is_a_tool(runs, shop) -> None:
    def outer(inner_steps: list[Any], steps: list[Any]) -> Agent[Any]:
        inner = shop.agent(*inner_steps, name="inner")
        asking = inner.as_tool("ask", "Asks.")
        return shop.agent(*steps, name="outer", tools=[asking])

    calling = [function_call("ask", {"input": "why"}, call_id="a1")]
    agent = outer([["pay c1"]], [])
    agent.model = ScriptedModel([calling])
    run = await runs.run("chat", agent, "Hi")
    assert [call.call_id for call in run.interruptions] == ["c1"]
    await runs.decide("chat", "c1", approve=True)
    with pytest.raises(UserError):
        await runs.resume("chat", outer(["Paid"], [["fetch c2"]]))
    shop.fails = False
    run = await runs.resume("chat", outer(["Paid"], ["Done"]))
    assert run.final_output == "Done"
    assert await history(runs) == [
        *["user", "function_call a1", "function_call_output a1"],
        *["function_call c2", "function_call_output c2", "message"],
    ]


async def test_decide_and_resume_without_a_run(runs, shop) -> None:
    await runs.catalog.create_session("chat")
    for session_id in ("chat", "nope"):
        with pytest.raises(LookupError):
            await runs.decide(session_id, "c1", approve=True)
        with pytest.raises(LookupError):
            await runs.resume(session_id, shop.agent())
        assert await runs.discard(session_id) is False
        assert await runs.get(session_id) is None
    await runs.run("chat", shop.agent(["pay c1"]), "Hi")
    with pytest.raises(LookupError, match="c1"):
        await runs.decide("chat", "c2", approve=True)


async def test_discard_keeps_items_but_calls_without_output(runs, shop) -> None:
    await runs.run("chat", shop.agent(["look c1"], ["look c2", "pay c3"]), "Hi")
    assert await runs.discard("chat") is True
    assert await history(runs) == [
        *["user", "function_call c1", "function_call_output c1"],
        *["function_call c2", "function_call_output c2"],
    ]
    assert await runs.catalog.get_metadata("chat") == {"agent": "shop"}
    assert await statuses(runs) == []


@pytest.mark.logic
async def test_a_state_of_another_version_stays(runs, shop) -> None:
    await runs.run("chat", shop.agent(["pay c1"]), "Hi")
    [[state]] = await raw.execute(runs.catalog.engine, f"SELECT state FROM {RUNS_TABLE}")
    other = json.dumps({**json.loads(state), "$schemaVersion": "99.0"}).replace("'", "''")
    statement = f"UPDATE {RUNS_TABLE} SET state = '{other}'".replace("\\", "\\\\")
    if runs.catalog.engine.dialect.name in ("sqlite", "postgresql"):
        statement = f"UPDATE {RUNS_TABLE} SET state = '{other}'"
    await raw.execute(runs.catalog.engine, statement.replace(":", "\\:"))
    with pytest.raises(StateVersionError):
        await runs.resume("chat", shop.agent("Done"))
    assert await statuses(runs) == ["waiting"]


@pytest.mark.logic
@pytest.mark.parametrize("durable", [True, False])
async def test_a_run_that_waits_stays_if_the_agent_is_another(runs, shop, durable) -> None:
    await runs.run("chat", shop.agent(["pay c1"]), "Hi", durable=durable)
    await runs.decide("chat", "c1", approve=True)
    with pytest.raises(SessionChangedError, match="began with agent 'shop', not 'other'"):
        await runs.resume("chat", Agent(name="other", model=ScriptedModel([])))
    with pytest.raises(SessionChangedError, match="'pay'"):
        await runs.resume("chat", Agent(name="shop", model=ScriptedModel([])))
    [run] = (await runs.list("waiting")).runs
    assert [call.decision is not None for call in run.pending] == [True]
    assert await runs.catalog.get_metadata("chat") == {"agent": "shop", "run": "waiting"}
    with pytest.raises(SessionPausedError):
        await runs.run("chat", shop.agent("Done"), "Next")
    assert (await runs.resume("chat", shop.agent("Done"))).final_output == "Done"
    assert shop.calls == ["pay c1"]


@pytest.mark.logic
async def test_a_context_that_would_not_be_stored(runs, shop) -> None:
    class Settings:
        pass

    with pytest.raises(UserError, match="context"):
        await runs.run("chat", shop.agent(["pay c1"]), "Hi", context=Settings())
    run = await runs.resume("chat", shop.agent(), context=Settings(), strict_context=False)
    assert run.interruptions
    await runs.decide("chat", "c1", approve=True)
    run = await runs.resume("chat", shop.agent("Done"), context=Settings())
    assert run.final_output == "Done"
    run = await runs.run("other", shop.agent(["pay c1"]), "Hi", context={"a": 1})
    assert run.interruptions


# ---- lists ----


async def test_pages_of_runs(runs, shop) -> None:
    for number in range(5):
        session_id = f"s{number}"
        await runs.catalog.create_session(session_id, metadata={"owner_id": f"u{number % 2}"})
        await runs.run(session_id, shop.agent(["pay c1"]), "Hi")
    page = await runs.list(limit=2)
    assert [each.session_id for each in page.runs] == ["s4", "s3"]
    page = await runs.list(limit=2, cursor=page.next_cursor)
    assert [each.session_id for each in page.runs] == ["s2", "s1"]
    with pytest.raises(InvalidCursorError):
        await runs.list("failed", limit=2, cursor=page.next_cursor)
    page = await runs.list(limit=2, cursor=page.next_cursor)
    assert ([each.session_id for each in page.runs], page.next_cursor) == (["s0"], None)
    owned = await runs.list("waiting", {"owner_id": "u1"})
    assert [each.session_id for each in owned.runs] == ["s3", "s1"]
    with pytest.raises(ValueError, match="unknown status 'paused'"):
        await runs.list("paused")


async def test_without_tables(database, shop) -> None:
    catalog = SessionCatalog(database.engine(), create_tables=True)
    await catalog.create_session("chat")
    runs = SessionRuns(SessionCatalog(catalog.engine))
    assert (await runs.list()).runs == await runs.decisions() == []
    assert await runs.discard("chat") is False
    with pytest.raises(TablesMissingError):
        await runs.run("chat", shop.agent("Done"), "Hi")


async def test_a_scope(everyone, shop) -> None:
    mine = everyone.scoped({"owner_id": "mine"})
    runs, all_runs = SessionRuns(mine), SessionRuns(everyone)
    await all_runs.run("theirs-0", shop.agent(["pay c1"]), "Hi")
    await runs.run("mine-0", shop.agent(["pay c1"]), "Hi")
    assert [each.session_id for each in (await runs.list()).runs] == ["mine-0"]
    with pytest.raises(SessionNotFoundError):
        await runs.run("theirs-0", shop.agent("Done"), "Hi")
    with pytest.raises(LookupError):
        await runs.decide("theirs-0", "c1", approve=True)
    with pytest.raises(LookupError):
        await runs.resume("theirs-0", shop.agent("Done"))
    assert await runs.discard("theirs-0") is False
    await all_runs.decide("theirs-0", "c1", approve=True)
    assert await runs.decisions() == []
    await runs.run("new", shop.agent("Done"), "Hi")
    assert await everyone.get_metadata("new") == {
        "agent": "shop",
        "owner_id": "mine",
        "run": "completed",
    }
    await all_runs.discard("theirs-0")


# ---- streams ----


@pytest.mark.logic
async def test_a_stream(runs, shop) -> None:
    agent = shop.agent(["look c1"], "Done")
    async with runs.stream("chat", agent, "Hi", key="k") as run:
        events = [event async for event in run.stream_events()]
        assert run.final_output == "Done"
    items = [event.item for event in events if event.type == "run_item_stream_event"]
    assert all(item.agent is agent for item in items)
    assert run.result.last_agent is agent
    assert await history(runs) == ["user", "function_call c1", "function_call_output c1", "message"]
    async with runs.stream("chat", agent, "Hi", key="k") as again:
        assert [event async for event in again.stream_events()] == []
    assert (again.final_output, again.repeated) == ("Done", True)


@pytest.mark.logic
async def test_a_stream_whose_output_is_none(runs) -> None:
    model = ScriptedModel([[assistant_message('{"response": null}')]])
    agent = Agent(name="a", model=model, output_type=int | None)
    for is_repeated in (False, True):
        async with runs.stream("chat", agent, "Hi", key="k") as run:
            async for _ in run.stream_events():
                pass
        assert (run.final_output, run.repeated) == (None, is_repeated)
        assert await statuses(runs) == []


@pytest.mark.logic
async def test_a_stream_that_is_left_can_be_resumed(runs, shop) -> None:
    agent = shop.agent(["look c1"], ["look c2"], "Done")
    async with runs.stream("chat", agent, "Hi") as run:
        async for event in run.stream_events():
            if event.type == "run_item_stream_event" and event.item.type == "tool_call_output_item":
                break
    assert await statuses(runs) == ["interrupted"]
    rest = shop.agent(["look c2"], "Done") if "look c2" not in shop.calls else shop.agent("Done")
    done = await runs.resume("chat", rest)
    assert done.final_output == "Done"
    assert (await history(runs))[-1] == "message"
    assert shop.calls[0] == "look c1"
    assert shop.calls.count("look c1") == 1


async def test_a_cancelled_stream_can_be_left_at_any_time(shared_database, shop) -> None:
    runs = SessionRuns(SessionCatalog(shared_database.engine(), create_tables=True))
    others = asyncio.all_tasks()
    for turns in range(12):  # of the event loop
        async with runs.stream(f"chat-{turns}", shop.agent("Hello"), "Hi") as run:
            async for _ in run.stream_events():
                run.result.cancel()
                break
            for _ in range(turns):
                await asyncio.sleep(0)
    # Not even a connection is still being closed.
    left = asyncio.all_tasks() - others
    await asyncio.wait_for(asyncio.gather(*left), timeout=20)


@pytest.mark.logic
async def test_a_stream_that_waits_and_one_that_fails(runs, shop) -> None:
    async with runs.stream("chat", shop.agent(["pay c1"]), "Hi") as run:
        async for _ in run.stream_events():
            pass
    assert [call.call_id for call in run.interruptions] == ["c1"]
    assert await statuses(runs) == ["waiting"]
    async with runs.stream("other", shop.agent(["fetch c1"]), "Hi") as run:
        with pytest.raises(UserError):
            await anext(event async for event in run.stream_events() if event.type == "never")
    assert [each.session_id for each in (await runs.list("failed")).runs] == ["other"]
    with pytest.raises(SessionPausedError):
        async with runs.stream("chat", shop.agent("Done"), "Hi"):
            raise AssertionError("it does not begin")


# ---- encryption and wrapped sessions ----


@pytest.mark.logic
async def test_an_encrypted_session_requires_encrypt(catalog, shop) -> None:
    from agents.extensions.memory import EncryptedSession

    def wrap(session: Any) -> Any:
        return EncryptedSession("chat", session, "secret")

    runs = SessionRuns(catalog)
    with pytest.raises(ValueError, match="encrypt="):
        await runs.run("chat", shop.agent("Done"), "Hi", session=wrap)
    assert await catalog.get_session("chat") is None
    assert await statuses(runs) == []
    fernet = Fernet(Fernet.generate_key())
    runs = SessionRuns(catalog, encrypt=fernet.encrypt, decrypt=fernet.decrypt)
    with pytest.raises(UserError):
        await runs.run("chat", shop.agent(["look sesame"], ["fetch c2"]), "Hi sesame", session=wrap)
    shop.fails = False
    run = await runs.resume("chat", shop.agent(["pay sesame2"]), session=wrap)
    assert run.interruptions
    for table in ("_runs", "_run_steps", "_run_keys"):
        rows = await raw.execute(catalog.engine, f"SELECT * FROM agent_sessions_metadata{table}")
        for row in rows:
            words = ("Hi sesame", "saw sesame", 'place"', "place\\", "no connection")
            assert not any(word in str(value) for value in row for word in words)
    blind = SessionRuns(catalog, encrypt=fernet.encrypt)
    [info] = (await blind.list()).runs
    assert info.pending[0].arguments is None
    [info] = (await SessionRuns(catalog).list()).runs
    assert info.pending[0].arguments is None
    await runs.decide("chat", "sesame2", approve=True)
    run = await runs.resume("chat", shop.agent("Done"), session=wrap)
    assert run.final_output == "Done"
    assert shop.calls == ["look sesame", "fetch c2", "fetch c2", "pay sesame2"]
    items = await wrap(catalog.session("chat")).get_items()
    assert len(items) == 8


async def test_a_session_that_replaces_the_history_in_the_middle(runs, shop) -> None:
    """A run whose wrapper clears the session goes on as any other."""
    await runs.run("chat", shop.agent("Old"), "Before")

    class Clearing:
        def __init__(self, session: Any) -> None:
            self.session, self.session_id, self.added = session, session.session_id, 0
            self.session_settings = None

        async def get_items(self, limit: int | None = None) -> Any:
            return await self.session.get_items(limit)

        async def add_items(self, items: Any) -> None:
            await self.session.add_items(items)
            self.added += 1
            if self.added == 2:
                await self.session.clear_session()
                await self.session.add_items([raw.message("summary")])

        async def pop_item(self) -> Any:
            return await self.session.pop_item()

        async def clear_session(self) -> None:
            await self.session.clear_session()

    agent = shop.agent(["look c1"], ["fetch c2"])
    with pytest.raises(UserError):
        await runs.run("chat", agent, "Hi", session=Clearing)
    shop.fails = False
    run = await runs.resume("chat", shop.agent("Done"), session=lambda session: session)
    assert run.final_output == "Done"
    found = await history(runs)
    assert found == ["user", "function_call c2", "function_call_output c2", "message"]


@pytest.mark.logic
async def test_a_wrong_argument(catalog, shop) -> None:
    with pytest.raises(TypeError, match="catalog must be a SessionCatalog"):
        SessionRuns(catalog.session("chat"))
    with pytest.raises(ValueError, match="lease must be positive"):
        SessionRuns(catalog, lease=timedelta(0))
    runs = SessionRuns(catalog)
    with pytest.raises(TypeError, match="input must be"):
        await runs.run("chat", shop.agent("Done"), None)
    with pytest.raises(ValueError, match="interrupted must be"):
        await runs.run("chat", shop.agent("Done"), "Hi", interrupted="wait")
    with pytest.raises(ValueError, match="session id"):
        await runs.run("", shop.agent("Done"), "Hi")


@pytest.mark.logic
async def test_direct_runs_take_no_turn(runs, shop) -> None:
    await runs.run("chat", shop.agent(["pay c1"]), "Hi")
    result = await Runner.run(shop.agent("Hm"), "Hello", session=runs.catalog.session("chat"))
    assert result.final_output == "Hm"
    with pytest.raises(SessionChangedError):
        await runs.resume("chat", shop.agent("Done"))

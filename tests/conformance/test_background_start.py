"""`SessionRuns.start`, `aclose` and `cancel`: runs that outlive their caller, and their ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from agents import Agent, function_tool
from agents.extensions.memory import EncryptedSession
from agents.testing import ScriptedModel
from cryptography.fernet import Fernet
from sqlalchemy import event

from agents_session_metadata import (
    Budget,
    KeyReusedError,
    LeaseLostError,
    RunCancelledError,
    RunNotFoundError,
    SessionBusyError,
    SessionCatalog,
    SessionPausedError,
    SessionRuns,
    SessionTracker,
)
from conformance import raw
from conformance.following import Client, Speaker, ended, plain, speaking, until

RUNS_TABLE = "agent_sessions_metadata_runs"
STEPS_TABLE = "agent_sessions_metadata_run_steps"


@function_tool(needs_approval=True)
async def pay() -> str:
    return "paid"


def gated(agent: Agent[Any], word: str) -> asyncio.Event:
    gate = asyncio.Event()
    agent.model.gates[word] = gate  # type: ignore[union-attr]  # a Speaker
    return gate


async def items_of(catalog: SessionCatalog) -> list[Any]:
    return plain(await catalog.session("chat").get_items())


async def show_until(runs: SessionRuns, text: str, **options: Any) -> None:
    """Return when a follower sees this text of the answer in progress."""
    client = Client()
    task = asyncio.ensure_future(client.follow(runs, "chat", **options))
    await until(lambda: client.text == text)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


# ---- start ----


@pytest.mark.logic
async def test_a_run_goes_on_when_the_task_that_began_it_ends(catalog, runs) -> None:
    agent = speaking(["one two"])
    gate = gated(agent, "two")
    request = asyncio.ensure_future(runs.start("chat", agent, "Count"))
    await request
    gate.set()
    await ended(runs)
    assert await items_of(catalog) == [("user", "Count"), ("assistant", "one two")]


async def test_start_says_whether_it_has_begun_a_run(catalog, runs) -> None:
    agent = speaking(["I pay", "=pay"], ["Done"], tools=[pay])
    gate = gated(agent, "pay")
    assert await runs.start("chat", agent, "Pay", key="k") is True
    assert await runs.start("chat", agent, "Pay", key="k", wait=5) is False  # works
    with pytest.raises(SessionBusyError):
        await runs.start("chat", agent, "Other")
    gate.set()
    await ended(runs)
    assert await runs.start("chat", agent, "Pay", key="k") is False  # waits
    with pytest.raises(SessionPausedError):
        await runs.start("chat", agent, "Other")
    with pytest.raises(KeyReusedError):
        await runs.start("chat", agent, "Other", key="k")
    (call,) = (await runs.get("chat")).pending
    await runs.decide("chat", call.call_id, approve=True)
    assert await runs.start("chat", agent) is True  # goes on
    await ended(runs)
    assert (await items_of(catalog))[-1] == ("assistant", "Done")
    assert await runs.start("chat", agent, "Pay", key="k") is False  # has ended
    assert await runs.start("chat", agent) is False
    with pytest.raises(RunNotFoundError):
        await runs.start("nope", agent)


@pytest.mark.logic
async def test_start_refuses_what_does_not_fit(catalog, runs) -> None:
    agent = speaking(["one"])
    with pytest.raises(ValueError, match="durable=False"):
        await runs.start("chat", agent, "Count", durable=False)
    with pytest.raises(ValueError, match="durable=False"):
        runs.stream("chat", agent, "Count", live=True, durable=False)
    with pytest.raises(TypeError, match="key"):
        await runs.start("chat", agent, key="k")
    with pytest.raises(TypeError, match="takeover"):
        await runs.start("chat", agent, "Count", takeover=True)
    with pytest.raises(TypeError, match="after"):
        await Client().follow(runs, "chat", after="1")
    assert await catalog.count_sessions() == 0


@pytest.mark.logic
async def test_a_model_that_cannot_stream_gives_its_whole_answer(catalog, runs) -> None:
    class Silent(Speaker):
        async def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError
            yield

    await runs.start("chat", Agent("silent", model=Silent(["one two"])), "Count")
    await ended(runs)
    assert await items_of(catalog) == [("user", "Count"), ("assistant", "one two")]


@pytest.mark.logic
async def test_a_stream_with_live_is_followed_like_a_run_of_start(catalog, runs) -> None:
    agent = speaking(["one two three"])
    gate = gated(agent, "three")
    async with runs.stream("chat", agent, "Count", live=True) as run:
        client = Client()
        task = asyncio.ensure_future(client.follow(runs, "chat"))
        reading = asyncio.ensure_future(anext_of(run))
        await until(lambda: client.text == "one two")
        gate.set()
        await reading
        await task
    assert client.status["output"] == run.final_output == "one two three"


async def anext_of(run: Any) -> None:
    async for _ in run.stream_events():
        pass


@pytest.mark.logic
async def test_aclose_waits_and_then_interrupts_the_rest(catalog, runs) -> None:
    short, long = speaking(["one two"], pause=0.05), speaking(["one two"])
    gated(long, "two")
    await runs.start("short", short, "Count")
    await runs.start("long", long, "Count")
    await runs.aclose(wait=1)
    assert await runs.get("short") is None
    info = await runs.get("long")
    assert (info.status, info.attempts) == ("interrupted", 0)
    async with runs:
        await runs.start("again", speaking(["one"]), "Count")
    assert await runs.get("again") is None


# ---- what a run that nobody follows costs ----


@pytest.mark.logic
async def test_a_run_that_is_not_live_costs_what_it_did(catalog, runs) -> None:
    await runs.run("warm", speaking(["one"]), "Hi")
    counted: list[str] = []
    sync = catalog.engine.sync_engine

    @event.listens_for(sync, "before_cursor_execute")
    def count(connection, cursor, statement, *_) -> None:
        counted.append(statement)

    async with runs.stream("stream", speaking(["one two three"]), "Hi") as run:
        await anext_of(run)
    assert not any("number <" in statement for statement in counted)
    usual = len(counted)
    counted.clear()
    await runs.run("run", speaking(["one two three"]), "Hi")
    assert len(counted) == usual


# ---- cancel ----


@pytest.mark.dialect
async def test_cancel_keeps_the_text_so_far_once_and_the_next_turn_works(
    catalog, database, runs
) -> None:
    agent = speaking(["one two three"])
    gated(agent, "three")
    await runs.start("chat", agent, "Count", key="k")
    await show_until(runs, "one two")
    client = Client()
    task = asyncio.ensure_future(client.follow(runs, "chat"))
    await until(lambda: client.text)
    other = SessionRuns(SessionCatalog(database.engine()))
    assert await other.cancel("chat") is True
    await task
    assert client.status == {"type": "status", "status": "cancelled"}
    items = await catalog.session("chat").get_items()
    assert items[1:] == [
        {
            "id": "__fake_id__",
            "type": "message",
            "role": "assistant",
            "status": "incomplete",
            "content": [{"type": "output_text", "text": "one two", "annotations": []}],
        }
    ]
    assert client.shown == plain(items)
    assert await runs.get("chat") is None
    assert await other.cancel("chat") is False
    with pytest.raises(RunCancelledError):
        await runs.start("chat", agent, "Count", key="k")
    run = await runs.run("chat", speaking(["four"], ["four"]), "Go on")
    assert plain(run.result.to_input_list())[:2] == plain(items)
    assert await items_of(catalog) == [*plain(items), ("user", "Go on"), ("assistant", "four")]


@pytest.mark.logic
async def test_cancel_without_keep_drops_the_text(catalog, runs) -> None:
    agent = speaking(["one two"])
    gated(agent, "two")
    await runs.start("chat", agent, "Count")
    await show_until(runs, "one")
    assert await runs.cancel("chat", keep=False) is True
    assert await items_of(catalog) == [("user", "Count")]


@pytest.mark.logic
async def test_cancel_cancels_a_tool_and_drops_its_call_but_not_the_text_before(
    catalog, runs
) -> None:
    ended = asyncio.Event()

    @function_tool
    async def hang() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.set()
            raise
        return "never"

    agent = speaking(["Let us see", "=hang"], tools=[hang])
    await runs.start("chat", agent, "Go")
    client = Client()
    task = asyncio.ensure_future(client.follow(runs, "chat"))
    await until(lambda: len(client.items) == 3)
    assert await SessionRuns(catalog).cancel("chat") is True
    await asyncio.wait_for(ended.wait(), 5)
    await task
    items = await catalog.session("chat").get_items()
    assert plain(items) == [("user", "Go"), ("assistant", "Let us see")]
    assert items[1]["status"] == "incomplete"
    await runs.aclose()
    assert plain(await catalog.session("chat").get_items()) == plain(items)


@pytest.mark.dialect
async def test_whoever_awaits_a_cancelled_run_or_waits_with_its_key_gets_an_error_that_says_so(
    catalog, database, runs
) -> None:
    agent = speaking(["one two"])
    gated(agent, "two")

    async def stream() -> None:
        async with runs.stream("chat", agent, "Count", key="k", live=True) as run:
            await anext_of(run)

    streaming = asyncio.ensure_future(stream())
    await show_until(runs, "one", forever=True)
    waiting = asyncio.ensure_future(runs.run("chat", agent, "Count", key="k", wait=20))
    await asyncio.sleep(0.1)
    other = SessionRuns(SessionCatalog(database.engine()))
    assert await other.cancel("chat") is True
    # Another run begins at once, and does not change what the first one is told.
    await other.run("chat", speaking(["four"], ["four"]), "Next")
    for each in (streaming, waiting):
        with pytest.raises(RunCancelledError):
            await asyncio.wait_for(each, 10)


@pytest.mark.logic
async def test_a_run_that_is_not_live_leaves_nothing_of_its_turn_and_hears_at_its_next_record(
    catalog, runs
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @function_tool
    async def hang() -> str:
        begun.set()
        await go.wait()
        return "late"

    agent = speaking(["See", "=hang"], ["Done"], tools=[hang])
    running = asyncio.ensure_future(runs.run("chat", agent, "Go"))
    await begun.wait()
    assert await runs.cancel("chat") is True
    go.set()
    with pytest.raises(RunCancelledError):
        await running
    assert await items_of(catalog) == [("user", "Go")]


@pytest.mark.logic
async def test_a_run_that_was_discarded_by_force_is_not_called_cancelled(catalog, runs) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @function_tool
    async def hang() -> str:
        begun.set()
        await go.wait()
        return "late"

    agent = speaking(["See", "=hang"], ["Done"], tools=[hang])
    running = asyncio.ensure_future(runs.run("chat", agent, "Go"))
    await begun.wait()
    assert await runs.discard("chat", force=True) is True
    go.set()
    with pytest.raises(LeaseLostError) as caught:
        await running
    assert caught.value.reason == "stopped"


@pytest.mark.dialect
async def test_waiting_and_interrupted_runs_can_be_cancelled_and_failed_ones_are_left(
    catalog, caplog, runs
) -> None:
    await runs.start("chat", speaking(["I pay", "=pay"], tools=[pay]), "Pay")
    await ended(runs)
    assert await runs.cancel("chat") is True
    assert await items_of(catalog) == [("user", "Pay"), ("assistant", "I pay")]
    agent = speaking(["one two"])
    gated(agent, "two")
    await runs.start("other", agent, "Count")
    client = Client()
    task = asyncio.ensure_future(client.follow(runs, "other"))
    await until(lambda: client.text == "one")
    await runs.aclose(wait=0)
    assert (await runs.get("other")).status == "interrupted"
    assert await runs.cancel("other") is True
    await task
    assert plain(await catalog.session("other").get_items())[1:] == [("assistant", "one")]
    with pytest.raises(Exception, match=r".*"):
        await runs.run("failed", Agent("bad", model=ScriptedModel([ValueError("no")])), "Go")
    assert await runs.cancel("failed") is False
    assert (await runs.get("failed")).status == "failed"


async def test_cancel_respects_the_scope(everyone) -> None:
    runs, agent = SessionRuns(everyone), speaking(["one two"])
    gated(agent, "two")
    await runs.start("theirs-0", agent, "Count")
    assert await SessionRuns(everyone.scoped({"owner_id": "mine"})).cancel("theirs-0") is False
    assert (await runs.get("theirs-0")).status == "running"
    await runs.aclose(wait=0)


@pytest.mark.logic
async def test_cancel_stores_the_text_encrypted_or_not_at_all(catalog) -> None:
    fernet = Fernet(Fernet.generate_key())
    runs = SessionRuns(catalog, encrypt=fernet.encrypt, decrypt=fernet.decrypt)

    def wrap(session: Any) -> Any:
        return EncryptedSession("chat", session, "a key of the application")

    for given, kept in ((wrap, 1), (None, 0)):
        agent = speaking(["one two"])
        gated(agent, "two")
        await runs.start("chat", agent, "Count", session=wrap)
        await show_until(runs, "one", session=wrap)
        before = len(await catalog.session("chat").get_items())
        assert await runs.cancel("chat", session=given) is True
        stored = await catalog.session("chat").get_items()
        assert all("__enc__" in item for item in stored)
        assert len(stored) - before == kept
    opened = plain(await wrap(catalog.session("chat")).get_items())
    assert opened == [("user", "Count"), ("assistant", "one"), ("user", "Count")]
    await runs.aclose(wait=0)


# ---- what lists show ----


async def test_a_run_says_when_it_was_last_alive(catalog) -> None:
    runs, agent = SessionRuns(catalog, lease=timedelta(seconds=1)), speaking(["one two"])
    gate = gated(agent, "two")
    await runs.start("chat", agent, "Count")
    first = await runs.get("chat")
    assert first.alive_at >= first.started_at
    await asyncio.sleep(0.8)
    second = await runs.get("chat")
    assert second.alive_at > first.alive_at
    assert second.started_at == first.started_at
    gate.set()
    await ended(runs)
    table = f"UPDATE {RUNS_TABLE} SET alive_at = NULL"
    await runs.start("chat", speaking(["I pay", "=pay"], tools=[pay]), "Pay")
    await ended(runs)
    await raw.execute(catalog.engine, table)  # as in a row of 0.2.0
    info = await runs.get("chat")
    assert info.alive_at == info.started_at


@pytest.mark.logic
async def test_a_recorded_answer_shows_that_its_run_is_alive(catalog) -> None:
    runs, gate = SessionRuns(catalog), asyncio.Event()

    @function_tool
    async def wait() -> str:
        await gate.wait()
        return "done"

    agent = speaking(["I wait", "=wait"], ["Done"], tools=[wait], pause=0.2)
    async with runs.stream("chat", agent, "Go") as run:
        async for each in run.stream_events():
            if each.type == "run_item_stream_event" and each.name == "tool_called":
                info = await runs.get("chat")
                assert info.alive_at - info.started_at >= timedelta(seconds=0.3)
                gate.set()
    assert gate.is_set()


@pytest.mark.dialect
async def test_ready_runs_are_those_whose_calls_are_all_decided(catalog, runs) -> None:
    for name in ("one", "two", "three"):
        agent = speaking(["I pay", "=pay", "=pay"], ["Done"], tools=[pay])
        await runs.run(name, agent, "Pay")
    assert (await runs.list("ready")).runs == []
    for name, count in (("one", 2), ("two", 1)):
        for call in (await runs.get(name)).pending[:count]:
            await runs.decide(name, call.call_id, approve=True)
    call = (await runs.get("three")).pending[0]
    await runs.decide("three", call.call_id, approve=False, always=True)
    found = (await runs.list("ready")).runs
    assert {info.session_id for info in found} == {"one", "three"}
    assert {info.status for info in found} == {"waiting"}
    assert len((await runs.list("waiting")).runs) == 3
    page = await runs.list("ready", limit=1)
    again = await runs.list("ready", limit=1, cursor=page.next_cursor)
    assert len({*page.runs, *again.runs}) >= 1
    with pytest.raises(ValueError, match="unknown status"):
        await runs.list("done")  # type: ignore[arg-type]
    await runs.resume("one", agent)
    assert [info.session_id for info in (await runs.list("ready")).runs] == ["three"]


@pytest.mark.logic
async def test_a_tracker_is_open_until_the_run_of_start_ends(catalog, runs) -> None:
    @function_tool
    async def look() -> str:
        return "saw it"

    agent = speaking(["=look"], ["Seen"], tools=[look])
    budget = Budget(tokens=1_000_000)
    tracker = SessionTracker(catalog.session("chat"), budget=budget, model="demo")
    assert await runs.start("chat", agent, "Look", hooks=tracker, key="r1") is True
    await runs.aclose()
    recorded = await catalog.get_metadata("chat", ["runs", "tools_used"])
    assert recorded == {"runs": 1, "tools_used": ["look"]}
    assert await runs.start("chat", agent, "Look", hooks=tracker, key="r1") is False
    assert await catalog.get_metadata("chat", ["runs"]) == {"runs": 1}


@pytest.mark.logic
async def test_a_run_that_its_budget_ends_is_logged_without_a_traceback(
    catalog, runs, caplog
) -> None:
    # The price of this model is not known.
    tracker = SessionTracker(catalog.session("chat"), budget=Budget(cost=1.0), model="demo")
    await runs.start("chat", speaking(["Yes"]), "Go", hooks=tracker)
    await runs.aclose()
    [run] = (await runs.list("failed")).runs
    assert run.error.startswith("BudgetExceededError: ")
    assert not [record for record in caplog.records if record.exc_info]

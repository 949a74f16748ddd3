"""`SessionRuns.recover` and `recovering`: runs of `start` whose process has died go on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from agents import function_tool

from agents_session_metadata import RunInfo, SessionCatalog, SessionRuns
from conformance import raw
from conformance.following import Client, ended, plain, speaking, until

RUNS_TABLE = "agent_sessions_metadata_runs"


@function_tool(needs_approval=True)
async def pay() -> str:
    return "paid"


@function_tool
async def look() -> str:
    return "saw it"


async def hang(runs: SessionRuns, session_id: str = "chat", *answers: list[str]) -> None:
    """Begins a run that waits before the word `end`."""
    agent = speaking(*(answers or (["one end"],)), tools=[look])
    agent.model.gates["end"] = asyncio.Event()  # type: ignore[union-attr]  # a Speaker
    await runs.start(session_id, agent, "Count")
    client = Client()
    task = asyncio.ensure_future(client.follow(runs, session_id))
    await until(lambda: client.text)
    task.cancel()


async def die(catalog: SessionCatalog, session_id: str = "chat") -> None:
    """What is left of a run whose process has died, when its lease has ended."""
    values, own = "expires = 1, token = 'of a dead process'", {"own": session_id}
    found: list[Any] = []
    # In memory, all share one connection, and the run can roll this back with its own write.
    while [tuple(row) for row in found] != [("of a dead process",)]:
        update = f"UPDATE {RUNS_TABLE} SET {values} WHERE session_id = :own"
        await raw.execute(catalog.engine, update, **own)
        select = f"SELECT token FROM {RUNS_TABLE} WHERE session_id = :own"
        found = list(await raw.execute(catalog.engine, select, **own))


@pytest.mark.dialect
async def test_an_interrupted_run_of_start_goes_on(catalog, runs) -> None:
    await hang(runs)
    await die(catalog)
    async with SessionRuns(catalog) as other:
        assert await other.recover(lambda _: speaking(["one end"])) == 1
        assert await other.recover(lambda _: speaking(["one end"])) == 0
    items = plain(await catalog.session("chat").get_items())
    assert items == [("user", "Count"), ("assistant", "one end")]


async def test_a_follower_sees_the_run_go_on_in_another_process(catalog, runs) -> None:
    await hang(runs)
    client = Client()
    task = asyncio.ensure_future(client.follow(runs, "chat"))
    await until(lambda: client.text == "one")
    await die(catalog)
    await until(lambda: client.status and client.status["status"] == "interrupted")
    agent = speaking(["another text end"])
    gate = agent.model.gates["end"] = asyncio.Event()  # type: ignore[union-attr]
    await runs.recover(lambda _: agent)
    await until(lambda: client.text == "another text")
    gate.set()
    await task
    assert client.shown == [("user", "Count"), ("assistant", "another text end")]
    assert client.status["status"] == "finished"


async def test_a_run_that_was_left_is_not_finished_by_recovery(catalog, runs) -> None:
    async with runs.stream("chat", speaking(["one two"]), "Count", live=True) as run:
        async for _ in run.stream_events():
            break
    assert (await runs.get("chat")).status == "interrupted"
    assert await runs.recover(lambda _: speaking(["one two"])) == 0
    assert (await runs.get("chat")).status == "interrupted"
    # Whoever resumes it by `start` hands it over.
    agent = speaking(["one end"])
    agent.model.gates["end"] = asyncio.Event()  # type: ignore[union-attr]  # a Speaker
    await runs.start("chat", agent)
    await runs.aclose(wait=0)
    assert await runs.recover(lambda _: speaking(["one two"])) == 1
    await ended(runs)
    assert plain(await catalog.session("chat").get_items())[1:] == [("assistant", "one two")]


@pytest.mark.logic
async def test_a_run_that_a_process_has_ended_goes_on_at_once(catalog, runs) -> None:
    await hang(runs)
    await runs.aclose(wait=0)
    seen: list[RunInfo] = []

    async def agent_of(info: RunInfo) -> Any:
        seen.append(info)
        return speaking(["one end"]), {"max_turns": 3}

    assert await runs.recover(agent_of) == 1
    assert (seen[0].session_id, seen[0].agent, seen[0].attempts) == ("chat", "speaker", 0)
    await ended(runs)
    assert await runs.get("chat") is None


@pytest.mark.only_on("postgresql")
async def test_a_run_that_could_not_be_recorded_goes_on_when_the_database_is_back(
    catalog, runs
) -> None:
    await raw.execute(
        catalog.engine,
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'full' USING ERRCODE = '53100'; END $$",
    )
    table = "agent_sessions_metadata_run_steps"
    trigger = f"CREATE TRIGGER failing BEFORE INSERT ON {table} FOR EACH ROW"

    @function_tool
    async def fill() -> str:
        if not filled:
            filled.append(True)
            await raw.execute(catalog.engine, f"{trigger} EXECUTE FUNCTION fail()")
        return "done"

    filled: list[bool] = []
    agent = speaking(["=fill"], ["one end"], tools=[fill])
    await runs.start("chat", agent, "Count")
    await runs.aclose()
    assert (await runs.get("chat")).status == "interrupted"
    await raw.execute(catalog.engine, f"DROP TRIGGER failing ON {table}")
    assert await runs.recover(lambda _: agent) == 1
    await runs.aclose()
    assert await runs.get("chat") is None
    assert plain(await catalog.session("chat").get_items())[-1] == ("assistant", "one end")


@pytest.mark.logic
async def test_a_run_is_left_alone_if_there_is_no_agent_for_it(catalog, runs, caplog) -> None:
    await hang(runs)
    await die(catalog)
    assert await runs.recover(lambda _: None) == 0
    other = speaking(["one end"])
    other.name = "another"
    assert await runs.recover(lambda _: other) == 0
    assert "cannot go on" in caplog.text
    caplog.clear()
    assert await runs.recover(lambda _: other) == 0
    assert caplog.text == ""  # once
    assert (await runs.get("chat")).status == "interrupted"


@pytest.mark.dialect
async def test_of_several_processes_one_goes_on_with_a_run(catalog, runs) -> None:
    for number in range(5):
        await hang(runs, f"chat-{number}")
        await die(catalog, f"chat-{number}")
    others = [SessionRuns(catalog) for _ in range(3)]
    found = 0
    for _ in range(3):  # A run that others look at in the same moment is left to the next round.
        each = (other.recover(lambda _: speaking(["one end"])) for other in others)
        found += sum(await asyncio.gather(*each))
    assert found == 5
    for other in others:
        await other.aclose()
    for number in range(5):
        items = plain(await catalog.session(f"chat-{number}").get_items())
        assert items == [("user", "Count"), ("assistant", "one end")]


@pytest.mark.dialect
async def test_a_run_fails_after_processes_that_died_without_recording_a_step(
    catalog, runs
) -> None:
    await hang(runs)
    for died in range(3):
        await die(catalog)
        assert (await runs.get("chat")).attempts == died + 1
        if died == 2:
            break
        agent = speaking(["one end"])
        agent.model.gates["end"] = asyncio.Event()  # type: ignore[union-attr]  # a Speaker
        assert await runs.recover(lambda _, agent=agent: agent) == 1
        assert (await runs.get("chat")).attempts == died + 1
    assert await runs.recover(lambda _: speaking(["one end"])) == 0
    info = await runs.get("chat")
    assert info.status == "failed"
    assert "3 processes" in info.error
    client = Client()
    await client.follow(runs, "chat")
    assert client.status["error"]["type"] == "RunFailedError"
    assert await runs.start("chat", speaking(["one end"])) is True  # a person can go on
    await ended(runs)
    assert plain(await catalog.session("chat").get_items())[1:] == [("assistant", "one end")]


async def test_a_recorded_step_is_progress_and_a_batch_of_text_is_none(catalog, runs) -> None:
    answers = ["See", "=look"], ["Again", "=look"], ["one end"]
    await hang(runs, "chat", ["one end", "=look"])
    await die(catalog)
    agent = speaking(*answers, tools=[look])
    agent.model.gates["end"] = asyncio.Event()  # type: ignore[union-attr]  # a Speaker
    assert await runs.recover(lambda _: agent) == 1
    client = Client()
    task = asyncio.ensure_future(client.follow(runs, "chat"))
    await until(lambda: client.text == "one")
    assert (await runs.get("chat")).attempts == 0
    await die(catalog)
    assert (await runs.get("chat")).attempts == 1
    task.cancel()


@pytest.mark.logic
async def test_recovering_takes_ready_runs_if_asked(catalog, runs) -> None:
    def agent_of(info: RunInfo) -> Any:
        return speaking(["I pay", "=pay"], ["Done"], tools=[pay])

    await runs.start("chat", agent_of(None), "Pay")
    await ended(runs)
    (call,) = (await runs.get("chat")).pending
    assert await runs.recover(agent_of, decided=True) == 0
    await runs.decide("chat", call.call_id, approve=True)
    assert await runs.recover(agent_of) == 0
    every = timedelta(seconds=0.05)
    async with runs.recovering(agent_of, every=every, decided=True):
        client = Client()
        task = asyncio.ensure_future(client.follow(runs, "chat", forever=True))
        await until(lambda: ("assistant", "Done") in client.shown)
        task.cancel()
    assert plain(await catalog.session("chat").get_items())[-1] == ("assistant", "Done")


async def test_recovery_respects_the_scope(everyone) -> None:
    runs = SessionRuns(everyone)
    await hang(runs, "theirs-0")
    await die(everyone, "theirs-0")
    mine = SessionRuns(everyone.scoped({"owner_id": "mine"}))
    assert await mine.recover(lambda _: speaking(["one end"])) == 0
    theirs = SessionRuns(everyone.scoped({"owner_id": "theirs"}))
    assert await theirs.recover(lambda _: speaking(["one end"])) == 1
    await theirs.aclose()
    await everyone.rewind_session("theirs-0", turns=1)
    await runs.aclose(wait=0)


@pytest.mark.logic
async def test_recovery_of_what_was_never_used_does_nothing(catalog) -> None:
    assert await SessionRuns(catalog).recover(lambda _: None, decided=True) == 0

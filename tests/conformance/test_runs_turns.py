"""Leases: who has a run, who may take it, and how long another one waits."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import timedelta
from typing import Any

import anyio
import pytest
from processes import Script
from servers import POSTGRESQL_DRIVER
from sqlalchemy import event

from agents_session_metadata import (
    KeyReusedError,
    LeaseLostError,
    RunCancelledError,
    SessionBusyError,
    SessionCatalog,
    SessionRuns,
)
from conformance import raw
from conformance.failing import (
    RUNS_TABLE,
    Till,
    expire,
    ids_of_calls,
    locked,
    status,
    until,
)


@pytest.fixture
def till():
    return Till()


@pytest.fixture
def runs(catalog):
    return SessionRuns(catalog)


class Working:
    """A run that works in its tool until `gate` is set."""

    def __init__(self, runs: SessionRuns, till: Till, *steps: Any, **options: Any) -> None:
        self.gate = asyncio.Event()
        till.on_charge = self.gate.wait
        self.agent = till.agent(["charge"], *(steps or ["Done"]))
        self.task = asyncio.create_task(runs.run("chat", self.agent, "Hi", **options))

    async def end(self) -> Any:
        self.gate.set()
        return await self.task


async def working(runs: SessionRuns, till: Till, *steps: Any, **options: Any) -> Working:
    found = Working(runs, till, *steps, **options)
    await until(lambda: till.charged or found.task.done())
    return found


async def lost(run: Working) -> LeaseLostError:
    with pytest.raises(LeaseLostError) as caught:
        await run.end()
    assert isinstance(caught.value, SessionBusyError)
    return caught.value


# ---- the token decides, not the time ----


@pytest.mark.dialect
async def test_a_lease_that_ended_is_kept_while_nobody_has_taken_the_run(runs, till) -> None:
    run = await working(runs, till, ["other"], "Done")
    till.on_other = lambda: expire(runs.catalog.engine)
    await expire(runs.catalog.engine)
    assert await status(runs) == "interrupted"
    assert (await run.end()).final_output == "Done"
    assert len(await ids_of_calls(runs)) == 2
    assert await status(runs) is None


async def test_a_late_renewal_takes_the_lease_again(catalog, till) -> None:
    runs = SessionRuns(catalog, lease=timedelta(seconds=1.5))
    run = await working(runs, till)
    await expire(catalog.engine)
    assert await status(runs) == "interrupted"
    await until(lambda: is_running(runs), seconds=3)
    assert (await run.end()).final_output == "Done"


async def is_running(runs: SessionRuns) -> bool:
    return await status(runs) == "running"


@pytest.mark.dialect
async def test_a_lease_that_another_run_has_taken_is_lost(runs, till) -> None:
    run = await working(runs, till)
    await expire(runs.catalog.engine)
    other = Till()
    done = await runs.resume("chat", other.agent(["charge"], "Won"))
    assert done.final_output == "Won"
    before = await runs.catalog.session("chat").get_items()
    assert (await lost(run)).reason == "taken"
    assert await runs.catalog.session("chat").get_items() == before
    assert await status(runs) is None


async def test_a_run_whose_session_was_deleted_says_so(runs, till) -> None:
    run = await working(runs, till)
    assert await runs.catalog.delete_session("chat")
    assert (await lost(run)).reason == "deleted"
    assert await runs.catalog.get_session("chat") is None


@pytest.mark.dialect
async def test_takeover_takes_a_run_from_a_living_lease(runs, till) -> None:
    run = await working(runs, till)
    other = Till()
    agent = other.agent(["charge"], "Won")
    with pytest.raises(SessionBusyError):
        await runs.resume("chat", agent)
    assert (await runs.resume("chat", agent, takeover=True)).final_output == "Won"
    assert other.charged == till.charged
    before = await runs.catalog.session("chat").get_items()
    assert (await lost(run)).reason == "taken"
    assert await runs.catalog.session("chat").get_items() == before


@pytest.mark.dialect
async def test_discard_with_force_ends_a_run_with_a_living_lease(runs, till) -> None:
    run = await working(runs, till)
    with pytest.raises(SessionBusyError):
        await runs.discard("chat")
    assert await runs.discard("chat", force=True) is True
    before = await runs.catalog.session("chat").get_items()
    assert await status(runs) is None
    assert (await lost(run)).reason == "stopped"
    assert await runs.catalog.session("chat").get_items() == before
    assert await runs.discard("chat", force=True) is False


async def test_a_run_that_was_taken_ends_at_its_next_renewal(catalog, till) -> None:
    runs = SessionRuns(catalog, lease=timedelta(seconds=1))
    run = await working(runs, till)
    await runs.discard("chat", force=True)
    with pytest.raises(LeaseLostError):
        await asyncio.wait_for(run.task, 10)


# ---- a process that was stopped ----

STOPPED = """
import asyncio, sys, time
from datetime import timedelta
from agents import RunHooks, set_tracing_disabled
from agents_session_metadata import *
from conformance.failing import Till
set_tracing_disabled(True)
url, log = sys.argv[1:3]

def note(word):
    with open(log, "a") as file:
        file.write(word + "\\n")

class Hooks(RunHooks):
    async def on_llm_start(self, *_):
        note("model")
    async def on_llm_end(self, *_):
        if is_first:
            is_first.clear()
            emit("answered")
            time.sleep(0.5)  # Here it is stopped.
    async def on_tool_start(self, *_):
        note("tool")

is_first = [True]

async def main():
    catalog = SessionCatalog.from_url(url, create_tables=True)
    runs = SessionRuns(catalog, lease=timedelta(seconds=1))
    till = Till()
    agent = till.agent(["charge"] * 4, ["other"], "Done")
    try:
        run = await runs.run("chat", agent, "Hi", hooks=Hooks())
        emit([run.final_output, len(till.charged)])
    except LeaseLostError as error:
        emit([error.reason, len(till.charged)])
    await catalog.engine.dispose()

asyncio.run(main())
"""


@pytest.mark.thorough
@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_process_that_wakes_up_after_its_lease_begins_nothing_if_it_was_taken(
    shared_database, tmp_path, is_taken
) -> None:
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    runs, log = SessionRuns(catalog), tmp_path / "log"
    child = await asyncio.to_thread(Script, STOPPED, [shared_database.url, log])
    try:
        assert await asyncio.to_thread(child.receive) == "answered"
        pid = child._process.pid
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: is_interrupted(runs))
        if is_taken:
            till = Till()
            agent = till.agent(["charge"] * 4, ["other"], "Won")
            assert (await runs.resume("chat", agent)).final_output == "Won"
            assert len(till.charged) == 4
        before = log.read_text().split()
        os.kill(pid, signal.SIGCONT)
        outcome = await asyncio.to_thread(child.receive)
    finally:
        child.kill()
    after = log.read_text().split()[len(before) :]
    if is_taken:
        assert outcome == ["taken", 0]
        assert after == []
    else:
        assert outcome == ["Done", 4]
        assert (after.count("tool"), after.count("model")) == (5, 2)
    assert len(await ids_of_calls(runs)) == 5


async def is_interrupted(runs: SessionRuns) -> bool:
    return await status(runs) == "interrupted"


# ---- renewals ----


@pytest.mark.only_on("postgresql")
async def test_a_timeout_of_the_driver_does_not_end_the_renewal(shared_database, till) -> None:
    limits = {
        "asyncpg": {"command_timeout": 0.7},
        "psycopg": {"options": "-c statement_timeout=700"},
    }
    engine = shared_database.engine(connect_args=limits[POSTGRESQL_DRIVER])
    catalog = SessionCatalog(engine, create_tables=True)
    runs = SessionRuns(catalog, lease=timedelta(seconds=3))
    run = await working(runs, till)
    async with locked(shared_database, RUNS_TABLE):
        await asyncio.sleep(2.2)
    await asyncio.sleep(3.5)
    assert await status(runs) == "running"
    assert (await run.end()).final_output == "Done"


async def leave(runs: SessionRuns, till: Till, how: str, ticks: int) -> None:
    """Leaves a run in the middle of an answer, by one or several cancellations."""
    till.on_charge = asyncio.Event().wait
    agent = till.agent(["charge"], "Done")

    async def stream() -> None:
        async with runs.stream("chat", agent, "Hi") as run:
            async for _ in run.stream_events():
                pass

    async def run() -> None:
        await runs.run("chat", agent, "Hi")

    work = stream if how.startswith("stream") else run
    if how.endswith("scope"):
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await until(lambda: till.charged)
            group.cancel_scope.cancel()
        return
    task = asyncio.create_task(work())
    await until(lambda: till.charged)
    task.cancel()
    for _ in range(2):
        for _ in range(ticks):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


@pytest.mark.logic
@pytest.mark.parametrize(
    ("how", "ticks"),
    [
        *[("stream twice", ticks) for ticks in range(1, 8)],
        *[("run twice", ticks) for ticks in range(1, 8)],
        *[("stream in a scope", 0), ("run in a scope", 0)],
    ],
)
async def test_a_cancelled_run_is_interrupted_at_once_however_it_is_cancelled(
    catalog, till, how, ticks
) -> None:
    runs = SessionRuns(catalog, lease=timedelta(minutes=2))
    await leave(runs, till, how, ticks)
    await until(lambda: is_interrupted(runs), seconds=2)
    till.on_charge = lambda: None
    assert (await runs.resume("chat", till.agent(["charge"], "Done"))).final_output == "Done"
    assert len(set(till.charged)) == 1


@pytest.mark.logic
@pytest.mark.parametrize("how", ["stream twice", "run twice", "stream in a scope"])
async def test_the_renewal_ends_with_the_task_of_the_run(catalog, till, how) -> None:
    runs = SessionRuns(catalog, lease=timedelta(seconds=0.6))
    before = asyncio.all_tasks()
    await leave(runs, till, how, ticks=3)
    await until(lambda: is_interrupted(runs), seconds=2)
    await asyncio.sleep(0.7)
    assert await is_interrupted(runs)
    await until(lambda: asyncio.all_tasks() <= before | {asyncio.current_task()}, seconds=2)


# ---- waiting ----


@pytest.mark.dialect
@pytest.mark.thorough
@pytest.mark.parametrize("table", ["agent_sessions", RUNS_TABLE])
@pytest.mark.parametrize("call", ["run", "resume"])
async def test_who_waits_is_not_held_up_by_a_lock_of_somebody_else(
    shared_database, till, call, table
) -> None:
    options = {"connect_args": {"timeout": 1}} if shared_database.kind == "sqlite" else {}
    runs = SessionRuns(SessionCatalog(shared_database.engine(**options), create_tables=True))
    await runs.run("chat", till.agent("Before"), "Hi")
    run = await working(runs, till)
    run.task.cancel()
    await asyncio.wait({run.task})
    agent = till.agent(["charge"], "Done")
    till.on_charge = lambda: None
    limit = 10 if shared_database.kind == "sqlite" else 3.5
    async with locked(shared_database, table):
        began = time.monotonic()
        waiting = (
            runs.run("chat", agent, "Hi", wait=1, interrupted="resume")
            if call == "run"
            else runs.resume("chat", agent, wait=1)
        )
        with pytest.raises(SessionBusyError):
            await waiting
        assert time.monotonic() - began < limit
    assert (await runs.resume("chat", agent)).final_output == "Done"


@pytest.mark.dialect
@pytest.mark.parametrize("call", ["run", "resume"])
async def test_a_short_write_of_somebody_else_makes_nobody_busy(
    shared_database, till, call
) -> None:
    runs = SessionRuns(SessionCatalog(shared_database.engine(), create_tables=True))
    await runs.run("chat", till.agent("Before"), "Hi")
    if call == "resume":
        run = await working(runs, till)
        run.task.cancel()
        await asyncio.wait({run.task})
    till.on_charge = lambda: None
    agent = till.agent(["charge"], "Done")
    async with locked(shared_database):
        task = asyncio.create_task(
            runs.run("chat", agent, "Hi") if call == "run" else runs.resume("chat", agent)
        )
        await asyncio.sleep(0.5)
    assert (await task).final_output == "Done"


@pytest.mark.dialect
@pytest.mark.thorough
async def test_waiters_share_one_poll(shared_database, till) -> None:
    engine = shared_database.engine(pool_size=20)
    runs = SessionRuns(SessionCatalog(engine, create_tables=True))
    run = await working(runs, till, key="k")
    waiters = [
        asyncio.create_task(runs.run("chat", run.agent, "Hi", key="k", wait=60)) for _ in range(200)
    ]
    statements: list[str] = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def note(connection, cursor, statement, parameters, context, executemany):
        statements.append(statement)

    def locks() -> bool:
        words = "FOR UPDATE", "INSERT"
        return any(word in each.upper() for each in statements for word in words)

    # Each waiter tries once by itself.
    await asyncio.sleep(1)
    while locks():
        statements.clear()
        await asyncio.sleep(1)
    statements.clear()
    await asyncio.sleep(2)
    seen = len(statements)
    event.remove(engine.sync_engine, "before_cursor_execute", note)
    assert seen <= 60, f"{seen} statements of 200 waiters in two seconds"
    assert not locks()
    assert (await run.end()).final_output == "Done"
    outcomes = await asyncio.gather(*waiters)
    assert {(each.final_output, each.repeated) for each in outcomes} == {("Done", True)}
    assert len(till.charged) == 1


async def test_an_answer_to_a_key_does_not_wait_for_the_run_of_another(runs, till) -> None:
    await runs.run("chat", till.agent("First"), "Hi", key="k")
    run = await working(runs, till)
    waiter = asyncio.create_task(runs.run("chat", till.agent("Next"), "Hi", wait=60))
    await asyncio.sleep(0.2)
    found = await runs.run("chat", till.agent(), "Hi", key="k", wait=2)
    assert (found.final_output, found.repeated) == ("First", True)
    with pytest.raises(KeyReusedError):
        await runs.run("chat", till.agent(), "Other", key="k", wait=2)
    assert not run.task.done()
    await run.end()
    assert (await waiter).final_output == "Next"


async def test_a_second_start_does_not_wait_for_the_run_of_the_first(runs, till) -> None:
    gate = asyncio.Event()
    till.on_charge = gate.wait
    agent = till.agent(["charge"], "Done")
    clicks = (runs.start("chat", agent, "Hi", key="k", wait=30) for _ in range(3))
    begun = await asyncio.wait_for(asyncio.gather(*clicks), 10)
    assert sorted(begun) == [False, False, True]
    waiter = asyncio.create_task(runs.run("chat", till.agent("Next"), "Hi", wait=60))
    await asyncio.sleep(0.2)
    again = runs.start("chat", agent, "Hi", key="k", wait=30)
    assert await asyncio.wait_for(again, 10) is False
    gate.set()
    assert (await waiter).final_output == "Next"
    await runs.aclose()
    assert len(till.charged) == 1


@pytest.mark.logic
async def test_takeover_does_not_wait_behind_others(runs, till) -> None:
    run = await working(runs, till)
    waiter = asyncio.create_task(runs.run("chat", till.agent("Next"), "Hi", wait=60))
    await asyncio.sleep(0.2)
    till.on_charge = lambda: None
    taken = runs.resume("chat", till.agent(["charge"], "Taken"), takeover=True, wait=30)
    assert (await asyncio.wait_for(taken, 10)).final_output == "Taken"
    assert (await lost(run)).reason == "taken"
    assert (await waiter).final_output == "Next"


async def test_a_waiter_begins_soon_after_the_run_has_ended(runs, till) -> None:
    run = await working(runs, till)
    waiter = asyncio.create_task(runs.run("chat", till.agent("Next"), "Hi", wait=60))
    await asyncio.sleep(0.5)
    await run.end()
    began = time.monotonic()
    assert (await waiter).final_output == "Next"
    assert time.monotonic() - began < 2


async def test_waiters_of_a_run_that_is_ended_by_force_go_on(runs, till) -> None:
    run = await working(runs, till, key="k")
    same = asyncio.create_task(runs.run("chat", run.agent, "Hi", key="k", wait=60))
    other = asyncio.create_task(runs.run("chat", till.agent("Next"), "Hi", wait=60))
    await asyncio.sleep(0.2)
    await runs.discard("chat", force=True)
    assert (await other).final_output == "Next"
    with pytest.raises(RunCancelledError):
        await same
    await lost(run)
    rows = await raw.execute(runs.catalog.engine, f"SELECT status FROM {RUNS_TABLE}")
    assert rows == []

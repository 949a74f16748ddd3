"""Failures that are milder than a kill, at random moments: work is done once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from processes import Script
from scaling import scale
from servers import Database

from agents_session_metadata import SessionBusyError, SessionCatalog
from conformance.crashing import recorded_calls
from conformance.failing import RUNS_TABLE, locked, lose_connections
from conformance.faulting import MOMENTS, SimulatedError, Workload, at, nothing

pytestmark = pytest.mark.thorough

KINDS = ["raises", "cancelled", "connections", "lock", "stopped"]

STOPPED = """
import asyncio, sys, time
from pathlib import Path
from agents import set_tracing_disabled
from agents_session_metadata import SessionBusyError, SessionCatalog
from conformance.faulting import Workload, at
set_tracing_disabled(True)
url, directory, moment = sys.argv[1:4]

def stop(kind):
    emit(kind)
    time.sleep(0.5)  # Here it is stopped.

async def main():
    catalog = SessionCatalog.from_url(url, create_tables=True)
    try:
        run = await Workload(Path(directory), at(int(moment), stop)).run(catalog)
        emit(run.final_output)
    except SessionBusyError as error:
        emit("lost")
    finally:
        await catalog.engine.dispose()

asyncio.run(main())
"""


class Failing:
    """A request that meets up to three failures of one kind, and is repeated after each."""

    def __init__(self, database: Database, directory: Path, kind: str, number: int) -> None:
        self.database, self.kind = database, kind
        self.chance = random.Random(number)
        self.engine = database.engine()
        self.catalog = SessionCatalog(self.engine, create_tables=True)
        self.work = Workload(directory, nothing)
        self.holding: set[asyncio.Task[None]] = set()
        self.again: set[str] = set()
        self.failures = 0

    async def run(self) -> None:
        await self.catalog.create_session("chat", metadata={"owner_id": "u1"})
        for _ in range(self.chance.randrange(1, 4)):
            moment = self.chance.randrange(1, MOMENTS + 1)
            if self.kind == "stopped":
                await self.stop_and_repeat(moment)
                break
            task = asyncio.create_task(self.attempt(moment))
            await asyncio.wait({task})
            if not task.cancelled() and task.exception() is None:
                break
            self.failures += 1
            await self.note_calls_without_a_record()
        self.work.act = nothing
        run = await self.work.run(self.catalog)
        assert run.final_output == "Done"
        await asyncio.gather(*self.holding)
        is_cut = self.kind in ("connections", "stopped")
        again = self.again if is_cut else set[str]()
        await self.work.check(self.catalog, again=again, lost=self.failures if is_cut else 0)

    async def note_calls_without_a_record(self) -> None:
        recorded = await recorded_calls(self.catalog)
        self.again |= set(self.work.lines("returned")) - recorded

    async def attempt(self, moment: int) -> None:
        task = asyncio.current_task()
        assert task is not None

        async def act(kind: str) -> None:
            if self.kind == "raises":
                raise SimulatedError(kind)
            if self.kind == "cancelled":
                task.cancel()
                for _ in range(self.chance.randrange(3)):
                    for _ in range(self.chance.randrange(1, 8)):
                        await asyncio.sleep(0)
                    task.cancel()
                await asyncio.sleep(0)
            elif self.kind == "connections":
                await lose_connections(self.engine)
            else:
                is_held = asyncio.Event()
                self.holding.add(asyncio.create_task(self.hold(is_held)))
                await is_held.wait()

        self.work.act = at(moment, act)
        run = await self.work.run(self.catalog)
        assert run.final_output == "Done"

    async def hold(self, is_held: asyncio.Event) -> None:
        """Somebody else holds a lock for a while, which can be longer than the lease."""
        table = self.chance.choice(["agent_sessions", RUNS_TABLE])
        seconds = self.chance.uniform(0.1, 1.5)
        async with locked(self.database, table):
            is_held.set()
            await asyncio.sleep(seconds)

    async def stop_and_repeat(self, moment: int) -> None:
        """Another process works on the request, and is stopped until this one has answered it."""
        given: list[Any] = [self.database.url, self.work._directory, moment]
        child = await asyncio.to_thread(Script, STOPPED, given)
        try:
            await asyncio.to_thread(child.receive)
            os.kill(child._process.pid, signal.SIGSTOP)
            await asyncio.sleep(0.1)
            self.failures += 1
            await self.note_calls_without_a_record()
            try:
                run = await self.work.run(self.catalog, wait=5)
                assert run.final_output == "Done"
            except SessionBusyError:  # It was stopped in a transaction, whose lock it holds.
                expected = {"lost", "Done"}
            else:
                expected = {"lost"}
            os.kill(child._process.pid, signal.SIGCONT)
            assert await asyncio.to_thread(child.receive) in expected
            # What it was about to return when it was stopped is not recorded.
            self.again |= set(self.work.lines("returned")[-2:])
        finally:
            child.kill()


@pytest.mark.scaled
@pytest.mark.parametrize("number", range(scale(5, 100)))
async def test_a_request_that_is_repeated_after_failures_does_its_work_once(
    shared_database, tmp_path, number
) -> None:
    kind = KINDS[number % len(KINDS)]
    if kind == "connections" and shared_database.kind == "sqlite":
        kind = "lock"
    await Failing(shared_database, tmp_path, kind, number).run()


async def test_a_request_that_meets_no_failure_passes_all_moments(
    shared_database, tmp_path
) -> None:
    seen: list[str] = []
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    work = Workload(tmp_path, seen.append)
    assert (await work.run(catalog)).final_output == "Done"
    await work.check(catalog, again=set(), lost=0)
    assert len(seen) == MOMENTS

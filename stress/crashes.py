"""Servers and writers that are killed with -9 in the middle of writes."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine

from servers import MariaDB, MySQL, MySQLServer, PostgreSQL, mysqld

from .audit import audit
from .databases import create_database, mariadbd, version
from .journal import Call, Journal
from .load import Load, prepare
from .results import Result

ROUNDS = 3
SECONDS = 3.0


async def crash_postgresql() -> AsyncIterator[Result]:
    """Kill PostgreSQL."""
    yield await _crash(PostgreSQL(durable=True))


async def crash_mariadb() -> AsyncIterator[Result]:
    """Kill MariaDB."""
    yield await _crash(MariaDB(mariadbd(), durable=True))


async def crash_mysql() -> AsyncIterator[Result]:
    """Kill MySQL."""
    yield await _crash(MySQL(mysqld(), durable=True))


async def _crash(server: PostgreSQL | MySQLServer) -> Result:
    """Kill a server under load and start it again, a few times; the writers go on throughout."""
    try:
        url = await create_database(server.url)
        await prepare(url)
        engine = create_async_engine(url)
        journal = Journal()
        load = Load(journal, [engine])
        work = asyncio.create_task(load.run(120))
        pauses = []
        for _ in range(ROUNDS):
            await asyncio.sleep(SECONDS + random.random())
            before = len(journal.acknowledged)
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.start)
            pauses.append(before)
        await asyncio.sleep(SECONDS)
        load.stop()
        await work
        result = Result(
            "server killed with -9", await version(engine), await audit(engine, journal)
        )
        result.notes.append(f"{ROUNDS} kills")
        result.require(len(journal.acknowledged) > pauses[-1], "the writers go on afterwards")
        result.require(engine.pool.checkedout() == 0, "every connection was given back")
        await engine.dispose()
        return result
    finally:
        server.stop()


_WRITER = """
import asyncio, sys
from sqlalchemy.ext.asyncio import create_async_engine
from stress.journal import Call, Journal
from stress.load import Load

class Telling(Journal):
    def begin(self, call):
        print("begin", *call, flush=True)
        super().begin(call)

    def acknowledge(self, call):
        print("acknowledge", *call, flush=True)
        super().acknowledge(call)

    def fail(self, error, seconds):
        print("fail", type(error).__name__, flush=True)

async def main():
    engine = create_async_engine(sys.argv[1])
    await Load(Telling(), [engine], writers=2, name=sys.argv[2]).run(60)

asyncio.run(main())
"""


async def crash_writers() -> AsyncIterator[Result]:
    """Kill processes that write to one SQLite file."""
    with tempfile.TemporaryDirectory(prefix="killed-") as directory:
        url = URL.create("sqlite+aiosqlite", database=str(Path(directory) / "killed.db"))
        await prepare(url)
        journal = Journal()
        for turn in range(ROUNDS):
            names = [f"p{turn}{letter}" for letter in "abcd"]
            await asyncio.gather(*[_write_and_die(url, name, journal) for name in names])
        engine = create_async_engine(url)
        figures = await audit(engine, journal)
        result = Result("writers killed with -9", await version(engine), figures)
        result.notes.append(f"{4 * ROUNDS} kills")
        await engine.dispose()
        yield result


async def _write_and_die(url: URL, name: str, journal: Journal) -> None:
    child = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", _WRITER, url.render_as_string(), name],
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    begun = asyncio.Event()
    reading = asyncio.create_task(_read(child.stdout, journal, begun))
    try:
        await asyncio.wait_for(begun.wait(), 60)
        await asyncio.sleep(1 + random.random() / 2)
        assert child.returncode is None, "the writer ended by itself"
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
    await reading


async def _read(output: asyncio.StreamReader, journal: Journal, begun: asyncio.Event) -> None:
    async for line in output:
        if not line.endswith(b"\n"):
            return  # killed in the middle of a line
        word, *rest = line.decode().split()
        if word == "fail":
            journal.errors[rest[0]] += 1
            continue
        begun.set()
        call = Call(rest[0], rest[1], int(rest[2]))
        (journal.begin if word == "begin" else journal.acknowledge)(call)

"""Servers and writers that are killed with -9 in the middle of writes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine

from servers import MariaDB, MySQL, MySQLServer, PostgreSQL, mysqld

from .audit import audit
from .clients import client
from .databases import create_database, mariadbd, version
from .journal import Journal
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
    async with client(url, name, journal) as process:
        await asyncio.sleep(1 + random.random() / 2)
        assert process.running, "the writer ended by itself"
        os.kill(process.pid, signal.SIGKILL)

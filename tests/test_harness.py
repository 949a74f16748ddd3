"""The tests' own tools: what would make the other tests pass for the wrong reason."""

from __future__ import annotations

import sqlite3
import time

import pytest
from processes import ProcessError, run_processes
from servers import Database, Servers, empty_database
from sqlalchemy import text


async def test_database_is_empty_and_of_its_kind(database: Database) -> None:
    engine = database.engine()
    assert engine.dialect.name == database.kind
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE agent_sessions (n INTEGER)"))
        await connection.execute(text("INSERT INTO agent_sessions VALUES (1)"))
    async with database.engine().connect() as connection:
        assert (await connection.execute(text("SELECT n FROM agent_sessions"))).scalar() == 1


async def test_leaked_connection_fails(tmp_path, servers: Servers) -> None:
    async def leak() -> None:
        async with empty_database("sqlite-file", tmp_path, servers) as database:
            leaked.append(await database.engine().connect())

    leaked = []
    with pytest.raises(AssertionError, match="1 connections to sqlite-file were not given back"):
        await leak()
    await leaked[0].invalidate()


async def test_processes_share_a_database_and_begin_together(shared_database: Database) -> None:
    async with shared_database.engine().begin() as connection:
        await connection.execute(text("CREATE TABLE seen (n INTEGER)"))
    script = """
import asyncio, sys, time
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

async def main(url, number):
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text("INSERT INTO seen VALUES (:n)"), {"n": number})
    await engine.dispose()

url, number = sys.argv[1], int(sys.argv[2])
time.sleep(number / 10)
prepared = time.time()
start()
started = time.time()
asyncio.run(main(url, number))
emit({"prepared": prepared, "started": started})
emit(number)
"""
    results = await run_processes(script, [(shared_database.url, n) for n in range(4)])
    assert [number for _, number in results] == [0, 1, 2, 3]
    times = [times for times, _ in results]
    assert max(t["prepared"] for t in times) <= min(t["started"] for t in times)
    async with shared_database.engine().connect() as connection:
        seen = (await connection.execute(text("SELECT n FROM seen ORDER BY n"))).scalars()
        assert list(seen) == [0, 1, 2, 3]


async def test_failed_process_is_an_error() -> None:
    script = "import sys; start(); assert sys.argv[1] != '1', 'the second one'"
    with pytest.raises(ProcessError, match="the second one"):
        await run_processes(script, [(0,), (1,)])


@pytest.mark.parametrize(
    "then", ["time.sleep(600)", "[emit(time.sleep(0.1)) for _ in range(6000)]"]
)
async def test_process_that_does_not_end_is_killed(then) -> None:
    begun = time.monotonic()
    with pytest.raises(ProcessError, match=r"no end within 0\.5 s"):
        await run_processes(f"import time; start(); {then}", [(), ()], timeout=0.5)
    assert time.monotonic() - begun < 10


def test_sqlite_is_new_enough() -> None:
    assert sqlite3.sqlite_version_info >= (3, 35)

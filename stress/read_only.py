"""Databases that become read-only under load."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from servers import MariaDB, MySQL, PostgreSQL, mysqld

from .audit import audit
from .databases import administer, create_database, mariadbd, version
from .journal import Journal
from .load import Load, open_catalog, prepare
from .results import Result

SECONDS = 2.0


async def forbid_writing() -> AsyncIterator[Result]:
    """Make databases read-only; read them, and write in vain."""
    yield await _file()
    postgresql = PostgreSQL()
    try:
        url = await create_database(postgresql.url)
        setting = "ALTER SYSTEM SET default_transaction_read_only"
        reload = "SELECT pg_reload_conf()"
        # An administrator's own setting stands above the system's: else it could not go back.
        yield await _server(
            postgresql.url, url, [f"{setting} = on", reload], [f"{setting} = off", reload]
        )
    finally:
        postgresql.stop()
    for server in (MariaDB(mariadbd()), MySQL(mysqld())):
        try:
            url = await create_database(server.url)
            # Whoever has SUPER or READ ONLY ADMIN may write all the same.
            create = "CREATE USER writer@'127.0.0.1'"
            grant = f"GRANT ALL ON {url.database}.* TO writer@'127.0.0.1'"
            await administer(server.url, create, grant)
            user = url.set(username="writer")
            off, on = (f"SET GLOBAL read_only = {value}" for value in (0, 1))
            # Before it is read-only, the server waits for running statements, one of them for a row
            # perhaps, and lets no other begin, not even of the transaction that has the row. Only
            # this timeout ends that.
            await administer(server.url, "SET GLOBAL innodb_lock_wait_timeout = 1")
            yield await _server(server.url, user, [on], [off], slowest=3)
        finally:
            server.stop()


async def _server(
    server: URL, url: URL, forbid: Sequence[str], allow: Sequence[str], *, slowest: float = 1
) -> Result:
    await prepare(url)
    engine = create_async_engine(url)
    journal = Journal()
    load = Load(journal, [engine])
    work = asyncio.create_task(load.run(60))
    await asyncio.sleep(SECONDS)
    await administer(server, *forbid)
    await asyncio.sleep(0.5)
    before = len(journal.acknowledged)
    reads = await _read(url)
    await asyncio.sleep(SECONDS)
    written = len(journal.acknowledged) - before
    await administer(server, *allow)
    await asyncio.sleep(SECONDS)
    load.stop()
    await work
    result = Result("read-only", await version(engine), await audit(engine, journal))
    result.require(len(journal.acknowledged) > before, "the writers go on afterwards")
    await engine.dispose()
    return _judged(result, journal, written, reads, slowest)


async def _file() -> Result:
    with tempfile.TemporaryDirectory(prefix="read-only-") as directory:
        file = str(Path(directory) / "file.db")
        url = URL.create("sqlite+aiosqlite", database=file)
        await prepare(url)
        journal = Journal()
        writing = create_async_engine(url)
        await Load(journal, [writing]).run(1)
        await writing.dispose()
        query = {"mode": "ro", "uri": "true"}
        only_reading = url.set(database=f"file:{file}", query=query)
        engine = create_async_engine(only_reading)
        before = len(journal.acknowledged)
        reads = await _read(only_reading)
        await Load(journal, [engine], name="late").run(SECONDS)
        written = len(journal.acknowledged) - before
        result = Result("read-only", await version(engine), await audit(engine, journal))
        await engine.dispose()
    return _judged(result, journal, written, reads)


async def _read(url: URL) -> int:
    """Read through a new engine that is to create missing tables, of which there are none."""
    engine: AsyncEngine = create_async_engine(url)
    catalog = open_catalog(engine, create_tables=True)
    reads = 0
    async for info in catalog.iter_sessions({"tags": {"$contains": "tags"}}):
        reads += info.metadata == await catalog.get_metadata(info.session_id)
    reads += len(await catalog.session("history 1").get_items())
    try:
        await catalog.create_session("forbidden", metadata={"a": 1})
    except DBAPIError:
        assert await catalog.get_session("forbidden") is None
    else:
        raise AssertionError("a session was created in a read-only database")
    await engine.dispose()
    return reads


def _judged(
    result: Result, journal: Journal, written: int, reads: int, slowest: float = 1
) -> Result:
    result.notes.append(f"{reads} reads; slowest error {journal.slowest:.2f} s")
    result.require(written == 0, f"nothing is written: {written} calls were acknowledged")
    result.require(reads > 0, "reading works")
    result.require(len(journal.unknown) > 0, "writing raises")
    result.require(result.figures.applied == 0, "what raised was not applied")
    result.require(journal.slowest < slowest, "the error comes at once")
    result.require(result.figures.retried < 100, "what can never succeed is not tried again")
    return result

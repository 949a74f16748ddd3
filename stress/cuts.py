"""Connections that are cut in the middle of calls: by the network, and by an administrator."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

from sqlalchemy import URL, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from proxy import by_chance, proxy_to
from servers import MariaDB, PostgreSQL

from .audit import audit
from .databases import create_database, mariadbd, version
from .journal import Journal
from .load import Load, prepare
from .results import Result

SECONDS = 8.0
PROBABILITY = 0.004
"""Of a packet to be lost with its connection; a call has some ten packets."""

_OTHERS = {
    "postgresql": "SELECT pid FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist"
    " WHERE db = database() AND id <> connection_id()",
}
_KILL = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}


async def cut_postgresql() -> AsyncIterator[Result]:
    """Cut connections to PostgreSQL."""
    async for result in _cut(PostgreSQL()):
        yield result


async def cut_mariadb() -> AsyncIterator[Result]:
    """Cut connections to MariaDB."""
    async for result in _cut(MariaDB(mariadbd())):
        yield result


async def _cut(server: PostgreSQL | MariaDB) -> AsyncIterator[Result]:
    try:
        yield await _by_network(await create_database(server.url))
        yield await _by_administrator(await create_database(server.url))
    finally:
        server.stop()


async def _by_network(url: URL) -> Result:
    await prepare(url)
    async with proxy_to(url) as proxy:
        engine = create_async_engine(proxy.url)
        journal = Journal()
        proxy.lost = by_chance(PROBABILITY)
        await Load(journal, [engine]).run(SECONDS)
        proxy.lost = lambda _is_answer: False
        result = await _recovered(engine, journal, "connections cut by the network")
        result.notes.append(f"{proxy.cuts} cuts")
        result.require(proxy.cuts > 0, "connections were cut")
        await engine.dispose()
    return result


async def _by_administrator(url: URL) -> Result:
    await prepare(url)
    engine, administrator = create_async_engine(url), create_async_engine(url)
    journal = Journal()
    killing = asyncio.create_task(_kill(administrator))
    await Load(journal, [engine]).run(SECONDS)
    killing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await killing
    result = await _recovered(engine, journal, "connections killed on the server")
    result.require(len(journal.unknown) > 0, "connections were killed")
    await administrator.dispose()
    await engine.dispose()
    return result


async def _kill(administrator: AsyncEngine) -> None:
    kind = administrator.dialect.name
    while True:
        await asyncio.sleep(random.uniform(0.02, 0.1))
        async with administrator.connect() as connection:
            others = (await connection.scalars(text(_OTHERS[kind]))).all()
            if others:
                with contextlib.suppress(SQLAlchemyError):  # it may have gone meanwhile
                    await connection.execute(text(_KILL[kind].format(random.choice(others))))


async def _recovered(engine: AsyncEngine, journal: Journal, fault: str) -> Result:
    """Go on with the same engine for a moment, then count."""
    errors = journal.errors.total()
    # The pool may still hold connections that are dead; each may fail once.
    await Load(journal, [engine], name="after").run(1)
    late = journal.errors.total() - errors
    async with engine.connect() as connection:
        await connection.execute(text("SELECT 1"))
    result = Result(fault, await version(engine), await audit(engine, journal))
    result.require(late <= engine.pool.size() + 10, f"the pool recovers: {late} errors")
    result.require(engine.pool.checkedout() == 0, "every connection was given back")
    return result

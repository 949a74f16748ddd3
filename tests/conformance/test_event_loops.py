"""An engine belongs to one event loop until it is disposed, except on SQLite files."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from agents_session_metadata import SessionCatalog
from agents_session_metadata.dialects.urls import check_loop
from conformance import raw


async def elsewhere(work):
    """Runs a coroutine function in an event loop of its own."""
    return await asyncio.to_thread(lambda: asyncio.run(work()))


@pytest.fixture
def calls(catalog, session):
    return [
        lambda: session.add_items([raw.message("hi")]),
        session.get_items,
        session.pop_item,
        lambda: session.set_metadata({"a": 1}),
        session.get_metadata,
        catalog.list_sessions,
        lambda: catalog.session("chat").get_items(),
    ]


@pytest.mark.not_on("sqlite-file")
async def test_another_event_loop(engine, calls):
    for call in calls:
        with pytest.raises(RuntimeError, match="engine belongs to another event loop"):
            await elsewhere(call)
        await call()
    await engine.dispose()


@pytest.mark.only_on("postgresql", "mariadb", "mysql")
async def test_a_disposed_engine_belongs_to_the_next_loop(engine, calls):
    await engine.dispose()

    async def work():
        for call in calls:
            await call()
        await engine.dispose()

    await elsewhere(work)
    assert await calls[1]() == []


@pytest.mark.only_on("postgresql", "mariadb", "mysql")
async def test_engines_with_other_options_share_the_loop(engine, session):
    other = SessionCatalog(engine.execution_options(isolation_level="READ COMMITTED"))
    with pytest.raises(RuntimeError, match="another event loop"):
        await elsewhere(other.count_sessions)
    assert await other.count_sessions() == 1


@pytest.mark.not_on("sqlite-memory")
async def test_without_a_pool_any_loop_works(database):
    catalog = SessionCatalog(database.engine(poolclass=NullPool), create_tables=True)
    await catalog.create_session("chat")
    assert await elsewhere(catalog.count_sessions) == 1


@pytest.mark.only_on("sqlite-file")
async def test_any_loop_works_with_a_file(catalog, session):
    # Not by `calls`, which would make this the test in memory.
    for work in (lambda: session.set_metadata({"a": 1}), lambda: session.add_items([{"a": 1}])):
        await elsewhere(work)
        await work()
    assert len(await elsewhere(session.get_items)) == 2


def test_a_loop_that_ended_is_freed():
    engine = create_async_engine("sqlite+aiosqlite://")

    async def use():
        check_loop(engine)
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(use())
    gc.collect()
    assert loop() is None
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(use())

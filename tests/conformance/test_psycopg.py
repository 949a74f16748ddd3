"""PostgreSQL through its other driver: psycopg instead of asyncpg."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from servers import Database, Servers, empty_database
from sqlalchemy import make_url

from agents_session_metadata import SessionCatalog, SessionLifecycle, SessionRuns
from conformance.following import Client, plain, speaking, until


@pytest.fixture
async def database(tmp_path: Path, servers: Servers) -> AsyncIterator[Database]:
    async with empty_database("postgresql", tmp_path, servers) as database:
        database.url = (
            make_url(database.url)
            .set(drivername="postgresql+psycopg")
            .render_as_string(hide_password=False)
        )
        yield database


async def test_percent_signs_in_table_names(database: Database):
    catalog = SessionCatalog(
        database.engine(), create_tables=True, sessions_table="a%b", messages_table="c%%d"
    )
    session = await catalog.create_session("chat", metadata={"owner_id": "u1"})
    await session.add_items([{"role": "user", "content": "hi"}])
    assert await catalog.drop_index("$updated_at")
    assert await catalog.create_index("$updated_at")
    assert len((await catalog.list_sessions({"owner_id": "u1"})).sessions) == 1


async def test_psycopg(database: Database):
    catalog = SessionCatalog(database.engine(), create_tables=True)
    session = await catalog.create_session("chat", metadata={"owner_id": "u1", "nul": "a\0b"})
    await session.add_items([{"role": "user", "content": "hi"}])
    await session.set_metadata({"tags": ["x", "é", 1, None], "size": 10**30})
    await session.edit_metadata(lambda stored: stored.update(turns=1))
    assert await session.get_metadata() == {
        "owner_id": "u1",
        "nul": "a\0b",
        "tags": ["x", "é", 1, None],
        "size": 10**30,
        "turns": 1,
    }
    where = {
        "tags": {"$contains": "é"},
        "size": {"$in": [*range(500), 10**30]},
        "$created_at": {"$gt": "2000-01-01T00:00:00Z"},
        "$session_id": {"$prefix": "ch"},
    }
    assert await session.find_sessions_by_metadata(where) == ["chat"]
    page = await catalog.list_sessions(where, limit=1, count_items=True)
    assert [(info.session_id, info.item_count) for info in page.sessions] == [("chat", 1)]
    assert page.sessions[0].created_at.utcoffset() is not None
    await catalog.fork_session("chat", "fork")
    records = [record async for record in catalog.export_sessions()]
    assert await catalog.import_sessions(records, "replace") == 2
    await SessionLifecycle(session).start("a")
    assert (await catalog.statistics(where)).by_status == {"active": 1}
    assert await catalog.scoped({"owner_id": "u1"}).delete_sessions({"status": "active"}) == 1
    assert await catalog.delete_session("fork")
    assert await catalog.count_sessions() == 0


async def test_runs_are_followed_and_cancelled(database: Database):
    catalog = SessionCatalog(database.engine(), create_tables=True)
    scoped = catalog.scoped({"owner_id": "u1"})
    agent = speaking(["one two three"], ["four"])
    agent.model.gates["three"] = asyncio.Event()
    async with SessionRuns(scoped) as runs:
        await runs.start("chat", agent, "Count")
        client = Client()
        task = asyncio.ensure_future(client.follow(runs, "chat"))
        await until(lambda: client.text == "one two")
        assert await SessionRuns(catalog).cancel("chat") is True
        await task
    items = plain(await catalog.session("chat").get_items())
    assert client.shown == items == [("user", "Count"), ("assistant", "one two")]
    assert client.status == {"type": "status", "status": "cancelled"}

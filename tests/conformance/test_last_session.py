"""The last session of each agent."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from agents.extensions.memory import SQLAlchemySession
from processes import run_processes

from agents_session_metadata import (
    InvalidFilterError,
    SessionCatalog,
    SessionLifecycle,
    normalize_agent,
)
from conformance import raw

SPELLINGS = ["ai-engineer", "@ai-engineer", " @ai-engineer ", "  ai-engineer"]
LATER = "2020-03-03 00:00:00"

# Each agent is one process's alone; the agent `both` writes in all of them.
WRITE_AND_ASK = """
import asyncio, sys
from sqlalchemy.ext.asyncio import create_async_engine
from agents_session_metadata import *

url, agent = sys.argv[1:]

async def main():
    engine = create_async_engine(url)
    catalog = SessionCatalog(engine)
    try:
        for number in range(3):
            await SessionLifecycle(catalog.session(f"{agent} {number}")).start(agent)
        for number in range(25):
            written = f"{agent} {number * 7 % 3}"
            await catalog.session(written).add_items([{"role": "user", "content": str(number)}])
            emit([written, (await catalog.last_session({"agent": f"@{agent}"})).session_id])
            shared = catalog.session(f"both {agent} {number % 2}")
            await shared.set_metadata({"agent": "both"})
            await shared.add_items([{"role": "user", "content": str(number)}])
    finally:
        await engine.dispose()

start()
asyncio.run(main())
"""


async def talk(catalog, agent, session_id, items=1):
    """A session of an agent with some more items in it."""
    session = catalog.session(session_id)
    if "agent" not in await session.get_metadata():
        await SessionLifecycle(session).start(agent)
    await session.add_items([raw.message(f"{session_id} {number}") for number in range(items)])
    return session


async def at_the_same_time(catalog, engine):
    for info in (await catalog.list_sessions()).sessions:
        await raw.set_times(engine, info.session_id, updated_at=LATER)


async def last(catalog, agent):
    info = await catalog.last_session({"agent": agent})
    return info and info.session_id


@pytest.mark.logic
async def test_no_sessions(catalog):
    assert await catalog.last_session() is None
    assert await catalog.last_session({"agent": "@ai-engineer"}) is None
    await talk(catalog, "analyst", "a")
    assert await catalog.last_session({"agent": "@ai-engineer"}) is None
    assert await last(catalog, "analyst") == "a"


@pytest.mark.logic
async def test_each_agent_has_its_own(catalog, engine):
    await talk(catalog, "@ai-engineer", "e1")
    await talk(catalog, "analyst", "a1")
    await talk(catalog, "ai-engineer", "e2")
    await talk(catalog, "@analyst", "a2")
    await raw.set_times(engine, "e1", updated_at="2020-01-03 00:00:00")
    await raw.set_times(engine, "e2", updated_at="2020-01-02 00:00:00")
    for spelling in SPELLINGS:
        assert await last(catalog, spelling) == "e1"
    await talk(catalog, " @ai-engineer ", "e3")
    for spelling in SPELLINGS:
        assert await last(catalog, spelling) == "e3"
        assert normalize_agent(spelling) == "ai-engineer"
    await raw.set_times(engine, "a2", updated_at="2020-01-02 00:00:00")
    assert await last(catalog, "@analyst") == "a1"


@pytest.mark.logic
async def test_the_answer(catalog):
    before = datetime.now(timezone.utc) - timedelta(minutes=2)
    await talk(catalog, "@ai-engineer", "e1", items=3)
    info = await catalog.last_session({"agent": "@ai-engineer"}, count_items=True)
    assert (info.session_id, info.metadata["agent"]) == ("e1", "ai-engineer")
    assert before < info.updated_at < before + timedelta(minutes=4)
    assert info.updated_at.utcoffset() == timedelta(0)
    assert info.item_count == 3
    assert (await catalog.last_session({"agent": "@ai-engineer"})).item_count is None
    await talk(catalog, "@ai-engineer", "e1", items=2)
    assert (await catalog.last_session(count_items=True)).item_count == 5


async def test_the_same_second(catalog, engine):
    for agent in ("ai-engineer", "analyst"):
        for number in (1, 2, 3):
            await talk(catalog, agent, f"{agent} {number}")
    await at_the_same_time(catalog, engine)
    assert await last(catalog, "@ai-engineer") == "ai-engineer 3"
    assert await last(catalog, "@analyst") == "analyst 3"
    # Whoever wrote last, its id and its age do not count.
    for number in (2, 1, 3, 1):
        await talk(catalog, "ai-engineer", f"ai-engineer {number}")
        await talk(catalog, "analyst", f"analyst {4 - number}")
        await at_the_same_time(catalog, engine)
        assert await last(catalog, "@ai-engineer") == f"ai-engineer {number}"
        assert await last(catalog, "@analyst") == f"analyst {4 - number}"
        assert (await catalog.last_session()).session_id == f"analyst {4 - number}"


async def test_time_goes_before_messages(catalog, engine):
    await talk(catalog, "a", "one")
    await talk(catalog, "a", "two")
    await raw.set_times(engine, "one", updated_at="2020-03-03 00:00:01")
    await raw.set_times(engine, "two", updated_at="2020-03-03 00:00:00")
    assert await last(catalog, "a") == "one"


async def test_metadata_is_no_activity(catalog, engine):
    await talk(catalog, "a", "one")
    await talk(catalog, "a", "two")
    await at_the_same_time(catalog, engine)
    await catalog.set_metadata("one", {"title": "new"})
    await SessionLifecycle(catalog.session("one")).enter("planning")
    assert await last(catalog, "a") == "two"


async def test_other_conditions(catalog, mine, everyone):
    await talk(catalog, "a", "one")
    await talk(catalog, "a", "two")
    await SessionLifecycle(catalog.session("two")).finish("completed")
    found = await catalog.last_session({"agent": "@a", "status": "active"})
    assert found.session_id == "one"
    assert await catalog.last_session({"agent": "@a", "status": "failed"}) is None
    assert await mine.last_session({"agent": "@a"}) is None
    assert (await mine.last_session()).metadata["owner_id"] == "mine"
    await talk(mine, "@a", "mine-0")
    assert await last(mine, "@a") == "mine-0"


@pytest.mark.logic
async def test_only_a_plain_string_is_normalised(catalog):
    await talk(catalog, "a", "one")
    spelled = await catalog.create_session("spelled", metadata={"agent": "@a"})
    await spelled.add_items([raw.message("hello")])
    assert await last(catalog, "@a") == "one"
    assert await last(catalog, {"$eq": "@a"}) == "spelled"
    assert await last(catalog, {"$in": ["@a"]}) == "spelled"
    page = await catalog.list_sessions({"agent": "@a"})
    assert [info.session_id for info in page.sessions] == ["spelled"]
    assert await catalog.count_sessions({"agent": "a"}) == 1


@pytest.mark.logic
async def test_deleted_since(catalog, engine):
    for session_id in ("one", "two", "three", "four"):
        await talk(catalog, "a", session_id)
    await at_the_same_time(catalog, engine)
    assert await last(catalog, "@a") == "four"
    await catalog.delete_session("four")
    assert await last(catalog, "@a") == "three"
    await SQLAlchemySession("three", engine=engine).clear_session()
    assert await last(catalog, "@a") == "two"
    for table in ("agent_messages", "agent_sessions"):
        await raw.execute(engine, f"DELETE FROM {table} WHERE session_id = 'two'")
    assert await last(catalog, "@a") == "one"
    assert await catalog.delete_sessions({"agent": "a"}) == 1
    assert await catalog.last_session({"agent": "@a"}) is None
    # The id comes back without the agent.
    await SQLAlchemySession("one", engine=engine).add_items([raw.message("hello")])
    assert await catalog.last_session({"agent": "@a"}) is None


async def test_after_a_restart(shared_database):
    async with SessionCatalog.from_url(shared_database.url, create_tables=True) as catalog:
        for session_id in ("e1", "e2"):
            await talk(catalog, "@ai-engineer", session_id)
            await talk(catalog, "@analyst", f"of the analyst {session_id}")
        await talk(catalog, "@ai-engineer", "e1")
        await at_the_same_time(catalog, catalog.engine)
    async with SessionCatalog.from_url(shared_database.url) as catalog:
        assert await last(catalog, "@ai-engineer") == "e1"
        assert await last(catalog, "ai-engineer") == "e1"
        assert await last(catalog, "@analyst") == "of the analyst e2"


async def test_two_processes_writing(shared_database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.count_sessions()
    agents = ["ai-engineer", "analyst"]
    answers = await run_processes(
        WRITE_AND_ASK, [[shared_database.url, agent] for agent in agents], timeout=120
    )
    for agent, process in zip(agents, answers, strict=True):
        assert len(process) == 25
        assert [found for _, found in process] == [written for written, _ in process]
        assert await last(catalog, f"@{agent}") == process[-1][0]
    query = "SELECT session_id, max(id) FROM agent_messages GROUP BY session_id"
    newest = dict(map(tuple, await raw.execute(engine, query)))
    page = await catalog.list_sessions({"agent": "both"})
    expected = max(page.sessions, key=lambda info: (info.updated_at, newest[info.session_id]))
    assert await last(catalog, "both") == expected.session_id


async def test_the_last_session_of_each_value(catalog, engine):
    long = "z" * 3_000
    values = ["a", "a", "b", 1, 1.0, True, None, long + "1", long + "2", long + "1"]
    for number, value in enumerate(values):
        await catalog.create_session(f"s{number}", metadata={"v": value, "owner_id": "u1"})
        await raw.set_times(engine, f"s{number}", updated_at=f"2020-01-{number + 1:02} 00:00:00")
    for number, value in enumerate(([["a"]], {"a": 1})):
        await catalog.create_session(f"whole{number}", metadata={"v": value})
    await catalog.create_session("without")
    found = await catalog.last_sessions("v", count_items=True)
    assert [info.session_id for info in found] == ["s9", "s8", "s6", "s5", "s4", "s2", "s1"]
    assert found[-1].metadata == {"v": "a", "owner_id": "u1"}
    assert found[-1].item_count == 0
    assert [info.session_id for info in await catalog.last_sessions("v", limit=2)] == ["s9", "s8"]
    where = {"v": {"$in": ["a", "b"]}}
    assert [info.session_id for info in await catalog.last_sessions("v", where)] == ["s2", "s1"]
    assert await catalog.scoped({"owner_id": "u2"}).last_sessions("v") == []
    assert await catalog.last_sessions("nothing") == []
    with pytest.raises(ValueError, match="limit"):
        await catalog.last_sessions("v", limit=0)
    with pytest.raises(InvalidFilterError):
        await catalog.last_sessions("$v")


async def test_the_last_sessions_within_one_second(catalog, engine):
    for number in range(12):
        await talk(catalog, "ab"[number % 2], f"s{number * 7 % 12}")
    await at_the_same_time(catalog, engine)
    await catalog.create_session("silent", metadata={"agent": "a"})
    await raw.set_times(engine, "silent", updated_at=LATER)
    by_agent = {info.metadata["agent"]: info for info in await catalog.last_sessions("agent")}
    assert list(by_agent) == ["b", "a"]
    for agent, info in by_agent.items():
        assert info.session_id == await last(catalog, agent)

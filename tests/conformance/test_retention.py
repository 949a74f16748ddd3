"""Deleting many sessions."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest
from sqlalchemy import event

from agents_session_metadata import InvalidFilterError, SessionCatalog
from conformance import raw
from conformance.killing import run_and_kill, until_alone

TABLES = ["agent_sessions", "agent_messages", "agent_sessions_metadata"]
DAY = timedelta(days=1)

WITHOUT_CONDITION = [
    {},
    {"$and": [{}]},
    {"$or": [{}]},
    {"$or": [{"a": 1}, {}]},
    {"$and": [{"$or": [{"a": 1}, {}]}, {}]},
    {"$not": {"$not": {}}},
    {"$not": {"$and": [{"a": 1}, {"$not": {}}]}},
    {"a": {"$nin": []}},
    {"$session_id": {"$prefix": ""}},
]
"""Filters that hold for every session."""

DELETE_SLOWLY = """
async def work(catalog, arguments):
    emit("begin")
    await catalog.delete_sessions({"old": True}, batch_size=int(arguments[0]), progress=emit)
"""


async def add(catalog, session_id, **metadata):
    session = await catalog.create_session(
        session_id, metadata={"tags": ["x", session_id], **metadata}
    )
    await session.add_items([raw.message(f"{session_id} {number}") for number in range(3)])
    return session


async def set_age(engine, session_id, seconds):
    """Set the time of the last activity, as the clock of the database tells it."""
    then = {
        "sqlite": f"datetime('now', '-{seconds} seconds')",
        "postgresql": f"CURRENT_TIMESTAMP - INTERVAL '{seconds} seconds'",
        "mysql": f"CURRENT_TIMESTAMP - INTERVAL {seconds} SECOND",
    }[engine.dialect.name]
    await raw.execute(
        engine,
        f"UPDATE agent_sessions SET updated_at = {then} WHERE session_id = :session_id",
        session_id=session_id,
    )


async def ids(catalog):
    page = await catalog.list_sessions(order_by="session_id", limit=1_000)
    return [info.session_id for info in page.sessions]


async def assert_whole(catalog, engine):
    """Every session has all that `add` gave it, and nothing is left of any other."""
    page = await catalog.list_sessions(limit=1_000, count_items=True)
    for info in page.sessions:
        assert (info.item_count, info.metadata["tags"]) == (3, ["x", info.session_id])
    found = await catalog.count_sessions({"tags": {"$contains": "x"}})
    assert found == len(page.sessions)
    for table in [name for name in await raw.table_names(engine) if name.startswith("agent_")]:
        query = f"SELECT count(*) FROM {table} WHERE session_id NOT IN "
        left = await raw.execute(engine, query + "(SELECT session_id FROM agent_sessions)")
        assert left[0][0] == 0, table


async def test_a_filter(catalog, engine):
    for number in range(6):
        await add(catalog, f"chat {number}", old=number % 2 == 0)
    assert await catalog.delete_sessions({"old": True}) == 3
    assert await ids(catalog) == ["chat 1", "chat 3", "chat 5"]
    await assert_whole(catalog, engine)
    assert await catalog.delete_sessions({"old": True}) == 0
    assert await catalog.count_sessions({"tags": {"$contains": "chat 0"}}) == 0
    assert await catalog.session("chat 0").get_items() == []
    await catalog.create_session("chat 0")
    assert await catalog.get_metadata("chat 0") == {}


async def test_an_age(catalog, engine):
    for name, seconds in (("new", 3540), ("old", 3660), ("older", 86_400 * 40)):
        await add(catalog, name)
        await set_age(engine, name, seconds)
    await add(catalog, "fresh")
    assert await catalog.delete_sessions(inactive_for=30 * DAY) == 1
    assert await ids(catalog) == ["fresh", "new", "old"]
    assert await catalog.delete_sessions(inactive_for=timedelta(hours=1)) == 1
    assert await ids(catalog) == ["fresh", "new"]
    await assert_whole(catalog, engine)


async def test_a_filter_and_an_age(catalog, engine):
    for name, status, seconds in (
        *[("a", "completed", 86_400 * 31), ("b", "completed", 86_400 * 29)],
        *[("c", "active", 86_400 * 31), ("d", "active", 10)],
    ):
        await add(catalog, name, status=status)
        await set_age(engine, name, seconds)
    where = {"status": "completed"}
    assert await catalog.delete_sessions(where, inactive_for=30 * DAY, dry_run=True) == 1
    assert await catalog.delete_sessions(where, inactive_for=30 * DAY) == 1
    assert await ids(catalog) == ["b", "c", "d"]


async def test_everything_by_age(catalog, engine):
    for number in range(3):
        await add(catalog, f"chat {number}")
        await set_age(engine, f"chat {number}", 1)
    assert await catalog.delete_sessions(inactive_for=timedelta(0)) == 3
    for table in TABLES:
        assert await raw.count_rows(engine, table) == 0


async def test_neither_reading_nor_metadata_is_activity(catalog, engine):
    await add(catalog, "old")
    await set_age(engine, "old", 86_400)
    session = catalog.session("old")
    await session.get_items()
    await session.get_metadata()
    await session.set_metadata({"title": "new"})
    await catalog.list_sessions(count_items=True)
    await catalog.delete_sessions(inactive_for=timedelta(hours=1), dry_run=True)
    assert await catalog.delete_sessions(inactive_for=timedelta(hours=1)) == 1


@pytest.mark.not_on("sqlite")
async def test_the_zone_of_the_database_session(database):
    zone = {"postgresql": "SET TIME ZONE 'Asia/Kolkata'", "mysql": "SET time_zone = '+05:30'"}
    engine = database.engine()

    @event.listens_for(engine.sync_engine, "connect")
    def connect(connection, record):
        cursor = connection.cursor()
        cursor.execute(zone[database.kind])
        cursor.close()
        connection.commit()

    catalog = SessionCatalog(engine, create_tables=True)
    for name, seconds in (("new", 3540), ("old", 3660)):
        await add(catalog, name)
        await set_age(engine, name, seconds)
    assert await catalog.delete_sessions(inactive_for=timedelta(hours=6)) == 0
    assert await catalog.delete_sessions(inactive_for=timedelta(hours=1)) == 1
    assert await ids(catalog) == ["new"]


@pytest.mark.logic
async def test_dry_run(catalog, engine):
    for number in range(5):
        await add(catalog, f"chat {number}", old=number != 3)
    before = [await raw.count_rows(engine, table) for table in TABLES]
    for batch_size in (1, 2, 500):
        arguments = {"dry_run": True, "batch_size": batch_size}
        assert await catalog.delete_sessions({"old": True}, **arguments) == 4
        assert await catalog.delete_sessions({"old": 1}, **arguments) == 0
        assert await catalog.delete_sessions(inactive_for=DAY, **arguments) == 0
    assert [await raw.count_rows(engine, table) for table in TABLES] == before


@pytest.mark.logic
@pytest.mark.parametrize(("batch_size", "told"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])])
async def test_batches_and_progress(catalog, batch_size, told):
    for number in range(6):
        await add(catalog, f"chat {number}", old=number != 3)
    progress = []
    arguments = {"batch_size": batch_size, "progress": progress.append}
    assert await catalog.delete_sessions({"old": True}, **arguments) == 5
    assert progress == told
    assert await ids(catalog) == ["chat 3"]


@pytest.mark.logic
async def test_what_is_refused(catalog, engine):
    await add(catalog, "chat")
    await set_age(engine, "chat", 60)
    for where in (None, *WITHOUT_CONDITION):
        for dry_run in (False, True):
            with pytest.raises(ValueError, match="filter with a condition"):
                await catalog.delete_sessions(where, dry_run=dry_run)
    with pytest.raises(ValueError, match="negative"):
        await catalog.delete_sessions({"a": 1}, inactive_for=timedelta(seconds=-1))
    for age in (30, 30.0, "30", DAY.total_seconds()):
        with pytest.raises(TypeError):
            await catalog.delete_sessions({"a": 1}, inactive_for=age)
    for batch_size in (0, -1, 1_001, "5", 2.0, True, None):
        with pytest.raises(ValueError, match="batch_size"):
            await catalog.delete_sessions(inactive_for=DAY, batch_size=batch_size)
    with pytest.raises(InvalidFilterError):
        await catalog.delete_sessions({"a": {"$nope": 1}}, inactive_for=timedelta(0))
    assert await ids(catalog) == ["chat"]


async def test_the_scope_is_never_left(everyone, engine):
    mine = everyone.scoped({"owner_id": "mine"})
    for name in ("mine-0", "mine-1", "theirs-0", "theirs-1"):
        await set_age(engine, name, 86_400)
    assert await mine.delete_sessions({"owner_id": "theirs"}) == 0
    for where in WITHOUT_CONDITION:
        assert await mine.delete_sessions(where, dry_run=True) == 2
    assert await mine.delete_sessions(inactive_for=timedelta(hours=1), dry_run=True) == 2
    assert await mine.delete_sessions({"title": {"$prefix": "mine 0"}}) == 1
    assert await mine.delete_sessions({"tags": {"$contains": "x"}}) == 1
    assert await ids(everyone) == ["theirs-0", "theirs-1"]
    assert await everyone.count_sessions({"shared": {"$contains": 1}}) == 2
    assert await everyone.session("theirs-0").get_items() == [raw.message("theirs 0")]


async def test_a_session_that_wakes_up_is_spared(shared_database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    for name in "abcdef":
        await add(catalog, name, old=True)
        await set_age(engine, name, 86_400)

    async def wake() -> None:
        async with SessionCatalog.from_url(shared_database.url) as other:
            await other.session("b").add_items([raw.message("again")])
            await other.set_metadata("d", {"old": False})

    awake = []

    @event.listens_for(engine.sync_engine, "checkin")
    def checkin(connection, record):
        # The first batch is selected and not yet deleted. What wakes up needs a loop of its own.
        if not awake:
            awake.append(threading.Thread(target=asyncio.run, args=[wake()]))
            awake[0].start()
            awake[0].join()

    arguments = {"inactive_for": timedelta(hours=1), "batch_size": 6}
    assert await catalog.delete_sessions({"old": True}, **arguments) == 4
    assert await ids(catalog) == ["b", "d"]
    assert len(await catalog.session("b").get_items()) == 4
    assert len(await catalog.session("d").get_items()) == 3
    assert await catalog.get_metadata("d") == {"tags": ["x", "d"], "old": False}


async def test_sessions_that_wake_up_all_the_time(catalog, engine):
    names = [f"chat {number:02}" for number in range(30)]
    for name in names:
        await add(catalog, name)
        await set_age(engine, name, 86_400)

    async def wake() -> None:
        for name in reversed(names[::2]):
            await catalog.session(name).add_items([raw.message("again")])

    deleted, _ = await asyncio.gather(
        catalog.delete_sessions(inactive_for=timedelta(hours=1), batch_size=1), wake()
    )
    spared = 0
    page = await catalog.list_sessions(limit=1_000, count_items=True)
    assert {info.session_id for info in page.sessions} == set(names[::2])
    for info in page.sessions:
        if info.item_count == 4:
            spared += 1
            assert info.metadata == {"tags": ["x", info.session_id]}
        else:  # it was deleted before, and the message begins it anew
            assert (info.item_count, info.metadata) == (1, {})
    assert deleted == len(names) - spared


async def test_two_deleters_at_once(catalog, engine):
    for number in range(30):
        await add(catalog, f"chat {number}", old=True)
    await add(catalog, "living")
    deleted = await asyncio.gather(
        *[catalog.delete_sessions({"old": True}, batch_size=size) for size in (2, 3, 5)]
    )
    assert sum(deleted) == 30
    assert await ids(catalog) == ["living"]
    await assert_whole(catalog, engine)


async def test_a_crash_in_the_middle(shared_database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    for number in range(150):
        await add(catalog, f"chat {number:03}", old=True)
    await add(catalog, "living")
    left = 151
    for batch_size, delay in ((1, 0.0), (2, 0.003), (3, 0.001)):
        await run_and_kill(DELETE_SLOWLY, [shared_database.url, batch_size], values=4, delay=delay)
        await until_alone(engine)
        await assert_whole(catalog, engine)
        before, left = left, len(await ids(catalog))
        assert 1 < left < before
    assert await catalog.delete_sessions({"old": True}, batch_size=7) == left - 1
    assert await ids(catalog) == ["living"]
    await assert_whole(catalog, engine)


async def test_values_of_every_type_do_not_hinder_it(catalog, engine):
    values = [None, True, 0, -0.0, 1e-300, 10**40, "", "ä\x00" * 400, [], [1, 1.0, [2], "x" * 900]]
    for number, value in enumerate([*values, {"a": [1]}, "x" * 511, "x" * 512]):
        await catalog.create_session(f"s{number}", metadata={"n": value, "tags": [value, "t"]})
    everything = {"n": {"$exists": True}, "tags": {"$contains": "t"}}
    assert await catalog.delete_sessions(everything, batch_size=7) == 13
    assert await raw.count_rows(engine, "agent_sessions") == 0

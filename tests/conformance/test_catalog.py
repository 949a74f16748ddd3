"""Sessions made, read, counted and deleted."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import event, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import (
    InvalidMetadataError,
    MetadataLimitError,
    MetadataLimits,
    SessionCatalog,
    SessionExistsError,
    SessionInfo,
    SQLAlchemyMetadataSession,
    ValueCount,
)
from conformance import raw


async def test_create(catalog, engine):
    session = await catalog.create_session("chat", metadata={"owner_id": "u1", "tags": ["x"]})
    assert type(session) is SQLAlchemyMetadataSession
    assert session.session_id == "chat"
    assert session.engine is engine
    assert await session.get_metadata() == {"owner_id": "u1", "tags": ["x"]}
    assert await session.get_items() == []
    await session.add_items([raw.message("a")])
    assert (await catalog.get_session("chat", count_items=True)).item_count == 1


@pytest.mark.logic
async def test_create_without_an_id_or_metadata(catalog):
    first, second = await catalog.create_session(), await catalog.create_session(metadata={})
    assert first.session_id
    assert first.session_id != second.session_id
    assert (await catalog.get_session(first.session_id)).metadata == {}
    assert await catalog.count_sessions() == 2


async def test_create_where_the_id_is_taken(catalog):
    await catalog.create_session("chat", metadata={"a": 1})
    await catalog.session("talk").add_items([raw.message("a")])
    for taken in ("chat", "talk"):
        with pytest.raises(SessionExistsError) as caught:
            await catalog.create_session(taken, metadata={"a": 2, "b": 2})
        assert caught.value.session_id == taken
        assert isinstance(caught.value, ValueError)
    assert await catalog.get_metadata("chat") == {"a": 1}
    assert await catalog.get_metadata("talk") == {}


@pytest.mark.only_on("postgresql")
async def test_create_where_policies_look_up_the_session(catalog, database):
    await catalog.create_session("other", metadata={"tags": ["x"]})
    user = f"app_{make_url(database.url).database}"[:30]
    statements = [
        f"CREATE ROLE {user} LOGIN",
        f"GRANT ALL ON SCHEMA public TO {user}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}",
    ]
    known = "session_id IN (SELECT session_id FROM agent_sessions)"
    for table in ("agent_sessions_metadata", "agent_sessions_metadata_elements"):
        statements += [
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"CREATE POLICY own ON {table} USING ({known})",
        ]
    engine = create_async_engine(make_url(database.url).set(username=user))
    try:
        async with catalog.engine.begin() as connection:
            for statement in statements:
                await connection.exec_driver_sql(statement)
        session = await SessionCatalog(engine).create_session("chat", metadata={"tags": ["x"]})
        assert await session.find_sessions_by_metadata({"tags": {"$contains": "x"}}) == [
            "chat",
            "other",
        ]
    finally:
        await engine.dispose()
        for statement in (f"DROP OWNED BY {user}", f"DROP ROLE {user}"):
            await raw.execute(catalog.engine, statement)


async def test_create_is_all_or_nothing(engine):
    catalog = SessionCatalog(engine, create_tables=True, metadata_limits=MetadataLimits(max_keys=2))
    with pytest.raises(InvalidMetadataError):
        await catalog.create_session("chat", metadata={"a": 1, "b": b""})
    with pytest.raises(MetadataLimitError):
        await catalog.create_session("chat", metadata={"a": 1, "b": 1, "c": 1})
    assert await catalog.get_session("chat") is None
    await catalog.create_session("chat", metadata={"a": 1})


async def test_one_of_many_creators_wins(catalog):
    results = await asyncio.gather(
        *[catalog.create_session("chat", metadata={"by": number}) for number in range(20)],
        return_exceptions=True,
    )
    winners = [number for number, result in enumerate(results) if not isinstance(result, Exception)]
    assert len(winners) == 1
    assert sum(isinstance(result, SessionExistsError) for result in results) == 19
    assert await catalog.get_metadata("chat") == {"by": winners[0]}


@pytest.mark.logic
async def test_session_asks_no_database(catalog, engine):
    await catalog.count_sessions()
    statements = []
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *_: statements.append(_))
    session = catalog.session("chat")
    assert type(session) is SQLAlchemyMetadataSession
    assert statements == []
    assert await catalog.get_session("chat") is None


@pytest.mark.logic
async def test_settings_reach_the_sessions(engine):
    catalog = SessionCatalog(
        engine,
        create_tables=True,
        sessions_table="talks",
        messages_table="entries",
        metadata_table="facts",
        metadata_limits=MetadataLimits(max_keys=1),
        on_clear="keep",
        session_settings={"limit": 1},
        ensure_ascii=False,
    )
    for session in (await catalog.create_session("made"), catalog.session("given")):
        await session.set_metadata({"a": 1})
        with pytest.raises(MetadataLimitError):
            await session.set_metadata({"b": 1})
        await session.add_items([raw.message("a"), raw.message("ä")])
        assert await session.get_items() == [raw.message("ä")]
        stored = await raw.execute(engine, "SELECT message_data FROM entries")
        assert "ä" in str(stored)
        await session.clear_session()
        assert await session.get_metadata() == {"a": 1}
    assert await raw.table_names(engine) == {"talks", "entries", "facts", "facts_elements"}


async def test_get_session(catalog, engine):
    await catalog.create_session("chat", metadata={"a": 1, "b": None})
    info = await catalog.get_session("chat")
    assert type(info) is SessionInfo
    assert (info.session_id, info.metadata, info.item_count) == ("chat", {"a": 1, "b": None}, None)
    assert await catalog.get_session("chat ") is None
    for name in ("session_id", "metadata", "updated_at", "item_count"):
        with pytest.raises(AttributeError):
            setattr(info, name, None)


async def test_get_session_reads_what_is_asked_for(catalog):
    session = await catalog.create_session("chat", metadata={"a": 1, "b": None})
    await session.add_items([raw.message("a")] * 3)
    info = await catalog.get_session("chat", keys=["b", "nope"], count_items=True)
    assert (info.metadata, info.item_count) == ({"b": None}, 3)
    assert (await catalog.get_session("chat", keys=[])).metadata == {}


async def test_times_are_aware_and_utc(catalog):
    before = datetime.now(tz=timezone.utc) - timedelta(minutes=2)
    session = await catalog.create_session("chat")
    await session.add_items([raw.message("a")])
    after = datetime.now(tz=timezone.utc) + timedelta(minutes=2)
    for info in (
        await catalog.get_session("chat"),
        (await catalog.list_sessions()).sessions[0],
        await catalog.last_session({}),
        *[info async for info in catalog.iter_sessions()],
    ):
        for moment in (info.created_at, info.updated_at):
            assert moment.utcoffset() == timedelta(0)
            assert before < moment < after


@pytest.mark.not_on("sqlite")
@pytest.mark.parametrize("zone", [("Asia/Kathmandu", "+05:45"), ("America/St_Johns", "-03:30")])
async def test_times_in_another_zone_of_the_server(database, zone):
    engine = database.engine()
    set_zone = {"postgresql": f"SET TIME ZONE '{zone[0]}'", "mysql": f"SET time_zone = '{zone[1]}'"}

    @event.listens_for(engine.sync_engine, "connect")
    def connect(connection, _):
        cursor = connection.cursor()
        cursor.execute(set_zone[database.kind])
        cursor.close()
        connection.commit()

    catalog = SessionCatalog(engine, create_tables=True)
    now = datetime.now(tz=timezone.utc)
    await (await catalog.create_session("chat")).add_items([raw.message("a")])
    info = await catalog.get_session("chat")
    for moment in (info.created_at, info.updated_at):
        assert abs(moment - now) < timedelta(minutes=2)
    hour = timedelta(hours=1)
    for name in ("$created_at", "$updated_at"):
        assert await catalog.count_sessions({name: {"$gt": now - hour, "$lt": now + hour}}) == 1
        assert await catalog.count_sessions({name: {"$lt": (now - hour).isoformat()}}) == 0
        assert await catalog.count_sessions({name: {"$gt": (now + hour).isoformat()}}) == 0
    exact = {"$gte": info.updated_at, "$lte": info.updated_at}
    assert await catalog.count_sessions({"$updated_at": exact}) == 1
    assert await catalog.delete_sessions(None, inactive_for=hour) == 0


async def test_metadata_by_id(catalog):
    await catalog.set_metadata("chat", {"a": 1, "tags": ["x"]})
    assert await catalog.get_metadata("chat") == {"a": 1, "tags": ["x"]}
    assert await catalog.get_metadata("chat", ["a", "nope"]) == {"a": 1, "nope": None}
    assert await catalog.get_metadata("chat", keys=[]) == {}
    edited = await catalog.edit_metadata("chat", lambda metadata: metadata.update(a=2))
    assert edited == {"a": 2, "tags": ["x"]}
    assert await catalog.delete_metadata("chat", ["tags", "nope"]) == 1
    assert await catalog.delete_metadata("chat") == 1
    assert await catalog.get_metadata("chat") == {}
    assert await catalog.get_session("chat") is not None
    assert await catalog.get_metadata("nobody") == {}
    assert await catalog.get_metadata("nobody", ["a"]) == {"a": None}
    assert await catalog.delete_metadata("nobody") == 0
    assert await catalog.get_session("nobody") is None
    with pytest.raises(TypeError):
        await catalog.get_metadata("chat", "ab")
    with pytest.raises(TypeError):
        await catalog.delete_metadata("chat", "ab")


async def test_delete_session(catalog, engine):
    for session_id in ("chat", "talk"):
        session = await catalog.create_session(session_id, metadata={"a": ["x"]})
        await session.add_items([raw.message("a")] * 3)
    assert await catalog.delete_session("chat") is True
    assert await catalog.delete_session("chat") is False
    assert await catalog.delete_session("nobody") is False
    assert await raw.count_rows(engine, "agent_messages", "chat") == 0
    assert await catalog.get_session("chat") is None
    assert (await catalog.get_session("talk", count_items=True)).item_count == 3
    assert await catalog.get_metadata("talk") == {"a": ["x"]}


async def test_count_sessions(catalog):
    for number in range(5):
        await catalog.create_session(metadata={"number": number})
    await catalog.session("bare").add_items([raw.message("a")])
    assert await catalog.count_sessions() == 6
    assert await catalog.count_sessions(None) == 6
    assert await catalog.count_sessions({"number": {"$gte": 2}}) == 3
    assert await catalog.count_sessions({"number": 99}) == 0


async def test_count_values(catalog):
    for tags in (
        ["b", "a", "a", "a"],
        ["b"],
        "b",
        ["c", "B", ["a"], {"a": 1}],
        [],
        {"b": 1},
        ["a"],
    ):
        await catalog.create_session(metadata={"tags": tags, "other": "b"})
    await catalog.create_session()
    counts = await catalog.count_values("tags")
    assert counts[0] == ValueCount(value="b", count=3)
    assert counts[1] == ValueCount(value="a", count=2)
    assert sorted((one.value, one.count) for one in counts[2:]) == [("B", 1), ("c", 1)]
    assert await catalog.count_values("tags", limit=1) == counts[:1]
    where = {"tags": {"$contains": "a"}}
    assert [(one.value, one.count) for one in await catalog.count_values("tags", where)] == [
        ("a", 2),
        ("b", 1),
    ]
    assert await catalog.count_values("nope") == []


async def test_count_values_by_value_and_type(catalog):
    for value in (1, 1.0, [1, 1.0, 2], "1", True, False, 2, 10, 2.5, 10**400):
        await catalog.create_session(metadata={"n": value})
    counts = {(type(one.value), one.value): one.count for one in await catalog.count_values("n")}
    assert counts.pop((bool, True)) == 1
    assert counts.pop((bool, False)) == 1
    assert counts.pop((str, "1")) == 1
    numbers = {value: count for (_, value), count in counts.items()}
    assert numbers == {1: 3, 2: 2, 10: 1, 2.5: 1, 10**400: 1}
    assert len(counts) == len(numbers)


async def test_count_values_orders_equal_counts_by_value(catalog):
    numbers = [10, 9, -1, 2.5, 0, 10**30, -(10**30)]
    texts = ["b", "a", "B", "é", "", "a ", "\uffff", "\U00010000", "y" * 700, "y" * 700 + "z"]
    # Beyond what MariaDB and MySQL sort by, in the opposite order.
    texts += ["z" * 5000 + end for end in "cbda"]
    for number in numbers:
        await catalog.create_session(metadata={"n": number})
    for text in texts:
        await catalog.create_session(metadata={"t": [text]})
    assert [one.value for one in await catalog.count_values("n")] == sorted(numbers)
    assert [one.value for one in await catalog.count_values("t")] == sorted(texts)
    assert [one.value for one in await catalog.count_values("t", limit=3)] == sorted(texts)[:3]
    limit = len(texts) - 3
    assert [one.value for one in await catalog.count_values("t", limit=limit)] == sorted(texts)[
        :limit
    ]


async def test_last_session(catalog, engine):
    for number, day in enumerate((3, 9, 5)):
        await catalog.create_session(f"chat-{number}", metadata={"agent": f"agent-{number % 2}"})
        await raw.set_times(engine, f"chat-{number}", updated_at=f"2020-02-0{day} 00:00:00")
    assert (await catalog.last_session({})).session_id == "chat-1"
    info = await catalog.last_session({"agent": "agent-0"}, count_items=True)
    assert (info.session_id, info.metadata, info.item_count) == ("chat-2", {"agent": "agent-0"}, 0)
    assert await catalog.last_session({"agent": "agent-9"}) is None
    await catalog.delete_session("chat-2")
    assert (await catalog.last_session({"agent": "agent-0"})).session_id == "chat-0"
    await catalog.session("chat-0").add_items([raw.message("a")])
    assert (await catalog.last_session({})).session_id == "chat-0"


async def test_last_session_within_one_second(catalog, engine):
    ids = ["m", "z", "a", "k"]
    for session_id in ids:
        await catalog.create_session(session_id, metadata={"agent": "x"})
    for writer in ("z", "a", "m", "a", "k", "z", "m"):
        await catalog.session(writer).add_items([raw.message("a"), raw.message("b")])
        for session_id in ids:
            await raw.set_times(engine, session_id)
        assert (await catalog.last_session({"agent": "x"})).session_id == writer
    # The newest message counts, not the number of messages, and one that was popped does not.
    await catalog.session("m").pop_item()
    await catalog.session("m").pop_item()
    assert (await catalog.last_session({"agent": "x"})).session_id == "z"
    await raw.set_times(engine, "k", updated_at="2020-02-02 00:00:01")
    assert (await catalog.last_session({"agent": "x"})).session_id == "k"


@pytest.mark.logic
async def test_last_session_takes_an_agent_as_people_write_it(catalog):
    await catalog.create_session("chat", metadata={"agent": "ai-engineer"})
    await catalog.create_session("other", metadata={"agent": "@ai-engineer"})
    for name in ("ai-engineer", "@ai-engineer", " @ai-engineer "):
        assert (await catalog.last_session({"agent": name})).session_id == "chat"


async def test_get_or_create(catalog, engine):
    values = {"owner_id": "u1", "topic": "billing"}
    session, created = await catalog.get_or_create_session(values, metadata={"title": "New"})
    assert created is True
    assert await session.get_metadata() == {**values, "title": "New"}
    again, created = await catalog.get_or_create_session(values, metadata={"title": "Other"})
    assert (again.session_id, created) == (session.session_id, False)
    assert await again.get_metadata() == {**values, "title": "New"}
    await catalog.create_session("newer", metadata=values)
    await raw.set_times(engine, session.session_id)
    found, created = await catalog.get_or_create_session(values)
    assert (found.session_id, created) == ("newer", False)
    other, created = await catalog.get_or_create_session({"owner_id": "u2", "topic": "billing"})
    assert created is True
    assert other.session_id not in {session.session_id, "newer"}
    with pytest.raises(ValueError, match="value"):
        await catalog.get_or_create_session({})


async def test_get_or_create_gives_the_last_one_of_a_clock_tick(catalog):
    for number in range(3):
        await catalog.create_session(f"s{number}", metadata={"topic": "billing"})
    await catalog.session("s1").add_items([raw.message("hello")])
    session, created = await catalog.get_or_create_session({"topic": "billing"})
    assert (session.session_id, created) == ("s1", False)


@pytest.mark.logic
async def test_get_or_create_derives_the_id_from_the_values(catalog):
    session, _ = await catalog.get_or_create_session({"a": 1, "b": "x"})
    await catalog.delete_session(session.session_id)
    again, created = await catalog.get_or_create_session({"b": "x", "a": 1})
    assert (again.session_id, created) == (session.session_id, True)


@pytest.mark.logic
async def test_get_or_create_after_the_values_moved_on(catalog):
    # The derived id is taken by a session that has other values by now.
    first, _ = await catalog.get_or_create_session({"topic": "a"})
    await first.set_metadata({"topic": "b"})
    second, created = await catalog.get_or_create_session({"topic": "a"})
    assert created is True
    assert second.session_id != first.session_id
    assert await first.get_metadata() == {"topic": "b"}
    assert await second.get_metadata() == {"topic": "a"}
    third, created = await catalog.get_or_create_session({"topic": "a"})
    assert (third.session_id, created) == (second.session_id, False)


async def test_fifty_callers_create_one(catalog):
    results = await asyncio.gather(
        *[catalog.get_or_create_session({"owner_id": "u1", "tags": ["x"]}) for _ in range(50)]
    )
    assert sum(created for _, created in results) == 1
    assert len({session.session_id for session, _ in results}) == 1
    assert await catalog.count_sessions() == 1


async def test_from_url(tmp_path):
    url = f"sqlite+aiosqlite:///{tmp_path}/chat.db"
    async with SessionCatalog.from_url(url, create_tables=True, engine_kwargs={}) as catalog:
        await catalog.create_session("chat", metadata={"a": 1})
    async with SessionCatalog.from_url(url) as catalog:
        assert await catalog.get_metadata("chat") == {"a": 1}
        async with catalog.engine.connect() as connection:
            cache = await connection.exec_driver_sql("PRAGMA cache_size")
            assert cache.scalar_one() == -16_384


@pytest.mark.logic
async def test_a_catalog_leaves_the_engine_of_others_open(engine):
    async with SessionCatalog(engine, create_tables=True) as catalog:
        await catalog.create_session("chat")
    assert await catalog.count_sessions() == 1


async def test_a_session_whose_id_is_too_long_for_metadata(engine):
    # On MySQL, only a sessions table that somebody made by hand holds such an id.
    await raw.create_sdk_tables(engine, length=512)
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("chat", metadata={"a": 1, "tags": ["x"]})
    for long in ("y" * 256, "z" * 512):
        insert = "INSERT INTO agent_sessions (session_id) VALUES (:long)"
        await raw.execute(engine, insert, long=long)
        assert await catalog.get_metadata(long) == {}
        with pytest.raises(ValueError, match="between 1 and 255"):
            await catalog.set_metadata(long, {"a": 1})
        listed = await catalog.list_sessions({"a": {"$exists": False}}, order_by="session_id")
        assert [info.session_id for info in listed.sessions] == [long]
        await raw.execute(engine, "DELETE FROM agent_sessions WHERE session_id = :long", long=long)
    assert await catalog.get_metadata("chat") == {"a": 1, "tags": ["x"]}
    await raw.execute(engine, "DELETE FROM agent_sessions")
    assert await raw.metadata_rows(engine) == 0

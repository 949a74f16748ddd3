"""Contract, section 10: the index on `updated_at`, and what version 0.2.0 has left."""

from __future__ import annotations

from datetime import timedelta

import pytest
from agents.extensions.memory import SQLAlchemySession
from sqlalchemy import event

from agents_session_metadata import ScopeError, SessionCatalog, TablesMissingError
from agents_session_metadata.types import IndexInfo
from conformance import key_indexes, raw

BY_TIME = IndexInfo("$updated_at", complete=True)
OLD_TABLES = {"agent_sessions_metadata_activity", "agent_sessions_metadata_indexes"}


@pytest.fixture
async def catalog(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    for number in range(3):
        metadata = {"owner_id": f"u{number % 2}", "tags": ["x", f"t{number}"], "n": number}
        await catalog.create_session(f"s{number}", metadata=metadata)
        await raw.set_times(engine, f"s{number}", updated_at=f"2020-01-0{number + 1} 00:00:00")
    return catalog


async def test_the_index_is_created_with_the_tables(catalog):
    assert await catalog.list_indexes() == [BY_TIME]
    assert await catalog.list_indexes(count=True) == [IndexInfo("$updated_at", True, 3)]
    assert await catalog.create_index("$updated_at") is False
    assert await catalog.drop_index("$updated_at") is True
    assert await catalog.drop_index("$updated_at") is False
    assert await catalog.list_indexes() == []
    done = []
    assert await catalog.create_index("$updated_at", progress=done.append) is True
    assert done == [3]
    assert await catalog.list_indexes() == [BY_TIME]


async def test_beside_a_table_of_the_sdk_it_is_created_on_request(engine):
    await raw.create_sdk_tables(engine)
    catalog = SessionCatalog(engine, create_tables=True)
    for name in ("a", "B", "é", "z", "Ä"):
        await catalog.create_session(name, metadata={"owner_id": "u0"})
        await raw.set_times(engine, name)
    before = await catalog.list_sessions({"owner_id": "u0"})
    assert await catalog.list_indexes() == []
    assert await catalog.create_index("$updated_at") is True
    assert await catalog.list_indexes() == [BY_TIME]
    assert await catalog.list_sessions({"owner_id": "u0"}) == before


@pytest.mark.logic
@pytest.mark.parametrize("key", ["owner_id", "$text2", "", "k" * 300])
async def test_other_keys_need_no_index(catalog, key):
    with pytest.raises(ValueError, match="need no index"):
        await catalog.create_index(key)
    assert await catalog.drop_index(key) is False


@pytest.mark.logic
async def test_indexes_are_not_of_a_scope(catalog):
    scoped = catalog.scoped({"owner_id": "u1"})
    calls = scoped.create_index("$updated_at"), scoped.drop_index("a"), scoped.list_indexes()
    for call in calls:
        with pytest.raises(ScopeError):
            await call


@pytest.mark.logic
async def test_an_empty_database_has_no_indexes(engine):
    catalog = SessionCatalog(engine)
    assert await catalog.list_indexes(count=True) == []
    with pytest.raises(TablesMissingError):
        await catalog.create_index("$updated_at")
    with pytest.raises(TablesMissingError):
        await catalog.count_sessions()


@pytest.mark.not_on("mariadb", "mysql")  # Its column of ids ends at 255 characters.
async def test_ids_of_any_length_have_room_in_the_index(catalog, engine):
    for name in ("x" * 300, "é" * 5_000):
        await SQLAlchemySession(name, engine=engine).add_items([raw.message("hello")])
        newest = await catalog.list_sessions(limit=1)
        assert [info.session_id for info in newest.sessions] == [name]
    await raw.execute(engine, "DELETE FROM agent_sessions WHERE length(session_id) > 200")
    assert len((await catalog.list_sessions()).sessions) == 3


async def test_retention_deletes_the_longest_inactive_first(catalog, engine):
    for number in range(3, 9):
        await catalog.create_session(f"s{number}", metadata={"owner_id": f"u{number % 2}"})
        day = 13 - number
        await raw.set_times(engine, f"s{number}", updated_at=f"2020-01-{day:02} 00:00:00")
    await catalog.create_session("new", metadata={"owner_id": "u0"})
    ages = {"inactive_for": timedelta(days=1), "batch_size": 2}
    assert await catalog.scoped({"owner_id": "u1"}).delete_sessions(**ages) == 4
    reads, done = [], []

    def before(_connection, _cursor, statement, *_):
        if statement.startswith("SELECT") and "LIMIT" in statement:
            reads.append(statement)

    event.listen(engine.sync_engine, "before_cursor_execute", before)
    assert await catalog.delete_sessions(progress=done.append, **ages) == 5
    assert done == [2, 4, 5]
    assert sum("position" in each for each in reads) >= 3
    assert [info.session_id for info in (await catalog.list_sessions()).sessions] == ["new"]


# ---- what version 0.2.0 has left ----


async def test_a_database_with_key_indexes_of_0_2_goes_on(catalog, engine):
    before = await catalog.list_sessions({"owner_id": "u0"})
    await key_indexes.create(engine, "owner_id", "tags")
    assert await catalog.list_sessions({"owner_id": "u0"}) == before
    session = catalog.session("s0")
    await session.set_metadata({"tags": ["y", "z"], "owner_id": "u1"})
    await session.add_items([raw.message("hello")])
    await SQLAlchemySession("s1", engine=engine).add_items([raw.message("hello")])
    await SQLAlchemySession("s2", engine=engine).clear_session()
    # They are still filled, for a process of that version, and not read.
    assert await raw.count_rows(engine, "agent_sessions_metadata_activity", "s0") == 4
    await raw.execute(engine, "DELETE FROM agent_sessions_metadata_activity")
    assert len((await catalog.list_sessions({"owner_id": "u1"})).sessions) == 2
    assert await catalog.count_sessions({"tags": {"$contains": "z"}}) == 1


async def test_drop_index_removes_what_0_2_made(catalog, engine):
    healthy = await key_indexes.triggers(engine)
    await key_indexes.create(engine, "owner_id", "tags")
    assert len(await key_indexes.triggers(engine)) == len(healthy) + 7
    old = [IndexInfo(key, complete=False, obsolete=True) for key in ("owner_id", "tags")]
    assert await catalog.list_indexes() == [BY_TIME, *old]
    assert await catalog.drop_index("title") is False
    assert await catalog.drop_index("tags") is True
    assert await catalog.list_indexes() == [BY_TIME, old[0]]
    await catalog.session("s0").set_metadata({"owner_id": "u1", "tags": ["a"]})
    assert await raw.table_names(engine) >= OLD_TABLES
    # With the last one, all triggers and tables.
    assert await catalog.drop_index("owner_id") is True
    assert await catalog.drop_index("owner_id") is False
    assert await catalog.list_indexes() == [BY_TIME]
    assert not OLD_TABLES & await raw.table_names(engine)
    assert await key_indexes.triggers(engine) == healthy
    if engine.dialect.name == "postgresql":
        query = "SELECT proname FROM pg_proc WHERE proname LIKE 'agent_sessions%'"
        assert await raw.execute(engine, query) == []
    await catalog.session("s0").set_metadata({"owner_id": "u2", "tags": ["b"]})
    await SQLAlchemySession("s0", engine=engine).add_items([raw.message("hello")])
    assert (await catalog.last_session({"owner_id": "u2"})).session_id == "s0"

"""Metadata lives exactly as long as its session."""

from __future__ import annotations

import pytest
from agents.extensions.memory import EncryptedSession, SQLAlchemySession

from agents_session_metadata import SQLAlchemyMetadataSession
from conformance import raw

NASTY = {"a": 1, "tags": ["work", "x" * 700], "long": "y" * 60_000, "object": {"b": [1]}}


@pytest.fixture
async def session(engine):
    """A session with history and metadata, and a neighbour that nothing may touch."""
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    await session.set_metadata(NASTY)
    await session.add_items([raw.message("one"), raw.message("two")])
    neighbour = SQLAlchemyMetadataSession("chat ", engine=engine)
    await neighbour.set_metadata(NASTY)
    yield session
    assert await neighbour.get_metadata() == NASTY


async def is_gone(session: SQLAlchemyMetadataSession) -> bool:
    """Whether nothing of the session is left, nor comes back when its id is used again."""
    engine = session.engine
    orphans = 0
    for table in await raw.table_names(engine):
        if table.startswith("agent_sessions"):
            orphans += await raw.count_rows(engine, table, session.session_id)
    assert orphans == 0
    again = SQLAlchemyMetadataSession(session.session_id, engine=engine)
    assert await again.get_metadata() == {}
    await again.add_items([raw.message("new")])
    assert await again.get_metadata() == {}
    assert await again.find_sessions_by_metadata({"a": 1}) == ["chat "]
    assert await again.find_sessions_by_metadata({"tags": {"$contains": "work"}}) == ["chat "]
    await again.set_metadata({"b": 1})
    return await again.get_metadata() == {"b": 1}


async def test_clearing_ends_the_session(session):
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.get_metadata() == {}
    assert await is_gone(session)


@pytest.mark.logic
async def test_clearing_through_a_wrapper(session):
    await EncryptedSession("chat", session, encryption_key="a key of the tests").clear_session()
    assert await is_gone(session)


@pytest.mark.logic
async def test_clearing_what_is_not_there(session, engine):
    for _ in range(2):
        await SQLAlchemyMetadataSession("nobody", engine=engine).clear_session()
    assert await session.get_metadata() == NASTY


# The SDK cannot create its tables on MariaDB.
creating = pytest.param(True, marks=pytest.mark.not_on("mariadb", "mysql"))


@pytest.mark.parametrize("create_tables", [False, creating])
async def test_clearing_by_the_plain_sdk(session, database, create_tables):
    # Its engine never saw this package, but in memory, where there is only one.
    plain = SQLAlchemySession("chat", engine=database.engine(), create_tables=create_tables)
    await plain.clear_session()
    assert await is_gone(session)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM agent_sessions WHERE session_id = 'chat'",
        "DELETE FROM agent_sessions WHERE session_id LIKE 'c%t'",
    ],
)
async def test_deleting_by_hand(session, database, statement):
    await raw.execute(database.engine(), statement)
    assert await is_gone(session)


async def test_deleting_all_sessions_by_hand(engine):
    for number in range(3):
        session = SQLAlchemyMetadataSession(f"chat-{number}", engine=engine, create_tables=True)
        await session.set_metadata(NASTY)
    assert await raw.metadata_rows(engine) > 0
    await raw.execute(engine, "DELETE FROM agent_sessions")
    assert await raw.metadata_rows(engine) == 0


async def test_deleting_by_the_catalog(session):
    assert await session.catalog.delete_session("chat") is True
    assert await is_gone(session)


async def test_deleting_keys_leaves_no_rows(session, engine):
    await SQLAlchemyMetadataSession("chat ", engine=engine).clear_session()
    assert await session.delete_metadata() == len(NASTY)
    assert await raw.metadata_rows(engine) == 0
    await session.set_metadata({"a": ["x", "y"]})
    await session.set_metadata({"a": 1})
    with_a_scalar = await raw.metadata_rows(engine)
    await session.set_metadata({"a": 2})
    assert await raw.metadata_rows(engine) == with_a_scalar
    await SQLAlchemyMetadataSession("chat ", engine=engine, create_tables=True).set_metadata(NASTY)


@pytest.mark.logic
async def test_clearing_can_keep_the_session(session, engine):
    await raw.set_times(engine, "chat")
    created_at, _ = await raw.times(engine, "chat")
    keeping = SQLAlchemyMetadataSession("chat", engine=engine, on_clear="keep")
    await keeping.clear_session()
    assert await keeping.get_items() == []
    assert await raw.count_rows(engine, "agent_messages", "chat") == 0
    assert await session.get_metadata() == NASTY
    assert (await raw.times(engine, "chat"))[0] == created_at
    await keeping.add_items([raw.message("three")])
    assert await session.get_items() == [raw.message("three")]
    assert (await raw.times(engine, "chat"))[0] == created_at


@pytest.mark.logic
async def test_keeping_makes_no_row_of_nothing(session, engine):
    await SQLAlchemyMetadataSession("nobody", engine=engine, on_clear="keep").clear_session()
    assert await raw.count_rows(engine, "agent_sessions", "nobody") == 0


@pytest.mark.logic
async def test_popping_the_last_item_keeps_the_session(session):
    assert await session.pop_item() == raw.message("two")
    assert await session.pop_item() == raw.message("one")
    assert await session.pop_item() is None
    assert await session.get_metadata() == NASTY


@pytest.mark.not_on("sqlite-memory")
async def test_metadata_survives_a_restart(session, database):
    await session.engine.dispose()
    again = SQLAlchemyMetadataSession("chat", engine=database.engine(), create_tables=True)
    assert await again.get_metadata() == NASTY
    assert await again.get_items() == [raw.message("one"), raw.message("two")]


@pytest.mark.logic
async def test_metadata_keeps_no_history_and_history_no_metadata(session, engine):
    await session.delete_metadata()
    assert await session.get_items() == [raw.message("one"), raw.message("two")]
    assert await raw.count_rows(engine, "agent_sessions", "chat") == 1

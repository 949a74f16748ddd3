"""What an earlier session left is deleted when its id is used again, and not before."""

from __future__ import annotations

import pytest
from servers import Database
from sqlalchemy import text

from agents_session_metadata import SessionCatalog
from conformance import raw
from conformance.triggers import drop_triggers

LEFT = {"owner_id": "u1", "tags": ["left"], "old": 1}
NEW = {"title": "new", "tags": ["new"]}


async def leave(engine, *session_ids: str) -> list[str]:
    """Delete sessions so that their metadata stays; gives the triggers that were dropped."""
    triggers = await drop_triggers(engine)
    async with engine.begin() as connection:
        if engine.dialect.name in ("mysql", "mariadb"):
            await connection.execute(text("SET foreign_key_checks = 0"))
        elif engine.dialect.name != "sqlite":
            await connection.execute(text("SET LOCAL session_replication_role = replica"))
        for session_id in session_ids:
            for table in ("agent_messages", "agent_sessions"):
                await connection.execute(
                    text(f"DELETE FROM {table} WHERE session_id = :id"), {"id": session_id}
                )
        if engine.dialect.name in ("mysql", "mariadb"):
            await connection.execute(text("SET foreign_key_checks = 1"))
    return triggers


async def create(catalog: SessionCatalog, session_id: str) -> None:
    await catalog.create_session(session_id, metadata=NEW)


async def set_metadata(catalog: SessionCatalog, session_id: str) -> None:
    await catalog.set_metadata(session_id, NEW)


async def edit(catalog: SessionCatalog, session_id: str) -> None:
    await catalog.edit_metadata(session_id, lambda metadata: metadata.update(NEW))


async def fork(catalog: SessionCatalog, session_id: str) -> None:
    await catalog.create_session("original", metadata=NEW)
    await catalog.fork_session("original", session_id)


async def import_one(catalog: SessionCatalog, session_id: str) -> None:
    await catalog.create_session("original", metadata=NEW)
    records = [record async for record in catalog.export_sessions({"$session_id": "original"})]
    records[0]["session_id"] = session_id
    await catalog.import_sessions(records)


async def add_items(catalog: SessionCatalog, session_id: str) -> None:
    await catalog.session(session_id).add_items([raw.message("hello")])


WRITERS = [create, set_metadata, edit, fork, import_one, add_items]


@pytest.mark.parametrize(
    "again",
    [create, *(pytest.param(each, marks=pytest.mark.logic) for each in WRITERS if each != create)],
)
async def test_a_new_session_has_nothing_of_an_earlier_one(database: Database, again):
    engine = database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("gone", metadata=LEFT)
    await catalog.create_session("other", metadata={**LEFT, "tags": ["other"]})
    triggers = await leave(engine, "gone", "other")
    await catalog.delete_sessions({"nothing": 1})
    await again(catalog, "gone")
    for trigger in triggers:
        await raw.execute(engine, trigger)
    written = {add_items: {}, fork: {**NEW, "forked_from": "original"}}.get(again, NEW)
    assert (await catalog.get_metadata("gone")) == written
    elements = await raw.count_rows(engine, "agent_sessions_metadata_elements", "gone")
    assert elements == (0 if again is add_items else 1)
    assert await catalog.count_sessions({"tags": {"$contains": "left"}}) == 0
    assert await raw.count_rows(engine, "agent_sessions_metadata", "other") == 3


async def test_history_is_written_without_our_tables(database: Database):
    engine = database.engine()
    await raw.create_sdk_tables(engine)
    session = SessionCatalog(engine).session("chat")
    await session.add_items([raw.message("hello")])
    assert len(await session.get_items()) == 1
    assert await raw.count_rows(engine, "agent_sessions", "chat") == 1

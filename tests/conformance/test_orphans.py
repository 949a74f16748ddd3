"""What was left while SQLite's triggers were away is gone when they are there again."""

from __future__ import annotations

from servers import Database
from sqlalchemy import delete

from agents_session_metadata import SessionCatalog, session_tables
from agents_session_metadata.maintenance import retention
from conformance import raw
from conformance.triggers import drop_triggers


async def test_elements_of_no_list_match_nothing(database: Database):
    engine = database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("a", metadata={"tags": ["x"]})
    await drop_triggers(engine)
    await raw.execute(engine, "DELETE FROM agent_sessions_metadata")
    again = SessionCatalog(engine, create_tables=True)
    await again.delete_sessions({"nothing": 1})
    assert await again.get_metadata("a") == {}
    assert await again.count_sessions({"tags": {"$contains": "x"}}) == 0
    assert await again.count_values("tags") == []


async def test_orphans_among_many_rows(database: Database, monkeypatch):
    monkeypatch.setattr(retention, "ROWS_SWEPT", 3)
    engine, tables = database.engine(), session_tables()
    catalog = SessionCatalog(engine, create_tables=True)
    metadata = {"a": 1, "b": [1, 2], "c": [2, 3], "d": 4}
    for number in range(7):
        await catalog.create_session(f"chat-{number}", metadata=metadata)
    gone, row = [f"chat-{number}" for number in (0, 3, 4, 6)], tables.metadata.c
    triggers = await drop_triggers(engine)
    async with engine.begin() as connection:
        for statement in (
            delete(tables.sessions).where(tables.sessions.c.session_id.in_(gone)),
            delete(tables.metadata).where(row.session_id == "chat-5", row.key == "b"),
        ):
            await connection.execute(statement)
    for trigger in triggers:
        await raw.execute(engine, trigger)
    assert await catalog.delete_sessions({"nothing": 1}) == 0
    assert await raw.count_rows(engine, "agent_sessions_metadata") == 3 * 4 - 1
    assert await raw.count_rows(engine, "agent_sessions_metadata_elements") == 3 * 4 - 2
    assert await catalog.get_metadata("chat-1") == metadata

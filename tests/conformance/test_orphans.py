"""What was left while SQLite's triggers were away is gone when they are there again."""

from __future__ import annotations

from servers import Database
from sqlalchemy import text

from agents_session_metadata import SessionCatalog


async def test_elements_of_no_list_match_nothing(database: Database):
    engine = database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("a", metadata={"tags": ["x"]})
    async with engine.begin() as connection:
        if database.kind == "sqlite":
            names = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
            for (name,) in (await connection.execute(text(names))).all():
                await connection.execute(text(f"DROP TRIGGER {name}"))
        await connection.execute(text("DELETE FROM agent_sessions_metadata"))
    again = SessionCatalog(engine, create_tables=True)
    await again.delete_sessions({"nothing": 1})
    assert await again.get_metadata("a") == {}
    assert await again.count_sessions({"tags": {"$contains": "x"}}) == 0
    assert await again.count_values("tags") == []

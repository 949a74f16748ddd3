"""In the middle of a call, another process deletes the session, and another owner makes its id."""

from __future__ import annotations

import asyncio
import threading

import pytest
from servers import Database
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata import SessionCatalog
from conformance import raw

MINE, THEIRS = ({"owner_id": owner} for owner in ("u1", "u2"))


async def swap(database: Database) -> None:
    engine = database.engine()
    catalog = SessionCatalog(engine)
    await catalog.scoped(MINE).delete_session("chat")
    session = await catalog.scoped(THEIRS).create_session("chat")
    await session.add_items([raw.message("theirs")])
    await engine.dispose()


def swap_before(engine: AsyncEngine, database: Database, start: str) -> threading.Thread:
    """Swap before the first statement that begins so, or as soon as it lets others write."""
    thread = threading.Thread(target=lambda: asyncio.run(swap(database)))

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def before(connection, cursor, statement, *arguments) -> None:
        if statement.startswith(start) and thread.ident is None:
            thread.start()
            thread.join(1)

    return thread


async def my_session(engine: AsyncEngine):
    session = await SessionCatalog(engine, create_tables=True).scoped(MINE).create_session("chat")
    await session.add_items([raw.message("mine")])
    return session


@pytest.mark.parametrize("method", ["clear_session", "pop_item", "add_items"])
async def test_an_engine_that_commits_each_statement(shared_database: Database, method):
    engine = shared_database.engine(isolation_level="AUTOCOMMIT")
    session = await my_session(engine)
    verb = "INSERT INTO" if method == "add_items" else "DELETE FROM"
    thread = swap_before(engine, shared_database, f"{verb} agent_messages")
    arguments = [[raw.message("more")]] if method == "add_items" else []
    result = await getattr(session, method)(*arguments)
    await asyncio.to_thread(thread.join)
    assert result == (raw.message("mine") if method == "pop_item" else None)
    theirs = SessionCatalog(engine).scoped(THEIRS).session("chat")
    assert await theirs.get_items() == [raw.message("theirs")]
    assert await session.get_items() == []


@pytest.mark.parametrize("level", ["AUTOCOMMIT", None])
async def test_reading_items(shared_database: Database, level):
    options = {} if level is None else {"isolation_level": level}
    engine = shared_database.engine(**options)
    session = await my_session(engine)
    thread = swap_before(engine, shared_database, "SELECT agent_messages.message_data")
    assert await session.get_items() in ([], [raw.message("mine")])
    await asyncio.to_thread(thread.join)
    theirs = SessionCatalog(engine).scoped(THEIRS).session("chat")
    assert await theirs.get_items(limit=3) == [raw.message("theirs")]

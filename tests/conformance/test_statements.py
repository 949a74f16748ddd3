"""How many statements a call takes: each costs a round trip, whatever it does."""

from __future__ import annotations

import re
from itertools import chain

import aiosqlite
import pytest
from servers import Database
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from agents_session_metadata import SessionCatalog
from agents_session_metadata.dialects import _sqlite_cursor


class Statements:
    """Counts the statements of an engine."""

    def __init__(self, engine) -> None:
        self.texts: list[str] = []
        event.listen(
            engine.sync_engine, "before_cursor_execute", lambda *call: self.texts.append(call[2])
        )

    async def of(self, awaitable) -> int:
        self.texts.clear()
        await awaitable
        return len(self.texts)


async def test_statements_a_call(database: Database):
    engine = database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    session = catalog.session("chat")
    await session.set_metadata({"owner_id": "u1", "tags": ["a", "b"]})
    await session.add_items([{"role": "user", "content": "hi"}])
    await catalog.list_sessions({"a": 1})  # Looks for the index, once a minute.
    statements = Statements(engine)
    where = {"owner_id": "u1", "tags": {"$contains": "a"}, "n": {"$ne": 1}}

    assert await statements.of(session.get_metadata()) == 1
    assert await statements.of(session.get_metadata(["owner_id"])) == 1
    assert await statements.of(session.find_sessions_by_metadata("owner_id", "u1")) == 1
    assert await statements.of(session.find_sessions_by_metadata(where)) == 1
    assert await statements.of(catalog.count_sessions(where)) == 1
    # Metadata ends with its session, so nothing is looked up there.
    assert not re.search(r"agent_sessions\b", statements.texts[0])
    assert await statements.of(catalog.count_values("tags", where)) == 1
    assert (
        await statements.of(catalog.statistics(where)) == 3
    )  # ids, values, and one looks for tables of votes
    assert await statements.of(catalog.get_session("chat", count_items=True)) == 1
    assert await statements.of(catalog.last_session(where, count_items=True)) == 1
    assert await statements.of(catalog.list_sessions(where, count_items=True)) == 1
    scalars = {"a": 1, "b": "x", "c": None, "d": 0.5, "e": True}
    # PostgreSQL reads in a statement what was there when it began, so it cannot lock in the same.
    # It reads as it writes, unless it must hand the metadata over first.
    before_writing = 2 if database.kind == "postgresql" else 1
    # SQLite locks by an update, and looks whether the row exists if none was updated.
    creating = 4 if database.kind == "sqlite" else 3
    assert await statements.of(session.set_metadata(scalars)) == 2
    assert await statements.of(catalog.session("new").set_metadata(scalars)) <= creating
    assert await statements.of(session.set_metadata({"tags": ["b", "c"], "more": [1]})) <= 4
    edits = before_writing + 1
    assert await statements.of(session.edit_metadata(lambda stored: stored.update(a=2))) == edits
    assert await statements.of(session.edit_metadata(lambda stored: None)) == before_writing
    new = catalog.session("another")
    assert await statements.of(new.edit_metadata(lambda stored: stored.update(a=2))) <= creating
    assert await statements.of(session.delete_metadata(["a", "b"])) <= 3
    assert await statements.of(catalog.create_session("created", metadata=scalars)) <= 3

    await session.set_metadata({"calls": [["search", 1]]})

    def call_again(stored):
        stored["calls"][0][1] += 1

    # Only scalar elements have rows of their own.
    assert await statements.of(session.edit_metadata(call_again)) == edits
    assert await session.get_metadata(["calls"]) == {"calls": [["search", 2]]}


async def test_items_are_written_without_an_orm_session_for_each_statement(
    database: Database, monkeypatch
):
    engine = database.engine()
    session = SessionCatalog(engine, create_tables=True).session("chat")
    await session.add_items([{"role": "user", "content": "hi"}])

    async def execute(*_, **__):
        raise AssertionError("a statement was run by a session")

    monkeypatch.setattr(AsyncSession, "execute", execute)
    statements = Statements(engine)
    items: list = [{"role": "user", "content": text} for text in ("a", "b")]
    # Lock the session, insert, and move its time.
    assert await statements.of(session.add_items(items)) == 3
    assert await session._atomic_replace_items(items)
    monkeypatch.undo()
    assert await session.get_items() == items


@pytest.mark.only_on("sqlite")
async def test_no_rows_are_fetched_to_add_items(database: Database, monkeypatch):
    engine = database.engine()
    session = SessionCatalog(engine, create_tables=True).session("chat")
    items: list = [{"role": "user", "content": "hi"}]
    await session.add_items(items)
    fetched = []
    fetchall = aiosqlite.Cursor.fetchall

    async def counted(cursor):
        fetched.append(cursor)
        return await fetchall(cursor)

    # Each is a call of the driver's thread, which takes longer than the statement.
    monkeypatch.setattr(aiosqlite.Cursor, "fetchall", counted)
    await session.add_items(items)
    assert fetched == []
    await session.get_items()
    assert fetched


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("renamed", [None, *chain.from_iterable(_sqlite_cursor.MEMBERS)])
async def test_a_statement_takes_one_call_of_the_drivers_thread_or_sqlalchemys_own_cursors(
    database: Database, monkeypatch, renamed
):
    is_known = renamed is None
    members = [
        [f"{name}_renamed" if name == renamed else name for name in names]
        for names in _sqlite_cursor.MEMBERS
    ]
    monkeypatch.setattr(_sqlite_cursor, "MEMBERS", members)
    session = SessionCatalog(database.engine(), create_tables=True).session("chat")
    await session.set_metadata({"tags": ["a"]})
    calls = []
    call = aiosqlite.Connection._execute

    async def counted(connection, function, *args, **kwargs):
        calls.append(function)
        return await call(connection, function, *args, **kwargs)

    async def of(awaitable) -> int:
        calls.clear()
        await awaitable
        return len(calls)

    monkeypatch.setattr(aiosqlite.Connection, "_execute", counted)
    # The statement, and a rollback.
    assert (await of(session.get_metadata()) == 2) == is_known
    # Lock, upsert, and commit, however many rows.
    assert (await of(session.edit_metadata(lambda stored: stored.update(a=2))) == 3) == is_known
    assert (await of(session.set_metadata({"a": 1, "b": 2})) == 3) == is_known
    assert (await of(session.edit_metadata(lambda stored: stored.update(a=2))) == 3) == is_known
    assert await session.get_metadata() == {"tags": ["a"], "a": 2, "b": 2}


@pytest.mark.only_on("sqlite-file")
async def test_a_statement_whose_rows_cannot_be_read_does_not_go_on(database: Database):
    catalog = SessionCatalog(database.engine(pool_size=1, max_overflow=0), create_tables=True)
    await catalog.set_metadata("chat", {"a": 1})

    def read(connection):
        connection.exec_driver_sql(
            "SELECT CAST(x'ff' AS TEXT) FROM agent_sessions, json_each('[1, 2]')"
        )

    # The error refers to the statement as long as it exists.
    with pytest.raises(OperationalError, match="decode") as _error:
        await catalog._store.database.read(read)
    await SessionCatalog(database.engine()).set_metadata("chat", {"a": 2})
    # The snapshot from before could not be written to.
    await catalog.set_metadata("chat", {"a": 3})
    assert await catalog.get_metadata("chat") == {"a": 3}


@pytest.mark.only_on("sqlite-file")
async def test_an_engine_that_streams_results(database: Database):
    engine = database.engine(execution_options={"stream_results": True})
    catalog = SessionCatalog(engine, create_tables=True)
    for number in range(20):
        await catalog.set_metadata(f"s{number:02}", {"a": number})
    found = [info.metadata["a"] async for info in catalog.iter_sessions()]
    assert sorted(found) == list(range(20))
    assert await catalog.count_sessions({"a": {"$gte": 5}}) == 15


async def test_the_tables_are_checked_once_an_engine(database: Database):
    engine = database.engine()
    await SessionCatalog(engine, create_tables=True).set_metadata("chat", {"a": 1})
    statements = Statements(engine)
    for _ in range(3):
        session = SessionCatalog(engine, create_tables=True).session("chat")
        assert await statements.of(session.get_metadata()) == 1
        assert await statements.of(session.get_items()) == 1


async def test_a_scope_adds_no_statement_to_a_read(database: Database):
    engine = database.engine()
    catalog = SessionCatalog(engine, create_tables=True).scoped({"owner_id": "u1", "kind": "chat"})
    await catalog.create_session("chat", metadata={"a": 1})
    await catalog.list_sessions({"a": 1})
    statements = Statements(engine)
    assert await statements.of(catalog.get_metadata("chat")) == 1
    assert await statements.of(catalog.list_sessions({"a": 1})) == 1
    assert await statements.of(catalog.count_sessions()) == 1

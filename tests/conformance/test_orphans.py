"""What an earlier session left is deleted when its id is used again, and not before."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from agents import Runner
from agents.extensions.memory import SQLAlchemySession
from doctoring import mended
from servers import Database
from sqlalchemy import event, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from agents_session_metadata import PausedRuns, SessionCatalog, UnsupportedDialectError
from agents_session_metadata.doctor import diagnose
from agents_session_metadata.storage.paused import PAUSED
from conformance import raw
from conformance.approving import Deployer, deploys, paused_runs
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


async def plain_sdk(catalog: SessionCatalog, session_id: str) -> None:
    await SQLAlchemySession(session_id, engine=catalog.engine).add_items([raw.message("hello")])


WRITERS = [create, set_metadata, edit, fork, import_one, add_items, plain_sdk]


@pytest.mark.parametrize("again", WRITERS[:-1])
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


async def test_nobody_deletes_what_was_not_named(shared_database: Database):
    engine = shared_database.engine()
    first = SessionCatalog(engine, create_tables=True)
    await first.create_session("gone", metadata=LEFT)
    # Without any session, the sessions table would look as if it had been dropped and created.
    await first.create_session("here")
    await leave(engine, "gone")
    # A first use that creates the missing triggers, then retention, from another engine.
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    assert await catalog.delete_sessions({"nothing": 1}) == 0
    assert await catalog.delete_sessions(inactive_for=timedelta(0)) == 1
    assert await raw.count_rows(engine, "agent_sessions_metadata") == 3
    assert await raw.count_rows(engine, "agent_sessions_metadata_elements") == 1


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("create_tables", [False, True])
async def test_a_trigger_that_would_delete_what_is_left_is_missed_loudly(
    shared_database: Database, caplog, create_tables
):
    engine = shared_database.engine()
    first = SessionCatalog(engine, create_tables=True)
    await first.create_session("gone", metadata=LEFT)
    await first.create_session("here")
    name = "agent_sessions_metadata_after_insert"
    for trigger in await leave(engine, "gone"):
        if name not in trigger:
            await raw.execute(engine, trigger)
    catalog = SessionCatalog(shared_database.engine(), create_tables=create_tables)
    assert await catalog.get_metadata("here") == {}
    [record] = caplog.records
    assert name in record.getMessage()
    assert "agent-sessions doctor" in record.getMessage()
    assert await raw.count_rows(engine, "agent_sessions_metadata") == 3


@pytest.mark.parametrize("again", WRITERS)
async def test_an_index_of_an_earlier_session_hinders_nobody(database: Database, again):
    engine = database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("gone", metadata=LEFT)
    await raw.set_times(engine, "gone", updated_at="2020-01-01 00:00:00")
    for key in ("$updated_at", "owner_id", "tags"):
        await catalog.create_index(key)
    for trigger in reversed(await leave(engine, "gone")):
        await raw.execute(engine, trigger)
    await again(catalog, "gone")
    assert "gone" in [info.session_id for info in (await catalog.list_sessions()).sessions]
    found = [each for each in await diagnose(engine) if each.check == "activity"]
    if again is plain_sdk and database.kind != "sqlite":
        # Foreign keys delete metadata with its session.
        assert {each.problem.split(" has ")[0] for each in found} == {
            "the index on 'owner_id'",
            "the index on 'tags'",
        }
        found = await mended(engine)
    assert found == []


async def test_an_entry_of_an_earlier_value_hinders_nobody(database: Database):
    engine = database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("here", metadata=LEFT)
    for key in ("owner_id", "tags"):
        await catalog.create_index(key)
    triggers = await drop_triggers(engine)
    async with engine.begin() as connection:
        if database.kind == "postgresql":
            await connection.execute(text("SET LOCAL session_replication_role = replica"))
        await connection.execute(text("DELETE FROM agent_sessions_metadata_elements"))
        key = connection.dialect.identifier_preparer.quote("key")
        await connection.execute(text(f"DELETE FROM agent_sessions_metadata WHERE {key} <> 'tags'"))
    for trigger in reversed(triggers):
        await raw.execute(engine, trigger)
    await catalog.set_metadata("here", {"owner_id": "u2", "tags": ["b", "a"]})
    assert [each.problem for each in await diagnose(engine) if each.check == "activity"] == []


async def test_elements_without_their_list_do_not_come_back(database: Database):
    engine = database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("gone", metadata=LEFT)
    await leave(engine, "gone")
    async with engine.begin() as connection:
        if database.kind == "postgresql":
            await connection.execute(text("SET LOCAL session_replication_role = replica"))
        elif database.kind == "mysql":
            await connection.execute(text("SET foreign_key_checks = 0"))
        await connection.execute(text("DELETE FROM agent_sessions_metadata"))
        if database.kind == "mysql":
            await connection.execute(text("SET foreign_key_checks = 1"))
    assert await raw.count_rows(engine, "agent_sessions_metadata_elements") == 1
    await catalog.create_session("gone", metadata=NEW)
    assert await catalog.count_sessions({"tags": {"$contains": "left"}}) == 0
    assert [one.value for one in await catalog.count_values("tags")] == ["new"]


async def test_history_is_written_without_our_tables(database: Database):
    engine = database.engine()
    await raw.create_sdk_tables(engine)
    session = SessionCatalog(engine).session("chat")
    await session.add_items([raw.message("hello")])
    assert len(await session.get_items()) == 1
    assert await raw.count_rows(engine, "agent_sessions", "chat") == 1


async def test_only_sessions_are_counted(database: Database):
    engine = database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("gone", metadata=LEFT)
    await catalog.create_session("here", metadata=LEFT)
    await leave(engine, "gone")
    for where in (None, {"owner_id": "u1"}, {"tags": {"$contains": "left"}}, {"old": {"$gt": 0}}):
        assert await catalog.count_sessions(where) == 1, where
        assert (await catalog.statistics(where)).sessions == 1, where
    assert await catalog.delete_sessions({"owner_id": "u1"}, dry_run=True) == 1
    assert await catalog.delete_sessions({"owner_id": "u1"}) == 1


async def test_a_run_without_a_session_is_not_paused(database: Database):
    engine = database.engine()
    paused = paused_runs(engine)
    catalog = paused.catalog
    for session_id in ("gone", "here"):
        session = await catalog.create_session(session_id, metadata=LEFT)
        result = await Runner.run(Deployer().agent(deploys("c1")), "Go", session=session)
        await paused.pause(session, result)
    await leave(engine, "gone")
    assert await raw.count_rows(engine, "agent_sessions_metadata_paused", "gone") == 1
    for runs in (paused, PausedRuns(catalog.scoped({"owner_id": "u1"}))):
        for where in (None, {"owner_id": "u1"}, {"$session_id": {"$prefix": ""}}):
            assert [run.session_id for run in (await runs.list(where)).runs] == ["here"]
        assert (await runs.list(limit=1)).next_cursor is None
        assert await runs.get("gone") is None
        assert await runs.get("here") is not None
        assert not await runs.discard("gone")
        with pytest.raises(LookupError):
            await runs.decide("gone", "c1", approve=True)
        with pytest.raises(LookupError):
            async with runs.claim("gone", Deployer().agent("Done")):
                pass


async def test_a_table_that_was_dropped_hinders_nobody(database: Database):
    catalog = SessionCatalog(database.engine(), create_tables=True)
    await catalog.create_session("first")
    await catalog._store.database.ensure(PAUSED)
    await catalog.create_session("second")
    await raw.execute(database.engine(), "DROP TABLE agent_sessions_metadata_paused")
    await drop_triggers(database.engine())
    await catalog.create_session("third")
    await SessionCatalog(catalog.engine).session("fourth").add_items([raw.message("hello")])
    assert await catalog.count_sessions() == 4


@pytest.mark.parametrize(
    ("driver", "where"),
    [
        pytest.param("asyncmy", "connection", marks=pytest.mark.only_on("mariadb")),
        pytest.param("asyncpg", "connection", marks=pytest.mark.only_on("postgresql")),
        pytest.param("asyncpg", "database", marks=pytest.mark.only_on("postgresql")),
        pytest.param("psycopg", "connection", marks=pytest.mark.only_on("postgresql")),
    ],
)
async def test_connections_without_foreign_keys_are_refused(database: Database, driver, where):
    """Metadata would outlive its session, and a chat of the plain SDK would have its owner."""
    owner = SessionCatalog(database.engine(), create_tables=True)
    await owner.create_session("chat", metadata=LEFT)
    url = make_url(database.url)
    url = url.set(drivername=f"{url.get_backend_name()}+{driver}")
    off = {"asyncmy": "foreign_key_checks = 0"}.get(driver, "session_replication_role = replica")
    options = {
        "asyncmy": {"init_command": f"SET {off}"},
        "asyncpg": {"server_settings": {"session_replication_role": "replica"}},
        "psycopg": {"options": "-c session_replication_role=replica"},
    }[driver]
    if where == "database":
        await raw.execute(owner.engine, f"ALTER DATABASE {url.database} SET {off}")
        options = {}
    engine = create_async_engine(url, connect_args=options, poolclass=NullPool)
    catalog = SessionCatalog(engine, create_tables=True)
    try:
        for work in (
            lambda: catalog.delete_session("chat"),
            lambda: catalog.get_metadata("chat"),
            lambda: catalog.session("chat").clear_session(),
            lambda: catalog.session("new").add_items([raw.message("hello")]),
        ):
            for _ in range(2):
                with pytest.raises(UnsupportedDialectError, match=off):
                    pytest.fail(repr(await work()))
        (finding,) = [each for each in await diagnose(engine) if each.check == "foreign keys"]
        assert finding.level == "error"
        set_by = "the database" if where == "database" else "this client"
        assert f"; {set_by} sets {off.split()[0]} to {off.split()[-1]}" in finding.problem
    finally:
        if where == "database":
            reset = f"ALTER DATABASE {url.database} RESET session_replication_role"
            await raw.execute(owner.engine, reset)
        await engine.dispose()
    assert await owner.get_session("chat") is not None


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize(
    ("driver", "commits"), [("asyncpg", True), ("asyncpg", False), ("psycopg", True)]
)
async def test_handlers_that_turn_foreign_keys_off_are_refused(database: Database, driver, commits):
    """Without a commit, the isolation level of a write rolls back what the handler has set."""
    owner = SessionCatalog(database.engine(), create_tables=True)
    await owner.create_session("chat", metadata=LEFT)
    url = make_url(database.url).set(drivername=f"postgresql+{driver}")
    engine = create_async_engine(url, pool_size=1, max_overflow=0)

    @event.listens_for(engine.sync_engine, "checkout")
    def turn_off(connection: Any, *_: object) -> None:
        cursor = connection.cursor()
        cursor.execute("SET session_replication_role = replica")
        cursor.close()
        if commits:
            connection.commit()

    catalog = SessionCatalog(engine)
    for work in (
        lambda: catalog.session("chat").add_items([raw.message("hello")]),
        lambda: catalog.set_metadata("chat", NEW),
        lambda: catalog.session("chat").clear_session(),
        lambda: catalog.delete_session("chat"),
    ):
        with suppress(UnsupportedDialectError):
            await work()
        has_session = bool(await raw.count_rows(owner.engine, "agent_sessions", "chat"))
        rows = await raw.count_rows(owner.engine, "agent_sessions_metadata", "chat")
        assert rows == len(LEFT) * has_session
    await engine.dispose()

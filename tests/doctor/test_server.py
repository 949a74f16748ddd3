"""`doctor` on versions, clocks, time zones and how a server stores tables."""

from __future__ import annotations

import sqlite3
import time

import pytest
from conformance import raw
from doctoring import (
    FOREIGN_KEYS,
    complete,
    ddl_dialect,
    explained,
    intact,
    mended,
    problems,
    run,
    without_foreign_keys,
)
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import SessionCatalog, UnsupportedDialectError
from agents_session_metadata.doctor import checks, diagnose, rewrite_search_keys


async def test_a_healthy_database_gives_the_versions_alone(filled, shared_database):
    (versions,) = await diagnose(filled.engine)
    assert await ddl_dialect(filled.engine) in versions.problem.lower()
    assert "openai-agents 0." in versions.problem
    assert "SQLAlchemy 2." in versions.problem
    assert versions.repair == ()


async def test_a_database_with_rows_in_every_table_is_healthy(whole):
    assert await problems(whole.engine) == []


@pytest.mark.only_on("mariadb")
async def test_engines_without_transactions_are_explained(filled, shared_database):
    engine = filled.engine
    for table in reversed(FOREIGN_KEYS):
        await without_foreign_keys(engine, table)
    await raw.execute(engine, "ALTER TABLE agent_sessions ENGINE=MEMORY")
    (finding,) = [each for each in await problems(engine) if each.check == "engine"]
    assert finding.repair == ()
    assert "stored by MEMORY, which keeps no transactions" in finding.problem
    await run(engine, [finding.problem.partition("then run ")[2]])
    assert not [each for each in await problems(engine) if each.check == "engine"]


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize(
    ("table", "columns"), [("agent_messages", "id"), ("agent_sessions", "session_id")]
)
async def test_partitions_are_explained(filled, shared_database, table, columns):
    engine = filled.engine
    for child in reversed(FOREIGN_KEYS):
        if child == table or table == "agent_sessions":
            await without_foreign_keys(engine, child)
    await raw.execute(engine, f"ALTER TABLE {table} PARTITION BY KEY ({columns}) PARTITIONS 3")
    found = await mended(engine)
    (finding,) = [each for each in found if each.check == "engine"]
    assert finding.problem.startswith(f"{table} is partitioned, so that it cannot have")
    assert finding.level == ("warning" if table == "agent_messages" else "error")
    words = "once the findings above are repaired"
    assert all(words in each.problem for each in found if each.check == "foreign keys")
    await run(engine, [finding.problem.partition("then run ")[2]])
    assert await mended(engine) == []
    await intact(filled)


@pytest.mark.only_on("postgresql")
async def test_a_zone_other_than_utc_is_explained(filled, shared_database):
    name = make_url(shared_database.url).database
    await raw.execute(filled.engine, f"ALTER DATABASE {name} SET timezone = 'Asia/Kolkata'")
    await filled.engine.dispose()
    (finding,) = await explained(filled.engine, "clock", ["warning"])
    assert "Asia/Kolkata" in finding.problem
    assert "convert the stored times" in finding.problem
    settings = {"server_settings": {"timezone": "Europe/London"}}
    engine = create_async_engine(shared_database.url, connect_args=settings)
    (finding,) = await explained(engine, "clock", ["warning"])
    assert "this client asks for the zone" in finding.problem
    await engine.dispose()


@pytest.mark.parametrize(("shift", "words"), [(-60, "60 s ahead of"), (60, "60 s behind")])
@pytest.mark.only_on("postgresql", "mariadb")
async def test_clocks_that_differ_are_a_warning(filled, shared_database, monkeypatch, shift, words):
    monkeypatch.setattr(checks, "now", lambda: time.time() + shift)
    (finding,) = await explained(filled.engine, "clock", ["warning"])
    assert words in finding.problem


@pytest.mark.only_on("mariadb")
async def test_a_client_that_switches_foreign_keys_off(filled, shared_database):
    off = {"init_command": "SET foreign_key_checks = 0"}
    engine = create_async_engine(shared_database.url, connect_args=off)
    (finding,) = await explained(engine, "foreign keys", ["error"])
    assert "this client sets foreign_key_checks to 0" in finding.problem
    await engine.dispose()


# Not on a server that others use meanwhile.
@pytest.mark.only_on("mariadb")
@pytest.mark.not_on("mariadb-url")
async def test_a_server_that_switches_foreign_keys_off(filled, shared_database):
    await raw.execute(filled.engine, "SET GLOBAL foreign_key_checks = 0")
    try:
        await filled.engine.dispose()
        (finding,) = await explained(filled.engine, "foreign keys", ["error"])
        assert "can run SET GLOBAL foreign_key_checks = 1" in finding.problem
    finally:
        await raw.execute(filled.engine, "SET GLOBAL foreign_key_checks = 1")
    await filled.engine.dispose()
    await intact(filled)


async def test_times_that_the_driver_converts_are_not_damaged(tmp_path):
    url = f"sqlite+aiosqlite:///{tmp_path / 'chat.db'}"
    engine = create_async_engine(url, connect_args={"detect_types": sqlite3.PARSE_DECLTYPES})
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("chat")
    for work in (catalog.list_sessions, lambda: catalog.get_session("chat")):
        with pytest.raises(UnsupportedDialectError, match="detect_types"):
            await work()
    await engine.dispose()


async def test_a_file_in_another_encoding_is_refused(tmp_path):
    # Every value in it would look as if it were not JSON.
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'wide.db'}")
    try:
        async with engine.begin() as connection:
            await connection.exec_driver_sql("PRAGMA encoding = 'UTF-16le'")
            await connection.exec_driver_sql("CREATE TABLE other (a TEXT)")
        with pytest.raises(UnsupportedDialectError, match="UTF-16le"):
            await diagnose(engine)
        with pytest.raises(UnsupportedDialectError, match="UTF-16le"):
            await SessionCatalog(engine, create_tables=True).create_session()
    finally:
        await engine.dispose()


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_statements_for_tables_in_another_schema(engine, shared_database, driver):
    """A shell runs them with its own search path, in which somebody else has tables."""
    await raw.execute(engine, 'CREATE SCHEMA "It\'s theirs"')
    url = make_url(shared_database.url).set(drivername=f"postgresql+{driver}")
    options = '-c search_path="It\'s\\ theirs",public'
    path = {"options": options}
    if driver == "asyncpg":
        path = {"server_settings": {"search_path": '"It\'s theirs", public'}}
    moved = create_async_engine(url, connect_args=path)
    await complete(moved)
    await complete(engine)
    damages = [
        "DELETE FROM agent_sessions_metadata_words WHERE session_id = 'b'",
        "DROP INDEX agent_sessions_metadata_search_idx",
        "ALTER TABLE agent_sessions_metadata DROP CONSTRAINT agent_sessions_metadata_session_fk",
        "DELETE FROM agent_sessions WHERE session_id = 'a'",
    ]
    await run(moved, damages)
    found = await problems(moved)
    repairs = [each.repair for each in found if each.repair]
    assert len(repairs) > 1
    assert {each[0] for each in repairs} == {'SET search_path TO "It\'s theirs", public'}
    (restore,) = [each.problem for each in found if "row again: " in each.problem]
    for statements in (restore.partition("row again: ")[2].split("; "), *repairs):
        shell = shared_database.engine()
        await run(shell, statements)
        await shell.dispose()
    assert await raw.count_rows(engine, "agent_sessions") == 2
    assert await problems(engine) == []
    await moved.dispose()
    await SessionCatalog(moved).refresh_index("$text")
    assert await mended(moved) == []
    await moved.dispose()


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("level", ["READ COMMITTED", "AUTOCOMMIT"])
async def test_a_server_that_quotes_every_name_is_healthy(whole, shared_database, level):
    server_settings = {"quote_all_identifiers": "on", "TimeZone": "UTC"}
    engine = create_async_engine(
        shared_database.url,
        connect_args={"server_settings": server_settings},
        isolation_level=level,
    )
    assert await problems(engine) == []
    await raw.execute(engine, "UPDATE agent_sessions_metadata SET search_key = value::bytea")
    assert (await rewrite_search_keys(engine)).rewritten > 0
    assert await problems(engine) == []
    assert await raw.execute(engine, "SHOW quote_all_identifiers") == [("on",)]
    await engine.dispose()

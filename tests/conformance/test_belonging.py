"""A sessions table that was renamed, dropped or misspelled is never created beside its metadata."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from datetime import timedelta

import commands
import pytest
from agents.extensions.memory import SQLAlchemySession
from doctoring import BY_APPLICATION, complete, ddl_dialect, run
from servers import Database

from agents_session_metadata import (
    PausedRuns,
    SessionCatalog,
    TablesMismatchError,
    TablesMissingError,
)
from agents_session_metadata.ddl import create_statements
from agents_session_metadata.doctor import diagnose
from agents_session_metadata.storage.tables import query_tables, table_names
from agents_session_metadata.storage.threads import THREADS
from agents_session_metadata.storage.usage import USAGE
from conformance import raw
from conformance.test_tables import schema_of

OURS = ("agent_sessions_metadata", "agent_sessions_metadata_elements", "agent_messages")
DAMAGES = ["renamed", "renamed and created", "dropped", "misspelled"]


async def contents(engine, prefix: str = "") -> list:
    return [
        sorted(map(repr, await raw.execute(engine, f"SELECT * FROM {prefix}{table}")))
        for table in OURS
    ]


async def fill(engine) -> SessionCatalog:
    catalog = SessionCatalog(engine, create_tables=True)
    for name in ("a", "b"):
        session = await catalog.create_session(name, metadata={"tags": ["x"], "n": 1})
        await session.add_items([raw.message(f"hello {name}")])
    return catalog


async def create_sessions(engine) -> None:
    """What the plain SDK does with `create_tables=True`."""
    if engine.dialect.name == "mysql":
        await raw.execute(engine, "CREATE TABLE agent_sessions LIKE kept_sessions")
    else:
        await SQLAlchemySession("a", engine=engine, create_tables=True).get_items()


async def rename(engine, old: str, new: str) -> None:
    await raw.execute(engine, f"ALTER TABLE {old} RENAME TO {new}")


async def drop_sessions(engine) -> None:
    if engine.dialect.name == "postgresql":
        await raw.execute(engine, "DROP TABLE agent_sessions CASCADE")
        return
    async with engine.begin() as connection:
        if engine.dialect.name == "mysql":
            await connection.exec_driver_sql("SET foreign_key_checks = 0")
        await connection.exec_driver_sql("DROP TABLE agent_sessions")
        if engine.dialect.name == "mysql":
            await connection.exec_driver_sql("SET foreign_key_checks = 1")


async def damage(engine, how: str) -> dict[str, str]:
    """Do it; gives the names of tables that a catalog is then made with."""
    if how == "misspelled":
        return {"sessions_table": "agent_sesions", "metadata_table": "agent_sessions_metadata"}
    if how == "dropped":
        await drop_sessions(engine)
    else:
        await rename(engine, "agent_sessions", "kept_sessions")
    if how == "renamed and created":
        await create_sessions(engine)
    return {}


CALLS = {
    "set": lambda catalog: catalog.set_metadata("a", {"m": 1}),
    "edit": lambda catalog: catalog.edit_metadata("a", lambda metadata: metadata.update(m=1)),
    "create": lambda catalog: catalog.create_session("a", metadata={"m": 1}),
    "get": lambda catalog: catalog.get_metadata("a"),
    "list": lambda catalog: catalog.list_sessions(),
    "clean up": lambda catalog: catalog.delete_sessions({"n": 1}),
    "delete": lambda catalog: catalog.delete_session("a"),
    "import": lambda catalog: catalog.import_sessions(
        [
            {
                "format": 1,
                "session_id": "a",
                "created_at": "2024-01-01T00:00:00+00:00",
                "updated_at": "2024-01-01T00:00:00+00:00",
                "metadata": {},
                "items": [],
            }
        ]
    ),
    "index": lambda catalog: catalog.create_index("n"),
    "usage": lambda catalog: catalog.usage(),
    "list items": lambda catalog: catalog.list_items("a"),
}


@pytest.mark.parametrize("how", DAMAGES)
async def test_nothing_is_created_or_written(shared_database: Database, how):
    engine = shared_database.engine()
    await fill(engine)
    names = await damage(engine, how)
    before, tables = await contents(engine), await raw.table_names(engine)
    sessions = names.get("sessions_table", "agent_sessions")
    for create_tables in (True, False):
        for name, call in CALLS.items():
            # An engine of its own: the tables are checked once per engine.
            other = shared_database.engine()
            catalog = SessionCatalog(other, create_tables=create_tables, **names)
            with pytest.raises(TablesMismatchError) as caught:
                await call(catalog)
            assert caught.value.tables == (sessions,), name
            text = str(caught.value)
            assert sessions in text
            assert "agent_sessions_metadata" in text or "agent_messages" in text
            assert "doctor" in text
            assert "create" not in text
            await other.dispose()
        session = SessionCatalog(
            shared_database.engine(), create_tables=create_tables, **names
        ).session("a")
        if create_tables:
            with pytest.raises(TablesMismatchError):
                await session.add_items([raw.message("again")])
    arguments = [f"--{key.replace('_', '-')}={value}" for key, value in names.items()]
    for command in (("set", "a", "--create", "m=1"), ("list",), ("cleanup", "--meta", "n=1", "-y")):
        for option in ((), ("--create-tables",)):
            given = (*command, *arguments, *option)
            result = await asyncio.to_thread(commands.run, *given, url=shared_database.url)
            assert result.exit_code == 1, result.output
            assert "--create-tables" not in result.output
            assert sessions in commands.said(result.output)
    assert await contents(engine) == before
    assert await raw.table_names(engine) == tables
    if how == "renamed and created":
        await raw.execute(engine, "DROP TABLE agent_sessions")
    if how.startswith("renamed"):
        await rename(engine, "kept_sessions", "agent_sessions")
        # The very engine that was in use all the time.
        catalog = SessionCatalog(engine)
        assert [info.metadata for info in (await catalog.list_sessions()).sessions] == [
            {"n": 1, "tags": ["x"]}
        ] * 2
        await catalog.set_metadata("a", {"m": 1})
        assert (await catalog.get_metadata("a"))["m"] == 1
        assert await contents(engine) != before


async def test_messages_without_sessions(shared_database: Database):
    engine = shared_database.engine()
    await fill(engine)
    for table in reversed(OURS[:2]):
        await raw.execute(engine, f"DROP TABLE {table}")
    await drop_sessions(engine)
    with pytest.raises(TablesMismatchError, match="agent_messages has rows"):
        await SessionCatalog(shared_database.engine(), create_tables=True).list_sessions()
    assert await raw.table_names(engine) & {"agent_sessions", *OURS[:2]} == set()
    assert await raw.count_rows(engine, "agent_messages") == 2


async def test_empty_tables_without_sessions_are_completed(shared_database: Database):
    engine = shared_database.engine()
    catalog = await fill(engine)
    for name in ("a", "b"):
        await catalog.delete_session(name)
    await drop_sessions(engine)
    with pytest.raises(TablesMissingError, match="create_tables=True"):
        await SessionCatalog(shared_database.engine()).list_sessions()
    other = SessionCatalog(shared_database.engine(), create_tables=True)
    await other.set_metadata("a", {"m": 1})
    assert await other.get_metadata("a") == {"m": 1}


async def test_missing_messages_beside_sessions_are_created(shared_database: Database):
    engine = shared_database.engine()
    await fill(engine)
    await raw.execute(engine, "DROP TABLE agent_messages")
    other = SessionCatalog(shared_database.engine(), create_tables=True)
    await other.session("a").add_items([raw.message("hello")])
    assert await other.count_sessions({"n": 1}) == 2


async def test_the_tables_of_the_sdk_alone(shared_database: Database):
    engine = shared_database.engine()
    await raw.create_sdk_tables(engine)
    await raw.execute(engine, "INSERT INTO agent_sessions (session_id) VALUES ('a')")
    await raw.execute(
        engine, "INSERT INTO agent_messages (session_id, message_data) VALUES ('a', '{}')"
    )
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.set_metadata("a", {"m": 1})
    assert (await catalog.list_sessions()).sessions[0].metadata == {"m": 1}


async def test_tables_without_foreign_keys(shared_database: Database):
    engine = shared_database.engine()
    await fill(engine)
    for table in OURS:
        await raw.drop_foreign_keys(engine, table)
    catalog = SessionCatalog(shared_database.engine())
    assert await catalog.count_sessions({"n": 1}) == 2


async def test_a_sqlite_table_that_was_dropped_and_created(tmp_path):
    database = Database("sqlite-file", f"sqlite+aiosqlite:///{tmp_path}/chat.db")
    engine = database.engine()
    await fill(engine)
    before = await contents(engine)
    await drop_sessions(engine)
    await create_sessions(engine)
    for create_tables in (True, False):
        catalog = SessionCatalog(database.engine(), create_tables=create_tables)
        with pytest.raises(TablesMismatchError, match="is empty and lacks its triggers"):
            await catalog.set_metadata("a", {"m": 1})
    assert await contents(engine) == before
    await database.close()


@pytest.mark.parametrize("how", ["renamed", "dropped"])
async def test_a_lost_metadata_table_is_not_replaced_by_an_empty_one(
    shared_database: Database, how
):
    engine = shared_database.engine()
    await fill(engine)
    if how == "renamed":
        await rename(engine, "agent_sessions_metadata", "kept")
    elif engine.dialect.name == "postgresql":
        await raw.execute(engine, "DROP TABLE agent_sessions_metadata CASCADE")
    else:
        await raw.drop_foreign_keys(engine, "agent_sessions_metadata_elements")
        await raw.execute(engine, "DROP TABLE agent_sessions_metadata")
    tables = await raw.table_names(engine)
    for create_tables in (True, False):
        catalog = SessionCatalog(shared_database.engine(), create_tables=create_tables)
        with pytest.raises(TablesMismatchError, match="_metadata is missing, although"):
            await catalog.delete_sessions({"n": {"$ne": 1}})
    cleanup = ("cleanup", "--where", '{"n": {"$ne": 1}}', "-y", "--create-tables")
    result = await asyncio.to_thread(commands.run, *cleanup, url=shared_database.url)
    assert result.exit_code == 1
    assert await raw.table_names(engine) == tables
    assert await raw.count_rows(engine, "agent_sessions") == 2


@pytest.mark.only_on("sqlite")
async def test_a_restore_that_goes_on_loses_no_metadata(shared_database: Database):
    engine = shared_database.engine()
    await fill(engine)
    before = await contents(engine)
    sessions = await raw.execute(engine, "SELECT * FROM agent_sessions ORDER BY session_id")
    await drop_sessions(engine)
    await create_sessions(engine)

    async def restore(row) -> None:
        values = ", ".join(f"'{value}'" for value in row)
        await raw.execute(engine, f"INSERT INTO agent_sessions VALUES ({values})")

    await restore(sessions[0])
    for create_tables in (True, False):
        catalog = SessionCatalog(shared_database.engine(), create_tables=create_tables)
        assert await catalog.count_sessions() == 1
    result = await asyncio.to_thread(commands.run, "doctor", "--json", url=shared_database.url)
    findings = json.loads(result.stdout)["findings"]
    printed = [each for finding in findings for each in finding["repair"]]
    assert not any("AFTER INSERT" in each or "BEFORE INSERT" in each for each in printed)
    await restore(sessions[1])
    assert await contents(engine) == before
    # Now nothing is left over, and the trigger is created.
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    await catalog.count_sessions()
    result = await asyncio.to_thread(commands.run, "doctor", "--json", url=shared_database.url)
    findings = json.loads(result.stdout)["findings"]
    assert [finding for finding in findings if finding["check"] == "triggers"] == []


@pytest.mark.only_on("sqlite")
async def test_a_restore_that_goes_on_keeps_the_ledger(shared_database: Database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    insert = "INSERT INTO agent_sessions (session_id) VALUES"
    for name in ("a", "b"):
        await catalog.create_session(name)
    used = "day, requests, input_tokens, cached_input_tokens, output_tokens, reasoning_tokens"
    values = "'2020-01-01', 1, 1, 1, 1, 1, 1"
    for group in (USAGE, THREADS):
        await catalog._store.database.ensure(group)
    for name in ("'a'", "'b'", "NULL"):
        await raw.execute(
            engine,
            f"INSERT INTO agent_sessions_metadata_usage (session_id, {used}, total_tokens)"
            f" VALUES ({name}, {values})",
        )
    await raw.execute(
        engine,
        "INSERT INTO agent_sessions_metadata_attachments (attachment_id, owner, data)"
        " VALUES ('file', '{}', '{}')",
    )
    await raw.execute(engine, "DROP TABLE agent_sessions")
    await create_sessions(engine)
    await raw.execute(engine, f"{insert} ('a')")
    with pytest.raises(TablesMissingError, match="statements of `agent-sessions doctor`") as caught:
        await SessionCatalog(shared_database.engine()).count_sessions()
    assert "ddl" not in str(caught.value)
    for restored in (False, True):
        if restored:
            await raw.execute(engine, f"{insert} ('b')")
        catalog = SessionCatalog(shared_database.engine(), create_tables=True)
        for group in (USAGE, THREADS):
            await catalog._store.database.ensure(group)
    query = "SELECT session_id FROM agent_sessions_metadata_usage ORDER BY id"
    assert [name for (name,) in await raw.execute(engine, query)] == ["a", "b", None]
    # Now nothing is left over, and the triggers are created.
    assert [each for each in await diagnose(engine) if each.check == "triggers"] == []


@pytest.mark.parametrize("sessions", ["Talks", "from", "two words", "zażółć"])
async def test_names_that_need_quotes(shared_database: Database, sessions):
    names = {"sessions_table": sessions, "messages_table": f"{sessions} Said"}
    for _ in range(2):
        catalog = SessionCatalog(shared_database.engine(), create_tables=True, **names)
        await catalog.set_metadata("a", {"m": 1})
        await catalog.session("a").add_items([raw.message("hello")])
    wrong = {**names, "sessions_table": "other", "metadata_table": f"{sessions}_metadata"}
    with pytest.raises(TablesMismatchError, match="not to other"):
        await SessionCatalog(shared_database.engine(), create_tables=True, **wrong).list_sessions()


async def test_tables_of_another_schema(shared_database: Database, tmp_path):
    database = shared_database
    async with schema_of(database, tmp_path) as (schema, engine):
        await fill(engine)
        fresh = SessionCatalog(engine, create_tables=True)
        assert await fresh.count_sessions() == 2
        # The other schema has tables of the same names, and its own sessions.
        await fill(database.engine())
        await rename(engine, f"{schema}.agent_sessions", _beside(engine, schema, "kept_sessions"))
        before = await contents(engine, f"{schema}.")
        await engine.dispose()
        with pytest.raises(TablesMismatchError):
            await SessionCatalog(engine, create_tables=True).set_metadata("a", {"m": 1})
        assert await contents(engine, f"{schema}.") == before
        plain = SessionCatalog(database.engine(), create_tables=True)
        assert await plain.count_sessions() == 2


def _beside(engine, schema: str, name: str) -> str:
    return f"{schema}.{name}" if engine.dialect.name == "mysql" else name


WRITTEN = ["agent_messages", *(f"agent_sessions_metadata{end}" for end in ("", *BY_APPLICATION))]


async def doctors(database: Database, *options: str) -> list:
    result = await asyncio.to_thread(commands.run, "doctor", "--json", *options, url=database.url)
    found = json.loads(result.stdout)["findings"]
    return [each for each in found if each["level"] != "info"]


@pytest.mark.parametrize("table", WRITTEN)
async def test_a_renamed_table_is_not_replaced_by_an_empty_one(shared_database: Database, table):
    engine = shared_database.engine()
    await complete(engine)
    if table == WRITTEN[1]:
        await rename(engine, f"{table}_elements", "kept_elements")
    await rename(engine, table, "kept")
    tables = await raw.table_names(engine)
    calls = {
        "agent_messages": lambda catalog: catalog.list_items("a"),
        WRITTEN[1]: lambda catalog: catalog.delete_sessions({"n": {"$ne": 1}}),
        f"{WRITTEN[1]}_paused": lambda catalog: catalog.delete_sessions({"n": 1}),
        f"{WRITTEN[1]}_usage": lambda catalog: catalog.usage(),
    }

    async def export(catalog: SessionCatalog) -> list:
        return [record async for record in catalog.export_sessions()]

    for create_tables in (True, False):
        catalog = SessionCatalog(shared_database.engine(), create_tables=create_tables)
        with pytest.raises(TablesMismatchError, match=f"{table} is missing, although kept has"):
            await calls.get(table, export)(catalog)
        if table.endswith("_thread_items"):
            with pytest.raises(TablesMismatchError, match="although kept has"):
                await catalog.fork_session("a", "copy")
    assert await raw.table_names(engine) == tables
    assert await raw.count_rows(engine, "agent_sessions") == 2
    for finding in await doctors(shared_database):
        assert f"{table} is missing, although kept has" in finding["problem"]
        assert finding["repair"] == []
    await rename(engine, "kept", table)
    if table == WRITTEN[1]:
        await rename(engine, "kept_elements", f"{table}_elements")
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    assert await catalog.count_sessions({"n": 1}) == 2
    assert len(await export(catalog)) == 2


@contextlib.asynccontextmanager
async def moved(database: Database, how: str, table: str, tmp_path):
    """A table under another name without a column, or in another schema; yields the message."""
    engine = database.engine()
    if how == "changed":
        column = {f"{OURS[0]}_paused": "token", OURS[0]: "search_rest"}[table]
        await raw.execute(engine, f"ALTER TABLE {table} DROP COLUMN {column}")
        await rename(engine, table, "kept")
        yield "kept has its columns and a foreign key to agent_sessions"
        await rename(engine, "kept", table)
        kind = "varchar(32)" if column == "token" else "text"
        await raw.execute(engine, f"ALTER TABLE {table} ADD COLUMN {column} {kind} NULL")
        return
    async with schema_of(database, tmp_path) as (schema, _):
        is_postgres = engine.dialect.name == "postgresql"
        move = "SET SCHEMA {}" if is_postgres else f"RENAME TO {{}}.{table}"
        await raw.execute(engine, f"ALTER TABLE {table} {move.format(schema)}")
        yield f"{schema}.{table} has its columns and a foreign key to agent_sessions"
        own = await raw.execute(
            engine, "SELECT current_schema()" if is_postgres else "SELECT database()"
        )
        back = move.format(own[0][0])
        await raw.execute(engine, f"ALTER TABLE {schema}.{table} {back}")


@pytest.mark.parametrize("table", [f"{OURS[0]}_paused", OURS[0]])
async def test_a_table_that_the_sessions_take_with_them_is_not_missing(
    shared_database: Database, table, tmp_path
):
    engine = shared_database.engine()
    await complete(engine)
    if table == OURS[0]:
        await rename(engine, OURS[1], "kept_elements")
    rows = await raw.count_rows(engine, table)
    assert rows
    # Foreign keys of SQLite stay within a schema; on MySQL, tables with triggers do.
    moves = {"sqlite": [], "mysql": ["moved"] * (table != OURS[0]), "postgresql": ["moved"]}
    for how in ["changed", *moves[engine.dialect.name]]:
        async with moved(shared_database, how, table, tmp_path) as words:
            problem = f"{table} is missing, although {words}"
            for create_tables in (True, False):
                catalog = SessionCatalog(shared_database.engine(), create_tables=create_tables)
                with pytest.raises(TablesMismatchError, match=problem):
                    await catalog.delete_sessions(inactive_for=timedelta(0))
                with pytest.raises(TablesMismatchError, match=problem):
                    await PausedRuns(catalog).list()
            assert [problem in each["problem"] for each in await doctors(shared_database)] == [True]
        assert await raw.count_rows(engine, table) == rows


async def test_an_application_may_refer_to_sessions(shared_database: Database):
    """Tables of its own that share some columns with tables that are not there yet."""
    engine = shared_database.engine()
    catalog = await fill(engine)
    key = "session_id varchar(255) {}, FOREIGN KEY (session_id) REFERENCES agent_sessions"
    key += " (session_id) ON DELETE CASCADE"
    for name, columns in {
        "notes": "id int, created_at timestamp",
        "uploads": "owner int, data text, created_at timestamp",
        "approvals": "state text, details text, decisions text, paused_at bigint",
    }.items():
        collation = "COLLATE utf8mb4_nopad_bin" if engine.dialect.name == "mysql" else ""
        link = key.format(collation)
        await raw.execute(engine, f"CREATE TABLE {name} ({columns}, {link})")
    await raw.execute(engine, "DROP TABLE agent_messages")
    assert await SessionCatalog(engine, create_tables=True).usage() == []
    await PausedRuns(SessionCatalog(engine, create_tables=True)).list()
    assert await catalog.delete_sessions({"n": 1}) == 2


@pytest.mark.parametrize("has_keys", [True, False])
@pytest.mark.parametrize("option", ["metadata", "messages"])
async def test_a_misspelled_name_creates_nothing(shared_database: Database, option, has_keys):
    engine = shared_database.engine()
    await fill(engine)
    if not has_keys:
        await raw.drop_foreign_keys(engine, {"metadata": OURS[0], "messages": OURS[2]}[option])
    tables = await raw.table_names(engine)
    misspelled = (f"--{option}-table", "agent_misspelled")
    where = ("--where", '{"n": {"$ne": 1}}', "--yes")
    for command in (("cleanup", *where), ("export",), ("list",), ("set", "a", "m=1")):
        arguments = (*command, *misspelled, "--create-tables")
        result = await asyncio.to_thread(commands.run, *arguments, url=shared_database.url)
        assert result.exit_code == 1
        assert "agent_misspelled is missing, although" in commands.said(result.output)
    [finding] = await doctors(shared_database, *misspelled)
    assert f"--{option}-table" in finding["problem"]
    assert finding["repair"] == []
    assert await raw.table_names(engine) == tables
    assert await raw.count_rows(engine, "agent_sessions") == 2


BACKED_UP = ["messages", "metadata", "metadata with elements"]


@pytest.mark.parametrize("case", BACKED_UP)
async def test_a_backup_is_never_tied_to_the_sessions(shared_database: Database, case):
    engine = shared_database.engine()
    await complete(engine)
    option = case.partition(" ")[0]
    original = {"messages": OURS[2], "metadata": OURS[0]}[option]
    await raw.execute(engine, f"CREATE TABLE archive AS SELECT * FROM {original}")
    if case == BACKED_UP[2]:
        copy = f"CREATE TABLE archive_elements AS SELECT * FROM {OURS[1]}"
        await raw.execute(engine, copy)
    rows, before = await raw.count_rows(engine, "archive"), await raw.table_names(engine)
    triggers = await trigger_count(engine)
    words = f"archive has no foreign key to agent_sessions, although {original} has one"
    found = await doctors(shared_database, f"--{option}-table", "archive")
    assert {finding["check"] for finding in found} == {"names"}
    assert any(words in finding["problem"] for finding in found)
    assert [finding["repair"] for finding in found] == [[]] * len(found)
    # Messages have no triggers, and all tables of the metadata exist.
    creates = option == "metadata" and (engine.dialect.name == "sqlite" or case != BACKED_UP[2])
    for extra in ((), ("--create-tables",)):
        arguments = ("set", "a", "m=1", f"--{option}-table", "archive", *extra)
        if creates:
            result = await asyncio.to_thread(commands.run, *arguments, url=shared_database.url)
            assert result.exit_code == 1
            assert words in commands.said(result.output)
    # A table of an optional feature is created with its foreign key.
    names = {f"{option}_table": "archive"}
    for create_tables in (True, False) if creates else ():
        catalog = SessionCatalog(shared_database.engine(), create_tables=create_tables, **names)
        with pytest.raises(TablesMismatchError, match=words) as caught:
            await catalog.usage()
        assert caught.value.tables == ("archive",)
    assert await raw.table_names(engine) == before
    assert await trigger_count(engine) == triggers
    await SessionCatalog(engine).delete_session("a")
    assert await raw.count_rows(engine, "archive") == rows
    assert await doctors(shared_database) == []


async def trigger_count(engine) -> int:
    queries = {
        "sqlite": "sqlite_master WHERE type = 'trigger'",
        "postgresql": "pg_trigger WHERE NOT tgisinternal",
        "mysql": "information_schema.triggers WHERE trigger_schema = database()",
    }
    return (await raw.execute(engine, f"SELECT count(*) FROM {queries[engine.dialect.name]}"))[0][0]


async def test_a_second_metadata_table_is_created_by_sql(shared_database: Database):
    engine = shared_database.engine()
    await complete(engine)
    names = table_names(metadata_table="labels")
    with pytest.raises(TablesMismatchError, match="only if both tables are intended"):
        await SessionCatalog(engine, metadata_table="labels", create_tables=True).count_sessions()
    await run(engine, create_statements(await ddl_dialect(engine), names))
    labels = SessionCatalog(engine, metadata_table="labels", create_tables=True)
    await labels.set_metadata("a", {"color": "red"})
    assert await labels.count_sessions({"n": 1}) == 0
    # The tables of its features are created as usual.
    for group in ("usage", "paused", "threads"):
        for table in query_tables(names).group(group).tables:
            await raw.execute(engine, f"DROP TABLE {table.name}")
    assert await labels.usage() == []
    assert await raw.count_rows(engine, "labels_usage") == 0
    assert await SessionCatalog(engine).count_sessions({"n": 1}) == 2


async def test_a_virtual_table_whose_module_is_not_loaded(tmp_path):
    path = tmp_path / "chat.db"
    url = f"sqlite+aiosqlite:///{path}"
    async with SessionCatalog.from_url(url, create_tables=True) as catalog:
        await catalog.create_session("a", metadata={"n": 1})
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "INSERT INTO sqlite_master VALUES ('table', 'vectors', 'vectors', 0,"
            " 'CREATE VIRTUAL TABLE vectors USING not_loaded(x)')"
        )
    async with SessionCatalog.from_url(url, create_tables=True) as catalog:
        assert len([record async for record in catalog.export_sessions()]) == 1
        assert await catalog.delete_sessions({"n": 1}) == 1

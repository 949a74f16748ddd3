"""`doctor` and `ddl`: real databases, broken in every way and repaired by what was printed."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import time

import commands
import pytest
from conformance import raw
from doctoring import ddl_dialect, exact_collation, intact, of_kind, only, problems, repair, run
from servers import SHARED_DATABASES
from sqlalchemy import inspect, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import SessionCatalog, doctor
from agents_session_metadata.ddl import drop_statements
from agents_session_metadata.doctor import diagnose
from agents_session_metadata.storage.tables import table_names


@pytest.fixture
async def engine(shared_database):
    engine = create_async_engine(shared_database.url)
    if shared_database.kind == "postgresql":
        name = make_url(shared_database.url).database
        await raw.execute(engine, f"ALTER DATABASE {name} SET timezone = 'UTC'")
        await engine.dispose()
    yield engine
    await engine.dispose()


@pytest.fixture
async def filled(engine):
    """A healthy database with two sessions."""
    catalog = SessionCatalog(engine, create_tables=True)
    for name in ("a", "b"):
        session = await catalog.create_session(name, metadata={"tags": ["x", "y"], "n": 1})
        await session.add_items([raw.message("hello")])
    assert await problems(engine) == []
    return catalog


# ---- healthy ----


async def test_healthy_and_the_versions(filled, shared_database):
    (versions,) = await diagnose(filled.engine)
    assert await ddl_dialect(filled.engine) in versions.problem.lower()
    assert "openai-agents 0." in versions.problem
    assert "SQLAlchemy 2." in versions.problem
    assert versions.repair == ()


async def test_tables_of_the_sdk_with_ours_added(engine, shared_database):
    await raw.create_sdk_tables(engine, length=255, collation=await exact_collation(engine))
    await SessionCatalog(engine, create_tables=True).count_sessions()
    assert await problems(engine) == []


async def test_names_of_ones_own(engine):
    names = table_names("talks", "entries", "Facts 100% of talks")
    missing = await problems(engine, names)
    assert [finding.check for finding in missing if finding.check == "tables"] == ["tables"] * 4
    await run(engine, [statement for finding in missing for statement in finding.repair])
    assert await problems(engine, names) == []


# ---- tables, columns ----


@pytest.mark.parametrize("kept", ["none", "sdk", "all but elements"])
async def test_missing_tables(engine, kept):
    if kept == "sdk":
        await raw.create_sdk_tables(engine, length=255, collation=await exact_collation(engine))
    if kept == "all but elements":
        await SessionCatalog(engine, create_tables=True).count_sessions()
        await raw.execute(engine, "DROP TABLE agent_sessions_metadata_elements")
    await repair(engine, "tables")
    await filled_by_hand(engine)


async def filled_by_hand(engine):
    catalog = SessionCatalog(engine)
    for name in ("a", "b"):
        session = await catalog.create_session(name, metadata={"tags": ["x", "y"], "n": 1})
        await session.add_items([raw.message("hello")])
    await intact(catalog)


async def test_a_missing_table_that_lists_fill(filled, shared_database):
    await run(filled.engine, await drop_elements(filled.engine))
    assert (await remade(filled.engine, shared_database.url)).check == "tables"
    await intact(filled)


async def drop_elements(engine):
    statements = drop_statements(await ddl_dialect(engine))
    return [each for each in statements if "_elements" in each]


WRONG_ELEMENTS = {
    "all are gone": ("DELETE FROM {elements}", "2 values have"),
    "one is gone": (
        "DELETE FROM {elements} WHERE session_id = 'a' AND position = 1",
        "1 value has",
    ),
    "another value": (
        (
            "UPDATE {elements} SET search_key = (SELECT search_key FROM agent_sessions_metadata"
            " WHERE session_id = 'a' AND {key} = 'n') WHERE session_id = 'a' AND position = 0"
        ),
        "1 value has",
    ),
    "another rest": (
        "UPDATE {elements} SET search_rest = search_key WHERE position = 0",
        "2 values have",
    ),
    "one too many": (
        (
            "INSERT INTO {elements} (session_id, {key}, position, search_key, search_rest)"
            " SELECT session_id, {key}, 2, search_key, search_rest FROM agent_sessions_metadata"
            " WHERE {key} = 'tags'"
        ),
        "2 values have",
    ),
    "of no list": (
        (
            "INSERT INTO {elements} (session_id, {key}, position, search_key, search_rest)"
            " SELECT session_id, {key}, position, search_key, search_rest FROM"
            " (SELECT session_id, {key}, 0 AS position, search_key, search_rest"
            " FROM agent_sessions_metadata WHERE {key} = 'n' UNION ALL"
            " SELECT session_id, {key}, 1, search_key, search_rest"
            " FROM agent_sessions_metadata WHERE {key} = 'n') AS other"
        ),
        "2 values have",
    ),
}


@pytest.mark.parametrize("way", WRONG_ELEMENTS)
async def test_elements_that_are_not_those_of_their_lists(filled, shared_database, way):
    engine = filled.engine
    statement, words = WRONG_ELEMENTS[way]
    key = engine.dialect.identifier_preparer.quote("key")
    elements = "agent_sessions_metadata_elements"
    await raw.execute(engine, statement.format(elements=elements, key=key))
    finding = await remade(engine, shared_database.url)
    assert finding.check == "elements"
    assert finding.problem.startswith(f"{words} other elements in agent_sessions_metadata than in")
    await intact(filled)


@only("mysql")
async def test_elements_beside_ids_that_are_short(engine, shared_database):
    await raw.create_sdk_tables(engine, length=190, collation=await exact_collation(engine))
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("a", metadata={"tags": ["x"]})
    assert {each.check for each in await problems(engine)} == {"collations"}
    await raw.execute(engine, "DELETE FROM agent_sessions_metadata_elements")
    assert (await problems(engine))[-1].check == "elements"


async def test_many_lists_are_compared_some_at_a_time(filled, shared_database):
    engine = filled.engine
    for number in range(60):
        lists = {f"l{each}": [number, each, "long " * 150] for each in range(4)}
        await filled.create_session(f"s{number}", metadata=lists)
    assert await problems(engine) == []
    key = engine.dialect.identifier_preparer.quote("key")
    where = f"{key} IN ('l0', 'l3') AND session_id IN ('s7', 's59')"
    await raw.execute(engine, f"DELETE FROM agent_sessions_metadata_elements WHERE {where}")
    finding = await remade(engine, shared_database.url)
    assert finding.problem.startswith("4 values have")


async def test_a_missing_column_with_a_default(filled, shared_database):
    await drop_column(filled.engine, "agent_sessions_metadata", "updated_at")
    found = await repair(filled.engine, "columns")
    assert "agent_sessions_metadata.updated_at is missing" in found[0].problem
    await intact(filled)


async def test_a_missing_column_whose_values_nobody_knows(filled):
    engine = filled.engine
    await drop_column(engine, "agent_sessions_metadata", "value")
    found = await problems(engine)
    assert [(each.check, each.repair) for each in found] == [("columns", ())]
    await raw.execute(engine, "DELETE FROM agent_sessions_metadata")
    await repair(engine, "columns")
    assert await filled.count_sessions() == 2


async def test_a_missing_column_of_what_can_be_made_again(filled, shared_database):
    await drop_column(filled.engine, "agent_sessions_metadata_elements", "search_rest")
    finding = await remade(filled.engine, shared_database.url)
    assert finding.check == "columns"
    assert "agent_sessions_metadata_elements.search_rest is missing" in finding.problem
    await intact(filled)


async def remade(engine, url):
    """The one finding; its statements, and after them what its words say, repair all."""
    finding, *others = await problems(engine)
    assert {each.check for each in others} <= {"triggers"}
    assert finding.level == "error"
    command = "agent-sessions count --create-tables"
    assert f"create_tables=True, or {command}, then makes the table and" in finding.problem
    if finding.repair:
        await run(engine, finding.repair)
        # On SQLite the trigger of the table is missing with it.
        missing, *others = await problems(engine)
        assert {each.check for each in others} <= {"triggers"}
        assert (missing.level, missing.check, missing.repair) == ("error", "tables", ())
        assert "agent_sessions_metadata_elements is missing, and there are" in missing.problem
        assert command in missing.problem
    result = await asyncio.to_thread(commands.run, *command.split()[1:], url=url)
    assert result.exit_code == 0, result.output
    assert await problems(engine) == []
    return finding


async def drop_column(engine, table, column):
    await raw.execute(engine, f"ALTER TABLE {table} DROP COLUMN {column}")


NARROW = {
    "postgresql": [
        ("agent_sessions_metadata", "ALTER COLUMN value TYPE VARCHAR(500)", "value holds 500"),
        ("agent_messages", "ALTER COLUMN message_data TYPE VARCHAR(900)", "holds 900"),
        ("agent_sessions_metadata", "ALTER COLUMN value DROP NOT NULL", "may be NULL"),
        ("agent_sessions", "ALTER COLUMN updated_at TYPE TIMESTAMPTZ", "WITHOUT TIME ZONE"),
        ("agent_messages", "ALTER COLUMN created_at TYPE TIMESTAMPTZ", "WITHOUT TIME ZONE"),
        ("agent_sessions_metadata", "ALTER COLUMN value TYPE JSONB USING value::JSONB", "JSONB"),
    ],
    "mysql": [
        ("agent_messages", "MODIFY message_data TEXT NOT NULL", "shorter than LONGTEXT"),
        ("agent_sessions_metadata", "MODIFY value TEXT NOT NULL", "shorter than LONGTEXT"),
        (
            "agent_sessions_metadata",
            "MODIFY value LONGTEXT CHARACTER SET latin1 NOT NULL",
            "holds characters of latin1 only",
        ),
        (
            "agent_sessions_metadata",
            "MODIFY search_key VARBINARY(100) NOT NULL",
            "not VARBINARY(512)",
        ),
        ("agent_sessions_metadata", "MODIFY search_rest BLOB NOT NULL", "not LONGBLOB"),
        (
            "agent_sessions",
            "MODIFY updated_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP",
            "keeps local time",
        ),
        (
            "agent_sessions",
            "MODIFY created_at TIMESTAMP NOT NULL DEFAULT now() ON UPDATE CURRENT_TIMESTAMP",
            "moves with every update",
        ),
    ],
}


@pytest.mark.parametrize(
    ("shared_database", "case"),
    [(name, case) for kind, cases in NARROW.items() for name in of_kind(kind) for case in cases],
    indirect=["shared_database"],
    ids=lambda value: value if isinstance(value, str) else f"{value[0]}-{value[2]}",
)
async def test_columns_of_another_type(filled, case):
    table, change, words = case
    await raw.execute(filled.engine, f"ALTER TABLE {table} {change.replace(':', chr(92) + ':')}")
    found = await repair(filled.engine, "columns")
    assert words in found[0].problem
    assert len(found) == 1
    page = await filled.list_sessions(keys=[])
    assert len(page.sessions) == 2


@only("postgresql", "mysql")
async def test_a_narrow_key(filled, shared_database):
    engine = filled.engine
    await without_foreign_keys(engine, "agent_sessions_metadata_elements")
    change = {
        "postgresql": "ALTER COLUMN key TYPE VARCHAR(100)",
        "mysql": "MODIFY `key` VARCHAR(100) CHARACTER SET utf8mb4"
        f" COLLATE {await exact_collation(engine)} NOT NULL",
    }[shared_database.kind]
    await raw.execute(engine, f"ALTER TABLE agent_sessions_metadata {change}")
    found = await repair(engine, "columns")
    assert "agent_sessions_metadata.key holds 100 characters, not 255" in found[0].problem
    await intact(filled)


async def without_foreign_keys(engine, table):
    async with engine.connect() as connection:
        keys = await connection.run_sync(lambda sync: inspect(sync).get_foreign_keys(table))
    word = "FOREIGN KEY" if engine.dialect.name == "mysql" else "CONSTRAINT"
    for key in keys:
        await raw.execute(engine, f"ALTER TABLE {table} DROP {word} {key['name']}")


async def sqlite_retyped(engine, table, old, new):
    """Declare a table otherwise, as somebody who wrote the SQL by hand."""
    rows = await raw.execute(
        engine, "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :t", t=table
    )
    definition, replaced = re.subn(old, new, rows[0][0])
    assert replaced
    indexes = await raw.execute(
        engine, "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = :t", t=table
    )
    triggers = await raw.execute(engine, "SELECT name, sql FROM sqlite_master WHERE type='trigger'")
    await run(
        engine,
        [
            *(f"DROP TRIGGER {name}" for name, _ in triggers),
            f"CREATE TABLE copy AS SELECT * FROM {table}",
            f"DROP TABLE {table}",
            definition,
            f"INSERT INTO {table} SELECT * FROM copy",
            "DROP TABLE copy",
            *(sql for (sql,) in indexes if sql),
            *(sql for _, sql in triggers),
        ],
    )


SQLITE_CASES = [
    ("agent_sessions_metadata", "value TEXT NOT NULL", "value JSON NOT NULL", "columns"),
    ("agent_sessions_metadata", "value TEXT NOT NULL", "value TEXT", "columns"),
    ("agent_messages", "message_data TEXT", "message_data NUMERIC", "columns"),
    (
        "agent_sessions_metadata",
        r'"key" VARCHAR\(255\) NOT NULL',
        '"key" VARCHAR(255) COLLATE NOCASE NOT NULL',
        "collations",
    ),
    (
        "agent_sessions",
        "session_id VARCHAR NOT NULL",
        "session_id VARCHAR COLLATE RTRIM NOT NULL",
        "collations",
    ),
    ("agent_sessions", r", \n\tPRIMARY KEY \(session_id\)", "", "indexes"),
    (
        "agent_sessions_metadata",
        r'PRIMARY KEY \(session_id, "key"\), |WITHOUT ROWID',
        "",
        "indexes",
    ),
    (
        "agent_sessions",
        "created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP",
        "created_at TIMESTAMP",
        "columns",
    ),
    ("agent_sessions_metadata", " ON DELETE CASCADE", "", "foreign keys"),
    ("agent_sessions_metadata_elements", " ON DELETE CASCADE", "", "foreign keys"),
    ("agent_messages", " ON DELETE CASCADE", "", "foreign keys"),
]


@pytest.mark.parametrize("case", SQLITE_CASES, ids=lambda case: f"{case[0]}-{case[3]}")
@only("sqlite")
async def test_tables_that_somebody_made_by_hand(filled, shared_database, case):
    table, old, new, check = case
    await sqlite_retyped(filled.engine, table, old, new)
    await repair(filled.engine, check, ["error", "warning"])
    await intact(filled)


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("agent_sessions", "created_at"),
        ("agent_sessions", "updated_at"),
        ("agent_messages", "created_at"),
        ("agent_messages", "id"),
        ("agent_sessions_metadata", "created_at"),
    ],
)
@only("postgresql", "mysql")
async def test_a_column_without_its_default(filled, shared_database, table, column):
    engine = filled.engine
    change = f"ALTER COLUMN {column} DROP DEFAULT"
    if (shared_database.kind, column) == ("mysql", "id"):
        change = "MODIFY id INTEGER NOT NULL"
    await raw.execute(engine, f"ALTER TABLE {table} {change}")
    found = await repair(engine, "columns")
    assert [each.problem for each in found] == [f"{table}.{column} has no default"]
    await filled.session("c").add_items([raw.message("hello")])
    await filled.set_metadata("c", {"n": 2})
    assert await filled.delete_session("c")
    await intact(filled)


@only("postgresql", "mysql")
async def test_a_column_that_nobody_gives_a_value(filled, shared_database):
    engine = filled.engine
    for table in ("agent_sessions_metadata", "agent_messages"):
        add = f"ALTER TABLE {table} ADD COLUMN tenant INTEGER DEFAULT 7"
        await raw.execute(engine, add)
        assert await problems(engine) == []
        if shared_database.kind == "mysql":
            await raw.execute(engine, f"ALTER TABLE {table} MODIFY tenant INTEGER NOT NULL")
        else:
            for change in ("SET NOT NULL", "DROP DEFAULT"):
                await raw.execute(engine, f"ALTER TABLE {table} ALTER COLUMN tenant {change}")
        (found,) = await problems(engine)
        assert (found.level, found.check, found.repair) == ("error", "columns", ())
        assert f"column {table}.tenant" in found.problem
        await raw.execute(engine, f"ALTER TABLE {table} DROP COLUMN tenant")


@only("sqlite")
async def test_a_repair_keeps_what_foreign_keys_would_delete(filled, shared_database):
    engine = filled.engine
    await sqlite_retyped(engine, "agent_sessions", "VARCHAR NOT NULL", "VARCHAR COLLATE NOCASE")
    found = await problems(engine)
    # The application switches foreign keys on, and the script is run in its shell.
    connection = sqlite3.connect(engine.url.database)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.executescript(";\n".join(s for each in found for s in each.repair) + ";")
    connection.close()
    assert await problems(engine) == []
    await intact(filled)


# ---- collations ----


@only("mysql")
async def test_a_sessions_table_of_another_collation(engine, shared_database):
    await raw.create_sdk_tables(engine, length=190, charset="latin1", collation="latin1_swedish_ci")
    await SessionCatalog(engine, create_tables=True).count_sessions()
    found = await repair(engine, "collations", ["error", "warning"])
    words = " ".join(finding.problem for finding in found)
    assert (
        "agent_sessions.session_id does not distinguish case or accents or trailing spaces" in words
    )
    assert "holds characters of latin1 only" in words
    assert "holds 190 characters, not 255" in words
    await filled_by_hand(engine)


@only("mysql")
async def test_ours_are_made_where_the_sessions_table_has_another_collation(
    engine, shared_database
):
    await raw.create_sdk_tables(engine, length=255, collation="utf8mb4_general_ci")
    await repair(engine, "tables", ["error", "warning"])
    await filled_by_hand(engine)


# Only ICU can do it on PostgreSQL; the server of the tests has none.
@pytest.mark.parametrize(
    "shared_database",
    [name for name in SHARED_DATABASES if name in ("postgresql-url", "mariadb")],
    indirect=True,
)
async def test_a_collation_that_takes_different_texts_for_the_same(filled, shared_database):
    engine = filled.engine
    if shared_database.kind == "postgresql":
        await raw.execute(
            engine,
            "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level1',"
            " deterministic = false)",
        )
        changes = ["ALTER COLUMN key TYPE VARCHAR(255) COLLATE loose"]
    else:
        changes = ["MODIFY `key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"]
    for table in ("agent_sessions_metadata_elements", "agent_sessions_metadata"):
        await without_foreign_keys(engine, table)
        for change in changes:
            await raw.execute(
                engine, f"ALTER TABLE {table} {change} ".replace("ci ", "ci NOT NULL")
            )
    found = await repair(engine, "collations")
    assert "agent_sessions_metadata.key does not distinguish case or accents" in found[0].problem
    await intact(filled)


@only("mysql")
async def test_ids_that_differ_from_their_parents(filled, shared_database):
    engine = filled.engine
    await without_foreign_keys(engine, "agent_sessions_metadata")
    await without_foreign_keys(engine, "agent_sessions_metadata_elements")
    await raw.execute(
        engine,
        "ALTER TABLE agent_sessions_metadata MODIFY session_id VARCHAR(255)"
        " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL",
    )
    found = await repair(engine, "columns", ["error", "warning"])
    assert any("utf8mb4_bin" in finding.problem for finding in found)
    await intact(filled)


# ---- keys, indexes, triggers, orphans ----


@only("postgresql", "mysql")
async def test_a_missing_primary_key(filled, shared_database):
    engine = filled.engine
    await without_foreign_keys(engine, "agent_sessions_metadata_elements")
    word = "CONSTRAINT agent_sessions_metadata_pkey" * (shared_database.kind == "postgresql")
    if shared_database.kind == "mysql":
        # The foreign key leans on the primary key's index.
        await without_foreign_keys(engine, "agent_sessions_metadata")
    await raw.execute(engine, f"ALTER TABLE agent_sessions_metadata DROP {word or 'PRIMARY KEY'}")
    found = await repair(engine, "indexes")
    assert "primary key of agent_sessions_metadata" in found[0].problem
    await intact(filled)


FOREIGN_KEYS = ["agent_messages", "agent_sessions_metadata", "agent_sessions_metadata_elements"]


@pytest.mark.parametrize("table", FOREIGN_KEYS)
@only("postgresql", "mysql")
async def test_a_missing_foreign_key_and_the_orphans_it_let_in(filled, shared_database, table):
    engine = filled.engine
    await without_foreign_keys(engine, table)
    parent = table.removesuffix("_elements") if "elements" in table else "agent_sessions"
    await raw.execute(engine, f"DELETE FROM {parent} WHERE session_id = 'a'")
    found = await repair(engine, "foreign keys", ["error", "warning"])
    assert [finding.check for finding in found] == ["orphans", "foreign keys"]
    if parent == "agent_sessions":
        await intact(filled, ["b"])


OTHER_COLLATIONS = [
    (table, column)
    for table in (*FOREIGN_KEYS, "agent_sessions")
    for column in ("session_id", "key")
    if column == "session_id" or "metadata" in table
]


@pytest.mark.parametrize("loose", [False, True], ids=["deterministic", "nondeterministic"])
@pytest.mark.parametrize(("table", "column"), OTHER_COLLATIONS)
@only("postgresql")
async def test_a_column_of_another_collation(filled, shared_database, table, column, loose):
    engine = filled.engine
    is_private = shared_database.name == "postgresql"
    if loose and not is_private:
        await raw.execute(
            engine,
            "CREATE COLLATION other (provider = icu, locale = 'und-u-ks-level1',"
            " deterministic = false)",
        )
    else:
        await raw.execute(engine, 'CREATE COLLATION other FROM "POSIX"')
    if loose:
        # Only ICU makes such a collation, and the private server has none. There, the catalogue
        # says so of another one.
        await raw.execute(
            engine, "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'other'"
        )
        for each in FOREIGN_KEYS:
            await without_foreign_keys(engine, each)
    kind = "VARCHAR(255)" if column == "key" else "VARCHAR"
    await raw.execute(engine, f"ALTER TABLE {table} ALTER {column} TYPE {kind} COLLATE other")
    found = await repair(engine, "columns", ["error", "warning"])
    words = " ".join(finding.problem for finding in found)
    assert f"{table}.{column} " in words
    assert "characters of the collation other" in words
    if loose:
        how = "has the nondeterministic collation other" if is_private else "does not distinguish"
        assert f"{table}.{column} {how}" in words
    else:
        assert "distinguish" not in words
        assert "nondeterministic" not in words
    await intact(filled)


@only("postgresql")
async def test_orphans_among_columns_of_another_collation(filled, shared_database):
    engine = filled.engine
    await without_foreign_keys(engine, "agent_sessions_metadata_elements")
    for column, kind in (("session_id", "VARCHAR"), ("key", "VARCHAR(255)")):
        change = f'ALTER {column} TYPE {kind} COLLATE "POSIX"'
        await raw.execute(engine, f"ALTER TABLE agent_sessions_metadata_elements {change}")
    await raw.execute(engine, "DELETE FROM agent_sessions_metadata WHERE session_id = 'b'")
    found = await repair(engine, "orphans")
    assert [each.check for each in found] == ["columns", "columns", "orphans", "foreign keys"]
    assert "2 rows of agent_sessions_metadata_elements have no row in" in found[2].problem
    assert await raw.count_rows(engine, "agent_sessions_metadata_elements") == 2


@pytest.mark.parametrize("table", FOREIGN_KEYS)
@only("postgresql", "mysql")
async def test_ids_shorter_than_their_parents(filled, shared_database, table):
    engine = filled.engine
    await without_foreign_keys(engine, table)
    if shared_database.kind == "mysql":
        await without_foreign_keys(engine, "agent_sessions_metadata_elements")
        change = f"MODIFY session_id VARCHAR(10) COLLATE {await exact_collation(engine)} NOT NULL"
    else:
        change = "ALTER session_id TYPE VARCHAR(10)"
    await raw.execute(engine, f"ALTER TABLE {table} {change}")
    found = await repair(engine, "columns", ["error", "warning"])
    words = " ".join(finding.problem for finding in found)
    assert f"{table}.session_id is 10 characters of" in words
    assert f"{table}.session_id holds 10 characters, not 255" in words
    await filled.create_session("longer than ten", metadata={"tags": ["y"]})
    await filled.delete_session("longer than ten")
    await intact(filled)


@only("postgresql")
async def test_ids_as_long_as_metadata_needs(filled, shared_database):
    for table in FOREIGN_KEYS[1:]:
        change = 'ALTER session_id TYPE VARCHAR(255) COLLATE "C"'
        await raw.execute(filled.engine, f"ALTER TABLE {table} {change}")
    assert await problems(filled.engine) == []


@pytest.mark.parametrize("own_length", [255, 300])
@only("mysql")
async def test_a_sessions_table_with_longer_ids(engine, shared_database, own_length):
    collation = await exact_collation(engine)
    await raw.create_sdk_tables(engine, length=512, collation=collation)
    catalog = SessionCatalog(engine, create_tables=True)
    for name in ("a", "b"):
        session = await catalog.create_session(name, metadata={"tags": ["x", "y"], "n": 1})
        await session.add_items([raw.message("hello")])
    if own_length != 255:  # as they once were made
        for table in FOREIGN_KEYS[:0:-1]:
            await without_foreign_keys(engine, table)
        for table in FOREIGN_KEYS[1:]:
            change = f"MODIFY session_id VARCHAR({own_length}) COLLATE {collation} NOT NULL"
            await raw.execute(engine, f"ALTER TABLE {table} {change}")
        await repair(engine, "foreign keys")
    assert await problems(engine) == []
    await intact(catalog)


DISABLED = {
    "on the child": "ALTER TABLE {table} DISABLE TRIGGER ALL",
    "on the parent": "ALTER TABLE {parent} DISABLE TRIGGER ALL",
    "on replicas only": "ALTER TABLE {parent} ENABLE REPLICA TRIGGER {trigger}",
}


@pytest.mark.parametrize("way", DISABLED)
@pytest.mark.parametrize("table", FOREIGN_KEYS)
@only("postgresql")
async def test_a_foreign_key_whose_triggers_are_off(filled, shared_database, table, way):
    engine = filled.engine
    parent = table.removesuffix("_elements") if "elements" in table else "agent_sessions"
    query = (
        "SELECT t.tgname FROM pg_trigger t JOIN pg_constraint k ON k.oid = t.tgconstraint"
        f" WHERE k.conrelid = to_regclass('{table}') AND t.tgrelid = to_regclass('{parent}')"
        " ORDER BY t.tgname LIMIT 1"
    )
    [[trigger]] = await raw.execute(engine, query)
    statement = DISABLED[way].format(table=table, parent=parent, trigger=f'"{trigger}"')
    await raw.execute(engine, statement)
    if way == "on the parent":
        await raw.execute(engine, f"DELETE FROM {parent} WHERE session_id = 'a'")
    found = await repair(engine, "foreign keys", ["error", "warning"])
    words = f"the foreign key of {table} to {parent} is switched off"
    assert words in [each.problem for each in found]
    assert ("orphans" in {each.check for each in found}) == (way == "on the parent")
    if way != "on the parent":
        await intact(filled)


# New in PostgreSQL 18, which is what the tests start; another server may be older.
@pytest.mark.parametrize("shared_database", ["postgresql"], indirect=True)
async def test_a_foreign_key_that_is_not_enforced(filled, shared_database):
    engine, table = filled.engine, "agent_sessions_metadata"
    change = "ALTER CONSTRAINT agent_sessions_metadata_session_fk NOT ENFORCED"
    await raw.execute(engine, f"ALTER TABLE {table} {change}")
    found = await repair(engine, "foreign keys")
    assert f"the foreign key of {table} to agent_sessions is switched off" == found[0].problem
    await intact(filled)


@pytest.mark.parametrize("table", FOREIGN_KEYS)
@only("postgresql")
async def test_a_foreign_key_that_was_never_checked(filled, shared_database, table):
    engine = filled.engine
    query = (
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
        f" WHERE conrelid = to_regclass('{table}') AND contype = 'f'"
    )
    [[name, definition]] = await raw.execute(engine, query)
    parent = table.removesuffix("_elements") if "elements" in table else "agent_sessions"
    await raw.execute(engine, f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    await raw.execute(engine, f"DELETE FROM {parent} WHERE session_id = 'a'")
    change = f"ADD CONSTRAINT {name} {definition} NOT VALID"
    await raw.execute(engine, f"ALTER TABLE {table} {change}")
    found = await repair(engine, "foreign keys", ["error", "warning"])
    assert [each.check for each in found] == ["orphans", "foreign keys"]
    assert "was never checked for the rows before it" in found[1].problem


@only("mysql")
async def test_a_client_without_foreign_keys(filled, shared_database):
    off = {"init_command": "SET foreign_key_checks = 0"}
    engine = create_async_engine(shared_database.url, connect_args=off)
    (finding,) = await problems(engine)
    assert (finding.level, finding.check, finding.repair) == ("error", "foreign keys", ())
    assert "it is this client that sets foreign_key_checks" in finding.problem
    await engine.dispose()


# Not on a server that others use meanwhile.
@pytest.mark.parametrize(
    "shared_database",
    [] if os.environ.get("TEST_MYSQL_URL") else of_kind("mysql"),
    indirect=True,
)
async def test_a_server_without_foreign_keys(filled, shared_database):
    await raw.execute(filled.engine, "SET GLOBAL foreign_key_checks = 0")
    try:
        await filled.engine.dispose()
        (finding,) = await problems(filled.engine)
        assert (finding.level, finding.check) == ("error", "foreign keys")
        await run(filled.engine, finding.repair)
        await filled.engine.dispose()
        assert await problems(filled.engine) == []
    finally:
        await raw.execute(filled.engine, "SET GLOBAL foreign_key_checks = 1")
    await intact(filled)


@pytest.mark.parametrize("table", FOREIGN_KEYS)
@only("postgresql", "mysql")
async def test_a_foreign_key_that_does_not_delete(filled, shared_database, table):
    engine = filled.engine
    async with engine.connect() as connection:
        (key,) = await connection.run_sync(lambda sync: inspect(sync).get_foreign_keys(table))
    await without_foreign_keys(engine, table)
    quote = engine.dialect.identifier_preparer.quote
    own, others = (
        ", ".join(map(quote, key[f"{side}_columns"])) for side in ("constrained", "referred")
    )
    await raw.execute(
        engine,
        f"ALTER TABLE {table} ADD CONSTRAINT wrong FOREIGN KEY ({own})"
        f" REFERENCES {key['referred_table']} ({others})",
    )
    found = await repair(engine, "foreign keys", ["error", "warning"])
    assert "does not delete with its parent" in found[0].problem
    await intact(filled)


@only("sqlite")
async def test_orphans(filled, shared_database):
    engine = filled.engine
    triggers = await raw.execute(engine, "SELECT name FROM sqlite_master WHERE type = 'trigger'")
    for (name,) in triggers:
        await raw.execute(engine, f"DROP TRIGGER {name}")
    await raw.execute(engine, "DELETE FROM agent_sessions WHERE session_id = 'a'")
    await raw.execute(
        engine, "DELETE FROM agent_sessions_metadata WHERE session_id = 'b' AND key = 'tags'"
    )
    found = await repair(engine, "orphans")
    assert [finding.check for finding in found] == ["orphans"] * 3 + ["triggers"] * 4
    assert "1 row of agent_messages has no row in agent_sessions" in found[0].problem
    assert "2 rows of agent_sessions_metadata_elements have no row" in found[2].problem
    assert await raw.metadata_rows(engine) == 1
    assert await raw.count_rows(engine, "agent_messages") == 1


@only("sqlite")
async def test_a_trigger_that_does_something_else(filled, shared_database):
    engine = filled.engine
    name = "agent_sessions_metadata_after_delete"
    await raw.execute(engine, f"DROP TRIGGER {name}")
    await raw.execute(
        engine, f"CREATE TRIGGER {name} AFTER DELETE ON agent_sessions BEGIN SELECT 1; END"
    )
    found = await repair(engine, "triggers")
    assert "does something else" in found[0].problem
    await intact(filled)


@pytest.mark.parametrize(
    ("table", "index"),
    [
        ("agent_messages", "idx_agent_messages_session_time"),
        ("agent_sessions_metadata", "agent_sessions_metadata_search_idx"),
        ("agent_sessions_metadata_elements", "agent_sessions_metadata_elements_search_idx"),
    ],
)
@pytest.mark.parametrize("way", ["missing", "other columns"])
async def test_indexes(filled, shared_database, table, index, way):
    engine = filled.engine
    on = f" ON {table}" if shared_database.kind == "mysql" else ""
    if shared_database.kind == "mysql":
        # A foreign key wants some index.
        await raw.execute(engine, f"CREATE INDEX other ON {table} (session_id)")
    await raw.execute(engine, f"DROP INDEX {index}{on}")
    if way == "other columns":
        await raw.execute(engine, f"CREATE INDEX {index} ON {table} (session_id)")
    found = await repair(engine, "indexes")
    assert f"{table} has no index on" in found[0].problem
    await intact(filled)


async def test_an_index_of_some_rows_or_of_parts_of_columns(filled, shared_database):
    engine, kind = filled.engine, shared_database.kind
    index, table = "agent_sessions_metadata_search_idx", "agent_sessions_metadata"
    await raw.execute(engine, f"DROP INDEX {index}" + (f" ON {table}" if kind == "mysql" else ""))
    columns = "`key`(10), search_key(5), session_id" if kind == "mysql" else ""
    some = "" if kind == "mysql" else " WHERE session_id > 'b'"
    columns = columns or "key, search_key, session_id"
    await raw.execute(engine, f"CREATE INDEX {index} ON {table} ({columns}){some}")
    found = await repair(engine, "indexes")
    assert [each.problem for each in found] == [
        f"{table} has no index on (key, search_key, session_id)"
    ]
    await intact(filled)


@only("postgresql")
async def test_an_index_whose_making_was_broken_off(filled, shared_database):
    engine, index = filled.engine, "agent_sessions_metadata_search_idx"
    # As CREATE INDEX CONCURRENTLY leaves it when it is cancelled.
    await raw.execute(
        engine,
        f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{index}'::regclass",
    )
    await repair(engine, "indexes")
    await intact(filled)


@only("postgresql", "mysql")
async def test_a_foreign_key_to_another_table(filled, shared_database):
    engine, table = filled.engine, "agent_sessions_metadata"
    await without_foreign_keys(engine, "agent_sessions_metadata_elements")
    await without_foreign_keys(engine, table)
    collation = await exact_collation(engine)
    text = f"VARCHAR(255) CHARACTER SET utf8mb4 COLLATE {collation}" if collation else "VARCHAR"
    if not collation:
        text += ' COLLATE "C"'
    await run(
        engine,
        [
            f"CREATE TABLE others (session_id {text} PRIMARY KEY)",
            "INSERT INTO others SELECT session_id FROM agent_sessions",
            (
                f"ALTER TABLE {table} ADD CONSTRAINT {table}_session_fk FOREIGN KEY (session_id)"
                " REFERENCES others (session_id) ON DELETE CASCADE"
            ),
        ],
    )
    await repair(engine, "foreign keys")
    await intact(filled)


@only("mysql")
async def test_tables_of_the_sdk_in_an_engine_without_transactions(engine, shared_database):
    await raw.create_sdk_tables(engine, length=190, collation=await exact_collation(engine))
    await without_foreign_keys(engine, "agent_messages")
    for table in ("agent_messages", "agent_sessions"):
        await raw.execute(engine, f"ALTER TABLE {table} ENGINE=MyISAM")
    await repair(engine, "engine", ["error", "warning"])


@only("mysql")
async def test_an_engine_without_transactions(filled, shared_database):
    engine = filled.engine
    for table in ("agent_messages", "agent_sessions_metadata_elements", "agent_sessions_metadata"):
        await without_foreign_keys(engine, table)
    await raw.execute(engine, "ALTER TABLE agent_sessions ENGINE=MEMORY")
    await repair(engine, "engine", ["error", "warning"])
    await intact(filled)


# ---- clocks ----


@only("postgresql")
async def test_a_zone_that_is_not_utc(filled, shared_database):
    engine = filled.engine
    name = make_url(shared_database.url).database
    before = (await filled.get_session("a")).updated_at
    await raw.execute(engine, f"ALTER DATABASE {name} SET timezone = 'Asia/Kolkata'")
    await raw.execute(engine, "UPDATE agent_sessions SET updated_at = updated_at + '5:30'")
    await raw.execute(engine, "UPDATE agent_sessions SET created_at = created_at + '5:30'")
    await raw.execute(engine, "UPDATE agent_messages SET created_at = created_at + '5:30'")
    await engine.dispose()
    assert (await filled.get_session("a")).updated_at == before
    (finding,) = await problems(engine)
    assert (finding.level, finding.check) == ("warning", "clock")
    assert "Asia/Kolkata" in finding.problem
    await run(engine, finding.repair)
    await engine.dispose()
    assert await problems(engine) == []
    assert (await filled.get_session("a")).updated_at == before


@only("postgresql")
async def test_a_zone_that_the_client_asks_for(filled, shared_database):
    settings = {"server_settings": {"timezone": "Europe/London"}}
    engine = create_async_engine(shared_database.url, connect_args=settings)
    (finding,) = await problems(engine)
    assert "it is this client that asks" in finding.problem
    assert finding.repair == ()
    await engine.dispose()


@pytest.mark.parametrize(("shift", "words"), [(-60, "60 s ahead of"), (60, "60 s behind")])
@only("postgresql", "mysql")
async def test_clocks_that_differ(filled, shared_database, monkeypatch, shift, words):
    monkeypatch.setattr(doctor, "now", lambda: time.time() + shift)
    (finding,) = await problems(filled.engine)
    assert (finding.level, finding.check) == ("warning", "clock")
    assert words in finding.problem

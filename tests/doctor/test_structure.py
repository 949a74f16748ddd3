"""`doctor` on tables, columns, keys, indexes and foreign keys, and types of ids and keys."""

from __future__ import annotations

import pytest
from conformance import raw
from doctoring import (
    GROUPS,
    OPTIONAL,
    catalog_of,
    every_table,
    exact_collation,
    explained,
    intact,
    mended,
    problems,
    repair,
    run,
    sqlite_retyped,
)
from sqlalchemy import event, text

from agents_session_metadata.core.features import table_names
from agents_session_metadata.doctor import diagnose

ROWS = "agent_sessions_metadata"
ELEMENTS = f"{ROWS}_elements"


async def test_a_healthy_database_gives_the_versions_alone(filled):
    [versions] = await diagnose(filled.engine)
    assert versions.level == "info"
    assert "openai-agents 0." in versions.problem
    assert "SQLAlchemy 2." in versions.problem
    assert versions.repair == ()


async def test_rows_in_every_table_are_healthy(whole):
    assert await problems(whole.engine) == []


async def test_nothing_is_changed(whole, shared_database):
    await raw.execute(whole.engine, f"DELETE FROM {ELEMENTS}")
    statements = []
    event.listen(
        whole.engine.sync_engine,
        "before_cursor_execute",
        lambda _c, _k, statement, *_: statements.append(statement.split()[0].upper()),
    )
    assert await problems(whole.engine)
    assert set(statements) <= {"BEGIN", "DESCRIBE", "PRAGMA", "SELECT", "SHOW"}


async def test_tables_are_created_beside_those_of_the_sdk(engine, shared_database):
    await raw.create_sdk_tables(engine, collation=await exact_collation(engine))
    await run(engine, ["INSERT INTO agent_sessions (session_id) VALUES ('a')"])
    # An index on a table that is not ours is recommended, but not printed.
    [finding] = await mended(engine)
    assert (finding.level, finding.check) == ("info", "indexes")
    assert "agent-sessions index create '$updated_at'" in finding.problem
    catalog = catalog_of(engine, table_names())
    assert await catalog.create_index("$updated_at")
    assert await problems(engine) == []
    await catalog.set_metadata("a", {"tags": ["x"]}, must_exist=True)
    assert await catalog.count_sessions({"tags": {"$contains": "x"}}) == 1


async def test_tables_of_other_names_are_created(engine):
    names = table_names("talks", "entries", "Facts of talks")
    assert await mended(engine, names) == []
    await catalog_of(engine, names).create_session("a", metadata={"n": 1})
    assert await problems(engine, names) == []


@pytest.mark.only_on("postgresql")
async def test_statements_follow_a_schema_translation(engine, shared_database):
    await raw.execute(engine, "CREATE SCHEMA other")
    translated = engine.execution_options(schema_translate_map={None: "other"})
    assert await mended(translated) == []
    assert await raw.table_names(engine) == set()
    await catalog_of(translated, table_names()).create_session("a", metadata={"n": 1})
    await raw.execute(engine, f"DROP INDEX other.{ROWS}_search_idx")
    await repair(translated, "indexes")


@pytest.mark.logic
async def test_a_feature_has_all_tables_or_none(engine, shared_database):
    await every_table(engine, table_names())
    groups = [[table.name for table in group.tables] for group in GROUPS[1:]]
    for [table] in (group for group in groups if len(group) == 1):
        await raw.execute(engine, f"DROP TABLE {table}")
    assert await problems(engine) == []
    # The table of runs can only be dropped after that of their steps.
    several = {table for group in groups if len(group) > 1 for table in group}
    for table in sorted(several - {f"{ROWS}_runs"}):
        await raw.execute(engine, f"DROP TABLE {table}")
        found = [each.problem for each in await problems(engine) if each.check == "tables"]
        assert [f"table {table} is missing" in each for each in found] == [True]
        assert await mended(engine) == []


async def test_a_lost_elements_table_is_created_and_then_filled(filled, shared_database):
    engine = filled.engine
    await raw.execute(engine, f"DROP TABLE {ELEMENTS}")
    [finding, *_] = await problems(engine)
    assert "doctor --rewrite-search-keys fills it" in finding.problem
    [left] = await mended(engine)
    assert left.check == "elements"
    assert "--rewrite-search-keys" in left.problem


@pytest.mark.only_on("mysql", "mariadb")
async def test_a_lost_table_is_created_beside_long_ids_of_items(filled):
    engine = filled.engine
    await filled.create_index("$text")
    await raw.execute(engine, f"DROP TABLE {ROWS}_text")
    await raw.execute(engine, "ALTER TABLE agent_messages MODIFY id BIGINT AUTO_INCREMENT")
    assert await mended(engine) == []


async def test_no_sessions_table_is_created_beside_rows(filled, shared_database):
    engine = filled.engine
    for table in ("agent_messages", ROWS):
        await raw.drop_foreign_keys(engine, table)
    if shared_database.kind == "sqlite":
        for (name,) in await raw.execute(
            engine, "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ):
            await raw.execute(engine, f"DROP TRIGGER {name}")
    await raw.execute(engine, "DROP TABLE agent_sessions")
    found = await problems(engine)
    [finding] = [each for each in found if each.check == "tables"]
    assert "agent_sessions is missing, and agent_messages has rows: check the" in finding.problem
    assert finding.repair == ()


@pytest.mark.parametrize("column", ["agent_sessions.updated_at", f"{ROWS}.updated_at"])
async def test_a_missing_column_is_explained(filled, column):
    table, name = column.split(".")
    if table == "agent_sessions":
        await filled.drop_index("$updated_at")
    await raw.execute(filled.engine, f"ALTER TABLE {table} DROP COLUMN {name}")
    [finding] = await explained(filled.engine, "columns", ["error"])
    assert f"column {column} is missing" in finding.problem
    assert "as updated_at TIMESTAMP" in finding.problem


async def test_missing_indexes_are_created(whole, shared_database):
    engine = whole.engine
    on = f" ON {ROWS}" if shared_database.kind == "mysql" else ""
    await raw.execute(engine, f"DROP INDEX {ROWS}_search_idx{on}")
    [finding] = await repair(engine, "indexes")
    assert finding.problem == f"{ROWS} has no index on (key, search_key, session_id)"


async def test_an_index_of_another_name_will_do(filled, shared_database):
    engine = filled.engine
    on = " ON agent_messages" if shared_database.kind == "mysql" else ""
    index = "CREATE INDEX own ON agent_messages (session_id, created_at, id)"
    await raw.execute(engine, index)
    await raw.execute(engine, f"DROP INDEX idx_agent_messages_session_time{on}")
    assert await problems(engine) == []


@pytest.mark.only_on("sqlite", "postgresql")
async def test_what_the_application_added_gives_no_warnings(filled, shared_database):
    """Python's warnings are errors here."""
    engine = filled.engine
    await raw.execute(engine, f"ALTER TABLE {ROWS} ADD COLUMN place POINT")
    await raw.execute(engine, f"CREATE INDEX own ON {ROWS} (lower(value))")
    assert await problems(engine) == []


@pytest.mark.only_on("postgresql", "mariadb", "mysql")
@pytest.mark.parametrize("table", ["agent_messages", ROWS, ELEMENTS])
async def test_a_missing_foreign_key_is_explained(filled, shared_database, table):
    engine = filled.engine
    await raw.drop_foreign_keys(engine, table)
    [finding] = await explained(engine, "foreign keys", ["error"])
    assert f"the foreign key of {table} to " in finding.problem
    await run(engine, [finding.problem.partition("by a migration, as ")[2]])
    assert await problems(engine) == []
    await intact(filled)


@pytest.mark.only_on("sqlite")
async def test_sqlite_needs_no_foreign_keys(filled, shared_database):
    engine = filled.engine
    await sqlite_retyped(engine, "agent_messages", r", \s*FOREIGN KEY.*(?=\n\))", "")
    [finding] = await explained(engine, "foreign keys", ["warning"])
    assert "triggers do its work" in finding.problem


LOOSE = {
    "mysql": "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL",
    "sqlite": "VARCHAR COLLATE NOCASE",
}


async def loosened(engine, kind, table, column):
    """Let a column ignore case."""
    if kind == "sqlite":
        pattern = rf'"?{column}"? VARCHAR(\(\d+\))?'
        await sqlite_retyped(engine, table, pattern, f"{column} {LOOSE[kind]}")
    elif kind == "mysql":
        await raw.execute(engine, f"ALTER TABLE {table} MODIFY `{column}` {LOOSE[kind]}")
    else:
        await raw.create_loose_collation(engine, "loose")
        alter = f'ALTER TABLE {table} ALTER "{column}" TYPE VARCHAR COLLATE loose'
        await raw.execute(engine, alter)


async def test_keys_that_ignore_case_are_an_error(filled, shared_database):
    engine, kind = filled.engine, shared_database.kind
    await raw.drop_foreign_keys(engine, ELEMENTS)
    await loosened(engine, kind, ROWS, "key")
    found = [each for each in await problems(engine) if each.check == "collations"]
    assert [each.level for each in found] == ["error"]
    assert f"{ROWS}.key has the type " in found[0].problem
    assert "do not keep all different texts apart" in found[0].problem


@pytest.mark.only_on("mariadb", "mysql")
async def test_ids_that_follow_the_sessions_table_are_a_warning(engine, shared_database):
    await raw.create_sdk_tables(engine, collation="utf8mb4_general_ci")
    found = [each for each in await mended(engine) if each.level != "info"]
    assert {(each.level, each.check) for each in found} == {("warning", "collations")}
    assert len(found) == 4


@pytest.mark.parametrize("table", ["agent_sessions", ROWS])
async def test_ids_that_are_no_text_are_an_error(engine, shared_database, table):
    kind = shared_database.kind
    await every_table(engine, table_names())
    for child in (ELEMENTS, *OPTIONAL, ROWS, "agent_messages"):
        await raw.drop_foreign_keys(engine, child)
    if kind == "sqlite":
        await sqlite_retyped(engine, table, "session_id VARCHAR", "session_id NUMERIC")
    elif kind == "mysql":
        await raw.execute(engine, f"ALTER TABLE {table} MODIFY session_id INTEGER NOT NULL")
    else:
        change = "ALTER session_id TYPE UUID USING session_id::uuid"
        await raw.execute(engine, f"ALTER TABLE {table} {change}")
    found = await problems(engine)
    [finding] = [each for each in found if each.check == "types"]
    assert finding.problem.startswith(f"{table}.session_id has the type ")
    if kind == "postgresql":
        # It compares no UUID with a text, and the rest is checked all the same.
        assert any("could not be checked" in each.problem for each in found)


@pytest.mark.only_on("postgresql")
async def test_domains_and_other_exact_collations_are_healthy(engine, shared_database):
    async with engine.begin() as connection:
        await connection.execute(text("CREATE DOMAIN chat_id AS TEXT CHECK (VALUE <> 'never')"))
    await raw.create_sdk_tables(engine)
    await raw.execute(engine, "ALTER TABLE agent_messages ALTER session_id TYPE chat_id")
    assert [each.level for each in await mended(engine)] == ["info"]

"""`doctor` on tables, columns, types and collations."""

from __future__ import annotations

import re

import pytest
from conformance import raw
from doctoring import (
    FOREIGN_KEYS,
    drop_column,
    exact_collation,
    explained,
    intact,
    mended,
    of_kind,
    printed,
    problems,
    repair,
    run,
    sqlite_retyped,
    without_foreign_keys,
)

from agents_session_metadata import SessionCatalog
from agents_session_metadata.errors import TablesMismatchError
from agents_session_metadata.storage.tables import table_names

PREFIX = "agent_sessions_metadata"


async def fill(engine):
    catalog = SessionCatalog(engine)
    for name in ("a", "b"):
        session = await catalog.create_session(name, metadata={"tags": ["x", "y"], "n": 1})
        await session.add_items([raw.message("hello")])
    return catalog


# ---- tables ----


@pytest.mark.parametrize("kept", ["none", "sdk", "all but elements"])
async def test_missing_tables_are_created(engine, kept):
    if kept == "sdk":
        await raw.create_sdk_tables(engine, length=255, collation=await exact_collation(engine))
    if kept == "all but elements":
        await SessionCatalog(engine, create_tables=True).count_sessions()
        await raw.execute(engine, "DROP TABLE agent_sessions_metadata_elements")
    await repair(engine, "tables")
    await intact(await fill(engine))


async def test_tables_of_other_names_are_created(engine):
    names = table_names("talks", "entries", "Facts 100% of talks")
    missing = await problems(engine, names)
    assert [finding.check for finding in missing if finding.check == "tables"] == ["tables"] * 4
    await run(engine, printed(missing))
    assert await problems(engine, names) == []


async def test_tables_beside_those_of_the_sdk_are_healthy(engine, shared_database):
    await raw.create_sdk_tables(engine, length=255, collation=await exact_collation(engine))
    await SessionCatalog(engine, create_tables=True).count_sessions()
    assert await problems(engine) == []


# ---- columns ----


@pytest.mark.parametrize(
    ("column", "words"),
    [("updated_at", "by a migration of your own"), ("value", "restore them from a backup")],
)
async def test_a_missing_column_is_explained(filled, column, words):
    await drop_column(filled.engine, "agent_sessions_metadata", column)
    (finding,) = await explained(filled.engine, "columns", ["error"])
    assert f"column agent_sessions_metadata.{column} is missing; " in finding.problem
    assert words in finding.problem


async def test_a_missing_column_of_derived_rows_is_explained(filled):
    await drop_column(filled.engine, "agent_sessions_metadata_elements", "search_rest")
    (finding,) = await explained(filled.engine, "names", ["error"])
    assert "_elements, all its rows follow from the metadata" in finding.problem


ALTERED = {
    # kind: table, change, words, whether a statement widens it
    "postgresql": [
        ("agent_sessions_metadata", "ALTER COLUMN value TYPE VARCHAR(500)", "value holds 500", 1),
        ("agent_messages", "ALTER COLUMN message_data TYPE VARCHAR(900)", "holds 900", 1),
        ("agent_sessions_metadata", "ALTER COLUMN value DROP NOT NULL", "may be NULL", 0),
        ("agent_sessions", "ALTER COLUMN updated_at TYPE TIMESTAMPTZ", "WITHOUT TIME ZONE", 0),
        ("agent_sessions_metadata", "ALTER COLUMN value TYPE JSONB USING value::JSONB", "JSONB", 0),
        ("agent_sessions_metadata_elements", "ALTER key TYPE VARCHAR(99)", "holds 99 charact", 1),
    ],
    "mysql": [
        ("agent_messages", "MODIFY message_data TEXT NOT NULL COMMENT 'It''s'", "65535 char", 1),
        ("agent_sessions_metadata", "MODIFY value TINYTEXT NULL", "may be NULL", 1),
        (
            "agent_sessions_metadata",
            "MODIFY value LONGTEXT CHARACTER SET latin1 NOT NULL",
            "holds characters of latin1 only",
            0,
        ),
        (
            "agent_sessions_metadata",
            "MODIFY search_key VARBINARY(100) NOT NULL",
            "holds 100 bytes, not 512",
            1,
        ),
        ("agent_sessions_metadata", "MODIFY search_rest BLOB NOT NULL", "65535 bytes only", 1),
        ("agent_sessions_metadata", "MODIFY search_rest TEXT NOT NULL", "not LONGBLOB", 0),
        (
            "agent_sessions",
            "MODIFY updated_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP",
            "keeps local time",
            0,
        ),
        (
            "agent_sessions",
            "MODIFY created_at TIMESTAMP NOT NULL DEFAULT now() ON UPDATE CURRENT_TIMESTAMP",
            "changes with every update",
            0,
        ),
    ],
    "sqlite": [
        ("agent_sessions_metadata", ("value TEXT NOT NULL", "value JSON NOT NULL"), "JSON", 0),
        ("agent_sessions_metadata", ("value TEXT NOT NULL", "value TEXT"), "may be NULL", 0),
        ("agent_messages", ("message_data TEXT", "message_data NUMERIC"), "NUMERIC", 0),
        (
            "agent_sessions",
            ("created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP", "created_at TIMESTAMP"),
            "has no default",
            0,
        ),
        (
            "agent_sessions",
            (r", \n\tPRIMARY KEY \(session_id\)", ""),
            "primary key of agent_sessions is",
            0,
        ),
        (
            "agent_sessions_metadata",
            (r'PRIMARY KEY \(session_id, "key"\), |WITHOUT ROWID', ""),
            "primary key",
            0,
        ),
        ("agent_sessions_metadata", (" ON DELETE CASCADE", ""), "does not delete with its", 0),
        ("agent_messages", (" ON DELETE CASCADE", ""), "does not delete with its parent", 0),
        ("agent_messages", (" AUTOINCREMENT", ""), "agent_messages.id is not AUTOINCREMENT", 0),
        (
            "agent_sessions_metadata",
            (r'"key" VARCHAR\(255\) NOT NULL', '"key" VARCHAR(255) collate nocase NOT NULL'),
            "agent_sessions_metadata.key does not distinguish case",
            0,
        ),
        (
            "agent_sessions",
            ("session_id VARCHAR NOT NULL", "session_id VARCHAR COLLATE RTRIM NOT NULL"),
            "does not distinguish trailing spaces",
            0,
        ),
    ],
}


@pytest.mark.parametrize(
    ("shared_database", "case"),
    [(name, case) for kind, cases in ALTERED.items() for name in of_kind(kind) for case in cases],
    indirect=["shared_database"],
    ids=lambda value: value if isinstance(value, str) else f"{value[0]}-{value[2]}",
)
async def test_altered_columns_are_widened_or_explained(filled, case):
    engine, (table, change, words, is_widened) = filled.engine, case
    if isinstance(change, tuple):
        await sqlite_retyped(engine, table, *change)
    else:
        statement = f"ALTER TABLE {table} {change.replace(':', chr(92) + ':')}"
        await raw.execute(engine, statement)
    found = await problems(engine)
    assert any(words in each.problem for each in found), found
    assert len(printed(found)) == is_widened
    # What was not changed for the better is still there, and nothing else.
    await run(engine, printed(found))
    left = await problems(engine)
    kept = [each.problem for each in found if not each.repair and "above" not in each.problem]
    assert [each.problem for each in left] == kept
    page = await filled.list_sessions(keys=[])
    assert len(page.sessions) == 2


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("default", ["latin1", "utf8mb4"])
@pytest.mark.parametrize("attribute", ["", " COMPRESSED"])
async def test_widening_keeps_what_else_a_column_has(filled, shared_database, default, attribute):
    engine = filled.engine
    text = f"TEXT{attribute} CHARACTER SET latin1 COLLATE latin1_bin NOT NULL"
    await run(
        engine,
        [
            f"ALTER TABLE agent_messages DEFAULT CHARACTER SET {default}",
            f"ALTER TABLE agent_messages MODIFY message_data {text} COMMENT 'It''s ours, %d'",
        ],
    )
    found = await problems(engine)
    (statement,) = printed(found)
    assert "CHARACTER SET latin1 COLLATE latin1_bin" in statement
    # The table's default changes in the meantime.
    await run(engine, ["ALTER TABLE agent_messages DEFAULT CHARACTER SET utf8mb4", statement])
    (finding,) = await explained(engine, "columns", ["warning"])
    assert "holds characters of latin1 only: from a session with" in finding.problem
    [[_, definition]] = await raw.execute(engine, "SHOW CREATE TABLE agent_messages")
    (line,) = re.findall("`message_data` .*", definition)
    assert line.startswith("`message_data` longtext")
    assert ("COMPRESSED" in line) == bool(attribute)
    assert "CHARACTER SET latin1 COLLATE latin1_bin" in line
    assert re.search("NOT NULL( DEFAULT '')? COMMENT 'It''s ours, %d',", line)


@pytest.mark.only_on("mariadb")
async def test_widening_does_not_repair_the_character_set(filled, shared_database):
    change = "MODIFY value VARCHAR(100) CHARACTER SET latin1 NOT NULL"
    await raw.execute(filled.engine, f"ALTER TABLE agent_sessions_metadata {change}")
    found = await problems(filled.engine)
    assert len(printed(found)) == 1
    words = "value holds characters of latin1 only; doctor prints no statement for it"
    assert any(words in each.problem for each in found)
    assert [words in each.problem for each in await mended(filled.engine)] == [True]


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("kind", ["BLOB", "LONGBLOB", "VARBINARY(2000)"])
@pytest.mark.parametrize(
    ("table", "column"), [("agent_messages", "message_data"), ("agent_sessions_metadata", "value")]
)
async def test_bytes_are_never_converted_to_text(filled, shared_database, table, column, kind):
    change = f"MODIFY {column} {kind} NOT NULL"
    await raw.execute(filled.engine, f"ALTER TABLE {table} DEFAULT CHARACTER SET latin1, {change}")
    found = await explained(filled.engine, "columns", ["error"])
    words = f"has the type {kind}, not LONGTEXT CHARACTER SET utf8mb4"
    assert any(words in each.problem for each in found)


@pytest.mark.only_on("mariadb")
async def test_longer_columns_are_left_alone(engine, shared_database):
    collation = await exact_collation(engine)
    await raw.create_sdk_tables(engine, length=400, collation=collation)
    await SessionCatalog(engine, create_tables=True).count_sessions()
    await fill(engine)
    assert await problems(engine) == []
    for table in FOREIGN_KEYS[:0:-1]:
        await without_foreign_keys(engine, table)
    for table in FOREIGN_KEYS[1:]:
        change = f"MODIFY session_id VARCHAR(300) COLLATE {collation} NOT NULL"
        await raw.execute(engine, f"ALTER TABLE {table} {change}")
    await repair(engine, "foreign keys")
    rows = await raw.execute(
        engine,
        "SELECT character_maximum_length FROM information_schema.columns"
        " WHERE column_name = 'session_id' AND table_schema = database() ORDER BY 1",
    )
    assert [length for (length,) in rows] == [300, 300, 400, 400]


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("agent_sessions", "created_at"),
        ("agent_messages", "id"),
        ("agent_sessions_metadata", "created_at"),
    ],
)
@pytest.mark.only_on("postgresql", "mariadb")
async def test_a_missing_default_is_added(filled, shared_database, table, column):
    engine = filled.engine
    change = f"ALTER COLUMN {column} DROP DEFAULT"
    if (shared_database.kind, column) == ("mysql", "id"):
        change = "MODIFY id BIGINT NOT NULL COMMENT 'ours'"
    await raw.execute(engine, f"ALTER TABLE {table} {change}")
    found = await repair(engine, "columns")
    assert [each.problem for each in found] == [f"{table}.{column} has no default"]
    assert ("MODIFY" in found[0].repair[0]) == ("MODIFY" in change)
    if "MODIFY" in change:
        assert "`id` bigint(20) NOT NULL COMMENT 'ours' AUTO_INCREMENT" in found[0].repair[0]
    await filled.session("c").add_items([raw.message("hello")])
    await filled.set_metadata("c", {"n": 2})
    assert await filled.delete_session("c")
    await intact(filled)


@pytest.mark.only_on("mariadb")
async def test_a_number_of_a_copied_table_is_given_again(filled, shared_database):
    engine = filled.engine
    await run(
        engine,
        [
            "CREATE TABLE copied AS SELECT * FROM agent_messages",
            "DROP TABLE agent_messages",
            "RENAME TABLE copied TO agent_messages",
            "ALTER TABLE agent_messages MODIFY id INT NOT NULL DEFAULT 0 COMMENT 'x DEFAULT 0 y'",
        ],
    )
    assert await mended(engine) == []
    [[_, definition]] = await raw.execute(engine, "SHOW CREATE TABLE agent_messages")
    assert "NOT NULL AUTO_INCREMENT COMMENT 'x DEFAULT 0 y'" in definition
    await intact(filled)


@pytest.mark.only_on("mariadb")
async def test_no_default_is_printed_that_would_change_an_id(filled, shared_database):
    engine = filled.engine
    await raw.execute(engine, "ALTER TABLE agent_messages MODIFY id INTEGER NOT NULL")
    await raw.execute(engine, "UPDATE agent_messages SET id = 0 WHERE session_id = 'a'")
    (finding,) = await explained(engine, "columns")
    assert "agent_messages.id has no default; doctor prints no statement for it" in finding.problem


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("table", ["agent_messages", "agent_sessions_metadata_usage"])
@pytest.mark.parametrize("way", ["serial", "identity", "another sequence"])
async def test_a_sequence_behind_the_ids_is_explained(whole, shared_database, table, way):
    engine = whole.engine
    await raw.execute(engine, f"UPDATE {table} SET id = id + 40")
    if way != "serial":
        await raw.execute(engine, f"ALTER TABLE {table} ALTER id DROP DEFAULT")
        await raw.execute(engine, """CREATE SEQUENCE "It's another\"""")
        change = """SET DEFAULT nextval('"It''s another"')"""
        if way == "identity":
            change = "ADD GENERATED BY DEFAULT AS IDENTITY"
        await raw.execute(engine, f"ALTER TABLE {table} ALTER id {change}")
    [[greatest]] = await raw.execute(engine, f"SELECT max(id) FROM {table}")
    found = await explained(engine, "sequences", ["error"])
    (problem,) = [each.problem for each in found if each.check == "sequences"]
    assert f"of {table} is " in problem
    assert f"there is a row with {greatest}, so that adding rows fails" in problem
    # Also where another schema comes first in the search path.
    [[schema]] = await raw.execute(engine, "SELECT current_schema()")
    assert re.search(rf" SELECT setval\('\"?{schema}\"?\.", problem)
    await run(engine, [problem.partition(" run ")[2]])
    assert "sequences" not in {each.check for each in await problems(engine)}
    if table == "agent_messages":
        await whole.session("a").add_items([raw.message("hello")])
        assert await raw.execute(engine, "SELECT max(id) FROM agent_messages") == [(greatest + 1,)]


@pytest.mark.only_on("postgresql", "mariadb")
async def test_an_added_column_does_no_harm_unless_it_needs_a_value(filled, shared_database):
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
        (found,) = await explained(engine, "columns", ["error"])
        assert f"column {table}.tenant requires a value" in found.problem
        await raw.execute(engine, f"ALTER TABLE {table} DROP COLUMN tenant")


# ---- ids and collations ----


@pytest.mark.only_on("mariadb")
async def test_a_sessions_table_of_another_collation_is_explained(engine, shared_database):
    await raw.create_sdk_tables(engine, length=190, charset="latin1", collation="latin1_swedish_ci")
    await repair_tables(engine)
    found = await explained(engine, "collations", ["error", "warning"])
    words = " ".join(finding.problem for finding in found)
    assert (
        "agent_sessions.session_id does not distinguish case or accents or trailing spaces" in words
    )
    assert "holds characters of latin1 only" in words
    assert "holds 190 characters, not 255" in words
    await fill(engine)
    # Elements cannot be told apart, so they are not compared.
    await raw.execute(engine, "DELETE FROM agent_sessions_metadata_elements")
    assert "elements" not in {each.check for each in await problems(engine)}


async def repair_tables(engine):
    await run(engine, printed(await problems(engine)))


# Only ICU can do it on PostgreSQL; the server of the tests has none.
@pytest.mark.only_on("postgresql-url", "mariadb")
async def test_a_collation_that_ignores_differences_is_explained(filled, shared_database):
    engine = filled.engine
    if shared_database.kind == "postgresql":
        await raw.execute(
            engine,
            "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level1',"
            " deterministic = false)",
        )
        change = "ALTER COLUMN key TYPE VARCHAR(255) COLLATE loose"
    else:
        change = (
            "MODIFY `key` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL"
        )
    for table in ("agent_sessions_metadata_elements", "agent_sessions_metadata"):
        await without_foreign_keys(engine, table)
        await raw.execute(engine, f"ALTER TABLE {table} {change}")
    found = await problems(engine)
    words = [each.problem for each in found if each.check == "collations"]
    assert "agent_sessions_metadata.key does not distinguish case or accents" in " ".join(words)
    await run(engine, printed(found))
    await explained(engine, "collations")
    await intact(filled)


OTHER_COLLATIONS = [
    (table, column)
    for table in (*FOREIGN_KEYS, "agent_sessions")
    for column in ("session_id", "key")
    if column == "session_id" or "metadata" in table
]


@pytest.mark.parametrize("loose", [False, True], ids=["deterministic", "nondeterministic"])
@pytest.mark.parametrize(("table", "column"), OTHER_COLLATIONS)
@pytest.mark.only_on("postgresql")
async def test_another_collation_is_explained(filled, shared_database, table, column, loose):
    engine = filled.engine
    is_private = shared_database.name == "postgresql"
    if loose and is_private:
        await raw.create_loose_collation(engine, "other")
    elif loose:
        await raw.execute(
            engine,
            "CREATE COLLATION other (provider = icu, locale = 'und-u-ks-level1',"
            " deterministic = false)",
        )
    else:
        await raw.execute(engine, 'CREATE COLLATION other FROM "POSIX"')
    if loose:
        for each in FOREIGN_KEYS:
            await without_foreign_keys(engine, each)
    kind = "VARCHAR(255)" if column == "key" else "VARCHAR"
    await raw.execute(engine, f"ALTER TABLE {table} ALTER {column} TYPE {kind} COLLATE other")
    found = await problems(engine)
    words = " ".join(finding.problem for finding in found)
    assert f"{table}.{column} " in words
    assert "characters of the collation public.other" in words
    assert "TYPE" not in "".join(printed(found))
    if loose:
        how = (
            "has the nondeterministic collation public.other"
            if is_private
            else "does not distinguish"
        )
        assert f"{table}.{column} {how}" in words
    else:
        assert "distinguish" not in words
        assert "nondeterministic" not in words


# The type of an extension that the server of the tests lacks; only its name matters.
_CITEXT = """
CREATE TYPE citext;
CREATE FUNCTION citext_in(cstring) RETURNS citext AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
CREATE FUNCTION citext_out(citext) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
CREATE TYPE citext (INPUT = citext_in, OUTPUT = citext_out, LIKE = text, COLLATABLE = true);
CREATE CAST (citext AS text) WITHOUT FUNCTION AS IMPLICIT
"""


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("kind", ["uuid", "citext"])
async def test_ids_of_a_type_that_text_cannot_refer_to_are_explained(engine, kind):
    """Not even for the table of elements, which refers to a table that cannot be created."""
    for statement in _CITEXT.split(";"):
        await raw.execute(engine, statement)
    await raw.create_sdk_tables(engine)
    await without_foreign_keys(engine, "agent_messages")
    for table in ("agent_sessions", "agent_messages"):
        change = f"ALTER session_id TYPE {kind} USING session_id::{kind}"
        await raw.execute(engine, f"ALTER TABLE {table} {change}")
    found = await problems(engine)
    words = " ".join(finding.problem for finding in found)
    assert "no foreign key may refer to agent_sessions;" in words
    assert "no foreign key may refer to agent_sessions_metadata;" in words
    assert "CREATE TABLE" not in "".join(printed(found))


@pytest.mark.only_on("postgresql")
async def test_ids_with_trailing_spaces_that_a_type_ignores_are_explained(filled):
    await without_foreign_keys(filled.engine, "agent_messages")
    await raw.execute(filled.engine, "ALTER TABLE agent_messages ALTER session_id TYPE CHAR(255)")
    words = " ".join(finding.problem for finding in await problems(filled.engine))
    assert "agent_messages.session_id does not distinguish trailing spaces" in words


@pytest.mark.only_on("mariadb")
async def test_ids_of_another_collation_than_their_parents_are_explained(filled, shared_database):
    engine, table = filled.engine, "agent_sessions_metadata"
    await without_foreign_keys(engine, table)
    await without_foreign_keys(engine, "agent_sessions_metadata_elements")
    await raw.execute(
        engine,
        f"ALTER TABLE {table} MODIFY session_id VARCHAR(255)"
        " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL",
    )
    found = await explained(engine, "columns")
    assert any("utf8mb4_bin" in finding.problem for finding in found)


@pytest.mark.parametrize("table", FOREIGN_KEYS)
@pytest.mark.only_on("postgresql", "mariadb")
async def test_ids_shorter_than_their_parents_are_widened(filled, shared_database, table):
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


@pytest.mark.only_on("postgresql")
async def test_ids_are_not_widened_beside_a_table_that_cannot_be(engine, shared_database):
    """It would be refused then, because the database could cut ids off."""
    await raw.create_sdk_tables(engine)
    await raw.execute(engine, "CREATE DOMAIN chat_id AS VARCHAR(36)")
    for table, kind in (("agent_messages", "chat_id"), ("agent_sessions", "VARCHAR(36)")):
        await raw.execute(engine, f"ALTER TABLE {table} ALTER session_id TYPE {kind}")
    await SessionCatalog(engine, create_tables=True).create_session("a")
    found = await problems(engine)
    assert any(each.problem.startswith("agent_sessions.session_id holds 36") for each in found)
    await mended(engine)
    await SessionCatalog(shared_database.engine()).create_session("b")


@pytest.mark.only_on("mariadb")
async def test_ids_that_a_foreign_key_keeps_from_being_widened(engine, shared_database):
    await raw.create_sdk_tables(engine, length=190, collation=await exact_collation(engine))
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("a", metadata={"tags": ["x"]})
    found = await explained(engine, "columns", ["warning"])
    assert {each.check for each in found} == {"columns"}
    assert "holds 190 characters, not 255; doctor prints no statement" in found[0].problem


@pytest.mark.only_on("postgresql")
async def test_ids_as_long_as_metadata_needs_are_healthy(filled, shared_database):
    for table in FOREIGN_KEYS[1:]:
        change = 'ALTER session_id TYPE VARCHAR(255) COLLATE "C"'
        await raw.execute(filled.engine, f"ALTER TABLE {table} {change}")
    assert await problems(filled.engine) == []


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("table", ["agent_sessions", "agent_messages", PREFIX, f"{PREFIX}_usage"])
@pytest.mark.parametrize(("kind", "level"), [("NUMERIC", "error"), ("BLOB", "warning")])
async def test_ids_of_other_types_are_explained(whole, shared_database, table, kind, level):
    await sqlite_retyped(whole.engine, table, r"session_id VARCHAR(\(\d+\))?", f"session_id {kind}")
    await whole.engine.dispose()
    (finding,) = await explained(whole.engine, "columns", [level])
    words = f"{table}.session_id has the type {kind}, "
    words += "which takes 01 and 1 for one text; make it VARCHAR" if level == "error" else "not a"
    assert words in finding.problem
    catalog = SessionCatalog(whole.engine)
    if level == "error":
        about = "does not distinguish '1' and '01'"
        if table == "agent_sessions":
            about = "changes texts that it stores"
        with pytest.raises(TablesMismatchError, match=about):
            await catalog.count_sessions()
    else:
        assert await catalog.count_sessions() == 2


@pytest.mark.only_on("postgresql", "mariadb")
@pytest.mark.parametrize(
    ("table", "column"), [("usage", "cost"), ("usage", "total_tokens"), ("paused", "paused_at")]
)
async def test_numbers_that_are_too_small_are_explained(whole, table, column):
    is_mysql = whole.engine.dialect.name == "mysql"
    change = f"MODIFY {column} INT" if is_mysql else f"ALTER {column} TYPE INT USING 0"
    if is_mysql and column != "cost":
        change += " NOT NULL"
    if is_mysql:
        await raw.execute(whole.engine, f"UPDATE agent_sessions_metadata_{table} SET {column} = 0")
    await raw.execute(whole.engine, f"ALTER TABLE agent_sessions_metadata_{table} {change}")
    (finding,) = await explained(whole.engine, "columns", ["error"])
    assert f"{column} has the type INT" in finding.problem
    assert "not BIGINT" in finding.problem


@pytest.mark.only_on("mariadb")
async def test_a_short_token_of_a_claim_is_widened(whole):
    table = "agent_sessions_metadata_paused"
    await raw.execute(whole.engine, f"ALTER TABLE {table} MODIFY token VARCHAR(8)")
    assert await mended(whole.engine) == []
    [(length,)] = await raw.execute(
        whole.engine,
        "SELECT character_maximum_length FROM information_schema.columns WHERE column_name ="
        f" 'token' AND table_name = '{table}' AND table_schema = database()",
    )
    assert length == 32


@pytest.mark.only_on("postgresql")
async def test_times_that_are_rounded_are_explained(whole):
    table = "agent_sessions_metadata_activity"
    await raw.execute(whole.engine, f"ALTER TABLE {table} ALTER updated_at TYPE TIMESTAMP(0)")
    found = await problems(whole.engine)
    assert any(f"{table}.updated_at has the type TIMESTAMP(0)" in each.problem for each in found)

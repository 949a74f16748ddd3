"""`doctor` on primary keys, foreign keys, indexes, triggers and orphans."""

from __future__ import annotations

import re

import pytest
from conformance import raw
from doctoring import (
    FOREIGN_KEYS,
    GROUPS,
    explained,
    intact,
    mended,
    parent_of,
    printed,
    problems,
    repair,
    run,
    run_on,
    split,
    sqlite_retyped,
    without_foreign_keys,
)
from sqlalchemy import inspect
from sqlalchemy.exc import DBAPIError

from agents_session_metadata import SessionCatalog
from agents_session_metadata.ddl import create_statements
from agents_session_metadata.storage.tables import table_names

UPSERTED = ["_activity", "_indexes", "_words", "_words_queue", "_words_state", "_attachments"]
"""The ends of the names of optional tables whose rows are inserted only if they are missing."""


@pytest.mark.only_on("postgresql", "mariadb")
async def test_a_missing_primary_key_is_added(filled, shared_database):
    engine = filled.engine
    await without_foreign_keys(engine, "agent_sessions_metadata_elements")
    word = "CONSTRAINT agent_sessions_metadata_pkey" * (shared_database.kind == "postgresql")
    if shared_database.kind == "mysql":
        # The foreign key leans on the primary key's index.
        await without_foreign_keys(engine, "agent_sessions_metadata")
    await raw.execute(engine, f"ALTER TABLE agent_sessions_metadata DROP {word or 'PRIMARY KEY'}")
    found = await problems(engine)
    assert "primary key of agent_sessions_metadata" in found[0].problem
    await run(engine, printed(found))
    if shared_database.kind == "mysql":
        # Without the key, the server does not say whether a foreign key that used it exists.
        assert "once the findings above are repaired" in found[1].problem
        await repair(engine, "foreign keys")
    assert await problems(engine) == []
    await intact(filled)


@pytest.mark.only_on("postgresql", "mariadb")
async def test_another_primary_key_is_explained(filled, shared_database):
    engine, table = filled.engine, "agent_sessions_metadata_elements"
    drop = "PRIMARY KEY" if shared_database.kind == "mysql" else f"CONSTRAINT {table}_pkey"
    await without_foreign_keys(engine, table)
    await raw.execute(engine, f"ALTER TABLE {table} DROP {drop}")
    await raw.execute(engine, f"ALTER TABLE {table} ADD COLUMN id INTEGER")
    await raw.execute(
        engine, f"UPDATE {table} SET id = position * 2 + CASE session_id WHEN 'a' THEN 1 ELSE 0 END"
    )
    await raw.execute(engine, f"ALTER TABLE {table} ADD PRIMARY KEY (id)")
    await run_on(engine, printed(await problems(engine)))
    found = await explained(engine, "indexes")
    problem = f"the primary key of {table} is not (session_id, key, position)"
    assert problem in " ".join(each.problem for each in found)


async def test_one_of_two_equal_sessions_can_be_deleted_as_the_words_say(filled, shared_database):
    engine, key = filled.engine, ", \n\tPRIMARY KEY (session_id)"
    if shared_database.kind == "sqlite":
        await sqlite_retyped(engine, "agent_sessions", re.escape(key), "")
        query = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :table"
        for (name,) in await raw.execute(engine, query, table="agent_sessions"):
            await raw.execute(engine, f"DROP TRIGGER {name}")
    else:
        await filled.create_index("$updated_at")
    if shared_database.kind == "postgresql":
        drop = "DROP CONSTRAINT agent_sessions_pkey CASCADE"
        await raw.execute(engine, f"ALTER TABLE agent_sessions {drop}")
    elif shared_database.kind == "mysql":
        drop = "ALTER TABLE agent_sessions DROP PRIMARY KEY, ADD KEY plain (session_id)"
        await run(engine, ["SET foreign_key_checks = 0", drop])
        await engine.dispose()
    old = "'a', '2020-01-01 00:00:00', '2020-01-01 00:00:00'"
    await raw.execute(engine, f"INSERT INTO agent_sessions VALUES ({old})")
    found = await explained(engine, "indexes")
    assert "deleting one of them also deletes the rows of other tables" in found[0].problem
    assert "drop the foreign keys to this table and the triggers on it" in found[0].problem
    if shared_database.kind != "sqlite":
        for table in FOREIGN_KEYS[:2]:
            await without_foreign_keys(engine, table)
    # Neither foreign keys nor triggers are printed while there are two.
    await explained(engine, "indexes")
    await raw.execute(engine, "DELETE FROM agent_sessions WHERE created_at < '2021-01-01 00:00:00'")
    if shared_database.kind == "sqlite":
        found = await explained(engine, "triggers")
        assert "doctor prints it once agent_sessions has its primary key" in found[-1].problem
        await sqlite_retyped(engine, "agent_sessions", r"\n\)$", f"{key}\n)")
    assert await mended(engine) == []
    await filled.drop_index("$updated_at")
    await intact(filled)


@pytest.mark.parametrize("table", FOREIGN_KEYS)
@pytest.mark.only_on("postgresql", "mariadb")
async def test_a_missing_foreign_key_waits_for_orphans(filled, shared_database, table):
    engine, parent = filled.engine, parent_of(table)
    await without_foreign_keys(engine, table)
    (missing,) = await problems(engine)
    assert (missing.check, len(missing.repair)) == ("foreign keys", 1)
    await raw.execute(engine, f"DELETE FROM {parent} WHERE session_id = 'a'")
    if "elements" in table:
        # Rows of elements follow from the lists.
        found = await repair(engine, "orphans")
        assert [finding.check for finding in found] == ["orphans", "foreign keys"]
        assert await raw.count_rows(engine, table) == 2
        return
    rows = await raw.count_rows(engine, table)
    orphans, missing = await explained(engine, "orphans")
    assert f"of {table} ha" in orphans.problem
    assert "doctor prints it once the findings above are repaired" in missing.problem
    await run(engine, [orphans.problem.partition("session row again: ")[2]])
    await repair(engine, "foreign keys", ["error", "warning"])
    assert await raw.count_rows(engine, table) == rows
    assert {info.session_id async for info in filled.iter_sessions()} == {"a", "b"}


@pytest.mark.only_on("postgresql", "mariadb")
async def test_a_foreign_key_that_deletes_what_outlives_sessions_is_found(whole, shared_database):
    engine, table = whole.engine, "agent_sessions_metadata_usage"
    add = f"ALTER TABLE {table} ADD CONSTRAINT {{}} FOREIGN KEY (session_id) REFERENCES"
    add += " agent_sessions (session_id) ON DELETE {}"
    await raw.execute(engine, add.format("harmless", "SET NULL"))
    assert await problems(engine) == []
    await raw.execute(engine, add.format("harmful", "CASCADE"))
    (finding,) = await explained(engine, "foreign keys", ["error"])
    assert "rows that outlive their session: drop harmful yourself" in finding.problem


@pytest.mark.only_on("sqlite")
async def test_orphans_get_their_session_row_back(filled, shared_database):
    engine = filled.engine
    triggers = await raw.execute(engine, "SELECT name, sql FROM sqlite_master WHERE type='trigger'")
    for name, _ in triggers:
        if not name.endswith("_after_insert"):
            await raw.execute(engine, f"DROP TRIGGER {name}")
    await raw.execute(engine, "DELETE FROM agent_sessions WHERE session_id = 'a'")
    rows = "DELETE FROM agent_sessions_metadata WHERE session_id = 'b' AND key = 'tags'"
    await raw.execute(engine, rows)
    found = await problems(engine)
    assert [finding.check for finding in found] == ["orphans"] * 3 + ["triggers"] * 3
    assert "1 row of agent_messages has no row in agent_sessions" in found[1].problem
    assert "2 rows of agent_sessions_metadata_elements have no row" in found[0].problem
    await run(engine, printed(found))
    # The trigger that is left deletes metadata of an earlier session when a session is inserted.
    messages, metadata = await explained(engine, "orphans")
    for finding in (messages, metadata):
        begin, drop, insert, create, commit = split(
            finding.problem.partition("session row again: ")[2]
        )
        # Without the statement before it, it does nothing.
        await run(engine, [insert])
        assert await raw.count_rows(engine, "agent_sessions") == 1
    await run(engine, [begin, drop, insert, create, commit])
    assert await problems(engine) == []
    assert await filled.get_metadata("a") == {"tags": ["x", "y"], "n": 1}
    assert len(await filled.session("a").get_items()) == 1
    assert await filled.get_metadata("b") == {"n": 1}


@pytest.mark.only_on("sqlite")
async def test_a_session_that_is_restored_after_its_rows_keeps_them(whole, shared_database):
    """A dump may contain the sessions last, such as after Alembic has made their table anew."""
    engine = whole.engine
    await raw.execute(engine, "UPDATE agent_sessions SET created_at = '2024-02-29 12:00:00'")
    before = await rows_of_all_tables(engine)
    assert min(before[f"agent_sessions_metadata{end}"] for end in ("", "_elements", "_paused")) > 0

    restore = "REPLACE INTO agent_sessions SELECT * FROM agent_sessions"
    await raw.execute(engine, restore)
    assert await rows_of_all_tables(engine) == before
    assert await problems(engine) == []


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("foreign_keys", [0, 1])
async def test_rows_follow_their_session_when_its_id_changes(whole, shared_database, foreign_keys):
    engine = whole.engine
    before = await rows_of_all_tables(engine)
    for old, new in (("a", "c"), ("c", "a")):
        async with engine.connect() as connection:
            await connection.exec_driver_sql(f"PRAGMA foreign_keys = {foreign_keys}")
            await connection.exec_driver_sql("BEGIN")
            await connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
            for table in ("agent_sessions", "agent_messages"):
                change = f"UPDATE {table} SET session_id = '{new}' WHERE session_id = '{old}'"
                await connection.exec_driver_sql(change)
            await connection.commit()
            await connection.exec_driver_sql("PRAGMA foreign_keys = 0")
        await whole.refresh_index("$text")
        assert await rows_of_all_tables(engine) == before
        assert await problems(engine) == []
        assert await whole.get_metadata(new) == {"tags": ["x", "y"], "n": 1}


@pytest.mark.only_on("sqlite")
async def test_triggers_of_0_1_are_replaced(whole, shared_database):
    engine = whole.engine
    before = await rows_of_all_tables(engine)
    for group in GROUPS:
        for trigger in group.triggers:
            await raw.execute(engine, f"DROP TRIGGER {trigger.name}")
            create = str(trigger.earlier().compile(engine))
            assert "CURRENT_TIMESTAMP" not in create
            await raw.execute(engine, create)
    found = await problems(engine)
    assert [(each.check, each.level) for each in found] == [("triggers", "warning")] * 10
    assert (
        "that of an earlier version: rows of agent_sessions_metadata are lost if a"
        in found[0].problem
    )
    await run(engine, printed(found))
    assert await problems(engine) == []
    assert await rows_of_all_tables(engine) == before


async def rows_of_all_tables(engine):
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'agent%'"
    names = [name for (name,) in await raw.execute(engine, query)]
    return {name: await raw.count_rows(engine, name) for name in names}


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("metadata_table", [None, "second"])
async def test_orphans_of_another_metadata_table_survive(filled, shared_database, metadata_table):
    engine = filled.engine
    names = table_names(metadata_table="second")
    await run(engine, create_statements("sqlite", names))
    second = SessionCatalog(engine, metadata_table="second")
    await second.set_metadata("a", {"note": "keep"})
    deleting = await raw.execute(
        engine, "SELECT name, sql FROM sqlite_master WHERE type='trigger' AND name LIKE '%delete'"
    )
    for name, _ in deleting:
        await raw.execute(engine, f"DROP TRIGGER {name}")
    await raw.execute(engine, "DELETE FROM agent_sessions WHERE session_id = 'a'")
    await run(engine, [sql for _, sql in deleting])
    found = await problems(engine, table_names(metadata_table=metadata_table))
    words = found[0].problem.partition("session row again: ")[2]
    await run(engine, split(words))
    assert await filled.get_metadata("a") == {"tags": ["x", "y"], "n": 1}
    assert await second.get_metadata("a") == {"note": "keep"}
    assert await problems(engine) == []
    assert await problems(engine, names) == []


@pytest.mark.parametrize("way", ["DISABLE TRIGGER ALL", "on replicas only", "on the parent"])
@pytest.mark.parametrize("table", FOREIGN_KEYS)
@pytest.mark.only_on("postgresql")
async def test_a_foreign_key_that_is_switched_off_is_explained(filled, shared_database, table, way):
    engine, parent = filled.engine, parent_of(table)
    query = (
        "SELECT t.tgname FROM pg_trigger t JOIN pg_constraint k ON k.oid = t.tgconstraint"
        f" WHERE k.conrelid = to_regclass('{table}') AND t.tgrelid = to_regclass('{parent}')"
        " ORDER BY t.tgname LIMIT 1"
    )
    [[trigger]] = await raw.execute(engine, query)
    statements = {
        "DISABLE TRIGGER ALL": f"ALTER TABLE {table} {way}",
        "on the parent": f"ALTER TABLE {parent} DISABLE TRIGGER ALL",
        "on replicas only": f'ALTER TABLE {parent} ENABLE REPLICA TRIGGER "{trigger}"',
    }
    await raw.execute(engine, statements[way])
    found = await explained(engine, "foreign keys")
    words = f"the foreign key of {table} to {parent} is switched off"
    assert words in [each.problem.partition(";")[0] for each in found]


# New in PostgreSQL 18, which is what the tests start; another server may be older.
@pytest.mark.only_on("postgresql")
@pytest.mark.not_on("postgresql-url")
async def test_a_foreign_key_that_is_not_enforced_is_explained(filled, shared_database):
    table = "agent_sessions_metadata"
    change = "ALTER CONSTRAINT agent_sessions_metadata_session_fk NOT ENFORCED"
    await raw.execute(filled.engine, f"ALTER TABLE {table} {change}")
    (finding,) = await explained(filled.engine, "foreign keys")
    assert f"the foreign key of {table} to agent_sessions is switched off" in finding.problem


@pytest.mark.parametrize("table", FOREIGN_KEYS)
@pytest.mark.only_on("postgresql")
async def test_a_foreign_key_that_was_never_checked_is_explained(filled, shared_database, table):
    engine = filled.engine
    query = (
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
        f" WHERE conrelid = to_regclass('{table}') AND contype = 'f'"
    )
    [[name, definition]] = await raw.execute(engine, query)
    await raw.execute(engine, f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    await raw.execute(engine, f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition} NOT VALID")
    (finding,) = await explained(engine, "foreign keys")
    assert "was never checked for the rows before it" in finding.problem
    statement = finding.problem.partition("; run ")[2].partition(" once ")[0]
    await run(engine, [statement])
    assert await problems(engine) == []


@pytest.mark.parametrize("table", FOREIGN_KEYS)
@pytest.mark.only_on("postgresql", "mariadb")
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside the right one"])
async def test_a_foreign_key_that_does_not_delete_is_explained(
    filled, shared_database, table, beside
):
    engine = filled.engine
    async with engine.connect() as connection:
        (key,) = await connection.run_sync(lambda sync: inspect(sync).get_foreign_keys(table))
    if not beside:
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
    (finding,) = await explained(engine, "foreign keys")
    problem = "does not delete with its parent (constraint wrong)"
    if beside:
        problem = f"can refuse to delete rows of {key['referred_table']}: drop wrong yourself"
    assert problem in finding.problem


@pytest.mark.parametrize("table", ["agent_sessions", "agent_messages", "agent_sessions_metadata"])
@pytest.mark.only_on("postgresql")
async def test_a_rule_of_the_application_is_explained(filled, shared_database, table):
    """PostgreSQL refuses ON CONFLICT and RETURNING on tables with some kinds of rules."""
    engine = filled.engine
    await raw.execute(engine, "CREATE TABLE audit (id TEXT)")
    rule = f"ON UPDATE TO {table} DO ALSO INSERT INTO audit VALUES (new.session_id)"
    await raw.execute(engine, f"CREATE RULE own AS {rule}")
    (finding,) = await explained(engine, "rules")
    assert f"{table} has the rule own" in finding.problem
    await raw.execute(engine, f"DROP RULE own ON {table}")
    assert await problems(engine) == []


@pytest.mark.only_on("sqlite")
async def test_a_trigger_that_does_something_else_is_replaced(filled, shared_database):
    engine = filled.engine
    name = "agent_sessions_metadata_after_delete"
    await raw.execute(engine, f"DROP TRIGGER {name}")
    await raw.execute(
        engine, f"CREATE TRIGGER {name} AFTER DELETE ON agent_sessions BEGIN SELECT 1; END"
    )
    found = await repair(engine, "triggers")
    assert "does something else" in found[0].problem
    await intact(filled)


@pytest.mark.only_on("sqlite")
async def test_no_trigger_is_printed_for_a_table_that_is_missing(filled, shared_database):
    engine = filled.engine
    await raw.execute(engine, "DROP TRIGGER agent_sessions_metadata_elements_after_delete")
    await raw.execute(engine, "DROP TRIGGER agent_sessions_metadata_after_update")
    await raw.execute(engine, "DROP TABLE agent_sessions_metadata_elements")
    found = await explained(engine, "tables")
    assert [each.check for each in found] == ["tables", "triggers", "triggers"]
    # One of the triggers changes ids in the table of metadata too, which is there.
    for each in found[1:]:
        assert "once agent_sessions_metadata_elements exists" in each.problem
    await raw.execute(engine, "DELETE FROM agent_sessions WHERE session_id = 'a'")


@pytest.mark.parametrize("way", ["missing", "other columns", "partial"])
async def test_a_missing_index_is_created_beside_others(filled, shared_database, way):
    engine, kind = filled.engine, shared_database.kind
    indexes = {
        "agent_messages": "idx_agent_messages_session_time",
        "agent_sessions_metadata": "agent_sessions_metadata_search_idx",
        "agent_sessions_metadata_elements": "agent_sessions_metadata_elements_search_idx",
    }
    for table, index in indexes.items():
        on = f" ON {table}" if kind == "mysql" else ""
        if kind == "mysql":
            # A foreign key wants some index.
            await raw.execute(engine, f"CREATE INDEX other ON {table} (session_id)")
        await raw.execute(engine, f"DROP INDEX {index}{on}")
        if way == "other columns":
            await raw.execute(engine, f"CREATE INDEX {index} ON {table} (session_id)")
        if way == "partial" and kind == "mysql" and table != "agent_messages":
            columns = "`key`(10), search_key(5), session_id"
            await raw.execute(engine, f"CREATE INDEX {index} ON {table} ({columns})")
        elif way == "partial" and kind != "mysql":
            columns = (
                "session_id, created_at" if "messages" in table else "key, search_key, session_id"
            )
            where = "WHERE session_id > 'b'"
            await raw.execute(engine, f"CREATE INDEX {index} ON {table} ({columns}) {where}")
    found = await repair(engine, "indexes")
    assert [each.problem.partition(" on ")[0] for each in found] == [
        f"{table} has no index" for table in indexes
    ]
    if way == "other columns":
        assert all(f"{each}_2" in found[at].repair[0] for at, each in enumerate(indexes.values()))
    await intact(filled)


@pytest.mark.only_on("postgresql")
async def test_an_index_that_was_left_incomplete(filled, shared_database):
    engine, index = filled.engine, "agent_sessions_metadata_search_idx"
    # As CREATE INDEX CONCURRENTLY leaves it when it is cancelled.
    await raw.execute(
        engine,
        f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{index}'::regclass",
    )
    await repair(engine, "indexes")
    await intact(filled)


@pytest.mark.only_on("sqlite")
async def test_a_foreign_key_beside_its_column_is_healthy(engine, shared_database):
    statements = [
        (
            "CREATE TABLE agent_sessions (session_id VARCHAR NOT NULL PRIMARY KEY,"
            " created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,"
            " updated_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)"
        ),
        (
            "CREATE TABLE agent_messages (id INTEGER PRIMARY KEY AUTOINCREMENT,"
            " session_id VARCHAR NOT NULL REFERENCES agent_sessions(session_id) ON DELETE {},"
            " message_data TEXT NOT NULL, created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)"
        ),
        "CREATE INDEX idx_agent_messages_session_time ON agent_messages (session_id, created_at)",
    ]
    for action, is_healthy in (("CASCADE", True), ("SET NULL", False)):
        await raw.execute(engine, "DROP TABLE IF EXISTS agent_messages")
        await raw.execute(engine, "DROP TABLE IF EXISTS agent_sessions")
        await run(engine, [each.format(action) for each in statements])
        found = {each.check for each in await mended(engine)}
        assert found == (set() if is_healthy else {"foreign keys"})


@pytest.mark.only_on("postgresql")
async def test_a_partitioned_table_without_a_key_is_explained(engine, shared_database):
    time = "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP"
    statements = [
        (
            f"CREATE TABLE agent_sessions (session_id VARCHAR PRIMARY KEY, created_at {time},"
            f" updated_at {time})"
        ),
        (
            "CREATE TABLE agent_messages (id SERIAL, session_id VARCHAR NOT NULL"
            " REFERENCES agent_sessions ON DELETE CASCADE, message_data TEXT NOT NULL,"
            f" created_at {time}) PARTITION BY HASH (session_id)"
        ),
        "CREATE TABLE one PARTITION OF agent_messages FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
    ]
    await run(engine, statements)
    (finding,) = await mended(engine)
    assert "the primary key of agent_messages is not (id); doctor prints no" in finding.problem


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("table", ["agent_sessions", "agent_messages"])
async def test_a_table_that_inherits_is_explained(filled, shared_database, table):
    await raw.execute(filled.engine, f"CREATE TABLE archive () INHERITS ({table})")
    await raw.execute(filled.engine, "DROP INDEX agent_sessions_metadata_search_idx")
    (finding,) = await explained(filled.engine, "inheritance", ["error"])
    assert f"archive inherits from {table}: its rows count as rows of {table}" in finding.problem


@pytest.mark.only_on("mariadb")
async def test_short_ids_without_foreign_keys_are_explained(engine, shared_database):
    short = "VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL"
    time = "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP"
    sessions = f"session_id {short} PRIMARY KEY, created_at {time}, updated_at {time}"
    messages = (
        f"id INTEGER PRIMARY KEY AUTO_INCREMENT, session_id {short}, created_at {time},"
        " message_data LONGTEXT CHARACTER SET utf8mb4 NOT NULL, KEY (session_id, created_at)"
    )
    await raw.execute(engine, f"CREATE TABLE agent_sessions ({sessions})")
    await raw.execute(engine, f"CREATE TABLE agent_messages ({messages}) ENGINE=MyISAM")
    problem = " ".join(each.problem for each in await mended(engine))
    assert "agent_messages is stored by MyISAM, which keeps no transactions" in problem
    for table in ("agent_sessions", "agent_messages"):
        assert f"{table}.session_id holds 190 characters, not 255; doctor prints no" in problem


@pytest.mark.only_on("postgresql")
async def test_deferrable_keys_are_explained(whole, shared_database):
    engine, prefix = whole.engine, "agent_sessions_metadata"
    keys = [
        (table, f"{table}_pkey")
        for table in ("agent_sessions", prefix, *(f"{prefix}{end}" for end in UPSERTED))
    ]
    for table, name in [*keys, (f"{prefix}_attachments", f"{prefix}_attachments_session_key")]:
        query = f"SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = '{name}'"
        [[definition]] = await raw.execute(engine, query)
        drop = f"ALTER TABLE {table} DROP CONSTRAINT {name} CASCADE"
        again = f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}"
        await run(engine, [drop, f"{again} DEFERRABLE"])
        found = [each.problem for each in await mended(engine)]
        expected = f"the constraint {name} of {table} is DEFERRABLE, so that writing rows fails"
        assert expected in found[0]
        assert all("once the findings above are repaired" in each for each in found[1:])
        await run(engine, [drop, again])
        assert await mended(engine) == []


@pytest.mark.only_on("postgresql")
async def test_deferrable_constraints_of_an_application(filled, shared_database):
    engine = filled.engine
    for table, column in (("agent_sessions", "session_id"), ("agent_messages", "id")):
        constraint = f"CONSTRAINT app UNIQUE ({column}, created_at) DEFERRABLE"
        await raw.execute(engine, f"ALTER TABLE {table} ADD {constraint}")
        if table == "agent_sessions":
            (finding,) = await explained(engine, "indexes", ["error"])
            assert "the constraint app of agent_sessions is DEFERRABLE" in finding.problem
            with pytest.raises(DBAPIError, match="deferrable"):
                await filled.create_session("c")
        else:
            assert await problems(engine) == []
            await filled.session("a").add_items([raw.message("hello")])
        await raw.execute(engine, f"ALTER TABLE {table} DROP CONSTRAINT app")


@pytest.mark.only_on("mariadb")
async def test_an_index_that_is_ignored_is_used_again(whole, shared_database):
    engine = whole.engine
    indexes = [
        (table.name, each) for group in GROUPS for table in group.tables for each in table.indexes
    ]
    for table, index in indexes:
        await raw.execute(engine, f"ALTER TABLE {table} ALTER INDEX {index.name} IGNORED")
    found = await repair(engine, "indexes")
    assert all(each.repair[0].endswith(" NOT IGNORED") for each in found)
    assert len(found) == len(indexes)


@pytest.mark.only_on("mariadb")
async def test_an_ignored_index_on_other_columns_keeps_its_name(filled, shared_database):
    engine, name = filled.engine, "agent_sessions_metadata_search_idx"
    await raw.execute(engine, f"DROP INDEX {name} ON agent_sessions_metadata")
    columns = "(`key`, search_key(9), session_id) IGNORED"
    await raw.execute(engine, f"CREATE INDEX {name} ON agent_sessions_metadata {columns}")
    (finding,) = await repair(engine, "indexes")
    assert finding.repair[0].startswith(f"CREATE INDEX {name}_2 ON agent_sessions_metadata")


@pytest.mark.only_on("postgresql")
async def test_messages_with_one_id_are_to_be_numbered(filled, shared_database):
    engine = filled.engine
    await raw.execute(engine, "ALTER TABLE agent_messages DROP CONSTRAINT agent_messages_pkey")
    await raw.execute(engine, "UPDATE agent_messages SET id = 0")
    found = [each.problem for each in await problems(engine)]
    assert any("give each an id of its own" in each for each in found)
    assert not any("delete" in each for each in found if "agent_messages" in each)

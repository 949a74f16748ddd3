"""`doctor` on the tables of optional features, and on the rows of the text index."""

from __future__ import annotations

import pytest
from conformance import raw
from doctoring import GROUPS, OPTIONAL, explained, mended, printed, problems, run
from sqlalchemy import inspect

PREFIX = "agent_sessions_metadata"
WORDS, QUEUE = f"{PREFIX}_words", f"{PREFIX}_words_queue"
BY_APPLICATION = ["_paused", "_usage", "_thread_items", "_attachments"]


async def test_a_group_without_tables_is_healthy(filled):
    for table in reversed(OPTIONAL):
        await raw.execute(filled.engine, f"DROP TABLE IF EXISTS {table}")
    assert await problems(filled.engine) == []


async def test_a_missing_table_is_created_beside_the_others_of_its_group(whole):
    engine = whole.engine
    for group in GROUPS[1:]:
        for table in group.tables if len(group.tables) > 1 else ():
            await raw.execute(engine, f"DROP TABLE {table.name}")
            found = await problems(engine)
            assert f"table {table.name} is missing" in [each.problem for each in found]
            await mended(engine)
            await whole.create_index("$text")
            await whole.refresh_index("$text")
            assert await problems(engine) == [], table.name


async def test_missing_indexes_and_constraints_of_every_table_are_added(whole, shared_database):
    engine, kind = whole.engine, shared_database.kind
    statements = []
    for group in GROUPS[1:]:
        for table in group.tables:
            on = f" ON {table.name}" if kind == "mysql" else ""
            if kind == "sqlite":
                statements += [
                    f"DROP TRIGGER {t.name}" for t in group.triggers if t.emptied is table
                ]
            else:
                word = "FOREIGN KEY" if kind == "mysql" else "CONSTRAINT"
                statements += [
                    f"ALTER TABLE {table.name} DROP {word} {each.name}"
                    for each in table.foreign_key_constraints
                ]
                key = "PRIMARY KEY" if kind == "mysql" else f"CONSTRAINT {table.name}_pkey"
                if table.autoincrement_column is None:
                    statements.append(f"ALTER TABLE {table.name} DROP {key}")
            statements += [f"DROP INDEX {index.name}{on}" for index in table.indexes]
    await run(engine, statements)
    found = await problems(engine)
    for each in found:
        assert each.repair, each
    assert len(found) == len(statements)
    await run(engine, printed(found))
    assert await problems(engine) == []


@pytest.mark.parametrize("suffix", BY_APPLICATION)
async def test_orphans_that_an_application_wrote_are_explained(whole, shared_database, suffix):
    engine, table = whole.engine, PREFIX + suffix
    await raw.drop_foreign_keys(engine, table)
    if shared_database.kind == "sqlite":
        for group in GROUPS:
            for trigger in group.triggers:
                if trigger.emptied.name == table:
                    await raw.execute(engine, f"DROP TRIGGER {trigger.name}")
    await raw.execute(engine, "DELETE FROM agent_messages WHERE session_id = 'a'")
    await raw.execute(engine, "DELETE FROM agent_sessions WHERE session_id = 'a'")
    found = await mended(engine)
    (orphans,) = [each for each in found if each.check == "orphans"]
    assert f"1 row of {table} has no row in agent_sessions. doctor deletes none" in orphans.problem
    assert await raw.count_rows(engine, table) == 1


DAMAGES = {
    "all words": f"DELETE FROM {WORDS}",
    "some words": f"DELETE FROM {WORDS} WHERE item_id = 2",
    "the title": f"DELETE FROM {WORDS} WHERE item_id = 0",
    "extra items": f"INSERT INTO {WORDS} SELECT session_id, item_id + 9, word, created_at"
    f" FROM {WORDS}",
    "other time": f"UPDATE {WORDS} SET created_at = (SELECT t FROM (SELECT min(created_at) AS t"
    f" FROM {WORDS}) AS old) - 9 WHERE item_id <> 0",
    "waits for nothing": f"INSERT INTO {QUEUE} (session_id, item_id) VALUES ('a', 77)",
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_wrong_words_are_repaired_by_rows_of_the_index(whole, shared_database, damage):
    engine, statement = whole.engine, DAMAGES[damage]
    if shared_database.kind == "postgresql":
        statement = statement.replace("- 9", "- interval '9 s'")
    before = await raw.execute(engine, f"SELECT * FROM {WORDS}")
    await raw.execute(engine, statement)
    found = await problems(engine)
    assert {each.check for each in found} == {"words"}
    for each in printed(found):
        assert each.partition("(")[0].split(" WHERE")[0].split()[-1] in (WORDS, QUEUE), each
    await run(engine, printed(found))
    assert await problems(engine) == []
    await whole.refresh_index("$text")
    assert await problems(engine) == []
    assert sorted(await raw.execute(engine, f"SELECT * FROM {WORDS}")) == sorted(before)


async def test_what_waits_to_be_indexed_is_healthy(whole):
    await raw.execute(
        whole.engine,
        "INSERT INTO agent_messages (session_id, message_data)"
        """ VALUES ('a', '{"role"\\: "user", "content"\\: "typed by hand"}')""",
    )
    assert await raw.count_rows(whole.engine, QUEUE) == 1
    assert await problems(whole.engine) == []


async def test_a_missing_trigger_of_the_text_index_is_explained(whole, shared_database):
    name = f"{WORDS}_of_item_insert"
    on = " ON agent_messages" if shared_database.kind == "postgresql" else ""
    await raw.execute(whole.engine, f"DROP TRIGGER {name}{on}")
    (finding,) = await explained(whole.engine, "words", ["error"])
    assert f"trigger {name} is missing; agent-sessions index create '$text'" in finding.problem
    await whole.create_index("$text")
    assert await problems(whole.engine) == []


@pytest.mark.only_on("postgresql")
async def test_a_trigger_of_an_index_that_is_switched_off_is_replaced(whole, shared_database):
    name = f"{PREFIX}_activity_session_time"
    await raw.execute(whole.engine, f"ALTER TABLE agent_sessions DISABLE TRIGGER {name}")
    (finding,) = await problems(whole.engine)
    assert "does something else or is switched off" in finding.problem
    assert await mended(whole.engine) == []


@pytest.mark.only_on("postgresql", "mariadb")
async def test_a_table_without_a_key_gets_it_once_or_is_explained(whole, shared_database):
    engine, table = whole.engine, f"{PREFIX}_thread_items"
    drop = "PRIMARY KEY" if shared_database.kind == "mysql" else f"CONSTRAINT {table}_pkey"
    await raw.drop_foreign_keys(engine, table)
    await raw.execute(engine, f"ALTER TABLE {table} DROP {drop}")
    await raw.execute(engine, f"INSERT INTO {table} SELECT * FROM {table}")
    found = await mended(engine)
    assert "rows with equal keys" in " ".join(each.problem for each in found)
    await raw.execute(engine, f"UPDATE {table} SET item_id = concat(item_id, position)")
    limit = "LIMIT 1" if shared_database.kind == "mysql" else "WHERE ctid = '(0,1)'"
    await raw.execute(engine, f"DELETE FROM {table} {limit}")
    if await raw.count_rows(engine, table) == 1:
        assert await mended(engine) == []


@pytest.mark.only_on("sqlite")
async def test_hand_made_tables_without_keys_are_explained(engine, shared_database):
    text, time = "VARCHAR NOT NULL", "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP"
    for statement in (
        f"CREATE TABLE agent_sessions (session_id {text}, created_at {time}, updated_at {time})",
        (
            f"CREATE TABLE agent_messages (id INTEGER, session_id {text}, message_data {text},"
            f" created_at {time})"
        ),
    ):
        await raw.execute(engine, statement)
    problem = " ".join(each.problem for each in await mended(engine))
    assert "the primary key of agent_sessions is not (session_id)" in problem
    assert "the primary key of agent_messages is not (id)" in problem


@pytest.mark.only_on("postgresql", "mariadb")
async def test_hand_made_tables_without_keys_become_healthy(engine, shared_database):
    mysql = shared_database.kind == "mysql"
    text = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin" if mysql else "VARCHAR"
    time = "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP"
    for statement in (
        f"CREATE TABLE agent_sessions (session_id {text}, created_at {time}, updated_at {time})",
        (
            f"CREATE TABLE agent_messages (id INTEGER, session_id {text}, created_at {time},"
            f" message_data {'LONGTEXT' if mysql else 'TEXT'} NOT NULL)"
        ),
        "INSERT INTO agent_sessions (session_id) VALUES ('a')",
        "INSERT INTO agent_messages (id, session_id, message_data) VALUES (1, 'a', '{}')",
    ):
        await raw.execute(engine, statement)
    assert await mended(engine) == []
    async with engine.connect() as connection:
        keys = await connection.run_sync(
            lambda sync: inspect(sync).get_pk_constraint("agent_messages")
        )
    assert keys["constrained_columns"] == ["id"]

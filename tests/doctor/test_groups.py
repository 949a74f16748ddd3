"""`doctor` on the tables of optional features, and on the rows of the text index."""

from __future__ import annotations

import asyncio
import re
from itertools import product

import commands
import pytest
from agents.extensions.memory import SQLAlchemySession
from conformance import raw
from doctoring import (
    BY_APPLICATION,
    GROUPS,
    OPTIONAL,
    ddl_dialect,
    explained,
    in_mariadb,
    mended,
    printed,
    problems,
    repair,
    run,
)
from sqlalchemy import inspect, make_url
from sqlalchemy.exc import DBAPIError

from agents_session_metadata import SessionCatalog
from agents_session_metadata.ddl import create_statements

PREFIX = "agent_sessions_metadata"
WORDS, QUEUE = f"{PREFIX}_words", f"{PREFIX}_words_queue"


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
            assert f"table {table.name} is missing" in [
                each.problem.partition(";")[0] for each in found
            ]
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
        # MariaDB shows a foreign key only beside the key that it uses.
        waits = kind == "mysql" and "once the findings above are repaired" in each.problem
        assert each.repair or waits, each
    assert len(found) == len(statements)
    await run(engine, printed(found))
    assert kind == "mysql" or await problems(engine) == []
    assert await mended(engine) == []


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


@pytest.mark.only_on("mariadb")
async def test_the_shell_runs_what_is_printed(whole, shared_database):
    engine = whole.engine
    query = (
        "SELECT trigger_name, event_object_table, action_timing, event_manipulation,"
        " action_statement FROM information_schema.triggers WHERE trigger_schema = database()"
        " AND trigger_name LIKE '%activity%' ORDER BY trigger_name"
    )
    before = await raw.execute(engine, query)
    assert any(";" in row[4] for row in before)
    for name, *_ in before:
        await raw.execute(engine, f"DROP TRIGGER {name}")
    index = "agent_sessions_metadata_search_idx ON agent_sessions_metadata"
    await raw.execute(engine, f"DROP INDEX {index}")
    await raw.execute(engine, f"DELETE FROM {PREFIX}_activity")
    result = await asyncio.to_thread(commands.run, "doctor", url=shared_database.url)
    lines = result.stdout.splitlines()
    script = [line for line in lines if not re.match(r"(info|warning|error) +[a-z ]+: ", line)]
    in_mariadb(shared_database.url, "\n".join(script))
    assert await raw.execute(engine, query) == before
    assert await problems(engine) == []


@pytest.mark.only_on("mariadb")
async def test_triggers_whose_user_is_gone_are_replaced(whole, shared_database):
    engine = whole.engine
    names = [f"{PREFIX}_activity_session_time", f"{WORDS}_of_item_insert"]
    for name in names:
        [row] = await raw.execute(engine, f"SHOW CREATE TRIGGER {name}")
        create = re.sub(r"DEFINER=\S+", "DEFINER=`gone`@`%`", row[2], count=1)
        await raw.execute(engine, f"DROP TRIGGER {name}")
        await raw.execute(engine, create)
    with pytest.raises(DBAPIError, match="1449"):
        await whole.session("a").add_items([raw.message("hello")])
    found = [each.problem for each in await problems(engine) if "its user does not" in each.problem]
    assert [name in problem for name, problem in zip(names, found, strict=True)] == [True, True]
    (left,) = await mended(engine)
    assert "run agent-sessions index drop '$text', and then" in left.problem
    await whole.drop_index("$text")
    await whole.create_index("$text")
    assert await problems(engine) == []
    await whole.session("a").add_items([raw.message("hello")])


@pytest.mark.only_on("postgresql")
async def test_trigger_functions_that_everyone_may_execute_are_revoked(whole, shared_database):
    # Not that of an application, and not one that has the rights of its caller.
    for name, rights in (("audit", "SECURITY DEFINER"), ("harmless", "SECURITY INVOKER")):
        body = "AS $$ BEGIN RETURN NULL; END $$"
        function = f"{name}() RETURNS trigger LANGUAGE plpgsql {rights} {body}"
        await raw.execute(whole.engine, f"CREATE FUNCTION {function}")
        trigger = f"{name} AFTER INSERT ON agent_sessions FOR EACH ROW EXECUTE FUNCTION {name}()"
        await raw.execute(whole.engine, f"CREATE TRIGGER {trigger}")
    assert await problems(whole.engine) == []
    names = {f"{PREFIX}_activity_session_time": "activity", f"{WORDS}_of_item_insert": "words"}
    for name in names:
        await raw.execute(whole.engine, f"GRANT EXECUTE ON FUNCTION {name}() TO PUBLIC")
    found = await repair(whole.engine, "activity", ["warning"])
    for finding in found:
        [name] = [name for name, check in names.items() if check == finding.check]
        assert finding.repair == (f"REVOKE ALL ON FUNCTION public.{name}() FROM PUBLIC",)
        assert name in finding.problem
    assert len(found) == 2


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
            f" message_data {'LONGTEXT CHARACTER SET utf8mb4' if mysql else 'TEXT'} NOT NULL)"
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


DERIVED = [f"{PREFIX}_activity", WORDS, QUEUE]


async def answers(catalog):
    """What the indexes are asked for."""
    await catalog.refresh_index("$text")
    page = await catalog.list_sessions({"tags": {"$contains": "x"}}, limit=10)
    recent = await catalog.list_sessions(limit=10)
    found = await catalog.search("hello")
    return (
        [each.session_id for each in page.sessions],
        [each.session_id for each in recent.sessions],
        [(each.session_id, each.item_id) for each in found.hits] if found.complete else None,
    )


def without(table):
    """As `answers` while the index that a table belongs to is not complete."""
    return lambda found: found[:2] if table in (WORDS, QUEUE) else found


@pytest.mark.parametrize(
    ("way", "table"),
    # An empty queue is as usual to a script.
    [
        each
        for each in product(("doctor", "ddl", "create_tables"), DERIVED)
        if each != ("ddl", QUEUE)
    ],
)
async def test_an_index_without_its_table_is_not_complete(whole, shared_database, way, table):
    engine, asked = whole.engine, without(table)
    before = await answers(whole)
    await raw.execute(engine, f"DROP TABLE {table}")
    catalog = SessionCatalog(shared_database.engine(), create_tables=way == "create_tables")
    if way == "doctor":
        [finding] = [each for each in await problems(engine) if each.repair]
        await run(engine, finding.repair)
        found = " ".join(each.problem for each in await problems(engine))
        assert "is not complete; agent-sessions index create" in found
    elif way == "ddl":
        await run(engine, create_statements(await ddl_dialect(engine)))
    else:
        await catalog._store.database.ensure("activity" if table == DERIVED[0] else "words")
    for each in (catalog, SessionCatalog(shared_database.engine())):
        assert asked(await answers(each)) == asked(before)
    for key in ("tags", "$updated_at", "$text"):
        await catalog.create_index(key)
    assert await answers(catalog) == before
    assert await problems(engine) == []


async def test_titles_without_messages_are_healthy(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_index("$text")
    await catalog.create_session("a", metadata={"title": "hello"})
    assert [hit.session_id for hit in (await catalog.search("hello")).hits] == ["a"]
    assert await problems(engine) == []


@pytest.mark.only_on("postgresql")  # Elsewhere, triggers have no functions.
@pytest.mark.parametrize("kept", [True, False])
async def test_tables_that_moved_to_another_schema_get_their_functions(
    whole, shared_database, kept
):
    """The recipe of the page on databases; triggers stay when the last index is dropped."""
    engine = whole.engine
    await whole.create_index("owner_id")
    if not kept:
        for index in await whole.list_indexes():
            if index.key != "$text":
                await whole.drop_index(index.key)
        for table in ("_words", "_words_queue", "_words_state"):
            await raw.execute(engine, f"DELETE FROM {PREFIX}{table}")
    tables = await raw.table_names(engine)
    await raw.execute(engine, "CREATE SCHEMA app")
    for table in tables:
        await raw.execute(engine, f"ALTER TABLE {table} SET SCHEMA app")
    name = make_url(shared_database.url).database
    await raw.execute(engine, f'ALTER DATABASE "{name}" SET search_path = app, public')
    moved = shared_database.engine()
    catalog = SessionCatalog(moved)
    with pytest.raises(DBAPIError, match=r"public\."):
        await catalog.create_session("new")
    await run(moved, printed(await problems(moved)))
    if kept:
        await catalog.drop_index("$text")
    else:
        assert await problems(moved) == []
        await SQLAlchemySession("plain", engine=moved).add_items([raw.message("hello")])
    await catalog.create_index("$text")
    assert await problems(moved) == []
    await catalog.create_session("new", metadata={"title": "unheard"})
    assert [hit.session_id for hit in (await catalog.search("unheard")).hits] == ["new"]
    assert await problems(moved) == []


async def test_metadata_that_was_lost_is_not_taken_for_new(whole, shared_database):
    cascade = " CASCADE" if shared_database.kind == "postgresql" else ""
    for table in (f"{PREFIX}_elements", PREFIX):
        await raw.execute(whole.engine, f"DROP TABLE {table}{cascade}")
    found = [each.problem for each in await problems(whole.engine)]
    advice = (
        "if it was renamed or dropped, restore it instead, from a backup only with all other tables"
    )
    assert f"table {PREFIX} is missing; {advice}" in found
    # Beside the plain SDK's tables alone, it is as it should be.
    for table in reversed(OPTIONAL):
        await raw.execute(whole.engine, f"DROP TABLE IF EXISTS {table}")
    found = [each.problem for each in await problems(whole.engine)]
    assert f"table {PREFIX} is missing" in found


async def test_lost_elements_are_filled_beside_indexes(whole, shared_database):
    before, table = await answers(whole), f"{PREFIX}_elements"
    rows = await raw.execute(whole.engine, f"SELECT * FROM {table}")
    assert rows
    cascade = " CASCADE" if shared_database.kind == "postgresql" else ""
    await raw.execute(whole.engine, f"DROP TABLE {table}{cascade}")
    (finding,) = [each for each in await problems(whole.engine) if each.check == "tables"]
    assert "create_tables=True" in finding.problem
    assert finding.repair == ()
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    assert await catalog.count_sessions() == 2
    assert sorted(await raw.execute(whole.engine, f"SELECT * FROM {table}")) == sorted(rows)
    assert await mended(whole.engine) == []
    assert await answers(catalog) == before


async def test_ddl_leaves_complete_indexes_alone(whole):
    states = f"SELECT state FROM {PREFIX}_indexes UNION ALL SELECT state FROM {WORDS}_state"
    await run(whole.engine, create_statements(await ddl_dialect(whole.engine)))
    assert await raw.execute(whole.engine, states) == [(1,)] * 3


@pytest.mark.parametrize("key", ["tags", "$text"])
async def test_an_interrupted_drop_is_named(whole, key):
    states = f"{WORDS}_state" if key == "$text" else f"{PREFIX}_indexes"
    column = whole.engine.dialect.identifier_preparer.quote("key")
    await raw.execute(whole.engine, f"UPDATE {states} SET state = 2 WHERE {column} = :key", key=key)
    (finding,) = await explained(whole.engine, "words" if key == "$text" else "activity")
    assert "was interrupted; agent-sessions index drop" in finding.problem
    assert await whole.drop_index(key)
    assert await problems(whole.engine) == []


@pytest.mark.parametrize("creates", [True, False])
@pytest.mark.parametrize("group", [group.name for group in GROUPS[1:]])
async def test_triggers_without_tables_are_dropped(whole, shared_database, group, creates):
    writes = (
        "UPDATE agent_sessions SET updated_at = '2020-01-01 00:00:00'",
        "INSERT INTO agent_messages (session_id, message_data) VALUES ('b', '{}')",
        "DELETE FROM agent_messages WHERE session_id = 'a'",
        "DELETE FROM agent_sessions WHERE session_id = 'a'",
    )
    engine, tables = whole.engine, next(each for each in GROUPS if each.name == group).tables
    for table in reversed(tables):
        await raw.execute(engine, f"DROP TABLE {table.name}")
    found = await problems(engine)
    if found:
        with pytest.raises(DBAPIError):
            await run(engine, writes)
        [finding] = found
        assert "which no longer exist" in finding.problem
        if creates:
            # A catalog that creates tables does so when a write fails.
            catalog = SessionCatalog(shared_database.engine(), create_tables=True)
            await catalog.session("c").add_items([raw.message("hello")])
            assert await catalog.delete_session("c")
            await catalog.session("b").add_items([raw.message("again")])
            await engine.dispose()  # SQLite notices late that a table of a trigger exists again
            await run(engine, writes)
            return
        await run(engine, finding.repair)
    assert await problems(engine) == []
    await run(engine, writes)
    assert await problems(engine) == []


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("table", [PREFIX, f"{PREFIX}_elements"])
async def test_a_foreign_key_that_mariadb_hides_is_not_added_again(whole, shared_database, table):
    engine = whole.engine
    async with engine.begin() as connection:
        await connection.exec_driver_sql("SET foreign_key_checks = 0")
        await connection.exec_driver_sql(f"ALTER TABLE {table} DROP PRIMARY KEY")
        await connection.exec_driver_sql("SET foreign_key_checks = 1")
    found = await problems(engine)
    assert [each.split(" (")[0] for each in printed(found)] == [
        f"ALTER TABLE {table} ADD PRIMARY KEY"
    ]
    await run(engine, printed(found))
    assert await problems(engine) == []


@pytest.mark.only_on("postgresql", "mariadb")
async def test_sessions_of_orphans_can_be_restored_as_printed(whole, shared_database):
    engine = whole.engine
    for group in GROUPS:
        for table in group.tables:
            await raw.drop_foreign_keys(engine, table.name)
    await raw.execute(engine, "DELETE FROM agent_sessions WHERE session_id = 'a'")
    found = await problems(engine)
    said = (each.problem.partition("a session row again: ")[2] for each in found)
    words = [each for each in said if each]
    assert words
    # Literally, in the printed order.
    for each in found:
        await run(engine, each.repair if "foreign key" not in each.check else ())
        if each.problem.endswith(words[0]):
            await run(engine, [words[0]])
    assert await mended(engine) == []
    assert (await whole.get_metadata("a"))["n"] == 1

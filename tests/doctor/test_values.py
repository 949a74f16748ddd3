"""`doctor` on stored values, search keys and list elements, and how it rewrites them."""

from __future__ import annotations

import asyncio
import json

import commands
import pytest
from conformance import raw
from doctoring import BY_APPLICATION, complete, explained, intact, mended, problems, run
from sqlalchemy import event

from agents_session_metadata import SessionCatalog
from agents_session_metadata.doctor import contents, rewrite_search_keys
from agents_session_metadata.storage.tables import table_names

ELEMENTS = "agent_sessions_metadata_elements"
REWRITE = "agent-sessions doctor --rewrite-search-keys rewrites them from the stored values"


async def stored(engine):
    """All that an application wrote; times included."""
    tables = ("agent_sessions", "agent_messages")
    found = [await raw.execute(engine, f"SELECT * FROM {table}") for table in tables]
    columns = f"session_id, {quoted(engine)}, value, created_at, updated_at"
    found.append(await raw.execute(engine, f"SELECT {columns} FROM agent_sessions_metadata"))
    return [sorted(map(repr, rows)) for rows in found]


def quoted(engine):
    return engine.dialect.identifier_preparer.quote("key")


CORRUPT = {
    "not JSON": "'{bad'",
    "nothing": "''",
    "trailing text": "'1 2'",
    "NaN": "'NaN'",
    "too deep": "'" + "[" * 3000 + "]" * 3000 + "'",
}


async def test_values_that_are_not_json_are_found_and_skipped(filled, shared_database):
    engine = filled.engine
    await filled.set_metadata("a", dict.fromkeys(CORRUPT, 1))
    for name, literal in CORRUPT.items():
        where = f"session_id = 'a' AND {quoted(engine)} = '{name}'"
        await raw.execute(
            engine, f"UPDATE agent_sessions_metadata SET value = {literal} WHERE {where}"
        )
    if shared_database.kind == "sqlite":
        for name, literal in (("not text", "X'31'"), ("not UTF-8", "CAST(X'22ff22' AS TEXT)")):
            await filled.set_metadata("a", {name: 1})
            where = f"session_id = 'a' AND key = '{name}'"
            await raw.execute(
                engine, f"UPDATE agent_sessions_metadata SET value = {literal} WHERE {where}"
            )
    count = len(CORRUPT) + 2 * (shared_database.kind == "sqlite")
    (finding,) = await explained(engine, "values", ["error"])
    assert f"{count} values are not valid JSON: 'NaN' of session 'a', " in finding.problem
    assert finding.problem.endswith(f"and {count - 3} more; set the key again, or delete it")
    assert await rewrite_search_keys(engine) == (0, count)


@pytest.mark.only_on("postgresql", "mariadb")
async def test_null_values_are_found(filled, shared_database):
    engine = filled.engine
    change = "MODIFY value LONGTEXT NULL"
    if shared_database.kind == "postgresql":
        change = "ALTER COLUMN value DROP NOT NULL"
    await raw.execute(engine, f"ALTER TABLE agent_sessions_metadata {change}")
    where = f"session_id = 'a' AND {quoted(engine)} = 'n'"
    await raw.execute(engine, f"UPDATE agent_sessions_metadata SET value = NULL WHERE {where}")
    nullable, null = await explained(engine, "values", ["error"])
    assert "agent_sessions_metadata.value may be NULL" in nullable.problem
    assert "1 value is NULL: 'n' of session 'a'" in null.problem


async def test_search_keys_that_disagree_are_rewritten_and_nothing_else(filled, shared_database):
    engine = filled.engine
    await filled.set_metadata("a", {"long": "x" * 2000, "tags": ["x", "y"]})
    other = f"agent_sessions_metadata WHERE session_id = 'b' AND {quoted(engine)} = 'n'"
    changes = (
        (
            f"search_key = (SELECT k FROM (SELECT search_key AS k FROM {other}) AS other)"
            f" WHERE {quoted(engine)} = 'tags' AND session_id = 'a'"
        ),
        f"search_rest = search_key WHERE {quoted(engine)} IN ('long', 'n') AND session_id = 'a'",
    )
    for change in changes:
        await raw.execute(engine, f"UPDATE agent_sessions_metadata SET {change}")
    before = await stored(engine)
    (finding,) = await explained(engine, "search keys", ["error"])
    assert finding.problem.startswith("3 search keys do not match the value, so filters are")
    assert finding.problem.endswith(REWRITE)
    assert await rewrite(shared_database) == ("3\n", "values rewritten: 3, skipped: 0\n")
    assert await problems(engine) == []
    output, _ = await rewrite(shared_database, "--json")
    assert json.loads(output) == {"rewritten": 0, "skipped": 0}
    assert await stored(engine) == before
    await filled.delete_metadata("a", ["long"])
    await intact(filled)


async def rewrite(database, *options):
    arguments = ("doctor", "--rewrite-search-keys", *options)
    result = await asyncio.to_thread(commands.run, *arguments, url=database.url)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


WRONG_ELEMENTS = {
    "all are gone": (f"DELETE FROM {ELEMENTS}", "2 values have"),
    "one is gone": (
        f"DELETE FROM {ELEMENTS} WHERE session_id = 'a' AND position = 1",
        "1 value has",
    ),
    "another value": (
        (
            f"UPDATE {ELEMENTS} SET search_key = (SELECT search_key FROM agent_sessions_metadata"
            " WHERE session_id = 'a' AND {key} = 'n') WHERE session_id = 'a' AND position = 0"
        ),
        "1 value has",
    ),
    "another rest": (
        f"UPDATE {ELEMENTS} SET search_rest = search_key WHERE position = 0",
        "2 values have",
    ),
    "one twice": (
        (
            f"INSERT INTO {ELEMENTS} (session_id, {{key}}, position, search_key, search_rest)"
            f" SELECT session_id, {{key}}, 2, search_key, search_rest FROM {ELEMENTS}"
            " WHERE position = 1"
        ),
        "2 values have",
    ),
    "of no list": (
        (
            f"INSERT INTO {ELEMENTS} (session_id, {{key}}, position, search_key, search_rest)"
            " SELECT session_id, {key}, 0, search_key, search_rest"
            " FROM agent_sessions_metadata WHERE {key} = 'n'"
        ),
        "2 values have",
    ),
}


async def test_elements_that_disagree_with_their_lists_are_rewritten(filled, shared_database):
    engine = filled.engine
    before = await stored(engine)
    for statement, words in WRONG_ELEMENTS.values():
        await raw.execute(engine, statement.replace("{key}", quoted(engine)))
        (finding,) = await explained(engine, "elements", ["error"])
        assert finding.problem.startswith(f"{words} other list elements than the elements table")
        assert finding.problem.endswith(REWRITE)
        assert (await rewrite_search_keys(engine)).skipped == 0
        assert await problems(engine) == []
    assert await stored(engine) == before
    await intact(filled)


async def test_a_missing_table_that_lists_fill_is_left_to_create_tables(filled, shared_database):
    engine = filled.engine
    if shared_database.kind == "sqlite":
        await raw.execute(engine, f"DROP TRIGGER {ELEMENTS}_after_delete")
    await raw.execute(engine, f"DROP TABLE {ELEMENTS}")
    finding = (await explained(engine, "tables", ["error"]))[0]
    assert f"{ELEMENTS} is missing, and there are lists; create_tables=True" in finding.problem
    command = "agent-sessions count --create-tables"
    assert command in finding.problem
    result = await asyncio.to_thread(commands.run, *command.split()[1:], url=shared_database.url)
    assert result.exit_code == 0, result.output
    assert await problems(engine) == []
    await intact(filled)


async def test_a_renamed_table_of_elements_is_named(filled):
    engine = filled.engine
    others = SessionCatalog(
        engine,
        sessions_table="talks",
        messages_table="entries",
        metadata_table="facts",
        create_tables=True,
    )
    await others.count_sessions()
    await raw.execute(engine, f"ALTER TABLE {ELEMENTS} RENAME TO kept")
    finding = (await explained(engine, "tables", ["error"]))[0]
    assert "if it was renamed to kept, rename that back; otherwise, create" in finding.problem
    await raw.execute(engine, f"ALTER TABLE kept RENAME TO {ELEMENTS}")
    assert await problems(engine) == []
    await intact(filled)


async def test_values_are_checked_and_rewritten_in_batches(filled, shared_database, monkeypatch):
    monkeypatch.setattr(contents, "BATCH", 7)
    engine = filled.engine
    for number in range(12):
        lists = {f"l{each}": [number, each, "long " * 150] for each in range(4)}
        await filled.create_session(f"s{number}", metadata=lists)
    rows = []

    def count(connection, cursor, statement, parameters, context, executemany):
        if statement.startswith("SELECT") and "value" in statement and "ORDER BY" in statement:
            rows.append(statement)

    event.listen(engine.sync_engine, "after_cursor_execute", count)
    assert await problems(engine) == []
    # 52 values, and a batch that says that there are no more.
    assert len(rows) == 9
    where = f"{quoted(engine)} IN ('l0', 'l3') AND session_id IN ('s7', 's11')"
    await raw.execute(engine, f"DELETE FROM {ELEMENTS} WHERE {where}")
    await raw.execute(
        engine, f"UPDATE agent_sessions_metadata SET search_rest = search_key WHERE {where}"
    )
    found = await explained(engine, "elements", ["error"])
    assert [each.problem[:9] for each in found] == ["4 search ", "4 values "]
    assert await rewrite_search_keys(engine) == (4, 0)
    assert await problems(engine) == []


async def test_rewriting_skips_what_changes_meanwhile_and_takes_turns(filled, shared_database):
    engine = filled.engine
    await filled.set_metadata("a", {f"k{n}": n for n in range(30)})
    wrong = "UPDATE agent_sessions_metadata SET search_rest = search_key"

    async def write(number):
        for turn in range(5):
            await filled.set_metadata("a", {f"k{number}": [turn, number]})

    for _ in range(3):
        await raw.execute(engine, wrong)
        await asyncio.gather(rewrite_search_keys(engine), *map(write, range(4)))
    assert await problems(engine) == []
    found = await filled.get_metadata("a")
    assert [found[f"k{n}"] for n in range(4)] == [[4, n] for n in range(4)]


@pytest.mark.only_on("sqlite")  # Elsewhere, a foreign key does not let it happen.
async def test_metadata_without_a_session_is_skipped(filled):
    engine = filled.engine
    await raw.execute(engine, "DROP TRIGGER agent_sessions_metadata_after_delete")
    await raw.execute(engine, "DELETE FROM agent_sessions WHERE session_id = 'a'")
    await raw.execute(engine, "UPDATE agent_sessions_metadata SET search_rest = search_key")
    trigger = next(each for each in await problems(engine) if each.check == "triggers")
    await raw.execute(engine, trigger.repair[0])
    assert await rewrite_search_keys(engine) == (2, 2)
    assert await raw.count_rows(engine, "agent_sessions_metadata") == 4


@pytest.mark.parametrize("option", ["--scope", "--create-tables"])
def test_rewriting_refuses_options_that_it_would_ignore(option):
    given = [option, "a=1"] if option == "--scope" else [option]
    result = commands.run("doctor", "--rewrite-search-keys", *given, url="sqlite+aiosqlite://")
    assert result.exit_code == 2


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("table", "column", "found"),
    [
        ("agent_sessions", "session_id", "1 value of agent_sessions.session_id is"),
        ("agent_messages", "session_id", "2 values of agent_messages.session_id are"),
        ("agent_sessions_metadata", "key", "1 value of agent_sessions_metadata.key is"),
    ],
)
async def test_ids_that_are_not_text_are_found(whole, shared_database, table, column, found):
    engine, where = whole.engine, "session_id = 'b'"
    if column == "key":
        where += " AND key = 'n'"
    [[before]] = await raw.execute(engine, f"SELECT {column} FROM {table} WHERE {where} LIMIT 1")
    triggers = await raw.execute(engine, "SELECT name FROM sqlite_master WHERE type = 'trigger'")
    for (name,) in triggers:
        await raw.execute(engine, f"DROP TRIGGER {name}")
    await raw.execute(engine, f"UPDATE {table} SET {column} = x'6368' WHERE {where}")
    (finding,) = await explained(engine, "ids", ["error"])
    assert finding.problem.startswith(f"{found} not text")
    assert "INSERT" not in finding.problem
    change = f"SET {column} = '{before}' WHERE {column} = x'6368'"
    await raw.execute(engine, f"UPDATE {table} {change}")
    assert "ids" not in {each.check for each in await problems(engine)}


@pytest.mark.only_on("sqlite")
async def test_ids_are_changed_to_text_without_a_loss(engine):
    other = SessionCatalog(engine, create_tables=True, metadata_table="other")
    await other.count_sessions()
    whole = await complete(engine)
    await other.set_metadata("a", {"n": 2})
    triggers = await triggers_of(engine)
    for name in triggers:
        await raw.execute(engine, f"DROP TRIGGER {name}")
    tables = ["agent_sessions", "agent_messages", "agent_sessions_metadata", "other"]
    tables += [f"agent_sessions_metadata{end}" for end in BY_APPLICATION]
    before = [await stored(engine), [await raw.count_rows(engine, name) for name in tables]]
    for name in tables:
        await raw.execute(engine, f"UPDATE {name} SET session_id = CAST(session_id AS BLOB)")
    for sql in triggers.values():
        await raw.execute(engine, sql)

    problem = (await explained(engine, "ids", ["error"]))[0].problem
    drops = problem.partition("becomes: ")[2].partition(". Then")[0].split("; ")
    assert len(drops) == 6
    await run(engine, drops)
    # Without the triggers, doctor names them all the same.
    problem = (await explained(engine, "ids", ["error"]))[0].problem
    named = problem.partition("becomes: ")[2].partition(". Then")[0].split("; ")
    assert named == [drop for drop in drops if "other" not in drop]
    for name in tables:
        await raw.execute(engine, f"UPDATE {name} SET session_id = CAST(session_id AS TEXT)")
    for metadata in (None, "other"):
        assert await mended(engine, table_names(metadata_table=metadata)) == []
    after = [await stored(engine), [await raw.count_rows(engine, name) for name in tables]]
    assert after == before
    assert await triggers_of(engine) == triggers
    assert await whole.get_metadata("b") == {"tags": ["x", "y"], "n": 1, "title": "About words"}
    assert await other.get_metadata("a") == {"n": 2}


async def triggers_of(engine):
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    return dict([tuple(row) for row in await raw.execute(engine, query)])


@pytest.mark.only_on("sqlite")
async def test_times_that_are_none_are_found(filled, shared_database):
    engine = filled.engine
    for table, column in (
        ("agent_sessions", "created_at"),
        ("agent_sessions", "updated_at"),
        ("agent_messages", "created_at"),
    ):
        before = await raw.execute(engine, f"SELECT session_id, {column} FROM {table}")
        for bad in ("'garbage'", "20240101", "x'ff'", "'2024-01-01'", "'2024-02-30 00:00:00'"):
            await raw.execute(engine, f"UPDATE {table} SET {column} = {bad} WHERE session_id = 'a'")
            (finding,) = await explained(engine, "times", ["error"])
            assert finding.problem.startswith(f"1 value of {table}.{column} not in the form")
            assert "of session 'a'; correct" in finding.problem
        await raw.execute(engine, f"UPDATE {table} SET {column} = '2024-12-31 23:59:59.999999'")
        assert await problems(engine) == []
        for session_id, time in before:
            await raw.execute(
                engine,
                f"UPDATE {table} SET {column} = '{time}' WHERE session_id = '{session_id}'",
            )


@pytest.mark.only_on("postgresql", "mariadb")
async def test_missing_times_are_found(filled, shared_database):
    engine = filled.engine
    for table in ("agent_sessions", "agent_messages"):
        change = "ALTER COLUMN created_at DROP NOT NULL"
        if shared_database.kind == "mysql":
            change = "MODIFY created_at TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP"
        await raw.execute(engine, f"ALTER TABLE {table} {change}")
        assert await problems(engine) == []
        await raw.execute(engine, f"UPDATE {table} SET created_at = NULL WHERE session_id = 'a'")
        (finding,) = await explained(engine, "times", ["error"])
        assert finding.problem.startswith(f"1 value of {table}.created_at not ")
        assert "of session 'a'; correct" in finding.problem
        await raw.execute(engine, f"UPDATE {table} SET created_at = CURRENT_TIMESTAMP")


@pytest.mark.only_on("postgresql")
async def test_times_that_python_cannot_read_are_found(whole, shared_database):
    engine = whole.engine
    for table, column in (
        ("agent_sessions", "created_at"),
        ("agent_messages", "created_at"),
        ("agent_sessions_metadata", "updated_at"),
    ):
        [[before]] = await raw.execute(engine, f"SELECT max({column}) FROM {table}")
        bad = ("infinity", "-infinity", "10000-01-01", "0001-12-31 BC")
        for time in (*bad, "9999-12-31 23:59:59.999999", "0001-01-01"):
            update = f"UPDATE {table} SET {column} = '{time}' WHERE session_id = 'a'"
            await raw.execute(engine, update)
            found = await problems(engine)
            times = [each.problem for each in found if each.check == "times"]
            assert len(times) == (time in bad)
            assert all(f"of {table}.{column} not in the years 1 to 9999" in each for each in times)
            assert all("of session 'a'; correct" in each for each in times)
        await raw.execute(engine, f"UPDATE {table} SET {column} = '{before}'")


@pytest.mark.only_on("postgresql")
async def test_a_key_that_a_session_has_twice_is_not_rewritten(filled):
    engine = filled.engine
    await raw.execute(
        engine,
        "ALTER TABLE agent_sessions_metadata DROP CONSTRAINT agent_sessions_metadata_pkey CASCADE",
    )
    columns = "session_id, key, search_key, search_rest, created_at, updated_at"
    await raw.execute(
        engine,
        f"INSERT INTO agent_sessions_metadata ({columns}, value)"
        f" SELECT {columns}, '\"other\"' FROM agent_sessions_metadata WHERE key = 'n'",
    )
    before = await stored(engine)
    rows = await raw.count_rows(engine, "agent_sessions_metadata")
    again = await rewrite_search_keys(engine)
    assert again == await rewrite_search_keys(engine)
    assert (again.rewritten, again.skipped > 0) == (0, True)
    assert await stored(engine) == before
    assert await raw.count_rows(engine, "agent_sessions_metadata") == rows


ADVICE = {
    "paused": "that of session 'a'; correct it by SQL, or discard the paused run",
    "usage": "the one with the id 1; correct the owner or the day by SQL",
    "thread_items": "'1' of session 'a'; correct it by SQL, or delete the item",
    "attachments": "'1'; correct or delete it by SQL",
}


@pytest.mark.parametrize(("key", "problem"), [("$n", "must not begin with $"), ("", "be empty")])
async def test_keys_that_no_import_takes_are_found(filled, key, problem):
    engine = filled.engine
    name = quoted(engine)
    update = f"UPDATE agent_sessions_metadata SET {name} = :key WHERE {name} = 'n'"
    await raw.execute(engine, f"{update} AND session_id = 'a'", key=key)
    (finding,) = await explained(engine, "keys", ["error"])
    assert problem in finding.problem
    assert f": '{key}' of session 'a'; rename or delete it by SQL" in finding.problem

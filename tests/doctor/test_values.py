"""`doctor` on rows and stored values, and how it rewrites search keys and list elements."""

from __future__ import annotations

import asyncio
import json
import math

import commands
import pytest
from conformance import raw
from doctoring import explained, intact, problems, run_without_foreign_keys
from sqlalchemy import event

from agents_session_metadata.doctor import rewrite_search_keys, rows

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
    count = len(CORRUPT)
    (finding,) = await explained(engine, "values", ["error"])
    assert f"not valid JSON: {count}, such as 'NaN' of session 'a'; " in finding.problem
    assert await rewrite_search_keys(engine) == (0, count)


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
    assert finding.problem.startswith("values with another search key, so filters are wrong: 3,")
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
    "all are gone": (f"DELETE FROM {ELEMENTS}", 2),
    "one is gone": (
        f"DELETE FROM {ELEMENTS} WHERE session_id = 'a' AND position = 1",
        1,
    ),
    "another value": (
        (
            f"UPDATE {ELEMENTS} SET search_key = (SELECT search_key FROM agent_sessions_metadata"
            " WHERE session_id = 'a' AND {key} = 'n') WHERE session_id = 'a' AND position = 0"
        ),
        1,
    ),
    "another rest": (
        f"UPDATE {ELEMENTS} SET search_rest = search_key WHERE position = 0",
        2,
    ),
    "one twice": (
        (
            f"INSERT INTO {ELEMENTS} (session_id, {{key}}, position, search_key, search_rest)"
            f" SELECT session_id, {{key}}, 2, search_key, search_rest FROM {ELEMENTS}"
            " WHERE position = 1"
        ),
        2,
    ),
    "of no list": (
        (
            f"INSERT INTO {ELEMENTS} (session_id, {{key}}, position, search_key, search_rest)"
            " SELECT session_id, {key}, 0, search_key, search_rest"
            " FROM agent_sessions_metadata WHERE {key} = 'n'"
        ),
        2,
    ),
}


async def test_elements_that_disagree_with_their_lists_are_rewritten(filled, shared_database):
    engine = filled.engine
    before = await stored(engine)
    for statement, count in WRONG_ELEMENTS.values():
        await raw.execute(engine, statement.replace("{key}", quoted(engine)))
        (finding,) = await explained(engine, "elements", ["error"])
        assert (
            f"values with other list elements, so $contains is wrong: {count}," in finding.problem
        )
        assert finding.problem.endswith(REWRITE)
        assert (await rewrite_search_keys(engine)).skipped == 0
        assert await problems(engine) == []
    assert await stored(engine) == before
    await intact(filled)


async def test_values_are_checked_and_rewritten_in_batches(filled, shared_database):
    engine = filled.engine
    ids = [f"s{number:04}" for number in range(rows.BATCH // 16)]
    keys = [f"l{number:02}" for number in range(40)]
    for session_id in ids:
        lists = {key: [session_id, key, "long " * 150] for key in keys}
        await filled.create_session(session_id, metadata=lists)
    names = [(session_id, key) for session_id in ids for key in keys]
    statements = []

    def count(connection, cursor, statement, parameters, context, executemany):
        if statement.startswith("SELECT") and "value" in statement and "ORDER BY" in statement:
            statements.append(statement)

    event.listen(engine.sync_engine, "after_cursor_execute", count)
    assert await problems(engine) == []
    # The other two sessions have four values, and the last batch says that there are no more.
    assert len(statements) == math.ceil((4 + len(names)) / rows.BATCH) + 1
    # The last value of a batch and the first of the next one, twice.
    near = [names[end * rows.BATCH - 4 - back] for end in (1, 2) for back in (1, 0)]
    places = [f"session_id = '{each}' AND {quoted(engine)} = '{key}'" for each, key in near]
    where = " OR ".join(places)
    await raw.execute(engine, f"DELETE FROM {ELEMENTS} WHERE {where}")
    await raw.execute(
        engine, f"UPDATE agent_sessions_metadata SET search_rest = search_key WHERE {where}"
    )
    found = await explained(engine, "elements", ["error"])
    assert [": 4, such as " in each.problem for each in found] == [True, True]
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


@pytest.mark.parametrize("count", [1, 2])
async def test_rows_without_a_session_are_counted(filled, shared_database, count):
    engine = filled.engine
    ids = ("a", "b")[:count]
    await run_without_foreign_keys(
        engine, [f"DELETE FROM agent_sessions WHERE session_id = '{each}'" for each in ids]
    )
    found = await explained(engine, "orphans", ["error"])
    have = [each.problem.partition(":")[0] for each in found]
    assert have == [
        ["1 row of agent_messages has", "2 rows of agent_messages have"][count - 1]
        + " no row in agent_sessions",
        f"{2 * count} rows of agent_sessions_metadata have no row in agent_sessions",
    ]
    assert await rewrite_search_keys(engine) == (0, 0)
    await raw.execute(engine, "UPDATE agent_sessions_metadata SET search_rest = search_key")
    assert await rewrite_search_keys(engine) == (4 - 2 * count, 2 * count)
    assert await raw.count_rows(engine, "agent_sessions_metadata") == 4


@pytest.mark.parametrize("option", ["--scope", "--create-tables"])
def test_rewriting_refuses_options_that_it_would_ignore(option):
    given = [option, "a=1"] if option == "--scope" else [option]
    result = commands.run("doctor", "--rewrite-search-keys", *given, url="sqlite+aiosqlite://")
    assert result.exit_code == 2

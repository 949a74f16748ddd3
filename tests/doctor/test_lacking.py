"""`doctor` on tables that have the name of one of this package, and lack columns of it."""

from __future__ import annotations

import pytest
from conformance import raw
from doctoring import GROUPS, OPTIONAL, catalog_of, explained, mended, problems

from agents_session_metadata import SessionCatalog
from agents_session_metadata.storage.tables import table_names

PREFIX = "agent_sessions_metadata"


@pytest.mark.parametrize("tables", [OPTIONAL, [f"{PREFIX}_elements"]], ids=["optional", "elements"])
async def test_an_applications_own_table_is_only_reported(filled, tables):
    engine, key = filled.engine, filled.engine.dialect.identifier_preparer.quote("key")
    for table in tables:
        await raw.execute(engine, f"DROP TABLE IF EXISTS {table}")
        # Columns that some checks look for; the id of a session that is gone; and equal rows.
        columns = f"id INTEGER, session_id VARCHAR(255), {key} VARCHAR(99), state INTEGER"
        await raw.execute(engine, f"CREATE TABLE {table} ({columns})")
        rows = "(1, 'gone', 'x', 0), (1, 'gone', 'x', 0)"
        await raw.execute(engine, f"INSERT INTO {table} VALUES {rows}")
    found = await explained(engine, "names", ["error"])
    assert [each.problem.partition(" has no column ")[0] for each in found] == tables
    assert all("If an application created the table, or it is" in str(each) for each in found)


async def test_a_view_is_only_reported(whole):
    engine, name = whole.engine, f"{PREFIX}_words_queue"
    await raw.execute(engine, f"DROP TABLE {name}")
    await raw.execute(engine, "CREATE TABLE mine AS SELECT session_id, id FROM agent_messages")
    columns = "session_id, id AS item_id"
    await raw.execute(engine, f"CREATE VIEW {name} AS SELECT {columns} FROM mine")
    (finding,) = await explained(engine, "names", ["error"])
    assert finding.problem.startswith(f"{name} is a view: ")


@pytest.mark.parametrize("suffix", ["_indexes", "_words_state"])
async def test_a_metadata_table_of_others_is_only_reported(engine, suffix):
    names = table_names("theirs", "their_items", f"meta{suffix}")
    theirs = catalog_of(engine, names)
    await theirs.create_session("a", metadata={"title": "x", "n": 1})
    await theirs.create_session("b", metadata={"title": "x", "n": 1})
    ours = table_names("agent_sessions", "agent_messages", "meta")
    (finding,) = await mended(engine, ours)
    assert finding.check == "names"
    assert finding.problem.startswith(f"{names.metadata} has no column state and no ")
    assert await problems(engine, names) == []


@pytest.mark.parametrize("suffix", ["_indexes", "_activity", "_words"])
async def test_a_way_back_from_an_index_table_without_columns(whole, shared_database, suffix):
    engine, table = whole.engine, PREFIX + suffix
    await raw.execute(engine, f"DROP TABLE {table}")
    await raw.execute(engine, f"CREATE TABLE {table} AS SELECT 1 AS other")
    (finding,) = await explained(engine, "names", ["error"])
    group = next(each for each in GROUPS if table in [one.name for one in each.tables])
    listed = " and ".join(each.name for each in group.tables)
    assert f"while nothing else writes, drop {listed} yourself" in finding.problem
    for each in reversed(group.tables):
        await raw.execute(engine, f"DROP TABLE {each.name}")
    assert await mended(engine) == []
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    for key in ("tags", "$updated_at", "$text"):
        await catalog.create_index(key)
    assert await problems(engine) == []
    assert {each.key for each in await catalog.list_indexes()} == {"tags", "$updated_at", "$text"}

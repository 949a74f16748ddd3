"""Indexes whose triggers do something else, or whose rows a trigger of the application keeps."""

from __future__ import annotations

import pytest
from agents.extensions.memory import SQLAlchemySession
from doctoring import complete, every_table, mended, problems
from servers import Database

from agents_session_metadata import RefusedRowError, SessionCatalog
from agents_session_metadata.storage.tables import table_names
from conformance import raw
from conformance.test_triggers import veto

META = "agent_sessions_metadata"
KEYS = ("tags", "$updated_at")


async def check_plain_writers(database: Database) -> None:
    """What the plain SDK writes is in the indexes."""
    engine = database.engine()
    await SQLAlchemySession("b", engine=engine).add_items([raw.message("unheard of")])
    assert await problems(engine) == []


@pytest.mark.parametrize("suffix", ["_indexes", "_activity"])
async def test_tables_of_an_index_under_another_name(shared_database: Database, suffix):
    """SQLite lets the triggers write to the table of the other name."""
    engine = shared_database.engine()
    await complete(engine)
    await raw.execute(engine, f"ALTER TABLE {META}{suffix} RENAME TO archived")
    await mended(engine)
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    for key in KEYS:
        await catalog.create_index(key)
    assert await problems(engine) == []
    await check_plain_writers(shared_database)


async def replace_trigger(engine, name: str, table: str, event: str) -> None:
    """Let a trigger do nothing."""
    if engine.dialect.name == "postgresql":
        function = f"{META}_{name}() RETURNS trigger LANGUAGE plpgsql"
        await raw.execute(
            engine, f"CREATE OR REPLACE FUNCTION {function} AS $$ BEGIN RETURN NULL; END $$"
        )
        return
    await raw.execute(engine, f"DROP TRIGGER {META}_{name}")
    nothing = "SELECT 1" if engine.dialect.name == "sqlite" else "SET @x = 1"
    await raw.execute(
        engine,
        f"CREATE TRIGGER {META}_{name} {event} ON {table} FOR EACH ROW BEGIN {nothing}; END",
    )


async def test_a_trigger_that_does_something_else_is_replaced(shared_database: Database):
    engine = shared_database.engine()
    catalog = await complete(engine)
    await replace_trigger(engine, "activity_value_insert", META, "AFTER INSERT")
    await catalog.set_metadata("missed", {"tags": ["overlooked"]})
    # A new index replaces the trigger.
    assert await catalog.create_index("n")
    incomplete = {each.key for each in await catalog.list_indexes() if not each.complete}
    assert incomplete == (set() if engine.dialect.name == "postgresql" else {"tags"})
    for key in incomplete:
        assert await catalog.create_index(key)
    await mended(engine)
    page = await catalog.list_sessions({"tags": ["overlooked"]})
    assert [each.session_id for each in page.sessions] == ["missed"]
    await check_plain_writers(shared_database)


@pytest.mark.only_on("sqlite", "postgresql")
async def test_a_trigger_that_keeps_entries_of_an_index(shared_database: Database):
    engine = shared_database.engine()
    catalog = await complete(engine)
    await veto(engine, "DELETE", f"{META}_activity")
    call = catalog.drop_index("tags")
    if engine.dialect.name == "postgresql":
        # It drops an index while others write, and looks when the index is created again.
        await call
        call = catalog.create_index("tags")
    with pytest.raises(RefusedRowError, match=rf"from {META}_activity.*trigger"):
        await call


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("suffix", ["_elements", "_paused", "_thread_items", "_attachments"])
async def test_triggers_of_a_table_under_another_name_are_replaced(
    shared_database: Database, suffix
):
    engine, table = shared_database.engine(), f"{META}{suffix}"
    await every_table(engine, table_names())
    await raw.execute(engine, f"ALTER TABLE {table} RENAME TO archived")
    catalog = await every_table(shared_database.engine(), table_names())
    query = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND sql LIKE '%archived%'"
    assert await raw.execute(engine, query) == []
    assert await problems(engine) == []
    await catalog.create_session("a", metadata={"tags": ["x"]})
    assert await catalog.delete_session("a")
    assert await raw.count_rows(engine, table) == 0

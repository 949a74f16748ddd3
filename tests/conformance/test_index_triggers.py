"""Indexes whose triggers do something else, or whose rows a trigger of the application keeps."""

from __future__ import annotations

import pytest
from agents.extensions.memory import SQLAlchemySession
from doctoring import complete, every_table, mended, problems
from servers import Database

from agents_session_metadata import SessionCatalog
from agents_session_metadata.storage.tables import table_names
from conformance import raw

META = "agent_sessions_metadata"
KEYS = ("tags", "$updated_at", "$text")


async def check_plain_writers(database: Database) -> None:
    """What the plain SDK writes waits for the text index, and is in the other indexes."""
    catalog, engine = SessionCatalog(database.engine()), database.engine()
    await SQLAlchemySession("b", engine=engine).add_items([raw.message("unheard of")])
    page = await catalog.search("unheard")
    assert page.hits == []
    assert not page.complete
    await catalog.refresh_index("$text")
    page = await catalog.search("unheard")
    assert [hit.session_id for hit in page.hits] == ["b"]
    assert page.complete
    assert await problems(engine) == []


@pytest.mark.parametrize("suffix", ["_words", "_words_queue", "_indexes", "_activity"])
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


@pytest.mark.parametrize("is_complete", [True, False])
async def test_a_trigger_that_does_something_else_is_replaced(
    shared_database: Database, is_complete
):
    engine = shared_database.engine()
    catalog = await complete(engine)
    await replace_trigger(engine, "words_of_item_insert", "agent_messages", "AFTER INSERT")
    await replace_trigger(engine, "activity_session_insert", "agent_sessions", "AFTER INSERT")
    plain = SQLAlchemySession("missed", engine=engine)
    await plain.add_items([raw.message("overlooked")])
    if not is_complete:
        await raw.execute(engine, f"UPDATE {META}_words_state SET state = 0")
        found = [each.problem for each in await problems(engine) if each.check == "words"]
        assert any("words_of_item_insert does something else" in each for each in found)
    assert await catalog.create_index("$text")
    page = await catalog.search("overlooked")
    assert [hit.session_id for hit in page.hits] == ["missed"]
    assert page.complete
    # Of the indexes, a new one replaces the trigger.
    assert await catalog.create_index("n")
    incomplete = {each.key for each in await catalog.list_indexes() if not each.complete}
    assert incomplete == (set() if engine.dialect.name == "postgresql" else {"tags", "$updated_at"})
    for key in incomplete:
        assert await catalog.create_index(key)
    await mended(engine)
    assert [each.session_id for each in (await catalog.list_sessions(limit=1)).sessions] == [
        "missed"
    ]
    await check_plain_writers(shared_database)


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

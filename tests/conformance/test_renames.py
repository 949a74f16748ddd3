"""Tables that were all renamed: under their new names, and a second set under the old ones."""

from __future__ import annotations

import pytest
from doctoring import complete, ddl_dialect, mended, printed, problems, run
from servers import Database
from sqlalchemy.exc import DBAPIError

from agents_session_metadata import PausedRuns, SessionCatalog, TablesMismatchError
from agents_session_metadata.ddl import create_statements
from agents_session_metadata.storage.tables import table_names
from conformance import raw
from conformance.test_belonging import trigger_count

CHATS = table_names("chat_sessions", "chat_messages")
NEW = {"sessions_table": CHATS.sessions, "messages_table": CHATS.messages}


async def rename_all(engine, old: str = "agent_", new: str = "chat_") -> set[str]:
    tables = await raw.table_names(engine)
    for table in tables:
        if table.startswith(old):
            await raw.execute(engine, f"ALTER TABLE {table} RENAME TO {table.replace(old, new, 1)}")
    return await raw.table_names(engine)


async def check_works(catalog: SessionCatalog) -> None:
    """Writes, search, indexes and the features with tables of their own."""
    session = await catalog.create_session("new", metadata={"tags": ["z"], "title": "unheard"})
    await session.add_items([raw.message("something")])
    assert [hit.session_id for hit in (await catalog.search("unheard")).hits] == ["new"]
    assert len((await catalog.list_sessions({"tags": {"$contains": "z"}}, limit=1)).sessions) == 1
    await catalog.usage()
    assert (await PausedRuns(catalog).list({"title": "unheard"})).runs == []
    assert await catalog.delete_session("new")


async def test_all_tables_under_new_names(shared_database: Database):
    engine = shared_database.engine()
    await complete(engine)
    await rename_all(engine)
    if shared_database.kind == "sqlite":
        for create_tables in (True, False):
            catalog = SessionCatalog(engine, create_tables=create_tables, **NEW)
            with pytest.raises(TablesMismatchError, match="has the trigger agent_"):
                await catalog.count_sessions()
    else:
        with pytest.raises(DBAPIError):
            await SessionCatalog(engine, **NEW).create_session("new")
    found = await mended(engine, CHATS)
    assert {each.check for each in found} == {"words"}
    catalog = SessionCatalog(shared_database.engine(), **NEW)
    await catalog.create_index("$text")
    assert await problems(engine, CHATS) == []
    await check_works(catalog)
    assert await problems(engine, CHATS) == []
    if shared_database.kind == "sqlite":
        await check_id_changes(engine, CHATS)


async def check_id_changes(engine, names) -> None:
    metadata = names.metadata
    tables = [metadata, f"{metadata}_elements", f"{metadata}_paused", f"{metadata}_thread_items"]
    counts = [await raw.count_rows(engine, table, "a") for table in tables]
    assert all(counts)
    for table in (names.sessions, names.messages):
        await raw.execute(engine, f"UPDATE {table} SET session_id = 'c' WHERE session_id = 'a'")
    assert [await raw.count_rows(engine, table, "c") for table in tables] == counts
    assert await problems(engine, names) == []


async def test_old_names_after_all_tables_were_renamed(shared_database: Database):
    engine = shared_database.engine()
    await complete(engine)
    before, triggers = await rename_all(engine), await trigger_count(engine)
    for create_tables in (True, False):
        catalog = SessionCatalog(shared_database.engine(), create_tables=create_tables)
        with pytest.raises(TablesMismatchError, match="is in use on chat_"):
            await catalog.set_metadata("a", {"m": 1})
    found = await problems(engine)
    assert {each.check for each in found} == {"names"}
    assert printed(found) == []
    assert "are on chat_sessions, where they may be in use" in str(found)
    assert (await raw.table_names(engine), await trigger_count(engine)) == (before, triggers)
    # The other tables are an archive, and these begin anew.
    await mended(engine, CHATS)
    archive = SessionCatalog(shared_database.engine(), **NEW)
    await archive.create_index("$text")
    with pytest.raises(TablesMismatchError, match="is in use on chat_"):
        await SessionCatalog(shared_database.engine(), create_tables=True).count_sessions()
    assert "may be this table" in str(await problems(engine))
    assert await mended(engine) == []
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    for key in ("tags", "$updated_at", "$text"):
        await catalog.create_index(key)
    for each, names in ((catalog, None), (archive, CHATS)):
        await check_works(each)
        assert await problems(engine, names) == []
    assert (await catalog.count_sessions(), await archive.count_sessions()) == (0, 2)


async def test_old_names_without_indexes(shared_database: Database):
    engine = shared_database.engine()
    await SessionCatalog(engine, create_tables=True).set_metadata("a", {"m": 1})
    before = await rename_all(engine)
    with pytest.raises(TablesMismatchError, match="is in use on chat_"):
        await SessionCatalog(shared_database.engine(), create_tables=True).count_sessions()
    assert await raw.table_names(engine) == before


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("renamed", ["agent_sessions_metadata", "every table of metadata"])
async def test_metadata_under_another_name(shared_database: Database, renamed):
    engine = shared_database.engine()
    if renamed.startswith("every"):
        await complete(engine)
        await rename_all(engine, "agent_sessions_metadata", "meta")
    else:
        await SessionCatalog(engine, create_tables=True).set_metadata("a", {"m": 1})
        await raw.execute(engine, f"ALTER TABLE {renamed} RENAME TO meta")
    triggers = await trigger_count(engine)
    catalog = SessionCatalog(engine, create_tables=True, metadata_table="meta")
    with pytest.raises(TablesMismatchError, match="has the trigger agent_sessions_metadata_after"):
        await catalog.count_sessions()
    assert await trigger_count(engine) == triggers
    if renamed.startswith("every"):
        names = table_names(metadata_table="meta")
        assert {each.check for each in await mended(engine, names)} == {"words"}
        await SessionCatalog(engine, metadata_table="meta").create_index("$text")
        await check_id_changes(engine, names)


@pytest.mark.only_on("sqlite")
async def test_triggers_of_other_tables_are_never_dropped(shared_database: Database):
    engine = shared_database.engine()
    await complete(engine)
    await rename_all(engine)
    await run(engine, create_statements("sqlite"))  # whose triggers exist on the other tables
    triggers = await trigger_count(engine)
    with pytest.raises(TablesMismatchError, match="is in use on chat_"):
        await SessionCatalog(shared_database.engine(), create_tables=True).count_sessions()
    found = await problems(engine)
    assert {each.check for each in found} == {"names"}
    assert printed(found) == []
    assert await trigger_count(engine) == triggers
    await mended(engine, CHATS)
    assert await mended(engine) == []
    await SessionCatalog(engine).set_metadata("a", {"m": 1})
    await raw.execute(engine, "DELETE FROM agent_sessions")
    assert await raw.metadata_rows(engine) == 0
    assert await raw.count_rows(engine, CHATS.metadata, "a") > 0


@pytest.mark.only_on("sqlite")
async def test_triggers_of_both_names_are_not_left_together(shared_database: Database):
    engine = shared_database.engine()
    await complete(engine)
    await rename_all(engine)
    await run(engine, create_statements("sqlite", CHATS))
    found = await problems(engine, CHATS)
    assert "does the same as trigger chat_sessions_metadata_after_update" in str(found)
    assert all("agent_" in each for each in printed(found) if each.startswith("DROP"))
    await mended(engine, CHATS)
    await SessionCatalog(engine, **NEW).create_index("$text")
    await check_id_changes(engine, CHATS)


async def test_other_triggers_are_not_taken_for_renamed_ones(shared_database: Database):
    """Those of a second metadata table, and those of an application that look alike."""
    engine = shared_database.engine()
    await complete(engine)
    names = table_names(metadata_table="labels")
    await run(engine, create_statements(await ddl_dialect(engine), names))
    labels = SessionCatalog(engine, metadata_table="labels")
    await labels.set_metadata("a", {"color": "red", "tags": ["x"]})
    for key in ("tags", "$updated_at", "$text"):
        await labels.create_index(key)
    await raw.execute(engine, "CREATE TABLE notes (session_id varchar(255))")
    body = "BEGIN DELETE FROM notes WHERE session_id = OLD.session_id; END"
    for suffix, event in (("after_delete", "AFTER DELETE"), ("session_leave", "BEFORE UPDATE")):
        runs = body
        if shared_database.kind == "postgresql":
            runs = f"EXECUTE FUNCTION notes_{suffix}()"
            function = f"CREATE FUNCTION notes_{suffix}() RETURNS trigger LANGUAGE plpgsql"
            await run(engine, [f"{function} AS $$ {body.replace('END', 'RETURN NEW; END')} $$"])
        trigger = f"CREATE TRIGGER notes_{suffix} {event} ON agent_sessions FOR EACH ROW {runs}"
        await run(engine, [trigger])
    assert await problems(engine) == []
    assert await problems(engine, names) == []
    # Not even where the tables that they write to are gone.
    await raw.execute(engine, "DROP TABLE notes")
    assert await problems(engine) == []

"""The table of elements is an index: where somebody dropped it, it is made again from the lists."""

from __future__ import annotations

import asyncio
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import Script, run_processes
from scaling import examples
from servers import SHARED_DATABASES

from agents_session_metadata import SessionCatalog, TablesMissingError
from agents_session_metadata.storage.tables import table_names
from agents_session_metadata.values import search_key
from conformance import raw, strategies

ELEMENTS = "agent_sessions_metadata_elements"
VALUES = [1, 1.5, -(10**30), True, None, "x", "ä b", "long " * 300, "\x00", ["nested"], {"a": 1}]

MANY = 130
"""Sessions with two lists each: more than are read at a time."""

CREATE = """
import asyncio, sys
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from agents_session_metadata import SessionCatalog

async def main():
    engine = create_async_engine(sys.argv[1])
    timeouts = []

    @event.listens_for(engine.sync_engine, "handle_error")
    def note(context):
        if "Lock wait timeout" in str(context.original_exception):
            timeouts.append(context.statement)

    start()
    emit(await SessionCatalog(engine, create_tables=True).count_sessions({"all": {"$contains": 1}}))
    emit(timeouts)
    await engine.dispose()

asyncio.run(main())
"""

# The second time that elements are written, the process is gone.
CREATE_AND_DIE = """
import asyncio, os, signal, sys
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from agents_session_metadata import SessionCatalog

async def main():
    engine = create_async_engine(sys.argv[1])
    written = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def die(connection, cursor, statement, *_):
        if statement.startswith("INSERT INTO agent_sessions_metadata_elements"):
            written.append(statement)
            if len(written) == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)

    await SessionCatalog(engine, create_tables=True).count_sessions()

asyncio.run(main())
"""


async def fill(engine, **names) -> SessionCatalog:
    catalog = SessionCatalog(engine, create_tables=True, **names)
    for number in range(MANY):
        own = [number, f"n{number}", "shared", "shared"]
        await catalog.create_session(
            f"s{number:03}", metadata={"own": own, "all": [1, 2], "none": [], "text": "shared"}
        )
    await catalog.create_session("mixed", metadata={"values": VALUES, "all": [1]})
    return catalog


async def elements(engine, table=ELEMENTS):
    query = f"SELECT session_id, {quoted(engine, 'key')}, search_key, search_rest FROM {table}"
    rows = await raw.execute(engine, query)
    return sorted((own_id, key, bytes(a), bytes(b)) for own_id, key, a, b in rows)


def quoted(engine, name):
    return engine.dialect.identifier_preparer.quote(name)


async def test_a_dropped_table_is_made_again_with_its_rows(engine, database):
    await fill(engine)
    before = await elements(engine)
    assert len(before) > MANY * 5
    await raw.execute(engine, f"DROP TABLE {ELEMENTS}")
    with pytest.raises(TablesMissingError):
        await SessionCatalog(database.engine()).count_sessions({"all": {"$contains": 1}})
    catalog = SessionCatalog(database.engine(), create_tables=True)
    assert await catalog.count_sessions({"own": {"$contains": "n77"}}) == 1
    assert await catalog.count_sessions({"all": {"$contains": 1}}) == MANY + 1
    assert {each.value for each in await catalog.count_values("values")} == {*VALUES[:9]}
    assert await elements(engine) == before
    assert {name for name in await raw.table_names(engine) if "elements" in name} == {ELEMENTS}
    # It follows the lists as before, and the foreign keys and triggers are there.
    await catalog.set_metadata("s000", {"own": ["new"]})
    assert await catalog.count_sessions({"own": {"$contains": "new"}}) == 1
    await raw.execute(engine, "DELETE FROM agent_messages")
    await raw.execute(engine, "DELETE FROM agent_sessions")
    assert await raw.metadata_rows(engine) == 0


async def test_a_table_dropped_under_a_catalog_in_use(engine):
    catalog = await fill(engine)
    before = await elements(engine)
    await raw.execute(engine, f"DROP TABLE {ELEMENTS}")
    assert await catalog.count_sessions({"own": {"$contains": "shared"}}) == MANY
    assert await elements(engine) == before


async def test_under_names_of_ones_own(engine, database):
    names = {"sessions_table": "talks", "messages_table": "entries", "metadata_table": "Facts 1%:a"}
    await fill(engine, **names)
    # `text` doubles the percent sign itself, and takes a colon for a parameter.
    table = quoted(engine, table_names(*names.values()).elements)
    table = table.replace("%%", "%").replace(":", "\\:")
    before = await elements(engine, table)
    await raw.execute(engine, f"DROP TABLE {table}")
    catalog = SessionCatalog(database.engine(), create_tables=True, **names)
    assert await catalog.count_sessions({"all": {"$contains": 1}}) == MANY + 1
    assert await elements(engine, table) == before


@examples(10, 1_250)
@given(data=st.data())
async def test_edits_leave_what_one_write_would(engine, data):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.delete_session("chat")
    few = st.sampled_from([1, 2, "a", [0], None])
    values = st.lists(few, max_size=4) | few | strategies.json_values
    for _ in range(3):
        wanted = data.draw(st.dictionaries(st.sampled_from("xyz") | strategies.keys, values))

        def change(stored, wanted=wanted):
            stored.clear()
            stored.update(wanted)

        await catalog.session("chat").edit_metadata(change)
    assert await catalog.get_metadata("chat") == wanted
    edited = await elements(engine)
    await catalog.delete_session("chat")
    await catalog.set_metadata("chat", wanted)
    assert edited == await elements(engine)


@pytest.mark.parametrize("by_hand", ["[]", '["c"]', '["c", "d"]', '"x"'])
async def test_a_list_changed_by_hand_can_be_written(engine, by_hand):
    catalog = SessionCatalog(engine, create_tables=True)
    wanted = [("chat", "tags", *search_key(tag)) for tag in ("c", "d")]
    update = "UPDATE agent_sessions_metadata SET value = :value"
    for edited in ([["c", "d"]], ["c", "d", ["e"]]), (["y"], ["c", "d"]):
        await catalog.set_metadata("chat", {"tags": ["a", "b"]})
        await raw.execute(engine, update, value=by_hand)
        for tags in edited:
            await catalog.edit_metadata("chat", lambda stored, tags=tags: stored.update(tags=tags))
        assert await elements(engine) == wanted
    await catalog.set_metadata("chat", {"tags": ["a", "b"]})
    await raw.execute(engine, update, value=by_hand)
    await catalog.edit_metadata("chat", lambda stored: stored.update(tags="a string"))
    await catalog.set_metadata("chat", {"tags": ["c", "d"]})
    assert await elements(engine) == wanted


async def test_a_value_that_is_no_json_has_no_elements(engine, database):
    await fill(engine)
    where = f"session_id = 's000' AND {quoted(engine, 'key')} = 'own'"
    await raw.execute(engine, f"UPDATE agent_sessions_metadata SET value = '[1' WHERE {where}")
    await raw.execute(engine, f"DROP TABLE {ELEMENTS}")
    catalog = SessionCatalog(database.engine(), create_tables=True)
    assert await catalog.count_sessions({"own": {"$contains": "shared"}}) == MANY - 1


async def test_four_processes_make_it_again_at_once(shared_database):
    engine = shared_database.engine()
    await fill(engine)
    before = await elements(engine)
    await raw.execute(engine, f"DROP TABLE {ELEMENTS}")
    assert await run_processes(CREATE, [[shared_database.url]] * 4) == [[MANY + 1, []]] * 4
    assert await elements(engine) == before
    assert {name for name in await raw.table_names(engine) if "elements" in name} == {ELEMENTS}


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("shared_database", SHARED_DATABASES, indirect=True)
async def test_a_process_killed_in_the_middle(shared_database, at):
    engine = shared_database.engine()
    await fill(engine)
    await raw.execute(engine, f"DROP TABLE {ELEMENTS}")
    child = Script(CREATE_AND_DIE, [shared_database.url, at])
    assert await asyncio.to_thread(child.exit_code) == -signal.SIGKILL
    # What is half there is not taken for the whole, nor for what it was.
    with pytest.raises(TablesMissingError, match=ELEMENTS):
        await SessionCatalog(shared_database.engine()).count_sessions({"all": {"$contains": 1}})
    after = shared_database.engine()
    if shared_database.kind == "sqlite":
        # A trigger wants the table.
        await raw.execute(after, "DROP TRIGGER agent_sessions_metadata_elements_after_delete")
    await raw.execute(after, "DELETE FROM agent_sessions_metadata WHERE session_id = 's001'")
    where = f"session_id = 's002' AND {quoted(engine, 'key')} = 'own'"
    change = "UPDATE agent_sessions_metadata SET value = '1', search_key = :one WHERE "
    await raw.execute(after, change + where, one=search_key(1).indexed)
    catalog = SessionCatalog(after, create_tables=True)
    assert await catalog.count_sessions({"all": {"$contains": 1}}) == MANY
    assert await catalog.count_sessions({"own": {"$contains": "shared"}}) == MANY - 2
    assert {name for name in await raw.table_names(engine) if "elements" in name} == {ELEMENTS}

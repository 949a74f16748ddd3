"""Concurrent callers: tasks, processes, the plain SDK, and callers that were cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from datetime import timedelta

import pytest
from agents.extensions.memory import SQLAlchemySession
from processes import run_processes
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, StaticPool
from sqlalchemy.util import await_only

from agents_session_metadata import (
    MetadataLimitError,
    MetadataLimits,
    SessionCatalog,
    SessionNotFoundError,
    SQLAlchemyMetadataSession,
    UnsupportedDialectError,
)
from conformance import raw

pytestmark = pytest.mark.dialect

HEAD = """
import asyncio, sys
from agents.extensions.memory import SQLAlchemySession
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from agents_session_metadata import *

url, *arguments = sys.argv[1:]

async def main():
    engine = create_async_engine(url)
    try:
        emit(await work(engine))
    finally:
        await engine.dispose()

def run():
    start()
    asyncio.run(main())
"""

FIRST_USE = (
    HEAD
    + """
async def work(engine):
    session = SQLAlchemyMetadataSession(arguments[0], engine=engine, create_tables=True)
    shared = SQLAlchemyMetadataSession("shared", engine=engine, create_tables=True)
    writes = [
        lambda: session.set_metadata({"by": arguments[0], "tags": ["x"]}),
        lambda: shared.add_items([{"role": "user", "content": arguments[0]}]),
    ]
    # Half of the processes begin with history, the other half with metadata.
    for write in writes[:: int(arguments[1])]:
        await write()
    return await session.get_metadata()

run()
"""
)

COUNT_UP = (
    HEAD
    + """
async def work(engine):
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    def change(metadata):
        metadata["turns"] = metadata.get("turns", 0) + 1
        metadata.setdefault("by", []).append(arguments[0])
    results = []
    for _ in range(int(arguments[1])):
        results.append((await session.edit_metadata(change))["turns"])
    return results

run()
"""
)

FILL_UP = (
    HEAD
    + """
async def work(engine):
    limits = MetadataLimits(max_keys=10)
    session = SQLAlchemyMetadataSession("chat", engine=engine, metadata_limits=limits)
    async def write(number):
        try:
            await session.set_metadata({f"{arguments[0]} {number}": number})
        except MetadataLimitError as error:
            return error.limit
    return await asyncio.gather(*[write(number) for number in range(15)])

run()
"""
)

WRITE_METADATA = (
    HEAD
    + """
async def work(engine):
    for number in range(15):
        session = SQLAlchemyMetadataSession(f"chat {number}", engine=engine)
        await session.set_metadata({f"by {arguments[0]}": number, "tags": [arguments[0]]})
        await session.add_items([{"role": "user", "content": arguments[0]}])

run()
"""
)

# A plain SDK session does not try again by itself: what fails here is not ours to promise.
WRITE_PLAIN_HISTORY = (
    HEAD
    + """
async def work(engine):
    for number in range(15):
        session = SQLAlchemySession(f"chat {number}", engine=engine)
        for attempt in range(20):
            try:
                await session.add_items([{"role": "user", "content": arguments[0]}])
                break
            except OperationalError:
                await asyncio.sleep(0.01)

run()
"""
)

MIXED = f"""
import sys
plain = sys.argv[2].startswith("plain")
exec({WRITE_PLAIN_HISTORY!r} if plain else {WRITE_METADATA!r})
"""

CREATE_ONE = (
    HEAD
    + """
async def work(engine):
    catalog = SessionCatalog(engine)
    values = {"owner_id": "u1", "topic": "one"}
    results = await asyncio.gather(*[catalog.get_or_create_session(values) for _ in range(13)])
    return [(session.session_id, created) for session, created in results]

run()
"""
)


@pytest.fixture
def engine(shared_database):
    return shared_database.engine()


async def test_six_processes_make_the_tables_at_once(shared_database):
    names = [f"process {number}" for number in range(6)]
    results = await run_processes(
        FIRST_USE,
        [[shared_database.url, name, 1 - 2 * (number % 2)] for number, name in enumerate(names)],
    )
    assert results == [[{"by": name, "tags": ["x"]}] for name in names]
    catalog = SessionCatalog(shared_database.engine())
    page = await catalog.list_sessions({"tags": {"$contains": "x"}}, order_by="session_id")
    assert [info.session_id for info in page.sessions] == names
    items = await catalog.session("shared").get_items()
    assert sorted(item["content"] for item in items) == names


async def test_twenty_tasks_make_the_tables_at_once(engine):
    sessions = [
        SQLAlchemyMetadataSession(f"chat {number}", engine=engine, create_tables=True)
        for number in range(20)
    ]
    await asyncio.gather(*[session.set_metadata({"a": 1}) for session in sessions])
    assert await raw.count_rows(engine, "agent_sessions") == 20


async def test_editors_in_four_processes_take_turns(shared_database):
    names = ["a", "b", "c", "d"]
    results = await run_processes(COUNT_UP, [[shared_database.url, name, 25] for name in names])
    seen = sorted(turn for process in results for turn in process[0])
    assert seen == list(range(1, 101))
    session = SQLAlchemyMetadataSession("chat", engine=shared_database.engine())
    stored = await session.get_metadata()
    assert stored["turns"] == 100
    assert sorted(stored["by"]) == sorted(names * 25)


async def test_fifty_editors_on_a_session_that_is_not_there_yet(engine):
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)

    def change(metadata):
        metadata["turns"] = metadata.get("turns", 0) + 1

    results = await asyncio.gather(*[session.edit_metadata(change) for _ in range(50)])
    assert sorted(result["turns"] for result in results) == list(range(1, 51))


async def test_editors_take_turns_where_an_engine_commits_each_statement(shared_database):
    engine = shared_database.engine(isolation_level="AUTOCOMMIT")
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)

    def change(metadata):
        metadata["turns"] = metadata.get("turns", 0) + 1
        metadata["list"] = [*metadata.get("list", []), metadata["turns"]]

    await asyncio.gather(*[session.edit_metadata(change) for _ in range(30)])
    assert await session.get_metadata() == {"turns": 30, "list": list(range(1, 31))}
    await session.add_items([raw.message("hello")])
    assert len(await session.get_items()) == 1


async def test_editors_take_turns_where_an_application_begins_by_itself(tmp_path):
    """With SQLite's driver out of the way, as SQLAlchemy's documentation shows."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/chat.db")

    @event.listens_for(engine.sync_engine, "connect")
    def connect(connection, _):
        connection.isolation_level = None

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection):
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)

    def change(metadata):
        metadata["turns"] = metadata.get("turns", 0) + 1

    await asyncio.gather(*[session.edit_metadata(change) for _ in range(10)])
    assert await session.get_metadata() == {"turns": 10}
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        assert driver.isolation_level is None
    await engine.dispose()


async def test_thirty_tasks_do_not_pass_the_limit_on_keys(engine):
    limits = MetadataLimits(max_keys=10)
    session = SQLAlchemyMetadataSession(
        "chat", engine=engine, create_tables=True, metadata_limits=limits
    )
    results = await asyncio.gather(
        *[session.set_metadata({f"key {number}": number}) for number in range(30)],
        return_exceptions=True,
    )
    errors = [result for result in results if result is not None]
    assert len(errors) == 20
    assert {type(error) for error in errors} == {MetadataLimitError}
    written = {f"key {number}": number for number in range(30) if results[number] is None}
    assert await session.get_metadata() == written
    assert len(written) == 10


async def test_two_processes_do_not_pass_the_limit_on_keys(shared_database):
    engine = shared_database.engine()
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    await session.get_metadata()
    results = await run_processes(FILL_UP, [[shared_database.url, name] for name in ("a", "b")])
    flat = [one for process in results for one in process[0]]
    assert flat.count(None) == 10
    assert flat.count("max_keys") == 20
    assert len(await session.get_metadata()) == 10


async def test_plain_writers_on_the_same_new_sessions(shared_database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    assert await catalog.count_sessions() == 0
    writers = ["ours 0", "ours 1", "plain 0", "plain 1"]
    await run_processes(MIXED, [[shared_database.url, writer] for writer in writers])
    page = await catalog.list_sessions(order_by="session_id")
    assert {info.session_id for info in page.sessions} == {f"chat {n}" for n in range(15)}
    for info in page.sessions:
        number = int(info.session_id.removeprefix("chat "))
        assert info.metadata["by ours 0"] == info.metadata["by ours 1"] == number
        items = await catalog.session(info.session_id).get_items()
        assert sorted(item["content"] for item in items) == writers


async def test_callers_in_four_processes_create_one(shared_database):
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    assert await catalog.count_sessions() == 0
    results = await run_processes(CREATE_ONE, [[shared_database.url]] * 4)
    flat = [one for process in results for one in process[0]]
    assert len(flat) == 52
    assert sum(created for _, created in flat) == 1
    assert len({session_id for session_id, _ in flat}) == 1
    assert await catalog.count_sessions() == 1


@pytest.mark.only_on(
    "mariadb", "mysql"
)  # Elsewhere the row is inserted and looked for in one statement.
async def test_a_session_that_comes_and_goes_while_it_is_created(shared_database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    assert await catalog.count_sessions() == 0

    async def change(number: int) -> None:
        async with SessionCatalog.from_url(shared_database.url) as other:
            if number % 2:
                await other.create_session("chat", metadata={"n": number})
            else:
                await other.delete_session("chat")

    changes = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def before_cursor_execute(connection, cursor, statement, *_):
        # No row was found, or the row that another has inserted. What follows needs its own loop.
        begins = "SELECT" if len(changes) % 2 else "INSERT"
        if len(changes) < 6 and statement.startswith(begins):
            changes.append(threading.Thread(target=asyncio.run, args=[change(len(changes) + 1)]))
            changes[-1].start()
            changes[-1].join()

    await catalog.set_metadata("chat", {"title": "mine"})
    assert len(changes) == 6
    assert await catalog.get_metadata("chat") == {"title": "mine"}


async def test_history_of_tasks_beside_metadata_of_tasks(database):
    # One connection in memory: statements of two callers must not share a transaction.
    engine = database.engine()
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)

    async def write(number: int) -> None:
        await session.add_items([raw.message(f"a {number}"), raw.message(f"b {number}")])

    async def tag(number: int) -> None:
        await session.set_metadata({f"key {number}": [str(number)]})
        with contextlib.suppress(ZeroDivisionError):
            await session.edit_metadata(lambda metadata: metadata.update(a=1 // (number % 2)))

    await asyncio.gather(*[job(number) for number in range(40) for job in (write, tag)])
    contents = sorted(item["content"] for item in await session.get_items())
    assert contents == sorted(f"{letter} {number}" for letter in "ab" for number in range(40))
    assert await session.get_metadata() == {
        "a": 1,
        **{f"key {number}": [str(number)] for number in range(40)},
    }


@pytest.mark.parametrize("call", ["set", "edit"])
async def test_a_cancelled_writer_wrote_all_or_nothing(engine, call):
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    keys = [f"key {number}" for number in range(8)]
    await session.set_metadata({key: ["start"] for key in keys})
    for turns in range(60):
        values = {key: [str(turns), "x"] for key in keys}
        if call == "set":
            task = asyncio.create_task(session.set_metadata(values))
        else:
            task = asyncio.create_task(session.edit_metadata(lambda m, v=values: m.update(v)))
        for _ in range(turns):
            await asyncio.sleep(0)
        # On a thread or a socket the answer takes its time: let it arrive now and then.
        await asyncio.sleep(0.0005 * (turns % 7))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        stored = await session.get_metadata()
        assert stored.keys() == set(keys)
        assert len({str(value) for value in stored.values()}) == 1
        where = {"key 0": {"$contains": stored["key 0"][0]}}
        assert await session.find_sessions_by_metadata(where) == ["chat"]
        if not task.cancelled():
            assert stored["key 0"] == [str(turns), "x"]
    assert getattr(engine.pool, "checkedout", int)() == 0


# PostgreSQL waits for a lock without an error.
@pytest.mark.not_on("postgresql")
async def test_a_cancelled_writer_is_not_retried(shared_database):
    engine = shared_database.engine()
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    await session.set_metadata({"a": 1})
    failed, has_failed = [], asyncio.Event()
    impatient = shared_database.engine()
    is_sqlite = engine.dialect.name == "sqlite"
    setting = "PRAGMA busy_timeout = 50" if is_sqlite else "SET innodb_lock_wait_timeout = 1"
    event.listen(impatient.sync_engine, "connect", lambda each, _: each.cursor().execute(setting))

    def note(context):
        failed.append(context.statement)
        has_failed.set()

    event.listen(impatient.sync_engine, "handle_error", note)
    writer = SQLAlchemyMetadataSession("chat", engine=impatient)
    await writer.get_metadata()
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE agent_sessions SET updated_at = updated_at"))
        task = asyncio.create_task(writer.set_metadata({"a": 2}))
        await has_failed.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # An attempt may have begun before the cancellation.
        assert len(failed) <= 2
    assert await session.get_metadata() == {"a": 1}
    await writer.set_metadata({"a": 3})
    assert await session.get_metadata() == {"a": 3}


async def test_cancelled_first_users_leave_usable_tables(shared_database):
    engine = shared_database.engine()
    for turns in range(0, 40, 3):
        session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
        task = asyncio.create_task(session.set_metadata({"a": turns}))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    await session.set_metadata({"a": ["done"]})
    assert await session.get_metadata() == {"a": ["done"]}
    assert getattr(engine.pool, "checkedout", int)() == 0


async def test_fifty_callers_and_a_pool_of_five(shared_database):
    # SQLAlchemy before 2.0.38 pools no connections to a file by itself.
    engine = shared_database.engine(
        poolclass=AsyncAdaptedQueuePool, pool_size=5, max_overflow=0, pool_timeout=60
    )
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("shared", metadata={"turns": 0})

    async def work(number: int) -> None:
        session = catalog.session(f"chat {number % 10}")
        await session.set_metadata({"owner": number, "tags": [str(number)]})
        await session.edit_metadata(lambda metadata: metadata.update(seen=number))
        await session.add_items([raw.message(str(number))])
        await catalog.edit_metadata(
            "shared", lambda metadata: metadata.update(turns=metadata["turns"] + 1)
        )
        await catalog.list_sessions({"owner": {"$exists": True}}, limit=3, count_items=True)
        await catalog.count_values("tags")
        await catalog.get_or_create_session({"topic": number % 3})
        async for _ in catalog.iter_sessions({"owner": number}):
            await catalog.get_session("shared")

    await asyncio.wait_for(asyncio.gather(*[work(number) for number in range(50)]), 120)
    assert await catalog.get_metadata("shared") == {"turns": 50}
    assert await catalog.count_sessions() == 14
    assert getattr(engine.pool, "checkedout", int)() == 0


async def test_clearing_against_writing(engine):
    # Whoever comes last, there are never rows without their session.
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    plain = SQLAlchemySession("chat", engine=engine)
    await session.set_metadata({"a": ["x"]})

    async def write(number: int) -> None:
        await session.set_metadata({f"key {number}": [number], "a": ["x", "y"]})
        await session.add_items([raw.message("a")])

    for _ in range(5):
        await asyncio.gather(
            *[write(number) for number in range(6)], session.clear_session(), write(7)
        )
    await plain.clear_session()
    assert await raw.metadata_rows(engine) == 0
    assert await session.get_items() == []


@pytest.mark.only_on("sqlite")
async def test_engines_that_share_one_connection(shared_database):
    engine = shared_database.engine(poolclass=StaticPool)
    option_engine = engine.execution_options(schema_translate_map={})
    mine = SessionCatalog(engine, create_tables=True).scoped({"owner_id": "u1"})
    theirs = SessionCatalog(option_engine, create_tables=True).scoped({"owner_id": "u2"})
    session = await mine.create_session("mine")
    await theirs.create_session("first")

    async def look(number: int) -> None:
        for _ in range(number % 9):
            await asyncio.sleep(0)
        assert await session.get_items() == []
        assert await mine.session("nothing").pop_item() is None
        assert not await mine.delete_session("nothing")

    names = [f"chat-{number}" for number in range(30)]
    for number, name in enumerate(names):
        await asyncio.gather(look(number), theirs.create_session(name, metadata={"title": "x"}))
    assert await theirs.count_sessions() == len(names) + 1


@pytest.mark.not_on("sqlite")
async def test_no_connection_is_shared_by_all_calls(shared_database):
    engine = shared_database.engine(poolclass=StaticPool)
    with pytest.raises(UnsupportedDialectError, match="StaticPool"):
        SessionCatalog(engine)
    with pytest.raises(UnsupportedDialectError, match="StaticPool"):
        SQLAlchemyMetadataSession("chat", engine=engine)


async def refusal(awaitable):
    try:
        return await awaitable
    except SessionNotFoundError as error:
        return error


async def test_a_session_that_an_import_replaces_always_exists(catalog, shared_database):
    other = SessionCatalog(shared_database.engine())
    strict, plain = other.session("chat", must_exist=True), other.session("chat")
    calls = {
        "delete_session": lambda: other.delete_session("chat"),
        "delete_sessions": lambda: other.delete_sessions({"a": 1}, paused_for=timedelta(0)),
        "delete_metadata": lambda: other.delete_metadata("chat", ["a"]),
        "set_metadata": lambda: other.set_metadata("chat", {"b": 1}, must_exist=True),
        "edit_metadata": lambda: other.edit_metadata("chat", dict.clear, must_exist=True),
        "add_items": lambda: strict.add_items([raw.message("more")]),
        "pop_item": plain.pop_item,
        "scoped": lambda: other.scoped({"a": 1}).delete_session("chat"),
        "rewind": lambda: other.rewind_session("chat", turns=1),
        "clear": plain.clear_session,
    }
    results = {}
    for name, call in calls.items():
        session = await catalog.create_session("chat", metadata={"a": 1})
        await session.add_items([raw.message("hello")])
        records = [record async for record in catalog.export_sessions()]
        tasks = []

        def begin(_, call=call, tasks=tasks) -> None:
            tasks.append(asyncio.ensure_future(refusal(call())))
            await_only(asyncio.wait(tasks, timeout=0.2))  # It waits for the commit.

        event.listen(catalog.engine.sync_engine, "commit", begin, once=True)
        await catalog.import_sessions(records, "replace")
        result = await tasks[0]
        info = await catalog.get_session("chat", count_items=True)
        results[name] = result, info and (info.metadata, info.item_count)
        await catalog.delete_session("chat")
    assert results == {
        "delete_session": (True, None),
        "delete_sessions": (1, None),
        "delete_metadata": (1, ({}, 1)),
        "set_metadata": (None, ({"a": 1, "b": 1}, 1)),
        "edit_metadata": ({}, ({}, 1)),
        "add_items": (None, ({"a": 1}, 2)),
        "pop_item": (raw.message("hello"), ({"a": 1}, 0)),
        "scoped": (True, None),
        "rewind": (results["rewind"][0], ({"a": 1}, 0)),
        "clear": (None, None),
    }

"""Lost connections, no room, no right to write: errors pass through, and nothing is half there.

What takes longer, and what needs servers of its own, is in the package `stress`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
from agents import Runner, function_tool
from proxy import proxy_to
from servers import SHARED_DATABASES
from sqlalchemy import event, make_url
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import await_only

from agents_session_metadata import (
    Budget,
    SessionCatalog,
    SessionTracker,
    SQLAlchemyMetadataSession,
    keys,
)
from conformance import raw
from conformance.running import agent, calls

pytestmark = pytest.mark.dialect

ON_SERVERS = [name for name in SHARED_DATABASES if not name.startswith("sqlite")]

through_proxy = pytest.mark.parametrize(
    ("database", "driver"),
    [(name, None) for name in ON_SERVERS] + [("postgresql", "postgresql+psycopg")],
    indirect=["database"],
)


class Counting:
    """A change for `edit_metadata` that counts up, and knows how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, metadata):
        self.calls += 1
        metadata["turns"] = metadata.get("turns", 0) + 1
        metadata["tags"] = [str(metadata["turns"])]


@pytest.fixture
async def proxied(database, driver):
    """A proxy to the database, and an engine of one connection that goes through it."""
    async with proxy_to(make_url(database.url)) as proxy:
        url = proxy.url.set(drivername=driver) if driver else proxy.url
        engine = create_async_engine(url, pool_size=1, max_overflow=0)
        yield proxy, engine
        assert engine.pool.checkedout() == 0
        await engine.dispose()


async def prepared(engine, turns: int = 0) -> SQLAlchemyMetadataSession:
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    await session.set_metadata({"turns": turns, "tags": [str(turns)]})
    return session


@pytest.mark.only_on("sqlite-memory", "sqlite-file")
async def test_an_error_of_several_rows_names_its_own_statement(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("first", metadata={"a": 1})
    for table in ("agent_sessions_metadata", "agent_sessions_metadata_elements"):
        await raw.execute(
            engine,
            f"CREATE TRIGGER failing BEFORE INSERT ON {table}"
            " BEGIN SELECT RAISE(ABORT, 'not here'); END",
        )
        metadata = {"title": "A", "owner_id": "u1", "tags": ["a", "b"]}
        with pytest.raises(DBAPIError, match="not here") as caught:
            await catalog.create_session("second", metadata=metadata)
        assert caught.value.statement.startswith(f"INSERT INTO {table} (")
        assert len(caught.value.params) >= 2
        assert await catalog.get_session("second") is None
        await raw.execute(engine, "DROP TRIGGER failing")


@through_proxy
async def test_a_connection_lost_before_the_commit(proxied):
    proxy, engine = proxied
    session = await prepared(engine)

    def change(metadata):
        count(metadata)
        proxy.lost = lambda is_answer: not is_answer  # the next question never arrives

    count = Counting()
    with pytest.raises(DBAPIError) as caught:
        await session.edit_metadata(change)
    assert caught.value.connection_invalidated
    assert count.calls == 1
    proxy.lost = lambda is_answer: False
    assert await session.get_metadata() == {"turns": 0, "tags": ["0"]}
    assert await session.edit_metadata(Counting()) == {"turns": 1, "tags": ["1"]}


@through_proxy
@pytest.mark.parametrize("call", ["edit", "set", "add"])
async def test_a_commit_whose_answer_is_lost_is_not_repeated(proxied, call):
    # It was applied, or not: nobody can know. Once more would be once too often.
    proxy, engine = proxied
    session = await prepared(engine)
    commits = []

    @event.listens_for(engine.sync_engine, "commit")
    def commit(connection):
        commits.append(connection)
        proxy.lost = lambda is_answer: is_answer

    count = Counting()
    calls = {
        "edit": lambda: session.edit_metadata(count),
        "set": lambda: session.set_metadata({"turns": 1, "tags": ["1"]}),
        "add": lambda: session.add_items([raw.message("a"), raw.message("b")]),
    }
    with pytest.raises(DBAPIError) as caught:
        await calls[call]()
    assert caught.value.connection_invalidated
    assert len(commits) == 1
    proxy.lost = lambda is_answer: False
    event.remove(engine.sync_engine, "commit", commit)
    # The server goes on with what it has read, whoever is still there to hear.
    expected = (0, ["a", "b"]) if call == "add" else (1, [])
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        metadata = await session.get_metadata()
        contents = [item["content"] for item in await session.get_items()]
        if metadata["turns"] == 1 or contents:
            break
        await asyncio.sleep(0.01)
    assert (metadata["turns"], contents) == expected
    assert metadata["tags"] == [str(metadata["turns"])]
    assert count.calls == (call == "edit")


@through_proxy
@pytest.mark.parametrize("is_answer", [True, False])
async def test_a_call_of_a_model_is_not_counted_twice(proxied, is_answer):
    proxy, engine = proxied
    catalog = SessionCatalog(engine, create_tables=True)
    session = await catalog.create_session("chat")
    await catalog.usage()

    def lose(_: object) -> None:
        proxy.lost = lambda answers: answers is is_answer

    @function_tool
    def look() -> str:
        event.listen(engine.sync_engine, "commit", lose, once=True)
        return "found"

    async def run() -> None:
        async with SessionTracker(session, budget=Budget(tokens=10_000)) as hooks:
            try:
                await Runner.run(agent("a", calls("look"), "done", tools=[look]), "?", hooks=hooks)
            finally:
                proxy.lost = lambda _: False

    with pytest.raises(DBAPIError):
        await run()
    rows: list = []
    deadline = time.monotonic() + (10 if is_answer else 1)
    while not rows and time.monotonic() < deadline:
        rows = await catalog.usage()
        await asyncio.sleep(0.01)
    assert [row.requests for row in rows] == ([1] if is_answer else [])
    assert (await session.get_metadata())[keys.REQUESTS] == 1


@through_proxy
async def test_a_server_that_has_gone_leaves_the_first_error(proxied):
    # A refused connection would say that nothing was written, and that may be untrue.
    proxy, engine = proxied
    session = await prepared(engine)
    refusals = []

    @event.listens_for(engine.sync_engine, "commit")
    def commit(connection):
        proxy.lost = lambda is_answer: is_answer
        refusals.append(asyncio.ensure_future(proxy.refuse()))

    began = time.monotonic()
    with pytest.raises(DBAPIError) as caught:
        await session.edit_metadata(Counting())
    assert caught.value.connection_invalidated
    await asyncio.gather(*refusals)
    with pytest.raises((DBAPIError, OSError)):
        await session.edit_metadata(Counting())
    assert time.monotonic() - began < 5


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("options", [{}, {"isolation_level": "AUTOCOMMIT"}])
async def test_a_pooler_that_mixes_up_prepared_statements(database, options):
    # Outside a transaction, PgBouncer may prepare on one connection and run on another. PostgreSQL
    # says here what it says then; `make stress` shows it with PgBouncer.
    catalog = SessionCatalog(database.engine(**options), create_tables=True)
    await catalog.count_sessions()
    commits = []

    def read(connection):
        commits.append(catalog._store.database.dialect.commits_each(connection))
        if commits == [True]:
            connection.exec_driver_sql("EXECUTE nobody_prepared_this")
        return connection.exec_driver_sql("SELECT 7").scalar_one()

    for expected in ([True, False], [False]):
        commits.clear()
        assert await catalog._store.database.read(read) == 7
        assert commits == expected
    commits.clear()

    def fail(connection):
        commits.append(catalog._store.database.dialect.commits_each(connection))
        connection.exec_driver_sql("EXECUTE nobody_prepared_this")

    with pytest.raises(DBAPIError):
        await catalog._store.database.read(fail)
    assert commits == [False]


async def test_history_is_read_in_a_transaction(shared_database):
    """Also if the engine commits each statement: a pooler could mix them up."""
    engine = shared_database.engine(isolation_level="AUTOCOMMIT")
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    await session.add_items([raw.message("hello")])
    commits = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def record(connection, *_):
        dialect = session._store.database.dialect
        commits.append(dialect.commits_each(connection))

    assert await session.get_items() == [raw.message("hello")]
    assert commits
    assert not any(commits)


@pytest.mark.only_on("postgresql")
async def test_a_pooler_that_mixes_up_statements_of_several_reads(database):
    catalog = SessionCatalog(database.engine(pool_size=3), create_tables=True)
    await catalog.count_sessions()
    began = 0
    all_began = asyncio.Event()

    def read(connection):
        nonlocal began
        if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
            began += 1
            if began == 3:
                all_began.set()
            await_only(all_began.wait())
            connection.exec_driver_sql("EXECUTE nobody_prepared_this")
        return connection.exec_driver_sql("SELECT 7").scalar_one()

    reads = [catalog._store.database.read(read) for _ in range(3)]
    assert await asyncio.gather(*reads) == [7, 7, 7]
    assert began == 3


@pytest.mark.not_on("sqlite")
async def test_killed_connections_during_edits(database):
    engine = database.engine(pool_size=5)
    session = await prepared(engine)
    acknowledged: list[tuple[int, int]] = []
    failed: list[tuple[int, int]] = []
    end = time.monotonic() + 1

    async def write(writer: int) -> None:
        number = 0
        while time.monotonic() < end:
            number += 1

            def change(metadata, number=number):
                metadata["turns"] += 1
                metadata.setdefault(f"by {writer}", {"calls": []})["calls"].append(number)

            try:
                await session.edit_metadata(change)
            except (DBAPIError, OSError):  # asyncpg's, while it connects
                failed.append((writer, number))
            else:
                acknowledged.append((writer, number))

    async def kill() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(0.03)
            with contextlib.suppress(DBAPIError):
                await kill_others(killer)

    killer = create_async_engine(database.url)
    try:
        await asyncio.gather(*[write(number) for number in range(5)], kill())
    finally:
        await killer.dispose()
    await engine.dispose()  # Connections may have been killed in the pool.
    assert await session.edit_metadata(lambda metadata: metadata.update(done=True))
    assert failed
    assert acknowledged
    metadata = await session.get_metadata()
    applied = [
        (writer, number)
        for writer in range(5)
        for number in metadata.get(f"by {writer}", {"calls": []})["calls"]
    ]
    assert metadata["turns"] == len(applied) == len(set(applied))
    assert set(acknowledged) <= set(applied) <= {*acknowledged, *failed}
    assert engine.pool.checkedout() == 0


async def kill_others(engine) -> None:
    """End every other connection to the same database."""
    kill = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}
    for connection in await raw.other_connections(engine):
        with contextlib.suppress(DBAPIError):  # it may have gone meanwhile
            await raw.execute(engine, kill[engine.dialect.name].format(connection))


@pytest.mark.not_on("sqlite")
async def test_a_connection_that_dies_during_an_import(shared_database):
    engine = shared_database.engine(pool_size=1, max_overflow=0)
    catalog = SessionCatalog(engine, create_tables=True)
    records = [
        {
            "format": 1,
            "session_id": f"s{number}",
            "created_at": "2020-01-01T00:00:00+00:00",
            "updated_at": "2020-01-01T00:00:00+00:00",
            "metadata": {"n": number},
            "items": [],
        }
        for number in range(10)
    ]
    read = "SHOW TIME ZONE" if shared_database.kind == "postgresql" else "SELECT @@time_zone"
    before = await raw.execute(engine, read)
    others = shared_database.engine()
    lost = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def lose(_connection, _cursor, statement, *_):
        if statement.startswith("INSERT INTO agent_sessions ") and not lost:
            lost.append(statement)
            await_only(kill_others(others))

    with pytest.raises(DBAPIError) as caught:
        await catalog.import_sessions(records)
    assert caught.value.connection_invalidated
    assert await catalog.count_sessions() == 0
    assert await catalog.import_sessions(records) == 10
    assert await raw.execute(engine, read) == before
    assert [info.metadata["n"] async for info in catalog.iter_sessions()] == list(range(10))


@pytest.mark.only_on("sqlite")
async def test_a_full_disk(database):
    room = 200  # pages of 4 KiB

    engine = database.engine()
    session = await prepared(engine)
    await session.add_items([raw.message("before")])
    before = await session.get_metadata(), await session.get_items()
    pages = (await raw.execute(engine, "PRAGMA page_count"))[0][0]

    limits: list[int] = []

    @event.listens_for(engine.sync_engine, "connect")
    def bound(connection, _):
        if limits:
            connection.execute(f"PRAGMA max_page_count = {limits[-1]}")

    async def limit(count: int) -> None:
        # It belongs to a connection: that of the pool, or each new one where files have no pool.
        limits.append(count)
        assert (await raw.execute(engine, f"PRAGMA max_page_count = {count}"))[0][0] == count

    await limit(pages + 1)
    large = "x" * 60_000
    began = time.monotonic()
    for write in (
        lambda: session.set_metadata({"turns": 1, "a": large, "tags": ["1"], "z": 1}),
        lambda: session.edit_metadata(lambda m: m.update(turns=1, a=large, tags=["1"])),
        lambda: session.add_items([raw.message("small"), raw.message(large)]),
        lambda: SessionCatalog(engine).create_session("new", metadata={"a": large}),
    ):
        with pytest.raises(OperationalError, match="full"):
            await write()
        assert (await session.get_metadata(), await session.get_items()) == before
    assert time.monotonic() - began < 2
    assert await SessionCatalog(engine).count_sessions() == 1
    await limit(pages + room)
    await session.set_metadata({"turns": 1, "a": large, "tags": ["1"]})
    await session.add_items([raw.message(large)])
    assert await session.find_sessions_by_metadata({"tags": {"$contains": "1"}}) == ["chat"]
    assert len(await session.get_items()) == 2


async def test_a_database_that_may_only_be_read(shared_database):
    writer = shared_database.engine()
    session = await prepared(writer, turns=7)
    await session.add_items([raw.message("hello")])
    await writer.dispose()
    engine = read_only(shared_database)
    attempts = []

    @event.listens_for(engine.sync_engine, "handle_error")
    def count(context):
        # A look whether a table exists fails on MySQL if it does not.
        if not context.statement.startswith("DESCRIBE"):
            attempts.append(context)

    try:
        for create_tables in (True, False):
            catalog = SessionCatalog(engine, create_tables=create_tables)
            reader = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=create_tables)
            assert await reader.get_metadata() == {"turns": 7, "tags": ["7"]}
            assert await reader.get_items() == [raw.message("hello")]
            assert await catalog.count_sessions({"tags": {"$contains": "7"}}) == 1
            assert [info.session_id async for info in catalog.iter_sessions()] == ["chat"]
            began = time.monotonic()
            for write in (
                lambda r=reader: r.set_metadata({"turns": 8}),
                lambda r=reader: r.edit_metadata(Counting()),
                lambda r=reader: r.delete_metadata(),
                lambda r=reader: r.add_items([raw.message("a")]),
                lambda r=reader: r.pop_item(),
                lambda r=reader: r.clear_session(),
                lambda c=catalog: c.create_session(metadata={"turns": 8}),
                lambda c=catalog: c.delete_sessions({"turns": 7}),
            ):
                attempts.clear()
                with pytest.raises(DBAPIError):
                    await write()
                assert len(attempts) == 1, "tried again, though it can never succeed"
            assert time.monotonic() - began < 2
        assert getattr(engine.pool, "checkedout", int)() == 0
    finally:
        await engine.dispose()
    assert await session.get_metadata() == {"turns": 7, "tags": ["7"]}


def read_only(database):
    """An engine whose connections the database lets read, and nothing else."""
    url = make_url(database.url)
    if database.kind == "sqlite":
        query = {"mode": "ro", "uri": "true"}
        return create_async_engine(url.set(database=f"file:{url.database}", query=query))
    if database.kind == "postgresql":
        settings: dict[str, Any] = {"server_settings": {"default_transaction_read_only": "on"}}
        if url.get_driver_name() == "psycopg":
            settings = {"options": "-c default_transaction_read_only=on"}
        return create_async_engine(url, connect_args=settings)
    command = "SET SESSION TRANSACTION READ ONLY"
    return create_async_engine(url, connect_args={"init_command": command})

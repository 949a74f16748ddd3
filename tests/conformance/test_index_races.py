"""Contract, section 10: an index never changes an answer, whoever writes, creates or drops."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading

import pytest
from agents.extensions.memory import SQLAlchemySession
from hypothesis import given
from hypothesis import strategies as st
from processes import run_processes
from scaling import examples, scale
from sqlalchemy import event

from agents_session_metadata import SessionCatalog
from agents_session_metadata.indexes.read import IndexReader
from agents_session_metadata.indexes.tables import look
from agents_session_metadata.query.filters import parse_filter
from agents_session_metadata.query.ordering import Ordering
from agents_session_metadata.query.pages import Reader
from conformance import raw
from conformance.test_indexes import difference
from conformance.test_races import HEAD

pytestmark = pytest.mark.dialect

KEYS = ["owner_id", "tags", "status"]
SESSIONS = [f"s{number}" for number in range(12)]
TIMES = [f"2020-01-0{day} 00:00:00" for day in range(1, 5)]


def value(rnd, key):
    if key == "tags":
        return rnd.choice([[], ["x"], ["x", "y"], ["y", 1, None], "x"])
    return rnd.choice(["a", "b", None, 1, True, ["a"]])


async def write(rnd, catalog, engine) -> None:
    """One write of this package, of the plain SDK or of SQL typed by hand."""
    name, other, key = rnd.choice(SESSIONS), rnd.choice(SESSIONS), rnd.choice(KEYS)
    session = catalog.session(name)
    quoted = engine.dialect.identifier_preparer.quote("key")
    kind = rnd.randrange(12)
    if kind < 3:
        await session.set_metadata({key: value(rnd, key), "n": rnd.randrange(3)})
    elif kind == 3:
        await session.edit_metadata(lambda metadata: metadata.pop(key, None))
    elif kind == 4:
        await session.delete_metadata([key])
    elif kind == 5:
        await SQLAlchemySession(name, engine=engine).add_items([raw.message("hello")])
    elif kind == 6:
        await SQLAlchemySession(name, engine=engine).clear_session()
    elif kind == 7:
        await catalog.delete_session(name)
    elif kind == 8 and await catalog.get_session(name) and not await catalog.get_session(other):
        await catalog.fork_session(name, other)
    elif kind == 9:
        await raw.execute(
            engine,
            f"DELETE FROM agent_sessions_metadata WHERE session_id = '{name}'"
            f" AND {quoted} = '{key}'",
        )
    elif kind > 9 and await catalog.get_session(name):
        await raw.set_times(engine, name, updated_at=rnd.choice(TIMES))


def question(rnd):
    parts = [
        {},
        {"owner_id": rnd.choice(["a", "b", None, 1])},
        {"status": rnd.choice(["a", ["a"]])},
        {"tags": {"$contains": rnd.choice(["x", "y", 1])}},
        {"n": {"$gte": 1}},
        {"$updated_at": {rnd.choice(["$lte", "$gt"]): "2020-01-02T00:00:00Z"}},
    ]
    where = {**rnd.choice(parts), **rnd.choice(parts)}
    return where, rnd.choice(["updated_at", "-updated_at"]), rnd.randrange(1, 5)


async def walk(database, where, order_by, limit, *, indexed):
    """All pages of an answer, with or without the indexes."""

    def read(connection):
        reader = Reader(database, connection)
        if indexed:
            look(database, connection)
            reader = IndexReader(database, connection)
        condition, ordering = parse_filter(where), Ordering.parse(order_by)
        found, position = [], None
        while True:
            page = reader.page(condition, ordering, limit=limit, after=position)
            found += [(each.info, each.position) for each in page]
            if len(page) < limit:
                last = reader.last(condition)
                return found, reader.ids(condition, limit), last and last.info
            position = page[-1].position

    return await database.read(read)


@examples(2, 150)
@given(seed=st.integers(0, 2**32))
@pytest.mark.thorough
async def test_the_same_pages_with_and_without_indexes(engine, seed):
    rnd = random.Random(seed)
    catalog = SessionCatalog(engine, create_tables=True)
    database = catalog._store.database
    await catalog.count_sessions()
    for _ in range(40):
        change = rnd.randrange(8)
        key = rnd.choice([*KEYS, "$updated_at"])
        if change == 0:
            await catalog.drop_index(key)
        elif change < 3:
            await catalog.create_index(key)
        else:
            await write(rnd, catalog, engine)
        where, order_by, limit = question(rnd)
        one = await walk(database, where, order_by, limit, indexed=True)
        other = await walk(database, where, order_by, limit, indexed=False)
        assert one == other, (where, order_by, limit)
    assert await difference(catalog) == []


async def test_an_index_is_created_while_it_is_dropped(shared_database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("chat", metadata={"owner_id": "ada"})
    await catalog.create_index("owner_id")

    async def create() -> None:
        other_engine = shared_database.engine()
        await SessionCatalog(other_engine, create_tables=True).create_index("owner_id")
        await other_engine.dispose()

    other = threading.Thread(target=asyncio.run, args=(create(),))

    def meanwhile(*call) -> None:
        is_delete = call[2].lstrip().startswith("DELETE FROM agent_sessions_metadata_activity")
        if is_delete and not other.ident:
            other.start()
            other.join(1)  # If it waits for this transaction, it goes on afterwards.

    event.listen(engine.sync_engine, "before_cursor_execute", meanwhile)
    assert await catalog.drop_index("owner_id")
    event.remove(engine.sync_engine, "before_cursor_execute", meanwhile)
    await asyncio.to_thread(other.join)
    assert await difference(catalog) == []


WRITER = (
    HEAD
    + """
import random
from sqlalchemy.exc import IntegrityError

async def work(engine):
    catalog = SessionCatalog(engine)
    rnd = random.Random(arguments[0])
    for _ in range(int(arguments[1])):
        name = f"busy {rnd.randrange(6)}"
        session = catalog.session(name)
        kind = rnd.randrange(5)
        if kind < 2:
            tags = rnd.sample(["x", "y", "z"], rnd.randrange(4))
            await session.set_metadata({"owner_id": rnd.choice(["a", "b"]), "tags": tags})
        elif kind == 2:
            try:
                plain = SQLAlchemySession(name, engine=engine)
                await plain.add_items([{"role": "user", "content": "a"}])
            except IntegrityError:
                pass  # The SDK does not repeat when a session is created and deleted meanwhile,
            except OperationalError:
                # nor after a deadlock, which MySQL has, with or without indexes, where two create
                # a session again.
                if engine.dialect.name != "mysql":
                    raise
        elif kind == 3:
            await session.edit_metadata(lambda metadata: metadata.update(owner_id="c"))
        else:
            await catalog.delete_session(name)

run()
"""
)

PLAIN_WRITER = (
    HEAD
    + """
async def work(engine):
    for number in range(int(arguments[1])):
        for name in ("kept", f"new {number}"):
            plain = SQLAlchemySession(name, engine=engine)
            await plain.add_items([{"role": "user", "content": "a"}])

run()
"""
)

INDEXER = (
    HEAD
    + """
import random

async def work(engine):
    catalog = SessionCatalog(engine)
    rnd = random.Random(arguments[0])
    keys = ["owner_id", "tags"]
    if engine.dialect.name != "mysql":
        # There, DDL on a table that others write to ends some of their transactions by a deadlock.
        keys.append("$updated_at")
    for _ in range(int(arguments[1])):
        key = rnd.choice(keys)
        await (catalog.drop_index(key) if rnd.randrange(3) == 0 else catalog.create_index(key))

run()
"""
)

READER = (
    HEAD
    + """
async def work(engine):
    catalog = SessionCatalog(engine)
    await catalog.count_sessions()
    old = {"$lt": "2021-01-01T00:00:00Z"}
    questions = [{"owner_id": "still"}, {"tags": {"$contains": "still"}}, {"$updated_at": old}]
    wrong = []
    for turn in range(int(arguments[1])):
        catalog._store.database.notes["activity"] = ("owner_id", "tags")
        where = questions[turn % 3]
        page = await catalog.list_sessions(where, limit=20, order_by="updated_at")
        ids = [info.session_id for info in page.sessions]
        if ids != [f"still {number:02}" for number in range(20)]:
            wrong.append((where, ids))
    return wrong

run()
"""
)


async def test_processes_write_read_create_and_drop(shared_database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    for number in range(20):
        metadata = {"owner_id": "still", "tags": ["still", number]}
        await catalog.create_session(f"still {number:02}", metadata=metadata)
        await raw.set_times(engine, f"still {number:02}")
    for key in ("owner_id", "tags", "$updated_at"):
        await catalog.create_index(key)
    rounds = scale(15, 1_000)
    url = shared_database.url
    processes = [
        *[(WRITER, "1"), (WRITER, "2"), (PLAIN_WRITER, "kept")],
        *[(INDEXER, "3"), (INDEXER, "4"), (READER, "5")],
    ]
    sources = [source for source, _ in processes]
    script = f"import sys\nexec({sources!r}[int(sys.argv.pop())])"
    arguments = [[url, name, rounds, place] for place, (_, name) in enumerate(processes)]
    results = await run_processes(script, arguments)
    assert results[-1] == [[]]
    assert await difference(catalog) == []
    for key in ("owner_id", "tags", "$updated_at"):
        await catalog.create_index(key)
    assert await difference(catalog) == []
    info = {each.key: each.complete for each in await catalog.list_indexes()}
    assert info == {"owner_id": True, "tags": True, "$updated_at": True}


@pytest.mark.only_on("mariadb", "mysql")
async def test_new_sessions_do_not_wait_for_each_other(engine):
    """The server has a binary log of statements, so it locks what triggers read."""
    catalog = SessionCatalog(engine, create_tables=True)
    for key in ("$updated_at", "owner_id", "tags"):
        await catalog.create_index(key)
    for name in ("first", "last"):
        await catalog.create_session(name, metadata={"owner_id": "u1", "tags": ["x"]})
    values = "(session_id, `key`, {}, search_key, search_rest) VALUES ('{}', 'tags', 0, 'x', '')"
    async with contextlib.AsyncExitStack() as stack:
        for name in ("g1", "g2", "g3"):
            writer = await stack.enter_async_context(engine.connect())
            for statement in (
                "SET SESSION innodb_lock_wait_timeout = 2",
                f"INSERT INTO agent_sessions (session_id) VALUES ('{name}')",
                f"INSERT INTO agent_sessions_metadata {values.format('value', name)}",
                f"INSERT INTO agent_sessions_metadata_elements {values.format('position', name)}",
            ):
                await writer.exec_driver_sql(statement)

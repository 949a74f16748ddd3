"""Contract, section 10: indexes by activity."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from agents.extensions.memory import SQLAlchemySession
from doctoring import ddl_dialect
from sqlalchemy import event, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import (
    InvalidMetadataError,
    ScopeError,
    SessionCatalog,
    TablesMissingError,
    TriggersNotAllowedError,
)
from agents_session_metadata.core.schema import drop_statements
from agents_session_metadata.indexes import key_index
from agents_session_metadata.indexes import read as index_read
from agents_session_metadata.indexes.key_index import KeyIndex
from agents_session_metadata.indexes.tables import ACTIVITY
from agents_session_metadata.runs.feature import RUNS
from agents_session_metadata.types import IndexInfo
from conformance import raw

pytestmark = pytest.mark.dialect

ENTRIES = "agent_sessions_metadata_activity"


async def difference(catalog) -> list:
    """The entries that are missing or wrong in the indexes that are complete."""
    database = catalog._store.database
    entries = database.tables.group(ACTIVITY)["_activity"]

    def read(connection):
        infos = connection.exec_driver_sql(
            f"SELECT {quoted(connection, 'key')} FROM agent_sessions_metadata_indexes"
            " WHERE state = 1"
        )
        found = []
        for (key,) in infos.all():
            stored = {
                tuple(map(plain, row))
                for row in connection.execute(entries.select().where(entries.c.key == key))
            }
            expected = {
                (row[0], row[1], *map(plain, row[2:]))
                for select in KeyIndex(database, key).expected()
                for row in connection.execute(select)
            }
            found += [("missing", each) for each in expected - stored]
            found += [("wrong", each) for each in stored - expected]
        return found

    return await database.read(read)


def plain(value):
    """A value that equals itself, whatever the driver makes of it."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    return str(int(value) if isinstance(value, Decimal) else value)


def quoted(connection, name):
    return connection.dialect.identifier_preparer.quote(name)


@pytest.fixture
async def catalog(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    for number in range(3):
        metadata = {"owner_id": f"u{number % 2}", "tags": ["x", f"t{number}"], "n": number}
        await catalog.create_session(f"s{number}", metadata=metadata)
        await raw.set_times(engine, f"s{number}", updated_at=f"2020-01-0{number + 1} 00:00:00")
    return catalog


async def test_create_list_and_drop(catalog):
    assert await catalog.list_indexes() == []
    assert await catalog.drop_index("owner_id") is False
    done = []
    assert await catalog.create_index("owner_id", progress=done.append) is True
    assert done == [3]
    assert await catalog.create_index("owner_id") is False
    assert await catalog.create_index("tags") is True
    assert await catalog.create_index("$updated_at") is True
    assert await catalog.list_indexes() == [
        IndexInfo("$updated_at", complete=True),
        IndexInfo("owner_id", complete=True),
        IndexInfo("tags", complete=True),
    ]
    counts = {info.key: info.entries for info in await catalog.list_indexes(count=True)}
    assert counts == {"$updated_at": 3, "owner_id": 3, "tags": 9}
    assert await difference(catalog) == []
    assert await catalog.drop_index("tags") is True
    assert await catalog.drop_index("tags") is False
    assert await raw.count_rows(catalog.engine, ENTRIES) == 3
    assert await catalog.create_index("$updated_at") is False
    assert await catalog.drop_index("$updated_at") is True
    assert await catalog.drop_index("$updated_at") is False
    assert [info.key for info in await catalog.list_indexes()] == ["owner_id"]
    scoped = catalog.scoped({"owner_id": "u1"})
    for call in (scoped.create_index("a"), scoped.drop_index("a"), scoped.list_indexes()):
        with pytest.raises(ScopeError):
            await call
    for key in ("", "$text2", "a\x00", "k" * 256, 5):
        with pytest.raises(InvalidMetadataError):
            await catalog.create_index(key)


async def test_missing_tables(catalog, engine):
    with pytest.raises(TablesMissingError):
        await SessionCatalog(engine).create_index("owner_id")
    assert await SessionCatalog(engine).list_indexes() == []
    assert await catalog.count_sessions() == 3


async def test_an_empty_database_has_no_indexes(engine):
    catalog = SessionCatalog(engine)
    assert await catalog.list_indexes() == []
    assert await catalog.list_indexes(count=True) == []
    with pytest.raises(TablesMissingError):
        await catalog.count_sessions()


WRITES = """
INSERT INTO agent_sessions (session_id) VALUES ('new')
UPDATE agent_sessions SET updated_at = '2021-01-01 00:00:00' WHERE session_id = 's1'
UPDATE agent_sessions SET session_id = 'moved' WHERE session_id = 'new'
UPDATE agent_sessions_metadata SET {key} = 'renamed' WHERE {key} = 'n'
UPDATE agent_sessions_metadata SET {key} = 'n' WHERE {key} = 'renamed' AND session_id = 's1'
UPDATE agent_sessions_metadata SET search_key = {bytes} WHERE {key} = 'owner_id'
DELETE FROM agent_sessions_metadata WHERE session_id = 's0' AND {key} = 'tags'
DELETE FROM agent_sessions_metadata_elements WHERE position = 1
UPDATE agent_sessions_metadata_elements SET position = 7 WHERE position = 0
DELETE FROM agent_sessions WHERE session_id = 's2'
DELETE FROM agent_sessions
"""


async def test_every_writer_is_included(catalog, engine):
    for key in ("$updated_at", "owner_id", "tags", "n", "renamed"):
        await catalog.create_index(key)
    session = catalog.session("s0")
    await session.set_metadata({"tags": ["y", "z", "y"], "owner_id": None, "n": [1, "x"]})
    assert await difference(catalog) == []
    await session.edit_metadata(lambda metadata: metadata.pop("n"))
    await session.delete_metadata(["owner_id"])
    assert await difference(catalog) == []
    await session.set_metadata({"owner_id": "u0", "n": 1})
    for name in ("plain", "s1"):
        await SQLAlchemySession(name, engine=engine).add_items([raw.message("hello")])
        assert await difference(catalog) == []
    await SQLAlchemySession("plain", engine=engine).clear_session()
    await catalog.fork_session("s1", "fork")
    assert await difference(catalog) == []
    writes = WRITES.strip().splitlines()
    if engine.dialect.name == "sqlite":
        insert = "INSERT INTO agent_sessions (session_id) VALUES"
        upsert = f"{insert} ('s1') ON CONFLICT DO UPDATE SET updated_at = '2022-01-01'"
        writes[-1:] = [upsert, writes[-1]]
    if engine.dialect.name == "postgresql":
        writes[-1:] = ["TRUNCATE agent_sessions CASCADE"]
    quote = engine.dialect.identifier_preparer.quote
    data = "'\\x41'::bytea" if engine.dialect.name == "postgresql" else "x'41'"
    for write in writes:
        await raw.execute(engine, write.format(key=quote("key"), bytes=data))
        assert await difference(catalog) == [], write
    assert await raw.count_rows(engine, ENTRIES) == 0


QUESTIONS = [
    None,
    {"owner_id": "u0"},
    {"owner_id": "u0", "n": 2},
    {"tags": {"$contains": "x"}},
    {"tags": ["x", "t1"]},
    {"tags": {"$contains": "x"}, "n": {"$gte": 1}},
    {"owner_id": "nobody"},
    {"n": {"$in": [0, 2]}},
    {"owner_id": "u0", "$updated_at": {"$lte": "2020-01-02T00:00:00Z"}},
    {"$updated_at": {"$gt": "2020-01-01T00:00:00Z"}},
    {"owner_id": {"$ne": "u0"}},
]


async def answers(catalog):
    found = []
    for where in QUESTIONS:
        for order_by in ("-updated_at", "updated_at"):
            cursor, ids = None, []
            while True:
                page = await catalog.list_sessions(where, order_by=order_by, limit=1, cursor=cursor)
                ids.append([(info.session_id, info.metadata) for info in page.sessions])
                cursor = page.next_cursor
                found.append((where, order_by, cursor))
                if cursor is None:
                    break
            found.append((where, order_by, ids))
        found.append((where, await catalog.last_session(where)))
        if where is not None:
            found.append((where, await catalog._store.find_sessions(where, limit=2)))
    return found


async def same_day(engine) -> None:
    """Two of the three sessions were active at the same time."""
    for number in range(3):
        day = 1 + number // 2
        await raw.set_times(engine, f"s{number}", updated_at=f"2020-01-0{day} 00:00:00")


@pytest.mark.thorough
async def test_answers_are_the_same(catalog, engine):
    await same_day(engine)
    before = await answers(catalog)
    scoped = catalog.scoped({"owner_id": "u0"})
    before_scoped = await answers(scoped)
    for key in ("owner_id", "tags", "n", "$updated_at"):
        await catalog.create_index(key)
        assert await answers(catalog) == before
        assert await answers(scoped) == before_scoped
    # This process takes them to be complete.
    await raw.execute(engine, "UPDATE agent_sessions_metadata_indexes SET state = 0")
    await raw.execute(engine, "DELETE FROM agent_sessions_metadata_activity")
    assert await answers(catalog) == before
    await raw.execute(engine, "UPDATE agent_sessions_metadata_indexes SET state = 1")
    catalog._store.database.notes["activity"] = frozenset({"owner_id", "tags", "n"})
    # The index is really used.
    assert (await catalog.list_sessions({"owner_id": "u0"})).sessions == []
    assert await catalog.last_session({"owner_id": "u0"}) is None


async def test_an_index_that_another_process_creates_is_found(shared_database, monkeypatch):
    """A process looks for indexes again after a slow answer that one could have given."""
    monkeypatch.setattr(index_read, "_SLOW", 0)
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    await catalog.create_session("chat", metadata={"owner_id": "u1"})
    assert len((await catalog.list_sessions({"owner_id": "u1"})).sessions) == 1
    other = SessionCatalog(shared_database.engine())
    other._store.database.create_tables = True
    await other.create_index("owner_id")
    await catalog.list_sessions({"owner_id": "u1"})
    await raw.execute(catalog.engine, f"DELETE FROM {ENTRIES}")
    assert (await catalog.list_sessions({"owner_id": "u1"})).sessions == []


async def test_on_tables_that_the_sdk_made(engine):
    await raw.create_sdk_tables(engine)
    names = ["a", "B", "é", "z", "Ä"]
    catalog = SessionCatalog(engine, create_tables=True)
    for name in names:
        await catalog.create_session(name, metadata={"owner_id": "u0", "tags": ["x"]})
        await raw.set_times(engine, name)
    before = await answers(catalog)
    for key in ("owner_id", "tags", "$updated_at"):
        await catalog.create_index(key)
        assert await answers(catalog) == before
    await catalog.session("a").edit_metadata(lambda metadata: metadata.update(tags=["y"]))
    await SQLAlchemySession("B", engine=engine).add_items([raw.message("hello")])
    await catalog.delete_session("z")
    assert await difference(catalog) == []


@pytest.mark.not_on("mariadb", "mysql")  # Its column of ids ends at 255 characters.
async def test_ids_that_are_too_long(catalog, engine):
    await same_day(engine)
    await catalog.create_index("$updated_at")
    for name in ("x" * 300, "é" * 256):
        await SQLAlchemySession(name, engine=engine).add_items([raw.message("hello")])
        newest = await catalog.list_sessions(limit=1)
        assert [info.session_id for info in newest.sessions] == [name]
    await raw.execute(engine, "DELETE FROM agent_sessions WHERE length(session_id) > 200")
    assert len((await catalog.list_sessions()).sessions) == 3
    await catalog.drop_index("$updated_at")
    await SQLAlchemySession("y" * 999, engine=engine).add_items([raw.message("hello")])
    await catalog.create_index("$updated_at")
    assert len((await catalog.list_sessions()).sessions) == 4
    await raw.execute(
        engine, f"UPDATE agent_sessions SET session_id = '{'z' * 999}' WHERE session_id = 'y'"
    )
    assert len((await catalog.list_sessions()).sessions) == 4


async def test_retention_by_age(catalog, engine):
    await catalog.create_index("$updated_at")
    await catalog.create_index("owner_id")
    for number in range(3, 9):
        await catalog.create_session(f"s{number}", metadata={"owner_id": f"u{number % 2}"})
        await raw.set_times(engine, f"s{number}", updated_at=f"2020-01-0{number + 1} 00:00:00")
    await catalog.create_session("new", metadata={"owner_id": "u0"})
    ages = {"inactive_for": timedelta(days=1), "batch_size": 2}
    assert await catalog.scoped({"owner_id": "u1"}).delete_sessions(**ages) == 4
    done = []
    assert await catalog.delete_sessions(progress=done.append, **ages) == 5
    assert done == [2, 4, 5]
    assert [info.session_id for info in (await catalog.list_sessions()).sessions] == ["new"]
    assert await difference(catalog) == []


async def test_retention_reads_candidates_from_the_index(catalog, engine):
    await catalog.create_index("owner_id")
    # With these tables, runs that were paused are looked for as well.
    await catalog._store.database.ensure(RUNS)
    texts = []
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *call: texts.append(call[2]))
    ages = {"inactive_for": timedelta(days=1), "batch_size": 1}
    assert await catalog.delete_sessions({"owner_id": "u0"}, **ages) == 2
    reads = [text for text in texts if "ORDER BY" in text and "FOR UPDATE" not in text]
    assert sum(ENTRIES in text for text in reads) == 2
    assert not any("> :after_id" in text for text in reads)


@pytest.mark.only_on("postgresql")
async def test_an_index_of_rows_that_a_policy_hides_is_refused(catalog, database):
    """Others would not find their sessions in an index of the rows that one user sees."""
    user = f"policy_{make_url(database.url).database}"[:30]
    await catalog.create_index("nothing")
    await catalog.drop_index("nothing")
    for statement in drop_statements("postgresql"):
        if statement.startswith("DO "):
            await raw.execute(catalog.engine, statement)
    for statement in (
        f"CREATE ROLE {user} LOGIN",
        f"GRANT ALL ON SCHEMA public TO {user}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}",
        "ALTER TABLE agent_sessions_metadata ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY own ON agent_sessions_metadata TO {user} USING (false)",
    ):
        await raw.execute(catalog.engine, statement)
    engine = create_async_engine(make_url(database.url).set(username=user))
    try:
        with pytest.raises(DBAPIError, match="row-level security"):
            await SessionCatalog(engine).create_index("owner_id")
        assert await catalog.list_indexes() == []
        assert await catalog.create_index("owner_id")
        assert await difference(catalog) == []
    finally:
        await engine.dispose()
        for statement in (f"DROP OWNED BY {user}", f"DROP ROLE {user}"):
            await raw.execute(catalog.engine, statement)


@pytest.mark.not_on("sqlite")  # It has no privileges.
async def test_the_privilege_that_is_missing_is_named(catalog, database):
    name = make_url(database.url).database
    user = f"limited_{name}"[:30]
    if database.kind == "mysql":
        grants = [
            f"CREATE USER {user}@'%'",
            f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON {name}.* TO {user}@'%'",
        ]
    else:
        grants = [
            f"CREATE ROLE {user} LOGIN",
            f"GRANT ALL ON agent_sessions, agent_messages TO {user}",
            f"GRANT USAGE ON SEQUENCE agent_messages_id_seq TO {user}",
        ]
    await catalog.create_index("nothing")
    for statement in drop_statements(await ddl_dialect(catalog.engine)):
        if statement.startswith(("DROP TRIGGER", "DO ")):
            await raw.execute(catalog.engine, statement)
    for grant in grants:
        await raw.execute(catalog.engine, grant)
    engine = create_async_engine(make_url(database.url).set(username=user))
    try:
        await raw.execute(catalog.engine, "DELETE FROM agent_sessions_metadata_indexes")
        if database.kind == "postgresql":
            own = "agent_sessions_metadata, agent_sessions_metadata_elements, "
            own += "agent_sessions_metadata_indexes, agent_sessions_metadata_activity"
            await raw.execute(catalog.engine, f"GRANT ALL ON {own} TO {user}")
            await raw.execute(catalog.engine, f"REVOKE TRIGGER ON agent_sessions FROM {user}")
        with pytest.raises(TriggersNotAllowedError) as caught:
            await SessionCatalog(engine).create_index("owner_id")
        assert "TRIGGER" in str(caught.value)
        assert "log_bin_trust_function_creators" in str(caught.value)
        await SQLAlchemySession("s1", engine=engine).add_items([raw.message("hello")])
        await catalog.create_index("owner_id")
        # Whoever writes history needs no rights on our tables.
        if database.kind == "postgresql":
            await raw.execute(catalog.engine, f"REVOKE ALL ON {own} FROM {user}")
        for plain in ("s0", "new"):
            await SQLAlchemySession(plain, engine=engine).add_items([raw.message("hello")])
        await SQLAlchemySession("s2", engine=engine).clear_session()
        assert await difference(catalog) == []
    finally:
        await engine.dispose()
        drops = [f"DROP USER {user}"]
        if database.kind == "postgresql":
            drops = [f"DROP OWNED BY {user}", f"DROP ROLE {user}"]
        for drop in drops:
            await raw.execute(catalog.engine, drop)


@pytest.mark.only_on("postgresql")
async def test_nobody_else_can_use_the_functions_of_triggers(catalog, database):
    user = f"stranger_{make_url(database.url).database}"[:30]
    await catalog.create_index("owner_id")
    found = await raw.execute(
        catalog.engine, "SELECT proname FROM pg_proc WHERE prosecdef AND proname LIKE 'agent%'"
    )
    assert len(found) == 7
    await raw.execute(catalog.engine, f"CREATE ROLE {user} LOGIN")
    engine = create_async_engine(make_url(database.url).set(username=user))
    try:
        for (name,) in found:
            async with engine.connect() as connection:
                await connection.exec_driver_sql("CREATE TEMPORARY TABLE own (session_id text)")
                with pytest.raises(DBAPIError, match="permission denied for function"):
                    await connection.exec_driver_sql(
                        "CREATE TRIGGER own AFTER TRUNCATE ON own"
                        f" FOR EACH STATEMENT EXECUTE FUNCTION public.{name}()"
                    )
    finally:
        await engine.dispose()
        await raw.execute(catalog.engine, f"DROP ROLE {user}")


@pytest.mark.only_on("mariadb", "mysql")
async def test_not_binds_more_tightly(database):
    options = {"init_command": "SET sql_mode = 'HIGH_NOT_PRECEDENCE'"}
    engine = create_async_engine(database.url, connect_args=options)
    try:
        catalog = SessionCatalog(engine, create_tables=True)
        for key in ("owner_id", "tags", "$updated_at"):
            await catalog.create_index(key)
        session = await catalog.create_session(metadata={"owner_id": "u1", "tags": ["a"]})
        await session.add_items([raw.message("hello")])
        assert await difference(catalog) == []
        assert await raw.count_rows(engine, ENTRIES) == 3
    finally:
        await engine.dispose()


@pytest.mark.not_on("postgresql")  # It creates an index in one transaction.
async def test_an_index_that_was_not_finished(catalog, engine, monkeypatch, caplog):
    await catalog.create_index("$updated_at")
    monkeypatch.setattr(key_index, "SESSIONS_AT_ONCE", 1)

    def stop(done):
        if done == 2:
            raise KeyError(done)

    with pytest.raises(KeyError):
        await catalog.create_index("owner_id", progress=stop)
    assert IndexInfo("owner_id", complete=False) in await catalog.list_indexes()
    assert len((await catalog.list_sessions({"owner_id": "u0"})).sessions) == 2
    await catalog.create_session("later", metadata={"owner_id": "u0"})
    done = []
    assert await catalog.create_index("owner_id", progress=done.append) is True
    assert done == [1, 2, 3, 4]
    assert caplog.records == []  # A driver can log a line for each entry that is there already.
    assert await difference(catalog) == []
    assert await catalog.drop_index("owner_id") is True
    assert await raw.count_rows(engine, ENTRIES) == 0

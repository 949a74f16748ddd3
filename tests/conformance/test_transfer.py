"""Sessions out of one database and into another."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import datetime, timedelta

import pytest
import sqlalchemy
from agents.extensions.memory import EncryptedSession
from servers import SHARED_DATABASES, Database, empty_database
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import (
    ScopeError,
    SessionCatalog,
    SessionExistsError,
    SessionNotFoundError,
)
from agents_session_metadata.chatkit import CatalogStore
from agents_session_metadata.transfer.exports import EXPORTED
from conformance import corpus, raw
from conformance.killing import run_and_kill, until_alone
from conformance.thread_items import user_item

SECOND = timedelta(seconds=1)

IMPORT_SLOWLY = """
async def work(catalog, arguments):
    time = "2020-01-01T00:00:00+00:00"
    async def records():
        for number in range(int(arguments[0]), 1000):
            emit(number)
            name = f"chat {number:04}"
            yield {
                "format": 1,
                "session_id": name,
                "created_at": time,
                "updated_at": time,
                "metadata": {"number": number, "tags": ["x", name]},
                "items": [
                    {"created_at": time, "item": {"role": "user", "content": str(place) * 100}}
                    for place in range(50)
                ],
            }
    await catalog.import_sessions(records(), "skip")
"""

# What an application or the SDK may have left in the history table, byte by byte.
ODD_ROWS = [
    "not json",
    "",
    "[1, 2]",
    '"text"',
    "null",
    '{"content": "\\u0000 \\ud83d\\ude00"}',
    '{"content": "😀 é e\u0301"}',
    '{"n": 1.10, "big": 123456789012345678901234567890}',
    '{"content": "\\ud800"}',
]


@pytest.fixture
def source(shared_database):
    return SessionCatalog(shared_database.engine(), create_tables=True)


@pytest.fixture(params=SHARED_DATABASES)
async def target(request, tmp_path, servers):
    directory = tmp_path / "target"
    directory.mkdir()
    async with empty_database(request.param, directory, servers) as database:
        yield SessionCatalog(database.engine(), create_tables=True)


async def fill(catalog):
    """Sessions with everything that metadata and histories may hold."""
    for number, (session_id, metadata) in enumerate(corpus.sessions().items()):
        session = await catalog.create_session(session_id, metadata=metadata)
        await session.add_items([raw.message(f"😀 {place}\0") for place in range(number % 4)])
        await raw.set_times(
            catalog.engine, session_id, created_at=f"2020-01-01 00:00:{number % 7:02}"
        )
    odd = await catalog.create_session("odd \U0001f600 'x'", metadata={"keys": {"\0": ["\0", "é"]}})
    for text in ODD_ROWS:
        await raw.execute(
            catalog.engine,
            "INSERT INTO agent_messages (session_id, message_data) VALUES (:session_id, :text)",
            session_id=odd.session_id,
            text=text,
        )
    await raw.execute(
        catalog.engine, "UPDATE agent_messages SET created_at = '2020-01-01 00:00:00'"
    )


async def exported(catalog, where=None):
    return [record async for record in catalog.export_sessions(where)]


def without_times(records):
    """Records as text, which tells 1 from 1.0 and True; the times apart."""
    times = []

    def visit(value):
        if isinstance(value, dict):
            times.extend(
                datetime.fromisoformat(value[key])
                for key in ("created_at", "updated_at")
                if "items" in value or "item" in value or "text" in value
                if key in value
            )
            return {
                key: visit(one) if key == "items" else one
                for key, one in value.items()
                if key not in ("created_at", "updated_at")
            }
        return [visit(one) for one in value]

    return json.dumps(visit(records), sort_keys=True), times


def assert_same(records, others):
    (texts, times), (other_texts, other_times) = without_times(records), without_times(others)
    assert texts == other_texts
    assert len(times) == len(other_times)
    assert all(abs(one - other) < SECOND for one, other in zip(times, other_times, strict=True))


async def test_every_database_to_every_other(source, target):
    await fill(source)
    records = [json.loads(json.dumps(record)) for record in await exported(source)]
    assert len(records) == len(corpus.sessions()) + 1
    assert await target.import_sessions(records) == len(records)
    assert_same(await exported(target), records)
    for order_by in ("created_at", "-updated_at"):
        orders = [
            [info.session_id for info in (await catalog.list_sessions(order_by=order_by)).sessions]
            for catalog in (source, target)
        ]
        assert orders[0] == orders[1]
    for session_id in corpus.sessions():
        items = await source.session(session_id).get_items()
        assert await target.session(session_id).get_items() == items
    for where in ({"v": {"$contains": "a"}}, {"v": 10**23}, {"an": {"$exists": True}}):
        assert await target.count_sessions(where) == await source.count_sessions(where)
    # And back, over what is there.
    assert await source.import_sessions(await exported(target), "replace") == len(records)
    assert_same(await exported(source), records)


async def test_a_database_to_its_own_kind_keeps_the_times(shared_database, tmp_path, servers):
    source = SessionCatalog(shared_database.engine(), create_tables=True)
    session = await source.create_session("chat", metadata={"a": 1})
    for number in range(3):
        await session.add_items([raw.message(str(number))])
    directory = tmp_path / "target"
    directory.mkdir()
    async with empty_database(shared_database.name, directory, servers) as database:
        target = SessionCatalog(database.engine(), create_tables=True)
        records = await exported(source)
        assert await target.import_sessions(records) == 1
        assert await exported(target) == records
        await source.session("chat").get_items()
        assert await target.get_session("chat") == await source.get_session("chat")


async def test_the_record(catalog):
    session = await catalog.create_session("chat", metadata={"b": [1], "a": None})
    await session.add_items([raw.message("hello")])
    info = await catalog.get_session("chat")
    (record,) = await exported(catalog)
    assert record["session_id"] == "chat"
    assert record["metadata"] == {"a": None, "b": [1]}
    assert [item["item"] for item in record["items"]] == [raw.message("hello")]
    assert datetime.fromisoformat(record["created_at"]) == info.created_at
    assert datetime.fromisoformat(record["updated_at"]) == info.updated_at
    json.dumps(record, allow_nan=False)


@pytest.mark.logic
async def test_every_record_is_json(catalog):
    await fill(catalog)
    for record in await exported(catalog):
        json.dumps(record, allow_nan=False)


async def test_rows_that_only_python_takes_for_json(catalog, engine):
    # The SDK stores such a float when an item holds one.
    await catalog.create_session("chat")
    for text in ('{"n": NaN}', '{"n": -Infinity}', '{"n": 1e999}'):
        await raw.execute(
            engine,
            "INSERT INTO agent_messages (session_id, message_data) VALUES ('chat', :text)",
            text=text,
        )
    items = repr(await catalog.session("chat").get_items())
    records = await exported(catalog)
    json.dumps(records, allow_nan=False)
    assert await catalog.import_sessions(records, "replace") == 1
    assert repr(await catalog.session("chat").get_items()) == items


async def test_an_imported_history_goes_on(catalog):
    session = await catalog.create_session("chat")
    await session.add_items([raw.message(str(number)) for number in range(20)])
    records = await exported(catalog)
    await catalog.delete_session("chat")
    assert await catalog.import_sessions(records) == 1
    await session.add_items([raw.message("later")])
    contents = [item["content"] for item in await session.get_items()]
    assert contents == [*map(str, range(20)), "later"]
    assert await session.pop_item() == raw.message("later")
    assert (await catalog.get_session("chat", count_items=True)).item_count == 20


async def test_imported_times_sort_with_the_others(catalog, engine):
    for name in ("a", "b", "c"):
        await catalog.create_session(name)
        await raw.set_times(engine, name)
    (record,) = await exported(catalog, {"$session_id": "b"})
    await catalog.import_sessions([record], "replace")
    for order_by in ("created_at", "updated_at"):
        page = await catalog.list_sessions(order_by=order_by)
        assert [info.session_id for info in page.sessions] == ["a", "b", "c"]
    moment = record["updated_at"]
    assert await catalog.count_sessions({"$updated_at": {"$gte": moment}}) == 3
    assert await catalog.count_sessions({"$updated_at": {"$lte": moment}}) == 3
    assert await catalog.delete_sessions(inactive_for=timedelta(days=30)) == 3


@pytest.mark.logic
async def test_an_encrypted_history_stays_encrypted(catalog):
    session = catalog.session("chat")
    encrypted = EncryptedSession("chat", session, encryption_key="a key of the tests")
    await encrypted.add_items([raw.message("secret")])
    await session.set_metadata({"a": 1})
    records = await exported(catalog)
    assert "secret" not in json.dumps(records)
    await catalog.delete_session("chat")
    await catalog.import_sessions(records)
    assert await encrypted.get_items() == [raw.message("secret")]


async def test_a_filter_and_a_scope(mine, everyone):
    records = await exported(mine)
    assert [record["session_id"] for record in records] == ["mine-0", "mine-1"]
    assert await exported(mine, {"owner_id": "theirs"}) == []
    found = await exported(everyone, {"title": "theirs 1"})
    assert [record["session_id"] for record in found] == ["theirs-1"]
    # Into a scope
    theirs = {**records[0], "session_id": "new", "metadata": {"owner_id": "theirs"}}
    with pytest.raises(ScopeError):
        await mine.import_sessions([theirs])
    assert await everyone.get_session("new") is None
    assert await mine.import_sessions([{**theirs, "metadata": {"a": 1}}]) == 1
    assert await everyone.get_metadata("new") == {"owner_id": "mine", "a": 1}
    # Over a session outside
    taken = {**records[0], "session_id": "theirs-0"}
    with pytest.raises(SessionExistsError):
        await mine.import_sessions([taken])
    assert await mine.import_sessions([taken], "skip") == 0
    with pytest.raises(SessionNotFoundError):
        await mine.import_sessions([taken], "replace")
    assert await mine.import_sessions(records, "replace") == 2


async def test_conflicts(catalog, engine):
    for number in range(3):
        session = await catalog.create_session(f"chat {number}", metadata={"n": number})
        await session.add_items([raw.message("old")])
    records = await exported(catalog)
    await catalog.delete_session("chat 0")
    changed = catalog.session("chat 1")
    await changed.set_metadata({"n": "new", "more": ["x"]})
    await changed.add_items([raw.message("new")])
    now = await exported(catalog)
    with pytest.raises(SessionExistsError) as caught:
        await catalog.import_sessions(records)
    assert caught.value.session_id == "chat 1"
    assert "record 2" in str(caught.value)
    assert await exported(catalog) == [records[0], *now]
    assert await catalog.import_sessions(records, "skip") == 0
    assert await exported(catalog) == [records[0], *now]
    await catalog.delete_session("chat 2")
    assert await catalog.import_sessions(records, on_conflict="skip") == 1
    assert await exported(catalog) == [records[0], *now]
    assert await catalog.import_sessions(records, on_conflict="replace") == 3
    assert await exported(catalog) == records
    assert await catalog.count_sessions({"more": {"$contains": "x"}}) == 0
    assert await raw.count_rows(engine, "agent_messages") == 3


@pytest.mark.only_on("postgresql")  # where a lock may miss what is created while it waits
@pytest.mark.parametrize("way", ["skip", "replace"])
async def test_conflicts_that_come_and_go(shared_database, way):
    engine, other = shared_database.engine(), shared_database.engine()
    catalog, others = SessionCatalog(engine, create_tables=True), SessionCatalog(other)
    await catalog.create_session("a", metadata={"of": "me"})
    records = await exported(catalog)
    await catalog.delete_session("a")
    await other.dispose()
    create, delete = others.create_session, others.delete_session
    work = iter([None, create, delete, create, delete, create, None])

    async def meanwhile(change):
        await change("a")
        await other.dispose()

    def before(_connection, _cursor, statement, *_):
        is_meant = statement.startswith("INSERT INTO agent_sessions ") or (
            statement.startswith("SELECT agent_sessions.session_id") and "FOR UPDATE" in statement
        )
        change = next(work, None) if is_meant else None
        if change is not None:
            thread = threading.Thread(target=lambda: asyncio.run(meanwhile(change)))
            thread.start()
            thread.join()

    event.listen(engine.sync_engine, "before_cursor_execute", before)
    assert await catalog.import_sessions(records, on_conflict=way) == (way == "replace")
    event.remove(engine.sync_engine, "before_cursor_execute", before)
    assert [*work] == []
    assert await catalog.get_metadata("a") == ({"of": "me"} if way == "replace" else {})


@pytest.mark.logic
async def test_an_unknown_way_with_conflicts(catalog):
    for wrong in ("ignore", "", None, "ERROR"):
        with pytest.raises(ValueError, match="on_conflict"):
            await catalog.import_sessions([], wrong)


@pytest.mark.logic
async def test_iterables_of_both_kinds(catalog):
    for number in range(4):
        await catalog.create_session(f"chat {number}", metadata={"n": number})
    records = await exported(catalog)

    async def one_by_one():
        for record in records:
            await asyncio.sleep(0)
            yield record

    for iterable in (records, tuple(records), iter(records), one_by_one()):
        await catalog.delete_sessions({"n": {"$gte": 0}})
        assert await catalog.import_sessions(iterable) == 4
        assert await exported(catalog) == records
    assert await catalog.import_sessions(catalog.export_sessions(), "replace") == 4
    assert await catalog.import_sessions([]) == 0
    assert await exported(catalog) == records


async def test_nothing_is_held_between_records(catalog):
    for number in range(5):
        await catalog.create_session(f"chat {number}")

    async def touch() -> None:
        async for record in catalog.export_sessions():
            await catalog.set_metadata(record["session_id"], {"seen": True})
            await catalog.session(record["session_id"]).add_items([raw.message("seen")])

    await asyncio.wait_for(touch(), 60)
    assert await catalog.count_sessions({"seen": True}) == 5


async def test_what_changes_between_records(catalog):
    read = {f"0{number:04}": number for number in range(EXPORTED)}
    sessions = {**read, "1 gone": 1, "2 theirs": 2, "3 changed": 3}
    await corpus.create_sessions(
        catalog, {each: {"mine": True, "number": number} for each, number in sessions.items()}
    )
    exported = []
    async for record in catalog.scoped({"mine": True}).export_sessions():
        if not exported:
            await catalog.delete_session("1 gone")
            await catalog.set_metadata("2 theirs", {"mine": False})
            await catalog.set_metadata("3 changed", {"number": 30})
        exported.append((record["session_id"], record["metadata"]["number"]))
    assert exported == [*read.items(), ("3 changed", 30)]


async def test_a_record_is_of_one_moment(shared_database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    session = await catalog.create_session("chat", metadata={"turn": 1})
    await session.add_items([raw.message("1")])
    if shared_database.kind == "sqlite":
        # Else nobody writes while somebody reads.
        autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        async with autocommit.connect() as connection:
            await connection.execute(sqlalchemy.text("PRAGMA journal_mode = WAL"))
    written = []

    async def write() -> None:
        other = create_async_engine(shared_database.url)
        chat = SessionCatalog(other).session("chat")
        await chat.set_metadata({"turn": 2})
        await chat.pop_item()
        await chat.add_items([raw.message("2")])
        written.append(await chat.get_items())
        await other.dispose()

    def between(_connection, _cursor, statement, *_) -> None:
        if not written and "agent_sessions_metadata.value" in statement:
            thread = threading.Thread(target=asyncio.run, args=(write(),))
            thread.start()
            thread.join(60)

    sqlalchemy.event.listen(engine.sync_engine, "after_cursor_execute", between)
    (record,) = [record async for record in catalog.export_sessions()]
    sqlalchemy.event.remove(engine.sync_engine, "after_cursor_execute", between)
    assert written == [[raw.message("2")]]
    assert record["metadata"] == {"turn": 1}
    assert [entry["item"] for entry in record["items"]] == [raw.message("1")]
    (record,) = [record async for record in catalog.export_sessions()]
    assert record["metadata"] == {"turn": 2}
    assert [entry["item"] for entry in record["items"]] == [raw.message("2")]


async def test_a_crash_in_the_middle(shared_database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.count_sessions()
    arrived = 0
    for delay in (0.0, 0.002, 0.005):
        arguments = [shared_database.url, arrived]
        await run_and_kill(IMPORT_SLOWLY, arguments, values=6, delay=delay)
        await until_alone(engine)
        page = await catalog.list_sessions(limit=1_000, count_items=True, order_by="session_id")
        for number, info in enumerate(page.sessions):
            assert info.session_id == f"chat {number:04}"
            assert info.metadata == {"number": number, "tags": ["x", info.session_id]}
            assert info.item_count == 50
            assert info.updated_at.year == 2020
        assert len(page.sessions) >= arrived + 5
        arrived = len(page.sessions)
        assert await catalog.count_sessions({"tags": {"$contains": "x"}}) == arrived
        assert await raw.count_rows(engine, "agent_messages") == arrived * 50


@pytest.mark.only_on(
    "sqlite", "mariadb", "mysql", "postgresql-url"
)  # Only ICU makes such collations.
async def test_a_history_under_several_spellings_of_an_id(database: Database):
    engine, kind = database.engine(), database.kind
    if kind == "postgresql":
        loose = "provider = icu, locale = 'und-u-ks-level2', deterministic = false"
        await raw.execute(engine, f"CREATE COLLATION loose ({loose})")
    collation = {"postgresql": "loose", "sqlite": "NOCASE"}.get(kind, "utf8mb4_general_ci")
    if kind == "mysql":
        await raw.create_sdk_tables(engine, collation=collation)
    else:
        await raw.create_sdk_tables(engine)
        for table in ("messages", "sessions"):
            await raw.execute(engine, f"DROP TABLE agent_{table}")
        text = f"session_id VARCHAR(255) COLLATE {collation}"
        number = "id INTEGER" if kind == "sqlite" else "id SERIAL"
        times = "{} TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP".format
        await raw.execute(
            engine,
            f"CREATE TABLE agent_sessions ({text} PRIMARY KEY, {times('created_at')},"
            f" {times('updated_at')})",
        )
        await raw.execute(
            engine,
            f"CREATE TABLE agent_messages ({number} PRIMARY KEY, {text} NOT NULL REFERENCES"
            f" agent_sessions, message_data TEXT NOT NULL, {times('created_at')})",
        )
    catalog = SessionCatalog(engine, create_tables=True)
    store = CatalogStore(catalog, scope=lambda _: {"owner_id": "u1"})
    for name in ("other", "Chat"):
        await catalog.create_session(name, metadata={"owner_id": "u1"})
        await store.add_thread_item(name, user_item(name, name), None)
    for number, name in enumerate(("Chat", "chat", "CHAT", "other", "Chat")):
        await catalog.session(name).add_items([raw.message(f"{number}")])
    for where in (None, {"owner_id": "u1"}):
        records = {each["session_id"]: each async for each in catalog.export_sessions(where)}
        contents = {
            name: [item["item"]["content"] for item in each["items"]]
            for name, each in records.items()
        }
        assert contents == {"Chat": ["0", "1", "2", "4"], "other": ["3"]}
        assert [len(each["thread_items"]) for each in records.values()] == [1, 1]

"""A stored value that is not valid JSON has its own error, and does not block other sessions."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone

import pytest
from servers import SHARED_DATABASES
from sqlalchemy import text

from agents_session_metadata import CorruptMetadataError, SessionCatalog, SessionMetadataError
from agents_session_metadata.doctor import diagnose, rewrite_search_keys
from agents_session_metadata.storage.threads import THREADS
from conformance import raw

BAD = ["{bad", "", " ", "nope", "NaN", "[1,]", "1 2", "'a'", "[" * 100_000, None]
BAD += ['"\\ud800"', '{"\\uDC00": 1}', "[" * 101 + "]" * 101]  # JSON, which no import takes.


async def damage(engine, session_id: str, key: str, value: str | None) -> None:
    """Write what no writer of the package writes."""
    name = engine.dialect.identifier_preparer.quote("key")
    statement = (
        "UPDATE agent_sessions_metadata SET value = :value"
        f" WHERE session_id = :id AND {name} = :key"
    )
    async with engine.begin() as connection:
        await connection.execute(text(statement), {"value": value, "id": session_id, "key": key})


async def allow_null(engine) -> None:
    kind = engine.dialect.name
    async with engine.connect() as connection:
        if kind == "sqlite":
            await connection.exec_driver_sql("PRAGMA writable_schema = ON")
            await connection.exec_driver_sql(
                "UPDATE sqlite_master SET sql = replace(sql, 'value TEXT NOT NULL', 'value TEXT')"
                " WHERE name = 'agent_sessions_metadata'"
            )
            await connection.exec_driver_sql("PRAGMA writable_schema = RESET")
        elif kind == "postgresql":
            await connection.exec_driver_sql(
                "ALTER TABLE agent_sessions_metadata ALTER COLUMN value DROP NOT NULL"
            )
        else:
            await connection.exec_driver_sql(
                "ALTER TABLE agent_sessions_metadata MODIFY value LONGTEXT NULL"
            )
        await connection.commit()


async def every_page(catalog, order_by: str, limit: int) -> tuple[list, list]:
    """All nine sessions, a page at a time, and the errors of what cannot be read."""
    infos, errors, cursor = [], [], None
    while True:
        page = await catalog.list_sessions(
            order_by=order_by, limit=limit, cursor=cursor, on_corrupt=errors.append
        )
        infos += page.sessions
        cursor = page.next_cursor
        if cursor is None or len(infos) > 9:
            return infos, errors


@pytest.fixture
async def catalog(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    for number in range(9):
        await catalog.create_session(
            f"s{number}", metadata={"owner_id": "u1", "title": f"t{number}", "n": number}
        )
    await allow_null(engine)
    return catalog


def is_error_of(error: object, session_id: str, key: str) -> bool:
    assert isinstance(error, CorruptMetadataError)
    assert isinstance(error, SessionMetadataError)
    assert isinstance(error, ValueError)
    assert (error.session_id, error.key) == (session_id, key)
    assert session_id in str(error)
    assert key in str(error)
    return True


async def test_every_kind_of_bad_value(catalog, engine):
    for value in BAD:
        await damage(engine, "s3", "title", value)
        with pytest.raises(CorruptMetadataError) as caught:
            pytest.fail(f"{value!r}: {await catalog.get_session('s3')}")
        assert is_error_of(caught.value, "s3", "title")
        assert is_error_of(pickle.loads(pickle.dumps(caught.value)), "s3", "title")  # noqa: S301
        found = []
        info = await catalog.get_session("s3", on_corrupt=found.append)
        assert info.metadata == {"owner_id": "u1", "n": 3}
        assert is_error_of(*found, "s3", "title")
    for work in (
        catalog.list_sessions(),
        catalog.last_session({"n": 3}),
        catalog.get_metadata("s3"),
        catalog.get_metadata("s3", ["n", "title"]),
        catalog.session("s3").get_metadata(),
        catalog.edit_metadata("s3", lambda metadata: metadata.update(n=4)),
        anext(catalog.iter_sessions({"n": 3})),
        anext(catalog.export_sessions({"n": 3})),
    ):
        with pytest.raises(CorruptMetadataError) as caught:
            await work
        assert is_error_of(caught.value, "s3", "title")
    await catalog.set_metadata("s4", {"status": "active"})
    await damage(engine, "s4", "status", "{bad")
    with pytest.raises(CorruptMetadataError) as caught:
        await catalog.statistics({"owner_id": "u1"})
    assert is_error_of(caught.value, "s4", "status")
    await catalog.delete_metadata("s4", ["status"])
    # What does not read the value is not concerned.
    assert await catalog.get_metadata("s3", ["n"]) == {"n": 3}
    assert await catalog.count_sessions({"title": "t3"}) == 1
    assert (await catalog.get_or_create_session({"n": 3}))[0].session_id == "s3"
    assert len((await catalog.list_sessions(keys=["n"])).sessions) == 9
    # Writing the key again repairs it.
    await catalog.set_metadata("s3", {"title": "t3"})
    assert (await catalog.get_session("s3")).metadata["title"] == "t3"


async def test_pages_and_walks_go_past_bad_values(catalog, engine):
    whole = {info.session_id: info.metadata async for info in catalog.iter_sessions()}
    bad = [("s2", "title"), ("s3", "n"), ("s3", "title"), ("s8", "owner_id")]
    for number, (session_id, key) in enumerate(bad):
        await damage(engine, session_id, key, BAD[-number])
        del whole[session_id][key]
    for order_by in ("session_id", "-updated_at", "title", "-n"):
        for limit in (1, 2, 3, 20):
            infos, errors = await every_page(catalog, order_by, limit)
            assert {info.session_id: info.metadata for info in infos} == whole
            assert sorted((error.session_id, error.key) for error in errors) == bad
    # A page does not raise for the session after its last one.
    page = await catalog.list_sessions(order_by="session_id", limit=2)
    assert [info.session_id for info in page.sessions] == ["s0", "s1"]
    errors = []
    walked = [info async for info in catalog.iter_sessions(on_corrupt=errors.append)]
    assert {info.session_id: info.metadata for info in walked} == whole
    assert sorted((error.session_id, error.key) for error in errors) == bad
    errors.clear()
    records = [one async for one in catalog.export_sessions(on_corrupt=errors.append)]
    assert [record["session_id"] for record in records] == ["s0", "s1", "s4", "s5", "s6", "s7"]
    assert sorted((error.session_id, error.key) for error in errors) == bad

    def give_up(error: CorruptMetadataError) -> None:
        raise KeyError(error.key)

    with pytest.raises(KeyError):
        await catalog.list_sessions(on_corrupt=give_up)


sqlite = pytest.mark.only_on("sqlite")


@sqlite
@pytest.mark.parametrize("value", ["CAST(x'22ff22' AS TEXT)", "x'3122'", "x'31'"])
async def test_values_of_another_type_or_encoding(catalog, engine, value):
    await raw.execute(
        engine,
        f"UPDATE agent_sessions_metadata SET value = {value}"
        " WHERE session_id = 's3' AND key = 'title'",
    )
    for work in (
        catalog.list_sessions,
        lambda: catalog.get_session("s3"),
        lambda: catalog.get_metadata("s3"),
        lambda: catalog.edit_metadata("s3", lambda metadata: metadata.update(n=4)),
        lambda: anext(catalog.export_sessions({"n": 3})),
    ):
        with pytest.raises(CorruptMetadataError) as caught:
            await work()
        assert is_error_of(caught.value, "s3", "title")
    found = []
    page = await catalog.list_sessions(on_corrupt=found.append)
    assert len(page.sessions) == 9
    records = [one async for one in catalog.export_sessions(on_corrupt=found.append)]
    assert len(records) == 8
    assert [(error.session_id, error.key) for error in found] == [("s3", "title")] * 2
    await catalog.set_metadata("s3", {"n": 5})
    await catalog.create_index("title")
    await catalog.set_metadata("s3", {"title": "t3"})
    assert (await catalog.get_session("s3")).metadata == {"owner_id": "u1", "title": "t3", "n": 5}
    await catalog.edit_metadata("s3", lambda metadata: metadata.update(title="ü"))
    assert (await catalog.get_metadata("s3"))["title"] == "ü"


@sqlite
async def test_a_list_that_is_not_utf8_has_no_elements(catalog, engine):
    await catalog.set_metadata("s3", {"tags": ["a"]})
    await catalog.set_metadata("s4", {"tags": ["b"]})
    await raw.execute(
        engine,
        "UPDATE agent_sessions_metadata SET value = CAST(x'5b22ff225d' AS TEXT)"
        " WHERE session_id = 's3' AND key = 'tags'",
    )
    await raw.execute(engine, "DROP TABLE agent_sessions_metadata_elements")
    assert [one.value for one in await catalog.count_values("tags")] == ["b"]


BAD_TIMES = ["'garbage'", "20240101", "'2024-13-01 00:00:00'", "''"]


@sqlite
@pytest.mark.parametrize("time", BAD_TIMES)
async def test_times_that_are_none(catalog, engine, time):
    async with engine.connect() as connection:
        await connection.exec_driver_sql("PRAGMA writable_schema = ON")
        await connection.exec_driver_sql(
            "UPDATE sqlite_master SET sql = replace(sql, 'CURRENT_TIMESTAMP NOT NULL',"
            " 'CURRENT_TIMESTAMP') WHERE name IN ('agent_sessions', 'agent_messages')"
        )
        await connection.exec_driver_sql("PRAGMA writable_schema = RESET")
        await connection.commit()
    for number in (2, 5, 6):
        column = "created_at" if number == 6 else "updated_at"
        await raw.execute(
            engine, f"UPDATE agent_sessions SET {column} = {time} WHERE session_id = 's{number}'"
        )
    for work in (
        catalog.list_sessions,
        lambda: catalog.get_session("s2"),
        lambda: anext(catalog.iter_sessions({"n": 2})),
        lambda: anext(catalog.export_sessions({"n": 2})),
    ):
        with pytest.raises(CorruptMetadataError, match="is not a time"):
            await work()
    bad = [("s2", "$updated_at"), ("s5", "$updated_at"), ("s6", "$created_at")]
    for order_by in ("-updated_at", "updated_at", "created_at", "session_id", "-n"):
        for limit in (1, 2, 20):
            infos, errors = await every_page(catalog, order_by, limit)
            found = sorted(info.session_id for info in infos)
            assert found == [f"s{number}" for number in range(9)], (order_by, limit)
            assert sorted((error.session_id, error.key) for error in errors) == bad
    errors = []
    walked = [info async for info in catalog.iter_sessions(on_corrupt=errors.append)]
    assert walked[2].updated_at.timestamp() == 0
    assert len(walked) == 9
    records = [one async for one in catalog.export_sessions(on_corrupt=errors.append)]
    assert len(records) == 6
    assert sorted((error.session_id, error.key) for error in errors) == sorted(bad * 2)
    assert await catalog.delete_sessions(inactive_for=timedelta(days=1), dry_run=True) == (
        2 if "2024-13" in time else 0
    )
    assert await catalog.count_sessions({"$updated_at": {"$gt": datetime.now(timezone.utc)}}) == 0
    assert await catalog.get_metadata("s6") == {"owner_id": "u1", "title": "t6", "n": 6}
    await catalog.set_metadata("s6", {"n": 7})
    assert await catalog.delete_session("s6")
    assert await catalog.get_session("s6") is None


@pytest.mark.only_on("mariadb")  # A server that is not strict stores 0000-00-00 00:00:00.
async def test_times_of_zero(catalog, engine):
    async with engine.connect() as connection:
        await connection.exec_driver_sql("SET sql_mode = ''")
        for column, name in (("updated_at", "s2"), ("created_at", "s6")):
            await connection.exec_driver_sql(
                f"UPDATE agent_sessions SET {column} = 'garbage' WHERE session_id = '{name}'"
            )
        await connection.commit()
    await engine.dispose()
    bad = [("s2", "$updated_at"), ("s6", "$created_at")]
    with pytest.raises(CorruptMetadataError, match="is not a time"):
        await catalog.get_session("s2")
    for _ in range(2):
        for order_by in ("-updated_at", "updated_at", "created_at", "session_id"):
            infos, errors = await every_page(catalog, order_by, 2)
            assert sorted(info.session_id for info in infos) == [f"s{n}" for n in range(9)]
            assert sorted((error.session_id, error.key) for error in errors) == bad
        for dry_run in (True, False):
            age = {"inactive_for": timedelta(days=1), "dry_run": dry_run}
            assert await catalog.delete_sessions(**age) == 0
        late = datetime.now(timezone.utc) + timedelta(days=1)
        assert await catalog.count_sessions({"$updated_at": {"$lt": late}}) == 8
        await catalog.create_index("$updated_at")


@sqlite
@pytest.mark.parametrize("time", ["'garbage'", "20240101", "x'ff'"])
async def test_times_of_items_that_are_none(catalog, engine, time):
    for number in (3, 4):
        await catalog.session(f"s{number}").add_items([raw.message("hello")])
    await raw.execute(
        engine, f"UPDATE agent_messages SET created_at = {time} WHERE session_id = 's3'"
    )
    with pytest.raises(CorruptMetadataError, match="`created_at` of an item") as caught:
        await catalog.list_items("s3")
    assert (caught.value.session_id, caught.value.key) == ("s3", "$item_created_at")
    with pytest.raises(CorruptMetadataError):
        await anext(catalog.export_sessions({"n": 3}))
    errors = []
    records = [one async for one in catalog.export_sessions(on_corrupt=errors.append)]
    assert len(records) == 8
    assert [(error.session_id, error.key) for error in errors] == [("s3", "$item_created_at")]
    assert len((await catalog.list_items("s4")).items) == 1
    assert await catalog.session("s3").get_items() == [raw.message("hello")]
    assert await catalog.delete_session("s3")


DAMAGED = {"empty": "x''", "unknown": "x'15'", "not UTF-8": "x'40ff'", "no number": "x'3099'"}


@pytest.mark.parametrize(
    ("database", "damaged"),
    [
        *((name, each) for name in SHARED_DATABASES for each in DAMAGED.values()),
        *(("sqlite-file", each) for each in ("'text'", "12")),
    ],
    indirect=["database"],
)
async def test_search_keys_that_no_value_has(catalog, engine, damaged):
    if engine.dialect.name == "postgresql":
        damaged = "'\\x" + damaged[2:]
    await raw.execute(
        engine,
        f"UPDATE agent_sessions_metadata SET search_key = {damaged} WHERE session_id = 's3'"
        f" AND {engine.dialect.identifier_preparer.quote('key')} = 'n'",
    )
    values, is_ordered = (
        await catalog.get_metadata("s3"),
        any(tag in damaged for tag in ("15", "40", "30")),
    )
    assert values["n"] == 3
    if "30" not in damaged:
        with pytest.raises(CorruptMetadataError, match="search key") as caught:
            await catalog.count_values("n")
        assert is_error_of(caught.value, "s3", "n")
    assert len(await catalog.count_values("title")) == 9
    if not is_ordered:
        with pytest.raises(CorruptMetadataError, match="search key"):
            await catalog.list_sessions(order_by="n")
    for order_by in ("n", "-n"):
        for limit in (1, 2, 20):
            infos, errors = await every_page(catalog, order_by, limit)
            found = sorted(info.session_id for info in infos)
            assert found == [f"s{number}" for number in range(9)], (order_by, limit)
            assert {(error.session_id, error.key) for error in errors} == (
                set() if is_ordered else {("s3", "n")}
            )
    await catalog.create_index("n")
    assert len((await catalog.list_sessions({"owner_id": "u1"})).sessions) == 9
    assert (await catalog.list_sessions({"n": 2})).sessions[0].session_id == "s2"
    found = await catalog.scoped({"n": 3}).get_metadata("s3")
    assert found == {}
    assert await rewrite_search_keys(engine) == (1, 0)
    assert {one.value for one in await catalog.count_values("n")} == set(range(9))


@pytest.mark.only_on("sqlite")
async def test_items_that_are_not_utf8(catalog, engine):
    for name in ("s1", "s2"):
        await catalog.session(name).add_items([raw.message("hello there")])
    await raw.execute(
        engine,
        "INSERT INTO agent_messages (session_id, message_data)"
        " VALUES ('s1', CAST(:begin || x'ff227d' AS TEXT))",
        begin='{"role": "user", "content": "hello',
    )
    [[item_id]] = await raw.execute(engine, "SELECT max(id) FROM agent_messages")
    page = await catalog.list_items("s1")
    assert [each.item["content"] for each in page.items] == ["hello there"]
    await catalog.session("s1").add_items([raw.message("again")])
    info = await catalog.get_session("s1", preview=True)
    assert info.preview == "hello there"
    with pytest.raises(CorruptMetadataError, match=f"item {item_id} of session 's1'") as caught:
        [record async for record in catalog.export_sessions()]
    assert (caught.value.session_id, caught.value.key) == ("s1", "$item")
    errors = []
    records = [each async for each in catalog.export_sessions(on_corrupt=errors.append)]
    assert [each.session_id for each in errors] == ["s1"]
    assert len(records) == 8
    assert len(await catalog.session("s1").rewind(turns=1)) == 1
    assert await diagnose(engine)


@pytest.mark.only_on("sqlite")
async def test_items_without_an_id(engine):
    text, time = "VARCHAR NOT NULL", "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP"
    columns = f"id INTEGER, session_id {text}, message_data {text}, created_at {time}"
    await raw.execute(engine, f"CREATE TABLE agent_messages ({columns})")
    catalog = SessionCatalog(engine, create_tables=True)
    session = await catalog.create_session("a")
    await session.add_items([raw.message("one"), raw.message("two")])
    assert len(await session.get_items()) == 2
    calls = [
        lambda: session.rewind(turns=1),
        lambda: catalog.fork_session("a", before=1),
        lambda: catalog.list_items("a"),
        lambda: catalog.list_items("a", order_by="-item_id"),
    ]
    for call in calls:
        with pytest.raises(CorruptMetadataError, match="'a' has no id") as raised:
            await call()
        assert raised.value.key == "$item_id"
    [record] = [one async for one in catalog.export_sessions()]
    assert len(record["items"]) == 2
    await raw.execute(engine, "UPDATE agent_messages SET id = rowid")
    assert len(await session.rewind(turns=1)) == 1


@pytest.mark.not_on("sqlite")  # It cannot drop NOT NULL.
async def test_items_that_are_null(catalog, engine):
    session = catalog.session("s1")
    await session.add_items([raw.message("hello"), raw.message("again")])
    await catalog._store.database.ensure(THREADS)
    items = "agent_sessions_metadata_thread_items"
    columns = "session_id, item_id, position, kind, data, reopened"
    await raw.execute(
        engine, f"INSERT INTO {items} ({columns}) VALUES ('s2', 'u', 0, 'user_message', '[', 0)"
    )
    change = (
        "MODIFY {} LONGTEXT NULL" if engine.dialect.name == "mysql" else "ALTER {} DROP NOT NULL"
    )
    for table, column, own_id in ((items, "data", "s2"), ("agent_messages", "message_data", "s1")):
        await raw.execute(engine, f"ALTER TABLE {table} {change.format(column)}")
        await raw.execute(
            engine, f"UPDATE {table} SET {column} = NULL WHERE session_id = '{own_id}'"
        )
    assert (await catalog.list_items("s1")).items == []
    errors = []
    records = [one async for one in catalog.export_sessions(on_corrupt=errors.append)]
    assert len(records) == 7
    assert {error.session_id: error.key for error in errors} == {
        "s1": "$item",
        "s2": "$thread_item",
    }

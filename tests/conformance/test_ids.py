"""Which session ids there are, and that each is itself only."""

from __future__ import annotations

import unicodedata

import pytest
from sqlalchemy import event

from agents_session_metadata import SessionCatalog, SQLAlchemyMetadataSession
from conformance import raw

LOOKALIKES = [
    "chat",
    "Chat",
    "CHAT",
    "chat ",
    " chat",
    "chat\t",
    "chät",
    unicodedata.normalize("NFD", "chät"),
    "chaß",
    "chass",
    "\uff43hat",
    "c\u200bhat",
    "\u0131",
    "I",
    "i",
    "İ",
    "100%",
    "100_",
    "1001",
    "'; DROP TABLE agent_sessions; --",
    '"',
    "\\",
    ":id",
    "%s",
    "👍",
    "👎",
    "\uffff",
    "\U00010000",
    "i" * 255,
    "i" * 254,
    "👍" * 255,
    "👍" * 254 + "👎",
]

IMPOSSIBLE = {
    "empty": "",
    "256_characters": "i" * 256,
    "256_emoji": "👍" * 256,
    "nul": "a\0",
    "only_nul": "\0",
    "surrogate": "a\ud800",
}


async def test_lookalikes_stay_apart(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    for number, session_id in enumerate(LOOKALIKES):
        session = catalog.session(session_id)
        if number % 2:
            await session.add_items([raw.message(str(number))])
        await session.set_metadata({"number": number, "tags": [f"tag {number}"]})
        if not number % 2:
            await session.add_items([raw.message(str(number))])
    assert await catalog.count_sessions() == len(LOOKALIKES)
    for number, session_id in enumerate(LOOKALIKES):
        session = SQLAlchemyMetadataSession(session_id, engine=engine)
        assert await session.get_metadata(["number"]) == {"number": number}
        assert await session.get_items() == [raw.message(str(number))]
        assert await session.find_sessions_by_metadata("number", number) == [session_id]
        for where in (
            {"tags": {"$contains": f"tag {number}"}},
            {"$session_id": session_id},
            {"$session_id": {"$in": [session_id, "nobody"]}},
        ):
            assert await session.find_sessions_by_metadata(where) == [session_id]
    page = await catalog.list_sessions(order_by="session_id", limit=1_000, count_items=True)
    assert {info.session_id: info.metadata["number"] for info in page.sessions} == {
        session_id: number for number, session_id in enumerate(LOOKALIKES)
    }
    assert {info.item_count for info in page.sessions} == {1}


async def test_clearing_one_leaves_its_lookalikes(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    for session_id in LOOKALIKES:
        await catalog.session(session_id).set_metadata({"a": session_id})
    for left, session_id in enumerate(reversed(LOOKALIKES), start=1):
        assert await catalog.get_metadata(session_id) == {"a": session_id}
        if left % 2:
            await catalog.session(session_id).clear_session()
        else:
            assert await catalog.delete_session(session_id) is True
        assert await catalog.count_sessions() == len(LOOKALIKES) - left


async def test_ids_and_keys_and_values_of_the_greatest_size_fit_every_index(engine):
    session = SQLAlchemyMetadataSession("👍" * 255, engine=engine, create_tables=True)
    key = "👎" * 255
    values = [["👍" * 4_000, "x" * 5_000, 10**4000], "👍" * 10_000, 10**4200]
    for value in values:
        await session.set_metadata({key: value})
        assert await session.find_sessions_by_metadata(key, value) == [session.session_id]
    await session.set_metadata({key: values[0]})
    for element in values[0]:
        where = {key: {"$contains": element}}
        assert await session.find_sessions_by_metadata(where) == [session.session_id]


async def test_impossible_ids_carry_no_metadata(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("chat", metadata={"a": 1})
    statements = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def note(connection, cursor, statement, *_):
        statements.append(statement)

    def change(metadata):
        metadata["a"] = 1

    for kind, session_id in IMPOSSIBLE.items():
        session = SQLAlchemyMetadataSession(session_id, engine=engine)
        statements.clear()
        for write in (
            lambda session=session: session.set_metadata({"a": 1}),
            lambda session=session: session.edit_metadata(change),
            lambda name=session_id: catalog.set_metadata(name, {"a": 1}),
            lambda name=session_id: catalog.edit_metadata(name, change),
            lambda name=session_id: catalog.create_session(name, metadata={"a": 1}),
        ):
            with pytest.raises(ValueError, match="session id"):
                await write()
        assert statements == [], kind
        assert await session.get_metadata() == {}
        assert await session.get_metadata(["a"]) == {"a": None}
        assert await session.delete_metadata() == 0
        assert await catalog.get_metadata(session_id) == {}
        assert await catalog.get_session(session_id) is None
        assert await catalog.delete_session(session_id) is False
    assert await catalog.count_sessions() == 1


@pytest.mark.only_on("mariadb", "mysql")
@pytest.mark.parametrize("length", [256, 1_000])
async def test_history_of_ids_that_the_column_would_cut(database, length):
    # Two sessions would share one history.
    catalog = SessionCatalog(database.engine(), create_tables=True)
    session = catalog.session("i" * length)
    with pytest.raises(ValueError, match="session id"):
        await session.add_items([raw.message("a")])
    assert await session.get_items() == []
    assert await catalog.count_sessions() == 0


not_cut = pytest.mark.not_on("mariadb", "mysql")


@pytest.mark.parametrize(
    "length", [255, pytest.param(256, marks=not_cut), pytest.param(1_000, marks=not_cut)]
)
async def test_history_of_long_ids(database, length):
    engine = database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    session = catalog.session("i" * length)
    await session.add_items([raw.message("a")])
    assert await session.get_items() == [raw.message("a")]
    assert await catalog.count_sessions() == 1
    await session.clear_session()
    assert await session.get_items() == []


@pytest.mark.only_on("sqlite")
async def test_history_of_an_id_with_nul(database):
    session = SQLAlchemyMetadataSession("a\x00b", engine=database.engine(), create_tables=True)
    await session.add_items([raw.message("a"), raw.message("b")])
    assert await session.pop_item() == raw.message("b")
    existing = session.catalog.session("a\x00b", must_exist=True)
    await existing.add_items([raw.message("c")])
    assert await session.get_items() == [raw.message("a"), raw.message("c")]
    await session.clear_session()
    assert await session.get_items() == []

"""The five methods of a session, and that metadata is no activity."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings

import pytest
from agents import Agent, RunConfig, Runner
from agents.extensions.memory import EncryptedSession, SQLAlchemySession
from agents.testing import ScriptedModel, assistant_message

from agents_session_metadata import (
    InvalidFilterError,
    InvalidMetadataError,
    SessionCatalog,
    SQLAlchemyMetadataSession,
    TablesMissingError,
)
from conformance import raw

OLD = ("2020-01-01 00:00:00", "2020-02-02 00:00:00")


@pytest.fixture
def session(engine):
    return SQLAlchemyMetadataSession("chat-1", engine=engine, create_tables=True)


def another(engine, session_id: str, **kwargs) -> SQLAlchemyMetadataSession:
    return SQLAlchemyMetadataSession(session_id, engine=engine, create_tables=True, **kwargs)


async def test_metadata_and_history_of_one_session(session):
    await session.set_metadata({"owner_id": "user_123", "title": "My chat", "tags": ["work"]})
    assert await session.get_metadata(keys=["owner_id", "nope"]) == {
        "owner_id": "user_123",
        "nope": None,
    }
    assert await session.get_metadata() == {
        "owner_id": "user_123",
        "title": "My chat",
        "tags": ["work"],
    }
    assert await session.delete_metadata(keys=["tags"]) == 1
    await session.add_items([raw.message("hello")])
    assert await session.find_sessions_by_metadata("owner_id", "user_123") == ["chat-1"]
    assert await session.find_sessions_by_metadata({"owner_id": "user_123", "title": "x"}) == []
    assert await session.delete_metadata() == 2
    assert await session.get_metadata() == {}
    assert await session.get_items() == [raw.message("hello")]


async def test_a_session_without_tables_names_what_creates_them(engine):
    session = SQLAlchemyMetadataSession("chat-1", engine=engine)
    agent = Agent(name="a", model=ScriptedModel([[assistant_message("hi")]]))
    for work in (
        lambda: Runner.run(agent, "hello", session=session),
        session.get_items,
        session.pop_item,
        session.clear_session,
        lambda: session.add_items([raw.message("hello")]),
    ):
        with pytest.raises(TablesMissingError, match="create_tables=True") as caught:
            await work()
        assert caught.value.tables == ("agent_sessions", "agent_messages")


@pytest.mark.logic
async def test_it_is_the_sdk_class(session):
    assert isinstance(session, SQLAlchemySession)
    assert session.session_id == "chat-1"
    assert isinstance(session.catalog, SessionCatalog)
    await session.set_metadata({"a": 1})
    info = await session.catalog.get_session("chat-1")
    assert info is not None
    assert info.metadata == {"a": 1}


async def test_from_url(database):
    session = SQLAlchemyMetadataSession.from_url(
        "chat",
        url=database.url,
        create_tables=True,
        session_settings={"limit": 1},
        engine_kwargs={},
    )
    try:
        assert type(session) is SQLAlchemyMetadataSession
        await session.add_items([raw.message("a"), raw.message("b")])
        await session.set_metadata({"a": 1})
        assert await session.get_items() == [raw.message("b")]
        assert await session.get_metadata() == {"a": 1}
    finally:
        await session.engine.dispose()


@pytest.mark.logic
async def test_an_option_nobody_knows_is_an_error(engine):
    with pytest.raises(TypeError):
        SQLAlchemyMetadataSession("chat", engine=engine, no_such_option=1)


@pytest.mark.logic
async def test_set_leaves_other_keys_alone(session):
    await session.set_metadata({"a": 1, "b": [1, 2]})
    await session.set_metadata({"b": [3], "c": None})
    assert await session.get_metadata() == {"a": 1, "b": [3], "c": None}


@pytest.mark.logic
async def test_an_empty_mapping_does_nothing(session, engine):
    await session.set_metadata({})
    await session.get_metadata()
    assert await raw.count_rows(engine, "agent_sessions") == 0


async def test_set_creates_the_row_of_the_session(session, engine):
    await session.set_metadata({"a": 1})
    assert await raw.count_rows(engine, "agent_sessions", "chat-1") == 1
    await session.add_items([raw.message("a")])
    assert await raw.count_rows(engine, "agent_sessions") == 1
    assert await session.get_metadata() == {"a": 1}


@pytest.mark.logic
async def test_reading_makes_no_row(session, engine):
    assert await session.get_metadata() == {}
    assert await session.get_metadata(["a"]) == {"a": None}
    assert await session.delete_metadata() == 0
    assert await session.delete_metadata(["a"]) == 0
    assert await session.find_sessions_by_metadata("a", 1) == []
    assert await raw.count_rows(engine, "agent_sessions") == 0


@pytest.mark.logic
async def test_keys_choose(session):
    await session.set_metadata({"a": 1, "b": 2, "c": 3})
    assert await session.get_metadata(["b", "a", "b"]) == {"a": 1, "b": 2}
    assert await session.get_metadata([]) == {}
    assert await session.get_metadata(keys=None) == {"a": 1, "b": 2, "c": 3}
    assert await session.delete_metadata([]) == 0
    assert await session.delete_metadata(["a", "a", "nope"]) == 1
    assert await session.delete_metadata(keys=["a", "b"]) == 1
    assert await session.delete_metadata(keys=None) == 1
    assert await session.get_metadata() == {}


@pytest.mark.logic
async def test_a_bare_string_is_no_list_of_keys(session):
    await session.set_metadata({"a": 1, "b": 2})
    for bad in ("ab", ""):
        with pytest.raises(TypeError):
            await session.get_metadata(bad)
        with pytest.raises(TypeError):
            await session.delete_metadata(keys=bad)
    assert await session.get_metadata() == {"a": 1, "b": 2}


async def test_sessions_do_not_share_metadata(session, engine):
    other = another(engine, "chat-2")
    await session.set_metadata({"a": 1, "b": 1})
    await other.set_metadata({"a": 2, "c": 2})
    await session.delete_metadata(["c"])
    await session.delete_metadata()
    assert await session.get_metadata() == {}
    assert await other.get_metadata() == {"a": 2, "c": 2}


async def test_edit(session):
    def next_turn(metadata):
        metadata["turns"] = metadata.get("turns", 0) + 1
        return "ignored"

    assert await session.edit_metadata(next_turn) == {"turns": 1}
    assert await session.edit_metadata(next_turn) == {"turns": 2}
    assert await session.get_metadata() == {"turns": 2}


@pytest.mark.logic
async def test_edit_sees_changes_inside_of_values(session):
    await session.set_metadata({"tags": ["a"], "deep": {"list": [1]}, "gone": 1, "kept": 1})

    def change(metadata):
        metadata["tags"].append("b")
        metadata["deep"]["list"][0] = True
        del metadata["gone"]

    expected = {"tags": ["a", "b"], "deep": {"list": [True]}, "kept": 1}
    assert await session.edit_metadata(change) == expected
    stored = await session.get_metadata()
    assert stored == expected
    assert stored["deep"]["list"][0] is True
    assert await session.find_sessions_by_metadata({"tags": {"$contains": "b"}}) == ["chat-1"]


@pytest.mark.logic
async def test_edit_can_change_the_type_alone(session):
    await session.set_metadata({"a": 1})
    await session.edit_metadata(lambda metadata: metadata.update(a=True))
    assert (await session.get_metadata())["a"] is True
    await session.edit_metadata(lambda metadata: metadata.update(a=1.0))
    assert type((await session.get_metadata())["a"]) is float


@pytest.mark.logic
async def test_edit_can_remove_everything(session):
    await session.set_metadata({"a": 1, "b": [1]})
    assert await session.edit_metadata(lambda metadata: metadata.clear()) == {}
    assert await session.get_metadata() == {}


@pytest.mark.logic
async def test_edit_without_a_change_makes_no_row(session, engine):
    assert await session.edit_metadata(lambda metadata: None) == {}
    assert await session.edit_metadata(lambda metadata: metadata.pop("a", None)) == {}
    assert await raw.count_rows(engine, "agent_sessions") == 0


@pytest.mark.logic
async def test_an_exception_in_a_change_writes_nothing_and_passes_through(session, engine):
    class OwnError(Exception):
        pass

    error = OwnError()

    def change(metadata):
        metadata["a"] = 2
        raise error

    with pytest.raises(OwnError) as caught:
        await session.edit_metadata(change)
    assert caught.value is error
    assert await raw.count_rows(engine, "agent_sessions") == 0
    await session.set_metadata({"a": 1})
    with pytest.raises(OwnError):
        await session.edit_metadata(change)
    assert await session.get_metadata() == {"a": 1}


@pytest.mark.logic
async def test_a_change_must_not_be_awaited(session):
    async def change(metadata):
        metadata["a"] = 1

    with pytest.raises(TypeError):
        await session.edit_metadata(change)

    future = asyncio.get_running_loop().create_future()

    def returns_a_future(metadata):
        metadata["a"] = 1
        return future

    with pytest.raises(TypeError):
        await session.edit_metadata(returns_a_future)
    assert await session.get_metadata() == {}


@pytest.mark.logic
async def test_edit_refuses_what_set_refuses(session):
    await session.set_metadata({"a": 1})

    def change(metadata):
        metadata["a"] = 2
        metadata["bad"] = {"x": b""}

    with pytest.raises(InvalidMetadataError) as caught:
        await session.edit_metadata(change)
    assert caught.value.key == "bad"
    assert await session.get_metadata() == {"a": 1}


@pytest.mark.logic
async def test_find_gives_the_most_recently_active_first(session, engine):
    for number in range(5):
        one = another(engine, f"chat-{number}")
        await one.set_metadata({"owner": "u", "number": number})
        day = (number * 3) % 5 + 1
        await raw.set_times(engine, one.session_id, updated_at=f"2020-02-0{day} 00:00:00")
    newest_first = ["chat-3", "chat-1", "chat-4", "chat-2", "chat-0"]
    assert await session.find_sessions_by_metadata("owner", "u") == newest_first
    assert await session.find_sessions_by_metadata("owner", "u", limit=2) == newest_first[:2]
    assert await session.find_sessions_by_metadata({"owner": "u"}, limit=100) == newest_first
    assert await session.find_sessions_by_metadata(
        {"number": {"$gte": 2}, "owner": "u"}, limit=2
    ) == ["chat-3", "chat-4"]
    await another(engine, "chat-0").add_items([raw.message("back again")])
    assert (await session.find_sessions_by_metadata("owner", "u"))[0] == "chat-0"


async def test_find_by_key_and_value_is_equality(session, engine):
    await session.set_metadata({"a": {"$gt": 1}, "b": ["x"], "c": None, "d": 5})
    assert await session.find_sessions_by_metadata("a", {"$gt": 1}) == ["chat-1"]
    assert await session.find_sessions_by_metadata("d", {"$gt": 1}) == []
    assert await session.find_sessions_by_metadata("b", ["x"]) == ["chat-1"]
    assert await session.find_sessions_by_metadata("b", "x") == []
    assert await session.find_sessions_by_metadata("c", None) == ["chat-1"]
    assert await session.find_sessions_by_metadata("nope", None) == []
    assert await session.find_sessions_by_metadata({}) == ["chat-1"]
    for bad in ((1,), {1}, float("nan")):
        with pytest.raises(InvalidFilterError):
            await session.find_sessions_by_metadata("a", bad)


async def test_metadata_is_no_activity(session, engine):
    await session.add_items([raw.message("a")])
    await raw.set_times(engine, "chat-1", created_at=OLD[0], updated_at=OLD[1])
    # MySQL may fill in a time zone of its own: what counts is that it stays.
    before = await raw.times(engine, "chat-1")
    assert before[1].startswith("2020-02-0")
    await session.set_metadata({"a": 1, "tags": ["x"]})
    await session.set_metadata({"a": 2, "tags": ["y"]})
    await session.edit_metadata(lambda metadata: metadata.update(b=1))
    await session.find_sessions_by_metadata("a", 2)
    await session.delete_metadata(["b"])
    await session.catalog.set_metadata("chat-1", {"c": 1})
    await session.catalog.list_sessions(count_items=True)
    await session.delete_metadata()
    await session.get_items()
    assert await raw.times(engine, "chat-1") == before
    await session.add_items([raw.message("b")])
    created_at, updated_at = await raw.times(engine, "chat-1")
    assert created_at == before[0]
    assert updated_at > "2021"


@pytest.mark.logic
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_of_an_agent(session, streamed):
    await session.set_metadata({"owner_id": "u1"})
    config = RunConfig(tracing_disabled=True)
    for turn in ("one", "two"):
        agent = Agent(name="worker", model=ScriptedModel([[assistant_message(f"re: {turn}")]]))
        if streamed:
            result = Runner.run_streamed(agent, turn, session=session, run_config=config)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, turn, session=session, run_config=config)
        assert result.final_output == f"re: {turn}"
    assert [item["role"] for item in await session.get_items()] == ["user", "assistant"] * 2
    assert await session.get_metadata() == {"owner_id": "u1"}


def test_run_sync(tmp_path):
    def make() -> SQLAlchemyMetadataSession:
        url = f"sqlite+aiosqlite:///{tmp_path}/chat.db"
        return SQLAlchemyMetadataSession.from_url("chat", url=url, create_tables=True)

    # run_sync runs on the thread's loop and leaves it unfit for anything else.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    session = make()
    try:
        loop.run_until_complete(session.set_metadata({"a": 1}))
        agent = Agent(name="worker", model=ScriptedModel([[assistant_message("hello")]]))
        config = RunConfig(tracing_disabled=True)
        assert Runner.run_sync(agent, "hi", session=session, run_config=config).final_output
        loop.run_until_complete(session.engine.dispose())
    finally:
        asyncio.set_event_loop(None)
        loop.close()

    async def look() -> None:
        session = make()
        assert [item["role"] for item in await session.get_items()] == ["user", "assistant"]
        assert await session.get_metadata() == {"a": 1}
        await session.engine.dispose()

    asyncio.run(look())


@pytest.mark.logic
async def test_metadata_through_an_encrypted_session(session):
    encrypted = EncryptedSession("chat-1", session, encryption_key="a key of the tests")
    await encrypted.add_items([raw.message("secret")])
    await encrypted.set_metadata({"a": 1})
    assert await encrypted.get_metadata() == {"a": 1}
    assert await encrypted.get_items() == [raw.message("secret")]
    assert "secret" not in str(await session.get_items())


@pytest.mark.logic
@pytest.mark.parametrize("ensure_ascii", [False, True])
async def test_settings_of_the_sdk(engine, ensure_ascii):
    session = another(
        engine, "chat", ensure_ascii=ensure_ascii, session_settings={"limit": 2}, on_clear="keep"
    )
    items = [raw.message(text) for text in ("ä", "👍" * 10, "c")]
    await session.add_items(items)
    assert await session.get_items() == items[1:]
    assert await session.get_items(limit=10) == items
    stored = await raw.execute(engine, "SELECT message_data FROM agent_messages ORDER BY id")
    assert ("ä" in stored[0][0]) is not ensure_ascii


async def test_long_items_survive(session):
    items = [raw.message("ä" * 100_000 + str(number)) for number in range(3)]
    await session.add_items(items)
    assert await session.get_items() == items
    assert await session.pop_item() == items[-1]


@pytest.mark.parametrize("call", ["get", "compact"])
async def test_a_cancelled_reader_loses_nothing(engine, call):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.session("chat").add_items([raw.message("hello")])
    for turns in range(30):
        session = catalog.session("chat")
        reading = session.get_items() if call == "get" else session._get_compaction_snapshot(10)
        task = asyncio.create_task(reading)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert await catalog.count_sessions() == 1
        assert await session.get_items() == [raw.message("hello")]


@pytest.mark.only_on("sqlite-memory")
async def test_a_reader_that_is_cancelled_while_it_waits_leaves_no_coroutine(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("chat")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tasks = [asyncio.create_task(catalog.get_metadata("chat")) for _ in range(20)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        gc.collect()
    assert [str(each.message) for each in caught] == []
    assert await catalog.get_metadata("chat") == {}

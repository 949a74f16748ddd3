from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")  # Skip tests if SQLAlchemy is not installed

from sqlalchemy import inspect, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from agents import Agent, Runner, TResponseInputItem
from agents.extensions.memory import SQLAlchemyMetadataSession, SQLAlchemySession
from agents.extensions.memory._session_metadata_values import (
    MetadataLimits,
    MetadataSizeError,
    MetadataValueError,
)
from agents.extensions.memory._sqlalchemy_metadata_tables import derived_name
from agents.memory import OpenAIResponsesCompactionSession
from agents.testing import ScriptedModel
from tests.test_responses import get_text_message

pytestmark = pytest.mark.asyncio

TABLES = ("agent_sessions_metadata", "agent_sessions_metadata_elements")


@pytest.fixture(params=["memory", "file"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """An empty SQLite database, in memory and in a file."""
    if request.param == "memory":
        engine = create_async_engine("sqlite+aiosqlite:///:memory:", poolclass=StaticPool)
    else:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'chat.db'}")
    yield engine
    await engine.dispose()


def make_session(
    engine: AsyncEngine, session_id: str = "chat", **kwargs: Any
) -> SQLAlchemyMetadataSession:
    return SQLAlchemyMetadataSession(session_id, engine=engine, create_tables=True, **kwargs)


def message(content: str) -> TResponseInputItem:
    return {"role": "user", "content": content}


async def fetch(engine: AsyncEngine, statement: str) -> list[Any]:
    async with engine.connect() as connection:
        return list((await connection.execute(text(statement))).all())


async def count_rows(engine: AsyncEngine) -> list[int]:
    return [(await fetch(engine, f"SELECT count(*) FROM {table}"))[0][0] for table in TABLES]


async def test_set_get_and_delete(engine: AsyncEngine):
    session = make_session(engine)
    assert await session.get_metadata() == {}
    assert await session.delete_metadata() == 0

    await session.set_metadata({"owner_id": "user_1", "tags": ["work"], "none": None})
    await session.set_metadata({"tags": "replaced"})
    assert await session.get_metadata() == {"none": None, "owner_id": "user_1", "tags": "replaced"}
    assert await session.get_metadata(["owner_id", "nope"]) == {"owner_id": "user_1", "nope": None}
    assert await session.get_metadata([]) == {}

    assert await session.delete_metadata(["tags", "nope", "$never", "nul\x00"]) == 1
    assert await session.delete_metadata([]) == 0
    assert await session.delete_metadata() == 2
    assert await session.get_metadata() == {}


@pytest.mark.parametrize("method", ["get_metadata", "delete_metadata"])
async def test_a_bare_string_is_not_a_list_of_keys(engine: AsyncEngine, method: str):
    with pytest.raises(TypeError, match="list of keys"):
        await getattr(make_session(engine), method)("title")


@pytest.mark.parametrize(
    "value",
    [
        *("", "text", "ünïcode 東京 🎈", "nul \x00", "x" * 5000),
        *(0, 1, -1, 2**63, -(10**400), 0.5, -1e300, 5e-324),
        *(True, False, None),
        *([], [1, "1", True, None, [2]], {}, {"a": {"b": [1, None]}, "$gt": 1}),
    ],
)
async def test_a_value_is_read_as_it_was_written_and_found(engine: AsyncEngine, value: Any):
    session = make_session(engine)
    await session.set_metadata({"key": value})
    found = (await session.get_metadata())["key"]
    assert (found, type(found)) == (value, type(value))
    assert await session.find_sessions_by_metadata("key", value) == ["chat"]
    assert await session.find_sessions_by_metadata({"key": value}) == ["chat"]
    assert await session.find_sessions_by_metadata("key", [value]) == []


@pytest.mark.parametrize(
    ("metadata", "path"),
    [
        ({"": 1}, "$"),
        ({"$owner": 1}, "$"),
        ({"nul\x00": 1}, "$"),
        ({1: 1}, "$"),
        ({"key": math.nan}, "$"),
        ({"key": {"a": [1, (2,)]}}, "$.a[1]"),
        ({"key": {1: 2}}, "$"),
        ({"key": "\ud800"}, "$"),
    ],
)
async def test_what_cannot_be_stored_is_refused(
    engine: AsyncEngine, metadata: dict[Any, Any], path: str
):
    session = make_session(engine)
    with pytest.raises(MetadataValueError) as caught:
        await session.set_metadata({"good": 1} | metadata)
    assert caught.value.path == path
    assert await session.get_metadata() == {}


async def test_limits(engine: AsyncEngine):
    limits = MetadataLimits(max_keys=3, max_key_length=5, max_value_bytes=10)
    session = make_session(engine, metadata_limits=limits)
    await session.set_metadata({"a": 1, "b": 2})
    for metadata, limit in (
        ({"long_key": 1}, "max_key_length"),
        ({"a": "x" * 20}, "max_value_bytes"),
        ({"c": 1, "d": 1}, "max_keys"),
    ):
        with pytest.raises(MetadataSizeError) as caught:
            await session.set_metadata(metadata)
        assert caught.value.limit == limit
        with pytest.raises(MetadataSizeError):
            await session.edit_metadata(lambda stored, new=metadata: stored.update(new))
    assert await session.get_metadata() == {"a": 1, "b": 2}
    await session.set_metadata({"a": 3, "c": 1})


@pytest.mark.parametrize("session_id", ["", "x" * 256, "nul\x00", "\ud800"])
async def test_ids_that_cannot_have_metadata(engine: AsyncEngine, session_id: str):
    session = make_session(engine, session_id)
    for call in (
        session.set_metadata({"a": 1}),
        session.get_metadata(),
        session.delete_metadata(),
        session.edit_metadata(lambda metadata: None),
    ):
        with pytest.raises(ValueError, match="session_id must have 1 to 255"):
            await call


async def test_find_compares_exactly_and_orders_by_activity(engine: AsyncEngine):
    values = {"int": 1, "float": 1.0, "text": "1", "bool": True, "upper": "A", "lower": "a"}
    for session_id, value in values.items():
        await make_session(engine, session_id).set_metadata({"key": value, "shared": [1]})
    session = make_session(engine)
    assert sorted(await session.find_sessions_by_metadata("key", 1)) == ["float", "int"]
    assert await session.find_sessions_by_metadata("key", True) == ["bool"]
    assert await session.find_sessions_by_metadata("key", "a") == ["lower"]
    assert await session.find_sessions_by_metadata("shared", 1) == []
    assert await session.find_sessions_by_metadata({"key": "A", "shared": [1]}) == ["upper"]
    assert await session.find_sessions_by_metadata({"key": "A", "shared": [2]}) == []

    async with engine.begin() as connection:
        for day, session_id in enumerate(("text", "int", "upper"), 1):
            statement = "UPDATE agent_sessions SET updated_at = :time WHERE session_id = :id"
            time = f"2999-01-0{day} 00:00:00"
            await connection.execute(text(statement), {"time": time, "id": session_id})
    assert await session.find_sessions_by_metadata({}, limit=3) == ["upper", "int", "text"]
    assert len(await session.find_sessions_by_metadata({})) == len(values)


async def test_find_requires_a_key_and_a_value_or_a_mapping(engine: AsyncEngine):
    session = make_session(engine)
    with pytest.raises(TypeError):
        await session.find_sessions_by_metadata("key")
    with pytest.raises(TypeError):
        await session.find_sessions_by_metadata({"key": 1}, 1)


async def test_edit(engine: AsyncEngine):
    session = make_session(engine)
    await session.set_metadata({"count": 1, "tags": ["work"], "old": 1})

    def change(metadata: dict[str, Any]) -> None:
        metadata["count"] += 1
        metadata["tags"].append("home")
        metadata["new"] = None
        del metadata["old"]

    expected = {"count": 2, "new": None, "tags": ["work", "home"]}
    assert await session.edit_metadata(change) == expected
    assert await session.get_metadata() == expected
    assert await count_rows(engine) == [3, 2]


async def test_an_edit_that_fails_or_changes_nothing_writes_nothing(engine: AsyncEngine):
    session = make_session(engine)

    def fail(metadata: dict[str, Any]) -> None:
        metadata["a"] = 1
        raise KeyError("no")

    async def coroutine(metadata: dict[str, Any]) -> None: ...

    assert await session.edit_metadata(lambda metadata: None) == {}
    with pytest.raises(KeyError):
        await session.edit_metadata(fail)
    with pytest.raises(TypeError, match="plain function"):
        await session.edit_metadata(coroutine)
    assert await fetch(engine, "SELECT session_id FROM agent_sessions") == []


async def test_concurrent_editors_take_turns(engine: AsyncEngine):
    def count(metadata: dict[str, Any]) -> None:
        metadata["count"] = metadata.get("count", 0) + 1

    sessions = [make_session(engine) for _ in range(10)]
    await asyncio.gather(
        *(session.edit_metadata(count) for session in sessions),
        *(session.add_items([message("hello")]) for session in sessions),
    )
    assert await sessions[0].get_metadata() == {"count": 10}
    assert len(await sessions[0].get_items()) == 10


async def test_a_cancelled_write_settles_first(engine: AsyncEngine):
    session = make_session(engine)
    await session.set_metadata({"a": 0})
    task = asyncio.create_task(session.set_metadata({"a": 1}))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await session.get_metadata() in ({"a": 0}, {"a": 1})
    await session.set_metadata({"a": 2})
    assert await session.get_metadata() == {"a": 2}


async def test_elements_follow_their_list(engine: AsyncEngine):
    session = make_session(engine)
    await session.set_metadata({"tags": ["a", "b", "a", ["nested"], 1]})
    assert await count_rows(engine) == [1, 3]
    await session.set_metadata({"tags": ["c"]})
    assert await count_rows(engine) == [1, 1]
    await session.set_metadata({"tags": "text"})
    assert await count_rows(engine) == [1, 0]
    await session.set_metadata({"tags": ["c"]})
    await session.delete_metadata(["tags"])
    assert await count_rows(engine) == [0, 0]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM agent_sessions",
        "REPLACE INTO agent_sessions (session_id) VALUES ('chat')",
    ],
)
async def test_metadata_ends_with_its_session_for_every_writer(engine: AsyncEngine, statement: str):
    session = make_session(engine)
    await session.set_metadata({"tags": ["a"]})
    async with engine.begin() as connection:
        await connection.execute(text(statement))
    assert await count_rows(engine) == [0, 0]


async def test_metadata_follows_its_session(engine: AsyncEngine):
    await make_session(engine).set_metadata({"tags": ["a"]})
    restore = "REPLACE INTO agent_sessions VALUES ('other', '2024', '2024')"
    for statement in ("UPDATE agent_sessions SET session_id = 'other'", restore):
        async with engine.begin() as connection:
            await connection.execute(text(statement))
    assert await make_session(engine, "other").get_metadata() == {"tags": ["a"]}
    assert await count_rows(engine) == [1, 1]


@pytest.mark.parametrize("kind", [SQLAlchemyMetadataSession, SQLAlchemySession])
async def test_clear_session_deletes_metadata(engine: AsyncEngine, kind: type[SQLAlchemySession]):
    session = make_session(engine)
    other = make_session(engine, "other")
    await session.set_metadata({"tags": ["a"]})
    await other.set_metadata({"tags": ["b"]})
    await session.add_items([message("hello")])
    await kind("chat", engine=engine).clear_session()
    assert await session.get_metadata() == {}
    assert await session.get_items() == []
    assert await other.get_metadata() == {"tags": ["b"]}
    assert await count_rows(engine) == [1, 1]


async def test_history_methods_leave_metadata_alone(engine: AsyncEngine):
    session = make_session(engine)
    await session.set_metadata({"title": "My chat"})
    agent = Agent("test", model=ScriptedModel([[get_text_message("Hi")]]))
    await Runner.run(agent, "Hello", session=session)
    assert len(await session.get_items()) == 2
    await session.pop_item()
    await session.pop_item()
    assert await session.get_metadata() == {"title": "My chat"}


async def test_metadata_does_not_change_updated_at(engine: AsyncEngine):
    session = make_session(engine)
    await session.add_items([message("hello")])
    statement = "UPDATE agent_sessions SET updated_at = '2001-01-01 00:00:00'"
    async with engine.begin() as connection:
        await connection.execute(text(statement))
    await session.set_metadata({"a": 1})
    await session.edit_metadata(lambda metadata: metadata.update(b=2))
    await session.delete_metadata(["a"])
    updated = "SELECT updated_at FROM agent_sessions"
    assert (await fetch(engine, updated))[0][0] == "2001-01-01 00:00:00"
    await session.add_items([message("again")])
    assert (await fetch(engine, updated))[0][0] > "2001-01-01 00:00:00"


async def test_compaction_keeps_metadata_and_row(engine: AsyncEngine):
    session = make_session(engine)
    await session.set_metadata({"title": "My chat"})
    await session.add_items([message("one"), message("two")])
    async with engine.begin() as connection:
        created = "2001-01-01 00:00:00"
        await connection.execute(text(f"UPDATE agent_sessions SET created_at = '{created}'"))
    compaction = OpenAIResponsesCompactionSession("chat", session)

    for items in ([message("summary")], []):
        await compaction._replace_underlying_session_items(output_items=items, previous_items=[])
        assert await session.get_items() == items
        assert await session.get_metadata() == {"title": "My chat"}
        rows = await fetch(engine, "SELECT created_at FROM agent_sessions")
        assert [row.created_at for row in rows] == [created]


async def test_a_bounded_history_is_compacted_in_place(engine: AsyncEngine):
    session = make_session(engine)
    await session.set_metadata({"title": "My chat"})
    await session.add_items([message("one"), message("two"), message("three")])
    snapshot = await session._get_compaction_snapshot(2)
    assert snapshot is not None
    assert await snapshot.replace_suffix(1, [message("summary")])
    contents = [item.get("content") for item in await session.get_items()]
    assert contents == ["one", "two", "summary"]
    assert await session.get_metadata() == {"title": "My chat"}

    class Subclass(SQLAlchemyMetadataSession):
        """May transform items, so that the snapshot could lose what it does not know."""

    assert await Subclass("chat", engine=engine)._get_compaction_snapshot(2) is None


async def test_tables_are_added_to_a_database_in_use(engine: AsyncEngine):
    plain = SQLAlchemySession("chat", engine=engine, create_tables=True)
    await plain.add_items([message("hello")])
    with pytest.raises(OperationalError, match="agent_sessions_metadata"):
        await SQLAlchemyMetadataSession("chat", engine=engine).get_metadata()
    session = make_session(engine)
    await session.set_metadata({"tags": ["a"]})
    assert await session.get_items() == [message("hello")]
    await plain.clear_session()
    assert await count_rows(engine) == [0, 0]


async def test_table_names(engine: AsyncEngine):
    long_name = "s" * 60
    names = {"sessions_table": long_name, "messages_table": "m", "metadata_table": "my metadata"}
    session = make_session(engine, **names)
    await session.set_metadata({"tags": ["a"]})
    await make_session(engine, sessions_table=long_name, messages_table="m").get_metadata()
    async with engine.connect() as connection:
        found = await connection.run_sync(lambda sync: inspect(sync).get_table_names())
    derived = derived_name(long_name, "_metadata")
    assert len(derived) == 63
    expected = {long_name, "m", "my metadata", "my metadata_elements", derived}
    assert expected | {derived_name(derived, "_elements")} == set(found)
    await session.clear_session()
    assert await fetch(engine, 'SELECT * FROM "my metadata_elements"') == []


async def test_many_sessions_create_the_tables_at_once(tmp_path: Path):
    engines = [create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'a.db'}") for _ in range(6)]
    sessions = [make_session(engine, f"chat-{n}") for n, engine in enumerate(engines)]
    for session in sessions:
        session._init_lock = threading.Lock()  # As in other processes.
    await asyncio.gather(*(session.set_metadata({"a": 1}) for session in sessions))
    assert len(await sessions[0].find_sessions_by_metadata("a", 1)) == 6
    for engine in engines:
        await engine.dispose()


async def test_other_databases_are_refused():
    engine = create_async_engine("sqlite+aiosqlite:///:memory:")
    engine.dialect.name = "oracle"
    with pytest.raises(ValueError, match="got oracle"):
        make_session(engine)

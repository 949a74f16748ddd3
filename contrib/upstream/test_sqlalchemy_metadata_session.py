"""Tests for SQLAlchemyMetadataSession, through its public API only.

Set `SQLALCHEMY_TEST_URL` to the asyncio URL of another database to run each test there, too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock
from uuid import uuid4

import pytest
import pytest_asyncio

pytest.importorskip("sqlalchemy")  # Skip tests if SQLAlchemy is not installed
pytest.importorskip("aiosqlite")

from sqlalchemy import text
from sqlalchemy.exc import StatementError
from sqlalchemy.ext.asyncio import create_async_engine

from agents import Agent, Runner, TResponseInputItem
from agents.extensions.memory import EncryptedSession, SQLAlchemyMetadataSession, SQLAlchemySession
from agents.memory import OpenAIResponsesCompactionSession
from agents.testing import ScriptedModel
from tests.test_responses import get_text_message

pytestmark = pytest.mark.asyncio

HELLO: TResponseInputItem = {"role": "user", "content": "Hello"}
SUMMARY = {"type": "compaction", "encrypted_content": "summary"}
VALUES: dict[str, Any] = {
    "string": "x",
    "empty": "",
    "number": 1,
    "big": 2**70,
    "float": 0.1,
    "true": True,
    "false": False,
    "null": None,
    "list": ["work", 1, None],
    "object": {"b": {"a": []}, "a": 1.5},
    "unicode": "caf\u00e9 \u0000 \U0001f600 \ud800",
    "long": "x" * 100_000,
}


class Database:
    """An engine and tables of its own for one test."""

    KINDS = ("metadata", "messages", "sessions")

    def __init__(self, url: str) -> None:
        self.engine = create_async_engine(url)
        self.names = {f"{kind}_table": f"{kind}_{uuid4().hex[:8]}" for kind in self.KINDS}

    def session(self, session_id: str = "chat-1", **kwargs: Any) -> SQLAlchemyMetadataSession:
        return SQLAlchemyMetadataSession(
            session_id, engine=self.engine, create_tables=True, **self.names, **kwargs
        )

    def plain_session(self, session_id: str = "chat-1") -> SQLAlchemySession:
        """Return what an application without the new class would use on the same tables."""
        names = {kind: name for kind, name in self.names.items() if kind != "metadata_table"}
        return SQLAlchemySession(session_id, engine=self.engine, create_tables=True, **names)

    async def execute(self, statement: str) -> Any:
        async with self.engine.begin() as connection:
            result = await connection.execute(text(statement.format(**self.names)))
            return result.all() if result.returns_rows else None

    async def stored(self) -> list[str]:
        """Return the keys of all sessions, also those that no session would show."""
        return [row[0] for row in await self.execute("SELECT key FROM {metadata_table} ORDER BY 1")]


@pytest_asyncio.fixture(params=["file", "memory", "url"], loop_scope="function")
async def database(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    urls = {
        "file": f"sqlite+aiosqlite:///{tmp_path / 'sessions.db'}",
        "memory": "sqlite+aiosqlite:///:memory:",
        "url": os.environ.get("SQLALCHEMY_TEST_URL"),
    }
    database = Database(urls[request.param] or pytest.skip("SQLALCHEMY_TEST_URL is not set"))
    yield database
    if request.param == "url":
        for kind in Database.KINDS:
            await database.execute(f"DROP TABLE IF EXISTS {{{kind}_table}}")
    await database.engine.dispose()


def compacting(session: Any, output: list[Any]) -> OpenAIResponsesCompactionSession:
    client = MagicMock()
    client.responses.compact = AsyncMock(return_value=SimpleNamespace(output=output))
    return OpenAIResponsesCompactionSession(
        session.session_id, session, client=client, compaction_mode="input"
    )


async def test_values_come_out_as_they_went_in(database: Database) -> None:
    await database.session().set_metadata(VALUES)

    stored = await database.session().get_metadata()
    assert stored == VALUES
    assert {key: type(value) for key, value in stored.items()} == {
        key: type(value) for key, value in VALUES.items()
    }
    assert await database.session("chat-2").get_metadata() == {}


async def test_set_metadata_replaces_only_the_given_keys(database: Database) -> None:
    session = database.session()
    await session.set_metadata({"owner_id": "user-1", "title": "Old", "tags": ["a"]})
    await session.set_metadata({"title": "New", "tags": None})
    await session.set_metadata({})

    assert await session.get_metadata() == {"owner_id": "user-1", "title": "New", "tags": None}
    assert await session.find_sessions_by_metadata("title", "Old") == []
    assert await session.find_sessions_by_metadata("tags", None) == ["chat-1"]


async def test_get_metadata_with_keys(database: Database) -> None:
    session = database.session()
    await session.set_metadata({"a": 1, "b": 2})

    assert await session.get_metadata(["b", "missing"]) == {"b": 2, "missing": None}
    assert await session.get_metadata(key for key in ("a", "b")) == {"a": 1, "b": 2}
    assert await session.get_metadata([]) == {}


async def test_delete_metadata_keeps_the_session(database: Database) -> None:
    session = database.session()
    await session.add_items([HELLO])
    await session.set_metadata({"a": 1, "b": 2, "c": 3})

    assert await session.delete_metadata([]) == 0
    assert await session.delete_metadata(["a", "missing"]) == 1
    assert await session.get_metadata() == {"b": 2, "c": 3}
    assert await session.delete_metadata() == 2
    assert await session.delete_metadata() == 0
    assert await database.session("missing").delete_metadata() == 0
    assert await session.get_items() == [HELLO]


async def test_a_string_is_no_list_of_keys(database: Database) -> None:
    session = database.session()
    await session.set_metadata({"a": 1})

    with pytest.raises(TypeError, match="got the string 'a'"):
        await session.get_metadata("a")
    with pytest.raises(TypeError, match="got the string 'a'"):
        await session.delete_metadata("a")
    assert await session.get_metadata() == {"a": 1}


@pytest.mark.parametrize("value", [float("nan"), {1}, object()], ids=["nan", "set", "object"])
async def test_what_is_not_json_is_refused_as_a_whole(database: Database, value: Any) -> None:
    session = database.session()
    with pytest.raises((TypeError, ValueError)):
        await session.set_metadata({"a": 1, "b": value})
    with pytest.raises((TypeError, ValueError)):
        await session.find_sessions_by_metadata("a", value)
    assert await session.get_metadata() == {}


async def test_a_failed_write_changes_nothing(database: Database) -> None:
    session = database.session()
    await session.set_metadata({"title": "Old"})
    key: Any = object()  # No driver can bind it.
    with pytest.raises(StatementError):
        await session.set_metadata({"title": "New", key: 1})
    assert await session.get_metadata() == {"title": "Old"}


@pytest.mark.parametrize(
    "value, same, others",
    [
        (1, [1.0], ["1", True, 2, [1], None]),
        (0, [-0.0], [False, "", None]),
        (True, [], [1, "true", False]),
        (None, [], [0, "", "null", False, []]),
        ("Work", [], ["work", "Work ", "W\u00f6rk", "Wor", ["Work"]]),
        (10**22, [1e22], [10**22 + 1]),
        ([1, 2], [[1.0, 2]], [[2, 1], [1], [1, 2, 2], "[1, 2]"]),
        ({"a": 1, "b": 2}, [{"b": 2, "a": 1.0}], [{"a": 1}, {"a": 1, "b": "2"}]),
    ],
    ids=["int", "zero", "true", "null", "string", "big", "list", "object"],
)
async def test_find_compares_type_and_value(
    database: Database, value: Any, same: list[Any], others: list[Any]
) -> None:
    session = database.session()
    await session.set_metadata({"key": value, "other": "other"})

    for equal in [value, *same]:
        assert await session.find_sessions_by_metadata("key", equal) == ["chat-1"], equal
    for different in others:
        assert await session.find_sessions_by_metadata("key", different) == [], different
    assert await session.find_sessions_by_metadata("Key", value) == []
    assert await session.find_sessions_by_metadata("other", value) == []


async def test_find_lists_the_most_recently_active_session_first(database: Database) -> None:
    for session_id in ("b", "a", "c", "other"):
        session = database.session(session_id)
        await session.add_items([HELLO])
        await session.set_metadata({"owner_id": "user-2" if session_id == "other" else "user-1"})
    await database.session("b").add_items([HELLO])
    find = database.session("anything").find_sessions_by_metadata

    assert await find("owner_id", "user-1") == ["b", "c", "a"]
    assert await find("owner_id", "user-1", limit=2) == ["b", "c"]
    await database.execute(
        "UPDATE {sessions_table} SET updated_at = '2001-01-01 00:00:00' WHERE session_id = 'b'"
    )
    assert await find("owner_id", "user-1") == ["c", "a", "b"]


async def test_writing_metadata_does_not_change_updated_at(database: Database) -> None:
    session = database.session()
    await session.add_items([HELLO])
    await database.execute("UPDATE {sessions_table} SET updated_at = '2001-01-01 00:00:00'")
    before = await database.execute("SELECT created_at, updated_at FROM {sessions_table}")

    await session.set_metadata({"a": 1, "b": 2})
    await session.set_metadata({"a": 2})
    await session.delete_metadata(["b"])
    assert await database.execute("SELECT created_at, updated_at FROM {sessions_table}") == before


async def test_metadata_before_the_first_message(database: Database) -> None:
    session = database.session()
    await session.set_metadata({"title": "Empty"})
    assert await database.plain_session().get_items() == []
    await session.add_items([HELLO])

    assert await session.get_items() == [HELLO]
    assert await session.get_metadata() == {"title": "Empty"}
    assert len(await database.execute("SELECT session_id FROM {sessions_table}")) == 1


@pytest.mark.parametrize("writer", ["session", "plain session", "sql"])
async def test_metadata_is_deleted_with_the_session(database: Database, writer: str) -> None:
    session = database.session()
    await session.set_metadata({"owner_id": "user-1"})
    await database.session("kept").set_metadata({"kept": 1})

    if writer == "session":
        await session.clear_session()
    elif writer == "plain session":
        await database.plain_session().clear_session()
    else:
        await database.execute("DELETE FROM {sessions_table} WHERE session_id = 'chat-1'")
    assert await database.stored() == ["kept"]
    await session.add_items([HELLO])
    assert await session.get_metadata() == {}


async def test_tables_are_added_to_those_of_the_plain_session(database: Database) -> None:
    await database.plain_session().add_items([HELLO])
    session = database.session()

    assert await session.get_metadata() == {}
    await session.set_metadata({"a": 1})
    assert await session.get_items() == [HELLO]
    await database.plain_session().clear_session()
    assert await database.stored() == []


async def test_concurrent_first_writers(database: Database) -> None:
    await asyncio.gather(
        *(database.session().set_metadata({"same": i, f"key-{i}": i}) for i in range(10)),
        *(database.plain_session().add_items([HELLO]) for _ in range(5)),
    )

    stored = await database.session().get_metadata()
    last = stored.pop("same")
    assert stored == {f"key-{i}": i for i in range(10)}
    assert await database.session().find_sessions_by_metadata("same", last) == ["chat-1"]
    assert len(await database.session().get_items()) == 5


async def test_a_cancelled_write_settles_first(database: Database) -> None:
    session = database.session()
    await session.set_metadata({"a": 0})
    writing = asyncio.create_task(session.set_metadata({"a": 1, "b": 1}))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing

    # All of it or nothing, and nothing of it later.
    settled = await session.get_metadata()
    assert settled in ({"a": 0}, {"a": 1, "b": 1})
    await session.set_metadata({"c": 1})
    assert await session.get_metadata() == {**settled, "c": 1}


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("output", [[SUMMARY], []], ids=["summary", "empty"])
async def test_compaction_keeps_metadata(
    database: Database, output: list[Any], encrypted: bool
) -> None:
    session = database.session()
    await session.set_metadata({"title": "Kept"})
    await session.add_items([HELLO, HELLO])
    await database.execute("UPDATE {sessions_table} SET created_at = '2001-01-01 00:00:00'")
    created = await database.execute("SELECT created_at FROM {sessions_table}")
    compaction: Any = compacting(session, output)
    if encrypted:
        outer: Any = EncryptedSession("chat-1", compaction, encryption_key="test key")
        await outer.add_items([HELLO])

    await compaction.run_compaction({"force": True})
    assert await session.get_items() == output
    assert await session.get_metadata() == {"title": "Kept"}
    assert await database.execute("SELECT created_at FROM {sessions_table}") == created


async def test_compaction_that_fails_changes_nothing(database: Database) -> None:
    session = database.session()
    await session.set_metadata({"title": "Kept"})
    await session.add_items([HELLO])
    with pytest.raises(TypeError):
        await compacting(session, [{"type": "compaction", "id": object()}]).run_compaction(
            {"force": True}
        )

    assert await session.get_items() == [HELLO]
    assert await session.get_metadata() == {"title": "Kept"}


@pytest.mark.parametrize("subclass", [False, True])
async def test_automatic_compaction_of_a_limited_history(
    database: Database, subclass: bool
) -> None:
    class Transforming(SQLAlchemyMetadataSession):
        """Its history may be more than its rows, so the SDK must not replace a part of it."""

    session: Any = database.session(session_settings={"limit": 20})
    if subclass:
        session = Transforming(
            "chat-1", engine=database.engine, session_settings={"limit": 20}, **database.names
        )
    await database.session().set_metadata({"title": "Kept"})
    hidden: TResponseInputItem = {"role": "user", "content": "older than the limit"}
    turns: list[TResponseInputItem] = [
        {"role": "assistant" if i % 2 else "user", "content": f"item {i}"} for i in range(20)
    ]
    await session.add_items([hidden, *turns])
    agent = Agent(name="test", model=ScriptedModel(steps=[[get_text_message("done")]]))
    compaction = compacting(session, [])
    await Runner.run(agent, "Continue", session=compaction)

    items = await session.get_items(limit=100)
    assert items == [hidden] if not subclass else len(items) == 23
    assert await session.get_metadata() == {"title": "Kept"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_runner_integration(database: Database, streamed: bool) -> None:
    session = database.session()
    await session.set_metadata({"owner_id": "user-1"})
    agent = Agent(name="test", model=ScriptedModel(steps=[[get_text_message("Hi")]]))

    if streamed:
        result = Runner.run_streamed(agent, "Hello", session=session)
        async for _ in result.stream_events():
            pass
    else:
        await Runner.run(agent, "Hello", session=session)
    assert len(await session.get_items()) == 2
    assert await session.find_sessions_by_metadata("owner_id", "user-1") == ["chat-1"]


@pytest.mark.parametrize("name", ["a%b", 'we"ird', "we'ird", "two words", "select"])
async def test_any_name_of_a_table_is_quoted(database: Database, name: str) -> None:
    """Here, a session is deleted by the plain class, so that the trigger is needed."""
    plain_names = dict(database.names)
    database.names = {kind: f"{name} {own}" for kind, own in plain_names.items()}
    session = database.session()
    try:
        await session.set_metadata({"a": 1})
        await session.add_items([HELLO])
        assert await session.find_sessions_by_metadata("a", 1) == ["chat-1"]
        await database.plain_session().clear_session()
        assert await session.get_metadata() == {}
    finally:
        async with database.engine.begin() as connection:
            await connection.run_sync(session._metadata.drop_all)
        database.names = plain_names


async def test_from_url_with_default_tables(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'sessions.db'}"
    session = SQLAlchemyMetadataSession.from_url(
        "chat-1", url=url, create_tables=True, ensure_ascii=False
    )
    await session.set_metadata({"a": 1})

    reopened = SQLAlchemyMetadataSession.from_url("chat-1", url=url)
    assert await reopened.get_metadata() == {"a": 1}
    async with reopened.engine.connect() as connection:
        assert (await connection.execute(text("SELECT key FROM agent_metadata"))).all() == [("a",)]
    await session.engine.dispose()
    await reopened.engine.dispose()

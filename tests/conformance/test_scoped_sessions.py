"""Session objects that a scoped catalog hands out stay inside."""

from __future__ import annotations

import contextlib

import pytest
from agents import Agent, RunConfig, Runner
from agents.memory import OpenAIResponsesCompactionSession, SessionSettings
from agents.testing import ScriptedModel, assistant_message
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import (
    ScopeError,
    SessionCatalog,
    SessionExistsError,
    SessionNotFoundError,
    TablesMissingError,
)
from agents_session_metadata.runs.feature import RUNS
from agents_session_metadata.threads.rows import THREADS
from agents_session_metadata.usage.feature import USAGE
from conformance import raw
from conformance.compaction import Client
from conformance.triggers import drop_triggers


def change_title(metadata) -> None:
    metadata["title"] = "changed"


async def test_a_session_inside_is_a_session(mine, everyone):
    session = mine.session("mine-0")
    await session.add_items([raw.message("b")])
    assert await session.get_items(limit=1) == [raw.message("b")]
    assert await session.pop_item() == raw.message("b")
    await session.set_metadata({"title": "changed", "owner_id": "mine"})
    await session.edit_metadata(lambda metadata: metadata.update(a=1))
    assert await session.get_metadata(["title", "a"]) == {"title": "changed", "a": 1}
    found = await session.find_sessions_by_metadata({"shared": [1]})
    assert sorted(found) == ["mine-0", "mine-1"]
    with pytest.raises(ScopeError):
        await session.set_metadata({"owner_id": "theirs"})
    with pytest.raises(ScopeError):
        await session.delete_metadata(["owner_id"])
    assert await session.delete_metadata() == 4
    assert await everyone.get_metadata("mine-0") == {"owner_id": "mine"}
    await session.clear_session()
    assert await everyone.get_session("mine-0") is None


async def test_a_session_outside_does_not_exist(mine):
    session = mine.session("theirs-0")
    assert await session.get_items() == []
    assert await session.get_items(limit=5) == []
    assert await session.get_metadata() == {}
    assert await session.get_metadata(["title"]) == {"title": None}
    assert await session.find_sessions_by_metadata("title", "theirs 0") == []
    assert await session.find_sessions_by_metadata({"$session_id": "theirs-0"}) == []
    assert await session.pop_item() is None
    await session.clear_session()
    for write in (
        lambda: session.add_items([raw.message("b")]),
        lambda: session.set_metadata({"title": "b"}),
        lambda: session.edit_metadata(change_title),
    ):
        with pytest.raises(SessionNotFoundError):
            await write()


@pytest.mark.logic
async def test_the_catalog_of_a_scoped_session_is_scoped(mine):
    session = mine.session("mine-0")
    assert await session.catalog.count_sessions() == 2
    assert await session.catalog.get_session("theirs-0") is None
    made = await mine.create_session("new")
    assert await made.catalog.count_sessions() == 3
    found, _ = await mine.get_or_create_session({"title": "mine 0"})
    assert await found.catalog.session("theirs-0").get_items() == []


async def test_a_session_that_left_the_scope_is_outside(mine, everyone):
    session = await mine.create_session("moved")
    await session.add_items([raw.message("a")])
    await everyone.set_metadata("moved", {"owner_id": "somebody"})
    assert await session.get_items() == []
    assert await session.get_metadata() == {}
    assert await session.pop_item() is None
    await session.clear_session()
    with pytest.raises(SessionNotFoundError):
        await session.add_items([raw.message("b")])
    assert await everyone.session("moved").get_items() == [raw.message("a")]
    assert await everyone.get_metadata("moved") == {"owner_id": "somebody"}


@pytest.mark.parametrize(
    "write",
    [
        lambda session: session.add_items([raw.message("a")]),
        lambda session: session.set_metadata({"title": "a"}),
        lambda session: session.edit_metadata(change_title),
    ],
    ids=["add", "set", "edit"],
)
async def test_what_a_scoped_session_makes_is_inside(mine, everyone, write):
    with contextlib.suppress(SessionNotFoundError):
        await write(mine.session("new"))
    assert await everyone.count_sessions() == 4 + await mine.count_sessions({"$session_id": "new"})


@pytest.mark.logic
@pytest.mark.parametrize("session_id", ["", "x" * 256, "a\0b"])
async def test_an_id_that_cannot_have_metadata_is_in_no_scope(mine, session_id):
    session = mine.session(session_id)
    with pytest.raises(ValueError, match="session id"):
        await session.add_items([raw.message("a")])
    assert await session.get_items() == []
    assert await session.pop_item() is None
    await session.clear_session()
    assert await mine.count_sessions() == 2


@pytest.mark.logic
async def test_nothing_is_made_in_a_scope_without_our_tables(database):
    engine = database.engine()
    await raw.create_sdk_tables(engine)
    session = SessionCatalog(engine).scoped({"owner_id": "mine"}).session("new")
    for call in (
        lambda: session.add_items([raw.message("a")]),
        session.get_items,
        session.pop_item,
        session.clear_session,
    ):
        with pytest.raises(TablesMissingError):
            await call()
    assert await raw.count_rows(engine, "agent_sessions") == 0


@pytest.mark.logic
async def test_a_limit_counts_items_in_a_scope(mine, everyone):
    session = mine.session("mine-0")
    await session.clear_session()
    await session.add_items([raw.message(str(number)) for number in range(5)])
    broken = "INSERT INTO agent_messages (session_id, message_data) VALUES ('mine-0', 'no json')"
    for _ in range(3):
        await raw.execute(everyone.engine, broken)
    for limit in (None, 0, 1, 2, 5, 9):
        expected = await everyone.session("mine-0").get_items(limit)
        assert await session.get_items(limit) == expected
    session.session_settings = SessionSettings(limit=2)
    assert await session.get_items() == expected[-2:]


@pytest.mark.logic
async def test_compaction_stays_inside(mine, everyone):
    client = Client([raw.message("summary")])
    inside = OpenAIResponsesCompactionSession("mine-0", mine.session("mine-0"), client=client)
    await inside.run_compaction({"force": True, "compaction_mode": "input"})
    assert await everyone.session("mine-0").get_items() == [raw.message("summary")]
    assert (await everyone.get_metadata("mine-0"))["owner_id"] == "mine"
    outside = OpenAIResponsesCompactionSession("theirs-0", mine.session("theirs-0"), client=client)
    with pytest.raises(SessionNotFoundError):
        await outside.run_compaction({"force": True, "compaction_mode": "input"})
    assert "theirs" not in str(client.requests)


@pytest.mark.logic
async def test_an_agent_stays_inside(mine):
    client = Client([raw.message("summary")])
    for session in (
        mine.session("theirs-0"),
        OpenAIResponsesCompactionSession(
            "theirs-0",
            mine.session("theirs-0"),
            client=client,
            should_trigger_compaction=lambda _: True,
        ),
    ):
        model = ScriptedModel([[assistant_message("done")]])
        with pytest.raises(SessionNotFoundError):
            await Runner.run(
                Agent(name="worker", model=model),
                "hello",
                session=session,
                run_config=RunConfig(tracing_disabled=True),
            )
        assert "theirs" not in str([call.input for call in model.calls])
    assert client.requests == []


OWN = "agent_sessions_metadata"
TIME = "2020-01-01T00:00:00Z"
RECORD = {
    "format": 1,
    "session_id": "lost",
    "created_at": TIME,
    "updated_at": TIME,
    "metadata": {},
    "items": [],
}


@pytest.mark.logic
async def test_a_history_without_a_session_belongs_to_no_scope(everyone, engine):
    mine = everyone.scoped({"owner_id": "mine"})
    await drop_triggers(engine)
    await raw.drop_foreign_keys(engine, "agent_messages")
    lost = "(session_id, message_data) VALUES ('lost', '{}')"
    await raw.execute(engine, f"INSERT INTO agent_messages {lost}")
    session = mine.session("lost")
    for writing in (
        mine.create_session("lost"),
        mine.set_metadata("lost", {"title": "new"}),
        mine.edit_metadata("lost", change_title),
        session.add_items([raw.message("mine")]),
        mine.fork_session("mine-0", "lost"),
        mine.import_sessions([RECORD]),
        mine.import_sessions([RECORD], "replace"),
    ):
        with pytest.raises((SessionExistsError, SessionNotFoundError)):
            await writing
    assert await mine.import_sessions([RECORD], "skip") == 0
    assert await session.get_items() == []
    assert await everyone.get_session("lost") is None
    assert await raw.count_rows(engine, "agent_messages", session_id="lost") == 1
    await everyone.session("lost").set_metadata({"owner_id": "mine"})
    assert await session.get_items() == [{}]


@pytest.mark.not_on("sqlite")  # It has no privileges.
async def test_creating_needs_no_rights_on_optional_tables(everyone, database):
    for group in (RUNS, THREADS, USAGE):
        await everyone._store.database.ensure(group)
    core = ("agent_sessions", "agent_messages", OWN, f"{OWN}_elements")
    name = make_url(database.url).database
    user = f"core_{name}"[:30]
    if database.kind == "postgresql":
        login, of_user = f"CREATE ROLE {user} LOGIN", user
        drops = [f"DROP OWNED BY {user}", f"DROP ROLE {user}"]
    else:
        login, of_user = f"CREATE USER {user}@'%'", f"{user}@'%'"
        drops = [f"DROP USER {user}"]
    grants = [f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {of_user}" for table in core]
    if database.kind == "postgresql":
        grants.append(f"GRANT USAGE ON SEQUENCE agent_messages_id_seq TO {user}")
    # A right other than reading.
    grants.append(f"GRANT INSERT ON {OWN}_usage TO {of_user}")
    engine = create_async_engine(make_url(database.url).set(username=user))
    try:
        for statement in (login, *grants):
            await raw.execute(everyone.engine, statement)
        mine = SessionCatalog(engine).scoped({"owner_id": "mine"})
        await mine.create_session("new")
        await mine.session("newer").add_items([raw.message("hello")])
        await mine.set_metadata("newer", {"title": "newer"})
        page = await mine.list_sessions(limit=1)
        assert [each.session_id for each in page.sessions] == ["newer"]
    finally:
        await engine.dispose()
        for drop in drops:
            await raw.execute(everyone.engine, drop)

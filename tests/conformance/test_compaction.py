"""Replacing a history is not ending the session."""

from __future__ import annotations

import asyncio
import contextlib
import re

import pytest
from agents import Agent, RunConfig, Runner
from agents.extensions.memory import EncryptedSession
from agents.memory import OpenAIResponsesCompactionSession
from agents.testing import ScriptedModel, assistant_message
from sqlalchemy import event

from agents_session_metadata import SQLAlchemyMetadataSession
from conformance import raw
from conformance.compaction import Client

pytestmark = pytest.mark.logic

SUMMARY = {"type": "compaction", "id": "cmp", "encrypted_content": "a summary"}
METADATA = {"owner_id": "u1", "tags": ["work"], "none": None}
KEY = "a key of the tests"
FORCE = {"force": True, "compaction_mode": "input"}


@pytest.fixture
async def session(engine):
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True)
    await fill(session)
    return session


async def fill(session) -> list[raw.Item]:
    """A history of 24 items, metadata, and a row from long ago."""
    items = [
        raw.message(f"item {number}", "assistant" if number % 2 else "user") for number in range(24)
    ]
    await session.add_items(items)
    await session.set_metadata(METADATA)
    await raw.set_times(session.engine, "chat")
    return items


def always(context) -> bool:
    return True


async def run(session, *, streamed: bool) -> None:
    agent = Agent(name="worker", model=ScriptedModel([[assistant_message("done")]]))
    config = RunConfig(tracing_disabled=True)
    if streamed:
        result = Runner.run_streamed(agent, "continue", session=session, run_config=config)
        async for _ in result.stream_events():
            pass
    else:
        await Runner.run(agent, "continue", session=session, run_config=config)


async def assert_alive(session: SQLAlchemyMetadataSession) -> None:
    """Metadata and `created_at` are what they were, in the row and in the index of elements."""
    assert await session.get_metadata() == METADATA
    assert (await raw.times(session.engine, "chat"))[0].startswith("2020-01-01 00:00:00")
    where = {"owner_id": "u1", "tags": {"$contains": "work"}}
    assert await session.find_sessions_by_metadata(where) == ["chat"]


@contextlib.contextmanager
def on_statement(engine, pattern: str, action):
    """Calls `action` before each statement that matches."""

    def before(connection, cursor, statement, *_):
        if re.search(pattern, statement, re.IGNORECASE):
            action()

    event.listen(engine.sync_engine, "before_cursor_execute", before)
    try:
        yield
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", before)


async def test_manual(session):
    compaction = OpenAIResponsesCompactionSession("chat", session, client=Client([SUMMARY]))
    await compaction.run_compaction(FORCE)
    assert await session.get_items() == [SUMMARY]
    await assert_alive(session)
    assert (await raw.times(session.engine, "chat"))[1] > "2021"
    await compaction.add_items([raw.message("next")])
    await compaction.run_compaction(FORCE)
    assert await session.get_items() == [SUMMARY]
    await assert_alive(session)


async def test_compaction_to_nothing(session):
    compaction = OpenAIResponsesCompactionSession("chat", session, client=Client([]))
    await compaction.run_compaction(FORCE)
    assert await session.get_items() == []
    await assert_alive(session)


async def test_many_and_long_items(session):
    output = [raw.message("ä" * 5_000 + str(number)) for number in range(200)]
    compaction = OpenAIResponsesCompactionSession("chat", session, client=Client(output))
    await compaction.run_compaction(FORCE)
    assert await session.get_items() == output
    await assert_alive(session)


async def test_another_session_is_not_touched(session, engine):
    other = SQLAlchemyMetadataSession("other", engine=engine)
    await other.add_items([raw.message("other")])
    await other.set_metadata({"a": 1})
    await OpenAIResponsesCompactionSession(
        "chat", session, client=Client([SUMMARY])
    ).run_compaction(FORCE)
    assert await other.get_items() == [raw.message("other")]
    assert await other.get_metadata() == {"a": 1}


@pytest.mark.parametrize("streamed", [False, True])
async def test_automatic(session, streamed):
    client = Client([SUMMARY])
    compaction = OpenAIResponsesCompactionSession(
        "chat", session, client=client, should_trigger_compaction=always
    )
    await run(compaction, streamed=streamed)
    assert len(client.requests) == 1
    assert await session.get_items() == [SUMMARY]
    await assert_alive(session)
    await run(compaction, streamed=streamed)
    assert len(client.requests) == 2
    assert await session.get_items() == [SUMMARY]
    await assert_alive(session)


@pytest.mark.parametrize("streamed", [False, True])
async def test_bounded_history_compacts_what_the_model_saw(engine, streamed):
    session = SQLAlchemyMetadataSession(
        "chat", engine=engine, create_tables=True, session_settings={"limit": 10}
    )
    items = await fill(session)
    client = Client([SUMMARY])
    compaction = OpenAIResponsesCompactionSession(
        "chat", session, client=client, should_trigger_compaction=always
    )
    await run(compaction, streamed=streamed)
    assert len(client.requests) == 1
    assert "item 13" not in str(client.requests)
    assert "item 14" in str(client.requests)
    assert await session.get_items(limit=100) == [*items[:14], SUMMARY]
    await assert_alive(session)


@pytest.mark.parametrize("on_clear", ["delete", "keep"])
@pytest.mark.parametrize("automatic", [False, True])
async def test_encrypted_around_compaction(engine, on_clear, automatic):
    session = SQLAlchemyMetadataSession(
        "chat", engine=engine, create_tables=True, on_clear=on_clear
    )
    compaction = OpenAIResponsesCompactionSession(
        "chat", session, client=Client([SUMMARY]), should_trigger_compaction=always
    )
    encrypted = EncryptedSession("chat", compaction, encryption_key=KEY)
    await encrypted.add_items([raw.message("a"), raw.message("b", "assistant")])
    await session.set_metadata(METADATA)
    await raw.set_times(engine, "chat")
    if automatic:
        await run(encrypted, streamed=False)
    else:
        await encrypted.run_compaction(FORCE)
    assert await encrypted.get_items() == [SUMMARY]
    assert "a summary" not in str(await session.get_items())
    await assert_alive(session)


@pytest.mark.parametrize("automatic", [False, True])
async def test_compaction_around_encrypted_needs_keep(engine, automatic):
    session = SQLAlchemyMetadataSession("chat", engine=engine, create_tables=True, on_clear="keep")
    encrypted = EncryptedSession("chat", session, encryption_key=KEY)
    compaction = OpenAIResponsesCompactionSession(
        "chat", encrypted, client=Client([SUMMARY]), should_trigger_compaction=always
    )
    await compaction.add_items([raw.message("a"), raw.message("b", "assistant")])
    await session.set_metadata(METADATA)
    await raw.set_times(engine, "chat")
    if automatic:
        await run(compaction, streamed=False)
    else:
        await compaction.run_compaction(FORCE)
    assert await compaction.get_items() == [SUMMARY]
    await assert_alive(session)


async def test_an_item_that_is_no_json_leaves_the_old_history(session):
    before = await session.get_items()
    client = Client([SUMMARY, {"type": "message", "role": "assistant", "content": object()}])
    compaction = OpenAIResponsesCompactionSession("chat", session, client=client)
    with pytest.raises(TypeError):
        await compaction.run_compaction(FORCE)
    assert await session.get_items() == before
    await assert_alive(session)


@pytest.mark.parametrize("automatic", [False, True])
@pytest.mark.parametrize(
    "pattern", [r"DELETE FROM .?agent_messages", r"INSERT INTO .?agent_messages"]
)
async def test_a_failure_in_the_middle_leaves_the_old_history(session, pattern, automatic):
    before = await session.get_items()
    replacing = False

    async def compacting():
        nonlocal replacing
        replacing = True

    def fail():
        if replacing:
            raise RuntimeError("the disk is full")

    compaction = OpenAIResponsesCompactionSession(
        "chat",
        session,
        client=Client([SUMMARY], compacting),
        should_trigger_compaction=always,
    )
    call = run(compaction, streamed=False) if automatic else compaction.run_compaction(FORCE)
    with (
        on_statement(session.engine, pattern, fail),
        pytest.raises(RuntimeError, match="the disk is full"),
    ):
        await call
    after = await session.get_items()
    assert after[: len(before)] == before
    assert len(after) == len(before) + (2 if automatic else 0)
    await assert_alive(session)


@pytest.mark.parametrize("automatic", [False, True])
@pytest.mark.parametrize(
    "pattern", [r"DELETE FROM .?agent_messages", r"INSERT INTO .?agent_messages"]
)
async def test_a_cancellation_in_the_middle_replaces_all_or_nothing(session, pattern, automatic):
    before = await session.get_items()
    replacing = False

    async def compacting():
        nonlocal replacing
        replacing = True

    compaction = OpenAIResponsesCompactionSession(
        "chat",
        session,
        client=Client([SUMMARY], compacting),
        should_trigger_compaction=always,
    )
    call = run(compaction, streamed=False) if automatic else compaction.run_compaction(FORCE)
    task = asyncio.create_task(call)

    def cancel():
        if replacing:
            task.cancel()

    with on_statement(session.engine, pattern, cancel), pytest.raises(asyncio.CancelledError):
        await task
    after = await session.get_items()
    assert after == [SUMMARY] or after[: len(before)] == before
    await assert_alive(session)
    # Nothing is left locked.
    await session.add_items([raw.message("next")])
    await session.set_metadata({"next": 1})


async def test_a_cancelled_request_changes_nothing(session):
    before = await session.get_items()
    asked = asyncio.Event()

    async def never_answers():
        asked.set()
        await asyncio.Event().wait()

    client = Client([SUMMARY], never_answers)
    compaction = OpenAIResponsesCompactionSession("chat", session, client=client)
    task = asyncio.create_task(compaction.run_compaction(FORCE))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await session.get_items() == before
    await assert_alive(session)


async def test_a_failing_request_changes_nothing(session):
    before = await session.get_items()

    async def fails():
        raise RuntimeError("no network")

    compaction = OpenAIResponsesCompactionSession("chat", session, client=Client([], fails))
    with pytest.raises(RuntimeError, match="no network"):
        await compaction.run_compaction(FORCE)
    assert await session.get_items() == before
    await assert_alive(session)


async def test_clearing_through_a_compaction_session_ends_the_session(session, engine):
    compaction = OpenAIResponsesCompactionSession("chat", session, client=Client([SUMMARY]))
    await compaction.clear_session()
    assert await session.get_metadata() == {}
    assert await raw.count_rows(engine, "agent_sessions") == 0
    assert await raw.metadata_rows(engine) == 0


async def test_a_session_deleted_while_it_compacts_does_not_keep_its_metadata(session, engine):
    # Whoever wins, old metadata does not come back.
    async def deletes():
        await SQLAlchemyMetadataSession("chat", engine=engine).clear_session()

    compaction = OpenAIResponsesCompactionSession(
        "chat", session, client=Client([SUMMARY], deletes)
    )
    with contextlib.suppress(LookupError):
        await compaction.run_compaction(FORCE)
    assert await session.get_metadata() == {}
    assert await raw.metadata_rows(engine) == 0

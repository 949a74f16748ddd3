"""Trackers: trace ids, streams, and events outside the block."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator

import pytest
from agents import RunConfig, Runner, function_tool, trace
from agents.memory import OpenAIResponsesCompactionSession
from agents.tracing import set_trace_processors, set_tracing_disabled
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from agents_session_metadata import SessionCatalog, SessionTracker, keys
from conformance.running import Recording, agent, calls

pytestmark = pytest.mark.logic


@function_tool
async def look() -> str:
    return "done"


@pytest.fixture
def tracing(monkeypatch):
    """Traces that are made and go nowhere."""
    monkeypatch.delenv("OPENAI_AGENTS_DISABLE_TRACING", raising=False)
    set_trace_processors([])
    set_tracing_disabled(False)
    yield
    set_tracing_disabled(True)


async def test_trace_ids(session, tracing):
    seen = []
    for _ in range(22):
        async with SessionTracker(session) as hooks:
            with trace("run") as current:
                await Runner.run(agent("a", "done"), "hello", hooks=hooks)
                await Runner.run(agent("a", "done"), "hello", hooks=hooks)
            seen.append(current.trace_id)
    assert (await session.get_metadata())[keys.TRACE_IDS] == seen[-20:]
    async with SessionTracker(session) as hooks:
        result = Runner.run_streamed(agent("a", "done"), "hello", hooks=hooks)
        async for _ in result.stream_events():
            pass
    newest = (await session.get_metadata())[keys.TRACE_IDS]
    assert newest[:-1] == seen[-19:]
    assert newest[-1] == result.trace.trace_id


async def test_no_trace_ids_without_tracing(session, tracing):
    quiet = RunConfig(tracing_disabled=True)
    async with SessionTracker(session) as hooks:
        await Runner.run(agent("a", "done"), "hello", hooks=hooks, run_config=quiet)
    assert keys.TRACE_IDS not in await session.get_metadata()


async def test_events_outside_the_block(session, caplog):
    own = Recording()
    tracker = SessionTracker(session, hooks=own)
    with caplog.at_level(logging.WARNING, logger="agents_session_metadata"):
        for _ in range(2):
            await Runner.run(agent("a", calls("look"), "done", tools=[look]), "hi", hooks=tracker)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "inside the block" in caplog.text
    assert await session.get_metadata() == {"owner_id": "u1"}
    assert len(own.seen) == 16
    async with tracker as hooks:
        await Runner.run(agent("a", "done"), "hello", hooks=hooks)
    assert (await session.get_metadata())[keys.RUNS] == 1
    assert len(caplog.records) == 1


async def test_a_stream_that_is_not_read_to_its_end(session, caplog):
    async with SessionTracker(session) as hooks:
        result = Runner.run_streamed(agent("a", "done"), "hello", session=session, hooks=hooks)
    async for _ in result.stream_events():
        pass
    assert result.final_output == "done"
    assert "inside the block" in caplog.text
    assert await session.get_metadata() == {"owner_id": "u1"}


async def test_what_is_no_session(catalog, engine):
    plain = catalog.session("chat")
    wrapped = OpenAIResponsesCompactionSession("chat", plain)
    for wrong in (catalog, type(plain), "chat", None, wrapped):
        with pytest.raises(TypeError, match="must be a session with metadata"):
            SessionTracker(wrong)


def application(session):
    """An application that streams an answer, as the guide shows it."""
    app = FastAPI()

    @app.get("/")
    async def answer() -> StreamingResponse:
        async def stream() -> AsyncIterator[str]:
            async with SessionTracker(session) as hooks:
                steps = calls("look"), "in Lisbon"
                result = Runner.run_streamed(
                    agent("a", *steps, tools=[look]), "where?", session=session, hooks=hooks
                )
                try:
                    async for event in result.stream_events():
                        yield f"{event.type}\n"
                finally:
                    result.cancel()

        return StreamingResponse(stream())

    return app


async def get(app, *, leaves: bool) -> bytes:
    """The body of its answer, to a client that may leave when it has three parts of it."""
    parts: list[bytes] = []
    ended = asyncio.Event()
    requests = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive():
        for request in requests:
            return request
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        parts.append(message.get("body", b""))
        if leaves and len(parts) > 3:
            ended.set()
            await asyncio.Event().wait()  # until the server cancels the answer

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [],
        "query_string": b"",
        "asgi": {"version": "3.0", "spec_version": "2.0"},
    }
    await app(scope, receive, send)
    return b"".join(parts)


async def test_a_streaming_response(session, catalog):
    assert (await get(application(session), leaves=False)).count(b"\n") > 3
    stored = await session.get_metadata()
    assert (stored[keys.RUNS], stored[keys.REQUESTS], stored[keys.TOTAL_TOKENS]) == (1, 2, 220)
    [total] = await catalog.usage(by=())
    assert total.requests == 2


async def test_a_client_that_leaves(shared_database):
    # The SDK cancels a statement of the run; that would end a database in memory.
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    session = await catalog.create_session("chat")
    assert (await get(application(session), leaves=True)).count(b"\n") == 3
    # Python closes the generator that was left behind in a task of its own.
    while keys.RUNS not in (stored := await session.get_metadata()):
        gc.collect()  # The generator may be part of a cycle.
        await asyncio.sleep(0.01)
    assert stored[keys.RUNS] == 1
    assert keys.ERROR_COUNT not in stored
    rows = await catalog.usage(by=())
    assert sum(row.requests for row in rows) == stored[keys.REQUESTS]

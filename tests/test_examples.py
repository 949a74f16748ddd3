"""Each example runs on every database, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import pytest
from agents import (
    Agent,
    ModelBehaviorError,
    Runner,
    RunResultStreaming,
    function_tool,
    handoff,
)
from agents.testing import ScriptedModel, function_call
from conformance import raw
from fastapi import FastAPI
from processes import run_program
from servers import Database
from sqlalchemy import Connection, inspect, text

from agents_session_metadata import SessionCatalog, SessionNotFoundError, SQLAlchemyMetadataSession

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICKSTART = EXAMPLES / "quickstart.py"
SCENARIOS = sorted({*EXAMPLES.glob("[!_]*.py")} - {QUICKSTART})

# The others use the same calls; on servers, they run nightly.
ON_EVERY_DATABASE = {"durable_run", "sidebar"}

by_name = pytest.mark.parametrize("example", SCENARIOS, ids=lambda path: path.stem)


def run(example: Path, directory: Path, url: str | None = None) -> str:
    """Run an example in a directory, on SQLite unless a URL is given; gives its output."""
    removed = {"OPENAI_API_KEY", "AGENT_SESSIONS_URL", "OPENAI_AGENTS_DISABLE_TRACING"}
    environment = {name: value for name, value in os.environ.items() if name not in removed}
    # Whatever a run leaves in the temporary directory is seen.
    environment["TMPDIR"] = str(directory)
    if url is not None:
        environment["AGENT_SESSIONS_URL"] = url
    result = run_program(example, directory=directory, environment=environment)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


async def rows(database: Database) -> dict[str, int]:
    """The number of rows in each table."""

    def names(connection: Connection) -> list[str]:
        return inspect(connection).get_table_names()

    async with database.engine().connect() as connection:
        counts = {}
        for name in await connection.run_sync(names):
            counted = await connection.execute(text(f"SELECT count(*) FROM {name}"))
            counts[name] = counted.scalar_one()
        return counts


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An empty directory."""
    directory = tmp_path / "empty"
    directory.mkdir()
    return directory


async def test_a_router_of_an_application_serves_each_user_their_own(
    shared_database, monkeypatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES / "router")
    app = FastAPI()
    app.include_router(importlib.import_module("chats").router, prefix="/chats")
    app.state.catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    await app.state.catalog.create_index("$text")
    client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test")

    async def call(method: str, path: str, status: int = 200, user: str = "u1", **more: Any) -> Any:
        headers = {"x-user": user, **more.pop("headers", {})}
        answer = await client.request(method, f"/chats{path}", headers=headers, **more)
        assert answer.status_code == status, answer.text
        return answer.json()

    async with client:
        chat = (await call("POST", "", 201, json={"content": "Which tram?"}))["id"]
        key = {"idempotency-key": "k"}
        message = {"json": {"id": "m1", "content": "Number 28?"}, "headers": key}
        [added] = await call("POST", f"/{chat}/items", **message)
        assert await call("POST", f"/{chat}/items", **message) == [added]
        again = {**message, "headers": {"idempotency-key": "k2"}}
        await call("POST", f"/{chat}/items", 409, **again)
        await call("POST", f"/{chat}/items", 422, **{**message, "json": {"content": "x"}})
        page = await call("GET", f"/{chat}/items", params={"around": added["id"]})
        assert [each["item"]["content"] for each in page["items"]] == ["Which tram?", "Number 28?"]
        await call("PUT", f"/{chat}/title", json={"title": "Trams"})
        [shown] = (await call("GET", ""))["conversations"]
        assert (shown["id"], shown["title"]) == (chat, "Trams")
        hits = (await call("GET", "/search", params={"q": "28"}))["hits"]
        assert [(hit["conversation"], hit["item"]["id"]) for hit in hits] == [(chat, "m1")]
        copy = (await call("POST", f"/{chat}/fork", 201, json={"before": added["id"]}))["id"]
        assert len((await call("GET", f"/{copy}/items"))["items"]) == 1
        await call("POST", f"/{chat}/rewind", 409, json={"expect_last": 1_000_000})
        assert await call("POST", f"/{chat}/rewind", json={}) == [added]
        for method, path, body in (
            ("GET", "items", None),
            ("POST", "items", message["json"]),
            ("PUT", "title", {"title": "x"}),
            ("POST", "fork", {}),
            ("POST", "rewind", {}),
        ):
            await call(method, f"/{chat}/{path}", 404, "u2", json=body, headers=key)
        assert (await call("GET", "", user="u2"))["conversations"] == []
        assert (await call("GET", "/search", user="u2", params={"q": "tram"}))["hits"] == []
        await call("GET", "/search", 400, params={"q": "-tram"})
        await call("GET", "", 400, params={"cursor": "x"})


def test_there_is_one_for_each_scenario() -> None:
    names = [path.stem for path in SCENARIOS]
    assert names == [
        "agent_identity",
        "approval_pause",
        "durable_run",
        "edit_and_retry",
        "last_session",
        "one_run_at_a_time",
        "resume_decision",
        "sidebar",
        "tool_workflow",
    ]


@pytest.mark.parametrize(
    "example",
    [
        path if path.stem in ON_EVERY_DATABASE else pytest.param(path, marks=pytest.mark.logic)
        for path in SCENARIOS
    ],
    ids=lambda path: path.stem,
)
async def test_runs_on_every_database(example, directory, shared_database) -> None:
    assert run(example, directory, shared_database.url)
    assert await rows(shared_database) == {}


@by_name
def test_runs_without_a_database(example, directory) -> None:
    assert run(example, directory)
    assert list(directory.iterdir()) == []


async def test_quickstart_runs_again_and_again(directory, shared_database) -> None:
    first = run(QUICKSTART, directory, shared_database.url)
    left = await rows(shared_database)
    assert left["agent_sessions"] == 2
    async with shared_database.engine().begin() as connection:
        # As an interrupted run leaves it.
        for insert in (
            "INSERT INTO agent_sessions (session_id) VALUES ('quickstart-3')",
            "INSERT INTO agent_messages (session_id, message_data) VALUES ('quickstart-3', '{}')",
        ):
            await connection.execute(text(insert))
    assert run(QUICKSTART, directory, shared_database.url) == first
    assert await rows(shared_database) == left


def test_quickstart_without_a_database(directory) -> None:
    output = run(QUICKSTART, directory)
    assert "of user_456:        ['quickstart-3']" in output
    assert "with the tag food:  ['quickstart-3']" in output
    assert output.endswith("of user_456: []\n")
    assert list(directory.iterdir()) == []


@pytest.fixture
def edit_and_retry(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("edit_and_retry")


async def new_session(database: Database) -> SQLAlchemyMetadataSession:
    catalog = SessionCatalog(database.engine(), create_tables=True)
    return await catalog.create_session("chat")


@pytest.mark.logic
@pytest.mark.parametrize("others", [[], ["Where?"], ["What else?", "Really?"]])
async def test_a_failed_run_stores_nothing_and_removes_nothing(
    database, edit_and_retry, others
) -> None:
    session = await new_session(database)
    await session.add_items([raw.message("Hello"), raw.message("Hi", "assistant")])

    async def other_tab(_context, _agent) -> str:
        await session.add_items([raw.message(each) for each in others])
        raise ConnectionError

    async def slow(_context, _agent) -> str:
        await asyncio.sleep(60)
        return "Answer."

    for agent in (edit_and_retry.guide(), Agent("guide", instructions=other_tab)):
        with pytest.raises((ModelBehaviorError, ConnectionError)):
            await edit_and_retry.ask(session, agent, "Where?")
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(
            edit_and_retry.ask(session, Agent("guide", instructions=slow), "Where?"), 0.2
        )
    stored = ["Hello", "Hi", *others]
    assert [each["content"] for each in await session.get_items()] == stored
    await edit_and_retry.ask(session, edit_and_retry.guide("There."), "Where?")
    items = [edit_and_retry.text_of(each) for each in await session.get_items()]
    assert items == [*stored, "Where?", "There."]


@pytest.mark.logic
async def test_a_turn_is_stored_whole_after_a_handoff_that_drops_the_history(
    database, edit_and_retry
) -> None:
    session = await new_session(database)
    await session.add_items([raw.message(f"{number}") for number in range(6)])
    without_history = handoff(
        edit_and_retry.guide("There."), input_filter=lambda data: data.clone(input_history=())
    )
    call = function_call("transfer_to_guide", {}, call_id="call")
    first = Agent("first", model=ScriptedModel([[call]]), handoffs=[without_history])
    await edit_and_retry.ask(session, first, "Where?")
    turn = (await session.get_items())[6:]
    assert [each.get("type", "question") for each in turn] == [
        "question",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert (turn[0]["content"], edit_and_retry.text_of(turn[3])) == ("Where?", "There.")


@pytest.mark.logic
async def test_a_turn_that_waits_for_an_approval_is_not_stored(database, edit_and_retry) -> None:
    session = await new_session(database)

    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    call = function_call("pay", {}, call_id="call")
    agent = Agent("guide", model=ScriptedModel([[call]]), tools=[pay])
    with pytest.raises(RuntimeError, match="no answer yet"):
        await edit_and_retry.ask(session, agent, "Pay!")
    assert await session.get_items() == []


@pytest.mark.logic
async def test_a_turn_that_is_stopped_is_not_stored(database, edit_and_retry, monkeypatch) -> None:
    session = await new_session(database)

    def stopping(*arguments: Any, **settings: Any) -> RunResultStreaming:
        result = run_streamed(*arguments, **settings)
        result.cancel()
        return result

    run_streamed = Runner.run_streamed
    monkeypatch.setattr(Runner, "run_streamed", stopping)
    with pytest.raises(RuntimeError, match="no answer yet"):
        await edit_and_retry.ask(session, edit_and_retry.guide("There."), "Where?")
    assert await session.get_items() == []


async def test_a_session_that_is_deleted_during_a_turn_stays_deleted(
    database, edit_and_retry
) -> None:
    catalog = SessionCatalog(database.engine(), create_tables=True)
    await catalog.create_session("chat")

    async def delete(_context: Any, _agent: Any) -> str:
        await catalog.delete_session("chat")
        return "Answer."

    agent = edit_and_retry.guide("There.").clone(instructions=delete)
    session = catalog.session("chat", must_exist=True)
    with pytest.raises(SessionNotFoundError):
        await edit_and_retry.ask(session, agent, "Where?")
    assert await catalog.count_sessions() == 0

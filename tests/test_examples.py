"""Each example runs on every database, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import importlib
import os
from pathlib import Path

import pytest
from agents import Agent, ModelBehaviorError
from conformance import raw
from processes import run_program
from servers import Database
from sqlalchemy import Connection, inspect, text

from agents_session_metadata import SessionCatalog

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICKSTART = EXAMPLES / "quickstart.py"
SCENARIOS = sorted({*EXAMPLES.glob("[!_]*.py")} - {QUICKSTART})

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


def test_there_is_one_for_each_scenario() -> None:
    names = [path.stem for path in SCENARIOS]
    assert names == [
        "agent_identity",
        "approval",
        "approval_pause",
        "edit_and_retry",
        "last_session",
        "sidebar",
        "tool_workflow",
    ]


@by_name
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


@pytest.mark.parametrize("others", [[], ["Where?"], ["What else?", "Really?"]])
async def test_a_failed_run_stores_nothing_and_removes_nothing(
    database, monkeypatch, others
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("edit_and_retry")
    catalog = SessionCatalog(database.engine(), create_tables=True)
    session = await catalog.create_session("chat")
    await session.add_items([raw.message("Hello"), raw.message("Hi", "assistant")])

    async def other_tab(_context, _agent) -> str:
        await session.add_items([raw.message(each) for each in others])
        raise ConnectionError

    async def slow(_context, _agent) -> str:
        await asyncio.sleep(60)
        return "Answer."

    for agent in (example.guide(), Agent("guide", instructions=other_tab)):
        with pytest.raises((ModelBehaviorError, ConnectionError)):
            await example.ask(session, agent, "Where?")
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(
            example.ask(session, Agent("guide", instructions=slow), "Where?"), 0.2
        )
    stored = ["Hello", "Hi", *others]
    assert [each["content"] for each in await session.get_items()] == stored
    await example.ask(session, example.guide("There."), "Where?")
    items = [example.text_of(each) for each in await session.get_items()]
    assert items == [*stored, "Where?", "There."]

"""Processes that are killed while others follow, reload and stop their runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from processes import Script
from scaling import scale

from agents_session_metadata import SessionCatalog, SessionRuns
from conformance.following import Client, plain, speaking, until

pytestmark = [pytest.mark.dialect, pytest.mark.thorough]

WORKER = """
import asyncio, sys
from datetime import timedelta
from agents import function_tool, set_tracing_disabled
from agents_session_metadata import SessionCatalog, SessionRuns
from conformance.following import speaking
from conformance.test_background_kills import ANSWERS

set_tracing_disabled(True)
url, pause, *sessions = sys.argv[1:]

@function_tool
async def look() -> str:
    await asyncio.sleep(0.02)
    return "saw it"

def agent_of(info=None):
    return speaking(*ANSWERS, pause=float(pause), tools=[look])

async def main():
    catalog = SessionCatalog.from_url(url)
    runs = SessionRuns(catalog, lease=timedelta(seconds=1))
    every = timedelta(seconds=0.1)
    async with runs.recovering(agent_of, every=every, max_attempts=1_000):
        for session_id in sessions:
            await runs.start(session_id, agent_of(), "Go", key="k")
            emit(session_id)
        await asyncio.sleep(600)

asyncio.run(main())
"""
ANSWERS = (
    ["Let us see what is there", "=look", "=look"],
    ["one two three four five six seven", "=look"],
    ["and the last words of all"],
)
SHAPE = [
    ("user", "Go"),
    ("assistant", ANSWERS[0][0]),
    *["look", "look", "saw it", "saw it"],
    ("assistant", ANSWERS[1][0]),
    *["look", "saw it"],
    ("assistant", ANSWERS[2][0]),
]


def shape(items: list[Any]) -> list[Any]:
    """Items without the ids of calls, which differ each time that the model is asked."""
    return [each if len(each) == 2 else each[2] for each in plain(items)]


def is_prefix_of_answer(text: str) -> bool:
    return any(answer[0].startswith(text) for answer in ANSWERS)


@asynccontextmanager
async def worker(url: str, pause: float, *sessions: str) -> AsyncIterator[Script]:
    """A process that begins runs and recovers others. It is killed at the end."""
    script = await asyncio.to_thread(Script, WORKER, [url, pause, *sessions], timeout=120)
    try:
        for _ in sessions:
            await asyncio.to_thread(script.receive)
        yield script
    finally:
        await asyncio.to_thread(script.kill)


async def history(catalog: SessionCatalog, session_id: str) -> list[Any]:
    return await catalog.session(session_id).get_items()


async def made(database: Any) -> SessionCatalog:
    catalog = SessionCatalog(database.engine(), create_tables=True)
    await catalog._store.database.ensure("runs")
    return catalog


@pytest.mark.scaled
@pytest.mark.parametrize("number", range(scale(1, 40)))
async def test_killed_runs_go_on_elsewhere_before_the_eyes_of_their_followers(
    shared_database, number
) -> None:
    """Ten kills, with two processes that recover."""
    chance = random.Random(number)
    catalog = await made(shared_database)
    runs = SessionRuns(catalog)
    names = [f"chat-{n}" for n in range(4)]
    clients = [Client() for _ in names]
    tasks = [
        asyncio.ensure_future(client.follow(runs, name, after=0, forever=True))
        for client, name in zip(clients, names, strict=True)
    ]
    async with worker(shared_database.url, 0.1):
        for kill in range(scale(3, 10)):
            begun = names if kill == 0 else []
            async with worker(shared_database.url, 0.1, *begun):
                await asyncio.sleep(chance.uniform(0.05, 1.5))
        async with worker(shared_database.url, 0.0):
            await _until_done(runs, names)
    for client, name, task in zip(clients, names, tasks, strict=True):
        items = await history(catalog, name)
        assert shape(items) == SHAPE
        # A run that begins and ends between two polls is a snapshot without a status.
        await until(lambda: task.done() or client.shown == plain(items))  # noqa: B023  # at once
        if task.done():
            await task
        task.cancel()


async def _until_done(runs: SessionRuns, names: list[str]) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while (await runs.list()).runs:
        assert asyncio.get_running_loop().time() < deadline, (await runs.list()).runs
        await asyncio.sleep(0.1)


@pytest.mark.scaled
@pytest.mark.parametrize("number", range(scale(1, 20)))
async def test_reloads_at_random_moments_show_the_whole(shared_database, number) -> None:
    """Twenty reloads."""
    chance = random.Random(number)
    catalog = await made(shared_database)
    runs = SessionRuns(catalog)

    async def reload(delay: float) -> Client:
        await asyncio.sleep(delay)
        return await Client().follow(runs, "chat", after=0)

    async with worker(shared_database.url, 0.05, "chat"):
        count = scale(8, 20)
        reloads = (reload(chance.uniform(0, 1.5)) for _ in range(count))
        clients = await asyncio.gather(*reloads)
    items = await history(catalog, "chat")
    assert shape(items) == SHAPE
    for client in clients:
        assert client.shown == plain(items)


@pytest.mark.scaled
@pytest.mark.parametrize("number", range(scale(1, 20)))
async def test_stops_from_another_process_leave_the_text_once_and_nothing_is_written_after(
    shared_database, number
) -> None:
    """Five stops."""
    chance = random.Random(number)
    catalog = await made(shared_database)
    runs = SessionRuns(catalog)
    names = [f"chat-{n}" for n in range(scale(3, 5))]
    async with worker(shared_database.url, 0.1, *names):

        async def stop(name: str) -> list[Any]:
            client = Client()
            task = asyncio.ensure_future(client.follow(runs, name))
            await asyncio.sleep(chance.uniform(0, 1.2))
            assert await runs.cancel(name) is True
            after = await history(catalog, name)
            await task
            assert client.status == {"type": "status", "status": "cancelled"}
            return after

        stopped = await asyncio.gather(*map(stop, names))
        await asyncio.sleep(1.5)
        for name, after in zip(names, stopped, strict=True):
            assert await history(catalog, name) == after
            _check_stopped(after)
            run = await runs.run(name, speaking(["Hello"], ["Hello"], ["Hello"]), "Again")
            assert run.final_output == "Hello"
            assert plain(await history(catalog, name))[: len(after)] == plain(after)


def _check_stopped(items: list[Any]) -> None:
    """The history is the beginning of the whole one, and its last message can be cut."""
    if not items:  # The run was stopped before the SDK had added its input.
        return
    *complete, last = items
    assert shape(complete) == SHAPE[: len(complete)]
    if last.get("status") == "incomplete":
        text = last["content"][0]["text"]
        assert text
        assert is_prefix_of_answer(text)
    else:
        assert shape(items) == SHAPE[: len(items)]
    assert sum(item.get("status") == "incomplete" for item in items) <= 1

"""What agents do: a resume check, a list, a clean-up, and a run with and without a tracker."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from statistics import median
from typing import Any

from agents import Agent, RunConfig, Runner, Usage, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import SessionCatalog, SessionLifecycle, SessionTracker, session_tables

from . import load
from .data import Corpus
from .databases import Server
from .measure import Effort, contest
from .report import Report

SECTION = "Agents, ms"
CHECK, LIST = "resume check", "list 100 of 1,000 sessions"
CLEAN_UP = "clean up 1,000 sessions"
CLEAN_UP_HISTORIES = "clean up 1,000 sessions with ten items each"
TRACKED, UNTRACKED = "tracked", "untracked"
SESSIONS = 1_000
TOOL_CALLS = 8
_QUIET = RunConfig(tracing_disabled=True)


async def measure_calls(server: Server, report: Report, *, rounds: int) -> None:
    """Measure calls in a database of 1,000 sessions, each with six keys and most with ten items.

    The first round is not counted, because it builds the statements.
    """
    seconds: dict[str, list[float]] = {}

    async def measure(name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        began = time.perf_counter()
        result = await call()
        seconds.setdefault(name, []).append(time.perf_counter() - began)
        return result

    url = await server.create("agents")
    engine = create_async_engine(url)
    catalog = SessionCatalog(engine, create_tables=True)
    session = await catalog.create_session("approval", metadata={"pinned": True})
    lifecycle = SessionLifecycle(session)
    await lifecycle.start("planner")
    await lifecycle.enter("approval")

    async def clean_up() -> int:
        where = {"pinned": {"$exists": False}}
        return await catalog.delete_sessions(where, inactive_for=timedelta(hours=24))

    for _ in range(rounds + 1):
        for name in (CLEAN_UP_HISTORIES, CLEAN_UP):
            await load.load_ours(engine, Corpus(SESSIONS))
            if name == CLEAN_UP:
                async with engine.begin() as connection:
                    await connection.execute(delete(session_tables().messages))
            for _ in range(10):
                await measure(CHECK, lifecycle.resume_decision)
                await measure(LIST, lambda: catalog.list_sessions(limit=100))
            assert await measure(name, clean_up) == SESSIONS
    await engine.dispose()
    await server.drop(url)
    for name, found in seconds.items():
        limit = 50 if name == CLEAN_UP and server.kind == "sqlite" else None
        report.milliseconds(SECTION, name, median(found[1:]) * 1000, limit=limit)


async def measure_tracker(server: Server, effort: Effort, report: Report) -> None:
    """A run of nine turns with eight calls of a tool that takes no time, each in a new session."""
    url = await server.create("tracker")
    engine = create_async_engine(url)
    catalog = SessionCatalog(engine, create_tables=True)

    async def tracked(number: int) -> Any:
        session = catalog.session(f"tracked-{number}")
        async with SessionTracker(session) as hooks:
            return await Runner.run(
                _agent(), "Go", session=session, hooks=hooks, run_config=_QUIET, max_turns=20
            )

    async def untracked(number: int) -> Any:
        session = catalog.session(f"untracked-{number}")
        return await Runner.run(_agent(), "Go", session=session, run_config=_QUIET, max_turns=20)

    try:
        timings = await contest(
            {TRACKED: tracked, UNTRACKED: untracked}, effort, calls=1, warm_up=5
        )
        what = "a run with eight tool calls, tracked / untracked"
        report.compare(SECTION, what, timings, TRACKED, UNTRACKED, limit=1.05)
    finally:
        await engine.dispose()
        await server.drop(url)


@function_tool
async def search(text: str) -> str:
    """Search for a text."""
    return f"3 pages about {text}"


def _agent() -> Agent[Any]:
    calls = [
        [function_call("search", {"text": "SQLite"}, call_id=f"call-{number}")]
        for number in range(TOOL_CALLS)
    ]
    usage = Usage(requests=1, input_tokens=100, output_tokens=20, total_tokens=120)
    model = ScriptedModel([*calls, [assistant_message("Done.")]], default_usage=usage)
    return Agent(name="researcher", model=model, tools=[search])

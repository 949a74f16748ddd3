"""What agents do: a resume check, a list, a clean-up, and a run with and without a tracker."""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from statistics import median
from typing import Any

from agents import Agent, RunConfig, Runner, Usage, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from sqlalchemy import delete, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

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
REPLACED = "The system on files, ms"
REPLACED_RUNS = 5
REPLACED_LIMITS = {
    "create": 5,
    "update": 3,
    "resume decision": 2,
    "get": 1,
    "finish": 5,
    "list of 100": 10,
    "clean up 1,000": 50,
}
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


async def measure_replaced(server: Server, report: Report) -> None:
    """Measure what the hand-made system on files did, against its figures: five runs each.

    The sessions have tags, and what a lifecycle and a tracker of two tool calls write.
    """
    seconds: dict[str, list[float]] = {}

    async def measure(name: str, call: Awaitable[Any]) -> Any:
        # As timeit does: a collection takes longer than a call, and belongs to all of them.
        gc.collect()
        gc.disable()
        began = time.perf_counter()
        result = await call
        seconds.setdefault(name, []).append((time.perf_counter() - began) * 1000)
        gc.enable()
        return result

    url = await server.create("replaced")
    engine = create_async_engine(url)
    catalog = SessionCatalog(engine, create_tables=True)
    for _ in range(REPLACED_RUNS + 1):
        template = catalog.session("template")
        lifecycle = SessionLifecycle(template)
        tags = {"owner_id": "u1", "title": "A trip", "tags": ["work", "travel"]}
        await measure("create", lifecycle.start("planner", "plan a trip", tags))
        await measure("update", template.set_metadata({"title": "A longer trip"}))
        await measure("get", template.get_metadata())
        async with SessionTracker(template) as hooks:
            await Runner.run(_agent(2), "Go", hooks=hooks, run_config=_QUIET)
        await lifecycle.enter("approval")
        await measure("resume decision", lifecycle.resume_decision())
        await measure("finish", lifecycle.finish("completed", "Booked."))
        [record] = [each async for each in catalog.export_sessions()]
        copies = ({**record, "session_id": f"s{number}"} for number in range(SESSIONS - 1))
        before = await _used(engine)
        await catalog.import_sessions(copies)
        size = (await _used(engine) - before) / 1024 / SESSIONS
        await measure("list of 100", catalog.list_sessions(limit=100))
        where = {"status": "completed"}
        assert await measure("clean up 1,000", catalog.delete_sessions(where)) == SESSIONS
    await engine.dispose()
    await server.drop(url)
    report.milliseconds(REPLACED, "KB per session", size, limit=5)
    for name, limit in REPLACED_LIMITS.items():
        report.milliseconds(REPLACED, name, median(seconds[name][1:]), limit=limit)


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


async def _used(engine: AsyncEngine) -> int:
    """The bytes of the pages that an SQLite database uses."""
    statement = (
        "SELECT (page_count - freelist_count) * page_size "
        "FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
    )
    async with engine.connect() as connection:
        return int(await connection.scalar(text(statement)) or 0)


@function_tool
async def search(query: str) -> str:
    """Search for a text."""
    return f"3 pages about {query}"


def _agent(tool_calls: int = TOOL_CALLS) -> Agent[Any]:
    calls = [
        [function_call("search", {"query": "SQLite"}, call_id=f"call-{number}")]
        for number in range(tool_calls)
    ]
    usage = Usage(requests=1, input_tokens=100, output_tokens=20, total_tokens=120)
    model = ScriptedModel([*calls, [assistant_message("Done.")]], default_usage=usage)
    return Agent(name="researcher", model=model, tools=[search])

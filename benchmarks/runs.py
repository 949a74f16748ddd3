"""`SessionRuns.run` beside `Runner.run` with the same session, and beside waiters.

A run takes ten turns, nine of them with a tool. Its scripted model answers at once, so the whole
difference is that of the database and of the record. The time that counts is the best of all
rounds: a round on a busy machine is slower for reasons of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from typing import Any

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, UnexpectedModelCall, assistant_message, function_call
from sqlalchemy import func, select

from agents_session_metadata import SessionCatalog, SessionRuns

from .data import message
from .databases import Server
from .measure import Effort, Timings, contest
from .report import Report

SECTION = "Runs of ten turns: SessionRuns / Runner.run, ms"
LIMITS = {"sqlite": 1.3, "postgresql": 1.6, "mysql": 1.6}
MOST_SLOWED = 1.5
"""How much slower a run may be while others wait for it."""
WAITERS = 200
ROUNDS = 15
_TOOLS = 9
HISTORIES = (10, 100, 1_000)


@function_tool
async def look(place: str) -> str:
    """Look at a place."""
    return f"saw {place}"


def agent() -> Agent[Any]:
    """Return an agent for one run."""
    calls = [[function_call("look", {"place": "x"}, call_id=f"c{n}")] for n in range(_TOOLS)]
    return Agent("a", model=ScriptedModel([*calls, [assistant_message("Done")]]), tools=[look])


async def measure_runs(server: Server, effort: Effort, report: Report) -> None:
    """Measure runs with and without a record, and what a run stores."""
    set_tracing_disabled(True)
    url = await server.create("runs")
    catalog = SessionCatalog.from_url(url, create_tables=True)
    runs = SessionRuns(catalog)
    try:
        await runs.run("warm", agent(), "Hi")

        async def plain(number: int) -> Any:
            return await Runner.run(agent(), "Hi", session=catalog.session(f"plain-{number}"))

        async def recorded(number: int) -> Any:
            return await runs.run(f"recorded-{number}", agent(), "Hi")

        async def unrecorded(number: int) -> Any:
            return await runs.run(f"unrecorded-{number}", agent(), "Hi", durable=False)

        calls = {"plain": plain, "recorded": recorded, "unrecorded": unrecorded}
        timings = await contest(calls, effort, calls=1, warm_up=2)
        limit = LIMITS[server.kind]
        report.compare(SECTION, "recorded", timings, "recorded", "plain", limit=limit)
        best = min(timings.seconds["recorded"]) / min(timings.seconds["plain"])
        report.ratio(SECTION, "recorded, best round", best, limit=limit)
        report.compare(SECTION, "`durable=False`", timings, "unrecorded", "plain", limit=1.1)
        await _measure_waiters(runs, server, report)
        for items in HISTORIES:
            kilobytes = await _stored(catalog, items) / 1_000
            report.ratio(SECTION, f"KB of a record, {items:,} items of history", kilobytes)
    finally:
        await catalog.engine.dispose()
        await server.drop(url)


async def _measure_waiters(runs: SessionRuns, server: Server, report: Report) -> None:
    """Measure a run alone, and one for which others wait. MariaDB is not limited."""
    seconds: dict[str, list[float]] = {"waited for": [], "alone": []}
    for number in range(ROUNDS + 1):
        for name, waiters in (("alone", 0), ("waited for", WAITERS)):
            gc.collect()
            took = await _waited_for(runs, f"{name}-{number}", waiters)
            if number:  # The first round warms up.
                seconds[name].append(took)
    timings, limit = Timings(seconds), None if server.kind == "mysql" else MOST_SLOWED
    what = f"a run for which {WAITERS} wait / a run alone"
    report.compare(SECTION, what, timings, "waited for", "alone", limit=limit)
    best = min(seconds["waited for"]) / min(seconds["alone"])
    report.ratio(SECTION, f"{what}, best round", best, limit=limit)


async def _waited_for(runs: SessionRuns, session_id: str, waiters: int) -> float:
    """Return the seconds from the first tool of a run to its end."""
    has_begun, may_go_on = asyncio.Event(), asyncio.Event()

    @function_tool
    async def pause() -> str:
        has_begun.set()
        await may_go_on.wait()
        await asyncio.sleep(0.02)  # A tool that takes its time.
        return "done"

    calls = [[function_call("pause", {}, call_id=f"c{n}")] for n in range(_TOOLS)]
    model = ScriptedModel([*calls, [assistant_message("Done")]])
    run = asyncio.create_task(runs.run(session_id, Agent("a", model=model, tools=[pause]), "Hi"))
    await has_begun.wait()
    waiting = [
        asyncio.create_task(runs.run(session_id, agent(), "Hi", wait=60)) for _ in range(waiters)
    ]
    await asyncio.sleep(1 if waiters else 0.1)
    began = time.perf_counter()
    may_go_on.set()
    await run
    took = time.perf_counter() - began
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return took


async def _stored(catalog: SessionCatalog, items: int) -> int:
    """Return the bytes that a run has stored beside its history just before it fails."""
    session_id = f"stored-{items}"
    history = [message(number) for number in range(items)]
    await catalog.session(session_id).add_items(history)  # type: ignore[arg-type]  # plain dicts
    failing = agent()
    failing.model = ScriptedModel(
        [[function_call("look", {"place": "x"}, call_id=f"c{n}")] for n in range(_TOOLS)]
    )
    with contextlib.suppress(UnexpectedModelCall):  # the model has no more answers
        await SessionRuns(catalog).run(session_id, failing, "Hi")
    tables = catalog._store.database.tables.group("runs")
    runs, steps = tables["_runs"], tables["_run_steps"]
    async with catalog.engine.connect() as connection:
        lengths = [func.coalesce(func.length(runs.c[name]), 0) for name in ("input", "progress")]
        of_run = select(sum(lengths)).where(runs.c.session_id == session_id)
        own = steps.c.session_id == session_id
        of_steps = select(func.sum(func.length(steps.c.value))).where(own)
        row = await connection.scalar(of_run)
        return int(row or 0) + int(await connection.scalar(of_steps) or 0)

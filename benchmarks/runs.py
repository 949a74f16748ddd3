"""`SessionRuns.run` beside `Runner.run` with the same session.

A run takes nine turns, eight of them with a tool. Its scripted model answers at once, so the whole
difference is that of the database and of the record.
"""

from __future__ import annotations

from typing import Any

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from sqlalchemy import func, select

from agents_session_metadata import SessionCatalog, SessionRuns

from .data import message
from .databases import Server
from .measure import Effort, contest
from .report import Report

SECTION = "Runs of nine turns: SessionRuns / Runner.run, ms"
LIMITS = {"sqlite": 1.25, "postgresql": 1.35, "mysql": 1.35}
_TOOLS = 8
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
        report.compare(SECTION, "`durable=False`", timings, "unrecorded", "plain", limit=1.1)
        for items in HISTORIES:
            print(server.title, items, "items of history:", await _stored(catalog, items), "bytes")
    finally:
        await catalog.engine.dispose()
        await server.drop(url)


async def _stored(catalog: SessionCatalog, items: int) -> int:
    """Return the bytes that a run has stored beside its history just before it fails."""
    session_id = f"stored-{items}"
    history = [message(number) for number in range(items)]
    await catalog.session(session_id).add_items(history)  # type: ignore[arg-type]  # plain dicts
    failing = agent()
    failing.model = ScriptedModel(
        [[function_call("look", {"place": "x"}, call_id=f"c{n}")] for n in range(_TOOLS)]
    )
    try:
        await SessionRuns(catalog).run(session_id, failing, "Hi")
    except Exception as error:  # noqa: BLE001  # the model has no more answers
        print(type(error).__name__, end=": ")
    tables = catalog._store.database.tables.group("runs")
    runs, steps = tables["_runs"], tables["_run_steps"]
    async with catalog.engine.connect() as connection:
        lengths = [func.coalesce(func.length(runs.c[name]), 0) for name in ("input", "progress")]
        of_run = select(sum(lengths)).where(runs.c.session_id == session_id)
        own = steps.c.session_id == session_id
        of_steps = select(func.sum(func.length(steps.c.value))).where(own)
        row = await connection.scalar(of_run)
        return int(row or 0) + int(await connection.scalar(of_steps) or 0)

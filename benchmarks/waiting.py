"""`python -m benchmarks.waiting`: the newest 20 of many paused runs beside the newest 20 of few.

Both are in databases of their own, take turns, and are paused runs of 4 kB with one pending call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import URL, insert
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from agents_session_metadata import PausedRuns, SessionCatalog, session_tables
from agents_session_metadata.storage.paused import PAUSED

from .databases import TITLES, Server, open_servers
from .measure import Timings, contest

FEW = 100
_CHUNK = 10_000
_CALL = {
    "call_id": "call-1",
    "tool": "apply_plan",
    "arguments": '{"plan": "B"}',
    "agent": "planner",
}
_DETAILS = {"agent": "planner", "pending": [_CALL], "encrypted": False, "wrapped": False}


async def measure_waiting(server: Server, *, runs: int, rounds: int) -> Timings:
    """Seconds a page, by the number of paused runs."""
    urls: list[URL] = []
    engines: list[AsyncEngine] = []
    parties: dict[str, Callable[[int], Awaitable[Any]]] = {}
    try:
        for number in (runs, FEW):
            urls.append(await server.create("waiting"))
            engines.append(create_async_engine(urls[-1]))
            paused = PausedRuns(SessionCatalog(engines[-1], create_tables=True))
            await paused.list()
            await _fill(engines[-1], number)
            parties[str(number)] = _page_of(paused)
        return await contest(parties, calls=4, rounds=rounds, seconds=60)
    finally:
        for engine in engines:
            await engine.dispose()
        for url in urls:
            await server.drop(url)


def _page_of(paused: PausedRuns) -> Callable[[int], Awaitable[Any]]:
    async def page(_: int) -> None:
        assert len((await paused.list(limit=20)).runs) == 20

    return page


async def _fill(engine: AsyncEngine, runs: int) -> None:
    tables = session_tables()
    [table] = tables.group(PAUSED).tables
    for first in range(0, runs, _CHUNK):
        rows = [_row(number) for number in range(first, min(first + _CHUNK, runs))]
        async with engine.begin() as connection:
            sessions = [{"session_id": row["session_id"]} for row in rows]
            await connection.execute(insert(tables.sessions), sessions)
            await connection.execute(insert(table), rows)
    async with engine.begin() as connection:
        keyword = "TABLE " if engine.dialect.name == "mysql" else ""
        await connection.exec_driver_sql(f"ANALYZE {keyword}{table.name}")


def _row(number: int) -> dict[str, Any]:
    return {
        "session_id": f"session-{number}",
        "state": json.dumps({"text": "x" * 4_000}),
        "details": json.dumps(_DETAILS),
        "decisions": "{}",
        "item_count": 0,
        "revision": 1,
        "paused_at": 1_700_000_000_000_000 + number * 7919 % 1_000_003,
    }


async def _main(arguments: argparse.Namespace) -> None:
    urls = {"postgresql": arguments.postgresql_url, "mysql": arguments.mysql_url}
    async with open_servers(arguments.servers, urls, start_postgresql=True) as servers:
        for server in servers:
            found = await measure_waiting(server, runs=arguments.runs, rounds=arguments.rounds)
            many, few = str(arguments.runs), str(FEW)
            print(
                f"{server.title}, newest 20 of {arguments.runs:,} / of {FEW}: "
                f"{found.ratio(many, few):.2f} (CPU time of this process "
                f"{found.cpu_ratio(many, few):.2f}), {found.milliseconds(many):.1f} ms"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.waiting", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=241)
    parser.add_argument("--servers", type=lambda given: given.split(","), default=list(TITLES))
    parser.add_argument("--postgresql-url")
    parser.add_argument("--mysql-url")
    asyncio.run(_main(parser.parse_args()))

"""`python -m benchmarks.usage`: the usage of one owner for 30 days, in a ledger of many rows.

The ledger has a row per run: 1,000 owners, the largest with 1 % of all rows, over 365 days.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from datetime import date, timedelta
from statistics import median
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from agents_session_metadata import SessionCatalog, session_tables
from agents_session_metadata.storage.usage import COUNTERS, USAGE, owner_key

from .databases import TITLES, Server, open_servers

DAYS, OWNERS, LARGEST = 365, 1_000, 100
TODAY = date(2025, 12, 31)
_CHUNK = 10_000


async def measure_usage(server: Server, *, rows: int, rounds: int) -> dict[str, float]:
    """Milliseconds a question, by what was asked: medians without the first."""
    url = await server.create("usage")
    engine = create_async_engine(url)
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.usage()
    await _fill(engine, rows)
    since = TODAY - timedelta(days=29)
    questions: dict[str, dict[str, Any]] = {
        "largest owner, 30 days": {"owner_id": "u0", "since": since},
        "another owner, 30 days": {"owner_id": "u7", "since": since},
        "another owner, all": {"owner_id": "u7", "by": ("model",)},
    }
    found = {}
    try:
        for name, options in questions.items():
            seconds = []
            for _ in range(rounds + 1):
                began = time.perf_counter()
                assert await catalog.usage(**options)
                seconds.append(time.perf_counter() - began)
            found[name] = median(seconds[1:]) * 1000
    finally:
        await engine.dispose()
        await server.drop(url)
    return found


async def _fill(engine: AsyncEngine, rows: int) -> None:
    [table] = session_tables().group(USAGE).tables
    for first in range(0, rows, _CHUNK):
        async with engine.begin() as connection:
            await connection.execute(
                insert(table), [_row(number) for number in range(first, first + _CHUNK)]
            )
    async with engine.begin() as connection:
        await connection.exec_driver_sql(f"ANALYZE {_keyword(engine)}{table.name}")


def _keyword(engine: AsyncEngine) -> str:
    return "TABLE " if engine.dialect.name == "mysql" else ""


def _row(number: int) -> dict[str, Any]:
    owner = f"u{0 if number % LARGEST == 0 else 1 + number % (OWNERS - 1)}"
    return {
        "session_id": None,
        "owner_key": owner_key(owner),
        "owner_id": f'"{owner}"',
        "day": TODAY - timedelta(days=number * 7919 % DAYS),
        "agent": "planner",
        "model": f"model-{number % 3}",
        "cost": 450_000_000,
        **dict.fromkeys(COUNTERS, 100),
    }


async def _main(arguments: argparse.Namespace) -> None:
    urls = {"postgresql": arguments.postgresql_url, "mysql": arguments.mysql_url}
    async with open_servers(arguments.servers, urls, start_postgresql=True) as servers:
        for server in servers:
            for name, each in (await measure_usage(server, rows=arguments.rows, rounds=20)).items():
                print(f"{server.title}, {arguments.rows:,} rows, {name}: {each:.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.usage", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--servers", type=lambda given: given.split(","), default=list(TITLES))
    parser.add_argument("--postgresql-url")
    parser.add_argument("--mysql-url")
    asyncio.run(_main(parser.parse_args()))

"""`python -m benchmarks`: measure everything; `--small`: about a minute of it."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from . import results as kept
from .agents import measure_calls, measure_tracker
from .catalog import CatalogResults, Effort, measure_catalog
from .databases import TITLES, Server, open_servers
from .goals import table
from .indexes import measure_indexes
from .overhead import Overhead, measure_overhead
from .search import measure_search

SIZES = (1_000, 10_000, 100_000, 1_000_000)
PARTS = ("overhead", "agents", "tracker", "catalog", "indexes", "search", "doors", "tasks")
_HERE = Path(__file__).parent


def main() -> None:
    """Measure, print the goals, and write the results and the chart."""
    arguments = _arguments()
    file = arguments.output / "results.json"
    results = {} if arguments.small else kept.read(file)
    asyncio.run(_measure(arguments, results, file, _report()))
    print(f"\n{table(results)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--small",
        action="store_true",
        help="1,000 sessions and few rounds, without peers; on servers only when URLs are given",
    )
    for kind in ("postgresql", "mysql"):
        variable = f"BENCH_{kind.upper()}_URL"
        parser.add_argument(
            f"--{kind}-url", default=os.environ.get(variable), help=f"default: {variable}"
        )
    parser.add_argument(
        "--sizes",
        type=lambda given: sorted({int(each) for each in given.split(",")}),
        help="numbers of sessions, separated by commas; default: 1,000 to 1,000,000",
    )
    parser.add_argument(
        "--servers",
        type=_servers,
        default=list(TITLES),
        help="some of sqlite, postgresql and mysql, separated by commas; default: all",
    )
    parser.add_argument(
        "--seconds", type=float, default=10, help="how long an operation is measured; default: 10"
    )
    parser.add_argument("--without-peers", action="store_true", help="only the plain table")
    parser.add_argument("--only", choices=PARTS, help="one part of the measurements")
    parser.add_argument("--output", type=_folder, default=_HERE, help="folder of the results")
    return parser.parse_args()


def _servers(given: str) -> list[str]:
    names = given.split(",")
    if unknown := set(names) - set(TITLES):
        raise argparse.ArgumentTypeError(f"unknown server: {', '.join(sorted(unknown))}")
    return names


def _folder(given: str) -> Path:
    """The folder, which is created before anything is measured."""
    folder = Path(given)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return folder


async def _measure(
    arguments: argparse.Namespace,
    results: kept.Results,
    file: Path,
    report: Callable[[str], None],
) -> None:
    small = arguments.small
    sizes = arguments.sizes or (SIZES[:1] if small else SIZES)
    parts = [arguments.only] if arguments.only else PARTS
    overhead_effort = Effort(60, 1.5) if small else Effort(240, 2 * arguments.seconds)
    effort = Effort(15, 1.5) if small else Effort(61, arguments.seconds)
    async with open_servers(
        arguments.servers,
        {"postgresql": arguments.postgresql_url, "mysql": arguments.mysql_url},
        start_postgresql=not small,
    ) as servers:
        for server in servers:
            overhead: list[Overhead] = []
            catalog = CatalogResults()
            if "overhead" in parts:
                report(f"{server.title}: sessions beside the plain SDK")
                overhead = await measure_overhead(
                    server, rounds=overhead_effort.rounds, seconds=overhead_effort.seconds
                )
            if "agents" in parts:
                report(f"{server.title}: what agents do")
                calls = await measure_calls(server, rounds=2 if small else 7)
                kept.join_agents(results, server.title, calls)
            if "tracker" in parts:
                report(f"{server.title}: a run with a tracker and one without")
                tracker = await measure_tracker(
                    server, rounds=overhead_effort.rounds, seconds=overhead_effort.seconds
                )
                kept.join_tracker(results, server.title, tracker)
            if "catalog" in parts:
                peers: Any = []
                if not (small or arguments.without_peers):
                    from .peers import peers as peers_of

                    peers = peers_of(server.kind)
                await measure_catalog(server, sizes, peers, effort, catalog, report)
            if "indexes" in parts and not small:
                found = await measure_indexes(
                    server, sizes, effort, report, with_peers=not arguments.without_peers
                )
                kept.join_indexes(results, server.title, found)
            if "search" in parts and not small:
                searched = await measure_search(
                    server, sizes, effort, report, with_peers=not arguments.without_peers
                )
                kept.join_search(results, server.title, searched)
            if "doors" in parts and not small:
                from .doors import measure_doors

                doors = await measure_doors(
                    server, sizes, effort, report, with_peers=not arguments.without_peers
                )
                kept.join_doors(results, server.title, doors.contests, doors.leaks)
            if "tasks" in parts and not small and server.kind == "sqlite":
                from .tasks import measure_tasks

                report(f"{server.title}: ten tasks in a browser")
                tasks = await measure_tasks(server, with_peers=not arguments.without_peers)
                kept.join_tasks(results, server.title, tasks)
            version = await _server_version(server)
            kept.join(results, server.title, version, overhead, catalog)
            if not small:
                from .chart import draw

                kept.write(results, file)
                draw(results, file.with_name("latency.svg"))


async def _server_version(server: Server) -> str:
    url = await server.create("version")
    engine = create_async_engine(url)
    call = "sqlite_version()" if server.kind == "sqlite" else "version()"
    async with engine.connect() as connection:
        found = str((await connection.execute(text(f"SELECT {call}"))).scalar())
    await engine.dispose()
    await server.drop(url)
    # PostgreSQL goes on with its compiler.
    return found.split(" (", maxsplit=1)[0].split(" on ", maxsplit=1)[0]


def _report() -> Callable[[str], None]:
    began = time.monotonic()

    def report(line: str) -> None:
        print(f"[{time.monotonic() - began:6.0f} s] {line}", flush=True)

    return report


if __name__ == "__main__":
    main()

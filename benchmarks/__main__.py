"""`python -m benchmarks`: measure everything; `--small`: about a minute of it."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from .agents import measure_calls, measure_replaced, measure_tracker
from .background import measure_background
from .catalog import measure_catalog
from .databases import TITLES, Server, open_servers
from .indexes import measure_indexes, measure_peers
from .measure import Effort
from .overhead import measure_overhead
from .report import Report
from .runs import measure_runs

SIZES = (1_000, 10_000, 100_000, 1_000_000)
PARTS = ("overhead", "agents", "tracker", "runs", "background", "catalog", "indexes", "peers")


def main() -> None:
    """Measure, and print the tables."""
    arguments = _arguments()
    report = Report(arguments.output)
    asyncio.run(_measure(arguments, report))
    print(f"\n{report.markdown()}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--small",
        action="store_true",
        help="1,000 sessions and few rounds, without other libraries; on servers only with URLs",
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
    parser.add_argument("--seconds", type=float, help="seconds per comparison; default: 10")
    parser.add_argument("--without-peers", action="store_true", help="no other libraries")
    parser.add_argument("--only", choices=PARTS, help="one part of the measurements")
    parser.add_argument("--output", type=_file, help="file to which the tables are written as well")
    return parser.parse_args()


def _servers(given: str) -> list[str]:
    names = given.split(",")
    if unknown := set(names) - set(TITLES):
        raise argparse.ArgumentTypeError(f"unknown server: {', '.join(sorted(unknown))}")
    return names


def _file(given: str) -> Path:
    """The file, whose folder is created before anything is measured."""
    path = Path(given)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return path


async def _measure(arguments: argparse.Namespace, report: Report) -> None:
    urls = {"postgresql": arguments.postgresql_url, "mysql": arguments.mysql_url}
    async with open_servers(
        arguments.servers, urls, start_postgresql=not arguments.small
    ) as servers:
        for server in servers:
            report.begin(server.title, await server.version())
            await _measure_server(server, arguments, report)


async def _measure_server(server: Server, arguments: argparse.Namespace, report: Report) -> None:
    small = arguments.small
    with_peers = not (small or arguments.without_peers)
    sizes = arguments.sizes or (SIZES[:1] if small else SIZES)
    seconds = arguments.seconds if arguments.seconds is not None else 1.5 if small else 10
    effort = Effort(15 if small else 61, seconds)
    # The differences are small.
    long_effort = Effort(60 if small else 240, seconds if small else 2 * seconds)
    parts = [arguments.only] if arguments.only else PARTS
    if "overhead" in parts:
        await measure_overhead(server, long_effort, report)
    if "agents" in parts:
        await measure_calls(server, report, rounds=2 if small else 7)
        if server.kind == "sqlite":
            await measure_replaced(server, report)
    if "tracker" in parts:
        await measure_tracker(server, long_effort, report)
    if "runs" in parts:
        await measure_runs(server, effort, report)
    if "background" in parts:
        await measure_background(server, report)
    if "catalog" in parts:
        await measure_catalog(server, sizes, effort, report)
    if "indexes" in parts:
        await measure_indexes(server, sizes, effort, report)
    if "peers" in parts and with_peers and server.kind != "mysql":
        await measure_peers(server, effort, report)


if __name__ == "__main__":
    main()

"""`python -m stress`: every fault, or those whose names are given."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from . import crashes, cuts, full_disk, galera, pgbouncer, read_only
from .results import Result, show, write

FAULTS: dict[str, Callable[[], AsyncIterator[Result]]] = {
    "pgbouncer": pgbouncer.pool_transactions,
    "crash-postgresql": crashes.crash_postgresql,
    "crash-mariadb": crashes.crash_mariadb,
    "crash-writers": crashes.crash_writers,
    "cut-postgresql": cuts.cut_postgresql,
    "cut-mariadb": cuts.cut_mariadb,
    "full-disk": full_disk.fill_disk,
    "read-only": read_only.forbid_writing,
    "galera": galera.kill_galera_node,
}
_HERE = Path(__file__).parent
_PACKAGES = ("openai-agents", "sqlalchemy", "aiosqlite", "asyncpg", "asyncmy")


def main() -> int:
    """Run the faults; say in the exit status whether every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m stress", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="fault", help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--output", type=Path, default=_HERE / "results.json", help="where to keep")
    parser.add_argument("--page", type=Path, help="a page whose table is written anew")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.faults if name not in FAULTS]
    if unknown:
        parser.error(f"no fault is called {', '.join(unknown)}")
    results = asyncio.run(_run(arguments.faults or list(FAULTS)))
    day = datetime.now(timezone.utc).date().isoformat()
    packages = {name: version(name) for name in _PACKAGES}
    machine = {"date": day, "cores": os.cpu_count(), "packages": packages}
    write(results, arguments.output, machine)
    if arguments.page:
        drivers = ", ".join(f"{name} {number}" for name, number in packages.items())
        words = f"{day}, {os.cpu_count()} cores, Python {sys.version.split()[0]}, {drivers}:"
        show(results, arguments.page, words)
    return 0 if all(result.kept for result in results) else 1


async def _run(names: list[str]) -> list[Result]:
    results = []
    for name in names:
        started = time.monotonic()
        async for result in FAULTS[name]():
            now = time.monotonic()
            result.seconds = now - started
            started = now
            print(result.line(), flush=True)
            results.append(result)
    return results


if __name__ == "__main__":
    sys.exit(main())

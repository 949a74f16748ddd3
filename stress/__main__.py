"""`python -m stress`: every fault, or those whose names are given."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import platform
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from . import crashes, cuts, failover, full_disk, galera, group_replication, pgbouncer, read_only
from .results import Figures, Result, show, write

FAULTS: dict[str, Callable[[], AsyncIterator[Result]]] = {
    "pgbouncer": pgbouncer.pool_transactions,
    "crash-postgresql": crashes.crash_postgresql,
    "crash-mariadb": crashes.crash_mariadb,
    "crash-mysql": crashes.crash_mysql,
    "crash-writers": crashes.crash_writers,
    "failover": failover.fail_over,
    "cut-postgresql": cuts.cut_postgresql,
    "cut-mariadb": cuts.cut_mariadb,
    "full-disk": full_disk.fill_disk,
    "read-only": read_only.forbid_writing,
    "galera": galera.kill_galera_node,
    "group-replication": group_replication.kill_primary,
}
_RESULTS = Path(__file__).parent / "results.json"
_PAGE = Path(__file__).parents[1] / "docs" / "faults.md"
_LONGEST = 180
"""Seconds after which a fault is taken for a call that never returns."""
_PACKAGES = ("openai-agents", "sqlalchemy", "aiosqlite", "asyncpg", "asyncmy")


def main() -> int:
    """Run the faults; say in the exit status whether every promise was kept."""
    parser = argparse.ArgumentParser(
        prog="python -m stress",
        description=f"{__doc__} All of them together write {_RESULTS.name} and {_PAGE.name}.",
    )
    parser.add_argument("faults", nargs="*", metavar="fault", help=f"of {', '.join(FAULTS)}")
    names = parser.parse_args().faults
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        parser.error(f"no fault is called {', '.join(unknown)}")
    # The pool tells at length of each dead connection that it closes.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    results = asyncio.run(_run(names or list(FAULTS)))
    if not names:
        machine = {
            "date": datetime.now(timezone.utc).date().isoformat(),
            "cores": os.cpu_count(),
            "versions": {
                "Python": platform.python_version(),
                **{name: version(name) for name in _PACKAGES},
            },
        }
        write(results, _RESULTS, machine)
        show(results, _PAGE, machine)
    return 0 if all(result.kept for result in results) else 1


async def _run(names: list[str]) -> list[Result]:
    results = []
    for name in names:
        fault = FAULTS[name]()
        while True:
            began = time.monotonic()
            try:
                result = await asyncio.wait_for(anext(fault), _LONGEST)
            except StopAsyncIteration:
                break
            except Exception as error:  # noqa: BLE001  # the other faults are still to be run
                traceback.print_exc()
                result = Result(name, "", Figures(), broken=[f"it ended with {error!r}"])
            result.seconds = time.monotonic() - began
            print(result.line(), flush=True)
            results.append(result)
    return results


if __name__ == "__main__":
    sys.exit(main())

"""Two versions of this package side by side: `python -m benchmarks.versions OTHER_SRC`.

Each version runs in a process of its own, which waits while the other one works. Printed is the
time of this version divided by that of the other one, in the median round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import SessionCatalog, SessionLifecycle

from .databases import TITLES, Server, open_servers

GOALS = {
    "first use": 0.4,
    "create_session": 0.85,
    "delete_session": 0.85,
    "scoped get_metadata": 0.9,
    "delete_sessions of 1,000": 0.5,
}
_CALLS = {"create_session": 20, "delete_session": 20, "scoped get_metadata": 40}
_ROUNDS = {"first use": 9, "delete_sessions of 1,000": 5}
_SHARED = "bench"


class _Worker:
    """Answers the name of an operation on standard input with the seconds that one call took."""

    def __init__(self, url: str) -> None:
        self._engine = create_async_engine(url)
        self._catalog = SessionCatalog(self._engine, create_tables=True)
        self._number = 0

    async def run(self) -> None:
        async with self._engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
        operations: dict[str, Callable[[], Awaitable[float]]] = {
            "first use": self._first_use,
            "create_session": self._create,
            "delete_session": self._delete,
            "scoped get_metadata": self._get,
            "delete_sessions of 1,000": self._clean_up,
        }
        for line in sys.stdin:
            print(await operations[line.strip()](), flush=True)
        await self._engine.dispose()

    def _metadata(self) -> dict[str, Any]:
        return {"owner_id": f"u{self._number % 7}", "title": "Trip", "tags": ["a", "b"]}

    async def _first_use(self) -> float:
        began = time.perf_counter()
        await self._catalog.session(_SHARED).set_metadata({"owner_id": "u1"})
        return time.perf_counter() - began

    async def _timed(self, name: str, call: Callable[[str], Awaitable[Any]]) -> float:
        """Calls with ids that count up; `create_session` is called before the others."""
        took = 0.0
        for _ in range(_CALLS[name]):
            self._number += 1
            session_id = f"{os.getpid()}-{self._number}"
            if call != self._made:
                await self._made(session_id)
            began = time.perf_counter()
            await call(session_id)
            took += time.perf_counter() - began
        return took / _CALLS[name]

    async def _made(self, session_id: str) -> None:
        await self._catalog.create_session(session_id, metadata=self._metadata())

    async def _create(self) -> float:
        return await self._timed("create_session", self._made)

    async def _delete(self) -> float:
        return await self._timed("delete_session", self._catalog.delete_session)

    async def _get(self) -> float:
        await self._catalog.session(_SHARED).set_metadata({"owner_id": "u1"})
        scoped = self._catalog.scoped({"owner_id": "u1"})
        began = time.perf_counter()
        for _ in range(_CALLS["scoped get_metadata"]):
            await scoped.session(_SHARED).get_metadata()
        return (time.perf_counter() - began) / _CALLS["scoped get_metadata"]

    async def _clean_up(self) -> float:
        mine = f"batch-{os.getpid()}"
        await self._catalog.delete_session(mine)
        session = await self._catalog.create_session(mine, metadata=self._metadata())
        lifecycle = SessionLifecycle(session)
        await lifecycle.start("planner")
        await lifecycle.finish("completed", "done")
        [record] = [each async for each in self._catalog.export_sessions({"$session_id": mine})]
        record["metadata"]["batch"] = mine
        copies = [{**record, "session_id": f"{mine}-{number}"} for number in range(1_000)]
        await self._catalog.import_sessions(copies)
        began = time.perf_counter()
        assert await self._catalog.delete_sessions({"batch": mine}) == 1_000
        return time.perf_counter() - began


class _Version:
    """The process of one version."""

    def __init__(self, source: Path | None, url: str) -> None:
        self._paths = [str(source)] if source else []
        self._url = url
        self._process: asyncio.subprocess.Process | None = None

    async def measure(self, name: str, *, fresh: bool) -> float:
        if fresh:
            await self.stop()
        if self._process is None:
            paths = os.pathsep.join([*self._paths, str(Path(__file__).parents[1])])
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.versions", "--worker", self._url,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": paths},
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n".encode())
        return float(json.loads(await self._process.stdout.readline()))

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.communicate(b"")  # Closes its standard input.
            self._process = None


async def _compare(server: Server, other: Path) -> None:
    # One database each: the tables of the versions may differ.
    urls = [await server.create(name) for name in ("this", "other")]
    texts = [url.render_as_string(hide_password=False) for url in urls]
    versions = [_Version(None, texts[0]), _Version(other, texts[1])]
    chance = Random(7)  # an order
    for name, goal in GOALS.items():
        is_first = name == "first use"
        for version in versions:
            await version.measure("first use" if is_first else name, fresh=is_first)
        ratios, times = [], []
        for _ in range(_ROUNDS.get(name, 25)):
            took = [0.0, 0.0]
            for place in chance.sample((0, 1), 2):
                took[place] = await versions[place].measure(name, fresh=is_first)
            ratios.append(took[0] / took[1])
            times.append(took[0])
        print(
            f"{server.title}: {name}: {median(ratios):.2f} (goal {goal}), "
            f"{median(times) * 1000:.2f} ms",
            flush=True,
        )
    for version in versions:
        await version.stop()


async def _main(arguments: argparse.Namespace) -> None:
    if arguments.worker:
        await _Worker(arguments.worker).run()
        return
    urls = {kind: os.environ.get(f"BENCH_{kind.upper()}_URL") for kind in ("postgresql", "mysql")}
    async with open_servers(list(TITLES), urls, start_postgresql=True) as servers:
        for server in servers:
            await _compare(server, arguments.other)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("other", type=Path, nargs="?", help="the src folder of the other version")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asyncio.run(_main(parser.parse_args()))

"""`python -m benchmarks.transfer`: import and export beside version 0.1.0, in interleaved rounds.

0.1.0 comes out of this repository's history, with `git archive`.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import SessionCatalog

RELEASED = "8f049ba"
"""The commit of version 0.1.0."""
GOALS = {"import": 1 / 10, "export": 1 / 3}

_ROOT = Path(__file__).parents[1]


def records(count: int) -> Iterator[dict[str, Any]]:
    """Sessions with six keys, one of them a list, and two items each."""
    at = "2025-01-01T00:00:00+00:00"
    for number in range(count):
        yield {
            "format": 1,
            "session_id": f"chat-{number:07}",
            "created_at": at,
            "updated_at": at,
            "metadata": {
                "owner_id": f"user-{number % 100}",
                "title": f"Chat {number}",
                "tags": [f"tag-{number % 7}", f"tag-{number % 11}"],
                "status": "active",
                "priority": number % 10,
                "cost": number / 100,
            },
            "items": [
                {"created_at": at, "item": {"role": role, "content": f"{role} says {number}. " * 8}}
                for role in ("user", "assistant")
            ],
        }


async def drop_tables(url: str) -> None:
    """Drop all tables of a database: rows that are only deleted slow down the next round."""
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        tables = MetaData()
        await connection.run_sync(tables.reflect)
        await connection.run_sync(tables.drop_all)
    await engine.dispose()


async def measure(url: str, count: int) -> tuple[float, float]:
    """Seconds that an import into an empty database and an export of it take."""
    await drop_tables(url)
    async with SessionCatalog.from_url(url, create_tables=True) as catalog:
        await catalog.count_sessions()
        begin = time.perf_counter()
        await catalog.import_sessions(records(count))
        middle = time.perf_counter()
        exported = 0
        async for _ in catalog.export_sessions():
            exported += 1
        end = time.perf_counter()
        if exported != count:
            raise RuntimeError(f"{exported} of {count} sessions were exported")
    await drop_tables(url)
    return middle - begin, end - middle


def main() -> None:
    """Print the ratio of this version to 0.1.0 for each database."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transfer", description=__doc__)
    parser.add_argument(
        "urls",
        nargs="*",
        help="databases, whose tables are all dropped; default: SQLite in a temporary folder",
    )
    parser.add_argument("--sessions", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        print(*asyncio.run(measure(given.urls[0], given.sessions)))
        return
    with tempfile.TemporaryDirectory() as folder:
        released = _released(Path(folder))
        for url in given.urls or [f"sqlite+aiosqlite:///{folder}/chat.db"]:
            times: dict[Path, list[tuple[float, ...]]] = {released: [], _ROOT / "src": []}
            for _ in range(given.rounds):
                for source, taken in times.items():
                    taken.append(_once(source, url, given.sessions))
            for index, (name, goal) in enumerate(GOALS.items()):
                before, after = (
                    statistics.median(taken[index] for taken in each) for each in times.values()
                )
                verdict = "met" if after / before <= goal else "missed"
                print(
                    f"{url.partition(':')[0]:22} {name} of {given.sessions:,} sessions / 0.1.0: "
                    f"{after / before:.3f} (goal {goal:.3f}, {verdict})"
                )


def _released(folder: Path) -> Path:
    archive = subprocess.run(
        ["git", "archive", RELEASED, "src"], cwd=_ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder / "released", filter="data")
    return folder / "released" / "src"


def _once(source: Path, url: str, count: int) -> tuple[float, ...]:
    command = [sys.executable, "-m", "benchmarks.transfer", "--once", url]
    done = subprocess.run(
        [*command, "--sessions", str(count)],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(source)},
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    return tuple(float(word) for word in done.stdout.split())


if __name__ == "__main__":
    main()

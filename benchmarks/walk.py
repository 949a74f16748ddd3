"""Walking through every session in a process of its own, to see how much memory that takes.

`python -m benchmarks.walk` reads the database's URL from `BENCH_WALK_URL` and prints what it found.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import URL

_SETTLED = 1_000
_STATUS = Path("/proc/self/status")
_VARIABLE = "BENCH_WALK_URL"


@dataclass(frozen=True)
class Walk:
    """A walk by `iter_sessions`.

    Attributes:
        sessions: How many it came by.
        seconds: How long it took.
        megabytes: The most memory that the process had.
        growth: How much of that it got after the first 1,000 sessions.
    """

    sessions: int
    seconds: float
    megabytes: float
    growth: float


async def walk_in_new_process(url: URL) -> Walk:
    """Walk through a database of this package."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", __name__),
        env={**os.environ, _VARIABLE: url.render_as_string(hide_password=False)},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the walk ended with {process.returncode}")
    return Walk(**json.loads(output))


async def _walk(url: str) -> Walk:
    from agents_session_metadata import SessionCatalog

    sessions, settled = 0, _megabytes()
    began = time.perf_counter()
    async with SessionCatalog.from_url(url) as catalog:
        async for _ in catalog.iter_sessions():
            sessions += 1
            if sessions == _SETTLED:
                settled = _megabytes()
    seconds = time.perf_counter() - began
    return Walk(sessions, seconds, _megabytes(), max(0.0, _megabytes() - settled))


def _megabytes() -> float:
    """The most memory that this process had until now."""
    if _STATUS.exists():
        # What `getrusage` gives on Linux begins with that of the process which started this one.
        found = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())
        if found:
            return int(found[1]) / 2**10
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In bytes on macOS, in kilobytes elsewhere.
    return most / (2**20 if sys.platform == "darwin" else 2**10)


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(_walk(os.environ[_VARIABLE])))))

"""Scripts that are killed in the middle of their work."""

from __future__ import annotations

import asyncio
import time

from processes import Script
from sqlalchemy.ext.asyncio import AsyncEngine

from conformance import raw

HEAD = """
import asyncio, sys
from sqlalchemy.ext.asyncio import create_async_engine
from agents_session_metadata import *

async def main():
    engine = create_async_engine(sys.argv[1])
    await work(SessionCatalog(engine), sys.argv[2:])
    await engine.dispose()
"""


async def run_and_kill(script: str, arguments: list[object], *, values: int, delay: float) -> None:
    """Kill a script, without a chance to clean up, a moment after it has emitted some values."""

    def run() -> None:
        child = Script(f"{HEAD}\n{script}\nasyncio.run(main())", arguments)
        try:
            for _ in range(values):
                child.receive()
            time.sleep(delay)
            assert child.running, "the script ended by itself"
        finally:
            child.kill()

    await asyncio.to_thread(run)


async def until_alone(engine: AsyncEngine) -> None:
    """Wait until the server has ended what it was last sent by a process that was killed."""
    await engine.dispose()
    deadline = time.monotonic() + 30
    while await raw.other_connections(engine):
        assert time.monotonic() < deadline, "the server still has other connections"
        await asyncio.sleep(0.01)

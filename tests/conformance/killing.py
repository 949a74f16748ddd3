"""Scripts that are killed in the middle of their work."""

from __future__ import annotations

import asyncio
import time

from processes import Script

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

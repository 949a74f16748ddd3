"""Scripts in real processes that are killed in the middle of their work."""

from __future__ import annotations

import asyncio
import sys

HEAD = """
import asyncio, sys
from sqlalchemy.ext.asyncio import create_async_engine
from agents_session_metadata import *

def tell(value):
    print(value, flush=True)

async def main():
    engine = create_async_engine(sys.argv[1])
    await work(SessionCatalog(engine), sys.argv[2:])
    await engine.dispose()
"""


async def run_and_kill(script: str, arguments: list[object], *, lines: int, delay: float) -> None:
    """Kill a script, without a chance to clean up, a moment after it has told so many lines."""
    child = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", f"{HEAD}\n{script}\nasyncio.run(main())", *map(str, arguments)],
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        for _ in range(lines):
            line = await asyncio.wait_for(child.stdout.readline(), 60)
            assert line, "the script ended by itself"
        await asyncio.sleep(delay)
        assert child.returncode is None, "the script ended by itself"
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()

"""Runs a script in several Python processes that begin at the same moment."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from typing import Any

# What a script finds beside the builtins. "READY" is no JSON, so no result can be taken for it.
_PREAMBLE = """
import json, sys

def start():
    print("READY", flush=True)
    sys.stdin.readline()

def emit(value):
    print(json.dumps(value), flush=True)

script = sys.argv.pop(1)
exec(compile(script, "<script>", "exec"), {"__name__": "__main__", "start": start, "emit": emit})
"""


class ProcessError(AssertionError):
    """A process failed, or did not end in time."""


async def run_processes(
    script: str, arguments: Sequence[Sequence[object]], *, timeout: float = 150
) -> list[list[Any]]:
    """Runs a script once for each of the given lists of arguments, all at the same time.

    The script calls `start()` when it has made its preparations; the call returns when every
    process has got so far. It calls `emit(value)` for each result, and finds its arguments in
    `sys.argv[1:]`.

    Args:
        script: Python source.
        arguments: One list of arguments a process.
        timeout: Seconds after which the processes are killed.

    Returns:
        The emitted values of each process, in the order of `arguments`.

    Raises:
        ProcessError: A process failed; it carries what they all wrote to stderr.
    """
    children = [
        await asyncio.create_subprocess_exec(
            *[sys.executable, "-c", _PREAMBLE, script, *map(str, argument)],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        for argument in arguments
    ]
    errors = [asyncio.create_task(_pipe(child.stderr).read()) for child in children]
    values: list[list[Any]] | None = None
    try:
        values = await asyncio.wait_for(_race(children), timeout)
    except asyncio.TimeoutError:
        pass  # told below, with what the processes wrote
    finally:
        for child in children:
            if child.returncode is None:
                child.kill()
        exits = [await child.wait() for child in children]
        stderr = [(await error).decode(errors="replace") for error in errors]
    if values is None or any(exits):
        what = f"no end within {timeout} s" if values is None else f"exit codes {exits}"
        raise ProcessError("\n".join([what, *stderr]))
    return values


async def _race(children: Sequence[Process]) -> list[list[Any]]:
    ready = [asyncio.Event() for _ in children]
    results = asyncio.gather(*map(_results, children, ready))
    for event in ready:
        await event.wait()
    for child in children:
        if child.stdin is not None:
            child.stdin.close()  # the end of its input is what `start()` waits for
    values = await results
    for child in children:
        await child.wait()
    return values


async def _results(child: Process, ready: asyncio.Event) -> list[Any]:
    values = []
    async for line in _pipe(child.stdout):
        if line == b"READY\n":
            ready.set()
        else:
            values.append(json.loads(line))
    ready.set()  # also without a call of `start()`
    return values


def _pipe(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    assert stream is not None
    return stream

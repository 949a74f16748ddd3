"""Processes that write, and tell what they do, until they are killed or told to end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import Any

from agents import Agent, ModelResponse, Usage, function_tool, set_tracing_disabled
from agents.models.interface import Model
from agents.testing import assistant_message, function_call
from agents.tool_context import ToolContext
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import RunInfo, SessionCatalog, SessionRuns, SessionTracker
from processes import ProcessError, Script

from .journal import Call, Journal
from .load import Load, open_catalog

TURNS = 3
"""Calls of the tool in each run, each after an answer of its own."""
ITEMS = ["user", *["function_call", "function_call_output"] * TURNS, "message"]
"""The history of a run that has ended."""
LEASE = timedelta(seconds=4)
KINDS = ("run", "start")
"""Runs whose callers wait for them, and runs in the background; the beginnings of session ids."""


_SCRIPT = """
import asyncio, sys
from stress import clients

clients.emit = emit
asyncio.run(clients.main(*sys.argv[1:]))
"""


def emit(message: tuple[Any, ...]) -> None:
    """Send the name of a method of the parent's journal, and its arguments."""
    raise NotImplementedError(message)


class _Telling(Journal):
    def begin(self, call: Call) -> None:
        emit(("begin", call))
        super().begin(call)

    def acknowledge(self, call: Call) -> None:
        emit(("acknowledge", call))
        super().acknowledge(call)

    def count_error(self, name: str, strange: str | None) -> None:
        emit(("count_error", name, strange))


class _Steps(Model):
    """Calls the tool a few times. The ids of the calls are new each time that it is asked."""

    async def get_response(
        self,
        system_instructions: Any,  # noqa: ARG002  # the SDK's
        input: Any,  # noqa: A002  # as in the SDK
        *_: Any,
        **__: Any,
    ) -> ModelResponse:
        items = [] if isinstance(input, str) else input
        seen = [each["call_id"] for each in items if each.get("type") == "function_call_output"]
        emit(("see", input if isinstance(input, str) else items[0]["content"], seen))
        await asyncio.sleep(0.05)
        call = function_call("look", {}, call_id=f"call-{uuid.uuid4().hex[:12]}")
        output = [call if len(seen) < TURNS else assistant_message("done")]
        return ModelResponse(output, Usage(requests=1, input_tokens=3, output_tokens=2), None)

    async def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield


@function_tool
async def look(context: ToolContext[Any]) -> str:
    """Has a side effect, which is told."""
    emit(("use", context.tool_call_id))
    await asyncio.sleep(0.05)
    return "seen"


_AGENT = Agent("looker", model=_Steps(), tools=[look])


async def finish(catalog: SessionCatalog, journal: Journal) -> Counter[str]:
    """Go on with every run that is left, and return how many there were, by status."""
    global emit  # noqa: PLW0603  # the tool and the model are those of this process
    emit = partial(_keep, journal)
    set_tracing_disabled(True)
    statuses: dict[str, str] = {}
    runs = SessionRuns(catalog, lease=LEASE)
    while page := (await runs.list()).runs:
        for info in page:
            if info.status != "running":
                statuses.setdefault(info.session_id, info.status)
                async with _tracker(catalog, info.session_id) as hooks:
                    await runs.resume(info.session_id, _AGENT, hooks=hooks)
        await asyncio.sleep(0.2)
    return Counter(statuses.values())


def _tracker(catalog: SessionCatalog, session_id: str) -> SessionTracker:
    return SessionTracker(catalog.session(session_id))


async def _work(
    catalog: SessionCatalog, runs: SessionRuns, journal: Journal, kind: str, name: str
) -> None:
    """Begin one run after the other. A call that raises is repeated with its key."""
    for number in itertools.count(1):
        call = Call(kind, name, number)
        journal.begin(call)
        while call in journal.unknown:
            tracker = _tracker(catalog, str(call))
            given: Any = {"key": "request", "wait": 30, "hooks": tracker}
            try:
                if kind == "start":
                    await runs.start(str(call), _AGENT, str(call), **given)
                else:
                    async with tracker:
                        await runs.run(str(call), _AGENT, str(call), **given)
            except Exception as error:  # noqa: BLE001  # the journal tells them apart
                journal.fail(error)
            else:
                journal.acknowledge(call)
            await asyncio.sleep(0.2)


async def main(url: str, name: str, *kinds: str) -> None:
    """Write until SIGTERM."""
    logging.disable()
    set_tracing_disabled(True)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    engine = create_async_engine(url)
    catalog, journal = open_catalog(engine, create_tables=True), _Telling()
    load = Load(journal, [engine], writers=2, name=name)
    writing = asyncio.create_task(load.run(600))
    runs = SessionRuns(catalog, lease=LEASE)

    def agent_of(info: RunInfo) -> Any:
        return _AGENT, {"hooks": _tracker(catalog, info.session_id)}

    async with runs, runs.recovering(agent_of, every=timedelta(seconds=1)):
        working = [asyncio.create_task(_work(catalog, runs, journal, kind, name)) for kind in kinds]
        await stopped.wait()
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        load.stop()
        await writing
    await engine.dispose()


@contextlib.asynccontextmanager
async def client(url: URL, name: str, journal: Journal, *kinds: str) -> AsyncIterator[Script]:
    """A process that writes until the end of the block, unless the block kills it.

    Args:
        url: Where it writes to.
        name: What tells its calls from others'.
        journal: Where to write down what it tells.
        kinds: The kinds of runs that it begins besides.
    """
    arguments = [url.render_as_string(hide_password=False), name, *kinds]
    process = await asyncio.to_thread(Script, _SCRIPT, arguments, timeout=300)
    try:
        _keep(journal, await asyncio.to_thread(process.receive))
        reading = asyncio.create_task(asyncio.to_thread(_read, process, journal))
        yield process
        if process.running:
            os.kill(process.pid, signal.SIGTERM)
        await reading
    finally:
        await asyncio.to_thread(process.kill)


def _read(process: Script, journal: Journal) -> None:
    try:
        while True:
            _keep(journal, process.receive())
    except ProcessError:
        if process.exit_code() not in {0, -signal.SIGKILL}:
            raise


def _keep(journal: Journal, message: tuple[Any, ...]) -> None:
    method, *arguments = message
    getattr(journal, method)(*arguments)

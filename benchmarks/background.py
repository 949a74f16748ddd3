"""Runs that are followed: how soon others see a word, and what that costs.

A worker process runs agents whose model writes the time as its words, 50 of them per second. This
process follows them, so each word says how long it took to get here.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

from agents import Agent, set_tracing_disabled
from agents.models.interface import Model
from agents.testing import assistant_message
from openai.types.responses import Response, ResponseCompletedEvent, ResponseTextDeltaEvent
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata import SessionCatalog, SessionRuns

from .databases import Server
from .report import Report

SECTION = "Runs that are followed"
PAUSE = 0.02
"""Seconds between two words."""
SECONDS = 5.0
FOLLOWERS = 100
DELTA = "response.output_text.delta"


class Clock(Model):
    """Writes the time, word by word."""

    def __init__(self, words: int, pause: float = PAUSE) -> None:
        self._words = words
        self._pause = pause

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        """Is not used: all runs stream."""
        raise NotImplementedError

    async def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        """Give the words, and then the answer."""
        words = []
        for _each in range(self._words):
            await asyncio.sleep(self._pause)
            words.append(f"{time.time():.4f} ")
            yield ResponseTextDeltaEvent(
                type="response.output_text.delta",
                delta=words[-1],
                content_index=0,
                output_index=0,
                item_id="m",
                logprobs=[],
                sequence_number=0,
            )
        whole = Response.model_construct(
            id="r",
            created_at=0,
            model="",
            object="response",
            output=[assistant_message("".join(words))],
            usage=None,
        )
        yield ResponseCompletedEvent.model_construct(
            response=whole, sequence_number=0, type="response.completed"
        )


def clock(seconds: float = SECONDS, pause: float = PAUSE) -> Agent[Any]:
    """Return an agent that writes for some seconds."""
    return Agent("clock", model=Clock(int(seconds / pause), pause))


async def measure_background(server: Server, report: Report) -> None:
    """Measure delays, statements and times of runs that are followed."""
    set_tracing_disabled(True)
    url = await server.create("background")
    catalog = SessionCatalog.from_url(url, create_tables=True)
    runs = SessionRuns(catalog)
    address = url.render_as_string(hide_password=False)
    try:
        await runs.start("warm", clock(0.1), "Go")
        await _follow(runs, "warm")
        await _measure_delay(runs, address, report)
        await _measure_cost(runs, report)
        await _measure_followers(runs, address, report)
        await _measure_small_pool(address, report)
    finally:
        await runs.aclose(wait=0)
        await catalog.engine.dispose()
        await server.drop(url)


async def _measure_delay(runs: SessionRuns, address: str, report: Report) -> None:
    async with _worker(address, "delay", 1):
        delays = await _follow(runs, "delay-0")
    cuts = quantiles(delays, n=100)
    report.milliseconds(SECTION, "word to a follower elsewhere, p50 ms", 1000 * cuts[49], limit=250)
    report.milliseconds(SECTION, "word to a follower elsewhere, p99 ms", 1000 * cuts[98], limit=900)


async def _measure_cost(runs: SessionRuns, report: Report) -> None:
    """Alternate runs that are live with others."""
    taken: dict[bool, list[float]] = {False: [], True: []}
    statements: dict[bool, int] = {False: 0, True: 0}
    for number in range(3):
        for live in (False, True):
            name = f"cost-{live}-{number}"
            with _counted(runs.catalog.engine) as count:
                began = time.perf_counter()
                async with runs.stream(name, clock(), "Go", live=live) as run:
                    async for _ in run.stream_events():
                        pass
                taken[live].append(time.perf_counter() - began)
            statements[live] += count()
    ratio = min(taken[True]) / min(taken[False])
    report.ratio(SECTION, "time of a live run / of another one", ratio, limit=1.05)
    more = (statements[True] - statements[False]) / sum(taken[True])
    report.ratio(SECTION, "statements of a live run, more per second", more, limit=10)


async def _measure_followers(runs: SessionRuns, address: str, report: Report) -> None:
    """Follow ten runs by a hundred followers of this process."""
    async with _worker(address, "many", 10):
        with _counted(runs.catalog.engine) as count:
            began = time.perf_counter()
            names = [f"many-{number % 10}" for number in range(FOLLOWERS)]
            delays = await asyncio.gather(*(_follow(runs, name) for name in names))
            seconds = time.perf_counter() - began
    report.ratio(SECTION, "100 followers, statements per second", count() / seconds, limit=30)
    cuts = quantiles([each for own in delays for each in own], n=100)
    report.milliseconds(SECTION, "100 followers, p99 ms", 1000 * cuts[98])


async def _measure_small_pool(address: str, report: Report) -> None:
    """Run fifty live runs with fifty followers on five connections."""
    options: dict[str, Any] = {"pool_size": 5, "max_overflow": 0}
    catalog = SessionCatalog.from_url(address, engine_kwargs=options)
    async with catalog, SessionRuns(catalog) as runs:
        names = [f"pool-{number}" for number in range(50)]
        began = time.perf_counter()
        await asyncio.gather(*(runs.start(name, clock(pause=0.1), "Go") for name in names))
        await asyncio.gather(*(_follow(runs, name) for name in names))
        took = time.perf_counter() - began
    report.ratio(SECTION, "50 runs and followers, 5 connections, s (alone 5)", took)


async def _follow(runs: SessionRuns, name: str) -> list[float]:
    """Return the delay of each word. Fails if a word is missing or comes twice."""
    delays: list[float] = []
    words: list[str] = []
    async for each in runs.follow(name):
        now = time.time()
        if each["type"] == "snapshot":
            words = [word for part in each["events"] for word in part.get("delta", "").split()]
        elif each["type"] == DELTA:
            new = each["delta"].split()
            words += new
            delays += [now - float(word) for word in new]
        elif each["type"] == "item" and each["item"].get("role") == "assistant":
            text = each["item"]["content"][0]["text"]
            assert words == text.split(), f"{name}: {len(words)} of {len(text.split())} words"
    return delays


@asynccontextmanager
async def _worker(address: str, name: str, count: int) -> AsyncIterator[None]:
    """Let another process begin some runs."""
    command = [sys.executable, "-m", "benchmarks.background", address, name, str(count)]
    root = Path(__file__).parents[1]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root)  # noqa: ASYNC220, S603  # its own
    try:
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)
        yield
    finally:
        await asyncio.to_thread(process.wait)


class _counted:  # noqa: N801  # used like a function
    """Count the statements of an engine in a block."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine.sync_engine
        self._count = 0

    def __enter__(self) -> Any:
        event.listen(self._engine, "before_cursor_execute", self._add)
        return lambda: self._count

    def __exit__(self, *_: object) -> None:
        event.remove(self._engine, "before_cursor_execute", self._add)

    def _add(self, *_: object) -> None:
        self._count += 1


async def _work(address: str, name: str, count: int) -> None:
    set_tracing_disabled(True)
    catalog = SessionCatalog.from_url(address)
    async with catalog, SessionRuns(catalog) as runs:
        for number in range(count):
            await runs.start(f"{name}-{number}", clock(), "Go")
        print("begun", flush=True)


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1], sys.argv[2], int(sys.argv[3])))

"""A pytest plugin for the SDK's own tests of runs: they go through `SessionRuns`.

The name `Runner` is rebound in the collected test modules and in the helpers that they import, and
nowhere else. A run that `SessionRuns` can make is made by it, each on a session of its own, and the
test gets the SDK's result. If such a run pauses and the test decides about its calls on the state
of the result, the decisions go through `SessionRuns.decide`, and the run goes on by `resume`.

The other runs go to the SDK's runner, and are counted by their reason:

| reason | the test |
|---|---|
| `session` | brings a session |
| `server` | lets a server keep the history |
| `state` | brings a state that no such run has returned, or one that it has changed |
| `sync` | calls `run_sync` while an event loop works |

A streamed run begins when its events are first asked for: `SessionRuns.stream` is a block.

Environment: `SDK_RUNS_URL` is the URL of the database. `SDK_RUNS_REPORT` is a file for what each
test did. With `SDK_RUNS_CONTROL=1`, the runs go to the SDK's runner with a session of the SDK: what
fails then is not due to `SessionRuns`.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import httpx2
import pytest
from agents import Runner, RunResultStreaming, RunState
from agents.extensions.memory.sqlalchemy_session import SQLAlchemySession
from sqlalchemy import make_url
from sqlalchemy.pool import NullPool

from agents_session_metadata import SessionCatalog, SessionRuns

IS_CONTROL = os.environ.get("SDK_RUNS_CONTROL") == "1"
ON_A_SERVER = ("conversation_id", "previous_response_id", "auto_previous_response_id")

counts: Counter[str] = Counter()
"""The runs of the test at work: `runs`, or the reason why the SDK's runner made it."""
reports: dict[str, dict[str, Any]] = {}
numbers = itertools.count()


@cache
def catalog_of(loop: asyncio.AbstractEventLoop) -> SessionCatalog:  # the key of the cache
    url = make_url(os.environ["SDK_RUNS_URL"])
    # The connections of a loop that has ended cannot be closed, and a server has 300.
    options = {} if url.get_backend_name() == "sqlite" else {"poolclass": NullPool}
    return SessionCatalog.from_url(url, create_tables=True, engine_kwargs=options)


@dataclass
class Turn:
    """A paused run of `SessionRuns`, whose result a test has.

    It is used when it has gone on: a resumption that raises can be repeated.
    """

    runs: SessionRuns
    session_id: str
    result: Any
    is_used: bool = False


@dataclass
class Tracked:
    """A state of a paused run, and what a test has decided on it."""

    turn: Turn
    written: dict[str, Any]
    decided: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)


def track(runs: SessionRuns, session_id: str, result: Any) -> Any:
    """Remembers the run of a result, for the states that the test makes of it."""
    if not result.interruptions:
        return result
    turn, to_state = Turn(runs, session_id, result), result.to_state

    def tracked_state() -> Any:
        state = to_state()
        tracked = state.__dict__["_tracked"] = Tracked(turn, comparable(state))
        approve, reject = state.approve, state.reject

        def approve_tracked(item: Any, always_approve: bool = False) -> None:
            approve(item, always_approve)
            tracked.decided.append((item, decision(approve=True, always=always_approve)))

        def reject_tracked(
            item: Any, always_reject: bool = False, *, rejection_message: str | None = None
        ) -> None:
            reject(item, always_reject, rejection_message=rejection_message)
            chosen = decision(approve=False, always=always_reject, message=rejection_message)
            tracked.decided.append((item, chosen))

        state.__dict__.update(approve=approve_tracked, reject=reject_tracked)
        return state

    result.__dict__["to_state"] = tracked_state
    return result


def decision(*, approve: bool, always: bool, message: str | None = None) -> dict[str, Any]:
    given: dict[str, Any] = {"approve": approve}
    if always:
        given["always"] = True
    return given if message is None else {**given, "message": message}


def comparable(state: Any) -> dict[str, Any]:
    """What a state stores, without the decisions."""
    written: dict[str, Any] = state.to_json(strict_context=False)
    written["context"] = {k: v for k, v in written["context"].items() if k != "approvals"}
    return json.loads(json.dumps(written, default=str))  # type: ignore[no-any-return]


def tracked_turn(state: Any) -> Tracked | None:
    """The turn of a state, if the test has done no more with it than to decide about its calls."""
    tracked: Tracked | None = state.__dict__.get("_tracked")
    if tracked is None or tracked.turn.is_used or comparable(state) != tracked.written:
        return None
    waiting = {item.call_id for item in state.get_interruptions()}
    return tracked if {item.call_id for item, _ in tracked.decided} <= waiting else None


class Part:
    """One call of a test: how it is made, decided before it begins."""

    def __init__(self, agent: Any, given: Any, options: dict[str, Any]) -> None:
        self.agent, self.given, self.options = agent, given, options
        self.tracked = tracked_turn(given) if isinstance(given, RunState) else None
        self.reason = "runs"
        if options.get("session") is not None:
            self.reason = "session"
        elif any(options.get(name) for name in ON_A_SERVER):
            self.reason = "server"
        elif isinstance(given, RunState) and self.tracked is None:
            self.reason = "state"
        counts[self.reason] += 1
        self.session_id = f"session-{next(numbers)}"
        if self.tracked is not None:
            self.session_id = self.tracked.turn.session_id
            context = self.tracked.turn.result.context_wrapper.context
            if context is not None:
                self.options = {"context": context, **options}
        if self.reason == "runs":
            dropped = ("session", *ON_A_SERVER)
            self.options = {k: v for k, v in self.options.items() if k not in dropped}

    async def decide(self, runs: SessionRuns) -> None:
        assert self.tracked is not None
        decided, self.tracked.decided = self.tracked.decided, []
        for item, chosen in decided:
            await runs.decide(self.session_id, item.call_id, **chosen)

    async def run(self) -> Any:
        runs = SessionRuns(catalog_of(asyncio.get_running_loop()))
        options: dict[str, Any] = {"strict_context": False, **self.options}
        if self.tracked is not None:
            await self.decide(runs)
            run = await runs.resume(self.session_id, self.agent, **options)
            self.tracked.turn.is_used = True
        else:
            run = await runs.run(self.session_id, self.agent, self.given, **options)
        return track(runs, self.session_id, run.result)

    def control_session(self) -> Any:
        engine = catalog_of(asyncio.get_running_loop()).engine
        return SQLAlchemySession(self.session_id, engine=engine, create_tables=True)


class StreamedByRuns:
    """A result of `run_streamed`, which begins with the first event."""

    def __init__(self, part: Part) -> None:
        self.__dict__.update(_part=part, _result=None)

    @property
    def __class__(self) -> Any:
        return RunResultStreaming

    def __str__(self) -> str:
        return str(self._result)

    def __getattr__(self, name: str) -> Any:
        assert self._result is not None, f"the test reads {name} before the run begins"
        return getattr(self._result, name)

    def __setattr__(self, name: str, value: Any) -> None:
        assert self._result is not None, f"the test sets {name} before the run begins"
        setattr(self._result, name, value)

    async def stream_events(self) -> AsyncIterator[Any]:
        part = self._part
        if self._result is not None:  # asked for once more
            async for event in self._result.stream_events():
                yield event
            return
        runs = SessionRuns(catalog_of(asyncio.get_running_loop()))
        options: dict[str, Any] = {"strict_context": False, **part.options}
        if part.tracked is not None:
            await part.decide(runs)
            stream = runs.stream_resume(part.session_id, part.agent, **options)
        else:
            stream = runs.stream(part.session_id, part.agent, part.given, **options)
        async with stream as run:
            self.__dict__["_result"] = track(runs, part.session_id, run.result)
            async for event in run.stream_events():
                yield event
        if part.tracked is not None:
            part.tracked.turn.is_used = True


class RunnerByRuns:
    """What the tests get for `Runner`."""

    @classmethod
    async def run(cls, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002
        part = Part(starting_agent, input, options)
        if part.reason != "runs":
            return await Runner.run(starting_agent, input, **options)
        if IS_CONTROL:
            options = {**options, "session": part.control_session()}
            return await Runner.run(starting_agent, input, **options)
        return await part.run()

    @classmethod
    def run_sync(cls, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(cls.run(starting_agent, input, **options))
        counts["sync"] += 1
        return Runner.run_sync(starting_agent, input, **options)

    @classmethod
    def run_streamed(cls, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002
        if isinstance(input, RunState) and not hasattr(SessionRuns, "stream_resume"):
            counts["state"] += 1
            return Runner.run_streamed(starting_agent, input, **options)
        part = Part(starting_agent, input, options)
        if part.reason != "runs":
            return Runner.run_streamed(starting_agent, input, **options)
        if IS_CONTROL:
            options = {**options, "session": part.control_session()}
            return Runner.run_streamed(starting_agent, input, **options)
        return StreamedByRuns(part)


# The client that the SDK uses, by the name that its tests import.
sys.modules.setdefault("httpx", httpx2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Leaves out the tests in which no run can be found."""
    others = [item for item in items if not makes_runs(item.function)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


def makes_runs(function: Any) -> bool:
    """Whether a test, or what it calls in the modules of the tests, names `Runner`."""
    left, seen = [inspect.unwrap(function)], set[int]()
    while left:
        found = left.pop()
        if found is Runner:
            return True
        if id(found) in seen or not str(getattr(found, "__module__", "")).startswith("tests."):
            continue
        seen.add(id(found))
        if isinstance(found, type):
            left += vars(found).values()
        elif inspect.isfunction(found):
            left += [found.__globals__.get(name) for name in names_in(found.__code__)]
    return False


def names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def pytest_collection_finish() -> None:
    # Some tests collect garbage. What is imported is none, and looking for it takes long.
    gc.collect()
    gc.freeze()
    for name, module in list(sys.modules.items()):
        if name.startswith("tests.") and vars(module).get("Runner") is Runner:
            module.Runner = RunnerByRuns  # type: ignore[attr-defined]


def pytest_runtest_setup() -> None:
    counts.clear()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome == "failed":
        made = {"outcome": report.outcome, "runs": dict(counts)}
        if report.outcome == "failed":
            made["error"] = report.longreprtext
        reports[report.nodeid] = made


def pytest_sessionfinish() -> None:
    Path(os.environ["SDK_RUNS_REPORT"]).write_text(json.dumps(reports, indent=1))

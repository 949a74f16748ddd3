"""Runs that fail, and what makes them fail: models, locks, lost connections, stored times."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from agents import Agent, ModelProvider, function_tool
from agents.models.interface import Model
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext
from servers import Database
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from agents_session_metadata import SessionRuns
from conformance import raw
from conformance.running import USAGE

RUNS_TABLE = "agent_sessions_metadata_runs"
KEYS_TABLE = "agent_sessions_metadata_run_keys"
DECISIONS_TABLE = "agent_sessions_metadata_run_decisions"

Step = str | Sequence[str] | Exception | Callable[[], Any]
"""A text, the names of tools to call, an error, or a function that returns one of them."""


class Turns(Model):
    """A model that answers by the number of its answers since the last message of the user.

    It gives other ids to its calls each time that it is asked, so an answer that was lost is seen.
    An error is raised once; then the next step takes its place.
    """

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.answers = 0

    async def _next(self, given: Any) -> ScriptedModel:
        items = [] if isinstance(given, str) else list(given)
        seen: set[str] = set()
        for item in items:
            if item.get("role") == "user":
                seen.clear()
            elif item.get("type") == "function_call":
                seen.add(item["call_id"].split("-")[0])
        step: Any = self.steps[len(seen)]
        if callable(step):
            step = step()
            step = await step if asyncio.iscoroutine(step) else step
        if isinstance(step, Exception):
            if step in self.steps:
                self.steps.remove(step)
            raise step
        self.answers += 1
        if isinstance(step, str):
            return ScriptedModel([[assistant_message(step)]], default_usage=USAGE)
        turn = uuid.uuid4().hex[:8]
        calls = [function_call(name, {}, call_id=f"{turn}-{n}") for n, name in enumerate(step)]
        return ScriptedModel([calls], default_usage=USAGE)

    async def get_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002  # as the SDK calls it
        *args: Any,
        **kw: Any,
    ) -> Any:
        model = await self._next(input)
        return await model.get_response(system_instructions, input, *args, **kw)

    async def stream_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002  # as the SDK calls it
        *args: Any,
        **kw: Any,
    ) -> AsyncIterator[Any]:
        model = await self._next(input)
        async for event in model.stream_response(system_instructions, input, *args, **kw):
            yield event


class Named(ModelProvider):
    """A provider of models by their names."""

    def __init__(self, **models: Model) -> None:
        self.models = models

    def get_model(self, model_name: str | None) -> Model:
        return self.models[str(model_name)]


class Till:
    """A tool `charge` that notes the id of each of its calls, and one that calls a function."""

    def __init__(self) -> None:
        self.charged: list[str] = []
        self.others: list[str] = []
        self.on_charge: Callable[[], Any] = lambda: None
        self.on_other: Callable[[], Any] = lambda: None

        @function_tool
        async def charge(context: ToolContext[Any]) -> str:
            self.charged.append(context.tool_call_id)
            await _called(self.on_charge)
            return "charged"

        @function_tool(failure_error_function=None)
        async def other(context: ToolContext[Any]) -> str:
            self.others.append(context.tool_call_id)
            await _called(self.on_other)
            return "done"

        self.charge, self.other = charge, other

    def agent(self, *steps: Step, name: str = "till", **arguments: Any) -> Agent[Any]:
        tools = [self.charge, self.other, *arguments.pop("tools", [])]
        return Agent(name=name, model=Turns(*steps), tools=tools, **arguments)


async def _called(function: Callable[[], Any]) -> None:
    result = function()
    if asyncio.iscoroutine(result):
        await result


def once(error: BaseException) -> Callable[[], None]:
    """A function that raises an error when it is first called."""
    left = [error]

    def function() -> None:
        if left:
            raise left.pop()

    return function


async def ids_of_calls(runs: SessionRuns, session_id: str = "chat") -> list[str]:
    """The ids of the calls in the history; each must have one output, and be there once."""
    items: list[Any] = await runs.catalog.session(session_id).get_items()
    ids = [item["call_id"] for item in items if item.get("type") == "function_call"]
    outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    assert len(set(ids)) == len(ids)
    assert sorted(ids) == sorted(outputs)
    return ids


async def status(runs: SessionRuns, session_id: str = "chat") -> str | None:
    info = await runs.get(session_id)
    return None if info is None else info.status


async def expire(engine: AsyncEngine) -> None:
    """Ends all leases, as time does."""
    await raw.execute(engine, f"UPDATE {RUNS_TABLE} SET expires = 1")


async def move(engine: AsyncEngine, table: str, column: str, seconds: float) -> None:
    """Moves the stored times of a column."""
    by = round(seconds * 1_000_000)
    await raw.execute(engine, f"UPDATE {table} SET {column} = {column} + ({by})")


async def lose_connections(engine: AsyncEngine) -> None:
    """Ends the connections that wait in the pool of an engine, as a failover does."""
    url = engine.url
    killer = create_async_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    for number in await raw.other_connections(killer):
        statement = (
            f"SELECT pg_terminate_backend({number})"
            if engine.dialect.name == "postgresql"
            else f"KILL {number}"
        )
        async with killer.connect() as connection:
            with contextlib.suppress(Exception):  # it may have gone meanwhile
                await connection.execute(text(statement))
    await killer.dispose()


@contextlib.asynccontextmanager
async def locked(database: Database, table: str = "agent_sessions") -> AsyncIterator[None]:
    """Another transaction holds all rows of a table; on SQLite the whole database."""
    engine = create_async_engine(database.url, poolclass=NullPool)
    async with engine.connect() as connection:
        if database.kind == "sqlite":
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            await connection.exec_driver_sql(f"SELECT session_id FROM {table} FOR UPDATE")
        yield
        await connection.rollback()
    await engine.dispose()


async def until(condition: Callable[[], Any], *, seconds: float = 20) -> None:
    """Waits until a condition holds, which may be a coroutine."""
    for _ in range(round(seconds / 0.02)):
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the condition does not hold in time")

"""Agents that need no model, and a count of what their runs write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents import Agent, RunHooks, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.usage import Usage
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

USAGE = Usage(requests=1, input_tokens=100, output_tokens=10, total_tokens=110)
TABLE = "agent_sessions_metadata"


class Seconds:
    """A clock that tools move on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def agent(name: str, *steps: Any, usage: Usage = USAGE, **arguments: Any) -> Agent[Any]:
    """An agent whose model answers with these steps; text is an answer, a list is tool calls."""
    answers = [[assistant_message(step)] if isinstance(step, str) else step for step in steps]
    model = ScriptedModel(answers, default_usage=usage)
    return Agent(name=name, model=model, **arguments)


def calls(*tools: str, first: int = 1) -> Sequence[Any]:
    """One answer of a model: calls of these tools, with ids `call-1` and so on."""
    return [function_call(tool, {}, call_id=f"call-{first + n}") for n, tool in enumerate(tools)]


def waiting_tool(clock: Seconds, name: str, seconds: float, error: Exception | None = None) -> Any:
    """A tool that takes its time."""

    async def work() -> str:
        clock.now += seconds
        if error is not None:
            raise error
        return "done"

    handler = {} if error is None else {"failure_error_function": None}
    return function_tool(name_override=name, **handler)(work)


class Recording(RunHooks[Any]):
    """Hooks of an application: what was called, with the names of what it was called with."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    async def on_llm_start(self, context, agent, system_prompt, input_items):
        self.seen.append(("llm start", agent.name, system_prompt, len(input_items)))

    async def on_llm_end(self, context, agent, response):
        self.seen.append(("llm end", agent.name, response.usage.input_tokens))

    async def on_agent_start(self, context, agent):
        self.seen.append(("agent start", agent.name))

    async def on_agent_end(self, context, agent, output):
        self.seen.append(("agent end", agent.name, output))

    async def on_handoff(self, context, from_agent, to_agent):
        self.seen.append(("handoff", from_agent.name, to_agent.name))

    async def on_tool_start(self, context, agent, tool):
        self.seen.append(("tool start", agent.name, tool.name, context.tool_call_id))

    async def on_tool_end(self, context, agent, tool, result):
        self.seen.append(("tool end", agent.name, tool.name, context.tool_call_id, result))


def count_writes(engine: AsyncEngine) -> list[list[str]]:
    """The statements of each committed transaction that writes metadata, as they come."""
    transactions: list[list[str]] = []
    sync = engine.sync_engine

    @event.listens_for(sync, "begin")
    def begin(connection):
        connection.info["writes"] = []

    @event.listens_for(sync, "before_cursor_execute")
    def execute(connection, cursor, statement, parameters, context, executemany):
        words = statement.upper().split(None, 1)
        if words[0] not in {"SELECT", "PRAGMA", "CREATE", "DESCRIBE"} and TABLE in statement:
            connection.info["writes"].append(statement)

    @event.listens_for(sync, "commit")
    def commit(connection):
        if connection.info.get("writes"):
            transactions.append(connection.info.pop("writes"))

    return transactions

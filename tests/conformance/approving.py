"""Agents that stop for approvals, and what their tools did."""

from __future__ import annotations

from typing import Any

from agents import Agent, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from agents_session_metadata import PausedRun, PausedRuns, SessionCatalog


def call(tool: str, call_id: str, **arguments: Any) -> Any:
    """A call of a tool."""
    return function_call(tool, arguments, call_id=call_id)


class Deployer:
    """A tool `deploy` that needs an approval, a tool `look` that does not, and their calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

        @function_tool(needs_approval=True)
        async def deploy(target: str) -> str:
            self.calls.append(f"deploy {target}")
            return f"deployed {target}"

        @function_tool
        async def look(target: str) -> str:
            self.calls.append(f"look {target}")
            return f"looked at {target}"

        self.tools: list[Any] = [deploy, look]

    def agent(self, *steps: Any, name: str = "deployer", **arguments: Any) -> Agent[Any]:
        """An agent with the tools: text is an answer, a list is tool calls."""
        answers = [[assistant_message(step)] if isinstance(step, str) else step for step in steps]
        tools = [*self.tools, *arguments.pop("tools", [])]
        return Agent(name=name, model=ScriptedModel(answers), tools=tools, **arguments)


def deploys(*call_ids: str) -> list[Any]:
    """One answer of a model: a call of `deploy` for each id."""
    return [call("deploy", call_id, target=call_id) for call_id in call_ids]


def kinds(items: list[Any]) -> list[str]:
    """What a history consists of: types or roles, with call ids."""
    return [
        " ".join(filter(None, [item.get("type") or item.get("role"), item.get("call_id")]))
        for item in items
    ]


def paused_runs(engine: Any, **arguments: Any) -> PausedRuns:
    """Paused runs of a catalog that creates its tables."""
    return PausedRuns(SessionCatalog(engine, create_tables=True), **arguments)


async def pause(
    paused: PausedRuns,
    agent: Agent[Any],
    session_id: str = "chat",
    session: Any = None,
    **arguments: Any,
) -> PausedRun:
    """Run an agent until it is interrupted, and store the run."""
    session = session or paused.catalog.session(session_id)
    result = await Runner.run(agent, "Apply the plan", session=session, **arguments)
    assert result.interruptions
    return await paused.pause(session, result)


async def pause_approved(paused: PausedRuns, agent: Agent[Any]) -> None:
    """As `pause`, and approve the call `c1`."""
    await pause(paused, agent)
    await paused.decide("chat", "c1", approve=True)

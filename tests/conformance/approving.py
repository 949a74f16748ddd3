"""Agents that stop for approvals, and what their tools did."""

from __future__ import annotations

from typing import Any

from agents import Agent, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call


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

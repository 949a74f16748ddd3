"""A run that meets a failure at one of its moments, and is repeated by its key until it ends.

A moment is the beginning of a call of a model or tool, or the end of a tool. Models give other ids
to their calls each time that they are asked. Answers and returned tools are noted in files, which
several processes share.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

from agents import Agent, RunConfig, function_tool
from agents.tool_context import ToolContext
from pydantic import BaseModel

from agents_session_metadata import SessionCatalog, SessionRuns, SessionTracker
from conformance.failing import Named, Turns

LEASE = timedelta(seconds=1)
MOMENTS = 16
"""The number of moments of a run that meets no failure."""
SHAPE = ["user", "charge look", "charge", "ask charge", "message"]

Act: TypeAlias = "Callable[[str], Awaitable[None] | None]"
"""What happens at a moment, which it gets the kind of."""


class SimulatedError(Exception):
    """The failure of a model or a tool."""


class Nothing(BaseModel):
    """The arguments of an agent that is used as a tool."""


class Workload:
    """An agent, whose models and tools note what they have done in files of a directory."""

    def __init__(self, directory: Path, act: Act) -> None:
        self._directory = directory
        self.act = act

        def tool(name: str) -> Any:
            async def work(context: ToolContext[Any]) -> str:
                await self._moment("tool")
                await self._moment("end of tool")
                self._note("returned", context.tool_call_id)
                return f"done: {name}"

            return function_tool(name_override=name, failure_error_function=None)(work)

        class Noted(Turns):
            async def _next(model, given: Any) -> Any:  # noqa: N805  # `self` is the workload
                await self._moment("model")
                found = await super()._next(given)
                self._note("answers", "one")
                return found

        charge, look = tool("charge"), tool("look")
        inner = Agent("inner", model="inner", tools=[look])
        ask = inner.as_tool("ask", "Asks.", parameters=Nothing, failure_error_function=None)
        self.agent = Agent("outer", model="outer", tools=[charge, look, ask])
        outer = Noted(["charge", "look"], ["charge"], ["ask", "charge"], "Done")
        models = Named(outer=outer, inner=Noted(["look"], "Found"))
        self.config = RunConfig(model_provider=models)

    async def _moment(self, kind: str) -> None:
        acting = self.act(kind)
        if acting is not None:
            await acting

    def _note(self, file: str, line: str) -> None:
        with (self._directory / file).open("a", encoding="utf-8") as noted:
            noted.write(f"{line}\n")

    def lines(self, file: str) -> list[str]:
        path = self._directory / file
        return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []

    async def run(self, catalog: SessionCatalog, *, wait: float = 60) -> Any:
        """Sends the request."""
        runs = SessionRuns(catalog, lease=LEASE)
        async with SessionTracker(catalog.session("chat")) as hooks:
            given: dict[str, Any] = {"hooks": hooks, "run_config": self.config}
            return await runs.run("chat", self.agent, "Begin", key="request", wait=wait, **given)

    async def check(self, catalog: SessionCatalog, *, again: set[str], lost: int) -> None:
        """What must hold at the end.

        Args:
            catalog: The catalog.
            again: The calls that may have returned more than once.
            lost: How many answers may have been lost before they were recorded.
        """
        items: list[Any] = await catalog.session("chat").get_items()
        by_turn: dict[str, list[str]] = {}
        ids: dict[str, str] = {}
        for item in items:
            kind = item.get("type") or item.get("role")
            if kind == "function_call":
                by_turn.setdefault(item["call_id"].split("-")[0], []).append(item["name"])
                assert item["call_id"] not in ids, "a call is in the history twice"
                ids[item["call_id"]] = item["name"]
            elif kind != "function_call_output":
                by_turn[kind] = [kind]
        assert [" ".join(each) for each in by_turn.values()] == SHAPE
        outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
        assert sorted(outputs) == sorted(ids)

        returned = Counter(self.lines("returned"))
        work = {call for call, name in ids.items() if name != "ask"}
        assert work <= returned.keys(), "an output is in the history, and its tool did not return"
        inside = returned.keys() - work
        assert len(inside) == 1, "the calls of the agent inside have got other ids"
        twice = {call for call, count in returned.items() if count > 1}
        # What happened inside an agent that had not returned runs again, with the same ids.
        assert twice <= again | inside, "a tool ran again, although its output was recorded"

        booked = sum(row.requests for row in await catalog.usage())
        received = len(self.lines("answers"))
        assert received - lost <= booked <= received
        assert booked >= 6
        assert (await SessionRuns(catalog).list()).runs == []


def at(number: int, act: Act) -> Act:
    """Acts at the moment of this number, and at no other one."""
    seen = 0

    def pass_moment(kind: str) -> Awaitable[None] | None:
        nonlocal seen
        seen += 1
        return act(kind) if seen == number else None

    return pass_moment


async def nothing(_: str) -> None:
    await asyncio.sleep(0)

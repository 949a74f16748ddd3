"""What other calls do while a session has a run, as the table in `docs/runs.md` says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx2 as httpx
import pytest
from agents.exceptions import UserError

from agents_session_metadata import (
    RunInterruptedError,
    SessionBusyError,
    SessionChangedError,
    SessionPausedError,
    SessionRuns,
)
from agents_session_metadata.http import sessions_app
from conformance import raw
from conformance.test_runs import RUNS_TABLE, Shop, start

STATES = ("running", "interrupted", "waiting", "failed", "none")
Call = Callable[["Beside"], Awaitable[Any]]


class Beside:
    """A session whose run is in one of the states, and calls beside it."""

    def __init__(self, catalog: Any, shop: Shop) -> None:
        self.catalog = catalog
        self.shop = shop
        self.runs = SessionRuns(catalog)
        self.task: asyncio.Task[Any] | None = None

    async def enter(self, state: str) -> None:
        agent = self.shop.agent(["look c1"], ["pay c2"] if state == "waiting" else ["fetch c2"])
        if state == "none":
            await self.runs.run("chat", self.shop.agent("Before"), "Hi")
        elif state == "failed":
            with pytest.raises(UserError):
                await self.runs.run("chat", agent, "Hi")
        elif state == "waiting":
            await self.runs.run("chat", agent, "Hi")
        else:
            self.task = await start(self.runs, self.shop, agent)
            if state == "interrupted":
                await raw.execute(self.catalog.engine, f"UPDATE {RUNS_TABLE} SET expires = 0")

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task})

    async def run(self) -> Any:
        return (await self.runs.run("chat", self.shop.agent("New"), "Hello")).final_output

    async def resume(self) -> Any:
        self.shop.gate, self.shop.fails = None, False
        run = await self.runs.resume("chat", self.shop.agent("Done"))
        return run.final_output or [call.call_id for call in run.interruptions]

    async def decide(self) -> Any:
        return (await self.runs.decide("chat", "c2", approve=True)).undecided

    async def rewind(self) -> Any:
        return bool(await self.catalog.rewind_session("chat", turns=1))

    async def fork(self) -> Any:
        await self.catalog.fork_session("chat", "copy")
        return "run" in await self.catalog.get_metadata("copy")

    async def fork_before(self) -> Any:
        first = (await self.catalog.list_items("chat")).items[0]
        await self.catalog.fork_session("chat", "copy", before=first.item_id)
        return "run" in await self.catalog.get_metadata("copy")

    async def append(self) -> Any:
        transport = httpx.ASGITransport(app=sessions_app(self.catalog, scope=None))
        item = {"type": "message", "role": "user", "content": "Hello"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.post("/conversations/chat/items", json={"items": [item]})
        return answer.status_code, answer.headers.get("x-should-retry")

    async def add_items(self) -> Any:
        await self.catalog.session("chat").add_items([raw.message("by others")])
        try:
            return await self.resume()
        except (SessionBusyError, SessionChangedError, LookupError) as error:
            return type(error)

    async def clear(self) -> Any:
        await self.catalog.session("chat").clear_session()
        return (await self.runs.list()).runs

    async def delete(self) -> Any:
        await self.catalog.delete_session("chat")
        return (await self.runs.list()).runs

    async def delete_sessions(self) -> Any:
        return await self.catalog.delete_sessions(inactive_for=timedelta(0))

    async def export(self) -> Any:
        [record] = [record async for record in self.catalog.export_sessions()]
        return sorted(record.keys() - {"items", "format"}), record["metadata"]

    async def replace(self) -> Any:
        [record] = [record async for record in self.catalog.export_sessions()]
        await self.catalog.import_sessions([record], on_conflict="replace")
        return (await self.runs.list()).runs, await self.catalog.get_metadata("chat")


BUSY, PAUSED = SessionBusyError, SessionPausedError
EXPORTED = (["created_at", "metadata", "session_id", "updated_at"], {"agent": "shop"})
REFUSED = (409, "false")
TABLE: dict[str, tuple[Any, ...]] = {
    #         running, interrupted, waiting, failed, none
    "run": (BUSY, RunInterruptedError, PAUSED, "New", "New"),
    "resume": (BUSY, "Done", ["c2"], "Done", "Before"),
    "decide": (BUSY, RunInterruptedError, (), LookupError, LookupError),
    "rewind": (BUSY, BUSY, PAUSED, True, True),
    "fork": (BUSY, BUSY, PAUSED, False, False),
    "fork_before": (BUSY, BUSY, PAUSED, False, False),
    "append": (REFUSED, REFUSED, REFUSED, (200, None), (200, None)),
    "add_items": (BUSY, *[SessionChangedError] * 3, "Before"),
    "clear": ([], [], [], [], []),
    "delete": ([], [], [], [], []),
    "delete_sessions": (0, 0, 0, 1, 1),
    "export": (EXPORTED,) * 5,
    "replace": (([], {"agent": "shop"}),) * 5,
}


# One call after the other: what SQL each runs is tested where the call is.
@pytest.mark.logic
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("call", TABLE)
async def test_the_table(catalog, state, call) -> None:
    beside = Beside(catalog, Shop())
    expected = TABLE[call][STATES.index(state)]
    await beside.enter(state)
    asking = getattr(beside, call)()
    try:
        if isinstance(expected, type) and call != "add_items":
            with pytest.raises(expected):
                await asking
        else:
            assert await asking == expected
        if state == "failed" and call in ("rewind", "fork", "append"):
            assert (await beside.runs.list()).runs == []
    finally:
        await beside.close()


async def test_retention_deletes_what_has_waited_for_long(catalog) -> None:
    beside = Beside(catalog, Shop())
    await beside.enter("waiting")
    days = 91 * 86_400_000_000
    await raw.execute(catalog.engine, f"UPDATE {RUNS_TABLE} SET paused_at = paused_at - {days}")
    assert await beside.delete_sessions() == 1

"""A long run that can be killed at any statement, and what must hold when it has come to its end.

The run takes twelve turns: parallel tools, an agent as a tool, a handoff and an approval. Its model
gives other call ids each time that it is asked, so an answer that was lost would be seen.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from processes import Script

from agents_session_metadata import SessionCatalog, SessionRuns
from conformance import raw

SCRIPT = """
import asyncio, os, signal, sys, uuid
from agents import Agent, ModelResponse, RunConfig, Usage, function_tool, set_tracing_disabled
from agents.models.interface import Model, ModelProvider
from agents.testing import assistant_message, function_call
from agents.tool_context import ToolContext
from sqlalchemy import event
from agents_session_metadata import SessionCatalog, SessionRuns

set_tracing_disabled(True)
url, log, moment = sys.argv[1], sys.argv[2], int(sys.argv[3])
seen = 0

def note(*words):
    with open(log, "a") as file:
        file.write(" ".join(words) + "\\n")

def pass_moment(*_, **__):
    global seen
    seen += 1
    if seen == moment:
        os.kill(os.getpid(), signal.SIGKILL)

@function_tool
async def look(context: ToolContext, place: str) -> str:
    note("look", context.tool_call_id)
    pass_moment()
    return "saw " + place

@function_tool(needs_approval=True)
async def pay(context: ToolContext, amount: int) -> str:
    note("pay", context.tool_call_id)
    pass_moment()
    return f"paid {amount}"

STEPS = {
    "first": [["look", "look"], ["look"], ["ask"], ["look", "look", "look"], ["look"], ["go"]],
    "second": [["look"], ["look", "pay"], ["look"], ["look", "look"], ["look"], []],
    "inner": [["look"], []],
}
ARGUMENTS = {"look": {"place": "x"}, "pay": {"amount": 7}, "ask": {"input": "why"}, "go": {}}
NAMES = {"go": "transfer_to_second"}

class Steps(Model):
    async def get_response(self, system_instructions, input, *args, **kwargs):
        name = system_instructions
        items = [] if isinstance(input, str) else input
        ids = [each["call_id"] for each in items if each.get("type") == "function_call"]
        turn = len({each.split("-")[1] for each in ids if each.startswith(name)})
        tools = STEPS[name][turn]
        output = [
            function_call(NAMES.get(tool, tool), ARGUMENTS[tool],
                          call_id=f"{name}-{turn}-{number}-{uuid.uuid4().hex[:6]}")
            for number, tool in enumerate(tools)
        ] or [assistant_message(f"end of {name}")]
        pass_moment()
        return ModelResponse(output, Usage(requests=1, input_tokens=3, output_tokens=2,
                                           total_tokens=5), None)
    def stream_response(self, *args, **kwargs):
        raise NotImplementedError

class Provider(ModelProvider):
    def get_model(self, name):
        return Steps()

inner = Agent("inner", instructions="inner", model="m", tools=[look])
second = Agent("second", instructions="second", model="m", tools=[look, pay])
asking = inner.as_tool("ask", "Asks.")
agent = Agent("first", instructions="first", model="m", tools=[look, asking], handoffs=[second])

async def main():
    catalog = SessionCatalog.from_url(url, create_tables=True)
    await catalog._store.database.ensure("runs")
    engine = catalog.engine.sync_engine
    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        event.listen(engine, name, pass_moment)
    runs = SessionRuns(catalog)
    options = {"run_config": RunConfig(model_provider=Provider()), "max_turns": 20}
    run = None
    while run is None or run.interruptions:
        info = await runs.get("chat")
        if info is None:
            run = await runs.run("chat", agent, "Begin", key="request", **options)
            continue
        if info.status == "waiting":
            for call in info.undecided:
                await runs.decide("chat", call.call_id, approve=True, by="greta")
        run = await runs.resume("chat", agent, **options)
    emit([run.final_output, seen])
    await catalog.engine.dispose()

asyncio.run(main())
"""

SHAPE = [
    *["user", "2 look", "1 look", "1 ask", "3 look", "1 look", "1 go"],
    *["1 look", "1 look 1 pay", "1 look", "2 look", "1 look", "message"],
]


async def run_until_it_ends(
    catalog: SessionCatalog, url: str, log: Path, moments: Sequence[int]
) -> int:
    """Kills a process at each of the moments, and lets another one go on.

    Returns how many processes were killed.
    """
    calls_before: Counter[str] = Counter()
    recorded: set[str] = set()
    decided = 0
    for kills, moment in enumerate((*moments, 0)):
        [result] = await asyncio.to_thread(_run, url, log, moment) or [None]
        calls = Counter(_lines(log))
        for line, count in calls.items():
            if line.split()[1] in recorded:
                assert count == calls_before[line], f"{line} ran again, although it was recorded"
        calls_before = calls
        if result is not None:
            await _check_end(catalog, result[0], recorded, calls_before, kills)
            assert len(await SessionRuns(catalog).decisions("chat")) >= min(1, decided)
            return kills
        await catalog.engine.dispose()
        decided = len(await SessionRuns(catalog).decisions("chat"))
        recorded = await recorded_calls(catalog)
        await raw.execute(catalog.engine, "UPDATE agent_sessions_metadata_runs SET expires = 0")
        infos = (await SessionRuns(catalog).list()).runs
        assert {each.status for each in infos} <= {"interrupted", "waiting"}
    raise AssertionError("the last process is not killed")


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def _run(url: str, log: Path, moment: int) -> list[Any] | None:
    script = Script(SCRIPT, [url, log, moment], timeout=120)
    try:
        return [script.receive()]
    except AssertionError:
        if script.exit_code() != -9:
            raise
        return None
    finally:
        script.kill()


async def recorded_calls(catalog: SessionCatalog) -> set[str]:
    """The ids of the calls whose output is recorded or in the history."""
    rows = await raw.execute(
        catalog.engine, "SELECT value FROM agent_sessions_metadata_run_steps ORDER BY number"
    )
    steps = [json.loads(row[0]) for row in rows]
    items = await catalog.session("chat").get_items()
    outputs = {each["call_id"] for each in items if each.get("type") == "function_call_output"}
    return outputs | {step["call"].split()[1] for step in steps if "output" in step}


async def _check_end(
    catalog: SessionCatalog, output: str, recorded: set[str], calls: Counter[str], kills: int
) -> None:
    assert output == "end of second"
    items = await catalog.session("chat").get_items()
    found: list[str] = []
    waiting: list[str] = []
    by_turn: dict[str, Counter[str]] = {}
    for item in items:
        kind = item.get("type") or item.get("role")
        if kind == "function_call":
            turn = "-".join(item["call_id"].split("-")[:2])
            name = "go" if item["name"].startswith("transfer") else item["name"]
            if turn not in by_turn:
                found.append(turn)
            by_turn.setdefault(turn, Counter())[name] += 1
            waiting.append(item["call_id"])
        elif kind == "function_call_output":
            waiting.remove(item["call_id"])
        else:
            found.append(kind)
    assert waiting == []
    shape = [
        " ".join(f"{n} {name}" for name, n in by_turn[each].items()) if each in by_turn else each
        for each in found
    ]
    assert shape == SHAPE
    ids = [item["call_id"] for item in items if item.get("type") == "function_call"]
    assert len(ids) == len(set(ids))
    outer = {each for each in recorded if not each.startswith("inner")}
    assert outer <= set(ids), "a recorded output was lost"
    # A call that was killed between its return and its commit has run again, with the same id.
    assert sum(calls.values()) - len(calls) <= 3 * kills
    assert (await SessionRuns(catalog).list()).runs == []
    assert await catalog.get_metadata("chat") == {"agent": "first", "run": "completed"}
    page = await SessionRuns(catalog).decisions("chat")
    assert {each.by for each in page} == {"greta"}

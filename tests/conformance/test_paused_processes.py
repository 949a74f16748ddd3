"""Paused runs in several processes: deciding, claiming, and dying."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from agents import Runner, RunState
from processes import Script, run_processes
from scaling import scale

from agents_session_metadata import RunClaimedError, SessionChangedError
from conformance import raw
from conformance.approving import Deployer, deploys, kinds, paused_runs

PAUSED = "agent_sessions_metadata_paused"
EVENTS = "claimed", "tool", "effect", "model"

HEAD = """
import asyncio, json, sys
from pathlib import Path
from agents import Agent, Runner, RunState, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.testing.model import ModelStep
from sqlalchemy.ext.asyncio import create_async_engine
from agents_session_metadata import *

url, name, *arguments = sys.argv[1:]

async def slowly(event):
    emit(event)
    await asyncio.sleep(0.02)

@function_tool(name_override="deploy", needs_approval=True)
async def deploy(target: str) -> str:
    await slowly("tool")
    with Path(arguments[0]).open("a") as effects:
        effects.write(f"{target}\\n")
    await slowly("effect")
    return "deployed"

async def answer(*_):
    await slowly("model")
    return [assistant_message("Done")]

agent = Agent(
    name="deployer", model=ScriptedModel([ModelStep.respond(answer)]), tools=[deploy]
)

async def main():
    engine = create_async_engine(url)
    paused = PausedRuns(SessionCatalog(engine))
    try:
        await work(paused)
    finally:
        await engine.dispose()

def run():
    start()
    asyncio.run(main())
"""

DECIDE = (
    HEAD
    + """
async def work(paused):
    for number in range(5):
        for call_id in ("c1", "c2"):
            await paused.decide("chat", call_id, approve=name == "even", by=name)
    emit("decided")

run()
"""
)

CLAIM = (
    HEAD
    + """
async def work(paused):
    try:
        async with paused.claim("chat", agent) as run:
            result = await run.resume()
            emit(result.final_output)
    except (RunClaimedError, LookupError) as error:
        emit(type(error).__name__)

run()
"""
)

RESUME = (
    HEAD
    + """
async def work(paused):
    async with paused.claim(name, agent) as run:
        emit("claimed")
        await run.resume()

asyncio.run(main())
"""
)

RESUME_FILE = (
    HEAD
    + """
async def work(paused):
    file = Path(arguments[1])
    state = await RunState.from_json(agent, json.loads(file.read_text()))
    for call in state.get_interruptions():
        state.approve(call)
    emit("claimed")
    await Runner.run(agent, state, session=paused.catalog.session(name))
    file.unlink()

asyncio.run(main())
"""
)


async def pause(paused, session_id="chat", calls=("c1",)):
    result = await Runner.run(
        Deployer().agent(deploys(*calls)), "Go", session=paused.catalog.session(session_id)
    )
    await paused.pause(paused.catalog.session(session_id), result)


async def test_two_processes_decide_and_several_claim(shared_database, tmp_path):
    paused, effects = paused_runs(shared_database.engine()), tmp_path / "effects"
    await pause(paused, calls=("c1", "c2"))
    deciders = [[shared_database.url, name] for name in ("even", "odd")]
    assert await run_processes(DECIDE, deciders) == [["decided"], ["decided"]]
    run = await paused.get("chat")
    # Whole decisions, whoever made the last one.
    assert {(each.decision.approve, each.decision.by) for each in run.pending} <= {
        (True, "even"),
        (False, "odd"),
    }
    for call_id in ("c1", "c2"):
        await paused.decide("chat", call_id, approve=True)
    claimers = [[shared_database.url, f"p{n}", effects] for n in range(scale(3, 8))]
    results = sorted(each[-1] for each in await run_processes(CLAIM, claimers))
    assert results.count("Done") == 1
    assert set(results) <= {"Done", "RunClaimedError", "LookupError"}
    assert sorted(effects.read_text().split()) == ["c1", "c2"]
    assert await paused.get("chat") is None


@pytest.mark.timeout(1800)
async def test_kills(shared_database, tmp_path):
    """No state is lost; a tool's effect is doubled only if the process died after it.

    How often is logged: `pytest -n 0 -o log_cli=true -o log_cli_level=INFO`.
    """
    engine = shared_database.engine()
    paused = paused_runs(engine)
    counted: Counter[str] = Counter()
    for number in range(scale(4, 200)):
        name, effects = f"chat-{number}", tmp_path / f"effects-{number}"
        await pause(paused, name)
        await paused.decide(name, "c1", approve=True)
        await asyncio.to_thread(run_and_kill, RESUME, [shared_database.url, name, effects])
        done = lines(effects)
        if await paused.get(name) is None:
            counted["finished"] += 1
            assert done == ["c1"]
        else:
            counted["died after the effect" if done else "died before the effect"] += 1
            # Instead of waiting for the end of the lease.
            await raw.execute(
                engine, f"UPDATE {PAUSED} SET claimed_until = 1 WHERE session_id = :id", id=name
            )
            await resume_after_crash(paused, name)
            assert await paused.get(name) is None
            assert len(done) <= 1
        counted["two outputs"] += await count_outputs(paused, name) - 1
    logging.getLogger(__name__).info("killed %s", dict(counted))


@pytest.mark.timeout(1800)
async def test_kills_with_states_in_files(shared_database, tmp_path):
    """The SDK's documented pattern, for comparison: nobody is told that a tool may run again."""
    paused = paused_runs(shared_database.engine())
    counted: Counter[str] = Counter()
    for number in range(scale(4, 200)):
        name, effects, file = f"chat-{number}", tmp_path / f"effects-{number}", tmp_path / "state"
        session = paused.catalog.session(name)
        result = await Runner.run(Deployer().agent(deploys("c1")), "Go", session=session)
        file.write_text(json.dumps(result.to_state().to_json()))
        arguments = [shared_database.url, name, effects, file]
        await asyncio.to_thread(run_and_kill, RESUME_FILE, arguments)
        done = lines(effects)
        if not file.exists():
            counted["finished"] += 1
        else:
            counted["died after the effect" if done else "died before the effect"] += 1
            deployer = Deployer()
            agent = deployer.agent("Done")
            state = await RunState.from_json(agent, json.loads(file.read_text()))
            for call in state.get_interruptions():
                state.approve(call)
            await Runner.run(agent, state, session=session)
            file.unlink()
            assert deployer.calls == ["deploy c1"]
        counted["two outputs"] += await count_outputs(paused, name) - 1
    logging.getLogger(__name__).info("killed with files %s", dict(counted))


async def count_outputs(paused, name):
    history = kinds(await paused.catalog.session(name).get_items())
    assert history[:3] == ["user", "function_call c1", "function_call_output c1"]
    assert history[-1] == "message"
    return history.count("function_call_output c1")


async def resume_after_crash(paused, name):
    deployer = Deployer()
    agent = deployer.agent("Done")
    with pytest.raises(RunClaimedError) as caught:
        async with paused.claim(name, agent):
            pass
    assert caught.value.crashed
    try:
        async with paused.claim(name, agent, after_crash=True) as run:
            await run.resume()
    except SessionChangedError:
        # It died after its tool's output was in the history.
        async with paused.claim(name, agent, after_crash=True, force=True) as run:
            await run.resume()
    # The decision is still there.
    assert deployer.calls == ["deploy c1"]


def run_and_kill(script, arguments):
    """Kill a process at a random point: some milliseconds after one of its events."""
    child = Script(script, arguments)
    try:
        for event in EVENTS[: random.randint(1, len(EVENTS))]:
            assert child.receive() == event
        time.sleep(random.uniform(0, 0.1))
    finally:
        child.kill()


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []

"""A run that requires an approval, paused, approved and resumed in three processes."""

import json
import sys
from typing import Any

from _common import run_in_processes
from agents import Agent, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from agents_session_metadata import PausedRuns, SessionCatalog, SessionLifecycle


@function_tool(needs_approval=True)
def rotate_keys(count: int) -> str:
    """Rotate keys. A person has to approve each call of this tool."""
    print(f"  rotating {count} keys")
    return f"rotated {count} keys"


def engineer(*steps: Any) -> Agent[Any]:
    """Return the agent. Its scripted model requires no network and no API key."""
    return Agent(name="ai-engineer", model=ScriptedModel(steps), tools=[rotate_keys])


async def pause(catalog: SessionCatalog) -> None:
    """Run the agent until a call requires an approval, and store the run."""
    session = await catalog.create_session("task-1", metadata={"owner_id": "u1"})
    lifecycle = SessionLifecycle(session)
    await lifecycle.start("@ai-engineer", purpose="rotate the keys")
    await lifecycle.enter("executing")
    agent = engineer([function_call("rotate_keys", {"count": 3}, call_id="call-1")])
    result = await Runner.run(agent, "Rotate the keys", session=session)
    assert result.interruptions
    run = await PausedRuns(catalog).pause(session, result)
    print(f"Paused in {(await session.get_metadata(['phase']))['phase']}: {run.pending[0].tool}")


async def decide(catalog: SessionCatalog) -> None:
    """Show the waiting calls and store the decision. This does not require the agent."""
    paused = PausedRuns(catalog)
    page = await paused.list({"owner_id": "u1"}, limit=20)
    for run in page.runs:
        for call in run.undecided:
            arguments = json.loads(call.arguments or "{}")
            print(f"Waiting in {run.session_id}: {call.tool}({arguments})")
            await paused.decide(run.session_id, call.call_id, approve=True, by="user_123")
    print("Approved by user_123")


async def resume(catalog: SessionCatalog) -> None:
    """Claim the run and resume it. If two workers try, one of them succeeds."""
    agent = engineer([assistant_message("The keys are rotated.")])
    paused = PausedRuns(catalog)
    print("Resumed:")
    async with paused.claim("task-1", agent) as run:
        assert not run.undecided
        result = await run.resume()
    print(" ", result.final_output)
    session = catalog.session("task-1")
    items = [info.item for info in (await catalog.list_items("task-1")).items]
    assert [item["output"] for item in items if "output" in item] == ["rotated 3 keys"]
    assert await paused.get("task-1") is None
    assert (await session.get_metadata(["phase"]))["phase"] == "executing"
    await SessionLifecycle(session).finish("completed", summary="3 keys rotated")


if __name__ == "__main__":
    run_in_processes("approval", sys.argv, pause, decide, resume)

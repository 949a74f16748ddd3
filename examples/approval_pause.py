"""A run that waits for an approval, decided and resumed in three processes."""

import json
import sys
from typing import Any

from _common import run_in_processes
from agents import Agent, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from agents_session_metadata import SessionCatalog, SessionRuns


@function_tool(needs_approval=True)
def rotate_keys(count: int) -> str:
    """Rotate keys. A person has to approve each call of this tool."""
    print(f"  rotating {count} keys")
    return f"rotated {count} keys"


def engineer(*steps: Any) -> Agent[Any]:
    """Return the agent. Its scripted model requires no network and no API key."""
    return Agent(name="ai-engineer", model=ScriptedModel(steps), tools=[rotate_keys])


async def ask(catalog: SessionCatalog) -> None:
    """Run the agent until a call requires an approval."""
    await catalog.create_session("task-1", metadata={"owner_id": "u1"})
    agent = engineer([function_call("rotate_keys", {"count": 3}, call_id="call-1")])
    run = await SessionRuns(catalog).run("task-1", agent, "Rotate the keys")
    print("Waiting for:", [call.tool for call in run.interruptions])
    assert await catalog.get_metadata("task-1", ["run"]) == {"run": "waiting"}


async def decide(catalog: SessionCatalog) -> None:
    """Show the waiting calls and store the decision. This does not require the agent."""
    runs = SessionRuns(catalog)
    page = await runs.list("waiting", {"owner_id": "u1"}, limit=20)
    for run in page.runs:
        for call in run.undecided:
            arguments = json.loads(call.arguments or "{}")
            print(f"{run.session_id} wants to call {call.tool}({arguments})")
            await runs.decide(run.session_id, call.call_id, approve=True, by="user_123")
    print("Approved by user_123")


async def resume(catalog: SessionCatalog) -> None:
    """Go on with the run. The decision is kept after it."""
    runs = SessionRuns(catalog)
    print("Resumed:")
    run = await runs.resume("task-1", engineer([assistant_message("The keys are rotated.")]))
    print(" ", run.final_output)
    items = [info.item for info in (await catalog.list_items("task-1")).items]
    assert [item["output"] for item in items if "output" in item] == ["rotated 3 keys"]
    assert (await runs.list()).runs == []
    [decision] = await runs.decisions("task-1")
    print("Who approved:", decision.by)


if __name__ == "__main__":
    run_in_processes("approval_pause", sys.argv, ask, decide, resume)

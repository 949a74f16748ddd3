"""A run whose process is killed, and which another process finishes without repeating anything."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from typing import Any

from _common import run_in_processes
from agents import Agent, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from agents_session_metadata import SessionCatalog, SessionRuns

LEASE = timedelta(seconds=1)  # So that this example need not wait for two minutes.


@function_tool
def charge(order: int) -> str:
    """Charge an order. It must not happen twice."""
    print(f"  charging order {order}")
    return f"charged {order}"


@function_tool
def ship(order: int) -> str:
    """Ship an order. At the first attempt, the process dies in here."""
    if "work" in sys.argv:
        print("  the process is killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    print(f"  shipping order {order}")
    return f"shipped {order}"


def clerk(*steps: Any) -> Agent[Any]:
    """Return the agent. Its scripted model requires no network and no API key."""
    return Agent(name="clerk", model=ScriptedModel(steps), tools=[charge, ship])


async def begin(catalog: SessionCatalog) -> None:
    """Start the work in a process of its own, which does not survive it."""
    await catalog.create_session("order-7", metadata={"owner_id": "u1"})
    program = [sys.executable, sys.argv[0], "work"]
    killed = subprocess.run(program, check=False)  # noqa: S603, ASYNC221  # this program itself
    assert killed.returncode == -signal.SIGKILL


async def work(catalog: SessionCatalog) -> None:
    """Charge the order, then die."""
    calls = [
        [function_call("charge", {"order": 7}, call_id="call-1")],
        [function_call("ship", {"order": 7}, call_id="call-2")],
    ]
    await SessionRuns(catalog, lease=LEASE).run("order-7", clerk(*calls), "Order 7", key="r1")


async def finish(catalog: SessionCatalog) -> None:
    """Send the request again, as a client does. The run goes on where it was."""
    runs = SessionRuns(catalog, lease=LEASE)
    agent = clerk([assistant_message("Order 7 is on its way.")])
    run = await runs.run("order-7", agent, "Order 7", key="r1", wait=30)
    print(run.final_output)
    items = [info.item for info in (await catalog.list_items("order-7")).items]
    outputs = [item["output"] for item in items if "output" in item]
    assert outputs == ["charged 7", "shipped 7"]
    again = await runs.run("order-7", agent, "Order 7", key="r1")
    assert again.repeated
    assert again.final_output == run.final_output


if __name__ == "__main__":
    run_in_processes("durable_run", sys.argv, begin, finish, hidden=[work])

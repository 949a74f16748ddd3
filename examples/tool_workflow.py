"""Record tool calls, tokens and cost with run hooks. Then filter, sum, copy and delete sessions."""

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from _common import run
from agents import Agent, Runner, Usage, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from agents_session_metadata import ModelPrice, SessionCatalog, SessionLifecycle, SessionTracker

PRICE = ModelPrice(input=Decimal("2.50"), output=Decimal("10.00"))  # per million tokens


@function_tool
def search(text: str) -> str:
    """Search for a text."""
    return f"3 pages about {text}"


def make_agent() -> Agent[Any]:
    """Return an agent that searches twice and then answers."""
    steps = [
        [function_call("search", {"text": "SQLite"}, call_id="call-1")],
        [function_call("search", {"text": "PostgreSQL"}, call_id="call-2")],
        [assistant_message("Both are fine.")],
    ]
    usage = Usage(requests=1, input_tokens=100, output_tokens=20, total_tokens=120)
    model = ScriptedModel(steps, default_usage=usage)
    return Agent(name="researcher", model=model, tools=[search])


async def work(catalog: SessionCatalog, session_id: str | None, user: str, outcome: str) -> None:
    """Run the agent in a new session, from start to finish."""
    metadata = {"owner_id": user, "tags": ["research"]}
    session = await catalog.create_session(session_id, metadata=metadata)
    lifecycle = SessionLifecycle(session)
    await lifecycle.start("@researcher", purpose="compare databases")
    async with SessionTracker(session, prices=PRICE) as hooks:
        await Runner.run(make_agent(), "Compare databases", session=session, hooks=hooks)
    await session.edit_metadata(lambda stored: stored["tags"].append("databases"))
    await lifecycle.finish(outcome, summary="Both are fine.")


async def main(catalog: SessionCatalog) -> None:
    """Run the agent three times, and read the recorded facts."""
    await work(catalog, "work-1", "user_123", "completed")
    await work(catalog, None, "user_123", "failed")  # with a random id
    await work(catalog, "work-3", "user_456", "abandoned")
    stored = await catalog.get_metadata("work-1")
    print("Recorded:", {key: stored[key] for key in ("status", "tags", "invocations", "cost")})
    assert stored["invocations"] == ["call-1", "call-2"]
    assert [each["tool"] for each in stored["invocation_details"]] == ["search", "search"]

    where = {
        "status": "completed",
        "tags": {"$all": ["research", "databases"]},
        "owner_id": "user_123",
    }
    found = [each.session_id for each in (await catalog.list_sessions(where, limit=10)).sessions]
    print("Completed, tagged research and databases, of user_123:", found)
    assert found == ["work-1"]
    one, total = await catalog.statistics({"$session_id": "work-1"}), await catalog.statistics()
    print(f"One session:  {one.tool_calls} tool calls, {one.total_tokens} tokens, {one.cost:.5f}")
    print(f"All sessions: {total.tools['search'].calls} searches, {total.by_status}")
    assert (one.tool_calls, one.total_tokens, one.cost) == (2, 360, Decimal("0.00135"))

    copy = await catalog.fork_session("work-1", "work-1b", metadata={"title": "Another try"})
    assert await copy.get_items() == await catalog.session("work-1").get_items()
    [record] = [record async for record in catalog.export_sessions({"$session_id": "work-1"})]
    assert await catalog.delete_session("work-1")
    assert await catalog.import_sessions([record]) == 1
    assert await catalog.get_metadata("work-1") == stored
    print("Forked, exported, deleted and imported again: work-1")

    past = (datetime.now(timezone.utc) - timedelta(days=40)).isoformat()
    await catalog.import_sessions([{**record, "session_id": "work-0", "updated_at": past}])
    assert await catalog.delete_sessions(inactive_for=timedelta(days=30)) == 1
    print("Older than 30 days, and deleted: work-0")


if __name__ == "__main__":
    run("tool_workflow", main)

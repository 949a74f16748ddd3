"""Two messages to one chat at the same moment, and a request that the client sends twice."""

import asyncio
from typing import Any

from _common import run
from agents import Agent
from agents.testing import ModelStep, ScriptedModel, assistant_message

from agents_session_metadata import SessionBusyError, SessionCatalog, SessionRuns


def guide(answer: str) -> Agent[Any]:
    """Return the agent. Its scripted model requires no network and no API key."""
    return Agent(name="guide", model=ScriptedModel([[assistant_message(answer)]]))


async def chat(catalog: SessionCatalog) -> None:
    """Answer four requests at once: two messages, each of which is sent twice."""
    runs = SessionRuns(catalog)
    await catalog.create_session("chat-1", metadata={"owner_id": "u1"})
    requests = [("Which tram?", "Line 28.", "r1"), ("When?", "At six.", "r2")] * 2
    answers = await asyncio.gather(
        *(
            runs.run("chat-1", guide(answer), question, key=key, wait=30)
            for question, answer, key in requests
        )
    )
    for (question, *_), answer in zip(requests, answers, strict=True):
        note = "an earlier answer" if answer.repeated else "answered now"
        print(f"{question:12} {answer.final_output:9} ({note})")
    assert sum(answer.repeated for answer in answers) == 2
    items = [info.item for info in (await catalog.list_items("chat-1")).items]
    roles = [item["role"] for item in items]
    print("History:", roles)
    assert roles == ["user", "assistant"] * 2


async def refuse(catalog: SessionCatalog) -> None:
    """Without wait=, a second message is refused while the first one is answered."""
    runs = SessionRuns(catalog)
    asked, refused = asyncio.Event(), asyncio.Event()

    async def think(_call: Any) -> Any:
        asked.set()
        await refused.wait()
        return [assistant_message("Yes.")]

    slow = Agent(name="guide", model=ScriptedModel([ModelStep.respond(think)]))
    first = asyncio.create_task(runs.run("chat-1", slow, "Still there?"))
    await asked.wait()
    try:
        await runs.run("chat-1", guide("No."), "Hello?")
    except SessionBusyError as error:
        print("Refused:", error)
    else:
        raise AssertionError("two runs worked at once")
    refused.set()
    print((await first).final_output)


if __name__ == "__main__":
    run("one_run_at_a_time", chat, refuse)

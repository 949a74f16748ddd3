"""A chat in which users undo a turn, edit a message, retry after a failure and fork."""

from typing import Any

from _common import run
from agents import Agent, ModelBehaviorError, Runner, TResponseInputItem
from agents.testing import ScriptedModel, assistant_message

from agents_session_metadata import (
    ItemInfo,
    SessionCatalog,
    SessionChangedError,
    SQLAlchemyMetadataSession,
)


def guide(*answers: str) -> Agent[Any]:
    """Return an agent with a scripted model that gives these answers and then fails."""
    script: list[Any] = [[assistant_message(answer)] for answer in answers]
    return Agent(name="guide", model=ScriptedModel([*script, ModelBehaviorError("no answer")]))


def no_instructions(_context: Any, _agent: Agent[Any]) -> str:
    """Fail before the agent has stored the question."""
    raise ConnectionError("no instructions")


def text_of(item: dict[str, Any]) -> str:
    """Return the text of a message."""
    content = item["content"]
    return content if isinstance(content, str) else " ".join(part["text"] for part in content)


async def show(catalog: SessionCatalog, session_id: str) -> list[ItemInfo]:
    """Print a conversation and return its items."""
    page = await catalog.list_items(session_id, limit=100)
    for each in page.items:
        print(f"  {each.item['role']:>9}: {text_of(each.item)}")
    return page.items


async def ask(session: SQLAlchemyMetadataSession, agent: Agent[Any], question: str) -> None:
    """Stream an answer, and store the turn when it is complete.

    A run that fails or is cancelled stores nothing, so that it can be repeated.
    """
    turn: list[TResponseInputItem] = [{"role": "user", "content": question}]
    result = Runner.run_streamed(agent, [*await session.get_items(), *turn])
    async for _ in result.stream_events():
        pass
    if result.final_output is None:
        raise RuntimeError("the run has no answer yet, and nothing was stored")
    # Not to_input_list(): a handoff with an input filter changes the history that it begins with.
    turn += [item.to_input_item() for item in result.new_items]
    await session.add_items(turn)


async def main(catalog: SessionCatalog) -> None:
    """Undo, edit, retry and fork a conversation."""
    await catalog.create_session("lisbon", metadata={"title": "Lisbon"})
    # If the session is deleted during a run, it is not created again.
    session = catalog.session("lisbon", must_exist=True)
    first = guide("Take tram 28.", "The castle closes at nine.")
    await Runner.run(first, "How do I get to the castle?", session=session)
    await Runner.run(first, "When does it close?", session=session)

    print("Undo the last turn:")
    removed = await session.rewind(turns=1)
    print("  removed:", ", ".join(text_of(each.item) for each in removed))
    items = await show(catalog, "lisbon")
    assert [text_of(each.item) for each in removed] == [
        "When does it close?",
        "The castle closes at nine.",
    ]

    print("Edit the first message and ask again:")
    # The browser sends the id of the message to replace, and of the newest item that it shows.
    edited, newest = items[0].item_id, items[-1].item_id
    await session.rewind(before=edited, expect_last=newest)
    await Runner.run(guide("Bus 737 stops there."), "Which bus goes there?", session=session)
    items = await show(catalog, "lisbon")
    assert len(items) == 2

    print("A second tab still shows the old conversation:")
    try:
        await session.rewind(before=items[0].item_id, expect_last=newest)
    except SessionChangedError as error:
        print(" ", error)
    else:
        raise AssertionError("an outdated tab changed the conversation")

    print("Retry after a failure:")
    for failing in (guide(), Agent(name="guide", instructions=no_instructions)):
        try:
            await ask(session, failing, "Where do I buy a ticket?")
        except (ModelBehaviorError, ConnectionError) as error:
            print("  failed:", error)
        assert len(await session.get_items()) == 2
    await ask(session, guide("At any kiosk."), "Where do I buy a ticket?")
    items = await show(catalog, "lisbon")
    assert [each.item["role"] for each in items] == ["user", "assistant"] * 2

    print("Fork before the second question:")
    branch = await catalog.fork_session("lisbon", before=items[2].item_id)
    await Runner.run(guide("About ten minutes."), "How long does it take?", session=branch)
    await show(catalog, branch.session_id)
    family = await catalog.list_sessions({"forked_from": "lisbon"})
    assert [chat.session_id for chat in family.sessions] == [branch.session_id]
    assert len(await session.get_items()) == 4


if __name__ == "__main__":
    run("edit", main)

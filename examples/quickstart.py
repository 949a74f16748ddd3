"""Two users talk to an agent in three sessions, and metadata stores owner, title and tags.

A scripted model answers, unless OPENAI_API_KEY is set. The database is SQLite in a temporary
directory, or the one in AGENT_SESSIONS_URL, such as sqlite:///chat.db or
postgresql://user:password@host/name. Two of the sessions are kept.
"""

import asyncio
import os
import tempfile
from typing import Any

from agents import Agent, Runner, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message

from agents_session_metadata import SessionCatalog, SQLAlchemyMetadataSession

ANSWERS = [
    "Alfama for its lanes, Belém for its tower, Sintra for a day trip.",
    "April and May: warm, and not yet crowded.",
    "Five: one for each day, and one in reserve.",
    "Mix two tablespoons of starter into flour and water; bake it the next day.",
]


def make_agent() -> Agent[Any]:
    """Return an agent with a real model, or with a scripted one if there is no API key."""
    if os.environ.get("OPENAI_API_KEY"):
        return Agent(name="Assistant", instructions="Answer in one short sentence.")
    set_tracing_disabled(True)
    return Agent(
        name="Assistant", model=ScriptedModel([[assistant_message(text)] for text in ANSWERS])
    )


async def main(url: str) -> None:
    """Open three sessions and show their metadata."""
    # The sessions share the engine of the catalog, which disposes it at the end.
    async with SessionCatalog.from_url(url, create_tables=True) as catalog:
        await show(*(catalog.session(f"quickstart-{number}") for number in (1, 2, 3)))


async def show(
    travel: SQLAlchemyMetadataSession,
    packing: SQLAlchemyMetadataSession,
    bread: SQLAlchemyMetadataSession,
) -> None:
    """Fill three sessions and find them again."""
    for session in (travel, packing, bread):
        await session.clear_session()  # from an earlier run

    agent = make_agent()

    async def ask(session: SQLAlchemyMetadataSession, question: str) -> None:
        result = await Runner.run(agent, question, session=session)
        print(f"  {session.session_id}  user:  {question}")
        print(f"  {session.session_id}  agent: {result.final_output}")

    print("Two users talk to an agent, in three sessions:")
    await ask(travel, "What should I see in Lisbon?")
    await ask(travel, "When should I go?")
    await ask(packing, "How many shirts do I need for four days?")
    await ask(bread, "How do I bake sourdough bread?")

    print("\nset_metadata stores owner, title and tags:")
    await travel.set_metadata({"owner_id": "user_123", "title": "Lisbon", "tags": ["travel"]})
    await packing.set_metadata({"owner_id": "user_123", "title": "Packing", "tags": ["travel"]})
    await bread.set_metadata({"owner_id": "user_456", "title": "Sourdough", "tags": ["food"]})
    print(" ", await travel.get_metadata())
    print(" ", await bread.get_metadata(keys=["title", "pinned"]), "- a missing key is None")

    def add_tag(metadata: dict[str, Any]) -> None:
        metadata["tags"] = [*metadata.get("tags", []), "spring"]

    print("\nedit_metadata reads, changes and writes in one transaction:")
    print(" ", await travel.edit_metadata(add_tag))

    print("\nfind_sessions_by_metadata finds all sessions that match:")
    print("  of user_456:       ", await travel.find_sessions_by_metadata("owner_id", "user_456"))
    by_tag = {"tags": {"$contains": "food"}}
    print("  with the tag food: ", await bread.find_sessions_by_metadata(by_tag))

    print("\ndelete_metadata removes keys; the messages stay:")
    print("  keys removed:", await bread.delete_metadata(keys=["tags"]))
    print("  keys left:   ", await bread.get_metadata())
    print("  items left:  ", len(await bread.get_items()))

    print("\nclear_session deletes a session with its metadata:")
    await bread.clear_session()
    print("  of user_456:", await travel.find_sessions_by_metadata("owner_id", "user_456"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        temporary = f"sqlite:///{directory}/quickstart.db"
        asyncio.run(main(os.environ.get("AGENT_SESSIONS_URL") or temporary))

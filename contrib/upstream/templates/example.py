import asyncio
from typing import Any

from agents import Agent, Runner
from agents.extensions.memory import SQLAlchemyMetadataSession


async def main():
    agent = Agent(
        name="Assistant",
        instructions="Reply very concisely.",
    )

    # This example uses an in-memory SQLite database.
    # The `create_tables=True` flag is useful for development and testing.
    session = SQLAlchemyMetadataSession.from_url(
        "conversation_123",
        url="sqlite+aiosqlite:///:memory:",
        create_tables=True,
    )

    print("=== Session Metadata Example ===")

    # Say whose the conversation is before it begins.
    await session.set_metadata({"owner_id": "user_42", "tags": ["travel"]})

    question = "What city is the Golden Gate Bridge in?"
    print(f"User: {question}")
    result = await Runner.run(agent, question, session=session)
    print(f"Assistant: {result.final_output}")

    # Store a title, and leave the other keys alone.
    await session.set_metadata({"title": question})
    print(f"Metadata: {await session.get_metadata()}")

    # Read, change and write in one step: concurrent callers take turns.
    def count_turn(metadata: dict[str, Any]) -> None:
        metadata["turns"] = metadata.get("turns", 0) + 1

    metadata = await session.edit_metadata(count_turn)
    print(f"Turns: {metadata['turns']}")

    # A second conversation of the same user, in the same database.
    other = SQLAlchemyMetadataSession("conversation_124", engine=session.engine)
    await other.set_metadata({"owner_id": "user_42", "tags": ["work"], "priority": 8})

    # Find the user's conversations, and some of them by a filter.
    mine = await session.find_sessions_by_metadata("owner_id", "user_42")
    print(f"Sessions of user_42: {sorted(mine)}")
    urgent = await session.find_sessions_by_metadata(
        {"owner_id": "user_42", "$or": [{"priority": {"$gte": 5}}, {"tags": {"$contains": "now"}}]}
    )
    print(f"Urgent ones: {urgent}")

    # Clearing a session ends it: messages and metadata go together.
    await session.clear_session()
    print(f"Metadata after clearing: {await session.get_metadata()}")

    await session.engine.dispose()


if __name__ == "__main__":
    # To run this example, you need to install the sqlalchemy extras:
    # pip install "agents[sqlalchemy]"
    asyncio.run(main())

"""The calls of the original request, as its author wrote them, and what it says about limits."""

from __future__ import annotations

from typing import Any

import pytest
from agents.extensions.memory import SQLAlchemySession
from servers import Database
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata import MetadataLimitError, MetadataLimits, SQLAlchemyMetadataSession


def new_engine(database: Database) -> AsyncEngine:
    """What a new process would have; in memory, all there is."""
    return database.engine()


def open_session(database: Database, session_id: str = "chat-1", **settings: Any) -> Any:
    return SQLAlchemyMetadataSession(
        session_id, engine=new_engine(database), create_tables=True, **settings
    )


async def test_the_calls_of_the_request(database) -> None:
    session = open_session(database)
    await session.set_metadata({"owner_id": "user_123", "title": "My Chat", "tags": ["work"]})

    assert await session.get_metadata(keys=["owner_id", "title"]) == {
        "owner_id": "user_123",
        "title": "My Chat",
    }
    assert await session.get_metadata() == {
        "owner_id": "user_123",
        "title": "My Chat",
        "tags": ["work"],
    }
    await session.delete_metadata(keys=["tags"])
    assert await session.get_metadata(keys=["owner_id", "tags"]) == {
        "owner_id": "user_123",
        "tags": None,
    }
    assert await session.find_sessions_by_metadata("owner_id", "user_123") == ["chat-1"]
    assert await session.find_sessions_by_metadata("owner_id", "user_456") == []
    await session.delete_metadata()
    assert await session.get_metadata() == {}
    assert await session.get_metadata(keys=["owner_id", "title"]) == {
        "owner_id": None,
        "title": None,
    }
    assert await session.find_sessions_by_metadata("owner_id", "user_123") == []


async def test_what_the_request_wants_to_keep(database) -> None:
    values = {
        "owner_id": "user_123",
        "incognito": True,
        "usage": {"input_tokens": 1200, "output_tokens": 340, "cost": 0.0125},
        "settings": {"model": "small", "temperature": 0.2, "tools": ["search"], "voice": None},
    }
    session = open_session(database)
    await session.set_metadata(values)
    assert await session.get_metadata() == values
    assert await session.find_sessions_by_metadata("incognito", True) == ["chat-1"]


async def test_all_sessions_of_one_user(shared_database) -> None:
    for number, owner in enumerate(["user_123", "user_456", "user_123"]):
        session = open_session(shared_database, f"chat-{number}")
        await session.set_metadata({"owner_id": owner})
        await session.add_items([{"role": "user", "content": "Hello"}])
    found = await session.find_sessions_by_metadata("owner_id", "user_123")
    assert sorted(found) == ["chat-0", "chat-2"]


async def test_metadata_survives_a_restart(database) -> None:
    session = open_session(database)
    await session.add_items([{"role": "user", "content": "Hello"}])
    await session.set_metadata({"owner_id": "user_123", "tags": ["work"]})

    again = open_session(database)
    assert (again.engine is session.engine) is not database.shared
    assert await again.get_metadata() == {"owner_id": "user_123", "tags": ["work"]}
    assert await again.find_sessions_by_metadata("owner_id", "user_123") == ["chat-1"]
    assert len(await again.get_items()) == 1


async def test_a_hundred_keys_of_one_kilobyte(database) -> None:
    limits = MetadataLimits(max_keys=100, max_value_bytes=1024)
    session = open_session(database, metadata_limits=limits)
    full = {f"key-{number}": "x" * 1022 for number in range(100)}
    await session.set_metadata(full)
    refused = {"max_keys": {"one-more": 1}, "max_value_bytes": {"key-0": "x" * 1023}}
    for limit, values in refused.items():
        with pytest.raises(MetadataLimitError) as caught:
            await session.set_metadata(values)
        assert caught.value.limit == limit
    assert await session.get_metadata() == full


async def test_a_database_filled_by_the_plain_sdk(database) -> None:
    if database.kind == "mysql":
        await open_session(database).get_metadata()  # The SDK cannot create its tables there.
    plain = SQLAlchemySession(
        "old", engine=new_engine(database), create_tables=database.kind != "mysql"
    )
    await plain.add_items([{"role": "user", "content": "Hello"}])

    session = open_session(database, "old")
    assert await session.get_metadata() == {}
    await session.set_metadata({"owner_id": "user_123"})
    assert await session.get_items() == await plain.get_items()
    assert await session.find_sessions_by_metadata("owner_id", "user_123") == ["old"]
    # The plain class goes on as before, and takes the metadata with it in the end.
    await plain.add_items([{"role": "user", "content": "Bye"}])
    await plain.clear_session()
    assert await session.get_metadata() == {}

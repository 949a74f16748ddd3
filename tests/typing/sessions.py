"""What type checkers see of `SQLAlchemyMetadataSession`. Checked by mypy and pyright, never run."""

# Each ignored error must be there: mypy warns of a needless ignore by itself, pyright is told to.
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from agents import Agent, Runner, TResponseInputItem
from agents.extensions.memory import EncryptedSession, SQLAlchemySession
from agents.memory import OpenAIResponsesCompactionSession, Session, SessionSettings
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from typing_extensions import assert_type

import agents_session_metadata
from agents_session_metadata import (
    MAX_KEY_LENGTH,
    MetadataLimits,
    SessionCatalog,
    SessionOptions,
    SQLAlchemyMetadataSession,
)


class Chat(TypedDict):
    """An application's own idea of its metadata."""

    owner_id: str
    tags: list[str]


class Subclass(SQLAlchemyMetadataSession):
    """An application's own session."""


def construction(engine: AsyncEngine) -> None:
    """The constructor's arguments are known by name, those that are not are the SDK's."""
    session = SQLAlchemyMetadataSession(
        "chat-1",
        engine=engine,
        create_tables=True,
        sessions_table="sessions",
        messages_table="messages",
        metadata_table="facts",
        metadata_limits=MetadataLimits(max_keys=10, max_key_length=MAX_KEY_LENGTH),
        on_clear="keep",
        session_settings=SessionSettings(limit=10),
        ensure_ascii=False,
    )
    assert_type(session.session_id, str)
    assert_type(session.session_settings, SessionSettings | None)
    assert_type(session.engine, AsyncEngine)
    assert_type(session.catalog, SessionCatalog)
    SQLAlchemyMetadataSession("chat-1", engine=engine, session_settings={"limit": 10})

    options: SessionOptions = {"create_tables": True, "ensure_ascii": False}
    SQLAlchemyMetadataSession("chat-1", engine=engine, **options)
    SQLAlchemyMetadataSession.from_url("chat-1", url="sqlite://", **options)
    SessionCatalog(engine, **options)
    SessionCatalog.from_url("sqlite://", **options)

    SQLAlchemyMetadataSession("chat-1", engine=engine, create_table=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    SQLAlchemyMetadataSession.from_url("chat-1", url="sqlite://", create_table=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    SessionCatalog(engine, create_table=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    SessionCatalog.from_url("sqlite://", create_table=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    SQLAlchemyMetadataSession("chat-1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    SQLAlchemyMetadataSession("chat-1", engine)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    SQLAlchemyMetadataSession("chat-1", engine=engine, on_clear="drop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def construction_from_a_url() -> None:
    """A subclass stays what it is."""
    url = "sqlite+aiosqlite:///chat.db"
    made = SQLAlchemyMetadataSession.from_url("chat-1", url=url, create_tables=True)
    assert_type(made, SQLAlchemyMetadataSession)
    assert_type(Subclass.from_url("chat-1", url=url, engine_kwargs={"echo": True}), Subclass)
    SQLAlchemyMetadataSession.from_url("chat-1", url)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def metadata(session: SQLAlchemyMetadataSession, chat: Chat, facts: dict[str, str]) -> None:
    """Any mapping with string keys can be stored; a dict comes out."""
    assert_type(await session.get_metadata(), dict[str, Any])
    assert_type(await session.get_metadata(["title"]), dict[str, Any])
    assert_type(await session.get_metadata(keys=(key for key in "abc")), dict[str, Any])
    await session.set_metadata({"title": "My chat", "tags": ["work"], "size": 1, "more": None})
    await session.set_metadata(chat)
    await session.set_metadata(facts)
    assert_type(await session.delete_metadata(), int)
    assert_type(await session.delete_metadata({"title"}), int)

    await session.set_metadata({1: "title"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    await session.set_metadata(title="My chat")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await session.get_metadata([1])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


async def edits(session: SQLAlchemyMetadataSession) -> None:
    """A change takes a dict; what it returns does not matter."""

    def next_turn(stored: dict[str, Any]) -> None:
        stored["turns"] = stored.get("turns", 0) + 1

    def wrong(stored: list[str]) -> None:
        stored.append("turns")

    assert_type(await session.edit_metadata(next_turn), dict[str, Any])
    assert_type(await session.edit_metadata(lambda stored: stored.pop("turns")), dict[str, Any])
    await session.edit_metadata(wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def finding(session: SQLAlchemyMetadataSession, where: Mapping[str, Any]) -> None:
    """By a key and a value, or by a filter; nothing between."""
    assert_type(await session.find_sessions_by_metadata("owner_id", "u1"), list[str])
    assert_type(await session.find_sessions_by_metadata("pinned", None, limit=1), list[str])
    assert_type(await session.find_sessions_by_metadata({"size": {"$gte": 1}}), list[str])
    assert_type(await session.find_sessions_by_metadata(where, limit=10), list[str])

    await session.find_sessions_by_metadata("owner_id")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await session.find_sessions_by_metadata({"size": 1}, "u1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await session.find_sessions_by_metadata("size", 1, 10)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def history(session: SQLAlchemyMetadataSession, items: list[TResponseInputItem]) -> None:
    """As in the SDK."""
    assert_type(await session.get_items(limit=1), list[TResponseInputItem])
    assert_type(await session.pop_item(), TResponseInputItem | None)
    await session.add_items(items)
    await session.clear_session()


async def in_place_of_the_sdks(session: SQLAlchemyMetadataSession, agent: Agent[Any]) -> None:
    """It goes wherever the SDK takes a session."""
    base: SQLAlchemySession = session
    protocol: Session = session
    await Runner.run(agent, "Hello", session=session)
    OpenAIResponsesCompactionSession("chat-1", underlying_session=session)
    EncryptedSession("chat-1", underlying_session=session, encryption_key="key")
    assert_type(base.session_id, str)
    assert_type(protocol.session_id, str)


async def one_engine() -> None:
    """An engine may serve many sessions."""
    engine = create_async_engine("sqlite+aiosqlite:///chat.db")
    sessions = [SQLAlchemyMetadataSession(name, engine=engine) for name in ("a", "b")]
    assert_type(sessions, list[SQLAlchemyMetadataSession])


def names() -> None:
    """What is imported late is known; what is not there is not."""
    assert_type(agents_session_metadata.SQLAlchemyMetadataSession, type[SQLAlchemyMetadataSession])
    _ = agents_session_metadata.Nope  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]

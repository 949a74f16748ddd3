"""Sessions of the classes that the page of the conformance kit reports, in files and in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import agents
from agents.extensions.memory import AdvancedSQLiteSession, SQLAlchemySession
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from agents_session_metadata import SQLAlchemyMetadataSession

Factory = Callable[[str, Path], Any]


def sqlite(session_id: str, directory: Path) -> Any:
    return agents.SQLiteSession(session_id, directory / "chat.db")


def advanced(session_id: str, directory: Path) -> Any:
    path = directory / "chat.db"
    return AdvancedSQLiteSession(session_id=session_id, db_path=path, create_tables=True)


def of_class(found: type[SQLAlchemySession]) -> Factory:
    return lambda session_id, directory: found.from_url(
        session_id, url=f"sqlite+aiosqlite:///{directory}/chat.db", create_tables=True
    )


ON_FILE: dict[str, Factory] = {
    "SQLiteSession": sqlite,
    "AdvancedSQLiteSession": advanced,
    "SQLAlchemySession": of_class(SQLAlchemySession),
    "SQLAlchemyMetadataSession": of_class(SQLAlchemyMetadataSession),
}


@cache
def engine_in_memory(directory: Path) -> AsyncEngine:
    return create_async_engine("sqlite+aiosqlite://")


def in_memory(session_id: str, directory: Path) -> Any:
    engine = engine_in_memory(directory)
    return SQLAlchemySession(session_id, engine=engine, create_tables=True)


def named(name: str) -> Factory:
    return in_memory if name == "in_memory" else ON_FILE[name]

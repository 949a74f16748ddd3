"""Sessions of the classes that the page of the conformance kit reports, in files and in memory."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path
from typing import Any

import agents
import httpx2
from agents.extensions.memory import AdvancedSQLiteSession, SQLAlchemySession
from openai import AsyncOpenAI
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from starlette.applications import Starlette
from starlette.routing import Mount

from agents_session_metadata import SessionCatalog, SessionExistsError, SQLAlchemyMetadataSession
from agents_session_metadata.http import sessions_app

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


@contextlib.asynccontextmanager
async def on_server(session_id: str, directory: Path) -> AsyncIterator[Any]:
    """A conversation of OpenAI's API, which the package serves."""
    url = f"sqlite+aiosqlite:///{directory}/chat.db"
    async with SessionCatalog.from_url(url, create_tables=True) as catalog:
        with contextlib.suppress(SessionExistsError):
            await catalog.create_session(session_id)
        app = Starlette(routes=[Mount("/v1", sessions_app(catalog, scope=None, allow_roles=None))])
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
        async with AsyncOpenAI(
            api_key="none", base_url="http://test/v1", http_client=http
        ) as client:
            yield agents.OpenAIConversationsSession(
                conversation_id=session_id, openai_client=client
            )

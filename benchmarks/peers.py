"""Other libraries that store something about sessions: google-adk, LangGraph's stores, agno.

Each shows the newest 20 sessions of one owner with their metadata, through its public API and in
the way that is fastest for it. In google-adk and agno, the owner is the user. A LangGraph store is
measured twice: with all sessions in one namespace and a filter, and with a namespace per owner.
The latter finds the sessions of an owner fast, and no session by its id alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from itertools import islice
from typing import Any, Protocol

from agno.db.base import SessionType
from agno.session.agent import AgentSession
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.schemas.v1 import StorageSession
from langgraph.store.base import PutOp
from sqlalchemy import URL, insert

from .data import PAGE, Corpus, Session

logging.getLogger("agno").setLevel(logging.WARNING)

_APP = "benchmark"
_BATCH = 500


class Peer(Protocol):
    """A library that stores the sessions of a corpus in a database of its own."""

    name: str

    async def open(self, url: URL, corpus: Corpus) -> None:
        """Fill an empty database."""

    async def newest(self, owner: str) -> list[Any]:
        """The newest 20 sessions of an owner with their metadata, newest first."""

    async def close(self) -> None:
        """Release the database."""


def peers(kind: str) -> list[Callable[[], Peer]]:
    """The libraries that support a kind of database."""
    return [ADK, Agno] if kind == "mysql" else [ADK, LangGraph, LangGraphByOwner, Agno]


class ADK:
    """`DatabaseSessionService` of google-adk, whose API lists all sessions of a user."""

    name = "google-adk"

    async def open(self, url: URL, corpus: Corpus) -> None:
        """Create one session per user, and load the others as rows: its API takes one at a time."""
        self._service = DatabaseSessionService(url.render_as_string(hide_password=False))
        users: set[str] = set()
        for batch in _batches(corpus):
            rows = []
            for one in batch:
                owner = one.metadata["owner_id"]
                if owner in users:
                    rows.append(
                        {
                            "app_name": _APP,
                            "user_id": owner,
                            "id": one.session_id,
                            "state": one.metadata,
                            "create_time": one.created_at.replace(tzinfo=None),
                            "update_time": one.updated_at.replace(tzinfo=None),
                        }
                    )
                    continue
                users.add(owner)
                await self._service.create_session(
                    app_name=_APP, user_id=owner, session_id=one.session_id, state=one.metadata
                )
            if rows:
                async with self._service.db_engine.begin() as connection:
                    await connection.execute(insert(StorageSession), rows)

    async def newest(self, owner: str) -> list[Any]:
        """The end of all sessions of the user."""
        found = await self._service.list_sessions(app_name=_APP, user_id=owner)
        return found.sessions[: -PAGE - 1 : -1]

    async def close(self) -> None:
        """Release the database."""
        await self._service.close()


class LangGraph:
    """LangGraph's store with all sessions in one namespace."""

    name = "LangGraph's store"
    by_owner = False

    async def open(self, url: URL, corpus: Corpus) -> None:
        """Put all sessions into the store."""
        self._stack = AsyncExitStack()
        if url.get_backend_name() == "sqlite":
            from langgraph.store.sqlite import (  # type: ignore[import-untyped]  # has no types
                AsyncSqliteStore,
            )

            store: Any = AsyncSqliteStore.from_conn_string(url.database or "")
        else:
            from langgraph.store.postgres import AsyncPostgresStore

            plain = url.set(drivername="postgresql")
            store = AsyncPostgresStore.from_conn_string(plain.render_as_string(hide_password=False))
        self._store = await self._stack.enter_async_context(store)
        await self._store.setup()
        for batch in _batches(corpus):
            await self._store.abatch(
                [
                    PutOp(self._namespace(one.metadata["owner_id"]), one.session_id, one.metadata)
                    for one in batch
                ]
            )

    def _namespace(self, owner: str) -> tuple[str, ...]:
        return ("sessions", owner) if self.by_owner else ("sessions",)

    async def newest(self, owner: str) -> list[Any]:
        """A search, by a filter or within the namespace."""
        where = None if self.by_owner else {"owner_id": owner}
        found: list[Any] = await self._store.asearch(
            self._namespace(owner), filter=where, limit=PAGE
        )
        return found

    async def close(self) -> None:
        """Release the database."""
        await self._stack.aclose()


class LangGraphByOwner(LangGraph):
    """LangGraph's store with a namespace per owner."""

    name = "LangGraph's store, namespace per owner"
    by_owner = True


class Agno:
    """agno's asynchronous databases, which sort and page the sessions of a user."""

    name = "agno"

    async def open(self, url: URL, corpus: Corpus) -> None:
        """Store all sessions, in batches."""
        kind = url.get_backend_name()
        text = url.render_as_string(hide_password=False)
        self._db: Any
        bulk: Any = None
        if kind == "sqlite":
            from agno.db.sqlite import AsyncSqliteDb

            self._db = AsyncSqliteDb(db_url=text)
        elif kind == "postgresql":
            from agno.db.postgres import AsyncPostgresDb, PostgresDb

            self._db = AsyncPostgresDb(db_url=text, db_schema="public", create_schema=False)
            psycopg = url.set(drivername="postgresql+psycopg")
            # Only the synchronous class stores many sessions at once on PostgreSQL.
            bulk = PostgresDb(
                db_url=psycopg.render_as_string(hide_password=False),
                db_schema="public",
                create_schema=False,
            )
        else:
            from agno.db.mysql import AsyncMySQLDb

            self._db = AsyncMySQLDb(db_url=text, db_schema=url.database, create_schema=False)
        self._without_runs = {} if kind == "mysql" else {"include_runs": False}
        options = {"deserialize": False, "preserve_updated_at": True}
        for batch in _batches(corpus):
            sessions = [_agno_session(one) for one in batch]
            if bulk is None:
                await self._db.upsert_sessions(sessions, **options)
            else:
                await asyncio.to_thread(bulk.upsert_sessions, sessions, **options)
        if bulk is not None:
            bulk.close()

    async def newest(self, owner: str) -> list[Any]:
        """The first page of the sessions of the user."""
        found, _ = await self._db.get_sessions(
            session_type=SessionType.AGENT,
            sort_by="updated_at",
            sort_order="desc",
            deserialize=False,
            user_id=owner,
            limit=PAGE,
            page=1,
            **self._without_runs,
        )
        return list(found)

    async def close(self) -> None:
        """Release the database."""
        await self._db.close()


def _agno_session(session: Session) -> AgentSession:
    return AgentSession(
        session_id=session.session_id,
        agent_id=_APP,
        user_id=session.metadata["owner_id"],
        metadata=session.metadata,
        created_at=int(session.created_at.timestamp()),
        updated_at=int(session.updated_at.timestamp()),
    )


def _batches(corpus: Corpus) -> Iterator[list[Session]]:
    remaining = iter(corpus)
    while batch := list(islice(remaining, _BATCH)):
        yield batch

"""Other libraries that keep something about sessions: google-adk, LangGraph's stores, agno.

Each is used through its public API, in the way that is fastest for the question. What a library
cannot ask its database is filtered in Python, from the smallest list that it can be made to give.

google-adk has the owner as its user and the metadata as the session's state; as its API takes one
session at a time, most are loaded as rows of its table. agno has the owner as its user, too, and a
`metadata` column. A LangGraph store is measured twice: with all sessions in one namespace, so that
every key is asked for by its filter; and with a namespace for each owner, which is fast for one
owner's sessions and finds none by its id alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from itertools import islice
from typing import Any

from agno.db.base import SessionType
from agno.session.agent import AgentSession
from google.adk.events import Event, EventActions
from google.adk.memory import SqliteMemoryService
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.schemas.v1 import StorageSession
from google.genai.types import Content, Part
from langgraph.store.base import PutOp
from sqlalchemy import URL, insert

from . import operations as op
from .data import LARGEST_OWNER, Corpus, Session
from .measure import Operation

logging.getLogger("agno").setLevel(logging.WARNING)

_APP = "benchmark"
_ALL = 100_000_000
_LOAD_BATCH = 500


def peers(kind: str) -> list[Callable[[], op.Party]]:
    """Those that support a kind of database."""
    if kind == "mysql":
        return [ADK, Agno]
    return [ADK, LangGraph, LangGraphByOwner, Agno]


class ADK:
    """google-adk's `DatabaseSessionService`."""

    name = "google-adk"

    async def open(self, url: URL, corpus: Corpus) -> None:
        """Fill an empty database."""
        self.url = url
        self._service = DatabaseSessionService(url.render_as_string(hide_password=False))
        users: set[str] = set()
        for batch in _batches(corpus):
            rows = []
            for one in batch:
                owner = one.metadata["owner_id"]
                if owner not in users:
                    # Makes what belongs to a user, too.
                    users.add(owner)
                    await self._service.create_session(
                        app_name=_APP,
                        user_id=owner,
                        session_id=one.session_id,
                        state=one.metadata,
                    )
                    continue
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
            if rows:
                async with self._service.db_engine.begin() as connection:
                    await connection.execute(insert(StorageSession), rows)
        self._read = [(one.metadata["owner_id"], one.session_id) for one in corpus.sample]
        self._written = op.written_ids(corpus)

    def operations(self) -> dict[str, Operation]:
        """It lists a user's sessions or all, and reads one."""

        async def get(number: int) -> Any:
            owner, session_id = self._read[number % len(self._read)]
            return (await self._session(owner, session_id)).state

        async def write(number: int) -> Any:
            name = self._written[number % len(self._written)]
            session = await self._session(LARGEST_OWNER, name)
            actions = EventActions(state_delta=op.changes(number))
            await self._service.append_event(session, Event(author="user", actions=actions))

        def of_owner(keep: Callable[[dict[str, Any], int], bool], most: int = _ALL) -> Operation:
            async def find(number: int) -> Any:
                newest = reversed(await self._list(LARGEST_OWNER))
                return list(islice((one for one in newest if keep(one.state, number)), most))

            return find

        async def tagged(_: int) -> Any:
            return [one for one in reversed(await self._list(None)) if op.TAG in one.state["tags"]]

        return {
            op.GET: get,
            op.COUNT: _counted(of_owner(_everything)),
            op.FIND: of_owner(_everything),
            op.STATUS: of_owner(_has_status),
            op.PRIORITY: of_owner(_has_priority),
            op.TAGGED: tagged,
            op.NEWEST: of_owner(_everything, op.PAGE),
            op.SET: write,
        }

    async def _list(self, owner: str | None) -> Any:
        return (await self._service.list_sessions(app_name=_APP, user_id=owner)).sessions

    async def _session(self, owner: str, session_id: str) -> Any:
        return await self._service.get_session(
            app_name=_APP,
            user_id=owner,
            session_id=session_id,
            config=GetSessionConfig(num_recent_events=0),
        )

    async def close(self) -> None:
        """Let go of the database."""
        await self._service.close()


class LangGraph:
    """LangGraph's store, all sessions in one namespace."""

    name = "LangGraph store"
    by_owner = False

    async def open(self, url: URL, corpus: Corpus) -> None:
        """Fill an empty database."""
        self.url = url
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
                [PutOp(self._namespace(one), one.session_id, one.metadata) for one in batch]
            )
        self._read = [(self._namespace(one), one.session_id) for one in corpus.sample]
        self._written = op.written_ids(corpus)
        self._of_owner = ("sessions", LARGEST_OWNER) if self.by_owner else ("sessions",)

    def _namespace(self, session: Session) -> tuple[str, ...]:
        return ("sessions", session.metadata["owner_id"]) if self.by_owner else ("sessions",)

    def operations(self) -> dict[str, Operation]:
        """It filters by equality and ranges, not by a list's elements."""
        owner = {} if self.by_owner else {"owner_id": LARGEST_OWNER}

        async def get(number: int) -> Any:
            return (await self._store.aget(*self._read[number % len(self._read)])).value

        async def write(number: int) -> Any:
            name = self._written[number % len(self._written)]
            stored = (await self._store.aget(self._of_owner, name)).value
            await self._store.aput(self._of_owner, name, {**stored, **op.changes(number)})

        async def search(filter_: dict[str, Any], limit: int = _ALL) -> Any:
            return await self._store.asearch(
                self._of_owner, filter={**owner, **filter_} or None, limit=limit
            )

        async def tagged(_: int) -> Any:
            found = await self._store.asearch(("sessions",), limit=_ALL)
            return [one for one in found if op.TAG in one.value["tags"]]

        return {
            op.GET: get,
            op.COUNT: _counted(lambda _: search({})),
            op.FIND: lambda _: search({}),
            op.STATUS: lambda number: search({"status": op.status(number)}),
            op.PRIORITY: lambda _: search({"priority": {"$gte": op.LEAST_PRIORITY}}),
            op.TAGGED: tagged,
            op.NEWEST: lambda _: search({}, op.PAGE),
            op.SET: write,
        }

    async def close(self) -> None:
        """Let go of the database."""
        await self._stack.aclose()


class LangGraphByOwner(LangGraph):
    """LangGraph's store, a namespace for each owner."""

    name = "LangGraph store, namespace per owner"
    by_owner = True

    def newest_of(self, owner: str) -> Operation:
        """The newest sessions of an owner."""
        return lambda _: self._store.asearch(("sessions", owner), limit=op.PAGE)


class Agno:
    """agno's asynchronous databases."""

    name = "agno"

    async def open(self, url: URL, corpus: Corpus) -> None:
        """Fill an empty database."""
        self.url = url
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
            bulk = PostgresDb(
                db_url=psycopg.render_as_string(hide_password=False),
                db_schema="public",
                create_schema=False,
            )
        else:
            from agno.db.mysql import AsyncMySQLDb

            self._db = AsyncMySQLDb(db_url=text, db_schema=url.database, create_schema=False)
        self._without_runs = {} if kind == "mysql" else {"include_runs": False}
        for batch in _batches(corpus):
            sessions = [
                AgentSession(
                    session_id=one.session_id,
                    agent_id=_APP,
                    user_id=one.metadata["owner_id"],
                    metadata=one.metadata,
                    created_at=int(one.created_at.timestamp()),
                    updated_at=int(one.updated_at.timestamp()),
                )
                for one in batch
            ]
            if kind == "postgresql":
                # Only its synchronous twin takes many at once there.
                await asyncio.to_thread(
                    bulk.upsert_sessions, sessions, deserialize=False, preserve_updated_at=True
                )
            else:
                await self._db.upsert_sessions(
                    sessions, deserialize=False, preserve_updated_at=True
                )
        if bulk is not None:
            bulk.close()
        self._read = [(one.session_id, one.metadata["owner_id"]) for one in corpus.sample]
        self._written = op.written_ids(corpus)

    def operations(self) -> dict[str, Operation]:
        """It lists and counts a user's sessions, sorted and paged, and reads one."""

        async def get(number: int) -> Any:
            name, owner = self._read[number % len(self._read)]
            return (await self._session(name, owner)).metadata

        async def write(number: int) -> Any:
            session = await self._session(self._written[number % len(self._written)], LARGEST_OWNER)
            session.metadata.update(op.changes(number))
            await self._db.upsert_session(session, deserialize=False)

        async def count(_: int) -> Any:
            return (await self._list(user_id=LARGEST_OWNER, limit=1))[1]

        def of_owner(keep: Callable[[dict[str, Any], int], bool]) -> Operation:
            async def find(number: int) -> Any:
                found, _ = await self._list(user_id=LARGEST_OWNER)
                return [one for one in found if keep(one["metadata"], number)]

            return find

        async def tagged(_: int) -> Any:
            found, _ = await self._list()
            return [one for one in found if op.TAG in one["metadata"]["tags"]]

        async def newest(_: int) -> Any:
            return (await self._list(user_id=LARGEST_OWNER, limit=op.PAGE, page=1))[0]

        return {
            op.GET: get,
            op.COUNT: count,
            op.FIND: of_owner(_everything),
            op.STATUS: of_owner(_has_status),
            op.PRIORITY: of_owner(_has_priority),
            op.TAGGED: tagged,
            op.NEWEST: newest,
            op.SET: write,
        }

    async def _list(self, **arguments: Any) -> Any:
        return await self._db.get_sessions(
            session_type=SessionType.AGENT,
            sort_by="updated_at",
            sort_order="desc",
            deserialize=False,
            **self._without_runs,
            **arguments,
        )

    async def _session(self, session_id: str, owner: str) -> Any:
        return await self._db.get_session(
            session_id=session_id, session_type=SessionType.AGENT, user_id=owner
        )

    async def close(self) -> None:
        """Let go of the database."""
        await self._db.close()


def _everything(_metadata: dict[str, Any], _number: int) -> bool:
    return True


def _has_status(metadata: dict[str, Any], number: int) -> bool:
    return bool(metadata["status"] == op.status(number))


def _has_priority(metadata: dict[str, Any], _number: int) -> bool:
    return bool(metadata["priority"] >= op.LEAST_PRIORITY)


def _counted(find: Operation) -> Operation:
    async def count(number: int) -> int:
        return len(await find(number))

    return count


def _batches(corpus: Corpus) -> Iterator[list[Session]]:
    remaining = iter(corpus)
    while batch := list(islice(remaining, _LOAD_BATCH)):
        yield batch


class ADKMemory:
    """google-adk's `SqliteMemoryService`."""

    async def open(self, url: URL, corpus: Iterable[Any]) -> None:
        """Fill an empty database with messages, one call per session."""
        self._memory = SqliteMemoryService(url.database or "", max_results=op.PAGE)
        for chat in corpus:
            await self._memory.add_events_to_memory(
                app_name=_APP,
                user_id=chat.metadata["owner_id"],
                session_id=chat.session_id,
                events=[
                    Event(
                        id=str(each.item_id),
                        author="user",
                        timestamp=each.at.timestamp(),
                        content=Content(role="user", parts=[Part(text=each.text)]),
                    )
                    for each in chat.messages
                ],
            )

    def search(self, query: str, owner: str) -> Operation:
        """Up to 20 messages of an owner that contain a word."""

        async def find(_: int) -> Any:
            found = await self._memory.search_memory(app_name=_APP, user_id=owner, query=query)
            return found.memories

        return find


async def agno_finds(url: URL, chats: Iterable[Any], word: str) -> bool:
    """Whether the tool `search_past_sessions` of an agno agent shows a word that a user wrote."""
    from agno.agent import Agent
    from agno.agent._default_tools import get_search_past_sessions_function
    from agno.db.sqlite import SqliteDb
    from agno.models.message import Message
    from agno.run.agent import RunOutput

    owner = "owner"
    database = SqliteDb(db_file=url.database)
    chats = list(chats)
    sessions = [
        AgentSession(
            session_id=chat.session_id,
            agent_id=_APP,
            user_id=owner,
            created_at=int(chat.created_at.timestamp()),
            updated_at=int(chat.updated_at.timestamp()),
        )
        for chat in chats
    ]
    database.upsert_sessions(sessions, preserve_updated_at=True)
    for chat in chats:
        messages = [Message(role="user", content=each.text) for each in chat.messages]
        run = RunOutput(run_id=chat.session_id, agent_id=_APP, messages=messages)
        database.upsert_run(run, chat.session_id, user_id=owner, run_index=0)
    agent = Agent(id=_APP, db=database, user_id=owner)
    search = get_search_past_sessions_function(agent, user_id=owner)
    shown = str(search())
    if chats[-1].session_id not in shown:
        raise RuntimeError("agno does not show the newest session")
    return word in shown

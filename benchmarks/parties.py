"""This package and the baseline."""

from __future__ import annotations

from agents.extensions.memory import SQLAlchemySession
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from agents_session_metadata import SessionCatalog, SessionInfo

from . import load
from . import operations as op
from .data import FIXED_OWNER, LARGEST_OWNER, Corpus
from .measure import Operation
from .plain_eav import PlainEAV


class Ours:
    """This package."""

    name = op.OURS

    async def open(self, url: URL, corpus: Corpus) -> None:
        """Fill an empty database."""
        self.url = url
        self.engine: AsyncEngine = create_async_engine(url)
        await load.load_ours(self.engine, corpus)
        self.catalog = SessionCatalog(self.engine)
        self._read = [self.catalog.session(one.session_id) for one in corpus.sample]
        self._written = [self.catalog.session(name) for name in op.written_ids(corpus)]

    def operations(self) -> dict[str, Operation]:
        """All of them."""
        read, write = self._read, self._written
        find, count = read[0].find_sessions_by_metadata, self.catalog.count_sessions
        owner, tagged = {"owner_id": LARGEST_OWNER}, {"tags": {"$contains": op.TAG}}
        return {
            op.GET: lambda number: read[number % len(read)].get_metadata(),
            op.COUNT: lambda _: count(owner),
            op.FIND: lambda _: find("owner_id", LARGEST_OWNER),
            op.STATUS: lambda number: find({**owner, "status": op.status(number)}),
            op.PRIORITY: lambda _: find({**owner, "priority": {"$gte": op.LEAST_PRIORITY}}),
            op.TAGGED: lambda _: find(tagged),
            op.COUNT_TAGGED: lambda _: count(tagged),
            op.NEWEST: lambda _: self._newest(LARGEST_OWNER),
            op.SET: lambda number: write[number % len(write)].set_metadata(op.changes(number)),
        }

    async def newest_of_fixed_owner(self, _: int) -> list[SessionInfo]:
        """The newest sessions of the owner who has as many whatever the size."""
        return await self._newest(FIXED_OWNER)

    async def set_with_list(self, number: int) -> None:
        """Write five scalars and a list that replaces a list."""
        await self._written[0].set_metadata({**op.changes(number), "tags": ["a", f"b{number}"]})

    async def _newest(self, owner: str) -> list[SessionInfo]:
        page = await self.catalog.list_sessions({"owner_id": owner}, limit=op.PAGE)
        return page.sessions

    async def close(self) -> None:
        """Let go of the database."""
        await self.engine.dispose()


class Plain:
    """The baseline: a plain table."""

    name = op.PLAIN

    async def open(self, url: URL, corpus: Corpus) -> None:
        """Fill an empty database."""
        self.url = url
        self._engine = create_async_engine(url)
        # Connections get SQLite's settings from the SDK, as they would in an application.
        SQLAlchemySession("any", engine=self._engine)
        await load.load_plain(self._engine, corpus)
        self._store = PlainEAV(self._engine)
        self._read = [session.session_id for session in corpus.sample]
        self._written = op.written_ids(corpus)

    def operations(self) -> dict[str, Operation]:
        """All of them."""
        store, read, write, owner = self._store, self._read, self._written, LARGEST_OWNER
        return {
            op.GET: lambda number: store.get(read[number % len(read)]),
            op.COUNT: lambda _: store.count_owner(owner),
            op.FIND: lambda _: store.find_owner(owner),
            op.STATUS: lambda number: store.find_owner_status(owner, op.status(number)),
            op.PRIORITY: lambda _: store.find_owner_priority(owner, op.LEAST_PRIORITY),
            op.TAGGED: lambda _: store.find_tag(op.TAG),
            op.COUNT_TAGGED: lambda _: store.count_tag(op.TAG),
            op.NEWEST: self.newest_of(owner),
            op.SET: lambda number: store.set(write[number % len(write)], op.changes(number)),
        }

    def newest_of(self, owner: str) -> Operation:
        """The newest sessions of an owner."""
        return lambda _: self._store.newest(owner, op.PAGE)

    async def newest_tagged(self, _: int) -> list[str]:
        """The ids of the newest sessions with a tag."""
        return await self._store.find_tag(op.TAG, op.PAGE)

    async def close(self) -> None:
        """Let go of the database."""
        await self._engine.dispose()

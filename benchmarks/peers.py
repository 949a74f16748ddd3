"""LangGraph's store with a namespace per owner: the fastest other library for the page of an owner.

It finds the sessions of an owner fast, and no session by its id alone. The other libraries in
`docs/performance-tables.md`, google-adk and agno, were measured once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import islice
from typing import Any

from langgraph.store.base import PutOp
from sqlalchemy import URL

from .data import PAGE, Corpus, Session

_BATCH = 500


class LangGraphByOwner:
    """LangGraph's store with a namespace per owner, through its public API."""

    name = "LangGraph's store, namespace per owner"

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
                    PutOp(("sessions", one.metadata["owner_id"]), one.session_id, one.metadata)
                    for one in batch
                ]
            )

    async def newest(self, owner: str) -> list[Any]:
        """The newest 20 sessions of an owner with their metadata, newest first."""
        found: list[Any] = await self._store.asearch(("sessions", owner), limit=PAGE)
        return found

    async def close(self) -> None:
        """Release the database."""
        await self._stack.aclose()


def _batches(corpus: Corpus) -> Iterator[list[Session]]:
    remaining = iter(corpus)
    while batch := list(islice(remaining, _BATCH)):
        yield batch

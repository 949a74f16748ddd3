"""The session class of this package beside the SDK's own.

Two databases of one server: one contains only the SDK's tables, the other one also ours. Items are
added to one session and popped from it; ten items are read from another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents.extensions.memory import SQLAlchemySession
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from agents_session_metadata import SessionCatalog, SQLAlchemyMetadataSession, session_tables

from .data import MESSAGES, message
from .databases import Server
from .measure import Effort, Operation, contest
from .report import Report

SECTION = "Sessions: this package / the plain SDK, ms"
OPERATIONS = ("add_items", "get_items", "pop_item")
KEPT, PER_CALL, CREATING = "kept", "made per call", "made per call with create_tables"
LIMITS = {KEPT: 1.03, PER_CALL: 0.7, CREATING: 0.7}
_CALLS = 2
_WARM_UP = 15


class _History:
    """The calls of one session class."""

    def __init__(self, kind: type[SQLAlchemySession], engine: AsyncEngine, mode: str) -> None:
        self._make: Callable[[str], SQLAlchemySession]
        if mode == KEPT:
            kept = {name: kind(name, engine=engine) for name in ("read", "written")}
            self._make = kept.__getitem__
        else:
            creating = mode == CREATING
            self._make = lambda name: kind(name, engine=engine, create_tables=creating)

    async def fill(self) -> None:
        for name in ("read", "written"):
            session = self._make(name)
            await session.clear_session()
            await session.add_items([message(number) for number in range(MESSAGES)])  # type: ignore[misc]  # plain dicts

    async def add_items(self, _: int) -> Any:
        await self._make("written").add_items([message(0), message(1)])  # type: ignore[list-item]  # plain dicts

    async def get_items(self, _: int) -> Any:
        return await self._make("read").get_items()

    async def pop_item(self, _: int) -> Any:
        return await self._make("written").pop_item()


async def measure_overhead(server: Server, effort: Effort, report: Report) -> None:
    """Measure every operation in every mode."""
    parties: dict[str, type[SQLAlchemySession]] = {
        "ours": SQLAlchemyMetadataSession,
        "sdk": SQLAlchemySession,
    }
    urls = {name: await server.create(name) for name in parties}
    engines = {name: create_async_engine(url) for name, url in urls.items()}
    try:
        await _create_tables(engines)
        for mode, limit in LIMITS.items():
            histories = {
                name: _History(kind, engines[name], mode) for name, kind in parties.items()
            }
            for operation in OPERATIONS:
                for history in histories.values():
                    await history.fill()
                    if operation == "pop_item":
                        for _ in range((effort.rounds * _CALLS + _WARM_UP) // 2 + 1):
                            await history.add_items(0)
                calls: dict[str, Operation] = {
                    name: getattr(history, operation) for name, history in histories.items()
                }
                timings = await contest(calls, effort, calls=_CALLS, warm_up=_WARM_UP)
                what = f"`{operation}`, session {mode}"
                most = 1.0 if (operation, mode) == ("add_items", KEPT) else limit
                report.compare(SECTION, what, timings, "ours", "sdk", limit=most)
    finally:
        for name, engine in engines.items():
            await engine.dispose()
            await server.drop(urls[name])


async def _create_tables(engines: dict[str, AsyncEngine]) -> None:
    await SessionCatalog(engines["ours"], create_tables=True).count_sessions()
    if engines["sdk"].dialect.name != "mysql":
        await SQLAlchemySession("any", engine=engines["sdk"], create_tables=True).get_items()
        return
    # The SDK cannot create its tables on MySQL or MariaDB.
    tables = session_tables()
    async with engines["sdk"].begin() as connection:
        for table in (tables.sessions, tables.messages):
            await connection.run_sync(table.create)

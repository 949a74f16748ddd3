"""What a conversation costs with this package's session, beside the SDK's own.

Two databases of one server: in one the SDK's tables alone, in the other ours as well. Items are
added to and popped from one session; ten items are read from another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agents.extensions.memory import SQLAlchemySession
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from agents_session_metadata import SessionCatalog, SQLAlchemyMetadataSession, session_tables

from .data import MESSAGES, message
from .databases import Server
from .measure import Operation, Timings, contest

OPERATIONS = ("add_items", "get_items", "pop_item")
KEPT, PER_CALL, CREATING = "kept", "per call", "per call, create_tables"
MODES = (KEPT, PER_CALL, CREATING)
_CALLS = 2
_WARM_UP = 15


@dataclass(frozen=True)
class Overhead:
    """What was measured of one operation, with sessions made in one way."""

    operation: str
    mode: str
    timings: Timings

    @property
    def ratio(self) -> float:
        """This package's time over the SDK's."""
        return self.timings.ratio("ours", "sdk")


class _History:
    """The calls of one class of sessions."""

    def __init__(self, kind: type[SQLAlchemySession], engine: AsyncEngine, mode: str) -> None:
        self._make: Callable[[str], SQLAlchemySession]
        if mode == KEPT:
            kept = {name: kind(name, engine=engine) for name in ("read", "written")}
            self._make = kept.__getitem__
        else:
            creating = mode == CREATING
            self._make = lambda name: kind(name, engine=engine, create_tables=creating)

    async def fill(self) -> None:
        """Give both sessions their items."""
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


async def measure_overhead(server: Server, *, rounds: int, seconds: float) -> list[Overhead]:
    """Measure every operation and mode on one server."""
    parties: dict[str, type[SQLAlchemySession]] = {
        "ours": SQLAlchemyMetadataSession,
        "sdk": SQLAlchemySession,
    }
    urls = {name: await server.create(name) for name in parties}
    engines = {name: create_async_engine(url) for name, url in urls.items()}
    found = []
    try:
        await _create_tables(engines)
        for mode in MODES:
            histories = {
                name: _History(kind, engines[name], mode) for name, kind in parties.items()
            }
            for operation in OPERATIONS:
                for history in histories.values():
                    await history.fill()
                    if operation == "pop_item":
                        for _ in range((rounds * _CALLS + _WARM_UP) // 2 + 1):
                            await history.add_items(0)
                calls: dict[str, Operation] = {
                    name: getattr(history, operation) for name, history in histories.items()
                }
                timings = await contest(
                    calls, calls=_CALLS, rounds=rounds, seconds=seconds, warm_up=_WARM_UP
                )
                found.append(Overhead(operation, mode, timings))
    finally:
        for name, engine in engines.items():
            await engine.dispose()
            await server.drop(urls[name])
    return found


async def _create_tables(engines: dict[str, AsyncEngine]) -> None:
    await SessionCatalog(engines["ours"], create_tables=True).count_sessions()
    if engines["sdk"].dialect.name != "mysql":
        await SQLAlchemySession("any", engine=engines["sdk"], create_tables=True).get_items()
        return
    # The SDK cannot create its tables on MySQL or MariaDB: these are as ours are.
    tables = session_tables()
    async with engines["sdk"].begin() as connection:
        for table in (tables.sessions, tables.messages):
            await connection.run_sync(table.create)

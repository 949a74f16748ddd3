"""An empty SQLite database for each test: in a file, and in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("sqlalchemy")  # Skip tests if SQLAlchemy is not installed.
pytest.importorskip("aiosqlite")

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine


class Database:
    """An empty database of one test, and the engines that the test made for it."""

    def __init__(self, url: str, *, shared: bool) -> None:
        self.url = url
        self.shared = shared
        self._engines: list[AsyncEngine] = []

    def engine(self, **kwargs: Any) -> AsyncEngine:
        """Makes an engine; in memory, gives the same one every time."""
        if self._engines and not self.shared:
            return self._engines[0]
        engine = create_async_engine(self.url, **kwargs)
        self._engines.append(engine)
        return engine

    async def close(self) -> None:
        """Disposes every engine. A connection that was not given back is an error."""
        leaked = 0
        for engine in self._engines:
            # StaticPool and NullPool do not count.
            leaked += getattr(engine.pool, "checkedout", int)()
            await engine.dispose()
        assert not leaked, f"{leaked} connections were not given back"


@pytest_asyncio.fixture(loop_scope="function")
async def shared_database(tmp_path: Path) -> AsyncIterator[Database]:
    """A database that several engines see."""
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/chat.db", shared=True)
    yield database
    await database.close()


@pytest_asyncio.fixture(params=["file", "memory"], loop_scope="function")
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """A database of either kind."""
    shared = request.param == "file"
    place = f"/{tmp_path}/chat.db" if shared else ":memory:"
    database = Database(f"sqlite+aiosqlite:///{place}", shared=shared)
    yield database
    await database.close()


@pytest.fixture
def engine(database: Database) -> AsyncEngine:
    return database.engine()

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from servers import (
    DATABASES,
    SHARED_DATABASES,
    Database,
    Servers,
    directory_in_memory,
    empty_database,
)

# The SDK would send traces of the runs that the tests make.
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

# SQLite waits for the disk at every commit, unless its file (in `tmp_path`) is kept in memory.
if directory := directory_in_memory():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", directory)

# A database's time is not the tested code's.
settings.register_profile("databases", deadline=None)
# For "make fuzz": what asks for a few examples gets fifty times as many.
settings.register_profile("thorough", deadline=None, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "databases"))


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    asyncio.run(servers.stop())


@pytest.fixture(params=DATABASES)
async def database(
    request: pytest.FixtureRequest, tmp_path: Path, servers: Servers
) -> AsyncIterator[Database]:
    """An empty database of every kind."""
    async with empty_database(request.param, tmp_path, servers) as database:
        yield database


@pytest.fixture(params=SHARED_DATABASES)
async def shared_database(
    request: pytest.FixtureRequest, tmp_path: Path, servers: Servers
) -> AsyncIterator[Database]:
    """An empty database that several engines and processes can share."""
    async with empty_database(request.param, tmp_path, servers) as database:
        yield database

from __future__ import annotations

import pytest
from conformance import raw
from doctoring import complete
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import SessionCatalog


@pytest.fixture
async def engine(shared_database):
    engine = create_async_engine(shared_database.url)
    if shared_database.kind == "postgresql":
        name = make_url(shared_database.url).database
        await raw.execute(engine, f"ALTER DATABASE {name} SET timezone = 'UTC'")
        await engine.dispose()
    yield engine
    await engine.dispose()


@pytest.fixture
async def filled(engine):
    """A healthy database with two sessions."""
    catalog = SessionCatalog(engine, create_tables=True)
    for name in ("a", "b"):
        session = await catalog.create_session(name, metadata={"tags": ["x", "y"], "n": 1})
        await session.add_items([raw.message("hello")])
    return catalog


@pytest.fixture
async def whole(engine):
    """A healthy database with two sessions and rows in the tables of every group."""
    return await complete(engine)

from __future__ import annotations

import pytest

from agents_session_metadata import SessionCatalog, SessionRuns
from conformance import raw


@pytest.fixture
def engine(database):
    return database.engine()


@pytest.fixture
def catalog(engine):
    return SessionCatalog(engine, create_tables=True)


@pytest.fixture
async def runs(catalog):
    """Interrupts what the test has begun and not ended."""
    runs = SessionRuns(catalog)
    yield runs
    await runs.aclose(wait=0)


@pytest.fixture
async def session(catalog):
    return await catalog.create_session("chat", metadata={"owner_id": "u1"})


@pytest.fixture
async def everyone(engine):
    """A catalog of four sessions, two of each owner, alike but for the owner."""
    catalog = SessionCatalog(engine, create_tables=True)
    for owner in ("mine", "theirs"):
        for number in range(2):
            metadata = {
                "owner_id": owner,
                "title": f"{owner} {number}",
                "tags": ["x", owner],
                "shared": [1],
            }
            session = await catalog.create_session(f"{owner}-{number}", metadata=metadata)
            await session.add_items([raw.message(f"{owner} {number}")])
    return catalog


@pytest.fixture
async def mine(everyone):
    """The catalog of one owner; whatever a test does with it, the other's sessions stay."""

    async def theirs() -> list:
        infos = [info async for info in everyone.iter_sessions({"owner_id": "theirs"})]
        return [(info, await everyone.session(info.session_id).get_items()) for info in infos]

    before = await theirs()
    assert len(before) == 2
    yield everyone.scoped({"owner_id": "mine"})
    assert await theirs() == before

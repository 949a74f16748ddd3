"""The sizes of the tables."""

from __future__ import annotations

import pytest

from agents_session_metadata import ScopeError, SessionCatalog

from . import raw


async def test_sizes(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    session = await catalog.create_session("a", metadata={"tags": ["x", "y"], "title": "t"})
    await session.add_items([raw.message("1"), raw.message("2"), raw.message("3")])
    sizes = {each.table: each for each in await catalog.storage()}
    assert {name: each.rows for name, each in sizes.items()} == {
        "agent_sessions": 1,
        "agent_messages": 3,
        "agent_sessions_metadata": 2,
        "agent_sessions_metadata_elements": 2,
    }
    assert all(each.bytes is None or each.bytes > 0 for each in sizes.values())
    with pytest.raises(ScopeError):
        await catalog.scoped({"owner_id": "u1"}).storage()


@pytest.mark.only_on("sqlite")
async def test_the_native_index_counts(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.session("a").add_items([raw.message(f"word{number}") for number in range(500)])
    await catalog.create_index("$text", native=True)
    sizes = {each.table: each for each in await catalog.storage()}
    native = sizes["agent_sessions_metadata_text_fts"]
    assert native.rows == 500
    assert native.bytes is None or native.bytes > 10_000


async def test_no_tables(engine):
    assert await SessionCatalog(engine).storage() == []

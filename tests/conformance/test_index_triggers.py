"""Indexes whose triggers do something else, or whose rows a trigger of the application keeps."""

from __future__ import annotations

import pytest
from agents.extensions.memory import SQLAlchemySession
from doctoring import complete, problems
from servers import Database

from agents_session_metadata import RefusedRowError, SessionCatalog
from agents_session_metadata.maintenance import text_index
from agents_session_metadata.storage import word_index
from conformance import raw
from conformance.test_triggers import veto

META = "agent_sessions_metadata"
KEYS = ("tags", "$updated_at", "$text")


async def check_plain_writers(database: Database) -> None:
    """What the plain SDK writes waits for the text index, and is in the other indexes."""
    catalog, engine = SessionCatalog(database.engine()), database.engine()
    await SQLAlchemySession("b", engine=engine).add_items([raw.message("unheard of")])
    page = await catalog.search("unheard")
    assert page.hits == []
    assert not page.complete
    await catalog.refresh_index("$text")
    page = await catalog.search("unheard")
    assert [hit.session_id for hit in page.hits] == ["b"]
    assert page.complete
    assert await problems(engine) == []


@pytest.mark.only_on("sqlite", "postgresql")  # Elsewhere, a trigger can only raise an error.
async def test_a_trigger_that_keeps_rows_of_the_text_index(shared_database: Database, monkeypatch):
    engine = shared_database.engine()
    catalog = await complete(engine)
    monkeypatch.setattr(word_index, "STEP", 1)
    monkeypatch.setattr(text_index, "_DELETED_AT_ONCE", 2)
    await SQLAlchemySession("a", engine=engine).add_items([raw.message("one"), raw.message("two")])
    await SQLAlchemySession("b", engine=engine).add_items([raw.message("one"), raw.message("two")])
    await veto(engine, "DELETE", f"{META}_words_queue")
    with pytest.raises(RefusedRowError, match=rf"from {META}_words_queue.*trigger"):
        await catalog.refresh_index("$text")
    # A write of history goes on all the same.
    await catalog.session("a").add_items([raw.message("three")])
    [record, _] = [record async for record in catalog.export_sessions()]
    # The later ones are imported together.
    await catalog.import_sessions([{**record, "session_id": f"new {n}"} for n in range(12)])
    assert not (await catalog.search("three")).complete
    with pytest.raises(RefusedRowError, match=rf"from {META}_words_queue.*trigger"):
        await catalog.drop_index("$text")


@pytest.mark.only_on("sqlite", "postgresql")
async def test_a_trigger_that_keeps_entries_of_an_index(shared_database: Database):
    engine = shared_database.engine()
    catalog = await complete(engine)
    await veto(engine, "DELETE", f"{META}_activity")
    call = catalog.drop_index("tags")
    if engine.dialect.name == "postgresql":
        # It drops an index while others write, and looks when the index is created again.
        await call
        call = catalog.create_index("tags")
    with pytest.raises(RefusedRowError, match=rf"from {META}_activity.*trigger"):
        await call


@pytest.mark.only_on("sqlite", "postgresql")
async def test_a_trigger_that_keeps_the_state_of_the_text_index(shared_database: Database):
    engine = shared_database.engine()
    catalog = await complete(engine)
    await raw.execute(engine, f"UPDATE {META}_words_state SET state = 0")
    await veto(engine, "UPDATE", f"{META}_words_state")
    for call in (catalog.create_index("$text"), catalog.drop_index("$text")):
        with pytest.raises(RefusedRowError, match=rf"row of {META}_words_state.*trigger"):
            await call

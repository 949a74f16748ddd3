"""The contribution to the SDK: what its class stored can be moved to this package."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import pytest
from documentation import DOCS, ROOT, Program, blocks
from servers import Database
from sqlalchemy import text

from agents_session_metadata import SessionCatalog, SQLAlchemyMetadataSession

NAME = "agents.extensions.memory.sqlalchemy_metadata_session"
SOURCE = ROOT / "contrib" / "upstream" / "sqlalchemy_metadata_session.py"
HEADING = "Move the table of the SDK's metadata session"
CHATS: dict[str, dict[str, Any]] = {
    "chat-1": {"owner_id": "u1", "title": "Lisbon\u0000", "tags": ["a", {"b": 1.5}], "none": None},
    "chat-2": {"owner_id": "u1", "n": 10**30, "flag": False, "float": 1.0},
}


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location(NAME, SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, NAME, module)
    spec.loader.exec_module(module)
    return module.SQLAlchemyMetadataSession


@pytest.mark.only_on("sqlite", "postgresql")
async def test_its_table_is_moved_by_one_call(shared_database: Database, upstream: Any) -> None:
    engine = shared_database.engine()
    for session_id, values in CHATS.items():
        chat = upstream(session_id, engine=engine, create_tables=True)
        await chat.add_items([{"role": "user", "content": session_id}])
        await chat.set_metadata(values)
    catalog = SessionCatalog(engine, create_tables=True)
    before = {info.session_id: info.updated_at async for info in catalog.iter_sessions()}
    program = Program({"engine": engine, "catalog": catalog, "json": json})
    page = blocks(DOCS / "guide" / "moving.md")
    [block] = [block for block in page if block.heading == HEADING]
    await program.run(block)
    move = program.namespace["move_metadata"]

    assert await move("agent_metadata") == 2
    assert await move("agent_metadata") == 2  # It can be repeated.
    for session_id, values in CHATS.items():
        info = await catalog.get_session(session_id)
        assert info is not None
        assert (info.metadata, info.updated_at) == (values, before[session_id])
        kinds = {key: type(value) for key, value in info.metadata.items()}
        assert kinds == {key: type(value) for key, value in values.items()}
        ours = SQLAlchemyMetadataSession(session_id, engine=engine)
        assert await ours.get_items() == [{"role": "user", "content": session_id}]
        for key, value in values.items():
            theirs = upstream(session_id, engine=engine)
            found = await theirs.find_sessions_by_metadata(key, value)
            assert await ours.find_sessions_by_metadata(key, value) == found

    async with engine.begin() as connection:
        if shared_database.kind == "sqlite":
            await connection.execute(text("DROP TRIGGER agent_metadata_delete"))
        await connection.execute(text("DROP TABLE agent_metadata"))
    await ours.clear_session()
    assert await catalog.get_metadata(session_id) == {}

"""The contribution to the SDK: what its class stored can be moved to this package."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from typing import Any

import pytest
from documentation import DOCS, ROOT, Program, blocks
from servers import Database
from sqlalchemy import Column, MetaData, String, Table, Text, column, select, table, text

from agents_session_metadata import (
    SessionCatalog,
    SessionNotFoundError,
    SQLAlchemyMetadataSession,
    TablesMissingError,
)
from agents_session_metadata.doctor import diagnose

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
    namespace = program.namespace
    namespace |= {"column": column, "select": select, "table": table}
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


OLD_ROWS = {
    "chat-1": {"owner_id": "123", "title": "Lisbon", "n": "123", "tags": '["a"]', "nan": "NaN"},
    "chat-2": {"owner_id": "u1", "flag": "True"},
    "gone": {"owner_id": "u1"},
}


@pytest.mark.dialect
async def test_the_table_of_the_pull_request_is_recognized_and_moved(
    shared_database: Database,
) -> None:
    engine = shared_database.engine()
    for session_id in ("chat-1", "chat-2"):
        await SQLAlchemyMetadataSession(session_id, engine=engine, create_tables=True).add_items(
            [{"role": "user", "content": session_id}]
        )
    shown = "agent_sessions_metadata has no column search_key.*guide/moving.md"
    old = Table(
        "agent_sessions_metadata",
        MetaData(),
        Column("session_id", String(255), primary_key=True),
        Column("key", String(190), primary_key=True),
        Column("value", Text, nullable=False),
    )
    async with engine.begin() as connection:
        for name in ("agent_sessions_metadata_elements", "agent_sessions_metadata"):
            await connection.execute(text(f"DROP TABLE IF EXISTS {name}"))
        await connection.run_sync(old.create)
        for session_id, values in OLD_ROWS.items():
            for key, value in values.items():
                row = {"session_id": session_id, "key": key, "value": value}
                await connection.execute(old.insert().values(row))

    other = shared_database.engine()
    for create_tables in (False, True):
        catalog = SessionCatalog(other, create_tables=create_tables)
        session = catalog.session("chat-1")
        for call in (
            catalog.list_sessions(),
            catalog.get_session("chat-1"),
            session.get_metadata(),
            session.set_metadata({"a": 1}),
            catalog.statistics(),
        ):
            with pytest.raises(TablesMissingError, match=shown):
                await call
    [_, finding] = await diagnose(other)
    assert (finding.level, finding.repair) == ("error", ())
    assert re.search(shown, finding.problem)

    program = Program(
        {
            "SessionCatalog": SessionCatalog,
            "SessionNotFoundError": SessionNotFoundError,
            "text": text,
            "json": json,
        }
    )
    page = blocks(DOCS / "guide" / "moving.md")
    [block] = [block for block in page if block.heading == "Move the table of PR #1939"]
    await program.run(block)
    await program.namespace["move_old_table"](other)
    catalog = SessionCatalog(other)
    assert await catalog.get_metadata("chat-1") == {
        "n": 123,
        "nan": "NaN",
        "owner_id": "123",
        "tags": ["a"],
        "title": "Lisbon",
    }
    assert await catalog.get_metadata("chat-2") == {"flag": "True", "owner_id": "u1"}
    assert await catalog.get_session("gone") is None
    assert await catalog.session("chat-1").get_items() == [{"role": "user", "content": "chat-1"}]
    errors = [each for each in await diagnose(other) if each.level == "error"]
    assert errors == []

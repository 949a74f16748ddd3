"""The tables of optional features: created when they are first used, needed by nothing else."""

from __future__ import annotations

import asyncio

import pytest
from agents.extensions.memory import SQLAlchemySession
from sqlalchemy import Column, Index, MetaData, inspect

from agents_session_metadata import SessionCatalog, TablesMissingError, session_tables
from agents_session_metadata.core import features
from agents_session_metadata.core.definitions import derived_name
from agents_session_metadata.core.features import Feature
from conformance import raw
from conformance.test_tables import TABLES, schema_of

pytestmark = pytest.mark.dialect


class Notes(Feature):
    """A feature with one table, whose rows end with their session."""

    name = "notes"
    suffixes = ("_notes",)

    def define(self, make):
        [name] = make.names
        note = Column("note", make.types.key, nullable=False)
        make.owned(name, note, Index(derived_name(name, "_note_idx"), "note"))


@pytest.fixture
def notes(monkeypatch):
    every = (*features.features(), Notes())
    monkeypatch.setattr(features, "features", lambda: every)
    return "agent_sessions_metadata_notes"


async def ensure(engine, *, create_tables):
    catalog = SessionCatalog(engine, create_tables=create_tables)
    await catalog._store.database.ensure("notes")


async def test_only_the_feature_needs_its_tables(notes, engine):
    catalog = SessionCatalog(engine, create_tables=True)
    session = await catalog.create_session("a", metadata={"tags": ["x"]})
    assert await raw.table_names(engine) == TABLES
    with pytest.raises(TablesMissingError) as caught:
        await ensure(engine, create_tables=False)
    assert notes in caught.value.tables
    assert not TABLES & set(caught.value.tables)
    await session.add_items([raw.message("hello")])
    assert await session.get_metadata() == {"tags": ["x"]}
    assert await raw.table_names(engine) == TABLES

    for _ in range(2):
        await ensure(engine, create_tables=True)
    await ensure(engine, create_tables=False)
    assert await raw.table_names(engine) == {*TABLES, notes}
    insert = f"INSERT INTO {notes} (session_id, note) VALUES ('a', 'n')"
    await raw.execute(engine, insert)
    await SQLAlchemySession("a", engine=engine).clear_session()
    assert await raw.count_rows(engine, notes) == 0


async def test_many_at_once(notes, shared_database):
    engines = [shared_database.engine() for _ in range(6)]
    await asyncio.gather(*(ensure(engine, create_tables=True) for engine in engines))
    async with engines[0].connect() as connection:
        indexes = await connection.run_sync(lambda sync: inspect(sync).get_indexes(notes))
    assert f"{notes}_note_idx" in [index["name"] for index in indexes]


async def test_in_a_schema_translated_to(notes, database, tmp_path):
    async with schema_of(database, tmp_path) as (schema, engine):
        await ensure(engine, create_tables=True)
        async with engine.connect() as connection:
            names = await connection.run_sync(lambda sync: inspect(sync).get_table_names(schema))
        assert set(names) == {*TABLES, notes}
        await raw.execute(engine, f"INSERT INTO {schema}.agent_sessions (session_id) VALUES ('a')")
        await raw.execute(
            engine, f"INSERT INTO {schema}.{notes} (session_id, note) VALUES ('a', 'n')"
        )
        await raw.execute(engine, f"DELETE FROM {schema}.agent_sessions")
        rows = await raw.execute(engine, f"SELECT count(*) FROM {schema}.{notes}")
        assert rows[0][0] == 0


async def test_session_tables_has_all(notes, engine):
    metadata = MetaData()
    names = {table.name for group in session_tables(metadata).groups for table in group.tables}
    assert names > {*TABLES, notes}
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    await ensure(engine, create_tables=False)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.drop_all)
    assert await raw.table_names(engine) == set()

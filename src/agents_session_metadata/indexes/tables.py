"""The tables of indexes, and what this process knows of them.

| table | one row |
|---|---|
| `…_indexes` | an index: its key, and whether it is complete |
| `…_activity` | a value or list element of an indexed key, and when its session was active |
"""

from __future__ import annotations

from sqlalchemy import Column, Connection, Index, Integer, select

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.definitions import (
    TableMaker,
    by_code_point,
    derived_name,
    session_link,
)

from .triggers import cleanup

ACTIVITY = "activity"

FILLING, COMPLETE, DROPPING = 0, 1, 2
"""Triggers maintain an index in the first two states; only a complete one is used."""


def define(make: TableMaker) -> None:
    types, (indexes_name, entries_name) = make.types, make.names
    make.table(
        indexes_name,
        Column("key", types.key, primary_key=True),
        # FILLING, COMPLETE or DROPPING.
        Column("state", Integer, nullable=False),
        # Of whoever has begun to create or to drop it.
        Column("token", types.key, nullable=False),
        sqlite_with_rowid=False,
    )
    entries = make.table(
        entries_name,
        Column("session_id", types.own_id, primary_key=True),
        Column("key", types.key, primary_key=True),
        # That of the element in its list; -1 for a value as a whole.
        Column("position", Integer, primary_key=True, autoincrement=False),
        # Whether it is an element: 0 or 1.
        Column("of_list", Integer, nullable=False),
        Column("search_key", types.search, nullable=False),
        # As nullable as the column that it follows may be.
        Column("updated_at", types.stored_time, nullable=True),
        session_link(entries_name, make.core[0]),
        Index(
            derived_name(entries_name, "_order_idx"),
            *("key", "of_list", "search_key", "updated_at", "session_id"),
            **by_code_point(types),
        ),
        sqlite_with_rowid=False,
    )
    make.cleanup += cleanup(make.core, entries)


def look(database: Database, connection: Connection) -> None:
    """Reads which indexes are complete. Another process may have created or dropped some."""
    if database.has_tables(connection, ACTIVITY):
        indexes = database.tables.group(ACTIVITY)["_indexes"]
        complete = select(indexes.c.key).where(indexes.c.state == COMPLETE)
        database.notes[ACTIVITY] = frozenset(connection.scalars(complete))

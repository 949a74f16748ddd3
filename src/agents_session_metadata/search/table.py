"""The tables of text search.

| table | one row |
|---|---|
| `…_text` | an item of a history: its normalized words, or nothing if it has no text |
| `…_text_state` | the only one: that items are indexed, and how |

A row is deleted with its item, whoever deletes that. An item without a row was written by others.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    select,
)

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.definitions import (
    ColumnTypes,
    CreateTrigger,
    TableGroup,
    derived_name,
    table_options,
)
from agents_session_metadata.dialects.sqltypes import Words

TEXT = "text"
"""The name of the group of tables."""
KEY = "$text"
"""The name of the index."""
_KNOWN_FOR = 60
"""Seconds until a process finds out that another one has created or dropped the index."""


def define(
    metadata: MetaData, core: TableGroup, names: tuple[str, ...], types: ColumnTypes
) -> TableGroup:
    rows_name, state_name = names
    messages = core.tables[1]
    if rows_name not in metadata.tables:
        link = derived_name(rows_name, "_item_fk")
        Table(
            rows_name,
            metadata,
            Column(
                "id",
                Integer,
                ForeignKey(messages.c.id, ondelete="CASCADE", name=link),
                primary_key=True,
                autoincrement=False,
            ),
            Column("words", Words(), nullable=False),
            **table_options(types),
        )
        Table(
            state_name,
            metadata,
            Column("id", Integer, primary_key=True, autoincrement=False),
            # 1 if the database's own index exists.
            Column("native", Integer, nullable=False),
            # All items up to this one have rows.
            Column("filled", BigInteger, nullable=False),
            # All items up to this one will, as soon as the transactions of `mark` have ended.
            Column("pending", BigInteger, nullable=False),
            Column("mark", BigInteger, nullable=False),
            **table_options(types),
        )
    rows, state = (metadata.tables[name] for name in names)
    return TableGroup(TEXT, (rows, state), triggers=(CreateTrigger(messages, rows, ("id",)),))


def learn(database: Database[Any], connection: Connection) -> bool:
    """Looks whether the index exists; the tables must exist."""
    state = database.tables.group(TEXT)["_text_state"]
    exists = connection.execute(select(state.c.id)).first() is not None
    note(database, exists=exists)
    return exists


def note(database: Database[Any], *, exists: bool) -> None:
    database.notes[TEXT] = exists, time.monotonic()


def is_indexed(database: Database[Any], connection: Connection) -> bool:
    """Returns whether the index exists, or existed a minute ago."""
    exists, at = database.notes.get(TEXT, (False, None))
    if at is not None and time.monotonic() - at < _KNOWN_FOR:
        return bool(exists)
    if database.has_tables(connection, TEXT):
        return learn(database, connection)
    note(database, exists=False)
    return False

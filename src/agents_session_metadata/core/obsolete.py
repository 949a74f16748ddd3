"""What version 0.2.0 created for the indexes of metadata keys. Nothing reads it anymore.

Seven triggers filled the table of entries, and on PostgreSQL each of them has a function.
"""

from __future__ import annotations

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table
from sqlalchemy.schema import DropTable, ExecutableDDLElement

from agents_session_metadata.dialects import dialect_of

from .definitions import DropTrigger, derived_name
from .tables import SessionTables

_EVENTS = ("insert", "update", "delete")


def obsolete(tables: SessionTables) -> list[ExecutableDDLElement]:
    """Returns the statements that drop everything, in order."""
    entries, indexes = _tables(tables)
    drops = [DropTable(table, if_exists=True) for table in (entries, indexes)]
    return [*_triggers(tables), *drops]


def obsolete_tables(connection: Connection, tables: SessionTables) -> list[Table]:
    """Returns those of the two tables that exist."""
    existing = dialect_of(connection.dialect).existing
    found = _tables(tables)
    names = [table.name for table in found]
    there = existing(connection, tables.sessions, names, parts=False)
    return [table for table in found if table.name in there]


def drop_obsolete(connection: Connection, tables: SessionTables) -> None:
    """Drops what exists. The table of indexes is the last, so that this can be repeated."""
    dialect = dialect_of(connection.dialect)
    for trigger in _triggers(tables):
        if trigger.name in dialect.triggers_of(connection, trigger.table):
            connection.execute(trigger)
    for table in obsolete_tables(connection, tables):
        connection.execute(DropTable(table))


def _triggers(tables: SessionTables) -> list[DropTrigger]:
    entries, _ = _tables(tables)
    ends = [(tables.sessions, "_session_time")]
    for table, name in ((tables.metadata, "_value"), (tables.elements, "_element")):
        ends += [(table, f"{name}_{event}") for event in _EVENTS]
    return [DropTrigger(table, derived_name(entries.name, end)) for table, end in ends]


def _tables(tables: SessionTables) -> tuple[Table, Table]:
    """Returns the tables of entries and of indexes; the second one has the keys."""
    metadata, schema = tables.metadata.name, tables.metadata.schema
    entries = Table(derived_name(metadata, "_activity"), MetaData(), schema=schema)
    key, state = Column("key", String), Column("state", Integer)
    indexes = Table(derived_name(metadata, "_indexes"), MetaData(), key, state, schema=schema)
    return entries, indexes

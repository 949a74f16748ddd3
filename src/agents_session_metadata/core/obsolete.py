"""Tables and triggers that 0.2.0 created for indexes of keys. Nothing reads them anymore.

Seven triggers filled the table of entries, and on PostgreSQL each of them has a function.
"""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, delete, select
from sqlalchemy.schema import DropTable, ExecutableDDLElement

from agents_session_metadata.dialects import dialect_of

from .definitions import DropTrigger, derived_name
from .tables import SessionTables

_EVENTS = ("insert", "update", "delete")


def obsolete(tables: SessionTables) -> list[ExecutableDDLElement]:
    """Returns the statements that drop everything, in order."""
    drops = [DropTable(table, if_exists=True) for table in _tables(tables)]
    return [*_triggers(tables), *drops]


def obsolete_keys(connection: Connection, tables: SessionTables) -> list[str]:
    """Returns the keys that have an index of version 0.2.0."""
    indexes = _tables(tables)[1]
    if indexes not in _existing(connection, tables):
        return []
    keys = connection.scalars(select(indexes.c.key))
    return sorted(key for key in keys if not key.startswith("$"))


def drop_obsolete(connection: Connection, tables: SessionTables, key: str) -> bool:
    """Drops triggers and tables with the last key. Until then, the entries stay.

    Returns False if the key has no such index.
    """
    dialect, indexes = dialect_of(connection.dialect), _tables(tables)[1]
    dialect.begin_writing(connection)
    keys = obsolete_keys(connection, tables)
    if key not in keys:
        return False
    if keys != [key]:
        connection.execute(delete(indexes).where(indexes.c.key == key))
        return True
    with dialect.brief_waits(connection):
        for trigger in _triggers(tables):
            if trigger.name in dialect.triggers_of(connection, trigger.table):
                connection.execute(trigger)
        # The table of indexes is the last, so that this can be repeated.
        for table in _existing(connection, tables):
            connection.execute(DropTable(table))
    return True


def _existing(connection: Connection, tables: SessionTables) -> list[Table]:
    found = _tables(tables)
    names = [table.name for table in found]
    existing = dialect_of(connection.dialect).existing
    there = existing(connection, tables.sessions, names, parts=False)
    return [table for table in found if table.name in there]


def _triggers(tables: SessionTables) -> list[DropTrigger]:
    entries, _ = _tables(tables)
    ends = [(tables.sessions, "_session_time")]
    for table, name in ((tables.metadata, "_value"), (tables.elements, "_element")):
        ends += [(table, f"{name}_{event}") for event in _EVENTS]
    return [DropTrigger(table, derived_name(entries.name, end)) for table, end in ends]


@lru_cache(maxsize=16)
def _tables(tables: SessionTables) -> tuple[Table, Table]:
    """Returns the tables of entries and of indexes; the second one has the keys."""
    metadata, schema = tables.metadata.name, tables.metadata.schema
    entries = Table(derived_name(metadata, "_activity"), MetaData(), schema=schema)
    key, state = Column("key", String), Column("state", Integer)
    indexes = Table(derived_name(metadata, "_indexes"), MetaData(), key, state, schema=schema)
    return entries, indexes

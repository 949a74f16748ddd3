"""Creates the triggers that maintain an index, and replaces altered ones.

SQLite rewrites a trigger when a table that it writes to is renamed: from then on it fills the table
of the new name.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection

from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects._triggers import RowTrigger, as_typed, has_body


def lacking_triggers(
    connection: Connection, tables: SessionTables, triggers: Collection[RowTrigger]
) -> dict[RowTrigger, bool]:
    """Returns the triggers that are missing, with False, or have another body, with True."""
    dialect = dialect_of(connection.dialect)
    existing = dialect.existing_triggers(connection, *tables.tables)
    found = {each: existing.get(each.plain) for each in triggers}
    return {
        each: stored is not None
        for each, stored in found.items()
        if not has_body(as_typed(connection, dialect.triggers.create(each)), stored or "")
    }


def create_triggers(connection: Connection, lacking: dict[RowTrigger, bool]) -> None:
    """Creates triggers. Each is given with True if it replaces one of the same name."""
    dialect = dialect_of(connection.dialect)
    sql = dialect.triggers
    for each, exists in lacking.items():
        if exists:
            connection.exec_driver_sql(sql.drop_from(each.schema, each.name, each.table))
        for statement in sql.create(each):
            dialect.create_trigger(connection, statement)

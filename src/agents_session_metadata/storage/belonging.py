"""Whether the tables of one name belong together.

A sessions table that was renamed or dropped, or whose name is misspelled, must not be created anew
beside what belongs to its sessions: each session that is then created deletes what an earlier one
with its id seems to have left.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Table, inspect, literal_column, select

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.errors import TablesMismatchError

from .tables import CORE, SessionTables


def check_links(connection: Connection, tables: SessionTables) -> None:
    """Refuse metadata and messages that belong to another sessions table by their foreign keys.

    Tables without a foreign key pass.

    Raises:
        TablesMismatchError: If they do.
    """
    sessions = tables.sessions
    children = tables.metadata, tables.messages
    links = dialect_of(connection.dialect).session_links(connection, sessions, children)
    right = {link.child for link in links if link.is_right}
    for link in links:
        if link.child not in right:
            problem = f"{link.child} refers to {link.parent}, not to {sessions.name}"
            raise TablesMismatchError(sessions.name, problem)


def check_beside(connection: Connection, tables: SessionTables, missing: Collection[str]) -> None:
    """Refuse to go on without the sessions table where other tables have rows.

    Args:
        connection: The connection.
        tables: The tables.
        missing: The names of the tables and triggers that the database lacks.

    Raises:
        TablesMismatchError: If the sessions table is missing beside metadata or messages, or is
            empty beside metadata and lacks its triggers, as if it had been dropped and created.
    """
    sessions = tables.sessions
    if sessions.name in missing:
        state, children = "is missing", [tables.metadata, tables.messages]
    elif any(
        trigger.table is sessions and trigger.name in missing
        for trigger in tables.group(CORE).triggers
    ):
        state, children = "is empty and lacks its triggers", [tables.metadata]
    else:
        return
    for child in children:
        # In this order: another process may be creating the tables, and fill them.
        if child.name in missing or not _has_rows(connection, child):
            continue
        if not _has_rows(connection, sessions):
            problem = f"{sessions.name} {state}, although {child.name} has rows"
            raise TablesMismatchError(sessions.name, problem)


def _has_rows(connection: Connection, table: Table) -> bool:
    """Whether a table exists and has a row."""
    if not inspect(connection).has_table(table.name, connection.schema_for_object(table)):
        return False
    first: Any = select(literal_column("1")).select_from(table).limit(1)
    return connection.execute(first).first() is not None

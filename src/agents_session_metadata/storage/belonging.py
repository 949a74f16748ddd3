"""Whether the tables of one name belong together.

A sessions table that was renamed or dropped, or whose name is misspelled, must not be created anew
beside what belongs to its sessions: each session that is then created deletes what an earlier one
with its id seems to have left.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Table, exists, inspect, literal_column, select

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.errors import TablesMismatchError

from .tables import CORE, CreateTrigger, SessionTables


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
            empty beside metadata and lacks its triggers, as if it had been dropped and created; or
            if the metadata table is missing beside its list elements.
    """
    sessions, metadata, elements = tables.sessions, tables.metadata, tables.elements
    # Another process may have created both since they were looked for.
    is_lost = metadata.name in missing and elements.name not in missing
    if is_lost and not _exists(connection, metadata):
        problem = f"{metadata.name} is missing, although {elements.name} exists"
        raise TablesMismatchError(metadata.name, problem)
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
    if not _exists(connection, table):
        return False
    first: Any = select(literal_column("1")).select_from(table).limit(1)
    return connection.execute(first).first() is not None


def _exists(connection: Connection, table: Table) -> bool:
    return inspect(connection).has_table(table.name, connection.schema_for_object(table))


def destroys(connection: Connection, trigger: CreateTrigger) -> bool:
    """Whether a trigger that does not exist yet must not be created.

    The triggers on the insertion of a session delete rows that an earlier session with its id left.
    While there are such rows, the sessions table may be in the middle of a restore: each session
    that is restored would lose its rows.
    """
    if trigger.event != "INSERT" or trigger.keeps_rows:
        return False
    parent, child = trigger.table, trigger.emptied
    if not (_exists(connection, parent) and _exists(connection, child)):
        return False
    same = [parent.c[name] == child.c[name] for name in trigger.columns]
    left: Any = (
        select(literal_column("1")).select_from(child).where(~exists().where(*same)).limit(1)
    )
    return connection.execute(left).first() is not None

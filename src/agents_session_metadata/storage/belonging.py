"""Whether the tables of one name belong together.

A sessions table that was renamed or dropped, or whose name is misspelled, must not be created anew
beside what belongs to its sessions: each session that is then created deletes what an earlier one
with its id seems to have left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from sqlalchemy import Connection, MetaData, Table, exists, inspect, literal_column, select

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.errors import TablesMismatchError

from .definitions import derived_name
from .groups import GROUPS
from .paused import PAUSED
from .tables import CORE, CreateTrigger, SessionTables
from .threads import THREADS
from .usage import USAGE

_SECOND = "only if both tables are intended, create the missing one with `agent-sessions ddl`"
_FOR_EACH_LACKING = 4
"""How many columns a table needs beside its first for each that may be lacking in a table like it.

Three of the paused runs' ten may not, and none of a message's four.
"""
LINKED = "if the name is right, add the foreign key"
"""What to do about a table without a foreign key that is not a copy of another table."""


def check_links(connection: Connection, tables: SessionTables, *others: Table) -> None:
    """Refuse metadata and messages that belong to another sessions table by their foreign keys.

    The same goes for further tables that refer to the sessions.

    Tables without a foreign key pass.

    Raises:
        TablesMismatchError: If they do.
    """
    sessions = tables.sessions
    children = tables.metadata, tables.messages, *others
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


def check_not_renamed(
    connection: Connection, tables: SessionTables, missing: Collection[str]
) -> None:
    """Refuse to go on without a table that seems to exist under another name.

    Args:
        connection: The connection.
        tables: The tables.
        missing: The names of the tables and triggers that the database lacks.

    Raises:
        TablesMismatchError: If there is such a table.
    """
    for table in written_tables(tables):
        problem = renamed(connection, tables, table) if table.name in missing else None
        if problem is not None:
            raise TablesMismatchError(table.name, problem, intended(tables, table))


def written_tables(tables: SessionTables) -> list[Table]:
    """The tables beside the sessions whose rows do not follow from other tables."""
    groups = (tables.group(name).tables for name in (PAUSED, USAGE, THREADS))
    return [tables.metadata, tables.messages, *(table for group in groups for table in group)]


def intended(tables: SessionTables, table: Table) -> str | None:
    """What to do if a missing table is meant to exist beside another one that is like it."""
    return _SECOND if table in tables.tables else None


def renamed(connection: Connection, tables: SessionTables, table: Table) -> str | None:
    """The problem in words if a missing table seems to have another name, or another schema.

    There is a table with its columns and with rows, and without a foreign key to other sessions; or
    one with most of its columns and a foreign key to the sessions. Neither belongs to another
    metadata table.
    """
    for other, _ in _alike(connection, tables, table):
        if _has_rows(connection, other):
            return f"{table.name} is missing, although {other.name} has the same columns and rows"
    for name in _referring(connection, tables, table):
        problem = f"{name} has its columns and a foreign key to {tables.sessions.name}"
        return f"{table.name} is missing, although {problem}"
    return None


def renamed_elements(connection: Connection, tables: SessionTables) -> list[str]:
    """Other tables that may be the missing table of list elements, as which they look."""
    dialect, sessions = dialect_of(connection.dialect), tables.sessions
    alike = dialect.tables_with(connection, sessions, tables.elements.c.keys())
    metadata = dialect.tables_with(connection, sessions, tables.metadata.c.keys())
    return sorted({*alike} - {derived_name(each, "_elements") for each in metadata})


def check_copies(connection: Connection, tables: SessionTables) -> None:
    """Refuse to create tables or triggers for a table that seems to be a copy.

    Raises:
        TablesMismatchError: If there is one.
    """
    for table, problem in copies(connection, tables):
        raise TablesMismatchError(table.name, problem, LINKED)


def copies(connection: Connection, tables: SessionTables) -> Iterator[tuple[Table, str]]:
    """Tables without a foreign key to the sessions beside a table like them that has one.

    Such as a backup, whose rows must not end with their sessions. Each comes with the problem in
    words.
    """
    sessions, children = tables.sessions, written_tables(tables)
    links = dialect_of(connection.dialect).session_links(connection, sessions, children)
    linked = {link.child.lower() for link in links}
    for table in children:
        if table.name.lower() in linked or not _exists(connection, table):
            continue
        for other, is_linked in _alike(connection, tables, table):
            if is_linked:
                problem = f"{table.name} has no foreign key to {sessions.name}, although"
                yield table, f"{problem} {other.name} has one and the same columns"
                break


def _alike(
    connection: Connection, tables: SessionTables, table: Table
) -> Iterator[tuple[Table, bool]]:
    """Other tables with the columns of a table, and whether a foreign key leads to the sessions.

    None leads to other sessions, and none of them belongs to another metadata table.
    """
    if not _exists(connection, tables.sessions):
        return
    dialect = dialect_of(connection.dialect)

    def alike(one: Table) -> set[str]:
        return {*dialect.tables_with(connection, tables.sessions, one.c.keys())}

    found = alike(table) - _own_names(tables)
    if found and table not in tables.tables:
        found -= _names_beside(alike(tables.metadata))
    for name in sorted(found):
        other = Table(name, MetaData(), schema=table.schema)
        links = dialect.session_links(connection, tables.sessions, [other])
        if all(link.is_right for link in links):
            yield other, bool(links)


def _referring(connection: Connection, tables: SessionTables, table: Table) -> Iterator[str]:
    """Other tables that refer to the sessions and have the key and most columns of a table.

    Their rows end with the sessions, also from another schema and without one of the columns. None
    of them belongs to another metadata table.
    """
    if not _exists(connection, tables.sessions):
        return
    columns: dict[tuple[str | None, str], set[str]] = {}
    every = dialect_of(connection.dialect).referring_columns(connection, tables.sessions)
    for schema, name, column in every:
        columns.setdefault((schema, name), set()).add(column)
    beside: set[tuple[str | None, str]] = {(None, name) for name in _own_names(tables)}
    if table is not tables.metadata:
        for (schema, name), has in columns.items():
            if has.issuperset(tables.metadata.c.keys()):
                beside.update((schema, each) for each in _names_beside([name]))
    wanted, key = set(table.c.keys()), set(table.primary_key.columns.keys())
    for schema, name in sorted(columns.keys() - beside, key=str):
        has = columns[schema, name]
        if key <= has and len(wanted - has) <= (len(wanted) - 1) // _FOR_EACH_LACKING:
            if schema is not None:
                yield f"{schema}.{name}"  # It may not be readable.
            elif _has_rows(connection, Table(name, MetaData())):
                yield name


def _own_names(tables: SessionTables) -> set[str]:
    return {each.name for group in tables.groups for each in group.tables}


def _names_beside(metadata: Iterable[str]) -> set[str]:
    """The names of the tables of optional features beside metadata tables."""
    return {name for each in metadata for group in GROUPS for name in group.names(each)}


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

    The triggers on the insertion of a session delete or unlink rows that an earlier session with
    its id left. While there are such rows, the sessions table may be in the middle of a restore:
    each session that is restored would lose its rows.
    """
    if trigger.event != "INSERT":
        return False
    parent, child = trigger.table, trigger.emptied
    if not (_exists(connection, parent) and _exists(connection, child)):
        return False
    same = [parent.c[name] == child.c[name] for name in trigger.columns]
    linked = [child.c[name].is_not(None) for name in trigger.columns]
    first: Any = select(literal_column("1")).select_from(child).limit(1)
    left = first.where(~exists().where(*same), *linked)
    return connection.execute(left).first() is not None

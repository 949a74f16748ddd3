"""Deletes rows, and checks that they are gone.

A trigger of the application can keep a row without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, exists, select

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import RefusedRowError
from agents_session_metadata.quoting import quoted

from .tables import SessionTables


def removal(
    tables: SessionTables, dialect: Dialect, of: Callable[[Any], ColumnElement[bool]]
) -> Any:
    """The statement that deletes rows of sessions, for `remove`.

    Args:
        tables: The tables.
        dialect: The database.
        of: The condition for the ids in a column.
    """
    sessions, messages = tables.sessions, tables.messages
    statement = delete(sessions).where(of(sessions.c.session_id))
    if not dialect.vetoes_silently:
        return statement
    has_messages = exists().where(of(messages.c.session_id)).select_from(messages)
    return statement.returning(sessions.c.session_id, has_messages)


def remove(
    connection: Connection,
    tables: SessionTables,
    dialect: Dialect,
    statement: Any,
    parameters: Mapping[str, Any],
    ids: Sequence[str],
) -> None:
    """Delete the rows of sessions that are locked, and whose messages were deleted before.

    The caller must roll back if it fails.

    Args:
        connection: The connection.
        tables: The tables.
        dialect: The database.
        statement: The statement that `removal` returned.
        parameters: Its parameters.
        ids: The sessions that it deletes.

    Raises:
        RefusedRowError: If a trigger of the application keeps a row, or a message.
    """
    result: Any = connection.execute(statement, parameters)
    if not dialect.vetoes_silently:
        return
    sessions, messages = tables.sessions, tables.messages
    returned: dict[str, bool] = {row[0]: row[1] for row in result}
    if any(returned.values()):
        raise kept_row(messages, _first(connection, messages.c.session_id, dialect, ids))
    # A row that is not returned may be gone too: a trigger on the messages may have deleted it.
    doubtful = sorted(set(ids).difference(returned))
    kept = _first(connection, sessions.c.session_id, dialect, doubtful) if doubtful else None
    if kept is not None:
        raise RefusedRowError(
            f"cannot delete session {quoted(kept)}: the database keeps the row and reports no "
            "error; look for a trigger on the sessions table that prevents the deletion"
        )


def remove_metadata(
    connection: Connection, tables: SessionTables, dialect: Dialect, ids: Sequence[str]
) -> None:
    """Delete metadata that was not deleted with its sessions, where a trigger can cause that.

    Raises:
        RefusedRowError: If a trigger of the application keeps it. The caller must roll back.
    """
    if not dialect.vetoes_silently:
        return
    if _first(connection, tables.metadata.c.session_id, dialect, ids) is not None:
        parameters = dialect.list_parameters("ids", ids)
        for table in (tables.elements, tables.metadata):
            of_ids = dialect.one_of(table.c.session_id, "ids", len(ids))
            delete_rows(connection, table, dialect, of_ids, parameters)


def delete_rows(
    connection: Connection,
    table: Table,
    dialect: Dialect,
    condition: ColumnElement[bool],
    parameters: Mapping[str, Any],
) -> None:
    """Delete rows.

    Args:
        connection: The connection.
        table: The table, whose rows name a session.
        dialect: The database.
        condition: The condition for the rows.
        parameters: Its parameters.

    Raises:
        RefusedRowError: If a trigger of the application keeps one. The caller must roll back.
    """
    connection.execute(delete(table).where(condition), parameters)
    if dialect.vetoes_silently:
        check_deleted(connection, table, condition, parameters)


def check_deleted(
    connection: Connection,
    table: Table,
    condition: ColumnElement[bool],
    parameters: Mapping[str, Any],
) -> None:
    """As the end of `delete_rows`."""
    look = select(table.c.session_id).where(condition).limit(1)
    kept = connection.execute(look, parameters).first()
    if kept is not None:
        raise kept_row(table, kept[0])


def kept_row(table: Table, session_id: str | None) -> RefusedRowError:
    """The error that a trigger keeps a row of a session, or one that belongs to no session."""
    of = "" if session_id is None else f" of session {quoted(session_id)}"
    return RefusedRowError(
        f"cannot delete a row{of} from {table.name}: the database keeps it and reports no error; "
        "look for a trigger on this table that prevents the deletion"
    )


def _first(
    connection: Connection, column: ColumnElement[str], dialect: Dialect, ids: Sequence[str]
) -> str | None:
    """The first of some ids that a column has."""
    look = select(column).where(dialect.one_of(column, "ids", len(ids))).order_by(column).limit(1)
    found: str | None = connection.scalar(look, dialect.list_parameters("ids", ids))
    return found

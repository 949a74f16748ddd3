"""Deletes rows of sessions and messages, and checks that they are gone.

A trigger of the application can keep a row without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, exists, select

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.dialects._locks import RefusedRowError
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
        raise _message_kept(_first(connection, messages.c.session_id, dialect, ids))
    # A row that is not returned may be gone too: a trigger on the messages may have deleted it.
    doubtful = sorted(set(ids).difference(returned))
    kept = _first(connection, sessions.c.session_id, dialect, doubtful) if doubtful else None
    if kept is not None:
        raise RefusedRowError(
            f"cannot delete session {quoted(kept)}: the database keeps the row and reports no "
            "error; look for a trigger on the sessions table that prevents the deletion"
        )


def check_removed(
    connection: Connection,
    messages: Table,
    dialect: Dialect,
    condition: ColumnElement[bool],
    parameters: Mapping[str, Any],
) -> None:
    """Check that messages are gone that a statement has deleted.

    Args:
        connection: The connection.
        messages: The messages table.
        dialect: The database.
        condition: What the statement deleted.
        parameters: Its parameters.

    Raises:
        RefusedRowError: If a trigger of the application keeps one. The caller must roll back.
    """
    if not dialect.vetoes_silently:
        return
    look = select(messages.c.session_id).where(condition).limit(1)
    kept = connection.scalar(look, parameters)
    if kept is not None:
        raise _message_kept(kept)


def _first(
    connection: Connection, column: ColumnElement[str], dialect: Dialect, ids: Sequence[str]
) -> str | None:
    """The first of some ids that a column has."""
    look = select(column).where(dialect.one_of(column, "ids", len(ids))).order_by(column).limit(1)
    found: str | None = connection.scalar(look, dialect.list_parameters("ids", ids))
    return found


def _message_kept(session_id: str | None) -> RefusedRowError:
    """The error that a trigger keeps a message of a session."""
    return RefusedRowError(
        f"cannot delete messages of session {quoted(session_id)}: the database keeps a row and "
        "reports no error; look for a trigger on the messages table that prevents the deletion"
    )

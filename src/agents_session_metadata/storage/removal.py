"""Deletes rows of the sessions table, and checks that they are gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, select

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.dialects._locks import RefusedRowError
from agents_session_metadata.quoting import quoted


def removal(sessions: Table, dialect: Dialect, condition: ColumnElement[bool]) -> Any:
    """The statement that deletes rows of sessions, for `remove`."""
    statement = delete(sessions).where(condition)
    return statement.returning(sessions.c.session_id) if dialect.vetoes_silently else statement


def remove(
    connection: Connection,
    sessions: Table,
    dialect: Dialect,
    statement: Any,
    parameters: Mapping[str, Any],
    ids: Sequence[str],
) -> None:
    """Delete the rows of sessions that are locked.

    The caller must roll back if it fails.

    Args:
        connection: The connection.
        sessions: The sessions table.
        dialect: The database.
        statement: The statement that `removal` returned.
        parameters: Its parameters.
        ids: The sessions that it deletes.

    Raises:
        RefusedRowError: If a trigger of the application keeps a row.
    """
    result = connection.execute(statement, parameters)
    if not dialect.vetoes_silently:
        return
    # A row that is not returned may be gone too: a trigger on the messages may have deleted it.
    if doubtful := sorted(set(ids).difference(result.scalars())):
        of_ids = dialect.one_of(sessions.c.session_id, "ids", len(doubtful))
        look = select(sessions.c.session_id).where(of_ids).order_by(sessions.c.session_id).limit(1)
        kept = connection.scalar(look, dialect.list_parameters("ids", doubtful))
        if kept is not None:
            raise RefusedRowError(
                f"cannot delete session {quoted(kept)}: the database keeps the row and reports no "
                "error; look for a trigger on the sessions table that prevents the deletion"
            )

"""What an earlier session with the same id has left in the tables of optional features.

Foreign keys delete it with the session. Rows stay only if sessions are deleted where none is
enforced. A paused run, say, must not pass to whoever creates a session with the id.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Table, delete, literal_column, select, update

from agents_session_metadata.dialects._dialect import Dialect

from .removal import kept_row
from .tables import SessionTables


def delete_remains(
    connection: Connection,
    tables: SessionTables,
    dialect: Dialect,
    ids: Sequence[str],
    owned: tuple[Table, ...],
) -> None:
    """Delete what earlier sessions have left, or unlink it if it outlives sessions.

    Args:
        connection: The connection.
        tables: The tables.
        dialect: The database.
        ids: The ids of sessions that were just created.
        owned: The tables to look into.

    Raises:
        RefusedRowError: If a trigger of the application keeps a row. The caller must roll back.
    """
    if not owned:
        return
    parameters = dialect.list_parameters("ids", ids)
    finding = _finding(tables.sessions, owned, dialect, len(ids))
    # On MySQL, a DELETE that matches no rows locks the gaps between rows.
    if not any(map(any, connection.execute(finding, parameters))):
        return
    for table in owned:
        of_ids = dialect.one_of(table.c.session_id, "ids", len(ids))
        outlives = any(key.ondelete == "SET NULL" for key in table.foreign_key_constraints)
        change: Any = update(table).values(session_id=None) if outlives else delete(table)
        connection.execute(change.where(of_ids), parameters)
    if dialect.vetoes_silently:
        for row in connection.execute(finding, parameters):
            for table, is_left in zip(owned, row, strict=True):
                if is_left:
                    raise kept_row(table, ids[0] if len(ids) == 1 else None)


@lru_cache(maxsize=64)
def _finding(sessions: Table, owned: tuple[Table, ...], dialect: Dialect, count: int) -> Any:
    """Which of some tables have rows of some sessions."""
    # For a join, PostgreSQL would read all rows of a table without statistics.
    own_id = sessions.c.session_id
    first: list[Any] = [
        select(literal_column("1")).where(table.c.session_id == own_id).limit(1).scalar_subquery()
        for table in owned
    ]
    return select(*first).where(dialect.one_of(own_id, "ids", count))

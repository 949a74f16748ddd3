"""Whether tables that exist have the columns that are used, and whether these tell ids apart."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    String,
    Table,
    bindparam,
    false,
    inspect,
    literal,
    select,
    type_coerce,
)

from agents_session_metadata.errors import TablesMismatchError

from .tables import SessionTables

_TEXT = "a"
_LIKE = ("A", "a ")
"""What some collations take for the same text; a column need not hold more than ASCII."""
_MADE_BY_OTHERS = (
    "another program made the table, or the name of a table is misspelled; pass the right names"
)


def check_columns(connection: Connection, *tables: Table) -> None:
    """Refuse tables that lack a column.

    Raises:
        TablesMismatchError: If one does.
    """
    inspector = inspect(connection)
    for table in tables:
        schema = connection.schema_for_object(table)
        if not inspector.has_table(table.name, schema):
            continue
        found = {column["name"].lower() for column in inspector.get_columns(table.name, schema)}
        lacking = [each.name for each in table.c if each.name.lower() not in found]
        if lacking:
            problem = f"{table.name} has no column {', '.join(lacking)}"
            raise TablesMismatchError(table.name, problem, cause=_MADE_BY_OTHERS)


def check_ids(connection: Connection, tables: SessionTables) -> None:
    """Refuse tables in which two sessions have one id, or two metadata keys are one.

    Raises:
        TablesMismatchError: If there is one.
    """
    has_table = inspect(connection).has_table
    sessions, metadata = tables.sessions, tables.metadata
    schema = connection.schema_for_object(sessions)
    if not has_table(sessions.name, schema):
        return
    same = _taken_for_one(connection, sessions.c.session_id)
    for column in (tables.messages.c.session_id, metadata.c.session_id, metadata.c.key):
        if not has_table(column.table.name, schema):
            continue
        allowed = () if column is metadata.c.key else same
        for text in _taken_for_one(connection, column):
            if text not in allowed:
                name = f"{column.table.name}.{column.name}"
                raise TablesMismatchError(
                    column.table.name,
                    f"{name} does not distinguish {_TEXT!r} and {text!r}",
                    cause="one session could then change what belongs to another one; give the "
                    "column the collation that `agent-sessions ddl` shows",
                )


def _taken_for_one(connection: Connection, column: Column[Any]) -> list[str]:
    """The texts of `_LIKE` that the collation of a column does not distinguish from `_TEXT`."""
    # The collation of a column goes with it into a query that has the text instead of its rows.
    stored = type_coerce(column, String).label("stored")
    one = select(stored).where(false()).union_all(select(literal(_TEXT, String))).cte("one")
    query = select(one.c.stored).where(one.c.stored == bindparam("like", type_=String))
    return [text for text in _LIKE if connection.execute(query, {"like": text}).first()]

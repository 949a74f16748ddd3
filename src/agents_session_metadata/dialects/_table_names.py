"""Quotes the names of tables."""

from __future__ import annotations

from sqlalchemy import Connection, Table


def qualified(connection: Connection, table: Table) -> str:
    """Includes the translated schema if there is one."""
    preparer = connection.dialect.identifier_preparer
    schema = connection.schema_for_object(table)
    name = preparer.quote(table.name)
    return f"{preparer.quote(schema)}.{name}" if schema else name


def qualified_text(connection: Connection, table: Table) -> str:
    """Like `qualified`, for a value or for `text`.

    Some drivers need each % doubled in statements, which `text` does, but not in values.
    """
    name = qualified(connection, table)
    in_percents = connection.dialect.paramstyle in ("format", "pyformat")
    return name.replace("%%", "%") if in_percents else name

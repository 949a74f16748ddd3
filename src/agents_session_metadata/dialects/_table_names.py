"""How SQL names a table."""

from __future__ import annotations

from sqlalchemy import Connection, Table


def qualified(connection: Connection, table: Table) -> str:
    """Returns a table's quoted name, with its translated schema if it has one."""
    preparer = connection.dialect.identifier_preparer
    schema = connection.schema_for_object(table)
    name = preparer.quote(table.name)
    return f"{preparer.quote(schema)}.{name}" if schema else name


def qualified_text(connection: Connection, table: Table) -> str:
    """Returns the same for a value or for `text`.

    Drivers with these parameters need each % doubled in statements, which `text` does, but not in
    values.
    """
    name = qualified(connection, table)
    in_percents = connection.dialect.paramstyle in ("format", "pyformat")
    return name.replace("%%", "%") if in_percents else name

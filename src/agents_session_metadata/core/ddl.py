"""The SQL that creates and drops the tables, as text, without a driver or a connection."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Dialect as SADialect
from sqlalchemy.schema import DropTable, ExecutableDDLElement

from agents_session_metadata.dialects import DIALECTS as DIALECTS  # noqa: PLC0414  # re-exported
from agents_session_metadata.dialects import dialect_of, offline

from .definitions import dropping
from .schema import table_elements
from .tables import SessionTables, TableNames, create_tables, table_names


def create_statements(dialect: str, names: TableNames | None = None) -> list[str]:
    """Includes the tables of optional features. Statements do not end with a semicolon."""
    sa_dialect, tables = offline(dialect), _tables(names)
    ways = dialect_of(sa_dialect)
    elements: list[Any] = []
    for group in tables.groups:
        for table in group.tables:
            elements += table_elements(table, ways, if_not_exists=True)
        if ways.uses_triggers:
            elements += group.triggers
    return [as_text(element, sa_dialect) for element in elements]


def drop_statements(
    dialect: str, names: TableNames | None = None, *, everything: bool = False
) -> list[str]:
    """With `everything`, also drops the SDK's own tables. Triggers are dropped first."""
    sa_dialect, tables = offline(dialect), _tables(names)
    elements: list[ExecutableDDLElement] = []
    for group in tables.groups:
        elements += group.cleanup
        if dialect_of(sa_dialect).uses_triggers:
            elements += [drop for trigger in group.triggers for drop in dropping(trigger)]
    every_table = [table for group in tables.groups for table in group.tables]
    kept = () if everything else (tables.sessions, tables.messages)
    elements += [
        DropTable(table, if_exists=True) for table in reversed(every_table) if table not in kept
    ]
    return [as_text(element, sa_dialect) for element in elements]


def as_text(element: Any, sa_dialect: SADialect, **options: Any) -> str:
    text = str(element.compile(dialect=sa_dialect, **options)).strip()
    return re.sub(r" +\n", "\n", text).expandtabs(4)


def _tables(names: TableNames | None) -> SessionTables:
    return create_tables(names or table_names())

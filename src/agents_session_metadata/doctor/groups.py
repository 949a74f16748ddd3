"""Which groups of tables are there, and tables that only have the name of one of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import Table

from agents_session_metadata.storage.tables import CORE, SessionTables, TableGroup

from .findings import Finding


def lacking_columns(
    inspector: Any, schema: str | None, tables: SessionTables, existing: Collection[str]
) -> dict[Table, list[str]]:
    """The columns that existing tables of optional features lack, by table."""
    lacking: dict[Table, list[str]] = {}
    for table in (table for group in tables.groups[1:] for table in group.tables):
        if table.name in existing:
            has = {each["name"] for each in inspector.get_columns(table.name, schema=schema)}
            lacking[table] = [column.name for column in table.c if column.name not in has]
    return {table: columns for table, columns in lacking.items() if columns}


def checked_groups(
    tables: SessionTables, existing: Collection[str], lacking: Collection[Table]
) -> list[TableGroup]:
    """The core tables and the groups in use; a group is empty if one of its tables lacks columns.

    The application may have created that table.
    """
    return [
        replace(group, tables=(), triggers=())
        if any(table in lacking for table in group.tables)
        else group
        for group in tables.groups
        if group.name == CORE or any(table.name in existing for table in group.tables)
    ]


def lacking_finding(table: Table, columns: Collection[str], unchecked: str, advice: str) -> Finding:
    """What to do about a table that lacks columns, whoever created it.

    Args:
        table: The table. Its name follows from that of the metadata table.
        columns: The columns that it lacks.
        unchecked: What is not checked.
        advice: What to do if this package created it.
    """
    return Finding(
        "error",
        "names",
        f"{table.name} has no column {' and no '.join(columns)}, so doctor does not check"
        f" {unchecked}. If an application created the table, or it is the metadata table of other"
        " sessions, rename it, or use another metadata_table. Only if this package created it as"
        f" {table.name}, {advice}",
    )

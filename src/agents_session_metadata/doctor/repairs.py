"""The statements that `doctor` prints.

A statement may add a table, an index, a default, a foreign key, a primary key where there is none,
or a trigger; widen a column; replace a trigger of this package; and delete rows of a table that
this package derives from others. No other kind of statement is printed. An empty result means that
no such statement helps: the problem is then explained in words.
"""

# Some databases need less of what a method is passed, or have no safe statement at all.
# ruff: noqa: ARG002

from __future__ import annotations

from collections.abc import Container
from typing import Any, TypeAlias

from sqlalchemy import Column, ForeignKeyConstraint, Index, MetaData, Table
from sqlalchemy.schema import AddConstraint, CreateIndex, CreateTable

from agents_session_metadata.storage.tables import CreateTrigger, DropTrigger, derived_name

from .inspection import Inspection

Statements: TypeAlias = "tuple[str, ...]"


class Repairs:
    """The repairs of one database, in standard SQL."""

    by_hand: str = "doctor prints no statement for it; change it by a migration of your own"
    """What to do about a column or key that no printed statement may change."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection

    def create_table(self, table: Table) -> Statements:
        """Create a missing table and its indexes."""
        sql = self.inspection.sql
        return sql(CreateTable(table)), *(sql(CreateIndex(index)) for index in table.indexes)

    def create_index(self, index: Index, taken: Container[str | None] = ()) -> Statements:
        """Create an index, under another name if its own is taken."""
        name, number = str(index.name), 1
        while name in taken:
            number += 1
            name = derived_name(str(index.name), f"_{number}")
        if name != index.name:
            table: Any = index.table
            copy = table.to_metadata(MetaData())
            index = Index(name, *(copy.c[column.name] for column in index.columns))
        return (self.inspection.sql(CreateIndex(index)),)

    def set_default(self, column: Column[Any]) -> Statements:
        """Give a column its default."""
        return ()

    def widen(self, column: Column[Any]) -> Statements:
        """Let a text or binary column that is too short hold what it should."""
        return ()

    def add_primary_key(self, table: Table) -> Statements:
        """Give a table without a primary key the one that it should have."""
        actual = self.inspection.columns[table.name]
        columns = [column.name for column in table.primary_key.columns]
        if any(name not in actual or actual[name]["nullable"] for name in columns):
            return ()
        listed = ", ".join(map(self.inspection.quote, columns))
        return (f"ALTER TABLE {self.inspection.name_of(table)} ADD PRIMARY KEY ({listed})",)

    def add_foreign_key(self, constraint: ForeignKeyConstraint) -> Statements:
        """Add a missing foreign key."""
        return (self.inspection.sql(AddConstraint(constraint)),)

    def create_trigger(self, trigger: CreateTrigger, *, replaced: bool) -> Statements:
        """Create a trigger of this package, in place of one of the same name."""
        create = self.inspection.sql(trigger)
        return (self.inspection.sql(DropTrigger(trigger)), create) if replaced else (create,)

    def delete_derived(self, table: Table, condition: str) -> Statements:
        """Delete rows of a table that this package derives; none of any other table."""
        if table not in self.inspection.derived:
            return ()
        return (f"DELETE FROM {self.inspection.name_of(table)} WHERE {condition}",)  # noqa: S608  # names

    def restore_sessions(self, child: Table, condition: str) -> str:
        """SQL, for words, that creates the session rows that a child's rows lack."""
        name_of, quote = self.inspection.name_of, self.inspection.quote
        session_id = quote("session_id")
        return (
            f"INSERT INTO {name_of(self.inspection.expected.sessions)} ({session_id})"  # noqa: S608  # names
            f" SELECT DISTINCT {session_id} FROM {name_of(child)}"
            f" WHERE {session_id} IS NOT NULL AND {condition}"
        )

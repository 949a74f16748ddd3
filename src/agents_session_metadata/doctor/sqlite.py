"""How `doctor` looks into SQLite, and what it prints for it.

SQLite changes a column or a constraint only by a new table and a copy of all rows. Such a copy
drops what the application added to the table, so it is never printed.
"""

# The base class says what each method is for; SQLite needs less of what it passes.
# ruff: noqa: ARG002, D102

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    ForeignKeyConstraint,
    LargeBinary,
    Table,
    case,
    cast,
    func,
    literal,
    null,
)

from .columns import kind_of
from .findings import Statements
from .inspection import Inspection
from .triggers import StoredTrigger


class SQLiteInspection(Inspection):
    """A SQLite database."""

    oldest: tuple[int, ...] = (3, 35)
    product = "SQLite"
    by_hand = (
        "SQLite changes it only by copying all rows into a new table, which doctor does not print;"
        " do it by a migration of your own, on a copy of the file, as"
        " https://sqlite.org/lang_altertable.html#otheralter describes"
    )

    @property
    def version(self) -> tuple[Any, ...]:
        return tuple(int(part) for part in str(self.scalar("SELECT sqlite_version()")).split("."))

    @property
    def master(self) -> str:
        """The table that describes all objects."""
        return f"{self.quote(self.schema)}.sqlite_master" if self.schema else "sqlite_master"

    def stored_name(self, name: str) -> str:
        query = f"SELECT name FROM {self.master} WHERE name = :name COLLATE NOCASE"  # noqa: S608  # a name
        return str(self.scalar(query, name=name) or name)

    @cached_property
    def triggers(self) -> dict[str, StoredTrigger]:
        found = self.ways.existing_triggers(self.connection, *self.tables.tables)
        return {name: StoredTrigger(sql) for name, sql in found.items()}

    def leads_to(self, key: Mapping[str, Any], parent: Table) -> bool:
        return str(key["referred_table"]).lower() == parent.name.lower()

    def on_delete(self, table: Table, key: Mapping[str, Any]) -> str:
        # SQLAlchemy does not read what a REFERENCES beside a column says.
        query = 'SELECT on_delete FROM pragma_foreign_key_list(:table) WHERE "from" = :column'
        query += ' COLLATE NOCASE AND "table" = :parent COLLATE NOCASE'
        column, parent = key["constrained_columns"][0], key["referred_table"]
        found = self.rows(query, table=table.name, column=column, parent=parent)
        return str(found[0][0]) if found else super().on_delete(table, key)

    def comparison(self, column: Column[Any]) -> str:
        # A column takes its collation into the index of its primary key.
        collation = self.scalar(
            "SELECT c.coll FROM pragma_index_list(:table) AS i"
            " JOIN pragma_index_xinfo(i.name) AS c"
            " WHERE c.name = :column AND c.key = 1 ORDER BY i.origin = 'pk' DESC LIMIT 1",
            table=column.table.name,
            column=column.name,
        )
        if collation is None:
            return self._same(column)
        # SQLite keeps a collation's name as it was typed.
        name = str(collation).upper()
        return f":a = :b COLLATE {name if name in ('BINARY', 'NOCASE', 'RTRIM') else 'BINARY'}"

    def _same(self, column: Column[Any]) -> str:
        """A condition that compares `:a` and `:b` as a column without an index does."""
        # Type and collation go with the column into a query that has the text instead of the rows.
        stored = f"SELECT {self.quote(column.name)} FROM {self.name_of(column.table)} WHERE 0"  # noqa: S608  # names
        # Merged with the query around it, the text would lose the type.
        one = f"WITH one(x) AS ({stored} UNION ALL SELECT :a LIMIT 1 OFFSET 0)"
        return f"EXISTS ({one} SELECT x FROM one WHERE x = :b)"  # noqa: S608  # names

    def cautions(self, column: Column[Any]) -> Iterator[str]:
        options = column.table.dialect_options[self.ways.name]
        is_number = options["autoincrement"] and column is column.table.autoincrement_column
        query = f"SELECT sql FROM {self.master} WHERE name = :table COLLATE NOCASE"  # noqa: S608  # a name
        if is_number and self.has_key(column.table):
            definition = self.scalar(query, table=column.table.name)
            if "AUTOINCREMENT" not in definition.upper():
                yield (
                    "is not AUTOINCREMENT: after the newest item is removed, the next item gets its"
                    " id, and rewind(expect_last=…) and PausedRuns can miss the change"
                )

    def type_problems(self, column: Column[Any], actual: Any) -> Iterator[str]:
        is_text = kind_of(self.type_of(column)) is str
        if is_text and not self.keeps(column, actual):
            needed = self.spelled(self.type_of(column))
            yield f"has the type {actual}, which takes 01 and 1 for one text; make it {needed}"
        elif is_text and kind_of(actual) is not str:
            yield f"has the type {actual}, not a text type"

    def keeps(self, column: Column[Any], actual: Any) -> bool:
        # The declared type only decides whether a text such as 01 becomes a number.
        return not self.scalar(f"SELECT {self._same(column)}", a="01", b="1")

    def stored_text(self, column: ColumnElement[str]) -> ColumnElement[Any]:
        # A text need not be UTF-8 here, and any column may hold a BLOB or a number.
        is_text = func.typeof(column) == "text"
        other = literal(b"", LargeBinary)
        return case((is_text, cast(column, LargeBinary)), (column.is_(None), null()), else_=other)

    def is_readable(self, table: Table, columns: Collection[str]) -> bool:
        return self.has(table, *columns)

    def not_a_text(self, column: Column[Any]) -> str | None:
        return f"typeof({self.quote(column.name)}) NOT IN ('text', 'null')"

    def not_a_time(self, column: str) -> str | None:
        is_time = (
            f"typeof({column}) = 'text' AND length({column}) BETWEEN 19 AND 26"
            f" AND strftime('%Y-%m-%d %H:%M:%S', {column}) IS substr({column}, 1, 19)"
            # Only a modifier makes it look at the length of the month.
            f" AND date(substr({column}, 1, 10), '+0 days') IS substr({column}, 1, 10)"
        )
        return f"NOT coalesce({is_time}, 0)"

    def is_referable(self, parent: Table) -> bool:
        return True

    def key_problem(self, table: Table) -> str | None:
        problem = super().key_problem(table)
        return self.by_hand if problem in (None, self.by_hand) else f"{problem}. {self.by_hand}"

    def add_foreign_key(self, constraint: ForeignKeyConstraint) -> Statements:
        return ()

    def restore_sessions(self, child: Table, condition: str) -> str:
        # A trigger deletes the leftover rows of an id when its session row is inserted, those of
        # other metadata tables as well. The condition holds also in a shell that goes on after
        # an error.
        insert, drops, creates = super().restore_sessions(child, condition), [], []
        schema = f"{self.quote(self.schema)}." if self.schema else ""
        for name, sql in self._clearing("INSERT"):
            insert += (
                f" AND NOT EXISTS (SELECT 1 FROM {self.master}"  # noqa: S608  # names
                f" WHERE type = 'trigger' AND name = {self.ways.literal(name)})"
            )
            drops.append(self._drop(name))
            creates.append(sql.replace("CREATE TRIGGER ", f"CREATE TRIGGER {schema}", 1))
        return "; ".join(["BEGIN IMMEDIATE", *drops, insert, *creates, "COMMIT"])

    def before_changing_ids(self) -> str:
        # Also those that are missing: whoever starts the application makes them again.
        ours = [each.name for each in self.expected.triggers if each.event == "UPDATE"]
        names = dict.fromkeys([*ours, *(name for name, _ in self._clearing("UPDATE"))])
        drops = "; ".join(map(self._drop, names))
        return (
            ". First end all processes that use the database, and run BEGIN IMMEDIATE. In this"
            " transaction, drop the triggers that delete the rows of the id that another one"
            f" becomes: {drops}. Then change the ids and run COMMIT. Then doctor prints the"
            " triggers again, and those of another metadata table with --metadata-table"
        )

    def _clearing(self, event: str) -> Iterator[tuple[str, str]]:
        """Name and text of each trigger that clears rows of ids, also of other metadata tables."""
        pattern = {
            "INSERT": r" AFTER INSERT ON .*WHERE session_id = NEW\.session_id; END$",
            "UPDATE": (
                r" AFTER UPDATE OF session_id ON .*WHERE session_id = OLD\.session_id"
                r"( OR session_id = NEW\.session_id)?; END$"
            ),
        }[event]
        ours = {each.name for each in self.expected.triggers if each.event == event}
        query = (
            f"SELECT name, sql FROM {self.master} WHERE type = 'trigger'"  # noqa: S608  # a name
            " AND tbl_name = :table COLLATE NOCASE ORDER BY rowid"
        )
        for name, sql in self.rows(query, table=self.expected.sessions.name):
            if name in ours or re.search(pattern, sql, re.DOTALL):
                yield name, sql

    def _drop(self, trigger: str) -> str:
        schema = f"{self.quote(self.schema)}." if self.schema else ""
        return f"DROP TRIGGER IF EXISTS {schema}{self.quote(trigger)}"


INSPECTION = SQLiteInspection

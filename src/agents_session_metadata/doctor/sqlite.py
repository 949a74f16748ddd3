"""How `doctor` looks into SQLite, and what it prints for it.

SQLite changes a column or a constraint only by a new table and a copy of all rows. Such a copy
drops what the application added to the table, so it is never printed.
"""

# The base classes say what each method is for; SQLite needs less of what it passes.
# ruff: noqa: ARG002, D102

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    ForeignKeyConstraint,
    LargeBinary,
    String,
    Table,
    case,
    cast,
    func,
    literal,
    null,
)

from agents_session_metadata.quoting import quoted

from .findings import Finding
from .inspection import Inspection
from .repairs import Repairs, Statements


class SQLiteInspection(Inspection):
    """A SQLite database."""

    oldest: tuple[int, ...] = (3, 35)
    uses_triggers = True

    @property
    def product_name(self) -> str:
        return "SQLite"

    @property
    def server_version(self) -> tuple[Any, ...]:
        return tuple(int(part) for part in str(self.scalar("SELECT sqlite_version()")).split("."))

    def leads_to(self, key: Mapping[str, Any], parent: Table) -> bool:
        return str(key["referred_table"]).lower() == parent.name.lower()

    def are_equal(self, column: Column[Any], first: str, second: str) -> bool:
        # A column takes its collation into the index of its primary key.
        collation = self.scalar(
            "SELECT c.coll FROM pragma_index_list(:table) AS i"
            " JOIN pragma_index_xinfo(i.name) AS c"
            " WHERE c.name = :column AND c.key = 1 ORDER BY i.origin = 'pk' DESC LIMIT 1",
            table=column.table.name,
            column=column.name,
        )
        # SQLite keeps a collation's name as it was typed.
        name = str(collation).upper()
        name = name if name in ("BINARY", "NOCASE", "RTRIM") else "BINARY"
        return bool(self.scalar(f"SELECT :a = :b COLLATE {name}", a=first, b=second))

    def type_problems(self, column: Column[Any], actual: Any) -> Iterator[str]:
        # The declared type only decides whether a text such as 1 becomes a number.
        is_text = isinstance(self.wanted(column), String)
        if is_text and not isinstance(actual, String):
            yield f"has the type {actual}, not a text type"

    def stored_text(self, column: ColumnElement[str]) -> ColumnElement[Any]:
        # A text need not be UTF-8 here, and any column may hold a BLOB or a number.
        is_text = func.typeof(column) == "text"
        other = literal(b"", LargeBinary)
        return case((is_text, cast(column, LargeBinary)), (column.is_(None), null()), else_=other)

    def is_readable(self, table: Table, columns: Any) -> bool:
        return self.has(table, *columns)

    def check_times(self) -> Iterator[Finding]:
        for table in (self.expected.sessions, self.expected.messages):
            for column in ("created_at", "updated_at"):
                if column not in table.c or not self.has(table, column, "session_id"):
                    continue
                is_time = (
                    f"typeof({column}) = 'text' AND length({column}) BETWEEN 19 AND 26"
                    f" AND strftime('%Y-%m-%d %H:%M:%S', {column}) IS substr({column}, 1, 19)"
                    # Only a modifier makes it look at the length of the month.
                    f" AND date(substr({column}, 1, 10), '+0 days') IS substr({column}, 1, 10)"
                )
                query = (
                    "SELECT session_id, count(*) OVER () FROM"  # noqa: S608  # names
                    f" {self.name_of(table)} WHERE NOT coalesce({is_time}, 0) LIMIT 3"
                )
                found = self.rows(query)
                if not found:
                    continue
                count = found[0][1]
                values = "1 value" if count == 1 else f"{count} values"
                of = ", ".join(dict.fromkeys(quoted(row[0]) for row in found))
                more = " and others" if count > len(found) else ""
                yield Finding(
                    "error",
                    "times",
                    f"{values} of {table.name}.{column} not in the form YYYY-MM-DD HH:MM:SS, of"
                    f" session {of}{more}; correct them by SQL, or delete the sessions",
                )

    def actual_triggers(self) -> dict[str, str]:
        master = f"{self.quote(self.schema)}.sqlite_master" if self.schema else "sqlite_master"
        query = f"SELECT name, sql FROM {master} WHERE type = 'trigger'"  # noqa: S608  # a name
        return {str(name): str(statement) for name, statement in self.rows(query)}


class SQLiteRepairs(Repairs):
    """The repairs of a SQLite database."""

    by_hand = (
        "SQLite changes it only by copying all rows into a new table, which doctor does not print;"
        " do it by a migration of your own, or export the sessions and import them into a new"
        " database"
    )

    def add_primary_key(self, table: Table) -> Statements:
        return ()

    def add_foreign_key(self, constraint: ForeignKeyConstraint) -> Statements:
        return ()

    def restore_sessions(self, child: Table, condition: str) -> str:
        # The trigger deletes the leftover metadata of an id when its session row is inserted. The
        # condition holds also in a shell that goes on after an error.
        emptying = [
            each
            for each in self.inspection.expected.triggers
            if each.event == "INSERT"
            and self.inspection.inspector.has_table(each.emptied.name, self.inspection.schema)
        ]
        schema = (
            f"{self.inspection.quote(self.inspection.schema)}." if self.inspection.schema else ""
        )
        statements = ["BEGIN IMMEDIATE"]
        insert = super().restore_sessions(child, condition)
        for trigger in emptying:
            drop, create = self.create_trigger(trigger, replaced=True)
            name = trigger.name.replace("'", "''")
            insert += (
                f" AND NOT EXISTS (SELECT 1 FROM {schema}sqlite_master"  # noqa: S608  # names
                f" WHERE type = 'trigger' AND name = '{name}')"
            )
            statements.insert(1, drop)
            statements.append(create)
        statements.insert(1 + len(emptying), insert)
        return "; ".join([*statements, "COMMIT"])


INSPECTION, REPAIRS = SQLiteInspection, SQLiteRepairs

"""How `doctor` looks into MySQL and MariaDB, and what it prints for them."""

# The base classes say what each method is for.
# ruff: noqa: D102

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Column, Connection, String, bindparam, text
from sqlalchemy.dialects import mysql

from agents_session_metadata.storage.tables import TableNames
from agents_session_metadata.types import MAX_KEY_LENGTH
from agents_session_metadata.values import SEARCH_KEY_BYTES

from .findings import Finding
from .inspection import Inspection
from .repairs import Repairs, Statements

_SHORT_TEXTS = ("varchar", "tinytext", "text", "mediumtext")
_SHORT_BYTES = ("varbinary", "tinyblob", "blob", "mediumblob")


class MySQLInspection(Inspection):
    """A MySQL or MariaDB database."""

    clock_query: str | None = "SELECT UNIX_TIMESTAMP(NOW(6))"

    def __init__(self, connection: Connection, names: TableNames) -> None:
        super().__init__(connection, names)
        self.is_mariadb: bool = bool(getattr(connection.dialect, "is_mariadb", False))
        self.oldest: tuple[int, ...] = (10, 6) if self.is_mariadb else (8, 0, 17)
        query = text(
            "SELECT table_name, column_name, character_set_name, collation_name,"
            " character_maximum_length, extra, data_type FROM information_schema.columns"
            " WHERE table_schema = coalesce(:schema, database()) AND table_name IN :names"
        ).bindparams(bindparam("names", expanding=True))
        found = connection.execute(query, {"schema": self.schema, "names": list(names)})
        self.stored: dict[tuple[str, str], Any] = {(row[0], row[1]): row for row in found}

    @property
    def product_name(self) -> str:
        return "MariaDB" if self.is_mariadb else "MySQL"

    def are_equal(self, column: Column[Any], first: str, second: str) -> bool:
        _, _, charset, collation, *_ = self.stored[column.table.name, column.name]
        if collation is None:
            return False
        a, b = (f"CONVERT(:{each} USING {charset}) COLLATE {collation}" for each in "ab")
        return bool(self.scalar(f"SELECT {a} = {b}", a=first, b=second))

    def text_problems(self, column: Column[Any]) -> list[str]:
        charset = self.stored[column.table.name, column.name][2]
        problems = super().text_problems(column)
        if charset not in (None, "utf8mb4"):
            problems.append(f"holds characters of {charset} only")
        return problems

    def length_problem(self, column: Column[Any]) -> str | None:
        length = self.stored[column.table.name, column.name][4]
        if length is None or length >= MAX_KEY_LENGTH:
            return None
        return f"holds {length} characters, not {MAX_KEY_LENGTH}"

    def differs(self, child: Column[Any], parent: Column[Any]) -> str | None:
        own, others = (self.stored[each.table.name, each.name][2:5] for each in (child, parent))
        # A column of another type has no length; its type is what is found.
        is_shorter = (own[2] or 0) < self._needed(child, others[2] or 0)
        if own[:2] == others[:2] and not is_shorter:
            return None
        return (
            f"{child.table.name}.{child.name} is {own[2]} characters of {own[1]}, "
            f"{parent.table.name}.{parent.name} {others[2]} of {others[1]}"
        )

    def is_joinable(self, child: Column[Any], parent: Column[Any]) -> bool:
        own, others = (self.stored[each.table.name, each.name][2:4] for each in (child, parent))
        return bool(own == others)

    def equal(self, child: Column[Any], parent: Column[Any]) -> str:
        if self.is_joinable(child, parent):
            return super().equal(child, parent)
        names = (f"{self.name_of(each.table)}.{self.quote(each.name)}" for each in (parent, child))
        return " = ".join(f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)" for name in names)

    def type_problems(self, column: Column[Any], actual: Any) -> Iterator[str]:
        wanted = self.wanted(column)
        yield from super().type_problems(column, actual)
        _, _, charset, _, _, extra, _ = self.stored[column.table.name, column.name]
        if isinstance(wanted, mysql.LONGTEXT) and isinstance(actual, String):
            if not isinstance(actual, mysql.LONGTEXT):
                yield f"has the type {actual}, which is shorter than LONGTEXT"
            elif charset != "utf8mb4" and column.name == "value":
                yield f"holds characters of {charset} only"
        if (
            column.name == "search_key"
            and (getattr(actual, "length", None) or 0) < SEARCH_KEY_BYTES
        ):
            yield f"has the type {actual}, not VARBINARY({SEARCH_KEY_BYTES})"
        if column.name == "search_rest" and not isinstance(actual, mysql.LONGBLOB):
            yield f"has the type {actual}, not LONGBLOB"
        if column.name in ("created_at", "updated_at"):
            if not isinstance(actual, mysql.TIMESTAMP):
                yield f"has the type {actual}, which keeps local time; TIMESTAMP keeps UTC"
            elif column.name == "created_at" and "on update" in (extra or "").lower():
                yield "changes with every update of its row"

    def check_storage(self) -> Iterator[Finding]:
        if not self.scalar("SELECT @@foreign_key_checks"):
            problem = "foreign keys are switched off, and nothing deletes metadata with its session"
            if self.scalar("SELECT @@GLOBAL.foreign_key_checks"):
                problem += "; this client sets foreign_key_checks to 0"
            else:
                problem += "; an administrator can run SET GLOBAL foreign_key_checks = 1"
            yield Finding("error", "foreign keys", problem)
        for table in self.present:
            engine = self.scalar(
                "SELECT engine FROM information_schema.tables WHERE table_name = :name"
                " AND table_schema = coalesce(:schema, database())",
                name=table.name,
                schema=self.schema,
            )
            if engine is not None and engine.lower() != "innodb":
                yield Finding(
                    "error",
                    "engine",
                    f"{table.name} is stored by {engine}, which keeps no transactions; make a"
                    f" backup, then run ALTER TABLE {self.name_of(table)} ENGINE=InnoDB",
                )


class MySQLRepairs(Repairs):
    """The repairs of a MySQL or MariaDB database."""

    inspection: MySQLInspection

    def set_default(self, column: Column[Any]) -> Statements:
        name_of, quote = self.inspection.name_of, self.inspection.quote
        alter = f"ALTER TABLE {name_of(column.table)}"
        if column.server_default is not None:
            return (f"{alter} ALTER COLUMN {quote(column.name)} SET DEFAULT (CURRENT_TIMESTAMP)",)
        # AUTO_INCREMENT would give a row with the id 0 another id.
        zero = f"SELECT count(*) FROM {name_of(column.table)} WHERE {quote(column.name)} = 0"  # noqa: S608  # names
        definition = self._definition(column)
        if definition is None or self.inspection.scalar(zero):
            return ()
        return (f"{alter} MODIFY COLUMN {definition} AUTO_INCREMENT",)

    def widen(self, column: Column[Any]) -> Statements:
        stored = self.inspection.stored[column.table.name, column.name]
        kind, length = stored[6].lower(), stored[4]
        wanted = self.inspection.wanted(column)
        if isinstance(wanted, mysql.LONGTEXT):
            new = "LONGTEXT" if kind in _SHORT_TEXTS else None
        elif isinstance(wanted, mysql.LONGBLOB):
            new = "LONGBLOB" if kind in _SHORT_BYTES else None
        elif isinstance(wanted, mysql.VARBINARY):
            is_short = kind == "varbinary" and length < SEARCH_KEY_BYTES
            new = f"VARBINARY({SEARCH_KEY_BYTES})" if is_short else None
        else:
            needed = self._needed_length(column)
            is_short = kind == "varchar" and length < needed
            # The server refuses to change a column of a foreign key.
            new = f"VARCHAR({needed})" if is_short and not self._is_joined(column) else None
        definition = self._definition(column, new)
        if new is None or definition is None:
            return ()
        alter = f"ALTER TABLE {self.inspection.name_of(column.table)}"
        return (f"{alter} MODIFY COLUMN {definition}",)

    def _needed_length(self, column: Column[Any]) -> int:
        sessions = self.inspection.expected.sessions
        parent = self.inspection.stored.get((sessions.name, "session_id"))
        if column.table is not self.inspection.expected.messages or parent is None:
            return MAX_KEY_LENGTH
        return max(MAX_KEY_LENGTH, parent[4] or 0)

    def _is_joined(self, column: Column[Any]) -> bool:
        own, name = column.table.name, column.name
        keys = self.inspection.foreign_keys
        return any(name in key["constrained_columns"] for key in keys[own]) or any(
            key["referred_table"] == own and name in key["referred_columns"]
            for each in keys.values()
            for key in each
        )

    def _definition(self, column: Column[Any], kind: str | None = None) -> str | None:
        """A column as the server defines it, all attributes included, with another type."""
        name_of = self.inspection.name_of(column.table)
        create = self.inspection.connection.exec_driver_sql(
            f"SHOW CREATE TABLE {name_of.replace('%', '%%')}"
        ).all()[0][1]
        for line in str(create).splitlines():
            found = re.match(r"""  ([`"])(\w+)\1 (\w+(?:\([^)]*\))?)(.*?),?$""", line)
            if found is not None and found[2] == column.name:
                return f"`{column.name}` {kind or found[3]}{found[4]}"
        return None


INSPECTION, REPAIRS = MySQLInspection, MySQLRepairs

"""How `doctor` looks into MySQL and MariaDB, and what it prints for them."""

# The base class says what each method is for.
# ruff: noqa: D102

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import groupby
from typing import Any

from sqlalchemy import (
    TIMESTAMP,
    Column,
    Connection,
    ForeignKeyConstraint,
    Index,
    Table,
    bindparam,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, SAWarning

from agents_session_metadata.storage.tables import TableNames

from .columns import TextColumn
from .findings import Finding, Statements
from .inspection import Inspection
from .triggers import StoredTrigger

_WIDENED = re.compile("var(char|binary)|(tiny|medium)?(text|blob)")
_CHARSET = re.compile(r"( /\*.*?\*/)?( CHARACTER SET \w+)?( COLLATE \w+)?")
"""What follows a type: a comment that says whether it is compressed, and how the text is stored."""
_DEFAULT = re.compile(r"((?: unsigned| zerofill| NOT NULL)*) DEFAULT ('?\d+'?(?= |$))?")
"""The default of a number, which is one in a table that was created from a query."""
_IGNORED = "ignored"
"""Marks an index that the server keeps up to date, but does not use."""
_LONGEST = 2**32 - 1
_KEY_BYTES = 3072
"""What the columns of a key may have together."""
_KEY_CHARACTERS = _KEY_BYTES // 4


class MySQLInspection(Inspection):
    """A MySQL or MariaDB database."""

    clock_query = "SELECT UNIX_TIMESTAMP(NOW(6))"
    bytewise = "CAST(CONVERT({} USING utf8mb4) AS BINARY)"

    def __init__(self, connection: Connection, names: TableNames) -> None:
        self._is_mariadb: bool = getattr(connection.dialect, "is_mariadb", False)
        with warnings.catch_warnings():
            # What SQLAlchemy does not read, such as an index that is IGNORED.
            warnings.filterwarnings("ignore", "Unknown schema content", SAWarning)
            super().__init__(connection, names)
        self.product: str = "MariaDB" if self._is_mariadb else "MySQL"
        self.oldest: tuple[int, ...] = (10, 6) if self._is_mariadb else (8, 0, 17)

    def reflected(self, what: str) -> dict[str, Any]:
        found = super().reflected(what)
        if what == "indexes" and self._is_mariadb:
            query = (
                "SELECT table_name, index_name, column_name, sub_part"
                " FROM information_schema.statistics"
                " WHERE table_schema = coalesce(:schema, database()) AND ignored = 'YES'"
                " ORDER BY table_name, index_name, seq_in_index"
            )
            rows = [row for row in self.rows(query, schema=self.schema) if row[0] in found]
            for (table, name), columns in groupby(rows, lambda row: (row[0], row[1])):
                # An index on the beginning of a column is not one on the column.
                whole = [None if part else column for *_, column, part in columns]
                found[table].append({"name": name, "column_names": whole, _IGNORED: True})
        return found

    def usable_indexes(self, table: Table) -> list[Mapping[str, Any]]:
        return [each for each in super().usable_indexes(table) if _IGNORED not in each]

    def create_index(self, index: Index) -> Statements:
        table: Any = index.table
        columns = index.columns.keys()
        for each in self.indexes[table.name]:
            if _IGNORED in each and each["column_names"][: len(columns)] == columns:
                name = self.quote(each["name"])
                return (f"ALTER TABLE {self.name_of(table)} ALTER INDEX {name} NOT IGNORED",)
        return super().create_index(index)

    @cached_property
    def stored(self) -> dict[tuple[str, str], Any]:
        """The columns as the server describes them, by table and column."""
        query = text(
            "SELECT table_name, column_name, data_type AS kind, character_maximum_length AS length,"
            " character_octet_length AS octets, character_set_name AS charset,"
            " collation_name AS collation, extra AS extra FROM information_schema.columns"
            " WHERE table_schema = coalesce(:schema, database()) AND table_name IN :names"
        ).bindparams(bindparam("names", expanding=True))
        names = {"schema": self.schema, "names": [table.name for table in self.present]}
        return {(row[0], row[1]): row for row in self.connection.execute(query, names)}

    @cached_property
    def engines(self) -> dict[str, str]:
        """What stores the tables, by table."""
        query = (
            "SELECT table_name, engine FROM information_schema.tables"
            " WHERE table_schema = coalesce(:schema, database()) AND engine IS NOT NULL"
        )
        return dict(map(tuple, self.rows(query, schema=self.schema)))

    def read_texts(self) -> dict[tuple[str, str], TextColumn]:
        return {
            place: TextColumn(
                math.inf if row.length >= _LONGEST else row.length,
                row.collation or "",
                row.charset or "",
            )
            for place, row in self.stored.items()
            if row.length is not None
        }

    @cached_property
    def triggers(self) -> dict[str, StoredTrigger]:
        query = (
            "SELECT trigger_name, concat(action_timing, ' ', event_manipulation), action_statement,"
            " event_object_table, definer"
            " FROM information_schema.triggers"
            " WHERE trigger_schema = coalesce(:schema, database())"
        )
        found = self.rows(query, schema=self.schema)
        users = self._users
        core = {table.name: self.name_of(table) for table in self.core if table in self.present}
        return {
            name: StoredTrigger(
                f"{name} {event} ON {core[table]} FOR EACH ROW {body}"
                if not users or definer in users
                else ""
            )
            for name, event, body, table, definer in found
            if table in core
        }

    @cached_property
    def _users(self) -> Collection[str]:
        """The users that triggers can run as; nothing if this one may not know them."""
        try:
            users = {
                user for (user,) in self.rows("SELECT concat(user, '@', host) FROM mysql.user")
            }
        except DBAPIError:
            return ()
        # A server that checks no privileges knows nobody.
        return users if self.scalar("SELECT CURRENT_USER()") in users else ()

    def comparison(self, column: Column[Any]) -> str:
        return self._compared(column, "RTRIM(:{})" if self._cuts(column) else ":{}")

    def _compared(self, column: Column[Any], form: str = ":{}") -> str:
        """A condition that compares `:a` and `:b`, in this form, by a column's collation."""
        found = self.text_of(column)
        if not found.collation:
            return ""
        a, b = (
            f"CONVERT({form.format(each)} USING {found.charset}) COLLATE {found.collation}"
            for each in "ab"
        )
        return f"{a} = {b}"

    def _cuts(self, column: Column[Any]) -> bool:
        """Whether a column stores texts without their trailing spaces."""
        return bool(self.stored[column.table.name, column.name].kind == "char")

    def keeps(self, column: Column[Any], actual: Any) -> bool:
        equal = self._compared(column) if self._cuts(column) else ""
        is_cut = equal and not self.scalar(f"SELECT {equal}", a="a", b="a ")
        is_list = self.stored[column.table.name, column.name].kind in ("enum", "set")
        return not (is_cut or is_list) and super().keeps(column, actual)

    def text_problems(self, column: Column[Any]) -> list[str]:
        problems, collation = super().text_problems(column), self.text_of(column).collation
        if not problems and collation and "bin" not in collation:
            problems.append(f"has the collation {collation}, which ignores some characters")
        return [*problems, *self._charset_problem(column)]

    def _charset_problem(self, column: Column[Any]) -> list[str]:
        charset = self.text_of(column).charset
        return [f"holds characters of {charset} only"] if charset not in ("", "utf8mb4") else []

    def lost_characters(self, column: Column[Any]) -> Iterator[str]:
        if isinstance(self.type_of(column), mysql.LONGTEXT) and column.table in self.own:
            yield from self._charset_problem(column)

    def cautions(self, column: Column[Any]) -> Iterator[str]:
        if isinstance(self.type_of(column), mysql.LONGTEXT) and column.table not in self.own:
            for problem in self._charset_problem(column):
                yield (
                    f"{problem}: from a session with ensure_ascii=False, a server that is not"
                    " strict stores ? instead of other characters"
                )

    def type_problems(self, column: Column[Any], actual: Any) -> Iterator[str]:
        yield from super().type_problems(column, actual)
        wanted, stored = self.type_of(column), self.stored[column.table.name, column.name]
        if isinstance(wanted, TIMESTAMP):
            if not isinstance(actual, mysql.TIMESTAMP):
                yield f"has the type {actual}, which keeps local time; TIMESTAMP keeps UTC"
            elif column.name == "created_at" and "on update" in (stored.extra or "").lower():
                yield "changes with every update of its row"

    def key_problem(self, table: Table) -> str | None:
        problem = super().key_problem(table)
        return problem or self._size_problem(table, [*table.primary_key.columns])

    def _size_problem(self, table: Table, columns: list[Column[Any]]) -> str | None:
        stored = [self.stored[table.name, column.name] for column in columns]
        is_long = any(each.kind.endswith(("text", "blob")) for each in stored)
        if is_long or sum(each.octets or 8 for each in stored) > _KEY_BYTES:
            return "its columns are too long for a key"
        return None

    @cached_property
    def partitioned(self) -> set[str]:
        """The names of the partitioned tables."""
        query = (
            "SELECT DISTINCT table_name FROM information_schema.partitions"
            " WHERE table_schema = coalesce(:schema, database()) AND partition_name IS NOT NULL"
        )
        return {name for (name,) in self.rows(query, schema=self.schema)}

    def is_referable(self, parent: Table) -> bool:
        is_possible = self.engines.get(parent.name) in (None, "InnoDB")
        is_possible = is_possible and parent.name not in self.partitioned
        return is_possible and super().is_referable(parent)

    def may_refer(self, constraint: ForeignKeyConstraint) -> bool:
        return (
            super().may_refer(constraint)
            # Without the key that it used, a foreign key that exists is not shown.
            and self.has_key(constraint.table)
            and self.engines.get(constraint.table.name) == "InnoDB"
            and constraint.table.name not in self.partitioned
            and self._size_problem(constraint.table, [*constraint.columns]) is None
        )

    def not_a_time(self, column: str) -> str | None:
        # NULL, or what a server that is not strict stores instead of what is not a time.
        return f"coalesce(UNIX_TIMESTAMP({column}), 0) = 0"

    def check_server(self) -> Iterator[Finding]:
        if not self.scalar("SELECT @@foreign_key_checks"):
            problem = "foreign keys are switched off, and nothing deletes metadata with its session"
            if self.scalar("SELECT @@GLOBAL.foreign_key_checks"):
                problem += "; this client sets foreign_key_checks to 0"
            else:
                problem += "; an administrator can run SET GLOBAL foreign_key_checks = 1"
            yield Finding("error", "foreign keys", problem)
        for table in self.present:
            engine = self.engines.get(table.name, "InnoDB")
            if engine != "InnoDB":
                yield Finding(
                    "error",
                    "engine",
                    f"{table.name} is stored by {engine}, which keeps no transactions; make a"
                    f" backup, then run ALTER TABLE {self.name_of(table)} ENGINE=InnoDB",
                )
            is_linked = any(table in (each.table, each.referred_table) for each in self.links)
            if table.name in self.partitioned and is_linked:
                yield Finding(
                    "warning" if table is self.expected.messages else "error",
                    "engine",
                    f"{table.name} is partitioned, so that it cannot have or be the target of a"
                    " foreign key that deletes rows with their session; make a backup, then run"
                    f" ALTER TABLE {self.name_of(table)} REMOVE PARTITIONING",
                )

    def set_default(self, column: Column[Any]) -> Statements:
        table, name = self.name_of(column.table), self.quote(column.name)
        if column.server_default is not None:
            return (f"ALTER TABLE {table} ALTER COLUMN {name} SET DEFAULT (CURRENT_TIMESTAMP)",)
        # AUTO_INCREMENT would give a row with the id 0 another id.
        if self.count(column.table, f"{name} = 0"):
            return ()
        return self._modified(column, "AUTO_INCREMENT")

    def widen(self, column: Column[Any]) -> Statements:
        needed, kind = self.needed(column), self.type_of(column).__visit_name__
        kind = "VARCHAR" if kind == "string" else kind
        if column.table is self.expected.messages and column.name == "session_id":
            needed = max(needed, self.text_of(self.expected.sessions.c.session_id).length)
        # The server refuses to change a column of a foreign key, also of one that is printed.
        printed = [each for each in self.links if each.table.name not in self.existing]
        joined = [(each.referred_table.name, key) for each in printed for key in each.column_keys]
        joined += [
            place
            for own, keys in self.foreign_keys.items()
            for key in keys
            for place in (
                *((own, name) for name in key["constrained_columns"]),
                *((key["referred_table"], name) for name in key["referred_columns"]),
            )
        ]
        is_short = self.text_of(column).length < needed
        found = self.stored[column.table.name, column.name].kind.lower()
        if (column.table.name, column.name) in joined or not is_short:
            return ()
        # Bytes are never read as text, nor text as bytes.
        if not self.is_readable(column.table, [column.name]):
            return ()
        # The keys of other engines than InnoDB are too short.
        is_possible = needed <= _KEY_CHARACTERS and self.engines.get(column.table.name) == "InnoDB"
        if not _WIDENED.fullmatch(found) or (kind == "VARCHAR" and not is_possible):
            return ()
        return self._modified(column, kind=kind if needed == math.inf else f"{kind}({needed})")

    def _modified(self, column: Column[Any], more: str = "", kind: str = "") -> Statements:
        """A column as the server defines it, all attributes included, and changed.

        The character set is always named: the server omits that of the table, or any by its mode.
        """
        name_of = self.name_of(column.table)
        create = self.connection.exec_driver_sql(
            f"SHOW CREATE TABLE {name_of.replace('%', '%%')}"
        ).all()[0][1]
        for line in str(create).splitlines():
            found = re.match(r"""  ([`"])(\w+)\1 (\w+(?:\([^)]*\))?)(.*?),?$""", line)
            if found is not None and found[2] == column.name:
                rest, stored = found[4], self.text_of(column)
                # A column cannot have both.
                default = _DEFAULT.match(rest) if more else None
                if default is not None:
                    if default[2] is None:
                        return ()
                    rest = default[1] + rest[default.end() :]
                if stored.charset:
                    named = rf"\1 CHARACTER SET {stored.charset} COLLATE {stored.collation}"
                    rest = _CHARSET.sub(named, rest, count=1)
                definition = f"`{column.name}` {kind or found[3]}{rest} {more}".rstrip()
                return (f"ALTER TABLE {name_of} MODIFY COLUMN {definition}",)
        return ()


INSPECTION = MySQLInspection

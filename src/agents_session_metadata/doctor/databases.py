"""How `doctor` looks into each database, and how each is repaired."""

# Patient says what each method is for; some databases need less of what it passes.
# ruff: noqa: ARG002, D102

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    Connection,
    ForeignKeyConstraint,
    LargeBinary,
    String,
    Table,
    bindparam,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.storage.tables import DropTrigger, TableNames, renamed
from agents_session_metadata.types import MAX_KEY_LENGTH
from agents_session_metadata.values import SEARCH_KEY_BYTES

from .findings import Finding
from .inspection import Patient


class SQLitePatient(Patient):
    """SQLite: repairs make a table anew, since columns cannot be changed."""

    oldest: tuple[int, ...] = (3, 35)

    @property
    def product_name(self) -> str:
        return "SQLite"

    @property
    def server_version(self) -> tuple[Any, ...]:
        return tuple(int(part) for part in str(self.scalar("SELECT sqlite_version()")).split("."))

    def are_equal(self, column: Column[Any], first: str, second: str) -> bool:
        # A column takes its collation into the index of its primary key.
        collation = self.scalar(
            "SELECT c.coll FROM pragma_index_list(:table) AS i"
            " JOIN pragma_index_xinfo(i.name) AS c"
            " WHERE c.name = :column AND c.key = 1 ORDER BY i.origin = 'pk' DESC LIMIT 1",
            table=column.table.name,
            column=column.name,
        )
        name = collation if collation in ("BINARY", "NOCASE", "RTRIM") else "BINARY"
        return bool(self.scalar(f"SELECT :a = :b COLLATE {name}", a=first, b=second))

    def type_problems(self, column: Column[Any], actual: Any) -> Iterator[str]:
        # What a column is declared as decides only whether text like 1 becomes a number.
        is_text = isinstance(self.wanted(column), String)
        if is_text and not isinstance(actual, String):
            yield f"has the type {actual}, not a text type"

    def add_column(self, column: Column[Any]) -> Iterator[str]:
        if column.server_default is not None or not self.is_filled(column.table):
            yield from self._rebuilt(column.table)

    def change_columns(self, columns: Iterable[Column[Any]]) -> Iterator[str]:
        for table in dict.fromkeys(column.table for column in columns):
            if table.name in self.existing:
                yield from self._rebuilt(table)

    def change_primary_key(self, table: Table, actual: Mapping[str, Any]) -> Iterator[str]:
        yield from self._rebuilt(table)

    def change_foreign_key(
        self, constraint: ForeignKeyConstraint, wrong: Sequence[Mapping[str, Any]]
    ) -> Iterator[str]:
        yield from self._rebuilt(constraint.table)

    def check_triggers(self) -> Iterator[Finding]:
        master = f"{self.quote(self.schema)}.sqlite_master" if self.schema else "sqlite_master"
        query = f"SELECT name, sql FROM {master} WHERE type = 'trigger'"  # noqa: S608  # a name
        actual = {name: _normal(statement) for name, statement in self.rows(query)}
        for trigger in self.expected.triggers:
            create = self.sql(trigger)
            if trigger.name not in actual:
                yield Finding("error", "triggers", f"trigger {trigger.name} is missing", (create,))
            elif actual[trigger.name] != _normal(create):
                yield Finding(
                    "error",
                    "triggers",
                    f"trigger {trigger.name} does something else",
                    (self.sql(DropTrigger(trigger)), create),
                )

    def _rebuilt(self, table: Table) -> Iterator[str]:
        """Make a table anew with its rows, in one transaction."""
        temporary = renamed(table, "_rebuilt", self.exact)
        temporary.indexes.clear()
        common = [column.name for column in table.c if self.has(table, column.name)]
        columns = ", ".join(self.quote(name) for name in common)
        # Where an application has switched foreign keys on, dropping a parent would empty children.
        yield "PRAGMA foreign_keys = OFF"
        yield "BEGIN IMMEDIATE"
        for trigger in self.expected.triggers:
            yield self.sql(DropTrigger(trigger))
        yield self.sql(CreateTable(temporary))
        yield (
            f"INSERT INTO {self.name_of(temporary)} ({columns})"  # noqa: S608  # names
            f" SELECT {columns} FROM {self.name_of(table)}"
        )
        yield f"DROP TABLE {self.name_of(table)}"
        yield f"ALTER TABLE {self.name_of(temporary)} RENAME TO {self.quote(table.name)}"
        for index in table.indexes:
            yield self.sql(CreateIndex(index))
        for trigger in self.expected.triggers:
            yield self.sql(trigger)
        yield "COMMIT"


class _TextColumn(NamedTuple):
    """How PostgreSQL compares a column of text, and how much it holds."""

    schema: str
    collation: str
    is_deterministic: bool
    length: int | None

    @property
    def room(self) -> float:
        """The characters that it holds."""
        return math.inf if self.length is None else self.length

    def compares_with(self, other: _TextColumn) -> bool:
        """Whether there is one way to compare the two: the database's own collation gives way."""
        names = {self[:2], other[:2]}
        if len(names) == 1:
            return True
        is_exact = self.is_deterministic and other.is_deterministic
        return is_exact and ("pg_catalog", "default") in names


class PostgreSQLPatient(Patient):
    """PostgreSQL."""

    oldest: tuple[int, ...] = (13,)
    clock_query: str | None = "SELECT EXTRACT(EPOCH FROM clock_timestamp())"

    @property
    def product_name(self) -> str:
        return "PostgreSQL"

    def __init__(self, connection: Connection, names: TableNames) -> None:
        super().__init__(connection, names)
        self._texts: dict[tuple[str, str], _TextColumn] = {}
        self._failures: dict[tuple[str, str], str] = {}
        for table in self.present:
            self._look_at(table)

    def _look_at(self, table: Table) -> None:
        columns = (
            "SELECT a.attname, n.nspname, c.collname, c.collisdeterministic,"
            " CASE WHEN a.atttypmod > 4 THEN a.atttypmod - 4 END FROM pg_attribute a"
            " JOIN pg_collation c ON c.oid = a.attcollation"
            " JOIN pg_namespace n ON n.oid = c.collnamespace"
            " WHERE a.attrelid = to_regclass(:name) AND NOT a.attisdropped"
        )
        for column, *found in self.rows(columns, name=self.name_of(table)):
            self._texts[table.name, column] = _TextColumn(*found)
        keys = (
            "SELECT k.conname, k.convalidated,"
            # The column is younger than the oldest supported server.
            " coalesce(to_jsonb(k)->>'conenforced', 'true') = 'false' OR EXISTS (SELECT 1"
            " FROM pg_trigger t WHERE t.tgconstraint = k.oid AND t.tgenabled IN ('D', 'R'))"
            " FROM pg_constraint k WHERE k.conrelid = to_regclass(:name) AND k.contype = 'f'"
        )
        for name, is_validated, is_off in self.rows(keys, name=self.name_of(table)):
            if is_off:
                self._failures[table.name, name] = "is switched off"
            elif not is_validated:
                self._failures[table.name, name] = "was never checked for the rows before it"

    def are_equal(self, column: Column[Any], first: str, second: str) -> bool:
        found = self._texts.get((column.table.name, column.name))
        if found is None:
            return False
        schema, name = self.quote(found.schema), self.quote(found.collation)
        query = f"SELECT CAST(:a AS TEXT) COLLATE {schema}.{name} = CAST(:b AS TEXT)"
        return bool(self.scalar(query, a=first, b=second))

    def text_problems(self, column: Column[Any]) -> list[str]:
        problems = super().text_problems(column)
        found = self._texts.get((column.table.name, column.name))
        if found is None:
            return problems
        if not found.is_deterministic and not problems:
            problems.append(f"has the nondeterministic collation {found.collation}")
        if column.name == "session_id" and found.room < MAX_KEY_LENGTH:
            problems.append(f"holds {found.length} characters, not {MAX_KEY_LENGTH}")
        return problems

    def differs(self, child: Column[Any], parent: Column[Any]) -> str | None:
        own, others = (self._texts.get((each.table.name, each.name)) for each in (child, parent))
        if own is None or others is None:
            return None
        is_shorter = own.room < self._needed(child, others.room)
        if own.compares_with(others) and not is_shorter:
            return None
        is_own, is_other = (
            f"{each.length or 'any number of'} characters of the collation {each.collation}"
            for each in (own, others)
        )
        return (
            f"{child.table.name}.{child.name} is {is_own}, "
            f"{parent.table.name}.{parent.name} {is_other}"
        )

    def equal(self, child: Column[Any], parent: Column[Any]) -> str:
        own, others = (self._texts.get((each.table.name, each.name)) for each in (child, parent))
        if own and others and own.compares_with(others) and own.is_deterministic:
            return super().equal(child, parent)
        # Texts of different collations are not compared, and numbers not with texts.
        return " = ".join(
            f'CAST({self.name_of(each.table)}.{self.quote(each.name)} AS TEXT) COLLATE "C"'
            for each in (parent, child)
        )

    def foreign_key_problem(self, table: Table, key: Mapping[str, Any]) -> str | None:
        return self._failures.get((table.name, key["name"]))

    def type_problems(self, column: Column[Any], actual: Any) -> Iterator[str]:
        wanted = self.wanted(column)
        yield from super().type_problems(column, actual)
        if column.name in ("value", "message_data") and getattr(actual, "length", None):
            yield f"holds {actual.length} characters only"
        zone = getattr(wanted, "timezone", None)
        if zone is not None and getattr(actual, "timezone", None) != zone:
            kinds = {True: "TIMESTAMP WITH TIME ZONE", False: "TIMESTAMP WITHOUT TIME ZONE"}
            found = kinds.get(bool(actual.timezone)) if hasattr(actual, "timezone") else actual
            yield f"has the type {found}, not {kinds[zone]}"
        if isinstance(wanted, LargeBinary) and not isinstance(actual, LargeBinary):
            yield f"has the type {actual}, not BYTEA"

    def change_column(self, column: Column[Any]) -> Iterator[str]:
        name, alter = self.quote(column.name), f"ALTER TABLE {self.name_of(column.table)}"
        kind = column.type.compile(self.dialect)
        plain = kind.partition(" COLLATE")[0]
        using = f" USING {name}::{plain}"
        yield f"{alter} ALTER COLUMN {name} TYPE {kind}{using}"
        if not column.nullable:
            yield f"{alter} ALTER COLUMN {name} SET NOT NULL"

    def give_default(self, column: Column[Any]) -> Iterator[str]:
        table, name = self.name_of(column.table), self.quote(column.name)
        alter = f"ALTER TABLE {table} ALTER COLUMN {name}"
        if column.server_default is not None:
            yield f"{alter} SET DEFAULT CURRENT_TIMESTAMP"
            return
        following = self.scalar(f"SELECT coalesce(max({name}), 0) + 1 FROM {table}")  # noqa: S608  # names
        yield f"{alter} ADD GENERATED BY DEFAULT AS IDENTITY (START WITH {following})"

    def usable_indexes(
        self, table: Table, actual: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        invalid = (
            "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
            " WHERE i.indrelid = to_regclass(:name) AND NOT i.indisvalid"
        )
        names = {name for (name,) in self.rows(invalid, name=self.name_of(table))}
        return [each for each in super().usable_indexes(table, actual) if each["name"] not in names]

    def check_zone(self) -> Iterator[Finding]:
        query = "SELECT setting, source FROM pg_settings WHERE name = 'TimeZone'"
        zone, source = self.rows(query)[0]
        if zone.removeprefix("Etc/").upper() in {"UTC", "UCT", "GMT", "ZULU", "UNIVERSAL"}:
            return
        problem = (
            f"the server's time zone is {zone}, and the SDK stores local times without it: they are"
            " exact only while all writers and readers use this zone, and ambiguous in the hour"
            " that summer time repeats"
        )
        if source == "client":
            yield Finding(
                "warning", "clock", f"{problem}; it is this client that asks for the zone"
            )
            return
        database = self.quote(str(self.scalar("SELECT current_database()")))
        role = self.quote(str(self.scalar("SELECT current_user")))
        owner = {"user": f"ROLE {role}", "database user": f"ROLE {role} IN DATABASE {database}"}
        repair = [f"ALTER {owner.get(source, f'DATABASE {database}')} SET timezone = 'UTC'"]
        literal = zone.replace("'", "''")
        for table in (self.expected.sessions, self.expected.messages):
            times = [c for c in ("created_at", "updated_at") if self.has(table, c)]
            as_utc = f"AT TIME ZONE '{literal}' AT TIME ZONE 'UTC'"
            moved = ", ".join(f"{time} = {time} {as_utc}" for time in times)
            if moved:
                repair.append(f"UPDATE {self.name_of(table)} SET {moved}")  # noqa: S608  # names
        yield Finding("warning", "clock", problem, tuple(repair))


class MySQLPatient(Patient):
    """MySQL and MariaDB."""

    clock_query: str | None = "SELECT UNIX_TIMESTAMP(NOW(6))"

    def __init__(self, connection: Connection, names: TableNames) -> None:
        super().__init__(connection, names)
        self.is_mariadb: bool = bool(getattr(connection.dialect, "is_mariadb", False))
        self.oldest: tuple[int, ...] = (10, 6) if self.is_mariadb else (8, 0, 17)
        query = text(
            "SELECT table_name, column_name, character_set_name, collation_name,"
            " character_maximum_length, extra FROM information_schema.columns"
            " WHERE table_schema = coalesce(:schema, database()) AND table_name IN :names"
        ).bindparams(bindparam("names", expanding=True))
        found = connection.execute(query, {"schema": self.schema, "names": list(names)})
        self._stored = {(row[0], row[1]): row for row in found}

    @property
    def product_name(self) -> str:
        return "MariaDB" if self.is_mariadb else "MySQL"

    def are_equal(self, column: Column[Any], first: str, second: str) -> bool:
        _, _, charset, collation, *_ = self._stored[column.table.name, column.name]
        if collation is None:
            return False
        a, b = (f"CONVERT(:{each} USING {charset}) COLLATE {collation}" for each in "ab")
        return bool(self.scalar(f"SELECT {a} = {b}", a=first, b=second))

    def text_problems(self, column: Column[Any]) -> list[str]:
        _, _, charset, _, length, _ = self._stored[column.table.name, column.name]
        problems = super().text_problems(column)
        if charset not in (None, "utf8mb4"):
            problems.append(f"holds characters of {charset} only")
        if length is not None and length < MAX_KEY_LENGTH and column.name == "session_id":
            problems.append(f"holds {length} characters, not {MAX_KEY_LENGTH}")
        return problems

    def differs(self, child: Column[Any], parent: Column[Any]) -> str | None:
        own, others = (self._stored[each.table.name, each.name][2:5] for each in (child, parent))
        # A column of another type has no length; its type is what is found.
        is_shorter = (own[2] or 0) < self._needed(child, others[2] or 0)
        if own[:2] == others[:2] and not is_shorter:
            return None
        return (
            f"{child.table.name}.{child.name} is {own[2]} characters of {own[1]}, "
            f"{parent.table.name}.{parent.name} {others[2]} of {others[1]}"
        )

    def type_problems(self, column: Column[Any], actual: Any) -> Iterator[str]:
        wanted = self.wanted(column)
        yield from super().type_problems(column, actual)
        _, _, charset, _, _, extra = self._stored[column.table.name, column.name]
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
                yield "moves with every update"

    def change_column(self, column: Column[Any]) -> Iterator[str]:
        specification = self.sql(CreateColumn(column))
        yield f"ALTER TABLE {self.name_of(column.table)} MODIFY COLUMN {specification}"

    def drop_primary_key(self, table: Table, name: str | None) -> str:
        return f"ALTER TABLE {self.name_of(table)} DROP PRIMARY KEY"

    def drop_foreign_key(self, table: Table, key: Mapping[str, Any]) -> str:
        return f"ALTER TABLE {self.name_of(table)} DROP FOREIGN KEY {self.quote(key['name'])}"

    def equal(self, child: Column[Any], parent: Column[Any]) -> str:
        own, others = (self._stored[each.table.name, each.name][2:4] for each in (child, parent))
        if own == others:
            return super().equal(child, parent)
        names = (f"{self.name_of(each.table)}.{self.quote(each.name)}" for each in (parent, child))
        return " = ".join(f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)" for name in names)

    def check_storage(self) -> Iterator[Finding]:
        if not self.scalar("SELECT @@foreign_key_checks"):
            problem = "foreign keys are switched off, and nothing deletes metadata with its session"
            if self.scalar("SELECT @@GLOBAL.foreign_key_checks"):
                problem += "; it is this client that sets foreign_key_checks"
                yield Finding("error", "foreign keys", problem)
            else:
                repair = "SET GLOBAL foreign_key_checks = 1"
                yield Finding("error", "foreign keys", problem, (repair,))
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
                    f"{table.name} is stored by {engine}, which keeps no transactions",
                    (f"ALTER TABLE {self.name_of(table)} ENGINE=InnoDB",),
                )


def patient_of(connection: Connection, names: TableNames) -> Patient:
    """The database of a connection, as a patient."""
    kinds: dict[str, type[Patient]] = {
        "sqlite": SQLitePatient,
        "postgresql": PostgreSQLPatient,
        "mysql": MySQLPatient,
    }
    return kinds[dialect_of(connection.dialect).name](connection, names)


def _normal(statement: str) -> str:
    """SQL without what does not matter: SQLite keeps it as it was typed, IF NOT EXISTS aside."""
    return "".join(statement.upper().replace("IF NOT EXISTS", "").replace('"', "").split())

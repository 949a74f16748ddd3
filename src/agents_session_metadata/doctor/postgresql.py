"""How `doctor` looks into PostgreSQL, and what it prints for it."""

# The base classes say what each method is for.
# ruff: noqa: D102

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import TEXT, VARCHAR, Column, Connection, LargeBinary, Table

from agents_session_metadata.storage.tables import TableNames
from agents_session_metadata.types import MAX_KEY_LENGTH

from .findings import Finding
from .inspection import Inspection
from .repairs import Repairs, Statements


class TextColumn(NamedTuple):
    """How a column of text compares, and how much it holds."""

    schema: str
    collation: str
    is_deterministic: bool
    length: int | None

    @property
    def room(self) -> float:
        """The characters that it holds."""
        return math.inf if self.length is None else self.length

    def compares_with(self, other: TextColumn) -> bool:
        """Whether PostgreSQL compares the two: the database's own collation gives way."""
        names = {self[:2], other[:2]}
        if len(names) == 1:
            return True
        is_exact = self.is_deterministic and other.is_deterministic
        return is_exact and ("pg_catalog", "default") in names


class PostgreSQLInspection(Inspection):
    """A PostgreSQL database."""

    oldest: tuple[int, ...] = (13,)
    clock_query: str | None = "SELECT EXTRACT(EPOCH FROM clock_timestamp())"

    def __init__(self, connection: Connection, names: TableNames) -> None:
        super().__init__(connection, names)
        self._texts: dict[tuple[str, str], TextColumn] = {}
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
            self._texts[table.name, column] = TextColumn(*found)
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
                self._failures[table.name, name] = (
                    "was never checked for the rows before it; run ALTER TABLE"
                    f" {self.name_of(table)} VALIDATE CONSTRAINT {self.quote(name)} once every row"
                    " has its parent"
                )

    @property
    def product_name(self) -> str:
        return "PostgreSQL"

    def text_column(self, column: Column[Any]) -> TextColumn | None:
        """How a column compares; None if it is missing or holds no text."""
        return self._texts.get((column.table.name, column.name))

    def are_equal(self, column: Column[Any], first: str, second: str) -> bool:
        found = self.text_column(column)
        if found is None:
            return False
        schema, name = self.quote(found.schema), self.quote(found.collation)
        query = f"SELECT CAST(:a AS TEXT) COLLATE {schema}.{name} = CAST(:b AS TEXT)"
        return bool(self.scalar(query, a=first, b=second))

    def text_problems(self, column: Column[Any]) -> list[str]:
        problems = super().text_problems(column)
        found = self.text_column(column)
        if found is not None and not found.is_deterministic and not problems:
            problems.append(f"has the nondeterministic collation {found.collation}")
        return problems

    def length_problem(self, column: Column[Any]) -> str | None:
        found = self.text_column(column)
        if found is None or found.room >= MAX_KEY_LENGTH:
            return None
        return f"holds {found.length} characters, not {MAX_KEY_LENGTH}"

    def differs(self, child: Column[Any], parent: Column[Any]) -> str | None:
        own, others = self.text_column(child), self.text_column(parent)
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

    def is_joinable(self, child: Column[Any], parent: Column[Any]) -> bool:
        own, others = self.text_column(child), self.text_column(parent)
        return own is not None and others is not None and own.compares_with(others)

    def equal(self, child: Column[Any], parent: Column[Any]) -> str:
        own, others = self.text_column(child), self.text_column(parent)
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
            problem += "; this client asks for the zone"
        else:
            problem += (
                "; to change it to UTC, stop all writers and convert the stored times of both"
                " tables in the same step"
            )
        yield Finding("warning", "clock", problem)


class PostgreSQLRepairs(Repairs):
    """The repairs of a PostgreSQL database."""

    inspection: PostgreSQLInspection

    def set_default(self, column: Column[Any]) -> Statements:
        table, name = self.inspection.name_of(column.table), self.inspection.quote(column.name)
        alter = f"ALTER TABLE {table} ALTER COLUMN {name}"
        if column.server_default is not None:
            return (f"{alter} SET DEFAULT CURRENT_TIMESTAMP",)
        following = self.inspection.scalar(f"SELECT coalesce(max({name}), 0) + 1 FROM {table}")  # noqa: S608  # names
        return (f"{alter} ADD GENERATED BY DEFAULT AS IDENTITY (START WITH {following})",)

    def widen(self, column: Column[Any]) -> Statements:
        actual = self.inspection.columns[column.table.name][column.name]["type"]
        found = self.inspection.text_column(column)
        if found is None or found.length is None or not isinstance(actual, VARCHAR):
            return ()
        limit = MAX_KEY_LENGTH if column.name == "key" else None
        if limit is not None and found.length >= limit:
            return ()
        is_text = isinstance(self.inspection.wanted(column), TEXT)
        kind = "TEXT" if is_text else "VARCHAR" if limit is None else f"VARCHAR({limit})"
        quote = self.inspection.quote
        # Without it, the column would get the database's collation.
        collation = f"{quote(found.schema)}.{quote(found.collation)}"
        alter = f"ALTER TABLE {self.inspection.name_of(column.table)} ALTER COLUMN"
        return (f"{alter} {quote(column.name)} TYPE {kind} COLLATE {collation}",)


INSPECTION, REPAIRS = PostgreSQLInspection, PostgreSQLRepairs

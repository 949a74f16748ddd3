"""Compares the tables and triggers of a database with those that `ddl` would create."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlalchemy import (
    Column,
    Connection,
    Index,
    MetaData,
    Table,
    UniqueConstraint,
    inspect,
    literal_column,
    select,
)
from sqlalchemy.exc import NoResultFound
from sqlalchemy.schema import AddConstraint, CreateColumn, CreateIndex

from agents_session_metadata.core.definitions import CORE, CREATE_TYPES, DropTrigger, TableNames
from agents_session_metadata.core.obsolete import obsolete_keys
from agents_session_metadata.core.schema import (
    AddColumn,
    as_text,
    existing_names,
    table_elements,
    tables_beside,
    time_index,
)
from agents_session_metadata.core.tables import SessionTables, build_tables, query_tables
from agents_session_metadata.dialects import connected_name, dialect_of, offline
from agents_session_metadata.dialects._dialect import Dialect, Existing
from agents_session_metadata.text import quoted

Level: TypeAlias = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    `level` is `error` if something is wrong, `warning` if it works within limits that the problem
    names, and `info` otherwise. `check` is the kind of object, such as `indexes`. `problem` also
    says what to do. `repair` has statements in order: each is a CREATE, an ALTER TABLE that adds
    a nullable column, or a DROP TRIGGER of a trigger of this package that the next statements
    replace.
    """

    level: Level
    check: str
    problem: str
    repair: tuple[str, ...] = ()


class Inspection:
    """One set of tables in one database.

    `expected` has the tables as they would be created beside an existing sessions table; `queried`
    has the same tables for queries. `existing` has names; on SQLite, also those of triggers.
    `wanted` has the tables that should exist: a feature has all of its tables or none. `complete`
    has the names of existing tables with all columns; `check_tables` adds them.
    """

    def __init__(self, connection: Connection, names: TableNames) -> None:
        self.connection = connection
        self.dialect: Dialect = dialect_of(connection.dialect)
        self.inspector: Any = inspect(connection)
        self.queried: SessionTables = query_tables(names)
        sessions = self.queried.sessions
        self.schema: str | None = connection.schema_for_object(sessions)
        self.existing: Existing = existing_names(connection, self.queried, parts=True)
        # Tables of its own: their constraints change when their statements are shown.
        self.expected: SessionTables = build_tables(MetaData(), names, CREATE_TYPES)
        if sessions.name in self.existing:
            # Ids that are missing or no text are reported.
            with suppress(NoResultFound, StopIteration):
                self.expected = tables_beside(connection, names, self.existing)
        self.wanted: list[Table] = [
            table
            for group in self.expected.groups
            if group.name == CORE or any(table.name in self.existing for table in group.tables)
            for table in group.tables
        ]
        self.complete: set[str] = set()
        self._offline = offline(connected_name(connection.dialect))

    @property
    def present(self) -> list[Table]:
        return [table for table in self.wanted if table.name in self.existing]

    def sql(self, element: Any) -> str:
        """Compiles a statement for the schema that the connection translates to."""
        options: dict[str, Any] = {}
        translation = self.connection.get_execution_options().get("schema_translate_map")
        if translation is not None:
            options = {"schema_translate_map": translation, "render_schema_translate": True}
        return as_text(element, self._offline, **options)

    def is_filled(self, table: Table) -> bool:
        first: Any = select(literal_column("1")).select_from(table).limit(1)
        return table.name in self.existing and self.connection.execute(first).first() is not None


def check_tables(inspection: Inspection) -> Iterator[Finding]:
    """Must run first: it fills `inspection.complete`."""
    for table in inspection.wanted:
        if table.name not in inspection.existing:
            yield _missing_table(inspection, table)
            continue
        found = inspection.existing[table.name]
        missing = [column for column in table.c if column.name not in found]
        for column in missing:
            yield _missing_column(inspection, column)
        if not missing:
            inspection.complete.add(table.name)
        if all(column.nullable for column in missing):
            yield from _foreign_keys(inspection, table)
            yield from _indexes(inspection, table)
            if table is inspection.expected.sessions:
                yield from _time_index(inspection, table)


def _time_index(inspection: Inspection, sessions: Table) -> Iterator[Finding]:
    index = time_index(sessions, inspection.dialect)
    if not index.exists(inspection.connection):
        problem = f"{sessions.name} has no index on ({', '.join(index.columns)})"
        problem += ": agent-sessions index create '$updated_at' creates it, for fast lists"
        yield Finding("info", "indexes", problem)


def _missing_table(inspection: Inspection, table: Table) -> Finding:
    expected = inspection.expected
    problem = f"table {table.name} is missing"
    filled = [each.name for each in inspection.wanted[1:] if inspection.is_filled(each)]
    if table is expected.sessions and filled:
        problem += (
            f", and {filled[0]} has rows: check the names of the tables, or restore the table from"
            " a backup"
        )
        return Finding("error", "tables", problem)
    if table is expected.elements and inspection.is_filled(expected.metadata):
        problem += "; once it exists, agent-sessions doctor --rewrite-search-keys fills it"
    statements = table_elements(table, inspection.dialect)
    return Finding("error", "tables", problem, tuple(map(inspection.sql, statements)))


def _missing_column(inspection: Inspection, column: Column[Any]) -> Finding:
    problem = f"column {column.table.name}.{column.name} is missing"
    if column.nullable:  # A later version has added it.
        return Finding("error", "columns", problem, (inspection.sql(AddColumn(column)),))
    problem += (
        ": restore the table from a backup, or add the column by a migration, as"
        f" {inspection.sql(CreateColumn(column))}"
    )
    return Finding("error", "columns", problem)


def _foreign_keys(inspection: Inspection, table: Table) -> Iterator[Finding]:
    found = [
        (each["constrained_columns"], each["referred_table"].lower())
        for each in inspection.inspector.get_foreign_keys(table.name, inspection.schema)
    ]
    for constraint in sorted(table.foreign_key_constraints, key=str):
        parent = constraint.referred_table.name
        if (constraint.column_keys, parent.lower()) in found:
            continue
        problem = f"the foreign key of {table.name} to {parent} is missing"
        if inspection.dialect.uses_triggers:
            yield Finding("warning", "foreign keys", f"{problem}: triggers do its work")
        else:
            statement = inspection.sql(AddConstraint(constraint))
            problem += ": once every row has its parent, add it by a migration, as"
            yield Finding("error", "foreign keys", f"{problem} {statement}")


def _indexes(inspection: Inspection, table: Table) -> Iterator[Finding]:
    inspector, place = inspection.inspector, (table.name, inspection.schema)
    every = [*inspector.get_indexes(*place), *inspector.get_unique_constraints(*place)]
    found = [each["column_names"] for each in every]
    unique = [each for each in table.constraints if isinstance(each, UniqueConstraint)]
    # What a unique constraint promises follows from the primary key: its index is all it adds.
    copy = table.to_metadata(MetaData())
    wanted = [
        *table.indexes,
        *(Index(str(each.name), *(copy.c[own.name] for own in each.columns)) for each in unique),
    ]
    for index in sorted(wanted, key=lambda each: str(each.name)):
        columns = index.columns.keys()
        if columns not in [each[: len(columns)] for each in found]:
            problem = f"{table.name} has no index on ({', '.join(columns)})"
            yield Finding("error", "indexes", problem, (inspection.sql(CreateIndex(index)),))


def check_ids(inspection: Inspection) -> Iterator[Finding]:
    sessions = inspection.expected.sessions
    followed: str | None = None
    for table in inspection.present:
        for column in inspection.dialect.id_columns(inspection.connection, table):
            name = f"{table.name}.{column.name}"
            if table is sessions:
                followed = column.collation
            if not column.is_text:
                problem = f"{name} has the type {column.type}, which changes or rejects some texts"
                yield Finding("error", "types", f"{problem}: change it by a migration")
            elif not column.is_exact:
                # The comparison of ids follows the sessions table.
                follows = column.name == "session_id" and column.collation == followed
                problem = f"{name} has the type {column.type} and the collation {column.collation}"
                problem += ", which do not keep all different texts apart"
                yield Finding("warning" if follows else "error", "collations", problem)


def check_triggers(inspection: Inspection) -> Iterator[Finding]:
    dialect = inspection.dialect
    if not dialect.uses_triggers:
        return
    tables = inspection.present
    existing = {name for t in tables for name in dialect.triggers_of(inspection.connection, t)}
    expected = {trigger.name for trigger in inspection.expected.triggers}
    for group in inspection.expected.groups:
        if group.tables[0] not in inspection.wanted:
            continue
        for trigger in group.triggers:
            # The last eight characters are a hash of the text.
            same = (name for name in existing if name[:-8] == trigger.name[:-8])
            others = sorted({*same} - expected)
            elements: list[Any] = [DropTrigger(trigger.table, name) for name in others]
            if trigger.name not in existing:
                elements.append(trigger)
            repair = tuple(map(inspection.sql, elements))
            if others:
                problem = f"triggers of another version exist: {', '.join(others)}"
                yield Finding("warning", "triggers", problem, repair)
            elif repair:
                yield Finding("error", "triggers", f"trigger {trigger.name} is missing", repair)


def check_obsolete(inspection: Inspection) -> Iterator[Finding]:
    for key in obsolete_keys(inspection.connection, inspection.queried):
        problem = (
            f"the index on {quoted(key)} is of version 0.2.0, and nothing uses it: when no process"
            f" of that version is running, remove it by agent-sessions index drop {key}"
        )
        yield Finding("info", "indexes", problem)

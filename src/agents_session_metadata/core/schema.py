"""Creates missing tables, indexes and triggers, and spells the SQL that creates and drops all."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from typing import Any, TypeAlias

from sqlalchemy import (
    Column,
    Connection,
    DDLElement,
    Index,
    MetaData,
    Table,
    func,
    inspect,
    literal_column,
    select,
)
from sqlalchemy import Dialect as SADialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable, ExecutableDDLElement

from agents_session_metadata.dialects import connected_name, dialect_of, offline
from agents_session_metadata.dialects._dialect import Dialect, Existing
from agents_session_metadata.errors import TablesMissingError
from agents_session_metadata.types import TableSize

from .definitions import (
    CORE,
    CREATE_TYPES,
    SESSIONS,
    ColumnTypes,
    CreateTrigger,
    DropTrigger,
    TableNames,
    derived_name,
    name_beside,
)
from .obsolete import obsolete
from .tables import SessionTables, build_tables, create_tables

MissingElement: TypeAlias = "CreateTable | AddColumn | CreateIndex | CreateTrigger"


def existing_names(
    connection: Connection, tables: SessionTables, *, parts: bool = False
) -> Existing:
    """On SQLite, the names of triggers are included."""
    names = [table.name for table in _every_table(tables)]
    dialect = dialect_of(connection.dialect)
    return dialect.existing(connection, tables.sessions, names, parts=parts)


def table_sizes(connection: Connection, tables: SessionTables) -> list[TableSize]:
    """Returns the sizes of the tables that exist."""
    dialect, existing = dialect_of(connection.dialect), existing_names(connection, tables)
    sizes = []
    for table in _every_table(tables):
        if table.name in existing:
            count: Any = select(func.count()).select_from(table)
            rows = int(connection.execute(count).scalar_one())
            sizes.append(TableSize(table.name, rows, dialect.table_bytes(connection, table)))
    return sizes


def _every_table(tables: SessionTables) -> Iterator[Table]:
    for group in tables.groups:
        yield from (*group.tables, *group.virtual)


class AddColumn(DDLElement):
    """A statement that adds a nullable column to a table that exists."""

    def __init__(self, column: Column[Any]) -> None:
        self.column = column


@compiles(AddColumn)
def _add_column(add: AddColumn, compiler: Any, **_: Any) -> str:
    table = name_beside(add.column.table, add.column.table.name, compiler)
    return f"ALTER TABLE {table} ADD COLUMN {compiler.get_column_specification(add.column)}"


def missing_elements(
    dialect: Dialect, tables: SessionTables, group: str, existing: Existing
) -> list[MissingElement]:
    """Returns the statements that create what a group lacks, in order.

    Tables change by addition: only nullable columns and indexes are added, and nothing is added to
    the SDK's tables. A column that must not be NULL is missing only if a table was altered by hand.
    """
    wanted = tables.group(group)
    elements: list[MissingElement] = []
    for table in wanted.tables:
        if table.name not in existing:
            elements += table_elements(table, dialect, if_not_exists=True)
        elif table not in (tables.sessions, tables.messages):
            columns = missing_columns(table, existing)
            elements += map(AddColumn, columns)
            elements += _missing_indexes(
                table, existing[table.name] | {each.name for each in columns}
            )
    if dialect.uses_triggers:
        elements += [trigger for trigger in wanted.triggers if trigger.name not in existing]
    return elements


def missing_columns(table: Table, existing: Existing) -> list[Column[Any]]:
    """Returns the nullable columns that a table lacks, if it exists."""
    found = existing.get(table.name)
    if found is None:
        return []
    return [column for column in table.c if column.nullable and column.name not in found]


def _missing_indexes(table: Table, found: Container[str]) -> Iterator[CreateIndex]:
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        has_columns = all(column.name in found for column in index.columns)
        if has_columns and str(index.name).lower() not in found:
            yield CreateIndex(index)


def missing_name(element: MissingElement) -> str | None:
    """Returns what a feature lacks without an element: everything but an index is needed."""
    if isinstance(element, CreateIndex):
        return None
    if isinstance(element, AddColumn):
        return f"{element.column.table.name}.{element.column.name}"
    if isinstance(element, CreateTrigger):
        return element.name
    return str(element.element.name)


def foreign_table(tables: SessionTables, existing: Existing) -> str | None:
    """Returns the problem if another program has a table of the metadata table's name.

    `existing` includes the columns.
    """
    name = tables.metadata.name
    if "search_key" in existing.get(name, {"search_key"}):
        return None
    return (
        f"table {name} has no column search_key: it belongs to another program, such as the code "
        "of openai-agents PR #1939; rename it and copy its rows, as the page guide/moving.md of "
        "the documentation shows"
    )


def require_own_tables(connection: Connection, tables: SessionTables, existing: Existing) -> None:
    """Raises an error if the metadata table is another program's, or has rows without sessions.

    Creating an empty sessions table would hide that a name is wrong.
    """
    sessions, metadata = tables.sessions.name, tables.metadata.name
    foreign = foreign_table(tables, existing)
    if foreign is not None:
        raise TablesMissingError([f"{metadata}.search_key"], foreign)
    if sessions in existing or metadata not in existing:
        return
    first: Any = select(literal_column("1")).select_from(tables.metadata).limit(1)
    if connection.execute(first).first() is not None:
        problem = (
            f"missing from the database: {sessions}, although {metadata} has rows; it was renamed "
            "or dropped, or its name is misspelled"
        )
        raise TablesMissingError([sessions], problem)


def create_missing(connection: Connection, names: TableNames, group: str = CORE) -> None:
    """Raises a DBAPIError if another process creates something first; then it must be retried."""
    dialect = dialect_of(connection.dialect)
    dialect.begin_writing(connection)
    # Again: on SQLite, another process may have created something before the transaction began.
    existing = existing_names(connection, create_tables(names), parts=True)
    tables = tables_beside(connection, names, existing)
    with dialect.brief_waits(connection):
        for element in missing_elements(dialect, tables, group, existing):
            connection.execute(element)


def tables_beside(
    connection: Connection, names: TableNames, existing: Container[str]
) -> SessionTables:
    """Returns the tables to create, whose columns fit the tables of the SDK that exist."""
    tables = create_tables(names)
    if names.sessions not in existing:
        return tables
    types = types_beside(connection, tables.sessions)
    if names.messages in existing:
        item_id = dialect_of(connection.dialect).item_id(connection, tables.messages)
        types = types._replace(item_id=item_id)
    return build_tables(MetaData(), names, types)


def table_elements(
    table: Table, dialect: Dialect, *, if_not_exists: bool = False
) -> list[CreateTable | CreateIndex]:
    """With a sessions table, its index on `updated_at` is created."""
    if SESSIONS in table.info:
        table = time_index(table, dialect).table
    if not dialect.transactional_ddl:
        return [CreateWithIndexes(table, if_not_exists=if_not_exists)]
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    create = [CreateIndex(index, if_not_exists=if_not_exists) for index in indexes]
    return [CreateTable(table, if_not_exists=if_not_exists), *create]


def types_beside(connection: Connection, sessions: Table) -> ColumnTypes:
    dialect = dialect_of(connection.dialect)
    # A foreign key must have the very type and collation of what it refers to.
    parent = dialect.parent_id(connection, sessions)
    return CREATE_TYPES._replace(session_id=parent, own_id=dialect.own_id(parent))


class SDKIndex:
    """An SQL index on a table of the SDK. The tables of `session_tables` do not have it."""

    def __init__(self, table: Table, suffix: str, columns: Sequence[str]) -> None:
        self.name: str = derived_name(table.name, suffix)
        self.columns: tuple[str, ...] = tuple(columns)
        self.table: Table = table.to_metadata(MetaData())
        """A copy of the table that has the index."""
        self._index = Index(self.name, *(self.table.c[name] for name in columns))

    def exists(self, connection: Connection) -> bool:
        schema = connection.schema_for_object(self.table)
        return inspect(connection).has_index(self.table.name, self.name, schema)

    def change(self, connection: Connection, *, exists: bool) -> bool:
        """Creates or drops the index. Returns whether that was necessary."""
        dialect = dialect_of(connection.dialect)
        dialect.begin_writing(connection)
        if self.exists(connection) == exists:
            return False
        with dialect.brief_waits(connection):
            (self._index.create if exists else self._index.drop)(connection)
        return True


def time_index(sessions: Table, dialect: Dialect) -> SDKIndex:
    """The index on the time of activity, by which `query.walks` reads pages."""
    # InnoDB adds the primary key by itself. PostgreSQL has no room for the longest ids.
    more = ["session_id"] if dialect.indexes_ids else []
    return SDKIndex(sessions, "_updated_at_idx", ["updated_at", *more])


class CreateWithIndexes(CreateTable):
    """Creates a table and its indexes in one statement.

    Once there is a table that refers to the sessions, MySQL opens it for each write to a session. A
    separate CREATE INDEX would then wait for writers that wait for a writer that waits for it,
    which the server does not detect as a deadlock.
    """


@compiles(CreateWithIndexes)
def _create_with_indexes(create: CreateWithIndexes, compiler: Any, **options: Any) -> str:
    text: str = compiler.visit_create_table(create, **options)
    body, end, rest = text.rpartition("\n)")
    on_table = f" ON {compiler.preparer.format_table(create.element)} "
    for index in sorted(create.element.indexes, key=lambda index: str(index.name)):
        head, _, columns = compiler.process(CreateIndex(index)).partition(on_table)
        body += f", \n\t{head.removeprefix('CREATE ')} {columns}"
    return body + end + rest


def create_statements(dialect: str, names: TableNames) -> list[str]:
    """Includes the tables of optional features. Statements do not end with a semicolon."""
    sa_dialect, tables = offline(dialect), create_tables(names)
    ways = dialect_of(sa_dialect)
    elements: list[Any] = []
    for group in tables.groups:
        for table in group.tables:
            elements += table_elements(table, ways, if_not_exists=True)
        if ways.uses_triggers:
            elements += group.triggers
    return [as_text(element, sa_dialect) for element in elements]


def upgrade_statements(connection: Connection, names: TableNames) -> list[str]:
    """Returns what of `create_statements` a database lacks, and columns that its tables lack."""
    dialect, tables = dialect_of(connection.dialect), create_tables(names)
    existing = existing_names(connection, tables, parts=True)
    require_own_tables(connection, tables, existing)
    tables = tables_beside(connection, names, existing)
    sa_dialect = offline(connected_name(connection.dialect))
    return [
        as_text(element, sa_dialect)
        for group in tables.groups
        for element in missing_elements(dialect, tables, group.name, existing)
    ]


def drop_statements(dialect: str, names: TableNames, *, everything: bool = False) -> list[str]:
    """With `everything`, also drops the SDK's own tables. Triggers are dropped first."""
    sa_dialect, tables = offline(dialect), create_tables(names)
    elements: list[ExecutableDDLElement] = [*obsolete(tables)]
    for group in tables.groups:
        if dialect_of(sa_dialect).uses_triggers:
            elements += [DropTrigger(each.table, each.name) for each in group.triggers]
            elements += [DropTable(table, if_exists=True) for table in group.virtual]
    every_table = [table for group in tables.groups for table in group.tables]
    kept = () if everything else (tables.sessions, tables.messages)
    elements += [
        DropTable(table, if_exists=True) for table in reversed(every_table) if table not in kept
    ]
    return [as_text(element, sa_dialect) for element in elements]


def as_text(element: Any, sa_dialect: SADialect, **options: Any) -> str:
    text = str(element.compile(dialect=sa_dialect, **options)).strip()
    return re.sub(r" +\n", "\n", text).expandtabs(4)

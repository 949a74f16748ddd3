"""Creates missing tables, indexes and triggers, and spells the SQL that creates and drops all."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from typing import Any

from sqlalchemy import (
    Connection,
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

from agents_session_metadata.dialects import dialect_of, offline
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.types import TableSize

from .definitions import (
    CORE,
    CREATE_TYPES,
    ColumnTypes,
    CreateTrigger,
    TableGroup,
    derived_name,
    dropping,
)
from .tables import SessionTables, TableNames, build_tables, create_tables, table_names


def existing_names(connection: Connection, tables: SessionTables) -> set[str]:
    """On SQLite, the names of triggers are included."""
    names = [table.name for table in _every_table(tables)]
    return dialect_of(connection.dialect).existing(connection, tables.sessions, names)


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


def missing_names(connection: Connection, group: TableGroup, existing: Container[str]) -> list[str]:
    missing = [table.name for table in group.tables if table.name not in existing]
    if dialect_of(connection.dialect).uses_triggers:
        missing += [each.name for each in group.triggers if not _exists(each, existing)]
    return missing


def _exists(trigger: CreateTrigger, existing: Container[str]) -> bool:
    return trigger.name in existing or trigger.former_names[0] in existing


def lost_sessions(connection: Connection, tables: SessionTables, existing: Container[str]) -> bool:
    """Returns True if the sessions table is missing although there is metadata.

    Creating an empty sessions table would hide that a name is wrong.
    """
    if tables.sessions.name in existing or tables.metadata.name not in existing:
        return False
    first: Any = select(literal_column("1")).select_from(tables.metadata).limit(1)
    return connection.execute(first).first() is not None


def create_missing(
    connection: Connection, names: TableNames, existing: Container[str], group: str = CORE
) -> None:
    """Raises a DBAPIError if another process creates something first; then it must be retried."""
    dialect = dialect_of(connection.dialect)
    tables = create_tables(names)
    if names.sessions in existing:
        types = types_beside(connection, tables.sessions)
        if names.messages in existing:
            types = types._replace(item_id=dialect.item_id(connection, tables.messages))
        tables = build_tables(MetaData(), names, types)
    dialect.begin_writing(connection)
    wanted = tables.group(group)
    for table in wanted.tables:
        if table.name not in existing:
            for element in table_elements(table, dialect, if_not_exists=True):
                connection.execute(element)
    if dialect.uses_triggers:
        for trigger in wanted.triggers:
            if not _exists(trigger, existing):
                connection.execute(trigger)


def table_elements(
    table: Table, dialect: Dialect, *, if_not_exists: bool = False
) -> list[CreateTable | CreateIndex]:
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
        copy = table.to_metadata(MetaData())
        self._index = Index(derived_name(table.name, suffix), *(copy.c[name] for name in columns))
        self._place = str(self._index.name), copy

    def exists(self, connection: Connection) -> bool:
        name, table = self._place
        schema = connection.schema_for_object(table)
        return inspect(connection).has_index(table.name, name, schema)

    def change(self, connection: Connection, *, exists: bool) -> bool:
        """Creates or drops the index. Returns whether that was necessary."""
        dialect = dialect_of(connection.dialect)
        dialect.begin_writing(connection)
        if self.exists(connection) == exists:
            return False
        with dialect.brief_waits(connection):
            (self._index.create if exists else self._index.drop)(connection)
        return True


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


def create_statements(dialect: str, names: TableNames | None = None) -> list[str]:
    """Includes the tables of optional features. Statements do not end with a semicolon."""
    sa_dialect, tables = offline(dialect), create_tables(names or table_names())
    ways = dialect_of(sa_dialect)
    elements: list[Any] = []
    for group in tables.groups:
        for table in group.tables:
            elements += table_elements(table, ways, if_not_exists=True)
        if ways.uses_triggers:
            elements += group.triggers
    return [as_text(element, sa_dialect) for element in elements]


def drop_statements(
    dialect: str, names: TableNames | None = None, *, everything: bool = False
) -> list[str]:
    """With `everything`, also drops the SDK's own tables. Triggers are dropped first."""
    sa_dialect, tables = offline(dialect), create_tables(names or table_names())
    elements: list[ExecutableDDLElement] = []
    for group in tables.groups:
        elements += group.cleanup
        if dialect_of(sa_dialect).uses_triggers:
            elements += [drop for trigger in group.triggers for drop in dropping(trigger)]
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

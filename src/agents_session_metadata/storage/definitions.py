"""What tables are defined with: names, column types, triggers, and groups of tables.

The tables of the metadata itself are the group "core". Every other group belongs to one optional
feature: its tables are created when that feature is first used, and nothing else needs them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    DDLElement,
    ForeignKeyConstraint,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import NullType, TypeEngine

from agents_session_metadata.dialects.sqltypes import (
    TABLE_OPTIONS,
    LongBytes,
    LongText,
    MetadataKey,
    PlainBytes,
    SearchBytes,
    SessionId,
    StoredTime,
)
from agents_session_metadata.types import MAX_KEY_LENGTH

LONGEST_NAME = 63
"""Bytes of an identifier that every supported database keeps."""

CORE = "core"
"""The name of the group of tables that everything needs."""


class TableNames(NamedTuple):
    """The names of one set of tables; those of the other groups follow from `metadata`."""

    sessions: str
    messages: str
    metadata: str
    elements: str


class ColumnTypes(NamedTuple):
    """The column types that differ between databases.

    Attributes:
        session_id: The ids in the SDK's tables.
        own_id: The ids in our tables.
        key: Metadata keys.
        text: Text of any length.
        search: The indexed part of a search key.
        rest: What a search key has beyond that.
        stored_time: A time of the SDK's tables, in the form that `Dialect.stored_time` gives it.
    """

    session_id: TypeEngine[Any]
    own_id: TypeEngine[Any]
    key: TypeEngine[Any]
    text: TypeEngine[Any]
    search: TypeEngine[Any]
    rest: TypeEngine[Any]
    stored_time: TypeEngine[Any]


QUERY_TYPES = ColumnTypes(
    String(),
    String(),
    String(MAX_KEY_LENGTH),
    Text(),
    PlainBytes(),
    PlainBytes(),
    NullType(),
)
"""Plain types: a statement compares by what the columns are in the database."""


def table_options(types: ColumnTypes) -> dict[str, Any]:
    """Options for CREATE TABLE; queries need none, and SQLAlchemy would import every dialect."""
    return {} if types is QUERY_TYPES else TABLE_OPTIONS


def by_code_point(types: ColumnTypes) -> dict[str, Any]:
    """Options for an index whose ids sort by code point, also if those of the SDK do not."""
    return {} if types is QUERY_TYPES else {"postgresql_ops": {"session_id": 'COLLATE "C"'}}


CREATE_TYPES = ColumnTypes(
    SessionId(),
    SessionId(),
    MetadataKey(),
    LongText(),
    SearchBytes(),
    LongBytes(),
    StoredTime(),
)
"""The types that CREATE TABLE spells out."""


def derived_name(table: str, suffix: str) -> str:
    """A name made from a table's; one too long for a database is cut and given a hash."""
    name = table + suffix
    if len(name.encode()) <= LONGEST_NAME:
        return name
    mark = f"_{hashlib.sha256(table.encode()).hexdigest()[:8]}{suffix}"
    room = LONGEST_NAME - len(mark.encode())
    return table.encode()[:room].decode(errors="ignore") + mark


def session_link(
    table: str, sessions: Table, ondelete: Literal["CASCADE", "SET NULL"] = "CASCADE"
) -> ForeignKeyConstraint:
    """The foreign key from the column `session_id` of a table to the sessions table."""
    return ForeignKeyConstraint(
        ["session_id"],
        [sessions.c.session_id],
        name=derived_name(table, "_session_fk"),
        ondelete=ondelete,
    )


class CreateTrigger(DDLElement):
    """A statement that creates a trigger on SQLite; pass it to `execute`.

    When a row is deleted, the trigger deletes the rows of another table that have the same values
    in some columns. With `keeps_rows`, it sets these columns to NULL instead.

    Args:
        table: The table whose rows are deleted.
        target: The table whose rows follow.
        columns: The columns that both tables have.
        keeps_rows: Whether to set the columns to NULL instead of deleting the rows.
    """

    def __init__(
        self, table: Table, target: Table, columns: tuple[str, ...], *, keeps_rows: bool = False
    ) -> None:
        self.table = table
        self.emptied = target
        quoted = [_quoted(column) for column in columns]
        same = " AND ".join(f"{column} = OLD.{column}" for column in quoted)
        # The tables stand without a schema: SQLite looks for them in the trigger's own.
        name = _quoted(target.name)
        verb = f"DELETE FROM {name}"  # noqa: S608  # a name
        if keeps_rows:
            verb = f"UPDATE {name} SET {', '.join(f'{column} = NULL' for column in quoted)}"  # noqa: S608  # names
        self.text: str = f"AFTER DELETE ON {_quoted(table.name)} BEGIN {verb} WHERE {same}; END"
        mark = hashlib.sha256(self.text.encode()).hexdigest()[:8]
        self.name: str = derived_name(target.name, f"_after_delete_{mark}")
        self.former_names: tuple[str, ...] = tuple(
            derived_name(target.name, f"_after_{event}") for event in ("delete", "insert", "update")
        )
        """The names that version 0.1 gave to its triggers. The first one does the same as this."""

    def exists_in(self, names: Container[str]) -> bool:
        """Whether a database with triggers of these names needs this one no more."""
        return self.name in names or self.former_names[0] in names


class DropTrigger(DDLElement):
    """Drops a trigger of a table if it exists."""

    def __init__(self, table: Table, name: str) -> None:
        self.table = table
        self.name = name


def dropping(trigger: CreateTrigger) -> Iterator[DropTrigger]:
    """The statements that drop a trigger and those of version 0.1."""
    for name in (trigger.name, *trigger.former_names):
        yield DropTrigger(trigger.table, name)


def ending_with_session(
    sessions: Table, target: Table, *, keeps_rows: bool = False
) -> CreateTrigger:
    """The trigger that lets rows end with their session, or stay without its id."""
    return CreateTrigger(sessions, target, ("session_id",), keeps_rows=keeps_rows)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@compiles(CreateTrigger)
def _create_trigger(trigger: CreateTrigger, compiler: Any, **_: Any) -> str:
    name = name_beside(trigger.table, trigger.name, compiler)
    return f"CREATE TRIGGER IF NOT EXISTS {name} {trigger.text}"


@compiles(DropTrigger)
def _drop_trigger(drop: DropTrigger, compiler: Any, **_: Any) -> str:
    return f"DROP TRIGGER IF EXISTS {name_beside(drop.table, drop.name, compiler)}"


def name_beside(table: Table, plain: str, compiler: Any) -> str:
    """A name as SQL spells it, in the schema where a table is."""
    # DDL of one's own does not pass through schema_translate_map.
    name: str = compiler.preparer.quote(plain)
    translated = (compiler.schema_translate_map or {}).get(table.schema)
    schema = translated or table.schema
    return f"{compiler.preparer.quote(schema)}.{name}" if schema else name


@dataclass(frozen=True, eq=False)
class TableGroup:
    """The tables of one feature, as SQLAlchemy objects.

    Attributes:
        name: The name of the group, such as `"core"`.
        tables: The tables, each after the tables that it refers to.
        triggers: The triggers that SQLite needs in addition to the tables. Pass each to `execute`;
            to drop it, use its `name`.
        cleanup: Statements that drop other objects that the feature creates, on any database. Run
            them before you drop the tables. They do nothing if there is nothing to drop.
    """

    name: str
    tables: tuple[Table, ...]
    triggers: tuple[CreateTrigger, ...] = field(default=(), repr=False)
    cleanup: tuple[Any, ...] = field(default=(), repr=False)

    def __getitem__(self, suffix: str) -> Table:
        """The table whose name ends with `suffix`."""
        return next(table for table in self.tables if table.name.endswith(suffix))


@dataclass(frozen=True)
class GroupDefinition:
    """How the tables of an optional feature are defined.

    Attributes:
        name: The name of the group.
        suffixes: The ends of the tables' names, which begin with the metadata table's.
        define: Puts the tables into a `MetaData`, beside the core tables, under these names.
    """

    name: str
    suffixes: tuple[str, ...]
    define: Callable[[MetaData, TableGroup, tuple[str, ...], ColumnTypes], TableGroup]

    def names(self, metadata_table: str) -> tuple[str, ...]:
        """The names of the tables."""
        return tuple(derived_name(metadata_table, suffix) for suffix in self.suffixes)

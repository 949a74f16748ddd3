"""Defines names, column types, triggers and groups of tables.

The tables of the metadata itself are the group "core". Every other group belongs to one optional
feature: its tables are created when that feature is first used, and nothing else needs them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    DDLElement,
    ForeignKeyConstraint,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects.sqltypes import (
    TABLE_OPTIONS,
    LongBytes,
    LongText,
    MetadataKey,
    PlainBytes,
    RowId,
    SearchBytes,
    SessionId,
)
from agents_session_metadata.types import MAX_KEY_LENGTH

LONGEST_NAME = 63
"""Bytes of an identifier that every supported database keeps."""

CORE = "core"

SESSIONS = "agents_session_metadata.sessions"
"""The key in `Table.info` of the sessions table."""


class FeatureTables:
    """The tables of one optional feature: the base class of `features.Feature`."""

    name: ClassVar[str]
    """The name of its group of tables."""
    suffixes: ClassVar[tuple[str, ...]]
    """The ends of the names of its tables, which begin with that of the metadata table."""

    def define(self, make: TableMaker) -> None:
        raise NotImplementedError

    def names(self, metadata_table: str) -> tuple[str, ...]:
        return tuple(derived_name(metadata_table, suffix) for suffix in self.suffixes)


class TableNames(NamedTuple):
    """The names of the four tables of the core, and the features that have tables beside them."""

    sessions: str
    messages: str
    metadata: str
    elements: str
    features: tuple[FeatureTables, ...]


class ColumnTypes(NamedTuple):
    """The column types that differ between databases.

    `session_id` is for ids in the SDK's tables, `own_id` for ids in ours. `rest` is for the part of
    a search key that is not in the index. `item_id` is for the ids of items.
    """

    session_id: TypeEngine[Any]
    own_id: TypeEngine[Any]
    key: TypeEngine[Any]
    text: TypeEngine[Any]
    search: TypeEngine[Any]
    rest: TypeEngine[Any]
    item_id: TypeEngine[Any]


QUERY_TYPES = ColumnTypes(
    String(),
    String(),
    String(MAX_KEY_LENGTH),
    Text(),
    PlainBytes(),
    PlainBytes(),
    BigInteger(),
)
"""Plain types: statements compare by the types of the columns in the database."""


def table_options(types: ColumnTypes) -> dict[str, Any]:
    """Queries need no options, for which SQLAlchemy would import every dialect."""
    return {} if types is QUERY_TYPES else TABLE_OPTIONS


CREATE_TYPES = ColumnTypes(
    SessionId(),
    SessionId(),
    MetadataKey(),
    LongText(),
    SearchBytes(),
    LongBytes(),
    Integer(),
)


def derived_name(table: str, suffix: str) -> str:
    """A name that is too long for a database is cut and gets a hash."""
    name = table + suffix
    if len(name.encode()) <= LONGEST_NAME:
        return name
    mark = f"_{hashlib.sha256(table.encode()).hexdigest()[:8]}{suffix}"
    room = LONGEST_NAME - len(mark.encode())
    return table.encode()[:room].decode(errors="ignore") + mark


def session_link(
    table: str, sessions: Table, ondelete: Literal["CASCADE", "SET NULL"] = "CASCADE"
) -> ForeignKeyConstraint:
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
        """The table whose rows are deleted."""
        self.emptied = target
        """The table whose rows follow."""
        quoted = [_quoted(column) for column in columns]
        same = " AND ".join(f"{column} = OLD.{column}" for column in quoted)
        # The tables stand without a schema: SQLite looks for them in the trigger's own.
        name = _quoted(target.name)
        verb = f"DELETE FROM {name}"  # noqa: S608  # a name
        if keeps_rows:
            nulls = ", ".join(f"{column} = NULL" for column in quoted)
            verb = f"UPDATE {name} SET {nulls}"  # noqa: S608  # names
        self.body: str = f"AFTER DELETE ON {_quoted(table.name)} BEGIN {verb} WHERE {same}; END"
        """What follows the name of the trigger in the statement."""
        mark = hashlib.sha256(self.body.encode()).hexdigest()[:8]
        self.name: str = derived_name(target.name, f"_after_delete_{mark}")
        """The name of the trigger, which ends in a hash of its body."""


class DropTrigger(DDLElement):
    """Drops a trigger of a table if it exists, on any database."""

    def __init__(self, table: Table, name: str) -> None:
        self.table = table
        self.name = name


def ending_with_session(
    sessions: Table, target: Table, *, keeps_rows: bool = False
) -> CreateTrigger:
    """Deletes rows with their session, or sets their session id to NULL."""
    return CreateTrigger(sessions, target, ("session_id",), keeps_rows=keeps_rows)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@compiles(CreateTrigger)
def _create_trigger(trigger: CreateTrigger, compiler: Any, **_: Any) -> str:
    name = name_beside(trigger.table, trigger.name, compiler)
    return f"CREATE TRIGGER IF NOT EXISTS {name} {trigger.body}"


@compiles(DropTrigger)
def _drop_trigger(drop: DropTrigger, compiler: Any, **_: Any) -> str:
    name = compiler.preparer.quote(drop.name)
    schema = name_beside(drop.table, drop.name, compiler).removesuffix(name)
    return dialect_of(compiler.dialect).drop_trigger(schema, name)


def name_beside(table: Table, plain: str, compiler: Any) -> str:
    """Returns a quoted name in the schema of a table."""
    # DDL of one's own does not pass through schema_translate_map.
    name: str = compiler.preparer.quote(plain)
    translated = (compiler.schema_translate_map or {}).get(table.schema)
    schema = translated or table.schema
    return f"{compiler.preparer.quote(schema)}.{name}" if schema else name


@dataclass(frozen=True, eq=False)
class TableGroup:
    """The tables of one feature, as SQLAlchemy objects.

    A later version can add nullable columns and indexes, which are then created where they are
    missing. It adds tables as a group of their own: a group has all of its tables, or none.

    Attributes:
        name: The name of the group, such as `"core"`.
        tables: The tables, each after the tables that it refers to.
        triggers: The triggers that SQLite needs in addition to the tables. Pass each to `execute`;
            to drop it, use its `name`.
        virtual: Tables that the feature can create on SQLite in addition. Drop them if they exist.
    """

    name: str
    tables: tuple[Table, ...]
    triggers: tuple[CreateTrigger, ...] = field(default=(), repr=False)
    virtual: tuple[Table, ...] = field(default=(), repr=False)

    def __getitem__(self, suffix: str) -> Table:
        """The table whose name ends with `suffix`."""
        return next(table for table in self.tables if table.name.endswith(suffix))


@dataclass
class TableMaker:
    """Makes the tables of one feature, or takes those that the MetaData has already.

    Attributes:
        names: The names of the tables, in the order of the feature's suffixes.
        core: The sessions, messages, metadata and elements.
    """

    metadata: MetaData
    core: tuple[Table, ...]
    types: ColumnTypes
    names: tuple[str, ...]
    tables: list[Table] = field(default_factory=list)
    triggers: list[CreateTrigger] = field(default_factory=list)
    virtual: list[Table] = field(default_factory=list)

    def group(self, name: str) -> TableGroup:
        parts: list[list[Any]] = [self.tables, self.triggers, self.virtual]
        return TableGroup(name, *map(tuple, parts))

    def table(self, name: str, *elements: SchemaItem, **options: Any) -> Table:
        options |= table_options(self.types)
        table = Table(name, self.metadata, *elements, **options, keep_existing=True)
        self.tables.append(table)
        return table

    def owned(self, name: str, *elements: SchemaItem) -> Table:
        """A table whose rows belong to a session and end with it."""
        own_id = Column("session_id", self.types.own_id, primary_key=True)
        table = self.table(name, own_id, *elements, session_link(name, self.core[0]))
        self.triggers.append(ending_with_session(self.core[0], table))
        return table

    def kept(self, name: str, *elements: SchemaItem) -> Table:
        """A table whose rows outlive their session, which they then do not name any more."""
        table = self.table(
            name,
            Column("id", RowId, primary_key=True, autoincrement=True),
            Column("session_id", self.types.own_id),
            *elements,
            session_link(name, self.core[0], "SET NULL"),
            # A constraint, not an index: MySQL's foreign key needs it as long as the table exists.
            UniqueConstraint("session_id", "id", name=derived_name(name, "_session_key")),
        )
        self.triggers.append(ending_with_session(self.core[0], table, keeps_rows=True))
        return table

"""What tables are defined with: names, column types, triggers, and groups of tables.

The tables of the metadata itself are the group "core". Every other group belongs to one optional
feature: its tables are created when that feature is first used, and nothing else needs them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
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

    For each row that an event touches in one table, the trigger deletes the rows of another table
    that have the same values in some columns. With `keeps_rows`, it sets these columns to NULL
    instead. If the values change, the rows get the new ones.

    A session row whose `created_at` lies in the past is not a new session: a backup restores it. So
    the trigger on insertions leaves the rows of such a session, which may come before it.

    Args:
        name: The name of the trigger.
        event: `INSERT`, `UPDATE` or `DELETE`.
        table: The table whose rows the event touches.
        target: The table whose rows are deleted.
        columns: The columns that both tables have.
        parts: Tables with the same columns that follow from the target, and end with its rows.
        keeps_rows: Whether to set the columns to NULL instead of deleting the rows.
        of_earlier_version: Whether to create it as version 0.1 did: every session that is inserted
            is a new one, and the rows of an id that changes are deleted.
    """

    def __init__(
        self,
        name: str,
        event: str,
        table: Table,
        target: Table,
        columns: tuple[str, ...],
        *,
        parts: tuple[Table, ...] = (),
        keeps_rows: bool = False,
        of_earlier_version: bool = False,
    ) -> None:
        self.name = name
        self.event = event
        self.table = table
        self.emptied = target
        self.columns = columns
        self.parts = parts
        self.keeps_rows = keeps_rows
        self.of_earlier_version = of_earlier_version

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables without which the events fail."""
        parts = self.parts if self.event == "UPDATE" else ()
        return (self.table, self.emptied, *parts)

    def earlier(self) -> CreateTrigger:
        """The trigger as version 0.1 created it."""
        return CreateTrigger(
            self.name,
            self.event,
            self.table,
            self.emptied,
            self.columns,
            keeps_rows=self.keeps_rows,
            of_earlier_version=True,
        )


class DropTrigger(DDLElement):
    """Drops a trigger, if it is there."""

    def __init__(self, trigger: CreateTrigger) -> None:
        self.trigger = trigger


def deleting_trigger(event: str, table: Table, target: Table, *columns: str) -> CreateTrigger:
    """A trigger that deletes rows of `target` with the same values in `columns`."""
    name = derived_name(target.name, f"_after_{event.lower()}")
    return CreateTrigger(name, event, table, target, columns)


def following_session(
    sessions: Table, target: Table, *parts: Table, keeps_rows: bool = False
) -> tuple[CreateTrigger, ...]:
    """The triggers that let rows end with their session, and follow it when its id changes.

    A `REPLACE` fires no trigger on deletes, but that on insertions.

    Args:
        sessions: The sessions table.
        target: The table of the rows.
        parts: Tables that follow from the target, and end with its rows.
        keeps_rows: Whether the rows stay without an id when the session ends.
    """
    return tuple(
        CreateTrigger(
            derived_name(target.name, f"_after_{event.lower()}"),
            event,
            sessions,
            target,
            ("session_id",),
            parts=parts,
            keeps_rows=keeps_rows,
        )
        for event in ("DELETE", "INSERT", "UPDATE")
    )


@compiles(CreateTrigger)
def _create_trigger(trigger: CreateTrigger, compiler: Any, **_: Any) -> str:
    quote = compiler.preparer.quote
    columns = [quote(column) for column in trigger.columns]

    def same(row: str) -> str:
        return " AND ".join(f"{column} = {row}.{column}" for column in columns)

    def setting(table: Table, value: str) -> str:
        values = ", ".join(f"{column} = {value.format(column)}" for column in columns)
        return f"UPDATE {quote(table.name)} SET {values}"  # noqa: S608  # names

    def end(table: Table, condition: str) -> str:
        verb = f"DELETE FROM {quote(table.name)}"  # noqa: S608  # a name
        return f"{setting(table, 'NULL') if trigger.keeps_rows else verb} WHERE {condition}"

    # The tables stand without a schema: SQLite looks for them in the trigger's own.
    target, event, condition = trigger.emptied, trigger.event, ""
    if event == "UPDATE":
        event += f" OF {', '.join(columns)}"
        # An upsert may write the id that is there already.
        changes = " OR ".join(f"OLD.{column} <> NEW.{column}" for column in columns)
        condition = f" WHEN {changes}"
        statements = []
        for table in (target, *trigger.parts):
            move = f"{setting(table, 'NEW.{}')} WHERE {same('OLD')}"
            statements += [end(table, same("NEW")), move]
        if trigger.of_earlier_version:
            statements = [end(target, f"{same('OLD')} OR {same('NEW')}")]
    elif event == "INSERT":
        condition = "" if trigger.of_earlier_version else _IS_NEW
        statements = [end(target, same("NEW"))]
    else:
        statements = [end(target, same("OLD"))]
    return (
        f"CREATE TRIGGER IF NOT EXISTS {name_beside(trigger.table, trigger.name, compiler)}"
        f" AFTER {event} ON {quote(trigger.table.name)}{condition} BEGIN"
        f" {'; '.join(statements)}; END"
    )


_IS_NEW = " WHEN NEW.created_at >= CURRENT_TIMESTAMP"


@compiles(DropTrigger)
def _drop_trigger(drop: DropTrigger, compiler: Any, **_: Any) -> str:
    return f"DROP TRIGGER IF EXISTS {name_beside(drop.trigger.table, drop.trigger.name, compiler)}"


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
        restarts: By table, a statement to run before the table is created again: the index that
            fills it is then incomplete, and `create_index` continues it.
    """

    name: str
    tables: tuple[Table, ...]
    triggers: tuple[CreateTrigger, ...] = field(default=(), repr=False)
    cleanup: tuple[Any, ...] = field(default=(), repr=False)
    restarts: Mapping[Table, Any] = field(default_factory=dict, repr=False)

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

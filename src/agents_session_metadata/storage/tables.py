"""Tables, indexes and triggers.

| table | one row |
|---|---|
| `agent_sessions`, `agent_messages` | the SDK's own; never altered, made where missing |
| `agent_sessions_metadata` | a key of a session: its JSON text and its search key |
| `agent_sessions_metadata_elements` | a distinct scalar element of a list |

Metadata goes with its session by foreign keys. SQLite does not enforce them as the SDK connects, so
triggers do it there, for every writer. Two more see to what goes round the first: a new session's
metadata is emptied, after a `REPLACE`, and that of both ids when an id is changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    TIMESTAMP,
    Column,
    Connection,
    DDLElement,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    event,
    inspect,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects.sqltypes import (
    TABLE_OPTIONS,
    LongBytes,
    LongText,
    MetadataKey,
    SearchBytes,
    SessionId,
)
from agents_session_metadata.types import MAX_KEY_LENGTH
from agents_session_metadata.values import SearchKey

_LONGEST_NAME = 63
"""Bytes of an identifier that every supported database keeps."""


class TableNames(NamedTuple):
    """The names of one set of tables."""

    sessions: str
    messages: str
    metadata: str
    elements: str


class ColumnTypes(NamedTuple):
    """The column types that differ between databases; `own_id` is for the ids in our tables."""

    session_id: TypeEngine[Any]
    own_id: TypeEngine[Any]
    key: TypeEngine[Any]
    text: TypeEngine[Any]
    search: TypeEngine[Any]
    rest: TypeEngine[Any]


QUERY_TYPES = ColumnTypes(
    String(), String(), String(MAX_KEY_LENGTH), Text(), LargeBinary(), LargeBinary()
)
"""Plain types: a statement compares by what the columns are in the database."""

CREATE_TYPES = ColumnTypes(
    SessionId(), SessionId(), MetadataKey(), LongText(), SearchBytes(), LongBytes()
)
"""The types that CREATE TABLE spells out."""


@dataclass(frozen=True, eq=False)
class SessionTables:
    """The tables of one database, as SQLAlchemy objects.

    Attributes:
        sessions: The SDK's `agent_sessions`.
        messages: The SDK's `agent_messages`.
        metadata: One row a session and key.
        elements: One row a distinct scalar element of a list.
        triggers: What SQLite needs besides: statements that create triggers, for `execute`. Their
            `name` is what to drop.
    """

    sessions: Table
    messages: Table
    metadata: Table
    elements: Table
    triggers: tuple[CreateTrigger, ...] = field(repr=False)

    @property
    def tables(self) -> tuple[Table, Table, Table, Table]:
        """The four tables, each after those that it refers to."""
        return self.sessions, self.messages, self.metadata, self.elements


class CreateTrigger(DDLElement):
    """A trigger that deletes, for each row that `event` touches in a table, the rows of another."""

    def __init__(
        self, name: str, event: str, table: Table, target: Table, columns: tuple[str, ...]
    ) -> None:
        self.name = name
        self.event = event
        self.table = table
        self.emptied = target
        self.columns = columns


_ROWS = {"DELETE": ("OLD",), "INSERT": ("NEW",), "UPDATE": ("OLD", "NEW")}
"""By event, the rows of the table that the deleted ones belong to."""


class DropTrigger(DDLElement):
    """Drops a trigger, if it is there."""

    def __init__(self, trigger: CreateTrigger) -> None:
        self.trigger = trigger


class RenameTable(DDLElement):
    """Gives a table another name, in the schema where it is."""

    def __init__(self, table: Table, name: str) -> None:
        self.table = table
        self.name = name


@compiles(CreateTrigger)
def _create_trigger(trigger: CreateTrigger, compiler: Any, **_: Any) -> str:
    quote = compiler.preparer.quote
    columns = [quote(column) for column in trigger.columns]
    same = " OR ".join(
        " AND ".join(f"{column} = {row}.{column}" for column in columns)
        for row in _ROWS[trigger.event]
    )
    event, changed = trigger.event, ""
    if event == "UPDATE":
        event += f" OF {', '.join(columns)}"
        # An upsert may write the id that is there already.
        changed = " WHEN " + " OR ".join(f"OLD.{column} <> NEW.{column}" for column in columns)
    # The tables stand without a schema: SQLite looks for them in the trigger's own.
    delete_rows = f"DELETE FROM {quote(trigger.emptied.name)} WHERE {same}"  # noqa: S608  # names
    return (
        f"CREATE TRIGGER IF NOT EXISTS {_trigger_name(trigger, compiler)}"
        f" AFTER {event} ON {quote(trigger.table.name)}{changed} BEGIN {delete_rows}; END"
    )


@compiles(DropTrigger)
def _drop_trigger(drop: DropTrigger, compiler: Any, **_: Any) -> str:
    return f"DROP TRIGGER IF EXISTS {_trigger_name(drop.trigger, compiler)}"


@compiles(RenameTable)
def _rename_table(rename: RenameTable, compiler: Any, **_: Any) -> str:
    before, after = (
        _name_beside(rename.table, name, compiler) for name in (rename.table.name, rename.name)
    )
    return f"ALTER TABLE {before} RENAME TO {after}"


def _trigger_name(trigger: CreateTrigger, compiler: Any) -> str:
    return _name_beside(trigger.table, trigger.name, compiler)


def _name_beside(table: Table, plain: str, compiler: Any) -> str:
    # DDL of one's own does not pass through schema_translate_map.
    name: str = compiler.preparer.quote(plain)
    translated = (compiler.schema_translate_map or {}).get(table.schema)
    schema = translated or table.schema
    return f"{compiler.preparer.quote(schema)}.{name}" if schema else name


def table_names(
    sessions_table: str = "agent_sessions",
    messages_table: str = "agent_messages",
    metadata_table: str | None = None,
) -> TableNames:
    """The names of a set of tables; those of ours follow from the sessions table.

    Raises:
        ValueError: If two are the same.
    """
    metadata = metadata_table or derived_name(sessions_table, "_metadata")
    names = TableNames(
        sessions_table, messages_table, metadata, derived_name(metadata, "_elements")
    )
    if len(set(names)) < len(names):
        raise ValueError(f"the tables must have different names, not {', '.join(names)}")
    return names


def derived_name(table: str, suffix: str) -> str:
    """A name made from a table's; one too long for a database is cut and given a hash."""
    name = table + suffix
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    mark = f"_{hashlib.sha256(table.encode()).hexdigest()[:8]}{suffix}"
    room = _LONGEST_NAME - len(mark.encode())
    return table.encode()[:room].decode(errors="ignore") + mark


def renamed(table: Table, suffix: str, tables: SessionTables) -> Table:
    """A copy of a table under another name, which refers to the tables that it referred to."""
    others = MetaData()
    for each in tables.tables:
        each.to_metadata(others)
    return table.to_metadata(others, name=derived_name(table.name, suffix))


def element_rows(
    session_id: str, key: str, elements: Iterable[SearchKey]
) -> Iterator[dict[str, Any]]:
    """The rows of one list's elements."""
    for position, element in enumerate(elements):
        yield {
            "session_id": session_id,
            "key": key,
            "position": position,
            "search_key": element.indexed,
            "search_rest": element.rest,
        }


@lru_cache(maxsize=256)
def query_tables(names: TableNames) -> SessionTables:
    """The tables to build statements with: one set per names and process.

    SQLAlchemy caches compiled statements by the identity of their tables.
    """
    return build_tables(MetaData(), names, QUERY_TYPES)


def session_tables(
    metadata: MetaData | None = None,
    *,
    sessions_table: str = "agent_sessions",
    messages_table: str = "agent_messages",
    metadata_table: str | None = None,
) -> SessionTables:
    """Put the tables into a `MetaData`, such as the one that Alembic compares a database with.

    `MetaData.create_all` then creates everything, SQLite's triggers included.

    Args:
        metadata: Where the tables go; a new `MetaData` by default. Calling again with the same one
            gives the same tables.
        sessions_table: Name of the SDK's sessions table.
        messages_table: Name of the SDK's messages table.
        metadata_table: Name of the metadata table; the sessions table's and `_metadata` by default.

    Returns:
        The tables.

    Raises:
        ValueError: If two of them have one name.
    """
    names = table_names(sessions_table, messages_table, metadata_table)
    return build_tables(metadata if metadata is not None else MetaData(), names, CREATE_TYPES)


def build_tables(metadata: MetaData, names: TableNames, types: ColumnTypes) -> SessionTables:
    """Define the tables in a `MetaData`, unless they are in it already."""
    if names.metadata in metadata.tables:
        sessions, messages, rows, elements = (metadata.tables[name] for name in names)
        triggers = _triggers(sessions, rows, elements)
        return SessionTables(sessions, messages, rows, elements, triggers=triggers)
    now = text("CURRENT_TIMESTAMP")
    options: dict[str, Any] = TABLE_OPTIONS
    # Rows kept in the primary key itself: one lookup instead of two, and one tree less to write.
    own_options = {**options, "sqlite_with_rowid": False}

    def time(name: str, *, aware: bool = False, onupdate: Any = None) -> Column[Any]:
        kind = TIMESTAMP(timezone=aware)
        return Column(name, kind, server_default=now, onupdate=onupdate, nullable=False)

    # These two are as SQLAlchemySession defines them, types aside.
    sessions = Table(
        names.sessions,
        metadata,
        Column("session_id", types.session_id, primary_key=True),
        time("created_at"),
        time("updated_at", onupdate=now),
        **options,
    )
    messages = Table(
        names.messages,
        metadata,
        Column("id", Integer, primary_key=True, autoincrement=True),
        Column(
            "session_id",
            types.session_id,
            ForeignKey(sessions.c.session_id, ondelete="CASCADE"),
            nullable=False,
        ),
        Column("message_data", types.text, nullable=False),
        time("created_at"),
        Index(f"idx_{names.messages}_session_time", "session_id", "created_at"),
        sqlite_autoincrement=True,
        **options,
    )
    rows = Table(
        names.metadata,
        metadata,
        Column("session_id", types.own_id, primary_key=True),
        Column("key", types.key, primary_key=True),
        Column("value", types.text, nullable=False),
        Column("search_key", types.search, nullable=False),
        Column("search_rest", types.rest, nullable=False),
        time("created_at", aware=True),
        time("updated_at", aware=True),
        ForeignKeyConstraint(
            ["session_id"],
            [sessions.c.session_id],
            name=derived_name(names.metadata, "_session_fk"),
            ondelete="CASCADE",
        ),
        Index(derived_name(names.metadata, "_search_idx"), "key", "search_key", "session_id"),
        **own_options,
    )
    elements = Table(
        names.elements,
        metadata,
        Column("session_id", types.own_id, primary_key=True),
        Column("key", types.key, primary_key=True),
        Column("position", Integer, primary_key=True, autoincrement=False),
        Column("search_key", types.search, nullable=False),
        Column("search_rest", types.rest, nullable=False),
        ForeignKeyConstraint(
            ["session_id", "key"],
            [rows.c.session_id, rows.c.key],
            name=derived_name(names.elements, "_key_fk"),
            ondelete="CASCADE",
        ),
        Index(derived_name(names.elements, "_search_idx"), "key", "search_key", "session_id"),
        **own_options,
    )
    triggers = _triggers(sessions, rows, elements)
    wanted: Any = _is_wanted
    for trigger in triggers:
        # After all tables, not after one: on an upgrade the sessions table is there already.
        create = trigger.execute_if(callable_=wanted, state=trigger)
        drop = DropTrigger(trigger).execute_if(callable_=wanted)
        event.listen(metadata, "after_create", create)
        event.listen(metadata, "before_drop", drop)
    return SessionTables(sessions, messages, rows, elements, triggers=triggers)


def _triggers(sessions: Table, metadata: Table, elements: Table) -> tuple[CreateTrigger, ...]:
    def trigger(event: str, table: Table, target: Table, *columns: str) -> CreateTrigger:
        name = derived_name(target.name, f"_after_{event.lower()}")
        return CreateTrigger(name, event, table, target, columns)

    return (
        trigger("DELETE", sessions, metadata, "session_id"),
        trigger("INSERT", sessions, metadata, "session_id"),
        trigger("UPDATE", sessions, metadata, "session_id"),
        trigger("DELETE", metadata, elements, "session_id", "key"),
    )


def _is_wanted(_ddl: Any, _target: Any, bind: Any, *_: Any, state: Any = None, **__: Any) -> bool:
    """Whether DDL about triggers runs; `state` is the trigger that is to be created, if any."""
    if not dialect_of(bind.dialect).uses_triggers:
        return False
    if state is None or not isinstance(bind, Connection):
        return True
    # A partial create_all must not attach a trigger to a table that is not there.
    exists, schema = inspect(bind).has_table, bind.schema_for_object(state.table)
    return all(exists(each.name, schema=schema) for each in (state.table, state.emptied))

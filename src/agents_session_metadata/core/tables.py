"""Tables, indexes and triggers.

| table | one row |
|---|---|
| `agent_sessions`, `agent_messages` | the SDK's own; created if missing, never altered |
| `agent_sessions_metadata` | a key of a session: its JSON text and its search key |
| `agent_sessions_metadata_elements` | a distinct scalar element of a list |

Foreign keys delete metadata with its session. SQLite does not enforce them on the SDK's
connections, so triggers do it there, for every writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    TIMESTAMP,
    Column,
    Connection,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    event,
    inspect,
    text,
)
from sqlalchemy.schema import DropTable

from agents_session_metadata.dialects import dialect_of

from .definitions import (
    CORE,
    CREATE_TYPES,
    QUERY_TYPES,
    SESSIONS,
    ColumnTypes,
    CreateTrigger,
    TableGroup,
    TableMaker,
    TableNames,
    derived_name,
    ending_with_session,
    session_link,
    table_options,
)


@dataclass(frozen=True, eq=False)
class SessionTables:
    """The tables of one database, as SQLAlchemy objects.

    Attributes:
        sessions: The SDK's `agent_sessions`.
        messages: The SDK's `agent_messages`.
        metadata: One row per session and key.
        elements: One row per distinct scalar element of a list.
        groups: All tables: these four as the group "core", then those of optional features.
    """

    sessions: Table
    messages: Table
    metadata: Table
    elements: Table
    groups: tuple[TableGroup, ...] = field(repr=False)

    @property
    def tables(self) -> tuple[Table, Table, Table, Table]:
        """The four tables, each after those that it refers to."""
        return self.sessions, self.messages, self.metadata, self.elements

    @property
    def triggers(self) -> tuple[CreateTrigger, ...]:
        """The triggers that SQLite requires in addition to the tables, as statements for `execute`.

        Their `name` is what to drop.
        """
        return tuple(trigger for group in self.groups for trigger in group.triggers)

    def group(self, name: str) -> TableGroup:
        """The group of this name.

        Args:
            name: `"core"`, or the name of an optional feature, such as `"runs"`.
        """
        return next(group for group in self.groups if group.name == name)


@lru_cache(maxsize=256)
def query_tables(names: TableNames) -> SessionTables:
    """Cached, because SQLAlchemy caches compiled statements by the identity of their tables."""
    return build_tables(MetaData(), names, QUERY_TYPES)


@lru_cache(maxsize=16)
def create_tables(names: TableNames) -> SessionTables:
    """Cached, because building the tables takes longer than creating them in a database."""
    return build_tables(MetaData(), names, CREATE_TYPES)


def build_tables(metadata: MetaData, names: TableNames, types: ColumnTypes) -> SessionTables:
    """Returns the tables that are in `metadata` if they are defined already."""
    is_new = names.metadata not in metadata.tables
    defined = metadata.tables.__getitem__
    core = _define(metadata, names, types) if is_new else tuple(map(defined, names[:4]))
    sessions, messages, rows, elements = core
    triggers = (
        ending_with_session(sessions, rows),
        CreateTrigger(rows, elements, ("session_id", "key")),
    )
    groups = [TableGroup(CORE, core, triggers)]
    for feature in names.features:
        maker = TableMaker(metadata, core, types, feature.names(names.metadata))
        feature.define(maker)
        groups.append(maker.group(feature.name))
    if is_new:
        _listen(metadata, groups)
    return SessionTables(sessions, messages, rows, elements, groups=tuple(groups))


def _listen(metadata: MetaData, groups: Sequence[TableGroup]) -> None:
    """Has `MetaData.create_all` create the triggers of SQLite, and `drop_all` virtual tables."""
    wanted: Any = _is_wanted
    is_sqlite: Any = _uses_triggers
    for group in groups:
        for trigger in group.triggers:
            # After all tables, not after one: on an upgrade the sessions table is there already.
            create = trigger.execute_if(callable_=wanted, state=trigger)
            event.listen(metadata, "after_create", create)
        for table in group.virtual:
            drop = DropTable(table, if_exists=True).execute_if(callable_=is_sqlite)
            event.listen(group.tables[0], "before_drop", drop)


def _define(metadata: MetaData, names: TableNames, types: ColumnTypes) -> tuple[Table, ...]:
    """Defines the four tables of the core."""
    now = text("CURRENT_TIMESTAMP")
    options = table_options(types)
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
        info={SESSIONS: True},
        **options,
    )
    # MariaDB fails if the name that it makes for the foreign key is too long.
    short = derived_name(names.messages, "_session_fk")
    link_name = None if short.startswith(names.messages) else short
    messages = Table(
        names.messages,
        metadata,
        Column("id", types.item_id, primary_key=True, autoincrement=True),
        Column(
            "session_id",
            types.session_id,
            ForeignKey(sessions.c.session_id, ondelete="CASCADE", name=link_name),
            nullable=False,
        ),
        Column("message_data", types.text, nullable=False),
        time("created_at"),
        Index(derived_name(f"idx_{names.messages}", "_session_time"), "session_id", "created_at"),
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
        session_link(names.metadata, sessions),
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
    return sessions, messages, rows, elements


def _uses_triggers(*_: Any, dialect: Any, **__: Any) -> bool:
    return dialect_of(dialect).uses_triggers


def _is_wanted(_ddl: Any, _target: Any, bind: Any, *_: Any, state: Any, **__: Any) -> bool:
    if not dialect_of(bind.dialect).uses_triggers:
        return False
    if not isinstance(bind, Connection):
        return True
    # A partial create_all must not attach a trigger to a table that is not there.
    exists, schema = inspect(bind).has_table, bind.schema_for_object(state.table)
    return all(exists(each.name, schema=schema) for each in (state.table, state.emptied))

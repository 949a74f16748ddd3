"""The tables of the activity index.

| table | one row |
|---|---|
| `…_indexes` | an index: its key, and whether it is complete |
| `…_activity` | a value or list element of an indexed key, and when its session was active |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    Table,
    literal_column,
    select,
    update,
)

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.definitions import (
    ColumnTypes,
    TableGroup,
    by_code_point,
    derived_name,
    session_link,
    table_options,
)
from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects._dialect import Dialect, Statement

from .triggers import cleanup

ACTIVITY = "activity"

FILLING, COMPLETE, DROPPING = 0, 1, 2
"""Triggers maintain an index in the first two states; only a complete one is used."""
ENTRY_COLUMNS = ("session_id", "key", "position", "of_list", "search_key", "updated_at")
"""The columns of an entry, in the order in which statements select them."""


def define(
    metadata: MetaData, core: TableGroup, names: tuple[str, ...], types: ColumnTypes
) -> TableGroup:
    indexes_name, entries_name = names
    if entries_name in metadata.tables:
        return _group(core, *(metadata.tables[name] for name in names))
    options: dict[str, Any] = {**table_options(types), "sqlite_with_rowid": False}
    indexes = Table(
        indexes_name,
        metadata,
        Column("key", types.key, primary_key=True),
        # FILLING, COMPLETE or DROPPING.
        Column("state", Integer, nullable=False),
        # Of whoever has changed the state last.
        Column("token", types.key, nullable=False),
        **options,
    )
    entries = Table(
        entries_name,
        metadata,
        Column("session_id", types.own_id, primary_key=True),
        Column("key", types.key, primary_key=True),
        # That of the element in its list; -1 for a value as a whole.
        Column("position", Integer, primary_key=True, autoincrement=False),
        # Whether it is an element: 0 or 1.
        Column("of_list", Integer, nullable=False),
        Column("search_key", types.search, nullable=False),
        # As nullable as the column that it follows may be.
        Column("updated_at", types.stored_time, nullable=True),
        session_link(entries_name, core.tables[0]),
        Index(
            derived_name(entries_name, "_order_idx"),
            "key",
            "of_list",
            "search_key",
            "updated_at",
            "session_id",
            **by_code_point(types),
        ),
        **options,
    )
    return _group(core, indexes, entries)


def _group(core: TableGroup, indexes: Table, entries: Table) -> TableGroup:
    drops = cleanup(core.tables, entries)
    return TableGroup(ACTIVITY, (indexes, entries), cleanup=drops)


def expected_entries(core: Sequence[Table], dialect: Dialect, key: str) -> Iterator[Statement]:
    """Returns SELECT statements for the entries that the index should have."""
    sessions, _, values, elements = core
    time = dialect.stored_time(sessions.c.updated_at)
    of_rows: list[tuple[Table, Any, str]] = [
        (values, literal_column("-1"), "0"),
        (elements, elements.c.position, "1"),
    ]
    for rows, position, of_list in of_rows:
        joined = sessions.join(rows, rows.c.session_id == sessions.c.session_id)
        columns = [
            sessions.c.session_id,
            rows.c.key,
            position,
            literal_column(of_list),
            rows.c.search_key,
            time,
        ]
        yield select(*_labeled(columns)).select_from(joined).where(rows.c.key == key)


def _labeled(columns: Sequence[Any]) -> list[Any]:
    return [column.label(name) for column, name in zip(columns, ENTRY_COLUMNS, strict=True)]


def lock_state(connection: Connection, states: Table, key: str, *, shared: bool = False) -> Any:
    """Returns None if there is no row. With `shared`, triggers can still read the row."""
    own = states.c.key == key
    # The update is the lock on SQLite, where a read takes none.
    if not shared or dialect_of(connection.dialect).single_writer:
        connection.execute(update(states).where(own).values(token=states.c.token))
    locked = select(states).where(own).with_for_update(read=shared)
    return connection.execute(locked).one_or_none()


def learn(database: Database[Any], connection: Connection) -> frozenset[str]:
    """Reads which indexes are complete; the tables must exist."""
    indexes = database.tables.group(ACTIVITY)["_indexes"]
    complete = select(indexes.c.key).where(indexes.c.state == COMPLETE)
    keys = database.notes[ACTIVITY] = frozenset(connection.scalars(complete))
    return keys


def look(database: Database[Any], connection: Connection) -> frozenset[str]:
    """Looks for indexes that another process may have created or dropped."""
    if database.has_tables(connection, ACTIVITY):
        return learn(database, connection)
    return frozenset()

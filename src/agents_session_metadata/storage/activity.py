"""The tables of the activity index.

| table | one row |
|---|---|
| `…_indexes` | an index that somebody created: its key, and whether it is complete |
| `…_activity` | a value or list element of an indexed key, and when its session was active |
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ForeignKeyConstraint, Index, Integer, MetaData, Table

from .definitions import ColumnTypes, GroupDefinition, TableGroup, derived_name, table_options

ACTIVITY = "activity"


def _define(
    metadata: MetaData, core: TableGroup, names: tuple[str, ...], types: ColumnTypes
) -> TableGroup:
    indexes_name, entries_name = names
    if entries_name in metadata.tables:
        return TableGroup(ACTIVITY, tuple(metadata.tables[name] for name in names))
    options: dict[str, Any] = {**table_options(types), "sqlite_with_rowid": False}
    sessions = core.tables[0]
    indexes = Table(
        indexes_name,
        metadata,
        Column("key", types.key, primary_key=True),
        # 1 when every session has its entries.
        Column("complete", Integer, nullable=False),
        # 1 when a session has an id that is too long for an entry.
        Column("lacks_ids", Integer, nullable=False),
        **options,
    )
    entries = Table(
        entries_name,
        metadata,
        Column("session_id", types.sorted_id, primary_key=True),
        Column("key", types.key, primary_key=True),
        # That of the element in its list; -1 for a value as a whole.
        Column("position", Integer, primary_key=True, autoincrement=False),
        Column("search_key", types.search, nullable=False),
        # As nullable as the column that it follows may be.
        Column("updated_at", types.stored_time, nullable=True),
        ForeignKeyConstraint(
            ["session_id"],
            [sessions.c.session_id],
            name=derived_name(entries_name, "_session_fk"),
            ondelete="CASCADE",
        ),
        Index(
            derived_name(entries_name, "_order_idx"),
            "key",
            "search_key",
            "updated_at",
            "session_id",
        ),
        **options,
    )
    return TableGroup(ACTIVITY, (indexes, entries))


GROUP = GroupDefinition(ACTIVITY, ("_indexes", "_activity"), _define)

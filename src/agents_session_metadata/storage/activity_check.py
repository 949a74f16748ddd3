"""Comparing the activity index with what it is made from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, delete, exists, func, select

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects._triggers import RowTrigger

from .activity import ACTIVITY, ENTRY_COLUMNS, expected_entries
from .activity_triggers import Target, row_triggers
from .tables import SessionTables


class Difference(NamedTuple):
    """What an index has too much or too little.

    Attributes:
        wrong: The number of entries that are extra or wrong.
        missing: The number of entries that are missing, those that are wrong included.
        repair: The statements that delete and add entries, in order.
    """

    wrong: int
    missing: int
    repair: tuple[Any, ...]


def compare(connection: Connection, tables: SessionTables, key: str) -> Difference:
    """Compare the entries of a complete index with what they should be."""
    dialect = dialect_of(connection.dialect)
    entries = tables.group(ACTIVITY)["_activity"]
    expected = [
        statement.subquery(f"expected_{number}")
        for number, statement in enumerate(expected_entries(tables.tables, dialect, key))
    ]
    fits = []
    missing = 0
    adding = []
    for one in expected:
        renamed = dict(zip(ENTRY_COLUMNS, one.c, strict=True))
        same = and_(
            *(
                entries.c[name] == column
                for name, column in renamed.items()
                if name not in ("updated_at", "key")
            ),
            entries.c.key == key,
            entries.c.updated_at.is_not_distinct_from(renamed["updated_at"]),
        )
        fits.append(exists().select_from(one).where(same).correlate(entries))
        found = exists().select_from(entries).where(same).correlate(one)
        lacking = select(*one.c).select_from(one).where(~found)
        missing += connection.scalar(select(func.count()).select_from(lacking.subquery())) or 0
        adding.append(
            dialect.insert_missing(entries, selected=True).from_select(list(ENTRY_COLUMNS), lacking)
        )
    extra = and_(entries.c.key == key, *(~each for each in fits))
    wrong = connection.scalar(select(func.count()).select_from(entries).where(extra)) or 0
    repair = [delete(entries).where(extra)] if wrong else []
    return Difference(wrong, missing, (*repair, *(adding if missing else ())))


def activity_triggers(
    connection: Connection, tables: SessionTables, keys: Iterable[str]
) -> list[RowTrigger]:
    """The triggers for an index of these keys."""
    indexes, entries = tables.group(ACTIVITY).tables
    schema = dialect_of(connection.dialect).schema_of(connection, entries)
    return row_triggers(connection, Target(schema, tables.tables, indexes, entries), keys)

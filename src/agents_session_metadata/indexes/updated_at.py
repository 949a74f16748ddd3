"""The index of all sessions: an SQL index on the SDK's table."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.schema import SDKIndex
from agents_session_metadata.types import IndexInfo

UPDATED_AT = "$updated_at"
"""The key of the index."""


def read(database: Database[Any], connection: Connection, *, count: bool) -> list[IndexInfo]:
    if not _index(database).exists(connection):
        return []
    entries = select(func.count()).select_from(database.tables.sessions)
    number = connection.scalar(entries) if count else None
    return [IndexInfo(UPDATED_AT, complete=True, entries=number)]


async def change(database: Database[Any], *, exists: bool) -> bool:
    """Creates or drops the index. Returns whether that was necessary."""
    index = _index(database)
    try:
        return await database.write(lambda connection, _: index.change(connection, exists=exists))
    except DBAPIError:
        # Another process may have done it.
        if await database.look(index.exists) != exists:
            raise
        return False


def _index(database: Database[Any]) -> SDKIndex:
    # InnoDB adds the primary key by itself. PostgreSQL has no room for the longest ids.
    more = ["session_id"] if database.dialect.single_writer else []
    return SDKIndex(database.tables.sessions, "_updated_at_idx", ["updated_at", *more])

"""The index of all sessions: an SQL index on the SDK's table."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Connection, Index, MetaData, func, inspect, select
from sqlalchemy.exc import DBAPIError

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.definitions import derived_name
from agents_session_metadata.types import IndexInfo

UPDATED_AT = "$updated_at"
"""The key of the index."""


def read(database: Database[Any], connection: Connection, *, count: bool) -> list[IndexInfo]:
    if not _exists(database, connection):
        return []
    entries = select(func.count()).select_from(database.tables.sessions)
    number = connection.scalar(entries) if count else None
    return [IndexInfo(UPDATED_AT, complete=True, entries=number)]


async def change(database: Database[Any], *, exists: bool) -> bool:
    """Creates or drops the index. Returns whether that was necessary."""

    def run(connection: Connection, _: Any) -> bool:
        database.dialect.begin_ddl(connection)
        if _exists(database, connection) == exists:
            return False
        with database.dialect.brief_waits(connection):
            getattr(_index(database), "create" if exists else "drop")(connection)
        return True

    try:
        return await database.write(run)
    except DBAPIError:
        # Another process may have done it.
        if await database.look(partial(_exists, database)) != exists:
            raise
        return False


def _index(database: Database[Any]) -> Index:
    """Uses a copy of the sessions table: the table in `session_tables()` has no such index."""
    sessions = database.tables.sessions.to_metadata(MetaData())
    columns = [sessions.c.updated_at]
    if database.dialect.single_writer:
        # InnoDB adds the primary key by itself. PostgreSQL has no room for the longest ids.
        columns.append(sessions.c.session_id)
    return Index(derived_name(sessions.name, "_updated_at_idx"), *columns)


def _exists(database: Database[Any], connection: Connection) -> bool:
    sessions, name = database.tables.sessions, str(_index(database).name)
    schema = connection.schema_for_object(sessions)
    return inspect(connection).has_index(sessions.name, name, schema)

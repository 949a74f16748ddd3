"""Deleting many sessions: in short transactions, and only what still matches."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from operator import methodcaller

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, select

from agents_session_metadata.query.filters import NOTHING, All, Condition, IdIn, TimeBound
from agents_session_metadata.storage.creation import orphans_of
from agents_session_metadata.storage.database import Database
from agents_session_metadata.storage.store import SessionStore

ROWS_SWEPT = 5_000
"""Rows that one statement looks at for orphans."""


def expired(condition: Condition, inactive_for: timedelta | None) -> Condition:
    """A condition, and that the session has been inactive for so long.

    Raises:
        TypeError: If `inactive_for` is no timedelta.
        ValueError: If it is negative.
    """
    if inactive_for is None:
        return condition
    if not isinstance(inactive_for, timedelta):
        raise TypeError(f"inactive_for must be a timedelta, not {type(inactive_for).__name__}")
    if inactive_for < timedelta(0):
        raise ValueError(f"inactive_for must not be negative, not {inactive_for}")
    try:
        limit = datetime.now(timezone.utc) - inactive_for
    except OverflowError:
        return NOTHING  # Longer ago than there are times.
    return All((condition, TimeBound("updated_at", "$lte", limit)))


async def delete_matching(
    store: SessionStore,
    condition: Condition,
    *,
    batch_size: int,
    progress: Callable[[int], object] | None,
) -> int:
    """Delete the sessions that match, batch by batch in the order of their ids."""
    database = store.database
    deleted, after = 0, None
    while True:

        def candidates(connection: Connection, after: str | None = after) -> list[str]:
            # One more than a batch tells whether there is another.
            query = database.queries.ids(condition, after=after, limit=batch_size + 1)
            return list(connection.scalars(*query))

        found = await database.read(candidates)
        ids = found[:batch_size]
        if ids:
            deleted += await database.write(_deletion(store, condition, ids))
            if progress is not None:
                progress(deleted)
        if len(found) <= batch_size:
            return deleted
        after = ids[-1]


async def sweep_orphans(store: SessionStore) -> None:
    """Delete metadata without a session, where foreign keys do not see to it.

    There is none, as a rule: a table is read in parts, and a writer's turn is taken where something
    was found.
    """
    if store.database.dialect.uses_triggers:
        for table, is_orphan in orphans_of(store.database.tables):
            await _sweep(store.database, table, is_orphan)


async def _sweep(database: Database, table: Table, is_orphan: ColumnElement[bool]) -> None:
    end: str | None = ""
    while end is not None:
        orphans, end = await database.read(partial(_look, table, is_orphan, end))
        if orphans is not None:
            await database.write(methodcaller("execute", delete(table).where(orphans)))


def _look(
    table: Table, is_orphan: ColumnElement[bool], after: str, connection: Connection
) -> tuple[ColumnElement[bool] | None, str | None]:
    """Look for orphans in the next part of a table.

    Returns:
        What is true of the orphans, if there are any; and where the part ends, if not with the
        table.
    """
    session_id = table.c.session_id
    rest = select(session_id).where(session_id > after).order_by(session_id)
    end = connection.scalar(rest.offset(ROWS_SWEPT - 1).limit(1))
    part = session_id > after if end is None else and_(session_id > after, session_id <= end)
    orphans = and_(part, is_orphan)
    found = connection.scalar(select(session_id).where(orphans).limit(1))
    return None if found is None else orphans, end


def _deletion(
    store: SessionStore, condition: Condition, ids: list[str]
) -> Callable[[Connection], int]:
    database = store.database
    tables, dialect = database.tables, database.dialect

    def delete_in_turn(connection: Connection) -> int:
        # Nobody else writes from here on: what matches as it is deleted has not woken up.
        of_candidates = dialect.one_of(tables.sessions.c.session_id, "ids", len(ids))
        statement = delete(tables.sessions).where(of_candidates)
        statement, parameters = database.queries.where(
            statement.returning(tables.sessions.c.session_id),
            condition,
            tables.sessions.c.session_id,
        )
        parameters.update(dialect.list_parameters("ids", ids))
        deleted = list(connection.scalars(statement, parameters))
        delete_rows(connection, [tables.messages], deleted)
        return len(deleted)

    def lock_and_delete(connection: Connection) -> int:
        # Locked first: one that woke up since is seen as it is now, and spared.
        lock = dialect.lock_rows(tables.sessions, "ids", len(ids))
        locked = list(connection.scalars(lock, dialect.list_parameters("ids", ids)))
        still = All((condition, IdIn(tuple(locked))))
        query = database.queries.ids(still, after=None, limit=len(ids))
        doomed = list(connection.scalars(*query)) if locked else []
        delete_rows(connection, [tables.messages, tables.sessions], doomed)
        return len(doomed)

    def delete_rows(connection: Connection, of_tables: list[Table], doomed: list[str]) -> None:
        parameters = dialect.list_parameters("ids", doomed)
        for table in of_tables if doomed else []:
            of_doomed = dialect.one_of(table.c.session_id, "ids", len(doomed))
            connection.execute(delete(table).where(of_doomed), parameters)

    return delete_in_turn if dialect.single_writer else lock_and_delete

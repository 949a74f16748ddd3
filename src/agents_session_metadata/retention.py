"""Deleting many sessions: in short transactions, and only what still matches."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone

from sqlalchemy import Connection, delete

from .filters import NOTHING, All, Condition, IdIn, TimeBound
from .schema import delete_orphans
from .store import SessionStore


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
            query = database.queries.ids(condition, after=after, limit=batch_size)
            return list(connection.scalars(*query))

        ids = await database.read(candidates)
        if ids:
            deleted += await database.write(_deletion(store, condition, ids))
            if progress is not None:
                progress(deleted)
        if len(ids) < batch_size:
            return deleted
        after = ids[-1]


async def sweep_orphans(store: SessionStore) -> None:
    """Delete metadata without a session, where foreign keys do not see to it."""
    if store.database.dialect.uses_triggers:
        names = store.database.names
        await store.database.write(lambda connection: delete_orphans(connection, names))


def _deletion(
    store: SessionStore, condition: Condition, ids: list[str]
) -> Callable[[Connection], int]:
    database = store.database
    tables, dialect = database.tables, database.dialect

    def run(connection: Connection) -> int:
        # Locked first: one that woke up since is seen as it is now, and spared.
        lock = dialect.lock_rows(tables.sessions, "ids", len(ids))
        locked = list(connection.scalars(lock, dialect.list_parameters("ids", ids)))
        if not locked:
            return 0
        still = All((condition, IdIn(tuple(locked))))
        doomed = list(connection.scalars(*database.queries.ids(still, after=None, limit=len(ids))))
        if not doomed:
            return 0
        parameters = dialect.list_parameters("ids", doomed)
        for table in (tables.messages, tables.sessions):
            of_doomed = dialect.one_of(table.c.session_id, "ids", len(doomed))
            connection.execute(delete(table).where(of_doomed), parameters)
        return len(doomed)

    return run

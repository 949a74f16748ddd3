"""Retention, which the command line calls cleanup: deletes many sessions, if they still match.

Usage, decisions, attachments and answers to repeated requests are deleted by their own features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from sqlalchemy import Connection

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.features import in_use
from agents_session_metadata.core.rows import delete_sessions, lock_sessions
from agents_session_metadata.query.conditions import IdIn, TimeBound, check_age, moment_before
from agents_session_metadata.query.logic import NOTHING, All, Condition
from agents_session_metadata.query.ordering import SessionPosition
from agents_session_metadata.query.pages import Reader, queries_of, read_sessions
from agents_session_metadata.scope import ScopedStore


async def deletable(
    store: ScopedStore, condition: Condition, inactive_for: timedelta | None, paused_for: timedelta
) -> Condition:
    """Adds the conditions that a session is old enough, and that its run may be ended."""
    parts = [condition]
    if inactive_for is not None:
        check_age("inactive_for", inactive_for)
    # With an age of 0, every session is, also one whose time lies in the future.
    if inactive_for:
        limit = moment_before(inactive_for)
        parts.append(NOTHING if limit is None else TimeBound("updated_at", "$lte", limit))
    check_age("paused_for", paused_for)

    def spared(connection: Connection) -> list[Condition]:
        found = in_use(store.database, connection)
        return list(filter(None, (each.spared(paused_for) for each in found)))

    if paused_for:
        parts += await store.database.read(spared)
    return All(tuple(parts))


async def delete_matching(
    store: ScopedStore,
    condition: Condition,
    *,
    batch_size: int,
    progress: Callable[[int], object] | None,
) -> int:
    """Deletes the sessions that match, batch by batch.

    With the index on `updated_at`, the longest inactive sessions are deleted first, and without it,
    the one with the first id.
    """
    database, deleted, after = store.database, 0, None
    database.check_writable()
    while True:
        # One more than a batch tells whether there is another.
        read = partial(_candidates, condition, batch_size + 1, after)
        found = await read_sessions(database, read)
        ids = [each.session_id for each in found[:batch_size]]
        if ids:
            deleted += await database.write(partial(_delete, database, condition, ids))
            if progress is not None:
                progress(deleted)
        if len(found) <= batch_size:
            return deleted
        after = found[batch_size - 1]


def _candidates(
    condition: Condition, limit: int, after: SessionPosition | None, reader: Reader
) -> list[SessionPosition]:
    is_walk = after is not None and after.time is None
    found = None if is_walk else reader.oldest(condition, limit=limit, after=after)
    if found is not None:
        return found
    last = after.session_id if after is not None and is_walk else None
    query = reader.queries.ids(condition, after=last, limit=limit)
    return [SessionPosition(session_id) for session_id in reader.connection.scalars(*query)]


def _delete(
    database: Database,
    condition: Condition,
    ids: list[str],
    connection: Connection,
) -> int:
    matching = lock_matching(database, condition, ids, connection)
    if matching:
        delete_sessions(database, connection, matching)
    return len(matching)


def lock_matching(
    database: Database, condition: Condition, ids: Sequence[str], connection: Connection
) -> list[str]:
    """Must begin the transaction. Returns the sessions that still match."""
    # Locked first: one that woke up since is seen as it is now, and spared.
    locked = lock_sessions(database, connection, ids)
    if len(locked) < len(ids):
        # PostgreSQL does not find a row that was replaced while the statement waited.
        locked = lock_sessions(database, connection, ids)
    if not locked:
        return []
    still = All((condition, IdIn(tuple(sorted(locked)))))
    return list(connection.scalars(*queries_of(database).ids(still, after=None, limit=len(ids))))

"""Erases sessions with all rows about them and their owner in batches, and then looks again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial

from sqlalchemy import Connection, select

from agents_session_metadata.core.change_log import note
from agents_session_metadata.core.database import Database
from agents_session_metadata.core.features import Erased, in_use
from agents_session_metadata.core.rows import delete_rows
from agents_session_metadata.query.logic import Condition
from agents_session_metadata.query.pages import Reader, read_sessions
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.transfer.retention import lock_matching
from agents_session_metadata.types import Erasure


async def erase(
    store: ScopedStore,
    condition: Condition,
    erased: Erased,
    *,
    batch_size: int,
    progress: Callable[[int], object] | None,
) -> Erasure:
    database, counts, gone = store.database, Counter[str](), list[str]()
    database.check_writable()

    async def find(limit: int) -> list[str]:
        def read(reader: Reader) -> list[str]:
            query = reader.queries.ids(condition, after=None, limit=limit)
            return list(reader.connection.scalars(*query))

        return await read_sessions(database, read)

    while ids := await find(batch_size):
        deleted, found = await database.write(partial(_erase, database, condition, ids, erased))
        gone += deleted
        counts.update(found)
        if progress is not None:
            progress(len(gone))
    while any((rest := await database.write(partial(_erase_rest, database, erased))).values()):
        counts.update(rest)
    counts.update(rest)
    # What others have written in the meantime.
    left = bool(await find(1)) or await database.write(
        partial(_is_left, database, erased, gone, batch_size)
    )
    now = datetime.now(timezone.utc)
    return Erasure(len(gone), dict(sorted(counts.items())), now, complete=not left)


def _erase(
    database: Database,
    condition: Condition,
    ids: Sequence[str],
    erased: Erased,
    connection: Connection,
) -> tuple[list[str], Counter[str]]:
    counts, matching = Counter[str](), lock_matching(database, condition, ids, connection)
    if matching:
        for feature in in_use(database, connection):
            counts.update(feature.erase(database, connection, matching, erased))
        tables = database.tables
        for table in (tables.elements, tables.metadata, tables.messages, tables.sessions):
            counts[table.name] = delete_rows(database, connection, table.c.session_id, matching)
        for session_id in matching:
            note(connection, "deleted", session_id)
    return matching, counts


def _erase_rest(database: Database, erased: Erased, connection: Connection) -> Counter[str]:
    counts = Counter[str]()
    for feature in in_use(database, connection):
        counts.update(feature.erase_rest(database, connection, erased))
    return counts


def _is_left(
    database: Database, erased: Erased, gone: Sequence[str], batch_size: int, connection: Connection
) -> bool:
    """Writes nothing. A session that was written again has its id, but no metadata any more."""
    left = any(_erase_rest(database, erased, connection).values())
    own_id, dialect = database.tables.sessions.c.session_id, database.dialect
    for start in range(0, len(gone), batch_size):
        ids = gone[start : start + batch_size]
        again = select(own_id).where(dialect.one_of(own_id, "ids", len(ids))).limit(1)
        left = left or bool(connection.scalars(again, dialect.list_parameters("ids", ids)).all())
    connection.rollback()
    return left

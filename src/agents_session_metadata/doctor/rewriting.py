"""Writes search keys and list elements again from the stored values."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, insert, update
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata.dialects.urls import with_transactions
from agents_session_metadata.scope import ScopedStore, own_store
from agents_session_metadata.storage.tables import TableNames, element_rows, table_names

from .contents import Contents, Stored
from .inspection import inspect_database


class Rewritten(NamedTuple):
    """What `rewrite_search_keys` did.

    Attributes:
        rewritten: The number of values whose search key or elements were written again.
        skipped: The number of values that are not valid JSON, whose session has no row, or whose
            key the session has twice.
    """

    rewritten: int
    skipped: int


async def rewrite_search_keys(engine: AsyncEngine, names: TableNames | None = None) -> Rewritten:
    """Write the search keys that do not agree with their values again, and nothing else.

    The rows of list elements, which are search keys as well, are replaced where they do not agree
    with their list. Values and times stay as they are. Each transaction covers a batch of values
    and locks their sessions as every writer does. A value that is not valid JSON, whose session has
    no row, or whose key the session has twice because the primary key is missing, is skipped.

    Args:
        engine: The engine; a schema translation is followed.
        names: The names of the tables; the default names if omitted.

    Returns:
        How many values were rewritten and skipped.

    Raises:
        TablesMissingError: If a table is missing.
        UnsupportedDialectError: If the engine is for another database.
    """
    store = own_store(engine, names or table_names(), create_tables=False)
    database = store.database
    await database.ensure()
    rewritten = skipped = 0
    async with with_transactions(engine).connect() as connection:
        contents = await connection.run_sync(
            lambda sync: Contents(inspect_database(sync, database.names))
        )
    after: Stored | None = None
    while True:
        batch = await database.read(lambda sync, *_, at=after: contents.batch(sync, at))
        if not batch:
            return Rewritten(rewritten, skipped)
        after = batch[-1]
        wrong = [stored for stored in batch if stored.is_wrong]
        skipped += sum(stored.problem is not None for stored in batch)
        if wrong:
            written, left = await database.write(
                lambda sync, *_, wrong=wrong: _rewrite(sync, store, contents, wrong)
            )
            rewritten, skipped = rewritten + written, skipped + left


def _rewrite(
    connection: Connection, store: ScopedStore, contents: Contents, wrong: list[Stored]
) -> tuple[int, int]:
    """Write some values' search keys again; how many, and how many were skipped."""
    tables = store.database.tables
    rows, elements = tables.metadata, tables.elements
    keys_of: dict[str, list[str]] = {}
    for stored in wrong:
        keys_of.setdefault(stored.session_id, []).append(stored.key)
    written = skipped = 0
    for session_id, keys in keys_of.items():
        if not store.rows.lock_session(connection, session_id):
            skipped += len(keys)
            continue
        # Read again under the lock: the value may have changed since.
        found = list(contents.of_keys(connection, session_id, keys, lock=True))
        rows_by_key = Counter(stored.key for stored in found)
        for stored in found:
            if not stored.is_wrong:
                continue
            if rows_by_key[stored.key] > 1:
                skipped += 1
                continue
            written += 1
            if not stored.is_found:
                new: dict[str, Any] = {
                    "search_key": stored.wanted.indexed,
                    "search_rest": stored.wanted.rest,
                    # Set to itself: the column may be defined to change with every update.
                    "created_at": rows.c.created_at,
                    "updated_at": rows.c.updated_at,
                }
                own = rows.c.session_id == session_id, rows.c.key == stored.key
                connection.execute(update(rows).where(*own).values(new))
            if not stored.has_elements:
                own = elements.c.session_id == session_id, elements.c.key == stored.key
                connection.execute(delete(elements).where(*own))
                parts = [*element_rows(session_id, stored.key, stored.elements)]
                if parts:
                    connection.execute(insert(elements), parts)
    return written, skipped

"""Rewrites search keys and list elements from the stored values."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, update
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata.core.tables import TableNames, element_rows, table_names
from agents_session_metadata.scope import ScopedStore, own_store

from .rows import Stored, StoredValues


class Rewritten(NamedTuple):
    rewritten: int
    skipped: int


async def rewrite_search_keys(engine: AsyncEngine, names: TableNames | None = None) -> Rewritten:
    """Rewrites search keys and list elements that do not match their values, and nothing else.

    Each transaction covers a batch of values and locks their sessions as every writer does. A value
    that is not valid JSON, or whose session has no row, is skipped.
    """
    store = own_store(engine, names or table_names(), create_tables=False)
    database = store.database
    await database.ensure()
    values = StoredValues(database.tables)
    rewritten = skipped = 0
    after: Stored | None = None
    while batch := await database.read(lambda sync, *_, at=after: values.batch(sync, at)):
        after = batch[-1]
        skipped += sum(not stored.is_json for stored in batch)
        wrong = [stored for stored in batch if stored.is_wrong]
        if wrong:
            written, left = await database.write(
                lambda sync, *_, wrong=wrong: _rewrite(sync, store, values, wrong)
            )
            rewritten, skipped = rewritten + written, skipped + left
    return Rewritten(rewritten, skipped)


def _rewrite(
    connection: Connection, store: ScopedStore, values: StoredValues, wrong: list[Stored]
) -> tuple[int, int]:
    """Returns the numbers of rewritten and skipped values."""
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
        # Read again under the lock: a value may have changed since.
        for stored in values.of_keys(connection, session_id, keys):
            if not stored.is_wrong:
                continue
            written += 1
            new = {"search_key": stored.search.indexed, "search_rest": stored.search.rest}
            own = rows.c.session_id == session_id, rows.c.key == stored.key
            connection.execute(update(rows).where(*own).values(new))
            own = elements.c.session_id == session_id, elements.c.key == stored.key
            connection.execute(delete(elements).where(*own))
            parts = [*element_rows(session_id, stored.key, stored.elements)]
            if parts:
                connection.execute(insert(elements), parts)
    return written, skipped

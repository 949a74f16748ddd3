"""Writes search keys and list elements again from the stored values."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, update
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata.scope import ScopedStore, own_store
from agents_session_metadata.storage.tables import TableNames, element_rows, table_names

from .rows import Stored, StoredValues


class Rewritten(NamedTuple):
    """What `rewrite_search_keys` did.

    Attributes:
        rewritten: The number of values whose search key or elements were written again.
        skipped: The number of values that are not valid JSON, or whose session has no row.
    """

    rewritten: int
    skipped: int


async def rewrite_search_keys(engine: AsyncEngine, names: TableNames | None = None) -> Rewritten:
    """Write the search keys that do not agree with their values again, and nothing else.

    The rows of list elements, which are search keys as well, are replaced where they do not agree
    with their list. Values and times stay as they are. Each transaction covers a batch of values
    and locks their sessions as every writer does. A value that is not valid JSON, or whose session
    has no row, is skipped.

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
        # Read again under the lock: a value may have changed since.
        for stored in values.of_keys(connection, session_id, keys):
            if not stored.is_wrong:
                continue
            written += 1
            if not stored.has_search:
                new = {"search_key": stored.search.indexed, "search_rest": stored.search.rest}
                own = rows.c.session_id == session_id, rows.c.key == stored.key
                connection.execute(update(rows).where(*own).values(new))
            if not stored.has_elements:
                own = elements.c.session_id == session_id, elements.c.key == stored.key
                connection.execute(delete(elements).where(*own))
                parts = [*element_rows(session_id, stored.key, stored.elements)]
                if parts:
                    connection.execute(insert(elements), parts)
    return written, skipped

"""Ends a run wherever it works, and keeps the text of its answer so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.util import await_only

from agents_session_metadata.core.messages import UNREADABLE, read_history
from agents_session_metadata.runs.claim import Settings, lock_run, statements
from agents_session_metadata.runs.execution import RunSession
from agents_session_metadata.runs.feature import FAILED, STOPPED, WAITING, give_up
from agents_session_metadata.runs.record import Progress
from agents_session_metadata.text import is_encrypted

from .items import Item, Opener, left_messages


async def cancel_run(
    settings: Settings, session_id: str, *, keep: bool, wrap: Callable[[Any], Any] | None
) -> bool:
    """Returns whether there was a run that worked, was interrupted or waited."""
    store, database = settings.store, settings.store.database
    sql = statements(database.tables, database.dialect)
    own = {"session": session_id}

    async def sealed(items: list[tuple[int, Item]], steps: list[Any]) -> list[str]:
        opener = Opener(session_id, wrap)
        stored = [item for _, item in await opener.open(items)]
        left = await opener.close(left_messages(stored, steps))
        plain = RunSession._in_store(session_id, store, must_exist=True, **settings.session_options)
        return await plain._texts(left)

    def write(connection: Connection) -> bool:
        row = lock_run(store, connection, session_id)
        if row is None or row.status == FAILED:
            return False
        progress, texts = Progress.load(row.progress), list[str]()
        if keep and progress.live and row.status != WAITING:
            found = read_history(database, connection, session_id, after=progress.base)
            items = [(each.item_id, each.item) for each in found if each.item is not UNREADABLE]
            # In an encrypted history, nothing is stored in plain text.
            if wrap is not None or not any(is_encrypted(item) for _, item in items):
                rows: Any = connection.execute(sql.read_steps, own)
                # Batches of the answer in progress come last. Their numbers fall below 0.
                ordered = sorted(rows, key=lambda row: (row.number < 0, abs(row.number)))
                steps = [settings.encryption.load(row.value) for row in ordered]
                # In this transaction: the wrapper encrypts, and reads no database.
                texts = await_only(sealed(items, steps))
        give_up(database, connection, session_id, STOPPED)
        if texts:
            connection.execute(sql.touch, own)
            store.insert_items(connection, session_id, texts)
        return True

    return await database.write(write, prepare=store.is_restricted)

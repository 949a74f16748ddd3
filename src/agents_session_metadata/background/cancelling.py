"""Ends a run wherever it works, and keeps the text of its answer so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.util import await_only

from agents_session_metadata.core.messages import UNREADABLE, read_history
from agents_session_metadata.runs.claim import Settings, lock_run, statements
from agents_session_metadata.runs.execution import RunSession
from agents_session_metadata.runs.feature import FAILED, RUNS, STOPPED, WAITING, give_up
from agents_session_metadata.runs.record import Progress
from agents_session_metadata.text import is_encrypted

from .following import FixedSession, Opener
from .items import Item, left_messages


async def cancel_run(
    settings: Settings, session_id: str, *, keep: bool, wrap: Callable[[Any], Any] | None
) -> bool:
    """Returns whether there was a run that worked, was interrupted or waited."""
    store, database = settings.store, settings.store.database

    async def sealed(items: list[tuple[int, Item]], steps: list[Any]) -> list[str]:
        stored = [item for _, item in await Opener(session_id, wrap).open(items)]
        added = FixedSession(session_id, [])
        session: Any = added if wrap is None else wrap(added)
        await session.add_items(left_messages(stored, steps))
        plain = RunSession._in_store(session_id, store, must_exist=True, **settings.session_options)
        return await plain._texts(added.items)

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
                steps = _steps(settings, connection, session_id)
                # In this transaction: the wrapper encrypts, and reads no database.
                texts = await_only(sealed(items, steps))
        give_up(database, connection, session_id, STOPPED)
        if texts:
            touch = statements(database.tables, database.dialect).touch
            connection.execute(touch, {"session": session_id})
            store.insert_items(connection, session_id, texts)
        return True

    return await database.write(write, prepare=store.is_restricted)


def _steps(settings: Settings, connection: Connection, session_id: str) -> list[Any]:
    """Returns the record of a run: its steps, then the batches of the answer in progress."""
    steps = settings.store.database.tables.group(RUNS)["_run_steps"]
    own = select(steps.c.number, steps.c.value).where(steps.c.session_id == session_id)
    rows = sorted((number, text) for number, text in connection.execute(own))
    ordered = [
        *(row for row in rows if row[0] >= 0),
        *(row for row in reversed(rows) if row[0] < 0),
    ]
    return [settings.encryption.load(text) for _, text in ordered]

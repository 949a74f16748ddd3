"""Copies of threads, in forks and records.

A user message remembers where the history ended before it: by the id of a row here, and by a number
of rows in records, because a copy has other ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from agents_session_metadata.core.database import Database

from .rows import ThreadItem, ThreadRows


def copy_thread(
    database: Database[Any],
    connection: Connection,
    session_id: str,
    new_id: str,
    kept: Sequence[int] | None,
) -> None:
    """Copies the items of a thread to a session whose history was copied.

    The session must be locked. `kept` contains the ids of the copied rows; None means all. The copy
    ends before the first user message of which nothing was copied.
    """
    rows = ThreadRows(database)
    items = rows.read_threads(connection, [session_id]).get(session_id, [])
    if not items:
        return
    if kept is None:
        kept = rows.message_ids(connection, session_id)
    else:
        last = max(kept, default=0)
        ends = (-1 if item.history_end is None else item.history_end for item in items)
        items = items[: next((at for at, end in enumerate(ends) if end >= last), len(items))]
    copied = with_ids(as_counts(items, kept), rows.message_ids(connection, new_id))
    rows.insert_items(connection, new_id, copied)


def as_counts(items: list[ThreadItem], history: Sequence[int]) -> list[ThreadItem]:
    """Converts `history_end` from the id of the last row to a number of rows."""

    def count(end: int) -> int | None:
        before = sum(each <= end for each in history)
        # Without a row before it, the history was replaced: it is not known where it ended.
        return before if before or not end else None

    return _with_ends(items, count)


def with_ids(items: list[ThreadItem], history: Sequence[int]) -> list[ThreadItem]:
    """Converts `history_end` from a number of rows to the id of the last row."""
    ids = [0, *history]
    return _with_ends(items, lambda count: ids[min(count, len(history))])


def _with_ends(items: list[ThreadItem], end: Callable[[int], int | None]) -> list[ThreadItem]:
    return [
        item if item.history_end is None else item._replace(history_end=end(item.history_end))
        for item in items
    ]


def read_threads(
    database: Database[Any], connection: Connection, ids: Sequence[str]
) -> dict[str, list[ThreadItem]]:
    """Returns items whose `history_end` is a number of rows of the history."""
    rows = ThreadRows(database)
    return {
        session_id: as_counts(items, rows.message_ids(connection, session_id))
        for session_id, items in rows.read_threads(connection, ids).items()
    }


def insert_threads(
    database: Database[Any], connection: Connection, threads: Mapping[str, list[ThreadItem]]
) -> None:
    """Inserts items of new sessions. Their `history_end` is a number of rows."""
    rows = ThreadRows(database)
    for session_id, items in threads.items():
        if items:
            history = rows.message_ids(connection, session_id)
            rows.insert_items(connection, session_id, with_ids(items, history))

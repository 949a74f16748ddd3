"""The part of ChatKit's threads in the core: their items in copies and records, and votes on items.

A user message remembers where the history ended before it: by the id of a row here, and by a number
of rows in records, because a copy has other ids. The newest vote on an item counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from sqlalchemy import Connection, func, select

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.definitions import TableMaker
from agents_session_metadata.core.features import Erased, Feature
from agents_session_metadata.query.pages import queries_of
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import Feedback
from agents_session_metadata.values import id_problem

from .rows import (
    EPOCH,
    MICROSECOND,
    THREADS,
    Attachments,
    ItemRow,
    ThreadItems,
    define,
    read_threads,
    was_saved_with,
)

_AT_ONCE = 500
"""Attachments that are read at once."""


def _as_counts(items: list[ItemRow], history: Sequence[int]) -> list[ItemRow]:
    """Converts `history_end` from the id of the last row to a number of rows."""

    def count(end: int) -> int | None:
        before = sum(each <= end for each in history)
        # Without a row before it, the history was replaced: it is not known where it ended.
        return before if before or not end else None

    return _with_ends(items, count)


def _with_ids(items: list[ItemRow], history: Sequence[int]) -> list[ItemRow]:
    """Converts `history_end` from a number of rows to the id of the last row."""
    ids = [0, *history]
    return _with_ends(items, lambda count: ids[min(count, len(history))])


def _with_ends(items: list[ItemRow], end: Callable[[int], int | None]) -> list[ItemRow]:
    return [
        item if item.history_end is None else item._replace(history_end=end(item.history_end))
        for item in items
    ]


def _dump(item: ItemRow) -> dict[str, Any]:
    end = {} if item.history_end is None else {"history_end": item.history_end}
    return {"item_id": item.item_id, "kind": item.kind, "item": json.loads(item.data), **end}


# ---- feedback ----


async def read_feedback(store: ScopedStore, session_id: str) -> list[Feedback]:
    table = store.database.tables.group(THREADS).tables[2]

    def read(connection: Connection) -> list[Feedback]:
        votes = select(table.c.item_id, table.c.kind, table.c.voted_at)
        votes = votes.where(table.c.session_id == session_id)
        votes = votes.order_by(table.c.voted_at, table.c.item_id)
        statement, parameters = store.question(votes, table.c.session_id)
        found: Any = connection.execute(statement, parameters)
        return [Feedback(item_id, kind, EPOCH + at * MICROSECOND) for item_id, kind, at in found]

    if id_problem(session_id) is not None:
        return []
    return await store.database.read_used(THREADS, read, [])


class ThreadsFeature(Feature):
    name = THREADS
    suffixes: ClassVar[tuple[str, ...]] = ("_thread_items", "_attachments", "_feedback")
    field: ClassVar[str | None] = "thread_items"

    def define(self, make: TableMaker) -> None:
        define(make)

    def fork(
        self,
        database: Database,
        connection: Connection,
        session_id: str,
        new_id: str,
        kept: Sequence[int] | None,
    ) -> None:
        """The copy ends before the first user message of which nothing was copied."""
        items = read_threads(database, connection, [session_id]).get(session_id, [])
        if not items:
            return
        if kept is None:
            kept = ThreadItems(database, connection, session_id).message_ids()
        else:
            last = max(kept, default=0)
            ends = (-1 if item.history_end is None else item.history_end for item in items)
            items = items[: next((at for at, end in enumerate(ends) if end >= last), len(items))]
        copy = ThreadItems(database, connection, new_id)
        copy.insert(_with_ids(_as_counts(items, kept), copy.message_ids()))

    def export(
        self, database: Database, connection: Connection, ids: Sequence[str]
    ) -> Mapping[str, list[dict[str, Any]]]:
        parts = {}
        for session_id, items in read_threads(database, connection, ids).items():
            history = ThreadItems(database, connection, session_id).message_ids()
            parts[session_id] = [_dump(item) for item in _as_counts(items, history)]
        return parts

    def parse(self, part: Any, validated: Callable[..., Any]) -> list[ItemRow]:
        from .records import parse_items  # pydantic takes long to import

        return parse_items(part, validated)

    def load(
        self, database: Database, connection: Connection, parts: Mapping[str, list[ItemRow]]
    ) -> None:
        """In a record, `history_end` is a number of rows."""
        for session_id, items in parts.items():
            if items:
                thread = ThreadItems(database, connection, session_id)
                thread.insert(_with_ids(items, thread.message_ids()))

    def erase_rest(
        self, database: Database, connection: Connection, erased: Erased
    ) -> Mapping[str, int]:
        attachments, after, ids = Attachments(database, connection), "", list[str]()
        while erased.values and (found := attachments.lock_unattached(None, after, _AT_ONCE)):
            ids += [each.attachment_id for each in found if was_saved_with(erased.values, each)]
            after = found[-1].attachment_id
        if ids:
            attachments.delete(ids)
        return {database.tables.group(THREADS).tables[1].name: len(ids)}

    def count(
        self, database: Database, connection: Connection, condition: Any
    ) -> Mapping[str, int]:
        table = database.tables.group(THREADS).tables[2]
        votes = select(table.c.kind, func.count()).group_by(table.c.kind)
        found: Any = connection.execute(
            *queries_of(database).where(votes, condition, table.c.session_id)
        )
        return {kind: int(number) for kind, number in found}


FEATURE = ThreadsFeature()

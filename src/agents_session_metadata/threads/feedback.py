"""Votes of users on items of a thread. The newest vote on an item counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.rows import id_problem
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import Feedback, FeedbackKind

from .tables import THREADS

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_UNIT = timedelta(microseconds=1)


async def add_feedback(
    store: ScopedStore, session_id: str, item_ids: Sequence[str], kind: FeedbackKind
) -> bool:
    """Returns whether the session exists."""
    if id_problem(session_id) is not None:
        return False
    await store.database.ensure(THREADS)
    table = store.database.tables.group(THREADS).tables[2]
    now = (datetime.now(timezone.utc) - _EPOCH) // _UNIT
    rows = [
        {"session_id": session_id, "item_id": item_id, "kind": kind, "voted_at": now}
        for item_id in sorted(set(item_ids))
    ]

    def write(connection: Connection, _: Any) -> bool:
        exists = store.lock(connection, session_id)
        if exists and rows:
            of_items = table.c.item_id.in_([row["item_id"] for row in rows])
            connection.execute(delete(table).where(table.c.session_id == session_id, of_items))
            connection.execute(insert(table), rows)
        return exists

    return await store.database.write(write)


async def read_feedback(store: ScopedStore, session_id: str) -> list[Feedback]:
    table = store.database.tables.group(THREADS).tables[2]

    def read(connection: Connection, queries: Any) -> list[Feedback]:
        if not store.database.has_tables(connection, THREADS):
            return []
        votes = select(table.c.item_id, table.c.kind, table.c.voted_at)
        votes = votes.where(table.c.session_id == session_id)
        votes = votes.order_by(table.c.voted_at, table.c.item_id)
        statement, parameters = store.question(queries, votes, table.c.session_id)
        found: Any = connection.execute(statement, parameters)
        return [Feedback(item_id, kind, _EPOCH + at * _UNIT) for item_id, kind, at in found]

    return await store.database.read(read) if id_problem(session_id) is None else []


def count_feedback(
    database: Database[Any], connection: Connection, queries: Any, condition: Any
) -> dict[str, int]:
    table = database.tables.group(THREADS).tables[2]
    votes = select(table.c.kind, func.count()).group_by(table.c.kind)
    found: Any = connection.execute(*queries.where(votes, condition, table.c.session_id))
    return {kind: int(number) for kind, number in found}

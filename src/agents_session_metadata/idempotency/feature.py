"""The answers of requests that carry a key: their table, and the transaction that adds to it.

| table | one row |
|---|---|
| `…_idempotency` | a key of a session, the hash of its request, and the answer; kept for 24 hours |

A row is deleted with its session, and is neither copied nor exported.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    String,
    and_,
    delete,
    insert,
    not_,
    select,
)

from agents_session_metadata.core.definitions import TableMaker, derived_name
from agents_session_metadata.core.features import Feature
from agents_session_metadata.core.rows import sweep_keys
from agents_session_metadata.errors import KeyReusedError, SessionNotFoundError
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.text import quoted
from agents_session_metadata.types import ItemInfo
from agents_session_metadata.values import id_problem

IDEMPOTENCY = "idempotency"
_KEPT = 24 * 3600 * 1_000_000
"""Microseconds for which an answer is kept."""
_SWEPT = 100
"""Older answers, of any session, that are deleted with each new one."""


class IdempotencyFeature(Feature):
    name = IDEMPOTENCY
    suffixes: ClassVar[tuple[str, ...]] = ("_idempotency",)

    def define(self, make: TableMaker) -> None:
        [name] = make.names
        make.owned(
            name,
            Column("request_key", make.types.key, primary_key=True),
            Column("request_hash", String(64), nullable=False),
            Column("answer", make.types.text, nullable=False),
            # Microseconds since 1970, by the database's clock.
            Column("answered_at", BigInteger, nullable=False),
            Index(derived_name(name, "_time_idx"), "answered_at"),
        )


FEATURE = IdempotencyFeature()


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


async def append_once(
    store: ScopedStore,
    session_id: str,
    key: str,
    texts: Sequence[str],
    append: Callable[[Connection], list[ItemInfo]],
) -> list[ItemInfo]:
    """Appends items, unless the key is known; returns the items that were appended with it.

    Raises `KeyReusedError` if the key belongs to other items.
    """
    problem = id_problem(key)
    if problem is not None:
        raise ValueError(f"key {quoted(key)} {problem}")
    database = store.database
    if id_problem(session_id) is not None:
        raise SessionNotFoundError(session_id)
    [table] = database.tables.group(IDEMPOTENCY).tables
    now = database.dialect.now()
    request_hash = _digest([json.dumps(json.loads(text), sort_keys=True) for text in texts])

    def run(connection: Connection) -> list[ItemInfo]:
        store.require(connection, session_id)
        own = and_(table.c.session_id == session_id, table.c.request_key == key)
        old = table.c.answered_at < now - _KEPT
        known = select(table.c.request_hash, table.c.answer).where(own, not_(old))
        found = connection.execute(known).first()
        if found is None:
            added = append(connection)
            connection.execute(delete(table).where(own))
            sweep_keys(connection, table.c.request_key, old, _SWEPT)
            answer = json.dumps([[info.item_id, info.created_at.isoformat()] for info in added])
            row = {"session_id": session_id, "request_key": key, "request_hash": request_hash}
            connection.execute(insert(table).values(**row, answer=answer, answered_at=now))
            return added
        # Version 0.2.0 stored the second one.
        if found.request_hash not in (request_hash, _digest(texts)):
            raise KeyReusedError(session_id, key)
        return [
            ItemInfo(item_id, datetime.fromisoformat(at), json.loads(text))
            for (item_id, at), text in zip(_places(found.answer), texts, strict=True)
        ]

    return await database.write(run, group=IDEMPOTENCY)


def _places(answer: str) -> list[tuple[int, str]]:
    """Returns the rows and times of items.

    An answer of version 0.2.0 has no times, and the ids that its HTTP clients saw. The row is 0 if
    that was the item's own id, with which the same answer is made again.
    """
    places = json.loads(answer)
    if isinstance(places, list):
        return places
    made = [re.fullmatch(r"[a-z]+_asm([0-9]+)", item["id"]) for item in places["data"]]
    unknown = datetime.fromtimestamp(0, timezone.utc).isoformat()
    return [(int(found[1]) if found else 0, unknown) for found in made]

"""The answers of requests that carry a key: their table, and the transaction that adds to it.

| table | one row |
|---|---|
| `…_idempotency` | a key of a session, the hash of its request, and the answer; kept for 24 hours |

A row is deleted with its session, and is neither copied nor exported.
"""

from __future__ import annotations

from collections.abc import Callable

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
from agents_session_metadata.values import id_problem

IDEMPOTENCY = "idempotency"
_KEPT = 24 * 3600 * 1_000_000
"""Microseconds for which an answer is kept."""
_SWEPT = 100
"""Older answers, of any session, that are deleted with each new one."""


class IdempotencyFeature(Feature):
    name = IDEMPOTENCY
    suffixes = ("_idempotency",)

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


async def once(
    store: ScopedStore,
    session_id: str,
    key: str,
    request_hash: str,
    work: Callable[[Connection], str],
) -> str:
    """Runs work that writes to a session, unless the key is known; returns its answer.

    Raises `KeyReusedError` if the key belongs to a request with another hash.
    """
    database = store.database
    if id_problem(session_id) is not None:
        raise SessionNotFoundError(session_id)
    await database.ensure(IDEMPOTENCY)
    [table] = database.tables.group(IDEMPOTENCY).tables
    now = database.dialect.now()

    def run(connection: Connection) -> str:
        store.require(connection, session_id)
        own = and_(table.c.session_id == session_id, table.c.request_key == key)
        old = table.c.answered_at < now - _KEPT
        known = select(table.c.request_hash, table.c.answer).where(own, not_(old))
        found = connection.execute(known).first()
        if found is None:
            answer = work(connection)
            connection.execute(delete(table).where(own))
            sweep_keys(connection, table.c.request_key, old, _SWEPT)
            row = {"session_id": session_id, "request_key": key, "request_hash": request_hash}
            connection.execute(insert(table).values(**row, answer=answer, answered_at=now))
            return answer
        if found.request_hash != request_hash:
            raise KeyReusedError(session_id, key)
        stored: str = found.answer
        return stored

    return await database.write(run)

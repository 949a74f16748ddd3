"""Single items of a history: append, find and delete them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select

from agents_session_metadata.core.messages import (
    UNREADABLE,
    Restriction,
    delete_messages,
    read_items,
)
from agents_session_metadata.core.rows import check_id, id_problem
from agents_session_metadata.errors import SessionExistsError, SessionNotFoundError
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import ItemInfo, JSONValue

_AT_ONCE = 10
"""Rows that a search reads at a time."""


@dataclass(frozen=True)
class Wanted:
    """An item to find. If several match, it is the newest one.

    Only rows whose stored text contains `text` are read, unless `item_id` is known.
    """

    matches: Callable[[ItemInfo], bool]
    item_id: int | None = None
    text: str = ""


async def find_item(store: ScopedStore, session_id: str, wanted: Wanted) -> ItemInfo | None:
    """Returns nothing outside the scope."""
    if id_problem(session_id) is not None:
        return None
    return await store.database.read(
        lambda connection, queries: _find(
            store,
            connection,
            session_id,
            wanted,
            lambda statement, column: store.question(queries, statement, column),
        )
    )


async def delete_item(store: ScopedStore, session_id: str, wanted: Wanted) -> bool:
    """Does not change `updated_at`, like `pop_item`."""
    if id_problem(session_id) is not None:
        raise SessionNotFoundError(session_id)
    database = store.database

    def delete(connection: Connection, _: Any) -> bool:
        if not store.lock(connection, session_id):
            raise SessionNotFoundError(session_id)
        found = _find(store, connection, session_id, wanted, _everywhere)
        if found is None:
            return False
        ids = [found.item_id]
        delete_messages(connection, database.tables, session_id, ids)
        return True

    return await database.write(delete)


async def append_items(store: ScopedStore, session_id: str, texts: Sequence[str]) -> list[ItemInfo]:
    """Returns the items as they are stored. The session must exist."""
    if id_problem(session_id) is not None:
        raise SessionNotFoundError(session_id)

    def append(connection: Connection, _: Any) -> list[ItemInfo]:
        if not store.lock(connection, session_id):
            raise SessionNotFoundError(session_id)
        if not texts:
            return []
        items = _insert(store, connection, session_id, texts)
        store.rows.touch(connection, session_id)
        return items

    return await store.database.write(append)


async def create_with_items(
    store: ScopedStore, session_id: str, metadata: Mapping[str, JSONValue], texts: Sequence[str]
) -> None:
    check_id(session_id)
    encoded = store.encode_new(metadata)

    def create(connection: Connection, _: Any) -> None:
        if not store.create_locked(connection, session_id, encoded):
            raise SessionExistsError(session_id)
        if texts:
            _insert(store, connection, session_id, texts)

    await store.database.write(create)


def _insert(
    store: ScopedStore, connection: Connection, session_id: str, texts: Sequence[str]
) -> list[ItemInfo]:
    """Inserts items as the newest ones. The session must be locked."""
    messages = store.database.tables.messages
    store.rows.insert_items(connection, session_id, texts)
    newest: Any = (
        select(messages.c.id)
        .where(messages.c.session_id == bindparam("of_session"))
        .order_by((messages.c.id + 0).desc())
        .limit(len(texts))
    )
    ids = connection.scalars(newest, {"of_session": session_id}).all()
    return _read(store, connection, session_id, sorted(ids), _everywhere)


def _find(
    store: ScopedStore,
    connection: Connection,
    session_id: str,
    wanted: Wanted,
    restrict: Restriction,
) -> ItemInfo | None:
    for ids in _candidates(store, connection, session_id, wanted, restrict):
        for info in reversed(_read(store, connection, session_id, ids, restrict)):
            if info.item is not UNREADABLE and wanted.matches(info):
                return info
    return None


def _candidates(
    store: ScopedStore,
    connection: Connection,
    session_id: str,
    wanted: Wanted,
    restrict: Restriction,
) -> Iterator[list[int]]:
    """Yields batches of the ids of rows that can match, newest first."""
    if wanted.item_id is not None:
        yield [wanted.item_id]
        return
    messages = store.database.tables.messages
    text = store.database.dialect.by_code_point(messages.c.message_data, native=False)
    statement: Any = (
        select(messages.c.id)
        .where(
            messages.c.session_id == bindparam("of_session"),
            text.contains(wanted.text, autoescape=True),
        )
        .order_by((messages.c.id + 0).desc())
    )
    statement, parameters = restrict(statement, messages.c.session_id)
    found = connection.scalars(statement, {**parameters, "of_session": session_id}).all()
    for start in range(0, len(found), _AT_ONCE):
        yield list(found[start : start + _AT_ONCE])


def _read(
    store: ScopedStore,
    connection: Connection,
    session_id: str,
    ids: Sequence[int],
    restrict: Restriction,
) -> list[ItemInfo]:
    tables, dialect = store.database.tables, store.database.dialect
    return read_items(
        connection, tables, dialect, session_id, ids, descending=False, restrict=restrict
    )


def _everywhere(statement: Any, _: Any) -> tuple[Any, dict[str, Any]]:
    """No restriction: the session is locked, and is within the scope."""
    return statement, {}

"""Items of a history: in pages, one by one, and appended.

A history is ordered by `(created_at, id)`, as in the SDK. Rows that are not JSON are skipped.

Cursors of pages have the format of `query.cursors`. The position is `[stored time, id]` of the
last item; the question is `["items", session id, newest first, scope]`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, bindparam, select

from agents_session_metadata.core.features import prepare_change
from agents_session_metadata.core.messages import (
    UNREADABLE,
    ItemPosition,
    Restriction,
    delete_messages,
    everywhere,
    in_order,
    newest_id,
    read_history,
    read_items,
    read_position,
    read_positions,
)
from agents_session_metadata.core.rows import check_id, check_id_type, id_problem
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import (
    InvalidCursorError,
    SessionExistsError,
    SessionNotFoundError,
)
from agents_session_metadata.query.cursors import seal, unseal
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import ItemInfo, ItemPage, JSONValue
from agents_session_metadata.values import is_text

PAGE_BYTES = 8 * 2**20
"""The maximum size of a page of items, unless it has only one item."""
_AT_ONCE = 10
"""Rows that a search reads at a time."""


# ---- pages ----


async def read_page(
    store: ScopedStore, session_id: str, *, limit: int, cursor: str | None, newest_first: bool
) -> ItemPage:
    """Ends a page early if it would exceed `PAGE_BYTES`."""
    check_id_type(session_id)
    after = None
    if cursor is not None:
        question = _question(store, session_id, newest_first=newest_first)
        after = _decode(cursor, question, store.database.dialect)
    if not is_text(session_id):
        return ItemPage([], None)
    items, last = await store.database.read(
        lambda connection, queries: _read_page(
            store, connection, queries, session_id, after, limit, newest_first=newest_first
        )
    )
    if last is None:
        return ItemPage(items, None)
    return ItemPage(items, item_cursor(store, session_id, last, newest_first=newest_first))


def _read_page(
    store: ScopedStore,
    connection: Connection,
    queries: Queries,
    session_id: str,
    after: ItemPosition | None,
    limit: int,
    *,
    newest_first: bool,
) -> tuple[list[ItemInfo], ItemPosition | None]:
    """Returns the items, and the position where the page ends unless it is the last one."""
    where = connection, store.database.tables, store.database.dialect, session_id
    restrict = partial(store.question, queries)
    found: list[ItemInfo] = []
    positions: dict[int, ItemPosition] = {}
    size = 0
    while len(found) <= limit:
        # One readable item more than asked for tells whether there is a next page.
        asked = limit + 1 - len(found)
        rows = read_positions(
            *where, after=after, limit=asked, newest_first=newest_first, restrict=restrict
        )
        wanted: list[int] = []
        for position, length in rows:
            size += length
            if size > PAGE_BYTES and (found or wanted):
                break
            wanted.append(position.item_id)
            positions[position.item_id] = after = position
        items = read_items(*where, wanted, restrict)
        found += [each for each in items if each.item is not UNREADABLE]
        if len(wanted) < len(rows):
            return found, after
        if len(rows) < asked:
            break
    last = positions[found[limit - 1].item_id] if len(found) > limit else None
    return found[:limit], last


async def find_position(store: ScopedStore, session_id: str, item_id: int) -> ItemPosition | None:
    """Returns None if the item does not exist within the scope."""
    return await store.database.read(
        lambda connection, queries: read_position(
            connection,
            store.database.tables,
            store.database.dialect,
            session_id,
            item_id,
            partial(store.question, queries),
        )
    )


def item_cursor(
    store: ScopedStore, session_id: str, position: ItemPosition, *, newest_first: bool
) -> str:
    """Returns the cursor of a page that begins after a position."""
    body = json.dumps(position, separators=(",", ":")).encode()
    return seal(body, _question(store, session_id, newest_first=newest_first))


def _decode(cursor: str, question: list[Any], dialect: Dialect) -> ItemPosition:
    try:
        time, item_id = json.loads(unseal(cursor, question))
        if not isinstance(time, str) or type(item_id) is not int or abs(item_id) >= 2**63:
            raise InvalidCursorError
        dialect.stored_time.to_database(time)
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        raise InvalidCursorError from None
    return ItemPosition(time, item_id)


def _question(store: ScopedStore, session_id: str, *, newest_first: bool) -> list[Any]:
    return ["items", session_id, newest_first, store.scope.condition.encoded()]


# ---- single items ----


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
            partial(store.question, queries),
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
        found = _find(store, connection, session_id, wanted, everywhere)
        if found is None:
            return False
        delete_messages(connection, database.tables, session_id, [found.item_id])
        return True

    return await database.write(delete)


async def append_items(store: ScopedStore, session_id: str, texts: Sequence[str]) -> list[ItemInfo]:
    """Returns the items as they are stored. The session must exist, and no run may hold it."""
    if id_problem(session_id) is not None:
        raise SessionNotFoundError(session_id)

    def append(connection: Connection, _: Any) -> list[ItemInfo]:
        if not store.lock(connection, session_id):
            raise SessionNotFoundError(session_id)
        prepare_change(store.database, connection, session_id)
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
    """The session must be locked."""
    database = store.database
    last = newest_id(connection, database.tables, session_id)
    store.rows.insert_items(connection, session_id, texts)
    return read_history(connection, database.tables, database.dialect, session_id, last)


def _find(
    store: ScopedStore,
    connection: Connection,
    session_id: str,
    wanted: Wanted,
    restrict: Restriction,
) -> ItemInfo | None:
    where = connection, store.database.tables, store.database.dialect, session_id
    for ids in _candidates(store, connection, session_id, wanted, restrict):
        for info in read_items(*where, ids, restrict):
            if info.item is not UNREADABLE and wanted.matches(info):
                return info
    return None


def _candidates(
    store: ScopedStore,
    connection: Connection,
    session_id: str,
    wanted: Wanted,
    restrict: Restriction,
) -> Iterator[Sequence[int]]:
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
        .order_by(*in_order(messages, newest_first=True))
    )
    statement, parameters = restrict(statement, messages.c.session_id)
    found = connection.scalars(statement, {**parameters, "of_session": session_id}).all()
    for start in range(0, len(found), _AT_ONCE):
        yield found[start : start + _AT_ONCE]

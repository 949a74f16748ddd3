"""Items of a history: in pages, one by one, and appended.

A history is ordered by `(created_at, id)`, as in the SDK. Rows that are not JSON are skipped.

Cursors of pages have the format of `query.ordering`. The position is `[stored time, id]` of the
last item; the question is `["items", session id, newest first, scope]`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, or_

from agents_session_metadata.core.features import prepare_change
from agents_session_metadata.core.messages import (
    UNREADABLE,
    ItemPosition,
    Restriction,
    delete_messages,
    everywhere,
    find_items,
    newest_id,
    read_history,
    read_page,
    read_position,
)
from agents_session_metadata.core.rows import check_id, check_id_type, id_problem
from agents_session_metadata.errors import SessionExistsError, SessionNotFoundError
from agents_session_metadata.query.ordering import seal, unseal
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import ItemInfo, ItemPage, JSONValue
from agents_session_metadata.values import is_text

# ---- pages ----


async def list_items(
    store: ScopedStore, session_id: str, *, limit: int, cursor: str | None, newest_first: bool
) -> ItemPage:
    check_id_type(session_id)
    after = None
    if cursor is not None:
        question = _question(store, session_id, newest_first=newest_first)
        after = ItemPosition(*json.loads(unseal(cursor, question)))
    if not is_text(session_id):
        return ItemPage([], None)

    found = await store.database.read(
        lambda connection, queries: _read_page(
            store, connection, queries, session_id, after, limit, newest_first=newest_first
        )
    )
    next_cursor = None
    if len(found) > limit:
        end = found[limit - 1][1]
        next_cursor = item_cursor(store, session_id, end, newest_first=newest_first)
    return ItemPage([item for item, _ in found[:limit]], next_cursor)


def _read_page(
    store: ScopedStore,
    connection: Connection,
    queries: Queries,
    session_id: str,
    after: ItemPosition | None,
    limit: int,
    *,
    newest_first: bool,
) -> list[tuple[ItemInfo, ItemPosition]]:
    """Reads one readable item more than asked for, which tells whether there is a next page."""
    last, found = after, list[tuple[ItemInfo, ItemPosition]]()
    while asked := limit + 1 - len(found):
        rows = read_page(
            connection,
            store.database.tables,
            store.database.dialect,
            session_id,
            after=last,
            limit=asked,
            newest_first=newest_first,
            restrict=partial(store.question, queries),
        )
        found += [each for each in rows if each[0].item is not UNREADABLE]
        if len(rows) < asked:
            break
        last = rows[-1][1]
    return found


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


def _question(store: ScopedStore, session_id: str, *, newest_first: bool) -> list[Any]:
    return ["items", session_id, newest_first, store.scope.condition.encoded()]


# ---- single items ----


@dataclass(frozen=True)
class Wanted:
    """Items to find. If several match, it is the newest one.

    Only the rows in `items`, and those whose stored text contains one of `texts`, are read.
    """

    matches: Callable[[ItemInfo], bool]
    items: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()


class ItemExistsError(ValueError):
    """The history already contains an item that a request adds."""

    def __init__(self, info: ItemInfo) -> None:
        super().__init__(f"the history already contains item {info.item_id}")
        self.info: ItemInfo = info


async def read_after(
    store: ScopedStore, session_id: str, wanted: Wanted, *, limit: int, newest_first: bool
) -> tuple[list[ItemInfo], bool] | None:
    """Returns the items after an item, and whether there are more; None if it does not exist."""

    def read(connection: Connection, queries: Queries) -> tuple[list[ItemInfo], bool] | None:
        where = connection, store.database.tables, store.database.dialect, session_id
        restrict = partial(store.question, queries)
        info = _find(store, connection, session_id, wanted, restrict)
        after = read_position(*where, info.item_id, restrict) if info else None
        if after is None:
            return None
        found = _read_page(
            store, connection, queries, session_id, after, limit, newest_first=newest_first
        )
        return [item for item, _ in found[:limit]], len(found) > limit

    if id_problem(session_id) is not None:
        return None
    return await store.database.read(read)


async def find_item(store: ScopedStore, session_id: str, wanted: Wanted) -> ItemInfo | None:
    """Returns nothing outside the scope."""
    if id_problem(session_id) is not None:
        return None
    return await store.database.read(
        lambda connection, queries: _find(
            store, connection, session_id, wanted, partial(store.question, queries)
        )
    )


async def read_found(
    store: ScopedStore, wanted: Collection[tuple[str, int]]
) -> dict[tuple[str, int], ItemInfo]:
    """Reads items of several sessions, by the ids of sessions and items, within the scope."""

    def read(connection: Connection, queries: Queries) -> dict[tuple[str, int], ItemInfo]:
        found = {}
        for session_id in sorted({session_id for session_id, _ in wanted}):
            ids = [item_id for each, item_id in wanted if each == session_id]
            where = connection, store.database.tables, store.database.dialect, session_id
            condition = store.database.tables.messages.c.id.in_(ids)
            for info in find_items(*where, condition, partial(store.question, queries)):
                found[session_id, info.item_id] = info
        return found

    return await store.database.read(read) if wanted else {}


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


def appending(
    store: ScopedStore, session_id: str, texts: Sequence[str], known: Wanted | None = None
) -> Callable[[Connection, Any], list[ItemInfo]]:
    """Returns work that appends items and returns them as stored. The session must exist.

    It raises `ItemExistsError` if the history has an item that `known` finds.
    """

    def append(connection: Connection, _: Any) -> list[ItemInfo]:
        if id_problem(session_id) is not None or not store.lock(connection, session_id):
            raise SessionNotFoundError(session_id)
        prepare_change(store.database, connection, session_id)
        found = known and _find(store, connection, session_id, known, everywhere)
        if found:
            raise ItemExistsError(found)
        if not texts:
            return []
        items = _insert(store, connection, session_id, texts)
        store.rows.touch(connection, session_id)
        return items

    return append


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
    store.insert_items(connection, session_id, texts)
    return read_history(connection, database.tables, database.dialect, session_id, last)


def _find(
    store: ScopedStore,
    connection: Connection,
    session_id: str,
    wanted: Wanted,
    restrict: Restriction,
) -> ItemInfo | None:
    tables, dialect = store.database.tables, store.database.dialect
    messages = tables.messages
    text = dialect.by_code_point(messages.c.message_data, native=False)
    condition = or_(
        messages.c.id.in_(wanted.items),
        *(text.contains(each, autoescape=True) for each in wanted.texts),
    )
    found = find_items(connection, tables, dialect, session_id, condition, restrict)
    return next(filter(wanted.matches, found), None)

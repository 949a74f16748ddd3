"""Items of a history: in pages, one by one, and appended.

A history is ordered by `(created_at, id)`, as in the SDK. Rows that are not JSON are skipped.

Cursors of pages have the format of `query.ordering`. The position is `[stored time, id]` of the
last item; the question is `["items", session id, newest first, scope]`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, or_

from agents_session_metadata.core.messages import (
    UNREAD,
    UNREADABLE,
    ItemPosition,
    PlacedItem,
    delete_messages,
    find_items,
    newest_id,
    read_history,
    read_page,
)
from agents_session_metadata.errors import SessionExistsError
from agents_session_metadata.query.ordering import seal, unseal
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import ItemInfo, ItemPage, JSONValue
from agents_session_metadata.values import check_id, check_id_type, is_text

from .rewind import lock_to_change

T = TypeVar("T")


async def _read(store: ScopedStore, session_id: str, work: Callable[[Connection], T]) -> T | None:
    """Returns None if no session can have this id. Needs tables of ours only in a scope."""
    check_id_type(session_id)
    if not is_text(session_id):
        return None
    return await store.database.read(work, prepare=store.is_restricted)


# ---- pages ----


async def list_items(
    store: ScopedStore,
    session_id: str,
    *,
    limit: int,
    newest_first: bool,
    cursor: str | None = None,
    after: Wanted | None = None,
    max_bytes: int | None = None,
) -> ItemPage:
    """The page begins after `cursor` or after an item; raises `ItemGoneError` if that is gone."""
    check_id_type(session_id)
    begin = None
    if cursor is not None:
        question = _question(store, session_id, newest_first=newest_first)
        time = store.database.dialect.stored_time
        begin = ItemPosition(*unseal(cursor, question, time, int))

    def read(connection: Connection) -> tuple[list[PlacedItem], ItemPosition | None]:
        """Returns items, and the place of the last one if there are more."""
        last, found = begin, list[PlacedItem]()
        if after is not None:
            place = _place(store, session_id, after, connection)
            if place is None:
                raise ItemGoneError
            last = place[1]
        # One readable item more than asked for tells whether there is a next page.
        while asked := limit + 1 - len(found):
            rows = read_page(
                store,
                connection,
                session_id,
                after=last,
                limit=asked,
                newest_first=newest_first,
                most_bytes=max_bytes,
            )
            sent = [each for each in rows if each[0].item is not UNREAD]
            found += [each for each in sent if each[0].item is not UNREADABLE]
            if len(sent) < asked and len(sent) == len(rows):
                return found, None
            last = sent[-1][1]
            if max_bytes is not None and found and len(found) <= limit:
                return found, last
        return found[:limit], found[limit - 1][1]

    found, last = await _read(store, session_id, read) or ([], None)
    next_cursor = last and _cursor(store, session_id, last, newest_first=newest_first)
    return ItemPage([item for item, _ in found], next_cursor)


async def cursors_at(store: ScopedStore, session_id: str, item_id: int) -> tuple[str, str] | None:
    """Returns the cursors of the items before an item, newest first, and of it and those after it.

    None if the item does not exist within the scope.
    """
    wanted = Wanted(lambda _: True, (item_id,))
    found = await _read(store, session_id, partial(_place, store, session_id, wanted))
    if found is None:
        return None
    position = found[1]
    just_before = position._replace(item_id=position.item_id - 1)
    return (
        _cursor(store, session_id, position, newest_first=True),
        _cursor(store, session_id, just_before, newest_first=False),
    )


def _cursor(
    store: ScopedStore, session_id: str, position: ItemPosition, *, newest_first: bool
) -> str:
    """Returns the cursor of a page that begins after a position."""
    return seal(position, _question(store, session_id, newest_first=newest_first))


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


class ItemGoneError(LookupError):
    """The history does not contain an item that a page begins after."""


def _place(
    store: ScopedStore, session_id: str, wanted: Wanted, connection: Connection
) -> PlacedItem | None:
    database = store.database
    messages = database.tables.messages
    text = database.dialect.by_code_point(messages.c.message_data, native=False)
    condition = or_(
        messages.c.id.in_(wanted.items),
        *(text.contains(each, autoescape=True) for each in wanted.texts),
    )
    found = find_items(store, connection, session_id, condition)
    return next((each for each in found if wanted.matches(each[0])), None)


async def find_item(store: ScopedStore, session_id: str, wanted: Wanted) -> ItemInfo | None:
    """Returns nothing outside the scope."""
    found = await _read(store, session_id, partial(_place, store, session_id, wanted))
    return found and found[0]


async def read_found(
    store: ScopedStore, wanted: Collection[tuple[str, int]]
) -> dict[tuple[str, int], ItemInfo]:
    """Reads items of several sessions, by the ids of sessions and items, within the scope."""
    database = store.database

    def read(connection: Connection) -> dict[tuple[str, int], ItemInfo]:
        found = {}
        for session_id in sorted({session_id for session_id, _ in wanted}):
            ids = [item_id for each, item_id in wanted if each == session_id]
            condition = database.tables.messages.c.id.in_(ids)
            for info, _ in find_items(store, connection, session_id, condition):
                found[session_id, info.item_id] = info
        return found

    return await database.read(read) if wanted else {}


async def delete_item(store: ScopedStore, session_id: str, wanted: Wanted) -> bool:
    """Does not change `updated_at`, like `pop_item`. Raises if a run works or waits."""

    def delete(connection: Connection) -> bool:
        lock_to_change(store, connection, session_id)
        found = _place(store, session_id, wanted, connection)
        if found is not None:
            delete_messages(store.database, connection, session_id, [found[0].item_id])
        return found is not None

    return await store.database.write(delete)


def appending(
    store: ScopedStore, session_id: str, texts: Sequence[str], known: Wanted | None = None
) -> Callable[[Connection], list[ItemInfo]]:
    """Returns work that appends items and returns them as stored. The session must exist.

    It raises `ItemExistsError` if the history has an item that `known` finds.
    """

    def append(connection: Connection) -> list[ItemInfo]:
        lock_to_change(store, connection, session_id)
        found = known and _place(store, session_id, known, connection)
        if found:
            raise ItemExistsError(found[0])
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

    def create(connection: Connection) -> None:
        if not store.create_locked(connection, session_id, encoded):
            raise SessionExistsError(session_id)
        if texts:
            _insert(store, connection, session_id, texts)

    await store.database.write(create)


def _insert(
    store: ScopedStore, connection: Connection, session_id: str, texts: Sequence[str]
) -> list[ItemInfo]:
    """The session must be locked."""
    last = newest_id(store.database, connection, session_id)
    store.insert_items(connection, session_id, texts)
    return read_history(store.database, connection, session_id, last)

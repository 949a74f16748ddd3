"""Items of a history: in pages, one by one, and appended.

A history is ordered by `(created_at, id)`, as in the SDK. Rows that are not JSON are skipped.

Cursors of pages have the format of `query.ordering`. The position is `[stored time, id]` of the
last item; the question is `["items", session id, newest first, scope]`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import BigInteger, Connection, literal, or_

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
from agents_session_metadata.errors import (
    InvalidCursorError,
    ItemExistsError,
    ItemNotFoundError,
    SessionNotFoundError,
)
from agents_session_metadata.query.ordering import seal, unseal
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import ItemInfo, ItemPage
from agents_session_metadata.values import EncodedValue, check_id_type, is_text

from .rewind import lock_to_change

T = TypeVar("T")

_AT_ONCE = 100
"""Ids of new items that are looked for at once."""


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
    cursor: str | None,
    after: int | str | None,
    around: int | str | None,
    max_bytes: int | None,
) -> ItemPage:
    """The page begins after `cursor` or `after`, or has `around` in its middle."""
    check_id_type(session_id)
    pages = _Pages(store, session_id, newest_first)
    begin, back = (None, False) if cursor is None else pages.decode(cursor)

    def read(connection: Connection) -> ItemPage:
        if around is None:
            first = begin
            if after is not None:
                first = find_item(store, connection, session_id, after)[1]
            return pages.read(connection, first, limit, max_bytes, back=back)
        middle = find_item(store, connection, session_id, around)[1]
        # Both halves contain the item, so that each has one, however large that is.
        size = None if max_bytes is None else max(1, max_bytes // 2)
        before = pages.read(connection, pages.after(middle), limit // 2 + 1, size, back=True)
        later = pages.read(connection, pages.before(middle), limit - limit // 2, size)
        items = [each for each in before.items if each.item_id != middle.item_id]
        return ItemPage([*items, *later.items], later.next_cursor, before.previous_cursor)

    page = await _read(store, session_id, read)
    if page is None and (after is not None or around is not None):
        raise SessionNotFoundError(session_id)
    return page or ItemPage([], None)


class _Pages(NamedTuple):
    """Pages of a history in one order."""

    store: ScopedStore
    session_id: str
    newest_first: bool

    def read(
        self,
        connection: Connection,
        begin: ItemPosition | None,
        limit: int,
        max_bytes: int | None,
        *,
        back: bool = False,
    ) -> ItemPage:
        """Reads what comes after a position; with `back`, the page that ends before it."""
        found, last = list[PlacedItem](), begin
        # One readable item more than asked for tells whether there is a next page.
        while asked := limit + 1 - len(found):
            rows = read_page(
                self.store,
                connection,
                self.session_id,
                after=last,
                limit=asked,
                newest_first=self.newest_first ^ back,
                most_bytes=max_bytes,
            )
            sent = [each for each in rows if each[0].item is not UNREAD]
            found += [each for each in sent if each[0].item is not UNREADABLE]
            if len(sent) < asked and len(sent) == len(rows):
                last = None
                break
            last = sent[-1][1]
            if max_bytes is not None and found and len(found) <= limit:
                break
        if len(found) > limit:
            last = found[limit - 1][1]
        items = [item for item, _ in found[:limit]]
        if back:
            following = begin and self._encode(self.before(begin))
            return ItemPage(items[::-1], following, last and self._encode(last, back=True))
        previous = begin and self._encode(self.after(begin), back=True)
        return ItemPage(items, last and self._encode(last), previous)

    def before(self, position: ItemPosition) -> ItemPosition:
        """Returns the position just before another one, in the order of the pages."""
        return position._replace(item_id=position.item_id + (1 if self.newest_first else -1))

    def after(self, position: ItemPosition) -> ItemPosition:
        return position._replace(item_id=position.item_id + (-1 if self.newest_first else 1))

    def decode(self, cursor: str) -> tuple[ItemPosition, bool]:
        """Returns a position, and whether the page ends there."""
        time = self.store.database.dialect.stored_time
        try:
            return ItemPosition(*unseal(cursor, self._question(), time, int)), False
        except InvalidCursorError:
            return ItemPosition(*unseal(cursor, self._question(back=True), time, int)), True

    def _encode(self, position: ItemPosition, *, back: bool = False) -> str:
        return seal(position, self._question(back=back))

    def _question(self, *, back: bool = False) -> list[Any]:
        condition = self.store.scope.condition.encoded()
        question = ["items", self.session_id, self.newest_first, condition]
        return [*question, "back"] if back else question


# ---- single items ----


def find_item(
    store: ScopedStore, connection: Connection, session_id: str, item_id: int | str
) -> PlacedItem:
    """Returns the item with a row's number, or the newest one with an `id` of its own.

    Raises if the item, or the session, does not exist within the scope.
    """
    if isinstance(item_id, str):
        found = _items_with(store, connection, session_id, [item_id])
    else:
        # No row has a number that does not fit a column.
        number = item_id if 0 < item_id < 2**63 else 0
        is_it = store.database.tables.messages.c.id == literal(number, BigInteger)
        found = find_items(store, connection, session_id, is_it)
    if found:
        return found[0]
    if not store.finds(connection, session_id):
        raise SessionNotFoundError(session_id)
    raise ItemNotFoundError(session_id, item_id)


def check_item_id(item_id: object) -> None:
    if not isinstance(item_id, (int, str)) or isinstance(item_id, bool):
        raise TypeError(f"an item id must be an int or a str, got {type(item_id).__name__}")


def _items_with(
    store: ScopedStore, connection: Connection, session_id: str, ids: Sequence[str]
) -> list[PlacedItem]:
    """Returns the items that have one of these ids of their own, newest first."""
    database = store.database
    text = database.dialect.by_code_point(database.tables.messages.c.message_data, native=False)
    # Other characters than ASCII are stored as they are or escaped.
    written = {json.dumps(each, ensure_ascii=escapes) for each in ids for escapes in (True, False)}
    contained = [text.contains(each, autoescape=True) for each in written if is_text(each)]
    found = find_items(store, connection, session_id, or_(*contained))
    return [each for each in found if own_id(each[0].item) in ids]


def own_id(item: object) -> str | None:
    found = item.get("id") if isinstance(item, Mapping) else None
    return found if isinstance(found, str) and found else None


async def get_item(store: ScopedStore, session_id: str, item_id: int | str) -> ItemInfo:
    check_item_id(item_id)
    found = await _read(
        store, session_id, lambda connection: find_item(store, connection, session_id, item_id)
    )
    if found is None:
        raise SessionNotFoundError(session_id)
    return found[0]


async def delete_item(store: ScopedStore, session_id: str, item_id: int | str) -> None:
    """Does not change `updated_at`, like `pop_item`. Raises if a run works or waits."""
    check_id_type(session_id)
    check_item_id(item_id)

    def delete(connection: Connection) -> None:
        lock_to_change(store, connection, session_id)
        found, _ = find_item(store, connection, session_id, item_id)
        delete_messages(store.database, connection, session_id, [found.item_id])

    await store.database.write(delete, prepare=store.is_restricted)


def item_texts(items: Iterable[Mapping[str, Any]], *, ensure_ascii: bool) -> list[str]:
    """Returns the JSON of items, as the SDK's session writes it."""
    texts = []
    for index, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise TypeError(f"items[{index}] must be a mapping, got {type(item).__name__}")
        texts.append(json.dumps(dict(item), ensure_ascii=ensure_ascii, separators=(",", ":")))
    return texts


def appending(
    store: ScopedStore, session_id: str, texts: Sequence[str], *, unique_ids: bool
) -> Callable[[Connection], list[ItemInfo]]:
    """Returns work that appends items and returns them as stored. The session must exist."""
    new_ids = [each for text in texts if (each := own_id(json.loads(text)))] if unique_ids else []

    def append(connection: Connection) -> list[ItemInfo]:
        lock_to_change(store, connection, session_id)
        for start in range(0, len(new_ids), _AT_ONCE):
            ids = new_ids[start : start + _AT_ONCE]
            for found, _ in _items_with(store, connection, session_id, ids):
                raise ItemExistsError(session_id, found.item["id"])
        if not texts:
            return []
        last = newest_id(store.database, connection, session_id)
        store.insert_items(connection, session_id, texts)
        store.rows.touch(connection, session_id)
        return read_history(store.database, connection, session_id, last)

    for index, each in enumerate(new_ids):
        if each in new_ids[:index]:
            raise ItemExistsError(session_id, each)
    return append


def create(
    store: ScopedStore,
    session_id: str,
    encoded: Mapping[str, EncodedValue],
    texts: Sequence[str],
    connection: Connection,
) -> bool:
    """Creates a session with items. Returns whether the id was free."""
    if not store.create_locked(connection, session_id, encoded):
        return False
    store.insert_items(connection, session_id, texts)
    return True

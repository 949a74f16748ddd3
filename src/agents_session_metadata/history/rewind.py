"""The history of one session: pages of items, previews, and removing its end.

A history is ordered by row id: items come in the order in which they were added. The SDK orders by
time first, which goes wrong when a clock is set back. Rows that the SDK skips, because they are not
JSON, are skipped; they are removed together with the items around them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from sqlalchemy import Connection, func, update

from agents_session_metadata.core.features import check_history_may_change
from agents_session_metadata.core.messages import (
    UNREADABLE,
    delete_messages,
    read_history,
    read_items,
    read_lengths,
)
from agents_session_metadata.core.rows import check_id_type
from agents_session_metadata.errors import SessionChangedError, SessionNotFoundError
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import ItemInfo, ItemPage
from agents_session_metadata.values import is_text

from .cursors import decode_item_cursor, encode_item_cursor
from .pairs import is_user_message, separated_pair

ItemOrder: TypeAlias = Literal["item_id", "-item_id"]

PAGE_BYTES = 8 * 2**20
"""The maximum size of a page of items, unless it has only one item."""


# ---- pages ----


async def read_page(
    store: ScopedStore, session_id: str, order_by: ItemOrder, limit: int, cursor: str | None
) -> ItemPage:
    """Ends a page early if it would exceed `PAGE_BYTES`."""
    check_id_type(session_id)
    if order_by not in get_args(ItemOrder):
        raise ValueError(f"order_by must be 'item_id' or '-item_id', got {order_by!r}")
    question = session_id, order_by, store.scope.condition
    after = None if cursor is None else decode_item_cursor(cursor, *question)
    if not is_text(session_id):
        return ItemPage([], None)
    reader = _PageReader(store, session_id, descending=order_by == "-item_id")
    items, last = await store.database.read(
        lambda connection, queries: reader.read(connection, queries, after, limit)
    )
    return ItemPage(items, None if last is None else encode_item_cursor(last, *question))


@dataclass(frozen=True)
class _PageReader:
    store: ScopedStore
    session_id: str
    descending: bool

    def read(
        self, connection: Connection, queries: Queries, after: int | None, limit: int
    ) -> tuple[list[ItemInfo], int | None]:
        """Returns the items, and the id where the page ends unless it is the last one."""
        found: list[ItemInfo] = []
        size = 0
        while len(found) <= limit:
            # One readable item more than asked for tells whether there is a next page.
            asked = limit + 1 - len(found)
            rows = self._lengths(connection, queries, after, asked)
            wanted: list[int] = []
            for item_id, length in rows:
                size += length
                if size > PAGE_BYTES and (found or wanted):
                    break
                wanted.append(item_id)
                after = item_id
            found += self._items(connection, queries, wanted)
            if len(wanted) < len(rows):
                return found, after
            if len(rows) < asked:
                break
        return found[:limit], found[limit - 1].item_id if len(found) > limit else None

    def _lengths(
        self, connection: Connection, queries: Queries, after: int | None, limit: int
    ) -> Sequence[tuple[int, int]]:
        return read_lengths(
            connection,
            self.store.database.tables,
            self.store.database.dialect,
            self.session_id,
            after=after,
            limit=limit,
            descending=self.descending,
            restrict=lambda statement, column: self.store.question(queries, statement, column),
        )

    def _items(
        self, connection: Connection, queries: Queries, items: Sequence[int]
    ) -> list[ItemInfo]:
        found = read_items(
            connection,
            self.store.database.tables,
            self.store.database.dialect,
            self.session_id,
            items,
            descending=self.descending,
            restrict=lambda statement, column: self.store.question(queries, statement, column),
        )
        return [each for each in found if each.item is not UNREADABLE]


# ---- removing the end ----


@dataclass(frozen=True)
class Cut:
    """Removes the last `turns`, or the items from the id `before` on.

    `expect_last` is the id that the newest item must have.
    """

    turns: int | None = None
    before: int | None = None
    expect_last: int | None = None

    def __post_init__(self) -> None:
        for name in ("turns", "before", "expect_last"):
            number = getattr(self, name)
            if number is not None and type(number) is not int:
                raise TypeError(f"{name} must be an integer, got {type(number).__name__}")
        if (self.turns is None) == (self.before is None):
            raise ValueError("pass either turns or before")
        if self.turns is not None and self.turns < 1:
            raise ValueError(f"turns must be at least 1, got {self.turns}")

    def position(self, session_id: str, history: Sequence[ItemInfo]) -> int:
        """Returns how many rows of a history come before the cut.

        Raises `ValueError` if items are encrypted or the cut would separate items that belong
        together.
        """
        readable = [each for each in history if each.item is not UNREADABLE]
        if self.expect_last is not None:
            newest = readable[-1].item_id if readable else None
            if newest != self.expect_last:
                raise SessionChangedError(
                    session_id, f"the newest item is {newest}, expected {self.expect_last}"
                )
        check_not_encrypted(readable)
        if self.before is None:
            return self._checked(history, self._start_of_turns(history))
        for position, each in enumerate(history):
            if each.item_id == self.before and each.item is not UNREADABLE:
                return self._checked(history, position)
        raise ValueError(
            f"the history has no item {self.before}; pass an item_id of this session's list_items"
        )

    def _start_of_turns(self, history: Sequence[ItemInfo]) -> int:
        starts = [position for position, each in enumerate(history) if is_user_message(each.item)]
        return starts[-self.turns :][0] if starts and self.turns else len(history)

    def _checked(self, history: Sequence[ItemInfo], position: int) -> int:
        pair = separated_pair([each.item for each in history], position)
        if pair is not None:
            kept, removed = (history[each] for each in pair)
            raise ValueError(
                f"item {removed.item_id} ({_kind(removed)}) belongs to item {kept.item_id} "
                f"({_kind(kept)}), which would stay; choose an item before or after both"
            )
        return position


def lock_history(
    store: ScopedStore, connection: Connection, session_id: str, cut: Cut
) -> tuple[list[ItemInfo], list[ItemInfo]]:
    """Locks a session, and returns the items that a cut keeps and the items that it removes."""
    lock_to_change(store, connection, session_id)
    database = store.database
    history = read_history(connection, database.tables, database.dialect, session_id)
    position = cut.position(session_id, history)
    return history[:position], history[position:]


def lock_to_change(store: ScopedStore, connection: Connection, session_id: str) -> None:
    """Locks a session whose history is about to change; raises if a run is paused."""
    if not store.lock(connection, session_id):
        raise SessionNotFoundError(session_id)
    check_history_may_change(store.database, connection, session_id)


def rewinding(
    store: ScopedStore, session_id: str, cut: Cut
) -> Callable[[Connection, Queries], list[ItemInfo]]:
    """Returns work that removes the end of a history, and returns it, oldest first."""
    database = store.database
    sessions = database.tables.sessions

    def rewind(connection: Connection, _: Queries) -> list[ItemInfo]:
        removed = lock_history(store, connection, session_id, cut)[1]
        if not removed:
            return []
        ids = [each.item_id for each in removed]
        delete_messages(connection, database.tables, session_id, ids)
        moved = update(sessions).where(sessions.c.session_id == session_id)
        connection.execute(moved.values(updated_at=func.current_timestamp()))
        return [each for each in removed if each.item is not UNREADABLE]

    return rewind


async def rewind(store: ScopedStore, session_id: str, cut: Cut) -> list[ItemInfo]:
    check_id_type(session_id)
    if not is_text(session_id):
        raise SessionNotFoundError(session_id)
    return await store.database.write(rewinding(store, session_id, cut))


def check_not_encrypted(items: Iterable[ItemInfo]) -> None:
    if any(_is_encrypted(each.item) for each in items):
        raise ValueError(
            "the history is encrypted, so its turns and pairs of items cannot be recognized"
        )


def is_item_encrypted(store: ScopedStore, connection: Connection, session: str, item: int) -> bool:
    """Must be called while the session is locked."""
    found = read_items(
        connection,
        store.database.tables,
        store.database.dialect,
        session,
        [item],
        descending=False,
        restrict=lambda statement, _: (statement, {}),
    )
    return any(_is_encrypted(each.item) for each in found)


def _is_encrypted(item: Any) -> bool:
    """Recognizes an item that was written through the SDK's `EncryptedSession`."""
    return isinstance(item, dict) and item.get("__enc__") == 1


def _kind(info: ItemInfo) -> str:
    # Whatever is stored may be there; an item of a pair is an object.
    kind = info.item.get("type") or info.item.get("role")
    return re.sub(r"\W+", "_", str(kind))[:40]

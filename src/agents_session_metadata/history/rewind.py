"""Removes the end of a history.

Rows that are not JSON are removed together with the items around them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection

from agents_session_metadata.core.features import prepare_change
from agents_session_metadata.core.messages import (
    UNREADABLE,
    delete_messages,
    read_history,
)
from agents_session_metadata.errors import SessionChangedError
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.text import is_encrypted
from agents_session_metadata.types import ItemInfo
from agents_session_metadata.values import check_id_type

from .pairs import is_user_message, separated_pair


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
        check_not_encrypted(each.item for each in readable)
        if self.turns is not None:
            places = [at for at, each in enumerate(history) if is_user_message(each.item)]
            places = places[-self.turns :] or [len(history)]
        else:
            places = [
                at
                for at, each in enumerate(history)
                if each.item_id == self.before and each.item is not UNREADABLE
            ]
        if not places:
            raise ValueError(f"the history has no item {self.before}")
        pair = separated_pair([each.item for each in history], places[0])
        if pair is not None:
            kept, removed = (history[each] for each in pair)
            raise ValueError(
                f"item {removed.item_id} ({_kind(removed)}) belongs to item {kept.item_id} "
                f"({_kind(kept)}), which would stay; choose an item before or after both"
            )
        return places[0]


def lock_to_change(store: ScopedStore, connection: Connection, session_id: str) -> None:
    """Locks a session whose history is about to change; raises if a run is paused."""
    store.require(connection, session_id)
    prepare_change(store.database, connection, session_id)


def remove_end(
    store: ScopedStore, session_id: str, cut: Cut, connection: Connection
) -> list[ItemInfo]:
    """Returns what was removed, oldest first."""
    lock_to_change(store, connection, session_id)
    history = read_history(store.database, connection, session_id)
    removed = history[cut.position(session_id, history) :]
    if not removed:
        return []
    ids = [each.item_id for each in removed]
    delete_messages(store.database, connection, session_id, ids)
    store.rows.touch(connection, session_id)
    return [each for each in removed if each.item is not UNREADABLE]


async def rewind(store: ScopedStore, session_id: str, cut: Cut) -> list[ItemInfo]:
    check_id_type(session_id)
    work = partial(remove_end, store, session_id, cut)
    return await store.database.write(work, prepare=store.is_restricted)


def check_not_encrypted(items: Iterable[Any]) -> None:
    if any(map(is_encrypted, items)):
        raise ValueError(
            "the history is encrypted, so its turns and pairs of items cannot be recognized"
        )


def _kind(info: ItemInfo) -> str:
    # Whatever is stored may be there; an item of a pair is an object.
    kind = info.item.get("type") or info.item.get("role")
    return re.sub(r"\W+", "_", str(kind))[:40]

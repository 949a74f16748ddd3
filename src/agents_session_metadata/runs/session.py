"""The session of a run, which writes only while the run holds its lease.

The writes of a run are numbered: each stores how many items it adds in its own transaction. When
the run goes on after a crash, it makes the same writes again, and those that are stored are
skipped. Until it has caught up, it does not see the items that it has stored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from agents.items import TResponseInputItem
from sqlalchemy import Connection, select

from agents_session_metadata._sdk import NothingToCompact
from agents_session_metadata.core.messages import delete_messages, in_order
from agents_session_metadata.errors import SessionChangedError
from agents_session_metadata.session import SQLAlchemyMetadataSession

from .journal import Journal
from .lease import Lease


@dataclass
class Writes:
    """The numbers of items that the writes since the last pause have added. `done` were repeated.

    `base` is the id of the newest item before them.
    """

    base: int
    counts: list[int]
    done: int = 0

    @property
    def is_repeating(self) -> bool:
        return self.done < len(self.counts)


class RunSession(SQLAlchemyMetadataSession):
    """Must be made by `open_session`."""

    _lease: Lease
    _journal: Journal
    _writes: Writes
    _replaces = False
    """Whether the history was cleared, and the next items replace it."""

    # ---- reading ----

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        if not self._writes.is_repeating:
            return await super().get_items(limit)
        if self._journal.base is not None:
            texts = self._journal.base
        else:
            rows = await self._store.database.read(lambda connection, _: self._rows(connection))
            hidden = set(self._own(rows)[sum(self._writes.counts[: self._writes.done]) :])
            texts = [text for item_id, text in rows if item_id not in hidden]
        items = await self._items_of(texts)
        most = limit if limit is not None else getattr(self.session_settings, "limit", None)
        return items if most is None else items[-most:] if most > 0 else []

    def _rows(self, connection: Connection) -> list[tuple[int, str]]:
        messages = self._store.database.tables.messages
        statement = select(messages.c.id, messages.c.message_data)
        own = statement.where(messages.c.session_id == self.session_id)
        return [(row[0], row[1]) for row in connection.execute(own.order_by(*in_order(messages)))]

    def _own(self, rows: list[tuple[int, str]]) -> list[int]:
        """Returns the ids of the items that the writes have added."""
        ids = sorted(item_id for item_id, _ in rows if item_id > self._writes.base)
        return ids[: sum(self._writes.counts)]

    # ---- writing ----

    def _enter(self, connection: Connection) -> bool:
        if not self._store.lock(connection, self.session_id):
            self._lease.is_lost = True
            raise self._lease.lost()
        return True

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        if not items:
            return
        writes = self._writes
        if self._replaces:
            await self._write_items(
                items, self._enter, lambda connection: self._fence(connection, len(items))
            )
            self._replaces = False
            return
        if writes.is_repeating and writes.counts[writes.done] == len(items):
            writes.done += 1
            return
        counts = [*writes.counts[: writes.done], len(items)]
        if writes.is_repeating:
            await self._add_rest(items, counts)
        else:
            async with self._journal.writing() as steps:

                def end(connection: Connection) -> None:
                    self._fence(connection, len(items), counts)
                    self._journal.insert(connection, steps)

                await self._write_items(items, self._enter, end)
        writes.counts, writes.done = counts, len(counts)

    async def _add_rest(self, items: list[TResponseInputItem], counts: list[int]) -> None:
        """Replaces what a turn had added when a tool of it raised; now it has come to its end."""
        before = self._writes.counts
        if len(counts) < len(before) or len(items) < before[-1]:
            problem = (
                f"the run adds {len(items)} items where it has added {before[len(counts) - 1]} "
                "before; agents or tools have changed"
            )
            raise SessionChangedError(self.session_id, problem)

        def begin(connection: Connection) -> bool:
            self._enter(connection)
            self._delete(connection, self._own(self._rows(connection))[-before[-1] :])
            return True

        await self._write_items(
            items, begin, lambda connection: self._fence(connection, len(items), counts)
        )

    def _fence(self, connection: Connection, added: int, counts: list[int] | None = None) -> None:
        changed = {} if counts is None else {"writes": json.dumps(counts)}
        self._lease.fence(connection, added=added, **changed)

    async def pop_item(self) -> TResponseInputItem | None:
        def pop(connection: Connection) -> str | None:
            self._enter(connection)
            rows = self._rows(connection)
            if not rows:
                return None
            self._delete(connection, [rows[-1][0]])
            return rows[-1][1]

        text = await self._transact(pop)
        return next(iter(await self._items_of([] if text is None else [text])), None)

    def _delete(self, connection: Connection, ids: list[int]) -> None:
        delete_messages(connection, self._store.database.tables, self.session_id, ids)
        self._fence(connection, -len(ids))

    # ---- replacing the history, which compaction does ----

    async def clear_session(self) -> None:
        """Deletes the items and keeps the session, whatever `on_clear` is."""
        counts = self._writes.counts[: self._writes.done]
        await self._transact(lambda connection: self._empty(connection, 0, counts))
        self._writes.counts, self._replaces = counts, True

    def _empty(self, connection: Connection, kept: int, counts: list[int]) -> bool:
        """Deletes the items from a position on."""
        self._enter(connection)
        rows = self._rows(connection)
        base = [text for item_id, text in rows if item_id <= self._writes.base]
        self._journal.keep_base(connection, base)
        ids = [item_id for item_id, _ in rows[kept:]]
        delete_messages(connection, self._store.database.tables, self.session_id, ids)
        # What the run adds after this is new, also if it is repeating.
        self._fence(connection, -len(ids), counts)
        return True

    async def _replace_items(self, items: list[TResponseInputItem]) -> None:
        counts = self._writes.counts[: self._writes.done]
        await self._write_items(
            items,
            lambda connection: self._empty(connection, 0, counts),
            lambda connection: self._fence(connection, len(items)),
        )
        self._writes.counts = counts

    def _is_paused(self, connection: Connection) -> bool:  # noqa: ARG002  # it holds the session
        return False

    async def _snapshot(self, limit: int, **kwargs: Any) -> Any:
        if self._writes.is_repeating:
            return NothingToCompact()
        found = await super()._snapshot(limit, **kwargs)
        return None if found is None else _Suffix(self, tuple(found.items), found.complete)


@dataclass(frozen=True)
class _Suffix:
    """The end of a history, which compaction replaces in a transaction of the run."""

    session: RunSession
    items: tuple[Any, ...]
    complete: bool

    async def replace_suffix(self, start: int, output: list[Any]) -> bool:
        session, counts = self.session, self.session._writes.counts

        def begin(connection: Connection) -> bool:
            session._enter(connection)
            kept = len(session._rows(connection)) - len(self.items) + start
            return session._empty(connection, kept, counts)

        await session._write_items(
            output, begin, lambda connection: session._fence(connection, len(output))
        )
        return True


def open_session(lease: Lease, journal: Journal, writes: Writes, settings: Any) -> RunSession:
    session = RunSession._in_store(lease.session_id, lease.store, must_exist=True, **settings)
    session._lease, session._journal, session._writes = lease, journal, writes
    return session

"""The session of a run, which writes only while the run holds its lease.

The writes of a run are numbered: each stores how many items it adds in its own transaction. When
the run goes on after a crash, it makes the same writes again, and those that are stored are
skipped. Until it has caught up, it does not see the items that it has stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from sqlalchemy import Connection, select

from agents_session_metadata._sdk import NothingToCompact
from agents_session_metadata.core.messages import delete_messages, in_order
from agents_session_metadata.errors import SessionChangedError
from agents_session_metadata.session import SQLAlchemyMetadataSession

from .journal import Journal
from .lease import Lease, Progress

_Rows: TypeAlias = "list[tuple[int, str]]"
"""Ids and texts of items, oldest first."""


class RunSession(SQLAlchemyMetadataSession):
    """Must be made by `open_session`."""

    _lease: Lease
    _journal: Journal
    _done = 0
    """The number of writes since the last pause that were made again."""
    _replaces = False
    """Whether the history was cleared, and the next items replace it."""

    @property
    def _counts(self) -> list[int]:
        """The numbers of items that the writes up to now have added."""
        return self._lease.progress.writes[: self._done]

    @property
    def _is_repeating(self) -> bool:
        return self._done < len(self._lease.progress.writes)

    # ---- reading ----

    async def get_items(self, limit: int | None = None) -> list[Any]:
        if not self._is_repeating:
            return await super().get_items(limit)
        texts = self._journal.base
        if texts is None:
            rows = await self._store.database.read(self._rows)
            hidden = self._own(rows)[sum(self._counts) :]
            texts = [row[1] for row in rows if row not in hidden]
        items = await self._items_of(texts)
        most = limit if limit is not None else getattr(self.session_settings, "limit", None)
        return items if most is None else items[-most:] if most > 0 else []

    def _rows(self, connection: Connection) -> _Rows:
        messages = self._messages
        statement = select(messages.c.id, messages.c.message_data)
        own = statement.where(messages.c.session_id == self.session_id)
        return [(row[0], row[1]) for row in connection.execute(own.order_by(*in_order(messages)))]

    def _own(self, rows: _Rows) -> _Rows:
        """Returns the items that the writes since the last pause have added."""
        progress = self._lease.progress
        return sorted(row for row in rows if row[0] > progress.base)[: sum(progress.writes)]

    # ---- writing ----

    async def add_items(self, items: list[Any]) -> None:
        if not items:
            return
        if self._replaces:
            await self._write(items, self._counts)
            self._replaces = False
            return
        repeated = self._lease.progress.writes[self._done :]
        if not repeated:
            await self._write(items, [*self._counts, len(items)])
        elif len(items) != repeated[0]:
            if len(repeated) > 1 or len(items) < repeated[0]:
                problem = (
                    f"the run adds {len(items)} items where it has added {repeated[0]} before; "
                    "agents or tools have changed"
                )
                raise SessionChangedError(self.session_id, problem)
            # When a tool raised, only a part of its turn was added. Now the turn is complete.
            await self._write(
                items,
                [*self._counts, len(items)],
                lambda rows: self._own(rows)[-repeated[0] :],
            )
        self._done += 1

    async def pop_item(self) -> Any | None:
        popped = await self._write([], self._lease.progress.writes, lambda rows: rows[-1:])
        return next(iter(await self._items_of(text for _, text in popped)), None)

    async def _write(
        self,
        items: list[Any],
        counts: list[int],
        choose: Callable[[_Rows], _Rows] | None = None,
        *,
        is_other: bool = False,
    ) -> _Rows:
        """Deletes the chosen items, adds others and stores the progress, in one transaction.

        Returns what was deleted. If `is_other`, the history becomes another one, and the items that
        the run began with are kept for a repetition.
        """
        lease, store, session_id = self._lease, self._store, self.session_id
        texts = await self._texts(items)

        def write(connection: Connection) -> tuple[_Rows, Progress, list[str] | None]:
            if texts:  # One statement locks the session and makes it the most recent one.
                is_locked = lease.holds(connection, lease.sql.touch)
                is_locked = is_locked and store.admits(connection, session_id)
            else:
                is_locked = store.lock(connection, session_id)
            if not is_locked:
                raise lease.lost()
            rows = self._rows(connection) if choose is not None else []
            deleted = choose(rows) if choose is not None else []
            delete_messages(store.database, connection, session_id, [i for i, _ in deleted])
            store.insert_items(connection, session_id, texts)
            count = lease.progress.items + len(texts) - len(deleted)
            progress = replace(lease.progress, items=count, writes=counts)
            lease.fence(connection, lease.sql.write, new_progress=progress.dump())
            insert_steps(connection)
            base = self._journal.base
            if is_other and base is None:
                base = [text for item_id, text in rows if item_id <= progress.base]
                self._journal.keep_base(connection, base)
            return deleted, progress, base

        async with self._journal.writing() as insert_steps:
            written = await store.database.write(write)
            deleted, lease.progress, self._journal.base = written
        return deleted

    # ---- replacing the history, which compaction does ----

    async def clear_session(self) -> None:
        """Deletes the items and keeps the session, whatever `on_clear` is."""
        await self._replace_items([])
        self._replaces = True

    async def _replace_items(self, items: list[Any]) -> None:
        # What the run adds after this is new, also if it is repeating.
        await self._write(items, self._counts, lambda rows: rows, is_other=True)

    def _is_paused(self, connection: Connection) -> bool:  # noqa: ARG002  # it holds the session
        return False

    async def _snapshot(self, limit: int, **kwargs: Any) -> Any:
        if self._is_repeating:
            return NothingToCompact()
        found = await super()._snapshot(limit, **kwargs)

        async def replace_suffix(start: int, output: list[Any]) -> bool:
            """Replaces the end of the history in a transaction of the run."""
            writes, count = self._lease.progress.writes, len(found.items) - start
            await self._write(
                output, writes, lambda rows: rows[max(0, len(rows) - count) :], is_other=True
            )
            return True

        return None if found is None else replace(found, replace_suffix=replace_suffix)


def open_session(lease: Lease, settings: Any) -> RunSession:
    """The caller sets the journal before the session is used."""
    session = RunSession._in_store(lease.session_id, lease.store, must_exist=True, **settings)
    session._lease = lease
    return session

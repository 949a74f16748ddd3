"""Creating, refreshing and dropping the text index while others read and write.

Triggers are created first: what is written from then on enters the queue. Then the items and titles
that were there before are indexed in steps, each of which records how far it has come. So the work
can be interrupted at any moment, and continued by whoever calls again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, delete, func, select, tuple_, update
from sqlalchemy.exc import DBAPIError

from agents_session_metadata.dialects._triggers import RowTrigger
from agents_session_metadata.dialects.sqltypes import ID_LENGTH
from agents_session_metadata.errors import (
    TextIndexMissingError,
    TriggersNotAllowedError,
)
from agents_session_metadata.keys import TITLE
from agents_session_metadata.storage.database import Database, forget_text_index
from agents_session_metadata.storage.index_states import COMPLETE, DROPPING, FILLING, lock_state
from agents_session_metadata.storage.known import may_read
from agents_session_metadata.storage.renames import check_triggers
from agents_session_metadata.storage.word_index import STEP, Queued
from agents_session_metadata.storage.words import (
    TEXT,
    TITLE_ITEM,
    WORDS,
    word_triggers,
)
from agents_session_metadata.types import IndexInfo

from .index_triggers import create_triggers, lacking_triggers

T = TypeVar("T")
Progress = Callable[[int], object]

_DELETED_AT_ONCE = 5_000


async def create_text_index(database: Database[Any], progress: Progress | None = None) -> bool:
    """Create the text index, or continue one that is not complete.

    Returns:
        False if it was complete already.

    Raises:
        TablesMissingError: If its tables are missing and are not to be created.
        TriggersNotAllowedError: If the database user may not create triggers.
    """
    await database.ensure(WORDS)
    index = _TextIndex(database)
    if await index.run(index.is_complete):
        return False
    while await index.run(index.empty_step):
        pass
    try:
        await index.run(index.begin)
        await index.run(index.create_triggers)
    except DBAPIError as error:
        if database.dialect.refuses_triggers(error):
            raise TriggersNotAllowedError from error
        raise
    forget_text_index()
    done = 0
    for step in (index.fill_items, index.fill_titles):
        while found := await index.run(step):
            done += found
            if progress is not None:
                progress(done)
    created = await index.run(index.finish)
    forget_text_index()
    return created


async def refresh_text_index(database: Database[Any], progress: Progress | None = None) -> int:
    """Index everything that is in the queue.

    Returns:
        The number of messages and titles that were taken from the queue.

    Raises:
        TextIndexMissingError: If the text index does not exist.
    """
    index = _TextIndex(database)
    if await index.run_read(index.read_state) in (None, DROPPING):
        raise TextIndexMissingError
    await index.run(index.require_all_rows)
    done = 0
    while found := await index.run(database.word_index.index_step):
        done += found
        if progress is not None:
            progress(done)
    return done


async def drop_text_index(database: Database[Any]) -> bool:
    """Drop the text index.

    Returns:
        Whether there was one.
    """
    index = _TextIndex(database)
    if await index.run_read(index.read_state) is None:
        return False
    found = await index.run(index.leave)
    forget_text_index()
    await index.run(index.drop_triggers)
    if await index.run_read(index.read_state) not in (None, DROPPING):
        # Created again while its triggers were dropped one by one, as on MySQL.
        await create_text_index(database)
        return found
    while await index.run(index.empty_step):
        pass
    await index.run(index.end)
    return found


async def text_index_info(database: Database[Any], *, count: bool = False) -> list[IndexInfo]:
    """The text index, if the user may read one, with the number of its words if wanted."""
    index = _TextIndex(database)

    def read(connection: Connection) -> list[IndexInfo]:
        tables = database.tables
        if not may_read(connection, tables, tables.group(WORDS)):
            return []
        state = index.read_state(connection)
        if state is None:
            return []
        number = None
        if count:
            words = select(func.count()).select_from(database.word_index.words)
            number = int(connection.scalar(words) or 0)
        return [IndexInfo(TEXT, state == COMPLETE, number)]

    return await database.look(read)


class _TextIndex:
    """The statements about the index; each method is work for one transaction."""

    def __init__(self, database: Database[Any]) -> None:
        self._database = database
        self._dialect = database.dialect
        self._tables = database.tables
        self._group = database.tables.group(WORDS)
        self._index = database.word_index
        self._state = self._index.state
        self._own = self._state.c.key == TEXT

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run work as one transaction."""
        return await self._database.write(lambda connection, _: work(connection), catch_up=False)

    async def run_read(self, work: Callable[[Connection], T]) -> T:
        """Run work that only reads."""
        return await self._database.read(lambda connection, _: work(connection))

    def read_state(self, connection: Connection) -> int | None:
        """The state; None if there is no index, or no tables for it."""
        if not self._dialect.beside(connection, self._tables.sessions, [self._state]):
            return None
        state: int | None = connection.scalar(select(self._state.c.state).where(self._own))
        return state

    def is_complete(self, connection: Connection) -> bool:
        """Whether there is an index that is complete, with all its triggers."""
        return self.read_state(connection) == COMPLETE and not self._lacking(connection)

    def empty_step(self, connection: Connection) -> bool:
        """Delete what an index has left that was dropped; return whether there may be more."""
        # Locked, so that nobody creates the index meanwhile.
        row = lock_state(connection, self._state, TEXT)
        if row is not None and row.state != DROPPING:
            return False
        more = False
        for table in (self._index.queue, self._index.words):
            key = list(table.primary_key.columns)
            some = connection.execute(select(*key).limit(_DELETED_AT_ONCE)).all()
            for start in range(0, len(some), 500):
                part = tuple_(*key).in_([tuple(row) for row in some[start : start + 500]])
                connection.execute(delete(table).where(part))
            more = more or len(some) == _DELETED_AT_ONCE
        return more

    def require_all_rows(self, connection: Connection) -> None:
        """Raise the database's error if a policy can hide rows that are indexed."""
        self._dialect.refuse_restricted(connection, self._index.indexed)

    def begin(self, connection: Connection) -> None:
        """Announce the index."""
        # Else, on PostgreSQL, a row that is there could be deleted before it is updated.
        self._dialect.lock_tables(connection, [self._state])
        new = {"state": FILLING, "token": uuid.uuid4().hex, "last_item": None}
        new |= {"item_id": 0, "session_id": ""}
        connection.execute(self._dialect.insert_missing(self._state), {"key": TEXT, **new})
        left = update(self._state).where(self._own, self._state.c.state == DROPPING)
        connection.execute(left.values(**new))

    def create_triggers(self, connection: Connection) -> None:
        """Create the triggers that are lacking, then record which items were there before."""
        tables = self._tables
        # No writer is between two tables while triggers appear on one after the other.
        self._dialect.lock_tables(connection, self._index.indexed)
        self._dialect.begin_ddl(connection)
        lacking = self._lacking(connection)
        check_triggers(connection, tables, [trigger.plain for trigger in lacking])
        with self._dialect.brief_waits(connection):
            create_triggers(connection, lacking)
        # From a transaction of its own where creating triggers ended the last one: a snapshot from
        # before would lack what was written meanwhile.
        newest = select(func.coalesce(func.max(tables.messages.c.id), 0)).scalar_subquery()
        restart = update(self._state).where(self._own)
        if lacking:
            # Nobody has queued what was written without these triggers.
            again = {"state": FILLING, "last_item": newest, "item_id": 0, "session_id": ""}
            connection.execute(restart.values(**again))
        else:
            unknown = self._state.c.last_item.is_(None)
            connection.execute(restart.where(unknown).values(last_item=newest))

    def drop_triggers(self, connection: Connection) -> None:
        """Drop all triggers, unless somebody has created the index again."""
        row = lock_state(connection, self._state, TEXT)
        if row is not None and row.state != DROPPING:
            return
        existing = self._dialect.existing_triggers(connection, *self._tables.tables)
        with self._dialect.brief_waits(connection):
            for drop in self._group.cleanup:
                if getattr(drop, "name", None) in existing:
                    connection.execute(drop)

    def fill_items(self, connection: Connection) -> int:
        """Index the next items that were there before; return how many."""
        messages = self._tables.messages
        position = self._lock_position(connection)
        if position is None:
            return 0
        statement: Any = (
            select(messages.c.id, messages.c.session_id)
            .where(messages.c.id > position.item_id, messages.c.id <= position.last_item)
            .order_by(messages.c.id)
            .limit(STEP)
        )
        found: Any = connection.execute(statement).all()
        if not found:
            return 0
        wanted = [
            Queued(session_id, item_id)
            for item_id, session_id in found
            if len(session_id) <= ID_LENGTH
        ]
        self._index.lock_sessions(connection, {each.session_id for each in wanted})
        self._index.insert(connection, self._index.read_items(connection, wanted))
        self._advance(connection, item_id=found[-1][0])
        return len(found)

    def fill_titles(self, connection: Connection) -> int:
        """Index the next titles; return how many."""
        rows = self._tables.metadata
        position = self._lock_position(connection)
        if position is None:
            return 0
        statement: Any = (
            select(rows.c.session_id)
            .where(rows.c.key == TITLE, rows.c.session_id > position.session_id)
            .order_by(rows.c.session_id)
            .limit(STEP)
        )
        ids = list(connection.scalars(statement))
        if not ids:
            return 0
        self._index.lock_sessions(connection, ids)
        titles = {Queued(session_id, TITLE_ITEM): (None, None) for session_id in ids}
        self._index.insert(connection, titles)
        self._advance(connection, session_id=ids[-1])
        return len(ids)

    def finish(self, connection: Connection) -> bool:
        """Declare the index complete."""
        if self._lock_position(connection) is None:
            return False
        self._advance(connection, state=COMPLETE)
        return True

    def leave(self, connection: Connection) -> bool:
        """End the use of the index; return whether there was one."""
        if lock_state(connection, self._state, TEXT) is None:
            return False
        self._advance(connection, state=DROPPING, token=uuid.uuid4().hex)
        return True

    def end(self, connection: Connection) -> None:
        """Forget an index that was dropped."""
        dropping = self._own, self._state.c.state == DROPPING
        connection.execute(delete(self._state).where(*dropping))

    def _lock_position(self, connection: Connection) -> Any:
        """How far the index is filled; None if it is complete or dropped. Fillers take turns."""
        row = lock_state(connection, self._state, TEXT)
        return row if row is not None and row.state == FILLING else None

    def _advance(self, connection: Connection, **values: Any) -> None:
        connection.execute(update(self._state).where(self._own).values(**values))

    def _lacking(self, connection: Connection) -> dict[RowTrigger, bool]:
        triggers = word_triggers(connection, self._tables.tables, self._group)
        return lacking_triggers(connection, self._tables, triggers)

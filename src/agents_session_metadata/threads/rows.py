"""The tables of threads, as a chat interface shows them, and the SQL for items and attachments.

| table | one row |
|---|---|
| `…_thread_items` | an item of a thread; the thread is a session |
| `…_attachments` | a file that was uploaded, before or after it belongs to a session |
| `…_feedback` | the newest vote of a user on an item; neither copied nor exported |

Items are opaque here: each has a kind and a JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Index,
    Table,
    UniqueConstraint,
    delete,
    insert,
    literal,
    select,
    text,
    update,
)

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.definitions import (
    TableMaker,
    derived_name,
    ending_with_session,
    session_link,
)
from agents_session_metadata.core.messages import newest_id
from agents_session_metadata.core.store import SessionStore
from agents_session_metadata.dialects._locks import ROUNDS
from agents_session_metadata.text import quoted
from agents_session_metadata.types import JSONValue
from agents_session_metadata.values import search_key

THREADS = "threads"
USER_MESSAGE = "user_message"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MICROSECOND = timedelta(microseconds=1)


def define(make: TableMaker) -> None:
    items_name, attachments_name, feedback_name = make.names
    types = make.types
    make.owned(
        items_name,
        Column("item_id", types.key, primary_key=True),
        # Grows with every item that is added to the session.
        Column("position", BigInteger, nullable=False),
        Column("kind", types.key, nullable=False),
        Column("data", types.text, nullable=False),
        # Of a user message: the newest row of the history when it was added, or 0.
        Column("history_end", BigInteger, nullable=True),
        Index(derived_name(items_name, "_order_idx"), "session_id", "position"),
    )
    attachments = make.table(
        attachments_name,
        Column("attachment_id", types.key, primary_key=True),
        # NULL until the attachment belongs to a session.
        Column("session_id", types.own_id, nullable=True),
        # The values that a session of its owner has, as a JSON object.
        Column("owner", types.text, nullable=False),
        Column("data", types.text, nullable=False),
        Column("created_at", TIMESTAMP(), server_default=text("CURRENT_TIMESTAMP"), nullable=False),
        session_link(attachments_name, make.core[0]),
        # For the foreign key. A migration that drops indexes first leaves a constraint alone.
        UniqueConstraint(
            "session_id",
            "attachment_id",
            name=derived_name(attachments_name, "_session_key"),
        ),
    )
    make.triggers.append(ending_with_session(make.core[0], attachments))
    make.owned(
        feedback_name,
        Column("item_id", types.key, primary_key=True),
        Column("kind", types.key, nullable=False),
        # Microseconds since `EPOCH`.
        Column("voted_at", BigInteger, nullable=False),
    )


class ItemRow(NamedTuple):
    """One item of a thread. Its id is unique within the session.

    Positions grow, and may have gaps. `history_end` belongs to user messages: the newest id of the
    history when the message was added, 0 if there was none, or None if it is unknown.
    """

    item_id: str
    position: int
    kind: str
    data: str
    history_end: int | None


class AttachmentRow(NamedTuple):
    """One attachment. `owner` is a JSON object of the values that a session of its owner has."""

    attachment_id: str
    session_id: str | None
    owner: str
    data: str


@dataclass(frozen=True)
class ThreadItems:
    """The items of one thread. The session must be locked before they are written."""

    database: Database
    connection: Connection
    session_id: str

    @property
    def _table(self) -> Table:
        return self.database.tables.group(THREADS).tables[0]

    def page(
        self, store: SessionStore, *, after: int | None, limit: int, descending: bool
    ) -> list[ItemRow]:
        """`after` is a position."""
        position = self._table.c.position
        statement = self._selected().limit(limit)
        statement = statement.order_by(position.desc() if descending else position)
        if after is not None:
            statement = statement.where(position < after if descending else position > after)
        return self._found(*store.question(statement, self._table.c.session_id))

    def get(self, store: SessionStore, item_id: str) -> ItemRow | None:
        statement = self._selected().where(self._table.c.item_id == item_id)
        found = self._found(*store.question(statement, self._table.c.session_id))
        return found[0] if found else None

    def newest(self, kind: str | None = None, before: int | None = None) -> ItemRow | None:
        """The session must be locked. `before` is a position."""
        columns = self._table.c
        statement = self._selected().order_by(columns.position.desc()).limit(1)
        if before is not None:
            statement = statement.where(columns.position < before)
        if kind is not None:
            statement = statement.where(columns.kind == kind)
        found = self._found(self.database.dialect.locking(statement))
        return found[0] if found else None

    def append(self, item_id: str, kind: str, data: str) -> None:
        newest, end = self.newest(), None
        position = 1 if newest is None else newest.position + 1
        if kind == USER_MESSAGE:
            end = newest_id(self.database, self.connection, self.session_id)
        self.insert([ItemRow(item_id, position, kind, data, end)])

    def replace(self, item_id: str, kind: str, data: str) -> None:
        own = update(self._table).where(*self._own(item_id))
        self.connection.execute(own.values(kind=kind, data=data))

    def delete(self, item_id: str) -> None:
        self.connection.execute(delete(self._table).where(*self._own(item_id)))

    def insert(self, items: Iterable[ItemRow]) -> None:
        rows = [{"session_id": self.session_id, **item._asdict()} for item in items]
        if rows:
            self.connection.execute(insert(self._table), rows)

    def message_ids(self) -> list[int]:
        messages = self.database.tables.messages
        own = select(messages.c.id).where(messages.c.session_id == self.session_id)
        return sorted(self.connection.scalars(own))

    def _selected(self) -> Any:
        return select(*_columns(self._table)).where(self._table.c.session_id == self.session_id)

    def _found(self, statement: Any, parameters: Mapping[str, Any] | None = None) -> list[ItemRow]:
        return [ItemRow(*row) for row in self.connection.execute(statement, parameters)]

    def _own(self, item_id: str) -> tuple[ColumnElement[bool], ...]:
        columns = self._table.c
        return columns.session_id == self.session_id, columns.item_id == item_id


def _columns(items: Table) -> list[Any]:
    return [items.c[name] for name in ItemRow._fields]


def read_threads(
    database: Database, connection: Connection, ids: Sequence[str]
) -> dict[str, list[ItemRow]]:
    items = database.tables.group(THREADS).tables[0]
    own_id = database.tables.sessions.c.session_id
    statement = (
        select(own_id, *_columns(items))
        .join(items, own_id == items.c.session_id)
        .where(own_id.in_(ids))
        .order_by(own_id, items.c.position)
    )
    threads: dict[str, list[ItemRow]] = {}
    for session_id, *columns in connection.execute(statement).all():
        threads.setdefault(session_id, []).append(ItemRow(*columns))
    return threads


@dataclass(frozen=True)
class Attachments:
    """The session must be locked before something is attached to it."""

    database: Database
    connection: Connection

    @property
    def _table(self) -> Table:
        return self.database.tables.group(THREADS).tables[1]

    def put(self, attachment: AttachmentRow) -> AttachmentRow:
        """Inserts an attachment unless its id exists; returns the stored one, locked."""
        insert = self.database.dialect.insert_missing(self._table)
        for _ in range(ROUNDS):
            self.connection.execute(insert, [attachment._asdict()])
            found = self.get(attachment.attachment_id, lock=True)
            # The one that prevented the insert may have been deleted since.
            if found is not None:
                return found
        name = quoted(attachment.attachment_id)
        raise RuntimeError(
            f"attachment {name} was created and deleted by others {ROUNDS} times; try again"
        )

    def update(self, attachment: AttachmentRow) -> None:
        own = self._table.c.attachment_id == attachment.attachment_id
        values = {"session_id": attachment.session_id, "data": attachment.data}
        self.connection.execute(update(self._table).where(own).values(values))

    def get(self, attachment_id: str, *, lock: bool = False) -> AttachmentRow | None:
        """With `lock`, it must begin the transaction."""
        statement = self._selected().where(self._table.c.attachment_id == attachment_id)
        if lock:
            self.database.dialect.begin_writing(self.connection)
            statement = statement.with_for_update()
        row = self.connection.execute(statement).first()
        return None if row is None else AttachmentRow(*row)

    def lock_unattached(self, before: Any, after: str, limit: int) -> list[AttachmentRow]:
        """Must begin the transaction. `before` is a time, and `after` is an id."""
        dialect, columns = self.database.dialect, self._table.c
        dialect.begin_writing(self.connection)
        statement = (
            self._selected()
            .where(columns.session_id.is_(None), columns.attachment_id > after)
            .order_by(columns.attachment_id)
            .limit(limit)
            .with_for_update()
        )
        if before is not None:
            limit_time: Any = literal(before, dialect.moment)
            created_at = dialect.moment.of(columns.created_at)
            statement = statement.where(created_at <= limit_time)
        return [AttachmentRow(*row) for row in self.connection.execute(statement)]

    def delete(self, ids: Sequence[str]) -> None:
        """The attachments must be locked."""
        these = self._table.c.attachment_id.in_(ids)
        self.connection.execute(delete(self._table).where(these))

    def _selected(self) -> Any:
        return select(*(self._table.c[name] for name in AttachmentRow._fields))


def was_saved_with(values: Mapping[str, JSONValue], attachment: AttachmentRow) -> bool:
    owner = json.loads(attachment.owner)
    return all(
        key in owner and search_key(owner[key]) == search_key(value)
        for key, value in values.items()
    )

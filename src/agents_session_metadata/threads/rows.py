"""The tables of threads, as a chat interface shows them, and the SQL for items and attachments.

| table | one row |
|---|---|
| `…_thread_items` | an item of a thread; the thread is a session |
| `…_attachments` | a file that was uploaded, before or after it belongs to a session |
| `…_feedback` | the newest vote of a user on an item; neither copied nor exported |

Items are opaque here: each has a kind and a JSON text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Index,
    UniqueConstraint,
    and_,
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
from agents_session_metadata.dialects._locks import ROUNDS, lost_race
from agents_session_metadata.text import quoted

THREADS = "threads"
USER_MESSAGE = "user_message"


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
        # Microseconds since 1970.
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


class ThreadRows:
    """The caller must lock the session before it writes items or attaches something."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._dialect = database.dialect
        self._items, self._attachments, _ = database.tables.group(THREADS).tables

    # ---- items ----

    def read_page(
        self,
        store: SessionStore,
        connection: Connection,
        session_id: str,
        *,
        after: int | None,
        limit: int,
        descending: bool,
    ) -> list[ItemRow]:
        """`after` is a position."""
        position = self._items.c.position
        statement = self._of_session(session_id).limit(limit)
        statement = statement.order_by(position.desc() if descending else position)
        if after is not None:
            statement = statement.where(position < after if descending else position > after)
        return _items(connection.execute(*store.question(statement, self._items.c.session_id)))

    def read_item(
        self, store: SessionStore, connection: Connection, session_id: str, item_id: str
    ) -> ItemRow | None:
        statement = self._of_session(session_id).where(self._items.c.item_id == item_id)
        found = _items(connection.execute(*store.question(statement, self._items.c.session_id)))
        return found[0] if found else None

    def read_newest(
        self,
        connection: Connection,
        session_id: str,
        kind: str | None = None,
        before: int | None = None,
    ) -> ItemRow | None:
        """The session must be locked. `before` is a position."""
        statement = self._of_session(session_id).order_by(self._items.c.position.desc()).limit(1)
        if before is not None:
            statement = statement.where(self._items.c.position < before)
        if kind is not None:
            statement = statement.where(self._items.c.kind == kind)
        found = _items(connection.execute(self._dialect.locking(statement)))
        return found[0] if found else None

    def append_item(
        self, connection: Connection, session_id: str, item_id: str, kind: str, data: str
    ) -> None:
        newest = self.read_newest(connection, session_id)
        position = 1 if newest is None else newest.position + 1
        end = None
        if kind == USER_MESSAGE:
            end = newest_id(self._database, connection, session_id)
        item = ItemRow(item_id, position, kind, data, end)
        self.insert_items(connection, session_id, [item])

    def replace_item(
        self, connection: Connection, session_id: str, item_id: str, kind: str, data: str
    ) -> None:
        own = self._item(session_id, item_id)
        connection.execute(update(self._items).where(own).values(kind=kind, data=data))

    def delete_item(self, connection: Connection, session_id: str, item_id: str) -> None:
        connection.execute(delete(self._items).where(self._item(session_id, item_id)))

    def read_threads(self, connection: Connection, ids: Sequence[str]) -> dict[str, list[ItemRow]]:
        sessions, items = self._database.tables.sessions, self._items
        own_id = sessions.c.session_id
        statement = (
            select(own_id, *self._columns())
            .join_from(sessions, items, own_id == items.c.session_id)
            .where(own_id.in_(ids))
            .order_by(own_id, items.c.position)
        )
        threads: dict[str, list[ItemRow]] = {}
        for session_id, *columns in connection.execute(statement).all():
            threads.setdefault(session_id, []).append(ItemRow(*columns))
        return threads

    def insert_items(
        self, connection: Connection, session_id: str, items: Iterable[ItemRow]
    ) -> None:
        rows = [{"session_id": session_id, **item._asdict()} for item in items]
        if rows:
            connection.execute(insert(self._items), rows)

    def message_ids(self, connection: Connection, session_id: str) -> list[int]:
        messages = self._database.tables.messages
        statement = select(messages.c.id).where(messages.c.session_id == session_id)
        return sorted(connection.scalars(statement))

    def _columns(self) -> list[Any]:
        return [self._items.c[name] for name in ItemRow._fields]

    def _of_session(self, session_id: str) -> Any:
        return select(*self._columns()).where(self._items.c.session_id == session_id)

    def _item(self, session_id: str, item_id: str) -> ColumnElement[bool]:
        return and_(self._items.c.session_id == session_id, self._items.c.item_id == item_id)

    # ---- attachments ----

    def put_attachment(self, connection: Connection, attachment: AttachmentRow) -> AttachmentRow:
        """Inserts an attachment unless its id exists; returns the stored one, locked."""
        insert = self._dialect.insert_missing(self._attachments)
        for _ in range(ROUNDS):
            connection.execute(insert, [attachment._asdict()])
            found = self.read_attachment(connection, attachment.attachment_id, lock=True)
            # The one that prevented the insert may have been deleted since.
            if found is not None:
                return found
        raise lost_race(f"attachment {quoted(attachment.attachment_id)}")

    def update_attachment(self, connection: Connection, attachment: AttachmentRow) -> None:
        table = self._attachments
        own = table.c.attachment_id == attachment.attachment_id
        values = {"session_id": attachment.session_id, "data": attachment.data}
        connection.execute(update(table).where(own).values(values))

    def read_attachment(
        self, connection: Connection, attachment_id: str, *, lock: bool = False
    ) -> AttachmentRow | None:
        """With `lock`, it must begin the transaction."""
        own = self._attachments.c.attachment_id == attachment_id
        statement = self._all_attachments().where(own)
        if lock:
            self._dialect.begin_writing(connection)
            statement = statement.with_for_update()
        row = connection.execute(statement).first()
        return None if row is None else AttachmentRow(*row)

    def lock_unattached(
        self, connection: Connection, before: Any, after: str, limit: int
    ) -> list[AttachmentRow]:
        """Must begin the transaction. `before` is a time, and `after` is an id."""
        self._dialect.begin_writing(connection)
        table = self._attachments
        statement = (
            self._all_attachments()
            .where(table.c.session_id.is_(None), table.c.attachment_id > after)
            .order_by(table.c.attachment_id)
            .limit(limit)
            .with_for_update()
        )
        if before is not None:
            moment = self._dialect.moment
            limit_time: Any = literal(before, moment)
            statement = statement.where(moment.comparable(table.c.created_at) <= limit_time)
        return [AttachmentRow(*row) for row in connection.execute(statement)]

    def delete_attachments(self, connection: Connection, ids: Sequence[str]) -> None:
        """The attachments must be locked."""
        table = self._attachments
        connection.execute(delete(table).where(table.c.attachment_id.in_(ids)))

    def _all_attachments(self) -> Any:
        return select(*(self._attachments.c[name] for name in AttachmentRow._fields))


def _items(rows: Any) -> list[ItemRow]:
    return [ItemRow(*row) for row in rows]

"""Writing the words of messages and titles into the text index.

A row of the queue is deleted before the words of what it names are inserted. Whoever deletes the
message at the same time deletes its row of the queue first too, so one of the two waits for the
other, and no words are left of what is gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    String,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    select,
    type_coerce,
)

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.dialects.sqltypes import PlainBytes
from agents_session_metadata.keys import TITLE
from agents_session_metadata.words import indexed_words, text_of_item

from .long_texts import apply_to_text
from .tables import SessionTables
from .words import TITLE_ITEM, WORDS

STEP = 200
"""Messages and titles that are indexed at a time."""
_ROWS_AT_ONCE = 2_000


class Queued(NamedTuple):
    """A message or title in the queue."""

    session_id: str
    item_id: int


class WordIndex:
    """The text index of one set of tables."""

    def __init__(self, tables: SessionTables, dialect: Dialect) -> None:
        self._tables = tables
        self._dialect = dialect
        words, queue, state = tables.group(WORDS).tables
        self.words: Table = words
        self.queue: Table = queue
        self.state: Table = state
        self.indexed: list[Table] = [tables.sessions, tables.messages, tables.metadata]
        self._own_by_count: dict[int, Any] = {}

    def index_own(
        self, connection: Connection, ids: Sequence[str], most: int | None = None
    ) -> bool:
        """Index what sessions that are locked have in the queue, the newest first.

        Args:
            connection: The connection.
            ids: The sessions.
            most: About how many items to index; all by default.

        Returns:
            Whether other sessions have something in the queue.
        """
        single = len(ids) == 1
        takes = single and self._dialect.takes_ranges
        statement = self._taking if takes else self._own(min(len(ids), self._dialect.many + 1))
        parameters = {"of_session": ids[0]} if single else self._dialect.list_parameters("ids", ids)
        done, waiting = 0, False
        while most is None or done < max(most, 1):
            rows: Any = connection.execute(statement, parameters).all()
            if not rows:
                break
            items = {Queued(row[0], row[1]): (row[2], row[3]) for row in rows}
            if takes:
                self.insert(connection, items)
            else:
                self._take(connection, items)
            done += len(rows)
            waiting = any(row[4] for row in rows)
            if len(rows) < STEP:
                break
        return waiting

    def has_waiting(self, connection: Connection) -> bool:
        """Whether something is in the queue."""
        return connection.execute(select(self.queue.c.item_id).limit(1)).first() is not None

    def index_step(self, connection: Connection, most: int = STEP) -> int:
        """Index what is in the queue of any session; return how much was done.

        Nothing is done if a policy of the database can hide rows: they would be taken for deleted.
        """
        queue = self.queue
        found: Any = connection.execute(
            select(queue.c.session_id, queue.c.item_id)
            .order_by(queue.c.session_id, queue.c.item_id)
            .limit(most)
        ).all()
        if not found or self._dialect.restricted(connection, self.indexed):
            return 0
        wanted = [Queued(*row) for row in found]
        self.lock_sessions(connection, {each.session_id for each in wanted})
        self._take(connection, self.read_items(connection, wanted))
        return len(wanted)

    def lock_sessions(self, connection: Connection, ids: Iterable[str]) -> None:
        """Lock sessions, as every writer does first."""
        some = sorted(ids)
        if some:
            lock = self._dialect.lock_rows(self._tables.sessions, "ids", len(some))
            connection.execute(lock, self._dialect.list_parameters("ids", some)).all()

    def read_items(
        self, connection: Connection, wanted: Sequence[Queued]
    ) -> dict[Queued, tuple[Any, Any]]:
        """The text and the time of messages, as they are now; None for those that are gone."""
        messages = self._tables.messages
        found: dict[Queued, tuple[Any, Any]] = dict.fromkeys(wanted, (None, None))
        ids = [each.item_id for each in wanted if each.item_id != TITLE_ITEM]
        if ids:
            statement: Any = (
                select(
                    messages.c.session_id,
                    messages.c.id,
                    messages.c.message_data,
                    self._time(messages.c.created_at),
                )
                .where(messages.c.id.in_(bindparam("items", expanding=True)))
                # As it is now, and nobody deletes it before its words are there.
                .with_for_update(read=True)
            )
            rows: Any = connection.execute(statement, {"items": ids})
            for session_id, item_id, text, at in rows:
                if (session_id, item_id) in found:
                    found[Queued(session_id, item_id)] = text, at
        return found

    def insert(self, connection: Connection, items: dict[Queued, tuple[Any, Any]]) -> None:
        """Insert the words of messages, given with their times, and of titles, which are read."""
        titles = [each.session_id for each in items if each.item_id == TITLE_ITEM]
        texts = {
            each: (item_text(text), at) for each, (text, at) in items.items() if text is not None
        }
        for session_id in titles:
            # Somebody may have changed the title while its words were inserted.
            stale = self.words.c.session_id == session_id, self.words.c.item_id == TITLE_ITEM
            connection.execute(delete(self.words).where(*stale))
        for session_id, value, at in self._titles(connection, titles):
            texts[Queued(session_id, TITLE_ITEM)] = title_text(value), at
        # In the order of the primary key, which is written fastest so.
        rows = list(self.rows(texts))
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            connection.execute(self._insert, rows[start : start + _ROWS_AT_ONCE])

    def rows(self, texts: dict[Queued, tuple[str | None, Any]]) -> Iterator[dict[str, Any]]:
        """The rows of the index for some texts, given with their times."""
        for (session_id, item_id), (text, at) in sorted(texts.items(), key=itemgetter(0)):
            found = apply_to_text(indexed_words, text) if text and at is not None else None
            # The empty word is in every text: it leads through all of them by age.
            for word in sorted(found | {b""}) if found else ():
                yield {
                    "word": word,
                    "session_id": session_id,
                    "created_at": at,
                    "item_id": item_id,
                }

    def _take(self, connection: Connection, items: dict[Queued, tuple[Any, Any]]) -> None:
        """Delete rows of the queue, and index what they name."""
        by_session: dict[str, list[int]] = {}
        for each in sorted(items):
            by_session.setdefault(each.session_id, []).append(each.item_id)
        for session_id, ids in by_session.items():
            parameters = {"of_session": session_id, "items": ids}
            if connection.execute(self._taken, parameters).rowcount != len(ids):
                # Somebody else has indexed or deleted some.
                wanted = [Queued(session_id, item_id) for item_id in ids]
                items = {**items, **self.read_items(connection, wanted)}
        self.insert(connection, items)

    # Building a statement takes longer than running it, so each is built once.

    def _own(self, count: int) -> Any:
        """What so many sessions have in the queue."""
        statement = self._own_by_count.get(count)
        if statement is None:
            queue, messages = self.queue, self._tables.messages
            others = queue.alias("others")
            elsewhere = exists().where(others.c.session_id != queue.c.session_id)
            same = and_(
                messages.c.id == queue.c.item_id, messages.c.session_id == queue.c.session_id
            )
            # SQLAlchemy writes the text of an IN anew each time.
            single = queue.c.session_id == bindparam("of_session", type_=String)
            of_sessions = self._dialect.one_of(queue.c.session_id, "ids", count)
            statement = self._own_by_count[count] = (
                select(
                    queue.c.session_id,
                    queue.c.item_id,
                    messages.c.message_data,
                    self._time(messages.c.created_at),
                    elsewhere,
                )
                .select_from(queue.outerjoin(messages, same))
                .where(single if count == 1 else of_sessions)
                .order_by(queue.c.item_id.desc())
                .limit(STEP)
            )
        return statement

    @cached_property
    def _taking(self) -> Any:
        """Delete the rows of a session from the queue, and read the items that they name."""
        queue, messages = self.queue, self._tables.messages
        others, own = queue.alias("others"), queue.alias("own")
        of_session = bindparam("of_session", type_=String)
        oldest = (
            select(own.c.item_id)
            .where(own.c.session_id == of_session)
            .order_by(own.c.item_id.desc())
            .limit(1)
            .offset(STEP - 1)
            .scalar_subquery()
        )
        text, time = (
            select(column)
            .where(messages.c.id == queue.c.item_id, messages.c.session_id == of_session)
            .correlate(queue)
            .scalar_subquery()
            for column in (
                messages.c.message_data,
                self._time(messages.c.created_at),
            )
        )
        return (
            delete(queue)
            .where(queue.c.session_id == of_session, queue.c.item_id >= func.coalesce(oldest, 0))
            .returning(
                queue.c.session_id,
                queue.c.item_id,
                text,
                time,
                exists().where(others.c.session_id != of_session),
            )
        )

    @cached_property
    def _insert(self) -> Any:
        return self._dialect.insert_missing(self.words).values(
            word=bindparam("word", type_=PlainBytes),
            session_id=bindparam("session_id", type_=String),
            created_at=bindparam("created_at", type_=self._dialect.stored_time_type()),
            item_id=bindparam("item_id", type_=BigInteger),
        )

    @cached_property
    def _taken(self) -> Any:
        return delete(self.queue).where(self._named)

    @property
    def _named(self) -> ColumnElement[bool]:
        queue = self.queue
        return and_(
            queue.c.session_id == bindparam("of_session"),
            queue.c.item_id.in_(bindparam("items", expanding=True)),
        )

    def _titles(self, connection: Connection, ids: Sequence[str]) -> Iterable[Any]:
        if not ids:
            return []
        rows = self._tables.metadata
        statement = select(
            rows.c.session_id,
            rows.c.value,
            self._time(self._dialect.local_time(rows.c.updated_at)),
        ).where(rows.c.key == TITLE, self._dialect.one_of(rows.c.session_id, "ids", len(ids)))
        # Under the lock of the session, which all our writers take.
        statement = self._dialect.locking(statement)
        return connection.execute(statement, self._dialect.list_parameters("ids", ids)).all()

    def _time(self, column: Any) -> Any:
        return type_coerce(self._dialect.stored_time(column), self._dialect.stored_time_type())


def item_text(stored: str) -> str | None:
    """The text of a message as the SDK stores it; None if it is not searched."""
    try:
        found = text_of_item(json.loads(stored))
    except ValueError:
        return None
    return found[1] if found else None


def title_text(stored: str) -> str | None:
    """The text of a title as it is stored; None if it is none."""
    try:
        title = json.loads(stored)
    except ValueError:
        return None
    return title if isinstance(title, str) else None

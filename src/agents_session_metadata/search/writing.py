"""Writes the words of items: with the items, and for items that others have written.

The words of items are written in the transaction that writes the items. Items of other writers get
theirs from the search that meets them, or from `refresh`. Only one process at a time fills.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Index,
    MetaData,
    bindparam,
    delete,
    func,
    inspect,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.exc import DBAPIError

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.definitions import derived_name
from agents_session_metadata.core.features import IndexKind
from agents_session_metadata.errors import TablesMissingError, UnsupportedDialectError
from agents_session_metadata.text import quoted

from .table import KEY, TEXT, is_indexed, note
from .terms import text_of_item
from .tokenizer import stored_words

logger: logging.Logger = logging.getLogger(__name__)

MOST = 1_000
"""Items that a search, or one transaction, adds at most."""
_AT_ONCE = 500
NO_INDEX = (
    f'there is no text index; create it once with `await catalog.create_index("{KEY}")` or '
    f"`agent-sessions index create '{KEY}'`"
)


def words_of(data: str) -> str:
    """Returns the stored words of an item, given as JSON text."""
    try:
        text = text_of_item(json.loads(data))
    except (ValueError, RecursionError):
        return ""
    return "" if text is None else stored_words(text[1])


def insert_items(
    database: Database[Any], connection: Connection, session_id: str, texts: Sequence[str]
) -> bool:
    """Inserts items of a locked session with their words. Returns False if there is no index."""
    if not is_indexed(database, connection):
        return False
    both = [(data, words_of(data)) for data in texts]
    rows, messages = database.tables.group(TEXT)["_text"], database.tables.messages
    database.dialect.text_search.insert(connection, messages, rows, session_id, both)
    return True


def add_sessions(database: Database[Any], connection: Connection, ids: Sequence[str]) -> None:
    """Adds the words of sessions whose items were copied or imported."""
    if ids and is_indexed(database, connection):
        messages, dialect = database.tables.messages, database.dialect
        own = dialect.one_of(messages.c.session_id, "ids", len(ids))
        found = _missing(database).where(own)
        items: Any = connection.execute(found, dialect.list_parameters("ids", ids))
        _insert(database, connection, [(item_id, words_of(data)) for item_id, data in items])


def copy_session(
    database: Database[Any], connection: Connection, _: str, new_id: str, __: object
) -> None:
    add_sessions(database, connection, [new_id])


# ---- filling ----


class TextIndex(IndexKind):
    """The index of words. Each method is work for one transaction."""

    group: str | None = TEXT

    def __init__(self, database: Database[Any]) -> None:
        self._database = database
        self._dialect = database.dialect
        self._messages = database.tables.messages
        self._rows, self._state = database.tables.group(TEXT).tables
        self.rows: tuple[ColumnElement[Any], ColumnElement[bool]] = self._rows.c.id, true()

    def prepare(self, connection: Connection) -> None:
        """Announces the index, and adds the SQL index of all items in their order."""
        self._dialect.begin_ddl(connection)
        if not self._has_time_index(connection):
            with self._dialect.brief_waits(connection):
                self._time_index.create(connection)
        new = {"id": 1, "native": 0, "filled": 0, "pending": 0, "mark": 0}
        connection.execute(self._dialect.insert_missing(self._state), new)
        note(self._database, exists=True)

    def fill(self, connection: Connection, after: int | None) -> tuple[int, int | None]:
        """Adds missing rows. Returns how many, and the last item if there can be more."""
        if self.lock(connection) is None:
            return 0, None
        later = self._messages.c.id > (after or 0)
        statement = _missing(self._database).where(later).order_by(self._messages.c.id)
        found: Any = connection.execute(statement.limit(literal_column(str(MOST)))).all()
        self.add(connection, [(item_id, words_of(data)) for item_id, data in found])
        return len(found), found[-1][0] if len(found) == MOST else None

    def lock(self, connection: Connection, *, waits: bool = True) -> Any:
        """Keeps others from filling. Returns the state, or None if it is missing or locked."""
        if self._dialect.single_writer:
            connection.execute(update(self._state).values(native=self._state.c.native))
        locked = select(self._state).with_for_update(skip_locked=not waits)
        return connection.execute(locked).one_or_none()

    def add(self, connection: Connection, words: Sequence[tuple[int, str]]) -> None:
        """Adds rows of items that exist. The state must be locked."""
        # An item that is being deleted is left out. Others cannot be deleted until the commit.
        wanted: Any = bindparam("items", expanding=True)
        lock = select(self._messages.c.id).where(self._messages.c.id.in_(wanted))
        lock = lock.with_for_update(read=True, skip_locked=True)
        for start in range(0, len(words), _AT_ONCE):
            some = dict(words[start : start + _AT_ONCE])
            existing = connection.scalars(lock, {"items": list(some)}).all()
            _insert(self._database, connection, [(each, some[each]) for each in sorted(existing)])

    def advance(self, connection: Connection) -> None:
        """Finds out up to which item all items have rows.

        Items can appear in another order than their numbers. No item up to the newest one appears
        anymore as soon as all transactions that are open now have ended.
        """
        state = self.lock(connection)
        marks = self._dialect.text_search
        for _ in range(2):
            oldest = connection.scalar(select(literal_column(marks.oldest_mark)))
            if state is None or oldest < state.mark:
                return
            within = self._messages.c.id.between(state.filled + 1, state.pending)
            found: Any = connection.execute(
                _missing(self._database).where(within).limit(MOST)
            ).all()
            _insert(self._database, connection, [(each, words_of(data)) for each, data in found])
            if len(found) == MOST:
                return
            newest = select(func.coalesce(func.max(self._messages.c.id), 0)).scalar_subquery()
            mark: Any = literal_column(marks.newest_mark)
            new = {"filled": state.pending, "pending": newest, "mark": mark}
            connection.execute(update(self._state).values(new))
            state = connection.execute(select(self._state)).one()

    def add_native(self, connection: Connection) -> bool:
        """Adds the database's own index. Returns False if it exists."""
        self._dialect.begin_ddl(connection)
        state = self.lock(connection)
        if state is None or state.native:
            return False
        self._dialect.text_search.create_native(connection, self._rows)
        connection.execute(update(self._state).values(native=1))
        return True

    def leave(self, connection: Connection, *, alone: bool) -> None:  # noqa: ARG002  # always
        self._dialect.begin_ddl(connection)
        with self._dialect.brief_waits(connection):
            self._dialect.text_search.drop_native(connection, self._rows)
            if self._has_time_index(connection):
                self._time_index.drop(connection)
        connection.execute(delete(self._state))
        note(self._database, exists=False)

    @property
    def _time_index(self) -> Index:
        """Uses a copy of the messages table: the table in `session_tables()` has no such index."""
        metadata = MetaData()
        self._database.tables.sessions.to_metadata(metadata)
        messages = self._messages.to_metadata(metadata)
        columns = (messages.c[name] for name in self._dialect.text_search.time_index)
        return Index(derived_name(messages.name, "_created_at_idx"), *columns)

    def _has_time_index(self, connection: Connection) -> bool:
        schema = connection.schema_for_object(self._messages)
        found = inspect(connection).get_indexes(self._messages.name, schema)
        return any(each["name"] == self._time_index.name for each in found)


async def fill_met(
    database: Database[Any], words: Sequence[tuple[int, str]], *, advances: bool
) -> None:
    """Adds the rows of items that a search has read. It has its answer, so nothing is raised."""

    def fill(connection: Connection, _: Any) -> None:
        index = TextIndex(database)
        # If somebody else fills, the rows may be there already.
        if index.lock(connection, waits=False) is not None:
            index.add(connection, words)
            if advances:
                index.advance(connection)

    try:
        await database.write(fill)
    except DBAPIError:
        # The user may only read, or this is a replica.
        logger.debug("words of %d items could not be written", len(words), exc_info=True)


async def refresh(database: Database[Any], progress: Callable[[int], object] | None = None) -> int:
    """Adds all missing rows, in short transactions. Returns how many were added."""
    index = TextIndex(database)
    if not await database.read(lambda connection, _: is_indexed(database, connection)):
        raise TablesMissingError((), problem=NO_INDEX)
    done, after = 0, None
    while True:
        step = after
        found, after = await database.write(lambda connection, _: index.fill(connection, step))  # noqa: B023
        done += found
        if found and progress is not None:
            progress(done)
        if after is None:
            await database.write(lambda connection, _: index.advance(connection))
            return done


def check_native(database: Database[Any], key: str) -> None:
    if key != KEY:
        raise ValueError(f"native is for the index {KEY!r} only, got {quoted(key)}")
    if not database.dialect.text_search.has_native:
        raise UnsupportedDialectError(database.engine.dialect.name, "native=True")


async def add_native(database: Database[Any]) -> bool:
    index = TextIndex(database)
    added = await database.write(lambda connection, _: index.add_native(connection))
    for _ in range(2):
        await database.write(lambda connection, _: index.advance(connection))
    return added


def _missing(database: Database[Any]) -> Any:
    """Selects items without a row."""
    messages, rows = database.tables.messages, database.tables.group(TEXT)["_text"]
    # By an expression, which looks up each: a join could read the whole table.
    found = select(literal_column("0")).where(rows.c.id == messages.c.id).scalar_subquery()
    missing = func.coalesce(found, literal_column("1")) == literal_column("1")
    return select(messages.c.id, messages.c.message_data).where(missing)


def _insert(
    database: Database[Any], connection: Connection, words: Iterable[tuple[int, str]]
) -> None:
    new = [{"id": item_id, "words": each} for item_id, each in words]
    rows = database.tables.group(TEXT)["_text"]
    for start in range(0, len(new), _AT_ONCE):
        connection.execute(database.dialect.insert_missing(rows), new[start : start + _AT_ONCE])

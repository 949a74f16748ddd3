"""The text index: its tables, and how the words of items get into them.

| table | one row |
|---|---|
| `…_text` | an item of a history: its normalized words, or nothing if it has no text |
| `…_text_state` | the only one: that items are indexed, and how |

The words of items are written in the transaction that writes the items. An item without a row was
written by others: it gets one from the search that meets it, or from `refresh`. Only one process at
a time fills. A row is deleted with its item, by any program.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.definitions import (
    CreateTrigger,
    TableMaker,
    derived_name,
)
from agents_session_metadata.core.features import Erased, Feature, Index
from agents_session_metadata.core.schema import SDKIndex
from agents_session_metadata.dialects._dialect import literal_number, schema_of
from agents_session_metadata.dialects.sqltypes import Words
from agents_session_metadata.errors import TablesMissingError, UnsupportedDialectError
from agents_session_metadata.text import quoted
from agents_session_metadata.types import IndexInfo

from .query import text_of_item
from .words import stored_words

logger: logging.Logger = logging.getLogger(__name__)

TEXT = "text"
"""The name of the group of tables."""
KEY = "$text"
"""The name of the index."""
Progress: TypeAlias = Callable[[int], object]

_UNFINISHED = -1

MOST = 1_000
"""Items that a search, or one transaction, adds at most."""
NO_INDEX = (
    f'the text index does not exist; create it once with `await catalog.create_index("{KEY}")` or '
    f"`agent-sessions index create '{KEY}'`"
)


def look(database: Database, connection: Connection) -> bool:
    """Returns whether the index exists."""
    state = database.tables.group(TEXT)["_text_state"]
    exists = (
        database.has_tables(connection, TEXT)
        and connection.execute(select(state.c.id)).first() is not None
    )
    database.notes[TEXT] = exists
    return exists


def _is_indexed(database: Database, connection: Connection) -> bool:
    """Looks once per process. If another one creates the index later, searches find that out."""
    known: bool | None = database.notes.get(TEXT)
    return look(database, connection) if known is None else known


# ---- items that this package writes ----


def words_of(data: str) -> str:
    """Returns the stored words of an item, given as JSON text."""
    try:
        text = text_of_item(json.loads(data))
    except (ValueError, RecursionError):
        return ""
    return "" if text is None else stored_words(text[1])


# ---- items that other programs write ----


class TextIndex(Index):
    """The index of words. Each method that takes a connection is work for one transaction."""

    key: ClassVar[str] = KEY

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._dialect = database.dialect
        self._messages = database.tables.messages
        self._rows, self._state = database.tables.group(TEXT).tables
        self._time_index = SDKIndex(self._messages, "_created_at_idx", ("created_at", "id"))

    async def create(self, progress: Progress | None) -> bool:
        await self.database.ensure(TEXT)
        if not await self.database.write(self._prepare):
            return False
        await self.fill_in_steps(progress)
        await self.database.write(self._finish)
        return True

    async def drop(self) -> bool:
        if not await self.database.read(partial(self.database.has_tables, group=TEXT)):
            return False
        dropped = await self.database.write(self._leave)
        # If another process creates the index again in the meantime, a search adds lost rows.
        while dropped and await self.database.write(self._empty):
            pass
        return dropped

    def info(self, connection: Connection, *, count: bool) -> IndexInfo | None:
        if not look(self.database, connection):
            return None
        is_complete = connection.scalar(select(self._state.c.native)) != _UNFINISHED
        number: Any = select(func.count()).select_from(self._rows)
        return IndexInfo(KEY, is_complete, connection.scalar(number) if count else None)

    def _prepare(self, connection: Connection) -> bool:
        """Announces the index, and adds the SQL index of all items in their order.

        Returns False if the index is complete.
        """
        self._time_index.change(connection, exists=True)
        new = {"id": 1, "native": _UNFINISHED, "filled": 0, "pending": 0, "mark": 0}
        connection.execute(self._dialect.insert_missing(self._state), new)
        self.database.notes[TEXT] = True
        state = self.lock(connection)
        return state is not None and state.native == _UNFINISHED

    def _finish(self, connection: Connection) -> None:
        unfinished = self._state.c.native == _UNFINISHED
        connection.execute(update(self._state).where(unfinished).values(native=0))

    async def fill_in_steps(self, progress: Progress | None) -> int:
        """Adds missing rows in short transactions. Returns how many."""
        passed, after, more = 0, None, True
        while more:
            found, after = await self.database.write(partial(self.fill, after=after))
            passed, more = passed + found, after is not None
            if found and progress is not None:
                progress(passed)
        return passed

    def fill(self, connection: Connection, after: int | None) -> tuple[int, int | None]:
        """Adds missing rows. Returns how many, and the last item if there can be more."""
        if self.lock(connection) is None:
            return 0, None
        found = self._fill(connection, self._messages.c.id > (after or 0))
        return len(found), found[-1] if len(found) == MOST else None

    def lock(self, connection: Connection, *, waits: bool = True) -> Any:
        """Keeps others from filling. Returns the state, or None if it is missing or locked."""
        self._dialect.begin_writing(connection)
        locked = select(self._state).with_for_update(skip_locked=not waits)
        return connection.execute(locked).one_or_none()

    def add(self, connection: Connection, words: Mapping[int, str]) -> None:
        """Adds rows of items that exist. The state must be locked."""
        # An item that is being deleted is left out. Others cannot be deleted until the commit.
        wanted: Any = bindparam("items", expanding=True)
        lock = select(self._messages.c.id).where(self._messages.c.id.in_(wanted))
        lock = lock.with_for_update(read=True, skip_locked=True)
        existing = connection.scalars(lock, {"items": list(words)}).all()
        self.insert(connection, {each: words[each] for each in sorted(existing)})

    def missing(self) -> Any:
        """Selects items without a row."""
        messages, rows = self._messages, self._rows
        # By an expression, which looks up each: a join could read the whole table.
        found = select(literal_number(0)).where(rows.c.id == messages.c.id).scalar_subquery()
        # Not by `= 1`, of which PostgreSQL expects so few that it reads all items for each step.
        missing = func.nullif(func.coalesce(found, literal_number(1)), literal_number(0))
        return select(messages.c.id, messages.c.message_data).where(missing.is_not(None))

    def insert(self, connection: Connection, words: Mapping[int, str]) -> None:
        if words:
            new = [{"id": item_id, "words": each} for item_id, each in words.items()]
            connection.execute(self._dialect.insert_missing(self._rows), new)

    def advance(self, connection: Connection) -> None:
        """Finds out up to which item all items have rows.

        Items can appear in another order than their numbers. No item up to the newest one appears
        anymore as soon as all transactions that are open now have ended.
        """
        state, marks = self.lock(connection), self._dialect.text_search
        if state is None or state.mark > connection.scalar(select(literal_column(marks.oldest))):
            return
        found = self._fill(connection, self._messages.c.id.between(state.filled + 1, state.pending))
        if len(found) < MOST:
            newest = select(func.coalesce(func.max(self._messages.c.id), 0)).scalar_subquery()
            mark: Any = literal_column(marks.newest)
            new = {"filled": state.pending, "pending": newest, "mark": mark}
            connection.execute(update(self._state).values(new))

    async def advance_fully(self) -> None:
        # The first step finds the newest item, the second that all up to it have rows.
        for _ in range(2):
            await self.database.write(self.advance)

    def _fill(self, connection: Connection, some: ColumnElement[bool]) -> list[int]:
        statement = self.missing().where(some).order_by(self._messages.c.id)
        found: Any = connection.execute(statement.limit(literal_number(MOST))).all()
        self.add(connection, {item_id: words_of(data) for item_id, data in found})
        return [item_id for item_id, _ in found]

    def add_native(self, connection: Connection) -> bool:
        """Adds the database's own index. Returns False if it exists."""
        state = self.lock(connection)
        if state is None or state.native > 0:
            return False
        self._run(connection, self._dialect.text_search.create_native)
        connection.execute(update(self._state).values(native=1))
        return True

    def purge(self, connection: Connection) -> None:
        """Removes deleted words from the database's own index."""
        if connection.scalar(select(self._state.c.native)) == 1:
            self._run(connection, self._dialect.text_search.purge_native)

    def _leave(self, connection: Connection) -> bool:
        """Drops the index but keeps the rows. Returns False if there is no index."""
        if self.lock(connection) is None:
            return False
        self._time_index.change(connection, exists=False)
        self._run(connection, self._dialect.text_search.drop_native)
        connection.execute(delete(self._state))
        self.database.notes[TEXT] = False
        return True

    def _empty(self, connection: Connection) -> bool:
        """Deletes some rows. Returns whether there were any."""
        if self.lock(connection) is not None:
            return False
        some = connection.scalars(select(self._rows.c.id).limit(literal_number(MOST))).all()
        connection.execute(delete(self._rows).where(self._rows.c.id.in_(some)))
        return bool(some)

    def _run(self, connection: Connection, statements: Iterable[str]) -> None:
        schema = schema_of(connection, self._rows)
        plain = {"rows": self._rows.name, "gin": derived_name(self._rows.name, "_gin")}
        plain |= {end: f"{self._rows.name}_{end}" for end in ("fts", "inserted", "deleted")}
        quote = connection.dialect.identifier_preparer.quote_identifier
        names = {key: quote(name) for key, name in plain.items()}
        with self._dialect.brief_waits(connection):
            for each in statements:
                connection.exec_driver_sql(each.format(schema=schema, **names))


async def fill_met(database: Database, words: Mapping[int, str], *, advances: bool) -> None:
    """Adds the rows of items that a search has read. It has its answer, so nothing is raised."""

    def fill(connection: Connection) -> None:
        index = TextIndex(database)
        # If another process fills, the rows may be there already.
        if index.lock(connection, waits=False) is not None:
            index.add(connection, words)
            if advances:
                index.advance(connection)

    try:
        await database.refusing(None).write(fill)
    except DBAPIError:
        # The user may only read, or this is a replica.
        logger.debug("words of %d items could not be written", len(words), exc_info=True)


async def refresh(database: Database, progress: Progress | None = None) -> int:
    """Adds all missing rows, in short transactions. Returns how many were added."""
    if not await database.read(partial(look, database)):
        raise TablesMissingError((), problem=NO_INDEX)
    index = TextIndex(database)
    done = await index.fill_in_steps(progress)
    await index.advance_fully()
    return done


def check_native(database: Database, key: str) -> None:
    if key != KEY:
        raise ValueError(f"native is for the index {KEY!r} only, got {quoted(key)}")
    if not database.dialect.text_search.create_native:
        raise UnsupportedDialectError(database.dialect.name, "native=True")


async def add_native(database: Database) -> bool:
    index = TextIndex(database)
    added = await database.write(index.add_native)
    await index.advance_fully()
    return added


class SearchFeature(Feature):
    name = TEXT
    suffixes: ClassVar[tuple[str, ...]] = ("_text", "_text_state")

    def define(self, make: TableMaker) -> None:
        rows_name, state_name = make.names
        messages = make.core[1]
        # The native index of SQLite, which only `create_index` creates.
        native = Table(f"{rows_name}_fts", MetaData(), schema=messages.schema)
        item = ForeignKey(
            messages.c.id, ondelete="CASCADE", name=derived_name(rows_name, "_item_fk")
        )
        rows = make.table(
            rows_name,
            Column("id", make.types.item_id, item, primary_key=True, autoincrement=False),
            Column("words", Words(), nullable=False),
        )
        make.table(
            state_name,
            Column("id", Integer, primary_key=True, autoincrement=False),
            # 1 if the database's own index exists, -1 until the first fill has ended.
            Column("native", Integer, nullable=False),
            # All items up to this one have rows.
            Column("filled", BigInteger, nullable=False),
            # All items up to this one will, as soon as the transactions of `mark` have ended.
            Column("pending", BigInteger, nullable=False),
            Column("mark", BigInteger, nullable=False),
        )
        make.triggers.append(CreateTrigger(messages, rows, ("id",)))
        make.virtual.append(native)

    def index(self, database: Database) -> TextIndex:
        return TextIndex(database)

    def insert_items(
        self, database: Database, connection: Connection, session_id: str, texts: Sequence[str]
    ) -> bool:
        """Inserts items with their words. Returns False if there is no index."""
        if not _is_indexed(database, connection):
            return False
        rows, messages = database.tables.group(TEXT)["_text"], database.tables.messages
        items = [{"session_id": session_id, "message_data": data} for data in texts]
        ids = database.dialect.text_search.insert_items(connection, messages, items)
        # A search adds the words of items whose ids are not known.
        known = zip(ids, texts[len(texts) - len(ids) :], strict=True)
        words = [{"id": item_id, "words": words_of(data)} for item_id, data in known]
        connection.execute(insert(rows), words)
        return True

    def added(self, database: Database, connection: Connection, ids: Sequence[str]) -> None:
        if ids and _is_indexed(database, connection):
            session_id = database.tables.messages.c.session_id
            index = TextIndex(database)
            items: Any = connection.execute(index.missing().where(session_id.in_(ids)))
            index.insert(connection, {item_id: words_of(data) for item_id, data in items})

    def erase(
        self,
        database: Database,
        connection: Connection,
        ids: Sequence[str],
        erased: Erased,  # noqa: ARG002  # all rows
    ) -> Mapping[str, int]:
        rows, messages = database.tables.group(TEXT)["_text"], database.tables.messages
        dialect = database.dialect
        own = select(messages.c.id).where(dialect.one_of(messages.c.session_id, "ids", len(ids)))
        deletion = delete(rows).where(rows.c.id.in_(own))
        parameters = dialect.list_parameters("ids", ids)
        return {rows.name: connection.execute(deletion, parameters).rowcount}

    def erase_rest(
        self,
        database: Database,
        connection: Connection,
        erased: Erased,  # noqa: ARG002  # all words
    ) -> Mapping[str, int]:
        TextIndex(database).purge(connection)
        return {}


FEATURE = SearchFeature()

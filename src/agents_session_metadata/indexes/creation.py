"""Creates and drops indexes while others read and write.

An index on a key is a row in the table of indexes, with a state, and entries that triggers
maintain. If DDL is transactional and writers can be kept out (PostgreSQL), an index appears and
disappears in one transaction. Elsewhere it is announced first, so that triggers add entries from
then on; then the entries of the existing sessions are added in steps; then it is declared complete.

Every process that changes the state stores a token. A process that finds another token stops.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Index,
    MetaData,
    delete,
    func,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.definitions import derived_name
from agents_session_metadata.errors import (
    InvalidMetadataError,
    TablesMissingError,
    TriggersNotAllowedError,
)
from agents_session_metadata.types import MAX_KEY_LENGTH, IndexInfo
from agents_session_metadata.values import key_problem

from .tables import (
    ACTIVITY,
    COMPLETE,
    DROPPING,
    ENTRY_COLUMNS,
    FILLING,
    expected_entries,
    lock_state,
    look,
)
from .triggers import activity_triggers, create_triggers, lacking_triggers

T = TypeVar("T")
Progress = Callable[[int], object]

UPDATED_AT = "$updated_at"
"""The key of the SQL index of all sessions."""
NO_TEXT_INDEX = "search requires the text index, which is not available in this version"
_SESSIONS_AT_ONCE = 1_000


def check_index_key(key: object) -> str:
    """Raises `InvalidMetadataError` for an invalid key, `TablesMissingError` for `$text`."""
    if key == UPDATED_AT:
        return UPDATED_AT
    if key == "$text":
        raise TablesMissingError((), problem=NO_TEXT_INDEX)
    problem = key_problem(key)
    if problem is None and isinstance(key, str):
        if len(key) <= MAX_KEY_LENGTH:
            return str.__str__(key)
        problem = f"a key can have at most {MAX_KEY_LENGTH} characters"
    raise InvalidMetadataError(f"{problem}; {UPDATED_AT} indexes all sessions", key=key)


async def create_index(database: Database[Any], key: str, progress: Progress | None = None) -> bool:
    """Creates an index, or continues an incomplete one. Returns False if it was complete."""
    if key == UPDATED_AT:
        return await _create_updated(database, progress)
    await database.ensure(ACTIVITY)
    index = _Index(database, key)
    try:
        token, is_complete = await database.write(_work(index.begin))
        if token is not None and not is_complete:
            await database.write(_work(index.create_triggers))
    except DBAPIError as error:
        if database.dialect.refuses_triggers(error):
            raise TriggersNotAllowedError from error
        raise
    created: bool = is_complete and token is not None
    if token is not None and not is_complete:
        await _fill(database, index, progress)
        created = await database.write(_work(partial(index.finish, token)))
    elif created and progress is not None:
        progress(index.sessions)
    await database.read(_work(partial(look, database)))
    return created


async def _fill(database: Database[Any], index: _Index, progress: Progress | None) -> None:
    done, after = 0, None
    while True:
        found, after = await database.write(_work(partial(index.fill_step, after)))
        done += found
        if found and progress is not None:
            progress(done)
        if after is None:
            return


async def drop_index(database: Database[Any], key: str) -> bool:
    if key == UPDATED_AT:
        return await _drop_updated(database)
    if not await database.read(_work(partial(_has_indexes, database))):
        return False
    index = _Index(database, key)
    token: str | None = await database.write(_work(index.leave))
    # Other sessions write meanwhile: whoever creates the index again takes over.
    more = bool(token)
    while token and more:
        more = await database.write(_work(partial(index.empty_step, token)))
    await database.read(_work(partial(look, database)))
    return token is not None


async def list_indexes(database: Database[Any], *, count: bool = False) -> list[IndexInfo]:
    def read(connection: Connection) -> list[IndexInfo]:
        found = [*_read_updated(database, connection, count=count), *read_keys(connection)]
        return sorted(found, key=lambda info: info.key)

    def read_keys(connection: Connection) -> list[IndexInfo]:
        if not _has_indexes(database, connection):
            return []
        indexes, entries = database.tables.group(ACTIVITY).tables
        counts: dict[str, int] = {}
        if count:
            counted: Any = connection.execute(
                select(entries.c.key, func.count()).group_by(entries.c.key)
            )
            counts = {key: int(number) for key, number in counted}
        found: Iterable[Any] = connection.execute(select(indexes.c.key, indexes.c.state))
        return [
            IndexInfo(key, state == COMPLETE, counts.get(key, 0) if count else None)
            for key, state in found
        ]

    return await database.look(read)


def _updated_index(database: Database[Any]) -> Index:
    """Uses a copy of the sessions table: the table in `session_tables()` has no such index."""
    sessions = database.tables.sessions.to_metadata(MetaData())
    columns = [sessions.c.updated_at]
    if database.dialect.single_writer:
        # InnoDB adds the primary key by itself. PostgreSQL has no room for the longest ids.
        columns.append(sessions.c.session_id)
    return Index(derived_name(sessions.name, "_updated_at_idx"), *columns)


def _has_updated(database: Database[Any], connection: Connection) -> bool:
    sessions, inspector = database.tables.sessions, inspect(connection)
    schema = connection.schema_for_object(sessions)
    return inspector.has_table(sessions.name, schema) and any(
        each["name"] == _updated_index(database).name
        for each in inspector.get_indexes(sessions.name, schema)
    )


async def _create_updated(database: Database[Any], progress: Progress | None) -> bool:
    def create(connection: Connection) -> int | None:
        database.dialect.begin_ddl(connection)
        if _has_updated(database, connection):
            return None
        with database.dialect.brief_waits(connection):
            _updated_index(database).create(connection)
        return _count_sessions(database, connection)

    try:
        number = await database.write(_work(create))
    except DBAPIError:
        # Another process may have created it.
        if not await database.look(partial(_has_updated, database)):
            raise
        return False
    if number is not None and progress is not None:
        progress(number)
    return number is not None


async def _drop_updated(database: Database[Any]) -> bool:
    def drop(connection: Connection) -> bool:
        database.dialect.begin_ddl(connection)
        exists = _has_updated(database, connection)
        if exists:
            with database.dialect.brief_waits(connection):
                _updated_index(database).drop(connection)
        return exists

    try:
        return await database.write(_work(drop))
    except DBAPIError:
        # Another process may have dropped it.
        if await database.look(partial(_has_updated, database)):
            raise
        return False


def _read_updated(
    database: Database[Any], connection: Connection, *, count: bool
) -> Iterator[IndexInfo]:
    if _has_updated(database, connection):
        number = _count_sessions(database, connection) if count else None
        yield IndexInfo(UPDATED_AT, complete=True, entries=number)


def _count_sessions(database: Database[Any], connection: Connection) -> int:
    return connection.scalar(select(func.count()).select_from(database.tables.sessions)) or 0


def _work(work: Callable[[Connection], T]) -> Callable[[Connection, Any], T]:
    return lambda connection, _: work(connection)


def _has_indexes(database: Database[Any], connection: Connection) -> bool:
    return database.has_tables(connection, ACTIVITY)


class _Index:
    """The statements about one index. Each method is work for one transaction."""

    def __init__(self, database: Database[Any], key: str) -> None:
        self.key = key
        self.sessions = 0
        self._database = database
        self._dialect = database.dialect
        self._tables = database.tables
        self._indexes, self._entries = database.tables.group(ACTIVITY).tables
        self._own = self._indexes.c.key == key
        self._of_key = self._entries.c.key == key

    def begin(self, connection: Connection) -> tuple[str | None, bool]:
        """Announces the index.

        Returns the token, or None if the index was complete already; and whether it is complete
        now.
        """
        state = connection.scalar(select(self._indexes.c.state).where(self._own))
        if state == COMPLETE:
            return None, True
        tables = self._tables
        in_one = self._dialect.lock_tables(
            connection, [tables.sessions, tables.metadata, tables.elements, self._indexes]
        )
        token = uuid.uuid4().hex
        new = {"key": self.key, "state": FILLING, "token": token}
        connection.execute(self._dialect.insert_missing(self._indexes), new)
        row = connection.execute(
            select(self._indexes.c.state, self._indexes.c.token).where(self._own).with_for_update()
        ).one()
        if row.state == COMPLETE:
            return None, True
        if row.state == DROPPING:
            connection.execute(update(self._indexes).where(self._own).values(**new))
        elif row.token != token:
            # Somebody else fills it, or has stopped: do the same.
            token = row.token
        if in_one:
            self.create_triggers(connection)
            # Entries that a writer added after the index had been dropped.
            connection.execute(delete(self._entries).where(self._of_key))
            for fill in self._fills():
                connection.execute(fill)
            self.finish(token, connection)
            self.sessions = _count_sessions(self._database, connection)
        return token, in_one

    def create_triggers(self, connection: Connection) -> None:
        """Creates missing triggers and replaces altered ones, which make the index incomplete."""
        self._dialect.begin_ddl(connection)
        triggers = self._triggers(connection)
        with self._dialect.brief_waits(connection):
            for trigger in triggers:
                for function in self._dialect.triggers.create(trigger)[:-1]:
                    connection.exec_driver_sql(function)
            lacking = lacking_triggers(connection, self._tables, triggers)
            if any(lacking.values()):
                # Nobody has added the entries of what was written with the other triggers.
                is_complete = self._indexes.c.state == COMPLETE
                connection.execute(update(self._indexes).where(is_complete).values(state=FILLING))
            create_triggers(connection, lacking)

    def fill_step(self, after: str | None, connection: Connection) -> tuple[int, str | None]:
        """Returns the number of sessions, and the id of the last one if there can be more."""
        session_id = self._tables.sessions.c.session_id
        further = [] if after is None else [session_id > after]
        ids = connection.scalars(
            select(session_id)
            .where(*further)
            .order_by(session_id)
            .limit(_SESSIONS_AT_ONCE)
            # Sessions first, as everybody locks them. Shared: on MySQL, who waits for a row that
            # was just deleted makes a writer that creates it again the victim of a deadlock.
            .with_for_update(read=True)
        ).all()
        if not ids:
            return 0, None
        # By their ids: by a range of ids, SQLite would read all values of the key in each step.
        some = self._dialect.one_of(session_id, "ids", len(ids))
        for fill in self._fills(some):
            connection.execute(fill, self._dialect.list_parameters("ids", ids))
        return len(ids), ids[-1] if len(ids) == _SESSIONS_AT_ONCE else None

    def finish(self, token: str, connection: Connection) -> bool:
        """Declares the index complete, if it still has the token."""
        # Not from the number of rows, which triggers of the application may change.
        row = lock_state(connection, self._indexes, self.key)
        if row is None or (row.token, row.state) != (token, FILLING):
            return False
        connection.execute(update(self._indexes).where(self._own).values(state=COMPLETE))
        return True

    def leave(self, connection: Connection) -> str | None:
        """Drops the index. Returns its token, "" if no entries are left, None if there was none."""
        in_one = self._dialect.lock_tables(connection, [self._indexes])
        if lock_state(connection, self._indexes, self.key) is None:
            return None
        token = uuid.uuid4().hex
        left = update(self._indexes).where(self._own)
        connection.execute(left.values(state=DROPPING, token=token))
        if in_one:
            connection.execute(delete(self._indexes).where(self._own))
            for trigger in self._triggers(connection):
                connection.exec_driver_sql(self._dialect.triggers.create(trigger)[0])
            connection.execute(delete(self._entries).where(self._of_key))
            return ""
        return token

    def empty_step(self, token: str, connection: Connection) -> bool:
        """Deletes some entries of a dropped index. Returns True if there can be more."""
        session_id = self._entries.c.session_id
        ids = list(
            connection.scalars(
                select(session_id).where(self._of_key).distinct().limit(_SESSIONS_AT_ONCE)
            )
        )
        # Before anything is deleted: whoever creates the index again waits, and starts with a
        # token of its own. Shared, because a writer holds entries when its trigger reads the row.
        row = lock_state(connection, self._indexes, self.key, shared=bool(ids))
        if row is None or row.token != token:
            return False
        if not ids:
            connection.execute(delete(self._indexes).where(self._own))
            return False
        some = self._dialect.one_of(session_id, "ids", len(ids))
        parameters = self._dialect.list_parameters("ids", ids)
        connection.execute(delete(self._entries).where(self._of_key, some), parameters)
        return True

    def _fills(self, *conditions: ColumnElement[bool]) -> Iterator[Any]:
        columns = list(ENTRY_COLUMNS)
        for statement in expected_entries(self._tables.tables, self._dialect, self.key):
            selected = statement.where(*conditions)
            if not self._dialect.triggers.inlines_keys:
                # Rows that somebody is writing are waited for.
                selected = selected.with_for_update(read=True)
            insert = self._dialect.insert_missing(self._entries, selected=True)
            yield insert.from_select(columns, selected)

    def _triggers(self, connection: Connection) -> list[Any]:
        keys = connection.scalars(select(self._indexes.c.key)).all()
        return activity_triggers(connection, self._tables, keys)

"""Creates, drops and lists indexes while others read and write.

An index is a row in the table of indexes, with a state, and what its kind makes of it. It is
announced first, so that from then on whoever writes maintains it; then it is filled in steps; then
it is declared complete. If its kind can keep writers out, all of that is one transaction. An index
that is dropped is unused from the first transaction on, and emptied in steps.

Whoever changes the state stores a token, and stops when it finds another one.

A metadata key is of the kind in `key_index`. Features add kinds for keys that begin with `$`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, select, update
from sqlalchemy.exc import DBAPIError

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.features import IndexKind, features, fill_in_steps
from agents_session_metadata.core.schema import SDKIndex
from agents_session_metadata.errors import InvalidMetadataError, TriggersNotAllowedError
from agents_session_metadata.types import MAX_KEY_LENGTH, IndexInfo
from agents_session_metadata.values import key_problem

from .key_index import KeyIndex
from .tables import ACTIVITY, COMPLETE, DROPPING, FILLING, look

Progress = Callable[[int], object]

UPDATED_AT = "$updated_at"
"""The key of the index of all sessions."""
_AT_ONCE = 1_000


def check_index_key(key: object) -> str:
    """Raises `InvalidMetadataError` for an invalid key."""
    if key == UPDATED_AT or key in _kinds():
        return str(key)
    problem = key_problem(key)
    if problem is None and isinstance(key, str):
        if len(key) <= MAX_KEY_LENGTH:
            return str.__str__(key)
        problem = f"a key can have at most {MAX_KEY_LENGTH} characters"
    raise InvalidMetadataError(f"{problem}; {UPDATED_AT} indexes all sessions", key=key)


async def create_index(database: Database, key: str, progress: Progress | None = None) -> bool:
    """Creates an index, or continues an incomplete one. Returns False if it was complete."""
    if key == UPDATED_AT:
        created = await _change_sdk_index(database, exists=True)
        if created and progress is not None:
            progress(await database.look(partial(_count, database)))
        return created
    await database.ensure(ACTIVITY)
    index = _Index(database, key)
    kind = index.kind
    if kind.group is not None:
        await database.ensure(kind.group)
    try:
        token, done = await database.write(index.begin)
        if token is not None:
            await database.write(kind.prepare)
    except DBAPIError as error:
        if database.dialect.refuses_triggers(error):
            raise TriggersNotAllowedError from error
        raise
    if token is not None:
        await fill_in_steps(database, kind, progress)
        created = await database.write(partial(index.finish, token=token))
    else:
        created = done is not None
        if done and progress is not None:
            progress(done)
    await database.look(partial(look, database))
    return created


async def drop_index(database: Database, key: str) -> bool:
    if key == UPDATED_AT:
        return await _change_sdk_index(database, exists=False)
    if not await database.read(lambda connection: database.has_tables(connection, ACTIVITY)):
        return False
    index = _Index(database, key)
    token = await database.write(index.leave)
    # Others write meanwhile: whoever creates the index again takes over.
    more = token is not None
    while more:
        more = await database.write(partial(index.empty_step, token=token))
    await database.look(partial(look, database))
    return token is not None


async def list_indexes(database: Database, *, count: bool = False) -> list[IndexInfo]:
    def read(connection: Connection) -> list[IndexInfo]:
        found = []
        if _sdk_index(database).exists(connection):
            number = _count(database, connection) if count else None
            found.append(IndexInfo(UPDATED_AT, complete=True, entries=number))
        if database.has_tables(connection, ACTIVITY):
            indexes = database.tables.group(ACTIVITY)["_indexes"]
            states: Any = connection.execute(select(indexes.c.key, indexes.c.state)).all()
            for key, state in states:
                column, own = _Index(database, key).kind.rows
                entries = select(func.count(column)).where(own)
                number = connection.scalar(entries) if count else None
                found.append(IndexInfo(key, state == COMPLETE, number))
        return sorted(found, key=lambda info: info.key)

    return await database.look(read)


def _kinds() -> dict[str, Callable[[Database], IndexKind]]:
    return {key: kind for feature in features() for key, kind in feature.indexes}


# ---- the index of all sessions: an SQL index on the SDK's table ----


def _sdk_index(database: Database) -> SDKIndex:
    # InnoDB adds the primary key by itself. PostgreSQL has no room for the longest ids.
    more = ["session_id"] if database.dialect.indexes_ids else []
    return SDKIndex(database.tables.sessions, "_updated_at_idx", ["updated_at", *more])


def _count(database: Database, connection: Connection) -> int:
    return connection.scalar(select(func.count()).select_from(database.tables.sessions)) or 0


async def _change_sdk_index(database: Database, *, exists: bool) -> bool:
    """Creates or drops the index. Returns whether that was necessary."""
    index = _sdk_index(database)
    try:
        return await database.write(lambda connection: index.change(connection, exists=exists))
    except DBAPIError:
        # Another process may have done it.
        if await database.look(index.exists) != exists:
            raise
        return False


# ---- the index of a key ----


class _Index:
    """The state of one index. Each method is work for one transaction."""

    def __init__(self, database: Database, key: str) -> None:
        kind = _kinds().get(key)
        self.kind = KeyIndex(database, key) if kind is None else kind(database)
        self._key = key
        self._dialect = database.dialect
        self._states = database.tables.group(ACTIVITY)["_indexes"]
        self._own = self._states.c.key == key

    def begin(self, connection: Connection) -> tuple[str | None, int | None]:
        """Announces the index.

        Returns a token with which to prepare, fill and finish it; or the number of sessions if all
        of that is done. Returns neither if the index was complete already.
        """
        state = connection.scalar(select(self._states.c.state).where(self._own))
        if state == COMPLETE:
            return None, None
        alone = self.kind.keep_out(connection)
        token = uuid.uuid4().hex
        new = {"key": self._key, "state": FILLING, "token": token}
        connection.execute(self._dialect.insert_missing(self._states, selected=True), new)
        row = connection.execute(select(self._states).where(self._own).with_for_update()).one()
        if row.state == COMPLETE:
            return None, None
        if row.state == DROPPING:
            connection.execute(update(self._states).where(self._own).values(**new))
        else:
            token = row.token  # Somebody else fills it, or has stopped: do the same.
        if not alone:
            return token, None
        self.kind.prepare(connection)
        done = self.kind.fill_at_once(connection)
        self.finish(connection, token=token)
        return None, done

    def finish(self, connection: Connection, *, token: str) -> bool:
        """Declares the index complete, if it still has the token."""
        row = self._lock(connection)
        if row is None or (row.token, row.state) != (token, FILLING):
            return False
        connection.execute(update(self._states).where(self._own).values(state=COMPLETE))
        return True

    def leave(self, connection: Connection) -> str | None:
        """Announces that the index is dropped. Returns the token, or None if there was no index."""
        alone = self._dialect.lock_tables(connection, [self._states])
        if self._lock(connection) is None:
            return None
        token = uuid.uuid4().hex
        left = update(self._states).where(self._own)
        connection.execute(left.values(state=DROPPING, token=token))
        self.kind.leave(connection, alone=alone)
        return token

    def empty_step(self, connection: Connection, *, token: str | None) -> bool:
        """Deletes some of a dropped index. Returns True if there can be more."""
        column, own = self.kind.rows
        some = list(connection.scalars(select(column).where(own).distinct().limit(_AT_ONCE)))
        # Before anything is deleted: whoever creates the index again waits, and starts with a
        # token of its own. Shared, because a writer holds entries when its trigger reads the row.
        row = self._lock(connection, shared=bool(some))
        if row is None or row.token != token:
            return False
        if some:
            these = column.in_(bindparam("some", expanding=True))
            connection.execute(delete(column.table).where(own, these), {"some": some})
        else:
            connection.execute(delete(self._states).where(self._own))
        return bool(some)

    def _lock(self, connection: Connection, *, shared: bool = False) -> Any:
        """Returns None if there is no row. With `shared`, triggers can still read the row."""
        self._dialect.begin_writing(connection)
        locked = select(self._states).where(self._own).with_for_update(read=shared)
        return connection.execute(locked).one_or_none()

"""Locks the row of one session, which every write does first.

Whether a row exists or was created is read from the rows themselves. Row counts and last insert ids
also reflect the effects of an application's own triggers, except SQLite's row counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Table,
    bindparam,
    exists,
    literal,
    select,
)

ROUNDS = 10
"""Attempts to lock a row that others create and delete in the meantime."""


class LockedSession(NamedTuple):
    """The result of locking a row. `stored` is None if there is none, so nothing is locked.

    `has_leftovers` is None if it is not known before the session is created.
    """

    stored: dict[str, Any] | None
    has_leftovers: bool | None = None


Reader = Callable[[Connection, str], LockedSession]


class Locks:
    """The statements that lock one session's row. This class requires `RETURNING`."""

    def __init__(self, sessions: Table, metadata: Table) -> None:
        self._sessions = sessions
        self._metadata = metadata
        session: BindParameter[str] = bindparam("session")
        leftovers = exists().where(metadata.c.session_id == session)
        self.read_leftovers: Any = select(leftovers)
        self._look: Any = select(sessions.c.session_id).where(sessions.c.session_id == session)
        """Reads what is committed, without waiting."""
        self._lock: Any = self._look.with_for_update()
        self._insert_alone = self._insert(literal(False))
        self._insert_reading = self._insert(leftovers)

    def _insert(self, value: ColumnElement[Any]) -> Any:
        """Returns an INSERT that selects a value for a new row, and NULL or nothing otherwise.

        A row that exists is then locked.
        """
        raise NotImplementedError

    def existing(self, connection: Connection, session_id: str) -> bool:
        """Locks a session's row and returns whether it exists."""
        return connection.execute(self._lock, {"session": session_id}).first() is not None

    def replaced(self, connection: Connection, session_id: str) -> bool:
        """Locks a row that others replaced while an earlier lock waited and found none.

        Returns whether there is such a row. Only PostgreSQL needs to look.
        """
        return False

    def insert(self, connection: Connection, session_id: str) -> bool:
        """Returns whether a row was created. Uses only the sessions table."""
        return connection.scalar(self._insert_alone, {"session": session_id}) is not None

    def create(
        self, connection: Connection, session_id: str, has_leftovers: bool | None = None
    ) -> bool | None:
        """Returns whether metadata of an earlier session with this id exists.

        Returns None if the session exists; its row is then locked. `has_leftovers` is the answer if
        the caller knows it already.
        """
        found = connection.scalar(self._insert_reading, {"session": session_id})
        return None if found is None else bool(found)

    def reading_nothing(self, connection: Connection, session_id: str) -> LockedSession:
        found = connection.execute(self._lock, {"session": session_id}).first()
        return LockedSession(None if found is None else {})

    def reader(self, column: ColumnElement[Any]) -> Reader:
        """Returns a function that locks a session's row, then reads a metadata column by key."""
        metadata = self._metadata
        own = metadata.c.session_id == bindparam("session")
        # A separate statement, because PostgreSQL reads a snapshot from the start of a statement.
        statement: Any = select(metadata.c.key, column).where(own)

        def read(connection: Connection, session_id: str) -> LockedSession:
            if not self.existing(connection, session_id):
                return LockedSession(None)
            rows: Any = connection.execute(statement, {"session": session_id})
            return LockedSession(dict(rows.all()))

        return read

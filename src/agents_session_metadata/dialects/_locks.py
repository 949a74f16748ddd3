"""Locking the row of one session: how every write begins.

Whether a row is there, or was created, is always read from the rows themselves. Row counts, last
insert ids and the like also reflect what an application's own triggers do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Insert,
    Table,
    bindparam,
    exists,
    literal,
    or_,
    select,
)

from agents_session_metadata.quoting import quoted

ROUNDS = 10
"""How often a row may be created and deleted by others while one caller wants to lock it."""


class Found(NamedTuple):
    """What a lock found of a session.

    Attributes:
        stored: What was read of its metadata by key; None if there is no session, and no lock.
        has_leftovers: Whether metadata of an earlier session with this id exists, where that is
            known before the session is created.
    """

    stored: dict[str, Any] | None
    has_leftovers: bool | None = None


Reader = Callable[[Connection, str], Found]


class Locks:
    """The statements that lock one session's row; this class works where `RETURNING` does.

    Args:
        sessions: The sessions table.
        metadata: The metadata table.
        elements: The table of list elements.
    """

    def __init__(self, sessions: Table, metadata: Table, elements: Table) -> None:
        self._sessions = sessions
        self._metadata = metadata
        of_session: BindParameter[str] = bindparam("of_session")
        self.leftovers: ColumnElement[bool] = or_(
            exists().where(metadata.c.session_id == of_session),
            exists().where(elements.c.session_id == of_session),
        )
        """Whether metadata exists under the id."""
        self.read_leftovers: Any = select(self.leftovers)
        self._lock: Any = (
            select(sessions.c.session_id)
            .where(sessions.c.session_id == of_session)
            .with_for_update()
        )
        self._create_in_any = self._insert_new(literal(False))
        self._create = self._insert_new(self.leftovers)

    def existing(self, connection: Connection, session_id: str) -> bool:
        """Lock a session's row; give whether there is one."""
        return connection.execute(self._lock, {"of_session": session_id}).first() is not None

    def or_create(self, connection: Connection, session_id: str) -> bool:
        """Lock a session's row, creating it if need be; give whether it was created.

        It uses the sessions table only, and may be part of somebody else's transaction.
        """
        return self._created(connection, session_id, self._create_in_any) is not None

    def create(
        self, connection: Connection, session_id: str, has_leftovers: bool | None = None
    ) -> bool | None:
        """Create a session's row at the beginning of a transaction.

        Args:
            connection: The connection.
            session_id: The session's id.
            has_leftovers: What is known of leftovers already.

        Returns:
            Whether metadata exists under the id although the session did not; None if the session
            exists, and then it is locked.
        """
        return self._created(connection, session_id, self._create)

    def reader(self, column: ColumnElement[Any]) -> Reader:
        """What locks a session's row and reads a column of its metadata as of then, by key."""
        metadata = self._metadata
        own = metadata.c.session_id == bindparam("of_session")
        # A statement of its own: PostgreSQL reads what was there when the statement began.
        statement: Any = select(metadata.c.key, column).where(own)

        def read(connection: Connection, session_id: str) -> Found:
            if not self.existing(connection, session_id):
                return Found(None)
            rows: Any = connection.execute(statement, {"of_session": session_id})
            return Found(dict(rows.all()))

        return read

    def _insert_new(self, told: ColumnElement[Any]) -> Any:
        """Insert a row, unless it is there; only a new row is returned."""
        raise NotImplementedError

    def _new_row(self) -> Insert:
        return self._sessions.insert().values(session_id=bindparam("of_session"))

    def _created(self, connection: Connection, session_id: str, insert: Any) -> bool | None:
        parameters = {"of_session": session_id}
        for _ in range(ROUNDS):
            row = connection.execute(insert, parameters).first()
            if row is not None:
                return bool(row[0])
            if self.existing(connection, session_id):
                return None
        raise RuntimeError(
            f"cannot create session {quoted(session_id)}: the database refuses the row, "
            "although there is none; look for a trigger on the sessions table that drops it"
        )

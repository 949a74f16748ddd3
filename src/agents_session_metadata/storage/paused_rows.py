"""SQL for the rows of paused runs, on a connection that it is handed.

Whoever writes a row locks its session first. All times come from the database's clock.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects._dialect import Dialect, Statement
from agents_session_metadata.errors import SessionPausedError

from .messages import Restriction
from .paused import PAUSED
from .tables import SessionTables


class HistoryEnd(NamedTuple):
    """What tells whether a history has changed: the number of its items, and the newest one."""

    item_count: int
    last_item: int | None


class PausedRow(NamedTuple):
    """A row, and the time at which it was read; `state` is None if it was not asked for."""

    session_id: str
    details: str
    decisions: str
    item_count: int
    last_item: int | None
    revision: int
    paused_at: int
    token: str | None
    claimed_until: int | None
    now: int
    state: str | None = None

    @property
    def is_claimed(self) -> bool:
        """Whether a process holds a lease."""
        return self.token is not None and (self.claimed_until or 0) > self.now

    @property
    def is_crashed(self) -> bool:
        """Whether a lease has ended without a result."""
        return self.token is not None and not self.is_claimed

    @property
    def history_end(self) -> HistoryEnd:
        """The history that the state belongs to."""
        return HistoryEnd(self.item_count, self.last_item)


def paused_table(tables: SessionTables) -> Table:
    """The table of paused runs."""
    return tables.group(PAUSED).tables[0]


def has_paused_table(connection: Connection, tables: SessionTables) -> bool:
    """Whether the table exists: without it, no run is paused."""
    name = paused_table(tables).name
    return name in dialect_of(connection.dialect).existing(connection, tables.sessions, [name])


def has_paused_run(connection: Connection, tables: SessionTables, session_id: str) -> bool:
    """Whether a session has a paused run; the table need not exist."""
    if not has_paused_table(connection, tables):
        return False
    table = paused_table(tables)
    found = select(table.c.session_id).where(table.c.session_id == session_id)
    return connection.execute(found).first() is not None


def check_not_paused(connection: Connection, tables: SessionTables, session_id: str) -> None:
    """Refuse to change a history that a paused run depends on; the table need not exist.

    Raises:
        SessionPausedError: If the session has a paused run.
    """
    if has_paused_run(connection, tables, session_id):
        raise SessionPausedError(session_id)


def delete_paused_run(connection: Connection, tables: SessionTables, session_id: str) -> None:
    """Delete the paused run of a locked session, if it has one; the table need not exist."""
    if has_paused_table(connection, tables):
        table = paused_table(tables)
        connection.execute(delete(table).where(table.c.session_id == session_id))


class PausedRows:
    """The rows of paused runs in one set of tables."""

    def __init__(self, tables: SessionTables, dialect: Dialect) -> None:
        self._table = paused_table(tables)
        self._sessions = tables.sessions
        self._messages = tables.messages
        self._dialect = dialect

    # ---- reading ----

    def _reading(self, *, state: bool = False) -> Any:
        columns: list[Any] = [
            self._table.c[name] for name in PausedRow._fields if name not in ("now", "state")
        ]
        columns.append(self._dialect.now().label("now"))
        if state:
            columns.append(self._table.c.state)
        return select(*columns)

    def of_session(self, session_id: str, *, state: bool = False) -> Statement:
        """The statement that reads the row of a session."""
        own_id = self._table.c.session_id
        statement: Statement = self._reading(state=state).where(own_id == session_id)
        return statement.where(self._has_session(own_id))

    def page(
        self, *, limit: int, after: tuple[int, str] | None, restrict: Restriction
    ) -> tuple[Statement, dict[str, Any]]:
        """The statement that reads rows, the latest first, and its parameters."""
        inner = self._table.alias("inner_runs")
        paused_at, session_id = inner.c.paused_at, inner.c.session_id
        page: Any = select(session_id).where(self._has_session(session_id))
        page = page.order_by(paused_at.desc(), session_id.desc()).limit(limit)
        if after is not None:
            time, last = after
            beyond = or_(paused_at < time, session_id < last)
            page = page.where(and_(paused_at <= time, beyond))
        page, parameters = restrict(page, session_id)
        # The index alone answers that; the long columns are read for the rows of the page only.
        ids = page.subquery("page")
        own = self._table.c
        statement = self._reading().join(ids, ids.c.session_id == own.session_id)
        return statement.order_by(own.paused_at.desc(), own.session_id.desc()), parameters

    def locked(self, connection: Connection, session_id: str) -> PausedRow | None:
        """The row of a locked session."""
        own = self._table.c.session_id == session_id
        statement = self._dialect.locking(self._reading().where(own))
        row = connection.execute(statement).first()
        return None if row is None else PausedRow(*row)

    def history_end(self, connection: Connection, session_id: str) -> HistoryEnd:
        """Where the history of a session ends."""
        messages = self._messages
        found: Any = connection.execute(
            select(func.count(), func.max(messages.c.id)).where(messages.c.session_id == session_id)
        ).one()
        return HistoryEnd(int(found[0]), found[1])

    def _has_session(self, session_id: ColumnElement[str]) -> ColumnElement[bool]:
        """Whether the session of a row exists: it may have been deleted without the foreign key."""
        own_id = self._sessions.c.session_id
        # No join, which a planner could begin with the sessions.
        return select(own_id).where(own_id == session_id).scalar_subquery().is_not(None)

    # ---- writing to a session that is locked ----

    def store(self, connection: Connection, session_id: str, values: dict[str, Any]) -> None:
        """Store a paused run in place of the one that there may be; nobody has claimed it."""
        connection.execute(delete(self._table).where(self._table.c.session_id == session_id))
        connection.execute(
            insert(self._table).values(
                session_id=session_id,
                # Nobody who has read an earlier run of the session takes this one for it.
                revision=secrets.randbits(30),
                paused_at=self._dialect.now(),
                token=None,
                claimed_until=None,
                **values,
            )
        )

    def change(self, connection: Connection, session_id: str, values: dict[str, Any]) -> None:
        """Change columns of a row."""
        self._update(connection, session_id, values)

    def claim(
        self, connection: Connection, row: PausedRow, token: str, lease: int, *, after_crash: bool
    ) -> PausedRow | None:
        """Claim a run in one statement, if it is as it was read and nobody holds a lease.

        Args:
            connection: The connection.
            row: The row, as it was read.
            token: What is to identify the claimer.
            lease: Microseconds.
            after_crash: Whether a lease that has ended without a result does not matter.

        Returns:
            The row afterwards: claimed if its token is the one given. None if it is gone.
        """
        now, claimed_until = self._dialect.now(), self._table.c.claimed_until
        free: ColumnElement[bool] = self._table.c.token.is_(None)
        if after_crash:
            free = or_(free, claimed_until <= now)
        self._update(
            connection,
            row.session_id,
            {"token": token, "claimed_until": now + lease},
            self._table.c.revision == row.revision,
            free,
        )
        return self.locked(connection, row.session_id)

    def renew(self, connection: Connection, session_id: str, token: str, lease: int) -> None:
        """Prolong a lease that is still held."""
        own = self._table.c.session_id == session_id, self._table.c.token == token
        until = self._dialect.now() + lease
        connection.execute(update(self._table).where(*own).values(claimed_until=until))

    def delete(self, connection: Connection, session_id: str) -> None:
        """Delete a row."""
        connection.execute(delete(self._table).where(self._table.c.session_id == session_id))

    def _update(
        self, connection: Connection, session_id: str, values: dict[str, Any], *conditions: Any
    ) -> None:
        changed = update(self._table).where(self._table.c.session_id == session_id, *conditions)
        connection.execute(changed.values(revision=self._table.c.revision + 1, **values))

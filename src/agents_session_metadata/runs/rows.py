"""SQL for the rows of paused runs.

The caller locks the session before writing its row. All times come from the database's clock.
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

from agents_session_metadata.core.messages import Restriction
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect, Statement

from .tables import PAUSED


class HistoryEnd(NamedTuple):
    """Differs as soon as the history changes: the number of items and the newest id."""

    item_count: int
    last_item: int | None


class PausedRow(NamedTuple):
    """`now` is the time at which the row was read. `state` is None if it was not selected."""

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
        return self.token is not None and (self.claimed_until or 0) > self.now

    @property
    def is_crashed(self) -> bool:
        return self.token is not None and not self.is_claimed

    @property
    def history_end(self) -> HistoryEnd:
        return HistoryEnd(self.item_count, self.last_item)


def paused_table(tables: SessionTables) -> Table:
    return tables.group(PAUSED).tables[0]


class PausedRows:
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
        own_id = self._table.c.session_id
        statement: Statement = self._reading(state=state).where(own_id == session_id)
        return statement.where(self._has_session(own_id))

    def page(
        self, *, limit: int, after: tuple[int, str] | None, restrict: Restriction
    ) -> tuple[Statement, dict[str, Any]]:
        """Returns a statement that reads the latest rows first, and its parameters."""
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
        """The session must be locked."""
        own = self._table.c.session_id == session_id
        statement = self._dialect.locking(self._reading().where(own))
        row = connection.execute(statement).first()
        return None if row is None else PausedRow(*row)

    def history_end(self, connection: Connection, session_id: str) -> HistoryEnd:
        messages = self._messages
        found: Any = connection.execute(
            select(func.count(), func.max(messages.c.id)).where(messages.c.session_id == session_id)
        ).one()
        return HistoryEnd(int(found[0]), found[1])

    def _has_session(self, session_id: ColumnElement[str]) -> ColumnElement[bool]:
        """The session of a row may have been deleted without the foreign key."""
        own_id = self._sessions.c.session_id
        # No join, which a planner could begin with the sessions.
        return select(own_id).where(own_id == session_id).scalar_subquery().is_not(None)

    # ---- writing to a session that is locked ----

    def store(self, connection: Connection, session_id: str, values: dict[str, Any]) -> None:
        """Replaces a paused run that exists. The new one is not claimed."""
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
        self._update(connection, session_id, values)

    def claim(
        self, connection: Connection, row: PausedRow, token: str, lease: int, *, after_crash: bool
    ) -> PausedRow | None:
        """Claims a run in one statement, if it equals `row` and nobody holds a lease.

        `lease` is in microseconds. `after_crash` also claims a run whose lease has ended without a
        result. Returns the row afterwards, claimed if its token is `token`; None if the row is
        gone.
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
        """Does nothing if another token holds the run. `lease` is in microseconds."""
        own = self._table.c.session_id == session_id, self._table.c.token == token
        until = self._dialect.now() + lease
        connection.execute(update(self._table).where(*own).values(claimed_until=until))

    def delete(self, connection: Connection, session_id: str) -> None:
        connection.execute(delete(self._table).where(self._table.c.session_id == session_id))

    def _update(
        self, connection: Connection, session_id: str, values: dict[str, Any], *conditions: Any
    ) -> None:
        changed = update(self._table).where(self._table.c.session_id == session_id, *conditions)
        connection.execute(changed.values(revision=self._table.c.revision + 1, **values))

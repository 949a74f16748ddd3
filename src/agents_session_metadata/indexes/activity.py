"""The index of a metadata key: entries in the order in which their sessions were active."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, literal_column, select

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.features import IndexKind

from .tables import ACTIVITY, DROPPING
from .triggers import ENTRY_COLUMNS, create_triggers

SESSIONS_AT_ONCE = 1_000


class KeyIndex(IndexKind):
    """If writers can be kept out, one transaction creates the index, as on PostgreSQL.

    There, triggers contain the keys, because a writer with an older snapshot would not find them in
    the table. Elsewhere, a trigger waits for whoever announces an index, or is waited for.
    """

    def __init__(self, database: Database[Any], key: str) -> None:
        self._key = key
        self._dialect = database.dialect
        self._tables = database.tables
        self._indexes, self._entries = database.tables.group(ACTIVITY).tables
        self.rows: tuple[ColumnElement[Any], ColumnElement[bool]] = (
            self._entries.c.session_id,
            self._entries.c.key == key,
        )

    def keep_out(self, connection: Connection) -> bool:
        tables = self._tables
        written = [tables.sessions, tables.metadata, tables.elements, self._indexes]
        return self._dialect.lock_tables(connection, written)

    def prepare(self, connection: Connection) -> None:
        self._dialect.begin_ddl(connection)
        keys = connection.scalars(
            select(self._indexes.c.key).where(self._indexes.c.state != DROPPING)
        ).all()
        with self._dialect.brief_waits(connection):
            create_triggers(connection, self._tables, keys)

    def fill(self, connection: Connection, after: Any) -> tuple[int, Any]:
        session_id = self._tables.sessions.c.session_id
        further = [] if after is None else [session_id > after]
        ids = connection.scalars(
            select(session_id)
            .where(*further)
            .order_by(session_id)
            .limit(SESSIONS_AT_ONCE)
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
        return len(ids), ids[-1] if len(ids) == SESSIONS_AT_ONCE else None

    def fill_at_once(self, connection: Connection) -> int:
        # Entries that a writer added after the index had been dropped.
        connection.execute(delete(self._entries).where(self.rows[1]))
        for fill in self._fills():
            connection.execute(fill)
        sessions = select(func.count()).select_from(self._tables.sessions)
        return connection.scalar(sessions) or 0

    def expected(self) -> Iterator[Any]:
        """Returns SELECT statements for the entries that the index should have."""
        sessions, _, values, elements = self._tables.tables
        time = self._dialect.stored_time.of(sessions.c.updated_at)
        positions: list[Any] = [literal_column("-1"), elements.c.position]
        for of_list, rows in enumerate((values, elements)):
            columns = [
                sessions.c.session_id,
                rows.c.key,
                positions[of_list],
                literal_column(str(of_list)),
                rows.c.search_key,
                time,
            ]
            labeled = (each.label(name) for each, name in zip(columns, ENTRY_COLUMNS, strict=True))
            joined = sessions.join(rows, rows.c.session_id == sessions.c.session_id)
            yield select(*labeled).select_from(joined).where(rows.c.key == self._key)

    def _fills(self, *conditions: ColumnElement[bool]) -> Iterator[Any]:
        for statement in self.expected():
            selected = statement.where(*conditions)
            if conditions:
                # Rows that somebody is writing are waited for.
                selected = selected.with_for_update(read=True)
            insert = self._dialect.insert_missing(self._entries, selected=True)
            yield insert.from_select(list(ENTRY_COLUMNS), selected)

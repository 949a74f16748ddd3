"""The index of a metadata key: entries in the order in which their sessions were active."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, literal_column, select

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.features import IndexKind

from .tables import ACTIVITY, DROPPING
from .triggers import ENTRY_COLUMNS, activity_triggers

SESSIONS_AT_ONCE = 1_000


class KeyIndex(IndexKind):
    """If writers can be kept out, one transaction creates the index, as on PostgreSQL.

    There, triggers contain the keys, because a writer with an older snapshot would not find them in
    the table. Elsewhere, a trigger waits for whoever announces an index, or is waited for.
    """

    def __init__(self, database: Database, key: str) -> None:
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
        self._dialect.begin_writing(connection)
        keys = connection.scalars(
            select(self._indexes.c.key).where(self._indexes.c.state != DROPPING)
        ).all()
        existing = self._dialect.existing_triggers(connection, *self._tables.tables)
        with self._dialect.brief_waits(connection):
            for each in activity_triggers(connection, self._tables, keys):
                # Functions are replaced, with the keys that they name.
                *functions, trigger = self._dialect.trigger_statements(each)
                for function in functions:
                    connection.exec_driver_sql(function)
                if each.plain not in existing:
                    self._dialect.create_trigger(connection, trigger)

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
        for fill in self._fills(session_id.in_(ids)):
            connection.execute(fill)
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
        whole: Any = literal_column("-1")
        for of_list, rows, position in (("0", values, whole), ("1", elements, elements.c.position)):
            known = {"position": position, "of_list": literal_column(of_list), "updated_at": time}
            columns = [known[name] if name in known else rows.c[name] for name in ENTRY_COLUMNS]
            joined = sessions.join(rows, rows.c.session_id == sessions.c.session_id)
            yield select(*columns).select_from(joined).where(rows.c.key == self._key)

    def _fills(self, *conditions: ColumnElement[bool]) -> Iterator[Any]:
        for statement in self.expected():
            selected = statement.where(*conditions)
            if conditions:
                # Rows that somebody is writing are waited for.
                selected = selected.with_for_update(read=True)
            insert = self._dialect.insert_missing(self._entries, selected=True)
            yield insert.from_select(list(ENTRY_COLUMNS), selected)

"""Reads and writes whole sessions, many in one transaction, for exports and imports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, delete, select

from agents_session_metadata.core.changes import note
from agents_session_metadata.core.rows import rows_of
from agents_session_metadata.core.tables import SessionTables, element_rows
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.values import EncodedValue


@dataclass(frozen=True)
class NewSession:
    """A session to write, with times as the database stores them."""

    session_id: str
    created_at: Any
    updated_at: Any
    metadata: Mapping[str, EncodedValue]
    items: Sequence[tuple[Any, str]]
    parts: Mapping[str, Any] = field(default_factory=dict)
    """The parts of features, by their names."""

    @property
    def size(self) -> int:
        return (
            sum(len(text) for _, text in self.items)
            + sum(len(value.text) for value in self.metadata.values())
            + sum(len(str(item)) for part in self.parts.values() for item in part)
        )


def insert_sessions(
    connection: Connection,
    tables: SessionTables,
    dialect: Dialect,
    sessions: Iterable[NewSession],
) -> None:
    """Inserts sessions, and deletes metadata that earlier sessions with their ids have left.

    Raises IntegrityError if a session exists.
    """
    # Rows are locked in the order of their ids, by everybody.
    new = sorted(sessions, key=lambda session: session.session_id)
    if not new:
        return
    dialect.discard_plans(connection)
    own = [
        {
            "session_id": each.session_id,
            "created_at": each.created_at,
            "updated_at": each.updated_at,
        }
        for each in new
    ]
    dialect.insert_rows(connection, tables.sessions, own)
    for each in new:
        note(connection, "created", each.session_id)
        if each.metadata:
            note(connection, "set", each.session_id, each.metadata)
    ids = [each.session_id for each in new]
    _delete_leftovers(connection, tables, dialect, ids)
    metadata = [row for each in new for row in rows_of(each.session_id, each.metadata)]
    dialect.insert_rows(connection, tables.metadata, metadata)
    elements = [
        row
        for each in new
        for key, value in each.metadata.items()
        for row in element_rows(each.session_id, key, value.elements)
    ]
    dialect.insert_rows(connection, tables.elements, elements)
    items = [
        {"session_id": each.session_id, "message_data": text, "created_at": at}
        for each in new
        for at, text in each.items
    ]
    dialect.insert_rows(connection, tables.messages, items)


def _delete_leftovers(
    connection: Connection, tables: SessionTables, dialect: Dialect, ids: Sequence[str]
) -> None:
    own_id, metadata = tables.sessions.c.session_id, tables.metadata.c
    # For a join, PostgreSQL would read all rows of a table without statistics.
    first: Any = select(metadata.key).where(metadata.session_id == own_id).limit(1)
    parameters = dialect.list_parameters("ids", ids)
    looking = select(first.scalar_subquery()).where(dialect.one_of(own_id, "ids", len(ids)))
    # On MySQL, a DELETE that matches no rows locks the gaps between rows.
    if any(connection.scalars(looking, parameters)):
        for table in (tables.elements, tables.metadata):
            of_ids = dialect.one_of(table.c.session_id, "ids", len(ids))
            connection.execute(delete(table).where(of_ids), parameters)


def read_histories(
    connection: Connection,
    tables: SessionTables,
    dialect: Dialect,
    ids: Sequence[str],
) -> dict[str, list[tuple[datetime, str]]]:
    # The sessions' own ids: on MySQL, a message can have its id in another case.
    own_id, messages = tables.sessions.c.session_id, tables.messages
    statement = (
        select(
            own_id,
            dialect.moment.of(messages.c.created_at),
            messages.c.message_data,
        )
        .join_from(tables.sessions, messages, own_id == messages.c.session_id)
        .where(dialect.one_of(own_id, "ids", len(ids)))
        .order_by(own_id, messages.c.created_at, messages.c.id)
    )
    found: Any = connection.execute(statement, dialect.list_parameters("ids", ids)).all()
    return {
        session_id: [(at, text) for _, at, text in rows]
        for session_id, rows in groupby(found, itemgetter(0))
    }

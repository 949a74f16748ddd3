"""Reads and writes whole sessions, many in one transaction, for exports and imports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, delete, false, literal_column, select

from agents_session_metadata.core.messages import delete_histories
from agents_session_metadata.core.tables import SessionTables, element_rows
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.threads.rows import ThreadItem
from agents_session_metadata.values import EncodedValue


@dataclass(frozen=True)
class NewSession:
    """A session to write, with times as the database stores them."""

    session_id: str
    created_at: Any
    updated_at: Any
    metadata: Mapping[str, EncodedValue]
    items: Sequence[tuple[Any, str]]
    thread: list[ThreadItem] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The approximate number of characters."""
        return (
            sum(len(text) for _, text in self.items)
            + sum(len(value.text) for value in self.metadata.values())
            + sum(len(item.data) for item in self.thread)
        )


def lock_sessions(
    connection: Connection, tables: SessionTables, dialect: Dialect, ids: Sequence[str]
) -> set[str]:
    """Must begin the transaction. Returns the ids of the sessions that exist."""
    if dialect.single_writer:
        # Any write keeps all other writers out, also one that finds no row.
        connection.execute(delete(tables.sessions).where(false()))
    own_id = tables.sessions.c.session_id
    of_ids = dialect.one_of(own_id, "ids", len(ids))
    lock = select(own_id).where(of_ids).order_by(own_id).with_for_update()
    return set(connection.scalars(lock, dialect.list_parameters("ids", ids)))


def delete_sessions(
    connection: Connection, tables: SessionTables, dialect: Dialect, ids: Sequence[str]
) -> None:
    """The sessions must be locked."""
    delete_histories(connection, tables, dialect, ids)
    of_ids = dialect.one_of(tables.sessions.c.session_id, "ids", len(ids))
    deletion = delete(tables.sessions).where(of_ids)
    connection.execute(deletion, dialect.list_parameters("ids", ids))


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
    ids = [each.session_id for each in new]
    _delete_leftovers(connection, tables, dialect, ids)
    metadata = [
        {
            "session_id": each.session_id,
            "key": key,
            "value": value.text,
            "search_key": value.search.indexed,
            "search_rest": value.search.rest,
        }
        for each in new
        for key, value in each.metadata.items()
    ]
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
    own_id, owned = tables.sessions.c.session_id, (tables.elements, tables.metadata)
    # For a join, PostgreSQL would read all rows of a table without statistics.
    first: list[Any] = [
        select(literal_column("1")).where(table.c.session_id == own_id).limit(1).scalar_subquery()
        for table in owned
    ]
    parameters = dialect.list_parameters("ids", ids)
    looking = select(*first).where(dialect.one_of(own_id, "ids", len(ids)))
    # On MySQL, a DELETE that matches no rows locks the gaps between rows.
    if any(map(any, connection.execute(looking, parameters))):
        for table in owned:
            of_ids = dialect.one_of(table.c.session_id, "ids", len(ids))
            connection.execute(delete(table).where(of_ids), parameters)


def read_histories(
    connection: Connection,
    tables: SessionTables,
    dialect: Dialect,
    ids: Sequence[str],
    most: int | None,
) -> dict[str, list[tuple[datetime, str]]] | None:
    """Returns times and texts by session, oldest first; None if there are more than `most`."""
    if not ids:
        return {}
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
    if most is not None:
        statement = statement.limit(most + 1)
    found: Any = connection.execute(statement, dialect.list_parameters("ids", ids)).all()
    if most is not None and len(found) > most:
        return None
    return {
        session_id: [(at, text) for _, at, text in rows]
        for session_id, rows in groupby(found, itemgetter(0))
    }

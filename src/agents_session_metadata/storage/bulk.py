"""Whole sessions, many in one transaction: what an export reads and an import writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Insert, Table, bindparam, delete, false, insert, select

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import CorruptMetadataError
from agents_session_metadata.values import EncodedValue

from .belonging import check_links
from .messages import delete_messages
from .stored import decode_time
from .tables import SessionTables, element_rows
from .thread_rows import ThreadItem


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
        """About how many characters it has."""
        return (
            sum(len(text) for _, text in self.items)
            + sum(len(value.text) for value in self.metadata.values())
            + sum(len(item.data) for item in self.thread)
        )


def lock_sessions(
    connection: Connection, tables: SessionTables, dialect: Dialect, ids: Sequence[str]
) -> set[str]:
    """Lock the sessions that exist, as the first thing in a transaction; return their ids."""
    if dialect.single_writer:
        # Any write keeps all other writers out, also one that finds no row.
        connection.execute(delete(tables.sessions).where(false()))
    lock = dialect.lock_rows(tables.sessions, "ids", len(ids))
    return set(connection.scalars(lock, dialect.list_parameters("ids", ids)))


def delete_sessions(
    connection: Connection, tables: SessionTables, dialect: Dialect, ids: Sequence[str]
) -> None:
    """Delete sessions that are locked, with their histories."""
    delete_messages(connection, tables, dialect, ids)
    sessions = tables.sessions
    of_ids = dialect.one_of(sessions.c.session_id, "ids", len(ids))
    connection.execute(delete(sessions).where(of_ids), dialect.list_parameters("ids", ids))


def insert_sessions(
    connection: Connection,
    tables: SessionTables,
    dialect: Dialect,
    sessions: Iterable[NewSession],
) -> None:
    """Insert sessions that do not exist, and delete what earlier ones with their ids left.

    Raises:
        IntegrityError: If one of them exists.
    """
    # Rows are locked in the order of their ids, by everybody.
    new = sorted(sessions, key=lambda session: session.session_id)
    _delete_leftovers(connection, tables, dialect, [each.session_id for each in new])
    _insert(
        connection,
        dialect,
        tables.sessions,
        ("created_at", "updated_at"),
        [
            {
                "session_id": each.session_id,
                "created_at": each.created_at,
                "updated_at": each.updated_at,
            }
            for each in new
        ],
    )
    _insert(
        connection,
        dialect,
        tables.metadata,
        (),
        [
            {
                "session_id": each.session_id,
                "key": key,
                "value": value.text,
                "search_key": value.search.indexed,
                "search_rest": value.search.rest,
            }
            for each in new
            for key, value in each.metadata.items()
        ],
    )
    _insert(
        connection,
        dialect,
        tables.elements,
        (),
        [
            row
            for each in new
            for key, value in each.metadata.items()
            for row in element_rows(each.session_id, key, value.elements)
        ],
    )
    _insert(
        connection,
        dialect,
        tables.messages,
        ("created_at",),
        [
            {"session_id": each.session_id, "created_at": at, "message_data": text}
            for each in new
            for at, text in each.items
        ],
    )


def _delete_leftovers(
    connection: Connection, tables: SessionTables, dialect: Dialect, ids: Sequence[str]
) -> None:
    parameters = dialect.list_parameters("ids", ids)
    for table in (tables.elements, tables.metadata):
        of_ids = dialect.one_of(table.c.session_id, "ids", len(ids))
        # Deleting what is not there would lock the gaps between rows on MySQL.
        if ids and connection.scalar(select(table.c.key).where(of_ids).limit(1), parameters):
            check_links(connection, tables)
            connection.execute(delete(table).where(of_ids), parameters)


def read_histories(
    connection: Connection,
    tables: SessionTables,
    dialect: Dialect,
    ids: Sequence[str],
    most: int | None,
) -> dict[str, list[tuple[Any, str]] | CorruptMetadataError] | None:
    """The histories of some sessions: when each item was written, and its text.

    Returns:
        The rows by session, oldest first, or why they cannot be read; None if there are more than
        `most`.
    """
    if not ids:
        return {}
    messages = tables.messages
    statement = (
        select(messages.c.session_id, dialect.utc(messages.c.created_at), messages.c.message_data)
        .where(dialect.one_of(messages.c.session_id, "ids", len(ids)))
        .order_by(messages.c.session_id, messages.c.created_at, messages.c.id)
    )
    if most is not None:
        statement = statement.limit(most + 1)
    found: Any = connection.execute(statement, dialect.list_parameters("ids", ids)).all()
    if most is not None and len(found) > most:
        return None
    histories: dict[str, list[tuple[Any, str]] | CorruptMetadataError] = {}
    for session_id, rows in groupby(found, itemgetter(0)):
        try:
            histories[session_id] = [
                (decode_time(dialect, session_id, "item_created_at", at), text)
                for _, at, text in rows
            ]
        except CorruptMetadataError as error:  # noqa: PERF203  # one for each history
            histories[session_id] = error
    return histories


def _insert(
    connection: Connection,
    dialect: Dialect,
    table: Table,
    times: tuple[str, ...],
    rows: list[dict[str, Any]],
) -> None:
    """Insert rows; `times` names the columns that hold times."""
    if not rows:
        return
    at_once, columns = dialect.rows_per_insert, tuple(rows[0])
    whole = len(rows) // at_once * at_once if times and at_once > 1 else 0
    for start in range(0, whole, at_once):
        parameters = {
            f"{name}_{index}": value
            for index, row in enumerate(rows[start : start + at_once])
            for name, value in row.items()
        }
        statement = _insert_of(table, dialect, columns, times, at_once)
        connection.execute(statement, parameters)
    if rows[whole:]:
        statement = _insert_of(table, dialect, columns, times, 1)
        connection.execute(
            statement,
            [{f"{name}_0": value for name, value in row.items()} for row in rows[whole:]],
        )


@lru_cache(maxsize=256)
def _insert_of(
    table: Table, dialect: Dialect, columns: tuple[str, ...], times: tuple[str, ...], count: int
) -> Insert:
    def row(index: int) -> dict[str, Any]:
        return {
            name: dialect.stored_by(f"{name}_{index}")
            if name in times
            else bindparam(f"{name}_{index}", type_=table.c[name].type)
            for name in columns
        }

    values = [row(index) for index in range(count)]
    return insert(table).values(values if count > 1 else values[0])

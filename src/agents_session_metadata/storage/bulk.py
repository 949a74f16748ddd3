"""Whole sessions, many in one transaction: what an export reads and an import writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Table, delete, exists, false, select, type_coerce
from sqlalchemy.types import NullType

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import CorruptMetadataError
from agents_session_metadata.values import EncodedValue, SearchKey

from .messages import delete_histories
from .spellings import as_asked
from .stored import decode_item, decode_time, read_search_key, search_keys_of
from .tables import SessionTables, element_rows
from .thread_rows import ThreadItem

_TEXT_AT_ONCE = 2**20
"""Characters of values whose elements are read at a time: an element may have only two."""


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
    delete_histories(connection, tables, dialect, ids)
    of_ids = dialect.one_of(tables.sessions.c.session_id, "ids", len(ids))
    deletion = delete(tables.sessions).where(of_ids)
    connection.execute(deletion, dialect.list_parameters("ids", ids))


def wrong_search_keys(
    connection: Connection,
    tables: SessionTables,
    dialect: Dialect,
    ids: Sequence[str],
    keys: Sequence[str],
) -> dict[str, str]:
    """The sessions that a filter on these keys may confuse with others.

    Returns:
        By session id, a key whose search key or elements do not match the stored value.
    """
    rows, elements = tables.metadata, tables.elements

    def read(table: Table, ids: Sequence[str], *columns: Any) -> Iterable[Any]:
        statement: Any = select(table.c.session_id, table.c.key, *columns).where(
            dialect.one_of(table.c.session_id, "ids", len(ids)),
            dialect.one_of(table.c.key, "keys", len(keys)),
        )
        parameters = dialect.list_parameters("ids", ids) | dialect.list_parameters("keys", keys)
        return connection.execute(statement, parameters)

    def searched(table: Table) -> list[Any]:
        # As stored, whatever it is: a column may hold values of another type.
        return [type_coerce(table.c[name], NullType()) for name in ("search_key", "search_rest")]

    wrong = _keys_without_text(connection, tables, dialect, ids)
    stored: dict[str, list[tuple[str, Any, SearchKey]]] = {each: [] for each in ids}
    value = dialect.json_text(rows.c.value)
    for own_id, key, text, *search in read(rows, ids, value, *searched(rows)):
        # MySQL may find an id that is spelled in another way.
        stored.setdefault(own_id, []).append((key, text, read_search_key(*search)))
    for some in _parts(stored):
        found: dict[tuple[str, str], set[SearchKey]] = {}
        for own_id, key, *search in read(elements, some, *searched(elements)):
            found.setdefault((own_id, key), set()).add(read_search_key(*search))
        for own_id in some:
            for key, text, search_key in stored[own_id]:
                own = frozenset(found.pop((own_id, key), ()))
                if (search_key, own) != search_keys_of(text):
                    wrong[own_id] = key
        # What is left are elements without their list.
        wrong |= dict(found.keys())
    return wrong


def _keys_without_text(
    connection: Connection, tables: SessionTables, dialect: Dialect, ids: Sequence[str]
) -> dict[str, str]:
    """By session, a key that is stored as another type, which no filter finds."""
    condition = dialect.not_a_text(tables.metadata.c.key)
    if condition is None:
        return {}
    own_id = tables.metadata.c.session_id
    statement = select(own_id, type_coerce(tables.metadata.c.key, NullType())).where(
        dialect.one_of(own_id, "ids", len(ids)), condition
    )
    rows = connection.execute(statement, dialect.list_parameters("ids", ids))
    return {session_id: str(key) for session_id, key in rows}


def _parts(stored: Mapping[str, Sequence[tuple[str, Any, SearchKey]]]) -> Iterator[list[str]]:
    """The sessions in parts whose lists have a bounded number of elements."""
    part: list[str] = []
    size = 0
    for session_id, values in stored.items():
        own = sum(len(text or "") for _, text, _ in values)
        if part and size + own > _TEXT_AT_ONCE:
            yield part
            part, size = [], 0
        part.append(session_id)
        size += own
    if part:
        yield part


def insert_sessions(
    connection: Connection,
    tables: SessionTables,
    dialect: Dialect,
    sessions: Iterable[NewSession],
) -> None:
    """Insert sessions that do not exist, and delete metadata that earlier ones have left.

    Raises:
        IntegrityError: If one of them exists.
    """
    # Rows are locked in the order of their ids, by everybody.
    new = sorted(sessions, key=lambda session: session.session_id)
    if not new:
        return
    dialect.discard_plans(connection)
    own = [
        {
            "session_id": each.session_id,
            "new_created_at": each.created_at,
            "new_updated_at": each.updated_at,
        }
        for each in new
    ]
    dialect.insert_rows(connection, tables.sessions, own, "created_at", "updated_at")
    ids = [each.session_id for each in new]
    of_new = dialect.list_parameters("ids", ids)
    for table in (tables.elements, tables.metadata):
        left = dialect.one_of(table.c.session_id, "ids", len(ids))
        has_left: Any = select(exists().where(left))
        # On MySQL, a DELETE that matches no rows locks the gaps between rows.
        if connection.scalar(has_left, of_new):
            connection.execute(delete(table).where(left), of_new)
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
        {"session_id": each.session_id, "message_data": text, "new_created_at": at}
        for each in new
        for at, text in each.items
    ]
    dialect.insert_rows(connection, tables.messages, items, "created_at")


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
        select(
            messages.c.session_id,
            dialect.utc(messages.c.created_at),
            dialect.item_text(messages.c.message_data),
            messages.c.id,
        )
        .where(dialect.one_of(messages.c.session_id, "ids", len(ids)))
        .order_by(messages.c.session_id, messages.c.created_at, messages.c.id)
    )
    if most is not None:
        statement = statement.limit(most + 1)
    found: Any = connection.execute(statement, dialect.list_parameters("ids", ids)).all()
    if most is not None and len(found) > most:
        return None
    asked = as_asked(connection, tables, ids, map(itemgetter(0), found))
    histories: dict[str, list[tuple[Any, str]] | CorruptMetadataError] = {}
    for session_id, rows in groupby(found, lambda row: asked[row[0]]):
        try:
            histories[session_id] = [
                (
                    decode_time(dialect, session_id, "item_created_at", at),
                    decode_item(session_id, item_id, text),
                )
                for _, at, text, item_id in rows
            ]
        except CorruptMetadataError as error:  # noqa: PERF203  # one for each history
            histories[session_id] = error
    return histories

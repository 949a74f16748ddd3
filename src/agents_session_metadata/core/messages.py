"""Reads and deletes the items of sessions: the rows of the SDK's messages table.

All code of this package that deletes items calls `delete_messages` or, if it also deletes their
sessions, `rows.delete_sessions`. Rows that depend on items can be deleted there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
)

from agents_session_metadata.types import ItemInfo

from .database import Database
from .store import SessionStore

UNREADABLE: Any = object()
"""Replaces the item of a row that is not JSON. The SDK skips such rows."""
UNREAD: Any = object()
"""Replaces the item of a row that a page has no room for."""
_AT_ONCE = 500


def delete_messages(
    database: Database, connection: Connection, session_id: str, items: Sequence[int] | None = None
) -> None:
    """The session must be locked. If `items` is None, all items are deleted."""
    messages = database.tables.messages
    own = delete(messages).where(messages.c.session_id == session_id)
    if items is None:
        connection.execute(own)
        return
    those = own.where(messages.c.id.in_(bindparam("items", expanding=True)))
    for start in range(0, len(items), _AT_ONCE):
        connection.execute(those, {"items": items[start : start + _AT_ONCE]})


def newest_id(database: Database, connection: Connection, session_id: str) -> int:
    """Returns the id of the item that was added last, or 0 if there are no items.

    The session itself need not exist.
    """
    return _end(database, connection, session_id, func.max)


def oldest_id(database: Database, connection: Connection, session_id: str) -> int:
    """Returns the id of the item that was added first, or 0 if there are no items."""
    return _end(database, connection, session_id, func.min)


def _end(database: Database, connection: Connection, session_id: str, end: Any) -> int:
    messages = database.tables.messages
    # By an expression, so that no database walks through the ids of all sessions.
    found = select(end(messages.c.id + 0)).where(messages.c.session_id == session_id)
    return connection.scalar(found) or 0


def in_order(messages: FromClause, *, newest_first: bool = False) -> list[ColumnElement[Any]]:
    columns = messages.c.created_at, messages.c.id
    return [column.desc() if newest_first else column.asc() for column in columns]


def is_before(database: Database, item_id: int) -> ColumnElement[bool]:
    messages, stored = database.tables.messages, database.dialect.stored_time
    one, time = messages.alias("one"), stored.of(messages.c.created_at)
    limit = select(stored.of(one.c.created_at)).where(one.c.id == item_id)
    until = limit.scalar_subquery()
    return or_(time < until, and_(time == until, messages.c.id < item_id))


def read_history(
    database: Database, connection: Connection, session_id: str, after: int | None = None
) -> list[ItemInfo]:
    """Returns items in order; unreadable ones are `UNREADABLE`.

    `after` is the id of an item: only items that were added after it are returned.
    """
    messages = database.tables.messages
    own = messages.c.session_id == bindparam("session")
    parameters: dict[str, Any] = {"session": session_id}
    if after is not None:
        last: Any = bindparam("after_item", type_=BigInteger)
        own = own & (messages.c.id > last)
        parameters["after_item"] = after
    statement = _selected(database).where(own).order_by(*in_order(messages))
    return list(_items(connection.execute(statement, parameters)))


class ItemPosition(NamedTuple):
    """A place in the order of a history. `time` is in the form of `Dialect.stored_time`."""

    time: str
    item_id: int


PlacedItem: TypeAlias = "tuple[ItemInfo, ItemPosition]"


def read_page(
    store: SessionStore,
    connection: Connection,
    session_id: str,
    *,
    after: ItemPosition | None,
    limit: int,
    newest_first: bool,
    most_bytes: int | None = None,
) -> list[PlacedItem]:
    """Returns items in order; unreadable ones are `UNREADABLE`.

    The database sends at most so many bytes of items, but always the first one. The others are
    `UNREAD`.
    """
    database = store.database
    messages, dialect = database.tables.messages, database.dialect
    time = dialect.stored_time.of(messages.c.created_at)
    parameters: dict[str, Any] = {"session": session_id, "limit": limit}
    selected: Any = _selected(database, time)
    if most_bytes is not None:
        small: Any = bindparam("small", type_=BigInteger)
        size = dialect.byte_length(messages.c.message_data)
        text = case((size <= small, messages.c.message_data))
        selected = select(messages.c.id, dialect.moment.of(messages.c.created_at), text, time, size)
        # Most pages have small items only, and need no second statement.
        parameters["small"] = most_bytes // limit
    statement: Any = (
        selected.where(messages.c.session_id == bindparam("session"))
        .order_by(*in_order(messages, newest_first=newest_first))
        .limit(bindparam("limit", type_=Integer, literal_execute=True))
    )
    if after is not None:
        last: Any = bindparam("after_item", type_=BigInteger)
        end: Any = bindparam("after_time", type_=dialect.stored_time)
        beyond = (
            (time <= end, or_(time < end, messages.c.id < last))
            if newest_first
            else (time >= end, or_(time > end, messages.c.id > last))
        )
        reaches = dialect.reaches(messages.c.created_at, descending=newest_first)
        statement = statement.where(reaches, *beyond)
        parameters |= {"after_item": after.item_id, "after_time": after.time}
    # By the parameter: the scope is then checked once, not for every row.
    statement, more = store.question(statement, _session_parameter(messages))
    rows: Any = connection.execute(statement, {**parameters, **more}).all()
    if most_bytes is not None:
        rows = _within(connection, messages, rows, most_bytes)
    return list(_placed(rows))


@lru_cache(maxsize=256)
def _session_parameter(messages: Table) -> BindParameter[str]:
    """The same one each time, so that conditions on it are built once."""
    return bindparam("session", type_=messages.c.session_id.type)


def _within(connection: Connection, messages: Table, rows: Iterable[Any], most: int) -> list[Any]:
    """Adds the texts of large items, which rows lack. Items without room are marked as unread."""
    found, total = list[list[Any]](), 0
    for *row, size in rows:
        total += size
        is_first = total == size
        found.append(row if is_first or total <= most else [*row[:2], UNREAD, row[3]])
    missing = [row[0] for row in found if row[2] is None]
    large = select(messages.c.id, messages.c.message_data).where(messages.c.id.in_(missing))
    rows = connection.execute(large) if missing else ()
    texts = {row.id: row.message_data for row in rows}
    for row in found:
        # An item that was deleted in the meantime is skipped, like one that is not JSON.
        row[2] = texts.get(row[0], "") if row[2] is None else row[2]
    return found


def find_items(
    store: SessionStore, connection: Connection, session_id: str, condition: ColumnElement[bool]
) -> list[PlacedItem]:
    """Returns the readable items for which a condition holds, newest first."""
    database, messages = store.database, store.database.tables.messages
    time = database.dialect.stored_time.of(messages.c.created_at)
    statement = _selected(database, time)
    statement = statement.where(messages.c.session_id == session_id, condition)
    statement = statement.order_by(*in_order(messages, newest_first=True))
    rows = connection.execute(*store.question(statement, messages.c.session_id))
    return [each for each in _placed(rows) if each[0].item is not UNREADABLE]


def _selected(database: Database, *more: ColumnElement[Any]) -> Any:
    messages = database.tables.messages
    moment = database.dialect.moment.of(messages.c.created_at)
    return select(messages.c.id, moment, messages.c.message_data, *more)


def _items(rows: Any) -> Iterator[ItemInfo]:
    for item_id, created_at, text in rows:
        yield ItemInfo(item_id, created_at, _item(text))


def _placed(rows: Any) -> Iterator[PlacedItem]:
    for item_id, created_at, text, at in rows:
        yield ItemInfo(item_id, created_at, _item(text)), ItemPosition(str(at), item_id)


def _item(text: Any) -> Any:
    if text is UNREAD:
        return UNREAD
    try:
        return json.loads(text)
    except ValueError:
        return UNREADABLE

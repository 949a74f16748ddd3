"""Reads and deletes the items of sessions: the rows of the SDK's messages table.

All code of this package that deletes items calls `delete_messages` or, if it also deletes their
sessions, `delete_histories`. Rows that depend on items can be deleted there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Table,
    bindparam,
    delete,
    func,
    select,
)

from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.types import ItemInfo

from .tables import SessionTables

UNREADABLE: Final[Any] = object()
"""Replaces the item of a row that is not JSON. The SDK skips such rows."""
Restriction: TypeAlias = "Callable[[Any, Any], tuple[Any, dict[str, Any]]]"
"""Restricts a statement to the sessions, by their column, that a caller may see.

Returns the statement and its additional parameters.
"""
_AT_ONCE = 500


def delete_messages(
    connection: Connection,
    tables: SessionTables,
    session_id: str,
    items: Sequence[int] | None = None,
) -> None:
    """The session must be locked. If `items` is None, all items are deleted."""
    messages = tables.messages
    own = delete(messages).where(messages.c.session_id == session_id)
    if items is None:
        connection.execute(own)
        return
    those = own.where(messages.c.id.in_(bindparam("items", expanding=True)))
    for start in range(0, len(items), _AT_ONCE):
        connection.execute(those, {"items": items[start : start + _AT_ONCE]})


def delete_histories(
    connection: Connection, tables: SessionTables, dialect: Dialect, ids: Sequence[str]
) -> None:
    """The sessions must be locked, and must be deleted next."""
    messages = tables.messages
    of_sessions = delete(messages).where(dialect.one_of(messages.c.session_id, "ids", len(ids)))
    connection.execute(of_sessions, dialect.list_parameters("ids", ids))


def has_items(connection: Connection, tables: SessionTables, session_id: str) -> bool:
    """The session itself need not exist."""
    messages = tables.messages
    first: Any = select(messages.c.id).where(messages.c.session_id == session_id).limit(1)
    return connection.execute(first).first() is not None


def newest_id(connection: Connection, tables: SessionTables, session_id: str) -> int:
    """Returns 0 if there are no items."""
    return _end(connection, tables, session_id, func.max)


def oldest_id(connection: Connection, tables: SessionTables, session_id: str) -> int:
    """Returns 0 if there are no items."""
    return _end(connection, tables, session_id, func.min)


def _end(connection: Connection, tables: SessionTables, session_id: str, end: Any) -> int:
    messages = tables.messages
    # By an expression, so that no database walks through the ids of all sessions.
    found = select(end(messages.c.id + 0)).where(messages.c.session_id == session_id)
    return connection.scalar(found) or 0


def read_history(
    connection: Connection,
    tables: SessionTables,
    dialect: Dialect,
    session_id: str,
    after: int | None = None,
) -> list[ItemInfo]:
    """Returns items in order; unreadable ones are `UNREADABLE`. `after` is the id of an item."""
    messages = tables.messages
    own = messages.c.session_id == bindparam("of_session")
    parameters: dict[str, Any] = {"of_session": session_id}
    if after is not None:
        last: Any = bindparam("after_item", type_=BigInteger)
        own = own & (messages.c.id > last)
        parameters["after_item"] = after
    rows = connection.execute(_selected(messages, dialect).where(own), parameters)
    # Sorted here, so that no database walks through the ids of all sessions.
    return sorted(_items(rows), key=attrgetter("item_id"))


def read_lengths(
    connection: Connection,
    tables: SessionTables,
    dialect: Dialect,
    session_id: str,
    *,
    after: int | None,
    limit: int,
    descending: bool,
    restrict: Restriction,
) -> Sequence[tuple[int, int]]:
    """Returns the ids of items in their order, each with the length of its text in bytes."""
    inner, outer = tables.messages.alias("inner_messages"), tables.messages
    # By an expression, so that no database walks through the ids of all sessions instead of
    # sorting those of this one.
    order = inner.c.id + 0
    page: Any = (
        select(inner.c.id)
        .where(inner.c.session_id == bindparam("of_session"))
        .order_by(order.desc() if descending else order)
        .limit(bindparam("limit", type_=Integer, literal_execute=True))
    )
    page, parameters = restrict(page, inner.c.session_id)
    parameters |= {"of_session": session_id, "limit": limit}
    if after is not None:
        last: Any = bindparam("after_item", type_=BigInteger)
        page = page.where(inner.c.id < last if descending else inner.c.id > last)
        parameters["after_item"] = after
    # A length may take reading the whole text, so only rows of the page are asked for theirs.
    ids = page.subquery("page")
    statement: Any = (
        select(ids.c.id, dialect.byte_length(outer.c.message_data))
        .select_from(ids.outerjoin(outer, ids.c.id == outer.c.id))
        .order_by(ids.c.id.desc() if descending else ids.c.id)
    )
    found: Any = connection.execute(statement, parameters).all()
    return [(item_id, length) for item_id, length in found]


def read_items(
    connection: Connection,
    tables: SessionTables,
    dialect: Dialect,
    session_id: str,
    items: Sequence[int],
    *,
    descending: bool,
    restrict: Restriction,
) -> list[ItemInfo]:
    """Returns items in the order of their ids; unreadable ones are `UNREADABLE`."""
    if not items:
        return []
    messages = tables.messages
    statement: Any = (
        _selected(messages, dialect)
        .where(
            messages.c.session_id == bindparam("of_session"),
            messages.c.id.in_(bindparam("items", expanding=True)),
        )
        .order_by(messages.c.id.desc() if descending else messages.c.id)
    )
    statement, parameters = restrict(statement, messages.c.session_id)
    parameters |= {"of_session": session_id, "items": list(items)}
    return list(_items(connection.execute(statement, parameters)))


def _selected(messages: Table, dialect: Dialect) -> Any:
    return select(messages.c.id, dialect.moment.of(messages.c.created_at), messages.c.message_data)


def _items(rows: Any) -> Iterator[ItemInfo]:
    for item_id, created_at, text in rows:
        yield ItemInfo(item_id, created_at, _item(text))


def _item(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return UNREADABLE

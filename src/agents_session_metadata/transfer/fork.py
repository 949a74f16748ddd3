"""Copies a session to a new one: its history, all or up to a cut, and its metadata.

Left out are the keys of `_LEFT_OUT`, and the rows of features that have no `fork`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, Select, Table, insert, literal, select

from agents_session_metadata.core.change_log import is_logged, note
from agents_session_metadata.core.features import in_use
from agents_session_metadata.core.messages import is_before, read_history
from agents_session_metadata.errors import SessionExistsError
from agents_session_metadata.history.rewind import Cut, lock_to_change
from agents_session_metadata.keys import (
    ARCHIVED,
    FORKED_BEFORE,
    FORKED_FROM,
    PINNED,
    RUN_KEYS,
    TITLE,
    TITLE_AUTO,
)
from agents_session_metadata.query.conditions import UNLIMITED
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import JSONValue
from agents_session_metadata.values import check_id

_ORIGIN = frozenset({FORKED_FROM, FORKED_BEFORE})
"""The keys by which a copy names its original."""
_LEFT_OUT = _ORIGIN | RUN_KEYS | {PINNED, ARCHIVED}


def fork(
    store: ScopedStore,
    session_id: str,
    new_id: str,
    metadata: Mapping[str, JSONValue],
    cut: Cut | None,
) -> Callable[[Connection], None]:
    """Returns work that copies a session, with `metadata` in place of what it has itself."""
    check_id(new_id)
    origin = {FORKED_FROM: session_id, **({} if cut is None else {FORKED_BEFORE: cut.before})}
    for key in _ORIGIN:
        if key in metadata and (key not in origin or metadata[key] != origin[key]):
            raise ValueError(f"metadata must not set {key}: every fork records its own origin")
    store.check_written({}, _ORIGIN - origin.keys())
    encoded = store.encode_new({**metadata, **origin})
    left_out = sorted({*_LEFT_OUT, *([TITLE_AUTO] if TITLE in metadata else [])})
    tables, rows = store.database.tables, store.rows

    def run(connection: Connection) -> None:
        # First, although others lock rows in the order of their ids. After a plain SELECT, MySQL
        # would read everything as it was before the lock.
        lock_to_change(store, connection, session_id)
        if not store.create_locked(connection, new_id, {}):
            raise SessionExistsError(new_id)
        kept = None
        copied_items = tables.messages.c.session_id == session_id
        if cut is not None:
            history = read_history(store.database, connection, session_id)
            position = cut.position(session_id, history)
            copied_items &= is_before(store.database, history[position].item_id)
            kept = [each.item_id for each in history[:position]]
        for table in (tables.messages, tables.metadata, tables.elements):
            copied = [column for column in table.c if column.name not in ("id", "session_id")]
            if table is tables.messages:
                source = _as_added(table, copied, copied_items)
            else:
                own = table.c.session_id == session_id
                source = select(*copied).where(own, table.c.key.not_in(left_out))
            source = source.add_columns(literal(new_id))
            names = [*(column.name for column in copied), "session_id"]
            connection.execute(insert(table).from_select(names, source))
        rows.overwrite(connection, new_id, encoded)
        if is_logged():
            own = tables.metadata.c.session_id == new_id
            stored = connection.scalars(select(tables.metadata.c.key).where(own))
            note(connection, "set", new_id, stored)
        for feature in in_use(store.database, connection):
            feature.fork(store.database, connection, session_id, new_id, kept)

    return run


def _as_added(messages: Table, copied: list[Any], condition: ColumnElement[bool]) -> Select[Any]:
    """Selects messages by id, so that copies with the same time keep their order.

    MariaDB first puts rows of the table that it inserts into in a temporary table, which can lose
    their order. Rows of a subquery with a limit are in that table before they are sorted.
    """
    rows = select(messages.c.id, *copied).where(condition).limit(UNLIMITED).subquery()
    same = (rows.c[column.name] for column in copied)
    return cast("Select[Any]", select(*same).order_by(rows.c.id))

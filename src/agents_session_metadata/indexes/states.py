"""The state of an index: a row in a table of its own, beside the tables that the index fills."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table, select, update

from agents_session_metadata.dialects import dialect_of

FILLING, COMPLETE, DROPPING = 0, 1, 2
"""Triggers maintain an index in the first two states; only a complete one is used."""


def lock_state(connection: Connection, states: Table, key: str, *, shared: bool = False) -> Any:
    """Returns None if there is no row. With `shared`, triggers can still read the row."""
    own = states.c.key == key
    # The update is the lock on SQLite, where a read takes none.
    if not shared or dialect_of(connection.dialect).single_writer:
        connection.execute(update(states).where(own).values(token=states.c.token))
    locked = select(states).where(own).with_for_update(read=shared)
    return connection.execute(locked).one_or_none()

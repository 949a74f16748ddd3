"""Caches which tables and indexes of optional features exist.

Other processes create and drop them too, so entries expire. An outdated entry about an index makes
no answer wrong: statements that read an index check its state themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, select

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.indexes.states import COMPLETE
from agents_session_metadata.indexes.tables import ACTIVITY

from .tables import SessionTables, TableGroup

T = TypeVar("T")


class Known(Generic[T]):
    """Caches a value for some seconds; it is `nothing` before the first read and after `forget`."""

    def __init__(
        self, read: Callable[[Connection, SessionTables], T], nothing: T, *, seconds: float
    ) -> None:
        self._read = read
        self._nothing = nothing
        self._seconds = seconds
        self._until = -inf
        self._times_forgotten = 0
        self.believed: T = nothing
        """The last value that was read, even if it has expired."""

    def get(self, connection: Connection, tables: SessionTables) -> T:
        """Reads from the database if the value has expired."""
        return self.believed if time.monotonic() < self._until else self.look(connection, tables)

    def look(self, connection: Connection, tables: SessionTables) -> T:
        """Reads from the database even if the value has not expired."""
        self.forget()
        before = self._times_forgotten
        found = self._read(connection, tables)
        # Whoever let it be forgotten meanwhile knows of a change that this may not have seen.
        if self._times_forgotten == before:
            self.believed, self._until = found, time.monotonic() + self._seconds
        return found

    def forget(self) -> T:
        """Makes the next `get` read from the database. Returns the value until now."""
        self._times_forgotten += 1
        found, self.believed, self._until = self.believed, self._nothing, -inf
        return found


def read_indexes(connection: Connection, tables: SessionTables) -> frozenset[str] | None:
    group = tables.group(ACTIVITY)
    if not may_read(connection, tables, group):
        return None
    indexes = group["_indexes"]
    keys: Any = connection.scalars(select(indexes.c.key).where(indexes.c.state == COMPLETE))
    return frozenset(keys)


def may_read(connection: Connection, tables: SessionTables, group: TableGroup) -> bool:
    """Returns whether all tables of a group exist, and the database user may read them."""
    names = [table.name for table in group.tables]
    existing = dialect_of(connection.dialect).existing(connection, tables.sessions, names)
    return existing.issuperset(names)

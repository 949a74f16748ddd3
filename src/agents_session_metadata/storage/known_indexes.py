"""Which indexes a process believes to exist.

A belief only decides which statement is tried first: that statement itself checks the state of the
index that it reads, so an old belief costs time, never a wrong answer.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection, select

from agents_session_metadata.dialects import dialect_of

from .activity import ACTIVITY
from .index_states import COMPLETE
from .tables import SessionTables

_SECONDS = 30
"""How long a belief lasts."""


class KnownIndexes:
    """The keys of the indexes that pages may use, of one set of tables."""

    def __init__(self) -> None:
        self._keys: frozenset[str] = frozenset()
        self._looked_at: float | None = None
        self.has_tables: bool = False
        """Whether the tables existed and could be read."""

    def keys(self, connection: Connection, tables: SessionTables) -> frozenset[str]:
        """The keys; the database is asked again from time to time."""
        if self._looked_at is None or time.monotonic() > self._looked_at + _SECONDS:
            self.look(connection, tables)
        return self._keys

    def look(self, connection: Connection, tables: SessionTables) -> None:
        """Ask the database."""
        indexes = tables.group(ACTIVITY)["_indexes"]
        keys: Any = ()
        # Whoever may not read the table works as if there were no index.
        usable = dialect_of(connection.dialect).usable
        self.has_tables = bool(usable(connection, tables.sessions, [indexes]))
        if self.has_tables:
            complete = indexes.c.state == COMPLETE, indexes.c.lacks_ids == 0
            keys = connection.scalars(select(indexes.c.key).where(*complete))
        self._keys, self._looked_at = frozenset(keys), time.monotonic()

    def forget(self) -> bool:
        """Ask the database before the next use; say whether an index was known."""
        self._looked_at = None
        return bool(self._keys)

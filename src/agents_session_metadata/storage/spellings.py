"""Session ids in several spellings.

A sessions table that another program made may ignore case or trailing spaces. The rows of a session
can then have its id as each writer spelled it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, select

from .tables import SessionTables


def as_asked(
    connection: Connection, tables: SessionTables, ids: Sequence[str], found: Iterable[str]
) -> dict[str, str]:
    """For each id of some rows, the one of `ids` by which they were asked for."""
    asked = {each: each for each in ids}
    others = set(found) - asked.keys()
    if others:
        own_id = tables.sessions.c.session_id

        def stored(session_id: str) -> str | None:
            return connection.scalar(select(own_id).where(own_id == session_id))

        by_stored = {stored(each): each for each in ids}
        asked |= {each: by_stored.get(stored(each), each) for each in others}
    return asked

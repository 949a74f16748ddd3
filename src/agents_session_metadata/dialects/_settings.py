"""Settings of a connection that are read once, because reading them takes a query."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, text

from agents_session_metadata.errors import UnsupportedDialectError

_CHECKED = "agents_session_metadata.checked"
"""Marks the connections of a pool whose settings were checked."""


def check_once(connection: Connection, check: Callable[[Connection], None]) -> None:
    """Runs a check when a connection is first used; listeners of the engine have configured it."""
    if _CHECKED in connection.info:
        return
    is_begun = connection.in_transaction()
    check(connection)
    connection.info[_CHECKED] = True
    if not is_begun:
        connection.rollback()  # The isolation level can change only before a transaction.


def check_foreign_keys(connection: Connection, query: str) -> None:
    """Refuses a connection that ignores foreign keys.

    Metadata would outlive its session, and the next session of the id would have its owner.

    Args:
        connection: The connection.
        query: A query for the setting by which it does; NULL if it does not.

    Raises:
        UnsupportedDialectError: If it does.
    """
    setting = connection.execute(text(query)).scalar()
    if setting is not None:
        raise UnsupportedDialectError(connection.dialect.name, setting)

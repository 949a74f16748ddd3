"""Settings of a connection that are read once, because reading them takes a query."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, text

from agents_session_metadata.errors import UnsupportedDialectError

_CHECKED = "agents_session_metadata.checked"
"""Under it, a connection of a pool has the isolation levels at which its settings were checked."""


def check_once(connection: Connection, check: Callable[[Connection], None]) -> None:
    """Runs a check when a connection is first used; listeners of the engine have configured it.

    It does so once per isolation level. Changing the level rolls back what a listener of the pool
    has set without a commit, so the other levels can have other settings.
    """
    level = connection.get_execution_options().get("isolation_level")
    checked: set[str | None] = connection.info.setdefault(_CHECKED, set())
    if level in checked:
        return
    is_begun = connection.in_transaction()
    check(connection)
    checked.add(level)
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

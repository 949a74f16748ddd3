"""Recognizes errors of databases by their codes.

The code of an error is a SQLSTATE on PostgreSQL, a number from 1000 on MySQL and MariaDB, and a
primary result below 256 on SQLite. A set can therefore contain the codes of all databases.
"""

from __future__ import annotations

import asyncio

from sqlalchemy.exc import (
    DBAPIError,
    InterfaceError,
    InternalError,
    OperationalError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

TRANSIENT: set[int | str] = {
    *(5, 6),  # SQLITE_BUSY, SQLITE_LOCKED
    *("40001", "40P01"),  # serialization failure, deadlock
    *(1213, 1205, 1020),  # deadlock, lock wait timeout, changed since the snapshot
    1047,  # a Galera node is not ready
}
HELD: set[int | str] = {5, 6, "55P03", 1205, 3572}
"""Another transaction has locked a row or a table."""
CREATION_RACE: set[int | str] = {
    # duplicate table, object and column, and the unique index of the catalog behind them
    *("42P07", "42710", "42701", "23505"),
    # table, trigger, index or column exists; duplicate foreign key, in its two forms; deadlock;
    # no such table, when another process has just given it its name
    *(1050, 1359, 1061, 1060, 1826, 1005, 1684, 1213, 1146),
}
"""A CREATE failed because another process ran the same one first."""
DENIED: set[int | str] = {
    8,  # SQLITE_READONLY
    *("42501", "25006"),  # insufficient privilege, replica
    *(1044, 1142, 1290),  # denied on a database or a table, read-only server
}
"""The user or the server may not alter tables."""
LOST_STATEMENT = {"26000"}
"""A pooler has prepared the statement on another connection."""
_PACKET = {1153, 2006, 2013}
_UNAVAILABLE = {
    *(5, 6, 7, 10, 13, 14, 15),  # busy, locked, memory, I/O, full, cannot open, protocol
    *(1020, 1205, 1213),  # conflicts that were retried
    *(1021, 1037, 1038, 1041, 1114, 1135, 1203, 1226, 3168),  # disk, memory, connections
    *(2002, 2003, 2006, 2013, 2055),  # the client's, about the network
    1927,  # the connection was killed
}
_UNAVAILABLE_STATES = ("08", "53", "57P", "40001", "40P01")
"""The beginnings of SQLSTATEs: no connection, no resources, starting or shutting down; conflicts
that were retried."""

_DRIVERS = {"aiosqlite", "sqlite3", "asyncpg", "psycopg", "asyncmy", "aiomysql", "pymysql"}
"""The packages whose exceptions are database errors."""


def database_cause(error: BaseException) -> BaseException | None:
    """Returns the driver's error; None if the error does not come from the database."""
    cause: BaseException = getattr(error, "orig", None) or error
    driver = type(cause).__module__.partition(".")[0]
    kinds = (StatementError, PoolTimeoutError, OSError, asyncio.TimeoutError)
    return cause if isinstance(error, kinds) or driver in _DRIVERS else None


def error_code(error: BaseException) -> object:
    cause = getattr(error, "orig", None) or error
    if type(cause).__module__ == "sqlite3":
        # sqlite3 of Python 3.10 has no codes. SQLite does not translate these messages.
        code = getattr(cause, "sqlite_errorcode", 5 if "is locked" in str(cause) else 0)
        return code & 0xFF  # The low byte of an extended code is the primary code.
    number = cause.args[0] if cause.args else None
    # On MySQL, the SQLSTATE of many errors is that of all others.
    return number if isinstance(number, int) else getattr(cause, "sqlstate", None)


def packet_advice(error: DBAPIError) -> str:
    """Returns advice if a record may be larger than a MySQL server accepts, or an empty string."""
    # The server closes the connection, often before the driver reads why.
    is_packet = error_code(error) in _PACKET
    return "if this record is large, increase max_allowed_packet on the server" if is_packet else ""


def is_unavailable(error: BaseException) -> bool:
    """Whether an error means that the database cannot answer now: answer "try again later".

    ```python
    try:
        page = await catalog.list_sessions()
    except Exception as error:
        if not is_unavailable(error):
            raise
        return Response(status_code=503, headers={"Retry-After": "1"})
    ```

    The database could not be reached, is starting or shutting down, or is full or busy. This
    depends on the SQLSTATE, if there is one, and not on the class of the error, so that it is the
    same with every driver.

    Args:
        error: An error that a method of this package raised.

    Returns:
        Whether a later attempt can succeed. False if the error is not from the database.
    """
    cause, code = database_cause(error), error_code(error)
    if getattr(error, "connection_invalidated", False) or cause is None:
        return cause is not None
    state = getattr(cause, "sqlstate", None)
    if state is not None or hasattr(cause, "sqlite_errorcode"):
        return code in _UNAVAILABLE or str(state).startswith(_UNAVAILABLE_STATES)
    # asyncpg raises an internal error without a code if no host accepts writes.
    kinds = (OperationalError, InterfaceError, *([InternalError] if code is None else []))
    return not isinstance(error, StatementError) or isinstance(error, kinds)

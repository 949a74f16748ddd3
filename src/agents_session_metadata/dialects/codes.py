"""Recognizes errors of databases by their codes.

The code of an error is a SQLSTATE on PostgreSQL, a number from 1000 on MySQL and MariaDB, and a
primary result below 256 on SQLite. A set can therefore contain the codes of all databases.
"""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

TRANSIENT = {
    *(5, 6),  # SQLITE_BUSY, SQLITE_LOCKED
    *("40001", "40P01"),  # serialization failure, deadlock
    *(1213, 1205, 1020),  # deadlock, lock wait timeout, changed since the snapshot
    1047,  # a Galera node is not ready
}
HELD = {5, 6, "55P03", 1205, 3572}
"""Another transaction has locked a row or a table."""
CREATION_RACE = {
    # duplicate table, object and column, and the unique index of the catalog behind them
    *("42P07", "42710", "42701", "23505"),
    # table, trigger, index or column exists; duplicate foreign key, in its two forms; deadlock;
    # no such table, when another process has just given it its name
    *(1050, 1359, 1061, 1060, 1826, 1005, 1684, 1213, 1146),
}
"""A CREATE failed because another process ran the same one first."""
DENIED = {
    8,  # SQLITE_READONLY
    *("42501", "25006"),  # insufficient privilege, replica
    *(1044, 1142, 1290),  # denied on a database or a table, read-only server
}
"""The user or the server may not alter tables."""
LOST_STATEMENT = {"26000"}
"""A pooler has prepared the statement on another connection."""
_PACKET = {1153, 2006, 2013}


def error_code(error: DBAPIError) -> object:
    cause = error.orig
    if type(cause).__module__ == "sqlite3":
        # sqlite3 of Python 3.10 has no codes. SQLite does not translate these messages.
        code = getattr(cause, "sqlite_errorcode", 5 if "is locked" in str(cause) else 0)
        return code & 0xFF  # The low byte of an extended code is the primary code.
    number = cause.args[0] if cause is not None and cause.args else None
    # On MySQL, the SQLSTATE of many errors is that of all others.
    return number if isinstance(number, int) else getattr(cause, "sqlstate", None)


def packet_advice(error: DBAPIError) -> str:
    """Returns advice if a record may be larger than a MySQL server accepts, or an empty string."""
    # The server closes the connection, often before the driver reads why.
    is_packet = error_code(error) in _PACKET
    return "if this record is large, increase max_allowed_packet on the server" if is_packet else ""

"""Runs a statement with one call of the driver's thread.

SQLAlchemy makes four calls: create a cursor, execute, read the rows, close. Each takes longer than
a small statement. Saving them requires private members of SQLAlchemy and aiosqlite. If a release
lacks one of them, its own cursors are used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from sqlalchemy import Connection

_MEMBERS = (
    ("_dbapi_connection",),
    ("_close_special", "dbapi_connection"),
    ("_handle_exception", "driver_connection", "run_async"),
    ("_conn", "_execute"),
)
"""Members of `Connection`, its pooled connection, SQLAlchemy's adapter, and aiosqlite's class."""


def use_fewer_calls(connection: Connection) -> None:
    """Does nothing if a private member is missing."""
    pooled: Any = getattr(connection, "_dbapi_connection", None)
    adapted = getattr(pooled, "dbapi_connection", None)
    driver = getattr(adapted, "driver_connection", None)
    owners = connection, pooled, adapted, type(driver)
    if all(
        hasattr(owner, name)
        for owner, names in zip(owners, _MEMBERS, strict=True)
        for name in names
    ):
        wrapped: Any = _PooledConnection(pooled)
        connection._dbapi_connection = wrapped


class _PooledConnection:
    def __init__(self, pooled: Any) -> None:
        self._pooled = pooled
        self._is_committed = False

    def __getattr__(self, name: str) -> Any:
        self._is_committed = False  # Whoever asked may write.
        return getattr(self._pooled, name)

    def cursor(self, **_: object) -> _Cursor:
        """The cursor is for one statement, and always reads all rows at once."""
        self._is_committed = False
        return _Cursor(self._pooled.dbapi_connection)

    def commit(self) -> None:
        self._pooled.commit()
        self._is_committed = True

    def close(self) -> None:
        """Rolls back unless the connection has just committed."""
        self._pooled._close_special(transaction_reset=self._is_committed)


class _Cursor:
    arraysize = 1

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._rows: deque[Any] = deque()
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: Any = None

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        self._run("execute", statement, parameters)

    def executemany(self, statement: str, parameters: Sequence[Sequence[Any]]) -> None:
        self._run("executemany", statement, parameters)

    def _run(self, method: str, statement: str, parameters: Sequence[Any]) -> None:
        connection = self._connection
        driver = connection.driver_connection

        def run() -> None:
            with closing(driver._conn.cursor()) as cursor:
                getattr(cursor, method)(statement, parameters)
                self._rows.extend(cursor.fetchall())
                self.description = cursor.description
                self.rowcount, self.lastrowid = cursor.rowcount, cursor.lastrowid

        try:
            connection.run_async(lambda _: driver._execute(run))
        except Exception as error:  # noqa: BLE001  # raised as SQLAlchemy's own cursor raises it
            connection._handle_exception(error)

    def fetchone(self) -> Any:
        return self._rows.popleft() if self._rows else None

    def fetchmany(self, size: int = arraysize) -> list[Any]:
        return [self._rows.popleft() for _ in range(min(size, len(self._rows)))]

    def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, deque()
        return list(rows)

    def close(self) -> None:
        self._rows.clear()

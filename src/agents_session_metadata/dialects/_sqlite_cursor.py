"""Runs each statement on SQLite with one call of the driver's thread.

SQLAlchemy makes four calls: create a cursor, execute, read the rows, close. Each takes longer than
a small statement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from sqlalchemy import Connection

MEMBERS = (
    ("_dbapi_connection",),
    ("_close_special", "dbapi_connection"),
    ("_handle_exception", "driver_connection", "run_async"),
    ("_conn", "_execute"),
)
"""Members of `Connection`, its pooled connection, SQLAlchemy's adapter, and aiosqlite's class."""


def use_fewer_calls(connection: Connection) -> None:
    """Keeps SQLAlchemy's own cursors if a release lacks one of the private members."""
    pooled: Any = getattr(connection, "_dbapi_connection", None)
    adapted = getattr(pooled, "dbapi_connection", None)
    driver = getattr(adapted, "driver_connection", None)
    owners = connection, pooled, adapted, type(driver)
    if all(hasattr(owner, name) for owner, names in zip(owners, MEMBERS) for name in names):  # noqa: B905
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
        return _Cursor(self)

    def call(self, work: Callable[[Any], object]) -> None:
        """Runs `work` in one call of the driver's thread."""
        connection = self._pooled.dbapi_connection
        driver = connection.driver_connection
        try:
            connection.run_async(lambda _: driver._execute(partial(work, driver._conn)))
        except Exception as error:  # noqa: BLE001  # raised as SQLAlchemy's own cursor raises it
            connection._handle_exception(error)

    def commit(self) -> None:
        self.call(lambda connection: connection.commit())
        self._is_committed = True

    def close(self) -> None:
        """Rolls back unless the connection has just committed."""
        self._pooled._close_special(transaction_reset=self._is_committed)


class _Cursor:
    arraysize = 1

    def __init__(self, connection: _PooledConnection) -> None:
        self._connection = connection
        self._rows: deque[Any] = deque()
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: Any = None

    def execute(
        self, statement: str, parameters: Sequence[Any] = (), method: str = "execute"
    ) -> None:
        def run(connection: Any) -> None:
            with closing(getattr(connection, method)(statement, parameters)) as cursor:
                self._rows.extend(cursor.fetchall())
                self.description = cursor.description
                self.rowcount, self.lastrowid = cursor.rowcount, cursor.lastrowid

        self._connection.call(run)

    def executemany(self, statement: str, parameters: Sequence[Sequence[Any]]) -> None:
        self.execute(statement, parameters, "executemany")

    def fetchone(self) -> Any:
        return self._rows.popleft() if self._rows else None

    def fetchmany(self, size: int = arraysize) -> list[Any]:
        return [self._rows.popleft() for _ in range(min(size, len(self._rows)))]

    def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, deque()
        return list(rows)

    def close(self) -> None:
        self._rows.clear()

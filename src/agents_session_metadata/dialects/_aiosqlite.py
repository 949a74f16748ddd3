"""Runs a statement with one call of the driver's thread.

SQLAlchemy makes four calls: create a cursor, execute, read the rows, close. Each takes longer than
a small statement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import closing
from typing import Any


class PooledConnection:
    """A connection of SQLAlchemy's pool, with other cursors.

    Args:
        pooled: The connection, as an SQLAlchemy `Connection` holds it.
    """

    def __init__(self, pooled: Any) -> None:
        self._pooled = pooled
        self._is_committed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pooled, name)

    def cursor(self, **_: object) -> _Cursor:
        """Returns a cursor for one statement, which always reads all rows at once."""
        self._is_committed = False
        return _Cursor(self._pooled.dbapi_connection)

    def commit(self) -> None:
        """Commits the transaction."""
        self._pooled.commit()
        self._is_committed = True

    def close(self) -> None:
        """Returns the connection to the pool, with a rollback unless it has just committed."""
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

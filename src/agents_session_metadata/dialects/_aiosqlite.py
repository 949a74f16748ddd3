"""Runs a statement with one call of the driver's thread, and a second one to read its rows.

SQLAlchemy also calls the thread to create a cursor and to close it. Each call takes longer than a
small statement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any


class PooledConnection:
    """A connection of SQLAlchemy's pool, with other cursors.

    Args:
        pooled: The connection, as an SQLAlchemy `Connection` holds it.
    """

    def __init__(self, pooled: Any) -> None:
        self._pooled = pooled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pooled, name)

    def cursor(self, **_: object) -> _Cursor:
        """Returns a cursor for one statement, which always reads all rows at once."""
        return _Cursor(self._pooled.dbapi_connection)


class _Cursor:
    """A cursor that needs no closing, because all of its rows have been read."""

    arraysize = 1

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._rows: deque[Any] = deque()
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: Any = None

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        self._run(lambda driver: driver.execute(statement, parameters))

    def executemany(self, statement: str, parameters: Sequence[Sequence[Any]]) -> None:
        self._run(lambda driver: driver.executemany(statement, parameters))

    def _run(self, call: Callable[[Any], Any]) -> None:
        async def run(driver: Any) -> None:
            cursor = await call(driver)
            if cursor.description:
                try:
                    self._rows.extend(await cursor.fetchall())
                except BaseException:
                    # A statement that has more rows keeps the snapshot that it reads.
                    await cursor.close()
                    raise
            self.description = cursor.description
            self.rowcount, self.lastrowid = cursor.rowcount, cursor.lastrowid

        try:
            self._connection.run_async(run)
        except Exception as error:  # noqa: BLE001  # raised as SQLAlchemy's own cursor raises it
            self._connection._handle_exception(error)

    def fetchone(self) -> Any:
        return self._rows.popleft() if self._rows else None

    def fetchmany(self, size: int = arraysize) -> list[Any]:
        return [self._rows.popleft() for _ in range(min(size, len(self._rows)))]

    def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, deque()
        return list(rows)

    def close(self) -> None:
        self._rows.clear()

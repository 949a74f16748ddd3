"""Creates, drops and lists indexes: the SQL index on `updated_at`, and those of features.

Pages by other metadata keys need no index: see `query.walks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError

from agents_session_metadata.core.database import Database
from agents_session_metadata.core.features import Index, features
from agents_session_metadata.core.obsolete import drop_obsolete, obsolete_keys
from agents_session_metadata.core.schema import time_index
from agents_session_metadata.query.walks import forget
from agents_session_metadata.text import quoted
from agents_session_metadata.types import IndexInfo

Progress = Callable[[int], object]


class TimeIndex(Index):
    key: ClassVar[str] = "$updated_at"

    async def create(self, progress: Progress | None) -> bool:
        created = await self._change(exists=True)
        if created and progress is not None:
            progress(await self.database.look(self._count))
        return created

    async def drop(self) -> bool:
        return await self._change(exists=False)

    def info(self, connection: Connection, *, count: bool) -> IndexInfo | None:
        if not self._index.exists(connection):
            return None
        return IndexInfo(
            self.key, complete=True, entries=self._count(connection) if count else None
        )

    @property
    def _index(self) -> Any:
        return time_index(self.database.tables.sessions, self.database.dialect)

    def _count(self, connection: Connection) -> int:
        sessions = self.database.tables.sessions
        return connection.scalar(select(func.count()).select_from(sessions)) or 0

    async def _change(self, *, exists: bool) -> bool:
        """Creates or drops the index. Returns whether that was necessary."""
        index, database = self._index, self.database
        try:
            return await database.write(lambda connection: index.change(connection, exists=exists))
        except DBAPIError:
            # Another process may have done it.
            if await database.look(index.exists) != exists:
                raise
            return False
        finally:
            forget(database)


def _every(database: Database) -> Iterator[Index]:
    yield TimeIndex(database)
    yield from filter(None, (feature.index(database) for feature in features()))


async def create_index(database: Database, key: str, progress: Progress | None = None) -> bool:
    """Returns False if the index was complete already."""
    indexes = {index.key: index for index in _every(database)}
    if key not in indexes:
        raise ValueError(
            f"key must be one of {', '.join(indexes)}, got {quoted(key)}: lists by a metadata key"
            " need no index of their own"
        )
    return await indexes[key].create(progress)


async def drop_index(database: Database, key: str) -> bool:
    """Also drops what version 0.2.0 made for the index of a metadata key."""
    for index in _every(database):
        if index.key == key:
            return await index.drop()
    tables = database.tables
    return await database.write(partial(drop_obsolete, tables=tables, key=key))


async def list_indexes(database: Database, *, count: bool = False) -> list[IndexInfo]:
    def read(connection: Connection) -> list[IndexInfo]:
        found = [index.info(connection, count=count) for index in _every(database)]
        keys = obsolete_keys(connection, database.tables)
        old = [IndexInfo(key, complete=False, obsolete=True) for key in keys]
        return sorted([*filter(None, found), *old], key=lambda info: info.key)

    return await database.look(read)

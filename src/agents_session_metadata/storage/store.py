"""The metadata of sessions by their ids: what a session and a catalog have in common.

Here a request is checked, before anything is written; `database` runs it and `rows` has its SQL.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import StaticPool

from agents_session_metadata.errors import ScopeError
from agents_session_metadata.query.filters import Where, parse_filter
from agents_session_metadata.scope import Scope
from agents_session_metadata.types import JSONValue, Metadata, MetadataLimits
from agents_session_metadata.values import EncodedValue, encode_metadata

from .database import Database
from .rows import Rows, check_id, id_problem, storable_keys
from .tables import TableNames

MISSING: Final[Any] = object()
"""Stands for an argument that was not given."""


class SessionStore:
    """Metadata by session id, in one database and scope."""

    def __init__(self, database: Database, limits: MetadataLimits, scope: Scope) -> None:
        self.database = database
        self.limits = limits
        self.scope = scope
        self.rows: Rows = Rows(database.tables, database.dialect, limits, scope)

    def within(self, scope: Scope) -> SessionStore:
        """The same store within a scope."""
        return SessionStore(self.database, self.limits, scope)

    def encode_new(self, metadata: Mapping[str, JSONValue]) -> dict[str, EncodedValue]:
        """Check and encode the metadata of a new session; the scope's values are added.

        Raises:
            InvalidMetadataError: If a key or value cannot be stored.
            MetadataLimitError: If a limit is exceeded.
            ScopeError: If it contradicts the scope.
        """
        encoded = encode_metadata(metadata, self.limits)
        if self.scope:
            self.scope.check(metadata)
            encoded = encode_metadata({**metadata, **self.scope.values}, self.limits)
        return encoded

    async def get_metadata(self, session_id: str, keys: Iterable[str] | None = None) -> Metadata:
        """All stored keys of a session, or those asked for, `None` where nothing is stored."""
        if isinstance(keys, Iterable) and not isinstance(keys, (str, bytes)):
            keys = list(keys)
        wanted = storable_keys(keys)
        found: Metadata = {}
        if id_problem(session_id) is None and wanted != []:
            database = self.database
            found = await database.read(
                lambda connection: self.rows.get(connection, database.queries, session_id, wanted)
            )
        return found if keys is None else {key: found.get(key) for key in keys}

    async def set_metadata(self, session_id: str, values: Mapping[str, JSONValue]) -> None:
        """Upsert keys of a session in one transaction."""
        encoded = encode_metadata(values, self.limits)
        if not encoded:
            return
        check_id(session_id)
        self.scope.check(values)
        await self.database.write(lambda connection: self.rows.set(connection, session_id, encoded))

    async def edit_metadata(
        self, session_id: str, change: Callable[[Metadata], object]
    ) -> Metadata:
        """Let a function change a session's metadata while nobody else can."""
        check_id(session_id)
        return await self.database.write(
            lambda connection: self.rows.edit(connection, session_id, change)
        )

    async def delete_metadata(self, session_id: str, keys: Iterable[str] | None = None) -> int:
        """Delete keys of a session; give how many there were."""
        wanted = storable_keys(keys)
        for key in wanted or ():
            if key in self.scope.values:
                raise ScopeError(key)
        if wanted == [] or id_problem(session_id) is not None:
            return 0
        return await self.database.write(
            lambda connection: self.rows.delete_keys(connection, session_id, wanted)
        )

    async def is_visible(self, session_id: str) -> bool:
        """Whether a session exists within the scope."""
        if id_problem(session_id) is not None:
            return False
        database = self.database
        return await database.read(
            lambda connection: self.rows.is_visible(connection, database.queries, session_id)
        )

    async def find_sessions(
        self, key_or_filter: str | Where, value: JSONValue = MISSING, limit: int | None = None
    ) -> list[str]:
        """Ids of the sessions that match, most recently active first."""
        where: Any = key_or_filter
        if isinstance(key_or_filter, str):
            if value is MISSING:
                raise TypeError("a key needs a value; for a filter, pass a mapping")
            where = {key_or_filter: {"$eq": value}}
        elif value is not MISSING:
            raise TypeError("a filter takes no separate value")
        if limit is not None:
            check_limit(limit)
        condition = self.scope.restrict(parse_filter(where))
        database = self.database
        return await database.read(
            lambda connection: list(connection.scalars(*database.queries.find(condition, limit)))
        )


def own_store(engine: AsyncEngine, names: TableNames, *, create_tables: bool) -> SessionStore:
    """The store of an engine that no session of the SDK uses, configured without importing it."""
    turn, init_lock = asyncio.Lock(), threading.Lock()
    database = Database(
        engine,
        names,
        create_tables=create_tables,
        guard=(lambda: turn) if isinstance(engine.pool, StaticPool) else None,
        init_lock=lambda: init_lock,
    )
    database.dialect.configure(engine.sync_engine)
    return SessionStore(database, MetadataLimits(), Scope())


def check_limit(limit: int, most: int = 2**31 - 1) -> None:
    """Refuse a limit that is not a number of rows.

    Raises:
        ValueError: If it is not a positive integer, or over `most`.
    """
    if type(limit) is not int or not 1 <= limit <= most:
        raise ValueError(f"limit must be 1 to {most:,}, not {limit!r}")

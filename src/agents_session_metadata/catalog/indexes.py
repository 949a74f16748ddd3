"""Indexes of sessions by activity: create, drop, list."""

from __future__ import annotations

from collections.abc import Callable

from agents_session_metadata.errors import ScopeError
from agents_session_metadata.indexes.creation import (
    check_index_key,
    create_index,
    drop_index,
    list_indexes,
)
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import IndexInfo

from .part import CatalogPart


class Indexes(CatalogPart):
    async def create_index(
        self, key: str, *, progress: Callable[[int], object] | None = None
    ) -> bool:
        """Create an index, so that the cost of a page does not grow with the number of matches.

        With an index on a key, a page by `updated_at`, `last_session`,
        `find_sessions_by_metadata(limit=…)` and retention by age read as many entries as they
        return, if their only condition (filter and scope together) requires one value of that key.
        The elements of lists are indexed one by one, for `$contains`. `"$updated_at"` is the index
        for pages without a filter: an SQL index on the SDK's sessions table. An index never changes
        a result.

        Triggers maintain the index on a key for every writer. On PostgreSQL the index is created in
        one transaction, and other writers wait for it. On SQLite, MariaDB and MySQL it is filled in
        steps. It is not used until it is complete; call this again to continue it. On MariaDB and
        MySQL, the user requires the privilege TRIGGER, every process that writes must run version
        0.2 or later, and creating the triggers or `"$updated_at"` can block other writers for up to
        five seconds per attempt. A transaction of another writer can also end with a deadlock then,
        which this package retries and the plain SDK raises.

        Args:
            key: A metadata key or `"$updated_at"`.
            progress: Called with the number of indexed sessions so far.

        Returns:
            Whether the index was created. False if it exists already.

        Raises:
            InvalidMetadataError: If the key cannot be stored.
            ScopeError: If the catalog has a scope.
            TablesMissingError: If tables are missing and `create_tables` is off; and for `"$text"`,
                the index for search, which is not available in this version.
            TriggersNotAllowedError: If the database user may not create triggers.
        """
        check_no_scope(self._store, "create_index")
        return await create_index(self._store.database, check_index_key(key), progress)

    async def drop_index(self, key: str) -> bool:
        """Drop an index. Queries then run without it.

        The triggers are kept, and do nothing for keys without an index.

        Args:
            key: A metadata key or `"$updated_at"`.

        Returns:
            Whether the index existed.

        Raises:
            InvalidMetadataError: If the key cannot be stored.
            ScopeError: If the catalog has a scope.
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        check_no_scope(self._store, "drop_index")
        return await drop_index(self._store.database, check_index_key(key))

    async def list_indexes(self, *, count: bool = False) -> list[IndexInfo]:
        """List the indexes, ordered by key.

        Args:
            count: Whether to count their entries.

        Returns:
            The indexes; an empty list if there are none, also if tables are missing.

        Raises:
            ScopeError: If the catalog has a scope.
        """
        check_no_scope(self._store, "list_indexes")
        return await list_indexes(self._store.database, count=count)


def check_no_scope(store: ScopedStore, method: str) -> None:
    if store.scope:
        raise ScopeError(
            next(iter(store.scope.values)),
            f"{method} needs a catalog without a scope: indexes belong to all sessions",
        )

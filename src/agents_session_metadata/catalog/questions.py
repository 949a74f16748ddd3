"""Lists, counts and totals of the sessions that match a filter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from agents_session_metadata.core.rows import storable_keys
from agents_session_metadata.core.store import check_limit
from agents_session_metadata.errors import InvalidFilterError
from agents_session_metadata.query.cursors import decode_cursor, encode_cursor
from agents_session_metadata.query.details import Details
from agents_session_metadata.query.filters import Where
from agents_session_metadata.query.ordering import WALK, OrderBy, Ordering, Position
from agents_session_metadata.query.pages import OnCorrupt, read_counts
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.types import SessionInfo, SessionPage, Statistics, ValueCount
from agents_session_metadata.usage.statistics import read_statistics
from agents_session_metadata.values import key_problem

from .part import CatalogPart

if TYPE_CHECKING:
    pass

LONGEST_PAGE = 1000
_WALK_PAGE = 500


class Questions(CatalogPart):
    async def list_sessions(
        self,
        where: Where | None = None,
        *,
        order_by: OrderBy = "-updated_at",
        limit: int = 100,
        cursor: str | None = None,
        keys: Iterable[str] | None = None,
        count_items: bool = False,
        preview: bool = False,
        on_corrupt: OnCorrupt | None = None,
    ) -> SessionPage:
        """Return a page of sessions with their metadata.

        Pages by `created_at` or `session_id` return every session that exists the whole time
        exactly once, even if other sessions are created and deleted. Pages by `updated_at` or a
        metadata key can miss or repeat a session whose position changes in the meantime.

        ```python
        page = await catalog.list_sessions({"owner_id": "u1"}, limit=20, keys=["title"])
        page = await catalog.list_sessions(
            {"owner_id": "u1"}, limit=20, keys=["title"], cursor=page.next_cursor
        )
        ```

        Args:
            where: A filter; all sessions by default.
            order_by: `updated_at`, `created_at`, `session_id` or a metadata key, with `-` for
                descending. By a column, ties are broken by id, in the same direction. By a
                metadata key the order is `None`, `False`, `True`, numbers, strings (by code
                point), then lists and objects (in no particular order among themselves); sessions
                without the key come last in both directions, and ties are broken by most recent
                activity, then by id ascending. The names of columns always mean the columns, and a
                key that begins with `-` cannot be ordered by. The cursor of such a page contains
                the last session's value of the key, in an encoded but readable form.
            limit: Sessions per page, 1 to 1,000.
            cursor: The `next_cursor` of the previous page, for the same filter, order and scope.
            keys: The metadata keys to return; all stored keys by default. `[]` means none.
            count_items: Whether to count the items of each history.
            preview: As in `get_session`.
            on_corrupt: Called with a `CorruptMetadataError` for each stored value that is
                not valid JSON, instead of raising it; the session is returned without these keys.

        Returns:
            The page.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON, without `on_corrupt`.
            InvalidCursorError: If the cursor is damaged or belongs to another query.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `keys` is a bare string, or `order_by` is not a string.
            ValueError: If `limit` is out of range, or `order_by` is neither a column nor a key
                that can be stored.
        """
        check_limit(limit, LONGEST_PAGE)
        ordering = Ordering.parse(order_by)
        wanted = storable_keys(keys)
        condition = self._condition(where)
        after = None
        if cursor is not None:
            after = decode_cursor(cursor, condition, ordering, self._store.database.dialect)
        # One more than requested tells whether there is a next page.
        found = await self._page(
            condition,
            ordering,
            limit=limit + 1,
            after=after,
            keys=wanted,
            details=Details(count_items, preview),
        )
        next_cursor = None
        if len(found) > limit:
            next_cursor = encode_cursor(found[limit - 1].position, condition, ordering)
        return SessionPage([each.checked(on_corrupt) for each in found[:limit]], next_cursor)

    async def iter_sessions(
        self,
        where: Where | None = None,
        *,
        keys: Iterable[str] | None = None,
        count_items: bool = False,
        on_corrupt: OnCorrupt | None = None,
    ) -> AsyncIterator[SessionInfo]:
        """Iterate over all matching sessions, in constant memory.

        Sessions are ordered by id. No connection is held between items. Every session that exists
        and matches the whole time is returned exactly once.

        Args:
            where: A filter; all sessions by default.
            keys: The metadata keys to return; all stored keys by default.
            count_items: Whether to count the items of each history.
            on_corrupt: Called with a `CorruptMetadataError` for each stored value that is
                not valid JSON, instead of raising it; the session is yielded without these keys.

        Yields:
            The sessions.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON, without `on_corrupt`.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `keys` is a bare string.
        """
        wanted = storable_keys(keys)
        condition = self._condition(where)
        after: Position | None = None
        while True:
            found = await self._page(
                condition,
                WALK,
                limit=_WALK_PAGE,
                after=after,
                keys=wanted,
                details=Details(count_items),
            )
            for each in found:
                yield each.checked(on_corrupt)
            if len(found) < _WALK_PAGE:
                return
            after = found[-1].position

    async def count_sessions(self, where: Where | None = None) -> int:
        """Count matching sessions.

        Args:
            where: A filter; all sessions by default.

        Returns:
            The number of sessions.

        Raises:
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        condition = self._condition(where)
        counts = await self._scalars(lambda queries: queries.count(condition))
        return int(counts[0])

    async def count_values(
        self, key: str, where: Where | None = None, *, limit: int = 100
    ) -> list[ValueCount]:
        """Count the sessions for each value of a key. Each element of a list counts as a value.

        Args:
            key: A metadata key.
            where: A filter; all sessions by default.
            limit: The maximum number of values.

        Returns:
            The values with the most sessions first, then by value. 1 and 1.0 are the same value.
            Objects, and lists as a whole, are not counted.

        Raises:
            InvalidFilterError: If the key cannot be stored, or the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
            ValueError: If `limit` is not a positive integer.
        """
        problem = key_problem(key)
        if problem is not None:
            raise InvalidFilterError(problem, path="key")
        check_limit(limit)
        condition = self._condition(where)
        database = self._store.database

        def read(connection: Connection, queries: Queries) -> list[ValueCount]:
            found = read_counts(connection, queries, key, condition, limit)
            return [ValueCount(value, count) for value, count in found]

        return await database.read(read)

    async def statistics(self, where: Where | None = None) -> Statistics:
        """Add up the data that lifecycle and tracker recorded, exactly and in the database.

        Args:
            where: A filter; all sessions by default.

        Returns:
            The totals.

        Raises:
            CorruptMetadataError: If a status, or a value that the database refuses to add, is not
                valid JSON.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        condition = self._condition(where)
        database = self._store.database
        return await database.read(
            lambda connection, queries: read_statistics(connection, queries, condition)
        )

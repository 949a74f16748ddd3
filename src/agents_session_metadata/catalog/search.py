"""Full-text search in messages and titles."""

from __future__ import annotations

from typing import NoReturn

from agents_session_metadata.errors import TablesMissingError
from agents_session_metadata.indexes.creation import NO_TEXT_INDEX
from agents_session_metadata.query.filters import Where

from .part import CatalogPart


class Searching(CatalogPart):
    async def search(
        self,
        query: str,
        where: Where | None = None,
        *,
        limit: int = 20,
        cursor: str | None = None,
    ) -> NoReturn:
        """Find the messages and titles that contain all words of a query, newest first.

        Search requires the text index, which is not available in this version.

        Args:
            query: One to 32 terms, of which at least one must not be excluded.
            where: A filter for the sessions to search; all sessions by default.
            limit: The maximum number of hits per page, 1 to 100.
            cursor: The `next_cursor` of the previous page, for the same query, filter and scope.

        Raises:
            TablesMissingError: Always.
        """
        del query, where, limit, cursor
        raise TablesMissingError((), problem=NO_TEXT_INDEX)

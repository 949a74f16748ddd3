"""The histories of sessions: pages of items, and removing the end."""

from __future__ import annotations

from agents_session_metadata.core.store import check_limit
from agents_session_metadata.history.items import read_page
from agents_session_metadata.history.rewind import Cut, rewind
from agents_session_metadata.types import ItemInfo, ItemPage

from .part import CatalogPart
from .questions import LONGEST_PAGE


class Histories(CatalogPart):
    async def list_items(
        self,
        session_id: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> ItemPage:
        """Return a page of the items of a session's history, in the order of `get_items`.

        A page has at most about 8 MiB, but at least one item. Rows that are not valid JSON are
        skipped, as in the SDK. Items that were written through `EncryptedSession` are returned
        encrypted. Iterating over all pages returns every item that exists during the whole
        iteration exactly once.

        Args:
            session_id: The session's id.
            limit: The maximum number of items per page, 1 to 1,000.
            cursor: The `next_cursor` of the previous page, for the same session, order and scope.
            newest_first: Return the newest items first instead of the oldest.

        Returns:
            The page. It is empty if the session does not exist.

        Raises:
            InvalidCursorError: If the cursor is damaged or belongs to another query.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If the id is not a string.
            ValueError: If `limit` is out of range.
        """
        check_limit(limit, LONGEST_PAGE)
        return await read_page(
            self._store, session_id, limit=limit, cursor=cursor, newest_first=newest_first
        )

    async def rewind_session(
        self,
        session_id: str,
        *,
        turns: int | None = None,
        before: int | None = None,
        expect_last: int | None = None,
    ) -> list[ItemInfo]:
        """As `SQLAlchemyMetadataSession.rewind`, by id: for sessions behind a wrapper."""
        return await rewind(self._store, session_id, Cut(turns, before, expect_last))

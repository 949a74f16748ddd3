"""Full-text search in messages and titles."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from agents_session_metadata.errors import InvalidSearchError, TextIndexMissingError
from agents_session_metadata.maintenance.text_index import refresh_text_index
from agents_session_metadata.query.filters import Where
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.query.search import Found, Search
from agents_session_metadata.query.search_cursors import decode_search_cursor, encode_search_cursor
from agents_session_metadata.storage.store import check_limit
from agents_session_metadata.types import SearchPage
from agents_session_metadata.words import parse_query

from .indexes import check_no_scope, check_text_key
from .part import CatalogPart

LONGEST_SEARCH_PAGE = 100


class Searching(CatalogPart):
    """Searches what was said."""

    async def search(
        self,
        query: str,
        where: Where | None = None,
        *,
        limit: int = 20,
        cursor: str | None = None,
    ) -> SearchPage:
        """Find the messages and titles that contain all words of a query, newest first.

        The search covers the text of user and assistant messages and the `title` of each session.
        It does not cover system messages, tool calls, tool output or reasoning. Case, and accents
        on Latin, Greek and Cyrillic letters, are ignored. `"…"` is a phrase, a trailing `*` a
        prefix, and a leading `-` excludes. A term of several words, such as `e-mail`, is a phrase.
        In Chinese, Japanese and Korean text, a term is also found inside longer text.

        Hits are ordered by time, then session id, then item id, all descending. The cost of a page
        is bounded, so a page can contain fewer hits than `limit`, or none, and still have a
        `next_cursor`.

        `search` requires the text index, which `create_index("$text")` creates, and only reads.
        Messages that are written through this package can be found immediately. Messages of other
        writers are queued until the next write through this package or `refresh_index("$text")`;
        until then, `complete` is False. With many sessions in scope and a long queue, `complete`
        can also be False if none of their messages are queued. Encrypted histories, and sessions
        whose id is longer than 255 characters, cannot be searched.

        Args:
            query: One to 32 terms, of which at least one must not be excluded.
            where: A filter for the sessions to search; all sessions by default.
            limit: The maximum number of hits per page, 1 to 100.
            cursor: The `next_cursor` of the previous page, for the same query, filter and scope.

        Returns:
            A page of hits.

        Raises:
            InvalidCursorError: If the cursor is damaged or belongs to another question, or,
                for some cursors, if the index was dropped and created again.
            InvalidFilterError: If the filter is invalid.
            InvalidSearchError: If all terms of the query are excluded, or it has too many terms.
            TextIndexMissingError: If the text index does not exist.
            TypeError: If the query is not a string.
            ValueError: If `limit` is out of range.
        """
        try:
            parsed = parse_query(query)
        except ValueError as error:
            raise InvalidSearchError(str(error)) from None
        check_limit(limit, LONGEST_SEARCH_PAGE)
        condition = self._condition(where)
        database = self._store.database
        after = None
        if cursor is not None:
            after = decode_search_cursor(cursor, parsed, condition, database.dialect)

        def read(connection: Connection, queries: Queries) -> Found:
            known, tables = database.known_text, database.tables
            # Somebody may just have created it.
            if not (known.get(connection, tables) or known.look(connection, tables)):
                raise TextIndexMissingError
            return Search(connection, queries, condition, parsed).run(limit, after)

        found = await database.read(read)
        place = found.next
        next_cursor = None if place is None else encode_search_cursor(place, parsed, condition)
        return SearchPage(found.hits, next_cursor, found.complete)

    async def refresh_index(
        self, key: str, *, progress: Callable[[int], object] | None = None
    ) -> int:
        """Index the queued messages of other writers, in short transactions.

        Triggers add the messages and titles of writers that do not use this package to a queue. All
        other indexes are always up to date.

        Args:
            key: `"$text"`.
            progress: Called with the number of messages and titles done so far.

        Returns:
            The number of messages and titles that were taken from the queue.

        Raises:
            ScopeError: If the catalog has a scope.
            TextIndexMissingError: If the text index does not exist.
            ValueError: If the key is not `"$text"`.
        """
        check_no_scope(self._store, "refresh_index")
        check_text_key(key)
        return await refresh_text_index(self._store.database, progress)

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

        Searched are the texts of user and assistant messages, and the `title` of each session; not
        system messages, tool calls, their output or reasoning. Case and the accents of Latin, Greek
        and Cyrillic letters make no difference. `"…"` is a phrase, a trailing `*` a prefix, and a
        leading `-` excludes. A term of several words, such as `e-mail`, is a phrase. In Chinese,
        Japanese and Korean, each text is found within longer ones.

        Hits are ordered by time, then session id, then item id, all descending. The cost depends on
        the sessions in scope and filter, not on those of others: a page may end before it is full,
        even without a hit, and then has a `next_cursor` to go on with.

        Searching needs the text index, which `create_index("$text")` creates, and writes nothing.
        What was written through this package is found at once. What others have written is found
        after the next write through this package or `refresh_index("$text")`; until then,
        `complete` is False. With many sessions in scope and a long queue, `complete` may also be
        False if none of them waits. Encrypted histories, and sessions whose id has more than 255
        characters, are not searchable.

        Args:
            query: One to 32 terms, of which at least one must not be excluded.
            where: A filter; only sessions that match it are searched.
            limit: The greatest number of hits, 1 to 100.
            cursor: The `next_cursor` of the page before.

        Returns:
            A page of hits.

        Raises:
            InvalidCursorError: If the cursor is damaged or belongs to another question.
            InvalidFilterError: If the filter is invalid.
            InvalidSearchError: If the query has no word to look for, or too many terms.
            TextIndexMissingError: If there is no text index.
            TypeError: If the query is not a string.
            ValueError: If `limit` is out of bounds.
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
            if not known.exists(connection, tables):
                known.forget()  # Somebody may just have created it.
                if not known.exists(connection, tables):
                    raise TextIndexMissingError
            return Search(connection, queries, condition, parsed).run(limit, after)

        found = await database.read(read)
        place = found.next
        next_cursor = None if place is None else encode_search_cursor(place, parsed, condition)
        return SearchPage(found.hits, next_cursor, found.complete)

    async def refresh_index(
        self, key: str, *, progress: Callable[[int], object] | None = None
    ) -> int:
        """Index what other writers have written, in short transactions.

        Writers that do not use this package put their messages and titles into a queue, by
        triggers. All other indexes are always up to date.

        Args:
            key: `"$text"`.
            progress: Called with the number of messages and titles done so far.

        Returns:
            The number of messages and titles that were taken from the queue.

        Raises:
            ScopeError: If the catalog has a scope.
            TextIndexMissingError: If there is no text index.
            ValueError: If the key is not `"$text"`.
        """
        check_no_scope(self._store, "refresh_index")
        check_text_key(key)
        return await refresh_text_index(self._store.database, progress)

"""Retention, forks, export and import."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from agents_session_metadata.core.rows import check_id_type
from agents_session_metadata.errors import SessionNotFoundError
from agents_session_metadata.history.rewind import Cut
from agents_session_metadata.query.filters import Where
from agents_session_metadata.query.ordering import Position
from agents_session_metadata.query.pages import OnCorrupt
from agents_session_metadata.text import quoted
from agents_session_metadata.transfer.retention import delete_matching, expired, sparing_paused
from agents_session_metadata.transfer.transfer import BATCH, Import, OnConflict, fork, read_records
from agents_session_metadata.types import JSONValue
from agents_session_metadata.values import is_text

from .part import CatalogPart
from .questions import LONGEST_PAGE

if TYPE_CHECKING:
    from agents_session_metadata.session import SQLAlchemyMetadataSession


class Moving(CatalogPart):
    async def delete_sessions(
        self,
        where: Where | None = None,
        *,
        inactive_for: timedelta | None = None,
        paused_for: timedelta = timedelta(days=90),
        dry_run: bool = False,
        batch_size: int = 500,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Delete matching sessions with their messages and metadata, in short transactions.

        Each transaction checks filter and activity again under its locks, and skips sessions that
        become active in the meantime. After a crash, run it again. Reading a session and writing
        its metadata are not activity.

        A session is skipped, with a warning in the log, if a key of the filter has a value that
        does not match its search key, for example because it was changed with SQL.

        ```python
        where = {"pinned": {"$ne": True}}
        await catalog.delete_sessions(where, inactive_for=timedelta(days=30))
        ```

        Args:
            where: A filter. It is optional if `inactive_for` is given or the catalog is scoped.
                A filter that holds for every session, such as `{"$and": [{}]}`, counts as none.
            inactive_for: Delete only sessions that have been inactive for at least this time. With
                `timedelta(0)`, age does not matter, and sessions whose time lies in the future are
                deleted too.
            paused_for: Skip sessions whose run was paused within this time or is claimed, even if
                they match. With `timedelta(0)`, they are deleted like all others.
            dry_run: Count the sessions and delete nothing.
            batch_size: The number of sessions per transaction, 1 to 1,000.
            progress: Called after each transaction with the number of deleted sessions so far.

        Returns:
            The number of deleted sessions, or of sessions that would be deleted.

        Raises:
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If `inactive_for` or `paused_for` is not a timedelta.
            ValueError: If there is neither a filter nor an age, an age is negative, or
                `batch_size` is out of range.
        """
        condition = self._store.condition(where)
        if inactive_for is None and condition.constant:
            raise ValueError(
                "delete_sessions needs a filter with a condition, or inactive_for; "
                "it does not delete everything"
            )
        if type(batch_size) is not int or not 1 <= batch_size <= LONGEST_PAGE:
            raise ValueError(
                f"batch_size must be between 1 and {LONGEST_PAGE}, got {quoted(batch_size)}"
            )
        condition = expired(condition, inactive_for)
        condition = await sparing_paused(self._store, condition, paused_for)
        if dry_run:
            counts = await self._scalars(lambda queries: queries.count(condition))
            return int(counts[0])
        return await delete_matching(
            self._store, condition, batch_size=batch_size, progress=progress
        )

    async def fork_session(
        self,
        session_id: str,
        new_id: str | None = None,
        *,
        metadata: Mapping[str, JSONValue] | None = None,
        before: int | None = None,
    ) -> SQLAlchemyMetadataSession:
        """Copy a session's history and metadata, in one transaction.

        The metadata of the copy contains the id of this session under `forked_from`, and `before`,
        if it is given, under `forked_before`. A copy of a copy contains only its direct original.

        A history written through `EncryptedSession` cannot be read under another id: its key is
        derived from the id.

        Args:
            session_id: The session to copy.
            new_id: The id of the copy; random by default.
            metadata: Metadata to set in the copy.
            before: The `item_id` of the first item that is not copied; by default all items are
                copied.

        Returns:
            The copy.

        Raises:
            InvalidMetadataError: If a key or value cannot be stored.
            MetadataLimitError: If a limit is exceeded.
            ScopeError: If the metadata contradicts the scope.
            SessionExistsError: If the new id is in use.
            SessionNotFoundError: If the session does not exist.
            SessionPausedError: If the session has a paused run.
            TablesMissingError: If tables are missing and `create_tables` is off.
            TypeError: If an id is not a string, or `before` not an integer.
            ValueError: If the new id is not valid for metadata, if `metadata` contradicts
                `forked_from` or `forked_before`, or if the copy cannot end before that item, as in
                `SQLAlchemyMetadataSession.rewind`.
        """
        name = str(uuid.uuid4()) if new_id is None else new_id
        check_id_type(session_id)
        cut = None if before is None else Cut(before=before)
        if not is_text(session_id):
            raise SessionNotFoundError(session_id)
        work = fork(self._store, session_id, name, metadata or {}, cut)
        await self._store.database.write(work)
        return self.session(name)

    async def export_sessions(
        self, where: Where | None = None, *, on_corrupt: OnCorrupt | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Iterate over matching sessions as JSON records.

        A record contains the id, times, metadata and items of a session at one moment, and the
        version of the format. An encrypted history stays encrypted.

        Args:
            where: A filter; all sessions by default.
            on_corrupt: Called with a `CorruptMetadataError` for each stored value that is
                not valid JSON, instead of raising it; the session is left out.

        Yields:
            The records, for `import_sessions`.

        Raises:
            CorruptMetadataError: If a stored value is not valid JSON, without `on_corrupt`.
            InvalidFilterError: If the filter is invalid.
            TablesMissingError: If tables are missing and `create_tables` is off.
        """
        condition = self._condition(where)
        after: Position | None = None
        size = 1
        while True:
            read = partial(read_records, self._store, condition, after, size)
            found, records = await self._store.database.read_snapshot(read)
            if records is None:
                size = len(found) // 2
                continue
            for each, record in zip(found, records, strict=True):
                each.checked(on_corrupt)
                if not each.errors:
                    yield record
            if len(found) < size:
                return
            after, size = found[-1].position, min(2 * size, BATCH)

    async def import_sessions(
        self,
        records: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
        on_conflict: OnConflict = "error",
        *,
        on_invalid: Callable[[Exception], object] | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Write records of `export_sessions`, from this or any other database.

        Records are written in batches. An invalid record, a conflict or a database error stops the
        import: the error contains the position of the record, and the records before it are
        written. A database error, such as for a record that is too large for the server, is raised
        as SQLAlchemy raises it, with the position in `detail`.

        Args:
            records: The records.
            on_conflict: What to do if a session exists: stop with an error, skip the record, or
                replace the session.
            on_invalid: Called with the error of each record that cannot be written. The record is
                skipped and the import continues. Without it, the error is raised.
            progress: Called after each transaction with the number of processed records so far.

        Returns:
            The number of sessions written.

        Raises:
            InvalidMetadataError: If a record, or metadata in it, is invalid.
            MetadataLimitError: If metadata exceeds a limit.
            ScopeError: If metadata contradicts the scope.
            SessionExistsError: If a session exists and `on_conflict` is `"error"`.
            SessionNotFoundError: If a session to replace exists outside the scope.
            TablesMissingError: If tables are missing and `create_tables` is off.
            ValueError: If an id is not valid for metadata, or `on_conflict` is not one of the three
                values.
        """
        if on_conflict not in get_args(OnConflict):
            raise ValueError(
                f"on_conflict must be 'error', 'skip' or 'replace', got {quoted(on_conflict)}"
            )
        importing = Import(
            self._store,
            on_conflict,
            ensure_ascii=self._session_arguments["ensure_ascii"],
            on_invalid=on_invalid,
            progress=progress,
        )
        return await importing.run(records)

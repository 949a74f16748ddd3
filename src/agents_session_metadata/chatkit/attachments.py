"""Attachments of threads, and of threads that do not exist yet."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, cast

from chatkit.store import TContext
from chatkit.types import Attachment
from pydantic import TypeAdapter
from sqlalchemy import Connection

from agents_session_metadata.core.rows import id_problem
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.threads import rows as thread_rows
from agents_session_metadata.threads.items import exists, rows_of
from agents_session_metadata.transfer.retention import check_age, moment_before
from agents_session_metadata.values import search_key

from .base import StorePart, check_id, missing, run_read, run_write, stored_text

_PURGED_AT_ONCE = 500
_ATTACHMENT: TypeAdapter[Any] = TypeAdapter(Attachment)


class Attachments(StorePart[TContext]):
    async def save_attachment(self, attachment: Attachment, context: TContext) -> None:
        """Create or replace an attachment.

        An attachment stores the values of the scope, because it is uploaded before the thread
        exists. An attachment with a `thread_id` belongs to whoever the thread belongs to, and is
        deleted with it.

        Args:
            attachment: The attachment.
            context: The request context.

        Raises:
            NotFoundError: If its id belongs to another user, or the thread does not exist.
            ValueError: If its id is empty, too long, or not UTF-8 without NUL.
        """
        store = self._within(context)._store
        rows = rows_of(store)
        check_id("attachment", attachment.id)
        thread_id = attachment.thread_id
        if thread_id is not None and id_problem(thread_id) is not None:
            raise missing("thread", thread_id)
        owner = json.dumps(store.scope.values, sort_keys=True)
        given = thread_rows.Attachment(attachment.id, thread_id, owner, stored_text(attachment))

        def write(connection: Connection, queries: Queries) -> None:
            if thread_id is not None and not store.lock(connection, thread_id):
                raise missing("thread", thread_id)
            stored = rows.put_attachment(connection, given)
            if not _admits(store, connection, queries, stored):
                raise missing("attachment", attachment.id)
            session_id = stored.session_id if thread_id is None else thread_id
            rows.update_attachment(connection, given._replace(session_id=session_id))

        await run_write(store, write)

    async def load_attachment(self, attachment_id: str, context: TContext) -> Attachment:
        """An attachment by its id.

        Args:
            attachment_id: The id.
            context: The request context.

        Returns:
            The attachment.

        Raises:
            NotFoundError: If there is none in the scope.
        """
        store = self._within(context)._store

        def read(connection: Connection, queries: Queries) -> thread_rows.Attachment | None:
            found = rows_of(store).read_attachment(connection, attachment_id)
            return found if found and _admits(store, connection, queries, found) else None

        found = await run_read(store, read) if id_problem(attachment_id) is None else None
        if found is None:
            raise missing("attachment", attachment_id)
        return cast("Attachment", _attachment(found))

    async def delete_attachment(self, attachment_id: str, context: TContext) -> None:
        """Delete the record of an attachment.

        Args:
            attachment_id: The id.
            context: The request context.

        Raises:
            NotFoundError: If there is none in the scope.
        """
        store = self._within(context)._store
        rows = rows_of(store)

        def write(connection: Connection, queries: Queries) -> bool:
            found = rows.lock_attachment(connection, attachment_id)
            if found is None or not _admits(store, connection, queries, found):
                return False
            rows.delete_attachments(connection, [attachment_id])
            return True

        if id_problem(attachment_id) is not None or not await run_write(store, write):
            raise missing("attachment", attachment_id)

    async def purge_attachments(self, *, older_than: timedelta) -> list[Attachment]:
        """Delete the records of attachments that were never sent with a message.

        It takes no request context and includes all users in the catalog's scope. Delete the files
        of the returned attachments.

        Args:
            older_than: The minimum age of the attachments; `timedelta(0)` deletes all.

        Returns:
            The attachments that were deleted.

        Raises:
            TypeError: If `older_than` is not a timedelta.
            ValueError: If it is negative.
        """
        check_age("older_than", older_than)
        before = moment_before(older_than)
        if before is None:
            return []
        limit = before if older_than else None
        store = self._catalog._store
        rows = rows_of(store)
        purged: list[Attachment] = []
        after = ""
        while True:

            def delete(connection: Connection, _: Queries) -> tuple[list[Any], dict[str, Any]]:
                found = rows.lock_unattached(connection, limit, after, _PURGED_AT_ONCE)  # noqa: B023
                read = {
                    each.attachment_id: _attachment(each)
                    for each in found
                    if _was_saved_in(store, each)
                }
                if read:
                    rows.delete_attachments(connection, list(read))
                return found, read

            found, read = await run_write(store, delete)
            purged += read.values()
            if len(found) < _PURGED_AT_ONCE:
                break
            after = found[-1].attachment_id
        return purged


def _admits(
    store: ScopedStore,
    connection: Connection,
    queries: Queries,
    attachment: thread_rows.Attachment,
) -> bool:
    """Checks the scope of the thread that the attachment was sent in.

    An attachment that was not sent belongs to the scope that it was saved in.
    """
    if attachment.session_id is None:
        return _was_saved_in(store, attachment)
    return exists(store, connection, queries, attachment.session_id)


def _was_saved_in(store: ScopedStore, attachment: thread_rows.Attachment) -> bool:
    values = json.loads(attachment.owner)
    return all(
        key in values and search_key(values[key]) == search_key(value)
        for key, value in store.scope.values.items()
    )


def _attachment(row: thread_rows.Attachment) -> Any:
    return _ATTACHMENT.validate_json(row.data)

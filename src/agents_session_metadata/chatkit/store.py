"""The class `CatalogStore`."""

from __future__ import annotations

import inspect
import json
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, cast

from agents.models.fake_id import FAKE_RESPONSES_ID
from chatkit.store import NotFoundError, Store, StoreItemType, TContext
from chatkit.types import Attachment, Page, ThreadItem, ThreadMetadata
from pydantic import BaseModel, TypeAdapter

from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.core.rows import id_problem
from agents_session_metadata.core.store import check_limit
from agents_session_metadata.errors import (
    InvalidCursorError,
    SessionExistsError,
    SessionNotFoundError,
)
from agents_session_metadata.keys import CHATKIT, TITLE
from agents_session_metadata.query.cursors import seal, unseal
from agents_session_metadata.session import SQLAlchemyMetadataSession
from agents_session_metadata.text import quoted
from agents_session_metadata.transfer.retention import check_age, moment_before
from agents_session_metadata.types import ItemInfo, JSONValue, Metadata, SessionInfo

from . import transactions
from .changes import KnownThreads, OwnItems, explicit, state_of, thread_of, write_changes

LONGEST_PAGE = 100
"""The maximum number of threads or items per page."""
_PREFIXES: dict[StoreItemType, str] = {
    "thread": "thr",
    "message": "msg",
    "tool_call": "tc",
    "workflow": "wf",
    "task": "tsk",
    "attachment": "atc",
    "sdk_hidden_context": "shcx",
}
_ITEM: TypeAdapter[Any] = TypeAdapter(ThreadItem)
_ATTACHMENT: TypeAdapter[Any] = TypeAdapter(Attachment)


class CatalogStore(Store[TContext]):
    """An implementation of `chatkit.store.Store` in the database of a catalog.

    For a thread, an item or an attachment outside the scope, each method behaves as if it did not
    exist. If a thread does not exist, methods raise ChatKit's `NotFoundError`.

    Use one store per application, not one per request: it keeps the loaded state of each thread
    object, and `save_thread` writes the difference.

    Args:
        catalog: The catalog.
        scope: Called with ChatKit's request context; returns the values that the caller's sessions
            have, such as `{"owner_id": context.user_id}`. It is not awaited. `None`, which must be
            passed explicitly, serves every session of the catalog to every caller.
        all_sessions: Whether `load_threads` also lists sessions that ChatKit did not create.

    Raises:
        TypeError: If `catalog` is not a `SessionCatalog`, or `scope` is not callable.
    """

    def __init__(
        self,
        catalog: SessionCatalog,
        *,
        scope: Callable[[TContext], Mapping[str, JSONValue]] | None,
        all_sessions: bool = False,
    ) -> None:
        if not isinstance(catalog, SessionCatalog):
            raise TypeError(f"catalog must be a SessionCatalog, got {type(catalog).__name__}")
        if scope is not None and not callable(scope):
            raise TypeError(f"scope must be a function or None, got {type(scope).__name__}")
        self._catalog = catalog
        self._scope = scope
        self._where: Any = None if all_sessions else {CHATKIT: {"$exists": True}}
        self._known = KnownThreads()
        self._own_items = OwnItems()

    def session(self, thread: ThreadMetadata, context: TContext) -> SQLAlchemyMetadataSession:
        """The Agents SDK session of a thread, for `Runner.run`. No I/O.

        It never creates the session: if the thread was deleted in the meantime, `add_items` raises
        `SessionNotFoundError`.

        Returns:
            The session, restricted to the scope.
        """
        return self._within(context).session(thread.id, must_exist=True)

    # ---- ids ----

    def generate_thread_id(self, context: TContext) -> str:  # noqa: ARG002  # ChatKit's signature
        """A new id for a thread, with 122 random bits."""
        return _new_id("thread")

    def generate_item_id(
        self,
        item_type: StoreItemType,
        thread: ThreadMetadata,  # noqa: ARG002  # ChatKit's signature
        context: TContext,  # noqa: ARG002
    ) -> str:
        """A new id for an item, with 122 random bits."""
        return _new_id(item_type)

    # ---- threads ----

    async def load_thread(self, thread_id: str, context: TContext) -> ThreadMetadata:
        """A thread by its id.

        Returns:
            The thread. `created_at` is that of the session, in UTC.

        Raises:
            NotFoundError: If there is no such session.
        """
        catalog = self._within(context)
        info = await catalog.get_session(thread_id, keys=[TITLE, CHATKIT], on_corrupt=_leave_out)
        if info is None:
            raise _missing("thread", thread_id)
        self._own_items.begin(thread_id)
        return self._thread(info)

    async def save_thread(self, thread: ThreadMetadata, context: TContext) -> None:
        """Create a thread, or write what has changed since this object was loaded or saved.

        Other fields keep changes that were made in the meantime, such as a title that the user
        edits during a streamed answer. For an object that this store has not loaded, the fields
        that were set explicitly are written. A deleted thread is not created again.

        Raises:
            InvalidMetadataError: If its metadata is not JSON.
            MetadataLimitError: If its title or its metadata is too long.
            NotFoundError: If it was deleted, or its id belongs to another user.
            ValueError: If its id is not valid for a session.
        """
        catalog = self._within(context)
        after, before = state_of(thread), self._known.state_of(thread)
        if before is None and not self._known.was_created(catalog._store.scope, thread.id):
            created: Metadata = {CHATKIT: {}}
            write_changes(created, {}, after)
            try:
                await catalog.create_session(thread.id, metadata=created)
            except SessionExistsError:
                pass
            else:
                self._known.remember(thread, created_in=catalog._store.scope)
                return
        if before is None:
            before, after = {}, explicit(thread, after)

        def change(metadata: Metadata) -> None:
            write_changes(metadata, before, after)

        try:
            if after == before:
                await catalog.set_metadata(thread.id, {}, must_exist=True)
            else:
                await catalog.edit_metadata(thread.id, change, must_exist=True)
        except SessionNotFoundError:
            raise _missing("thread", thread.id) from None
        self._known.remember(thread)

    async def load_threads(
        self, limit: int, after: str | None, order: str, context: TContext
    ) -> Page[ThreadMetadata]:
        """A page of at most `limit` threads, up to 100, by their last activity.

        `after` is that of the previous page, for the same order and scope. With the order `desc`,
        the newest activity comes first.

        Raises:
            InvalidCursorError: If `after` is damaged or belongs to another question.
            ValueError: If `limit` is less than 1, or `order` is neither of the two.
        """
        catalog = self._within(context)
        page = await catalog.list_sessions(
            self._where,
            order_by="-updated_at" if _is_descending(order) else "updated_at",
            limit=_checked(limit),
            cursor=after,
            keys=[TITLE, CHATKIT],
            on_corrupt=_leave_out,
        )
        threads = [self._thread(info) for info in page.sessions]
        return Page(data=threads, has_more=page.next_cursor is not None, after=page.next_cursor)

    async def delete_thread(self, thread_id: str, context: TContext) -> None:
        """Delete a thread: its items, attachments, history and metadata.

        Raises:
            NotFoundError: If there is no such session.
        """
        if not await self._within(context).delete_session(thread_id):
            raise _missing("thread", thread_id)

    # ---- items ----

    async def load_thread_items(
        self, thread_id: str, after: str | None, limit: int, order: str, context: TContext
    ) -> Page[ThreadItem]:
        """A page of at most `limit` items of a thread, up to 100, in the order of their addition.

        `after` is that of the previous page, for the same thread, order and scope. With the order
        `desc`, the newest come first.

        Raises:
            InvalidCursorError: If `after` is damaged or belongs to another question.
            NotFoundError: If there is no such thread.
            ValueError: If `limit` is less than 1, or `order` is neither of the two.
        """
        store = self._within(context)._store
        most, descending = _checked(limit), _is_descending(order)
        question = ["thread items", thread_id, order, store.scope.condition.encoded()]
        position = None if after is None else _position(after, question)
        found = None
        if id_problem(thread_id) is None:
            found = await transactions.read_items(
                store, thread_id, position, most + 1, descending=descending
            )
        if found is None:
            raise _missing("thread", thread_id)
        page: Page[Any] = Page(data=[_item(thread_id, each.data) for each in found[:most]])
        if len(found) > most:
            page.has_more = True
            page.after = seal(str(found[most - 1].position).encode(), question)
        return page

    async def add_thread_item(self, thread_id: str, item: ThreadItem, context: TContext) -> None:
        """Append an item to a thread, which becomes the most recently active one.

        An item with the same id is replaced where it stands. Models that are not called by OpenAI's
        Responses API give all items the id `__fake_id__`: the store gives each of them a new one.

        Raises:
            NotFoundError: If there is no such thread.
            ValueError: If the item's id is empty, too long, or not UTF-8 without NUL.
        """
        if item.id == FAKE_RESPONSES_ID:
            # A copy: ChatKit's server still has to find the item by its id.
            item = item.model_copy(update={"id": _new_id("message")})
        await self._write_item(thread_id, item, context, activity=True)
        self._own_items.add(thread_id, item.id)

    async def save_item(self, thread_id: str, item: ThreadItem, context: TContext) -> None:
        """Replace an item where it stands, or append it.

        Raises:
            NotFoundError: If there is no such thread.
            ValueError: If the item's id is empty, too long, or not UTF-8 without NUL.
        """
        await self._write_item(thread_id, item, context, activity=False)

    async def load_item(self, thread_id: str, item_id: str, context: TContext) -> ThreadItem:
        """One item of a thread.

        Raises:
            NotFoundError: If there is no such thread or item.
        """
        store = self._within(context)._store
        found = None
        if id_problem(thread_id) is None and id_problem(item_id) is None:
            found = await transactions.read_item(store, thread_id, item_id)
        if found is None:
            raise _missing("item", item_id)
        self._own_items.add(thread_id, item_id)
        return cast("ThreadItem", _item(thread_id, found.data))

    async def delete_thread_item(self, thread_id: str, item_id: str, context: TContext) -> None:
        """Delete an item of a thread, if the thread has it.

        When all items that answer the thread's last user message are deleted, as in a retry, the
        Agents SDK session is rewound to before that message. The history then contains neither the
        message nor its answer, nor items that other programs have added since. Deleting an item
        that the same request has added or loaded by its id, such as a progress item or a widget,
        does not rewind the session while a run goes on, nor does deleting a user message.

        A retry deletes the newest item first. If the session cannot be rewound, because a run is
        paused or the answer in the history is encrypted, the newest item can only be deleted by a
        request that has added it or loaded it by its id, and the session is not rewound. So a retry
        is refused before anything is deleted.

        Raises:
            NotFoundError: If there is no such thread.
            SessionPausedError: If a run waits, and the item is the newest one, of an earlier
                request.
            ValueError: If the answer in the history is encrypted, and the item is the newest one,
                of an earlier request. Or if rewinding would separate items that belong together.
        """
        store = self._within(context)._store
        if id_problem(thread_id) is not None:
            raise _missing("thread", thread_id)
        if id_problem(item_id) is not None:
            item_id = " "  # Nobody has it; the thread is looked for all the same.
        is_own = self._own_items.has(thread_id, item_id)
        try:
            await transactions.delete_item(store, thread_id, item_id, is_own=is_own)
        except SessionNotFoundError:
            raise _missing("thread", thread_id) from None

    async def rewind_before(
        self, thread: ThreadMetadata, item: ThreadItem, context: TContext
    ) -> list[ItemInfo]:
        """Remove what the Agents SDK session has stored since a user message was added.

        Call it at the beginning of `respond`: if an answer failed before it had an item, ChatKit's
        retry deletes nothing that answers the user message, but the history already contains the
        message. It does nothing if the thread has an item after the message, or if it is not
        certain where the message is in the history: after compaction, if its text there is another
        one, if the same message was sent twice in a row, or if the history is encrypted.

        Args:
            thread: The thread.
            item: The user message.
            context: The request context.

        Returns:
            The items that were removed from the history, oldest first.

        Raises:
            NotFoundError: If there is no such thread, or it has no such user message.
            SessionPausedError: If a run waits, and its history would have to be cut.
            ValueError: If an earlier part of the history is encrypted, or if the cut would separate
                items that belong together.
        """
        store = self._within(context)._store
        if id_problem(thread.id) is not None or id_problem(item.id) is not None:
            raise _missing("item", item.id)
        try:
            return await transactions.rewind_before(store, thread.id, item.id)
        except LookupError:
            raise _missing("item", item.id) from None

    # ---- attachments ----

    async def save_attachment(self, attachment: Attachment, context: TContext) -> None:
        """Create or replace an attachment.

        An attachment stores the values of the scope, because it is uploaded before the thread
        exists. An attachment with a `thread_id` has the owner of its thread, and is
        deleted with it.

        Raises:
            NotFoundError: If its id belongs to another user, or the thread does not exist.
            ValueError: If its id is empty, too long, or not UTF-8 without NUL.
        """
        store = self._within(context)._store
        _check_id("attachment", attachment.id)
        thread_id = attachment.thread_id
        if thread_id is not None and id_problem(thread_id) is not None:
            raise _missing("thread", thread_id)
        data = _stored_text(attachment)
        try:
            saved = await transactions.save_attachment(store, attachment.id, thread_id, data)
        except SessionNotFoundError as error:
            raise _missing("thread", error.session_id) from None
        if not saved:
            raise _missing("attachment", attachment.id)

    async def load_attachment(self, attachment_id: str, context: TContext) -> Attachment:
        """An attachment by its id.

        Raises:
            NotFoundError: If there is none in the scope.
        """
        store, found = self._within(context)._store, None
        if id_problem(attachment_id) is None:
            found = await transactions.read_attachment(store, attachment_id)
        if found is None:
            raise _missing("attachment", attachment_id)
        return cast("Attachment", _ATTACHMENT.validate_json(found))

    async def delete_attachment(self, attachment_id: str, context: TContext) -> None:
        """Delete the record of an attachment.

        Raises:
            NotFoundError: If there is none in the scope.
        """
        store, deleted = self._within(context)._store, False
        if id_problem(attachment_id) is None:
            deleted = await transactions.delete_attachment(store, attachment_id)
        if not deleted:
            raise _missing("attachment", attachment_id)

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
        purged = await transactions.purge_attachments(self._catalog._store, limit)
        return [_ATTACHMENT.validate_json(each) for each in purged]

    # ---- helpers ----

    def _within(self, context: TContext) -> SessionCatalog:
        if self._scope is None:
            return self._catalog
        values: Any = self._scope(context)
        if inspect.isawaitable(values):
            if inspect.iscoroutine(values):
                values.close()
            raise TypeError("scope must be a plain function; its result is not awaited")
        return self._catalog.scoped(values)

    def _thread(self, info: SessionInfo) -> ThreadMetadata:
        thread = thread_of(info)
        self._known.remember(thread)
        return thread

    async def _write_item(
        self, thread_id: str, item: ThreadItem, context: TContext, *, activity: bool
    ) -> None:
        store = self._within(context)._store
        if id_problem(thread_id) is not None:
            raise _missing("thread", thread_id)
        _check_id("item", item.id)
        data = _stored_text(item)
        try:
            await transactions.write_item(
                store, thread_id, item.id, item.type, data, activity=activity
            )
        except SessionNotFoundError:
            raise _missing("thread", thread_id) from None


def _item(thread_id: str, data: str) -> Any:
    """Sets the thread's id, because the items of a copied thread have that of the original."""
    fields = json.loads(data)
    fields["thread_id"] = thread_id
    for attachment in fields.get("attachments") or ():
        attachment["thread_id"] = thread_id
    return _ITEM.validate_python(fields)


def _position(cursor: str, question: list[Any]) -> int:
    body = unseal(cursor, question)
    # No position has more digits.
    if not re.fullmatch(rb"[0-9]{1,18}", body):
        raise InvalidCursorError
    return int(body)


def _leave_out(_: Exception) -> None:
    """Leaves out a stored value that is not JSON, so that its thread is still listed."""


def _checked(limit: int) -> int:
    check_limit(limit)
    return min(limit, LONGEST_PAGE)


def _is_descending(order: str) -> bool:
    if order not in ("asc", "desc"):
        raise ValueError(f"order must be 'asc' or 'desc', got {quoted(order)}")
    return order == "desc"


def _stored_text(model: BaseModel) -> str:
    # Not as ChatKit answers clients, which would leave out metadata.
    return json.dumps(model.model_dump(mode="json", by_alias=True), separators=(",", ":"))


def _new_id(kind: StoreItemType) -> str:
    return f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"


def _missing(kind: str, name: str) -> NotFoundError:
    return NotFoundError(f"{kind} {quoted(name)} does not exist")


def _check_id(kind: str, name: str) -> None:
    problem = id_problem(name)
    if problem is not None:
        raise ValueError(f"{kind} id {quoted(name)} {problem}")

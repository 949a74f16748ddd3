"""The class `CatalogStore`."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

from agents.models.fake_id import FAKE_RESPONSES_ID
from chatkit.store import NotFoundError, Store, StoreItemType, TContext
from chatkit.types import Attachment, Page, ThreadItem, ThreadMetadata
from pydantic import BaseModel, TypeAdapter

from agents_session_metadata import (
    FeedbackKind,
    JSONValue,
    Metadata,
    SessionCatalog,
    SessionExistsError,
    SessionInfo,
    SessionNotFoundError,
    SQLAlchemyMetadataSession,
)
from agents_session_metadata.keys import CHATKIT, TITLE
from agents_session_metadata.text import escaped, quoted
from agents_session_metadata.threads import transactions

from .thread_fields import KnownThreads, assigned, state_of, thread_of, write_changes

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


class OwnItems:
    """The items that each request has added, or loaded by their ids.

    A server answers each request in one task, which begins by loading the thread.
    """

    def __init__(self) -> None:
        self._items: weakref.WeakKeyDictionary[asyncio.Task[Any], set[tuple[str, str]]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def _own(self) -> set[tuple[str, str]]:
        task: Any = asyncio.current_task()
        return self._items.setdefault(task, set())

    def begin(self, thread_id: str) -> None:
        """Forgets the items of a thread, because a task may answer several requests in turn."""
        self._own.difference_update([each for each in self._own if each[0] == thread_id])

    def add(self, thread_id: str, item_id: str) -> None:
        self._own.add((thread_id, item_id))

    def has(self, thread_id: str, item_id: str) -> bool:
        return (thread_id, item_id) in self._own


class CatalogStore(Store[TContext]):
    """An implementation of `chatkit.store.Store` in the database of a catalog.

    For a thread, an item or an attachment outside the scope, each method behaves as if it did not
    exist: it raises ChatKit's `NotFoundError`, or if it deletes, does nothing. Ids of items and
    attachments have 1 to 255 characters of UTF-8 without NUL; other ids raise `ValueError`.

    Use one store per application, not one per request: it keeps the loaded state of each thread
    object, and `save_thread` writes the difference.

    Args:
        catalog: The catalog.
        scope: Called with ChatKit's request context; returns the values that the caller's sessions
            have, such as `{"owner_id": context.user_id}`, or a catalog with the same tables, such
            as one of `catalog.readable`, where a write raises `ScopeError`. It is not awaited.
            `None`, which must be passed explicitly, serves every session of the catalog to every
            caller.
        all_sessions: Whether `load_threads` also lists sessions that ChatKit did not create.

    Raises:
        TypeError: If `catalog` is not a `SessionCatalog`, or `scope` is not callable.
    """

    def __init__(
        self,
        catalog: SessionCatalog,
        *,
        scope: Callable[[TContext], Mapping[str, JSONValue] | SessionCatalog] | None,
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
        """A new id for a thread, with 80 random bits. It sorts after earlier ones."""
        return _new_id("thread")

    def generate_item_id(
        self,
        item_type: StoreItemType,
        thread: ThreadMetadata,  # noqa: ARG002  # ChatKit's signature
        context: TContext,  # noqa: ARG002
    ) -> str:
        """A new id for an item, with 80 random bits. It sorts after earlier ones."""
        return _new_id(item_type)

    # ---- threads ----

    async def load_thread(self, thread_id: str, context: TContext) -> ThreadMetadata:
        """A thread by its id.

        For a session that ChatKit did not create, `created_at` is that of the session, in UTC.
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
        if before is None and not self._known.was_created(catalog.scope, thread.id):
            created: Metadata = {CHATKIT: {}}
            write_changes(created, {}, after)
            try:
                await catalog.create_session(thread.id, metadata=created)
            except SessionExistsError:
                pass
            else:
                self._known.remember(thread, created_in=catalog.scope)
                return
        if before is None:
            before = assigned(thread)

        def change(metadata: Metadata) -> None:
            write_changes(metadata, before, after)

        with _not_found():
            if after == before:
                await catalog.set_metadata(thread.id, {}, must_exist=True)
            else:
                await catalog.edit_metadata(thread.id, change, must_exist=True)
        self._known.remember(thread)

    async def load_threads(
        self, limit: int, after: str | None, order: str, context: TContext
    ) -> Page[ThreadMetadata]:
        """A page of at most `limit` threads, up to 100, by their last activity.

        `after` is the id of the last thread of the previous page, or a cursor of
        `SessionCatalog.list_sessions`. With the order `desc`, the newest activity comes first.

        Raises:
            InvalidCursorError: If `after` is neither a thread in the scope nor such a cursor.
            ValueError: If `limit` is less than 1, or `order` is neither of the two.
        """
        catalog = self._within(context)
        by = "-updated_at" if _is_descending(order) else "updated_at"
        cursor = None
        if after is not None:
            cursor = await transactions.cursor_after(catalog, after, self._where, by) or after
        page = await catalog.list_sessions(
            self._where,
            order_by=by,
            limit=min(limit, LONGEST_PAGE),
            cursor=cursor,
            keys=[TITLE, CHATKIT],
            on_corrupt=_leave_out,
        )
        return _page([self._thread(info) for info in page.sessions], page.next_cursor is not None)

    async def add_feedback(
        self, thread_id: str, item_ids: list[str], feedback: FeedbackKind, context: TContext
    ) -> None:
        """Store a vote on items, for `ChatKitServer.add_feedback`.

        The newest vote on an item counts. Read votes with `SessionCatalog.feedback`;
        `SessionCatalog.statistics` counts them. They are neither copied nor exported.
        """
        catalog = self._within(context)
        with _not_found():
            await transactions.add_feedback(catalog, thread_id, item_ids, feedback)

    async def delete_thread(self, thread_id: str, context: TContext) -> None:
        """Delete a thread, if it exists: its items, attachments, history and metadata."""
        await self._within(context).delete_session(thread_id)

    # ---- items ----

    async def load_thread_items(
        self, thread_id: str, after: str | None, limit: int, order: str, context: TContext
    ) -> Page[ThreadItem]:
        """A page of at most `limit` items of a thread, up to 100, in the order of their addition.

        `after` is the id of the last item of the previous page. With the order `desc`, the newest
        come first.

        Raises:
            NotFoundError: If the thread has no item `after`.
            ValueError: If `limit` is less than 1, or `order` is neither of the two.
        """
        catalog, most = self._within(context), min(limit, LONGEST_PAGE)
        found = await transactions.read_items(
            catalog, thread_id, after, most, descending=_is_descending(order)
        )
        if found is None:
            raise _missing("thread", thread_id)
        items, has_more = found
        return _page([_item(thread_id, each.data) for each in items], has_more)

    async def add_thread_item(self, thread_id: str, item: ThreadItem, context: TContext) -> None:
        """Append an item to a thread, which becomes the most recently active one.

        Models that are not called by OpenAI's Responses API give all items the id `__fake_id__`:
        the store gives each of them a new one.

        Raises:
            ValueError: If the item's id exists, or the item names another thread.
        """
        if item.id == FAKE_RESPONSES_ID:
            # A copy: ChatKit's server still has to find the item by its id.
            item = item.model_copy(update={"id": _new_id("message")})
        await self._write_item(thread_id, item, context, adds=True)
        self._own_items.add(thread_id, item.id)

    async def save_item(self, thread_id: str, item: ThreadItem, context: TContext) -> None:
        """Replace an item where it stands, or append it.

        Raises:
            ValueError: If the item names another thread.
        """
        await self._write_item(thread_id, item, context, adds=False)

    async def load_item(self, thread_id: str, item_id: str, context: TContext) -> ThreadItem:
        """One item of a thread."""
        found = await transactions.read_item(self._within(context), thread_id, item_id)
        if found is None:
            raise _missing("item", item_id)
        self._own_items.add(thread_id, item_id)
        return cast("ThreadItem", _item(thread_id, found.data))

    async def delete_thread_item(self, thread_id: str, item_id: str, context: TContext) -> None:
        """Delete an item of a thread, if it exists.

        When all items that answer the thread's last user message are deleted, as in a retry, the
        Agents SDK session is rewound to before that message. The history then contains neither the
        message nor its answer, nor items that other programs have added since. Deleting an item
        that the same request has added or loaded by its id does not rewind the session, unless the
        item ends an answer, nor does deleting a user message.

        A retry deletes the newest item first. If the session cannot be rewound, because a run is
        paused or the answer in the history is encrypted, the newest item can only be deleted by a
        request that has added it or loaded it by its id. So a retry is refused before anything is
        deleted.

        Raises:
            SessionPausedError: If a run is paused, as described above.
            ValueError: If the answer is encrypted, as described above, or if rewinding would
                separate items that belong together.
        """
        catalog, is_own = self._within(context), self._own_items.has(thread_id, item_id)
        if await transactions.delete_item(catalog, thread_id, item_id, is_own=is_own):
            self._own_items.begin(thread_id)

    # ---- attachments ----

    async def save_attachment(self, attachment: Attachment, context: TContext) -> None:
        """Create or replace an attachment.

        An attachment stores the values of the scope, because it is uploaded before the thread
        exists. An attachment with a `thread_id` has the owner of its thread, and is deleted with
        it. If its id belongs to another user, `NotFoundError` is raised.
        """
        catalog, data = self._within(context), _stored_text(attachment)
        with _not_found():
            saved = await transactions.save_attachment(
                catalog, attachment.id, attachment.thread_id, data
            )
        if not saved:
            raise _missing("attachment", attachment.id)

    async def load_attachment(self, attachment_id: str, context: TContext) -> Attachment:
        """An attachment by its id."""
        found = await transactions.read_attachment(self._within(context), attachment_id)
        if found is None:
            raise _missing("attachment", attachment_id)
        return cast("Attachment", _ATTACHMENT.validate_json(found))

    async def delete_attachment(self, attachment_id: str, context: TContext) -> None:
        """Delete the record of an attachment, if it exists."""
        await transactions.delete_attachment(self._within(context), attachment_id)

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
        purged = await transactions.purge_attachments(self._catalog, older_than)
        return [_ATTACHMENT.validate_json(each) for each in purged]

    # ---- helpers ----

    def _within(self, context: TContext) -> SessionCatalog:
        if self._scope is None:
            return self._catalog
        scope = self._scope(context)
        return scope if isinstance(scope, SessionCatalog) else self._catalog.scoped(scope)

    def _thread(self, info: SessionInfo) -> ThreadMetadata:
        thread = thread_of(info)
        self._known.remember(thread)
        return thread

    async def _write_item(
        self, thread_id: str, item: ThreadItem, context: TContext, *, adds: bool
    ) -> None:
        catalog, data = self._within(context), _stored_text(item)
        if item.thread_id != thread_id:
            raise ValueError(
                f"the item belongs to thread {quoted(item.thread_id)}, not {quoted(thread_id)}"
            )
        with _not_found():
            await transactions.write_item(catalog, thread_id, item.id, item.type, data, adds=adds)


def _item(thread_id: str, data: str) -> Any:
    """Sets the thread's id, because the items of a copied thread have that of the original."""
    fields = json.loads(data)
    for part in (*(fields.get("attachments") or ()), fields):
        if part.get("thread_id") == fields["thread_id"]:
            part["thread_id"] = thread_id
    return _ITEM.validate_python(fields)


def _page(data: list[Any], has_more: bool) -> Page[Any]:
    return Page(data=data, has_more=has_more, after=data[-1].id if has_more else None)


def _leave_out(_: Exception) -> None:
    """Leaves out a stored value that is not JSON, so that its thread is still listed."""


def _is_descending(order: str) -> bool:
    if order not in ("asc", "desc"):
        raise ValueError(f"order must be 'asc' or 'desc', got {quoted(order)}")
    return order == "desc"


def _stored_text(model: BaseModel) -> str:
    # Not as ChatKit answers clients, which would leave out metadata.
    return json.dumps(model.model_dump(mode="json", by_alias=True), separators=(",", ":"))


def _new_id(kind: StoreItemType) -> str:
    """Begins with the time in microseconds: pages list what is active in the same second by id."""
    return f"{_PREFIXES[kind]}_{time.time_ns() // 1000:014x}{secrets.token_hex(10)}"


@contextmanager
def _not_found() -> Iterator[None]:
    try:
        yield
    except SessionNotFoundError as error:
        raise _missing("thread", error.session_id) from None


def _missing(kind: str, name: str) -> NotFoundError:
    return NotFoundError(f"{kind.capitalize()} {escaped(name)} not found")

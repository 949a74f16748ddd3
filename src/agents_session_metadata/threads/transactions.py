"""Transactions on the items, attachments and votes of threads, for a catalog.

A thread is a session. Its items are what people see; the history is what a model gets. A user
message remembers where the history ended before it, so that a retry can remove the answer to it
from the history.

What writes to a thread raises `SessionNotFoundError` if the catalog does not have the session.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, delete, insert

from agents_session_metadata.core.features import hold
from agents_session_metadata.core.messages import read_history
from agents_session_metadata.errors import SessionNotFoundError
from agents_session_metadata.history.pairs import is_user_message
from agents_session_metadata.history.rewind import Cut, check_not_encrypted, remove_end
from agents_session_metadata.query.conditions import IdIn, check_age, moment_before
from agents_session_metadata.query.details import NO_METADATA
from agents_session_metadata.query.filters import Where
from agents_session_metadata.query.ordering import OrderBy, Ordering, encode_cursor
from agents_session_metadata.query.pages import check_limit, read_sessions
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.text import quoted
from agents_session_metadata.types import FeedbackKind, ItemInfo
from agents_session_metadata.values import id_problem, is_text

from .rows import (
    EPOCH,
    MICROSECOND,
    THREADS,
    USER_MESSAGE,
    AttachmentRow,
    Attachments,
    ItemRow,
    ThreadItems,
    was_saved_with,
)

if TYPE_CHECKING:
    from agents_session_metadata.catalog import SessionCatalog

T = TypeVar("T")

ENDS = frozenset({"assistant_message", "end_of_turn", "sdk_hidden_context"})
"""Kinds of items that are added when an answer has ended, or was interrupted."""
_PURGED_AT_ONCE = 500


async def _read(store: ScopedStore, work: Callable[[Connection], T | None], *ids: str) -> T | None:
    """Returns None if nothing can have one of the ids."""
    if any(id_problem(each) is not None for each in ids):
        return None
    await store.database.ensure(THREADS)
    return await store.database.read(work)


async def _write(
    store: ScopedStore, work: Callable[[Connection], T], session_id: str | None = None
) -> T:
    if session_id is not None and id_problem(session_id) is not None:
        raise SessionNotFoundError(session_id)
    return await store.database.write(work, group=THREADS)


def _check_id(kind: str, name: str) -> None:
    problem = id_problem(name)
    if problem is not None:
        raise ValueError(f"{kind} id {quoted(name)} {problem}")


async def cursor_after(
    catalog: SessionCatalog, session_id: str, where: Where | None, order_by: OrderBy
) -> str | None:
    """Returns the cursor of the page after a session; None if it does not exist."""
    if not is_text(session_id):
        return None
    store, ordering = catalog._store, Ordering.parse(order_by)
    one = store.scope.restrict(IdIn((session_id,)))
    found = await read_sessions(
        store.database, lambda reader: reader.page(one, ordering, limit=1, details=NO_METADATA)
    )
    return encode_cursor(found[0].position, store.condition(where), ordering) if found else None


# ---- items ----


async def read_items(
    catalog: SessionCatalog, session_id: str, after: str | None, limit: int, *, descending: bool
) -> tuple[list[ItemRow], bool] | None:
    """Returns the items after the one with the id `after`, and whether there are more.

    Returns None if that item, or the session, does not exist.
    """
    check_limit(limit)
    store = catalog._store

    def read(connection: Connection) -> tuple[list[ItemRow], bool] | None:
        items, position = ThreadItems(store.database, connection, session_id), None
        if after is not None:
            last = items.get(store, after)
            if last is None:
                return None
            position = last.position
        found = items.page(store, after=position, limit=limit + 1, descending=descending)
        if not found and not store.finds(connection, session_id):
            return None
        return found[:limit], len(found) > limit

    return await _read(store, read, session_id, *([] if after is None else [after]))


async def read_item(catalog: SessionCatalog, session_id: str, item_id: str) -> ItemRow | None:
    store = catalog._store

    def read(connection: Connection) -> ItemRow | None:
        return ThreadItems(store.database, connection, session_id).get(store, item_id)

    return await _read(store, read, session_id, item_id)


async def write_item(
    catalog: SessionCatalog, session_id: str, item_id: str, kind: str, data: str, *, adds: bool
) -> None:
    """Appends an item to a thread, or replaces the one with its id.

    With `adds`, the id must be free, and the session becomes the most recently active one.
    """
    _check_id("item", item_id)
    store = catalog._store

    def write(connection: Connection) -> None:
        store.require(connection, session_id)
        items = ThreadItems(store.database, connection, session_id)
        if items.get(store, item_id) is None:
            items.append(item_id, kind, data)
        elif adds:
            raise ValueError(f"the thread already has an item {quoted(item_id)}; use save_item")
        else:
            items.replace(item_id, kind, data)
        if adds:
            store.rows.touch(connection, session_id)

    await _write(store, write, session_id)


async def delete_item(
    catalog: SessionCatalog, session_id: str, item_id: str, *, is_own: bool
) -> bool:
    """Deletes an item, and rewinds the history if that removes an answer.

    `is_own` means that the same request has added the item or loaded it by its id, as it does with
    a sign of progress while an agent runs. A retry has not: it deletes the items of an answer one
    by one, the newest first, and the last of them takes the answer, and the message that it
    answers, out of the history. If the history cannot be rewound, the first is refused, so that
    all stay.

    Returns True if the item ended an answer, so that what is deleted next belongs to the answer.
    """
    if id_problem(session_id) is not None or id_problem(item_id) is not None:
        return False
    store = catalog._store

    def run(connection: Connection) -> bool:
        if not store.lock(connection, session_id):
            return False
        items = ThreadItems(store.database, connection, session_id)
        item = items.get(store, item_id)
        if item is None:
            return False
        held = hold(store.database, connection, session_id)
        asked = items.newest(USER_MESSAGE, item.position)
        newest = items.newest()
        if not is_own and newest is not None and newest.position == item.position:
            if held is not None:
                raise held
            if asked is not None:
                end = asked.history_end or 0
                history = read_history(store.database, connection, session_id, end)
                check_not_encrypted(each.item for each in history)
        items.delete(item_id)
        ended = item.kind in ENDS
        # Nothing that answers the message before a user message was deleted with it. And a paused
        # run needs its history.
        if asked is None or held is not None or item.kind == USER_MESSAGE or (is_own and not ended):
            return ended
        newest = items.newest()
        if newest is not None and newest.position == asked.position:
            first = _message_of(asked, read_history(store.database, connection, session_id))
            if first is not None:
                remove_end(store, session_id, Cut(before=first), connection)
        return ended

    return await _write(store, run)


def _message_of(question: ItemRow, history: list[ItemInfo]) -> int | None:
    """Returns the item of the history that a user message is.

    It is the newest one since then with the same text, or the newest one, because an application
    can pass another text to the agent.
    """
    end = question.history_end
    if end not in [each.item_id for each in history]:
        end = 0  # There was none, or the history was replaced since, by compaction for example.
    # Another tab or another program may have written in the meantime.
    since = [each for each in history if each.item_id > end and is_user_message(each.item)]
    text = _text(json.loads(question.data).get("content"))
    asked = [each for each in since if _text(each.item.get("content")) == text] or since
    if not asked:
        return None
    first = asked[-1].item_id
    later: Iterator[Any] = (each.item for each in history if each.item_id > first)
    # A summary stands for everything before it.
    is_replaced = any(isinstance(item, dict) and item.get("type") == "compaction" for item in later)
    return None if is_replaced else first


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    return "".join(
        f"@{part['text']}" if part.get("type") == "input_tag" else part["text"]
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    )


# ---- votes ----


async def add_feedback(
    catalog: SessionCatalog, session_id: str, item_ids: Sequence[str], kind: FeedbackKind
) -> None:
    """Replaces the votes on items by new ones."""
    for item_id in item_ids:
        _check_id("item", item_id)
    store = catalog._store
    table = store.database.tables.group(THREADS).tables[2]
    now = (datetime.now(timezone.utc) - EPOCH) // MICROSECOND
    rows = [
        {"session_id": session_id, "item_id": item_id, "kind": kind, "voted_at": now}
        for item_id in sorted(set(item_ids))
    ]

    def write(connection: Connection) -> None:
        store.require(connection, session_id)
        if rows:
            voted = table.c.session_id == session_id, table.c.item_id.in_(item_ids)
            connection.execute(delete(table).where(*voted))
            connection.execute(insert(table), rows)

    await _write(store, write, session_id)


# ---- attachments ----


async def save_attachment(
    catalog: SessionCatalog, attachment_id: str, session_id: str | None, data: str
) -> bool:
    """Returns False if the attachment is outside the scope."""
    _check_id("attachment", attachment_id)
    store = catalog._store
    owner = json.dumps(store.scope.values, sort_keys=True)
    given = AttachmentRow(attachment_id, session_id, owner, data)

    def write(connection: Connection) -> bool:
        if session_id is not None:
            store.require(connection, session_id)
        attachments = Attachments(store.database, connection)
        stored = attachments.put(given)
        if not _admits(store, connection, stored):
            connection.rollback()
            return False
        kept = stored.session_id if session_id is None else session_id
        attachments.update(given._replace(session_id=kept))
        return True

    return await _write(store, write, session_id)


async def read_attachment(catalog: SessionCatalog, attachment_id: str) -> str | None:
    store = catalog._store

    def read(connection: Connection) -> str | None:
        found = Attachments(store.database, connection).get(attachment_id)
        return found.data if found and _admits(store, connection, found) else None

    return await _read(store, read, attachment_id)


async def delete_attachment(catalog: SessionCatalog, attachment_id: str) -> None:
    if id_problem(attachment_id) is not None:
        return
    store = catalog._store

    def write(connection: Connection) -> None:
        attachments = Attachments(store.database, connection)
        found = attachments.get(attachment_id, lock=True)
        if found is not None and _admits(store, connection, found):
            attachments.delete([attachment_id])

    await _write(store, write)


async def purge_attachments(catalog: SessionCatalog, older_than: timedelta) -> list[str]:
    """Deletes attachments that belong to no session, and returns their texts."""
    check_age("older_than", older_than)
    store, limit = catalog._store, moment_before(older_than)
    before = limit if older_than else None
    purged: list[str] = []
    after: str | None = None if limit is None else ""
    while after is not None:

        def purge(connection: Connection, after: str = after) -> tuple[list[str], str | None]:
            attachments = Attachments(store.database, connection)
            found = attachments.lock_unattached(before, after, _PURGED_AT_ONCE)
            own = [each for each in found if _was_saved_in(store, each)]
            if own:
                attachments.delete([each.attachment_id for each in own])
            last = found[-1].attachment_id if len(found) == _PURGED_AT_ONCE else None
            return [each.data for each in own], last

        deleted, after = await _write(store, purge)
        purged += deleted
    return purged


def _admits(store: ScopedStore, connection: Connection, attachment: AttachmentRow) -> bool:
    """Checks the scope of the thread that the attachment was sent in.

    An attachment that was not sent belongs to the scope that it was saved in.
    """
    if attachment.session_id is None:
        return _was_saved_in(store, attachment)
    return store.finds(connection, attachment.session_id)


def _was_saved_in(store: ScopedStore, attachment: AttachmentRow) -> bool:
    return not store.scope.filters and was_saved_with(store.scope.values, attachment)

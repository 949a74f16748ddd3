"""Transactions on the items and attachments of threads.

A thread is a session. Its items are what people see; the history is what a model gets. A user
message remembers where the history ended before it, so that a retry can remove the answer to it
from the history.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from agents_session_metadata.core.features import hold
from agents_session_metadata.core.messages import read_history
from agents_session_metadata.errors import SessionNotFoundError
from agents_session_metadata.history.pairs import is_user_message
from agents_session_metadata.history.rewind import Cut, check_not_encrypted, rewinding
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.threads.rows import USER_MESSAGE, Attachment, ThreadItem, ThreadRows
from agents_session_metadata.threads.tables import THREADS
from agents_session_metadata.types import ItemInfo
from agents_session_metadata.values import search_key

T = TypeVar("T")

_ENDS = frozenset({"assistant_message", "end_of_turn", "sdk_hidden_context", USER_MESSAGE})
"""Kinds of items that are added when an answer has ended, or was interrupted."""
_PURGED_AT_ONCE = 500


async def _read(store: ScopedStore, work: Callable[[Connection, Queries], T]) -> T:
    await store.database.ensure(THREADS)
    return await store.database.read(work)


async def _write(store: ScopedStore, work: Callable[[Connection, Queries], T]) -> T:
    await store.database.ensure(THREADS)
    return await store.database.write(work)


async def read_items(
    store: ScopedStore, session_id: str, after: int | None, limit: int, *, descending: bool
) -> list[ThreadItem] | None:
    """Returns None if there is no such session."""

    def read(connection: Connection, queries: Queries) -> list[ThreadItem] | None:
        found = ThreadRows(store.database).read_page(
            connection,
            session_id,
            after=after,
            limit=limit,
            descending=descending,
            restrict=partial(store.question, queries),
        )
        return found if found or _exists(store, connection, queries, session_id) else None

    return await _read(store, read)


async def read_item(store: ScopedStore, session_id: str, item_id: str) -> ThreadItem | None:
    def read(connection: Connection, queries: Queries) -> ThreadItem | None:
        return ThreadRows(store.database).read_item(
            connection, session_id, item_id, partial(store.question, queries)
        )

    return await _read(store, read)


async def write_item(
    store: ScopedStore, session_id: str, item_id: str, kind: str, data: str, *, activity: bool
) -> None:
    """Appends an item to a thread, or replaces the one with its id.

    With `activity`, the session becomes the most recently active one.
    """

    def write(connection: Connection, _: Queries) -> None:
        _lock(store, connection, session_id)
        ThreadRows(store.database).put_item(connection, session_id, item_id, kind, data)
        if activity:
            store.rows.touch(connection, session_id)

    await _write(store, write)


async def delete_item(store: ScopedStore, session_id: str, item_id: str, *, is_own: bool) -> None:
    """Deletes an item, and rewinds the history if that removes an answer.

    The last item of an answer that is deleted takes the answer, and the message that it answers,
    out of the history. An application can also remove a sign of progress while an agent runs. So it
    takes an item that ends an answer, which can have been deleted before the others, or an answer
    in the history that was written elsewhere.

    A retry deletes items one by one, the newest first. If the history cannot be rewound, because a
    run waits or works or the answer is encrypted, the first of them is refused, so that all stay.

    `is_own` means that the same request has added the item or loaded it by its id. A retry has not.
    """
    rows = ThreadRows(store.database)

    def run(connection: Connection, queries: Queries) -> None:
        _lock(store, connection, session_id)
        item = rows.read_item(connection, session_id, item_id)
        if item is None:
            return
        held = hold(store.database, connection, session_id)
        newest = rows.read_newest(connection, session_id)
        if not is_own and newest is not None and newest.position == item.position:
            if held is not None:
                raise held
            asked = rows.read_newest(connection, session_id, USER_MESSAGE, item.position)
            if asked is not None:
                end = asked.history_end or 0
                check_not_encrypted(_history(store, connection, session_id, after=end))
        rows.delete_item(connection, session_id, item_id)
        question = rows.read_newest(connection, session_id, USER_MESSAGE)
        if question is None or question.position > item.position:
            return
        ended = bool(question.reopened) or item.kind in _ENDS
        newest = rows.read_newest(connection, session_id)
        if newest is not None and newest.position > question.position:
            if ended and not question.reopened:
                rows.set_reopened(connection, session_id, question.item_id, reopened=True)
            return
        if held is not None or item.kind == USER_MESSAGE:
            # A run needs its history. And nothing that answers the message before a user
            # message was deleted; see `rewind_before`.
            return
        history = _history(store, connection, session_id)
        first = _find(question, history, guess=True)
        if first is None or not (ended or (not is_own and _has_answer(history, first))):
            return
        rewinding(store, session_id, Cut(before=first))(connection, queries)
        rows.set_reopened(connection, session_id, question.item_id, reopened=False)

    await _write(store, run)


async def rewind_before(store: ScopedStore, session_id: str, item_id: str) -> list[ItemInfo]:
    """Removes a user message, and the items after it, from the history.

    It removes nothing if the thread has an item after the message, or if it is not certain where
    the message is. After the same message twice in a row, as from a double click, it can be that
    only the first of them is in the history, with an answer on its way. In an encrypted history the
    place is never certain: another run can have added the items behind its end.
    """
    rows = ThreadRows(store.database)

    def run(connection: Connection, queries: Queries) -> list[ItemInfo]:
        _lock(store, connection, session_id)
        question = rows.read_item(connection, session_id, item_id)
        if question is None or question.kind != USER_MESSAGE:
            raise LookupError(item_id)
        newest = rows.read_newest(connection, session_id)
        if newest is not None and newest.position > question.position:
            return []
        previous = rows.read_newest(connection, session_id, USER_MESSAGE, question.position)
        if previous is not None and _are_alike(previous, question):
            return []
        first = _find(question, _history(store, connection, session_id))
        if first is None:
            return []
        return rewinding(store, session_id, Cut(before=first))(connection, queries)

    return await _write(store, run)


def _are_alike(one: ThreadItem, other: ThreadItem) -> bool:
    """True if a message of the history could be either of two user messages."""
    return one.history_end == other.history_end and _asked(one) == _asked(other)


def _find(question: ThreadItem, history: list[ItemInfo], *, guess: bool = False) -> int | None:
    """Returns the item of the history that a user message is; None if that is not certain.

    With `guess`, it is the last message since then if none has the text of the question, because an
    application can pass another text to the agent.
    """
    end = question.history_end
    if end is None or end not in (0, *(each.item_id for each in history)):
        # The history was replaced since, by compaction for example.
        if not guess:
            return None
        end = 0
    # Others may have written meanwhile, in another tab or by another program.
    since = [each for each in history if each.item_id > end and is_user_message(each.item)]
    text = _asked(question)
    asked = [each for each in since if _text(_field(each.item, "content")) == text]
    if not (asked or (guess and since)):
        return None
    first = (asked or since)[-1].item_id
    later = (_field(each.item, "type") for each in history if each.item_id > first)
    # A summary stands for everything before it.
    return None if "compaction" in later else first


def _asked(question: ThreadItem) -> str | None:
    return _text(json.loads(question.data).get("content"))


def _text(content: object) -> str | None:
    if isinstance(content, str):
        return content
    texts: list[str] = [
        f"@{part['text']}" if part.get("type") == "input_tag" else part["text"]
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    ]
    return "".join(texts) if texts else None


def _has_answer(history: list[ItemInfo], first: int) -> bool:
    return any(
        each.item_id >= first and _field(each.item, "role") == "assistant" for each in history
    )


def _field(item: object, name: str) -> object:
    # Whatever is stored may be there.
    return item.get(name) if isinstance(item, dict) else None


def _history(
    store: ScopedStore, connection: Connection, session_id: str, after: int | None = None
) -> list[ItemInfo]:
    database = store.database
    return read_history(connection, database.tables, database.dialect, session_id, after)


def _lock(store: ScopedStore, connection: Connection, session_id: str) -> None:
    if not store.lock(connection, session_id):
        raise SessionNotFoundError(session_id)


def _exists(store: ScopedStore, connection: Connection, queries: Queries, session_id: str) -> bool:
    own_id = store.database.tables.sessions.c.session_id
    statement, parameters = store.question(queries, store.rows.looking, own_id)
    parameters["of_session"] = session_id
    return connection.execute(statement, parameters).first() is not None


# ---- attachments ----


async def save_attachment(
    store: ScopedStore, attachment_id: str, session_id: str | None, data: str
) -> bool:
    """Returns False if the attachment is outside the scope."""
    rows = ThreadRows(store.database)
    owner = json.dumps(store.scope.values, sort_keys=True)
    given = Attachment(attachment_id, session_id, owner, data)

    def write(connection: Connection, queries: Queries) -> bool:
        if session_id is not None:
            _lock(store, connection, session_id)
        stored = rows.put_attachment(connection, given)
        if not _admits(store, connection, queries, stored):
            connection.rollback()
            return False
        kept = stored.session_id if session_id is None else session_id
        rows.update_attachment(connection, given._replace(session_id=kept))
        return True

    return await _write(store, write)


async def read_attachment(store: ScopedStore, attachment_id: str) -> str | None:
    def read(connection: Connection, queries: Queries) -> str | None:
        found = ThreadRows(store.database).read_attachment(connection, attachment_id)
        return found.data if found and _admits(store, connection, queries, found) else None

    return await _read(store, read)


async def delete_attachment(store: ScopedStore, attachment_id: str) -> bool:
    rows = ThreadRows(store.database)

    def write(connection: Connection, queries: Queries) -> bool:
        found = rows.read_attachment(connection, attachment_id, lock=True)
        if found is None or not _admits(store, connection, queries, found):
            return False
        rows.delete_attachments(connection, [attachment_id])
        return True

    return await _write(store, write)


async def purge_attachments(store: ScopedStore, before: datetime | None) -> list[str]:
    """Deletes attachments that belong to no session, and returns their texts."""
    rows = ThreadRows(store.database)
    purged: list[str] = []
    after: str | None = ""
    while after is not None:

        def delete(
            connection: Connection, _: Queries, after: str = after
        ) -> tuple[list[str], str | None]:
            found = rows.lock_unattached(connection, before, after, _PURGED_AT_ONCE)
            own = [each for each in found if _was_saved_in(store, each)]
            if own:
                rows.delete_attachments(connection, [each.attachment_id for each in own])
            last = found[-1].attachment_id if len(found) == _PURGED_AT_ONCE else None
            return [each.data for each in own], last

        deleted, after = await _write(store, delete)
        purged += deleted
    return purged


def _admits(
    store: ScopedStore, connection: Connection, queries: Queries, attachment: Attachment
) -> bool:
    """Checks the scope of the thread that the attachment was sent in.

    An attachment that was not sent belongs to the scope that it was saved in.
    """
    if attachment.session_id is None:
        return _was_saved_in(store, attachment)
    return _exists(store, connection, queries, attachment.session_id)


def _was_saved_in(store: ScopedStore, attachment: Attachment) -> bool:
    values = json.loads(attachment.owner)
    return all(
        key in values and search_key(values[key]) == search_key(value)
        for key, value in store.scope.values.items()
    )

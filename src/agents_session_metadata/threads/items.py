"""Threads as a chat interface shows them, beside the history that agents read.

A thread is a session. Its items are what people see; the history is what a model gets. A user
message remembers where the history ended before it, so that a retry can remove the answer to it
from the history.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial

from sqlalchemy import Connection

from agents_session_metadata.core.messages import read_history
from agents_session_metadata.errors import SessionNotFoundError, SessionPausedError
from agents_session_metadata.history.pairs import is_user_message
from agents_session_metadata.history.rewind import Cut, check_not_encrypted, rewinding
from agents_session_metadata.query.queries import Queries
from agents_session_metadata.runs.rows import has_paused_run
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import ItemInfo

from .rows import USER_MESSAGE, ThreadItem, ThreadRows

_ENDS = frozenset({"assistant_message", "end_of_turn", "sdk_hidden_context", USER_MESSAGE})
"""Kinds of items that are added when an answer has ended, or was interrupted."""


def rows_of(store: ScopedStore) -> ThreadRows:
    return ThreadRows(store.database.tables, store.database.dialect)


def read_items(
    store: ScopedStore, session_id: str, after: int | None, limit: int, *, descending: bool
) -> Callable[[Connection, Queries], list[ThreadItem] | None]:
    """Returns work that reads items. Its result is None if there is no such session."""

    def read(connection: Connection, queries: Queries) -> list[ThreadItem] | None:
        found = rows_of(store).read_page(
            connection,
            session_id,
            after=after,
            limit=limit,
            descending=descending,
            restrict=partial(store.question, queries),
        )
        return found if found or exists(store, connection, queries, session_id) else None

    return read


def read_item(
    store: ScopedStore, session_id: str, item_id: str
) -> Callable[[Connection, Queries], ThreadItem | None]:
    return lambda connection, queries: rows_of(store).read_item(
        connection,
        session_id,
        item_id,
        partial(store.question, queries),
    )


def writing_item(
    store: ScopedStore, session_id: str, item_id: str, kind: str, data: str, *, activity: bool
) -> Callable[[Connection, Queries], None]:
    """Returns work that appends an item to a thread, or replaces the one with its id.

    With `activity`, the session becomes the most recently active one.
    """
    rows = rows_of(store)

    def write(connection: Connection, _: Queries) -> None:
        _lock(store, connection, session_id)
        rows.put_item(connection, session_id, item_id, kind, data)
        if activity:
            store.rows.touch(connection, session_id)

    return write


def deleting_item(
    store: ScopedStore, session_id: str, item_id: str, *, is_own: bool
) -> Callable[[Connection, Queries], None]:
    """Returns work that deletes an item, and rewinds the history if that removes an answer.

    The last item of an answer that is deleted takes the answer, and the message that it answers,
    out of the history. An application can also remove a sign of progress while an agent runs. So it
    takes an item that ends an answer, which can have been deleted before the others, or an answer
    in the history that was written elsewhere.

    A retry deletes items one by one, the newest first. If the history cannot be rewound, because a
    run is paused or the answer is encrypted, the first of them is refused, so that all stay.

    `is_own` means that the same request has added the item or loaded it by its id. A retry has not.
    """
    rows = rows_of(store)

    def run(connection: Connection, queries: Queries) -> None:
        _lock(store, connection, session_id)
        item = rows.read_item(connection, session_id, item_id)
        if item is None:
            return
        is_paused = has_paused_run(connection, store.database.tables, session_id)
        newest = rows.read_newest(connection, session_id)
        if not is_own and newest is not None and newest.position == item.position:
            if is_paused:
                raise SessionPausedError(session_id)
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
        if is_paused or item.kind == USER_MESSAGE:
            # A paused run needs its history. And nothing that answers the message before a user
            # message was deleted; see `rewinding_before`.
            return
        history = _history(store, connection, session_id)
        first = _find(question, history, guess=True)
        if first is None or not (ended or (not is_own and _has_answer(history, first))):
            return
        rewinding(store, session_id, Cut(before=first))(connection, queries)
        rows.set_reopened(connection, session_id, question.item_id, reopened=False)

    return run


def rewinding_before(
    store: ScopedStore, session_id: str, item_id: str
) -> Callable[[Connection, Queries], list[ItemInfo]]:
    """Returns work that removes a user message, and the items after it, from the history.

    It removes nothing if the thread has an item after the message, or if it is not certain where
    the message is. After the same message twice in a row, as from a double click, it can be that
    only the first of them is in the history, with an answer on its way. In an encrypted history the
    place is never certain: another run can have added the items behind its end.
    """
    rows = rows_of(store)

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

    return run


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


def exists(store: ScopedStore, connection: Connection, queries: Queries, session_id: str) -> bool:
    own_id = store.database.tables.sessions.c.session_id
    statement, parameters = store.question(queries, store.rows.looking, own_id)
    parameters["of_session"] = session_id
    return connection.execute(statement, parameters).first() is not None


# ---- copies ----


def copy_thread(
    store: ScopedStore,
    connection: Connection,
    session_id: str,
    new_id: str,
    kept: list[int] | None,
) -> None:
    """Copies the items of a thread to a session whose history was copied.

    The session must be locked. `kept` contains the ids of the copied rows; None means all. The copy
    ends before the first user message of which nothing was copied.
    """
    rows = rows_of(store)
    if not rows.exist(connection):
        return
    items = rows.read_threads(connection, [session_id]).get(session_id, [])
    if not items:
        return
    if kept is None:
        kept = rows.message_ids(connection, session_id)
    else:
        last = max(kept, default=0)
        ends = (-1 if item.history_end is None else item.history_end for item in items)
        items = items[: next((at for at, end in enumerate(ends) if end >= last), len(items))]
    copied = with_ids(as_counts(items, kept), rows.message_ids(connection, new_id))
    rows.insert_items(connection, new_id, copied)


def as_counts(items: list[ThreadItem], history: list[int]) -> list[ThreadItem]:
    """Converts `history_end` from the id of the last row to a number of rows."""

    def count(end: int) -> int | None:
        before = sum(each <= end for each in history)
        # Without a row before it, the history was replaced: it is not known where it ended.
        return before if before or not end else None

    return [
        item if item.history_end is None else item._replace(history_end=count(item.history_end))
        for item in items
    ]


def with_ids(items: list[ThreadItem], history: list[int]) -> list[ThreadItem]:
    """Converts `history_end` from a number of rows to the id of the last row."""

    def end(count: int) -> int:
        return history[min(count, len(history)) - 1] if count and history else 0

    return [
        item if item.history_end is None else item._replace(history_end=end(item.history_end))
        for item in items
    ]


def read_threads(
    store: ScopedStore, connection: Connection, ids: list[str]
) -> dict[str, list[ThreadItem]]:
    """Returns items whose `history_end` is a number of rows of the history."""
    rows = rows_of(store)
    if not ids or not rows.exist(connection):
        return {}
    return {
        session_id: as_counts(items, rows.message_ids(connection, session_id))
        for session_id, items in rows.read_threads(connection, ids).items()
    }


def insert_threads(
    store: ScopedStore, connection: Connection, threads: Mapping[str, list[ThreadItem]]
) -> None:
    """Inserts items of new sessions. Their `history_end` is a number of rows."""
    rows = rows_of(store)
    for session_id, items in threads.items():
        if items:
            history = rows.message_ids(connection, session_id)
            rows.insert_items(connection, session_id, with_ids(items, history))

"""Two stores for ChatKit, written by hand as its documentation suggests, and what they leak.

The one in memory is like those of ChatKit's samples: dictionaries, sorted for each page. The one in
SQL has the tables of the guide "Persist ChatKit threads and messages": the owner in a column, the
object as JSON, a connection for each call. The guide creates no index and recommends one for
production; it is measured both ways.
"""

# ruff: noqa: ARG002, D102  # the methods are those that ChatKit describes

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from chatkit.server import ChatKitServer
from chatkit.store import NotFoundError, Store
from chatkit.types import (
    Attachment,
    FileAttachment,
    InferenceOptions,
    Page,
    ThreadItem,
    ThreadMetadata,
    UserMessageItem,
    UserMessageTextContent,
)
from pydantic import TypeAdapter

T = TypeVar("T")
_ITEM: TypeAdapter[Any] = TypeAdapter(ThreadItem)
_ATTACHMENT: TypeAdapter[Any] = TypeAdapter(Attachment)
_FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class User:
    """Who asks."""

    user_id: str


class Server(ChatKitServer[User]):
    """A server that only lists."""

    async def respond(self, *_: Any) -> Any:
        """No answers."""
        return
        yield


class MemoryStore(Store[User]):
    """Dictionaries, without a thought of who asks."""

    def __init__(self) -> None:
        self.threads: dict[str, ThreadMetadata] = {}
        self.items: dict[str, dict[str, Any]] = {}
        self.attachments: dict[str, Any] = {}

    async def load_thread(self, thread_id: str, context: User) -> ThreadMetadata:
        return _found(self.threads.get(thread_id)).model_copy(deep=True)

    async def save_thread(self, thread: ThreadMetadata, context: User) -> None:
        self.threads[thread.id] = thread.model_copy(deep=True)

    async def load_threads(
        self, limit: int, after: str | None, order: str, context: User
    ) -> Page[ThreadMetadata]:
        return _paged(self.threads.values(), limit, after, order)

    async def delete_thread(self, thread_id: str, context: User) -> None:
        self.threads.pop(thread_id, None)
        self.items.pop(thread_id, None)

    async def load_thread_items(
        self, thread_id: str, after: str | None, limit: int, order: str, context: User
    ) -> Page[Any]:
        return _paged(self.items.get(thread_id, {}).values(), limit, after, order)

    async def add_thread_item(self, thread_id: str, item: Any, context: User) -> None:
        self.items.setdefault(thread_id, {})[item.id] = item

    save_item = add_thread_item

    async def load_item(self, thread_id: str, item_id: str, context: User) -> Any:
        return _found(self.items.get(thread_id, {}).get(item_id))

    async def delete_thread_item(self, thread_id: str, item_id: str, context: User) -> None:
        self.items.get(thread_id, {}).pop(item_id, None)

    async def save_attachment(self, attachment: Any, context: User) -> None:
        self.attachments[attachment.id] = attachment

    async def load_attachment(self, attachment_id: str, context: User) -> Any:
        return _found(self.attachments.get(attachment_id))

    async def delete_attachment(self, attachment_id: str, context: User) -> None:
        self.attachments.pop(attachment_id, None)


class ReadyStore(MemoryStore):
    """Has its page ready: what ChatKit's server takes by itself."""

    def __init__(self, page: Page[ThreadMetadata]) -> None:
        super().__init__()
        self._page = page

    async def load_threads(
        self, limit: int, after: str | None, order: str, context: User
    ) -> Page[ThreadMetadata]:
        return self._page


class SQLStore(Store[User]):
    """Three tables of JSON in SQLite."""

    def __init__(self, path: str, *, indexed: bool) -> None:
        self._path = path
        self._write(
            "CREATE TABLE IF NOT EXISTS threads (id TEXT PRIMARY KEY, user_id TEXT NOT NULL,"
            " created_at TEXT NOT NULL, data TEXT NOT NULL)"
        )
        self._write(
            "CREATE TABLE IF NOT EXISTS items (id TEXT PRIMARY KEY, thread_id TEXT NOT NULL"
            " REFERENCES threads (id) ON DELETE CASCADE, user_id TEXT NOT NULL,"
            " created_at TEXT NOT NULL, data TEXT NOT NULL)"
        )
        self._write(
            "CREATE TABLE IF NOT EXISTS attachments (id TEXT PRIMARY KEY, user_id TEXT NOT NULL,"
            " data TEXT NOT NULL)"
        )
        if indexed:
            self._write("CREATE INDEX IF NOT EXISTS of_user ON threads (user_id, created_at)")

    def _write(self, statement: str, *values: Any) -> None:
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(statement, values)

    def _read(self, statement: str, *values: Any) -> list[str]:
        with closing(sqlite3.connect(self._path)) as connection:
            return [row[0] for row in connection.execute(statement, values)]

    def fill(self, threads: list[ThreadMetadata], user: User) -> None:
        """Save many at once."""
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.executemany(
                "INSERT INTO threads VALUES (?, ?, ?, ?)",
                [
                    (each.id, user.user_id, each.created_at.isoformat(), each.model_dump_json())
                    for each in threads
                ],
            )

    async def load_thread(self, thread_id: str, context: User) -> ThreadMetadata:
        found = self._read(
            "SELECT data FROM threads WHERE id = ? AND user_id = ?", thread_id, context.user_id
        )
        return ThreadMetadata.model_validate_json(_first(found))

    async def save_thread(self, thread: ThreadMetadata, context: User) -> None:
        self._write(
            "INSERT INTO threads VALUES (?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET data = excluded.data",
            thread.id,
            context.user_id,
            thread.created_at.isoformat(),
            thread.model_dump_json(),
        )

    async def load_threads(
        self, limit: int, after: str | None, order: str, context: User
    ) -> Page[ThreadMetadata]:
        found = self._page("threads", "user_id = ?", [context.user_id], limit, after, order)
        return _cut([ThreadMetadata.model_validate_json(each) for each in found], limit)

    async def delete_thread(self, thread_id: str, context: User) -> None:
        self._write("DELETE FROM threads WHERE id = ? AND user_id = ?", thread_id, context.user_id)

    async def load_thread_items(
        self, thread_id: str, after: str | None, limit: int, order: str, context: User
    ) -> Page[Any]:
        mine = [thread_id, context.user_id]
        found = self._page("items", "thread_id = ? AND user_id = ?", mine, limit, after, order)
        return _cut([_ITEM.validate_json(each) for each in found], limit)

    def _page(
        self, table: str, where: str, values: list[Any], limit: int, after: str | None, order: str
    ) -> list[str]:
        direction, sign = ("ASC", ">") if order == "asc" else ("DESC", "<")
        if after is not None:
            where += f" AND created_at {sign} (SELECT created_at FROM {table} WHERE id = ?)"
            values = [*values, after]
        return self._read(
            f"SELECT data FROM {table} WHERE {where} ORDER BY created_at {direction} LIMIT ?",
            *values,
            limit + 1,
        )

    async def add_thread_item(self, thread_id: str, item: Any, context: User) -> None:
        self._write(
            "INSERT INTO items VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET data = excluded.data",
            item.id,
            thread_id,
            context.user_id,
            item.created_at.isoformat(),
            item.model_dump_json(),
        )

    save_item = add_thread_item

    async def load_item(self, thread_id: str, item_id: str, context: User) -> Any:
        found = self._read(
            "SELECT data FROM items WHERE id = ? AND thread_id = ? AND user_id = ?",
            item_id,
            thread_id,
            context.user_id,
        )
        return _ITEM.validate_json(_first(found))

    async def delete_thread_item(self, thread_id: str, item_id: str, context: User) -> None:
        self._write(
            "DELETE FROM items WHERE id = ? AND thread_id = ? AND user_id = ?",
            item_id,
            thread_id,
            context.user_id,
        )

    async def save_attachment(self, attachment: Any, context: User) -> None:
        self._write(
            "INSERT INTO attachments VALUES (?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET data = excluded.data",
            attachment.id,
            context.user_id,
            attachment.model_dump_json(),
        )

    async def load_attachment(self, attachment_id: str, context: User) -> Any:
        found = self._read(
            "SELECT data FROM attachments WHERE id = ? AND user_id = ?",
            attachment_id,
            context.user_id,
        )
        return _ATTACHMENT.validate_json(_first(found))

    async def delete_attachment(self, attachment_id: str, context: User) -> None:
        self._write(
            "DELETE FROM attachments WHERE id = ? AND user_id = ?", attachment_id, context.user_id
        )


def _found(value: T | None) -> T:
    if value is None:
        raise NotFoundError("there is no such object")
    return value


def _first(found: list[str]) -> str:
    return _found(found[0] if found else None)


def _paged(rows: Any, limit: int, after: str | None, order: str) -> Page[Any]:
    ordered = sorted(rows, key=lambda each: each.created_at, reverse=order == "desc")
    start = 0
    if after is not None:
        ids = [each.id for each in ordered]
        start = ids.index(after) + 1
    return _cut(ordered[start : start + limit + 1], limit)


def _cut(rows: list[Any], limit: int) -> Page[Any]:
    more = len(rows) > limit
    return Page(data=rows[:limit], has_more=more, after=rows[limit - 1].id if more else None)


def threads(count: int) -> list[ThreadMetadata]:
    """Threads with titles, a minute apart."""
    return [
        ThreadMetadata(
            id=f"thr_{number:032x}",
            title=f"Thread {number}",
            created_at=_FIRST + timedelta(minutes=number),
        )
        for number in range(count)
    ]


def _item(thread_id: str, name: str, text: str) -> UserMessageItem:
    return UserMessageItem(
        id=name,
        thread_id=thread_id,
        created_at=_FIRST,
        content=[UserMessageTextContent(text=text)],
        attachments=[],
        inference_options=InferenceOptions(),
    )


def _attachment(name: str, text: str) -> FileAttachment:
    return FileAttachment(id=name, name=text, mime_type="text/plain")


async def leaks(store: Store[User]) -> list[str]:
    """The methods of ChatKit's store that let a user see or change what belongs to another.

    Each method is called by one user with the ids of another. It leaks if it returns something of
    the other's, or if the other then finds something changed, added or missing.
    """
    owner, other = User("leaks-owner"), User("leaks-other")
    leaking = []
    methods: dict[str, Callable[[str], Awaitable[Any]]] = {}

    def by_other(name: str, call: Callable[[str], Awaitable[Any]]) -> None:
        methods[name] = call

    new, changed = ThreadMetadata(id="x", created_at=_FIRST), "written by another"
    by_other("generate_thread_id", lambda _: _immediate(store.generate_thread_id(other)))
    by_other(
        "generate_item_id", lambda _: _immediate(store.generate_item_id("message", new, other))
    )
    by_other("load_thread", lambda name: store.load_thread(name, other))
    by_other(
        "save_thread",
        lambda name: store.save_thread(
            ThreadMetadata(id=name, created_at=_FIRST, title=changed), other
        ),
    )
    by_other("load_threads", lambda _: store.load_threads(100, None, "desc", other))
    by_other("delete_thread", lambda name: store.delete_thread(name, other))
    by_other(
        "load_thread_items", lambda name: store.load_thread_items(name, None, 100, "asc", other)
    )
    by_other(
        "add_thread_item",
        lambda name: store.add_thread_item(name, _item(name, f"{name}-new", changed), other),
    )
    by_other(
        "save_item",
        lambda name: store.save_item(name, _item(name, f"{name}-item", changed), other),
    )
    by_other("load_item", lambda name: store.load_item(name, f"{name}-item", other))
    by_other(
        "delete_thread_item", lambda name: store.delete_thread_item(name, f"{name}-item", other)
    )
    by_other(
        "save_attachment",
        lambda name: store.save_attachment(_attachment(f"{name}-file", changed), other),
    )
    by_other("load_attachment", lambda name: store.load_attachment(f"{name}-file", other))
    by_other("delete_attachment", lambda name: store.delete_attachment(f"{name}-file", other))

    for number, (method, call) in enumerate(methods.items()):
        name = f"secret-{number}"
        await store.save_thread(
            ThreadMetadata(id=name, created_at=_FIRST, title=f"{name}-title"), owner
        )
        await store.add_thread_item(name, _item(name, f"{name}-item", f"{name}-text"), owner)
        await store.save_attachment(_attachment(f"{name}-file", f"{name}-text"), owner)
        before = await _state(store, name, owner)
        try:
            answer = repr(await call(name))
        except Exception:  # noqa: BLE001  # a refusal is no leak
            answer = ""
        if "secret-" in answer or await _state(store, name, owner) != before:
            leaking.append(method)
    return leaking


async def _immediate(value: T) -> T:
    return value


async def _state(store: Store[User], name: str, owner: User) -> list[str]:
    """What the owner finds."""
    return [
        await _told(store.load_thread(name, owner)),
        await _told(store.load_thread_items(name, None, 100, "asc", owner)),
        await _told(store.load_attachment(f"{name}-file", owner)),
    ]


async def _told(call: Awaitable[Any]) -> str:
    try:
        return repr(await call)
    except NotFoundError:
        return "not found"

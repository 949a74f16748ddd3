"""The routes and their handlers. Ids in paths are decoded; bodies and queries are checked.

The first line of a handler's docstring is its summary in the OpenAPI document.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel

from agents_session_metadata import keys
from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.core.rows import id_problem
from agents_session_metadata.errors import (
    CorruptMetadataError,
    InvalidCursorError,
    TablesMissingError,
)
from agents_session_metadata.history.items import (
    append_items,
    create_with_items,
    delete_item,
    find_item,
    find_position,
    item_cursor,
)
from agents_session_metadata.types import ItemInfo, SessionInfo
from agents_session_metadata.values import is_text

from . import requests
from .public_items import item_type, shown_item, wanted_item
from .requests import APIError, conversation_not_found, invalid, item_not_found

logger: logging.Logger = logging.getLogger("agents_session_metadata.http")

Answer: TypeAlias = "dict[str, Any]"

READ_ONLY: Final = frozenset(
    {
        # what SessionLifecycle writes
        keys.AGENT,
        keys.PURPOSE,
        keys.STATUS,
        keys.PHASE,
        keys.SUMMARY,
        keys.OUTCOME,
        keys.PHASE_HISTORY,
        keys.ERROR_COUNT,
        keys.LAST_ERROR,
        keys.STARTED_AT,
        keys.FINISHED_AT,
        keys.DURATION_MS,
        keys.TOUCHED_AT,
        keys.RESUMES,
        # what SessionTracker writes
        keys.RUNS,
        keys.REQUESTS,
        keys.INPUT_TOKENS,
        keys.OUTPUT_TOKENS,
        keys.TOTAL_TOKENS,
        keys.RUN_MS,
        keys.COST,
        keys.AGENTS,
        keys.TOOL_CALLS,
        keys.INVOCATIONS,
        keys.TRACE_IDS,
        # what SessionTitler writes
        keys.TITLE_AUTO,
        # what ChatKit's store writes
        keys.CHATKIT,
        # what a fork writes
        keys.FORKED_FROM,
        keys.FORKED_BEFORE,
    }
)
"""Metadata keys that no client may write, besides those of the scope."""

_COUNTED: Final = 1000
"""The number of newest matching sessions whose values are counted."""
_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})


@dataclass(frozen=True)
class Call:
    """A request that has been checked. `catalog` is restricted to its scope.

    `allow_roles` are the roles of messages that can be appended; None allows every item.
    """

    catalog: SessionCatalog
    allow_roles: frozenset[str] | None
    path: Mapping[str, str]
    query: Any
    body: Any

    @property
    def session_id(self) -> str:
        return self.path["conversation_id"]

    # ---- conversations ----

    async def conversation(self, session_id: str | None = None) -> Answer:
        """One conversation."""
        name = self.session_id if session_id is None else session_id
        info = await self.catalog.get_session(name, on_corrupt=_log_corrupt)
        if info is None:
            raise conversation_not_found(name)
        return _shown(info)

    async def create_conversation(self) -> Answer:
        """Create a conversation, its metadata and items in one transaction."""
        metadata = _without_nulls(_writable(self.body.metadata))
        name = f"conv_{secrets.token_hex(24)}"
        texts = self._texts(self.body.items or [])
        await create_with_items(self.catalog._store, name, metadata, texts)
        return await self.conversation(name)

    async def change_conversation(self) -> Answer:
        """Merge metadata; null removes a key."""
        changes = _writable(self.body.metadata)
        removed = [key for key, value in changes.items() if value is None]
        await self._require()
        problem = id_problem(self.session_id)
        if problem is not None:
            raise APIError(400, f"The conversation cannot have metadata: its id {problem}.")
        await self.catalog._store.merge_metadata(self.session_id, _without_nulls(changes), removed)
        return await self.conversation()

    async def delete_conversation(self) -> Answer:
        """Delete a conversation with its items and metadata."""
        if not await self.catalog.delete_session(self.session_id):
            raise conversation_not_found(self.session_id)
        return {"id": self.session_id, "object": "conversation.deleted", "deleted": True}

    async def list_conversations(self) -> Answer:
        """A page of conversations, ordered by activity."""
        query: requests.ListConversations = self.query
        page = await self.catalog.list_sessions(
            query.where,
            order_by="-updated_at" if query.order == "desc" else "updated_at",
            limit=query.limit,
            cursor=query.after,
            preview=query.preview,
            on_corrupt=_log_corrupt,
        )
        data = [
            {**_shown(info), **({"preview": info.preview} if query.preview else {})}
            for info in page.sessions
        ]
        return _list(data, page.next_cursor)

    async def count_values(self) -> Answer:
        """How many conversations have each value of a key, among the newest that match."""
        query: requests.CountValues = self.query
        key = self.path["key"]
        newest = await self.catalog.list_sessions(query.where, limit=_COUNTED, keys=[])
        ids = [info.session_id for info in newest.sessions]
        counted = {"$session_id": {"$in": ids}}
        found = await self.catalog.count_values(key, counted, limit=query.limit + 1)
        return {
            "object": "list",
            "data": [{"value": each.value, "count": each.count} for each in found[: query.limit]],
            "has_more": len(found) > query.limit,
            "complete": newest.next_cursor is None,
        }

    async def fork(self) -> Answer:
        """Copy a conversation, or what comes before an item."""
        metadata = _without_nulls(_writable(self.body.metadata))
        before = await self._row("before")
        name = f"conv_{secrets.token_hex(24)}"
        try:
            await self.catalog.fork_session(self.session_id, name, metadata=metadata, before=before)
        except ValueError as error:
            raise _impossible_cut(error) from error
        return await self.conversation(name)

    async def rewind(self) -> Answer:
        """Remove the last turns, or an item and what comes after it."""
        body: requests.Rewind = self.body
        if (body.turns is None) == (body.before is None):
            raise invalid("Pass either `turns` or `before`.", "turns")
        before = await self._row("before")
        last = await self._row("expect_last")
        try:
            removed = await self.catalog.rewind_session(
                self.session_id, turns=body.turns, before=before, expect_last=last
            )
        except ValueError as error:
            raise _impossible_cut(error) from error
        shown = [shown_item(info) for info in removed[: requests.LONGEST_PAGE]]
        return _list(shown, None, has_more=len(removed) > len(shown))

    async def search(self) -> Answer:
        """Messages and titles that contain all words of a query, the newest first."""
        query: requests.Search = self.query
        try:
            await self.catalog.search(query.q, query.where, limit=query.limit, cursor=query.after)
        except TablesMissingError as error:
            # OpenAI's clients repeat every 5xx by themselves.
            headers = {"x-should-retry": "false"}
            raise APIError(501, str(error), code="not_available", headers=headers) from error

    # ---- items ----

    async def list_items(self) -> Answer:
        """A page of items."""
        query: requests.ListItems = self.query
        newest_first = query.order == "desc"
        ask = partial(
            self.catalog.list_items, self.session_id, limit=query.limit, newest_first=newest_first
        )
        try:
            page = await ask(cursor=query.after)
        except InvalidCursorError:
            page = await ask(cursor=await self._cursor(newest_first=newest_first))
        if not page.items:
            await self._require()
        return _list([shown_item(info) for info in page.items], page.next_cursor)

    async def create_items(self) -> Answer:
        """Append items in one transaction."""
        texts = self._texts(self.body.items)
        added = await append_items(self.catalog._store, self.session_id, texts)
        return _list([shown_item(info) for info in added], None)

    async def item(self) -> Answer:
        """One item."""
        info = await self._find(self.path["item_id"])
        if info is None:
            raise item_not_found(self.path["item_id"])
        return shown_item(info)

    async def delete_item(self) -> Answer:
        """Delete one item."""
        wanted = wanted_item(self.path["item_id"])
        if wanted is None:
            await self._require()
        if not (wanted and await delete_item(self.catalog._store, self.session_id, wanted)):
            raise item_not_found(self.path["item_id"])
        return await self.conversation()

    # ---- parts ----

    async def _require(self) -> None:
        if await self.catalog.get_session(self.session_id, keys=[]) is None:
            raise conversation_not_found(self.session_id)

    async def _find(self, item_id: str) -> ItemInfo | None:
        """Returns None if the conversation exists without the item."""
        wanted = wanted_item(item_id)
        info = wanted and await find_item(self.catalog._store, self.session_id, wanted)
        if not info:
            await self._require()
            return None
        return info

    async def _row(self, name: Literal["before", "expect_last"]) -> int | None:
        item_id = getattr(self.body, name)
        if item_id is None:
            return None
        info = await self._find(item_id)
        if info:
            return info.item_id
        if name == "before":
            raise invalid("`before` is not an item of this conversation.", "before")
        message = "The conversation has changed: `expect_last` is not its newest item."
        raise APIError(409, message, param=name, code="conversation_changed")

    async def _cursor(self, *, newest_first: bool) -> str:
        """Returns the cursor of the page after the item with the id `after`."""
        store, position = self.catalog._store, None
        wanted = wanted_item(self.query.after or "")
        info = wanted and await find_item(store, self.session_id, wanted)
        if info:
            position = await find_position(store, self.session_id, info.item_id)
        if position is None:
            await self._require()
            raise InvalidCursorError
        return item_cursor(store, self.session_id, position, newest_first=newest_first)

    def _texts(self, items: Sequence[dict[str, Any]]) -> list[str]:
        ascii_only: bool = self.catalog._session_arguments["ensure_ascii"]
        texts = []
        for index, item in enumerate(items):
            self._check(item, f"items[{index}]")
            text = json.dumps(item, ensure_ascii=ascii_only, separators=(",", ":"))
            if not is_text(text):
                raise invalid("The item contains lone surrogates.", f"items[{index}]")
            texts.append(text)
        return texts

    def _check(self, item: dict[str, Any], param: str) -> None:
        kind, role, content = item_type(item), item.get("role"), item.get("content")
        if not isinstance(item.get("type", kind), str) or kind in ("unknown", "item_reference"):
            raise invalid(f"{param}: must have a `type` or a `role`.", f"{param}.type")
        if kind == "message":
            if not isinstance(role, str) or role not in _ROLES:
                names = ", ".join(sorted(_ROLES))
                raise invalid(f"{param}.role: must be one of {names}.", f"{param}.role")
            has_parts = isinstance(content, list) and all(map(_is_part, content))
            if not (isinstance(content, str) or has_parts):
                message = f"{param}.content: must be a string or a list of objects with a `type`."
                raise invalid(message, f"{param}.content")
        if self.allow_roles is not None and (kind != "message" or role not in self.allow_roles):
            names = ", ".join(sorted(self.allow_roles)) or "none"
            message = f"{param}: only messages with these roles can be appended: {names}."
            raise APIError(403, message, param=param, code="role_not_allowed")


@dataclass(frozen=True)
class Route:
    """A route. A name in braces in its path matches any segment.

    A client can safely send a `repeatable` request twice.
    """

    method: str
    path: str
    run: Callable[[Call], Awaitable[Answer]]
    query: type[BaseModel] = requests.Nothing
    body: type[BaseModel] | None = None
    repeatable: bool = True

    def match(self, segments: Sequence[str]) -> dict[str, str] | None:
        """Returns the values of the names in the path; None for another path."""
        own = self.path.strip("/").split("/")
        if len(own) != len(segments):
            return None
        found = {}
        for name, segment in zip(own, segments, strict=True):
            if name.startswith("{"):
                found[name.strip("{}")] = segment
            elif name != segment:
                return None
        return found


_ONE = "/conversations/{conversation_id}"
ROUTES: Final = (
    Route("GET", "/conversations", Call.list_conversations, requests.ListConversations),
    Route(
        "POST",
        "/conversations",
        Call.create_conversation,
        body=requests.NewConversation,
        repeatable=False,
    ),
    Route("GET", _ONE, Call.conversation),
    Route("POST", _ONE, Call.change_conversation, body=requests.ChangedConversation),
    Route("DELETE", _ONE, Call.delete_conversation),
    Route("GET", f"{_ONE}/items", Call.list_items, requests.ListItems),
    Route(
        "POST",
        f"{_ONE}/items",
        Call.create_items,
        requests.Included,
        requests.NewItems,
        repeatable=False,
    ),
    Route("GET", f"{_ONE}/items/{{item_id}}", Call.item, requests.Included),
    Route("DELETE", f"{_ONE}/items/{{item_id}}", Call.delete_item, repeatable=False),
    Route("POST", f"{_ONE}/fork", Call.fork, body=requests.Fork, repeatable=False),
    Route("POST", f"{_ONE}/rewind", Call.rewind, body=requests.Rewind, repeatable=False),
    Route("GET", "/search", Call.search, requests.Search),
    Route("GET", "/metadata/{key}/values", Call.count_values, requests.CountValues),
)


def _shown(info: SessionInfo) -> Answer:
    return {
        "id": info.session_id,
        "object": "conversation",
        "created_at": int(info.created_at.timestamp()),
        "updated_at": int(info.updated_at.timestamp()),
        "metadata": info.metadata,
    }


def _list(data: list[Answer], cursor: str | None, *, has_more: bool = False) -> Answer:
    """`cursor` is that of the next page."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else "",
        "last_id": cursor or (data[-1]["id"] if data else ""),
        "has_more": has_more or cursor is not None,
    }


def _writable(metadata: Mapping[str, Any] | None) -> Mapping[str, Any]:
    for key in metadata or {}:
        if key in READ_ONLY:
            message = f"`{key}` is written by the server and cannot be changed."
            raise APIError(403, message, param=f"metadata.{key}", code="read_only")
    return metadata or {}


def _without_nulls(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if value is not None}


def _is_part(part: object) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str)


def _impossible_cut(error: ValueError) -> Exception:
    """Returns a 422 for a cut between a call and its output, otherwise the error itself."""
    return APIError(422, f"{error}.", code="impossible_cut") if type(error) is ValueError else error


def _log_corrupt(error: CorruptMetadataError) -> None:
    logger.warning("a metadata value was left out of an answer: %s", error)

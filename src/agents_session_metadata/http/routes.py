"""The routes and their handlers. Ids in paths are decoded; bodies and queries are checked.

The first line of a handler's docstring is its summary in the OpenAPI document.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from agents_session_metadata import ItemInfo, SessionCatalog, SessionInfo, keys
from agents_session_metadata.errors import (
    CorruptMetadataError,
    InvalidCursorError,
    InvalidFilterError,
    ItemExistsError,
    ItemNotFoundError,
    SessionChangedError,
    SessionNotFoundError,
)
from agents_session_metadata.text import quoted
from agents_session_metadata.types import JSONObject
from agents_session_metadata.values import id_problem

from . import requests
from .public_items import catalog_id, item_type, public_id, refused_id, shown_item
from .requests import APIError, invalid, not_found

if TYPE_CHECKING:
    from agents_session_metadata import SessionRuns

    from .app import SessionsApp

logger: logging.Logger = logging.getLogger("agents_session_metadata.http")

HIDDEN = keys.RUN_KEYS - {keys.STATUS, "run"} | {keys.TITLE_AUTO, keys.CHATKIT}
"""Metadata keys that no client sees or filters by, unless the application makes them public."""
READ_ONLY = (
    keys.RUN_KEYS | HIDDEN | {keys.AGENT, keys.PURPOSE, keys.FORKED_FROM, keys.FORKED_BEFORE}
)
"""Metadata keys that no client may write, besides those of the scope."""

LARGEST_PAGE = 16 << 20
"""Bytes of the stored items on a page."""
_COUNTED = 1000
"""The number of newest matching sessions whose values are counted."""
_ROLES = frozenset({"user", "assistant", "system", "developer"})
_CONTENT: Mapping[str, tuple[str, ...]] = {
    "input_text": ("text",),
    "output_text": ("text",),
    "text": ("text",),
    "summary_text": ("text",),
    "reasoning_text": ("text",),
    "refusal": ("refusal",),
    "computer_screenshot": ("image_url", "file_id"),
    "input_image": ("image_url", "file_id"),
    "input_file": ("file_data", "file_id", "file_url"),
    "input_audio": ("input_audio",),
}
"""The fields of a content part by type; it must have one of them."""
_TEXTS = frozenset({"type", "text", "refusal"})
"""The fields of content parts that must be strings."""
_PARTS: Mapping[str, tuple[str, ...]] = {
    "function_call_output": ("output",),
    "custom_tool_call_output": ("output",),
    "reasoning": ("summary", "content"),
}
"""The fields with content parts, besides the content of messages."""


@dataclass(frozen=True)
class Call:
    """A request to an application that has been checked. `catalog` is restricted to its scope."""

    app: SessionsApp
    request: Request
    catalog: SessionCatalog
    path: Mapping[str, str]
    query: Any
    body: Any

    @property
    def session_id(self) -> str:
        return self.path["conversation_id"]

    @property
    def runs(self) -> SessionRuns:
        """Those of the catalog, if the application has runs."""
        runs: Any = self.app.runs
        return cast("SessionRuns", runs.with_catalog(self.catalog))

    # ---- conversations ----

    async def conversation(self, session_id: str | None = None) -> JSONObject:
        """One conversation."""
        name = self.session_id if session_id is None else session_id
        info = await self.catalog.get_session(name, on_corrupt=_log_corrupt)
        if info is None:
            raise SessionNotFoundError(name)
        return self._shown(info)

    async def create_conversation(self) -> JSONObject:
        """Create a conversation, its metadata and items in one transaction."""
        metadata = _without_nulls(_writable(self.body.metadata))
        name = f"conv_{secrets.token_hex(24)}"
        items = self._checked(self.body.items or [])
        await self.catalog.create_session(name, metadata=metadata, items=items)
        return await self.conversation(name)

    async def change_conversation(self) -> JSONObject:
        """Merge metadata; null removes a key, and null in place of an object all of them."""
        corrupt: list[str] = []
        info = await self.catalog.get_session(
            self.session_id, on_corrupt=lambda error: corrupt.append(error.key)
        )
        if info is None:
            raise SessionNotFoundError(self.session_id)
        problem = id_problem(self.session_id)
        if problem is not None:
            raise APIError(400, f"The conversation cannot have metadata: its id {problem}.")
        changes = self.body.metadata
        if changes is None:
            kept = self.app.hidden | READ_ONLY | self.catalog.scope.keys()
            changes = dict.fromkeys({*info.metadata, *corrupt} - kept)
        removed = [key for key, value in _writable(changes).items() if value is None]
        await self.catalog.set_metadata(
            self.session_id, _without_nulls(changes), remove=removed, must_exist=True
        )
        return await self.conversation()

    async def delete_conversation(self) -> JSONObject:
        """Delete a conversation with its items and metadata."""
        if not await self.catalog.delete_session(self.session_id):
            raise SessionNotFoundError(self.session_id)
        return {"id": self.session_id, "object": "conversation.deleted", "deleted": True}

    async def list_conversations(self) -> JSONObject:
        """A page of conversations, ordered by activity."""
        query: requests.ListConversations = self.query
        page = await self.catalog.list_sessions(
            self._where(),
            order_by="-updated_at" if query.order == "desc" else "updated_at",
            limit=query.limit,
            cursor=query.after,
            preview=query.preview,
            on_corrupt=_log_corrupt,
        )
        data = [
            {**self._shown(info), **({"preview": info.preview} if query.preview else {})}
            for info in page.sessions
        ]
        return _list(data, page.next_cursor, has_more=page.next_cursor is not None)

    async def count_values(self) -> JSONObject:
        """Counts the conversations per value of a key, among the newest that match."""
        query: requests.CountValues = self.query
        key = self.path["key"]
        if key in self.app.hidden:
            raise invalid(f"`{key}` is not public.", "key")
        newest = await self.catalog.list_sessions(self._where(), limit=_COUNTED, keys=[])
        ids = [info.session_id for info in newest.sessions]
        counted = {"$session_id": {"$in": ids}}
        found = await self.catalog.count_values(key, counted, limit=query.limit + 1)
        return {
            "object": "list",
            "data": [{"value": each.value, "count": each.count} for each in found[: query.limit]],
            "has_more": len(found) > query.limit,
            "complete": newest.next_cursor is None,
        }

    async def fork(self) -> JSONObject:
        """Copy a conversation, or what comes before an item."""
        metadata = _without_nulls(_writable(self.body.metadata))
        before = await self._row("before")
        name = f"conv_{secrets.token_hex(24)}"
        try:
            await self.catalog.fork_session(self.session_id, name, metadata=metadata, before=before)
        except ValueError as error:
            raise _impossible_cut(error) from error
        return await self.conversation(name)

    async def rewind(self) -> JSONObject:
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
        shown, size = list[JSONObject](), 0
        for info in removed[: requests.LONGEST_PAGE]:
            size += len(json.dumps(info.item))
            if shown and size > LARGEST_PAGE:
                break
            shown.append(shown_item(info))
        return _list(shown, has_more=len(removed) > len(shown))

    async def search(self) -> JSONObject:
        """Messages and titles that contain all words of a query, the newest first."""
        query: requests.Search = self.query
        try:
            page = await self.catalog.search(
                query.q, self._where(), limit=query.limit, cursor=query.after
            )
        except (InvalidFilterError, InvalidCursorError):
            raise
        except ValueError as error:
            raise invalid(str(error), "q") from error
        data = [
            {
                "object": "search.hit",
                "conversation_id": hit.session_id,
                "item_id": hit.item_id and public_id(hit.item_id, hit.item),
                "created_at": int(hit.created_at.timestamp()),
                "role": hit.role,
                "snippet": hit.snippet,
                "highlights": hit.highlights,
            }
            for hit in page.hits
        ]
        more = page.next_cursor is not None
        return {**_list(data, page.next_cursor, has_more=more), "complete": page.complete}

    async def events(self) -> Response:
        """Changes of the newest 100 conversations that match, as server-sent events."""
        return self.app.streams.follow(self.catalog, self._where(), self._shown, _log_corrupt)

    # ---- items ----

    async def list_items(self) -> JSONObject:
        """A page of items."""
        query: requests.ListItems = self.query
        try:
            page = await self.catalog.list_items(
                self.session_id,
                limit=query.limit,
                newest_first=query.order == "desc",
                after=None if query.after is None else catalog_id(query.after),
                max_bytes=LARGEST_PAGE,
            )
        except ItemNotFoundError:
            message = f"Item with id {quoted(query.after)} not found."
            raise APIError(404, message, param="after") from None
        if not page.items and await self.catalog.get_session(self.session_id, keys=[]) is None:
            raise SessionNotFoundError(self.session_id)
        return _list(
            [shown_item(info) for info in page.items], has_more=page.next_cursor is not None
        )

    async def create_items(self) -> JSONObject:
        """Append items in one transaction."""
        items, key = self._checked(self.body.items), self.request.headers.get("idempotency-key")
        if key is not None and id_problem(key) is not None:
            raise invalid(f"The key {id_problem(key)}.", "Idempotency-Key")
        for item in items:
            # The catalog does not know the ids that items get over HTTP.
            if isinstance(catalog_id(item.get("id") or ""), int) and await self.find(item["id"]):
                raise ItemExistsError(self.session_id, item["id"])
        added = await self.catalog.add_items(self.session_id, items, key=key, unique_ids=True)
        return _list([shown_item(info) for info in added])

    async def item(self) -> JSONObject:
        """One item."""
        info = await self.find(self.path["item_id"])
        if info is None:
            raise not_found("Item", self.path["item_id"])
        return shown_item(info)

    async def delete_item(self) -> JSONObject:
        """Delete one item."""
        item_id = self.path["item_id"]
        info = await self.find(item_id)
        try:
            if info is None:
                raise not_found("Item", item_id)
            await self.catalog.delete_item(self.session_id, info.item_id)
        except ItemNotFoundError:
            raise not_found("Item", item_id) from None
        return await self.conversation()

    # ---- parts ----

    async def find(self, item_id: str) -> ItemInfo | None:
        """Returns None if the conversation exists without the item."""
        try:
            info = await self.catalog.get_item(self.session_id, catalog_id(item_id))
        except ItemNotFoundError:
            return None
        return info if public_id(info.item_id, info.item) == item_id else None

    async def _row(self, name: Literal["before", "expect_last"]) -> int | None:
        item_id = getattr(self.body, name)
        if item_id is None:
            return None
        info = await self.find(item_id)
        if info:
            return info.item_id
        if name == "before":
            raise invalid("`before` is not an item of this conversation.", "before")
        raise SessionChangedError(self.session_id)

    def _shown(self, info: SessionInfo) -> JSONObject:
        metadata = {key: info.metadata[key] for key in info.metadata if key not in self.app.hidden}
        return {
            "id": info.session_id,
            "object": "conversation",
            "created_at": int(info.created_at.timestamp()),
            "updated_at": int(info.updated_at.timestamp()),
            "metadata": metadata,
        }

    def _where(self) -> Any:
        """Returns the filter of the query, which must not tell what a hidden key contains."""
        parts: list[Any] = [self.query.where]
        while parts:
            part = parts.pop()
            for key, operand in part.items() if isinstance(part, dict) else ():
                if key in self.app.hidden:
                    raise invalid(f"`{key}` is not public.", "where")
                if key in ("$and", "$or", "$not"):
                    parts += operand if isinstance(operand, list) else [operand]
        return self.query.where

    def _checked(self, items: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        ids = []
        for index, item in enumerate(items):
            param = f"items[{index}]"
            self._check(item, param)
            if item.get("id") in ids:
                message = f"{param}.id: another item has the same id."
                raise APIError(400, message, param=f"{param}.id", code=requests.REPEATED)
            ids += [item["id"]] if item.get("id") else []
        return items

    def _check(self, item: dict[str, Any], param: str) -> None:
        kind, role, content = item_type(item), item.get("role"), item.get("content")
        if not isinstance(item.get("type", kind), str) or kind in ("unknown", "item_reference"):
            raise invalid(f"{param}: must have a `type` or a `role`.", f"{param}.type")
        prefix = refused_id(item)
        if prefix is not None:
            message = f"Invalid '{param}.id': {quoted(item['id'])}. Expected an ID that begins with"
            raise invalid(f"{message} '{prefix}'.", f"{param}.id")
        if kind == "message":
            if not isinstance(role, str) or role not in _ROLES:
                names = ", ".join(sorted(_ROLES))
                raise invalid(f"{param}.role: must be one of {names}.", f"{param}.role")
            if not isinstance(content, (str, list)):
                message = f"{param}.content: must be a string or a list of parts."
                raise invalid(message, f"{param}.content")
        for name in ("content",) if kind == "message" else _PARTS.get(kind, ()):
            if isinstance(item.get(name), list):
                _check_parts(item[name], f"{param}.{name}")
        roles = self.app.allow_roles
        if roles is not None and (kind != "message" or role not in roles):
            names = ", ".join(sorted(roles)) or "none"
            message = f"{param}: only messages with these roles can be appended: {names}."
            raise APIError(403, message, param=param, code="role_not_allowed")


@dataclass(frozen=True)
class Route:
    """A route. A name in braces in its path matches any segment.

    A client can safely send a `repeatable` request twice.
    """

    method: str
    path: str
    run: Callable[[Call], Awaitable[JSONObject | Response]]
    query: type[BaseModel] = requests.Query
    body: type[BaseModel] | None = None
    repeatable: bool = True

    def match(self, segments: Sequence[str]) -> dict[str, str] | None:
        """Returns the values of the names in the path; None for another path."""
        own = self.path.split("/")[1:]
        pairs = list(zip(own, segments, strict=False))
        others = [name for name, segment in pairs if name[0] != "{" and name != segment]
        if others or len(own) != len(segments):
            return None
        return {name.strip("{}"): segment for name, segment in pairs}


ONE = "/conversations/{conversation_id}"
ROUTES = (
    Route("GET", "/conversations", Call.list_conversations, requests.ListConversations),
    Route(
        "POST",
        "/conversations",
        Call.create_conversation,
        body=requests.NewConversation,
        repeatable=False,
    ),
    Route("GET", ONE, Call.conversation),
    Route("POST", ONE, Call.change_conversation, body=requests.ChangedConversation),
    Route("DELETE", ONE, Call.delete_conversation),
    Route("GET", f"{ONE}/items", Call.list_items, requests.ListItems),
    Route(
        "POST",
        f"{ONE}/items",
        Call.create_items,
        requests.Included,
        requests.NewItems,
        repeatable=False,
    ),
    Route("GET", f"{ONE}/items/{{item_id}}", Call.item, requests.Included),
    Route("DELETE", f"{ONE}/items/{{item_id}}", Call.delete_item, repeatable=False),
    Route("POST", f"{ONE}/fork", Call.fork, body=requests.Fork, repeatable=False),
    Route("POST", f"{ONE}/rewind", Call.rewind, body=requests.Rewind, repeatable=False),
    Route("GET", "/events", Call.events, requests.Matching),
    Route("GET", "/search", Call.search, requests.Search),
    Route("GET", "/metadata/{key}/values", Call.count_values, requests.CountValues),
)


def _list(
    data: list[JSONObject], last_id: str | None = None, *, has_more: bool = False
) -> JSONObject:
    """`last_id` is what the next page begins after, if that is not the last id."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0].get("id") if data else None,
        "last_id": last_id or (data[-1].get("id") if data else None),
        "has_more": has_more,
    }


def _writable(metadata: Mapping[str, Any] | None) -> Mapping[str, Any]:
    for key in metadata or {}:
        if key in READ_ONLY:
            message = f"`{key}` is written by the server and cannot be changed."
            raise APIError(403, message, param=f"metadata.{key}", code="read_only")
    return metadata or {}


def _without_nulls(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if value is not None}


def _check_parts(parts: Sequence[object], param: str) -> None:
    """Refuses a part without its content, in OpenAI's words."""
    for index, part in enumerate(parts):
        at = f"{param}[{index}]"
        if not isinstance(part, dict):
            message = f"Invalid type for '{at}': expected an object."
            raise APIError(400, message, param=at, code="invalid_type")
        kind = part.get("type")
        fields = _CONTENT.get(kind, ()) if isinstance(kind, str) else ("type",)
        for name in _TEXTS.intersection(fields, part):
            if not isinstance(part[name], str):
                message = f"Invalid type for '{at}.{name}': expected a string."
                raise APIError(400, message, param=f"{at}.{name}", code="invalid_type")
        if fields and all(part.get(name) is None for name in fields):
            at = f"{at}.{fields[0]}"
            message = f"Missing required parameter: '{at}'."
            raise APIError(400, message, param=at, code="missing_required_parameter")


def _impossible_cut(error: ValueError) -> Exception:
    """Returns a 422 for a cut between a call and its output, otherwise the error itself."""
    return APIError(422, f"{error}.", code="impossible_cut") if type(error) is ValueError else error


def _log_corrupt(error: CorruptMetadataError) -> None:
    logger.warning("a metadata value was left out of an answer: %s", error)

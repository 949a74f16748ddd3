"""Models of bodies and queries, functions that read them, and errors in OpenAI's format.

Messages of errors come from this package or are written here. Messages of a database or a driver go
to the server's log only.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from agents_session_metadata import is_unavailable
from agents_session_metadata.errors import (
    CorruptMetadataError,
    InvalidCursorError,
    InvalidFilterError,
    InvalidMetadataError,
    ItemExistsError,
    KeyReusedError,
    MetadataLimitError,
    ScopeError,
    SessionBusyError,
    SessionChangedError,
    SessionNotFoundError,
    SessionPausedError,
    TablesMissingError,
)
from agents_session_metadata.text import quoted, strict_json
from agents_session_metadata.types import JSONObject
from agents_session_metadata.values import value_problem

MOST_ITEMS = 20
"""Items per request, as in OpenAI's API."""
LONGEST_PAGE = 100
LONGEST_SEARCH = 2_000
"""Characters of a search query."""
REPEATED = "item_already_in_conversation"
_LONGEST_FILTER = 32_768

M = TypeVar("M", bound=BaseModel)


def _filter(text: object) -> object:
    return strict_json(text, duplicates=True) if isinstance(text, str) else text


def _storable(item: object) -> object:
    """Refuses an item that cannot be stored, or not be read again, such as a deeply nested one."""
    problem = value_problem(item)
    if problem is not None:
        raise ValueError(problem[1])
    return item


Item = Annotated[
    JSONObject, BeforeValidator(_storable), Field(description="An input item of OpenAI's API.")
]
Items = Annotated[list[Item], Field(max_length=MOST_ITEMS)]
Metadata = Annotated[
    JSONObject,
    Field(description="JSON values by key. null removes a key. Keys of the server are read-only."),
]
ItemId = Annotated[str, Field(min_length=1, max_length=255)]
Include = Annotated[
    list[str] | None,
    Field(description="Accepted and not required: responses contain all stored fields."),
]
After = Annotated[str | None, Field(description="The `last_id` of the previous page.")]
AfterItem = Annotated[
    str | None, Field(description="The id of an item: the `last_id` of the previous page.")
]
Limit = Annotated[int, Field(ge=1, le=LONGEST_PAGE, description="The maximum number of results.")]
Order = Annotated[Literal["asc", "desc"], Field(description="desc: newest first.")]
Filter = Annotated[
    JSONObject | None,
    Field(description="A metadata filter, as JSON text."),
    BeforeValidator(_filter),
]


class _Body(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


class Query(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class NewConversation(_Body):
    """Create a conversation."""

    items: Items | None = None
    metadata: Metadata | None = None


class ChangedConversation(_Body):
    """Merge metadata. null removes all that is public and can be written."""

    metadata: Metadata | None


class NewItems(_Body):
    """Append items."""

    items: Items


class Fork(_Body):
    """Copy a conversation, or its beginning."""

    before: Annotated[ItemId | None, Field(description="The first item that is not copied.")] = None
    metadata: Metadata | None = None


class Rewind(_Body):
    """Remove the end of a conversation."""

    turns: Annotated[int | None, Field(ge=1, description="The number of turns to remove.")] = None
    before: Annotated[ItemId | None, Field(description="The first item to remove.")] = None
    expect_last: Annotated[
        ItemId | None, Field(description="The id that the newest item must have.")
    ] = None


class Included(Query):
    include: Include = None


class ListItems(Included):
    after: AfterItem = None
    limit: Limit = 20
    order: Order = "desc"


class Matching(Query):
    where: Filter = None


class CountValues(Matching):
    limit: Limit = 20


class _Page(CountValues):
    after: After = None


class ListConversations(_Page):
    order: Order = "desc"
    preview: Annotated[
        bool, Field(description="Whether to return the beginning of the first user message.")
    ] = False


class FollowRun(Query):
    after: Annotated[
        str | None, Field(description="The id of the item after which the snapshot begins.")
    ] = None
    forever: Annotated[
        bool, Field(description="Whether to go on with the resumed or the next run.")
    ] = False


class Decide(_Body):
    """Decide about a call."""

    call_id: str
    approve: bool
    message: Annotated[
        str | None, Field(description="What the model receives for a rejected call.")
    ] = None


class Search(_Page):
    q: Annotated[str, Field(description="The words.", min_length=1, max_length=LONGEST_SEARCH)]


def valid_json(value: Any) -> str:
    """Returns JSON in ASCII, with null in place of stored NaN and infinities."""
    text = json.dumps(value, separators=(",", ":"))
    if "NaN" in text or "Infinity" in text:
        value = json.loads(text, parse_constant=lambda _: None)
        return json.dumps(value, separators=(",", ":"))
    return text


async def call_with(function: Callable[[Request], Any], request: Request) -> Any:
    """Calls a function of the application, sync or async, with a request."""
    found = function(request)
    return await found if inspect.isawaitable(found) else found


async def read_body(request: Request, model: type[M], most: int, timeout: float) -> M:
    kind, _, options = request.headers.get("content-type", "").partition(";")
    charset = options.strip().lower().replace('"', "")
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        # A page of another site can send other types without asking the server first.
        raise APIError(415, "The content type must be application/json.", code="content_type")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise APIError(415, "The body must not be compressed.", code="content_encoding")
    body = await read_bytes(request, most, timeout)
    try:
        value = strict_json(body.decode(), duplicates=True)
    except ValueError as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise invalid(f"The body is not valid JSON: {reason}.") from None
    if not isinstance(value, dict):
        raise invalid("The body must be a JSON object.")
    return _validated(model, value)


async def read_bytes(request: Request, most: int, timeout: float) -> bytes:
    """Raises 413 for a body of more than `most` bytes, and 408 if it takes too long."""
    close = {"Connection": "close"}
    try:
        body = await asyncio.wait_for(_bytes(request, most), timeout)
    except asyncio.TimeoutError:
        message = "The body did not arrive in time."
        raise APIError(408, message, code="timeout", headers=close) from None
    except ClientDisconnect:
        raise invalid("The body is incomplete.") from None
    if body is None:
        message = f"The body is larger than {most:,} bytes."
        raise APIError(413, message, code="too_large", headers=close)
    return body


async def _bytes(request: Request, most: int) -> bytes | None:
    """Reads and drops twice the maximum: many clients see no answer before all is sent."""
    body, size = bytearray(), 0
    async for part in request.stream():
        size += len(part)
        if size > 2 * most:
            return None
        if size <= most:
            body += part
    return bytes(body) if size <= most else None


def read_query(request: Request, model: type[M]) -> M:
    given: JSONObject = {}
    for name, value in request.query_params.multi_items():
        # Clients write lists as `include`, `include[]` or `include[0]`.
        base = name.partition("[")[0]
        if base == "include" and "include" in model.model_fields:
            given.setdefault(base, []).append(value)
        elif name in given:
            raise invalid(f"`{name}` is given twice.", name)
        elif name == "where" and len(value) > _LONGEST_FILTER:
            raise invalid(f"`where` has more than {_LONGEST_FILTER} characters.", name)
        else:
            given[name] = value
    return _validated(model, given)


def _validated(model: type[M], given: Mapping[str, Any]) -> M:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        param = _path(first["loc"])
        problem = first["msg"].removeprefix("Value error, ")
        raise invalid(f"{param}: {problem}.", param) from None


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return path[:200]


logger: logging.Logger = logging.getLogger("agents_session_metadata.http")

RETRY_AFTER = "1"
"""Seconds after which a client can retry when the database is not available."""


@dataclass(eq=False)
class APIError(Exception):
    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] | None = None

    @property
    def body(self) -> JSONObject:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def invalid(message: str, param: str | None = None) -> APIError:
    return APIError(400, message, param=param, code="invalid_value")


def not_found(what: str, name: str) -> APIError:
    return APIError(404, f"{what} with id {quoted(name)} not found.", code="not_found")


def answer_to(error: Exception) -> APIError:
    """Returns the response to an error. The message of an unexpected error is only logged."""
    match error:
        case APIError():
            return error
        case HTTPException():
            given: object = error.detail
            message = given if isinstance(given, str) else "the request was refused"
            return APIError(error.status_code, message, headers=error.headers)
        case SessionNotFoundError():
            return not_found("Conversation", error.session_id)
        case ItemExistsError():
            message = f"The conversation already has the item {error.item_id}."
            return APIError(400, message, param="items", code=REPEATED)
        case KeyReusedError():
            message = "The key was used for a request with another body."
            return APIError(422, message, param="Idempotency-Key", code="idempotency_key_reused")
        case ScopeError():
            if error.key is None:
                message = "You can read these conversations, but not change them."
                return APIError(403, message, code="read_only")
            message = f"`{error.key}` is written by the server and cannot be changed."
            return APIError(403, message, param=f"metadata.{error.key}", code="read_only")
        case InvalidFilterError():
            return invalid(str(error), "key" if error.path == "key" else "where")
        case InvalidCursorError():
            message = "`after` is invalid, or belongs to another list, order or filter."
            return invalid(message, "after")
        case CorruptMetadataError():
            param, headers = f"metadata.{error.key}", {"x-should-retry": "false"}
            return APIError(500, str(error), param, "corrupt_metadata", headers)
        case MetadataLimitError():
            return APIError(422, str(error), param=f"metadata.{error.key}", code=error.limit)
        case InvalidMetadataError():
            return invalid(str(error), f"metadata.{error.key}")
        case SessionChangedError():
            message = "The conversation has changed: `expect_last` is not its newest item."
            return APIError(409, message, param="expect_last", code="conversation_changed")
        case SessionPausedError():
            message = "A run of the conversation waits for approvals."
            return APIError(409, message, code="conversation_paused")
        case SessionBusyError():
            message = "A run of the conversation works or is interrupted."
            return APIError(409, message, code="conversation_busy")
        case TablesMissingError():
            logger.warning("%s", error)
            message = "The database of the server is not set up for this request."
            # OpenAI's clients repeat every 5xx by themselves.
            headers = {"x-should-retry": "false"}
            return APIError(501, message, code="not_available", headers=headers)
        case _ if is_unavailable(error):
            logger.warning("the database is not available", exc_info=error)
            message = "The database is not available. Try again later."
            headers = {"Retry-After": RETRY_AFTER}
            return APIError(503, message, code="unavailable", headers=headers)
        case _:
            logger.error("request failed", exc_info=error)
            message = "The server had an error while processing the request."
            return APIError(500, message, code="internal")

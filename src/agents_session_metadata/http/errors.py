"""HTTP errors in OpenAI's format, and the status of each exception.

Messages come from this package or are written here. Messages of a database or a driver go to the
server's log only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException

from agents_session_metadata.errors import (
    CorruptMetadataError,
    InvalidCursorError,
    InvalidFilterError,
    InvalidMetadataError,
    MetadataLimitError,
    ScopeError,
    SessionChangedError,
    SessionExistsError,
    SessionNotFoundError,
    SessionPausedError,
)
from agents_session_metadata.text import quoted

logger: logging.Logger = logging.getLogger("agents_session_metadata.http")

RETRY_AFTER: Final = "1"
"""Seconds after which a client can retry when the database is not available."""


class APIError(Exception):
    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers: dict[str, str] = dict(headers or {})
        super().__init__(message)

    @property
    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def invalid(message: str, param: str | None = None) -> APIError:
    return APIError(400, message, param=param, code="invalid_value")


def not_available(message: str) -> APIError:
    # OpenAI's clients repeat every 5xx by themselves.
    return APIError(501, message, code="not_available", headers={"x-should-retry": "false"})


def conversation_not_found(session_id: str) -> APIError:
    """Returns the same error for a missing conversation as for one outside the scope."""
    return _not_found(f"Conversation with id {quoted(session_id)} not found.")


def item_not_found(item_id: str) -> APIError:
    return _not_found(f"Item with id {quoted(item_id)} not found.")


def _not_found(message: str) -> APIError:
    return APIError(404, message, code="not_found")


def answer_to(error: Exception) -> APIError:
    """Returns the response to an error. The message of an unexpected error is only logged."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, HTTPException):
        given: object = error.detail
        detail = given if isinstance(given, str) else "the request was refused"
        return APIError(error.status_code, detail, headers=error.headers)
    known = _known(error)
    if known is not None:
        return known
    if _is_unavailable(error):
        logger.warning("the database is not available", exc_info=error)
        message = "The database is not available. Try again later."
        headers = {"Retry-After": RETRY_AFTER}
        return APIError(503, message, code="unavailable", headers=headers)
    logger.error("request failed", exc_info=error)
    return APIError(500, "The server had an error while processing the request.", code="internal")


def _known(error: Exception) -> APIError | None:
    if isinstance(error, SessionNotFoundError):
        return conversation_not_found(error.session_id)
    if isinstance(error, ScopeError):
        return APIError(403, str(error), param=f"metadata.{error.key}", code="read_only")
    if isinstance(error, InvalidFilterError):
        return invalid(str(error), "key" if error.path == "key" else "where")
    if isinstance(error, InvalidCursorError):
        message = "`after` is invalid, or belongs to another list, order or filter."
        return invalid(message, "after")
    if isinstance(error, CorruptMetadataError):
        # OpenAI's clients repeat every 5xx by themselves.
        headers = {"x-should-retry": "false"}
        param = f"metadata.{error.key}"
        return APIError(500, str(error), param=param, code="corrupt_metadata", headers=headers)
    if isinstance(error, MetadataLimitError):
        return APIError(422, str(error), param=f"metadata.{error.key}", code=error.limit)
    if isinstance(error, InvalidMetadataError):
        return invalid(str(error), f"metadata.{error.key}")
    if isinstance(error, SessionChangedError):
        message = "The conversation has changed: `expect_last` is not its newest item."
        return APIError(409, message, param="expect_last", code="conversation_changed")
    if isinstance(error, SessionPausedError):
        return APIError(409, str(error), code="conversation_paused")
    if isinstance(error, SessionExistsError):
        return APIError(409, "A conversation with this id already exists.", code="exists")
    return None


def _is_unavailable(error: Exception) -> bool:
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or isinstance(error, (OperationalError, InterfaceError))
    return isinstance(error, (PoolTimeoutError, OSError, asyncio.TimeoutError))

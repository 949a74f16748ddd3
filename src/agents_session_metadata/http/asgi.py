"""The arguments of the ASGI applications, and the scope of a request."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.types import Receive, Send

from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.errors import InvalidFilterError

GetScope: TypeAlias = (
    "Callable[[Request], Mapping[str, Any] | Awaitable[Mapping[str, Any] | None] | None]"
)
"""Returns the metadata values that every session of a request has; plain or async."""


def check_arguments(catalog: object, get_scope: object) -> None:
    if not isinstance(catalog, SessionCatalog):
        raise TypeError(f"catalog must be a SessionCatalog, got {type(catalog).__name__}")
    if get_scope is not None and not callable(get_scope):
        raise TypeError(f"scope must be a function or None, got {type(get_scope).__name__}")


async def scoped_catalog(
    catalog: SessionCatalog, get_scope: GetScope | None, request: Request
) -> SessionCatalog | None:
    """Returns None if the request has no scope; without `get_scope`, the whole catalog."""
    if get_scope is None:
        return catalog
    values = get_scope(request)
    if inspect.isawaitable(values):
        values = await values
    if not values or any(value is None for value in values.values()):
        return None
    try:
        return catalog.scoped(values)
    except InvalidFilterError as error:
        raise TypeError("the scope of a request must contain JSON values") from error


async def accept_lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return

"""What the ASGI applications have in common: their arguments, and the scope of a request."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.types import Receive, Send

from .catalog import SessionCatalog
from .errors import InvalidFilterError

GetScope: TypeAlias = (
    "Callable[[Request], Mapping[str, Any] | Awaitable[Mapping[str, Any] | None] | None]"
)
"""Gives the metadata values that every session of a request has; plain or async."""


def check_arguments(catalog: object, get_scope: object) -> None:
    """Refuse an argument of the wrong type.

    Raises:
        TypeError: If one has it.
    """
    if not isinstance(catalog, SessionCatalog):
        raise TypeError(f"catalog must be a SessionCatalog, got {type(catalog).__name__}")
    if get_scope is not None and not callable(get_scope):
        raise TypeError(f"scope must be a function or None, got {type(get_scope).__name__}")


async def scoped_catalog(
    catalog: SessionCatalog, get_scope: GetScope | None, request: Request
) -> SessionCatalog | None:
    """The catalog, restricted to the scope of a request; None if the request has no scope.

    Without a function that gives scopes, every request gets the whole catalog.

    Raises:
        TypeError: If the scope is not one of JSON values.
    """
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
    """Answer the server's messages about start and shutdown."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return

"""The application: finds the route and the scope of a request, and answers.

No connection to the database is held while a body is read or an answer is sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, unquote_to_bytes

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agents_session_metadata import SessionCatalog
from agents_session_metadata.errors import InvalidFilterError
from agents_session_metadata.types import JSONObject

from .events import Streams
from .openapi import document
from .requests import APIError, answer_to, call_with, read_body, read_query, valid_json
from .routes import HIDDEN, ROUTES, Call, Route
from .run_routes import DECISIONS, RUN_ROUTES

if TYPE_CHECKING:
    from agents_session_metadata import SessionRuns

MAX_BODY = 8 * 2**20
BODY_TIMEOUT = 60.0
MAX_STREAMS, MAX_STREAMS_PER_SCOPE = 100, 10


def sessions_app(
    catalog: SessionCatalog,
    *,
    scope: GetScope | None,
    allow_roles: Collection[str] | None = ("user",),
    public_keys: Collection[str] = (),
    max_body: int = MAX_BODY,
    body_timeout: float = BODY_TIMEOUT,
    max_streams: int = MAX_STREAMS,
    max_streams_per_scope: int = MAX_STREAMS_PER_SCOPE,
    runs: SessionRuns | None = None,
    allow_decisions: AllowDecisions = False,
) -> ASGIApp:
    """Create an ASGI application that serves a catalog over OpenAI's Conversations API.

    A conversation is a session: the API and `SQLAlchemyMetadataSession` read and write the same
    history. Mount the application behind your own authentication.

    Args:
        catalog: The catalog.
        scope: A function, sync or async, that is called for every request with Starlette's
            `Request` and returns the scope, such as `{"owner_id": user_id}`. If it returns nothing,
            or a value is `None`, the response is 403. It can raise Starlette's or FastAPI's
            `HTTPException`. It can also return a catalog with the same tables: `catalog` itself for
            an administrator, or a part that `catalog.readable` shares, where a write is answered
            with 403. `None` instead of a function serves every session to every caller.
        allow_roles: The roles of messages that a client can append. Other items, such as tool calls
            and their outputs, are refused. `None` allows every item. Use it only for trusted
            clients, such as the SDK's `OpenAIConversationsSession` on a server.
        public_keys: Metadata keys that clients see, count and filter by, although they belong to
            those that are hidden: what the tracker, the lifecycle, runs, titles and ChatKit store,
            such as `cost`. `last_error` can contain internals of the server.
        max_body: The maximum size of a body in bytes. The response to a larger body is 413.
        body_timeout: The number of seconds in which a body must arrive. Otherwise, the response is
            408.
        max_streams: The maximum number of open streams of events. The response to another one is
            503.
        max_streams_per_scope: The maximum number of them in one scope, so that one user cannot take
            those of all others.
        runs: The runs of the catalog. With them, clients can follow and cancel the run of a
            conversation. Each request is restricted to its scope.
        allow_decisions: Whether clients can approve and reject calls of waiting runs. A function,
            sync or async, is called with Starlette's `Request` and returns the name of who decides,
            stored by `SessionRuns.decide`. If it returns nothing, the response is 403.

    Returns:
        The application.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If `max_body`, `body_timeout` or a number of streams is not positive, or
            `allow_decisions` is given without `runs`.
    """
    check_catalog(catalog, scope)
    for name, given in (("allow_roles", allow_roles), ("public_keys", public_keys)):
        if isinstance(given, str):
            raise TypeError(f"{name} must be a list, not the string {given!r}")
    if min(max_body, max_streams, max_streams_per_scope) < 1 or body_timeout <= 0:
        raise ValueError(
            "max_body, body_timeout, max_streams and max_streams_per_scope must be positive"
        )
    if runs is not None and not hasattr(runs, "with_catalog"):
        raise TypeError(f"runs must be SessionRuns, got {type(runs).__name__}")
    if runs is None and allow_decisions:
        raise ValueError("allow_decisions requires runs")
    routes: tuple[Route, ...] = ROUTES
    if runs is not None:
        routes += (*RUN_ROUTES, *([DECISIONS] if allow_decisions else []))
    return SessionsApp(
        catalog,
        scope,
        HIDDEN - frozenset(public_keys),
        None if allow_roles is None else frozenset(allow_roles),
        max_body,
        body_timeout,
        routes,
        document(routes),
        Streams(max_streams, max_streams_per_scope),
        runs,
        allow_decisions,
    )


def check_catalog(catalog: object, get_scope: object) -> None:
    if not isinstance(catalog, SessionCatalog):
        raise TypeError(f"catalog must be a SessionCatalog, got {type(catalog).__name__}")
    if get_scope is not None and not callable(get_scope):
        raise TypeError(f"scope must be a function or None, got {type(get_scope).__name__}")


class HTTPApp:
    """Answers HTTP requests, accepts the server's lifespan, and refuses a WebSocket."""

    async def respond(self, request: Request) -> Response:
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            response = await self.respond(Request(scope, receive))
            await response(scope, receive, send)
        elif scope["type"] != "lifespan":
            await send({"type": "websocket.close", "code": 1008})
        else:
            stage = ""
            while stage != "lifespan.shutdown":
                stage = (await receive())["type"]
                await send({"type": f"{stage}.complete"})


@dataclass(frozen=True)
class SessionsApp(HTTPApp):
    """The arguments of `sessions_app`, its routes and the streams that are open.

    `hidden` are the keys of metadata that no client sees.
    """

    catalog: SessionCatalog
    get_scope: GetScope | None
    hidden: frozenset[str]
    allow_roles: frozenset[str] | None
    max_body: int
    body_timeout: float
    routes: tuple[Route, ...]
    document: JSONObject
    streams: Streams
    runs: SessionRuns | None
    allow_decisions: AllowDecisions

    async def respond(self, request: Request) -> Response:
        repeatable = True
        try:
            catalog = await scoped_catalog(self.catalog, self.get_scope, request)
            if catalog is None:
                raise APIError(
                    403, "You do not have access to these conversations.", code="no_scope"
                )
            segments = _segments(request.scope)
            if segments == ["openapi.json"] and request.method == "GET":
                return _Answer(self.document)
            route, path = _find(self.routes, request.method, segments)
            repeatable = route.repeatable
            query, body = read_query(request, route.query), None
            if route.body is not None:
                body = await read_body(request, route.body, self.max_body, self.body_timeout)
            answer = await route.run(Call(self, request, catalog, path, query, body))
            return answer if isinstance(answer, Response) else _Answer(answer)
        except Exception as error:  # noqa: BLE001  # told to the client, without its message
            problem = answer_to(error)
            answer = _Answer(problem.body, problem.status, problem.headers)
            if problem.status == 409 or (problem.status >= 500 and not repeatable):
                # OpenAI's clients repeat such requests by themselves.
                answer.headers["x-should-retry"] = "false"
            return answer


def _segments(scope: Scope) -> list[str]:
    """Returns the segments below the mount point. An id may contain an encoded slash."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    try:
        segments = [unquote_to_bytes(part).decode() for part in raw.partition(b"?")[0].split(b"/")]
    except UnicodeDecodeError:
        raise _no_route() from None
    root: str = scope.get("root_path", "").rstrip("/")
    # A proxy may have removed its own part of the path, which `app_root_path` names.
    for mount in (root, root.removeprefix(scope.get("app_root_path", ""))):
        mounted = mount.split("/")
        if segments[: len(mounted)] == mounted:
            return segments[len(mounted) :]
    return segments[1:]


def _find(
    routes: Iterable[Route], method: str, segments: list[str]
) -> tuple[Route, dict[str, str]]:
    matches = [(route, route.match(segments)) for route in routes]
    found = {route.method: (route, path) for route, path in matches if path is not None}
    if method in found:
        return found[method]
    if found:
        headers = {"Allow": ", ".join(sorted(found))}
        message = "The route does not support this method."
        raise APIError(405, message, code="method", headers=headers)
    raise _no_route()


def _no_route() -> APIError:
    return APIError(404, "The route does not exist.", code="no_route")


class _Answer(JSONResponse):
    def __init__(
        self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        # Metadata and messages are not for caches, nor for a browser to guess what they are.
        own = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        super().__init__(content, status, {**own, **(headers or {})})

    def render(self, content: Any) -> bytes:
        """Returns valid JSON in UTF-8, even for stored NaN, infinities and lone surrogates."""
        try:
            return super().render(content)
        except ValueError:
            return valid_json(content).encode()


RequestScope: TypeAlias = "Mapping[str, Any] | SessionCatalog | None"
GetScope: TypeAlias = "Callable[[Request], RequestScope | Awaitable[RequestScope]]"
"""Returns the metadata values that every session of a request has, or a catalog; plain or async."""

AllowDecisions: TypeAlias = "bool | Callable[[Request], str | Awaitable[str | None] | None]"
"""Whether clients decide about calls, or a function that names who does."""


async def scoped_catalog(
    catalog: SessionCatalog, get_scope: GetScope | None, request: Request
) -> SessionCatalog | None:
    """Returns None if the request has no scope; without `get_scope`, the whole catalog."""
    if get_scope is None:
        return catalog
    values = await call_with(get_scope, request)
    if isinstance(values, SessionCatalog):
        return values
    if not values or any(value is None for value in values.values()):
        return None
    try:
        return catalog.scoped(values)
    except InvalidFilterError as error:
        raise TypeError("the scope of a request must contain JSON values") from error

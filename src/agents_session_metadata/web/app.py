"""The application: checks a request, finds its page and its scope, and answers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp

from agents_session_metadata import SessionCatalog
from agents_session_metadata.errors import (
    InvalidCursorError,
    ItemNotFoundError,
    SessionBusyError,
    SessionChangedError,
    SessionNotFoundError,
    SessionPausedError,
)
from agents_session_metadata.http.app import (
    MAX_STREAMS,
    MAX_STREAMS_PER_SCOPE,
    GetScope,
    HTTPApp,
    check_catalog,
    scoped_catalog,
)
from agents_session_metadata.http.events import Streams
from agents_session_metadata.http.requests import answer_to

from . import list_page, runs_page, selection, session_page, statistics_page
from .call import HEADERS, DecidedBy, PageCall, check_request

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")

_READ = {
    "/": list_page.sessions,
    "/session": session_page.session,
    "/session.json": session_page.raw,
    "/item": session_page.item,
    "/runs": runs_page.page,
    "/statistics": statistics_page.page,
    "/events": list_page.events,
    "/run-events": runs_page.events,
}
_SHOWN = {"/", "/session", "/runs", "/statistics"}
_ASK = {"/delete": session_page.ask_delete, "/rewind": session_page.ask_rewind}
_WRITE = {
    "/edit": session_page.edit,
    "/fork": session_page.fork,
    "/delete": session_page.delete,
    "/rewind": session_page.rewind,
    "/approve": runs_page.approve,
    "/reject": runs_page.reject,
    "/discard": runs_page.discard,
    "/stop": runs_page.stop,
    "/tag": selection.tag,
    "/archive": selection.archive,
    "/export": selection.export,
    "/delete-selected": selection.delete,
}
_FILES = {
    f"/{name}": ((files("agents_session_metadata.web") / "static" / name).read_bytes(), media_type)
    for name, media_type in (
        ("style.css", "text/css"),
        ("page.js", "text/javascript"),
        ("live.js", "text/javascript"),
        ("icon.svg", "image/svg+xml"),
    )
}


_REFUSALS = (
    # The same for a missing session as for one outside the scope.
    (SessionNotFoundError, 404, "The session does not exist."),
    (ItemNotFoundError, 404, "The item does not exist any more."),
    (InvalidCursorError, 400, "This page belongs to another list. Go back to the first page."),
    (SessionChangedError, 409, "The history has changed in the meantime. Reload the session."),
    (SessionPausedError, 409, "A run of the session waits for approvals. Decide or discard it."),
    (SessionBusyError, 409, "A run of the session works or is interrupted. Try again later."),
)


def browser_app(
    catalog: SessionCatalog,
    *,
    scope: GetScope | None,
    allow_write: bool = False,
    allowed_hosts: Collection[str] = LOCAL_HOSTS,
    login: str | None = None,
    by: DecidedBy = None,
    currency: str = "$",
    max_streams: int = MAX_STREAMS,
    max_streams_per_scope: int = MAX_STREAMS_PER_SCOPE,
) -> ASGIApp:
    """Create an ASGI application with pages that show the sessions of a catalog.

    Mount it behind your own authentication. Pages are rendered on the server and load nothing from
    other servers.

    Args:
        catalog: The catalog.
        scope: A function, sync or async, that is called for every request with Starlette's
            `Request` and returns the scope, such as `{"owner_id": user_id}`. If it returns nothing,
            or a value is `None`, the response is 403. It can raise Starlette's or FastAPI's
            `HTTPException`. It can also return a catalog with the same tables: `catalog` itself for
            an administrator, or a part that `catalog.readable` shares, where a write is answered
            with 403. `None` instead of a function shows every session to every caller.
        allow_write: Whether the pages can edit, tag, archive, export, fork, rewind and delete
            sessions, and approve and reject calls of waiting runs and discard runs.
        allowed_hosts: The host names of the application, with or without a port. Requests for other
            hosts are refused.
        login: The URL of your login page, such as `/login`. A request without a scope, or whose
            scope function raises 401, is redirected to it.
        by: Who approves and rejects, stored by `SessionRuns.decide`: a name, or a function, sync or
            async, that is called with Starlette's `Request` and returns the name.
        currency: The currency of the prices, as a sign or a code, which is written before costs.
        max_streams: The maximum number of pages that follow changes at once. The others are as they
            were when they were loaded.
        max_streams_per_scope: The maximum number of them in one scope.

    Returns:
        The application.

    Raises:
        TypeError: If `catalog` or `scope` has the wrong type, or `allowed_hosts` is a string.
        ValueError: If `allowed_hosts` is empty, or a number of streams is not positive.
    """
    check_catalog(catalog, scope)
    if isinstance(allowed_hosts, str):
        raise TypeError(f"allowed_hosts must be a list of names, not the string {allowed_hosts!r}")
    if not allowed_hosts:
        raise ValueError("allowed_hosts must contain at least one name")
    if min(max_streams, max_streams_per_scope) < 1:
        raise ValueError("max_streams and max_streams_per_scope must be positive")
    hosts = frozenset(each.lower() for each in allowed_hosts)
    streams = Streams(max_streams, max_streams_per_scope)
    return BrowserApp(catalog, scope, allow_write, hosts, login, by, currency, streams)


@dataclass(frozen=True)
class BrowserApp(HTTPApp):
    """The arguments of `browser_app`, and the streams that are open."""

    catalog: SessionCatalog
    get_scope: GetScope | None
    allow_write: bool
    hosts: frozenset[str]
    login: str | None
    by: DecidedBy
    currency: str
    streams: Streams
    form_seconds: float = 15.0
    """Seconds in which a form must arrive."""

    async def respond(self, request: Request) -> Response:
        call = PageCall(request, self, self.catalog)
        try:
            check_request(request, self.hosts)
            response = await self._answer(request, call)
        except Exception as error:  # noqa: BLE001  # shown without its message
            refused = _refusal(error)
            if refused.status_code == 401 and self.login:
                response = RedirectResponse(self.login, 303)
            else:
                phrase = HTTPStatus(refused.status_code).phrase
                response = call.render(
                    "error.html", refused.status_code, refused=refused, phrase=phrase
                )
                response.headers.update(refused.headers or {})  # such as those of a login
        response.headers.update(HEADERS)
        if call.uses_token:
            call.keep_token(response)
        return response

    async def _answer(self, request: Request, call: PageCall) -> Response:
        path = call.path
        is_read = request.method in {"GET", "HEAD"}
        if path in _FILES and is_read:
            content, media_type = _FILES[path]
            return Response(content, media_type=media_type)
        catalog = await scoped_catalog(self.catalog, self.get_scope, request)
        if catalog is None:
            status = 401 if self.login else 403
            raise HTTPException(status, "You do not have access to these sessions.")
        call.catalog = catalog
        reading = {**_READ, **(_ASK if call.allow_write else {})}
        writing = _WRITE if self.allow_write else {}
        if is_read and path in reading:
            if path in _SHOWN:
                call.waiting = await runs_page.count_waiting(catalog)
            return await reading[path](call)
        if request.method == "POST" and path in writing:
            await call.load_form()
            if catalog.read_only and path != "/export":
                raise HTTPException(403, "You can read these sessions, but not change them.")
            return await writing[path](call)
        if path in {*reading, *writing, *_FILES}:
            raise HTTPException(405, "The page does not support this method.")
        raise HTTPException(404, "The page does not exist.")


def _refusal(error: Exception) -> HTTPException:
    """Returns the error page. Messages of the database and of the program go to the log only."""
    for kind, status, sentence in _REFUSALS:
        if isinstance(error, kind):
            return HTTPException(status, sentence)
    problem = answer_to(error)
    sentence = f"{problem.message[:1].upper()}{problem.message[1:]}"
    return HTTPException(problem.status, sentence, problem.headers)

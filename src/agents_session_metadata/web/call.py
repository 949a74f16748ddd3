"""A request to the pages: its checks, its fields, and the responses to it.

A page is for the person at the browser. A web site that this person visits must neither read a page
nor make a change: hence the checks of `Host` and `Origin`, and a token in every form.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agents_session_metadata import SessionCatalog
from agents_session_metadata.http.requests import call_with, read_bytes
from agents_session_metadata.text import ago, parse_time

from . import formats
from .markdown import LARGEST_PAGE, Room

if TYPE_CHECKING:
    from .app import BrowserApp

DecidedBy: TypeAlias = "str | Callable[[Request], str | Awaitable[str | None] | None] | None"
"""Who decides about a call that waits for an approval: a name, or what gives it for a request."""


_TEMPLATES = Environment(
    loader=PackageLoader("agents_session_metadata.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=formats.clean,
)
_TEMPLATES.filters["ago"] = ago
_TEMPLATES.filters["parse_time"] = parse_time
for _format in (
    *(formats.encoded, formats.shown, formats.number, formats.short, formats.seconds),
    *(formats.exact, formats.as_json, formats.title, formats.tags),
    formats.is_short,
):
    _TEMPLATES.filters[_format.__name__] = _format


def _in_room(name: str) -> Any:
    """Returns a filter that takes from what is left on the page."""

    @pass_context
    def apply(context: Any, text: str, *arguments: str) -> Any:
        return getattr(context["room"], name)(text, *arguments)

    return apply


for _name in ("plain", "copied", "code", "markdown", "picture", "has_room_for", "readable"):
    _TEMPLATES.filters[_name] = _in_room(_name)


@dataclass
class PageCall:
    """A request. `catalog` is replaced by the one in its scope before a page is called."""

    request: Request
    app: BrowserApp
    catalog: SessionCatalog
    form: dict[str, str] = field(default_factory=dict)
    selected: list[str] = field(default_factory=list)
    """The ids of the selected sessions, which the form has in the fields `select`."""
    uses_token: bool = False
    waiting: str = ""

    @property
    def allow_write(self) -> bool:
        return self.app.allow_write and not self.catalog.read_only

    @property
    def root(self) -> str:
        """Returns the mount point, without a slash at the end."""
        return str(self.request.scope.get("root_path", "")).rstrip("/")

    @property
    def path(self) -> str:
        path: str = self.request.scope["path"]
        return path.removeprefix(self.root) or "/"

    @cached_property
    def query(self) -> dict[str, str]:
        """Returns the parameters of the URL. If one is repeated, its last value counts."""
        return dict(self.request.query_params)

    @cached_property
    def token(self) -> str:
        return self.request.cookies.get(_COOKIE) or secrets.token_urlsafe(24)

    def url(self, path: str, **parameters: Any) -> str:
        given = {name: value for name, value in parameters.items() if value is not None}
        query = f"?{urlencode(given, errors='replace')}" if given else ""
        return f"{self.root}{path}{query}"

    def exact(self, name: str) -> str:
        """Returns a field of the form that was written with the filter `encoded`."""
        return unquote(self.form.get(name, ""))

    async def load_form(self) -> None:
        """Reads a form. Refuses it unless its token equals that of the browser's cookie."""
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise HTTPException(415, "Send a form.")
        try:
            body = await read_bytes(self.request, LARGEST_FORM, self.app.form_seconds)
            fields = parse_qsl(
                body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
            )
        except ValueError:
            raise HTTPException(400, "The form is invalid.") from None
        self.form = dict(fields)
        known, sent = self.request.cookies.get(_COOKIE, ""), self.form.get("token", "")
        if not known or not secrets.compare_digest(known.encode(), sent.encode()):
            message = "The form has expired. Go back, reload the page and try again."
            raise HTTPException(403, message)
        self.selected = [unquote(value) for name, value in fields if name == "select"]

    def session_id(self) -> str:
        found = self.exact("id") or self.query.get("id")
        if not found:
            raise HTTPException(400, "The URL contains no session id.")
        return found

    def item_id(self, name: str) -> int | None:
        """Returns None without the parameter."""
        text = self.form.get(name) or self.query.get(name)
        return self.needed_item_id(name) if text else None

    def needed_item_id(self, name: str) -> int:
        text = self.form.get(name) or self.query.get(name) or ""
        if not (text.isascii() and text.isdecimal() and len(text) < 19):
            raise HTTPException(400, f"`{name}` must be the id of an item.")
        return int(text)

    async def decided_by(self) -> str | None:
        by = self.app.by
        return await call_with(by, self.request) if callable(by) else by

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        values = {
            "has_form": False,
            "events": "",
            "waiting": self.waiting,
            **values,
        }
        self.uses_token |= values["has_form"]
        money = partial(formats.money, currency=self.app.currency)
        page = _TEMPLATES.get_template(template).render(
            call=self, url=self.url, path=self.path, money=money, room=Room(), **values
        )
        body = page.encode("utf-8", "replace")
        if len(body) > LARGEST_PAGE:
            raise HTTPException(413, "This page would be too large. Narrow the filter.")
        return Response(body, status, media_type="text/html")

    def keep_token(self, response: Response) -> None:
        """Sets the cookie of the forms. Other sites can neither read nor send it."""
        response.set_cookie(
            _COOKIE,
            self.token,
            path=self.root or "/",
            secure=self.request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )

    def redirect(self, path: str, **parameters: Any) -> Response:
        return RedirectResponse(self.url(path, **parameters), 303)


LONGEST_QUERY = 16_384
LARGEST_FORM = 1 << 20
"""A form may contain the longest value twice, and each of its bytes as three characters."""
_MOST_FIELDS = 50
_COOKIE = "agent_sessions_form"

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # With "no-referrer", browsers send `Origin: null` with a form.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def check_request(request: Request, allowed_hosts: Collection[str]) -> None:
    """Refuse requests that name another host, come from another site or are too long."""
    # A web site can point its own name to this address; the browser then sends that name.
    hosts = request.headers.getlist("host")
    if len(hosts) != 1 or not _is_allowed(hosts[0], allowed_hosts):
        raise HTTPException(421, "This host name is not allowed. Add it to allowed_hosts.")
    origins = request.headers.getlist("origin")
    needed = request.method not in {"GET", "HEAD"}
    if (needed or origins) and [_authority(each) for each in origins] != [hosts[0].lower()]:
        raise HTTPException(403, "The request comes from another website.")
    if len(request.url.query) > LONGEST_QUERY:
        raise HTTPException(414, f"The URL is longer than {LONGEST_QUERY:,} characters.")


def _is_allowed(host: str, allowed: Collection[str]) -> bool:
    """A name in `allowed` without a port allows every port."""
    name, _, port = host.lower().rpartition(":")
    without_port = name if name and port.isdecimal() else host.lower()
    return host.lower() in allowed or without_port in allowed


def _authority(origin: str) -> str | None:
    try:
        parts = urlsplit(origin.lower())
    except ValueError:
        return None
    return parts.netloc if parts.scheme in {"http", "https"} else None

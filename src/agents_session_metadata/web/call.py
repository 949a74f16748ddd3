"""A request to the pages, and the functions that create responses."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any, TypeAlias
from urllib.parse import unquote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.text import ago

from . import text
from .security import Refused, form_token

DecidedBy: TypeAlias = "str | Callable[[Request], str | Awaitable[str | None] | None] | None"
"""Who decides about a call that waits for an approval: a name, or what gives it for a request."""

_PACKAGE = "agents_session_metadata.web"


@dataclass(frozen=True)
class File:
    content: bytes
    media_type: str

    @classmethod
    def read(cls, name: str, media_type: str) -> File:
        return cls((files(_PACKAGE) / "static" / name).read_bytes(), media_type)

    def response(self) -> Response:
        return Response(self.content, media_type=self.media_type)


def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=text.clean,
    )
    names = "encoded shown number short money seconds exact as_json title tags"
    found.filters["ago"] = ago
    found.filters.update({name: getattr(text, name) for name in names.split()})
    return found


_TEMPLATES = _environment()


class Call:
    """A request. `catalog` is replaced by the one in its scope before a page is called."""

    def __init__(
        self, request: Request, catalog: SessionCatalog, *, allow_write: bool, by: DecidedBy = None
    ) -> None:
        self.request = request
        self.catalog = catalog
        self.allow_write = allow_write
        self._by = by
        self.form: dict[str, str] = {}
        self.uses_token: bool = False

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
        return form_token(self.request)

    def url(self, path: str, **parameters: Any) -> str:
        given = {name: value for name, value in parameters.items() if value is not None}
        query = f"?{urlencode(given, errors='replace')}" if given else ""
        return f"{self.root}{path}{query}"

    def exact(self, name: str) -> str:
        """Returns a field of the form that was written with the filter `encoded`."""
        return unquote(self.form.get(name, ""))

    def session_id(self) -> str:
        found = self.exact("id") or self.query.get("id")
        if not found:
            raise Refused(400, "The URL contains no session id.")
        return found

    def item_id(self, name: str, *, required: bool = True) -> int | None:
        text = self.form.get(name) or self.query.get(name) or ""
        if not text and not required:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) < 19):
            raise Refused(400, f"`{name}` must be the id of an item.")
        return int(text)

    async def decided_by(self) -> str | None:
        found = self._by(self.request) if callable(self._by) else self._by
        return await found if inspect.isawaitable(found) else found

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        values.setdefault("has_form", False)
        if values["has_form"]:
            self.uses_token = True
        page = _TEMPLATES.get_template(template).render(
            call=self, url=self.url, path=self.path, **values
        )
        body = page.encode("utf-8", "replace")
        return Response(body, status, media_type="text/html")

    def redirect(self, path: str, **parameters: Any) -> Response:
        return RedirectResponse(self.url(path, **parameters), 303)

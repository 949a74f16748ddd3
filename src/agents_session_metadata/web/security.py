"""Checks of a request before a page sees it, and the headers of every response.

A page is for the person at the browser. A web site that this person visits must neither read a page
nor make a change: hence the checks of `Host` and `Origin`, and a token in every form.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import ClientDisconnect, Request

LONGEST_QUERY: Final = 16_384
LARGEST_FORM: Final = 1 << 20
"""A form may contain the longest value twice, and each of its bytes as three characters."""
FORM_SECONDS: Final = 15.0
_MOST_FIELDS: Final = 50
_COOKIE: Final = "agent_sessions_form"

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # With "no-referrer", browsers send `Origin: null` with a form.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Refused(Exception):  # noqa: N818  # an answer rather than an error
    """Ends a request with an error page."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status: HTTPStatus = HTTPStatus(status)
        self.sentence = sentence


def check_request(request: Request, allowed_hosts: Collection[str]) -> None:
    """Refuse requests that name another host, come from another site or are too long."""
    # A web site can point its own name to this address; the browser then sends that name.
    hosts = request.headers.getlist("host")
    if len(hosts) != 1 or not _is_allowed(hosts[0], allowed_hosts):
        raise Refused(421, "This host name is not allowed. Add it to allowed_hosts.")
    origins = request.headers.getlist("origin")
    needed = request.method not in {"GET", "HEAD"}
    if (needed or origins) and [_authority(each) for each in origins] != [hosts[0].lower()]:
        raise Refused(403, "The request comes from another website.")
    if len(request.url.query) > LONGEST_QUERY:
        raise Refused(414, f"The URL is longer than {LONGEST_QUERY:,} characters.")


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


def form_token(request: Request) -> str:
    known = request.cookies.get(_COOKIE, "")
    return known if _is_token(known) else secrets.token_urlsafe(24)


def _is_token(text: str) -> bool:
    return len(text) == 32 and text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def token_cookie(request: Request, token: str) -> str:
    """Returns a `Set-Cookie` header. Other sites can neither read nor send the cookie."""
    path = request.scope.get("root_path", "") or "/"
    secure = "; Secure" if request.url.scheme == "https" else ""
    return f"{_COOKIE}={token}; Path={path}; HttpOnly; SameSite=Strict{secure}"


async def read_form(request: Request) -> dict[str, str]:
    """Read a form. Refuses it unless its token equals that of the browser's cookie."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "Send a form.")
    try:
        body = await asyncio.wait_for(_read(request), FORM_SECONDS)
        fields = dict(
            parse_qsl(
                body.decode(),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=_MOST_FIELDS,
            )
        )
    except asyncio.TimeoutError:
        raise Refused(408, "The form did not arrive in time.") from None
    except (ValueError, ClientDisconnect):
        raise Refused(400, "The form is invalid.") from None
    known, sent = request.cookies.get(_COOKIE, ""), fields.pop("token", "")
    if not _is_token(known) or not secrets.compare_digest(known.encode(), sent.encode()):
        raise Refused(403, "The form has expired. Go back, reload the page and try again.")
    return fields


async def _read(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_FORM:
            raise Refused(413, f"The form is larger than {LARGEST_FORM:,} bytes.")
    return bytes(body)

"""Requests to the pages of the browser, and what the answers show."""

from __future__ import annotations

import re
from html import unescape

import httpx2

from agents_session_metadata import SessionCatalog
from agents_session_metadata.web import browser_app

HOST = "http://localhost:8000"
SCRIPT = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e"


def client(catalog: SessionCatalog, **options) -> httpx2.AsyncClient:
    app = browser_app(catalog, **{"scope": None, **options})
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=HOST)


def names(page: httpx2.Response) -> list[str]:
    """The sessions that a list shows."""
    return re.findall(r'<span class="id">([^<\s]+)', page.text)


def link(page: httpx2.Response, text: str) -> str:
    """The address of the link with this text."""
    (found,) = re.findall(rf'<a [^>]*href="([^"]*)"[^>]*>[^<]*{text}', page.text)
    return unescape(found)


def token(page: httpx2.Response) -> str:
    return re.findall(r'name="token" value="([^"]+)"', page.text)[0]


def items(page: httpx2.Response) -> list[int]:
    """The items that the page of a session shows."""
    return [int(each) for each in re.findall(r'id="item-(\d+)"', page.text)]


def edit_form(page: httpx2.Response) -> dict[str, str]:
    """The fields of the form to edit a session, as the page shows them."""
    form = page.text.partition('action="/edit"')[2].partition("</form>")[0]
    fields = dict(re.findall(r'<textarea [^>]*name="([^"]*)"[^>]*>([^<]*)', form))
    for field in re.findall(r"<input [^>]*>", form):
        [name], [value] = (re.findall(f' {at}="([^"]*)"', field) for at in ("name", "value"))
        if "checkbox" not in field or "checked" in field:
            fields[name] = value
    return {name: unescape(value) for name, value in fields.items()}


def sent(page: httpx2.Response, action: str, number: int = 0) -> dict[str, str]:
    """The hidden fields of a form with this action, with line breaks as browsers send them."""
    source = page.text.replace("\r\n", "\n").replace("\r", "\n")
    form = source.split(f'action="{action}"')[number + 1].partition("</form>")[0]
    fields = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form)
    return {name: re.sub(r"\r\n|\r|\n", "\r\n", unescape(value)) for name, value in fields}

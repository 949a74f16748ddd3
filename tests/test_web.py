"""What the pages refuse and send, the command that serves them, and a real browser."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from commands import run
from playwright.async_api import async_playwright
from starlette.applications import Starlette
from starlette.routing import Mount

from agents_session_metadata import SessionCatalog
from agents_session_metadata.web import LOCAL_HOSTS, browser_app, pages, security

HOST = "http://localhost:8000"
PROGRAM = Path(sys.executable).with_name("agent-sessions")
CHROMIUM = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
async def catalog(tmp_path):
    url = f"sqlite:///{tmp_path}/chat.db"
    async with SessionCatalog.from_url(url, create_tables=True) as catalog:
        await catalog.create_session("a", metadata={"title": "A"})
        yield catalog


def client(app, host: str = HOST) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=host)


# ---- what a request must satisfy ----


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("LOCALHOST", 200),
        ("[::1]:8000", 200),
        ("sessions.example", 200),
        ("other.example:8443", 200),
        ("other.example", 421),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("localhost:80@evil.example", 421),
        ("evil.example:localhost", 421),
        ("", 421),
    ],
)
async def test_host(catalog, host, status) -> None:
    hosts = [*LOCAL_HOSTS, "Sessions.example", "other.example:8443"]
    async with client(browser_app(catalog, scope=None, allowed_hosts=hosts)) as browser:
        for path in ("/", "/style.css", "/nothing"):
            answer = await browser.get(path, headers={"Host": host})
            assert answer.status_code == (404 if status == 200 and path == "/nothing" else status)


async def test_origin_and_token(catalog) -> None:
    app = browser_app(catalog, scope=None, allow_write=True)
    async with client(app) as browser:
        for origin in ("http://evil.example", "null", "http://localhost:9000", "file://", ""):
            assert (await browser.get("/", headers={"Origin": origin})).status_code == 403
        page = await browser.get("/session?id=a")
        cookie = page.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        token = re.findall(r'name="token" value="([^"]+)"', page.text)[0]
        good = {"token": token, "id": "a", "title": "B"}
        for headers, form, status in (
            ({}, good, 403),
            ({"Origin": "http://evil.example"}, good, 403),
            ({"Origin": HOST}, {**good, "token": ""}, 403),
            ({"Origin": HOST}, {**good, "token": token[::-1]}, 403),
            ({"Origin": HOST, "Cookie": "agent_sessions_form="}, {**good, "token": ""}, 403),
            ({"Origin": HOST, "Content-Type": "text/plain"}, good, 415),
        ):
            answer = await browser.post("/edit", data=form, headers=headers)
            assert answer.status_code == status, (headers, form)
            assert await catalog.get_metadata("a") == {"title": "A"}
        # A link changes nothing.
        assert (await browser.get("/edit", params=good)).status_code == 405
        accepted = await browser.post("/edit", data=good, headers={"Origin": HOST})
        assert accepted.status_code == 303
        assert await catalog.get_metadata("a") == {"title": "B"}


async def test_reading_only_is_the_default(catalog) -> None:
    async with client(browser_app(catalog, scope=None)) as browser:
        page = await browser.get("/session?id=a")
        assert "<form method" not in page.text
        assert "set-cookie" not in page.headers
        for path in ("/edit", "/fork", "/rewind", "/delete"):
            answer = await browser.post(path, data={"id": "a"}, headers={"Origin": HOST})
            assert answer.status_code == 404
        assert (await browser.get("/delete?id=a")).status_code == 404
        assert await catalog.get_metadata("a") == {"title": "A"}


async def test_forms_that_are_too_large_or_too_slow(catalog, monkeypatch) -> None:
    monkeypatch.setattr(security, "FORM_SECONDS", 0.05)
    async with client(browser_app(catalog, scope=None, allow_write=True)) as browser:
        browser.headers.update(
            {"Origin": HOST, "Content-Type": "application/x-www-form-urlencoded"}
        )

        async def slow():
            yield b"id=a"
            await asyncio.Event().wait()

        large = b"a=" + b"x" * security.LARGEST_FORM
        for body, status in (
            (large, 413),
            (b"a=1&" * 60, 400),
            (b"a=\xff", 400),
            (slow(), 408),
        ):
            assert (await browser.post("/edit", content=body)).status_code == status


async def test_every_answer_forbids_scripts_frames_and_caches(catalog) -> None:
    async with client(browser_app(catalog, scope=None, allow_write=True)) as browser:
        for path in ("/", "/session?id=a", "/session.json?id=a", "/statistics", "/x", "/page.js"):
            answer = await browser.get(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert " style=" not in answer.text
            assert not re.findall(r"<[^>]* on\w+=", answer.text)
            # Nothing is loaded from elsewhere.
            assert not re.findall(r"(?:src|href|action)=\"(?!/|#)", answer.text)


async def test_errors_say_nothing_of_the_inside(tmp_path, caplog) -> None:
    def scope(request):
        raise RuntimeError("secret-of-the-program")

    url = f"sqlite:///{tmp_path}/secret-path/chat.db"
    async with SessionCatalog.from_url(url) as broken:
        for app, status in (
            (browser_app(broken, scope=None), 503),
            (browser_app(broken, scope=scope), 500),
        ):
            async with client(app) as browser:
                answer = await browser.get("/")
                assert answer.status_code == status
                assert "secret" not in answer.text
    assert "secret-of-the-program" in caplog.text


async def test_facets_and_counts_are_bounded(catalog, monkeypatch) -> None:
    for number in range(6):
        metadata = {"agent": f"x{number % 2}"}
        await catalog.create_session(f"s{number}", metadata=metadata)
    monkeypatch.setattr(pages, "SAMPLE", 4)
    asked = []
    count = catalog.count_sessions
    monkeypatch.setattr(
        catalog, "count_sessions", lambda where: asked.append(where) or count(where)
    )
    async with client(browser_app(catalog, scope=None)) as browser:
        page = await browser.get("/")
        assert "More than 4 sessions" in page.text
        assert "Counts of the newest 4 matches" in page.text
        assert asked == []
        assert "7 sessions" in (await browser.get("/?count=all")).text
        assert asked == [None]


async def test_mounted_below_a_path(catalog) -> None:
    inner = browser_app(catalog, scope=None, allow_write=True, allowed_hosts=["localhost"])
    async with client(Starlette(routes=[Mount("/admin/chats", inner)])) as browser:
        page = await browser.get("/admin/chats/")
        assert page.status_code == 200
        links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
        assert links
        assert all(each.startswith("/admin/chats/") for each in links)
        for each in links:
            assert (await browser.get(each.replace("&amp;", "&"))).status_code == 200
        session = await browser.get("/admin/chats/session?id=a")
        assert "Path=/admin/chats;" in session.headers["set-cookie"]


def test_arguments() -> None:
    catalog = SessionCatalog.from_url("sqlite://")
    for error, arguments in (
        (TypeError, {"catalog": "sqlite://", "scope": None}),
        (TypeError, {"catalog": catalog, "scope": {"owner_id": "u1"}}),
        (TypeError, {"catalog": catalog, "scope": None, "allowed_hosts": "localhost"}),
        (ValueError, {"catalog": catalog, "scope": None, "allowed_hosts": []}),
    ):
        with pytest.raises(error):
            browser_app(**arguments)


# ---- the command, and a real browser ----


@pytest.fixture
def demo(tmp_path) -> Iterator[str]:
    """The address of the demonstration, which leaves nothing behind."""
    command = [PROGRAM, "web", "--demo", "--allow-write", "--port", "0"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stderr is not None
            lines = iter(server.stderr.readline, "")
            yield next(found[0] for line in lines if (found := re.search(r"http://[\w.:]+", line)))
        finally:
            server.send_signal(signal.SIGINT)
            code = server.wait(timeout=30)
    assert code == 130
    assert list(tmp_path.iterdir()) == []


async def test_a_browser_without_scripts_and_one_with_a_keyboard(demo, chromium) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        plain = await browser.new_page(java_script_enabled=False)
        await plain.goto(f"{demo}/")
        assert await plain.locator("table.sessions tbody tr").count() == 25
        await plain.fill("#filter", "status=completed agent=billing")
        await plain.click("text=Apply")
        await plain.click("td.name a")
        await plain.click("summary >> text=Tool")
        assert await plain.locator("details[open] pre").first.is_visible()
        await plain.fill("#title", "<b>Renamed</b>")
        await plain.click("text=Save")
        assert await plain.inner_text("h1") == "<b>Renamed</b>"
        await plain.click("text=Delete…")
        await plain.click("button:text('Delete')")
        assert await plain.inner_text(".total") == "179 sessions"

        narrow = {"width": 360, "height": 740}
        page = await browser.new_page(viewport=narrow, color_scheme="dark")
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: request.url.startswith(demo) or problems.append("x"))
        for path in ("/", "/statistics", "/session?id=nothing"):
            await page.goto(demo + path)
            assert await page.evaluate("document.documentElement.scrollWidth") <= 360
        await page.goto(f"{demo}/")
        await page.keyboard.press("/")
        await page.keyboard.type("agent=travel")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**filter=**")
        await page.focus("td.name a >> nth=0")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/session?**")
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
        assert [each for each in problems if "404" not in each] == []
        await browser.close()


def test_the_command_refuses_what_it_cannot_do(tmp_path) -> None:
    assert run("web").exit_code == 2
    assert run("web", "--demo", "--scope", "owner_id=u1").exit_code == 2
    missing = run("web", url=f"sqlite:///{tmp_path}/none.db")
    assert missing.exit_code == 1
    assert "there is no file" in missing.stderr


async def test_the_demonstration_has_a_month_of_sessions(tmp_path) -> None:
    from agents_session_metadata.web.demo import fill

    url = f"sqlite:///{tmp_path}/demo.db"
    async with SessionCatalog.from_url(url, create_tables=True) as catalog:
        written = await fill(catalog)
        found = (await catalog.list_sessions(limit=1000)).sessions
    assert len(found) == written
    assert found[0].updated_at - found[-1].updated_at > timedelta(days=25)
    assert {each.metadata["status"] for each in found} == {"active", "completed", "failed"}

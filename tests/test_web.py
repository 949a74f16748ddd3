"""What the pages refuse and send, the command that serves them, and a real browser."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from html import unescape
from typing import Any

import httpx2
import pytest
from commands import run
from conformance.approving import Deployer, deploys
from conformance.corpus import create_sessions
from servers import Database
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Mount

from agents_session_metadata import SessionCatalog, SessionRuns
from agents_session_metadata.cli import servers as command
from agents_session_metadata.web import LOCAL_HOSTS, browser_app, call, list_page
from agents_session_metadata.web.demo import fill

HOST = "http://localhost:8000"
STORED = {"run": "waiting", "agent": "deployer"}


@pytest.fixture
async def catalog(tmp_path):
    # Closing it waits for what a request that was given up still reads.
    database = Database("sqlite-file", f"sqlite+aiosqlite:///{tmp_path}/chat.db")
    catalog = SessionCatalog(database.engine(), create_tables=True)
    await catalog.create_session("a", metadata={"title": "A"})
    await SessionRuns(catalog).run("a", Deployer().agent(deploys("c1")), "Deploy")
    yield catalog
    await database.close()


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
        assert "SameSite=strict" in cookie
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
            for path in ("/edit", "/approve", "/reject", "/discard"):
                sent = {**form, "call": "c1"}
                answer = await browser.post(path, data=sent, headers=headers)
                assert answer.status_code == status, (path, headers, form)
            assert await catalog.get_metadata("a") == {**STORED, "title": "A"}
            assert (await SessionRuns(catalog).get("a")).undecided
        # A link changes nothing.
        for path in ("/edit", "/approve", "/reject", "/discard"):
            answer = await browser.get(path, params={**good, "call": "c1"})
            assert answer.status_code == 405
        assert (await SessionRuns(catalog).get("a")).undecided
        waiting = await browser.get("/runs")
        assert set(re.findall(r'name="token" value="([^"]+)"', waiting.text)) == {token}
        accepted = await browser.post("/edit", data=good, headers={"Origin": HOST})
        assert accepted.status_code == 303
        assert await catalog.get_metadata("a") == {**STORED, "title": "B"}


async def test_reading_only_is_the_default(catalog) -> None:
    async with client(browser_app(catalog, scope=None)) as browser:
        page = await browser.get("/session?id=a")
        assert "<form method" not in page.text
        assert "set-cookie" not in page.headers
        for path in ("/edit", "/fork", "/rewind", "/delete", "/approve", "/reject"):
            answer = await browser.post(path, data={"id": "a"}, headers={"Origin": HOST})
            assert answer.status_code == 404
        assert (await browser.get("/delete?id=a")).status_code == 404
        assert "/delete" not in (await browser.get("/")).text
        waiting = await browser.get("/runs")
        assert "<form method" not in waiting.text
        assert "set-cookie" not in waiting.headers
        assert await catalog.get_metadata("a") == {**STORED, "title": "A"}


async def test_forms_that_are_too_large_or_too_slow(catalog) -> None:
    app: Any = browser_app(catalog, scope=None, allow_write=True)
    app = replace(app, form_seconds=0.05)
    async with client(app) as browser:
        browser.headers.update(
            {"Origin": HOST, "Content-Type": "application/x-www-form-urlencoded"}
        )

        async def slow():
            yield b"id=a"
            await asyncio.Event().wait()

        large = b"a=" + b"x" * call.LARGEST_FORM
        for body, status in (
            (large, 413),
            (b"a=1&" * 60, 400),
            (b"a=\xff", 400),
            (slow(), 408),
        ):
            assert (await browser.post("/edit", content=body)).status_code == status


async def test_every_answer_forbids_scripts_frames_and_caches(catalog) -> None:
    async with client(browser_app(catalog, scope=None, allow_write=True)) as browser:
        pages = ("/", "/session?id=a&item=1", "/session.json?id=a", "/runs")
        for path in (*pages, "/statistics", "/x", "/page.js"):
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

    def log_in(request):
        raise HTTPException(303, headers={"Location": "/login"})

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
        async with client(browser_app(broken, scope=log_in)) as browser:
            answer = await browser.get("/")
            assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert "secret-of-the-program" in caplog.text
    # The driver's thread still tells the loop that it could not connect.
    for thread in threading.enumerate():
        if "_connection_worker_thread" in thread.name:
            await asyncio.to_thread(thread.join, 1)


async def test_facets_and_counts_are_bounded(catalog, monkeypatch) -> None:
    most = list_page.SAMPLE
    await create_sessions(catalog, {f"s{n}": {"agent": f"x{n % 2}"} for n in range(most)})
    for name in ("count_sessions", "statistics"):
        monkeypatch.setattr(catalog, name, None)
    async with client(browser_app(catalog, scope=None)) as browser:
        page = await browser.get("/")
        assert f"More than {most:,} sessions" in page.text
        assert f"Counts of the newest {most:,} matches" in page.text
        assert (await browser.get("/statistics")).status_code == 200


async def test_mounted_below_a_path(catalog) -> None:
    inner = browser_app(catalog, scope=None, allow_write=True, allowed_hosts=["localhost"])
    async with client(Starlette(routes=[Mount("/admin/chats", inner)])) as browser:
        page = await browser.get("/admin/chats/")
        assert page.status_code == 200
        links = re.findall(r' ([a-z]+)="(/[^"]*)"', page.text)
        assert {"action", "formaction", "href", "src"} <= {name for name, _ in links}
        assert all(each.startswith("/admin/chats/") for _, each in links)
        for each in (each for name, each in links if name in {"href", "src"}):
            assert (await browser.get(each.replace("&amp;", "&"))).status_code == 200
        session = await browser.get("/admin/chats/session?id=a")
        assert "Path=/admin/chats;" in session.headers["set-cookie"]


async def test_an_approval_shows_the_request_and_all_arguments(catalog) -> None:
    async with client(browser_app(catalog, scope=None)) as browser:
        page = await browser.get("/runs?run=waiting")
        assert '<b>User</b> <span dir="auto">Deploy</span></blockquote>' in page.text
        assert '<dl class="tree">' in page.text
        assert "No runs" in (await browser.get("/runs?run=failed")).text
        assert (await browser.get("/runs?run=other")).status_code == 400
        # Every page says how many runs wait.
        assert '<span class="badge">1<' in (await browser.get("/")).text


async def test_a_waiting_run_is_decided_on_the_page_of_its_session(catalog) -> None:
    runs = SessionRuns(catalog)
    agent = Deployer().agent("Done")
    async with client(browser_app(catalog, scope=None, allow_write=True, by="ana")) as browser:
        browser.headers["Origin"] = HOST
        page = (await browser.get("/session?id=a")).text
        assert "This run waits for a decision" in page
        form = {
            name: unescape(value)
            for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page)
        }
        form |= {"call": "c1"}
        decided = await browser.post("/approve", data=form)
        assert decided.headers["location"] == "/session?id=a&from=end#run"
        assert "Approved</b> by ana" in (await browser.get("/session?id=a")).text
        # The second click of a double click, also after the run was resumed.
        assert (await browser.post("/approve", data=form)).status_code == 303
        await runs.resume("a", agent)
        assert (await browser.post("/approve", data=form)).status_code == 303
        assert (await browser.post("/reject", data=form)).status_code == 404
        assert len(await runs.decisions("a")) == 2
        assert "This run waits" not in (await browser.get("/session?id=a")).text


async def test_what_can_be_done_with_the_selected_sessions(catalog, tmp_path) -> None:
    odd = "b\r\nc%41"
    await catalog.create_session(odd, metadata={"tags": "none", "title": "<b>"})
    await catalog.create_session("c", metadata={"tags": ["x"]}, items=[{"role": "user"}])
    async with client(browser_app(catalog, scope=None, allow_write=True)) as browser:
        browser.headers["Origin"] = HOST
        page = (await browser.get("/?order=title")).text
        assert '<input type="hidden" name="back" value="?order=title">' in page
        token = re.findall(r'name="token" value="([^"]+)"', page)[0]
        [title, picked, last] = re.findall(r'name="select" value="([^"]+)"', page)[-3:]
        assert {title, picked, last} == {"a", "c", "b%0D%0Ac%2541"}
        form = {"token": token, "select": ["b%0D%0Ac%2541", "c", "gone"], "back": "?order=title"}
        for path, status in (("/tag", 400), ("/archive", 303)):
            assert (await browser.post(path, data=form)).status_code == status
        tagged = await browser.post("/tag", data={**form, "tag": "new"})
        assert tagged.headers["location"] == "/?order=title"
        assert await catalog.get_metadata("c") == {"tags": ["x", "new"], "archived": True}
        assert (await catalog.get_metadata(odd))["tags"] == "none"
        assert "archived" not in await catalog.get_metadata("a")
        exported = await browser.post("/export", data=form)
        assert "attachment" in exported.headers["content-disposition"]
        asked = await browser.post("/delete-selected", data=form)
        assert "Delete 2 sessions?" in asked.text
        assert "&lt;b&gt;" in asked.text
        assert len(await catalog.list_sessions()) == 3
        sure = {**form, "sure": "yes"}
        assert (await browser.post("/delete-selected", data=sure)).status_code == 303
        assert [each.session_id for each in await catalog.list_sessions()] == ["a"]
        url = f"sqlite:///{tmp_path}/chat.db"
        imported = await asyncio.to_thread(run, "import", stdin=exported.text, url=url)
        assert imported.stderr == "read 2 records, wrote 2\n"
        assert await catalog.session("c").get_items() == [{"role": "user"}]
        assert (await browser.post("/export", data={"token": token})).status_code == 400
    async with client(browser_app(catalog, scope=None)) as browser:
        assert 'name="select"' not in (await browser.get("/")).text
        for path in ("/tag", "/archive", "/export", "/delete-selected"):
            answer = await browser.post(path, data={"select": "a"}, headers={"Origin": HOST})
            assert answer.status_code == 404


async def test_whoever_has_no_scope_is_redirected_to_the_login(catalog) -> None:
    def refusing(request: Request) -> None:
        raise HTTPException(401, "log in first")

    for scope in (lambda request: None, lambda request: {"owner_id": None}, refusing):
        async with client(browser_app(catalog, scope=scope, login="/login")) as browser:
            for path in ("/", "/session?id=a", "/events"):
                answer = await browser.get(path)
                assert (answer.status_code, answer.headers["location"]) == (303, "/login")
            assert (await browser.get("/style.css")).status_code == 200
    async with client(browser_app(catalog, scope=None, login="/login")) as browser:
        assert (await browser.get("/")).status_code == 200


async def test_a_session_of_more_than_one_page_can_be_searched(catalog) -> None:
    for name in ("long", "other"):
        items = [{"role": "user", "content": f"Where is order {number}?"} for number in range(101)]
        await catalog.create_session(name, metadata={"title": "order 7"}, items=items)
    async with client(browser_app(catalog, scope=None)) as browser:
        assert "Search in this session" not in (await browser.get("/session?id=a")).text
        assert "Search in this session" in (await browser.get("/session?id=long")).text
        assert "an operator can create it" in (await browser.get("/session?id=long&q=7")).text
        await catalog.create_index("$text")
        found = (await browser.get("/session?id=long&q=order+7")).text
        [address] = re.findall(r'<li><a href="(/session[^"#]*)#item-', found)
        assert "Where is <mark>order</mark> <mark>7</mark>?" in found
        assert "Where is order 7?" in (await browser.get(unescape(address))).text
        assert "No message of this" in (await browser.get("/session?id=long&q=nothing")).text
        assert (await browser.get("/session?id=gone&q=order")).status_code == 404


async def test_a_list_of_a_range_of_dates_is_followed(catalog) -> None:
    call = {"type": "http", "method": "GET", "path": "/events", "query_string": b"since=2026-01-01"}
    sent: list[dict] = []
    left = asyncio.Event()

    async def send(message) -> None:
        sent.append(message)
        left.set()

    async def receive():
        await left.wait()
        return {"type": "http.disconnect"}

    app = browser_app(catalog, scope=None)
    await app({**call, "headers": [(b"host", b"localhost")]}, receive, send)
    assert sent[0]["status"] == 200


async def test_streams_of_changes_are_limited_and_scoped(catalog) -> None:
    app = browser_app(catalog, scope=lambda request: None)
    async with client(app) as browser:
        assert (await browser.get("/events")).status_code == 403
    app = browser_app(catalog, scope=None, max_streams=1)
    app.streams._open = 1
    async with client(app) as browser:
        assert (await browser.get("/events")).status_code == 503
        assert 'data-events="/events"' in (await browser.get("/")).text
        assert 'data-events="/events?id=a"' in (await browser.get("/session?id=a")).text


def test_arguments() -> None:
    catalog = SessionCatalog.from_url("sqlite://")
    for error, arguments in (
        (TypeError, {"catalog": "sqlite://", "scope": None}),
        (TypeError, {"catalog": catalog, "scope": {"owner_id": "u1"}}),
        (TypeError, {"catalog": catalog, "scope": None, "allowed_hosts": "localhost"}),
        (ValueError, {"catalog": catalog, "scope": None, "allowed_hosts": []}),
        (ValueError, {"catalog": catalog, "scope": None, "max_streams": 0}),
        (ValueError, {"catalog": catalog, "scope": None, "max_streams_per_scope": 0}),
    ):
        with pytest.raises(error):
            browser_app(**arguments)


# ---- the command ----


def test_the_command_refuses_what_it_cannot_do(tmp_path) -> None:
    assert run("web").exit_code == 2
    assert run("web", "--by", "ana").exit_code == 2
    missing = run("web", url=f"sqlite:///{tmp_path}/none.db")
    assert missing.exit_code == 1
    assert "does not exist" in missing.stderr


def test_the_command_sends_small_packets_at_once() -> None:
    # asyncio sets TCP_NODELAY only on sockets whose protocol is named. Otherwise, a response with
    # a separate body waits 40 ms for the acknowledgment of its head.
    with command._listening(0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


async def test_the_demonstration_has_a_month_of_sessions(tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/demo.db"
    async with SessionCatalog.from_url(url, create_tables=True) as catalog:
        written = await fill(catalog)
        found = (await catalog.list_sessions(limit=1000)).sessions
        statuses = Counter((await catalog.statuses(found)).values())
        usage = await catalog.usage()
        runs = (await SessionRuns(catalog).list()).runs
        assert (await catalog.statistics()).by_status == statuses
    assert len(found) == written
    assert found[0].updated_at - found[-1].updated_at > timedelta(days=25)
    assert {*statuses} == {"active", "completed", "failed", "waiting", "interrupted"}
    assert statuses["waiting"] == 3
    totals = sum(each.metadata.get("total_tokens", 0) for each in found)
    assert sum(row.total_tokens for row in usage) == totals
    assert {run.status for run in runs} == {"waiting", "interrupted", "failed"}
    assert len([each for each in found if "forked_from" in each.metadata]) == 3
    times = [run.started_at for run in runs]
    assert times == sorted(times, reverse=True)

"""The threat model in docs/http.md: a test per line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path

import httpx2
import openai
import pytest
from conformance.corpus import create_sessions

from agents_session_metadata import SessionCatalog
from agents_session_metadata.http import routes

from . import test_routes, test_runs
from .scenarios import user
from .serving import mounted, openai_client, raw_client, served

pytestmark = pytest.mark.logic

SQLITE = pytest.mark.only_on("sqlite-memory")
"""For what has nothing to do with the database."""
JSON = {"content-type": "application/json"}


@pytest.fixture
async def catalog(database):
    """A session of each of two users, alike but for the owner."""
    catalog = SessionCatalog(database.engine(), create_tables=True)
    for name, owner in (("mine", "u1"), ("theirs", "u2")):
        metadata = {"owner_id": owner, "k": f"secret of {owner}"}
        session = await catalog.create_session(name, metadata=metadata)
        await session.add_items([user(f"secret of {owner}"), {"id": f"msg_{owner}", **user("x")}])
    return catalog


def requests_for(name: str, item: str) -> list[tuple[str, str, object]]:
    """One request for each route that names a conversation."""
    at = f"/conversations/{name}"
    bodies = {
        "": {"metadata": {"a": 1}},
        "/items": {"items": [user("a")]},
        "/fork": {"before": item},
        "/rewind": {"before": item, "expect_last": item},
    }
    found = []
    for route in routes.ROUTES:
        if "{conversation_id}" in route.path:
            path = route.path.format(conversation_id=name, item_id=item)
            body = bodies[path.removeprefix(at)] if route.method == "POST" else None
            found.append((route.method, path, body))
    assert len(found) == 9
    return found


async def everything(catalog):
    return [record async for record in catalog.export_sessions({"owner_id": "u2"})]


async def test_a_foreign_id_cannot_be_told_from_a_missing_one(catalog):
    before = await everything(catalog)
    theirs = [info.item_id for info in (await catalog.list_items("theirs")).items]
    async with raw_client(mounted(catalog)) as client:
        for item in (f"msg_asm{theirs[0]}", "msg_u2", "msg_asm99999", "nothing"):
            answers = {}
            for name in ("theirs", "nobody"):
                answers[name] = [
                    await client.request(method, path, json=body)
                    for method, path, body in requests_for(name, item)
                ]
            for foreign, missing in zip(answers["theirs"], answers["nobody"], strict=True):
                assert foreign.status_code == missing.status_code == 404, foreign.request.url
                assert foreign.text.replace("theirs", "nobody") == missing.text
                assert {**foreign.headers, "content-length": ""} == {
                    **missing.headers,
                    "content-length": "",
                }
        # Nor does an item of theirs exist in a conversation of mine.
        for item in (f"msg_asm{theirs[0]}", "msg_u2"):
            for method in ("GET", "DELETE"):
                response = await client.request(method, f"/conversations/mine/items/{item}")
                assert response.status_code == 404
            for route in ("fork", "rewind"):
                response = await client.post(f"/conversations/mine/{route}", json={"before": item})
                assert response.status_code == 400
            response = await client.get(f"/conversations/mine/items?after={item}")
            assert response.status_code == 404
        for path in (
            "/conversations?preview=true",
            "/metadata/k/values",
            "/metadata/owner_id/values",
        ):
            assert "u2" not in (await client.get(path)).text
        where = json.dumps({"owner_id": "u2"})
        listed = await client.get("/conversations", params={"where": where})
        assert listed.json()["data"] == []
    assert await everything(catalog) == before


@SQLITE
async def test_no_scope_no_answer(catalog):
    async with raw_client(mounted(catalog), user=None) as client:
        paths = requests_for("mine", "msg_u1")
        paths += [("GET", "/conversations", None), ("POST", "/conversations", {})]
        paths += [("GET", "/openapi.json", None), ("GET", "/nope", None)]
        for method, path, body in paths:
            response = await client.request(method, path, json=body)
            assert response.status_code == 403, path
            assert "secret" not in response.text
    for scope in (lambda _: {}, lambda _: None, lambda _: {"a": "x", "owner_id": None}):
        async with raw_client(mounted(catalog, scope=scope)) as client:
            assert (await client.get("/conversations/mine")).status_code == 403


async def test_positions_of_others(catalog):
    async with raw_client(mounted(catalog)) as mine, raw_client(mounted(catalog), "u2") as theirs:
        lists = {}
        for client in (mine, theirs):
            made = await client.post("/conversations", json={"items": [user("a"), user("b")]})
            conversations = (await client.get("/conversations?limit=1")).json()
            name = made.json()["id"]
            items = (await client.get(f"/conversations/{name}/items?limit=1")).json()
            assert conversations["has_more"] is items["has_more"] is True
            lists[client] = (name, conversations["last_id"], items["last_id"])
        name, conversation, item = lists[mine]
        _, their_conversation, their_item = lists[theirs]
        for path, after, status in (
            ("/conversations", their_conversation, 400),
            ("/conversations", item, 400),
            ("/conversations?order=asc", conversation, 400),
            ("/conversations?where=%7B%22a%22%3A1%7D", conversation, 400),
            (f"/conversations/{name}/items", their_item, 404),
            (f"/conversations/{name}/items", conversation, 404),
            ("/conversations/mine/items", item, 404),
            (f"/conversations/{name}/items", item[:-1], 404),
        ):
            response = await mine.get(f"{path}{'&' if '?' in path else '?'}after={after}")
            assert response.status_code == status, (path, response.text)
            if status == 400:
                assert response.json()["error"]["param"] == "after"
        for order in ("desc", "asc"):
            query = {"after": item, "order": order}
            good = await mine.get(f"/conversations/{name}/items", params=query)
            assert len(good.json()["data"]) == (order == "desc")


@SQLITE
async def test_bodies_of_other_types(catalog):
    # What a form of another site can send without the browser asking first.
    body = json.dumps({"metadata": {"hacked": True}})
    async with raw_client(mounted(catalog)) as client:
        for kind in (
            "text/plain",
            "application/x-www-form-urlencoded",
            "",
            "application/jsonx",
            "application/json; charset=utf-16",
        ):
            headers = {"content-type": kind} if kind else {}
            for path in ("/conversations/mine", "/conversations/mine/fork", "/conversations"):
                response = await client.post(path, content=body, headers=headers)
                assert response.status_code == 415, kind
        headers = {**JSON, "content-encoding": "gzip"}
        response = await client.post("/conversations/mine", content=body, headers=headers)
        assert response.status_code == 415
        response = await client.get("/conversations/mine")
        assert "hacked" not in response.text
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-content-type-options"] == "nosniff"


@SQLITE
async def test_giant_bodies_and_filters(catalog):
    sent = 0

    async def endless():
        nonlocal sent
        for _ in range(1000):
            sent += 100_000
            yield b" " * 100_000

    app = mounted(catalog, max_body=1_000_000)
    async with (
        served(app) as address,
        httpx2.AsyncClient(headers={"x-user": "u1", **JSON}) as client,
    ):
        url = f"{address}/v1/conversations"
        with contextlib.suppress(httpx2.TransportError):
            response = await client.post(url, content=endless())
            assert response.status_code == 413
        assert sent < 50_000_000
        response = await client.post(url, content=b" " * 1_000_001)
        assert response.status_code == 413
    nested = '{"items": [{"role": "user", "content": ' + "[" * 5000 + "]" * 5000 + "}]}"
    deep = '{"a": ' * 200 + "1" + "}" * 200
    wide = json.dumps({"$or": [{"a": number} for number in range(500)]})
    async with raw_client(mounted(catalog, allow_roles=None)) as client:
        bodies = [nested, '{"items": [{"type": "x", "a": ' + "[" * 150 + "]" * 150 + "}]}"]
        bodies += ['{"metadata": {"a": ' + "[" * 150 + "]" * 150 + "}}"]
        bodies += ['{"metadata": {"a": ' + "1" * 5000 + "}}"]
        bodies += ['{"items": [{"type": "x", "a": "\\ud800"}]}']
        bodies += ['{"items": [{"type": "x", "a": 1e999}]}']
        for body in bodies:
            response = await client.post("/conversations", content=body, headers=JSON)
            assert response.status_code == 400, response.text
            assert len(response.text) < 1000
        for where in (deep, wide, '{"a": "' + "x" * 40_000 + '"}', "[" * 15_000):
            for path in ("/conversations", "/metadata/k/values"):
                response = await client.get(path, params={"where": where})
                assert response.status_code == 400, where[:50]
                assert len(response.text) < 1000


async def test_slow_clients_hold_no_connection(shared_database):
    engine = shared_database.engine(pool_size=1, max_overflow=0, pool_timeout=10)
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("mine", metadata={"owner_id": "u1"})
    head = (
        "POST /v1/conversations/mine HTTP/1.1\r\nHost: x\r\nX-User: u1\r\n"
        "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )

    async def begin(address):
        reader, writer = await asyncio.open_connection("127.0.0.1", address.rpartition(":")[2])
        writer.write(head.encode())
        return reader, writer

    async with served(mounted(catalog, body_timeout=600)) as address:
        slow = [await begin(address) for _ in range(20)]
        # Twenty clients wait with half a request, and others are answered.
        async with openai_client(address, max_retries=0) as client:
            for number in range(5):
                await client.conversations.update("mine", metadata={"n": str(number)})
        for _, writer in slow:
            writer.close()
    async with served(mounted(catalog, body_timeout=0.1)) as address:
        reader, writer = await begin(address)
        assert b" 408 " in await reader.readline()
        writer.close()
    assert (await catalog.get_metadata("mine"))["n"] == "4"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////nowhere/at/all.db",
        "postgresql+asyncpg://somebody:hunter2@127.0.0.1:1/secret_database",
        "mysql+asyncmy://somebody:hunter2@127.0.0.1:1/secret_database",
    ],
)
async def test_a_database_that_is_down(url):
    async with SessionCatalog.from_url(url) as catalog, raw_client(mounted(catalog)) as client:
        for method, path, body in [*requests_for("mine", "msg_a"), ("POST", "/conversations", {})]:
            response = await client.request(method, path, json=body)
            assert response.status_code == 503, response.text
            assert response.headers["retry-after"] == "1"
            assert response.json()["error"]["type"] == "server_error"
            for word in ("hunter2", "secret", "nowhere", "sqlalchemy", "127.0.0.1", "SELECT"):
                assert word not in response.text
            # A client that repeats an append by itself would write it twice.
            appends = method == "POST" and not path.endswith("mine")
            if appends:
                assert response.headers["x-should-retry"] == "false"
            elif method == "GET":
                assert "x-should-retry" not in response.headers


@SQLITE
async def test_errors_do_not_tell_what_happened_inside(catalog, monkeypatch, caplog):
    count = 0

    def fail(*args, **kwargs):
        nonlocal count
        count += 1
        raise ZeroDivisionError("hunter2")

    app = mounted(catalog)
    monkeypatch.setattr(type(catalog), "add_items", fail)
    async with served(app) as address, openai_client(address) as client:
        with pytest.raises(openai.InternalServerError) as error:
            await client.conversations.items.create("mine", items=[user("a")])
        # The client did not try again.
        assert count == 1
        assert "hunter2" not in str(error.value)
        assert "hunter2" in caplog.text
        with pytest.raises(openai.ConflictError):
            await client.post(
                "/conversations/mine/rewind",
                body={"turns": 1, "expect_last": "msg_nope"},
                cast_to=object,
            )


@SQLITE
async def test_nothing_is_counted_without_bounds(catalog):
    numbered = {f"s{n}": {"owner_id": "u1", "k": n % 9} for n in range(routes._COUNTED)}
    await create_sessions(catalog, numbered)
    async with raw_client(mounted(catalog)) as client:
        values = (await client.get("/metadata/k/values")).json()
        assert sum(each["count"] for each in values["data"]) == routes._COUNTED
        assert values["complete"] is False
        for path in ("/conversations", "/metadata/k/values", "/conversations/mine/items"):
            response = await client.get(path, params={"limit": 101})
            assert response.status_code == 400


def test_the_threat_model_names_these_tests():
    page = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    here = {*globals(), *vars(test_routes), *vars(test_runs)}
    assert named <= here
    own = {name for name in globals() if name.startswith("test_") and callable(globals()[name])}
    assert own - named == {"test_the_threat_model_names_these_tests"}

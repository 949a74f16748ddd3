"""The run of a conversation over HTTP: its state, its events, cancelling and decisions."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest
from agents import function_tool
from conformance.following import speaking, until
from scaling import scale
from starlette.applications import Starlette
from starlette.routing import Mount

from agents_session_metadata import SessionCatalog, SessionRuns
from agents_session_metadata.http import sessions_app

from .serving import impatient, owner, served

CHAT = "/conversations/chat"


@function_tool(needs_approval=True)
async def pay() -> str:
    return "paid"


class Served:
    """The application on a server, and requests to it."""

    def __init__(self, runs: SessionRuns, address: str, http: Any, streams: Any) -> None:
        self.runs, self.address, self.http, self.streams = runs, address, http, streams

    async def send(self, method: str, path: str, *, user: str = "u1", **options: Any) -> Any:
        headers = {"x-user": user, **options.pop("headers", {})}
        url = f"{self.address}/v1{path}"
        answer = await self.http.request(method, url, headers=headers, **options)
        return answer.status_code, answer.json()

    @asynccontextmanager
    async def follow(self, *, user: str = "u1", **query: Any) -> AsyncIterator[Any]:
        url = f"{self.address}/v1{CHAT}/run/events"
        own = {"headers": {"x-user": user}, "params": query}
        async with self.http.stream("GET", url, **own) as response:
            assert response.status_code == 200, await response.aread()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield read(response.aiter_lines())


async def read(lines: AsyncIterator[str]) -> AsyncIterator[Any]:
    """The events of a stream, without its comments."""
    async for line in lines:
        assert not line.startswith("id:")
        if line.startswith("event: "):
            data = await anext(lines)
            event = json.loads(data.removeprefix("data: "))
            assert event["type"] == line.removeprefix("event: ")
            yield event


@pytest.fixture
async def runs(shared_database) -> AsyncIterator[SessionRuns]:
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    await catalog.create_session("chat", metadata={"owner_id": "u1"})
    async with SessionRuns(catalog) as made:
        yield made
        await made.aclose(wait=0)


@pytest.fixture
async def server(runs, request) -> AsyncIterator[Served]:
    options = {"scope": owner, "runs": runs, **getattr(request, "param", {})}
    app = impatient(sessions_app(runs.catalog, **options))
    async with (
        served(Starlette(routes=[Mount("/v1", app)])) as address,
        httpx2.AsyncClient(timeout=60, limits=httpx2.Limits(max_connections=None)) as http,
    ):
        yield Served(runs, address, http, app.streams)
    await until(lambda: not app.streams._open)
    assert app.streams._open_in == {}


async def test_an_answer_is_followed_with_items_as_the_api_shows_them(runs, server) -> None:
    agent = speaking(["one two three four"], ["five six"])
    gate = agent.model.gates["three"] = asyncio.Event()
    await runs.start("chat", agent, "Count")
    await until(lambda: agent.model.spoken == ["one", "two"])
    async with server.follow() as stream:
        snapshot = await anext(stream)
        assert (snapshot["type"], snapshot["after"]) == ("snapshot", None)
        [question] = snapshot["items"]
        assert question["content"] == [{"type": "input_text", "text": "Count"}]
        assert question["id"].startswith("msg_")
        text = "".join(each.get("delta", "") for each in snapshot["events"])
        gate.set()
        found = [event async for event in stream]
    text += "".join(each.get("delta", "") for each in found)
    assert text == "one two three four"
    [item] = [each["item"] for each in found if each["type"] == "item"]
    assert found[-1] == {"type": "status", "status": "finished", "output": text}
    _, page = await server.send("GET", f"{CHAT}/items")
    assert page["data"] == [item, question]

    await runs.start("chat", agent, "Count on")
    async with server.follow(after=item["id"]) as stream:
        snapshot, *found = [event async for event in stream]
    assert (snapshot["after"], found[-1]["status"]) == (item["id"], "finished")
    # Who comes after the end gets what there is.
    async with server.follow(after=item["id"]) as stream:
        [late] = [event async for event in stream]
    _, page = await server.send("GET", f"{CHAT}/items?order=asc&after={item['id']}")
    assert late["items"] == page["data"]


@pytest.mark.logic
async def test_an_item_has_no_id_until_it_is_in_the_history(runs, server) -> None:
    agent = speaking(["=look"], ["Seen"])
    started = asyncio.Event()

    @function_tool
    async def look() -> str:
        started.set()
        await asyncio.sleep(1.5)
        return "saw it"

    agent.tools = [look]
    await runs.start("chat", agent, "Look")
    await started.wait()
    async with server.follow() as stream:
        found = [event async for event in stream]
    items = [*found[0]["items"], *(each["item"] for each in found if each["type"] == "item")]
    assert [each["type"] for each in items] == [
        *("message", "function_call", "function_call_output", "message")
    ]
    assert ["id" in each for each in items] == [True, False, True, True]
    assert found[-1]["status"] == "finished"


@pytest.mark.scaled
@pytest.mark.logic
@pytest.mark.parametrize("server", [{"max_streams_per_scope": 100}], indirect=True)
@pytest.mark.thorough
async def test_pages_whose_connections_are_dropped_show_the_whole(runs, server) -> None:
    @function_tool
    async def look() -> str:
        await asyncio.sleep(0.2)
        return "saw it"

    async def page(number: int) -> list[Any]:
        """What a page shows at the end. It connects again after each loss, with the same item."""
        chance, items, ended = random.Random(number), list[Any](), False
        while not ended:
            with suppress(asyncio.TimeoutError):
                async with server.follow(after=after) as stream:
                    events = stream.__aiter__()
                    while (
                        event := await asyncio.wait_for(
                            anext(events, None), chance.uniform(0.02, 0.5)
                        )
                    ) is not None:
                        if event["type"] == "snapshot":
                            items = event["items"]
                        elif event["type"] == "item":
                            items.append(event["item"])
                    ended = True
        return items

    await runs.run("chat", speaking(["Hello"]), "Hi")
    after = (await server.send("GET", f"{CHAT}/items?limit=1"))[1]["data"][0]["id"]
    for number in range(scale(1, 20)):
        answers = (["Let us see", "=look"], ["one two three four five six seven"])
        await runs.start("chat", speaking(*answers, pause=0.05, tools=[look]), "Go")
        pages = range(number * 10, number * 10 + scale(5, 15))
        shown = await asyncio.gather(*map(page, pages))
        _, listed = await server.send("GET", f"{CHAT}/items?order=asc&after={after}")
        whole = [{**item, "id": None} for item in listed["data"]]
        assert len(whole) == 5
        for items in shown:
            assert [{**item, "id": None} for item in items] == whole
        after = listed["data"][-1]["id"]


@pytest.mark.logic
async def test_the_run_waits_and_is_decided_by_who_may(runs, server) -> None:
    agent = speaking(["=pay"], ["Done"], tools=[pay])
    async with server.follow(forever=True) as stream:
        await runs.start("chat", agent, "Pay")
        while (event := await anext(stream)).get("status") != "waiting":
            pass
        [call] = event["pending"]
        code, run = await server.send("GET", f"{CHAT}/run")
        assert (code, run["object"], run["status"]) == (200, "conversation.run", "waiting")
        assert run["pending"] == [{**call, "decision": None}]
        body = {"call_id": call["call_id"], "approve": True}
        code, answer = await server.send("POST", f"{CHAT}/run/decisions", json=body)
        assert (code, answer["error"]["code"]) == (404, "no_route")
        await runs.decide("chat", call["call_id"], approve=True)
        await runs.start("chat", agent)
        while (event := await anext(stream)).get("status") != "finished":
            pass
    assert event["output"] == "Done"


@pytest.mark.logic
@pytest.mark.parametrize(
    "server",
    [{"allow_decisions": lambda request: request.headers.get("x-name")}],
    indirect=True,
)
async def test_a_decision_carries_the_name_that_the_application_gives(runs, server) -> None:
    agent = speaking(["=pay"], ["Done"], tools=[pay])
    waiting = await runs.run("chat", agent, "Pay")
    call_id = waiting.interruptions[0].call_id
    path, body = f"{CHAT}/run/decisions", {"call_id": call_id, "approve": False, "message": "No"}
    code, answer = await server.send("POST", path, json=body)
    assert (code, answer["error"]["code"]) == (403, "decisions_not_allowed")
    named = {"x-name": "Ana"}
    for wrong, expected in (
        ({**body, "approve": True}, 400),
        ({**body, "approve": "yes"}, 400),
        ({**body, "call_id": "other"}, 404),
    ):
        code, _ = await server.send("POST", path, json=wrong, headers=named)
        assert code == expected
    code, run = await server.send("POST", path, json=body, headers=named)
    assert (code, run["status"]) == (200, "waiting")
    assert run["pending"][0]["decision"] == {"approve": False, "message": "No"}
    [decision] = await runs.decisions("chat")
    assert (decision.by, decision.approve, decision.message) == ("Ana", False, "No")
    await runs.resume("chat", agent)
    code, answer = await server.send("POST", path, json=body, headers=named)
    assert code == 404


async def test_a_run_is_cancelled_and_its_text_stays(runs, server) -> None:
    agent = speaking(["one two three"])
    agent.model.gates["three"] = asyncio.Event()
    await runs.start("chat", agent, "Count")
    async with server.follow() as stream:
        text = ""
        while text != "one two":
            event = await anext(stream)
            parts = event["events"] if event["type"] == "snapshot" else [event]
            text += "".join(each.get("delta", "") for each in parts)
        cross = {"sec-fetch-site": "cross-site"}
        code, _ = await server.send("POST", f"{CHAT}/run/cancel", headers=cross)
        assert code == 403
        code, answer = await server.send("POST", f"{CHAT}/run/cancel")
        assert (code, answer["status"]) == (200, "cancelled")
        rest = [event async for event in stream]
        assert rest[-1] == {"type": "status", "status": "cancelled"}
    _, page = await server.send("GET", f"{CHAT}/items")
    newest = page["data"][0]
    assert (newest["status"], newest["content"][0]["text"]) == ("incomplete", "one two")
    code, _ = await server.send("POST", f"{CHAT}/run/cancel")
    assert code == 404


@pytest.mark.parametrize("server", [{"allow_decisions": True}], indirect=True)
async def test_a_foreign_run_cannot_be_told_from_a_missing_one(runs, server) -> None:
    agent = speaking(["=pay"], ["Done"], tools=[pay])
    waiting = await runs.run("chat", agent, "Pay")
    [item] = (await server.send("GET", f"{CHAT}/items?limit=1"))[1]["data"]
    body = {"call_id": waiting.interruptions[0].call_id, "approve": True}
    for method, path, options in (
        ("GET", "/run", {}),
        ("GET", "/run/events", {}),
        ("GET", f"/run/events?after={item['id']}", {}),
        ("GET", "/run/events?forever=true", {}),
        ("POST", "/run/cancel", {}),
        ("POST", "/run/decisions", {"json": body}),
    ):
        foreign = await server.send(method, CHAT + path, user="u2", **options)
        missing = await server.send(method, f"/conversations/none{path}", user="u2", **options)
        assert foreign[0] == missing[0] == 404
        assert json.dumps(foreign[1]).replace("chat", "none") == json.dumps(missing[1])
    assert (await runs.get("chat")) is not None
    assert await runs.decisions() == []


@pytest.mark.logic
async def test_a_conversation_without_a_run_has_no_run_over_http(server) -> None:
    for method, path in (("GET", "/run"), ("GET", "/run/events"), ("POST", "/run/cancel")):
        assert (await server.send(method, CHAT + path))[0] == 404
    code, answer = await server.send("GET", f"{CHAT}/run/events?after=msg_asm99")
    assert (code, answer["error"]["param"]) == (404, "after")


@pytest.mark.logic
@pytest.mark.parametrize("server", [{"max_streams_per_scope": 2}], indirect=True)
async def test_streams_of_runs_are_limited_and_end_with_their_clients(server) -> None:
    url, headers = f"{server.address}/v1{CHAT}/run/events?forever=true", {"x-user": "u1"}
    async with (
        server.follow(forever=True),
        server.http.stream("GET", url, headers=headers) as second,
    ):
        lines = second.aiter_lines()
        assert [await anext(lines) for _ in range(5)][2:] == [":", "", ":"]
        code, answer = await server.send("GET", f"{CHAT}/run/events?forever=true")
        assert (code, answer["error"]["code"]) == (503, "streams")
    await until(lambda: not server.streams._open)


@pytest.mark.logic
@pytest.mark.parametrize("server", [{"max_streams_per_scope": 2}], indirect=True)
async def test_clients_that_come_back_together_open_no_more_streams(runs, server) -> None:
    agent = speaking(["one two"])
    agent.model.gates["two"] = asyncio.Event()
    await runs.with_catalog(runs.catalog.scoped({"owner_id": "u1"})).start("chat", agent, "Count")
    url, headers = f"{server.address}/v1{CHAT}/run/events", {"x-user": "u1"}
    async with AsyncExitStack() as stack:
        streams = (server.http.stream("GET", url, headers=headers) for _ in range(5))
        opened = await asyncio.gather(*map(stack.enter_async_context, streams))
        assert sorted(each.status_code for each in opened) == [200, 200, 503, 503, 503]
        agent.model.gates["two"].set()
    await until(lambda: not server.streams._open)


@pytest.mark.logic
async def test_runs_are_in_the_openapi_document_and_checked(runs, server) -> None:
    _, document = await server.send("GET", "/openapi.json")
    paths = [path for path in document["paths"] if "/run" in path]
    assert [path.rpartition("/run")[2] for path in paths] == ["", "/events", "/cancel"]
    with pytest.raises(ValueError, match="requires runs"):
        sessions_app(runs.catalog, scope=None, allow_decisions=True)
    with pytest.raises(TypeError, match="runs must be"):
        sessions_app(runs.catalog, scope=None, runs=runs.catalog)  # type: ignore[arg-type]


@pytest.mark.logic
async def test_closing_runs_ends_those_of_their_scopes(runs) -> None:
    agent = speaking(["one two"])
    agent.model.gates["two"] = asyncio.Event()
    mine = runs.with_catalog(runs.catalog.scoped({"owner_id": "u1"}))
    await mine.start("chat", agent, "Count")
    other = runs.with_catalog(runs.catalog.scoped({"owner_id": "u2"}))
    assert await other.cancel("chat") is False
    await runs.aclose(wait=0)
    info = await mine.get("chat")
    assert info is not None
    assert info.status == "interrupted"

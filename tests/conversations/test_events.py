"""Server-sent events: what changes, to whom, and when a stream ends."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import httpx2
import pytest
from processes import run_processes
from starlette.applications import Starlette
from starlette.routing import Mount

from agents_session_metadata import SessionCatalog
from agents_session_metadata.http import sessions_app

from .serving import impatient, owner, served

CLIENTS = 50

# Another process, with the plain SDK.
WRITE = """
import asyncio, sys
from agents.extensions.memory import SQLAlchemySession

async def main():
    for name in sys.argv[2:]:
        session = SQLAlchemySession.from_url(name, url=sys.argv[1])
        await session.add_items([{"role": "user", "content": "hello"}])
        await session.engine.dispose()

start()
asyncio.run(main())
"""


@pytest.fixture
async def catalog(shared_database):
    return SessionCatalog(shared_database.engine(), create_tables=True)


class Follower:
    """A client that reads a stream."""

    def __init__(self, lines):
        self._lines = lines

    async def comment(self):
        line = await asyncio.wait_for(anext(self._lines), 60)
        assert line.startswith(":")
        assert await anext(self._lines) == ""

    async def event(self):
        while True:
            line = await asyncio.wait_for(anext(self._lines), 60)
            if line.startswith("event: "):
                return line.removeprefix("event: "), json.loads((await anext(self._lines))[6:])


@pytest.fixture
async def following(catalog, request):
    """The application, its address and a function that connects a client."""
    most = getattr(request, "param", CLIENTS)
    app = impatient(
        sessions_app(catalog, scope=owner, max_streams=CLIENTS, max_streams_per_scope=most)
    )
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(
            served(Starlette(routes=[Mount("/v1", app)])),
        )
        limits = httpx2.Limits(max_connections=None)
        client = httpx2.AsyncClient(timeout=60, limits=limits)
        await stack.enter_async_context(client)

        async def connect(user="u1", **query):
            headers = {"x-user": user}
            stream = client.stream("GET", f"{address}/v1/events", headers=headers, params=query)
            response = await stack.enter_async_context(stream)
            if response.status_code != 200:
                return response
            assert response.headers["content-type"].startswith("text/event-stream")
            follower = Follower(response.aiter_lines())
            await follower.comment()
            return follower

        yield app.streams, connect, stack
    # Whoever disconnects ends the stream, and the last one its poll.
    for _ in range(500):
        if not app.streams._open:
            break
        await asyncio.sleep(0.01)
    assert (app.streams._open, app.streams._open_in, app.streams._polls) == (0, {}, {})


async def test_fifty_clients_see_what_another_process_writes(catalog, following, shared_database):
    for name, user in (("mine", "u1"), ("theirs", "u2")):
        await catalog.create_session(name, metadata={"owner_id": user, "phase": "planning"})
    streams, connect, _ = following
    clients = await asyncio.gather(*[connect() for _ in range(CLIENTS)])
    assert (len(streams._polls), streams._open) == (1, CLIENTS)
    refused = await connect()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")

    await run_processes(WRITE, [[shared_database.url, "theirs", "mine"]])
    for kind, shown in await asyncio.gather(*[client.event() for client in clients]):
        assert (kind, shown["id"]) == ("changed", "mine")
        assert shown["metadata"] == {"owner_id": "u1"}
    await catalog.delete_session("theirs")
    await catalog.delete_session("mine")
    for kind, shown in await asyncio.gather(*[client.event() for client in clients]):
        assert (kind, shown["id"]) == ("removed", "mine")


@pytest.mark.logic
@pytest.mark.parametrize("following", [2], indirect=True)
async def test_one_scope_does_not_take_the_streams_of_the_others(following):
    streams, connect, _ = following
    where, opened = json.dumps({"title": "x"}), []
    for user in ("u1", "u2"):
        opened += [await connect(user), await connect(user, where=where)]
        for query in ({}, {"where": where}, {"where": "{}"}):
            assert (await connect(user, **query)).status_code == 503
    assert streams._open == 4
    assert all(isinstance(each, Follower) for each in [*opened, await connect("u3")])


@pytest.mark.logic
async def test_streams_of_other_scopes_and_filters(catalog, following):
    streams, connect, _ = following
    where = json.dumps({"title": "x"})
    first, other, filtered = await connect(), await connect("u2"), await connect(where=where)
    assert len(streams._polls) == 3
    await catalog.create_session("a", metadata={"owner_id": "u1", "title": "y", "cost": 1})
    assert (await first.event())[1]["metadata"] == {"owner_id": "u1", "title": "y"}
    await catalog.set_metadata("a", {"title": "x"})
    assert (await first.event())[0] == "changed"
    kind, shown = await filtered.event()
    assert (kind, shown["object"]) == ("added", "conversation")
    await other.comment()
    for wrong, status in (
        ({"where": "{"}, 400),
        ({"where": '{"cost": 1}'}, 400),
        ({"q": "x"}, 400),
    ):
        assert (await connect(**wrong)).status_code == status


async def test_a_poll_that_fails_ends_its_streams(catalog, following, monkeypatch):
    _, connect, _ = following
    follower = await connect()

    async def fail(*_):
        raise OSError("the database is gone")

    monkeypatch.setattr("agents_session_metadata.watch.read_sessions", fail)
    with pytest.raises(StopAsyncIteration):
        await follower.event()

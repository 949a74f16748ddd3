"""The application on a real server, and OpenAI's client that talks to it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import uvicorn
from openai import AsyncOpenAI
from openai.types.conversations import (
    Conversation,
    ConversationDeletedResource,
    ConversationItem,
    ConversationItemList,
)
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.routing import Mount

from agents_session_metadata.http import sessions_app
from agents_session_metadata.http.events import Streams

MODELS = {
    ("conversation", "list"): TypeAdapter(ConversationItemList),
    ("conversation", "conversation"): TypeAdapter(Conversation),
    ("conversation", "conversation.deleted"): TypeAdapter(ConversationDeletedResource),
    ("conversation", None): TypeAdapter(ConversationItem),
}


def owner(request: Any) -> dict[str, Any]:
    """The scope of the tests: the user that a header names."""
    return {"owner_id": request.headers.get("x-user")}


def mounted(catalog: Any, **settings: Any) -> Starlette:
    """The application, mounted as in the guide."""
    settings = {"scope": owner, **settings}
    return Starlette(routes=[Mount("/v1", sessions_app(catalog, **settings))])


def impatient(app: Any) -> Any:
    """The application with streams that poll, and send comments, after a part of a second."""
    most = app.streams._most, app.streams._most_per_scope
    return dataclasses.replace(app, streams=Streams(*most, interval=0.05, comment_after=0.1))


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The address of a server of the application, in this event loop."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=5)
    )
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def openai_client(address: str, user: str = "u1", **settings: Any) -> AsyncIterator[Any]:
    """OpenAI's client. Each answer to it is checked against its models, strictly."""

    async def check(response: httpx2.Response) -> None:
        await response.aread()
        if response.is_success:
            parts = response.request.url.path.split("/")
            is_list = parts[2:] == ["conversations"] and response.request.method == "GET"
            if not is_list:
                body = response.json()
                if body.get("data") == []:
                    # The models require strings. The client takes null for the end.
                    body |= {"first_id": "", "last_id": ""}
                MODELS["conversation", body.get("object")].validate_python(body)

    http = httpx2.AsyncClient(event_hooks={"response": [check]})
    async with AsyncOpenAI(
        api_key="none",
        base_url=f"{address}/v1",
        http_client=http,
        default_headers={"x-user": user},
        **settings,
    ) as client:
        yield client


@contextlib.asynccontextmanager
async def raw_client(
    app: Any, user: str | None = "u1", *, root_path: str = ""
) -> AsyncIterator[httpx2.AsyncClient]:
    """A plain client without a network between."""
    headers = {} if user is None else {"x-user": user}
    transport = httpx2.ASGITransport(app, root_path=root_path)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://test/v1", headers=headers
    ) as client:
        yield client

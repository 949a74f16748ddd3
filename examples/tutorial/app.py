"""A chat with a sidebar, titles, search, a budget and approvals, which survives a crash.

`docs/tutorial.md` builds it step by step. `python examples/tutorial/app.py` starts it. It requires
the extra `web`, and no API key. The database is the one in AGENT_SESSIONS_URL, or chat.db.
"""

import os
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import uvicorn
from agents import Agent, function_tool
from shop import MODEL, TITLE_MODEL
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Mount, Route

from agents_session_metadata import (
    Budget,
    BudgetExceededError,
    ModelPrice,
    RunInterruptedError,
    RunNotFoundError,
    SessionBusyError,
    SessionCatalog,
    SessionNotFoundError,
    SessionPausedError,
    SessionRun,
    SessionRuns,
    SessionTitler,
    SessionTracker,
)
from agents_session_metadata.web import browser_app

catalog = SessionCatalog.from_url(
    os.environ.get("AGENT_SESSIONS_URL") or "sqlite:///chat.db", create_tables=True
)
PRICE = ModelPrice(input=Decimal("2.50"), output=Decimal("10.00"))  # per million tokens
BUDGET = Budget(cost=Decimal("0.10"), per="owner_id", window="day")
titler = SessionTitler(model=TITLE_MODEL)


@function_tool(needs_approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"order {order} is refunded"


agent = Agent("shop", model=MODEL, tools=[refund])


def chats_of(user: str) -> SessionCatalog:
    return catalog.scoped({"owner_id": user})


def runs_of(user: str) -> SessionRuns:
    return SessionRuns(chats_of(user), lease=timedelta(seconds=10))


async def sidebar(user: str, cursor: str | None = None) -> dict[str, Any]:
    page = await chats_of(user).list_sessions(limit=20, cursor=cursor, keys=["title"], preview=True)
    chats = [
        {"id": chat.session_id, "title": chat.metadata.get("title") or chat.preview or "New chat"}
        for chat in page.sessions
    ]
    return {"chats": chats, "next": page.next_cursor}


async def messages(user: str, chat_id: str) -> list[dict[str, Any]]:
    page = await chats_of(user).list_items(chat_id, limit=50, newest_first=True)
    return [
        {"role": entry.item["role"], "text": text_of(entry.item)}
        for entry in reversed(page.items)
        if "role" in entry.item
    ]


def text_of(item: dict[str, Any]) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def find(user: str, words: str) -> list[dict[str, Any]]:
    page = await chats_of(user).search(words, by_session=True)
    return [{"id": hit.session_id, "title": hit.snippet} for hit in page.hits]


@asynccontextmanager
async def tracked(user: str, chat_id: str) -> AsyncIterator[SessionTracker]:
    chat = chats_of(user).session(chat_id, must_exist=True)
    async with SessionTracker(
        chat, prices=PRICE, model="demo", budget=BUDGET, titler=titler
    ) as hooks:
        yield hooks


async def send(user: str, chat_id: str, text: str, key: str | None = None) -> SessionRun:
    if await chats_of(user).get_session(chat_id, keys=[]) is None:
        raise SessionNotFoundError(chat_id)
    async with tracked(user, chat_id) as hooks:
        return await runs_of(user).run(
            chat_id, agent, text, hooks=hooks, key=key, wait=60, interrupted="resume"
        )


async def decide(user: str, chat_id: str, call_id: str, approve: bool) -> SessionRun:
    # If it was decided before: by a first click, or by a process that died after that.
    with suppress(RunNotFoundError, SessionBusyError, RunInterruptedError):
        await runs_of(user).decide(chat_id, call_id, approve=approve, by=user)
    async with tracked(user, chat_id) as hooks:
        return await runs_of(user).resume(chat_id, agent, hooks=hooks, wait=60)


def shown(run: SessionRun) -> JSONResponse:
    waiting = [{"id": call.call_id, "tool": call.tool} for call in run.interruptions]
    return JSONResponse({"answer": run.final_output, "waiting": waiting})


def user_of(request: Request) -> str:
    user = request.headers.get("x-user")  # Replace the header with your authentication.
    if not user:
        raise HTTPException(401, "log in first")
    return user


async def get_chats(request: Request) -> JSONResponse:
    user, words = user_of(request), request.query_params.get("q")
    if words:
        return JSONResponse({"chats": await find(user, words), "next": None})
    return JSONResponse(await sidebar(user, request.query_params.get("cursor")))


async def post_chat(request: Request) -> JSONResponse:
    chat = await chats_of(user_of(request)).create_session()
    return JSONResponse({"id": chat.session_id}, 201)


async def get_chat(request: Request) -> JSONResponse:
    user, chat_id = user_of(request), request.path_params["id"]
    run = await runs_of(user).get(chat_id)
    waiting = [
        {"id": call.call_id, "tool": call.tool, "arguments": call.arguments}
        for call in (run.undecided if run else ())
    ]
    return JSONResponse({"messages": await messages(user, chat_id), "waiting": waiting})


async def patch_chat(request: Request) -> JSONResponse:
    title = (await request.json())["title"]
    await chats_of(user_of(request)).set_metadata(
        request.path_params["id"], {"title": title}, must_exist=True
    )
    return JSONResponse({})


async def delete_chat(request: Request) -> JSONResponse:
    await chats_of(user_of(request)).delete_session(request.path_params["id"])
    return JSONResponse({})


async def post_message(request: Request) -> JSONResponse:
    body = await request.json()
    run = await send(user_of(request), request.path_params["id"], body["text"], body["key"])
    return shown(run)


async def post_decision(request: Request) -> JSONResponse:
    body, path = await request.json(), request.path_params
    return shown(await decide(user_of(request), path["id"], path["call"], body["approve"]))


async def problem(_: Request, error: Exception) -> JSONResponse:
    status, words = PROBLEMS[type(error)]
    return JSONResponse({"error": words}, status)


# The texts of the errors are for developers.
PROBLEMS: dict[Any, tuple[int, str]] = {
    SessionNotFoundError: (404, "This chat does not exist."),
    RunNotFoundError: (404, "This question was answered before."),
    SessionBusyError: (409, "The last answer is not finished. Try again later."),
    SessionPausedError: (409, "Approve or reject the call first."),
    BudgetExceededError: (429, "Your budget of today is used up."),
}


PASSWORD = os.environ.get("ADMIN_PASSWORD") or secrets.token_urlsafe()


def operator(request: Request) -> SessionCatalog:
    login = "Basic " + b64encode(f"admin:{PASSWORD}".encode()).decode()
    if not secrets.compare_digest(
        request.headers.get("authorization", "").encode(), login.encode()
    ):
        raise HTTPException(401, "log in as admin", {"WWW-Authenticate": "Basic"})
    return catalog


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with catalog:
        await catalog.create_index("$text")
        yield
        await titler.wait()


app = Starlette(
    routes=[
        Route("/", lambda _: FileResponse(Path(__file__).with_name("index.html"))),
        Route("/chats", get_chats),
        Route("/chats", post_chat, methods=["POST"]),
        Route("/chats/{id}", get_chat),
        Route("/chats/{id}", patch_chat, methods=["PATCH"]),
        Route("/chats/{id}", delete_chat, methods=["DELETE"]),
        Route("/chats/{id}/messages", post_message, methods=["POST"]),
        Route("/chats/{id}/calls/{call}", post_decision, methods=["POST"]),
        Mount("/admin", browser_app(catalog, scope=operator)),
    ],
    exception_handlers=dict.fromkeys(PROBLEMS, problem),
    lifespan=lifespan,
)

if __name__ == "__main__":
    uvicorn.run(app, port=8000)

"""A chat on FastAPI whose answers outlive their request, with approvals, a budget and search.

`docs/chat.md` explains it. `python examples/chat/app.py` starts it. It requires the extra `web` and
the package `fastapi`, and no API key. The database is the one in AGENT_SESSIONS_URL, or chat.db.
"""

import hmac
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import uvicorn
from agents import Agent, function_tool
from assistant import MODEL, TITLE_MODEL
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel

from agents_session_metadata import (
    Budget,
    ModelPrice,
    RunCancelledError,
    RunFailedError,
    RunInfo,
    RunInterruptedError,
    SessionBusyError,
    SessionCatalog,
    SessionNotFoundError,
    SessionPausedError,
    SessionRuns,
    SessionTitler,
    SessionTracker,
)
from agents_session_metadata.http import sessions_app
from agents_session_metadata.web import browser_app

catalog = SessionCatalog.from_url(
    os.environ.get("AGENT_SESSIONS_URL") or "sqlite:///chat.db", create_tables=True
)
runs = SessionRuns(catalog, lease=timedelta(seconds=10))


@function_tool(needs_approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"order {order} is refunded"


agent = Agent("shop", model=MODEL, tools=[refund])

SECRET = os.environ.get("CHAT_SECRET", "only for a demonstration").encode()


def signature(user: str) -> str:
    return hmac.new(SECRET, user.encode(), "sha256").hexdigest()


def user_of(request: Request) -> str:
    user, _, given = request.cookies.get("login", "").rpartition(".")
    if not user or not hmac.compare_digest(given.encode(), signature(user).encode()):
        raise HTTPException(401, "Log in first.")
    return user


def scope_of(request: Request) -> dict[str, Any]:
    return {"owner_id": user_of(request)}


def chats_of(user: str) -> SessionCatalog:
    return catalog.scoped({"owner_id": user})


OPERATORS = frozenset(os.environ.get("CHAT_OPERATORS", "").split(","))


def scope_of_operator(request: Request) -> SessionCatalog:
    if user_of(request) not in OPERATORS:
        raise HTTPException(403, "only operators see all chats")
    return catalog


PRICE = ModelPrice(input=Decimal("2.50"), output=Decimal("10.00"))  # per million tokens
BUDGET = Budget(cost=Decimal("0.10"), per="owner_id", window="day")
titler = SessionTitler(model=TITLE_MODEL)


def tracker_of(chat_id: str) -> SessionTracker:
    chat = catalog.session(chat_id, must_exist=True)
    return SessionTracker(chat, prices=PRICE, model="demo", budget=BUDGET, titler=titler)


def agent_of(run: RunInfo) -> Any:
    return agent, {"hooks": tracker_of(run.session_id)}


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    recovering = runs.recovering(agent_of, every=timedelta(seconds=1), decided=True)
    async with catalog, runs, recovering:
        await catalog.create_index("$text")
        yield
        await runs.aclose(wait=5)
        await titler.wait()


app = FastAPI(lifespan=lifespan)


class Login(BaseModel):
    user: str


@app.post("/login")
async def login(body: Login) -> JSONResponse:
    response = JSONResponse({"user": body.user})
    token = f"{body.user}.{signature(body.user)}"
    response.set_cookie("login", token, httponly=True, samesite="strict")
    return response


class Message(BaseModel):
    text: str
    key: str
    if_busy: Literal["refuse", "wait", "stop"] = "refuse"


@app.post("/chats/{chat_id}/messages", status_code=202)
async def send(
    chat_id: str, message: Message, user: Annotated[str, Depends(user_of)]
) -> dict[str, Any]:
    if await chats_of(user).get_session(chat_id, keys=[]) is None:
        raise SessionNotFoundError(chat_id)
    mine = runs.with_catalog(chats_of(user))
    if message.if_busy == "stop":
        await mine.cancel(chat_id)
    begun = await mine.start(
        chat_id,
        agent,
        message.text,
        key=message.key,
        wait=60 if message.if_busy == "wait" else 0,
        hooks=tracker_of(chat_id),
    )
    return {"begun": begun}


@app.exception_handler(SessionNotFoundError)
async def not_found(_request: Request, _error: SessionNotFoundError) -> JSONResponse:
    return JSONResponse({"detail": "No such chat."}, 404)


# The texts of the errors are for developers.
CONFLICTS: dict[type[Exception], str] = {
    SessionBusyError: "The last answer is not finished. Wait for it, or stop it.",
    SessionPausedError: "Approve or reject the call first.",
    RunInterruptedError: "The last answer was interrupted, and will go on.",
    RunFailedError: "The answer to this message failed. Send it again.",
    RunCancelledError: "The answer to this message was stopped.",
}


async def conflict(_request: Request, error: Exception) -> JSONResponse:
    words = next(words for kind, words in CONFLICTS.items() if isinstance(error, kind))
    return JSONResponse({"detail": words}, 409)


for kind in CONFLICTS:
    app.add_exception_handler(kind, conflict)


@app.get("/")
@app.get("/page.js")
async def page(request: Request) -> FileResponse:
    name = "page.js" if request.url.path == "/page.js" else "index.html"
    return FileResponse(Path(__file__).with_name(name))


app.mount("/v1", sessions_app(catalog, scope=scope_of, runs=runs, allow_decisions=user_of))
app.mount("/sessions", browser_app(catalog, scope=scope_of, allow_write=True, by=user_of))
app.mount("/operator", browser_app(catalog, scope=scope_of_operator))

if __name__ == "__main__":
    uvicorn.run(app, port=8000, timeout_graceful_shutdown=5)

"""Runs behind real servers, whose clients leave, come back, click twice and send too early."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from documentation import DOCS, ROOT, blocks
from scaling import scale
from served_processes import Served, server_process

pytestmark = pytest.mark.thorough

TESTS = Path(__file__).parent
ENVIRONMENT = {"PYTHONPATH": str(TESTS), "OPENAI_AGENTS_DISABLE_TRACING": "1"}

STREAMING = """
import asyncio, json, os
from contextlib import asynccontextmanager
from datetime import timedelta
from agents import Agent, function_tool
from agents.tool_context import ToolContext
from agents_session_metadata import *
from conformance.failing import Turns

class Slow(Turns):
    async def stream_response(self, *args, **kwargs):
        async for event in super().stream_response(*args, **kwargs):
            await asyncio.sleep(0.1)
            yield event

@function_tool
async def charge(context: ToolContext) -> str:
    with open("charged", "a") as file:
        file.write(context.tool_call_id + "\\n")
    await asyncio.sleep(1)
    return "charged"

catalog = SessionCatalog.from_url(os.environ["URL"], create_tables=True)
runs = SessionRuns(catalog, lease=timedelta(minutes=2))
agent = Agent("shop", tools=[charge], model=Slow(["charge"], "Order 7 is paid."))

async def words(chat, body):
    async with runs.stream(chat, agent, body["text"], key=body["key"], wait=body["wait"]) as run:
        async for event in run.stream_events():
            yield event.type + "\\n"
    yield json.dumps([run.final_output, run.repeated])

async def status(chat):
    info = await runs.get(chat)
    items = await catalog.session(chat).get_items()
    return {"status": info and info.status, "items": len(items)}

@asynccontextmanager
async def lifespan(_):
    async with catalog:
        yield
"""
APPLICATIONS = {
    "starlette": """
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

async def post(request):
    return StreamingResponse(words(request.path_params["id"], await request.json()))

async def get(request):
    return JSONResponse(await status(request.path_params["id"]))

app = Starlette(lifespan=lifespan, routes=[
    Route("/chats/{id}", post, methods=["POST"]), Route("/chats/{id}", get)])
""",
    "fastapi": """
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

app = FastAPI(lifespan=lifespan)

@app.post("/chats/{chat}")
async def post(chat: str, body: dict):
    return StreamingResponse(words(chat, body))

@app.get("/chats/{chat}")
async def get(chat: str):
    return await status(chat)
""",
    # Its requests are tasks in an anyio scope of a middleware.
    "middleware": """
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from starlette.middleware.base import BaseHTTPMiddleware

app = FastAPI(lifespan=lifespan)

async def unchanged(request, call_next):
    return await call_next(request)

app.add_middleware(BaseHTTPMiddleware, dispatch=unchanged)

@app.post("/chats/{chat}")
async def post(chat: str, body: dict):
    return StreamingResponse(words(chat, body))

@app.get("/chats/{chat}")
async def get(chat: str):
    return await status(chat)
""",
}


@pytest.fixture
async def streaming(request, shared_database, tmp_path) -> AsyncIterator[Served]:
    kind = getattr(request, "param", "starlette")
    (tmp_path / "app.py").write_text(STREAMING + APPLICATIONS[kind], encoding="utf-8")
    environment = {**ENVIRONMENT, "URL": shared_database.url}
    async with server_process(tmp_path, "app:app", environment, log=tmp_path / "log") as server:
        yield server


async def status_of(server: Served, chat: str = "chat") -> str | None:
    code, text = await server.send("GET", f"/chats/{chat}")
    assert code == 200
    return json.loads(text)["status"]


async def until_status(server: Served, expected: str | None, chat: str = "chat") -> None:
    for _ in range(40):
        if await status_of(server, chat) == expected:
            return
        await asyncio.sleep(0.1)
    assert await status_of(server, chat) == expected


async def leave_and_come_back(server: Served, tmp_path: Path) -> None:
    for number, after in enumerate((0, 0.5, 1.2)):
        chat = f"chat-{number}"
        message = {"text": "Pay order 7", "key": "r1", "wait": 0}
        await server.leave(f"/chats/{chat}", after=after, **message)
        await until_status(server, "interrupted", chat)
        for is_repeated in (False, True):
            code, text = await server.send("POST", f"/chats/{chat}", **message)
            assert code == 200
            assert json.loads(text.splitlines()[-1]) == ["Order 7 is paid.", is_repeated]
        assert await server.send("GET", f"/chats/{chat}") == (200, '{"status":null,"items":4}')
        # A call that was cut ran again, with the same id.
        charged = set((tmp_path / "charged").read_text().split())
        assert len(charged) == number + 1


@pytest.mark.logic
async def test_a_client_that_leaves_a_stream_does_not_lock_its_chat(streaming, tmp_path) -> None:
    await leave_and_come_back(streaming, tmp_path)


@pytest.mark.scaled
@pytest.mark.logic
@pytest.mark.parametrize(
    "streaming", scale(["middleware"], ["fastapi", "middleware"]), indirect=True
)
async def test_a_client_that_leaves_does_not_lock_its_chat_in_fastapi(streaming, tmp_path) -> None:
    await leave_and_come_back(streaming, tmp_path)


@pytest.mark.logic
async def test_a_client_that_leaves_again_and_again_gets_its_answer(streaming, tmp_path) -> None:
    message = {"text": "Pay order 7", "key": "r1", "wait": 30}
    for after in (0, 0.3, 0.8, 1.3, 0.1, 1.7):
        await streaming.leave("/chats/chat", after=after, **message)
    code, text = await streaming.send("POST", "/chats/chat", **message)
    assert (code, json.loads(text.splitlines()[-1])[0]) == (200, "Order 7 is paid.")
    assert await streaming.send("GET", "/chats/chat") == (200, '{"status":null,"items":4}')


@pytest.mark.logic
async def test_messages_that_are_sent_too_early_wait_or_are_refused(streaming) -> None:
    first = asyncio.create_task(
        streaming.send("POST", "/chats/chat", text="Pay order 7", key="r1", wait=0)
    )
    await until_status(streaming, "running")
    second = await streaming.send("POST", "/chats/chat", text="Pay order 8", key="r2", wait=30)
    assert (await first)[0] == second[0] == 200
    assert json.loads(second[1].splitlines()[-1]) == ["Order 7 is paid.", False]
    assert await streaming.send("GET", "/chats/chat") == (200, '{"status":null,"items":8}')


# ---- the server of the tutorial ----


@pytest.fixture
async def tutorial(shared_database, tmp_path) -> AsyncIterator[Served]:
    environment = {**ENVIRONMENT, "AGENT_SESSIONS_URL": shared_database.url}
    place = ROOT / "examples" / "tutorial"
    async with server_process(place, "app:app", environment, log=tmp_path / "log") as server:
        yield server


async def new_chat(server: Served) -> str:
    code, text = await server.send("POST", "/chats")
    assert code == 201
    return f"/chats/{json.loads(text)['id']}"


@pytest.mark.logic
async def test_the_tutorials_server_answers_a_client_that_left_and_came_back(tutorial) -> None:
    chat = await new_chat(tutorial)
    message = {"text": "Think slowly: when?", "key": "r1"}
    for after in (0.3, 1.0):
        await tutorial.leave(f"{chat}/messages", pieces=False, after=after, **message)
    early = asyncio.create_task(
        tutorial.send("POST", f"{chat}/messages", text="Where is order 8?", key="r2")
    )
    for answer in (await tutorial.send("POST", f"{chat}/messages", **message), await early):
        assert answer[0] == 200
        assert json.loads(answer[1])["answer"] == "Your order arrives on Friday."
    code, text = await tutorial.send("GET", chat)
    assert code == 200
    roles = [each["role"] for each in json.loads(text)["messages"]]
    assert roles == ["user", "assistant"] * 2


@pytest.mark.logic
async def test_the_tutorials_server_takes_two_clicks_on_approve(tutorial) -> None:
    chat = await new_chat(tutorial)
    code, text = await tutorial.send("POST", f"{chat}/messages", text="Refund order 7!", key="r1")
    assert code == 200
    [waiting] = json.loads(text)["waiting"]
    path = f"{chat}/calls/{waiting['id']}"
    clicks = await asyncio.gather(*(tutorial.send("POST", path, approve=True) for _ in range(3)))
    clicks.append(await tutorial.send("POST", path, approve=True))
    codes = [code for code, _ in clicks]
    assert set(codes) <= {200, 409}, clicks
    answers = {json.loads(text)["answer"] for code, text in clicks if code == 200}
    assert answers == {"Done: order 7 is refunded."}
    code, text = await tutorial.send("POST", f"{chat}/messages", text="Refund order 7!", key="r1")
    assert (code, json.loads(text)["answer"]) == (200, "Done: order 7 is refunded.")
    code, text = await tutorial.send("GET", chat)
    assert len(json.loads(text)["messages"]) == 2


@pytest.mark.logic
async def test_the_tutorials_server_refuses_a_message_while_a_call_waits(tutorial) -> None:
    chat = await new_chat(tutorial)
    await tutorial.send("POST", f"{chat}/messages", text="Refund order 7!", key="r1")
    for number in range(3):
        key = f"early-{number}"
        code, _ = await tutorial.send("POST", f"{chat}/messages", text="Hello?", key=key)
        assert code == 409
    [waiting] = json.loads((await tutorial.send("GET", chat))[1])["waiting"]
    code, _ = await tutorial.send("POST", f"{chat}/calls/{waiting['id']}", approve=False)
    assert code == 200
    code, _ = await tutorial.send("POST", f"{chat}/messages", text="Hello?", key="later")
    assert code == 200


# ---- the server of the page about FastAPI ----


@pytest.fixture
async def page(shared_database, tmp_path) -> AsyncIterator[Served]:
    """The program of the page, as it is printed, with a slow model."""
    source = "\n".join(each.source for each in blocks(DOCS / "fastapi.md") if each.kind == "python")
    (tmp_path / "chats.py").write_text(source, encoding="utf-8")
    slow = STREAMING[STREAMING.index("class Slow") : STREAMING.index("@function_tool")]
    (tmp_path / "slow.py").write_text(
        "import asyncio\nfrom conformance.failing import Turns\nfrom chats import agent, app\n"
        f'{slow}\nagent.model = Slow("Your order arrives on Friday.")\n',
        encoding="utf-8",
    )
    environment = {**ENVIRONMENT, "DATABASE_URL": shared_database.url}
    async with server_process(tmp_path, "slow:app", environment, log=tmp_path / "log") as server:
        yield server


@pytest.mark.logic
async def test_the_fastapi_server_goes_on_after_a_client_that_left(page) -> None:
    code, text = await page.send("POST", "/chats", title="Orders")
    assert code == 201
    chat = f"/chats/{json.loads(text)['id']}"
    for after in (0, 0.3, 0.6):
        await page.leave(f"{chat}/messages", after=after, text="Where is order 7?")
    code, text = await page.send("POST", f"{chat}/messages", text="Where is order 7?")
    assert (code, text) == (200, "Your order arrives on Friday.")
    code, text = await page.send("GET", "/chats")
    assert code == 200

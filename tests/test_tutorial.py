"""The application of docs/tutorial.md: the page shows the program, and the program works."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest
from conversations.serving import served
from documentation import DOCS, ROOT, blocks
from served_processes import Served, killed_process
from servers import free_port

CHAT = ROOT / "examples" / "tutorial"


def definitions(source: str) -> dict[str, str]:
    """The functions and constants of a program, by name: the last one of each."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = ast.unparse(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            found[ast.unparse(target)] = ast.unparse(node)
    return found


def test_the_page_shows_the_whole_program() -> None:
    page = "".join(block.source for block in blocks(DOCS / "tutorial.md") if block.kind == "python")
    program = definitions((CHAT / "app.py").read_text(encoding="utf-8"))
    shown = definitions(page)
    assert {name: shown.get(name) for name in program} == program


class Browser:
    """The requests of the page of one user."""

    def __init__(self, client: httpx2.AsyncClient, address: str, user: str) -> None:
        self._client, self.address, self._user = client, address, user

    async def send(self, method: str, path: str, **body: Any) -> Any:
        answer = await self._client.request(
            method, self.address + path, json=body or None, headers={"x-user": self._user}
        )
        return answer.json() if answer.status_code < 400 else answer.status_code

    async def titles(self, words: str = "") -> set[str]:
        return {chat["title"] for chat in (await self.send("GET", f"/chats?q={words}"))["chats"]}


@pytest.fixture
async def page(shared_database, monkeypatch) -> AsyncIterator[tuple[Browser, Browser, Any]]:
    """The pages of two users, and the program."""
    monkeypatch.syspath_prepend(CHAT)
    monkeypatch.setenv("AGENT_SESSIONS_URL", shared_database.url)
    spec = importlib.util.spec_from_file_location("chat_app", CHAT / "app.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    async with served(program.app) as address, httpx2.AsyncClient(timeout=60) as client:
        yield Browser(client, address, "ana"), Browser(client, address, "ben"), program


async def test_the_program_on_every_database(page) -> None:
    ana, ben, program = page
    chat = f"/chats/{(await ana.send('POST', '/chats'))['id']}"
    sent = await ana.send("POST", f"{chat}/messages", text="Where is order 7?", key="r1")
    assert sent == {"answer": "Your order arrives on Friday.", "waiting": []}
    await program.titler.wait()
    assert await ana.titles() == await ana.titles("order") == {"Where is order 7?"}

    sent = await ana.send("POST", f"{chat}/messages", text="Refund order 7!", key="r2")
    [waiting] = (await ana.send("GET", chat))["waiting"]
    assert sent["waiting"] == [{"id": waiting["id"], "tool": "refund"}]
    assert await ana.send("POST", f"{chat}/messages", text="Hello?", key="r3") == 409
    sent = await ana.send("POST", f"{chat}/calls/{waiting['id']}", approve=True)
    assert sent["answer"] == "Done: order 7 is refunded."
    assert len((await ana.send("GET", chat))["messages"]) == 4

    await ana.send("PATCH", chat, title="My order")
    assert await ana.titles() == {"My order"}
    assert await ben.titles() == await ben.titles("order") == set()
    assert (await ben.send("GET", chat))["messages"] == []
    assert await ben.send("PATCH", chat, title="Mine") == 404
    assert await ben.send("POST", f"{chat}/messages", text="Hello", key="r4") == 404
    await ben.send("DELETE", chat)
    assert await ana.titles() == {"My order"}
    await ana.send("DELETE", chat)
    assert await ana.titles() == set()


async def test_the_pages_of_the_operator_are_behind_a_login(page) -> None:
    ana, _, program = page
    await ana.send("POST", "/chats")
    async with httpx2.AsyncClient() as client:
        refused = await client.get(f"{ana.address}/admin/")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Basic")
        shown = await client.get(f"{ana.address}/admin/", auth=("admin", program.PASSWORD))
        assert (shown.status_code, "ana" in shown.text) == (200, True)


@pytest.mark.logic
async def test_the_budget_of_a_day(page, monkeypatch) -> None:
    ana, _, program = page
    budget = program.Budget(tokens=1, per="owner_id", window="day")
    monkeypatch.setattr(program, "BUDGET", budget)
    chat = f"/chats/{(await ana.send('POST', '/chats'))['id']}"
    assert await ana.send("POST", f"{chat}/messages", text="Hello", key="r1") != 429
    assert await ana.send("POST", f"{chat}/messages", text="Again", key="r2") == 429


@pytest.mark.thorough
async def test_an_answer_survives_the_server(tmp_path) -> None:
    environment = {"AGENT_SESSIONS_URL": f"sqlite:///{tmp_path}/chat.db"}
    port = free_port()

    def started() -> AbstractAsyncContextManager[Served]:
        log = tmp_path / "server.log"
        return killed_process(CHAT, "app:app", environment, log=log, port=port)

    async with httpx2.AsyncClient(timeout=60) as client:
        ana = Browser(client, f"http://127.0.0.1:{port}", "ana")
        async with started() as server:
            chat = f"/chats/{(await ana.send('POST', '/chats'))['id']}"
            message = {"text": "Think slowly: when?", "key": "r1"}
            first = asyncio.create_task(ana.send("POST", f"{chat}/messages", **message))
            await asyncio.sleep(1)
            server.process.kill()
            with pytest.raises(httpx2.TransportError):
                await first
        async with started():
            sent = await ana.send("POST", f"{chat}/messages", **message)
            assert sent["answer"] == "Your order arrives on Friday."
            roles = [each["role"] for each in (await ana.send("GET", chat))["messages"]]
            assert roles == ["user", "assistant"]

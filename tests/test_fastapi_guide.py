"""The backend of docs/fastapi.md, with many users at once."""

from __future__ import annotations

import asyncio
import json

import httpx2
import pytest
from agents import function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from conversations.serving import served
from documentation import DOCS, Program, blocks

from agents_session_metadata import SessionRuns, SessionTracker

USERS = 50


@pytest.fixture
async def backend(shared_database, monkeypatch, tmp_path):
    """The page's program, as it is printed, on a database of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", shared_database.url)
    program = Program()
    for block in blocks(DOCS / "fastapi.md"):
        await program.run(block)
    return program.namespace


@pytest.mark.logic
async def test_fifty_users_at_once(backend):
    answers = [[assistant_message(f"answer {number}")] for number in range(USERS)]
    backend["agent"].model = ScriptedModel(answers)
    async with served(backend["app"]) as address, httpx2.AsyncClient(timeout=120) as client:

        async def one(number):
            headers = {"x-user": f"u{number}"}
            made = await client.post(
                f"{address}/chats", json={"title": f"chat {number}"}, headers=headers
            )
            chat = f"{address}/chats/{made.json()['id']}"
            text = {"text": f"question {number}"}
            answer = await client.post(f"{chat}/messages", json=text, headers=headers)
            assert answer.status_code == 200
            listed = await client.get(f"{address}/chats", headers=headers)
            assert listed.json() == {
                "chats": [
                    {
                        "id": made.json()["id"],
                        "title": f"chat {number}",
                        "preview": f"question {number}",
                    }
                ],
                "next": None,
            }
            return chat, answer.text

        results = await asyncio.gather(*(one(number) for number in range(USERS)))
        expected = sorted(f"answer {number}" for number in range(USERS))
        assert sorted(text for _, text in results) == expected

        catalog = backend["app"].state.catalog
        assert await catalog.count_sessions({"runs": 1, "requests": 1}) == USERS
        (chat, _), (foreign, _) = results[:2]
        mine = {"x-user": "u0"}
        for url in (foreign, f"{address}/chats/nope"):
            answers = [
                await client.patch(url, json={"title": "stolen"}, headers=mine),
                await client.post(f"{url}/messages", json={"text": "hi"}, headers=mine),
                await client.delete(url, headers=mine),
            ]
            assert [(each.status_code, each.json()) for each in answers] == [
                (404, {"detail": "no such chat"})
            ] * 3
        assert (await client.get(f"{address}/chats")).status_code == 401
        renamed = await client.patch(chat, json={"title": "new"}, headers=mine)
        assert renamed.status_code == 200
        items = await client.get(
            f"{address}/v1/conversations/{chat.rpartition('/')[2]}/items", headers=mine
        )
        assert [item["role"] for item in items.json()["data"]] == ["assistant", "user"]
        gone = await client.delete(f"{address}/account", headers=mine)
        assert (gone.json()["sessions"], gone.json()["complete"]) == (1, True)
        assert await catalog.count_sessions() == USERS - 1


@pytest.mark.logic
async def test_the_error_of_a_failed_run_stays_on_the_server(backend):
    error = ConnectionError("postgresql://app:hunter2@db/chat is down")
    backend["agent"].model = ScriptedModel([error])
    async with served(backend["app"]) as address, httpx2.AsyncClient(timeout=120) as client:
        headers = {"x-user": "u1"}
        made = await client.post(f"{address}/chats", json={"title": "T"}, headers=headers)
        chat = made.json()["id"]
        url = f"{address}/chats/{chat}/messages"
        answer = await client.post(url, json={"text": "hi"}, headers=headers)
        assert answer.status_code == 500  # not 200 with an empty body
        assert "hunter2" not in answer.text
        stored = await backend["app"].state.catalog.get_metadata(chat, ["last_error"])
        assert "hunter2" in stored["last_error"]
        for path in ("", f"/{chat}", "?preview=true", f"/{chat}/items"):
            answer = await client.get(f"{address}/v1/conversations{path}", headers=headers)
            assert answer.status_code == 200
            assert "hunter2" not in answer.text


@pytest.mark.logic
async def test_input_that_cannot_be_stored(backend):
    async with served(backend["app"]) as address, httpx2.AsyncClient(timeout=120) as client:
        chats, headers = f"{address}/chats", {"x-user": "u"}
        made = await client.post(chats, json={"title": "kept"}, headers=headers)
        for title, words in (("x" * 70_000, "max_value_bytes"), ("\ud800", "surrogate")):
            body, kind = json.dumps({"title": title}), {"content-type": "application/json"}
            for method, path in (("POST", ""), ("PATCH", f"/{made.json()['id']}")):
                answer = await client.request(
                    method, chats + path, content=body, headers=headers | kind
                )
                assert answer.status_code == 400, answer.text
                assert words in answer.text
        answer = await client.get(f"{chats}?cursor=x", headers=headers)
        assert answer.status_code == 400
        listed = (await client.get(chats, headers=headers)).json()["chats"]
        assert [chat["title"] for chat in listed] == ["kept"]


@pytest.mark.logic
async def test_deleting_an_account_deletes_waiting_runs_and_usage(backend):
    @function_tool(needs_approval=True)
    def apply_plan():
        return "applied"

    backend["agent"].tools = [apply_plan]
    call = function_call("apply_plan", {}, call_id="call-1")
    backend["agent"].model = ScriptedModel([[call], [call]])
    async with served(backend["app"]) as address, httpx2.AsyncClient(timeout=120) as client:
        catalog = backend["app"].state.catalog
        for user in ("u1", "u2"):
            session = await catalog.create_session(user, metadata={"owner_id": user})
            async with SessionTracker(session) as hooks:
                runs = SessionRuns(catalog)
                run = await runs.run(user, backend["agent"], "Apply the plan", hooks=hooks)
            assert run.interruptions
        gone = await client.delete(f"{address}/account", headers={"x-user": "u1"})
        assert (gone.json()["sessions"], gone.json()["complete"]) == (1, True)
        assert [each.session_id async for each in catalog.iter_sessions()] == ["u2"]
        assert [run.session_id for run in (await SessionRuns(catalog).list()).runs] == ["u2"]
        assert [row.owner_id for row in await catalog.usage(by=["owner_id"])] == ["u2"]


async def test_streams_of_the_usage_page_are_scoped(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    program = Program()
    for block in blocks(DOCS / "usage.md"):
        await program.run(block)
    names = program.namespace
    names["agent"].model = ScriptedModel([[assistant_message("At eight.")]])
    session = names["session"]
    before = await session.get_items()
    async with served(names["app"]) as address, httpx2.AsyncClient(timeout=120) as client:

        async def ask(user, chat):
            url = f"{address}/chats/{chat}?text=When"
            return (await client.post(url, headers={"x-user": user})).status_code

        assert await ask("u2", session.session_id) == 404
        assert await ask("u1", "nope") == 404
        assert await session.get_items() == before
        assert await ask("u1", session.session_id) == 200
        assert len(await session.get_items()) == len(before) + 2
    await program.close()

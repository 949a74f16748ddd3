"""The routes beyond OpenAI's, and what the answers to requests have in common."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import jsonschema
import pytest
from agents import Agent, function_tool
from agents.extensions.memory import SQLAlchemySession
from agents.testing import ScriptedModel, assistant_message, function_call
from conformance import raw
from conformance.approving import Deployer, deploys
from fastapi import FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.routing import Mount

from agents_session_metadata import (
    SessionCatalog,
    SessionLifecycle,
    SessionRuns,
    SessionTracker,
    keys,
)
from agents_session_metadata.http import sessions_app

from .scenarios import ITEMS, user
from .serving import mounted, owner, raw_client

pytestmark = pytest.mark.logic


@pytest.fixture
async def catalog(shared_database):
    return SessionCatalog(shared_database.engine(), create_tables=True)


async def test_items_in_the_order_of_their_times(catalog):
    session = await catalog.create_session("s", metadata={"owner_id": "u1"})
    await session.add_items([user(letter) for letter in "abcd"])
    for item, minute in zip((await catalog.list_items("s")).items, (2, 0, 3, 0), strict=True):
        await raw.execute(
            catalog.engine,
            f"UPDATE agent_messages SET created_at = '2024-01-01 00:0{minute}:00'"
            f" WHERE id = {item.item_id}",
        )
    async with raw_client(mounted(catalog)) as client:
        for order, expected in (("asc", "bdac"), ("desc", "cadb")):
            for position in ("last_id", "id"):
                found, after = "", {}
                while len(found) < 4:
                    query = {"limit": 1, "order": order, **after}
                    page = (await client.get("/conversations/s/items", params=query)).json()
                    (item,) = page["data"]
                    found += item["content"][0]["text"]
                    assert page["has_more"] is (len(found) < 4)
                    after = {"after": {**page, "id": item["id"]}[position]}
                assert found == expected
                page = (
                    await client.get("/conversations/s/items", params={**query, **after})
                ).json()
                assert page["data"] == []
        newest = (await client.get("/conversations/s/items?limit=1")).json()["data"][0]["id"]
        body = {"before": newest, "expect_last": newest}
        removed = (await client.post("/conversations/s/rewind", json=body)).json()
        assert [each["id"] for each in removed["data"]] == [newest]


async def test_a_page_has_16_mib_of_items_at_most(catalog):
    session = await catalog.create_session("chat", metadata={"owner_id": "u1"})
    for number in range(5):
        await session.add_items([user(f"{number}" + "x" * (7 << 20))])
    async with raw_client(mounted(catalog)) as client:
        for order in ("asc", "desc"):
            found, sizes, more = [], [], True
            while more:
                after = {"after": found[-1]} if found else {}
                page = await client.get(
                    "/conversations/chat/items", params={"limit": 100, "order": order, **after}
                )
                assert len(page.content) < 17 << 20
                body = page.json()
                found += [each["id"] for each in body["data"]]
                sizes.append(len(body["data"]))
                more = body["has_more"]
            assert (len(set(found)), sizes) == (5, [2, 2, 1])
        removed = (await client.post("/conversations/chat/rewind", json={"turns": 4})).json()
        assert (len(removed["data"]), removed["has_more"]) == (2, True)
    assert len(await session.get_items()) == 1


async def test_lists_of_conversations(catalog):
    for number in range(5):
        metadata = {"owner_id": "u1", "n": number, "tags": ["x", f"t{number}"], "title": "T"}
        session = await catalog.create_session(f"s{number}", metadata=metadata)
        await session.add_items([user(f"question  {number}")])
        await raw.set_times(
            catalog.engine, f"s{number}", updated_at=f"2024-01-0{number + 1} 00:00:00"
        )
    await catalog.create_session("other", metadata={"owner_id": "u2", "tags": ["x"]})
    async with raw_client(mounted(catalog)) as client:

        async def get(**query):
            response = await client.get("/conversations", params=query)
            assert response.status_code == 200, response.text
            return response.json()

        page = await get(limit=2)
        assert [each["id"] for each in page["data"]] == ["s4", "s3"]
        assert page["object"] == "list"
        assert page["has_more"] is True
        page = await get(limit=3, after=page["last_id"])
        assert ([each["id"] for each in page["data"]], page["has_more"]) == (
            ["s2", "s1", "s0"],
            False,
        )
        page = await get(order="asc", preview="true", where=json.dumps({"n": {"$gte": 3}}))
        assert [(each["id"], each["preview"]) for each in page["data"]] == [
            ("s3", "question 3"),
            ("s4", "question 4"),
        ]
        assert "preview" not in (await get())["data"][0]
        assert (await get(where='{"n": 9}'))["data"] == []

        values = (await client.get("/metadata/tags/values", params={"limit": 1})).json()
        assert values == {
            "object": "list",
            "data": [{"value": "x", "count": 5}],
            "has_more": True,
            "complete": True,
        }
        where = {"where": '{"n": {"$lt": 2}}'}
        values = (await client.get("/metadata/tags/values", params=where)).json()
        assert {each["value"]: each["count"] for each in values["data"]} == {
            "x": 2,
            "t0": 1,
            "t1": 1,
        }


async def test_fork_and_rewind(catalog):
    session = await catalog.create_session("s", metadata={"owner_id": "u1", "title": "T"})
    output = {"type": "function_call_output", "call_id": "call_1", "output": "1"}
    answer = {"role": "assistant", "content": "b"}
    await session.add_items([user("a"), answer, user("c"), ITEMS["function call"], output])
    async with raw_client(mounted(catalog)) as client:
        items = (await client.get("/conversations/s/items?order=asc")).json()["data"]
        ids = [item["id"] for item in items]

        async def post(route, status=200, **body):
            response = await client.post(f"/conversations/s/{route}", json=body)
            assert response.status_code == status, response.text
            return response.json()

        copy = await post("fork", before=ids[2], metadata={"title": "Copy", "gone": None})
        assert copy["id"].startswith("conv_")
        assert copy["metadata"].pop("forked_before") > 0
        assert copy["metadata"] == {"owner_id": "u1", "title": "Copy", "forked_from": "s"}
        assert await catalog.session(copy["id"]).get_items() == [user("a"), answer]
        whole = await post("fork")
        assert len(await catalog.session(whole["id"]).get_items()) == 5

        refused = await post("rewind", 422, before=ids[4])
        assert refused["error"]["code"] == "impossible_cut"
        for expected in (ids[0], "msg_asm999999", "msg_nope", "?"):
            refused = await post("rewind", 409, turns=1, expect_last=expected)
            assert refused["error"]["param"] == "expect_last"
        for body in ({}, {"turns": 1, "before": ids[2]}, {"turns": 0}, {"before": "msg_nope"}):
            assert (await post("rewind", 400, **body))["error"]["param"] in ("turns", "before")
        assert len(await session.get_items()) == 5
        removed = await post("rewind", turns=1, expect_last=ids[4])
        assert removed["data"] == items[2:]
        assert (await post("rewind", before=ids[1]))["data"] == items[1:2]
        assert await session.get_items() == [user("a")]
        assert (await catalog.get_metadata("s"))["title"] == "T"


async def test_who_may_write_what(catalog):
    async with raw_client(mounted(catalog)) as client:
        made = await client.post("/conversations", json={"metadata": {"title": "T"}})
        name = made.json()["id"]
        at = f"/conversations/{name}"
        session = catalog.session(name)
        lifecycle = SessionLifecycle(session)
        await lifecycle.start("agent", purpose="p")
        await lifecycle.record_error("e")
        await lifecycle.finish("completed", summary="s")
        before = await session.get_metadata()
        written = set(before) - {"title"}
        async with SessionTracker(session):
            pass
        written |= set(await session.get_metadata()) - {"title"}
        assert {"owner_id", "phase", "agent", "error_count"} <= written
        stored = await session.get_metadata()
        for key in sorted(written | {"forked_from", "cost", "tool_calls", "chatkit"}):
            for value in ("x", None):
                response = await client.post(at, json={"metadata": {"a": 1, key: value}})
                assert response.status_code == 403, (key, response.text)
                assert response.json()["error"]["param"] == f"metadata.{key}"
            for route in ("/conversations", f"{at}/fork"):
                response = await client.post(route, json={"metadata": {key: "x"}})
                assert response.status_code == 403, (key, response.text)
        assert await session.get_metadata() == stored
        assert await catalog.count_sessions() == 1

        others = [{**ITEMS["function call"]}, {"role": "assistant", "content": "a"}]
        others += [{"role": "system", "content": "a"}, {"type": "custom", "role": "user"}]
        for item in others:
            for route in ("/conversations", f"{at}/items"):
                response = await client.post(route, json={"items": [user("a"), item]})
                assert response.status_code == 403, response.text
                assert response.json()["error"]["param"] == "items[1]"
        assert await session.get_items() == []
        response = await client.post(f"{at}/items", json={"items": [user("a")]})
        assert response.status_code == 200
    async with raw_client(mounted(catalog, allow_roles=["assistant"])) as client:
        response = await client.post(f"{at}/items", json={"items": [user("a")]})
        assert response.status_code == 403
    async with raw_client(mounted(catalog, allow_roles=None)) as client:
        response = await client.post(f"{at}/items", json={"items": [ITEMS["function call"]]})
        assert response.status_code == 200


async def test_what_describes_runs_is_hidden(catalog):
    message = "postgresql://app:hunter2@db/chat is down"
    metadata = {"owner_id": "u1", "title": "T", "cost": 7.5, "title_auto": "T", "status": "failed"}
    await catalog.create_session("s", metadata={**metadata, "last_error": message, "chatkit": {}})
    shown = {"owner_id": "u1", "title": "T", "status": "failed"}
    async with raw_client(mounted(catalog)) as client:
        fork = await client.post("/conversations/s/fork", json={})
        merged = await client.post("/conversations/s", json={"metadata": {}})
        answers = [merged, await client.get("/conversations/s"), await client.get("/conversations")]
        assert [each.status_code for each in (fork, *answers)] == [200] * 4
        assert answers[1].json()["metadata"] == merged.json()["metadata"] == shown
        assert all("hunter2" not in each.text for each in (fork, *answers))
        for key in keys.RUN_KEYS - {"status", "run"} | {"title_auto", "chatkit"}:
            for where in ({key: 1}, {"$or": [{"a": 1}, {"$not": {key: {"$exists": True}}}]}):
                query = {"where": json.dumps(where)}
                for path in ("/conversations", "/metadata/title/values"):
                    response = await client.get(path, params=query)
                    assert (response.status_code, response.json()["error"]["param"]) == (
                        400,
                        "where",
                    )
            response = await client.get(f"/metadata/{key}/values")
            assert (response.status_code, response.json()["error"]["param"]) == (400, "key")
        found = await client.get("/conversations", params={"where": '{"status": "failed"}'})
        assert "s" in [each["id"] for each in found.json()["data"]]
    async with raw_client(mounted(catalog, public_keys=["cost"])) as client:
        answer = await client.get("/conversations/s")
        assert answer.json()["metadata"] == {**shown, "cost": 7.5}
        values = (await client.get("/metadata/cost/values")).json()["data"]
        assert values == [{"value": 7.5, "count": 1}]


async def test_null_clears_what_is_public_and_writable(catalog):
    metadata = {"owner_id": "u1", "status": "failed", "cost": 1}
    await catalog.create_session("s", metadata={**metadata, "title": "T", "tags": ["x"]})
    async with raw_client(mounted(catalog)) as client:
        answer = await client.post("/conversations/s", json={"metadata": {}})
        assert answer.json()["metadata"]["title"] == "T"
        answer = await client.post("/conversations/s", json={"metadata": None})
        assert answer.json()["metadata"] == {"owner_id": "u1", "status": "failed"}
    assert await catalog.get_metadata("s") == metadata


async def test_an_append_with_a_key_takes_effect_once(catalog):
    await catalog.create_session("s", metadata={"owner_id": "u1"})
    await catalog.create_session("other", metadata={"owner_id": "u1"})
    at, key = "/conversations/s/items", {"idempotency-key": "request 1"}
    async with raw_client(mounted(catalog)) as client:

        async def post(text="a", at=at, headers=key):
            return await client.post(at, json={"items": [user(text)]}, headers=headers)

        answers = await asyncio.gather(*(post() for _ in range(5)))
        assert [each.status_code for each in answers] == [200] * 5
        assert len({each.text for each in answers}) == 1
        assert await catalog.session("s").get_items() == [user("a")]
        refused = await post("b")
        assert (refused.status_code, refused.json()["error"]["param"]) == (422, "Idempotency-Key")
        # A key belongs to its session, and an answer that was an error is not kept.
        assert (await post("b", "/conversations/other/items")).status_code == 200
        assert (await post(at="/conversations/nobody/items")).status_code == 404
        assert (await post(headers={"idempotency-key": "x" * 256})).status_code == 400
        fresh = {"idempotency-key": "request 2"}
        item = {"items": [{**user("a"), "id": answers[0].json()["data"][0]["id"]}]}
        assert (await client.post(at, json=item, headers=fresh)).status_code == 400
        assert (await post(headers=fresh)).status_code == 200
        # After a day, the key is new.
        table = "agent_sessions_metadata_idempotency"
        day = 24 * 3600 * 1_000_000
        for age, status in ((day - 60_000_000, 422), (120_000_000, 200)):
            await raw.execute(
                catalog.engine, f"UPDATE {table} SET answered_at = answered_at - {age}"
            )
            assert (await post("b")).status_code == status
        assert await raw.count_rows(catalog.engine, table) == 1
        copy = await catalog.fork_session("s", "copy", metadata={"owner_id": "u1"})
        assert (await post("c", f"/conversations/{copy.session_id}/items")).status_code == 200
        for name in ("s", "other", "copy"):
            await catalog.delete_session(name)
        assert await raw.count_rows(catalog.engine, table) == 0


async def test_a_key_that_version_0_2_stored_takes_effect_once(catalog):
    """Its rows contain the whole answer that its client saw."""
    await catalog.create_session("s", metadata={"owner_id": "u1"})
    at = "/conversations/s/items"
    body = {"items": [user("a"), {**user("é"), "id": "msg_own"}]}
    async with raw_client(mounted(catalog)) as client:
        first = await client.post(at, json=body, headers={"idempotency-key": "k"})
        assert first.status_code == 200
        stored = "SELECT message_data FROM agent_messages ORDER BY id"
        texts = [text for [text] in await raw.execute(catalog.engine, stored)]
        await raw.execute(
            catalog.engine,
            "UPDATE agent_sessions_metadata_idempotency SET answer = :answer, request_hash = :hash",
            answer=json.dumps(first.json()),
            hash=hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
        )
        again = await client.post(at, json=body, headers={"idempotency-key": "k"})
        assert (again.status_code, again.content) == (200, first.content)
        refused = await client.post(at, json={"items": []}, headers={"idempotency-key": "k"})
        assert refused.status_code == 422
    assert len(await catalog.session("s").get_items()) == 2


MISSING, WRONG = "missing_required_parameter", "invalid_type"


@pytest.mark.parametrize(
    ("item", "param", "code"),
    [
        (user([{"type": "input_text"}]), "content[0].text", MISSING),
        (user([{"type": "text", "text": "a"}, {"type": "text"}]), "content[1].text", MISSING),
        (user([{"type": "input_text", "text": 5}]), "content[0].text", WRONG),
        (user([{"type": "input_text", "text": None}]), "content[0].text", WRONG),
        (user([{"type": "computer_screenshot"}]), "content[0].image_url", MISSING),
        (user([{"text": "a"}]), "content[0].type", MISSING),
        (user([{"type": 5}]), "content[0].type", WRONG),
        (user(["a"]), "content[0]", WRONG),
        (
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text"}]},
            "output[0].text",
            MISSING,
        ),
        ({"type": "reasoning", "summary": [{"type": "summary_text"}]}, "summary[0].text", MISSING),
    ],
)
async def test_parts_without_their_content_are_refused(catalog, item, param, code):
    async with raw_client(mounted(catalog, allow_roles=None)) as client:
        refused = await client.post("/conversations", json={"items": [user("a"), item]})
        assert refused.status_code == 400
        error, name = refused.json()["error"], f"items[1].{param}"
        assert (error["param"], error["code"]) == (name, code)
        assert f"'{name}'" in error["message"]
        # Not every list has parts.
        shell = {
            "type": "shell_call_output",
            "call_id": "c",
            "output": [{"stdout": "", "stderr": ""}],
        }
        accepted = await client.post("/conversations", json={"items": [shell]})
        assert accepted.status_code == 200, accepted.text


async def test_errors_are_those_of_openai(catalog):
    await catalog.create_session("s", metadata={"owner_id": "u1"})
    call = {**ITEMS["function call"], "id": "msg_1"}
    refused = "Invalid 'items[1].id': '{}'. Expected an ID that begins with '{}'."
    async with raw_client(mounted(catalog, allow_roles=None)) as client:
        for item, prefix in ((call, "fc"), ({**user("a"), "id": "fc_1"}, "msg")):
            answer = await client.post("/conversations/s/items", json={"items": [user("a"), item]})
            assert answer.status_code == 400
            assert answer.json()["error"] == {
                "message": refused.format(item["id"], prefix),
                "type": "invalid_request_error",
                "param": "items[1].id",
                "code": "invalid_value",
            }
        gone = await client.get("/conversations/s/items?after=msg_gone")
        assert gone.status_code == 404
        assert gone.json()["error"] == {
            "message": "Item with id 'msg_gone' not found.",
            "type": "invalid_request_error",
            "param": "after",
            "code": None,
        }


async def test_deleting_an_item_while_a_run_works_or_waits_is_409(catalog):
    session = await catalog.create_session("s", metadata={"owner_id": "u1"})
    runs = SessionRuns(catalog)
    async with raw_client(mounted(catalog)) as client:

        async def delete() -> Any:
            [first, *_] = (await catalog.list_items("s")).items
            return await client.delete(f"/conversations/s/items/msg_asm{first.item_id}")

        @function_tool
        async def look() -> str:
            answers.append(await delete())
            return "seen"

        answers: list[Any] = []
        await session.add_items([user("a"), user("b")])
        model = ScriptedModel([[function_call("look", {}, call_id="c")], [assistant_message("x")]])
        await runs.run("s", Agent(name="a", model=model, tools=[look]), "Go")
        await runs.run("s", Deployer().agent(deploys("c1")), "Go")
        answers.append(await delete())
        for answer, code in zip(answers, ("busy", "paused"), strict=True):
            assert answer.status_code == 409
            assert answer.json()["error"]["code"] == f"conversation_{code}"
            assert answer.headers["x-should-retry"] == "false"
        assert await runs.discard("s")
        assert (await delete()).status_code == 200


async def test_old_answers_of_all_sessions_are_swept(catalog):
    table = "agent_sessions_metadata_idempotency"
    async with raw_client(mounted(catalog)) as client:

        async def append(name: str, key: str) -> None:
            headers = {"idempotency-key": key}
            at = f"/conversations/{name}/items"
            answer = await client.post(at, json={"items": [user("a")]}, headers=headers)
            assert answer.status_code == 200

        for number in range(3):
            await catalog.create_session(f"s{number}", metadata={"owner_id": "u1"})
        for number in range(3):
            await append(f"s{number}", "old")
        await raw.execute(catalog.engine, f"UPDATE {table} SET answered_at = 1")
        # More than one write sweeps.
        for number in range(150):
            await raw.execute(
                catalog.engine,
                f"INSERT INTO {table} (session_id, request_key, request_hash, answer, answered_at)"
                f" VALUES ('s1', 'k{number}', '', '', 1)",
            )
        await append("s0", "new")
        assert 0 < await raw.count_rows(catalog.engine, table) < 100
        await append("s0", "newer")
        assert await raw.count_rows(catalog.engine, table) == 2


async def test_an_id_that_the_conversation_has_is_refused(catalog):
    async with raw_client(mounted(catalog, allow_roles=None)) as client:
        made = await client.post("/conversations", json={"items": [user("a")]})
        at = f"/conversations/{made.json()['id']}/items"
        call = {**ITEMS["function call"], "id": "fc_7"}
        assert (await client.post(at, json={"items": [call]})).status_code == 200
        first = (await client.get(f"{at}?order=asc")).json()["data"][0]["id"]
        before = (await client.get(at)).json()
        for items in ([call], [user("b"), call], [{**user("b"), "id": first}]):
            refused = await client.post(at, json={"items": items})
            assert refused.status_code == 400, refused.text
            assert refused.json()["error"]["code"] == "item_already_in_conversation"
        for path in (at, "/conversations"):
            refused = await client.post(path, json={"items": [{**call, "id": "fc_8"}] * 2})
            assert refused.json()["error"]["code"] == "item_already_in_conversation"
        assert (await client.get(at)).json() == before
        # An item that was removed can be added again.
        await client.delete(f"{at}/fc_7")
        assert (await client.post(at, json={"items": [call]})).status_code == 200
        # The text of a message is no id.
        assert (await client.post(at, json={"items": [user("fc_9")]})).status_code == 200
        other = {**call, "id": "fc_9"}
        assert (await client.post(at, json={"items": [other]})).status_code == 200


async def test_corrupt_values(catalog):
    metadata = {"owner_id": "u1", "title": "T", "n": 1, "tags": ["x"]}
    await catalog.create_session("s", metadata=metadata)

    async def damage(key):
        name = catalog.engine.dialect.identifier_preparer.quote("key")
        await raw.execute(
            catalog.engine,
            f"UPDATE agent_sessions_metadata SET value = '{{bad' WHERE {name} = '{key}'",
        )

    async with raw_client(mounted(catalog)) as client:
        for key in ("title", "n", "tags"):
            await damage(key)
        assert (await client.get("/conversations/s")).json()["metadata"] == {"owner_id": "u1"}
        body = {"metadata": {"title": "new", "n": None}}
        answer = await client.post("/conversations/s", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["metadata"] == {"owner_id": "u1", "title": "new"}
        answer = await client.post("/conversations/s", json={"metadata": {"tags": ["y"]}})
        assert answer.json()["metadata"]["tags"] == ["y"]
        assert await catalog.count_sessions({"tags": {"$contains": "y"}}) == 1
        assert await catalog.count_sessions({"tags": {"$contains": "x"}}) == 0
        # The rules of other writes hold.
        for body, status in (
            ({"owner_id": None}, 403),
            ({"owner_id": "u2"}, 403),
            ({str(number): 1 for number in range(101)}, 422),
        ):
            answer = await client.post("/conversations/s", json={"metadata": body})
            assert answer.status_code == status, answer.text
            if status == 403:
                message = "`owner_id` is written by the server and cannot be changed."
                assert answer.json()["error"]["message"] == message
        answer = await client.post("/conversations/nobody", json={"metadata": {"a": 1}})
        assert answer.status_code == 404


async def test_search(catalog):
    async with raw_client(mounted(catalog)) as client, raw_client(mounted(catalog), "u2") as other:
        missing = await client.get("/search?q=tram")
        assert (missing.status_code, missing.headers["x-should-retry"]) == (501, "false")
        assert "create" not in missing.json()["error"]["message"]  # That is for the server's log.
        await catalog.create_index("$text")
        items = [user("Which tram goes there?"), {"id": "msg_1", **user("the tram 28")}]
        metadata = {"title": "Trams: tram 28"}
        made = await client.post("/conversations", json={"items": items[:1], "metadata": metadata})
        name = made.json()["id"]
        await client.post(f"/conversations/{name}/items", json={"items": items[1:]})
        await other.post("/conversations", json={"items": [user("a tram elsewhere")]})

        hits, after, pages = [], None, 0
        while True:
            query = {"q": "tram", "limit": 1, **({"after": after} if after else {})}
            page = (await client.get("/search", params=query)).json()
            assert page["complete"] is True
            hits += page["data"]
            pages += 1
            if not page["has_more"]:
                break
            after = page["last_id"]
        assert pages >= 3
        assert {hit["conversation_id"] for hit in hits} == {name}
        listed = (await client.get(f"/conversations/{name}/items?order=asc")).json()["data"]
        assert {hit["item_id"] for hit in hits} == {None, *(item["id"] for item in listed)}
        for hit in hits:
            found = [hit["snippet"][start:end].lower() for start, end in hit["highlights"]]
            assert found
            assert set(found) == {"tram"}
        for query in ("q=", "q=-tram", "", "q=tram&limit=101", f"q=other&after={after}"):
            assert (await client.get(f"/search?{query}")).status_code == 400, query
        where = json.dumps({"title": "none"})
        page = (await client.get("/search", params={"q": "tram", "where": where})).json()
        assert page["data"] == []


BAD = [
    ("GET", "/conversations?limit=0", None, "limit"),
    ("GET", "/conversations?limit=101", None, "limit"),
    ("GET", "/conversations?limit=many", None, "limit"),
    ("GET", "/conversations?order=up", None, "order"),
    ("GET", "/conversations?order=asc&order=desc", None, "order"),
    ("GET", "/conversations?nope=1", None, "nope"),
    ("GET", "/conversations?include=x", None, "include"),
    ("GET", "/conversations?after=x", None, "after"),
    ("GET", "/conversations?after=", None, "after"),
    ("GET", "/conversations?preview=perhaps", None, "preview"),
    ("GET", "/conversations?where=%7B", None, "where"),
    ("GET", "/conversations?where=%5B%5D", None, "where"),
    ("GET", "/conversations?where=%7B%22a%22%3A%7B%22%24nope%22%3A1%7D%7D", None, "where"),
    ("GET", "/conversations?where=%7B%22a%22%3ANaN%7D", None, "where"),
    ("GET", "/metadata/%24x/values", None, "key"),
    ("GET", "/conversations/s/items?limit=101", None, "limit"),
    ("POST", "/conversations", {"nope": 1}, "nope"),
    ("POST", "/conversations", {"metadata": []}, "metadata"),
    ("POST", "/conversations", {"metadata": {"$x": 1}}, "metadata.$x"),
    ("POST", "/conversations", {"items": {}}, "items"),
    ("POST", "/conversations/s", {}, "metadata"),
    ("POST", "/conversations/s/items", {}, "items"),
    ("POST", "/conversations/s/items", {"items": [user("a")] * 21}, "items"),
    ("POST", "/conversations/s/items", {"items": [user("a"), "b"]}, "items[1]"),
    ("POST", "/conversations/s/items", {"items": [{}]}, "items[0].type"),
    ("POST", "/conversations/s/items", {"items": [{"type": 1, "role": "user"}]}, "items[0].type"),
    ("POST", "/conversations/s/items", {"items": [{"type": "item_reference"}]}, "items[0].type"),
    ("POST", "/conversations/s/items", {"items": [{"role": "nobody"}]}, "items[0].role"),
    ("POST", "/conversations/s/items", {"items": [{"role": "user"}]}, "items[0].content"),
    ("POST", "/conversations/s/items", {"items": [user([1])]}, "items[0].content[0]"),
    (
        "POST",
        "/conversations/s/items",
        {"items": [user([{"type": "input_text"}])]},
        "items[0].content[0].text",
    ),
    (
        "POST",
        "/conversations/s/items",
        {"items": [user([{"type": "input_image"}])]},
        "items[0].content[0].image_url",
    ),
    ("POST", "/conversations/s/items", {"items": [{**user("a"), "id": ""}]}, "items[0].id"),
    ("POST", "/conversations/s/items", {"items": [{**user("a"), "id": "fc_1"}]}, "items[0].id"),
    (
        "POST",
        "/conversations/s/items",
        {"items": [{**user("a"), "id": "__fake_id__"}]},
        "items[0].id",
    ),
    ("GET", "/conversations?where=%7B%22%24not%22%3A%7B%22last_error%22%3A1%7D%7D", None, "where"),
    ("GET", "/metadata/last_error/values", None, "key"),
    ("POST", "/conversations/s/rewind", {"turns": True}, "turns"),
]


async def test_wrong_requests_name_the_parameter(catalog):
    await catalog.create_session("s", metadata={"owner_id": "u1"})
    async with raw_client(mounted(catalog, allow_roles=None)) as client:
        for method, path, body, param in BAD:
            response = await client.request(method, path, json=body)
            assert response.status_code == 400, (path, response.text)
            error = response.json()["error"]
            assert error["param"] == param, (path, error)
            assert error["type"] == "invalid_request_error"
            assert error["message"]
        for content in (b"", b"{", b"[]", b"\xff", b'{"items": [NaN]}', b"[" * 100_000):
            headers = {"content-type": "application/json"}
            response = await client.post("/conversations", content=content, headers=headers)
            assert response.status_code == 400, response.text
        for method, path, status in (
            ("PUT", "/conversations", 405),
            ("HEAD", "/conversations/s", 405),
            ("GET", "/conversations/s/fork", 405),
            ("GET", "/", 404),
            ("GET", "/conversations/", 404),
            ("GET", "/conversations//items", 404),
            ("GET", "/conversations/%FF", 404),
            ("GET", "/conversations/s/items/a%2Fb", 404),
            ("GET", "/conversations/s/items?after=msg_asm0", 404),
            ("GET", "/conversations/s/items?after=", 404),
        ):
            response = await client.request(method, path)
            assert response.status_code == status, path
        response = await client.post("/conversations/s", json={"metadata": {"k": "x" * 70_000}})
        assert (response.status_code, response.json()["error"]["param"]) == (422, "metadata.k")
    assert await catalog.count_sessions() == 1
    assert await catalog.session("s").get_items() == []


async def test_scopes_of_an_application(catalog):

    async def from_state(request):
        if request.headers.get("authorization") != "Bearer ok":
            raise HTTPException(401, "log in first")
        return {"owner_id": request.state.user}

    app = FastAPI()
    app.mount("/a/b/v1", sessions_app(catalog, scope=from_state))
    app.mount("/open", sessions_app(catalog, scope=None))

    @app.middleware("http")
    async def find_user(request, call_next):
        request.state.user = "u7"
        return await call_next(request)

    async with raw_client(app) as client:
        url = "http://test/a/b/v1/conversations"
        response = await client.get(url)
        assert (response.status_code, response.json()["error"]["message"]) == (401, "log in first")
        headers = {"authorization": "Bearer ok"}
        made = (await client.post(url, json={}, headers=headers)).json()
        assert made["metadata"] == {"owner_id": "u7"}
        listed = (await client.get("http://test/open/conversations")).json()
        assert [each["id"] for each in listed["data"]] == [made["id"]]
        document = (await client.get("http://test/open/openapi.json")).json()

    # Behind a proxy that removes its own part of the path, or does not.
    async with raw_client(mounted(catalog, scope=None), root_path="/proxy") as client:
        for prefix in ("", "/proxy"):
            response = await client.get(f"http://test{prefix}/v1/conversations/{made['id']}")
            assert response.status_code == 200, prefix
    several = Starlette(routes=[Mount("/{tenant}", sessions_app(catalog, scope=None))])
    async with raw_client(several) as client:
        response = await client.get("http://test/a/conversations")
        assert response.status_code == 200
        response = await client.get("http://test/a%2Fb/conversations")
        assert response.status_code == 404

    # Each route is described, and each parameter.
    assert document["openapi"].startswith("3.1")
    routes = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert len(routes) >= 12
    for methods in document["paths"].values():
        for operation in methods.values():
            schemas = [parameter["schema"] for parameter in operation["parameters"]]
            if "requestBody" in operation:
                schemas.append(operation["requestBody"]["content"]["application/json"]["schema"])
            for schema in schemas:
                jsonschema.Draft202012Validator.check_schema(schema)


def test_arguments():
    catalog = SessionCatalog.from_url("sqlite://")
    for settings in (
        {"scope": {"owner_id": "x"}},
        {"scope": owner, "allow_roles": "user"},
        {"scope": owner, "public_keys": "cost"},
    ):
        with pytest.raises(TypeError):
            sessions_app(catalog, **settings)
    with pytest.raises(TypeError, match="scope"):
        sessions_app(catalog)
    with pytest.raises(TypeError, match="SessionCatalog"):
        sessions_app("sqlite://", scope=None)
    with pytest.raises(ValueError, match="positive"):
        sessions_app(catalog, scope=None, max_body=0)


async def test_metadata_of_a_conversation_whose_id_is_too_long(catalog):
    engine, long = catalog.engine, "y" * 305
    await catalog.count_sessions()
    can_exist = engine.dialect.name != "mysql"
    if can_exist:
        await SQLAlchemySession(long, engine=engine).add_items([user("hello")])
    async with raw_client(mounted(catalog, scope=None)) as client:
        change = {"metadata": {"a": 1}}
        response = await client.post(f"/conversations/{long}", json=change)
        assert response.status_code == (400 if can_exist else 404), response.text
        if can_exist:
            assert "255 characters" in response.json()["error"]["message"]
        assert (await client.post(f"/conversations/{'z' * 305}", json=change)).status_code == 404

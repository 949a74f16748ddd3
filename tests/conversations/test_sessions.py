"""OpenAI's client and the SDK's session class, unchanged, on a real server."""

from __future__ import annotations

import openai
import pytest
from agents import OpenAIConversationsSession
from conformance import raw

from agents_session_metadata import SessionCatalog

from .scenarios import SCENARIOS, canonical, user
from .serving import mounted, openai_client, raw_client, served

pytestmark = pytest.mark.logic


@pytest.fixture
async def catalog(shared_database):
    return SessionCatalog(shared_database.engine(), create_tables=True)


async def test_forty_scenarios_give_what_sqlalchemy_gives(catalog):
    assert len(SCENARIOS) >= 40
    app = mounted(catalog, allow_roles=None)
    different = {}
    async with served(app) as address, openai_client(address) as client:
        for name, scenario in SCENARIOS.items():
            remote = canonical(await scenario(OpenAIConversationsSession(openai_client=client)))
            local = canonical(await scenario(catalog.session(name)))
            if remote != local:
                different[name] = (remote, local)
    assert different == {}


async def test_one_history(catalog):
    app = mounted(catalog, allow_roles=None)
    async with served(app) as address, openai_client(address) as client:
        remote = OpenAIConversationsSession(openai_client=client)
        await remote.add_items([user("one")])
        local = catalog.session(remote.session_id, must_exist=True)
        await local.add_items([user("two")])
        await remote.add_items([user("three")])
        # Stored as it was sent, whoever sent it.
        assert await local.get_items() == [user("one"), user("two"), user("three")]
        assert canonical(await remote.get_items()) == canonical(await local.get_items())
        assert await local.get_metadata() == {"owner_id": "u1"}
        assert (await local.pop_item()) == user("three")
        assert canonical(await remote.pop_item()) == canonical(user("two"))
        assert await local.get_items() == [user("one")]

        # A session that this package or the SDK made, under any id.
        name = "a/b?c#d%2F é \u2028.."
        made = await catalog.create_session(name, metadata={"owner_id": "u1", "n": [1, None]})
        await made.add_items([user("mine")])
        found = OpenAIConversationsSession(conversation_id=name, openai_client=client)
        await found.add_items([user("too")])
        assert canonical(await found.get_items()) == canonical(await made.get_items())
        conversation = await client.conversations.retrieve(name)
        assert (conversation.id, conversation.metadata["n"]) == (name, [1, None])
        await found.clear_session()
        assert await catalog.get_session(name) is None


async def test_every_method_of_the_client(catalog):
    app = mounted(catalog, allow_roles=None)
    async with served(app) as address, openai_client(address) as client:
        conversations = client.conversations
        made = await conversations.create(metadata={"title": "T", "x": "1"}, items=[user("a")])
        assert made.id.startswith("conv_")
        assert made.metadata == {"title": "T", "x": "1", "owner_id": "u1"}
        assert (
            abs(made.created_at - (await catalog.get_session(made.id)).created_at.timestamp()) < 1
        )
        changed = await conversations.update(made.id, metadata={"x": None, "y": "2"})
        assert changed.metadata == {"title": "T", "y": "2", "owner_id": "u1"}
        assert await conversations.retrieve(made.id) == changed

        items = conversations.items
        added = await items.create(
            made.id,
            items=[user(str(number)) for number in range(5)],
            include=["reasoning.encrypted_content"],
        )
        assert [each.content[0].text for each in added.data] == ["0", "1", "2", "3", "4"]
        texts = [each.content[0].text async for each in items.list(made.id, limit=2)]
        assert texts == ["4", "3", "2", "1", "0", "a"]
        first = await items.list(
            made.id, order="asc", limit=4, include=["file_search_call.results"]
        )
        assert (len(first.data), first.has_more) == (4, True)
        assert (first.first_id, first.last_id) == (first.data[0].id, first.data[-1].id)
        rest = await items.list(made.id, order="asc", after=first.last_id)
        assert [each.content[0].text for each in rest.data] == ["3", "4"]
        assert rest.has_more is False
        again = await items.list(made.id, order="asc", after=rest.last_id)
        assert (again.data, again.has_more, again.first_id, again.last_id) == (
            [],
            False,
            None,
            None,
        )

        one = added.data[2]
        assert await items.retrieve(one.id, conversation_id=made.id) == one
        assert (await items.delete(one.id, conversation_id=made.id)).id == made.id
        for method in (items.retrieve, items.delete):
            with pytest.raises(openai.NotFoundError):
                await method(one.id, conversation_id=made.id)
        with pytest.raises(openai.NotFoundError):
            await items.list(made.id, after=one.id)
        gone = await conversations.delete(made.id)
        assert (gone.id, gone.deleted) == (made.id, True)
        with pytest.raises(openai.NotFoundError, match="not found"):
            await conversations.retrieve(made.id)


async def test_items_that_others_stored(catalog):
    engine = catalog.engine
    session = await catalog.create_session("s", metadata={"owner_id": "u1"})
    stored = [
        '{"role": "user", "content": NaN}',
        '{"role": "user", "content": "\\ud800"}',
        '{"__enc__": 1, "v": 1, "kid": "hkdf-v1", "payload": "x"}',
        "not JSON",
        '["a list"]',
        '{"type": "message", "role": "assistant", "content": [{"type": "output_text"}, 1]}',
        '{"id": "msg_asm1", "role": "user", "content": "looks like another"}',
    ]
    await session.add_items([user("first")])
    for text in stored:
        await raw.execute(
            engine,
            "INSERT INTO agent_messages (session_id, message_data) VALUES ('s', :text)",
            text=text,
        )
    async with raw_client(mounted(catalog)) as client:
        page = (await client.get("/conversations/s/items?order=asc")).json()
        ids = [item["id"] for item in page["data"]]
        assert len(set(ids)) == len(ids) == 7
        assert [item["type"] for item in page["data"]] == [
            *["message"] * 3,
            *["unknown"] * 2,
            *["message"] * 2,
        ]
        assert page["data"][3]["payload"] == "x"
        for item_id, item in zip(ids, page["data"], strict=True):
            assert (await client.get(f"/conversations/s/items/{item_id}")).json() == item
    rows = await raw.execute(engine, "SELECT message_data FROM agent_messages ORDER BY id")
    assert [text for (text,) in rows][1:] == stored

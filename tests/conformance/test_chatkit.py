"""ChatKit's store: through ChatKit's own server, and method by method."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from agents import Agent, Runner, function_tool
from agents.extensions.memory import EncryptedSession, SQLAlchemySession
from agents.testing import ScriptedModel, assistant_message, function_call
from chatkit.agents import AgentContext, stream_agent_response
from chatkit.server import ChatKitServer
from chatkit.store import AttachmentStore, NotFoundError, Store
from chatkit.types import (
    FileAttachment,
    HiddenContextItem,
    LockedStatus,
    ProgressUpdateEvent,
    SDKHiddenContextItem,
    ThreadItemDoneEvent,
    ThreadItemRemovedEvent,
    ThreadMetadata,
)

from agents_session_metadata import (
    InvalidCursorError,
    InvalidMetadataError,
    SessionCatalog,
    SessionNotFoundError,
    SessionPausedError,
    SessionRuns,
    TablesMissingError,
)
from agents_session_metadata.chatkit import CatalogStore
from conformance import raw
from conformance.approving import Deployer, deploys
from conformance.thread_items import NOW, assistant_item, user_item, widget

TABLES = (
    "agent_sessions_metadata_thread_items",
    "agent_sessions_metadata_attachments",
    "agent_sessions_metadata_feedback",
)


@dataclass(frozen=True)
class User:
    """A request context."""

    user_id: str


ANNA, BEN = User("anna"), User("ben")


class Files(AttachmentStore):
    """Where an application keeps files."""

    async def create_attachment(self, upload, context):
        number = self.generate_attachment_id(upload.mime_type, context)
        return FileAttachment(
            id=f"{number}-{context.user_id}",
            name=upload.name,
            mime_type=upload.mime_type,
            metadata={"secret": context.user_id},
        )

    async def delete_attachment(self, attachment_id, context):
        pass


class Server(ChatKitServer):
    """A server whose agent counts its answers."""

    def __init__(self, store, prefix="msg"):
        super().__init__(store, Files())
        replies = ([assistant_message(f"answer {n}", item_id=f"{prefix}_{n}")] for n in range(100))
        self.agent = Agent(name="agent", model=ScriptedModel(list(replies)))
        self.feedback = []
        self.before_end = None

    async def respond(self, thread, input_user_message, context):
        question = input_user_message.content[0].text if input_user_message else "go on"
        progress = widget(thread.id, "progress")
        yield ThreadItemDoneEvent(item=progress)
        session = self.store.session(thread, context)
        result = Runner.run_streamed(self.agent, question, session=session)
        agent_context = AgentContext(thread=thread, store=self.store, request_context=context)
        removed = False
        async for event in stream_agent_response(agent_context, result):
            if not removed:
                yield ThreadItemRemovedEvent(item_id=progress.id)
                removed = True
            yield event
        if self.before_end is not None:
            await self.before_end(thread)
            yield ProgressUpdateEvent(text="done")

    async def add_feedback(self, thread_id, item_ids, feedback, context):
        self.feedback.append((thread_id, item_ids, feedback))
        await self.store.add_feedback(thread_id, item_ids, feedback, context)

    async def call(self, request, context=ANNA, **params):
        result = await self.process(json.dumps({"type": request, "params": params}), context)
        if hasattr(result, "json"):
            return json.loads(result.json)
        return [json.loads(event.removeprefix(b"data: ")) async for event in result]

    async def create(self, text="hello", context=ANNA, attachments=()):
        events = await self.call("threads.create", context, input=message(text, attachments))
        assert [event["type"] for event in events[:2]] == ["thread.created", "thread.item.done"]
        assert not [event for event in events if event["type"] == "error"]
        return events[0]["thread"]["id"]

    async def items(self, thread_id, context=ANNA, **params):
        page = await self.call("items.list", context, thread_id=thread_id, **params)
        return page["data"]


def message(text, attachments=()):
    return {
        "content": [{"type": "input_text", "text": text}],
        "attachments": list(attachments),
        "inference_options": {},
    }


def attachment(name, **fields):
    return FileAttachment(id=name, name="a.txt", mime_type="text/plain", **fields)


def text_of(item):
    """A history's item in short."""
    content = item["content"]
    return content if isinstance(content, str) else content[0]["text"]


@pytest.fixture
def store(catalog):
    return CatalogStore(catalog, scope=lambda user: {"owner_id": user.user_id})


@pytest.fixture
def server(store):
    return Server(store)


async def new_thread(store, context=ANNA, **fields):
    thread = ThreadMetadata(id=store.generate_thread_id(context), created_at=NOW, **fields)
    await store.save_thread(thread, context)
    return thread.id


async def history(catalog, thread_id):
    return [text_of(item) for item in await catalog.session(thread_id).get_items()]


async def test_everything_through_the_server(server, catalog, engine):
    uploaded = await server.call("attachments.create", name="a", size=1, mime_type="text/plain")
    assert "metadata" not in uploaded
    thread_id = await server.create("one", attachments=[uploaded["id"]])
    assert len(thread_id) >= 32
    await server.call("threads.add_user_message", thread_id=thread_id, input=message("two"))
    items = await server.items(thread_id, order="asc")
    assert [item["type"] for item in items] == ["user_message", "assistant_message"] * 2
    assert items[0]["attachments"][0] == {**uploaded, "thread_id": thread_id}
    assert await server.items(thread_id, order="desc") == items[::-1]
    assert (await catalog.get_metadata(thread_id))["owner_id"] == "anna"
    expected = ["one", "answer 0", "two", "answer 1"]
    assert await history(catalog, thread_id) == expected

    other = await server.create("three")
    titled = await server.call("threads.update", thread_id=thread_id, title="Lisbon")
    assert titled["title"] == "Lisbon"
    assert await catalog.get_metadata(thread_id, ["title"]) == {"title": "Lisbon"}
    page = await server.call("threads.list", limit=1)
    assert page["has_more"]
    rest = await server.call("threads.list", limit=1, after=page["after"])
    assert {page["data"][0]["id"], rest["data"][0]["id"]} == {thread_id, other}
    assert not rest["has_more"]
    whole = await server.call("threads.get_by_id", thread_id=thread_id)
    assert whole["items"]["data"] == items
    first = await server.call("items.list", thread_id=thread_id, order="asc", limit=3)
    then = await server.call(
        "items.list", thread_id=thread_id, order="asc", limit=3, after=first["after"]
    )
    assert first["data"] + then["data"] == items

    await server.call(
        "items.feedback", thread_id=thread_id, item_ids=[items[1]["id"]], kind="positive"
    )
    assert server.feedback == [(thread_id, [items[1]["id"]], "positive")]
    [vote] = await catalog.feedback(thread_id)
    assert (vote.item_id, vote.kind) == (items[1]["id"], "positive")
    loose = await server.call("attachments.create", name="b", size=1, mime_type="text/plain")
    await server.call("attachments.delete", attachment_id=loose["id"])
    for name in (thread_id, other):
        await server.call("threads.delete", thread_id=name)
    assert (await server.call("threads.list"))["data"] == []
    for table in (*TABLES, "agent_sessions", "agent_messages"):
        assert await raw.count_rows(engine, table) == 0


@pytest.mark.logic
async def test_retrying_asks_again(server, catalog, store):
    thread_id = await server.create("one")
    for text in ("two", "three"):
        await server.call("threads.add_user_message", thread_id=thread_id, input=message(text))
    items = await server.items(thread_id, order="asc")
    retry = {"thread_id": thread_id, "item_id": items[2]["id"]}
    events = await server.call("threads.retry_after_item", **retry)
    assert events[-1]["item"]["content"][0]["text"] == "answer 3"
    expected = ["one", "answer 0", "two", "answer 3"]
    assert await history(catalog, thread_id) == expected
    assert [item["type"] for item in await server.items(thread_id)] == [
        "assistant_message",
        "user_message",
    ] * 2
    await server.call("threads.retry_after_item", thread_id=thread_id, item_id=items[0]["id"])
    assert await history(catalog, thread_id) == ["one", "answer 4"]


@pytest.mark.logic
async def test_a_model_whose_items_all_have_one_id(server, catalog, store):
    replies = [
        [
            assistant_message("one moment", item_id="__fake_id__"),
            function_call("look", {}, call_id="c"),
        ],
        [assistant_message("answer 1", item_id="__fake_id__")],
        [assistant_message("answer 2", item_id="__fake_id__")],
        [assistant_message("answer 3", item_id="__fake_id__")],
    ]
    look = function_tool(lambda: "looked", name_override="look")
    server.agent = Agent(name="agent", model=ScriptedModel(replies), tools=[look])
    thread_id = await server.create("one")
    await server.call("threads.add_user_message", thread_id=thread_id, input=message("two"))
    items = await server.items(thread_id, order="asc")
    texts = ["one", "one moment", "answer 1", "two", "answer 2"]
    assert [text_of(item) for item in items] == texts
    assert len({item["id"] for item in items}) == 5
    retry = {"thread_id": thread_id, "item_id": items[3]["id"]}
    await server.call("threads.retry_after_item", **retry)
    items = await server.items(thread_id, order="asc")
    assert [text_of(item) for item in items] == [*texts[:-1], "answer 3"]
    items = await catalog.session(thread_id).get_items()
    assert [text_of(item) for item in items if "content" in item] == [*texts[:-1], "answer 3"]


@pytest.mark.logic
async def test_what_rewinds_and_what_does_not(store, catalog):
    thread_id = await new_thread(store)
    session = catalog.session(thread_id)

    async def ask(number, *answers):
        await store.add_thread_item(
            thread_id, user_item(thread_id, f"u{number}", f"u{number}"), ANNA
        )
        await session.add_items([raw.message(f"u{number}")])
        for answer in answers:
            await store.add_thread_item(thread_id, answer, ANNA)

    async def delete(*names):
        for name in names:
            await store.delete_thread_item(thread_id, name, ANNA)

    await ask(1, assistant_item(thread_id, "a1"))
    await session.add_items([raw.message("a1", "assistant")])
    # A sign of progress goes while the agent runs, or when it has just answered.
    await ask(2, widget(thread_id, "w1"), widget(thread_id, "w2"))
    await delete("w1", "w2", "nobody has this")
    assert await history(catalog, thread_id) == ["u1", "a1", "u2"]
    await session.add_items([raw.message("a2", "assistant")])
    await store.add_thread_item(thread_id, widget(thread_id, "w2"), ANNA)
    await delete("w2")
    assert await history(catalog, thread_id) == ["u1", "a1", "u2", "a2"]
    # The user stopped the answer, and asks again.
    cancelled = SDKHiddenContextItem(id="h2", thread_id=thread_id, created_at=NOW, content="stop")
    for item in (widget(thread_id, "w2"), cancelled):
        await store.add_thread_item(thread_id, item, ANNA)
    await delete("h2", "w2")
    assert await history(catalog, thread_id) == ["u1", "a1"]
    # An answer of a widget alone, which has ended.
    await session.add_items([raw.message("u2"), raw.message("a2", "assistant")])
    await asyncio.create_task(store.add_thread_item(thread_id, widget(thread_id, "w3"), ANNA))
    await delete("w3")
    assert await history(catalog, thread_id) == ["u1", "a1"]
    # A message that nothing answers: the answer before it, which has no item, stays.
    await session.add_items([raw.message("u2"), raw.message("a2", "assistant")])
    await ask(4)
    await delete("u4")
    assert await history(catalog, thread_id) == ["u1", "a1", "u2", "a2", "u4"]
    await session.pop_item()
    # A history that was compacted since: only the last turn goes.
    await ask(3)
    await session._atomic_replace_items([raw.message("summary"), raw.message("u3")])
    await store.add_thread_item(thread_id, assistant_item(thread_id, "a3"), ANNA)
    await delete("a3")
    assert await history(catalog, thread_id) == ["summary"]


@pytest.mark.logic
async def test_the_message_that_a_retry_rewinds_to(store, catalog):
    thread_id = await new_thread(store)
    session = catalog.session(thread_id)

    async def ask(name):
        await store.add_thread_item(thread_id, user_item(thread_id, name, name), ANNA)

    async def answer_and_delete(name):
        await store.add_thread_item(thread_id, assistant_item(thread_id, name), ANNA)
        await store.delete_thread_item(thread_id, name, ANNA)

    # Another program writes before the answer begins.
    await ask("u1")
    await session.add_items([raw.message("book"), raw.message("booked", "assistant")])
    await session.add_items([raw.message("u1"), raw.message("a1", "assistant")])
    await answer_and_delete("a1")
    assert await history(catalog, thread_id) == ["book", "booked"]
    # The answer has an item, and nothing in the history.
    await ask("u2")
    await answer_and_delete("a2")
    assert await history(catalog, thread_id) == ["book", "booked"]
    # A summary has replaced the message.
    summary = {"type": "compaction", "encrypted_content": "everything"}
    replaced = [raw.message("book"), raw.message("u3"), summary]
    await ask("u3")
    await session._atomic_replace_items(replaced)
    await answer_and_delete("a3")
    assert await session.get_items() == replaced


class PausingServer(Server):
    """A server whose agent needs an approval. A widget asks for it, until a person has decided."""

    def __init__(self, store, runs):
        super().__init__(store)
        self.runs = runs

    async def respond(self, thread, input_user_message, context):
        progress = widget(thread.id, "progress")
        yield ThreadItemDoneEvent(item=progress)
        session = self.store.session(thread, context)
        text = input_user_message.content[0].text
        agent_context = AgentContext(thread=thread, store=self.store, request_context=context)
        async with self.runs.stream(session.session_id, self.agent, text) as run:
            async for event in stream_agent_response(agent_context, run):
                yield event
        # It is the newest item of a thread with a run that waits.
        yield ThreadItemRemovedEvent(item_id=progress.id)
        if run.interruptions:
            yield ThreadItemDoneEvent(item=widget(thread.id, "approve"))

    async def action(self, thread, action, sender, context):
        yield ThreadItemRemovedEvent(item_id=sender.id)
        await self.runs.decide(thread.id, "c1", approve=True)
        await self.runs.resume(thread.id, self.agent)


@pytest.mark.logic
async def test_a_retry_beside_a_paused_run_deletes_nothing(store, catalog):
    runs = SessionRuns(catalog)
    server = PausingServer(store, runs)

    async def create():
        pausing = [assistant_message("I would deploy", item_id="msg_1"), *deploys("c1")]
        server.agent = Deployer().agent(pausing, "Done", "Done")
        return await server.create("go")

    async def state(thread_id):
        run = await runs.get(thread_id)
        return await server.items(thread_id), await catalog.list_items(thread_id), run

    async def refused(thread_id):
        before = await state(thread_id)
        question = before[0][-1]["id"]
        with pytest.raises(SessionPausedError):
            await server.call("threads.retry_after_item", thread_id=thread_id, item_id=question)
        assert await state(thread_id) == before
        assert before[2] is not None

    thread_id = await create()
    kinds = ["widget", "assistant_message", "user_message"]
    assert [item["type"] for item in await server.items(thread_id)] == kinds
    await refused(thread_id)
    # The user writes meanwhile, and an answer is removed by the request that has added it.
    other = await create()
    await store.add_thread_item(other, user_item(other, "u2"), ANNA)
    await refused(other)
    await store.add_thread_item(other, assistant_item(other, "a2"), ANNA)
    before = await catalog.list_items(other)
    await store.delete_thread_item(other, "a2", ANNA)
    assert (await server.items(other))[0]["id"] == "u2"
    assert await catalog.list_items(other) == before
    # What is not the newest item does not rewind.
    await asyncio.create_task(store.delete_thread_item(other, "msg_1", ANNA))
    assert len(await server.items(other)) == 3
    # A widget goes while its run is paused. When the run has ended, a retry is one again.
    action = {"type": "approve", "payload": {}}
    asked = {"thread_id": thread_id, "item_id": "approve", "action": action}
    server.agent = Deployer().agent("Done", "Done")
    events = await server.call("threads.custom_action", **asked)
    assert not [event for event in events if event["type"] == "error"]
    items, _, run = await state(thread_id)
    assert ([item["type"] for item in items], run) == (kinds[1:], None)
    question = items[-1]["id"]
    await server.call("threads.retry_after_item", thread_id=thread_id, item_id=question)
    assert await history(catalog, thread_id) == ["go", "Done"]


@pytest.mark.logic
async def test_a_retry_of_an_encrypted_answer_deletes_nothing(server, store, catalog):
    thread_id = await new_thread(store)
    thread = await store.load_thread(thread_id, ANNA)
    session = EncryptedSession(thread_id, store.session(thread, ANNA), encryption_key="a key")
    for number in (1, 2):
        question, answer = f"u{number}", f"a{number}"
        await store.add_thread_item(thread_id, user_item(thread_id, question, question), ANNA)
        await session.add_items([raw.message(question), raw.message(answer, "assistant")])
        await store.add_thread_item(thread_id, assistant_item(thread_id, answer), ANNA)

    async def names():
        return [item["id"] for item in await server.items(thread_id, order="asc")]

    before = await catalog.list_items(thread_id)
    for question in ("u2", "u1"):
        with pytest.raises(ValueError, match="the history is encrypted"):
            await server.call("threads.retry_after_item", thread_id=thread_id, item_id=question)
    assert await names() == ["u1", "a1", "u2", "a2"]
    # What the request has added goes, such as a sign of progress.
    await store.add_thread_item(thread_id, user_item(thread_id, "u3"), ANNA)
    await store.add_thread_item(thread_id, widget(thread_id, "w3"), ANNA)
    await store.delete_thread_item(thread_id, "w3", ANNA)
    assert await catalog.list_items(thread_id) == before
    # So does an older item, and an answer that is not in the history.
    await asyncio.create_task(store.delete_thread_item(thread_id, "a1", ANNA))
    for item in (user_item(thread_id, "u4"), widget(thread_id, "w4")):
        await store.add_thread_item(thread_id, item, ANNA)
    await server.call("threads.retry_after_item", thread_id=thread_id, item_id="u4")
    assert await names() == ["u1", "u2", "a2", "u3", "u4", "msg_0"]


@pytest.mark.logic
async def test_a_rename_during_an_answer_stays(server, store, catalog):
    thread_id = await server.create()

    async def rename(thread):
        thread.metadata["from the answer"] = 1
        thread.status = LockedStatus(reason="busy")
        await server.call("threads.update", thread_id=thread_id, title="by hand")
        other = await store.load_thread(thread_id, ANNA)
        other.metadata["from elsewhere"] = 2
        await store.save_thread(other, ANNA)

    server.before_end = rename
    await server.call("threads.add_user_message", thread_id=thread_id, input=message("two"))
    thread = await store.load_thread(thread_id, ANNA)
    assert (thread.title, thread.status) == ("by hand", LockedStatus(reason="busy"))
    assert thread.metadata == {"from the answer": 1, "from elsewhere": 2}
    assert await catalog.get_metadata(thread_id, ["title"]) == {"title": "by hand"}

    # Also in the answer that creates the thread.
    async def rename_new(thread):
        await server.call("threads.update", thread_id=thread.id, title="by hand")
        thread.metadata["x"] = [1]

    server.before_end = rename_new
    thread = await store.load_thread(await server.create(), ANNA)
    assert (thread.title, thread.metadata) == ("by hand", {"x": [1]})
    thread.title, thread.metadata = None, {}
    await store.save_thread(thread, ANNA)
    thread = await store.load_thread(thread.id, ANNA)
    assert (thread.title, thread.metadata) == (None, {})
    assert (await catalog.get_metadata(thread.id)).keys() == {"owner_id", "chatkit"}

    async def delete(thread):
        await server.call("threads.delete", thread_id=thread.id)
        thread.title = "too late"

    server.before_end = delete
    before = await catalog.count_sessions()
    events = await server.call("threads.create", input=message("gone"))
    assert events[-1]["type"] == "error"
    assert await catalog.count_sessions() == before


def calls(store, context, thread, name, item):
    """All methods of a store, as calls with some ids; those of Python's objects are left out."""
    given = attachment(name)
    return {
        "load_thread": lambda: store.load_thread(thread.id, context),
        "save_thread": lambda: store.save_thread(thread, context),
        "load_threads": lambda: store.load_threads(10, None, "desc", context),
        "delete_thread": lambda: store.delete_thread(thread.id, context),
        "load_thread_items": lambda: store.load_thread_items(thread.id, None, 9, "asc", context),
        "add_thread_item": lambda: store.add_thread_item(thread.id, item, context),
        "save_item": lambda: store.save_item(thread.id, item, context),
        "load_item": lambda: store.load_item(thread.id, item.id, context),
        "delete_thread_item": lambda: store.delete_thread_item(thread.id, item.id, context),
        "save_attachment": lambda: store.save_attachment(given, context),
        "load_attachment": lambda: store.load_attachment(name, context),
        "delete_attachment": lambda: store.delete_attachment(name, context),
    }


@pytest.mark.logic
async def test_somebody_elses_ids(store, catalog, engine):
    thread_id = await new_thread(store, title="mine", metadata={"a": 1})
    item = user_item(thread_id, "u-1")
    await store.add_thread_item(thread_id, item, ANNA)
    await store.save_attachment(attachment("file", metadata={"a": 1}), ANNA)
    await catalog.session(thread_id).add_items([raw.message("mine")])
    ids = {thread_id: "id", "u-1": "id", "file": "id", "nobody": "id", "nothing": "id"}

    async def outcome(call):
        try:
            return repr(await call())
        except Exception as error:  # noqa: BLE001  # whatever the answer is
            text = f"{type(error).__name__}: {error}"
            for name, short in ids.items():
                text = text.replace(name, short)
            return text

    async def everything():
        tables = ("agent_sessions", "agent_sessions_metadata", "agent_messages", *TABLES)
        return [sorted(map(str, await raw.execute(engine, f"SELECT * FROM {t}"))) for t in tables]

    before = await everything()
    loaded = await store.load_thread(thread_id, ANNA)
    theirs = calls(store, BEN, loaded, "file", item)
    assert set(theirs) == Store.__abstractmethods__
    unknown = ThreadMetadata(id="nobody", created_at=NOW)
    other = item.model_copy(update={"id": "nothing", "thread_id": "nobody"})
    missing = calls(store, BEN, unknown, "nothing", other)
    for name, call in theirs.items():
        found = await outcome(call)
        if name.startswith("save_") and name != "save_item":
            assert found.startswith("NotFoundError: ")
        else:
            assert found == await outcome(missing[name])
    fresh = ThreadMetadata(id=thread_id, created_at=NOW, title="stolen")
    with pytest.raises(NotFoundError):
        await store.save_thread(fresh, BEN)
    with pytest.raises(NotFoundError):
        await store.save_attachment(attachment("new", thread_id=thread_id), BEN)
    with pytest.raises(SessionNotFoundError):
        await store.session(loaded, BEN).add_items([raw.message("stolen")])
    assert await store.session(loaded, BEN).get_items() == []
    await new_thread(store, title="another")
    mine = catalog.scoped({"owner_id": "anna"})
    cursor = (await mine.list_sessions({"chatkit": {"$exists": True}}, limit=1)).next_cursor
    assert len((await store.load_threads(1, cursor, "desc", ANNA)).data) == 1
    for after in (cursor, thread_id):
        with pytest.raises(InvalidCursorError):
            await store.load_threads(1, after, "desc", BEN)
    await catalog.delete_sessions({"title": "another"})
    assert await everything() == before


async def test_threads_and_items(store, catalog, engine):
    threads = [await new_thread(store) for _ in range(3)]
    await catalog.create_session("plain", metadata={"owner_id": "anna"})
    for number in range(102):
        item = user_item(threads[0], f"{number}", "text \0 😀")
        await store.add_thread_item(threads[0], item, ANNA)
    page = await store.load_threads(1000, None, "desc", ANNA)
    assert {thread.id for thread in page.data} == {*threads}
    assert {thread.created_at for thread in page.data} == {NOW}
    for order, ids in (("desc", page.data), ("asc", page.data[::-1])):
        found, after = [], None
        while after is not None or not found:
            one = await store.load_threads(1, after, order, ANNA)
            assert (one.after is not None) == one.has_more == (len(found) < 2)
            found += one.data
            after = one.after
        assert found == ids
    everything = CatalogStore(
        catalog, scope=lambda user: {"owner_id": user.user_id}, all_sessions=True
    )
    assert len((await everything.load_threads(10, None, "asc", ANNA)).data) == 4
    items = await store.load_thread_items(threads[0], None, 1000, "desc", ANNA)
    assert (len(items.data), items.has_more) == (100, True)
    items = await store.load_thread_items(threads[0], items.after, 1000, "desc", ANNA)
    assert ([item.id for item in items.data], items.has_more) == (["1", "0"], False)
    changed = user_item(threads[0], "0", "changed")
    await store.save_item(threads[0], changed, ANNA)
    await store.save_item(threads[0], widget(threads[0], "w"), ANNA)
    assert await store.load_item(threads[0], "0", ANNA) == changed
    assert await store.load_item(threads[0], "w", ANNA) == widget(threads[0], "w")
    first = await store.load_thread_items(threads[0], None, 1, "asc", ANNA)
    assert first.data == [changed]
    # Ids of items are those of their thread.
    await store.add_thread_item(threads[1], user_item(threads[1], "0"), ANNA)
    assert await store.load_item(threads[0], "0", ANNA) == changed
    for wrong in (
        user_item(threads[0], "0", "again"),
        user_item(threads[1], "fresh"),
    ):
        before = await store.load_thread_items(threads[0], None, 100, "desc", ANNA)
        with pytest.raises(ValueError, match=r"already has|belongs to"):
            await store.add_thread_item(threads[0], wrong, ANNA)
        assert await store.load_thread_items(threads[0], None, 100, "desc", ANNA) == before
    with pytest.raises(ValueError, match="belongs to"):
        await store.save_item(threads[0], user_item(threads[1], "0"), ANNA)
    assert first.after == "0"
    for after in ("gone", "\0"):
        with pytest.raises(NotFoundError):
            await store.load_thread_items(threads[0], after, 1, "asc", ANNA)
        with pytest.raises(InvalidCursorError):
            await store.load_threads(1, after, "asc", ANNA)
    for limit, order, after, error in ((0, "asc", None, ValueError), (1, "up", None, ValueError)):
        with pytest.raises(error):
            await store.load_thread_items(threads[0], after, limit, order, ANNA)
        with pytest.raises(error):
            await store.load_threads(limit, after, order, ANNA)
    for name in ("", "a\0", "x" * 256, "\ud800"):
        for call in (
            store.load_thread(name, ANNA),
            store.load_thread_items(name, None, 1, "asc", ANNA),
            store.load_item(threads[0], name, ANNA),
            store.load_attachment(name, ANNA),
        ):
            with pytest.raises(NotFoundError):
                await call
        await store.delete_attachment(name, ANNA)
        await store.delete_thread(name, ANNA)
        await store.delete_thread_item(threads[0], name, ANNA)
        await store.delete_thread_item(name, "0", ANNA)
        bad = widget(threads[0], "y").model_copy(update={"id": name})
        with pytest.raises(ValueError, match="id"):
            await store.add_thread_item(threads[0], bad, ANNA)


@pytest.mark.logic
async def test_a_loaded_item_equals_the_saved_one(store, catalog):
    thread_id = await new_thread(store)
    sent = attachment("file", metadata={"a": 1})
    items = [
        user_item(thread_id, "u", attachments=[sent, attachment("own", thread_id=thread_id)]),
        assistant_item(thread_id, "a"),
        widget(thread_id, "w"),
        HiddenContextItem(id="h", thread_id=thread_id, created_at=NOW, content={"a": [1, None]}),
        assistant_item(thread_id, "naive").model_copy(
            update={"created_at": datetime(2026, 1, 2, 3, 4, 5, 678)}  # noqa: DTZ001  # as ChatKit
        ),
    ]
    for item in items:
        await store.add_thread_item(thread_id, item, ANNA)
    assert (await store.load_thread_items(thread_id, None, 9, "asc", ANNA)).data == items
    assert [await store.load_item(thread_id, item.id, ANNA) for item in items] == items
    naive = ThreadMetadata(id="naive", created_at=items[-1].created_at, title="T")
    await store.save_thread(naive, ANNA)
    assert await store.load_thread("naive", ANNA) == naive
    # The items of a copy name the copy, and so do the attachments that named the original.
    copy = await catalog.scoped({"owner_id": "anna"}).fork_session(thread_id)
    copied = await store.load_item(copy.session_id, "u", ANNA)
    names = [copied.thread_id, *(each.thread_id for each in copied.attachments)]
    assert names == [copy.session_id, None, copy.session_id]


async def test_writers_at_once(store):
    thread_id = await new_thread(store)
    names = [f"{number}" for number in range(8)]
    await asyncio.gather(
        *(store.add_thread_item(thread_id, widget(thread_id, name), ANNA) for name in names)
    )
    page = await store.load_thread_items(thread_id, None, 100, "asc", ANNA)
    assert sorted(item.id for item in page.data) == names
    other = await asyncio.gather(
        *(store.save_attachment(attachment("one"), user) for user in (ANNA, BEN)),
        return_exceptions=True,
    )
    assert sorted(type(each).__name__ for each in other) == ["NoneType", "NotFoundError"]


async def test_attachments(store, catalog, engine):
    thread_id = await new_thread(store)
    for name in ("sent", "loose", "old"):
        await store.save_attachment(attachment(name, metadata={"path": name}), ANNA)
    await store.save_attachment(attachment("theirs"), BEN)
    await store.save_attachment(attachment("sent", thread_id=thread_id), ANNA)
    await store.save_attachment(attachment("sent"), ANNA)  # It stays where it belongs.
    assert (await store.load_attachment("old", ANNA)).metadata == {"path": "old"}
    await raw.execute(
        engine,
        f"UPDATE {TABLES[1]} SET created_at = '2020-01-01 00:00:00' "
        "WHERE attachment_id IN ('old', 'sent')",
    )
    assert await store.purge_attachments(older_than=timedelta.max) == []
    purged = await store.purge_attachments(older_than=timedelta(days=1))
    assert purged == [attachment("old", metadata={"path": "old"})]
    mine = CatalogStore(catalog.scoped({"owner_id": "anna"}), scope=None)
    assert [each.id for each in await mine.purge_attachments(older_than=timedelta(0))] == ["loose"]
    assert [each.id for each in await store.purge_attachments(older_than=timedelta(0))] == [
        "theirs"
    ]
    assert (await store.load_attachment("sent", ANNA)).id == "sent"
    await catalog.delete_session(thread_id)
    assert await raw.count_rows(engine, TABLES[1]) == 0
    for wrong, error in ((timedelta(-1), ValueError), (1, TypeError)):
        with pytest.raises(error):
            await store.purge_attachments(older_than=wrong)


@pytest.mark.logic
async def test_a_sent_attachment_belongs_to_whoever_has_the_thread(store, catalog):
    thread_id = await new_thread(store)
    for name, thread in (("sent", thread_id), ("unsent", None)):
        await store.save_attachment(attachment(name), ANNA)
        await store.save_attachment(attachment(name, thread_id=thread), ANNA)
    await catalog.set_metadata(thread_id, {"owner_id": "ben"})
    for name, has, lacks in (("sent", BEN, ANNA), ("unsent", ANNA, BEN)):
        given = attachment(name)
        assert (await store.load_attachment(name, has)).id == name
        for refused in (
            store.load_attachment(name, lacks),
            store.save_attachment(given, lacks),
        ):
            with pytest.raises(NotFoundError):
                await refused
        await store.delete_attachment(name, lacks)
        await store.save_attachment(given, has)
        await store.delete_attachment(name, has)


@pytest.mark.logic
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_scopes(catalog):
    async def later(_):
        return {"owner_id": "anna"}

    for scope, error in (
        (lambda _: {}, ValueError),
        (lambda _: {"owner_id": None}, ValueError),
        (lambda _: None, TypeError),
        (later, TypeError),
    ):
        with pytest.raises(error):
            await CatalogStore(catalog, scope=scope).load_threads(1, None, "asc", ANNA)
    with pytest.raises(TypeError):
        CatalogStore(catalog)
    with pytest.raises(TypeError):
        CatalogStore(catalog, scope={"owner_id": "anna"})
    with pytest.raises(TypeError):
        CatalogStore("sqlite://", scope=None)
    ids = {CatalogStore(catalog, scope=None).generate_thread_id(None) for _ in range(10)}
    assert len(ids) == 10
    assert min(map(len, ids)) >= 32


async def test_a_deleted_thread_is_gone_for_its_owner_only(store):
    gone = ThreadMetadata(id="gone", created_at=NOW)
    await store.save_thread(gone, ANNA)
    await store.delete_thread("gone", ANNA)
    again = gone.model_copy()
    with pytest.raises(NotFoundError):
        await store.save_thread(again, ANNA)
    await store.save_thread(again.model_copy(), BEN)
    assert (await store.load_thread("gone", BEN)).id == "gone"


BAD_THREADS = [
    {"id": "theirs"},
    {"id": "theirs", "created_at": "x", "title": 1, "metadata": {"a": 1}},
    {"status": 5, "allowed_image_domains": ["a.com"], "metadata": {"a": 1}},
    {"status": {"type": "nothing"}, "allowed_image_domains": 3, "metadata": [1]},
    "text",
]


@pytest.mark.logic
async def test_what_a_thread_stores_does_not_concern_others(store, catalog):
    """Whoever can write metadata, over MCP for example, makes no thread look like another."""
    everyone = CatalogStore(catalog, scope=None)
    for name, user in (("mine", ANNA), ("theirs", BEN)):
        await store.save_thread(ThreadMetadata(id=name, created_at=NOW, title=name), user)
    for bad in BAD_THREADS:
        await catalog.scoped({"owner_id": "anna"}).set_metadata("mine", {"chatkit": bad})
        page = await everyone.load_threads(10, None, "desc", None)
        assert sorted((each.id, each.title) for each in page.data) == [
            ("mine", "mine"),
            ("theirs", "theirs"),
        ]
        loaded = await store.load_thread("mine", ANNA)
        assert loaded.id == "mine"
        assert loaded.metadata == ({"a": 1} if '"a": 1' in json.dumps(bad) else {})
        domains = ["a.com"] if "a.com" in json.dumps(bad) else None
        assert (loaded.status.type, loaded.allowed_image_domains) == ("active", domains)
        loaded.metadata["b"] = 2
        await store.save_thread(loaded, ANNA)
        assert (await store.load_thread("mine", ANNA)).metadata == loaded.metadata


async def test_copies(server, store, catalog, tmp_path):
    thread_id = await server.create("one")
    await server.call("threads.add_user_message", thread_id=thread_id, input=message("two"))
    items = await server.items(thread_id, order="asc")
    third = (await catalog.list_items(thread_id)).items[2].item_id
    mine = catalog.scoped({"owner_id": "anna"})
    whole = (await mine.fork_session(thread_id)).session_id
    part = (await mine.fork_session(thread_id, before=third)).session_id
    records = [record async for record in catalog.export_sessions()]
    for each in itertools.chain.from_iterable(record["items"] for record in records):
        # Before the items that are added to the copy, which the SDK sorts by time.
        each["created_at"] = "2026-01-01T00:00:00+00:00"
    assert len(json.loads(json.dumps(records))) == 3
    elsewhere = SessionCatalog.from_url(f"sqlite:///{tmp_path}/other.db", create_tables=True)
    for target in (elsewhere, catalog):
        assert await target.import_sessions(records, "replace") == 3
        there = CatalogStore(target, scope=lambda user: {"owner_id": user.user_id})
        other = Server(there, "new")
        for name, count in ((thread_id, 4), (whole, 4), (part, 2)):
            expected = [{**item, "thread_id": name} for item in items[:count]]
            assert await other.items(name, order="asc") == expected
            question = expected[-2]["id"]
            await other.call("threads.retry_after_item", thread_id=name, item_id=question)
            kept = ["one", "answer 0", "two"][: count - 1]
            assert (await history(target, name))[:-1] == kept
            await other.call("threads.retry_after_item", thread_id=name, item_id=items[0]["id"])
            assert (await history(target, name))[:-1] == ["one"]
    await elsewhere.engine.dispose()
    record = next(each for each in records if each["session_id"] == part)
    assert record["thread_items"][0].keys() == {"item_id", "kind", "item", "history_end"}
    for wrong, path in (
        ([record["thread_items"][0]] * 2, "[1].item_id"),
        ([{**record["thread_items"][0], "history_end": -1}], "[0].history_end"),
        ([{**record["thread_items"][0], "item_id": ""}], "[0].item_id"),
        ([{**record["thread_items"][0], "item": {"a": float("nan")}}], "[0].item"),
        ({}, ""),
    ):
        with pytest.raises(InvalidMetadataError) as caught:
            await catalog.import_sessions([{**record, "thread_items": wrong}], "replace")
        assert caught.value.path == f"$.thread_items{path}"


async def test_only_items_need_the_tables(engine, catalog):
    await catalog.create_session("first")
    store = CatalogStore(SessionCatalog(engine), scope=lambda user: {"owner_id": user.user_id})
    thread_id = await new_thread(store, title="t")
    assert (await store.load_threads(1, None, "asc", ANNA)).data[0].title == "t"
    with pytest.raises(TablesMissingError) as caught:
        await store.add_thread_item(thread_id, user_item(thread_id, "u"), ANNA)
    assert set(TABLES) <= set(caught.value.tables)
    await store.delete_thread(thread_id, ANNA)


@pytest.mark.logic
async def test_the_newest_vote_on_an_item_counts(catalog, engine):
    assert await catalog.feedback("nobody") == []
    assert (await catalog.statistics()).feedback == {}
    store = CatalogStore(catalog, scope=lambda user: {"owner_id": user.user_id})
    for user, thread_id in ((ANNA, "t1"), (ANNA, "t2"), (BEN, "t3")):
        await store.save_thread(ThreadMetadata(id=thread_id, created_at=NOW), user)
    assert await catalog.feedback("t1") == []
    await store.add_feedback("t1", ["i1", "i2", "i1"], "positive", ANNA)
    await store.add_feedback("t1", ["i1"], "negative", ANNA)
    await store.add_feedback("t2", ["i1"], "positive", ANNA)
    await store.add_feedback("t3", ["i1"], "positive", BEN)
    votes = await catalog.feedback("t1")
    assert [(vote.item_id, vote.kind) for vote in votes] == [("i2", "positive"), ("i1", "negative")]
    assert votes[0].at < votes[1].at
    assert votes[0].at.utcoffset() == timedelta(0)

    ours = catalog.scoped({"owner_id": "anna"})
    assert (await ours.statistics()).feedback == {"positive": 2, "negative": 1}
    where = {"$session_id": "t1"}
    assert (await catalog.statistics(where)).feedback == {"positive": 1, "negative": 1}
    assert await ours.feedback("t3") == []
    for thread_id, user in (("t3", ANNA), ("nobody", ANNA), ("", ANNA)):
        with pytest.raises(NotFoundError):
            await store.add_feedback(thread_id, ["i1"], "positive", user)
    with pytest.raises(ValueError, match="item id"):
        await store.add_feedback("t1", ["i\0"], "positive", ANNA)
    assert len(await catalog.feedback("t1")) == 2

    await SQLAlchemySession("t1", engine=engine).clear_session()
    assert await raw.count_rows(engine, TABLES[2], "t1") == 0
    unused = SessionCatalog(engine)
    assert len(await unused.feedback("t2")) == 1

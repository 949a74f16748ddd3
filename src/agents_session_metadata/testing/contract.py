"""The contract of a session of the Agents SDK, as tests that know nothing about its class.

A module that imports everything from here and overrides the fixture `make_session` runs them on
sessions of its own. A test's docstring is the promise that it checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar, cast

import pytest
import pytest_asyncio
from agents import Agent, RunConfig, Runner, function_tool
from agents.items import TResponseInputItem
from agents.memory import (
    OpenAIResponsesCompactionSession,
    Session,
    SessionSettings,
)
from agents.testing import ScriptedModel, assistant_message, function_call

MakeSession: TypeAlias = Callable[[str], Any]
T = TypeVar("T")
Open: TypeAlias = Callable[[str], Awaitable[Session]]

pytestmark: pytest.MarkDecorator = pytest.mark.asyncio

CONFIG = RunConfig(tracing_disabled=True)
SUMMARY: Any = {"type": "compaction", "id": "cmp_1", "encrypted_content": "a summary"}
HISTORY: list[Any] = [
    {"role": "user", "content": "Weather in Oslo?"},
    {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
    {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "call_1",
        "name": "weather",
        "arguments": '{"city":"Oslo"}',
    },
    {"type": "function_call_output", "call_id": "call_1", "output": "snow"},
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Snow.", "annotations": [], "logprobs": []}],
    },
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "And here? 🌍 «naïve» \\ \" ' % \u0000 \u2028"},
            {
                "type": "input_image",
                "image_url": "data:image/png;base64,iVBORw0KGgo=",
                "detail": "auto",
            },
        ],
    },
]
"""An item of each common kind, and text that a database has to escape."""


def messages(*texts: str) -> list[TResponseInputItem]:
    return [{"role": "user", "content": text} for text in texts]


def texts(items: list[Any]) -> list[str]:
    """Returns the texts of messages, whose content a server may have split into parts."""
    contents = [item["content"] for item in items]
    return [each if isinstance(each, str) else each[0]["text"] for each in contents]


def needs(*properties: str) -> Callable[[T], T]:
    """Marks a test of what not every class of sessions can keep.

    `shared`: two objects with the same id share a history. `exact`: items come back as they were
    added, the id stays after `clear_session`, and a cancelled call does not go on elsewhere.
    """

    def mark(test: T) -> T:
        test.needs = set(properties)  # type: ignore[attr-defined]  # of a function
        return test

    return mark


@pytest_asyncio.fixture
async def open_session(make_session: MakeSession) -> AsyncIterator[Open]:
    """Makes sessions that are closed after the test, the way their class allows it.

    The factory may return a session, an awaitable of one, or an asynchronous context manager.
    """
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(session_id: str) -> Session:
            made = make_session(session_id)
            if hasattr(made, "get_items"):
                stack.push_async_callback(close, made)
            elif hasattr(made, "__aenter__"):
                made = await stack.enter_async_context(made)
            else:
                made = await made
                stack.push_async_callback(close, made)
            return cast(Session, made)

        yield open_one


async def close(session: Any) -> None:
    engine = getattr(session, "engine", None)
    for method in (getattr(session, "close", None), getattr(engine, "dispose", None)):
        result = method() if callable(method) else None
        if inspect.isawaitable(result):
            await result


@pytest_asyncio.fixture
async def session(open_session: Open) -> Session:
    return await open_session("chat")


async def test_new_session_is_empty(session: Session) -> None:
    """A new session has its id and no items. Reading, popping and clearing it do nothing."""
    assert session.session_id == "chat"
    assert await session.get_items() == []
    assert await session.get_items(limit=5) == []
    assert await session.pop_item() is None
    await session.clear_session()
    assert await session.get_items() == []


@needs("exact")
async def test_items_come_back_equal_and_in_order(session: Session) -> None:
    """Items of every kind come back equal and in the order in which they were added."""
    await session.add_items(HISTORY[:4])
    await session.add_items([])
    await session.add_items(HISTORY[4:])
    assert await session.get_items() == HISTORY


async def test_order_of_many_calls(session: Session) -> None:
    """Calls that follow each other within the same second keep their order."""
    for number in range(30):
        await session.add_items(messages(f"{number}a", f"{number}b"))
    expected = [f"{number}{letter}" for number in range(30) for letter in "ab"]
    assert texts(await session.get_items()) == expected


@needs("exact")
async def test_equal_items_are_kept(session: Session) -> None:
    """The same item can be added twice."""
    await session.add_items(messages("again", "again"))
    await session.add_items(messages("again"))
    assert await session.get_items() == messages("again", "again", "again")


@needs("exact")
async def test_large_history(session: Session) -> None:
    """1,000 items in one call, and an item of 1 MB, come back."""
    many = messages(*(str(number) for number in range(1_000)), "ä" * 500_000)
    await session.add_items(many)
    assert await session.get_items() == many


@needs("exact")
async def test_items_are_copies(session: Session) -> None:
    """Neither changing an item that was added nor one that was read changes the history."""
    items = copy.deepcopy(HISTORY)
    await session.add_items(items)
    assert items == HISTORY
    items[0]["content"] = "changed"
    items.pop()
    read: list[Any] = await session.get_items()
    read[0]["content"] = "changed"
    read[4]["content"].clear()
    assert await session.get_items() == HISTORY


async def test_limit(session: Session) -> None:
    """`limit` returns the newest items in chronological order; 0 returns none."""
    await session.add_items(messages("a", "b", "c"))
    await session.add_items(messages("d", "e"))
    assert texts(await session.get_items(limit=0)) == []
    assert texts(await session.get_items(limit=1)) == ["e"]
    assert texts(await session.get_items(limit=3)) == ["c", "d", "e"]
    assert texts(await session.get_items(limit=50)) == ["a", "b", "c", "d", "e"]
    assert texts(await session.get_items(limit=None)) == ["a", "b", "c", "d", "e"]


async def test_limit_of_the_settings(session: Session) -> None:
    """`session_settings.limit` is the default, and an argument takes precedence."""
    await session.add_items(messages("a", "b", "c", "d"))
    session.session_settings = SessionSettings(limit=2)
    assert texts(await session.get_items()) == ["c", "d"]
    assert texts(await session.get_items(limit=3)) == ["b", "c", "d"]


@needs("exact")
async def test_pop(session: Session) -> None:
    """`pop_item` removes and returns the newest item, until none is left."""
    await session.add_items(HISTORY)
    for number in reversed(range(len(HISTORY))):
        assert await session.pop_item() == HISTORY[number]
        assert await session.get_items() == HISTORY[:number]
    assert await session.pop_item() is None
    await session.add_items(messages("next"))
    assert await session.get_items() == messages("next")


@needs("exact")
async def test_clear(session: Session, open_session: Open) -> None:
    """`clear_session` removes all items of this session, which can be used again."""
    other = await open_session("other")
    await other.add_items(messages("other"))
    await session.add_items(HISTORY)
    await session.clear_session()
    assert await session.get_items() == []
    await session.add_items(messages("new"))
    assert await session.get_items() == messages("new")
    assert await other.get_items() == messages("other")


@needs("shared")
async def test_ids_are_exact(open_session: Open) -> None:
    """Sessions whose ids differ in case, accents, spaces or punctuation are different sessions."""
    ids = [
        "chat",
        "Chat",
        "chat ",
        "chät",
        "chat:1",
        "chat/1",
        "chat%",
        "chat_",
        "it's",
        '"x"',
        "聊天",
    ]
    for session_id in ids:
        await (await open_session(session_id)).add_items(messages(session_id))
    for session_id in ids:
        assert texts(await (await open_session(session_id)).get_items()) == [session_id]


@needs("shared", "exact")
async def test_another_object_reads_the_same_history(session: Session, open_session: Open) -> None:
    """A second session object with the same id reads, extends and clears the same history."""
    await session.add_items(HISTORY)
    second = await open_session("chat")
    assert await second.get_items() == HISTORY
    await second.add_items(messages("more"))
    assert await session.get_items() == [*HISTORY, *messages("more")]
    assert await second.pop_item() == messages("more")[0]
    await second.clear_session()
    assert await session.get_items() == []


async def test_concurrent_adds(session: Session) -> None:
    """Calls at the same time lose no item, and no call's items are split by those of another."""
    await asyncio.gather(*(session.add_items(batch(number)) for number in range(20)))
    assert_whole(await session.get_items(), range(20))


@needs("shared")
async def test_concurrent_adds_through_several_objects(open_session: Open) -> None:
    """The same holds for several session objects that begin a new session at the same time."""

    async def add(number: int) -> None:
        await (await open_session("chat")).add_items(batch(number))

    await asyncio.gather(*(add(number) for number in range(8)))
    session = await open_session("chat")
    assert_whole(await session.get_items(), range(8))
    newest = (await session.get_items())[-1]
    assert await session.get_items(limit=1) == [newest]
    assert await session.pop_item() == newest


async def test_concurrent_pops(session: Session) -> None:
    """Of several pops at the same time, each returns another item or None."""
    await session.add_items(messages("a", "b", "c", "d"))
    popped = await asyncio.gather(*(session.pop_item() for _ in range(7)))
    assert sorted(texts([item for item in popped if item])) == ["a", "b", "c", "d"]
    assert await session.get_items() == []


@needs("exact")
async def test_cancelled_add(open_session: Open) -> None:
    """`add_items` that is cancelled stores all of its items or none, and nothing changes later."""
    await check_cancelled(
        open_session, 25, lambda session: session.add_items(batch(1)), [*batch(0), *batch(1)]
    )


@needs("exact")
async def test_cancelled_read(open_session: Open) -> None:
    """`get_items` that is cancelled changes nothing."""
    for moment in range(40):
        session = await open_session(f"chat-{moment}")
        await session.add_items(batch(0))
        await cancel(session.get_items(), moment, steps=40)
        assert await session.get_items() == batch(0)


@needs("exact")
async def test_cancelled_pop(open_session: Open) -> None:
    """`pop_item` that is cancelled removes the newest item or none."""
    await check_cancelled(open_session, 15, lambda session: session.pop_item(), batch(0)[:-1])


@needs("exact")
async def test_cancelled_clear(open_session: Open) -> None:
    """`clear_session` that is cancelled removes all items or none."""
    await check_cancelled(open_session, 15, lambda session: session.clear_session(), [])


async def test_run(session: Session) -> None:
    """A run with a tool stores input, calls, outputs and answer, and the next run reads them."""
    model = ScriptedModel(
        [
            [function_call("weather", {"city": "Oslo"}, call_id="call_1", item_id="fc_1")],
            [assistant_message("Snow.", item_id="msg_1")],
            [assistant_message("Yes.", item_id="msg_2")],
        ]
    )
    agent = Agent(name="assistant", model=model, tools=[weather])
    first = await Runner.run(agent, "Weather?", session=session, run_config=CONFIG)
    assert first.final_output == "Snow."
    history = await session.get_items()
    assert kinds(history) == ["user", "function_call", "function_call_output", "assistant"]
    streamed = Runner.run_streamed(agent, "Sure?", session=session, run_config=CONFIG)
    async for _ in streamed.stream_events():
        pass
    assert streamed.final_output == "Yes."
    assert model.last_call is not None
    assert kinds(list(model.last_call.input)) == [*kinds(history), "user"]
    assert kinds(await session.get_items()) == [*kinds(history), "user", "assistant"]


async def test_run_with_a_limit(session: Session) -> None:
    """`RunConfig.session_settings` limits what the model sees, and not what is stored."""
    await session.add_items(messages("a", "b", "c"))
    model = ScriptedModel([[assistant_message("hi")]])
    config = RunConfig(tracing_disabled=True, session_settings=SessionSettings(limit=1))
    await Runner.run(Agent(name="assistant", model=model), "d", session=session, run_config=config)
    assert model.last_call is not None
    assert texts(list(model.last_call.input)) == ["c", "d"]
    assert kinds(await session.get_items()) == ["user"] * 4 + ["assistant"]


@needs("exact")
async def test_compaction(session: Session) -> None:
    """Compaction replaces the whole history, and the session goes on from there."""
    await session.add_items(messages("a", "b"))
    compaction = compacted(session)
    await compaction.run_compaction({"force": True, "compaction_mode": "input"})
    assert await session.get_items() == [SUMMARY]
    await compaction.add_items(messages("next"))
    assert await session.get_items() == [SUMMARY, *messages("next")]


@needs("exact")
async def test_automatic_compaction(session: Session) -> None:
    """A run through a compacting session leaves the compacted history."""
    await session.add_items(messages("a", "b"))
    compaction = compacted(session)
    agent = Agent(name="assistant", model=ScriptedModel([[assistant_message("hi")]]))
    await Runner.run(agent, "c", session=compaction, run_config=CONFIG)
    assert await session.get_items() == [SUMMARY]


@needs("exact")
async def test_cancelled_compaction(open_session: Open) -> None:
    """A compaction that is cancelled leaves the old history or the new one, never less."""

    def compact(session: Session) -> Coroutine[Any, Any, object]:
        return compacted(session).run_compaction({"force": True, "compaction_mode": "input"})

    await check_cancelled(open_session, 25, compact, [SUMMARY])


async def check_cancelled(
    open_session: Open,
    moments: int,
    work: Callable[[Session], Coroutine[Any, Any, object]],
    done: list[Any],
) -> None:
    """Cancels work on new histories of one batch. Each is as before or `done`, and stays usable."""
    for moment in range(moments):
        session = await open_session(f"chat-{moment}")
        await session.add_items(batch(0))
        cancelled = await cancel(work(session), moment)
        found = await settled(session)
        assert found in ([batch(0), done] if cancelled else [done]), f"cancelled at moment {moment}"
        await session.add_items(messages("next"))
        assert await session.get_items() == [*found, *messages("next")]


def batch(number: int) -> list[TResponseInputItem]:
    return messages(*(f"{number}-{part}" for part in range(5)))


def assert_whole(items: list[TResponseInputItem], numbers: range) -> None:
    """Each batch is there once, its items together and in order."""
    batches = [items[start : start + 5] for start in range(0, len(items), 5)]
    assert sorted(map(texts, batches)) == sorted(texts(batch(number)) for number in numbers)


async def cancel(work: Coroutine[Any, Any, object], moment: int, steps: int = 10) -> bool:
    """Cancels `work` at one of several moments; returns False if it had ended before.

    The first `steps` moments are steps of the event loop. The later ones are some milliseconds
    long, because a database answers in another thread or process.
    """
    task = asyncio.ensure_future(work)
    for _ in range(min(moment, steps)):
        await asyncio.sleep(0)
    if moment > steps:
        await asyncio.sleep((moment - steps) / 2_000)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


async def settled(session: Session) -> list[TResponseInputItem]:
    """The history, which work that was left behind does not change any more."""
    found = await session.get_items()
    await asyncio.sleep(0.02)
    assert await session.get_items() == found, (
        "the history changed after the cancelled call had ended"
    )
    return found


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"snow in {city}"


def kinds(items: list[Any]) -> list[str]:
    return [item.get("role") or item["type"] for item in items]


def compacted(session: Session) -> OpenAIResponsesCompactionSession:
    """The SDK's compaction around a session, with a client that answers without a network."""

    async def compact(**_: Any) -> SimpleNamespace:
        return SimpleNamespace(output=[SUMMARY], usage=None)

    client: Any = SimpleNamespace(responses=SimpleNamespace(compact=compact))
    return OpenAIResponsesCompactionSession(
        session.session_id, session, client=client, should_trigger_compaction=lambda _: True
    )

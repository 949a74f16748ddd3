"""What is done with a session of the SDK, whatever stores it, and what comes out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from agents import Agent, Runner, function_tool, handoff
from agents.memory import SessionSettings
from agents.memory.openai_responses_compaction_session import OpenAIResponsesCompactionSession
from agents.testing import ScriptedModel, assistant_message, function_call
from conformance.compaction import Client

Item = dict[str, Any]
Scenario = Callable[[Any], Awaitable[Any]]


def user(text: Any) -> Item:
    return {"role": "user", "content": text}


def canonical(value: Any) -> Any:
    """Results without what the API adds to items, written by hand and not by the package."""
    if isinstance(value, list):
        return [canonical(each) for each in value]
    if not isinstance(value, dict):
        return value
    item = {key: canonical(each) for key, each in value.items()}
    if re.search(UNFIT, str(item.get("id", ""))):
        del item["id"]
    if "role" in item:
        item.setdefault("type", "message")
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        if isinstance(item["content"], str):
            item["content"] = [{"type": kind, "text": item["content"]}]
    if item.get("status") == "completed":
        del item["status"]
    for name, default in (("annotations", []), ("detail", "auto")):
        if item.get(name) == default:
            del item[name]
    return item


UNFIT = r"_asm\d+$|^__fake_id__$|^scripted-|^call_"
"""Ids that OpenAI would refuse, so that no client gets them, and those that it gets instead."""

ITEMS: dict[str, Item] = {
    "text": user("hello"),
    "empty text": user(""),
    "long text": user("x" * 200_000),
    "unicode": user("Zürich 東京 👩‍👩‍👧 \x00 \u2028 \\u0000 %2F"),
    "parts": user([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]),
    "image": user([{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]),
    "file": user([{"type": "input_file", "file_data": "AAAA", "filename": "a.pdf"}]),
    "system": {"role": "system", "content": "be brief"},
    "developer": {"role": "developer", "content": "be brief"},
    "assistant text": {"role": "assistant", "content": "hi"},
    "assistant message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}],
    },
    "refusal": {
        "id": "msg_2",
        "type": "message",
        "role": "assistant",
        "status": "incomplete",
        "content": [{"type": "refusal", "refusal": "no"}],
    },
    "function call": {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "call_1",
        "name": "f",
        "arguments": '{"a": 1}',
    },
    "function output": {"type": "function_call_output", "call_id": "call_1", "output": "1"},
    "function output parts": {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": [{"type": "input_text", "text": "1"}],
    },
    "reasoning": {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "secret",
    },
    "custom call": {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "i"},
    "custom output": {"type": "custom_tool_call_output", "call_id": "c", "output": "o"},
    "web search": {
        "id": "ws_1",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    },
    "file search": {
        "id": "fs_1",
        "type": "file_search_call",
        "status": "completed",
        "queries": ["q"],
        "results": [{"file_id": "f", "text": "t", "score": 0.5}],
    },
    "approval request": {
        "id": "mcpr_1",
        "type": "mcp_approval_request",
        "arguments": "{}",
        "name": "n",
        "server_label": "s",
    },
    "approval response": {
        "type": "mcp_approval_response",
        "approval_request_id": "mcpr_1",
        "approve": True,
    },
    "compaction": {"id": "cmp_1", "type": "compaction", "encrypted_content": "secret"},
}
"""Items of many kinds. With each, one scenario adds it between two others, reads and pops it."""


def keeping(item: Item) -> Scenario:
    async def scenario(session: Any) -> Any:
        await session.add_items([user("before"), item])
        await session.add_items([user("after")])
        results = [await session.get_items(), await session.get_items(2)]
        return [*results, await session.pop_item(), await session.pop_item(), results[0][:1]]

    return scenario


async def nothing(session: Any) -> Any:
    await session.add_items([])
    return [await session.get_items(), await session.pop_item(), await session.get_items(3)]


async def limits(session: Any) -> Any:
    await session.add_items([user(str(number)) for number in range(7)])
    return [await session.get_items(limit) for limit in (0, 1, 6, 7, 8, 1000)]


async def own_limit(session: Any) -> Any:
    await session.add_items([user(str(number)) for number in range(7)])
    session.session_settings = SessionSettings(limit=3)
    return [await session.get_items(), await session.get_items(5)]


async def batches(session: Any) -> Any:
    await session.add_items([user(str(number)) for number in range(53)])
    return [await session.get_items(), await session.get_items(45)]


async def many_pages(session: Any) -> Any:
    for _ in range(3):
        await session.add_items([user(str(number)) for number in range(40)])
    return await session.get_items()


async def popping(session: Any) -> Any:
    await session.add_items([user("same"), user("same"), user("other")])
    popped = [await session.pop_item() for _ in range(2)]
    left = await session.get_items()
    return [popped, left, await session.pop_item(), await session.pop_item()]


async def adding_again_what_was_popped(session: Any) -> Any:
    await session.add_items([user("a"), ITEMS["function call"]])
    await session.add_items([await session.pop_item()])
    await session.add_items([user("b")])
    popped = [await session.pop_item(), await session.pop_item()]
    await session.add_items(popped[::-1])
    return [popped, await session.get_items(), await session.pop_item()]


async def clearing(session: Any) -> Any:
    await session.add_items([user("a")])
    await session.clear_session()
    empty = await session.get_items()
    await session.add_items([user("b")])
    return [empty, await session.get_items()]


async def clearing_nothing(session: Any) -> Any:
    await session.clear_session()
    return await session.get_items()


async def writers_together(session: Any) -> Any:
    await session.add_items([user("first")])
    await asyncio.gather(*(session.add_items([user("x"), user("y")]) for _ in range(5)))
    return await session.get_items()


def an_agent(*answers: Any, **settings: Any) -> Agent[Any]:
    steps = [[assistant_message(each)] if isinstance(each, str) else each for each in answers]
    return Agent(name="a", model=ScriptedModel(steps), **settings)


@function_tool
def weather(city: str) -> str:
    return f"sunny in {city}"


def call(city: str, number: int) -> Any:
    return function_call("weather", {"city": city}, call_id=f"call_{number}")


async def one_run(session: Any) -> Any:
    result = await Runner.run(an_agent("hi"), "hello", session=session)
    return [result.final_output, await session.get_items()]


async def two_runs(session: Any) -> Any:
    agent = an_agent("one", "two")
    await Runner.run(agent, "first", session=session)
    await Runner.run(agent, "second", session=session)
    return [len(agent.model.calls[1].input), await session.get_items()]


async def tools(session: Any) -> Any:
    agent = an_agent([call("Oslo", 1), call("Rome", 2)], "sunny", tools=[weather])
    result = await Runner.run(agent, "weather?", session=session)
    return [result.final_output, await session.get_items()]


async def tools_over_two_runs(session: Any) -> Any:
    agent = an_agent([call("Oslo", 1)], "sunny", [call("Rome", 2)], "too", tools=[weather])
    await Runner.run(agent, "Oslo?", session=session)
    await Runner.run(agent, "Rome?", session=session)
    return [[len(each.input) for each in agent.model.calls], await session.get_items()]


async def streaming(session: Any) -> Any:
    result = Runner.run_streamed(an_agent("hi"), "hello", session=session)
    async for _ in result.stream_events():
        pass
    return [result.final_output, await session.get_items()]


async def handing_off(session: Any) -> Any:
    other = Agent(name="b", model=ScriptedModel([[assistant_message("from b")]]))
    transfer = function_call("transfer_to_b", {}, call_id="call_1")
    agent = an_agent([transfer], handoffs=[handoff(other)])
    result = await Runner.run(agent, "hello", session=session)
    return [result.final_output, await session.get_items()]


async def a_list_as_input(session: Any) -> Any:
    result = await Runner.run(an_agent("hi"), [user("a"), user("b")], session=session)
    return [result.final_output, await session.get_items()]


class Wrapped:
    """A session around another. The SDK refuses to compact its own class when it sees it."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.session_id = "wrapped"
        self.session_settings = None
        for name in ("get_items", "add_items", "pop_item", "clear_session"):
            setattr(self, name, getattr(session, name))


async def compacting(session: Any) -> Any:
    await session.add_items([user("a"), {"role": "assistant", "content": "b"}, user("c")])
    output = [user("a"), {"id": "cmp_2", "type": "compaction", "encrypted_content": "all"}]
    compaction = OpenAIResponsesCompactionSession(
        "wrapped", Wrapped(session), client=Client(output), compaction_mode="input"
    )
    await compaction.run_compaction({"force": True})
    await compaction.add_items([user("d")])
    return [await session.get_items(), await compaction.get_items(1), await session.pop_item()]


SCENARIOS: dict[str, Scenario] = {
    **{f"item: {name}": keeping(item) for name, item in ITEMS.items()},
    **{
        scenario.__name__: scenario
        for scenario in (
            nothing,
            limits,
            own_limit,
            batches,
            many_pages,
            popping,
            adding_again_what_was_popped,
            clearing,
            clearing_nothing,
            writers_together,
            one_run,
            two_runs,
            tools,
            tools_over_two_runs,
            streaming,
            handing_off,
            a_list_as_input,
            compacting,
        )
    },
}

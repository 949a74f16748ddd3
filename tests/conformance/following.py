"""A model that answers word by word, and a client that shows what a follower receives."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from agents import Agent, ModelResponse, Usage
from agents.models.interface import Model
from agents.testing import assistant_message, function_call
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemAddedEvent,
    ResponseTextDeltaEvent,
)

from agents_session_metadata import SessionRuns

Event = dict[str, Any]
TEXT = "response.output_text.delta"


class Speaker(Model):
    """Gives an answer per turn: text, which comes word by word, and calls, such as `"=look"`.

    The turn is the number of answers in the input, so it does not depend on the process.

    Args:
        answers: The parts of each answer.
        pause: Seconds before each word.
    """

    def __init__(self, *answers: Sequence[str], pause: float = 0.0) -> None:
        self.answers = answers
        self.pause = pause
        self.spoken: list[str] = []
        """The words of all answers that were given until now."""
        self.gates: dict[str, asyncio.Event] = {}
        """Before one of these words, the model waits."""

    def _output(self, given: Any) -> list[Any]:
        items = given if isinstance(given, list) else []
        turn = turns_in(items)
        return [
            function_call(part[1:], {}, call_id=f"{part[1:]}-{turn}-{uuid.uuid4().hex[:6]}")
            if part.startswith("=")
            else assistant_message(part)
            for part in self.answers[turn]
        ]

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        return ModelResponse(self._output(_input(args, kwargs)), Usage(requests=1), None)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        output = self._output(_input(args, kwargs))
        for index, item in enumerate(output):
            own = {"output_index": index, "item_id": item.id, "sequence_number": 0}
            is_call = isinstance(item, ResponseFunctionToolCall)
            nothing = {"arguments": ""} if is_call else {"content": []}
            yield ResponseOutputItemAddedEvent(
                type="response.output_item.added",
                item=item.model_copy(update={**nothing, "status": "in_progress"}),
                output_index=index,
                sequence_number=0,
            )
            if isinstance(item, ResponseFunctionToolCall):
                yield ResponseFunctionCallArgumentsDeltaEvent(
                    type="response.function_call_arguments.delta", delta=item.arguments, **own
                )
                continue
            for word in item.content[0].text.split(" "):
                await asyncio.sleep(self.pause)
                if word in self.gates:
                    await self.gates[word].wait()
                self.spoken.append(word)
                lead = "" if word == item.content[0].text.split(" ")[0] else " "
                yield ResponseTextDeltaEvent(
                    type=TEXT, delta=lead + word, content_index=0, logprobs=[], **own
                )
        response = Response.model_construct(
            id="r", created_at=0, model="", object="response", output=output, usage=None
        )
        yield ResponseCompletedEvent.model_construct(
            response=response, sequence_number=0, type="response.completed"
        )


def _input(args: Any, kwargs: Any) -> Any:
    return kwargs["input"] if "input" in kwargs else args[1]


def turns_in(items: Sequence[Any]) -> int:
    """The number of answers since the last message of the user."""
    turns, before = 0, ""
    for item in items:
        kind = item.get("type") or "message"
        if item.get("role") == "user":
            turns = 0
        elif kind == "function_call_output":
            before = "output"
        else:
            turns += before in ("", "output") or turns == 0
            before = "answer"
        if item.get("role") == "user":
            before = ""
    return turns


def speaking(*answers: Sequence[str], pause: float = 0.0, **arguments: Any) -> Agent[Any]:
    """An agent with a `Speaker`."""
    return Agent("speaker", model=Speaker(*answers, pause=pause), **arguments)


class Client:
    """Shows what a follower receives, as a browser would, and checks that it fits together."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.ids: list[int | None] = []
        self.parts: list[Event] = []
        self.status: Event | None = None
        self.events: list[Event] = []

    async def follow(self, runs: SessionRuns, session_id: str, **options: Any) -> Client:
        async for event in runs.follow(session_id, **options):
            self.receive(event)
        return self

    def receive(self, event: Event) -> None:
        self.events.append(event)
        if event["type"] == "snapshot":
            assert set(event) == {"type", "after", "items", "item_ids", "events"}
            assert len(event["items"]) == len(event["item_ids"])
            begin = event["after"] or 0
            kept = [at + 1 for at, item_id in enumerate(self.ids) if item_id and item_id <= begin]
            cut = max(kept, default=0)
            self.items = [*self.items[:cut], *event["items"]]
            self.ids = [*self.ids[:cut], *event["item_ids"]]
            self.parts, self.status = list(event["events"]), None
        elif event["type"] == "response.created":
            self.parts = []
        elif event["type"] == "item":
            item = event["item"]
            if item.get("role") == "assistant":
                self._take(item)
            self.items.append(item)
            self.ids.append(event["item_id"])
        elif event["type"] == "status":
            self.status = event
        else:
            self.parts.append(event)

    def _take(self, item: Any) -> None:
        """The deltas of a text, joined, are the text."""
        texts = [each for each in self.parts if each["type"] == TEXT]
        first = min(each["output_index"] for each in texts)
        own = [each for each in texts if each["output_index"] == first]
        assert "".join(each["delta"] for each in own) == text_of(item)
        self.parts = [each for each in self.parts if each["output_index"] > first]

    @property
    def text(self) -> str:
        """The text of the answer in progress."""
        return "".join(each["delta"] for each in self.parts if each["type"] == TEXT)

    @property
    def shown(self) -> list[tuple[Any, ...]]:
        return plain(self.items)


def plain(items: Sequence[Any]) -> list[tuple[Any, ...]]:
    """What items say, whatever ids they have."""
    found: list[tuple[Any, ...]] = []
    for item in items:
        kind = item.get("type") or "message"
        if kind == "message":
            found.append((item["role"], text_of(item)))
        else:
            found.append((kind, item["call_id"], item.get("name") or item.get("output")))
    return found


def text_of(item: Any) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def until(condition: Any, seconds: float = 20) -> None:
    """Wait until a condition holds."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "not in time"
        await asyncio.sleep(0.01)


async def ended(runs: SessionRuns, session_id: str = "chat") -> None:
    """Wait until a run does not work any more."""
    info = await runs.get(session_id)
    while info is not None and info.status == "running":
        await asyncio.sleep(0.02)
        info = await runs.get(session_id)

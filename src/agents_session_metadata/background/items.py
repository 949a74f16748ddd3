"""Items and events of answers: what a follower receives, and what is left of a cancelled run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from agents.models.fake_id import FAKE_RESPONSES_ID

Event: TypeAlias = "dict[str, Any]"
Item: TypeAlias = "dict[str, Any]"
Place: TypeAlias = "tuple[int, int]"
"""The index of a message in its answer, and that of a text in the message."""

TEXT = "response.output_text.delta"
SHOWN = frozenset(
    {
        TEXT,
        "response.output_item.added",
        "response.refusal.delta",
        "response.reasoning_text.delta",
        "response.reasoning_summary_text.delta",
        "response.function_call_arguments.delta",
        "response.custom_tool_call_input.delta",
    }
)
"""The events of a model that followers receive."""
BEGINNING: Event = {"type": "response.created"}
"""The first event of each attempt of an answer: an earlier attempt is void."""
_INDEXES = "type", "item_id", "output_index", "content_index", "summary_index"


def add_event(events: list[Event], event: Event) -> None:
    """Adds an event. Consecutive deltas of the same text become one."""
    last: Event = events[-1] if events else {}
    if "delta" in event and all(last.get(name) == event.get(name) for name in _INDEXES):
        events[-1] = {**event, "delta": last["delta"] + event["delta"]}
    else:
        events.append(event)


def add_batch(events: list[Event], batch: Iterable[Event]) -> None:
    """Adds the events of the answer in progress. Those of an attempt that is void go."""
    for event in batch:
        if event == BEGINNING:
            events.clear()
        else:
            add_event(events, event)


# ---- items ----


def key_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Returns what an item has in common in an answer and in the history: they have other ids.

    Items with the same key are told apart by their order.
    """
    kind = str(item.get("type") or "message")
    return kind, str(item.get("call_id") or item.get("role") or "")


def answer_of(step: Any) -> list[Item]:
    """Returns the items of an answer to the run itself, in a recorded step."""
    own = "answer" in step and not step["path"]
    return list(step["answer"]["output"]) if own else []


def has_calls(answer: Iterable[Item]) -> bool:
    """Returns whether an answer is not the last one, which a guardrail can refuse."""
    return any(item.get("call_id") for item in answer)


def unstored(answers: Iterable[Item], stored: Iterable[Item]) -> list[Item]:
    """Returns the items of answers that are not in the history yet."""
    known = Counter(map(key_of, stored))
    found: Counter[tuple[str, str]] = Counter()
    new = []
    for item in answers:
        found[key_of(item)] += 1
        if found[key_of(item)] > known[key_of(item)]:
            new.append(item)
    return new


def texts_of(item: Mapping[str, Any]) -> list[str]:
    """Returns the texts of a message of an assistant."""
    content = item.get("content") if item.get("role") == "assistant" else ()
    parts = [{"text": content}] if isinstance(content, str) else content or ()
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]


def first_message(events: Iterable[Event]) -> int:
    """Returns the index of the first message of the answer in progress."""
    return min(shown_texts(events), default=(0, 0))[0]


def shown_texts(events: Iterable[Event]) -> dict[Place, str]:
    """Returns the texts of the answer in progress."""
    texts: dict[Place, str] = {}
    for event in events:
        if event["type"] == TEXT:
            place = event.get("output_index", 0), event.get("content_index", 0)
            texts[place] = texts.get(place, "") + event["delta"]
    return texts


def rest_of(item: Item, events: list[Event]) -> list[Event]:
    """Returns the texts of a finished message that the events of its answer have not shown.

    Adds them to these events.
    """
    texts, shown = texts_of(item), shown_texts(events)
    message = first_message(events)
    known = [shown.get((message, at), "") for at in range(len(texts))]
    rest: list[Event] = []
    if texts and not (shown and all(map(str.startswith, texts, known))):
        rest, known = [BEGINNING], [""] * len(texts)
    for at, (text, part) in enumerate(zip(texts, known, strict=True)):
        if len(text) > len(part):
            indexes = {"output_index": message, "content_index": at}
            delta = text[len(part) :]
            rest.append({"type": TEXT, "item_id": item.get("id"), **indexes, "delta": delta})
    add_batch(events, rest)
    return rest


# ---- cancelled runs ----


def left_messages(stored: Sequence[Item], steps: Sequence[Any]) -> list[Item]:
    """Returns the texts of answers that the history lacks, as messages that were broken off.

    `stored` has the items since the run began or paused, and `steps` its whole record. Calls
    without an output go, and reasoning with them. With its own id, OpenAI's API requires the
    reasoning before a message. Without an id, models of Chat Completions refuse it.
    """
    answers = [item for step in steps for item in answer_of(step)]
    texts = [texts_of(item) for item in unstored(answers, stored)]
    events: list[Event] = []
    for step in steps:
        add_batch(events, step.get("events", ()))
    by_message: dict[int, list[str]] = {}
    for (message, _), text in sorted(shown_texts(events).items()):
        by_message.setdefault(message, []).append(text)
    return [
        {
            "id": FAKE_RESPONSES_ID,
            "type": "message",
            "role": "assistant",
            "status": "incomplete",
            "content": [{"type": "output_text", "text": text, "annotations": []} for text in each],
        }
        for each in [*texts, *by_message.values()]
        if any(each)
    ]


# ---- encrypted histories ----


class Opener:
    """Decrypts and encrypts items through the wrapper of a session, without a database."""

    session_settings = None

    def __init__(self, session_id: str, wrap: Callable[[Any], Any] | None) -> None:
        self.session_id = session_id
        self._items: list[Any] = []
        self._wrapped: Any = self if wrap is None else wrap(self)

    async def get_items(self, limit: int | None = None, **_: Any) -> list[Any]:  # noqa: ARG002
        return self._items

    async def add_items(self, items: list[Any], **_: Any) -> None:
        self._items = [*self._items, *items]

    async def open(self, rows: Iterable[tuple[int, Item]]) -> list[tuple[int, Item]]:
        """Items that cannot be decrypted are left out."""
        opened = []
        for item_id, item in rows:
            self._items = [item]
            opened += [(item_id, each) for each in await self._wrapped.get_items()]
        return opened

    async def close(self, items: list[Item]) -> list[Any]:
        self._items = []
        await self._wrapped.add_items(items)
        return self._items

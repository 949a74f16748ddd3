"""Events for the followers of a session: a snapshot, and then what happens.

A snapshot has the items after a position, and what is known of the answer in progress. After it,
whatever the run records is an event. Its lease is known by the token: when that changes, the answer
in progress is void, and another snapshot replaces the first one.

Messages and calls are shown as soon as their answer is recorded. Outputs, and a last answer, come
from the history, because guardrails can refuse them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from agents_session_metadata.runs.approvals import load_error, load_pending
from agents_session_metadata.runs.claim import Settings
from agents_session_metadata.runs.feature import CANCELLED, FAILED, INTERRUPTED, RUNNING, WAITING

from .items import (
    Event,
    Item,
    Opener,
    add_batch,
    answer_of,
    first_message,
    has_calls,
    key_of,
    rest_of,
    texts_of,
    unstored,
)
from .polls import News, Position, polls_of

_SHORT, _USUAL, _LONG = 0.1, 0.25, 1.0
"""Seconds between two looks: if a run shows something, while it works, and otherwise."""


class Follower:
    """Follows one session. `after` is the id of the item after which a snapshot begins."""

    def __init__(self, settings: Settings, session_id: str, after: int | None, wrap: Any) -> None:
        self._at = Position(settings.store, session_id, item=after)
        self._polls = polls_of(settings.store.database)
        self._encryption = settings.encryption
        self._opener = Opener(session_id, wrap)
        self._is_asked = after is not None
        """Whether the history is shown without a run."""
        self._count = 0
        """The number of items after the last write of the run."""
        self._recorded: Counter[Any] = Counter()
        """Items that were shown before they are in the history, by key."""
        self._partial: list[Event] = []

    async def events(self, *, forever: bool) -> AsyncGenerator[Event, None]:
        at, delay = self._at, 0.0
        while True:
            found = await self._next(await self._polls.ask(at, delay))
            for event in found:
                yield event
            if at.status not in (RUNNING, INTERRUPTED) and not forever:
                return
            longest = _USUAL if at.status == RUNNING else _LONG
            delay = _SHORT if found else max(_SHORT, min(longest, 1.5 * delay))

    async def _next(self, found: News | None) -> list[Event]:
        at, before = self._at, self._at.status
        if found is None:
            self._forget()
            at.item = at.item or 0
            return [_status("ended")] if before else []
        head = found.head
        if at.is_over(found):
            return await self._end(found)
        if head is None:
            at.item = found.newest if at.item is None else at.item
            new = [row for row in found.items if row[0] > at.item]
            is_asked, self._is_asked = self._is_asked, False
            return [await self._history(at.item, new)] if new or is_asked else []
        if head.token != at.token:
            return [await self._snapshot(found), *self._changed(head, RUNNING)]
        new = [row for row in found.items if (at.item or 0) < row[0] <= head.last_item]
        is_same = found.progress.items == self._count + len(new)
        if not is_same or head.status == RUNNING != before:
            # Others have changed the history, or the run has replaced it. It is shown anew.
            at.token, at.status = "", RUNNING
            return []
        steps = [text for number, text in found.steps if number > at.number]
        answers = [answer_of(self._encryption.load(text)) for text in steps]
        finished = list(chain.from_iterable(filter(has_calls, answers)))
        events = list(self._new(await self._open(new), finished))
        if finished:
            self._partial.clear()
        for answer in answers:
            if not (has_calls(answer) or new):
                # Its text was shown as it was written. It becomes an item when it is stored.
                message = next(filter(texts_of, answer), {})
                events += rest_of(message, self._partial)
        return [*events, *self._show(found), *self._changed(head, before)]

    def _forget(self) -> None:
        at = self._at
        at.run_id, at.token, at.status, at.number, at.batch = None, "", "", -1, 0
        self._recorded.clear()
        self._partial.clear()

    def _show(self, found: News) -> list[Event]:
        """Moves to the end of what was found, and returns the events of the answer in progress."""
        at, events = self._at, list[Event]()
        for number, text in found.batches:
            if number < at.batch:
                at.batch = number
                events += self._encryption.load(text)["events"]
        at.number = max([at.number, *(number for number, _ in found.steps)])
        at.run_id, at.token, at.status = found.head.run_id, found.head.token, found.head.status
        self._count = found.progress.items
        add_batch(self._partial, events)
        return events

    # ---- snapshots ----

    async def _snapshot(self, found: News) -> Event:
        """Shows the run as it is now."""
        at, since, last = self._at, self._at.since(found) or 0, found.head.last_item
        history = await self._open([row for row in found.items if since < row[0] <= last])
        part = [item for item_id, item in history if item_id > found.progress.base]
        answers: list[list[Item]] = []
        for _, text in found.steps:
            step = self._encryption.load(text)
            # What came before the run has replaced the history is in it.
            answers = [] if "base" in step else [*answers, answer_of(step)]
        recorded = unstored(chain.from_iterable(filter(has_calls, answers)), part)
        self._forget()
        self._recorded.update(map(key_of, recorded))
        self._show(found)
        at.item, self._is_asked = last, False
        return self._whole(since, [*history, *((None, item) for item in recorded)])

    def _whole(self, since: int, items: Sequence[tuple[int | None, Item]]) -> Event:
        return {
            "type": "snapshot",
            "after": since or None,
            "items": [item for _, item in items],
            "item_ids": [item_id for item_id, _ in items],
            "events": list(self._partial),
        }

    async def _history(self, since: int, rows: Sequence[tuple[int, str]]) -> Event:
        """Shows what the history has, without a run."""
        self._at.item = max([since, *(item_id for item_id, _ in rows)])
        return self._whole(since, await self._open(rows))

    # ---- what happens ----

    def _new(
        self, history: Iterable[tuple[int, Item]], answers: Iterable[Item] = ()
    ) -> Iterator[Event]:
        """Yields new items of the history, and then items of answers that it does not have yet."""
        found = []
        for item_id, item in history:
            self._at.item = max(self._at.item or 0, item_id)
            if self._recorded[key_of(item)]:
                self._recorded[key_of(item)] -= 1
            else:
                found.append(item)
                yield from self._item(item, item_id)
        for item in unstored(answers, found):
            self._recorded[key_of(item)] += 1
            yield from self._item(item, None)

    def _item(self, item: Item, item_id: int | None) -> Iterator[Event]:
        yield from rest_of(item, self._partial)
        message = first_message(self._partial) if texts_of(item) else -1
        self._partial = [each for each in self._partial if each.get("output_index", 0) > message]
        yield {"type": "item", "item": item, "item_id": item_id}

    async def _end(self, found: News) -> list[Event]:
        """Shows the end of a run that is not there any more."""
        at, before = self._at, self._at.status
        known, end = at.item or 0, found.ends.get(at.run_id or "")
        was_cancelled = end is not None and end.status == CANCELLED
        outcome = {} if end is None or was_cancelled else self._encryption.load(end.outcome)
        last = outcome.get("last") if found.head is None else found.progress.first
        rows = [row for row in found.items if last is None or row[0] <= last]
        if was_cancelled or not known or any(item_id == known for item_id, _ in rows):
            new = await self._open([row for row in rows if row[0] > known])
            events = list(self._new(new))
            self._forget()
        else:  # The history was replaced.
            self._forget()
            at.item = 0
            whole = await self._polls.ask(at, 0)
            events = [] if whole is None else [await self._history(0, whole.items)]
        # The end of a failed run was shown before another one replaced it.
        if before == FAILED:
            return events
        if end is None or was_cancelled:
            return [*events, _status("ended" if end is None else CANCELLED)]
        if "output" in outcome:
            return [*events, _status("finished", output=outcome["output"])]
        return [*events, _status(FAILED, error=_error(outcome.get("error")))]

    # ---- statuses ----

    def _changed(self, head: Any, before: str) -> list[Event]:
        """Returns the status of a run, if it is another one."""
        if head.status == before:
            return []
        more: Event = {}
        if head.status == WAITING:
            names = "call_id", "tool", "arguments", "agent"
            calls = load_pending(head.pending, self._encryption)
            more["pending"] = [{name: getattr(call, name) for name in names} for call in calls]
        if head.status == FAILED:
            more["error"] = _error(load_error(head.error, self._encryption))
        return [_status(head.status, **more)]

    async def _open(self, rows: Iterable[tuple[int, str]]) -> list[tuple[int, Item]]:
        items = []
        for item_id, text in rows:
            with suppress(ValueError):  # As in the SDK.
                items.append((item_id, json.loads(text)))
        return await self._opener.open(items)


def _status(status: str, **more: Any) -> Event:
    return {"type": "status", "status": status, **more}


def _error(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    kind, _, message = text.partition(": ")
    return {"type": kind, "message": message}

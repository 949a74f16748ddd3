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
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from agents_session_metadata.runs.approvals import load_error, load_pending
from agents_session_metadata.runs.feature import CANCELLED, FAILED, INTERRUPTED, RUNNING, WAITING
from agents_session_metadata.runs.record import Encryption, Progress
from agents_session_metadata.scope import ScopedStore

from .items import Event, Item, add_batch, answer_of, has_calls, key_of, rest_of, unstored
from .polls import NO_BATCH, NO_STEP, News, Question, Rows, Run, polls_of

USUAL, LONG = 0.25, 1.0
"""Seconds between two looks at a run that shows nothing: while it works, and otherwise."""
_SHORT = 0.1
"""Seconds between two looks at a run that shows something."""


class FixedSession:
    """A session that has some items, for a wrapper that decrypts or encrypts them."""

    session_settings = None

    def __init__(self, session_id: str, items: list[Any]) -> None:
        self.session_id = session_id
        self.items: list[Any] = items

    async def get_items(self, limit: int | None = None, **_: Any) -> list[Any]:  # noqa: ARG002
        return self.items

    async def add_items(self, items: list[Any], **_: Any) -> None:
        self.items = [*self.items, *items]


class Opener:
    """Reads the items of a history through the wrapper of its session."""

    def __init__(self, session_id: str, wrap: Callable[[Any], Any] | None) -> None:
        self._stored = FixedSession(session_id, [])
        self._session = None if wrap is None else wrap(self._stored)

    async def open(self, rows: Sequence[tuple[int, Item]]) -> list[tuple[int, Item]]:
        """Items that cannot be decrypted are left out."""
        if self._session is None:
            return list(rows)
        opened = []
        for item_id, item in rows:
            self._stored.items = [item]
            opened += [(item_id, each) for each in await self._session.get_items()]
        return opened


class Follower:
    """Follows one session. `after` is the id of the item after which a snapshot begins."""

    def __init__(
        self,
        store: ScopedStore,
        encryption: Encryption,
        session_id: str,
        after: int | None,
        wrap: Callable[[Any], Any] | None,
    ) -> None:
        self._session = store, session_id
        self._polls = polls_of(store.database)
        self._encryption = encryption
        self._opener = Opener(session_id, wrap)
        self._after = after
        self._run: Run | None = None
        self._newest = -1
        self._forget()

    def _forget(self) -> None:
        self._number, self._batch, self._count = NO_STEP, NO_BATCH, 0
        self._shown: Counter[Any] = Counter()
        """Items of this part of the run that were shown."""
        self._stored: Counter[Any] = Counter()
        """Those of them that are in the history."""
        self._partial: list[Event] = []

    async def events(self, *, forever: bool) -> AsyncGenerator[Event, None]:
        found, delay = await self._snapshot(), _SHORT
        while True:
            for event in found:
                yield event
            status = None if self._run is None else self._run[2]
            if status not in (RUNNING, INTERRUPTED) and not forever:
                return
            delay = _SHORT if found else min(USUAL if status == RUNNING else LONG, 1.5 * delay)
            run, number, batch, item = self._run, self._number, self._batch, self._newest
            question = Question(*self._session, run, number, batch, item)
            found = await self._next(await self._polls.ask(question, delay))

    async def _next(self, found: News) -> list[Event]:
        head, run, known = found.head, self._run, self._newest
        if run is None:
            if head is not None:
                return await self._snapshot()
            new = [row for row in found.items if row[0] > known]
            return [await self._history(known, new)] if new else []
        if head is None or head.run_id != run[0]:
            return await self._end(found)
        new = [row for row in found.items if row[0] > known]
        progress = Progress.load(head.progress)
        # If others have changed the history, or the run has replaced it, it is shown anew.
        is_same = progress.items == self._count + len(new)
        if head.token != run[1] or not is_same or head.status == RUNNING != run[2]:
            return await self._snapshot()
        self._count = progress.items
        answers = [answer_of(self._encryption.load(text)) for _, text in found.steps]
        events = list(self._walk(await self._open(new), list(filter(has_calls, answers))))
        for _, text in found.batches:
            batch = self._encryption.load(text)["events"]
            add_batch(self._partial, batch)
            events += batch
        self._move(found)
        if head.status != run[2]:
            events.append(self._status(head))
        self._run = found.run
        return events

    def _move(self, found: News) -> None:
        self._number = max([self._number, *(number for number, _ in found.steps)])
        self._batch = min([self._batch, *(number for number, _ in found.batches)])

    # ---- snapshots ----

    async def _snapshot(self) -> list[Event]:
        """Shows the run as it is now, or the history without one if `after` was given."""
        whole = Question(*self._session, self._run, -1, 0, self._after, is_first=True)
        found = await self._polls.ask(whole, 0)
        head, before = found.head, self._run
        if before is not None and (head is None or head.run_id != before[0]):
            question = Question(*self._session, before, item=self._newest)
            return await self._end(await self._polls.ask(question, 0))
        self._forget()
        self._run, since = found.run, found.since or 0
        new = [row for row in found.items if row[0] > since]
        if head is None:
            asked, self._after = self._after is not None and found.is_there, None
            # A run that has ended meanwhile is shown by the next look at the history.
            self._newest = found.newest if self._newest < 0 else self._newest
            return [await self._history(since, new)] if asked else []
        self._after, self._newest = None, head.last_item
        self._number, self._batch = -1, 0
        self._move(found)
        progress = Progress.load(head.progress)
        self._count = progress.items
        history = await self._open(new)
        part = [item for item_id, item in history if item_id > progress.base]
        answers: list[list[Item]] = []
        for _, text in found.steps:
            step = self._encryption.load(text)
            # What came before the run has replaced the history is in it.
            answers = [] if "base" in step else [*answers, answer_of(step)]
        calls = [item for answer in filter(has_calls, answers) for item in answer]
        recorded = unstored(calls, part)
        self._stored.update(map(key_of, part))
        self._shown.update(map(key_of, [*part, *recorded]))
        for _, text in found.batches:
            add_batch(self._partial, self._encryption.load(text)["events"])
        events = [self._whole(since, history, recorded)]
        return events if head.status == RUNNING else [*events, self._status(head)]

    def _whole(
        self, since: int, history: Sequence[tuple[int, Item]], recorded: Sequence[Item] = ()
    ) -> Event:
        return {
            "type": "snapshot",
            "after": since or None,
            "items": [*(item for _, item in history), *recorded],
            "item_ids": [*(item_id for item_id, _ in history), *(None for _ in recorded)],
            "events": list(self._partial),
        }

    async def _history(self, since: int, rows: Rows) -> Event:
        """Shows what the history has, without a run."""
        self._newest = max([self._newest, *(item_id for item_id, _ in rows)])
        return self._whole(since, await self._open(rows))

    # ---- what happens ----

    def _walk(
        self, history: Sequence[tuple[int, Item]], answers: list[list[Item]]
    ) -> Iterator[Event]:
        """Yields new items of the history, and of answers, in the order of the history."""
        for item_id, item in history:
            key = key_of(item)
            self._newest = max(self._newest, item_id)
            self._stored[key] += 1
            while self._is_new(key) and any(key == key_of(each) for one in answers for each in one):
                yield from self._answer(answers.pop(0))
            if self._is_new(key):
                yield from self._item(item, item_id)
        for answer in answers:
            yield from self._answer(answer)

    def _is_new(self, key: Any) -> bool:
        return self._stored[key] > self._shown[key]

    def _answer(self, answer: Sequence[Item]) -> Iterator[Event]:
        for item in answer:
            yield from self._item(item, None)
        self._partial.clear()

    def _item(self, item: Item, item_id: int | None) -> Iterator[Event]:
        self._shown[key_of(item)] += 1
        yield from rest_of(item, self._partial)
        yield {"type": "item", "item": item, "item_id": item_id}

    async def _end(self, found: News) -> list[Event]:
        """Shows the end of a run that is not there any more."""
        assert self._run is not None  # noqa: S101  # for type checkers
        status, known, self._run = self._run[2], self._newest, None
        if not found.is_there:
            return [{"type": "status", "status": "ended"}]
        first = None if found.head is None else Progress.load(found.head.progress).first
        rows = [row for row in found.items if first is None or row[0] <= first]
        was_cancelled = found.end is not None and found.end.status == CANCELLED
        if was_cancelled or not known or any(item_id == known for item_id, _ in rows):
            new = await self._open([row for row in rows if row[0] > known])
            events = list(self._walk(new, []))
            self._forget()
        else:  # The history was replaced.
            self._forget()
            whole = await self._polls.ask(Question(*self._session, item=0), 0)
            events = [await self._history(0, whole.items)]
        # The end of a failed run was shown before another one replaced it.
        return events if status == FAILED else [*events, self._outcome(found.end)]

    # ---- statuses ----

    def _outcome(self, row: Any) -> Event:
        event: Event = {"type": "status", "status": "ended"}
        if row is None:
            return event
        if row.status == CANCELLED:
            return {**event, "status": CANCELLED}
        outcome = self._encryption.load(row.outcome)
        if "output" in outcome:
            return {**event, "status": "finished", "output": outcome["output"]}
        return {**event, "status": FAILED, "error": _error(outcome.get("error"))}

    def _status(self, head: Any) -> Event:
        event: Event = {"type": "status", "status": head.status}
        if head.status == WAITING:
            names = "call_id", "tool", "arguments", "agent"
            calls = load_pending(head.pending, self._encryption)
            event["pending"] = [{name: getattr(call, name) for name in names} for call in calls]
        if head.status == FAILED:
            event["error"] = _error(load_error(head.error, self._encryption))
        return event

    async def _open(self, rows: Rows) -> list[tuple[int, Item]]:
        items = []
        for item_id, text in rows:
            with suppress(ValueError):  # As in the SDK.
                items.append((item_id, json.loads(text)))
        return await self._opener.open(items)


def _error(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    kind, _, message = text.partition(": ")
    return {"type": kind, "message": message}

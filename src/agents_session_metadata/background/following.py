"""What a follower of a session receives: a snapshot, and then what happens.

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
from typing import Any

from sqlalchemy import Connection, func, select

from agents_session_metadata.core.database import settle
from agents_session_metadata.core.messages import UNREADABLE, newest_id, read_history
from agents_session_metadata.errors import TablesMissingError
from agents_session_metadata.runs.approvals import load_error, load_pending
from agents_session_metadata.runs.feature import (
    CANCELLED,
    FAILED,
    INTERRUPTED,
    RUNNING,
    RUNS,
    WAITING,
    keys_table,
)
from agents_session_metadata.runs.record import Encryption, Progress
from agents_session_metadata.scope import ScopedStore

from .items import (
    Event,
    Item,
    add_batch,
    answer_of,
    has_calls,
    key_of,
    rest_of,
    unstored,
)
from .polls import NO_BATCH, NO_STEP, Found, Question, polls_of, read_runs, run_of

USUAL, LONG = 0.25, 1.0
"""Seconds between two looks at a run that shows nothing: while it works, and otherwise."""
_SHORT = 0.1
"""Seconds between two looks at a run that shows something."""
_GOES_ON = (RUNNING, INTERRUPTED)


class FixedSession:
    """A session that has some items, for a wrapper that decrypts or encrypts them."""

    session_settings = None

    def __init__(self, session_id: str, items: list[Any]) -> None:
        self.session_id = session_id
        self.items = items

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
        self._store, self._encryption, self._session_id = store, encryption, session_id
        self._database = store.database
        self._opener = Opener(session_id, wrap)
        self._after = after
        self._run: tuple[str, str, str] | None = None
        self._newest = 0 if after is None else after
        self._forget()

    def _forget(self) -> None:
        self._number, self._batch, self._count = NO_STEP, NO_BATCH, 0
        self._shown: Counter[Any] = Counter()
        """Items of this part of the run that were shown."""
        self._stored: Counter[Any] = Counter()
        """Those of them that are in the history."""
        self._partial: list[Event] = []

    async def events(self, *, forever: bool) -> AsyncGenerator[Event, None]:
        polls = polls_of(self._database)
        found, delay = await self._snapshot(), _SHORT
        while True:
            for event in found:
                yield event
            has_ended = self._run is None or self._run[2] not in _GOES_ON
            if has_ended and not forever:
                return
            most = USUAL if self._run is not None and self._run[2] == RUNNING else LONG
            delay = _SHORT if found else min(most, 1.5 * delay)
            own = self._store, self._session_id, self._run
            question = Question(*own, self._number, self._batch, self._newest)
            found = await self._next(await polls.ask(question, delay))

    async def _next(self, found: Found) -> list[Event]:
        head, run = found.head, self._run
        if run is None:
            if head is not None:
                return await self._snapshot()
            return await self._history(found.items)
        if head is None or head.run_id != run[0]:
            return await self._end()
        progress = Progress.load(head.progress)
        # If others have changed the history, or the run has replaced it, it is shown anew.
        is_same = progress.items == self._count + len(found.items)
        if head.token != run[1] or not is_same or (head.status == RUNNING != run[2]):
            return await self._snapshot()
        self._count = progress.items
        answers = [answer_of(self._load(text)) for _, text in found.steps]
        events = list(self._walk(await self._open(found.items), list(filter(has_calls, answers))))
        self._number = max([self._number, *(number for number, _ in found.steps)])
        for number, text in found.batches:
            batch = self._load(text)["events"]
            add_batch(self._partial, batch)
            events += batch
            self._batch = number
        if head.status != run[2]:
            events.append(self._status(head))
        self._run = run_of(head)
        return events

    # ---- snapshots ----

    async def _snapshot(self) -> list[Event]:
        """Shows the run as it is now, or the history without one if `after` was given."""

        def read(connection: Connection) -> Any:
            if not self._store.finds(connection, self._session_id):
                return None
            rows: list[Any] = []
            if self._database.has_tables(connection, RUNS):
                question = Question(self._store, self._session_id, None, -1, 0, 0)
                rows = read_runs(self._database, connection, [question]).get(self._session_id, [])
            newest = newest_id(self._database, connection, self._session_id)
            if not rows:
                shown = [] if self._after is None else self._items(connection, self._after)
                return rows, [], newest, shown, self._after
            steps = [(row.number, self._load(row.value)) for row in rows if row.value is not None]
            is_replaced = any("base" in step for _, step in steps)
            first = Progress.load(rows[0].progress).first
            begin = first if self._after is None else min(first, self._after)
            begin = 0 if is_replaced else begin
            return rows, steps, newest, self._items(connection, begin), begin

        found = await self._read(read)
        run_id = found[0][0].run_id if found is not None and found[0] else None
        if self._run is not None and self._run[0] != run_id:
            return await self._end()
        self._forget()
        if found is None or (run_id is None and self._after is None):
            self._newest = self._newest if found is None else found[2]
            return []
        rows, steps, self._newest, stored, begin = found
        self._after = None
        history = await self._opener.open(stored)
        if not rows:
            return [self._shown_items(begin, history, [])]
        head, progress = rows[0], Progress.load(rows[0].progress)
        self._run, self._count = run_of(head), progress.items
        part = [item for item_id, item in history if item_id > progress.base]
        numbers = [number for number, _ in steps]
        self._number, self._batch = max([-1, *numbers]), min([0, *numbers])
        replaced = max([-1, *(number for number, step in steps if "base" in step)])
        answers = [answer_of(step) for number, step in steps if number > replaced]
        calls = [item for answer in filter(has_calls, answers) for item in answer]
        new = unstored(calls, part)
        self._stored.update(map(key_of, part))
        self._shown.update(map(key_of, [*part, *new]))
        for _, step in sorted((each for each in steps if each[0] < 0), reverse=True):
            add_batch(self._partial, step["events"])
        events = [self._shown_items(begin, history, new)]
        return [*events, self._status(head)] if head.status != RUNNING else events

    def _shown_items(
        self, begin: int | None, history: Sequence[tuple[int, Item]], new: Sequence[Item]
    ) -> Event:
        return {
            "type": "snapshot",
            "after": begin or None,
            "items": [*(item for _, item in history), *new],
            "item_ids": [*(item_id for item_id, _ in history), *(None for _ in new)],
            "events": list(self._partial),
        }

    async def _history(self, rows: Sequence[tuple[int, str]]) -> list[Event]:
        """Shows what was added while no run was seen."""
        if not rows:
            return []
        event = self._shown_items(self._newest, await self._open(rows), [])
        self._newest = max(item_id for item_id, _ in rows)
        return [event]

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

    async def _end(self) -> list[Event]:
        """Shows the end of a run that is not there any more."""
        assert self._run is not None  # noqa: S101  # for type checkers
        run_id, _, status = self._run

        def read(connection: Connection) -> Any:
            if not self._store.finds(connection, self._session_id):
                return None
            question = Question(self._store, self._session_id, None, NO_STEP, NO_BATCH, 0)
            rows = read_runs(self._database, connection, [question]).get(self._session_id)
            keys = keys_table(self._database.tables)
            own = keys.c.session_id == self._session_id, keys.c.run_id == run_id
            outcome = connection.execute(select(keys.c.status, keys.c.outcome).where(*own)).first()
            messages = self._database.tables.messages
            known = messages.c.session_id == self._session_id, messages.c.id <= self._newest
            count = connection.scalar(select(func.count()).where(*known))
            is_same = count == self._count or (outcome is not None and outcome.status == CANCELLED)
            items = self._items(connection, self._newest if is_same else 0)
            # Only up to the next run.
            last = Progress.load(rows[0].progress).first if rows else None
            return outcome, is_same, [each for each in items if last is None or each[0] <= last]

        found = await self._read(read)
        self._run = None
        if found is None:
            return [{"type": "status", "status": "ended"}]
        outcome, is_same, items = found
        opened = await self._opener.open(items)
        if is_same:
            events = list(self._walk(opened, []))
        else:  # The history was replaced.
            self._partial.clear()
            events = [self._shown_items(None, opened, [])]
        self._newest = max([self._newest, *(item_id for item_id, _ in items)])
        self._forget()
        # The end of a failed run was shown before another one replaced it.
        return events if status == FAILED else [*events, self._outcome(outcome)]

    # ---- statuses ----

    def _outcome(self, row: Any) -> Event:
        event: Event = {"type": "status", "status": "ended"}
        if row is None:
            return event
        if row.status == CANCELLED:
            return {**event, "status": CANCELLED}
        outcome = self._load(row.outcome)
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

    # ---- reading ----

    async def _read(self, read: Callable[[Connection], Any]) -> Any:
        """A follower that leaves in the middle of a read would break its connection."""
        try:
            return await settle(self._database.read_snapshot(read))
        except TablesMissingError as error:
            if self._database.names.metadata not in error.tables:
                raise
            return None  # Nothing of this package was ever used.

    def _items(self, connection: Connection, after: int) -> list[tuple[int, Any]]:
        found = read_history(self._database, connection, self._session_id, after=after)
        return [(each.item_id, each.item) for each in found if each.item is not UNREADABLE]

    async def _open(self, rows: Sequence[tuple[int, str]]) -> list[tuple[int, Item]]:
        items = []
        for item_id, text in rows:
            try:
                items.append((item_id, json.loads(text)))
            except ValueError:  # noqa: PERF203  # the SDK skips such rows, which are few
                continue
        return await self._opener.open(items)

    def _load(self, text: str) -> Any:
        return self._encryption.load(text)


def _error(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    kind, _, message = text.partition(": ")
    return {"type": kind, "message": message}

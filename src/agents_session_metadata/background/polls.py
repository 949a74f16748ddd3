"""Polls that all followers share that one event loop has in one set of tables.

A poll is one statement for the runs of all sessions that are due, with what their followers have
not seen of their records. Two more follow if there are new items, and if something is shown within
a scope: a session is shown only to followers whose own scope contains it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any
from weakref import WeakValueDictionary

from sqlalchemy import BigInteger, Connection, Integer, Select, and_, bindparam, case, or_, select

from agents_session_metadata.core.database import Database, settle
from agents_session_metadata.core.messages import in_order
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.query.logic import AnyOf
from agents_session_metadata.runs.feature import FAILED, RUNS, WAITING, status_of
from agents_session_metadata.scope import ScopedStore

TICK = 0.1
"""Seconds between two polls, at least."""
_AT_ONCE = 64
"""The most sessions of one statement."""
NO_STEP, NO_BATCH = 2**31 - 1, -(2**31)
"""Positions after which there is nothing."""


@dataclass(frozen=True)
class Question:
    """What a follower has seen of a session.

    Attributes:
        store: The store whose scope it has.
        session_id: The session.
        run: The run, its lease and its status; None between two runs.
        number: The number of the last step.
        batch: The number of the last batch of events. These numbers fall.
        item: The id of the newest item.
    """

    store: ScopedStore
    session_id: str
    run: tuple[str, str, str] | None
    number: int
    batch: int
    item: int

    @property
    def scope(self) -> str:
        return json.dumps(self.store.condition(None).encoded())


@dataclass
class Found:
    """What is new in a session.

    Attributes:
        head: The row of its run; None without one, or outside the scope.
        steps: Numbers and texts of new steps.
        batches: The same of new batches of events, oldest first.
        items: Ids and texts of new items; those of a run up to its last write.
    """

    head: Any = None
    steps: list[tuple[int, str]] = field(default_factory=list)
    batches: list[tuple[int, str]] = field(default_factory=list)
    items: list[tuple[int, str]] = field(default_factory=list)

    def is_beyond(self, item: int) -> bool:
        return self.head is not None and self.head.last_item > item

    def is_news(self, question: Question) -> bool:
        return bool(run_of(self.head) != question.run or self.steps or self.batches or self.items)


def run_of(head: Any) -> tuple[str, str, str] | None:
    return None if head is None else (head.run_id, head.token, head.status)


# ---- statements ----


@lru_cache(maxsize=256)
def _heads(tables: SessionTables, dialect: Dialect, count: int) -> Select[Any]:
    """The runs of some sessions, each with the steps and batches after a position of its own."""
    runs, steps, _, _ = tables.group(RUNS).tables
    own = [bindparam(f"session_{at}", type_=runs.c.session_id.type) for at in range(count)]
    new = [
        and_(
            steps.c.session_id == session,
            or_(
                steps.c.number > bindparam(f"number_{at}", type_=Integer),
                steps.c.number < bindparam(f"batch_{at}", type_=Integer),
            ),
        )
        for at, session in enumerate(own)
    ]
    columns = runs.c.session_id, runs.c.run_id, runs.c.token, runs.c.progress, runs.c.last_item
    shown: Any = select(
        *columns,
        status_of(runs, dialect).label("status"),
        # Texts that only some statuses show are not sent with the others.
        case((runs.c.status == WAITING, runs.c.pending)).label("pending"),
        case((runs.c.status == FAILED, runs.c.error)).label("error"),
        steps.c.number,
        steps.c.value,
    )
    joined = runs.outerjoin(steps, and_(steps.c.session_id == runs.c.session_id, or_(*new)))
    found: Select[Any] = shown.select_from(joined).where(runs.c.session_id.in_(own))
    return found.order_by(steps.c.number)


@lru_cache(maxsize=256)
def _items(tables: SessionTables, count: int) -> Select[Any]:
    """The items of some sessions, each after a position of its own."""
    messages = tables.messages
    new = [
        and_(
            messages.c.session_id == bindparam(f"session_{at}", type_=messages.c.session_id.type),
            messages.c.id > bindparam(f"item_{at}", type_=BigInteger),
        )
        for at in range(count)
    ]
    columns = messages.c.session_id, messages.c.id, messages.c.message_data
    found: Any = select(*columns)
    return found.where(or_(*new)).order_by(*in_order(messages))  # type: ignore[no-any-return]


def _execute(connection: Connection, make: Any, positions: Sequence[dict[str, Any]]) -> list[Any]:
    """Executes a statement for some positions. Those of the last one fill the rest of it."""
    rows: list[Any] = []
    for start in range(0, len(positions), _AT_ONCE):
        some = positions[start : start + _AT_ONCE]
        count = 1 << (len(some) - 1).bit_length()  # So there are few statements to prepare.
        filled = [*some, *([some[-1]] * (count - len(some)))]
        values = {
            f"{name}_{at}": value
            for at, position in enumerate(filled)
            for name, value in position.items()
        }
        rows += connection.execute(make(count), values)
    return rows


def read_runs(
    database: Database, connection: Connection, questions: Iterable[Question]
) -> dict[str, list[Any]]:
    """Returns the rows of runs, with their new steps and batches, by session."""
    positions: dict[str, dict[str, Any]] = {}
    for each in questions:
        own = {"session": each.session_id, "number": each.number, "batch": each.batch}
        known = positions.setdefault(each.session_id, own)
        known["number"] = min(known["number"], each.number)
        known["batch"] = max(known["batch"], each.batch)
    make = partial(_heads, database.tables, database.dialect)
    rows: dict[str, list[Any]] = {}
    for row in _execute(connection, make, list(positions.values())):
        rows.setdefault(row.session_id, []).append(row)
    return rows


def _read_items(
    database: Database, connection: Connection, questions: Iterable[Question]
) -> dict[str, list[Any]]:
    positions: dict[str, dict[str, Any]] = {}
    for each in questions:
        known = positions.setdefault(
            each.session_id, {"session": each.session_id, "item": each.item}
        )
        known["item"] = min(known["item"], each.item)
    rows: dict[str, list[Any]] = {}
    for row in _execute(connection, partial(_items, database.tables), list(positions.values())):
        rows.setdefault(row.session_id, []).append(row)
    return rows


def _admitted(connection: Connection, questions: Iterable[Question]) -> set[tuple[str, str]]:
    """Returns the pairs of a scope and a session in it."""
    left = {(each.scope, each.session_id): each.store for each in questions}
    found: set[tuple[str, str]] = set()
    while left:
        chosen: dict[str, str] = {}  # One scope per session and statement.
        by_scope: dict[str, list[str]] = {}
        for scope, session_id in list(left)[:_AT_ONCE]:
            if chosen.setdefault(session_id, scope) == scope:
                by_scope.setdefault(scope, []).append(session_id)
        store: Any = None
        parts = []
        for scope, ids in by_scope.items():
            store = left[scope, ids[0]]
            parts.append(store.condition({"$session_id": {"$in": ids}}))
        sessions = store.database.tables.sessions
        asked = select(sessions.c.session_id)
        rows = connection.execute(
            *store.queries.where(asked, AnyOf(tuple(parts)), sessions.c.session_id)
        )
        found |= {(chosen[row[0]], row[0]) for row in rows if row[0] in chosen}
        for session_id, scope in chosen.items():
            del left[scope, session_id]
    return found


def read_all(
    database: Database, connection: Connection, questions: Sequence[Question]
) -> list[Found]:
    """Answers each question."""
    runs = read_runs(database, connection, questions)
    answers = [(each, _found(each, runs.get(each.session_id, ()))) for each in questions]
    moved = [each for each, found in answers if each.run is None or found.is_beyond(each.item)]
    items = _read_items(database, connection, moved) if moved else {}
    for each, found in answers:
        # Only what the run had written when its record was read, so that both fit.
        found.items = [
            (row.id, row.message_data)
            for row in items.get(each.session_id, ())
            if row.id > each.item and (found.head is None or row.id <= found.head.last_item)
        ]
    shown = [each for each, found in answers if found.is_news(each) and each.store.is_restricted]
    admitted = _admitted(connection, shown) if shown else set()
    return [
        found
        if not (each.store.is_restricted and found.is_news(each))
        or (each.scope, each.session_id) in admitted
        else Found()
        for each, found in answers
    ]


def _found(question: Question, rows: Sequence[Any]) -> Found:
    new = [(row.number, row.value) for row in rows if row.number is not None]
    return Found(
        rows[0] if rows else None,
        [each for each in new if each[0] > question.number],
        [each for each in reversed(new) if each[0] < question.batch],
    )


# ---- polls ----


class Polls:
    """The polls of one event loop in one set of tables. Use `polls_of`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: dict[asyncio.Future[Found], tuple[float, Question]] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last = 0.0

    async def ask(self, question: Question, delay: float) -> Found:
        """Answers a question after a delay, in seconds, with those of other followers."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Found] = loop.create_future()
        self._waiting[answer] = loop.time() + delay, question
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        try:
            return await answer
        finally:
            self._waiting.pop(answer, None)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            due = max(min(at for at, _ in self._waiting.values()), self._last + TICK)
            if (left := due - loop.time()) > 0:
                self._changed.clear()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), left)
                continue
            self._last = loop.time()
            latest = self._last + TICK / 2
            chosen = {answer: each for answer, (at, each) in self._waiting.items() if at <= latest}
            try:
                found = await settle(self._read(list(chosen.values())))
            except Exception as error:  # noqa: BLE001  # raised by each follower
                for answer in chosen:
                    if not answer.done():
                        answer.set_exception(error)
            else:
                for answer, each in zip(chosen, found, strict=True):
                    if not answer.done():
                        answer.set_result(each)
            for answer in chosen:
                self._waiting.pop(answer, None)

    async def _read(self, questions: list[Question]) -> list[Found]:
        def read(connection: Connection) -> list[Found]:
            return read_all(self._database, connection, questions)

        return await self._database.read_used(RUNS, read, [Found() for _ in questions])


_polls: WeakValueDictionary[tuple[Any, ...], Polls] = WeakValueDictionary()


def polls_of(database: Database) -> Polls:
    """Returns the polls of the running event loop. They live as long as a follower has them."""
    loop = asyncio.get_running_loop()
    place = id(database.engine.sync_engine), database.names, id(loop)
    return _polls.setdefault(place, Polls(database))

"""Polls that all followers share that one event loop has in one set of tables.

A poll reads the runs of all sessions that are due, with what their followers have not seen of their
records, in one statement. Others follow if there are new items, if a run has ended, and to check
scopes: a session is shown only to followers whose own scope contains it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    func,
    or_,
    select,
)

from agents_session_metadata.core.database import Database, settle
from agents_session_metadata.core.messages import in_order
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.errors import TablesMissingError
from agents_session_metadata.query.logic import AnyOf
from agents_session_metadata.runs.feature import FAILED, RUNS, WAITING, keys_table, status_of
from agents_session_metadata.runs.record import Progress
from agents_session_metadata.scope import ScopedStore

TICK = 0.1
"""Seconds between two polls, at least."""
_AT_ONCE = 128
"""The most sessions of one statement."""
NO_STEP, NO_BATCH = 2**31 - 1, -(2**31)
"""Positions after which there is nothing."""

Run: TypeAlias = "tuple[str, str, str]"
"""The id of a run, its token and its status."""
Rows: TypeAlias = "list[tuple[int, str]]"
"""Numbers or ids, and texts."""


@dataclass(frozen=True)
class Question:
    """The position of a follower in a session. Without a run, there are no steps and batches.

    Attributes:
        store: The store whose scope it has.
        session_id: The session.
        run: The run; None between two runs.
        number: The number of the last step.
        batch: The number of the last batch of events. These numbers fall.
        item: The id of the newest item; None for the beginning of a run.
        is_first: True to get everything that a snapshot has.
    """

    store: ScopedStore
    session_id: str
    run: Run | None = None
    number: int = NO_STEP
    batch: int = NO_BATCH
    item: int | None = None
    is_first: bool = False

    @property
    def scope(self) -> str:
        return json.dumps(self.store.condition(None).encoded())


@dataclass
class News:
    """News of a session since the position of a follower.

    Attributes:
        is_there: Whether the session exists, in the scope.
        head: The row of its run, or None.
        steps: New steps.
        batches: New batches of events, oldest first.
        since: The id after which items were read; None if they were not.
        items: New items; those of a run up to its last write.
        newest: The id of the newest item, if no run and no items were asked for.
        end: The row of the outcome of a run that has ended.
    """

    is_there: bool = True
    head: Any = None
    steps: Rows = field(default_factory=list)
    batches: Rows = field(default_factory=list)
    since: int | None = None
    items: Rows = field(default_factory=list)
    newest: int = 0
    end: Any = None

    @property
    def run(self) -> Run | None:
        head = self.head
        return None if head is None else (head.run_id, head.token, head.status)


# ---- statements ----


def _bound(table: Any, name: str, count: int) -> list[Any]:
    kind = table.c.session_id.type if name == "session" else BigInteger
    return [bindparam(f"{name}_{at}", type_=kind) for at in range(count)]


@lru_cache(maxsize=256)
def _heads(tables: SessionTables, dialect: Dialect, count: int) -> Select[Any]:
    """The runs of some sessions, each with the steps and batches after a position of its own."""
    runs, steps, _, _ = tables.group(RUNS).tables
    own = _bound(runs, "session", count)
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
def _items(tables: SessionTables, count: int) -> Any:
    """The items of some sessions, each from an item of its own on."""
    messages = tables.messages
    sessions, items = (_bound(messages, name, count) for name in ("session", "item"))
    new = [
        and_(messages.c.session_id == session, messages.c.id >= item)
        for session, item in zip(sessions, items, strict=True)
    ]
    columns = messages.c.session_id, messages.c.id, messages.c.message_data
    return select(*columns).where(or_(*new)).order_by(*in_order(messages))


@lru_cache(maxsize=256)
def _newest(tables: SessionTables, count: int) -> Any:
    messages = tables.messages
    own = messages.c.session_id.in_(_bound(messages, "session", count))
    newest = func.max(messages.c.id).label("newest")
    return select(messages.c.session_id, newest).where(own).group_by(messages.c.session_id)


@lru_cache(maxsize=256)
def _ends(tables: SessionTables, count: int) -> Any:
    keys = keys_table(tables)
    sessions = _bound(keys, "session", count)
    runs = [bindparam(f"run_{at}", type_=keys.c.run_id.type) for at in range(count)]
    columns = keys.c.session_id, keys.c.status, keys.c.outcome
    return select(*columns).where(keys.c.session_id.in_(sessions), keys.c.run_id.in_(runs))


def _execute(
    connection: Connection, make: Callable[[int], Any], asked: dict[str, dict[str, Any]]
) -> dict[str, list[Any]]:
    """Executes a statement for some sessions. Returns its rows by session."""
    found: dict[str, list[Any]] = {}
    given = [{"session": session_id, **values} for session_id, values in asked.items()]
    for start in range(0, len(given), _AT_ONCE):
        some = given[start : start + _AT_ONCE]
        # The last one is repeated, so that there are few statements to prepare.
        count = 1 << (len(some) - 1).bit_length()
        some += [some[-1]] * (count - len(some))
        values = {f"{name}_{at}": own[name] for at, own in enumerate(some) for name in own}
        for row in connection.execute(make(count), values):
            found.setdefault(row.session_id, []).append(row)
    return found


def _admitted(connection: Connection, questions: Iterable[Question]) -> set[tuple[str, str]]:
    """Returns the pairs of a scope and a session in it."""
    left = {(each.scope, each.session_id): each.store for each in questions}
    found: set[tuple[str, str]] = set()
    while left:
        chosen: dict[str, str] = {}  # One scope per session and statement.
        for scope, session_id in list(left)[:_AT_ONCE]:
            chosen.setdefault(session_id, scope)
        parts = []
        for scope in {*chosen.values()}:
            ids = [each for each, own in chosen.items() if own == scope]
            parts.append(left[scope, ids[0]].condition({"$session_id": {"$in": ids}}))
        store = next(iter(left.values()))
        own_id = store.database.tables.sessions.c.session_id
        rows = connection.execute(*store.queries.where(select(own_id), AnyOf(tuple(parts)), own_id))
        found |= {(chosen[row[0]], row[0]) for row in rows if row[0] in chosen}
        for session_id, scope in chosen.items():
            del left[scope, session_id]
    return found


def read_all(
    database: Database, connection: Connection, questions: Sequence[Question]
) -> list[News]:
    """Answers each question."""
    tables, asked = database.tables, dict[str, dict[str, Any]]()
    for each in questions:
        known = asked.setdefault(each.session_id, {"number": each.number, "batch": each.batch})
        known["number"] = min(known["number"], each.number)
        known["batch"] = max(known["batch"], each.batch)
    heads: dict[str, list[Any]] = {}
    if database.has_tables(connection, RUNS):
        heads = _execute(connection, partial(_heads, tables, database.dialect), asked)
    answers = [(each, _found(each, heads.get(each.session_id, ()))) for each in questions]
    _add_items(tables, connection, answers)
    ended = {
        each.session_id: {"run": each.run[0]}
        for each, found in answers
        if each.run is not None and _has_ended(each, found)
    }
    ends = _execute(connection, partial(_ends, tables), ended)
    for each, found in answers:
        found.end = next(iter(ends.get(each.session_id, ())), None)
    checked = [each for each, found in answers if _is_checked(each, found)]
    admitted = _admitted(connection, checked) if checked else set()
    return [
        News(is_there=False)
        if _is_checked(each, found) and (each.scope, each.session_id) not in admitted
        else found
        for each, found in answers
    ]


def _found(question: Question, rows: Sequence[Any]) -> News:
    new = [(row.number, row.value) for row in rows if row.number is not None]
    head, item = rows[0] if rows else None, question.item
    found = News(
        head=head,
        steps=[each for each in new if each[0] > question.number],
        batches=[each for each in reversed(new) if each[0] < question.batch],
    )
    if question.is_first and head is not None:
        progress = Progress.load(head.progress)
        begin = progress.first if item is None else min(progress.first, item)
        found.since = 0 if progress.replaced else begin
    elif head is None or _has_ended(question, found) or head.last_item > (item or 0):
        found.since = item
    return found


def _has_ended(question: Question, found: News) -> bool:
    run = question.run
    return run is not None and (found.head is None or found.head.run_id != run[0])


def _is_checked(question: Question, found: News) -> bool:
    is_news = found.run != question.run or found.steps or found.batches or found.items
    return question.is_first or bool(is_news and question.store.is_restricted)


def _add_items(
    tables: SessionTables, connection: Connection, answers: Sequence[tuple[Question, News]]
) -> None:
    asked: dict[str, dict[str, Any]] = {}
    for each, found in answers:
        if found.since is not None:
            known = asked.setdefault(each.session_id, {"item": found.since})
            known["item"] = min(known["item"], found.since)
    rows = _execute(connection, partial(_items, tables), asked)
    unknown: dict[str, dict[str, Any]] = {
        each.session_id: {} for each, found in answers if each.is_first and found.head is None
    }
    newest = _execute(connection, partial(_newest, tables), unknown)
    for each, found in answers:
        # Only what the run had written when its record was read, so that both fit.
        last = None if found.head is None or _has_ended(each, found) else found.head.last_item
        since = found.since
        if since is not None:
            found.items = [
                (row.id, row.message_data)
                for row in rows.get(each.session_id, ())
                if row.id >= since and (last is None or row.id <= last)
            ]
        if each.session_id in newest:
            found.newest = newest[each.session_id][0].newest


# ---- polls ----


class Polls:
    """The polls of one event loop in one set of tables. Use `polls_of`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: dict[asyncio.Future[News], tuple[float, Question]] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last = 0.0

    async def ask(self, question: Question, delay: float) -> News:
        """Answers a question after a delay, in seconds, with those of other followers."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[News] = loop.create_future()
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

    async def _read(self, questions: list[Question]) -> list[News]:
        def read(connection: Connection) -> list[News]:
            return read_all(self._database, connection, questions)

        try:
            return await self._database.read(read)
        except TablesMissingError as error:
            if self._database.names.metadata not in error.tables:
                raise
            return [News(is_there=False) for _ in questions]  # Nothing was ever used.


_polls: WeakValueDictionary[tuple[Any, ...], Polls] = WeakValueDictionary()


def polls_of(database: Database) -> Polls:
    """Returns the polls of the running event loop. They live as long as a follower has them."""
    loop = asyncio.get_running_loop()
    place = id(database.engine.sync_engine), database.names, id(loop)
    return _polls.setdefault(place, Polls(database))

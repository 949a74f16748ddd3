"""Polls that all followers share that one event loop has in one set of tables.

A poll reads the runs of all sessions that are due, with what their followers have not seen of their
records, in one statement. Others follow if there are new items, if a run has ended, and to check
scopes: a session is shown only to followers whose own scope contains it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from sqlalchemy import Connection, and_, bindparam, case, func, or_, select

from agents_session_metadata.core.database import Database, settle
from agents_session_metadata.core.definitions import CORE
from agents_session_metadata.core.messages import in_order
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.query.logic import AnyOf
from agents_session_metadata.runs.feature import FAILED, RUNS, WAITING, keys_table, status_of
from agents_session_metadata.runs.record import Progress
from agents_session_metadata.scope import ScopedStore

_TICK = 0.1
"""Seconds between two polls."""
_AT_ONCE = 128
"""The most followers of one poll."""

Rows: TypeAlias = "list[tuple[int, str]]"
"""Numbers or ids, and texts."""


@dataclass(eq=False)
class Position:
    """The position of a follower in a session.

    Attributes:
        store: The store whose scope it has.
        session_id: The session.
        run_id: The run; None between two runs.
        token: The token of its lease; empty if its record is read from the start.
        status: Its status.
        number: The number of the last step.
        batch: The number of the last batch of events. These numbers fall.
        item: The id of the newest item; None if the follower knows none.
    """

    store: ScopedStore
    session_id: str
    run_id: str | None = None
    token: str = ""
    status: str = ""
    number: int = -1
    batch: int = 0
    item: int | None = None

    @cached_property
    def place(self) -> tuple[str, str]:
        """The scope and the session."""
        return json.dumps(self.store.condition(None).encoded()), self.session_id

    def is_over(self, found: News) -> bool:
        """Returns whether the run has ended."""
        return self.run_id is not None and (not found.head or found.head.run_id != self.run_id)

    def since(self, found: News) -> int | None:
        """Returns the id from which on items are read, or None if there are no new ones."""
        head = found.head
        if head is None or self.is_over(found):
            return self.item
        if head.token == self.token:
            return self.item if head.last_item > (self.item or 0) else None
        first = 0 if found.progress.replaced else found.progress.first
        return first if self.item is None else min(first, self.item)

    def is_checked(self, found: News) -> bool:
        """Returns whether these news are shown only if the session is in the scope."""
        known = found.head and (found.head.token, found.head.status) == (self.token, self.status)
        is_news = not known or found.steps or found.batches or found.items
        return self.run_id is None or (self.store.is_restricted and bool(is_news))


@dataclass(eq=False)
class News:
    """News of a session since the oldest position of its followers.

    Attributes:
        head: The row of its run, or None.
        steps: New steps, or all of them if a follower does not know the token.
        batches: Batches of events, likewise, oldest first.
        items: New items, and older ones.
        newest: The id of the newest item, if there is no run and a follower knows no item.
        ends: The outcomes of runs that have ended, by the id of the run.
    """

    head: Any = None
    steps: Rows = field(default_factory=list)
    batches: Rows = field(default_factory=list)
    items: Rows = field(default_factory=list)
    newest: int = 0
    ends: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def progress(self) -> Progress:
        return Progress.load(self.head.progress)


@lru_cache(maxsize=64)
def _heads(tables: SessionTables, dialect: Dialect, count: int) -> Any:
    """Selects the runs of some sessions, each with the steps and batches after its own position."""
    runs, steps, _, _ = tables.group(RUNS).tables
    sessions = [bindparam(f"session_{at}", type_=runs.c.session_id.type) for at in range(count)]
    positions = [
        or_(
            steps.c.number > bindparam(f"number_{at}"),
            steps.c.number < bindparam(f"batch_{at}"),
            runs.c.token != bindparam(f"token_{at}"),
        )
        for at in range(count)
    ]
    new = or_(*(and_(steps.c.session_id == own, positions[at]) for at, own in enumerate(sessions)))
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
    joined = runs.outerjoin(steps, and_(steps.c.session_id == runs.c.session_id, new))
    found = shown.select_from(joined).where(runs.c.session_id.in_(sessions))
    return found.order_by(func.abs(steps.c.number))


def _read_heads(database: Database, connection: Connection, asked: list[list[Position]]) -> Any:
    """Reads the runs of some sessions, given the positions in each."""
    # The last one is repeated, so that there are few statements to prepare.
    asked = asked + asked[-1:] * ((1 << (len(asked) - 1).bit_length()) - len(asked))
    values: dict[str, Any] = {}
    for at, own in enumerate(asked):
        values[f"session_{at}"] = own[0].session_id
        values[f"number_{at}"] = min(each.number for each in own)
        values[f"batch_{at}"] = max(each.batch for each in own)
        values[f"token_{at}"] = own[0].token if len({each.token for each in own}) == 1 else ""
    return connection.execute(_heads(database.tables, database.dialect, len(asked)), values)


def read_news(
    database: Database, connection: Connection, positions: Sequence[Position]
) -> list[News | None]:
    """Returns the news for each position; None if its session is not there, in its scope.

    Positions in the same session share their news, and take what they do not know.
    """
    messages, keys = database.tables.messages, keys_table(database.tables)
    asked: dict[str, list[Position]] = {}
    for each in positions:
        asked.setdefault(each.session_id, []).append(each)
    found = {session_id: News() for session_id in asked}
    if database.has_tables(connection, RUNS):
        for row in _read_heads(database, connection, list(asked.values())):
            news = found[row.session_id]
            news.head = row
            if row.number is not None:
                (news.steps if row.number >= 0 else news.batches).append((row.number, row.value))
    pairs = [(each, found[each.session_id]) for each in positions]
    since = [(each.session_id, each.since(news)) for each, news in pairs]
    if known := {session_id: item_id for session_id, item_id in since if item_id is not None}:
        items: Any = select(messages.c.session_id, messages.c.id, messages.c.message_data)
        first = min(item_id for _, item_id in since if item_id is not None)
        items = items.where(messages.c.session_id.in_(known), messages.c.id >= first)
        for row in connection.execute(items.order_by(*in_order(messages))):
            found[row.session_id].items.append((row.id, row.message_data))
    if unknown := {each.session_id for each, news in pairs if each.item is None and not news.head}:
        newest: Any = select(messages.c.session_id, func.max(messages.c.id).label("newest"))
        newest = newest.where(messages.c.session_id.in_(unknown)).group_by(messages.c.session_id)
        for row in connection.execute(newest):
            found[row.session_id].newest = row.newest
    if over := {each.run_id: each.session_id for each, news in pairs if each.is_over(news)}:
        ended = keys.c.session_id.in_({*over.values()}), keys.c.run_id.in_(over)
        for row in connection.execute(select(keys).where(*ended)):
            found[row.session_id].ends[row.run_id] = row
    checked = {each.place: each.store for each, news in pairs if each.is_checked(news)}
    outside = checked.keys() - _admitted(connection, checked)
    return [None if each.place in outside else news for each, news in pairs]


def _admitted(
    connection: Connection, left: dict[tuple[str, str], ScopedStore]
) -> set[tuple[str, str]]:
    """Returns the pairs of a scope and a session in it."""
    found: set[tuple[str, str]] = set()
    while left:
        # One scope per session and statement.
        chosen = {session_id: (scope, session_id) for scope, session_id in left}
        by_scope: dict[str, list[str]] = {}
        for scope, session_id in chosen.values():
            by_scope.setdefault(scope, []).append(session_id)
        parts = [
            left[scope, ids[0]].condition({"$session_id": {"$in": ids}})
            for scope, ids in by_scope.items()
        ]
        store = next(iter(left.values()))
        own_id = store.database.tables.sessions.c.session_id
        inside = store.queries.where(select(own_id), AnyOf(tuple(parts)), own_id)
        found |= {chosen[row[0]] for row in connection.execute(*inside)}
        left = {place: store for place, store in left.items() if chosen[place[1]] != place}
    return found


class Polls:
    """The polls of one event loop in one set of tables. Use `polls_of`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[tuple[float, Position, asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, position: Position, delay: float) -> News | None:
        """Returns the news after a delay, in seconds, read with those of other followers."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[News | None] = loop.create_future()
        # Those with the same delay are due at the same time.
        due = (loop.time() // delay + 1) * delay if delay else 0
        self._waiting.append((due, position, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        return await answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            latest = loop.time() + _TICK / 2
            waiting = [each for each in self._waiting if not each[2].done()]
            self._waiting = [each for each in waiting if each[0] > latest]
            due = [each for each in waiting if each[0] <= latest]
            for start in range(0, len(due), _AT_ONCE):
                await self._answer(due[start : start + _AT_ONCE])
            if self._waiting:
                await asyncio.sleep(_TICK - loop.time() % _TICK)

    async def _answer(self, asked: Sequence[tuple[float, Position, asyncio.Future[Any]]]) -> None:
        database, positions = self._database, [position for _, position, _ in asked]

        def read(connection: Connection) -> list[News | None]:
            return read_news(database, connection, positions)

        found: list[News | None] = [None] * len(asked)
        problem: Exception | None = None
        try:
            found = await settle(database.read_used(CORE, read, found))
        except Exception as error:  # noqa: BLE001  # raised by each follower
            problem = error
        for (_, _, answer), news in zip(asked, found, strict=True):
            if problem is not None and not answer.done():
                answer.set_exception(problem)
            elif not answer.done():
                answer.set_result(news)


_polls: WeakValueDictionary[tuple[Any, ...], Polls] = WeakValueDictionary()


def polls_of(database: Database) -> Polls:
    """Returns the polls of the running event loop. They live as long as a follower has them."""
    loop = asyncio.get_running_loop()
    place = id(database.engine.sync_engine), database.names, id(loop)
    return _polls.setdefault(place, Polls(database))

"""Contract, section 10: whichever plan reads a page, it is the same page.

Among 4,500 sessions, a page of 50 is sorted if few sessions match, and walked if many do. An owner
whose sessions are all old has many, but the walk ends at its bound before it has found them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from agents.extensions.memory import SQLAlchemySession
from hypothesis import given
from hypothesis import strategies as st
from scaling import examples, scale
from servers import Database
from sqlalchemy import event, insert
from sqlalchemy.exc import DBAPIError

from agents_session_metadata import MetadataLimits, SessionCatalog
from agents_session_metadata.core.features import table_names
from agents_session_metadata.core.tables import query_tables
from agents_session_metadata.values import encode_metadata
from conformance import raw
from conformance.oracle import matches

pytestmark = pytest.mark.dialect

SESSIONS = 4_500
FIRST = datetime(2026, 1, 1, 12)  # noqa: DTZ001  # as the SDK stores it
OLD, NEW = 1_500, 3_000
"""The oldest sessions are those of one owner, and the newest those of another."""


class Session:
    def __init__(self, number: int, rnd: random.Random) -> None:
        self.session_id = f"{rnd.choice('aAbBéz')}{rnd.getrandbits(64):016x}"
        # Three sessions have one time.
        self.updated_at = FIRST + timedelta(minutes=number // 3)
        own = "old" if number < OLD else "new" if number >= NEW else "many"
        owner = rnd.choice([own] * 8 + ["many", f"u{int(rnd.paretovariate(1)) % 50}"])
        self.metadata: dict[str, Any] = {
            "owner_id": "few" if number % 50 == 0 else owner,
            "status": rnd.choice(["active"] * 7 + ["done"]),
            "tags": ["wide", f"t{number % 7}"] if number % 2 else [f"t{number % 7}"],
            "n": number,
        }
        if number % 97 == 0:
            self.metadata["pinned"] = True

    def matches(self, where: Any) -> bool:
        updated = self.updated_at.replace(tzinfo=timezone.utc)
        return matches(where, self.metadata, session_id=self.session_id, updated_at=updated)


async def _filled(database: Database) -> tuple[SessionCatalog, list[Session]]:
    """The sessions in the order of their time, then id, whose time zone is UTC everywhere."""
    engine = database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.count_sessions()
    rnd = random.Random(1)
    sessions = [Session(number, rnd) for number in range(SESSIONS)]
    tables = query_tables(table_names())
    of_sessions, rows, elements = [], [], []
    for each in rnd.sample(sessions, SESSIONS):
        own = {"session_id": each.session_id}
        of_sessions.append({**own, "updated_at": each.updated_at})
        for key, value in encode_metadata(each.metadata, MetadataLimits()).items():
            search = {"search_key": value.search.indexed, "search_rest": value.search.rest}
            rows.append({**own, "key": key, "value": value.text, **search})
            for position, element in enumerate(value.elements):
                search = {"search_key": element.indexed, "search_rest": element.rest}
                elements.append({**own, "key": key, "position": position, **search})
    async with engine.begin() as connection:
        if database.kind == "mysql":
            await connection.exec_driver_sql("SET time_zone = '+00:00'")
        for table, given_rows in zip(
            (tables.sessions, tables.metadata, tables.elements),
            (of_sessions, rows, elements),
            strict=True,
        ):
            await connection.execute(insert(table), given_rows)
        if database.kind == "mysql":
            await connection.exec_driver_sql("SET time_zone = DEFAULT")
        if database.kind == "postgresql":
            await connection.exec_driver_sql("ANALYZE")
    return catalog, sorted(sessions, key=lambda each: (each.updated_at, each.session_id))


class Plans:
    """Counts the plans of the statements that were run."""

    def __init__(self, engine: Any) -> None:
        self.taken: list[str] = []
        event.listen(engine.sync_engine, "before_cursor_execute", self._before)

    def _before(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "LIMIT" in statement and "updated_at" in statement:
            kinds = {"beyond": "walk", " AS few": "few", "": "sort"}
            self.taken.append(next(kinds[word] for word in kinds if word in statement))

    async def of(self, call: Any) -> list[str]:
        self.taken.clear()
        await call
        return list(self.taken)


async def test_each_plan_is_taken_where_it_is_faster(database: Database):
    catalog, _ = await _filled(database)
    plans = Plans(catalog.engine)

    def page(where: Any, **more: Any) -> Any:
        return catalog.list_sessions(where, limit=50, **more)

    await page(None)
    for where in ({"owner_id": "few"}, {"owner_id": "nobody"}, {"n": {"$lt": 20}}):
        assert await plans.of(page(where)) == ["few"], where
        assert await plans.of(catalog.last_session(where)) == ["few"], where
    for where in (
        {"owner_id": "many"},
        {"tags": {"$contains": "wide"}},
        {"owner_id": "many", "status": "active"},
        {"$or": [{"owner_id": "many"}, {"pinned": True}]},
    ):
        assert await plans.of(page(where)) == ["few", "walk"], where
        # From then on, it is known that many match.
        assert await plans.of(page(where)) == ["walk"], where
        assert await plans.of(page(where, order_by="updated_at")) == ["walk"], where
    assert await plans.of(page({"owner_id": {"$ne": "many"}})) == ["walk"]
    # Its bound ends a walk to sessions that are all old, or all new. A sample of them saves it.
    assert await plans.of(page({"n": {"$lt": OLD}})) == ["few", "walk", "sort"]
    assert await plans.of(page({"owner_id": "old"})) == ["few", "sort"]
    # For a minute, such a page is sorted at once, and one that begins elsewhere is not.
    for where in ({"n": {"$lt": OLD}}, {"owner_id": "old"}):
        assert await plans.of(page(where)) == ["sort"]
    assert await plans.of(page({"owner_id": "old"}, order_by="updated_at")) == ["few", "walk"]
    cursor = (await page({"owner_id": "old"})).next_cursor
    assert await plans.of(page({"owner_id": "old"}, cursor=cursor)) == ["walk"]
    oldest_first = page({"owner_id": "new"}, order_by="updated_at")
    assert await plans.of(oldest_first) == ["few", "sort"]
    # A time limits it as well.
    time = (FIRST + timedelta(minutes=OLD // 3)).replace(tzinfo=timezone.utc)
    within = {"owner_id": "old", "$updated_at": {"$lt": time}}
    assert await plans.of(page(within)) == ["few", "walk"]
    # Other orders, ids and databases without the index have one plan.
    assert await plans.of(page({"owner_id": "many"}, order_by="created_at")) == ["sort"]
    assert await plans.of(page({"$session_id": "a"})) == ["sort"]
    await catalog.drop_index("$updated_at")
    assert await plans.of(page({"owner_id": "many"})) == ["sort"]


TIME = (FIRST + timedelta(minutes=700)).replace(tzinfo=timezone.utc)
QUESTIONS: list[Any] = [
    None,
    {"owner_id": "few"},
    {"owner_id": "many"},
    {"owner_id": "old"},
    {"owner_id": "new"},
    {"owner_id": "nobody"},
    {"owner_id": "many", "status": "done"},
    {"owner_id": "old", "pinned": {"$exists": False}},
    {"tags": {"$contains": "wide"}},
    {"tags": {"$contains": "wide"}, "owner_id": "old"},
    {"tags": {"$all": ["wide", "t3"]}},
    {"$or": [{"owner_id": "old"}, {"owner_id": "few"}, {"pinned": True}]},
    {"$or": [{"owner_id": "many"}, {"tags": {"$contains": "t1"}}], "status": "active"},
    {"$not": {"owner_id": "many"}},
    {"owner_id": {"$ne": "many"}, "$updated_at": {"$gte": TIME}},
    {"owner_id": "many", "$updated_at": {"$lt": TIME}},
    {"$updated_at": {"$gt": TIME}, "$or": [{"owner_id": "new"}, {"$updated_at": {"$lte": TIME}}]},
    {"n": {"$gte": 100, "$lt": 4_000}},
    {"n": {"$gte": 10_000}},
    {"owner_id": {"$in": ["old", "new"]}},
    {"$session_id": {"$prefix": "é"}},
    {"owner_id": {"$in": []}},
]


def expected(sessions: list[Session], where: Any, order_by: str) -> list[str]:
    """The answer in plain Python."""
    found = [each.session_id for each in sessions if each.matches(where)]
    return found[::-1] if order_by.startswith("-") else found


async def walked(
    catalog: SessionCatalog,
    where: Any,
    order_by: str,
    limit: int,
    between: Callable[[int], Any] | None = None,
) -> list[str]:
    """All pages of an answer."""
    found: list[str] = []
    cursor = None
    while True:
        page = await catalog.list_sessions(
            where, order_by=order_by, limit=limit, cursor=cursor, keys=["n"]
        )
        found += [info.session_id for info in page.sessions]
        cursor = page.next_cursor
        if cursor is None:
            return found
        if between is not None:
            await between(len(found))


async def test_every_plan_answers_like_plain_python(database: Database):
    catalog, sessions = await _filled(database)
    find = catalog.session("any").find_sessions_by_metadata
    for where in QUESTIONS:
        wanted = expected(sessions, where, "-updated_at")
        limit = 50 if len(wanted) > 100 else 7
        assert await walked(catalog, where, "-updated_at", limit) == wanted, where
        assert await walked(catalog, where, "updated_at", 4 * limit) == wanted[::-1], where
        assert await find(where or {}, limit=50) == wanted[:50], where
        last = await catalog.last_session(where)
        # No session has a message: among the last of one time, the greatest id.
        assert (last and last.session_id) == (wanted[0] if wanted else None), where


@pytest.fixture
async def filled(database: Database) -> tuple[SessionCatalog, list[Session]]:
    return await _filled(database)


@pytest.mark.scaled
@examples(2, 60)
@given(seed=st.integers(0, 2**32))
@pytest.mark.thorough
async def test_random_pages_equal_plain_python(
    filled: tuple[SessionCatalog, list[Session]], seed: int
):
    """Positions, limits and filters at random, before and after the index is dropped or created."""
    catalog, sessions = filled
    rnd = random.Random(seed)
    for _ in range(scale(12, 40)):
        if rnd.randrange(6) == 0:
            change = rnd.choice([catalog.create_index, catalog.drop_index])
            await change("$updated_at")
        where = {**(rnd.choice(QUESTIONS) or {}), **(rnd.choice(QUESTIONS) or {})}
        order_by, limit = rnd.choice(["updated_at", "-updated_at"]), rnd.choice([1, 2, 9, 50, 400])
        wanted = expected(sessions, where, order_by)
        start, cursor = 0, None
        if wanted and rnd.randrange(3):
            start = rnd.randrange(len(wanted)) + 1
            first = await catalog.list_sessions(where, order_by=order_by, limit=min(start, 1_000))
            start, cursor = len(first.sessions), first.next_cursor
            if cursor is None:
                continue
        page = await catalog.list_sessions(where, order_by=order_by, limit=limit, cursor=cursor)
        ids = [info.session_id for info in page.sessions]
        assert ids == wanted[start : start + limit], (where, order_by, limit, start)
        assert (page.next_cursor is None) == (start + limit >= len(wanted))


async def test_cursors_stay_valid_when_the_index_is_created(shared_database: Database):
    """Pages from before and after are one answer, while the plain SDK writes other sessions."""
    catalog, sessions = await _filled(shared_database)
    await catalog.drop_index("$updated_at")
    engine, writing = catalog.engine, True

    async def write() -> int:
        count = 0
        while writing:
            name = f"plain-{count % 20}"
            # On MariaDB and MySQL, creating an index can end a plain writer with a deadlock.
            with contextlib.suppress(*[DBAPIError] * (shared_database.kind == "mysql")):
                await SQLAlchemySession(name, engine=engine).add_items([raw.message("hello")])
                count += 1
        return count

    async def between(found: int) -> None:
        if found in (300, 500):
            await catalog.create_index("$updated_at")
        if found == 400:
            await catalog.drop_index("$updated_at")

    writer = asyncio.create_task(write())
    try:
        for where in ({"owner_id": "many"}, {"owner_id": "old"}):
            for order_by in ("-updated_at", "updated_at"):
                ids = await walked(catalog, where, order_by, 50, between)
                assert ids == expected(sessions, where, order_by), (where, order_by)
                await catalog.drop_index("$updated_at")
    finally:
        writing = False
        assert await writer > 0

"""Pages, cursors and walks."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

from agents_session_metadata import (
    InvalidCursorError,
    SessionCatalog,
    SessionInfo,
    SessionPage,
    SessionRuns,
)
from conformance import raw

ORDERS = ["updated_at", "-updated_at", "created_at", "-created_at", "session_id", "-session_id"]
STABLE_ORDERS = ORDERS[2:]
IDS = [*"aAábßzZ_%é👍", "a\u0301", "a ", "\uffff", "\U00010000"]


@pytest.fixture
async def catalog(engine):
    """Fifteen sessions; times with ties, in an order that is not that of the ids."""
    catalog = SessionCatalog(engine, create_tables=True)
    exported = [
        {
            "format": 1,
            "session_id": session_id,
            "created_at": f"2020-01-01T00:00:{(number * 7) % 5:02}Z",
            "updated_at": f"2020-02-01T00:00:{(number * 4) % 3:02}Z",
            "metadata": {"number": number, "even": number % 2 == 0, "title": f"title {number}"},
            "items": [{"item": raw.message("a"), "created_at": "2020-02-01T00:00:00Z"}]
            * (number % 3),
        }
        for number, session_id in enumerate(IDS)
    ]
    await catalog.import_sessions(exported)
    return catalog


async def walk(catalog: SessionCatalog, where: Any = None, **kwargs: Any) -> list[SessionInfo]:
    found: list[SessionInfo] = []
    cursor = None
    while True:
        page = await catalog.list_sessions(where, cursor=cursor, **kwargs)
        assert type(page) is SessionPage
        assert len(page.sessions) <= kwargs.get("limit", 100)
        found += page.sessions
        if page.next_cursor is None:
            return found
        assert page.sessions
        cursor = page.next_cursor


@pytest.mark.parametrize("order_by", ORDERS)
async def test_pages_of_every_size_make_one_order(catalog, order_by):
    whole = await walk(catalog, order_by=order_by, limit=1_000)
    assert sorted(info.session_id for info in whole) == sorted(IDS)
    name = order_by.lstrip("-")
    values = [getattr(info, name) for info in whole]
    assert values == sorted(values, reverse=order_by.startswith("-"))
    even = [info for info in whole if info.metadata["even"]]
    for limit in (1, 2, 4, 7, 8, 9, 14, 15, 16):
        assert await walk(catalog, order_by=order_by, limit=limit) == whole
        assert await walk(catalog, {"even": True}, order_by=order_by, limit=limit) == even


@pytest.mark.logic
async def test_defaults(catalog):
    page = await catalog.list_sessions()
    assert page.next_cursor is None
    assert page == await catalog.list_sessions(None, order_by="-updated_at", limit=100)
    assert [info.item_count for info in page.sessions] == [None] * len(IDS)
    assert all(len(info.metadata) == 3 for info in page.sessions)


@pytest.mark.logic
async def test_a_full_last_page_does_not_promise_another(catalog):
    page = await catalog.list_sessions(limit=len(IDS))
    assert len(page.sessions) == len(IDS)
    assert page.next_cursor is None


@pytest.mark.logic
async def test_nothing_to_list(catalog):
    assert await catalog.list_sessions({"number": -1}) == SessionPage([], None)
    assert [info async for info in catalog.iter_sessions({"number": -1})] == []


async def test_keys_and_counts(catalog):
    page = await catalog.list_sessions(keys=["title", "nope"], count_items=True, limit=4)
    page = await catalog.list_sessions(
        keys=["title", "nope"], count_items=True, limit=1_000, cursor=page.next_cursor
    )
    assert len(page.sessions) == len(IDS) - 4
    for info in page.sessions:
        number = IDS.index(info.session_id)
        assert info.metadata == {"title": f"title {number}"}
        assert info.item_count == number % 3
    page = await catalog.list_sessions(keys=[])
    assert [info.metadata for info in page.sessions] == [{}] * len(IDS)


async def test_iter_sessions(catalog):
    infos = [info async for info in catalog.iter_sessions()]
    assert sorted(info.session_id for info in infos) == sorted(IDS)
    assert {info.session_id: info for info in infos} == {
        info.session_id: info for info in await walk(catalog)
    }
    some = [info.session_id async for info in catalog.iter_sessions({"even": True})]
    assert sorted(some) == sorted(IDS[::2])


async def test_between_items_a_walk_holds_nothing(catalog, engine):
    # On the one connection of a database in memory, holding it would be a deadlock.
    async for info in catalog.iter_sessions():
        await catalog.set_metadata(info.session_id, {"seen": True})
        await catalog.session(info.session_id).add_items([raw.message("b")])
        assert getattr(engine.pool, "checkedout", int)() == 0
    assert await catalog.count_sessions({"seen": True}) == len(IDS)


@pytest.mark.logic
async def test_limits_and_orders_that_do_not_exist(catalog):
    for limit in (0, -1, 1_001, 10_000):
        with pytest.raises(ValueError, match="limit"):
            await catalog.list_sessions(limit=limit)
    for order_by in ("", "-", "--created_at", "--", "$id", "a\0", "\ud800", "k" * 256):
        with pytest.raises(ValueError, match="order_by"):
            await catalog.list_sessions(order_by=order_by)
    for order_by in (None, 1, b"title"):
        with pytest.raises(TypeError, match="order_by"):
            await catalog.list_sessions(order_by=order_by)


@pytest.mark.parametrize("order_by", ORDERS)
async def test_a_page_goes_on_where_its_last_session_was_deleted(catalog, order_by):
    whole = await walk(catalog, order_by=order_by)
    page = await catalog.list_sessions(order_by=order_by, limit=5)
    for info in page.sessions[1:]:
        await catalog.delete_session(info.session_id)
    page = await catalog.list_sessions(order_by=order_by, limit=1_000, cursor=page.next_cursor)
    assert page.sessions == whole[5:]


@pytest.mark.logic
async def test_a_cursor_can_be_used_again_and_with_another_limit(catalog):
    whole = await walk(catalog)
    first = await catalog.list_sessions(limit=3)
    for limit in (2, 5, 2):
        page = await catalog.list_sessions(limit=limit, cursor=first.next_cursor)
        assert page.sessions == whole[3 : 3 + limit]


@pytest.mark.logic
async def test_a_cursor_outlives_its_catalog(catalog, database):
    where = {"even": True, "number": {"$gte": 0}}
    whole = await walk(catalog, where)
    first = await catalog.list_sessions(where, limit=3)
    again = SessionCatalog(database.engine())
    page = await again.list_sessions(dict(where), cursor=first.next_cursor)
    assert page.sessions == whole[3:]


@pytest.mark.logic
@pytest.mark.parametrize("order_by", ORDERS)
async def test_a_cursor_answers_its_own_question_only(catalog, order_by):
    where = {"even": True}
    cursor = (await catalog.list_sessions(where, order_by=order_by, limit=2)).next_cursor
    assert isinstance(cursor, str)
    for other in (None, {}, {"even": False}, {"even": 1}, {"even": True, "number": {"$gte": 0}}):
        with pytest.raises(InvalidCursorError):
            await catalog.list_sessions(other, order_by=order_by, cursor=cursor)
    for other in ORDERS:
        if other != order_by:
            with pytest.raises(InvalidCursorError):
                await catalog.list_sessions(where, order_by=other, cursor=cursor)
    for scope in ({"even": True}, {"title": "title 0"}):
        with pytest.raises(InvalidCursorError):
            await catalog.scoped(scope).list_sessions(where, order_by=order_by, cursor=cursor)


@pytest.mark.logic
async def test_a_cursor_of_the_same_question_with_its_keys_in_another_order(catalog):
    where = {"even": True, "$or": [{"number": 1}, {"number": {"$gte": 0}}]}
    first = await catalog.list_sessions(where, limit=2)
    other = {"$or": [{"number": {"$gte": 0}}, {"number": 1}], "even": True}
    page = await catalog.list_sessions(other, limit=2, cursor=first.next_cursor)
    assert page == await catalog.list_sessions(where, limit=2, cursor=first.next_cursor)
    negated = {"even": True, "$not": {"number": 1}}
    with pytest.raises(InvalidCursorError):
        await catalog.list_sessions(negated, cursor=first.next_cursor)


@pytest.mark.logic
async def test_a_cursor_of_another_scope(catalog):
    mine, yours = catalog.scoped({"even": True}), catalog.scoped({"even": False})
    cursor = (await mine.list_sessions(limit=2)).next_cursor
    assert len((await mine.list_sessions(cursor=cursor)).sessions) == 6
    for other in (yours, catalog, catalog.scoped({"even": True, "title": "title 0"})):
        with pytest.raises(InvalidCursorError):
            await other.list_sessions(cursor=cursor)


@pytest.mark.logic
async def test_a_cursor_does_not_show_metadata(catalog):
    # It goes through browsers and logs.
    where = {"title": {"$in": [f"title {number}" for number in range(15)]}}
    cursor = (await catalog.list_sessions(where, limit=2)).next_cursor
    assert "title" not in cursor


@pytest.mark.logic
@pytest.mark.parametrize("order_by", ["-updated_at", "session_id"])
async def test_damaged_cursors(catalog, order_by):
    where = {"even": True}
    cursor = (await catalog.list_sessions(where, order_by=order_by, limit=2)).next_cursor
    damaged = ["", " ", "x", "null", "é", "\0", "\ud800", "0", "=" * 8, "A" * 10_000]
    damaged += [cursor[:end] for end in range(len(cursor))]
    damaged += [cursor[start:] for start in range(1, len(cursor))]
    damaged += [cursor + more for more in ("A", "=", " ", "\n", "\0", cursor)]
    damaged += [" " + cursor, cursor.swapcase(), cursor[::-1]]
    for place, one in enumerate(cursor):
        for other in {"A", "B", "_", "z", "9", "é"} - {one}:
            damaged.append(cursor[:place] + other + cursor[place + 1 :])
    accepted = []
    for bad in damaged:
        if bad == cursor:
            continue
        try:
            await catalog.list_sessions(where, order_by=order_by, cursor=bad)
        except InvalidCursorError:
            continue
        accepted.append(bad)
    assert accepted == []
    assert len((await catalog.list_sessions(where, order_by=order_by, cursor=cursor)).sessions) == 6


@pytest.mark.parametrize("order_by", STABLE_ORDERS)
async def test_a_walk_among_writers_sees_each_lasting_session_once(engine, order_by):
    catalog = SessionCatalog(engine, create_tables=True)
    lasting = {f"lasting {number:02}" for number in range(30)}
    for session_id in lasting:
        await catalog.create_session(session_id, metadata={"a": 1})
    walking = True
    chance = random.Random(7)

    async def come_and_go(writer: int) -> None:
        # Ids before, between and behind the lasting ones.
        mine: list[str] = []
        for number in itertools.count():
            if not walking:
                return
            if mine and number % 3 == 2:
                await catalog.delete_session(mine.pop(chance.randrange(len(mine))))
            else:
                place = chance.choice(["aaa", "lasting 15", "lasting 29 ", "zzz"])
                mine.append(f"{place} {writer} {number}")
                await catalog.create_session(mine[-1], metadata={"a": 1})

    async def touch() -> None:
        while walking:
            session_id = f"lasting {chance.randrange(30):02}"
            await catalog.session(session_id).add_items([raw.message("a")])
            await catalog.set_metadata(session_id, {"b": chance.random()})

    async def read() -> None:
        nonlocal walking
        try:
            for limit in (3, 7):
                infos = await walk(catalog, {"a": 1}, order_by=order_by, limit=limit)
                ids = [info.session_id for info in infos]
                assert len(ids) == len(set(ids))
                assert lasting <= set(ids)
        finally:
            walking = False

    await asyncio.gather(read(), come_and_go(0), come_and_go(1), touch())


async def test_iteration_among_writers_sees_each_lasting_session_once(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    lasting = {f"lasting {number:02}" for number in range(20)}
    for session_id in lasting:
        await catalog.create_session(session_id)
    seen: list[str] = []
    async for info in catalog.iter_sessions():
        seen.append(info.session_id)
        if info.session_id in lasting:
            await catalog.create_session(f"a {len(seen)}")
            await catalog.delete_session(f"a {len(seen) - 1}")
    assert len(seen) == len(set(seen))
    assert lasting <= set(seen)


@pytest.mark.logic
async def test_pages_can_be_iterated_and_measured(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    session = await catalog.create_session("chat")
    await session.add_items([raw.message("hello")])
    await catalog.create_index("$text")
    page = await catalog.list_sessions()
    assert (list(page), len(page)) == (page.sessions, 1)
    items = await catalog.list_items("chat")
    assert (list(items), len(items)) == (items.items, 1)
    found = await catalog.search("hello")
    assert (list(found), len(found)) == (found.hits, 1)
    runs = await SessionRuns(catalog).list()
    assert (list(runs), len(runs)) == ([], 0)

"""Items of a history by id: read, added with a key, deleted; and sessions created with items."""

from __future__ import annotations

import asyncio
import json

import pytest
from agents.testing import assistant_message

from agents_session_metadata import (
    InvalidCursorError,
    ItemExistsError,
    ItemNotFoundError,
    KeyReusedError,
    MetadataLimitError,
    ScopeError,
    SessionBusyError,
    SessionCatalog,
    SessionExistsError,
    SessionNotFoundError,
    SessionPausedError,
    SessionRuns,
)
from conformance import raw
from conformance.approving import Deployer, deploys

IDS = ["msg_1", 'a "quoted" \\ id', "100%_", "é😀", "\0", "x" * 300]
NO_SESSIONS = ["nobody", "chat ", "CHAT", "", "a\0", "\ud800", "x" * 300]


def item(name: str, content: str = "hello") -> dict:
    return {**raw.message(content), "id": name}


async def contents(catalog: SessionCatalog, session_id: str = "chat") -> list[str]:
    return [each.item["content"] for each in await catalog.list_items(session_id)]


async def texts(catalog: SessionCatalog, *names: str) -> list[int]:
    """Creates the session `chat` with these messages and returns their rows."""
    await catalog.create_session("chat", items=[raw.message(name) for name in names])
    return [each.item_id for each in await catalog.list_items("chat")]


# ---- sessions with items ----


async def test_create_session_writes_row_metadata_and_items_in_one_transaction(catalog):
    history = [raw.message("1"), raw.message("2 😀")]
    session = await catalog.create_session("chat", metadata={"title": "Lisbon"}, items=history)
    assert await session.get_items() == history
    assert await session.get_metadata() == {"title": "Lisbon"}
    with pytest.raises(SessionExistsError):
        await catalog.create_session("chat", items=[raw.message("3")])
    assert await session.get_items() == history
    for error, wrong in ((TypeError, ["text"]), (TypeError, [{"content": object()}])):
        with pytest.raises(error):
            await catalog.create_session("other", items=wrong)
    with pytest.raises(MetadataLimitError):
        await catalog.create_session("other", metadata={"a": "x" * 70_000}, items=history)
    assert await catalog.count_sessions() == 1


# ---- metadata ----


async def test_set_metadata_stores_and_removes_in_one_transaction(catalog, session):
    await session.set_metadata({"a": 1, "tags": ["x", "y"]})
    await catalog.set_metadata("chat", {"b": 2}, remove=["a", "tags", "nope", "$no", "b\0"])
    assert await session.get_metadata() == {"owner_id": "u1", "b": 2}
    assert await catalog.count_sessions({"tags": {"$contains": "x"}}) == 0
    await session.set_metadata({}, remove=["b"])
    assert await session.get_metadata() == {"owner_id": "u1"}
    with pytest.raises(ValueError, match="'a' is both in values and in remove"):
        await session.set_metadata({"a": 1}, remove=["a"])
    with pytest.raises(TypeError, match="got the str 'owner_id'"):
        await session.set_metadata({}, remove="owner_id")
    mine = catalog.scoped({"owner_id": "u1"})
    with pytest.raises(ScopeError):
        await mine.set_metadata("chat", {"c": 1}, remove=["owner_id"])
    assert await session.get_metadata() == {"owner_id": "u1"}


@pytest.mark.logic
async def test_removing_keys_alone_creates_no_session(catalog):
    await catalog.set_metadata("nobody", {}, remove=["a"])
    assert await catalog.get_session("nobody") is None
    with pytest.raises(SessionNotFoundError):
        await catalog.set_metadata("nobody", {}, remove=["a"], must_exist=True)


# ---- one item ----


@pytest.mark.parametrize("ensure_ascii", [True, False])
async def test_an_item_is_found_by_its_row_or_its_own_id(engine, ensure_ascii):
    catalog = SessionCatalog(engine, create_tables=True, ensure_ascii=ensure_ascii)
    await catalog.create_session("other", items=[item("msg_1", "of another session")])
    await catalog.create_session("chat", items=[item(each, each) for each in IDS])
    for info in await catalog.list_items("chat"):
        assert await catalog.get_item("chat", info.item_id) == info
        assert await catalog.get_item("chat", info.item["id"]) == info
    [newer] = await catalog.add_items("chat", [item("msg_1", "newer")])
    assert await catalog.get_item("chat", "msg_1") == newer
    await catalog.delete_item("chat", "msg_1")
    assert (await catalog.get_item("chat", "msg_1")).item["content"] == "msg_1"
    await catalog.delete_item("chat", (await catalog.get_item("chat", "é😀")).item_id)
    assert await contents(catalog) == [each for each in IDS if each != "é😀"]
    assert await contents(catalog, "other") == ["of another session"]


@pytest.mark.logic
async def test_an_item_that_is_not_there(catalog):
    [row, *_] = await texts(catalog, "1")
    await catalog.create_session("other", items=[item("msg_1")])
    [other] = await catalog.list_items("other")
    gone = [row + 1000, 0, -1, 2**40, 2**70, other.item_id, "", "msg_1", str(row), "%", "\ud800"]
    for call in (catalog.get_item, catalog.delete_item):
        for item_id in gone:
            with pytest.raises(ItemNotFoundError) as caught:
                await call("chat", item_id)
            assert (caught.value.session_id, caught.value.item_id) == ("chat", item_id)
        for session_id in NO_SESSIONS:
            with pytest.raises(SessionNotFoundError):
                await call(session_id, row)
        for item_id in (None, True, 1.0, b"1"):
            with pytest.raises(TypeError, match="an item id must be an int or a str"):
                await call("chat", item_id)
    assert await contents(catalog) == ["1"]


@pytest.mark.logic
async def test_items_outside_the_scope_do_not_exist(everyone, mine):
    [theirs] = await everyone.list_items("theirs-0")
    for call in (
        mine.get_item("theirs-0", theirs.item_id),
        mine.delete_item("theirs-0", theirs.item_id),
        mine.add_items("theirs-0", [raw.message("x")]),
        mine.add_items("theirs-0", [raw.message("x")], key="k"),
        mine.list_items("theirs-0", after=theirs.item_id),
        mine.list_items("theirs-0", around=theirs.item_id),
    ):
        with pytest.raises(SessionNotFoundError):
            await call
    with pytest.raises(ItemNotFoundError):
        await mine.get_item("mine-0", theirs.item_id)
    assert mine.scope == {"owner_id": "mine"}
    assert everyone.scope == {}
    mine.scope["owner_id"] = "theirs"
    assert await mine.count_sessions() == 2


# ---- adding ----


async def test_add_items_returns_the_items_as_stored(catalog, session):
    history = [raw.message("1 é"), item("msg_2", "2")]
    before = (await catalog.get_session("chat")).updated_at
    added = await catalog.add_items("chat", history)
    assert added == (await catalog.list_items("chat")).items
    assert [each.item for each in added] == history == await session.get_items()
    assert (await catalog.get_session("chat")).updated_at >= before
    assert await catalog.add_items("chat", []) == []
    for session_id in NO_SESSIONS:
        for key in (None, "k"):
            with pytest.raises(SessionNotFoundError):
                await catalog.add_items(session_id, history, key=key)
    for wrong in ("text", {"role": "user"}, [["role", "user"]], [{"content": {1, 2}}]):
        with pytest.raises(TypeError):
            await catalog.add_items("chat", wrong)
    assert await session.get_items() == history


async def test_a_key_adds_its_items_once(catalog, session):
    history = [raw.message("1 é"), raw.message("2")]
    first = await catalog.add_items("chat", history, key="k")
    again = await asyncio.gather(
        *(catalog.add_items("chat", history, key="k", unique_ids=True) for _ in range(5))
    )
    assert again == [first] * 5
    assert first == (await catalog.list_items("chat")).items
    with pytest.raises(KeyReusedError) as caught:
        await catalog.add_items("chat", history[:1], key="k")
    assert (caught.value.session_id, caught.value.key) == ("chat", "k")
    await catalog.create_session("other")
    assert await catalog.add_items("other", history[:1], key="k")
    assert len(await catalog.add_items("chat", history, key="another")) == 2
    assert len(await session.get_items()) == 4
    for wrong in ("", "x" * 256, "a\0"):
        with pytest.raises(ValueError, match=r"^key '.* (must have|contains)"):
            await catalog.add_items("chat", history, key=wrong)
    with pytest.raises(TypeError):
        await catalog.add_items("chat", history, key=1)


@pytest.mark.logic
async def test_a_key_compares_items_and_not_the_order_of_their_names(catalog, session):
    part = {"type": "input_text", "text": "é"}
    first = await catalog.add_items("chat", [{"role": "user", "content": [part]}], key="k")
    turned = {"content": [dict(reversed(part.items()))], "role": "user"}
    assert await catalog.add_items("chat", [turned], key="k") == first
    assert len(await session.get_items()) == 1


async def test_calls_with_one_key_at_the_same_time_add_once(catalog, session):
    added = await asyncio.gather(
        *(catalog.add_items("chat", [raw.message("1")], key="k") for _ in range(10))
    )
    assert added == [added[0]] * 10
    assert len(await session.get_items()) == 1


async def test_a_key_is_forgotten_after_24_hours(catalog, session, engine):
    await catalog.add_items("chat", [raw.message("1")], key="k")
    older = "UPDATE agent_sessions_metadata_idempotency SET answered_at = answered_at - :age"
    await raw.execute(engine, older, age=(24 * 3600 - 60) * 1_000_000)
    assert len(await catalog.add_items("chat", [raw.message("1")], key="k")) == 1
    await raw.execute(engine, older, age=120 * 1_000_000)
    await catalog.add_items("chat", [raw.message("2")], key="k")
    assert await contents(catalog) == ["1", "2"]


async def test_unique_ids_refuses_an_item_whose_id_is_there(catalog, session):
    await catalog.add_items("chat", [item(each) for each in IDS], unique_ids=True)
    for name in IDS:
        with pytest.raises(ItemExistsError) as caught:
            await catalog.add_items("chat", [raw.message("new"), item(name)], unique_ids=True)
        assert (caught.value.session_id, caught.value.item_id) == ("chat", name)
    with pytest.raises(ItemExistsError):
        await catalog.add_items("chat", [item("new"), item("new")], unique_ids=True)
    assert len(await session.get_items()) == len(IDS)
    await catalog.create_session("other")
    await catalog.add_items("other", [item("msg_1"), raw.message("no id")], unique_ids=True)
    # Other ids that contain a stored one, and items without a usable id.
    others = [item("msg_"), item("msg_12"), item(None), item(""), item(1), item(1)]
    await catalog.add_items("chat", others, unique_ids=True)
    many = [item(f"many_{number}") for number in range(250)]
    new = [item(f"new_{number}") for number in range(250)]
    await catalog.add_items("chat", many, unique_ids=True)
    with pytest.raises(ItemExistsError):
        await catalog.add_items("chat", [*new, many[-1]], unique_ids=True)
    assert await catalog.add_items("chat", [item("msg_1")])


@pytest.mark.logic
async def test_history_changes_by_item_wait_for_no_run(catalog, session):
    runs = SessionRuns(catalog)
    deployer = Deployer()
    await runs.run("chat", deployer.agent(deploys("a"), "done"), "Deploy")
    [first, *_] = await catalog.list_items("chat")
    changes = (
        lambda: catalog.add_items("chat", [raw.message("x")]),
        lambda: catalog.add_items("chat", [raw.message("x")], key="k"),
        lambda: catalog.delete_item("chat", first.item_id),
    )
    for change in changes:
        with pytest.raises(SessionPausedError):
            await change()
    await raw.execute(catalog.engine, "UPDATE agent_sessions_metadata_runs SET status = 'running'")
    for change in changes:
        with pytest.raises(SessionBusyError):
            await change()
    assert await catalog.get_item("chat", first.item_id) == first


async def test_items_need_no_table_of_this_package(engine):
    await raw.create_sdk_tables(engine)
    await raw.execute(engine, "INSERT INTO agent_sessions (session_id) VALUES ('chat')")
    catalog = SessionCatalog(engine)
    [info] = await catalog.add_items("chat", [item("msg_1")], unique_ids=True)
    assert await catalog.get_item("chat", "msg_1") == info
    assert (await catalog.list_items("chat", around="msg_1")).items == [info]
    await catalog.delete_item("chat", info.item_id)
    with pytest.raises(ItemNotFoundError):
        await catalog.get_item("chat", info.item_id)


# ---- pages ----


async def walked(catalog: SessionCatalog, **place: object) -> list[list[str]]:
    """The pages from a place to the end."""
    page = await catalog.list_items("chat", **place)
    pages = [page]
    while page.next_cursor:
        more = {name: each for name, each in place.items() if name in ("limit", "newest_first")}
        page = await catalog.list_items("chat", cursor=page.next_cursor, **more)
        pages.append(page)
    return [[each.item["content"] for each in page] for page in pages]


async def test_a_page_after_an_item(catalog):
    rows = await texts(catalog, *"abcdefg")
    assert await walked(catalog, after=rows[1], limit=2) == [["c", "d"], ["e", "f"], ["g"]]
    assert await walked(catalog, after=rows[4], limit=3, newest_first=True) == [
        ["d", "c", "b"],
        ["a"],
    ]
    assert await walked(catalog, after=rows[-1]) == [[]]
    [info] = await catalog.add_items("chat", [item("own", "h")])
    assert await walked(catalog, after="own", limit=1, newest_first=True) == [*map(list, "gfedcba")]
    await catalog.delete_item("chat", info.item_id)
    for place in ("after", "around"):
        for gone in (info.item_id, "own"):
            with pytest.raises(ItemNotFoundError):
                await catalog.list_items("chat", **{place: gone})
        for nobody in NO_SESSIONS:
            with pytest.raises(SessionNotFoundError):
                await catalog.list_items(nobody, **{place: rows[0]})
        with pytest.raises(TypeError):
            await catalog.list_items("chat", **{place: 1.5})


async def test_a_page_around_an_item(catalog):
    rows = await texts(catalog, *"abcdefg")
    for at, limit, expected in (
        (3, 1, "d"),
        (3, 2, "cd"),
        (3, 3, "cde"),
        (3, 4, "bcde"),
        (3, 1000, "abcdefg"),
        (0, 4, "ab"),
        (6, 4, "efg"),
    ):
        page = await catalog.list_items("chat", around=rows[at], limit=limit)
        assert "".join(each.item["content"] for each in page) == expected
        assert (page.previous_cursor is None) == (expected[0] == "a")
        assert (page.next_cursor is None) == (expected[-1] == "g")
    page = await catalog.list_items("chat", around=rows[3], limit=2)
    earlier = await catalog.list_items("chat", cursor=page.previous_cursor, limit=2)
    later = await catalog.list_items("chat", cursor=page.next_cursor, limit=2)
    shown = [[each.item["content"] for each in each_page] for each_page in (earlier, page, later)]
    assert shown == [["a", "b"], ["c", "d"], ["e", "f"]]


@pytest.mark.logic
@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 10])
async def test_previous_cursors_walk_back_over_the_same_items(catalog, engine, newest_first, limit):
    await texts(catalog, *"abcdefg")
    await raw.execute(
        engine, "INSERT INTO agent_messages (session_id, message_data) VALUES ('chat', 'no json')"
    )
    order = {"limit": limit, "newest_first": newest_first}
    page = await catalog.list_items("chat", **order)
    assert page.previous_cursor is None
    there = [page]
    while page.next_cursor:
        page = await catalog.list_items("chat", cursor=page.next_cursor, **order)
        there.append(page)
    back = [page]
    while page.previous_cursor:
        page = await catalog.list_items("chat", cursor=page.previous_cursor, **order)
        back.append(page)
    assert [each.items for each in back[::-1]] == [each.items for each in there]
    if len(back) > 1:
        after = await catalog.list_items("chat", cursor=back[1].next_cursor, **order)
        assert after.items == back[0].items
        with pytest.raises(InvalidCursorError):
            await catalog.list_items("other", cursor=back[0].previous_cursor, **order)


@pytest.mark.logic
async def test_a_page_has_one_place(catalog):
    rows = await texts(catalog, "a", "b")
    cursor = (await catalog.list_items("chat", limit=1)).next_cursor
    for places, named in (
        ({"cursor": cursor, "after": rows[0]}, "cursor and after"),
        ({"after": rows[0], "around": rows[0]}, "after and around"),
        ({"cursor": cursor, "around": rows[0]}, "cursor and around"),
    ):
        with pytest.raises(ValueError, match=f"pass only one of {named}"):
            await catalog.list_items("chat", **places)
    with pytest.raises(ValueError, match="oldest first"):
        await catalog.list_items("chat", around=rows[0], newest_first=True)


@pytest.mark.logic
async def test_a_page_around_an_item_keeps_max_bytes_and_has_the_item(catalog):
    rows = await texts(catalog, *(letter * 100 for letter in "abcdefg"))
    size = len(json.dumps(raw.message("a" * 100), separators=(",", ":")))
    for most in (1, size, 2 * size, 3 * size, 4 * size + 1, 100 * size):
        page = await catalog.list_items("chat", around=rows[3], max_bytes=most)
        shown = "".join(each.item["content"][0] for each in page)
        assert "d" in shown
        assert shown in "abcdefg"
        assert len(shown) <= max(1, most // size)
        if page.previous_cursor is not None:
            left = await catalog.list_items("chat", cursor=page.previous_cursor)
            assert [each.item_id for each in left] == rows[: rows.index(page.items[0].item_id)]


# ---- search ----


@pytest.mark.logic
async def test_a_hit_has_the_item_as_stored(catalog):
    stored = assistant_message("The tram 28").model_dump(exclude_unset=True)
    await catalog.create_session("chat", metadata={"title": "A tram"}, items=[stored])
    await catalog.create_index("$text")
    hits = (await catalog.search("tram")).hits
    assert sorted((hit.role, hit.item) for hit in hits) == [("assistant", stored), ("title", None)]
    assert "tram 28" not in repr(hits[0]).replace(hits[0].snippet, "")

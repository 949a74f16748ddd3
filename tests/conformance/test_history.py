"""Items of a history page by page, rewinding, and forks that end before an item."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest
from agents import Runner
from agents.extensions.memory import EncryptedSession
from agents.run_internal.items import drop_orphan_function_calls
from hypothesis import given
from processes import run_processes
from scaling import examples, scale
from sqlalchemy import text
from test_pairs import HISTORIES

from agents_session_metadata import (
    InvalidCursorError,
    SessionCatalog,
    SessionChangedError,
    SessionNotFoundError,
)
from conformance import raw
from conformance.running import Seconds, agent, calls, waiting_tool

TURN = [raw.message("question"), raw.message("answer", "assistant")]
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "done"}


async def all_items(catalog, session_id="chat", **options):
    """Every item of a history, by walking through its pages, and the sizes of the pages."""
    items, sizes, cursor = [], [], None
    while True:
        page = await catalog.list_items(session_id, cursor=cursor, **options)
        items += page.items
        sizes.append(len(page.items))
        if (cursor := page.next_cursor) is None:
            return items, sizes


async def ids(catalog, session_id="chat"):
    return [each.item_id for each in (await all_items(catalog, session_id))[0]]


# ---- pages ----


async def test_pages_of_items(catalog, engine):
    chat, other = catalog.session("chat"), catalog.session("other")
    before = datetime.now(timezone.utc) - timedelta(seconds=2)
    for number in range(7):
        await chat.add_items([raw.message(f"{number} 😀\0")])
        await other.add_items([raw.message("not this")])
    # Rows that the SDK skips: in the middle, and at the end.
    for data in ("no json", "{", '{"role":"user","content":"8"}', "no json"):
        await raw.execute(
            engine,
            "INSERT INTO agent_messages (session_id, message_data) VALUES ('chat', :data)",
            data=data,
        )
    history = await chat.get_items()
    assert len(history) == 8
    for limit, sizes in ((3, [3, 3, 2]), (8, [8]), (4, [4, 4]), (1000, [8])):
        items, found = await all_items(catalog, limit=limit)
        assert ([each.item for each in items], found) == (history, sizes)
        reverse, found = await all_items(catalog, newest_first=True, limit=limit)
        assert (reverse, found) == (items[::-1], sizes)
    assert [each.item_id for each in items] == sorted({each.item_id for each in items})
    for each in items:
        assert each.created_at.tzinfo is timezone.utc
        assert before <= each.created_at <= datetime.now(timezone.utc) + timedelta(seconds=2)
    for nobody in ("nobody", "chat ", "CHAT", "", "a\0", "\ud800"):
        assert await all_items(catalog, nobody) == ([], [0])


@pytest.mark.logic
async def test_what_a_page_refuses(catalog):
    await catalog.session("chat").add_items(TURN * 3)
    await catalog.session("chat2").add_items(TURN * 3)
    cursor = (await catalog.list_items("chat", limit=2)).next_cursor
    for limit in (0, 1001, True, 1.5, None):
        with pytest.raises(ValueError, match="limit"):
            await catalog.list_items("chat", limit=limit)
    with pytest.raises(TypeError, match="session_id"):
        await catalog.list_items(7)
    scoped = catalog.scoped({"owner_id": "u1"})
    for ask in (
        lambda: catalog.list_items("chat2", cursor=cursor),
        lambda: catalog.list_items("chat", newest_first=True, cursor=cursor),
        lambda: scoped.list_items("chat", cursor=cursor),
        lambda: catalog.list_items("chat", cursor=""),
        lambda: catalog.list_items("chat", cursor=cursor[:-1]),
        lambda: catalog.list_items("chat", cursor=cursor + "="),
        lambda: catalog.list_items("chat", cursor=7),
        lambda: catalog.list_sessions(cursor=cursor),
    ):
        with pytest.raises(InvalidCursorError):
            await ask()
    # It continues after items that are gone.
    assert len(await catalog.rewind_session("chat", before=(await ids(catalog))[1])) == 5
    await catalog.session("chat").add_items(TURN)
    page = await catalog.list_items("chat", cursor=cursor)
    assert ([each.item for each in page.items], page.next_cursor) == (TURN, None)


async def test_a_page_ends_before_the_item_that_would_exceed_max_bytes(catalog, engine):
    """In both orders, within a scope, with characters of several bytes and with junk."""
    session = await catalog.create_session("chat", metadata={"owner_id": "u1"})
    for number in range(6):
        await session.add_items([raw.message(f"{number}" + "é😀" * 50)])
    size = "SELECT message_data FROM agent_messages"
    [size] = {len(text.encode()) for (text,) in await raw.execute(engine, size)}
    history = (await all_items(catalog))[0]
    mine = catalog.scoped({"owner_id": "u1"})
    for of in (catalog, mine):
        for most, sizes in (
            (1, [1] * 6),
            (2 * size - 1, [1] * 6),
            (2 * size, [2, 2, 2]),
            (5 * size, [5, 1]),
            (6 * size, [6]),
            (2**63 - 1, [6]),
        ):
            assert await all_items(of, max_bytes=most) == (history, sizes)
            found = await all_items(of, max_bytes=most, newest_first=True)
            assert found == (history[::-1], sizes)
    assert await all_items(catalog, max_bytes=5 * size, limit=2) == (history, [2, 2, 2])
    assert await all_items(catalog, "nobody", max_bytes=1) == ([], [0])
    await raw.execute(
        engine,
        "INSERT INTO agent_messages (session_id, message_data) VALUES ('chat', :data)",
        data="{" * 2 * size,
    )
    for most in (1, 5 * size, 100 * size):
        assert (await all_items(catalog, max_bytes=most))[0] == history
        assert (await all_items(catalog, max_bytes=most, newest_first=True))[0] == history[::-1]
    for most in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="max_bytes"):
            await catalog.list_items("chat", max_bytes=most)


async def test_pages_and_previews_within_a_scope(mine, everyone):
    (item,) = (await mine.list_items("mine-0")).items
    assert item.item == raw.message("mine 0")
    assert await all_items(mine, "theirs-0") == ([], [0])
    assert (await mine.get_session("mine-0", preview=True)).preview == "mine 0"
    assert await mine.get_session("theirs-0", preview=True) is None
    for change in (
        lambda: mine.rewind_session("theirs-0", turns=1),
        lambda: mine.session("theirs-0").rewind(turns=1),
        lambda: mine.rewind_session("nobody", turns=1),
        lambda: everyone.rewind_session("a\0", turns=1),
        lambda: mine.fork_session("theirs-0", before=1),
    ):
        with pytest.raises(SessionNotFoundError):
            await change()
    copy = await mine.fork_session("mine-0", before=item.item_id)
    assert await copy.get_items() == []
    assert (await copy.get_metadata(["owner_id"])) == {"owner_id": "mine"}
    assert [each.item for each in await mine.rewind_session("mine-0", turns=1)] == [item.item]
    assert (await mine.get_metadata("mine-0"))["title"] == "mine 0"


# ---- rewinding ----


async def test_rewinding_turns(catalog):
    before = [raw.message("hello", "assistant"), raw.message("be brief", "system")]
    session = await catalog.create_session("chat", metadata={"title": "x"})
    assert await session.rewind(turns=1) == []
    await session.add_items([*before, *TURN, *TURN, CALL, OUTPUT, *TURN])
    everything = (await all_items(catalog))[0]
    assert await session.rewind(turns=1) == everything[8:]
    assert await session.rewind(turns=1) == everything[4:8]
    await session.add_items(TURN * 2)
    added = (await all_items(catalog))[0][4:]
    assert await session.rewind(turns=10) == [*everything[2:4], *added]
    assert await session.get_items() == before
    assert await session.rewind(turns=1) == []
    assert await session.get_metadata() == {"title": "x"}


async def test_rewinding_to_an_item(catalog, engine):
    session = await catalog.create_session("chat", metadata={"title": "x"})
    await session.add_items(TURN * 600)
    await catalog.session("other").add_items(TURN)
    await raw.set_times(engine, "chat")
    created_at, updated_at = await raw.times(engine, "chat")
    first, *_, last = everything = await ids(catalog)
    for stale in (last + 1, last - 1, 0, (await ids(catalog, "other"))[-1]):
        with pytest.raises(SessionChangedError, match=f"newest item is {last}") as caught:
            await session.rewind(before=first, expect_last=stale)
        assert caught.value.session_id == "chat"
    for foreign in (0, last + 1, 2**70, *await ids(catalog, "other")):
        with pytest.raises(ValueError, match=f"no item {foreign}"):
            await session.rewind(before=foreign)
    assert (await ids(catalog), await raw.times(engine, "chat")) == (
        everything,
        (created_at, updated_at),
    )
    removed = await catalog.rewind_session("chat", before=everything[2], expect_last=last)
    assert [each.item_id for each in removed] == everything[2:]
    assert [each.item for each in removed] == TURN * 599
    assert await session.get_items() == TURN
    after = await raw.times(engine, "chat")
    assert after[0] == created_at
    assert after[1] > updated_at
    await session.rewind(before=first)
    assert await session.get_items() == []
    assert await session.get_metadata() == {"title": "x"}
    assert len(await ids(catalog, "other")) == 2


async def out_of_order(engine, catalog, session):
    """A history to which clients with different clocks have added, in its order."""
    minutes = [3, 1, 1, 5, 3, 0, 5, 1]
    letters = [raw.message(letter) for letter in "abcdefgh"]
    await session.add_items(letters)
    added = sorted(await ids(catalog, session.session_id))
    for item_id, minute in zip(added, minutes, strict=True):
        # SQLite keeps the text: with a fraction, as an application binds it, or without.
        later = "00.000000" if engine.dialect.name == "sqlite" else "01"
        seconds = later if item_id == added[0] else "00"
        await raw.execute(
            engine,
            f"UPDATE agent_messages SET created_at = '2024-01-01 00:0{minute}:{seconds}'"
            f" WHERE id = {item_id}",
        )
    return [letters["abcdefgh".index(letter)] for letter in "fbcheadg"]


async def test_one_order_everywhere(catalog, engine):
    session = await catalog.create_session("chat")
    await catalog.session("other").add_items(TURN)
    expected = await out_of_order(engine, catalog, session)
    assert await session.get_items() == expected
    assert await session.get_items(3) == expected[-3:]
    for limit in (1, 3, 8):
        items, _ = await all_items(catalog, limit=limit)
        assert [each.item for each in items] == expected
        reverse, _ = await all_items(catalog, limit=limit, newest_first=True)
        assert reverse == items[::-1]
    (record,) = [each async for each in catalog.export_sessions({"$session_id": "chat"})]
    assert [each["item"] for each in record["items"]] == expected
    assert await catalog.import_sessions([{**record, "session_id": "imported"}]) == 1
    await catalog.fork_session("chat", "copy")
    for copied in ("imported", "copy"):
        assert await catalog.session(copied).get_items() == expected
        found = (await all_items(catalog, copied, limit=1))[0]
        assert [(each.created_at, each.item) for each in found] == [
            (each.created_at, each.item) for each in items
        ]
    for position, each in enumerate(items):
        copy = await catalog.fork_session("chat", f"copy-{position}", before=each.item_id)
        assert await copy.get_items() == expected[:position]
    newest = items[-1].item_id
    assert newest != max(each.item_id for each in items)
    with pytest.raises(SessionChangedError):
        await session.rewind(turns=1, expect_last=max(each.item_id for each in items))
    assert await session.rewind(turns=1, expect_last=newest) == items[-1:]
    assert await session.rewind(before=items[4].item_id) == items[4:-1]
    assert await session.get_items() == expected[:4]
    # A cursor continues where it ended, although its item is gone.
    cursor = (await catalog.list_items("chat", limit=3)).next_cursor
    await session.rewind(before=items[2].item_id)
    await session.add_items(TURN)
    page = await catalog.list_items("chat", cursor=cursor)
    assert [each.item for each in page.items] == TURN


@pytest.mark.logic
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, ValueError),
        ({"turns": 1, "before": 1}, ValueError),
        ({"turns": 0}, ValueError),
        ({"turns": -1}, ValueError),
        ({"turns": True}, TypeError),
        ({"turns": "1"}, TypeError),
        ({"before": 1.0}, TypeError),
        ({"turns": 1, "expect_last": "1"}, TypeError),
    ],
)
async def test_arguments_of_a_rewind(catalog, arguments, error):
    await catalog.session("chat").add_items(TURN)
    with pytest.raises(error):
        await catalog.rewind_session("chat", **arguments)
    if "before" in arguments:
        with pytest.raises(error):
            await catalog.fork_session("chat", before=1.0 if error is TypeError else 10**6)
    assert len(await ids(catalog)) == 2


@pytest.mark.logic
async def test_a_pair_is_never_separated(catalog):
    session = catalog.session("chat")
    await session.add_items([raw.message("a"), CALL, OUTPUT, raw.message("b"), CALL])
    first, call, output, *_ = everything = await ids(catalog)
    for change in (
        lambda: session.rewind(before=output),
        lambda: catalog.fork_session("chat", "copy", before=output),
    ):
        with pytest.raises(ValueError, match=rf"item {output} .*belongs to item {call} "):
            await change()
    assert await ids(catalog) == everything
    assert await catalog.get_session("copy") is None
    # The last call has no output yet.
    await session.rewind(before=everything[-1])
    await session.rewind(before=call)
    assert await ids(catalog) == [first]


@pytest.mark.logic
async def test_rows_that_the_sdk_skips_go_with_their_neighbors(catalog, engine):
    session = catalog.session("chat")
    for data in (TURN[0], "junk", TURN[1], "junk", TURN[0], "junk"):
        if data == "junk":
            await raw.execute(
                engine,
                "INSERT INTO agent_messages (session_id, message_data) VALUES ('chat', 'junk')",
            )
        else:
            await session.add_items([data])
    newest = (await ids(catalog))[-1]
    (removed,) = await session.rewind(turns=1, expect_last=newest)
    assert removed.item == TURN[0]
    assert await raw.count_rows(engine, "agent_messages") == 4
    with pytest.raises(ValueError, match="no item"):
        await session.rewind(before=removed.item_id - 1)
    assert len(await session.rewind(turns=1)) == 2
    assert await raw.count_rows(engine, "agent_messages") == 0


async def test_what_looks_like_an_encoding_is_no_item(catalog, engine):
    session = catalog.session("chat")
    await session.add_items([TURN[0]])
    statement = text("INSERT INTO agent_messages (session_id, message_data) VALUES ('chat', :data)")
    async with engine.begin() as connection:
        for data in ('\ufeff{"role": "user", "content": "bom"}', "\ufeff", "\ufffe"):
            await connection.execute(statement, {"data": data})
    assert await session.get_items() == [TURN[0]]
    assert [each.item for each in (await catalog.list_items("chat")).items] == [TURN[0]]
    assert [each.item for each in await session.rewind(turns=1)] == [TURN[0]]


@pytest.mark.logic
async def test_encrypted_histories_are_left_alone(catalog):
    session = EncryptedSession("chat", catalog.session("chat"), "key")
    await session.add_items(TURN)
    first = (await ids(catalog))[0]
    for change in (
        lambda: session.rewind(turns=1),
        lambda: catalog.rewind_session("chat", before=first),
        lambda: catalog.fork_session("chat", before=first),
    ):
        with pytest.raises(ValueError, match="encrypted"):
            await change()
    assert await session.get_items() == TURN


@pytest.mark.logic
@examples(10)
@given(items=HISTORIES)
async def test_what_a_rewind_leaves_is_not_orphaned(engine, items):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.delete_session("chat")
    session = await catalog.create_session("chat")
    numbered = [{**each, "number": at} for at, each in enumerate(items) if isinstance(each, dict)]
    await session.add_items(numbered)
    while everything := (await catalog.list_items("chat")).items:
        kept = {each["number"] for each in drop_orphan_function_calls(await session.get_items())}
        with suppress(ValueError):
            await session.rewind(before=everything[len(everything) // 2].item_id)
        left = await session.get_items()
        assert left in ([each.item for each in everything[: len(left)]], numbered)
        still_kept = {each["number"] for each in drop_orphan_function_calls(left)}
        assert still_kept >= {each["number"] for each in left} & kept
        if len(left) == len(everything):
            await session.pop_item()


# ---- forks ----


@pytest.mark.logic
async def test_forks_say_where_they_come_from(catalog):
    session = await catalog.create_session("chat", metadata={"title": "x", "tags": ["a"]})
    await session.add_items(TURN * 2)
    third = (await ids(catalog))[2]
    copy = await catalog.fork_session("chat", "copy", before=third, metadata={"title": "y"})
    assert await copy.get_items() == TURN
    assert await copy.get_metadata() == {
        "title": "y",
        "tags": ["a"],
        "forked_from": "chat",
        "forked_before": third,
    }
    again = await catalog.fork_session("copy", "again")
    assert (await again.get_metadata()) == {"title": "y", "tags": ["a"], "forked_from": "copy"}
    await catalog.fork_session("chat", "whole", metadata={"forked_from": "chat"})
    family = await catalog.list_sessions({"forked_from": "chat"}, order_by="session_id")
    assert [info.session_id for info in family.sessions] == ["copy", "whole"]
    for metadata in ({"forked_from": "copy"}, {"forked_before": 1}):
        with pytest.raises(ValueError, match="must not set forked_"):
            await catalog.fork_session("chat", "wrong", metadata=metadata)
    assert await session.get_items() == TURN * 2
    original, copied = (await all_items(catalog))[0], (await all_items(catalog, "copy"))[0]
    assert [each.created_at for each in copied] == [each.created_at for each in original[:2]]


# ---- several writers ----

ADDING = """
import asyncio, json, sys
from agents.extensions.memory import SQLAlchemySession
from sqlalchemy.ext.asyncio import create_async_engine
from agents_session_metadata import *

url, kind, name, count = sys.argv[1:]

async def main():
    engine = create_async_engine(url)
    if kind == "add":
        session = SQLAlchemySession("chat", engine=engine)
        for number in range(int(count)):
            mark = f"{name}-{number}"
            # Two rows in one transaction: neither may be there without the other.
            call = {"type": "function_call", "call_id": mark, "name": "f", "arguments": "{}"}
            output = {"type": "function_call_output", "call_id": mark, "output": ""}
            for attempt in range(20):
                try:
                    await session.add_items([{"role": "user", "content": mark}, call, output])
                    break
                except Exception:
                    if attempt == 19:
                        raise
            emit(mark)
    else:
        session = SQLAlchemyMetadataSession("chat", engine=engine)
        for _ in range(int(count)):
            for each in await session.rewind(turns=1):
                emit([each.item.get("call_id", each.item.get("content")), each.item_id])
    await engine.dispose()

start()
asyncio.run(main())
"""


@pytest.mark.scaled
async def test_rewinding_while_others_write(shared_database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("chat")
    count = scale(20, 500)
    writers = [(shared_database.url, "add", name, count) for name in "ab"]
    rewinders = [(shared_database.url, "rewind", name, count) for name in "xy"]
    results = await run_processes(ADDING, [*writers, *rewinders])
    added = {mark for found in results[:2] for mark in found}
    assert len(added) == 2 * count
    removed = [tuple(each) for found in results[2:] for each in found]
    left = [
        (each.item.get("call_id", each.item.get("content")), each.item_id)
        for each in (await all_items(catalog))[0]
    ]
    everything = removed + left
    # No item is lost or removed twice, and none of three that were written together is alone.
    assert len({item_id for _, item_id in everything}) == len(everything) == 3 * len(added)
    for part in (removed, left):
        marks = [mark for mark, _ in part]
        assert all(marks.count(mark) == 3 for mark in marks)


# ---- four scripts of chat applications ----


def books(*steps):
    return agent("books", *steps)


@pytest.mark.logic
async def test_undo(catalog):
    session = catalog.session("chat")
    for question, answer in (("one", "1"), ("two", "2")):
        await Runner.run(books(answer), question, session=session)
    kept = (await session.get_items())[:2]
    removed = await session.rewind(turns=1)
    assert [each.item["role"] for each in removed] == ["user", "assistant"]
    assert await session.get_items() == kept


@pytest.mark.logic
async def test_edit_a_message_and_ask_again(catalog):
    session = await catalog.create_session("chat", metadata={"title": "x"})
    for question in ("one", "two", "three"):
        await Runner.run(books(question.upper()), question, session=session)
    page = await catalog.list_items("chat")
    (second,) = [each for each in page.items if each.item.get("content") == "two"]
    await session.rewind(before=second.item_id, expect_last=page.items[-1].item_id)
    await Runner.run(books("NEW"), "two, please", session=session)
    contents = [each["content"] for each in await session.get_items()]
    assert contents[0::2] == ["one", "two, please"]
    assert contents[3][0]["text"] == "NEW"
    assert await session.get_metadata() == {"title": "x"}


@pytest.mark.logic
async def test_retry_after_a_failure(catalog):
    session = catalog.session("chat")
    await Runner.run(books("1"), "one", session=session)
    kept = await session.get_items()
    tool = waiting_tool(Seconds(), "work", 0, RuntimeError("broken"))
    failing = agent("books", calls("work"), tools=[tool])
    with pytest.raises(Exception, match="broken"):
        await Runner.run(failing, "two", session=session)
    await session.rewind(turns=1)
    assert await session.get_items() == kept
    result = await Runner.run(books("2"), "two", session=session)
    assert result.final_output == "2"
    assert len(await session.get_items()) == 4


async def test_fork_at_a_message(catalog):
    session = await catalog.create_session("chat", metadata={"title": "x"})
    for question in ("one", "two"):
        await Runner.run(books(question.upper()), question, session=session)
    page = await catalog.list_items("chat", newest_first=True)
    (second,) = [each for each in page.items if each.item.get("content") == "two"]
    other = await catalog.fork_session("chat", before=second.item_id)
    result = await Runner.run(books("OTHER"), "something else", session=other)
    assert result.final_output == "OTHER"
    assert [each["content"] for each in (await session.get_items())[::2]] == ["one", "two"]
    found = [each["content"] for each in (await other.get_items())[::2]]
    assert found == ["one", "something else"]
    family = await catalog.list_sessions({"forked_from": "chat"})
    assert [info.session_id for info in family.sessions] == [other.session_id]

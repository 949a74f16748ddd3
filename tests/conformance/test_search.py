"""Searching: what is found, in which order, and by whom."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest
from agents.extensions.memory import SQLAlchemySession

from agents_session_metadata import (
    InvalidCursorError,
    InvalidSearchError,
    ScopeError,
    SessionCatalog,
    TextIndexMissingError,
)
from agents_session_metadata.query import search
from agents_session_metadata.query.cursors import seal
from agents_session_metadata.storage.word_index import STEP
from agents_session_metadata.words import parse_query
from conformance import raw


@pytest.fixture
async def catalog(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    assert await catalog.create_index("$text")
    return catalog


async def found(catalog, query, where=None, **options) -> list[tuple[str, str]]:
    page = await catalog.search(query, where, **options)
    assert page.complete
    return [(hit.session_id, hit.snippet) for hit in page.hits]


async def word_rows(engine) -> int:
    return sum(
        [
            await raw.count_rows(engine, f"agent_sessions_metadata_words{suffix}")
            for suffix in ("", "_queue")
        ]
    )


async def test_what_this_package_writes_is_found_when_the_write_commits(catalog, engine):
    session = await catalog.create_session("a", metadata={"title": "Trip to Lisbon"})
    await session.add_items([raw.message("The TRAM 28, please"), raw.message("hi", "assistant")])
    await catalog.session("b").add_items(
        [
            {"type": "function_call", "name": "f", "call_id": "1", "arguments": '{"x": "tram"}'},
            {"type": "function_call_output", "call_id": "1", "output": "tram"},
            raw.message("tram", "system"),
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "A trâm!", "annotations": []}],
            },
        ]
    )
    page = await catalog.search("tram")
    assert [(hit.session_id, hit.role, hit.snippet, hit.highlights) for hit in page.hits] == [
        ("b", "assistant", "A trâm!", [(2, 6)]),
        ("a", "user", "The TRAM 28, please", [(4, 8)]),
    ]
    assert (page.complete, page.next_cursor) == (True, None)
    assert await found(catalog, '"tram 28" PLE*') == [("a", "The TRAM 28, please")]
    assert await found(catalog, "tram -28") == [("b", "A trâm!")]
    assert await found(catalog, '"28 tram"') == []
    page = await catalog.search("lisbon")
    assert [(hit.session_id, hit.item_id, hit.role) for hit in page.hits] == [("a", None, "title")]
    await session.set_metadata({"title": "Trip to Porto"})
    assert await found(catalog, "lisbon") == []
    assert await found(catalog, "porto") == [("a", "Trip to Porto")]
    await session.edit_metadata(lambda metadata: metadata.update(title="Nowhere"))
    assert await found(catalog, "nowhere") == [("a", "Nowhere")]
    copy = await catalog.fork_session("a", "c")
    assert {each[0] for each in await found(catalog, "tram")} == {"a", "b", "c"}
    assert {each[0] for each in await found(catalog, "nowhere")} == {"a", "c"}
    records = [record async for record in catalog.export_sessions({"title": "Nowhere"})]
    await copy.clear_session()
    await session.pop_item()
    await catalog.session("b").clear_session()
    assert await found(catalog, "tram") == [("a", "The TRAM 28, please")]
    await session.delete_metadata(["title"])
    assert await found(catalog, "nowhere") == []
    assert await catalog.import_sessions(records, on_conflict="replace") == 2
    assert {each[0] for each in await found(catalog, "nowhere tram")} == set()
    assert {each[0] for each in await found(catalog, "nowhere")} == {"a", "c"}
    await session._atomic_replace_items([raw.message("a summary")])
    assert await found(catalog, "summary") == [("a", "a summary")]
    assert {each[0] for each in await found(catalog, "tram")} == {"c"}
    await catalog.delete_sessions({"$session_id": {"$in": ["a", "c"]}})
    assert await word_rows(engine) == 0


async def test_other_writers_wait_in_the_queue(catalog, engine):
    plain = SQLAlchemySession("plain", engine=engine)
    await plain.add_items([raw.message("said elsewhere")])
    page = await catalog.search("elsewhere")
    assert (page.hits, page.complete) == ([], False)
    done = []
    assert await catalog.refresh_index("$text", progress=done.append) == 1
    assert done == [1]
    assert await found(catalog, "elsewhere") == [("plain", "said elsewhere")]
    await plain.add_items([raw.message("and again elsewhere")])
    # The next write of any session catches up.
    await catalog.session("mine").add_items([raw.message("x")])
    assert len(await found(catalog, "elsewhere")) == 2
    await plain.add_items([raw.message("third elsewhere")])
    await catalog.set_metadata("mine", {"x": 1})
    assert len(await found(catalog, "elsewhere")) == 3
    await raw.execute(
        engine,
        "UPDATE agent_messages SET message_data = :data WHERE session_id = 'mine'",
        data='{"role": "user", "content": "elsewhere entirely"}',
    )
    assert len(await catalog.refresh_index("$text") and await found(catalog, "elsewhere")) == 4
    await raw.execute(engine, "DELETE FROM agent_messages WHERE session_id = 'mine'")
    await plain.pop_item()
    assert len(await found(catalog, "elsewhere")) == 2
    await plain.clear_session()
    await catalog.delete_session("mine")
    assert await word_rows(engine) == 0


async def test_a_write_indexes_what_waits_of_its_session_in_bounded_steps(catalog, engine):
    plain = SQLAlchemySession("chat", engine=engine)
    await plain.add_items([raw.message(f"number{number}") for number in range(STEP + 10)])
    await SQLAlchemySession("other", engine=engine).add_items([raw.message("elsewhere")])
    index = catalog._store.database.word_index
    async with engine.begin() as connection:
        assert await connection.run_sync(index.index_own, ["chat"], 1)  # The other one waits.
    assert await raw.count_rows(engine, "agent_sessions_metadata_words_queue") == 11
    for number, hits in ((STEP + 9, 1), (10, 1), (9, 0)):
        assert len((await catalog.search(f"number{number}")).hits) == hits
    await catalog.session("chat").add_items([raw.message("more")])
    assert await found(catalog, "number0") == [("chat", "number0")]
    assert await found(catalog, "elsewhere") == [("other", "elsewhere")]


async def test_scope_filter_and_pages(catalog):
    for number in range(6):
        for owner in ("me", "you"):
            session = await catalog.create_session(
                f"{owner}-{number}", metadata={"owner_id": owner, "even": number % 2 == 0}
            )
            await session.add_items([raw.message(f"word {owner} {number}"), raw.message("other")])
    mine = catalog.scoped({"owner_id": "me"})
    everything = [hit.session_id for hit in (await catalog.search("word", limit=100)).hits]
    assert len(everything) == 12
    own = [each for each in everything if each.startswith("me")]
    assert [each for each, _ in await found(mine, "word")] == own
    assert [each for each, _ in await found(catalog, "word", {"owner_id": "me"})] == own
    assert len(await found(mine, "word", {"even": True})) == 3
    assert len(await found(mine, "word", {"$not": {"even": True}})) == 3
    assert await found(mine, "word", {"owner_id": "you"}) == []
    # Times are those of the session itself, not of any session.
    await raw.execute(
        catalog.engine,
        "UPDATE agent_sessions SET created_at = '2020-01-01 00:00:00',"
        " updated_at = '2020-01-01 00:00:00'"
        " WHERE session_id IN ('me-1', 'you-1', 'you-2')",
    )
    for column in ("$created_at", "$updated_at"):
        old, new = ({column: {each: "2021-01-01T00:00:00Z"}} for each in ("$lt", "$gt"))
        assert [each for each, _ in await found(mine, "word", old)] == ["me-1"]
        both = [each for each, _ in await found(catalog, "word", old)]
        assert sorted(both) == ["me-1", "you-1", "you-2"]
        assert [each for each, _ in await found(mine, "word", new)] == [
            each for each in own if each != "me-1"
        ]
        either = {"$or": [old, {"even": True}]}
        assert sorted([each for each, _ in await found(mine, "word", either)]) == [
            "me-0",
            "me-1",
            "me-2",
            "me-4",
        ]
    for asked, expected in ((catalog, everything), (mine, own)):
        walked, cursor = [], None
        while True:
            page = await asked.search("word", limit=2, cursor=cursor)
            walked += [hit.session_id for hit in page.hits]
            cursor = page.next_cursor
            if cursor is None:
                break
            with pytest.raises(InvalidCursorError):
                await asked.search("other", limit=2, cursor=cursor)
            with pytest.raises(InvalidCursorError):
                await asked.search("word", limit=2, cursor=cursor[:-2])
        assert walked == expected
    with pytest.raises(ScopeError):
        await mine.create_index("$text")
    with pytest.raises(ScopeError):
        await mine.refresh_index("$text")


TIME = "2026-01-01T00:00:00Z"


@pytest.fixture
async def walked(catalog, monkeypatch):
    """The catalog of one owner, whose pages walk past two entries of a word, of any owner.

    Every message has the same time. In the order of hits, each of these sessions is followed by
    one of another owner.
    """
    for name in ("FEW", "FEWER", "RARE_WORD"):
        monkeypatch.setattr(search, name, 1)
    monkeypatch.setattr(search, "WALKS", (2,))
    await catalog.import_sessions(
        {
            "format": 1,
            "session_id": f"{name}-{owner}",
            "created_at": TIME,
            "updated_at": TIME,
            "metadata": {"owner_id": owner},
            "items": [{"created_at": TIME, "item": raw.message("word")}] * items,
        }
        for name, owner, items in [
            *(("a", "mine", 1), ("b", "theirs", 1), ("c", "mine", 1)),
            *(("d", "theirs", 2), ("e", "mine", 1)),
        ]
    )
    return catalog.scoped({"owner_id": "mine"})


def forged(catalog, query, body) -> str:
    """A cursor as somebody makes it who has read the source: its digest has no secret in it."""
    question = ["search", parse_query(query).encoded(), catalog._condition(None).encoded()]
    return seal(json.dumps(body, separators=(",", ":")).encode(), question)


def position(cursor) -> list:
    return json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))[17:])


async def test_a_cursor_does_not_tell_where_a_page_ended(walked, catalog):
    page = await walked.search("word")
    assert [hit.session_id for hit in page.hits] == ["e-mine"]
    [hidden] = position(page.next_cursor)
    assert page.next_cursor == forged(walked, "word", [hidden])
    # The page goes on from there although the message is gone, and repeats no hit.
    await catalog.delete_session("d-theirs")
    found, cursor = [], page.next_cursor
    while cursor is not None:
        page = await walked.search("word", cursor=cursor)
        found += [hit.session_id for hit in page.hits]
        cursor = page.next_cursor
    assert found == ["c-mine", "a-mine"]
    data = bytearray(base64.b64decode(hidden))
    for place in (0, len(data) - 1):
        data[place] ^= 1
        with pytest.raises(InvalidCursorError):
            await walked.search(
                "word", cursor=forged(walked, "word", [base64.b64encode(data).decode()])
            )
    await catalog.drop_index("$text")
    await catalog.create_index("$text")
    with pytest.raises(InvalidCursorError):
        await walked.search("word", cursor=forged(walked, "word", [hidden]))


async def test_a_forged_cursor_tells_nothing_of_others(catalog):
    times = [f"2026-01-01T00:00:0{second}Z" for second in range(3)]
    for owner, own in (("mine", times), ("theirs", times[:2])):
        record = {"format": 1, "session_id": owner, "metadata": {"owner_id": owner}}
        items = [{"created_at": time, "item": raw.message("word")} for time in own]
        record |= {"created_at": TIME, "updated_at": TIME, "items": items}
        await catalog.import_sessions([record])
    mine = catalog.scoped({"owner_id": "mine"})
    item_ids = [item.item_id for item in (await catalog.list_items("theirs")).items]
    digest = hashlib.sha256(b"theirs").hexdigest()[:32]
    cursor = (await mine.search("word", limit=1)).next_cursor
    while cursor is not None:
        time, _, _ = position(cursor)
        pages = [
            await mine.search("word", cursor=forged(mine, "word", [time, "theirs", item_id]))
            for item_id in (*item_ids, 999)
        ]
        assert pages[1:] == pages[:-1]
        for item_id in (*item_ids, 999):
            for body in ([time, None, item_id, digest], [time, None, item_id], [digest]):
                with pytest.raises(InvalidCursorError):
                    await mine.search("word", cursor=forged(mine, "word", body))
        cursor = (await mine.search("word", limit=1, cursor=cursor)).next_cursor


async def test_an_index_is_created_and_dropped(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    session = await catalog.create_session("a", metadata={"title": "old title"})
    await session.add_items([raw.message(f"old {number}") for number in range(3)])
    with pytest.raises(TextIndexMissingError, match="create_index"):
        await catalog.search("old")
    assert await catalog.list_indexes() == []
    done = []
    assert await catalog.create_index("$text", progress=done.append)
    assert done[-1] == 4
    assert not await catalog.create_index("$text")
    [info] = await catalog.list_indexes(count=True)
    assert (info.key, info.complete, info.entries) == ("$text", True, 12)
    assert len(await found(catalog, "old")) == 4
    assert await catalog.drop_index("$text")
    assert not await catalog.drop_index("$text")
    with pytest.raises(TextIndexMissingError):
        await catalog.search("old")
    assert await word_rows(engine) == 0
    await session.add_items([raw.message("unseen")])
    await session.pop_item()
    assert await word_rows(engine) == 0
    assert await catalog.create_index("$text")
    assert len(await found(catalog, "old")) == 4


@pytest.mark.parametrize("query", ["", "  ", "-a", '-"a b"', "!!!", " ".join(map(str, range(33)))])
async def test_queries_that_ask_for_nothing_are_refused(catalog, query):
    with pytest.raises(InvalidSearchError):
        await catalog.search(query)


@pytest.mark.thorough
async def test_what_cannot_be_indexed_is_written_all_the_same(catalog, engine):
    name = "x" * (255 if engine.dialect.name in ("mysql", "mariadb") else 5_000)
    plain = SQLAlchemySession(name, engine=engine)
    await plain.add_items([raw.message("tram"), {"__enc__": 1, "v": 1, "payload": "tram"}])
    await raw.execute(
        engine,
        "INSERT INTO agent_messages (session_id, message_data) VALUES (:name, 'no json, tram')",
        name=name,
    )
    await catalog.session("y").add_items([raw.message("tram " * 50_000), raw.message("tram\x00é")])
    await catalog.refresh_index("$text")
    hits = (await catalog.search("tram", {"$session_id": "y"})).hits
    assert [hit.snippet[:6] for hit in hits] == ["tram\x00é", "tram t"]
    assert len(hits[1].snippet) <= 160
    assert len((await catalog.search("tram")).hits) == (3 if len(name) == 255 else 2)
    await plain.clear_session()
    await catalog.session("y").clear_session()
    assert await word_rows(engine) == 0

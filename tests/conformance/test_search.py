"""Search: what is found, in which order, by whom, and whoever has written it."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from agents.extensions.memory import SQLAlchemySession
from hypothesis import given
from hypothesis import strategies as st
from scaling import examples
from sqlalchemy import MetaData, event
from sqlalchemy import text as text_of
from sqlalchemy.exc import DBAPIError
from test_words import GLUE, PIECES

from agents_session_metadata import (
    InvalidCursorError,
    ScopeError,
    SessionCatalog,
    TablesMissingError,
    UnsupportedDialectError,
    session_tables,
)
from agents_session_metadata.core.features import table_names
from agents_session_metadata.core.schema import drop_statements
from agents_session_metadata.search.feature import MOST
from agents_session_metadata.search.pages import Sizes, search
from agents_session_metadata.search.query import parse_query
from conformance import raw, search_oracle

ROWS = "agent_sessions_metadata_text"


@pytest.fixture
async def catalog(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    assert await catalog.create_index("$text")
    return catalog


class SizedCatalog(SessionCatalog):
    """Small numbers take each way that a search can take."""

    def __init__(self, engine, **sizes: Any) -> None:
        super().__init__(engine, create_tables=True)
        self.sizes = Sizes(**sizes)

    async def search(self, query, where=None, *, limit=20, cursor=None, by_session=False):
        return await search(
            self._store,
            parse_query(query),
            self._store.condition(where),
            limit=limit,
            cursor=cursor,
            by_session=by_session,
            sizes=self.sizes,
        )


async def found(catalog, query, where=None, **options) -> list[tuple[str, str]]:
    page = await catalog.search(query, where, **options)
    assert page.complete
    return [(hit.session_id, hit.snippet) for hit in page.hits]


async def all_hits(catalog, query, where=None, **options) -> list[Any]:
    hits, cursor = [], None
    while True:
        page = await catalog.search(query, where, cursor=cursor, **options)
        assert page.complete
        hits += page.hits
        cursor = page.next_cursor
        if cursor is None:
            return hits


# ---- the same result as plain Python ----


def text(rnd: random.Random, most: int) -> str:
    return "".join(rnd.choice(PIECES) + rnd.choice(GLUE) for _ in range(rnd.randrange(most)))


def random_query(rnd: random.Random) -> str:
    terms = []
    for _ in range(rnd.choice([1, 1, 2, 3])):
        term = rnd.choice(PIECES)
        if rnd.random() < 0.3:
            term = f'"{text(rnd, 5)}"'.replace("\n", " ")
        elif rnd.random() < 0.3:
            term = term[: rnd.randrange(1, 4)] + "*"
        terms.append(rnd.choice(["", "", "", "-"]) + term)
    return " ".join(terms)


def random_item(rnd: random.Random) -> dict[str, Any]:
    content = text(rnd, rnd.choice([1, 4, 12, 60]))
    kind = rnd.randrange(8)
    if kind == 0:
        return {"type": "function_call_output", "call_id": "1", "output": content}
    if kind == 1:
        return raw.message(content, "system")
    if kind == 2:
        parts = [
            {"type": "output_text", "text": each, "annotations": []} for each in (content, "a")
        ]
        return {"type": "message", "role": "assistant", "content": parts}
    if kind == 3:
        return raw.message("x" * 300 + rnd.choice(["", "y"]) + content)
    return raw.message(content, rnd.choice(["user", "assistant"]))


async def stored(engine) -> dict[tuple[str, int | None], tuple[Any, str]]:
    """Times and texts by session and item, those of titles with the item None."""
    newest: dict[str, tuple[Any, int]] = {}
    texts: dict[Any, Any] = {}
    for session_id, item_id, at, data in await raw.execute(
        engine, "SELECT session_id, id, created_at, message_data FROM agent_messages"
    ):
        texts[session_id, item_id] = (at, item_id, 0), search_oracle.text_of(json.loads(data))
        newest[session_id] = max(newest.get(session_id, (at, 0)), (at, item_id))
    quoted = engine.dialect.identifier_preparer.quote("key")
    for session_id, at, data in await raw.execute(
        engine,
        "SELECT s.session_id, s.updated_at, m.value FROM agent_sessions_metadata m JOIN"
        f" agent_sessions s ON s.session_id = m.session_id WHERE {quoted} = 'title'",
    ):
        title = json.loads(data)
        place = (*newest.get(session_id, (at, 0)), 1, session_id)
        texts[session_id, None] = place, title if isinstance(title, str) else None
    return {key: value for key, value in texts.items() if value[1] is not None}


FILTERS = [
    None,
    {"owner_id": "me"},
    {"owner_id": "you"},
    {"$session_id": {"$in": ["me-1", "you-2", "me-3"]}},
    {"$created_at": {"$lt": "2020-01-01T00:00:00Z"}},
    {"$not": {"$created_at": {"$gte": "2020-01-01T00:00:00Z"}}, "owner_id": "me"},
]


async def compare(catalog, texts, rnd) -> None:
    wanted, where, limit = random_query(rnd), rnd.choice(FILTERS), rnd.choice([1, 4, 100])
    by_session = rnd.random() < 0.4
    try:
        parse_query(wanted)
    except ValueError:
        assert all(minus for minus, _, _ in search_oracle.terms(wanted))
        return
    sessions = {info.session_id async for info in catalog.iter_sessions(where)}
    hits = await all_hits(catalog, wanted, where, limit=limit, by_session=by_session)
    expected = sorted(
        (place, key)
        for key, (place, text) in texts.items()
        if key[0] in sessions and search_oracle.matches(wanted, text)
    )[::-1]
    if by_session:
        newest: dict[str, Any] = {}
        for place, key in expected:
            newest.setdefault(key[0], (place, key))
        expected = list(newest.values())
    assert [(hit.session_id, hit.item_id) for hit in hits] == [key for _, key in expected], (
        wanted,
        where,
        by_session,
    )
    for hit in hits:
        assert hit.snippet in texts[hit.session_id, hit.item_id][1]
        assert 0 < len(hit.snippet) <= 160
        ends = [0, *(place for pair in hit.highlights for place in pair), len(hit.snippet)]
        assert ends == sorted(ends)
        assert all(start < end for start, end in hit.highlights)


@examples(4, 150)
@given(seed=st.integers(0, 2**32))
async def test_the_result_equals_plain_python(engine, seed):
    rnd = random.Random(seed)
    few, few_sessions, most, tail, more = (rnd.choice([1, 3, 1_000]) for _ in range(5))
    catalog = SizedCatalog(
        engine,
        few=few,
        few_sessions=few_sessions,
        windows=rnd.choice([(2, 3), (5, 50), (500, 2_500)]),
        candidates=(rnd.choice([1, most]), most),
        tail=tail,
        next=more,
    )
    await catalog.drop_index("$text")
    async for info in catalog.iter_sessions():
        await catalog.delete_session(info.session_id)
    native = rnd.random() < 0.5 and engine.dialect.name in ("sqlite", "postgresql")
    if rnd.random() < 0.7:
        await catalog.create_index("$text", native=native)
    for number in range(12):
        owner = rnd.choice(["me", "you"])
        name = f"{owner}-{number}"
        metadata = {"owner_id": owner}
        if rnd.random() < 0.5:
            metadata["title"] = rnd.choice([text(rnd, 5), text(rnd, 5), 5])
        await catalog.set_metadata(name, metadata)
        items = [random_item(rnd) for _ in range(rnd.randrange(5))]
        writer = SQLAlchemySession(name, engine=engine)
        if rnd.random() < 0.7:
            writer = catalog.session(name)
        await writer.add_items(items)
        if rnd.random() < 0.2:
            await writer.pop_item()
        for table in ("sessions", "messages"):
            time = f"{rnd.choice([2019, 2021])}-01-01 00:00:0{rnd.randrange(3)}"
            change = f"UPDATE agent_{table} SET created_at = '{time}' WHERE session_id = '{name}'"
            await raw.execute(engine, change)
    await catalog.create_index("$text", native=native)
    # Items that others have written since: those of the newest sessions, and a few in between.
    if rnd.random() < 0.3 and not native:
        await raw.execute(engine, f"DELETE FROM {ROWS} WHERE id % 3 = 0")
    for number in range(rnd.choice([0, 0, 2])):
        items = [random_item(rnd) for _ in range(3)]
        await SQLAlchemySession(f"me-{number}", engine=engine).add_items(items)
    texts = await stored(engine)
    for _ in range(25):
        await compare(catalog, texts, rnd)


# ---- who writes and deletes ----


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
    # Each item has a row, without a search that adds it.
    assert await raw.count_rows(engine, ROWS) == await raw.count_rows(engine, "agent_messages") == 6
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
    copy = await catalog.fork_session("a", "c")
    assert {each[0] for each in await found(catalog, "tram")} == {"a", "b", "c"}
    assert {each[0] for each in await found(catalog, "porto")} == {"a", "c"}
    records = [record async for record in catalog.export_sessions({"title": "Trip to Porto"})]
    await copy.clear_session()
    await session.rewind(turns=1)
    await session.add_items([raw.message("tram again")])
    await session.pop_item()
    await catalog.session("b").clear_session()
    assert await found(catalog, "tram") == []
    assert await catalog.import_sessions(records, on_conflict="replace") == 2
    assert {each[0] for each in await found(catalog, "tram")} == {"a", "c"}
    await session._atomic_replace_items([raw.message("a summary")])
    assert await found(catalog, "summary") == [("a", "a summary")]
    assert {each[0] for each in await found(catalog, "tram")} == {"c"}
    assert await raw.count_rows(engine, ROWS) == await raw.count_rows(engine, "agent_messages") == 3
    await catalog.delete_sessions({"$session_id": {"$in": ["a", "c"]}})
    assert await raw.count_rows(engine, ROWS) == 0


async def test_other_writers_are_found_by_the_next_search(catalog, engine):
    plain = SQLAlchemySession("plain", engine=engine)
    await plain.add_items([raw.message("said elsewhere"), raw.message("and again elsewhere")])
    assert await raw.count_rows(engine, ROWS) == 0
    assert len(await found(catalog, "elsewhere")) == 2
    assert await raw.count_rows(engine, ROWS) == 2
    # What SQL edits is found by its old words only, and never shown as a wrong hit.
    await raw.execute(
        engine,
        "UPDATE agent_messages SET message_data = :data",
        data='{"role": "user", "content": "something new"}',
    )
    assert await found(catalog, "elsewhere") == []
    await plain.pop_item()
    assert await raw.count_rows(engine, ROWS) == 1
    await plain.add_items([raw.message("third elsewhere")])
    assert await catalog.refresh_index("$text") == 1
    await raw.execute(engine, "DELETE FROM agent_messages WHERE session_id = 'plain'")
    assert await raw.count_rows(engine, ROWS) == 0
    assert await found(catalog, "third") == []


async def test_a_search_adds_a_bounded_number_of_rows(catalog, engine):
    count = 2 * MOST + 2
    plain = SQLAlchemySession("plain", engine=engine)
    await plain.add_items([raw.message(f"word number{number}") for number in range(count)])
    page = await catalog.search("number1")
    # Only the newest were read.
    assert (page.hits, page.complete) == ([], False)
    assert await raw.count_rows(engine, ROWS) == MOST
    page = await catalog.search("word", limit=3)
    assert (len(page.hits), page.complete) == (3, True)
    page = await catalog.search("number1")
    assert (page.hits, page.complete) == ([], False)
    [hit] = (await catalog.search("number1")).hits
    assert hit.snippet == "word number1"
    assert await found(catalog, "number1") == [("plain", "word number1")]
    assert await raw.count_rows(engine, ROWS) == count


READ_ONLY = {
    "sqlite": "PRAGMA query_only = ON",
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
}


async def test_a_search_that_may_not_write_has_the_same_result(shared_database):
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    await catalog.create_index("$text")
    await catalog.session("a").add_items([raw.message("word of ours")])
    await SQLAlchemySession("b", engine=catalog.engine).add_items([raw.message("word of others")])
    reader = shared_database.engine()
    statement = READ_ONLY[catalog.engine.dialect.name.replace("mariadb", "mysql")]

    @event.listens_for(reader.sync_engine, "connect")
    def forbid(connection, _):
        cursor = connection.cursor()
        cursor.execute(statement)
        cursor.close()
        connection.commit()

    with pytest.raises(DBAPIError):
        await raw.execute(reader, f"DELETE FROM {ROWS}")
    for _ in range(2):
        for where in (None, {"$session_id": {"$in": ["a", "b"]}}):
            assert len(await found(SessionCatalog(reader), "word", where)) == 2
    assert await raw.count_rows(catalog.engine, ROWS) == 1


# ---- scopes, pages, arguments ----


async def test_scope_filter_and_pages(catalog, engine):
    for number in range(6):
        for owner in ("me", "you"):
            session = await catalog.create_session(
                f"{owner}-{number}", metadata={"owner_id": owner, "even": number % 2 == 0}
            )
            await session.add_items([raw.message(f"word {owner} {number}"), raw.message("other")])
    mine = catalog.scoped({"owner_id": "me"})
    everything = [hit.session_id for hit in await all_hits(catalog, "word")]
    assert len(everything) == 12
    own = [each for each in everything if each.startswith("me")]
    assert [each for each, _ in await found(mine, "word")] == own
    assert [each for each, _ in await found(catalog, "word", {"owner_id": "me"})] == own
    assert len(await found(mine, "word", {"even": True})) == 3
    assert await found(mine, "word", {"owner_id": "you"}) == []
    for asked, expected in ((catalog, everything), (mine, own)):
        walked, cursor = [], None
        while True:
            page = await asked.search("word", limit=2, cursor=cursor)
            walked += [hit.session_id for hit in page.hits]
            cursor = page.next_cursor
            if cursor is None:
                break
            for other in (
                asked.search("other", limit=2, cursor=cursor),
                asked.search("word", limit=2, cursor=cursor, by_session=True),
                asked.search("word", limit=2, cursor=cursor[:-2]),
                catalog.scoped({"even": True}).search("word", cursor=cursor),
            ):
                with pytest.raises(InvalidCursorError):
                    await other
        assert walked == expected
    for call in (mine.create_index("$text"), mine.refresh_index("$text")):
        with pytest.raises(ScopeError):
            await call


async def test_a_session_is_found_once_by_its_newest_hit(catalog):
    for name in "abc":
        await catalog.session(name).add_items([raw.message(f"tram {name} {n}") for n in range(3)])
    await catalog.session("a").add_items([raw.message("no such word")])
    await catalog.set_metadata("b", {"title": "The tram"})
    assert await found(catalog, "tram", by_session=True) == [
        ("c", "tram c 2"),
        ("b", "The tram"),
        ("a", "tram a 2"),
    ]
    hits = await all_hits(catalog, "tram", by_session=True, limit=1)
    assert [hit.session_id for hit in hits] == ["c", "b", "a"]
    hits = await all_hits(catalog, "tram", limit=2)
    assert "".join(hit.session_id for hit in hits) == "cccbbbbaaa"


@pytest.mark.logic
@pytest.mark.parametrize("query", ["", "  ", "-a", '-"a b"', "!!!", " ".join(map(str, range(33)))])
async def test_queries_that_ask_for_nothing_are_refused(catalog, query):
    with pytest.raises(ValueError, match="search query"):
        await catalog.search(query)


@pytest.mark.logic
async def test_without_an_index_the_error_says_how_to_create_it(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    for call in (catalog.search("a"), catalog.refresh_index("$text")):
        with pytest.raises(TablesMissingError, match=r'create_index\("\$text"\)'):
            await call
    with pytest.raises(ValueError, match="only the index"):
        await catalog.refresh_index("owner_id")


async def test_a_search_in_a_database_of_the_sdk_alone(engine):
    await raw.create_sdk_tables(engine)
    with pytest.raises(TablesMissingError, match=r'create_index\("\$text"\)'):
        await SessionCatalog(engine).search("a")


async def test_an_index_is_created_and_dropped(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    session = await catalog.create_session("a", metadata={"title": "old title"})
    await session.add_items([raw.message(f"old {number}") for number in range(3)])
    done = []
    assert await catalog.create_index("$text", progress=done.append)
    assert done[-1] == 3
    assert not await catalog.create_index("$text")
    info, _ = await catalog.list_indexes(count=True)
    assert (info.key, info.complete, info.entries) == ("$text", True, 3)
    assert len(await found(catalog, "old")) == 4
    assert await catalog.drop_index("$text")
    assert not await catalog.drop_index("$text")
    assert [each.key for each in await catalog.list_indexes()] == ["$updated_at"]
    with pytest.raises(TablesMissingError):
        await catalog.search("old")
    assert await raw.count_rows(engine, ROWS) == 0
    await session.add_items([raw.message("unseen")])
    await session.pop_item()
    assert await raw.count_rows(engine, ROWS) == 0
    assert await catalog.create_index("$text")
    assert len(await found(catalog, "old")) == 4


@pytest.mark.only_on("sqlite", "postgresql")
async def test_the_native_index_follows_each_write(engine):
    catalog = SizedCatalog(engine, windows=(1, 1))
    await catalog.session("a").add_items([raw.message("tram é 東京"), raw.message("bus")])
    assert await catalog.create_index("$text", native=True)
    assert not await catalog.create_index("$text", native=True)
    await catalog.session("b").add_items([raw.message("tramway"), raw.message("bus")])
    await SQLAlchemySession("c", engine=engine).add_items([raw.message("tram"), raw.message("bus")])
    expected = [("c", "tram"), ("b", "tramway"), ("a", "tram é 東京")]
    assert await found(catalog, "tra*") == expected
    assert await found(catalog, "tra* 京 E") == expected[2:]
    await catalog.session("a").clear_session()
    assert await found(catalog, "tra*") == expected[:2]
    # More bytes than a tsvector holds, in an item that is not the newest.
    words = [f"{number:0100}" for number in range(12_000)]
    await catalog.session("d").add_items([raw.message(" ".join(words)), raw.message("bus")])
    assert [hit.session_id for hit in await all_hits(catalog, words[-1])] == ["d"]
    if engine.dialect.name == "sqlite":
        await raw.execute(
            engine, f"INSERT INTO {ROWS}_fts ({ROWS}_fts, rank) VALUES ('integrity-check', 1)"
        )
    assert await catalog.drop_index("$text")


@pytest.mark.only_on("sqlite")
async def test_dropping_the_tables_drops_the_native_index(engine):
    every = "SELECT name FROM sqlite_master WHERE name LIKE '%\\_text%' ESCAPE '\\'"
    for way in ("statements", "drop_all"):
        catalog = SessionCatalog(engine, create_tables=True)
        await catalog.session("a").add_items([raw.message("tram")])
        await catalog.create_index("$text", native=True)
        assert len(await raw.execute(engine, every)) > 2
        async with engine.begin() as connection:
            if way == "drop_all":
                metadata = session_tables().sessions.metadata
                await connection.run_sync(metadata.drop_all)
            else:
                for statement in drop_statements("sqlite", table_names(), everything=True):
                    await connection.exec_driver_sql(statement)
        assert await raw.execute(engine, every) == []
        await engine.dispose()


@pytest.mark.only_on("sqlite")
async def test_defining_the_tables_again_adds_no_statement(engine):
    metadata, statements = MetaData(), []
    for _ in range(3):
        session_tables(metadata)
    event.listen(
        engine.sync_engine, "before_cursor_execute", lambda *given: statements.append(given[2])
    )
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.run_sync(metadata.drop_all)
    made = [each for each in statements if each.split()[0] in ("CREATE", "DROP")]
    assert len(made) == len({*made})
    assert [each for each in made if "_text_fts" in each] != []


@pytest.mark.dialect
@pytest.mark.not_on("sqlite")  # Its numbers have no size.
async def test_ids_of_items_can_be_large(engine):
    """The application can have made the SDK's tables, with larger numbers as ids."""
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("a")
    large = 2**40
    if engine.dialect.name == "postgresql":
        change = "ALTER TABLE agent_messages ALTER COLUMN id TYPE bigint"
        restart = f"SELECT setval('agent_messages_id_seq', {large})"
        await raw.execute(engine, "ALTER SEQUENCE agent_messages_id_seq AS bigint")
    else:
        change = "ALTER TABLE agent_messages MODIFY id bigint NOT NULL AUTO_INCREMENT"
        restart = f"ALTER TABLE agent_messages AUTO_INCREMENT = {large}"
    for statement in (change, restart):
        await raw.execute(engine, statement)
    await catalog.create_index("$text")
    await catalog.session("a").add_items([raw.message("tram")])
    await SQLAlchemySession("a", engine=engine).add_items([raw.message("tram again")])
    hits = await all_hits(catalog, "tram", limit=1)
    assert [hit.snippet for hit in hits] == ["tram again", "tram"]
    assert hits[1].item_id >= large
    assert await raw.count_rows(engine, ROWS) == 2


async def test_a_process_learns_of_the_index_by_searching(shared_database):
    """Adding items asks once, and then sends no statement because of the index."""
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    session = await catalog.create_session("a")
    await session.add_items([raw.message("first")])
    texts: list[str] = []
    event.listen(
        catalog.engine.sync_engine, "before_cursor_execute", lambda *call: texts.append(call[2])
    )
    await session.add_items([raw.message("second")])
    assert not any("_text" in each for each in texts)
    other = SessionCatalog(shared_database.engine(), create_tables=True)
    await other.create_index("$text")
    await session.add_items([raw.message("third")])
    assert len((await catalog.search("third")).hits) == 1
    assert await raw.count_rows(other.engine, ROWS) == 3
    await session.add_items([raw.message("fourth")])
    assert await raw.count_rows(other.engine, ROWS) == 4
    await other.drop_index("$text")
    with pytest.raises(TablesMissingError):
        await catalog.search("third")
    await session.add_items([raw.message("fifth")])
    assert await raw.count_rows(other.engine, ROWS) == 0


@pytest.mark.not_on("sqlite", "postgresql")
async def test_other_databases_have_no_native_index(catalog):
    with pytest.raises(UnsupportedDialectError, match="native"):
        await catalog.create_index("$text", native=True)


@pytest.mark.logic
@pytest.mark.thorough
async def test_what_has_no_text_is_written_all_the_same(catalog, engine):
    plain = SQLAlchemySession("x" * 255, engine=engine)
    await plain.add_items([raw.message("tram"), {"__enc__": 1, "v": 1, "payload": "tram"}])
    await raw.execute(
        engine,
        "INSERT INTO agent_messages (session_id, message_data) VALUES (:name, 'no json, tram')",
        name="x" * 255,
    )
    await catalog.session("y").add_items(
        [raw.message("tram " * 50_000), raw.message("tram\x00é"), raw.message("w" * 5_000)]
    )
    hits = (await catalog.search("tram", {"$session_id": "y"})).hits
    assert [hit.snippet[:6] for hit in hits] == ["tram\x00é", "tram t"]
    assert len(hits[1].snippet) <= 160
    assert len((await catalog.search("tram")).hits) == 3
    assert len((await catalog.search("w" * 5_000)).hits) == 1
    assert (await catalog.search("w" * 4_999)).hits == []
    assert len((await catalog.search("w" * 4_999 + "*")).hits) == 1


# ---- at the same time ----


async def test_searches_that_add_the_same_rows_while_sessions_are_deleted(shared_database):
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    await catalog.create_index("$text")
    names = [f"s{number}" for number in range(8)]
    for turn in range(3):
        for name in names:
            items = [raw.message(f"word {turn} {number}") for number in range(30)]
            await SQLAlchemySession(name, engine=catalog.engine).add_items(items)
        deleted = SQLAlchemySession(names[turn], engine=catalog.engine)
        results = await asyncio.gather(
            *(catalog.search("word", limit=100) for _ in range(6)),
            catalog.refresh_index("$text"),
            deleted.clear_session(),
            *(catalog.session(name).add_items([raw.message("word")]) for name in names[4:]),
        )
        for page in results[:6]:
            assert all("word" in hit.snippet for hit in page.hits)
    await catalog.refresh_index("$text")
    count = await raw.count_rows(catalog.engine, "agent_messages")
    assert await raw.count_rows(catalog.engine, ROWS) == count
    assert len(await all_hits(catalog, "word", limit=100)) == count


@pytest.mark.only_on("postgresql")
async def test_an_item_that_appears_after_newer_ones_is_found_natively(engine):
    catalog = SizedCatalog(engine, windows=(1, 1), tail=0)
    await catalog.create_index("$text", native=True)
    insert = "INSERT INTO agent_messages (session_id, message_data) VALUES ('a', :data)"
    await SQLAlchemySession("a", engine=engine).add_items([raw.message("first")])
    other = await catalog.create_session("b")
    async with engine.begin() as connection:
        await connection.execute(text_of(insert), {"data": json.dumps(raw.message("late tram"))})
        for number in range(4):
            await other.add_items([raw.message(f"bus {number}")])
            await catalog.refresh_index("$text")
            assert await found(catalog, "tram") == []
    assert await found(catalog, "tram") == [("a", "late tram")]
    await catalog.refresh_index("$text")
    assert await found(catalog, "tram") == [("a", "late tram")]
    [(filled, newest)] = await raw.execute(
        engine, f"SELECT filled, (SELECT max(id) FROM agent_messages) FROM {ROWS}_state"
    )
    assert filled == newest


@pytest.mark.parametrize("steps", [1, 2])
async def test_an_interrupted_index_is_continued(engine, steps):
    catalog = SessionCatalog(engine, create_tables=True)
    for name in "ab":
        items = [raw.message(f"word{number % 200}") for number in range(MOST)]
        await catalog.session(name).add_items(items)

    class StoppedError(Exception):
        pass

    def stop(done):
        seen.append(done)
        if len(seen) == steps:
            raise StoppedError

    seen: list[int] = []
    with pytest.raises(StoppedError):
        await catalog.create_index("$text", progress=stop)
    assert await raw.count_rows(engine, ROWS) == MOST * steps
    assert [each.complete for each in await catalog.list_indexes()] == [False, True]
    assert len(await found(catalog, "word7")) == 10
    assert await catalog.create_index("$text")
    assert [each.complete for each in await catalog.list_indexes()] == [True, True]
    assert await raw.count_rows(engine, ROWS) == 2 * MOST


# ---- plans ----


async def explained(catalog, *calls) -> list[str]:
    """The plans of the statements that some searches run, without statistics on PostgreSQL."""
    engine, statements = catalog.engine, []

    def remember(connection, cursor, statement, parameters, context, many):
        if "_text" in statement and statement.lstrip().startswith(("SELECT", "WITH")):
            statements.append((statement, parameters))

    event.listen(engine.sync_engine, "before_cursor_execute", remember)
    for call in calls:
        await call()
    event.remove(engine.sync_engine, "before_cursor_execute", remember)
    kind = "QUERY PLAN " if engine.dialect.name == "sqlite" else ""
    plans = []
    async with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            await connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
        if engine.dialect.name == "mysql":
            # EXPLAIN notes how it has understood the names in a statement.
            await connection.exec_driver_sql("SET SESSION sql_notes = 0")
        for statement, parameters in statements:
            rows = await connection.exec_driver_sql(f"EXPLAIN {kind}{statement}", parameters)
            plans.append("\n".join(" ".join(map(str, row)) for row in rows))
    assert plans
    return plans


@pytest.mark.thorough
async def test_words_are_looked_up_by_item(engine):
    catalog = SizedCatalog(engine, windows=(20, 40), few=50)
    await catalog.create_index("$text")
    records = (
        {
            "format": 1,
            "session_id": f"s{number}",
            "created_at": "2026-01-01T00:00:00Z",
            "updated_at": "2026-01-01T00:00:00Z",
            "metadata": {"owner_id": f"u{number % 50}"},
            "items": [
                {"created_at": f"2026-01-01T00:00:{n:02}Z", "item": raw.message(f"word {n}")}
                for n in range(10)
            ],
        }
        for number in range(600)
    )
    await catalog.import_sessions(records)
    plans = await explained(
        catalog,
        lambda: catalog.search("nothing"),
        lambda: catalog.search("word", by_session=True),
        lambda: catalog.search("nothing", {"owner_id": "u1"}),
    )
    for plan in plans:
        # No statement reads all words, in any order: each item is looked up by its key.
        for line in plan.splitlines():
            if ROWS in line and f"{ROWS}_state" not in line:
                assert not any(word in line for word in ("Seq Scan", "SCAN", " ALL ")), plan

"""Search: what is found, in which order, by whom, and whoever has written it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from agents.extensions.memory import SQLAlchemySession
from hypothesis import given
from hypothesis import strategies as st
from scaling import examples
from test_words import GLUE, PIECES

from agents_session_metadata import (
    InvalidCursorError,
    ScopeError,
    SessionCatalog,
    TablesMissingError,
    UnsupportedDialectError,
)
from agents_session_metadata.search import query as searching
from agents_session_metadata.search import writing
from agents_session_metadata.search.terms import parse_query
from conformance import raw, search_oracle

ROWS = "agent_sessions_metadata_text"


@pytest.fixture
async def catalog(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    assert await catalog.create_index("$text")
    return catalog


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


@examples(int(__import__("os").environ.get("EX", "4")), 150)
@given(seed=st.integers(0, 2**32))
async def test_the_result_equals_plain_python(engine, monkeypatch, seed):
    rnd = random.Random(seed)
    # So that small numbers take each way.
    for name in ("FEW", "FEW_SESSIONS", "MOST_CANDIDATES", "_TAIL", "_NEXT"):
        monkeypatch.setattr(searching, name, rnd.choice([1, 3, 1_000]))
    monkeypatch.setattr(searching, "WINDOWS", rnd.choice([(2, 3), (5, 50), (500, 2_500)]))
    catalog = SessionCatalog(engine, create_tables=True)
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

"""Random messages and random queries: the answer equals an evaluation in plain Python."""

# ruff: noqa: RUF001
from __future__ import annotations

import json
import random

from agents.extensions.memory import SQLAlchemySession
from hypothesis import given
from hypothesis import strategies as st
from scaling import examples

from agents_session_metadata import SessionCatalog
from agents_session_metadata.query import search
from agents_session_metadata.words import normalize, parse_query, tokenize
from conformance import raw, search_oracle

PIECES = [
    *["the", "a", "tram", "TRAM", "trams", "28", "2", "_x", "foo_bar", "x" * 70, "x" * 70 + "y"],
    *["naïve", "naive", "nai\u0308ve", "STRASSE", "straße", "İstanbul", "ıstanbul", "ﬁne", "①②"],
    *["Ελλάς", "ΕΛΛΑΣ", "ёлка", "елка", "Й", "หิน", "हिन्दी", "हिनदी", "שלום", "مرحبا", "ᾳ"],
    *[
        "東京",
        "東京都",
        "京都",
        "京",
        "東",
        "タワー",
        "ﾀﾜｰ",
        "が",
        "か",
        "か\u3099",
        "ｶﾞ",
        "한국",
        "한",
    ],
    *["e-mail", "mail", "don't", "a\u200db", "ab", "👍🏽", "✌\ufe0f", "…", "\u0301", "\u0301a"],
    *["\u1112\u1161\u11ab", "각\u11a8", "²", "x²", "́", "ʼn", "ŉ", "½", "\u0345", "α\u0345", "ǰ"],
]
GLUE = [" ", " ", " ", "", "-", "\n", ". ", "\u3000", "_"]


def text(rnd: random.Random, most: int) -> str:
    parts = [rnd.choice(PIECES) + rnd.choice(GLUE) for _ in range(rnd.randrange(most))]
    return "".join(parts)


def query(rnd: random.Random) -> str:
    terms = []
    for _ in range(rnd.choice([1, 1, 2, 3])):
        term = rnd.choice(PIECES)
        if rnd.random() < 0.3:
            term = f'"{text(rnd, 4)}"'.replace("\n", " ")
        elif rnd.random() < 0.3:
            term = term[: rnd.randrange(1, 4)] + "*"
        terms.append(rnd.choice(["", "", "", "-"]) + term)
    return " ".join(terms)


def item(rnd: random.Random) -> dict:
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
    return raw.message(content, rnd.choice(["user", "assistant"]))


async def stored(engine) -> dict:
    """What is to be searched: the texts by session and item."""
    texts = {}
    for session_id, item_id, data in await raw.execute(
        engine, "SELECT session_id, id, message_data FROM agent_messages"
    ):
        texts[session_id, item_id] = search_oracle.text_of(json.loads(data))
    quoted = engine.dialect.identifier_preparer.quote("key")
    for session_id, data in await raw.execute(
        engine, f"SELECT session_id, value FROM agent_sessions_metadata WHERE {quoted} = 'title'"
    ):
        title = json.loads(data)
        texts[session_id, None] = title if isinstance(title, str) else None
    return {key: text for key, text in texts.items() if text is not None}


async def ask(catalog, wanted, where, limit) -> list:
    hits, cursor = [], None
    while True:
        page = await catalog.search(wanted, where, limit=limit, cursor=cursor)
        assert page.complete
        assert len(page.hits) <= limit
        hits += page.hits
        cursor = page.next_cursor
        if cursor is None:
            return hits


FILTERS = [
    None,
    {"owner_id": "me"},
    {"owner_id": "you"},
    {"$created_at": {"$lt": "2020-01-01T00:00:00Z"}},
    {"$not": {"$created_at": {"$gte": "2020-01-01T00:00:00Z"}}, "owner_id": "me"},
    {"$or": [{"$updated_at": {"$lt": "2020-01-01T00:00:00Z"}}, {"owner_id": "you"}]},
]


async def compare(catalog, texts, wanted, where, limit) -> None:
    try:
        parse_query(wanted)
    except ValueError:
        assert all(minus for minus, _, _ in search_oracle.terms(wanted))
        return
    sessions = {info.session_id async for info in catalog.iter_sessions(where)}
    hits = await ask(catalog, wanted, where, limit)
    expected = {
        key
        for key, text in texts.items()
        if key[0] in sessions and search_oracle.matches(wanted, text)
    }
    found = [(hit.session_id, hit.item_id) for hit in hits]
    assert len(found) == len(set(found))
    assert set(found) == expected, (wanted, where)
    order = [(hit.created_at, hit.session_id, hit.item_id or 0) for hit in hits]
    assert order == sorted(order, reverse=True)
    for hit in hits:
        assert hit.snippet in texts[hit.session_id, hit.item_id]
        assert 0 < len(hit.snippet) <= 160
        ends = [0, *(place for pair in hit.highlights for place in pair), len(hit.snippet)]
        assert ends == sorted(ends)
        assert all(start < end for start, end in hit.highlights)


@examples(2, 150)
@given(seed=st.integers(0, 2**32))
async def test_the_answer_equals_plain_python(engine, monkeypatch, seed):
    rnd = random.Random(seed)
    # So that small numbers take each path.
    for name in ("FEW", "FEWER", "RARE", "RARE_WORD", "CHECKED"):
        monkeypatch.setattr(search, name, rnd.choice([1, 3, 1_000]))
    monkeypatch.setattr(search, "WALKS", rnd.choice([(2, 3), (5, 50), (500, 2_500)]))
    monkeypatch.setattr(search, "_TEXTS_AT_ONCE", rnd.choice([1, 5, 50]))
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.drop_index("$text")
    async for info in catalog.iter_sessions():
        await catalog.delete_session(info.session_id)
    if rnd.random() < 0.5:
        await catalog.create_index("$text")
    for number in range(12):
        owner = rnd.choice(["me", "you"])
        name = f"{owner}-{number}"
        metadata = {"owner_id": owner}
        if rnd.random() < 0.5:
            metadata["title"] = rnd.choice([text(rnd, 5), text(rnd, 5), 5])
        await catalog.set_metadata(name, metadata)
        items = [item(rnd) for _ in range(rnd.randrange(5))]
        writer = SQLAlchemySession(name, engine=engine)
        if rnd.random() < 0.7:
            writer = catalog.session(name)
        await writer.add_items(items)
        if rnd.random() < 0.2:
            await writer.pop_item()
        time = f"{rnd.choice([2019, 2021])}-01-01 00:00:00"
        change = f"UPDATE agent_sessions SET created_at = '{time}' WHERE session_id = '{name}'"
        await raw.execute(engine, change)
    if not await catalog.create_index("$text"):
        await catalog.refresh_index("$text")
    texts = await stored(engine)
    for _ in range(25):
        await compare(catalog, texts, query(rnd), rnd.choice(FILTERS), rnd.choice([1, 4, 100]))


@examples(50, 10_000)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8), st.data())
def test_words_are_those_of_the_whole_text(pieces, data):
    given_text = data.draw(st.sampled_from(GLUE)).join(pieces)
    tokens = list(tokenize(given_text))
    assert [(token.word, token.joined) for token in tokens] == search_oracle.words(given_text)
    assert normalize(normalize(given_text)) == normalize(given_text)
    for token in tokens:
        part = [each.word for each in tokenize(given_text[token.start : token.end])]
        assert token.word in "".join(part)

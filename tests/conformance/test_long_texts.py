"""Long texts in the text index: what they may cost others."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agents_session_metadata import SessionCatalog
from agents_session_metadata.query import search
from agents_session_metadata.storage import word_index
from agents_session_metadata.words import WordQuery, indexed_words, parse_query, tokenize
from conformance import raw

LONG = "straße " * 2_000


@pytest.fixture
async def catalog(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    assert await catalog.create_index("$text")
    return catalog


@pytest.fixture
def other_task():
    """A function that ends only when another task of the event loop has run since it began."""
    ran = threading.Event()

    def wait(loop) -> None:
        ran.clear()
        loop.call_soon_threadsafe(ran.set)
        assert ran.wait(20)

    return wait


async def test_other_tasks_go_on_while_a_text_is_split(catalog, monkeypatch, other_task):
    loop, split = asyncio.get_running_loop(), []

    def indexed(text):
        if len(text) > 100:
            other_task(loop)
            split.append("written")
        return indexed_words(text)

    def match(query, text, *, before=WordQuery.match):
        other_task(loop)
        split.append("found")
        return before(query, text)

    monkeypatch.setattr(word_index, "indexed_words", indexed)
    session = await catalog.create_session("a")
    await session.add_items([raw.message(LONG), raw.message("short")])
    monkeypatch.setattr(WordQuery, "match", match)
    page = await catalog.search("strasse")
    assert len(page.hits) == 1
    assert split == ["written", "found"]


async def test_a_page_ends_when_it_has_compared_enough(catalog, monkeypatch):
    session = await catalog.create_session("a")
    await session.add_items([raw.message(f"{LONG} {number}") for number in range(5)])
    whole = [hit.item_id for hit in (await catalog.search("strasse")).hits]
    assert len(whole) == 5
    monkeypatch.setattr(search, "COMPARED", 2 * len(LONG))
    sizes, found, cursor = [], [], None
    while True:
        page = await catalog.search("strasse", limit=4, cursor=cursor)
        sizes.append(len(page.hits))
        found += [hit.item_id for hit in page.hits]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == whole
    assert max(sizes) == 2
    # A page gets on however long a single text is.
    monkeypatch.setattr(search, "COMPARED", 1)
    page = await catalog.search("strasse", limit=4)
    assert [hit.item_id for hit in page.hits] == whole[:1]
    assert page.next_cursor


def test_marks_without_end_are_ignored():
    # Hindi, whose marks are part of a word; and Latin, whose are not.
    [token] = tokenize("\u0928" + "\u093f" * 500)
    assert (token.word, token.end) == ("\u0928" + "\u093f" * 63, 501)
    # Sorting these takes longer than anybody waits if all are sorted together.
    text = "e" + "\u0301\u0323" * 500_000 + "x kept"
    assert indexed_words(text) == {b"ex", b"kept"}
    match = parse_query("ex kept").match(text)
    assert match is not None

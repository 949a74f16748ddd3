"""Searching in the browser: hits, their places in a history, and what is missing."""

from __future__ import annotations

import re

import pytest
from agents.extensions.memory import SQLAlchemySession

from agents_session_metadata import SessionCatalog
from conformance import raw

from .browsing import HOST, client, items, link


@pytest.fixture
async def catalog(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_index("$text")
    return catalog


def hits(page) -> list[str]:
    """The snippets of a page, with the matches in brackets."""
    found = re.findall(r'<span class="snippet">(.*?)</span>', page.text, re.DOTALL)
    return [each.replace("<mark>", "[").replace("</mark>", "]") for each in found]


async def test_without_an_index_the_page_says_how_to_create_one(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_session("a", metadata={"title": "Lisbon"})
    async with client(catalog) as browser:
        page = await browser.get("/?q=lisbon")
        assert page.status_code == 200
        assert "agent-sessions index create '$text' --create-tables" in page.text
        await catalog.create_index("$text")
        assert hits(await browser.get("/?q=lisbon")) == ["[Lisbon]"]


async def test_hits_lead_to_their_item_on_its_page_of_the_history(catalog) -> None:
    session = await catalog.create_session("long", metadata={"title": "The needle", "agent": "x"})
    texts = [f"hay {number}" for number in range(260)]
    texts[130] = "A <b>needle</b> in the hay"
    await session.add_items([raw.message(text) for text in texts])
    await catalog.create_session("other", metadata={"title": "Another needle", "agent": "y"})
    ids = [each.item_id for each in (await catalog.list_items("long", limit=1000)).items]
    async with client(catalog) as browser:
        page = await browser.get("/", params={"q": "needle", "agent": "x"})
        assert hits(page) == ["A &lt;b&gt;[needle]&lt;/b&gt; in the hay", "The [needle]"]
        for word in ("User", "Title", "The needle"):
            assert word in page.text
        found = re.findall(r'<a href="(/session[^"]*)"', page.text)
        assert [each.partition("?")[2] for each in found] == [
            f"id=long&amp;item={ids[130]}#item-{ids[130]}",
            "id=long",
        ]
        middle = await browser.get(f"/session?id=long&item={ids[130]}")
        assert items(middle) == ids[110:210]
        # From there, every item can be reached.
        older = await browser.get(link(middle, "↑ Older items"))
        assert items(older) == ids[10:110]
        assert items(await browser.get(link(older, "↑ Older items"))) == ids[:10]
        assert items(await browser.get(link(middle, "↓ Later items"))) == ids[210:]
        assert items(await browser.get(link(middle, "From the beginning"))) == ids[:100]
        assert items(await browser.get(link(middle, "From the end"))) == ids[160:]
        # An item that is gone still has a place.
        await session.pop_item()
        gone = await browser.get(f"/session?id=long&item={ids[-1]}")
        assert f"Item {ids[-1]} does not exist any more" in gone.text
        assert items(gone) == ids[239:259]
        for bad in ("x", "-1", "9" * 30):
            assert (await browser.get(f"/session?id=long&item={bad}")).status_code == 400


async def test_pages_of_hits(catalog) -> None:
    for number in range(45):
        await catalog.session(f"s{number:02}").add_items([raw.message(f"word {number:02}")])
    async with client(catalog) as browser:
        pages = [await browser.get("/?q=word")]
        while "Older →" in pages[-1].text:
            pages.append(await browser.get(link(pages[-1], "Older")))
        assert [len(hits(page)) for page in pages] == [20, 20, 5]
        assert len({hit for page in pages for hit in hits(page)}) == 45
        newer = await browser.get(link(pages[2], "← Newer"))
        assert hits(newer) == hits(pages[1])
        assert hits(await browser.get(link(newer, "← Newer"))) == hits(pages[0])
        for stolen in ("&agent=x", "&q=words"):
            answer = await browser.get(link(pages[0], "Older") + stolen)
            assert answer.status_code == 400
        # The list without a search has other cursors.
        listed = await browser.get("/")
        assert (await browser.get(link(listed, "Older") + "&q=word")).status_code == 400


async def test_what_is_not_indexed_yet_is_told(catalog, engine) -> None:
    await catalog.create_session("a", metadata={"owner_id": "u1"})
    await SQLAlchemySession("a", engine=engine).add_items([raw.message("word")])
    async with client(catalog) as browser:
        page = await browser.get("/?q=word")
        assert "not indexed yet" in page.text
        await catalog.refresh_index("$text")
        page = await browser.get("/?q=word")
        assert "not indexed yet" not in page.text
        assert hits(page) == ["[word]"]


async def test_bad_searches(catalog) -> None:
    async with client(catalog) as browser:
        for query, status in (
            ("-word", 400),
            ("!", 400),
            (" ".join(f"w{number}" for number in range(40)), 400),
            ("a" * 1001, 400),
            ('"open', 200),
            ("<script>alert(1)</script>\x00", 200),
        ):
            page = await browser.get("/", params={"q": query})
            assert page.status_code == status, query
            assert "<script>alert" not in page.text


async def test_a_scope_holds_for_hits_and_places(mine, everyone) -> None:
    await everyone.create_index("$text")
    scope = {"scope": lambda request: {"owner_id": "mine"}}
    theirs = (await everyone.list_items("theirs-0")).items[0].item_id
    async with client(everyone, **scope) as browser:
        assert len(hits(await browser.get("/?q=mine"))) == 4
        for query in ("q=theirs", "q=theirs&owner_id=theirs", "q=0&filter=tags:theirs"):
            page = await browser.get(f"/?{query}")
            assert page.status_code == 200
            assert hits(page) == []
        answers = [
            await browser.get(f"{HOST}/session?id={session_id}&item={theirs}")
            for session_id in ("theirs-0", "missing0")
        ]
        assert answers[0].status_code == 404
        assert answers[0].text == answers[1].text
        assert "theirs" not in (await browser.get(f"/session?id=mine-0&item={theirs}")).text

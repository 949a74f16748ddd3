"""The cost of a page of the browser is bounded, whatever is stored."""

from __future__ import annotations

import gc
import json
from html import unescape
from time import process_time
from typing import Any

import httpx2
import psutil
import pytest
from pygments.lexers import get_all_lexers
from scaling import scale

from agents_session_metadata import SessionCatalog, SessionRuns
from conformance import raw
from conformance.approving import Deployer, call

from .browsing import client, link

pytestmark = pytest.mark.logic

MIB = 1 << 20
LARGEST = 2 * MIB
# Of a page of plain lines, 1 MiB. The worst that a page is known to take is three times as long.
TIMES = 5


async def request(browser: httpx2.AsyncClient, address: str) -> tuple[httpx2.Response, float]:
    """A page, and the CPU time that it took."""
    began = process_time()
    page = await browser.get(address)
    return page, process_time() - began


async def costs(browser: httpx2.AsyncClient, address: str) -> httpx2.Response:
    """A page of 2 MiB at most, which takes at most five times as long as one of plain lines.

    The best of three attempts, each beside a page of plain lines.
    """
    found = []
    while not found or (min(found) >= TIMES and len(found) < 3):
        plain, unit = await request(browser, "/session?id=plain")
        page, time = await request(browser, address)
        found.append(time / unit)
    assert len(plain.content) > MIB
    assert page.status_code == 200
    assert len(page.content) <= LARGEST
    assert min(found) < TIMES
    return page


def said(text: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def called(arguments: str, name: str = "f") -> dict[str, Any]:
    return {"type": "function_call", "name": name, "call_id": "c", "arguments": arguments}


def block(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```\n"


PLAIN = [said("some words in a line\n" * 1_000)] * 100
IMAGE = "data:image/png;base64," + "A" * (3 * MIB // 2)
LEXERS = [names[0] for _, names, _, _ in get_all_lexers() if names]
STORED: dict[str, list[dict[str, Any]]] = {
    "letters": [said("x" * 8 * MIB)],
    "words of a user": [raw.message("word " * (8 * MIB // 5))] * 2,
    "quotes": [said('"' * 20_000)] * 100,
    "control characters": [raw.message("\x01" * 20_000)] * 100,
    "characters of four bytes": [said("😀" * 20_000)] * 100,
    "every language": [said(block(each, "\n" * 2_500 + "a.a.a. " * 400)) for each in LEXERS],
    "every language, short": [
        said("".join(block(each, unit * (900 // len(unit))) for each in LEXERS[start : start + 20]))
        for start in range(0, len(LEXERS), 20)
        for unit in ("\n", "a.", "\t", "/*", '"\\', "é")
    ],
    "code as long as it is highlighted": [
        said("".join(block(each, unit * (2_998 // len(unit))) for _ in range(6)))
        for each in ("java", "c", "typescript", "diff", "tsx", "json")
        for unit in ("a ", "/", "a.", "--", "_", "[")
    ],
    "brackets": [said("[" * 20_000), said("![" * 10_000)] * 50,
    "nested images": [said("![a" * 6_000 + "](http://b)" * 180)] * 100,
    "a wide table": [said("|" + "a|" * 3_300 + "\n|" + "-|" * 3_300 + "\n" + "|\n" * 3_300)] * 50,
    "a long table": [said("a|b\n-|-\n" + "|\n" * 9_000)] * 50,
    "references": [said(f"[a]: http://{'x' * 9_000}\n\n" + "[a]" * 3_600)] * 100,
    "60 images": [raw.message([{"type": "input_image", "image_url": IMAGE}]) for _ in range(60)],
    "60 images in Markdown": [said(f"![a]({IMAGE})") for _ in range(60)],
    "small images": [said("![](data:image/png;base64,AA)" * 20_000)] * 10,
    "parts": [said([{"type": "output_text", "text": "a"}] * 200_000)],
    "other parts": [said([{"type": "x"}] * 200_000)],
    "arguments as a tree": [called(json.dumps({f"a{n}": "\n" for n in range(1_500)}))] * 100,
    "lists": [called("[" * 900 + "]" * 900)] * 100,
    "large arguments": [called(json.dumps({"text": "a\n" * 2 * MIB}))],
    "other items": [{"type": "x", "value": [[0] * 10] * 100_000}],
    "an object as output": [
        called("{}"),
        {"type": "function_call_output", "call_id": "c", "output": {"a": [1] * MIB}},
    ],
    "keys": [{"type": "x_call", **{f"k{number}": "" for number in range(200_000)}}],
}


# Of what made pages slow or long: escaping, highlighting, Markdown, trees.
OFTEN = ["control characters", "every language, short", "a wide table", "keys"]


@pytest.mark.scaled
@pytest.mark.thorough
@pytest.mark.parametrize("name", scale(OFTEN, [*STORED]))
async def test_a_page_of_a_session_takes_five_times_a_plain_one_and_2_mib_at_most(
    engine, name
) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.session("plain").add_items(PLAIN)
    await catalog.session("a").add_items(STORED[name])
    async with client(catalog, allow_write=True) as browser:
        page = await costs(browser, "/session?id=a")
        await costs(browser, "/session?id=a&from=end")
        if "↓ Later items" in page.text:
            await costs(browser, link(page, "↓ Later items"))


# These runs are larger than a packet of these servers.
@pytest.mark.scaled
@pytest.mark.not_on("mariadb", "mysql")
@pytest.mark.thorough
async def test_lists_and_metadata_take_five_times_a_plain_page_and_2_mib_at_most(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.session("plain").add_items(PLAIN)
    long = {f"key {n}": {"a": ["<" * 20_000, '"' * 20_000]} for n in range(80)}
    long |= {"title": '"' * 30_000, "tags": ['"' * 20_000, "😀" * 5_000]}
    long |= {"owner_id": "😀" * 15_000, "agent": "😀" * 15_000, "status": "<" * 60_000}
    for number in range(scale(8, 25)):
        await catalog.create_session(f"s{number}", metadata=long)
    calls = [call("deploy", "c1", target="<\n" * MIB)]
    for number in range(1, scale(2, 4)):
        await catalog.session(f"w{number}").add_items([raw.message("<" * 8 * MIB)])
        await SessionRuns(catalog).run(f"w{number}", Deployer().agent(calls), "Go")
    async with client(catalog, allow_write=True) as browser:
        for address in ("/", "/session?id=s1", "/statistics", "/runs", "/delete?id=w1"):
            await costs(browser, address)
        [first, *_] = (await catalog.list_items("w1", limit=1)).items
        await costs(browser, f"/rewind?id=w1&before={first.item_id}")


async def test_what_a_page_cuts_links_to_the_whole(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    text = "word " * 5_000
    items = [raw.message(text), said(text), called(json.dumps(text))]
    output = {"type": "function_call_output", "call_id": "c", "output": f"{text}!"}
    await catalog.session("a").add_items([*items, output, {"type": "x", "value": text}])
    async with client(catalog) as browser:
        page = await browser.get("/session?id=a")
        links = page.text.split('(cut; <a href="')[1:]
        shown = [
            (await browser.get(unescape(each.partition('"')[0]))).json()["item"] for each in links
        ]
        assert shown == [*items, output, {"type": "x", "value": text}]
        assert (await browser.get("/item?id=a&item=99")).status_code == 404
        assert (await browser.get("/item?id=b&item=1")).status_code == 404
    async with client(catalog, scope=lambda _: {"owner_id": "u2"}) as browser:
        assert (await browser.get("/item?id=a&item=1")).status_code == 404


async def test_a_page_ends_early_and_names_the_next(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.session("a").add_items([raw.message(f"{n}" + "x" * 5 * MIB) for n in range(3)])
    async with client(catalog) as browser:
        page, found = await browser.get("/session?id=a"), 1
        while "↓ Later items" in page.text:
            assert page.text.count('<div class="step user"') == 1
            page, found = await browser.get(link(page, "↓ Later items")), found + 1
        assert found == 3


async def test_an_image_that_cannot_be_decoded_is_not_found(engine) -> None:
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.session("a").add_items([said("![a](data:image/png;base64,A)")])
    async with client(catalog) as browser:
        page = await browser.get("/session?id=a")
        image = unescape(page.text.partition('<img src="')[2].partition('"')[0])
        assert (await browser.get(image)).status_code == 404


@pytest.mark.scaled
@pytest.mark.thorough
async def test_memory_comes_back_after_a_thousand_pages(engine) -> None:
    """Of different texts with images, after their sessions were deleted."""
    catalog = SessionCatalog(engine, create_tables=True)
    pages = scale(30, 1_000)

    async def read(number: int) -> None:
        letter = chr(0x4E00 + number)
        items = [said(f"{number} {letter * 5_000} ![a]({IMAGE})"), raw.message(IMAGE + letter)]
        await catalog.session("a").add_items(items)
        assert (await browser.get("/session?id=a")).status_code == 200
        await catalog.delete_session("a")

    def used() -> float:
        gc.collect()
        return float(psutil.Process().memory_info().rss) / MIB

    async with client(catalog) as browser:
        for number in range(10):
            await read(number)
        before = used()
        for number in range(pages):
            await read(10 + number)
        assert used() - before < 30

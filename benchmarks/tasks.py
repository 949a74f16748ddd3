"""Ten tasks in a real browser: this package's pages beside datasette.

All show the same sessions, those of `agent-sessions web --demo`. Each task begins at the first page
of its tool and is done in the way with the fewest clicks that we found. Clicks are counted as they
are made: each click, each field that is filled in, and each press of a key is one; characters are
counted apart. Milliseconds run from the first click until the page shows the result, so they are
those of a hand that does not think.

datasette shows our tables, in its own SQL box. A task that a tool cannot do is left out. Clicks in
google-adk's page are only counted: see `doors.ADK_CLICKS`.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import median

from playwright.async_api import Browser, Page, async_playwright

from agents_session_metadata import SessionCatalog
from agents_session_metadata.web.demo import fill

from .databases import Server
from .serving import serving

FIND, FILTER, SEARCH, OPEN = "find by owner", "filter by tag", "search", "open"
JUMP, RENAME, TAG, FAILED = "jump to the hit", "rename", "tag", "see what failed this week"
DELETE, EXPORT = "delete", "export"
TASKS = (FIND, FILTER, SEARCH, OPEN, JUMP, RENAME, TAG, FAILED, DELETE, EXPORT)
BROWSER, DATASETTE = "this package", "datasette"
OWNER, CASE = "ana", "Weekend in Lisbon"
_TURNS = 5
_CHROMIUM = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

Steps = Callable[["Hand"], Awaitable[None]]


class Hand:
    """Uses a page and counts what it does."""

    def __init__(self, page: Page, session_id: str) -> None:
        self.page = page
        self.session_id = session_id
        self.clicks = self.characters = 0

    async def click(self, selector: str) -> None:
        """Click on something."""
        self.clicks += 1
        await self.page.click(selector)

    async def type(self, selector: str, text: str, *, enter: bool = False) -> None:
        """Fill in a field, and press Enter."""
        self.clicks += 1 + enter
        self.characters += len(text)
        await self.page.fill(selector, text)
        if enter:
            await self.page.press(selector, "Enter")

    async def press(self, key: str) -> None:
        """Press a key."""
        self.clicks += 1
        await self.page.keyboard.press(key)

    async def insert(self, text: str) -> None:
        """Type where the cursor is."""
        self.characters += len(text)
        await self.page.keyboard.insert_text(text)

    async def sees(self, selector: str) -> None:
        """Wait until something is visible."""
        await self.page.locator(selector).first.wait_for()


# ---- this package ----


async def _find(hand: Hand) -> None:
    await hand.click(f".facets a:has-text('{OWNER}')")
    await hand.sees(f".chips:has-text('{OWNER}')")


async def _filter(hand: Hand) -> None:
    await hand.click(".facets a:has-text('booking')")
    await hand.sees(".chips:has-text('booking')")


async def _search(hand: Hand) -> None:
    await hand.type("#search", "tram 28", enter=True)
    await hand.sees(".hits mark")


async def _open(hand: Hand) -> None:
    await hand.click("table.sessions td.name a >> nth=0")
    await hand.sees("article.turn")


async def _jump(hand: Hand) -> None:
    await _search(hand)
    await hand.click(".hits a >> nth=0")
    await hand.sees(".step:target")


async def _rename(hand: Hand) -> None:
    await _open(hand)
    await hand.type("#title", "Renamed", enter=True)
    await hand.sees("h1:has-text('Renamed')")


async def _tag(hand: Hand) -> None:
    await _open(hand)
    await hand.type("#tags", "urgent", enter=True)
    await hand.sees(".metadata:has-text('urgent')")


async def _failed(hand: Hand) -> None:
    # The newest come first, so this week's are at the top.
    await hand.click(".facets a:has-text('failed')")
    await hand.sees("table.sessions .status.failed")


async def _delete(hand: Hand) -> None:
    await _open(hand)
    await hand.click("text=Delete…")
    await hand.click("button:text('Delete')")
    await hand.sees("table.sessions")


async def _export(hand: Hand) -> None:
    await _open(hand)
    await hand.click("text=Raw JSON")
    await hand.sees("pre")


_OURS: dict[str, Steps] = {
    FIND: _find,
    FILTER: _filter,
    SEARCH: _search,
    OPEN: _open,
    JUMP: _jump,
    RENAME: _rename,
    TAG: _tag,
    FAILED: _failed,
    DELETE: _delete,
    EXPORT: _export,
}

# ---- datasette ----

_METADATA = "select session_id from agent_sessions_metadata where key = '{}' and value {}"


def _sql(statement: str) -> Steps:
    async def ask(hand: Hand) -> None:
        await hand.click("h2 a")
        await hand.click(".CodeMirror")
        await hand.press("Control+A")
        await hand.insert(statement.replace("SESSION", hand.session_id))
        await hand.click("input[value='Run SQL']")
        await hand.sees("table.rows-and-columns tbody tr")

    return ask


async def _datasette_export(hand: Hand) -> None:
    await _DATASETTE[OPEN](hand)
    await hand.click("p.export-links a:text('json')")
    await hand.sees("pre")


_DATASETTE: dict[str, Steps] = {
    FIND: _sql(_METADATA.format("owner_id", f"= '\"{OWNER}\"'")),
    FILTER: _sql(_METADATA.format("tags", "like '%\"booking\"%'")),
    SEARCH: _sql("select * from agent_messages where message_data like '%tram 28%'"),
    OPEN: _sql("select message_data from agent_messages where session_id = 'SESSION'"),
    FAILED: _sql(
        "select session_id from agent_sessions s join agent_sessions_metadata m"
        " using (session_id) where key = 'status' and value = '\"failed\"'"
        " and s.updated_at > date('now', '-7 days')"
    ),
    EXPORT: _datasette_export,
}

# ---- measuring ----


async def measure_tasks(
    server: Server, *, with_peers: bool
) -> dict[str, dict[str, dict[str, float]]]:
    """Do every task with every tool, and return clicks, characters and milliseconds by task."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("The ten tasks are left out: chromium is not installed.")
        return {}
    url = await server.create("tasks")
    try:
        with contextlib.ExitStack() as stack:
            async with SessionCatalog.from_url(url, create_tables=True) as catalog:
                await fill(catalog)
                newest = await catalog.list_sessions(limit=1)
            session_id = newest.sessions[0].session_id
            tools = {BROWSER: (stack.enter_context(serving("browser", url)).port, _OURS)}
            if with_peers:
                client = stack.enter_context(serving("datasette", url))
                tools[DATASETTE] = client.port, _DATASETTE
            async with _opened(chromium) as browser:
                return await _do(tools, browser, session_id)
    finally:
        await server.drop(url)


@contextlib.asynccontextmanager
async def _opened(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=_CHROMIUM)
        yield browser
        await browser.close()


async def _do(
    tools: dict[str, tuple[int, dict[str, Steps]]], browser: Browser, session_id: str
) -> dict[str, dict[str, dict[str, float]]]:
    """All tasks by turns, so that noise hits all tools alike; what deletes comes last."""
    took: dict[tuple[str, str], list[tuple[float, Hand]]] = {}
    for task in sorted(TASKS, key=lambda task: task == DELETE):
        for turn in range(_TURNS + 1):
            for tool, (port, steps) in tools.items():
                if task not in steps:
                    continue
                page = await browser.new_page()
                page.set_default_timeout(15_000)
                await page.goto(f"http://127.0.0.1:{port}/")
                hand = Hand(page, session_id)
                began = time.perf_counter()
                await steps[task](hand)
                if turn:  # the first warms up
                    took.setdefault((task, tool), []).append((time.perf_counter() - began, hand))
                await page.close()
    found: dict[str, dict[str, dict[str, float]]] = {task: {} for task in TASKS}
    for (task, tool), turns in took.items():
        hand = turns[0][1]
        found[task][tool] = {
            "clicks": hand.clicks,
            "characters": hand.characters,
            "ms": round(median(seconds for seconds, _ in turns) * 1000, 1),
        }
    return found

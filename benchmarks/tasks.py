"""Ten tasks in a real browser: this package's pages beside datasette and google-adk's web page.

All show the same sessions, those of `agent-sessions web --demo`. Each task begins at the first page
of its tool and is done in the way with the fewest clicks that we found. Clicks are counted as they
are made: each click, each field that is filled in, and each press of a key is one; characters are
counted apart. Milliseconds run from the first click until the page shows the result, so they are
those of a hand that does not think.

A task that a tool cannot do is left out. datasette shows our tables, in its own SQL box, and writes
nothing. `adk web` shows the sessions of one app and one user, which its address keeps: it begins
with the sessions of another owner. It has no search and no filter for sessions. It changes the
state of a session, and with it tags, only together with a message to the agent.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from playwright.async_api import Browser, Page, async_playwright
from sqlalchemy import URL

from agents_session_metadata import SessionCatalog
from agents_session_metadata.web.demo import fill

from .databases import Server
from .doors import ADK, OURS
from .serving import serving

FIND, FILTER, SEARCH, OPEN = "find by owner", "filter by tag", "search", "open"
JUMP, RENAME, TAG, FAILED = "jump to the hit", "rename", "tag", "see what failed this week"
DELETE, EXPORT = "delete", "export"
TASKS = (FIND, FILTER, SEARCH, OPEN, JUMP, RENAME, TAG, FAILED, DELETE, EXPORT)
DATASETTE = "datasette"
OWNER, OTHER_OWNER = "ana", "ben"
_APP = "benchmark"
_TURNS = 5
_CHROMIUM = [
    # google-adk's page names fonts elsewhere. Blocking by Playwright would turn off the cache.
    *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--no-proxy-server"),
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

Steps = Callable[["Hand"], Awaitable[None]]


class Hand:
    """Uses a page and counts what it does.

    Attributes:
        session_id: Of the newest session.
        turn: Part of what is written, so that no page shows it before.
    """

    def __init__(self, page: Page, session_id: str, turn: int) -> None:
        self.page = page
        self.session_id = session_id
        self.turn = turn
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
    await hand.type("#title", f"Renamed {hand.turn}", enter=True)
    await hand.sees(f"h1:has-text('Renamed {hand.turn}')")


async def _tag(hand: Hand) -> None:
    await _open(hand)
    await hand.type("#tags", f"urgent{hand.turn}", enter=True)
    await hand.sees(f".metadata:has-text('urgent{hand.turn}')")


async def _failed(hand: Hand) -> None:
    # The newest come first, so this week's are at the top.
    await hand.click(".facets a:has-text('failed')")
    await hand.sees("table.sessions .status.failed")


async def _delete(hand: Hand) -> None:
    await hand.click("table.sessions .delete >> nth=0")
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

# ---- google-adk ----

_LIST = "[mattooltip='Select a session']"
_USER_ID = "input[aria-label='Enter user ID']"


async def _adk_find(hand: Hand) -> None:
    await hand.click("[aria-label='User menu']")
    await hand.click(".mat-mdc-menu-panel [aria-label='Edit']")
    await hand.type(_USER_ID, OWNER, enter=True)
    await hand.press("Escape")
    await hand.click(_LIST)
    await hand.sees(".session-item")


async def _adk_open(hand: Hand) -> None:
    await hand.click(_LIST)
    await hand.click(".session-item >> nth=0")
    await hand.sees("app-event-row")


async def _adk_rename(hand: Hand) -> None:
    await _adk_open(hand)
    await hand.click(_LIST)
    await hand.click(".session-selector-current-id [aria-label='Edit']")
    title = f"Renamed {hand.turn}"
    await hand.type(".session-selector-current-id input", title, enter=True)
    await hand.sees(f".toolbar-session-group :text('{title}')")


async def _adk_delete(hand: Hand) -> None:
    await hand.click(_LIST)
    sessions = hand.page.locator(".session-item")
    await sessions.first.hover()
    count = await sessions.count()
    await hand.click("[title='Delete session'] >> nth=0")
    await hand.click("mat-dialog-actions button:has-text('Delete')")
    await sessions.nth(count - 1).wait_for(state="detached")


async def _adk_export(hand: Hand) -> None:
    await _adk_open(hand)
    await hand.click(_LIST)
    async with hand.page.expect_download() as download:
        await hand.click("button:has-text('Export')")
    await (await download.value).path()


_ADK: dict[str, Steps] = {
    FIND: _adk_find,
    OPEN: _adk_open,
    RENAME: _adk_rename,
    DELETE: _adk_delete,
    EXPORT: _adk_export,
}


async def _fill_adk(url: URL, catalog: SessionCatalog) -> None:
    """Write the same sessions: the owner is the user, the metadata is the state."""
    from google.adk.events import Event
    from google.adk.sessions import DatabaseSessionService
    from google.genai.types import Content

    service = DatabaseSessionService(url.render_as_string(hide_password=False))
    async for record in catalog.export_sessions():
        metadata = record["metadata"]
        name = {"displayName": metadata.get("title", "")}
        session = await service.create_session(
            app_name=_APP,
            user_id=metadata["owner_id"],
            session_id=record["session_id"],
            state={**metadata, "__session_metadata__": name},
        )
        for each in record["items"]:
            author, part = _as_part(each["item"])
            event = Event(
                author=author,
                invocation_id=record["session_id"],
                timestamp=datetime.fromisoformat(each["created_at"]).timestamp(),
                content=Content(role="user" if author == "user" else "model", parts=[part]),
            )
            await service.append_event(session, event)
    await service.close()


def _as_part(item: dict[str, Any]) -> tuple[str, Any]:
    """Who wrote an item, and the item in google-adk's words."""
    from google.genai.types import FunctionCall, FunctionResponse, Part

    if item.get("type") == "function_call":
        arguments = json.loads(item["arguments"])
        call = FunctionCall(id=item["call_id"], name=item["name"], args=arguments)
        return _APP, Part(function_call=call)
    if item.get("type") == "function_call_output":
        answer = FunctionResponse(
            id=item["call_id"], name="tool", response={"result": item["output"]}
        )
        return _APP, Part(function_response=answer)
    if item["role"] == "user":
        return "user", Part(text=item["content"])
    return _APP, Part(text=item["content"][0]["text"])


# ---- measuring ----


@dataclass(frozen=True)
class _Tool:
    """A tool that is served: the path of its first page, and how it does each task."""

    port: int
    steps: dict[str, Steps]
    path: str = "/"


async def measure_tasks(
    server: Server, *, with_peers: bool
) -> dict[str, dict[str, dict[str, float]]]:
    """Do every task with every tool, and return clicks, characters and milliseconds by task."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("The ten tasks are left out: chromium is not installed.")
        return {}
    url = await server.create("tasks")
    adk_url = await server.create("tasks")
    try:
        with contextlib.ExitStack() as stack:

            def served(kind: str, url: URL, steps: dict[str, Steps], path: str = "/") -> _Tool:
                return _Tool(stack.enter_context(serving(kind, url)).port, steps, path)

            async with SessionCatalog.from_url(url, create_tables=True) as catalog:
                await fill(catalog)
                newest = await catalog.list_sessions(limit=1)
                if with_peers:
                    await _fill_adk(adk_url, catalog)
            tools = {OURS: served("browser", url, _OURS)}
            if with_peers:
                tools[DATASETTE] = served("datasette", url, _DATASETTE)
                path = f"/dev-ui/?app={_APP}&userId={OTHER_OWNER}"
                tools[ADK] = served("adk web", adk_url, _ADK, path)
            async with _opened(chromium) as browser:
                return await _do(tools, browser, newest.sessions[0].session_id)
    finally:
        await server.drop(url)
        await server.drop(adk_url)


@contextlib.asynccontextmanager
async def _opened(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=_CHROMIUM)
        yield browser
        await browser.close()


async def _do(
    tools: dict[str, _Tool], browser: Browser, session_id: str
) -> dict[str, dict[str, dict[str, float]]]:
    """All tasks by turns, so that noise hits all tools alike; what deletes comes last."""
    took: dict[tuple[str, str], list[tuple[float, Hand]]] = {}
    for task in sorted(TASKS, key=lambda task: task == DELETE):
        for turn in range(_TURNS + 1):
            for name, tool in tools.items():
                if task not in tool.steps:
                    continue
                page = await browser.new_page()
                page.set_default_timeout(15_000)
                await page.goto(f"http://127.0.0.1:{tool.port}{tool.path}")
                await page.wait_for_load_state("networkidle")
                hand = Hand(page, session_id, turn)
                began = time.perf_counter()
                await tool.steps[task](hand)
                if turn:  # the first warms up
                    took.setdefault((task, name), []).append((time.perf_counter() - began, hand))
                await page.close()
    found: dict[str, dict[str, dict[str, float]]] = {task: {} for task in TASKS}
    for (task, name), turns in took.items():
        hand = turns[0][1]
        found[task][name] = {
            "clicks": hand.clicks,
            "characters": hand.characters,
            "ms": round(median(seconds for seconds, _ in turns) * 1000, 1),
        }
    return found

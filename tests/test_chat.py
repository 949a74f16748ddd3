"""The application of docs/chat.md in a browser: two tabs, reloads, Stop, and a killed server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from demonstration import CHROMIUM
from documentation import DOCS, ROOT, blocks
from playwright.async_api import BrowserContext, Page, async_playwright, expect
from served_processes import Served, killed_process
from servers import free_port
from test_tutorial import definitions

CHAT = ROOT / "examples" / "chat"
STORY = " ".join(f"Sentence {n} of the story." for n in range(1, 21))


def test_the_page_shows_the_whole_program() -> None:
    page = "".join(block.source for block in blocks(DOCS / "chat.md") if block.kind == "python")
    program = definitions((CHAT / "app.py").read_text(encoding="utf-8"))
    shown = definitions(page)
    assert {name: shown.get(name) for name in program} == program


def started(
    url: str, port: int, directory: Path, **given: str
) -> AbstractAsyncContextManager[Served]:
    """The server in a process of its own, which can be killed."""
    environment = {"AGENT_SESSIONS_URL": url, **given}
    return killed_process(CHAT, "app:app", environment, log=directory / "server.log", port=port)


@pytest.fixture
async def context(chromium) -> AsyncIterator[BrowserContext]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        yield await browser.new_context()
        await browser.close()


async def logged_in(context: BrowserContext, address: str, user: str = "ana") -> Page:
    page = await context.new_page()
    await page.goto(address)
    await page.fill("#user", user)
    async with page.expect_navigation():
        await page.click("text=Log in")
    return page


async def say(page: Page, text: str, if_busy: str = "refuse") -> None:
    await page.select_option("#busy", if_busy)
    await page.fill("#text", text)
    await page.click("#send")


async def second_tab(page: Page) -> Page:
    tab = await page.context.new_page()
    await tab.goto(page.url)
    return tab


@pytest.mark.logic
@pytest.mark.thorough
async def test_a_chat_in_two_tabs(context, shared_database, tmp_path) -> None:
    port = free_port()
    async with started(shared_database.url, port, tmp_path, CHAT_OPERATORS="olga,omar"):
        page = await logged_in(context, f"http://127.0.0.1:{port}")
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        await say(page, "Tell me a story")
        await page.wait_for_selector("#written >> text=Sentence 2")
        # The other tab, and a page that is reloaded, show the answer in progress.
        tab = await second_tab(page)
        await tab.wait_for_selector("#written >> text=Sentence 3")
        await page.reload()
        await page.wait_for_selector("#written >> text=Sentence 4")
        assert (await page.inner_text("#written")).startswith("Sentence 1 of the story.")
        # A second message is refused, and the first answer goes on.
        await say(tab, "Where is order 7?")
        await tab.wait_for_selector(".error")
        await expect(tab.locator("#messages .user")).to_have_count(1)
        await expect(tab.locator("#text")).to_have_value("Where is order 7?")
        # A message that stops the answer.
        await say(tab, "Where is order 7?", "stop")
        for each in (page, tab):
            await each.wait_for_selector("p.assistant >> text=Your order arrives on Friday.")
            await expect(each.locator("#messages .user")).to_have_count(2)
            await expect(each.locator("#messages p.assistant")).to_have_count(2)
        await expect(page.locator("#stop")).to_be_hidden()

        # Stop keeps the text so far.
        await say(page, "Another story")
        await page.wait_for_selector("#written >> text=Sentence 2")
        await tab.click("#stop")
        await page.wait_for_selector("#messages p.assistant:not(#written) >> text=Sentence 2")
        await expect(page.locator("#stop")).to_be_hidden()
        await expect(page.locator("#written")).to_have_count(0)

        # An approval is decided in the other tab.
        await say(page, "Refund order 7")
        await page.wait_for_selector("text=May I call refund")
        await tab.click("text=Approve")
        for each in (page, tab):
            await each.wait_for_selector("p.assistant >> text=Done: order 7 is refunded.")
            await expect(each.locator(".question")).to_have_count(0)

        # One message waits for another one, and a failed answer is said in the page's own words.
        await say(page, "A short story, please")
        await page.wait_for_selector("#written >> text=Sentence 1")
        await say(tab, "Please fail", "wait")
        for each in (page, tab):
            await each.wait_for_selector(".error >> text=The answer failed", timeout=60_000)
        texts = await page.locator("#messages p.assistant").all_inner_texts()
        assert STORY in texts

        await page.fill("#search", "refund")
        await expect(page.locator("#chats a")).to_have_count(1)
        await tab.goto(f"http://127.0.0.1:{port}/sessions/")
        await tab.wait_for_selector("text=Tell me a story")
        other = await context.browser.new_context()
        stranger = await logged_in(other, f"http://127.0.0.1:{port}", "ben")
        await expect(stranger.locator("#chats a")).to_have_count(0)
        answer = await other.request.get(page.url.replace("#", "v1/conversations/"))
        assert answer.status == 404
        # An operator sees the chats of all users, and a user nothing of that page.
        answer = await other.request.get(f"http://127.0.0.1:{port}/operator/")
        assert (answer.status, "Tell me" in await answer.text()) == (403, False)
        third = await context.browser.new_context()
        operator = await logged_in(third, f"http://127.0.0.1:{port}", "omar")
        await operator.goto(f"http://127.0.0.1:{port}/operator/")
        await operator.wait_for_selector("text=Tell me a story")
        for path in ("/v1/conversations", "/sessions/", "/operator/"):
            anonymous = await context.browser.new_context()
            answer = await anonymous.request.get(f"http://127.0.0.1:{port}{path}")
            assert answer.status == 401
        assert problems == []


@pytest.mark.thorough
async def test_an_answer_goes_on_after_its_server_was_killed(context, tmp_path) -> None:
    url, port = f"sqlite:///{tmp_path}/chat.db", free_port()
    async with started(url, port, tmp_path) as server:
        page = await logged_in(context, f"http://127.0.0.1:{port}")
        await say(page, "Tell me a story")
        await page.wait_for_selector("#written >> text=Sentence 3")
        server.process.kill()
        await asyncio.to_thread(server.process.join)
        await say(page, "Hello")
        await page.wait_for_selector(".error")
        await expect(page.locator("#text")).to_have_value("Hello")
    async with started(url, port, tmp_path, CHAT_PAUSE="0.02"):
        # The page connects again by itself, and the run goes on when its lease has ended.
        finished = page.locator("#messages p.assistant:not(#written)")
        await expect(finished).to_have_text(STORY, timeout=60_000)
        await expect(page.locator("#messages p.user")).to_have_count(1)
        await page.reload()
        await expect(finished).to_have_text(STORY)
        await expect(page.locator("#stop")).to_be_hidden()

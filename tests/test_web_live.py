"""The answer in progress on the page of a session, in a real browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from conformance.following import Speaker, speaking, until
from conversations.serving import served
from demonstration import CHROMIUM
from playwright.async_api import Browser, async_playwright

from agents_session_metadata import SessionCatalog, SessionRuns
from agents_session_metadata.web import browser_app


@pytest.fixture
async def browser(chromium) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        yield launched
        await launched.close()


async def test_the_answer_appears_while_it_is_written_and_can_be_stopped(browser, tmp_path) -> None:
    catalog = SessionCatalog.from_url(f"sqlite:///{tmp_path}/chat.db", create_tables=True)
    app = browser_app(catalog, scope=None, allow_write=True)
    agent = speaking(["one two three four five"])
    model = agent.model
    assert isinstance(model, Speaker)
    gates = [model.gates.setdefault(word, asyncio.Event()) for word in ("three", "five")]
    async with catalog, SessionRuns(catalog) as runs, served(app) as address:
        await catalog.create_session("chat")
        page = await browser.new_page()
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        await page.goto(f"{address}/session?id=chat")
        assert await page.is_hidden("#live")
        await runs.start("chat", agent, "Count")
        written = page.locator("#live .text")
        await page.wait_for_selector("#live .text >> text=two")
        assert await written.inner_text() == "one two"
        # The question is there, too, and nothing is shown twice.
        await page.wait_for_selector("#turns .user >> text=Count")
        await page.wait_for_function("document.body.innerText.split('one two').length === 2")
        gates[0].set()
        await page.wait_for_selector("#live .text >> text=four")
        await page.reload()
        await page.wait_for_selector("#live .text >> text=four")
        assert await written.inner_text() == "one two three four"
        async with page.expect_navigation():
            await page.click("text=Stop the run")
        assert await runs.get("chat") is None
        await page.wait_for_selector("#turns .assistant >> text=one two three four")
        await page.wait_for_selector("#live", state="hidden")
        assert await page.locator("text=Stop the run").count() == 0

        gates[1].set()
        await runs.start("chat", agent, "Again")
        await page.wait_for_selector("#turns .assistant >> text=one two three four five")
        await until(lambda: not runs._works)
        await page.wait_for_selector("#live", state="hidden")
        assert problems == []
        await page.close()


async def test_without_scripts_a_run_is_stopped_by_a_form(browser, tmp_path) -> None:
    catalog = SessionCatalog.from_url(f"sqlite:///{tmp_path}/chat.db", create_tables=True)
    agent = speaking(["one two"])
    model = agent.model
    assert isinstance(model, Speaker)
    model.gates["two"] = asyncio.Event()
    app = browser_app(catalog, scope=None, allow_write=True)
    reading = browser_app(catalog, scope=None)
    async with catalog, SessionRuns(catalog) as runs, served(app) as one, served(reading) as other:
        await runs.start("chat", agent, "Count")
        page = await browser.new_page(java_script_enabled=False)
        await page.goto(f"{other}/session?id=chat")
        assert await page.locator("text=Stop the run").count() == 0
        await page.goto(f"{one}/session?id=chat")
        async with page.expect_navigation():
            await page.click("text=Stop the run")
        assert await runs.get("chat") is None
        await page.close()

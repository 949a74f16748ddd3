"""The demonstration in a real browser: by mouse, by keyboard, and checked by axe-core."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import product
from pathlib import Path

import pytest
import pytest_asyncio
from demonstration import CHROMIUM, serving
from node_packages import installed
from playwright.async_api import Browser, Locator, Page, async_playwright
from scaling import scale

pytestmark = pytest.mark.asyncio(loop_scope="module")

WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 360, "height": 740}
PAGES = ["/", "/runs", "/statistics?count=all", "/session?id=billing-00000000"]


@pytest.fixture
def demo(tmp_path) -> Iterator[str]:
    """A demonstration that the test may change."""
    with serving(tmp_path) as address:
        yield address


@pytest.fixture(scope="module")
def shared_demo(tmp_path_factory) -> Iterator[str]:
    """One that tests look at; at most a title is changed."""
    with serving(tmp_path_factory.mktemp("demo")) as address:
        yield address


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_browser(chromium) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def browser(one_browser) -> AsyncIterator[Browser]:
    """A browser without pages."""
    yield one_browser
    for context in one_browser.contexts:
        await context.close()


async def follow(page: Page, element: str | Locator, key: str | None = None) -> None:
    """Click, or press a key, and wait for the page that it leads to: a click alone does not."""
    found = page.locator(element).first if isinstance(element, str) else element
    async with page.expect_navigation():
        await (found.press(key) if key else found.click())


def watched(page: Page, address: str) -> list[str]:
    """What goes wrong on a page, and what it loads from elsewhere."""
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda each: each.url.startswith(address) or problems.append(each.url))
    return problems


async def test_a_browser_without_scripts(demo, browser) -> None:
    page = await browser.new_page(java_script_enabled=False)
    await page.goto(f"{demo}/")
    assert await page.locator("table.sessions tbody tr").count() == 25
    await page.fill("#filter", "status=completed agent=billing")
    await follow(page, "text=Apply")
    await follow(page, "td.name a")
    await page.click("summary >> text=Tool")
    assert await page.locator("details[open] pre").first.is_visible()
    await page.click("summary >> text=Edit title and tags")
    await page.fill("#title", "<b>Renamed</b>")
    await follow(page, "text=Save")
    assert await page.inner_text("h1") == "<b>Renamed</b>"
    await page.click("summary >> text=Edit title and tags")
    tags = await page.input_value("#tags")
    assert "\n" in tags
    await page.fill("#tags", f"one, two\n{tags}")
    await follow(page, "text=Save")
    assert await page.input_value("#tags") == f"{tags}\none, two"
    await follow(page, "text=Delete…")
    await follow(page, "button:text('Delete')")
    assert await page.inner_text(".total") == "187 sessions"
    # Rows can be selected.
    pick = page.locator(".pick input")
    await pick.nth(0).check()
    await pick.nth(1).check()
    await page.fill(".bulk input[name=tag]", "mine")
    await follow(page, "text=Add tag")
    assert await page.locator("a.tag", has_text="mine").count() == 2
    await pick.nth(0).check()
    await follow(page, ".bulk >> text=Delete…")
    await follow(page, "button:text('Delete')")
    assert await page.inner_text(".total") == "186 sessions"


async def test_approving_and_rejecting(demo, browser) -> None:
    page = await browser.new_page(java_script_enabled=False, viewport=WIDE)
    await page.goto(demo)
    await follow(page, "nav >> text=Runs")
    runs = page.locator("article.run")
    assert await runs.count() == 5
    await follow(page, "button[aria-label='Approve refund']")
    assert "Approved by ana" in await page.inner_text(".run:target")
    assert "decided" in await page.inner_text(".run:target")
    push = page.locator(".call", has_text="push")
    await push.get_by_role("textbox").fill("Not on Friday")
    # The message belongs to the rejection: Enter does not approve.
    await follow(page, push.get_by_role("textbox"), "Enter")
    assert "Rejected by ana" in await push.inner_text()
    assert "Not on Friday" in await push.inner_text()
    # It is decided on the page of its session as well.
    await follow(page, "text=Retry only connection errors")
    assert await runs.count() == 1
    await push.locator("summary", has_text="Change").click()
    await follow(page, push.get_by_role("button", name="Approve"))
    assert "Approved by ana" in await push.inner_text()


async def test_a_keyboard_and_a_narrow_window(shared_demo, browser) -> None:
    page = await browser.new_page(viewport=NARROW, color_scheme="dark")
    problems = watched(page, shared_demo)
    for path in (*PAGES, "/session?id=nothing"):
        await page.goto(shared_demo + path)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360, path
    await page.goto(f"{shared_demo}/")
    await page.keyboard.press("?")
    assert await page.locator("dialog").is_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("/")
    await page.keyboard.type("vienna tr*")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**q=vienna**")
    assert await page.inner_text("mark >> nth=0") in {"train", "Vienna"}
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("k")
    first = page.locator("td.name a").first
    assert await first.evaluate("each => each === document.activeElement")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/session?**")
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    assert [each for each in problems if "404" not in each] == []


async def test_costs_fit_into_their_column(shared_demo, browser) -> None:
    page = await browser.new_page(viewport=WIDE)
    await page.goto(f"{shared_demo}/")
    cell = page.locator("td[data-label=Cost]").first
    for cost in ("<$0.01", "$99.99"):
        await cell.evaluate("(cell, cost) => { cell.textContent = cost; }", cost)
        assert await cell.evaluate("cell => cell.scrollWidth <= cell.clientWidth"), cost


async def test_a_row_copying_and_changes(shared_demo, browser) -> None:
    context = await browser.new_context(viewport=WIDE, timezone_id="Asia/Tokyo")
    await context.grant_permissions(["clipboard-read", "clipboard-write"], origin=shared_demo)
    page, other = await context.new_page(), await context.new_page()
    problems = watched(page, shared_demo)
    await page.goto(f"{shared_demo}/?filter=agent%3Dreviewer+status%3Dcompleted")
    name = await page.inner_text("td.name .id >> nth=0")
    heights = "rows => new Set(rows.map(each => each.offsetHeight)).size"
    assert await page.locator("table.sessions tbody tr").evaluate_all(heights) == 1
    # A click beside the links opens the session, too.
    async with page.expect_navigation():
        await page.locator("td[data-label=Items]").first.click(force=True)
    await page.get_by_role("button", name="Copy the id").click()
    assert await page.evaluate("navigator.clipboard.readText()") == name
    assert "GMT+9" in (await page.get_attribute(".head time", "title") or "")
    # A page shows what another one changes, and keeps what is open in it.
    await page.locator(".tool summary").first.click()
    await other.goto(page.url)
    await other.get_by_text("Edit title and tags").click()
    await other.fill("#title", "Renamed elsewhere")
    await follow(other, "text=Save")
    await page.bring_to_front()
    await page.get_by_role("heading", name="Renamed elsewhere").wait_for(timeout=15_000)
    assert await page.locator("details.tool[open]").count() == 1
    await context.close()
    assert problems == []


async def test_tab_reaches_everything_in_the_order_of_the_page(demo, browser) -> None:
    page = await browser.new_page(viewport=WIDE)

    async def reached(path: str, last: str) -> list[str]:
        """What has the focus, one Tab after the other, up to something."""
        await page.goto(demo + path)
        found: list[str] = []
        while last not in found and len(found) < 60:
            await page.keyboard.press("Tab")
            found.append(
                await page.evaluate(
                    "(at => at.id || at.getAttribute('aria-label') || at.textContent.trim())"
                    "(document.activeElement)"
                )
            )
            assert await page.evaluate(
                "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
            )
        return found

    wanted = ["Skip to content", "Sessions", "Statistics", "search", "filter", "order"]
    first = await page.goto(demo) and await page.inner_text("td.name a >> nth=0")
    found = await reached("/", first)
    assert [each for each in found if each in {*wanted, first}] == [*wanted, first]
    found = await reached("/runs", "Reject refund")
    assert found[-2] == "Message to the model if refund is rejected"
    assert found[-3] == "Approve refund"
    await page.keyboard.press("Shift+Tab")
    await page.keyboard.press("Shift+Tab")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**#run-*")
    assert "Approved by ana" in await page.inner_text(".run:target")


@pytest.mark.scaled
@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        pytest.param(size, scheme, id=f"{scheme}-{size['width']}")
        for size, scheme in scale([(NARROW, "dark")], [*product((WIDE, NARROW), ("light", "dark"))])
    ],
)
async def test_axe_finds_no_violation(shared_demo, browser, scheme, size) -> None:
    _, packages = installed(Path(__file__).parent / "accessibility", "accessibility")
    axe = (packages / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")
    page = await browser.new_page(viewport=size, color_scheme=scheme)
    for path in (
        *PAGES,
        "/?q=order&errors=1&since=2020-01-01",
        "/?filter=owner_id%3Dnobody",
        "/?filter=%7B",
        "/runs?run=failed",
        "/session?id=billing-00000000&item=1",
        "/session?id=support-00000002",  # one of its calls is decided
        "/session?id=support-00000002&q=account",
        "/delete?id=billing-00000000",
        "/nothing",
        "/delete-selected",
    ):
        if path == "/delete-selected":
            await page.goto(shared_demo)
            await page.locator(".pick input").first.check()
            await follow(page, ".bulk >> text=Delete…")
        else:
            await page.goto(shared_demo + path)
        # What is folded is checked as well.
        await page.evaluate(
            "document.querySelectorAll('details').forEach(each => each.open = true)"
        )
        await page.evaluate(axe)
        result = await page.evaluate("axe.run()")
        found = {
            each["id"]: [node["html"][:200] for node in each["nodes"]][:3]
            for each in result["violations"]
        }
        assert found == {}, path
        assert len(result["passes"]) > 10

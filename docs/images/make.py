"""Takes the screenshots of the documentation anew, with the Chromium that is installed.

Run it in the root of the repository: `PYTHONPATH=tests python docs/images/make.py`.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from demonstration import CHROMIUM, serving
from playwright.async_api import async_playwright
from servers import free_port
from test_tutorial import started

FOLDER = Path(__file__).parent
WIDE = {"width": 1180, "height": 660}


async def take(address: str, tutorial: str, folder: Path) -> None:
    """Take all screenshots of the demonstration, and of the application of the tutorial."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is not installed")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        page = await browser.new_page(viewport={"width": 900, "height": 480}, color_scheme="light")
        await page.goto(tutorial)
        for text in ("Where is order 7?", "When is the summer sale?", "Please refund order 7"):
            await page.click("#new")
            await page.fill("#text", text)
            await page.click("text=Send")
            await page.wait_for_selector("#messages p:nth-child(2) >> text=/order/")
        await page.wait_for_selector("#chats a:nth-child(3)")
        await page.screenshot(path=folder / "tutorial.png")
        for name, scheme, path in (
            ("web-sessions", "light", "/"),
            ("web-session", "dark", "open"),
            ("web-runs", "light", "/runs"),
            ("web-statistics", "light", "/statistics"),
        ):
            page = await browser.new_page(viewport=WIDE, color_scheme=scheme)
            if path == "open":
                await page.goto(f"{address}/?filter=status%3Dcompleted+runs%3D3")
                await page.click("td.name a")
            else:
                await page.goto(address + path)
            await page.screenshot(path=folder / f"{name}.png")
            await page.close()
        await browser.close()


def main() -> None:
    """Start the server, and take the screenshots."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    port = free_port()
    with tempfile.TemporaryDirectory() as demo, tempfile.TemporaryDirectory() as chats:
        url = f"sqlite:///{chats}/chat.db"
        with serving(Path(demo)) as address, started(url, port, Path(chats)):
            asyncio.run(take(address, f"http://127.0.0.1:{port}", folder))


if __name__ == "__main__":
    main()

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

FOLDER = Path(__file__).parent
WIDE = {"width": 1180, "height": 660}


async def take(address: str, folder: Path) -> None:
    """Take all screenshots of a server that shows the demonstration."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is not installed")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
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
    with tempfile.TemporaryDirectory() as temporary, serving(Path(temporary)) as address:
        asyncio.run(take(address, folder))


if __name__ == "__main__":
    main()

"""What the examples share: where their database is, and that they leave nothing in it."""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

from agents import set_tracing_disabled

from agents_session_metadata import SessionCatalog, session_tables


def run(name: str, *steps: Callable[[SessionCatalog], Awaitable[None]], **settings: Any) -> None:
    """Run the steps of an example, each with a catalog and engine of its own, as after a restart.

    The tables have names of their own and are dropped at the end: whatever else the database of
    AGENT_SESSIONS_URL holds is not touched.
    """
    set_tracing_disabled(True)
    with tempfile.TemporaryDirectory() as directory:
        url = os.environ.get("AGENT_SESSIONS_URL") or f"sqlite+aiosqlite:///{directory}/example.db"
        asyncio.run(_run(url, name, steps, settings))


async def _run(url: str, name: str, steps: Any, settings: dict[str, Any]) -> None:
    names: dict[str, Any] = {
        "sessions_table": f"{name}_sessions",
        "messages_table": f"{name}_messages",
    }
    await _drop(url, names)  # what an interrupted run may have left
    try:
        for step in steps:
            async with SessionCatalog.from_url(
                url, create_tables=True, **names, **settings
            ) as catalog:
                await step(catalog)
    finally:
        await _drop(url, names)


async def _drop(url: str, names: dict[str, Any]) -> None:
    async with (
        SessionCatalog.from_url(url, **names) as catalog,
        catalog.engine.begin() as connection,
    ):
        await connection.run_sync(session_tables(**names).sessions.metadata.drop_all)

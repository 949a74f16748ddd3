"""Runs the steps of the examples in a database, and removes their tables afterward."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agents import set_tracing_disabled

from agents_session_metadata import SessionCatalog, session_tables

Step = Callable[[SessionCatalog], Awaitable[None]]


def run(name: str, *steps: Step, **settings: Any) -> None:
    """Run the steps of an example, each with a new catalog and engine, as after a restart.

    The database is the one in AGENT_SESSIONS_URL, or a temporary SQLite file. The tables have
    names that only the example uses, and are dropped at the end. No other table is changed.
    """
    set_tracing_disabled(True)

    async def run_steps(url: str) -> None:
        for step in steps:
            await _step(url, name, step, **settings)

    _clean(name, lambda url: asyncio.run(run_steps(url)))


def run_in_processes(name: str, argv: list[str], *steps: Step, hidden: Sequence[Step] = ()) -> None:
    """Run the steps of an example like `run`, but each in a separate process.

    The example starts itself, with the name of a step as the argument. The steps in `hidden` are
    started by other steps.
    """
    set_tracing_disabled(True)
    if len(argv) > 1:
        step = next(step for step in (*steps, *hidden) if step.__name__ == argv[1])
        asyncio.run(_step(os.environ["AGENT_SESSIONS_URL"], name, step))
        return

    def run_steps(url: str) -> None:
        sys.stdout.flush()
        for step in steps:
            program = [sys.executable, argv[0], step.__name__]
            subprocess.run(  # noqa: S603  # this program itself
                program, check=True, env={**os.environ, "AGENT_SESSIONS_URL": url}
            )

    _clean(name, run_steps)


async def _step(url: str, name: str, step: Step, **settings: Any) -> None:
    async with SessionCatalog.from_url(
        url, create_tables=True, **_tables(name), **settings
    ) as catalog:
        await step(catalog)


def _clean(name: str, run_steps: Callable[[str], None]) -> None:
    """Give the steps a database without the example's tables, before and after."""
    with tempfile.TemporaryDirectory() as directory:
        url = os.environ.get("AGENT_SESSIONS_URL") or f"sqlite+aiosqlite:///{directory}/example.db"
        names = _tables(name)
        asyncio.run(_drop(url, names))  # what an interrupted run may have left
        try:
            run_steps(url)
        finally:
            asyncio.run(_drop(url, names))


def _tables(name: str) -> dict[str, Any]:
    # Other applications have tables such as approval_sessions.
    name = f"asm_example_{name}"
    return {"sessions_table": f"{name}_sessions", "messages_table": f"{name}_messages"}


async def _drop(url: str, names: dict[str, Any]) -> None:
    async with (
        SessionCatalog.from_url(url, **names) as catalog,
        catalog.engine.begin() as connection,
    ):
        await connection.run_sync(session_tables(**names).sessions.metadata.drop_all)

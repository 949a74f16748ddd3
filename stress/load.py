"""Writers that use the package as an application does, and write down what they were told."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from agents_session_metadata import MetadataLimits, SessionCatalog

from .journal import Call, Journal

KINDS = ("create", "edit", "replace", "churn", "edit", "add", "churn")
SHARED = 3
"""How many sessions all writers edit, and to how many histories they add."""
LIMITS = MetadataLimits(max_value_bytes=4_000_000)
KEYS = ("a", "b", "c", "tags")


def values(call: Call) -> dict[str, Any]:
    """What `create` and `replace` write, all of it or none."""
    return {key: [str(call), key] if key == "tags" else str(call) for key in KEYS}


def items(call: Call) -> list[Any]:
    """The pair of messages that `add` writes."""
    return [{"role": role, "content": str(call)} for role in ("user", "assistant")]


def open_catalog(engine: AsyncEngine, *, create_tables: bool = False) -> SessionCatalog:
    """A catalog with room for the growing metadata of the edited sessions."""
    return SessionCatalog(engine, create_tables=create_tables, metadata_limits=LIMITS)


class Load:
    """Writers on one database.

    Args:
        journal: Where they write down what they were told.
        engines: The ways to the database; a writer that met an error takes the next one.
        writers: How many there are.
        name: What tells this load's calls from another's.
    """

    def __init__(
        self, journal: Journal, engines: Sequence[AsyncEngine], *, writers: int = 6, name: str = "w"
    ) -> None:
        self._journal = journal
        self._catalogs = [open_catalog(engine) for engine in engines]
        self._names = [f"{name}{number}" for number in range(writers)]
        self._stopped = asyncio.Event()
        for engine in engines:
            journal.watch(engine)

    async def run(self, seconds: float) -> None:
        """Write until `stop`, for so long at most."""
        writers = asyncio.gather(*map(self._write, self._names))
        try:
            await asyncio.wait_for(self._stopped.wait(), seconds)
        except asyncio.TimeoutError:
            self.stop()
        # A call that never returns is a fault of the package.
        await asyncio.wait_for(writers, 60)

    def stop(self) -> None:
        """Let each writer end its call."""
        self._stopped.set()

    async def _write(self, writer: str) -> None:
        position = self._names.index(writer)
        for number in itertools.count(1):
            if self._stopped.is_set():
                return
            call = Call(KINDS[number % len(KINDS)], writer, number)
            catalog = self._catalogs[position % len(self._catalogs)]
            self._journal.begin(call)
            began = time.monotonic()
            try:
                await perform(catalog, call)
            except Exception as error:  # noqa: BLE001  # the journal tells them apart
                self._journal.fail(error, time.monotonic() - began)
                position += 1
                await asyncio.sleep(0.05)
            else:
                self._journal.acknowledge(call)


async def perform(catalog: SessionCatalog, call: Call) -> None:
    """Make one call of the package.

    All writers fill and delete the session of `churn`. Nothing of it is to be lost or found: what
    is there must be whole, and must not stay without its session.
    """
    turn = call.number % SHARED
    if call.kind == "create":
        await catalog.set_metadata(str(call), values(call))
    elif call.kind == "replace":
        await catalog.set_metadata(f"replace {call.writer}", values(call))
    elif call.kind == "add":
        await catalog.session(f"history {turn}").add_items(items(call))
    elif call.kind == "churn":
        session = catalog.session("churn")
        if turn == 0:
            await session.clear_session()
        elif turn == 1:
            await session.add_items(items(call))
        else:
            await session.set_metadata(values(call))
    else:

        def change(metadata: dict[str, Any]) -> None:
            metadata["turns"] = metadata.get("turns", 0) + 1
            metadata.setdefault("calls", {}).setdefault(call.writer, []).append(call.number)
            metadata["last"] = [call.writer, call.number]

        await catalog.edit_metadata(f"edit {turn}", change)


async def prepare(url: Any) -> None:
    """Make the tables, and use the SDK once in this process."""
    engine = create_async_engine(url)
    await open_catalog(engine, create_tables=True).count_sessions()
    await engine.dispose()

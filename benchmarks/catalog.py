"""Metadata of growing numbers of sessions, beside a plain table and the bare driver."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from agents.extensions.memory import SQLAlchemySession
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import SessionCatalog

from . import load
from .data import (
    FIXED_OWNER,
    LARGEST_OWNER,
    LEAST_PRIORITY,
    PAGE,
    TAG,
    Corpus,
    changes,
    status,
    written_ids,
)
from .databases import Server
from .limits import measure_limits
from .measure import Effort, Operation, contest
from .plain_table import PlainTable
from .report import Report

OURS, PLAIN = "this package", "plain table"
SECTION = "{:,} sessions: this package / a plain table, ms"
SMALL, LARGE = 10_000, 1_000_000
# The goals hold at 100,000 sessions on SQLite, PostgreSQL and MariaDB, in this order.
GOALS_AT = 100_000
LIMITS = {
    "get all metadata of one": (0.6, 0.7, 0.9),
    "count by owner": (1.1, 1.1, 1.1),
    "find by owner": (0.9, 1.1, 1.1),
    "owner and status": (0.5, 0.5, 1.2),
    "list contains a tag": (1 / 5, 1 / 5, 1 / 20),
    "newest 20 with metadata": (0.8, 1.0, 1.0),
    "set 5 keys": (1.2, 1.4, 1.4),
    "set 5 keys, locked": (1.0, 1.0, 1.0),
}
KINDS = ("sqlite", "postgresql", "mysql")
_CONNECTIONS = 9


class Ours:
    """This package."""

    async def open(self, url: URL, corpus: Corpus) -> None:
        """Fill an empty database."""
        self.engine = create_async_engine(url)
        await load.load_ours(self.engine, corpus)
        self.catalog = SessionCatalog(self.engine)
        self._read = [self.catalog.session(one.session_id) for one in corpus.sample]
        self._written = [self.catalog.session(name) for name in written_ids(corpus)]

    def operations(self) -> dict[str, Operation]:
        """What is measured, by name. What writes comes last, because it changes the others."""
        read, write, owner = self._read, self._written, {"owner_id": LARGEST_OWNER}
        find, count = read[0].find_sessions_by_metadata, self.catalog.count_sessions
        tagged = {"tags": {"$contains": TAG}}
        return {
            "get all metadata of one": lambda number: read[number % len(read)].get_metadata(),
            "count by owner": lambda _: count(owner),
            "find by owner": lambda _: find("owner_id", LARGEST_OWNER),
            "owner and status": lambda number: find({**owner, "status": status(number)}),
            "owner and priority ≥ 7": lambda _: find(
                {**owner, "priority": {"$gte": LEAST_PRIORITY}}
            ),
            "list contains a tag": lambda _: find(tagged),
            "count by tag": lambda _: count(tagged),
            "newest 20 with metadata": lambda _: self.newest(LARGEST_OWNER),
            **dict.fromkeys(
                ("set 5 keys", "set 5 keys, locked"),
                lambda number: write[number % len(write)].set_metadata(changes(number)),
            ),
        }

    async def newest(self, owner: str) -> list[Any]:
        """The newest sessions of an owner with their metadata."""
        page = await self.catalog.list_sessions({"owner_id": owner}, limit=PAGE)
        return page.sessions

    async def close(self) -> None:
        """Release the database."""
        await self.engine.dispose()


class Plain:
    """The plain table."""

    async def open(self, url: URL, corpus: Corpus) -> None:
        """Fill an empty database."""
        self._engine = create_async_engine(url)
        # The SDK sets up SQLite's connections, as in an application.
        SQLAlchemySession("any", engine=self._engine)
        await load.load_plain(self._engine, corpus)
        self.table = PlainTable(self._engine)
        self._read = [session.session_id for session in corpus.sample]
        self._written = written_ids(corpus)

    def operations(self) -> dict[str, Operation]:
        """The same as with this package."""
        table, read, write, owner = self.table, self._read, self._written, LARGEST_OWNER
        return {
            "get all metadata of one": lambda number: table.get(read[number % len(read)]),
            "count by owner": lambda _: table.count_owner(owner),
            "find by owner": lambda _: table.find_owner(owner),
            "owner and status": lambda number: table.find_owner_status(owner, status(number)),
            "owner and priority ≥ 7": lambda _: table.find_owner_priority(owner, LEAST_PRIORITY),
            "list contains a tag": lambda _: table.find_tag(TAG),
            "count by tag": lambda _: table.count_tag(TAG),
            "newest 20 with metadata": lambda _: table.newest(owner, PAGE),
            "set 5 keys": lambda number: table.set(write[number % len(write)], changes(number)),
            "set 5 keys, locked": lambda number: table.set(
                write[number % len(write)], changes(number), locks=True
            ),
        }

    async def close(self) -> None:
        """Release the database."""
        await self._engine.dispose()


async def measure_catalog(
    server: Server, sizes: Sequence[int], effort: Effort, report: Report
) -> None:
    """Measure everything on one server, from the smallest size to the largest."""
    small: tuple[Ours, URL] | None = None
    for size in sizes:
        report.progress(f"loading {size:,} sessions")
        corpus = Corpus(size)
        ours, plain = Ours(), Plain()
        urls = [await server.create("ours"), await server.create("plain")]
        await ours.open(urls[0], corpus)
        await plain.open(urls[1], corpus)
        await _measure_operations(server, size, ours, plain, effort, report)
        late = await _late_over_first(ours)
        if size == GOALS_AT:
            await measure_limits(ours.engine, corpus, effort, report)
        report.ratio(
            SECTION.format(size), "owner and status, 20th execution / first", late, limit=1.5
        )
        await plain.close()
        await server.drop(urls[1])
        if size == SMALL and LARGE in sizes:
            small = ours, urls[0]
            continue
        if small is not None and size == LARGE:
            few = small[0]
            timings = await contest(
                {
                    "large": lambda _: ours.newest(FIXED_OWNER),  # noqa: B023  # called in this round
                    "small": lambda _: few.newest(FIXED_OWNER),  # noqa: B023  # called in this round
                },
                effort,
            )
            what = f"page of an owner of 1,000 / the same among {SMALL:,}"
            report.compare(SECTION.format(size), what, timings, "large", "small", limit=1.5)
        await ours.close()
        await server.drop(urls[0])
    if small is not None:
        await small[0].close()
        await server.drop(small[1])


async def _measure_operations(
    server: Server, size: int, ours: Ours, plain: Plain, effort: Effort, report: Report
) -> None:
    theirs = plain.operations()
    for operation, call in ours.operations().items():
        if not operation.startswith(("get", "set", "newest")):
            for number in range(4):
                mine, other = await call(number), await theirs[operation](number)
                assert mine == other, f"the results differ: {operation}"
        timings = await contest({OURS: call, PLAIN: theirs[operation]}, effort)
        limits = LIMITS.get(operation) if size == GOALS_AT else None
        limit = limits[KINDS.index(server.kind)] if limits else None
        report.compare(SECTION.format(size), operation, timings, OURS, PLAIN, limit=limit)


async def _late_over_first(ours: Ours) -> float:
    """The time of the 20th execution of "owner and status" divided by that of the first.

    Each time on new connections, with all caches of the process filled: only the plan of the
    database differs.
    """
    session = SessionCatalog(ours.engine).session("any")
    where = {"owner_id": LARGEST_OWNER, "status": status(1)}
    first, late = [], []
    for turn in range(_CONNECTIONS + 1):
        await ours.engine.dispose()
        await session.get_metadata()
        seconds = []
        for _ in range(24):
            began = time.perf_counter()
            await session.find_sessions_by_metadata(where)
            seconds.append(time.perf_counter() - began)
        if turn:
            first.append(seconds[0])
            late.append(median(seconds[17:]))
    return median(late) / median(first)

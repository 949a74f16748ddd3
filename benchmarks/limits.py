"""The distance to the limit: calls of this package beside the bare driver.

The driver runs the SQL that a call has sent, with the same parameters, in the same transaction, and
reads all rows. It does nothing else: no values are encoded, decoded or checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata import SessionCatalog

from .data import LARGEST_OWNER, PAGE, Corpus, changes, message, written_ids
from .measure import Effort, Operation, contest
from .report import Report

SECTION = "{:,} sessions: this package / the bare driver with the same SQL, ms"
OURS, BARE = "this package", "bare driver"


class _Recorded:
    """The statements of one call, and a connection on which the driver repeats them."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._kind = engine.dialect.name
        self._statements: list[tuple[str, Any, bool]] = []

    async def record(self, call: Operation) -> None:
        def before(_connection: Any, _cursor: Any, *executed: Any) -> None:
            statement, parameters, _, many = executed
            self._statements.append((statement, parameters, many))

        await call(0)  # Tables are checked.
        event.listen(self._engine.sync_engine, "before_cursor_execute", before)
        await call(0)
        event.remove(self._engine.sync_engine, "before_cursor_execute", before)
        self._connection = await self._engine.connect()
        self._driver: Any = (await self._connection.get_raw_connection()).driver_connection

    async def repeat(self, _: int) -> None:
        writes = any(not each[0].startswith(("SELECT", "SET")) for each in self._statements)
        if self._kind == "postgresql":
            if not writes:
                await self._run()
                return
            async with self._driver.transaction():
                await self._run()
            return
        await self._run()
        await (self._driver.commit() if writes else self._driver.rollback())

    async def _run(self) -> None:
        for statement, parameters, many in self._statements:
            for each in parameters if many and self._kind != "mysql" else [parameters]:
                await self._execute(statement, each, many=many)

    async def _execute(self, statement: str, parameters: Sequence[Any], *, many: bool) -> None:
        if self._kind == "postgresql":
            await self._driver.fetch(statement, *parameters)
        elif self._kind == "sqlite":
            await self._driver.execute_fetchall(statement, parameters)
        else:
            async with self._driver.cursor() as cursor:
                await (cursor.executemany if many else cursor.execute)(statement, parameters)
                await cursor.fetchall()

    async def close(self) -> None:
        await self._connection.close()


async def measure_limits(
    engine: AsyncEngine, corpus: Corpus, effort: Effort, report: Report
) -> None:
    """Measure four calls on a database that contains the corpus."""
    catalog = SessionCatalog(engine)
    read, written = catalog.session(corpus.sample[0].session_id), written_ids(corpus)
    session = catalog.session(written[0])
    items: Any = [message(0), message(1)]
    calls: dict[str, Operation] = {
        "`get_metadata`": lambda _: read.get_metadata(),
        "page of 20": lambda _: catalog.list_sessions({"owner_id": LARGEST_OWNER}, limit=PAGE),
        "`set_metadata` of five keys": lambda number: session.set_metadata(changes(number)),
        "`add_items` of two messages": lambda _: session.add_items(items),
    }
    for what, call in calls.items():
        bare = _Recorded(engine)
        await bare.record(call)
        timings = await contest({OURS: call, BARE: bare.repeat}, effort)
        await bare.close()
        report.compare(SECTION.format(corpus.size), what, timings, OURS, BARE)

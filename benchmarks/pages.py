"""`python -m benchmarks.pages URL`: pages of the newest sessions, in an empty database.

Each page is read three times: as `query.walks` chooses, and always by sorting or by walking. The
sessions of an owner are spread at random over the others, or in the oldest quarter. With `--fill`,
the sessions are stored and the database is kept; without it, one that is filled is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import Table, event, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.schema import CreateIndex, DropIndex

from agents_session_metadata import MetadataLimits, SessionCatalog, session_tables
from agents_session_metadata.query.walks import Bounds, Chooser
from agents_session_metadata.values import encode_metadata

from .data import PAGE, message
from .load import analyze
from .measure import Effort, Operation, Timings, contest

OWNERS = (100, 300, 1_000, 3_000, 5_000, 20_000, 100_000)
"""Each is named `of-N` after the number of its sessions, up to a quarter of all."""
OLD_OWNERS = (300, 3_000, 20_000)
"""Each is named `old-N`; its sessions are in the oldest quarter."""
_LONGEST_WALK = 20_000
"""A longer one is not measured: it takes longer than sorting."""
THREADS = ("of-1000", "of-20000", "old-3000")
"""The owners whose sessions are threads of ChatKit, too."""
OTHERS, TAGS = 1_000, 300
STATUSES = {"active": 0.795, "completed": 0.1, "failed": 0.1, "abandoned": 0.005}
FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
KEYS = ["title", "tags"]
_SPAN, _TEXTS, _AT_ONCE, _LITERAL_ROWS = 180 * 86_400, 5_000, 50_000, 2_000


def owners(size: int) -> list[tuple[str, int]]:
    """The owners whose pages are measured, and how many sessions each has."""
    spread = [(f"of-{count}", count) for count in OWNERS if 4 * count <= size]
    return spread + [(f"old-{count}", count) for count in OLD_OWNERS if 10 * count <= size]


def sessions(size: int) -> Iterator[tuple[str, datetime, dict[str, Any]]]:
    """Sessions in the order of their ids, which has nothing to do with that of their times."""
    chance = random.Random(size)
    marked = [name for name, count in owners(size) for _ in range(count)]
    owned = dict(zip(chance.sample(range(size), len(marked)), marked, strict=True))
    shares = list(itertools.accumulate(1 / rank for rank in range(1, OTHERS + 1)))
    tags = [[f"tag-{tag}" for tag in chance.sample(range(TAGS), 3)] for _ in range(_TEXTS)]
    others = [f"owner-{number}" for number in range(OTHERS)]
    statuses, weights = list(STATUSES), list(itertools.accumulate(STATUSES.values()))
    for number in range(size):
        owner = owned.get(number) or chance.choices(others, cum_weights=shares)[0]
        age = chance.random() * (0.25 if owner.startswith("old-") else 1)
        metadata: dict[str, Any] = {"chatkit": {}} if owner in THREADS else {}
        metadata["owner_id"] = owner
        metadata["status"] = chance.choices(statuses, cum_weights=weights)[0]
        metadata["tags"] = chance.choice(tags)
        metadata["title"] = f"a title {number % _TEXTS}"
        yield (
            f"{number * (2**64 // size):016x}",
            FIRST + timedelta(seconds=int(_SPAN * age)),
            metadata,
        )


def _rows(size: int, *, as_text: bool) -> Iterator[tuple[list[Any], list[Any], list[Any]]]:
    """The rows of some sessions, of their metadata, and of the elements of their lists."""
    known: dict[str, tuple[tuple[Any, ...], list[tuple[Any, ...]]]] = {}
    remaining = sessions(size)
    while batch := list(itertools.islice(remaining, _AT_ONCE)):
        own: list[Any] = []
        rows: list[Any] = []
        elements: list[Any] = []
        for session_id, moment, metadata in batch:
            # PostgreSQL's column of the SDK has no zone.
            time: Any = moment.replace(tzinfo=None)
            aware: Any = moment
            if as_text:
                time = aware = str(time)
            own.append((session_id, time, time))
            for key, value in metadata.items():
                name = f"{key} {value}"
                if name not in known:
                    known[name] = _encoded(key, value)
                row, parts = known[name]
                rows.append((session_id, *row, aware, aware))
                elements.extend((session_id, *part) for part in parts)
        yield own, rows, elements


def _encoded(key: str, value: Any) -> tuple[tuple[Any, ...], list[tuple[Any, ...]]]:
    encoded = encode_metadata({key: value}, MetadataLimits())[key]
    elements = [(key, place, *each) for place, each in enumerate(encoded.elements)]
    return (key, encoded.text, *encoded.search), elements


async def fill(engine: AsyncEngine, size: int) -> None:
    """Store the sessions by the fastest call of each driver, and then create the indexes."""
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.count_sessions()
    tables = session_tables()
    filled = tables.sessions, tables.metadata, tables.elements
    await catalog.drop_index("$updated_at")
    indexes = [index for table in filled[1:] for index in table.indexes]
    async with engine.begin() as connection:
        for index in indexes:
            await connection.execute(DropIndex(index))
    for batch in _rows(size, as_text=engine.dialect.name != "postgresql"):
        async with engine.begin() as connection:
            if engine.dialect.name == "mysql":
                await connection.execute(text("SET foreign_key_checks = 0, unique_checks = 0"))
            for table, rows in zip(filled, batch, strict=True):
                await _insert(connection, table, rows)
    async with engine.begin() as connection:
        for index in indexes:
            await connection.execute(CreateIndex(index))
    await catalog.create_index("$updated_at")
    await analyze(engine)


async def _insert(connection: AsyncConnection, table: Table, rows: list[tuple[Any, ...]]) -> None:
    driver: Any = (await connection.get_raw_connection()).driver_connection
    names = [column.name for column in table.columns]
    if connection.dialect.name == "postgresql":
        await driver.copy_records_to_table(table.name, records=rows, columns=names)
    elif connection.dialect.name == "sqlite":
        marks = ", ".join("?" * len(names))
        await driver.executemany(f"INSERT INTO {table.name} VALUES ({marks})", rows)
    else:
        # The driver takes longer over parameters than the server over literals.
        for first in range(0, len(rows), _LITERAL_ROWS):
            literals = (
                f"({','.join(map(_literal, row))})" for row in rows[first : first + _LITERAL_ROWS]
            )
            insert = f"INSERT INTO {table.name} VALUES {','.join(literals)}"
            await connection.exec_driver_sql(insert)


def _literal(value: Any) -> str:
    if isinstance(value, bytes):
        return f"0x{value.hex()}" if value else "''"
    return str(value) if isinstance(value, int) else f"'{value}'"


class Planned:
    """Reads with one plan, whatever `query.walks` would choose."""

    def __init__(self, catalog: SessionCatalog) -> None:
        self._database: Any = catalog._store.database  # measured from inside
        self._read = Chooser.read

    def forget(self) -> None:
        """Forget which filters match many sessions, and which walks were in vain."""
        for name in ("many", "vain"):
            self._database.notes.get(name, {}).clear()

    def chosen(self, operation: Callable[[], Awaitable[Any]], *, first: bool = False) -> Operation:
        """Reads as usual, or like the first call of a process."""

        async def run(_: int) -> Any:
            Chooser.read = self._read  # type: ignore[method-assign]
            if first:
                self.forget()
            return await operation()

        return run

    def forced(self, operation: Callable[[], Awaitable[Any]], passed: int | None) -> Operation:
        """Always sorts, or always walks, past that many sessions."""

        def read(_: Any, _limit: int, sort: Any, _sort_few: Any, walk: Any) -> Any:
            return sort() if passed is None else walk(Bounds(1, passed, 1, 1))

        async def run(_: int) -> Any:
            Chooser.read = read  # type: ignore[method-assign,assignment]
            return await operation()

        return run


async def measure(engine: AsyncEngine, effort: Effort) -> None:
    """Print a line per call."""
    catalog = SessionCatalog(engine)
    size = await catalog.count_sessions()
    planned = Planned(catalog)
    ids = await _some(catalog)
    print(
        f"{engine.dialect.name}, {size:,} sessions; ms of get_metadata | chosen, first, sort, walk"
        " | chosen, first / get_metadata | chosen, first / the faster of sort and walk",
        flush=True,
    )

    async def passed(where: Any) -> int:
        """How many sessions a walk passes until the page is full."""
        most = PAGE + 2  # One more than the page shows whether another follows.
        read = planned.chosen(lambda: catalog.list_sessions(where, limit=most, keys=[]))
        found = (await read(0)).sessions
        if len(found) < most:
            return size
        return await catalog.count_sessions({"$updated_at": {"$gte": found[-1].updated_at}}) + PAGE

    async def line(what: str, operation: Callable[[], Awaitable[Any]], where: Any = None) -> None:
        calls: dict[str, Operation] = {
            "get": lambda number: catalog.get_metadata(ids[number % len(ids)]),
            "chosen": planned.chosen(operation),
        }
        if where is not None:
            bound = await passed(where)
            calls["first"] = planned.chosen(operation, first=True)
            calls["sort"] = planned.forced(operation, None)
            if bound <= _LONGEST_WALK:
                calls["walk"] = planned.forced(operation, bound)
            found = [await calls[name](0) for name in list(calls)[1:]]
            assert all(_ids(each) == _ids(found[0]) for each in found), what
        timings = await contest(calls, effort, calls=2, warm_up=7)
        _say(what, timings)

    names = [name for name, _ in owners(size)]
    for name in names:
        where = {"owner_id": name}
        await line(f"owner {name}", lambda where=where: _page(catalog, where), where)
    find = catalog.session("any").find_sessions_by_metadata
    for name in ("of-1000", "of-20000", "of-100000", "old-3000"):
        if name in names:
            where = {"owner_id": name}
            await line(
                f"last_session {name}", lambda where=where: catalog.last_session(where), where
            )
            await line(f"find(limit=20) {name}", lambda where=where: find(where, limit=20), where)
    of_many = {"owner_id": "of-20000"}
    either = {"$or": [{"owner_id": "of-5000"}, {"tags": {"$contains": "tag-7"}}]}
    wheres: dict[str, Any] = {
        "of-20000 and 10 %": {**of_many, "status": "completed"},
        "of-20000 and 0.5 %": {**of_many, "status": "abandoned"},
        "of-20000 and a tag": {**of_many, "tags": {"$contains": "tag-7"}},
        "tag of 1 %": {"tags": {"$contains": "tag-7"}},
        "status of 0.5 %": {"status": "abandoned"},
        "$or": either,
        "archived $ne": {"archived": {"$ne": True}},
    }
    for what, where in wheres.items():
        await line(what, lambda where=where: _page(catalog, where), where)
    readable = catalog.readable(either)
    await line("readable($or)", lambda: _page(readable, None), either)
    scoped = readable.scoped({"status": "completed"})
    both = {**either, "status": "completed"}
    await line("readable($or), scoped", lambda: _page(scoped, None), both)
    await line("all", lambda: _page(catalog, None))
    await _measure_doors(catalog, line)


async def _measure_doors(catalog: SessionCatalog, line: Any) -> None:
    from chatkit.store import Store

    from agents_session_metadata.chatkit import CatalogStore

    for name in THREADS:
        where = {"owner_id": name}
        store: Store[Any] = CatalogStore(catalog, scope=lambda _, where=where: where)
        await line(
            f"load_threads {name}",
            lambda store=store: store.load_threads(20, None, "desc", None),
            where,
        )
    import httpx2

    from agents_session_metadata.web import browser_app

    app = browser_app(catalog, scope=None)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

        async def browse() -> None:
            (await client.get("/")).raise_for_status()

        await line("first page of the browser", browse)
    for name in ("of-3000", "old-3000"):

        async def clean(name: str = name) -> int:
            return await catalog.delete_sessions(
                {"owner_id": name}, inactive_for=timedelta(days=1), dry_run=True
            )

        await line(f"retention, dry run, {name}", clean)


async def measure_writes(engine: AsyncEngine, other: AsyncEngine, effort: Effort) -> None:
    """`add_items` with the index, and without it in another database."""
    items: Any = [message(0), message(1)]
    await SessionCatalog(other).drop_index("$updated_at")
    catalogs = {"with": SessionCatalog(engine), "without": SessionCatalog(other)}
    kept = {
        name: [catalog.session(each) for each in await _some(catalog)]
        for name, catalog in catalogs.items()
    }
    before = await _updates(engine), await _updates(other)
    timings = await contest(
        {
            name: lambda number, of=sessions: of[number % len(of)].add_items(items)
            for name, sessions in kept.items()
        },
        effort,
    )
    own, others = timings.milliseconds("with"), timings.milliseconds("without")
    print(f"add_items: {own:.2f} / {others:.2f} ms, {timings.ratio('with', 'without'):.3f}")
    if engine.dialect.name == "postgresql":
        after = await _updates(engine), await _updates(other)
        print(
            "updates, HOT updates:",
            [
                b - a
                for old, new in zip(before, after, strict=True)
                for a, b in zip(old, new, strict=True)
            ],
        )
    await SessionCatalog(other).create_index("$updated_at")


async def _updates(engine: AsyncEngine) -> tuple[int, int]:
    """How many rows of the sessions were updated, and how many of them without the indexes."""
    if engine.dialect.name != "postgresql":
        return 0, 0
    await engine.dispose()  # A connection that ends sends what it has counted.
    await asyncio.sleep(1)
    async with engine.connect() as connection:
        query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = :name"
        row = (await connection.execute(text(query), {"name": "agent_sessions"})).one()
        return row[0], row[1]


async def _some(catalog: SessionCatalog) -> list[str]:
    page = await catalog.list_sessions({"owner_id": "of-300"}, limit=100, keys=[])
    return [info.session_id for info in page.sessions]


def _page(catalog: SessionCatalog, where: Any) -> Awaitable[Any]:
    return catalog.list_sessions(where, limit=PAGE, keys=KEYS)


def _ids(found: Any) -> Any:
    found = getattr(found, "data", found)
    if found is None or isinstance(found, str):
        return found
    if hasattr(found, "session_id"):
        return found.session_id
    return [getattr(each, "session_id", None) or getattr(each, "id", each) for each in found]


def _say(what: str, timings: Timings) -> None:
    names = [name for name in ("chosen", "first", "sort", "walk") if name in timings.seconds]
    own = {name: timings.milliseconds(name) for name in names}
    parts = [f"{timings.milliseconds('get'):.2f}", " ".join(f"{own[name]:.2f}" for name in names)]
    tried = [name for name in names if name in ("chosen", "first")]
    parts.append(" ".join(f"{timings.ratio(name, 'get'):.1f}" for name in tried))
    if "sort" in own:
        faster = "walk" if own.get("walk", own["sort"]) < own["sort"] else "sort"
        parts.append(" ".join(f"{timings.ratio(name, faster):.2f}" for name in tried))
    print(f"{what:32}", " | ".join(parts), flush=True)


async def _run(given: argparse.Namespace) -> None:
    url = make_url(given.url)
    engine = create_async_engine(url)
    if url.get_backend_name() == "sqlite":
        # As `from_url` does.
        event.listen(
            engine.sync_engine,
            "connect",
            lambda connection, _: connection.cursor().execute("PRAGMA cache_size = -16384"),
        )
    began = time.perf_counter()
    if given.fill:
        await fill(engine, given.fill)
        print(f"stored {given.fill:,} sessions in {time.perf_counter() - began:.0f} s")
    elif given.writes:
        other = create_async_engine(given.writes)
        await measure_writes(engine, other, Effort(240, given.seconds))
        await other.dispose()
    else:
        await measure(engine, Effort(61, given.seconds))
    await engine.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("url", help="an empty database, or one that is filled")
    parser.add_argument("--fill", type=int, metavar="N", help="store N sessions")
    parser.add_argument("--writes", metavar="URL", help="measure `add_items`, also there")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each comparison")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()

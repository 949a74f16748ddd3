"""`python -m benchmarks.search URL`: text search in an empty database, and what its index costs.

Messages of 60 words are stored in the order of their times, 20 per session, by many owners. One
owner has 200 of them, one has a tenth of all. `common` is in every tenth message, `middle` in every
thousandth, `rare` in every twenty-thousandth, and `unique` in one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

from agents.extensions.memory import SQLAlchemySession
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata import SessionCatalog, session_tables

from .measure import Effort, contest

WORDS = ("common", "middle", "rare", "unique")
FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
ALPHABETS = {
    "ASCII": "abcdefghijklmnopqrstuvwxyz",
    "Russian": "абвгдежзийклмнопрстуфхцчшщъыьэюя",
    "Hindi": "कखगघचछजझटठडढणतथदधनपफबभमयरलवशषसहािीुे",
    "Chinese": "".join(map(chr, range(0x4E00, 0x5E00))),
}
_AT_ONCE = 1_000


def texts(language: str, count: int, words: int = 60) -> Iterator[str]:
    """Texts whose words follow Zipf's law."""
    chance = random.Random(language)
    letters = ALPHABETS[language]
    spoken = ["".join(chance.choices(letters, k=chance.randint(3, 8))) for _ in range(30_000)]
    shares = [1 / (place + 5) for place in range(len(spoken))]
    some = chance.choices(spoken, shares, k=500_000)
    for number in range(count):
        start = chance.randrange(len(some) - words)
        found = some[start : start + words]
        if language == "Chinese":
            yield "、".join("".join(found[place : place + 3]) for place in range(0, words // 4, 3))
            continue
        for every, word in zip((10, 1_000, 20_000), WORDS, strict=False):
            if number % every == 7 % every:
                found[every % 50] = word
        if number == count // 3:
            found[3] = "unique"
        yield " ".join(found)


async def fill(engine: AsyncEngine, language: str, count: int) -> int:
    """Store messages. Returns the bytes of their texts."""
    tables = session_tables()
    sessions = max(count // 20, 10)
    large = sessions // 10
    owners = {
        f"s{number}": "small"
        if number < 10
        else "large"
        if number < 10 + large
        else f"o{number // 10}"
        for number in range(sessions)
    }
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.import_sessions(
        {
            "format": 1,
            "session_id": name,
            "created_at": FIRST.isoformat(),
            "updated_at": FIRST.isoformat(),
            "metadata": {"owner_id": owner, "title": f"talk {name}"},
            "items": [],
        }
        for name, owner in owners.items()
    )
    size = 0
    batch: list[dict[str, Any]] = []
    for number, said in enumerate(texts(language, count)):
        size += len(said.encode())
        at = FIRST + timedelta(seconds=number)
        batch.append(
            {
                "session_id": f"s{number % sessions}",
                "message_data": json.dumps({"role": "user", "content": said}),
                "created_at": at.replace(tzinfo=None),
            }
        )
        if len(batch) == _AT_ONCE or number == count - 1:
            async with engine.begin() as connection:
                await connection.execute(insert(tables.messages).inline(), batch)
            batch = []
    return size


async def used(engine: AsyncEngine) -> int:
    """Bytes of the database."""
    kind = engine.dialect.name
    async with engine.connect() as connection:
        if kind == "sqlite":
            pages = await connection.scalar(text("PRAGMA page_count"))
            free = await connection.scalar(text("PRAGMA freelist_count"))
            return (pages - free) * await connection.scalar(text("PRAGMA page_size"))
        if kind == "postgresql":
            return await connection.scalar(text("SELECT pg_database_size(current_database())"))
        names = (
            await connection.scalars(
                text(
                    "SELECT table_name FROM information_schema.tables"
                    " WHERE table_schema = database()"
                )
            )
        ).all()
        await connection.execute(text(f"ANALYZE TABLE {', '.join(names)}"))
        if not getattr(engine.dialect, "is_mariadb", False):
            await connection.execute(text("SET information_schema_stats_expiry = 0"))
        size = await connection.scalar(
            text(
                "SELECT sum(data_length + index_length) FROM information_schema.tables"
                " WHERE table_schema = database()"
            )
        )
        return int(size)


def say(what: str, *figures: object) -> None:
    shown = (f"{each:,.2f}" if isinstance(each, float) else f"{each}" for each in figures)
    print(f"| {what} | {' / '.join(shown)} |", flush=True)


async def times(effort: Effort, **operations: Any) -> dict[str, float]:
    """Milliseconds of each operation."""
    timings = await contest(
        {name: lambda _, each=each: each() for name, each in operations.items()}, effort, warm_up=12
    )
    return {name: timings.milliseconds(name) for name in operations}


async def build(catalog: SessionCatalog, count: int, size: int, language: str) -> None:
    before = await used(catalog.engine)
    began = time.perf_counter()
    await catalog.create_index("$text")
    took = time.perf_counter() - began
    after = await used(catalog.engine)
    say(f"messages per second to build, {language}", count / took)
    say(f"space / text, {language}", (after - before) / size)


async def measure(url: str, count: int, effort: Effort) -> None:
    catalog = SessionCatalog.from_url(url, create_tables=True)
    engine = catalog.engine
    for language in ("Russian", "Hindi", "Chinese"):
        size = await fill(engine, language, 10_000)
        await build(catalog, 10_000, size, language)
        await clear(catalog)
    for number in (count // 10, count):
        size = await fill(engine, "ASCII", number)
        await build(catalog, number, size, "ASCII")
        await small_owner(catalog, effort, number)
        if number < count:
            await clear(catalog)
    without = await whole(catalog, effort, "without")
    large = await times(effort, **searches(catalog, {"owner_id": "large"}))
    say(f"owner of {count // 10} messages, ms: {', '.join(WORDS)}", *large.values())
    await writing(catalog, effort)
    if engine.dialect.name in ("sqlite", "postgresql"):
        before = await used(engine)
        await catalog.create_index("$text", native=True)
        say("space of the native index / text", (await used(engine) - before) / size)
        native = await whole(catalog, effort, "native")
        ratios = (native[word] / without[word] for word in WORDS)
        say("no scope, native / without", *ratios)
    await engine.dispose()


async def clear(catalog: SessionCatalog) -> None:
    await catalog.drop_index("$text")
    async with catalog.engine.begin() as connection:
        for table in reversed(session_tables().tables):
            await connection.execute(table.delete())


def searches(catalog: SessionCatalog, where: Any) -> dict[str, Any]:
    return {word: lambda word=word: catalog.search(word, where) for word in WORDS}


async def small_owner(catalog: SessionCatalog, effort: Effort, number: int) -> None:
    found = await times(
        effort,
        items=lambda: catalog.list_items("s3", limit=20),
        **searches(catalog, {"owner_id": "small"}),
    )
    say(f"owner of 200 among {number}, ms: list_items, {', '.join(WORDS)}", *found.values())
    say("search / list_items", *(found[word] / found["items"] for word in WORDS))


async def whole(catalog: SessionCatalog, effort: Effort, name: str) -> dict[str, float]:
    found = await times(effort, **searches(catalog, None))
    say(f"no scope, {name}, ms: {', '.join(WORDS)}", *found.values())
    by_session = await times(effort, first=lambda: catalog.search("common", by_session=True))
    say(f"no scope, by session, {name}, ms: common", *by_session.values())
    return found


async def writing(catalog: SessionCatalog, effort: Effort) -> None:
    for words in (10, 60):
        said = next(texts("ASCII", 1, words))
        items: Any = [{"role": "user", "content": said}, {"role": "assistant", "content": said}]
        ours = catalog.session(f"ours {words}")
        plain = SQLAlchemySession(f"plain {words}", engine=catalog.engine)
        found = await contest(
            {
                "ours": lambda _, items=items, ours=ours: ours.add_items(items),
                "plain": lambda _, items=items, plain=plain: plain.add_items(items),
            },
            effort,
        )
        ratio = found.ratio("ours", "plain")
        say(f"add_items of two messages of {words} words / plain SDK", ratio)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("url", help="an empty database")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each comparison")
    given = parser.parse_args()
    asyncio.run(measure(given.url, given.messages, Effort(60, given.seconds)))


if __name__ == "__main__":
    main()

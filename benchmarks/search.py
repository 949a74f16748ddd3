"""`python -m benchmarks.search`: full-text search beside LIKE, and what the text index costs.

By default a SQLite file in a temporary directory; `--url` names an empty database of another kind.
Every tenth session belongs to one large owner; one owner has a single session. Times are medians of
interleaved rounds, in milliseconds. With two `--sessions`, the last column compares them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from agents.extensions.memory import SQLAlchemySession
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from agents_session_metadata import SessionCatalog

MESSAGES = 10
"""The messages of a session."""
_WORDS = [f"w{number}" for number in range(20_000)]
_WEIGHTS = [1 / (number + 10) for number in range(20_000)]
_AT_ONCE = 500


def sentence(rnd: random.Random, words: int) -> str:
    """Words by Zipf's law; `common` is in every second message."""
    found = rnd.choices(_WORDS, _WEIGHTS, k=words)
    return " ".join([*found, *(["common"] if rnd.random() < 0.5 else [])])


def items(rnd: random.Random, words: int) -> list[Any]:
    """One message."""
    return [{"role": "user", "content": sentence(rnd, words)}]


async def fill(engine: AsyncEngine, count: int) -> int:
    """Write sessions with plain SQL; return the bytes of the messages."""
    rnd = random.Random(1)  # the same data every time
    insert = (
        "INSERT INTO agent_messages (session_id, message_data, created_at) VALUES (:id, :data, :at)"
    )
    catalog = SessionCatalog(engine, create_tables=True)
    written = 0
    for start in range(0, count, _AT_ONCE):
        ids = range(start, min(start + _AT_ONCE, count))
        await catalog.import_sessions(_records(ids))
        rows = []
        for number in ids:
            for message in range(MESSAGES):
                data = json.dumps(items(rnd, 12)[0])
                written += len(data)
                at = f"2025-01-{1 + number * 27 // count:02} 10:{message:02}:00"
                moment = datetime.fromisoformat(at)
                rows.append(
                    {
                        "id": f"chat-{number:07}",
                        "data": data,
                        "at": moment if engine.dialect.name == "postgresql" else at,
                    }
                )
        async with engine.begin() as connection:
            await connection.execute(text(insert), rows)
    return written


def _records(ids: range) -> Iterator[dict[str, Any]]:
    for number in ids:
        owner = "tiny" if number == 7 else "large" if number % 10 == 0 else f"u{number % 997}"
        at = "2025-01-01T00:00:00+00:00"
        yield {
            "format": 1,
            "session_id": f"chat-{number:07}",
            "created_at": at,
            "updated_at": at,
            "metadata": {"owner_id": owner, "title": f"Chat {number}"},
            "items": [],
        }


async def contest(
    parties: dict[str, Callable[[], Awaitable[Any]]], seconds: float
) -> dict[str, float]:
    """The median time of each, in turns."""
    times: dict[str, list[float]] = {name: [] for name in parties}
    begin = time.perf_counter()
    while len(times[next(iter(times))]) < 5 or time.perf_counter() < begin + seconds:
        for name, call in parties.items():
            started = time.perf_counter()
            await call()
            times[name].append((time.perf_counter() - started) * 1000)
        if time.perf_counter() > begin + 4 * seconds:
            break
    return {name: statistics.median(each) for name, each in times.items()}


async def measure(url: str, count: int, seconds: float) -> dict[str, float]:
    """All measurements of one size."""
    engine = create_async_engine(url)
    catalog = SessionCatalog(engine, create_tables=True)
    size = await fill(engine, count)
    like = text(
        "SELECT id, session_id, message_data FROM agent_messages"
        " WHERE message_data LIKE '%common%' ORDER BY created_at DESC, id DESC LIMIT 20"
    )

    async def plain_like() -> None:
        async with engine.connect() as connection:
            (await connection.execute(like)).all()

    rnd = random.Random(2)
    plain = SQLAlchemySession("plain", engine=engine)
    before = await contest(
        {
            "LIKE": plain_like,
            "plain add 10": lambda: plain.add_items(items(rnd, 10)),
            "plain add 60": lambda: plain.add_items(items(rnd, 60)),
        },
        seconds,
    )
    started = time.perf_counter()
    await catalog.create_index("$text")
    result = {"messages": float(count * MESSAGES), "indexing s": time.perf_counter() - started}
    tiny, large = (catalog.scoped({"owner_id": name}) for name in ("tiny", "large"))
    session = catalog.session("ours")
    after = await contest(
        {
            "common": lambda: catalog.search("common"),
            "rare": lambda: catalog.search("w15000"),
            "two words": lambda: catalog.search("common w100"),
            "prefix": lambda: catalog.search("w150*"),
            "phrase": lambda: catalog.search('"w1 w2"'),
            "large owner, common": lambda: large.search("common"),
            "large owner, rare": lambda: large.search("w9000"),
            "tiny owner, common": lambda: tiny.search("common"),
            "tiny owner, unused": lambda: tiny.search("nobodysaysthis"),
            "add 10": lambda: session.add_items(items(rnd, 10)),
            "add 60": lambda: session.add_items(items(rnd, 60)),
        },
        seconds * 3,
    )
    await engine.dispose()
    result |= {**before, **after, "text bytes": float(size)}
    result["common / LIKE"] = after["common"] / before["LIKE"]
    result["tiny common / unused"] = after["tiny owner, common"] / after["tiny owner, unused"]
    for words in (10, 60):
        result[f"add {words} / plain"] = after[f"add {words}"] / before[f"plain add {words}"]
    return result


async def _main(arguments: argparse.Namespace) -> None:
    results = []
    for count in arguments.sessions:
        with tempfile.TemporaryDirectory() as directory:
            url = arguments.url or f"sqlite+aiosqlite:///{Path(directory) / 'search.db'}"
            results.append(await measure(url, count, arguments.seconds))
            if arguments.url:
                engine = create_async_engine(url)
                async with engine.begin() as connection:
                    await connection.execute(text("DELETE FROM agent_messages"))
                    await connection.execute(text("DELETE FROM agent_sessions"))
                await engine.dispose()
    for name in results[0]:
        row = [each[name] for each in results]
        growth = f"{row[-1] / row[0]:10.2f}" if len(row) > 1 else ""
        print(f"{name:24}", *(f"{each:14.3f}" for each in row), growth)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--url", help="an empty database; default: a SQLite file")
    parser.add_argument(
        "--sessions",
        type=lambda given: [int(each) for each in given.split(",")],
        default=[1_000, 10_000],
        help="numbers of sessions, separated by commas; default: 1000,10000",
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="per contest; default: 5")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()

"""Loads a corpus through this package's import, or into the plain table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata import SessionCatalog, session_tables

from .data import Corpus, message
from .plain_table import PlainTable, create_all

_BATCH = 1_000


async def load_ours(engine: AsyncEngine, corpus: Corpus) -> None:
    """Create this package's tables and import the corpus."""
    await SessionCatalog(engine, create_tables=True).import_sessions(_records(corpus))
    await analyze(engine)


async def load_plain(engine: AsyncEngine, corpus: Corpus) -> None:
    """Create the plain table beside the SDK's tables, and fill them."""
    base = session_tables()
    rows = PlainTable(engine).rows
    items = [json.dumps(message(number)) for number in range(corpus.messages)]
    async with engine.begin() as connection:
        await connection.run_sync(create_all)
    remaining = iter(corpus)
    while batch := list(islice(remaining, _BATCH)):
        sessions = [
            {
                "session_id": one.session_id,
                "created_at": one.created_at.replace(tzinfo=None),
                "updated_at": one.updated_at.replace(tzinfo=None),
            }
            for one in batch
        ]
        metadata = [
            {"session_id": one.session_id, "key": key, "value": json.dumps(value)}
            for one in batch
            for key, value in one.metadata.items()
        ]
        messages = [
            {"session_id": one.session_id, "message_data": item} for one in batch for item in items
        ]
        async with engine.begin() as connection:
            await connection.execute(insert(base.sessions), sessions)
            await connection.execute(insert(rows), metadata)
            if messages:
                await connection.execute(insert(base.messages), messages)
    await analyze(engine)


def _records(corpus: Corpus) -> Iterator[dict[str, Any]]:
    for one in corpus:
        created_at = one.created_at.isoformat()
        yield {
            "format": 1,
            "session_id": one.session_id,
            "created_at": created_at,
            "updated_at": one.updated_at.isoformat(),
            "metadata": one.metadata,
            "items": [
                {"created_at": created_at, "item": message(number)}
                for number in range(corpus.messages)
            ],
        }


async def analyze(engine: AsyncEngine) -> None:
    """Update the statistics of all tables; on SQLite, applications do not."""
    async with engine.connect() as plain:
        connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
        if engine.dialect.name == "postgresql":
            await connection.execute(text("VACUUM (ANALYZE)"))
        elif engine.dialect.name == "mysql":
            names = (await connection.execute(text("SHOW TABLES"))).scalars().all()
            await connection.execute(text(f"ANALYZE TABLE {', '.join(names)}"))
    await engine.dispose()

"""A database as version 0.2.0 created it: the statements that its `ddl` printed, and its rows."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

from doctoring import ddl_dialect, run
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata import SessionCatalog
from conformance import raw

FILES = Path(__file__).parent / "version_0_2"
OWN = "agent_sessions_metadata"

ADDED = {
    "usage": {"exact_cost"},
    "runs": {"alive_at", "attempts", "pause"},
    "run_keys": {"status"},
    "run_decisions": {"owner_id", "pause", "always"},
}
"""The columns that version 0.2.0 did not have, by the end of the table's name."""
ADDED_INDEXES = {"run_keys": "ended_at", "idempotency": "answered_at"}

_PROGRESS = {
    "durable": True,
    "options": {},
    "first": 0,
    "base": 0,
    "items": 1,
    "writes": [1],
    "inside": [],
}
ROWS: dict[str, dict[str, Any]] = {
    "usage": {
        "day": date(2026, 1, 1),
        "model": "small",
        "requests": 1,
        "input_tokens": 10,
        "cached_input_tokens": 0,
        "output_tokens": 5,
        "reasoning_tokens": 0,
        "total_tokens": 15,
        "cost": 1_000_000,
    },
    "runs": {
        "run_id": "r",
        "status": "failed",
        "token": "t",
        "expires": 0,
        "started_at": 1_700_000_000_000_000,
        "agent": "clerk",
        "input": '"Hello"',
        "error": json.dumps({"type": "ValueError", "text": "no"}),
        "progress": json.dumps(_PROGRESS),
        "last_item": 1,
    },
    "run_keys": {"run_key": "k", "run_id": "r", "ended_at": 1, "outcome": "{}"},
    "run_decisions": {
        "run_id": "r",
        "call_id": "call-1",
        "tool": "pay",
        "agent": "clerk",
        "approve": True,
        "decided_by": "ana",
        "decided_at": 1_700_000_000_000_000,
    },
    "idempotency": {
        "request_key": "request",
        "request_hash": "0" * 64,
        "answer": "{}",
        "answered_at": 1,
    },
}
"""A row of each table that has changed since, with the columns of version 0.2.0."""


async def create_old(engine: AsyncEngine) -> None:
    """Creates all tables of version 0.2.0, with a session and a row in each of `ROWS`."""
    dialect = await ddl_dialect(engine)
    if dialect == "mysql":
        script = (
            (FILES / "mariadb.sql").read_text().replace("utf8mb4_nopad_bin", "utf8mb4_0900_bin")
        )
    else:
        script = (FILES / f"{dialect}.sql").read_text()
    await run(engine, [each.rstrip(";") for each in script.strip().split(";\n\n")])
    session = SessionCatalog(engine).session("chat")
    await session.add_items([raw.message("hello")])
    await session.set_metadata({"title": "Lisbon"})
    await write_old(engine, "chat")


async def write_old(engine: AsyncEngine, session_id: str) -> None:
    """Writes what a process of version 0.2.0 writes."""
    for end, row in ROWS.items():
        columns = ", ".join(["session_id", *row])
        values = ", ".join(f":{name}" for name in ["session_id", *row])
        statement = f"INSERT INTO {OWN}_{end} ({columns}) VALUES ({values})"
        # sqlite3 has no dates of its own, as SQLAlchemy's type knows and plain SQL does not.
        is_text = engine.dialect.name == "sqlite"
        given = {
            name: str(value) if is_text and isinstance(value, date) else value
            for name, value in row.items()
        }
        await raw.execute(engine, statement, session_id=session_id, **given)

"""Realistic sessions for a first look, written into an empty database.

Some of them wait for an approval. Their runs cannot be resumed: there is no agent.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, insert, update

from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.runs.feature import RUNNING, RUNS, WAITING, runs_table
from agents_session_metadata.runs.runs import SessionRuns
from agents_session_metadata.usage.ledger import USAGE, UsageEntry, add_usage
from agents_session_metadata.usage.prices import Tokens

_SESSIONS: Final = 180
_DAYS: Final = 30
_OWNERS: Final = ("ana", "ben", "carla", "dmitri", "emeka", "farah", "greta")
_COST: Final = {"travel": 0.021, "billing": 0.006, "support": 0.008, "reviewer": 0.064}
_MODEL: Final = {
    "travel": "gpt-5-mini",
    "billing": "gpt-5-nano",
    "support": "gpt-5-nano",
    "reviewer": "gpt-5",
}
_INTERRUPTED: Final = 3
_TEXTS: Final = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
_WAITING: Final = _TEXTS["waiting"]


async def fill(catalog: SessionCatalog, *, seed: int = 7) -> int:
    """Write the sessions, and return their number.

    The database must be empty and the catalog must create tables. The same seed creates the same
    sessions, at times relative to now.
    """
    chance = random.Random(seed)  # noqa: S311  # a demo
    now = datetime.now(timezone.utc).replace(microsecond=0)
    records = [*_records(chance, now), *(_waiting(now, number) for number in range(len(_WAITING)))]
    written = await catalog.import_sessions(records)
    await catalog.create_index("$text")
    await _add_usage(catalog, records)
    await _store_runs(catalog)
    return written


async def _add_usage(catalog: SessionCatalog, records: list[dict[str, Any]]) -> None:
    store = catalog._store
    await store.database.ensure(USAGE)
    [usage] = store.database.tables.group(USAGE).tables

    def add(connection: Connection) -> None:
        for record in records:
            m, session_id = record["metadata"], record["session_id"]
            counts = m["requests"], m["input_tokens"], 0, m["output_tokens"], 0, m["total_tokens"]
            cost = Decimal(str(m["cost"]))
            entry = UsageEntry(m["agent"], _MODEL[m["agent"]], Tokens(*counts), cost)
            add_usage(connection, store, [entry], session_id, m["owner_id"])
            # Runs are counted on the day on which they end; these ended in the past.
            day = date.fromisoformat(record["updated_at"][:10])
            of_session = update(usage).where(usage.c.session_id == session_id)
            connection.execute(of_session.values(day=day))

    await store.database.write(add)


async def _store_runs(catalog: SessionCatalog) -> None:
    """Store runs that wait, at times in the past. One is decided, one was interrupted."""
    database = catalog._store.database
    await database.ensure(RUNS)
    table, now = runs_table(database.tables), database.dialect.now()

    def store(connection: Connection) -> None:
        for number, case in enumerate(_WAITING):
            pending = [[*call.values(), case["agent"]] for call in _pending(number)]
            values = {
                "session_id": _waiting_id(number),
                "run_id": f"{number:032x}",
                "status": RUNNING if number == _INTERRUPTED else WAITING,
                "token": "demo",
                "expires": 0,
                "agent": case["agent"],
                "input": json.dumps(case["request"]),
                "pending": json.dumps(pending),
                "progress": '{"first": 0}',
                "last_item": 0,
            }
            then = now - case["minutes"] * 60_000_000
            connection.execute(insert(table).values(started_at=then, paused_at=then), values)

    await database.write(store)
    decided = _pending(2)[0]["call_id"]
    await SessionRuns(catalog).decide(_waiting_id(2), decided, approve=True, by="greta")


def _pending(number: int) -> list[dict[str, str]]:
    return [
        {
            "call_id": f"call_{number + 1}{place}",
            "tool": call["tool"],
            "arguments": json.dumps(call["arguments"], ensure_ascii=False),
        }
        for place, call in enumerate(_WAITING[number]["calls"])
    ]


def _waiting_id(number: int) -> str:
    return f"{_WAITING[number]['agent']}-{number:08x}"


def _waiting(now: datetime, number: int) -> dict[str, Any]:
    case = _WAITING[number]
    agent = case["agent"]
    end = now - timedelta(minutes=case["minutes"])
    start = end - timedelta(seconds=20)
    items: list[dict[str, Any]] = [{"role": "user", "content": case["request"]}]
    for call in _pending(number):
        named = {"name": call["tool"], "arguments": call["arguments"]}
        items.append({"type": "function_call", "call_id": call["call_id"], **named})
    tokens = 2_400 + 700 * number
    phases = [("plan", start), ("work", start + timedelta(seconds=8)), ("approval", end)]
    metadata = {
        "owner_id": _OWNERS[number],
        "agent": agent,
        "title": case["title"],
        "tags": ["approval"],
        "status": "active",
        "phase": "approval",
        "run": RUNNING if number == _INTERRUPTED else WAITING,
        "started_at": start.isoformat(),
        "phase_history": [{"phase": name, "at": at.isoformat()} for name, at in phases],
        "runs": 1,
        "requests": 1,
        **_totals(agent, tokens),
    }
    session_id = _waiting_id(number)
    return _exported(session_id, start, end, metadata, [(end, item) for item in items])


def _records(chance: random.Random, now: datetime) -> Iterator[dict[str, Any]]:
    # Fewer at first, and more of them lately.
    ages = sorted(chance.random() ** 1.6 * _DAYS * 1440 for _ in range(_SESSIONS))
    for number, age in enumerate(reversed(ages)):
        start = now - timedelta(minutes=age + 3)
        case = chance.choice(_TEXTS["cases"])
        yield _record(
            chance,
            number,
            start.replace(microsecond=0),
            min(start + timedelta(minutes=40), now),
            case,
        )


def _record(
    chance: random.Random, number: int, start: datetime, latest: datetime, case: Any
) -> dict[str, Any]:
    agent, tool = case["agent"], case["tool"]
    follow_ups = chance.sample(_TEXTS["follow_ups"], chance.choice((0, 0, 1, 2)))
    status = chance.choices(("completed", "active", "failed"), (72, 18, 10))[0]
    call_id = f"call_{number:04}"
    took = timedelta(seconds=chance.randint(4, 40))
    items: list[tuple[timedelta, dict[str, Any]]] = [
        (timedelta(), {"role": "user", "content": case["question"]}),
        (
            took / 2,
            {
                "type": "function_call",
                "call_id": call_id,
                "name": tool,
                "arguments": json.dumps(case["arguments"], ensure_ascii=False),
            },
        ),
        (
            took * 0.7,
            {"type": "function_call_output", "call_id": call_id, "output": case["output"]},
        ),
    ]
    if status == "failed":
        items[-1][1]["output"] = "error: the service did not answer within 30 s"
    else:
        items.append((took, _said(case["answer"])))
        for place, (asked, said) in enumerate(follow_ups, 1):
            later = took + timedelta(minutes=2 * place)
            items += [(later, {"role": "user", "content": asked}), (later + took / 3, _said(said))]
    end = min(start + items[-1][0], latest)
    runs = 1 + len(follow_ups)
    tokens, milliseconds = runs * chance.randint(900, 5200), chance.randint(80, 2400)
    metadata: dict[str, Any] = {
        "owner_id": chance.choice(_OWNERS),
        "agent": agent,
        "tags": case["tags"],
        "status": status,
        "phase": status if status != "active" else "work",
        "started_at": start.isoformat(),
        "phase_history": _phases(start, end, status),
        "runs": runs,
        "requests": 2 * runs,
        **_totals(agent, tokens),
        "tool_calls": [[tool, 1, milliseconds]],
        "invocation_details": [
            {"id": call_id, "tool": tool, "ms": milliseconds, "ok": status != "failed", "at": None}
        ],
    }
    if case["title"]:
        metadata["title"] = case["title"]
    if number % 41 == 3:
        metadata["pinned"] = True
    if status == "failed":
        metadata |= {"error_count": 1, "last_error": "the service did not answer within 30 s"}
    if status != "active":
        metadata["finished_at"] = end.isoformat()
        metadata["duration_ms"] = int((end - start).total_seconds() * 1000)
    session_id = f"{agent}-{chance.randrange(16**8):08x}"
    timed = [(min(start + after, latest), item) for after, item in items]
    return _exported(session_id, start, end, metadata, timed)


def _totals(agent: str, tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": tokens,
        "output_tokens": tokens // 9,
        "total_tokens": tokens + tokens // 9,
        "cost": round(tokens / 1000 * _COST[agent], 4),
    }


def _exported(
    session_id: str,
    start: datetime,
    end: datetime,
    metadata: Any,
    items: list[tuple[datetime, Any]],
) -> dict[str, Any]:
    return {
        "format": 1,
        "session_id": session_id,
        "created_at": start.isoformat(),
        "updated_at": end.isoformat(),
        "metadata": metadata,
        "items": [{"created_at": at.isoformat(), "item": item} for at, item in items],
    }


def _said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "status": "completed", "content": [part]}


def _phases(start: datetime, end: datetime, status: str) -> list[dict[str, str]]:
    third = (end - start) / 3
    names = ["plan", "work", *([] if status == "active" else ["verify", status])]
    times = [start, start + third, start + 2 * third, end]
    return [{"phase": name, "at": at.isoformat()} for name, at in zip(names, times, strict=False)]

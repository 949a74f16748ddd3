"""Realistic sessions for a first look, written into an empty database.

Some of them wait for an approval. Their runs cannot be resumed, because they have no agent.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta, timezone
from importlib.resources import files
from typing import Any, Final

from sqlalchemy import MetaData, func, insert, select

from agents_session_metadata import SessionCatalog, SessionRuns, session_tables
from agents_session_metadata.values import search_key

_SESSIONS: Final = 180
_DAYS: Final = 30
_FORKED: Final = 3
_TEXTS: Final = json.loads((files("agents_session_metadata.web") / "demo.json").read_text("utf-8"))


async def fill(catalog: SessionCatalog, *, seed: int = 7) -> int:
    """Write the sessions, and return their number.

    The database must be empty. The same seed creates the same sessions, at times relative to now.
    """
    chance = random.Random(seed)  # noqa: S311  # a demo
    now = datetime.now(timezone.utc).replace(microsecond=0)
    cases = _TEXTS["runs"]
    ended, stopped = list(_ended(chance, now)), [_stopped(now, case) for case in cases]
    tables = session_tables(metadata := MetaData())
    [usage], runs = tables.group("usage").tables, tables.group("runs").tables[0]
    async with catalog.engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    written = await catalog.import_sessions([*ended, *stopped])
    for record in ended[-_FORKED:]:
        await catalog.fork_session(record["session_id"])
    await catalog.create_index("$text")
    newest = select(func.max(tables.messages.c.id)).where(
        tables.messages.c.session_id == usage.c.session_id
    )
    async with catalog.engine.begin() as connection:
        await connection.execute(insert(usage), [*map(_usage, ended), *map(_usage, stopped)])
        await connection.execute(usage.update().values(item_id=newest.scalar_subquery()))
        await connection.execute(insert(runs), [_run(now, case) for case in cases])
    for case in cases:
        session_id = case["session_id"]
        await catalog.set_metadata(session_id, {"run": _stored_status(case)})
        for call in case["calls"]:
            if by := call.get("decided_by"):
                decide = SessionRuns(catalog).decide
                await decide(session_id, call["call_id"], approve=True, by=by)
    return written + _FORKED


def _usage(record: dict[str, Any]) -> dict[str, Any]:
    """Returns a row of the ledger. Runs count on the day on which they end."""
    m = record["metadata"]
    same = "agent", "requests", "input_tokens", "output_tokens", "total_tokens"
    return {
        **{name: m[name] for name in same},
        "owner_key": search_key(m["owner_id"]).indexed,
        "owner_id": json.dumps(m["owner_id"]),
        "session_id": record["session_id"],
        "day": date.fromisoformat(record["updated_at"][:10]),
        "model": _TEXTS["models"][m["agent"]]["name"],
        "cached_input_tokens": 0,
        "reasoning_tokens": 0,
        "cost": round(m["cost"] * 10**12),
    }


# ---- runs that do not work ----


def _stored_status(case: Any) -> str:
    """A run whose process has died is stored as working."""
    return "running" if case["status"] == "interrupted" else str(case["status"])


def _arguments(call: Any) -> str:
    return json.dumps(call["arguments"], ensure_ascii=False)


def _run(now: datetime, case: Any) -> dict[str, Any]:
    """Returns the row of a run that began in the past."""
    then = int((now.timestamp() - case["minutes"] * 60) * 1_000_000)
    agent, calls = case["agent"], case["calls"]
    pending = [[call["call_id"], call["name"], _arguments(call), agent] for call in calls]
    return {
        "session_id": case["session_id"],
        "run_id": case["session_id"],
        "status": _stored_status(case),
        "token": "demo",
        "expires": 1 if case["status"] == "interrupted" else 0,
        "agent": agent,
        "input": json.dumps(case["request"]),
        "pending": json.dumps(pending),
        "error": case.get("error"),
        "progress": '{"durable": true, "options": {}, "first": 0, "base": 0, "items": 0}',
        "last_item": 0,
        "started_at": then,
        "paused_at": then,
        "alive_at": then + 8_000_000,
    }


def _stopped(now: datetime, case: Any) -> dict[str, Any]:
    """Returns the record of a session whose run does not work."""
    end = now - timedelta(minutes=case["minutes"])
    start = end - timedelta(seconds=20)
    items = [{"role": "user", "content": case["request"]}]
    for call in case["calls"]:
        named = {"name": call["name"], "arguments": _arguments(call)}
        items.append({"type": "function_call", "call_id": call["call_id"], **named})
    phases = ("plan", start), ("work", start + timedelta(seconds=8)), ("approval", end)
    metadata = {
        "owner_id": case["owner"],
        "agent": case["agent"],
        "title": case["title"],
        "tags": ["approval"],
        "status": "active",
        "phase": "approval",
        "started_at": start.isoformat(),
        "phase_history": _moves(phases),
        "runs": 1,
        "requests": 1,
        **_totals(case["agent"], case["tokens"]),
    }
    return _exported(case["session_id"], start, end, metadata, [(end, item) for item in items])


# ---- runs that have ended ----


def _ended(chance: random.Random, now: datetime) -> Iterator[dict[str, Any]]:
    # Fewer at first, and more of them lately.
    ages = sorted((chance.random() ** 1.6 * _DAYS * 1440 for _ in range(_SESSIONS)), reverse=True)
    for number, age in enumerate(ages):
        start = now - timedelta(minutes=age + 3)
        case = chance.choice(_TEXTS["cases"])
        latest = min(start + timedelta(minutes=40), now)
        yield _record(chance, number, start.replace(microsecond=0), latest, case)


def _record(
    chance: random.Random, number: int, start: datetime, latest: datetime, case: Any
) -> dict[str, Any]:
    agent, tool = case["agent"], case["tool"]
    follow_ups = chance.sample(_TEXTS["follow_ups"], chance.choice((0, 0, 1, 2)))
    status = chance.choices(("completed", "active", "failed"), (72, 18, 10))[0]
    failed = status == "failed"
    call = {"call_id": f"call_{number:04}"}
    called = {"type": "function_call", **call, "name": tool, "arguments": _arguments(case)}
    output = "error: the service did not answer within 30 s" if failed else _output(case)
    took = timedelta(seconds=chance.randint(4, 40))
    items: list[tuple[timedelta, dict[str, Any]]] = [
        (timedelta(), {"role": "user", "content": case["question"]}),
        (took / 2, called),
        (took * 0.7, {"type": "function_call_output", **call, "output": output}),
    ]
    if not failed:
        items.append((took, _said(case["answer"])))
        for place, (asked, said) in enumerate(follow_ups, 1):
            later = took + timedelta(minutes=2 * place)
            items += [(later, {"role": "user", "content": asked}), (later + took / 3, _said(said))]
    end = min(start + items[-1][0], latest)
    worked = (end - start) // timedelta(milliseconds=1)
    runs = 1 + len(follow_ups)
    tokens, ms = runs * chance.randint(900, 5200), chance.randint(80, 2400)
    metadata: dict[str, Any] = {
        "owner_id": chance.choice(_TEXTS["owners"]),
        "agent": agent,
        "tags": case["tags"],
        "runs": runs,
        "requests": 2 * runs,
        **_totals(agent, tokens),
        "tool_calls": [[tool, 1, ms]],
        "invocation_details": [
            {"id": call["call_id"], "tool": tool, "ms": ms, "ok": not failed, "at": None}
        ],
    }
    if status == "completed" and number % 3 == 0:  # An application without a lifecycle.
        metadata["run_ms"] = worked
    else:
        third = (end - start) / 3
        phases = [("plan", start), ("work", start + third)]
        if status != "active":
            phases += [("verify", start + 2 * third), (status, end)]
            metadata |= {"finished_at": end.isoformat(), "duration_ms": worked}
        metadata |= {
            "status": status,
            "phase": phases[-1][0],
            "started_at": start.isoformat(),
            "phase_history": _moves(phases),
        }
    if case["title"]:
        metadata["title"] = case["title"]
    if number % 41 == 3:
        metadata["pinned"] = True
    if failed:
        metadata |= {"error_count": 1, "last_error": "the service did not answer within 30 s"}
    session_id = f"{agent}-{chance.randrange(16**8):08x}"
    timed = [(min(start + after, latest), item) for after, item in items]
    return _exported(session_id, start, end, metadata, timed)


def _output(case: Any) -> str:
    regions = ("north", "south", "east", "west")
    rows = [
        {
            "order": 70_000 + n,
            "region": regions[n % 4],
            "total": 40 + n * 7 % 190,
            "paid": n % 9 > 0,
            "customer": {"id": f"c{n * 37 % 1000:03}", "city": "Porto", "since": 2019 + n % 6},
        }
        for n in range(case.get("rows", 0))
    ]
    return json.dumps({"orders": rows}) if rows else str(case["output"])


def _said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "status": "completed", "content": [part]}


# ---- both ----


def _moves(phases: Iterable[tuple[str, datetime]]) -> list[dict[str, str]]:
    return [{"phase": name, "at": at.isoformat()} for name, at in phases]


def _totals(agent: str, tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": tokens,
        "output_tokens": tokens // 9,
        "total_tokens": tokens + tokens // 9,
        "cost": round(tokens / 1000 * _TEXTS["models"][agent]["cost"], 4),
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

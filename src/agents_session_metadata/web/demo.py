"""Realistic sessions for a first look, written into an empty database.

Some of them wait for an approval. Their runs cannot be resumed, because they have no agent.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from importlib.resources import files
from typing import Any, Final

from agents import Agent, RunConfig, Runner
from agents.testing import ModelStep, ScriptedModel, assistant_message
from agents.usage import Usage
from sqlalchemy import MetaData, Table, delete, func, insert, select

from agents_session_metadata import SessionCatalog, SessionRuns, SessionTracker, session_tables

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
_FORKED: Final = 3
_NUMBER_DECIDED: Final = 2
_TEXTS: Final = json.loads((files("agents_session_metadata.web") / "demo.json").read_text("utf-8"))
_WAITING: Final = _TEXTS["waiting"]


async def fill(catalog: SessionCatalog, *, seed: int = 7) -> int:
    """Write the sessions, and return their number.

    The database must be empty. The same seed creates the same sessions, at times relative to now.
    """
    chance = random.Random(seed)  # noqa: S311  # a demo
    now = datetime.now(timezone.utc).replace(microsecond=0)
    tables = session_tables(metadata := MetaData())
    async with catalog.engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    [usage], runs = tables.group("usage").tables, tables.group("runs").tables[0]
    owners = await _owners(catalog, usage)
    records = [*_records(chance, now), *(_waiting(now, number) for number in range(len(_WAITING)))]
    written = await catalog.import_sessions(records)
    for record in records[-_FORKED - len(_WAITING) : -len(_WAITING)]:
        await catalog.fork_session(record["session_id"])
    await catalog.create_index("$text")
    newest = select(func.max(tables.messages.c.id)).where(
        tables.messages.c.session_id == usage.c.session_id
    )
    async with catalog.engine.begin() as connection:
        rows = [_usage(record, owners) for record in records]
        await connection.execute(insert(usage), rows)
        await connection.execute(usage.update().values(item_id=newest.scalar_subquery()))
        for number in range(len(_WAITING)):
            await connection.execute(insert(runs), _run(now, number))
    await _store_statuses(catalog)
    return written + _FORKED


async def _owners(catalog: SessionCatalog, usage: Table) -> dict[str, dict[str, Any]]:
    """Returns what the ledger stores for each owner, after a tracked run of each."""
    for owner in _OWNERS:
        session = await catalog.create_session(metadata={"owner_id": owner})
        step = ModelStep(output=[assistant_message("Hi")], usage=Usage(requests=1, total_tokens=1))
        agent = Agent(name="demo", model=ScriptedModel([step]))
        async with SessionTracker(session) as hooks:
            config = RunConfig(tracing_disabled=True)
            await Runner.run(agent, "Hi", session=session, hooks=hooks, run_config=config)
        await catalog.delete_session(session.session_id)
    async with catalog.engine.begin() as connection:
        found = (await connection.execute(select(usage.c.owner_key, usage.c.owner_id))).all()
        await connection.execute(delete(usage))
    return {json.loads(row.owner_id): dict(row._mapping) for row in found}


def _usage(record: dict[str, Any], owners: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns a row of the ledger. Runs count on the day on which they end."""
    m = record["metadata"]
    return {
        **owners[m["owner_id"]],
        "session_id": record["session_id"],
        "day": date.fromisoformat(record["updated_at"][:10]),
        "agent": m["agent"],
        "model": _MODEL[m["agent"]],
        "requests": m["requests"],
        "input_tokens": m["input_tokens"],
        "cached_input_tokens": 0,
        "output_tokens": m["output_tokens"],
        "reasoning_tokens": 0,
        "total_tokens": m["total_tokens"],
        "cost": round(m["cost"] * 10**12),
    }


def _run(now: datetime, number: int) -> dict[str, Any]:
    """Returns the row of a run that began in the past."""
    case = _WAITING[number]
    then = int((now.timestamp() - case["minutes"] * 60) * 1_000_000)
    pending = [[*call.values(), case["agent"]] for call in _pending(number)]
    return {
        "session_id": _waiting_id(number),
        "run_id": f"{number:032x}",
        "status": _stored_status(case),
        "token": "demo",
        "expires": 1 if case["status"] == "interrupted" else 0,
        "agent": case["agent"],
        "input": json.dumps(case["request"]),
        "pending": json.dumps(pending),
        "error": case.get("error"),
        "progress": '{"durable": true, "options": {}, "first": 0, "base": 0, "items": 0}',
        "last_item": 0,
        "started_at": then,
        "paused_at": then,
        "alive_at": then + 8_000_000,
    }


def _stored_status(case: dict[str, Any]) -> str:
    """A run whose process has died is stored as working."""
    return "running" if case["status"] == "interrupted" else str(case["status"])


async def _store_statuses(catalog: SessionCatalog) -> None:
    for number, case in enumerate(_WAITING):
        await catalog.set_metadata(_waiting_id(number), {"run": _stored_status(case)})
    decided = _pending(_NUMBER_DECIDED)[0]["call_id"]
    await SessionRuns(catalog).decide(
        _waiting_id(_NUMBER_DECIDED), decided, approve=True, by="greta"
    )


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
            {"type": "function_call_output", "call_id": call_id, "output": _output(case)},
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
    if status == "completed" and number % 3 == 0:  # An application without a lifecycle.
        for key in ("status", "phase", "started_at", "phase_history"):
            del metadata[key]
        metadata["run_ms"] = int((end - start).total_seconds() * 1000)
    elif status != "active":
        metadata["finished_at"] = end.isoformat()
        metadata["duration_ms"] = int((end - start).total_seconds() * 1000)
    if case["title"]:
        metadata["title"] = case["title"]
    if number % 41 == 3:
        metadata["pinned"] = True
    if status == "failed":
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

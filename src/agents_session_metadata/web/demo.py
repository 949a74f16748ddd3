"""Realistic sessions for a first look, written into an empty database.

Some of them wait for an approval. Their runs cannot be resumed: there is no agent.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import Connection, update

from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.runs.paused import PausedRuns
from agents_session_metadata.runs.rows import Details, paused_table
from agents_session_metadata.usage.ledger import USAGE, UsageEntry, add_usage

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
_CASES: Final = (
    # agent, tags, title, question, tool, arguments, output, answer
    (
        "travel",
        ("booking", "europe"),
        "Weekend in Lisbon",
        "Find me a quiet hotel near tram 28 for two nights, under 140 a night.",
        "search_hotels",
        {"city": "Lisbon", "nights": 2, "max_price": 140},
        "3 hotels: Casa do Jardim (118), Graça 12 (126), Rua Nova (139)",
        (
            "Casa do Jardim fits best: 118 a night, a courtyard room, four minutes from the stop "
            "at Graça. Shall I hold it until tomorrow?"
        ),
    ),
    (
        "travel",
        ("rail",),
        "Night train to Vienna",
        "Is there a sleeper from Zürich to Vienna on Friday with a private cabin?",
        "timetable",
        {"from": "Zürich HB", "to": "Wien Hbf", "day": "Friday"},
        "NJ 467, departs 21:40, arrives 07:55, 2 private cabins left",
        "Yes. NJ 467 leaves at 21:40 and arrives at 07:55. Two private cabins are left.",
    ),
    (
        "billing",
        ("invoice", "refund"),
        "Charged twice in March",
        "I was charged twice for March. Can you check invoice 20931?",
        "find_invoice",
        {"number": 20931},
        '{"number": 20931, "amount": 48.00, "payments": 2, "status": "paid"}',
        (
            "You are right: two payments of 48.00 arrived for one invoice. I have started a refund "
            "of the second one. It takes three to five days."
        ),
    ),
    (
        "billing",
        ("plan",),
        "Change to the yearly plan",
        "What do I save with the yearly plan, and when does it start?",
        "quote",
        {"plan": "yearly", "seats": 4},
        '{"monthly": 192.0, "yearly": 1920.0}',
        "For four seats you pay 1,920 instead of 2,304 a year. It starts at your next renewal.",
    ),
    (
        "support",
        ("login",),
        "Cannot sign in after the update",
        "Since this morning the app says that my session has expired, again and again.",
        "read_logs",
        {"user": "current", "hours": 4},
        "12 x token rejected: clock skew of 310 s",
        (
            "The clock of your device is five minutes ahead, so every token looks expired. Turn on "
            "automatic time in the settings, then sign in again."
        ),
    ),
    (
        "support",
        ("export", "csv"),
        "",
        "The CSV export stops after 10,000 rows. How do I get the rest?",
        "search_docs",
        {"query": "csv export limit"},
        "Exports larger than 10,000 rows are sent by mail as a link.",
        "Larger exports arrive by mail as a link that is valid for a day. I have requested one.",
    ),
    (
        "reviewer",
        ("python", "review"),
        "Review of the retry helper",
        "Please review this function: does it retry the right errors?",
        "read_file",
        {"path": "client/retry.py"},
        (
            "def retry(call, times=3):\n    for attempt in range(times):\n        try:\n"
            "            return call()\n        except Exception:\n            continue"
        ),
        (
            "Two problems. It swallows every exception, and after the last attempt it returns "
            "None. Catch only connection errors, and raise the last one."
        ),
    ),
    (
        "reviewer",
        ("sql", "performance"),
        "Slow report on orders",
        "This report takes 40 seconds since last week. What changed?",
        "explain_query",
        {"query": "SELECT … FROM orders WHERE placed_at >= now() - interval '7 days'"},
        "Seq Scan on orders (cost=0.00..481233.10 rows=9120411)",
        (
            "The index on placed_at is gone, so the whole table is read. Create it again, "
            "concurrently on a busy server."
        ),
    ),
)
_FOLLOW_UPS: Final = (
    ("Thanks! Can you summarize that in one sentence?", "Done: see the first line above."),
    ("What happens if I do nothing?", "Nothing breaks today, but the problem will come back."),
    ("Please do it.", "Done. I have noted it in this conversation."),
)


_WAITING: Final = (
    # agent, title, request, calls with tool and arguments, minutes ago
    (
        "billing",
        "Refund for a cancelled seat",
        "We cancelled one of four seats in the first week. Can we have it back?",
        (("refund", {"invoice": 20977, "amount": 48.5, "reason": "seat cancelled in week 1"}),),
        6,
    ),
    (
        "reviewer",
        "Retry only connection errors",
        "Apply the change that you proposed to client/retry.py.",
        (
            (
                "apply_patch",
                {
                    "path": "client/retry.py",
                    "before": "        except Exception:\n            continue",
                    "after": (
                        "        except ConnectionError as error:\n            last = error\n"
                        "            time.sleep(2**attempt / 10)\n    raise last"
                    ),
                    "tests": [
                        "tests/test_retry.py::test_gives_up",
                        "tests/test_retry.py::test_other",
                    ],
                },
            ),
            ("push", {"branch": "fix/retry", "force": False}),
        ),
        24,
    ),
    (
        "support",
        "Close the account of a former colleague",
        "Lena has left us. Please close her account and move her files to me.",
        (
            ("move_files", {"from": "lena", "to": "farah"}),
            ("close_account", {"user": "lena", "keep_days": 30}),
        ),
        95,
    ),
    (
        "travel",
        "Two nights in Porto",
        "Book the room with the balcony, please.",
        (("book_room", {"hotel": "Casa da Ribeira", "nights": 2, "total": 264}),),
        310,
    ),
)


async def fill(catalog: SessionCatalog, *, seed: int = 7) -> int:
    """Write the sessions, and return their number.

    The database must be empty and the catalog must create tables. The same seed creates the same
    sessions, at times relative to now.
    """
    chance = random.Random(seed)  # noqa: S311  # a demo
    now = datetime.now(timezone.utc).replace(microsecond=0)
    records = [*_records(chance, now), *(_waiting(now, number) for number in range(len(_WAITING)))]
    written = await catalog.import_sessions(records)
    await _add_usage(catalog, records)
    await _pause(catalog)
    return written


async def _add_usage(catalog: SessionCatalog, records: list[dict[str, Any]]) -> None:
    database = catalog._store.database
    await database.ensure(USAGE)
    [usage] = database.tables.group(USAGE).tables

    def add(connection: Connection, _: Any) -> None:
        for record in records:
            m = record["metadata"]
            counts = m["requests"], m["input_tokens"], 0, m["output_tokens"], 0, m["total_tokens"]
            entry = UsageEntry(m["agent"], _MODEL[m["agent"]], counts, Decimal(str(m["cost"])))
            day = date.fromisoformat(record["updated_at"][:10])
            of_session = {"session_id": record["session_id"], "owner": m["owner_id"], "day": day}
            add_usage(connection, usage, [entry], **of_session)

    await database.write(add)


async def _pause(catalog: SessionCatalog) -> None:
    """Store the paused runs, at times in the past. One is decided, one is claimed."""
    paused = PausedRuns(catalog)
    table, ids = paused_table(catalog._store.database.tables), []
    for number, (agent, _, _, calls, minutes) in enumerate(_WAITING):
        pending = [{**call, "agent": agent} for call in _pending(number, calls)]
        session_id = _waiting_id(number)
        ids.append((session_id, minutes))
        details = Details(agent, pending, encrypted=False, wrapped=False)
        await paused._store.put(session_id, details, "{}")
    decided = _pending(2, _WAITING[2][3])[0]["call_id"]
    await paused.decide(_waiting_id(2), decided, approve=True, by="greta")

    def age(connection: Connection, _: Any) -> None:
        for session_id, minutes in ids:
            time: dict[str, Any] = {"paused_at": table.c.paused_at - minutes * 60_000_000}
            if session_id == _waiting_id(3):
                time |= {"token": "demo", "claimed_until": table.c.paused_at + 12 * 60_000_000}
            connection.execute(update(table).where(table.c.session_id == session_id).values(time))

    await catalog._store.database.write(age)


def _pending(number: int, calls: Any) -> list[dict[str, str]]:
    return [
        {
            "call_id": f"call_{number + 1}{place}",
            "tool": tool,
            "arguments": json.dumps(arguments, ensure_ascii=False),
        }
        for place, (tool, arguments) in enumerate(calls)
    ]


def _waiting_id(number: int) -> str:
    return f"{_WAITING[number][0]}-{number:08x}"


def _waiting(now: datetime, number: int) -> dict[str, Any]:
    agent, title, request, calls, minutes = _WAITING[number]
    end = now - timedelta(minutes=minutes)
    start = end - timedelta(seconds=20)
    items: list[dict[str, Any]] = [{"role": "user", "content": request}]
    for call in _pending(number, calls):
        named = {"name": call["tool"], "arguments": call["arguments"]}
        items.append({"type": "function_call", "call_id": call["call_id"], **named})
    tokens = 2_400 + 700 * number
    phases = [("plan", start), ("work", start + timedelta(seconds=8)), ("approval", end)]
    metadata = {
        "owner_id": _OWNERS[number],
        "agent": agent,
        "title": title,
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
        case = chance.choice(_CASES)
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
    agent, tags, title, question, tool, arguments, output, answer = case
    follow_ups = chance.sample(_FOLLOW_UPS, chance.choice((0, 0, 1, 2)))
    status = chance.choices(("completed", "active", "failed"), (72, 18, 10))[0]
    call_id = f"call_{number:04}"
    took = timedelta(seconds=chance.randint(4, 40))
    items: list[tuple[timedelta, dict[str, Any]]] = [
        (timedelta(), {"role": "user", "content": question}),
        (
            took / 2,
            {
                "type": "function_call",
                "call_id": call_id,
                "name": tool,
                "arguments": json.dumps(arguments, ensure_ascii=False),
            },
        ),
        (took * 0.7, {"type": "function_call_output", "call_id": call_id, "output": output}),
    ]
    if status == "failed":
        items[-1][1]["output"] = "error: the service did not answer within 30 s"
    else:
        items.append((took, _said(answer)))
        for place, (asked, said) in enumerate(follow_ups, 1):
            later = took + timedelta(minutes=2 * place)
            items += [(later, {"role": "user", "content": asked}), (later + took / 3, _said(said))]
    end = min(start + items[-1][0], latest)
    runs = 1 + len(follow_ups)
    tokens = runs * chance.randint(900, 5200)
    metadata: dict[str, Any] = {
        "owner_id": chance.choice(_OWNERS),
        "agent": agent,
        "tags": list(tags),
        "status": status,
        "phase": status if status != "active" else "work",
        "started_at": start.isoformat(),
        "phase_history": _phases(start, end, status),
        "runs": runs,
        "requests": 2 * runs,
        **_totals(agent, tokens),
        "tool_calls": [[tool, 1, chance.randint(80, 2400)]],
    }
    if title:
        metadata["title"] = title
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

"""Reads everything back and compares it with the journal."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from agents.memory import SessionABC
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata import SessionCatalog
from agents_session_metadata.values import decode_elements

from .clients import ITEMS, KINDS
from .journal import Call, Journal
from .load import SHARED, items, open_catalog, values
from .results import Figures

_ORPHANS = {
    "metadata": "agent_sessions_metadata x LEFT JOIN agent_sessions p"
    " ON p.session_id = x.session_id",
    "elements": "agent_sessions_metadata_elements x LEFT JOIN agent_sessions_metadata p"
    " ON p.session_id = x.session_id AND p.key = x.key",
    "messages": "agent_messages x LEFT JOIN agent_sessions p ON p.session_id = x.session_id",
}


async def audit(engine: AsyncEngine, journal: Journal) -> Figures:
    """Count what of the journal is in the database, and what is half there or twice."""
    catalog = open_catalog(engine)
    seen: Counter[Call] = Counter()
    figures = Figures()
    await _created(catalog, seen, figures)
    await _replaced(catalog, journal, seen, figures)
    await _edited(catalog, seen, figures)
    await _added(catalog, seen, figures)
    await _ran(catalog, seen, figures)
    await _churned(catalog, journal, figures)
    await _elements(engine, figures)
    await _orphans(engine, figures)
    acknowledged, unknown = _lasting(journal.acknowledged), _lasting(journal.unknown)
    figures.acknowledged = len(acknowledged)
    figures.found = len(acknowledged & seen.keys())
    figures.lost = figures.acknowledged - figures.found
    figures.unknown = len(unknown)
    figures.applied = len(unknown & seen.keys())
    figures.twice = sum(count > 1 for count in seen.values())
    figures.unasked = len(seen.keys() - acknowledged - unknown)
    figures.retried = sum(journal.retried.values())
    figures.retried_codes = dict(journal.retried)
    figures.errors = dict(journal.errors)
    figures.strange = [error[:200] for error in journal.strange]
    return figures


def _call(written: Any) -> Call:
    kind, writer, number = str(written).split()
    return Call(kind, writer, int(number))


async def _created(catalog: SessionCatalog, seen: Counter[Call], figures: Figures) -> None:
    async for info in catalog.iter_sessions({"$session_id": {"$prefix": "create "}}):
        call = _call(info.session_id)
        if info.metadata == values(call):
            seen[call] += 1
        else:
            figures.tell_half(f"{call}: {info.metadata}")


async def _replaced(
    catalog: SessionCatalog, journal: Journal, seen: Counter[Call], figures: Figures
) -> None:
    async for info in catalog.iter_sessions({"$session_id": {"$prefix": "replace "}}):
        last = _call(info.metadata.get("a", f"{info.session_id} 0"))
        if info.metadata != values(last):
            figures.tell_half(f"{info.session_id}: {info.metadata}")
            continue
        # What a later call has replaced was there.
        for call in journal.acknowledged:
            if call[:2] == last[:2] and call.number <= last.number:
                seen[call] = 1
        seen[last] = 1


async def _edited(catalog: SessionCatalog, seen: Counter[Call], figures: Figures) -> None:
    for turn in range(SHARED):
        metadata: Any = await catalog.get_metadata(f"edit {turn}")
        if not metadata:
            continue
        calls = [("edit", *each) for each in _pairs(metadata["calls"])]
        writer, number = metadata["last"]
        whole = metadata["turns"] == len(calls) and metadata["calls"][writer][-1] == number
        if not whole:
            figures.tell_half(f"edit {turn}: {metadata}")
        seen.update(Call(*call) for call in calls)


def _pairs(calls: dict[str, list[int]]) -> list[tuple[str, int]]:
    return [(writer, number) for writer, numbers in calls.items() for number in numbers]


async def _added(catalog: SessionCatalog, seen: Counter[Call], figures: Figures) -> None:
    for turn in range(SHARED):
        await _pairs_of(catalog.session(f"history {turn}"), seen, figures)


async def _pairs_of(session: SessionABC, seen: Counter[Call], figures: Figures) -> None:
    found: dict[str, list[Any]] = defaultdict(list)
    stored: list[Any] = await session.get_items()
    for item in stored:
        found[item["content"]].append(item)
    for content, own in found.items():
        pair = items(_call(content))
        seen[_call(content)] += len(own) // len(pair)
        if own != pair * (len(own) // len(pair)):
            figures.tell_half(f"{session.session_id}: {own}")


async def _ran(catalog: SessionCatalog, seen: Counter[Call], figures: Figures) -> None:
    """Runs have ended, with each of their items once."""
    for kind in KINDS:
        async for info in catalog.iter_sessions({"$session_id": {"$prefix": f"{kind} "}}):
            if "run" not in info.metadata:
                continue  # Its tracker has only counted that it did not begin.
            stored: list[Any] = await catalog.session(info.session_id).get_items()
            kinds = [item.get("type") or item["role"] for item in stored]
            outputs = [item["call_id"] for item in stored[2::2]]
            calls = [item["call_id"] for item in stored[1:-1:2]]
            if info.metadata["run"] == "completed" and kinds == ITEMS and outputs == calls:
                seen[_call(info.session_id)] += 1
            else:
                figures.tell_half(f"{info.session_id}: {info.metadata.get('run')}, {kinds}")


async def _churned(catalog: SessionCatalog, journal: Journal, figures: Figures) -> None:
    session = catalog.session("churn")
    metadata = await session.get_metadata()
    last = _call(metadata.get("a", "churn nobody 0"))
    if metadata and metadata != values(last):
        figures.tell_half(f"churn: {metadata}")
    await _pairs_of(session, Counter(), figures)
    figures.churned = sum(call.kind == "churn" for call in journal.acknowledged)


def _lasting(calls: set[Call]) -> set[Call]:
    return {call for call in calls if call.kind != "churn"}


async def _elements(engine: AsyncEngine, figures: Figures) -> None:
    """Compare the index of list elements with the lists."""
    key = _quoted(engine, "key")
    metadata = f"SELECT session_id, {key}, value FROM agent_sessions_metadata"
    elements = (
        f"SELECT session_id, {key}, search_key, search_rest FROM agent_sessions_metadata_elements"
    )
    async with engine.connect() as connection:
        wanted = {
            (session_id, name, element.indexed, element.rest)
            for session_id, name, value in await connection.execute(text(metadata))
            for element in decode_elements(value)
        }
        stored = {
            (session_id, name, bytes(indexed), bytes(rest))
            for session_id, name, indexed, rest in await connection.execute(text(elements))
        }
    for each in wanted ^ stored:
        figures.tell_half(f"element {each}")


async def _orphans(engine: AsyncEngine, figures: Figures) -> None:
    key = _quoted(engine, "key")
    async with engine.connect() as connection:
        for name, tables in _ORPHANS.items():
            joined = tables.replace(".key", f".{key}")
            statement = f"SELECT count(*) FROM {joined} WHERE p.session_id IS NULL"
            count = (await connection.execute(text(statement))).scalar_one()
            figures.orphans += count
            if count:
                figures.details.append(f"{count} orphans in {name}")


def _quoted(engine: AsyncEngine, name: str) -> str:
    return engine.dialect.identifier_preparer.quote_identifier(name)

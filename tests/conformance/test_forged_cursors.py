"""Cursors with a valid digest, as somebody makes them who has read the source."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from agents_session_metadata import InvalidCursorError, SessionCatalog, SessionRuns
from agents_session_metadata.http import sessions_app
from agents_session_metadata.query import ordering
from conformance import raw
from conformance.approving import Deployer, deploys

TEXTS = ["a\0", "\ud800", 1, None, True, ["a"], {}]
NUMBERS = [2**63, 2**63 - 1, -(2**63) - 1, 10**400, True, 1.5, "1", None, [1], float("nan")]
TIMES = [
    *TEXTS,
    *("", "x", "NaN", "Infinity", "1e999", "2026-13-01 00:00:00", "2026-01-01T00:00:00+01:00"),
    *("1" * 15, f"1.{'9' * 60}", f"2026-01-01 00:00:00.{'0' * 60}"),
]
VALUES = [*TEXTS[:3], ["a"], "a", "é"]
KINDS: dict[str, tuple[list[Any], ...]] = {
    "sessions by id": (TEXTS,),
    "sessions": (TEXTS, TIMES),
    "sessions by key": (TEXTS, TIMES, VALUES),
    "items": (TIMES, NUMBERS),
    "search": (TIMES, NUMBERS, [1, "x", None], TEXTS),
    "runs": (NUMBERS, TEXTS),
}
"""Wrong values for each part of a position."""


@pytest.fixture
async def catalog(engine):
    catalog = SessionCatalog(engine, create_tables=True)
    await catalog.create_index("$text")
    for name in ("a", "b", "c"):
        session = await catalog.create_session(name, metadata={"title": name, "n": 1})
        await session.add_items([raw.message(f"tram {number}") for number in range(3)])
        await SessionRuns(catalog).run(name, Deployer().agent(deploys("c1")), "Go")
    return catalog


def page_of(catalog: SessionCatalog, kind: str, **more: Any) -> Any:
    orders = {"sessions by id": "session_id", "sessions": "-updated_at", "sessions by key": "n"}
    if kind in orders:
        return catalog.list_sessions(order_by=orders[kind], limit=1, **more)
    if kind == "items":
        return catalog.list_items("a", limit=1, **more)
    if kind == "search":
        return catalog.search("tram", limit=1, **more)
    return SessionRuns(catalog).list(limit=1, **more)


@pytest.mark.logic
@pytest.mark.parametrize("kind", KINDS)
async def test_a_cursor_with_a_valid_digest_and_wrong_parts_is_refused(catalog, kind, monkeypatch):
    sealed, asked = ordering.seal, []

    def seal(position: Any, question: Any) -> str:
        asked.append((list(position), question))
        return sealed(position, question)

    for module in ("query.ordering", "history.items", "search.pages", "runs.approvals"):
        monkeypatch.setattr(f"agents_session_metadata.{module}.seal", seal)
    cursor = (await page_of(catalog, kind)).next_cursor
    [(position, question)] = asked
    assert sealed(position, question) == cursor
    assert await page_of(catalog, kind, cursor=cursor)
    forged = [[], [*position, 1], {}, "x"]
    for at, wrong in enumerate(KINDS[kind]):
        forged += [[*position[:at], each, *position[at + 1 :]] for each in wrong]
    for each in forged:
        with pytest.raises(InvalidCursorError):
            await page_of(catalog, kind, cursor=sealed(each, question))
    if kind == "sessions":
        app = sessions_app(catalog, scope=None)
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url="http://test"
        ) as client:
            for each in forged:
                after = sealed(each, question)
                answer = await client.get("/conversations", params={"limit": 1, "after": after})
                assert answer.status_code == 400
                assert answer.json()["error"]["param"] == "after"

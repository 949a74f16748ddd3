"""The page of statistics: its figures, its words, and what is missing."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from sqlalchemy import func, select, update

from agents_session_metadata import SessionCatalog
from agents_session_metadata.usage.feature import USAGE, UsageEntry, add_usage
from agents_session_metadata.usage.prices import Tokens

from .browsing import client

pytestmark = pytest.mark.logic

NOW = datetime.now(timezone.utc).replace(hour=12, minute=0, second=0, microsecond=0)


def record(session_id: str, age: timedelta, **metadata) -> dict:
    created = (NOW - age).isoformat()
    return {
        "format": 1,
        "session_id": session_id,
        "created_at": created,
        "updated_at": created,
        "metadata": metadata,
        "items": [],
    }


@pytest.fixture
async def catalog(engine) -> SessionCatalog:
    catalog = SessionCatalog(engine, create_tables=True)
    records = [
        record(f"s{number}", timedelta(days=2), runs=2, duration_ms=number * 1000, owner_id="u1")
        for number in range(1, 21)
    ]
    records += [
        record("failed", timedelta(days=2), status="failed", owner_id="u2"),
        record("odd", timedelta(days=1), status=["failed"], runs=True, duration_ms="long"),
        record("odder", timedelta(days=1), runs=-3, duration_ms=10**40, owner_id="u2"),
        record("newest", timedelta(), status="failed", runs=1, duration_ms=1500),
        record("old", timedelta(days=40), status="failed", runs=9, duration_ms=1),
    ]
    await catalog.import_sessions(records)
    return catalog


async def use(catalog, owner: str, day: date, tokens: int, cost: str | None, model="m") -> None:
    """Write a row into the ledger."""
    database = catalog._store.database
    await database.ensure(USAGE)
    counts = Tokens(1, tokens, 0, 0, 0, tokens)
    entry = UsageEntry("x", model, counts, cost and Decimal(cost))
    [table] = database.tables.group(USAGE).tables

    def write(connection) -> None:
        add_usage(connection, catalog._store, [entry], None, owner)
        added = connection.scalar(select(func.max(table.c.id)))
        connection.execute(update(table).where(table.c.id == added).values(day=day))

    await database.write(write)


def figures(page) -> dict[str, list[str]]:
    """The rows of the table of figures that are not empty, by day."""
    rows = re.findall(r'<tr><th scope="row">([\d-]{10})</th>(.*?)</tr>', page.text)
    cells = {day: re.findall("<td>(.*?)</td>", row) for day, row in rows}
    assert len(cells) in {0, 30}
    return {day: row for day, row in cells.items() if set(row) - {"0", "\u2013", "$0.00"}}


async def test_only_the_owners_with_the_ten_highest_costs_are_read(engine) -> None:
    sizes: list[int] = []

    class Counting(SessionCatalog):
        async def usage(self, **options):
            rows = await super().usage(**options)
            sizes.append(len(rows))
            return rows

    catalog = Counting(engine, create_tables=True)
    await catalog.create_session("a")
    for number in range(1, 13):
        await use(catalog, f"u{number:02}", NOW.date(), 1, str(number))
    async with client(catalog) as browser:
        page = (await browser.get("/statistics")).text
    assert max(sizes) == 10
    costs = page.partition("Cost by owner")[2].partition("Cost by agent")[0]
    assert re.findall(r">(u\d+)<", costs) == [f"u{number:02}" for number in range(12, 2, -1)]


async def test_the_page(catalog) -> None:
    before, today = (NOW - timedelta(days=2)).date(), NOW.date()
    await use(catalog, "u1", before, 1000, "0.25")
    await use(catalog, "u2", before, 500, "1.5", model="other")
    await use(catalog, "u1", today - timedelta(days=60), 10**6, "99")
    await use(catalog, "u1", today, 7, None, model="<b>free</b>")
    async with client(catalog) as browser:
        page = await browser.get("/statistics")
        assert page.status_code == 200
        rows = figures(page)
        assert rows[f"{before}"] == ["21", "1", "40", "1,500", "$1.75", "10.0 s", "19.0 s"]
        assert rows[f"{today}"] == ["1", "1", "1", "7", "$0.00", "1.5 s", "1.5 s"]
        assert "no price is known: <code>&lt;b&gt;free&lt;/b&gt;</code>" in page.text
        # Each chart says in words what it shows.
        words = re.findall(r'role="img" aria-label="([^"]*)"', page.text)
        assert len(words) == 6
        costs = page.text.partition("Cost by owner")[2].partition("Sessions by status")[0]
        assert re.findall(r'class="num">([^<]*)', costs) == [
            "$1.50",
            "$0.25",
            "$1.75",
            "$1.50",
            "$0.25",
        ]
        assert f"Sessions: 24 in all, 21 on {before:%b} {before.day}." in words
        assert f"Cost: $1.75 in all, $1.75 on {before:%b} {before.day}." in words

        of_owner = figures(await browser.get("/statistics?owner_id=u1"))
        assert of_owner[f"{before}"][3:5] == ["1,000", "$0.25"]
        assert figures(await browser.get("/statistics?filter=owner_id%3Du1")) == of_owner
        for query in ("owner_id=u1&status=failed", "filter=runs%3D2", "owner_id=null"):
            page = await browser.get(f"/statistics?{query}")
            assert page.status_code == 200
            assert "can only be filtered by owner" in page.text
            assert "Tokens:" not in page.text
    async with client(catalog, scope=lambda request: {"owner_id": "u2"}) as browser:
        page = await browser.get("/statistics")
        assert figures(page)[f"{before}"][:5] == ["1", "1", "0", "500", "$1.50"]
        assert figures(await browser.get("/statistics?owner_id=u1")) == {}
    async with client(SessionCatalog(catalog.engine).scoped({"owner_id": "none"})) as browser:
        assert figures(await browser.get("/statistics")) == {}


async def test_a_database_without_a_ledger(catalog, engine) -> None:
    async with client(SessionCatalog(engine)) as browser:
        page = await browser.get("/statistics")
        assert page.status_code == 200
        assert 'class="notice"' not in page.text
        # A chart without values is left out.
        assert len(re.findall('role="img"', page.text)) == 4
        assert "Cost by owner" not in page.text

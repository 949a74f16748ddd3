"""The totals of each day: what they add up, how many sessions they read, and who may see them."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import pytest

from agents_session_metadata import (
    CorruptMetadataError,
    DailyStatistics,
    DayStatistics,
    InvalidFilterError,
    SessionCatalog,
    ToolStatistics,
)
from conformance import raw

FIRST, SECOND, THIRD = (date(2026, 3, day) for day in (1, 2, 3))


def record(session_id: str, created: str, **metadata) -> dict:
    return {
        "format": 1,
        "session_id": session_id,
        "created_at": f"{created}+00:00",
        "updated_at": f"{created}+00:00",
        "metadata": metadata,
        "items": [],
    }


@pytest.fixture
async def catalog(engine) -> SessionCatalog:
    catalog = SessionCatalog(engine, create_tables=True)
    records = [
        record(f"s{n}", "2026-03-01T00:00:00", runs=2, duration_ms=n * 1000, owner_id="u1")
        for n in range(1, 21)
    ]
    records += [
        record("failed", "2026-03-01T23:59:59", status="failed", owner_id="u2"),
        record("odd", "2026-03-02T12:00:00", status=["failed"], runs=True, duration_ms="long"),
        record("odder", "2026-03-02T12:00:01", runs=-3, duration_ms=10**40, owner_id="u2"),
        record(
            "newest",
            "2026-03-03T00:00:00",
            status="failed",
            agent="planner",
            runs=1,
            duration_ms=1500,
            tool_calls=[["look", 2, 30], ["write", 3, 5]],
        ),
        record("old", "2026-01-31T12:00:00", status="failed", runs=9, duration_ms=1),
    ]
    await catalog.import_sessions(records)
    return catalog


def counted(found: DailyStatistics) -> dict[date | None, int]:
    return {each.day: each.sessions for each in found.days}


async def test_sessions_count_on_the_day_on_which_they_were_created(catalog) -> None:
    found = await catalog.daily_statistics(since=FIRST)
    assert [each.day for each in found.days] == [FIRST, SECOND, THIRD]
    first, second, third = found.days
    assert (first.sessions, first.runs) == (21, 40)
    assert first.by_status == {"completed": 20, "failed": 1}
    assert (first.duration_median, first.duration_p95) == (
        timedelta(seconds=10),
        timedelta(seconds=19),
    )
    assert second == DayStatistics(SECOND, sessions=2)
    assert third == DayStatistics(
        THIRD,
        sessions=1,
        by_status={"failed": 1},
        by_agent={"planner": 1},
        runs=1,
        tools={
            "write": ToolStatistics(3, timedelta(milliseconds=5)),
            "look": ToolStatistics(2, timedelta(milliseconds=30)),
        },
        duration_median=timedelta(milliseconds=1500),
        duration_p95=timedelta(milliseconds=1500),
    )
    assert list(third.tools) == ["write", "look"]
    total = found.total
    assert (total.day, total.sessions, total.runs, found.complete) == (None, 24, 41, True)
    assert total.by_status == {"completed": 20, "failed": 2}
    assert total.duration_median == timedelta(seconds=10)


async def test_a_range_includes_its_first_and_its_last_day(catalog) -> None:
    assert counted(await catalog.daily_statistics(since=FIRST, until=SECOND)) == {
        FIRST: 21,
        SECOND: 2,
    }
    # An aware datetime stands for its day in UTC.
    late = datetime(2026, 3, 1, 23, tzinfo=timezone(-timedelta(hours=2)))
    assert counted(await catalog.daily_statistics(since=late, until=late)) == {SECOND: 2}
    empty = await catalog.daily_statistics(since=date(2026, 3, 4))
    assert empty == DailyStatistics([], DayStatistics(), complete=True)


async def test_only_the_newest_sessions_are_counted(catalog) -> None:
    newest = await catalog.daily_statistics(since=FIRST, limit=2)
    assert (newest.complete, counted(newest)) == (False, {SECOND: 1, THIRD: 1})
    exactly = await catalog.daily_statistics(since=FIRST, limit=24)
    assert (exactly.complete, exactly.total.sessions) == (True, 24)


async def test_a_filter_and_a_scope_select_sessions(catalog) -> None:
    mine = await catalog.daily_statistics({"owner_id": "u2"}, since=FIRST)
    assert counted(mine) == {FIRST: 1, SECOND: 1}
    scoped = catalog.scoped({"owner_id": "u1"})
    assert counted(await scoped.daily_statistics(since=FIRST)) == {FIRST: 20}
    assert counted(await scoped.daily_statistics({"owner_id": "u2"}, since=FIRST)) == {}
    # The range does not count towards the limits of a filter.
    deepest: dict = {"owner_id": "u2"}
    for _ in range(10):
        deepest = {"$and": [deepest]}
    assert counted(await catalog.daily_statistics(deepest, since=FIRST)) == counted(mine)


async def test_a_value_that_is_not_json_is_an_error_unless_a_function_takes_it(
    catalog, engine
) -> None:
    await raw.execute(
        engine,
        "UPDATE agent_sessions_metadata SET value = '{' WHERE session_id = 'newest'",
    )
    with pytest.raises(CorruptMetadataError):
        await catalog.daily_statistics(since=FIRST)
    errors: list[CorruptMetadataError] = []
    found = await catalog.daily_statistics(since=FIRST, on_corrupt=errors.append)
    assert found.days[-1] == DayStatistics(THIRD, sessions=1)
    assert {error.key for error in errors} == {
        *("status", "agent", "runs", "duration_ms", "tool_calls")
    }


@pytest.mark.logic
async def test_invalid_arguments(catalog) -> None:
    for arguments, kind in (
        ({"since": "2026-03-01"}, TypeError),
        ({"since": datetime(2026, 3, 1)}, ValueError),  # noqa: DTZ001  # without a zone
        ({"since": FIRST, "until": 3}, TypeError),
        ({"since": FIRST, "limit": 0}, ValueError),
        ({"since": FIRST, "where": {"a": {"$nope": 1}}}, InvalidFilterError),
    ):
        with pytest.raises(kind):
            await catalog.daily_statistics(**arguments)

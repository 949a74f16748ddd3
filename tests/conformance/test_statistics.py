"""Totals over sessions, against a sum in plain Python."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from agents import function_tool
from doctoring import complete
from hypothesis import given
from scaling import examples, scale

from agents_session_metadata import (
    InvalidFilterError,
    SessionRuns,
    Statistics,
    ToolStatistics,
    keys,
)
from agents_session_metadata.doctor import diagnose
from agents_session_metadata.usage.statistics import _STEP
from conformance import corpus, raw, strategies
from conformance.approving import Deployer, call
from conformance.test_bound_parameters import configure_new_connections

COUNTERS = [
    keys.RUNS,
    keys.REQUESTS,
    keys.INPUT_TOKENS,
    keys.OUTPUT_TOKENS,
    keys.TOTAL_TOKENS,
    keys.RUN_MS,
    keys.DURATION_MS,
    keys.ERROR_COUNT,
]
TOOLS = [
    *["look", "Look", "look ", "", "it's", 'say "hi"', "back\\slash", "a.b[0]", "$[0]", "null"],
    *["é", "e\u0301", "日本語", "🔧🔧", "\n\t", "100%_", "x" * 300, "1", "true"],
]
STATUSES = ["active", "completed", "failed", "abandoned", "Active", "active ", "é", "🔧", ""]
FOREIGN: list[Any] = [
    *["x", "", "12", "1e5", True, False, None, {}, {"a": 1}, {"1": [["look", 1, 1]]}, "[]"],
]
FOREIGN_ENTRIES: list[Any] = [1, "a", {}, None, True, [], [1, 2, 3], [None, 1, 1], {"0": "look"}]


def expected(records: list[dict[str, Any]]) -> Statistics:
    """The totals of exported records."""
    totals = dict.fromkeys(COUNTERS, 0)
    cost = Decimal(0)
    by_status: dict[str, int] = {}
    tools: dict[str, list[int]] = {}
    for record in records:
        metadata = record["metadata"]
        for key in COUNTERS:
            if type(metadata.get(key)) is int:
                totals[key] += metadata[key]
        if type(metadata.get(keys.COST)) in {int, float}:
            cost += Decimal(repr(metadata[keys.COST]))
        status = metadata.get("run")
        if status not in ("running", "waiting", "interrupted", "failed"):
            status = metadata.get("status")
        if not isinstance(status, str):
            status = metadata.get("run")
        if not isinstance(status, str):
            runs = metadata.get("runs")
            status = "completed" if type(runs) in (int, float) and 1 <= runs < 10**18 else None
        if status is not None:
            by_status[status] = by_status.get(status, 0) + 1
        called = metadata.get(keys.TOOL_CALLS)
        for entry in called if isinstance(called, list) else []:
            if isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str):
                total = tools.setdefault(entry[0], [0, 0])
                total[0] += entry[1]
                total[1] += entry[2]
    everything = [record["metadata"] for record in records]
    resumed = [each for each in everything if at_least_one(each.get(keys.RESUMES))]
    durations = [
        each[keys.DURATION_MS] for each in everything if type(each.get(keys.DURATION_MS)) is int
    ]
    return Statistics(
        sessions=len(records),
        by_status=by_status,
        runs=totals[keys.RUNS],
        requests=totals[keys.REQUESTS],
        input_tokens=totals[keys.INPUT_TOKENS],
        output_tokens=totals[keys.OUTPUT_TOKENS],
        total_tokens=totals[keys.TOTAL_TOKENS],
        cost=cost,
        run_duration=timedelta(milliseconds=totals[keys.RUN_MS]),
        duration=timedelta(milliseconds=totals[keys.DURATION_MS]),
        errors=totals[keys.ERROR_COUNT],
        tools={
            name: ToolStatistics(count, timedelta(milliseconds=milliseconds))
            for name, (count, milliseconds) in tools.items()
        },
        resumed=len(resumed),
        resumed_completed=sum(each.get("status") == "completed" for each in resumed),
        with_errors=sum(at_least_one(each.get(keys.ERROR_COUNT)) for each in everything),
        duration_median=nearest_rank(durations, 50),
        duration_p95=nearest_rank(durations, 95),
    )


def at_least_one(value: object) -> bool:
    return type(value) in {int, float} and 1 <= value < 10**18


def nearest_rank(durations: list[int], percent: int) -> timedelta | None:
    if not durations:
        return None
    rank = -(-len(durations) * percent // 100)
    return timedelta(milliseconds=sorted(durations)[rank - 1])


def random_metadata(chance: random.Random) -> dict[str, Any]:
    tokens = [0, 1, 7, 2**31, 2**31 + 1, 2**40 + 3, 2**53 - 1, 2**53 + 1]
    metadata: dict[str, Any] = {"owner_id": chance.choice("abc")}
    for key in (*COUNTERS, "status", keys.COST, keys.TOOL_CALLS, keys.RESUMES):
        draw = chance.random()
        if draw < 0.15:
            continue
        if draw < 0.3:
            metadata[key] = chance.choice([*FOREIGN, [["x"]] if key != keys.TOOL_CALLS else "[["])
        elif key == "status":
            metadata[key] = chance.choice(STATUSES)
        elif key == keys.COST:
            places = chance.choice([0, 1, 2, 6, 12])
            amount = Decimal(chance.randrange(10**places * 100)).scaleb(-places)
            metadata[key] = chance.choice([float(amount), float(amount), int(amount)])
        elif key == keys.TOOL_CALLS:
            names = chance.sample(TOOLS, chance.randrange(5))
            entries: list[Any] = [
                [name, chance.randrange(1, 1000), chance.choice([0, 5, 2**31 + 1])]
                for name in names
            ]
            entries += chance.sample(FOREIGN_ENTRIES, chance.randrange(3))
            chance.shuffle(entries)
            metadata[key] = entries
        elif key in {keys.RUN_MS, keys.DURATION_MS}:
            metadata[key] = chance.choice([0, 5, chance.randrange(10**6), 2**31 + 7, 2**40])
        elif key == keys.RESUMES:
            metadata[key] = chance.choice([0, 0.5, 1, 1.0, 7])
        else:
            metadata[key] = chance.choice(tokens)
    return metadata


async def check(catalog, where=None):
    records = [record async for record in catalog.export_sessions(where)]
    found = await catalog.statistics(where)
    assert replace(found, feedback={}) == expected(records)  # Votes have their own test.
    return found


@pytest.mark.logic
async def test_no_sessions(catalog):
    nothing = await catalog.statistics()
    assert nothing == expected([])
    assert (nothing.sessions, nothing.cost, nothing.tools, nothing.tool_calls) == (0, 0, {}, 0)
    await catalog.create_session("chat")
    assert await catalog.statistics() == expected([{"metadata": {}}])


@pytest.mark.logic
async def test_one_session(catalog):
    metadata = {
        "status": "completed",
        keys.RUNS: 2,
        keys.REQUESTS: 5,
        keys.INPUT_TOKENS: 5_000_000_000,
        keys.OUTPUT_TOKENS: 20,
        keys.TOTAL_TOKENS: 5_000_000_020,
        keys.COST: 0.000000000001,
        keys.RUN_MS: 1500,
        keys.DURATION_MS: 90_000,
        keys.ERROR_COUNT: 3,
        keys.RESUMES: 2,
        keys.TOOL_CALLS: [["look", 2, 250], ["write", 1, 1000]],
    }
    await catalog.create_session("chat", metadata=metadata)
    found = await catalog.statistics({"$session_id": "chat"})
    assert found == Statistics(
        sessions=1,
        by_status={"completed": 1},
        runs=2,
        requests=5,
        input_tokens=5_000_000_000,
        output_tokens=20,
        total_tokens=5_000_000_020,
        cost=Decimal("0.000000000001"),
        run_duration=timedelta(seconds=1.5),
        duration=timedelta(seconds=90),
        errors=3,
        tools={
            "look": ToolStatistics(2, timedelta(milliseconds=250)),
            "write": ToolStatistics(1, timedelta(seconds=1)),
        },
        resumed=1,
        resumed_completed=1,
        with_errors=1,
        duration_median=timedelta(seconds=90),
        duration_p95=timedelta(seconds=90),
    )
    assert found.tool_calls == 3


@pytest.mark.scaled
@pytest.mark.parametrize("seed", scale([1], range(50)))
@pytest.mark.thorough
async def test_random_sessions(catalog, seed):
    chance = random.Random(seed)
    for number in range(120):
        await catalog.create_session(f"chat {number}", metadata=random_metadata(chance))
    assert (await check(catalog)).sessions == 120
    for where in (
        {"owner_id": "a"},
        {"status": "active"},
        {"$or": [{"owner_id": "b"}, {keys.RUNS: {"$gt": 5}}]},
        {keys.TOOL_CALLS: {"$exists": False}},
        {"$session_id": {"$prefix": "chat 1"}},
        {"owner_id": "nobody"},
    ):
        await check(catalog, where)
    scoped = catalog.scoped({"owner_id": "b"})
    assert await check(scoped) == await catalog.statistics({"owner_id": "b"})
    assert await check(scoped, {"status": "active"}) == await catalog.statistics(
        {"owner_id": "b", "status": "active"}
    )
    assert (await check(scoped, {"owner_id": "a"})).sessions == 0


async def test_many_small_costs_add_up_exactly(catalog):
    for number in range(200):
        cost = 0.1 if number % 2 else 0.000000000001
        await catalog.create_session(f"chat {number}", metadata={keys.COST: cost})
    assert (await catalog.statistics()).cost == Decimal("10.000000000100")


GOOD = {
    "status": "active",
    keys.COST: 0.5,
    keys.TOOL_CALLS: [["look", 1, 2]],
    **dict.fromkeys(COUNTERS, 3),
}


async def test_foreign_values_count_for_nothing(catalog):
    await catalog.create_session("good", metadata=GOOD)
    values = [(key, value) for key in GOOD for value in FOREIGN if key != "status"]
    values += [("status", value) for value in (1, 1.5, True, None, [], {}, ["active"])]
    for number, (key, value) in enumerate(values):
        await catalog.create_session(f"chat {number}", metadata={key: value})
    found = await check(catalog)
    assert found.sessions == len(values) + 1
    assert (found.by_status, found.cost, found.tool_calls) == ({"active": 1}, Decimal("0.5"), 1)
    assert (found.runs, found.requests, found.errors) == (3, 3, 3)


async def test_foreign_entries_count_for_nothing(catalog):
    await catalog.create_session("good", metadata=GOOD)
    calls = [*FOREIGN_ENTRIES, ["look", 1, 2], "look"]
    await catalog.create_session("both", metadata={keys.TOOL_CALLS: calls})
    found = await check(catalog)
    assert found.tools == {"look": ToolStatistics(2, timedelta(milliseconds=4))}


async def test_large_and_small_costs_keep_their_decimals(catalog):
    for number, cost in enumerate([123456.789012345, 999999.999999999, 7, 1e-07, 2.5e-05, 3e-12]):
        await catalog.create_session(f"s{number}", metadata={"cost": cost})
    await check(catalog)


async def test_sums_beyond_64_bits(catalog):
    for number in range(20):
        await catalog.create_session(f"s{number}", metadata={"total_tokens": 10**18 - 1})
    await check(catalog)


async def test_what_nobody_counts_is_left_out(catalog):
    for number, tokens in enumerate([10**18, -1, 10**53, 2**62, 1.5]):
        await catalog.create_session(
            f"s{number}", metadata={"total_tokens": -tokens, "cost": 10**12, "run_ms": 10**20}
        )
    found = await catalog.statistics()
    assert (found.total_tokens, found.cost, found.run_duration) == (1, 0, timedelta(0))


async def test_statuses_are_told_apart(catalog):
    for number, status in enumerate([*STATUSES, "active\0", "active", "x" * 2000]):
        await catalog.create_session(f"{number}", metadata={"status": status})
    assert (await check(catalog)).by_status["active"] == 2


@pytest.fixture
async def with_a_good_one(catalog):
    await catalog.create_session("good", metadata={keys.TOOL_CALLS: [["the good tool", 3, 4]]})
    return await catalog.create_session("any")


@examples(15, 2_000)
@given(
    metadata=strategies.st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            [*COUNTERS, "status", keys.COST, keys.TOOL_CALLS], strategies.json_values
        ),
    )
)
async def test_nothing_that_can_be_stored_is_in_the_way(catalog, with_a_good_one, metadata):
    await with_a_good_one.delete_metadata()
    await with_a_good_one.set_metadata(metadata)
    found = await catalog.statistics()
    assert found.sessions == 2
    assert found.tools["the good tool"] == ToolStatistics(3, timedelta(milliseconds=4))


async def test_ranks_of_durations(catalog):
    for number in range(1, 22):
        metadata = {keys.DURATION_MS: number * 1000}
        await catalog.create_session(f"s{number}", metadata=metadata)
        found = await check(catalog)
        assert found.duration_median == timedelta(seconds=(number + 1) // 2)
    assert found.duration_p95 == timedelta(seconds=20)


async def test_more_sessions_than_one_read(catalog):
    sessions = {f"chat {number}": {keys.RUNS: number} for number in range(_STEP)}
    for number in range(0, _STEP, 25):
        sessions[f"chat {number}"] = random_metadata(random.Random(number))
    sessions["few"] = sessions["chat more"] = {keys.RUNS: 1, "owner_id": "a"}
    await corpus.create_sessions(catalog, sessions)
    for where in (None, {"$session_id": {"$prefix": "chat"}}, {"owner_id": "a"}):
        await check(catalog, where)


@pytest.mark.logic
async def test_a_filter_that_is_not_understood(catalog):
    with pytest.raises(InvalidFilterError):
        await catalog.statistics({"a": {"$nope": 1}})


@pytest.mark.only_on("mariadb", "mysql")
async def test_a_server_that_groups_by_columns_only(database):
    """It is a default of MySQL."""
    engine = database.engine()
    setting = "SET SESSION sql_mode = CONCAT(@@sql_mode, ',ONLY_FULL_GROUP_BY')"
    configure_new_connections(engine, setting)
    catalog = await complete(engine)
    calls = [["search", 2, 30], ["write", 1, 5]]
    await catalog.set_metadata("a", {"tool_calls": calls, "owner_id": "u1", "status": "failed"})
    await catalog.set_metadata("b", {"tool_calls": calls, "status": "active", "duration_ms": 7})
    for one in (catalog, catalog.scoped({"owner_id": "u1"})):
        await check(one)
        await check(one, {"tags": {"$contains": "x"}})
        await one.usage(by=("day", "agent", "model", "owner_id", "session_id"))
        assert await one.count_values("tags") != []
        assert (await one.list_sessions({"tags": "x"}, preview=True)).sessions == []
    assert len(await catalog.list_indexes(count=True)) == 2
    assert not [each for each in await diagnose(engine) if each.level == "error"]


@pytest.mark.only_on("postgresql-url")  # Only ICU makes such collations.
async def test_texts_of_a_nondeterministic_collation(database):
    engine = database.engine()
    catalog = await complete(engine)
    await catalog.set_metadata("a", {"runs": 2, "duration_ms": 7, "status": "Active"})
    await catalog.set_metadata("b", {"runs": 3, "duration_ms": 1.5, "status": "active"})
    loose = "loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)"
    await raw.execute(engine, f"CREATE COLLATION {loose}")
    for table, column in (
        ("agent_sessions_metadata", "value"),
        ("agent_messages", "message_data"),
    ):
        change = f"ALTER {column} TYPE TEXT COLLATE loose"
        await raw.execute(engine, f"ALTER TABLE {table} {change}")
    await engine.dispose()
    found = await check(catalog)
    assert found.by_status == {"Active": 1, "active": 1}
    page = await catalog.list_sessions(preview=True)
    assert {each.preview for each in page.sessions} == {"hello"}


async def test_a_status_is_that_of_the_run_else_the_lifecycle_else_the_tracker(catalog):
    """In `statuses`, in `statistics`, and in the filter for each status."""
    expected = {
        "run": ({"run": "waiting", "status": "active", "runs": 1}, "waiting"),
        "failed run": ({"run": "failed"}, "failed"),
        "lifecycle": ({"run": "completed", "status": "failed"}, "failed"),
        "only lifecycle": ({"status": "active", "runs": 3}, "active"),
        "ended run": ({"run": "completed"}, "completed"),
        "tracker": ({"runs": 2}, "completed"),
        "other types": ({"run": 1, "status": None, "runs": True}, None),
        "nothing": ({"title": "x"}, None),
    }
    for name, (metadata, _) in expected.items():
        await catalog.create_session(name, metadata=metadata)
    found = await catalog.statuses(await catalog.list_sessions())
    assert found == {name: status for name, (_, status) in expected.items() if status}
    counted = (await catalog.statistics()).by_status
    for status in ("waiting", "failed", "active", "completed", "running", "interrupted"):
        names = {name for name, each in found.items() if each == status}
        listed = await catalog.list_sessions(await catalog.status_filter(status))
        assert {each.session_id for each in listed} == names, status
        assert counted.get(status, 0) == len(names)


async def test_the_status_of_an_interrupted_run(catalog):
    runs = SessionRuns(catalog)
    began = asyncio.Event()

    @function_tool
    async def wait() -> None:
        began.set()
        await asyncio.Event().wait()

    agent = Deployer().agent([call("wait", "c1")], tools=[wait])
    task = asyncio.create_task(runs.run("chat", agent, "Deploy"))
    await began.wait()
    for expected in ("running", "interrupted"):
        if expected == "interrupted":
            task.cancel()
            await asyncio.wait([task])
        assert await catalog.statuses(await catalog.list_sessions()) == {"chat": expected}
        for status in ("running", "interrupted"):
            listed = await catalog.list_sessions(await catalog.status_filter(status))
            assert len(listed) == (status == expected)
        assert (await catalog.statistics()).by_status == {expected: 1}
    elsewhere = catalog.scoped({"owner_id": "nobody"})
    assert await elsewhere.statuses(await catalog.list_sessions()) == {"chat": "running"}

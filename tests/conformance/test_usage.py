"""The usage ledger: what runs used, against the SDK's own usage."""

from __future__ import annotations

import logging
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest
from agents import Agent, ModelProvider, RunConfig, Runner, function_tool
from agents.exceptions import ModelBehaviorError
from agents.extensions.memory import EncryptedSession
from agents.testing import ScriptedModel, assistant_message
from agents.usage import Usage
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from processes import run_processes
from scaling import scale
from sqlalchemy import insert, select

from agents_session_metadata import (
    MetadataLimits,
    ModelPrice,
    SessionCatalog,
    SessionRuns,
    SessionTracker,
    TablesMissingError,
    UsageRow,
    keys,
)
from conformance import raw
from conformance.approving import Deployer, call, deploys
from conformance.running import USAGE, agent, calls, count_writes

TABLE = "agent_sessions_metadata_usage"
PRICES = {"big": ModelPrice(input=Decimal(10), output=Decimal(100), cached_input=Decimal(1))}
FULL = Usage(
    requests=1,
    input_tokens=1000,
    input_tokens_details=InputTokensDetails(cached_tokens=400, cache_write_tokens=0),
    output_tokens=100,
    output_tokens_details=OutputTokensDetails(reasoning_tokens=30),
    total_tokens=1100,
)
COUNTS = {
    "requests": 1,
    "input_tokens": 1000,
    "cached_input_tokens": 400,
    "output_tokens": 100,
    "reasoning_tokens": 30,
    "total_tokens": 1100,
}
RUNS, PROCESSES = scale((6, 2), (50, 4))

RUN_OVERLAPPING = """
import asyncio, random, sys
sys.path.insert(0, sys.argv[1])
from sqlalchemy.ext.asyncio import create_async_engine
from agents import Runner
from agents.usage import Usage
from agents_session_metadata import *
from conformance.running import agent, calls
from agents import function_tool

@function_tool
async def look() -> str:
    await asyncio.sleep(0)
    return "done"

async def main():
    engine = create_async_engine(sys.argv[2])
    catalog = SessionCatalog(engine)
    chance = random.Random(sys.argv[3])
    async def run(number):
        session = catalog.session(f"chat-{number % 3}")
        tokens, output = chance.randrange(10_000), chance.randrange(1_000)
        usage = Usage(requests=1, input_tokens=tokens, output_tokens=output,
                      total_tokens=tokens + output)
        inner = agent("inner", "found", usage=usage)
        ask = [*calls("ask")]
        ask[0].arguments = '{"input": "what?"}'
        steps = ask, calls("look", "look", first=5), "done"
        tools = [look, inner.as_tool("ask", "Asks.")]
        async with SessionTracker(session) as hooks:
            result = await Runner.run(
                agent("outer", *steps, tools=tools, usage=usage), "hello", hooks=hooks)
        return result.context_wrapper.usage
    try:
        for used in await asyncio.gather(*map(run, range(int(sys.argv[4])))):
            emit([used.requests, used.input_tokens, used.output_tokens, used.total_tokens])
    finally:
        await engine.dispose()

start()
asyncio.run(main())
"""

RUN_TWICE = """
import asyncio, logging, sys
sys.path.insert(0, sys.argv[1])
from sqlalchemy.ext.asyncio import create_async_engine
from agents import Runner
from agents_session_metadata import *
from conformance.running import agent

class Told(logging.Handler):
    def emit(self, record):
        emit([record.levelno, record.getMessage()])

async def main():
    logging.getLogger("agents_session_metadata").addHandler(Told(logging.WARNING))
    engine = create_async_engine(sys.argv[2])
    for number in range(2):
        async with SessionTracker(SessionCatalog(engine).session(f"bare-{number}")) as hooks:
            await Runner.run(agent("engineer", "done"), "hello", hooks=hooks)
    await engine.dispose()

start()
asyncio.run(main())
"""
TESTS = Path(__file__).parents[1]


class Provider(ModelProvider):
    """Models that answer to any name."""

    def get_model(self, model_name):
        return ScriptedModel([[assistant_message("done")]] * 10, default_usage=FULL)


PROVIDED = RunConfig(model_provider=Provider())


def look() -> str:
    return "done"


def today() -> date:
    return datetime.now(timezone.utc).date()


async def run(session, model="big", name="engineer", **options):
    async with SessionTracker(session, **options) as hooks:
        await Runner.run(Agent(name=name, model=model), "hello", hooks=hooks, run_config=PROVIDED)


async def test_runs_are_added_up(session, catalog, engine):
    assert await catalog.usage() == []
    transactions = count_writes(engine)
    await run(session, prices=PRICES)
    assert len(transactions) == 1, "the ledger has a transaction of its own"
    assert sum(TABLE in statement for statement in transactions[0]) == 1
    await run(session, model="small", prices=PRICES)
    other = await catalog.create_session("other", metadata={"owner_id": 7.0})
    await run(other, name="Engineer", prices=PRICES)
    nobody = await catalog.create_session("nobody")
    await run(nobody, prices=PRICES)

    cost = Decimal("0.0164")  # 600 at 10, 400 at 1 and 100 at 100, each for a million
    big, small = await catalog.usage(session_id="chat")
    assert big == UsageRow(day=today(), model="big", **COUNTS, cost=cost)
    assert small == UsageRow(day=today(), model="small", **COUNTS, unpriced=("small",))
    assert await catalog.usage(by=("day", "model")) == [
        UsageRow(today(), model="big", **{k: 3 * n for k, n in COUNTS.items()}, cost=3 * cost),
        small,
    ]
    [total] = await catalog.usage(by=())
    assert (total.requests, total.cost, total.unpriced) == (4, 3 * cost, ("small",))

    rows = await catalog.usage(by=("owner_id", "agent"))
    assert [(row.owner_id, row.agent, row.requests) for row in rows] == [
        (None, "engineer", 1),
        (7, "Engineer", 1),
        ("u1", "engineer", 2),
    ]
    assert [row.unpriced for row in rows] == [(), (), ("small",)]
    rows = await catalog.usage(by=["session_id"], owner_id=7)
    assert [(row.session_id, row.cost) for row in rows] == [("other", cost)]
    assert await catalog.usage(owner_id="7") == await catalog.usage(session_id="a\0") == []
    assert await catalog.usage(since=today(), until=datetime.now(timezone.utc)) != []
    assert await catalog.usage(since=today() + timedelta(days=1)) == []
    assert await catalog.usage(until=today() - timedelta(days=1)) == []


async def test_a_limit_returns_the_groups_of_the_highest_cost(session, catalog):
    fine = ModelPrice(input=Decimal("0.00000000001"), output=Decimal(250))  # needs 17 decimals
    for owner, prices in (
        ("a", None),
        ("b", PRICES),
        ("c", {"big": fine}),
        (None, PRICES),
        (None, PRICES),
    ):
        metadata = {"owner_id": owner, "team": "t"} if owner else {"team": "t"}
        other = await catalog.create_session(metadata=metadata)
        await run(other, prices=prices)
    await run(session, model="small")
    everything = await catalog.usage(by=("owner_id",))
    assert [row.owner_id for row in everything] == [None, "a", "b", "c", "u1"]
    for where in (catalog, catalog.scoped({"team": "t"})):
        assert await where.usage(by=("owner_id",), limit=1) == everything[:1]
        greatest = await where.usage(by=("owner_id",), limit=2)
        assert greatest == [everything[0], everything[3]]
        rows = await where.usage(by=("agent", "owner_id", "day"), limit=3)
        assert [row.owner_id for row in rows] == [None, "b", "c"]
    assert await catalog.usage(by=("owner_id",), limit=100) == everything
    assert await catalog.usage(by=(), limit=1) == await catalog.usage(by=())
    assert await catalog.usage(by=("owner_id",), owner_id="x", limit=1) == []


@pytest.mark.logic
async def test_each_row_knows_its_turn(session, catalog):
    """It has the newest item of the turn that was stored when the run ended."""
    usages = [Usage(requests=1, total_tokens=number) for number in (10, 20, 30)]
    for number, usage in enumerate(usages):
        async with SessionTracker(session) as hooks:
            worker = agent("engineer", "done", usage=usage)
            await Runner.run(worker, f"question {number}", session=session, hooks=hooks)
    items = (await catalog.list_items("chat")).items
    starts = [each.item_id for each in items if each.item.get("role") == "user"]
    rows = await catalog.usage(session_id="chat", by=("item_id",))
    assert [row.total_tokens for row in rows] == [10, 20, 30]
    for row, start, end in zip(rows, starts, [*starts[1:], items[-1].item_id + 1], strict=True):
        assert start <= row.item_id < end


async def test_scopes(session, catalog):
    await run(session)
    theirs = await catalog.create_session("theirs", metadata={"owner_id": "u2", "team": "a"})
    await run(theirs)
    mine = catalog.scoped({"owner_id": "u1"})

    async def counted(scoped, **options):
        return [row.session_id for row in await scoped.usage(by=("session_id",), **options)]

    assert await counted(mine) == ["chat"]
    assert await counted(mine, owner_id="u2") == await counted(mine, session_id="theirs") == []
    team = catalog.scoped({"team": "a"})
    assert await counted(team) == ["theirs"]
    assert await counted(team.scoped({"owner_id": "u1"})) == []
    assert await counted(team.scoped({"owner_id": "u2"})) == ["theirs"]
    await catalog.delete_session("chat")
    await catalog.delete_session("theirs")
    assert await counted(mine) == [None]
    assert await counted(team) == []
    assert await counted(catalog) == [None]
    assert await mine.delete_usage(before=today() + timedelta(days=1)) == 1
    assert await counted(catalog, owner_id="u2") == [None]


async def test_rows_outlive_the_session(session, catalog, engine):
    await run(session)
    await session.clear_session()
    await run(session)  # The session again, without an owner.
    found = await raw.execute(engine, f"SELECT session_id, owner_id FROM {TABLE} ORDER BY id")
    assert [tuple(row) for row in found] == [(None, '"u1"'), ("chat", None)]
    await raw.execute(engine, f"UPDATE {TABLE} SET day = '2020-02-29' WHERE owner_id IS NULL")
    [old] = await catalog.usage(until=date(2020, 2, 29), by=("day",))
    assert (old.day, old.requests) == (date(2020, 2, 29), 1)
    assert await catalog.delete_usage(before=date(2020, 2, 29)) == 0
    assert await catalog.delete_usage(before=datetime(2020, 3, 1, tzinfo=timezone.utc)) == 1
    assert len(await catalog.usage()) == 1


async def test_many_rows_are_deleted(session, catalog, engine):
    await run(session)
    [usage] = catalog._store.database.tables.group("usage").tables
    async with engine.begin() as connection:
        [row] = (await connection.execute(select(usage))).mappings()
        copy = {name: value for name, value in row.items() if name != "id"}
        await connection.execute(insert(usage), [copy] * 1_000)
    assert await catalog.delete_usage(before=today() + timedelta(days=1)) == 1_001
    assert await catalog.usage() == []


@pytest.mark.logic
async def test_agents_as_tools(session, catalog):
    async def ask(**options) -> dict:
        inner = agent("inner", "found", usage=FULL)
        asked = [*calls("ask")]
        asked[0].arguments = '{"input": "what?"}'
        tool = inner.as_tool("ask", "Asks.", hooks=options.pop("inner_hooks", None))
        outer = agent("outer", asked, "done", tools=[tool])
        async with SessionTracker(session, **options) as hooks:
            result = await Runner.run(outer, "hello", hooks=hooks)
        assert result.context_wrapper.usage.requests == 3
        rows = await catalog.usage(by=("model", "agent"))
        await catalog.delete_usage(before=today() + timedelta(days=1))
        assert sum(row.requests for row in rows) == 3
        assert sum(row.input_tokens for row in rows) == 2 * USAGE.input_tokens + 1000
        return {(row.model, row.agent): row.requests for row in rows}

    assert await ask() == {(None, "outer"): 3}
    assert await ask(model="big") == {("big", "outer"): 3}
    tracker = SessionTracker(session)
    inner = agent("inner", "found", usage=FULL)
    asked = [*calls("ask")]
    asked[0].arguments = '{"input": "what?"}'
    outer = agent("outer", asked, "done", tools=[inner.as_tool("ask", "Asks.", hooks=tracker)])
    async with tracker as hooks:
        await Runner.run(outer, "hello", hooks=hooks)
    rows = await catalog.usage(by=("agent",))
    assert [(row.agent, row.requests) for row in rows] == [("inner", 1), ("outer", 2)]


@pytest.mark.logic
async def test_agents_that_are_interrupted_inside_tools(session, catalog):
    runs = SessionRuns(catalog)

    def asking(*inner_steps, outer):
        inner = agent("inner", *inner_steps, usage=FULL, tools=Deployer().tools)
        tools = [*Deployer().tools, inner.as_tool("ask", "Asks.")]
        return agent("outer", *outer, tools=tools)

    async def check(used):
        counted = [used.requests, used.input_tokens, used.output_tokens, used.total_tokens]
        [row] = await catalog.usage(by=())
        assert [row.requests, row.input_tokens, row.output_tokens, row.total_tokens] == counted
        stored = await session.get_metadata(["requests", "total_tokens"])
        assert stored == {"requests": counted[0], "total_tokens": counted[3]}

    both = [call("ask", "ask", input="what?"), *deploys("own")]
    async with SessionTracker(session) as hooks:
        run = await runs.run("chat", asking(deploys("c1"), outer=[both]), "go", hooks=hooks)
    await check(run.result.context_wrapper.usage)
    # The agent in the tool is interrupted again, then answers; then the other tool runs.
    again = asking(deploys("c2"), outer=[])
    found = asking([call("look", "c3", target="x")], "found", outer=[])
    done = asking(outer=["done"])
    for approved, each, requests in (("c1", again, 3), ("c2", found, 5), ("own", done, 6)):
        await runs.decide("chat", approved, approve=True)
        async with SessionTracker(session) as hooks:
            run = await runs.resume("chat", each, hooks=hooks)
        assert run.result.context_wrapper.usage.requests == requests
        await check(run.result.context_wrapper.usage)
    rows = await catalog.usage(by=("agent",))
    assert [(row.agent, row.requests) for row in rows] == [("inner", 4), ("outer", 2)]
    assert (await session.get_metadata(["runs"])) == {"runs": 4}


async def test_what_a_run_used_before_it_failed_is_counted_once(session, catalog):
    runs = SessionRuns(catalog)
    tools = [*Deployer().tools]
    look = [call("look", "c1", target="x")]
    failing = agent("outer", look, RuntimeError("out"), tools=tools)
    with pytest.raises(RuntimeError, match="out"):
        async with SessionTracker(session) as hooks:
            await runs.run("chat", failing, "go", hooks=hooks)
    async with SessionTracker(session) as hooks:
        await runs.resume("chat", agent("outer", "done", tools=tools), hooks=hooks)
    [row] = await catalog.usage(by=())
    assert row.requests == 2
    assert (await session.get_metadata(["requests"])) == {"requests": 2}


@pytest.mark.logic
async def test_the_model_of_a_run_config(session, catalog):
    config = RunConfig(model_provider=Provider(), model="other")
    for model in ("other", None):
        async with SessionTracker(session, prices=PRICES, model=model) as hooks:
            await Runner.run(Agent(name="a", model="big"), "hi", hooks=hooks, run_config=config)
    assert [row.model for row in await catalog.usage(by=("model",))] == ["big", "other"]


@pytest.mark.logic
async def test_a_run_that_fails(session, catalog):
    one = agent("a", calls("look"), RuntimeError("out"), tools=[function_tool(look)])
    with pytest.raises(RuntimeError, match="out"):
        async with SessionTracker(session) as hooks:
            await Runner.run(one, "hello", hooks=hooks)
    # The SDK does not tell hooks of the end of a call whose answer it refuses.
    with pytest.raises(ModelBehaviorError):
        async with SessionTracker(session) as hooks:
            await Runner.run(agent("b", calls("nothing")), "hello", hooks=hooks)
    rows = await catalog.usage(by=("agent", "model"))
    assert [(row.agent, row.model, row.requests) for row in rows] == [
        ("a", None, 1),
        ("b", None, 1),
    ]


@pytest.mark.logic
async def test_a_wrapped_session_writes_to_the_ledger(session, catalog):
    encrypted = EncryptedSession("chat", session, encryption_key="a key of the tests")
    await run(encrypted)
    assert len(await catalog.usage(session_id="chat")) == 1


async def test_the_ledger_counts_when_the_metadata_cannot_be_written(engine, catalog, caplog):
    small = SessionCatalog(engine, metadata_limits=MetadataLimits(max_keys=1), create_tables=True)
    await run(await small.create_session("small", metadata={"owner_id": "u1"}))
    gone = await catalog.create_session("gone", metadata={"owner_id": "u1"})
    gone = catalog.scoped({"owner_id": "u1"}).session("gone", must_exist=True)
    async with SessionTracker(gone) as hooks:
        await Runner.run(Agent(name="a", model="big"), "hi", hooks=hooks, run_config=PROVIDED)
        await catalog.delete_session("gone")
    assert await catalog.get_session("gone") is None
    rows = await catalog.usage(by=("session_id", "owner_id"))
    assert [(row.session_id, row.owner_id) for row in rows] == [(None, "u1"), ("small", "u1")]
    assert len(caplog.records) == 2


async def test_a_session_that_was_deleted_gets_the_totals(engine, catalog):
    session = await catalog.create_session("gone", metadata={"owner_id": "u1"})
    async with SessionTracker(session) as hooks:
        await Runner.run(Agent(name="a", model="big"), "hi", hooks=hooks, run_config=PROVIDED)
        await catalog.delete_session("gone")
    metadata = await catalog.get_metadata("gone")
    assert metadata["runs"] == 1
    assert "owner_id" not in metadata
    assert await raw.count_rows(engine, "agent_messages", "gone") == 0


async def test_a_missing_table(shared_database):
    engine = shared_database.engine()
    session = await SessionCatalog(engine, create_tables=True).create_session("chat")
    bare = SessionCatalog(engine)
    # What this process has told in another test, it does not tell again.
    [[[level, message]]] = await run_processes(RUN_TWICE, [[TESTS, shared_database.url]])
    assert level == logging.WARNING
    assert TABLE in message
    assert (await bare.get_metadata("bare-1"))["runs"] == 1
    assert await bare.usage() == []
    with pytest.raises(TablesMissingError, match=TABLE):
        await bare.delete_usage(before=today())
    await run(session)
    assert len(await bare.usage()) == 1


@pytest.mark.logic
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"by": "day"}, TypeError),
        ({"by": None}, TypeError),
        ({"by": ("days",)}, ValueError),
        ({"by": ("day", "day")}, ValueError),
        ({"since": "2020-01-01"}, TypeError),
        ({"until": datetime(2020, 1, 1)}, ValueError),  # noqa: DTZ001
        ({"session_id": 5}, TypeError),
        ({"limit": 0}, ValueError),
        ({"limit": 101}, ValueError),
        ({"owner_id": {1}}, ValueError),
    ],
)
async def test_bad_questions(catalog, options, error):
    with pytest.raises(error):
        await catalog.usage(**options)


async def test_long_names_and_owners(catalog):
    owners = ["x" * 600 + "a", "x" * 600 + "b", ["a", {"b": 1}], "a\0b"]
    for number, owner in enumerate(owners):
        one = await catalog.create_session(f"s{number}", metadata={"owner_id": owner})
        await run(one, name="é" * 300, model="m" * 300)
    rows = await catalog.usage(by=("owner_id", "agent", "model"))
    assert sorted(str(row.owner_id) for row in rows) == sorted(map(str, owners))
    assert {(row.agent, row.model) for row in rows} == {("é" * 255, "m" * 255)}
    for owner in owners:
        assert len(await catalog.usage(owner_id=owner)) == 1
        assert len(await catalog.scoped({"tenant": 1}).usage(owner_id=owner)) == 0


@pytest.mark.logic
@pytest.mark.parametrize("odd", ["a\0b", "a\ud800b"])
async def test_names_that_cannot_be_stored(session, catalog, odd):
    await run(session, model=odd, name=odd, prices={odd: PRICES["big"]})
    [row] = await catalog.usage(by=("agent", "model"))
    assert (row.agent, row.model, row.requests, row.unpriced) == ("a\ufffdb", "a\ufffdb", 1, ())
    assert (await session.get_metadata())[keys.RUNS] == 1


@pytest.mark.scaled
async def test_sums_equal_the_usage_of_the_sdk(shared_database):
    engine = shared_database.engine()
    catalog = SessionCatalog(engine, create_tables=True)
    await run(await catalog.create_session("first"))
    await catalog.delete_usage(before=today() + timedelta(days=1))
    arguments = [(TESTS, shared_database.url, seed, RUNS) for seed in range(PROCESSES)]
    found = await run_processes(RUN_OVERLAPPING, arguments)
    used = [sum(numbers) for numbers in zip(*(one for each in found for one in each), strict=True)]
    [total] = await catalog.usage(by=())
    assert [total.requests, total.input_tokens, total.output_tokens, total.total_tokens] == used
    rows = await catalog.usage(by=("session_id", "agent", "model"))
    assert sum(row.requests for row in rows) == used[0] == 4 * RUNS * PROCESSES
    stored = [await catalog.get_metadata(f"chat-{number}") for number in range(3)]
    assert sum(each["total_tokens"] for each in stored) == used[3]
    assert {row.session_id for row in rows} == {"chat-0", "chat-1", "chat-2"}

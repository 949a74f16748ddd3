"""Budgets: what a session or an owner may use."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from agents import RunHooks, Runner, function_tool
from processes import run_processes
from scaling import scale
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from agents_session_metadata import (
    Budget,
    BudgetExceededError,
    ModelPrice,
    Remaining,
    SessionCatalog,
    SessionNotFoundError,
    SessionRuns,
    SessionTracker,
    TablesMissingError,
    keys,
)
from agents_session_metadata.tracking import budget as budgets
from agents_session_metadata.tracking.budget import first_day
from agents_session_metadata.usage import feature as ledger
from conformance import raw
from conformance.running import agent, calls

pytestmark = pytest.mark.logic

PRICE = ModelPrice(input=Decimal(10_000), output=Decimal(0))
"""A call costs 1: it has 100 input tokens. It has 110 tokens in all."""
TABLE = "agent_sessions_metadata_usage"
PROCESSES, RUNS = scale((2, 3), (4, 12))

RUN_UNTIL_REFUSED = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from sqlalchemy.ext.asyncio import create_async_engine
from agents import Runner, function_tool
from agents_session_metadata import *
from conformance.running import agent, calls

@function_tool
async def look() -> str:
    await asyncio.sleep(0)
    return "done"

async def main():
    engine = create_async_engine(sys.argv[2])
    catalog = SessionCatalog(engine)
    async def run(number):
        session = catalog.session(f"{sys.argv[3]}-{number}")
        steps = [calls("look", first=n) for n in range(100)]
        budget = Budget(tokens=1100, per="owner_id", window="month")
        try:
            async with SessionTracker(session, budget=budget) as hooks:
                await Runner.run(
                    agent("a", *steps, tools=[look]), "hello", hooks=hooks, max_turns=200)
        except BudgetExceededError:
            return 1
    try:
        emit(await asyncio.gather(*map(run, range(int(sys.argv[4])))))
    finally:
        await engine.dispose()

start()
asyncio.run(main())
"""


@function_tool
def look() -> str:
    return "done"


def looking(turns: int):
    return agent("a", *(calls("look", first=n) for n in range(turns)), "done", tools=[look])


async def run(session, budget, turns=0, **options):
    """Run an agent that calls its model once more than it has turns."""
    async with SessionTracker(session, budget=budget, prices=PRICE, **options) as hooks:
        return await Runner.run(looking(turns), "hello", session=session, hooks=hooks)


async def test_a_budget_of_a_session(session, catalog):
    budget = Budget(cost=3.0)
    await run(session, budget)
    with pytest.raises(BudgetExceededError) as caught:
        await run(session, budget, turns=5)
    error = caught.value
    assert (error.limit, error.spent, error.allowed) == ("cost", 3, 3)
    assert "spent 3 of 3.0" in str(error)
    stored = await session.get_metadata()
    assert (stored[keys.COST], stored[keys.REQUESTS], stored[keys.ERROR_COUNT]) == (3, 3, 1)
    assert "budget is used up" in stored[keys.LAST_ERROR]
    with pytest.raises(BudgetExceededError):
        await run(session, budget)
    await run(session, Budget(cost=Decimal("3.01"), tokens=331))
    with pytest.raises(BudgetExceededError, match=r"440 of 331 \(`tokens`\)"):
        await run(session, Budget(cost=100, tokens=331))
    await run(await catalog.create_session("other"), budget)
    [total] = await catalog.usage(session_id="chat", by=())
    assert (total.requests, total.cost) == (4, 4)


async def test_hooks_of_the_application_are_called_after_the_tracker(session):
    heard = []

    class Own(RunHooks[Any]):
        async def on_llm_start(self, *_: Any) -> None:
            heard.append("start")

    budget = Budget(tokens=1)
    await run(session, budget, hooks=Own())
    assert heard == ["start"]
    # A call that the tracker refuses does not start.
    with pytest.raises(BudgetExceededError):
        await run(session, budget, hooks=Own())
    assert heard == ["start"]


async def test_a_session_outside_the_scope_has_spent_nothing(catalog):
    mine, theirs = (catalog.scoped({"owner_id": owner}) for owner in ("u1", "u2"))
    budget = Budget(tokens=1)
    await run(await mine.create_session("secret"), budget)
    session = theirs.session("secret")
    with pytest.raises(SessionNotFoundError):
        await run(session, budget)
    async with SessionTracker(session, budget=budget) as hooks:  # Without a history.
        assert (await Runner.run(looking(0), "hello", hooks=hooks)).final_output == "done"
    with pytest.raises(BudgetExceededError):
        await run(mine.session("secret"), budget)


async def test_a_session_has_spent_what_it_used_before_it_had_its_owner(catalog):
    session, budget = await catalog.create_session("chat"), Budget(tokens=1)
    await run(session, budget)
    await session.set_metadata({"owner_id": "u1"})
    mine = catalog.scoped({"owner_id": "u1"})
    assert (await budget.remaining(mine.session("chat"))).tokens == 0
    with pytest.raises(BudgetExceededError):
        await run(mine.session("chat"), budget)


async def test_a_stream_is_refused(session):
    budget = Budget(tokens=110)
    events = []

    async def stream():
        async with SessionTracker(session, budget=budget) as hooks:
            result = Runner.run_streamed(looking(3), "hello", session=session, hooks=hooks)
            events.extend([event async for event in result.stream_events()])

    with pytest.raises(BudgetExceededError):
        await stream()
    assert (await session.get_metadata())[keys.REQUESTS] == 1


async def test_a_budget_of_an_owner(session, catalog, engine):
    budget = Budget(tokens=220, per="owner_id", window="day")
    other = await catalog.create_session("other", metadata={"owner_id": "u1"})
    theirs = await catalog.create_session("theirs", metadata={"owner_id": "u2"})
    for one in (session, other, theirs):
        await run(one, budget)
    await catalog.delete_session("chat")
    with pytest.raises(BudgetExceededError):
        await run(other, budget)
    await run(theirs, budget)
    with pytest.raises(ValueError, match="'nobody' has none"):
        await run(catalog.session("nobody"), budget)
    with pytest.raises(BudgetExceededError):
        await run(catalog.scoped({"owner_id": "u2"}).session("new"), budget)
    yesterday = datetime.now(timezone.utc).date() - timedelta(days=1)
    await raw.execute(engine, f"UPDATE {TABLE} SET day = '{yesterday}'")
    await run(other, budget)
    with pytest.raises(BudgetExceededError):
        await run(other, Budget(tokens=330, per="owner_id"))


def test_windows():
    today = date(2024, 2, 29)
    starts = [first_day(window, today) for window in (None, "day", "month")]
    assert starts == [None, today, date(2024, 2, 1)]


@pytest.mark.parametrize("window", ["day", "month"])
async def test_windows_begin_at_midnight_utc(session, catalog, monkeypatch, window):
    class Clock(datetime):
        """The clock of a server 14 hours ahead of UTC."""

        moment = datetime(2024, 2, 29, 23, 59, 59, tzinfo=timezone.utc)

        @classmethod
        def now(cls, tz=None):
            if tz is None:
                return cls.moment.astimezone(timezone(timedelta(hours=14))).replace(tzinfo=None)
            return cls.moment.astimezone(tz)

    for module in (ledger, budgets):
        monkeypatch.setattr(module, "datetime", Clock)
    budget = Budget(tokens=110, window=window)
    await run(session, budget)
    with pytest.raises(BudgetExceededError):
        await run(session, budget)
    Clock.moment += timedelta(seconds=1)
    await run(session, budget)
    with pytest.raises(BudgetExceededError):
        await run(session, budget)
    days = [(row.day, row.requests) for row in await catalog.usage(by=("day",))]
    assert days == [(date(2024, 2, 29), 1), (date(2024, 3, 1), 1)]


async def test_agents_in_tools(session):
    inner = agent("inner", calls("look"), "found", tools=[look])
    asked = [*calls("ask")]
    asked[0].arguments = '{"input": "what?"}'

    async def ask(hooks, inner_hooks=None):
        tools = [inner.as_tool("ask", "Asks.", hooks=inner_hooks)]
        await Runner.run(agent("outer", asked, "done", tools=tools), "hello", hooks=hooks)

    with pytest.raises(BudgetExceededError, match="330 of 120"):
        async with SessionTracker(session, budget=Budget(tokens=120)) as hooks:
            await ask(hooks)
    # With hooks, the call inside is refused; that becomes the tool's text, and then the outer one.
    inner = agent("inner", calls("look"), "found", tools=[look])
    tracker = SessionTracker(session, budget=Budget(tokens=550))
    with pytest.raises(BudgetExceededError, match="550 of 550"):
        async with tracker as hooks:
            await ask(hooks, hooks)


async def test_a_model_without_a_price(session, catalog):
    budget = Budget(cost=5.0)
    for prices in (None, {"other": PRICE}):
        with pytest.raises(BudgetExceededError, match="has no price"):
            async with SessionTracker(session, budget=budget, prices=prices) as hooks:
                await Runner.run(looking(0), "hello", hooks=hooks)
    assert await catalog.usage() == []
    async with SessionTracker(session, budget=budget, prices={"x": PRICE}, model="x") as hooks:
        await Runner.run(looking(1), "hello", hooks=hooks)
    [row] = await catalog.usage()
    assert (row.model, row.requests, row.cost, row.unpriced) == ("x", 2, 2, ())


async def test_what_cannot_be_held(session, engine):
    bare = SessionCatalog(engine).session("chat")
    with pytest.raises(TablesMissingError, match=TABLE):
        await run(bare, Budget(tokens=1))
    stored = await bare.get_metadata()
    assert stored.get(keys.REQUESTS, 0) == 0
    with pytest.raises(RuntimeError, match="async with"):
        await Runner.run(looking(0), "hello", hooks=SessionTracker(session, budget=Budget(cost=1)))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, ValueError),
        ({"cost": -1}, ValueError),
        ({"cost": float("nan")}, ValueError),
        ({"cost": "5"}, TypeError),
        ({"tokens": -1}, ValueError),
        ({"tokens": 1, "per": "user"}, ValueError),
        ({"tokens": 1, "window": "week"}, ValueError),
    ],
)
def test_bad_budgets(options, error):
    with pytest.raises(error):
        Budget(**options)


@pytest.mark.scaled
async def test_at_most_one_call_more_for_each_run(shared_database):
    catalog = SessionCatalog(shared_database.engine(), create_tables=True)
    first = await catalog.create_session("first", metadata={"owner_id": "u1"})
    await run(first, Budget(tokens=1100, per="owner_id", window="month"))
    names = [str(number) for number in range(PROCESSES)]
    for name in names:
        for number in range(RUNS):
            await catalog.create_session(f"{name}-{number}", metadata={"owner_id": "u1"})
    tests = Path(__file__).parents[1]
    arguments = [(tests, shared_database.url, name, RUNS) for name in names]
    found = await run_processes(RUN_UNTIL_REFUSED, arguments)
    assert found == [[[1] * RUNS]] * PROCESSES
    [total] = await catalog.usage(by=())
    assert 1100 <= total.total_tokens < 1100 + 110 * RUNS * PROCESSES


OPENINGS = {
    "unscoped": lambda catalog: catalog.session("chat"),
    "must exist": lambda catalog: catalog.session("chat", must_exist=True),
    "scope of a team": lambda catalog: catalog.scoped({"team": "t"}).session("chat"),
    "scope of the owner": lambda catalog: catalog.scoped({"owner_id": "u1"}).session("chat"),
}


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("taken", [False, True])
async def test_a_chat_that_is_deleted_in_the_middle_is_paid_by_its_owner(catalog, opening, taken):
    budget = Budget(tokens=110, per="owner_id")

    @function_tool
    async def end() -> str:
        await catalog.delete_session("chat")
        if taken:
            await catalog.create_session("chat", metadata={"owner_id": "u2", "team": "t"})
        return "deleted"

    async def run(*steps: object, budget: Budget | None = None) -> None:
        await catalog.delete_session("chat")
        await catalog.create_session("chat", metadata={"owner_id": "u1", "team": "t"})
        session = OPENINGS[opening](catalog)
        async with SessionTracker(session, budget=budget) as hooks:
            await Runner.run(agent("a", *steps, tools=[end]), "hello", session=session, hooks=hooks)

    # Calls before and after the deletion, in a run that may fail when it is stored.
    with suppress(SessionNotFoundError):
        await run(calls("end"), "Done")
    rows = await catalog.usage(by=("owner_id",))
    assert [row.owner_id for row in rows] == ["u1"]
    assert rows[0].total_tokens >= 110
    # So the budget holds for the next one, and for the next call in the same run.
    with pytest.raises(BudgetExceededError):
        await run("Done", budget=budget)
    await catalog.delete_usage(before=date.max)
    with pytest.raises((BudgetExceededError, SessionNotFoundError)):
        await run(calls("end"), "Done", budget=budget)
    rows = await catalog.usage(by=("owner_id",))
    assert [(row.owner_id, row.total_tokens) for row in rows] == [("u1", 110)]
    with pytest.raises(BudgetExceededError):
        await run("Done", budget=budget)


@pytest.mark.only_on("postgresql")
async def test_row_level_security_as_documented(catalog, database):
    """A policy on `session_id` would hide what deleted sessions have spent."""
    user = f"app_{make_url(database.url).database}"[:30]
    await run(await catalog.create_session("other"), Budget(tokens=1_000_000))
    rows = await raw.execute(
        catalog.engine,
        "SELECT table_name FROM information_schema.columns WHERE table_schema = 'public'"
        " AND column_name = 'session_id'",
    )
    statements = [f"CREATE ROLE {user} LOGIN", f"GRANT ALL ON SCHEMA public TO {user}"]
    for (table,) in rows:
        own = "left(session_id, 3) = 'u1-'"
        if table.endswith("_usage"):
            own = "owner_id = to_json('u1'::text)::text"
        statements += [
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"CREATE POLICY own ON {table} USING ({own})",
        ]
    statements += [f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}"]
    statements += [f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {user}"]
    engine = create_async_engine(make_url(database.url).set(username=user))
    try:
        async with catalog.engine.begin() as connection:
            for statement in statements:
                await connection.exec_driver_sql(statement)
        mine = SessionCatalog(engine).scoped({"owner_id": "u1"})
        budget = Budget(tokens=1, per="owner_id")
        await run(await mine.create_session("u1-1"), budget)
        assert await mine.delete_sessions() == 1
        with pytest.raises(BudgetExceededError):
            await run(await mine.create_session("u1-2"), budget)
        assert await mine.delete_usage(before=date.max) == 1
    finally:
        await engine.dispose()
        for statement in (f"DROP OWNED BY {user}", f"DROP ROLE {user}"):
            await raw.execute(catalog.engine, statement)
    assert await catalog.count_sessions() == 2


async def test_what_remains_of_a_budget(session, catalog):
    both = Budget(tokens=500, cost=Decimal("1.5"))
    assert await both.remaining(session) == Remaining(Decimal("1.5"), 500)
    one = agent("a", "hello")
    async with SessionTracker(session, prices=PRICE, model="m", budget=both) as hooks:
        await SessionRuns(catalog).run("chat", one, "hi", hooks=hooks)
    [row] = await catalog.usage(by=())
    left = await both.remaining(session)
    assert left == Remaining(Decimal("1.5") - row.cost, 500 - row.total_tokens)
    assert (await Budget(tokens=1).remaining(session)).tokens == 0
    owned = Budget(tokens=500, per="owner_id")
    assert (await owned.remaining(session)).tokens == 500 - row.total_tokens

"""Costs are exact, however large or small, and whatever the application's decimal context is."""

from __future__ import annotations

import decimal
from decimal import Decimal

import pytest
from agents import Agent, Runner
from agents.testing import ModelStep, ScriptedModel, assistant_message
from agents.usage import Usage

from agents_session_metadata import (
    Budget,
    BudgetExceededError,
    ModelPrice,
    SessionTracker,
    UsageRow,
    keys,
)
from agents_session_metadata.usage.feature import UsageEntry, add_usage
from agents_session_metadata.usage.prices import Tokens
from conformance import raw

LARGEST_BEFORE = Decimal("9223372.036854775807")
TABLE = "agent_sessions_metadata_usage"


async def booked(catalog, *costs: Decimal | None, model: str = "m") -> None:
    store = catalog._store
    await store.database.ensure("usage")
    entries = [UsageEntry("a", model, Tokens(requests=1), cost) for cost in costs]
    await store.database.write(
        lambda connection: add_usage(connection, store, entries, "chat", None)
    )


async def spend(session, price: ModelPrice, tokens: int = 1, budget: Budget | None = None) -> None:
    used = Usage(requests=1, input_tokens=tokens, total_tokens=tokens)
    model = ScriptedModel([ModelStep(output=[assistant_message("x")], usage=used)])
    async with SessionTracker(session, prices=price, model="m", budget=budget) as hooks:
        await Runner.run(Agent(name="a", model=model), "hello", hooks=hooks)


async def total(catalog) -> UsageRow:
    [row] = await catalog.usage(by=())
    return row


async def test_costs_of_any_size_are_added_exactly(session, catalog):
    costs = [
        LARGEST_BEFORE,
        LARGEST_BEFORE + Decimal("1e-12"),
        Decimal("123456789012345678.123456789012"),
        Decimal("1e-30"),
        Decimal("0.1234567890123"),
        Decimal("0.15"),
        Decimal(0),
        Decimal(10) ** 29,
    ]
    await booked(catalog, *costs)
    with decimal.localcontext(decimal.Context(prec=100)):
        everything = sum(costs)
    row = await total(catalog)
    assert (row.cost, row.unpriced, row.requests) == (everything, (), len(costs))
    assert str(row.cost) == f"{everything:f}"
    await booked(catalog, None, model="free")
    await booked(catalog, Decimal("0.5"), model="half")
    found = {row.model: (row.cost, row.unpriced) for row in await catalog.usage(by=("model",))}
    half = (Decimal("0.5"), ())
    assert found == {"m": (everything, ()), "free": (None, ("free",)), "half": half}
    assert (await total(catalog)).unpriced == ("free",)


async def test_rows_of_version_0_2_are_read_and_it_reads_ours(session, catalog, engine):
    await booked(catalog, Decimal("1.25"), Decimal("2.5"), LARGEST_BEFORE * 2, None)
    query = f"SELECT cost FROM {TABLE} ORDER BY id"
    # A model without a price is not counted as free, and neither is a cost that does not fit.
    rows = [row[0] for row in await raw.execute(engine, query)]
    assert rows == [1_250_000_000_000, 2_500_000_000_000, None, None]
    await raw.execute(engine, f"UPDATE {TABLE} SET exact_cost = NULL WHERE cost = {rows[0]}")
    row = await total(catalog)
    assert (row.cost, row.unpriced) == (Decimal("3.75") + LARGEST_BEFORE * 2, ("m",))


async def test_a_run_that_costs_more_than_nine_million_ends_as_it_should(session, catalog):
    price = ModelPrice(Decimal(10) ** 15, 0)
    for number in range(1, 4):
        await spend(session, price, 1_000_000, Budget(cost=Decimal(10) ** 16))
        assert (await total(catalog)).cost == number * Decimal(10) ** 15
    with pytest.raises(BudgetExceededError):
        await spend(session, price, 1, Budget(cost=Decimal(10) ** 15))
    assert (await session.get_metadata())[keys.RUNS] >= 3


@pytest.mark.logic
async def test_a_float_means_its_shortest_decimal(session, catalog):
    price = ModelPrice(0.15, 0.6, 0.075)
    assert price.cost(Usage(input_tokens=1_000_000, total_tokens=1)) == Decimal("0.15")
    assert price.cost(Usage(output_tokens=1, total_tokens=1)) == Decimal("6e-7")
    await spend(session, price, 1_000_000)
    assert (await total(catalog)).cost == Decimal("0.15")
    left = await Budget(cost=0.45).remaining(session)
    assert left.cost == Decimal("0.3")


@pytest.mark.parametrize(
    "context",
    [
        decimal.Context(prec=4),
        decimal.Context(prec=1, rounding=decimal.ROUND_UP),
        decimal.Context(traps=[decimal.Inexact, decimal.Rounded, decimal.FloatOperation]),
        decimal.Context(prec=2, Emax=2, Emin=-2, traps=[decimal.Overflow, decimal.Underflow]),
    ],
)
async def test_costs_do_not_depend_on_the_decimal_context(session, catalog, context):
    before = decimal.getcontext().copy()
    price = ModelPrice(Decimal("308.642"), 0.1, Decimal("0.123456789"))
    budget = Budget(cost=1000.5)
    decimal.setcontext(context)
    try:
        assert str(ModelPrice(0.15, 1).cost(Usage(input_tokens=3, total_tokens=3))) == "4.5E-7"
        await spend(session, price, 1_000_003, budget)
        await spend(session, price, 1_000_003)
        found = (await total(catalog)).cost
        left = await budget.remaining(session)
        statistics = await catalog.statistics()
        stored = (await session.get_metadata())[keys.COST]
    finally:
        decimal.setcontext(before)
    cost = 2 * Decimal("308.642") * Decimal("1.000003")
    assert found == cost
    assert left.cost == Decimal("1000.5") - cost
    assert statistics.cost == cost
    assert stored == float(cost)

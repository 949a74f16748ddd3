"""Prices of runs, and trackers that cannot write."""

from __future__ import annotations

import logging
from decimal import Decimal

import pytest
from agents import Agent, FunctionTool, ModelProvider, RunConfig, Runner, function_tool
from agents.models import get_default_model
from agents.testing import ScriptedModel, assistant_message
from agents.usage import Usage
from openai.types.responses.response_usage import InputTokensDetails

from agents_session_metadata import (
    MetadataLimits,
    ModelPrice,
    SessionCatalog,
    SessionTracker,
    SQLAlchemyMetadataSession,
    keys,
)
from conformance import raw
from conformance.running import agent, calls
from conformance.triggers import drop_triggers

pytestmark = pytest.mark.logic

PRICE = ModelPrice(input=Decimal("2.5"), output=Decimal(10))
CHEAP = ModelPrice(input=Decimal("0.05"), output=Decimal("0.4"), cached_input=Decimal("0.005"))


class Provider(ModelProvider):
    """Models by name; each answers every time."""

    def __init__(self, **usages: Usage) -> None:
        self._usages = usages

    def get_model(self, model_name):
        answers = [[assistant_message("done")]] * 10
        return ScriptedModel(answers, default_usage=self._usages[model_name or get_default_model()])


def usage(tokens: int, output: int, cached: int = 0) -> Usage:
    details = InputTokensDetails(cached_tokens=cached, cache_write_tokens=0)
    return Usage(
        requests=1,
        input_tokens=tokens,
        input_tokens_details=details,
        output_tokens=output,
        total_tokens=tokens + output,
    )


async def run(session, one, prices, **arguments):
    async with SessionTracker(session, prices=prices) as hooks:
        await Runner.run(one, "hello", hooks=hooks, **arguments)
    return (await session.get_metadata()).get(keys.COST)


async def test_one_price(session):
    cost = await run(session, agent("a", "done", usage=usage(1000, 100)), PRICE)
    assert cost == 0.0035
    cost = await run(session, agent("a", "done", usage=usage(2000, 0, cached=1000)), PRICE)
    assert cost == 0.0085


async def test_cached_tokens(session):
    cost = await run(session, agent("a", "done", usage=usage(1000, 100, cached=400)), CHEAP)
    # 600 at 0.05, 400 at 0.005 and 100 at 0.4, each for a million
    assert cost == 0.000072


async def test_no_sum_of_binary_fractions(session):
    price = ModelPrice(input=Decimal("0.1"), output=Decimal("0.2"))
    for _ in range(10):
        cost = await run(session, agent("a", "done", usage=usage(1, 1)), price)
    assert cost == 0.000003


async def test_prices_by_name(session):
    provider = Provider(big=usage(1000, 100), small=usage(1000, 100), free=usage(1000, 100))
    prices = {"big": PRICE, "small": CHEAP}
    config = RunConfig(model_provider=provider)

    async def cost(model: str) -> float:
        return await run(session, Agent(name="a", model=model), prices, run_config=config)

    assert await cost("big") == 0.0035
    assert await cost("small") == 0.00359
    assert await cost("free") == 0.00359
    assert await cost("big") == 0.00709
    assert (await session.get_metadata())[keys.RUNS] == 4


async def test_the_price_of_the_default_model(session):
    default = get_default_model()
    config = RunConfig(model_provider=Provider(**{default: usage(1000, 100)}))
    assert await run(session, Agent(name="a"), {default: PRICE}, run_config=config) == 0.0035


async def test_statistics_see_the_cost(session, catalog):
    await run(session, agent("a", "done", usage=usage(1000, 100)), PRICE)
    other = await catalog.create_session("other")
    await run(other, agent("a", "done", usage=usage(1000, 100)), CHEAP)
    assert (await catalog.statistics()).cost == Decimal("0.00359")


async def test_limits_that_are_too_small(engine, caplog):
    limits = MetadataLimits(max_keys=1)
    session = SQLAlchemyMetadataSession(
        "chat", engine=engine, create_tables=True, metadata_limits=limits
    )
    await session.set_metadata({"owner_id": "u1"})
    with caplog.at_level(logging.WARNING, logger="agents_session_metadata"):
        async with SessionTracker(session) as hooks:
            result = await Runner.run(agent("a", "done"), "hello", session=session, hooks=hooks)
    assert result.final_output == "done"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert await session.get_metadata() == {"owner_id": "u1"}
    assert len(await session.get_items()) == 2


async def test_limits_that_are_too_small_and_a_run_that_fails(engine, caplog):
    limits = MetadataLimits(max_keys=1)
    session = SQLAlchemyMetadataSession(
        "chat", engine=engine, create_tables=True, metadata_limits=limits
    )
    failure = RuntimeError("the model is out")
    with pytest.raises(RuntimeError) as caught:
        async with SessionTracker(session) as hooks:
            await Runner.run(agent("a", failure), "hello", session=session, hooks=hooks)
    assert caught.value is failure
    assert len(caplog.records) == 1
    assert await session.get_metadata() == {}


@pytest.fixture
async def bare(session, engine):
    """The session again, of an application that creates no tables."""
    return SessionCatalog(engine).session(session.session_id)


async def drop_tables(engine):
    await drop_triggers(engine)
    for table in ("agent_sessions_metadata_elements", "agent_sessions_metadata"):
        await raw.execute(engine, f"DROP TABLE {table}")


async def test_tables_that_are_gone(bare, engine, caplog):
    @function_tool
    async def drop() -> str:
        await drop_tables(engine)
        return "done"

    async with SessionTracker(bare) as hooks:
        one = agent("a", calls("drop"), "done", tools=[drop])
        result = await Runner.run(one, "hello", session=bare, hooks=hooks)
    assert result.final_output == "done"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.records[0].exc_info
    assert len(await bare.get_items()) == 4


async def test_tables_that_are_gone_and_a_run_that_fails(bare, engine, caplog):
    await drop_tables(engine)
    failure = RuntimeError("the model is out")
    with pytest.raises(RuntimeError) as caught:
        async with SessionTracker(bare) as hooks:
            await Runner.run(agent("a", failure), "hello", session=bare, hooks=hooks)
    assert caught.value is failure
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_a_session_out_of_scope(mine, caplog):
    session = mine.session("theirs-0")
    async with SessionTracker(session) as hooks:
        result = await Runner.run(agent("a", "done"), "hello", hooks=hooks)
    assert result.final_output == "done"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_an_error_that_cannot_be_stored_as_it_is(session):
    failure = RuntimeError("no file \udcff" + "x" * 100_000)
    with pytest.raises(RuntimeError) as caught:
        async with SessionTracker(session) as hooks:
            await Runner.run(agent("a", failure), "hello", hooks=hooks)
    assert caught.value is failure
    stored = await session.get_metadata()
    assert (stored.get(keys.RUNS), stored.get(keys.ERROR_COUNT)) == (1, 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("agents", [{"name": "x"}, ["y"]]),
        ("cost", 1e308),
        ("cost", 10**400),
        ("tool_calls", [{}, 1]),
        ("runs", "first"),
    ],
)
async def test_what_others_stored_under_its_keys(session, key, value, caplog):
    await session.set_metadata({key: value})
    failure = RuntimeError("the model is out")
    with pytest.raises(RuntimeError):
        async with SessionTracker(session, prices=PRICE) as hooks:
            await Runner.run(agent("a", failure), "hello", hooks=hooks)
    stored = await session.get_metadata()
    assert (stored[keys.RUNS], stored[keys.ERROR_COUNT]) == (1, 1)
    assert not caplog.records


async def test_a_name_that_cannot_be_added_up(session, catalog):
    async def work(context: object, arguments: str) -> str:
        return "done"

    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    tools = [FunctionTool(name, "", schema, work) for name in ("good", "a\0b")]
    async with SessionTracker(session) as hooks:
        one = agent("a", calls("good", "a\0b"), "done", tools=tools)
        await Runner.run(one, "go", hooks=hooks)
    assert {*(await catalog.statistics()).tools} == {"good", "a\ufffdb"}


@pytest.mark.parametrize("price", [Decimal("NaN"), Decimal(-1), Decimal("Infinity")])
def test_what_is_no_price(price):
    with pytest.raises(ValueError, match="output must be a price"):
        ModelPrice(input=Decimal(1), output=price)


def test_a_price_that_is_text():
    with pytest.raises(TypeError, match=r"input must be a number, got '2\.5'"):
        ModelPrice(input="2.5", output="10")


@pytest.mark.parametrize("prices", [5, "cheap", {"model": 5}])
def test_what_are_no_prices(catalog, prices):
    with pytest.raises(TypeError, match="must be a ModelPrice"):
        SessionTracker(catalog.session("chat"), prices=prices)

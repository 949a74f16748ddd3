"""Rows of optional tables, and numbers, that somebody changed by SQL: one does not block others."""

from __future__ import annotations

import logging
import pickle

import pytest
from agents import Runner
from sqlalchemy import text

from agents_session_metadata import CorruptMetadataError, SessionLifecycle, SessionTracker
from agents_session_metadata.chatkit import CatalogStore
from conformance.approving import Deployer, deploys, pause, paused_runs
from conformance.thread_items import user_item

DETAILS = [
    *["", "{bad", "null", "[]", "{}", '{"agent": 1}', '"x"', "[" * 100_000],
    '{"agent": null, "pending": [{}], "encrypted": false, "wrapped": false}',
    '{"agent": null, "pending": 5, "encrypted": false, "wrapped": false}',
]
DECISIONS = ["", "null", "[]", '{"c1": {}}', '{"c1": null}', '{"c1": {"at": "x"}}']
DECISIONS += ['{"c1": {"approve": true, "message": null, "by": null, "at": 1e300}}']


async def change(engine, table: str, column: str, value: object, where: str) -> None:
    statement = f"UPDATE {table} SET {column} = :value WHERE {where}"
    async with engine.begin() as connection:
        await connection.execute(text(statement), {"value": value})


def is_error_of(error: CorruptMetadataError, session_id: str, key: str) -> bool:
    assert (error.session_id, error.key) == (session_id, key)
    assert session_id in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301
    return True


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("details", DETAILS),
        ("decisions", DECISIONS),
        ("paused_at", [9 * 10**18, -9 * 10**18]),
        ("state", ["", "{bad", "[]", "null"]),
    ],
)
async def test_a_damaged_paused_run(engine, caplog, column, values):
    paused, deployer = paused_runs(engine), Deployer()
    await paused.catalog.create_session("good")
    lifecycle = SessionLifecycle(await paused.catalog.create_session("bad"))
    await lifecycle.start("deployer")
    await lifecycle.enter("planning")
    for value in values:
        agent = deployer.agent(deploys("c1"), deploys("c1"), "Done")
        for name in ("bad", "good"):
            await pause(paused, agent, name)
        table = "agent_sessions_metadata_paused"
        await change(engine, table, column, value, "session_id = 'bad'")
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            runs = (await paused.list()).runs
        if column == "state":
            # It is not read until the run is claimed.
            assert {run.session_id for run in runs} == {"bad", "good"}
        else:
            assert [run.session_id for run in runs] == ["good"]
            assert "bad" in caplog.text
            for work in (paused.get("bad"), paused.decide("bad", "c1", approve=True)):
                with pytest.raises(CorruptMetadataError) as caught:
                    await work
                assert is_error_of(caught.value, "bad", "$paused_run")
        with pytest.raises(CorruptMetadataError) as caught:
            async with paused.claim("bad", agent):
                pytest.fail("it was claimed")
        assert is_error_of(caught.value, "bad", "$paused_run")
        # What the error says to do.
        assert await paused.discard("bad")
        assert await paused.get("bad") is None
        for name in ("bad", "good"):
            await paused.catalog.session(name).clear_session()
        await lifecycle.enter("planning")


async def test_another_run_replaces_a_damaged_one(engine):
    paused, deployer = paused_runs(engine), Deployer()
    agent = deployer.agent(deploys("c1"), deploys("c2"), "Done")
    await pause(paused, agent)
    await change(engine, "agent_sessions_metadata_paused", "details", "{bad", "1 = 1")
    await paused.catalog.session("chat").clear_session()
    assert (await pause(paused, agent)).pending[0].call_id == "c2"


@pytest.mark.only_on("sqlite")
async def test_a_time_that_is_a_text_does_not_end_the_pages(engine):
    paused, deployer = paused_runs(engine), Deployer()
    for name in ("bad", "good"):
        await pause(paused, deployer.agent(deploys("c1")), name)
    table = "agent_sessions_metadata_paused"
    await change(engine, table, "paused_at", "2026-01-01", "session_id = 'bad'")
    first = await paused.list(limit=1)
    assert first.runs == []
    second = await paused.list(limit=1, cursor=first.next_cursor)
    assert [run.session_id for run in second.runs] == ["good"]


async def record_damaged(catalog, column, value):
    """Record a run in the ledger, and damage the row."""
    session = await catalog.create_session("chat", metadata={"owner_id": "u1"})
    async with SessionTracker(session) as tracker:
        await Runner.run(Deployer().agent("Done"), "Hello", hooks=tracker)
    await change(catalog.engine, "agent_sessions_metadata_usage", column, value, "1 = 1")


@pytest.mark.parametrize("owner", ["{bad", "", "[1e999]"])
async def test_a_damaged_owner_in_the_ledger(catalog, owner):
    await record_damaged(catalog, "owner_id", owner)
    assert [row.requests for row in await catalog.usage(by=["day"])] == [1]
    with pytest.raises(CorruptMetadataError) as caught:
        await catalog.usage(by=["owner_id"])
    assert is_error_of(caught.value, "", "$usage_owner")


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("day", ["", "today", "2026-02-30"])
async def test_a_damaged_day_in_the_ledger(catalog, day):
    await record_damaged(catalog, "day", day)
    assert [row.requests for row in await catalog.usage(by=["session_id"])] == [1]
    with pytest.raises(CorruptMetadataError) as caught:
        await catalog.usage(by=["day"])
    assert is_error_of(caught.value, "", "$usage_day")


@pytest.mark.parametrize("value", ["", "{bad", "[]", "null", '{"a": NaN}', '{"a": 1e999}'])
async def test_a_damaged_item_of_a_thread(catalog, value):
    store = CatalogStore(catalog, scope=lambda _: {"owner_id": "u1"})
    for name in ("bad", "good"):
        await catalog.create_session(name, metadata={"owner_id": "u1"})
        await store.add_thread_item(name, user_item(name, "item"), None)
    table = "agent_sessions_metadata_thread_items"
    await change(catalog.engine, table, "data", value, "session_id = 'bad'")
    with pytest.raises(CorruptMetadataError) as caught:
        pytest.fail(str([record async for record in catalog.export_sessions()]))
    assert is_error_of(caught.value, "bad", "$thread_item")
    errors: list[CorruptMetadataError] = []
    records = [record async for record in catalog.export_sessions(on_corrupt=errors.append)]
    assert [record["session_id"] for record in records] == ["good"]
    assert is_error_of(*errors, "bad", "$thread_item")


@pytest.mark.parametrize(
    ("key", "value", "damaged"),
    [
        *[("cost", 0.5, text) for text in ("1e999", "1e60", '"x"', "{bad", "")],
        *[("runs", 1, text) for text in ("x", '"1"')],
        *[("tool_calls", [["look", 1, 2]], text) for text in ("[bad", '{"a": 1', "x")],
    ],
)
async def test_statistics_of_a_damaged_value(catalog, key, value, damaged):
    for name in ("bad", "good"):
        await catalog.create_session(name, metadata={key: value, "owner_id": name})
    name = catalog.engine.dialect.identifier_preparer.quote("key")
    where = f"session_id = 'bad' AND {name} = '{key}'"
    await change(catalog.engine, "agent_sessions_metadata", "value", damaged, where)
    assert (await catalog.statistics({"owner_id": "good"})).sessions == 1
    errors = []
    try:
        assert (await catalog.statistics()).sessions == 2
    except CorruptMetadataError as error:
        errors.append(error)
    # Databases differ in what they refuse.
    assert all(is_error_of(error, "bad", key) for error in errors)
    if damaged not in ("1e60", '"x"', '"1"'):
        with pytest.raises(CorruptMetadataError):
            await catalog.get_session("bad")

"""A request with a key is answered once, whatever happens to its first attempt."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx2 as httpx
import pytest
from agents import function_tool
from agents.exceptions import MaxTurnsExceeded
from sqlalchemy.exc import DBAPIError

from agents_session_metadata import (
    KeyReusedError,
    RunCancelledError,
    RunFailedError,
    RunNotFoundError,
    SessionCatalog,
    SessionChangedError,
    SessionRuns,
)
from agents_session_metadata.http import sessions_app
from conformance import raw
from conformance.failing import (
    KEYS_TABLE,
    Till,
    expire,
    ids_of_calls,
    lose_connections,
    move,
    status,
    until,
)

DAY = 86_400


@pytest.fixture
def till():
    return Till()


@pytest.fixture
def runs(catalog):
    return SessionRuns(catalog)


async def fail(runs: SessionRuns, till: Till, **options: Any) -> None:
    """A run that charges, and whose model raises then."""
    agent = till.agent(["charge"], RuntimeError("429"), "Done")
    with pytest.raises(RuntimeError, match="429"):
        await runs.run("chat", agent, "Hi", **options)
    assert await status(runs) == "failed"


async def interrupt(runs: SessionRuns, till: Till, given: str, **options: Any) -> None:
    """A run that is cancelled while its tool works."""
    till.on_charge = asyncio.Event().wait
    agent = till.agent(["charge"])
    task = asyncio.create_task(runs.run("chat", agent, given, **options))
    await until(lambda: till.charged)
    task.cancel()
    await asyncio.wait({task})
    assert await status(runs) == "interrupted"
    till.on_charge = lambda: None


# ---- the same key goes on ----


@pytest.mark.logic
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_same_key_goes_on_after_a_model_that_raised(runs, till, streamed) -> None:
    await fail(runs, till, key="k")
    agent = till.agent(["charge"], "Done")
    if streamed:
        async with runs.stream("chat", agent, "Hi", key="k") as run:
            async for _ in run.stream_events():
                pass
    else:
        run = await runs.run("chat", agent, "Hi", key="k")
    assert (run.final_output, run.repeated) == ("Done", False)
    assert await ids_of_calls(runs) == till.charged
    assert len(till.charged) == 1
    assert await status(runs) is None


@pytest.mark.dialect
@pytest.mark.not_on("sqlite")
async def test_the_same_key_goes_on_after_lost_connections(runs, till) -> None:
    async def fail_over() -> str:
        await lose_connections(runs.catalog.engine)
        return "Done"

    model = till.agent(["charge"], fail_over).model
    agent = till.agent()
    agent.model = model
    try:
        first = await runs.run("chat", agent, "Hi", key="k")
    except (DBAPIError, OSError):
        first = None
    await expire(runs.catalog.engine)  # if the failure could not be stored
    run = await runs.run("chat", till.agent(["charge"], "Done"), "Hi", key="k")
    assert run.final_output == "Done"
    assert run.repeated == (first is not None)
    assert await ids_of_calls(runs) == till.charged
    assert len(till.charged) == 1


@pytest.mark.logic
async def test_the_same_key_goes_on_as_often_as_the_run_fails(runs, till) -> None:
    await fail(runs, till, key="k")
    for number in range(3):
        agent = till.agent(["charge"], RuntimeError(f"try {number}"), "Done")
        with pytest.raises(RuntimeError, match=f"try {number}"):
            await runs.run("chat", agent, "Hi", key="k")
    run = await runs.run("chat", till.agent(["charge"], "Done"), "Hi", key="k")
    assert run.final_output == "Done"
    assert len(till.charged) == 1


@pytest.mark.logic
async def test_a_larger_max_turns_with_the_key_counts(runs, till) -> None:
    agent = till.agent(["charge"], ["other"], "Done")
    with pytest.raises(MaxTurnsExceeded):
        await runs.run("chat", agent, "Hi", key="k", max_turns=1)
    with pytest.raises(MaxTurnsExceeded):
        await runs.run("chat", agent, "Hi", key="k")
    run = await runs.run("chat", agent, "Hi", key="k", max_turns=3)
    assert run.final_output == "Done"
    assert (len(till.charged), len(till.others)) == (1, 1)


@pytest.mark.logic
async def test_a_failure_while_recorded_steps_are_given_back_changes_nothing(runs, till) -> None:
    await fail(runs, till, key="k")
    before = await runs.get("chat")

    class Unreadable:
        def __init__(self, session: Any) -> None:
            self.session_id, self.session_settings = session.session_id, None

        async def get_items(self, limit: int | None = None) -> Any:
            raise RuntimeError("no key to decrypt")

    for _ in range(3):
        with pytest.raises(RuntimeError, match="no key to decrypt"):
            await runs.run("chat", till.agent("Done"), "Hi", key="k", session=Unreadable)
        after = await runs.get("chat")
        assert (after.status, after.error) == (before.status, before.error)
    run = await runs.run("chat", till.agent(["charge"], "Done"), "Hi", key="k")
    assert run.final_output == "Done"
    assert len(till.charged) == 1


@pytest.mark.logic
async def test_who_waited_for_a_key_that_failed_hears_its_error_and_can_repeat(runs, till) -> None:
    gate = asyncio.Event()
    till.on_charge = gate.wait
    agent = till.agent(["charge"], RuntimeError("429"), "Done")
    first = asyncio.create_task(runs.run("chat", agent, "Hi", key="k"))
    await until(lambda: till.charged)
    second = asyncio.create_task(runs.run("chat", agent, "Hi", key="k", wait=60))
    await asyncio.sleep(0.2)
    gate.set()
    with pytest.raises(RuntimeError, match="429"):
        await first
    with pytest.raises(RunFailedError, match="RuntimeError: 429"):
        await second
    assert (await runs.run("chat", agent, "Hi", key="k")).final_output == "Done"
    assert len(till.charged) == 1


@pytest.mark.logic
async def test_who_waited_goes_on_if_a_run_that_had_failed_is_interrupted(runs, till) -> None:
    await fail(runs, till, key="k")
    gate = asyncio.Event()
    agent = till.agent(["charge"], gate.wait)
    second = asyncio.create_task(runs.run("chat", agent, "Hi", key="k"))
    await asyncio.sleep(0.1)
    assert await status(runs) == "running"
    third = asyncio.create_task(
        runs.run("chat", till.agent(["charge"], "Done"), "Hi", key="k", wait=60)
    )
    await asyncio.sleep(0.2)
    second.cancel()
    assert (await third).final_output == "Done"
    assert len(till.charged) == 1
    await asyncio.wait({second})


# ---- and does nothing once its run was given up ----


@pytest.mark.logic
@pytest.mark.parametrize("end", ["discard", "replace"])
async def test_the_key_of_a_run_that_was_given_up_does_nothing(runs, till, end) -> None:
    await fail(runs, till, key="k")
    if end == "discard":
        assert await runs.discard("chat")
    else:
        await runs.run("chat", till.agent("New"), "Hello")
    for _ in range(2):
        with pytest.raises((RunFailedError, RunCancelledError)):
            await runs.run("chat", till.agent(["charge"], "Done"), "Hi", key="k")
    assert len(till.charged) == 1
    assert await status(runs) is None
    assert (await runs.run("chat", till.agent("Done"), "Hi", key="k2")).final_output == "Done"


@pytest.mark.logic
@pytest.mark.parametrize("state", ["failed", "interrupted"])
async def test_discard_begins_the_request_of_a_key_anew(runs, till, state) -> None:
    if state == "failed":
        await fail(runs, till, key="k")
    else:
        await interrupt(runs, till, "Hi", key="k")
    agent = till.agent(["charge"], "Done")
    run = await runs.run("chat", agent, "Hi", key="k", interrupted="discard")
    assert (run.final_output, run.repeated) == ("Done", False)
    assert len(set(till.charged)) == 2


# ---- a key belongs to its request ----


@pytest.mark.logic
@pytest.mark.parametrize("state", ["finished", "failed", "interrupted", "waiting"])
@pytest.mark.parametrize("other", ["input", "agent"])
async def test_a_key_with_another_request_is_refused(runs, till, state, other) -> None:
    tools = [approved_tool()]
    if state == "finished":
        await runs.run("chat", till.agent("Order 7 is refunded"), "Refund order 7", key="k")
    elif state == "waiting":
        await runs.run("chat", till.agent(["pay"], tools=tools), "Refund order 7", key="k")
    elif state == "failed":
        agent = till.agent(RuntimeError("429"))
        with pytest.raises(RuntimeError):
            await runs.run("chat", agent, "Refund order 7", key="k")
    else:
        await interrupt(runs, till, "Refund order 7", key="k")
    before = await status(runs)
    given = "Refund order 8" if other == "input" else "Refund order 7"
    agent = till.agent("Wrong", name="pirate" if other == "agent" else "till")
    with pytest.raises(KeyReusedError):
        await runs.run("chat", agent, given, key="k")
    assert agent.model.answers == 0
    assert await status(runs) == before


def approved_tool() -> Any:
    @function_tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    return pay


@pytest.mark.logic
async def test_a_key_with_the_same_items_is_the_same_request(runs, till) -> None:
    given = [{"role": "user", "content": "Refund order 7"}]
    agent = till.agent("Done", "Done")
    await runs.run("chat", agent, given, key="k")
    copied = [{"content": "Refund order 7", "role": "user"}]
    assert (await runs.run("chat", agent, copied, key="k")).repeated


# ---- outcomes are kept for a time ----


@pytest.mark.dialect
async def test_old_outcomes_are_swept_by_a_write_of_any_session(catalog, till) -> None:
    runs = SessionRuns(catalog, keep=timedelta(days=1))
    for number in range(5):
        await runs.run(f"old-{number}", till.agent("Done"), "Hi", key="k")
    await move(catalog.engine, KEYS_TABLE, "ended_at", -2 * DAY)
    await runs.run("young", till.agent("Done"), "Hi", key="k")
    assert await raw.count_rows(catalog.engine, KEYS_TABLE) == 1
    assert (await runs.run("young", till.agent("Other"), "Hi", key="k")).repeated


@pytest.mark.logic
@pytest.mark.parametrize("end", ["fail", "discard", "cancel", "replace"])
async def test_old_outcomes_are_swept_however_a_run_ends(catalog, till, end) -> None:
    runs = SessionRuns(catalog)
    await runs.run("old", till.agent("Done"), "Hi", key="k")
    if end == "replace":
        await fail(runs, till, key="k")
    await move(catalog.engine, KEYS_TABLE, "ended_at", -2 * DAY)
    if end == "fail":
        await fail(runs, till, key="k")
    elif end == "replace":
        await runs.run("chat", till.agent("Done"), "Hi", key="k2", durable=False)
    else:
        await interrupt(runs, till, "Hi", key="k")
        assert await (runs.discard("chat") if end == "discard" else runs.cancel("chat"))
    rows = await raw.execute(catalog.engine, f"SELECT session_id FROM {KEYS_TABLE}")
    assert [tuple(row) for row in rows] == [("chat",)]


@pytest.mark.dialect
async def test_a_write_sweeps_a_bounded_number_of_outcomes(catalog, till) -> None:
    runs, engine = SessionRuns(catalog), catalog.engine
    await runs.run("old", till.agent("Done"), "Hi", key="k")
    await move(engine, KEYS_TABLE, "ended_at", -2 * DAY)
    names = [row[0] for row in await columns(engine)]
    copied = ", ".join(f"'{{key}}' AS {n}" if n == "run_key" else n for n in names)
    for start in range(0, 3_000, 250):
        parts = (copied.format(key=f"{n:064}") for n in range(start, start + 250))
        selects = " UNION ALL ".join(
            f"SELECT {part} FROM {KEYS_TABLE} WHERE run_key NOT LIKE '000%'" for part in parts
        )
        await raw.execute(engine, f"INSERT INTO {KEYS_TABLE} ({', '.join(names)}) {selects}")
    counts = [await raw.count_rows(engine, KEYS_TABLE)]
    assert counts == [3_001]
    while counts[-1] > len(counts):
        await runs.run("young", till.agent("Done"), "Hi", key=f"k{len(counts)}")
        counts.append(await raw.count_rows(engine, KEYS_TABLE))
        assert counts[-1] < counts[-2], "nothing was swept"
        if len(counts) == 4:
            break
    assert counts[1] > 1, "all at once"


async def columns(engine: Any) -> list[Any]:
    from sqlalchemy import inspect

    async with engine.connect() as connection:
        found = await connection.run_sync(lambda sync: inspect(sync).get_columns(KEYS_TABLE))
    return [(column["name"],) for column in found]


@pytest.mark.dialect
async def test_old_answers_over_http_are_swept_by_a_write_of_any_session(catalog) -> None:
    table = "agent_sessions_metadata_idempotency"
    transport = httpx.ASGITransport(app=sessions_app(catalog, scope=None))
    item = {"type": "message", "role": "user", "content": "Hello"}

    async def append(session_id: str, key: str) -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            url = f"/conversations/{session_id}/items"
            headers = {"Idempotency-Key": key}
            answer = await client.post(url, json={"items": [item]}, headers=headers)
        assert answer.status_code == 200

    for session_id in ("old-0", "old-1", "young"):
        await catalog.create_session(session_id)
    for session_id in ("old-0", "old-1"):
        await append(session_id, "k")
    await move(catalog.engine, table, "answered_at", -2 * DAY)
    await append("young", "k")
    assert await raw.count_rows(catalog.engine, table) == 1


# ---- without a key ----


@pytest.mark.logic
async def test_a_second_resume_gets_the_outcome_of_the_first(runs, till) -> None:
    tools = [approved_tool()]
    run = await runs.run("chat", till.agent(["pay"], tools=tools), "Hi")
    await runs.decide("chat", run.interruptions[0].call_id, approve=True)
    agent = till.agent(["pay"], "Done", tools=tools)
    assert (await runs.resume("chat", agent)).final_output == "Done"
    again = await runs.resume("chat", agent)
    assert (again.final_output, again.repeated) == ("Done", True)
    assert agent.model.answers == 1


@pytest.mark.dialect
async def test_two_resumes_at_once_get_the_same_outcome(shared_database, till) -> None:
    catalogs = [SessionCatalog(shared_database.engine(), create_tables=True) for _ in range(2)]
    several = [SessionRuns(catalog) for catalog in catalogs]
    tools = [approved_tool()]
    run = await several[0].run("chat", till.agent(["pay"], tools=tools), "Hi")
    await several[0].decide("chat", run.interruptions[0].call_id, approve=True)
    agent = till.agent(["pay"], ["charge"], "Done", tools=tools)
    outcomes = await asyncio.gather(*(runs.resume("chat", agent, wait=30) for runs in several))
    assert [each.final_output for each in outcomes] == ["Done", "Done"]
    assert sorted(each.repeated for each in outcomes) == [False, True]
    assert len(till.charged) == 1


@pytest.mark.logic
async def test_resume_without_a_run_raises(runs, till) -> None:
    await runs.catalog.create_session("chat")
    for session_id in ("chat", "nope"):
        with pytest.raises(RunNotFoundError):
            await runs.resume(session_id, till.agent("Done"))
        with pytest.raises(RunNotFoundError):
            await runs.decide(session_id, "c1", approve=True)
        assert await runs.discard(session_id) is False


async def test_the_outcome_of_a_resumed_run_is_given_for_ten_minutes(runs, till) -> None:
    tools = [approved_tool()]
    run = await runs.run("chat", till.agent(["pay"], tools=tools), "Hi", key="k")
    await runs.decide("chat", run.interruptions[0].call_id, approve=True)
    agent = till.agent(["pay"], "Done", tools=tools)
    await runs.resume("chat", agent)
    await move(runs.catalog.engine, KEYS_TABLE, "ended_at", -9 * 60)
    assert (await runs.resume("chat", agent)).repeated
    await move(runs.catalog.engine, KEYS_TABLE, "ended_at", -2 * 60)
    with pytest.raises(RunNotFoundError):
        await runs.resume("chat", agent)
    assert (await runs.run("chat", agent, "Hi", key="k")).repeated


@pytest.mark.logic
async def test_a_renamed_tool_leaves_the_run_as_it_was(runs, till) -> None:
    await fail(runs, till, key="k")
    renamed = till.agent(["charge"], "Done")
    renamed.tools = [till.other]
    with pytest.raises(SessionChangedError):
        await runs.run("chat", renamed, "Hi", key="k")
    assert (await runs.get("chat")).error == "RuntimeError: 429"
    run = await runs.run("chat", till.agent(["charge"], "Done"), "Hi", key="k")
    assert run.final_output == "Done"
    assert len(till.charged) == 1

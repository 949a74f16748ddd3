"""Stored sessions as a suite of tests: which are replayed, and what comes out of it."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from agents import Agent, function_tool
from agents.extensions.memory import EncryptedSession
from agents.testing import ScriptedModel, assistant_message, function_call
from sqlalchemy import text

from agents_session_metadata import InvalidFilterError, Replay
from agents_session_metadata.threads.transactions import add_feedback
from conformance import raw

logic = pytest.mark.logic
OLD = datetime(2026, 1, 1, tzinfo=timezone.utc)


@function_tool
def weather(city: str, days: int) -> str:
    raise AssertionError("no tool runs")


GUIDE = Agent("guide", tools=[weather])


def turn(city: str = "Oslo", answer: str = "Cold.") -> list[Any]:
    arguments = json.dumps({"city": city, "days": 2})
    call = {"type": "function_call", "call_id": f"c-{city}", "name": "weather"}
    return [
        raw.message(f"{city}?"),
        {**call, "id": f"fc_{city}", "arguments": arguments, "status": "completed"},
        {"type": "function_call_output", "call_id": f"c-{city}", "output": f"{city}: 3"},
        {"role": "assistant", "content": answer},
    ]


def record(name: str, at: datetime, items: Any = None, **metadata: Any) -> dict[str, Any]:
    times = dict.fromkeys(("created_at", "updated_at"), at.isoformat())
    stored = [{"created_at": at.isoformat(), "item": each} for each in items or turn()]
    return {"format": 1, "session_id": name, **times, "metadata": metadata, "items": stored}


@pytest.fixture
async def suite(catalog):
    """Four sessions; the run of the second failed, and the third and fourth are old."""
    now = datetime.now(timezone.utc)
    records = [
        record("a", now, owner_id="u1"),
        record("b", now, owner_id="u1"),
        record("c", OLD, owner_id="u1"),
        record("d", OLD, owner_id="u2"),
    ]
    await catalog.import_sessions(records)
    await catalog.set_metadata("b", {"run": "failed"})
    for name, vote in [("a", "negative"), ("b", "positive"), ("d", "negative")]:
        await add_feedback(catalog, name, ["msg_1"], vote)
    return catalog


async def replayed(catalog, where=None, agent=GUIDE, **options: Any) -> dict[str, Any]:
    results = Replay.each(catalog, where, lambda _: agent, **options)
    return {result.session_id: result async for result in results}


@pytest.mark.dialect
async def test_sessions_are_selected_by_filter_run_feedback_and_age(suite):
    async def names(where=None, **options: Any) -> set[str]:
        return set(await replayed(suite, where, **options))

    assert await names() == {"a", "b", "c", "d"}
    assert await names({"owner_id": "u1"}) == {"a", "b", "c"}
    assert await names({"run": "failed"}) == {"b"}
    assert await names(feedback="negative") == {"a", "d"}
    assert await names({"owner_id": "u1"}, feedback="negative") == {"a"}
    assert await names(updated_since=OLD) == {"a", "b", "c", "d"}
    assert await names(updated_since=OLD + timedelta(seconds=1)) == {"a", "b"}
    assert await names({"run": "failed"}, updated_since=OLD + timedelta(days=1)) == {"b"}
    assert await names(feedback="negative", updated_since=OLD + timedelta(days=1)) == {"a"}
    assert await names({"owner_id": "nobody"}) == set()
    # A newer vote on the same item counts.
    await add_feedback(suite, "a", ["msg_1"], "positive")
    assert await names(feedback="negative") == {"d"}


async def test_a_scope_restricts_the_suite(suite):
    assert set(await replayed(suite.scoped({"owner_id": "u2"}))) == {"d"}
    assert set(await replayed(suite.scoped({"owner_id": "u1"}), feedback="negative")) == {"a"}


async def test_a_suite_writes_nothing(suite, engine):
    async def everything() -> list[Any]:
        rows = []
        async with engine.connect() as connection:
            for table in await suite.storage():
                found = await connection.execute(text(f"SELECT * FROM {table.table}"))
                rows.append((table.table, table.rows, sorted(map(repr, found))))
        return rows

    before = await everything()
    assert sum(rows for _, rows, _ in before) > 20
    results = await replayed(suite)
    assert [each.differences for each in results.values()] == [[]] * 4
    await replayed(suite, agent=Agent("guide"), feedback="negative")
    assert await everything() == before


@function_tool(name_override="weather")
def weather_of_city(city: str) -> str:
    raise AssertionError("no tool runs")


@function_tool(name_override="forecast")
def renamed(city: str, days: int) -> str:
    raise AssertionError("no tool runs")


@logic
@pytest.mark.parametrize(
    ("agent", "line"),
    [
        (
            Agent("guide", tools=[renamed]),
            (
                "turn 1: the agent has no tool 'weather'; "
                'recorded: weather({"city": "Oslo", "days": 2})'
            ),
        ),
        (
            Agent("guide", tools=[weather_of_city]),
            (
                "turn 1: the tool 'weather' has no parameter 'days'; "
                'recorded: weather({"city": "Oslo", "days": 2})'
            ),
        ),
        (
            Agent("guide", tools=[weather], tool_use_behavior="stop_on_first_tool"),
            (
                "turn 1: the run ended before 1 more recorded answers; "
                "recorded: 'Cold.'; replayed: 'Oslo: 3'"
            ),
        ),
    ],
    ids=["a tool with another name", "a dropped argument", "another final text"],
)
async def test_a_changed_agent_is_one_difference_in_one_line(catalog, agent, line):
    await catalog.import_sessions([record("chat", OLD)])
    [result] = (await replayed(catalog, agent=agent)).values()
    assert [str(each) for each in result.differences] == [line]
    assert result.skipped is None


@logic
async def test_texts_of_a_model_are_compared_on_request(catalog):
    await catalog.import_sessions([record("chat", OLD)])

    def model() -> ScriptedModel:
        call = function_call("weather", {"city": "Oslo", "days": 2}, call_id="x")
        return ScriptedModel([[call], [assistant_message("Snow.")]])

    [result] = (await replayed(catalog, model=model())).values()
    assert result.differences == []
    [result] = (await replayed(catalog, model=model(), texts=True)).values()
    line = "turn 1: has another text; recorded: 'Cold.'; replayed: 'Snow.'"
    assert [str(each) for each in result.differences] == [line]


@logic
async def test_sessions_that_cannot_be_replayed_are_skipped_with_a_reason(catalog, engine):
    call = {"type": "shell_call", "call_id": "s", "id": "s", "status": "completed"}
    call["action"] = {"commands": ["ls"], "timeout_ms": 1, "max_output_length": 1}
    records = [
        record("equal", OLD),
        record("no agent", OLD),
        record("corrupt", OLD, title="x"),
        record("shell", OLD, [raw.message("hi"), call]),
        record("waiting", OLD, [*turn(), *turn("Rome")[:2]]),
        record("unanswered", OLD, [*turn(), raw.message("hi")]),
        record("failed", OLD, turn()[:3]),
    ]
    await catalog.import_sessions(records)
    await catalog.create_session("empty")
    await catalog.set_metadata("failed", {"run": "failed"})
    await EncryptedSession("secret", catalog.session("secret"), "k").add_items(turn())
    async with engine.begin() as connection:
        await connection.execute(
            text("UPDATE agent_sessions_metadata SET value = '{' WHERE session_id = 'corrupt'")
        )
    results = {
        result.session_id: result
        async for result in Replay.each(
            catalog, None, lambda info: None if info.session_id == "no agent" else GUIDE
        )
    }
    assert all(result.differences == [] for result in results.values())
    skipped = {name: result.skipped for name, result in results.items()}
    assert "is not valid JSON" in skipped.pop("corrupt")
    assert "encrypted" in skipped.pop("secret")
    arguments = """'{"city": "Rome", "days": 2}'"""
    assert {
        name: reason and reason.partition("; recorded")[0] for name, reason in skipped.items()
    } == {
        "equal": None,
        "empty": "the history is empty",
        "no agent": "the function returned no agent",
        "shell": "turn 1: a call of type 'shell_call' cannot be replayed",
        "waiting": f"turn 2: the recording has no output of 'weather' with {arguments}",
        "unanswered": "turn 2: the recorded run ended without an answer",
        "failed": "turn 1: the recorded run ended without a further answer",
    }


@logic
async def test_a_difference_before_the_recording_ends_is_not_skipped(catalog):
    await catalog.import_sessions([record("chat", OLD, [*turn(), raw.message("hi")])])
    [result] = (await replayed(catalog, agent=Agent("guide", tools=[weather_of_city]))).values()
    assert [each.turn for each in result.differences] == [1, 2]
    assert result.skipped is None
    # Without the key `run`, it is unknown whether the run failed or the agent stopped at the tool.
    await catalog.import_sessions([record("chat", OLD, turn()[:3])], on_conflict="replace")
    [result] = (await replayed(catalog)).values()
    assert result.ended == "the recorded run ended without a further answer"
    assert result.skipped is None
    stops = Agent("guide", tools=[weather], tool_use_behavior="stop_on_first_tool")
    [result] = (await replayed(catalog, agent=stops)).values()
    assert (result.differences, result.skipped) == ([], None)


@logic
async def test_an_error_in_one_session_does_not_end_the_others(suite):
    async def agent_of(info: Any) -> Agent[Any]:
        if info.metadata["owner_id"] == "u2":
            raise LookupError("no agent for u2")
        return GUIDE

    results = {each.session_id: each async for each in Replay.each(suite, None, agent_of)}
    [difference] = results["d"].differences
    assert str(difference) == results["d"].ended == "LookupError: no agent for u2"
    assert [results[name].differences for name in "abc"] == [[], [], []]


@logic
async def test_results_come_while_sessions_are_read_and_only_some_are_replayed_at_once(catalog):
    await catalog.import_sessions([record(f"s{number:02}", OLD) for number in range(30)])
    begun, working, most = 0, 0, 0

    async def agent_of(_: object) -> Agent[Any]:
        nonlocal begun, working, most
        begun, working = begun + 1, working + 1
        most = max(most, working)
        await asyncio.sleep(0.001)
        working -= 1
        return GUIDE

    begun_at = [begun async for _ in Replay.each(catalog, None, agent_of, concurrency=3)]
    assert len(begun_at) == 30
    assert all(at <= place + 3 for place, at in enumerate(begun_at))
    assert 1 < most <= 3


@logic
async def test_closing_the_iterator_cancels_what_runs(suite):
    cancelled: list[str] = []

    async def agent_of(info: Any) -> Agent[Any]:
        if info.session_id != "a":
            try:
                await asyncio.sleep(3600)
            finally:
                cancelled.append(info.session_id)
        return GUIDE

    others = asyncio.all_tasks()
    results = Replay.each(suite, None, agent_of, concurrency=3)
    assert (await anext(results)).session_id == "a"
    await results.aclose()
    assert sorted(cancelled) == ["b", "c"]
    assert asyncio.all_tasks() == others


@logic
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"concurrency": 0}, "concurrency must be"),
        ({"feedback": "bad"}, "feedback must be 'positive' or 'negative', got 'bad'"),
        ({"updated_since": OLD.replace(tzinfo=None)}, "updated_since must be an aware datetime"),
    ],
)
async def test_a_wrong_option_is_an_error(suite, options, words):
    with pytest.raises(ValueError, match=words):
        await replayed(suite, **options)
    with pytest.raises(InvalidFilterError):
        await replayed(suite, {"a": {"$foo": 1}})

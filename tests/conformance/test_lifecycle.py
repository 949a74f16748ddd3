"""Phases of a session's work."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
from agents.extensions.memory import EncryptedSession
from processes import run_processes

from agents_session_metadata import (
    InvalidMetadataError,
    InvalidPhaseError,
    MetadataLimitError,
    MetadataLimits,
    ResumePolicy,
    SessionCatalog,
    SessionLifecycle,
    SessionNotFoundError,
    add_invocation,
    keys,
)
from conformance import raw

pytestmark = pytest.mark.logic

WORKING = ["initializing", "investigating", "planning", "approval", "executing", "validating"]
FINAL = ["completed", "failed", "abandoned"]

HEAD = """
import asyncio, sys
from sqlalchemy.ext.asyncio import create_async_engine
from agents_session_metadata import *

async def main():
    engine = create_async_engine(sys.argv[1])
    try:
        await work(SQLAlchemyMetadataSession("chat", engine=engine))
    finally:
        await engine.dispose()

def run():
    start()
    asyncio.run(main())
"""

PING_PONG = (
    HEAD
    + """
async def work(session):
    moves = {"ping": ["pong"], "pong": ["ping"]}
    lifecycle = SessionLifecycle(session, phases=["ping", "pong"], moves=moves)
    done = 0
    while done < 20:
        for phase in ("ping", "pong")[: 20 - done]:
            try:
                await lifecycle.enter(phase)
            except InvalidPhaseError:
                continue  # it is there already
            done += 1

run()
"""
)

RECORD_ERRORS = (
    HEAD
    + """
async def work(session):
    for number in range(20):
        await SessionLifecycle(session).record_error(f"{sys.argv[2]} {number}")

run()
"""
)


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=timezone.utc)

    def __call__(self) -> datetime:
        return self.now

    def wait(self, **duration: float) -> datetime:
        self.now += timedelta(**duration)
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def session(catalog):
    return catalog.session("chat")


@pytest.fixture
def lifecycle(session, clock):
    return SessionLifecycle(session, clock=clock)


async def test_start(lifecycle, session, clock, catalog):
    stored = await lifecycle.start(" @ai-engineer ", "fix the build", {"owner_id": "u1"})
    assert stored == await session.get_metadata()
    assert stored["agent"] == "ai-engineer"
    assert stored["purpose"] == "fix the build"
    assert stored["owner_id"] == "u1"
    assert (stored["phase"], stored["status"]) == ("initializing", "active")
    decision = await lifecycle.resume_decision()
    assert [(move.phase, move.at) for move in decision.history] == [("initializing", clock.now)]
    assert await catalog.count_sessions({"agent": "ai-engineer", "status": "active"}) == 1


async def test_status_follows_the_phase(lifecycle, catalog):
    await lifecycle.start("a")
    for phase in WORKING:
        stored = await lifecycle.enter(phase)
        assert (stored["phase"], stored["status"]) == (phase, "active")
        assert await catalog.count_sessions({"phase": phase, "status": "active"}) == 1
    for phase in FINAL:
        stored = await lifecycle.finish(phase)
        assert (stored["phase"], stored["status"]) == (phase, phase)
        assert await catalog.count_sessions({"status": phase}) == 1
        assert (await lifecycle.start("a"))["status"] == "active"


async def test_metadata_merges_at_each_step(lifecycle, session):
    await session.set_metadata({"title": "t", "tags": ["x"]})
    await lifecycle.start("a", metadata={"tags": ["x", "y"], "step": 1})
    stored = await lifecycle.enter("planning", {"step": 2, "plan": {"files": ["a.py"]}})
    assert stored == await session.get_metadata()
    expected = {"title": "t", "tags": ["x", "y"], "step": 2, "plan": {"files": ["a.py"]}}
    assert {key: stored[key] for key in expected} == expected


async def test_a_move_and_its_metadata_are_one_edit(catalog, clock):
    lifecycle = SessionLifecycle(catalog.session("chat"), clock=clock)
    await lifecycle.start("a")
    before = await catalog.get_metadata("chat")
    clock.wait(minutes=1)
    with pytest.raises(InvalidMetadataError):
        await lifecycle.enter("planning", {"fine": 1, "bad": {1, 2}})
    assert await catalog.get_metadata("chat") == before
    small = SessionCatalog(catalog.engine, metadata_limits=MetadataLimits(max_keys=len(before)))
    with pytest.raises(MetadataLimitError):
        await SessionLifecycle(small.session("chat")).enter("planning", {"more": 1})
    assert await catalog.get_metadata("chat") == before


async def test_an_unknown_phase(lifecycle, session, catalog):
    async def check() -> None:
        for phase in ("nope", "", "Planning", "planning ", None, 1, ["planning"]):
            for call in (lifecycle.enter, lifecycle.finish):
                with pytest.raises(InvalidPhaseError) as caught:
                    await call(phase)
                assert caught.value.phase == phase
                assert isinstance(caught.value, ValueError)

    await check()
    assert await catalog.get_session("chat") is None
    await lifecycle.start("a")
    before = await session.get_metadata()
    await check()
    assert await session.get_metadata() == before


async def test_finish_takes_final_phases_only(lifecycle, session):
    await lifecycle.start("a")
    before = await session.get_metadata()
    with pytest.raises(InvalidPhaseError) as caught:
        await lifecycle.finish("planning", "not over")
    assert caught.value.phase == "planning"
    assert await session.get_metadata() == before


async def test_nothing_but_start_leaves_a_final_phase(lifecycle, session):
    for final in FINAL:
        assert (await lifecycle.start("a"))["phase"] == "initializing"
        await lifecycle.finish(final)
        before = await session.get_metadata()
        for phase in [*WORKING, *FINAL]:
            with pytest.raises(InvalidPhaseError) as caught:
                await lifecycle.enter(phase, {"more": 1})
            assert caught.value.phase == phase
        with pytest.raises(InvalidPhaseError):
            await lifecycle.finish("completed", "again")
        assert await session.get_metadata() == before


async def test_a_clock_that_is_set_back(lifecycle, clock):
    await lifecycle.start("planner")
    clock.wait(minutes=-5)
    assert (await lifecycle.finish("completed"))[keys.DURATION_MS] == 0


async def test_start_begins_anew(lifecycle, clock, session):
    await lifecycle.start("first", "one", {"owner_id": "u1"})
    await lifecycle.enter("planning")
    for _ in range(4):
        await lifecycle.record_error("oh")
    await lifecycle.finish("failed", "could not")
    clock.wait(hours=1)
    stored = await lifecycle.start("@second", "two")
    assert (stored["phase"], stored["status"]) == ("initializing", "active")
    assert (stored["agent"], stored["purpose"], stored["owner_id"]) == ("second", "two", "u1")
    decision = await lifecycle.resume_decision()
    assert decision.error_count == 0
    phases = [move.phase for move in decision.history]
    assert phases == ["initializing", "planning", "failed", "initializing"]
    clock.wait(seconds=2)
    assert (await lifecycle.finish("completed"))[keys.DURATION_MS] == 2000
    assert (await session.get_metadata())[keys.OUTCOME] == "completed"


async def test_an_active_session_is_not_started(lifecycle, session):
    await lifecycle.start("a")
    for phase in WORKING:
        before = await lifecycle.enter(phase)
        with pytest.raises(InvalidPhaseError):
            await lifecycle.start("b", "other", {"more": 1})
        assert await session.get_metadata() == before


async def test_one_of_many_starts_wins(session):
    results = await asyncio.gather(
        *[SessionLifecycle(session).start(f"agent {number}") for number in range(10)],
        return_exceptions=True,
    )
    winners = [result for result in results if isinstance(result, dict)]
    assert len(winners) == 1
    assert sum(isinstance(result, InvalidPhaseError) for result in results) == 9
    assert (await session.get_metadata())["agent"] == winners[0]["agent"]


async def test_finish_records_outcome_summary_and_duration(lifecycle, session, clock):
    await lifecycle.start("a")
    clock.wait(minutes=1)
    await lifecycle.enter("executing")
    clock.wait(seconds=30, milliseconds=5)
    stored = await lifecycle.finish("completed", "42 files changed")
    assert stored == await session.get_metadata()
    assert stored[keys.OUTCOME] == "completed"
    assert stored["summary"] == "42 files changed"
    assert stored[keys.DURATION_MS] == 90_005
    assert datetime.fromisoformat(stored[keys.FINISHED_AT]) == clock.now


async def test_record_error(lifecycle, session):
    await lifecycle.start("a")
    for number in range(1, 4):
        stored = await lifecycle.record_error(f"error {number}")
        assert stored == await session.get_metadata()
        assert (stored[keys.ERROR_COUNT], stored[keys.LAST_ERROR]) == (number, f"error {number}")
    assert (stored["phase"], stored["status"]) == ("initializing", "active")


async def test_history_keeps_the_newest_fifty(lifecycle, session, clock):
    await lifecycle.start("a")
    expected = [("initializing", clock.now)]
    for number in range(60):
        phase = WORKING[number % 6]
        expected.append((phase, clock.wait(seconds=1.25)))
        await lifecycle.enter(phase)
        if number == 48:
            assert len((await lifecycle.resume_decision()).history) == 50
    decision = await lifecycle.resume_decision()
    assert [(move.phase, move.at) for move in decision.history] == expected[-50:]
    assert len((await session.get_metadata())[keys.PHASE_HISTORY]) == 50


async def test_times_of_a_clock_in_another_zone(session, clock):
    clock.now = clock.now.astimezone(timezone(timedelta(hours=5, minutes=30)))
    lifecycle = SessionLifecycle(session, clock=clock)
    await lifecycle.start("a")
    (move,) = (await lifecycle.resume_decision()).history
    assert move.at == clock.now
    assert move.at.utcoffset() == timedelta(0)


async def test_custom_phases_and_moves(session):
    lifecycle = SessionLifecycle(
        session,
        ResumePolicy(phases=["doing"]),
        phases=["todo", "doing"],
        final_phases=["done", "dropped"],
        moves={"todo": ["doing", "dropped"]},
    )
    assert (await lifecycle.start("a"))["phase"] == "todo"
    for refused in ("done", "todo"):
        with pytest.raises(InvalidPhaseError) as caught:
            await lifecycle.enter(refused)
        assert caught.value.phase == refused
    with pytest.raises(InvalidPhaseError):
        await lifecycle.finish("done")
    for unknown in ("planning", "completed"):
        with pytest.raises(InvalidPhaseError):
            await lifecycle.enter(unknown)
    assert (await lifecycle.enter("doing"))["status"] == "active"
    assert (await lifecycle.resume_decision()).reason == "resumable"
    assert (await lifecycle.enter("todo"))["phase"] == "todo"
    assert (await lifecycle.finish("dropped"))["status"] == "dropped"
    assert (await lifecycle.start("a"))["phase"] == "todo"


async def test_within_a_scope(mine):
    theirs = SessionLifecycle(mine.session("theirs-0"))
    for call in (
        theirs.start("a"),
        theirs.enter("planning"),
        theirs.record_error("oh"),
        theirs.finish("failed"),
    ):
        with pytest.raises(SessionNotFoundError):
            await call
    assert (await theirs.resume_decision()).reason == "not_found"
    own = SessionLifecycle(mine.session("mine-0"))
    await own.start("a")
    await own.enter("planning")
    assert (await own.resume_decision()).should_resume


async def test_through_encryption(session, clock, catalog):
    encrypted = EncryptedSession("chat", session, encryption_key="a key of the tests")
    await encrypted.add_items([raw.message("hello")])
    lifecycle = SessionLifecycle(encrypted, clock=clock)
    await lifecycle.start("@a", metadata={"owner_id": "u1"})
    await lifecycle.enter("approval")
    await lifecycle.record_error("oh")
    decision = await lifecycle.resume_decision()
    assert (decision.reason, decision.phase, decision.error_count) == ("resumable", "approval", 1)
    await lifecycle.finish("completed", "done")
    assert await catalog.count_sessions({"agent": "a", "status": "completed"}) == 1
    assert await encrypted.get_items() == [raw.message("hello")]


async def test_two_processes_lose_no_move(shared_database):
    session = SessionCatalog(shared_database.engine(), create_tables=True).session("chat")
    lifecycle = SessionLifecycle(session, phases=["ping", "pong"])
    await lifecycle.start("a")
    await run_processes(PING_PONG, [[shared_database.url]] * 2)
    phases = [move.phase for move in (await lifecycle.resume_decision()).history]
    assert phases == ["ping", *["pong", "ping"] * 20]


async def test_four_processes_lose_no_error(shared_database):
    session = SessionCatalog(shared_database.engine(), create_tables=True).session("chat")
    lifecycle = SessionLifecycle(session)
    await lifecycle.start("a")
    await run_processes(RECORD_ERRORS, [[shared_database.url, name] for name in "abcd"])
    stored = await session.get_metadata()
    assert stored[keys.ERROR_COUNT] == 80
    assert stored[keys.LAST_ERROR] in {f"{name} 19" for name in "abcd"}
    assert (await lifecycle.resume_decision()).error_count == 80


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"phases": "ping"}, TypeError),
        ({"phases": ["ping", ""]}, ValueError),
        ({"phases": ["ping", 1]}, TypeError),
        ({"final_phases": "done"}, TypeError),
        ({"moves": {"planning": "approval"}}, TypeError),
        ({"moves": {"planning": ["aproval"]}}, ValueError),
        ({"moves": {"planing": ["approval"]}}, ValueError),
        ({"phases": []}, ValueError),
        ({"phases": ["completed"]}, ValueError),
        ({"final_phases": ["planning"]}, ValueError),
    ],
)
def test_phases_that_cannot_be(catalog, settings, kind):
    with pytest.raises(kind):
        SessionLifecycle(catalog.session("chat"), **settings)


def test_a_policy_of_a_bare_string():
    with pytest.raises(TypeError, match="string 'planning'"):
        ResumePolicy(phases="planning")


@pytest.mark.parametrize(
    "metadata", [{"phase": "planning"}, {"agent": "other"}, {"error_count": 7}]
)
async def test_metadata_that_the_call_writes_itself(session, metadata):
    [key] = metadata
    with pytest.raises(InvalidMetadataError, match="written by this call") as caught:
        await SessionLifecycle(session).start("a", metadata=metadata)
    assert caught.value.key == key
    assert await session.get_metadata() == {}
    await SessionLifecycle(session).start("@a", metadata={"agent": "a", "status": "active"})


async def test_a_counter_that_somebody_wrote_as_a_float(session):
    lifecycle = SessionLifecycle(session)
    await lifecycle.start("a")
    await lifecycle.enter("planning")
    await session.set_metadata({"error_count": 3.0})
    assert (await lifecycle.resume_decision()).reason == "too_many_errors"
    assert (await lifecycle.record_error("again"))["error_count"] == 4


async def test_a_history_of_phases_is_within_a_small_limit(database):
    limits = MetadataLimits(max_value_bytes=1_024)
    catalog = SessionCatalog(database.engine(), create_tables=True, metadata_limits=limits)
    session = await catalog.create_session("chat")
    lifecycle = SessionLifecycle(session)
    await lifecycle.start("engineer")
    for number in range(20):
        await lifecycle.enter(("planning", "executing")[number % 2])
        await add_invocation(session, f"inv_{number:03}", "compile")
    metadata = await session.get_metadata()
    assert metadata["phase_history"][-1]["phase"] == "executing"
    assert 5 < len(metadata["phase_history"]) < 20
    assert metadata["invocations"][-1] == "inv_019"
    assert metadata["tool_calls"] == [["compile", 20, 0]]

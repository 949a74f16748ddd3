"""Whether to resume a session."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from agents_session_metadata import (
    InvalidPhaseError,
    ResumeDecision,
    ResumePolicy,
    SessionCatalog,
    SessionLifecycle,
    keys,
    resumable_sessions,
)
from conformance import raw

pytestmark = pytest.mark.logic

LONG_AGO = "2020-02-02 00:00:00"
LIMIT = timedelta(minutes=30)


@pytest.fixture
async def session(catalog, engine):
    """One that was active long ago and waits for approval; no lifecycle was ever called."""
    session = await catalog.create_session("chat", metadata={"phase": "approval"})
    await session.add_items([raw.message("hello")])
    await raw.set_times(engine, "chat", updated_at=LONG_AGO)
    return session


@pytest.fixture
async def last_active(session, catalog):
    return (await catalog.get_session("chat")).updated_at


def at(session, moment, policy=None):
    return SessionLifecycle(session, policy, clock=lambda: moment)


async def test_reasons_in_their_order(catalog, session, engine, last_active):
    lifecycle = at(session, last_active + timedelta(days=1))
    missing = await at(catalog.session("nobody"), last_active).resume_decision()
    assert missing == ResumeDecision(should_resume=False, reason="not_found")
    assert (missing.phase, missing.idle, missing.error_count) == (None, None, 0)
    assert (missing.metadata, list(missing.history)) == ({}, [])
    assert await catalog.get_session("nobody") is None

    async def reason() -> str:
        decision = await lifecycle.resume_decision()
        assert decision.should_resume is (decision.reason == "resumable")
        return decision.reason

    # Everything is wrong; then one thing after the other is put right.
    await session.set_metadata({"ready": False, "phase": "executing", keys.ERROR_COUNT: 3})
    assert await reason() == "not_ready"
    await session.set_metadata({"ready": True})
    assert await reason() == "not_resumable_phase"
    await session.delete_metadata(["phase"])
    assert await reason() == "not_resumable_phase"
    await session.set_metadata({"phase": "planning"})
    assert await reason() == "too_old"
    lifecycle = at(session, last_active)
    assert await reason() == "too_many_errors"
    await session.set_metadata({keys.ERROR_COUNT: 2})
    assert await reason() == "resumable"


async def test_a_decision_tells_everything(session, last_active):
    lifecycle = at(session, last_active)
    await lifecycle.enter("planning", {"owner_id": "u1"})
    await lifecycle.record_error("oh")
    moment = last_active + timedelta(minutes=10)
    decision = await at(session, moment).resume_decision()
    assert decision.should_resume is True
    assert decision.reason == "resumable"
    assert decision.phase == "planning"
    assert decision.idle == timedelta(minutes=10)
    assert decision.error_count == 1
    assert decision.metadata == await session.get_metadata()
    assert decision.metadata["owner_id"] == "u1"
    assert [(move.phase, move.at) for move in decision.history] == [("planning", last_active)]
    with pytest.raises(AttributeError):
        decision.reason = "too_old"


async def test_deciding_changes_nothing(session, engine, last_active):
    before = await session.get_metadata(), await raw.times(engine, "chat")
    assert (await at(session, last_active).resume_decision()).should_resume
    assert (await session.get_metadata(), await raw.times(engine, "chat")) == before


async def test_only_a_stored_false_is_not_ready(session, last_active):
    assert (await at(session, last_active).resume_decision()).should_resume
    for ready in (True, None, 0, "", "false", []):
        await session.set_metadata({"ready": ready})
        assert (await at(session, last_active).resume_decision()).should_resume
    await session.set_metadata({"ready": False})
    assert (await at(session, last_active).resume_decision()).reason == "not_ready"


async def test_phases_that_may_be_resumed(session, last_active):
    for phase in ("approval", "investigating", "planning"):
        await session.set_metadata({"phase": phase})
        decision = await at(session, last_active).resume_decision()
        assert (decision.should_resume, decision.reason) == (True, "resumable")
        assert decision.phase == phase
    others = ("initializing", "executing", "validating", "completed", "failed", "abandoned")
    for phase in (*others, None, 1, ["planning"], {"planning": 1}):
        await session.set_metadata({"phase": phase})
        decision = await at(session, last_active).resume_decision()
        assert (decision.should_resume, decision.reason) == (False, "not_resumable_phase")


async def test_the_limit_itself_is_too_old(session, last_active):
    for policy, limit in (
        (None, LIMIT),
        (ResumePolicy(max_idle=timedelta(seconds=5)), timedelta(seconds=5)),
    ):
        decision = await at(session, last_active + limit, policy).resume_decision()
        assert (decision.reason, decision.idle) == ("too_old", limit)
        moment = last_active + limit - timedelta(microseconds=1)
        decision = await at(session, moment, policy).resume_decision()
        assert (decision.reason, decision.idle) == ("resumable", moment - last_active)


@pytest.mark.parametrize("call", ["start", "enter", "record_error", "finish"])
async def test_every_lifecycle_call_is_activity(catalog, session, last_active, call):
    moment = last_active + timedelta(hours=5)
    calling = at(session, moment)
    if call == "start":
        await session.delete_metadata(["phase"])
    arguments = {"enter": "approval", "finish": "completed"}
    await getattr(calling, call)(arguments.get(call, "a"))
    decision = await at(session, moment + timedelta(minutes=1)).resume_decision()
    assert decision.idle == timedelta(minutes=1)
    assert (await catalog.get_session("chat")).updated_at == last_active


async def test_messages_are_activity(session, last_active, catalog):
    await at(session, last_active).enter("approval")
    await session.add_items([raw.message("later")])
    awake = (await catalog.get_session("chat")).updated_at
    assert awake > last_active + timedelta(days=365)
    decision = await at(session, awake + timedelta(minutes=2)).resume_decision()
    assert (decision.reason, decision.idle) == ("resumable", timedelta(minutes=2))


async def test_metadata_is_no_activity(session, last_active):
    await session.set_metadata({"title": "new"})
    decision = await at(session, last_active + LIMIT).resume_decision()
    assert (decision.reason, decision.idle) == ("too_old", LIMIT)


async def test_the_number_of_errors(session, last_active):
    for policy, limit in ((None, 3), (ResumePolicy(max_errors=1), 1)):
        await session.delete_metadata([keys.ERROR_COUNT])
        lifecycle = at(session, last_active, policy)
        for number in range(limit):
            decision = await lifecycle.resume_decision()
            assert (decision.reason, decision.error_count) == ("resumable", number)
            await lifecycle.record_error("oh")
        assert (await lifecycle.resume_decision()).reason == "too_many_errors"


def test_the_default_policy():
    policy = ResumePolicy()
    assert set(policy.phases) == {"approval", "investigating", "planning"}
    assert (policy.max_idle, policy.max_errors) == (LIMIT, 3)


@pytest.mark.parametrize("wrong", [{"max_idle": timedelta(seconds=-1)}, {"max_errors": -1}])
def test_a_policy_that_cannot_be(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ResumePolicy(**wrong)


async def test_an_approval_pause(catalog):
    """A session that waits, with the clock of this machine until the orchestrator comes back."""
    session = catalog.session("work")
    lifecycle = SessionLifecycle(session)
    await lifecycle.start("@ai-engineer", "fix the build", {"repo": "o/r"})
    await lifecycle.enter("investigating")
    await session.add_items([raw.message("what is wrong?")])
    await lifecycle.enter("planning", {"plan": ["one", "two"]})
    await lifecycle.enter("approval")

    now = datetime.now(timezone.utc)
    decision = await at(session, now + timedelta(minutes=10)).resume_decision()
    assert decision.reason == "resumable"
    assert timedelta(minutes=9) < decision.idle < timedelta(minutes=11)
    assert decision.metadata["plan"] == ["one", "two"]
    phases = [move.phase for move in decision.history]
    assert phases == ["initializing", "investigating", "planning", "approval"]
    times = [move.at for move in decision.history]
    assert times == sorted(times)
    assert (await at(session, now + timedelta(minutes=31)).resume_decision()).reason == "too_old"

    await lifecycle.enter("executing")
    assert (await lifecycle.resume_decision()).reason == "not_resumable_phase"
    stored = await lifecycle.finish("completed", "the build is green")
    assert (stored["status"], stored["summary"]) == ("completed", "the build is green")
    assert 0 <= stored[keys.DURATION_MS] < 600_000


async def test_resuming_is_counted(catalog, session, last_active):
    lifecycle = at(session, last_active)
    assert (await lifecycle.resume()).should_resume
    decision = await at(session, last_active + timedelta(minutes=29)).resume()
    assert (decision.reason, decision.metadata[keys.RESUMES]) == ("resumable", 2)
    # It is active again since then.
    assert (await at(session, last_active + timedelta(minutes=58)).resume_decision()).should_resume
    before = await session.get_metadata()
    decision = await at(session, last_active + timedelta(minutes=59)).resume()
    # A refusal is counted and is no activity.
    assert decision.reason == "too_old"
    assert decision.metadata == {**before, keys.RESUME_ATTEMPTS: 3}
    assert await session.get_metadata() == decision.metadata
    assert (await at(catalog.session("nobody"), last_active).resume()).reason == "not_found"
    assert await catalog.get_session("nobody") is None


async def test_resuming_what_has_just_ended(catalog, session, last_active, monkeypatch):
    edit = SessionCatalog.edit_metadata

    async def edit_later(self, session_id, change, **options):
        await edit(self, session_id, lambda stored: stored.update(phase="completed"))
        return await edit(self, session_id, change, **options)

    monkeypatch.setattr(SessionCatalog, "edit_metadata", edit_later)
    decision = await at(session, last_active).resume()
    assert (decision.should_resume, decision.reason) == (False, "not_resumable_phase")
    assert keys.RESUMES not in await session.get_metadata()

    async def edit_a_deleted_one(self, session_id, change, **options):
        await self.delete_session(session_id)
        return await edit(self, session_id, change, **options)

    monkeypatch.setattr(SessionCatalog, "edit_metadata", edit_a_deleted_one)
    assert (await at(session, last_active).resume()).reason == "not_found"
    assert await catalog.get_session("chat") is None


async def test_an_error_and_a_phase_in_one_update(catalog, session, last_active):
    lifecycle = at(session, last_active)
    stored = await lifecycle.enter("planning", {"step": 2}, error="disk full")
    assert (stored["phase"], stored["step"]) == ("planning", 2)
    assert (stored[keys.ERROR_COUNT], stored[keys.LAST_ERROR]) == (1, "disk full")
    with pytest.raises(InvalidPhaseError):
        await lifecycle.enter("nowhere", error="lost")
    stored = await lifecycle.enter("failed", error="full again")
    assert (stored["outcome"], stored[keys.ERROR_COUNT]) == ("failed", 2)
    with pytest.raises(InvalidPhaseError):
        await lifecycle.enter("planning", error="too late")
    assert (await session.get_metadata())[keys.ERROR_COUNT] == 2


async def test_sessions_that_can_be_resumed(catalog, engine):
    async def add(name, phase, **metadata):
        session = await catalog.create_session(name, metadata={"phase": phase, **metadata})
        await raw.set_times(engine, name, updated_at=LONG_AGO)
        return SessionLifecycle(session)

    await (await add("first", "approval", owner_id="u1")).enter("planning")
    await (await add("second", "approval", owner_id="u2", ready=True)).enter("approval")
    await (await add("not ready", "planning", ready=False)).enter("planning")
    await (await add("executing", "planning")).enter("executing")
    await (await add("failing", "planning", error_count=2)).enter("planning", error="third")
    await add("too old", "planning")
    await catalog.create_session("without a phase")

    async def found(*args):
        return [info.session_id for info in await resumable_sessions(*args)]

    assert await found(catalog) == ["second", "first"]
    assert await found(catalog, {"owner_id": "u1"}) == ["first"]
    assert await found(catalog.scoped({"owner_id": "u2"})) == ["second"]
    policy = ResumePolicy(phases={"executing"}, max_errors=9)
    assert await found(catalog, None, policy) == ["executing"]
    assert await found(catalog, None, ResumePolicy(phases=())) == []

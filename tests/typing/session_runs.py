"""The types of runs, their lists and decisions."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

from agents import Agent
from typing_extensions import assert_type

from agents_session_metadata import (
    Budget,
    Decision,
    KeyReusedError,
    LeaseLostError,
    PendingCall,
    Remaining,
    RunCancelledError,
    RunFailedError,
    RunInfo,
    RunInterruptedError,
    RunNotFoundError,
    RunPage,
    SessionBusyError,
    SessionCatalog,
    SessionRun,
    SessionRuns,
    SQLAlchemyMetadataSession,
    StreamedRun,
)


async def check(
    catalog: SessionCatalog,
    agent: Agent[Any],
    session: SQLAlchemyMetadataSession,
    now: datetime,
) -> None:
    """Runs, and what is known of them."""
    runs = SessionRuns(catalog, lease=timedelta(minutes=1), keep=timedelta(days=2))
    run = await runs.run("chat-1", agent, "Hi", key="k", wait=2.5, interrupted="resume")
    assert_type(run, SessionRun)
    assert_type(run.interruptions, tuple[PendingCall, ...])
    assert_type(run.repeated, bool)
    assert_type(await runs.resume("chat-1", agent, force=True, max_turns=3), SessionRun)
    async with runs.stream("chat-1", agent, [], durable=False) as streamed:
        assert_type(streamed, StreamedRun)
    page = await runs.list("waiting", {"owner_id": "u1"}, limit=2, cursor=None)
    assert_type(page, RunPage)
    assert_type(page.runs, list[RunInfo])
    assert_type(await runs.get("chat-1"), RunInfo | None)
    assert_type(await runs.decide("chat-1", "c1", approve=False, message="No", by="u"), RunInfo)
    assert_type(await runs.discard("chat-1"), bool)
    found = await runs.decisions("chat-1", since=now)
    assert_type(found, list[Decision])
    assert_type(await runs.delete_decisions(before=now), int)
    assert_type(await Budget(tokens=1).remaining(session), Remaining)
    await runs.run("chat-1", agent, "Hi", interrupted="wait")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def check_errors(
    busy: SessionBusyError,
    lost: LeaseLostError,
    interrupted: RunInterruptedError,
    failed: RunFailedError,
    missing: RunNotFoundError | RunCancelledError,
    reused: KeyReusedError,
) -> None:
    """Errors say of which session."""
    assert_type([busy.session_id, interrupted.session_id, failed.error], list[str])
    assert_type([missing.session_id, reused.session_id, reused.key], list[str])
    assert_type(lost.reason, Literal["taken", "stopped", "deleted"])

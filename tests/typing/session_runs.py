"""The types of runs, their options, lists and decisions. Checked by mypy and pyright, never run."""

# Each ignored error must be there: mypy warns of a needless ignore by itself, pyright is told to.
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

from agents import Agent, RunConfig, RunHooks, RunResultStreaming, SQLiteSession
from typing_extensions import assert_type

from agents_session_metadata import (
    Budget,
    Cipher,
    Decision,
    KeyReusedError,
    LeaseLostError,
    LeaseLostReason,
    NewRunOptions,
    PendingCall,
    Remaining,
    ResumeOptions,
    RunCancelledError,
    RunFailedError,
    RunFilter,
    RunInfo,
    RunInterruptedError,
    RunNotFoundError,
    RunOptions,
    RunPage,
    RunResult,
    RunStatus,
    SessionBusyError,
    SessionCatalog,
    SessionRun,
    SessionRuns,
    SQLAlchemyMetadataSession,
    StartOptions,
    StreamedRun,
    StreamEvent,
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


async def check_results(runs: SessionRuns, agent: Agent[Any]) -> None:
    """Results, events and statuses are those of the SDK, and a few words."""
    run = await runs.run("chat-1", agent, "Hi")
    assert_type(run.result, RunResult | None)
    async with runs.stream_resume("chat-1", agent) as streamed:
        assert_type(streamed.result, RunResultStreaming | None)
        async for event in streamed.stream_events():
            assert_type(event, StreamEvent)
    info = await runs.get("chat-1")
    if info is not None:
        assert_type(info.status, RunStatus)
        assert_type(info.status, Literal["running", "waiting", "interrupted", "failed"])
        await runs.list(info.status)
        _ = info.status == "finished"  # type: ignore[comparison-overlap]  # pyright: ignore[reportUnnecessaryComparison]
    await runs.list("finished")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def check_background(runs: SessionRuns, agent: Agent[Any]) -> None:
    """Runs that outlive their request."""
    start: StartOptions = {"key": "k", "wait": 5, "max_turns": 3}
    async with runs, runs.recovering(lambda _: agent, every=timedelta(seconds=1)):
        assert_type(await runs.start("chat-1", agent, "Hi", **start), bool)
        assert_type(await runs.start("chat-1", agent), bool)
        async for event in runs.follow("chat-1", after=3, forever=True):
            assert_type(event, dict[str, Any])
        assert_type(await runs.cancel("chat-1", keep=False), bool)
        assert_type(await runs.recover(lambda info: (agent, {"wait": info.attempts})), int)
    await runs.aclose(wait=1)
    runs.stream("chat-1", agent, "Hi", live=True)
    info = await runs.get("chat-1")
    if info is not None:
        assert_type(info.alive_at, datetime)
    ready: RunFilter = "ready"
    await runs.list(ready)
    await runs.start("chat-1", agent, "Hi", live=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def check_options(
    runs: SessionRuns, agent: Agent[Any], hooks: RunHooks[Any], cipher: Cipher
) -> None:
    """Options of all runs, of new ones and of those that are resumed."""
    SessionRuns(runs.catalog, encrypt=cipher, decrypt=cipher)
    shared: RunOptions = {
        "wait": 30,
        "session": lambda session: session,
        "strict_context": False,
        "context": {"user": "u1"},
        "hooks": hooks,
        "run_config": RunConfig(),
        "max_turns": None,
        "error_handlers": None,
        "conversation_id": None,
        "previous_response_id": None,
        "auto_previous_response_id": False,
    }
    new: NewRunOptions = {**shared, "key": "k", "interrupted": "discard", "durable": False}
    resumed: ResumeOptions = {**shared, "force": True, "takeover": True}
    await runs.run("chat-1", agent, "Hi", **shared)
    await runs.run("chat-1", agent, "Hi", **new)
    runs.stream("chat-1", agent, "Hi", **new)
    await runs.resume("chat-1", agent, **resumed)
    await runs.resume("chat-1", agent, input="Be quick", wait=3)
    runs.stream_resume("chat-1", agent, **resumed)
    await runs.run("chat-1", agent, "Hi", session=lambda _: SQLiteSession("chat-1"))

    await runs.run("chat-1", agent, "Hi", interrupted="wait")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await runs.run("chat-1", agent, "Hi", hook=hooks)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await runs.run("chat-1", agent, "Hi", force=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await runs.run("chat-1", agent, "Hi", conversation_id="c")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    runs.stream("chat-1", agent, "Hi", max_turn=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    runs.stream("chat-1", agent, "Hi", max_turns="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await runs.resume("chat-1", agent, key="k")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    runs.stream_resume("chat-1", agent, forced=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


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
    assert_type(lost.reason, LeaseLostReason)
    assert_type(lost.reason, Literal["taken", "stopped", "deleted"])

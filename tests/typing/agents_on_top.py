"""What type checkers see of lifecycle, tracking and errors. Checked, never run."""

# Each ignored error must be there: mypy warns of a needless ignore by itself, pyright is told to.
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal

import pytest
from agents import Agent, RunConfig, RunHooks, Runner
from agents.extensions.memory import EncryptedSession
from agents.memory import OpenAIResponsesCompactionSession
from typing_extensions import assert_type

from agents_session_metadata import (
    FINAL_PHASES,
    PHASES,
    Budget,
    BudgetExceededError,
    InvalidCursorError,
    InvalidFilterError,
    InvalidMetadataError,
    InvalidPhaseError,
    JSONObject,
    MetadataLimitError,
    ModelPrice,
    PhaseChange,
    Replay,
    ReplayDifference,
    ReplayResult,
    ResumeDecision,
    ResumePolicy,
    ResumeReason,
    ScopeError,
    SessionCatalog,
    SessionExistsError,
    SessionInfo,
    SessionLifecycle,
    SessionMetadataError,
    SessionNotFoundError,
    SessionTitler,
    SessionTracker,
    SQLAlchemyMetadataSession,
    TablesMissingError,
    UnsupportedDialectError,
    add_invocation,
    normalize_agent,
    recent_turns,
    resumable_sessions,
)
from agents_session_metadata.testing import parametrize_sessions


async def lifecycle(
    session: SQLAlchemyMetadataSession,
    wrapped: EncryptedSession,
    compacting: OpenAIResponsesCompactionSession,
) -> None:
    """Each call gives the metadata. A wrapper will do if it forwards attributes."""
    work = SessionLifecycle(session, ResumePolicy(max_idle=timedelta(hours=1), phases={"review"}))
    SessionLifecycle(wrapped, phases=["a", "b"], final_phases=["c"], moves={"a": ["b"]})
    SessionLifecycle(session, phases=[*PHASES, "review"], final_phases=FINAL_PHASES)
    assert_type(work.policy, ResumePolicy)
    assert_type(await work.start("@planner", "plan", {"ticket": 1}), dict[str, Any])
    assert_type(await work.enter("approval", metadata={"offer": "the sea"}), dict[str, Any])
    assert_type(await work.record_error("no answer"), dict[str, Any])
    assert_type(await work.finish("completed", summary="Booked."), dict[str, Any])
    assert_type(normalize_agent("@planner"), str)

    SessionLifecycle(compacting)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    SessionLifecycle("chat-1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ResumePolicy(max_idle=1800)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def more_calls(session: SQLAlchemyMetadataSession, wrapped: EncryptedSession) -> None:
    """Lists, calls of other tools, and what a model sees."""
    assert_type(await resumable_sessions(session.catalog), list[SessionInfo])
    took = timedelta(seconds=1)
    await add_invocation(
        wrapped, "inv_001", "lint", duration=took, ok=False, at=None, ref="s3://runs"
    )
    RunConfig(session_input_callback=recent_turns(5))


async def replaying(catalog: SessionCatalog, agent: Agent[Any]) -> None:
    """A stored session, and what was different."""
    replay = await Replay.of(catalog, "chat-1")
    result = await replay.run(agent, model="gpt-4.1-mini", context={})
    assert_type(result, ReplayResult)
    assert_type(result.differences, list[ReplayDifference])
    assert_type(result.differences[0].recorded, JSONObject | None)
    assert_type(result.ended, str | None)

    async def agent_of(info: SessionInfo) -> Agent[Any] | None:
        return agent if info.metadata.get("agent") == "guide" else None

    since = datetime.now(timezone.utc) - timedelta(days=7)
    suite = Replay.each(catalog, {"run": "failed"}, agent_of, updated_since=since)
    async for each in suite:
        assert_type(each.session_id, str | None)
        assert_type(each.skipped, str | None)
    await suite.aclose()
    Replay.each(catalog, None, lambda info: agent, feedback="negative", concurrency=2)
    Replay.each(catalog, None, agent)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def stored_sessions() -> None:
    """A mark of pytest."""
    assert_type(parametrize_sessions("sqlite:///chat.db", {"a": 1}), pytest.MarkDecorator)


async def usage(session: SQLAlchemyMetadataSession, wrapped: EncryptedSession) -> None:
    """Titles and budgets."""
    titler = SessionTitler(model="gpt-4.1-mini")
    assert_type(await titler.title(session), str | None)
    budget = Budget(cost=Decimal("2.5"), tokens=1000, per="owner_id", window="month")
    SessionTracker(wrapped, titler=titler, model="big", budget=budget)
    assert_type(BudgetExceededError("cost", spent=2, allowed=1).limit, str)

    Budget(tokens=1, per="user")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    SessionTracker(session, budget=5.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def decision(work: SessionLifecycle) -> None:
    """The fields of a decision."""
    made = await work.resume_decision()
    assert_type(made, ResumeDecision)
    assert_type(made.should_resume, bool)
    reason: ResumeReason = made.reason
    assert_type(
        reason,
        Literal[
            "not_found",
            "not_ready",
            "not_resumable_phase",
            "too_old",
            "too_many_errors",
            "resumable",
        ],
    )
    assert_type(made.phase, str | None)
    assert_type(made.idle, timedelta | None)
    assert_type(made.error_count, int)
    assert_type(made.metadata, dict[str, Any])
    assert_type(made.history, tuple[PhaseChange, ...])
    assert_type(made.history[0].at, datetime)


async def tracking(
    session: SQLAlchemyMetadataSession,
    wrapped: EncryptedSession,
    agent: Agent[Any],
    own: RunHooks[Any],
) -> None:
    """A tracker is run hooks."""
    ModelPrice(input=2, output=0.6, cached_input=Decimal("0.1"))
    price = ModelPrice(input=Decimal("2.5"), output=Decimal(10))
    async with SessionTracker(session, hooks=own, prices={"gpt-5": price}) as hooks:
        assert_type(hooks, SessionTracker)
        await Runner.run(agent, "Hello", session=session, hooks=hooks)
    SessionTracker(wrapped, prices=price)
    SessionTracker(session, prices=2.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def errors() -> None:
    """Errors carry what was wrong."""
    try:
        ...
    except InvalidMetadataError as error:
        assert_type(error.key, object)
        assert_type(error.path, str)
    except MetadataLimitError as error:
        assert_type((error.limit, error.key, error.size), tuple[str, str, int])
    except InvalidFilterError as error:
        assert_type(error.path, str)
    except InvalidCursorError as error:
        assert_type(error.args, tuple[Any, ...])
    except InvalidPhaseError as error:
        assert_type(error.phase, object)
    except ScopeError as error:
        assert_type(error.key, str | None)
    except (SessionExistsError, SessionNotFoundError) as error:
        assert_type(error.session_id, str)
    except TablesMissingError as error:
        assert_type(error.tables, tuple[str, ...])
    except UnsupportedDialectError as error:
        assert_type(error.dialect, str)
    except SessionMetadataError:
        pass


def builtins_behind_errors() -> tuple[
    type[ValueError],
    type[LookupError],
    type[RuntimeError],
    type[NotImplementedError],
]:
    """Each error is the builtin that a caller would guess."""
    return (
        InvalidFilterError,
        SessionNotFoundError,
        TablesMissingError,
        UnsupportedDialectError,
    )

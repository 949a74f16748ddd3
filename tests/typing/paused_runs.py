"""What type checkers see of paused runs. Checked, never run."""

# Each ignored error must be there: mypy warns of a needless ignore by itself, pyright is told to.
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from agents import Agent, RunResult, RunResultStreaming
from agents.extensions.memory import EncryptedSession
from typing_extensions import assert_type

from agents_session_metadata import (
    BudgetExceededError,
    ClaimedRun,
    CorruptMetadataError,
    Decision,
    PausedPage,
    PausedRun,
    PausedRuns,
    PendingCall,
    RunClaimedError,
    SessionCatalog,
    SessionChangedError,
    SessionPausedError,
    StateVersionError,
)


async def pausing(catalog: SessionCatalog, wrapped: EncryptedSession, result: RunResult) -> None:
    """Runs are stored and decided."""
    paused = PausedRuns(catalog, encrypt=bytes, decrypt=bytes)
    run = await paused.pause(wrapped, result, context_serializer=vars)
    assert_type(run, PausedRun)
    assert_type(run.pending, tuple[PendingCall, ...])
    assert_type(run.pending[0].decision, Decision | None)
    assert_type((run.paused_at, run.claimed_until), tuple[datetime, datetime | None])
    page = await paused.list({"owner_id": "u1"}, limit=20, cursor=None)
    assert_type(page, PausedPage)
    assert_type((page.runs, page.next_cursor), tuple[list[PausedRun], str | None])
    assert_type(await paused.get("chat-1"), PausedRun | None)
    assert_type(await paused.decide("chat-1", "c", approve=False, message="No"), PausedRun)
    await paused.decide("chat-1", "c", approve=True, paused_at=datetime.now(timezone.utc))
    assert_type(await paused.discard("chat-1"), bool)
    await paused.decide("chat-1", "c", approve="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    PausedRuns("sqlite://")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def resuming(paused: PausedRuns, agent: Agent[Any], wrapped: EncryptedSession) -> None:
    """A claimed run is resumed."""
    async with paused.claim(
        "chat-1", agent, lease=timedelta(minutes=1), after_crash=True, force=True, context={"a": 1}
    ) as run:
        assert_type(run, ClaimedRun)
        assert_type(run.undecided, tuple[PendingCall, ...])
        assert_type(await run.resume(session=wrapped, max_turns=3), RunResult)
        assert_type(run.resume_streamed(), RunResultStreaming)


def errors() -> None:
    """Errors carry what was wrong."""
    try:
        ...
    except RunClaimedError as error:
        assert_type((error.session_id, error.crashed), tuple[str, bool])
    except (SessionChangedError, SessionPausedError) as error:
        assert_type(error.session_id, str)
    except StateVersionError as error:
        assert_type((error.session_id, error.version), tuple[str, object])
    except CorruptMetadataError as error:
        assert_type((error.session_id, error.key), tuple[str, str])
    except BudgetExceededError as error:
        assert_type(error.limit, str)

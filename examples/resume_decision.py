"""A task that waits for an approval, and the decision whether to resume it."""

from datetime import datetime, timedelta, timezone

from _common import run
from agents import TResponseInputItem

from agents_session_metadata import (
    InvalidPhaseError,
    SessionCatalog,
    SessionLifecycle,
    resumable_sessions,
)

START = datetime.now(timezone.utc)
clock = {"now": START}


def lifecycle_of(catalog: SessionCatalog, session_id: str = "task-1") -> SessionLifecycle:
    """Return the lifecycle of a session, with the clock of this example."""
    return SessionLifecycle(catalog.session(session_id), clock=lambda: clock["now"])


async def decide(lifecycle: SessionLifecycle, when: str) -> str:
    """Print the decision whether to resume, and return its reason."""
    decision = await lifecycle.resume_decision()
    verdict = "resume" if decision.should_resume else "do not resume"
    print(f"{when}: {verdict} ({decision.reason})")
    return decision.reason


async def propose(catalog: SessionCatalog) -> None:
    """Work until a person has to approve the plan."""
    lifecycle = lifecycle_of(catalog)
    await lifecycle.start("@ai-engineer", purpose="rotate the keys", metadata={"ticket": 42})
    await lifecycle.enter("investigating", {"keys_found": 3})
    await lifecycle.enter("planning")
    question: TResponseInputItem = {"role": "assistant", "content": "Shall I rotate 3 keys?"}
    await catalog.session("task-1").add_items([question])
    await lifecycle.enter("approval", {"plan": "one key an hour"})
    try:
        await lifecycle.enter("aproval")
    except InvalidPhaseError as error:
        print("Refused:", error)
    else:
        raise AssertionError("an unknown phase was entered")


async def resume(catalog: SessionCatalog) -> None:
    """Check the session later, under different conditions, and finish it."""
    lifecycle = lifecycle_of(catalog)
    nobody = lifecycle_of(catalog, "task-2")
    assert await decide(nobody, "A session that does not exist") == "not_found"

    clock["now"] = START + timedelta(minutes=10)
    assert await decide(lifecycle, "Ten minutes later, after a restart") == "resumable"
    decision = await lifecycle.resume_decision()
    moves = [change.phase for change in decision.history]
    print("  moves:", " -> ".join(moves))
    assert moves == ["initializing", "investigating", "planning", "approval"]
    assert {"ticket": 42, "keys_found": 3}.items() <= decision.metadata.items()

    await catalog.set_metadata("task-1", {"ready": False})
    assert await decide(lifecycle, "Marked as not ready") == "not_ready"
    await catalog.set_metadata("task-1", {"ready": True})
    clock["now"] = START + timedelta(minutes=31)
    assert await decide(lifecycle, "After 31 minutes") == "too_old"
    for _ in range(3):
        await lifecycle.record_error("the vault did not respond")
    assert await decide(lifecycle, "After 3 errors") == "too_many_errors"
    await lifecycle.enter("executing", error="the vault refused the key")
    assert await resumable_sessions(catalog) == []
    assert await decide(lifecycle, "While it executes") == "not_resumable_phase"

    metadata = await lifecycle.finish("completed", summary="3 keys rotated")
    print("Finished:", {key: metadata[key] for key in ("outcome", "summary", "duration_ms")})
    assert metadata["duration_ms"] == 31 * 60 * 1000
    assert metadata["status"] == "completed"
    assert await catalog.count_sessions({"status": "active"}) == 0


if __name__ == "__main__":
    run("resume_decision", propose, resume)

"""The JSON that hooks of an orchestrator read and write, in its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agents_session_metadata.keys import AGENT

from .options import usage

if TYPE_CHECKING:
    from agents_session_metadata.catalog import SessionCatalog
    from agents_session_metadata.lifecycle import ResumeDecision
    from agents_session_metadata.types import SessionInfo

NAMES = frozenset({"agent_id", "agent_name"})
"""A request with one of these fields is one of an orchestrator."""


async def find_session(catalog: SessionCatalog, request: Mapping[str, Any]) -> SessionInfo | None:
    """Finds the session with the id `agent_id`, or else the last one of the agent `agent_name`."""
    for name in NAMES:
        if not isinstance(request.get(name, ""), (str, type(None))):
            usage(f"{name} in the request must be a string")
    if request.get("agent_id"):
        return await catalog.get_session(request["agent_id"])
    if not request.get("agent_name"):
        usage("the request must have agent_id or agent_name")
    where: dict[str, Any] = {AGENT: request["agent_name"]}
    if request.get("task_id") is not None:
        where["task_id"] = {"$eq": request["task_id"]}
    return await catalog.last_session(where)


def hook_answer(
    request: Mapping[str, Any], info: SessionInfo | None, decision: ResumeDecision
) -> dict[str, Any]:
    yes = decision.should_resume
    about = info and {
        "previous_phase": decision.phase,
        "created_at": info.created_at,
        "last_updated": info.updated_at,
        "history": [vars(change) for change in decision.history],
        "session_metadata": decision.metadata,
    }
    return {
        "should_resume": yes,
        "reason": "session_resumable" if yes else decision.reason,
        "resume_metadata": about,
        "original_context": request,
    }


def outcome_of(request: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the session and the outcome of `{"agent_id", "exit_code"}`."""
    session, code = request.get("agent_id"), request.get("exit_code")
    if not isinstance(session, str) or type(code) is not int:
        usage("the request must have agent_id, a string, and exit_code, an integer")
    return session, "failed" if code else "completed"

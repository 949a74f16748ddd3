"""Metadata keys that the lifecycle, the tracker, the command line and the MCP server use.

They are plain metadata and count towards `MetadataLimits.max_keys`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

OWNER_ID: Final = "owner_id"
"""The id of the user that the session belongs to."""
TITLE: Final = "title"
"""The title that users see."""
TAGS: Final = "tags"
"""A list of strings."""
AGENT: Final = "agent"
"""The name of the agent, without a leading @."""
PURPOSE: Final = "purpose"
"""Why the work was started."""
STATUS: Final = "status"
"""`active` until a final phase, then the name of the final phase."""
PHASE: Final = "phase"
"""The current phase of the work."""
READY: Final = "ready"
"""False if the session must not be resumed. A missing key means ready."""
SUMMARY: Final = "summary"
"""The result of the work."""
PINNED: Final = "pinned"
"""True for sessions that are shown first."""
ARCHIVED: Final = "archived"
"""True for sessions that are hidden from lists."""

# Recorded by the lifecycle.
OUTCOME: Final = "outcome"
"""The final phase in which the last work ended."""
PHASE_HISTORY: Final = "phase_history"
"""The newest phase changes: objects with `phase` and `at`, an ISO 8601 time."""
ERROR_COUNT: Final = "error_count"
"""The number of errors since the last start."""
LAST_ERROR: Final = "last_error"
"""The message of the newest error."""
STARTED_AT: Final = "started_at"
"""When the work was started, an ISO 8601 time."""
FINISHED_AT: Final = "finished_at"
"""When the work was finished, an ISO 8601 time."""
DURATION_MS: Final = "duration_ms"
"""The time from start to finish, in whole milliseconds."""
LIFECYCLE_AT: Final = "lifecycle_at"
"""When the lifecycle was last called, an ISO 8601 time."""

RESUMES: Final = "resumes"
"""How often `SessionLifecycle.resume()` decided to resume the session."""
RESUME_ATTEMPTS: Final = "resume_attempts"
"""How often `SessionLifecycle.resume()` was called, refusals included."""

# Totals over runs, recorded by the tracker.
RUNS: Final = "runs"
"""The number of tracked runs."""
REQUESTS: Final = "requests"
"""The number of requests to models."""
INPUT_TOKENS: Final = "input_tokens"
"""The number of input tokens."""
OUTPUT_TOKENS: Final = "output_tokens"
"""The number of output tokens."""
TOTAL_TOKENS: Final = "total_tokens"
"""The number of input and output tokens."""
RUN_MS: Final = "run_ms"
"""The total duration of runs, in whole milliseconds."""
COST: Final = "cost"
"""The cost in the currency of the prices, rounded to twelve decimals."""
AGENTS: Final = "agents"
"""The names of the agents that ran."""
TOOL_CALLS: Final = "tool_calls"
"""A list of `[tool, calls, milliseconds]`, one entry per tool."""
TOOLS_USED: Final = "tools_used"
"""The names of the tools that were called: `{"tools_used": {"$contains": "git"}}`."""
INVOCATIONS: Final = "invocations"
"""The ids of the newest 50 tool calls, oldest first."""
INVOCATION_DETAILS: Final = "invocation_details"
"""The same calls: objects with `id`, `tool`, `ms`, `ok`, `at`, a time, and `ref` if given."""
TRACE_IDS: Final = "trace_ids"
"""The newest trace ids of runs, oldest first."""

# What `SessionRuns` records.
RUN: Final = "run"
"""The status of the last run: `running`, `waiting`, `failed` or `completed`.

A run that is stored as `running` is interrupted if its lease has ended: see `SessionRuns.get`.
"""

# What a titler records.
TITLE_AUTO: Final = "title_auto"
"""The title that a `SessionTitler` wrote. The title is automatic as long as the two are equal."""

# What a fork records.
FORKED_FROM: Final = "forked_from"
"""The id of the session that it is a copy of."""
FORKED_BEFORE: Final = "forked_before"
"""The id of the original's item that the copy ends before, if it is not a copy of all."""

# What ChatKit's store records.
CHATKIT: Final = "chatkit"
"""An object with a thread's `created_at`, and its `status`, `allowed_image_domains` and `metadata`
without those that have their default."""

RUN_KEYS: Final = frozenset(
    {
        *(STATUS, OUTCOME, PHASE, PHASE_HISTORY, READY, SUMMARY, ERROR_COUNT, LAST_ERROR),
        *(STARTED_AT, FINISHED_AT, DURATION_MS, LIFECYCLE_AT, RESUMES, RESUME_ATTEMPTS),
        *(RUNS, REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS, TOTAL_TOKENS, RUN_MS, COST),
        *(AGENTS, TOOL_CALLS, TOOLS_USED, INVOCATIONS, INVOCATION_DETAILS, TRACE_IDS, RUN),
    }
)
"""The keys that lifecycle, tracker and runs write.

A fork does not copy them, HTTP hides most and lets no client write any, and the browser and the
command line show them apart from the others.
"""


RUN_STATUSES: Final = ("running", "waiting", "interrupted", "failed")
"""The values of `run` that are the status of the session, whatever its lifecycle says."""


def session_status(metadata: Mapping[str, Any]) -> str | None:
    """Return the status of a session: that of its run, else its lifecycle's, else the tracker's.

    A run that is stored as `running` is `interrupted` if its lease has ended, which the metadata do
    not tell: see `SessionCatalog.statuses`.

    Args:
        metadata: The metadata of the session.

    Returns:
        The value of `run` if it is one of `RUN_STATUSES`, else that of `status`, else `completed`
        if a run has ended. None if nothing ran.
    """
    run, status = metadata.get(RUN), metadata.get(STATUS)
    runs: Any = metadata.get(RUNS)
    if run in RUN_STATUSES:
        return str(run)
    for each in (status, run):
        if isinstance(each, str):
            return each
    # Until 0.3.0, a run that had finished left no status.
    return "completed" if type(runs) in (int, float) and 1 <= runs < 10**18 else None


def normalize_agent(name: str) -> str:
    """Remove `@` and spaces around a name: `normalize_agent(" @ai-engineer")` is `"ai-engineer"`.

    Names are case-sensitive.

    Args:
        name: The name as a user wrote it.

    Returns:
        The name that is stored under `agent`.
    """
    start = next((at for at, each in enumerate(name) if not (each == "@" or each.isspace())), None)
    return "" if start is None else name[start:].rstrip()

"""The well-known metadata keys: plain metadata that lifecycle, tracking and people agree on.

They count towards `MetadataLimits.max_keys` as every key does.
"""

from __future__ import annotations

from typing import Final

OWNER_ID: Final = "owner_id"
"""Whose the conversation is."""
TITLE: Final = "title"
"""What a person calls it."""
TAGS: Final = "tags"
"""A list of strings."""
AGENT: Final = "agent"
"""The name of the agent that runs it, without a leading @."""
PURPOSE: Final = "purpose"
"""Why it was started."""
STATUS: Final = "status"
"""`active` until a final phase, then the name of that phase."""
PHASE: Final = "phase"
"""Where the work stands."""
READY: Final = "ready"
"""False while the session must not be resumed; a missing key is ready."""
SUMMARY: Final = "summary"
"""What came out of it."""
PINNED: Final = "pinned"
"""True for what should stay on top."""
ARCHIVED: Final = "archived"
"""True for what is out of sight."""

# What lifecycle records besides.
OUTCOME: Final = "outcome"
"""The final phase that the last piece of work ended in."""
PHASE_HISTORY: Final = "phase_history"
"""The newest moves: objects with `phase` and `at`, a time in ISO 8601."""
ERROR_COUNT: Final = "error_count"
"""Errors since the last start."""
LAST_ERROR: Final = "last_error"
"""The newest error's message."""
STARTED_AT: Final = "started_at"
"""When the work was started, in ISO 8601."""
FINISHED_AT: Final = "finished_at"
"""When it was finished, in ISO 8601."""
DURATION_MS: Final = "duration_ms"
"""Whole milliseconds from start to finish."""
TOUCHED_AT: Final = "lifecycle_at"
"""When lifecycle was last called, in ISO 8601."""

RESUMES: Final = "resumes"
"""How often `SessionLifecycle.resume()` decided to resume the session."""

# What tracking adds up over runs.
RUNS: Final = "runs"
"""Runs that were tracked."""
REQUESTS: Final = "requests"
"""Requests to models."""
INPUT_TOKENS: Final = "input_tokens"
"""Tokens that went into models."""
OUTPUT_TOKENS: Final = "output_tokens"
"""Tokens that came out of them."""
TOTAL_TOKENS: Final = "total_tokens"
"""Both."""
RUN_MS: Final = "run_ms"
"""Whole milliseconds spent in runs."""
COST: Final = "cost"
"""Cost in the currency of the prices, rounded to twelve decimals."""
AGENTS: Final = "agents"
"""Names of the agents that ran."""
TOOL_CALLS: Final = "tool_calls"
"""A list of `[tool, calls, milliseconds]`, one entry a tool."""
INVOCATIONS: Final = "invocations"
"""The newest tool calls: `[id, tool, milliseconds]`."""

TRACE_IDS: Final = "trace_ids"
"""The newest trace ids of runs, oldest first."""

# What a titler records.
TITLE_AUTO: Final = "title_auto"
"""The title that a `SessionTitler` wrote. The title is automatic as long as the two are equal."""

# What a fork records.
FORKED_FROM: Final = "forked_from"
"""The id of the session that it is a copy of."""
FORKED_BEFORE: Final = "forked_before"
"""The id of the original's item that the copy ends before, if it is not a copy of all."""

COARSE: Final = frozenset({STATUS, PHASE, READY, PINNED, ARCHIVED})
"""Keys with few values, each shared by many sessions: a poor way into an index."""


def normalize_agent(name: str) -> str:
    """An agent's name without leading `@` characters and spaces, and without trailing spaces.

    `ai-engineer`, `@ai-engineer` and ` @ @ai-engineer ` are one agent. Names are case-sensitive.

    Args:
        name: The name as somebody wrote it.

    Returns:
        The name as it is stored under `agent`.
    """
    start = next((at for at, each in enumerate(name) if not (each == "@" or each.isspace())), None)
    return "" if start is None else name[start:].rstrip()

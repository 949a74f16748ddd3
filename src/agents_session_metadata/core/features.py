"""The groups of tables that optional features use, in the order in which they are created."""

from __future__ import annotations

from agents_session_metadata.indexes import tables as activity
from agents_session_metadata.runs import tables as paused
from agents_session_metadata.threads import tables as threads
from agents_session_metadata.usage import ledger as usage

from .definitions import GroupDefinition

GROUPS: tuple[GroupDefinition, ...] = (
    activity.GROUP,
    paused.GROUP,
    usage.GROUP,
    threads.GROUP,
)

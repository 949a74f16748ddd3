"""The groups of tables that optional features use, in the order in which they are created."""

from __future__ import annotations

from . import activity, paused, threads, usage
from .definitions import GroupDefinition

GROUPS: tuple[GroupDefinition, ...] = (
    activity.GROUP,
    paused.GROUP,
    usage.GROUP,
    threads.GROUP,
)

"""Checks triggers by name, and names what version 0.2.0 has left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agents_session_metadata.core.definitions import DropTrigger
from agents_session_metadata.indexes import obsolete_keys
from agents_session_metadata.text import quoted

from .structure import Finding, Inspection


def check_triggers(inspection: Inspection) -> Iterator[Finding]:
    dialect = inspection.dialect
    if not dialect.uses_triggers:
        return
    tables = inspection.present
    existing = {name for t in tables for name in dialect.triggers_of(inspection.connection, t)}
    expected = {trigger.name for trigger in inspection.expected.triggers}
    for group in inspection.expected.groups:
        if group.tables[0] not in inspection.wanted:
            continue
        for trigger in group.triggers:
            # The last eight characters are a hash of the text.
            same = (name for name in existing if name[:-8] == trigger.name[:-8])
            others = sorted({*same} - expected)
            elements: list[Any] = [DropTrigger(trigger.table, name) for name in others]
            if trigger.name not in existing:
                elements.append(trigger)
            repair = tuple(map(inspection.sql, elements))
            if others:
                problem = f"triggers of another version exist: {', '.join(others)}"
                yield Finding("warning", "triggers", problem, repair)
            elif repair:
                yield Finding("error", "triggers", f"trigger {trigger.name} is missing", repair)


def check_obsolete(inspection: Inspection) -> Iterator[Finding]:
    for key in obsolete_keys(inspection.connection, inspection.queried):
        problem = (
            f"the index on {quoted(key)} is of version 0.2.0, and nothing uses it: when no process"
            f" of that version is running, remove it by agent-sessions index drop {key}"
        )
        yield Finding("info", "indexes", problem)

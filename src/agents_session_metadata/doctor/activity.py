"""The activity index: its triggers and its entries. Repairs add and delete entries only."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import select

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.quoting import quoted
from agents_session_metadata.storage.activity import ACTIVITY, COMPLETE
from agents_session_metadata.storage.activity_check import compare, missing_triggers

from .findings import Finding
from .inspection import Inspection


def check_activity(inspection: Inspection) -> Iterator[Finding]:
    """Whether every index has exactly the entries that it should have."""
    connection, tables = inspection.connection, inspection.tables
    indexes, entries = tables.group(ACTIVITY).tables
    exist = [
        inspection.inspector.has_table(table.name, inspection.schema)
        for table in (indexes, entries)
    ]
    if not all(exist) or len(inspection.present) < len(tables.tables):
        return
    triggers = dialect_of(connection.dialect).triggers
    for trigger in missing_triggers(connection, tables):
        problem = f"trigger {trigger.plain} is missing: the activity index is not maintained"
        yield Finding("error", "activity", problem, tuple(triggers.create(trigger)))
    found = connection.execute(select(indexes.c.key, indexes.c.state).order_by(indexes.c.key))
    for key, state in found.all():
        if state != COMPLETE:
            problem = f"the index on {quoted(key)} is not complete; create_index continues it"
            yield Finding("warning", "activity", problem)
            continue
        wrong, missing, repair = compare(connection, tables, key)
        if wrong or missing:
            yield Finding(
                "error",
                "activity",
                f"the index on {quoted(key)} has {wrong} wrong or extra entries, "
                f"and {missing} are missing",
                tuple(inspection.sql(statement, literals=True) for statement in repair),
            )

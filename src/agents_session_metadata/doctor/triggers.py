"""Checks triggers by name, and the users that they run as."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import select

from agents_session_metadata.core.definitions import DropTrigger
from agents_session_metadata.dialects._dialect import RowTrigger, as_typed
from agents_session_metadata.indexes.tables import ACTIVITY
from agents_session_metadata.indexes.triggers import activity_triggers

from .structure import INDEX_AGAIN, Finding, Inspection


def check_triggers(inspection: Inspection) -> Iterator[Finding]:
    dialect = inspection.dialect
    existing = _existing(inspection)
    for group in inspection.expected.groups:
        if not dialect.uses_triggers or group.tables[0] not in inspection.wanted:
            continue
        for trigger in group.triggers:
            former = [name for name in trigger.former_names if name in existing]
            elements: list[Any] = [DropTrigger(trigger.table, name) for name in former]
            if trigger.name not in existing:
                elements.append(trigger)
            repair = tuple(map(inspection.sql, elements))
            if former:
                problem = f"triggers of an earlier version exist: {', '.join(former)}"
                yield Finding("warning", "triggers", problem, repair)
            elif repair:
                yield Finding("error", "triggers", f"trigger {trigger.name} is missing", repair)


def check_index_triggers(inspection: Inspection) -> Iterator[Finding]:
    existing = _existing(inspection)
    missing = [each for each in _index_triggers(inspection) if each.plain not in existing]
    if missing:
        names = ", ".join(each.plain for each in missing)
        problem = f"triggers that maintain indexes are missing: {names}. Create them, {INDEX_AGAIN}"
        create = inspection.dialect.trigger_statements
        statements = [statement for each in missing for statement in create(each)]
        repair = as_typed(inspection.connection, statements)
        yield Finding("error", "triggers", problem, repair)


def check_definers(inspection: Inspection) -> Iterator[Finding]:
    ours = {each.plain: each for each in _index_triggers(inspection)}
    dialect = inspection.dialect
    for name, definer in dialect.lost_definers(inspection.connection, inspection.present):
        problem = f"the user {definer} of trigger {name} does not exist, so that writes fail"
        repair: tuple[str, ...] = ()
        if name in ours:
            each = ours[name]
            drop = dialect.drop_trigger(each.schema, each.name, each.table)
            statements = [drop, *dialect.trigger_statements(each)]
            repair = as_typed(inspection.connection, statements)
        else:
            problem += ": create the user, or create the trigger again as another one"
        yield Finding("error", "triggers", problem, repair)


def _existing(inspection: Inspection) -> set[str]:
    return inspection.dialect.existing_triggers(inspection.connection, *inspection.present)


def _index_triggers(inspection: Inspection) -> list[RowTrigger]:
    indexes, entries = inspection.queried.group(ACTIVITY).tables
    needed = (*inspection.queried.tables, indexes, entries)
    if not inspection.complete.issuperset(table.name for table in needed):
        return []
    keys = inspection.connection.scalars(select(indexes.c.key))
    return activity_triggers(inspection.connection, inspection.queried, keys)

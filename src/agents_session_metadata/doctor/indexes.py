"""The activity index: its triggers and its rows. Repairs add and delete rows of it only."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import Any

from sqlalchemy import (
    delete,
    exists,
    func,
    select,
)

from agents_session_metadata.dialects._triggers import RowTrigger
from agents_session_metadata.quoting import quoted
from agents_session_metadata.storage.activity import ACTIVITY
from agents_session_metadata.storage.activity_check import activity_triggers, compare
from agents_session_metadata.storage.definitions import TableGroup
from agents_session_metadata.storage.index_states import COMPLETE, DROPPING
from agents_session_metadata.storage.shapes import (
    CONFLICTS,
    MERGING,
    conflict_problems,
    merging_indexes,
    unique_keys,
)

from .findings import Finding
from .inspection import Inspection

_MAY_FAIL = "no index needs it, and it can make writes fail or change an index of other tables"


def check_merging(inspection: Inspection) -> Iterator[Finding]:
    """Keys by which a write could change or replace the row of another session."""
    connection = inspection.connection
    for _, clause in conflict_problems(connection, inspection.present):
        yield Finding("error", "indexes", f"{clause}: {CONFLICTS}")
    own = [table for table in inspection.own if table in inspection.present]
    for table, name, _ in merging_indexes(connection, unique_keys(connection, own)):
        problem = f"{table.name} has the unique index {name}: {MERGING}"
        yield Finding("error", "indexes", problem)


def trigger_problem(inspection: Inspection, name: str, create: tuple[str, ...]) -> str | None:
    """What is wrong with a trigger that these statements create; None if nothing is."""
    found = inspection.triggers.get(name)
    if found is None:
        return f"trigger {name} is missing"
    problem = "does something else or is switched off, or its user does not exist"
    return None if found.is_created_by(create) else f"trigger {name} {problem}"


def _unfinished(key: str, state: int) -> str:
    """What to do about an index that is not complete."""
    index = f"the index on {quoted(key)}"
    create, drop = (f"agent-sessions index {verb} {quote(key)}" for verb in ("create", "drop"))
    if state == DROPPING:
        return f"dropping {index} was interrupted; {drop} completes it, {create} creates it again"
    return f"{index} is not complete; {create} continues it, {drop} deletes it"


def _is_comparable(inspection: Inspection, group: TableGroup) -> bool:
    """Whether all tables are there, so that a query on them does not fail."""
    names = {table.name for table in (*inspection.core, *group.tables)}
    tables = [table for table in inspection.present if table.name in names]
    expected = inspection.expected
    owners = {"session_id": expected.sessions.c.session_id, "key": expected.metadata.c.key}
    return len(tables) == len(names) and all(
        inspection.is_readable(table, table.c.keys())
        and all(
            inspection.is_joinable(table.c[name], own)
            for name, own in owners.items()
            if name in table.c
        )
        for table in tables
    )


def check_activity(inspection: Inspection) -> Iterator[Finding]:
    """Whether every index has exactly the entries that it should have."""
    connection, tables = inspection.connection, inspection.tables
    group = tables.group(ACTIVITY)
    if not _is_comparable(inspection, group):
        return
    indexes, entries = group.tables
    states = connection.execute(
        select(indexes.c.key, indexes.c.state).order_by(indexes.c.key)
    ).all()
    triggers = activity_triggers(connection, tables, [key for key, _ in states])
    effect = "the activity index is not maintained"
    if not states:
        # They stay when the last index is dropped.
        triggers, effect = _existing(inspection, triggers), _MAY_FAIL
    yield from _open(inspection, "activity", triggers)
    for trigger, create, problem in _wrong_triggers(inspection, triggers):
        is_there = trigger.plain in inspection.triggers
        repair = (*(_drop(inspection, trigger) if is_there else ()), *create)
        yield Finding("error", "activity", f"{problem}: {effect}", repair)
    for key, state in states:
        if state != COMPLETE:
            yield Finding("warning", "activity", _unfinished(key, state))
            continue
        if not all(map(inspection.has_key, inspection.core)):
            # Of two rows with equal keys, only one can have an entry.
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
    yield from _extra(
        inspection, "activity", entries, ~exists().where(indexes.c.key == entries.c.key)
    )


def _wrong_triggers(
    inspection: Inspection, triggers: list[RowTrigger]
) -> Iterator[tuple[RowTrigger, tuple[str, ...], str]]:
    """The triggers that are missing or wrong, with what creates them and what is wrong."""
    for trigger in triggers:
        create = inspection.typed(inspection.ways.triggers.create(trigger))
        problem = trigger_problem(inspection, trigger.plain, create)
        if problem is not None:
            yield trigger, create, problem


def _existing(inspection: Inspection, triggers: list[RowTrigger]) -> list[RowTrigger]:
    return [each for each in triggers if each.plain in inspection.triggers]


def _drop(inspection: Inspection, trigger: RowTrigger) -> tuple[str, ...]:
    drop = inspection.ways.triggers.drop(trigger.schema, trigger.name, trigger.table)
    return inspection.typed([drop])


def _open(inspection: Inspection, check: str, triggers: list[RowTrigger]) -> Iterator[Finding]:
    """Functions of triggers that other users may attach to tables of their own."""
    found = [each for each in triggers if each.plain in inspection.open_triggers]
    if found:
        problem = (
            "every database user may execute trigger functions that write to an index with the"
            f" rights of their owner: {', '.join(each.plain for each in found)}"
        )
        repair = [each for one in found for each in inspection.ways.triggers.revoke(one)]
        yield Finding("warning", check, problem, inspection.typed(repair))


def _extra(inspection: Inspection, check: str, table: Any, condition: Any) -> Iterator[Finding]:
    """Rows of an index that belong to nothing."""
    count = inspection.connection.scalar(select(func.count()).select_from(table).where(condition))
    if count:
        problem = f"{count} {'row' if count == 1 else 'rows'} of {table.name} belong to nothing"
        repair = inspection.sql(delete(table).where(condition), literals=True)
        yield Finding("error", check, problem, (repair,))

"""The foreign keys between the tables, and rows that lack what they refer to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .findings import Finding, Level
from .inspection import Inspection


def check_orphans(inspection: Inspection) -> Iterator[Finding]:
    """Rows that have lost what they belong to."""
    # Rows that are derived first: an index that has them refuses the session that they lack.
    for constraint in sorted(
        inspection.links, key=lambda each: each.table not in inspection.derived
    ):
        condition = inspection.orphan_condition(constraint)
        child, parent = constraint.table, constraint.referred_table
        count = 0 if condition is None else inspection.count(child, condition)
        if not count or condition is None:
            continue
        have = "row of {} has" if count == 1 else "rows of {} have"
        problem = f"{count} {have.format(child.name)} no row in {parent.name}"
        repair = inspection.delete_derived(child, condition)
        if not repair:
            problem += (
                ". doctor deletes none of them. If they should be kept, this gives them a session"
                f" row again: {inspection.restore_sessions(child, condition)}"
            )
        yield Finding("error", "orphans", problem, repair)


def check_foreign_keys(inspection: Inspection) -> Iterator[Finding]:
    """Whether rows end with what they belong to, and nothing else ends or keeps them."""
    for constraint in inspection.links:
        child, parent = constraint.table, constraint.referred_table
        columns = list(constraint.column_keys)
        if not inspection.has(child, *columns):
            continue
        to_parent = [
            key
            for key in inspection.foreign_keys[child.name]
            if key["constrained_columns"] == columns and inspection.leads_to(key, parent)
        ]
        ending = [
            key for key in to_parent if inspection.on_delete(child, key) == constraint.ondelete
        ]
        failures = [inspection.foreign_key_problem(child, key) for key in ending]
        deleting = [key for key in to_parent if inspection.on_delete(child, key) == "CASCADE"]
        # Where triggers end rows with their session, the foreign keys are not needed for it.
        is_needed = child in inspection.own and not inspection.ways.uses_triggers
        level: Level = "error" if is_needed else "warning"
        name = f"the foreign key of {child.name} to {parent.name}"
        refusing = [key for key in to_parent if key not in ending and key not in deleting]
        if ending and refusing:
            problem = f"{child.name} has another foreign key, which can refuse to delete rows of"
            problem += f" {parent.name}: drop {_listed(refusing)} yourself"
            yield Finding(level, "foreign keys", problem)
        if None in failures and (constraint.ondelete == "CASCADE" or not deleting):
            continue
        if None in failures:
            problem = f"{child.name} has another foreign key, which deletes rows that outlive their"
            problem += f" session: drop {_listed(deleting)} yourself"
            yield Finding("error", "foreign keys", problem)
        elif failures:
            yield Finding(level, "foreign keys", f"{name} {failures[0]}")
        elif to_parent:
            ends = "delete" if constraint.ondelete == "CASCADE" else "set NULL"
            problem = f"{name} does not {ends} with its parent (constraint {_listed(to_parent)})"
            yield inspection.finding("foreign keys", problem, (), level)
        else:
            repair = inspection.add_foreign_key(constraint)
            problem = f"{name} is missing"
            if repair and not _is_possible(inspection, constraint):
                problem += "; doctor prints it once the findings above are repaired"
                yield Finding(level, "foreign keys", problem)
            else:
                yield inspection.finding("foreign keys", problem, repair, level)


def _listed(keys: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(str(key["name"] or "the one without a name") for key in keys)


def _is_possible(inspection: Inspection, constraint: Any) -> bool:
    """Whether the statements that are printed before let a foreign key be added."""
    child, parent = constraint.table, constraint.referred_table
    if parent.name not in inspection.existing:
        return True
    condition = inspection.orphan_condition(constraint)
    if condition is None or not inspection.may_refer(constraint):
        return False
    is_repaired = bool(inspection.delete_derived(child, condition))
    return is_repaired or not inspection.count(child, condition)

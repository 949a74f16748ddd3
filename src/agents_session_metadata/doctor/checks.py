"""What `doctor` checks about tables, columns, keys, indexes and triggers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sqlalchemy import Column, Table
from sqlalchemy.schema import CreateColumn

from agents_session_metadata.storage.tables import CreateTrigger

from .activity import check_activity
from .contents import Contents
from .findings import Finding
from .inspection import Inspection
from .repairs import Repairs

REFILLED = (
    "create_tables=True, or agent-sessions count --create-tables, creates the table and fills it"
)
"""How the table of elements is filled: its rows follow from the lists, but not by SQL."""

CLOCK_TOLERANCE = 5.0
"""Seconds by which clocks may differ without a warning."""

now: Callable[[], float] = time.time


def check(inspection: Inspection, repairs: Repairs) -> list[Finding]:
    """Run all checks. If the tables do not belong together, only that is reported."""
    found = [*_versions(inspection)]
    wrong_names = [*_names(inspection)]
    if wrong_names:
        return found + wrong_names
    checks: tuple[Callable[[Inspection, Repairs], Iterator[Finding]], ...] = (
        # A foreign key of a new table requires tables that support it.
        lambda inspection, _: inspection.check_storage(),
        _tables,
        _columns,
        _unknown_columns,
        _ids,
        _primary_keys,
        _orphans,
        _foreign_keys,
        _indexes,
        _triggers,
        lambda inspection, _: Contents(inspection).check(inspection.connection),
        lambda inspection, _: check_activity(inspection),
        lambda inspection, _: inspection.check_times(),
        lambda inspection, _: inspection.check_zone(),
        _clock,
    )
    for each in checks:
        for finding in each(inspection, repairs):
            if finding.repair and any(finding.repair == other.repair for other in found):
                found.append(finding.repaired_above())
            else:
                found.append(finding)
    return found


def _versions(inspection: Inspection) -> Iterator[Finding]:
    driver = inspection.connection.dialect.driver.removesuffix("_async")
    packages = (driver, "SQLAlchemy", "openai-agents", "agents-session-metadata")
    parts = [inspection.product, *map(_installed, packages)]
    yield Finding("info", "versions", ", ".join(parts))
    numbers = tuple(each for each in inspection.server_version if isinstance(each, int))
    if numbers and numbers < inspection.oldest:
        oldest = ".".join(map(str, inspection.oldest))
        problem = f"{inspection.product} is too old; {oldest} is the oldest supported version"
        yield Finding("error", "versions", problem)


def _names(inspection: Inspection) -> Iterator[Finding]:
    """Signs that the tables do not belong together: a typo, or a table that was renamed."""
    expected = inspection.expected
    advice = (
        "these are probably not the names of tables that belong together, or the table was renamed"
        " or replaced; check --sessions-table, --messages-table and --metadata-table, and give a"
        " renamed table its name back. doctor prints no statements for these names"
    )
    identity = {
        expected.sessions: ("session_id",),
        expected.messages: ("session_id", "message_data"),
        expected.metadata: ("session_id", "key"),
        expected.elements: ("session_id", "key", "position"),
    }
    for table in inspection.present:
        lacking = [name for name in identity[table] if not inspection.has(table, name)]
        if lacking:
            problem = f"{table.name} has no column {' and no '.join(lacking)}"
            yield Finding("error", "names", f"{problem}: {advice}")
    parents = {constraint.table: constraint.referred_table for constraint in inspection.links}
    for table in inspection.present:
        parent = parents.get(table)
        if parent is None:
            continue
        keys = [
            key
            for key in inspection.foreign_keys[table.name]
            if "session_id" in key["constrained_columns"]
        ]
        if any(inspection.leads_to(key, parent) for key in keys):
            continue
        for key in keys:
            elsewhere = f"leads to {key['referred_table']}, not to {parent.name}"
            problem = f"the foreign key of {table.name} {elsewhere}"
            yield Finding("error", "names", f"{problem}: {advice}")
    for parent, children in (
        (expected.sessions, (expected.messages, expected.metadata)),
        (expected.metadata, (expected.elements,)),
    ):
        if inspection.is_filled(parent):
            continue
        state = "is empty" if parent.name in inspection.existing else "is missing"
        for child in filter(inspection.is_filled, children):
            problem = f"{parent.name} {state}, and {child.name} has rows"
            yield Finding("error", "names", f"{problem}: {advice}")


def _tables(inspection: Inspection, repairs: Repairs) -> Iterator[Finding]:
    expected = inspection.expected
    for table in expected.tables:
        if table.name in inspection.existing:
            continue
        problem = f"table {table.name} is missing"
        if table is expected.elements and Contents(inspection).has_lists(inspection.connection):
            yield Finding("error", "tables", f"{problem}, and there are lists; {REFILLED}")
            continue
        if table is expected.messages and inspection.is_filled(expected.sessions):
            problem += ", and there are sessions; check --messages-table before you create it"
        yield Finding("error", "tables", problem, repairs.create_table(table))


def _columns(inspection: Inspection, repairs: Repairs) -> Iterator[Finding]:
    for table in inspection.present:
        for column in table.c:
            name, actual = f"{table.name}.{column.name}", inspection.columns[table.name]
            if column.name not in actual:
                advice = _missing_column(inspection, column)
                yield Finding("error", "columns", f"column {name} is missing; {advice}")
                continue
            found = actual[column.name]
            if inspection.lacks_default(column, found):
                repair = repairs.set_default(column)
                yield _finding("error", "columns", f"{name} has no default", repair, repairs)
            if found["nullable"] and table in inspection.own:
                yield _finding("error", "columns", f"{name} may be NULL", (), repairs)
            for problem in inspection.type_problems(column, found["type"]):
                repair = repairs.widen(column)
                yield _finding("error", "columns", f"{name} {problem}", repair, repairs)


def _missing_column(inspection: Inspection, column: Column[Any]) -> str:
    if column.table in inspection.derived:
        return (
            "all rows of this table follow from the metadata: drop the table by hand, and then"
            f" {REFILLED}"
        )
    if column.server_default is None and inspection.is_filled(column.table):
        return "its values cannot be derived; restore them from a backup"
    specification = inspection.sql(CreateColumn(column))
    return f"add it by a migration of your own, as {specification}"


def _unknown_columns(inspection: Inspection, _: Repairs) -> Iterator[Finding]:
    """An added column does no harm, unless it requires a value that nobody supplies."""
    for table in inspection.present:
        for name, actual in inspection.columns[table.name].items():
            given = any(actual.get(each) for each in ("default", "computed", "identity"))
            if name not in table.c and not actual["nullable"] and not given:
                yield Finding(
                    "error",
                    "columns",
                    f"column {table.name}.{name} requires a value, and nothing supplies one; give"
                    " the column a default or let it be NULL",
                )


def _ids(inspection: Inspection, repairs: Repairs) -> Iterator[Finding]:
    """Ids and keys tell different texts apart, and children's are as their parents'."""
    expected = inspection.expected
    parents: dict[str, Column[Any]] = {
        "session_id": expected.sessions.c.session_id,
        "key": expected.metadata.c.key,
    }
    for table in reversed(expected.tables):
        for column in (each for each in table.c if each.name in ("session_id", "key")):
            if not inspection.has(table, column.name):
                continue
            name, is_key = f"{table.name}.{column.name}", column.name == "key"
            problems = inspection.text_problems(column)
            if problems:
                level: Any = "error" if is_key else "warning"
                problem = f"{name} {' and '.join(problems)}"
                yield _finding(level, "collations", problem, (), repairs)
            short = None if is_key else inspection.length_problem(column)
            if short is not None:
                repair = repairs.widen(column)
                yield _finding("warning", "columns", f"{name} {short}", repair, repairs)
            parent = parents[column.name]
            if column is not parent and inspection.has(parent.table, parent.name):
                difference = inspection.differs(column, parent)
                if difference is not None:
                    repair = repairs.widen(column)
                    yield _finding("error", "columns", difference, repair, repairs)


def _primary_keys(inspection: Inspection, repairs: Repairs) -> Iterator[Finding]:
    for table in inspection.present:
        key = [column.name for column in table.primary_key.columns]
        actual = inspection.inspector.get_pk_constraint(table.name, schema=inspection.schema)
        if actual["constrained_columns"] != key and inspection.has(table, *key):
            problem = f"the primary key of {table.name} is not ({', '.join(key)})"
            repair = () if actual["constrained_columns"] else repairs.add_primary_key(table)
            yield _finding("error", "indexes", problem, repair, repairs)


def _orphans(inspection: Inspection, repairs: Repairs) -> Iterator[Finding]:
    for constraint in inspection.links:
        condition = inspection.orphan_condition(constraint)
        if condition is None:
            continue
        child, parent = constraint.table, constraint.referred_table
        count = inspection.count(child, condition)
        if not count:
            continue
        have = "row of {} has" if count == 1 else "rows of {} have"
        problem = f"{count} {have.format(child.name)} no row in {parent.name}"
        repair = repairs.delete_derived(child, condition)
        if not repair:
            problem += (
                ". doctor deletes none of them. If they should be kept, this gives them a session"
                f" row again: {repairs.restore_sessions(child, condition)}"
            )
        yield Finding("error", "orphans", problem, repair)


def _foreign_keys(inspection: Inspection, repairs: Repairs) -> Iterator[Finding]:
    for constraint in inspection.links:
        child, parent = constraint.table, constraint.referred_table
        columns = list(constraint.column_keys)
        if child.name not in inspection.existing or not inspection.has(child, *columns):
            continue
        to_parent = [
            key
            for key in inspection.foreign_keys[child.name]
            if key["constrained_columns"] == columns and inspection.leads_to(key, parent)
        ]
        cascading = [
            key
            for key in to_parent
            if (key.get("options", {}).get("ondelete") or "").upper() == "CASCADE"
        ]
        failures = [inspection.foreign_key_problem(child, key) for key in cascading]
        if None in failures:
            continue
        repair: tuple[str, ...] = ()
        if failures:
            problem = str(failures[0])
        elif to_parent:
            listed = ", ".join(str(key["name"]) for key in to_parent)
            problem = f"does not delete with its parent (constraint {listed})"
        else:
            problem, repair = "is missing", repairs.add_foreign_key(constraint)
        pairs = [(each.parent, each.column) for each in constraint.elements]
        if repair and not _is_possible(inspection, repairs, constraint, pairs):
            problem += "; doctor prints it once the findings above are repaired"
            repair = ()
        # Where triggers delete metadata with its session, the foreign keys are not needed for it.
        is_needed = child in inspection.own and not inspection.uses_triggers
        problem = f"the foreign key of {child.name} to {parent.name} {problem}"
        level: Any = "error" if is_needed else "warning"
        if repair or "findings above" in problem or failures:
            yield Finding(level, "foreign keys", problem, repair)
        else:
            yield _finding(level, "foreign keys", problem, (), repairs)


def _is_possible(
    inspection: Inspection, repairs: Repairs, constraint: Any, pairs: list[tuple[Any, Any]]
) -> bool:
    """Whether the statements that are printed before let a foreign key be added."""
    child, parent = constraint.table, constraint.referred_table
    if parent.name not in inspection.existing:
        return True
    if not all(inspection.is_joinable(*pair) for pair in pairs):
        return False
    key = inspection.inspector.get_pk_constraint(parent.name, schema=inspection.schema)
    if key["constrained_columns"] not in ([], [pair[1].name for pair in pairs]):
        return False
    condition = inspection.orphan_condition(constraint)
    if condition is None or repairs.delete_derived(child, condition):
        return condition is not None
    return not inspection.count(child, condition)


def _indexes(inspection: Inspection, repairs: Repairs) -> Iterator[Finding]:
    for table in inspection.present:
        actual = inspection.inspector.get_indexes(table.name, schema=inspection.schema)
        usable = inspection.usable_indexes(table, actual)
        for index in table.indexes:
            columns = [column.name for column in index.columns]
            if any(each["column_names"][: len(columns)] == columns for each in usable):
                continue
            if inspection.has(table, *columns):
                problem = f"{table.name} has no index on ({', '.join(columns)})"
                taken = {each["name"] for each in actual}
                if index.name in taken:
                    problem += f"; {index.name} is incomplete or on other columns"
                repair = repairs.create_index(index, taken)
                yield Finding("error", "indexes", problem, repair)


def _triggers(inspection: Inspection, repairs: Repairs) -> Iterator[Finding]:
    actual = inspection.actual_triggers()
    for trigger in inspection.triggers:
        found = actual.get(trigger.name)
        if found is not None and _normal(found) == _normal(inspection.sql(trigger)):
            continue
        problem = "is missing" if found is None else "does something else"
        problem = f"trigger {trigger.name} {problem}"
        if not _has_tables(inspection, trigger):
            problem += f"; doctor prints it once {trigger.emptied.name} exists"
            yield Finding("error", "triggers", problem)
            continue
        repair = repairs.create_trigger(trigger, replaced=found is not None)
        yield Finding("error", "triggers", problem, repair)


def _has_tables(inspection: Inspection, trigger: CreateTrigger) -> bool:
    """Whether the tables of a trigger exist, or will by the statements printed before it.

    A trigger that refers to a missing table would make every delete fail.
    """

    def will_exist(table: Table) -> bool:
        is_refilled = table is inspection.expected.elements and Contents(inspection).has_lists(
            inspection.connection
        )
        return table.name in inspection.existing or not is_refilled

    return all(map(will_exist, (trigger.table, trigger.emptied)))


def _clock(inspection: Inspection, _: Repairs) -> Iterator[Finding]:
    query = inspection.clock_query
    if query is None:
        return
    before = now()
    server = float(inspection.scalar(query))
    after = now()
    difference = server - (before + after) / 2
    if abs(difference) > CLOCK_TOLERANCE + (after - before) / 2:
        direction = "ahead of" if difference > 0 else "behind"
        yield Finding(
            "warning",
            "clock",
            f"the server's clock is {abs(difference):,.0f} s {direction} this machine's; ages and"
            " resume decisions are off by as much, so set both clocks by one time server",
        )


def _finding(
    level: Any, check: str, problem: str, repair: tuple[str, ...], repairs: Repairs
) -> Finding:
    """A finding; without a statement, it says what to do instead."""
    return Finding(level, check, problem if repair else f"{problem}; {repairs.by_hand}", repair)


def _normal(statement: str) -> str:
    """SQL without what does not matter: SQLite keeps it as it was typed, IF NOT EXISTS aside."""
    return "".join(statement.upper().replace("IF NOT EXISTS", "").replace('"', "").split())


def _installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package

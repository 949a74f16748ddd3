"""What `doctor` checks about tables, columns, keys, indexes and triggers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sqlalchemy import Column, Index, MetaData, Table, UniqueConstraint
from sqlalchemy.schema import CreateColumn

from agents_session_metadata.errors import TablesMismatchError
from agents_session_metadata.quoting import quoted
from agents_session_metadata.storage.activity import ACTIVITY
from agents_session_metadata.storage.belonging import destroys, renamed_elements, written_tables
from agents_session_metadata.storage.definitions import CreateTrigger
from agents_session_metadata.storage.renames import RenamedTrigger, names_of, taken
from agents_session_metadata.storage.shapes import check_ids
from agents_session_metadata.storage.tables import CORE, DropTrigger
from agents_session_metadata.storage.words import WORDS

from .contents import Contents
from .findings import Finding, Level, Statements
from .groups import lacking_finding
from .identity import REFILLED, check_reliable, id_columns
from .indexes import check_activity, check_merging, check_words, trigger_problem
from .inspection import Inspection
from .references import check_foreign_keys, check_orphans

_RENAMED = "the tables had other names when it was created"

CLOCK_TOLERANCE = 5.0
"""Seconds by which clocks may differ without a warning."""

now: Callable[[], float] = time.time


def check(inspection: Inspection) -> list[Finding]:
    """Run all checks.

    If rows may be hidden, the tables do not belong together, or ids are not text, only that is
    reported.
    """
    found = [*_versions(inspection)]
    unreliable = check_reliable(inspection)
    if unreliable:
        return found + unreliable
    checks: tuple[Callable[[Inspection], Iterator[Finding]], ...] = (
        # A foreign key of a new table requires tables that support it, with their keys.
        lambda inspection: inspection.check_server(),
        _primary_keys,
        _lacking,
        _tables,
        _columns,
        _unknown_columns,
        _ids,
        _rules,
        check_orphans,
        check_foreign_keys,
        _indexes,
        check_merging,
        _triggers,
        _renamed_triggers,
        _left_triggers,
        lambda inspection: Contents(inspection).check(inspection.connection),
        _times,
        check_activity,
        check_words,
        _clock,
    )
    first = inspection.first
    for each in checks:
        for finding in (one.printable(first) for one in each(inspection)):
            if finding.repair and any(finding.repair == other.repair for other in found):
                found.append(finding.repaired_above())
            else:
                found.append(finding)
    if not any(finding.level == "error" for finding in found):
        found += _refused(inspection)
    return found


def _refused(inspection: Inspection) -> Iterator[Finding]:
    """What every use of the tables refuses, if no other check finds an error."""
    missing = {each.name for each in inspection.core} - inspection.existing
    try:
        check_ids(inspection.connection, inspection.tables, CORE, missing)
    except TablesMismatchError as error:
        yield Finding("error", "tables", error.problem)


def _versions(inspection: Inspection) -> Iterator[Finding]:
    driver = inspection.connection.dialect.driver.removesuffix("_async")
    packages = (driver, "SQLAlchemy", "openai-agents", "agents-session-metadata")
    product = f"{inspection.product} {'.'.join(map(str, inspection.version))}"
    yield Finding("info", "versions", ", ".join([product, *map(_installed, packages)]))
    numbers = tuple(each for each in inspection.version if isinstance(each, int))
    if numbers and numbers < inspection.oldest:
        oldest = ".".join(map(str, inspection.oldest))
        problem = f"{product} is too old; {oldest} is the oldest supported version"
        yield Finding("error", "versions", problem)


def _tables(inspection: Inspection) -> Iterator[Finding]:
    expected = inspection.expected
    written = [each.name for each in written_tables(inspection.tables)[2:]]
    if any(each not in inspection.core for each in inspection.present):
        # Other tables of this package exist, so it is not that there were only the SDK's.
        written.append(expected.metadata.name)
    for table in inspection.wanted:
        if table in inspection.present:
            continue
        problem = f"table {table.name} is missing"
        if table is expected.elements and Contents(inspection).has_lists(inspection.connection):
            problem += f", and there are lists; {_refill(inspection)}"
            yield Finding("error", "tables", problem)
            continue
        if table is expected.messages and inspection.is_filled(expected.sessions):
            problem += ", and there are sessions; check --messages-table before you create it"
        elif table.name in written:
            problem += (
                "; if it was renamed or dropped, restore it instead, from a backup only with all"
                " other tables"
            )
        elif table not in inspection.core:
            problem += "; once it exists, run agent-sessions index create for each index"
        for other in _renamed_to(inspection, table):
            problem += f"; {other} has an index or a foreign key of it and may be this table"
        parents = [constraint.referred_table for constraint in table.foreign_key_constraints]
        refused = [each.name for each in parents if not inspection.is_referable(each)]
        if refused:
            problem += f", and no foreign key may refer to {refused[0]}; repair that table first"
        repair = () if refused else inspection.create_table(table)
        yield Finding("error", "tables", problem, repair)


def _renamed_to(inspection: Inspection, table: Table) -> list[str]:
    """Other tables that have a name of a missing table, and may be this table renamed."""
    plain = next(
        each
        for group in inspection.tables.groups
        for each in group.tables
        if each.name == table.name
    )
    names = dict.fromkeys(names_of(plain), table.name)
    found = taken(inspection.connection, inspection.tables, names)
    return sorted({other for *_, other in found})


def _primary_keys(inspection: Inspection) -> Iterator[Finding]:
    for table in inspection.present:
        columns = [column.name for column in table.primary_key.columns]
        if not inspection.has_key(table) and inspection.has(table, *columns):
            problem = f"the primary key of {table.name} is not ({', '.join(columns)})"
            repair = inspection.key_to_add(table)
            if not repair:
                problem += f"; {inspection.key_problem(table)}"
            yield Finding("error", "indexes", problem, repair)


def _columns(inspection: Inspection) -> Iterator[Finding]:
    for table in inspection.present:
        for column in table.c:
            name, actual = f"{table.name}.{column.name}", inspection.columns[table.name]
            if column.name not in actual:
                advice = _missing_column(inspection, column)
                yield Finding("error", "columns", f"column {name} is missing; {advice}")
                continue
            found = actual[column.name]
            if inspection.lacks_default(column, found):
                # A number that the database gives must be a key already.
                is_possible = column.server_default is not None or inspection.has_key(table)
                is_possible = is_possible and inspection.is_readable(table, [column.name])
                repair = inspection.set_default(column) if is_possible else ()
                yield inspection.finding("columns", f"{name} has no default", repair)
            if found["nullable"] != column.nullable and table in inspection.own:
                problem = "may be NULL" if found["nullable"] else "must not be NULL"
                yield inspection.finding("columns", f"{name} {problem}")
            for problem in inspection.type_problems(column, found["type"]):
                is_short = column.name == "session_id" and inspection.keeps(column, found["type"])
                level: Level = "warning" if is_short else "error"
                repair = inspection.widen(column) if _may_widen(inspection, column) else ()
                yield inspection.finding("columns", f"{name} {problem}", repair, level)
            for problem in inspection.lost_characters(column):
                yield inspection.finding("columns", f"{name} {problem}")
            for problem in inspection.cautions(column):
                yield inspection.finding("columns", f"{name} {problem}", (), "warning")


def _may_widen(inspection: Inspection, column: Column[Any]) -> bool:
    """Whether a wider column does not hold ids that a table beside it has no room for.

    Such tables are refused.
    """
    if column is not inspection.expected.sessions.c.session_id:
        return True
    others = [each.c.session_id for each in inspection.present if "session_id" in each.c]
    return all(
        inspection.text_of(each).length >= inspection.needed(each) or inspection.widen(each)
        for each in others
    )


def _refill(inspection: Inspection) -> str:
    others = renamed_elements(inspection.connection, inspection.tables)
    if not others:
        return REFILLED
    # MySQL would not create it: the name of its foreign key is still in use.
    return f"if it was renamed to {' or '.join(others)}, rename that back; otherwise, {REFILLED}"


def _lacking(inspection: Inspection) -> Iterator[Finding]:
    """Tables of optional features that lack columns: damaged ones, or the application's own."""
    for table, columns in inspection.lacking.items():
        group = next(each for each in inspection.expected.groups if table in each.tables)
        existing = (each.name for each in group.tables if each.name in inspection.existing)
        listed = " and ".join(existing)
        if group.name in (ACTIVITY, WORDS):
            advice = (
                f"while nothing else writes, drop {listed} yourself, run what doctor then prints,"
                " and create each index again: `agent-sessions index create KEY --create-tables`"
            )
        else:
            specified = (inspection.sql(CreateColumn(table.c[name])) for name in columns)
            advice = f"restore from a backup what it lacks: {', '.join(specified)}"
        yield lacking_finding(table, columns, listed, advice)


def _missing_column(inspection: Inspection, column: Column[Any]) -> str:
    if column.server_default is None and inspection.is_filled(column.table):
        return "its values cannot be derived; restore them from a backup"
    specification = inspection.sql(CreateColumn(column))
    return f"add it by a migration of your own, as {specification}"


def _unknown_columns(inspection: Inspection) -> Iterator[Finding]:
    """An added column does no harm, unless it requires a value that nobody supplies."""
    for table in inspection.present:
        for name, actual in inspection.columns[table.name].items():
            given = any(actual.get(each) for each in ("default", "computed", "identity"))
            given = given or actual.get("autoincrement") is True
            if name not in table.c and not actual["nullable"] and not given:
                yield Finding(
                    "error",
                    "columns",
                    f"column {table.name}.{name} requires a value, and nothing supplies one; give"
                    " the column a default or let it be NULL",
                )


def _ids(inspection: Inspection) -> Iterator[Finding]:
    """Ids and keys tell different texts apart, and children's are as their parents'."""
    parent_id = inspection.expected.sessions.c.session_id
    is_known = inspection.has(parent_id.table, parent_id.name)
    same_ids = set(inspection.not_distinguished(parent_id)) if is_known else set()
    for table in reversed(inspection.present):
        for column in id_columns(inspection, table):
            problems = inspection.text_problems(column)
            if problems:
                # All tables may follow the sessions.
                follows = same_ids.issuperset(inspection.not_distinguished(column))
                is_id = column.name == "session_id"
                level: Level = "warning" if is_id and follows else "error"
                problem = f"{table.name}.{column.name} {' and '.join(problems)}"
                yield inspection.finding("collations", problem, (), level)
            for parent in (each.column for each in column.foreign_keys):
                if inspection.has(parent.table, parent.name):
                    difference = inspection.differs(column, parent)
                    if difference is not None:
                        repair = inspection.widen(column)
                        yield inspection.finding("columns", difference, repair)


def _times(inspection: Inspection) -> Iterator[Finding]:
    for table in inspection.core[:3]:
        for column in ("created_at", "updated_at"):
            condition = inspection.not_a_time(column)
            if condition is None or column not in table.c:
                continue
            if not inspection.is_readable(table, [column, "session_id"]):
                continue
            query = (
                "SELECT session_id, count(*) OVER () FROM"  # noqa: S608  # names
                f" {inspection.name_of(table)} WHERE {condition} LIMIT 3"
            )
            found = inspection.rows(query)
            if not found:
                continue
            count = found[0][1]
            values = "1 value" if count == 1 else f"{count} values"
            of = ", ".join(dict.fromkeys(quoted(row[0]) for row in found))
            more = " and others" if count > len(found) else ""
            yield Finding(
                "error",
                "times",
                f"{values} of {table.name}.{column} not {inspection.times}, of session {of}{more};"
                " correct them by SQL, or delete the sessions",
            )


def _rules(inspection: Inspection) -> Iterator[Finding]:
    for table in inspection.present:
        if rules := inspection.rules(table):
            yield Finding(
                "error",
                "rules",
                f"{table.name} has the rule {', '.join(rules)}: the database refuses or changes"
                " what this package writes; drop it, and use a trigger instead",
            )


def _indexes(inspection: Inspection) -> Iterator[Finding]:
    for table in inspection.present:
        for index in lacking_indexes(inspection, table):
            columns = ", ".join(column.name for column in index.columns)
            problem = f"{table.name} has no index on ({columns})"
            yield Finding("error", "indexes", problem, inspection.create_index(index))


def lacking_indexes(inspection: Inspection, table: Table) -> Iterator[Index]:
    """The indexes that a table should have; those of unique constraints are among them."""
    usable = [each["column_names"] for each in inspection.usable_indexes(table)]
    unique = [each for each in table.constraints if isinstance(each, UniqueConstraint)]
    every: list[Index | UniqueConstraint] = [*table.indexes, *unique]
    for each in sorted(every, key=lambda each: str(each.name)):
        columns = each.columns.keys()
        if inspection.has(table, *columns) and columns not in [x[: len(columns)] for x in usable]:
            if isinstance(each, UniqueConstraint):
                # Its columns include the primary key, so the index alone keeps the promise.
                copy = table.to_metadata(MetaData())
                yield Index(str(each.name), *(copy.c[name] for name in columns))
            else:
                yield each


def _triggers(inspection: Inspection) -> Iterator[Finding]:
    if not inspection.ways.uses_triggers:
        return
    for trigger in (each for group in inspection.groups for each in group.triggers):
        create: Statements = (inspection.sql(trigger),)
        problem = trigger_problem(inspection, trigger.name, create)
        others = [each for each in inspection.renamed_triggers if each.own == trigger.name]
        if problem is None and not others:
            continue
        drops = tuple(_drop_renamed(inspection, each) for each in others)
        if problem is None:
            problem = f"{_listed(others)} does the same as trigger {trigger.name}; {_RENAMED}"
            yield Finding("error", "triggers", problem, drops)
            continue
        if lacking := _lacking_table(inspection, trigger):
            problem += f"; doctor prints it once {lacking} exists"
            yield Finding("error", "triggers", problem)
            continue
        if not inspection.has_key(trigger.table):
            # Deleting one of two rows with equal keys would delete what belongs to the other.
            problem += f"; doctor prints it once {trigger.table.name} has its primary key"
            yield Finding("error", "triggers", problem)
            continue
        level: Level = "error"
        if trigger.name in inspection.triggers:
            earlier = (inspection.sql(trigger.earlier()),)
            if trigger_problem(inspection, trigger.name, earlier) is None:
                level = "warning"
                when = {
                    "INSERT": "if a backup restores a session after them",
                    "UPDATE": "if the id of a session changes",
                }[trigger.event]
                problem = (
                    f"trigger {trigger.name} is that of an earlier version: rows of"
                    f" {trigger.emptied.name} are lost {when}"
                )
            create = (inspection.sql(DropTrigger(trigger)), *create)
        elif others:
            # It does what the one that is dropped did: nothing more is deleted than before.
            problem += f", and {_listed(others)} is in its place; {_RENAMED}"
            create = (*drops, *create)
        elif destroys(inspection.connection, trigger):
            problem += (
                f"; doctor prints it once every row of {trigger.emptied.name} has its session row,"
                " because it would delete the others when their sessions are restored"
            )
            yield Finding("error", "triggers", problem)
            continue
        yield Finding(level, "triggers", problem, create)


def _drop_renamed(inspection: Inspection, trigger: RenamedTrigger) -> str:
    """Drop a trigger, but not those of other tables that run the same function."""
    schema = inspection.ways.schema_of(inspection.connection, trigger.table)
    name, table = inspection.quote(trigger.name), inspection.name_of(trigger.table)
    return inspection.ways.triggers.drop_from(schema, name, table)


def _listed(triggers: Sequence[RenamedTrigger]) -> str:
    return ", ".join(f"{each.name} on {each.table.name}" for each in triggers)


def _renamed_triggers(inspection: Inspection) -> Iterator[Finding]:
    """Triggers that maintain the index of tables under the names that these had before."""
    ending = {trigger.name for trigger in inspection.tables.triggers}
    found = [each for each in inspection.renamed_triggers if each.own not in ending]
    if found:
        problem = f"triggers write to an index under other names: {_listed(found)}; {_RENAMED}"
        repair = tuple(_drop_renamed(inspection, each) for each in found)
        yield Finding("error", "triggers", problem, repair)


def _left_triggers(inspection: Inspection) -> Iterator[Finding]:
    """Triggers that write to tables of an optional feature, none of which is there."""
    for group in inspection.expected.groups:
        every = {trigger.name: DropTrigger(trigger) for trigger in group.triggers}
        drops: dict[str, Any] = {**every, **{drop.name: drop for drop in group.cleanup}}
        left = [name for name in drops if name in inspection.triggers]
        if left and group.name not in [each.name for each in inspection.groups]:
            tables = " and ".join(table.name for table in group.tables)
            problem = (
                f"triggers write to {tables}, which no longer exist, so that writing sessions or"
                f" messages fails: {', '.join(left)}"
            )
            repair = tuple(inspection.sql(drops[name]) for name in left)
            yield Finding("error", "triggers", problem, repair)


def _lacking_table(inspection: Inspection, trigger: CreateTrigger) -> str | None:
    """A table of a trigger that is missing, also after the statements printed before it.

    A trigger that refers to a missing table would make every delete fail.
    """

    def is_lacking(table: Table) -> bool:
        # The table of elements is not printed if lists have to be put into it.
        return (
            table is inspection.expected.elements
            and table.name not in inspection.existing
            and Contents(inspection).has_lists(inspection.connection)
        )

    return next((table.name for table in trigger.tables if is_lacking(table)), None)


def _clock(inspection: Inspection) -> Iterator[Finding]:
    if not inspection.clock_query:
        return
    before = now()
    server = float(inspection.scalar(inspection.clock_query))
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


def _installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package

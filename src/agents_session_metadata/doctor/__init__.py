"""Checks a live database: what is wrong, and the SQL that repairs it.

Nothing is changed. Statements are given in an order in which they can be run: what is missing is
made first, and rows without an owner go before the foreign keys that forbid them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sqlalchemy import Column, Connection, ForeignKeyConstraint
from sqlalchemy.exc import NotSupportedError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import CreateIndex, DropIndex

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.storage.tables import TableNames, table_names

from .databases import patient_of
from .findings import Finding
from .inspection import Patient

__all__ = ["Finding", "diagnose"]

REMADE = (
    "create_tables=True, or agent-sessions count --create-tables, then makes the table and fills it"
)
"""How a table of elements comes back: its rows follow from the lists, but not by SQL."""

CLOCK_TOLERANCE = 5.0
"""Seconds by which clocks may differ before it is worth a word."""

now: Callable[[], float] = time.time


async def diagnose(engine: AsyncEngine, names: TableNames | None = None) -> list[Finding]:
    """Examine the tables of one name in an engine's database.

    Args:
        engine: The engine; a schema translation is followed.
        names: The names of the tables; the usual ones by default.

    Returns:
        What was found; the versions in use come first, as information. A healthy database gives
        nothing else.

    Raises:
        UnsupportedDialectError: If the engine is for another database.
    """
    dialect_of(engine.dialect)
    try:
        return await _examined(engine, names or table_names())
    except NotSupportedError:
        # asyncpg had prepared a statement before the tables were repaired, and has dropped it now.
        return await _examined(engine, names or table_names())


async def _examined(engine: AsyncEngine, names: TableNames) -> list[Finding]:
    async with engine.connect() as connection:
        return await connection.run_sync(_examine, names)


def _examine(connection: Connection, names: TableNames) -> list[Finding]:
    patient = patient_of(connection, names)
    found: list[Finding] = []
    checks: tuple[Callable[[Patient], Iterator[Finding]], ...] = (
        _versions,
        # A foreign key of a table that is made refers to tables that may have one.
        lambda patient: patient.check_storage(),
        _tables,
        _columns,
        _unknown_columns,
        _ids,
        _primary_keys,
        _orphans,
        _foreign_keys,
        _indexes,
        lambda patient: patient.check_triggers(),
        _elements,
        lambda patient: patient.check_zone(),
        _clock,
    )
    for check in checks:
        for finding in check(patient):
            if finding.repair and any(finding.repair == other.repair for other in found):
                found.append(finding.repaired_above())
            else:
                found.append(finding)
    return found


def _versions(patient: Patient) -> Iterator[Finding]:
    driver = patient.connection.dialect.driver.removesuffix("_async")
    packages = (driver, "SQLAlchemy", "openai-agents", "agents-session-metadata")
    parts = [patient.product, *map(_installed, packages)]
    yield Finding("info", "versions", ", ".join(parts))
    yield from patient.check_version()


def _tables(patient: Patient) -> Iterator[Finding]:
    for table in patient.expected.tables:
        if table.name not in patient.existing:
            if table is patient.expected.elements and patient.has_elements():
                problem = f"table {table.name} is missing, and there are lists; {REMADE}"
                yield Finding("error", "tables", problem)
                continue
            yield Finding(
                "error",
                "tables",
                f"table {table.name} is missing",
                tuple(patient.creation_of(table)),
            )


def _columns(patient: Patient) -> Iterator[Finding]:
    for table in patient.present:
        actual = patient.columns[table.name]
        for column in table.c:
            if column.name not in actual:
                problem = f"column {table.name}.{column.name} is missing"
                repair = tuple(patient.add_column(column))
                if not repair and table is patient.expected.elements:
                    problem, repair = f"{problem}; {REMADE}", tuple(patient.drop_elements())
                yield Finding("error", "columns", problem, repair)
                continue
            if patient.lacks_default(column, actual[column.name]):
                yield Finding(
                    "error",
                    "columns",
                    f"{table.name}.{column.name} has no default",
                    tuple(patient.give_default(column)),
                )
            for problem in patient.column_problems(column, actual[column.name]):
                yield Finding(
                    "error",
                    "columns",
                    f"{table.name}.{column.name} {problem}",
                    tuple(patient.change_columns([column])),
                )


def _unknown_columns(patient: Patient) -> Iterator[Finding]:
    """Columns that somebody added are no harm, unless they want values that nobody gives them."""
    for table in patient.present:
        for name, actual in patient.columns[table.name].items():
            given = any(actual.get(each) for each in ("default", "computed", "identity"))
            if name not in table.c and not actual["nullable"] and not given:
                yield Finding(
                    "error",
                    "columns",
                    f"nobody gives column {table.name}.{name} a value, and it must have one; let it"
                    " have a default, or be NULL",
                )


def _ids(patient: Patient) -> Iterator[Finding]:
    """Ids and keys distinguish what differs, and children's ids are as their parents'."""
    ours = (patient.expected.metadata, patient.expected.elements)
    for table in ours:
        if patient.has(table, "key"):
            problems = patient.text_problems(table.c.key)
            if problems:
                yield Finding(
                    "error",
                    "collations",
                    f"{table.name}.key {' and '.join(problems)}",
                    tuple(patient.change_columns([table.c.key])),
                )
    difference = _difference(patient, *(table.c.key for table in reversed(ours)))
    if difference:
        repair = tuple(patient.change_columns([table.c.key for table in ours]))
        yield Finding("error", "columns", difference, repair)
    ids = [table.c.session_id for table in patient.present if patient.has(table, "session_id")]
    parent = patient.expected.sessions.c.session_id
    problems_of = {each: patient.text_problems(each) for each in ids}
    differences = {each: _difference(patient, each, parent) for each in ids}
    changed = [each for each, difference in differences.items() if difference]
    if any(problems_of.values()):
        changed = patient.id_columns()
    repair = tuple(patient.change_columns(changed))
    for each in ids:
        if problems_of[each]:
            problem = f"{each.table.name}.session_id {' and '.join(problems_of[each])}"
            yield Finding("warning", "collations", problem, repair)
        difference = differences[each]
        if difference:
            yield Finding("error", "columns", difference, repair)


def _difference(patient: Patient, child: Column[Any], parent: Column[Any]) -> str | None:
    if child is parent or not all(patient.has(each.table, each.name) for each in (child, parent)):
        return None
    return patient.differs(child, parent)


def _primary_keys(patient: Patient) -> Iterator[Finding]:
    for table in patient.present:
        key = [column.name for column in table.primary_key.columns]
        actual = patient.inspector.get_pk_constraint(table.name, schema=patient.schema)
        if actual["constrained_columns"] != key and all(patient.has(table, each) for each in key):
            yield Finding(
                "error",
                "indexes",
                f"the primary key of {table.name} is not {_listed(key)}",
                tuple(patient.change_primary_key(table, actual)),
            )


def _orphans(patient: Patient) -> Iterator[Finding]:
    deletions: list[str] = []
    found: list[tuple[ForeignKeyConstraint, int]] = []
    for constraint in _links(patient):
        condition = patient.orphan_condition(constraint)
        if condition is None:
            continue
        orphans = f"FROM {patient.name_of(constraint.table)} WHERE {condition}"
        count = patient.scalar(f"SELECT count(*) {orphans}")
        if count:
            found.append((constraint, count))
        if found:
            # Rows that go may leave others behind, where nothing deletes those with them.
            deletions.append(f"DELETE {orphans}")
    for constraint, count in found:
        child, parent = constraint.table.name, constraint.referred_table.name
        have = "row of {} has" if count == 1 else "rows of {} have"
        problem = f"{count} {have.format(child)} no row in {parent}"
        yield Finding("error", "orphans", problem, tuple(deletions))


def _foreign_keys(patient: Patient) -> Iterator[Finding]:
    for constraint in _links(patient):
        child, parent = constraint.table, constraint.referred_table
        columns = list(constraint.column_keys)
        if child.name not in patient.existing or not all(
            patient.has(child, column) for column in columns
        ):
            continue
        to_parent = [
            key
            for key in patient.foreign_keys[child.name]
            if key["constrained_columns"] == columns and key["referred_table"] == parent.name
        ]
        cascading = [
            key
            for key in to_parent
            if (key.get("options", {}).get("ondelete") or "").upper() == "CASCADE"
        ]
        failures = [patient.foreign_key_problem(child, key) for key in cascading]
        if None in failures:
            continue
        problem = "does not delete with its parent" if to_parent else "is missing"
        problem = failures[0] if failures and failures[0] else problem
        wrong = [
            key
            for key in patient.foreign_keys[child.name]
            if key in to_parent or key["name"] == constraint.name
        ]
        is_ours = child in (patient.expected.metadata, patient.expected.elements)
        yield Finding(
            "error" if is_ours else "warning",
            "foreign keys",
            f"the foreign key of {child.name} to {parent.name} {problem}",
            tuple(patient.change_foreign_key(constraint, wrong)),
        )


def _indexes(patient: Patient) -> Iterator[Finding]:
    for table in patient.present:
        actual = patient.inspector.get_indexes(table.name, schema=patient.schema)
        usable = patient.usable_indexes(table, actual)
        for index in table.indexes:
            columns = [column.name for column in index.columns]
            if any(each["column_names"][: len(columns)] == columns for each in usable):
                continue
            if not all(patient.has(table, column) for column in columns):
                continue
            repair = [patient.sql(CreateIndex(index))]
            if any(each["name"] == index.name for each in actual):
                repair.insert(0, patient.sql(DropIndex(index)))
            yield Finding(
                "error",
                "indexes",
                f"{table.name} has no index on {_listed(columns)}",
                tuple(repair),
            )


def _elements(patient: Patient) -> Iterator[Finding]:
    """Each list's rows of elements are compared with the list itself."""
    wrong = patient.wrong_elements()
    if wrong:
        values = "1 value has" if wrong == 1 else f"{wrong} values have"
        yield Finding(
            "error",
            "elements",
            f"{values} other elements in {patient.expected.metadata.name} than in"
            f" {patient.expected.elements.name}, so $contains and count_values are wrong; {REMADE}",
            tuple(patient.drop_elements()),
        )


def _clock(patient: Patient) -> Iterator[Finding]:
    query = patient.clock_query
    if query is None:
        return
    before = now()
    server = float(patient.scalar(query))
    after = now()
    difference = server - (before + after) / 2
    if abs(difference) > CLOCK_TOLERANCE + (after - before) / 2:
        direction = "ahead of" if difference > 0 else "behind"
        yield Finding(
            "warning",
            "clock",
            f"the server's clock is {abs(difference):,.0f} s {direction} this machine's; ages and "
            "resume decisions are off by as much, so set both clocks by one time server",
        )


def _links(patient: Patient) -> list[ForeignKeyConstraint]:
    """The foreign keys that belong between the tables, parents first."""
    return [
        constraint
        for table in (
            patient.expected.messages,
            patient.expected.metadata,
            patient.expected.elements,
        )
        for constraint in sorted(table.foreign_key_constraints, key=str)
    ]


def _listed(names: list[str]) -> str:
    return f"({', '.join(names)})"


def _installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package

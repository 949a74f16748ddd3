"""Whether the tables are those that are meant, and whether their rows and ids can be read.

If not, everything else that would be found is unreliable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Column, Table

from agents_session_metadata.storage.belonging import (
    LINKED,
    copies,
    intended,
    renamed,
    written_tables,
)
from agents_session_metadata.storage.renames import BOTH, taken, trigger_tables

from .columns import kind_of
from .findings import Finding
from .groups import lacking_finding
from .inspection import Inspection

_ADVICE = (
    "these are probably not the names of tables that belong together, or the table was renamed,"
    " moved or replaced; check --sessions-table, --messages-table and --metadata-table, and"
    " give a table its name and schema back. doctor prints no statements for these names"
)
REFILLED = (
    "create_tables=True, or agent-sessions count --create-tables, creates the table and fills it"
)
"""How the table of elements is filled: its rows follow from the lists, but not by SQL."""


def check_reliable(inspection: Inspection) -> list[Finding]:
    """What keeps the other checks from being reliable; the first kind of it."""
    checks = _restricted, _misspelled, _views, _names, _in_use, _elements, _inherited, _not_text
    for check in checks:
        if found := [*check(inspection)]:
            return found
    return []


def _restricted(inspection: Inspection) -> Iterator[Finding]:
    """Tables of which the user may see only some rows: the others would be taken for missing."""
    for table in inspection.ways.restricted(inspection.connection, inspection.present):
        yield Finding(
            "error",
            "policies",
            f"row-level security restricts this role on {table.name}, so doctor cannot tell hidden"
            " rows from missing ones; run it as a role that no policy restricts, such as the owner"
            " of the tables, or one with BYPASSRLS",
        )


def _misspelled(inspection: Inspection) -> Iterator[Finding]:
    """Names in another case, by which some databases find a table all the same."""
    if inspection.misspelled:
        listed = ", ".join(f"{name} as {other}" for name, other in inspection.misspelled.items())
        yield Finding(
            "error",
            "names",
            f"the database stores {listed}; give --sessions-table, --messages-table and"
            " --metadata-table as the names are stored",
        )


def _views(inspection: Inspection) -> Iterator[Finding]:
    """Views with the name of one of our tables: their rows belong to other tables."""
    views = inspection.inspector.get_view_names(schema=inspection.schema)
    for table in inspection.present:
        if table.name in views:
            yield Finding("error", "names", f"{table.name} is a view: {_ADVICE}")


def _names(inspection: Inspection) -> Iterator[Finding]:
    """Signs that the tables do not belong together: a typo, or a table that was renamed."""
    sessions, messages, metadata, elements = inspection.core
    identity = {
        sessions: sessions.c.keys(),
        messages: messages.c.keys(),
        metadata: ("session_id", "key", "created_at"),
    }
    for table, columns in identity.items():
        lacking = [name for name in columns if not inspection.has(table, name)]
        if lacking and table in inspection.present:
            problem = f"{table.name} has no column {' and no '.join(lacking)}"
            yield Finding("error", "names", f"{problem}: {_ADVICE}")
    for constraint in inspection.links:
        child, parent = constraint.table, constraint.referred_table
        every = inspection.foreign_keys.get(child.name, ())
        keys = [key for key in every if "session_id" in key["constrained_columns"]]
        if not any(inspection.leads_to(key, parent) for key in keys):
            for key in keys:
                elsewhere = f"leads to {key['referred_table']}, not to {parent.name}"
                problem = f"the foreign key of {child.name} {elsewhere}"
                yield Finding("error", "names", f"{problem}: {_ADVICE}")
    connection, tables = inspection.connection, inspection.tables
    for table in written_tables(tables):
        is_there = table.name in inspection.existing
        lost = None if is_there else renamed(connection, tables, table)
        if lost is not None:
            more = intended(tables, table)
            problem = f"{lost}: {_ADVICE}" + (f"; {more}" if more else "")
            yield Finding("error", "names", problem)
    for _, problem in copies(connection, tables):
        yield Finding("error", "names", f"{problem}: {_ADVICE}; {LINKED}")
    for parent, children in ((sessions, (messages, metadata)), (metadata, (elements,))):
        if not inspection.is_filled(parent):
            state = "is empty" if parent.name in inspection.existing else "is missing"
            for child in filter(inspection.is_filled, children):
                problem = f"{parent.name} {state}, and {child.name} has rows"
                yield Finding("error", "names", f"{problem}: {_ADVICE}")


def _in_use(inspection: Inspection) -> Iterator[Finding]:
    """Names of triggers that other tables have, which probably had the names of these."""
    connection, tables = inspection.connection, inspection.tables
    in_use: dict[tuple[str, str], list[str]] = {}
    for name, own, other in taken(connection, tables, trigger_tables(tables)):
        in_use.setdefault((own, other), []).append(name)
    for (own, other), names in in_use.items():
        problem = f"triggers of {own} are on {other}, where they may be in use: {', '.join(names)}"
        yield Finding("error", "names", f"{problem}: {_ADVICE}; {BOTH}")


def _elements(inspection: Inspection) -> Iterator[Finding]:
    """A table of list elements that lacks columns: it is damaged, or the application's own."""
    table = inspection.expected.elements
    columns = [column.name for column in table.c if not inspection.has(table, column.name)]
    if columns and table in inspection.present:
        advice = (
            "all its rows follow from the metadata: while nothing else writes, drop it yourself,"
            f" and then {REFILLED}"
        )
        yield lacking_finding(table, columns, "anything else", advice)


def _inherited(inspection: Inspection) -> Iterator[Finding]:
    """Tables that share their rows with one of ours."""
    for table in inspection.present:
        for heir in inspection.heirs(table):
            yield Finding(
                "error",
                "inheritance",
                f"{heir} inherits from {table.name}: its rows count as rows of {table.name}, but no"
                " key, foreign key or trigger applies to them, so that indexes and searches miss"
                " them; use partitions, or move the rows to a table of their own. doctor checks"
                " the rest once no table inherits",
            )


def _not_text(inspection: Inspection) -> Iterator[Finding]:
    """Ids and keys that cannot be compared with texts. Rows that are derived follow from others."""
    for table in inspection.present:
        for column in () if table in inspection.derived else id_columns(inspection, table):
            condition = inspection.not_a_text(column)
            count = 0 if condition is None else inspection.count(table, condition)
            if count:
                values = "1 value of {} is" if count == 1 else f"{count} values of {{}} are"
                first = inspection.before_changing_ids() if column.name == "session_id" else ""
                yield Finding(
                    "error",
                    "ids",
                    f"{values.format(f'{table.name}.{column.name}')} not text, as every id and"
                    " key must be; change each to the right text by SQL, the same in all tables,"
                    f" or delete these rows. doctor checks the rest once all are text{first}",
                )


def id_columns(inspection: Inspection, table: Table) -> Iterator[Column[Any]]:
    """The columns of a table that exist and hold ids or keys that are texts."""
    for column in table.c:
        is_key = column.primary_key or bool(column.foreign_keys)
        is_text = kind_of(inspection.type_of(column)) is str
        if is_key and is_text and inspection.has(table, column.name):
            yield column

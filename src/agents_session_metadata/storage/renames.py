"""What a rename of tables leaves behind: triggers, indexes and foreign keys with their old names.

The triggers of a table stay on it. On SQLite they go on working, because it renames the tables in
them as well. Elsewhere they still write to the old names. A second trigger that does the same would
delete what the first has just moved. A name in use keeps a trigger from being created, on SQLite
without an error.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, MetaData, Table

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects._triggers import as_typed
from agents_session_metadata.errors import TablesMismatchError

from .activity import ACTIVITY
from .activity_check import activity_triggers
from .definitions import derived_name
from .groups import GROUPS
from .tables import SessionTables

BOTH = (
    "only if the tables of both names are intended, run the statements of `agent-sessions doctor`, "
    "first for the other names, then for these"
)
"""What to do about names in use, if these are not those of the same tables."""
_REPLACE = "if the names are right, run the statements of `agent-sessions doctor`"

_NAME = r'(?:"(?:[^"]|"")+"|`(?:[^`]|``)+`|[^\s"`.,;()=]+)'
_WORKED_ON = re.compile(
    rf"(\b(?:FROM|INTO|UPDATE)\s+|,\s+(?={_NAME}\s+i\b))(?:{_NAME}\.)?({_NAME})", re.IGNORECASE
)
"""The tables of statements; `i` stands for the table of indexes."""
_BODY = re.compile(r"\bBEGIN\b(.*)\bEND\b", re.DOTALL | re.IGNORECASE)
_KEYS = re.compile(r"\S+ IN \((?:[^()']|'(?:[^']|'')*')*\)|\bFALSE\b")
"""The condition that a key is indexed, if the text of a trigger contains the keys."""


class RenamedTrigger(NamedTuple):
    """A trigger that this package created while the tables had other names.

    Attributes:
        table: The table that it is on.
        name: Its name.
        own: The name of the trigger that takes its place.
    """

    table: Table
    name: str
    own: str


class _Body(NamedTuple):
    """What a trigger runs: the tables, and the rest of its text."""

    tables: tuple[str, ...]
    rest: str


_Other: TypeAlias = "tuple[Table, str, _Body]"
"""A trigger with the table that it is on, its name, and what it runs."""


def taken(
    connection: Connection, tables: SessionTables, names: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Names that are in use for another table.

    Args:
        connection: The connection.
        tables: The tables.
        names: Names of triggers, indexes and constraints, each with its table.

    Returns:
        The name, its table, and the other table, of each.
    """
    every = dialect_of(connection.dialect).taken_names(connection, tables.sessions)
    found = ((name, names[name], other) for name, other in every if name in names)
    return sorted(each for each in found if each[1].lower() != each[2].lower())


def trigger_tables(tables: SessionTables) -> dict[str, str]:
    """The names of all triggers, each with its table."""
    return {
        each.name: each.table.name
        for group in tables.groups
        for each in (*group.triggers, *group.cleanup)
    }


def names_of(table: Table) -> Iterator[str]:
    """The names of the indexes and constraints of a table."""
    every: tuple[Any, ...] = (*table.indexes, *table.constraints)
    yield from (each.name for each in every if each.name is not None)


def check_names(
    connection: Connection, tables: SessionTables, group: str, missing: Collection[str]
) -> None:
    """Refuse to create a group if its tables seem to exist under other names, with other rows.

    Args:
        connection: The connection.
        tables: The tables.
        group: The name of the group.
        missing: The names of the tables and triggers that the database lacks.

    Raises:
        TablesMismatchError: If a trigger cannot be created, or if the sessions table is missing and
            an index or foreign key of the group is that of another table.
    """
    if tables.sessions.name in missing:
        names = {
            name: table.name
            for table in tables.group(group).tables
            if table.name in missing
            for name in names_of(table)
        }
        _refuse(connection, tables, names)
    check_triggers(connection, tables, missing)


def check_triggers(connection: Connection, tables: SessionTables, missing: Collection[str]) -> None:
    """Refuse to create triggers if others have their names, or do the same.

    Args:
        connection: The connection.
        tables: The tables.
        missing: The names of the triggers that are missing; others do not count.

    Raises:
        TablesMismatchError: If there are such triggers.
    """
    every = trigger_tables(tables)
    names = {name: every[name] for name in missing if name in every}
    if not names:
        return
    _refuse(connection, tables, names)
    for each in renamed_triggers(connection, tables):
        if each.own in names:
            problem = f"{each.table.name} has the trigger {each.name}, not {each.own}"
            raise TablesMismatchError(each.table.name, problem, _REPLACE)


def _refuse(connection: Connection, tables: SessionTables, names: Mapping[str, str]) -> None:
    for name, own, other in taken(connection, tables, names):
        problem = f"the name {name} is in use on {other}, not on {own}"
        raise TablesMismatchError(own, problem, BOTH)


def renamed_triggers(connection: Connection, tables: SessionTables) -> list[RenamedTrigger]:
    """The triggers on the core tables that this package created for other names.

    None is one of another metadata table beside the same sessions, and none is an application's:
    their names end as those of this package do, and they run the same statements on its tables.
    """
    own = trigger_tables(tables)
    existing = dialect_of(connection.dialect).existing_triggers
    others = [
        (table, name, body)
        for table in tables.tables
        for name, text in existing(connection, table).items()
        if name not in own and (body := _body(text)) is not None
    ]
    if not others:
        return []
    found = _ending(connection, tables, others)
    for group in (ACTIVITY,):
        found += _maintaining(connection, tables, group, others)
    return found


def _ending(
    connection: Connection, tables: SessionTables, others: Iterable[_Other]
) -> list[RenamedTrigger]:
    """Those that let rows of the tables end with their session."""
    found = []
    for trigger in tables.triggers if dialect_of(connection.dialect).uses_triggers else ():
        forms = (trigger, trigger.earlier())
        texts = [str(each.compile(dialect=connection.dialect)) for each in forms]
        # Those of another metadata table begin with that one.
        wanted = {(own.tables[0], own.rest) for own in map(_body, texts) if own is not None}
        suffix = f"_after_{trigger.event.lower()}"
        found += [
            RenamedTrigger(table, name, trigger.name)
            for table, name, body in others
            if table is trigger.table
            and name.endswith(suffix)
            and (*body.tables[:1], body.rest) in wanted
        ]
    return found


def _maintaining(
    connection: Connection, tables: SessionTables, name: str, others: Iterable[_Other]
) -> list[RenamedTrigger]:
    """Those that maintain an index."""
    group, sql = tables.group(name), dialect_of(connection.dialect).triggers
    suffixes = next(each.suffixes for each in GROUPS if each.name == name)
    ends = {table.name: end for table, end in zip(group.tables, suffixes, strict=True)}
    triggers = activity_triggers(connection, tables, ())
    created = as_typed(connection, (sql.create(each)[0] for each in triggers))
    bodies = {each.plain: _body(text) for each, text in zip(triggers, created, strict=True)}
    found = [
        (RenamedTrigger(table, name, drop.name), drop.suffix)
        for drop in group.cleanup
        if (own := bodies.get(drop.name))
        for table, name, body in others
        if table is drop.table
        and name.endswith(drop.suffix)
        and own.rest == body.rest
        and all(a.endswith(ends.get(b, "")) for a, b in zip(body.tables, own.tables, strict=False))
    ]
    if not found:
        return []
    beside = _beside(connection, tables, group.cleanup[0].filled)
    return [
        each
        for each, suffix in found
        if each.name not in {derived_name(filled, suffix) for filled in beside}
    ]


def _beside(connection: Connection, tables: SessionTables, table: Table) -> set[str]:
    """Tables like one of an index that belong to other metadata tables of the same sessions."""
    dialect, sessions = dialect_of(connection.dialect), tables.sessions
    alike = {*dialect.tables_with(connection, sessions, table.c.keys())}
    others = [Table(each, MetaData(), schema=table.schema) for each in sorted(alike)]
    links = dialect.session_links(connection, sessions, others) if others else []
    elsewhere = {each.child for each in links if not each.is_right}
    referring = dialect.referring_columns(connection, sessions)
    return (alike - elsewhere) | {each for schema, each, _ in referring if schema is None}


def _body(text: str) -> _Body | None:
    """What the text of a trigger or its function runs; None for another kind of text."""
    body = _BODY.search(text)
    if body is None:
        return None
    names: list[str] = []

    def named(found: re.Match[str]) -> str:
        name = found[2]
        quote = name[0] if name[0] in '"`' else ""
        names.append(name.strip(quote).replace(quote * 2, quote) if quote else name)
        return f"{found[1]}?"

    rest = _WORKED_ON.sub(named, _KEYS.sub("KEYS", body[1]))
    return _Body(tuple(names), re.sub(r"[\s\"`]", "", rest).upper())

"""The triggers that maintain the activity index, for every writer.

An entry that exists is always right: whatever changes a session or a value changes or deletes its
entries, indexed or not. What is missing is told by the state of the index alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, DDLElement, Table, literal_column
from sqlalchemy.ext.compiler import compiles

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects._triggers import RowTrigger

from .definitions import derived_name, name_beside

if TYPE_CHECKING:
    from .tables import SessionTables

_NAMES = (
    (0, "_session_insert"),
    (0, "_session_time"),
    (0, "_session_leave"),
    (0, "_session_enter"),
    (0, "_session_delete"),
    (0, "_session_long"),
    (0, "_session_longer"),
    (2, "_value_insert"),
    (2, "_value_update"),
    (2, "_value_delete"),
    (2, "_value_truncate"),
    (2, "_value_long"),
    (2, "_value_longer"),
    (3, "_element_insert"),
    (3, "_element_update"),
    (3, "_element_delete"),
    (3, "_element_truncate"),
)
"""The ends of the names of all triggers on any database, and their tables among the core tables."""


def cleanup(core: Sequence[Table], entries: Table) -> tuple[DropMaintenance, ...]:
    """Drops all triggers that some database has."""
    return tuple(DropMaintenance(core[place], entries, suffix) for place, suffix in _NAMES)


class DropMaintenance(DDLElement):
    """Drops a trigger that maintains an index, if it exists.

    Args:
        table: The table that it is on.
        filled: The table of the index after which it is named.
        suffix: The end of its name.
    """

    def __init__(self, table: Table, filled: Table, suffix: str) -> None:
        self.table = table
        self.filled = filled
        self.suffix = suffix
        self.name: str = derived_name(filled.name, suffix)


@compiles(DropMaintenance)
def _drop_maintenance(drop: DropMaintenance, compiler: Any, **_: Any) -> str:
    sql = dialect_of(compiler.dialect).triggers
    name = compiler.preparer.quote(drop.name)
    schema = name_beside(drop.table, drop.name, compiler).removesuffix(name)
    return sql.drop(schema, name, name_beside(drop.table, drop.table.name, compiler))


@dataclass(frozen=True)
class Target:
    """The tables of an index as SQL spells them, with their schema.

    Attributes:
        schema: The schema with its point, or nothing where the tables are found without.
        core: The core tables.
        indexes: The table of indexes.
        entries: The table of entries.
    """

    schema: str
    core: tuple[Table, ...]
    indexes: Table
    entries: Table


def row_triggers(connection: Connection, target: Target, keys: Iterable[str]) -> list[RowTrigger]:
    """The triggers of a database, for an index of these keys."""
    sql, quote = dialect_of(connection.dialect).triggers, _quote(connection)
    qualified = target.schema if sql.enforces_foreign_keys else ""
    sessions, _, values, elements = (qualified + quote(table.name) for table in target.core)
    entries = qualified + quote(target.entries.name)
    indexes = qualified + quote(target.indexes.name)
    key = quote("key")
    primary_key, others = ("session_id", key, "position"), ("of_list", "search_key", "updated_at")
    columns = f"({', '.join((*primary_key, *others))})"
    all_keys = [_text(connection, each) for each in sorted(keys)]
    every_session = _text(connection, "$updated_at")

    def entry(row_key: str, values: str, time: str, source: str, own: str) -> str:
        """Inserts or replaces an entry, if the key is indexed and the id is not too long."""
        conditions = [own] if own else []
        sources = [source] if source else []
        lock = sql.locks_session if source else sql.locks_index
        if sql.inlines_keys:
            conditions.append(f"{row_key} IN ({', '.join(all_keys)})" if all_keys else "FALSE")
        else:
            sources.append(f"{indexes} i")
            conditions.append(f"i.{key} = {row_key} AND i.state < 2")
        if sql.bounded_ids:
            conditions.append(sql.fits("NEW.session_id"))
        origin = f" FROM {', '.join(sources)}" if sources else ""
        lock = lock if sources else ""
        return (
            f"INSERT INTO {entries} {columns}"  # names and quoted literals
            f" SELECT NEW.session_id, {row_key}, {values}, {sql.time(time)}{origin}"
            f" WHERE {' AND '.join(conditions)}{lock}{sql.replacing(primary_key, others)}"
        )

    def delete(condition: str) -> str:
        return f"DELETE FROM {entries} WHERE {condition}"  # noqa: S608  # names

    def lacking(row_key: str) -> str:
        return (
            f"UPDATE {indexes} SET lacks_ids = 1"  # noqa: S608  # names
            f" WHERE {key} = {row_key} AND lacks_ids = 0"
        )

    def own(row: str, position: str) -> str:
        return f"session_id = {row}.session_id AND {key} = {row}.{key} AND position = {position}"

    of_session = entry(every_session, f"-1, 0, {sql.empty_bytes}", "NEW.updated_at", "", "")
    same_id = "s.session_id = NEW.session_id"
    # An earlier session with this id may have left entries and values.
    again = [delete("session_id = NEW.session_id")]
    again += [
        entry(f"s.{key}", f"{position}, s.search_key", "NEW.updated_at", f"{table} s", same_id)
        for table, position in ((values, "-1, 0"), (elements, "s.position, 1"))
    ]
    new_session = [] if sql.locks_gaps else again
    new_session.append(of_session)
    read_time = "s.updated_at", f"{sessions} s", same_id
    of_value = entry(f"NEW.{key}", "-1, 0, NEW.search_key", *read_time)
    of_element = entry(f"NEW.{key}", "NEW.position, 1, NEW.search_key", *read_time)
    id_differs = sql.differ("OLD.session_id", "NEW.session_id")
    time_differs = sql.differ(sql.time("OLD.updated_at"), sql.time("NEW.updated_at"))
    key_differs = sql.differ(f"OLD.{key}", f"NEW.{key}")
    moved = f"{id_differs} OR {key_differs} OR {sql.differ('OLD.search_key', 'NEW.search_key')}"
    element_moved = f"{moved} OR {sql.differ('OLD.position', 'NEW.position')}"
    value, element = own("OLD", "-1"), own("OLD", "OLD.position")
    # A REPLACE on SQLite inserts without deleting.
    replaced = not sql.enforces_foreign_keys
    update_time = (
        f"UPDATE {entries} SET updated_at = {sql.time('NEW.updated_at')}"  # noqa: S608  # names
        " WHERE session_id = NEW.session_id"
    )
    always = ""
    triggers: list[RowTrigger] = []

    def on(table: str, event: str, condition: str, suffix: str, *statements: str) -> None:
        plain = derived_name(target.entries.name, suffix)
        triggers.append(
            RowTrigger(target.schema, plain, quote(plain), table, event, condition, statements)
        )

    on(sessions, "AFTER INSERT", always, "_session_insert", *new_session)
    on(sessions, "AFTER UPDATE", time_differs, "_session_time", update_time)
    # Before the foreign key of the entries is checked.
    leave = delete("session_id = OLD.session_id")
    on(sessions, "BEFORE UPDATE", id_differs, "_session_leave", leave)
    on(sessions, "AFTER UPDATE", id_differs, "_session_enter", *new_session)
    if replaced:
        on(sessions, "AFTER DELETE", always, "_session_delete", leave)
    first = [delete(own("NEW", "-1"))] if replaced else []
    on(values, "AFTER INSERT", always, "_value_insert", *first, of_value)
    on(values, "AFTER UPDATE", moved, "_value_update", delete(value), of_value)
    # The elements are gone as well, on some databases without firing a trigger.
    of_key = delete(f"session_id = OLD.session_id AND {key} = OLD.{key}")
    on(values, "AFTER DELETE", always, "_value_delete", of_key)
    first = [delete(own("NEW", "NEW.position"))] if replaced else []
    on(elements, "AFTER INSERT", always, "_element_insert", *first, of_element)
    on(elements, "AFTER UPDATE", element_moved, "_element_update", delete(element), of_element)
    on(elements, "AFTER DELETE", always, "_element_delete", delete(element))
    if sql.bounded_ids:
        long = sql.too_long("NEW.session_id")
        lacks, lacks_key = lacking(every_session), lacking(f"NEW.{key}")
        on(sessions, "AFTER INSERT", long, "_session_long", lacks)
        on(sessions, "AFTER UPDATE", f"({id_differs}) AND {long}", "_session_longer", lacks)
        on(values, "AFTER INSERT", long, "_value_long", lacks_key)
        on(values, "AFTER UPDATE", f"({moved}) AND {long}", "_value_longer", lacks_key)
    if sql.fires_on_truncate:
        every_key = delete(f"{key} <> {every_session}")
        on(values, "AFTER TRUNCATE", always, "_value_truncate", every_key)
        on(elements, "AFTER TRUNCATE", always, "_element_truncate", delete("of_list = 1"))
    return triggers


def _quote(connection: Connection) -> Any:
    return connection.dialect.identifier_preparer.quote


def _text(connection: Connection, text: str) -> str:
    """Text as SQL spells it."""
    spelled = dialect_of(connection.dialect).literal(text)
    # Doubles each % if the driver requires it.
    return str(literal_column(spelled).compile(dialect=connection.dialect))


def activity_triggers(
    connection: Connection, tables: SessionTables, keys: Iterable[str]
) -> list[RowTrigger]:
    """The triggers for an index of these keys."""
    indexes, entries = tables.group("activity").tables
    schema = dialect_of(connection.dialect).schema_of(connection, entries)
    return row_triggers(connection, Target(schema, tables.tables, indexes, entries), keys)

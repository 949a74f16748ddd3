"""The triggers that maintain the activity index, for every writer.

An existing entry is always correct: every change to a session or a value also changes or deletes
its entries, indexed or not. Only the state of the index says whether entries may be missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, DDLElement, Table, literal_column
from sqlalchemy.ext.compiler import compiles

from agents_session_metadata.core.definitions import derived_name, name_beside
from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects._triggers import RowTrigger, as_typed, has_body

if TYPE_CHECKING:
    from agents_session_metadata.core.tables import SessionTables

_NAMES = (
    (0, "_session_time"),
    (2, "_value_insert"),
    (2, "_value_update"),
    (2, "_value_delete"),
    (3, "_element_insert"),
    (3, "_element_update"),
    (3, "_element_delete"),
)
"""The ends of the names of all triggers on any database, and their tables among the core tables."""


def cleanup(core: Sequence[Table], entries: Table) -> tuple[DropMaintenance, ...]:
    """Includes the triggers of every supported database."""
    return tuple(DropMaintenance(core[place], entries, suffix) for place, suffix in _NAMES)


class DropMaintenance(DDLElement):
    """Drops a trigger if it exists. It is named after `filled`, the table of entries."""

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
    """`schema` ends with a dot; it is empty if the tables are found without a schema."""

    schema: str
    core: tuple[Table, ...]
    indexes: Table
    entries: Table


def row_triggers(connection: Connection, target: Target, keys: Iterable[str]) -> list[RowTrigger]:
    sql, quote = dialect_of(connection.dialect).triggers, _quote(connection)
    qualified = target.schema if sql.enforces_foreign_keys else ""
    sessions, _, values, elements = (qualified + quote(table.name) for table in target.core)
    entries = qualified + quote(target.entries.name)
    indexes = qualified + quote(target.indexes.name)
    key = quote("key")
    all_keys = [_text(connection, each) for each in sorted(keys)]

    def entry(position: str, of_list: int) -> str:
        """Inserts or replaces an entry, if the key is indexed."""
        if sql.inlines_keys:
            source = ""
            indexed = f"NEW.{key} IN ({', '.join(all_keys)})" if all_keys else "FALSE"
        else:
            source = f", {indexes} i"
            indexed = f"i.{key} = NEW.{key} AND i.state < 2"
        return sql.replace(
            entries,
            {"session_id": "NEW.session_id", key: f"NEW.{key}", "position": position},
            {
                "of_list": str(of_list),
                "search_key": "NEW.search_key",
                "updated_at": sql.time("s.updated_at"),
            },
            f"{sessions} s{source} WHERE s.session_id = NEW.session_id AND {indexed}",
        )

    def delete(condition: str) -> str:
        return f"DELETE FROM {entries} WHERE {condition}"  # noqa: S608  # names

    def own(row: str, position: str) -> str:
        return f"session_id = {row}.session_id AND {key} = {row}.{key} AND position = {position}"

    of_value, of_element = entry("-1", 0), entry("NEW.position", 1)
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

    on(sessions, "AFTER UPDATE", time_differs, "_session_time", update_time)
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
    return triggers


def _quote(connection: Connection) -> Any:
    return connection.dialect.identifier_preparer.quote


def _text(connection: Connection, text: str) -> str:
    spelled = dialect_of(connection.dialect).literal(text)
    # Doubles each % if the driver requires it.
    return str(literal_column(spelled).compile(dialect=connection.dialect))


def activity_triggers(
    connection: Connection, tables: SessionTables, keys: Iterable[str]
) -> list[RowTrigger]:
    indexes, entries = tables.group("activity").tables
    schema = dialect_of(connection.dialect).schema_of(connection, entries)
    return row_triggers(connection, Target(schema, tables.tables, indexes, entries), keys)


def lacking_triggers(
    connection: Connection, tables: SessionTables, triggers: Collection[RowTrigger]
) -> dict[RowTrigger, bool]:
    """Returns the triggers that are missing, with False, or have another body, with True."""
    dialect = dialect_of(connection.dialect)
    existing = dialect.existing_triggers(connection, *tables.tables)
    found = {each: existing.get(each.plain) for each in triggers}
    return {
        each: stored is not None
        for each, stored in found.items()
        if not has_body(as_typed(connection, dialect.triggers.create(each)), stored or "")
    }


def create_triggers(connection: Connection, lacking: dict[RowTrigger, bool]) -> None:
    """Creates triggers. Each is given with True if it replaces one of the same name."""
    dialect = dialect_of(connection.dialect)
    sql = dialect.triggers
    for each, exists in lacking.items():
        if exists:
            connection.exec_driver_sql(sql.drop_from(each.schema, each.name, each.table))
        for statement in sql.create(each):
            dialect.create_trigger(connection, statement)

"""The triggers that maintain the entries of keys, for every writer: seven for all keys together.

An existing entry is always correct: every change to a session or a value also changes or deletes
its entries, indexed or not. Only the state of the index says whether entries may be missing.

MySQL and MariaDB fire no trigger when a foreign key deletes a row. The entries of a session refer
to it by a foreign key of their own, and a deleted value takes the entries of its elements along.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Table, literal_column

from agents_session_metadata.core.definitions import DropTrigger, derived_name
from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects._dialect import RowTrigger

if TYPE_CHECKING:
    from agents_session_metadata.core.tables import SessionTables

_PRIMARY_KEY = ("session_id", "key", "position")
_OTHERS = ("of_list", "search_key", "updated_at")
ENTRY_COLUMNS = _PRIMARY_KEY + _OTHERS
_NAMES = (
    (0, "_session_time"),
    *((2, f"_value_{event}") for event in ("insert", "update", "delete")),
    *((3, f"_element_{event}") for event in ("insert", "update", "delete")),
)
"""The ends of the names of all triggers, and their tables among the core tables."""


def cleanup(core: Sequence[Table], entries: Table) -> tuple[DropTrigger, ...]:
    return tuple(
        DropTrigger(core[place], derived_name(entries.name, suffix)) for place, suffix in _NAMES
    )


def activity_triggers(
    connection: Connection, tables: SessionTables, keys: Iterable[str]
) -> list[RowTrigger]:
    """Returns the triggers for entries of these keys; not every database writes them out.

    None is needed for a special key, such as "$text".
    """
    known = sorted(key for key in keys if not key.startswith("$"))
    if not known:
        return []
    dialect = dialect_of(connection.dialect)
    quote = connection.dialect.identifier_preparer.quote
    _, filled = tables.group("activity").tables
    schema = dialect.schema_of(connection, filled)
    qualified = "" if dialect.uses_triggers else schema
    everything = (*tables.tables, *tables.group("activity").tables)
    sessions, _, values, elements, indexes, entries = (
        qualified + quote(table.name) for table in everything
    )
    key = quote("key")

    def entry(position: str, of_list: int) -> str:
        """Inserts or replaces an entry, if the key is indexed."""
        source, indexed = f", {indexes} i", f"i.{key} = NEW.{key} AND i.state < 2"
        if dialect.inlines_keys:
            texts = ", ".join(_text(connection, each) for each in known)
            source, indexed = "", f"NEW.{key} IN ({texts})"
        new = {
            "session_id": "NEW.session_id",
            "key": f"NEW.{key}",
            "position": position,
            "of_list": str(of_list),
            "search_key": "NEW.search_key",
            "updated_at": dialect.entry_time("s.updated_at"),
        }
        columns, selected = ", ".join(map(quote, new)), ", ".join(new.values())
        return (
            f"INSERT INTO {entries} ({columns}) SELECT {selected}"  # noqa: S608  # names, literals
            f" FROM {sessions} s{source} WHERE s.session_id = NEW.session_id AND {indexed}"
            f"{dialect.locks_session}"
            f"{dialect.replacing(map(quote, _PRIMARY_KEY), {each: new[each] for each in _OTHERS})}"
        )

    def delete(row: str, position: str | None) -> str:
        """Deletes an entry, or all entries of the value if there is no position."""
        end = f" AND {quote('position')} = {position}" if position else ""
        own = f"session_id = {row}.session_id AND {key} = {row}.{key}{end}"
        return f"DELETE FROM {entries} WHERE {own}"  # noqa: S608  # names

    def moved(*columns: str) -> str:
        differ = (dialect.differ(f"OLD.{each}", f"NEW.{each}") for each in columns)
        return " OR ".join(differ)

    # A REPLACE on SQLite inserts without deleting.
    of_value, of_element = [entry("-1", 0)], [entry("NEW.position", 1)]
    if dialect.uses_triggers:
        of_value.insert(0, delete("NEW", "-1"))
        of_element.insert(0, delete("NEW", "NEW.position"))
    time = dialect.entry_time("NEW.updated_at")
    change = f"SET updated_at = {time} WHERE session_id = NEW.session_id"
    update_time = f"UPDATE {entries} {change}"  # names
    later = dialect.differ(dialect.entry_time("OLD.updated_at"), time)
    own = ("session_id", key, "search_key")
    specified = (
        (sessions, "UPDATE", later, (update_time,)),
        (values, "INSERT", "", of_value),
        (values, "UPDATE", moved(*own), (delete("OLD", "-1"), of_value[-1])),
        (values, "DELETE", "", (delete("OLD", None),)),
        (elements, "INSERT", "", of_element),
        (
            elements,
            "UPDATE",
            moved(*own, "position"),
            (delete("OLD", "OLD.position"), of_element[-1]),
        ),
        (elements, "DELETE", "", (delete("OLD", "OLD.position"),)),
    )
    names = [derived_name(filled.name, suffix) for _, suffix in _NAMES]
    return [
        RowTrigger(schema, name, quote(name), table, f"AFTER {event}", condition, tuple(statements))
        for name, (table, event, condition, statements) in zip(names, specified, strict=True)
    ]


def _text(connection: Connection, text: str) -> str:
    spelled = dialect_of(connection.dialect).literal(text)
    # Doubles each % if the driver requires it.
    return str(literal_column(spelled).compile(dialect=connection.dialect))

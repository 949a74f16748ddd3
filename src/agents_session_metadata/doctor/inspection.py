"""What a database has: tables, columns, keys, collations. Nothing here changes anything."""

# Some databases need less of what a method is passed.
# ruff: noqa: ARG002

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Dialect,
    ForeignKeyConstraint,
    LargeBinary,
    MetaData,
    String,
    Table,
    TypeDecorator,
    inspect,
    text,
)

from agents_session_metadata.ddl import as_text
from agents_session_metadata.dialects.names import connected_name, offline
from agents_session_metadata.storage.creation import types_beside
from agents_session_metadata.storage.tables import (
    CORE,
    CREATE_TYPES,
    CreateTrigger,
    SessionTables,
    TableNames,
    build_tables,
    query_tables,
)
from agents_session_metadata.types import MAX_KEY_LENGTH

from .findings import Finding

_SAMPLES = (("case", "a", "A"), ("accents", "a", "á"), ("trailing spaces", "a", "a "))


class Inspection:
    """The tables of one name in one database."""

    oldest: tuple[int, ...] = ()
    clock_query: str | None = None
    uses_triggers: bool = False

    def __init__(self, connection: Connection, names: TableNames) -> None:
        self.connection = connection
        self.inspector: Any = inspect(connection)
        self.tables: SessionTables = query_tables(names)
        self.schema: str | None = connection.schema_for_object(self.tables.sessions)
        self.existing: set[str] = {
            name for name in names if self.inspector.has_table(name, schema=self.schema)
        }
        types = CREATE_TYPES
        if names.sessions in self.existing:
            types = types_beside(connection, self.tables.sessions)
        # Ids as the sessions table has them: what a new table must refer to.
        self.expected: SessionTables = build_tables(MetaData(), names, types)
        self.present: list[Table] = [
            table for table in self.expected.tables if table.name in self.existing
        ]
        self.columns: dict[str, dict[str, Any]] = {
            table.name: {
                column["name"]: column
                for column in self.inspector.get_columns(table.name, schema=self.schema)
            }
            for table in self.present
        }
        self.foreign_keys: dict[str, list[Any]] = {
            table.name: self.inspector.get_foreign_keys(table.name, schema=self.schema)
            for table in self.present
        }
        self.dialect: Dialect = offline(connected_name(connection.dialect))

    @property
    def own(self) -> tuple[Table, ...]:
        """The tables of this package; the others are the SDK's."""
        return (self.expected.metadata, *self.derived)

    @property
    def derived(self) -> tuple[Table, ...]:
        """The tables whose rows all follow from other tables. Only their rows may be deleted."""
        return (self.expected.elements,)

    @property
    def triggers(self) -> tuple[CreateTrigger, ...]:
        """The triggers that these tables need here."""
        return self.expected.group(CORE).triggers if self.uses_triggers else ()

    @property
    def links(self) -> list[ForeignKeyConstraint]:
        """The foreign keys between the tables, parents first."""
        return [
            constraint
            for table in self.expected.tables
            for constraint in sorted(table.foreign_key_constraints, key=str)
        ]

    # ---- SQL ----

    def sql(self, element: Any, *, literals: bool = False) -> str:
        """A statement as text, in the schema that the connection translates to."""
        options: dict[str, Any] = {"compile_kwargs": {"literal_binds": True}} if literals else {}
        translation = self.connection.get_execution_options().get("schema_translate_map")
        if translation is not None:
            options |= {"schema_translate_map": translation, "render_schema_translate": True}
        return as_text(element, self.dialect, **options)

    def quote(self, name: str) -> str:
        """A name, quoted if SQL requires it."""
        return self.dialect.identifier_preparer.quote(name)

    def name_of(self, table: Table) -> str:
        """A table's name in SQL, with its schema."""
        name = self.quote(table.name)
        return f"{self.quote(self.schema)}.{name}" if self.schema else name

    def scalar(self, statement: str, **parameters: Any) -> Any:
        """The first value that a query returns."""
        return self.connection.scalar(text(statement), parameters)

    def rows(self, statement: str, **parameters: Any) -> Sequence[Any]:
        """All rows that a query returns."""
        return self.connection.execute(text(statement), parameters).all()

    # ---- tables and rows ----

    def has(self, table: Table, *columns: str) -> bool:
        """Whether a table has these columns."""
        return all(column in self.columns.get(table.name, {}) for column in columns)

    def is_filled(self, table: Table) -> bool:
        """Whether a table exists and has a row."""
        if table.name not in self.existing:
            return False
        query = f"SELECT count(*) FROM (SELECT 1 FROM {self.name_of(table)} LIMIT 1) AS first_row"  # noqa: S608  # names
        return bool(self.scalar(query))

    def count(self, table: Table, condition: str) -> int:
        """The number of a table's rows that meet a condition."""
        query = f"SELECT count(*) FROM {self.name_of(table)} WHERE {condition}"  # noqa: S608  # names
        return int(self.scalar(query))

    def leads_to(self, key: Mapping[str, Any], parent: Table) -> bool:
        """Whether a foreign key refers to a table."""
        in_schema = key.get("referred_schema") in (None, self.schema)
        return in_schema and key["referred_table"] == parent.name

    def orphan_condition(self, constraint: ForeignKeyConstraint) -> str | None:
        """The condition for a child without its parent; None if columns are missing."""
        child, parent = constraint.table, constraint.referred_table
        pairs = [(each.parent, each.column) for each in constraint.elements]
        if not all(self.has(child, a.name) and self.has(parent, b.name) for a, b in pairs):
            return None
        same = " AND ".join(self.equal(a, b) for a, b in pairs)
        return f"NOT EXISTS (SELECT 1 FROM {self.name_of(parent)} WHERE {same})"  # noqa: S608  # names

    def equal(self, child: Column[Any], parent: Column[Any]) -> str:
        """The condition that a child's column has the value of its parent's."""
        names = (f"{self.name_of(each.table)}.{self.quote(each.name)}" for each in (parent, child))
        return " = ".join(names)

    # ---- columns ----

    def wanted(self, column: Column[Any]) -> Any:
        """The type that a column should have in this database."""
        kind = column.type
        return kind.load_dialect_impl(self.dialect) if isinstance(kind, TypeDecorator) else kind

    def lacks_default(self, column: Column[Any], actual: Mapping[str, Any]) -> bool:
        """Whether a column that is written without a value has no default."""
        if column.server_default is not None:
            return actual["default"] is None
        return column.autoincrement is True and not actual.get("autoincrement", True)

    def usable_indexes(
        self, table: Table, actual: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        """The indexes that hold the whole columns of every row."""
        partial = ("_where", "_length")
        return [
            each
            for each in actual
            if not any(name.endswith(partial) for name in each.get("dialect_options", ()))
        ]

    def type_problems(self, column: Column[Any], actual: Any) -> Iterator[str]:
        """What is wrong with the type of a column, in words that follow its name."""
        if isinstance(self.wanted(column), String) and not isinstance(actual, String):
            yield f"has the type {actual}, not a text type"
        elif column.name == "key" and (actual.length or MAX_KEY_LENGTH) < MAX_KEY_LENGTH:
            yield f"holds {actual.length} characters, not {MAX_KEY_LENGTH}"

    def text_problems(self, column: Column[Any]) -> list[str]:
        """What is wrong with how a column of ids or keys compares its texts."""
        same = self.not_distinguished(column)
        return [f"does not distinguish {' or '.join(same)}"] if same else []

    def length_problem(self, column: Column[Any]) -> str | None:
        """Why a column of ids is too short; None if it is not."""
        return None

    def not_distinguished(self, column: Column[Any]) -> list[str]:
        """What a column's collation ignores."""
        return [name for name, a, b in _SAMPLES if self.are_equal(column, a, b)]

    def are_equal(self, column: Column[Any], first: str, second: str) -> bool:
        """Whether a column's collation treats two texts as equal."""
        raise NotImplementedError

    def differs(self, child: Column[Any], parent: Column[Any]) -> str | None:
        """How ids or keys differ in type from those that they refer to; None if they do not."""
        return None

    def is_joinable(self, child: Column[Any], parent: Column[Any]) -> bool:
        """Whether the database allows a foreign key between the columns."""
        return True

    def _needed(self, child: Column[Any], parent: float) -> float:
        """The characters that a child's column must hold if its parent's holds so many."""
        return min(parent, MAX_KEY_LENGTH) if child.table in self.own else parent

    # ---- stored values ----

    def stored_text(self, column: ColumnElement[str]) -> ColumnElement[Any]:
        """A stored text, or bytes that should be UTF-8; readable whatever is stored."""
        return column

    def is_readable(self, table: Table, columns: Sequence[str]) -> bool:
        """Whether columns exist and have types of the right kind."""
        actual = self.columns.get(table.name, {})
        for name in columns:
            if name not in actual:
                return False
            for kind in (String, LargeBinary):
                wrong = not isinstance(actual[name]["type"], kind)
                if isinstance(self.wanted(table.c[name]), kind) and wrong:
                    return False
        return True

    # ---- the database ----

    @property
    def product(self) -> str:
        """The database and its version."""
        return f"{self.product_name} {'.'.join(map(str, self.server_version))}"

    @property
    def product_name(self) -> str:
        """The database's usual name."""
        raise NotImplementedError

    @property
    def server_version(self) -> tuple[Any, ...]:
        """The server's version."""
        return tuple(self.connection.dialect.server_version_info or ())

    def check_storage(self) -> Iterator[Finding]:
        """Whether the tables are stored in a way that keeps transactions and foreign keys."""
        yield from ()

    def check_times(self) -> Iterator[Finding]:
        """Whether the times in the SDK's tables are times, if the database does not see to it."""
        yield from ()

    def check_zone(self) -> Iterator[Finding]:
        """Whether the time zone of the server is UTC, if it matters."""
        yield from ()

    def foreign_key_problem(self, table: Table, key: Mapping[str, Any]) -> str | None:
        """Why an existing foreign key has no effect; None if it has."""
        return None

    def actual_triggers(self) -> dict[str, str]:
        """The SQL of the triggers by name, if the package uses triggers here."""
        return {}

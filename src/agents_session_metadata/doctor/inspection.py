"""A database under examination: what it has, and the standard SQL that changes it."""

# Some databases need less of what a method is passed.
# ruff: noqa: ARG002

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Dialect,
    ForeignKeyConstraint,
    MetaData,
    String,
    Table,
    TypeDecorator,
    inspect,
    select,
    text,
)
from sqlalchemy.schema import AddConstraint, CreateColumn, CreateIndex, CreateTable, DropTable

from agents_session_metadata.ddl import as_text, offline
from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.storage.creation import read_lists, types_beside
from agents_session_metadata.storage.tables import (
    CREATE_TYPES,
    DropTrigger,
    SessionTables,
    TableNames,
    build_tables,
    query_tables,
)
from agents_session_metadata.types import MAX_KEY_LENGTH
from agents_session_metadata.values import LIST, SearchKey

from .findings import Finding

_SAMPLES = (("case", "a", "A"), ("accents", "a", "á"), ("trailing spaces", "a", "a "))


class Patient:
    """One database under examination."""

    oldest: tuple[int, ...] = ()
    clock_query: str | None = None

    def __init__(self, connection: Connection, names: TableNames) -> None:
        self.connection = connection
        self.inspector: Any = inspect(connection)
        self.tables: SessionTables = query_tables(names)
        self.exact: SessionTables = build_tables(MetaData(), names, CREATE_TYPES)
        self.schema: str | None = connection.schema_for_object(self.exact.sessions)
        self.existing: set[str] = {
            name for name in names if self.inspector.has_table(name, schema=self.schema)
        }
        types = CREATE_TYPES
        if names.sessions in self.existing:
            types = types_beside(connection, self.exact.sessions)
        # Ids as the parent has them: what a table that is yet to be made must refer to.
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
        is_mariadb = getattr(connection.dialect, "is_mariadb", False)
        self.dialect: Dialect = offline("mariadb" if is_mariadb else connection.dialect.name)

    # ---- SQL ----

    def sql(self, element: Any) -> str:
        """A statement as text, in the schema that the connection translates to."""
        translation = self.connection.get_execution_options().get("schema_translate_map")
        if translation is None:
            return as_text(element, self.dialect)
        return as_text(
            element, self.dialect, schema_translate_map=translation, render_schema_translate=True
        )

    def quote(self, name: str) -> str:
        """A name as SQL spells it."""
        return self.dialect.identifier_preparer.quote(name)

    def name_of(self, table: Table) -> str:
        """A table's name as SQL spells it, with its schema."""
        name = self.quote(table.name)
        return f"{self.quote(self.schema)}.{name}" if self.schema else name

    def scalar(self, statement: str, **parameters: Any) -> Any:
        """The first value that a query gives."""
        return self.connection.scalar(text(statement), parameters)

    def rows(self, statement: str, **parameters: Any) -> Sequence[Any]:
        """All that a query gives."""
        return self.connection.execute(text(statement), parameters).all()

    def has(self, table: Table, column: str) -> bool:
        """Whether a column is there."""
        return column in self.columns.get(table.name, {})

    def creation_of(self, table: Table) -> Iterator[str]:
        """What makes a missing table."""
        yield self.sql(CreateTable(table))
        for index in table.indexes:
            yield self.sql(CreateIndex(index))

    def orphan_condition(self, constraint: ForeignKeyConstraint) -> str | None:
        """What is true of a child without its parent; None where columns are missing."""
        child, parent = constraint.table, constraint.referred_table
        pairs = [(each.parent, each.column) for each in constraint.elements]
        if not all(self.has(child, a.name) and self.has(parent, b.name) for a, b in pairs):
            return None
        same = " AND ".join(self.equal(a, b) for a, b in pairs)
        return f"NOT EXISTS (SELECT 1 FROM {self.name_of(parent)} WHERE {same})"  # noqa: S608  # names

    def equal(self, child: Column[Any], parent: Column[Any]) -> str:
        """That a child's column has the value of its parent's."""
        names = (f"{self.name_of(each.table)}.{self.quote(each.name)}" for each in (parent, child))
        return " = ".join(names)

    # ---- columns ----

    def wanted(self, column: Column[Any]) -> Any:
        """The type that a column should have, as this database spells it."""
        kind = column.type
        return kind.load_dialect_impl(self.dialect) if isinstance(kind, TypeDecorator) else kind

    def id_columns(self) -> list[Column[Any]]:
        """The session ids of all tables, those that are yet to be made too, as they should be."""
        return [
            table.c.session_id
            for table in self.exact.tables
            if self.has(table, "session_id") or table.name not in self.existing
        ]

    def column_problems(self, column: Column[Any], actual: Mapping[str, Any]) -> Iterator[str]:
        """What is wrong with a column, in words that follow its name."""
        if actual["nullable"] and column.table in (self.expected.metadata, self.expected.elements):
            yield "may be NULL"
        yield from self.type_problems(column, actual["type"])

    def lacks_default(self, column: Column[Any], actual: Mapping[str, Any]) -> bool:
        """Whether a column that is written without a value has none of its own."""
        if column.server_default is not None:
            return actual["default"] is None
        return column.autoincrement is True and not actual.get("autoincrement", True)

    def give_default(self, column: Column[Any]) -> Iterator[str]:
        """What gives a column its default."""
        yield from self.change_columns([column])

    def usable_indexes(
        self, table: Table, actual: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        """Those of a table's indexes that have all of every row's columns."""
        partial = ("_where", "_length")
        return [
            each
            for each in actual
            if not any(name.endswith(partial) for name in each.get("dialect_options", ()))
        ]

    def type_problems(self, column: Column[Any], actual: Any) -> Iterator[str]:
        """What is wrong with the type of a column."""
        if isinstance(self.wanted(column), String) and not isinstance(actual, String):
            yield f"has the type {actual}, not a text type"
        elif column.name == "key" and (actual.length or MAX_KEY_LENGTH) < MAX_KEY_LENGTH:
            yield f"holds {actual.length} characters, not {MAX_KEY_LENGTH}"

    def text_problems(self, column: Column[Any]) -> list[str]:
        """What a column of ids or keys fails to do, in words that follow its name."""
        same = self.not_distinguished(column)
        return [f"does not distinguish {' or '.join(same)}"] if same else []

    def not_distinguished(self, column: Column[Any]) -> list[str]:
        """What two texts may differ in and be the same to a column's collation."""
        return [name for name, a, b in _SAMPLES if self.are_equal(column, a, b)]

    def are_equal(self, column: Column[Any], first: str, second: str) -> bool:
        """Whether a column's collation takes two texts for the same."""
        raise NotImplementedError

    def _needed(self, child: Column[Any], parent: float) -> float:
        """The characters that a child's column must hold, where its parent's holds so many."""
        ours = (self.expected.metadata, self.expected.elements)
        return min(parent, MAX_KEY_LENGTH) if child.table in ours else parent

    def differs(self, child: Column[Any], parent: Column[Any]) -> str | None:
        """In what way ids or keys are not as those that they refer to; None when they are."""
        return None

    def add_column(self, column: Column[Any]) -> Iterator[str]:
        """What adds a missing column; nothing where its values could not be known."""
        table = column.table
        specification = self.sql(CreateColumn(column))
        if column.server_default is not None or not self.is_filled(table):
            yield f"ALTER TABLE {self.name_of(table)} ADD COLUMN {specification}"

    def change_columns(self, columns: Iterable[Column[Any]]) -> Iterator[str]:
        """What gives columns the types they should have.

        Foreign keys are in the way of columns that they join; they go, and come again.
        """
        chosen = list(columns)
        joined = any(column.name in ("session_id", "key") for column in chosen)
        keys = self._actual_foreign_keys() if joined else []
        for table, key in keys:
            yield self.drop_foreign_key(table, key)
        for column in chosen:
            yield from self.change_column(column)
        for table, key in keys:
            yield self._add_foreign_key(table, key)

    def change_column(self, column: Column[Any]) -> Iterator[str]:
        """What gives a column its type."""
        raise NotImplementedError

    def change_primary_key(self, table: Table, actual: Mapping[str, Any]) -> Iterator[str]:
        """What gives a table its primary key."""
        keys = [each for each in self._actual_foreign_keys() if table.name in _ends(each)]
        for child, key in keys:
            yield self.drop_foreign_key(child, key)
        if actual["constrained_columns"]:
            yield self.drop_primary_key(table, actual["name"])
        columns = ", ".join(self.quote(column.name) for column in table.primary_key.columns)
        yield f"ALTER TABLE {self.name_of(table)} ADD PRIMARY KEY ({columns})"
        for child, key in keys:
            yield self._add_foreign_key(child, key)

    def drop_primary_key(self, table: Table, name: str | None) -> str:
        """What takes a primary key away."""
        return f"ALTER TABLE {self.name_of(table)} DROP CONSTRAINT {self.quote(name or '')}"

    def change_foreign_key(
        self, constraint: ForeignKeyConstraint, wrong: Sequence[Mapping[str, Any]]
    ) -> Iterator[str]:
        """What gives a table a foreign key, in place of wrong ones."""
        for key in wrong:
            yield self.drop_foreign_key(constraint.table, key)
        yield self.sql(AddConstraint(constraint))

    def foreign_key_problem(self, table: Table, key: Mapping[str, Any]) -> str | None:
        """Why a foreign key that is there does not hold; None when it does."""
        return None

    def drop_foreign_key(self, table: Table, key: Mapping[str, Any]) -> str:
        """What takes a foreign key away."""
        return f"ALTER TABLE {self.name_of(table)} DROP CONSTRAINT {self.quote(key['name'])}"

    def _actual_foreign_keys(self) -> list[tuple[Table, Any]]:
        """The foreign keys between the tables, once those that are missing are made."""
        found: list[tuple[Table, Any]] = []
        for table in reversed(self.expected.tables):
            if table.name in self.existing:
                keys = self.foreign_keys[table.name]
            else:
                keys = [_described(each) for each in table.foreign_key_constraints]
            names = {each.name for each in self.expected.tables}
            found += [(table, k) for k in keys if k["referred_table"] in names and k["name"]]
        return found

    def _add_foreign_key(self, table: Table, key: Mapping[str, Any]) -> str:
        own, others = (
            ", ".join(self.quote(name) for name in key[f"{side}_columns"])
            for side in ("constrained", "referred")
        )
        parent = self.expected.sessions.metadata.tables[key["referred_table"]]
        return (
            f"ALTER TABLE {self.name_of(table)} ADD CONSTRAINT {self.quote(key['name'])}"
            f" FOREIGN KEY ({own}) REFERENCES {self.name_of(parent)} ({others}) ON DELETE CASCADE"
        )

    def is_filled(self, table: Table) -> bool:
        """Whether a table has a row."""
        query = f"SELECT count(*) FROM (SELECT 1 FROM {self.name_of(table)} LIMIT 1) AS first_row"  # noqa: S608  # names
        return bool(self.scalar(query))

    # ---- elements ----

    def has_elements(self) -> bool:
        """Whether a list is stored that has elements."""
        own = ("session_id", "key", "value", "search_key")
        if not self._can_read(self.expected.metadata, own):
            return False
        return any(any(lists.values()) for lists in read_lists(self.connection, self.tables))

    def wrong_elements(self) -> int:
        """The number of values whose rows of elements are not those that they should have.

        Every list is read, and compared with its rows, some lists at a time. Nothing is compared
        while columns are not as they should be, or take different ids or keys for the same.
        """
        ours = (self.expected.metadata, self.expected.elements)
        searched = ("session_id", "key", "search_key", "search_rest")
        if not all(self._can_read(table, searched) for table in ours):
            return 0
        if not self._can_read(ours[0], ("value",)):
            return 0
        texts = (table.c[name] for table in ours for name in ("session_id", "key"))
        if any(map(self.not_distinguished, texts)):
            return 0
        elements, wrong = self.tables.elements, self._elements_of_no_list()
        for lists in read_lists(self.connection, self.tables):
            stored: dict[tuple[str, str], set[SearchKey]] = {own: set() for own in lists}
            statement: Any = select(*(elements.c[name] for name in searched)).where(
                elements.c.session_id.in_({session_id for session_id, _ in lists})
            )
            found: Iterable[Any] = self.connection.execute(statement)
            for session_id, key, indexed, rest in found:
                if (session_id, key) in stored:
                    stored[session_id, key].add(SearchKey(bytes(indexed), bytes(rest)))
            wrong += sum(stored[own] != set(wanted) for own, wanted in lists.items())
        return wrong

    def drop_elements(self) -> Iterator[str]:
        """What takes the table of elements away; `create_missing` makes and fills it then."""
        elements = self.expected.elements
        if dialect_of(self.dialect).uses_triggers:
            for trigger in self.expected.triggers:
                if trigger.emptied is elements:
                    yield self.sql(DropTrigger(trigger))
        yield self.sql(DropTable(elements))

    def _elements_of_no_list(self) -> int:
        rows, elements = self.expected.metadata, self.expected.elements
        (constraint,) = elements.foreign_key_constraints
        same = " AND ".join(self.equal(each.parent, each.column) for each in constraint.elements)
        own_id, key, kind = (
            f"{self.name_of(rows)}.{self.quote(name)}"
            for name in ("session_id", "key", "search_key")
        )
        found = (
            f"SELECT DISTINCT {own_id}, {key}"  # noqa: S608  # names
            f" FROM {self.name_of(elements)} JOIN {self.name_of(rows)} ON {same}"
            f" WHERE substr({kind}, 1, 1) <> :list"
        )
        return int(self.scalar(f"SELECT count(*) FROM ({found}) AS found", list=LIST))  # noqa: S608  # names

    def _can_read(self, table: Table, names: Iterable[str]) -> bool:
        """Whether columns are there and are what they should be."""
        actual = self.columns.get(table.name, {})
        return all(
            name in actual and not [*self.column_problems(table.c[name], actual[name])]
            for name in names
        )

    # ---- the database ----

    @property
    def product(self) -> str:
        """The database and its version."""
        return f"{self.product_name} {'.'.join(map(str, self.server_version))}"

    @property
    def product_name(self) -> str:
        """What people call the database."""
        raise NotImplementedError

    @property
    def server_version(self) -> tuple[Any, ...]:
        """The server's version."""
        return tuple(self.connection.dialect.server_version_info or ())

    def check_version(self) -> Iterator[Finding]:
        """Whether the server is new enough."""
        numbers = tuple(each for each in self.server_version if isinstance(each, int))
        if numbers and numbers < self.oldest:
            wanted = ".".join(map(str, self.oldest))
            yield Finding(
                "error", "versions", f"{self.product} is too old; {wanted} is the oldest supported"
            )

    def check_storage(self) -> Iterator[Finding]:
        """Whether tables are stored in a way that keeps transactions and foreign keys."""
        yield from ()

    def check_triggers(self) -> Iterator[Finding]:
        """Whether triggers are as they should be, where there should be any."""
        yield from ()

    def check_zone(self) -> Iterator[Finding]:
        """Whether the zone of the server's times is UTC, where it matters."""
        yield from ()


def _ends(link: tuple[Table, Any]) -> tuple[str, str]:
    return link[0].name, link[1]["referred_table"]


def _described(constraint: ForeignKeyConstraint) -> dict[str, Any]:
    """A foreign key as the inspector gives it."""
    return {
        "name": constraint.name,
        "constrained_columns": list(constraint.column_keys),
        "referred_table": constraint.referred_table.name,
        "referred_columns": [element.column.name for element in constraint.elements],
    }

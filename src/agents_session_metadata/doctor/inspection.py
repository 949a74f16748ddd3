"""What a database has, and the statements that repair it. Nothing here changes anything.

A printed statement may add a table, an index, a default, a foreign key, a primary key where there
is none, or a trigger; widen a column; let an ignored index be used; replace a trigger of this
package, revoke the privilege to execute its function, or drop one whose tables are gone or renamed;
add or delete rows of a table that this package derives from others; mark an index as not complete;
and set the search path. Without such a statement, the problem is explained in words.
"""

# Some databases need less of what a method is passed.
# ruff: noqa: ARG002

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    ForeignKeyConstraint,
    Index,
    MetaData,
    Table,
    TypeDecorator,
    inspect,
    text,
)
from sqlalchemy import Dialect as SADialect
from sqlalchemy.exc import CompileError
from sqlalchemy.schema import AddConstraint, CreateIndex

from agents_session_metadata.ddl import as_text, table_elements
from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.dialects._triggers import as_typed
from agents_session_metadata.dialects.names import connected_name, offline
from agents_session_metadata.storage.activity import ACTIVITY
from agents_session_metadata.storage.creation import avoid_names, existing_tables, types_beside
from agents_session_metadata.storage.renames import RenamedTrigger, renamed_triggers
from agents_session_metadata.storage.tables import (
    CREATE_TYPES,
    SessionTables,
    TableGroup,
    TableNames,
    build_tables,
    query_tables,
)
from agents_session_metadata.types import MAX_KEY_LENGTH

from .columns import SAMPLES, TextColumn, is_kind, kind_of
from .findings import EQUAL_ITEMS, EQUAL_PARENTS, EQUAL_ROWS, Finding, Level, Statements
from .groups import checked_groups, lacking_columns
from .triggers import StoredTrigger


class Inspection:
    """The tables of one name in one database."""

    product: str = ""
    oldest: tuple[int, ...] = ()
    clock_query: str = ""
    bytewise: str = "{}"
    """An expression that compares texts of any collation."""
    times: str = "in the form YYYY-MM-DD HH:MM:SS"
    """What a stored time must be."""
    by_hand: str = "doctor prints no statement for it; change it by a migration of your own"
    """What to do about a column or key that no printed statement may change."""

    def __init__(self, connection: Connection, names: TableNames) -> None:
        self.connection = connection
        self.ways: Dialect = dialect_of(connection.dialect)
        self.dialect: SADialect = offline(connected_name(connection.dialect))
        self.inspector: Any = inspect(connection)
        self.tables: SessionTables = query_tables(names)
        self.schema: str | None = connection.schema_for_object(self.tables.sessions)
        every = [table for group in self.tables.groups for table in group.tables]
        there = existing_tables(connection, self.tables, every)
        found = {table.name: self.stored_name(table.name) for table in there}
        self.existing: set[str] = {name for name, stored in found.items() if stored == name}
        self.misspelled: dict[str, str] = {
            name: stored for name, stored in found.items() if stored != name
        }
        """The stored names of tables that the database finds by a name in another case."""
        types = CREATE_TYPES
        if names.sessions in self.existing:
            types = types_beside(connection, self.tables.sessions)
        # Ids as the sessions table has them: what a new table must refer to.
        self.expected: SessionTables = build_tables(MetaData(), names, types)
        self.lacking: dict[Table, list[str]] = lacking_columns(
            self.inspector, self.schema, self.expected, self.existing
        )
        """Columns that tables of optional features lack. Nothing else is checked in these."""
        self.groups: list[TableGroup] = checked_groups(self.expected, self.existing, self.lacking)
        self.wanted: list[Table] = [table for group in self.groups for table in group.tables]
        self.present: list[Table] = [table for table in self.wanted if table.name in self.existing]
        self.columns: dict[str, dict[str, Any]] = {
            name: {column["name"]: column for column in found}
            for name, found in self.reflected("columns").items()
        }
        self.foreign_keys: dict[str, Any] = self.reflected("foreign_keys")
        self.indexes: dict[str, Any] = self.reflected("indexes")
        for name, found in self.reflected("unique_constraints").items():
            self.indexes[name] += [each for each in found if each not in self.indexes[name]]
        self.texts: dict[tuple[str, str], TextColumn] = self.read_texts()
        self._ignored: dict[str, list[str]] = {}
        # Indexes and constraints get other names if something else has theirs.
        names_taken = {name for name, _ in self.ways.taken_names(connection, self.tables.sessions)}
        for table in self.wanted:
            its = (*self.indexes.get(table.name, ()), *self.foreign_keys.get(table.name, ()))
            avoid_names(table, names_taken | {each["name"] for each in its})

    def finding(
        self, check: str, problem: str, repair: Statements = (), level: Level = "error"
    ) -> Finding:
        """A finding; without a statement, it says what to do instead."""
        return Finding(level, check, problem if repair else f"{problem}; {self.by_hand}", repair)

    def reflected(self, what: str) -> dict[str, Any]:
        """The columns, indexes or constraints of the tables, by table."""
        read = getattr(self.inspector, f"get_{what}")
        return {table.name: list(read(table.name, schema=self.schema)) for table in self.present}

    @property
    def core(self) -> tuple[Table, ...]:
        """The tables that everything needs."""
        return self.expected.tables

    @property
    def own(self) -> list[Table]:
        """The tables of this package; the others are the SDK's."""
        return [table for table in self.wanted if table not in self.core[:2]]

    @cached_property
    def derived(self) -> set[Table]:
        """The tables whose rows all follow from other tables. Only their rows may be deleted."""
        return {self.expected.elements, self.expected.group(ACTIVITY)["_activity"]}

    @property
    def links(self) -> list[ForeignKeyConstraint]:
        """The foreign keys between the tables, parents first."""
        every = [sorted(table.foreign_key_constraints, key=str) for table in self.wanted]
        return [constraint for of_table in every for constraint in of_table]

    # ---- SQL ----

    @property
    def first(self) -> Statements:
        """Statements to run before others, so that the names in these mean the same tables."""
        return ()

    def sql(self, element: Any, *, literals: bool = False) -> str:
        """A statement as text, in the schema that the connection translates to."""
        options: dict[str, Any] = {"compile_kwargs": {"literal_binds": True}} if literals else {}
        translation = self.connection.get_execution_options().get("schema_translate_map")
        if translation is not None:
            options |= {"schema_translate_map": translation, "render_schema_translate": True}
        return as_text(element, self.dialect, **options)

    def typed(self, statements: Iterable[str]) -> Statements:
        """Statements for the driver as one types them."""
        return as_typed(self.connection, statements)

    def quote(self, name: str) -> str:
        """A name, quoted if SQL requires it."""
        return self.dialect.identifier_preparer.quote(name)

    def name_of(self, table: Table, column: Column[Any] | None = None) -> str:
        """The name of a table or column in SQL, with its schema."""
        names = [
            *filter(None, [self.schema]),
            table.name,
            *([] if column is None else [column.name]),
        ]
        return ".".join(map(self.quote, names))

    def spelled(self, kind: Any) -> str:
        """A type in SQL."""
        try:
            return str(kind.compile(dialect=self.dialect))
        except CompileError:
            return str(kind)

    def scalar(self, statement: str, **parameters: Any) -> Any:
        """The first value that a query returns."""
        return self.connection.scalar(text(statement), parameters)

    def rows(self, statement: str, **parameters: Any) -> Sequence[Any]:
        """All rows that a query returns."""
        return self.connection.execute(text(statement), parameters).all()

    # ---- tables and rows ----

    def stored_name(self, name: str) -> str:
        """The name of a table that exists, as the database stores it."""
        return name

    def has(self, table: Table, *columns: str) -> bool:
        """Whether a table has these columns."""
        return all(column in self.columns.get(table.name, {}) for column in columns)

    def is_readable(self, table: Table, columns: Collection[str]) -> bool:
        """Whether columns exist and have types of the right kind."""
        actual = self.columns.get(table.name, {})
        return self.has(table, *columns) and all(
            kind_of(self.type_of(table.c[name])) is kind_of(actual[name]["type"])
            for name in columns
        )

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

    def heirs(self, table: Table) -> list[str]:
        """Other tables whose rows count as rows of a table, without its keys and triggers."""
        return []

    def rules(self, table: Table) -> list[str]:
        """Rules by which the database does something else than a statement on a table says."""
        return []

    def orphan_condition(self, constraint: ForeignKeyConstraint) -> str | None:
        """The condition for a child without its parent; None if columns are missing."""
        child, parent = constraint.table, constraint.referred_table
        pairs = [(each.parent, each.column) for each in constraint.elements]
        if not all(self.has(child, a.name) and self.has(parent, b.name) for a, b in pairs):
            return None
        same = " AND ".join(self.equal(a, b) for a, b in pairs)
        missing = f"NOT EXISTS (SELECT 1 FROM {self.name_of(parent)} WHERE {same})"  # noqa: S608  # names
        given = [f"{self.name_of(child, a)} IS NOT NULL" for a, _ in pairs if a.nullable]
        return " AND ".join([*given, missing])

    def equal(self, child: Column[Any], parent: Column[Any]) -> str:
        """The condition that a child's column has the value of its parent's."""
        sides = (parent, child)
        is_exact = all(self.text_of(each).is_exact for each in sides)
        form = "{}" if is_exact and self.is_joinable(child, parent) else self.bytewise
        return " = ".join(form.format(self.name_of(each.table, each)) for each in sides)

    # ---- columns ----

    def type_of(self, column: Column[Any]) -> Any:
        """The type that a column should have in this database."""
        kind = column.type
        return kind.load_dialect_impl(self.dialect) if isinstance(kind, TypeDecorator) else kind

    def read_texts(self) -> dict[tuple[str, str], TextColumn]:
        """The columns of text and bytes, by table and column, if the database tells them apart."""
        return {}

    def text_of(self, column: Column[Any]) -> TextColumn:
        """How a column compares and how much it holds."""
        return self.texts.get((column.table.name, column.name), TextColumn(math.inf))

    def lacks_default(self, column: Column[Any], actual: Mapping[str, Any]) -> bool:
        """Whether a column that is written without a value has no default."""
        if column.server_default is not None:
            return actual["default"] is None
        return column.autoincrement is True and not actual.get("autoincrement", True)

    def type_problems(self, column: Column[Any], actual: Any) -> Iterator[str]:
        """What is wrong with the type of a column, in words that follow its name."""
        wanted = self.type_of(column)
        if not self.keeps(column, actual):
            yield f"has the type {self.spelled(actual)}, not {self.spelled(wanted)}"
            return
        found, needed = self.text_of(column).length, self.needed(column)
        if found < needed:
            unit = "characters" if kind_of(wanted) is str else "bytes"
            yield f"holds {found} {unit}" + (" only" if needed == math.inf else f", not {needed}")

    def keeps(self, column: Column[Any], actual: Any) -> bool:
        """Whether a column stores every value that is not too long for it unchanged."""
        return is_kind(self.type_of(column), actual)

    def lost_characters(self, column: Column[Any]) -> Iterator[str]:
        """What a column of any length cannot hold, in words that follow its name."""
        yield from ()

    def cautions(self, column: Column[Any]) -> Iterator[str]:
        """What to know about a column that works, in words that follow its name."""
        yield from ()

    def needed(self, column: Column[Any]) -> float:
        """How much a column has to hold; an id that carries metadata has a limit."""
        if column.name == "session_id":
            return MAX_KEY_LENGTH
        return getattr(self.type_of(column), "length", None) or math.inf

    def text_problems(self, column: Column[Any]) -> list[str]:
        """What is wrong with how a column of ids or keys compares its texts."""
        same = self.not_distinguished(column)
        return [f"does not distinguish {' or '.join(same)}"] if same else []

    def not_distinguished(self, column: Column[Any]) -> list[str]:
        """What a column's collation ignores."""
        equal = self.comparison(column)
        if equal not in self._ignored:
            self._ignored[equal] = [
                name for name, a, b in SAMPLES if equal and self.scalar(f"SELECT {equal}", a=a, b=b)
            ]
        return self._ignored[equal]

    def comparison(self, column: Column[Any]) -> str:
        """A condition that compares `:a` and `:b` as a column does; empty if it holds no text."""
        raise NotImplementedError

    def differs(self, child: Column[Any], parent: Column[Any]) -> str | None:
        """How ids or keys differ from those that they refer to; None if they do not."""
        own, others = self.text_of(child), self.text_of(parent)
        is_own = child.table in self.own
        room = min(others.length, MAX_KEY_LENGTH) if is_own else others.length
        is_comparable = own.collation and others.collation
        if not is_comparable or (self.is_joinable(child, parent) and own.length >= room):
            return None
        name, other = (f"{each.table.name}.{each.name}" for each in (child, parent))
        return f"{name} is {own}, {other} {others}"

    def is_joinable(self, child: Column[Any], parent: Column[Any]) -> bool:
        """Whether the database compares two columns, and allows a foreign key between them."""
        return self.text_of(child).collation == self.text_of(parent).collation

    def stored_text(self, column: ColumnElement[str]) -> ColumnElement[Any]:
        """A stored text, or bytes that should be UTF-8; readable whatever is stored."""
        return column

    # ---- keys and indexes ----

    @cached_property
    def keys(self) -> dict[str, list[str]]:
        """The columns of the primary keys, by table."""
        read = self.inspector.get_pk_constraint
        return {
            table.name: read(table.name, schema=self.schema)["constrained_columns"]
            for table in self.present
        }

    def key_problem(self, table: Table) -> str | None:
        """Why a table cannot get its primary key by a statement; None if it can."""
        columns = [column.name for column in table.primary_key.columns]
        if not self.is_readable(table, columns):
            return "its columns have other types"
        names = [self.quote(column) for column in columns]
        if self.count(table, " OR ".join(f"{name} IS NULL" for name in names)):
            return "there are rows with NULL in it: decide which to change or to delete"
        listed = ", ".join(names)
        equal = f"SELECT 1 FROM {self.name_of(table)} GROUP BY {listed} HAVING count(*) > 1 LIMIT 1"  # noqa: S608  # names
        if self.rows(equal):
            if table is self.expected.messages:
                return EQUAL_ITEMS
            is_parent = any(each.referred_table is table for each in self.links)
            return EQUAL_PARENTS if is_parent else EQUAL_ROWS
        return self.by_hand if self.keys[table.name] else None

    def has_key(self, table: Table) -> bool:
        """Whether a table has its primary key."""
        columns = [column.name for column in table.primary_key.columns]
        return table.name not in self.existing or self.keys[table.name] == columns

    def key_to_add(self, table: Table) -> Statements:
        """The primary key of a table that has none and may get one."""
        columns = [column.name for column in table.primary_key.columns]
        if self.has_key(table) or not self.has(table, *columns) or self.key_problem(table):
            return ()
        listed = ", ".join(map(self.quote, columns))
        return (f"ALTER TABLE {self.name_of(table)} ADD PRIMARY KEY ({listed})",)

    def usable_indexes(self, table: Table) -> list[Mapping[str, Any]]:
        """The indexes that hold the whole columns of every row."""
        partial = ("_where", "_length")
        return [
            each
            for each in self.indexes[table.name]
            if not any(name.endswith(partial) for name in each.get("dialect_options", ()))
        ]

    def on_delete(self, table: Table, key: Mapping[str, Any]) -> str:
        """What deleting a parent does to the rows of a foreign key, in upper case."""
        return (key.get("options", {}).get("ondelete") or "").upper()

    def foreign_key_problem(self, table: Table, key: Mapping[str, Any]) -> str | None:
        """Why an existing foreign key has no effect; None if it has."""
        return None

    def is_referable(self, parent: Table) -> bool:
        """Whether a foreign key of a new table may refer to a table."""
        if parent.name not in self.existing:
            parents = {each.referred_table for each in parent.foreign_key_constraints}
            return all(map(self.is_referable, parents))
        has_key = self.has_key(parent) or bool(self.key_to_add(parent))
        return has_key and self.is_readable(parent, parent.primary_key.columns.keys())

    def may_refer(self, constraint: ForeignKeyConstraint) -> bool:
        """Whether the types, keys and storage of two tables that exist allow a foreign key."""
        pairs = [(each.parent, each.column) for each in constraint.elements]
        is_referable = self.is_referable(constraint.referred_table)
        return is_referable and all(self.is_joinable(*pair) for pair in pairs)

    # ---- statements ----

    def create_table(self, table: Table) -> Statements:
        """Create a missing table and its indexes."""
        restarts = [group.restarts[table] for group in self.groups if table in group.restarts]
        first = [each for each in restarts if each.table.name in self.existing]
        return tuple(self.sql(each) for each in (*first, *table_elements(table, self.ways)))

    def create_index(self, index: Index) -> Statements:
        """Create a missing index."""
        return (self.sql(CreateIndex(index)),)

    def set_default(self, column: Column[Any]) -> Statements:
        """Give a column its default."""
        return ()

    def widen(self, column: Column[Any]) -> Statements:
        """Let a text or binary column that is too short hold what it should."""
        return ()

    def add_foreign_key(self, constraint: ForeignKeyConstraint) -> Statements:
        """Add a missing foreign key."""
        return (self.sql(AddConstraint(constraint)),)

    def delete_derived(self, table: Table, condition: str) -> Statements:
        """Delete rows of a table that this package derives; none of any other table."""
        if table not in self.derived:
            return ()
        return (f"DELETE FROM {self.name_of(table)} WHERE {condition}",)  # noqa: S608  # names

    def restore_sessions(self, child: Table, condition: str) -> str:
        """SQL, for words, that creates the session rows that a child's rows lack."""
        session_id = self.quote("session_id")
        return (
            f"INSERT INTO {self.name_of(self.expected.sessions)} ({session_id})"  # noqa: S608  # names
            f" SELECT DISTINCT {session_id} FROM {self.name_of(child)}"
            f" WHERE {session_id} IS NOT NULL AND {condition}"
        )

    # ---- the database ----

    @property
    def version(self) -> tuple[Any, ...]:
        """The server's version."""
        return tuple(self.connection.dialect.server_version_info or ())

    @cached_property
    def triggers(self) -> dict[str, StoredTrigger]:
        """The triggers on the core tables, by name; those switched off run nothing."""
        raise NotImplementedError

    @cached_property
    def renamed_triggers(self) -> list[RenamedTrigger]:
        """The triggers on the core tables that were created under other names."""
        return renamed_triggers(self.connection, self.tables)

    @cached_property
    def open_triggers(self) -> Collection[str]:
        """The names of triggers whose function any user may execute with its owner's rights."""
        return ()

    def not_a_text(self, column: Column[Any]) -> str | None:
        """The condition that a stored id is not a text; None if the database ensures it."""
        return None

    def before_changing_ids(self) -> str:
        """What to do before ids are changed by SQL, so that no trigger deletes their rows."""
        return ""

    def not_a_time(self, column: str) -> str | None:
        """The condition that a stored time is not one; None if the database ensures it."""
        return None

    def check_server(self) -> Iterator[Finding]:
        """How the server stores tables, and its time zone, if it matters."""
        yield from ()


def inspect_database(connection: Connection, names: TableNames) -> Inspection:
    """Look at the tables of one name, with the module that is named as the database's dialect."""
    module = import_module(f".{dialect_of(connection.dialect).name}", __package__)
    inspection: Inspection = module.INSPECTION(connection, names)
    return inspection

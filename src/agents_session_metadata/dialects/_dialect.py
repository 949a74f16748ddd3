"""The base class of all dialects: statements, expressions and flags, in standard SQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, TypeAlias

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Table,
    bindparam,
    func,
    inspect,
    literal_column,
    text,
    true,
)
from sqlalchemy.engine import Engine
from sqlalchemy.types import TypeEngine

from ._locks import Locks
from ._text import TextSQL
from .sqltypes import SDKTime, SessionId

Statement: TypeAlias = Any
"""A SELECT: SQLAlchemy 2.0 and 2.1 give `Select` different type parameters."""


Existing: TypeAlias = Mapping[str, frozenset[str]]
"""The columns and indexes, in lower case, by the name of the table; empty if not asked for."""

LONGEST_WAIT = 5
"""Seconds for which DDL waits for a table."""


class IdColumn(NamedTuple):
    """`is_text`: stores every text unchanged. `is_exact`: keeps different texts apart."""

    name: str
    type: str
    collation: str
    is_text: bool
    is_exact: bool


class Dialect:
    """The SQL and flags of one database. This class uses standard SQL."""

    name: ClassVar[str]
    insert: ClassVar[Any]
    """SQLAlchemy's INSERT for this database, with `on_conflict_do_nothing` if it has that."""
    locks: ClassVar[type[Locks]]
    text_search: ClassVar[TextSQL] = TextSQL()
    stored_time: ClassVar[SDKTime]
    """A time of the SDK's tables in a form that sorts. Its text fits into a cursor."""
    moment: ClassVar[SDKTime]
    """The same time as an aware datetime in UTC."""

    # Transactions:
    autocommit_reads: ClassVar[bool] = False
    """A single SELECT is faster outside a transaction."""
    write_isolation: ClassVar[str | None] = None
    """The isolation level of write transactions, if setting it requires no extra statement."""
    usual_isolation: ClassVar[str]
    """The isolation level of transactions on an engine that commits each statement."""
    locks_rows: ClassVar[bool] = True
    """A transaction locks single rows, and does not keep out all other writers."""
    transactional_ddl: ClassVar[bool] = True
    """One transaction can create a table and insert its rows."""

    # Tables:
    uses_triggers: ClassVar[bool] = False
    """Triggers, instead of foreign keys, delete metadata with its session."""
    bounded_ids: ClassVar[bool] = False
    """The sessions table truncates or rejects ids of more than 255 characters."""
    indexes_ids: ClassVar[bool] = False
    """An index on a time of the sessions has their ids, too."""

    # Queries:
    stops_early: ClassVar[bool] = True
    """A query with a LIMIT reads an index in order, and no more rows than it needs."""
    numbers_rows: ClassVar[bool] = False
    """Numbering the rows of an index does not read more of them than are needed."""
    probe_cost: ClassVar[float] = 0.8
    """The time to find out whether a session matches / the time to read and sort one that does.

    Measured among 200,000 sessions. The bounds of `query.walks` follow from it.
    """
    many: ClassVar[int] = 200
    """Longer lists may be bound in another way."""
    sorted_bytes: ClassVar[int] = 2**31
    """The number of leading bytes of a binary value that ORDER BY compares."""

    # Queries that `ask` runs:
    place: ClassVar[str] = ""
    """A condition of the information schema for one table."""
    describe_ids: ClassVar[str]
    """Selects the fields of `IdColumn` of the columns `session_id` and `key`."""
    name_triggers: ClassVar[str]
    measure_table: ClassVar[str]
    """Selects the size of a table with its indexes in bytes."""
    estimate_rows: ClassVar[str]
    """Selects an estimate of the rows of a table, or nothing if it has no index `:index`."""

    def connect(self, engine: Engine) -> Connection:
        return engine.connect()

    def commits_each(self, connection: Connection) -> bool:
        fairy: Any = connection.connection
        return connection.dialect.detect_autocommit_setting(fairy.dbapi_connection)

    def begin(self, connection: Connection) -> None:
        """Begins a transaction if the driver would commit each statement."""

    def begin_writing(self, connection: Connection) -> None:
        """Begins a transaction, and keeps other writers out, if nothing else does.

        Must be called before DDL, and before a locking SELECT that begins a transaction.
        """

    def begin_snapshot(self, connection: Connection) -> None:
        connection.execution_options(isolation_level="REPEATABLE READ")

    def locking(self, statement: Statement) -> Statement:
        """Adapts a SELECT of metadata that is then written, while the session's row is locked."""
        return statement

    def upsert(self, table: Table, replaced: Sequence[str]) -> Any:
        statement = self.insert(table)
        return statement.on_conflict_do_update(
            index_elements=list(table.primary_key.columns),
            set_=replacements(table, statement.excluded, replaced),
        )

    def upsert_reading(
        self, table: Table, replaced: Sequence[str], read: Sequence[ColumnElement[Any]]
    ) -> Statement | None:
        """Upserts rows that `lists_of` binds, and reads earlier values of the session `session`.

        None if the database cannot read in the same statement.
        """
        return None

    def insert_both(self, *tables: Table) -> Statement | None:
        """Inserts rows of several tables, as `lists_of` binds them; None if one at a time."""
        return None

    def insert_missing(self, table: Table) -> Any:
        """Skips rows whose primary key exists."""
        return self.insert(table).on_conflict_do_nothing()

    def one_of(self, column: ColumnElement[Any], name: str, count: int) -> ColumnElement[bool]:
        """Compares a column with `count` values, which `list_parameters` binds under the same name.

        Any count stays within the number of parameters that the driver allows.
        """
        return column.in_(bindparam(name, expanding=True, type_=column.type))

    def list_parameters(self, name: str, values: Sequence[Any]) -> dict[str, Any]:
        return {name: list(values)}

    def looked_up(self, key: ColumnElement[str], value: ColumnElement[str]) -> ColumnElement[bool]:
        """Joins by primary key, so that each value is looked up and no table is read whole."""
        return key == value

    def by_primary_key(
        self, key: ColumnElement[str], value: ColumnElement[str]
    ) -> ColumnElement[bool]:
        """Compares the key of a row whose session is given, and which is looked up by that."""
        return key == value

    def probing(self, statement: Statement, rows: FromClause, session_id: Any) -> Statement:
        """Has a statement look up one session in the covering index of its rows."""
        # With a range of one id, this index is used, and not that of the primary key.
        return statement.where(rows.c.session_id.between(session_id, session_id))

    def by_code_point(self, column: ColumnElement[str], *, native: bool) -> ColumnElement[str]:
        """Sorts by code point, and LIKE can search it; `native` columns already sort that way."""
        return column

    def is_exactly(self, column: ColumnElement[str], text: str) -> ColumnElement[bool]:
        """Compares a column of long texts, which MySQL compares without case and accents."""
        return column == text

    def byte_length(self, column: ColumnElement[str]) -> ColumnElement[int]:
        """Returns the length of a text in UTF-8."""
        return func.octet_length(column)

    def whole(self, column: ColumnElement[bytes]) -> ColumnElement[Any]:
        """Returns an expression to group long values by in a window, compared as a whole."""
        return column

    def unindexed(self, time: ColumnElement[Any]) -> ColumnElement[Any]:
        """Returns a column of the SDK's tables so that no index is read in its order."""
        return time  # MySQL's `stored_time` is an expression, and PostgreSQL finds the rows first.

    def found_first(self, found: Statement) -> FromClause | None:
        """Returns rows that are all found before they are sorted; None if the planner does so."""
        return None

    def outer_limit(self, moment: ColumnElement[Any], *, high: bool) -> ColumnElement[Any]:
        """Converts a `moment` to a limit on stored times that contains all moments within it.

        It need not be exact: it only reduces the number of rows read.
        """
        return moment

    def reaches(self, column: ColumnElement[Any], *, descending: bool) -> ColumnElement[bool]:
        """Limits a column to times from `after_time` on, so that an index on it is read from there.

        The limit need not be exact.
        """
        return true()

    def time_index_rows(self, connection: Connection, sessions: Table, name: str) -> int | None:
        """Returns an estimate of the rows of the sessions table; None if it has no such index."""
        rows = self.ask(connection, sessions, self.estimate_rows, index=name).first()
        return None if rows is None else int(rows[0] or 0)

    def time_to_store(self, moment: datetime) -> Any:
        """Raises ValueError if the SDK's tables cannot store the time."""
        raise NotImplementedError

    def insert_rows(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Inserts rows so that the numbers that the database assigns are in the same order.

        All rows name the same columns. Times are in the SDK's tables, from `time_to_store`.
        """
        raise NotImplementedError

    def now(self) -> ColumnElement[int]:
        """Returns microseconds since 1970 in UTC, by the database's clock."""
        raise NotImplementedError

    def discard_plans(self, connection: Connection) -> None:
        """Makes the connection plan its statements anew, for tables that have grown since."""

    def ask(self, connection: Connection, table: Table, query: str, **more: object) -> Any:
        """Runs a query of the system catalog about one table.

        The query has its plain name and schema as parameters, its full name as the parameter or the
        field `table`, its schema with a dot as a field, and `place`.
        """
        full = qualified_text(connection, table)
        schema = connection.schema_for_object(table)
        own = {"name": table.name, "schema": schema, "table": full, **more}
        names = {"schema": schema_of(connection, table), "table": full.replace(":", r"\:")}
        return connection.execute(text(query.format(**names, place=self.place)), own)

    def drop_trigger(self, schema: str, name: str) -> str:
        return f"DROP TRIGGER IF EXISTS {schema}{name}"

    def existing(
        self, connection: Connection, sessions: Table, names: Sequence[str], *, parts: bool
    ) -> Existing:
        """Returns the tables that the user may use, and if asked for, their columns and indexes.

        This is one statement. With `uses_triggers`, the result also has the names of all triggers.
        """
        raise NotImplementedError

    def triggers_of(self, connection: Connection, table: Table) -> Iterable[str]:
        names: Iterable[str] = self.ask(connection, table, self.name_triggers).scalars()
        return names

    @contextmanager
    def brief_waits(self, connection: Connection) -> Iterator[None]:
        """Limits to five seconds how long a statement in the block waits for a table.

        Other statements queue behind one that waits. The connection gets its own limit back. On
        SQLite, nothing queues behind a statement that waits.
        """
        yield

    def check_connection(self, connection: Connection) -> None:
        """Raises an error if the driver's quoting would be unsafe; checks each connection once."""

    def server_warnings(self, connection: Connection) -> list[str]:
        return []

    def table_bytes(self, connection: Connection, table: Table) -> int | None:
        """Returns the size of a table with its indexes; None if the database does not report it."""
        size = self.ask(connection, table, self.measure_table).scalar()
        return None if size is None else int(size)

    def id_columns(self, connection: Connection, table: Table) -> list[IdColumn]:
        return [IdColumn(*row) for row in self.ask(connection, table, self.describe_ids)]

    def parent_id(self, connection: Connection, sessions: Table) -> TypeEngine[Any]:
        return SessionId()

    def sorts_by_code_point(self, connection: Connection, sessions: Table) -> bool:
        return True

    def own_id(self, parent: TypeEngine[Any]) -> TypeEngine[Any]:
        return parent

    def item_id(self, connection: Connection, messages: Table) -> Any:
        """Returns the type of the ids of items in a table that exists."""
        schema = connection.schema_for_object(messages)
        columns = inspect(connection).get_columns(messages.name, schema)
        return next(column["type"] for column in columns if column["name"] == "id")


def by_table(names: Iterable[str], found: Iterable[Any]) -> dict[str, frozenset[str]]:
    """Groups rows of a table and a part of it. Databases can ignore the case of both."""
    parts: dict[str, set[str]] = {}
    for table, part in found:
        own = parts.setdefault(table.lower(), set())
        if part:
            own.add(part.lower())
    return {name: frozenset(parts[name.lower()]) for name in names if name.lower() in parts}


def literal_number(value: int) -> ColumnElement[int]:
    """A number in the text of a statement."""
    return literal_column(str(value), Integer)


def literal_parameter(name: str) -> BindParameter[int]:
    """A parameter whose value is in the text of the statement, where planners see it: a limit."""
    return bindparam(name, type_=Integer, literal_execute=True)


def lists_of(
    table: Table, rows: Sequence[Mapping[str, Any]], names: Iterable[str] = ()
) -> dict[str, Any]:
    """Rows as one list for each of the columns, by default those that have no default."""
    return {
        f"{table.name}_{name}": [row[name] for row in rows] for name in names or names_of(table)
    }


def names_of(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.c if column.server_default is None)


def replacements(table: Table, new: Any, replaced: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {name: new[name] for name in replaced}
    if "updated_at" in table.c:
        values["updated_at"] = func.current_timestamp()
    return values


def schema_of(connection: Connection, table: Table) -> str:
    """Returns a quoted schema and a dot, or an empty string without a schema."""
    schema = connection.schema_for_object(table)
    return f"{connection.dialect.identifier_preparer.quote(schema)}." if schema else ""


def qualified(connection: Connection, table: Table) -> str:
    """Includes the translated schema if there is one."""
    name = connection.dialect.identifier_preparer.quote(table.name)
    return schema_of(connection, table) + name


def qualified_text(connection: Connection, table: Table) -> str:
    """Like `qualified`, for a value or for `text`.

    Some drivers need each % doubled in statements, which `text` does, but not in values.
    """
    name = qualified(connection, table)
    in_percents = connection.dialect.paramstyle in ("format", "pyformat")
    return name.replace("%%", "%") if in_percents else name

"""The base class of all dialects: statements, expressions and flags, in standard SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Insert,
    Table,
    bindparam,
    func,
    inspect,
    select,
    text,
    true,
)
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from ._locks import Locks
from ._shapes import ShapeSQL
from ._triggers import TriggerSQL
from .sqltypes import SessionId

Statement: TypeAlias = Any
"""A SELECT: SQLAlchemy 2.0 and 2.1 give `Select` different type parameters."""


class Triples(NamedTuple):
    """Rows of a name and two whole numbers."""

    rows: FromClause
    name: ColumnElement[Any]
    first: ColumnElement[Any]
    second: ColumnElement[Any]


class Link(NamedTuple):
    """A foreign key of a column `session_id`.

    Attributes:
        child: The table that has it.
        parent: The table that it refers to, as a message names it.
        is_right: Whether that is the sessions table.
    """

    child: str
    parent: str
    is_right: bool


class Dialect:
    """The SQL, error codes and flags of one database. This class uses standard SQL."""

    name: ClassVar[str]
    triggers: ClassVar[TriggerSQL] = TriggerSQL()
    """The SQL of triggers."""
    shapes: ClassVar[ShapeSQL]
    """The SQL for how ids are stored and compared."""
    autocommit_reads: ClassVar[bool] = False
    """Whether a single SELECT is faster outside a transaction."""
    lost_statement_codes: ClassVar[frozenset[object]] = frozenset()
    """Error codes for running a statement that was prepared on another connection."""
    locks_metadata: ClassVar[bool] = False
    """Whether reading metadata before writing it must lock its rows too, beside the session's."""
    write_isolation: ClassVar[str | None] = None
    """The isolation level of write transactions, if setting it requires no extra statement."""
    usual_isolation: ClassVar[str]
    """The isolation level of transactions on an engine that commits each statement."""
    bounded_ids: ClassVar[bool] = False
    """Whether the sessions table truncates or rejects ids of more than 255 characters."""
    single_writer: ClassVar[bool] = False
    """Whether the first write of a transaction blocks all other writers, before it reads."""
    uses_triggers: ClassVar[bool] = False
    """Whether triggers, instead of foreign keys, delete metadata with its session."""
    vetoes_silently: ClassVar[bool] = True
    """Whether a trigger can keep a row that a DELETE, without an error, then does not return."""
    stops_early: ClassVar[bool] = True
    """Whether a query with a LIMIT reads an index in order, and no more rows than it needs."""
    probes_by_range: ClassVar[bool] = False
    """Whether to look up an id by a range of only this id, so that the covering index is used."""
    transactional_ddl: ClassVar[bool] = True
    """Whether one transaction can create a table and insert its rows."""
    many: ClassVar[int] = 200
    """Lists with more values than this may be bound in another way."""
    sorted_bytes: ClassVar[int] = 2**31
    """The number of leading bytes of a binary value that ORDER BY compares."""
    warns_of_missing: ClassVar[bool] = False
    """Whether `DROP … IF EXISTS` raises a warning if there is nothing to drop."""
    index_if_not_exists: ClassVar[bool] = True
    """Whether `CREATE INDEX IF NOT EXISTS` is supported."""
    creation_race_codes: ClassVar[frozenset[object]] = frozenset()
    """Error codes for a CREATE that failed because another process ran the same one first."""
    transient_codes: ClassVar[frozenset[object]] = frozenset()
    """Error codes of transactions that may succeed if they are retried."""

    def configure(self, engine: Engine) -> None:
        """Configures connections as the SDK does, if the SDK configures them."""

    def connect(self, engine: Engine) -> Connection:
        """Returns a connection from the engine's pool."""
        return engine.connect()

    def error_code(self, error: DBAPIError) -> object:
        """Returns the database's code for an error."""
        raise NotImplementedError

    def is_transient(self, error: DBAPIError) -> bool:
        """Whether the transaction may succeed if it is retried."""
        return self.error_code(error) in self.transient_codes

    def lost_its_statement(self, error: DBAPIError) -> bool:
        """Whether a pooler ran a prepared statement on another connection than prepared it."""
        return self.error_code(error) in self.lost_statement_codes

    def is_creation_race(self, error: DBAPIError) -> bool:
        """Whether a CREATE failed because another process ran the same one first."""
        return self.error_code(error) in self.creation_race_codes

    def advice(self, error: DBAPIError) -> str:
        """What to do about an error in a write, if the error itself does not say it."""
        return ""

    def commits_each(self, connection: Connection) -> bool:
        """Whether a connection is in autocommit mode."""
        fairy: Any = connection.connection
        return connection.dialect.detect_autocommit_setting(fairy.dbapi_connection)

    def begin(self, connection: Connection) -> None:
        """Begins a transaction if the driver would commit each statement."""

    def begin_ddl(self, connection: Connection) -> None:
        """Begins a transaction if the driver begins none before DDL."""

    def begin_snapshot(self, connection: Connection) -> None:
        """Begins a transaction whose statements all read the same snapshot."""
        connection.execution_options(isolation_level="REPEATABLE READ")

    def locks(self, sessions: Table, metadata: Table, elements: Table) -> Locks:
        """Returns the statements that lock one session's row."""
        raise NotImplementedError

    def lock_rows(self, sessions: Table, name: str, count: int) -> Any:
        """Locks the sessions of `list_parameters` in the order of their ids, and selects these."""
        return (
            select(sessions.c.session_id)
            .where(self.one_of(sessions.c.session_id, name, count))
            .order_by(sessions.c.session_id)
            .with_for_update()
        )

    def locking(self, statement: Statement) -> Statement:
        """Adapts a SELECT of metadata that is then written, while the session's row is locked."""
        return statement.with_for_update() if self.locks_metadata else statement

    def upsert(self, table: Table, replaced: Sequence[str]) -> Insert:
        """Inserts a row, or updates the given columns of the row with the same primary key."""
        raise NotImplementedError

    def upsert_reading(
        self, table: Table, replaced: Sequence[str], read: Sequence[ColumnElement[Any]]
    ) -> tuple[Statement, Sequence[str]] | None:
        """Upsert rows of the session `of_session`, and read columns as they were before.

        Returns:
            The statement and the names of the columns that it writes: each takes a list, bound as
            `given_` and its name. None if the database cannot read as it writes.
        """
        return None

    def insert_missing(self, table: Table, *, selected: bool = False) -> Any:
        """Inserts rows and skips those whose primary key exists.

        Args:
            table: The table to insert into.
            selected: Whether the rows come from a SELECT.
        """
        raise NotImplementedError

    def one_of(self, column: ColumnElement[Any], name: str, count: int) -> ColumnElement[bool]:
        """Whether a column has one of `count` values.

        `list_parameters` binds the values under the same name. Any count stays within the number of
        parameters that the driver allows.
        """
        return column.in_(bindparam(name, expanding=True, type_=column.type))

    def list_parameters(self, name: str, values: Sequence[Any]) -> dict[str, Any]:
        """Returns the parameters of `one_of`."""
        return {name: list(values)}

    def looked_up(self, key: ColumnElement[str], value: ColumnElement[str]) -> ColumnElement[bool]:
        """Joins by primary key, so that each value is looked up and no table is read whole."""
        return key == value

    def by_code_point(self, column: ColumnElement[str], *, native: bool) -> ColumnElement[str]:
        """A text in a form that sorts by code point, and in which LIKE can search.

        Args:
            column: The column with the text.
            native: Whether the column itself sorts by code point.
        """
        return column

    def byte_length(self, column: ColumnElement[str]) -> ColumnElement[int]:
        """The number of bytes of a text in UTF-8."""
        return func.octet_length(column)

    def literal(self, text: str) -> str:
        """A text as SQL, on one line; the same text whatever the settings of server and client."""
        return "'" + text.replace("'", "''") + "'"

    def json_text(self, column: ColumnElement[str]) -> ColumnElement[Any]:
        """A stored JSON text, or its bytes. None if the stored value is not text."""
        return column

    def item_text(self, column: ColumnElement[str]) -> ColumnElement[Any]:
        """The stored text of an item, or its bytes if the text need not be UTF-8."""
        return column

    def not_a_text(self, column: ColumnElement[Any]) -> ColumnElement[bool] | None:
        """The condition that a stored text has another type; None if the database ensures it."""
        return None

    def unindexed_time(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """A `stored_time` that no SQL index on the column serves."""
        raise NotImplementedError

    def reaches(self, column: ColumnElement[Any], *, descending: bool) -> ColumnElement[bool]:
        """Limits a column to times from `after_time` on, so that an index on it is read from there.

        The limit need not be exact.
        """
        return true()

    def stored_time(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """A time of the SDK's tables in a form that sorts and that a cursor can contain."""
        raise NotImplementedError

    def stored_time_type(self) -> TypeEngine[Any]:
        """The type of a `stored_time`."""
        raise NotImplementedError

    def stored_time_value(self, stored: str) -> Any:
        """Converts the text of a stored time in a cursor to a parameter.

        Raises:
            ArithmeticError: If the database stores times as numbers and the text is not a number.
            ValueError: If the text is not a stored time.
        """
        raise NotImplementedError

    def position_parameters(self, stored: str | None, session_id: str) -> dict[str, Any]:
        """Returns the parameters for the position where a page ended.

        Raises:
            ArithmeticError: As `stored_time_value`.
            ValueError: If no page can end there.
        """
        session_id.encode()
        time = {} if stored is None else {"after_time": self.stored_time_value(stored)}
        return {"after_id": session_id, **time}

    def utc(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """A time of the SDK's tables in the form that `to_datetime` requires."""
        raise NotImplementedError

    def to_datetime(self, value: Any) -> datetime:
        """Converts a value selected by `utc` to an aware datetime in UTC."""
        raise NotImplementedError

    def moment(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """A time of the SDK's tables in a form that compares with a `moment_value`."""
        raise NotImplementedError

    def moment_type(self) -> TypeEngine[Any]:
        """The type of a `moment`."""
        raise NotImplementedError

    def moment_value(self, moment: datetime) -> Any:
        """Converts an aware datetime to a parameter that compares with `moment`."""
        raise NotImplementedError

    def outer_limit(self, name: str, *, high: bool) -> ColumnElement[Any]:
        """A wider limit on stored times for a given limit on moments.

        It contains every stored time whose moment is within the given limit. It need not be exact:
        it only reduces the number of rows read. Its parameter is `<name>_outer`, an `outer_value`.
        """
        return bindparam(f"{name}_outer", type_=self.stored_time_type())

    def outer_value(self, moment: datetime, *, high: bool) -> Any:
        """Converts an aware datetime to the parameter of `outer_limit`."""
        return self.moment_value(moment)

    def time_to_store(self, moment: datetime) -> Any:
        """Converts an aware datetime to a value for `insert_rows`.

        Raises:
            ValueError: If the SDK's tables cannot store the time.
        """
        raise NotImplementedError

    def insert_rows(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *times: str
    ) -> None:
        """Inserts rows in their order, which is also that of the numbers that the database gives.

        Args:
            connection: The connection to write through.
            table: The table to insert into.
            rows: The values of the columns by name; all rows name the same columns.
            times: Columns that hold times of the SDK's tables. In `rows`, their names have the
                prefix `new_`, and their values come from `time_to_store`.
        """
        raise NotImplementedError

    def now(self) -> ColumnElement[int]:
        """The current time by the database's clock, in microseconds since 1970 in UTC."""
        raise NotImplementedError

    def whole_sum(self, text: ColumnElement[str]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        """The sum of integers in JSON text, as the number of billions and the remainder."""
        raise NotImplementedError

    def exact_sum(self, text: ColumnElement[str]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        """The sum of numbers in JSON text, and the part missing from it in units of 10 ** -12."""
        raise NotImplementedError

    def triples(self, text: ColumnElement[str]) -> Triples:
        """The entries of a JSON list of `[name, number, number]`, as rows to join.

        The text must be a list. An entry of another form becomes a row without a name.
        """
        raise NotImplementedError

    def discard_plans(self, connection: Connection) -> None:
        """Makes the connection plan its statements anew, for tables that have grown since."""

    def schema_of(self, connection: Connection, table: Table) -> str:
        """Returns the quoted schema of a table and a dot, or an empty string without a schema."""
        schema = connection.schema_for_object(table)
        return f"{connection.dialect.identifier_preparer.quote(schema)}." if schema else ""

    def existing_triggers(self, connection: Connection, *tables: Table) -> dict[str, str]:
        """Returns the triggers on tables: what they run, by name."""
        return {name: body for one in tables for name, body in self.triggers_of(connection, one)}

    def triggers_of(self, connection: Connection, table: Table) -> Iterable[tuple[str, str]]:
        """Returns the triggers on a table, each with what it runs."""
        raise NotImplementedError

    def taken_names(self, connection: Connection, sessions: Table) -> set[tuple[str, str]]:
        """Returns names that tables beside the sessions do not share, each with its table."""
        raise NotImplementedError

    def create_trigger(self, connection: Connection, statement: str) -> None:
        """Creates a trigger, unless another process has created it in the meantime."""
        try:
            connection.exec_driver_sql(statement)
        except DBAPIError as error:
            if not self.is_creation_race(error):
                raise

    def session_links(
        self, connection: Connection, sessions: Table, children: Sequence[Table]
    ) -> list[Link]:
        """Returns the foreign keys of the column `session_id` in tables, with one statement."""
        raise NotImplementedError

    def referring_columns(
        self, connection: Connection, sessions: Table
    ) -> list[tuple[str | None, str, str]]:
        """Returns the columns of the tables that refer to the sessions: schema, table and column.

        The schema is None if it is that of the sessions. What the user may not know of is left out.
        """
        raise NotImplementedError

    def tables_with(
        self, connection: Connection, sessions: Table, columns: Sequence[str]
    ) -> list[str]:
        """Returns the names of the tables beside the sessions table that have these columns."""
        schema = connection.schema_for_object(sessions)
        query = text(self.columns_query(self.schema_of(connection, sessions)))
        query = query.bindparams(bindparam("columns", list(columns), expanding=True), schema=schema)
        found = Counter(connection.scalars(query))
        return sorted(name for name, number in found.items() if number == len(columns))

    def beside(
        self, connection: Connection, sessions: Table, tables: Sequence[Table]
    ) -> list[Table]:
        """Returns the tables that exist and can belong to the sessions table.

        On PostgreSQL, a name can find a table in another schema, of somebody else's sessions.
        """
        schema = connection.schema_for_object(sessions)
        has_table = inspect(connection).has_table
        return [each for each in tables if has_table(each.name, schema)]

    def usable(
        self,
        connection: Connection,
        sessions: Table,
        tables: Sequence[Table],
        privilege: str = "select",
    ) -> list[Table]:
        """Returns the tables of `beside` on which the user has a privilege."""
        raise NotImplementedError

    def restricted(self, connection: Connection, tables: Sequence[Table]) -> list[Table]:
        """Returns the tables that exist and whose rows a policy can hide from the user."""
        return []

    def refuse_restricted(self, connection: Connection, tables: Sequence[Table]) -> None:
        """Raises the database's error if a policy can hide rows of tables from the user."""

    def in_shell(self, statement: str) -> str:
        """Returns a statement with what ends it in the database's own shell."""
        return f"{statement};"

    def columns_query(self, schema: str) -> str:
        """Returns a query for the tables of a schema, once per column of theirs in `:columns`.

        Args:
            schema: As `schema_of` returns it. The query can also use it unquoted, as `:schema`.
        """
        raise NotImplementedError

    def lock_tables(self, connection: Connection, tables: Sequence[Table]) -> bool:
        """Locks tables against other writers until the transaction ends, if DDL is transactional.

        Returns:
            Whether the tables are locked. If not, others can write in the meantime.
        """
        return False

    def refuses_triggers(self, error: DBAPIError) -> bool:
        """Whether an error means that the user lacks the privilege to create triggers."""
        return False

    @contextmanager
    def brief_waits(self, connection: Connection) -> Iterator[None]:
        """Limits to five seconds how long a statement in the block waits for a table."""
        yield

    def check_settings(self, connection: Connection) -> None:
        """Raises UnsupportedDialectError if values would be read or bound wrongly."""

    def check_connection(self, connection: Connection) -> None:
        """As `check_settings`, before each use; also refuses a connection without foreign keys."""

    def parent_id(self, connection: Connection, sessions: Table) -> tuple[TypeEngine[Any], bool]:
        """Returns the type of ids in a sessions table, and whether it sorts by code point."""
        return SessionId(), True

    def own_id(self, parent: TypeEngine[Any]) -> TypeEngine[Any]:
        """Returns the type of ids in the package's tables, given that of the sessions table."""
        return parent


def replacements(new: Any, replaced: Sequence[str]) -> dict[str, Any]:
    """Returns the columns that an upsert sets: the new values and `updated_at`."""
    values: dict[str, Any] = {name: new[name] for name in replaced}
    values["updated_at"] = func.current_timestamp()
    return values

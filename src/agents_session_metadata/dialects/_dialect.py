"""The base class of all dialects: statements, expressions and flags, in standard SQL."""

from __future__ import annotations

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
    select,
    true,
)
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from ._locks import Locks
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


class IdColumn(NamedTuple):
    """How a table stores ids or keys.

    Attributes:
        name: The name of the column.
        type: Its type, as SQL spells it.
        collation: The name of its collation.
        is_text: Whether it stores every text unchanged.
        is_exact: Whether it keeps different texts apart.
    """

    name: str
    type: str
    collation: str
    is_text: bool
    is_exact: bool


class Dialect:
    """The SQL, error codes and flags of one database. This class uses standard SQL."""

    name: ClassVar[str]
    triggers: ClassVar[TriggerSQL] = TriggerSQL()
    """The SQL of triggers."""
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

    def create_trigger(self, connection: Connection, statement: str) -> None:
        """Creates a trigger, unless another process has created it in the meantime."""
        try:
            connection.exec_driver_sql(statement)
        except DBAPIError as error:
            if not self.is_creation_race(error):
                raise

    def existing(self, connection: Connection, sessions: Table, names: Sequence[str]) -> set[str]:
        """Returns which tables exist beside the sessions table.

        With `uses_triggers`, the names of all triggers are among them.
        """
        raise NotImplementedError

    def existing_triggers(self, connection: Connection, *tables: Table) -> dict[str, str]:
        """Returns the triggers on tables: what they run, by name."""
        return {name: body for one in tables for name, body in self.triggers_of(connection, one)}

    def triggers_of(self, connection: Connection, table: Table) -> Iterable[tuple[str, str]]:
        """Returns the triggers on a table, each with what it runs."""
        raise NotImplementedError

    def refuse_restricted(self, connection: Connection, tables: Sequence[Table]) -> None:
        """Raises the database's error if a policy can hide rows of tables from the user."""

    def in_shell(self, statement: str) -> str:
        """Returns a statement with what ends it in the database's own shell."""
        return f"{statement};"

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

    def check_connection(self, connection: Connection) -> None:
        """Raises UnsupportedDialectError if the driver's quoting would be unsafe.

        It looks once at each connection that the pool opens.
        """

    def server_warnings(self, connection: Connection) -> list[str]:
        """Returns what to know about the time zone and the settings of the server."""
        return []

    def id_columns(self, connection: Connection, table: Table) -> list[IdColumn]:
        """Returns the columns `session_id` and `key` of a table that exists."""
        raise NotImplementedError

    def lost_definers(
        self, connection: Connection, tables: Sequence[Table]
    ) -> list[tuple[str, str]]:
        """Returns the triggers on tables that run as a user who does not exist, and this user."""
        return []

    def parent_id(self, connection: Connection, sessions: Table) -> TypeEngine[Any]:
        """Returns the type of ids in a sessions table that exists."""
        return SessionId()

    def sorts_by_code_point(self, connection: Connection, sessions: Table) -> bool:
        """Whether the ids in the sessions table compare by code point as they are."""
        return True

    def own_id(self, parent: TypeEngine[Any]) -> TypeEngine[Any]:
        """Returns the type of ids in the package's tables, given that of the sessions table."""
        return parent


def replacements(new: Any, replaced: Sequence[str]) -> dict[str, Any]:
    """Returns the columns that an upsert sets: the new values and `updated_at`."""
    values: dict[str, Any] = {name: new[name] for name in replaced}
    values["updated_at"] = func.current_timestamp()
    return values

"""What the package asks of a database: statements, expressions, flags; as in standard SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    """One database's ways. The methods of this class are those of standard SQL."""

    name: ClassVar[str]
    triggers: ClassVar[TriggerSQL] = TriggerSQL()
    """How it spells triggers."""
    autocommit_reads: ClassVar[bool] = False
    """Whether a lone SELECT is faster outside a transaction."""
    lost_statement_codes: ClassVar[frozenset[object]] = frozenset()
    """Errors of a statement that was prepared on another connection than it is run on."""
    locks_metadata: ClassVar[bool] = False
    """Whether reading metadata before writing it has to lock its rows, not the session's alone."""
    write_isolation: ClassVar[str | None] = None
    """The isolation level of write transactions, where setting it costs no statement."""
    bounded_ids: ClassVar[bool] = False
    """Whether the sessions table cuts or refuses ids of more than 255 characters."""
    single_writer: ClassVar[bool] = False
    """Whether the first write of a transaction shuts out all others, before it reads."""
    uses_triggers: ClassVar[bool] = False
    """Whether triggers, not foreign keys, delete metadata with its session."""
    nests_correlated: ClassVar[bool] = True
    """Whether a subquery in FROM may refer to the query around the one that it is in."""
    probes_by_range: ClassVar[bool] = False
    """Whether a row is found in the covering index by a range of one id.

    By equality with the id, the primary key would be taken, and the row fetched after it.
    """
    transactional_ddl: ClassVar[bool] = True
    """Whether a table and its rows can be made in one transaction."""
    many: ClassVar[int] = 200
    """Above so many values, a list may be bound in another way."""
    sorted_bytes: ClassVar[int] = 2**31
    """Bytes of a long binary value that ORDER BY takes into account."""
    rows_per_insert: ClassVar[int] = 1
    """Rows with computed columns that one INSERT takes, where the driver sends each by itself."""
    warns_of_missing: ClassVar[bool] = False
    """Whether dropping what does not exist, `IF EXISTS`, gives a warning."""
    index_if_not_exists: ClassVar[bool] = True
    creation_race_codes: ClassVar[frozenset[object]] = frozenset()
    """Errors of a CREATE that another process won."""
    transient_codes: ClassVar[frozenset[object]] = frozenset()
    """Errors of a transaction that may succeed when it is run again."""

    def configure(self, engine: Engine) -> None:
        """Configure an engine's connections as the SDK does, where it does."""

    def error_code(self, error: DBAPIError) -> object:
        """The database's own code of an error."""
        raise NotImplementedError

    def is_transient(self, error: DBAPIError) -> bool:
        """Whether running the transaction again may succeed."""
        return self.error_code(error) in self.transient_codes

    def lost_its_statement(self, error: DBAPIError) -> bool:
        """Whether a pooler gave the steps of one statement to different connections."""
        return self.error_code(error) in self.lost_statement_codes

    def is_creation_race(self, error: DBAPIError) -> bool:
        """Whether a table or index could not be created because somebody else just did."""
        return self.error_code(error) in self.creation_race_codes

    def commits_each(self, connection: Connection) -> bool:
        """Whether a connection commits every statement by itself."""
        fairy: Any = connection.connection
        return connection.dialect.detect_autocommit_setting(fairy.dbapi_connection)

    def begin_snapshot(self, connection: Connection) -> None:
        """Begin a transaction whose statements all read the same state of the database."""
        connection.execution_options(isolation_level="REPEATABLE READ")

    def locks(self, sessions: Table, metadata: Table, elements: Table) -> Locks:
        """The statements that lock one session's row."""
        raise NotImplementedError

    def lock_rows(self, sessions: Table, name: str, count: int) -> Any:
        """Lock the rows of several sessions, in the order of their ids; it yields the ids found.

        The ids are bound by `list_parameters`.
        """
        return (
            select(sessions.c.session_id)
            .where(self.one_of(sessions.c.session_id, name, count))
            .order_by(sessions.c.session_id)
            .with_for_update()
        )

    def locking(self, statement: Statement) -> Statement:
        """A read of metadata before writing it, under the lock of the session's row."""
        return statement.with_for_update() if self.locks_metadata else statement

    def upsert(self, table: Table, replaced: Sequence[str]) -> Insert:
        """Insert a row, or replace the named columns of the one with its primary key."""
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

    def insert_missing(self, table: Table) -> Any:
        """Insert rows, except those whose primary key is there."""
        raise NotImplementedError

    def one_of(self, column: ColumnElement[Any], name: str, count: int) -> ColumnElement[bool]:
        """Whether a column has one of so many values, within the driver's count of parameters.

        The values are bound by `list_parameters` under the same name.
        """
        return column.in_(bindparam(name, expanding=True, type_=column.type))

    def list_parameters(self, name: str, values: Sequence[Any]) -> dict[str, Any]:
        """The parameters of a `one_of`."""
        return {name: list(values)}

    def looked_up(self, key: ColumnElement[str], value: ColumnElement[str]) -> ColumnElement[bool]:
        """A join by primary key that looks up what belongs to each value, and never reads all."""
        return key == value

    def by_code_point(self, column: ColumnElement[str], *, native: bool) -> ColumnElement[str]:
        """A session id as it sorts by code point; `native` says that the column does so itself."""
        return column

    def byte_length(self, column: ColumnElement[str]) -> ColumnElement[int]:
        """The bytes of a text in UTF-8."""
        return func.octet_length(column)

    def json_text(self, column: ColumnElement[str]) -> ColumnElement[Any]:
        """A stored JSON text, or its bytes; None if it is no text."""
        return column

    def ordered_time(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """A `stored_time` to order by, whatever is stored."""
        return self.stored_time(column)

    def stored_time(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """A time of the SDK's tables in a form that sorts and fits into a cursor."""
        raise NotImplementedError

    def stored_time_type(self) -> TypeEngine[Any]:
        """The type of a `stored_time`."""
        raise NotImplementedError

    def stored_time_value(self, stored: str) -> Any:
        """A stored time out of a cursor, as a parameter.

        Raises:
            ArithmeticError: If it is no number where one is needed.
            ValueError: If it is no stored time.
        """
        raise NotImplementedError

    def position_parameters(self, stored: str | None, session_id: str) -> dict[str, Any]:
        """Where a page ended, as parameters.

        Raises:
            ArithmeticError: As `stored_time_value`.
            ValueError: If no page ends there.
        """
        session_id.encode()
        after_id = {"after_id": session_id}
        if stored is None:
            return after_id
        return {**after_id, "after_time": self.stored_time_value(stored)}

    def local_time(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """A time of our tables, as the SDK's tables would have it."""
        return column

    def utc(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """A time of the SDK's tables, as `to_datetime` takes it."""
        raise NotImplementedError

    def to_datetime(self, value: Any) -> datetime:
        """A selected `utc` as an aware datetime in UTC."""
        raise NotImplementedError

    def moment(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """A time of the SDK's tables, as it compares with a `moment_value`."""
        raise NotImplementedError

    def moment_type(self) -> TypeEngine[Any]:
        """The type of a `moment`."""
        raise NotImplementedError

    def moment_value(self, moment: datetime) -> Any:
        """An aware datetime, as a parameter that compares with `moment`."""
        raise NotImplementedError

    def outer_limit(self, name: str, *, high: bool) -> ColumnElement[Any]:
        """A limit for stored times, of a limit for moments.

        Every stored time whose moment is within the limit is within this one; it is there to read
        fewer, and need not be exact. The parameter is `<name>_outer`, an `outer_value`.
        """
        return bindparam(f"{name}_outer", type_=self.stored_time_type())

    def outer_value(self, moment: datetime, *, high: bool) -> Any:
        """An aware datetime, as a parameter for `outer_limit`."""
        return self.moment_value(moment)

    def time_to_store(self, moment: datetime) -> Any:
        """An aware datetime, as `stored_by` takes it as a parameter.

        Raises:
            ValueError: If the SDK's tables cannot hold it.
        """
        raise NotImplementedError

    def stored_by(self, parameter: str) -> ColumnElement[Any]:
        """What puts the time of a named parameter into a column of the SDK's tables."""
        raise NotImplementedError

    def now(self) -> ColumnElement[int]:
        """The present time by the database's clock: microseconds since 1970, UTC."""
        raise NotImplementedError

    def whole_sum(self, text: ColumnElement[str]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        """The sum of whole numbers, given as JSON text: its billions, and the rest."""
        raise NotImplementedError

    def exact_sum(self, text: ColumnElement[str]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        """The sum of numbers, given as JSON text, and what it lacks in parts of 10 ** -12."""
        raise NotImplementedError

    def triples(self, text: ColumnElement[str]) -> Triples:
        """The entries of a JSON list of `[name, number, number]`, as rows to join with.

        The text must be a list. An entry of another form gives a row without a name.
        """
        raise NotImplementedError

    def schema_of(self, connection: Connection, table: Table) -> str:
        """The schema where a table is found, quoted and with its point; or nothing."""
        schema = connection.schema_for_object(table)
        return f"{connection.dialect.identifier_preparer.quote(schema)}." if schema else ""

    def existing_triggers(self, connection: Connection, table: Table) -> set[str]:
        """The names of the triggers on a table."""
        raise NotImplementedError

    def session_links(
        self, connection: Connection, sessions: Table, children: Sequence[Table]
    ) -> list[Link]:
        """The foreign keys of the column `session_id` in some tables, in one statement."""
        raise NotImplementedError

    def lock_tables(self, connection: Connection, tables: Sequence[Table]) -> bool:
        """Let nobody else write to some tables until the transaction ends, if DDL is part of it.

        Returns:
            Whether that is so. If not, others write in between.
        """
        return False

    def refuses_triggers(self, error: DBAPIError) -> bool:
        """Whether an error says that the user may not create triggers."""
        return False

    @contextmanager
    def brief_waits(self, connection: Connection) -> Iterator[None]:
        """Within it, a statement waits five seconds at most for a table."""
        yield

    def parent_id(self, connection: Connection, sessions: Table) -> tuple[TypeEngine[Any], bool]:
        """The type of ids in a sessions table that exists, and whether it sorts by code point."""
        return SessionId(), True

    def own_id(self, parent: TypeEngine[Any]) -> TypeEngine[Any]:
        """The type of ids in our tables, beside a sessions table with ids of this type."""
        return parent


def replacements(new: Any, replaced: Sequence[str]) -> dict[str, Any]:
    """What an upsert sets: the new values, and the time."""
    values: dict[str, Any] = {name: new[name] for name in replaced}
    values["updated_at"] = func.current_timestamp()
    return values

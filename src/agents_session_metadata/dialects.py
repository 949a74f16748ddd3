"""What differs between databases: types, statements, error codes. The only file that names one.

Everything else asks a `Dialect` for a statement, an expression or a flag.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple, TypeAlias

from sqlalchemy import (
    ARRAY,
    JSON,
    REAL,
    TIMESTAMP,
    Boolean,
    ColumnElement,
    Connection,
    FromClause,
    Insert,
    Integer,
    LargeBinary,
    Numeric,
    String,
    Table,
    Text,
    TypeDecorator,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    func,
    literal_column,
    null,
    select,
    text,
    type_coerce,
    update,
)
from sqlalchemy import (
    Dialect as SADialect,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import CursorResult
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction
from sqlalchemy.types import TypeEngine

from .errors import UnsupportedDialectError
from .types import MAX_KEY_LENGTH
from .values import SEARCH_KEY_BYTES

Statement: TypeAlias = Any
"""A SELECT: SQLAlchemy 2.0 and 2.1 give `Select` different type parameters."""

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
ID_LENGTH = 255
_FIRST_TIMESTAMP = datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
_LAST_TIMESTAMP = datetime(2038, 1, 19, 3, 14, 7, tzinfo=timezone.utc)


class Triples(NamedTuple):
    """Rows of a name and two whole numbers."""

    rows: FromClause
    name: ColumnElement[Any]
    first: ColumnElement[Any]
    second: ColumnElement[Any]


class Dialect:
    """One database's ways. The methods of this class are those of standard SQL."""

    name: ClassVar[str]
    autocommit_reads: ClassVar[bool] = False
    """Whether a lone SELECT is faster outside a transaction."""
    lost_statement_codes: ClassVar[frozenset[object]] = frozenset()
    """Errors of a statement that was prepared on another connection than it is run on."""
    locks_metadata: ClassVar[bool] = False
    """Whether reading metadata before writing it has to lock its rows, not the session's alone."""
    bounded_ids: ClassVar[bool] = False
    """Whether the sessions table cuts or refuses ids of more than 255 characters."""
    single_writer: ClassVar[bool] = False
    """Whether the first write of a transaction shuts out all others, before it reads."""
    uses_triggers: ClassVar[bool] = False
    """Whether triggers, not foreign keys, delete metadata with its session."""
    probes_by_range: ClassVar[bool] = False
    """Whether a row is found in the covering index by a range of one id.

    By equality with the id, the primary key would be taken, and the row fetched after it.
    """
    transactional_ddl: ClassVar[bool] = True
    """Whether a table and its rows can be made in one transaction."""
    many: ClassVar[int] = 200
    """Above so many values, a list may be bound in another way."""
    index_if_not_exists: ClassVar[bool] = True
    creation_race_codes: ClassVar[frozenset[object]] = frozenset()
    """Errors of a CREATE that another process won."""
    transient_codes: ClassVar[frozenset[object]] = frozenset()
    """Errors of a transaction that may succeed when it is run again."""

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

    def lock_or_create(self, sessions: Table) -> Insert:
        """Lock a session's row, making it if need be, as the first statement of a transaction.

        The bound parameter is `of_session`. It must not move `updated_at`, and must not read first:
        a snapshot taken before the lock would be read afterwards.
        """
        raise NotImplementedError

    def was_created(self, result: CursorResult[Any]) -> bool:
        """Whether `lock_or_create` made the row."""
        raise NotImplementedError

    def lock_existing(self, sessions: Table) -> Any:
        """Lock a session's row, if there is one; the bound parameter is `of_session`."""
        return (
            select(sessions.c.session_id)
            .where(sessions.c.session_id == bindparam("of_session"))
            .with_for_update()
        )

    def was_locked(self, result: CursorResult[Any]) -> bool:
        """Whether `lock_existing` found the row."""
        return result.first() is not None

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

    def time_to_store(self, moment: datetime) -> Any:
        """An aware datetime, as `stored_by` takes it as a parameter.

        Raises:
            ValueError: If the SDK's tables cannot hold it.
        """
        raise NotImplementedError

    def stored_by(self, parameter: str) -> ColumnElement[Any]:
        """What puts the time of a named parameter into a column of the SDK's tables."""
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

    def parent_id(self, connection: Connection, sessions: Table) -> tuple[TypeEngine[Any], bool]:
        """The type of ids in a sessions table that exists, and whether it sorts by code point."""
        return SessionId(), True

    def own_id(self, parent: TypeEngine[Any]) -> TypeEngine[Any]:
        """The type of ids in our tables, beside a sessions table with ids of this type."""
        return parent


class SQLite(Dialect):
    """SQLite, from 3.35."""

    name = "sqlite"
    single_writer = True
    uses_triggers = True
    probes_by_range = True
    transient_codes: ClassVar[frozenset[object]] = frozenset({5, 6})  # SQLITE_BUSY, SQLITE_LOCKED

    def error_code(self, error: DBAPIError) -> object:
        code = getattr(error.orig, "sqlite_errorcode", None)
        if code is None:
            # Python 3.10's sqlite3 gives no codes; these sentences are SQLite's own, untranslated.
            return 5 if "is locked" in str(error.orig) else None
        return code & 0xFF  # The low byte of an extended code is the plain one.

    def commits_each(self, connection: Connection) -> bool:
        if not super().commits_each(connection):
            return False
        # An application may have told the driver to begin nothing, in order to begin by itself.
        fairy: Any = connection.connection
        with connection.begin():
            return not fairy.driver_connection.in_transaction

    def lock_or_create(self, sessions: Table) -> Insert:
        return (
            sqlite.insert(sessions)
            .values(session_id=bindparam("of_session"))
            .on_conflict_do_nothing()
        )

    def was_created(self, result: CursorResult[Any]) -> bool:
        return result.rowcount == 1

    def lock_existing(self, sessions: Table) -> Any:
        # A write reserves the writer's lock, also when it finds no row.
        return (
            update(sessions)
            .where(sessions.c.session_id == bindparam("of_session"))
            .values(updated_at=sessions.c.updated_at)
        )

    def was_locked(self, result: CursorResult[Any]) -> bool:
        return result.rowcount == 1

    def upsert(self, table: Table, replaced: Sequence[str]) -> Insert:
        statement = sqlite.insert(table)
        return statement.on_conflict_do_update(
            index_elements=list(table.primary_key.columns),
            set_=_replacements(statement.excluded, replaced),
        )

    # SQLite counts every parameter of a list; a document with the values is one parameter.
    def one_of(self, column: ColumnElement[Any], name: str, count: int) -> ColumnElement[bool]:
        if count <= self.many:
            return super().one_of(column, name, count)
        each = func.json_each(bindparam(name, type_=String)).table_valued("value")
        if not isinstance(column.type, LargeBinary):
            return column.in_(select(each.c.value))
        start, length = (func.json_extract(each.c.value, f"$[{index}]") for index in (0, 1))
        data = bindparam(f"{name}_data", type_=LargeBinary)
        return column.in_(select(func.substr(data, start, length, type_=LargeBinary)))

    def list_parameters(self, name: str, values: Sequence[Any]) -> dict[str, Any]:
        if len(values) <= self.many:
            return super().list_parameters(name, values)
        if isinstance(values[0], str):
            return {name: json.dumps(list(values))}
        spans, start = [], 1
        for value in values:
            spans.append([start, len(value)])
            start += len(value)
        return {name: json.dumps(spans), f"{name}_data": b"".join(values)}

    # The SDK's times are text in UTC, with six decimals or none.
    def stored_time(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return type_coerce(column, String)

    def stored_time_type(self) -> TypeEngine[Any]:
        return String()

    def stored_time_value(self, stored: str) -> Any:
        stored.encode()
        return stored

    def utc(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return type_coerce(column, String)

    def to_datetime(self, value: Any) -> datetime:
        return datetime.fromisoformat(value).replace(tzinfo=timezone.utc)

    def moment(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.substr(type_coerce(column, String).concat(".000000"), 1, 26, type_=String)

    def time_to_store(self, moment: datetime) -> Any:
        # As CURRENT_TIMESTAMP writes it: a fraction of zeros would sort above it.
        return moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat(" ")

    def stored_by(self, parameter: str) -> ColumnElement[Any]:
        return bindparam(parameter, type_=String)

    def whole_sum(self, text: ColumnElement[str]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        # Its whole numbers end at 64 bits; in two parts, their sums do not get there.
        number = cast(text, Integer)
        return func.sum(number // 10**9), func.sum(number % 10**9)

    def exact_sum(self, text: ColumnElement[str]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        # Its own fractions are binary. Thirteen decimals of the text, the last one rounded away,
        # are a whole number; so is a number so small that its text has an exponent, when scaled.
        point = func.instr(text, ".")
        digits = func.substr(text, point + 1).concat("0" * 13)
        decimals = (cast(func.substr(digits, 1, 13), Integer) + 5) // 10
        scaled = cast(func.round(cast(text, REAL) * 1e12), Integer)
        small = func.instr(text, "e") > 0
        whole = case((small, 0), else_=cast(text, Integer))
        parts = case((small, scaled), (point > 0, decimals), else_=0)
        return func.sum(whole), func.sum(parts)

    def triples(self, text: ColumnElement[str]) -> Triples:
        each = func.json_each(text).table_valued("value", "type", joins_implicitly=True)

        def part(index: int, kind: str) -> ColumnElement[Any]:
            path = f"$[{index}]"
            # Only an array may be looked into: another entry need not be JSON by itself.
            found = case((func.json_type(each.c.value, path) == kind, each.c.value))
            is_array = each.c.type == "array"
            return func.json_extract(case((is_array, found)), path)

        return Triples(each, part(0, "text"), part(1, "integer"), part(2, "integer"))

    def moment_type(self) -> TypeEngine[Any]:
        return String()

    def moment_value(self, moment: datetime) -> Any:
        naive = moment.astimezone(timezone.utc).replace(tzinfo=None)
        return naive.isoformat(" ", "microseconds")


class PostgreSQL(Dialect):
    """PostgreSQL, from 13."""

    name = "postgresql"
    autocommit_reads = True
    # serialization failure, deadlock
    transient_codes: ClassVar[frozenset[object]] = frozenset({"40001", "40P01"})
    lost_statement_codes: ClassVar[frozenset[object]] = frozenset({"26000"})
    # duplicate table, duplicate object, and the unique index of the catalog behind both
    creation_race_codes: ClassVar[frozenset[object]] = frozenset({"42P07", "42710", "23505"})

    def error_code(self, error: DBAPIError) -> object:
        return getattr(error.orig, "sqlstate", None)

    def lock_or_create(self, sessions: Table) -> Insert:
        statement = postgresql.insert(sessions).values(session_id=bindparam("of_session"))
        # A row that was just inserted has no deleting transaction.
        return statement.on_conflict_do_update(
            index_elements=[sessions.c.session_id],
            set_={"session_id": statement.excluded.session_id},
        ).returning(literal_column("(xmax = 0)", Boolean))

    def was_created(self, result: CursorResult[Any]) -> bool:
        return bool(result.scalar_one())

    def upsert(self, table: Table, replaced: Sequence[str]) -> Insert:
        statement = postgresql.insert(table)
        return statement.on_conflict_do_update(
            index_elements=list(table.primary_key.columns),
            set_=_replacements(statement.excluded, replaced),
        )

    def one_of(self, column: ColumnElement[Any], name: str, count: int) -> ColumnElement[bool]:
        item: Any = LargeBinary() if isinstance(column.type, LargeBinary) else String()
        return column == any_(bindparam(name, type_=ARRAY(item)))

    def looked_up(self, key: ColumnElement[str], value: ColumnElement[str]) -> ColumnElement[bool]:
        # By equality, it would hash the whole table for one row in seventy already.
        return key == any_(postgresql.array([value]))

    def by_code_point(self, column: ColumnElement[str], *, native: bool) -> ColumnElement[str]:
        return column if native else column.collate("C")

    # The SDK's times are the writer's local time without its zone.
    def stored_time(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return column

    def stored_time_type(self) -> TypeEngine[Any]:
        return TIMESTAMP(timezone=False)

    def stored_time_value(self, stored: str) -> Any:
        moment = datetime.fromisoformat(stored)
        if moment.utcoffset() is not None:
            raise ValueError(stored)
        return moment

    def position_parameters(self, stored: str | None, session_id: str) -> dict[str, Any]:
        parameters = super().position_parameters(stored, session_id)
        if "\x00" in session_id:
            raise ValueError(session_id)
        return parameters

    def utc(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        zone = func.current_setting("TimeZone")
        return func.timezone(zone, column, type_=TIMESTAMP(timezone=True))

    def to_datetime(self, value: Any) -> datetime:
        return value.astimezone(timezone.utc)  # type: ignore[no-any-return]  # a driver's datetime

    def moment(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return self.utc(column)

    def moment_type(self) -> TypeEngine[Any]:
        return TIMESTAMP(timezone=True)

    def moment_value(self, moment: datetime) -> Any:
        return moment

    def time_to_store(self, moment: datetime) -> Any:
        return moment

    def stored_by(self, parameter: str) -> ColumnElement[Any]:
        zone = func.current_setting("TimeZone")
        return func.timezone(zone, bindparam(parameter, type_=TIMESTAMP(timezone=True)))

    def whole_sum(self, text: ColumnElement[str]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        return null(), func.sum(cast(text, Numeric))

    def exact_sum(self, text: ColumnElement[str]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        return func.sum(func.round(cast(text, Numeric), 12)), null()

    def triples(self, text: ColumnElement[str]) -> Triples:
        # PostgreSQL cannot make text of JSON with NUL in it.
        safe = case((text.contains("\\u0000", autoescape=True), "[]"), else_=text)
        each = func.json_array_elements(cast(safe, JSON)).table_valued(
            column("value", JSON), joins_implicitly=True
        )
        entry = each.c.value

        def part(index: int, kind: str) -> ColumnElement[Any]:
            is_array = func.json_typeof(entry) == "array"
            is_kind = func.json_typeof(entry.op("->")(index)) == kind
            text_of = entry.op("->>", return_type=String())(index)
            return case((and_(is_array, is_kind), text_of))

        def whole(index: int) -> ColumnElement[Any]:
            number = part(index, "number")
            return case((number.regexp_match("^[0-9]{1,12}$"), cast(number, Numeric)))

        return Triples(each, part(0, "string"), whole(1), whole(2))

    def parent_id(self, connection: Connection, sessions: Table) -> tuple[TypeEngine[Any], bool]:
        collation = connection.execute(
            text(
                "SELECT CASE WHEN c.collname <> 'default' THEN c.collname"
                # The column for the provider is younger than the oldest supported server.
                " WHEN coalesce(to_jsonb(d)->>'datlocprovider', 'c') = 'i' THEN 'icu'"
                " ELSE d.datcollate END, c.collname"
                " FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation"
                " JOIN pg_database d ON d.datname = current_database()"
                " WHERE a.attrelid = to_regclass(:name) AND a.attname = 'session_id'"
            ),
            {"name": _qualified(connection, sessions)},
        ).first()
        if collation is None:
            return String(), False
        effective, declared = collation
        kind = String() if declared == "default" else String(collation=declared)
        return kind, effective.lower() in {"c", "posix", "c.utf-8", "c.utf8"}


class MySQL(Dialect):
    """MySQL and MariaDB."""

    name = "mysql"
    locks_metadata = True  # On a Galera cluster the lock of a row that is not written is local.
    bounded_ids = True
    index_if_not_exists = False
    transactional_ddl = False
    # deadlock, lock wait time-out, changed since the snapshot, Galera node not ready
    transient_codes: ClassVar[frozenset[object]] = frozenset({1213, 1205, 1020, 1047})
    # table exists, duplicate key name, duplicate foreign key name (in its two forms); and no such
    # table, when another process has just given it its name
    creation_race_codes: ClassVar[frozenset[object]] = frozenset(
        {1050, 1061, 1826, 1005, 1684, 1213, 1146}
    )

    def error_code(self, error: DBAPIError) -> object:
        arguments = getattr(error.orig, "args", ())
        return arguments[0] if arguments else None

    def lock_or_create(self, sessions: Table) -> Insert:
        # LAST_INSERT_ID(1) marks that the row was there: the driver counts one row either way.
        same = func.IF(func.last_insert_id(1), sessions.c.session_id, sessions.c.session_id)
        return (
            mysql.insert(sessions)
            .values(session_id=bindparam("of_session"))
            .on_duplicate_key_update(session_id=same)
        )

    def was_created(self, result: CursorResult[Any]) -> bool:
        return result.lastrowid != 1

    def upsert(self, table: Table, replaced: Sequence[str]) -> Insert:
        statement = mysql.insert(table)
        return statement.on_duplicate_key_update(_replacements(statement.inserted, replaced))

    # TIMESTAMP is UTC inside; UNIX_TIMESTAMP reads it so in whatever zone the connection is.
    def stored_time(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.unix_timestamp(column, type_=Numeric(20, 6))

    def stored_time_type(self) -> TypeEngine[Any]:
        return Numeric(20, 6)

    def stored_time_value(self, stored: str) -> Any:
        seconds = Decimal(stored)
        if not abs(seconds) < 10**14:  # what `stored_time_type` holds
            raise ValueError(stored)
        return seconds

    def utc(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return self.stored_time(column)

    def to_datetime(self, value: Any) -> datetime:
        return EPOCH + timedelta(microseconds=int(Decimal(value) * 1_000_000))

    def moment(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return self.stored_time(column)

    def moment_type(self) -> TypeEngine[Any]:
        return Numeric(20, 6)

    def moment_value(self, moment: datetime) -> Any:
        return Decimal((moment - EPOCH) // timedelta(microseconds=1)) / 1_000_000

    def time_to_store(self, moment: datetime) -> Any:
        # Instead of what is before that, the server would store the present time.
        if not _FIRST_TIMESTAMP <= moment <= _LAST_TIMESTAMP:
            raise ValueError("is outside the years 1970 to 2038 that a TIMESTAMP holds")
        return self.moment_value(moment)

    def stored_by(self, parameter: str) -> ColumnElement[Any]:
        return func.from_unixtime(bindparam(parameter, type_=Numeric(20, 6)))

    def whole_sum(self, text: ColumnElement[str]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        return null(), func.sum(cast(text, mysql.DECIMAL(65, 12)))

    def exact_sum(self, text: ColumnElement[str]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
        return func.sum(cast(text, mysql.DECIMAL(65, 12))), null()

    def triples(self, text: ColumnElement[str]) -> Triples:
        each = _json_table(text).table_valued("entry", joins_implicitly=True)

        def part(index: int, kind: str) -> ColumnElement[Any]:
            found = func.json_extract(each.c.entry, f"$[{index}]")
            is_array = func.json_type(each.c.entry) == "ARRAY"
            return case((and_(is_array, func.json_type(found) == kind), found))

        # As bytes, names are told apart by case and accents too.
        name = cast(func.json_unquote(part(0, "STRING")), LargeBinary)
        first, second = (cast(part(index, "INTEGER"), Integer) for index in (1, 2))
        return Triples(each, name, first, second)

    def parent_id(self, connection: Connection, sessions: Table) -> tuple[TypeEngine[Any], bool]:
        schema = connection.schema_for_object(sessions)
        row = connection.execute(
            text(
                "SELECT character_maximum_length, character_set_name, collation_name"
                " FROM information_schema.columns WHERE table_name = :name"
                " AND column_name = 'session_id' AND table_schema = coalesce(:schema, database())"
            ),
            {"name": sessions.name, "schema": schema},
        ).first()
        if row is None:
            return SessionId(), True
        length, charset, collation = row
        return mysql.VARCHAR(length, charset=charset, collation=collation), True

    def own_id(self, parent: TypeEngine[Any]) -> TypeEngine[Any]:
        # A foreign key may join columns of different lengths, and an index has room for so many
        # characters only. No id that carries metadata has more.
        if not isinstance(parent, mysql.VARCHAR) or (parent.length or 0) <= ID_LENGTH:
            return parent
        return mysql.VARCHAR(ID_LENGTH, charset=parent.charset, collation=parent.collation)


class _json_table(GenericFunction[Any]):  # noqa: N801  # the name of the SQL function
    inherit_cache = True


@compiles(_json_table)
def _compile_json_table(element: Any, compiler: Any, **kwargs: Any) -> str:
    columns = "entry JSON PATH '$'"
    document = compiler.process(element.clauses, **kwargs)
    return f"JSON_TABLE({document}, '$[*]' COLUMNS ({columns}))"


SUPPORTED: dict[str, Dialect] = {
    "sqlite": SQLite(),
    "postgresql": PostgreSQL(),
    "mysql": MySQL(),
    "mariadb": MySQL(),
}


def dialect_of(sa_dialect: SADialect) -> Dialect:
    """The ways of the database that an SQLAlchemy dialect speaks to.

    Raises:
        UnsupportedDialectError: If it is none of the supported ones.
    """
    try:
        return SUPPORTED[sa_dialect.name]
    except KeyError:
        raise UnsupportedDialectError(sa_dialect.name) from None


def _replacements(new: Any, replaced: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {name: new[name] for name in replaced}
    values["updated_at"] = func.current_timestamp()
    return values


def _qualified(connection: Connection, table: Table) -> str:
    """A table's name as SQL would spell it, quoted, with the schema it is mapped to."""
    preparer = connection.dialect.identifier_preparer
    schema = connection.schema_for_object(table)
    name = preparer.quote(table.name)
    return f"{preparer.quote(schema)}.{name}" if schema else name


# Column types for CREATE TABLE. Queries use plain types: a collation on a bound parameter would
# keep PostgreSQL from using an index of another collation.


def _is_mysql(sa_dialect: SADialect) -> bool:
    return isinstance(SUPPORTED.get(sa_dialect.name), MySQL)


def _exact_varchar(length: int, sa_dialect: SADialect) -> TypeEngine[Any]:
    """A VARCHAR that compares byte by byte: case, accents and trailing spaces distinguish."""
    # Told at run time: a mysql:// URL may lead to MariaDB.
    is_mariadb = getattr(sa_dialect, "is_mariadb", False)
    collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
    return mysql.VARCHAR(length, charset="utf8mb4", collation=collation)


Impl: TypeAlias = "TypeEngine[Any] | type[TypeEngine[Any]]"
"""What a column type is made of."""


class SessionId(TypeDecorator[str]):
    """An id: unbounded as the SDK makes it; 255 characters where an index needs a length."""

    impl: Impl = String
    cache_ok: bool | None = True

    def load_dialect_impl(self, dialect: SADialect) -> TypeEngine[Any]:
        if _is_mysql(dialect):
            return _exact_varchar(ID_LENGTH, dialect)
        return String(collation="C") if dialect.name == "postgresql" else String()


class MetadataKey(TypeDecorator[str]):
    """A metadata key."""

    impl: Impl = String(MAX_KEY_LENGTH)
    cache_ok: bool | None = True

    def load_dialect_impl(self, dialect: SADialect) -> TypeEngine[Any]:
        if _is_mysql(dialect):
            return _exact_varchar(MAX_KEY_LENGTH, dialect)
        return String(MAX_KEY_LENGTH, collation="C" if dialect.name == "postgresql" else None)


class LongText(TypeDecorator[str]):
    """Text of any length: TEXT ends at 64 KiB on MySQL."""

    impl: Impl = Text
    cache_ok: bool | None = True

    def load_dialect_impl(self, dialect: SADialect) -> TypeEngine[Any]:
        return mysql.LONGTEXT(charset="utf8mb4") if _is_mysql(dialect) else Text()


class SearchBytes(TypeDecorator[bytes]):
    """The indexed part of a search key."""

    impl: Impl = LargeBinary
    cache_ok: bool | None = True

    def load_dialect_impl(self, dialect: SADialect) -> TypeEngine[Any]:
        return mysql.VARBINARY(SEARCH_KEY_BYTES) if _is_mysql(dialect) else LargeBinary()


class LongBytes(TypeDecorator[bytes]):
    """What a search key has beyond its indexed part."""

    impl: Impl = LargeBinary
    cache_ok: bool | None = True

    def load_dialect_impl(self, dialect: SADialect) -> TypeEngine[Any]:
        return mysql.LONGBLOB() if _is_mysql(dialect) else LargeBinary()


TABLE_OPTIONS = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in {"engine": "InnoDB", "charset": "utf8mb4"}.items()
}

"""The dialect for MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    DateTime,
    Insert,
    Integer,
    LargeBinary,
    Numeric,
    Table,
    and_,
    bindparam,
    case,
    cast,
    column,
    exists,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction
from sqlalchemy.types import TypeEngine

from agents_session_metadata.errors import UnsupportedDialectError

from ._dialect import Dialect, Link, Triples, replacements
from ._locks import ROUNDS, Found, Locks, Reader
from ._settings import check_foreign_keys, check_once
from ._shapes import MYSQL, ShapeSQL
from ._triggers import MySQLTriggerSQL, TriggerSQL
from .sqltypes import ID_LENGTH, SessionId

_CREATED = "@agents_session_created"
_ZONE = "@agents_session_zone"
_NO_BACKSLASH_ESCAPES = 512
"""A bit of the status that the server sends with each answer."""
_CHARSET = "utf8mb4"
"""What a connection must use.

In `gbk` and others, the byte of a backslash can be a part of another character. With `latin1` or
`utf8`, the server answers a question mark for each character that they lack: another id or value.
"""
_IGNORED_KEYS = "SELECT CASE WHEN NOT @@foreign_key_checks THEN 'foreign_key_checks = 0' END"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_TIMESTAMP = datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
_LAST_TIMESTAMP = datetime(2038, 1, 19, 3, 14, 7, tzinfo=timezone.utc)
_NEAR = 10_800
"""Seconds around a change of a clock."""


class _MySQLLocks(Locks):
    """Locks without `RETURNING`, and without a lock on the gap where a missing row would be.

    Locking a row that is not there locks the gap, and two callers who did so could neither insert.
    So a transaction that such a lock has begun ends at once. Within another one, which may have
    locked other rows, it is a deadlock, after which the transaction is run again.
    """

    def __init__(self, sessions: Table, metadata: Table, elements: Table) -> None:
        super().__init__(sessions, metadata, elements)
        self._elements = elements
        self._insert = self._new_row()
        # A variable of the connection, set in both cases. The driver's last insert id and row
        # count also reflect the effects of triggers.
        of_session: BindParameter[str] = bindparam("of_session")
        same = sessions.c.session_id
        created, was_there = (text(f"{_CREATED} := {number}") for number in (1, 0))
        self._upsert = (
            mysql.insert(sessions)
            .values(session_id=func.IF(created, of_session, of_session))
            .on_duplicate_key_update(session_id=func.IF(was_there, same, same))
        )
        self._upsert_and_read = self._upsert.returning(text(_CREATED))
        self._read_created: Any = select(text(_CREATED))

    def or_create(self, connection: Connection, session_id: str) -> bool:
        returns = connection.dialect.insert_returning  # MariaDB, not MySQL
        upsert: Any = self._upsert_and_read if returns else self._upsert
        result = connection.execute(upsert, {"of_session": session_id})
        created = result.scalar() if returns else None
        # If a connection has not used the variable, MariaDB returns NULL, with a binary log text.
        if not isinstance(created, int):
            created = connection.execute(self._read_created).scalar()
        return bool(created == 1)

    def create(
        self, connection: Connection, session_id: str, has_leftovers: bool | None = None
    ) -> bool | None:
        parameters, is_first = {"of_session": session_id}, not connection.in_transaction()
        for attempt in range(ROUNDS):
            try:
                connection.execute(self._insert, parameters)
                break
            except IntegrityError:
                # After waiting for the other row, this transaction shares a lock on it with others.
                if is_first:
                    connection.rollback()
                if self.existing(connection, session_id):
                    return None
                # Deleted in the meantime; or a duplicate in another key, for example one that a
                # trigger writes.
                if is_first:
                    connection.rollback()
                if attempt == ROUNDS - 1:
                    raise
        if has_leftovers is None:
            return bool(connection.execute(self.read_leftovers, parameters).scalar())
        return has_leftovers

    def reader(self, column: ColumnElement[Any]) -> Reader:
        # A locking read returns each row as it is once the lock is held. The metadata is locked
        # too, because on a Galera cluster the lock of a row that is not written is local.
        sessions, metadata = self._sessions, self._metadata
        of_session: BindParameter[str] = bindparam("of_session")
        one = select(literal_column("1").label("one")).subquery("one")
        of_nobody = sessions.c.session_id.is_(None)
        own = and_(
            metadata.c.session_id == of_session,
            or_(metadata.c.session_id == sessions.c.session_id, of_nobody),
        )
        joined = one.outerjoin(sessions, sessions.c.session_id == of_session)
        joined = joined.outerjoin(metadata, own)
        of_nothing = exists().where(self._elements.c.session_id == of_session)
        statement: Any = (
            select(sessions.c.session_id, metadata.c.key, column, of_nothing)
            .select_from(joined)
            .with_for_update()
        )

        def read(connection: Connection, session_id: str) -> Found:
            is_first = not connection.in_transaction()
            rows: Any = connection.execute(statement, {"of_session": session_id}).all()
            stored = {key: value for _, key, value, _ in rows if key is not None}
            if rows[0][0] is not None:
                return Found(stored)
            if is_first:
                connection.rollback()
            return Found(None, has_leftovers=bool(stored or rows[0][3]))

        return read

    def _insert_new(self, told: ColumnElement[Any]) -> Any:
        return None


class MySQL(Dialect):
    """MySQL and MariaDB."""

    name = "mysql"
    usual_isolation: ClassVar[str] = "REPEATABLE READ"
    vetoes_silently = False
    triggers: ClassVar[TriggerSQL] = MySQLTriggerSQL()
    locks_metadata = True  # On a Galera cluster the lock of a row that is not written is local.
    bounded_ids = True
    shapes: ClassVar[ShapeSQL] = MYSQL
    sorted_bytes = 1000  # The default of max_sort_length is 1024.
    warns_of_missing = True
    index_if_not_exists = False
    transactional_ddl = False
    # deadlock, lock wait time-out, changed since the snapshot, Galera node not ready
    transient_codes: ClassVar[frozenset[object]] = frozenset({1213, 1205, 1020, 1047})
    # table exists, trigger exists, duplicate key name, duplicate foreign key name (in its two
    # forms); and no such table, when another process has just given it its name
    creation_race_codes: ClassVar[frozenset[object]] = frozenset(
        {1050, 1061, 1826, 1005, 1684, 1213, 1146, 1359}
    )

    def error_code(self, error: DBAPIError) -> object:
        arguments = getattr(error.orig, "args", ())
        return arguments[0] if arguments else None

    def advice(self, error: DBAPIError) -> str:
        # A server that refuses a packet closes the connection, often before the driver reads why.
        if self.error_code(error) not in {1153, 2006, 2013}:
            return ""
        return "if this record is large, increase max_allowed_packet on the server"

    def locks(self, sessions: Table, metadata: Table, elements: Table) -> Locks:
        return _MySQLLocks(sessions, metadata, elements)

    def insert_missing(self, table: Table, *, selected: bool = False) -> Any:
        # IGNORE would also hide other errors, and a driver logs a warning for each row. The table
        # is named only if the columns of a SELECT need to be told apart: drivers that combine rows
        # leave each % of its name doubled.
        same = {each.name: each if selected else column(each.name) for each in table.primary_key}
        return mysql.insert(table).on_duplicate_key_update(same)

    def upsert(self, table: Table, replaced: Sequence[str]) -> Insert:
        statement = mysql.insert(table)
        return statement.on_duplicate_key_update(replacements(statement.inserted, replaced))

    def literal(self, text: str) -> str:
        # What a backslash or a byte means depends on the mode and on the client's character set.
        if text.isascii() and text.isprintable() and "\\" not in text:
            return super().literal(text)
        return f"_utf8mb4 x'{text.encode().hex()}'"

    def in_shell(self, statement: str) -> str:
        # The shell takes a semicolon in the body of a trigger for the end of the statement.
        end = super().in_shell(statement)
        return f"DELIMITER ;;\n{end};\nDELIMITER ;" if ";" in statement else end

    # TIMESTAMP is UTC inside; UNIX_TIMESTAMP reads it so in whatever zone the connection is.
    def stored_time(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.unix_timestamp(column, type_=Numeric(20, 6))

    def unindexed_time(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return self.stored_time(column)

    def reaches(self, column: ColumnElement[Any], *, descending: bool) -> ColumnElement[bool]:
        # The column compares with local times only, which may differ from UTC in order where a
        # clock is changed. Within three hours of that, the limit is wider.
        time: Any = bindparam("after_time", type_=self.stored_time_type())
        earlier, later = func.from_unixtime(time - _NEAR), func.from_unixtime(time + _NEAR)
        span = func.timestampdiff(literal_column("SECOND"), earlier, later)
        wider = time + _NEAR if descending else time - _NEAR
        inside = func.least(func.greatest(wider, 0), _LAST_TIMESTAMP.timestamp())
        limit = func.from_unixtime(case((span == 2 * _NEAR, time), else_=inside))
        reaches: ColumnElement[bool] = column <= limit if descending else column >= limit
        return reaches

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
        if not value:
            raise ValueError("0000-00-00 00:00:00")
        return _EPOCH + timedelta(microseconds=int(Decimal(value) * 1_000_000))

    def moment(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        # A server that is not strict stores 0000-00-00 instead of what is not a time. It is not
        # a time either, and matches no condition.
        return func.nullif(self.stored_time(column), literal_column("0"), type_=Numeric(20, 6))

    def moment_type(self) -> TypeEngine[Any]:
        return Numeric(20, 6)

    def moment_value(self, moment: datetime) -> Any:
        return Decimal((moment - _EPOCH) // timedelta(microseconds=1)) / 1_000_000

    def time_to_store(self, moment: datetime) -> Any:
        # The server would store the current time instead of an earlier one.
        if not _FIRST_TIMESTAMP <= moment <= _LAST_TIMESTAMP:
            raise ValueError("is outside the years 1970 to 2038 that a TIMESTAMP holds")
        return moment.replace(tzinfo=None)

    def insert_rows(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *times: str
    ) -> None:
        if rows:
            stored = {name: bindparam(f"new_{name}", type_=DateTime()) for name in times}
            with self._times_in_utc(connection) if times else nullcontext():
                connection.execute(insert(table).values(stored), rows)

    @contextmanager
    def _times_in_utc(self, connection: Connection) -> Iterator[None]:
        # Drivers combine the rows of an INSERT into one statement only if it calls no function,
        # such as one that converts times.
        connection.execute(text(f"SET {_ZONE} = @@time_zone, time_zone = '+00:00'"))
        restore = text(f"SET time_zone = {_ZONE}")
        try:
            yield
        except BaseException:
            try:
                connection.execute(restore)
            except SQLAlchemyError:
                connection.invalidate()  # Nobody gets it with another time zone.
            raise
        connection.execute(restore)

    def now(self) -> ColumnElement[int]:
        present = func.utc_timestamp(literal_column("6"))
        epoch: ColumnElement[Any] = literal_column("TIMESTAMP '1970-01-01 00:00:00'")
        return func.timestampdiff(literal_column("MICROSECOND"), epoch, present, type_=BigInteger)

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

        # As bytes, because names are case- and accent-sensitive.
        name = cast(func.json_unquote(part(0, "STRING")), LargeBinary)
        first, second = (cast(part(index, "INTEGER"), Integer) for index in (1, 2))
        return Triples(each, name, first, second)

    def triggers_of(self, connection: Connection, table: Table) -> Iterable[tuple[str, str]]:
        query = (
            "SELECT trigger_name, action_statement FROM information_schema.triggers"
            " WHERE event_object_table = :name"
            " AND event_object_schema = coalesce(:schema, database())"
        )
        names = {"name": table.name, "schema": connection.schema_for_object(table)}
        return [(row[0], row[1]) for row in connection.execute(text(query), names)]

    def taken_names(self, connection: Connection, sessions: Table) -> set[tuple[str, str]]:
        query = (
            "SELECT constraint_name, table_name FROM information_schema.referential_constraints"
            " WHERE constraint_schema = coalesce(:schema, database())"
            " UNION ALL SELECT trigger_name, event_object_table FROM information_schema.triggers"
            " WHERE trigger_schema = coalesce(:schema, database())"
        )
        schema = {"schema": connection.schema_for_object(sessions)}
        return {(row[0], row[1]) for row in connection.execute(text(query), schema)}

    def session_links(
        self, connection: Connection, sessions: Table, children: Sequence[Table]
    ) -> list[Link]:
        # One table per query. Otherwise the server opens every table of the schema.
        parts = [
            "SELECT table_name, referenced_table_schema, referenced_table_name,"  # noqa: S608  # numbers
            " coalesce(:schema, database()), @@lower_case_table_names"
            " FROM information_schema.key_column_usage"
            " WHERE table_schema = coalesce(:schema, database())"
            f" AND table_name = :child_{index} AND column_name = 'session_id'"
            " AND referenced_table_name IS NOT NULL"
            for index in range(len(children))
        ]
        names = {f"child_{index}": each.name for index, each in enumerate(children)}
        schema = {"schema": connection.schema_for_object(sessions)}
        found: Any = connection.execute(text(" UNION ALL ".join(parts)), names | schema)
        links = []
        for child, parent_schema, parent, own_schema, ignores_case in found:
            fold = str.lower if ignores_case else str
            if not any(fold(child) == fold(each.name) for each in children):
                continue  # The catalog always ignores case.
            wanted = fold(own_schema), fold(sessions.name)
            links.append(Link(child, parent, (fold(parent_schema), fold(parent)) == wanted))
        return links

    def referring_columns(
        self, connection: Connection, sessions: Table
    ) -> list[tuple[str | None, str, str]]:
        query = (
            "SELECT DISTINCT nullif(k.table_schema, k.referenced_table_schema), c.table_name,"
            " c.column_name FROM information_schema.key_column_usage k"
            " JOIN information_schema.columns c"
            " ON c.table_schema = k.table_schema AND c.table_name = k.table_name"
            " WHERE k.referenced_table_schema = coalesce(:schema, database())"
            " AND k.referenced_table_name = :name"
        )
        names = {"schema": connection.schema_for_object(sessions), "name": sessions.name}
        found: Any = connection.execute(text(query), names)
        return [tuple(row) for row in found]

    def usable(
        self,
        connection: Connection,
        sessions: Table,
        tables: Sequence[Table],
        privilege: str = "select",
    ) -> list[Table]:
        in_schema = "table_schema = coalesce(:schema, database())"
        parameters = {"schema": connection.schema_for_object(tables[0]), "privilege": privilege}
        parameters |= {f"name_{place}": table.name for place, table in enumerate(tables)}

        def found(query: str) -> list[int]:
            return list(connection.scalars(text(query), parameters))

        # The privileges of a column take longer to read, and with a list of names the server would
        # open every table of the schema.
        existing = found(
            " UNION ALL ".join(
                f"SELECT {place} FROM information_schema.tables"  # noqa: S608  # numbers
                f" WHERE {in_schema} AND table_name = :name_{place}"
                for place in range(len(tables))
            )
        )
        parts = [
            f"SELECT {place} FROM information_schema.columns"  # noqa: S608  # numbers
            f" WHERE {in_schema} AND table_name = :name_{place}"
            " AND ordinal_position = 1 AND find_in_set(:privilege, privileges)"
            for place in existing
        ]
        return [tables[place] for place in (found(" UNION ALL ".join(parts)) if parts else ())]

    def columns_query(self, schema: str) -> str:
        return (
            "SELECT c.table_name FROM information_schema.columns c"
            " JOIN information_schema.tables t"
            " ON t.table_schema = c.table_schema AND t.table_name = c.table_name"
            " WHERE c.table_schema = coalesce(:schema, database())"
            " AND t.table_type = 'BASE TABLE' AND c.column_name IN :columns"
        )

    def refuses_triggers(self, error: DBAPIError) -> bool:
        # command denied on a table or database; or, with a binary log, a privilege is missing
        return self.error_code(error) in {1142, 1044, 1227, 1419}

    @contextmanager
    def brief_waits(self, connection: Connection) -> Iterator[None]:
        # A statement that waits for a table blocks all later statements on it.
        connection.execute(text("SET SESSION lock_wait_timeout = 5"))
        try:
            yield
        finally:
            connection.execute(text("SET SESSION lock_wait_timeout = DEFAULT"))

    def check_settings(self, connection: Connection) -> None:
        # The driver writes parameters into the SQL text, and bytes always with backslashes. A
        # server that reads these in another way would take a part of a value for SQL.
        names = (f"@@character_set_{each}" for each in ("client", "connection", "results"))
        query = f"SELECT @@sql_mode, {', '.join(names)}"
        mode, *charsets = connection.execute(text(query)).one()
        if "NO_BACKSLASH_ESCAPES" in mode:
            raise self._unsafe_mode()
        for charset in charsets:
            if charset != _CHARSET:
                setting = f"the connection character set {charset} instead of {_CHARSET}"
                raise UnsupportedDialectError(self.name, setting)

    def check_connection(self, connection: Connection) -> None:
        check_once(connection, self._check_first)
        # The mode may have been set since then. Each answer of the server says whether it is.
        driver: Any = connection.connection.driver_connection
        if getattr(driver, "server_status", 0) & _NO_BACKSLASH_ESCAPES:
            raise self._unsafe_mode()

    def _check_first(self, connection: Connection) -> None:
        self.check_settings(connection)
        check_foreign_keys(connection, _IGNORED_KEYS)

    def _unsafe_mode(self) -> UnsupportedDialectError:
        return UnsupportedDialectError(self.name, "the sql_mode NO_BACKSLASH_ESCAPES")

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
        # A foreign key may join columns of different lengths. An index has room for this many
        # characters only, and no id with metadata has more.
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

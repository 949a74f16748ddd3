"""The dialect for MySQL and MariaDB."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    FromClause,
    Insert,
    LargeBinary,
    Numeric,
    Table,
    and_,
    bindparam,
    case,
    cast,
    func,
    insert,
    literal_column,
    or_,
    select,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import IntegrityError
from sqlalchemy.types import TypeEngine

from agents_session_metadata.errors import UnsupportedDialectError
from agents_session_metadata.types import MAX_ID_LENGTH

from ._dialect import LONGEST_WAIT, Dialect, Existing, by_table, replacements
from ._locks import ROUNDS, LockedSession, Locks, Reader
from ._text import MySQLTextSQL
from .sqltypes import SDKTime

_ZONE = "@agents_session_zone"
_CHECKED = "agents_session_metadata.checked"
"""The key in `Connection.info` of a connection whose settings were checked."""
_CHARSET = "utf8mb4"
"""The character set that a connection must use.

In `gbk` and others, the byte of a backslash can be a part of another character. With `latin1` or
`utf8`, the server returns a question mark for each character that they lack: another id or value.
"""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_TIMESTAMP = datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
_LAST_TIMESTAMP = datetime(2038, 1, 19, 3, 14, 7, tzinfo=timezone.utc)
_NEAR = 10_800
"""Seconds around a change of a clock."""


class MySQLLocks(Locks):
    """Locks without `RETURNING`, and without a lock on the gap where a missing row would be.

    Locking a missing row locks the gap, and then two transactions that hold this lock cannot
    insert. A transaction that began with such a lock is therefore rolled back at once. Another
    transaction may have locked other rows: it can run into a deadlock, and is then retried.
    """

    def _insert(self, value: ColumnElement[Any]) -> Any:
        return insert(self._sessions).values(session_id=bindparam("session"))

    def existing(self, connection: Connection, session_id: str) -> bool:
        is_first = not connection.in_transaction()
        exists = super().existing(connection, session_id)
        if is_first and not exists:
            connection.rollback()
        return exists

    def create(
        self, connection: Connection, session_id: str, has_leftovers: bool | None = None
    ) -> bool | None:
        if not self.insert(connection, session_id):
            return None
        if has_leftovers is None:
            return bool(connection.scalar(self.read_leftovers, {"session": session_id}))
        return has_leftovers

    def insert(self, connection: Connection, session_id: str) -> bool:
        is_first = not connection.in_transaction()
        for attempt in range(ROUNDS):
            try:
                connection.execute(self._insert_alone, {"session": session_id})
                break
            except IntegrityError:
                # After waiting for the other row, this transaction shares a lock on it with others.
                if is_first:
                    connection.rollback()
                if self.existing(connection, session_id):
                    return False
                # Deleted in the meantime; or a duplicate in another key, for example one that a
                # trigger writes.
                if attempt == ROUNDS - 1:
                    raise
        return True

    def reader(self, column: ColumnElement[Any]) -> Reader:
        # A locking read returns each row as it is once the lock is held. The metadata is locked
        # too, because on a Galera cluster the lock of a row that is not written is local.
        sessions, metadata = self._sessions, self._metadata
        session: BindParameter[str] = bindparam("session")
        one = select(literal_column("1").label("one")).subquery("one")
        is_missing = sessions.c.session_id.is_(None)
        own = and_(
            metadata.c.session_id == session,
            or_(metadata.c.session_id == sessions.c.session_id, is_missing),
        )
        joined = one.outerjoin(sessions, sessions.c.session_id == session)
        joined = joined.outerjoin(metadata, own)
        statement: Any = select(sessions.c.session_id, metadata.c.key, column)
        statement = statement.select_from(joined).with_for_update()

        def read(connection: Connection, session_id: str) -> LockedSession:
            is_first = not connection.in_transaction()
            rows: Any = connection.execute(statement, {"session": session_id}).all()
            stored = {key: value for _, key, value in rows if key is not None}
            if rows[0][0] is not None:
                return LockedSession(stored)
            if is_first:
                connection.rollback()
            return LockedSession(None, has_leftovers=bool(stored))

        return read


class MySQLTime(SDKTime):
    """Seconds since 1970: TIMESTAMP is UTC inside, which this reads in any time zone."""

    impl = Numeric(20, 6)

    def of(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.unix_timestamp(column, type_=self)

    def is_stored(self, text: str) -> bool:
        return re.fullmatch(r"\d{1,14}(\.\d{1,6})?", text, re.ASCII) is not None

    def to_database(self, value: Any) -> Decimal:
        return Decimal(value)


@lru_cache(maxsize=4096)
def _moment_of(seconds: Decimal | None) -> datetime | None:
    if seconds is None:
        return None
    return _EPOCH + timedelta(microseconds=int(Decimal(seconds) * 1_000_000))


class MySQLMoment(MySQLTime):
    from_database = staticmethod(_moment_of)

    def to_database(self, value: Any) -> Decimal:
        return Decimal((value - _EPOCH) // timedelta(microseconds=1)) / 1_000_000


class MySQL(Dialect):
    name = "mysql"
    locks = MySQLLocks
    stored_time = MySQLTime()
    moment = MySQLMoment()
    usual_isolation = "REPEATABLE READ"
    text_search = MySQLTextSQL()
    bounded_ids = True
    sorted_bytes = 1000  # The default of max_sort_length is 1024.
    transactional_ddl = False
    place = "table_schema = coalesce(:schema, database()) AND table_name = :name"
    describe_ids = (
        "SELECT column_name, column_type, coalesce(collation_name, ''),"
        " data_type IN ('char', 'varchar') OR data_type LIKE '%text', data_type <> 'char'"
        " AND coalesce(collation_name, '') IN ('utf8mb4_nopad_bin', 'utf8mb4_0900_bin')"
        " FROM information_schema.columns WHERE {place} AND column_name IN ('session_id', 'key')"
    )
    name_triggers = (
        "SELECT trigger_name FROM information_schema.triggers WHERE event_object_table = :name"
        " AND event_object_schema = coalesce(:schema, database())"
    )
    measure_table = "SELECT data_length + index_length FROM information_schema.tables WHERE {place}"
    estimate_rows = (
        "SELECT table_rows FROM information_schema.tables WHERE {place} AND EXISTS"
        " (SELECT 1 FROM information_schema.statistics WHERE {place} AND index_name = :index)"
    )

    def locking(self, statement: Any) -> Any:
        # On a Galera cluster the lock of a row that is not written is local.
        return statement.with_for_update()

    def whole(self, column: ColumnElement[bytes]) -> ColumnElement[Any]:
        return func.sha2(column, literal_column("256"))

    def is_exactly(self, column: ColumnElement[str], text: str) -> ColumnElement[bool]:
        return cast(column, LargeBinary) == text.encode()

    def probing(self, statement: Any, rows: FromClause, session_id: Any) -> Any:
        own = statement.where(rows.c.session_id == session_id)
        return own.with_hint(rows, "IGNORE INDEX (PRIMARY)")

    def insert_missing(self, table: Table) -> Any:
        # IGNORE would also hide other errors, and a driver logs a warning for each row. The table
        # is not named: drivers that combine rows leave each % of its name doubled.
        statement = mysql.insert(table)
        keys = [each.name for each in table.primary_key]
        return statement.on_duplicate_key_update({name: statement.inserted[name] for name in keys})

    def upsert(self, table: Table, replaced: Sequence[str]) -> Insert:
        statement = mysql.insert(table)
        return statement.on_duplicate_key_update(replacements(table, statement.inserted, replaced))

    def outer_limit(self, moment: ColumnElement[Any], *, high: bool) -> ColumnElement[Any]:
        # The column compares with local times only, which may differ from UTC in order where a
        # clock is changed. Within three hours of that, the limit is wider.
        # Literal numbers, which a parameter would convert as a moment.
        near: Any = literal_column(str(_NEAR))
        double: Any = literal_column(str(2 * _NEAR))
        last: Any = literal_column(str(int(_LAST_TIMESTAMP.timestamp())))
        earlier, later = func.from_unixtime(moment - near), func.from_unixtime(moment + near)
        span = func.timestampdiff(literal_column("SECOND"), earlier, later)
        wider = moment + near if high else moment - near
        inside = func.least(func.greatest(wider, literal_column("0")), last)
        return func.from_unixtime(case((span == double, moment), else_=inside))

    def reaches(self, column: ColumnElement[Any], *, descending: bool) -> ColumnElement[bool]:
        time: Any = bindparam("after_time", type_=self.stored_time)
        limit = self.outer_limit(time, high=descending)
        reaches: ColumnElement[bool] = column <= limit if descending else column >= limit
        return reaches

    def time_to_store(self, moment: datetime) -> Any:
        # The server would store the current time instead of an earlier one.
        if not _FIRST_TIMESTAMP <= moment <= _LAST_TIMESTAMP:
            raise ValueError("is outside the years 1970 to 2038 that a TIMESTAMP holds")
        return moment.replace(tzinfo=None)

    def insert_rows(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        if rows:
            has_times = any(isinstance(table.c[name].type, TIMESTAMP) for name in rows[0])
            with self._times_in_utc(connection) if has_times else nullcontext():
                connection.execute(insert(table), rows)

    @contextmanager
    def _times_in_utc(self, connection: Connection) -> Iterator[None]:
        # Drivers combine the rows of an INSERT into one statement only if it calls no function,
        # such as one that converts times.
        connection.execute(text(f"SET {_ZONE} = @@time_zone, time_zone = '+00:00'"))
        restore = text(f"SET time_zone = {_ZONE}")
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.execute(restore)

    def now(self) -> ColumnElement[int]:
        present = func.utc_timestamp(literal_column("6"))
        epoch: ColumnElement[Any] = literal_column("TIMESTAMP '1970-01-01 00:00:00'")
        return func.timestampdiff(literal_column("MICROSECOND"), epoch, present, type_=BigInteger)

    def existing(
        self, connection: Connection, sessions: Table, names: Sequence[str], *, parts: bool
    ) -> Existing:
        views = {"tables": "''", "columns": "column_name", "statistics": "index_name"}
        # Reading further columns would open each table of the schema.
        selects = [
            f"SELECT table_name, {part} FROM information_schema.{view}"  # noqa: S608
            " WHERE table_schema = coalesce(:schema, database()) AND table_name IN :names"
            for view, part in views.items()
            if parts or view == "tables"
        ]
        query = text(" UNION ALL ".join(selects)).bindparams(bindparam("names", expanding=True))
        parameters = {"schema": connection.schema_for_object(sessions), "names": list(names)}
        # A server can ignore the case of names, and store them in lower case.
        return by_table(names, connection.execute(query, parameters))

    @contextmanager
    def brief_waits(self, connection: Connection) -> Iterator[None]:
        own = int(connection.execute(text("SELECT @@lock_wait_timeout")).scalar_one())
        change = "SET SESSION lock_wait_timeout = "
        connection.execute(text(f"{change}{min(own, LONGEST_WAIT)}"))
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.execute(text(f"{change}{own}"))

    def check_connection(self, connection: Connection) -> None:
        if _CHECKED in connection.info:
            return
        # The driver writes parameters into the SQL text, and bytes always with backslashes. A
        # server that reads these in another way would take a part of a value for SQL.
        names = (f"@@character_set_{each}" for each in ("client", "connection", "results"))
        is_begun = connection.in_transaction()
        query = f"SELECT @@sql_mode, {', '.join(names)}"
        mode, *charsets = connection.execute(text(query)).one()
        if "NO_BACKSLASH_ESCAPES" in mode:
            raise UnsupportedDialectError(self.name, "the sql_mode NO_BACKSLASH_ESCAPES")
        for charset in charsets:
            if charset != _CHARSET:
                setting = f"the connection character set {charset} instead of {_CHARSET}"
                raise UnsupportedDialectError(self.name, setting)
        connection.info[_CHECKED] = True
        if not is_begun:
            connection.rollback()  # The isolation level can change only before a transaction.

    def server_warnings(self, connection: Connection) -> list[str]:
        query = "SELECT @@sql_mode, @@foreign_key_checks"
        modes, checks = connection.execute(text(query)).one()
        problems = []
        if not {"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"}.intersection(modes.split(",")):
            problems.append(
                "the server is not strict: it truncates values instead of refusing them"
            )
        if not checks:
            problems.append("foreign_key_checks is off: metadata is not deleted with its session")
        return problems

    def parent_id(self, connection: Connection, sessions: Table) -> TypeEngine[Any]:
        query = (
            "SELECT character_maximum_length, character_set_name, collation_name"
            " FROM information_schema.columns WHERE {place} AND column_name = 'session_id'"
        )
        length, charset, collation = self.ask(connection, sessions, query).one()
        return mysql.VARCHAR(length, charset=charset, collation=collation)

    def own_id(self, parent: TypeEngine[Any]) -> TypeEngine[Any]:
        # A foreign key may join columns of different lengths. An index has room for this many
        # characters only, and no id with metadata has more.
        if not isinstance(parent, mysql.VARCHAR) or (parent.length or 0) <= MAX_ID_LENGTH:
            return parent
        return mysql.VARCHAR(MAX_ID_LENGTH, charset=parent.charset, collation=parent.collation)

    def item_id(self, connection: Connection, messages: Table) -> Any:
        found = super().item_id(connection, messages)
        found.display_width = None  # MariaDB says INTEGER(11), which means nothing.
        return found

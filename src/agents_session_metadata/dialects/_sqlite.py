"""The dialect for SQLite."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timezone
from functools import lru_cache, partial
from typing import Any

from sqlalchemy import (
    REAL,
    ColumnElement,
    Connection,
    Integer,
    LargeBinary,
    String,
    Table,
    bindparam,
    cast,
    event,
    func,
    literal_column,
    select,
    text,
    type_coerce,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.operators import custom_op

from ._dialect import Dialect, Existing, by_table, qualified
from ._locks import Found, Locks, Reader
from .sqltypes import SDKTime

_PARTS_OF_VIRTUAL = ("_config", "_content", "_data", "_docsize", "_idx")
"""The ends of the names of the tables in which FTS5 stores a virtual one."""


class _SQLiteLocks(Locks):
    """A write takes the writer's lock for its whole transaction, even if it changes no row."""

    insert = staticmethod(sqlite.insert)

    def __init__(self, sessions: Table, metadata: Table, elements: Table) -> None:
        super().__init__(sessions, metadata, elements)
        self._touch = (
            update(sessions)
            .where(sessions.c.session_id == bindparam("session"))
            .values(updated_at=sessions.c.updated_at)
        )

    def existing(self, connection: Connection, session_id: str) -> bool:
        # The count is of the statement alone, without what triggers change. Reading a returned row
        # would be one more call of the driver's thread.
        found: Any = connection.execute(self._touch, {"session": session_id})
        return bool(found.rowcount > 0)

    def or_create(self, connection: Connection, session_id: str) -> bool:
        # One statement if the row exists. If not, no other writer can create it in between.
        return not self.existing(connection, session_id) and super().or_create(
            connection, session_id
        )

    def reader(self, column: ColumnElement[Any]) -> Reader:
        metadata = self._metadata
        stored = select(func.json_group_object(metadata.c.key, column))
        stored = stored.where(metadata.c.session_id == bindparam("session"))
        statement: Any = self._touch.returning(stored.scalar_subquery())

        def read(connection: Connection, session_id: str) -> Found:
            found = connection.execute(statement, {"session": session_id}).scalar()
            return Found(None if found is None else json.loads(found))

        return read


@lru_cache(maxsize=4096)
def _moment_of(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


class _StoredTime(SDKTime):
    """Text in UTC, with six decimals or none."""

    impl = String


class _Moment(SDKTime):
    impl = String
    from_database = staticmethod(_moment_of)

    def comparable(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.substr(type_coerce(column, String).concat(".000000"), 1, 26, type_=self)

    def to_database(self, value: datetime) -> str:
        return value.astimezone(timezone.utc).replace(tzinfo=None).isoformat(" ", "microseconds")


class SQLite(Dialect):
    """SQLite 3.35 or later."""

    name = "sqlite"
    insert = staticmethod(sqlite.insert)
    locks = _SQLiteLocks
    stored_time = _StoredTime()
    moment = _Moment()
    usual_isolation = "SERIALIZABLE"
    indexes_ids = True
    probe_cost = 0.25
    uses_triggers = True
    probes_by_range = True
    transient_codes = held_codes = frozenset({5, 6})  # SQLITE_BUSY, SQLITE_LOCKED
    locks_rows = False
    denied_codes = frozenset({8})  # SQLITE_READONLY
    describe_ids = (
        "SELECT name, type, collation, type = '' OR type NOT LIKE '%INT%' AND"
        " (type LIKE '%CHAR%' OR type LIKE '%CLOB%' OR type LIKE '%TEXT%'),"
        " collation = 'BINARY' FROM (SELECT c.name, c.type, coalesce("
        # The index of the primary key compares as the column does.
        "(SELECT upper(x.coll) FROM pragma_index_list(:name, :schema) i"
        " JOIN pragma_index_xinfo(i.name, :schema) x WHERE x.name = c.name AND x.key = 1"
        " ORDER BY i.origin = 'pk' DESC LIMIT 1), 'BINARY') AS collation"
        " FROM pragma_table_info(:name, :schema) c WHERE c.name IN ('session_id', 'key'))"
    )

    def configure(self, engine: Engine) -> None:
        event.listen(engine, "connect", _configure_connection)

    def connect(self, engine: Engine) -> Connection:
        connection = super().connect(engine)
        _use_fewer_calls(connection)
        return connection

    def error_code(self, error: DBAPIError) -> object:
        code = getattr(error.orig, "sqlite_errorcode", None)
        if code is None:
            # sqlite3 of Python 3.10 has no error codes. SQLite does not translate these messages.
            return 5 if "is locked" in str(error.orig) else None
        return code & 0xFF  # The low byte of an extended code is the primary code.

    def commits_each(self, connection: Connection) -> bool:
        if not super().commits_each(connection):
            return False
        # An application may have disabled the driver's BEGIN to send its own.
        with connection.begin():
            return not _is_begun(connection)

    def begin(self, connection: Connection) -> None:
        if super().commits_each(connection):
            _begin(connection, "BEGIN")

    def begin_writing(self, connection: Connection) -> None:
        # The driver begins one before a write only, and a SELECT takes no lock.
        _begin(connection, "BEGIN IMMEDIATE")

    def begin_snapshot(self, connection: Connection) -> None:
        # The driver begins a transaction only at the first write.
        connection.begin()
        _begin(connection, "BEGIN")

    # The number of parameters is limited, so a list is bound as one JSON document.
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

    def unindexed(self, time: ColumnElement[Any]) -> ColumnElement[Any]:
        return UnaryExpression(time, operator=custom_op("+"), type_=String())

    def outer_limit(self, moment: ColumnElement[Any], *, high: bool) -> ColumnElement[Any]:
        # Stored times have a fraction or none.
        return (
            moment.concat(literal_column("'~'"))
            if high
            else func.substr(moment, 1, 10, type_=String)
        )

    def time_to_store(self, moment: datetime) -> Any:
        # Without a zero fraction, as CURRENT_TIMESTAMP writes it: a fraction would sort above it.
        return moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat(" ")

    def insert_rows(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        # As the driver takes them: SQLAlchemy would take longer over each row than SQLite does.
        if rows:
            quote = connection.dialect.identifier_preparer.quote
            columns = ", ".join(map(quote, rows[0]))
            marks = ", ".join("?" * len(rows[0]))
            name = qualified(connection, table)
            insert = f"INSERT INTO {name} ({columns}) VALUES ({marks})"  # noqa: S608  # names
            connection.exec_driver_sql(insert, [tuple(map(row.get, rows[0])) for row in rows])

    def byte_length(self, column: ColumnElement[str]) -> ColumnElement[int]:
        # `octet_length` is new in SQLite 3.43.
        return func.length(cast(column, LargeBinary))

    def now(self) -> ColumnElement[int]:
        # Days since 1970. SQLite's clock has a precision of milliseconds.
        days = func.julianday("now", type_=REAL) - 2440587.5
        return cast(days * 86_400_000_000.0, Integer)

    def time_index_rows(self, connection: Connection, sessions: Table, name: str) -> int | None:
        # More than there are if old sessions were deleted.
        number = f"SELECT coalesce(max(rowid), 0) FROM {qualified(connection, sessions)}"  # noqa: S608
        query = (
            f"SELECT ({number}) FROM {self.schema_of(connection, sessions)}sqlite_master"  # noqa: S608
            " WHERE type = 'index' AND name = ? COLLATE NOCASE"
        )
        rows: int | None = connection.exec_driver_sql(query, (name,)).scalar()
        return rows

    def triggers_of(self, connection: Connection, table: Table) -> Iterable[str]:
        query = (
            f"SELECT name FROM {self.schema_of(connection, table)}sqlite_master"  # noqa: S608  # a name
            " WHERE type = 'trigger' AND tbl_name = :name COLLATE NOCASE"
        )
        names: Iterable[str] = self.ask(connection, table, query).scalars()
        return names

    def existing(
        self, connection: Connection, sessions: Table, names: Sequence[str], *, parts: bool
    ) -> Existing:
        master = f"{self.schema_of(connection, sessions)}sqlite_master"
        query = f"SELECT type, tbl_name, name FROM {master} WHERE type <> 'view'"  # noqa: S608
        parameters = {}
        if parts:
            # A virtual table can be of a module that this process does not have.
            query += (
                f" UNION ALL SELECT 'column', m.name, c.name FROM (SELECT name FROM {master}"  # noqa: S608
                " WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
                " AND lower(name) IN (SELECT lower(value) FROM json_each(:names))) m"
                " JOIN pragma_table_info(m.name, :schema) c"
            )
            schema = connection.schema_for_object(sessions)
            parameters = {"names": json.dumps(list(names)), "schema": schema}
        found: Any = connection.execute(text(query), parameters).all()
        triggers = {name: frozenset[str]() for kind, _, name in found if kind == "trigger"}
        tables = [(table, name) for kind, table, name in found if kind != "trigger"]
        return {**triggers, **by_table(names, tables)}

    def table_bytes(self, connection: Connection, table: Table) -> int | None:
        master = f"{self.schema_of(connection, table)}sqlite_master"
        ends = ", ".join(f"lower(:name) || '{end}'" for end in ("", *_PARTS_OF_VIRTUAL))
        names = f"SELECT name FROM {master} WHERE lower(tbl_name) IN ({ends})"  # noqa: S608
        of_schema = "SELECT sum(pgsize) FROM dbstat WHERE schema = coalesce(:schema, 'main')"
        try:
            found = self.ask(connection, table, f"{of_schema} AND name IN ({names})")
        except OperationalError:  # SQLite is compiled without dbstat.
            return None
        size: int | None = found.scalar_one()
        return size


def _configure_connection(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout = 5000")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.close()


def _is_begun(connection: Connection) -> bool:
    fairy: Any = connection.connection
    return bool(fairy.driver_connection.in_transaction)


def _begin(connection: Connection, statement: str) -> None:
    if not _is_begun(connection):
        connection.exec_driver_sql(statement)


_MEMBERS = (
    ("_dbapi_connection",),
    ("_close_special", "dbapi_connection"),
    ("_handle_exception", "driver_connection", "run_async"),
    ("_conn", "_execute"),
)
"""Members of `Connection`, its pooled connection, SQLAlchemy's adapter, and aiosqlite's class."""


def _use_fewer_calls(connection: Connection) -> None:
    """Runs each statement with one call of the driver's thread.

    SQLAlchemy makes four calls: create a cursor, execute, read the rows, close. Each takes longer
    than a small statement. If a release lacks a private member, its own cursors are used.
    """
    pooled: Any = getattr(connection, "_dbapi_connection", None)
    adapted = getattr(pooled, "dbapi_connection", None)
    driver = getattr(adapted, "driver_connection", None)
    owners = connection, pooled, adapted, type(driver)
    if all(
        hasattr(owner, name)
        for owner, names in zip(owners, _MEMBERS, strict=True)
        for name in names
    ):
        wrapped: Any = _PooledConnection(pooled)
        connection._dbapi_connection = wrapped


class _PooledConnection:
    def __init__(self, pooled: Any) -> None:
        self._pooled = pooled
        self._is_committed = False

    def __getattr__(self, name: str) -> Any:
        self._is_committed = False  # Whoever asked may write.
        return getattr(self._pooled, name)

    def cursor(self, **_: object) -> _Cursor:
        """The cursor is for one statement, and always reads all rows at once."""
        self._is_committed = False
        return _Cursor(self)

    def call(self, work: Callable[[Any], object]) -> None:
        """Runs `work` in one call of the driver's thread."""
        connection = self._pooled.dbapi_connection
        driver = connection.driver_connection
        try:
            connection.run_async(lambda _: driver._execute(partial(work, driver._conn)))
        except Exception as error:  # noqa: BLE001  # raised as SQLAlchemy's own cursor raises it
            connection._handle_exception(error)

    def commit(self) -> None:
        self.call(lambda connection: connection.commit())
        self._is_committed = True

    def close(self) -> None:
        """Rolls back unless the connection has just committed."""
        self._pooled._close_special(transaction_reset=self._is_committed)


class _Cursor:
    arraysize = 1

    def __init__(self, connection: _PooledConnection) -> None:
        self._connection = connection
        self._rows: deque[Any] = deque()
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: Any = None

    def execute(
        self, statement: str, parameters: Sequence[Any] = (), method: str = "execute"
    ) -> None:
        def run(connection: Any) -> None:
            with closing(getattr(connection, method)(statement, parameters)) as cursor:
                self._rows.extend(cursor.fetchall())
                self.description = cursor.description
                self.rowcount, self.lastrowid = cursor.rowcount, cursor.lastrowid

        self._connection.call(run)

    def executemany(self, statement: str, parameters: Sequence[Sequence[Any]]) -> None:
        self.execute(statement, parameters, "executemany")

    def fetchone(self) -> Any:
        return self._rows.popleft() if self._rows else None

    def fetchmany(self, size: int = arraysize) -> list[Any]:
        return [self._rows.popleft() for _ in range(min(size, len(self._rows)))]

    def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, deque()
        return list(rows)

    def close(self) -> None:
        self._rows.clear()

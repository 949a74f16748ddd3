"""The dialect for SQLite."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from itertools import accumulate
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
    func,
    literal_column,
    null,
    select,
    type_coerce,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

from ._dialect import Dialect, Existing, by_table, qualified
from ._locks import LockedSession, Locks, Reader
from ._sqlite_cursor import use_fewer_calls
from .sqltypes import SDKTime


class SQLiteLocks(Locks):
    """A write takes the writer's lock for its whole transaction, even if it changes no row."""

    def __init__(self, sessions: Table, metadata: Table) -> None:
        super().__init__(sessions, metadata)
        self._touch = (
            update(sessions)
            .where(sessions.c.session_id == bindparam("session"))
            .values(updated_at=sessions.c.updated_at)
        )

    def _insert(self, value: ColumnElement[Any]) -> Any:
        new = sqlite.insert(self._sessions).values(session_id=bindparam("session"))
        return new.on_conflict_do_nothing().returning(value)

    def existing(self, connection: Connection, session_id: str) -> bool:
        # The count is of the statement alone, without what triggers change. Reading a returned row
        # would be one more call of the driver's thread.
        found: Any = connection.execute(self._touch, {"session": session_id})
        return bool(found.rowcount > 0)

    def reader(self, column: ColumnElement[Any]) -> Reader:
        metadata = self._metadata
        stored = select(func.json_group_object(metadata.c.key, column))
        stored = stored.where(metadata.c.session_id == bindparam("session"))
        statement: Any = self._touch.returning(stored.scalar_subquery())

        def read(connection: Connection, session_id: str) -> LockedSession:
            found = connection.execute(statement, {"session": session_id}).scalar()
            return LockedSession(None if found is None else json.loads(found))

        return read


@lru_cache(maxsize=4096)
def _moment_of(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


class SQLiteTime(SDKTime):
    """Text in UTC, with six decimals or none."""

    impl = String


class SQLiteMoment(SQLiteTime):
    from_database = staticmethod(_moment_of)

    def of(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.substr(type_coerce(column, String).concat(".000000"), 1, 26, type_=self)

    def to_database(self, value: datetime) -> str:
        return value.astimezone(timezone.utc).replace(tzinfo=None).isoformat(" ", "microseconds")


class SQLite(Dialect):
    """SQLite 3.35 or later."""

    name = "sqlite"
    insert = staticmethod(sqlite.insert)
    locks = SQLiteLocks
    stored_time = SQLiteTime()
    moment = SQLiteMoment()
    usual_isolation = "SERIALIZABLE"
    indexes_ids = True
    probe_cost = 0.25
    uses_triggers = True
    locks_rows = False
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

    name_triggers = (
        "SELECT name FROM {schema}sqlite_master"
        " WHERE type = 'trigger' AND tbl_name = :name COLLATE NOCASE"
    )
    measure_table = (
        "SELECT sum(pgsize) FROM dbstat WHERE schema = coalesce(:schema, 'main') AND name IN"
        " (SELECT name FROM {schema}sqlite_master WHERE lower(tbl_name) IN"
        # The tables in which FTS5 stores a virtual one.
        " (SELECT lower(:name) || value FROM json_each("
        """'["", "_config", "_content", "_data", "_docsize", "_idx"]')))"""
    )
    # More than there are if old sessions were deleted.
    estimate_rows = (
        "SELECT (SELECT max(rowid) FROM {table}) FROM {schema}sqlite_master"
        " WHERE type = 'index' AND name = :index COLLATE NOCASE"
    )

    def connect(self, engine: Engine) -> Connection:
        connection = super().connect(engine)
        use_fewer_calls(connection)
        return connection

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

    # The number of parameters is limited, so a list is bound as one value, and the place and length
    # of each part of it.
    def one_of(self, column: ColumnElement[Any], name: str, count: int) -> ColumnElement[bool]:
        if count <= self.many:
            return super().one_of(column, name, count)
        each = func.json_each(bindparam(name, type_=String)).table_valued("value")
        start, length = (func.json_extract(each.c.value, f"$[{index}]") for index in (0, 1))
        part = func.substr(bindparam(f"{name}_data", type_=LargeBinary), start, length)
        return column.in_(select(cast(part, column.type)))

    def list_parameters(self, name: str, values: Sequence[Any]) -> dict[str, Any]:
        if len(values) <= self.many:
            return super().list_parameters(name, values)
        parts = [each.encode() if isinstance(each, str) else each for each in values]
        starts = accumulate(map(len, parts), initial=1)
        spans = [(start, len(part)) for start, part in zip(starts, parts)]  # noqa: B905  # and end
        return {name: json.dumps(spans), f"{name}_data": b"".join(parts)}

    def unindexed(self, time: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.nullif(time, null(), type_=time.type)

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

    def existing(
        self, connection: Connection, sessions: Table, names: Sequence[str], *, parts: bool
    ) -> Existing:
        query = _EXISTING + _COLUMNS if parts else _EXISTING
        found = self.ask(connection, sessions, query, names=json.dumps(list(names))).all()
        triggers = {name: frozenset[str]() for kind, _, name in found if kind == "trigger"}
        tables = [(table, name) for kind, table, name in found if kind != "trigger"]
        return {**triggers, **by_table(names, tables)}

    def table_bytes(self, connection: Connection, table: Table) -> int | None:
        try:
            return super().table_bytes(connection, table)
        except OperationalError:  # SQLite is compiled without dbstat.
            return None


_EXISTING = "SELECT type, tbl_name, name FROM {schema}sqlite_master WHERE type <> 'view'"
_COLUMNS = (
    " UNION ALL SELECT 'column', m.name, c.name FROM (SELECT name FROM {schema}sqlite_master"
    # A virtual table can be of a module that this process does not have.
    " WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
    " AND lower(name) IN (SELECT lower(value) FROM json_each(:names))) m"
    " JOIN pragma_table_info(m.name, :schema) c"
)


def _is_begun(connection: Connection) -> bool:
    fairy: Any = connection.connection
    return bool(fairy.driver_connection.in_transaction)


def _begin(connection: Connection, statement: str) -> None:
    if not _is_begun(connection):
        connection.exec_driver_sql(statement)

"""Tables, statements and error codes behind `SQLAlchemyMetadataSession`.

This is the only module of the feature that distinguishes between databases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    TIMESTAMP,
    Column,
    Connection,
    Dialect,
    ForeignKeyConstraint,
    Index,
    Insert,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    func,
    inspect,
    text as sql_text,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.types import TypeEngine

from ._session_metadata_values import MAX_KEY_LENGTH, SEARCH_KEY_BYTES

MAX_ID_LENGTH = 255
SUPPORTED_DIALECTS = ("sqlite", "postgresql", "mysql", "mariadb")

_MYSQL = ("mysql", "mariadb")
_LONGEST_NAME = 63  # Bytes of an identifier that every supported database keeps.

_SQLITE_BUSY_OR_LOCKED = {5, 6}
_TRANSIENT_CODES = {
    "40001",  # PostgreSQL: serialization failure
    "40P01",  # PostgreSQL: deadlock
    1213,  # MySQL: deadlock
    1205,  # MySQL: lock wait timeout
    1020,  # MariaDB: record has changed since last read
    1047,  # Galera: node not ready
}
# PostgreSQL and MySQL errors of a CREATE statement that another process was faster with.
_CREATION_RACE_CODES = {"42P07", "42710", "23505", 1050, 1061, 1005, 1826}


def is_transient(error: DBAPIError) -> bool:
    """Return whether the transaction may succeed when it runs again."""
    sqlite_code: int | None = getattr(error.orig, "sqlite_errorcode", None)
    if sqlite_code is not None:
        # The low byte of an extended code is the primary code.
        return sqlite_code & 0xFF in _SQLITE_BUSY_OR_LOCKED
    code = _error_code(error)
    # On Python 3.10, SQLite errors have no code.
    return code in _TRANSIENT_CODES or "is locked" in str(code)


def is_transient_creation(error: DBAPIError) -> bool:
    """Return whether creating tables may succeed, or not be necessary, when it runs again."""
    return is_transient(error) or _error_code(error) in _CREATION_RACE_CODES


def _error_code(error: DBAPIError) -> Any:
    # PostgreSQL drivers set `sqlstate`; the first argument of a MySQL error is its code.
    original: Any = error.orig
    return getattr(original, "sqlstate", None) or next(iter(getattr(original, "args", ())), None)


async def check_settings(sess: AsyncSession) -> None:
    """Refuse MySQL settings with which the end of a value could become SQL, or be lost."""
    # Drivers escape bytes with backslashes, whatever the mode and the character set are.
    if sess.get_bind().dialect.name in _MYSQL:
        query = "SELECT @@sql_mode, @@character_set_client, @@character_set_results"
        mode, *found = (await sess.execute(sql_text(query))).one()
        unsafe = {"NO_BACKSLASH_ESCAPES"} & {*mode.split(",")} or {*found} - {"utf8mb4"}
        if unsafe:
            raise ValueError(f"the MySQL mode or character set {unsafe.pop()} is not supported")


def lock_or_create_session(dialect: Dialect, sessions: Table, session_id: str) -> Insert:
    """Build the statement that locks a session's row, and creates it if it does not exist.

    Its transaction must not read a table before it. A read would take the snapshot that later
    reads see on MySQL. It leaves `updated_at` unchanged.
    """
    values = {"session_id": session_id}
    if dialect.name in _MYSQL:
        new = mysql.insert(sessions).values(values)
        return new.on_duplicate_key_update(session_id=sessions.c.session_id)
    if dialect.name == "postgresql":
        statement = postgresql.insert(sessions).values(values)
        same = {"session_id": statement.excluded.session_id}
        return statement.on_conflict_do_update(index_elements=["session_id"], set_=same)
    return sqlite.insert(sessions).values(values).on_conflict_do_nothing()


def upsert_rows(dialect: Dialect, rows: Table) -> Insert:
    """Build the statement that inserts metadata rows, or replaces those with the same key."""
    replaced = ("value", "search_key", "search_rest")
    now = {"updated_at": func.current_timestamp()}
    if dialect.name in _MYSQL:
        new = mysql.insert(rows)
        return new.on_duplicate_key_update({name: new.inserted[name] for name in replaced} | now)
    statement: postgresql.Insert | sqlite.Insert = (
        postgresql.insert(rows) if dialect.name == "postgresql" else sqlite.insert(rows)
    )
    return statement.on_conflict_do_update(
        index_elements=["session_id", "key"],
        set_={name: statement.excluded[name] for name in replaced} | now,
    )


def define_metadata_tables(sessions: Table, name: str) -> tuple[Table, Table]:
    """Define the metadata tables next to a sessions table.

    The types are plain. In a statement, a collation on a bound parameter would keep PostgreSQL
    from using an index that has another collation. `create_missing_tables` has the real types.

    Returns:
        A table with one row per session and key, and a table with one row per distinct scalar in a
        list, by which an index can find list elements.
    """

    def define(
        name: str, third: Column[Any], parent: Table, key: list[str], fk: str, *columns: Column[Any]
    ) -> Table:
        return Table(
            name,
            sessions.metadata,
            Column("session_id", String, primary_key=True),
            Column("key", String(MAX_KEY_LENGTH), primary_key=True),
            third,
            Column("search_key", LargeBinary, nullable=False),
            Column("search_rest", LargeBinary, nullable=False),
            *columns,
            ForeignKeyConstraint(
                key, [parent.c[each] for each in key], derived_name(name, fk), ondelete="CASCADE"
            ),
            Index(derived_name(name, "_search_idx"), "key", "search_key", "session_id"),
            # The primary key itself holds the row: one lookup instead of two.
            sqlite_with_rowid=False,
        )

    def time(name: str) -> Column[Any]:
        now = sql_text("CURRENT_TIMESTAMP")
        return Column(name, TIMESTAMP(timezone=True), server_default=now, nullable=False)

    value, times = Column("value", Text, nullable=False), (time("created_at"), time("updated_at"))
    rows = define(name, value, sessions, ["session_id"], "_session_fk", *times)
    position = Column("position", Integer, primary_key=True, autoincrement=False)
    elements_name = derived_name(name, "_elements")
    return rows, define(elements_name, position, rows, ["session_id", "key"], "_key_fk")


def create_missing_tables(connection: Connection, tables: Sequence[Table]) -> None:
    """Create what the database does not have of the sessions, messages and metadata tables.

    Raises:
        DBAPIError: If another process creates the same table at the same time. Run it again.
    """
    dialect = connection.dialect
    schema = connection.schema_for_object(tables[0])
    inspector = inspect(connection)
    existing = {each.name for each in tables if inspector.has_table(each.name, schema=schema)}
    types = _column_types(dialect)
    if tables[0].name in existing:
        # A foreign key column needs the type and collation that its parent really has.
        types["session_id"] = _existing_id_type(connection, tables[0].name, schema)
    metadata = MetaData()
    for table in [each.to_metadata(metadata) for each in tables]:
        for column in table.columns:
            column.type = types.get(column.name, column.type)
        if dialect.name in _MYSQL:
            table.dialect_options[dialect.name].update(engine="InnoDB", charset="utf8mb4")
        if table.name in existing:
            continue
        connection.execute(CreateTable(table, if_not_exists=True))
        for index in table.indexes:
            connection.execute(CreateIndex(index, if_not_exists=dialect.name not in _MYSQL))
    if dialect.name == "sqlite":
        _create_triggers(connection, tables, schema)


def _create_triggers(connection: Connection, tables: Sequence[Table], schema: str | None) -> None:
    """Create triggers that delete metadata with its session, and let it follow a changed id.

    SQLite does not enforce foreign keys by default, and a trigger works for every writer of the
    database, including a plain `SQLAlchemySession`. The INSERT trigger covers `REPLACE INTO`. It
    leaves the metadata of a session that was created earlier: a backup restores it.
    """
    sessions, _, rows, elements = tables
    quote = connection.dialect.identifier_preparer.quote
    prefix = f"{quote(schema)}." if schema else ""
    old, new = "session_id = OLD.session_id", "session_id = NEW.session_id"
    delete = f"DELETE FROM {quote(rows.name)} WHERE"
    moves = "; ".join(
        f"DELETE FROM {name} WHERE {new}; UPDATE {name} SET {new} WHERE {old}"
        for name in (quote(rows.name), quote(elements.name))
    )
    of_key = f'DELETE FROM {quote(elements.name)} WHERE {old} AND "key" = OLD."key"'
    created, changed = "NEW.created_at >= CURRENT_TIMESTAMP", "OLD.session_id <> NEW.session_id"
    for event, source, target, body in (
        ("DELETE", sessions, rows, f" BEGIN {delete} {old}"),
        ("INSERT", sessions, rows, f" WHEN {created} BEGIN {delete} {new}"),
        ("UPDATE OF session_id", sessions, rows, f" WHEN {changed} BEGIN {moves}"),
        ("DELETE", rows, elements, f" BEGIN {of_key}"),
    ):
        name = prefix + quote(derived_name(target.name, f"_after_{event[:6].lower()}"))
        create = f"CREATE TRIGGER IF NOT EXISTS {name} AFTER {event} ON {quote(source.name)}"
        connection.exec_driver_sql(f"{create}{body}; END")


def derived_name(name: str, suffix: str) -> str:
    """Append a suffix to a table's name. A name that would be too long is cut and gets a hash."""
    if len((name + suffix).encode()) <= _LONGEST_NAME:
        return name + suffix
    mark = f"_{hashlib.sha256(name.encode()).hexdigest()[:8]}{suffix}"
    return name.encode()[: _LONGEST_NAME - len(mark.encode())].decode(errors="ignore") + mark


def _column_types(dialect: Dialect) -> dict[str, TypeEngine[Any]]:
    """Return types by column name that compare byte by byte and hold values of any length."""
    if dialect.name == "sqlite":
        return {}
    if dialect.name == "postgresql":
        return {
            "session_id": String(collation="C"),
            "key": String(MAX_KEY_LENGTH, collation="C"),
        }
    # A mysql:// URL can lead to MariaDB.
    is_mariadb = getattr(dialect, "is_mariadb", False)
    collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
    varchar = partial(mysql.VARCHAR, charset="utf8mb4", collation=collation)
    return {
        "session_id": varchar(MAX_ID_LENGTH),
        "key": varchar(MAX_KEY_LENGTH),
        "value": mysql.LONGTEXT(charset="utf8mb4"),
        "message_data": mysql.LONGTEXT(charset="utf8mb4"),
        "search_key": mysql.VARBINARY(SEARCH_KEY_BYTES),
        "search_rest": mysql.LONGBLOB(),
    }


def _existing_id_type(connection: Connection, name: str, schema: str | None) -> TypeEngine[Any]:
    """Return the type of ids next to a sessions table that exists."""
    if connection.dialect.name in _MYSQL:
        length, charset, collation = connection.execute(
            sql_text(
                "SELECT character_maximum_length, character_set_name, collation_name"
                " FROM information_schema.columns WHERE table_name = :name"
                " AND column_name = 'session_id' AND table_schema = coalesce(:schema, database())"
            ),
            {"name": name, "schema": schema},
        ).one()
        return mysql.VARCHAR(min(length, MAX_ID_LENGTH), charset=charset, collation=collation)
    if connection.dialect.name == "postgresql":
        quote = connection.dialect.identifier_preparer.quote
        collation = connection.execute(
            sql_text(
                "SELECT c.collname FROM pg_attribute a JOIN pg_collation c ON c.oid ="
                " a.attcollation WHERE a.attrelid = to_regclass(:name)"
                " AND a.attname = 'session_id'"
            ),
            {"name": f"{quote(schema)}.{quote(name)}" if schema else quote(name)},
        ).scalar()
        return String(collation=None if collation == "default" else collation)
    return String()

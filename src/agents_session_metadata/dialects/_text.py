"""The SQL of text search on each database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    String,
    Table,
    Text,
    bindparam,
    cast,
    column,
    func,
    insert,
    literal_column,
    select,
    text,
    true,
)

from .sqltypes import Words

_AT_ONCE = 500
"""Items per statement."""


def _quoted(connection: Connection, name: str) -> str:
    return connection.dialect.identifier_preparer.quote(name)


class TextSQL:
    """This class has the SQL of SQLite."""

    time_index: ClassVar[tuple[str, ...]] = ("created_at",)
    """The columns of an index of items in their order. The primary key can be implied."""
    has_native: ClassVar[bool] = False
    """The database's own index finds all rows that contain some words."""
    newest_mark: ClassVar[str] = "0"
    oldest_mark: ClassVar[str] = "0"
    """Each transaction that is open now has ended as soon as the oldest mark is `newest_mark`."""

    def contains(self, words: ColumnElement[Any], pattern: ColumnElement[Any]) -> Any:
        return func.instr(words, pattern) > 0

    def plain(self, search_key: ColumnElement[bytes]) -> tuple[ColumnElement[str], Any]:
        """Returns the text of the search key of a string in lower case, and whether it is ASCII."""
        spelled = cast(search_key, Text)
        return func.lower(spelled), func.length(spelled) == func.length(search_key)

    def or_else(self, test: ColumnElement[Any], *, default: bool) -> ColumnElement[bool]:
        """Returns a test that no planner reorders, and `default` where it finds no row."""
        return func.coalesce(test, literal_column(str(int(default)))) == literal_column("1")

    def fenced(self, statement: Any) -> Any:
        """Keeps a planner from merging a subquery into the statement around it."""
        return statement

    def insert(
        self,
        connection: Connection,
        messages: Table,
        rows: Table,
        session_id: str,
        texts: Sequence[tuple[str, str]],
    ) -> None:
        """Inserts items of a session, each with its words."""
        statement = insert(messages).returning(messages.c.id)
        for start in range(0, len(texts), _AT_ONCE):
            some = texts[start : start + _AT_ONCE]
            values = [{"session_id": session_id, "message_data": data} for data, _ in some]
            # In the order of the values.
            ids = sorted(connection.scalars(statement.values(values)))
            new = [
                {"id": item_id, "words": words}
                for item_id, (_, words) in zip(ids, some, strict=True)
            ]
            connection.execute(insert(rows), new)

    def native_query(self, words: Iterable[tuple[str, bool]]) -> str:
        """Returns a query for words, and beginnings of words where True."""
        return " AND ".join(f'"{word}"{"*" if prefix else ""}' for word, prefix in words)

    def native_condition(self, rows: Table) -> ColumnElement[bool]:
        """Holds for the rows that `native_query`, bound as `native`, finds, and for few others."""
        raise NotImplementedError

    def create_native(self, connection: Connection, rows: Table) -> None:
        """Creates the index, and adds the rows that exist."""

    def drop_native(self, connection: Connection, rows: Table) -> None:
        """Drops the index if it exists."""


class SQLiteTextSQL(TextSQL):
    has_native: ClassVar[bool] = True

    def native_condition(self, rows: Table) -> ColumnElement[bool]:
        index = Table(f"{rows.name}_fts", rows.metadata, schema=rows.schema, keep_existing=True)
        found: Any = select(column("rowid")).select_from(index)
        match = column(index.name).op("MATCH")(bindparam("native", type_=String))
        return rows.c.id.in_(found.where(match))

    def create_native(self, connection: Connection, rows: Table) -> None:
        name, index = (_quoted(connection, rows.name + end) for end in ("", "_fts"))
        schema = connection.schema_for_object(rows)
        place = f"{_quoted(connection, schema)}." if schema else ""
        content = rows.name.replace("'", "''")
        connection.exec_driver_sql(
            f"CREATE VIRTUAL TABLE {place}{index} USING fts5(words, content='{content}',"
            " content_rowid='id', detail=none, columnsize=0, tokenize=\"ascii tokenchars '_'\")"
        )
        old = (
            f"INSERT INTO {index} ({index}, rowid, words)"  # noqa: S608  # names
            " VALUES ('delete', OLD.id, OLD.words)"
        )
        new = f"INSERT INTO {index} (rowid, words) VALUES (NEW.id, NEW.words)"  # noqa: S608  # names
        for event, statements in (("INSERT", new), ("DELETE", old), ("UPDATE", f"{old}; {new}")):
            trigger = place + _quoted(connection, f"{rows.name}_fts_{event.lower()}")
            connection.exec_driver_sql(
                f"CREATE TRIGGER {trigger} AFTER {event} ON {name} BEGIN {statements}; END"
            )
        rebuild = f"INSERT INTO {place}{index} ({index}) VALUES ('rebuild')"  # noqa: S608  # names
        connection.exec_driver_sql(rebuild)

    def drop_native(self, connection: Connection, rows: Table) -> None:
        schema = connection.schema_for_object(rows)
        place = f"{_quoted(connection, schema)}." if schema else ""
        for event in ("insert", "delete", "update"):
            trigger = _quoted(connection, f"{rows.name}_fts_{event}")
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {place}{trigger}")
        index = _quoted(connection, f"{rows.name}_fts")
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {place}{index}")


class PostgreSQLTextSQL(TextSQL):
    time_index: ClassVar[tuple[str, ...]] = ("created_at", "id")
    has_native: ClassVar[bool] = True
    newest_mark: ClassVar[str] = (
        "CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint)"
    )
    oldest_mark: ClassVar[str] = (
        "CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)"
    )
    _lexemes: ClassVar[str] = (
        # A message of a megabyte can have more words than a tsvector holds. A space is no word.
        "CASE WHEN octet_length(words) < 500000 THEN array_to_tsvector(array_remove("
        "string_to_array(words, ' '), '')) ELSE array_to_tsvector(ARRAY[' ']) END"
    )

    def contains(self, words: ColumnElement[Any], pattern: ColumnElement[Any]) -> Any:
        return func.strpos(words, pattern) > 0

    def or_else(self, test: ColumnElement[Any], *, default: bool) -> ColumnElement[bool]:
        return func.coalesce(test, true() if default else ~true())

    def plain(self, search_key: ColumnElement[bytes]) -> tuple[ColumnElement[str], Any]:
        spelled = func.encode(search_key, "escape", type_=Text).collate("C")
        return func.lower(spelled), func.strpos(spelled, "\\") == literal_column("0")

    def fenced(self, statement: Any) -> Any:
        return statement.offset(literal_column("0"))

    def insert(
        self,
        connection: Connection,
        messages: Table,
        rows: Table,
        session_id: str,
        texts: Sequence[tuple[str, str]],
    ) -> None:
        lists = {f"given_{place}": [each[place] for each in texts] for place in (0, 1)}
        connection.execute(_insert_both(messages, rows), {**lists, "of_session": session_id})

    def native_query(self, words: Iterable[tuple[str, bool]]) -> str:
        lexemes = (f"'{word}'{':*' if prefix else ''}" for word, prefix in words)
        return f"({' & '.join(lexemes)}) | ' '"

    def native_condition(self, rows: Table) -> ColumnElement[bool]:
        query = "CAST(CAST(:native AS text) AS tsquery)"
        found: Any = text(f"{self._lexemes} @@ {query}")
        condition: ColumnElement[bool] = found.bindparams(bindparam("native", type_=Text))
        return condition

    def create_native(self, connection: Connection, rows: Table) -> None:
        index, name = (_quoted(connection, rows.name + end) for end in ("_gin", ""))
        schema = connection.schema_for_object(rows)
        place = f"{_quoted(connection, schema)}." if schema else ""
        connection.exec_driver_sql(
            f"CREATE INDEX {index} ON {place}{name} USING gin (({self._lexemes}))"
        )

    def drop_native(self, connection: Connection, rows: Table) -> None:
        schema = connection.schema_for_object(rows)
        place = f"{_quoted(connection, schema)}." if schema else ""
        connection.exec_driver_sql(
            f"DROP INDEX IF EXISTS {place}{_quoted(connection, rows.name + '_gin')}"
        )


@lru_cache(maxsize=64)
def _insert_both(messages: Table, rows: Table) -> Any:
    """Inserts items and their words, from two lists, in one statement."""
    names = ("message_data", "words")
    lists = (bindparam(f"given_{place}", type_=ARRAY(Text())) for place in (0, 1))
    given: Any = (
        func.unnest(*lists)
        .table_valued(*(column(name, Text()) for name in names), with_ordinality="ordinal")
        .render_derived()
    )
    given = select(*given.c).cte("given")
    session_id: Any = bindparam("of_session", type_=String)
    new: Any = (
        insert(messages)
        .from_select(
            ["session_id", "message_data"],
            # The rows get their numbers after they are sorted.
            select(session_id, given.c.message_data).order_by(given.c.ordinal),
            include_defaults=False,
        )
        .returning(messages.c.id)
        .cte("new")
    )
    place = func.row_number().over(order_by=new.c.id).label("ordinal")
    placed = select(new.c.id, place).subquery("placed")
    both = select(placed.c.id, given.c.words).join_from(
        placed, given, placed.c.ordinal == given.c.ordinal
    )
    return insert(rows).from_select(["id", "words"], both)


class MySQLTextSQL(TextSQL):
    def contains(self, words: ColumnElement[Any], pattern: ColumnElement[Any]) -> Any:
        return func.locate(pattern, words) > 0

    def plain(self, search_key: ColumnElement[bytes]) -> tuple[ColumnElement[str], Any]:
        from sqlalchemy.dialects import mysql  # Only this database loads it.

        one_byte = cast(search_key, mysql.CHAR(charset="latin1"))
        spelled = cast(one_byte, mysql.CHAR(charset="utf8mb4"))
        return func.lower(spelled), func.length(spelled) == func.length(search_key)

    def insert(
        self,
        connection: Connection,
        messages: Table,
        rows: Table,
        session_id: str,
        texts: Sequence[tuple[str, str]],
    ) -> None:
        for start in range(0, len(texts), _AT_ONCE):
            some = texts[start : start + _AT_ONCE]
            connection.execute(
                insert(messages).inline(),
                [{"session_id": session_id, "message_data": data} for data, _ in some],
            )
            # The session is locked: its newest items are those. If the driver has divided the
            # statement, the words of the others are missing.
            words = {f"words_{place}": each for place, (_, each) in enumerate(reversed(some))}
            connection.execute(
                _insert_newest(messages, rows, len(some)), {**words, "of_session": session_id}
            )


@lru_cache(maxsize=512)
def _insert_newest(messages: Table, rows: Table, count: int) -> Any:
    place = func.row_number().over(order_by=messages.c.id.desc()).label("place")
    newest = (
        select(messages.c.id, place)
        .where(
            messages.c.session_id == bindparam("of_session", type_=String),
            messages.c.id >= func.last_insert_id(),
        )
        .subquery("newest")
    )
    words = (bindparam(f"words_{number}", type_=Words()) for number in range(count))
    each = func.elt(newest.c.place, *words)
    chosen = select(newest.c.id, each).where(newest.c.place <= literal_column(str(count)))
    return insert(rows).from_select(["id", "words"], chosen)

"""The SQL of text search on each database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from sqlalchemy import (
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
)


class TextSQL:
    """This class has the SQL of SQLite.

    The statements that create and drop the database's own index have names in braces. Without such
    an index, there are none.
    """

    position: ClassVar[str] = "instr"
    """The function that finds a substring."""
    newest: ClassVar[str] = "0"
    oldest: ClassVar[str] = "0"
    """All transactions that are open now have ended as soon as `oldest` is the `newest` of now."""
    create_native: ClassVar[tuple[str, ...]] = (
        (
            "CREATE VIRTUAL TABLE {schema}{fts} USING fts5(words, content={rows},"
            " content_rowid='id', detail=none, columnsize=0, tokenize=\"ascii tokenchars '_'\")"
        ),
        (
            "CREATE TRIGGER {schema}{inserted} AFTER INSERT ON {rows} BEGIN"
            " INSERT INTO {fts} (rowid, words) VALUES (NEW.id, NEW.words); END"
        ),
        (
            "CREATE TRIGGER {schema}{deleted} AFTER DELETE ON {rows} BEGIN"
            " INSERT INTO {fts} ({fts}, rowid, words) VALUES ('delete', OLD.id, OLD.words); END"
        ),
        "INSERT INTO {schema}{fts} ({fts}) VALUES ('rebuild')",
    )
    purge_native: ClassVar[tuple[str, ...]] = (
        # Until it is rewritten, it contains the words of deleted rows.
        "INSERT INTO {schema}{fts} ({fts}) VALUES ('optimize')",
    )
    drop_native: ClassVar[tuple[str, ...]] = (
        "DROP TRIGGER IF EXISTS {schema}{inserted}",
        "DROP TRIGGER IF EXISTS {schema}{deleted}",
        "DROP TABLE IF EXISTS {schema}{fts}",
    )

    def contains(self, words: ColumnElement[Any], pattern: ColumnElement[Any]) -> Any:
        return getattr(func, self.position)(words, pattern) > 0

    def plain(self, search_key: ColumnElement[bytes]) -> tuple[ColumnElement[str], Any]:
        """Returns the text of the search key of a string in lower case, and whether it is ASCII."""
        spelled = cast(search_key, Text)
        return func.lower(spelled), func.length(spelled) == func.length(search_key)

    def fenced(self, statement: Any) -> Any:
        """Keeps a planner from merging a subquery into the statement around it."""
        return statement

    def insert_items(
        self, connection: Connection, messages: Table, items: Sequence[Mapping[str, str]]
    ) -> Sequence[int]:
        """Inserts items of one session, which is locked, and returns the ids of the last ones."""
        new = insert(messages).returning(messages.c.id, sort_by_parameter_order=True)
        return connection.scalars(new, items).all()

    def native_query(self, words: Iterable[tuple[str, bool]]) -> str:
        """Returns a query for words, and beginnings of words where True."""
        return " AND ".join(f'"{word}"{"*" if prefix else ""}' for word, prefix in words)

    def native_condition(self, rows: Table, index: Table) -> ColumnElement[bool]:
        """Holds for the rows that `native_query`, bound as `native`, finds, and for few others."""
        match = column(index.name).op("MATCH")(bindparam("native", type_=String))
        found: Any = select(column("rowid")).select_from(index).where(match)
        return rows.c.id.in_(found)


_LEXEMES = (
    # A message of a megabyte can have more words than a tsvector holds. Such a message gets a
    # space instead, which no word equals.
    "CASE WHEN octet_length(words) < 500000 THEN array_to_tsvector(array_remove("
    "string_to_array(words, ' '), '')) ELSE array_to_tsvector(ARRAY[' ']) END"
)


class PostgreSQLTextSQL(TextSQL):
    position = "strpos"
    newest = "CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint)"
    oldest = "CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)"
    create_native = (f"CREATE INDEX {{gin}} ON {{schema}}{{rows}} USING gin (({_LEXEMES}))",)
    purge_native = ()
    drop_native = ("DROP INDEX IF EXISTS {schema}{gin}",)

    def plain(self, search_key: ColumnElement[bytes]) -> tuple[ColumnElement[str], Any]:
        spelled = func.encode(search_key, "escape", type_=Text).collate("C")
        return func.lower(spelled), func.strpos(spelled, "\\") == literal_column("0")

    def fenced(self, statement: Any) -> Any:
        return statement.offset(literal_column("0"))

    def native_query(self, words: Iterable[tuple[str, bool]]) -> str:
        lexemes = (f"'{word}'{':*' if prefix else ''}" for word, prefix in words)
        return f"({' & '.join(lexemes)}) | ' '"

    def native_condition(self, rows: Table, index: Table) -> ColumnElement[bool]:
        found: Any = text(f"{_LEXEMES} @@ CAST(CAST(:native AS text) AS tsquery)")
        condition: ColumnElement[bool] = found.bindparams(bindparam("native", type_=Text))
        return condition


class MySQLTextSQL(TextSQL):
    create_native = ()
    purge_native = ()
    drop_native = ()

    def plain(self, search_key: ColumnElement[bytes]) -> tuple[ColumnElement[str], Any]:
        from sqlalchemy.dialects import mysql  # Only this database loads it.

        one_byte = cast(search_key, mysql.CHAR(charset="latin1"))
        spelled = cast(one_byte, mysql.CHAR(charset="utf8mb4"))
        return func.lower(spelled), func.length(spelled) == func.length(search_key)

    def insert_items(
        self, connection: Connection, messages: Table, items: Sequence[Mapping[str, str]]
    ) -> Sequence[int]:
        connection.execute(insert(messages).inline(), items)
        # If the driver has divided the statement, these are the items of its last part.
        new = select(messages.c.id).where(
            messages.c.session_id == items[0]["session_id"], messages.c.id >= func.last_insert_id()
        )
        return connection.scalars(new.order_by(messages.c.id)).all()

"""The tables of the text index, and the triggers that keep it up to date for every writer.

| table | one row |
|---|---|
| `…_words` | a word of a message or title, and when that was written; and for each one empty word |
| `…_words_queue` | a message or title whose words are not indexed yet |
| `…_words_state` | the state of the index |

Words are made outside the database. So triggers delete words with what they are of, and put what is
new into the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    Table,
)

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects._triggers import RowTrigger
from agents_session_metadata.keys import TITLE

from .activity_triggers import DropMaintenance
from .definitions import (
    ColumnTypes,
    GroupDefinition,
    TableGroup,
    by_code_point,
    derived_name,
    session_link,
    table_options,
)

WORDS = "words"
"""The name of the group."""
TEXT = "$text"
"""The key of the text index."""
TITLE_ITEM = 0
"""Stands for the id of an item in the rows of a title. The ids of items begin with 1."""

_NAMES = (
    (0, "_of_session_delete"),
    (0, "_of_session_update"),
    (1, "_of_item_insert"),
    (1, "_of_item_update"),
    (1, "_of_item_changed"),
    (1, "_of_item_delete"),
    (1, "_of_item_truncate"),
    (2, "_of_title_insert"),
    (2, "_of_title_update"),
    (2, "_of_title_changed"),
    (2, "_of_title_delete"),
    (2, "_of_title_truncate"),
)
"""The ends of the names of all triggers on any database, and their tables among the core tables."""


def _define(
    metadata: MetaData, core: TableGroup, names: tuple[str, ...], types: ColumnTypes
) -> TableGroup:
    words_name, queue_name, state_name = names
    if words_name in metadata.tables:
        return _group(core, *(metadata.tables[name] for name in names))
    options: dict[str, Any] = {**table_options(types), "sqlite_with_rowid": False}

    words = Table(
        words_name,
        metadata,
        # The order of the primary key serves the foreign key too.
        Column("session_id", types.own_id, primary_key=True),
        Column("item_id", BigInteger, primary_key=True, autoincrement=False),
        Column("word", types.word, primary_key=True),
        Column("created_at", types.stored_time, nullable=False),
        session_link(words_name, core.tables[0]),
        Index(derived_name(words_name, "_word_idx"), "word", "session_id", "created_at", "item_id"),
        Index(
            derived_name(words_name, "_time_idx"),
            "word",
            "created_at",
            "session_id",
            "item_id",
            **by_code_point(types),
        ),
        **options,
    )
    queue = Table(
        queue_name,
        metadata,
        Column("session_id", types.own_id, primary_key=True),
        Column("item_id", BigInteger, primary_key=True, autoincrement=False),
        session_link(queue_name, core.tables[0]),
        **options,
    )
    state = Table(
        state_name,
        metadata,
        Column("key", types.key, primary_key=True),
        # FILLING, COMPLETE or DROPPING.
        Column("state", Integer, nullable=False),
        # Of whoever has created the index, or dropped it. The key of hidden places in cursors.
        Column("token", types.key, nullable=False),
        # Items up to this one were there before the triggers; NULL before there are triggers.
        Column("last_item", BigInteger, nullable=True),
        # The items and titles up to here are indexed.
        Column("item_id", BigInteger, nullable=False),
        Column("session_id", types.own_id, nullable=False),
        **options,
    )
    return _group(core, words, queue, state)


def _group(core: TableGroup, words: Table, queue: Table, state: Table) -> TableGroup:
    cleanup = tuple(DropMaintenance(core.tables[place], words, suffix) for place, suffix in _NAMES)
    return TableGroup(WORDS, (words, queue, state), cleanup=cleanup)


GROUP = GroupDefinition(WORDS, ("_words", "_words_queue", "_words_state"), _define)


def word_triggers(
    connection: Connection, core: Sequence[Table], group: TableGroup
) -> list[RowTrigger]:
    """The triggers of a database."""
    return list(_Triggers(connection, core, group).all())


class _Triggers:
    def __init__(self, connection: Connection, core: Sequence[Table], group: TableGroup) -> None:
        dialect = dialect_of(connection.dialect)
        self._sql = dialect.triggers
        self._quote = connection.dialect.identifier_preparer.quote
        self._group = group
        self._schema = dialect.schema_of(connection, group["_words"])
        qualified = self._schema if self._sql.enforces_foreign_keys else ""
        self._sessions, self._messages, self._metadata, _ = (
            qualified + self._quote(table.name) for table in core
        )
        self._words, self._queue, _ = (
            qualified + self._quote(table.name) for table in group.tables
        )

    def all(self) -> Iterator[RowTrigger]:
        """All triggers."""
        sql, key = self._sql, self._quote("key")
        # A REPLACE on SQLite inserts without deleting.
        replaces = not sql.enforces_foreign_keys
        of = (
            ("item", self._messages, "id", "", ""),
            ("title", self._metadata, "", f"OLD.{key} = '{TITLE}'", f"NEW.{key} = '{TITLE}'"),
        )
        for name, table, column, was_one, is_one in of:
            old, new = (f"{row}.{column}" if column else str(TITLE_ITEM) for row in ("OLD", "NEW"))
            # A table that another program made on SQLite may have items without an id.
            has_id = f"{new} IS NOT NULL" if replaces and column else ""
            fits = " AND ".join(filter(None, (is_one, has_id, sql.fits("NEW.session_id"))))
            queued = sql.insert_missing(
                self._queue, {"session_id": "NEW.session_id", "item_id": new}
            )
            waiting = sql.delete_existing(self._queue, self._same("OLD", old))
            delete_new, delete_old = (
                f"DELETE FROM {self._words} WHERE {self._same(row, item)}"  # noqa: S608  # names
                for row, item in (("NEW", new), ("OLD", old))
            )
            first = (delete_new,) if replaces else ()
            yield self._on(table, "AFTER INSERT", fits, f"{name}_insert", *first, queued)
            yield self._on(table, "AFTER UPDATE", was_one, f"{name}_update", delete_old)
            yield self._on(table, "AFTER UPDATE", fits, f"{name}_changed", queued)
            # The queue first: whoever is about to index it has locked the row there.
            yield self._on(table, "AFTER DELETE", was_one, f"{name}_delete", waiting, delete_old)
            if sql.fires_on_truncate:
                all_of = f"item_id {'<>' if column else '='} {TITLE_ITEM}"
                deletes = [
                    f"DELETE FROM {each} WHERE {all_of}"  # noqa: S608  # names
                    for each in (self._queue, self._words)
                ]
                yield self._on(table, "AFTER TRUNCATE", "", f"{name}_truncate", *deletes)
        if replaces:
            ended = [
                f"DELETE FROM {each} WHERE session_id = OLD.session_id"  # noqa: S608  # names
                for each in (self._queue, self._words)
            ]
            moved = sql.differ("OLD.session_id", "NEW.session_id")
            yield self._on(self._sessions, "AFTER DELETE", "", "session_delete", *ended)
            yield self._on(self._sessions, "AFTER UPDATE", moved, "session_update", *ended)

    def _same(self, row: str, item: str) -> str:
        return f"session_id = {row}.session_id AND item_id = {item}"

    def _on(
        self, table: str, event: str, condition: str, name: str, *statements: str
    ) -> RowTrigger:
        plain = derived_name(self._group["_words"].name, f"_of_{name}")
        return RowTrigger(
            self._schema, plain, self._quote(plain), table, event, condition, statements
        )

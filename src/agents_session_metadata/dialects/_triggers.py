"""The SQL of triggers that keep the package's tables up to date, per database."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from .sqltypes import ID_LENGTH

_PART = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|`[^`]*`|[^'"`]+""")
"""A literal, a quoted name, or what is between them."""


class RowTrigger(NamedTuple):
    """A trigger for each row that is written. All names are quoted but one.

    Attributes:
        schema: The schema with its point, or nothing.
        plain: The name of the trigger without quotation marks.
        name: The name of the trigger, and of its function where it needs one.
        table: The table, with its schema.
        event: Such as `AFTER INSERT`.
        condition: Fires only if this holds; always if it is empty.
        statements: What it runs.
    """

    schema: str
    plain: str
    name: str
    table: str
    event: str
    condition: str
    statements: tuple[str, ...]


def as_typed(connection: Connection, statements: Iterable[str]) -> tuple[str, ...]:
    """Statements for the driver as one types them: some drivers require each % doubled."""
    is_doubled = connection.dialect.paramstyle in ("format", "pyformat")
    return tuple(each % () if is_doubled else each for each in statements)


def has_body(create: Iterable[str], stored: str) -> bool:
    """Whether the statements that create a trigger contain what a database has stored of it."""
    return bool(stored) and normal(stored) in normal("".join(create))


def normal(statement: str) -> str:
    """Removes spaces and quotation marks, and changes to upper case, except in literals."""
    return _PART.sub(
        lambda part: part[0] if part[0][0] == "'" else re.sub(r'[\s"`]', "", part[0]).upper(),
        statement,
    )


class TriggerSQL:
    """The SQL of triggers on one database. This class has that of SQLite."""

    inlines_keys = False
    """Whether the text of a trigger contains the indexed keys, so that it need not look them up.

    A writer whose snapshot is older than the index would not find them.
    """
    bounded_ids = False
    """Whether an id may be too long for the index."""
    enforces_foreign_keys = False
    fires_on_truncate = False
    locks_gaps = False
    """Whether looking for rows that are missing makes others wait who insert near them.

    Reads lock as well if the server writes a binary log of statements.
    """
    locks_index = ""
    """The end of a SELECT that looks up whether a key is indexed."""
    locks_session = ""
    """The end of a SELECT that reads the session's time."""
    empty_bytes = "x''"

    def time(self, column: str) -> str:
        """A time of the sessions table in the form in which the index stores it."""
        return column

    def differ(self, one: str, other: str) -> str:
        """Whether two values are different, NULL included."""
        return f"{one} IS NOT {other}"

    def fits(self, session_id: str) -> str:
        """Whether a session with this id can have metadata."""
        if self.bounded_ids:
            return f"NOT ({self.too_long(session_id)})"
        return f"length({session_id}) <= {ID_LENGTH}"

    def insert_missing(self, table: str, values: dict[str, str]) -> str:
        """A statement that inserts a row if it is missing. It never fails for a duplicate."""
        # The conflict clause of the statement that fires a trigger overrides the trigger's own.
        same = " AND ".join(f"{column} = {value}" for column, value in values.items())
        missing = f"NOT EXISTS (SELECT 1 FROM {table} WHERE {same})"  # noqa: S608  # names
        columns, row = ", ".join(values), ", ".join(values.values())
        return f"INSERT INTO {table} ({columns}) SELECT {row} WHERE {missing}"  # names

    def delete_existing(self, table: str, condition: str) -> str:
        """A statement that deletes rows, and locks nothing if there are none."""
        return f"DELETE FROM {table} WHERE {condition}"  # noqa: S608  # names

    def replacing(self, key: Sequence[str], columns: Sequence[str]) -> str:
        """The end of an INSERT that replaces columns of a row with the same primary key.

        Empty where the row has to be deleted first.
        """
        return ""

    def too_long(self, session_id: str) -> str:
        """Whether an id is too long for the index."""
        return f"char_length({session_id}) > {ID_LENGTH}"

    def create(self, trigger: RowTrigger) -> list[str]:
        """The statements that create a trigger."""
        # SQLite looks for the tables in the trigger's own schema, and allows no other.
        table = trigger.table.removeprefix(trigger.schema)
        when = f" WHEN {trigger.condition}" if trigger.condition else ""
        body = "; ".join(trigger.statements)
        create = (
            f"CREATE TRIGGER IF NOT EXISTS {trigger.schema}{trigger.name} {trigger.event}"
            f" ON {table} FOR EACH ROW{when} BEGIN {body}; END"
        )
        return [create]

    def drop(self, schema: str, name: str, table: str) -> str:
        """The statement that drops a trigger of a table, if it exists. All names are quoted."""
        return f"DROP TRIGGER IF EXISTS {schema}{name}"

    def drop_from(self, schema: str, name: str, table: str) -> str:
        """As `drop`, but also if triggers of other tables run the same function."""
        return self.drop(schema, name, table)


class MySQLTriggerSQL(TriggerSQL):
    """The SQL of triggers on MySQL and MariaDB."""

    bounded_ids = True
    enforces_foreign_keys = True
    locks_gaps = True
    # Also for writers that read without locks: one that has seen no index ends before it is filled.
    locks_index = " LOCK IN SHARE MODE"
    locks_session = " LOCK IN SHARE MODE"

    def time(self, column: str) -> str:
        return f"UNIX_TIMESTAMP({column})"

    def insert_missing(self, table: str, values: dict[str, str]) -> str:
        # Nor for a foreign key, on a connection that has checked none so far.
        columns, row = ", ".join(values), ", ".join(values.values())
        return f"INSERT IGNORE INTO {table} ({columns}) VALUES ({row})"  # noqa: S608  # names

    def delete_existing(self, table: str, condition: str) -> str:
        # Deleting a missing row locks the gap where it would be.
        exists = f"EXISTS (SELECT 1 FROM {table} WHERE {condition})"  # noqa: S608  # names
        return f"IF {exists} THEN {super().delete_existing(table, condition)}; END IF"

    def replacing(self, key: Sequence[str], columns: Sequence[str]) -> str:
        return (
            f" ON DUPLICATE KEY UPDATE {', '.join(f'{each} = VALUES({each})' for each in columns)}"
        )

    def differ(self, one: str, other: str) -> str:
        return f"NOT ({one} <=> {other})"

    def create(self, trigger: RowTrigger) -> list[str]:
        body = "; ".join(trigger.statements)
        if trigger.condition:
            body = f"IF {trigger.condition} THEN {body}; END IF"
        create = (
            f"CREATE TRIGGER {trigger.schema}{trigger.name} {trigger.event}"
            f" ON {trigger.table} FOR EACH ROW BEGIN {body}; END"
        )
        return [create]


class PostgreSQLTriggerSQL(TriggerSQL):
    """The SQL of triggers on PostgreSQL."""

    inlines_keys = True
    bounded_ids = True
    enforces_foreign_keys = True
    fires_on_truncate = True
    locks_session = " FOR SHARE OF s"
    empty_bytes = "''::bytea"

    def insert_missing(self, table: str, values: dict[str, str]) -> str:
        return (
            f"INSERT INTO {table} ({', '.join(values)})"  # noqa: S608  # names
            f" VALUES ({', '.join(values.values())})"
            " ON CONFLICT DO NOTHING"
        )

    def replacing(self, key: Sequence[str], columns: Sequence[str]) -> str:
        new = ", ".join(f"{each} = EXCLUDED.{each}" for each in columns)
        return f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {new}"

    def differ(self, one: str, other: str) -> str:
        return f"{one} IS DISTINCT FROM {other}"

    def create(self, trigger: RowTrigger) -> list[str]:
        function = f"{trigger.schema}{trigger.name}()"
        each = "STATEMENT" if trigger.event.endswith("TRUNCATE") else "ROW"
        when = f" WHEN ({trigger.condition})" if trigger.condition else ""
        returned = "NEW" if trigger.event.startswith("BEFORE") else "NULL"
        body = _quoted_block(*trigger.statements, f"RETURN {returned}")
        # Users that write history need no privileges on the package's tables. The fixed search
        # path keeps them from replacing the objects that the function names.
        rights = "SECURITY DEFINER SET search_path = pg_catalog, pg_temp"
        create_function = (
            f"CREATE OR REPLACE FUNCTION {function} RETURNS trigger LANGUAGE plpgsql {rights}"
            f" AS {body}"
        )
        create_trigger = (
            f"CREATE TRIGGER {trigger.name} {trigger.event} ON {trigger.table}"
            f" FOR EACH {each}{when} EXECUTE FUNCTION {function}"
        )
        # Attached to a table of another user, it would run with the rights of its owner.
        revoke = f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC"
        return [create_function, revoke, create_trigger]

    def drop(self, schema: str, name: str, table: str) -> str:
        # The trigger of a table that was moved to another schema runs a function that was not.
        trigger = f"DROP TRIGGER IF EXISTS {name} ON {table}"
        return f"DO {_quoted_block(trigger, f'DROP FUNCTION IF EXISTS {schema}{name}() CASCADE')}"

    def drop_from(self, schema: str, name: str, table: str) -> str:
        return f"DROP TRIGGER IF EXISTS {name} ON {table}"


def _quoted_block(*statements: str) -> str:
    """Statements as the quoted text of a block."""
    body = "; ".join(statements)
    tag = "$body$"
    while tag in body:
        tag = f"{tag[:-1]}_$"
    return f"{tag} BEGIN {body}; END {tag}"

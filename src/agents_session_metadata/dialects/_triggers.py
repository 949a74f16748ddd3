"""The SQL of triggers that keep the package's tables up to date, per database."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sqlalchemy import Connection

_PART = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|`[^`]*`|[^'"`]+""")
"""A literal, a quoted name, or what is between them."""


class RowTrigger(NamedTuple):
    """A trigger for each row that is written. All names are quoted except `plain`.

    `schema` ends with a dot or is empty; `table` includes it. If the trigger needs a function, it
    has the same `name`. `event` is, for example, `AFTER INSERT`. An empty `condition` always holds.
    """

    schema: str
    plain: str
    name: str
    table: str
    event: str
    condition: str
    statements: tuple[str, ...]


def as_typed(connection: Connection, statements: Iterable[str]) -> tuple[str, ...]:
    """Undoes the doubling of % that some drivers require."""
    is_doubled = connection.dialect.paramstyle in ("format", "pyformat")
    return tuple(each % () if is_doubled else each for each in statements)


def has_body(create: Iterable[str], stored: str) -> bool:
    """`stored` is the part of the CREATE statements that the database has stored."""
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
    """The text of a trigger contains the indexed keys, so that it need not look them up.

    A writer whose snapshot is older than the index would not find them.
    """
    enforces_foreign_keys = False
    locks_session = ""
    """The end of a SELECT that reads the session's time, and whether a key is indexed."""

    def time(self, column: str) -> str:
        """Converts a time of the sessions table to the form in which the index stores it."""
        return column

    def differ(self, one: str, other: str) -> str:
        """NULL differs from all other values, but not from NULL."""
        return f"{one} IS NOT {other}"

    def replace(
        self, into: str, key: Mapping[str, str], others: Mapping[str, str], source: str
    ) -> str:
        """Inserts rows of expressions by column, selected from `source`.

        Replaces rows with the same primary key, except on SQLite, where they must be deleted first.
        """
        values = {**key, **others}
        columns, selected = ", ".join(values), ", ".join(values.values())
        insert = f"INSERT INTO {into} ({columns}) SELECT {selected} FROM {source}"  # noqa: S608  # names
        return f"{insert}{self.locks_session}{self.replacing(key, others)}"

    def replacing(self, key: Iterable[str], others: Mapping[str, str]) -> str:
        return ""

    def create(self, trigger: RowTrigger) -> list[str]:
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
        return f"DROP TRIGGER IF EXISTS {schema}{name}"

    def drop_from(self, schema: str, name: str, table: str) -> str:
        """Like `drop`, but also works if triggers of other tables run the same function."""
        return self.drop(schema, name, table)


class MySQLTriggerSQL(TriggerSQL):
    enforces_foreign_keys = True
    # Also for writers that read without locks: one that has seen no index ends before it is filled.
    locks_session = " LOCK IN SHARE MODE"

    def time(self, column: str) -> str:
        return f"UNIX_TIMESTAMP({column})"

    def replacing(self, key: Iterable[str], others: Mapping[str, str]) -> str:
        # MySQL has deprecated VALUES(), and MariaDB lacks its replacement.
        new = ", ".join(f"{column} = {value}" for column, value in others.items())
        return f" ON DUPLICATE KEY UPDATE {new}"

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
    inlines_keys = True
    enforces_foreign_keys = True
    locks_session = " FOR SHARE OF s"

    def replacing(self, key: Iterable[str], others: Mapping[str, str]) -> str:
        new = ", ".join(f"{each} = EXCLUDED.{each}" for each in others)
        return f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {new}"

    def differ(self, one: str, other: str) -> str:
        return f"{one} IS DISTINCT FROM {other}"

    def create(self, trigger: RowTrigger) -> list[str]:
        function = f"{trigger.schema}{trigger.name}()"
        when = f" WHEN ({trigger.condition})" if trigger.condition else ""
        body = _quoted_block(*trigger.statements, "RETURN NULL")
        # Users that write history need no privileges on the package's tables. The fixed search
        # path keeps them from replacing the objects that the function names.
        rights = "SECURITY DEFINER SET search_path = pg_catalog, pg_temp"
        create_function = (
            f"CREATE OR REPLACE FUNCTION {function} RETURNS trigger LANGUAGE plpgsql {rights}"
            f" AS {body}"
        )
        create_trigger = (
            f"CREATE TRIGGER {trigger.name} {trigger.event} ON {trigger.table}"
            f" FOR EACH ROW{when} EXECUTE FUNCTION {function}"
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
    body = "; ".join(statements)
    tag = "$body$"
    while tag in body:
        tag = f"{tag[:-1]}_$"
    return f"{tag} BEGIN {body}; END {tag}"

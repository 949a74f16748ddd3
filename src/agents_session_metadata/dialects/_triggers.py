"""The SQL of triggers that keep the package's tables up to date, per database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sqlalchemy import Connection


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

    def replacing(self, key: Iterable[str], values: Mapping[str, str]) -> str:
        """The end of an INSERT that replaces a row with the same primary key by these values.

        Empty if such a row has to be deleted first.
        """
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


class MySQLTriggerSQL(TriggerSQL):
    enforces_foreign_keys = True
    # Also for writers that read without locks: one that has seen no index ends before it is filled.
    locks_session = " LOCK IN SHARE MODE"

    def time(self, column: str) -> str:
        return f"UNIX_TIMESTAMP({column})"

    def replacing(self, key: Iterable[str], values: Mapping[str, str]) -> str:
        new = ", ".join(f"{name} = {value}" for name, value in values.items())
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

    def replacing(self, key: Iterable[str], values: Mapping[str, str]) -> str:
        new = ", ".join(f"{name} = EXCLUDED.{name}" for name in values)
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


def _quoted_block(*statements: str) -> str:
    body = "; ".join(statements)
    tag = "$body$"
    while tag in body:
        tag = f"{tag[:-1]}_$"
    return f"{tag} BEGIN {body}; END {tag}"

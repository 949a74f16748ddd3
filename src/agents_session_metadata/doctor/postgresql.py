"""How `doctor` looks into PostgreSQL, and what it prints for it."""

# The base class says what each method is for.
# ruff: noqa: D102

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy import TEXT, VARCHAR, Column, Connection, Table
from sqlalchemy.dialects.postgresql import DOMAIN

from agents_session_metadata.storage.activity import ACTIVITY
from agents_session_metadata.storage.tables import TableNames
from agents_session_metadata.storage.threads import THREADS

from .columns import TextColumn, kind_of
from .findings import Finding, Statements
from .inspection import Inspection
from .triggers import StoredTrigger

_DEFAULT = 'pg_catalog."default"'
"""The database's own collation, which gives way to any other."""
_TEXTS = {f"pg_catalog.{each}" for each in ("text", "varchar", "bpchar", "name")}
"""Types whose values compare with each other, so that a foreign key may lead to another one."""


class PostgreSQLInspection(Inspection):
    """A PostgreSQL database."""

    oldest: tuple[int, ...] = (13,)
    product = "PostgreSQL"
    clock_query = "SELECT EXTRACT(EPOCH FROM clock_timestamp())"
    times = "in the years 1 to 9999"
    bytewise = 'CAST({} AS TEXT) COLLATE "C"'

    def __init__(self, connection: Connection, names: TableNames) -> None:
        # If it is on, the server quotes the names of types, which SQLAlchemy then does not know.
        connection.exec_driver_sql("SET LOCAL quote_all_identifiers = off")
        super().__init__(connection, names)

    def read_texts(self) -> dict[tuple[str, str], TextColumn]:
        own_room = self.ways.shapes.room.format(name=":name", column="a.attname")
        query = (
            f"SELECT a.attname, {own_room}, n.nspname,"  # noqa: S608  # of the dialect
            " c.collname, c.collisdeterministic, k.nspname, t.typname FROM pg_attribute a"
            " JOIN pg_collation c ON c.oid = a.attcollation"
            " JOIN pg_namespace n ON n.oid = c.collnamespace"
            # What its domain, and the domain of that, is made of.
            " JOIN pg_type t ON t.oid = (WITH RECURSIVE d (kind, base) AS (SELECT oid, typbasetype"
            " FROM pg_type WHERE oid = a.atttypid UNION ALL SELECT b.oid, b.typbasetype FROM d"
            " JOIN pg_type b ON b.oid = d.base) SELECT kind FROM d WHERE base = 0)"
            " JOIN pg_namespace k ON k.oid = t.typnamespace"
            " WHERE a.attrelid = to_regclass(:name) AND NOT a.attisdropped"
        )
        found = {}
        for table in self.present:
            for column, length, *names, is_exact, kind_schema, kind_name in self.rows(
                query, name=self.name_of(table)
            ):
                collation = ".".join(map(self.quote, names))
                kind = f"{self.quote(kind_schema)}.{self.quote(kind_name)}"
                room = math.inf if length is None else length
                found[table.name, column] = TextColumn(
                    room, collation, is_exact=is_exact, kind=kind
                )
        return found

    def reflected(self, what: str) -> dict[str, Any]:
        found = super().reflected(what)
        for column in (each for of_table in found.values() for each in of_table):
            while isinstance(column.get("type"), DOMAIN):
                column["type"] = column["type"].data_type
        return found

    @cached_property
    def triggers(self) -> dict[str, StoredTrigger]:
        is_on = "t.tgenabled IN ('O', 'A') AND t.tgnargs = 0 AND p.provolatile = 'v'"
        name = "format('%I.%I()', n.nspname, p.proname)"
        fires = (
            # Whether it names the schema of the function depends on the search path.
            "regexp_replace(pg_get_triggerdef(t.oid), ' EXECUTE FUNCTION [^'']*$', '')"
            f" || ' EXECUTE FUNCTION ' || {name}"
        )
        function = (
            f"{name} || ' RETURNS trigger LANGUAGE ' || l.lanname"
            " || CASE WHEN p.prosecdef THEN ' SECURITY DEFINER' ELSE '' END"
            " || coalesce(' SET ' || array_to_string(p.proconfig, ' SET '), '') || ' AS'"
        )
        found = self._of_triggers(f"CASE WHEN {is_on} THEN p.prosrc ELSE '' END", fires, function)
        return {name: StoredTrigger(runs, tuple(fires)) for name, runs, *fires in found}

    @cached_property
    def open_triggers(self) -> Collection[str]:
        is_open = "p.prosecdef AND has_function_privilege('public', p.oid, 'EXECUTE')"
        return [name for name, found in self._of_triggers(is_open) if found]

    def _of_triggers(self, *columns: str) -> list[tuple[Any, ...]]:
        """The names of the triggers on the core tables, each with some values."""
        query = (
            f"SELECT t.tgname, {', '.join(columns)} FROM pg_trigger t"  # noqa: S608  # of this class
            " JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace"
            " JOIN pg_language l ON l.oid = p.prolang"
            " WHERE t.tgrelid = to_regclass(:name) AND NOT t.tgisinternal"
        )
        tables = [table for table in self.core if table.name in self.existing]
        return [tuple(row) for each in tables for row in self.rows(query, name=self.name_of(each))]

    def comparison(self, column: Column[Any]) -> str:
        found = self.text_of(column)
        if not found.collation:
            return ""
        return f"CAST(:a AS {found.kind}) COLLATE {found.collation} = CAST(:b AS {found.kind})"

    def keeps(self, column: Column[Any], actual: Any) -> bool:
        # Types of text that have no room for any text, or no collation, such as "char".
        is_text = kind_of(self.type_of(column)) is kind_of(actual) is str
        found = self.text_of(column)
        is_other = is_text and not (found.length and found.collation)
        return not is_other and super().keeps(column, actual)

    def text_problems(self, column: Column[Any]) -> list[str]:
        problems, found = super().text_problems(column), self.text_of(column)
        if not found.is_exact and not problems:
            problems.append(f"has the nondeterministic collation {found.collation}")
        return problems

    def is_joinable(self, child: Column[Any], parent: Column[Any]) -> bool:
        own, others = self.text_of(child), self.text_of(parent)
        if own.kind != others.kind and not _TEXTS.issuperset([own.kind, others.kind]):
            return False
        if own.collation == others.collation:
            return True
        names = {own.collation, others.collation}
        return own.is_exact and others.is_exact and _DEFAULT in names and "" not in names

    def is_referable(self, parent: Table) -> bool:
        ids = (column for column in parent.primary_key if self.has(parent, column.name))
        is_text = all(self.text_of(each).kind in _TEXTS for each in ids)
        is_deferrable = parent.name in self.existing and any(self._deferrable(parent).values())
        return super().is_referable(parent) and is_text and not is_deferrable

    def type_problems(self, column: Column[Any], actual: Any) -> Iterator[str]:
        yield from super().type_problems(column, actual)
        wanted = self.type_of(column)
        is_time = kind_of(wanted) is kind_of(actual) is datetime
        is_rough = is_time and column.table in self.own and actual.precision not in (None, 6)
        if is_time and (is_rough or wanted.timezone != actual.timezone):
            yield f"has the type {self.spelled(actual)}, not {self.spelled(wanted)}"

    def heirs(self, table: Table) -> list[str]:
        query = (
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = to_regclass(:name) AND NOT c.relispartition ORDER BY c.relname"
        )
        return [name for (name,) in self.rows(query, name=self.name_of(table))]

    def rules(self, table: Table) -> list[str]:
        query = (
            "SELECT rulename FROM pg_rewrite WHERE ev_class = to_regclass(:name) AND ev_type <> '1'"
            " AND ev_enabled <> 'D' ORDER BY rulename"
        )
        return [name for (name,) in self.rows(query, name=self.name_of(table))]

    def key_problem(self, table: Table) -> str | None:
        # The key of a partitioned table must include the columns that divide it.
        query = "SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass(:name)"
        problem = super().key_problem(table)
        is_partitioned = self.scalar(query, name=self.name_of(table))
        return self.by_hand if problem is None and is_partitioned else problem

    def foreign_key_problem(self, table: Table, key: Mapping[str, Any]) -> str | None:
        query = (
            "SELECT k.convalidated,"
            # The column is younger than the oldest supported server.
            " coalesce(to_jsonb(k)->>'conenforced', 'true') = 'false' OR EXISTS (SELECT 1"
            " FROM pg_trigger t WHERE t.tgconstraint = k.oid AND t.tgenabled IN ('D', 'R'))"
            " FROM pg_constraint k WHERE k.conrelid = to_regclass(:name) AND k.conname = :key"
        )
        [(is_validated, is_off)] = self.rows(query, name=self.name_of(table), key=key["name"])
        if is_off:
            return "is switched off"
        return (
            None
            if is_validated
            else (
                "was never checked for the rows before it; run ALTER TABLE"
                f" {self.name_of(table)} VALIDATE CONSTRAINT {self.quote(key['name'])} once every"
                " row has its parent"
            )
        )

    def usable_indexes(self, table: Table) -> list[Mapping[str, Any]]:
        invalid = (
            "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
            " WHERE i.indrelid = to_regclass(:name) AND NOT i.indisvalid"
        )
        names = {name for (name,) in self.rows(invalid, name=self.name_of(table))}
        return [each for each in super().usable_indexes(table) if each["name"] not in names]

    def not_a_time(self, column: str) -> str | None:
        return f"NOT coalesce({column} >= '0001-01-01' AND {column} < '10000-01-01', false)"

    def check_server(self) -> Iterator[Finding]:
        query = "SELECT setting, source FROM pg_settings WHERE name = 'session_replication_role'"
        role, source = self.rows(query)[0]
        if role == "replica":
            problem = "foreign keys are switched off, and nothing deletes metadata with its session"
            where = "this client" if source == "client" else f"the {source}"
            problem += f"; {where} sets session_replication_role to replica, which must be origin"
            yield Finding("error", "foreign keys", problem)
        for table in self.present:
            yield from self._unusable_keys(table)
            if self.has(table, "session_id") and self._is_padded(table.c.session_id):
                problem = f"{table.name}.session_id pads ids with spaces, which others lack"
                yield self.finding("columns", problem)
            for column in table.c:
                if column.autoincrement is True and self.is_readable(table, [column.name]):
                    yield from self._sequence_behind(column)
        yield from self._powerless_owners()
        query = "SELECT setting, source FROM pg_settings WHERE name = 'TimeZone'"
        zone, source = self.rows(query)[0]
        if zone.removeprefix("Etc/").upper() in {"UTC", "UCT", "GMT", "ZULU", "UNIVERSAL"}:
            return
        problem = (
            f"the server's time zone is {zone}, and the SDK stores local times without it: they are"
            " exact only while all writers and readers use this zone, and ambiguous in the hour"
            " that summer time repeats"
        )
        if source == "client":
            problem += "; this client asks for the zone"
        else:
            problem += (
                "; to change it to UTC, stop all writers and convert the stored times of both"
                " tables in the same step"
            )
        yield Finding("warning", "clock", problem)

    def _powerless_owners(self) -> Iterator[Finding]:
        """Owners of trigger functions of this package that may not use a table of its indexes."""
        written = self.derived - {self.expected.elements}
        for table in (each for each in self.present if each in written):
            name = self.ways.literal(self.name_of(table))
            rights = (
                f"has_table_privilege(p.proowner, to_regclass({name}), '{each}')"
                for each in ("SELECT", "DELETE")  # All three are deleted from.
            )
            is_ours = "'search_path=pg_catalog, pg_temp' = ANY (p.proconfig) AND p.prosecdef"
            pattern = self.ways.literal(re.escape(table.name) + r"\M")
            lacks = f"{is_ours} AND p.prosrc ~ {pattern} AND NOT ({' AND '.join(rights)})"
            owner = f"CASE WHEN {lacks} THEN quote_ident(pg_get_userbyid(p.proowner)) END"
            for role in sorted({role for _, role in self._of_triggers(owner) if role}):
                problem = (
                    f"the owner {role} of trigger functions may not use {table.name}, so that"
                    f" writing history fails; run GRANT ALL ON {self.name_of(table)} TO {role}, or"
                    " give the functions another owner"
                )
                yield Finding("error", "privileges", problem)

    def _is_padded(self, column: Column[Any]) -> bool:
        return self.text_of(column).kind == "pg_catalog.bpchar"

    def _deferrable(self, table: Table) -> dict[str, bool]:
        """The unique constraints that are checked late, and whether each is the primary key."""
        query = (
            "SELECT conname, contype = 'p' FROM pg_constraint WHERE condeferrable"
            " AND contype IN ('p', 'u', 'x') AND conrelid = to_regclass(:name) ORDER BY conname"
        )
        return dict(map(tuple, self.rows(query, name=self.name_of(table))))

    def _unusable_keys(self, table: Table) -> Iterator[Finding]:
        """Keys that keep rows from being inserted only if they are missing."""
        sessions, _, metadata, _ = self.core
        written = [sessions, metadata, *self.expected.group(THREADS).tables[1:]]
        for name in (ACTIVITY,):
            written += self.expected.group(name).tables
        for name, is_primary in self._deferrable(table).items():
            # Rows of metadata are inserted by their primary key, which alone matters.
            if table in written and (is_primary or table is not metadata):
                problem = (
                    f"the constraint {name} of {table.name} is DEFERRABLE, so that writing rows"
                    " fails; drop it, and create it again without DEFERRABLE"
                )
                yield Finding("error", "indexes", problem)

    def _sequence_behind(self, column: Column[Any]) -> Iterator[Finding]:
        """An id that a sequence gives next, although rows have it or greater ones."""
        table, name = self.name_of(column.table), self.quote(column.name)
        # The sequence of an identity column refers to the column, and a default to its sequence.
        query = (
            "SELECT format('%I.%I', n.nspname, c.relname), s.seqincrement"
            " FROM pg_attribute a, pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE a.attrelid = to_regclass(:table) AND a.attname = :column"
            " AND has_sequence_privilege(s.seqrelid, 'SELECT') AND (EXISTS (SELECT 1"
            " FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = s.seqrelid"
            " AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum AND d.deptype = 'i')"
            " OR EXISTS (SELECT 1 FROM pg_attrdef f JOIN pg_depend d ON d.objid = f.oid"
            " WHERE d.classid = 'pg_attrdef'::regclass AND d.refobjid = s.seqrelid"
            " AND f.adrelid = a.attrelid AND f.adnum = a.attnum))"
        )
        for sequence, step in self.rows(query, table=table, column=column.name):
            # In one statement: what it reads of the sequence is not older than the rows.
            following, greatest = self.rows(
                f"SELECT (SELECT last_value + CASE WHEN is_called THEN {step} ELSE 0 END"  # noqa: S608  # names
                f" FROM {sequence}), (SELECT coalesce(max({name}), 0) FROM {table})"
            )[0]
            if following <= greatest and step > 0:
                yield Finding(
                    "error",
                    "sequences",
                    f"the next {column.name} of {column.table.name} is {following}, and there is"
                    f" a row with {greatest}, so that adding rows fails; while nothing else writes,"
                    f" run SELECT setval({self.ways.literal(sequence)}, {greatest})",
                )

    @property
    def first(self) -> Statements:
        # In a schema that a shell does not search, a name means nothing, or a table of others.
        query = (
            "SELECT string_agg(quote_ident(name), ', ' ORDER BY place)"
            " FROM unnest(current_schemas(false)) WITH ORDINALITY s (name, place)"
        )
        path = None if self.schema else self.scalar(query)
        return () if path in (None, "public") else (f"SET search_path TO {path}",)

    def restore_sessions(self, child: Table, condition: str) -> str:
        return "; ".join([*self.first, super().restore_sessions(child, condition)])

    def set_default(self, column: Column[Any]) -> Statements:
        name = self.quote(column.name)
        alter = f"ALTER TABLE {self.name_of(column.table)} ALTER COLUMN {name}"
        if column.server_default is not None:
            return (f"{alter} SET DEFAULT CURRENT_TIMESTAMP",)
        if self.columns[column.table.name][column.name]["default"] is not None:
            return ()
        following = self.scalar(
            f"SELECT coalesce(max({name}), 0) + 1 FROM {self.name_of(column.table)}"  # noqa: S608  # names
        )
        return (f"{alter} ADD GENERATED BY DEFAULT AS IDENTITY (START WITH {following})",)

    def widen(self, column: Column[Any]) -> Statements:
        found, wanted = self.text_of(column), self.type_of(column)
        actual = self.columns[column.table.name][column.name]["type"]
        limit = None if column.name == "session_id" else getattr(wanted, "length", None)
        if not isinstance(actual, VARCHAR) or found.length >= (limit or math.inf):
            return ()
        kind = "TEXT" if isinstance(wanted, TEXT) else f"VARCHAR({limit})" if limit else "VARCHAR"
        # Without it, the column would get the database's collation.
        alter = f"ALTER TABLE {self.name_of(column.table)} ALTER COLUMN {self.quote(column.name)}"
        return (f"{alter} TYPE {kind} COLLATE {found.collation}",)


INSPECTION = PostgreSQLInspection

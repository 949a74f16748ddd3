"""The dialect for PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    TIMESTAMP,
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    any_,
    bindparam,
    case,
    cast,
    extract,
    func,
    insert,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeEngine

from ._dialect import (
    LONGEST_WAIT,
    Dialect,
    Existing,
    Statement,
    lists_of,
    literal_number,
    names_of,
    qualified_text,
)
from ._locks import Locks
from ._text import PostgreSQLTextSQL
from .sqltypes import SDKTime


class PostgreSQLLocks(Locks):
    def _insert(self, value: ColumnElement[Any]) -> Any:
        new = postgresql.insert(self._sessions).values(session_id=bindparam("session"))
        new = new.on_conflict_do_update(
            index_elements=["session_id"], set_={"session_id": new.excluded.session_id}
        )
        # The xmax of a row that was not inserted is the transaction that has locked it.
        return new.returning(case((literal_column("xmax") == literal_column("0"), value)))

    def replaced(self, connection: Connection, session_id: str) -> bool:
        # The snapshot of the statement that waited is older than the new row.
        while connection.execute(self._look, {"session": session_id}).first() is not None:
            if self.existing(connection, session_id):
                return True
        return False


_ZONE = func.current_setting("TimeZone")


class PostgreSQLTime(SDKTime):
    """The local time of the writer, without a time zone."""

    impl = TIMESTAMP(timezone=False)

    def to_database(self, value: str) -> datetime:
        return datetime.fromisoformat(value)


def _in_utc(moment: datetime | None) -> datetime | None:
    return moment and moment.astimezone(timezone.utc)


class PostgreSQLMoment(SDKTime):
    impl = TIMESTAMP(timezone=True)
    from_database = staticmethod(_in_utc)

    def of(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.timezone(_ZONE, column, type_=self)


class PostgreSQL(Dialect):
    """PostgreSQL 13 or later."""

    name = "postgresql"
    insert = staticmethod(postgresql.insert)
    locks = PostgreSQLLocks
    stored_time = PostgreSQLTime()
    moment = PostgreSQLMoment()
    usual_isolation = "READ COMMITTED"
    text_search = PostgreSQLTextSQL()
    autocommit_reads = True
    numbers_rows = True
    stops_early = False  # If it expects few matches, it reads and sorts all rows.
    # A snapshot is older than a lock that the transaction waited for. What is read after the lock
    # must be current.
    write_isolation = "READ COMMITTED"
    describe_ids = (
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(c.collname, ''),"
        # The type of a domain is the one under it.
        " coalesce(nullif(t.typbasetype, 0), t.oid) IN ('text'::regtype, 'varchar'::regtype),"
        " coalesce(c.collisdeterministic, true)"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " LEFT JOIN pg_collation c ON c.oid = a.attcollation"
        " WHERE a.attrelid = to_regclass(:table) AND a.attname IN ('session_id', 'key')"
    )
    name_triggers = (
        "SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass(:table) AND NOT tgisinternal"
    )
    measure_table = "SELECT pg_total_relation_size(to_regclass(:table))"
    # Without statistics, from the size of the file; a row has about 100 bytes.
    estimate_rows = (
        "SELECT CASE WHEN t.reltuples > 0 THEN t.reltuples ELSE pg_relation_size(t.oid) / 100"
        " END FROM pg_class t JOIN pg_index x ON x.indrelid = t.oid JOIN pg_class i"
        " ON i.oid = x.indexrelid WHERE t.oid = to_regclass(:table) AND i.relname = :index"
    )

    def upsert_reading(
        self, table: Table, replaced: Sequence[str], read: Sequence[ColumnElement[Any]]
    ) -> Statement:
        own: Any = bindparam("session", type_=String)
        stored = select(*read).where(table.c.session_id == own).cte("stored")
        names = names_of(table)
        written = self.upsert(table, replaced).from_select(names, _given(table, names))
        # Both parts of the statement read what was there when it began.
        return select(stored).add_cte(written.cte("written"))

    def insert_both(self, *tables: Table) -> Statement:
        statement: Any = select(literal_column("1"))
        for number, table in enumerate(tables):
            inserted = _insert_lists(table, names_of(table))
            statement = statement.add_cte(inserted.cte(f"inserted_{number}"))
        return statement

    def one_of(self, column: ColumnElement[Any], name: str, count: int) -> ColumnElement[bool]:
        item: Any = LargeBinary() if isinstance(column.type, LargeBinary) else Text()
        return column == any_(bindparam(name, type_=ARRAY(item)))

    def looked_up(self, key: ColumnElement[str], value: ColumnElement[str]) -> ColumnElement[bool]:
        # For equality, the planner hashes the whole table as soon as one row in seventy is needed.
        return key == any_(postgresql.array([value]))

    def by_primary_key(
        self, key: ColumnElement[str], value: ColumnElement[str]
    ) -> ColumnElement[bool]:
        # For a key that its statistics do not know, the planner would read all rows of the key in
        # the covering index. By an expression, it reads the keys of the session.
        return key.concat(literal_column("''")) == value

    def by_code_point(self, column: ColumnElement[str], *, native: bool) -> ColumnElement[str]:
        return column if native else column.collate("C")

    def found_first(self, found: Statement) -> FromClause:
        # With a limit, the planner would read all sessions in order, and compare each with all that
        # match: it expects to find enough of them early, for a part of that cost.
        rows: FromClause = found.offset(literal_number(0)).subquery("found")
        return rows

    def outer_limit(self, moment: ColumnElement[Any], *, high: bool) -> ColumnElement[Any]:
        # The end of summer time repeats an hour.
        hours: Any = literal_column(f"interval '{3 if high else -3} hours'")
        return func.timezone(_ZONE, moment).op("+")(hours)

    def time_to_store(self, moment: datetime) -> Any:
        # asyncpg stores the first moment of the calendar as -infinity, and near its ends, the local
        # time that the SDK's tables hold may be outside of it.
        if not 2 <= moment.year <= 9998:
            raise ValueError("is outside the years 2 to 9998")
        return moment

    def insert_rows(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        # A list for each column: drivers would run the statement once for each row.
        if rows:
            names = tuple(rows[0])
            connection.execute(_insert_lists(table, names), lists_of(table, rows, names))

    def now(self) -> ColumnElement[int]:
        # CURRENT_TIMESTAMP is the start of the transaction.
        return cast(extract("epoch", func.clock_timestamp()) * 1_000_000, BigInteger)

    def discard_plans(self, connection: Connection) -> None:
        # A foreign key that was first checked on an empty table may use the wrong index. Each check
        # then reads all rows of one key, until ANALYZE runs.
        connection.execute(text("DISCARD PLANS"))

    def drop_trigger(self, schema: str, name: str) -> str:
        # The trigger is dropped with the function that it runs.
        return f"DROP FUNCTION IF EXISTS {schema}{name}() CASCADE"

    def existing(
        self, connection: Connection, sessions: Table, names: Sequence[str], *, parts: bool
    ) -> Existing:
        tables = [Table(name, MetaData(), schema=sessions.schema) for name in names]
        given = [qualified_text(connection, table) for table in tables]
        found = self.ask(connection, sessions, _EXISTING, names=given, parts=parts)
        return {names[int(place) - 1]: frozenset(map(str.lower, own)) for place, own in found}

    @contextmanager
    def brief_waits(self, connection: Connection) -> Iterator[None]:
        # The transaction ends with this, and gives the connection its own setting back.
        query = (
            "SELECT set_config(name, CAST(least(nullif(CAST(setting AS bigint), 0), :most)"
            " AS text), true) FROM pg_settings WHERE name = 'lock_timeout'"  # 0 means no limit.
        )
        connection.execute(text(query), {"most": LONGEST_WAIT * 1000})
        yield

    def server_warnings(self, connection: Connection) -> list[str]:
        query = "SELECT name, setting, source FROM pg_settings WHERE name = ANY (:names)"
        names = {"names": ["TimeZone", "session_replication_role"]}
        found = {row[0]: (row[1], row[2]) for row in connection.execute(text(query), names)}
        (zone, source), (role, _) = found["TimeZone"], found["session_replication_role"]
        problems = []
        if role == "replica":
            off = "session_replication_role is replica, which switches foreign keys off"
            problems.append(f"{off}: metadata is not deleted with its session")
        if zone.removeprefix("Etc/").upper() not in {"UTC", "UCT", "GMT", "ZULU", "UNIVERSAL"}:
            advice = (
                "this client asks for the zone"
                if source == "client"
                else "to change it to UTC, stop all writers and convert the stored times of the"
                " SDK's tables in the same step"
            )
            problems.append(
                f"the server's time zone is {zone}, and the SDK stores local times without it: they"
                " are exact only while all writers and readers use this zone, and ambiguous in the"
                f" hour that summer time repeats; {advice}"
            )
        return problems

    def parent_id(self, connection: Connection, sessions: Table) -> TypeEngine[Any]:
        declared, _ = self._collation(connection, sessions)
        return String() if declared == "default" else String(collation=declared)

    def sorts_by_code_point(self, connection: Connection, sessions: Table) -> bool:
        _, effective = self._collation(connection, sessions)
        return effective.lower() in {"c", "posix", "c.utf-8", "c.utf8"}

    def _collation(self, connection: Connection, sessions: Table) -> tuple[str, str]:
        """Returns the name of the collation of ids, and the one that it stands for."""
        query = (
            "SELECT c.collname, CASE WHEN c.collname <> 'default' THEN c.collname"
            # The column for the provider is younger than the oldest supported server.
            " WHEN coalesce(to_jsonb(d)->>'datlocprovider', 'c') = 'i' THEN 'icu'"
            " ELSE d.datcollate END"
            " FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation"
            " JOIN pg_database d ON d.datname = current_database()"
            " WHERE a.attrelid = to_regclass(:table) AND a.attname = 'session_id'"
        )
        declared, effective = self.ask(connection, sessions, query).one()
        return declared, effective


_EXISTING = (
    "SELECT t.place, ARRAY("
    "SELECT CAST(a.attname AS text) FROM pg_attribute a"
    " WHERE :parts AND a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped"
    " UNION ALL SELECT CAST(c.relname AS text) FROM pg_index i JOIN pg_class c"
    " ON c.oid = i.indexrelid WHERE :parts AND i.indrelid = t.oid"
    # With OFFSET, each name is looked up once.
    ") FROM (SELECT place, to_regclass(name) AS oid FROM unnest(CAST(:names AS text[]))"
    " WITH ORDINALITY n (name, place) OFFSET 0) t WHERE has_table_privilege(t.oid, 'select')"
    " AND EXISTS (SELECT FROM pg_class r WHERE r.oid = t.oid AND (r.relnamespace IN"
    " ((SELECT s.relnamespace FROM pg_class s WHERE s.oid = to_regclass(:table)),"
    " to_regnamespace(quote_ident(current_schema()))) OR EXISTS (SELECT FROM pg_constraint c"
    " WHERE c.contype = 'f' AND c.conrelid = r.oid AND c.confrelid = to_regclass(:table))))"
)
"""Selects tables in the schema of the sessions table or in that in which tables are created, and
tables that refer to the sessions table."""


class _Texts(TypeDecorator[Any]):
    """A list that is bound as texts: asyncpg looks up other arrays on every new connection."""

    impl = ARRAY(Text)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: object) -> list[str | None]:
        texts = (each.hex() if isinstance(each, bytes) else each for each in value)
        return [None if each is None else str(each) for each in texts]


def _given(table: Table, names: Iterable[str]) -> Any:
    """Selects the rows that `lists_of` binds, in their order."""
    lists = (bindparam(f"{table.name}_{name}", type_=_Texts()) for name in names)
    given = func.unnest(*lists).table_valued(*names, with_ordinality="ordinal").render_derived()
    columns = []
    for name in names:
        kind: Any = table.c[name].type
        value: Any = given.c[name]
        if isinstance(kind, LargeBinary):
            value = func.decode(value, literal_column("'hex'"))
        elif isinstance(kind, TIMESTAMP):
            value = func.timezone(_ZONE, cast(value, TIMESTAMP(timezone=True)))
        elif not isinstance(kind, String):
            value = cast(value, kind)
        columns.append(value)
    return select(*columns).order_by(given.c.ordinal)


@lru_cache(maxsize=64)
def _insert_lists(table: Table, names: tuple[str, ...]) -> Any:
    # The rows get their serial numbers after they are sorted.
    return insert(table).from_select(names, _given(table, names), include_defaults=False)

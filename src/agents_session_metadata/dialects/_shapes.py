"""SQL for how a database stores and compares ids: whether two of them can become one."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class ShapeSQL:
    """Queries about tables, and expressions about the columns of ids and keys.

    In a query, `{name}` and `{schema}` are texts; the schema can be NULL.

    Attributes:
        unique_keys: A query for the unique indexes of all rows of a table, with each of their
            columns, or NULL for a part of one or an expression.
        merging_indexes: A query for unique indexes, with columns, by which an upsert can take
            another row for the one that it is for; empty if it can by any that lacks a column of
            the primary key.
        collation: The name of the collation of the text `{}`, if the database tells it.
        loose_text: 1 if the text `{}` has a collation that may take different texts for one, else
            0.
        changed_text: 1 if the text `{}` is not found by what was read of it, because it was
            changed, else 0.
        lost_text: 1 if the text `{}` has a character set that lacks characters, else 0.
        room: The number of characters of the column `{column}` in the table `{name}`, whose names
            are literals or expressions; `{table}` and `{schema}` are the parts of the table's name.
            NULL if it has room for any number; 0 if its type does not store every text as it is;
            and negative if it cuts off spaces that it has room for. All databases cut off spaces
            that a column has no room for.
        bytes_room: The same for a column of bytes; empty if a value is the same in all types.
        lossy_columns: A query for the columns of a table whose character set lacks characters, with
            its name; empty if there are none.
        moving_keys: A query for the foreign keys that give the rows of an ended session to another
            one; empty if there are none.
        table_sql: A query for the statement that created a table in the schema `{database}`, for
            `replaces_rows`; empty if no table does.
    """

    unique_keys: str
    merging_indexes: str = ""
    collation: str = "''"
    loose_text: str = "0"
    changed_text: str = "0"
    lost_text: str = "0"
    room: str = "NULL"
    bytes_room: str = ""
    lossy_columns: str = ""
    moving_keys: str = ""
    table_sql: str = ""


def replaces_rows(table_sql: str) -> bool:
    """Whether a table replaces or leaves out rows because of a key, without an error.

    A clause of `NOT NULL` does no harm: NULL is written to no such column.
    """
    plain = re.sub(r"--[^\n]*|/\*.*?\*/|'[^']*'", " ", table_sql, flags=re.DOTALL)
    words = " ".join(re.findall(r"\w+", plain.lower()))
    return re.search(r"(?<!\bnull )\bon conflict (replace|ignore)\b", words) is not None


SQLITE = ShapeSQL(
    merging_indexes=(
        "SELECT i.name, c.name FROM pragma_index_list({name}, {schema}) i"
        ' JOIN pragma_index_xinfo(i.name, {schema}) c WHERE i."unique" AND c.key'
        " AND upper(c.coll) <> 'BINARY' AND c.name IN"
        " ('session_id', 'key', 'item_id', 'attachment_id')"
    ),
    unique_keys=(
        "SELECT i.name, c.name FROM pragma_index_list({name}, {schema}) i"
        ' JOIN pragma_index_info(i.name, {schema}) c WHERE i."unique" AND NOT i.partial'
    ),
    moving_keys=(
        'SELECT "table" FROM pragma_foreign_key_list({name}, {schema}) WHERE "from" ='
        " 'session_id' COLLATE NOCASE AND 'SET DEFAULT' IN (on_delete, on_update)"
    ),
    table_sql=(
        "SELECT sql FROM {database}.sqlite_master"
        " WHERE type = 'table' AND lower(name) = lower({name})"
    ),
    # A column of a numeric type stores 01 as the number 1.
    changed_text="CASE WHEN {} = '01' THEN 1 ELSE 0 END",
)

# The least room of a type and of the domains that it is made of.
_POSTGRESQL_ROOM = (
    "(WITH RECURSIVE d (kind, size) AS (SELECT atttypid, atttypmod FROM pg_attribute"
    " WHERE attrelid = to_regclass({{name}}) AND attname = {{column}} UNION ALL"
    " SELECT t.typbasetype, t.typtypmod FROM d JOIN pg_type t ON t.oid = d.kind"
    " WHERE t.typtype = 'd') SELECT min(CASE WHEN t.typtype <> 'd' AND d.kind NOT IN ({kinds})"
    " THEN 0 WHEN d.size > 4 THEN d.size - 4 END) FROM d JOIN pg_type t ON t.oid = d.kind)"
)

POSTGRESQL = ShapeSQL(
    merging_indexes=(
        "SELECT c.relname, a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " CROSS JOIN unnest(i.indcollation::oid[]) WITH ORDINALITY AS u(collation_oid, place)"
        " JOIN pg_collation l ON l.oid = u.collation_oid AND NOT l.collisdeterministic"
        " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[u.place - 1]"
        " WHERE i.indisunique AND a.attname IN ('session_id', 'key', 'item_id', 'attachment_id')"
        " AND i.indrelid"
        " = to_regclass(coalesce(quote_ident({schema}) || '.', '') || quote_ident({name}))"
    ),
    unique_keys=(
        "SELECT CAST(i.indexrelid AS text), a.attname FROM pg_index i CROSS JOIN generate_series"
        "(0, i.indnkeyatts - 1) AS k (place) LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid"
        " AND a.attnum = i.indkey[k.place] AND a.attnum > 0"
        " WHERE i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indrelid"
        " = to_regclass(coalesce(quote_ident({schema}) || '.', '') || quote_ident({name}))"
    ),
    moving_keys=(
        "SELECT c.conname FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = c.conrelid"
        " AND a.attnum = ANY (c.conkey) WHERE c.contype = 'f' AND a.attname = 'session_id'"
        " AND 'd' IN (c.confdeltype, c.confupdtype) AND c.conrelid"
        " = to_regclass(coalesce(quote_ident({schema}) || '.', '') || quote_ident({name}))"
    ),
    loose_text=(
        "(SELECT CASE WHEN l.collisdeterministic THEN 0 ELSE 1 END FROM pg_collation l"
        " WHERE l.oid = CAST(pg_collation_for({}) AS regcollation))"
    ),
    collation="CAST(pg_collation_for({}) AS text)",
    room=_POSTGRESQL_ROOM.format(kinds="CAST('text' AS regtype), CAST('varchar' AS regtype)"),
    bytes_room=_POSTGRESQL_ROOM.format(kinds="CAST('bytea' AS regtype)"),
)

_MYSQL_ROOM = (
    "(SELECT CASE {kinds} ELSE 0 END FROM information_schema.columns"
    " WHERE table_schema = {{schema}} AND table_name = {{table}} AND column_name = {{column}})"
)

_WHOLE_CHARSETS = "'utf8mb4', 'utf16', 'utf16le', 'utf32'"

MYSQL = ShapeSQL(
    unique_keys=(
        "SELECT index_name, CASE WHEN sub_part IS NULL THEN column_name END"
        " FROM information_schema.statistics"
        " WHERE table_schema = coalesce({schema}, database()) AND table_name = {name}"
        " AND non_unique = 0"
    ),
    lost_text=f"CASE WHEN charset({{}}) IN ({_WHOLE_CHARSETS}, 'binary') THEN 0 ELSE 1 END",
    lossy_columns=(
        "SELECT column_name, character_set_name FROM information_schema.columns"  # noqa: S608
        " WHERE table_schema = coalesce({schema}, database()) AND table_name = {name}"
        f" AND character_set_name NOT IN ({_WHOLE_CHARSETS})"
    ),
    collation="collation({})",
    loose_text="CASE WHEN collation({}) LIKE '%bin%' THEN 0 ELSE 1 END",
    room=_MYSQL_ROOM.format(
        kinds="WHEN data_type = 'char' THEN -character_maximum_length"
        # The length is that in bytes.
        " WHEN data_type = 'tinytext' THEN character_maximum_length DIV 4"
        " WHEN data_type IN ('varchar', 'text', 'mediumtext', 'longtext')"
        " THEN character_maximum_length"
    ),
    bytes_room=_MYSQL_ROOM.format(
        kinds="WHEN data_type IN ('varbinary', 'tinyblob', 'blob', 'mediumblob', 'longblob')"
        " THEN character_maximum_length"
    ),
)

"""Whether tables that exist have the columns that are used, and whether these tell ids apart."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Column, Connection, LargeBinary, String, Table, inspect, text
from sqlalchemy.exc import DBAPIError

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects._shapes import replaces_rows
from agents_session_metadata.dialects._table_names import qualified_text
from agents_session_metadata.errors import TablesMismatchError
from agents_session_metadata.types import MAX_KEY_LENGTH
from agents_session_metadata.values import SEARCH_KEY_BYTES

from .tables import CORE, SessionTables

_ALIKE = {"A": "a", "a ": "a", "a\x01": "a", "01": "1"}
"""Texts that some collations and types take for another one; a column need hold ASCII only."""
_PROBLEMS = (
    *(f"does not distinguish {other!r} and {like!r}" for like, other in _ALIKE.items()),
    "does not hold every text",
    "has a collation that may take different texts for one",
    (_CHANGED := "changes texts that it stores"),
)
_NO_TEXT = "has a type that does not store every value as it is"
_SEARCHED = ("search_key", "search_rest", "owner_key")
"""The columns of bytes by which values are compared."""
_IGNORES_SPACES = list(_ALIKE).index("a ")
_NOT_FOUND = (
    "a session would not be found by the id that was read; change its type to VARCHAR by a "
    "migration of your own"
)
_MADE_BY_OTHERS = (
    "another program made the table, or the name of a table is misspelled; pass the right names"
)
_NOT_APART = (
    "one session could then change what belongs to another one; give the column the type and "
    "collation that `agent-sessions ddl` shows"
)
CONFLICTS = (
    "a write could delete a row of another session, or be lost; make the table again without this "
    "clause"
)
"""What is wrong with a table of `conflict_problems`."""
_MOVED = (
    "rows of a session that ends would belong to the session of the default; replace it by a "
    "foreign key with ON DELETE CASCADE"
)
_LOST = (
    "a server that is not strict stores question marks instead of other characters; give the "
    "column the character set utf8mb4 by a migration of your own"
)
_EQUAL_ROWS = (
    "there could be two rows for one session, key or run, and a change of one would leave the "
    "other; add the key"
)
MERGING = (
    "a write replaces the row that the index takes for the same, which can belong to another "
    "session; drop the index, or make it not unique"
)
"""What is wrong with an index of `merging_indexes`."""


Keys: TypeAlias = dict[Table, dict[str, set[str]]]
"""The unique indexes of tables by name, each with its columns."""


class _Shape(NamedTuple):
    """How a column stores and compares what it holds.

    Attributes:
        room: What `ShapeSQL` says.
        collation: The name of its collation, if the database tells it.
        problems: Which of `_PROBLEMS` it has.
    """

    room: int | None
    collation: str
    problems: Sequence[int]

    def has(self, place: int, collation: str) -> bool:
        """Whether it has one of the problems, by this collation."""
        return bool(self.problems[place]) and self.collation == collation


def check_columns(connection: Connection, *tables: Table) -> None:
    """Refuse tables that lack a column, at the beginning of a transaction.

    Raises:
        TablesMismatchError: If one does.
    """
    for table in tables:
        if not _can_select(connection, table):
            _check_columns(connection, table)


def _can_select(connection: Connection, table: Table) -> bool:
    """Whether all columns can be selected, which takes a fraction of the time of reading them."""
    name = qualified_text(connection, table)
    quote = connection.dialect.identifier_preparer.quote
    columns = ", ".join(f"t.{quote(column.name)}" for column in table.c)
    try:
        _execute(connection, f"SELECT {columns} FROM {name} t WHERE 1 = 0")  # noqa: S608  # names
    except DBAPIError as error:
        _roll_back(connection, error)
        return False
    return True


def _check_columns(connection: Connection, table: Table) -> None:
    inspector, schema = inspect(connection), connection.schema_for_object(table)
    if not inspector.has_table(table.name, schema):
        return
    found = {column["name"] for column in inspector.get_columns(table.name, schema)}
    lacking = [each.name for each in table.c if each.name not in found]
    if lacking:
        problem = f"{table.name} has no column {', '.join(lacking)}"
        raise TablesMismatchError(table.name, problem, cause=_MADE_BY_OTHERS)


def merging_indexes(connection: Connection, keys: Keys) -> Iterator[tuple[Table, str, str]]:
    """The unique indexes by which an upsert could take a row for another one, with their table.

    Each comes with the column that does not distinguish texts in it, or nothing if none is needed.
    """
    query = dialect_of(connection.dialect).shapes.merging_indexes
    if query:
        yield from _of_tables(connection, [*keys], query)
        return
    for table, indexes in keys.items():
        key = set(table.primary_key.columns.keys())
        yield from ((table, name, "") for name, columns in indexes.items() if not key <= columns)


def conflict_problems(
    connection: Connection, tables: Sequence[Table]
) -> Iterator[tuple[Table, str]]:
    """The tables that replace rows, or leave some out, without an error, and what lets them."""
    query = dialect_of(connection.dialect).shapes.table_sql
    for table, made in _of_tables(connection, tables, query) if query else ():
        if replaces_rows(made):
            yield table, f"{table.name} has a key with ON CONFLICT REPLACE or IGNORE"


def unique_keys(connection: Connection, tables: Sequence[Table]) -> Keys:
    """The unique indexes of tables, each with its columns."""
    found: Keys = {table: {} for table in tables}
    query = dialect_of(connection.dialect).shapes.unique_keys
    for table, index, column in _of_tables(connection, tables, query):
        found[table].setdefault(index, set()).add(column)
    return found


def _of_tables(connection: Connection, tables: Sequence[Table], query: str) -> Iterator[Any]:
    """The rows of a query about tables, each after its table."""
    literal = dialect_of(connection.dialect).literal
    quote = connection.dialect.identifier_preparer.quote
    parts = []
    for index, table in enumerate(tables):
        schema = connection.schema_for_object(table)
        about = query.format(
            name=literal(table.name),
            schema="NULL" if schema is None else literal(schema),
            database=quote(schema or "main"),
        )
        parts.append(f"SELECT {index}, q{index}.* FROM ({about}) q{index}")  # noqa: S608  # names
    for number, *row in _execute(connection, " UNION ALL ".join(parts)) if parts else ():
        yield tables[number], *row


def check_ids(
    connection: Connection, tables: SessionTables, group: str, missing: Container[str]
) -> None:
    """Refuse tables in which two sessions have one id, or one has two rows, and so for keys.

    Args:
        connection: The connection.
        tables: The tables.
        group: The name of the group of tables to look at.
        missing: The names of those that do not exist.

    Raises:
        TablesMismatchError: If there is one.
    """
    of_sessions = tables.sessions.c.session_id
    some = (tables.sessions, *tables.group(group).tables)
    present = [each for each in some if each.name not in missing]
    if tables.sessions not in present:
        return
    if group == CORE:
        present += _optional(connection, tables)
    found = _described(connection, [c for table in present for c in table.c if _is_compared(c)])
    for column, shape in found.items():
        parent = found[of_sessions] if column.name == of_sessions.name else None
        _check_shape(column, shape, parent)
    for table, problem in conflict_problems(connection, present):
        raise TablesMismatchError(table.name, problem, cause=CONFLICTS)
    keys = unique_keys(connection, present)
    own = [each for each in present if each not in (tables.sessions, tables.messages)]
    for table, name, column_name in merging_indexes(connection, {each: keys[each] for each in own}):
        if column_name != of_sessions.name or not any(found[of_sessions].problems):
            problem = f"{table.name} has the unique index {name}"
            raise TablesMismatchError(table.name, problem, cause=MERGING)
    _check_moving_keys(connection, present)
    _check_characters(connection, own)
    _check_keys(keys)


def _optional(connection: Connection, tables: SessionTables) -> list[Table]:
    """The tables of optional features: writers that use none of them end or copy rows there."""
    some = [table for group in tables.groups if group.name != CORE for table in group.tables]
    found = dialect_of(connection.dialect).usable(connection, tables.sessions, some)
    return [table for table in found if _can_select(connection, table)]


def _is_compared(column: Column[Any]) -> bool:
    """Whether rows are found by the id, the key or the search key in a column."""
    if isinstance(column.type, LargeBinary):
        return column.name in _SEARCHED
    is_text = isinstance(column.type, String)
    return column.name == "session_id" or (is_text and column.primary_key)


def _check_moving_keys(connection: Connection, tables: Sequence[Table]) -> None:
    """Refuse foreign keys that give the rows of an ended session to another one."""
    query = dialect_of(connection.dialect).shapes.moving_keys
    for table, name in _of_tables(connection, tables, query) if query else ():
        problem = f"{table.name} has a foreign key with SET DEFAULT ({name})"
        raise TablesMismatchError(table.name, problem, cause=_MOVED)


def _check_characters(connection: Connection, tables: Sequence[Table]) -> None:
    """Refuse tables in which the characters of a value can be lost without an error."""
    query = dialect_of(connection.dialect).shapes.lossy_columns
    for table, name, charset in _of_tables(connection, tables, query) if query else ():
        if name in table.c and name != "session_id":
            problem = f"holds characters of {charset} only"
            raise _mismatch(table.c[name], problem, _LOST)


def _check_keys(keys: Keys) -> None:
    """Refuse tables that can have two rows with the same ids and keys."""
    for table, indexes in keys.items():
        key = table.primary_key.columns.keys()
        if any(map(_is_compared, table.primary_key)) and set(key) not in indexes.values():
            problem = f"{table.name} has no primary key ({', '.join(key)})"
            raise TablesMismatchError(table.name, problem, cause=_EQUAL_ROWS)


def _check_shape(column: Column[Any], shape: _Shape, of_sessions: _Shape | None) -> None:
    """Refuse a column, unless it is an id that only does as those of the sessions do."""
    if shape.room == 0:
        raise _mismatch(column, _NO_TEXT, _NOT_APART)
    for place, (problem, is_so) in enumerate(zip(_PROBLEMS, shape.problems, strict=True)):
        if is_so and problem == _CHANGED:
            raise _mismatch(column, problem, _NOT_FOUND)
        if is_so and not (of_sessions and of_sessions.has(place, shape.collation)):
            raise _mismatch(column, problem, _NOT_APART)
    if shape.room is None:
        return
    if shape.room < 0 and not (of_sessions and of_sessions.has(_IGNORES_SPACES, shape.collation)):
        raise _mismatch(column, "cuts trailing spaces off", _NOT_APART)
    needed, unit = MAX_KEY_LENGTH, "characters"
    if isinstance(column.type, LargeBinary):
        needed, unit = SEARCH_KEY_BYTES, "bytes"
    elif of_sessions and of_sessions.room:
        needed = min(needed, abs(of_sessions.room))
    if abs(shape.room) < needed:
        problem = f"holds {abs(shape.room)} {unit}, not {needed}"
        raise _mismatch(column, problem, _NOT_APART)


def _mismatch(column: Column[Any], problem: str, cause: str) -> TablesMismatchError:
    name = column.table.name
    return TablesMismatchError(name, f"{name}.{column.name} {problem}", cause=cause)


def _described(connection: Connection, columns: Sequence[Column[Any]]) -> dict[Column[Any], _Shape]:
    """How columns store and compare what they hold, where another type than bytes may be told."""
    shapes = dialect_of(connection.dialect).shapes
    columns = [c for c in columns if shapes.bytes_room or not isinstance(c.type, LargeBinary)]
    parts = [_description(connection, *each) for each in enumerate(columns)]
    try:
        rows = _execute(connection, " UNION ALL ".join(parts))
    except DBAPIError as error:
        _roll_back(connection, error)
        for column in columns:
            [[room]] = _execute(connection, f"SELECT {_room(connection, column)}")
            if room == 0:  # It cannot be compared with texts.
                raise _mismatch(column, _NO_TEXT, _NOT_APART) from None
        raise
    return {columns[index]: _Shape(room, name, same) for index, room, name, *same in rows}


def _roll_back(connection: Connection, error: DBAPIError) -> None:
    """Go on after an error, unless the connection is lost."""
    if error.connection_invalidated:
        raise error
    connection.rollback()


def _description(connection: Connection, index: int, column: Column[Any]) -> str:
    """A query for the number and the `_Shape` of a column.

    Its collation goes with the column into a query that has texts instead of the rows.
    """
    room = _room(connection, column)
    if isinstance(column.type, LargeBinary):
        return f"SELECT {index}, {room}, ''{', 0' * len(_PROBLEMS)}"
    name = connection.dialect.identifier_preparer.quote(column.name)
    table = qualified_text(connection, column.table)
    rows = f"SELECT t.{name} AS stored FROM {table} t WHERE 1 = 0"  # noqa: S608  # names
    texts = [f"SELECT '{each}'" for each in dict.fromkeys(_ALIKE.values())]
    same = (f"max(CASE WHEN stored = '{like}' THEN 1 ELSE 0 END)" for like in _ALIKE)
    shapes = dialect_of(connection.dialect).shapes
    lost = f"max({shapes.lost_text.format('stored')})"
    lost = f"CASE WHEN count(stored) < {len(texts)} THEN 1 ELSE {lost} END"
    more = (f"max({each.format('stored')})" for each in (shapes.loose_text, shapes.changed_text))
    # Merged with the query around it, the texts would lose the collation.
    all_texts = f"{' UNION ALL '.join([rows, *texts])} LIMIT {len(texts)} OFFSET 0"
    collation = f"max({shapes.collation.format('stored')})"
    described = ", ".join((str(index), room, collation, *same, lost, *more))
    return f"SELECT {described} FROM ({all_texts}) texts_{index}"  # noqa: S608  # names


def _room(connection: Connection, column: Column[Any]) -> str:
    """An expression for how many characters or bytes a column has room for."""
    dialect = dialect_of(connection.dialect)
    literal, schema = dialect.literal, connection.schema_for_object(column.table)
    is_binary, shapes = isinstance(column.type, LargeBinary), dialect.shapes
    return (shapes.bytes_room if is_binary else shapes.room).format(
        name=literal(qualified_text(connection, column.table)),
        schema="database()" if schema is None else literal(schema),
        table=literal(column.table.name),
        column=literal(column.name),
    )


def _execute(connection: Connection, query: str) -> Sequence[Any]:
    # Compiling an expression takes longer than running it.
    return connection.execute(text(query.replace(":", "\\:"))).all()

"""Whether tables that exist have the columns that are used, and whether these tell ids apart."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from sqlalchemy import Column, Connection, String, Table, inspect, text
from sqlalchemy.exc import DBAPIError

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.dialects._dialect import qualified
from agents_session_metadata.errors import TablesMismatchError
from agents_session_metadata.types import MAX_KEY_LENGTH

from .tables import CORE, SessionTables

_ALIKE = {"A": "a", "a ": "a", "a\x01": "a", "01": "1"}
"""Texts that some collations and types take for another one; a column need hold ASCII only."""
_PROBLEMS = (
    *(f"does not distinguish {other!r} and {like!r}" for like, other in _ALIKE.items()),
    "does not hold every text",
    "has a nondeterministic collation",
    (_CHANGED := "changes texts that it stores"),
)
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
MERGING = (
    "a write replaces the row that the index takes for the same, which can belong to another "
    "session; drop the index, or make it not unique"
)
"""What is wrong with an index of `merging_indexes`."""


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
    name = qualified(connection, table)
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


def merging_indexes(connection: Connection, table: Table) -> list[tuple[str, str]]:
    """The unique indexes of a table by which an upsert could take a row for another one.

    Each comes with the column that does not distinguish texts in it, or nothing if none is needed.
    """
    query = text(dialect_of(connection.dialect).shapes.merging_indexes)
    names = {"name": table.name, "schema": connection.schema_for_object(table)}
    return [(index, column) for index, column in connection.execute(query, names)]


def check_ids(
    connection: Connection, tables: SessionTables, group: str, missing: Container[str]
) -> None:
    """Refuse tables in which two sessions have one id, or two metadata keys are one.

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
    ids = (column for table in present for column in table.c if _is_id(column))
    columns = list(dict.fromkeys(ids))
    rows = _described(connection, columns)
    taken = {columns[index]: same for index, _, *same in rows}
    rooms = {columns[index]: room for index, room, *_ in rows}
    if of_sessions not in taken:
        return  # It has another type, of which doctor tells.
    if group == CORE and tables.metadata in present:
        for name, column_name in merging_indexes(connection, tables.metadata):
            if column_name != of_sessions.name or not any(taken[of_sessions]):
                problem = f"{tables.metadata.name} has the unique index {name}"
                raise TablesMismatchError(tables.metadata.name, problem, cause=MERGING)
    for column, same in taken.items():
        may_follow = column.name == of_sessions.name
        for problem, is_so, is_allowed in zip(_PROBLEMS, same, taken[of_sessions], strict=True):
            if is_so and not (may_follow and is_allowed and problem != _CHANGED):
                cause = _NOT_FOUND if problem == _CHANGED else _NOT_APART
                raise _mismatch(column, problem, cause)
        room, needed = rooms[column], MAX_KEY_LENGTH
        if room is None:
            continue
        if room < 0 and not (may_follow and taken[of_sessions][_IGNORES_SPACES]):
            raise _mismatch(column, "cuts trailing spaces off", _NOT_APART)
        if may_follow:
            needed = min(needed, abs(rooms[of_sessions] or needed))
        if abs(room) < needed:
            raise _mismatch(column, f"holds {abs(room)} characters, not {needed}", _NOT_APART)
    if group == CORE and dialect_of(connection.dialect).uses_triggers:
        # New sessions end rows of tables that their writer does not use otherwise.
        existing = inspect(connection).get_table_names(
            connection.schema_for_object(tables.sessions)
        )
        for other in tables.groups:
            absent = [each.name for each in other.tables if each.name not in existing]
            if other.name != CORE and len(absent) < len(other.tables):
                check_ids(connection, tables, other.name, absent)


def _is_id(column: Column[Any]) -> bool:
    """Whether rows are found by the text in a column."""
    is_text = isinstance(column.type, String)
    return column.name == "session_id" or (is_text and column.primary_key)


def _mismatch(column: Column[Any], problem: str, cause: str) -> TablesMismatchError:
    name = column.table.name
    return TablesMismatchError(name, f"{name}.{column.name} {problem}", cause=cause)


def _described(connection: Connection, columns: Sequence[Column[Any]]) -> list[Any]:
    """For each column: its number, its room, and which of `_PROBLEMS` it has.

    The first column is that of the sessions, which is left out if it does not hold text.
    """
    parts = [_description(connection, *each) for each in enumerate(columns)]
    try:
        return [*_execute(connection, " UNION ALL ".join(parts))]
    except DBAPIError as error:
        _roll_back(connection, error)
    found: list[Any] = []
    for index, part in enumerate(parts):
        try:
            found += _execute(connection, part)
        except DBAPIError as error:  # noqa: PERF203  # seldom
            # A column of another type, of which doctor tells, hides no other one.
            _roll_back(connection, error)
            if index:
                [[room]] = _execute(connection, f"SELECT {_room(connection, columns[index])}")
                found.append((index, room, *[0] * len(_PROBLEMS)))
    return found


def _roll_back(connection: Connection, error: DBAPIError) -> None:
    """Go on after an error, unless the connection is lost."""
    if error.connection_invalidated:
        raise error
    connection.rollback()


def _description(connection: Connection, index: int, column: Column[Any]) -> str:
    """A query for what `_described` tells of a column.

    Its collation goes with the column into a query that has texts instead of the rows.
    """
    name = connection.dialect.identifier_preparer.quote(column.name)
    table = qualified(connection, column.table)
    rows = f"SELECT t.{name} AS stored FROM {table} t WHERE 1 = 0"  # noqa: S608  # names
    texts = [f"SELECT '{each}'" for each in dict.fromkeys(_ALIKE.values())]
    same = (f"max(CASE WHEN stored = '{like}' THEN 1 ELSE 0 END)" for like in _ALIKE)
    shapes = dialect_of(connection.dialect).shapes
    lost = f"max({shapes.lost_text.format('stored')})"
    lost = f"CASE WHEN count(stored) < {len(texts)} THEN 1 ELSE {lost} END"
    more = (f"max({each.format('stored')})" for each in (shapes.loose_text, shapes.changed_text))
    room = _room(connection, column)
    # Merged with the query around it, the texts would lose the collation.
    all_texts = f"{' UNION ALL '.join([rows, *texts])} LIMIT {len(texts)} OFFSET 0"
    described = ", ".join((str(index), room, *same, lost, *more))
    return f"SELECT {described} FROM ({all_texts}) texts_{index}"  # noqa: S608  # names


def _room(connection: Connection, column: Column[Any]) -> str:
    """An expression for how many characters a column has room for."""
    dialect = dialect_of(connection.dialect)
    literal, schema = dialect.literal, connection.schema_for_object(column.table)
    return dialect.shapes.room.format(
        name=literal(qualified(connection, column.table)),
        schema="database()" if schema is None else literal(schema),
        table=literal(column.table.name),
        column=literal(column.name),
    )


def _execute(connection: Connection, query: str) -> Sequence[Any]:
    # Compiling an expression takes longer than running it.
    return connection.execute(text(query.replace(":", "\\:"))).all()

"""Creates missing tables, indexes and triggers."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    MetaData,
    Table,
    bindparam,
    delete,
    exists,
    func,
    insert,
    inspect,
    or_,
    select,
    tuple_,
)
from sqlalchemy.exc import DBAPIError, NoSuchTableError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable

from agents_session_metadata.dialects import dialect_of
from agents_session_metadata.values import LIST, SearchKey, decode_elements

from .belonging import destroys
from .tables import (
    CORE,
    CREATE_TYPES,
    ColumnTypes,
    CreateTrigger,
    DropTrigger,
    RenameTable,
    SessionTables,
    TableGroup,
    TableNames,
    build_tables,
    create_tables,
    derived_name,
    element_rows,
    query_tables,
    renamed,
)

logger: logging.Logger = logging.getLogger(__name__)

_LISTS_AT_ONCE = 100
"""Lists that are read at a time: values of the greatest size still fit into memory."""
_ASIDE = "_new"
"""The end of the name of a table of elements that is not filled yet."""


class Lacking(NamedTuple):
    """What a database lacks.

    Attributes:
        names: The names of tables and triggers that are missing.
        withheld: Triggers that do not exist, and must not be created as long as rows that they
            would delete have no session.
        added: Triggers that do not exist, and that version 0.1 did not create.
    """

    names: list[str]
    withheld: list[CreateTrigger]
    added: list[CreateTrigger]


def find_missing(
    connection: Connection, names: TableNames, groups: Iterable[str] = (CORE,)
) -> list[str]:
    """The names of all tables and triggers of some groups that the database requires."""
    return find_lacking(connection, names, groups).names


def find_lacking(connection: Connection, names: TableNames, groups: Iterable[str]) -> Lacking:
    """What the database lacks of some groups."""
    tables, found = query_tables(names), Lacking([], [], [])
    for group in map(tables.group, groups):
        existing = existing_tables(connection, tables, group.tables)
        missing, withheld = _absent_triggers(connection, group)
        found.names.extend(each.name for each in group.tables if each not in existing)
        found.withheld.extend(withheld)
        for trigger in missing:
            if group.name == CORE and trigger.event == "UPDATE":
                found.added.append(trigger)
            else:
                found.names.append(trigger.name)
    return found


def find_wanted(
    connection: Connection, names: TableNames, group: str, *, creates: bool
) -> list[str]:
    """The names of what a group lacks and needs; log what triggers would do that stay absent.

    Args:
        connection: The connection.
        names: The names of the tables.
        group: The name of the group.
        creates: Whether missing tables and triggers are created.
    """
    lacking = find_lacking(connection, names, (group,))
    if lacking.names or creates:
        lacking.names.extend(trigger.name for trigger in lacking.added)
        lacking.added.clear()
    for trigger in lacking.added:
        logger.warning(
            "trigger %s is missing: rows of %s are lost if the id of a session changes. Use"
            " create_tables=True, or run agent-sessions doctor",
            trigger.name,
            trigger.emptied.name,
        )
    for trigger in lacking.withheld:
        logger.warning(
            "trigger %s is missing, and is not created: rows of %s have no session, and it would"
            " delete them when their sessions are restored. Without it, a session that the plain"
            " SDK creates with such an id takes them over. Run agent-sessions doctor",
            trigger.name,
            trigger.emptied.name,
        )
    return lacking.names


def existing_tables(
    connection: Connection, tables: SessionTables, some: Sequence[Table]
) -> list[Table]:
    """Those of some tables that exist.

    Core tables count wherever their names find them: `check_links` tells whose they are.
    """
    has_table = inspect(connection).has_table
    schema = connection.schema_for_object(tables.sessions)
    core = [each for each in some if each in tables.tables and has_table(each.name, schema)]
    optional = [each for each in some if each not in tables.tables]
    found = optional and dialect_of(connection.dialect).beside(
        connection, tables.sessions, optional
    )
    return [*core, *found]


def groups_in_use(connection: Connection, names: TableNames) -> list[str]:
    """The groups of which triggers exist, also if tables that these write to do not."""
    tables = query_tables(names)
    found = dialect_of(connection.dialect).existing_triggers(connection, *tables.tables)
    return [
        group.name
        for group in tables.groups
        if any(each.name in found for each in (*group.triggers, *group.cleanup))
    ]


def create_missing(connection: Connection, names: TableNames, group: str = CORE) -> None:
    """Create whatever the database lacks of a group; several processes may do it at once.

    A table of elements that is made beside metadata gets the elements of all lists; nobody sees it
    before it has them, also after a crash.

    Raises:
        DBAPIError: Also when another process created something first; then do it again.
    """
    dialect = dialect_of(connection.dialect)
    plain = query_tables(names)
    inspector, schema = inspect(connection), connection.schema_for_object(plain.sessions)
    some = (*plain.tables, *plain.group(group).tables)
    existing = {each.name for each in existing_tables(connection, plain, some)}
    if names.sessions in existing:
        tables = build_tables(MetaData(), names, types_beside(connection, plain.sessions))
        _avoid_others(connection, tables.group(group).tables, existing)
    else:
        tables = create_tables(names)
    wanted = tables.group(group)
    refilled = group == CORE and names.metadata in existing and names.elements not in existing
    for each in wanted.tables:
        is_new = each.name not in existing
        restart = wanted.restarts.get(each) if is_new else None
        if restart is not None and restart.table.name in existing:
            connection.execute(restart)
        if each is tables.elements and refilled:
            if not dialect.transactional_ddl:
                _create_elements_aside(connection, tables)
                continue
            # Nobody sees the table before it is filled.
            dialect.begin_ddl(connection)
        if is_new and not dialect.transactional_ddl:
            connection.execute(CreateWithIndexes(each, if_not_exists=True))
            continue
        if is_new:
            connection.execute(CreateTable(each, if_not_exists=True))
        elif each in (tables.sessions, tables.messages):
            continue
        # Where DDL is not transactional, a crash may have left a table without its index.
        found = () if is_new else inspector.get_indexes(each.name, schema=schema)
        _create_indexes(connection, each, {index["name"] for index in found})
    if refilled and dialect.transactional_ddl:
        for _ in _fill(connection, plain, plain.elements):
            pass
    if dialect.uses_triggers:
        _drop_rewritten(connection, wanted, existing)
    missing, _ = _absent_triggers(connection, wanted)
    for trigger in missing:
        connection.execute(trigger)


def _drop_rewritten(connection: Connection, group: TableGroup, existing: Container[str]) -> None:
    """Drop triggers that write to another table if one of theirs did not exist.

    SQLite rewrites them when that one is renamed, so they would empty the table of the new name.
    """
    found = _existing_triggers(connection, group)
    for trigger in group.triggers:
        is_new = any(each.name not in existing for each in (trigger.emptied, *trigger.parts))
        if is_new and trigger.name in found and not destroys(connection, trigger):
            connection.execute(DropTrigger(trigger))


def _avoid_others(connection: Connection, some: Sequence[Table], existing: Container[str]) -> None:
    """Let tables that are to be created use no name of another table, such as an archived one."""
    names = dialect_of(connection.dialect).taken_names(connection, some[0])
    for each in some:
        if each.name not in existing:
            own = {each.name.lower(), derived_name(each.name, _ASIDE).lower()}
            avoid_names(each, {name for name, table in names if table.lower() not in own})


def avoid_names(table: Table, taken: Container[str | None]) -> None:
    """Give other names to the indexes and constraints of a table whose names are in use."""
    every: list[Any] = [*table.indexes, *table.constraints]
    for each in every:
        own, number = each.name, 1
        while each.name is not None and each.name in taken:
            number += 1
            each.name = derived_name(str(own), f"_{number}")


def types_beside(connection: Connection, sessions: Table) -> ColumnTypes:
    """The types of tables that are made beside a sessions table that exists."""
    dialect = dialect_of(connection.dialect)
    # A foreign key must have the very type and collation of what it refers to.
    parent = dialect.parent_id(connection, sessions)[0]
    return CREATE_TYPES._replace(session_id=parent, own_id=dialect.own_id(parent))


def read_lists(
    connection: Connection, tables: SessionTables, *, lock: bool = False
) -> Iterator[dict[tuple[str, str], tuple[SearchKey, ...]]]:
    """The elements of all lists by session id and key, some lists at a time.

    A text that is no JSON, which only SQL typed by hand can store, counts as a list of nothing.
    """
    rows = tables.metadata
    own_id, key = rows.c.session_id, rows.c.key
    statement: Any = (
        select(own_id, key, rows.c.value)
        .where(_is_list(rows))
        .order_by(own_id, key)
        .limit(_LISTS_AT_ONCE)
    )
    if lock:
        statement = statement.with_for_update()
    after = own_id > bindparam("after_id")
    further = own_id >= bindparam("after_id"), or_(after, key > bindparam("after_key"))
    found: Any = connection.execute(statement).all()
    while found:
        yield {(own_id, key): decode_elements(value) for own_id, key, value in found}
        last = {"after_id": found[-1][0], "after_key": found[-1][1]}
        found = connection.execute(statement.where(*further), last).all()


class CreateWithIndexes(CreateTable):
    """Creates a table and its indexes in one statement.

    Once there is a table that refers to the sessions, MySQL opens it for each write to a session. A
    CREATE INDEX of its own would then wait for writers that wait for a writer that waits for it,
    which the server does not see as a deadlock.
    """


@compiles(CreateWithIndexes)
def _create_with_indexes(create: CreateWithIndexes, compiler: Any, **options: Any) -> str:
    text: str = compiler.visit_create_table(create, **options)
    body, end, rest = text.rpartition("\n)")
    on_table = f" ON {compiler.preparer.format_table(create.element)} "
    for index in sorted(create.element.indexes, key=lambda index: str(index.name)):
        head, _, columns = compiler.process(CreateIndex(index)).partition(on_table)
        body += f", \n\t{head.removeprefix('CREATE ')} {columns}"
    return body + end + rest


def _create_indexes(connection: Connection, table: Table, present: Container[str | None]) -> None:
    if_not_exists = dialect_of(connection.dialect).index_if_not_exists
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        if index.name not in present:
            connection.execute(CreateIndex(index, if_not_exists=if_not_exists))


def _create_elements_aside(connection: Connection, tables: SessionTables) -> None:
    """Make the table of elements under another name, fill it, and give it its own name.

    For databases on which each DDL statement is a transaction. While the table is missing no list
    is written, so lists only go, and their elements with them by the foreign key. What a crash has
    left is filled again. Of several processes that fill one table, the first to finish names it.
    """
    dialect = dialect_of(connection.dialect)
    schema = connection.schema_for_object(tables.elements)
    aside = renamed(tables.elements, _ASIDE, tables)
    connection.execute(CreateTable(aside, if_not_exists=True))
    present: set[str | None] = set()
    with suppress(NoSuchTableError):  # named meanwhile, of which the next statement tells
        present.update(each["name"] for each in inspect(connection).get_indexes(aside.name, schema))
    _create_indexes(connection, aside, present)
    plain = query_tables(TableNames(*(each.name for each in tables.tables)))
    target = plain.elements.to_metadata(MetaData(), name=aside.name)
    rows = plain.metadata
    of_list = exists().where(
        rows.c.session_id == target.c.session_id, rows.c.key == target.c.key, _is_list(rows)
    )
    connection.execute(delete(target).where(~of_list))
    for _ in _fill(connection, plain, target):
        connection.commit()
        # Each transaction uses the table before it locks rows: whoever locked rows first and then
        # waited for somebody to rename it would be in a deadlock that the database does not see.
        connection.execute(select(target.c.position).limit(1))
    try:
        connection.execute(RenameTable(aside, tables.elements.name))
    except DBAPIError as error:
        if dialect.is_creation_race(error):
            connection.execute(DropTable(aside, if_exists=True))
        raise


def _fill(connection: Connection, tables: SessionTables, target: Table) -> Iterator[None]:
    """Write the elements of all lists into a table, some lists in each step."""
    own_key = tuple_(target.c.session_id, target.c.key)
    for lists in read_lists(connection, tables, lock=True):
        connection.execute(delete(target).where(own_key.in_(list(lists))))
        parts = [row for own, elements in lists.items() for row in element_rows(*own, elements)]
        if parts:
            connection.execute(insert(target), parts)
        yield


def _is_list(rows: Table) -> ColumnElement[bool]:
    kind: ColumnElement[bytes] = func.substr(rows.c.search_key, 1, 1, type_=rows.c.search_key.type)
    return kind == LIST


def _existing_triggers(connection: Connection, group: TableGroup) -> dict[str, str]:
    """The triggers on the tables that have those of a group, and what they run."""
    on = dict.fromkeys(trigger.table for trigger in group.triggers)
    return dialect_of(connection.dialect).existing_triggers(connection, *on)


def _absent_triggers(
    connection: Connection, group: TableGroup
) -> tuple[list[CreateTrigger], list[CreateTrigger]]:
    """The triggers of a group that do not exist: those to create, and those that `destroys`."""
    if not group.triggers or not dialect_of(connection.dialect).uses_triggers:
        return [], []
    found = _existing_triggers(connection, group)
    absent = [trigger for trigger in group.triggers if trigger.name not in found]
    withheld = [trigger for trigger in absent if destroys(connection, trigger)]
    return [trigger for trigger in absent if trigger not in withheld], withheld

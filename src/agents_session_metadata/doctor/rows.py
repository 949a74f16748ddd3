"""Finds rows without a parent, values that are not JSON, and search keys to be rewritten.

Values are read in batches, in the order of the primary key; memory does not grow with the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata.core.tables import SessionTables, TableNames, element_rows, table_names
from agents_session_metadata.scope import ScopedStore, own_store
from agents_session_metadata.text import quoted
from agents_session_metadata.values import SearchKey, decode_elements, decode_value, search_key

from .structure import Finding, Inspection

BATCH = 200

_REWRITE = "agent-sessions doctor --rewrite-search-keys rewrites them from the stored values"


def check_orphans(inspection: Inspection) -> Iterator[Finding]:
    for group in inspection.queried.groups:
        for table in group.tables:
            for constraint in table.foreign_key_constraints:
                parent = constraint.referred_table
                if not inspection.complete.issuperset({table.name, parent.name}):
                    continue
                pairs = [(each.parent, each.column) for each in constraint.elements]
                is_there = exists().where(and_(*(own == other for own, other in pairs)))
                given = [own.is_not(None) for own, _ in pairs]
                orphans: Any = select(func.count()).select_from(table).where(*given, ~is_there)
                count = inspection.connection.scalar(orphans)
                if count:
                    have = "row of {} has" if count == 1 else "rows of {} have"
                    problem = (
                        f"{count} {have.format(table.name)} no row in {parent.name}: restore those"
                        " rows from a backup, or delete these by SQL"
                    )
                    yield Finding("error", "orphans", problem)


class Stored(NamedTuple):
    """`search` and `elements` are computed from the value, not read."""

    session_id: str
    key: str
    is_json: bool
    search: SearchKey
    elements: tuple[SearchKey, ...]
    has_search: bool
    has_elements: bool

    @property
    def problems(self) -> list[str]:
        if not self.is_json:
            return ["values"]
        correct = {"search keys": self.has_search, "elements": self.has_elements}
        return [name for name, is_correct in correct.items() if not is_correct]

    @property
    def is_wrong(self) -> bool:
        return self.is_json and bool(self.problems)


class StoredValues:
    def __init__(self, tables: SessionTables) -> None:
        rows, elements = tables.metadata, tables.elements
        self._own = rows.c.session_id, rows.c.key
        self._select: Any = select(
            *self._own,
            rows.c.value,
            rows.c.search_key,
            rows.c.search_rest,
        )
        # MariaDB compares BETWEEN by the collation of the parameters.
        self._elements: Any = select(
            elements.c.session_id,
            elements.c.key,
            elements.c.search_key,
            elements.c.search_rest,
        ).where(
            elements.c.session_id >= bindparam("first"), elements.c.session_id <= bindparam("last")
        )

    def batch(self, connection: Connection, after: Stored | None) -> list[Stored]:
        own_id, key = self._own
        statement = self._select.order_by(own_id, key).limit(BATCH)
        if after is not None:
            later = or_(own_id > after.session_id, key > after.key)
            statement = statement.where(own_id >= after.session_id, later)
        return self._judged(connection, connection.execute(statement).all())

    def of_keys(self, connection: Connection, session_id: str, keys: list[str]) -> list[Stored]:
        """Locks the rows."""
        own_id, key = self._own
        statement = self._select.where(own_id == session_id, key.in_(keys)).with_for_update()
        return self._judged(connection, connection.execute(statement).all())

    def _judged(self, connection: Connection, found: Sequence[Any]) -> list[Stored]:
        parts: dict[Any, Counter[Any]] = {(row[0], row[1]): Counter() for row in found}
        if found:
            ends = {"first": found[0][0], "last": found[-1][0]}
            elements: Any = connection.execute(self._elements, ends)
            for own_id, key, *search in elements:
                if (own_id, key) in parts:
                    parts[own_id, key][tuple(search)] += 1
        return [_judge(row, parts[row[0], row[1]]) for row in found]


def _judge(row: Any, parts: Counter[Any]) -> Stored:
    own_id, key, stored, *search = row
    try:
        wanted, elements = search_key(decode_value(stored)), decode_elements(stored)
    except ValueError:
        return Stored(own_id, key, False, SearchKey(b"", b""), (), False, False)
    has_search = tuple(search) == wanted
    return Stored(own_id, key, True, wanted, elements, has_search, parts == Counter(elements))


_PROBLEMS = {
    "values": ("values that are not valid JSON", "set the keys again, or delete them"),
    "search keys": ("values with another search key, so filters are wrong", _REWRITE),
    "elements": ("values with other list elements, so $contains is wrong", _REWRITE),
}


def check_values(inspection: Inspection) -> Iterator[Finding]:
    tables = inspection.queried
    if not inspection.complete.issuperset({tables.metadata.name, tables.elements.name}):
        return
    values, last = StoredValues(tables), None
    counts: Counter[str] = Counter()
    first: dict[str, Stored] = {}
    while batch := values.batch(inspection.connection, last):
        last = batch[-1]
        for stored in batch:
            for name in stored.problems:
                counts[name] += 1
                first.setdefault(name, stored)
    for name, (what, advice) in _PROBLEMS.items():
        if name in first:
            one = f"{quoted(first[name].key)} of session {quoted(first[name].session_id)}"
            problem = f"{what}: {counts[name]}, such as {one}; {advice}"
            yield Finding("error", name, problem)


class Rewritten(NamedTuple):
    rewritten: int
    skipped: int


async def rewrite_search_keys(engine: AsyncEngine, names: TableNames | None = None) -> Rewritten:
    """Rewrites search keys and list elements that do not match their values, and nothing else.

    Each transaction covers a batch of values and locks their sessions as every writer does. A value
    that is not valid JSON, or whose session has no row, is skipped.
    """
    store = own_store(engine, names or table_names(), create_tables=False)
    database = store.database
    await database.ensure()
    values = StoredValues(database.tables)
    rewritten = skipped = 0
    after: Stored | None = None
    while batch := await database.read(lambda sync, *_, at=after: values.batch(sync, at)):
        after = batch[-1]
        skipped += sum(not stored.is_json for stored in batch)
        wrong = [stored for stored in batch if stored.is_wrong]
        if wrong:
            written, left = await database.write(
                lambda sync, *_, wrong=wrong: _rewrite(sync, store, values, wrong)
            )
            rewritten, skipped = rewritten + written, skipped + left
    return Rewritten(rewritten, skipped)


def _rewrite(
    connection: Connection, store: ScopedStore, values: StoredValues, wrong: list[Stored]
) -> tuple[int, int]:
    """Returns the numbers of rewritten and skipped values."""
    tables = store.database.tables
    rows, elements = tables.metadata, tables.elements
    keys_of: dict[str, list[str]] = {}
    for stored in wrong:
        keys_of.setdefault(stored.session_id, []).append(stored.key)
    written = skipped = 0
    for session_id, keys in keys_of.items():
        if not store.rows.lock_session(connection, session_id):
            skipped += len(keys)
            continue
        # Read again under the lock: a value may have changed since.
        for stored in values.of_keys(connection, session_id, keys):
            if not stored.is_wrong:
                continue
            written += 1
            new = {"search_key": stored.search.indexed, "search_rest": stored.search.rest}
            own = rows.c.session_id == session_id, rows.c.key == stored.key
            connection.execute(update(rows).where(*own).values(new))
            own = elements.c.session_id == session_id, elements.c.key == stored.key
            connection.execute(delete(elements).where(*own))
            parts = [*element_rows(session_id, stored.key, stored.elements)]
            if parts:
                connection.execute(insert(elements), parts)
    return written, skipped

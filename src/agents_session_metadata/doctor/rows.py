"""Finds rows without a parent, values that are not JSON, and search keys to be rewritten.

Values are read in batches, in the order of the primary key; memory does not grow with the table.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata.core.definitions import TableNames
from agents_session_metadata.core.features import table_names
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.scope import ScopedStore, own_store
from agents_session_metadata.text import quoted
from agents_session_metadata.values import (
    EncodedValue,
    decode_elements,
    decode_value,
    search_key,
)

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
    """`encoded` is what should be stored, computed from the text; None if that is not JSON."""

    session_id: str
    key: str
    encoded: EncodedValue | None
    problems: list[str]


def _read(connection: Connection, tables: SessionTables, after: Stored | None) -> list[Stored]:
    rows, elements = tables.metadata.c, tables.elements.c
    columns = rows.session_id, rows.key, rows.value, rows.search_key, rows.search_rest
    statement: Any = select(*columns).order_by(rows.session_id, rows.key).limit(BATCH)
    if after is not None:
        later = or_(rows.session_id > after.session_id, rows.key > after.key)
        statement = statement.where(rows.session_id >= after.session_id, later)
    found: Any = connection.execute(statement).all()
    if not found:
        return []
    # MariaDB compares BETWEEN by the collation of the parameters.
    within = elements.session_id >= found[0][0], elements.session_id <= found[-1][0]
    parts: defaultdict[tuple[str, str], Counter[Any]] = defaultdict(Counter)
    part = select(elements.session_id, elements.key, elements.search_key, elements.search_rest)
    stored: Any = connection.execute(part.where(*within)).all()
    for session_id, key, *search in stored:
        parts[session_id, key][tuple(search)] += 1
    return [_judged(row, parts[row[0], row[1]]) for row in found]


def _judged(row: Any, parts: Counter[Any]) -> Stored:
    session_id, key, text, *search = row
    encoded = _encoded(text)
    if encoded is None:
        return Stored(session_id, key, None, ["values"])
    is_wrong = {
        "search keys": tuple(search) != encoded.search,
        "elements": parts != Counter(encoded.elements),
    }
    return Stored(session_id, key, encoded, [name for name in is_wrong if is_wrong[name]])


def _encoded(text: str) -> EncodedValue | None:
    try:
        return EncodedValue(text, search_key(decode_value(text)), decode_elements(text))
    except ValueError:
        return None


_PROBLEMS = {
    "values": ("values that are not valid JSON", "set the keys again, or delete them"),
    "search keys": ("values with another search key, so filters are wrong", _REWRITE),
    "elements": ("values with other list elements, so $contains is wrong", _REWRITE),
}


def check_values(inspection: Inspection) -> Iterator[Finding]:
    tables = inspection.queried
    if not inspection.complete.issuperset({tables.metadata.name, tables.elements.name}):
        return
    last: Stored | None = None
    counts: Counter[str] = Counter()
    first: dict[str, Stored] = {}
    while batch := _read(inspection.connection, tables, last):
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
    rewritten = skipped = 0
    after: Stored | None = None
    while batch := await database.read(partial(_read, tables=database.tables, after=after)):
        after = batch[-1]
        skipped += sum(stored.encoded is None for stored in batch)
        wrong = [stored for stored in batch if stored.encoded and stored.problems]
        if wrong:
            written, left = await database.write(partial(_rewrite, store=store, wrong=wrong))
            rewritten, skipped = rewritten + written, skipped + left
    return Rewritten(rewritten, skipped)


def _rewrite(
    connection: Connection, store: ScopedStore, wrong: Iterable[Stored]
) -> tuple[int, int]:
    """Returns the numbers of rewritten and skipped values."""
    rows, table = store.rows, store.database.tables.metadata
    written = skipped = 0
    for session_id, found in groupby(wrong, attrgetter("session_id")):
        keys = [stored.key for stored in found]
        claim = rows.claim(connection, session_id, rows.texts, create=False)
        if claim is None:
            skipped += len(keys)
            continue
        # As read under the lock: a value may have changed since.
        texts = ((key, _encoded(claim.stored.get(key, ""))) for key in keys)
        encoded = {key: value for key, value in texts if value is not None}
        for key, value in encoded.items():
            own = table.c.session_id == session_id, table.c.key == key
            new = {"search_key": value.search.indexed, "search_rest": value.search.rest}
            connection.execute(update(table).where(*own).values(new))
        rows.write_elements(connection, session_id, encoded, encoded)
        written += len(encoded)
    return written, skipped

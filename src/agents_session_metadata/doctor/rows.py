"""Finds rows without a parent, values that are not JSON, and search keys that do not match values.

Values are read in batches, in the order of the primary key; memory does not grow with the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, exists, func, or_, select, type_coerce
from sqlalchemy.types import NullType

from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.text import quoted
from agents_session_metadata.values import SearchKey, decode_elements, decode_value, search_key

from .findings import Finding
from .structure import Inspection

BATCH = 200

_EXAMPLES = 3
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
    def is_wrong(self) -> bool:
        return self.is_json and not (self.has_search and self.has_elements)


class StoredValues:
    def __init__(self, tables: SessionTables) -> None:
        rows, elements = tables.metadata, tables.elements
        self._own = rows.c.session_id, rows.c.key
        self._select: Any = select(
            *self._own,
            rows.c.value,
            type_coerce(rows.c.search_key, NullType()),
            type_coerce(rows.c.search_rest, NullType()),
        )
        # MariaDB compares BETWEEN by the collation of the parameters.
        self._elements: Any = select(
            elements.c.session_id,
            elements.c.key,
            type_coerce(elements.c.search_key, NullType()),
            type_coerce(elements.c.search_rest, NullType()),
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
                    parts[own_id, key][tuple(map(_as_bytes, search))] += 1
        return [_judge(row, parts[row[0], row[1]]) for row in found]


def _judge(row: Any, parts: Counter[Any]) -> Stored:
    own_id, key, stored, *search = row
    try:
        wanted, elements = search_key(decode_value(stored)), decode_elements(stored)
    except ValueError:
        return Stored(own_id, key, False, SearchKey(b"", b""), (), False, False)
    has_search = tuple(map(_as_bytes, search)) == wanted
    return Stored(own_id, key, True, wanted, elements, has_search, parts == Counter(elements))


def _as_bytes(stored: Any) -> bytes | None:
    return bytes(stored) if isinstance(stored, (bytes, bytearray, memoryview)) else None


@dataclass
class _Tally:
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, stored: Stored) -> None:
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(f"{quoted(stored.key)} of session {quoted(stored.session_id)}")

    def counted(self, one: str, many: str) -> str:
        return f"1 {one}" if self.count == 1 else f"{self.count} {many}"

    def __str__(self) -> str:
        more = self.count - len(self.examples)
        return ", ".join(self.examples) + (f" and {more} more" if more else "")


def check_values(inspection: Inspection) -> Iterator[Finding]:
    tables = inspection.queried
    if not inspection.complete.issuperset({tables.metadata.name, tables.elements.name}):
        return
    values, last = StoredValues(tables), None
    broken, searched, listed = _Tally(), _Tally(), _Tally()
    while batch := values.batch(inspection.connection, last):
        last = batch[-1]
        for stored in batch:
            if not stored.is_json:
                broken.add(stored)
                continue
            if not stored.has_search:
                searched.add(stored)
            if not stored.has_elements:
                listed.add(stored)
    if broken.count:
        problem = f"{broken.counted('value is', 'values are')} not valid JSON: {broken}"
        yield Finding("error", "values", f"{problem}; set the keys again, or delete them")
    if searched.count:
        problem = searched.counted("search key does", "search keys do")
        problem += f" not match the value, so filters are wrong: {searched}"
        yield Finding("error", "search keys", f"{problem}; {_REWRITE}")
    if listed.count:
        problem = listed.counted("value has", "values have")
        problem += " other list elements than the elements table, so $contains and count_values"
        yield Finding("error", "elements", f"{problem} are wrong: {listed}; {_REWRITE}")

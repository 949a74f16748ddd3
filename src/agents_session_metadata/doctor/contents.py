"""Stored values: whether they are JSON, and whether their search keys and elements fit them.

All are read in batches, in the order of the primary key; memory does not grow with the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, or_, select, type_coerce
from sqlalchemy.types import NullType

from agents_session_metadata.quoting import quoted
from agents_session_metadata.strict_json import parse_json
from agents_session_metadata.values import (
    SearchKey,
    decode_elements,
    key_problem,
    search_key,
    value_problem,
)

from .findings import Finding, Tally
from .inspection import Inspection

BATCH = 200
"""Values that are read at a time."""

_REWRITE = "agent-sessions doctor --rewrite-search-keys rewrites them from the stored values"


class Stored(NamedTuple):
    """One stored value, and what is wrong with it.

    Attributes:
        session_id: The session.
        key: The metadata key.
        problem: Why the value cannot be read, such as `NULL`; None if it can.
        wanted: The search key that belongs to the value.
        elements: The search keys of the list's elements that belong to the value.
        is_found: Whether the stored search key is `wanted`.
        has_elements: Whether the stored elements are `elements`.
    """

    session_id: Any
    key: Any
    problem: str | None
    wanted: SearchKey
    elements: tuple[SearchKey, ...]
    is_found: bool
    has_elements: bool

    @property
    def name(self) -> str:
        """The key and the session, as a finding names them."""
        return f"{quoted(self.key)} of session {quoted(self.session_id)}"

    @property
    def is_wrong(self) -> bool:
        """Whether what the package derives from the value has to be written again."""
        return self.problem is None and not (self.is_found and self.has_elements)


class Contents:
    """The values in the metadata table of one database."""

    def __init__(self, inspection: Inspection) -> None:
        rows, elements = inspection.tables.metadata, inspection.tables.elements
        searched = ("session_id", "key", "search_key", "search_rest")
        columns = (*searched, "value")
        self.is_readable: bool = inspection.is_readable(inspection.expected.metadata, columns)
        # Elements cannot be assigned to lists while ids or keys are not told apart.
        of_elements = inspection.is_readable(inspection.expected.elements, searched)
        self.has_elements: bool = self.is_readable and of_elements
        for table in inspection.core[2:]:
            for name in ("session_id", "key"):
                if self.has_elements and inspection.not_distinguished(table.c[name]):
                    self.has_elements = False
        own_id, key = rows.c.session_id, rows.c.key
        search_key, search_rest = (type_coerce(rows.c[name], NullType()) for name in searched[2:])
        value = inspection.stored_text(rows.c.value)
        self._columns: list[Any] = [own_id, key, value, search_key, search_rest]
        first: Any = (
            select(*self._columns)
            .where(own_id.is_not(None), key.is_not(None))
            .order_by(own_id, key)
            .limit(BATCH)
        )
        after = own_id > bindparam("after_id"), key > bindparam("after_key")
        self._first = first
        self._next = first.where(own_id >= bindparam("after_id"), or_(*after))
        part = [type_coerce(elements.c[name], NullType()) for name in searched[2:]]
        self._elements: Any = select(elements.c.session_id, elements.c.key, *part).where(
            elements.c.session_id >= bindparam("first_id"),
            elements.c.session_id <= bindparam("last_id"),
        )

    def check(self, connection: Connection) -> Iterator[Finding]:
        """Report what cannot be read or imported, and search keys and elements that do not fit."""
        problems: dict[str, Tally] = {}
        wrong_names: dict[str, Tally] = {}
        wrong_keys, wrong_elements = Tally(), Tally()
        for batch in self.batches(connection):
            for stored in batch:
                wrong = key_problem(stored.key)
                if wrong is not None:
                    wrong_names.setdefault(wrong, Tally()).add(stored.name)
                if stored.problem is not None:
                    problems.setdefault(stored.problem, Tally()).add(stored.name)
                    continue
                if not stored.is_found:
                    wrong_keys.add(stored.name)
                if not stored.has_elements:
                    wrong_elements.add(stored.name)
        for problem, tally in sorted(problems.items()):
            values = "1 value is" if tally.count == 1 else f"{tally.count} values are"
            advice = "set the key again, or delete it"
            yield Finding("error", "values", f"{values} {problem}: {tally}; {advice}")
        for wrong, tally in sorted(wrong_names.items()):
            keys = "1 key is" if tally.count == 1 else f"{tally.count} keys are"
            problem = f"{keys} not allowed, because {wrong}: {tally}; rename or delete it by SQL"
            yield Finding("error", "keys", problem)
        if wrong_keys.count:
            keys = (
                "1 search key does"
                if wrong_keys.count == 1
                else f"{wrong_keys.count} search keys do"
            )
            problem = f"{keys} not match the value, so filters are wrong: {wrong_keys}"
            yield Finding("error", "search keys", f"{problem}; {_REWRITE}")
        if wrong_elements.count:
            count = wrong_elements.count
            values = "1 value has" if count == 1 else f"{count} values have"
            problem = (
                f"{values} other list elements than the elements table, so $contains and"
                f" count_values are wrong: {wrong_elements}"
            )
            yield Finding("error", "elements", f"{problem}; {_REWRITE}")

    def has_lists(self, connection: Connection) -> bool:
        """Whether a list with elements is stored."""
        return any(stored.elements for batch in self.batches(connection) for stored in batch)

    def batches(self, connection: Connection) -> Iterator[list[Stored]]:
        """All values that have a session id and a key, in the order of both."""
        batch = self.batch(connection, None)
        while batch:
            yield batch
            batch = self.batch(connection, batch[-1])

    def batch(self, connection: Connection, after: Stored | None) -> list[Stored]:
        """The values after one, or the first ones."""
        if not self.is_readable:
            return []
        if after is None:
            found = connection.execute(self._first)
        else:
            place = {"after_id": after.session_id, "after_key": after.key}
            found = connection.execute(self._next, place)
        return self._judged(connection, found.all())

    def of_keys(
        self, connection: Connection, session_id: str, keys: list[str], *, lock: bool
    ) -> list[Stored]:
        """Some values of one session; with `lock`, their rows are locked."""
        own_id, key = self._columns[:2]
        statement: Any = select(*self._columns).where(own_id == session_id, key.in_(keys))
        if lock:
            statement = statement.with_for_update()
        return self._judged(connection, connection.execute(statement).all())

    def _judged(self, connection: Connection, found: Any) -> list[Stored]:
        parts: dict[Any, Counter[Any]] = {(row[0], row[1]): Counter() for row in found}
        if self.has_elements and found:
            # A list's search key may be wrong, so that all values may have elements.
            ends = {"first_id": found[0][0], "last_id": found[-1][0]}
            of_elements: Any = connection.execute(self._elements, ends)
            for own_id, key, indexed, rest in of_elements:
                if (own_id, key) in parts:
                    parts[own_id, key][_as_bytes(indexed), _as_bytes(rest)] += 1
        return [self._judge(row, parts[row[0], row[1]]) for row in found]

    def _judge(self, row: Any, parts: Counter[Any]) -> Stored:
        own_id, key, value, *search = row
        problem, wanted, elements = _decode(value)
        is_found = tuple(map(_as_bytes, search)) == wanted
        has_elements = not self.has_elements or parts == Counter(map(tuple, elements))
        return Stored(own_id, key, problem, wanted, elements, is_found, has_elements)


def _decode(stored: Any) -> tuple[str | None, SearchKey, tuple[SearchKey, ...]]:
    """A stored text's problem, and the search keys that belong to it if there is none."""
    nothing = SearchKey(b"", b"")
    if stored is None:
        return "NULL", nothing, ()
    try:
        text = bytes(stored).decode() if not isinstance(stored, str) else stored
        value = parse_json(text, duplicates=True)
        if value_problem(value) is not None:
            return "not valid JSON", nothing, ()
        return None, search_key(value), decode_elements(text)
    except (ValueError, TypeError, RecursionError, OverflowError):
        return "not valid JSON", nothing, ()


def _as_bytes(stored: Any) -> bytes | None:
    is_bytes = isinstance(stored, (bytes, bytearray, memoryview))
    return bytes(stored) if is_bytes else None

"""What several pages read: the facets of a list, and the sessions that a list of ids names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agents_session_metadata import keys
from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.errors import CorruptMetadataError
from agents_session_metadata.query.walks import Reader, read_sessions
from agents_session_metadata.reports.values import read_values
from agents_session_metadata.types import SessionInfo

from .view import FACETS, View

SAMPLE: Final = 1_000
"""The number of sessions that facets and lists of most frequent values count."""
_LONGEST_FACET: Final = 8


def ignore(_: CorruptMetadataError) -> None:
    """Leave out a stored value that is not valid JSON."""


@dataclass(frozen=True)
class Facets:
    """The facets of a list.

    Attributes:
        groups: The key, heading, and values of each facet with their count and whether they are
            chosen.
        number: The number of sessions that were counted.
        complete: Whether these are all sessions of the list.
        sample: The number of sessions that are counted at most.
    """

    groups: list[tuple[str, str, list[tuple[Any, int, bool]]]]
    number: int
    complete: bool
    sample: int


async def read_facets(catalog: SessionCatalog, view: View) -> Facets:
    """Count the values of the newest sessions of a list."""
    store, sample = catalog._store, SAMPLE
    condition = store.condition(view.where)

    def read(reader: Reader) -> tuple[list[str], Mapping[str, Counter[Any]]]:
        ids = reader.ids(condition, sample + 1, existing=False)
        queries = reader.queries
        found = read_values(
            reader.connection,
            queries.tables,
            queries.dialect,
            ids[:sample],
            [*FACETS],
            lambda statement, column: store.question(queries, statement, column),
        )
        return ids, {key: _counted(values) for key, values in found.items()}

    ids, counts = await read_sessions(store.database, read)
    number = min(len(ids), sample)
    return Facets(list(_groups(counts, number, view)), number, len(ids) <= sample, sample)


def _counted(values: Iterable[tuple[Any, int]]) -> Counter[Any]:
    """How many sessions have each text, as their value or in their list."""
    counts: Counter[Any] = Counter()
    for value, number in values:
        elements = value if isinstance(value, list) else [value]
        for each in {each for each in elements if isinstance(each, str) and each}:
            counts[each] += number
    return counts


def _groups(
    found: Mapping[str, Counter[Any]], number: int, view: View
) -> Iterator[tuple[str, str, list[tuple[Any, int, bool]]]]:
    chosen = dict(view.chosen)
    for key, heading in FACETS.items():
        counts = found.get(key, Counter())
        most = sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:_LONGEST_FACET]
        values = [(each, count, False) for each, count in most]
        if key in chosen:
            count = counts.get(chosen[key], 0) if isinstance(chosen[key], str) else 0
            others = [each for each in values if each[0] != chosen[key]]
            values = [(chosen[key], count or number, True)]
            values += others if key == keys.TAGS else []
        if values:
            yield key, heading, values


async def read_named(catalog: SessionCatalog, ids: Iterable[str]) -> dict[str, SessionInfo]:
    """The titles, owners and agents of at most a page of sessions, by id."""
    wanted = list(dict.fromkeys(ids))
    if not wanted:
        return {}
    found = await catalog.list_sessions(
        {"$session_id": {"$in": wanted}},
        limit=len(wanted),
        keys=[keys.TITLE, keys.OWNER_ID, keys.AGENT],
        preview=True,
        on_corrupt=ignore,
    )
    return {info.session_id: info for info in found.sessions}

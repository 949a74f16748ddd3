"""Queries that several pages share: the facets of a list, and sessions by their ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agents_session_metadata import keys
from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.errors import CorruptMetadataError
from agents_session_metadata.query.pages import Reader, read_sessions
from agents_session_metadata.types import SessionInfo
from agents_session_metadata.usage.values import read_values

from .view import FACETS, View

SAMPLE: Final = 1_000
"""The number of sessions that facets and lists of most frequent values count."""
_LONGEST_FACET: Final = 8


def ignore(_: CorruptMetadataError) -> None:
    """Leave out a stored value that is not valid JSON."""


@dataclass(frozen=True)
class Facets:
    """The facets of a list, counted in its newest `number` sessions, at most `sample`.

    `groups` contains the key, the heading, and the values of each facet, with their count and True
    if they are chosen. `complete` is True if all sessions of the list were counted.
    """

    groups: list[tuple[str, str, list[tuple[Any, int, bool]]]]
    number: int
    complete: bool
    sample: int


async def read_facets(catalog: SessionCatalog, view: View) -> Facets:
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
    """Returns the number of sessions per text, as their value or an element of their list."""
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
    """Reads titles, owners and agents by session id. The ids must fit on one page."""
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

"""What several pages read: the facets of a list, and the sessions that a list of ids names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from agents_session_metadata import keys
from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.errors import CorruptMetadataError
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
    found = await catalog.list_sessions(
        view.where, limit=SAMPLE, keys=list(FACETS), on_corrupt=ignore
    )
    groups = list(_groups(found.sessions, view))
    return Facets(groups, len(found.sessions), found.next_cursor is None, SAMPLE)


def _groups(
    infos: list[SessionInfo], view: View
) -> Iterator[tuple[str, str, list[tuple[Any, int, bool]]]]:
    chosen = dict(view.chosen)
    for key, heading in FACETS.items():
        counts: Counter[Any] = Counter()
        for info in infos:
            value = info.metadata.get(key)
            elements = value if isinstance(value, list) else [value]
            counts.update({each for each in elements if isinstance(each, str) and each})
        most = sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:_LONGEST_FACET]
        values = [(each, count, False) for each, count in most]
        if key in chosen:
            count = counts.get(chosen[key], 0) if isinstance(chosen[key], str) else 0
            others = [each for each in values if each[0] != chosen[key]]
            values = [(chosen[key], count or len(infos), True)]
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

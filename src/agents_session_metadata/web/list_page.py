"""The list of sessions: its state, which is in the URL, its facets, and its page."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from agents_session_metadata import keys
from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.errors import CorruptMetadataError
from agents_session_metadata.query.pages import Reader, read_sessions
from agents_session_metadata.text import strict_json
from agents_session_metadata.types import SessionInfo
from agents_session_metadata.usage.statistics import read_values

from .call import Call, Refused

FACETS: Final = {
    keys.STATUS: "Status",
    keys.AGENT: "Agent",
    keys.OWNER_ID: "Owner",
    keys.TAGS: "Tags",
}
"""The keys whose values can be chosen with one click, with their headings."""
ORDERS: Final = {
    "-updated_at": "Last active",
    "-created_at": "Newest",
    "-pinned": "Pinned first",
    f"-{keys.COST}": "Cost",
    keys.TITLE: "Title",
}
SAMPLE: Final = 1_000
"""The number of sessions that facets and lists of most frequent values count."""
_PAGE: Final = 25
_LONGEST_FACET: Final = 8
_LONGEST_FILTER: Final = 4_000
_LONGEST_TRAIL: Final = 10
_LISTED: Final = (
    keys.TITLE,
    keys.OWNER_ID,
    keys.AGENT,
    keys.STATUS,
    keys.PHASE,
    keys.TAGS,
    keys.COST,
    keys.PINNED,
    keys.ARCHIVED,
)


@dataclass(frozen=True)
class View:
    """The filter, the order and the position of a list of sessions.

    `text` is the filter as it was typed. `trail` contains the cursors of the previous pages, oldest
    first; that of the first page is the empty string.
    """

    text: str = ""
    chosen: tuple[tuple[str, Any], ...] = ()
    order: str = "-updated_at"
    cursor: str | None = None
    trail: tuple[str, ...] = ()

    @classmethod
    def of(cls, query: Mapping[str, str]) -> View:
        text = query.get("filter", "").strip()
        if len(text) > _LONGEST_FILTER:
            raise Refused(400, f"The filter is longer than {_LONGEST_FILTER:,} characters.")
        order = query.get("order") or "-updated_at"
        if order not in ORDERS:
            raise Refused(400, f"The order must be one of {', '.join(ORDERS)}.")
        trail = query.get("trail")
        return cls(
            text,
            tuple((key, read_value(query[key])) for key in FACETS if query.get(key)),
            order,
            query.get("cursor") or None,
            () if trail is None else tuple(trail.split("."))[-_LONGEST_TRAIL:],
        )

    @property
    def conditions(self) -> list[dict[str, Any]]:
        chosen = [_condition(key, key == keys.TAGS, value) for key, value in self.chosen]
        return chosen + parse_filter(self.text)

    @property
    def where(self) -> dict[str, Any] | None:
        parts = self.conditions
        return {"$and": parts} if len(parts) > 1 else parts[0] if parts else None

    def parameters(self) -> dict[str, str]:
        given = {
            "filter": self.text,
            **{key: written_value(value) for key, value in self.chosen},
            "order": "" if self.order == "-updated_at" else self.order,
            "cursor": self.cursor or "",
        }
        found = {name: value for name, value in given.items() if value}
        return {**found, "trail": ".".join(self.trail)} if self.trail else found

    def query(self) -> str:
        return f"?{urlencode(found)}" if (found := self.parameters()) else ""

    def first(self, **changes: Any) -> View:
        return replace(self, **{"cursor": None, "trail": (), **changes})

    def older(self, cursor: str) -> View:
        trail = (*self.trail, self.cursor or "")[-_LONGEST_TRAIL:]
        return replace(self, cursor=cursor, trail=trail)

    def newer(self) -> View | None:
        """Returns the previous page; None if its cursor is not in the trail."""
        if not self.trail:
            return None
        return replace(self, cursor=self.trail[-1] or None, trail=self.trail[:-1])

    def choosing(self, key: str, value: Any) -> View:
        others = tuple(each for each in self.chosen if each[0] != key)
        return self.first(chosen=(*others, (key, value)))

    def without(self, key: str) -> View:
        return self.first(chosen=tuple(each for each in self.chosen if each[0] != key))


def parse_filter(text: str) -> list[dict[str, Any]]:
    """Parse a filter that a person typed: JSON, or `key=value` and `key:element`."""
    if not text:
        return []
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise Refused(400, "The filter begins with { and is not valid JSON.") from None
        return [found]
    try:
        words = shlex.split(text)
    except ValueError:
        raise Refused(400, "The filter has a quote that is not closed.") from None
    return [_word(word) for word in words]


def _word(word: str) -> dict[str, Any]:
    places = [at for sign in "=:" if (at := word.find(sign)) > 0]
    if not places:
        raise Refused(
            400,
            "Write a filter as key=value, as key:element for lists, or as JSON. "
            "Examples: owner_id=u1 tags:food",
        )
    at = min(places)
    return _condition(word[:at], word[at] == ":", read_value(word[at + 1 :]))


def _condition(key: str, in_list: bool, value: Any) -> dict[str, Any]:
    return {key: {"$contains" if in_list else "$eq": value}}


def read_value(text: str) -> Any:
    try:
        return strict_json(text, duplicates=True)
    except ValueError:
        return text


def written_value(value: Any) -> str:
    """Returns a text that `read_value` reads as this value, even if a form changes line breaks."""
    if isinstance(value, str) and value.isprintable() and read_value(value) == value:
        return value
    return json.dumps(value)


def ignore(_: CorruptMetadataError) -> None:
    """Leave out a stored value that is not valid JSON."""


@dataclass(frozen=True)
class Facets:
    """The facets of a list, counted in its newest `number` sessions, at most `SAMPLE`.

    `groups` contains the key, the heading, and the values of each facet, with their count and True
    if they are chosen. `complete` is True if all sessions of the list were counted.
    """

    groups: list[tuple[str, str, list[tuple[Any, int, bool]]]]
    number: int
    complete: bool


async def read_facets(catalog: SessionCatalog, view: View) -> Facets:
    store, sample = catalog._store, SAMPLE
    condition = store.condition(view.where)

    def read(reader: Reader) -> tuple[list[str], Mapping[str, Counter[Any]]]:
        ids = reader.ids(condition, sample + 1)
        # The number of sessions per text, as their value or an element of their list.
        counts: dict[str, Counter[Any]] = {key: Counter() for key in FACETS}
        connection, queries = reader.connection, reader.queries
        for key, value, number in read_values(store, connection, queries, ids[:sample], [*FACETS]):
            elements = value if isinstance(value, list) else [value]
            for each in {each for each in elements if isinstance(each, str) and each}:
                counts[key][each] += number
        return ids, counts

    ids, counts = await read_sessions(store.database, read)
    number = min(len(ids), sample)
    return Facets(list(_groups(counts, number, view)), number, len(ids) <= sample)


def _groups(
    found: Mapping[str, Counter[Any]], number: int, view: View
) -> Iterator[tuple[str, str, list[tuple[Any, int, bool]]]]:
    chosen = dict(view.chosen)
    for key, heading in FACETS.items():
        counts = found[key]
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


async def sessions(call: Call) -> Response:
    view = View.of(call.query)
    # What contains no sign of a filter may be the id of a session.
    if (
        view.text
        and not set(view.text) & set("{=:\"'")
        and await call.catalog.get_session(view.text, keys=[]) is not None
    ):
        return call.redirect("/session", id=view.text)
    corrupt: list[CorruptMetadataError] = []
    where = view.where
    page = await call.catalog.list_sessions(
        where,
        order_by=view.order,
        limit=_PAGE,
        cursor=view.cursor,
        keys=_LISTED,
        count_items=True,
        preview=True,
        on_corrupt=corrupt.append,
    )
    facets = await read_facets(call.catalog, view)
    return call.render(
        "sessions.html",
        view=view,
        orders=ORDERS,
        sessions=page.sessions,
        corrupt={each.session_id for each in corrupt},
        older=view.older(page.next_cursor) if page.next_cursor else None,
        newer=view.newer(),
        facets=facets,
    )

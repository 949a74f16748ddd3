"""The state of a list of sessions. All of it is in the URL."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from agents_session_metadata import keys
from agents_session_metadata.text import strict_json

from .security import Refused

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
_LONGEST_FILTER: Final = 4_000
_LONGEST_TRAIL: Final = 10


@dataclass(frozen=True)
class View:
    """The filter, the order and the position of a list of sessions.

    `text` is the filter as it was typed. `trail` contains the cursors of the previous pages, oldest
    first; that of the first page is the empty string. `counted` requests the number of all matches.
    """

    text: str = ""
    chosen: tuple[tuple[str, Any], ...] = ()
    order: str = "-updated_at"
    cursor: str | None = None
    trail: tuple[str, ...] = ()
    counted: bool = False

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
            query.get("count") == "all",
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
            "count": "all" if self.counted else "",
        }
        found = {name: value for name, value in given.items() if value}
        return {**found, "trail": ".".join(self.trail)} if self.trail else found

    def query(self) -> str:
        return f"?{urlencode(found)}" if (found := self.parameters()) else ""

    def first(self, **changes: Any) -> View:
        return replace(self, **{"cursor": None, "trail": (), "counted": False, **changes})

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

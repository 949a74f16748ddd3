"""The list of sessions: its state, which is in the URL, its search, its facets, and its page."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timezone
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.exceptions import HTTPException
from starlette.responses import Response

from agents_session_metadata import SessionCatalog, check_filter, filter_hint, keys
from agents_session_metadata.errors import (
    CorruptMetadataError,
    InvalidCursorError,
    TablesMissingError,
)
from agents_session_metadata.text import strict_json
from agents_session_metadata.types import JSONObject, SearchHit, SearchPage, SessionInfo

from .call import PageCall

FACETS = {
    keys.STATUS: "Status",
    keys.AGENT: "Agent",
    keys.OWNER_ID: "Owner",
    keys.TAGS: "Tags",
}
"""The keys whose values can be chosen with one click, with their headings."""
ORDERS = {
    "-updated_at": "Last active",
    "-created_at": "Newest",
    "-pinned": "Pinned first",
    f"-{keys.COST}": "Highest cost",
    keys.TITLE: "Title",
}
"""Those that can be chosen by name. A click on the heading of a column chooses another one."""
SAMPLE = 1_000
"""The number of sessions that facets count."""
_PAGE = 25
_HITS = 100
_LONGEST_FACET = 8
_LONGEST_FILTER = 4_000
_LONGEST_TRAIL = 10
_SAMPLED_KEYS = 3
"""The number of sessions whose keys are suggested for the filter."""
_MOST_SUGGESTED = 60
_HAS_ERRORS: JSONObject = {
    "$or": [
        {keys.ERROR_COUNT: {"$gte": 1}},
        {keys.RUN: "failed"},
        {keys.STATUS: "failed"},
    ]
}
_LISTED = (
    keys.TITLE,
    keys.OWNER_ID,
    keys.AGENT,
    keys.STATUS,
    keys.PHASE,
    keys.RUN,
    keys.RUNS,
    keys.TAGS,
    keys.COST,
    keys.PINNED,
    keys.ARCHIVED,
    keys.FORKED_FROM,
)


@dataclass(frozen=True)
class ListState:
    """The search, the filter, the order and the position of a list.

    `q` is the search and `text` the filter, both as they were typed. `state` is that of the runs of
    a list, or empty. `trail` contains the cursors of the previous pages, oldest first; that of the
    first page is the empty string. `statuses` has the filter of each status that is asked for.
    """

    q: str = ""
    text: str = ""
    chosen: tuple[tuple[str, Any], ...] = ()
    order: str = "-updated_at"
    state: str = ""
    cursor: str | None = None
    trail: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    errors: str = ""
    statuses: Mapping[str, JSONObject] = field(default_factory=dict)

    @classmethod
    async def read(cls, call: PageCall) -> ListState:
        """Returns the state in the URL, after looking up what has the chosen status now."""
        view = cls.of(call.query)
        if view.problem:
            return view
        wanted = filter(None, map(_status_in, view._words))
        found = {each: await call.catalog.status_filter(each) for each in wanted}
        return replace(view, statuses=found)

    @classmethod
    def of(cls, query: Mapping[str, str]) -> ListState:
        trail = query.get("trail")
        return cls(
            query.get("q", "").strip(),
            query.get("filter", "").strip(),
            tuple((key, read_value(query[key])) for key in FACETS if query.get(key)),
            query.get("order") or "-updated_at",
            query.get("run", ""),
            query.get("cursor") or None,
            () if trail is None else tuple(trail.split("."))[-_LONGEST_TRAIL:],
            _day(query.get("since", "")),
            _day(query.get("until", "")),
            "1" if query.get("errors") else "",
        )

    @cached_property
    def problem(self) -> str:
        """Describes the mistake in the filter, if there is one."""
        try:
            check_filter(self.where)
        except ValueError as error:
            return sentence(str(error))
        return ""

    @property
    def hint(self) -> str:
        """What a filter that matches nothing may have meant."""
        found = filter_hint(self.where)
        return sentence(found) if found else ""

    @property
    def _words(self) -> list[JSONObject]:
        """The conditions of facets, and those that were typed as words."""
        chosen = [_condition(key, key == keys.TAGS, value) for key, value in self.chosen]
        return chosen + ([] if self.text.startswith("{") else parse_filter(self.text))

    @property
    def conditions(self) -> list[JSONObject]:
        found = [self.statuses.get(_status_in(each) or "", each) for each in self._words]
        found += parse_filter(self.text) if self.text.startswith("{") else []
        found += [_HAS_ERRORS] if self.errors else []
        times: dict[str, Any] = {}
        if self.since:
            times["$gte"] = _time(self.since, time.min)
        if self.until:
            times["$lte"] = _time(self.until, time.max)
        return [*found, *([{"$updated_at": times}] if times else [])]

    @property
    def where(self) -> JSONObject | None:
        parts = self.conditions
        return {"$and": parts} if len(parts) > 1 else parts[0] if parts else None

    def parameters(self) -> dict[str, str]:
        given = {
            "q": self.q,
            "filter": self.text,
            **{key: written_value(value) for key, value in self.chosen},
            "order": "" if self.order == "-updated_at" else self.order,
            "run": self.state,
            "since": self.since,
            "until": self.until,
            "errors": self.errors,
            "cursor": self.cursor or "",
        }
        found = {name: value for name, value in given.items() if value}
        return {**found, "trail": ".".join(self.trail)} if self.trail else found

    def query(self) -> str:
        return f"?{urlencode(found)}" if (found := self.parameters()) else ""

    def first(self, **changes: Any) -> ListState:
        return replace(self, **{"cursor": None, "trail": (), **changes})

    def older(self, cursor: str) -> ListState:
        trail = (*self.trail, self.cursor or "")[-_LONGEST_TRAIL:]
        return replace(self, cursor=cursor, trail=trail)

    def newer(self) -> ListState | None:
        """Returns the previous page; None if its cursor is not in the trail."""
        if not self.trail:
            return None
        return replace(self, cursor=self.trail[-1] or None, trail=self.trail[:-1])

    def sorting(self, key: str, first: str = "") -> ListState:
        """Sorts by a key, in the other direction if the list is sorted by it."""
        orders = [key, f"-{key}"] if first != "-" else [f"-{key}", key]
        return self.first(order=orders[self.order == orders[0]])

    def direction(self, key: str) -> str:
        return {key: "ascending", f"-{key}": "descending"}.get(self.order, "")

    def choosing(self, key: str, value: Any) -> ListState:
        others = tuple(each for each in self.chosen if each[0] != key)
        return self.first(chosen=(*others, (key, value)))

    def without(self, key: str) -> ListState:
        return self.first(chosen=tuple(each for each in self.chosen if each[0] != key))


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def search_problem(error: Exception) -> str:
    """Returns why a search is refused, without advice for programs."""
    problem, can_create, _ = str(error).partition("; create ")
    return sentence(f"{problem}; an operator can create it" if can_create else problem)


def parse_filter(text: str) -> list[JSONObject]:
    """Parse a filter that a person typed: JSON, or `key=value` and `key:element`.

    Raises:
        ValueError: If it is neither.
    """
    if len(text) > _LONGEST_FILTER:
        raise ValueError(f"the filter is longer than {_LONGEST_FILTER:,} characters")
    if text.startswith("{"):
        try:
            return [json.loads(text)]
        except (ValueError, RecursionError):
            raise ValueError("the filter begins with { and is not valid JSON") from None
    try:
        words = shlex.split(text)
    except ValueError:
        raise ValueError("the filter has a quote that is not closed") from None
    return [_word(word) for word in words]


def _word(word: str) -> JSONObject:
    places = [at for sign in "=:" if (at := word.find(sign)) > 0]
    if not places:
        raise ValueError(
            "write a filter as key=value, as key:element for lists, or as JSON, such as "
            "owner_id=u1 tags:food"
        )
    at = min(places)
    return _condition(word[:at], word[at] == ":", read_value(word[at + 1 :]))


def _condition(key: str, in_list: bool, value: Any) -> JSONObject:
    return {key: {"$contains" if in_list else "$eq": value}}


def _status_in(condition: JSONObject) -> str | None:
    """Returns the status that a condition asks for."""
    asked: Any = condition.get(keys.STATUS)
    status = asked.get("$eq") if isinstance(asked, dict) else None
    return status if isinstance(status, str) else None


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat() if text else ""
    except ValueError:
        raise HTTPException(400, "Write a day as 2026-01-31.") from None


def _time(day: str, at: time) -> str:
    return datetime.combine(date.fromisoformat(day), at, timezone.utc).isoformat()


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


def back_to(call: PageCall, path: str) -> str:
    """Returns the address of the list that a form was on, whose query is in the form."""
    query = parse_qsl(call.form.get("back", "").removeprefix("?"), keep_blank_values=True)
    return call.url(path, **ListState.of(dict(query)).parameters())


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


async def read_facets(
    catalog: SessionCatalog, view: ListState, found: Sequence[str] | None = None
) -> Facets:
    """Count the values of a list, or of sessions that a search has `found`."""
    where = view.where if found is None else {"$session_id": {"$in": list(found[:SAMPLE])}}
    read = [*FACETS, keys.RUN, keys.RUNS]
    page = await catalog.list_sessions(where, limit=SAMPLE, keys=read, on_corrupt=ignore)
    statuses = await catalog.statuses(page)
    counts: dict[str, Counter[Any]] = {key: Counter() for key in FACETS}
    for info in page:
        shown = {key: value for key, value in info.metadata.items() if key in FACETS}
        for key, value in {**shown, keys.STATUS: statuses.get(info.session_id)}.items():
            elements = value if isinstance(value, list) else [value]
            counts[key].update({each for each in elements if isinstance(each, str) and each})
    number = len(page) if found is None else min(len(found), SAMPLE)
    complete = page.next_cursor is None if found is None else len(found) <= SAMPLE
    return Facets(list(_groups(counts, number, view)), number, complete)


def _groups(
    found: Mapping[str, Counter[Any]], number: int, view: ListState
) -> Iterator[tuple[str, str, list[tuple[Any, int, bool]]]]:
    chosen = dict(view.chosen)
    for key, heading in FACETS.items():
        most = sorted(found[key].items(), key=lambda each: (-each[1], each[0]))[:_LONGEST_FACET]
        values = [(each, count, False) for each, count in most]
        if key in chosen:
            # Every session of the list has the chosen value; a list of tags has others beside it.
            others = [each for each in values if each[0] != chosen[key]]
            values = [(chosen[key], number, True), *others]
        if values:
            yield key, heading, values


async def _suggestions(catalog: SessionCatalog, view: ListState, facets: Facets) -> list[str]:
    """Returns words for the filter: values of facets, and keys of the newest sessions."""
    newest = await catalog.list_sessions(view.where, limit=_SAMPLED_KEYS, on_corrupt=ignore)
    words = [
        f"{key}{':' if key == keys.TAGS else '='}{shlex.quote(written_value(value))}"
        for key, _, values in facets.groups
        for value, _, _ in values
    ]
    stored = sorted({key for info in newest for key in info.metadata})
    words += [f"{key}=" for key in stored if key.isidentifier() and key not in FACETS]
    return [each for each in words if len(each) <= 80][:_MOST_SUGGESTED]


async def read_infos(
    catalog: SessionCatalog, ids: Iterable[str], **options: Any
) -> dict[str, SessionInfo]:
    """Reads sessions by id, as a list shows them. The ids must fit on one page."""
    wanted = list(dict.fromkeys(ids))
    if not wanted:
        return {}
    where = {"$session_id": {"$in": wanted}}
    options = {"on_corrupt": ignore, **options, "limit": len(wanted)}
    found = await catalog.list_sessions(where, keys=_LISTED, preview=True, **options)
    return {info.session_id: info for info in found.sessions}


async def _search(call: PageCall, view: ListState) -> tuple[SearchPage, list[str]]:
    """Returns a page of sessions with their newest hits, and the ids of the newest matches."""

    async def page(limit: int, cursor: str | None) -> SearchPage:
        return await call.catalog.search(
            view.q, view.where, limit=limit, cursor=cursor, by_session=True
        )

    shown = await page(_PAGE, view.cursor)
    ids = list[str]()
    after: str | None = None
    while len(ids) <= SAMPLE:
        more = await page(_HITS, after)
        ids += [hit.session_id for hit in more.hits]
        after = more.next_cursor
        if after is None:
            break
    return shown, ids


async def events(call: PageCall) -> Response:
    """Follow the sessions that a list can show, or one session. The pages read themselves again."""
    where = (await ListState.read(call)).where
    if session_id := call.query.get("id"):
        where = {"$session_id": {"$in": [session_id]}}
    return call.app.streams.follow(call.catalog, where, lambda _: {}, ignore)


def _refused(call: PageCall, view: ListState, problem: str = "") -> Response:
    """Shows what was typed, with the problem of the filter or of the search beside it."""
    return call.render(
        "sessions.html", 400, view=view, orders=ORDERS, problem=problem, suggestions=()
    )


async def sessions(call: PageCall) -> Response:
    view = await ListState.read(call)
    if view.problem:
        # What contains no sign of a filter may be the id of a session.
        is_id = not set(view.text) & set("{=:\"'")
        if is_id and await call.catalog.get_session(view.text, keys=[]) is not None:
            return call.redirect("/session", id=view.text)
        return _refused(call, view)
    corrupt: list[CorruptMetadataError] = []
    hits: dict[str, SearchHit] = {}
    ids: list[str] | None = None
    options: dict[str, Any] = {"count_items": True, "on_corrupt": corrupt.append}
    if view.q:
        try:
            found, ids = await _search(call, view)
        except InvalidCursorError:
            raise
        except (TablesMissingError, ValueError) as error:
            return _refused(call, view, search_problem(error))
        hits = {hit.session_id: hit for hit in found.hits}
        infos = await read_infos(call.catalog, hits, **options)
        listed, next_cursor = [infos[each] for each in hits if each in infos], found.next_cursor
        complete = found.complete
    else:
        try:
            page = await call.catalog.list_sessions(
                view.where,
                order_by=view.order,
                limit=_PAGE,
                cursor=view.cursor,
                keys=_LISTED,
                preview=True,
                **options,
            )
        except InvalidCursorError:
            raise
        except ValueError as error:
            raise HTTPException(400, sentence(str(error))) from None
        listed, next_cursor, complete = page.sessions, page.next_cursor, True
    facets = await read_facets(call.catalog, view, ids)
    return call.render(
        "sessions.html",
        view=view,
        orders=ORDERS,
        problem="",
        sessions=listed,
        statuses=await call.catalog.statuses(listed),
        used={key for each in listed for key in each.metadata},
        suggestions=await _suggestions(call.catalog, view, facets),
        has_form=call.allow_write and bool(listed),
        hits=hits,
        complete=complete,
        corrupt={each.session_id for each in corrupt},
        events=call.url("/events", **view.first().parameters()),
        older=view.older(next_cursor) if next_cursor else None,
        newer=view.newer(),
        facets=facets,
    )

"""The pages that read: the list of sessions, one session, and its JSON."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from starlette.responses import Response

from agents_session_metadata import keys
from agents_session_metadata.errors import CorruptMetadataError
from agents_session_metadata.types import SessionInfo

from . import charts
from .call import Call
from .security import Refused
from .turns import turns
from .view import FACETS, ORDERS, View

SAMPLE: Final = 1_000
"""The number of sessions that facets and charts count."""
_PAGE: Final = 25
_ITEMS: Final = 100
_COUNT_SECONDS: Final = 20.0
_LONGEST_FACET: Final = 8
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


def no_session() -> Refused:
    """The answer for a session that does not exist, and for one outside the scope."""
    return Refused(404, "The session does not exist.")


async def sessions(call: Call) -> Response:
    """The list of sessions."""
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
    sample = await call.catalog.list_sessions(
        where, limit=SAMPLE, keys=list(FACETS), on_corrupt=ignore
    )
    complete = sample.next_cursor is None
    total: int | None = len(sample.sessions) if complete else None
    too_many = False
    if view.counted and not complete:
        try:
            total = await asyncio.wait_for(call.catalog.count_sessions(where), _COUNT_SECONDS)
        except asyncio.TimeoutError:
            too_many = True
    return call.render(
        "sessions.html",
        view=view,
        orders=ORDERS,
        sessions=page.sessions,
        corrupt={each.session_id for each in corrupt},
        older=view.older(page.next_cursor) if page.next_cursor else None,
        newer=view.newer(),
        facets=list(_facets(sample.sessions, view)),
        sample=SAMPLE,
        complete=complete,
        total=total,
        too_many=too_many,
    )


def ignore(_: CorruptMetadataError) -> None:
    """Leave out a stored value that is not valid JSON."""


def _facets(
    found: Iterable[SessionInfo], view: View
) -> Iterable[tuple[str, str, list[tuple[Any, int, bool]]]]:
    """The facets: key, heading, and values with their count and whether they are chosen."""
    infos = list(found)
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


async def load_session(call: Call) -> tuple[SessionInfo, list[str]]:
    """The session that the address names, and the keys whose values are not valid JSON.

    Raises:
        Refused: If there is no such session.
    """
    corrupt: list[CorruptMetadataError] = []
    info = await call.catalog.get_session(
        call.session_id(), count_items=True, preview=True, on_corrupt=corrupt.append
    )
    if info is None:
        raise no_session()
    return info, [each.key for each in corrupt]


async def session(call: Call) -> Response:
    """One session: its conversation and metadata."""
    info, corrupt = await load_session(call)
    newest = call.query.get("from") == "end"
    cursor = call.query.get("cursor") or None
    page = await call.catalog.list_items(
        info.session_id,
        order_by="-item_id" if newest else "item_id",
        limit=_ITEMS,
        cursor=cursor,
    )
    items = page.items[::-1] if newest else page.items
    # Nothing is newer than the newest page: its last item is the history's.
    last = items[-1].item_id if newest and cursor is None and items else None
    if not newest and page.next_cursor is None and items:
        last = items[-1].item_id
    return call.render(
        "session.html",
        info=info,
        corrupt=corrupt,
        turns=turns(items),
        shown_items=len(items),
        newest=newest,
        cursor=cursor,
        next_cursor=page.next_cursor,
        last_item=last,
        phases=charts.phases(info),
        has_form=call.allow_write,
    )


async def raw(call: Call) -> Response:
    """The session and a page of its items, as JSON."""
    info, _ = await load_session(call)
    newest = call.query.get("from") == "end"
    page = await call.catalog.list_items(
        info.session_id,
        order_by="-item_id" if newest else "item_id",
        limit=_ITEMS,
        cursor=call.query.get("cursor") or None,
    )
    document = {
        "session_id": info.session_id,
        "created_at": info.created_at.isoformat(),
        "updated_at": info.updated_at.isoformat(),
        "metadata": info.metadata,
        "item_count": info.item_count,
        "items": [
            {
                "item_id": each.item_id,
                "created_at": each.created_at.isoformat(),
                "item": each.item,
            }
            for each in page.items
        ],
        "next_cursor": page.next_cursor,
    }
    # Escaped: a lone surrogate is JSON, but not UTF-8.
    return Response(json.dumps(document, indent=2), media_type="application/json")

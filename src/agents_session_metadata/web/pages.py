"""The pages that read: the list of sessions, one session, and its JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from starlette.responses import Response

from agents_session_metadata import keys
from agents_session_metadata.core.messages import ItemPosition
from agents_session_metadata.errors import CorruptMetadataError
from agents_session_metadata.history.items import find_position, item_cursor
from agents_session_metadata.types import ItemInfo, SessionInfo

from . import charts
from .call import Call
from .reading import read_facets
from .security import Refused
from .turns import turns
from .view import ORDERS, View

_PAGE: Final = 25
_ITEMS: Final = 100
_ITEMS_BEFORE: Final = 20
"""The number of items before the item in the URL."""
_COUNT_SECONDS: Final = 20.0
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
    """Returns the same error for a missing session as for one outside the scope."""
    return Refused(404, "The session does not exist.")


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
    total: int | None = facets.number if facets.complete else None
    too_many = False
    if view.counted and not facets.complete:
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
        facets=facets,
        total=total,
        too_many=too_many,
    )


async def load_session(call: Call) -> tuple[SessionInfo, list[str]]:
    """Returns the session in the URL, and the keys whose values are not valid JSON."""
    corrupt: list[CorruptMetadataError] = []
    info = await call.catalog.get_session(
        call.session_id(), count_items=True, preview=True, on_corrupt=corrupt.append
    )
    if info is None:
        raise no_session()
    return info, [each.key for each in corrupt]


async def session(call: Call) -> Response:
    info, corrupt = await load_session(call)
    item = call.item_id("item", required=False)
    position = None
    if item is not None:
        position = await find_position(call.catalog._store, info.session_id, item)
    newest = position is None and (item is not None or call.query.get("from") == "end")
    cursor = None if item is not None else call.query.get("cursor") or None
    if position is not None:
        items, older, later = await _around(call, info.session_id, position)
    else:
        page = await call.catalog.list_items(
            info.session_id,
            limit=_ITEMS,
            cursor=cursor,
            newest_first=newest,
        )
        items = page.items[::-1] if newest else page.items
        older, later = (page.next_cursor, None) if newest else (None, page.next_cursor)
    return call.render(
        "session.html",
        info=info,
        corrupt=corrupt,
        turns=turns(items),
        item=item,
        item_is_gone=item is not None and position is None,
        newest=newest,
        cursor=cursor,
        older=older,
        later=later,
        phases=charts.phases(info),
        has_form=call.allow_write,
    )


async def _around(
    call: Call, session_id: str, position: ItemPosition
) -> tuple[list[ItemInfo], str | None, str | None]:
    """Returns an item and those around it, and the cursors for older and later items."""
    store = call.catalog._store
    before = await call.catalog.list_items(
        session_id,
        limit=_ITEMS_BEFORE,
        cursor=item_cursor(store, session_id, position, newest_first=True),
        newest_first=True,
    )
    just_before = position._replace(item_id=position.item_id - 1)
    after = await call.catalog.list_items(
        session_id,
        limit=_ITEMS - _ITEMS_BEFORE,
        cursor=item_cursor(store, session_id, just_before, newest_first=False),
    )
    return before.items[::-1] + after.items, before.next_cursor, after.next_cursor


async def raw(call: Call) -> Response:
    info, _ = await load_session(call)
    newest = call.query.get("from") == "end"
    page = await call.catalog.list_items(
        info.session_id,
        limit=_ITEMS,
        cursor=call.query.get("cursor") or None,
        newest_first=newest,
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

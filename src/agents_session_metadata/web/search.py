"""The list in search mode: messages and titles instead of sessions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from agents_session_metadata.errors import InvalidSearchError, TextIndexMissingError
from agents_session_metadata.types import SearchHit, SearchPage, SessionInfo

from .call import Call
from .reading import read_facets, read_named
from .view import View

_PAGE: Final = 20


@dataclass(frozen=True)
class Hit:
    """A hit as the page shows it.

    Attributes:
        found: The hit.
        info: Its session; None if it was deleted in the meantime.
        parts: The snippet in parts, each with whether it is a match.
    """

    found: SearchHit
    info: SessionInfo | None
    parts: list[tuple[str, bool]]


async def page(call: Call, view: View) -> Response:
    """The messages and titles that contain all words, in the sessions of the list."""
    found, problem, missing = SearchPage([], None, complete=True), None, False
    try:
        found = await call.catalog.search(view.search, view.where, limit=_PAGE, cursor=view.cursor)
    except InvalidSearchError as error:
        problem = str(error)
    except TextIndexMissingError:
        missing = True
    named = await read_named(call.catalog, (hit.session_id for hit in found.hits))
    return call.render(
        "search.html",
        400 if problem else 200,
        view=view,
        hits=[Hit(hit, named.get(hit.session_id), list(_parts(hit))) for hit in found.hits],
        complete=found.complete,
        problem=problem,
        missing=missing,
        older=view.older(found.next_cursor) if found.next_cursor else None,
        newer=view.newer(),
        facets=await read_facets(call.catalog, view),
    )


def _parts(hit: SearchHit) -> Iterator[tuple[str, bool]]:
    end = 0
    for start, stop in hit.highlights:
        yield hit.snippet[end:start], False
        yield hit.snippet[start:stop], True
        end = stop
    yield hit.snippet[end:], False

"""The page of runs that work, wait, were interrupted or have failed; decisions, events and Stop."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime, timedelta, timezone
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from agents_session_metadata import SessionCatalog, SessionRuns
from agents_session_metadata.errors import (
    RunInterruptedError,
    SessionBusyError,
    SessionNotFoundError,
)

from .call import PageCall
from .formats import content_of
from .list_page import ListState, back_to, read_infos

STATES = {
    "": "All",
    "waiting": "Waiting",
    "ready": "Decided",
    "running": "Working",
    "interrupted": "Interrupted",
    "failed": "Failed",
}
_PAGE = 25
_MOST_WAITING = 9
_LOOKED_THROUGH = 50
"""Newest items of a session among which the request of its run is looked for."""
_AGAIN = timedelta(minutes=1)
"""The time after a decision in which the same one is a second click, which changes nothing."""
_BYTES = 256 << 10
"""Their size."""


async def count_waiting(catalog: SessionCatalog) -> str:
    """Returns the number of runs that wait, for the navigation; nothing if there are none."""
    page = await SessionRuns(catalog).list("waiting", limit=_MOST_WAITING)
    return f"{len(page.runs) or ''}{'+' if page.next_cursor else ''}"


async def page(call: PageCall) -> Response:
    view = await ListState.read(call)
    if view.state not in STATES:
        raise HTTPException(400, f"The runs must be one of {', '.join(filter(None, STATES))}.")
    if view.problem:
        return call.render("runs.html", 400, view=view, states=STATES)
    status: Any = view.state or None
    found = await SessionRuns(call.catalog).list(
        status, view.where, limit=_PAGE, cursor=view.cursor
    )
    waiting = [run.session_id for run in found.runs if run.pending]
    return call.render(
        "runs.html",
        view=view,
        states=STATES,
        runs=found.runs,
        named=await read_infos(call.catalog, (run.session_id for run in found.runs)),
        requests={each: await _request(call.catalog, each) for each in waiting},
        older=view.older(found.next_cursor) if found.next_cursor else None,
        newer=view.newer(),
        anchor=_anchor,
        events=call.url("/events", **view.first(state="").parameters()),
        has_form=call.allow_write and bool(found.runs),
    )


async def _request(catalog: SessionCatalog, session_id: str) -> str:
    """Returns the newest message of the user, which the calls of a run answer."""
    newest = await catalog.list_items(
        session_id, limit=_LOOKED_THROUGH, newest_first=True, max_bytes=_BYTES
    )
    for info in newest:
        item: Any = info.item
        if isinstance(item, dict) and item.get("role") == "user":
            return content_of(item.get("content"))[0]
    return ""


async def approve(call: PageCall) -> Response:
    return await _decide(call, approve=True, message=None)


async def reject(call: PageCall) -> Response:
    """Reject a call. The model receives the message of the form."""
    message = call.form.get("message", "").strip() or None
    return await _decide(call, approve=False, message=message)


async def _decide(call: PageCall, *, approve: bool, message: str | None) -> Response:
    session_id, call_id = call.session_id(), call.exact("call")
    if not call_id:
        raise HTTPException(400, "The form names no call.")
    by = await call.decided_by()
    try:
        await SessionRuns(call.catalog).decide(
            session_id, call_id, approve=approve, message=message, by=by
        )
    except (SessionBusyError, RunInterruptedError, LookupError) as error:
        if await _is_decided(call.catalog, session_id, call_id, approve):
            return RedirectResponse(_back(call, session_id), 303)
        if not isinstance(error, LookupError):
            raise HTTPException(409, "The run was resumed. Its decisions are final.") from None
        raise HTTPException(
            404,
            "This call does not wait for a decision any more. Its run was resumed or discarded, or "
            "waits for other calls.",
        ) from None
    except ValueError:
        raise HTTPException(
            409, "Several calls of this run have the same id, so none of them can be decided."
        ) from None
    return RedirectResponse(_back(call, session_id), 303)


async def _is_decided(
    catalog: SessionCatalog, session_id: str, call_id: str, approve: bool
) -> bool:
    """True if the first click of a double click has already decided, and the run was resumed."""
    since = datetime.now(timezone.utc) - _AGAIN
    made = await SessionRuns(catalog).decisions(session_id, since=since)
    return any((each.call_id, each.approve) == (call_id, approve) for each in made)


async def discard(call: PageCall) -> Response:
    """Give up a run that does not work."""
    session_id = call.session_id()
    try:
        await SessionRuns(call.catalog).discard(session_id)
    except SessionBusyError:
        raise HTTPException(409, "The run works. Wait for its end.") from None
    return RedirectResponse(_back(call, session_id), 303)


def _back(call: PageCall, session_id: str) -> str:
    """Returns the address of the run on the page that the form was on."""
    if call.form.get("back") == "session":
        return f"{call.url('/session', id=session_id, **{'from': 'end'})}#run"
    return f"{back_to(call, '/runs')}#{_anchor(session_id)}"


def _anchor(session_id: str) -> str:
    """Returns a hash as the name of a run on the page: a session id may contain anything."""
    return f"run-{hashlib.sha256(session_id.encode(errors='replace')).hexdigest()[:16]}"


# ---- the run of a session, on its page ----


async def events(call: PageCall) -> Response:
    """Follow the runs of a session. The page shows texts, and reads itself again for the rest."""
    session_id = call.session_id()
    if await call.catalog.get_session(session_id, keys=[]) is None:
        raise SessionNotFoundError(session_id)
    followed = SessionRuns(call.catalog).follow(session_id, forever=True)
    return call.app.streams.follow_run(call.catalog, _shown(followed))


async def _shown(followed: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Yields what the page needs: of items, it needs to know that there are new ones."""
    async with aclosing(followed):
        try:
            async for event in followed:
                names = {"type", "events", "delta", "status"} & event.keys()
                yield {name: event[name] for name in names}
        except ValueError:  # The run is encrypted.
            yield {"type": "unreadable"}


async def stop(call: PageCall) -> Response:
    """End the run of a session. Nothing happens if it has ended in the meantime."""
    session_id = call.session_id()
    await SessionRuns(call.catalog).cancel(session_id)
    return call.redirect("/session", id=session_id, **{"from": "end"})

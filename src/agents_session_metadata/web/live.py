"""The run of a session on its page: the answer while it is written, and the Stop button."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

from agents_session_metadata import SessionRuns
from agents_session_metadata.errors import SessionNotFoundError
from agents_session_metadata.http.run_routes import RunStream

from .call import PageCall


async def events(call: PageCall) -> Response:
    """Follow the runs of a session. The page shows texts, and reads itself again for the rest."""
    session_id = call.session_id()
    if await call.catalog.get_session(session_id, keys=[]) is None:
        raise SessionNotFoundError(session_id)
    streams = call.options.streams
    scope = streams.scope_of(call.catalog)
    followed = SessionRuns(call.catalog).follow(session_id, forever=True)
    return RunStream(streams, scope, _shown(followed))


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

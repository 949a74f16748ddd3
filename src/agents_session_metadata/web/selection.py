"""What can be done with the selected sessions of a list, of which there are at most a page."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response, StreamingResponse

from agents_session_metadata import keys
from agents_session_metadata.errors import SessionNotFoundError
from agents_session_metadata.types import Metadata
from agents_session_metadata.values import id_problem

from .call import PageCall
from .list_page import back_to, read_infos


def _selected(call: PageCall) -> list[str]:
    if not call.selected:
        raise HTTPException(400, "No session is selected.")
    return call.selected


async def _change(call: PageCall, change: Callable[[Metadata], None]) -> Response:
    """Changes each session. Those that do not exist any more are left out."""
    for session_id in _selected(call):
        if id_problem(session_id) is None:
            with suppress(SessionNotFoundError):
                await call.catalog.edit_metadata(session_id, change, must_exist=True)
    return RedirectResponse(back_to(call, "/"), 303)


async def tag(call: PageCall) -> Response:
    """Add a tag. A value of `tags` that is not a list stays as it is."""
    added = call.form.get("tag", "").strip()
    if not added:
        raise HTTPException(400, "Write the tag to add.")

    def change(metadata: Metadata) -> None:
        tags: Any = metadata.get(keys.TAGS, [])
        if isinstance(tags, list) and added not in tags:
            metadata[keys.TAGS] = [*tags, added]

    return await _change(call, change)


async def archive(call: PageCall) -> Response:
    return await _change(call, lambda metadata: metadata.update({keys.ARCHIVED: True}))


async def export(call: PageCall) -> Response:
    """Return the records that `SessionCatalog.import_sessions` takes, one per line."""
    wanted = {"$session_id": {"$in": _selected(call)}}

    async def lines() -> AsyncIterator[str]:
        async for record in call.catalog.export_sessions(wanted):
            yield f"{json.dumps(record)}\n"

    headers = {"Content-Disposition": 'attachment; filename="sessions.jsonl"'}
    return StreamingResponse(lines(), media_type="application/jsonl", headers=headers)


async def delete(call: PageCall) -> Response:
    """Delete the sessions, after a page that asks."""
    ids = _selected(call)
    if not call.form.get("sure"):
        found = await read_infos(call.catalog, ids)
        infos, back = list(found.values()), back_to(call, "/")
        return call.render("delete.html", infos=infos, back=back, has_form=True)
    for session_id in ids:
        await call.catalog.delete_session(session_id)
    return RedirectResponse(back_to(call, "/"), 303)

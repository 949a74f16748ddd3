"""Reports which sessions change, by polling. Works for every writer, on every database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence

from .query.details import Details
from .query.logic import Condition
from .query.ordering import Ordering
from .query.pages import Found, OnCorrupt, Reader, read_sessions
from .scope import ScopedStore
from .types import SessionChange, SessionInfo

_NEWEST = Ordering.parse("-updated_at")


async def watch_sessions(
    store: ScopedStore,
    condition: Condition,
    *,
    limit: int,
    interval: float,
    initial: bool,
    keys: Sequence[str] | None,
    on_corrupt: OnCorrupt | None,
) -> AsyncGenerator[SessionChange, None]:
    """Yields what differs between two polls: removed sessions first, the newest session last."""

    def read(reader: Reader) -> list[Found]:
        details = Details(newest_item=True)
        return reader.page(condition, _NEWEST, limit=limit, keys=keys, details=details)

    known: dict[str, tuple[str, SessionInfo]] = {}
    while True:
        found = {
            each.info.session_id: (_state_of(each), each.checked(on_corrupt))
            for each in reversed(await read_sessions(store.database, read))
        }
        if initial:
            for session_id in known.keys() - found.keys():
                yield SessionChange("removed", known[session_id][1])
            for session_id, (state, info) in found.items():
                if session_id not in known:
                    yield SessionChange("added", info)
                elif known[session_id][0] != state:
                    yield SessionChange("changed", info)
        known, initial = found, True
        await asyncio.sleep(interval)


def _state_of(found: Found) -> str:
    """Returns text that differs if messages or metadata do. In Python, `True` equals `1`."""
    info = found.info
    corrupt = sorted(error.key for error in found.errors)
    state = info.created_at.isoformat(), info.updated_at.isoformat(), found.newest_item, corrupt
    return json.dumps([*state, info.metadata], sort_keys=True)

"""Reports which sessions change, by polling. Works for every writer, on every database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable

from .query.details import Details
from .query.logic import Condition
from .query.ordering import Ordering
from .query.pages import FoundSession, OnCorrupt, Reader, read_sessions
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
    keys: tuple[str, ...] | None,
    on_corrupt: OnCorrupt | None,
    on_poll: Callable[[], object] | None,
) -> AsyncGenerator[SessionChange, None]:
    """Yields the changes since the last poll: removed sessions first, the newest session last."""

    def read(reader: Reader) -> list[FoundSession]:
        details = Details(keys, newest_item=True)
        return reader.page(condition, _NEWEST, limit=limit, details=details)

    known: dict[str, tuple[str, SessionInfo]] = {}
    while True:
        found = {
            each.info.session_id: (_state_of(each), each.checked(on_corrupt))
            for each in reversed(await read_sessions(store.database, read))
        }
        changes = [
            SessionChange("removed", info) for gone, (_, info) in known.items() if gone not in found
        ]
        for session_id, (state, info) in found.items():
            if session_id not in known:
                changes.append(SessionChange("added", info))
            elif known[session_id][0] != state:
                changes.append(SessionChange("changed", info))
        for change in changes if initial else ():
            yield change
        known, initial = found, True
        if on_poll is not None:
            on_poll()
        await asyncio.sleep(interval)


def _state_of(found: FoundSession) -> str:
    """Returns text that differs if messages or metadata do. In Python, `True` equals `1`."""
    info = found.info
    corrupt = sorted(error.key for error in found.errors)
    state = info.created_at.isoformat(), info.updated_at.isoformat(), found.newest_item, corrupt
    return json.dumps([*state, info.metadata], sort_keys=True)

"""Stored sessions as the parameters of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sqlalchemy import URL

    from agents_session_metadata.types import FeedbackKind


def parametrize_sessions(
    catalog_url: str | URL,
    where: Mapping[str, Any] | None = None,
    *,
    feedback: FeedbackKind | None = None,
    updated_since: datetime | None = None,
) -> pytest.MarkDecorator:
    """Run a test once for each stored session that matches, with its id as `session_id`.

    ```python
    @parametrize_sessions("sqlite:///sessions.db", {"tags": {"$contains": "regression"}})
    async def test_session(session_id): ...
    ```

    The ids are read when the decorator is called, so when pytest collects the module, in a thread
    with an event loop of its own. The test can be a function or a coroutine function.

    Args:
        catalog_url: The URL of the database.
        where: A filter; all sessions by default.
        feedback: As in `Replay.each`.
        updated_since: As in `Replay.each`.

    Returns:
        The decorator, a mark of pytest.

    Raises:
        LookupError: If no session matches, so that an empty suite does not pass.
        InvalidFilterError: If the filter is invalid.
        TablesMissingError: If the database has no tables.
    """
    from agents_session_metadata.catalog import SessionCatalog
    from agents_session_metadata.replay import selected_sessions

    async def read() -> list[str]:
        async with SessionCatalog.from_url(catalog_url) as catalog:
            selected = selected_sessions(catalog, where, feedback, updated_since)
            return [info.session_id async for info, _ in selected]

    with ThreadPoolExecutor(1) as thread:  # This thread may have a loop that runs.
        ids = thread.submit(asyncio.run, read()).result()
    if not ids:
        raise LookupError("parametrize_sessions() found no session that matches")
    return pytest.mark.parametrize("session_id", ids)

"""Stores the answer in progress of a run, so that others can follow it.

Its events are stored in batches beside the steps of the record. They are deleted in the transaction
that records the answer, which has all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from agents_session_metadata._sdk import completed
from agents_session_metadata.core.database import FAILURES
from agents_session_metadata.errors import LeaseLostError
from agents_session_metadata.runs.record import RunRecord
from agents_session_metadata.text import quoted

from .items import BEGINNING, SHOWN, Event, add_event

logger: logging.Logger = logging.getLogger(__name__)

BATCH = 0.15
"""Seconds between two writes of the answer in progress."""
LOOK = 1.0
"""Seconds without a write after which a run looks whether it was cancelled."""
_HIDDEN = {"logprobs", "obfuscation", "sequence_number"}
"""Fields of events that say nothing about a text that was merged."""


class LiveAnswer:
    """The answer in progress of one run."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._changed = asyncio.Event()
        self._whole: list[Event] = []
        self._new: list[Event] = []  # Those that are not stored.

    async def stream(self, model: Any, args: Any, kwargs: Any) -> AsyncIterator[Any]:
        """Yields the events of a model. One that cannot stream gives its whole answer."""
        self._whole, self._new = [BEGINNING], [BEGINNING]
        events = model.stream_response(*args, **kwargs)
        try:
            async for event in events:
                self._show(event)
                yield event
        except NotImplementedError:
            if len(self._whole) > 1:
                raise
            yield completed(await model.get_response(*args, **kwargs))
        finally:
            self._whole, self._new = [], []
            if hasattr(events, "aclose"):
                await events.aclose()

    def _show(self, event: Any) -> None:
        if event.type == "response.completed":
            self._whole, self._new = [], []
        if event.type in SHOWN:
            shown = event.model_dump(mode="json", exclude_unset=True, exclude=_HIDDEN)
            add_event(self._whole, shown)
            add_event(self._new, shown)
            self._changed.set()

    async def keep(self, runner: asyncio.Future[Any], on_loss: Callable[[], object]) -> None:
        """Stores events until the runner ends. The first ones are stored at once."""
        while True:
            changed = asyncio.ensure_future(self._changed.wait())
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait({runner, changed}, timeout=LOOK, return_when=first)
            changed.cancel()
            if runner.done():
                return
            pause = BATCH
            try:
                await (self._store() if self._changed.is_set() else self._record.lease.look())
            except LeaseLostError:
                on_loss()
                return
            except FAILURES:
                pause = LOOK
                shown = quoted(self._record.lease.session_id)
                logger.warning("the answer of session %s was not shown", shown, exc_info=True)
            await asyncio.wait({runner}, timeout=pause)

    async def _store(self) -> None:
        self._changed.clear()
        events, self._new = self._new, []
        try:
            if events:
                await self._record.add_events(events)
        except FAILURES:
            # They can have been stored. What is stored next replaces them.
            self._new = list(self._whole)
            self._changed.set()
            raise

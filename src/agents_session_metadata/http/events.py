"""Server-sent events: streams that follow changes of sessions, and the polls that they share."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from agents_session_metadata import SessionCatalog, SessionChange
from agents_session_metadata.types import JSONObject

from .requests import APIError, valid_json

logger: logging.Logger = logging.getLogger("agents_session_metadata.http")

_QUEUED = 1_000
"""Changes that a client may be behind before its stream ends."""
_AHEAD = 100
"""Events of a run that are ready before their client reads them."""


class _Poll:
    """One poll of a scope and filter, for all streams that follow it."""

    def __init__(
        self, catalog: SessionCatalog, where: Any, interval: float, on_corrupt: Any
    ) -> None:
        self.queues: set[asyncio.Queue[SessionChange | None]] = set()
        self.is_ready = asyncio.Event()
        changes = catalog.watch(
            where, interval=interval, on_corrupt=on_corrupt, on_poll=self.is_ready.set
        )
        self.task = asyncio.ensure_future(self._run(changes))

    async def _run(self, changes: Any) -> None:
        try:
            async for change in changes:
                for queue in list(self.queues):
                    try:
                        queue.put_nowait(change)
                    except asyncio.QueueFull:  # noqa: PERF203  # of one client
                        self._end(queue)
        except Exception:
            logger.exception("the changes of sessions could not be read")
        finally:
            self.is_ready.set()
            for queue in list(self.queues):
                self._end(queue)

    def _end(self, queue: asyncio.Queue[SessionChange | None]) -> None:
        self.queues.discard(queue)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)


class Streams:
    """The streams of an application, at most `most` at once, and so many of one scope.

    Polls have `interval` seconds between them. A comment is sent after `comment_after` seconds
    without an event.
    """

    def __init__(
        self, most: int, most_per_scope: int, *, interval: float = 2.0, comment_after: float = 15.0
    ) -> None:
        self.interval = interval
        self.comment_after = comment_after
        self._most = most
        self._most_per_scope = most_per_scope
        self._open = 0
        self._open_in: Counter[str] = Counter()
        self._polls: dict[Any, _Poll] = {}

    def follow(
        self,
        catalog: SessionCatalog,
        where: Any,
        show: Callable[[Any], Mapping[str, Any]],
        on_corrupt: Any,
    ) -> Response:
        """Returns a stream of changes, from a poll that it shares with others."""
        scope = self._scope_of(catalog)
        place = scope, json.dumps(where, sort_keys=True), catalog.engine, asyncio.get_running_loop()
        queue: asyncio.Queue[Any] = asyncio.Queue(_QUEUED)

        @asynccontextmanager
        async def followed() -> AsyncIterator[None]:
            poll = self._polls.get(place)
            if poll is None or poll.task.done():
                poll = self._polls[place] = _Poll(catalog, where, self.interval, on_corrupt)
            poll.queues.add(queue)
            try:
                await poll.is_ready.wait()
                yield
            finally:
                poll.queues.discard(queue)
                if not poll.queues:
                    poll.task.cancel()
                    if self._polls.get(place) is poll:
                        del self._polls[place]

        def shown(change: SessionChange) -> tuple[str, Any]:
            return change.kind, show(change.session)

        return EventStream(self, scope, queue, followed(), shown)

    def follow_run(
        self, catalog: SessionCatalog, events: AsyncGenerator[JSONObject, None]
    ) -> Response:
        """Returns a stream of the events of one run."""
        scope = self._scope_of(catalog)
        queue: asyncio.Queue[Any] = asyncio.Queue(_AHEAD)

        async def fill() -> None:
            try:
                async with aclosing(events):
                    async for event in events:
                        await queue.put(event)
            except Exception:
                logger.exception("the run could not be followed")
            await queue.put(None)

        @asynccontextmanager
        async def followed() -> AsyncIterator[None]:
            # In a task of its own, because a read that is cancelled with the response would end it.
            task = asyncio.ensure_future(fill())
            try:
                yield
            finally:
                task.cancel()

        return EventStream(self, scope, queue, followed(), lambda event: (event["type"], event))

    def _scope_of(self, catalog: SessionCatalog) -> str:
        """Returns the scope of another stream. Raises 503 if too many are open.

        A stream counts once it is returned, so nothing may be awaited between the two.
        """
        scope = json.dumps(catalog.scope, sort_keys=True)
        is_full = bool(catalog.scope) and self._open_in[scope] >= self._most_per_scope
        if is_full or self._open >= self._most:
            headers = {"Retry-After": "5"}
            raise APIError(503, "Too many streams are open.", code="streams", headers=headers)
        return scope


class EventStream(StreamingResponse):
    """A stream of the events in a queue, which is filled in the block `followed`, until None.

    `shown` returns the name and the data of an event.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        streams: Streams,
        scope: str,
        queue: asyncio.Queue[Any],
        followed: AbstractAsyncContextManager[None],
        shown: Callable[[Any], tuple[str, Any]],
    ) -> None:
        self._streams, self._scope = streams, scope
        self._queue, self._followed, self._shown = queue, followed, shown
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(self._texts(), headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streams = self._streams
        streams._open += 1
        streams._open_in[self._scope] += 1
        try:
            async with self._followed:
                with suppress(OSError):  # The client has gone.
                    # Without its version, Starlette listens for that on every server.
                    await super().__call__({**scope, "asgi": {}}, receive, send)
        finally:
            streams._open -= 1
            streams._open_in[self._scope] -= 1
            streams._open_in += Counter()  # drops scopes without a stream

    async def _texts(self) -> AsyncIterator[str]:
        yield ": follows changes\n\n"
        while True:
            try:
                event = await asyncio.wait_for(self._queue.get(), self._streams.comment_after)
            except asyncio.TimeoutError:
                yield ":\n\n"
                continue
            if event is None:
                return
            name, data = self._shown(event)
            yield f"event: {name}\ndata: {valid_json(data)}\n\n"

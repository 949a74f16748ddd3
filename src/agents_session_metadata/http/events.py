"""Server-sent events: streams that follow changes of sessions, and the polls that they share."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from agents_session_metadata import SessionCatalog, SessionChange

from .requests import APIError

logger: logging.Logger = logging.getLogger("agents_session_metadata.http")

INTERVAL = 2.0
"""Seconds between polls."""
COMMENT_AFTER = 15.0
"""Seconds without an event after which a comment is sent."""
_QUEUED = 1_000
"""Events that a client may be behind before its stream ends."""


class _Poll:
    """One poll of a scope and filter, for all streams that follow it."""

    def __init__(self, changes: Any, is_ready: asyncio.Event) -> None:
        self.queues: set[asyncio.Queue[SessionChange | None]] = set()
        self.is_ready = is_ready
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
    """The streams of an application, at most `most` at once, and so many of one scope."""

    def __init__(self, most: int, most_per_scope: int) -> None:
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
        scope = json.dumps(catalog.scope, sort_keys=True)
        is_full = bool(catalog.scope) and self._open_in[scope] >= self._most_per_scope
        if is_full or self._open >= self._most:
            headers = {"Retry-After": "5"}
            raise APIError(503, "Too many streams are open.", code="streams", headers=headers)
        key = scope, json.dumps(where, sort_keys=True), asyncio.get_running_loop()
        is_ready = asyncio.Event()
        changes = catalog.watch(
            where, interval=INTERVAL, on_corrupt=on_corrupt, on_poll=is_ready.set
        )
        return _EventStream(self, key, partial(_Poll, changes, is_ready), show)


class _EventStream(StreamingResponse):
    media_type = "text/event-stream"

    def __init__(self, streams: Streams, key: Any, poll: Callable[[], _Poll], show: Any) -> None:
        self._streams, self._key, self._poll, self._show = streams, key, poll, show
        self._queue: asyncio.Queue[SessionChange | None] = asyncio.Queue(_QUEUED)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(self._texts(), headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streams, key = self._streams, self._key
        poll = streams._polls.get(key)
        if poll is None or poll.task.done():
            poll = streams._polls[key] = self._poll()
        poll.queues.add(self._queue)
        streams._open += 1
        streams._open_in[key[0]] += 1
        try:
            await poll.is_ready.wait()
            with suppress(OSError):  # The client has gone.
                # Without its version, Starlette listens for that on every server.
                await super().__call__({**scope, "asgi": {}}, receive, send)
        finally:
            streams._open -= 1
            streams._open_in[key[0]] -= 1
            streams._open_in += Counter()  # drops scopes without a stream
            poll.queues.discard(self._queue)
            if not poll.queues:
                poll.task.cancel()
                if streams._polls.get(key) is poll:
                    del streams._polls[key]

    async def _texts(self) -> AsyncIterator[str]:
        yield ": follows changes\n\n"
        while True:
            try:
                change = await asyncio.wait_for(self._queue.get(), COMMENT_AFTER)
            except asyncio.TimeoutError:
                yield ":\n\n"
                continue
            if change is None:
                return
            data = json.dumps(self._show(change.session))
            yield f"event: {change.kind}\ndata: {data}\n\n"

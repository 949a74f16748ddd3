"""Runs that work in tasks of this process: begun, recovered after a crash, ended anywhere."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import Connection
from sqlalchemy.util import await_only

from agents_session_metadata.core.database import FAILURES, settle
from agents_session_metadata.core.messages import UNREADABLE, read_history
from agents_session_metadata.errors import (
    BudgetExceededError,
    RunCancelledError,
    RunNotFoundError,
    SessionBusyError,
)
from agents_session_metadata.runs.approvals import RunFilter, RunInfo, read_page
from agents_session_metadata.runs.claim import (
    Request,
    Settings,
    give_up,
    lock_run,
    statements,
    store_outcome,
    write_status,
)
from agents_session_metadata.runs.execution import RunSession
from agents_session_metadata.runs.feature import FAILED, INTERRUPTED, STOPPED, WAITING
from agents_session_metadata.runs.record import Progress
from agents_session_metadata.runs.runs import StreamedRun
from agents_session_metadata.runs.work import take_turn
from agents_session_metadata.text import is_encrypted, quoted

from .answers import LiveAnswer
from .following import Follower
from .items import Event, Opener, left_messages

logger: logging.Logger = logging.getLogger(__name__)

AgentOf: TypeAlias = Callable[[RunInfo], Any]
_AT_ONCE = 100


class BackgroundRuns:
    """The background part of one `SessionRuns`, whose methods have the docstrings.

    `works` has the tasks of `start`, of all catalogs that share them.
    """

    def __init__(self, settings: Settings, works: dict[asyncio.Task[None], str]) -> None:
        self._settings = settings
        self._store, self._encryption = settings.store, settings.encryption
        database = settings.store.database
        self._sql = statements(database.tables, database.dialect)
        self._works = works
        self._refused: dict[str, Any] = {}
        """The runs that could not be resumed, by session, with the time at which they began."""

    def stream(self, request: Request) -> StreamedRun:
        """Returns a run that others can follow."""
        request = replace(request, live=LiveAnswer)
        return StreamedRun(request.session_id, partial(take_turn, self._settings, request))

    async def start(self, request: Request) -> bool:
        """Begins a run, or goes on with it. Returns False if it works, waits or has ended."""
        run = self.stream(replace(request, background=True))
        hooks = request.options.get("hooks")
        async with AsyncExitStack() as stack:
            if isinstance(hooks, AbstractAsyncContextManager):  # such as a tracker
                await stack.enter_async_context(hooks)
            await stack.enter_async_context(run)
            if run.repeated:
                return False
            opened = stack.pop_all()
        task = asyncio.ensure_future(self._work(run, opened, request.session_id))
        self._works[task] = request.session_id
        task.add_done_callback(self._works.pop)
        await asyncio.sleep(0)  # A task that is cancelled before it begins would not end the run.
        return True

    async def _work(self, run: StreamedRun, opened: AsyncExitStack, session_id: str) -> None:
        try:
            async with opened:
                async for _ in run.stream_events():
                    pass
        except (BudgetExceededError, RunCancelledError, SessionBusyError) as error:
            logger.info("the run of session %s has ended: %s", quoted(session_id), error)
        except Exception:
            logger.exception("the run of session %s has failed", quoted(session_id))

    def _tasks(self, session_id: str | None = None) -> set[asyncio.Task[None]]:
        """Returns the tasks of this event loop, of one session or all."""
        loop, works = asyncio.get_running_loop(), list(self._works.items())
        return {
            task
            for task, own in works
            if session_id in (None, own) and task.get_loop() is loop and not task.done()
        }

    async def aclose(self, wait: float) -> None:
        """Waits for the ends of the runs, and then interrupts them."""
        try:
            if wait > 0 and (tasks := self._tasks()):
                await asyncio.wait(tasks, timeout=wait)
        finally:
            await _interrupt(self._tasks())

    async def cancel(self, session_id: str, *, keep: bool, wrap: Any) -> bool:
        """Ends the run of a session. Returns whether one worked, was interrupted or waited."""
        store, own = self._store, self._tasks(session_id)

        def write(connection: Connection) -> bool:
            row = lock_run(store, connection, session_id)
            if row is None or row.status == FAILED:
                return False
            texts = self._text_so_far(connection, row, wrap) if keep else []
            give_up(self._settings, connection, session_id, STOPPED)
            if texts:
                connection.execute(self._sql.touch, {"session": session_id})
                store.insert_items(connection, session_id, texts)
            return True

        is_found = await store.database.write(write, prepare=store.is_restricted)
        if is_found:
            # Those elsewhere find out by themselves.
            await _interrupt(own)
        return is_found

    def _text_so_far(self, connection: Connection, row: Any, wrap: Any) -> list[str]:
        """Returns what the history lacks of the answers of a live run, as items to be stored."""
        database, options = self._store.database, self._settings.session_options
        session_id, progress = row.session_id, Progress.load(row.progress)
        if not progress.live or row.status == WAITING:
            return []
        found = read_history(database, connection, session_id, after=progress.base)
        items = [(each.item_id, each.item) for each in found if each.item is not UNREADABLE]
        if wrap is None and any(is_encrypted(item) for _, item in items):
            return []  # In an encrypted history, nothing is stored in plain text.
        rows: Any = connection.execute(self._sql.read_steps, {"session": session_id})
        # Batches of the answer in progress come last. Their numbers fall below 0.
        ordered = sorted(rows, key=lambda row: (row.number < 0, abs(row.number)))
        steps = [self._encryption.load(row.value) for row in ordered]

        async def sealed() -> list[str]:
            opener = Opener(session_id, wrap)
            stored = [item for _, item in await opener.open(items)]
            left = await opener.close(left_messages(stored, steps))
            plain = RunSession._in_store(session_id, self._store, must_exist=True, **options)
            return await plain._texts(left)

        # In this transaction: the wrapper encrypts, and reads no database.
        texts: list[str] = await_only(sealed())
        return texts

    def follow(
        self, session_id: str, after: int | None, *, forever: bool, wrap: Any
    ) -> AsyncGenerator[Event, None]:
        """Yields what the runs of a session do."""
        return Follower(self._settings, session_id, after, wrap).events(forever=forever)

    # ---- recovering ----

    async def recover(self, agent_of: AgentOf, *, max_attempts: int, decided: bool) -> int:
        """Goes on with interrupted runs. Returns how many."""
        self._store.database.check_writable()
        own, resumed = (self._store, self._encryption, self._store.condition(None)), 0
        statuses: list[RunFilter] = ["interrupted", "ready"] if decided else ["interrupted"]
        cursor: str | None = None
        while statuses:
            page = await read_page(*own, statuses[0], _AT_ONCE, cursor, of_background=True)
            # Several processes find the same runs.
            for info in random.sample(page.runs, len(page.runs)):
                resumed += await self._recover(info, agent_of, max_attempts)
            cursor = page.next_cursor
            if cursor is None:
                del statuses[0]
        return resumed

    async def _recover(self, info: RunInfo, agent_of: AgentOf, max_attempts: int) -> bool:
        if self._refused.get(info.session_id) == info.started_at:
            return False
        if info.status == INTERRUPTED and info.attempts >= max_attempts:
            await self._store.database.write(lambda c: self._fail(c, info))
            return False
        try:
            found = agent_of(info)
            found = await found if inspect.isawaitable(found) else found
            if found is None:
                return False
            given: Any = found if isinstance(found, tuple) else (found, {})
            agent, options = given
            request = Request.of(info.session_id, agent, None, options, is_resume=True)
            return await self.start(replace(request, only=info.status))
        except (RunNotFoundError, SessionBusyError):
            return False  # Another process has it.
        except FAILURES:
            raise
        except Exception:
            self._refused[info.session_id] = info.started_at
            logger.exception("the run of session %s cannot go on", quoted(info.session_id))
            return False

    def _fail(self, connection: Connection, info: RunInfo) -> None:
        store, encryption, session_id = self._store, self._encryption, info.session_id
        row = lock_run(store, connection, session_id)
        if row is None or row.status != INTERRUPTED:
            return
        text = f"RunFailedError: {info.attempts} processes died without recording a further step"
        values = {"status": FAILED, "error": encryption.dump(text), "token": secrets.token_hex(16)}
        own = {"session": session_id, "lease_token": row.token}
        connection.execute(self._sql.stop.values(**values), own)
        if row.run_key is not None:
            outcome = encryption.dump({"error": text})
            store_outcome(self._settings, connection, row, outcome)
        write_status(store, connection, session_id, FAILED)

    @asynccontextmanager
    async def recovering(
        self, agent_of: AgentOf, *, every: timedelta, **options: Any
    ) -> AsyncIterator[None]:
        """Recovers again and again until the block ends."""
        self._store.database.check_writable()

        async def repeat() -> None:
            while True:
                try:
                    await self.recover(agent_of, **options)
                except FAILURES:
                    logger.warning("interrupted runs were not found", exc_info=True)
                pause = every.total_seconds() * random.uniform(0.5, 1.5)  # noqa: S311  # no secret
                await asyncio.sleep(pause)

        task = asyncio.ensure_future(repeat())
        try:
            yield
        finally:
            await _interrupt({task})


async def _interrupt(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await settle(asyncio.wait(tasks))

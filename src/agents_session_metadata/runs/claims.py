"""A claimed run: its lease, and the storage of its state.

One claim resumes the run once. The outcome decides what is stored:

| the run | the row |
|---|---|
| finished | is deleted |
| paused again | gets the new state, and is free |
| raised, or was cancelled | gets the state as it was then, and is free |
| raised, in a state that the SDK cannot restore | stays claimed; the lease ends at once |
| was not resumed | is as it was before the claim |
| the process died | stays claimed; the lease ends without a result |
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from agents import Agent, RunConfig, RunHooks, Runner, RunResult, RunResultStreaming, RunState
from agents.exceptions import UserError
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from agents_session_metadata._sdk import usage_of
from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.core.database import settle
from agents_session_metadata.errors import RunClaimedError, SessionNotFoundError
from agents_session_metadata.text import quoted
from agents_session_metadata.tracking.tracker import SessionTracker

from .fencing import RunSession, check_schema, claimed_session, fence, is_encrypted
from .rows import Details, PausedRow, PendingCall, paused_run, pending_as_stored
from .states import (
    ContextArguments,
    Progress,
    apply_decisions,
    context_to_write,
    deserialize,
    pending_calls,
    restorable,
    serialize,
    waits_inside,
    without_answered_questions,
)
from .store import PausedStore, check_claim, check_history, nothing_paused

logger: logging.Logger = logging.getLogger(__name__)

_RENEWALS = 3
"""Renewals per lease."""


class _Found(NamedTuple):
    """A paused run that has been read, and what to resume it with."""

    catalog: SessionCatalog
    store: PausedStore
    row: PausedRow
    state: RunState[Any, Any]
    agent: Agent[Any]
    context: ContextArguments
    lease: int  # In microseconds.
    responses: int


class ClaimedRun:
    """A paused run that this process can resume once. `PausedRuns.claim` returns it.

    Args:
        found: The run, as it was read.

    Attributes:
        session_id: The session's id.
        pending: The calls that wait for an approval, with their decisions.
        state: The SDK's state of the run, with the decisions applied.
    """

    def __init__(self, found: _Found) -> None:
        row, store = found.row, found.store
        self.session_id: str = row.session_id
        self.pending: tuple[PendingCall, ...] = paused_run(row, store.encryption).pending
        self.state: RunState[Any, Any] = found.state
        self._row = row
        self._store = store
        self._agent = found.agent
        self._catalog = found.catalog
        self._context = found.context
        self._lease = found.lease
        self._token = secrets.token_hex(16)
        self._renewal: asyncio.Task[None] | None = None
        self._run: asyncio.Task[RunResult] | None = None
        self._stream: RunResultStreaming | None = None
        self._progress = Progress(None)
        self._run_session = RunSession()
        self._responses = found.responses
        self._is_started = False
        self._is_lost = False

    @property
    def undecided(self) -> tuple[PendingCall, ...]:
        """The calls without a decision. If the run is resumed, it pauses again for them."""
        return tuple(call for call in self.pending if call.decision is None)

    async def resume(
        self,
        *,
        session: Any = None,
        run_config: RunConfig | None = None,
        hooks: RunHooks[Any] | None = None,
        **kwargs: Any,
    ) -> RunResult:
        """Resume the run: `Runner.run` with the stored state, decisions applied.

        If the run finishes, the stored state is deleted. If it pauses again, the new state is
        stored. If it raises or is cancelled, its current state is stored, so that finished tools do
        not run again when the run is claimed the next time. A run that has given its answer is not
        cancelled any more: the cancellation waits until the answer is stored.

        Args:
            session: A wrapper around the session, such as an `EncryptedSession`; by default the
                catalog's session. If the lease is lost, the session inside refuses to write, and
                the run is cancelled.
            run_config: As in `Runner.run`.
            hooks: As in `Runner.run`.
            **kwargs: Further arguments of `Runner.run`, such as `error_handlers`. The SDK takes
                `max_turns` from the state.

        Returns:
            The result.

        Raises:
            RunClaimedError: If the lease was lost. The state of the run is not stored.
            SessionNotFoundError: If the session was deleted, or is outside the scope of the catalog
                or of `session`.
            RuntimeError: If the run was resumed before.
            TypeError: If `session` is not a session, or `hooks` are not run hooks. The run has not
                started.
            ValueError: If the session has another id, is in other tables or in use by a claim, or
                is no `EncryptedSession` for an encrypted history. The run has not started.
        """
        with self._start(session, hooks) as session:
            await self._check_held()
            run = Runner.run(
                self._agent,
                self.state,
                session=session,
                run_config=self._progress.observed(run_config),
                hooks=self._progress,
                **kwargs,
            )
        self._run = asyncio.ensure_future(run)
        end = asyncio.ensure_future(self._end(self._run))
        try:
            return await asyncio.shield(end)
        except asyncio.CancelledError:
            self._progress.cancel(self._run)
            await settle(asyncio.wait({end}))
            raise

    def resume_streamed(
        self,
        *,
        session: Any = None,
        run_config: RunConfig | None = None,
        hooks: RunHooks[Any] | None = None,
        **kwargs: Any,
    ) -> RunResultStreaming:
        """As `resume`, with `Runner.run_streamed`. Read the events inside the claim's block.

        The state is stored at the end of the block. A stream that has not ended is cancelled, and
        its current state is stored.

        Args:
            session: As in `resume`.
            run_config: As in `Runner.run_streamed`.
            hooks: As in `Runner.run_streamed`.
            **kwargs: Further arguments of `Runner.run_streamed`.

        Returns:
            The streaming result.

        Raises:
            RunClaimedError: If the lease was lost.
            SessionNotFoundError: As `resume`, but from the events and at the end of the block.
                Nothing has run then, unless the run had paused inside an agent as a tool.
            RuntimeError: If the run was resumed before.
            TypeError: As `resume`.
            ValueError: As `resume`.
        """
        with self._start(session, hooks) as session:
            # Checking takes a coroutine, and the stream has to be returned now.
            self._progress.check = self._check_held
            self._stream = Runner.run_streamed(
                self._agent,
                self.state,
                session=session,
                run_config=run_config,
                hooks=self._progress,
                **kwargs,
            )
        return self._stream

    # ---- for `PausedRuns.claim` ----

    async def _claim(self, *, after_crash: bool, force: bool) -> bool:
        """Takes the lease. Returns False if the row has changed since it was read."""
        try:
            claimed = await self._store.claim(
                self._row, self._token, self._lease, after_crash=after_crash, force=force
            )
        except (asyncio.CancelledError, SQLAlchemyError, OSError):
            # The lease may be taken, and nobody will use it.
            await self._close(cancelled=True)
            raise
        if claimed:
            self._renewal = asyncio.ensure_future(self._renew())
        return claimed

    async def _close(self, *, cancelled: bool) -> None:
        """Logs errors if `cancelled`, because the caller will raise the cancellation."""
        try:
            if self._stream is not None:
                await settle(self._close_stream(self._stream))
            elif not self._is_started:
                await settle(self._store.release(self._row, self._token))
        except Exception:
            if not cancelled:
                raise
            logger.warning(
                "the claim of the run of session %s could not be ended after a cancellation",
                quoted(self.session_id),
                exc_info=True,
            )
        finally:
            self._run_session.end()
            if self._renewal is not None:
                self._renewal.cancel()
                await asyncio.wait({self._renewal})

    # ---- inside ----

    @contextmanager
    def _start(self, session: Any, hooks: RunHooks[Any] | None) -> Iterator[Any]:
        """Checks and yields the session. If the block raises, the run has not started."""
        progress = Progress(hooks)
        details = Details.of(self._row)
        if details.wrapped and not is_encrypted(session):
            raise ValueError(
                "the history of the paused run is encrypted; pass an EncryptedSession around "
                f"catalog.session({quoted(self.session_id)}) as session="
            )
        if self._is_lost:
            raise RunClaimedError(self.session_id, lost=True)
        if self._is_started:
            raise RuntimeError("a claim resumes its run once; claim the run again")

        def check(connection: Connection) -> None:
            self._store.check_token(connection, self.session_id, self._token)

        async def check_now() -> None:
            await self._store.check_held(self.session_id, self._token, ())

        if session is None:
            self._run_session = claimed_session(
                self._store.store,
                self.session_id,
                check,
                progress,
                **self._catalog._session_arguments,
            )
        else:
            self._run_session = fence(
                *(session, self.session_id, self._store.store, check, check_now, progress)
            )
        self._is_started = True
        self._progress = progress
        usage = usage_of(self.state)
        if isinstance(hooks, SessionTracker) and usage is not None:
            hooks._resumes(usage, details.agent)
        try:
            yield self._run_session.session
        except BaseException:
            self._run_session.end()
            self._is_started = False
            raise

    async def _check_held(self) -> None:
        if self._run_session.session is not None:
            await check_schema(self._run_session.session, self._store.store)
        await self._store.check_held(self.session_id, self._token, self._run_session.stores)

    async def _end(self, run: asyncio.Task[RunResult]) -> RunResult:
        try:
            result = await run
        except BaseException as error:
            self._run_session.end()
            await self._keep(self._continued)
            if self._is_lost:
                raise RunClaimedError(self.session_id, lost=True) from error
            raise
        self._run_session.end()
        await self._store_result(result)
        return result

    async def _store_result(self, result: RunResult | RunResultStreaming) -> None:
        try:
            if not result.interruptions:
                await self._store.finish(self.session_id, self._token)
                return
            state = result.to_state()
            written = restorable(serialize(state, self._context))
            interruptions = state.get_interruptions()
            if not await self._replace(written, interruptions, result.last_agent.name):
                raise nothing_paused(self.session_id)
        except RunClaimedError:
            raise
        except Exception:
            await self._end_lease()
            raise

    def _continued(self) -> dict[str, Any]:
        return self._progress.continued(serialize(self.state, self._context), self._responses)

    async def _keep(self, write: Callable[[], dict[str, Any]]) -> None:
        """Stores the state of a run that raised; the caller raises the error of the run.

        If the session was deleted or its history cleared in the meantime, nothing is stored.
        """
        try:
            if self._run_session.own is not None:
                try:
                    await self._run_session.own.add_failed()
                except (SQLAlchemyError, OSError):
                    # The state of the interrupted turn has what the history lacks.
                    if self._progress.has_asked:
                        raise
            if self._progress.is_stored:
                await self._store.finish(self.session_id, self._token)
                return
            written = write()
            restored = await deserialize(
                self.session_id, self._agent, json.dumps(written), self._context
            )
            interruptions = restored.get_interruptions()
            if interruptions and written["last_processed_response"] is None:
                raise UserError("the run was about to pause")
            known = not self._progress.is_history_ahead
            await self._replace(written, interruptions, None, history_is_known=known)
        except RunClaimedError:
            self._is_lost = True
        except SessionNotFoundError:
            pass
        except Exception:
            logger.warning(
                "the state of the run of session %s could not be stored after an error",
                quoted(self.session_id),
                exc_info=True,
            )
            await self._end_lease()

    async def _end_lease(self) -> None:
        """Leaves the row claimed, so that the next claim reports that tools may have run."""
        if self._renewal is not None:
            self._renewal.cancel()
        with suppress(Exception):
            await self._store.renew(self.session_id, self._token, 0)

    async def _replace(
        self,
        written: dict[str, Any],
        interruptions: list[Any],
        agent: str | None,
        *,
        history_is_known: bool = True,
    ) -> bool:
        """Returns False if the run was deleted or has left the scope."""
        calls = pending_as_stored(pending_calls(interruptions), self._store.encryption)
        encrypted = self._store.encryption.encrypt is not None

        def change(details: Details) -> Details:
            return replace(
                details, agent=agent or details.agent, pending=calls, encrypted=encrypted
            )

        text = self._store.encryption.encrypted(json.dumps(written))
        return await self._store.replace(
            *(self.session_id, self._token, text, change, self._run_session.stores),
            history_is_known=history_is_known,
        )

    async def _close_stream(self, stream: RunResultStreaming) -> None:
        task = stream.run_loop_task
        if task is not None and not task.done():
            stream.cancel()
            await asyncio.wait({task})
            await self._progress.end_checks()
        if self._is_lost:
            raise RunClaimedError(self.session_id, lost=True)
        refused = self._progress.refused
        # Without its context, which is not always JSON.
        now = self.state.to_json(context_serializer=lambda _: {}, strict_context=False)
        if refused is not None and not waits_inside(now):
            # Nothing has run, but the SDK counts a tool as executed before it calls the hook.
            await self._store.release(self._row, self._token)
            if isinstance(refused, asyncio.CancelledError):
                return
            raise refused
        failed = task is not None and (task.cancelled() or task.exception() is not None)
        # A stream that was cancelled after a turn has neither a result nor an error.
        if failed or (now["current_step"] and not stream.interruptions):

            def write() -> dict[str, Any]:
                written = restorable(serialize(stream.to_state(), self._context))
                return without_answered_questions(written)

            await self._keep(write)
            if isinstance(refused, Exception):
                raise refused
        else:
            await self._store_result(stream)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease / 1_000_000 / _RENEWALS)
            try:
                held = await self._store.renew(self.session_id, self._token, self._lease)
            except SQLAlchemyError:
                logger.warning("a lease could not be renewed", exc_info=True)
                continue
            if not held:
                self._lose()
                return

    def _lose(self) -> None:
        ended = self._is_started and (self._run is None or self._run.done())
        if ended and self._stream is None:
            return  # Its result is stored, or about to be.
        self._is_lost = True
        if self._run is not None:
            self._run.cancel()
        if self._stream is not None:
            self._stream.cancel()


_ROUNDS = 10
"""Attempts to claim a run that others keep changing."""


async def claim_run(
    catalog: SessionCatalog,
    store: PausedStore,
    session_id: str,
    agent: Agent[Any],
    context: ContextArguments,
    *,
    lease: timedelta,
    after_crash: bool,
    force: bool,
) -> ClaimedRun:
    """Restores the state before it takes the lease, so that a claim that fails changes nothing."""
    for _ in range(_ROUNDS):
        found = await store.read(session_id, state=True)
        if found is None:
            raise nothing_paused(session_id)
        row, end = found
        check_claim(row, after_crash=after_crash)
        check_history(row, end, force=force)
        text = row.state or ""
        if Details.of(row).encrypted:
            text = store.encryption.decrypted(text)
            if store.encryption.encrypt is None:
                raise ValueError(
                    "the paused run is stored encrypted, and its next state would not be; "
                    "pass encrypt= to PausedRuns"
                )
        state = await deserialize(session_id, agent, text, context)
        apply_decisions(state, json.loads(row.decisions))
        writing = context_to_write(context, text)
        written = serialize(state, writing)  # What cannot be stored again must not run.
        microseconds = lease // timedelta(microseconds=1)
        responses = len(written["model_responses"])
        ready = _Found(catalog, store, row, state, agent, writing, microseconds, responses)
        run = ClaimedRun(ready)
        if await run._claim(after_crash=after_crash, force=force):
            return run
    raise RunClaimedError(session_id)

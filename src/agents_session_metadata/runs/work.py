"""The work of a run, from its beginning, pause or interruption to its end or next pause.

One task does it. If a caller that waits for the task is cancelled, once or often, the run is
interrupted, and the task still stores its outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from agents import Agent, Runner
from sqlalchemy import Connection

from agents_session_metadata._sdk import (
    agent_named,
    cancel_once,
    context_of,
    failure_of,
    run_config_of,
    was_cancelled,
)
from agents_session_metadata.core.database import FAILURES, insist, settle
from agents_session_metadata.dialects.codes import is_unavailable
from agents_session_metadata.errors import (
    LeaseLostError,
    RunCancelledError,
    SessionChangedError,
)
from agents_session_metadata.text import quoted
from agents_session_metadata.tracking.tracker import SessionTracker, missing_ledger, warn_of_ledger
from agents_session_metadata.values import error_text, storable_text

from .approvals import dump_pending, dump_state, pending_calls
from .claim import (
    Claimed,
    Request,
    RunClaim,
    SessionRun,
    Settings,
    content_of,
    load_state,
    store_outcome,
    write_status,
)
from .execution import RecordedHooks, RunRecorder, RunSession, is_tool_call
from .feature import COMPLETED, FAILED, INTERRUPTED, RUNNING, WAITING
from .record import RunRecord, dump_final

logger: logging.Logger = logging.getLogger(__name__)

_MOST_ERROR = 2_000

_working: set[asyncio.Task[Any]] = set()
"""The event loop itself does not keep its tasks."""


async def take_turn(settings: Settings, request: Request) -> Work | SessionRun:
    """Waits for its turn, and finishes an interrupted run first if that is asked for."""
    hooks = request.options.get("hooks")
    trackers = hooks._chain if isinstance(hooks, SessionTracker) else []
    missing = await missing_ledger(settings.store) if trackers else None
    warn_of_ledger(missing)
    books = bool(trackers) and missing is None
    while True:
        session = RunSession._in_store(
            request.session_id, settings.store, must_exist=True, **settings.session_options
        )
        wrapped = session if request.session is None else request.session(session)
        if settings.encryption.encrypt is None and _is_encrypted(wrapped):
            raise ValueError(
                "the history is encrypted, and what the run records would not be; "
                "pass encrypt= and decrypt= to SessionRuns"
            )
        claimed = await RunClaim(settings, request, books=books).take()
        if isinstance(claimed, SessionRun):
            return claimed
        session._record = record = claimed.record
        if request.live is not None and record.progress.live:
            record.live = request.live(record)
        if books:
            record.trackers = [each for each in trackers if _can_book(each, record)]
        work = Work(settings, request, claimed, wrapped, trackers)
        if not claimed.is_other:
            return work
        await work.run()


def _can_book(tracker: SessionTracker, record: RunRecord) -> bool:
    """A tracker of another session or database counts by itself."""
    own, lease = tracker._store.database, record.lease
    is_same = own.notes is lease.store.database.notes
    is_same = is_same and tracker.session.session_id == lease.session_id
    return is_same and record.progress.durable


def _is_encrypted(session: Any) -> bool:
    """Finds the SDK's `EncryptedSession`, which needs an optional dependency, by its name."""
    while session is not None:
        if any(kind.__name__ == "EncryptedSession" for kind in type(session).__mro__):
            return True
        session = getattr(session, "__dict__", {}).get("underlying_session")
    return False


class Work:
    """The work of a run that this process has taken."""

    def __init__(
        self,
        settings: Settings,
        request: Request,
        claimed: Claimed,
        session: Any,
        trackers: Iterable[SessionTracker],
    ) -> None:
        self._settings = settings
        self._request = request
        self._row, self._record, self._lease = claimed.row, claimed.record, claimed.record.lease
        self._wrapped = session
        self._trackers = trackers
        self._runner: asyncio.Future[Any] | None = None
        self._cancel: Callable[[], object] = lambda: None
        self._is_interrupted = False
        self._began: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[SessionRun] | None = None

    # ---- for callers ----

    async def run(self) -> SessionRun:
        self._start(self._run())
        return await self.outcome()

    async def stream(self) -> Any:
        """Returns the SDK's result when the run has begun."""
        task = self._start(self._stream())
        await self._wait(task, self._began)
        return self._began.result() if self._began.done() else task.result()

    async def outcome(self) -> SessionRun:
        """Waits until the end of the run is stored. A cancelled caller interrupts the run."""
        assert self._task is not None  # noqa: S101  # for type checkers
        await self._wait(self._task)
        return self._task.result()

    @property
    def has_ended(self) -> bool:
        return self._runner is not None and self._runner.done()

    def interrupt(self) -> None:
        """Ends the run at once, unless it has ended."""
        self._is_interrupted = True
        self._cancel()

    def _start(self, work: Any) -> asyncio.Task[SessionRun]:
        task = self._task = asyncio.ensure_future(self._stored(work))
        _working.add(task)
        task.add_done_callback(_working.discard)
        return task

    async def _wait(self, task: asyncio.Task[SessionRun], *first: asyncio.Future[Any]) -> None:
        """Interrupts the run whenever the caller is cancelled, and then waits for its end."""
        waiting: set[asyncio.Future[Any]] = {task, *first}
        cancelled: asyncio.CancelledError | None = None
        while not any(each.done() for each in waiting):
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError as error:  # noqa: PERF203  # cancelled once, as a rule
                cancelled = cancelled or error
                self.interrupt()
                waiting = {task}
        if cancelled is not None:
            if not task.cancelled():
                task.exception()  # Retrieved: the caller hears of the cancellation instead.
            raise cancelled

    # ---- the task ----

    async def _stored(self, work: Any) -> SessionRun:
        """Stores that the run has failed or was interrupted, if its work raises.

        An error because of which something was not recorded is raised in place of what the runner
        made of it.
        """
        try:
            outcome: SessionRun = await work
        except BaseException as error:
            if self._lease.lost is None:
                cause = self._record.error or error
                # Without a caller, `recover` goes on when the database is back.
                is_left = self._record.progress.background and self._record.error is not None
                is_left = is_left and is_unavailable(cause)
                if self._is_interrupted or is_left or not isinstance(cause, Exception):
                    await settle(self._lease.release())
                else:
                    await settle(self._fail(cause))
            lost: Exception | None = self._lease.lost
            if self._lease.was_cancelled:
                lost = RunCancelledError(self._lease.session_id)
            raised = lost or self._record.error or error
            if raised is error:
                raise
            raise raised from error
        return outcome

    async def _run(self) -> SessionRun:
        async with self._arguments() as (agent, given, options):
            runner = asyncio.ensure_future(Runner.run(agent, given, **options))
            await self._until_end(runner, runner.cancel)
        return await self._end(runner.result())

    async def _stream(self) -> SessionRun:
        async with self._arguments() as (agent, given, options):
            result = Runner.run_streamed(agent, given, **options)
            self._began.set_result(result)
            await self._until_end(result.run_loop_task, lambda: cancel_once(result))
        problem = failure_of(result)
        if problem is not None:
            raise problem
        # The final output can be None.
        if result.interruptions or result.final_output is not None or not was_cancelled(result):
            return await self._end(result)
        if self._lease.lost is not None:
            raise self._lease.lost
        await settle(self._lease.release())
        return SessionRun(self._lease.session_id, None)

    async def _until_end(self, runner: Any, cancel: Callable[[], object]) -> None:
        """Waits for the runner while the lease is kept. A shutdown of the loop interrupts it."""
        self._runner, self._cancel = runner, cancel
        if self._is_interrupted:
            cancel()
        keepers = [self._lease, *filter(None, [self._record.live])]
        keeping = [asyncio.ensure_future(each.keep(runner, self.interrupt)) for each in keepers]
        for each in (runner, *keeping):
            while not each.done():
                try:
                    await asyncio.wait({each})
                except asyncio.CancelledError:  # noqa: PERF203  # cancelled once, as a rule
                    self.interrupt()
        for each in keeping:
            each.result()
        await settle(self._record.finish_writing())

    @asynccontextmanager
    async def _arguments(self) -> AsyncIterator[tuple[Any, Any, dict[str, Any]]]:
        """Yields the arguments of the SDK's runner. Closes models made for this run alone."""
        request, row, record = self._request, self._row, self._record
        configured = request.options.get("run_config")
        config = run_config_of(configured)
        recorder = RunRecorder(
            config.model_provider, record, self._trackers, checks_tools=not request.force
        )
        options = {
            **request.options,
            **record.progress.options,
            "run_config": replace(config, model_provider=recorder),
            "hooks": RecordedHooks(request.options.get("hooks"), record, self._trackers),
            "session": self._wrapped,
        }
        has_state = row.state is not None
        given = await self._load_state() if has_state else record.encryption.load(row.input)
        # Whatever a run without a record does is new.
        record.is_new = not record.progress.durable
        try:
            yield request.agent, given, options
        finally:
            if configured is None or (
                isinstance(configured, dict) and "model_provider" not in configured
            ):
                with suppress(Exception):
                    await settle(config.model_provider.aclose())

    async def _load_state(self) -> Any:
        """Returns the state of the last pause, with the decisions and the input since then."""
        request, record = self._request, self._record
        state = await load_state(request, self._row, record.encryption)
        usage = context_of(state).usage
        for tracker in self._trackers:
            tracker._accounts.resumes(usage, self._row.agent)
        record.counts(usage)
        current = agent_named(request.agent, self._row.agent)
        if current is not None and not self._request.force:
            await self._check_tools(current, state)
        items = [each for each in state.get_interruptions() if each.call_id in record.decisions]
        # Those that always hold first: the SDK lets them replace what was decided of other calls.
        for item in sorted(items, key=lambda each: not record.decisions[each.call_id].always):
            decision = record.decisions[item.call_id]
            if decision.approve:
                state.approve(item, always_approve=decision.always)
            else:
                message = decision.message
                state.reject(item, always_reject=decision.always, rejection_message=message)
        for added in record.inputs:
            state.add_input(added)
        return state

    async def _check_tools(self, agent: Agent[Any], state: Any) -> None:
        known = {tool.name for tool in await agent.get_all_tools(context_of(state))}
        for item in state.get_interruptions():
            is_own = item.agent is agent and is_tool_call(item.raw_item)
            if is_own and item.name not in known:
                problem = f"its run waits for {quoted(item.name)}, which is not there"
                raise SessionChangedError(self._lease.session_id, problem)

    # ---- ending ----

    async def _end(self, result: Any) -> SessionRun:
        """Stores the outcome of a run that has finished or pauses."""
        lease, record, database = self._lease, self._record, self._settings.store.database
        problem = lease.lost or record.error
        if problem is not None:
            raise problem
        calls, agent = pending_calls(result.interruptions), result.last_agent
        if calls:
            state = dump_state(result, strict=self._request.strict_context)
            inside = record.open_calls - {call.call_id for call in calls}
            values = {
                "progress": replace(record.progress, inside=sorted(inside)).dump(),
                "status": WAITING,
                "agent": storable_text(agent.name),
                "state": record.encryption.dump(state),
                "pending": dump_pending(calls, record.encryption),
                "paused_at": database.dialect.now(),
                "pause": (self._row.pause or 0) + 1,
                "attempts": 0,
            }

            def pause(connection: Connection) -> None:
                connection.execute(lease.sql.delete_steps, {"session": lease.session_id})

            await self._write_end(WAITING, lease.sql.stop.values(**values), pause)
            return SessionRun(lease.session_id, None, calls, result)
        values = {"output": dump_final(result.final_output, agent), "agent": agent.name}
        if record.progress.live:  # Followers tell its items from those of the next run.
            own: Any = {"session": lease.session_id}
            values["last"] = await database.read(lambda c: c.scalar(lease.sql.newest, own))
        outcome = self._outcome(values)

        def finish(connection: Connection) -> None:
            store_outcome(self._settings, connection, self._row, outcome)

        await self._write_end(COMPLETED, lease.sql.finish, finish)
        return SessionRun(lease.session_id, result.final_output, (), result)

    async def _fail(self, error: BaseException) -> None:
        """Stores the error. A run that has only given back what was recorded stays as it was."""
        lease = self._lease
        before = None if self._record.is_new else self._row.status
        try:
            if before in (RUNNING, INTERRUPTED):
                await lease.release()
            elif before is not None:
                await self._write_end(before, lease.sql.stop.values(status=before))
            else:
                text = error_text(error, _MOST_ERROR)
                values = {"status": FAILED, "error": self._record.encryption.dump(text)}
                outcome = self._outcome({"error": text})

                def fail(connection: Connection) -> None:
                    if self._row.run_key is not None:
                        store_outcome(self._settings, connection, self._row, outcome)

                await self._write_end(FAILED, lease.sql.stop.values(**values), fail)
        except LeaseLostError:
            pass
        except FAILURES:
            shown = quoted(lease.session_id)
            logger.warning("the failed run of session %s was not stored", shown, exc_info=True)

    def _outcome(self, values: dict[str, Any]) -> str:
        """Returns the text of an outcome, with what tells requests with the same key apart."""
        agent, encryption = self._record.progress.agent, self._record.encryption
        if self._row.run_key is not None and agent is not None:
            values = {**values, "content": content_of(agent, encryption.load(self._row.input))}
        return encryption.dump(values)

    async def _write_end(
        self, status: str, statement: Any, also: Callable[[Connection], object] = lambda _: None
    ) -> None:
        """Ends the run, or this part of it, by a `held` statement."""
        lease, store = self._lease, self._settings.store
        is_found = False

        def write(connection: Connection) -> None:
            nonlocal is_found
            is_locked = store.lock(connection, lease.session_id)
            if not (is_locked and lease.holds(connection, statement)):
                if is_found:  # An earlier attempt was committed, although it raised.
                    return
                raise lease.lose(connection)
            is_found = True
            also(connection)
            write_status(store, connection, lease.session_id, status)

        await settle(insist(lambda: store.database.write(write)))

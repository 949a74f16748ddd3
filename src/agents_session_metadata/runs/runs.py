"""`SessionRuns`: one run per session at a time, which survives crashes and waits for approvals."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, TypeAlias

from agents import Agent, Runner, RunState
from agents.run_state import SUPPORTED_SCHEMA_VERSIONS
from sqlalchemy import Connection, Table, delete, insert, or_, select
from sqlalchemy.exc import SQLAlchemyError

from agents_session_metadata._sdk import usage_of, was_cancelled
from agents_session_metadata.catalog import SessionCatalog, check_catalog
from agents_session_metadata.core.database import insist, settle
from agents_session_metadata.core.rows import check_id, check_id_type, id_problem
from agents_session_metadata.errors import (
    RunFailedError,
    RunInterruptedError,
    SessionBusyError,
    SessionPausedError,
    StateVersionError,
)
from agents_session_metadata.query.filters import Where
from agents_session_metadata.query.pages import LONGEST_PAGE, check_limit
from agents_session_metadata.text import quoted
from agents_session_metadata.tracking.tracker import SessionTracker
from agents_session_metadata.values import storable_text

from .feature import FAILED, INTERRUPTED, RUNNING, RUNS, WAITING, give_up
from .journal import Copies, Journal, RecordedHooks, dump_final, load_final, recorded_config
from .lease import Lease, Progress, lock_run, read_run
from .records import (
    STATUSES,
    Cipher,
    Decision,
    Encryption,
    PendingCall,
    RunInfo,
    RunPage,
    add_decision,
    delete_decisions,
    dump_pending,
    dump_state,
    infos_of,
    load_pending,
    pending_calls,
    read_decisions,
    read_page,
)
from .session import open_session

logger: logging.Logger = logging.getLogger(__name__)

Interrupted = Literal["resume", "discard"]
Wrap = Callable[[Any], Any]
"""A function that wraps the session of a run, for example in an `EncryptedSession`."""

Decisions: TypeAlias = list[Decision]
"""The method `list` hides the class of this name."""

LONGEST_LEASE = timedelta(days=1)
_POLL, _LONGEST_POLL = 0.02, 0.32
"""Seconds between two looks at a session that is busy, which double, before jitter."""
_MOST_ERROR = 2_000


@dataclass(frozen=True)
class SessionRun:
    """The outcome of a run.

    Attributes:
        session_id: The id of its session.
        final_output: The final output; None if the run waits.
        interruptions: The calls that the run waits for; empty if it has finished.
        result: The SDK's result; None if the outcome is that of an earlier call.
        repeated: Whether the outcome is that of an earlier call with the same key.
    """

    session_id: str
    final_output: Any
    interruptions: tuple[PendingCall, ...] = ()
    result: Any = None
    repeated: bool = False


@dataclass
class _Request:
    """One call of `run` or `stream`; of `resume` without an input."""

    session_id: str
    agent: Agent[Any]
    wait: float
    wrap: Wrap | None
    strict_context: bool
    options: dict[str, Any]
    input: Any = None
    key: str | None = None
    interrupted: Interrupted | None = None
    durable: bool = True
    is_resume: bool = False
    force: bool = False
    waited_for: str | None = None
    """The run with the same key that the call has waited for."""
    is_other: bool = False
    """Whether an interrupted run is finished first."""

    def __post_init__(self) -> None:
        check_id_type(self.session_id)
        if not isinstance(self.agent, Agent):
            raise TypeError(f"agent must be an Agent, got {type(self.agent).__name__}")
        if not self.wait >= 0:
            raise ValueError(f"wait must be a number of seconds, 0 or more, got {self.wait!r}")
        if not self.is_resume and not isinstance(self.input, (str, list)):
            advice = "; use resume" if isinstance(self.input, RunState) else ""
            kind = type(self.input).__name__
            raise TypeError(f"input must be a string or a list of items, got {kind}{advice}")
        if self.key is not None and not isinstance(self.key, str):
            raise TypeError(f"key must be a string, got {type(self.key).__name__}")
        if self.key == "":
            raise ValueError("key must not be empty")
        if self.interrupted not in (None, "resume", "discard"):
            raise ValueError(
                f"interrupted must be 'resume', 'discard' or None, got {quoted(self.interrupted)}"
            )


class SessionRuns:
    """Runs agents on sessions, one run per session at a time.

    ```python
    runs = SessionRuns(catalog)
    run = await runs.run("chat-1", agent, "Refund order 7", key=request_id)
    if run.interruptions:
        # In any process, without the agent:
        await runs.decide("chat-1", run.interruptions[0].call_id, approve=True, by="user_123")
        # In any process that has the agent:
        run = await runs.resume("chat-1", agent)
    print(run.final_output)
    ```

    While a run works, its model answers and tool outputs are recorded. If its process dies,
    `resume` goes on without repeating them. With a scoped catalog, all methods are restricted to
    the scope. Nothing that is recorded is ever exported.

    Args:
        catalog: The catalog of the sessions.
        lease: How long a run holds its session without a renewal, which a working run makes every
            third of it. After a crash, the run is listed as interrupted when the lease has ended.
        keep: How long the outcome of a key is kept.
        encrypt: A function that encrypts what is recorded: inputs, answers, outputs, final outputs,
            states, arguments and error texts. It takes bytes and returns bytes or text, such as
            `cryptography.fernet.Fernet(key).encrypt`. Required for sessions in an
            `EncryptedSession`. Names of tools and agents, call ids and decisions are not encrypted.
        decrypt: The reverse function.

    Raises:
        TypeError: If `catalog` is not a `SessionCatalog`, or a time is not a timedelta.
        ValueError: If `lease` is not positive or longer than a day, or `keep` is negative.
    """

    def __init__(
        self,
        catalog: SessionCatalog,
        *,
        lease: timedelta = timedelta(minutes=2),
        keep: timedelta = timedelta(days=1),
        encrypt: Cipher | None = None,
        decrypt: Cipher | None = None,
    ) -> None:
        check_catalog(catalog)
        for name, value in (("lease", lease), ("keep", keep)):
            if not isinstance(value, timedelta):
                raise TypeError(f"{name} must be a timedelta, got {type(value).__name__}")
        if not timedelta(0) < lease <= LONGEST_LEASE:
            raise ValueError(f"lease must be positive and at most one day, got {lease}")
        if keep < timedelta(0):
            raise ValueError(f"keep must not be negative, got {keep}")
        self.catalog: SessionCatalog = catalog
        self._store = catalog._store
        self._database = catalog._store.database
        self._lease = lease // timedelta(microseconds=1)
        self._keep = keep // timedelta(microseconds=1)
        self._encryption = Encryption(encrypt, decrypt)

    # ---- running ----

    async def run(
        self,
        session_id: str,
        agent: Agent[Any],
        input: str | list[Any],  # noqa: A002  # as in the SDK
        *,
        key: str | None = None,
        wait: float = 0,
        interrupted: Interrupted | None = None,
        durable: bool = True,
        session: Wrap | None = None,
        strict_context: bool = True,
        **options: Any,
    ) -> SessionRun:
        """Run an agent as `Runner.run` does, while no other run of the session works.

        A failed run of the session is given up first.

        Args:
            session_id: The session's id. The session is created if it does not exist.
            agent: The agent.
            input: The input, as in `Runner.run`.
            key: Identifies the request. While its run works, a call with the same key waits. If its
                process died, the call goes on with the run. After it has finished or paused, the
                call returns its outcome with `repeated=True`.
            wait: How many seconds to wait for another run.
            interrupted: `"resume"` finishes an interrupted run of the session first, `"discard"`
                gives it up.
            durable: Whether to record answers and outputs. Without, an interrupted or failed run
                begins again at its input or last pause, and what it added to the history since
                then is removed.
            session: A function that wraps the session of the run.
            strict_context: Whether a run that pauses raises if the SDK would not store its
                `context` as it is.
            options: Further arguments of `Runner.run`, such as `context`, `hooks`, `run_config`
                and `max_turns`.

        Returns:
            The outcome.

        Raises:
            SessionBusyError: If another run works and did not end in time, or this run has lost its
                lease.
            SessionPausedError: If another run waits for approvals.
            RunInterruptedError: If another run was interrupted, without `interrupted`.
            RunFailedError: If this call waited for a run with the same key, which failed.
            SessionNotFoundError: If the session is outside the scope.
            ValueError: If the session is encrypted and there is no `encrypt`, or an argument is
                invalid.
        """
        common = session_id, agent, wait, session, strict_context, options
        return await self._run(_Request(*common, input, key, interrupted, durable))

    def stream(
        self,
        session_id: str,
        agent: Agent[Any],
        input: str | list[Any],  # noqa: A002  # as in the SDK
        *,
        key: str | None = None,
        wait: float = 0,
        interrupted: Interrupted | None = None,
        durable: bool = True,
        session: Wrap | None = None,
        strict_context: bool = True,
        **options: Any,
    ) -> StreamedRun:
        """Run an agent as `Runner.run_streamed` does, while no other run of the session works.

        ```python
        async with runs.stream("chat-1", agent, "Hello", wait=30) as run:
            async for event in run.stream_events():
                ...
        print(run.final_output)
        ```

        Leaving the block before the end of the events cancels the run, which is then listed as
        interrupted and can be resumed. An outcome of an earlier call with the same key has no
        events.

        Args:
            session_id: As in `run`, like all other arguments.
            agent: The agent.
            input: The input.
            key: Identifies the request.
            wait: How many seconds to wait for another run.
            interrupted: What to do with an interrupted run of the session.
            durable: Whether to record answers and outputs.
            session: A function that wraps the session of the run.
            strict_context: Whether to refuse a context that would not be stored at a pause.
            options: Further arguments of `Runner.run_streamed`.

        Returns:
            An async context manager, which begins the run and raises the errors of `run`.
        """
        common = session_id, agent, wait, session, strict_context, options
        return StreamedRun(self, _Request(*common, input, key, interrupted, durable))

    async def resume(
        self,
        session_id: str,
        agent: Agent[Any],
        *,
        force: bool = False,
        wait: float = 0,
        session: Wrap | None = None,
        strict_context: bool = True,
        **options: Any,
    ) -> SessionRun:
        """Go on with a run that waits, was interrupted or has failed.

        Decisions are applied; if calls are undecided, the run waits again. Recorded answers and
        outputs are given back without calling models and tools.

        Args:
            session_id: The session's id.
            agent: The agent that the run began with.
            force: Whether to go on although others have changed the history.
            wait: How many seconds to wait for the run if it works elsewhere.
            session: A function that wraps the session of the run, as when it began.
            strict_context: As in `run`.
            options: Further arguments of `Runner.run`. A `context` replaces the stored one.
                `max_turns` is that of the beginning by default; for a run that waited, the SDK
                takes it from the state.

        Returns:
            The outcome.

        Raises:
            LookupError: If the session has no run.
            SessionBusyError: If the run works, or this call has lost its lease.
            SessionChangedError: If others have changed the history, or the agents and tools are
                not the same as before.
            StateVersionError: If the SDK cannot read the state, which stays.
        """
        common = session_id, agent, wait, session, strict_context, options
        return await self._run(_Request(*common, is_resume=True, force=force))

    async def _run(self, request: _Request) -> SessionRun:
        part = await self._turn(request)
        return part if isinstance(part, SessionRun) else await part.run()

    # ---- beginning ----

    async def _turn(self, request: _Request) -> _Part | SessionRun:
        """Waits for its turn, and finishes an interrupted run first if that is asked for."""
        while True:
            begun = await self._begin(request)
            if isinstance(begun, SessionRun) or not request.is_other:
                return begun
            await begun.run()

    async def _begin(self, request: _Request) -> _Part | SessionRun:
        deadline = time.monotonic() + request.wait
        if not request.is_resume:
            check_id(request.session_id)
            await self._database.ensure(RUNS)
        lease = Lease(self._store, request.session_id, self._lease, self._encryption)
        part = _Part(self, request, lease)
        claim = partial(self._claim, request, lease)
        while True:
            try:
                found = await self._database.write(claim)
            except asyncio.CancelledError:
                await lease.release()
                raise
            if isinstance(found, SessionRun):
                return found
            if found:
                part.begin()
                return part
            if not await self._is_free(lease, deadline):
                raise SessionBusyError(request.session_id)

    async def _is_free(self, lease: Lease, deadline: float) -> bool:
        """Waits until no run of the session works. Returns False at the deadline."""
        own = {"of_session": lease.session_id}
        delay = _POLL
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(delay * random.uniform(0.5, 1.5), left))  # noqa: S311  # no secret
            delay = min(2 * delay, _LONGEST_POLL)
            if not await self._database.read(
                lambda connection: connection.execute(lease.sql.works, own).first()
            ):
                return True
        return False

    def _claim(self, request: _Request, lease: Lease, connection: Connection) -> SessionRun | bool:
        """Begins or goes on with a run in one transaction. Returns False if another one works."""
        session_id, request.is_other = request.session_id, False
        if request.is_resume:
            row = lock_run(self._store, connection, session_id)
            if row is None:
                raise _no_run(session_id)
            digest = None
        else:
            self._store.enter_history(connection, session_id, must_exist=False)
            row = read_run(self._store, connection, session_id)
            digest = None if request.key is None else _digest(request.key)
            repeated = digest and self._repeated(connection, request, digest)
            if repeated:
                connection.rollback()
                return repeated
        is_same = request.is_resume or (digest is not None and row.run_key == digest)
        if row.status == RUNNING:
            request.waited_for = row.run_id if is_same else request.waited_for
            connection.rollback()
            return False
        if row.status == WAITING and not request.is_resume:
            if not is_same:
                raise SessionPausedError(session_id)
            connection.rollback()
            calls = load_pending(row.pending, self._encryption)
            return SessionRun(session_id, None, tuple(calls), repeated=True)
        if row.status == INTERRUPTED and not is_same:
            if request.interrupted is None:
                raise RunInterruptedError(session_id)
            request.is_other = request.interrupted == "resume"
            is_same = request.is_other
        if request.is_resume or (is_same and row.status == INTERRUPTED):
            lease.go_on(connection, row, force=request.force)
            return True
        if row.run_id is not None:
            give_up(self._database, connection, session_id)
            row = read_run(self._store, connection, session_id)
        kept = {name: request.options[name] for name in ("max_turns",) if name in request.options}
        lease.start(
            connection,
            row,
            Progress(request.durable, kept, row.newest, row.newest, row.items),
            run_key=digest,
            agent=storable_text(request.agent.name),
            input=self._encryption.dump(request.input),
        )
        return True

    def _repeated(
        self, connection: Connection, request: _Request, digest: str
    ) -> SessionRun | None:
        """Returns the outcome of a run with this key that has finished."""
        keys = self._keys
        own = keys.c.session_id == request.session_id, keys.c.run_key == digest
        since = self._database.dialect.now() - self._keep
        statement = select(keys.c.run_id, keys.c.outcome).where(*own, keys.c.ended_at > since)
        found: Any = connection.execute(statement).first()
        if found is None:
            return None
        outcome = self._encryption.load(found.outcome)
        if "output" in outcome:
            output = load_final(outcome["output"], Copies.named(request.agent, outcome["agent"]))
            return SessionRun(request.session_id, output, repeated=True)
        if found.run_id == request.waited_for:
            raise RunFailedError(request.session_id, outcome["error"])
        return None

    @property
    def _keys(self) -> Table:
        return self._database.tables.group(RUNS)["_run_keys"]

    def _keep_outcome(self, connection: Connection, row: Any, outcome: dict[str, Any]) -> None:
        if row.run_key is None:
            return
        keys, now = self._keys, self._database.dialect.now()
        old = or_(keys.c.ended_at <= now - self._keep, keys.c.run_key == row.run_key)
        connection.execute(delete(keys).where(keys.c.session_id == row.session_id, old))
        values = {name: getattr(row, name) for name in ("session_id", "run_key", "run_id")}
        outcome_text = self._encryption.dump(outcome)
        connection.execute(insert(keys).values(ended_at=now), {**values, "outcome": outcome_text})

    # ---- approvals ----

    async def list(
        self,
        status: str | None = None,
        where: Where | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RunPage:
        """Return a page of runs, newest first.

        Args:
            status: `"running"`, `"waiting"`, `"interrupted"` or `"failed"`; all by default.
            where: A filter for the sessions.
            limit: The maximum number of runs per page, 1 to 1,000.
            cursor: The `next_cursor` of the previous page, for the same status, filter and scope.

        Returns:
            The page.

        Raises:
            InvalidCursorError: If the cursor is damaged or belongs to another question.
            InvalidFilterError: If the filter is invalid.
            ValueError: If `status` is unknown, or `limit` is out of range.
        """
        if status is not None and status not in STATUSES:
            names = ", ".join(STATUSES)
            raise ValueError(f"unknown status {quoted(status)}; expected one of {names}")
        check_limit(limit, LONGEST_PAGE)
        condition = self._store.condition(where)
        return await read_page(self._store, self._encryption, condition, status, limit, cursor)

    async def get(self, session_id: str) -> RunInfo | None:
        """Return the run of a session, or None if it has none.

        Args:
            session_id: The session's id.
        """
        check_id_type(session_id)
        if id_problem(session_id) is not None:
            return None
        page = await self.list(where={"$session_id": {"$in": [session_id]}}, limit=1)
        return page.runs[0] if page.runs else None

    async def decide(
        self,
        session_id: str,
        call_id: str,
        *,
        approve: bool,
        message: str | None = None,
        by: str | None = None,
    ) -> RunInfo:
        """Approve or reject a call. `resume` applies the newest decision about each call.

        Args:
            session_id: The session's id.
            call_id: The call, as in `PendingCall`.
            approve: Whether to run the call.
            message: The text that the model receives for a rejected call.
            by: The person who decides.

        Returns:
            The run.

        Raises:
            LookupError: If the session has no run that waits, or it does not wait for this call.
            RunInterruptedError: If the run was interrupted.
            SessionBusyError: If the run works.
            TypeError: If an argument has the wrong type.
            ValueError: If a call is approved with a message, or several calls have the id.
        """
        check_id_type(session_id)
        if not isinstance(approve, bool):
            raise TypeError(f"approve must be True or False, got {type(approve).__name__}")
        for name, text in (("message", message), ("by", by)):
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{name} must be a string, got {type(text).__name__}")
        if approve and message is not None:
            raise ValueError("message is for calls that are rejected, got one with approve=True")

        def write(connection: Connection) -> RunInfo:
            row = lock_run(self._store, connection, session_id)
            if row is None or row.status == FAILED:
                raise _no_run(session_id)
            if row.status == RUNNING:
                raise SessionBusyError(session_id)
            if row.status == INTERRUPTED:
                raise RunInterruptedError(session_id)
            calls = load_pending(row.pending, Encryption())
            found = [call for call in calls if call.call_id == call_id]
            if not found:
                shown = ", ".join(quoted(call.call_id) for call in calls)
                raise LookupError(
                    f"the run of session {quoted(session_id)} does not wait for call "
                    f"{quoted(call_id)}; it waits for {shown}"
                )
            if len(found) > 1:
                raise ValueError(
                    f"several pending calls have the id {quoted(call_id)}; the SDK cannot tell "
                    "them apart"
                )
            values = {"approve": approve, "message": message, "decided_by": by}
            add_decision(connection, self._database, row, found[0], **values)
            return infos_of(connection, self._database, [row], self._encryption)[0]

        return await self._database.write(write, prepare=self._store.is_restricted)

    async def discard(self, session_id: str) -> bool:
        """Give up a run that waits, was interrupted or has failed.

        Its items stay in the history, except calls without an output; in an encrypted history,
        these stay too.

        Args:
            session_id: The session's id.

        Returns:
            Whether there was one.

        Raises:
            SessionBusyError: If the run works.
        """
        check_id_type(session_id)

        def write(connection: Connection) -> bool:
            row = lock_run(self._store, connection, session_id)
            if row is None:
                return False
            if row.status == RUNNING:
                raise SessionBusyError(session_id)
            give_up(self._database, connection, session_id)
            return True

        return await self._database.write(write, prepare=self._store.is_restricted)

    async def decisions(
        self, session_id: str | None = None, *, since: datetime | None = None
    ) -> Decisions:
        """Return decisions, oldest first. They are kept after the run and after its session.

        Args:
            session_id: Only decisions about calls of this session. The id is cleared when the
                session is deleted.
            since: Only decisions from this time on; aware.

        Returns:
            The decisions. With a scoped catalog, only those about existing sessions in the scope.
        """
        return await read_decisions(self._store, session_id, since)

    async def delete_decisions(self, *, before: datetime) -> int:
        """Delete decisions that were made before a time.

        Args:
            before: The time; aware.

        Returns:
            The number of deleted decisions.
        """
        return await delete_decisions(self._store, before)


class _Part:
    """A run from its beginning, or from a pause or crash, to its end or next pause."""

    _journal: Journal
    copies: Copies

    def __init__(self, runs: SessionRuns, request: _Request, lease: Lease) -> None:
        """Raises `ValueError` if the session is encrypted and what is recorded would not be."""
        self._runs = runs
        self._request = request
        self.lease = lease
        self._own = open_session(lease, runs.catalog._session_arguments)
        self._wrapped: Any = self._own if request.wrap is None else request.wrap(self._own)
        self._provider: Any = None
        if runs._encryption.encrypt is None and _is_encrypted(self._wrapped):
            raise ValueError(
                "the history is encrypted, and what the run records would not be; "
                "pass encrypt= and decrypt= to SessionRuns"
            )

    def begin(self) -> None:
        """Must be called when the lease has the run."""
        self._journal = self._own._journal = Journal(self.lease)
        self.copies = Copies(self._journal)

    async def run(self) -> SessionRun:
        async with self.storing_failure(), self.closing():
            agent, given, options = await self._prepare()
            task = asyncio.ensure_future(Runner.run(agent, given, **options))
            self.lease.start_renewing(task.cancel)
            return await self.end(await task)

    async def start(self) -> Any:
        """Begins to stream."""
        async with self.storing_failure():
            agent, given, options = await self._prepare()
            result = Runner.run_streamed(agent, given, **options)
            self.lease.start_renewing(result.cancel)
            return result

    @asynccontextmanager
    async def closing(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.lease.stop_renewing()
            if self._provider is not None:
                await self._provider.aclose()

    @asynccontextmanager
    async def storing_failure(self) -> AsyncIterator[None]:
        """Stores that the run has failed or was interrupted, if the block raises.

        A run that could not go on stays as it was: it can be for another agent or SDK.
        """
        try:
            yield
        except BaseException as error:
            if not self.lease.is_lost:
                await (
                    self._fail(error) if isinstance(error, Exception) else settle(self.release())
                )
            if self.lease.is_lost:
                raise self.lease.lost() from error
            raise

    async def _prepare(self) -> tuple[Any, Any, dict[str, Any]]:
        """Returns the arguments of the SDK's runner."""
        request, row, encryption = self._request, self.lease.row, self._runs._encryption
        options = {**self.lease.progress.options, **request.options, "session": self._wrapped}
        agent, hooks = request.agent, options.get("hooks")
        if self._journal.is_durable:
            agent = self.copies.of(agent)
            options["hooks"] = RecordedHooks(hooks, self.copies)
            options["run_config"], self._provider = recorded_config(
                options.get("run_config"), self._journal
            )
        if row.state is None:
            given = encryption.load(row.input)
        else:
            given = await self._load_state(agent, options.get("context"))
            usage = usage_of(given)
            if isinstance(hooks, SessionTracker) and usage is not None:
                hooks._resumes(usage, row.agent)
        self._journal.is_used = not self._journal.is_durable
        return agent, given, options

    async def _load_state(self, agent: Any, context: Any) -> Any:
        """Returns the state of the last pause, with the decisions since then."""
        lease = self.lease
        stored = self._runs._encryption.load(lease.row.state)
        if stored.get("$schemaVersion") not in SUPPORTED_SCHEMA_VERSIONS:
            raise StateVersionError(lease.session_id, stored.get("$schemaVersion"))
        state: Any = await RunState.from_json(agent, stored, context_override=context)
        for item in state.get_interruptions():
            decision = lease.decisions.get(item.call_id or "")
            if decision is not None and decision.approve:
                state.approve(item)
            elif decision is not None:
                state.reject(item, rejection_message=decision.message)
        return state

    # ---- ending ----

    async def end(self, result: Any) -> SessionRun:
        """Stores the outcome of a run that has finished or pauses."""
        lease, runs = self.lease, self._runs
        calls = pending_calls(result.interruptions)
        agent = self.copies.original(result.last_agent)
        if calls:
            state = dump_state(result, strict=self._request.strict_context)
            inside = self._journal.open_calls - {call.call_id for call in calls}
            values = {
                "progress": replace(lease.progress, inside=sorted(inside)).dump(),
                "status": WAITING,
                "agent": storable_text(agent.name),
                "state": runs._encryption.dump(state),
                "pending": dump_pending(calls, runs._encryption),
                "paused_at": runs._database.dialect.now(),
            }
            await self._end(WAITING, lease.sql.stop.values(**values))
        else:
            output = dump_final(result.final_output, agent)
            await self._end(None, lease.sql.finish, {"output": output, "agent": agent.name})
        self.copies.restore(result)
        final = None if calls else result.final_output
        return SessionRun(lease.session_id, final, calls, result)

    async def _end(
        self, status: str | None, statement: Any, outcome: dict[str, Any] | None = None
    ) -> None:
        """Ends the run, or this part of it, by a `held` statement."""
        lease, database = self.lease, self._runs._database
        is_found = False

        def write(connection: Connection) -> None:
            nonlocal is_found
            is_locked = lease.store.lock(connection, lease.session_id)
            if not (is_locked and lease.holds(connection, statement)):
                if is_found:  # An earlier attempt was committed, although it raised.
                    return
                raise lease.lost()
            is_found = True
            if outcome is not None:
                self._runs._keep_outcome(connection, lease.row, outcome)
            if status == WAITING:
                connection.execute(lease.sql.delete_steps, {"of_session": lease.session_id})
            lease.show(connection, status)

        await insist(lambda: database.write(write))

    async def _fail(self, error: Exception) -> None:
        lease = self.lease
        before = None if self._journal.is_used else getattr(lease.row, "status", None)
        if before == INTERRUPTED:
            return await self.release()
        text = storable_text(f"{type(error).__name__}: {error}"[:_MOST_ERROR])
        values = {"status": FAILED, "error": lease.encryption.seal(text)}
        try:
            await self._journal.flush()
            if before == WAITING:
                await self._end(WAITING, lease.sql.stop.values(status=WAITING))
            else:
                await self._end(FAILED, lease.sql.stop.values(**values), {"error": text})
        except SessionBusyError:
            pass
        except (SQLAlchemyError, OSError):
            shown = quoted(lease.session_id)
            logger.warning("the failed run of session %s was not stored", shown, exc_info=True)

    async def release(self) -> None:
        """Ends the lease early: the run is interrupted from now on."""
        with suppress(SessionBusyError, SQLAlchemyError, OSError):
            await self._journal.flush()
        await self.lease.release()


class StreamedRun:
    """A run that streams, as an async context manager that `SessionRuns.stream` returns.

    Args:
        runs: The runs that it belongs to.
        request: The arguments of `stream`.
    """

    def __init__(self, runs: SessionRuns, request: _Request) -> None:
        self._runs = runs
        self._request = request
        self._part: _Part | None = None
        self._outcome = SessionRun(request.session_id, None)
        self.result: Any = None
        """The SDK's streaming result; None if the outcome is that of an earlier call."""

    @property
    def final_output(self) -> Any:
        """The final output; None if the run waits or has not ended."""
        return self._outcome.final_output

    @property
    def interruptions(self) -> tuple[PendingCall, ...]:
        """The calls that the run waits for."""
        return self._outcome.interruptions

    @property
    def repeated(self) -> bool:
        """Whether the outcome is that of an earlier call with the same key."""
        return self._outcome.repeated

    async def __aenter__(self) -> StreamedRun:
        part = await self._runs._turn(self._request)
        if isinstance(part, SessionRun):
            self._outcome = part
        else:
            self.result = await part.start()
            self._part = part
        return self

    async def stream_events(self) -> AsyncIterator[Any]:
        """Yield the events of the SDK. At the end of them, the outcome is stored.

        Raises:
            SessionBusyError: If the run has lost its lease.
        """
        part = self._part
        if part is None:
            return
        try:
            async for event in self.result.stream_events():
                yield part.copies.restored(event)
        except Exception as error:  # noqa: BLE001  # raised again
            await self._end(error)
        await self._end()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._part is None:
            return
        task = self.result.run_loop_task
        if not task.done():
            self.result.cancel()
        await settle(asyncio.wait({task}))
        try:
            await self._end(None if task.cancelled() else task.exception())
        except Exception:
            if error is None:
                raise

    async def _end(self, problem: BaseException | None = None) -> None:
        """Stores the outcome, or that the run was interrupted if it has not come to an end."""
        part, self._part = self._part, None
        if part is None:
            return
        async with part.closing(), part.storing_failure():
            if problem is not None:
                raise problem
            if part.lease.is_lost:
                raise part.lease.lost()
            # The final output can be None.
            is_over = self.result.interruptions or self.result.final_output is not None
            if is_over or not was_cancelled(self.result):
                self._outcome = await part.end(self.result)
            else:
                await settle(part.release())


def _is_encrypted(session: Any) -> bool:
    """Finds the SDK's `EncryptedSession`, which needs an optional dependency, by its name."""
    while session is not None:
        if any(kind.__name__ == "EncryptedSession" for kind in type(session).__mro__):
            return True
        session = getattr(session, "__dict__", {}).get("underlying_session")
    return False


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _no_run(session_id: str) -> LookupError:
    return LookupError(f"session {quoted(session_id)} has no run that waits or can go on")

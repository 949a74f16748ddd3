"""`SessionRuns`: one run per session at a time, which survives crashes and waits for approvals."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, TypeAlias

from agents import Agent, Runner, RunState
from sqlalchemy import Connection, Table, delete, insert, literal, select, update
from sqlalchemy.exc import SQLAlchemyError

from agents_session_metadata._sdk import usage_of
from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.core.database import insist, settle
from agents_session_metadata.core.messages import delete_messages
from agents_session_metadata.core.rows import check_id, check_id_type, id_problem
from agents_session_metadata.core.store import LONGEST_PAGE, check_limit
from agents_session_metadata.errors import (
    RunFailedError,
    RunInterruptedError,
    SessionBusyError,
    SessionChangedError,
    SessionPausedError,
)
from agents_session_metadata.keys import RUN
from agents_session_metadata.query.filters import Where
from agents_session_metadata.text import quoted
from agents_session_metadata.tracking.tracker import SessionTracker
from agents_session_metadata.values import encode_metadata, storable_text

from .feature import FAILED, RUNNING, RUNS, WAITING, give_up
from .journal import Copies, Journal, RecordedHooks, recorded_config
from .lease import HistoryEnd, Lease, RunRow, history_end, read_locked
from .records import (
    STATUSES,
    Decision,
    PendingCall,
    RunInfo,
    RunPage,
    add_decision,
    delete_decisions,
    dump_pending,
    info,
    load_pending,
    microseconds,
    pending_calls,
    read_decisions,
    read_decisions_of,
    read_page,
)
from .session import Writes, open_session
from .values import (
    Cipher,
    Encryption,
    dump_final,
    dump_state,
    load_final,
    load_state,
)

logger: logging.Logger = logging.getLogger(__name__)

Interrupted = Literal["resume", "discard"]
Wrap = Callable[[Any], Any]
"""A function that wraps the session of a run, for example in an `EncryptedSession`."""

Decisions: TypeAlias = list[Decision]
"""The method `list` hides the class of this name."""

LONGEST_LEASE = timedelta(days=1)
_POLLS = tuple(0.02 * 2**n for n in range(5))
"""Seconds between two looks at a session that is busy, before jitter; the last one repeats."""
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


@dataclass(frozen=True)
class _Busy:
    run_id: str
    has_key: bool


@dataclass(frozen=True)
class _Begun:
    """A run that holds its lease. `is_other` if it must be finished before the caller's."""

    lease: Lease
    row: RunRow
    steps: dict[int, Any]
    decisions: dict[str, Decision]
    is_other: bool = False


@dataclass
class _Request:
    """One call of `run`, `stream` or `resume`. Without an input, it is a `resume`."""

    session_id: str
    agent: Agent[Any]
    input: Any = None
    key: str | None = None
    wait: float = 0
    interrupted: Interrupted | None = None
    durable: bool = True
    wrap: Wrap | None = None
    strict_context: bool = True
    force: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    waited_for: str | None = None

    @property
    def is_resume(self) -> bool:
        return self.input is None


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
        if not isinstance(catalog, SessionCatalog):
            raise TypeError(f"catalog must be a SessionCatalog, got {type(catalog).__name__}")
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
        request = _Request(
            session_id, agent, _checked_input(input), key, wait, interrupted, durable, session,
            strict_context, options=options,
        )  # fmt: skip
        _check(request)
        return await self._run(request)

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
        request = _Request(
            session_id, agent, _checked_input(input), key, wait, interrupted, durable, session,
            strict_context, options=options,
        )  # fmt: skip
        _check(request)
        return StreamedRun(self, request)

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
        request = _Request(
            session_id, agent, None, None, wait, None, True, session, strict_context, force, options
        )
        _check(request)
        return await self._run(request)

    async def _run(self, request: _Request) -> SessionRun:
        while True:
            begun = await self._begin(request)
            if isinstance(begun, SessionRun):
                return begun
            part = _Part(self, request, begun)
            outcome = await part.run()
            if not begun.is_other:
                return outcome

    # ---- beginning ----

    async def _begin(self, request: _Request) -> _Begun | SessionRun:
        """Waits for its turn."""
        deadline = time.monotonic() + request.wait
        if request.is_resume:
            if id_problem(request.session_id) is not None:
                raise no_run(request.session_id)
        else:
            check_id(request.session_id)
            await self._database.ensure(RUNS)
        while True:
            lease = Lease(self._store, request.session_id, self._lease)
            claim = partial(self._claim, request, lease)
            try:
                found = await self._database.write(lambda connection, _: claim(connection))  # noqa: B023
            except asyncio.CancelledError:
                await self._release(lease)
                raise
            if not isinstance(found, _Busy):
                return found
            if found.has_key:
                request.waited_for = found.run_id
            if not await self._is_free(request.session_id, deadline):
                raise SessionBusyError(request.session_id)

    async def _is_free(self, session_id: str, deadline: float) -> bool:
        """Waits until no run of the session works. Returns False at the deadline."""
        runs = self._table("_runs")
        works = select(literal(1)).where(
            runs.c.session_id == session_id,
            runs.c.status == RUNNING,
            runs.c.expires > self._database.dialect.now(),
        )
        polls = 0
        while (left := deadline - time.monotonic()) > 0:
            delay = _POLLS[min(polls, len(_POLLS) - 1)] * random.uniform(0.5, 1.5)  # noqa: S311  # no secret
            await asyncio.sleep(min(delay, left))
            polls += 1
            if not await self._database.read(
                lambda connection, _: connection.execute(works).first()
            ):
                return True
        return False

    def _claim(
        self, request: _Request, lease: Lease, connection: Connection
    ) -> _Begun | SessionRun | _Busy:
        """Begins or goes on with a run in one transaction, or returns why not."""
        session_id, store = request.session_id, self._store
        if request.is_resume:
            row = self._row(connection, session_id)
            if row is None:
                raise no_run(session_id)
            if row.is_working:
                connection.rollback()
                return _Busy(row.run_id, False)
            return self._go_on(connection, request, lease, row)
        store.enter_history(connection, session_id, must_exist=False)
        row = self._row(connection, session_id, is_locked=True)
        digest = None if request.key is None else _digest(request.key)
        if digest is not None:
            repeated = self._repeated(connection, request, digest)
            if repeated is not None:
                connection.rollback()
                return repeated
        if row is None:
            return self._start(connection, request, lease, digest)
        has_key = digest is not None and row.run_key == digest
        if row.is_working:
            connection.rollback()
            return _Busy(row.run_id, has_key)
        if row.is_waiting:
            if not has_key:
                raise SessionPausedError(session_id)
            calls = load_pending(row.pending, session_id, self._encryption)
            connection.rollback()
            return SessionRun(session_id, None, tuple(calls), repeated=True)
        if row.is_interrupted:
            if has_key:
                return self._go_on(connection, request, lease, row)
            if request.interrupted is None:
                raise RunInterruptedError(session_id)
            if request.interrupted == "resume":
                return self._go_on(connection, request, lease, row, is_other=True)
        give_up(self._database, connection, session_id)
        return self._start(connection, request, lease, digest)

    def _repeated(
        self, connection: Connection, request: _Request, digest: str
    ) -> SessionRun | None:
        keys = self._table("_run_keys")
        since = self._database.dialect.now() - self._keep
        found: Any = connection.execute(
            select(keys.c.run_id, keys.c.outcome).where(
                keys.c.session_id == request.session_id,
                keys.c.run_key == digest,
                keys.c.ended_at > since,
            )
        ).first()
        if found is None:
            return None
        outcome = self._encryption.load(found.outcome)
        if "error" in outcome:
            if found.run_id == request.waited_for:
                raise RunFailedError(request.session_id, outcome["error"])
            return None
        copies = Copies(Journal(Lease(self._store, "", 0), self._encryption, {}, (), durable=False))
        copies.of(request.agent)
        output = load_final(outcome["output"], copies.named(outcome["agent"]))
        return SessionRun(request.session_id, output, repeated=True)

    def _start(
        self, connection: Connection, request: _Request, lease: Lease, digest: str | None
    ) -> _Begun:
        session_id, dialect = request.session_id, self._database.dialect
        end = history_end(connection, self._database.tables, session_id)
        options = {
            "durable": request.durable,
            "inside": [],
            **{name: request.options[name] for name in ("max_turns",) if name in request.options},
        }
        values = {
            "session_id": session_id,
            "run_id": secrets.token_hex(16),
            "status": RUNNING,
            "token": lease.token,
            "run_key": digest,
            "agent": storable_text(request.agent.name),
            "options": json.dumps(options),
            "input": self._encryption.dump(request.input),
            "first_item": end.last_item,
            "base_item": end.last_item,
            "writes": "[]",
            **end._asdict(),
        }
        times = {"started_at": dialect.now(), "expires": dialect.now() + self._lease}
        connection.execute(insert(self._table("_runs")).values(**times), values)
        self._show(connection, session_id, RUNNING)
        nothing = dict.fromkeys(RunRow._fields)
        row = RunRow(**{**nothing, **values, "started_at": 0, "expires": 0, "now": 0})
        return _Begun(lease, row, {}, {})

    def _go_on(
        self,
        connection: Connection,
        request: _Request,
        lease: Lease,
        row: RunRow,
        *,
        is_other: bool = False,
    ) -> _Begun:
        session_id, database = row.session_id, self._database
        end = history_end(connection, database.tables, session_id)
        if end != (row.item_count, row.last_item) and not request.force:
            raise SessionChangedError(session_id, "its history has changed since the run stopped")
        options = json.loads(row.options)
        writes = row.writes
        if not options["durable"] and json.loads(writes):
            end = self._take_back(connection, row)
            writes = "[]"
        runs = self._table("_runs")
        changed = {
            "status": RUNNING,
            "token": lease.token,
            "error": None,
            "writes": writes,
            **end._asdict(),
        }
        times = {"expires": database.dialect.now() + self._lease}
        mine = update(runs).where(runs.c.session_id == session_id)
        connection.execute(mine.values(**times, **changed))
        if row.status != RUNNING:
            self._show(connection, session_id, RUNNING)
        steps = self._table("_run_steps")
        stored = select(steps.c.number, steps.c.value).where(steps.c.session_id == session_id)
        found: Any = connection.execute(stored.order_by(steps.c.number)).all()
        decisions = read_decisions_of(connection, self._table("_run_decisions"), [row])
        loaded = {number: self._encryption.load(text) for number, text in found}
        going = row._replace(writes=writes)
        return _Begun(lease, going, loaded, decisions.get(session_id, {}), is_other)

    def _take_back(self, connection: Connection, row: RunRow) -> HistoryEnd:
        """Deletes the items since the last pause of a run that was not recorded."""
        tables = self._database.tables
        messages = tables.messages
        own = select(messages.c.id).where(
            messages.c.session_id == row.session_id, messages.c.id > row.base_item
        )
        count = sum(json.loads(row.writes))
        ids = list(connection.scalars(own.order_by(messages.c.id).limit(count)))
        delete_messages(connection, tables, row.session_id, ids)
        return history_end(connection, tables, row.session_id)

    # ---- parts of transactions ----

    def _table(self, suffix: str) -> Table:
        return self._database.tables.group(RUNS)[suffix]

    def _row(
        self, connection: Connection, session_id: str, *, is_locked: bool = False
    ) -> RunRow | None:
        """Locks the session unless it is locked. Returns its run, or None without one."""
        if not is_locked:
            if not self._store.lock(connection, session_id):
                return None
            if not self._database.has_tables(connection, RUNS):
                return None
        return read_locked(connection, self._database.tables, self._database.dialect, session_id)

    def _show(self, connection: Connection, session_id: str, status: str | None) -> None:
        """Writes the metadata key of the run, or deletes it."""
        if status is None:
            self._store.rows.delete_keys(connection, session_id, [RUN])
        else:
            encoded = encode_metadata({RUN: status}, self._store.limits)
            self._store.rows.write(connection, session_id, encoded, ())

    def _keep_outcome(self, connection: Connection, row: RunRow, outcome: dict[str, Any]) -> None:
        if row.run_key is None:
            return
        keys, dialect = self._table("_run_keys"), self._database.dialect
        expired = keys.c.ended_at <= dialect.now() - self._keep
        of_key = keys.c.run_key == row.run_key
        own = keys.c.session_id == row.session_id
        connection.execute(delete(keys).where(own, expired | of_key))
        values = {
            "session_id": row.session_id,
            "run_key": row.run_key,
            "run_id": row.run_id,
            "outcome": self._encryption.dump(outcome),
        }
        connection.execute(insert(keys).values(ended_at=dialect.now()), values)

    async def _release(self, lease: Lease) -> None:
        """Ends a lease early: the run is interrupted from now on."""
        runs = self._table("_runs")
        own = runs.c.session_id == lease.session_id, runs.c.token == lease.token
        ended = update(runs).where(*own, runs.c.status == RUNNING).values(expires=0)
        try:
            await self._database.write(lambda connection, _: connection.execute(ended).close())
        except (SQLAlchemyError, OSError):
            shown = quoted(lease.session_id)
            logger.warning("the lease of session %s was not ended", shown, exc_info=True)

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
        return await self._database.read(
            lambda connection, queries: read_page(
                *(self._store, connection, queries, condition, status),
                *(limit, cursor, self._encryption),
            )
        )

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

        def write(connection: Connection, _: Any) -> RunInfo:
            row = self._row(connection, session_id)
            if row is None or row.is_failed:
                raise no_run(session_id)
            if row.is_working:
                raise SessionBusyError(session_id)
            if row.is_interrupted:
                raise RunInterruptedError(session_id)
            calls = load_pending(row.pending, session_id, Encryption())
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
            decisions = self._table("_run_decisions")
            values = {"approve": approve, "message": message, "decided_by": by}
            add_decision(connection, decisions, row, found[0], values)
            known = read_decisions_of(connection, decisions, [row])
            return info(row, known[session_id], self._encryption)

        if id_problem(session_id) is not None:
            raise no_run(session_id)
        return await self._database.write(write)

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
        if id_problem(session_id) is not None:
            return False

        def write(connection: Connection, _: Any) -> bool:
            row = self._row(connection, session_id)
            if row is None:
                return False
            if row.is_working:
                raise SessionBusyError(session_id)
            give_up(self._database, connection, session_id)
            return True

        return await self._database.write(write)

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
        after = None if since is None else microseconds(since, "since")
        return await self._database.read(
            lambda connection, queries: read_decisions(
                self._store, connection, queries, session_id, after
            )
        )

    async def delete_decisions(self, *, before: datetime) -> int:
        """Delete decisions that were made before a time.

        Args:
            before: The time; aware.

        Returns:
            The number of deleted decisions.
        """
        limit = microseconds(before, "before")
        return await self._database.write(
            lambda connection, queries: delete_decisions(self._store, connection, queries, limit)
        )


class _Part:
    """A run from its beginning, or from a pause or crash, to its end or next pause."""

    def __init__(self, runs: SessionRuns, request: _Request, begun: _Begun) -> None:
        self._runs = runs
        self._request = request
        self._begun = begun
        self._row = begun.row
        self.lease = begun.lease
        self._settings = json.loads(begun.row.options)
        self._journal = Journal(
            begun.lease,
            runs._encryption,
            begun.steps,
            self._settings["inside"] if begun.row.state is not None else (),
            durable=self._settings["durable"],
        )
        self._copies = Copies(self._journal)
        self._provider: Any = None

    async def run(self) -> SessionRun:
        task: asyncio.Task[Any] | None = None
        try:
            agent, given, options = await self._prepare()
            task = asyncio.ensure_future(Runner.run(agent, given, **options))
            self.lease.start_renewing(task.cancel)
            result = await _joined(task)
            return await self.end(result)
        except BaseException as error:
            failure = await self.fail(error)
            if failure is error:
                raise
            raise failure from error
        finally:
            await self.close()

    async def start(self) -> Any:
        """Begins to stream."""
        try:
            agent, given, options = await self._prepare()
            result = Runner.run_streamed(agent, given, **options)
        except BaseException as error:
            failure = await self.fail(error)
            await self.close()
            if failure is error:
                raise
            raise failure from error
        self.lease.start_renewing(result.cancel)
        return result

    async def close(self) -> None:
        await self.lease.stop_renewing()
        if self._provider is not None:
            await self._provider.aclose()

    async def _prepare(self) -> tuple[Any, Any, dict[str, Any]]:
        """Returns the arguments of the SDK's runner."""
        request, row, session_id = self._request, self._row, self.lease.session_id
        settings = self._runs.catalog._session_arguments
        writes = Writes(row.base_item, json.loads(row.writes))
        session: Any = open_session(self.lease, self._journal, writes, settings)
        if request.wrap is not None:
            session = request.wrap(session)
            if _is_encrypted(session) and self._runs._encryption.encrypt is None:
                raise ValueError(
                    "the history is encrypted, and what the run records would not be; "
                    "pass encrypt= and decrypt= to SessionRuns"
                )
        options = {**request.options, "session": session}
        if "max_turns" in self._settings:
            options.setdefault("max_turns", self._settings["max_turns"])
        agent, hooks = request.agent, options.get("hooks")
        if self._journal.is_durable:
            agent = self._copies.of(agent)
            options["hooks"] = RecordedHooks(hooks, self._copies)
            options["run_config"], self._provider = recorded_config(
                options.get("run_config"), self._journal
            )
        if row.state is None:
            return agent, self._runs._encryption.load(row.input), options
        stored = self._runs._encryption.load(row.state)
        state = await load_state(session_id, agent, stored, options.get("context"))
        for item in state.get_interruptions():
            decision = self._begun.decisions.get(item.call_id or "")
            if decision is not None and decision.approve:
                state.approve(item)
            elif decision is not None:
                state.reject(item, rejection_message=decision.message)
        usage = usage_of(state)
        if isinstance(hooks, SessionTracker) and usage is not None:
            hooks._resumes(usage, row.agent)
        return agent, state, options

    # ---- ending ----

    async def end(self, result: Any) -> SessionRun:
        """Stores the outcome of a run that has finished or pauses."""
        calls = tuple(pending_calls(result.interruptions))
        if calls:
            context = result.context_wrapper.context
            state = dump_state(result.to_state(), context, strict=self._request.strict_context)
            await self._write(partial(self._pause, state, calls, result.last_agent.name))
        else:
            last = self._copies.original(result.last_agent)
            output = dump_final(result.final_output, last)
            await self._write(partial(self._finish, {"output": output, "agent": last.name}))
        self._copies.restore(result)
        final = None if calls else result.final_output
        return SessionRun(self.lease.session_id, final, calls, result)

    async def fail(self, error: BaseException) -> BaseException:
        """Stores that the run has failed, or was interrupted. Returns the error to raise."""
        if self.lease.is_lost:
            return self.lease.lost()
        if not isinstance(error, Exception):
            await settle(self.release())
            return error
        try:
            async with self._journal.writing() as steps:
                await self._write(partial(self._fail, _text_of(error), steps))
        except SessionBusyError:
            return self.lease.lost()
        except (SQLAlchemyError, OSError):
            shown = quoted(self.lease.session_id)
            logger.warning("the failed run of session %s was not stored", shown, exc_info=True)
        return error

    async def release(self) -> None:
        """Ends the lease early: the run is interrupted from now on."""
        with suppress(SessionBusyError, SQLAlchemyError, OSError):
            await self._journal.flush()
        await self._runs._release(self.lease)

    async def _write(self, change: Callable[[Connection], None]) -> None:
        """Runs the last write of this part, which must begin by locking the session."""
        is_tried = False

        def write(connection: Connection, _: Any) -> None:
            nonlocal is_tried
            runs, lease = self._runs, self.lease
            row = runs._row(connection, lease.session_id)
            if is_tried and (row is None or row.token != lease.token or row.status != RUNNING):
                return  # An earlier attempt was committed, although an error was raised.
            is_tried = True
            if row is None or row.token != lease.token or not row.is_working:
                lease.is_lost = True
                raise lease.lost()
            change(connection)

        await insist(lambda: self._runs._database.write(write))

    def _finish(self, outcome: dict[str, Any], connection: Connection) -> None:
        runs, table = self._runs, self._runs._table("_runs")
        connection.execute(delete(table).where(table.c.session_id == self.lease.session_id))
        runs._keep_outcome(connection, self._row, outcome)
        runs._show(connection, self.lease.session_id, None)

    def _pause(
        self,
        state: dict[str, Any],
        calls: tuple[PendingCall, ...],
        agent: str,
        connection: Connection,
    ) -> None:
        runs, session_id = self._runs, self.lease.session_id
        asked = {call.call_id for call in calls}
        inside = [call for call in self._journal.open_calls if call not in asked]
        self._change(
            connection,
            status=WAITING,
            agent=storable_text(agent),
            options=json.dumps({**self._settings, "inside": inside}),
            state=runs._encryption.dump(state),
            pending=dump_pending(calls, runs._encryption),
            paused_at=runs._database.dialect.now(),
            base_item=runs._table("_runs").c.last_item,
            writes="[]",
        )
        steps = runs._table("_run_steps")
        connection.execute(delete(steps).where(steps.c.session_id == session_id))
        runs._show(connection, session_id, WAITING)

    def _fail(self, error: str, steps: list[tuple[int, str]], connection: Connection) -> None:
        runs = self._runs
        self._journal.insert(connection, steps)
        self._change(connection, status=FAILED, error=runs._encryption.seal(error))
        runs._keep_outcome(connection, self._row, {"error": error})
        runs._show(connection, self.lease.session_id, FAILED)

    def _change(self, connection: Connection, **values: Any) -> None:
        table = self._runs._table("_runs")
        own = table.c.session_id == self.lease.session_id
        connection.execute(update(table).where(own).values(expires=0, **values))


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
        self._outcome: SessionRun | None = None
        self.result: Any = None
        """The SDK's streaming result; None if the outcome is that of an earlier call."""

    @property
    def final_output(self) -> Any:
        """The final output; None if the run waits or has not ended."""
        return None if self._outcome is None else self._outcome.final_output

    @property
    def interruptions(self) -> tuple[PendingCall, ...]:
        """The calls that the run waits for."""
        return () if self._outcome is None else self._outcome.interruptions

    @property
    def repeated(self) -> bool:
        """Whether the outcome is that of an earlier call with the same key."""
        return self._outcome is not None and self._outcome.repeated

    async def __aenter__(self) -> StreamedRun:
        while True:
            begun = await self._runs._begin(self._request)
            if isinstance(begun, SessionRun):
                self._outcome = begun
                return self
            part = _Part(self._runs, self._request, begun)
            if not begun.is_other:
                self.result = await part.start()
                self._part = part
                return self
            await part.run()

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
                yield _with_originals(event, part._copies)
        except Exception as error:
            failure = await self._fail(part, error)
            if failure is error:
                raise
            raise failure from error
        await self._end(part)

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        part = self._part
        if part is None:
            return
        task = self.result.run_loop_task
        if not task.done():
            self.result.cancel()
        await settle(asyncio.wait({task}))
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            failure = await self._fail(part, problem)
            if error is None:
                raise failure
        else:
            await self._end(part, is_raised=error is None)

    async def _end(self, part: _Part, *, is_raised: bool = True) -> None:
        """Stores the outcome, or that the run was interrupted if it has not come to an end."""
        if self._part is None:
            return
        self._part = None
        try:
            has_ended = self.result.interruptions or self.result.final_output is not None
            if has_ended and not part.lease.is_lost:
                self._outcome = await part.end(self.result)
            else:
                await settle(part.release())
        except BaseException as error:
            raise await part.fail(error) from error
        finally:
            await part.close()
        if part.lease.is_lost and is_raised:
            raise part.lease.lost()

    async def _fail(self, part: _Part, error: BaseException) -> BaseException:
        self._part = None
        failure = await part.fail(error)
        await part.close()
        return failure


async def _joined(task: asyncio.Task[Any]) -> Any:
    """Waits for a run. If the caller is cancelled, the run is cancelled first."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            task.cancel()
            await settle(asyncio.wait({task}))
        raise


def _with_originals(event: Any, copies: Copies) -> Any:
    if event.type == "agent_updated_stream_event":
        changed = copy.copy(event)
        changed.new_agent = copies.original(event.new_agent)
        return changed
    if event.type == "run_item_stream_event":
        changed = copy.copy(event)
        changed.item = copy.copy(event.item)
        copies.restore_item(changed.item)
        return changed
    return event


def _is_encrypted(session: Any) -> bool:
    """Finds the SDK's `EncryptedSession`, which needs an optional dependency, by its name."""
    while session is not None:
        if any(kind.__name__ == "EncryptedSession" for kind in type(session).__mro__):
            return True
        session = vars(session).get("underlying_session") if hasattr(session, "__dict__") else None
    return False


def _text_of(error: BaseException) -> str:
    return storable_text(f"{type(error).__name__}: {error}"[:_MOST_ERROR])


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _checked_input(given: Any) -> Any:
    if isinstance(given, RunState):
        raise TypeError("input must be a string or a list of items, got RunState; use resume")
    if not isinstance(given, (str, list)):
        raise TypeError(f"input must be a string or a list of items, got {type(given).__name__}")
    return given


def _check(request: _Request) -> None:
    check_id_type(request.session_id)
    if not isinstance(request.agent, Agent):
        raise TypeError(f"agent must be an Agent, got {type(request.agent).__name__}")
    if request.key is not None and not isinstance(request.key, str):
        raise TypeError(f"key must be a string, got {type(request.key).__name__}")
    if request.key == "":
        raise ValueError("key must not be empty")
    if not request.wait >= 0:
        raise ValueError(f"wait must be a number of seconds, 0 or more, got {request.wait!r}")
    if request.interrupted not in (None, "resume", "discard"):
        raise ValueError(
            f"interrupted must be 'resume', 'discard' or None, got {quoted(request.interrupted)}"
        )


def no_run(session_id: str) -> LookupError:
    return LookupError(f"session {quoted(session_id)} has no run that waits or can go on")

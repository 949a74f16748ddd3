"""Takes the run of a session, and holds a lease on it.

A run holds its session by a token in its row. Each write of the run checks the token in a statement
of its transaction, so a process that has lost the lease cannot write. The lease also has a time.
When it has ended, others may take the run; until one does, the run is still held.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias
from weakref import WeakValueDictionary

import agents
from agents import Agent, RunConfig, RunErrorHandlers, RunHooks, Runner, RunState
from agents.exceptions import UserError
from agents.memory import Session
from agents.run_state import SUPPORTED_SCHEMA_VERSIONS
from sqlalchemy import (
    BigInteger,
    Connection,
    Delete,
    Insert,
    Integer,
    Select,
    Update,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import await_only
from typing_extensions import TypedDict

from agents_session_metadata._sdk import agent_named, check_runner_options
from agents_session_metadata.core.database import FAILURES, settle
from agents_session_metadata.core.messages import delete_messages
from agents_session_metadata.core.store import check_options
from agents_session_metadata.core.tables import SessionTables
from agents_session_metadata.dialects._dialect import Dialect
from agents_session_metadata.dialects.codes import HELD, error_code
from agents_session_metadata.errors import (
    KeyReusedError,
    LeaseLostError,
    LeaseLostReason,
    RunCancelledError,
    RunFailedError,
    RunInterruptedError,
    RunNotFoundError,
    SessionBusyError,
    SessionChangedError,
    SessionNotFoundError,
    SessionPausedError,
    StateVersionError,
)
from agents_session_metadata.keys import AGENT, RUN, normalize_agent
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.session import SQLAlchemyMetadataSession
from agents_session_metadata.text import quoted
from agents_session_metadata.usage.feature import newest_usage
from agents_session_metadata.values import (
    check_id,
    check_id_type,
    encode_metadata,
    id_problem,
    storable_text,
)

from .approvals import PendingCall, decided_calls, decisions_of, load_pending
from .feature import (
    CANCELLED,
    FAILED,
    FEATURE,
    INTERRUPTED,
    RUNNING,
    RUNS,
    STOPPED,
    WAITING,
    keep_outcome,
    keys_table,
    status_of,
    sweep_outcomes,
)
from .record import Encryption, Progress, RunRecord, load_final

logger: logging.Logger = logging.getLogger(__name__)

REPEATABLE_FOR = 10 * 60 * 1_000_000
"""For so many microseconds after a run has finished, `resume` returns its outcome."""

_OF_RUNNER = frozenset(inspect.signature(Runner.run).parameters) - {
    *("starting_agent", "input", "session")
}
_RENEWALS = 3
"""A lease is renewed this many times before it would end."""
_SHOWN_EVERY = 0.1
"""Seconds after which a record renews the lease: a further statement for each would be slow."""
_POLL, _LONGEST_POLL = 0.02, 0.32
"""Seconds between two looks at a session that is busy, which double, before jitter."""
_LONGEST_HOLD = 2.0
"""Seconds that a claim waits for the transaction of somebody else, even with `wait=0`."""


RunResult: TypeAlias = agents.RunResult
"""The SDK's result of a run: the type of `SessionRun.result`."""

StreamEvent: TypeAlias = agents.StreamEvent
"""An event of the SDK: what `StreamedRun.stream_events()` yields."""


class RunOptions(TypedDict, total=False):
    """Options of `SessionRuns.run`, `stream`, `resume` and `stream_resume`.

    ```python
    options: RunOptions = {"max_turns": 20, "context": {"user": "u1"}, "wait": 30}
    await runs.run("chat-1", agent, "Hello", **options)
    ```

    Attributes:
        wait: How many seconds to wait while a run of the session works; 0 by default.
        session: A function that wraps the session of the run, such as
            `lambda session: EncryptedSession("chat-1", session, key)`. `resume` needs it as well.
        strict_context: Whether a run that pauses raises if the SDK would not store its `context`
            as it is; True by default.
        context: As in `Runner.run`. When a run is resumed, it replaces the stored one.
        hooks: As in `Runner.run`, such as a `SessionTracker`.
        run_config: As in `Runner.run`.
        max_turns: As in `Runner.run`. `resume` takes that of the beginning by default; for a run
            that waited, the SDK takes it from the state.
        error_handlers: As in `Runner.run`.
        conversation_id: Only None: a session has the whole history itself.
        previous_response_id: Only None.
        auto_previous_response_id: Only False.
    """

    wait: float
    session: Callable[[SQLAlchemyMetadataSession], Session] | None
    strict_context: bool
    context: Any
    hooks: RunHooks[Any] | None
    run_config: RunConfig | dict[str, Any] | None
    max_turns: int | None
    error_handlers: RunErrorHandlers[Any] | None
    conversation_id: None
    previous_response_id: None
    auto_previous_response_id: Literal[False]


class NewRunOptions(RunOptions, total=False):
    """Options of `SessionRuns.run` and `stream`: `RunOptions` and these.

    Attributes:
        key: Identifies the request. While its run works, a call with the same key waits. If its
            process died or the run has failed, the call goes on with the run. After it has
            finished or paused, the call returns its outcome with `repeated=True`.
        interrupted: `"resume"` finishes an interrupted run of the session first, `"discard"` gives
            it up, or with `key` an interrupted or failed run of the same key.
        durable: Whether to record answers and outputs; True by default. Without, an interrupted or
            failed run begins again at its input or last pause, and what it added to the history
            since then is removed.
    """

    key: str | None
    interrupted: Literal["resume", "discard"] | None
    durable: bool


class ResumeOptions(RunOptions, total=False):
    """Options of `SessionRuns.resume` and `stream_resume`: `RunOptions` and these.

    Attributes:
        force: Whether to go on although others have changed the history, or the agent or its tools
            are not those of the record.
        takeover: Whether to take the run from a process that is known to be dead, before its lease
            has ended. If it lives, it cannot write any more.
    """

    force: bool
    takeover: bool


class StartOptions(NewRunOptions, ResumeOptions, total=False):
    """Options of `SessionRuns.start`."""


@dataclass(frozen=True)
class SessionRun:
    """The outcome of a run.

    Attributes:
        session_id: The id of its session.
        final_output: The final output; None if the run waits.
        interruptions: The calls that the run waits for; empty if it has finished.
        result: The SDK's result; None if the outcome is that of an earlier call.
        repeated: Whether the outcome is that of an earlier call.
    """

    session_id: str
    final_output: Any
    interruptions: tuple[PendingCall, ...] = ()
    result: RunResult | None = None
    repeated: bool = False


@dataclass(frozen=True)
class Request:
    """One call of a method that runs an agent. Made by `of`."""

    session_id: str
    agent: Agent[Any]
    input: Any
    options: dict[str, Any]
    """Those of the SDK's runner."""
    is_resume: bool = False
    wait: float = 0
    session: Callable[[Any], Any] | None = None
    strict_context: bool = True
    key: str | None = None
    interrupted: str | None = None
    durable: bool = True
    force: bool = False
    takeover: bool = False
    live: Callable[[RunRecord], Any] | None = None
    """Makes the `LiveAnswer` of a run that others can follow."""
    background: bool = False
    """True for `start`: `recover` goes on with the run."""
    only: str | None = None
    """The status of a run that is resumed; others are left alone."""

    @classmethod
    def of(
        cls,
        session_id: str,
        agent: Agent[Any],
        given: Any,
        options: Mapping[str, Any],
        *,
        is_resume: bool = False,
    ) -> Request:
        """To resume a run, `given` is what is added to one that waits, or None."""
        if not (isinstance(given, (str, list)) or (is_resume and given is None)):
            advice = "; use resume" if isinstance(given, RunState) and not is_resume else ""
            kind = type(given).__name__
            raise TypeError(f"input must be a string or a list of items, got {kind}{advice}")
        known = ResumeOptions if is_resume else NewRunOptions
        check_options(options, known.__annotations__.keys() | _OF_RUNNER)
        of_runner = {name: value for name, value in options.items() if name in _OF_RUNNER}
        ours: Any = {name: value for name, value in options.items() if name not in _OF_RUNNER}
        return cls(session_id, agent, given, of_runner, is_resume, **ours)

    def __post_init__(self) -> None:
        check_id_type(self.session_id)
        if not isinstance(self.agent, Agent):
            raise TypeError(f"agent must be an Agent, got {type(self.agent).__name__}")
        if not self.wait >= 0:
            raise ValueError(f"wait must be a number of seconds, 0 or more, got {self.wait!r}")
        if self.key is not None and not isinstance(self.key, str):
            raise TypeError(f"key must be a string, got {type(self.key).__name__}")
        if self.key == "":
            raise ValueError("key must not be empty")
        if self.interrupted not in (None, "resume", "discard"):
            raise ValueError(
                f"interrupted must be 'resume', 'discard' or None, got {quoted(self.interrupted)}"
            )
        if self.live and not self.durable:
            raise ValueError("a run that others can follow is recorded, got durable=False")
        for name in ("conversation_id", "previous_response_id", "auto_previous_response_id"):
            if self.options.get(name):
                raise UserError(
                    f"{name} cannot be combined with a session, which has the whole history itself"
                )
        check_runner_options(self.options)
        if not self.is_resume:
            check_id(self.session_id)

    @property
    def agent_name(self) -> str:
        return storable_text(self.agent.name)

    @property
    def digest(self) -> str | None:
        return None if self.key is None else _digest(self.key)


def content_of(agent: str, given: Any) -> str:
    """Tells requests with the same key apart."""
    return _digest(json.dumps([agent, given], sort_keys=True))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Settings:
    """The settings of all runs of a `SessionRuns`. Times are in microseconds."""

    store: ScopedStore
    lease: int
    keep: int
    encryption: Encryption
    session_options: dict[str, Any]


# ---- the lease ----


class Statements:
    """Built once per set of tables and database. `held` ones find the run of one lease only."""

    def __init__(self, tables: SessionTables, dialect: Dialect) -> None:
        runs, steps, _, _ = tables.group(RUNS).tables
        sessions, messages, now = tables.sessions, tables.messages, dialect.now()
        session: Any = bindparam("session")
        until: Any = now + bindparam("lease", type_=BigInteger)
        own = runs.c.session_id == session
        held = and_(own, runs.c.token == bindparam("lease_token"))
        # By an expression, so that no database walks through the ids of all sessions.
        newest = func.coalesce(func.max(messages.c.id + 0), 0).label("newest")
        in_history = messages.c.session_id == session
        end = select(func.count().label("items"), newest).where(in_history).subquery("history")
        written = {
            "expires": until,
            "alive_at": now,
            "progress": bindparam("new_progress"),
            "last_item": select(newest).where(in_history).scalar_subquery(),
        }
        columns = [column for column in runs.c if column is not runs.c.status]
        status = status_of(runs, dialect).label("status")
        rows = tables.metadata
        has_agent = exists().where(rows.c.session_id == session, rows.c.key == AGENT)
        read = select(*columns, status, end.c["items"], end.c.newest, has_agent.label("has_agent"))
        self.read: Select[Any] = dialect.locking(read.select_from(end.outerjoin(runs, own)))
        self.works: Select[Any] = select(runs.c.run_key).where(
            own, runs.c.status == RUNNING, runs.c.expires > now
        )
        mine = sessions.c.session_id == session
        session_row, run_row = select(sessions.c.session_id), select(runs.c.session_id)
        self.lock_now: Select[Any] = session_row.where(mine).with_for_update(nowait=True)
        self.lock_run_now: Select[Any] = run_row.where(own).with_for_update(nowait=True)
        alive = {"expires": until, "alive_at": now}
        self.start: Insert = insert(runs).values(status=RUNNING, started_at=now, **alive)
        token: Any = bindparam("lease_token")
        taken = {"status": RUNNING, "token": token, "attempts": bindparam("deaths", type_=Integer)}
        self.take: Update = update(runs).where(own).values(**taken, **written)
        of_run = steps.c.session_id == session
        stored = select(steps.c.number, steps.c.value).where(of_run)
        self.read_steps: Select[Any] = dialect.locking(stored.order_by(steps.c.number))
        self.newest: Select[Any] = select(newest).where(in_history)
        items = select(messages.c.id).where(in_history, messages.c.id > bindparam("base"))
        self.items_since: Select[Any] = items.order_by(messages.c.id)
        self.touch: Update = (
            update(sessions).where(mine).values(updated_at=func.current_timestamp())
        )
        self.renew: Update = update(runs).where(held).values(**alive)
        self.reset: Update = update(runs).where(held).values(attempts=0)
        self.is_held: Select[Any] = select(literal(1)).where(held)
        self.write: Update = update(runs).where(held).values(**written)
        self.stop: Update = update(runs).where(held).values(expires=0)
        self.finish: Delete = delete(runs).where(held)
        self.delete_steps: Delete = delete(steps).where(of_run)
        self.delete_batches: Delete = self.delete_steps.where(steps.c.number < 0)
        self.holder: Select[Any] = select(runs.c.token).where(own)
        keys = keys_table(tables)
        since = now - bindparam("age", type_=BigInteger)
        outcomes = select(keys).where(keys.c.session_id == session, keys.c.ended_at > since)
        self.end: Select[Any] = select(keys.c.outcome).where(
            keys.c.session_id == session, keys.c.run_id == bindparam("run_id")
        )
        self.newest_outcome: Select[Any] = outcomes.order_by(keys.c.ended_at.desc()).limit(1)
        is_key = keys.c.run_key == bindparam("run_key")
        self.outcome: Select[Any] = outcomes.where(is_key)
        self.delete_outcome: Delete = delete(keys).where(keys.c.session_id == session, is_key)
        number = bindparam("number", type_=Integer)
        value = bindparam("value", type_=steps.c.value.type)
        # Locked: a process that takes the run over reads its steps after this transaction.
        holder = select(runs.c.session_id, number, value).where(held).with_for_update()
        self.add_step: Insert = insert(steps).from_select(["session_id", "number", "value"], holder)


@lru_cache(maxsize=256)
def statements(tables: SessionTables, dialect: Dialect) -> Statements:
    return Statements(tables, dialect)


def _clock() -> float:
    """Seconds that also pass while the machine sleeps, where the system has such a clock."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class Lease:
    """The hold of this process on the run of a session. `duration` is in microseconds."""

    def __init__(self, store: ScopedStore, session_id: str, duration: int) -> None:
        self.store = store
        self.session_id = session_id
        self.lost: LeaseLostError | None = None
        self.was_cancelled: bool = False
        self.token: str = secrets.token_hex(16)
        self.sql: Statements = statements(store.database.tables, store.database.dialect)
        self._duration = duration
        self._own = {"session": session_id, "lease_token": self.token, "lease": duration}
        self._claimed = self._renewed = _clock()
        self.run_id: str | None = None

    def holds(self, connection: Connection, statement: Any, **values: Any) -> bool:
        """Executes a statement, and returns whether it has found its row."""
        return bool(connection.execute(statement, {**self._own, **values}).rowcount)

    def fence(self, connection: Connection, statement: Any, **values: Any) -> None:
        """Executes a statement that must find the run, or raises `LeaseLostError`."""
        if not self.holds(connection, statement, **values):
            raise self.lose(connection)

    def lose(self, connection: Connection) -> LeaseLostError:
        own: Any = {"session": self.session_id}
        reason: LeaseLostReason = "deleted"
        holder = connection.scalar(self.sql.holder, own)
        # By the run: another one can have begun since.
        end = connection.scalar(self.sql.end, {**own, "run_id": self.run_id})
        self.was_cancelled = end == STOPPED
        if holder not in (None, self.token):
            reason = "taken"
        elif holder is None and self.store.finds(connection, self.session_id):
            # The run is over. A process that had taken it has left an outcome.
            age = int((_clock() - self._claimed) * 1_000_000)
            outcome = connection.execute(self.sql.newest_outcome, {**own, "age": age}).first()
            is_own = outcome is not None and outcome.run_id == self.run_id
            was_given_up = outcome is None or (is_own and outcome.status == CANCELLED)
            reason = "stopped" if was_given_up else "taken"
        self.lost = LeaseLostError(self.session_id, reason)
        return self.lost

    async def check(self) -> None:
        """Raises if the lease is lost. Asks the database if others may have taken the run."""
        if self.lost is not None:
            raise self.lost
        if _clock() - self._renewed >= self._duration / 1_000_000:
            await self.renew()

    async def show(self) -> None:
        """Renews the lease after a record, so that lists show when the run last did something."""
        if _clock() - self._renewed >= _SHOWN_EVERY:
            with suppress(*FAILURES):
                await self.renew()

    async def renew(self) -> None:
        begun = _clock()
        write = self.store.database.write
        await write(lambda connection: self.fence(connection, self.sql.renew))
        self._renewed = begun

    async def look(self) -> None:
        """Raises if the lease is lost, without renewing it."""

        def look(connection: Connection) -> None:
            if connection.scalar(self.sql.is_held, self._own) is None:
                raise self.lose(connection)

        await self.store.database.read(look)

    async def keep(self, task: asyncio.Future[Any], on_loss: Callable[[], object]) -> None:
        """Renews the lease until a task ends."""
        pause = self._duration / 1_000_000 / _RENEWALS
        while not (await asyncio.wait({task}, timeout=pause))[0]:
            try:
                await self.renew()
            except LeaseLostError:  # noqa: PERF203  # once in a third of a lease
                on_loss()
                return
            except FAILURES:
                shown = quoted(self.session_id)
                logger.warning("the lease of session %s was not renewed", shown, exc_info=True)

    async def release(self) -> None:
        """Ends the lease early: the run is interrupted from now on."""
        try:
            await self.store.database.write(
                lambda connection: self.holds(connection, self.sql.stop)
            )
        except FAILURES:
            shown = quoted(self.session_id)
            logger.warning("the lease of session %s was not ended", shown, exc_info=True)


# ---- the run of a locked session ----


def read_run(store: ScopedStore, connection: Connection, session_id: str) -> Any:
    """Returns the run of a locked session, with the number of items and the newest one.

    Without a run, its columns are NULL.
    """
    read = statements(store.database.tables, store.database.dialect).read
    return connection.execute(read, {"session": session_id}).one()


def lock_run(store: ScopedStore, connection: Connection, session_id: str) -> Any:
    """Locks a session. Returns its run, or None without one."""
    if id_problem(session_id) is not None or not store.lock(connection, session_id):
        return None
    if not store.database.has_tables(connection, RUNS):
        return None
    row = read_run(store, connection, session_id)
    return None if row.run_id is None else row


def write_status(
    store: ScopedStore, connection: Connection, session_id: str, status: str, agent: str = ""
) -> None:
    """Writes the metadata key of the run and, if given, the session's agent."""
    values = {RUN: status, **({AGENT: normalize_agent(agent)} if agent else {})}
    store.rows.write(connection, session_id, encode_metadata(values, store.limits), ())


def store_outcome(settings: Settings, connection: Connection, row: Any, outcome: str) -> None:
    """Stores the outcome of the run in `row`, which ends now, and sweeps old ones."""
    keep_outcome(settings.store.database, connection, row.session_id, row, outcome)
    sweep_outcomes(settings.store.database, connection, settings.keep)


def give_up(
    settings: Settings, connection: Connection, session_id: str, outcome: str = "{}"
) -> None:
    """Ends the run of a locked session, as other features do, and sweeps old outcomes."""
    FEATURE.give_up(settings.store.database, connection, session_id, outcome)
    sweep_outcomes(settings.store.database, connection, settings.keep)


# ---- taking it ----


@dataclass(frozen=True)
class Claimed:
    """A run that this process has taken.

    Attributes:
        row: The columns of its row, as it was before. Without a status, it is new.
        record: Its record, with the lease.
        is_other: Whether it is an interrupted run of another request, to be finished first.
    """

    row: Any
    record: RunRecord
    is_other: bool = False


class _HeldError(Exception):
    """Another transaction holds the session's row."""


async def load_state(request: Request, row: Any, encryption: Encryption) -> Any:
    """Returns the state of the last pause of a run."""
    if agent_named(request.agent, row.agent) is None and not request.force:
        problem = f"its run waits in agent {quoted(row.agent)}, which is not there"
        raise SessionChangedError(request.session_id, problem)
    stored = encryption.load(row.state)
    if stored.get("$schemaVersion") not in SUPPORTED_SCHEMA_VERSIONS:
        raise StateVersionError(request.session_id, stored.get("$schemaVersion"))
    context = request.options.get("context")
    return await RunState.from_json(request.agent, stored, context_override=context)


class RunClaim:
    """Takes the run that a request asks for, when it is its turn."""

    def __init__(self, settings: Settings, request: Request, *, books: bool) -> None:
        self._settings = settings
        self._request = request
        self._books = books
        self._store = settings.store
        self._database = settings.store.database
        self._sql = statements(self._database.tables, self._database.dialect)
        self._waited_for: str | None = None
        """The run with the same key that the call has waited for."""

    async def take(self) -> Claimed | SessionRun:
        """Raises `SessionBusyError` if another run works until the request's time is over."""
        request = self._request
        self._database.check_writable()
        if not request.is_resume:
            await self._database.ensure(RUNS)
        begun = time.monotonic()
        deadline = begun + request.wait
        last_try = max(deadline, begun + _LONGEST_HOLD)
        line = self._line()
        is_first = line is None or not line.locked()
        if not is_first and await self._need_not_wait(if_free=False):
            with suppress(_HeldError):
                if (found := await self._attempt()) is not None:
                    return found
        async with _in_line(line, request.session_id, deadline):
            delay, is_free = _POLL, is_first
            while True:
                is_held = False
                if is_free or await self._need_not_wait(if_free=True):
                    try:
                        found = await self._attempt()
                    except _HeldError:
                        is_held = True
                    else:
                        if found is not None:
                            return found
                end = last_try if is_held else deadline
                if (left := end - time.monotonic()) <= 0:
                    raise SessionBusyError(request.session_id)
                pause = (_POLL if is_held else delay) * random.uniform(0.5, 1.5)  # noqa: S311  # no secret
                await asyncio.sleep(min(pause, left))
                delay, is_free = min(2 * delay, _LONGEST_POLL), is_held

    def _line(self) -> asyncio.Lock | None:
        request, loop = self._request, asyncio.get_running_loop()
        if not request.wait or request.takeover:
            return None
        place = id(self._database.engine.sync_engine), self._database.names
        return _lines.setdefault((*place, request.session_id, id(loop)), asyncio.Lock())

    async def _need_not_wait(self, *, if_free: bool) -> bool:
        """Looks, without a lock, whether an attempt could end the wait.

        That is so if no run works, and also if the answer to the key does not depend on its end.
        """
        request = self._request
        own = {"session": request.session_id, "run_key": request.digest, "age": self._settings.keep}

        def look(connection: Connection) -> bool:
            working = connection.execute(self._sql.works, own).first()
            if working is None or request.key is None:
                return if_free and working is None
            if working.run_key == request.digest:
                return request.background
            return connection.execute(self._sql.outcome, own).first() is not None

        return await self._database.read(look)

    async def _attempt(self) -> Claimed | SessionRun | None:
        lease = Lease(self._store, self._request.session_id, self._settings.lease)
        try:
            return await self._database.write(partial(self._claim, lease))
        except asyncio.CancelledError:
            await settle(lease.release())
            raise

    def _claim(self, lease: Lease, connection: Connection) -> Claimed | SessionRun | None:
        """Begins or goes on with a run in one transaction. Returns None if another one works."""
        request, session_id = self._request, self._request.session_id
        is_there, is_same = self._lock(connection), request.is_resume
        outcome: SessionRun | None = None
        if request.is_resume:
            row, outcome = self._run_to_resume(connection, is_there=is_there)
        else:
            if not is_there:
                self._store.enter_history(connection, session_id, must_exist=False)
            row = read_run(self._store, connection, session_id)
            if request.key is not None:
                is_same = row.run_key == request.digest
                outcome = self._outcome(connection, row, is_same=is_same)
        if outcome is not None:
            connection.rollback()
            return outcome
        if row.status == RUNNING and not request.takeover:
            self._waited_for = row.run_id if is_same else self._waited_for
            connection.rollback()
            is_begun = request.background and is_same and not request.is_resume
            return SessionRun(session_id, None, repeated=True) if is_begun else None
        if row.status == WAITING and not is_same:
            raise SessionPausedError(session_id)
        if row.status == INTERRUPTED and not is_same and request.interrupted is None:
            raise RunInterruptedError(session_id)
        is_other = row.status == INTERRUPTED and not is_same and request.interrupted == "resume"
        anew = request.interrupted == "discard" and row.status in (INTERRUPTED, FAILED)
        if row.run_id is not None and (is_other or (is_same and not anew)):
            return self._go_on(lease, connection, row, is_other=is_other)
        if row.run_id is not None:
            give_up(self._settings, connection, session_id)
            row = read_run(self._store, connection, session_id)
        if is_same and request.digest is not None:
            own = {"session": session_id, "run_key": request.digest}
            connection.execute(self._sql.delete_outcome, own)
        return self._start(lease, connection, row)

    def _lock(self, connection: Connection) -> bool:
        """Locks the session and its run, and raises `_HeldError` if that would wait for others."""
        store, session_id = self._store, self._request.session_id
        if id_problem(session_id) is not None:
            return False
        own = {"session": session_id}
        try:
            if not self._database.dialect.locks_rows:
                return store.lock(connection, session_id)
            found = connection.execute(self._sql.lock_now, own).first()
            if found is not None and self._database.has_tables(connection, RUNS):
                connection.execute(self._sql.lock_run_now, own)
        except DBAPIError as error:
            if error_code(error) in HELD:
                raise _HeldError from error
            raise
        if found is None:
            return False
        if not store.admits(connection, session_id):
            if self._request.is_resume:
                return False
            raise SessionNotFoundError(session_id)
        return True

    def _run_to_resume(
        self, connection: Connection, *, is_there: bool
    ) -> tuple[Any, SessionRun | None]:
        """Returns the run of the session, or the outcome of the last one, or raises."""
        store, session_id = self._store, self._request.session_id
        if not (is_there and self._database.has_tables(connection, RUNS)):
            raise RunNotFoundError(session_id)
        row = read_run(store, connection, session_id)
        if row.run_id is not None and self._request.only in (None, row.status):
            return row, None
        if self._request.only is not None or self._request.input is not None:
            raise RunNotFoundError(session_id)
        own = {"session": session_id, "age": REPEATABLE_FOR}
        found = connection.execute(self._sql.newest_outcome, own).first()
        if found is None or found.status == CANCELLED:
            raise RunNotFoundError(session_id)
        outcome = self._settings.encryption.load(found.outcome)
        if "output" not in outcome:
            raise RunNotFoundError(session_id)
        return row, self._repeated(outcome)

    def _outcome(self, connection: Connection, row: Any, *, is_same: bool) -> SessionRun | None:
        """Returns the outcome of an earlier request with this key, if there is one.

        Raises the error with which its run has ended, unless the request can go on with it.
        """
        request, session_id = self._request, self._request.session_id
        key = request.key or ""
        if is_same:
            first = Progress.load(row.progress).agent
            stored, given = self._settings.encryption.load(row.input), request.input
            if first not in (None, request.agent_name) or stored != json.loads(json.dumps(given)):
                raise KeyReusedError(session_id, key)
            if row.status == WAITING:
                calls = load_pending(row.pending, self._settings.encryption)
                return SessionRun(session_id, None, tuple(calls), repeated=True)
        own = {"session": session_id, "run_key": request.digest, "age": self._settings.keep}
        found = connection.execute(self._sql.outcome, own).first()
        if found is None:
            return None
        if found.status == CANCELLED:
            raise RunCancelledError(session_id)
        outcome = self._settings.encryption.load(found.outcome)
        content = content_of(request.agent_name, request.input)
        if outcome.get("content", content) != content:
            raise KeyReusedError(session_id, key)
        if "output" in outcome:
            return self._repeated(outcome)
        if not is_same or (row.status == FAILED and found.run_id == self._waited_for):
            raise RunFailedError(session_id, outcome["error"])
        return None

    def _repeated(self, outcome: Any) -> SessionRun:
        agent = agent_named(self._request.agent, outcome["agent"])
        output = load_final(outcome["output"], agent)
        return SessionRun(self._request.session_id, output, repeated=True)

    def _start(self, lease: Lease, connection: Connection, end: Any) -> Claimed:
        """`end` is the row that `read_run` returned."""
        request, encryption = self._request, self._settings.encryption
        options = request.options
        progress = Progress(
            request.durable,
            {"max_turns": options["max_turns"]} if "max_turns" in options else {},
            first=end.newest,
            base=end.newest,
            items=end.items,
            agent=request.agent_name,
            ledger=self._newest_usage(connection),
            live=request.live is not None,
            background=request.background,
        )
        values = {
            "session_id": request.session_id,
            "run_id": secrets.token_hex(16),
            "token": lease.token,
            "run_key": request.digest,
            "agent": request.agent_name,
            "input": encryption.dump(request.input),
            "progress": progress.dump(),
            "last_item": end.newest,
        }
        connection.execute(self._sql.start, {**values, "lease": self._settings.lease})
        agent = "" if end.has_agent else request.agent_name
        write_status(self._store, connection, request.session_id, RUNNING, agent)
        row = SimpleNamespace(**values, state=None, pause=None, status=None)
        lease.run_id = row.run_id
        return Claimed(row, RunRecord(lease, progress, encryption, {}, {}))

    def _go_on(self, lease: Lease, connection: Connection, row: Any, *, is_other: bool) -> Claimed:
        request, session_id = self._request, self._request.session_id
        progress, encryption = Progress.load(row.progress), self._settings.encryption
        if not request.force:
            if progress.agent not in (None, request.agent_name):
                problem = f"its run began with agent {quoted(progress.agent)}, not "
                raise SessionChangedError(session_id, problem + quoted(request.agent_name))
            if (row.items, row.newest) != (progress.items, row.last_item):
                problem = "its history has changed since the run stopped"
                raise SessionChangedError(session_id, problem)
        added = request.input if request.is_resume else None
        if added is not None:
            if row.status != WAITING:
                raise ValueError(
                    f"input is added to runs that wait; that of session {quoted(session_id)} is "
                    f"{row.status}"
                )
            # Nothing is written if the SDK refuses it.
            await_only(load_state(request, row, encryption)).add_input(added)
        if row.status == WAITING:
            progress = replace(progress, base=row.last_item, writes=[])
        progress = replace(progress, items=row.items)
        if not progress.durable and progress.writes:
            progress = self._take_back(connection, progress)
        options = dict(progress.options)
        if "max_turns" in request.options:
            given, before = request.options["max_turns"], options.get("max_turns", 0)
            options["max_turns"] = None if given is None or before is None else max(given, before)
        was_live, ledger = progress.live, progress.ledger
        progress = replace(
            progress,
            options=options,
            ledger=self._newest_usage(connection) if ledger is None else ledger,
            live=request.live is not None and progress.durable,
            background=progress.background or request.background,
        )
        was_working = row.status in (RUNNING, INTERRUPTED)
        # A process that has ended the lease itself did not die. Others count until a step is
        # recorded.
        deaths = (row.attempts or 0) + (row.expires > 0) if was_working else 0
        own = {"session": session_id}
        taken = {"lease_token": lease.token, "lease": self._settings.lease, "deaths": deaths}
        connection.execute(self._sql.take, {**own, **taken, "new_progress": progress.dump()})
        if not was_working:
            write_status(self._store, connection, session_id, RUNNING)
        if was_live:
            connection.execute(self._sql.delete_batches, own)
        steps: Any = connection.execute(self._sql.read_steps, own)
        loaded = {number: encryption.load(text) for number, text in steps}
        step = {"input": json.loads(json.dumps(added))}
        # A resume that was refused has left its input, which is not added again by a repetition.
        if added is not None and step not in loaded.values():
            number = max(loaded, default=-1) + 1
            loaded[number], value = step, encryption.dump(step)
            lease.fence(connection, self._sql.add_step, number=number, value=value)
        found = decisions_of(connection, self._database, [session_id]) if row.state else {}
        calls = load_pending(row.pending, Encryption())
        decided = decided_calls(calls, found.get(session_id, ()))
        record = RunRecord(lease, progress, encryption, loaded, decided, deaths)
        lease.run_id = row.run_id
        return Claimed(row, record, is_other)

    def _take_back(self, connection: Connection, progress: Progress) -> Progress:
        """Deletes what an unrecorded run has added, because it begins again."""
        session_id = self._request.session_id
        base = {"session": session_id, "base": progress.base}
        items = connection.scalars(self._sql.items_since, base).all()
        taken_back = list(items[: sum(progress.writes)])
        delete_messages(self._database, connection, session_id, taken_back)
        return replace(progress, writes=[], items=progress.items - len(taken_back))

    def _newest_usage(self, connection: Connection) -> int | None:
        if not self._books:
            return None
        return newest_usage(connection, self._store, self._request.session_id)


# ---- waiting in line ----

_lines: WeakValueDictionary[tuple[Any, ...], asyncio.Lock] = WeakValueDictionary()
"""By database, session and event loop: held by the caller that looks whether its run has ended."""


@asynccontextmanager
async def _in_line(
    line: asyncio.Lock | None, session_id: str, deadline: float
) -> AsyncIterator[None]:
    """Lets one of the callers that wait for a session look at it, the others wait for that one.

    Raises `SessionBusyError` at the deadline.
    """
    if line is None:
        yield
        return
    entering = asyncio.ensure_future(line.acquire())
    try:
        await asyncio.wait({entering}, timeout=max(0.0, deadline - time.monotonic()))
        if not entering.done():
            raise SessionBusyError(session_id)
        yield
    finally:
        if not entering.cancel() and not entering.cancelled():
            line.release()

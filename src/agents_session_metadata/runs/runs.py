"""`SessionRuns`: one run per session at a time, which survives crashes and waits for approvals."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import datetime, timedelta
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agents import Agent, RunResultStreaming, TResponseInputItem
from agents.memory import Session
from sqlalchemy import Connection
from typing_extensions import Unpack

from agents_session_metadata._sdk import cancel_once
from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.errors import (
    RunInterruptedError,
    RunNotFoundError,
    SessionBusyError,
)
from agents_session_metadata.query.filters import Where
from agents_session_metadata.query.pages import LONGEST_PAGE, check_limit
from agents_session_metadata.session import SQLAlchemyMetadataSession
from agents_session_metadata.text import quoted
from agents_session_metadata.values import check_id_type, id_problem

from .approvals import (
    STATUSES,
    Decision,
    PendingCall,
    RunFilter,
    RunInfo,
    RunPage,
    add_decision,
    delete_decisions,
    infos_of,
    load_pending,
    read_decisions,
    read_page,
)
from .claim import (
    NewRunOptions,
    Request,
    ResumeOptions,
    SessionRun,
    Settings,
    StartOptions,
    StreamEvent,
    give_up,
    lock_run,
)
from .feature import FAILED, INTERRUPTED, RUNNING
from .record import Cipher, Encryption
from .work import Work, take_turn

if TYPE_CHECKING:
    from agents_session_metadata.background.runs import BackgroundRuns

LONGEST_LEASE = timedelta(days=1)


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
        self._options: Any = {"lease": lease, "keep": keep, "encrypt": encrypt, "decrypt": decrypt}
        self._works: dict[asyncio.Task[None], str] = {}
        """The tasks of `start`, with their sessions."""
        self._store = catalog._store
        self._settings = Settings(
            catalog._store,
            lease // timedelta(microseconds=1),
            keep // timedelta(microseconds=1),
            Encryption(encrypt, decrypt),
            catalog._session_arguments,
        )

    def with_catalog(self, catalog: SessionCatalog) -> SessionRuns:
        """Return runs with the same options on another catalog, such as a scoped one.

        ```python
        await runs.with_catalog(runs.catalog.scoped({"owner_id": "u1"})).cancel("chat-1")
        ```

        It does no I/O. `aclose` of these runs ends what the others have begun by `start`, too.

        Args:
            catalog: A catalog of the same tables.
        """
        found = SessionRuns(catalog, **self._options)
        found._works = self._works
        return found

    # ---- running ----

    async def run(
        self,
        session_id: str,
        agent: Agent[Any],
        input: str | list[TResponseInputItem],  # noqa: A002  # as in the SDK
        **options: Unpack[NewRunOptions],
    ) -> SessionRun:
        """Run an agent as `Runner.run` does, while no other run of the session works.

        A failed run of the session is given up first.

        Args:
            session_id: The session's id. The session is created if it does not exist.
            agent: The agent.
            input: The input, as in `Runner.run`.
            **options: As in `NewRunOptions`.

        Returns:
            The outcome.

        Raises:
            SessionBusyError: If another run works and did not end in time.
            LeaseLostError: If this run has lost its lease.
            SessionPausedError: If another run waits for approvals.
            RunInterruptedError: If another run was interrupted, without `interrupted`.
            RunFailedError: If this call waited for a run with the same key, which failed, or such a
                run failed and was replaced by another one.
            RunCancelledError: If the run with this key was given up.
            KeyReusedError: If the key was used with another input or another agent.
            SessionNotFoundError: If the session is outside the scope.
            TypeError: If an argument is unknown or has the wrong type. Nothing is written.
            ValueError: If the session is encrypted and there is no `encrypt`, or an argument is
                invalid.
        """
        return await self._run(Request.of(session_id, agent, input, options))

    def stream(
        self,
        session_id: str,
        agent: Agent[Any],
        input: str | list[TResponseInputItem],  # noqa: A002  # as in the SDK
        *,
        live: bool = False,
        **options: Unpack[NewRunOptions],
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
            session_id: As in `run`.
            agent: The agent.
            input: The input.
            live: Whether `follow` shows the answer while it is written.
            **options: As in `NewRunOptions`.

        Returns:
            An async context manager, which begins the run and raises the errors of `run`.
        """
        request = Request.of(session_id, agent, input, options)
        return self._background.stream(request) if live else self._streamed(request)

    async def resume(
        self,
        session_id: str,
        agent: Agent[Any],
        *,
        input: str | list[TResponseInputItem] | None = None,  # noqa: A002  # as in `run`
        **options: Unpack[ResumeOptions],
    ) -> SessionRun:
        """Go on with a run that waits, was interrupted or has failed.

        Decisions are applied; if calls are undecided, the run waits again. Recorded answers and
        outputs are given back without calling models and tools. If another caller was faster and
        the run ended within the last ten minutes, its outcome is returned with `repeated=True`.

        Args:
            session_id: The session's id.
            agent: The agent that the run began with.
            input: A message of the user, or items, which a run that waits receives besides the
                decisions. It is stored before the run goes on, so a later `resume` adds it, too.
                The same input, passed again, is added once.
            **options: As in `ResumeOptions`.

        Returns:
            The outcome.

        Raises:
            RunNotFoundError: If the session has no run.
            SessionBusyError: If the run works.
            LeaseLostError: If this call has lost its lease.
            SessionChangedError: If others have changed the history, or the agents and tools are
                not the same as before. The run does not change.
            StateVersionError: If the SDK cannot read the state, which stays.
            TypeError: If an argument is unknown or has the wrong type.
            UserError: If the SDK cannot add the input to this run. Nothing is written.
            ValueError: If there is an input, and the run does not wait.
        """
        return await self._run(Request.of(session_id, agent, input, options, is_resume=True))

    def stream_resume(
        self,
        session_id: str,
        agent: Agent[Any],
        *,
        input: str | list[TResponseInputItem] | None = None,  # noqa: A002  # as in `run`
        **options: Unpack[ResumeOptions],
    ) -> StreamedRun:
        """Go on with a run as `resume` does, and stream it.

        ```python
        async with runs.stream_resume("chat-1", agent) as run:
            async for event in run.stream_events():
                ...
        ```

        Args:
            session_id: As in `resume`.
            agent: The agent that the run began with.
            input: What a run that waits receives besides the decisions.
            **options: As in `ResumeOptions`.

        Returns:
            An async context manager, which goes on with the run and raises the errors of `resume`.
        """
        return self._streamed(Request.of(session_id, agent, input, options, is_resume=True))

    async def _run(self, request: Request) -> SessionRun:
        taken = await take_turn(self._settings, request)
        return taken if isinstance(taken, SessionRun) else await taken.run()

    def _streamed(self, request: Request) -> StreamedRun:
        return StreamedRun(request.session_id, partial(take_turn, self._settings, request))

    # ---- in the background ----

    @cached_property
    def _background(self) -> BackgroundRuns:
        """Imported on first use: its folder stands above this one, which works without it."""
        name = f"{__name__.partition('.')[0]}.background.runs"
        made: BackgroundRuns = import_module(name).BackgroundRuns(self._settings, self._works)
        return made

    async def start(
        self,
        session_id: str,
        agent: Agent[Any],
        input: str | list[TResponseInputItem] | None = None,  # noqa: A002  # as in the SDK
        **options: Unpack[StartOptions],
    ) -> bool:
        """Begin a run in the background of this process, and return when it has begun.

        ```python
        await runs.start("chat-1", agent, "Hello", key=request_id)
        async for event in runs.follow("chat-1"):  # in any process
            ...
        ```

        The run does not end with the caller. In any process, `follow` yields its events, and
        `cancel` ends it. It streams; a model that cannot stream gives its whole answer at once. If
        the run fails, its error is logged and stored. `aclose` ends this process's runs. Hooks that
        are async context managers, such as a `SessionTracker`, are entered, and left at the end.

        Args:
            session_id: As in `run`.
            agent: The agent.
            input: The input. Without one, the run of the session goes on, as by `resume`.
            **options: As in `NewRunOptions`; without an input, as in `ResumeOptions`.

        Returns:
            Whether this call has begun a run or gone on with one. False if the run with this key
            works, waits or has ended.

        Raises:
            SessionBusyError: If another run works and did not end in time.
            ValueError: With `durable=False`.
            RunNotFoundError: Without an input, if the session has no run. All other errors are
                those of `run` and `resume`.
        """
        request = Request.of(session_id, agent, input, options, is_resume=input is None)
        return await self._background.start(request)

    async def aclose(self, wait: float = 20) -> None:
        """Wait for the runs that `start` has begun in this process, then interrupt the others.

        `recover` goes on with them, in any process and at once. `async with SessionRuns(catalog)`
        calls this at its end.

        Args:
            wait: How many seconds to wait for them.
        """
        if self._works:
            await self._background.aclose(wait)

    async def __aenter__(self) -> SessionRuns:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def follow(
        self,
        session_id: str,
        *,
        after: int | None = None,
        forever: bool = False,
        session: Callable[[SQLAlchemyMetadataSession], Session] | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield what the run of a session does, as JSON objects, in any process.

        The first event is a snapshot of what there is, and the others are what happens after it.
        They are those of a run that `start` or `stream(live=True)` has begun; of other runs, there
        are no events of an answer in progress.

        ```python
        {"type": "snapshot", "after": 17, "items": [...], "item_ids": [18, None], "events": [...]}
        {"type": "response.created"}
        {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0,
         "content_index": 0, "delta": "Hel"}
        {"type": "item", "item": {...}, "item_id": 18}
        {"type": "status", "status": "waiting",
         "pending": [{"call_id": ..., "tool": ..., "arguments": ..., "agent": ...}]}
        {"type": "status", "status": "finished", "output": ...}
        {"type": "status", "status": "failed", "error": {"type": "ValueError", "message": "no"}}
        {"type": "status", "status": "interrupted"}   # or "cancelled", or "ended"
        ```

        * `snapshot` replaces all that was shown after the item `after`, or everything if that is
          None. It has the items since then, and the events of the answer in progress.
        * `response.created`: an answer begins, and one that was in progress is void.
        * `response.output_text.delta`: the deltas of an answer, joined, are its text. Other events
          of an answer in progress are `response.output_item.added`, `response.refusal.delta`,
          `response.reasoning_text.delta`, `response.reasoning_summary_text.delta`,
          `response.function_call_arguments.delta` and `response.custom_tool_call_input.delta`, as
          in OpenAI's Responses API, without `sequence_number` and `logprobs`.
        * `item`: a finished message, call or output, as in the history. It takes the place of the
          events that have shown it.
        * `status`: the run waits for approvals, was interrupted, or has ended.

        `item_id` is the number of the item in the history, as in `SessionCatalog.list_items`, or
        None if it is not there yet. Items are not repeated when they get there. Messages and calls
        are shown as soon as the model has answered. Outputs of tools, and the last answer, are
        shown from the history, after guardrails have checked them; the deltas of an answer are
        shown while it is written, as by `Runner.run_streamed`. The error of a failed run can be
        None if it cannot be decrypted.

        Iteration goes on while the run is interrupted, and when another process goes on with it,
        which yields another snapshot. It ends after any other status. Without a run, there are no
        events; with `after`, there is one snapshot. Outside the scope, there are no events. After
        `cancelled`, read the history: calls without an output are gone from it.

        Events come usually within half a second. The followers of one process share their polls.
        There are no events inside agents that are used as tools, and not each delta of the model
        is an event of its own. After a compaction within the run, a snapshot shows all items.

        Args:
            session_id: The session's id.
            after: The id of an item: the first snapshot begins after it, or with the run if that
                began earlier. By default, it begins with the run.
            forever: Whether to go on after the end, with the resumed or the next run. A run, or
                items of other writers, that come between two polls are shown as a snapshot.
            session: A function that wraps the session, as for `run`, if its history is encrypted.

        Raises:
            TypeError: If `after` is not an integer.
            ValueError: If the run is encrypted and there is no `decrypt`.
        """
        if after is not None and type(after) is not int:
            raise TypeError(f"after must be the id of an item, got {quoted(after)}")
        if id_problem(session_id) is not None:
            return
        followed = self._background.follow(session_id, after, forever=forever, wrap=session)
        async with aclosing(followed) as events:
            async for event in events:
                yield event

    async def cancel(
        self,
        session_id: str,
        *,
        keep: bool = True,
        session: Callable[[SQLAlchemyMetadataSession], Session] | None = None,
    ) -> bool:
        """End a run that works, waits or was interrupted, wherever it works.

        When this returns, the run writes nothing any more. If it is live (`start`,
        `stream(live=True)`), its process stops within about a second, otherwise at its next record
        or renewal. Tools that are coroutines are cancelled; functions that run in threads end by
        themselves, and their output is not recorded. The caller of the run, and callers that wait
        with its key, get `RunCancelledError`.

        Its items stay in the history, except calls without an output. The text of the answer that a
        live run was writing stays as a message of the assistant with the status `incomplete`.

        Args:
            session_id: The session's id.
            keep: Whether to keep the text of the answer in progress.
            session: A function that wraps the session, as for `run`. Without it, no text is added
                to an encrypted history.

        Returns:
            Whether there was such a run.
        """
        check_id_type(session_id)
        return await self._background.cancel(session_id, keep=keep, wrap=session)

    async def recover(
        self,
        agent_of: Callable[[RunInfo], Any],
        *,
        max_attempts: int = 3,
        decided: bool = False,
    ) -> int:
        """Go on with the interrupted runs of `start`, in the background of this process.

        ```python
        def agent_of(info: RunInfo) -> Agent:
            return agents[info.agent]

        await runs.recover(agent_of)
        ```

        Of several processes, one goes on with a run. A run that cannot go on, such as one whose
        history was changed, is logged and left alone.

        Args:
            agent_of: Returns the agent that a run began with, or that and a dict of options as in
                `ResumeOptions`, or None to leave the run alone. It can be asynchronous.
            max_attempts: After so many processes have died without recording a further step, the
                run fails.
            decided: Whether to go on with runs that are ready, too: their calls are all decided.

        Returns:
            How many runs this call has resumed.
        """
        return await self._background.recover(agent_of, max_attempts=max_attempts, decided=decided)

    @asynccontextmanager
    async def recovering(
        self,
        agent_of: Callable[[RunInfo], Any],
        *,
        every: timedelta = timedelta(seconds=5),
        max_attempts: int = 3,
        decided: bool = False,
    ) -> AsyncIterator[None]:
        """Call `recover` again and again while the block is open, in any number of processes.

        ```python
        async with SessionRuns(catalog) as runs, runs.recovering(agent_of):
            ...
        ```

        Args:
            agent_of: As in `recover`.
            every: The time between two calls, before jitter.
            max_attempts: As in `recover`.
            decided: As in `recover`.
        """
        async with self._background.recovering(
            agent_of, every=every, max_attempts=max_attempts, decided=decided
        ):
            yield

    # ---- approvals ----

    async def list(
        self,
        status: RunFilter | None = None,
        where: Where | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RunPage:
        """Return a page of runs, newest first: `await runs.list("waiting", {"owner_id": "u1"})`.

        Args:
            status: Only runs with this status; all by default. `"ready"` gives those of the waiting
                runs whose calls are all decided; such a page can have fewer runs than `limit`
                although another one follows.
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
        return await read_page(
            self._store, self._settings.encryption, condition, status, limit, cursor
        )

    async def get(self, session_id: str) -> RunInfo | None:
        """Return the run of a session, or None if it has none.

        Args:
            session_id: The session's id.
        """
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
        always: bool = False,
    ) -> RunInfo:
        """Approve or reject a call: `decide("chat-1", call_id, approve=True)`. The newest counts.

        Args:
            session_id: The session's id.
            call_id: The call, as in `PendingCall`.
            approve: Whether to run the call.
            message: The text that the model receives for a rejected call.
            by: The person who decides.
            always: Whether the decision also holds for further calls of this tool by this agent in
                this run, and for those that wait now.

        Returns:
            The run.

        Raises:
            RunNotFoundError: If the session has no run that waits.
            LookupError: If the run does not wait for this call.
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
                raise RunNotFoundError(session_id)
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
            values = {"approve": approve, "message": message, "decided_by": by, "always": always}
            add_decision(connection, self._store.database, row, found[0], **values)
            return infos_of(connection, self._store.database, [row], self._settings.encryption)[0]

        return await self._store.database.write(write, prepare=self._store.is_restricted)

    async def discard(self, session_id: str, *, force: bool = False) -> bool:
        """Give up a run that does not work: `await runs.discard("chat-1")`.

        Its items stay in the history, except calls without an output; in an encrypted history,
        these stay too.

        Args:
            session_id: The session's id.
            force: Whether to give up a run that works, too, such as one whose process is known to
                be dead. If it lives, it cannot write any more.

        Returns:
            Whether there was one.

        Raises:
            SessionBusyError: If the run works, without `force`.
        """
        check_id_type(session_id)

        def write(connection: Connection) -> bool:
            row = lock_run(self._store, connection, session_id)
            if row is None:
                return False
            if row.status == RUNNING and not force:
                raise SessionBusyError(session_id)
            give_up(self._settings, connection, session_id)
            return True

        return await self._store.database.write(write, prepare=self._store.is_restricted)

    async def decisions(
        self, session_id: str | None = None, *, since: datetime | None = None
    ) -> builtins.list[Decision]:
        """Return decisions, oldest first. They are kept after the run and after its session.

        Args:
            session_id: Only decisions about calls of this session. The id is cleared when the
                session is deleted.
            since: Only decisions from this time on; aware.

        Returns:
            The decisions. With a scoped catalog, only those about existing sessions in the scope
            and, if the scope is an `owner_id`, about deleted sessions of this owner.
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


class StreamedRun:
    """A run that streams, as an async context manager that `SessionRuns.stream` returns.

    Args:
        session_id: The id of its session.
        begin: Waits for the turn of the run. Returns its work, or the outcome of an earlier call.
    """

    def __init__(self, session_id: str, begin: Callable[[], Awaitable[Any]]) -> None:
        self._begin = begin
        self._work: Work | None = None
        self._outcome = SessionRun(session_id, None)
        self.result: RunResultStreaming | None = None
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
        """True if the outcome is that of an earlier call."""
        return self._outcome.repeated

    async def __aenter__(self) -> StreamedRun:
        taken = await self._begin()
        if isinstance(taken, SessionRun):
            self._outcome = taken
        else:
            self.result = await taken.stream()
            self._work = taken
        return self

    async def stream_events(self) -> AsyncIterator[StreamEvent]:
        """Yield the events of the SDK. At the end of them, the outcome is stored.

        Raises:
            LeaseLostError: If the run has lost its lease.
        """
        if self._work is None or self.result is None:
            return
        try:
            async for event in self.result.stream_events():
                yield event
        except Exception:
            await self._end()
            raise
        await self._end()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.result is not None and self._work is not None and not self._work.has_ended:
            cancel_once(self.result)
        try:
            await self._end()
        except Exception:
            if error is None:
                raise

    async def _end(self) -> None:
        """Waits until the outcome is stored, or that the run was interrupted."""
        work, self._work = self._work, None
        if work is not None:
            self._outcome = await work.outcome()

"""`SessionTracker`: run hooks that record runs in the session's metadata."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agents import RunHooks
from agents.tracing import get_current_span, get_current_trace
from agents.usage import Usage
from sqlalchemy import Connection

from agents_session_metadata import keys
from agents_session_metadata.core.database import settle
from agents_session_metadata.errors import (
    BudgetExceededError,
    KeyReusedError,
    LeaseLostError,
    RunCancelledError,
    RunFailedError,
    RunInterruptedError,
    RunNotFoundError,
    SessionBusyError,
    SessionMetadataError,
    SessionPausedError,
    TablesMissingError,
)
from agents_session_metadata.lifecycle import AnySession, add_to, count_error, list_of, store_of
from agents_session_metadata.scope import ScopedStore
from agents_session_metadata.types import JSONValue, Metadata
from agents_session_metadata.usage.feature import USAGE, UsageEntry, add_usage
from agents_session_metadata.usage.prices import ModelPrice, check_prices
from agents_session_metadata.values import error_text, storable_text

from .accounting import Accounts, added_cost
from .budget import Budget, check_budget, read_owner
from .invocations import Invocation, record_invocations
from .titles import SessionTitler

if TYPE_CHECKING:
    from typing_extensions import Self

logger: logging.Logger = logging.getLogger(__name__)

MOST_TRACE_IDS = 20

_REFUSALS = (
    SessionBusyError,
    SessionPausedError,
    RunInterruptedError,
    RunFailedError,
    RunCancelledError,
    RunNotFoundError,
    KeyReusedError,
)
"""The errors of runs that did not begin."""

_warned: set[str] = set()
"""Warnings that were logged in this process and are not repeated."""


async def missing_ledger(store: ScopedStore) -> TablesMissingError | None:
    try:
        await store.database.ensure(USAGE)
    except TablesMissingError as missing:
        return missing
    return None


def warn_of_ledger(missing: TablesMissingError | None) -> None:
    """Logs once per process that the table of the ledger is missing, if it is."""
    if missing is not None and USAGE not in _warned:
        _warned.add(USAGE)
        logger.warning("usage is not recorded: %s", missing)


class SessionTracker(RunHooks[Any]):
    """Run hooks that record tool calls, tokens, duration and cost in the session's metadata.

    ```python
    async with SessionTracker(session) as hooks:
        await Runner.run(agent, "Hello", session=session, hooks=hooks)
    ```

    It adds up, over runs: `runs`, `requests`, `input_tokens`, `output_tokens`, `total_tokens`,
    `run_ms`, `agents`, `tool_calls`, `tools_used` and, when prices are given, `cost`. The ids of
    the newest 50 tool calls are kept under `invocations`, and their details under
    `invocation_details`; a call is not `ok` if the SDK did not report its end. The newest 20 trace
    ids are kept under `trace_ids`. An exception that leaves the block adds to
    `error_count` and sets `last_error`; a failure that your code catches inside the block is not
    recorded, because the SDK does not report it to hooks. The totals are correct if runs overlap,
    in one process or in several. All runs in an `async with` block are written when the block ends.
    Overlapping blocks of one tracker count as one block. Read a streamed run to its end inside the
    block.

    In the same transaction it adds the usage to the ledger that `SessionCatalog.usage` reads. If
    the ledger's table is missing and `create_tables` is off, it logs one warning per process.

    A session that does not exist, or was deleted during the run, is created to store the totals,
    unless it has `must_exist=True`. If the tracker cannot write, it logs a warning. It does not
    change the result or the error of a run.

    Args:
        session: The session, or an `EncryptedSession` around it.
        hooks: Run hooks of the application, each called after the tracker has recorded the event.
        prices: A price for every model, or prices by model name. The name is that of the agent's
            model, or of the SDK's default model. Usage of a model without a price is not counted
            in `cost`; the ledger names the model.
        clock: Returns seconds; for tests.
        titler: Writes a title after the first answered turn, in the background.
        model: The name under which all model calls are counted. The SDK does not report to hooks
            the model of a `RunConfig`, nor the calls that agents make inside tools. Without
            `model`, the former are counted under the agent's model, and the latter under the model
            None when the tool returns.
        budget: Refuses model calls when it is used up. The usage is then written before each call.

    Raises:
        TypeError: If `session` is not a session with metadata (a `SessionCatalog`, for example), or
            a price is not a `ModelPrice`.
    """

    def __init__(
        self,
        session: AnySession,
        *,
        hooks: RunHooks[Any] | None = None,
        prices: ModelPrice | Mapping[str, ModelPrice] | None = None,
        clock: Callable[[], float] = time.monotonic,
        titler: SessionTitler | None = None,
        model: str | None = None,
        budget: Budget | None = None,
    ) -> None:
        check_prices(prices)
        self.session = session
        self._store = store_of(session)
        self._hooks: RunHooks[Any] = RunHooks() if hooks is None else hooks
        self._prices = prices
        self._clock = clock
        self._titler = titler
        self._model = model
        self._budget = budget
        self._open_blocks = 0
        self._has_warned = False
        self._reset()

    def _reset(self) -> None:
        self._accounts = Accounts(self._prices, self._model)
        self._agents: dict[str, None] = {}
        self._trace_ids: dict[str, None] = {}
        self._calls: list[Invocation] = []
        self._open: dict[Any, tuple[Invocation, float]] = {}
        self._failures: list[str] = []
        self._refusal: BudgetExceededError | None = None
        self._raised: set[tuple[int, str]] = set()
        self._has_answer = False
        # Usage is booked for the owner at the model call, even if the session is deleted later.
        self._owner: JSONValue = None
        self._has_read_owner = False

    async def __aenter__(self) -> Self:
        if not self._open_blocks:
            self._reset()
        self._open_blocks += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A cancellation or an interrupt is not a failure.
        if isinstance(error, Exception) and not self._is_refusal(error):
            self._failures.append(error_text(error, 500))
        if error is not None:
            self._accounts.break_off(self._clock())
        self._open_blocks -= 1
        if not self._open_blocks:
            await settle(self._write())

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: Any, input_items: Any
    ) -> None:
        if self._sees(context):
            if self._budget is not None:
                await self._check_budget(self._budget, context.usage, agent)
            elif not self._has_read_owner:
                try:
                    await self._read_owner()
                except Exception:  # The call does not depend on it.
                    logger.debug("the owner of the session was not read", exc_info=True)
            self._accounts.call_starts(context.usage, _storable(agent.name), agent)
        elif self._budget is not None:
            raise RuntimeError(
                "a SessionTracker with a budget must be used in its `async with` block: "
                "usage outside it is not counted"
            )
        await self._hooks.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        if self._sees(context):
            name = _storable(agent.name)
            self._accounts.call_ends(context.usage, name, agent, response.usage)
        await self._hooks.on_llm_end(context, agent, response)

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        if self._sees(context):
            self._agents[_storable(agent.name)] = None
        await self._hooks.on_agent_start(context, agent)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        self._has_answer = True
        if self._sees(context):
            self._accounts.ends(context.usage)
        await self._hooks.on_agent_end(context, agent, output)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        await self._hooks.on_handoff(context, from_agent, to_agent)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        if self._sees(context):
            # A provider may use the same id again in another turn or run.
            now = datetime.now(timezone.utc).isoformat()
            call = Invocation(_call_id(context, tool), _storable(tool.name), 0, ok=False, at=now)
            self._calls.append(call)
            self._open[id(context.usage), call.id] = call, self._clock()
            self._accounts.tool_starts(context.usage, _storable(agent.name))
        await self._hooks.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        self._sees(context)
        opened = self._open.pop((id(context.usage), _call_id(context, tool)), None)
        if opened is not None:
            self._stop(*opened)
            opened[0].ok = not self._has_failed(context, tool)
        # Also of a tool that began before the run was resumed.
        self._accounts.tool_ends(context.usage, _storable(agent.name))
        await self._hooks.on_tool_end(context, agent, tool, result)

    # ---- called by `SessionRuns` ----

    @property
    def _chain(self) -> list[SessionTracker]:
        """This tracker and the one in its `hooks`, if their blocks are open."""
        inner = self._hooks._chain if isinstance(self._hooks, SessionTracker) else []
        return [self, *inner] if self._open_blocks else inner

    def _fails(self, context: Any, tool: Any) -> None:
        """Must be called when a tool has raised, before its `on_tool_end`."""
        self._raised.add((id(context.usage), _call_id(context, tool)))

    def _has_failed(self, context: Any, tool: Any) -> bool:
        """Hooks get only the text of an error. While tracing is on, the span has the error."""
        span = get_current_span()
        known = (id(context.usage), _call_id(context, tool)) in self._raised
        return known or (span is not None and span.error is not None)

    def _is_refusal(self, error: Exception) -> bool:
        """Returns whether a run did not begin."""
        is_refused = isinstance(error, _REFUSALS) and not isinstance(error, LeaseLostError)
        return is_refused or error is self._refusal

    def _sees(self, context: Any) -> bool:
        """Remembers a run by its usage, which nested runs share. Returns True if it is recorded."""
        if not self._open_blocks:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "hooks of a SessionTracker were called outside its `async with` block, and "
                    "nothing is recorded; run the agent inside the block, and read a streamed run "
                    "to its end there"
                )
            return False
        if self._accounts.see(context.usage, self._clock()):
            trace = get_current_trace()
            if trace is not None and trace.trace_id not in ("", "no-op"):
                self._trace_ids[_storable(trace.trace_id)] = None
        return True

    def _stop(self, call: Invocation, started: float) -> None:
        call.ms = round((self._clock() - started) * 1000)

    async def _read_owner(self) -> None:
        self._has_read_owner = True
        if self._owner is None:
            self._owner = await read_owner(self._store, self.session.session_id)

    async def _check_budget(self, budget: Budget, usage: Usage, agent: Any) -> None:
        """Writes the usage so far before the check, so that other runs count it."""
        await settle(self._flush())
        unpriced = dict(self._accounts.unpriced)
        model = self._accounts.model_of(agent)
        if self._accounts.price_of(model) is None:
            unpriced[model] = None
        await self._read_owner()
        session_id = self.session.session_id
        try:
            await check_budget(budget, self._store, session_id, self._owner, unpriced)
        except BudgetExceededError as error:
            if self._accounts.is_first_call(usage):
                self._refusal = error
            raise

    async def _flush(self) -> None:
        """Writes the counted usage to the ledger; keeps it for later if it was not written.

        If the commit fails, the usage may have been written. It is then dropped, lest it count
        twice.
        """
        entries, added = self._accounts.take(), list[bool]()
        if not entries:
            return
        try:
            await self._edit(
                entries, self._owner, lambda _: added.clear(), lambda: added.append(True)
            )
        except BaseException:
            if not added:
                for entry in entries:
                    self._accounts.add(entry)
            raise

    async def _write(self) -> None:
        """Logs errors instead of raising them."""
        failures, answered = self._failures, self._has_answer
        if not len(self._accounts) and not failures:
            return
        entries, owner = self._accounts.take(), self._owner
        change = self._change()
        self._reset()
        stored: Metadata | None = None
        try:
            stored = await self._edit(entries, owner, change)
        except Exception as error:
            logger.warning("what a run did could not be recorded", exc_info=True)
            lost = isinstance(error, SessionMetadataError)
            if lost and not isinstance(error, TablesMissingError):
                await self._write_ledger(entries, owner)
        if self._titler is not None and answered and not failures and stored is not None:
            self._titler.start(self.session, stored)

    def _change(self) -> Callable[[Metadata], None]:
        used, seconds = self._accounts.totals()
        cost, failures = self._accounts.cost, self._failures
        added = {
            keys.RUNS: len(self._accounts),
            keys.REQUESTS: used.requests,
            keys.INPUT_TOKENS: used.input_tokens,
            keys.OUTPUT_TOKENS: used.output_tokens,
            keys.TOTAL_TOKENS: used.total_tokens,
            keys.RUN_MS: round(seconds * 1000),
        }
        for opened in self._open.values():  # No hook is called if a call fails.
            self._stop(*opened)
        calls, agents, trace_ids = self._calls, self._agents, self._trace_ids

        def change(stored: Metadata) -> None:
            for key, number in added.items():
                add_to(stored, key, number)
            if self._prices is not None:
                stored[keys.COST] = added_cost(stored.get(keys.COST), cost)
            known = list_of(stored, keys.AGENTS)
            stored[keys.AGENTS] = [*known, *(each for each in agents if each not in known)]
            if agents:
                stored.setdefault(keys.AGENT, keys.normalize_agent(next(iter(agents))))
            if trace_ids:
                before = list_of(stored, keys.TRACE_IDS)
                newest = [*(each for each in before if each not in trace_ids), *trace_ids]
                stored[keys.TRACE_IDS] = newest[-MOST_TRACE_IDS:]
            if calls:
                record_invocations(self.session, stored, calls)
            for failure in failures:
                count_error(stored, failure, datetime.now(timezone.utc))

        return change

    async def _edit(
        self,
        entries: list[UsageEntry],
        owner: JSONValue,
        change: Callable[[Metadata], object],
        added: Callable[[], object] = lambda: None,
    ) -> Metadata:
        """Edits the metadata and adds to the ledger, unless that is missing, in one transaction."""
        store, session_id = self._store, self.session.session_id
        missing = await missing_ledger(store) if entries else None
        if missing is not None:
            entries = []

        def add(connection: Connection, metadata: Metadata) -> None:
            payer = metadata.get(keys.OWNER_ID) if owner is None else owner
            add_usage(connection, store, entries, session_id, payer)
            added()

        must_exist = getattr(self.session, "_must_exist", False)
        stored = await store.edit_metadata(session_id, change, must_exist=must_exist, also=add)
        warn_of_ledger(missing)
        return stored

    async def _write_ledger(self, entries: list[UsageEntry], owner: JSONValue) -> None:
        store = self._store
        if owner is None:
            owner = store.scope.values.get(keys.OWNER_ID)
        try:
            try:
                await self._edit(entries, owner, lambda _: None)
            except SessionMetadataError:  # The session has ended, or is not what it was.
                await store.database.write(
                    lambda connection: add_usage(connection, store, entries, None, owner)
                )
        except Exception:
            logger.warning("what a run used could not be recorded", exc_info=True)


def _call_id(context: Any, tool: Any) -> str:
    """Returns an id that is the same at the start and the end of a tool call."""
    return _storable(getattr(context, "tool_call_id", None) or f"{tool.name}-{id(context):x}")


def _storable(text: object) -> str:
    """Replaces characters that a database cannot store: the text may come from outside."""
    return storable_text(str(text))

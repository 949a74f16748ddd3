"""The session, models, tools and hooks of a run, which ask the record."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from agents import Agent, CustomTool, FunctionTool, ModelResponse, RunConfig, RunHooks
from agents.models.interface import Model, ModelProvider
from sqlalchemy import Connection, select

from agents_session_metadata._sdk import (
    NothingToCompact,
    Recorder,
    Silence,
    ToolAnswer,
    ToolCall,
    completed,
    intercept_runner,
    is_agent,
    response_of,
)
from agents_session_metadata.core.database import FAILURES, settle
from agents_session_metadata.core.messages import delete_messages, in_order
from agents_session_metadata.errors import SessionChangedError
from agents_session_metadata.session import SQLAlchemyMetadataSession
from agents_session_metadata.text import quoted
from agents_session_metadata.tracking.tracker import SessionTracker
from agents_session_metadata.usage.prices import model_name

from .record import Progress, RunRecord

intercept_runner()

_path: ContextVar[str] = ContextVar("path", default="")
"""The call inside which a model is called; empty outside of tools."""
_ARGUMENTS = inspect.signature(Model.get_response)
"""Those of `stream_response` are the same."""


# ---- models and tools ----


class RunRecorder(Recorder):
    """Gives back what is recorded, and records what is new.

    If `checks_tools`, a recorded call of a tool that is not there any more is refused.
    """

    def __init__(
        self,
        provider: ModelProvider,
        record: RunRecord,
        trackers: Iterable[SessionTracker],
        *,
        checks_tools: bool,
    ) -> None:
        super().__init__(provider)
        self.record = record
        self._trackers = tuple(trackers)
        self._checks_tools = checks_tools

    def around(self, model: Model, agent: Agent[Any], config: RunConfig) -> Any:
        named = model_name(agent) if config.model is None else model_name(config)
        return _RecordedModel(model, self, agent.name, named)

    async def answer(self, path: str, tools: Any, handoffs: Any) -> ModelResponse | None:
        """Returns the recorded answer, or None if the model must be asked."""
        response = self.record.answer(path)
        if response is None:
            await self.record.check()
        elif self._checks_tools and not path:
            self._check_tools(response, tools, handoffs)
        return response

    def _check_tools(self, response: ModelResponse, tools: Any, handoffs: Any) -> None:
        known = {*(each.name for each in tools), *(each.tool_name for each in handoffs)}
        for item in response.output:
            name = getattr(item, "name", None)
            if is_tool_call(item) and name not in known:
                problem = f"its run has called {quoted(name)}, which is not there"
                self.record.error = SessionChangedError(self.record.lease.session_id, problem)
                raise self.record.error

    async def invoke(self, tool: Any, context: Any, call: ToolCall) -> ToolAnswer:
        record, call_id = self.record, context.tool_call_id
        if _path.get():  # A tool of an agent that is used as a tool runs again with its agent.
            await record.check()
            answer = await call()
            for tracker in self._trackers if answer.raised else ():
                tracker._fails(context, tool)
            return answer
        found = record.output(call_id)
        if found is not None:
            return found
        await record.check()
        token = _path.set(record.call_key(call_id))
        try:
            answer = await call()
        finally:
            _path.reset(token)
        if record.error is not None:
            raise record.error
        record.unheard[call_id] = answer
        # An agent may wait inside. The hooks hear of its end only when it has ended.
        if not is_agent(tool):
            await record.add_output(call_id, answer)
        return answer


def is_tool_call(item: Any) -> bool:
    """Returns whether an item is a call of a function tool, a custom tool or a handoff."""
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return kind in ("function_call", "custom_tool_call")


class _RecordedModel:
    """A model that passes everything on to another one, but the two calls."""

    def __init__(self, model: Any, recorder: RunRecorder, agent: str, named: str | None) -> None:
        self._model = model
        self._recorder = recorder
        self._names = agent, named

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        given = _ARGUMENTS.bind(self, *args, **kwargs).arguments
        path = _path_of(given["input"])
        response = await self._recorder.answer(path, given["tools"], given["handoffs"])
        if response is None:
            response = await self._model.get_response(*args, **kwargs)
            await self._recorder.record.add_answer(path, response, *self._names)
        return response

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        given = _ARGUMENTS.bind(self, *args, **kwargs).arguments
        path = _path_of(given["input"])
        recorded = await self._recorder.answer(path, given["tools"], given["handoffs"])
        if recorded is not None:
            yield completed(recorded)
            return
        items: list[Any] = []
        live = None if path else self._recorder.record.live
        stream = (
            self._model.stream_response(*args, **kwargs)
            if live is None
            else live.stream(self._model, args, kwargs)
        )
        try:
            async for event in stream:
                response = response_of(event, items)
                if response is not None:
                    await self._recorder.record.add_answer(path, response, *self._names)
                yield event
        finally:
            if hasattr(stream, "aclose"):
                await stream.aclose()


def _path_of(given: Any) -> str:
    """Tells apart the runs inside one tool, which can be parallel, by what they begin with."""
    path = _path.get()
    if not path:
        return path
    first = given if isinstance(given, str) else given[:1]
    digest = hashlib.sha256(json.dumps(first, sort_keys=True, default=str).encode())
    return f"{path} {digest.hexdigest()[:16]}"


# ---- hooks ----


class RecordedHooks(RunHooks[Any]):
    """Forwards to hooks what happens now, and not what is given back.

    Records the outputs of agents that are used as tools, and the errors of custom tools.
    """

    def __init__(
        self, hooks: RunHooks[Any] | None, record: RunRecord, trackers: Iterable[SessionTracker]
    ) -> None:
        self._record = record
        self._trackers = tuple(trackers)
        hooks = RunHooks() if hooks is None else hooks
        for event in dir(hooks):
            if event.startswith("on_"):
                setattr(self, event, partial(self._hear, event, getattr(hooks, event)))

    def _hear(
        self, event: str, call: Any, context: Any, *args: Any, **named: Any
    ) -> Awaitable[Any]:
        record, call_id = self._record, getattr(context, "tool_call_id", None)
        record.counts(context.usage)
        if event == "on_tool_start" and call_id is not None:
            record.open_calls.add(call_id)
        elif event == "on_tool_end" and call_id is not None:
            record.open_calls.discard(call_id)
        if self._is_given_back(event, call_id):
            return Silence()
        if event == "on_tool_end" and isinstance(args[1], (FunctionTool, CustomTool)):
            return self._end_tool(call, context, call_id, *args)
        if event in ("on_llm_start", "on_tool_start"):
            return self._begin(call, context, *args)
        heard: Awaitable[Any] = call(context, *args, **named)
        return heard

    async def _begin(self, call: Any, context: Any, *args: Any) -> None:
        await self._record.check()
        await call(context, *args)

    async def _end_tool(self, call: Any, context: Any, call_id: str | None, *args: Any) -> None:
        answer = self._record.unheard.pop(call_id, None) or ToolAnswer(args[-1], raised=True)
        await self._record.add_output(call_id, answer)
        for tracker in self._trackers if answer.raised else ():
            tracker._fails(context, args[1])
        await call(context, *args)

    def _is_given_back(self, event: str, call_id: str | None) -> bool:
        if event in ("on_agent_end", "on_end"):
            return False
        if event in ("on_tool_start", "on_tool_end"):
            return self._record.is_given_back(call_id)
        return self._record.was_replayed if event == "on_llm_end" else self._record.will_replay


# ---- the session ----

_Rows: TypeAlias = "list[tuple[int, str]]"
"""Ids and texts of items, oldest first."""


class RunSession(SQLAlchemyMetadataSession):
    """A session that writes only while its run holds its lease. `_record` is set before its use.

    The writes of a run are numbered: each stores how many items it adds in its own transaction.
    When the run goes on after a crash, it makes the same writes again, and those that are stored
    are skipped. Until it has caught up, it does not see the items that it has stored.
    """

    _record: RunRecord
    _done = 0
    """The number of writes since the last pause that were made again."""
    _replaces = False
    """Whether the history was cleared, and the next items replace it."""

    @property
    def _counts(self) -> list[int]:
        """The numbers of items that the writes up to now have added."""
        return self._record.progress.writes[: self._done]

    @property
    def _is_repeating(self) -> bool:
        return self._done < len(self._record.progress.writes)

    # ---- reading ----

    async def get_items(self, limit: int | None = None) -> list[Any]:
        if not self._is_repeating:
            return await super().get_items(limit)
        texts = self._record.replaced
        if texts is None:
            rows = await self._store.database.read(self._rows)
            hidden = self._own(rows)[sum(self._counts) :]
            texts = [row[1] for row in rows if row not in hidden]
        items = await self._items_of(texts)
        most = limit if limit is not None else getattr(self.session_settings, "limit", None)
        return items if most is None else items[-most:] if most > 0 else []

    def _rows(self, connection: Connection) -> _Rows:
        messages = self._store.database.tables.messages
        statement = select(messages.c.id, messages.c.message_data)
        own = statement.where(messages.c.session_id == self.session_id)
        return [(row[0], row[1]) for row in connection.execute(own.order_by(*in_order(messages)))]

    def _own(self, rows: _Rows) -> _Rows:
        """Returns the items that the writes since the last pause have added."""
        progress = self._record.progress
        return sorted(row for row in rows if row[0] > progress.base)[: sum(progress.writes)]

    # ---- writing ----

    async def add_items(self, items: list[Any]) -> None:
        if items:
            # If the caller is cancelled now, the items are added and counted, or neither.
            await settle(self._add(items))

    async def _add(self, items: list[Any]) -> None:
        if self._replaces:
            await self._write(items, self._counts)
            self._replaces = False
            return
        repeated = self._record.progress.writes[self._done :]
        if not repeated:
            await self._write(items, [*self._counts, len(items)])
        elif len(items) != repeated[0]:
            if len(repeated) > 1 or len(items) < repeated[0]:
                problem = (
                    f"the run adds {len(items)} items where it has added {repeated[0]} before; "
                    "agents or tools have changed"
                )
                raise SessionChangedError(self.session_id, problem)
            # When a tool raised, only a part of its turn was added. Now the turn is complete.
            await self._write(
                items,
                [*self._counts, len(items)],
                lambda rows: self._own(rows)[-repeated[0] :],
            )
        self._done += 1

    async def pop_item(self) -> Any | None:
        popped = await self._write([], self._record.progress.writes, lambda rows: rows[-1:])
        return next(iter(await self._items_of(text for _, text in popped)), None)

    async def _write(
        self,
        items: list[Any],
        counts: list[int],
        choose: Callable[[_Rows], _Rows] | None = None,
        *,
        is_other: bool = False,
    ) -> _Rows:
        """Deletes the chosen items, adds others and stores the progress, in one transaction.

        Returns what was deleted. If `is_other`, the history becomes another one, and the items that
        the run began with are kept for a repetition.
        """
        record, store, session_id = self._record, self._store, self.session_id
        lease = record.lease
        texts = await self._texts(items)

        def write(connection: Connection) -> tuple[_Rows, Progress, list[str] | None]:
            if texts:  # One statement locks the session and makes it the most recent one.
                is_locked = lease.holds(connection, lease.sql.touch)
                is_locked = is_locked and store.admits(connection, session_id)
            else:
                is_locked = store.lock(connection, session_id)
            if not is_locked:
                raise lease.lose(connection)
            rows = self._rows(connection) if choose is not None else []
            deleted = choose(rows) if choose is not None else []
            delete_messages(store.database, connection, session_id, [i for i, _ in deleted])
            store.insert_items(connection, session_id, texts)
            count = record.progress.items + len(texts) - len(deleted)
            progress = replace(
                record.progress,
                items=count,
                writes=counts,
                replaced=is_other or record.progress.replaced,
            )
            lease.fence(connection, lease.sql.write, new_progress=progress.dump())
            if texts:
                record.place(connection)
            replaced = record.replaced
            if is_other and replaced is None:
                replaced = [text for item_id, text in rows if item_id <= progress.base]
                record.keep_replaced(connection, replaced)
            return deleted, progress, replaced

        try:
            written = await store.database.write(write)
        except FAILURES as error:
            await record.fail(error)
        deleted, record.progress, record.replaced = written
        record.is_placed = record.is_placed or bool(texts)
        return deleted

    # ---- replacing the history, which compaction does ----

    async def clear_session(self) -> None:
        """Deletes the items and keeps the session, whatever `on_clear` is."""
        await self._replace_items([])
        self._replaces = True

    async def _replace_items(self, items: list[Any]) -> None:
        # What the run adds after this is new, also if it is repeating.
        await settle(self._write(items, self._counts, lambda rows: rows, is_other=True))

    def _is_paused(self, connection: Connection) -> bool:  # noqa: ARG002  # it holds the session
        return False

    async def _snapshot(self, limit: int, **kwargs: Any) -> Any:
        if self._is_repeating:
            return NothingToCompact()
        found = await super()._snapshot(limit, **kwargs)

        async def replace_suffix(start: int, output: list[Any]) -> bool:
            """Replaces the end of the history in a transaction of the run."""
            writes, count = self._record.progress.writes, len(found.items) - start
            await self._write(
                output, writes, lambda rows: rows[max(0, len(rows) - count) :], is_other=True
            )
            return True

        return None if found is None else replace(found, replace_suffix=replace_suffix)

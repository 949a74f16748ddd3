"""The only module that uses private members of the SDK. They are checked when it is imported.

`session` builds on `StoredSession`, which overrides these methods of `SQLAlchemySession`:

| member | because |
|---|---|
| `_ensure_tables` | our tables are created with the SDK's, once per engine, not per instance |
| `_lock_session` | every writer of the SDK passes here: its scope |
| `_run_sqlite_write_with_retry` | every mutation passes here: transient errors, missing tables |
| `_get_compaction_snapshot` | the SDK's answers only for the exact type `SQLAlchemySession` |

and adds `_atomic_replace_items`: without it, compaction would clear the session and its metadata.
Every write but `pop_item` and automatic compaction is one function of a connection: the SDK's ORM
session, which gives each statement a greenlet of its own, takes longer than the statements.

A release of the SDK that lacks one of these members, or calls it no more, is refused on import, by
an error that names the member. Without the check, it would fail later, or lose metadata silently.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from types import CodeType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import agents  # noqa: F401  # first and whole: its parts do not wait for another thread's import
from agents import Agent, FunctionTool, Handoff, RunConfig
from agents import tool as tools
from agents.extensions.memory.sqlalchemy_session import SQLAlchemySession
from agents.items import ModelResponse, TResponseInputItem
from agents.memory import OpenAIResponsesCompactionSession, SessionSettings
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
from agents.models.interface import Model, ModelProvider
from agents.result import RunResultStreaming
from agents.run_config import _coerce_run_config
from agents.run_internal import run_loop, tool_actions, tool_execution, turn_resolution
from agents.run_internal.turn_preparation import validate_run_hooks
from agents.run_state import RunState
from agents.tool import _FunctionToolInvocationResult
from agents.usage import (
    Usage,
    _attach_normalized_usage,
    _requests_for_response_without_usage,
    _response_usage_to_usage,
)
from openai.types.responses import Response, ResponseCompletedEvent, ResponseUsage
from sqlalchemy import Connection, event, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from .core.change_log import log_committed
from .core.database import Database, settle
from .core.features import end_history, hold, prepare_change, table_names
from .core.messages import delete_messages, in_order
from .core.store import check_on_clear
from .dialects import dialect_of
from .dialects.urls import check_engine, owner_of, with_transactions
from .scope import ScopedStore
from .types import MetadataLimits, OnClear
from .values import check_id_type

T = TypeVar("T")

MEMBERS = (
    "_configure_sqlite_engine",
    "_deserialize_item",
    "_ensure_tables",
    "_get_compaction_snapshot",
    "_get_table_init_lock",
    "_lock_session",
    "_run_sqlite_write_with_retry",
    "_serialize_item",
    "_session",
    "_sqlite_connection_locks",
)
"""Members of `SQLAlchemySession` that are used here."""

HOOKS = (
    "_atomic_replace_items",
    "_ensure_tables",
    "_get_compaction_snapshot",
    "_lock_session",
    "_run_sqlite_write_with_retry",
)
"""Members that `StoredSession` defines. If the SDK stopped calling them, nothing would fail."""

STATE = {
    "session_id",
    "session_settings",
    "_engine",
    "_ensure_ascii",
    "_connection_lock",
    "_init_lock",
    "_metadata",
    "_sessions",
    "_messages",
    "_session_factory",
    "_create_tables",
}
"""The attributes that the constructor of `SQLAlchemySession` sets."""


def open_store(
    engine: AsyncEngine,
    *,
    create_tables: bool = False,
    sessions_table: str = "agent_sessions",
    messages_table: str = "agent_messages",
    metadata_table: str | None = None,
    metadata_limits: MetadataLimits | None = None,
    on_clear: OnClear = "delete",
    session_settings: SessionSettings | dict[str, Any] | None = None,
    ensure_ascii: bool = True,
    **further: Any,
) -> tuple[ScopedStore, dict[str, Any]]:
    """Returns the store that the options of a constructor name, and the options of `StoredSession`.

    Configures and guards connections as the SDK does.
    """
    check_on_clear(on_clear)
    names = table_names(sessions_table, messages_table, metadata_table)
    check_engine(engine)
    SQLAlchemySession._configure_sqlite_engine(owner_of(engine))
    lock = _turns_on(engine)
    database = Database(
        engine,
        names,
        create_tables=create_tables,
        guard=None if lock is None else partial(_holding, lock),
        init_lock=partial(
            SQLAlchemySession._get_table_init_lock, engine, names.sessions, names.messages
        ),
    )
    settings = {
        "on_clear": on_clear,
        "session_settings": session_settings,
        "ensure_ascii": ensure_ascii,
        **further,
    }
    return ScopedStore(database, metadata_limits), settings


def context_of(state: RunState[Any, Any]) -> Any:
    """Returns the context of a run that is about to be resumed; its usage is that of the run."""
    return state._context


@asynccontextmanager
async def _holding(lock: threading.Lock) -> AsyncIterator[None]:
    """Takes the SDK's turn on the only connection of an in-memory SQLite database."""
    while not lock.acquire(blocking=False):  # noqa: ASYNC110  # shared by several event loops
        await asyncio.sleep(0.001)
    try:
        yield
    finally:
        lock.release()


def _refuse(problems: Iterator[str]) -> None:
    found = "; ".join(problems)
    if found:
        raise ImportError(
            f"agents-session-metadata {version('agents-session-metadata')} does not know the "
            f"SQLAlchemySession of openai-agents {version('openai-agents')}: {found}"
        )


def _problems() -> Iterator[str]:
    yield from (f"it has no {name}" for name in MEMBERS if not hasattr(SQLAlchemySession, name))
    named = {
        name
        for kind in (SQLAlchemySession, OpenAIResponsesCompactionSession)
        for member in vars(kind).values()
        for name in _names(getattr(inspect.unwrap(member), "__code__", None))
    }
    # Without any, the SDK was compiled, and cannot be looked into.
    yield from (f"it does not call {name}" for name in HOOKS if named and name not in named)


def _names(code: object) -> Iterator[str]:
    if isinstance(code, CodeType):
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, str):
                yield constant
            else:
                yield from _names(constant)


_refuse(_problems())


@dataclass(frozen=True)
class NothingToCompact:
    """The answer of `_get_compaction_snapshot` if the history must not change.

    Automatic compaction finds nothing in it that the model has seen, and is skipped.
    """

    items: tuple[Any, ...] = ()
    complete: bool = True

    async def replace_suffix(self, start: int, output: list[Any]) -> bool:  # noqa: ARG002  # all
        return False


class _CheckedSession(Session):
    """An ORM session of the SDK that checks and begins its connection as `Database` does."""


@event.listens_for(_CheckedSession, "after_begin")
def _begin(session: Session, transaction: object, connection: Connection) -> None:  # noqa: ARG001  # all
    dialect = dialect_of(connection.dialect)
    session.info["connection"] = connection
    dialect.check_connection(connection)
    dialect.begin(connection)


@event.listens_for(_CheckedSession, "after_commit")
def _committed(session: Session) -> None:
    if "connection" in session.info:
        log_committed(session.info["connection"])


def _turns_on(engine: AsyncEngine) -> threading.Lock | None:
    """Returns the SDK's lock for the connection of an engine, if it has only one."""
    return SQLAlchemySession._sqlite_connection_locks.get(id(owner_of(engine).sync_engine))


class StoredSession(SQLAlchemySession):
    """The SDK's session on a store: shared tables, retries, scope, atomic replacement of items."""

    def __init__(
        self,
        session_id: str,
        store: ScopedStore,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        ensure_ascii: bool = True,
        on_clear: OnClear = "delete",
        must_exist: bool = False,
        **kwargs: Any,
    ) -> None:
        check_id_type(session_id)
        database, engine = store.database, store.database.engine
        create_tables, (sessions, messages, *_) = database.create_tables, database.names
        if kwargs or not _constructor_is_known(engine):
            super().__init__(
                session_id,
                engine=engine,
                create_tables=create_tables,
                sessions_table=sessions,
                messages_table=messages,
                session_settings=session_settings,
                ensure_ascii=ensure_ascii,
                **kwargs,
            )
        # What the SDK's constructor does, less the table objects that it makes each time: with
        # its own, each instance would miss SQLAlchemy's statement cache.
        self.session_id = session_id
        settings: Any = session_settings
        self.session_settings: SessionSettings | None = coerce_session_settings(settings or {})
        self._engine = engine
        self._ensure_ascii = ensure_ascii
        lock = self._get_table_init_lock(engine, sessions, messages) if create_tables else None
        self._init_lock = lock
        self._create_tables = create_tables
        self._connection_lock = _turns_on(engine)
        self._session_factory = async_sessionmaker(
            with_transactions(engine), expire_on_commit=False, sync_session_class=_CheckedSession
        )
        self._metadata = database.tables.sessions.metadata
        self._sessions = database.tables.sessions
        self._messages = database.tables.messages
        self._store = store
        self._on_clear: OnClear = on_clear
        self._must_exist = must_exist

    @property
    def _settings(self) -> dict[str, Any]:
        return {
            "on_clear": self._on_clear,
            "session_settings": self.session_settings,
            "ensure_ascii": self._ensure_ascii,
        }

    async def _ensure_tables(self) -> None:
        # A scope needs metadata.
        if self._create_tables or self._store.is_restricted:
            await self._store.database.ensure()
            self._create_tables = False

    # ---- reading, popping and replacing the end of a history, by the SDK's methods ----

    async def _run_sqlite_write_with_retry(self, operation: Callable[[], Awaitable[T]]) -> T:
        self._store.database.check_writable()
        return await self._store.database.retry(operation, prepare=False)

    async def _lock_session(self, sess: AsyncSession, *, create: bool = False) -> bool:
        if not (create or self._store.is_restricted) and await super()._lock_session(sess):
            return True
        lock = self._enter if create else partial(self._store.lock, session_id=self.session_id)
        return await (await sess.connection()).run_sync(lock)

    async def _read_history(self, read: Callable[[], Awaitable[T]]) -> T:
        """Finishes a read of a database in memory: a cancelled one would close its connection."""
        whole = read if self._connection_lock is None else lambda: settle(read())
        return await self._store.database.retry(whole, prepare=False)

    async def _get_compaction_snapshot(self, limit: int, **kwargs: Any) -> Any:
        return await self._snapshot(limit, **kwargs)

    async def _snapshot(self, limit: int, **kwargs: Any) -> Any:
        if await self._store.database.look(self._is_paused):
            return NothingToCompact()
        kind = type(self)
        for name in ("_serialize_item", "_deserialize_item"):
            # A subclass that transforms items may keep more than the SDK would replace.
            if getattr(kind, name) is not getattr(SQLAlchemySession, name):
                return None
        await self._ensure_tables()

        async def lock(sess: AsyncSession) -> bool:
            if not await self._lock_session(sess):
                return False
            return not await (await sess.connection()).run_sync(self._is_paused)

        # The SDK answers for its own exact type only; this is such a view of the same state.
        view = SQLAlchemySession.__new__(SQLAlchemySession)
        retry = self._run_sqlite_write_with_retry
        vars(view).update(vars(self), _lock_session=lock, _run_sqlite_write_with_retry=retry)
        snapshot = await self._read_history(
            partial(SQLAlchemySession._get_compaction_snapshot, view, limit, **kwargs)
        )
        if self._store.scope and not await self._store.exists(self.session_id):
            return None
        return snapshot

    def _is_paused(self, connection: Connection) -> bool:
        return hold(self._store.database, connection, self.session_id) is not None

    # ---- reading and writing by methods of our own, in the SDK's sessions and transactions ----

    async def _items_in_scope(self, limit: int | None) -> list[TResponseInputItem]:
        most = resolve_session_limit(limit, self.session_settings)
        messages, window = self._messages, most

        def read(connection: Connection) -> list[str]:
            newest: Any = (
                select(messages.c.message_data)
                .where(messages.c.session_id == self.session_id)
                .order_by(*in_order(messages, newest_first=True))
                .limit(window)
            )
            statement, parameters = self._store.question(newest, messages.c.session_id)
            return list(connection.scalars(statement, parameters))

        while True:
            texts = await self._store.database.read(read)
            items = await self._items_of(reversed(texts))
            if most is None or window is None or most <= 0:
                return items
            if len(items) >= most or len(texts) < window:
                return items[-most:]
            window *= 2  # Rows that are not JSON do not count.

    async def _items_of(self, texts: Iterable[str]) -> list[TResponseInputItem]:
        items = list[TResponseInputItem]()
        for text in texts:
            with suppress(json.JSONDecodeError):  # As in the SDK.
                items.append(await self._deserialize_item(text))
        return items

    def _enter(self, connection: Connection) -> bool:
        """Locks the session, and creates it unless it must exist. Always returns True."""
        self._store.enter_history(connection, self.session_id, must_exist=self._must_exist)
        return True

    async def _texts(self, items: list[TResponseInputItem]) -> list[str]:
        return [await self._serialize_item(item) for item in items]

    async def _write_items(
        self,
        items: list[TResponseInputItem],
        begin: Callable[[Connection], bool],
    ) -> None:
        """Writes nothing if `begin`, which must lock the session, returns False."""
        texts = await self._texts(items)

        def write(connection: Connection) -> None:
            if begin(connection):
                self._store.insert_items(connection, self.session_id, texts)
                self._store.rows.touch(connection, self.session_id)

        await self._transact(write)

    async def _transact(self, work: Callable[[Connection], T]) -> T:
        """Runs work that begins with a lock, and finishes it even if the caller is cancelled."""

        async def in_transaction() -> T:
            async with self._session() as sess, sess.begin():
                return await (await sess.connection()).run_sync(work)

        await self._ensure_tables()
        return await settle(self._run_sqlite_write_with_retry(in_transaction))

    def _clear(self, connection: Connection) -> None:
        if not self._store.lock(connection, self.session_id):
            return
        if self._on_clear == "delete" and not self._must_exist:
            self._store.rows.delete_session(connection, self.session_id)
        else:
            self._delete_history(connection, end_history)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Never returns False: compaction would then clear the session and add the items again."""
        await self._replace_items(items)
        return True

    async def _replace_items(self, items: list[TResponseInputItem]) -> None:

        def begin(connection: Connection) -> bool:
            if items:
                self._enter(connection)
            elif not self._store.lock(connection, self.session_id):
                return False
            self._delete_history(connection, prepare_change)
            return True

        await self._write_items(items, begin)

    def _delete_history(
        self, connection: Connection, before: Callable[[Any, Connection, str], None]
    ) -> None:
        before(self._store.database, connection, self.session_id)
        delete_messages(self._store.database, connection, self.session_id)


_known_constructors: dict[type, bool] = {}


def _constructor_is_known(engine: AsyncEngine) -> bool:
    """True if the SDK's constructor sets exactly `STATE`, so that it need not be called."""
    kind = SQLAlchemySession
    if kind not in _known_constructors:
        found = set(vars(kind("", engine=engine)))
        _refuse(f"its constructor does not set {name}" for name in sorted(STATE - found))
        _known_constructors[kind] = found == STATE
    return _known_constructors[kind]


# ---- where the SDK's runner calls models and tools, for runs that are recorded ----


class Recorder(ModelProvider):
    """Is asked by the SDK's runner for each model and around each tool of a run.

    A `RunConfig` carries it as its model provider, so only runs with that configuration meet it:
    the run itself and the agents that it uses as tools, but not the runs of its guardrails.
    """

    def __init__(self, provider: ModelProvider) -> None:
        self.provider: ModelProvider = provider

    def get_model(self, model_name: str | None) -> Model:
        return self.provider.get_model(model_name)

    def around(self, model: Model, agent: Agent[Any], config: RunConfig) -> Any:
        """Returns the model that the runner calls in place of `model`."""
        raise NotImplementedError

    async def invoke(self, tool: Any, context: Any, call: ToolCall) -> ToolAnswer:
        """Returns the output of a function tool or a custom tool. `call` runs the tool."""
        raise NotImplementedError


class ToolAnswer(NamedTuple):
    """The output of a tool.

    `raised` is true if it is the text of an error, and `is_default` if the SDK wrote that text.
    """

    output: Any
    raised: bool = False
    is_default: bool = False


ToolCall: TypeAlias = Callable[[], Awaitable[ToolAnswer]]


class Silence:
    """An answer of run hooks by which the hooks of the agent are not called either."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


_raised: ContextVar[list[BaseException] | None] = ContextVar("raised", default=None)
"""The errors that the SDK has turned into the output of the tool that works."""


def _recorder(config: Any) -> Recorder | None:
    provider = getattr(config, "model_provider", None)
    return provider if isinstance(provider, Recorder) else None


def _get_model(original: Any, agent: Any, run_config: Any) -> Any:
    model, recorder = original(agent, run_config), _recorder(run_config)
    return model if recorder is None else recorder.around(model, agent, run_config)


async def _invoke(original: Any, *, function_tool: Any, context: Any, arguments: str) -> Any:
    async def call() -> ToolAnswer:
        errors: list[BaseException] = []
        token = _raised.set(errors)
        try:
            result = await original(
                function_tool=function_tool, context=context, arguments=arguments
            )
        finally:
            _raised.reset(token)
        is_default = result.is_sdk_generated_error
        return ToolAnswer(result.output, bool(errors) or is_default, is_default)

    recorder = _recorder(context.run_config)
    answer = await (call() if recorder is None else recorder.invoke(function_tool, context, call))
    return _FunctionToolInvocationResult(answer.output, answer.is_default)


async def _error_text(original: Any, *, error: Any, **given: Any) -> Any:
    errors = _raised.get()
    if errors is not None:
        errors.append(error)
    return await original(error=error, **given)


async def _execute_custom(original: Any, *, call: Any, config: Any, **given: Any) -> Any:
    recorder = _recorder(config)
    if recorder is not None:
        tool = copy.copy(call.custom_tool)
        invoke = tool.on_invoke_tool

        async def recorded(context: Any, arguments: str) -> Any:
            async def answer() -> ToolAnswer:
                result = invoke(context, arguments)
                return ToolAnswer(await result if inspect.isawaitable(result) else result)

            return (await recorder.invoke(tool, context, answer)).output

        tool.on_invoke_tool = recorded
        call = replace(call, custom_tool=tool)
    return await original(call=call, config=config, **given)


async def _gather(original: Any, *awaitables: Any, **given: Any) -> Any:
    if not any(isinstance(each, Silence) for each in awaitables):
        return await original(*awaitables, **given)
    for each in awaitables:
        if inspect.iscoroutine(each):
            each.close()
    return tuple(None for _ in awaitables)


INTERCEPTED: Sequence[tuple[Any, str, Any]] = (
    (run_loop, "get_model", _get_model),
    (tool_execution, "_invoke_function_tool_with_metadata", _invoke),
    (tools, "maybe_invoke_function_tool_failure_error_function", _error_text),
    (tool_actions.CustomToolAction, "execute", _execute_custom),
    *(
        (module, "gather_with_cancel", _gather)
        for module in (run_loop, turn_resolution, tool_execution, tool_actions)
    ),
)
"""Functions of the SDK's runner, and the functions that are called in their place."""


_refuse(
    f"its runner has no {name} in {place.__name__}"
    for place, name, _ in INTERCEPTED
    if not hasattr(place, name)
)


@cache
def intercept_runner() -> None:
    """Must be called once before a run with a `Recorder`. Other runs only look for one."""
    for place, name, around in INTERCEPTED:
        setattr(place, name, partial(around, getattr(place, name)))


def completed(response: ModelResponse) -> ResponseCompletedEvent:
    """Returns the event by which a stream returns this response, with exactly its usage."""
    used = response.usage
    usage = ResponseUsage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        total_tokens=used.total_tokens,
        input_tokens_details=used.input_tokens_details,
        output_tokens_details=used.output_tokens_details,
    )
    _attach_normalized_usage(usage, used)
    whole = Response.model_construct(
        id=response.response_id,
        created_at=0,
        model="",
        object="response",
        output=response.output,
        tool_choice="auto",
        tools=[],
        parallel_tool_calls=True,
        status="completed",
        usage=usage,
    )
    whole._request_id = response.request_id
    return ResponseCompletedEvent.model_construct(
        response=whole, sequence_number=0, type="response.completed"
    )


def response_of(event: Any, items: list[Any]) -> ModelResponse | None:
    """Returns the response that an event of a stream completes. Keeps finished items in `items`."""
    kind = getattr(event, "type", None)
    if kind == "response.output_item.done":
        items.append(event.item)
    if kind != "response.completed":
        return None
    whole = event.response
    # As in the SDK: some models leave the output out of the last event.
    usage = (
        _response_usage_to_usage(whole.usage)
        if whole.usage
        else Usage(requests=_requests_for_response_without_usage(whole))
    )
    request_id = getattr(whole, "_request_id", None)
    return ModelResponse(list(whole.output or items), usage, whole.id, request_id)


def is_agent(tool: Any) -> bool:
    """Returns whether a tool runs an agent, which can pause inside the call."""
    return isinstance(tool, FunctionTool) and tool._is_agent_tool


def run_config_of(config: Any) -> RunConfig:
    """Returns what the runner makes of its argument `run_config`; None gives the defaults."""
    return RunConfig() if config is None else _coerce_run_config(config)


def failure_of(result: RunResultStreaming) -> BaseException | None:
    """Returns the error of a stream whose run has ended, if its consumer has not met it yet."""
    result._check_errors()  # type: ignore[no-untyped-call]  # as in the SDK
    return result._stored_exception


def was_cancelled(result: RunResultStreaming) -> bool:
    return result._cancel_mode != "none"


def cancel_once(result: RunResultStreaming) -> None:
    """Ends a streamed run at once, unless it was cancelled so before.

    A second cancellation would reach the closing of the connection that the first one has broken
    off. On SQLite, that never ends then, and neither does the event loop.
    """
    if result._cancel_mode != "immediate":
        result.cancel()


def check_runner_options(options: dict[str, Any]) -> None:
    """Raises what the runner raises for its arguments `hooks` and `run_config`."""
    validate_run_hooks(options.get("hooks"))
    config = options.get("run_config")
    if config is not None:
        # With a provider of models, for which none is made here.
        _coerce_run_config({"model_provider": None, **config} if type(config) is dict else config)


def agent_named(agent: Agent[Any], name: str) -> Agent[Any] | None:
    """Returns the agent of this name that an agent can hand off to, or None."""
    known, found = {id(agent)}, [agent]
    for each in found:
        for handoff in each.handoffs:
            target: Any = handoff
            if isinstance(handoff, Handoff):
                target = handoff._agent_ref and handoff._agent_ref()
            if target is not None and id(target) not in known:
                known.add(id(target))
                found.append(target)
    return next((each for each in found if each.name == name), None)

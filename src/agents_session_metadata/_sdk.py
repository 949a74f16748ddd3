"""What this package knows of the SDK's private members, checked when it is imported.

`session` builds on them. A release of the SDK that has changed one of them is refused here, in one
sentence: further down it would fail in a way that nobody understands, or lose metadata in silence.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from types import CodeType

import agents  # noqa: F401  # first and whole: its parts do not wait for another thread's import
from agents.extensions.memory.sqlalchemy_session import SQLAlchemySession
from agents.memory import OpenAIResponsesCompactionSession
from sqlalchemy.ext.asyncio import AsyncEngine

from .dialects.urls import check_engine
from .scope import ScopedStore, open_store
from .storage.tables import TableNames
from .types import MetadataLimits

MEMBERS: dict[str, tuple[str, ...] | None] = {
    "_clear_session": ("self",),
    "_configure_sqlite_engine": ("engine",),
    "_deserialize_item": ("self", "item"),
    "_ensure_tables": ("self",),
    "_get_compaction_snapshot": ("self", "limit"),
    "_get_table_init_lock": ("engine", "sessions_table", "messages_table"),
    "_lock_session": ("self", "sess", "create"),
    "_run_sqlite_write_with_retry": ("self", "operation"),
    "_serialize_item": ("self", "item"),
    "_session": ("self",),
    "_sqlite_connection_locks": None,
}
"""Members of `SQLAlchemySession`, and the parameters that they are called with; None: no method."""

HOOKS = (
    "_atomic_replace_items",
    "_clear_session",
    "_ensure_tables",
    "_get_compaction_snapshot",
    "_lock_session",
    "_run_sqlite_write_with_retry",
)
"""What `session` defines for the SDK to call. If it no longer did, nothing would tell."""

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
"""What the constructor of `SQLAlchemySession` sets."""


def sdk_store(
    engine: AsyncEngine,
    names: TableNames,
    *,
    create_tables: bool,
    limits: MetadataLimits | None = None,
) -> ScopedStore:
    """The store of an engine's sessions, on connections configured and guarded as the SDK's are.

    Raises:
        TypeError: If the engine is not an async engine, or the limits are not `MetadataLimits`.
        UnsupportedDialectError: If the engine is for another database.
    """
    check_engine(engine)
    SQLAlchemySession._configure_sqlite_engine(engine)
    lock = SQLAlchemySession._sqlite_connection_locks.get(id(engine.sync_engine))
    return open_store(
        engine,
        names,
        create_tables=create_tables,
        limits=limits,
        guard=None if lock is None else partial(_holding, lock),
        init_lock=partial(
            SQLAlchemySession._get_table_init_lock, engine, names.sessions, names.messages
        ),
    )


@asynccontextmanager
async def _holding(lock: threading.Lock) -> AsyncIterator[None]:
    """The turn that users of an in-memory SQLite's one connection take with the SDK."""
    while not lock.acquire(blocking=False):  # noqa: ASYNC110  # shared by several event loops
        await asyncio.sleep(0.001)
    try:
        yield
    finally:
        lock.release()


def constructor_is_known(session: SQLAlchemySession) -> bool:
    """Whether a session has the state that is known, and nothing else.

    Raises:
        ImportError: If something is missing.
    """
    found = set(vars(session))
    _refuse(f"its constructor does not set {name}" for name in sorted(STATE - found))
    return found == STATE


def _refuse(problems: Iterator[str]) -> None:
    told = "; ".join(problems)
    if told:
        raise ImportError(
            f"agents-session-metadata {version('agents-session-metadata')} does not know the "
            f"SQLAlchemySession of openai-agents {version('openai-agents')}: {told}"
        )


def _problems() -> Iterator[str]:
    for name, known in MEMBERS.items():
        if not hasattr(SQLAlchemySession, name):
            yield f"it has no {name}"
        elif known is not None:
            yield from _other_parameters(name, known)
    named = {
        name
        for kind in (SQLAlchemySession, OpenAIResponsesCompactionSession)
        for member in vars(kind).values()
        for name in _names(getattr(inspect.unwrap(member), "__code__", None))
    }
    # Without any, the SDK was compiled, and cannot be looked into.
    yield from (f"it does not call {name}" for name in HOOKS if named and name not in named)


def _other_parameters(name: str, known: tuple[str, ...]) -> Iterator[str]:
    found = inspect.signature(getattr(SQLAlchemySession, name)).parameters
    lacking = [each for each in known if each not in found]
    if lacking:
        yield f"{name} does not take {', '.join(lacking)}"
    wanted = [
        each.name
        for each in found.values()
        if each.name not in known
        and each.default is each.empty
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if wanted:
        yield f"{name} needs {', '.join(wanted)}"


def _names(code: object) -> Iterator[str]:
    """The names and strings in a function, and in the functions within it."""
    if isinstance(code, CodeType):
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, str):
                yield constant
            else:
                yield from _names(constant)


_refuse(_problems())

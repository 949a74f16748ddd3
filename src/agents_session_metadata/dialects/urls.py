"""Parses database URLs, and creates and checks engines.

A URL without a driver gets one for asyncio.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from sqlalchemy import URL, event, make_url
from sqlalchemy.engine.base import OptionEngine
from sqlalchemy.exc import ArgumentError, InvalidRequestError, NoSuchModuleError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool, Pool, StaticPool

from agents_session_metadata.errors import UnsupportedDialectError, install_advice

from . import dialect_of

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",  # as some hosts write it
    "mysql": "mysql+asyncmy",
    "mariadb": "mariadb+asyncmy",
}
"""The drivers for URLs that name none."""

EXTRAS = {"aiosqlite": "sqlite", "asyncpg": "postgresql", "psycopg": "psycopg", "asyncmy": "mysql"}

_NOT_VALID = (
    "the database URL is not valid; write it like postgresql://user:password@host/name or "
    "sqlite:///folder/name.db"
)


def with_driver(url: str | URL) -> URL:
    """Errors do not repeat the URL, which may contain a password."""
    if not isinstance(url, (str, URL)):
        raise TypeError(f"url must be a string or a SQLAlchemy URL, got {type(url).__name__}")
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(_NOT_VALID) from None
    parsed = parsed.set(drivername=DRIVERS.get(parsed.drivername, parsed.drivername))
    if parsed.drivername != "postgresql+asyncpg":
        return parsed
    # Hosts print the options of libpq, which psycopg takes as they are.
    options = {name: value for name, value in parsed.query.items() if name != "channel_binding"}
    if "sslmode" in options:
        options.setdefault("ssl", options.pop("sslmode"))
    return parsed.set(query=options)


def is_file_based(url: URL) -> bool:
    """Includes SQLite in memory."""
    return url.get_backend_name() == "sqlite"


def file_of(url: URL) -> str | None:
    """Returns None for a server, memory, or a `file:` URI."""
    name = url.database
    if not is_file_based(url) or not name or name == ":memory:" or name.startswith("file:"):
        return None
    return name


def create_engine(url: str | URL, engine_kwargs: dict[str, Any] | None = None) -> AsyncEngine:
    """Configures connections of SQLite. Names the extra to install if the driver is missing.

    Raises `UnsupportedDialectError` for another database, `ModuleNotFoundError` if the driver is
    missing, or `ValueError` if it has no asyncio.
    """
    parsed = with_driver(url)
    backend, _, driver = parsed.drivername.partition("+")
    default = DRIVERS.get("sqlite" if backend == "sqlite3" else backend)
    if default is None:
        raise UnsupportedDialectError(backend)
    try:
        engine = create_async_engine(parsed, **(engine_kwargs or {}))
    except (ModuleNotFoundError, NoSuchModuleError, InvalidRequestError) as error:
        if driver in EXTRAS and isinstance(error, ModuleNotFoundError):
            problem = f"the driver {driver} is not installed; {install_advice(EXTRAS[driver])}"
            raise ModuleNotFoundError(problem, name=driver) from None
        advice = install_advice(EXTRAS[default.partition("+")[2]])
        raise ValueError(
            f"{parsed.drivername} is not an installed asyncio driver; use {default}, and {advice}"
        ) from None
    except ArgumentError:
        raise ValueError(_NOT_VALID) from None
    if is_file_based(engine.url):
        event.listen(engine.sync_engine, "connect", _configure)
    return engine


def _configure(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    # As the SDK does, which does not know the engines of the command line.
    cursor.execute("PRAGMA busy_timeout = 5000")
    cursor.execute("PRAGMA journal_mode = WAL")
    # 16 MB hold the pages of 1,000 sessions anywhere in a large file; the default is 2 MB.
    cursor.execute("PRAGMA cache_size = -16384")
    cursor.close()


def check_engine(engine: object) -> None:
    """Rejects an engine that has one connection for all calls, unless it is for SQLite in memory.

    There, the SDK and this package take turns. Elsewhere, calls would mix up their transactions.
    """
    if not isinstance(engine, AsyncEngine):
        advice = "make it with create_async_engine; for a URL, use from_url"
        raise TypeError(f"engine must be an AsyncEngine, got {type(engine).__name__}; {advice}")
    if isinstance(engine.pool, StaticPool) and engine.dialect.name != "sqlite":
        raise UnsupportedDialectError(engine.dialect.name, "poolclass=StaticPool")


_loops: weakref.WeakKeyDictionary[Pool, weakref.ref[asyncio.AbstractEventLoop]] = (
    weakref.WeakKeyDictionary()
)
"""The event loop that first used a pool. Disposing an engine gives it a new pool."""


def check_loop(engine: AsyncEngine) -> None:
    """Raises `RuntimeError` if the engine's connections belong to another event loop."""
    pool = engine.sync_engine.pool
    if isinstance(pool, NullPool) or (
        engine.dialect.name == "sqlite" and not isinstance(pool, StaticPool)
    ):
        return
    loop = asyncio.get_running_loop()
    if _loops.setdefault(pool, weakref.ref(loop))() is not loop:
        raise RuntimeError(
            "the engine belongs to another event loop, which used it first; before that loop ends, "
            "call `await engine.dispose()` there, or create an engine per event loop"
        )


def owner_of(engine: AsyncEngine) -> AsyncEngine:
    """Returns the engine whose connections an engine with other execution options shares."""
    found = engine.sync_engine
    while isinstance(found, OptionEngine):
        found = found._proxied
    return engine if found is engine.sync_engine else AsyncEngine(found)


def with_transactions(engine: AsyncEngine) -> AsyncEngine:
    """Outside a transaction, a pooler may use a connection that did not prepare the statement."""
    dialect = dialect_of(engine.dialect)
    level = engine.get_execution_options().get("isolation_level")
    level = level or getattr(engine.dialect, "_on_connect_isolation_level", None)
    wanted = dialect.usual_isolation if level == "AUTOCOMMIT" else dialect.write_isolation
    return engine if wanted is None else engine.execution_options(isolation_level=wanted)


def shown_url(url: URL) -> str:
    """Removes the password, and options, which may contain one."""
    return url.set(query={}).render_as_string(hide_password=True)

"""The database that a command works on, and the calls to it."""

from __future__ import annotations

import errno
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from agents_session_metadata.text import escaped, quoted

from ._interrupt import exit_at_once
from .options import Failure, checked, parse_pairs, usage
from .output import Records, no_session

if TYPE_CHECKING:
    import asyncio

    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncEngine

    from agents_session_metadata.catalog import SessionCatalog
    from agents_session_metadata.core.tables import TableNames

T = TypeVar("T")

_BATCH, _BATCH_SECONDS = 200, 0.05
_CHUNK = 1 << 16
_THREAD_SECONDS = 1.0
"""The time that `close` waits for a thread. Python waits for it again at exit."""


class Unanswered(Failure):
    """The database did not answer in time. A thread or a task may still wait for it."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The database and tables that a command works on, and the scope that it is restricted to."""

    url: str | None = None
    scope: Sequence[str] = ()
    sessions_table: str
    messages_table: str
    metadata_table: str | None
    create_tables: bool = False
    timeout: float | None = None
    as_json: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def names(self) -> TableNames:
        from agents_session_metadata.core.tables import table_names

        names = (self.sessions_table, self.messages_table, self.metadata_table)
        for name in names:
            if not (name or "").isprintable():
                usage(f"the name of a table must be printable, got {quoted(name or '')}")
        return checked(table_names, *names)

    def records(self, file: IO[str], opening: str = "[", *, as_lines: bool) -> Records:
        """Returns what writes the records of --json or --jsonl."""
        if self.as_json and as_lines:
            usage("pass --json or --jsonl, not both")
        return Records(file, as_list=self.as_json, opening=opening)

    def database_url(self) -> URL:
        """Returns the URL, with a driver. No error message repeats a password."""
        from agents_session_metadata.dialects.urls import DRIVERS, is_file_based, with_driver

        if not self.url:
            usage("no database is given; pass --url or --url-file, or set AGENT_SESSIONS_URL")
        is_file = "://" not in self.url and self.url.endswith((".db", ".sqlite", ".sqlite3"))
        url = checked(with_driver, f"sqlite:///{self.url}" if is_file else self.url)
        backend = url.get_backend_name()
        if backend not in DRIVERS:
            usage(
                f"database {quoted(backend)} is not supported; "
                "use SQLite, PostgreSQL, MariaDB or MySQL"
            )
        # Of user:p@ss@host, SQLAlchemy takes ss@host for the host, and errors would show it.
        if "@" in (url.host or "") or (not is_file_based(url) and "@" in (url.database or "")):
            usage("the URL has an unescaped @ in the user name or the password; write it as %40")
        return url

    def shown_url(self) -> str:
        """Returns the URL without its password."""
        from agents_session_metadata.dialects.urls import shown_url

        return shown_url(self.database_url())

    def engine(self, **engine_options: Any) -> AsyncEngine:
        """Returns an engine, which the caller must dispose."""
        from sqlalchemy.exc import ArgumentError

        from agents_session_metadata.dialects.urls import create_engine

        url = self.database_url()
        if not self.create_tables:
            self.require_file()
        try:
            return create_engine(url, engine_options)
        except ModuleNotFoundError as error:
            raise Failure(str(error)) from None
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        except ArgumentError:
            usage("the URL is malformed; write it like sqlite:///folder/name.db")

    def require_file(self) -> None:
        """SQLite would create an empty database for a misspelled name."""
        from agents_session_metadata.dialects.urls import file_of

        name = file_of(self.database_url())
        if name is not None and not Path(name).exists():
            raise Failure(
                f"there is no file {name}; check the URL, or create the database with "
                "--create-tables"
            )

    @asynccontextmanager
    async def connect(self, **engine_options: Any) -> AsyncIterator[tuple[AsyncEngine, Calls]]:
        engine, calls = self.engine(**engine_options), Calls(self)
        # After Ctrl-C, the pool would log each connection that it cannot close with a traceback.
        logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
        try:
            yield engine, calls
        except Unanswered:
            raise
        except BaseException:
            await calls.close(engine)
            raise
        await calls.close(engine)

    @asynccontextmanager
    async def open(self, **engine_options: Any) -> AsyncIterator[tuple[SessionCatalog, Calls]]:
        from agents_session_metadata.catalog import SessionCatalog
        from agents_session_metadata.scope import own_store
        from agents_session_metadata.types import MetadataLimits

        scope, names = parse_pairs(self.scope, "--scope"), self.names
        limits = checked(lambda: MetadataLimits(**self.limits))
        async with self.connect(**engine_options) as (engine, calls):
            store = own_store(engine, names, create_tables=self.create_tables, limits=limits)
            catalog = SessionCatalog._sharing(store, ensure_ascii=True)
            yield _scoped(catalog, scope) if scope else catalog, calls


class Calls:
    """Awaits calls to the database: `await wait(catalog.get_session("chat-1"))`.

    Ctrl-C cancels the call, and raises KeyboardInterrupt here and between calls. Errors other than
    bugs become failures. A call that does not answer within the time limit raises `Unanswered`.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._task: asyncio.Task[Any] | None = None
        self._others = {*threading.enumerate()}
        self._is_waiting = self._is_interrupted = self._progressed = False
        if signal.getsignal(signal.SIGINT) is exit_at_once:
            # All imports are done. From now on, Ctrl-C lets transactions and files end properly.
            signal.signal(signal.SIGINT, self._interrupt)

    async def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await self._completed(work, self._place.timeout)
        except click.ClickException:
            raise
        except Exception as error:
            failure = explain(error, self._place)
            if failure is None:
                raise
            raise failure from error

    async def without_limit(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine without a time limit. Its errors are raised unchanged."""
        return await self._completed(work, None)

    async def batches(self, source: AsyncIterator[T]) -> AsyncIterator[list[T]]:
        async def some() -> list[T]:
            found: list[T] = []
            end = time.monotonic() + _BATCH_SECONDS
            async for each in source:
                found.append(each)
                if len(found) >= _BATCH or time.monotonic() > end:
                    break
            return found

        while batch := await self(some()):
            yield batch

    def progressed(self) -> None:
        """Restart the time limit, because the database has answered."""
        self._progressed = True

    def read(self, source: BinaryIO) -> bytes:
        """Read input within a call: it has no time limit, and Ctrl-C interrupts it."""
        self._is_waiting = False
        try:
            if self._is_interrupted:
                raise KeyboardInterrupt
            # Not `readline`: Ctrl-C does not interrupt the wait for the end of a line.
            return source.read1(_CHUNK)  # type: ignore[attr-defined,no-any-return]  # it is buffered
        finally:
            self._is_waiting = self._progressed = True

    async def close(self, engine: AsyncEngine) -> None:
        """Dispose the engine, also after Ctrl-C."""
        import asyncio

        self._is_interrupted = False
        await self(engine.dispose())
        await asyncio.get_running_loop().shutdown_default_executor()
        # A driver's thread may still have to tell the loop that it could not connect.
        for thread in {*threading.enumerate()} - self._others:
            if not thread.daemon:
                thread.join(_THREAD_SECONDS)
        if signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, exit_at_once)

    async def _completed(self, work: Coroutine[Any, Any, T], timeout: float | None) -> T:
        import asyncio

        self._is_waiting = True
        # The task before is freed here: an exception in the callback of a weak reference is lost.
        task = self._task = asyncio.ensure_future(work)
        if self._is_interrupted:
            task.cancel()
        try:
            while not task.done():
                self._progressed = False
                await asyncio.wait({task}, timeout=timeout)
                if not task.done() and not self._progressed:
                    raise Unanswered(
                        f"the database at {self._place.shown_url()} "
                        f"did not answer within {timeout:g} s"
                    )
        finally:
            self._is_waiting = False
            if task.done() and not task.cancelled():
                task.exception()  # It would be reported if nobody asked for it.
        if self._is_interrupted:
            raise KeyboardInterrupt
        result: T = task.result()
        return result

    def _interrupt(self, _number: int, _frame: object) -> None:
        # The first one cancels; if that does not help, the next one raises.
        is_first, self._is_interrupted = not self._is_interrupted, True
        if self._task is None or not (self._is_waiting and is_first):
            raise KeyboardInterrupt
        self._task.cancel()
        self._task.get_loop().call_soon_threadsafe(lambda: None)  # It wakes the loop.


def _scoped(catalog: SessionCatalog, scope: dict[str, Any]) -> SessionCatalog:
    try:
        return catalog.scoped(scope)
    except ValueError as error:
        usage(f"--scope: {error}")


def explain(error: Exception, place: Place) -> click.ClickException | None:
    """Returns the failure to print for an error; None for a bug."""
    from agents_session_metadata.errors import (
        InvalidCursorError,
        InvalidFilterError,
        SessionMetadataError,
        SessionNotFoundError,
        TablesMissingError,
        UnsupportedDialectError,
    )

    if isinstance(error, TablesMissingError) and error.tables:
        missing = f"missing tables or triggers: {', '.join(error.tables)}"
        return Failure(f"{missing}; {_how_to_create(error.tables, place)}")
    if isinstance(error, SessionNotFoundError):
        return Failure(no_session(error.session_id))
    if isinstance(error, InvalidCursorError):
        return click.UsageError(
            "--cursor is not valid here; pass the cursor that the page before printed, "
            "with the same filter, order and scope"
        )
    if isinstance(error, (InvalidFilterError, UnsupportedDialectError)):
        return click.UsageError(escaped(str(error)))
    if isinstance(error, SessionMetadataError):
        return Failure(str(error).replace("SessionRuns.discard", "`agent-sessions discard`"))
    if isinstance(error, TypeError) and str(error).startswith("connect() got an unexpected"):
        return click.UsageError(
            f"the driver of {place.shown_url()} does not know an option of the "
            f"URL ({escaped(str(error))}); asyncpg, for example, takes ssl=require"
        )
    # A plain ValueError is no usage error: the arguments were checked before.
    plain = Failure(str(error)) if isinstance(error, (ValueError, OverflowError)) else None
    return _database_failure(error, place) or plain


def is_unused(place: Place, failure: Failure, ending: str) -> bool:
    """Returns True if the table of a feature is missing because the feature was never used."""
    from agents_session_metadata.core.tables import derived_name

    table = derived_name(place.names.metadata, ending)
    return table in getattr(failure.__cause__, "tables", ())


def _how_to_create(tables: Sequence[str], place: Place) -> str:
    from agents_session_metadata.dialects import PRODUCTS, possible_names

    if place.names.sessions not in tables:
        return (
            "pass --create-tables to create them; if a table was renamed or dropped, run "
            "`agent-sessions doctor` first"
        )
    dialect, *others = possible_names(place.database_url()) or ("…",)
    other = "".join(f" (on {PRODUCTS[name]}: --dialect {name})" for name in others)
    return (
        "pass --create-tables, or run the SQL that "
        f"`agent-sessions ddl --dialect {dialect}` prints{other}"
    )


def _database_failure(error: Exception, place: Place) -> Failure | None:
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.exc import TimeoutError as PoolTimeoutError

    from agents_session_metadata.dialects.urls import DRIVER_MODULES

    cause: BaseException = error
    if isinstance(error, DBAPIError) and error.orig is not None:
        cause = error.orig
    driver = type(cause).__module__.partition(".")[0]
    from_database = isinstance(error, (DBAPIError, OSError, PoolTimeoutError))
    if not (from_database or driver in DRIVER_MODULES):
        return None
    url = place.database_url()
    reason = str(cause).strip().partition("\n")[0] or type(cause).__name__
    if isinstance(cause, OSError) and cause.errno in errno.errorcode and cause.strerror:
        reason = cause.strerror
    if url.password:
        reason = reason.replace(str(url.password), "***")
    details = "".join(f"; {each}" for each in getattr(error, "detail", ()))
    return Failure(
        f"database error at {place.shown_url()}: {escaped(reason)}{details}; "
        "check the URL and the server, then run `agent-sessions doctor`"
    )

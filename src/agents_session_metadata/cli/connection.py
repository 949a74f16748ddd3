"""The database that a command works on, and the calls to it.

Commands are plain functions. An event loop runs only while one of them waits for the database, so
that Ctrl-C between two calls is an ordinary KeyboardInterrupt, and within one a cancellation.
"""

from __future__ import annotations

import errno
import logging
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from agents_session_metadata.text import escaped, quoted

from .options import Failure, checked, parse_pairs, usage

if TYPE_CHECKING:
    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncEngine

    from agents_session_metadata.catalog import SessionCatalog
    from agents_session_metadata.core.tables import TableNames

T = TypeVar("T")

_BATCH, _BATCH_SECONDS = 200, 0.05
_PANEL = "Database options"

handles_interrupts: bool = False
"""True if `main` has installed a handler for Ctrl-C, which `Calls` replaces."""

abandoned: bool = False
"""True if a thread or task may still wait for a database that did not answer in time."""


@dataclass(frozen=True)
class Place:
    """The database and tables that a command works on, and the scope that it is restricted to."""

    url: str | None
    scope: list[str]
    sessions_table: str
    messages_table: str
    metadata_table: str | None
    create_tables: bool
    timeout: float | None

    @property
    def names(self) -> TableNames:
        from agents_session_metadata.core.tables import table_names

        names = (self.sessions_table, self.messages_table, self.metadata_table)
        for name in names:
            if not (name or "").isprintable():
                usage(f"the name of a table must be printable, got {quoted(name or '')}")
        return checked(table_names, *names)

    def database_url(self) -> URL:
        """Returns the URL, with a driver. No error message repeats a password."""
        from agents_session_metadata.dialects.urls import DRIVERS, is_file_based, with_driver

        if not self.url:
            usage("no database is given; pass --url or --url-file, or set AGENT_SESSIONS_URL")
        url = checked(with_driver, self.url)
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
            _refuse_missing_file(url)
        try:
            return create_engine(url, engine_options)
        except ModuleNotFoundError as error:
            raise Failure(str(error)) from None
        except ValueError as error:
            raise Failure(str(error), 2) from None
        except ArgumentError:
            usage("the URL is malformed; write it like sqlite:///folder/name.db")

    @contextmanager
    def connect(self, **engine_options: Any) -> Iterator[tuple[AsyncEngine, Calls]]:
        engine, calls = self.engine(**engine_options), Calls(self)
        # After Ctrl-C, the pool would log each connection that it cannot close with a traceback.
        logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
        try:
            yield engine, calls
        finally:
            calls.close(engine)

    @contextmanager
    def open(self, **engine_options: Any) -> Iterator[tuple[SessionCatalog, Calls]]:
        from agents_session_metadata.catalog import SessionCatalog
        from agents_session_metadata.scope import own_store

        scope, names = parse_pairs(self.scope, "--scope"), self.names
        with self.connect(**engine_options) as (engine, calls):
            store = own_store(engine, names, create_tables=self.create_tables)
            catalog = SessionCatalog._sharing(store, ensure_ascii=True)
            yield _scoped(catalog, scope) if scope else catalog, calls


class Calls:
    """Waits for coroutines: `wait(catalog.get_session("chat-1"))`.

    Ctrl-C cancels the coroutine and raises KeyboardInterrupt. Errors other than bugs become
    failures.
    """

    def __init__(self, place: Place) -> None:
        from ._runner import Runner

        self._place = place
        self._runner = Runner()
        if handles_interrupts:
            # All imports are done. From now on, Ctrl-C lets transactions and files end properly.
            self._runner.handle_interrupts()
        self._progressed = False
        self._gave_up = False

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(self._limited(work))
        except Failure:
            raise
        except Exception as error:
            failure = explain(error, self._place)
            if failure is None:
                raise
            raise failure from error

    def without_limit(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine without a time limit. Its errors are raised unchanged."""
        return self._runner.run(work)

    def batches(self, source: AsyncIterator[T]) -> Iterator[list[T]]:
        async def some() -> list[T]:
            found: list[T] = []
            end = time.monotonic() + _BATCH_SECONDS
            async for each in source:
                found.append(each)
                if len(found) >= _BATCH or time.monotonic() > end:
                    break
            return found

        while batch := self(some()):
            yield batch

    def progressed(self) -> None:
        """Restart the time limit, because the database has answered."""
        self._progressed = True

    def close(self, engine: AsyncEngine) -> None:
        """Dispose the engine, unless something may still wait for it."""
        if not self._gave_up:
            self._runner.close(engine.dispose())

    async def _limited(self, work: Coroutine[Any, Any, T]) -> T:
        if self._place.timeout is None:
            return await work
        import asyncio

        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                self._progressed = False
                await asyncio.wait({task}, timeout=self._place.timeout)
                if not task.done() and not self._progressed:
                    self._give_up()
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        return task.result()

    def _give_up(self) -> None:
        global abandoned  # noqa: PLW0603  # `main` then ends the process, whatever goes on in it
        abandoned = self._gave_up = True
        raise Failure(
            f"the database at {self._place.shown_url()} "
            f"did not answer within {self._place.timeout:g} s"
        )


def _scoped(catalog: SessionCatalog, scope: dict[str, Any]) -> SessionCatalog:
    try:
        return catalog.scoped(scope)
    except ValueError as error:
        usage(f"--scope: {error}")


def place_from_options(
    url: Annotated[
        str | None,
        typer.Option(
            envvar="AGENT_SESSIONS_URL",
            help="Database URL, such as sqlite:///chat.db. Other users can see it in the process "
            "list: "
            "put a URL with a password into AGENT_SESSIONS_URL or a file (--url-file).",
            show_envvar=True,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    url_file: Annotated[
        Path | None,
        typer.Option(help="Read the database URL from this file.", rich_help_panel=_PANEL),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Restrict the command to sessions with this value; repeatable. VALUE is parsed as "
            "JSON: 123 means the number; for the string, write '\"123\"' with its quotes.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    create_tables: Annotated[
        bool,
        typer.Option(
            "--create-tables", help="Create missing tables first.", rich_help_panel=_PANEL
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Fail if the database does not answer for this long. Default: 5 for resume-check, "
            "no limit for other commands.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    sessions_table: Annotated[
        str, typer.Option(help="Name of the SDK's sessions table.", rich_help_panel=_PANEL)
    ] = "agent_sessions",
    messages_table: Annotated[
        str, typer.Option(help="Name of the SDK's messages table.", rich_help_panel=_PANEL)
    ] = "agent_messages",
    metadata_table: Annotated[
        str | None,
        typer.Option(
            help="Name of the metadata table. Default: the sessions table's name and _metadata.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
) -> Place:
    if timeout is not None and not timeout > 0:
        usage(f"--timeout must be greater than 0, got {timeout:g}")
    if url_file is not None:
        if any(each == "--url" or each.startswith("--url=") for each in sys.argv):
            usage("pass --url or --url-file, not both")
        try:
            url = url_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Failure(f"{url_file}: {getattr(error, 'strerror', error)}") from None
    return Place(
        url,
        scope or [],
        sessions_table,
        messages_table,
        metadata_table,
        create_tables,
        timeout,
    )


def explain(error: Exception, place: Place) -> Failure | None:
    """Returns the failure to print for an error; None for a bug."""
    from agents_session_metadata.errors import (
        InvalidCursorError,
        InvalidFilterError,
        SessionMetadataError,
        TablesMissingError,
        UnsupportedDialectError,
    )

    if isinstance(error, TablesMissingError) and error.tables:
        missing = f"missing tables or triggers: {', '.join(error.tables)}"
        return Failure(f"{missing}; {_how_to_create(error.tables, place)}")
    if isinstance(error, (InvalidFilterError, InvalidCursorError, UnsupportedDialectError)):
        return Failure(str(error), 2)
    if isinstance(error, SessionMetadataError):
        return Failure(str(error))
    if isinstance(error, TypeError) and str(error).startswith("connect() got an unexpected"):
        return Failure(
            f"the driver of {place.shown_url()} does not know an option of the "
            f"URL ({error}); asyncpg, for example, takes ssl=require",
            2,
        )
    # A plain ValueError is no usage error: the arguments were checked before.
    plain = Failure(str(error)) if isinstance(error, (ValueError, OverflowError)) else None
    return _database_failure(error, place) or plain


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


def _refuse_missing_file(url: URL) -> None:
    """SQLite would create an empty database for a misspelled name."""
    from agents_session_metadata.dialects.urls import file_of

    name = file_of(url)
    if name is not None and not Path(name).exists():
        raise Failure(
            f"there is no file {name}; check the URL, or create the database with --create-tables"
        )

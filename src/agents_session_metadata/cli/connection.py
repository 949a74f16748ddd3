"""The database that a command works on, how the command ends, and what its errors mean."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from agents_session_metadata.errors import SessionNotFoundError
from agents_session_metadata.keys import AGENT

from .options import parse_pairs, parse_value, usage
from .output import Answer, no_session, nothing, shown, write_json

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from agents_session_metadata.catalog import SessionCatalog
    from agents_session_metadata.core.tables import TableNames


@dataclass(kw_only=True)
class Target:
    """The shared options of a command. The engine is created when it is first used."""

    sessions_table: str
    messages_table: str
    metadata_table: str | None
    url: str | None = None
    scope: Sequence[str] = ()
    by: str | None = None
    create_tables: bool = False
    timeout: float | None = None
    limits: Mapping[str, int]
    as_json: bool = False
    json_errors: bool = False
    """Whether an error is also printed to stdout, as JSON."""
    engine_options: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> TableNames:
        from agents_session_metadata.core.tables import table_names

        return table_names(self.sessions_table, self.messages_table, self.metadata_table)

    @cached_property
    def engine(self) -> AsyncEngine:
        import logging
        from pathlib import Path

        from agents_session_metadata.dialects.urls import create_engine, file_of, with_driver

        if not self.url:
            usage("no database is given; pass --url, or set AGENT_SESSIONS_URL")
        is_file = "://" not in self.url and self.url.endswith((".db", ".sqlite", ".sqlite3"))
        url = with_driver(f"sqlite:///{self.url}" if is_file else self.url)
        file = file_of(url)
        # Of user:p@ss@host, SQLAlchemy takes ss@host for the host, and errors would show it.
        if "@" in (url.host or "") or (file is None and "@" in (url.database or "")):
            usage("the URL has an unescaped @ in the user name or the password; write it as %40")
        if file is not None and not self.create_tables and not Path(file).exists():
            # SQLite would create an empty database for a misspelled name.
            advice = "check the URL, or create the database with --create-tables"
            raise click.ClickException(f"there is no file {file}; {advice}")
        # After Ctrl-C, the pool would log each connection that it cannot close with a traceback.
        logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
        return create_engine(url, self.engine_options)

    @cached_property
    def catalog(self) -> SessionCatalog:
        from agents_session_metadata.catalog import SessionCatalog
        from agents_session_metadata.scope import own_store
        from agents_session_metadata.types import MetadataLimits

        scope, limits = parse_pairs(self.scope, "--scope"), MetadataLimits(**self.limits)
        store = own_store(self.engine, self.names, create_tables=self.create_tables, limits=limits)
        catalog = SessionCatalog._sharing(store, ensure_ascii=True)
        return catalog.scoped(scope) if scope else catalog

    async def resolved(self, text: Any) -> Any:
        """Returns the id of the only session with a value under the key of --by."""
        if text is None:
            usage("--by requires SESSION")
        if not isinstance(text, str):
            return [await self.resolved(each) for each in text]
        value = text if self.by == AGENT else parse_value(text)
        try:
            return await self.catalog._only_session(str(self.by), value)
        except LookupError as error:
            advice = "pass the session id without --by"
            raise click.ClickException(f"{error}; {advice}") from None

    async def nothing(self, session: str, problem: str, document: Any = ...) -> Answer:
        """Answers with a sentence about a session, or that the session does not exist."""
        exists = await self.catalog.get_session(session, keys=[]) is not None
        sentence = f"session {shown(session)} {problem}" if exists else no_session(session)
        return nothing(sentence, document)


Function: TypeAlias = Callable[..., Coroutine[Any, Any, Answer]]


async def run(function: Function, target: Target, params: dict[str, Any]) -> int:
    """Runs a command, prints its answer and returns the exit code.

    The first Ctrl-C cancels the command, so that transactions, connections and files are closed.
    The process then ends without waiting for threads: one may be blocked in reading stdin.
    """
    import asyncio

    if target.timeout is not None:  # The limit is for the database, not for imports.
        import agents_session_metadata.catalog  # noqa: F401

    others = {*threading.enumerate()}
    task = asyncio.ensure_future(_completed(function, target, params))
    loop, exit_at_once = asyncio.get_running_loop(), click.get_current_context().obj
    is_interrupted = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        signal.signal(signal.SIGINT, exit_at_once)  # for the second Ctrl-C
        loop.call_soon_threadsafe(task.cancel)

    is_ours = exit_at_once is not None and signal.getsignal(signal.SIGINT) is exit_at_once
    if is_ours:
        signal.signal(signal.SIGINT, interrupt)
    await asyncio.wait({task}, timeout=target.timeout)
    if is_ours:
        signal.signal(signal.SIGINT, exit_at_once)
    if is_interrupted:
        os._exit(130)
    if not task.done():
        # A thread or a task still waits for the database and would keep the process alive.
        late = click.ClickException(f"the database did not answer within {target.timeout:g} s")
        _report(late, target).show()
        sys.stdout.flush()
        os._exit(1)
    # A driver's thread may still have to tell the loop that it could not connect.
    for thread in {*threading.enumerate()} - others:
        if not thread.name.startswith("asyncio"):
            thread.join(timeout=1)
    return task.result().write(as_json=target.as_json)


async def _completed(function: Function, target: Target, params: dict[str, Any]) -> Answer:
    try:
        for name in ("session", "sessions") if target.by is not None else ():
            if name in params:
                params[name] = await target.resolved(params[name])
        return await function(target, **params)
    except click.exceptions.Exit:
        raise
    except SessionNotFoundError as error:
        return nothing(no_session(error.session_id))
    except Exception as error:
        failure = error if isinstance(error, click.ClickException) else _failure(error, target)
        if failure is None:
            raise
        raise _report(failure, target) from None
    finally:
        if "engine" in vars(target):
            await target.engine.dispose()


def _report(failure: click.ClickException, target: Target) -> click.ClickException:
    if target.json_errors:
        write_json({"error": failure.message})
    return failure


def _failure(error: Exception, target: Target) -> click.ClickException | None:
    from agents_session_metadata import errors
    from agents_session_metadata.dialects import connected_name
    from agents_session_metadata.dialects.urls import EXTRAS

    sentence, is_usage = str(error), isinstance(error, (ValueError, OverflowError))
    if isinstance(error, errors.TablesMissingError):
        sentence, can_create, _ = sentence.partition("; create with create_tables=True")
        if can_create:
            ddl = f"agent-sessions ddl --dialect {connected_name(target.engine.dialect)}"
            sentence += f"; pass --create-tables, or run the SQL that `{ddl}` prints"
    elif isinstance(error, errors.InvalidCursorError):
        sentence = "--cursor is not valid here; pass the cursor that the page before printed, "
        sentence += "with the same filter, order and scope"
    elif isinstance(error, errors.UnsupportedDialectError):
        is_usage = True
    elif isinstance(error, errors.SessionMetadataError):
        is_usage = isinstance(error, errors.InvalidFilterError)
        sentence = sentence.replace("SessionRuns.discard", "`agent-sessions discard`")
    elif (database_error := _database_error(error, target)) is not None:
        sentence, is_usage = database_error, False
    elif isinstance(error, TypeError) and sentence.startswith("connect() got an unexpected"):
        is_usage = True
        sentence = f"the driver does not know an option of the URL ({sentence})"
    elif isinstance(error, ImportError) and error.name in {"jinja2", "uvicorn"}:
        sentence = f"agent-sessions web requires {error.name}; {errors.install_advice('web')}"
    elif not is_usage and getattr(error, "name", None) not in {*EXTRAS, "mcp"}:
        return None
    if is_usage:
        return click.UsageError(sentence, click.get_current_context(silent=True))
    return click.ClickException(sentence)


def _database_error(error: Exception, target: Target) -> str | None:
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.exc import TimeoutError as PoolTimeoutError

    from agents_session_metadata.dialects.urls import DRIVER_MODULES, shown_url

    cause: BaseException = getattr(error, "orig", None) or error
    driver = type(cause).__module__.partition(".")[0]
    from_database = isinstance(error, (DBAPIError, OSError, PoolTimeoutError))
    if not (from_database or driver in DRIVER_MODULES):
        return None
    reason = str(cause).strip().partition("\n")[0] or type(cause).__name__
    if isinstance(cause, OSError) and cause.errno in errno.errorcode and cause.strerror:
        reason = cause.strerror
    url = target.engine.url
    if url.password:
        reason = reason.replace(str(url.password), "***")
    details = "".join(f"; {each}" for each in getattr(error, "detail", ()))
    advice = "check the URL and the server, then run `agent-sessions doctor`"
    return f"database error at {shown_url(url)}: {reason}{details}; {advice}"

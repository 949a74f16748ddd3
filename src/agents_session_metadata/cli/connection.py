"""The options that say which database a command uses, and what happens when the command runs."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from agents_session_metadata import errors
from agents_session_metadata.keys import AGENT, normalize_agent

from .app import DatabaseOption
from .options import PAIRS, Whole, flag, parse_pairs, parse_value, usage
from .output import NoSessionError, NothingFoundError, show, shown, write_json

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from agents_session_metadata import SessionCatalog, SessionRuns

Command: TypeAlias = Callable[..., Coroutine[Any, Any, None]]

_option = partial(click.option, cls=DatabaseOption)
_json = flag("--json", "as_json", help="Print one JSON document.")
_by = click.option(
    "--by", help="Find the one session with the value SESSION of this key, such as title."
)
_url = _option(
    "--url",
    envvar="AGENT_SESSIONS_URL",
    show_envvar=True,
    help="Database URL, such as sqlite:///chat.db; with a password, set the variable instead.",
)
_scope = _option(
    "--scope",
    multiple=True,
    metavar=PAIRS,
    help="Restrict the command to sessions with this value; repeatable.",
)
_limits = (
    _option("--max-keys", type=Whole(1), help="Maximum number of metadata keys per session."),
    _option("--max-key-length", type=Whole(1, 255), help="Maximum length of a metadata key."),
    _option("--max-value-bytes", type=Whole(1), help="Maximum size of a metadata value."),
)
_create = _option("--create-tables", is_flag=True, help="Create missing tables first.")
_tables = (
    _option("--sessions-table", default="agent_sessions", help="Name of the SDK's sessions table."),
    _option("--messages-table", default="agent_messages", help="Name of the SDK's messages table."),
    _option(
        "--metadata-table",
        help="Name of the metadata table.  [default: SESSIONS_TABLE_metadata]",
    ),
)
_timeout = partial(
    _option,
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    help="Fail if the command takes longer, in seconds.",
)


class NoFileError(click.ClickException):
    """The file of a SQLite database does not exist."""


@dataclass(kw_only=True)
class ChosenDatabase:
    """The database options of a command."""

    url: str | None
    sessions_table: str
    messages_table: str
    metadata_table: str | None
    scope: Sequence[str] = ()
    create_tables: bool = False
    max_keys: int | None = None
    max_key_length: int | None = None
    max_value_bytes: int | None = None
    timeout: float | None = None
    json_errors: bool = False
    """Whether an error is also printed to stdout, as JSON."""
    engine: AsyncEngine | None = None
    """Set as soon as the database is opened."""

    @cached_property
    def names(self) -> Any:
        from agents_session_metadata.core.features import table_names

        return table_names(self.sessions_table, self.messages_table, self.metadata_table)

    @cached_property
    def catalog(self) -> SessionCatalog:
        return self.open()

    @cached_property
    def runs(self) -> SessionRuns:
        from agents_session_metadata import SessionRuns

        return SessionRuns(self.catalog)

    def open(self, *, create_tables: bool = False, **engine_options: Any) -> SessionCatalog:
        """Opens the catalog, without importing the SDK, which takes long. The command closes it."""
        from agents_session_metadata.catalog import SessionCatalog
        from agents_session_metadata.scope import own_store
        from agents_session_metadata.types import MetadataLimits

        scope = parse_pairs(self.scope, "--scope")
        given = {name: getattr(self, name) for name in MetadataLimits.__dataclass_fields__}
        limits = MetadataLimits(**{name: most for name, most in given.items() if most is not None})
        self.engine = self._engine(engine_options)
        creates = create_tables or self.create_tables
        store = own_store(self.engine, self.names, create_tables=creates, limits=limits)
        catalog = SessionCatalog._sharing(store, ensure_ascii=True)
        return catalog.scoped(scope) if scope else catalog

    def is_new(self, error: Exception) -> bool:
        """Returns whether an error means that no metadata was ever stored."""
        if isinstance(error, errors.TablesMissingError):
            return self.names.metadata in error.tables
        return isinstance(error, NoFileError)

    def _engine(self, engine_options: dict[str, Any]) -> AsyncEngine:
        from pathlib import Path

        from agents_session_metadata.dialects import urls

        if not self.url:
            usage("no database is given; pass --url, or set AGENT_SESSIONS_URL")
        is_file = "://" not in self.url and self.url.endswith((".db", ".sqlite", ".sqlite3"))
        given = f"sqlite:///{self.url}" if is_file else self.url
        engine = urls.create_engine(given, engine_options)
        file, url = urls.file_of(engine.url), engine.url
        # Of user:p@ss@host, SQLAlchemy takes ss@host for the host, and errors would show it.
        if "@" in (url.host or "") or (file is None and "@" in (url.database or "")):
            usage("the URL has an unescaped @ in the user name or the password; write it as %40")
        if file is not None and not self.create_tables and not Path(file).exists():
            # SQLite would create an empty database for a misspelled name.
            advice = "check the URL, or create the database with --create-tables"
            raise NoFileError(f"file {file} does not exist; {advice}")
        return engine


def database_options(
    *,
    by: bool = False,
    scope: bool = True,
    limits: bool = False,
    timeout: float | None = None,
    has_json: bool = True,
    serves: bool = False,
) -> Callable[[Command], Callable[..., None]]:
    """Adds the options of a database to a coroutine function, which receives a `ChosenDatabase`.

    This is the decorator next to the function, so that help shows the command's own options first.
    `by` adds --by, for a command with the argument `session` or `sessions`, `scope` also adds
    --create-tables, `limits` is for a command that stores metadata, and a command that `serves` has
    neither --json nor --timeout.
    """
    added = [_json] if has_json and not serves else []
    added += [*([_by] if by else []), _url, *([_scope] if scope else [])]
    added += [*(_limits if limits else []), *([_create] if scope else []), *_tables]
    added += [] if serves else [_timeout(default=timeout)]

    def decorate(function: Command) -> Callable[..., None]:
        @wraps(function)
        def command(**params: Any) -> None:
            import asyncio

            names = ChosenDatabase.__dataclass_fields__.keys() & params.keys()
            database = ChosenDatabase(**{name: params.pop(name) for name in names})
            params.pop("as_json", None)  # `show` looks at it
            asyncio.run(_run(function, database, params))

        decorated: Callable[..., None] = command
        for add in reversed(added):
            decorated = add(decorated)
        return decorated

    return decorate


async def _run(function: Command, database: ChosenDatabase, params: dict[str, Any]) -> None:
    """Runs a command.

    The first Ctrl-C cancels the command, so that transactions, connections and files are closed.
    The process then ends without waiting for threads: one may be blocked in reading stdin.
    """
    import asyncio
    import logging

    # After Ctrl-C, the pool would log each connection that it cannot close with a traceback.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    if database.timeout is not None and not params.get("test"):
        # The limit is for the database, not for imports.
        import agents_session_metadata.catalog  # noqa: F401

    others = {*threading.enumerate()}
    task = asyncio.ensure_future(_completed(function, database, params))
    loop, exit_at_once = asyncio.get_running_loop(), click.get_current_context().obj
    is_interrupted = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        signal.signal(signal.SIGINT, exit_at_once)  # for the second Ctrl-C
        loop.call_soon_threadsafe(task.cancel)

    is_ours = signal.getsignal(signal.SIGINT) is exit_at_once
    if is_ours:
        signal.signal(signal.SIGINT, interrupt)
    await asyncio.wait({task}, timeout=database.timeout)
    if is_ours:
        signal.signal(signal.SIGINT, exit_at_once)
    if is_interrupted:
        os._exit(130)
    if not task.done():
        # A thread or a task still waits for the database and would keep the process alive.
        late = click.ClickException(f"the database did not answer within {database.timeout:g} s")
        _report(late, database).show()
        sys.stdout.flush()
        os._exit(1)
    # A driver's thread may still have to tell the loop that it could not connect.
    for thread in {*threading.enumerate()} - others:
        if not thread.name.startswith("asyncio"):
            thread.join(timeout=1)
    task.result()


async def _completed(function: Command, database: ChosenDatabase, params: dict[str, Any]) -> None:
    try:
        by = params.pop("by", None)
        if by is not None:
            await _resolve(database, by, params)
        await function(database, **params)
    except click.exceptions.Exit:
        raise
    except (NothingFoundError, errors.SessionNotFoundError) as error:
        if isinstance(error, errors.SessionNotFoundError):
            error = NoSessionError(error.session_id)
        message = str(error)
        if isinstance(error, NoSessionError):
            message += await _suggestion(database.catalog, error.session_id)
        await show(error.document, message=message, code=1)
    except Exception as error:
        failure = error if isinstance(error, click.ClickException) else _failure(error, database)
        if failure is None:
            raise
        raise _report(failure, database) from None
    finally:
        if database.engine is not None:
            await database.engine.dispose()


async def _suggestion(catalog: SessionCatalog, session_id: str) -> str:
    """Returns a question about the most similar id among those of the newest sessions."""
    from difflib import get_close_matches

    ids: list[str] = []
    with suppress(errors.SessionMetadataError):
        ids = [info.session_id for info in await catalog.list_sessions(limit=1000, keys=[])]
    return "".join(
        f"; did you mean {shown(each)}?" for each in get_close_matches(session_id, ids, 1)
    )


async def _resolve(database: ChosenDatabase, by: str, params: dict[str, Any]) -> None:
    """Replaces the values under the key of --by with the ids of the sessions that have them."""
    texts, found = params["sessions"] if "sessions" in params else [params["session"]], []
    if not texts or None in texts:
        usage("--by requires SESSION")
    for text in texts:
        value = normalize_agent(text) if by == AGENT else parse_value(text)
        page = await database.catalog.list_sessions({by: {"$eq": value}}, limit=2, keys=[])
        if len(page) != 1:
            problem = "more than one session has" if page.sessions else "no session has"
            advice = "pass the session id without --by"
            raise click.ClickException(f"{problem} {by}={text}; {advice}")
        found.append(page.sessions[0].session_id)
    params.update({"sessions": found} if "sessions" in params else {"session": found[0]})


def _report(failure: click.ClickException, database: ChosenDatabase) -> click.ClickException:
    if database.json_errors:
        write_json({"error": failure.message})
    return failure


_IN_A_SHELL = {
    "SessionRuns.discard": "`agent-sessions discard`",
    "or pass wait=": "or end it with `agent-sessions stop`",
    'or pass interrupted="resume" or interrupted="discard"': "or run `agent-sessions discard`",
    '`await catalog.create_index("$text")` or ': "",
}
"""The advice of errors for programs, and what to say instead."""


def _failure(error: Exception, database: ChosenDatabase) -> click.ClickException | None:
    sentence, is_usage = str(error), isinstance(error, (ValueError, OverflowError))
    for python, shell in _IN_A_SHELL.items():
        sentence = sentence.replace(python, shell)
    if isinstance(error, errors.TablesMissingError):
        sentence, can_create, _ = sentence.partition("; create with create_tables=True")
        if can_create:
            sentence += "; pass --create-tables, or run the SQL of `agent-sessions ddl --upgrade`"
    elif isinstance(error, errors.InvalidCursorError):
        sentence = "--cursor is not valid here; pass the cursor that the page before printed, "
        sentence += "with the same filter, order and scope"
    elif isinstance(error, errors.SessionMetadataError):
        is_usage = isinstance(error, (errors.InvalidFilterError, errors.UnsupportedDialectError))
    elif database.engine and (problem := _database_problem(error, database.engine)):
        sentence, is_usage = problem, False
    elif isinstance(error, TypeError) and sentence.startswith("connect() got an unexpected"):
        is_usage = True
        sentence = f"the driver does not know an option of the URL ({sentence})"
    elif isinstance(error, ImportError) and error.name in {"jinja2", "uvicorn"}:
        sentence = f"agent-sessions web requires {error.name}; {errors.install_advice('web')}"
    elif not is_usage and not (isinstance(error, ImportError) and "; install agents-" in sentence):
        return None
    if is_usage:
        return click.UsageError(sentence, click.get_current_context(silent=True))
    return click.ClickException(sentence)


def _database_problem(error: Exception, engine: AsyncEngine) -> str | None:
    from agents_session_metadata import is_unavailable
    from agents_session_metadata.dialects.codes import database_cause

    cause = database_cause(error)
    if cause is None:
        return None
    reason = str(cause).strip().partition("\n")[0] or type(cause).__name__
    if isinstance(cause, OSError) and cause.errno in errno.errorcode and cause.strerror:
        reason = cause.strerror
    if engine.url.password:
        reason = reason.replace(str(engine.url.password), "***")
    details = "".join(f"; {each}" for each in getattr(error, "detail", ()))
    advice = "check the URL and the server, then run `agent-sessions doctor`"
    if is_unavailable(error):
        advice = f"try again later, or {advice}"
    shown_url = engine.url.set(query={}).render_as_string(hide_password=True)
    return f"database error at {shown_url}: {reason}{details}; {advice}"

"""The application: how its commands are declared and run, and what their errors mean.

A command is a coroutine function with the decorator `command`, in a module that is imported when
the command is needed. Its first argument is a `Target`, which opens the catalog when it is first
used. The defaults of the others, made in `options`, declare the command's parameters. It returns an
`Answer`.
"""

from __future__ import annotations

import errno
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from agents_session_metadata import errors
from agents_session_metadata.keys import AGENT
from agents_session_metadata.text import escaped

from . import options
from .options import Together, Whole, flag, option, parse_pairs, parse_value, repeatable, usage
from .output import Answer, no_session, nothing, shown, write_json

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from agents_session_metadata.catalog import SessionCatalog
    from agents_session_metadata.core.definitions import TableNames

HEADINGS = {
    "Sessions": ("sessions", "list show get set unset count values last"),
    "History": ("history", "history rewind fork search replay"),
    "Lifecycle": ("lifecycle", "start phase resume-check finish"),
    "Runs": ("runs", "runs approve reject discard"),
    "Usage": ("runs", "usage"),
    "Delete and move": ("transfer", "delete cleanup export import"),
    "Database": ("database", "index size ddl doctor"),
    "Servers": ("servers", "mcp web"),
}
COMMANDS: dict[str, str] = {
    name: module for module, names in HEADINGS.values() for name in names.split()
}

TABLES = ("sessions_table", "messages_table", "metadata_table")
# The shared options of a server, of a command on tables, of one on sessions, and if it writes.
LIMITS = ("max_keys", "max_key_length", "max_value_bytes")
SERVER = ("url", *TABLES, *LIMITS, "scope", "create_tables")
DATABASE = ("as_json", "url", "timeout", *TABLES)
CATALOG = (*DATABASE, "scope", "create_tables")
WRITES = (*CATALOG, *LIMITS)

_NAME = "agent-sessions"
_SECONDS = click.FloatRange(0, min_open=True)
_SHARED: dict[str, Any] = {
    "as_json": flag("Print one JSON document.", "--json"),
    "by": option("SESSION is a value of this key, such as title, that one session has."),
    "url": option(
        "Database URL, such as sqlite:///chat.db. Other users can see it in the process list: "
        "put a URL with a password into AGENT_SESSIONS_URL.",
        envvar="AGENT_SESSIONS_URL",
        show_envvar=True,
    ),
    "scope": repeatable(
        "Restrict the command to sessions with this value; repeatable. VALUE is parsed as JSON: "
        "123 means the number; for the string, write '\"123\"' with its quotes.",
        metavar=options.PAIRS,
    ),
    "max_keys": option("Maximum number of metadata keys per session.", type=Whole(1)),
    "max_key_length": option("Maximum length of a metadata key.", type=Whole(1, 255)),
    "max_value_bytes": option("Maximum size of a metadata value.", type=Whole(1)),
    "create_tables": flag("Create missing tables first."),
    "sessions_table": option("Name of the SDK's sessions table.", default="agent_sessions"),
    "messages_table": option("Name of the SDK's messages table.", default="agent_messages"),
    "metadata_table": option(
        "Name of the metadata table. Default: the sessions table's name and _metadata."
    ),
}


class _Application(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            import_module(f".{COMMANDS[cmd_name]}", __package__)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for heading, (module, names) in HEADINGS.items():
            import_module(f".{module}", __package__)
            with formatter.section(heading):
                found = ((name, self.commands[name]) for name in names.split())
                formatter.write_dl([(name, each.get_short_help_str(100)) for name, each in found])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            # Click quotes what was typed.
            error.message = escaped(error.message)  # type: ignore[misc]  # final
            raise


app: click.Group = _Application(
    _NAME,
    commands=dict.fromkeys(COMMANDS, click.Command(None)),  # until their modules are imported
    help="Find, change, delete and copy sessions of the OpenAI Agents SDK by their metadata.",
    epilog=(
        "Data goes to stdout, messages go to stderr. Exit codes: 0 success, 1 error or nothing "
        "found, 2 usage error, 130 interrupted."
    ),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(
    package_name="agents-session-metadata", prog_name=_NAME, message="%(prog)s %(version)s"
)(app)


class _Command(click.Command):
    shared: Sequence[str]
    together: Mapping[str, Together]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Database options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                is_own = param.name not in self.shared or param.name in {"as_json", "by"}
                sections["Options" if is_own else "Database options"].append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)

    def invoke(self, ctx: click.Context) -> None:
        import asyncio

        params = ctx.params
        shared = {name: params.pop(name) for name in self.shared}
        given = {name: shared.pop(name) for name in LIMITS if name in shared}
        limits = {name: most for name, most in given.items() if most is not None}
        if shared.get("as_json") and params.get("as_lines"):
            usage("pass --json or --jsonl, not both")
        for name, each in self.together.items():
            params[name] = each.combine(**{part: params.pop(part) for part in each.options})
        assert self.callback is not None  # noqa: S101  # for type checkers
        ctx.exit(asyncio.run(run(self.callback, Target(limits=limits, **shared), params)))


def command(
    example: str, shared: Sequence[str] = CATALOG, *, timeout: float | None = None
) -> Callable[[Function], Function]:
    """Adds a coroutine function to the application as a command. Its docstring is the help.

    The example begins with the name of the command, which is two words if the first is a group.
    `timeout` is the default of --timeout.
    """
    first, second, *_ = example.split(" ")
    found = app.commands[first]
    parent, command_name = (found, second) if isinstance(found, click.Group) else (app, first)

    def add(function: Function) -> Function:
        limit = option("Fail if the command takes longer.", type=_SECONDS, default=timeout)
        _, *arguments = inspect.signature(function).parameters.values()
        declared = {each.name: each.default for each in arguments}
        together = {name: each for name, each in declared.items() if isinstance(each, Together)}
        makers: dict[str, Any] = {}
        for name, each in declared.items():
            makers |= together[name].options if name in together else {name: each}
        own = {name: make(name) for name, make in makers.items()}
        is_about_sessions = isinstance(own.get("session", own.get("sessions")), click.Argument)
        names = (*shared, "by") if is_about_sessions else shared
        usual = {**_SHARED, "timeout": limit}.items()
        others = [make(each) for each, make in usual if each in names]
        made = _Command(
            command_name,
            callback=function,
            params=[*own.values(), *others],
            help=function.__doc__,
            epilog=f"Example: {_NAME} {example}",
        )
        made.shared, made.together = names, together
        parent.add_command(made)
        return function

    return add


# ---- running a command ----


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
        from agents_session_metadata.core.features import table_names

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
        try:
            exists = await self.catalog.get_session(session, keys=[]) is not None
        except errors.TablesMissingError:  # A history exists without this package's tables.
            exists = True
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

    is_ours = signal.getsignal(signal.SIGINT) is exit_at_once
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
    except errors.SessionNotFoundError as error:
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
    from agents_session_metadata.dialects.urls import EXTRAS

    sentence, is_usage = str(error), isinstance(error, (ValueError, OverflowError))
    if isinstance(error, errors.TablesMissingError):
        sentence, can_create, _ = sentence.partition("; create with create_tables=True")
        if can_create:
            sentence += "; pass --create-tables, or run the SQL of `agent-sessions ddl --upgrade`"
    elif isinstance(error, errors.InvalidCursorError):
        sentence = "--cursor is not valid here; pass the cursor that the page before printed, "
        sentence += "with the same filter, order and scope"
    elif isinstance(error, errors.SessionMetadataError):
        is_usage = isinstance(error, (errors.InvalidFilterError, errors.UnsupportedDialectError))
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
    from agents_session_metadata.dialects.urls import database_cause, is_unavailable, shown_url

    cause = database_cause(error)
    if cause is None:
        return None
    reason = str(cause).strip().partition("\n")[0] or type(cause).__name__
    if isinstance(cause, OSError) and cause.errno in errno.errorcode and cause.strerror:
        reason = cause.strerror
    url = target.engine.url
    if url.password:
        reason = reason.replace(str(url.password), "***")
    details = "".join(f"; {each}" for each in getattr(error, "detail", ()))
    advice = "check the URL and the server, then run `agent-sessions doctor`"
    if is_unavailable(error):
        advice = f"try again later, or {advice}"
    return f"database error at {shown_url(url)}: {reason}{details}; {advice}"

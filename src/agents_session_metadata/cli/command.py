"""How a coroutine becomes a command: shared options, an example, errors as sentences."""

from __future__ import annotations

import asyncio
import errno
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import typer
from rich.markup import escape
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from typer.core import TyperGroup

from agents_session_metadata.ddl import DIALECTS
from agents_session_metadata.dialects.urls import EXTRAS, shown_url
from agents_session_metadata.errors import (
    InvalidCursorError,
    InvalidFilterError,
    SessionMetadataError,
    TablesMissingError,
    UnsupportedDialectError,
)

from . import options as given
from .output import OutputError, printable, say

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Awaitable[int | None]])

EXAMPLES: dict[str, str] = {}
"""An example of every command."""


class _Commands(TyperGroup):
    """What was typed is quoted in errors, and escaped there."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if isinstance(message := getattr(error, "message", None), str):
                error.message = printable(message)  # type: ignore[attr-defined]  # Typer's own
            raise


app: typer.Typer = typer.Typer(
    cls=_Commands,
    name="agent-sessions",
    help="Metadata for the sessions of the OpenAI Agents SDK: find, change, age and move them.",
    epilog=(
        "Data goes to standard output, words to standard error. "
        "The exit code is 0, or 1 for an error or when nothing was found, "
        "or 2 for a command line that was not understood."
    ),
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_TABLES = [
    inspect.Parameter(
        "sessions_table", _KEYWORD, default="agent_sessions", annotation=given.SessionsTableOption
    ),
    inspect.Parameter(
        "messages_table", _KEYWORD, default="agent_messages", annotation=given.MessagesTableOption
    ),
    inspect.Parameter(
        "metadata_table", _KEYWORD, default=None, annotation=given.MetadataTableOption
    ),
]
_NO_SCOPE = inspect.Parameter("scope", _KEYWORD, default=None, annotation=given.NoScopeOption)
_PLACE = [
    inspect.Parameter("url", _KEYWORD, default=None, annotation=given.UrlOption),
    inspect.Parameter("scope", _KEYWORD, default=None, annotation=given.ScopeOption),
    *_TABLES,
    inspect.Parameter(
        "create_tables", _KEYWORD, default=False, annotation=given.CreateTablesOption
    ),
]
_DRIVER_MODULES = {*EXTRAS, "pymysql", "sqlite3", "aiomysql"}


def command(
    name: str, example: str, *, offline: bool = False
) -> Callable[[CommandFunction], CommandFunction]:
    """Make a command of a coroutine function.

    The function gets a `Place` first; the options that make one are added to its own. What it
    returns is the exit code, None being 0.

    Args:
        name: The command's name.
        example: A line to show in its help.
        offline: Whether it needs the names of the tables only, and no database.

    Returns:
        The decorator; the function stays as it is.
    """
    added = [*_TABLES, _NO_SCOPE] if offline else _PLACE

    def decorate(function: CommandFunction) -> CommandFunction:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        parameters = [parameter.replace(kind=_KEYWORD) for parameter in own] + added

        def run(**arguments: Any) -> None:
            place = given.Place(**{each.name: arguments.pop(each.name) for each in added})
            code = _run(lambda: function(place, **arguments), place)
            if code:
                raise typer.Exit(code)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by Typer
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        EXAMPLES[name] = example
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        summary = "\n\n".join(" ".join(each.split()) for each in paragraphs)
        epilog = f"Example: {escape(f'agent-sessions {example}')}"
        app.command(name, help=escape(summary), epilog=epilog)(run)
        return function

    return decorate


def _run(work: Callable[[], Awaitable[int | None]], place: given.Place) -> int:
    """Run a command and say, in a sentence, why it could not be done."""

    async def main() -> int | None:
        return await work()

    try:
        return asyncio.run(main()) or 0
    except OutputError:
        raise
    except Exception as error:
        failure = error if isinstance(error, given.Failure) else explain(error, place)
        if failure is None:
            raise
        say(failure.sentence)
        return failure.code


def explain(error: BaseException, place: given.Place) -> given.Failure | None:
    """What an error means to whoever typed the command; None for one that is a bug."""
    if isinstance(error, TablesMissingError):
        backend = place.database_url().get_backend_name()
        # Such a URL may lead to either.
        dialect = {"mysql": "mariadb"}.get(backend, backend if backend in DIALECTS else "…")
        other = " (on MySQL: --dialect mysql)" if backend == "mysql" else ""
        return given.Failure(
            f"the database lacks {', '.join(error.tables)}; pass --create-tables, "
            f"or run what `agent-sessions ddl --dialect {dialect}` prints{other}"
        )
    if isinstance(error, (InvalidFilterError, InvalidCursorError, UnsupportedDialectError)):
        return given.Failure(str(error), 2)
    if isinstance(error, SessionMetadataError):
        return given.Failure(str(error))
    if isinstance(error, TypeError) and str(error).startswith("connect() got an unexpected"):
        return given.Failure(
            f"the driver of {shown_url(place.database_url())} does not know an option of the "
            f"URL ({error}); asyncpg, for instance, takes ssl=require",
            2,
        )
    return _database_failure(error, place) or (
        given.Failure(str(error), 2) if isinstance(error, (ValueError, OverflowError)) else None
    )


def _database_failure(error: BaseException, place: given.Place) -> given.Failure | None:
    cause: BaseException = error
    if isinstance(error, DBAPIError) and error.orig is not None:
        cause = error.orig
    driver = type(cause).__module__.partition(".")[0]
    from_database = isinstance(error, (DBAPIError, OSError, PoolTimeoutError))
    if not place.url or not (from_database or driver in _DRIVER_MODULES):
        return None
    url = place.database_url()
    reason = str(cause).strip().partition("\n")[0] or type(cause).__name__
    if isinstance(cause, OSError) and cause.errno in errno.errorcode and cause.strerror:
        reason = cause.strerror
    if url.password:
        reason = reason.replace(str(url.password), "***")
    return given.Failure(
        f"the database at {shown_url(url)} does not answer as it should: {reason}; "
        "check the URL and the server, then run `agent-sessions doctor`"
    )

"""What the command line takes: options, JSON, `key=value`, and the database that they name."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer
from sqlalchemy import URL
from sqlalchemy.exc import ArgumentError, InvalidRequestError, NoSuchModuleError
from sqlalchemy.ext.asyncio import AsyncEngine

from agents_session_metadata.catalog import SessionCatalog
from agents_session_metadata.dialects.urls import (
    DRIVERS,
    EXTRAS,
    create_engine,
    with_driver,
)
from agents_session_metadata.scope import own_store
from agents_session_metadata.storage.tables import TableNames, table_names

from .output import shown

INPUT_ENCODING = "utf-8-sig"
"""UTF-8; a byte order mark before it is none of the text."""

UNDECODED = "surrogateescape"
"""What is done with bytes that are not UTF-8."""


class Failure(Exception):  # noqa: N818  # it also stands for nothing found
    """Ends a command with a sentence on stderr."""

    def __init__(self, sentence: str, code: int = 1) -> None:
        self.sentence = sentence
        self.code = code
        super().__init__(sentence)


def usage(sentence: str) -> NoReturn:
    """End a command that was not understood."""
    raise Failure(sentence, 2)


UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="AGENT_SESSIONS_URL",
        help="The database, such as sqlite:///chat.db or postgresql://user@host/name.",
        show_envvar=True,
    ),
]
ScopeOption = Annotated[
    list[str] | None,
    typer.Option("--scope", metavar="KEY=VALUE", help="See only sessions with this value."),
]
NoScopeOption = Annotated[list[str] | None, typer.Option("--scope", hidden=True)]
SessionsTableOption = Annotated[
    str, typer.Option("--sessions-table", help="Name of the SDK's sessions table.")
]
MessagesTableOption = Annotated[
    str, typer.Option("--messages-table", help="Name of the SDK's messages table.")
]
MetadataTableOption = Annotated[
    str | None,
    typer.Option("--metadata-table", help="Name of the metadata table.", show_default=False),
]
CreateTablesOption = Annotated[
    bool, typer.Option("--create-tables", help="Create missing tables first.")
]

WhereOption = Annotated[
    str | None, typer.Option("--where", metavar="JSON", help="A filter, as in the library.")
]
FilterMetaOption = Annotated[
    list[str] | None,
    typer.Option("--meta", metavar="KEY=VALUE", help="Only sessions with this value; repeatable."),
]
MetaOption = Annotated[
    list[str] | None,
    typer.Option(
        "--meta",
        metavar="KEY=VALUE",
        help="Metadata to store; a value that is JSON is taken as JSON, else as a string.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
JsonLinesOption = Annotated[bool, typer.Option("--jsonl", help="Print a JSON document a line.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]


@dataclass(frozen=True)
class Place:
    """The database and tables that a command works on, and the scope that it stays in."""

    url: str | None = None
    scope: list[str] | None = None
    sessions_table: str = "agent_sessions"
    messages_table: str = "agent_messages"
    metadata_table: str | None = None
    create_tables: bool = False

    @property
    def names(self) -> TableNames:
        """The names of the tables.

        Raises:
            Failure: If one could not be printed.
        """
        for name in (self.sessions_table, self.messages_table, self.metadata_table or ""):
            if not name.isprintable():
                usage(f"the name of a table must be printable, not {name!r}")
        return table_names(self.sessions_table, self.messages_table, self.metadata_table)

    def refuse_scope(self, command: str) -> None:
        """Refuse a scope for a command that sees no sessions.

        Raises:
            Failure: If there is one.
        """
        if self.scope:
            usage(f"{command} looks at tables, not at sessions; leave --scope out")

    def database_url(self) -> URL:
        """The URL, with a driver.

        Raises:
            Failure: If there is none, or it is not understood.
        """
        if not self.url:
            usage("no database is given; pass --url or set AGENT_SESSIONS_URL")
        try:
            url = with_driver(self.url)
        except ValueError as error:
            usage(str(error))
        if url.get_backend_name() not in DRIVERS:
            name = url.get_backend_name()
            usage(f"database {name!r} is not supported; use SQLite, PostgreSQL, MariaDB or MySQL")
        return url

    def engine(self, **engine_options: Any) -> AsyncEngine:
        """An engine; whoever asks for it disposes it.

        Args:
            **engine_options: Arguments for `create_async_engine`.

        Raises:
            Failure: If the database is not given, not understood, without a driver or, a file, not
                there.
        """
        url = self.database_url()
        if not self.create_tables:
            refuse_missing_file(url)
        try:
            return create_engine(url, engine_options)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in EXTRAS:
                raise Failure(str(error)) from None
        except (NoSuchModuleError, InvalidRequestError):
            pass  # No driver of that name, or none for asyncio.
        except ArgumentError:
            usage("the URL is not understood; write it like sqlite:///folder/name.db")
        usage(
            f"{url.drivername} is no driver for asyncio that is installed; use one of "
            f"{', '.join(sorted({*DRIVERS.values(), 'postgresql+psycopg'}))}"
        )

    @asynccontextmanager
    async def catalog(self, **engine_options: Any) -> AsyncIterator[SessionCatalog]:
        """The catalog, bound to the scope; its engine is disposed at the end.

        Args:
            **engine_options: Arguments for `create_async_engine`.

        Raises:
            Failure: If there is no engine, or the scope is not understood.
        """
        scope = parse_pairs(self.scope, "--scope")
        names = self.names
        engine = self.engine(**engine_options)
        store = own_store(engine, names, create_tables=self.create_tables)
        catalog = SessionCatalog._sharing(store, ensure_ascii=True)
        try:
            bound = catalog.scoped(scope) if scope else catalog
        except ValueError as error:
            usage(f"--scope: {error}")
        try:
            yield bound
        finally:
            await engine.dispose()


def refuse_missing_file(url: URL) -> None:
    """SQLite would make an empty database of a misspelt name."""
    name = url.database or ":memory:"
    if url.get_backend_name() != "sqlite" or name == ":memory:" or name.startswith("file:"):
        return
    if not Path(name).exists():
        raise Failure(
            f"there is no file {name}; check --url, or make the database with --create-tables"
        )


def parse_json(text: str, what: str) -> Any:
    """Read JSON that a person typed.

    Raises:
        Failure: If it is no JSON; NaN, infinities and keys given twice are none.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        usage(f"{what} is not JSON: {error}")


def parse_value(text: str, what: str = "the value") -> Any:
    """A value after `key=`: JSON when it is valid JSON, else the string itself.

    Raises:
        Failure: If it is JSON and no value: too long a number, nested too deep, a key given twice.
    """
    try:
        json.loads(text, parse_constant=_refuse_constant, parse_int=str)
    except ValueError:
        return text
    except RecursionError:
        pass
    return parse_json(text, what)


def parse_pairs(pairs: Sequence[str] | None, option: str) -> dict[str, Any]:
    """Read repeated `key=value`.

    Raises:
        Failure: If one has no `=`, or a key comes twice.
    """
    values: dict[str, Any] = {}
    for pair in pairs or ():
        key, separator, text = pair.partition("=")
        if not separator or not key:
            usage(f"{option} takes key=value, not {pair!r}")
        if key in values:
            usage(f"{option} names {key!r} twice")
        values[key] = parse_value(text, f"{option} {shown(key)}")
    return values


def parse_where(where: str | None, pairs: Sequence[str] | None) -> dict[str, Any] | None:
    """One filter out of `--where` and `--meta`; None without either."""
    parts: list[Any] = []
    if where is not None:
        parts.append(parse_json(where, "--where"))
    parts += [{key: {"$eq": value}} for key, value in parse_pairs(pairs, "--meta").items()]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else {"$and": parts}


def refuse_both(*, as_json: bool, as_lines: bool) -> None:
    """Refuse two forms of one answer.

    Raises:
        Failure: If both are wanted.
    """
    if as_json and as_lines:
        usage("pass --json or --jsonl, not both")


def standard_input() -> TextIO:
    """Standard input, as UTF-8.

    A byte that is not UTF-8 breaks the record that it is in, not those that are read with it.

    Raises:
        Failure: If it is closed.
    """
    if sys.stdin is None:
        raise Failure("standard input is closed; send something to it")
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding=INPUT_ENCODING, errors=UNDECODED)
    return sys.stdin


def is_asked() -> bool:
    """Whether somebody sits at standard input."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is lost, unless told not to.

    Raises:
        Failure: If nobody can be asked, or the answer is no.
    """
    require_answer(yes=yes)
    if not yes and not typer.confirm(question, err=True):
        raise Failure("nothing was changed")


def require_answer(*, yes: bool) -> None:
    """Refuse to begin what will ask when nobody can answer.

    Raises:
        Failure: If standard input is no terminal and `--yes` is missing.
    """
    if not yes and not is_asked():
        usage("this would ask first, and standard input is no terminal; pass --yes")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return found

"""Output of commands: data on stdout, messages and progress on stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from agents_session_metadata.errors import TablesMissingError
from agents_session_metadata.text import ascii_json, escaped

if TYPE_CHECKING:
    from agents_session_metadata.catalog import SessionCatalog

T = TypeVar("T")

STDOUT = "standard output"
LONGEST_PAGE = 1000
_LONGEST_CELL = 1000
_CHUNK = 1 << 16
_NARROWEST, _PIPE_WIDTH = 40, 10_000


@dataclass(frozen=True)
class Table:
    """The first column is cut last. With `folded`, long texts continue on further lines."""

    header: Sequence[str]
    rows: Iterable[Sequence[str]]
    folded: bool = False

    def write(self) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        # A pipe has no width; nothing is cut there.
        wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _PIPE_WIDTH
        console = Console(file=sys.stdout, highlight=False, width=wide)
        console.width = max(console.width, _NARROWEST)
        table = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for position, name in enumerate(self.header):
            width = None if position else console.width // 2
            table.add_column(Text(escaped(name)), no_wrap=not position, max_width=width)
        for row in self.rows:
            cells = []
            for position, text in enumerate(row):
                folds = self.folded or position == 0
                cells.append(Text(escaped(text), no_wrap=not folds))
                cells[-1].overflow = "fold" if folds else "ellipsis"
            table.add_row(*cells)
        console.print(table)


class NothingFoundError(Exception):
    """Ends a command with exit code 1. With --json, the document is printed, too."""

    def __init__(self, message: str, document: Any = ...) -> None:
        super().__init__(message)
        self.document = document


class NoSessionError(NothingFoundError):
    """Ends a command for a session that does not exist. A similar id is suggested."""

    def __init__(self, session_id: str, document: Any = ..., advice: str = "") -> None:
        super().__init__(no_session(session_id) + advice, document)
        self.session_id = session_id


async def nothing_in(
    catalog: SessionCatalog, session: str, problem: str, document: Any = ...
) -> NothingFoundError:
    """Returns the error with a sentence about a session, or that the session does not exist."""
    try:
        exists = await catalog.get_session(session, keys=[]) is not None
    except TablesMissingError:  # A history exists without this package's tables.
        exists = True
    if not exists:
        return NoSessionError(session, document)
    return NothingFoundError(f"session {shown(session)} {problem}", document)


def wants_json() -> bool:
    return bool(click.get_current_context().params.get("as_json"))


def answer_in_json() -> None:
    """Makes the command print JSON, and no messages if it succeeds, as with --json."""
    click.get_current_context().params["as_json"] = True


async def show(
    document: Any = ...,
    text: str | None = None,
    table: Table | None = None,
    message: str | None = None,
    code: int = 0,
) -> None:
    """Prints the document with --json; otherwise the text and the table.

    The message goes to stderr; with --json, only if the exit code is not 0.
    """
    as_json = wants_json()
    if as_json and document is not ...:
        await blocking(write_json, document, name=STDOUT)
    if not as_json and text is not None:
        await blocking(write, text, name=STDOUT)
    if not as_json and table is not None:
        await blocking(table.write, name=STDOUT)
    if message is not None and (code or not as_json):
        say(message)
    if code:
        raise click.exceptions.Exit(code)


def report(corrupt: Sequence[Exception]) -> None:
    """Ends the command with exit code 1 if there were values that are not valid JSON."""
    for error in corrupt:
        say(str(error))
    if corrupt:
        raise click.exceptions.Exit(1)


def write(text: str) -> None:
    sys.stdout.write(escaped(text, "\n\t") + "\n")


def write_json(document: Any) -> None:
    sys.stdout.write(ascii_json(document, indent=2) + "\n")


def say(sentence: str) -> None:
    """Writes a message to stderr, after the data that was printed before it."""
    sys.stdout.flush()
    click.echo(escaped(sentence), err=True)


def shown(value: Any) -> str:
    """Returns a value on one line. A long one is cut."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = escaped(re.sub(r"[ \n\t]+", " ", text).strip())
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def no_session(session_id: str) -> str:
    return f"session {shown(session_id)} does not exist"


def no_match(condition: Any) -> str:
    return "no session matches" + hint(condition)


def hint(condition: Any) -> str:
    """Returns what a filter that matches nothing may have meant."""
    from agents_session_metadata import filter_hint

    found = filter_hint(condition)
    return f"; {found}" if found else ""


async def blocking(function: Callable[..., T], *arguments: Any, name: str = "stdin") -> T:
    """Runs something that may wait for a stream in a thread, so that Ctrl-C ends the command."""
    import asyncio

    try:
        return await asyncio.to_thread(function, *arguments)
    except OSError as error:
        raise stream_error(error, name) from None


def stream_error(error: OSError, name: str = STDOUT) -> Exception:
    if isinstance(error, BrokenPipeError):  # A reader that has seen enough closes the pipe.
        return click.exceptions.Exit(1)
    return click.ClickException(f"{name}: {error.strerror}")


@dataclass
class Records:
    """Writes records in chunks: one per line, or as the elements of a JSON list."""

    file: IO[str]
    as_list: bool
    opening: str = "["
    name: str = STDOUT
    count: int = 0
    _waiting: str = ""

    async def add(self, records: Iterable[Any]) -> None:
        text = self._waiting
        for record in records:
            if self.as_list:
                text += ",\n" if self.count else f"{self.opening}\n"
            text += ascii_json(record) + ("" if self.as_list else "\n")
            self.count += 1
        if len(text) >= _CHUNK:
            await blocking(self.file.write, text, name=self.name)
            text = ""
        self._waiting = text

    async def close(self, closing: str = "]") -> None:
        if self.as_list:
            self._waiting += f"\n{closing}\n" if self.count else f"{self.opening}{closing}\n"
        await blocking(self.file.write, self._waiting, name=self.name)
        await blocking(self.file.flush, name=self.name)


@dataclass(frozen=True)
class Pages:
    """A page to print, or with `every` all pages from there.

    `name` is the attribute of a page that has its entries.
    """

    name: str
    limit: int
    cursor: str | None
    every: bool
    as_lines: bool

    async def write(
        self,
        fetch: Callable[..., Awaitable[Any]],
        show: Callable[[Sequence[Any]], None],
        record: Callable[[Any], Any] = vars,
    ) -> int:
        """Returns the number of entries."""
        as_json = wants_json()
        records = Records(sys.stdout, as_json, f'{{"{self.name}": [')
        cursor, found = self.cursor, 0
        while True:
            page = await fetch(limit=self.limit, cursor=cursor)
            entries, cursor = getattr(page, self.name), page.next_cursor
            found += len(entries)
            if as_json or self.as_lines:
                await records.add(map(record, entries))
            elif entries:
                await blocking(show, entries, name=STDOUT)
            if not self.every or cursor is None:
                break
        await records.close(f'], "next_cursor": {json.dumps(cursor)}}}')
        if cursor is not None and not as_json:
            say(f"there are more {self.name}; continue with --cursor {cursor}")
        return found


@contextmanager
def progress(
    what: str, total: int | None = None, *, output: IO[str] | None = None
) -> Iterator[Callable[[int], None]]:
    """Shows progress on stderr, with an estimate of the time left if there is a total.

    Data is written to `output` in the meantime. If that is a terminal, no bar is shown.
    """
    if not sys.stderr.isatty() or (output is not None and output.isatty()):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(what), total=total)
        yield lambda completed: bar.update(task, completed=completed)


@contextmanager
def writing(name: str | None) -> Iterator[IO[str]]:
    """Opens a file to write to. Old content is replaced if the block ends without an error."""
    if name is None or name == "-":
        yield sys.stdout
        return
    import shutil
    from pathlib import Path

    # A symbolic link stays a link: the file that it leads to is replaced.
    path = Path(name).resolve()
    # A name of its own, so that two exports to one path do not share it.
    part = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
    exists = path.exists()
    is_replaced = not exists or path.is_file()  # not a device or a pipe
    try:
        file = (part if is_replaced else path).open("w", encoding="utf-8")
    except OSError as error:
        raise stream_error(error, str(path)) from None
    try:
        if is_replaced and exists:
            shutil.copymode(path, part)
        yield file
        if is_replaced:
            part.replace(path)
    finally:
        with suppress(OSError):  # of what could not be written before
            file.close()
        part.unlink(missing_ok=True)

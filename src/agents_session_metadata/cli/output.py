"""What the command line prints: data on stdout, words and progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import IO, Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from agents_session_metadata import keys
from agents_session_metadata.types import SessionInfo

_LONGEST_CELL = 1000
_NARROWEST = 4
_GAP = 3


class OutputError(OSError):
    """What is written to takes no more."""


@contextmanager
def output_to(file: IO[str]) -> Iterator[None]:
    """Write: what fails here is the output, and not the database.

    Raises:
        OutputError: If it fails.
    """
    try:
        yield
    except OSError as error:
        name = "standard output" if file is sys.stdout else file.name
        raise OutputError(error.errno, error.strerror, name) from None


def say(sentence: str) -> None:
    """Write words to stderr, on one line."""
    with suppress(OSError):  # There is nobody to tell.
        sys.stderr.write(f"{printable(sentence)}\n")


def write(text: str) -> None:
    """Write a line of data to stdout."""
    with output_to(sys.stdout):
        sys.stdout.write(f"{text}\n")


def write_json(document: Any, *, indent: int | None = 2) -> None:
    """Write a JSON document to stdout, in ASCII: it may hold what no encoding can write."""
    write(json.dumps(document, indent=indent))


def printable(text: str, kept: str = "") -> str:
    """Text without what could steer a terminal.

    Args:
        text: The text.
        kept: What is left as it is besides.

    Returns:
        The text, on one line unless a line's end is kept.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in kept else each.encode("unicode_escape").decode()
        for each in text
    )


def shown(value: Any) -> str:
    """A value on one line: a string as it is, anything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(printable(text, "\n\t").split())
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"


def age(moment: datetime, now: datetime | None = None) -> str:
    """How long ago a moment was, in one unit."""
    passed = (now or datetime.now(timezone.utc)) - moment
    if passed < timedelta(minutes=1):
        return "just now"
    for unit, size, limit in (
        ("min", timedelta(minutes=1), timedelta(hours=1)),
        ("h", timedelta(hours=1), timedelta(days=1)),
        ("d", timedelta(days=1), timedelta(days=60)),
    ):
        if passed < limit:
            return f"{passed // size} {unit} ago"
    return f"{moment:%Y-%m-%d}"


def record_of(info: SessionInfo) -> dict[str, Any]:
    """A session as JSON."""
    record: dict[str, Any] = {
        "session_id": info.session_id,
        "created_at": info.created_at.isoformat(),
        "updated_at": info.updated_at.isoformat(),
        "metadata": info.metadata,
    }
    if info.item_count is not None:
        record["item_count"] = info.item_count
    return record


def write_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, folded: bool = False
) -> None:
    """Write a table, cut to the width of the terminal; its first column stays whole.

    Args:
        header: The names of the columns.
        rows: The rows.
        folded: Whether long texts go on in further lines, instead of being cut.
    """
    console = Console(file=sys.stdout, highlight=False)
    names, *cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    room = console.width - _GAP * (len(widths) - 1)
    # The widest gives way, until all fit; ids and keys only when they take half of the room.
    while sum(widths) > room:
        others = widths[1:] if widths[0] <= console.width // 2 else widths
        widest = max(others)
        if widest <= _NARROWEST:
            break
        widths[widths.index(widest, len(widths) - len(others))] -= 1
    # No terminal is too narrow: the lines are wrapped there.
    console.width = max(console.width, sum(widths) + _GAP * (len(widths) - 1))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for position, (name, width) in enumerate(zip(names, widths, strict=True)):
        folds = folded or position == 0
        table.add_column(
            Text(name), width=width, overflow="fold" if folds else "ellipsis", no_wrap=not folds
        )
    for row in cells:
        table.add_row(*map(Text, row))
    with output_to(sys.stdout):
        console.print(table)


def write_sessions(sessions: Sequence[SessionInfo], chosen: Sequence[str] | None) -> None:
    """Write sessions as a table: the well-known keys, or those chosen."""
    columns = list(chosen) if chosen is not None else [keys.TITLE, keys.AGENT, keys.STATUS]
    if chosen is None:
        columns = [key for key in columns if any(key in info.metadata for info in sessions)]
    counted = any(info.item_count is not None for info in sessions)
    header = ["session", *columns, *(["items"] if counted else []), "active"]
    if chosen is None:
        header.append("metadata")
    rows = []
    for info in sessions:
        row = [info.session_id]
        row += [shown(info.metadata[key]) if key in info.metadata else "" for key in columns]
        if counted:
            row.append(str(info.item_count))
        row.append(age(info.updated_at))
        if chosen is None:
            others = {key: value for key, value in info.metadata.items() if key not in columns}
            row.append(" ".join(f"{shown(key)}={shown(value)}" for key, value in others.items()))
        rows.append(row)
    write_table(header, rows)


def write_metadata(metadata: Mapping[str, Any]) -> None:
    """Write metadata as a table."""
    rows = [(key, shown(value)) for key, value in metadata.items()]
    write_table(("key", "value"), rows, folded=True)


def write_session(info: SessionInfo) -> None:
    """Write all about one session."""
    write(f"session  {printable(info.session_id)}")
    write(f"created  {info.created_at:%Y-%m-%d %H:%M:%S} UTC ({age(info.created_at)})")
    write(f"active   {info.updated_at:%Y-%m-%d %H:%M:%S} UTC ({age(info.updated_at)})")
    if info.item_count is not None:
        write(f"items    {info.item_count:,}")
    if info.metadata:
        write("")
        write_metadata(info.metadata)


class Counter:
    """Shows how far long work has come, on a terminal; else nothing."""

    def __init__(self, progress: Progress | None, task: Any = None) -> None:
        self._progress = progress
        self._task = task
        self.count: int = 0

    def reach(self, count: int) -> None:
        """So many are done."""
        self.count = count
        if self._progress is not None:
            self._progress.update(self._task, completed=count)


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Counter]:
    """Show progress on stderr while work goes on."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Counter(None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield Counter(bar, bar.add_task(what, total=total))

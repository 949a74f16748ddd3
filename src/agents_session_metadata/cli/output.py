"""Output of commands: data on stdout, messages and progress on stderr.

Rich is imported for tables and progress only; most commands print neither.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import click

from agents_session_metadata.text import ago, escaped

if TYPE_CHECKING:
    from agents_session_metadata.types import SessionInfo

_LONGEST_CELL = 1000
_NARROWEST, _PIPE_WIDTH = 40, 10_000
_COLORS = {
    **dict.fromkeys(("failed", "error"), "red"),
    **dict.fromkeys(("active", "completed"), "green"),
    **dict.fromkeys(("abandoned", "warning"), "yellow"),
}


def shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = escaped(re.sub(r"[ \n\t]+", " ", text).strip())
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def say(sentence: str, color: str | None = None) -> None:
    """Write a message to stderr, after the data that was printed before it."""
    sys.stdout.flush()
    click.secho(escaped(sentence), fg=color, err=True)


def nothing(sentence: str, code: int = 1) -> int:
    """Say that nothing was found, and return the exit code for it."""
    say(sentence, "yellow")
    return code


def no_session(session_id: str) -> str:
    return f"there is no session {shown(session_id)}"


def no_match(condition: Any) -> str:
    """Says that no session matches, and names a key that looks like an operator."""
    from agents_session_metadata.query.filters import OPERATORS

    parts = [condition]
    for part in parts:
        parts += part.values() if isinstance(part, dict) else part if type(part) is list else ()
        for key in part if isinstance(part, dict) else ():
            if f"${key}" in OPERATORS and part is not condition:
                return f"no session matches; for the operator, write ${key} instead of {key}"
    return "no session matches"


def write(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def write_json(document: Any, *, indent: int | None = 2) -> None:
    """Write a JSON document to stdout, in ASCII, which every encoding can express."""
    write(json.dumps(document, indent=indent))


class Records:
    """Writes records one at a time: one per line, or as the elements of a JSON list."""

    def __init__(self, file: IO[str], *, as_list: bool, opening: str = "[") -> None:
        self._file = file
        self._as_list = as_list
        self._opening = opening
        self.count: int = 0

    def add(self, record: dict[str, Any]) -> None:
        if self._as_list:
            self._file.write(",\n" if self.count else f"{self._opening}\n")
        self._file.write(json.dumps(record) + ("" if self._as_list else "\n"))
        self.count += 1

    def close(self, closing: str = "]") -> None:
        if self._as_list:
            self._file.write(f"\n{closing}\n" if self.count else f"{self._opening}{closing}\n")


class Corrupt:
    """Reports stored values that are not valid JSON, one per line. The command continues."""

    def __init__(self) -> None:
        self.exit_code: int = 0

    def __call__(self, error: Exception) -> None:
        self.exit_code = 1
        say(str(error), "red")


def colored(text: str) -> str:
    color = _COLORS.get(text.strip())
    return click.style(text, fg=color) if color and sys.stdout.isatty() else text


def record_of(info: SessionInfo) -> dict[str, Any]:
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
    """Write a table that fits the terminal. The first column is cut last.

    With `folded`, long texts continue on further lines instead of being cut.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # A pipe has no width; nothing is cut there.
    wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _PIPE_WIDTH
    console = Console(file=sys.stdout, highlight=False, width=wide)
    console.width = max(console.width, _NARROWEST)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for position, name in enumerate(header):
        first = position == 0
        width = max(console.width // 2, 1) if first else None
        table.add_column(Text(escaped(name)), no_wrap=first, max_width=width)
    for row in rows:
        cells = []
        for position, text in enumerate(row):
            folds = folded or position == 0
            cells.append(
                Text(
                    escaped(text),
                    style=_COLORS.get(text, "") if position else "",
                    overflow="fold" if folds else "ellipsis",
                    no_wrap=not folds,
                )
            )
        table.add_row(*cells)
    console.print(table)


def write_sessions(sessions: Sequence[SessionInfo], chosen: Sequence[str] | None) -> None:
    from agents_session_metadata import keys

    columns = list(chosen or ())
    if chosen is None:
        first = (keys.OWNER_ID, keys.TITLE, keys.TAGS, keys.AGENT, keys.STATUS)
        columns = [key for key in first if any(key in info.metadata for info in sessions)]
    has_counts = any(info.item_count is not None for info in sessions)
    header = ["session", *columns, *(["items"] if has_counts else []), "active"]
    if chosen is None:
        header.append("metadata")
    # What a tracker and ChatKit's store record for programs.
    recorded = {
        *(keys.RUNS, keys.REQUESTS, keys.INPUT_TOKENS, keys.OUTPUT_TOKENS, keys.TOTAL_TOKENS),
        *(keys.RUN_MS, keys.COST, keys.AGENTS, keys.TOOL_CALLS, keys.INVOCATIONS),
        *(keys.TRACE_IDS, keys.TITLE_AUTO, keys.CHATKIT, keys.TOUCHED_AT, keys.PHASE_HISTORY),
    }
    rows = []
    for info in sessions:
        row = [info.session_id]
        row += [shown(info.metadata[key]) if key in info.metadata else "" for key in columns]
        if has_counts:
            row.append(str(info.item_count))
        row.append(ago(info.updated_at))
        if chosen is None:
            row.append(
                " ".join(
                    f"{shown(key)}={shown(value)}"
                    for key, value in info.metadata.items()
                    if key not in columns and key not in recorded
                )
            )
        rows.append(row)
    write_table(header, rows)


def write_metadata(metadata: Mapping[str, Any]) -> None:
    rows = [(key, shown(value)) for key, value in metadata.items()]
    write_table(("key", "value"), rows, folded=True)


def write_session(info: SessionInfo) -> None:
    write(f"session  {escaped(info.session_id)}")
    write(f"created  {info.created_at:%Y-%m-%d %H:%M:%S} UTC ({ago(info.created_at)})")
    write(f"active   {info.updated_at:%Y-%m-%d %H:%M:%S} UTC ({ago(info.updated_at)})")
    if info.item_count is not None:
        write(f"items    {info.item_count:,}")
    if info.metadata:
        write("")
        write_metadata(info.metadata)


class Counter:
    """Shows progress on a terminal, and counts."""

    def __init__(self, bar: Any = None, task: Any = None) -> None:
        self._bar = bar
        self._task = task
        self.count: int = 0

    def reach(self, count: int, *, completed: int | None = None) -> None:
        """Set the count, and the completed part of the total if the total has another unit."""
        self.count = count
        if self._bar is not None:
            self._bar.update(self._task, completed=count if completed is None else completed)


@contextmanager
def progress(
    what: str, total: int | None = None, *, output: IO[str] | None = None
) -> Iterator[Counter]:
    """Show progress on stderr, with an estimate of the time left if there is a total.

    Data is written to `output` in the meantime. If that is a terminal, no bar is shown.
    """
    if not sys.stderr.isatty() or (output is not None and output.isatty()):
        yield Counter()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield Counter(bar, bar.add_task(what, total=total))

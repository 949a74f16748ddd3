"""The commands that delete sessions, and move them between databases."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

import click

from agents_session_metadata.text import strict_json

from . import command as registry
from .options import (
    FILTERS,
    JSON_LINES,
    YES,
    Failure,
    argument,
    checked,
    confirm,
    duration,
    flag,
    option,
    require_answer,
    standard_input,
    takes,
    usage,
)
from .output import (
    Corrupt,
    Counter,
    counted,
    no_match,
    no_session,
    nothing,
    progress,
    say,
    shown,
    write,
    write_json,
)

if TYPE_CHECKING:
    from .connection import Calls, Place

_command = partial(registry.command, panel="Delete and move")

_OF_SQLITE = (
    b"SQLite format 3\0",
    *(b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83"),  # a write-ahead log
    b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7",  # a rollback journal
)
"""The first bytes of SQLite's files, unless they are empty or not in use."""
_BESIDE_DATABASE = re.compile("-(wal|shm|journal)$", re.IGNORECASE)


@_command("delete", "delete chat-1 --yes")
@takes(argument("sessions", "SESSION...", "The session ids.", nargs=-1, required=True), YES)
async def delete(place: Place, *, sessions: tuple[str, ...], yes: bool) -> int:
    """Delete sessions with their history and metadata."""
    what = f"session {shown(sessions[0])}"
    if len(sessions) > 1:
        what = counted(len(sessions), "session")
    confirm(f"Delete {what} with history and metadata?", yes=yes)
    async with place.open() as (catalog, wait):
        deleted = [each for each in sessions if await wait(catalog.delete_session(each))]
    missing = [each for each in sessions if each not in deleted]
    if place.as_json:
        write_json({"deleted": deleted, "not_found": missing})
    for each in missing:
        nothing(no_session(each))
    if deleted and not place.as_json:
        say(f"deleted {counted(len(deleted), 'session')}")
    return 0 if deleted else 1


@_command("cleanup", 'cleanup --days 30 --where \'{"pinned": {"$ne": true}}\' --dry-run')
@takes(
    option(
        "--hours",
        type=click.FloatRange(0),
        metavar="NUMBER",
        help="Delete sessions inactive for this many hours.",
    ),
    option(
        "--days",
        type=click.FloatRange(0),
        metavar="NUMBER",
        help="Delete sessions inactive for this many days.",
    ),
    *FILTERS,
    flag("--dry-run", help="Print the number of sessions and delete nothing."),
    YES,
)
async def cleanup(
    place: Place,
    *,
    hours: float | None,
    days: float | None,
    condition: dict[str, Any] | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete inactive sessions that match, in short transactions.

    Requires a filter or an age. It is not an error if no session matches. After a crash, run it
    again.
    """
    if hours is not None and days is not None:
        usage("pass --hours or --days, not both")
    age = None
    if hours is None and days is None:
        from agents_session_metadata.query.filters import parse_filter

        if checked(parse_filter, condition).constant:
            usage(
                "cleanup needs --hours, --days, --meta, or --where with a condition; "
                "it does not delete everything"
            )
    elif hours is not None:
        age = duration("--hours", hours, "hours")
    else:
        age = duration("--days", days or 0, "days")
    require_answer(yes=yes or dry_run)
    async with place.open() as (catalog, wait):
        number = None
        if dry_run or not yes or sys.stderr.isatty():
            number = await wait(catalog.delete_sessions(condition, inactive_for=age, dry_run=True))
        if not dry_run and number != 0:
            question = f"Delete {counted(number or 0, 'session')} with history and metadata?"
            confirm(question, yes=yes)
            with progress("Deleting", number) as counter:

                def reached(done: int) -> None:
                    wait.progressed()
                    counter.reach(done)

                number = await wait(
                    catalog.delete_sessions(condition, inactive_for=age, progress=reached)
                )
    if place.as_json:
        write_json({"deleted": number, "dry_run": dry_run})
    else:
        write(str(number))


@_command("export", "export --meta owner_id=u1 --output sessions.jsonl")
@takes(
    *FILTERS,
    option("--output", "-o", metavar="FILE", help="The file to write. Default, and -: stdout."),
    JSON_LINES,
)
async def export(
    place: Place, *, condition: dict[str, Any] | None, output: str | None, as_lines: bool
) -> int:
    """Export sessions with history and metadata, one JSON record per line.

    With --json, the output is one list of records. An existing file is replaced when the export is
    complete, and keeps its permissions. It is not replaced if a corrupt value leaves out a session.
    """
    corrupt = Corrupt()
    async with place.open() as (catalog, wait):
        with _writing(output) as target:
            shows = sys.stderr.isatty() and not target.file.isatty()
            total = await wait(catalog.count_sessions(condition)) if shows else None
            records = place.records(target.file, as_lines=as_lines)
            exported = catalog.export_sessions(condition, on_corrupt=corrupt)
            with progress("Exporting", total, output=target.file) as counter:
                async for batch in wait.batches(exported):
                    for record in batch:
                        records.add(record)
                    counter.reach(records.count)
            if corrupt.exit_code and target.replaces:
                raise Failure(
                    f"{output} was not replaced: the export leaves out sessions with corrupt "
                    "values; repair the values, or export to a new file"
                )
            target.is_complete = records.count > 0
            if target.is_complete or output is None:
                records.close()
    if not records.count:
        return corrupt.exit_code or nothing(no_match(condition))
    say(f"exported {counted(records.count, 'session')}")
    return corrupt.exit_code


@_command("import", "import sessions.jsonl --on-conflict skip", shared=registry.WRITES)
@takes(
    argument("file", "[FILE]", "The export to read. Default, and -: stdin.", required=False),
    option(
        "--on-conflict",
        type=click.Choice(["error", "skip", "replace"]),
        default="error",
        help="What to do if a session exists.",
    ),
    flag("--skip-invalid", help="Report invalid records and continue."),
    YES,
)
async def import_(
    place: Place, *, file: str | None, on_conflict: Any, skip_invalid: bool, yes: bool
) -> int:
    """Import exported sessions into this database.

    Without --skip-invalid, an invalid record or a conflict stops the import; the records before it
    are imported.
    """
    if on_conflict == "replace":
        confirm("Replace existing sessions with their history?", yes=yes)
    invalid = 0

    def on_invalid(error: Exception) -> None:
        nonlocal invalid
        invalid += 1
        say(f"skipped: {error}", "red")

    async with place.open() as (catalog, wait):
        with _reading(file) as source, progress("Importing", _size(source)) as counter:
            reading = _Records(source, counter, wait, on_invalid if skip_invalid else None)
            try:
                written = await wait(
                    catalog.import_sessions(
                        reading,
                        on_conflict=on_conflict,
                        on_invalid=on_invalid if skip_invalid else None,
                        progress=lambda _: wait.progressed(),
                    )
                )
            except Failure as failure:
                if isinstance(failure.__cause__, ValueError):
                    raise Failure(
                        f"{failure.message}; the records before it are imported"
                    ) from None
                raise
    if place.as_json:
        answer = {"read": counter.count, "written": written}
        write_json({**answer, "invalid": invalid} if skip_invalid else answer)
    else:
        more = f", skipped {invalid:,} invalid" if invalid else ""
        say(f"read {counted(counter.count, 'record')}, wrote {written:,}{more}")
    return 1 if invalid else 0


class _Target:
    """The file of an export. A new file is moved to its path only if `is_complete` is set."""

    def __init__(self, file: IO[str], *, replaces: bool = False) -> None:
        self.file = file
        self.replaces = replaces
        self.is_complete = False


@contextmanager
def _writing(name: str | None) -> Iterator[_Target]:
    """Open a file to write to. Old content is replaced when the new content is complete."""
    if name is None or name == "-":
        yield _Target(sys.stdout)
        return
    # A symbolic link stays a link: the file that it leads to is replaced.
    part = path = Path(name).resolve()
    try:
        mode = path.stat().st_mode if path.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            descriptor = os.open(path, os.O_WRONLY)
        else:
            _refuse_database(path)
            # A name of its own, so that two exports to one path do not share it.
            part = path.with_name(f".{path.name[:200]}.{os.urandom(8).hex()}.part")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            descriptor = os.open(part, flags, 0o666 if mode is None else 0o600)
            if mode is not None:
                part.chmod(stat.S_IMODE(mode))
    except (OSError, ValueError) as error:
        raise Failure(f"{path}: {getattr(error, 'strerror', error)}") from None
    file = open(descriptor, "w", encoding="utf-8")  # noqa: PTH123, SIM115  # a descriptor
    target = _Target(file, replaces=mode is not None and part != path)
    try:
        try:
            yield target
            if part != path:
                # After a power failure, there is the old export or the whole new one.
                file.flush()
                os.fsync(file.fileno())
        finally:
            target.file.close()
        if target.is_complete and part != path:
            part.replace(path)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None
    finally:
        if part != path:
            part.unlink(missing_ok=True)


def _refuse_database(path: Path) -> None:
    """Keep an export from replacing a SQLite database, or a file that SQLite keeps beside it."""
    for each in {path, Path(_BESIDE_DATABASE.sub("", str(path)))}:
        if each.is_file():
            with each.open("rb") as file:
                if file.read(16).startswith(_OF_SQLITE):
                    raise Failure(
                        f"{path} is a SQLite database or belongs to one; export to another file"
                    )


@contextmanager
def _reading(name: str | None) -> Iterator[BinaryIO]:
    if name is None or name == "-":
        yield standard_input()
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115  # closed below
    except (OSError, ValueError) as error:
        raise Failure(f"{name}: {getattr(error, 'strerror', error)}") from None
    with file:
        yield file


def _size(source: BinaryIO) -> int | None:
    try:
        found = os.fstat(source.fileno())
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


class _Records:
    """Reads the records of an export: one per line, or the elements of one list."""

    def __init__(
        self,
        source: BinaryIO,
        counter: Counter,
        wait: Calls,
        on_invalid: Callable[[Exception], None] | None,
    ) -> None:
        self._source = source
        self._counter = counter
        self._wait = wait
        self._on_invalid = on_invalid
        self._bytes = 0

    async def __aiter__(self) -> AsyncIterator[Any]:
        lines = self._lines()
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            is_list = self._counter.count == 0 and line.lstrip().startswith(b"[")
            if is_list:
                line = b"\n".join([line, *lines])  # noqa: PLW2901
            try:
                found = strict_json(line.decode())
            except ValueError as error:
                place = "the list" if is_list else f"line {number}"
                sentence = f"{place} is not valid JSON: {error}"
                if self._on_invalid is None:
                    read = counted(self._counter.count, "record")
                    raise Failure(f"{sentence}; imported before it: {read}") from None
                self._on_invalid(ValueError(sentence))
                continue
            for record in found if is_list else [found]:
                self._counter.reach(self._counter.count + 1, completed=self._bytes)
                yield record

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        while chunk := self._wait.read(self._source):
            if not self._bytes:
                chunk = chunk.removeprefix(b"\xef\xbb\xbf")
            self._bytes += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
        yield rest

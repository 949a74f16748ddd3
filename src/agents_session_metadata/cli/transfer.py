"""The commands that delete sessions, and move them between databases."""

from __future__ import annotations

import codecs
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import click

from agents_session_metadata.text import strict_json

from . import options, output
from .app import WRITES, Target, command
from .options import JSON_LINES, YES, argument, confirm, duration, flag, option, usage
from .output import Answer, blocking, counted, no_match, nothing, progress, say, shown, stream_error

_FORMS = click.Choice(["records", "evals"])
_CONFLICTS = click.Choice(["error", "skip", "replace"])
_BATCH = 200
_CHUNK = 1 << 16


@command("delete chat-1 --yes")
async def delete(
    target: Target,
    sessions: Sequence[str] = argument("The session ids.", "SESSION...", nargs=-1, required=True),
    yes: bool = YES,
) -> Answer:
    """Delete sessions with their history and metadata."""
    what = counted(len(sessions), "session") if sessions[1:] else f"session {shown(sessions[0])}"
    await confirm(f"Delete {what} with history and metadata?", yes=yes)
    deleted = [each for each in sessions if await target.catalog.delete_session(each)]
    missing = [each for each in sessions if each not in deleted]
    for each in missing:
        say(output.no_session(each))
    message = f"deleted {counted(len(deleted), 'session')}" if deleted else None
    document = {"deleted": deleted, "not_found": missing}
    return Answer(document=document, message=message, code=0 if deleted else 1)


@command('cleanup --days 30 --where \'{"pinned": {"$ne": true}}\' --dry-run')
async def cleanup(
    target: Target,
    hours: float | None = option("Delete sessions inactive for this many hours.", type=float),
    days: float | None = option(
        "Delete sessions inactive for this many days.",
        type=float,
        envvar="AGENT_SESSIONS_RETENTION_DAYS",
        show_envvar=True,
    ),
    condition: Any = options.filters(),
    dry_run: bool = flag("Print the number of sessions and delete nothing."),
    yes: bool = YES,
) -> Answer:
    """Delete inactive sessions that match, in short transactions.

    Requires a filter or an age. It is not an error if no session matches. After a crash, run it
    again.
    """
    from agents_session_metadata.query.filters import parse_filter

    source = click.get_current_context().get_parameter_source("days")
    if hours is not None and source is click.core.ParameterSource.COMMANDLINE:
        usage("pass --hours or --days, not both")
    if hours is None and days is None and parse_filter(condition).constant:
        usage(
            "cleanup needs --hours, --days, --meta, or --where with a condition; "
            "it does not delete everything"
        )
    unit, number = ("days", days) if hours is None else ("hours", hours)
    age = None if number is None else duration(f"--{unit}", number, unit)
    found = None
    if dry_run or not yes or sys.stderr.isatty():
        found = await target.catalog.delete_sessions(condition, inactive_for=age, dry_run=True)
    if not dry_run and found != 0:
        question = f"Delete {counted(found or 0, 'session')} with history and metadata?"
        await confirm(question, yes=yes)
        with progress("Deleting", found) as reach:
            found = await target.catalog.delete_sessions(
                condition, inactive_for=age, progress=reach
            )
    message = None if found or condition is None else no_match(condition)
    document = {"deleted": found, "dry_run": dry_run}
    return Answer(document=document, text=str(found), message=message)


@command("export --meta owner_id=u1 --output sessions.jsonl")
async def export(
    target: Target,
    condition: Any = options.filters(),
    file: str | None = option("The file to write. Default, and -: stdout.", "--output", "-o"),
    as_lines: bool = JSON_LINES,  # noqa: ARG001  # the usual form
    form: Any = option(
        "records, or evals: a line per turn.", "--as", type=_FORMS, default="records"
    ),
) -> Answer:
    """Export sessions with history and metadata, one JSON record per line.

    With --as evals, a line has the input and the ideal answer of a turn, as OpenAI's evals read it.

    With --json, the output is one list of records. An existing file is replaced when the export is
    complete, and keeps its permissions. Sessions with a corrupt value are left out: exit code 1.
    """
    corrupt: list[Exception] = []
    exported = target.catalog.export_sessions(condition, on_corrupt=corrupt.append)
    with writing(file) as opened:
        total = await target.catalog.count_sessions(condition) if sys.stderr.isatty() else None
        name = output.STDOUT if file is None else file
        records = output.Records(opened, target.as_json, name=name)
        batch, sessions, left_out = list[Any](), 0, 0
        with progress("Exporting", total, output=opened) as reach:
            async for record in exported:
                sessions += 1
                lines = [record] if form == "records" else _eval_lines(record)
                left_out += sum(line is None for line in lines)
                batch += filter(None, lines)
                if len(batch) >= _BATCH:
                    await records.add(batch)
                    batch.clear()
                    reach(sessions)
            await records.add(batch)
        if opened is not sys.stdout and not sessions:
            raise click.ClickException(no_match(condition))
        await records.close()
    if not sessions and not corrupt:
        return nothing(no_match(condition))
    turns = f"{counted(records.count, 'turn')} of " if form == "evals" else ""
    say(f"exported {turns}{counted(sessions, 'session')}")
    if left_out:
        say(f"left out {counted(left_out, 'turn')} without a final text")
    return Answer(corrupt=corrupt)


def _eval_lines(record: Any) -> list[Any]:
    from agents_session_metadata.replay import eval_lines

    try:
        return list(eval_lines(record))
    except ValueError as error:
        say(f"left out session {shown(record['session_id'])}: {error}")
        return []


@contextmanager
def writing(name: str | None) -> Iterator[IO[str]]:
    """Opens a file to write to. Old content is replaced if the block ends without an error."""
    if name is None or name == "-":
        yield sys.stdout
        return
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


@command("import sessions.jsonl --on-conflict skip", WRITES)
async def import_(
    target: Target,
    file: str | None = argument("The export. Default, and -: stdin.", "[FILE]", required=False),
    on_conflict: Any = option("What to do if a session exists.", type=_CONFLICTS, default="error"),
    skip_invalid: bool = flag("Report invalid records and continue."),
    yes: bool = YES,
) -> Answer:
    """Import exported sessions into this database.

    Without --skip-invalid, an invalid record or a conflict stops the import; the records before it
    are imported.
    """
    if on_conflict == "replace":
        await confirm("Replace existing sessions with their history?", yes=yes)
    invalid = 0

    def on_invalid(error: Exception) -> None:
        nonlocal invalid
        invalid += 1
        say(f"skipped: {error}")

    skip = on_invalid if skip_invalid else None
    with _reading(file) as (source, total), progress("Importing", total) as reach:
        reading = _Records(source, reach, skip)
        try:
            written = await target.catalog.import_sessions(reading, on_conflict, on_invalid=skip)
        except ValueError as error:
            raise click.ClickException(f"{error}; the records before it are imported") from None
    more = f", skipped {invalid:,} invalid" if invalid else ""
    document = {"read": reading.count, "written": written}
    return Answer(
        document={**document, "invalid": invalid} if skip_invalid else document,
        message=f"read {counted(reading.count, 'record')}, wrote {written:,}{more}",
        code=1 if invalid else 0,
    )


@contextmanager
def _reading(name: str | None) -> Iterator[tuple[BinaryIO, int | None]]:
    if name is None or name == "-":
        yield options.standard_input(), None
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise stream_error(error, name) from None
    with file:
        yield file, os.fstat(file.fileno()).st_size


@dataclass
class _Records:
    """Reads the records of an export: one per line, or the elements of one list."""

    source: BinaryIO
    reach: Callable[[int], None]
    on_invalid: Callable[[Exception], None] | None
    count: int = 0

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for where, text in self._texts():
            try:
                found = strict_json(text.decode())
            except ValueError as error:
                sentence = f"{where} is not valid JSON: {error}"
                if self.on_invalid is None:
                    read = counted(self.count, "record")
                    raise click.ClickException(f"{sentence}; imported before it: {read}") from None
                self.on_invalid(ValueError(sentence))
                continue
            for record in found if where == "the list" else [found]:
                self.count += 1
                yield record

    async def _texts(self) -> AsyncIterator[tuple[str, bytes]]:
        number = read = 0
        while lines := await blocking(self.source.readlines, _CHUNK):
            if not read:
                lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
            for at, line in enumerate(lines):
                number += 1
                read += len(line)
                self.reach(read)
                if not self.count and line.lstrip().startswith(b"["):
                    rest = await blocking(self.source.read)
                    yield "the list", b"".join([*lines[at:], rest])
                    return
                if line.strip():
                    yield f"line {number}", line

"""The commands that delete sessions, and move them between databases."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from agents_session_metadata.text import ascii_json, strict_json

from . import options, output
from .app import cli
from .connection import ChosenDatabase, database_options
from .options import confirm, flag, usage
from .output import NothingFoundError, counted, show, shown

if TYPE_CHECKING:
    from agents_session_metadata.catalog import SessionCatalog

_CHUNK = 1 << 16


@cli.command(epilog="Example: agent-sessions delete chat-1 --yes")
@click.argument("sessions", metavar="SESSION...", nargs=-1, required=True, help="The session ids.")
@options.yes
@database_options(by=True)
async def delete(database: ChosenDatabase, sessions: Sequence[str], yes: bool) -> None:
    """Delete sessions with their history and metadata."""
    what = counted(len(sessions), "session") if sessions[1:] else f"session {shown(sessions[0])}"
    await confirm(f"Delete {what} with history and metadata?", yes=yes)
    deleted = [each for each in sessions if await database.catalog.delete_session(each)]
    missing = [each for each in sessions if each not in deleted]
    for each in missing:
        output.say(output.no_session(each))
    message = f"deleted {counted(len(deleted), 'session')}" if deleted else None
    document = {"deleted": deleted, "not_found": missing}
    await show(document, message=message, code=0 if deleted else 1)


@cli.command(
    epilog="Example: agent-sessions cleanup --days 30 "
    '--where \'{"pinned": {"$ne": true}}\' --dry-run'
)
@click.option("--hours", type=float, help="Delete sessions inactive for this many hours.")
@click.option(
    "--days",
    type=float,
    envvar="AGENT_SESSIONS_RETENTION_DAYS",
    show_envvar=True,
    help="Delete sessions inactive for this many days.",
)
@options.filters
@flag("--dry-run", help="Print the number of sessions and the oldest ids, and delete nothing.")
@options.yes
@database_options()
async def cleanup(
    database: ChosenDatabase,
    hours: float | None,
    days: float | None,
    where: Any,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete inactive sessions that match, in short transactions.

    Requires a filter or an age. It is not an error if no session matches. After a crash, run it
    again.
    """
    from agents_session_metadata.query.filters import parse_filter

    source = click.get_current_context().get_parameter_source("days")
    if hours is not None and source is click.core.ParameterSource.COMMANDLINE:
        usage("pass --hours or --days, not both")
    if hours is None and days is None and parse_filter(where).constant:
        usage(
            "cleanup requires --hours, --days, --meta, or --where with a condition; "
            "it does not delete everything"
        )
    unit, number = ("days", days) if hours is None else ("hours", hours)
    age = None if number is None else options.duration(f"--{unit}", number, unit)
    found, first = None, list[str]()
    catalog = database.catalog
    if dry_run or not yes or sys.stderr.isatty():
        found = await catalog.delete_sessions(where, inactive_for=age, dry_run=True)
    if dry_run and found:
        first = await _oldest(catalog, where, age)
    if not dry_run and found != 0:
        question = f"Delete {counted(found or 0, 'session')} with history and metadata?"
        await confirm(question, yes=yes)
        with output.progress("Deleting", found) as reach:
            found = await catalog.delete_sessions(where, inactive_for=age, progress=reach)
    message = f"{'would delete' if dry_run else 'deleted'} {counted(found or 0, 'session')}"
    document: dict[str, Any] = {"deleted": found, "dry_run": dry_run}
    if dry_run:
        document["oldest"] = first
        message += f"; the oldest: {', '.join(map(shown, first))}" if first else ""
    if not found and where is not None:
        message = output.no_match(where)
    await show(document, str(found), message=message)


async def _oldest(catalog: SessionCatalog, where: Any, age: timedelta | None) -> list[str]:
    """Returns ids; a session whose run works or waits can be among them, which stays."""
    if age is not None:
        before = {"$updated_at": {"$lte": datetime.now(timezone.utc) - age}}
        where = {"$and": [where or {}, before]}
    page = await catalog.list_sessions(where, limit=5, order_by="updated_at", keys=[])
    return [info.session_id for info in page]


@cli.command(epilog="Example: agent-sessions erase --owner u1 --receipt receipt.json")
@click.option("--owner", required=True, help="The owner_id of the person.")
@click.option(
    "--decided-by", metavar="NAME", help="Clear this name in decisions about other people's calls."
)
@flag("--keep-usage", help="Keep the numbers of the usage ledger, without owner and session.")
@click.option("--receipt", help="The file for the receipt, as JSON.")
@options.yes
@database_options()
async def erase(
    database: ChosenDatabase,
    owner: str,
    decided_by: str | None,
    keep_usage: bool,
    receipt: str | None,
    yes: bool,
) -> None:
    """Erase a person: all sessions of an owner, and all rows about them in every table.

    If it stops, run it again. If something was written in the meantime, the exit code is 1.
    """
    scope = {"owner_id": options.parse_value(owner, "--owner")}
    everyone = database.catalog
    catalog = everyone.scoped(scope)
    found = await catalog.count_sessions()
    what = f"{counted(found, 'session')} and all other data of {shown(owner)}"
    await confirm(f"Erase {what}?", yes=yes)
    with (
        output.writing(receipt) if receipt else nullcontext() as file,
        output.progress("Erasing", found) as reach,
    ):
        erasure = await catalog.erase(
            usage="anonymize" if keep_usage else "delete", by=decided_by, progress=reach
        )
        if file is not None:
            file.write(ascii_json(erasure.to_dict()) + "\n")
    rows = sum(erasure.rows.values())
    message = f"erased {counted(erasure.sessions, 'session')}, {counted(rows, 'row')}"
    if not erasure.complete:
        message += (
            "; new rows were written in the meantime: stop this owner's requests, then run it again"
        )
    await show(erasure.to_dict(), message=message, code=0 if erasure.complete else 1)


@cli.command(epilog="Example: agent-sessions export --meta owner_id=u1 --output sessions.jsonl")
@click.argument("sessions", metavar="[SESSION]...", nargs=-1, help="The session ids. Default: all.")
@options.filters
@click.option("--output", "-o", "file", help="The file to write. Default, and -: stdout.")
@options.jsonl
@click.option(
    "--as",
    "form",
    type=click.Choice(["records", "evals"]),
    default="records",
    help="records, or evals: a line per turn.",
)
@flag("--complete", help="With --owner: all data of a person, also usage and decisions.")
@database_options(by=True)
async def export(
    database: ChosenDatabase,
    sessions: Sequence[str],
    where: Any,
    file: str | None,
    as_lines: bool,  # noqa: ARG001  # the usual form
    form: str,
    complete: bool,
) -> None:
    """Export sessions with history and metadata, one JSON record per line.

    With session ids and a filter, exports the named sessions that match. If a session does not
    exist or does not match, the exit code is 1.

    With --complete, a line has one key: "session" with a record, "usage" with a row of the usage
    ledger, or "decision" with a decision about a call.

    With --as evals, a line has the input and the ideal answer of a turn, as OpenAI's evals read it.

    With --json, the output is one list of records. An existing file is replaced when the export is
    complete, and keeps its permissions. Sessions with a corrupt value are left out: exit code 1.
    """
    corrupt: list[Exception] = []
    found = left_out = 0
    missing = {*sessions}
    catalog = database.catalog
    if complete:
        match where:
            case {"owner_id": {"$eq": owner}} if not sessions and form == "records":
                catalog = catalog.scoped({"owner_id": owner})
            case _:
                usage("--complete requires --owner, without session ids and other filters")
    if sessions:
        where = {"$and": [{"$session_id": {"$in": [*sessions]}}, where or {}]}
    exported = catalog.export_sessions(where, on_corrupt=corrupt.append)
    with output.writing(file) as opened:
        total = await catalog.count_sessions(where) if sys.stderr.isatty() else None
        records = output.Records(
            opened, output.wants_json(), name=output.STDOUT if file is None else file
        )
        with output.progress("Exporting", total, output=opened) as reach:
            async for record in exported:
                found += 1
                missing.discard(record["session_id"])
                lines = [record] if form == "records" else _eval_lines(record)
                lines = [{"session": record}] if complete else lines
                left_out += sum(line is None for line in lines)
                await records.add(filter(None, lines))
                reach(found)
            if complete:
                await records.add(await _personal_lines(catalog))
        if opened is not sys.stdout and not records.count:
            raise click.ClickException(output.no_match(where))
        await records.close()
    if not records.count and not corrupt:
        raise NothingFoundError(output.no_match(where))
    turns = f"{counted(records.count, 'turn')} of " if form == "evals" else ""
    output.say(f"exported {turns}{counted(found, 'session')}")
    if left_out:
        output.say(f"left out {counted(left_out, 'turn')} without a final text")
    left = missing - {getattr(error, "session_id", None) for error in corrupt}
    for each in sorted(left):
        output.say(output.no_session(each))
    output.report(corrupt)
    if left:
        raise click.exceptions.Exit(1)


async def _personal_lines(catalog: SessionCatalog) -> list[Any]:
    from agents_session_metadata import SessionRuns

    rows = await catalog.usage(by=("day", "agent", "model", "session_id", "item_id"))
    decisions = await SessionRuns(catalog).decisions()
    lines: list[Any] = [{"usage": vars(row)} for row in rows]
    return [*lines, *({"decision": vars(each)} for each in decisions)]


def _eval_lines(record: Any) -> list[Any]:
    from agents_session_metadata.replay import eval_lines

    try:
        return list(eval_lines(record))
    except ValueError as error:
        output.say(f"left out session {shown(record['session_id'])}: {error}")
        return []


@cli.command("import", epilog="Example: agent-sessions import sessions.jsonl --on-conflict skip")
@click.argument("file", required=False, help="The export. Default, and -: stdin.")
@click.option(
    "--on-conflict",
    type=click.Choice(["error", "skip", "replace"]),
    default="error",
    help="What to do if a session exists.",
)
@flag("--skip-invalid", help="Report invalid records and continue.")
@options.yes
@database_options(limits=True)
async def import_sessions(
    database: ChosenDatabase, file: str | None, on_conflict: Any, skip_invalid: bool, yes: bool
) -> None:
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
        output.say(f"skipped: {error}")

    skip = on_invalid if skip_invalid else None
    with _reading(file) as (source, total), output.progress("Importing", total) as reach:
        reading = _Reading(source, reach, skip)
        try:
            written = await database.catalog.import_sessions(reading, on_conflict, on_invalid=skip)
        except ValueError as error:
            advice = "the records before it are imported"
            raise click.ClickException(f"{error}; {advice}") from None
    document = {"read": reading.count, "written": written}
    message = f"read {counted(reading.count, 'record')}, wrote {written:,}"
    if skip_invalid:
        document["invalid"] = invalid
    if invalid:
        message += f", skipped {invalid:,} invalid"
    await show(document, message=message, code=1 if invalid else 0)


@contextmanager
def _reading(name: str | None) -> Iterator[tuple[BinaryIO, int | None]]:
    if name is None or name == "-":
        yield options.standard_input(), None
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise output.stream_error(error, name) from None
    with file:
        yield file, os.fstat(file.fileno()).st_size


@dataclass
class _Reading:
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
        while lines := await output.blocking(self.source.readlines, _CHUNK):
            if not read:
                lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
            for at, line in enumerate(lines):
                number += 1
                read += len(line)
                self.reach(read)
                if not self.count and line.lstrip().startswith(b"["):
                    rest = await output.blocking(self.source.read)
                    yield "the list", b"".join([*lines[at:], rest])
                    return
                if line.strip():
                    yield f"line {number}", line

"""The commands about the database as a whole: ageing, moving, SQL, health, the MCP server."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import IO, Annotated, Any, Literal, cast

import typer

from agents_session_metadata.ddl import DialectName, create_statements, drop_statements

from .command import command
from .options import (
    INPUT_ENCODING,
    UNDECODED,
    Failure,
    FilterMetaOption,
    JsonLinesOption,
    JsonOption,
    Place,
    WhereOption,
    YesOption,
    confirm,
    parse_where,
    refuse_both,
    require_answer,
    standard_input,
    usage,
)
from .output import (
    Counter,
    output_to,
    printable,
    progress,
    say,
    write,
    write_json,
)


@command("cleanup", 'cleanup --days 30 --where \'{"pinned": {"$ne": true}}\' --dry-run')
async def cleanup(
    place: Place,
    *,
    hours: Annotated[float | None, typer.Option(help="Inactive for so many hours.")] = None,
    days: Annotated[float | None, typer.Option(help="Inactive for so many days.")] = None,
    where: WhereOption = None,
    meta: FilterMetaOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, delete nothing.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> int:
    """Delete sessions that match and have been inactive, in short transactions.

    It needs a filter or an age. Deleting none is no failure; after a crash, run it again.
    """
    condition = parse_where(where, meta)
    if hours is not None and days is not None:
        usage("pass --hours or --days, not both")
    if not condition and hours is None and days is None:
        usage("cleanup needs --hours, --days, --where or --meta; it does not delete everything")
    age = None
    if hours is not None or days is not None:
        try:
            age = timedelta(hours=hours or 0, days=days or 0)
        except (OverflowError, ValueError):
            usage("the age is out of bounds")
    require_answer(yes=yes or dry_run)
    async with place.catalog() as catalog:
        number = None
        if dry_run or not yes or sys.stderr.isatty():
            number = await catalog.delete_sessions(condition, inactive_for=age, dry_run=True)
        if not dry_run and number != 0:
            confirm(f"Delete {number} sessions, history and all?", yes=yes)
            with progress("deleting", number) as counter:
                number = await catalog.delete_sessions(
                    condition, inactive_for=age, progress=counter.reach
                )
    if as_json:
        write_json({"deleted": number, "dry_run": dry_run})
    else:
        write(str(number))
        say(f"sessions that would be deleted: {number}" if dry_run else f"deleted {number}")
    return 0


@command("export", "export --meta owner_id=u1 --output sessions.jsonl")
async def export(
    place: Place,
    *,
    where: WhereOption = None,
    meta: FilterMetaOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file; standard output by default.")
    ] = None,
    as_json: JsonOption = False,
    as_lines: JsonLinesOption = False,
) -> int:
    """Write sessions with history and metadata, one JSON record a line, for `import`.

    With --json the records are the elements of one list.
    """
    refuse_both(as_json=as_json, as_lines=as_lines)
    condition = parse_where(where, meta)
    async with place.catalog() as catalog:
        shows = sys.stderr.isatty() and (output is not None or not sys.stdout.isatty())
        total = await catalog.count_sessions(condition) if shows else None
        with _writing(output) as file, progress("exporting", total) as counter:
            before, between, after = ("[\n", ",\n", "\n]\n") if as_json else ("", "\n", "\n")
            async for record in catalog.export_sessions(condition):
                with output_to(file):
                    file.write((between if counter.count else before) + json.dumps(record))
                counter.reach(counter.count + 1)
            with output_to(file):
                file.write(after if counter.count else "[]\n" if as_json else "")
            if not counter.count:
                raise Failure("no session matches")
    say(f"exported {counter.count}")
    return 0


@command("import", "import sessions.jsonl --on-conflict skip")
async def import_(
    place: Place,
    *,
    file: Annotated[
        Path | None, typer.Argument(help="What `export` wrote; standard input by default.")
    ] = None,
    on_conflict: Annotated[
        Literal["error", "skip", "replace"],
        typer.Option(help="What to do about a session that exists."),
    ] = "error",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> int:
    """Take exported sessions into this database, one transaction a record.

    A broken record, or a conflict, stops the import; the records before it are in.
    """
    if on_conflict == "replace":
        confirm("Replace sessions that exist, history and all?", yes=yes)
    async with place.catalog() as catalog:
        with _reading(file) as source, progress("importing") as counter:
            try:
                written = await catalog.import_sessions(
                    _records(source, counter), on_conflict=on_conflict
                )
            except ValueError as error:
                raise Failure(f"{error}; the records before it are in") from None
    if as_json:
        write_json({"read": counter.count, "written": written})
    else:
        say(f"read {counter.count}, wrote {written}")
    return 0


@command("ddl", "ddl --dialect postgresql > tables.sql", offline=True)
async def ddl(
    place: Place,
    *,
    dialect: Annotated[DialectName, typer.Option(help="The database.")],
    drop: Annotated[bool, typer.Option("--drop", help="The way back.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="With --drop: the SDK's own tables too.")
    ] = False,
) -> int:
    """Print the SQL that makes the tables, or drops them. No database is needed."""
    if everything and not drop:
        usage("--all goes with --drop")
    place.refuse_scope("ddl")
    statements = (
        drop_statements(dialect, place.names, everything=everything)
        if drop
        else create_statements(dialect, place.names)
    )
    for statement in statements:
        write(f"{statement};")
    return 0


@command("doctor", "doctor --json")
async def doctor(
    place: Place,
    *,
    rewrite_search_keys: Annotated[
        bool,
        typer.Option(
            "--rewrite-search-keys",
            help="Write search keys and list elements that do not agree with their values again.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Check a database, and print what is wrong with it and the statements that repair it.

    Nothing is changed, unless --rewrite-search-keys is given. The statements never change or
    delete what an application wrote; run them in their order. The exit code is 1 if something is
    wrong; a warning alone gives 0.
    """
    from agents_session_metadata import doctor

    place.refuse_scope("doctor")
    if place.create_tables:
        usage("doctor changes nothing; leave --create-tables out")
    engine = place.engine()
    try:
        if rewrite_search_keys:
            rewritten, skipped = await doctor.rewrite_search_keys(engine, place.names)
            if as_json:
                write_json({"rewritten": rewritten, "skipped": skipped})
            else:
                write(str(rewritten))
                hint = "; run `agent-sessions doctor` to see why" if skipped else ""
                say(f"values rewritten: {rewritten}, skipped: {skipped}{hint}")
            return 0
        findings = await doctor.diagnose(engine, place.names)
    finally:
        await engine.dispose()
    wrong = any(each.level == "error" for each in findings)
    if as_json:
        write_json({"healthy": not wrong, "findings": [each.as_dict() for each in findings]})
        return int(wrong)
    for each in findings:
        # Whole: a statement in it that is cut would be another statement.
        write(f"{each.level:7}  {each.check}: {printable(each.problem)}")
        for statement in each.repair:
            write(printable(f"{statement};", "\n\t"))
    say("something is wrong" if wrong else "healthy")
    return int(wrong)


@command("mcp", "mcp --scope owner_id=u1 --tool-prefix fugue_")
async def mcp(
    place: Place,
    *,
    allow_write: Annotated[
        bool, typer.Option("--allow-write", help="Offer tools that change metadata.")
    ] = False,
    tool_prefix: Annotated[str, typer.Option(help="Goes before the tools' names.")] = "",
    session: Annotated[
        str | None,
        typer.Option(metavar="ID", help="See only this session; tools use it by default."),
    ] = None,
) -> int:
    """Serve metadata to agents: an MCP server on standard input and output.

    It is read-only unless --allow-write is given, and sees nothing outside --scope.
    """
    try:
        from agents_session_metadata.mcp_server import make_server
    except ImportError as error:
        if error.name != "mcp":
            raise
        raise Failure(str(error)) from None
    standard_input()
    # Connections may drop between two calls.
    async with place.catalog(pool_pre_ping=True) as catalog:
        # A server that cannot answer had better not start.
        await catalog.list_sessions(limit=1, keys=[])
        server = make_server(
            catalog, allow_write=allow_write, tool_prefix=tool_prefix, session=session
        )
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            # A thread reads standard input; nothing else ends it.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        with output_to(sys.stdout):
            try:
                await server.run_stdio_async()
            except Exception as error:
                # What has failed, out of its groups.
                while nested := getattr(error, "exceptions", ()):
                    error = nested[0]
                raise error from None
    return 0


@contextmanager
def _writing(path: Path | None) -> Iterator[IO[str]]:
    """A file to write to; what it held before is lost only when all has been written."""
    if path is None:
        yield sys.stdout
        return
    is_special = path.exists() and not path.is_file()
    part = path if is_special else path.with_name(f"{path.name}.part")
    try:
        file = _opened(part, "w", "utf-8")
        try:
            yield file
        finally:
            with output_to(file):
                file.close()
        part.replace(path)
    except BaseException:
        if not is_special:
            part.unlink(missing_ok=True)
        raise


def _reading(path: Path | None) -> Any:
    if path is not None and str(path) != "-":
        return _opened(path, "r", INPUT_ENCODING)
    return nullcontext(standard_input())


def _opened(path: Path, mode: str, encoding: str) -> IO[str]:
    try:
        return cast("IO[str]", path.open(mode, encoding=encoding, errors=UNDECODED))
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None


def _records(source: IO[str], counter: Counter) -> Iterator[Any]:
    """The records of a file: one a line, or the elements of one list.

    Raises:
        Failure: If something is no JSON.
    """
    for number, line in enumerate(source, 1):
        if not line.strip():
            continue
        is_list = counter.count == 0 and line.lstrip().startswith("[")
        try:
            found = json.loads(line + source.read() if is_list else line)
        except (ValueError, RecursionError) as error:
            place = "the list" if is_list else f"line {number}"
            raise Failure(
                f"{place} is not JSON: {error}; the {counter.count} records before it are in"
            ) from None
        for record in found if is_list else [found]:
            counter.reach(counter.count + 1)
            yield record

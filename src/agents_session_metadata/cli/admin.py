"""The commands about the database as a whole: SQL, checks, the MCP server."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from agents_session_metadata.text import escaped, quoted

from . import command as registry
from ._interrupt import exit_at_once
from .command import DATABASE, TABLES
from .options import Failure, argument, checked, flag, option, standard_input, takes, usage
from .output import colored, counted, nothing, progress, say, shown, write, write_json, write_table

if TYPE_CHECKING:
    from .connection import Place

_command = partial(registry.command, panel="Database")


def _dialects() -> list[str]:
    from agents_session_metadata.dialects import DIALECTS  # with SQLAlchemy

    return list(DIALECTS)


def _known_dialect(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    known = _dialects()
    if name not in known:
        raise click.BadParameter(f"{quoted(name)} is not one of {', '.join(known)}.")
    return name


def _complete(_ctx: click.Context, _param: click.Parameter, start: str) -> list[str]:
    return [name for name in _dialects() if name.startswith(start)]


@_command("ddl", "ddl --dialect postgresql > tables.sql", shared=TABLES)
@takes(
    option(
        "--dialect",
        required=True,
        metavar="NAME",
        callback=_known_dialect,
        shell_complete=_complete,
        help="postgresql, mysql, mariadb or sqlite.",
    ),
    flag("--drop", help="Print DROP statements instead of CREATE statements."),
    flag("--all", "everything", help="With --drop: the SDK's own tables too."),
)
async def ddl(place: Place, *, dialect: str, drop: bool, everything: bool) -> None:
    """Print the SQL that creates the tables, or drops them, without a database."""
    from agents_session_metadata.core.ddl import create_statements, drop_statements
    from agents_session_metadata.dialects import dialect_of, offline

    if everything and not drop:
        usage("--all needs --drop")
    names = place.names
    statements = (
        drop_statements(dialect, names, everything=everything)
        if drop
        else create_statements(dialect, names)
    )
    for statement in statements:
        write(dialect_of(offline(dialect)).in_shell(statement))
    if not drop:
        say(
            f"if {names.sessions} was renamed or dropped while other tables have rows, restore it "
            "instead; if tables with rows exist, run `agent-sessions doctor` before and after",
            "yellow",
        )


@_command("doctor", "doctor --json", shared=DATABASE)
@takes(
    flag(
        "--rewrite-search-keys",
        help="Rewrite search keys and list elements that do not match the stored values.",
    )
)
async def doctor(place: Place, *, rewrite_search_keys: bool) -> int:
    """Compare a database with what `ddl` would create, and print problems.

    Changes nothing, unless --rewrite-search-keys is given. Prints CREATE statements for missing
    objects, in the order in which to run them, and explains other problems. The exit code is 1 if
    there is an error, and 0 if there are only warnings.
    """
    from agents_session_metadata import doctor
    from agents_session_metadata.dialects import dialect_of

    async with place.connect() as (engine, wait):
        if rewrite_search_keys:
            rewritten, skipped = await wait(doctor.rewrite_search_keys(engine, place.names))
            if place.as_json:
                write_json({"rewritten": rewritten, "skipped": skipped})
            else:
                hint = "; run `agent-sessions doctor` to see why" if skipped else ""
                write(str(rewritten))
                say(f"values rewritten: {rewritten}, skipped: {skipped}{hint}")
            return 0
        findings = await wait(doctor.diagnose(engine, place.names))
        shell = dialect_of(engine.dialect)
    errors = sum(each.level == "error" for each in findings)
    if place.as_json:
        write_json({"healthy": not errors, "findings": [each.as_dict() for each in findings]})
        return int(errors > 0)
    for each in findings:
        level = colored(f"{each.level:7}")
        # Whole: a statement in it that is cut would be another statement.
        write(f"{level}  {each.check}: {escaped(each.problem)}")
        for statement in each.repair:
            write(escaped(shell.in_shell(statement), "\n\t"))
    if not errors:
        say("healthy", "green")
        return 0
    say(f"found {counted(errors, 'error')}", "red")
    return 1


_KEY = argument("key", "KEY", "A metadata key, or $updated_at for lists without a filter.")


registry.group("index", "Create, drop and list indexes.", panel="Database")


@_command("index create", "index create owner_id")
@takes(_KEY)
async def create_index(place: Place, *, key: str) -> None:
    """Create an index on a key, for fast lists of sessions.

    Creates missing tables. Triggers keep the index up to date. If the command is interrupted, run
    it again to continue.
    """
    if not place.create_tables:
        place.require_file()
    async with replace(place, create_tables=True).open() as (catalog, wait):
        total = await wait(catalog.count_sessions())
        with progress(f"Indexing {shown(key)}", total) as counter:
            created = await wait(catalog.create_index(key, progress=counter.reach))
    if place.as_json:
        write_json({"key": key, "created": created})
    elif created:
        say(f"created the index on {shown(key)}")
    else:
        say(f"the index on {shown(key)} exists already")


@_command("index drop", "index drop owner_id")
@takes(_KEY)
async def drop_index(place: Place, *, key: str) -> int:
    """Drop an index. Results do not change, but lists can be slower."""
    async with place.open() as (catalog, wait):
        dropped = await wait(catalog.drop_index(key))
    if place.as_json:
        write_json({"key": key, "dropped": dropped})
    if not dropped:
        return nothing(f"there is no index on {shown(key)}")
    if not place.as_json:
        say(f"dropped the index on {shown(key)}")
    return 0


@_command("index list", "index list --count")
@takes(flag("--count", help="Count the entries, which takes time."))
async def list_indexes(place: Place, *, count: bool) -> None:
    """List the indexes, and whether each is complete."""
    async with place.open() as (catalog, wait):
        indexes = await wait(catalog.list_indexes(count=count))
    if place.as_json:
        write_json(
            [
                {"key": each.key, "complete": each.complete, "entries": each.entries}
                for each in indexes
            ]
        )
        return
    if not indexes:
        say("there is no index")
        return
    rows = [[each.key, "yes" if each.complete else "no"] for each in indexes]
    header = ["key", "complete"]
    if count:
        header.append("entries")
        for row, each in zip(rows, indexes, strict=True):
            row.append(f"{each.entries:,}")
    write_table(header, rows)


@_command("mcp", "mcp --scope owner_id=u1 --tool-prefix chats_", shared=registry.SERVER)
@takes(
    flag("--allow-write", help="Add the tools that change metadata."),
    option("--tool-prefix", default="", metavar="TEXT", help="Prefix for the tool names."),
    option(
        "--session",
        metavar="ID",
        help="Restrict the server to this session, the default of all tools.",
    ),
)
async def mcp(place: Place, *, allow_write: bool, tool_prefix: str, session: str | None) -> None:
    """Run an MCP server on stdin and stdout, for agents.

    The server is read-only unless --allow-write is given, and restricted to --scope.
    """
    try:
        from agents_session_metadata.mcp import make_server
    except ImportError as error:
        if error.name != "mcp":
            raise
        raise Failure(str(error)) from None
    standard_input()
    # Connections may drop between two calls.
    async with place.open(pool_pre_ping=True) as (catalog, wait):
        server = checked(
            lambda: make_server(
                catalog, allow_write=allow_write, tool_prefix=tool_prefix, session=session
            )
        )
        # Start only if the database answers.
        await wait(catalog.list_sessions(limit=1, keys=[]))
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            # A thread reads standard input; nothing else ends it.
            signal.signal(signal.SIGINT, exit_at_once)
        await wait.without_limit(_serve(server))


async def _serve(server: Any) -> None:
    try:
        await server.run_stdio_async()
    except Exception as error:
        # The error itself, without the groups around it.
        while nested := getattr(error, "exceptions", ()):
            error = nested[0]
        raise error from None

"""The commands about the database as a whole: SQL, checks, the MCP server."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Annotated, Any

import typer

from agents_session_metadata.text import escaped, quoted

from . import command as registry
from .command import DATABASE, TABLES, place_of
from .options import Failure, JsonOption, checked, standard_input, usage
from .output import colored, counted, say, write, write_json

_command = partial(registry.command, panel="Database")


def _dialects() -> list[str]:
    from agents_session_metadata.dialects import DIALECTS  # with SQLAlchemy

    return list(DIALECTS)


def _known_dialect(name: str) -> str:
    known = _dialects()
    if name not in known:
        raise typer.BadParameter(f"{quoted(name)} is not one of {', '.join(known)}.")
    return name


@_command("ddl", "ddl --dialect postgresql > tables.sql", shared=TABLES)
def ddl(
    ctx: typer.Context,
    *,
    dialect: Annotated[
        str,
        typer.Option(
            help="postgresql, mysql, mariadb or sqlite.",
            callback=_known_dialect,
            autocompletion=_dialects,
        ),
    ],
    drop: Annotated[
        bool, typer.Option("--drop", help="Print DROP statements instead of CREATE statements.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="With --drop: the SDK's own tables too.")
    ] = False,
) -> None:
    """Print the SQL that creates the tables, or drops them, without a database."""
    from agents_session_metadata.core.ddl import create_statements, drop_statements
    from agents_session_metadata.dialects import dialect_of, offline

    if everything and not drop:
        usage("--all needs --drop")
    names = place_of(ctx).names
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
def doctor(
    ctx: typer.Context,
    *,
    rewrite_search_keys: Annotated[
        bool,
        typer.Option(
            "--rewrite-search-keys",
            help="Rewrite search keys and list elements that do not match the stored values.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Compare a database with what `ddl` would create, and print problems.

    Changes nothing, unless --rewrite-search-keys is given. Prints CREATE statements for missing
    objects, in the order in which to run them, and explains other problems. The exit code is 1 if
    there is an error, and 0 if there are only warnings.
    """
    from agents_session_metadata import doctor
    from agents_session_metadata.dialects import dialect_of

    place = place_of(ctx)
    with place.connect() as (engine, wait):
        if rewrite_search_keys:
            rewritten, skipped = wait(doctor.rewrite_search_keys(engine, place.names))
            if as_json:
                write_json({"rewritten": rewritten, "skipped": skipped})
            else:
                hint = "; run `agent-sessions doctor` to see why" if skipped else ""
                write(str(rewritten))
                say(f"values rewritten: {rewritten}, skipped: {skipped}{hint}")
            return 0
        findings = wait(doctor.diagnose(engine, place.names))
        shell = dialect_of(engine.dialect)
    errors = sum(each.level == "error" for each in findings)
    if as_json:
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


@_command("mcp", "mcp --scope owner_id=u1 --tool-prefix chats_")
def mcp(
    ctx: typer.Context,
    *,
    allow_write: Annotated[
        bool, typer.Option("--allow-write", help="Add the tools that change metadata.")
    ] = False,
    tool_prefix: Annotated[str, typer.Option(help="Prefix for the tool names.")] = "",
    session: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Restrict the server to this session, the default of all tools."
        ),
    ] = None,
) -> None:
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
    with place_of(ctx).open(pool_pre_ping=True) as (catalog, wait):
        server = checked(
            lambda: make_server(
                catalog, allow_write=allow_write, tool_prefix=tool_prefix, session=session
            )
        )
        # Start only if the database answers.
        wait(catalog.list_sessions(limit=1, keys=[]))
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            # A thread reads standard input; nothing else ends it.
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        wait.without_limit(_serve(server))


async def _serve(server: Any) -> None:
    try:
        await server.run_stdio_async()
    except Exception as error:
        # The error itself, without the groups around it.
        while nested := getattr(error, "exceptions", ()):
            error = nested[0]
        raise error from None

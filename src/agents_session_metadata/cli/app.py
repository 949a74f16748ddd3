"""The application, and how its commands are declared.

A command is a coroutine function with the decorator `command`, in a module that is imported when
the command is needed. Its first argument is a `Target`, which opens the catalog when it is first
used. The defaults of the others, made in `options`, declare the command's parameters. It returns an
`Answer`. Errors become sentences with an exit code in `connection`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import click

from agents_session_metadata.text import escaped

from . import options
from .connection import Function, Target, run
from .options import Whole, condition_of, flag, option, repeatable, usage
from .output import Pages

HEADINGS = {
    "Sessions": ("sessions", "list show get set unset count values last"),
    "History": ("history", "history rewind fork search replay"),
    "Lifecycle": ("lifecycle", "start phase resume-check finish"),
    "Runs": ("runs", "runs approve reject discard"),
    "Usage": ("runs", "usage"),
    "Delete and move": ("transfer", "delete cleanup export import"),
    "Database": ("database", "index size ddl doctor"),
    "Servers": ("servers", "mcp web"),
}
COMMANDS: dict[str, str] = {
    name: module for module, names in HEADINGS.values() for name in names.split()
}

TABLES = ("sessions_table", "messages_table", "metadata_table")
# The shared options of a server, of a command on tables, of one on sessions, and if it writes.
LIMITS = ("max_keys", "max_key_length", "max_value_bytes")
SERVER = ("url", *TABLES, *LIMITS, "scope", "create_tables")
DATABASE = ("as_json", "url", "timeout", *TABLES)
CATALOG = (*DATABASE, "scope", "create_tables")
WRITES = (*CATALOG, *LIMITS)

_NAME = "agent-sessions"
_SECONDS = click.FloatRange(0, min_open=True)
_SHARED: dict[str, Any] = {
    "as_json": flag("Print one JSON document.", "--json"),
    "by": option("SESSION is a value of this key, such as title, that one session has."),
    "url": option(
        "Database URL, such as sqlite:///chat.db. Other users can see it in the process list: "
        "put a URL with a password into AGENT_SESSIONS_URL.",
        envvar="AGENT_SESSIONS_URL",
        show_envvar=True,
    ),
    "scope": repeatable(
        "Restrict the command to sessions with this value; repeatable. VALUE is parsed as JSON: "
        "123 means the number; for the string, write '\"123\"' with its quotes.",
        metavar=options.PAIRS,
    ),
    "max_keys": option("Maximum number of metadata keys per session.", type=Whole(1)),
    "max_key_length": option("Maximum length of a metadata key.", type=Whole(1, 255)),
    "max_value_bytes": option("Maximum size of a metadata value.", type=Whole(1)),
    "create_tables": flag("Create missing tables first."),
    "sessions_table": option("Name of the SDK's sessions table.", default="agent_sessions"),
    "messages_table": option("Name of the SDK's messages table.", default="agent_messages"),
    "metadata_table": option(
        "Name of the metadata table. Default: the sessions table's name and _metadata."
    ),
}


class _Application(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            import_module(f".{COMMANDS[cmd_name]}", __package__)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for heading, (module, names) in HEADINGS.items():
            import_module(f".{module}", __package__)
            with formatter.section(heading):
                found = ((name, self.commands[name]) for name in names.split())
                formatter.write_dl([(name, each.get_short_help_str(100)) for name, each in found])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            # Click quotes what was typed.
            error.message = escaped(error.message)  # type: ignore[misc]  # final
            raise


app: click.Group = _Application(
    _NAME,
    commands=dict.fromkeys(COMMANDS, click.Command(None)),  # until their modules are imported
    help="Find, change, delete and copy sessions of the OpenAI Agents SDK by their metadata.",
    epilog=(
        "Data goes to stdout, messages go to stderr. Exit codes: 0 success, 1 error or nothing "
        "found, 2 usage error, 130 interrupted."
    ),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(
    package_name="agents-session-metadata", prog_name=_NAME, message="%(prog)s %(version)s"
)(app)


class _Command(click.Command):
    shared: Sequence[str] = ()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Database options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                is_own = param.name not in self.shared or param.name in {"as_json", "by"}
                sections["Options" if is_own else "Database options"].append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)

    def invoke(self, ctx: click.Context) -> None:
        import asyncio

        params = ctx.params
        shared = {name: params.pop(name) for name in self.shared}
        given = {name: shared.pop(name) for name in LIMITS if name in shared}
        limits = {name: most for name, most in given.items() if most is not None}
        as_json = shared.get("as_json", False)
        if as_json and params.get("as_lines"):
            usage("pass --json or --jsonl, not both")
        if "where" in params:
            names = {"where", "meta", "owner", "active"} & {*params}
            params["condition"] = condition_of(**{name: params.pop(name) for name in names})
        if "every" in params and "as_lines" in params:
            paging = {name: params.pop(name) for name in ("limit", "cursor", "every", "as_lines")}
            params["pages"] = Pages(as_json=as_json, **paging)
        assert self.callback is not None  # noqa: S101  # for type checkers
        ctx.exit(asyncio.run(run(self.callback, Target(limits=limits, **shared), params)))


def command(
    example: str, shared: Sequence[str] = CATALOG, *, timeout: float | None = None
) -> Callable[[Function], Function]:
    """Adds a coroutine function to the application as a command. Its docstring is the help.

    The example begins with the name of the command, which is two words if the first is a group.
    `timeout` is the default of --timeout.
    """
    first, second, *_ = example.split(" ")
    found = app.commands[first]
    parent, name = (found, second) if isinstance(found, click.Group) else (app, first)

    def add(function: Function) -> Function:
        limit = option("Fail if the command takes longer.", type=_SECONDS, default=timeout)
        _, *arguments = inspect.signature(function).parameters.values()
        own = {param.name: param for each in arguments for param in each.default(each.name)}
        is_about_sessions = isinstance(own.get("session", own.get("sessions")), click.Argument)
        names = (*shared, "by") if is_about_sessions else shared
        makers = {**_SHARED, "timeout": limit}
        others = [make(each)[0] for each, make in makers.items() if each in names]
        made = _Command(
            name,
            callback=function,
            params=[*own.values(), *others],
            help=function.__doc__,
            epilog=f"Example: {_NAME} {example}",
        )
        made.shared = names
        parent.add_command(made)
        return function

    return add

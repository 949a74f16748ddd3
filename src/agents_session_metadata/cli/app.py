"""The application. It imports the module of a command when the command is needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from agents_session_metadata.text import escaped

from .command import find

COMMANDS = {
    **dict.fromkeys(("list", "show", "get", "set", "unset", "count", "values", "last"), "sessions"),
    **dict.fromkeys(("history", "rewind", "fork", "search"), "sessions"),
    "usage": "runs",
    **dict.fromkeys(("start", "phase", "resume-check", "finish"), "lifecycle"),
    **dict.fromkeys(("runs", "approve", "reject", "discard"), "runs"),
    **dict.fromkeys(("delete", "cleanup", "export", "import"), "transfer"),
    **dict.fromkeys(("index", "ddl", "doctor", "mcp"), "admin"),
    "web": "web",
}
"""The commands in the order of the help, with the modules that define them."""

_NAME = "agent-sessions"


class _Application(click.Group):
    """Imports the module of a command that is named, and all modules for the help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            # To suggest one.
            self.commands.update({name: find(name) for name in self._imported()})
            return None
        import_module(f".{COMMANDS[cmd_name]}", __package__)
        return find(cmd_name)

    def _imported(self) -> list[str]:
        for module in dict.fromkeys(COMMANDS.values()):
            import_module(f".{module}", __package__)
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self._imported():
            found = find(name)
            row = name, found.get_short_help_str(formatter.width)
            panels.setdefault(found.panel, []).append(row)
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            # Click quotes what was typed.
            error.message = escaped(error.message)  # type: ignore[misc]  # final
            raise


def _print_version(ctx: click.Context, _param: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"{_NAME} {version('agents-session-metadata')}")
        ctx.exit()


app: click.Group = _Application(
    _NAME,
    help="Find, change, delete and copy sessions of the OpenAI Agents SDK by their metadata.",
    epilog=(
        "Data goes to stdout, messages go to stderr. Exit codes: 0 success, 1 error or nothing "
        "found, 2 usage error, 130 interrupted."
    ),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version.",
        )
    ],
)

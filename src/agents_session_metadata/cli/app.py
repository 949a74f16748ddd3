"""The application. It imports the module of a command when the command is needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from agents_session_metadata.text import escaped

from .command import REGISTRY

HEADINGS = {
    "Sessions": ("sessions", "list show get set unset count values last"),
    "History": ("history", "history rewind fork search replay"),
    "Lifecycle": ("lifecycle", "start phase resume-check finish"),
    "Runs": ("runs", "runs approve reject discard"),
    "Usage": ("usage", "usage"),
    "Delete and move": ("transfer", "delete cleanup export import"),
    "Database": ("database", "index size ddl doctor"),
    "Servers": ("servers", "mcp web"),
}
COMMANDS: dict[str, str] = {
    name: module for module, names in HEADINGS.values() for name in names.split()
}

_NAME = "agent-sessions"


class _Application(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return _find(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for heading, (_, names) in HEADINGS.items():
            with formatter.section(heading):
                rows = [(name, _find(name).get_short_help_str(100)) for name in names.split()]
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            # Click quotes what was typed.
            error.message = escaped(error.message)  # type: ignore[misc]  # final
            raise


def _find(name: str) -> click.Command:
    import_module(f".{COMMANDS[name]}", __package__)
    return REGISTRY[name]


app: click.Group = _Application(
    _NAME,
    commands=dict.fromkeys(COMMANDS, click.Command(None)),  # the names to suggest
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

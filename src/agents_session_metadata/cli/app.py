"""The Typer application. It imports the module of a command when the command is needed."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from agents_session_metadata.text import escaped

from .command import build, prepared

COMMANDS = {
    **dict.fromkeys(("list", "show", "get", "set", "unset", "count", "values", "last"), "sessions"),
    **dict.fromkeys(("history", "rewind", "fork"), "history"),
    "search": "search",
    "usage": "usage",
    **dict.fromkeys(("start", "phase", "resume-check", "finish"), "lifecycle"),
    **dict.fromkeys(("waiting", "approve", "reject"), "approvals"),
    **dict.fromkeys(("delete", "cleanup", "export", "import"), "transfer"),
    "index": "indexes",
    **dict.fromkeys(("ddl", "doctor", "mcp"), "admin"),
    "web": "web",
}
"""The commands in the order of the help, with the modules that define them."""


class _Commands(TyperGroup):
    """Imports the module of a command that is named, and all modules for the help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _spare_imports()
        super().format_help(ctx, formatter)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # Typer passes it
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            import_module(f".{COMMANDS[cmd_name]}", __package__)
            self.commands[cmd_name] = build(cmd_name)
        elif cmd_name not in COMMANDS:
            for name in COMMANDS:  # Typer suggests similar names.
                self.get_command(ctx, name)
        return self.commands.get(cmd_name)

    def get_params(self, ctx: Any) -> Any:
        return prepared(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            # Typer quotes what was typed.
            if isinstance(message := getattr(error, "message", None), str):
                error.message = escaped(message)  # type: ignore[attr-defined]  # Typer's own
            raise


app: typer.Typer = typer.Typer(
    cls=_Commands,
    name="agent-sessions",
    help="Find, change, delete and copy sessions of the OpenAI Agents SDK by their metadata.",
    epilog=(
        "Data goes to stdout, messages go to stderr. Exit codes: 0 success, 1 error or nothing "
        "found, 2 usage error, 130 interrupted."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:  # Typer calls it so
    if value:
        from importlib.metadata import version

        typer.echo(f"agent-sessions {version('agents-session-metadata')}")
        raise typer.Exit


def _spare_imports() -> None:
    """Import Typer's help in half the time.

    Typer imports `rich.markdown` and `rich.traceback`, and with them two more libraries, for help
    texts in Markdown and for its own tracebacks. We use neither.
    """
    spared = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
    stand_ins = [name for name in spared if name not in sys.modules]
    for name in stand_ins:
        sys.modules[name] = ModuleType(name)
        setattr(sys.modules[name], spared[name], type(spared[name], (), {}))
    try:
        import_module("typer.rich_utils")
    finally:
        for name in stand_ins:
            del sys.modules[name]


@app.callback()
def _options(
    *,
    version: Annotated[  # its callback prints it
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Nothing else happens before a command."""

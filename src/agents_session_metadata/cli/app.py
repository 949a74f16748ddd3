"""The command `agent-sessions`. Each module of `MODULES` adds commands to it when it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from agents_session_metadata.text import escaped

# The sections of the help, and the module with the commands of each.
MODULES = {
    "sessions": "Sessions",
    "history": "History",
    "lifecycle": "Lifecycle",
    "runs": "Runs",
    "usage": "Usage",
    "transfer": "Delete and move",
    "database": "Database",
    "servers": "Servers",
}


class DatabaseOption(click.Option):
    """An option of most commands. Help shows it below the options of the command itself."""


class Command(click.Command):
    """A command whose options with one value can be given once."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        *_, given = self.make_parser(ctx).parse_args([*args])
        for option in given:
            is_single = isinstance(option, click.Option) and not (option.multiple or option.is_flag)
            if is_single and given.count(option) > 1:
                ctx.fail(f"{max(option.opts, key=len)} was given more than once; pass it once")
        rest = super().parse_args(ctx, args)
        if ctx.params.get("as_json") and ctx.params.get("as_lines"):
            ctx.fail("pass --json or --jsonl, not both")
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        for name, is_shared in (("Options", False), ("Database options", True)):
            chosen = [each for each in options if isinstance(each, DatabaseOption) is is_shared]
            records = [each.get_help_record(ctx) for each in chosen]
            with formatter.section(name):
                formatter.write_dl([record for record in records if record is not None])


class Group(click.Group):
    command_class: type[click.Command] | None = Command


class _Application(Group):
    group_class: type[click.Group] | type[type] | None = Group

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for module in MODULES:
            if cmd_name in self.commands:
                break
            import_module(f".{module}", __package__)
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        for module in MODULES:
            import_module(f".{module}", __package__)
        return super().list_commands(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.list_commands(ctx)
        for module, heading in MODULES.items():
            found = [
                (name, command.get_short_help_str(100))
                for name, command in self.commands.items()
                if command.callback is not None
                and command.callback.__module__ == f"{__package__}.{module}"
            ]
            with formatter.section(heading):
                formatter.write_dl(found)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            # Click quotes what was typed.
            error.message = escaped(error.message)  # type: ignore[misc]  # final
            raise


@click.group(
    "agent-sessions",
    cls=_Application,
    epilog=(
        "Data goes to stdout, messages go to stderr. Exit codes: 0 success, 1 error or nothing "
        "found, 2 usage error, 130 interrupted."
    ),
    no_args_is_help=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(
    package_name="agents-session-metadata",
    prog_name="agent-sessions",
    message="%(prog)s %(version)s",
)
def cli() -> None:
    """Find, change, delete and copy sessions of the OpenAI Agents SDK by their metadata."""

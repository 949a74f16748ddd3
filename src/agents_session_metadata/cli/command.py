"""Registers functions as commands, with shared options, an example and error handling."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from .connection import Place, place_from_options
from .options import Failure

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., "int | None"])

TABLES = ("sessions_table", "messages_table", "metadata_table")
"""The shared options of a command that needs no database."""
DATABASE = ("url", "url_file", "timeout", *TABLES)
"""The shared options of a command that looks at tables, not at sessions."""
CATALOG = (*DATABASE, "scope", "create_tables")
"""The shared options of all other commands."""

EXAMPLES: dict[str, str] = {}
_APPS: dict[str, typer.Typer] = {}

_shared = typer.Typer(add_completion=False)
_shared.command()(place_from_options)
_PLACE = typer.main.get_command(_shared)


class _Command(TyperCommand):
    """Takes the shared options and passes the `Place` that they name as `ctx.obj`."""

    shared: tuple[str, ...] = CATALOG

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [each for each in _PLACE.params if each.name in self.shared]

    def get_params(self, ctx: Any) -> Any:
        return prepared(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _refuse_repeated(ctx, self.make_parser(ctx).parse_args(args=list(args))[2])
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            given = {name: ctx.params.pop(name) for name in self.shared}
            ctx.obj = ctx.invoke(_PLACE.callback, **given)
            code = super().invoke(ctx)
        except Failure as failure:
            if failure.exit_code != 2:
                failure.ctx = None  # Else Typer would print the usage as well.
            raise
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        if code:
            raise typer.Exit(code)


class _Group(TyperGroup):
    """Commands with a common first word."""

    def get_params(self, ctx: Any) -> Any:
        return prepared(super().get_params(ctx))


class _DatabaseCommand(_Command):
    shared = DATABASE


class _OfflineCommand(_Command):
    shared = TABLES


_CLASSES = {each.shared: each for each in (_Command, _DatabaseCommand, _OfflineCommand)}


def command(
    name: str, example: str, *, panel: str, shared: tuple[str, ...] = CATALOG
) -> Callable[[CommandFunction], CommandFunction]:
    """Register a function as a command.

    The function takes a `typer.Context` whose `obj` is a `Place`, and returns the exit code, or
    None for 0. Its docstring is the help. A `name` of two words is a command in a group. `example`
    contains the arguments after `agent-sessions`.
    """
    first, _, second = name.partition(" ")
    EXAMPLES[name] = example

    def register(function: CommandFunction) -> CommandFunction:
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        group = typer.Typer(
            add_completion=False,
            rich_markup_mode="rich",
            cls=_Group,
            help=inspect.getdoc(inspect.getmodule(function)),
            rich_help_panel=panel,
        )
        app = _APPS.setdefault(first, group)
        app.command(
            second or first,
            cls=_CLASSES[shared],
            help="\n\n".join(" ".join(each.split()) for each in paragraphs),
            epilog=f"Example: agent-sessions {example}",
            rich_help_panel=panel,
        )(function)
        return function

    return register


def build(name: str) -> Any:
    app = _APPS[name]
    built: Any = typer.main.get_command(app)
    # Typer takes these from `add_typer`, and a group that is built alone has neither.
    built.name, built.rich_help_panel = name, app.rich_help_panel
    return built


def place_of(ctx: typer.Context) -> Place:
    place: Place = ctx.obj
    return place


def _refuse_repeated(ctx: Any, given: list[Any]) -> None:
    """Refuse an option with one value that is given twice: Click would drop the first value."""
    for place, param in enumerate(given):
        takes_one = param.param_type_name == "option" and not (param.multiple or param.is_flag)
        if takes_one and param in given[:place] and not ctx.resilient_parsing:
            name = max(param.opts, key=len)
            advice = "pass it once"
            if name == "--where":
                advice = 'combine the filters in one: {"$and": [..., ...]}'
            ctx.fail(f"{name} was given more than once; {advice}")


def prepared(params: list[Any]) -> list[Any]:
    """Show `--json` instead of `--json <bool>` in the help, and accept strings without pydantic.

    Typer imports pydantic to check any value, even a string or a missing one.
    """
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
        if "process_value" not in vars(param):
            param.process_value = partial(_process, param, param.process_value)
    return params


def _process(param: Any, process: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    is_text = getattr(getattr(param, "type_descriptor", None), "annotation", None) is str
    if (is_text and isinstance(value, str)) or (value is None and not param.required):
        return value if param.callback is None else param.callback(ctx, param, value)
    return process(ctx, value)

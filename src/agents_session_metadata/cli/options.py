"""Options that several commands share, and parsers for JSON and `key=value`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, BinaryIO, NoReturn, TypeVar

import click

from agents_session_metadata.text import escaped, quoted, refuse_constant, strict_json

from .output import say

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Failure(click.ClickException):
    """Ends a command with an error and exit code 1."""

    def __init__(self, sentence: str) -> None:
        super().__init__(escaped(sentence))


def usage(sentence: str) -> NoReturn:
    """End a command with a usage error and exit code 2."""
    raise click.UsageError(escaped(sentence))


def checked(check: Callable[..., T], *arguments: Any) -> T:
    """Call a function that checks an argument. A ValueError becomes a usage error."""
    try:
        return check(*arguments)
    except ValueError as error:
        usage(str(error))


class Option(click.Option):
    """Refuses a second value, unless it is `multiple`. Click would drop the first one."""

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)  # `Whole` has it as its name
        return extra

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        if self.multiple or self.is_flag:
            super().add_to_parser(parser, ctx)
        else:
            parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append")

    def consume_value(self, ctx: click.Context, opts: Any) -> tuple[Any, Any]:
        given = opts.get(self.name)
        if not self.multiple and isinstance(given, list):
            if len(given) > 1 and not ctx.resilient_parsing:
                name = max(self.opts, key=len)
                advice = "pass it once"
                if name == "--where":
                    advice = 'combine the filters in one: {"$and": [..., ...]}'
                ctx.fail(f"{name} was given more than once; {advice}")
            opts = {**opts, self.name: given[-1]}
        return super().consume_value(ctx, opts)


class Whole(click.IntRange):
    """A whole number in a range, which the help shows as 1..1000."""

    def __init__(self, low: int, high: int | None = None) -> None:
        super().__init__(low, high)
        self.name: str = f"{low}..{'' if high is None else high}"


def option(*names: str, **settings: Any) -> Option:
    if settings.get("default") is not None:
        settings.setdefault("show_default", True)
    return Option(names, **settings)


def takes(*params: click.Parameter) -> Callable[[F], F]:
    """Declare the parameters of a command, in the order of the help."""

    def add(function: F) -> F:
        function.__click_params__ = [  # type: ignore[attr-defined]  # where Click keeps them
            *reversed(params),
            *getattr(function, "__click_params__", ()),
        ]
        return function

    return add


def argument(name: str, metavar: str, help: str, **settings: Any) -> click.Argument:  # noqa: A002
    return click.Argument([name], metavar=metavar, help=help, **settings)


def flag(*names: str, help: str) -> Option:  # noqa: A002  # Click's name
    return Option(names, is_flag=True, help=help)


FILTERS = (
    option("--where", metavar="JSON", help="Only sessions that match this filter."),
    option(
        "--meta",
        metavar="KEY=VALUE",
        multiple=True,
        help="Only sessions with this value; repeatable.",
    ),
    option("--owner", metavar="NAME", help="Only sessions with this owner_id."),
)
"""`Command` passes them as one filter, `condition`."""
ACTIVE = flag("--active", help="Only sessions whose status is active.")
META = option(
    "--meta",
    metavar="KEY=VALUE",
    multiple=True,
    help="Metadata to store; repeatable. VALUE is parsed as JSON; "
    "if it is not valid JSON, it is stored as a string.",
)
CURSOR = option("--cursor", help="Continue after the page that printed this cursor.")
EVERY_PAGE = flag("--all", "every", help="Print every page.")
JSON_LINES = flag("--jsonl", "as_lines", help="Print one JSON document per line.")
YES = flag("--yes", "-y", help="Do not ask for confirmation.")
SESSION = argument("session", "SESSION", "The session id.")


def duration(name: str, number: float, unit: str) -> timedelta:
    try:
        found = timedelta(**{unit: number})
    except (OverflowError, ValueError):
        usage(f"{name} is out of range: {quoted(number)}")
    if number and not found:
        usage(f"{name} must be 0 or at least one microsecond, got {quoted(number)}")
    return found


def parse_json(text: str, what: str) -> Any:
    try:
        return strict_json(text)
    except ValueError as error:
        usage(f"{what} is not valid JSON: {error}")


def parse_value(text: str, what: str = "the value") -> Any:
    """Parse the value after `key=`: JSON if it is valid JSON, otherwise a string.

    JSON that cannot be stored is a usage error: a number that is too long, nesting that is too
    deep, a duplicate key.
    """
    try:
        json.loads(text, parse_constant=refuse_constant, parse_int=str)
    except ValueError:
        return text
    except RecursionError:
        pass
    return parse_json(text, what)


def parse_pairs(pairs: Sequence[str], option: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            usage(f"{option} takes KEY=VALUE, got {quoted(pair)}")
        if key in values:
            usage(f"{option} names the key {quoted(key)} twice")
        values[key] = parse_value(text, f"{option} {key}")
    return values


def both(*conditions: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns a filter that requires all conditions. None matches every session."""
    given = [each for each in conditions if each is not None]
    return {"$and": given} if len(given) > 1 else given[0] if given else None


def read_url(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as opened:  # noqa: PTH123  # pathlib is slow to import
            return opened.read().strip()
    except (OSError, ValueError) as error:
        raise Failure(f"{file}: {getattr(error, 'strerror', error)}") from None


def standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise Failure("stdin is closed")
    return sys.stdin.buffer


def is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def require_answer(*, yes: bool) -> None:
    """Raises a usage error if a command would ask, and standard input is not a terminal."""
    if not yes and not is_interactive():
        usage("this command asks for confirmation and stdin is not a terminal; pass --yes")


def confirm(question: str, *, yes: bool) -> None:
    require_answer(yes=yes)
    if yes:
        return
    from rich.console import Console
    from rich.prompt import Confirm
    from rich.text import Text

    if not Confirm.ask(Text(escaped(question)), default=False, console=Console(stderr=True)):
        say("nothing was changed")
        raise click.exceptions.Exit(1)

"""Options that several commands share, and parsers for JSON and `key=value`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any, BinaryIO, NoReturn, TypeVar

import typer

from agents_session_metadata.text import escaped, quoted, refuse_constant, strict_json

from .output import say

T = TypeVar("T")


class Failure(typer.BadParameter):
    """Ends a command with an error, shown as Typer shows its own. Code 2 means a usage error."""

    def __init__(self, sentence: str, code: int = 1) -> None:
        super().__init__(escaped(sentence))
        self.exit_code = code

    def format_message(self) -> str:
        """Omits the prefix of a bad parameter."""
        return self.message


def usage(sentence: str) -> NoReturn:
    """End a command with a usage error."""
    raise Failure(sentence, 2)


def checked(check: Callable[..., T], *arguments: Any) -> T:
    """Call a function that checks an argument. A ValueError becomes a usage error."""
    try:
        return check(*arguments)
    except ValueError as error:
        usage(str(error))


def duration(name: str, number: float, unit: str) -> timedelta:
    try:
        found = timedelta(**{unit: number})
    except (OverflowError, ValueError):
        usage(f"{name} is out of range: {quoted(number)}")
    if number and not found:
        usage(f"{name} must be 0 or at least one microsecond, got {quoted(number)}")
    return found


WhereOption = Annotated[
    str | None,
    typer.Option("--where", metavar="JSON", help="Only sessions that match this filter."),
]
FilterMetaOption = Annotated[
    list[str] | None,
    typer.Option("--meta", metavar="KEY=VALUE", help="Only sessions with this value; repeatable."),
]
ActiveOption = Annotated[
    bool, typer.Option("--active", help="Only sessions whose status is active.")
]
MetaOption = Annotated[
    list[str] | None,
    typer.Option(
        "--meta",
        metavar="KEY=VALUE",
        help="Metadata to store; repeatable. VALUE is parsed as JSON; "
        "if it is not valid JSON, it is stored as a string.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
JsonLinesOption = Annotated[bool, typer.Option("--jsonl", help="Print one JSON document per line.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="The session id.")]


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


def parse_pairs(pairs: Sequence[str] | None, option: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in pairs or ():
        key, separator, text = pair.partition("=")
        if not separator or not key:
            usage(f"{option} takes KEY=VALUE, got {quoted(pair)}")
        if key in values:
            usage(f"{option} names the key {quoted(key)} twice")
        values[key] = parse_value(text, f"{option} {key}")
    return values


def parse_where(where: str | None, pairs: Sequence[str] | None) -> dict[str, Any] | None:
    parts: list[Any] = []
    if where is not None:
        parts.append(parse_json(where, "--where"))
    parts += [{key: {"$eq": value}} for key, value in parse_pairs(pairs, "--meta").items()]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else {"$and": parts}


def both(*conditions: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns a filter that requires all conditions. None matches every session."""
    given = [each for each in conditions if each is not None]
    return {"$and": given} if len(given) > 1 else given[0] if given else None


def refuse_both(*, as_json: bool, as_lines: bool) -> None:
    if as_json and as_lines:
        usage("pass --json or --jsonl, not both")


def standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise Failure("stdin is closed")
    return sys.stdin.buffer


def is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def require_answer(*, yes: bool) -> None:
    """Raises a usage error if a question is about to be asked that nobody can answer."""
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
        raise typer.Exit(1)

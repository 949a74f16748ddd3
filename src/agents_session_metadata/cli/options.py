"""Parameters of commands, and parsers for JSON and `key=value`.

A command declares a parameter as the default of an argument of its function: `option`, `flag` and
the others return a function that makes Click's parameter for the name of the argument.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, BinaryIO, NoReturn

import click

from agents_session_metadata.text import parse_time, quoted, refuse_constant, strict_json

from .output import LONGEST_PAGE, Pages, blocking, say


class Whole(click.IntRange):
    """A whole number in a range, which help and errors show as 1..1000."""

    def _describe_range(self) -> str:
        return f"{self.min}..{'' if self.max is None else self.max}"


class _Text(click.types.StringParamType):
    envvar_list_splitter = "\0"  # Click would split the variable of a `multiple` option at spaces.


def argument(help: str, metavar: str | None = None, **settings: Any) -> Any:  # noqa: A002  # Click's name
    """`metavar` is the name in the help; by default that of the function's argument."""
    return lambda name: click.Argument(
        [name], metavar=metavar or name.upper(), help=help, **settings
    )


def option(
    help: str,  # noqa: A002
    *names: str,
    type: Any = None,  # noqa: A002
    default: Any = None,
    **settings: Any,
) -> Any:
    """Returns an option with one value. Click would drop the first one of two."""
    if default is not None:
        settings.update(default=[default], show_default=True)
    settings.update(type=type or _Text(), callback=_only_one)
    return repeatable(help, *names, **settings)


def repeatable(help: str, *names: str, multiple: bool = True, **settings: Any) -> Any:  # noqa: A002
    settings.update(help=help, multiple=multiple)
    return lambda name: click.Option(
        [*(names or [f"--{name.replace('_', '-')}"]), name], **settings
    )


def flag(help: str, *names: str) -> Any:  # noqa: A002
    return repeatable(help, *names, multiple=False, is_flag=True)


def _only_one(_ctx: click.Context, param: click.Parameter, values: Sequence[Any]) -> Any:
    if len(values) > 1:
        usage(f"{max(param.opts, key=len)} was given more than once; pass it once")
    return values[0] if values else None


PAIRS = "KEY=VALUE"
SESSION = argument("The session id.")
META = repeatable(
    "Metadata to store; repeatable. VALUE is parsed as JSON; if it is not valid JSON, it is stored "
    "as a string.",
    metavar=PAIRS,
)
JSON_LINES = flag("Print one JSON document per line.", "--jsonl")
YES = flag("Do not ask for confirmation.", "--yes", "-y")


def item(help: str) -> Any:  # noqa: A002
    return option(help, type=int, metavar="ITEM")


@dataclass(frozen=True)
class Together:
    """Options of which a command receives one value: what `combine` makes of theirs."""

    options: dict[str, Any]
    combine: Callable[..., Any]


def filters(*, active: bool = False) -> Any:
    """The options that select sessions, as one filter."""
    made = {
        "where": option("Only sessions that match this filter.", metavar="JSON"),
        "meta": repeatable("Only sessions with this value; repeatable.", metavar=PAIRS),
        "owner": option("Only sessions with this owner_id."),
    }
    if active:
        made["active"] = flag("Only sessions whose status is active.")
    return Together(made, condition_of)


def paging(name: str, usual: int, most: int = LONGEST_PAGE) -> Any:
    """The options that select pages, as `Pages` of what has this name."""
    made = {
        "limit": option(f"{name.capitalize()} per page.  [default: {usual}]", type=Whole(1, most)),
        "cursor": option("Continue after the page that printed this cursor."),
        "every": flag("Print every page.", "--all"),
        "as_lines": JSON_LINES,
    }
    return Together(made, partial(Pages, name=name, usual=usual, most=most))


def usage(sentence: str) -> NoReturn:
    """Ends a command with a usage error and exit code 2."""
    raise click.UsageError(sentence, click.get_current_context(silent=True))


async def confirm(question: str, *, yes: bool) -> None:
    """Ends the command with exit code 1 if the answer is no."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        usage("this command asks for confirmation and stdin is not a terminal; pass --yes")
    if not await blocking(lambda: click.confirm(question, err=True)):
        say("nothing was changed")
        raise click.exceptions.Exit(1)


def standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise click.ClickException("stdin is closed")
    return sys.stdin.buffer


def condition_of(
    where: str | None, meta: Sequence[str], owner: str | None, *, active: bool = False
) -> dict[str, Any] | None:
    """Returns the filter of the options in `filters`. None matches every session."""
    if where is not None and "=" in where and not where.lstrip().startswith(("{", "[", '"')):
        usage(f"--where takes a filter as JSON; for KEY=VALUE, pass --meta {where}")
    given: list[Any] = [{key: {"$eq": value}} for key, value in parse_pairs(meta, "--meta").items()]
    given += [{"status": "active"}] if active else []
    given += [] if where is None else [parse_json(where, "--where")]
    given += [] if owner is None else [{"owner_id": {"$eq": parse_value(owner, "--owner")}}]
    return {"$and": given} if len(given) > 1 else given[0] if given else None


def duration(name: str, number: float, unit: str) -> timedelta:
    try:
        return timedelta(**{unit: number})
    except (OverflowError, ValueError):
        usage(f"{name} is out of range: {number}")


def moment(text: str) -> datetime:
    """Parses `7d` and `12h` before now, `yesterday`, and ISO 8601. The default zone is UTC."""
    now, before = datetime.now(timezone.utc), re.fullmatch(r"(\d{1,5})([dh])", text)
    if before:
        return now - timedelta(**{{"d": "days", "h": "hours"}[before[2]]: int(before[1])})
    if text == "yesterday":
        return now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    return parse_time(text) or usage(
        f"{quoted(text)} is not 7d, 12h, yesterday or an ISO 8601 time"
    )


def parse_json(text: str, what: str) -> Any:
    try:
        return strict_json(text)
    except ValueError as error:
        usage(f"{what} is not valid JSON: {error}")


def parse_value(text: str, what: str = "the value") -> Any:
    """Parses the value after `key=`. JSON that cannot be stored is no string, but a usage error."""
    try:
        json.loads(text, parse_constant=refuse_constant, parse_int=str)
    except ValueError:
        return text
    except RecursionError:
        pass
    return parse_json(text, what)


def parse_pairs(pairs: Sequence[str], what: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            usage(f"{what} takes KEY=VALUE, got {quoted(pair)}")
        if key in values:
            usage(f"{what} names the key {quoted(key)} twice")
        values[key] = parse_value(text, f"{what} {key}")
    return values

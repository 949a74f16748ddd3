"""Options that several commands share, and parsers for JSON and `key=value`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, timezone
from functools import partial, wraps
from typing import Any, BinaryIO, NoReturn, TypeAlias

import click

from agents_session_metadata.errors import InvalidFilterError
from agents_session_metadata.keys import normalize_agent
from agents_session_metadata.text import parse_time, quoted, refuse_constant, strict_json

from .output import LONGEST_PAGE, Pages, blocking, say


class Whole(click.IntRange):
    """A whole number in a range, which help and errors show as 1..1000."""

    def _describe_range(self) -> str:
        return f"{self.min}..{'' if self.max is None else self.max}"


Function: TypeAlias = Callable[..., Any]
Decorator: TypeAlias = Callable[[Function], Function]

PAIRS = "KEY=VALUE"
flag: Callable[..., Decorator] = partial(click.option, is_flag=True)


def completing(*values: str) -> Any:
    """Returns a `shell_complete` with these values, for a parameter whose command checks them."""
    return lambda _ctx, _param, text: [each for each in values if each.startswith(text)]


session: Decorator = click.argument("session", help="The session id.")
optional_session: Decorator = click.argument("session", required=False, help="The session id.")
meta: Decorator = click.option(
    "--meta",
    multiple=True,
    metavar=PAIRS,
    help="Metadata to store; repeatable. VALUE is parsed as JSON; if it is not valid JSON, it is "
    "stored as a string.",
)
jsonl: Decorator = flag("--jsonl", "as_lines", help="Print one JSON document per line.")
yes: Decorator = flag("--yes", "-y", help="Do not ask for confirmation.")


def filters(function: Function) -> Function:
    """Adds the options that select sessions. The command receives their filter as `where`."""

    @click.option("--where", metavar="JSON", help="Only sessions that match this filter.")
    @click.option(
        "--meta", multiple=True, metavar=PAIRS, help="Only sessions with this value; repeatable."
    )
    @click.option("--owner", help="Only sessions with this owner_id.")
    @click.option(
        "--since",
        metavar="TIME",
        type=moment,
        help="Only sessions active since: 7d, 12h, yesterday, a time.",
    )
    @wraps(function)
    def command(
        where: str | None,
        meta: Sequence[str],
        owner: str | None,
        since: datetime | None,
        active: bool = False,
        **more: Any,
    ) -> Any:
        pairs = parse_pairs(meta, "--meta")
        found: list[Any] = [{key: {"$eq": value}} for key, value in pairs.items()]
        found += [{"status": "active"}] if active else []
        found += [] if where is None else [parse_where(where)]
        found += [] if owner is None else [{"owner_id": {"$eq": parse_value(owner, "--owner")}}]
        found += [] if since is None else [{"$updated_at": {"$gte": since.isoformat()}}]
        if found[1:]:
            check_each(found)
        return function(where={"$and": found} if found[1:] else next(iter(found), None), **more)

    return command


def check_each(filters: Sequence[Any]) -> None:
    """Checks filters before they are joined, so that errors name the positions that were typed."""
    from agents_session_metadata import check_filter

    try:
        for each in filters:
            check_filter(each)
    except InvalidFilterError as error:
        usage(str(error))


def parse_where(text: str) -> Any:
    """Parses a filter. Under `$created_at` and `$updated_at`, `7d` and the like are times."""
    if "=" in text and not text.lstrip().startswith(("{", "[", '"')):
        usage(f"--where takes a filter as JSON; for KEY=VALUE, pass --meta {text}")
    return _with_times(parse_json(text, "--where"), is_time=False)


def _with_times(where: Any, *, is_time: bool) -> Any:
    if isinstance(where, dict):
        return {
            key: _with_times(each, is_time=is_time or key in ("$created_at", "$updated_at"))
            for key, each in where.items()
        }
    if isinstance(where, list):
        return [_with_times(each, is_time=is_time) for each in where]
    is_relative = is_time and isinstance(where, str) and _relative(where) is not None
    return moment(where).isoformat() if is_relative else where


active: Decorator = flag("--active", help="Only sessions whose status is active.")
"""Goes below `filters`, which adds it to the filter."""


def pages(name: str, usual: int, most: int = LONGEST_PAGE) -> Decorator:
    """Adds the options that select pages. The command receives them as `pages`.

    `name` is the attribute of a page with its entries, `usual` the default of --limit.
    """

    def decorate(function: Function) -> Function:
        @click.option(
            "--limit",
            type=Whole(1, most),
            help=f"{name.capitalize()} per page.  [default: {usual}]",
        )
        @click.option("--cursor", help="Continue after the page that printed this cursor.")
        @flag("--all", "every", help="Print every page.")
        @jsonl
        @wraps(function)
        def command(
            limit: int | None, cursor: str | None, every: bool, as_lines: bool, **more: Any
        ) -> Any:
            size = limit or (most if every else usual)
            return function(pages=Pages(name, size, cursor, every, as_lines), **more)

        return command

    return decorate


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


def duration(name: str, number: float, unit: str) -> timedelta:
    try:
        return timedelta(**{unit: number})
    except (OverflowError, ValueError):
        usage(f"{name} is out of range: {number}")


def moment(text: str) -> datetime:
    """Parses `7d`, `12h`, `yesterday` and ISO 8601. The default zone is UTC."""
    found = _relative(text) or parse_time(text)
    return found or usage(f"{quoted(text)} is not 7d, 12h, yesterday or an ISO 8601 time")


def _relative(text: str) -> datetime | None:
    """Returns the beginning of a day or hour, so that the cursor of a filter stays valid."""
    before = re.fullmatch(r"(\d{1,5})([dh])", "1d" if text == "yesterday" else text)
    if before is None:
        return None
    hour = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0)
    if before[2] == "h":
        return hour - timedelta(hours=int(before[1]))
    return hour.replace(hour=0) - timedelta(days=int(before[1]))


def day(text: str) -> date:
    return moment(text).date()


def agent_name(text: str, what: str) -> str:
    name = normalize_agent(text)
    return name or usage(f"{what} must be the name of an agent, got {quoted(text)}")


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

"""Registers coroutine functions as commands, with shared options, an example and a `Place`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import click

from .connection import Place, Unanswered
from .options import (
    Failure,
    Whole,
    both,
    flag,
    option,
    parse_json,
    parse_pairs,
    parse_value,
    read_url,
    usage,
)

TABLES = ("sessions_table", "messages_table", "metadata_table")
"""The shared options of a command that needs no database."""
DATABASE = ("as_json", "url", "url_file", "timeout", *TABLES)
"""The shared options of a command that looks at tables, not at sessions."""
CATALOG = (*DATABASE, "scope", "create_tables")
"""The shared options of all other commands."""
SERVER = CATALOG[1:]
"""The shared options of a command that does not print JSON."""

LIMITS = ("max_keys", "max_key_length", "max_value_bytes")
WRITES = (*CATALOG, *LIMITS)
"""The shared options of a command that stores metadata."""
ONE, WRITES_ONE = (*CATALOG, "by"), (*WRITES, "by")
"""The same of a command on one session."""

EXAMPLES: dict[str, str] = {}
_OWN = {"as_json", "by"}
"""Shared options that the help shows among the command's own."""
_COMMANDS: dict[str, Command | Group] = {}
_GROUPS: dict[str, Group] = {}


class Command(click.Command):
    """Runs a coroutine function with a `Place` made from the shared options.

    The options that select sessions are passed as one filter, `condition`.
    """

    panel = ""
    shared: tuple[str, ...] = CATALOG

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Database options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                is_own = param.name not in self.shared or param.name in _OWN
                name = "Options" if is_own else "Database options"
                sections[name].append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)

    def invoke(self, ctx: click.Context) -> None:
        import asyncio

        params = ctx.params
        try:
            with click.core.augment_usage_errors(ctx):
                key = params.pop("by") if "by" in self.shared else None
                place = _place(**{name: params.pop(name) for name in self.shared if name != "by"})
                if "where" in params:
                    params["condition"] = _condition(params)
                code = asyncio.run(_run(self.callback, place, params, key))
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None
        ctx.exit(code or 0)


class Group(click.Group):
    """Commands with a common first word."""

    panel = ""


def command(
    name: str, example: str, *, panel: str, shared: tuple[str, ...] = CATALOG
) -> Callable[[Callable[..., Coroutine[Any, Any, int | None]]], Command]:
    """Register a coroutine function as a command.

    The function takes a `Place` and the command's parameters, and returns the exit code, or None
    for 0. Its docstring is the help. A `name` of two words is a command in a group. `example`
    contains the arguments after `agent-sessions`.
    """
    first, _, second = name.partition(" ")
    EXAMPLES[name] = example

    def register(function: Callable[..., Coroutine[Any, Any, int | None]]) -> Command:
        built = click.command(
            second or first, cls=Command, epilog=f"Example: agent-sessions {example}"
        )(function)
        built.panel, built.shared = panel, shared
        built.params += [each for each in _SHARED if each.name in shared]
        if second:
            _GROUPS[first].add_command(built)
        else:
            _COMMANDS[first] = built
        return built

    return register


def group(name: str, text: str, *, panel: str) -> None:
    """Register a group, before its commands."""
    _COMMANDS[name] = _GROUPS[name] = Group(name, help=text)
    _GROUPS[name].panel = panel


def find(name: str) -> Command | Group:
    """Returns a command of a module that is imported."""
    return _COMMANDS[name]


async def _run(
    function: Callable[..., Coroutine[Any, Any, int | None]] | None,
    place: Place,
    params: dict[str, Any],
    key: str | None,
) -> int | None:
    assert function is not None  # noqa: S101  # for mypy
    try:
        if key is not None:
            params["session"] = await _find(place, key, params["session"])
        return await function(place, **params)
    except Unanswered as failure:
        # A thread or a task still waits for the database and would keep the process alive.
        failure.show()
        sys.stdout.flush()
        os._exit(failure.exit_code)


async def _find(place: Place, key: str, text: str) -> str:
    """Returns the id of the only session that has a value."""
    async with place.open() as (catalog, wait):
        where = {key: {"$eq": parse_value(text)}}
        page = await wait(catalog.list_sessions(where, limit=2, keys=[]))
    if len(page.sessions) == 1:
        return page.sessions[0].session_id
    how_many = "more than one session has" if page.sessions else "no session has"
    raise Failure(f"{how_many} {key}={text}; pass the session id without --by")


def _condition(params: dict[str, Any]) -> dict[str, Any] | None:
    where, owner = params.pop("where"), params.pop("owner")
    pairs = parse_pairs(params.pop("meta"), "--meta")
    return both(
        {"status": "active"} if params.pop("active", False) else None,
        None if where is None else _parse_where(where),
        None if owner is None else {"owner_id": {"$eq": parse_value(owner, "--owner")}},
        *({key: {"$eq": value}} for key, value in pairs.items()),
    )


def _parse_where(where: str) -> Any:
    if re.match(r"[^\s{}\[\]\"]+=", where):
        usage(f"--where takes a filter as JSON; for KEY=VALUE, pass --meta {where}")
    return parse_json(where, "--where")


def _place(
    *,
    url: str | None = None,
    url_file: str | None = None,
    timeout: float | None = None,
    **others: Any,
) -> Place:
    if timeout is not None and not timeout > 0:
        usage(f"--timeout must be greater than 0, got {timeout:g}")
    if url_file is not None:
        source = click.get_current_context().get_parameter_source("url")
        if source is click.core.ParameterSource.COMMANDLINE:
            usage("pass --url or --url-file, not both")
        url = read_url(url_file)
    limits = {name: others[name] for name in LIMITS if others.get(name) is not None}
    others = {name: value for name, value in others.items() if name not in LIMITS}
    return Place(url=url, timeout=timeout, limits=limits, **others)


_SHARED = [
    flag("--json", "as_json", help="Print one JSON document."),
    option(
        "--url",
        envvar="AGENT_SESSIONS_URL",
        show_envvar=True,
        help="Database URL, such as sqlite:///chat.db. Other users can see it in the process list: "
        "put a URL with a password into AGENT_SESSIONS_URL or a file (--url-file).",
    ),
    option("--url-file", metavar="FILE", help="Read the database URL from this file."),
    option(
        "--scope",
        metavar="KEY=VALUE",
        multiple=True,
        help="Restrict the command to sessions with this value; repeatable. VALUE is parsed as "
        "JSON: 123 means the number; for the string, write '\"123\"' with its quotes.",
    ),
    option("--max-keys", type=Whole(1), help="Maximum number of metadata keys per session."),
    option("--max-key-length", type=Whole(1, 255), help="Maximum length of a metadata key."),
    option("--max-value-bytes", type=Whole(1), help="Maximum size of a metadata value."),
    option(
        "--by",
        metavar="KEY",
        help="SESSION is a value of this key, such as title, that one session has.",
    ),
    option("--create-tables", is_flag=True, help="Create missing tables first."),
    option(
        "--timeout",
        metavar="SECONDS",
        type=float,
        help="Fail if the database does not answer for this long. Default: 5 for resume-check, "
        "no limit for other commands.",
    ),
    option("--sessions-table", default="agent_sessions", help="Name of the SDK's sessions table."),
    option("--messages-table", default="agent_messages", help="Name of the SDK's messages table."),
    option(
        "--metadata-table",
        help="Name of the metadata table. Default: the sessions table's name and _metadata.",
    ),
]

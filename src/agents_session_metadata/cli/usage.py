"""The command about the usage of tracked runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import click

from agents_session_metadata.types import USAGE_FIELDS

from . import options, output
from .app import cli
from .connection import ChosenDatabase, database_options
from .output import Table, show, shown

if TYPE_CHECKING:
    from agents_session_metadata.types import Statistics, UsageRow

_NUMBERS = {
    "requests": "requests",
    "input_tokens": "input",
    "cached_input_tokens": "cached",
    "output_tokens": "output",
    "reasoning_tokens": "reasoning",
    "total_tokens": "total",
}


@cli.command(
    epilog="Example: agent-sessions usage --owner u1 --by day --by model --since 2025-01-01"
)
@click.option(
    "--owner", help="Only this owner_id. Parsed as JSON; if it is not valid JSON, a string."
)
@click.option("--session", help="Only this session.")
@click.option(
    "--by",
    "fields",
    multiple=True,
    shell_complete=options.completing(*USAGE_FIELDS),
    help=f"{', '.join(USAGE_FIELDS)}; repeatable. Default: day and model.",
)
@click.option("--since", type=options.day, help="The first day (UTC), or 7d, yesterday.")
@click.option("--until", type=options.day, help="The last day (UTC).")
@database_options()
async def usage(
    database: ChosenDatabase,
    owner: str | None,
    session: str | None,
    fields: Sequence[str],
    since: date | None,
    until: date | None,
) -> None:
    """Print the requests, tokens and cost of tracked runs, and the total."""
    fields = fields or ("day", "model")
    owner_id = None if owner is None else options.parse_value(owner, "--owner")
    if owner is not None and owner_id is None:
        options.usage("--owner must not be null")
    catalog = database.catalog
    rows = await catalog.usage(
        owner_id=owner_id, session_id=session, by=fields, since=since, until=until
    )
    if not rows:
        is_used = bool(await catalog.usage(by=()))
        await show([], message="no usage is recorded", code=1 if is_used else 0)
        return
    columns = (*fields, *_NUMBERS, "cost", "unpriced")
    cells = [[*(_text(getattr(row, name)) for name in fields), *_sums([row])] for row in rows]
    if rows[1:]:
        cells.append(["total", *[""] * (len(fields) - 1), *_sums(rows)])
    unpriced = sorted({shown(each or "unknown models") for row in rows for each in row.unpriced})
    names = ", ".join(unpriced)
    await show(
        [{name: getattr(row, name) for name in columns} for row in rows],
        table=Table((*fields, *_NUMBERS.values(), "cost"), cells),
        message=f"without a price, and not in the cost: {names}" if names else None,
    )


@cli.command(epilog="Example: agent-sessions statistics --owner u1 --since 7d")
@options.filters
@database_options()
async def statistics(database: ChosenDatabase, where: Any) -> None:
    """Print totals of sessions: their status, runs, tokens, cost, durations, errors and tools."""
    found = await database.catalog.statistics(where)
    message = None if found.sessions else output.no_match(where)
    await show(found, table=Table(("total", "value"), [*_totals(found)]), message=message)


def _totals(found: Statistics) -> Iterator[tuple[str, str]]:
    for name, value in vars(found).items():
        if isinstance(value, timedelta):
            yield name, f"{value.total_seconds():,.3f} s"
        elif isinstance(value, int):
            yield name, output.number(value)
        elif not isinstance(value, dict):
            yield name, "-" if value is None else f"{value:f}"
    for status, count in (found.by_status | found.feedback).items():
        yield shown(status), output.number(count)
    for tool, each in found.tools.items():
        took = f"{each.duration.total_seconds():,.3f} s"
        yield f"tool {shown(tool)}", f"{output.counted(each.calls, 'call')}, {took}"


def _sums(rows: Sequence[UsageRow]) -> list[str]:
    from agents_session_metadata.usage.prices import total_cost

    sums = [output.number(sum(getattr(row, name) for row in rows)) for name in _NUMBERS]
    costs = [row.cost for row in rows if row.cost is not None]
    cost = f"{total_cost(costs):f}" if costs else "-"
    return [*sums, f"{cost} +?" if costs and any(row.unpriced for row in rows) else cost]


def _text(value: Any) -> str:
    return "-" if value is None else shown(f"{value}" if isinstance(value, date) else value)

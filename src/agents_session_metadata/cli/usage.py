"""The command about the usage of tracked runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import click

from . import options, output
from .app import cli
from .connection import Database, database_options
from .output import NothingFoundError, Table, show, shown

if TYPE_CHECKING:
    from agents_session_metadata.types import UsageRow

_DAY = click.DateTime(["%Y-%m-%d"])
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
    shell_complete=options.completing("day", "agent", "model", "owner_id", "session_id"),
    help="day, agent, model, owner_id or session_id; repeatable. Default: day and model.",
)
@click.option("--since", type=_DAY, help="The first day (UTC).")
@click.option("--until", type=_DAY, help="The last day (UTC).")
@database_options()
async def usage(
    database: Database,
    owner: str | None,
    session: str | None,
    fields: Sequence[str],
    since: datetime | None,
    until: datetime | None,
) -> None:
    """Print the requests, tokens and cost of tracked runs, and the total."""
    fields = fields or ("day", "model")
    owner_id = None if owner is None else options.parse_value(owner, "--owner")
    async with database.open() as catalog:
        rows = await catalog.usage(
            owner_id=owner_id,
            session_id=session,
            by=fields,
            since=since and since.date(),
            until=until and until.date(),
        )
        is_used = bool(rows or await catalog.usage(by=()))
    if not rows:
        if is_used:
            raise NothingFoundError("no usage is recorded", [])
        await show([], message="no usage is recorded")
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


def _sums(rows: Sequence[UsageRow]) -> list[str]:
    from agents_session_metadata.usage.prices import total_cost

    sums = [output.number(sum(getattr(row, name) for row in rows)) for name in _NUMBERS]
    costs = [row.cost for row in rows if row.cost is not None]
    cost = f"{total_cost(costs):f}" if costs else "-"
    return [*sums, f"{cost} +?" if costs and any(row.unpriced for row in rows) else cost]


def _text(value: Any) -> str:
    return "-" if value is None else shown(f"{value}" if isinstance(value, date) else value)

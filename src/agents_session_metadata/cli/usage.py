"""The command that adds up the usage of tracked runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from .command import command
from .connection import Target
from .options import option, parse_value, repeatable
from .output import Answer, Table, number, shown

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


@command("usage --owner u1 --by day --by model --since 2025-01-01")
async def usage(
    target: Target,
    owner: str | None = option(
        "Only this owner_id. Parsed as JSON; if it is not valid JSON, a string."
    ),
    session: str | None = option("Only this session."),
    fields: Sequence[str] = repeatable(
        "day, agent, model, owner_id or session_id; repeatable. Default: day and model.", "--by"
    ),
    since: datetime | None = option("The first day (UTC).", type=_DAY),
    until: datetime | None = option("The last day (UTC).", type=_DAY),
) -> Answer:
    """Print the requests, tokens and cost of tracked runs, and the total."""
    fields = fields or ("day", "model")
    rows = await target.catalog.usage(
        owner_id=None if owner is None else parse_value(owner, "--owner"),
        session_id=session,
        by=fields,
        since=since and since.date(),
        until=until and until.date(),
    )
    if not rows:
        is_used = await target.catalog.usage(by=())
        return Answer(document=[], message="no usage is recorded", code=1 if is_used else 0)
    columns = (*fields, *_NUMBERS, "cost", "unpriced")
    cells = [[*(_text(getattr(row, name)) for name in fields), *_sums([row])] for row in rows]
    if rows[1:]:
        cells.append(["total", *[""] * (len(fields) - 1), *_sums(rows)])
    unpriced = sorted({shown(each or "unknown models") for row in rows for each in row.unpriced})
    names = ", ".join(unpriced)
    return Answer(
        document=[{name: getattr(row, name) for name in columns} for row in rows],
        table=Table((*fields, *_NUMBERS.values(), "cost"), cells),
        message=f"without a price, and not in the cost: {names}" if names else None,
    )


def _sums(rows: Sequence[UsageRow]) -> list[str]:
    sums = [number(sum(getattr(row, name) for row in rows)) for name in _NUMBERS]
    costs = [row.cost for row in rows if row.cost is not None]
    cost = f"{sum(costs, Decimal(0)):f}" if costs else "-"
    return [*sums, f"{cost} +?" if costs and any(row.unpriced for row in rows) else cost]


def _text(value: Any) -> str:
    return "-" if value is None else shown(f"{value}" if isinstance(value, date) else value)

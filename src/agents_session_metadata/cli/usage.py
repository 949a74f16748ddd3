"""The command about the usage of tracked runs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

from . import command as registry
from .connection import is_unused
from .options import Failure, checked, option, parse_value, takes
from .options import usage as refuse
from .output import nothing, say, shown, write_json, write_table

if TYPE_CHECKING:
    from agents_session_metadata.types import UsageRow

    from .connection import Place

_command = partial(registry.command, panel="Sessions")

_NUMBERS = {
    "requests": "requests",
    "input_tokens": "input",
    "cached_input_tokens": "cached",
    "output_tokens": "output",
    "reasoning_tokens": "reasoning",
}


@_command("usage", "usage --owner u1 --by day --by model --since 2025-01-01")
@takes(
    option(
        "--owner",
        metavar="NAME",
        help="Only this owner_id. Parsed as JSON; if it is not valid JSON, a string.",
    ),
    option("--session", metavar="ID", help="Only this session."),
    option(
        "--by",
        multiple=True,
        help="day, agent, model, owner_id or session_id; repeatable. Default: day and model.",
    ),
    option("--since", metavar="DAY", help="The first day (UTC), YYYY-MM-DD."),
    option("--until", metavar="DAY", help="The last day (UTC), YYYY-MM-DD."),
)
async def usage(
    place: Place,
    *,
    owner: str | None,
    session: str | None,
    by: tuple[str, ...],
    since: str | None,
    until: str | None,
) -> int:
    """Print the requests, tokens and cost of tracked runs."""
    from agents_session_metadata.usage.report import check_by

    fields = by or ("day", "model")
    checked(check_by, fields)
    owner_id = None if owner is None else parse_value(owner, "--owner")
    unused = False
    first, last = _day("--since", since), _day("--until", until)
    async with place.open() as (catalog, wait):
        question = catalog.usage(
            owner_id=owner_id, session_id=session, by=fields, since=first, until=last
        )
        try:
            rows = await wait(question)
        except Failure as failure:
            if not is_unused(place, failure, "_usage"):
                raise
            rows, unused = [], True
    if place.as_json:
        write_json([_record(row, fields) for row in rows])
    elif rows:
        header = (*fields, *_NUMBERS.values(), "cost")
        write_table(header, [_cells(row, fields) for row in rows])
        _tell_unpriced(rows)
    return 0 if rows else nothing("no usage is recorded", 0 if unused else 1)


def _day(option: str, text: str | None) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        refuse(f"{option} must be a date such as 2025-01-31, got '{shown(text)}'")


def _record(row: UsageRow, fields: tuple[str, ...]) -> dict[str, Any]:
    record = asdict(row)
    for name in ("day", "agent", "model", "owner_id", "session_id"):
        if name not in fields:
            del record[name]
    if row.day is not None:
        record["day"] = row.day.isoformat()
    record["cost"] = None if row.cost is None else float(row.cost)
    return record


def _cells(row: UsageRow, fields: tuple[str, ...]) -> list[str]:
    of_row = [getattr(row, name) for name in fields]
    shown_fields = ["-" if value is None else _text(value) for value in of_row]
    numbers = [f"{getattr(row, name):,}" for name in _NUMBERS]
    cost = "-" if row.cost is None else f"{row.cost:f}"
    return [
        *shown_fields,
        *numbers,
        f"{cost} +?" if row.unpriced and row.cost is not None else cost,
    ]


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, date) else shown(value)


def _tell_unpriced(rows: list[UsageRow]) -> None:
    models = {model for row in rows for model in row.unpriced}
    if models:
        names = sorted(shown(model) for model in models if model is not None)
        if None in models:
            names.append("models with unknown names")
        say(f"without a price, and not in the cost: {', '.join(names)}")

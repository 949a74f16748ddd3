"""The commands about runs: their list, the approvals that they wait for, and their usage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from agents_session_metadata.text import ago
from agents_session_metadata.types import UsageRow
from agents_session_metadata.usage.prices import total_cost

from . import options
from .app import Target, command
from .options import SESSION, YES, argument, confirm, flag, option, parse_value, repeatable, usage
from .output import Answer, Pages, Table, counted, hint, nothing, number, shown

if TYPE_CHECKING:
    from agents_session_metadata.runs.approvals import RunInfo


_DAY = click.DateTime(["%Y-%m-%d"])
_NUMBERS = {
    "requests": "requests",
    "input_tokens": "input",
    "cached_input_tokens": "cached",
    "output_tokens": "output",
    "reasoning_tokens": "reasoning",
    "total_tokens": "total",
}
_CALL = argument("The call id; or pass --all.", "[CALL]", required=False)
_EVERY = flag("Every call that has no decision.", "--all")
_NAME = option("Who decides; stored with the decision.", "--as")


@command("runs --status waiting --meta owner_id=u1")
async def runs(
    target: Target,
    status: str | None = option("Only running, waiting, interrupted or failed runs."),
    condition: Any = options.filters(),
    pages: Pages = options.paging("runs", 20),
) -> Answer:
    """List runs that work, wait for an approval, were interrupted or failed, newest first."""
    from agents_session_metadata.runs.approvals import STATUSES
    from agents_session_metadata.runs.runs import SessionRuns

    if status not in (None, *STATUSES):
        usage(f"--status must be one of {', '.join(STATUSES)}, got {shown(status)}")
    read = partial(SessionRuns(target.catalog).list, status, condition)
    header = ("session", "call", "tool", "arguments", "decision", "status", "started")
    found = await pages.write(
        read, lambda runs: Table(header, _rows(runs)).write(), as_json=target.as_json
    )
    nothing_found = f"no run is {status}" if status else "there are no runs"
    return Answer(message=None if found else nothing_found + hint(condition))


@command("approve chat-1 call_7f2 --as user_123")
async def approve(
    target: Target,
    session: str = SESSION,
    call: str | None = _CALL,
    every: bool = _EVERY,
    name: str | None = _NAME,
) -> Answer:
    """Approve a call of a waiting run. A later decision replaces an earlier one.

    The call runs when the application resumes the run.
    """
    return await _decide(target, session, call, every, approve=True, by=name)


@command("reject chat-1 call_7f2 --message 'Not on Friday'")
async def reject(
    target: Target,
    session: str = SESSION,
    call: str | None = _CALL,
    every: bool = _EVERY,
    message: str | None = option("The message that the model receives."),
    name: str | None = _NAME,
) -> Answer:
    """Reject a call of a waiting run. A later decision replaces an earlier one."""
    return await _decide(target, session, call, every, approve=False, by=name, message=message)


@command("discard chat-1 --yes")
async def discard(target: Target, session: str = SESSION, yes: bool = YES) -> Answer:
    """Give up a run that waits, was interrupted or has failed.

    Its messages stay. Calls without an output are removed.
    """
    from agents_session_metadata.runs.runs import SessionRuns

    await confirm(f"Discard the run of session {shown(session)}?", yes=yes)
    discarded = await SessionRuns(target.catalog).discard(session)
    document = {"session_id": session, "discarded": discarded}
    if not discarded:
        return await target.nothing(session, "has no run", document)
    return Answer(document=document, message="discarded the run")


async def _decide(
    target: Target, session: str, call: str | None, every: bool, **decision: Any
) -> Answer:
    from agents_session_metadata.runs.runs import SessionRuns

    if (call is None) is not every:
        usage("pass either the id of a call or --all; `agent-sessions runs` lists the calls")
    runs = SessionRuns(target.catalog)
    run = await runs.get(session)
    if run is None:
        return await target.nothing(session, "has no run")
    calls = [each.call_id for each in run.undecided] if call is None else [call]
    try:
        for each in calls:
            run = await runs.decide(session, each, **decision)
    except LookupError as error:
        raise click.ClickException(str(error)) from None
    if not calls:
        return nothing(f"every call of session {shown(session)} has a decision", run)
    verb = "approved" if decision["approve"] else "rejected"
    left = f"{len(run.undecided)} without a decision"
    return Answer(document=run, message=f"{verb} {counted(len(calls), 'call')}; {left}")


def _rows(runs: Sequence[RunInfo]) -> Iterator[list[str]]:
    for run in runs:
        end = [run.status, ago(run.started_at)]
        if not run.pending:
            yield [run.session_id, "", "", shown(run.error or ""), "", *end]
        for call in run.pending:
            given = call.decision
            decision = "approved" if given and given.approve else "rejected" if given else "waiting"
            arguments = "(encrypted)" if call.arguments is None else shown(call.arguments)
            yield [run.session_id, call.call_id, call.tool or "", arguments, decision, *end]


@command("usage --owner u1 --by day --by model --since 2025-01-01")
async def usage_(
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
    cost = f"{total_cost(costs):f}" if costs else "-"
    return [*sums, f"{cost} +?" if costs and any(row.unpriced for row in rows) else cost]


def _text(value: Any) -> str:
    return "-" if value is None else shown(f"{value}" if isinstance(value, date) else value)

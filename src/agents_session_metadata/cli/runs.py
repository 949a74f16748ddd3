"""The commands about runs: their list, their approvals and their usage."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

from agents_session_metadata.text import ago

from . import command as registry
from .connection import is_unused
from .options import (
    CURSOR,
    FILTERS,
    SESSION,
    YES,
    Failure,
    Whole,
    argument,
    checked,
    confirm,
    flag,
    option,
    parse_value,
    takes,
    usage,
)
from .output import counted, nothing, say, shown, write_json, write_table

if TYPE_CHECKING:
    from agents_session_metadata.runs.records import RunInfo
    from agents_session_metadata.types import UsageRow

    from .connection import Place

_command = partial(registry.command, panel="Approvals")

_PAGE, _LONG_PAGE = 20, 1000

_CALLS = (
    SESSION,
    argument("call", "[CALL]", "The call id; or pass --all.", required=False),
    flag("--all", "every", help="Every call that has no decision."),
)
_BY = option("--by", metavar="NAME", help="Who decides.")


@_command("runs", "runs --status waiting --meta owner_id=u1")
@takes(
    option(
        "--status",
        metavar="NAME",
        help="Only runs that are running, waiting, interrupted or failed.",
    ),
    *FILTERS,
    option("--limit", type=Whole(1, _LONG_PAGE), default=_PAGE, help="Runs per page."),
    CURSOR,
)
async def runs(
    place: Place,
    *,
    status: str | None,
    condition: dict[str, Any] | None,
    limit: int,
    cursor: str | None,
) -> int:
    """List runs that work, wait for an approval, were interrupted or failed, newest first."""
    async with place.open() as (catalog, wait):
        from agents_session_metadata.runs.records import STATUSES
        from agents_session_metadata.runs.runs import SessionRuns

        if status not in (None, *STATUSES):
            usage(f"--status must be one of {', '.join(STATUSES)}, got {shown(str(status))}")
        listing = SessionRuns(catalog).list(status, condition, limit=limit, cursor=cursor)
        page = await wait(listing)
    if place.as_json:
        records = [record_of_run(run) for run in page.runs]
        write_json({"runs": records, "next_cursor": page.next_cursor})
    elif page.runs:
        _write_runs(page.runs)
    if not page.runs:
        return nothing(f"no run is {status}" if status else "there are no runs", 0)
    if page.next_cursor is not None and not place.as_json:
        say(f"there are more runs; continue with --cursor {page.next_cursor}")
    return 0


@_command("approve", "approve chat-1 call_7f2 --by user_123")
@takes(*_CALLS, _BY)
async def approve(place: Place, **given: Any) -> int:
    """Approve a call of a waiting run. A later decision replaces an earlier one.

    The call runs when the application resumes the run.
    """
    return await _decide(place, approve=True, **given)


@_command("reject", "reject chat-1 call_7f2 --message 'Not on Friday'")
@takes(*_CALLS, option("--message", help="The message that the model receives."), _BY)
async def reject(place: Place, **given: Any) -> int:
    """Reject a call of a waiting run. A later decision replaces an earlier one."""
    return await _decide(place, approve=False, **given)


@_command("discard", "discard chat-1 --yes", shared=registry.ONE)
@takes(SESSION, YES)
async def discard(place: Place, *, session: str, yes: bool) -> int:
    """Give up a run that waits, was interrupted or has failed.

    Its messages stay. Calls without an output are removed.
    """
    confirm(f"Discard the run of session {shown(session)}?", yes=yes)
    async with place.open() as (catalog, wait):
        from agents_session_metadata.runs.runs import SessionRuns

        discarded = await wait(SessionRuns(catalog).discard(session))
    if place.as_json:
        write_json({"session_id": session, "discarded": discarded})
    if not discarded:
        return nothing(f"session {shown(session)} has no run")
    if not place.as_json:
        say("discarded the run")
    return 0


async def _decide(
    place: Place, *, session: str, call: str | None, every: bool, **decision: Any
) -> int:
    if (call is None) is not every:
        usage("pass either the id of a call or --all; `agent-sessions runs` lists the calls")
    async with place.open() as (catalog, wait):
        from agents_session_metadata.runs.runs import SessionRuns

        runs = SessionRuns(catalog)
        run = await wait(runs.get(session))
        if run is None:
            return nothing(f"session {shown(session)} has no run")
        calls = [each.call_id for each in run.undecided] if call is None else [call]
        try:
            for each in calls:
                run = await wait(runs.decide(session, each, **decision))
        except LookupError as error:
            raise Failure(str(error)) from None
    if place.as_json:
        write_json(record_of_run(run))
    if not calls:
        return nothing(f"every call of session {shown(session)} has a decision")
    say(
        f"{'approved' if decision['approve'] else 'rejected'} {counted(len(calls), 'call')}; "
        f"{len(run.undecided)} without a decision"
    )
    return 0


def record_of_run(run: RunInfo) -> dict[str, Any]:
    return {
        "session_id": run.session_id,
        "status": run.status,
        "agent": run.agent,
        "started_at": run.started_at.isoformat(),
        "error": run.error,
        "pending": [
            {
                "call_id": call.call_id,
                "tool": call.tool,
                "arguments": call.arguments,
                "agent": call.agent,
                "decision": call.decision
                and {
                    "approve": call.decision.approve,
                    "message": call.decision.message,
                    "by": call.decision.by,
                    "at": call.decision.at.isoformat(),
                },
            }
            for call in run.pending
        ],
    }


def _write_runs(runs: list[RunInfo]) -> None:
    rows = []
    for run in runs:
        ends = [run.status, ago(run.started_at)]
        if not run.pending:
            rows.append([run.session_id, "", "", shown(run.error or ""), "", *ends])
        for call in run.pending:
            decision = "waiting"
            if call.decision is not None:
                decision = "approved" if call.decision.approve else "rejected"
            arguments = "(encrypted)" if call.arguments is None else shown(call.arguments)
            rows.append([run.session_id, call.call_id, call.tool or "", arguments, decision, *ends])
    write_table(("session", "call", "tool", "arguments", "decision", "status", "started"), rows)


_NUMBERS = {
    "requests": "requests",
    "input_tokens": "input",
    "cached_input_tokens": "cached",
    "output_tokens": "output",
    "reasoning_tokens": "reasoning",
}


@registry.command(
    "usage", "usage --owner u1 --by day --by model --since 2025-01-01", panel="Sessions"
)
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
async def show_usage(
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
        write_json([_usage_record(row, fields) for row in rows])
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
        usage(f"{option} must be a date such as 2025-01-31, got '{shown(text)}'")


def _usage_record(row: UsageRow, fields: tuple[str, ...]) -> dict[str, Any]:
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
